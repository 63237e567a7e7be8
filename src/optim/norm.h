/* Block sums behind ls_sum_squares, for norms of sharded gradients. */
#ifndef LSI_OPTIM_NORM_H
#define LSI_OPTIM_NORM_H

#include <stdint.h>

enum { LSI_NORM_BLOCK_ELEMS = 4096 };

/* Blocks of a range of count elements, the last one possibly short. */
int64_t lsi_norm_n_blocks(int64_t count);
/* Writes the sum of squares of each block. Adding a parameter's block sums one after the other, in
 * order, from 0.0, is ls_sum_squares of that parameter. So ranks that hold a parameter cut at block
 * borders exchange block sums (not sums of their shards) and get the bits of the whole. */
void lsi_norm_block_sums(const float *values, int64_t count, double *sums);

#endif
