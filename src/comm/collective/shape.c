/* The shapes of the collectives, and what follows from a shape alone. */
#include <string.h>

#include "comm/collective/collective.h"
#include "comm/copy.h"

const lsi_shape lsi_shapes[LSI_CALL_N_KINDS] = {
    [LSI_CALL_BROADCAST] = {.root_in = true, .has_buffers = true},
    [LSI_CALL_ALL_REDUCE] = {.reduces = true, .has_buffers = true},
    [LSI_CALL_REDUCE] = {.reduces = true, .root_out = true, .has_buffers = true},
    [LSI_CALL_REDUCE_SCATTER] = {.reduces = true, .many_in = true, .has_buffers = true},
    [LSI_CALL_ALL_GATHER] = {.many_out = true, .has_buffers = true},
    [LSI_CALL_GATHER] = {.many_out = true, .root_out = true, .has_buffers = true},
    [LSI_CALL_SCATTER] = {.many_in = true, .root_in = true, .has_buffers = true},
    [LSI_CALL_ALL_TO_ALL] = {.many_in = true, .many_out = true, .has_buffers = true},
};

int64_t lsi_input_count(const ls_work *work) {
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    const ls_group *group = work->group;
    bool counts = !shape->root_in || work->call->root == group->rank;
    if (!shape->has_buffers || !counts) return 0;
    return shape->many_in ? lsi_part_begin(work, group->n_ranks)
                          : lsi_part_count(work, group->rank);
}

int64_t lsi_output_count(const ls_work *work) {
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    const ls_group *group = work->group;
    bool counts = !shape->root_out || work->call->root == group->rank;
    if (!shape->has_buffers || !counts || work->sink.take) return 0;
    return shape->many_out ? lsi_output_part_begin(work, group->n_ranks)
                           : lsi_part_count(work, group->rank);
}

/* lines * rank / n_ranks; divisions of 64 bits would take longer than many a call. */
static int64_t share_of(uint64_t lines, int rank, int n_ranks) {
    if (lines <= UINT32_MAX / LSI_MAX_RANKS)
        return (int64_t)((uint32_t)lines * (uint32_t)rank / (uint32_t)n_ranks);
    return (int64_t)(lines * (uint64_t)rank / (uint64_t)n_ranks);
}

lsi_range lsi_slice(int64_t count, size_t elem_bytes, int rank, int n_ranks) {
    int shift = 6 - __builtin_ctz((unsigned)elem_bytes); /* elements of a line */
    uint64_t lines = ((uint64_t)count + (1u << shift) - 1) >> shift;
    int64_t begin = share_of(lines, rank, n_ranks) << shift;
    int64_t end = share_of(lines, rank + 1, n_ranks) << shift;
    return (lsi_range){begin < count ? begin : count, end < count ? end : count};
}

lsi_reduction lsi_work_reduction(const ls_work *work, double premul[LSI_MAX_RANKS]) {
    const lsi_call *call = work->call;
    if (call->op == LS_OP_PREMUL_SUM)
        for (int r = 0; r < work->group->n_ranks; r++)
            premul[r] = r == work->group->rank ? call->scale : lsi_work_arrival_of(work, r)->scale;
    return (lsi_reduction){.order = &work->group->order,
                           .dtype = (ls_dtype)call->dtype,
                           .op = (ls_op)call->op,
                           .scale = call->scale,
                           .premul = premul};
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static size_t copy(unsigned char *to, const unsigned char *from, int64_t n_elems, size_t elem_bytes,
                   bool taking) {
    if (n_elems <= 0 || to == from) return 0;
    size_t bytes = (size_t)n_elems * elem_bytes;
    if (taking)
        lsi_copy_taking(to, (void *)from, bytes);
    else
        lsi_copy(to, from, bytes);
    return bytes;
}

size_t lsi_contribute(const ls_work *work, unsigned char *to, int64_t begin, int64_t end,
                      int64_t stride) {
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    const ls_group *group = work->group;
    size_t size = lsi_elem_bytes(work), bytes = 0;
    const unsigned char *input = work->input;
    if (shape->root_in && work->call->root != group->rank) return 0;
    if (!shape->many_in) {
        int64_t last = least(end, lsi_input_count(work));
        return copy(to, input + (size_t)begin * size, last - begin, size, false);
    }
    for (int p = 0; p < group->n_ranks; p++) {
        int64_t at = lsi_part_begin(work, p), place = stride < 0 ? at : p * stride;
        int64_t last = least(end, lsi_part_count(work, p));
        bytes += copy(to + (size_t)place * size, input + (size_t)(at + begin) * size, last - begin,
                      size, false);
    }
    return bytes;
}

/* Element `begin` of part p of rank r's contribution. */
static const unsigned char *locate(const ls_work *work, const lsi_contributions *from, int r, int p,
                                   int64_t begin) {
    bool many = lsi_shape_of(work->call->kind)->many_in;
    int64_t place = !many ? 0 : from->stride < 0 ? lsi_part_begin(work, p) : p * from->stride;
    return from->at[r] + (size_t)(place + begin - from->begin) * lsi_elem_bytes(work);
}

int64_t lsi_pull_reduced(const ls_work *work, const lsi_contributions *from, int64_t begin,
                         int64_t n_elems, void *to) {
    const void *input[LSI_MAX_RANKS];
    double premul[LSI_MAX_RANKS];
    int n = work->group->n_ranks, me = work->group->rank;
    size_t size = lsi_elem_bytes(work);
    if (n_elems <= 0) return 0;
    for (int r = 0; r < n; r++) input[r] = locate(work, from, r, me, begin);
    lsi_reduction reduction = lsi_work_reduction(work, premul);
    void *output[2] = {to};
    int n_outputs = 1;
    /* The lines of the peer's contribution change hands (copy.h, [Note: taking]). */
    if (from->sole_reader && n == 2) output[n_outputs++] = (void *)input[1 - me];
    lsi_reduce(&reduction, input, output, n_outputs, n_elems);
    return (n - 1) * n_elems * (int64_t)size;
}

int64_t lsi_pull(const ls_work *work, const lsi_contributions *from, int64_t begin, int64_t end) {
    const lsi_call *call = work->call;
    const lsi_shape *shape = lsi_shape_of(call->kind);
    int me = work->group->rank;
    size_t size = lsi_elem_bytes(work);
    unsigned char *output = work->output;
    if (!shape->has_buffers || (shape->root_out && call->root != me)) return 0;
    int64_t own_end = least(end, lsi_part_count(work, me));
    if (shape->reduces)
        return lsi_pull_reduced(work, from, begin, own_end - begin, output + (size_t)begin * size);
    if (!shape->many_out) { /* broadcast, scatter */
        const unsigned char *source = locate(work, from, call->root, me, begin);
        size_t bytes = copy(output + (size_t)begin * size, source, own_end - begin, size,
                            from->sole_reader && me != call->root);
        return me == call->root ? 0 : (int64_t)bytes;
    }
    int64_t moved = 0; /* all-gather, gather, all-to-all */
    for (int q = 0; q < work->group->n_ranks; q++) {
        int64_t last = least(end, lsi_output_part_count(work, q));
        size_t bytes = copy(output + (size_t)(lsi_output_part_begin(work, q) + begin) * size,
                            locate(work, from, q, me, begin), last - begin, size,
                            from->sole_reader && q != me);
        moved += q == me ? 0 : (int64_t)bytes;
    }
    return moved;
}

void lsi_work_choice_case(const ls_work *work, const lsi_call *call, lsi_choice_case *c) {
    const lsi_shape *shape = lsi_shape_of(call->kind);
    const ls_group *group = work->group;
    int64_t size = work->elem_bytes;
    int64_t part = work->count * size, all = lsi_part_begin(work, group->n_ranks) * size;
    /* All-to-all: the output of the rank with the longest part. */
    int64_t larger = shape->many_in && shape->many_out   ? group->n_ranks * part
                     : shape->many_in || shape->many_out ? all
                                                         : part;
    *c = (lsi_choice_case){.kind = call->kind,
                           .n = group->n_ranks,
                           .root = call->root < 0 ? 0 : call->root,
                           .bytes = larger,
                           .slot_bytes = shape->many_in ? all : part,
                           .reduces = shape->reduces,
                           .default_order = group->order.hash == group->default_order_hash};
}
