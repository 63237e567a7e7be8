/* The monitor's memory: sums, the window, and who is slow (rules: monitor.h).
 *
 * Invariant: ratios[] of a rank holds its last steps, and n_late counts those in which it was late,
 * so that the rule costs the same however long the window is. Ratios are kept instead of
 * times because they compare steps of different lengths, and their median is what reports say.
 *
 * The first step's share in everything is dropped when the second one comes: a run of one step
 * still has a report. */
#include "observe/monitor.h"

#include <stdarg.h>
#include <string.h>

typedef struct rank_memory {
    lsi_rank_times sum;
    double wait_ms;                    /* sum */
    double ratios[LSI_MONITOR_WINDOW]; /* work / work of the median rank; a ring */
    int n_late;                        /* of them more than LSI_SLOW_RATIO */
    int is_slow;
} rank_memory;

struct lsi_monitor {
    int n_ranks;
    lsi_traffic traffic;
    int64_t n_seen, n_steps; /* all steps; those in the sums and in the rings */
    lsi_step_record sum;     /* of its times */
    int64_t n_skipped;
    rank_memory *ranks;
    double *sorted; /* n_ranks places for the median rank */
    char note[512];
};

ls_status lsi_monitor_create(int n_ranks, lsi_traffic traffic, lsi_monitor **monitor) {
    if (n_ranks < 1)
        return lsi_fail(LS_ERR_ARGUMENT, "monitor of %d ranks, must be at least 1", n_ranks);
    lsi_monitor *m = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *m);
    LSI_TRY(lsi_check_alloc(m));
    m->n_ranks = n_ranks;
    m->traffic = traffic;
    m->ranks = lsi_calloc(LSI_MEM_OTHER, (size_t)n_ranks, sizeof *m->ranks);
    m->sorted = lsi_calloc(LSI_MEM_OTHER, (size_t)n_ranks, sizeof *m->sorted);
    if (!m->ranks || !m->sorted) {
        lsi_monitor_destroy(m);
        return lsi_check_alloc(NULL);
    }
    *monitor = m;
    return LS_OK;
}

void lsi_monitor_destroy(lsi_monitor *monitor) {
    if (!monitor) return;
    lsi_free(monitor->ranks);
    lsi_free(monitor->sorted);
    lsi_free(monitor);
}

/* ---- a step ---- */

static double work_of(const lsi_rank_times *rank) {
    return rank->optimizer_ms + rank->compute_ms;
}

double lsi_wait_ms(const lsi_rank_times *ranks, int n_ranks, int rank) {
    double most = 0;
    for (int r = 0; r < n_ranks; r++)
        if (work_of(&ranks[r]) > most) most = work_of(&ranks[r]);
    double lack = most - work_of(&ranks[rank]);
    return lack < ranks[rank].exposed_ms ? lack : ranks[rank].exposed_ms;
}

static void forget_first_step(lsi_monitor *m) {
    m->n_steps = 0;
    memset(&m->sum, 0, sizeof m->sum);
    memset(m->ranks, 0, (size_t)m->n_ranks * sizeof *m->ranks);
}

static void add_record(lsi_step_record *sum, const lsi_step_record *record) {
    sum->step_ms += record->step_ms;
    sum->forward_ms += record->forward_ms;
    sum->backward_ms += record->backward_ms;
    sum->optimizer_ms += record->optimizer_ms;
    sum->comm_ms += record->comm_ms;
    sum->comm_exposed_ms += record->comm_exposed_ms;
    sum->wait_ms += record->wait_ms;
}

static void add_rank(rank_memory *memory, const lsi_rank_times *times, double wait_ms) {
    memory->sum.compute_ms += times->compute_ms;
    memory->sum.exposed_ms += times->exposed_ms;
    memory->sum.optimizer_ms += times->optimizer_ms;
    memory->wait_ms += wait_ms;
}

static double median_work(lsi_monitor *m, const lsi_rank_times *ranks) {
    for (int r = 0; r < m->n_ranks; r++) m->sorted[r] = work_of(&ranks[r]);
    lsi_median(m->sorted, m->n_ranks);
    return m->sorted[(m->n_ranks - 1) / 2];
}

static int64_t n_in_window(const lsi_monitor *m) {
    return m->n_steps < LSI_MONITOR_WINDOW ? m->n_steps : LSI_MONITOR_WINDOW;
}

/* The step that leaves the ring stops counting. */
static void remember_ratio(const lsi_monitor *m, rank_memory *memory, double ratio) {
    double *place = &memory->ratios[m->n_steps % LSI_MONITOR_WINDOW];
    if (m->n_steps >= LSI_MONITOR_WINDOW) memory->n_late -= *place > LSI_SLOW_RATIO;
    memory->n_late += ratio > LSI_SLOW_RATIO;
    *place = ratio;
}

static int is_slow_now(const rank_memory *memory, int64_t n_window) {
    int64_t margin = 2 * memory->n_late - n_window; /* twice what is above half */
    return memory->is_slow ? margin >= 0 : margin > 0 && margin * margin >= 9 * n_window;
}

static double ratio_of(const lsi_monitor *m, int rank) {
    double ratios[LSI_MONITOR_WINDOW];
    memcpy(ratios, m->ranks[rank].ratios, sizeof ratios);
    return m->n_steps ? lsi_median(ratios, n_in_window(m)) : 1;
}

static void LSI_PRINTF(2, 3) add_note(lsi_monitor *m, const char *format, ...) {
    size_t used = strlen(m->note);
    va_list values;
    va_start(values, format);
    vsnprintf(m->note + used, sizeof m->note - used, format, values);
    va_end(values);
}

/* More notes at once than fit are cut: the report has them all. */
static void judge(lsi_monitor *m, int rank) {
    rank_memory *memory = &m->ranks[rank];
    int is_slow = is_slow_now(memory, n_in_window(m));
    if (is_slow == memory->is_slow) return;
    memory->is_slow = is_slow;
    const char *separator = m->note[0] ? "; " : "";
    if (is_slow)
        add_note(m, "%srank %d is slow: its work takes %.2f times as long as the median rank's",
                 separator, rank, ratio_of(m, rank));
    else
        add_note(m, "%srank %d is no longer slow", separator, rank);
}

void lsi_monitor_step(lsi_monitor *monitor, lsi_step_record *record, const lsi_rank_times *ranks) {
    lsi_monitor *m = monitor;
    if (!m) return;
    if (m->n_seen++ == 1) forget_first_step(m);
    record->wait_ms = lsi_wait_ms(ranks, m->n_ranks, 0);
    add_record(&m->sum, record);
    m->n_skipped = record->n_skipped;
    m->note[0] = 0;
    double middle = median_work(m, ranks);
    for (int r = 0; r < m->n_ranks; r++) {
        add_rank(&m->ranks[r], &ranks[r], lsi_wait_ms(ranks, m->n_ranks, r));
        remember_ratio(m, &m->ranks[r], middle > 0 ? work_of(&ranks[r]) / middle : 1);
    }
    m->n_steps++;
    for (int r = 0; r < m->n_ranks; r++) judge(m, r);
}

const char *lsi_monitor_note(const lsi_monitor *monitor) {
    return monitor && monitor->note[0] ? monitor->note : NULL;
}

/* ---- answers ---- */

void lsi_monitor_get_rank(const lsi_monitor *monitor, int rank, lsi_rank_summary *summary) {
    if (!monitor) return;
    const rank_memory *memory = &monitor->ranks[rank];
    double n = monitor->n_steps ? (double)monitor->n_steps : 1;
    *summary = (lsi_rank_summary){
        .compute_ms = memory->sum.compute_ms / n,
        .exposed_ms = memory->sum.exposed_ms / n,
        .optimizer_ms = memory->sum.optimizer_ms / n,
        .wait_ms = memory->wait_ms / n,
        .work_ratio = ratio_of(monitor, rank),
        .is_slow = memory->is_slow,
    };
}

/* Times of rank 0. What is in none of them is "other": reports, saving, gaps. */
static void take_means(const lsi_monitor *m, lsi_monitor_summary *s) {
    double n = m->n_steps ? (double)m->n_steps : 1;
    s->n_steps = m->n_steps;
    s->n_skipped = m->n_skipped;
    s->step_ms = m->sum.step_ms / n;
    s->forward_ms = m->sum.forward_ms / n;
    s->backward_ms = m->sum.backward_ms / n;
    s->optimizer_ms = m->sum.optimizer_ms / n;
    s->comm_ms = m->sum.comm_ms / n;
    s->comm_exposed_ms = m->sum.comm_exposed_ms / n;
    s->wait_ms = m->sum.wait_ms / n;
    double other =
        s->step_ms - s->forward_ms - s->backward_ms - s->optimizer_ms - s->comm_exposed_ms;
    s->other_ms = other > 0 ? other : 0;
}

static void take_ranks(const lsi_monitor *m, lsi_monitor_summary *s) {
    double exposed = 0, wait = 0, slowest_ratio = 0;
    s->n_slow = 0;
    s->slowest = -1;
    for (int r = 0; r < m->n_ranks; r++) {
        exposed += m->ranks[r].sum.exposed_ms;
        wait += m->ranks[r].wait_ms;
        if (!m->ranks[r].is_slow) continue;
        double ratio = ratio_of(m, r);
        s->n_slow++;
        if (ratio > slowest_ratio) s->slowest = r, slowest_ratio = ratio;
    }
    s->comm_share = m->sum.step_ms > 0 ? exposed / m->n_ranks / m->sum.step_ms : 0;
    if (s->comm_share > 1) s->comm_share = 1; /* others' steps may be longer than rank 0's */
    s->wait_share = exposed > 0 ? wait / exposed : 0;
}

static lsi_verdict judge_share(const lsi_monitor *m, const lsi_monitor_summary *s) {
    if (m->n_ranks == 1) return LSI_VERDICT_ALONE;
    if (s->comm_share < 0.30) return LSI_VERDICT_HEALTHY;
    if (s->wait_share > 0.50) return s->n_slow ? LSI_VERDICT_SLOW_RANK : LSI_VERDICT_UNEVEN;
    return s->comm_share > 0.50 ? LSI_VERDICT_BOUND : LSI_VERDICT_LOOK;
}

void lsi_monitor_get(const lsi_monitor *monitor, lsi_monitor_summary *summary) {
    if (!monitor) return;
    take_means(monitor, summary);
    take_ranks(monitor, summary);
    summary->verdict = judge_share(monitor, summary);
}

int lsi_monitor_n_ranks(const lsi_monitor *monitor) {
    return monitor ? monitor->n_ranks : 0;
}

lsi_traffic lsi_monitor_traffic(const lsi_monitor *monitor) {
    return monitor->traffic;
}
