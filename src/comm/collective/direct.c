/* Direct: peers' buffers are read and written where they are.
 *
 * Source: the ranks of a machine as one processor with shared memory; the bound of 2 S bytes per
 * rank for all-reduce is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
 * clusters of workstations", JPDC 69 (2009).
 * Restrictions: the buffers that peers touch lie in the shared heap (or a group of one): all
 * inputs, or the root's where only it has one; all outputs of all-reduce, the root's of reduce and
 * gather. All-to-all in place is staged.
 *
 *   All-reduce of 4 ranks: slices 0..3; rank 0 reads column 0 of all, writes it into all
 *   rank 0  [0|1|2|3]
 *   rank 1  [0|1|2|3]      rank 1 the same with column 1, and so on. Reduce: into the root's.
 *   rank 2  [0|1|2|3]      Broadcast: from the root's into all, if the outputs are shared.
 *   rank 3  [0|1|2|3]      The others: each rank makes its own output from all inputs; gather:
 *                          each writes its part into the root's output.
 *
 * Steps: 2 (all arrived; all done), whatever the number of ranks and the collective.
 * Bytes to and from other ranks, per rank, S the larger buffer: all-reduce 2 S (n - 1) / n
 * (touched: 2 S), reduce S, on the root S (n - 1) / n, reduce-scatter, all-gather, all-to-all and
 * broadcast S (n - 1) / n, gather and scatter S / n, on the root none. Broadcast where outputs are
 * private: S, on the root none. Scratch: order depth + 1 blocks of 4 KiB. Cost: 2 alpha + bytes
 * beta + S gamma; any n. When: from some KiB on, where buffers are shared. Small calls: one_shot.c;
 * private: staged.c.
 *
 * A reduction whose result goes to a sink (group.h) is made in blocks of 16 KiB on the stack, which
 * the sink reads from the nearest caches. */
#include <string.h>

#include "base/clock.h"
#include "comm/collective/collective.h"
#include "comm/copy.h"

enum { SINK_ELEMS = 4096, LINE_BYTES = 64 };

typedef enum side { INPUT, OUTPUT } side;

static bool is_shared(const ls_work *work, int rank, side which) {
    return lsi_work_arrival_of(work, rank)->offset[which] != LSI_NOT_SHARED;
}

/* Whether peers touch outputs, not only inputs. */
static bool writes_to_peers(int kind) {
    return kind == LSI_CALL_ALL_REDUCE || kind == LSI_CALL_REDUCE || kind == LSI_CALL_GATHER;
}

bool lsi_direct_possible(const ls_work *work, int *rank, bool *input) {
    const lsi_call *call = work->call;
    const lsi_shape *shape = lsi_shape_of(call->kind);
    if (work->group->n_ranks == 1 || !shape->has_buffers) return true;
    for (int r = 0; r < work->group->n_ranks; r++) {
        *rank = r;
        /* gather is pushed: inputs stay private */
        *input = true;
        if ((!shape->root_in || r == call->root) && call->kind != LSI_CALL_GATHER &&
            !is_shared(work, r, INPUT))
            return false;
        *input = false;
        if (writes_to_peers(call->kind) && (!shape->root_out || r == call->root) &&
            !is_shared(work, r, OUTPUT))
            return false;
    }
    return true;
}

bool lsi_direct_ruled_out(const ls_work *work, const uint64_t own_offset[2]) {
    const lsi_call *call = work->call;
    const lsi_shape *shape = lsi_shape_of(call->kind);
    bool is_root = call->root == work->group->rank;
    if (work->group->n_ranks == 1 || !shape->has_buffers) return false;
    bool input_counts = (!shape->root_in || is_root) && call->kind != LSI_CALL_GATHER;
    bool output_counts = writes_to_peers(call->kind) && (!shape->root_out || is_root);
    return (input_counts && own_offset[INPUT] == LSI_NOT_SHARED) ||
           (output_counts && own_offset[OUTPUT] == LSI_NOT_SHARED);
}

static unsigned char *buffer_of(const ls_work *work, int rank, side which) {
    if (rank == work->group->rank)
        return which == INPUT ? (unsigned char *)work->input : (unsigned char *)work->output;
    return work->group->region->base + lsi_work_arrival_of(work, rank)->offset[which];
}

static int64_t reduce_slice(const ls_work *work) {
    const ls_group *group = work->group;
    const lsi_call *call = work->call;
    size_t size = lsi_elem_bytes(work);
    const void *input[LSI_MAX_RANKS];
    void *output[LSI_MAX_RANKS];
    double premul[LSI_MAX_RANKS];
    lsi_range slice = lsi_slice(work->count, size, group->rank, group->n_ranks);
    bool to_root = call->kind == LSI_CALL_REDUCE;
    int n_outputs = to_root ? 1 : group->n_ranks;
    int n_written = n_outputs - (!to_root || call->root == group->rank); /* to others */
    for (int r = 0; r < group->n_ranks; r++)
        input[r] = buffer_of(work, r, INPUT) + (size_t)slice.begin * size;
    for (int i = 0; i < n_outputs; i++)
        output[i] = buffer_of(work, to_root ? call->root : i, OUTPUT) + (size_t)slice.begin * size;
    lsi_reduction reduction = lsi_work_reduction(work, premul);
    int64_t n_elems = slice.end - slice.begin;
    lsi_reduce(&reduction, input, output, n_outputs, n_elems);
    return (group->n_ranks - 1 + n_written) * n_elems * (int64_t)size;
}

static int64_t push_to_root(const ls_work *work) {
    int me = work->group->rank, root = work->call->root;
    size_t size = lsi_elem_bytes(work);
    size_t bytes = (size_t)lsi_part_count(work, me) * size;
    unsigned char *to = buffer_of(work, root, OUTPUT) + (size_t)lsi_part_begin(work, me) * size;
    if (to == work->input) return 0;
    lsi_copy(to, work->input, bytes);
    return me == root ? 0 : (int64_t)bytes;
}

static int64_t pull_into_sink(const ls_work *work, const lsi_contributions *from) {
    _Alignas(LINE_BYTES) float block[SINK_ELEMS];
    int64_t n_elems = lsi_part_count(work, work->group->rank), moved = 0;
    for (int64_t at = 0; at < n_elems; at += SINK_ELEMS) {
        int64_t n = n_elems - at < SINK_ELEMS ? n_elems - at : SINK_ELEMS;
        moved += lsi_pull_reduced(work, from, at, n, block);
        int64_t begin = lsi_ticks();
        work->sink.take(work->sink.context, at, block, n);
        work->group->stats.sink_ns += lsi_ticks() - begin;
    }
    return moved;
}

static int64_t pull(const ls_work *work) {
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    lsi_contributions from;
    lsi_contributions_init(&from, 0, -1);
    for (int r = 0; r < work->group->n_ranks; r++)
        if (!shape->root_in || r == work->call->root) from.at[r] = buffer_of(work, r, INPUT);
    if (work->sink.take) return pull_into_sink(work, &from);
    return lsi_pull(work, &from, 0, work->count);
}

/* Broadcast where the others' outputs are shared too: each rank, the root as well, copies a slice
 * of the root's input into all outputs. A copy is bound by what one processor can move. */
static bool can_spread(const ls_work *work) {
    if (work->call->kind != LSI_CALL_BROADCAST) return false;
    for (int r = 0; r < work->group->n_ranks; r++)
        if (r != work->call->root && !is_shared(work, r, OUTPUT)) return false;
    return true;
}

static int64_t spread_slice(const ls_work *work) {
    const ls_group *group = work->group;
    int me = group->rank, root = work->call->root;
    size_t size = lsi_elem_bytes(work);
    lsi_range slice = lsi_slice(work->count, size, me, group->n_ranks);
    size_t at = (size_t)slice.begin * size, bytes = (size_t)(slice.end - slice.begin) * size;
    const unsigned char *from = buffer_of(work, root, INPUT) + at;
    for (int r = 0; r < group->n_ranks; r++)
        if (r != root) lsi_copy(buffer_of(work, r, OUTPUT) + at, from, bytes);
    /* The root's own output is its own affair. */
    if (me == root) lsi_copy(work->output, work->input, (size_t)work->count * size);
    return (group->n_ranks - 1) * (int64_t)bytes;
}

void lsi_direct(ls_work *work) {
    int kind = work->call->kind;
    int64_t moved = kind == LSI_CALL_GATHER ? push_to_root(work)
                    : can_spread(work)      ? spread_slice(work)
                    : writes_to_peers(kind) ? reduce_slice(work)
                                            : pull(work);
    work->group->stats.bytes_sent += moved;
}
