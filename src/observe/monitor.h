/* The monitor of a run: where a step's time goes, which ranks are slow, what that advises.
 *
 * It is fed once a step on rank 0 and keeps sums over all steps but the first one, which warms up,
 * and the last LSI_MONITOR_WINDOW steps of each rank, so its memory does not grow with the run.
 *
 * Work of a rank in a step is what it does alone between two meetings of the ranks: an optimizer
 * step, and then the loading, forward and backward passes of the next step. A rank with less of it
 * than the slowest one waits for the difference, which no faster link would spare it.
 *
 * A rank is late in a step when its work took more than LSI_SLOW_RATIO times the median rank's, and
 * slow when it was late in more than half of the window's steps, by three standard deviations of
 * a coin, 1.5 times the root of the number of steps: 9 of 9, 14 of 16, 44 of 64. It is no longer
 * slow when it is late in less than half. Each step is judged by itself, so steps may differ in
 * length; that most of them count, not their mean, keeps out ranks with rare long steps, and the
 * margin keeps out noise, which makes every rank late now and then. The median rank is, of an even
 * number, the lower middle one: of two ranks the faster one. */
#ifndef LSI_OBSERVE_MONITOR_H
#define LSI_OBSERVE_MONITOR_H

#include "observe/observe.h"

enum { LSI_MONITOR_WINDOW = 64 };
#define LSI_SLOW_RATIO 1.10

/* One step of one rank. Communication inside of passes (waiting, moving, adding) belongs to
 * exposed_ms and is left out of the others. Doubles without gaps, so an all-gather of three F64 a
 * rank makes the list. */
typedef struct lsi_rank_times {
    double compute_ms;   /* loading, forward and backward passes */
    double exposed_ms;   /* communication while no computation went on */
    double optimizer_ms; /* of the optimizer step before these passes; 0: there was none */
} lsi_rank_times;

/* What a run exchanges, on which depends what makes it less (the table of advice in
 * monitor_report.c).
 *
 *   DDP          gradients, once a step
 *   ZERO1        the same in shards
 *   ZERO2        gradients in shards, for each micro-batch; also ZeRO-3 where parameters are shared
 *   ZERO3        for each micro-batch units before forward and before backward as well
 *   ZERO3_KEPT   before forward only: they are kept for backward
 *   HYBRID       as ZERO3 within groups, and a share of the gradients between these
 *   HYBRID_KEPT  as ZERO3_KEPT within groups */
typedef enum lsi_traffic {
    LSI_TRAFFIC_DDP,
    LSI_TRAFFIC_ZERO1,
    LSI_TRAFFIC_ZERO2,
    LSI_TRAFFIC_ZERO3,
    LSI_TRAFFIC_ZERO3_KEPT,
    LSI_TRAFFIC_HYBRID,
    LSI_TRAFFIC_HYBRID_KEPT,
    LSI_N_TRAFFICS
} lsi_traffic;

typedef struct lsi_monitor lsi_monitor;
LS_CHECKED ls_status lsi_monitor_create(int n_ranks, lsi_traffic traffic, lsi_monitor **monitor);
void lsi_monitor_destroy(lsi_monitor *monitor);
/* The calls below do nothing when monitor is NULL (ranks other than 0).
 *
 * ranks: n_ranks of them. record: rank 0's step; its wait_ms is set here from ranks. */
void lsi_monitor_step(lsi_monitor *monitor, lsi_step_record *record, const lsi_rank_times *ranks);
/* What the last step has made known, for lsi_progress_say: "rank 3 is slow: …", "rank 3 is no
 * longer slow"; NULL: nothing. Valid until the next step. */
const char *lsi_monitor_note(const lsi_monitor *monitor);

/* ---- answers ---- */

/* What the share of exposed communication in a step means, and why it is so. X(name, name in JSON)
 *
 *   ALONE      one rank
 *   HEALTHY    less than 30 %
 *   LOOK       30 to 50 %
 *   BOUND      more than 50 %
 *   SLOW_RANK  30 % or more, and more than half of it is waiting for ranks that are slow
 *   UNEVEN     the same, but nobody is slow: another rank is last each time */
#define LSI_VERDICT_TABLE(X)                                                                       \
    X(ALONE, "alone")                                                                              \
    X(HEALTHY, "healthy")                                                                          \
    X(LOOK, "worth_a_look")                                                                        \
    X(BOUND, "comm_bound")                                                                         \
    X(SLOW_RANK, "slow_rank")                                                                      \
    X(UNEVEN, "uneven")

typedef enum lsi_verdict {
#define LSI_VERDICT_ENUM(name, text) LSI_VERDICT_##name,
    LSI_VERDICT_TABLE(LSI_VERDICT_ENUM)
#undef LSI_VERDICT_ENUM
        LSI_N_VERDICTS
} lsi_verdict;

/* Means a step. */
typedef struct lsi_monitor_summary {
    int64_t n_steps;   /* measured */
    int64_t n_skipped; /* of all steps so far */
    /* Rank 0's; other_ms is what the others leave of the step. */
    double step_ms, forward_ms, backward_ms, optimizer_ms, comm_ms, comm_exposed_ms, wait_ms,
        other_ms;
    double comm_share; /* exposed / step, mean over ranks */
    double wait_share; /* of exposed: waiting for the slowest rank, all ranks together */
    int n_slow;        /* ranks that are slow, … */
    int slowest;       /* … and of these the slowest; -1: none is */
    lsi_verdict verdict;
} lsi_monitor_summary;

typedef struct lsi_rank_summary {
    double compute_ms, exposed_ms, optimizer_ms, wait_ms; /* means a step */
    double work_ratio; /* work / work of the median rank, median over the window; 1: no step yet */
    int is_slow;
} lsi_rank_summary;

int lsi_monitor_n_ranks(const lsi_monitor *monitor);
lsi_traffic lsi_monitor_traffic(const lsi_monitor *monitor);
void lsi_monitor_get(const lsi_monitor *monitor, lsi_monitor_summary *summary);
void lsi_monitor_get_rank(const lsi_monitor *monitor, int rank, lsi_rank_summary *summary);
/* Waiting of `rank` for the slowest rank in one step: what it lacks to the most work, at most its
 * exposed time. */
double lsi_wait_ms(const lsi_rank_times *ranks, int n_ranks, int rank);

/* ---- reports (monitor_report.c) ---- */

/* One sentence: what the share of communication means and what helps. Returns buffer;
 * LSI_ADVICE_BYTES hold it. */
enum { LSI_ADVICE_BYTES = 320 };
const char *lsi_monitor_advice(const lsi_monitor *monitor, char *buffer, size_t buffer_bytes);
/* A table for people; nothing when no step was measured. */
void lsi_monitor_print(const lsi_monitor *monitor, FILE *out);
/* The same for programs (new reference; NULL when memory ran out). */
json_t *lsi_monitor_to_json(const lsi_monitor *monitor);

#endif
