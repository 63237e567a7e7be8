/* Pairwise accumulation of a rank's micro-batches: a stack of partial sums, as in binary counting.
 *
 * After micro-batch i the stack holds one partial sum for every bit that is set in i + 1, larger
 * ones below. Adding a micro-batch joins partial sums of equal size, which is the default tree of
 * comm/order.h; what is left after the last is joined from the top down, which gives the tree's
 * uneven right side. Example, 6 micro-batches:
 *
 *     0        [1]           2 3 4 5    [4 1], then the last one: 1 + 1 = 2, 4 + 2 = 6
 *     1        [2]           the same as ((0 1) (2 3)) (4 5)
 *
 * The newest micro-batch is always in the bucket memory itself; the stack keeps copies. Buckets
 * have types of their own (F32, F64), so they say how the block is to be added. */
#ifndef LSI_PARALLEL_ACCUMULATE_H
#define LSI_PARALLEL_ACCUMULATE_H

#include <stdint.h>

#include "parallel/bucket.h"

enum { LSI_ACCUMULATE_LEVELS = 48 };

typedef struct lsi_accumulator {
    int64_t bytes; /* of a gradient block */
    int n_levels;  /* blocks allocated */
    int depth;     /* partial sums on the stack */
    unsigned char *level[LSI_ACCUMULATE_LEVELS];
    int64_t size[LSI_ACCUMULATE_LEVELS]; /* micro-batches in each */
} lsi_accumulator;

void lsi_accumulator_init(lsi_accumulator *a, int64_t bytes);
void lsi_accumulator_fini(lsi_accumulator *a);
void lsi_accumulator_clear(lsi_accumulator *a);
/* Takes the gradients of a micro-batch that is not the step's last, `block`, which is scratch
 * after. */
LS_CHECKED ls_status lsi_accumulator_push(lsi_accumulator *a, void *block,
                                          const lsi_bucket *buckets, int n_buckets);
/* The step's last micro-batch, one bucket of it: becomes the sum of all. May be called for buckets
 * in any order; the stack stays as it is. */
void lsi_accumulator_join(const lsi_accumulator *a, void *block, const lsi_bucket *bucket);

#endif
