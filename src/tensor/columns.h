/* Sums over rows: gradients of everything that is added to or multiplied with each row (biases,
 * norm weights).
 *
 * [Note: sums over rows] Columns are independent, so they are what threads share; within a column
 * rows are added in blocks of LSI_ROW_BLOCK, then the blocks in order. The order is fixed by the
 * row number alone, and the error grows with the block and the number of blocks, not with the
 * number of rows. */
#ifndef LSI_TENSOR_COLUMNS_H
#define LSI_TENSOR_COLUMNS_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/dtype.h>

enum { LSI_ROW_BLOCK = 64, LSI_COLUMN_TILE = 256 };

/* grad (columns) = or += sum over rows of dy (rows, columns), which is of type dtype. */
void lsi_add_columns(const void *dy, ls_dtype dtype, int64_t rows, int64_t columns, float *grad,
                     bool first);

#endif
