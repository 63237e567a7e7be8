/* The group's thread: moves works on while the caller computes.
 *
 * It exists where there are processors for it: at least two for each rank of the machine, by
 * affinity and cgroup quota. Elsewhere it would only take the caller's processor away, and works
 * move on when the caller posts, tests, waits or calls ls_group_progress ("inline").
 *
 *   nothing posted asynchronously   sleeps on thread_bell, no cost
 *   works in flight                 advances under the group's lock, sleeps on the rank's bell
 *                                   between, like a caller that waits
 *
 * The lock is needed because caller and thread move the same works; it is taken by both for
 * microseconds, or for a rank's part of a work. Calls that are waited for at once are moved by the
 * caller: handing them over would cost a trip between processors. */
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/transport/bell.h"

static const int64_t MAX_SLEEP_NS = 4 * 1000 * 1000;

static bool has_work(const ls_group *group) {
    return group->n_completed < group->n_posted || group->n_messages_left > 0;
}

static void sleep_until_notified(ls_group *group, uint32_t ticket) {
    syscall(SYS_futex, &group->thread_bell, FUTEX_WAIT_PRIVATE, ticket, NULL, NULL, 0);
}

/* Under the lock. */
static void advance_or_sleep(ls_group *group) {
    uint32_t ticket = lsi_bell_prepare(group->region, group->me);
    uint64_t before = lsi_progress_of(group);
    int64_t begin_ns = group->has_link ? lsi_now_ns() : 0, sleep_ns = MAX_SLEEP_NS;
    lsi_beat(group);
    ls_status status = lsi_group_advance(group); /* an error stays with the group */
    bool sleeps = status != LS_OK || (lsi_progress_of(group) == before && has_work(group));
    if (group->has_link) sleep_ns = lsi_link_sleep_ns(group, begin_ns, sleep_ns);
    pthread_mutex_unlock(&group->lock);
    if (sleeps && !group->thread_ends && sleep_ns > 0) lsi_bell_sleep(group->me, ticket, sleep_ns);
    lsi_bell_cancel(group->me);
    pthread_mutex_lock(&group->lock);
}

static void *run(void *argument) {
    ls_group *group = argument;
    pthread_mutex_lock(&group->lock);
    while (!group->thread_ends) {
        if (has_work(group) && lsi_group_error(group) == LS_OK) {
            advance_or_sleep(group);
            continue;
        }
        uint32_t ticket = atomic_load(&group->thread_bell);
        pthread_mutex_unlock(&group->lock);
        sleep_until_notified(group, ticket);
        pthread_mutex_lock(&group->lock);
    }
    pthread_mutex_unlock(&group->lock);
    return NULL;
}

static void ring(ls_group *group) {
    atomic_fetch_add(&group->thread_bell, 1);
    syscall(SYS_futex, &group->thread_bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void lsi_thread_notify(ls_group *group) {
    if (group->has_thread) ring(group);
}

ls_status lsi_thread_check(void) {
    const char *wish = getenv("LOCKSTEP_PROGRESS");
    if (!wish || !*wish || strcmp(wish, "auto") == 0 || strcmp(wish, "thread") == 0 ||
        strcmp(wish, "inline") == 0)
        return LS_OK;
    return lsi_fail(LS_ERR_USAGE, "LOCKSTEP_PROGRESS is '%s', expected auto, thread or inline",
                    wish);
}

/* Sets the sentence; true if a thread is wanted. */
static bool decide(ls_group *group) {
    const char *wish = getenv("LOCKSTEP_PROGRESS");
    int n_cpus = group->region->control->n_cpus, n_ranks = group->region->control->n_ranks;
    if (group->n_ranks == 1) {
        snprintf(group->progress_reason, sizeof group->progress_reason,
                 "a group of one rank has nothing to wait for");
        return false;
    }
    bool asked = wish && (strcmp(wish, "thread") == 0 || strcmp(wish, "inline") == 0);
    bool enough = n_cpus >= 2 * n_ranks;
    snprintf(group->progress_reason, sizeof group->progress_reason,
             asked    ? "LOCKSTEP_PROGRESS says so (%d processors for %d ranks)"
             : enough ? "%d processors for %d ranks leave one to spare for each"
                      : "%d processors for %d ranks leave none to spare",
             n_cpus, n_ranks);
    return asked ? strcmp(wish, "thread") == 0 : enough;
}

void lsi_thread_start(ls_group *group) {
    if (!decide(group)) return;
    if (pthread_mutex_init(&group->lock, NULL) != 0) return;
    group->has_thread = true;
    if (pthread_create(&group->thread, NULL, run, group) == 0) return;
    group->has_thread = false;
    pthread_mutex_destroy(&group->lock);
    snprintf(group->progress_reason, sizeof group->progress_reason,
             "the system refused to start a thread");
}

void lsi_thread_stop(ls_group *group) {
    if (!group->has_thread) return;
    pthread_mutex_lock(&group->lock);
    group->thread_ends = true;
    pthread_mutex_unlock(&group->lock);
    ring(group);
    atomic_fetch_add(&group->me->bell, 1);
    syscall(SYS_futex, &group->me->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    pthread_join(group->thread, NULL);
    pthread_mutex_destroy(&group->lock);
    group->has_thread = false;
}

int ls_group_has_thread(const ls_group *group, const char **reason) {
    if (reason) *reason = group->progress_reason;
    return group->has_thread;
}
