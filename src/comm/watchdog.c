/* Reports of what went wrong between ranks: calls that differ, ranks that are missing. Each report
 * becomes the group's first error, so all its ranks return the same words. The code counts in ranks
 * of the group, the words in those of the world (group.h, [Note: world ranks]). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
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

/* Makes the text the group's error, unless there is an earlier one, and returns the first. */
static ls_status raise_error(ls_group *group, ls_status status, const text *t) {
    lsi_group_raise(group, status, t->at);
    return lsi_group_error(group);
}

static void put_group(text *t, const ls_group *group) {
    char place[LSI_GROUP_TEXT_BYTES];
    put(t, "%s", lsi_group_print(group, place));
}

ls_status lsi_report_mismatch(const ls_work *work) {
    ls_group *group = work->group;
    const lsi_call *first = lsi_work_call_of(work, 0);
    char call[LSI_CALL_TEXT_BYTES];
    text t = {.used = 0};
    put_group(&t, group);
    put(&t, "call #%llu differs between ranks: rank %d called %s",
        (unsigned long long)work->index + 1, lsi_world_rank(group, 0),
        lsi_group_call_print(group, first, call));
    for (int r = 1; r < group->n_ranks; r++)
        if (!lsi_call_matches(first, lsi_work_call_of(work, r)))
            put(&t, "; rank %d called %s", lsi_world_rank(group, r),
                lsi_group_call_print(group, lsi_work_call_of(work, r), call));
    put(&t, "; all ranks must make the same calls in the same order");
    return raise_error(group, LS_ERR_MISMATCH, &t);
}

ls_status lsi_report_message(const ls_work *work, uint64_t number, int64_t count, ls_dtype dtype) {
    ls_group *group = work->group;
    char call[LSI_CALL_TEXT_BYTES];
    int from = lsi_world_rank(group, work->call->root), me = lsi_world_rank(group, group->rank);
    text t = {.used = 0};
    put_group(&t, group);
    put(&t,
        "message #%llu from rank %d to rank %d differs: rank %d called %s; rank %d sent %s, count "
        "%lld; both must have the same count and dtype",
        (unsigned long long)number + 1, from, me, me, lsi_group_call_print(group, work->call, call),
        from, ls_dtype_name(dtype), (long long)count);
    return raise_error(group, LS_ERR_MISMATCH, &t);
}

/* Why a work is not done, the strongest reason first. Only ranks with the strongest are named: the
 * others may be unfinished too, but because they wait for these. LATE and STUCK are ranks that have
 * not joined or finished and do not wait for anybody in any group; the last two, where all do. */
typedef enum reason { LEFT, LATE, STUCK, NOT_JOINED, NOT_FINISHED, N_REASONS } reason;

static lsi_rank_control *world_control(const ls_group *group, int rank) {
    return &group->region->world->ranks[lsi_world_rank(group, rank)];
}

void lsi_beat(ls_group *group) {
    atomic_fetch_add_explicit(&world_control(group, group->rank)->beat, 1, memory_order_relaxed);
}

static uint32_t beat_of(const ls_group *group, int rank) {
    return atomic_load(&world_control(group, rank)->beat);
}

/* Ended, or destroyed its handle of this group. */
static bool has_gone(const ls_group *group, int rank) {
    return atomic_load(&group->ranks[rank].left) || atomic_load(&world_control(group, rank)->ended);
}

static bool has_left(const ls_work *work, int rank) {
    /* In this order: `done` does not move any more once `left` is seen. */
    return has_gone(work->group, rank) &&
           atomic_load(&work->group->ranks[rank].done) <= work->index;
}

static bool call_is_missing(const ls_work *work) {
    return work->what == LSI_WORK_CALL || work->index > work->group->n_completed;
}

/* Whether the link holds the first message of the queue: it was moved, and peers are not waited for
 * before it is over. */
static bool is_held_up(const ls_group *group, lsi_direction direction, int peer) {
    const ls_work *first = group->queue[direction][peer];
    return first && first->over_ns;
}

static bool message_is_held_up(const ls_work *message) {
    bool sends = message->call->kind == LSI_CALL_SEND;
    return is_held_up(message->group, sends ? LSI_SENDING : LSI_RECEIVING, message->call->root);
}

/* An unfinished message of a batch, of those whose peer has gone or of all; NULL if none. */
static const ls_work *message_of_batch(const ls_work *batch, bool of_the_gone) {
    const ls_group *group = batch->group;
    for (int direction = 0; direction < LSI_N_DIRECTIONS; direction++)
        for (int peer = 0; peer < group->n_ranks && batch->n_left > 0; peer++) {
            if (of_the_gone && group->queue[direction][peer] &&
                (!has_gone(group, peer) || is_held_up(group, (lsi_direction)direction, peer)))
                continue;
            for (const ls_work *w = group->queue[direction][peer]; w; w = w->next)
                if (w->batch == batch) return w;
        }
    return NULL;
}

int lsi_waits_for(const ls_work *work) {
    if (work->what == LSI_WORK_BATCH) work = message_of_batch(work, false);
    return work && work->what == LSI_WORK_MESSAGE ? work->call->root : -1;
}

bool lsi_someone_left(const ls_work *work) {
    const ls_group *group = work->group;
    if (work->what == LSI_WORK_MESSAGE)
        return has_gone(group, work->call->root) && !message_is_held_up(work);
    if (work->what == LSI_WORK_BATCH && message_of_batch(work, true)) return true;
    if (!call_is_missing(work)) return false;
    if (work->what == LSI_WORK_BATCH) work = lsi_work_at(work->group, group->n_completed);
    for (int r = 0; r < group->n_ranks; r++)
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

/* Ranks whose beat has not moved since `before`. Returns how many. */
static int count_still(const ls_group *group, const uint32_t before[LSI_MAX_RANKS],
                       bool still[LSI_MAX_RANKS]) {
    int n_still = 0;
    for (int r = 0; r < group->n_ranks; r++) {
        still[r] = r != group->rank && beat_of(group, r) == before[r];
        n_still += still[r];
    }
    return n_still;
}

/* Looks for a while which ranks do not wait: in algorithms whose ranks wait for each other in turn,
 * counters alone do not tell who holds up whom. Where several stand still, longer: on a machine
 * with much else to do, a rank that waits may not have run at all. Where none does, longer too: who
 * is missing may wait in another group, for somebody that it is about to name itself; it leaves
 * then. Moves this rank on meanwhile. */
static ls_status watch(const ls_work *work, bool still[LSI_MAX_RANKS]) {
    enum { WATCH_MS = 100, WATCH_MOST_MS = 1000 }; /* a rank that waits sleeps a few ms at most */
    ls_group *group = work->group;
    uint32_t before[LSI_MAX_RANKS];
    for (int r = 0; r < group->n_ranks; r++) before[r] = beat_of(group, r);
    int64_t until_ns = lsi_deadline_ns(WATCH_MS), most_ns = lsi_deadline_ns(WATCH_MOST_MS);
    while (!lsi_work_is_done(work) && !lsi_someone_left(work) && lsi_now_ns() < most_ns &&
           (lsi_now_ns() < until_ns || count_still(group, before, still) != 1)) {
        lsi_beat(group);
        lsi_sleep_ms(1);
        LSI_TRY(lsi_group_advance(group));
    }
    (void)count_still(group, before, still);
    return LS_OK;
}

static bool is_missing(const ls_work *work, int rank, reason why, const bool *still) {
    const lsi_rank_control *control = &work->group->ranks[rank];
    bool joined = atomic_load(&control->published) > work->index;
    bool finished = atomic_load(&control->done) > work->index;
    switch (why) {
    case LEFT: return has_left(work, rank);
    case LATE: return !joined && still[rank];
    case STUCK: return !finished && still[rank];
    case NOT_JOINED: return !joined;
    default: return !finished && is_last(work->group, rank);
    }
}

static void put_whereabouts(text *t, const ls_work *work, int rank) {
    const ls_group *group = work->group;
    const lsi_rank_control *control = &group->ranks[rank];
    uint64_t published = atomic_load(&control->published);
    const lsi_call *last = &control->records[(published - 1) % LSI_RECORDS];
    if (published == 0)
        put(t, " (no call yet");
    else
        put(t, " (last call #%llu, %s, count %lld%s", (unsigned long long)published,
            lsi_call_kind_name(last->kind), (long long)last->count,
            atomic_load(&control->done) >= published ? ", finished" : ", unfinished");
    int waits_for = atomic_load(&control->waits_for) - 1;
    if (waits_for >= 0)
        put(t, "; it waits for a message to or from rank %d", lsi_world_rank(group, waits_for));
    const lsi_rank_control *own = world_control(group, rank);
    if (atomic_load(&own->ended) == 2)
        put(t, "; its process, pid %d, ended without leaving the group)", atomic_load(&own->pid));
    else
        put(t, has_gone(group, rank) ? "; it has left the group)" : ")");
}

/* Returns how many ranks are missing for this reason. */
static int put_missing(text *t, const ls_work *work, reason why, const bool *still) {
    const ls_group *group = work->group;
    int n_missing = 0;
    for (int r = 0; r < group->n_ranks; r++) {
        if (r == group->rank || !is_missing(work, r, why, still)) continue;
        bool joined = atomic_load(&group->ranks[r].published) > work->index;
        put(t, "%s rank %d did not %s", n_missing ? "," : "", lsi_world_rank(group, r),
            joined ? "finish" : "join");
        put_whereabouts(t, work, r);
        n_missing++;
    }
    return n_missing;
}

static void put_waiter(text *t, const ls_group *group, int64_t waited_ms) {
    put_group(t, group);
    put(t, "rank %d waited %lld ms in ", lsi_world_rank(group, group->rank), (long long)waited_ms);
}

/* Who holds up the peer of a message: the end of the chain of those who wait for messages. The peer
 * itself when the chain is a circle. */
static int end_of_chain(const ls_group *group, int peer, const bool *still) {
    int at = peer;
    for (int i = 0; i < group->n_ranks; i++) {
        int next = atomic_load(&group->ranks[at].waits_for) - 1;
        if (still[at] || next < 0 || next == group->rank) return at;
        at = next;
    }
    return peer;
}

static ls_status report_missing_message(const ls_work *work, int64_t waited_ms) {
    ls_group *group = work->group;
    char call[LSI_CALL_TEXT_BYTES];
    bool still[LSI_MAX_RANKS] = {false};
    int peer = work->call->root;
    const char *what = work->call->kind == LSI_CALL_SEND ? "receive it" : "send it";
    if (message_is_held_up(work)) return LS_OK;
    bool gone = has_gone(group, peer);
    if (!gone) LSI_TRY(watch(work, still));
    if (lsi_work_is_done(work) || message_is_held_up(work)) return LS_OK;
    gone = has_gone(group, peer);
    int culprit = gone ? peer : end_of_chain(group, peer, still);
    text t = {.used = 0};
    put_waiter(&t, group, waited_ms);
    put(&t, "%s: ", lsi_group_call_print(group, work->call, call));
    if (culprit == peer)
        put(&t, "rank %d did not %s", lsi_world_rank(group, peer), what);
    else
        put(&t, "rank %d, who is to %s, waits itself, in the end for rank %d, which stands still",
            lsi_world_rank(group, peer), what, lsi_world_rank(group, culprit));
    put_whereabouts(&t, work, culprit);
    if (gone) return raise_error(group, LS_ERR_PEER, &t);
    put(&t, "; if that rank only needs longer, raise the timeout (ls_group_set_timeout)");
    return raise_error(group, LS_ERR_TIMEOUT, &t);
}

static ls_status report_missing_call(const ls_work *work, int64_t waited_ms) {
    ls_group *group = work->group;
    char call[LSI_CALL_TEXT_BYTES];
    bool still[LSI_MAX_RANKS] = {false};
    if (!lsi_someone_left(work)) LSI_TRY(watch(work, still));
    if (lsi_work_is_done(work)) return LS_OK;
    text t = {.used = 0};
    put_waiter(&t, group, waited_ms);
    put(&t, "call #%llu, %s:", (unsigned long long)work->index + 1,
        lsi_group_call_print(group, work->call, call));
    reason why = LEFT;
    while (why < N_REASONS && put_missing(&t, work, why, still) == 0) why++;
    if (why == N_REASONS) return LS_OK;
    if (why == LEFT) return raise_error(group, LS_ERR_PEER, &t);
    put(&t, "; if that rank only needs longer, raise the timeout (ls_group_set_timeout, "
            "`lockstep train --timeout-ms`)");
    return raise_error(group, LS_ERR_TIMEOUT, &t);
}

ls_status lsi_report_missing(const ls_work *work, int64_t waited_ms) {
    ls_group *group = work->group;
    /* Whoever left did so after its last word: with that, the work may be done. */
    LSI_TRY(lsi_group_advance(group));
    if (lsi_work_is_done(work)) return LS_OK;
    if (work->what == LSI_WORK_MESSAGE) return report_missing_message(work, waited_ms);
    if (work->what == LSI_WORK_CALL) return report_missing_call(work, waited_ms);
    const ls_work *of_the_gone = message_of_batch(work, true);
    if (!of_the_gone && work->index > group->n_completed)
        return report_missing_call(lsi_work_at(group, group->n_completed), waited_ms);
    const ls_work *message = of_the_gone ? of_the_gone : message_of_batch(work, false);
    return message ? report_missing_message(message, waited_ms) : LS_OK;
}

ls_status lsi_report_link(const ls_work *work, int64_t waited_ms) {
    ls_group *group = work->group;
    char call[LSI_CALL_TEXT_BYTES];
    int64_t left_ns = lsi_link_sleep_ns(group, lsi_now_ns(), INT64_MAX);
    if (lsi_work_is_done(work) || left_ns == INT64_MAX) return LS_OK;
    text t = {.used = 0};
    put_waiter(&t, group, waited_ms);
    put(&t, "%s: all ranks did their parts, but LOCKSTEP_LINK lets the next work ",
        work->call ? lsi_group_call_print(group, work->call, call) : "a batch");
    put(&t, "be over in %lld ms; raise the timeout or the speed of the link",
        (long long)left_ns / 1000000);
    return raise_error(group, LS_ERR_TIMEOUT, &t);
}

ls_status lsi_report_dead(ls_group *group, int world_rank) {
    const lsi_rank_control *control = &group->region->world->ranks[world_rank];
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "rank %d (pid %d) died at step %lld (noticed by rank %d)",
             world_rank, atomic_load(&control->pid), (long long)atomic_load(&control->step),
             lsi_world_rank(group, group->rank));
    lsi_region_report_dead(group->region, world_rank, message);
    return lsi_group_error(group);
}

ls_status lsi_report_private(const ls_work *work, int rank, bool input) {
    ls_group *group = work->group;
    char call[LSI_CALL_TEXT_BYTES];
    text t = {.used = 0};
    put_group(&t, group);
    put(&t,
        "call #%llu, %s: LOCKSTEP_ALGO asks for direct, but the %s of rank %d is not in shared "
        "memory (ls_group_alloc_shared)",
        (unsigned long long)work->index + 1, lsi_group_call_print(group, work->call, call),
        input ? "input" : "output", lsi_world_rank(group, rank));
    return raise_error(group, LS_ERR_UNSUPPORTED, &t);
}
