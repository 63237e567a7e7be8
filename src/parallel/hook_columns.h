/* Arithmetic of thin matrices, which are stored by column. Sums have a written order, in lanes, so
 * bits do not depend on the width of vectors. */
#ifndef LSI_PARALLEL_HOOK_COLUMNS_H
#define LSI_PARALLEL_HOOK_COLUMNS_H

#include <stdint.h>

void lsi_columns_fill(float *x, float value, int64_t n);
/* In float32: lane l of 16 adds the products l, l + 16, …; then lanes are added as a tree. */
float lsi_columns_dot(const float *x, const float *y, int64_t n);
/* y += a x */
void lsi_columns_add_times(float *restrict y, const float *restrict x, float a, int64_t n);
/* To length 1; zeros if it is not longer than `least`, NaN if it is not finite. */
void lsi_columns_normalize(float *x, int64_t n, double least);
/* n_columns columns of n elements become orthonormal, the first keeps its direction. One that
 * depends on those before it becomes zero; one that is not finite makes itself and those after it
 * NaN. */
void lsi_columns_orthonormalize(float *columns, int n_columns, int64_t n);

#endif
