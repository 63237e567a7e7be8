/* Posting calls: the public collectives.
 *
 * Every collective is the same steps: describe the call, check the arguments against the shape of
 * the collective, choose the algorithm, take a place in the order, advance. Only the description
 * differs, so each public function is a few lines. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "comm/collective/collective.h"

/* What a public function was given. */
typedef struct request {
    lsi_call_kind kind;
    const void *input;
    void *output;
    int64_t count;
    const int64_t *counts; /* of the _v calls, else NULL */
    ls_dtype dtype;
    ls_op op;
    double scale;
    int root;
    lsi_sink sink; /* instead of an output */
} request;

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

static size_t input_bytes(const ls_work *work) {
    return (size_t)lsi_input_count(work) * lsi_elem_bytes(work);
}

static size_t output_bytes(const ls_work *work) {
    return (size_t)lsi_output_count(work) * lsi_elem_bytes(work);
}

/* ---- shared memory ---- */

ls_status ls_group_alloc_shared(ls_group *group, size_t bytes, void **ptr) {
    return lsi_heap_alloc(group->region, bytes, ptr);
}

static bool message_uses(const ls_group *group, const void *ptr, size_t bytes) {
    for (int direction = 0; direction < LSI_N_DIRECTIONS; direction++)
        for (int peer = 0; peer < group->n_ranks; peer++)
            for (const ls_work *w = group->queue[direction][peer]; w; w = w->next) {
                size_t size = ls_dtype_bytes((ls_dtype)w->call->dtype);
                if (overlap(ptr, bytes, w->output, (size_t)w->call->count * size)) return true;
            }
    return false;
}

/* Peers may be reading or writing a block of a work in flight, after an error for as long as they
 * are there; it is never given out again then. */
void ls_group_free_shared(ls_group *group, void *ptr) {
    if (!ptr) return;
    size_t bytes = lsi_heap_block_bytes(group->region, ptr);
    lsi_group_lock(group);
    bool in_use = group->n_messages_left > 0 && message_uses(group, ptr, bytes);
    for (uint64_t i = group->n_completed; i < group->n_posted; i++) {
        const ls_work *work = lsi_work_at(group, i);
        in_use = in_use || overlap(ptr, bytes, work->input, input_bytes(work)) ||
                 overlap(ptr, bytes, work->output, output_bytes(work));
    }
    lsi_group_unlock(group);
    if (!in_use) lsi_heap_free(group->region, ptr);
}

/* ---- checks ---- */

static ls_status refuse_counts(const ls_group *group, const request *r, int64_t most) {
    const char *name = lsi_call_kind_name(r->kind);
    if (lsi_dtype_size((int)r->dtype) == 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: dtype %d, expected one of LS_DTYPE_TABLE", name,
                        (int)r->dtype);
    if (r->count < 0 || r->count > most)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: count %lld is outside the legal range", name,
                        (long long)r->count);
    for (int p = 0; r->counts && p < group->n_ranks; p++)
        if (r->counts[p] < 0 || r->counts[p] > most)
            return lsi_fail(LS_ERR_ARGUMENT, "%s: counts[%d], %lld, is outside the legal range",
                            name, p, (long long)r->counts[p]);
    return lsi_fail(LS_ERR_ARGUMENT, "%s: root %d, expected 0 to %d", name, r->root,
                    group->n_ranks - 1);
}

static bool counts_are_legal(const ls_group *group, const request *r, int64_t most) {
    bool legal = r->count >= 0 && r->count <= most;
    for (int p = 0; r->counts && p < group->n_ranks; p++)
        legal = legal && r->counts[p] >= 0 && r->counts[p] <= most;
    return legal;
}

static ls_status check_counts(const ls_group *group, const request *r) {
    /* A constant, because divisions would take longer than the rest: n parts of 8 bytes each. */
    const int64_t most = INT64_MAX / 8 / LSI_MAX_RANKS;
    const lsi_shape *shape = lsi_shape_of(r->kind);
    bool needs_root = shape->root_in || shape->root_out;
    bool bad_root = needs_root && (r->root < 0 || r->root >= group->n_ranks);
    if (bad_root || lsi_dtype_size((int)r->dtype) == 0 || !counts_are_legal(group, r, most))
        return refuse_counts(group, r, most);
    bool plain = r->op == LS_OP_SUM && r->dtype == LS_DTYPE_F32;
    return shape->reduces && !plain
               ? lsi_reduction_check(lsi_call_kind_name(r->kind), r->dtype, r->op, r->scale)
               : LS_OK;
}

/* Apart or exactly in place: a peer reads what lies between while it is written here. */
static ls_status check_buffers(const ls_work *work) {
    size_t in = input_bytes(work), out = output_bytes(work), size = lsi_elem_bytes(work);
    uintptr_t input = in ? (uintptr_t)work->input : 0, output = out ? (uintptr_t)work->output : 0;
    if ((in && !input) || (out && !output))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", lsi_call_kind_name(work->call->kind),
                        in && !input ? "input" : "output");
    if ((input | output) & (size - 1))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: buffers must be aligned to their elements, %zu bytes",
                        lsi_call_kind_name(work->call->kind), size);
    if (!overlap(work->input, in, work->output, out)) return LS_OK;
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    if (shape->many_in && shape->many_out && work->displs)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s: input and output overlap; expected: apart, since with counts of ranks "
                        "it is never in place",
                        lsi_call_kind_name(work->call->kind));
    bool same = shape->many_in == shape->many_out;
    size_t own = same ? 0 : (size_t)lsi_part_begin(work, work->group->rank) * size;
    if (input + (shape->many_in ? own : 0) == output + (shape->many_out ? own : 0)) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "%s: input and output overlap in part; expected: apart, or the same%s",
                    lsi_call_kind_name(work->call->kind),
                    same ? "" : " in the rank's own part of the large one");
}

/* A buffer that a work in flight still writes, or that the new work would write, cannot be posted
 * again: peers might already be reading it. */
static ls_status check_in_flight(const ls_work *work) {
    ls_group *group = work->group;
    size_t in = input_bytes(work), out = output_bytes(work);
    for (uint64_t i = group->n_completed; i < group->n_posted; i++) {
        const ls_work *other = lsi_work_at(group, i);
        size_t other_in = input_bytes(other), other_out = output_bytes(other);
        if (!overlap(work->output, out, other->output, other_out) &&
            !overlap(work->output, out, other->input, other_in) &&
            !overlap(work->input, in, other->output, other_out))
            continue;
        char text[LSI_CALL_TEXT_BYTES];
        return lsi_fail(LS_ERR_BUSY,
                        "rank %d, call #%llu: a buffer is still in use by call #%llu, %s; wait for "
                        "that work first",
                        lsi_world_rank(group, group->rank), (unsigned long long)group->n_posted + 1,
                        (unsigned long long)i + 1, lsi_group_call_print(group, other->call, text));
    }
    return LS_OK;
}

/* ---- describing ---- */

static bool is_at_once(const ls_group *group, ls_work **handle) {
    return !handle && !group->batch && !group->has_thread && group->n_completed == group->n_posted;
}

/* The place of the next call must be free on this rank and complete on all. */
static ls_status take_place(ls_group *group, bool at_once, ls_work **place) {
    if (at_once) group->at_once_index = group->n_posted;
    ls_work *work = lsi_work_at(group, group->n_posted);
    if (!at_once && group->n_posted >= LSI_CALLS &&
        (work->held || work->index >= group->n_completed)) {
        LSI_TRY(lsi_group_advance(group));
        if (work->held || work->index >= group->n_completed)
            return lsi_fail(LS_ERR_BUSY,
                            "rank %d: %d works are in flight, the most that a group can hold; wait "
                            "for call #%llu first",
                            lsi_world_rank(group, group->rank), LSI_CALLS,
                            (unsigned long long)work->index + 1);
    }
    if (work->displs) lsi_free(work->displs);
    work->displs = NULL;
    *place = work;
    return LS_OK;
}

/* FNV-1a over the counts, never 0. */
static uint64_t hash_counts(const int64_t *counts, int n) {
    uint64_t hash = 14695981039346656037u;
    for (int p = 0; p < n; p++) hash = (hash ^ (uint64_t)counts[p]) * 1099511628211u;
    return hash ? hash : 1;
}

static ls_status set_counts(ls_work *work, const request *r) {
    int n = work->group->n_ranks;
    work->count = r->count;
    if (!r->counts) return LS_OK;
    work->displs = lsi_alloc(LSI_MEM_OTHER, ((size_t)n + 1) * sizeof *work->displs);
    LSI_TRY(lsi_check_alloc(work->displs));
    work->displs[0] = 0;
    for (int p = 0; p < n; p++) {
        work->displs[p + 1] = work->displs[p] + r->counts[p];
        if (r->counts[p] > work->count) work->count = r->counts[p];
    }
    return LS_OK;
}

/* Choices are kept by what they depend on besides the group. */
static ls_status choose(ls_work *work, lsi_call *call) {
    ls_group *group = work->group;
    uint64_t part_bytes = (uint64_t)(work->count * work->elem_bytes);
    uint64_t key = (uint64_t)call->kind << 57 ^ (uint64_t)(call->root + 1) << 50 ^ part_bytes ^
                   call->counts_hash << 1;
    lsi_chosen *chosen = &group->chosen[(key * 0x9E3779B97F4A7C15u) >> (64 - LSI_CHOICE_BITS)];
    if (chosen->key != key) {
        lsi_choice_case c;
        bool forced = false;
        int algorithm = 0;
        lsi_work_choice_case(work, call, &c);
        LSI_TRY(lsi_choose(&c, &group->costs, &group->rules, &algorithm, &forced));
        *chosen = (lsi_chosen){.key = key,
                               .algorithm = algorithm,
                               .contribution_bytes = c.slot_bytes,
                               .wants_slot = lsi_choice_wants_slot(algorithm, &c, &group->costs)};
    }
    work->algorithm = chosen->algorithm;
    work->contribution_bytes = chosen->contribution_bytes;
    work->slot = chosen->wants_slot ? group->n_slots : UINT64_MAX;
    return LS_OK;
}

/* A sink gets what is added where peers' buffers are; who asks for another way is told. */
static ls_status choose_direct(ls_work *work, const lsi_call *call) {
    const ls_group *group = work->group;
    lsi_choice_case c;
    bool forced = false;
    int algorithm = 0;
    lsi_work_choice_case(work, call, &c);
    LSI_TRY(lsi_choose(&c, &group->costs, &group->rules, &algorithm, &forced));
    bool suits = algorithm == LSI_ALGORITHM_DIRECT || algorithm == LSI_ALGORITHM_SHARED;
    if (forced && !suits)
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "%s: LOCKSTEP_ALGO asks for %s, but a sum that is used up while it is "
                        "added needs direct; add reducescatter=direct behind the others",
                        lsi_call_kind_name(call->kind), lsi_algorithm_name(algorithm));
    work->algorithm = LSI_ALGORITHM_DIRECT;
    work->contribution_bytes = 0;
    work->slot = UINT64_MAX;
    return LS_OK;
}

/* What must agree between ranks, but for the algorithm. */
static void words_of(const ls_group *group, const request *r, const lsi_shape *shape,
                     uint64_t word[LSI_CALL_WORDS]) {
    bool has_root = shape->root_in || shape->root_out;
    uint64_t order_hash = shape->reduces ? group->order.hash | 1 : group->tag;
    double scale = shape->reduces ? r->scale : 1;
    word[0] =
        (uint64_t)r->kind | (uint64_t)r->dtype << 16 | (uint64_t)(shape->reduces ? r->op : 0) << 32;
    word[1] = (uint32_t)(has_root ? r->root : -1) | order_hash << 32;
    word[2] = (uint64_t)r->count;
    memcpy(&word[3], &scale, sizeof scale);
    word[4] = r->counts ? hash_counts(r->counts, group->n_ranks) : 0;
}

/* This rank's record of the call. Written in whole words: short writes that are read back as a long
 * one at once would wait for each other. */
static lsi_call *record(ls_group *group, const uint64_t word[LSI_CALL_WORDS]) {
    lsi_call *call = &group->me->records[group->n_posted % LSI_RECORDS];
    call->number = 0;
    call->what = word[0];
    call->how = word[1];
    call->count = (int64_t)word[2];
    memcpy(&call->scale, &word[3], sizeof call->scale);
    call->counts_hash = word[4];
    call->posted_ms = 0;
    return call;
}

/* Fills the place of the next call; nothing is posted yet. */
static ls_status describe(ls_work *work, ls_group *group, const request *r) {
    const lsi_shape *shape = lsi_shape_of(r->kind);
    uint64_t word[LSI_CALL_WORDS];
    words_of(group, r, shape, word);
    lsi_call *call = record(group, word);
    work->group = group;
    work->index = group->n_posted;
    work->what = LSI_WORK_CALL;
    work->held = work->started = work->waits_for_all = false;
    work->flagged = work->staged_early = false;
    work->elem_bytes = lsi_dtype_size((int)r->dtype);
    work->call = call;
    work->input = r->input;
    work->output = r->output;
    work->sink = r->sink;
    work->n_looks = work->n_lines_taken = 0;
    work->n_seen = 0;
    work->batch = NULL;
    LSI_TRY(set_counts(work, r));
    if (r->counts) word[2] = (uint64_t)(call->count = work->displs[group->n_ranks]);
    if (shape->has_buffers && work->count > 0) LSI_TRY(check_buffers(work));
    if (group->n_completed < group->n_posted) LSI_TRY(check_in_flight(work));
    LSI_TRY(r->sink.take ? choose_direct(work, call) : choose(work, call));
    /* From here on nothing fails. */
    word[0] |= (uint64_t)work->algorithm << 48;
    if (r->op == LS_OP_PREMUL_SUM) word[3] = 0; /* each rank has its own */
    call->what = word[0];
    call->number = group->n_posted + 1;
    work->fingerprint = lsi_words_fingerprint(word);
    if (work->slot != UINT64_MAX) group->n_slots++;
    return LS_OK;
}

static ls_status post_locked(ls_group *group, const request *r, ls_work **handle) {
    ls_work *work = NULL;
    LSI_TRY(lsi_group_error(group));
    LSI_TRY(lsi_check_batch(group, handle));
    LSI_TRY(check_counts(group, r));
    LSI_TRY(take_place(group, is_at_once(group, handle), &work));
    ls_status status = describe(work, group, r);
    if (status != LS_OK) {
        /* As if it had never been: an old work that is complete. */
        lsi_free(work->displs);
        *work = (ls_work){.group = group, .index = 0};
        group->at_once_index = UINT64_MAX;
        return status;
    }
    group->n_posted++;
    group->stats.n_calls++;
    if (handle) work->call->posted_ms = lsi_coarse_ms();
    bool timed = handle || work->count * (int64_t)lsi_elem_bytes(work) >= LSI_TIMED_BYTES;
    if (timed && !group->flight_start_ticks) group->flight_start_ticks = lsi_ticks();
    return lsi_post_end(work, handle);
}

static ls_status post_request(ls_group *group, const request *r, ls_work **handle) {
    lsi_group_lock(group);
    ls_status status = post_locked(group, r, handle);
    if (status != LS_OK && group->batch) status = lsi_post_failed(group, status);
    lsi_group_unlock(group);
    return status;
}

/* All fields one by one: gcc fills a struct with zeros by wide stores, and reading single fields of
 * these again takes longer than everything else here. */
static ls_status post(ls_group *group, lsi_call_kind kind, const void *input, void *output,
                      int64_t count, ls_dtype dtype, ls_op op, double scale, int root,
                      const int64_t *counts, ls_work **handle) {
    request r;
    r.kind = kind;
    r.input = input;
    r.output = output;
    r.count = count;
    r.counts = counts;
    r.dtype = dtype;
    r.op = op;
    r.scale = scale;
    r.root = root;
    r.sink.take = NULL;
    r.sink.context = NULL;
    return post_request(group, &r, handle);
}

/* ---- the collectives ---- */

enum { NO_ROOT = -1 };
static const ls_op NO_OP = (ls_op)0;

ls_status ls_all_reduce(ls_group *group, const void *input, void *output, int64_t count,
                        ls_dtype dtype, ls_op op, double scale, ls_work **work) {
    return post(group, LSI_CALL_ALL_REDUCE, input, output, count, dtype, op, scale, NO_ROOT, NULL,
                work);
}

ls_status ls_reduce(ls_group *group, const void *input, void *output, int64_t count, ls_dtype dtype,
                    ls_op op, double scale, int root, ls_work **work) {
    return post(group, LSI_CALL_REDUCE, input, output, count, dtype, op, scale, root, NULL, work);
}

ls_status ls_reduce_scatter(ls_group *group, const void *input, void *output, int64_t count,
                            ls_dtype dtype, ls_op op, double scale, ls_work **work) {
    return post(group, LSI_CALL_REDUCE_SCATTER, input, output, count, dtype, op, scale, NO_ROOT,
                NULL, work);
}

static ls_status need_counts(ls_group *group, lsi_call_kind kind, const int64_t *counts) {
    if (counts) return LS_OK;
    ls_status status =
        lsi_fail(LS_ERR_ARGUMENT, "%s: counts is NULL, expected one count for each rank",
                 lsi_call_kind_name(kind));
    lsi_group_lock(group);
    if (group->batch) status = lsi_post_failed(group, status);
    lsi_group_unlock(group);
    return status;
}

ls_status ls_reduce_scatter_v(ls_group *group, const void *input, void *output,
                              const int64_t *counts, ls_dtype dtype, ls_op op, double scale,
                              ls_work **work) {
    LSI_TRY(need_counts(group, LSI_CALL_REDUCE_SCATTER, counts));
    return post(group, LSI_CALL_REDUCE_SCATTER, input, output, 0, dtype, op, scale, NO_ROOT, counts,
                work);
}

ls_status lsi_reduce_scatter_into(ls_group *group, const float *input, const int64_t *counts,
                                  ls_op op, double scale, lsi_sink sink, ls_work **work) {
    const request r = {.kind = LSI_CALL_REDUCE_SCATTER,
                       .input = input,
                       .counts = counts,
                       .dtype = LS_DTYPE_F32,
                       .op = op,
                       .scale = scale,
                       .root = NO_ROOT,
                       .sink = sink};
    return post_request(group, &r, work);
}

static void drop(void *context, int64_t at, const float *values, int64_t count) {
    (void)context;
    (void)at;
    (void)values;
    (void)count;
}

void lsi_group_drop_sink(ls_group *group, const void *context) {
    lsi_group_lock(group);
    for (uint64_t i = group->n_completed; i < group->n_posted; i++) {
        ls_work *work = lsi_work_at(group, i);
        if (work->sink.take && work->sink.context == context) work->sink.take = drop;
    }
    lsi_group_unlock(group);
}

ls_status ls_all_gather(ls_group *group, const void *input, void *output, int64_t count,
                        ls_dtype dtype, ls_work **work) {
    return post(group, LSI_CALL_ALL_GATHER, input, output, count, dtype, NO_OP, 1, NO_ROOT, NULL,
                work);
}

ls_status ls_all_gather_v(ls_group *group, const void *input, void *output, const int64_t *counts,
                          ls_dtype dtype, ls_work **work) {
    LSI_TRY(need_counts(group, LSI_CALL_ALL_GATHER, counts));
    return post(group, LSI_CALL_ALL_GATHER, input, output, 0, dtype, NO_OP, 1, NO_ROOT, counts,
                work);
}

ls_status ls_broadcast(ls_group *group, const void *input, void *output, int64_t count,
                       ls_dtype dtype, int root, ls_work **work) {
    return post(group, LSI_CALL_BROADCAST, input, output, count, dtype, NO_OP, 1, root, NULL, work);
}

ls_status ls_gather(ls_group *group, const void *input, void *output, int64_t count, ls_dtype dtype,
                    int root, ls_work **work) {
    return post(group, LSI_CALL_GATHER, input, output, count, dtype, NO_OP, 1, root, NULL, work);
}

ls_status ls_scatter(ls_group *group, const void *input, void *output, int64_t count,
                     ls_dtype dtype, int root, ls_work **work) {
    return post(group, LSI_CALL_SCATTER, input, output, count, dtype, NO_OP, 1, root, NULL, work);
}

ls_status ls_all_to_all(ls_group *group, const void *input, void *output, int64_t count,
                        ls_dtype dtype, ls_work **work) {
    return post(group, LSI_CALL_ALL_TO_ALL, input, output, count, dtype, NO_OP, 1, NO_ROOT, NULL,
                work);
}

ls_status ls_all_to_all_v(ls_group *group, const void *input, void *output, const int64_t *counts,
                          ls_dtype dtype, ls_work **work) {
    LSI_TRY(need_counts(group, LSI_CALL_ALL_TO_ALL, counts));
    return post(group, LSI_CALL_ALL_TO_ALL, input, output, 0, dtype, NO_OP, 1, NO_ROOT, counts,
                work);
}

ls_status ls_barrier(ls_group *group, ls_work **work) {
    return post(group, LSI_CALL_BARRIER, NULL, NULL, 0, LS_DTYPE_U8, NO_OP, 1, NO_ROOT, NULL, work);
}

/* ---- what would be chosen ---- */

static void sort_by_time(ls_choice *choices, int n) {
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && choices[k].time_us < choices[k - 1].time_us; k--) {
            ls_choice other = choices[k];
            choices[k] = choices[k - 1];
            choices[k - 1] = other;
        }
}

/* What SHARED is called where nothing is known of the buffers. */
static const char *public_name(int algorithm) {
    return lsi_algorithm_name(algorithm == LSI_ALGORITHM_SHARED ? LSI_ALGORITHM_DIRECT : algorithm);
}

ls_status ls_group_choose(const ls_group *group, const char *collective, int64_t count,
                          ls_dtype dtype, ls_choice *choice, ls_choice *all, int n_all,
                          int *n_found) {
    int kind = lsi_call_kind_from(collective);
    if (kind < 1 || kind == LSI_CALL_SEND || kind == LSI_CALL_RECV)
        return lsi_fail(LS_ERR_ARGUMENT, "choose: no collective is called '%s'", collective);
    request r = {
        .kind = (lsi_call_kind)kind, .count = count, .dtype = dtype, .op = LS_OP_SUM, .scale = 1};
    LSI_TRY(check_counts(group, &r));
    lsi_call call = {.kind = (uint16_t)kind, .dtype = (uint16_t)dtype};
    ls_work work = {.group = (ls_group *)group,
                    .call = &call,
                    .count = count,
                    .elem_bytes = lsi_dtype_size((int)dtype)};
    lsi_choice_case c;
    lsi_work_choice_case(&work, &call, &c);
    int algorithm = 0;
    bool forced = false;
    LSI_TRY(lsi_choose(&c, &group->costs, &group->rules, &algorithm, &forced));
    ls_choice found[64];
    int n = 0;
    for (int a = 1; a <= lsi_n_algorithms() && n < 64; a++)
        if (a != LSI_ALGORITHM_SHARED && lsi_algorithm_can(a, &c))
            found[n++] = (ls_choice){.algorithm = lsi_algorithm_name(a),
                                     .time_us = lsi_algorithm_cost_ns(a, &c, &group->costs) / 1e3};
    sort_by_time(found, n);
    *choice = (ls_choice){.algorithm = public_name(algorithm),
                          .time_us = lsi_algorithm_cost_ns(algorithm, &c, &group->costs) / 1e3,
                          .forced = forced};
    for (int i = 0; all && i < n && i < n_all; i++) all[i] = found[i];
    if (n_found) *n_found = n;
    return LS_OK;
}
