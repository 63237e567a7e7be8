/* Which rank owns which elements: the plan of sharded strategies, made without memory or processes.
 *
 * Each bucket is cut into one slice a rank, by its elements without the padding between parameters,
 * so that ranks own equally many (the last ones less where the number does not divide) even of a
 * model of a few scalars. A slice may begin and end inside of a parameter; it is a contiguous range
 * of the bucket, padding included, and for a rank a list of pieces of parameters. Optimizer states
 * of a rank lie in the order of its pieces, without gaps.
 *
 *     bucket   w0 w1 w2 w3 w4 .. .. ..  b0 b1 .. .. .. .. .. ..      (a line has 8 places here)
 *     3 ranks  [-- 0 --][-- 1 ---------------][-- 2 -----------]     3, 3 and 1 elements
 *
 * Slices of large buckets are whole cache lines, so no two ranks write to the same one. */
#ifndef LSI_PARALLEL_SHARD_H
#define LSI_PARALLEL_SHARD_H

#include "parallel/bucket.h"

/* Elements [begin, begin + count) of a parameter. */
typedef struct lsi_piece {
    int param;
    int64_t begin, count;
    int64_t state; /* elements of the rank's states before it */
} lsi_piece;

typedef struct lsi_shard_plan {
    int n_ranks, rank, n_buckets; /* n_buckets: of values, lsi_bucket_plan.n_held */
    int64_t *cut;      /* n_buckets * (n_ranks + 1): where slices begin, elements of the bucket */
    int64_t *counts;   /* n_buckets * n_ranks: their lengths, padding included */
    lsi_piece *pieces; /* of this rank, bucket by bucket */
    int n_pieces;      /* of parameters that are trained */
    int n_held_pieces; /* with those of frozen ones, behind them */
    int64_t n_states;  /* elements that this rank owns and trains, */
    int64_t n_held; /* … and with the frozen ones, which have lower halves and no other states */
} lsi_shard_plan;

LS_CHECKED ls_status lsi_shard_plan_create(const lsi_bucket_plan *buckets, const ls_param *params,
                                           int n_ranks, int rank, lsi_shard_plan *plan);
void lsi_shard_plan_fini(lsi_shard_plan *plan);

/* Where rank's slice of a bucket begins; of n_ranks: where the last one ends. */
static inline int64_t lsi_shard_cut(const lsi_shard_plan *plan, int bucket, int rank) {
    return plan->cut[(int64_t)bucket * (plan->n_ranks + 1) + rank];
}
/* Lengths of a bucket's slices, n_ranks of them. */
static inline const int64_t *lsi_shard_counts(const lsi_shard_plan *plan, int bucket) {
    return plan->counts + (int64_t)bucket * plan->n_ranks;
}

#endif
