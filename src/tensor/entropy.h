/* The cross-entropy of one row of logits: loss = log(sum_v e^x[v]) - x[target].
 *
 * Sums in float32 lanes after subtracting the largest logit, the logarithm in double. A target of
 * -1 means that the row does not count. A row with NaN gives NaN. */
#ifndef LSI_TENSOR_ENTROPY_H
#define LSI_TENSOR_ENTROPY_H

#include <math.h>
#include <string.h>

#include "tensor/math.h"

static inline double lsi_entropy_of(float at_target, float largest, float sum) {
    return log((double)sum) + (double)largest - (double)at_target;
}

/* The loss; x becomes its gradient, softmax(x) - (v == target). */
static inline double lsi_entropy_row(float *x, int64_t n, int32_t target) {
    if (target < 0) {
        memset(x, 0, (size_t)n * sizeof *x);
        return 0.0;
    }
    float largest = lsi_row_max(x, n), at_target = x[target];
    float sum = lsi_row_exp(x, n, largest);
    float scale = 1.0f / sum;
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
    x[target] -= 1.0f;
    return lsi_entropy_of(at_target, largest, sum);
}

/* The loss alone; x stays. */
static inline double lsi_entropy_row_alone(const float *x, int64_t n, int32_t target) {
    if (target < 0) return 0.0;
    float largest = lsi_row_max(x, n);
    return lsi_entropy_of(x[target], largest, lsi_row_exp_sum(x, n, largest));
}

#endif
