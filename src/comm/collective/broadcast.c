/* Broadcast, direct from a shared buffer of the root.
 *
 * Source: plain copies from the root's mapping.
 * Restrictions: the root's buffer in the shared heap; the others' may be private.
 *
 *   4 ranks, root 1: ranks 0, 2 and 3 copy from rank 1.
 *
 * Steps: 2 (all arrived; all done). Bytes from other ranks: S for each but the root.
 * Cost: 2 barrier + S beta (the root's memory is read n - 1 times, mostly from cache).
 *
 * Private root buffer: each piece is copied into the root's block, then by the others from there.
 */
#include <string.h>

#include "comm/collective/collective.h"

static bool is_direct(const ls_work *work) {
    return work->group->n_ranks == 1 ||
           lsi_work_call_of(work, work->call.root)->output != LSI_NOT_SHARED;
}

static bool is_root(const ls_work *work) {
    return work->group->rank == work->call.root;
}

static int64_t receive(const ls_work *work, const float *from, lsi_range range) {
    if (is_root(work)) return 0;
    size_t bytes = (size_t)(range.end - range.begin) * sizeof(float);
    memcpy((float *)work->output + range.begin, from, bytes);
    return (int64_t)bytes;
}

static int64_t direct(ls_work *work) {
    lsi_peers outputs;
    lsi_peer_outputs(work, &outputs);
    return receive(work, outputs.ptr[work->call.root], (lsi_range){0, work->call.count});
}

static void copy_in(ls_work *work, uint64_t piece) {
    if (is_root(work)) lsi_copy_input(work, piece);
}

static int64_t combine(ls_work *work, uint64_t piece) {
    lsi_peers staging;
    lsi_peer_staging(work, piece, &staging);
    return receive(work, staging.ptr[work->call.root], lsi_piece_range(work, piece));
}

const lsi_collective lsi_broadcast = {
    .is_direct = is_direct, .direct = direct, .copy_in = copy_in, .combine = combine};
