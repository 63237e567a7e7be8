/* Where the buffers of peers are, and how work is cut. */
#include <string.h>

#include "comm/collective/collective.h"

static float *locate(const ls_work *work, int rank, uint64_t offset, const void *own) {
    if (rank == work->group->rank) return (float *)own;
    return (float *)(void *)(work->group->region->base + offset);
}

void lsi_peer_inputs(const ls_work *work, lsi_peers *peers) {
    for (int r = 0; r < work->group->n_ranks; r++)
        peers->ptr[r] = locate(work, r, lsi_work_call_of(work, r)->input, work->input);
}

void lsi_peer_outputs(const ls_work *work, lsi_peers *peers) {
    for (int r = 0; r < work->group->n_ranks; r++)
        peers->ptr[r] = locate(work, r, lsi_work_call_of(work, r)->output, work->output);
}

/* Pieces are numbered through all staged works of a group, so that two works in a row go on
 * alternating between the two blocks. */
void lsi_peer_staging(const ls_work *work, uint64_t piece, lsi_peers *peers) {
    const ls_group *group = work->group;
    for (int r = 0; r < group->n_ranks; r++)
        peers->ptr[r] =
            (float *)(void *)lsi_region_staging(group->region, r, group->n_pieces + piece);
}

float *lsi_own_staging(const ls_work *work, uint64_t piece) {
    const ls_group *group = work->group;
    return (float *)(void *)lsi_region_staging(group->region, group->rank, group->n_pieces + piece);
}

bool lsi_inputs_shared(const ls_work *work) {
    if (work->group->n_ranks == 1) return true;
    for (int r = 0; r < work->group->n_ranks; r++)
        if (lsi_work_call_of(work, r)->input == LSI_NOT_SHARED) return false;
    return true;
}

bool lsi_outputs_shared(const ls_work *work) {
    if (work->group->n_ranks == 1) return true;
    for (int r = 0; r < work->group->n_ranks; r++)
        if (lsi_work_call_of(work, r)->output == LSI_NOT_SHARED) return false;
    return true;
}

lsi_range lsi_slice(int64_t count, int rank, int n_ranks) {
    const int64_t line = LSI_LINE_BYTES / (int64_t)sizeof(float);
    int64_t lines = (count + line - 1) / line;
    int64_t begin = lines * rank / n_ranks * line, end = lines * (rank + 1) / n_ranks * line;
    return (lsi_range){begin < count ? begin : count, end < count ? end : count};
}

int64_t lsi_piece_elems(const ls_work *work) {
    bool all_parts = lsi_collective_of(work->call.kind)->holds_all_parts;
    int64_t elems = LSI_PIECE_BYTES / (int64_t)sizeof(float);
    return all_parts ? elems / work->group->n_ranks : elems;
}

lsi_range lsi_piece_range(const ls_work *work, uint64_t piece) {
    int64_t elems = lsi_piece_elems(work);
    int64_t begin = (int64_t)piece * elems, end = begin + elems;
    return (lsi_range){begin, end < work->call.count ? end : work->call.count};
}

void lsi_copy_input(ls_work *work, uint64_t piece) {
    lsi_range range = lsi_piece_range(work, piece);
    memcpy(lsi_own_staging(work, piece), (const float *)work->input + range.begin,
           (size_t)(range.end - range.begin) * sizeof(float));
}
