/* All-reduce, direct on shared buffers.
 *
 * Source: reduce-scatter and all-gather in one pass over shared memory; each rank owns a slice
 * and writes the sum into everybody's output (no source for the text; the bound of 2 S bytes per
 * rank is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009).
 * Restrictions: all buffers in the shared heap (or a group of one).
 *
 *   4 ranks, slices 0..3        rank 0 reads column 0 of all, writes column 0 of all
 *   rank 0  [0|1|2|3]
 *   rank 1  [0|1|2|3]           rank 1 the same with column 1, and so on
 *   rank 2  [0|1|2|3]
 *   rank 3  [0|1|2|3]
 *
 * Steps: 2 (all arrived; all done), whatever the number of ranks.
 * Bytes moved to or from other ranks, per rank: 2 S (n - 1) / n. Touched: 2 S.
 * Scratch: order depth + 1 blocks of 4 KiB. Cost: 2 barrier + 2 S beta + S gamma; any n.
 *
 * Private buffers: the same with pieces in staging blocks as the buffers. */
#include <string.h>

#include "comm/collective/collective.h"
#include "comm/sum.h"

static int64_t sum_range(const ls_work *work, const lsi_peers *from, const lsi_peers *to,
                         lsi_range range) {
    const ls_group *group = work->group;
    const float *input[LSI_MAX_RANKS];
    float *output[LSI_MAX_RANKS];
    for (int r = 0; r < group->n_ranks; r++) {
        input[r] = from->ptr[r] + range.begin;
        output[r] = to->ptr[r] + range.begin;
    }
    int64_t count = range.end - range.begin;
    lsi_sum_f32(&group->order, input, output, group->n_ranks, count, work->call.scale);
    return 2 * (group->n_ranks - 1) * count * (int64_t)sizeof(float);
}

static bool is_direct(const ls_work *work) {
    return lsi_inputs_shared(work) && lsi_outputs_shared(work);
}

static int64_t direct(ls_work *work) {
    lsi_peers inputs, outputs;
    lsi_peer_inputs(work, &inputs);
    lsi_peer_outputs(work, &outputs);
    const ls_group *group = work->group;
    return sum_range(work, &inputs, &outputs,
                     lsi_slice(work->call.count, group->rank, group->n_ranks));
}

static int64_t combine(ls_work *work, uint64_t piece) {
    lsi_range range = lsi_piece_range(work, piece);
    lsi_peers staging;
    lsi_peer_staging(work, piece, &staging);
    const ls_group *group = work->group;
    return sum_range(work, &staging, &staging,
                     lsi_slice(range.end - range.begin, group->rank, group->n_ranks));
}

static void copy_out(ls_work *work, uint64_t piece) {
    lsi_range range = lsi_piece_range(work, piece);
    memcpy((float *)work->output + range.begin, lsi_own_staging(work, piece),
           (size_t)(range.end - range.begin) * sizeof(float));
}

const lsi_collective lsi_all_reduce = {.is_direct = is_direct,
                                       .direct = direct,
                                       .copy_in = lsi_copy_input,
                                       .combine = combine,
                                       .copy_out = copy_out};
