/* All-gather, direct on shared inputs.
 *
 * Source: plain copies from the peers' mappings.
 * Restrictions: inputs in the shared heap; the output may be private.
 *
 *   4 ranks: rank r copies the inputs of all ranks into its own output, in rank order.
 *
 * Steps: 2 (all arrived; all done). Bytes moved from other ranks, per rank: S (n - 1) / n, with S
 * the size of an output. Cost: 2 barrier + S beta; any n. In place (input = own part of the output)
 * is safe: others read only that part, which is not written.
 *
 * Private inputs: each piece is copied into the own block, then by all from there. */
#include <string.h>

#include "comm/collective/collective.h"

static int64_t gather(const ls_work *work, const lsi_peers *from, int64_t begin, int64_t count) {
    const ls_group *group = work->group;
    size_t bytes = (size_t)count * sizeof(float);
    for (int r = 0; r < group->n_ranks; r++) {
        float *to = (float *)work->output + r * work->call.count + begin;
        if (to != from->ptr[r]) memcpy(to, from->ptr[r], bytes);
    }
    return (group->n_ranks - 1) * (int64_t)bytes;
}

static int64_t direct(ls_work *work) {
    lsi_peers inputs;
    lsi_peer_inputs(work, &inputs);
    return gather(work, &inputs, 0, work->call.count);
}

static int64_t combine(ls_work *work, uint64_t piece) {
    lsi_range range = lsi_piece_range(work, piece);
    lsi_peers staging;
    lsi_peer_staging(work, piece, &staging);
    return gather(work, &staging, range.begin, range.end - range.begin);
}

const lsi_collective lsi_all_gather = {.is_direct = lsi_inputs_shared,
                                       .direct = direct,
                                       .copy_in = lsi_copy_input,
                                       .combine = combine};
