/* The engine: posted works are published, started and completed, in order (wait.c waits).
 *
 * Progress is made by whoever calls test, wait, progress or post on this rank, and by the group's
 * thread where there is one (thread.c). Without, that suits one worker per core: a reduction is
 * work for the same core either way. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"
#include "comm/collective/collective.h"
#include "comm/transport/bell.h"

/* Looks at flags for each look at the arrival line, which its rank is about to write. */
enum { LOOKS_PER_ARRIVAL = 16 };

void lsi_group_ring(ls_group *group) {
    for (int r = 0; r < group->n_ranks; r++)
        if (r != group->rank) lsi_bell_ring(&group->ranks[r]);
}

static uint64_t least_done(const ls_group *group) {
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < group->n_ranks; r++) {
        uint64_t done = atomic_load_explicit(&group->ranks[r].done, memory_order_acquire);
        if (done < least) least = done;
    }
    return least;
}

/* Whether all ranks are done with the first n calls. */
static bool all_done_with(ls_group *group, uint64_t n) {
    if (group->done_seen < n) group->done_seen = least_done(group);
    return group->done_seen >= n;
}

/* ---- who has come ---- */

static bool has_announced(const ls_work *work, int rank) {
    const lsi_arrival *arrival = lsi_work_arrival_of(work, rank);
    return atomic_load_explicit(&arrival->number, memory_order_acquire) == work->index + 1;
}

static bool all_announced(const ls_work *work) {
    for (int r = 0; r < work->group->n_ranks; r++)
        if (!has_announced(work, r)) return false;
    return true;
}

/* A peer that made another call sends no flags for this one. */
static bool differs(const ls_work *work, int rank) {
    return has_announced(work, rank) &&
           lsi_work_arrival_of(work, rank)->fingerprint != work->fingerprint;
}

/* Whether every rank has published the work that is next to be started. */
static bool all_published(ls_work *work) {
    for (; work->n_seen < work->group->n_ranks; work->n_seen++) {
        if (!work->flagged) {
            if (!has_announced(work, work->n_seen)) return false;
        } else if (!lsi_one_shot_take(work, work->n_seen)) {
            if (++work->n_looks % LOOKS_PER_ARRIVAL != 0 || !differs(work, work->n_seen))
                return false;
            /* Wait for all by their arrivals, and report. */
            work->flagged = false;
            work->n_seen = -1;
        }
    }
    return true;
}

static bool someone_sleeps(const ls_group *group) {
    for (int r = 0; r < group->n_ranks; r++)
        if (atomic_load_explicit(&group->ranks[r].asleep, memory_order_relaxed)) return true;
    return false;
}

/* ---- publish ---- */

/* The line of the call, and its slot if it needs one, are no longer read by anybody. */
static bool can_publish(ls_group *group, const ls_work *work) {
    if (work->index >= LSI_ARRIVALS && !all_done_with(group, work->index - LSI_ARRIVALS + 1))
        return false;
    bool needs_slot = work->slot != UINT64_MAX;
    return !needs_slot || work->slot < LSI_SLOTS ||
           all_done_with(group, group->slot_call[work->slot % LSI_SLOTS] + 1);
}

static uint64_t offset_of(const ls_work *work, const void *buffer, int64_t n_elems) {
    if (lsi_swaps_in_place(work)) return LSI_NOT_SHARED; /* peers would read what is overwritten */
    return lsi_region_offset(work->group->region, buffer, (size_t)n_elems * lsi_elem_bytes(work));
}

static bool is_staged_for_sure(const ls_work *work, const uint64_t own_offset[2]) {
    if (work->count == 0 || work->index != work->group->n_started) return false;
    return work->algorithm == LSI_ALGORITHM_STAGED ||
           (work->algorithm == LSI_ALGORITHM_SHARED && lsi_direct_ruled_out(work, own_offset));
}

/* What the arrival says besides the fingerprint; returns how many words. Contributions that do not
 * fit go to their places. */
static int prepare_arrival(ls_work *work, uint64_t word[LSI_INLINE_BYTES / 8]) {
    if (work->algorithm == LSI_ALGORITHM_ONE_SHOT)
        return work->count > 0 ? lsi_one_shot_contribute(work, word) : 0;
    word[0] = offset_of(work, work->input, lsi_input_count(work));
    word[1] = offset_of(work, work->output, lsi_output_count(work));
    if (work->slot != UINT64_MAX && word[0] == LSI_NOT_SHARED) {
        lsi_one_shot_contribute_to_slot(work);
    } else if (is_staged_for_sure(work, word)) {
        work->staged_early = true;
        lsi_staged_try_early(work);
    }
    return 2;
}

/* The line is written in one go: a peer that looks at it meanwhile takes it away, and each store
 * after that fetches it back. */
static void publish(ls_work *work) {
    ls_group *group = work->group;
    lsi_arrival *arrival = &group->me->arrivals[work->index % LSI_ARRIVALS];
    uint64_t word[LSI_INLINE_BYTES / 8];
    int n_words = prepare_arrival(work, word);
    double scale = work->call->scale;
    uint64_t fingerprint = work->fingerprint, number = ++group->n_published;
    if (work->slot != UINT64_MAX) group->slot_call[work->slot % LSI_SLOTS] = work->index;
    arrival->fingerprint = fingerprint;
    arrival->scale = scale;
    for (int i = 0; i < n_words; i++) arrival->word[i] = word[i];
    atomic_store_explicit(&arrival->number, number, memory_order_release);
    atomic_store_explicit(&group->me->published, number, memory_order_relaxed);
    lsi_group_fence_for_last(group);
    if (someone_sleeps(group) && all_announced(work)) lsi_group_ring(group);
}

static void publish_works(ls_group *group, bool *moved) {
    while (group->n_published < group->n_posted) {
        ls_work *work = lsi_work_at(group, group->n_published);
        if (!can_publish(group, work)) return;
        publish(work);
        *moved = true;
    }
}

/* ---- start ---- */

/* The flags of lines have been compared already. */
static bool all_match(const ls_work *work) {
    if (work->flagged) return true;
    for (int r = 0; r < work->group->n_ranks; r++)
        if (lsi_work_arrival_of(work, r)->fingerprint != work->fingerprint) return false;
    return true;
}

/* Whether all who have something to give have put it into their slots. */
static bool all_inputs_private(const ls_work *work) {
    bool root_only = lsi_shape_of(work->call->kind)->root_in;
    for (int r = 0; r < work->group->n_ranks; r++)
        if ((!root_only || r == work->call->root) &&
            lsi_work_arrival_of(work, r)->offset[0] != LSI_NOT_SHARED)
            return false;
    return true;
}

/* SHARED becomes what the buffers allow. */
static ls_status settle_algorithm(ls_work *work) {
    int rank = 0;
    bool input = false;
    bool direct =
        work->algorithm != LSI_ALGORITHM_STAGED && lsi_direct_possible(work, &rank, &input);
    if (work->algorithm == LSI_ALGORITHM_DIRECT && !direct)
        return lsi_report_private(work, rank, input);
    if (!direct && work->slot != UINT64_MAX && all_inputs_private(work)) {
        work->algorithm = LSI_ALGORITHM_ONE_SHOT;
        return LS_OK;
    }
    work->algorithm = direct ? LSI_ALGORITHM_DIRECT : LSI_ALGORITHM_STAGED;
    work->waits_for_all = direct;
    if (!direct && !work->staged_early) lsi_staged_begin(work);
    return LS_OK;
}

static ls_status begin_part(ls_work *work) {
    if (!all_match(work)) return lsi_report_mismatch(work);
    work->started = true;
    if (work->count == 0) return LS_OK;
    if (lsi_algorithm_pattern(work->algorithm)) return lsi_passing_begin(work);
    if (work->algorithm != LSI_ALGORITHM_ONE_SHOT) return settle_algorithm(work);
    return LS_OK;
}

static void do_direct(ls_work *work) {
    if (work->count * work->elem_bytes < LSI_TIMED_BYTES) {
        lsi_direct(work);
        return;
    }
    lsi_group_stats *stats = &work->group->stats;
    int64_t trace_ns = lsi_trace_begin(), begin = lsi_ticks(), sink_before = stats->sink_ns;
    lsi_direct(work);
    stats->work_ns += lsi_ticks() - begin - (stats->sink_ns - sink_before);
    lsi_trace_end(trace_ns, LSI_TRACE_COMM, lsi_call_kind_name(work->call->kind),
                  (int64_t)work->index);
}

/* Moves this rank's part of a work that all have published on. */
static ls_status do_part(ls_work *work, bool *finished) {
    *finished = true;
    if (!work->started) LSI_TRY(begin_part(work));
    if (work->count == 0) return LS_OK; /* nothing to move; pointers may be NULL */
    switch (work->algorithm) {
    case LSI_ALGORITHM_ONE_SHOT: lsi_one_shot(work); return LS_OK;
    case LSI_ALGORITHM_DIRECT: do_direct(work); return LS_OK;
    case LSI_ALGORITHM_STAGED: *finished = lsi_staged_advance(work); return LS_OK;
    default: return lsi_passing_advance(work, finished);
    }
}

/* A peer that is so far ahead that it may be asleep for want of a line or slot. */
static void ring_who_is_ahead(ls_group *group) {
    for (int r = 0; r < group->n_ranks; r++) {
        lsi_rank_control *peer = &group->ranks[r];
        if (atomic_load_explicit(&peer->asleep, memory_order_relaxed) == 0) continue;
        if (atomic_load(&peer->published) + 1 >= group->n_started + LSI_SLOTS) lsi_bell_ring(peer);
    }
}

static void finish_part(ls_work *work) {
    ls_group *group = work->group;
    group->n_started++;
    atomic_store_explicit(&group->me->done, group->n_started, memory_order_release);
    if (!work->waits_for_all) {
        lsi_group_fence(group);
        ring_who_is_ahead(group);
        return;
    }
    lsi_group_fence_for_last(group);
    if (all_done_with(group, group->n_started)) lsi_group_ring(group);
}

static ls_status start_works(ls_group *group, bool *moved) {
    while (group->n_started < group->n_published) {
        ls_work *work = lsi_work_at(group, group->n_started);
        bool finished = false;
        if (!all_published(work)) break;
        if (group->has_link && !work->started) lsi_link_take(work);
        LSI_TRY(do_part(work, &finished));
        if (!finished) break;
        finish_part(work);
        *moved = true;
    }
    return LS_OK;
}

/* ---- complete ---- */

static bool all_finished(ls_work *work) {
    return all_done_with(work->group, work->index + 1);
}

static void complete(ls_work *work) {
    ls_group *group = work->group;
    group->n_completed++;
    if (work->passing) lsi_passing_end(work);
    if (group->n_completed == group->n_posted && group->flight_start_ticks) {
        group->stats.flight_ns += lsi_ticks() - group->flight_start_ticks;
        group->flight_start_ticks = 0;
    }
}

static void complete_works(ls_group *group, bool *moved) {
    while (group->n_completed < group->n_started) {
        ls_work *work = lsi_work_at(group, group->n_completed);
        if (work->waits_for_all && !all_finished(work)) return;
        if (group->has_link && lsi_link_holds(work)) return;
        complete(work);
        *moved = true;
    }
}

ls_status lsi_group_advance(ls_group *group) {
    bool moved = true;
    while (moved) {
        moved = false;
        LSI_TRY(lsi_group_error(group));
        publish_works(group, &moved);
        LSI_TRY(start_works(group, &moved));
        complete_works(group, &moved);
        if (group->n_messages_left) LSI_TRY(lsi_messages_advance(group, &moved));
        if (group->n_completed == group->n_posted && !group->n_messages_left) break;
    }
    return LS_OK;
}

/* ---- what waiting looks at ---- */

/* Whether the rank has still to arrive, or, where all did, to do its part. */
static bool is_missing(const ls_work *work, int rank) {
    const lsi_rank_control *peer = &work->group->ranks[rank];
    return work->started ? atomic_load_explicit(&peer->done, memory_order_acquire) <= work->index
                         : !has_announced(work, rank);
}

bool lsi_waits_elsewhere(const ls_work *work) {
    const ls_group *group = work->group;
    if (work->what != LSI_WORK_CALL || (work->started && !work->waits_for_all)) return false;
    int32_t here = atomic_load_explicit(&group->me->processor, memory_order_relaxed);
    for (int r = 0; r < group->n_ranks; r++) {
        if (r == group->rank || !is_missing(work, r)) continue;
        int32_t there = atomic_load_explicit(&group->ranks[r].processor, memory_order_relaxed);
        if (there == here || there == 0) return false;
    }
    return true;
}

bool lsi_work_is_done(const ls_work *work) {
    uint64_t completed = work->group->n_completed;
    switch (work->what) {
    case LSI_WORK_CALL: return work->index < completed;
    case LSI_WORK_MESSAGE: return work->done;
    default: return work->n_left == 0 && work->index <= completed;
    }
}

uint64_t lsi_progress_of(const ls_group *group) {
    const lsi_rank_control *me = group->me;
    return group->n_published + group->n_started + group->n_completed +
           atomic_load_explicit(&me->staged, memory_order_relaxed) +
           atomic_load_explicit(&me->combined, memory_order_relaxed) +
           atomic_load_explicit(&me->consumed, memory_order_relaxed) +
           (uint64_t)(group->stats.bytes_sent + group->bytes_received);
}

/* ---- the short way ---- */

static bool look_shortly(ls_work *work, bool (*is_there)(ls_work *)) {
    enum { SHORT_LOOKS = 100 };
    int n_looks = work->group->spins < SHORT_LOOKS ? 1 : SHORT_LOOKS;
    for (int i = 0; i < n_looks; i++) {
        if (is_there(work)) return true;
        lsi_pause();
    }
    return false;
}

/* The short way for a call that is waited for at once in a group that is idle otherwise: the same
 * steps as lsi_group_advance, without looking for other works. *done stays false when it
 * takes long, and the long way goes on from here. */
ls_status lsi_go_the_short_way(ls_work *work, bool *done) {
    ls_group *group = work->group;
    bool finished = false;
    if (!can_publish(group, work)) return LS_OK;
    publish(work);
    if (!look_shortly(work, all_published)) return LS_OK;
    LSI_TRY(do_part(work, &finished));
    if (!finished) return LS_OK;
    finish_part(work);
    if (work->waits_for_all && !look_shortly(work, all_finished)) return LS_OK;
    complete(work);
    *done = true;
    return LS_OK;
}

bool lsi_may_go_the_short_way(const ls_work *work) {
    const ls_group *group = work->group;
    return work->what == LSI_WORK_CALL && work->index == group->n_completed &&
           work->index == group->n_published && !group->has_thread && !group->has_link &&
           !group->n_messages_left;
}
