/* Sum of squares of a float32 range in double, in one fixed order.
 *
 * The range is cut into blocks of 4096 elements from its start. Lane j of 16 adds the squares of
 * elements j, j + 16, j + 32 … of a block in order (a short last block simply has fewer). The
 * lanes are added as a binary tree: j with j + 8, then j + 4, j + 2, j + 1. Block sums are added in
 * order.
 *
 * The square of a float32 is exact in double, so the only errors are those of the additions: for
 * n elements relatively less than (256 + 4 + n / 4096) 2^-53. No overflow: the largest float32
 * squared is 1.2e77. */
#include <lockstep/optim.h>

#include "optim/norm.h"
#include "optim/threads.h"

enum {
    N_LANES = 16,
    BATCH_BLOCKS = 1024, /* block sums held at a time: 8 KiB of stack */
};

static double add_lanes(double lanes[N_LANES]) {
    for (int half = N_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

static double block_sum(const float *values, int64_t count) {
    double lanes[N_LANES] = {0};
    int64_t n_whole = count - count % N_LANES;
    for (int64_t i = 0; i < n_whole; i += N_LANES)
        for (int j = 0; j < N_LANES; j++) {
            double value = (double)values[i + j];
            lanes[j] += value * value;
        }
    for (int64_t i = n_whole; i < count; i++) {
        double value = (double)values[i];
        lanes[i - n_whole] += value * value;
    }
    return add_lanes(lanes);
}

int64_t lsi_norm_n_blocks(int64_t count) {
    return count <= 0 ? 0 : (count - 1) / LSI_NORM_BLOCK_ELEMS + 1;
}

void lsi_norm_block_sums(const float *values, int64_t count, double *sums) {
    int64_t n_blocks = lsi_norm_n_blocks(count);
    LSI_OPTIM_PARALLEL_FOR(n_blocks)
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t start = block * LSI_NORM_BLOCK_ELEMS;
        int64_t left = count - start;
        sums[block] =
            block_sum(values + start, left < LSI_NORM_BLOCK_ELEMS ? left : LSI_NORM_BLOCK_ELEMS);
    }
}

double ls_sum_squares(const float *values, int64_t count) {
    double sums[BATCH_BLOCKS];
    double total = 0.0;
    int64_t batch_elems = (int64_t)BATCH_BLOCKS * LSI_NORM_BLOCK_ELEMS;
    for (int64_t start = 0; start < count; start += batch_elems) {
        int64_t n = count - start < batch_elems ? count - start : batch_elems;
        lsi_norm_block_sums(values + start, n, sums);
        for (int64_t block = 0; block < lsi_norm_n_blocks(n); block++) total += sums[block];
    }
    return total;
}
