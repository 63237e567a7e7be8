/* The kernel of every summing collective: one pass over a range of all ranks' inputs.
 *
 * [Note: bits of a sum] Element i of the result is the value of the order's tree at element i,
 * times the scale, whatever the range, block size or vector width: additions of one element do not
 * depend on its neighbours. The file is compiled without contraction. */
#ifndef LSI_COMM_SUM_H
#define LSI_COMM_SUM_H

#include <stdint.h>

#include "comm/order.h"

/* output[j][i] = scale * tree(input[0][i], …) for i in [0, count) and every j < n_outputs. Outputs
 * may be the inputs themselves, not shifted copies of them. scale is rounded to float32. */
void lsi_sum_f32(const lsi_order *order, const float *const *input, float *const *output,
                 int n_outputs, int64_t count, double scale);

#endif
