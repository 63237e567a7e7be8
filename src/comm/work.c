/* The engine: posted works are started, completed and waited for, in order.
 *
 * Progress is made by whoever calls test, wait, progress or post on this rank; there is no thread
 * of its own. That suits one worker per core: a reduction is work for the same core either way. */
#include "comm/group.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"
#include "comm/transport/bell.h"

/* Longest sleep without looking at errors and deadlines; a wake-up normally ends it earlier. */
static const int64_t MAX_SLEEP_NS = 50 * 1000 * 1000;

void lsi_group_ring(ls_group *group) {
    for (int r = 0; r < group->n_ranks; r++)
        if (r != group->rank) lsi_bell_ring(&group->ranks[r]);
}

const lsi_call *lsi_work_call_of(const ls_work *work, int rank) {
    return &work->group->ranks[rank].calls[work->index % LSI_CALLS];
}

static ls_work *work_at(ls_group *group, uint64_t index) {
    return &group->works[index % LSI_CALLS];
}

bool lsi_all_arrived(const ls_group *group, uint64_t index) {
    for (int r = 0; r < group->n_ranks; r++)
        if (atomic_load(&group->ranks[r].arrived) <= index) return false;
    return true;
}

static bool all_done(const ls_group *group, uint64_t index) {
    for (int r = 0; r < group->n_ranks; r++)
        if (atomic_load(&group->ranks[r].done) <= index) return false;
    return true;
}

static bool all_match(const ls_work *work) {
    for (int r = 0; r < work->group->n_ranks; r++)
        if (!lsi_call_matches(lsi_work_call_of(work, r), &work->call)) return false;
    return true;
}

/* This rank's part of a work that all have posted; true when it is finished. */
static bool do_part(ls_work *work) {
    ls_group *group = work->group;
    if (work->call.count == 0) return true; /* nothing to move; pointers may be NULL */
    if (work->staged) return lsi_staged_advance(work);
    const lsi_collective *collective = lsi_collective_of(work->call.kind);
    if (collective->is_direct(work)) {
        int64_t trace_ns = lsi_trace_begin(), begin_ns = lsi_now_ns();
        group->stats.bytes_sent += collective->direct(work);
        group->stats.work_ns += lsi_now_ns() - begin_ns;
        lsi_trace_end(trace_ns, LSI_TRACE_COMM, lsi_call_kind_name(work->call.kind),
                      (int64_t)work->index);
        return true;
    }
    int64_t piece_elems = lsi_piece_elems(work);
    work->staged = true;
    work->n_pieces = (uint64_t)((work->call.count + piece_elems - 1) / piece_elems);
    work->n_in = work->n_combined = work->n_out = 0;
    return lsi_staged_advance(work);
}

/* Starts what can be started; *moved says whether anything changed. */
static ls_status start_works(ls_group *group, bool *moved) {
    while (group->n_started < group->n_posted && lsi_all_arrived(group, group->n_started)) {
        ls_work *work = work_at(group, group->n_started);
        if (!all_match(work)) return lsi_report_mismatch(work);
        if (!do_part(work)) break;
        group->n_started++;
        atomic_store(&group->me->done, group->n_started);
        if (all_done(group, group->n_started - 1)) lsi_group_ring(group);
        *moved = true;
    }
    return LS_OK;
}

static void complete_works(ls_group *group, bool *moved) {
    while (group->n_completed < group->n_started && all_done(group, group->n_completed)) {
        group->n_completed++;
        if (group->n_completed == group->n_posted)
            group->stats.flight_ns += lsi_now_ns() - group->flight_start_ns;
        *moved = true;
    }
}

ls_status lsi_group_advance(ls_group *group) {
    bool moved = true;
    while (moved) {
        moved = false;
        LSI_TRY(lsi_region_error(group->region, NULL));
        LSI_TRY(start_works(group, &moved));
        complete_works(group, &moved);
    }
    return LS_OK;
}

static bool is_done(const ls_work *work) {
    return work->index < work->group->n_completed;
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Sleeps until something may have changed; looks once more between announcing and sleeping. */
static ls_status sleep_for_change(ls_work *work, int64_t deadline_ns) {
    ls_group *group = work->group;
    int64_t left_ns = deadline_ns - lsi_now_ns();
    uint32_t ticket = lsi_bell_prepare(group->me);
    uint64_t combined_before = group->n_started + work->n_in + work->n_combined + work->n_out;
    ls_status status = lsi_group_advance(group);
    bool changed = is_done(work) || combined_before != group->n_started + work->n_in +
                                                           work->n_combined + work->n_out;
    if (status == LS_OK && !changed && left_ns > 0 && !lsi_someone_left(work))
        lsi_bell_sleep(group->me, ticket, left_ns < MAX_SLEEP_NS ? left_ns : MAX_SLEEP_NS);
    lsi_bell_cancel(group->me);
    return status;
}

static ls_status wait_done(ls_work *work, int64_t timeout_ms) {
    ls_group *group = work->group;
    int64_t begin_ns = lsi_now_ns();
    int64_t deadline_ns = lsi_deadline_ns(timeout_ms < 0 ? group->timeout_ms : timeout_ms);
    for (;;) {
        /* The clock is read before the counters: a rank that was held up itself, for longer than
         * its deadline, looks at what came meanwhile before it blames others. */
        int64_t now_ns = lsi_now_ns();
        for (int spin = 0; spin <= group->spins; spin++) {
            LSI_TRY(lsi_group_advance(group));
            if (is_done(work)) return LS_OK;
            pause_briefly();
        }
        if (now_ns >= deadline_ns || lsi_someone_left(work))
            LSI_TRY(lsi_report_missing(work, (now_ns - begin_ns) / 1000000));
        LSI_TRY(sleep_for_change(work, deadline_ns));
    }
}

ls_status ls_work_wait(ls_work *work, int64_t timeout_ms) {
    if (!work || !work->held)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_work_wait: the work was released already");
    ls_group *group = work->group;
    int64_t begin_ns = lsi_now_ns(), work_ns = group->stats.work_ns;
    ls_status status =
        is_done(work) ? lsi_region_error(group->region, NULL) : wait_done(work, timeout_ms);
    group->stats.wait_ns += lsi_now_ns() - begin_ns - (group->stats.work_ns - work_ns);
    work->held = false;
    return status;
}

ls_status ls_work_test(ls_work *work, int *done) {
    if (!work || !work->held)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_work_test: the work was released already");
    LSI_TRY(lsi_group_advance(work->group));
    *done = is_done(work);
    return LS_OK;
}

ls_status ls_group_progress(ls_group *group) {
    return lsi_group_advance(group);
}
