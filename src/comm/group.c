/* Groups: attaching, posting calls, the public functions.
 *
 * Every collective is the same four steps: check the arguments, describe the call, publish the
 * description, advance. Only the description differs, so each public function is a few lines. */
#include "comm/group.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"

enum { DEFAULT_TIMEOUT_MS = 300000, SPINS = 2000 };

/* ---- life ---- */

ls_status lsi_group_attach(lsi_region *region, int rank, ls_group **out) {
    int n_ranks = lsi_region_n_ranks(region);
    if (rank < 0 || rank >= n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT, "group: rank %d, expected 0 to %d", rank, n_ranks - 1);
    ls_group *group = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *group);
    LSI_TRY(lsi_check_alloc(group));
    if (atomic_exchange(&region->control->ranks[rank].attached, 1)) {
        lsi_free(group);
        return lsi_fail(LS_ERR_STATE,
                        "group: rank %d has a group already, or had one; a worker "
                        "makes one, once",
                        rank);
    }
    group->region = region;
    group->pid = getpid();
    group->rank = rank;
    group->n_ranks = n_ranks;
    group->timeout_ms = DEFAULT_TIMEOUT_MS;
    group->spins = lsi_cpu_count() >= n_ranks ? SPINS : 0;
    group->ranks = region->control->ranks;
    group->me = &group->ranks[rank];
    lsi_order_default(&group->order, n_ranks);
    *out = group;
    return LS_OK;
}

static ls_status number_from_environment(const char *name, int *number) {
    const char *text = getenv(name);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || *text == 0 || *end != 0 || value < 0 || value > 1 << 20)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "group: environment variable %s is '%s', expected the "
                        "number that `lockstep` sets",
                        name, text ? text : "");
    *number = (int)value;
    return LS_OK;
}

static ls_status open_region(lsi_region **region, int *rank) {
    *rank = 0;
    if (!getenv("LOCKSTEP_FD")) return lsi_region_create(1, 0, region);
    int fd = -1;
    LSI_TRY(number_from_environment("LOCKSTEP_FD", &fd));
    LSI_TRY(number_from_environment("LOCKSTEP_RANK", rank));
    LSI_TRY(lsi_region_open(fd, region));
    /* It has arrived: what this program starts in turn is no worker and must not keep the memory.
     */
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return LS_OK;
}

ls_status ls_group_create(int64_t timeout_ms, ls_group **out) {
    lsi_region *region = NULL;
    ls_group *group = NULL;
    int rank = 0;
    LSI_TRY(open_region(&region, &rank));
    ls_status status = lsi_group_attach(region, rank, &group);
    if (status != LS_OK) {
        lsi_region_close(region);
        return status;
    }
    group->owns_region = true;
    int64_t default_timeout_ms = group->timeout_ms;
    group->timeout_ms = timeout_ms;
    status = ls_barrier(group, NULL);
    group->timeout_ms = default_timeout_ms;
    if (status != LS_OK) {
        ls_group_destroy(group);
        return lsi_context(status, "meeting of the group");
    }
    *out = group;
    return LS_OK;
}

void ls_group_destroy(ls_group *group) {
    if (!group) return;
    if (group->pid == getpid()) lsi_region_mark_left(group->region, group->rank);
    if (group->owns_region) lsi_region_close(group->region);
    lsi_free(group);
}

int ls_group_rank(const ls_group *group) {
    return group->rank;
}

int ls_group_world_size(const ls_group *group) {
    return group->n_ranks;
}

void ls_group_set_timeout(ls_group *group, int64_t timeout_ms) {
    group->timeout_ms = timeout_ms;
}

void lsi_group_set_order(ls_group *group, const lsi_order *order) {
    group->order = *order;
}

void lsi_group_get_stats(const ls_group *group, lsi_group_stats *stats) {
    *stats = group->stats;
}

lsi_region *lsi_group_region(const ls_group *group) {
    return group->region;
}

/* ---- shared memory ---- */

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

static size_t call_bytes(const ls_group *group, const lsi_call *call, bool input) {
    size_t bytes = (size_t)call->count * ls_dtype_bytes((ls_dtype)call->dtype);
    bool large = input ? call->kind == LSI_CALL_REDUCE_SCATTER : call->kind == LSI_CALL_ALL_GATHER;
    return large ? bytes * (size_t)group->n_ranks : bytes;
}

ls_status ls_group_alloc_shared(ls_group *group, size_t bytes, void **ptr) {
    return lsi_heap_alloc(group->region, bytes, ptr);
}

/* Peers may be reading or writing a block of a work in flight, after an error for as long as they
 * are there; it is never given out again then. */
void ls_group_free_shared(ls_group *group, void *ptr) {
    if (!ptr) return;
    size_t bytes = lsi_heap_block_bytes(group->region, ptr);
    for (uint64_t i = group->n_completed; i < group->n_posted; i++) {
        const ls_work *work = &group->works[i % LSI_CALLS];
        if (overlap(ptr, bytes, work->input, call_bytes(group, &work->call, true)) ||
            overlap(ptr, bytes, work->output, call_bytes(group, &work->call, false)))
            return;
    }
    lsi_heap_free(group->region, ptr);
}

/* ---- posting ---- */

/* A buffer that a work in flight still writes, or that the new work would write, cannot be posted
 * again: peers might already be reading it. */
static ls_status check_in_flight(ls_group *group, const lsi_call *call, const void *input,
                                 void *output) {
    size_t in = call_bytes(group, call, true), out = call_bytes(group, call, false);
    for (uint64_t i = group->n_completed; i < group->n_posted; i++) {
        const ls_work *other = &group->works[i % LSI_CALLS];
        size_t other_in = call_bytes(group, &other->call, true);
        size_t other_out = call_bytes(group, &other->call, false);
        if (overlap(output, out, other->output, other_out) ||
            overlap(output, out, other->input, other_in) ||
            overlap(input, in, other->output, other_out)) {
            char text[LSI_CALL_TEXT_BYTES];
            return lsi_fail(LS_ERR_BUSY,
                            "rank %d, call #%llu: a buffer is still in use by call "
                            "#%llu, %s; wait for that work first",
                            group->rank, (unsigned long long)group->n_posted + 1,
                            (unsigned long long)i + 1, lsi_call_print(&other->call, text));
        }
    }
    return LS_OK;
}

/* The slot of the next call must be free on this rank and complete on all. */
static ls_status take_slot(ls_group *group, ls_work **slot) {
    ls_work *work = &group->works[group->n_posted % LSI_CALLS];
    if (group->n_posted >= LSI_CALLS && (work->held || work->index >= group->n_completed)) {
        LSI_TRY(lsi_group_advance(group));
        if (work->held || work->index >= group->n_completed)
            return lsi_fail(LS_ERR_BUSY,
                            "rank %d: %d works are in flight, the most that a group "
                            "can hold; wait for call #%llu first",
                            group->rank, LSI_CALLS, (unsigned long long)work->index + 1);
    }
    *slot = work;
    return LS_OK;
}

static void publish(ls_group *group, const lsi_call *call) {
    group->me->calls[group->n_posted % LSI_CALLS] = *call;
    atomic_store(&group->me->last_kind, call->kind);
    atomic_store(&group->me->last_count, call->count);
    if (group->n_completed == group->n_posted) group->flight_start_ns = lsi_now_ns();
    group->n_posted++;
    group->stats.n_calls++;
    atomic_store(&group->me->arrived, group->n_posted);
    if (lsi_all_arrived(group, group->n_posted - 1)) lsi_group_ring(group);
}

static ls_status post(ls_group *group, lsi_call *call, const void *input, void *output,
                      ls_work **handle) {
    LSI_TRY(lsi_region_error(group->region, NULL));
    LSI_TRY(check_in_flight(group, call, input, output));
    ls_work *work = NULL;
    LSI_TRY(take_slot(group, &work));
    call->input = lsi_region_offset(group->region, input, call_bytes(group, call, true));
    call->output = lsi_region_offset(group->region, output, call_bytes(group, call, false));
    *work = (ls_work){.group = group,
                      .index = group->n_posted,
                      .call = *call,
                      .input = input,
                      .output = output,
                      .held = true};
    publish(group, call);
    if (!handle) return ls_work_wait(work, -1);
    ls_status status = lsi_group_advance(group);
    if (status == LS_OK)
        *handle = work;
    else
        work->held = false;
    return status;
}

/* ---- collectives ---- */

/* Apart or exactly in place: a peer reads what lies between while it is written here. */
static ls_status check_place(const ls_group *group, const lsi_call *call, const void *input,
                             const void *output) {
    size_t in = call_bytes(group, call, true), out = call_bytes(group, call, false);
    size_t own_part = (size_t)group->rank * (in < out ? in : out);
    uintptr_t in_place = (uintptr_t)input + (in > out ? own_part : 0);
    uintptr_t found = (uintptr_t)output + (out > in ? own_part : 0);
    if (found == in_place || !overlap(input, in, output, out)) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "%s: input and output overlap in part; expected: apart, or the "
                    "same%s",
                    lsi_call_kind_name(call->kind),
                    in == out ? "" : " in the rank's own part of the large one");
}

static ls_status check_call(const ls_group *group, const lsi_call *call, const void *input,
                            const void *output) {
    const char *name = lsi_call_kind_name(call->kind);
    size_t elem_bytes = ls_dtype_bytes((ls_dtype)call->dtype);
    if (call->dtype != LS_DTYPE_F32)
        return lsi_fail(LS_ERR_UNSUPPORTED, "%s: dtype %s; this version reduces and moves F32",
                        name, ls_dtype_name((ls_dtype)call->dtype));
    if (call->count < 0 ||
        (uint64_t)call->count > SIZE_MAX / 2 / elem_bytes / (size_t)group->n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: count %lld is outside the legal range", name,
                        (long long)call->count);
    if (call->count > 0 && (!input || !output))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", name, input ? "output" : "input");
    if (((uintptr_t)input | (uintptr_t)output) % elem_bytes != 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: buffers must be aligned to their elements, %zu bytes",
                        name, elem_bytes);
    return check_place(group, call, input, output);
}

static ls_status sum_call(ls_group *group, lsi_call_kind kind, const void *input, void *output,
                          int64_t count, ls_dtype dtype, ls_op op, double scale, ls_work **work) {
    if (op != LS_OP_SUM)
        return lsi_fail(LS_ERR_UNSUPPORTED, "%s: operation %d; this version sums (LS_OP_SUM)",
                        lsi_call_kind_name(kind), (int)op);
    lsi_call call = {.kind = (uint16_t)kind,
                     .dtype = (uint16_t)dtype,
                     .op = op,
                     .root = -1,
                     .count = count,
                     .scale = scale,
                     .order_hash = group->order.hash};
    LSI_TRY(check_call(group, &call, input, output));
    return post(group, &call, input, output, work);
}

ls_status ls_all_reduce(ls_group *group, const void *input, void *output, int64_t count,
                        ls_dtype dtype, ls_op op, double scale, ls_work **work) {
    return sum_call(group, LSI_CALL_ALL_REDUCE, input, output, count, dtype, op, scale, work);
}

ls_status ls_reduce_scatter(ls_group *group, const void *input, void *output, int64_t count,
                            ls_dtype dtype, ls_op op, double scale, ls_work **work) {
    return sum_call(group, LSI_CALL_REDUCE_SCATTER, input, output, count, dtype, op, scale, work);
}

ls_status ls_all_gather(ls_group *group, const void *input, void *output, int64_t count,
                        ls_dtype dtype, ls_work **work) {
    lsi_call call = {
        .kind = LSI_CALL_ALL_GATHER, .dtype = (uint16_t)dtype, .root = -1, .count = count};
    LSI_TRY(check_call(group, &call, input, output));
    return post(group, &call, input, output, work);
}

ls_status ls_broadcast(ls_group *group, void *buffer, int64_t count, ls_dtype dtype, int root,
                       ls_work **work) {
    if (root < 0 || root >= group->n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT, "broadcast: root %d, expected 0 to %d", root,
                        group->n_ranks - 1);
    lsi_call call = {
        .kind = LSI_CALL_BROADCAST, .dtype = (uint16_t)dtype, .root = root, .count = count};
    LSI_TRY(check_call(group, &call, buffer, buffer));
    return post(group, &call, buffer, buffer, work);
}

ls_status ls_barrier(ls_group *group, ls_work **work) {
    lsi_call call = {.kind = LSI_CALL_BARRIER, .dtype = LS_DTYPE_F32, .root = -1};
    return post(group, &call, NULL, NULL, work);
}

/* ---- failure ---- */

void ls_group_abort(ls_group *group, ls_status status, const char *reason) {
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "rank %d aborted the group: %s", group->rank, reason);
    lsi_region_abort(group->region, status == LS_OK ? LS_ERR_ABORTED : status, group->rank,
                     message);
}

ls_status ls_group_status(ls_group *group) {
    return lsi_region_error(group->region, NULL);
}
