/* Waiting for works, and testing them.
 *
 * A wait looks a few times without a clock, then spins or yields, then sleeps on the rank's bell,
 * in rounds; after each it looks at errors, the deadline, ranks that left, and, when a sleep ran
 * out with nobody ringing, at dead processes. So every wait ends: by the work, by an error that
 * names somebody, or by the deadline. */
#include <sched.h>

#include "base/clock.h"
#include "comm/group.h"

/* Longest sleep without looking at errors, deadlines and dead peers; a wake-up normally ends it
 * earlier. Yields take no longer before it. */
static const int64_t MAX_SLEEP_NS = 4 * 1000 * 1000;
static const int64_t MAX_YIELD_NS = 4 * 1000 * 1000;
/* How long whoever started a peer that died has to tell more about it than we can see. */
static const int64_t DEATH_GRACE_NS = 2 * 1000 * 1000;

/* A peer died: whoever started it says more, if it says anything soon. */
static ls_status look_for_dead(ls_group *group) {
    int me = lsi_world_rank(group, group->rank);
    int dead = lsi_region_find_dead(group->region, me);
    if (dead < 0) return LS_OK;
    int64_t until_ns = lsi_now_ns() + DEATH_GRACE_NS;
    while (lsi_now_ns() < until_ns) {
        LSI_TRY(lsi_group_error(group));
        if (lsi_region_find_dead(group->region, me) != dead) return LS_OK;
        sched_yield();
    }
    return lsi_report_dead(group, dead);
}

/* Sleeps until something may have changed; looks once more between announcing and sleeping. */
static ls_status sleep_for_change(ls_work *work, int64_t deadline_ns) {
    ls_group *group = work->group;
    int64_t now_ns = lsi_now_ns(), left_ns = deadline_ns - now_ns;
    uint64_t before = lsi_progress_of(group);
    uint32_t ticket = lsi_bell_prepare(group->region, group->me);
    ls_status status = lsi_group_advance(group);
    bool changed = lsi_work_is_done(work) || lsi_progress_of(group) != before;
    if (left_ns > MAX_SLEEP_NS) left_ns = MAX_SLEEP_NS;
    if (group->has_link) left_ns = lsi_link_sleep_ns(group, now_ns, left_ns);
    if (status == LS_OK && !changed && left_ns > 0 && !lsi_someone_left(work)) {
        lsi_group_unlock(group);
        lsi_bell_sleep(group->me, ticket, left_ns);
        lsi_group_lock(group);
        /* Who died rings nobody: a sleep that was ended by a peer costs no look. */
        if (atomic_load_explicit(&group->me->bell, memory_order_relaxed) == ticket)
            status = look_for_dead(group);
    }
    lsi_bell_cancel(group->me);
    return status;
}

/* A few looks before the clock is read: most short calls end here. */
static ls_status look(ls_work *work, int n_looks) {
    ls_group *group = work->group;
    for (int i = 0; i < n_looks; i++) {
        LSI_TRY(lsi_group_advance(group));
        if (lsi_work_is_done(work)) return LS_OK;
        lsi_group_unlock(group);
        lsi_pause();
        lsi_group_lock(group);
    }
    return LS_OK;
}

static void say_where(ls_group *group) {
    int32_t here = sched_getcpu() + 1;
    if (atomic_load_explicit(&group->me->processor, memory_order_relaxed) != here)
        atomic_store_explicit(&group->me->processor, here, memory_order_relaxed);
}

/* Whoever shares this processor has done what the work needs: to let it run would be two changes of
 * process for nothing. A few looks, as the others may be waiting for their turn as well. Time of a
 * call of 4 ranks on 2 processors with these looks: 8 bytes 0.83, 8 KiB 0.88, 64 KiB 0.90. */
static ls_status look_elsewhere(ls_work *work) {
    enum { ELSEWHERE_LOOKS = 50 };
    ls_group *group = work->group;
    say_where(group);
    for (int i = 0; i < ELSEWHERE_LOOKS && !lsi_work_is_done(work) && lsi_waits_elsewhere(work);
         i++)
        LSI_TRY(look(work, 1));
    return LS_OK;
}

/* The processor comes back when others have had enough of it: some microseconds where those are
 * ranks that wait too, milliseconds each time where a stranger computes. So yields also end by the
 * clock, or a hundred of them would put off the look at dead peers by a third of a second. */
static ls_status look_and_yield(ls_work *work, int64_t until_ns) {
    ls_group *group = work->group;
    for (int i = 0; i < group->yields; i++) {
        LSI_TRY(lsi_group_advance(group));
        LSI_TRY(look_elsewhere(work));
        if (lsi_work_is_done(work)) return LS_OK;
        lsi_group_unlock(group);
        sched_yield();
        lsi_group_lock(group);
        if (lsi_now_ns() >= until_ns) return LS_OK;
    }
    return LS_OK;
}

ls_status lsi_work_await(ls_work *work, int64_t timeout_ms) {
    enum { FIRST_LOOKS = 50 };
    ls_group *group = work->group;
    bool done = false;
    if (lsi_may_go_the_short_way(work)) LSI_TRY(lsi_go_the_short_way(work, &done));
    if (done) return LS_OK;
    LSI_TRY(look(work, group->spins < FIRST_LOOKS ? 1 : FIRST_LOOKS));
    if (lsi_work_is_done(work)) return LS_OK;
    if (work->what == LSI_WORK_CALL) work->call->posted_ms = lsi_coarse_ms();
    int64_t begin_ns = lsi_now_ns(), begin = lsi_ticks();
    int64_t busy_before = group->stats.work_ns + group->stats.sink_ns;
    int64_t deadline_ns = lsi_deadline_ns(timeout_ms < 0 ? group->timeout_ms : timeout_ms);
    ls_status status = LS_OK;
    while (status == LS_OK) {
        /* The clock is read before the counters: a rank that was held up itself, for longer than
         * its deadline, looks at what came meanwhile before it blames others. */
        int64_t now_ns = lsi_now_ns();
        lsi_beat(group);
        atomic_store_explicit(&group->me->waits_for, lsi_waits_for(work) + 1, memory_order_relaxed);
        status = look(work, group->spins);
        if (status == LS_OK && !lsi_work_is_done(work))
            status = look_and_yield(work, now_ns + MAX_YIELD_NS);
        if (status != LS_OK || lsi_work_is_done(work)) break;
        bool late = now_ns >= deadline_ns;
        if (late || lsi_someone_left(work))
            status = lsi_report_missing(work, (now_ns - begin_ns) / 1000000);
        if (status == LS_OK && late && group->has_link)
            status = lsi_report_link(work, (now_ns - begin_ns) / 1000000);
        if (status == LS_OK) status = sleep_for_change(work, deadline_ns);
    }
    int64_t busy = group->stats.work_ns + group->stats.sink_ns - busy_before;
    group->stats.wait_ns += lsi_ticks() - begin - busy;
    if (lsi_work_is_done(work))
        atomic_store_explicit(&group->me->waits_for, 0, memory_order_relaxed);
    return status;
}

ls_status ls_work_wait(ls_work *work, int64_t timeout_ms) {
    if (!work || !work->held)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_work_wait: the work was released already");
    ls_group *group = work->group;
    lsi_group_lock(group);
    ls_status status =
        lsi_work_is_done(work) ? lsi_group_error(group) : lsi_work_await(work, timeout_ms);
    lsi_work_release(work);
    lsi_group_unlock(group);
    return status;
}

/* For callers who only test, now and then: whether somebody died or left. */
static ls_status look_around(ls_work *work) {
    enum { TESTS_PER_LOOK = 1024 };
    ls_group *group = work->group;
    if (++group->n_tests % TESTS_PER_LOOK != 0) return LS_OK;
    LSI_TRY(look_for_dead(group));
    return lsi_someone_left(work) ? lsi_report_missing(work, 0) : LS_OK;
}

ls_status ls_work_test(ls_work *work, int *done) {
    if (!work || !work->held)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_work_test: the work was released already");
    ls_group *group = work->group;
    lsi_group_lock(group);
    ls_status status = lsi_group_advance(group);
    if (status == LS_OK && !lsi_work_is_done(work)) status = look_around(work);
    if (status == LS_OK) *done = lsi_work_is_done(work);
    lsi_group_unlock(group);
    return status;
}

ls_status ls_group_progress(ls_group *group) {
    lsi_group_lock(group);
    ls_status status = lsi_group_advance(group);
    lsi_group_unlock(group);
    return status;
}
