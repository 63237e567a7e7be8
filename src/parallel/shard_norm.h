/* The norm of gradients of which each rank has its shard, with the bits of the norm of the whole.
 *
 * ls_sum_squares adds blocks of 4096 elements from a parameter's start, each in one fixed order, so
 * a sum does not depend on shards that cut at block borders. Ours cut anywhere: a block that
 * reaches over a cut is summed by the rank that has its first element, to which the others give
 * theirs (a fragment, less than a block for each slice). Then all gather all block sums and add
 * them in the order of the parameters.
 *
 *     slices  | rank 0          | rank 1             |
 *     blocks  [ 0    ][ 1    ][ 2    ][ 3    ][ 4    ]
 *     sums      0       0       0       1       1          by this rank
 *     fragment                   ^^^^ of rank 1, for rank 0 */
#ifndef LSI_PARALLEL_SHARD_NORM_H
#define LSI_PARALLEL_SHARD_NORM_H

#include <lockstep/group.h>

#include "parallel/shard.h"

typedef struct lsi_fragment {
    int param;
    int64_t begin, count; /* elements of the parameter */
    int64_t at;           /* elements of fragments, in rank order, before it */
} lsi_fragment;

typedef struct lsi_shard_norm {
    int n_ranks, rank, n_params, n_fragments;
    const ls_param *params;     /* borrowed */
    const lsi_shard_plan *plan; /* of this rank, borrowed */
    lsi_fragment *fragments;    /* of all ranks */
    int64_t *fragment_counts;   /* elements, per rank */
    int64_t *block_counts;      /* blocks that a rank sums */
    int64_t *first_block;       /* per parameter: blocks before its first one */
    int64_t *place_of;          /* per block: where its sum lies in `sums` */
    float *elems;               /* of all fragments */
    double *sums;               /* of all blocks, in rank order */
    int64_t my_first_elem, my_first_sum, n_blocks;
} lsi_shard_norm;

/* Local; the same on all ranks but for rank. Gradients are F32. */
LS_CHECKED ls_status lsi_shard_norm_create(const lsi_bucket_plan *buckets, const ls_param *params,
                                           int n_params, const lsi_shard_plan *plan,
                                           lsi_shard_norm *norm);
void lsi_shard_norm_fini(lsi_shard_norm *norm);
/* Collective, blocks: two all-gathers. grad_of: the gradient of a piece of this rank; NULL: its
 * parameter has none, on all ranks. */
LS_CHECKED ls_status lsi_shard_norm_get(lsi_shard_norm *norm, ls_group *group,
                                        const float *(*grad_of)(const void *context,
                                                                const lsi_piece *piece),
                                        const void *context, double *value);

#endif
