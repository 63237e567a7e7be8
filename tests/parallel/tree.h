/* The promise about bits, said the other way: sums by recursion over ranges of micro-batches. The
 * library builds the same tree from a stack per rank and an array of nodes over the ranks. */
#ifndef TESTS_PARALLEL_TREE_H
#define TESTS_PARALLEL_TREE_H

#include <stdint.h>

#include "comm/order.h"

/* Values whose sums depend on the order of addition: signs and sizes vary. */
static inline float rough_value(int64_t a, int64_t b, int64_t c) {
    int64_t mixed = (a * 7919 + b * 104729 + c * 1299709) % 10007;
    float size = 1.0f / (float)(mixed + 3);
    return mixed % 3 == 0 ? -7.0f * size : size;
}

static inline float tree_sum(const float *values, int64_t n) {
    if (n == 1) return values[0];
    int64_t split = lsi_order_split(n);
    float left = tree_sum(values, split);
    return left + tree_sum(values + split, n - split);
}

static inline float linear_sum(const float *values, int64_t n) {
    float sum = values[0];
    for (int64_t i = 1; i < n; i++) sum += values[i];
    return sum;
}

#endif
