/* What the monitor knows, for people and for programs: the table of a step's time, the share of
 * exposed communication with its advice, the slow ranks.
 *
 *     a step of rank 0           ms      share
 *     forward                   20.0    20.0 %
 *     backward                  40.0    40.0 %
 *     optimizer                  5.0     5.0 %
 *     communication, exposed    30.0    30.0 %
 *       waiting for ranks       10.0    10.0 %
 *     other                      5.0     5.0 %
 *     step                     100.0   100.0 %   (mean of 59 steps)
 *     communication, hidden     15.0    15.0 %   (while computing)
 *     advice           31.0 % of a step is exposed communication: worth a look …
 *     slow ranks       rank 3 (1.32 times the median rank's work)
 *
 * Waiting is part of the exposed time and hidden communication runs beside computation, so neither
 * counts in the sum. The thresholds of the advice are rules of thumb: they sort runs, they measure
 * nothing. */
#include "observe/monitor.h"

#include <stddef.h>
#include <string.h>

/* ---- advice ---- */

static const char *const verdict_names[] = {
#define LSI_VERDICT_NAME(name, text) [LSI_VERDICT_##name] = text,
    LSI_VERDICT_TABLE(LSI_VERDICT_NAME)
#undef LSI_VERDICT_NAME
};

/* What computes more for the same bytes: what is exchanged once a step is worth a longer step. */
static const char *const more[] = {
    "a larger batch or accumulation computes more for the same bytes",
    "larger micro-batches compute more for the same bytes; accumulation does not, each micro-batch "
    "is exchanged",
};

/* What sends less, by what is sent. On one machine a shared copy need not be gathered at all. */
static const struct {
    bool each_micro_batch;
    const char *less;
} remedies[LSI_N_TRAFFICS] = {
    [LSI_TRAFFIC_DDP] = {false, "--strategy zero1, a --comm-hook"},
    [LSI_TRAFFIC_ZERO1] = {false, "--reduce-dtype bf16"},
    [LSI_TRAFFIC_ZERO2] = {true, "--strategy zero1, --reduce-dtype bf16"},
    [LSI_TRAFFIC_ZERO3] = {true, "--reshard no, --strategy hybrid, --replicas shared"},
    [LSI_TRAFFIC_ZERO3_KEPT] = {true, "--strategy hybrid, --replicas shared"},
    [LSI_TRAFFIC_HYBRID] = {true, "--reshard no, --replicas shared"},
    [LSI_TRAFFIC_HYBRID_KEPT] = {true, "--replicas shared"},
};

static const char *const advice[] = {
    [LSI_VERDICT_HEALTHY] = "healthy (under 30 %)",
    [LSI_VERDICT_LOOK] = "worth a look (30 to 50 %); ",
    [LSI_VERDICT_BOUND] = "communication-bound (above 50 %); ",
    [LSI_VERDICT_SLOW_RANK] = "mostly waiting for rank %d, which is slow; faster links would not "
                              "help, finding out what slows that rank would",
    [LSI_VERDICT_UNEVEN] = "mostly waiting for whichever rank is last, another one each time; "
                           "faster links would not help, even work and a free processor for each "
                           "rank would",
};

/* The sentence of a verdict with the slow rank, or with what helps in this kind of run. */
static void write_advice(const lsi_monitor_summary *s, lsi_traffic traffic, char *buffer,
                         size_t buffer_bytes) {
    int n = snprintf(buffer, buffer_bytes,
                     "%.1f %% of a step is exposed communication: ", 100 * s->comm_share);
    size_t used = (size_t)n < buffer_bytes ? (size_t)n : buffer_bytes;
    char *rest = buffer + used;
    size_t rest_bytes = buffer_bytes - used;
    const char *words = advice[s->verdict], *longer = more[remedies[traffic].each_micro_batch];
    if (s->verdict == LSI_VERDICT_SLOW_RANK)
        snprintf(rest, rest_bytes, advice[LSI_VERDICT_SLOW_RANK], s->slowest);
    else if (s->verdict == LSI_VERDICT_LOOK)
        snprintf(rest, rest_bytes, "%s%s", words, longer);
    else if (s->verdict == LSI_VERDICT_BOUND)
        snprintf(rest, rest_bytes, "%s%s; what sends less: %s; or faster links", words, longer,
                 remedies[traffic].less);
    else
        snprintf(rest, rest_bytes, "%s", words);
}

const char *lsi_monitor_advice(const lsi_monitor *monitor, char *buffer, size_t buffer_bytes) {
    lsi_monitor_summary summary;
    buffer[0] = 0;
    if (!monitor) return buffer;
    lsi_monitor_get(monitor, &summary);
    if (summary.verdict == LSI_VERDICT_ALONE)
        snprintf(buffer, buffer_bytes, "none: there is one rank");
    else
        write_advice(&summary, lsi_monitor_traffic(monitor), buffer, buffer_bytes);
    return buffer;
}

/* ---- the table ---- */

static const struct {
    const char *label;
    size_t offset;
} ROWS[] = {
    {"forward", offsetof(lsi_monitor_summary, forward_ms)},
    {"backward", offsetof(lsi_monitor_summary, backward_ms)},
    {"optimizer", offsetof(lsi_monitor_summary, optimizer_ms)},
    {"communication, exposed", offsetof(lsi_monitor_summary, comm_exposed_ms)},
    {"  waiting for ranks", offsetof(lsi_monitor_summary, wait_ms)},
    {"other", offsetof(lsi_monitor_summary, other_ms)},
};

static void print_row(FILE *out, const lsi_monitor_summary *s, const char *label, double ms) {
    double share = s->step_ms > 0 ? 100 * ms / s->step_ms : 0;
    fprintf(out, "%-24s %9.1f %7.1f %%", label, ms, share);
}

static double hidden_ms(const lsi_monitor_summary *s) {
    return s->comm_ms > s->comm_exposed_ms ? s->comm_ms - s->comm_exposed_ms : 0;
}

static void print_times(FILE *out, const lsi_monitor_summary *s) {
    fprintf(out, "%-24s %9s %9s\n", "a step of rank 0", "ms", "share");
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        print_row(out, s, ROWS[i].label, *(const double *)((const char *)s + ROWS[i].offset));
        fputc('\n', out);
    }
    print_row(out, s, "step", s->step_ms);
    fprintf(out, "   (mean of %lld step%s)\n", (long long)s->n_steps, s->n_steps == 1 ? "" : "s");
    print_row(out, s, "communication, hidden", hidden_ms(s));
    fprintf(out, "   (while computing)\n");
}

static void print_slow_ranks(FILE *out, const lsi_monitor *monitor) {
    const char *separator = "slow ranks       ";
    for (int r = 0; r < lsi_monitor_n_ranks(monitor); r++) {
        lsi_rank_summary rank;
        lsi_monitor_get_rank(monitor, r, &rank);
        if (!rank.is_slow) continue;
        fprintf(out, "%srank %d (%.2f times the median rank's work)", separator, r,
                rank.work_ratio);
        separator = ", ";
    }
    fputs(strcmp(separator, ", ") == 0 ? "\n" : "slow ranks       none\n", out);
}

void lsi_monitor_print(const lsi_monitor *monitor, FILE *out) {
    lsi_monitor_summary summary;
    char sentence[LSI_ADVICE_BYTES];
    if (!monitor) return;
    lsi_monitor_get(monitor, &summary);
    if (summary.n_steps == 0) return;
    print_times(out, &summary);
    fprintf(out, "advice           %s\n", lsi_monitor_advice(monitor, sentence, sizeof sentence));
    if (summary.verdict != LSI_VERDICT_ALONE) print_slow_ranks(out, monitor);
}

/* ---- JSON ---- */

static json_t *ranks_to_json(const lsi_monitor *monitor) {
    json_t *list = json_array();
    for (int r = 0; list && r < lsi_monitor_n_ranks(monitor); r++) {
        lsi_rank_summary rank;
        lsi_monitor_get_rank(monitor, r, &rank);
        json_t *row = json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:b}", "rank", r, "compute_ms",
                                rank.compute_ms, "optimizer_ms", rank.optimizer_ms,
                                "comm_exposed_ms", rank.exposed_ms, "wait_ms", rank.wait_ms,
                                "work_ratio", rank.work_ratio, "is_slow", rank.is_slow);
        if (json_array_append_new(list, row) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

json_t *lsi_monitor_to_json(const lsi_monitor *monitor) {
    lsi_monitor_summary s;
    char sentence[LSI_ADVICE_BYTES];
    if (!monitor) return json_object();
    lsi_monitor_get(monitor, &s);
    return json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:s, s:o}",
        "n_steps", (json_int_t)s.n_steps, "n_skipped", (json_int_t)s.n_skipped, "step_ms",
        s.step_ms, "forward_ms", s.forward_ms, "backward_ms", s.backward_ms, "optimizer_ms",
        s.optimizer_ms, "comm_ms", s.comm_ms, "comm_exposed_ms", s.comm_exposed_ms,
        "comm_hidden_ms", hidden_ms(&s), "wait_ms", s.wait_ms, "other_ms", s.other_ms, "comm_share",
        s.comm_share, "wait_share", s.wait_share, "verdict", verdict_names[s.verdict], "advice",
        lsi_monitor_advice(monitor, sentence, sizeof sentence), "ranks", ranks_to_json(monitor));
}
