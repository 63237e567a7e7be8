/* Reduce-scatter, direct on shared inputs.
 *
 * Source, steps: as all-reduce (all_reduce.c), without writing back.
 * Restrictions: inputs in the shared heap; the output may be private.
 *
 *   4 ranks: rank r reads part r of all inputs and writes its own output.
 *
 * Bytes moved from other ranks, per rank: S (n - 1) / n, with S the size of an input.
 * Cost: 2 barrier + S beta + S gamma; any n. In place (output = own part of the input) is safe:
 * nobody else reads that part.
 *
 * Private inputs: a piece holds the same stretch of all n parts, one behind the other. */
#include <string.h>

#include "comm/collective/collective.h"
#include "comm/sum.h"

static int64_t sum_part(const ls_work *work, const lsi_peers *from, int64_t offset, float *output,
                        int64_t count) {
    const ls_group *group = work->group;
    const float *input[LSI_MAX_RANKS];
    for (int r = 0; r < group->n_ranks; r++) input[r] = from->ptr[r] + offset;
    lsi_sum_f32(&group->order, input, &output, 1, count, work->call.scale);
    return (group->n_ranks - 1) * count * (int64_t)sizeof(float);
}

static int64_t direct(ls_work *work) {
    lsi_peers inputs;
    lsi_peer_inputs(work, &inputs);
    int64_t count = work->call.count;
    return sum_part(work, &inputs, work->group->rank * count, work->output, count);
}

static void copy_in(ls_work *work, uint64_t piece) {
    lsi_range range = lsi_piece_range(work, piece);
    int64_t count = range.end - range.begin;
    float *staging = lsi_own_staging(work, piece);
    for (int r = 0; r < work->group->n_ranks; r++)
        memcpy(staging + r * count, (const float *)work->input + r * work->call.count + range.begin,
               (size_t)count * sizeof(float));
}

static int64_t combine(ls_work *work, uint64_t piece) {
    lsi_range range = lsi_piece_range(work, piece);
    int64_t count = range.end - range.begin;
    lsi_peers staging;
    lsi_peer_staging(work, piece, &staging);
    return sum_part(work, &staging, work->group->rank * count, (float *)work->output + range.begin,
                    count);
}

const lsi_collective lsi_reduce_scatter = {.is_direct = lsi_inputs_shared,
                                           .direct = direct,
                                           .holds_all_parts = true,
                                           .copy_in = copy_in,
                                           .combine = combine};
