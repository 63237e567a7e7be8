/* What batch_norm asks of other ranks: sums over the rows of all of them (see tensor.h, [Note:
 * exchange]). Without an exchange both calls change nothing.
 *
 * Every rank gathers what all have and adds it up itself, in the order of the ranks, in double: so
 * all ranks have the same bits. */
#ifndef LSI_TENSOR_OP_BATCH_NORM_RANKS_H
#define LSI_TENSOR_OP_BATCH_NORM_RANKS_H

#include "tensor/tensor.h"

/* Of C channels: the number of rows, C sums, and C sums of squares about the rows' own mean. */
static inline int64_t lsi_moments_count(int64_t n_channels) {
    return 1 + 2 * n_channels;
}

/* moments of this rank's rows become those of all ranks' rows. */
LS_CHECKED ls_status lsi_moments_of_ranks(lsi_tape *tape, int64_t n_channels, double *moments);
/* sums become sums over ranks. */
LS_CHECKED ls_status lsi_sums_of_ranks(lsi_tape *tape, int64_t count, double *sums);

#endif
