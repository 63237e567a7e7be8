/* What the files of this folder share: access to the buffers of peers and the cut into slices. */
#ifndef LSI_COMM_COLLECTIVE_H
#define LSI_COMM_COLLECTIVE_H

#include "comm/group.h"

extern const lsi_collective lsi_barrier, lsi_broadcast, lsi_all_reduce, lsi_reduce_scatter,
    lsi_all_gather;

/* Pointers to every rank's input or output, mapped here. Own buffers may be private. */
typedef struct lsi_peers {
    float *ptr[LSI_MAX_RANKS];
} lsi_peers;
void lsi_peer_inputs(const ls_work *work, lsi_peers *peers);
void lsi_peer_outputs(const ls_work *work, lsi_peers *peers);
/* The staging blocks of all ranks for a piece of a work. */
void lsi_peer_staging(const ls_work *work, uint64_t piece, lsi_peers *peers);
/* Own staging block for a piece of a work. */
float *lsi_own_staging(const ls_work *work, uint64_t piece);

/* Whether every rank's input (output) lies in the shared heap; a group of one needs none. */
bool lsi_inputs_shared(const ls_work *work);
bool lsi_outputs_shared(const ls_work *work);

/* Part [begin, end) of count elements that a rank reduces: equal parts, cut at cache lines so that
 * no line is written by two ranks; the last may be shorter or empty. */
typedef struct lsi_range {
    int64_t begin, end;
} lsi_range;
lsi_range lsi_slice(int64_t count, int rank, int n_ranks);
/* Elements [begin, end) of a work that belong to a piece. */
lsi_range lsi_piece_range(const ls_work *work, uint64_t piece);
/* copy_in of collectives whose blocks hold a stretch of the input as it is. */
void lsi_copy_input(ls_work *work, uint64_t piece);

#endif
