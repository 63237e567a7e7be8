/* Reports of what went wrong between ranks: calls that differ, ranks that are missing. Each report
 * becomes the region's first error, so all ranks return the same words. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/group.h"

/* A message put together piece by piece; what does not fit is cut. */
typedef struct text {
    char at[LSI_MESSAGE_BYTES];
    size_t used;
} text;

LSI_PRINTF(2, 3) static void put(text *t, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int n = vsnprintf(t->at + t->used, sizeof t->at - t->used, format, values);
    va_end(values);
    if (n > 0) t->used += (size_t)n;
    if (t->used >= sizeof t->at) t->used = sizeof t->at - 1;
}

/* Makes the text the region's error, unless there is an earlier one, and returns the first. */
static ls_status raise_error(ls_group *group, ls_status status, const text *t) {
    lsi_region_abort(group->region, status, group->rank, t->at);
    return lsi_region_error(group->region, NULL);
}

ls_status lsi_report_mismatch(const ls_work *work) {
    ls_group *group = work->group;
    const lsi_call *first = lsi_work_call_of(work, 0);
    char call[LSI_CALL_TEXT_BYTES];
    text t = {.used = 0};
    put(&t, "call #%llu differs between ranks: rank 0 called %s",
        (unsigned long long)work->index + 1, lsi_call_print(first, call));
    for (int r = 1; r < group->n_ranks; r++)
        if (!lsi_call_matches(first, lsi_work_call_of(work, r)))
            put(&t, "; rank %d called %s", r, lsi_call_print(lsi_work_call_of(work, r), call));
    put(&t, "; all ranks must make the same calls in the same order");
    return raise_error(group, LS_ERR_MISMATCH, &t);
}

/* Why a work is not done, the strongest reason first. Only ranks with the strongest are named: the
 * others may be unfinished too, but because they wait for these. */
typedef enum reason { LEFT, NOT_JOINED, NOT_FINISHED, N_REASONS } reason;

static bool has_left(const ls_work *work, int rank) {
    const lsi_rank_control *control = &work->group->ranks[rank];
    /* In this order: `done` does not move any more once `left` is seen. */
    return atomic_load(&control->left) && atomic_load(&control->done) <= work->index;
}

bool lsi_someone_left(const ls_work *work) {
    for (int r = 0; r < work->group->n_ranks; r++)
        if (has_left(work, r)) return true;
    return false;
}

/* Parts and pieces behind the rank. Where one rank's phase is held up by another, the other is
 * behind in some counter and ahead in none. */
static uint64_t progress_of(const lsi_rank_control *rank) {
    return atomic_load(&rank->done) + atomic_load(&rank->staged) + atomic_load(&rank->combined) +
           atomic_load(&rank->consumed);
}

static bool is_last(const ls_group *group, int rank) {
    uint64_t progress = progress_of(&group->ranks[rank]);
    for (int r = 0; r < group->n_ranks; r++)
        if (progress_of(&group->ranks[r]) < progress) return false;
    return true;
}

static bool is_missing(const ls_work *work, int rank, reason why) {
    const lsi_rank_control *control = &work->group->ranks[rank];
    switch (why) {
    case LEFT: return has_left(work, rank);
    case NOT_JOINED: return atomic_load(&control->arrived) <= work->index;
    default: return atomic_load(&control->done) <= work->index && is_last(work->group, rank);
    }
}

static void put_whereabouts(text *t, const ls_work *work, int rank) {
    const lsi_rank_control *control = &work->group->ranks[rank];
    uint64_t arrived = atomic_load(&control->arrived);
    if (arrived == 0)
        put(t, " (no call yet");
    else
        put(t, " (last call #%llu, %s, count %lld%s", (unsigned long long)arrived,
            lsi_call_kind_name(atomic_load(&control->last_kind)),
            (long long)atomic_load(&control->last_count),
            atomic_load(&control->done) >= arrived ? ", finished" : ", unfinished");
    put(t, atomic_load(&control->left) ? "; it has left the group)" : ")");
}

/* Returns how many ranks are missing for this reason. */
static int put_missing(text *t, const ls_work *work, reason why) {
    int n_missing = 0;
    for (int r = 0; r < work->group->n_ranks; r++) {
        if (r == work->group->rank || !is_missing(work, r, why)) continue;
        bool joined = atomic_load(&work->group->ranks[r].arrived) > work->index;
        put(t, " rank %d did not %s", r, joined ? "finish" : "join");
        put_whereabouts(t, work, r);
        n_missing++;
    }
    return n_missing;
}

ls_status lsi_report_missing(const ls_work *work, int64_t waited_ms) {
    ls_group *group = work->group;
    char call[LSI_CALL_TEXT_BYTES];
    text t = {.used = 0};
    put(&t, "rank %d waited %lld ms in call #%llu, %s:", group->rank, (long long)waited_ms,
        (unsigned long long)work->index + 1, lsi_call_print(&work->call, call));
    reason why = LEFT;
    while (why < N_REASONS && put_missing(&t, work, why) == 0) why++;
    if (why == N_REASONS) return LS_OK;
    if (why == LEFT) return raise_error(group, LS_ERR_PEER, &t);
    put(&t, "; if that rank only needs longer, raise the timeout");
    return raise_error(group, LS_ERR_TIMEOUT, &t);
}
