/* ls_sum_squares: exact cases, the documented order, and independence of threads. */
#include "harness/harness.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <lockstep/optim.h>

#include "optim/norm.h"
#include "optim/threads.h"

static const int64_t counts[] = {0,    1,    15,   16,   17,        4095,           4096,
                                 4097, 4111, 8192, 9973, 4096 * 37, 4096 * 1024 + 5};
enum { N_COUNTS = sizeof counts / sizeof counts[0], MAX_COUNT = 4096 * 1024 + 5 };

static float *make_values(void) {
    float *values = malloc(MAX_COUNT * sizeof *values);
    for (int64_t i = 0; i < MAX_COUNT; i++) values[i] = (float)sin(0.1 * (double)i) * 3.0f;
    return values;
}

static void small_integers_sum_exactly(void **state) {
    (void)state;
    float *values = malloc(MAX_COUNT * sizeof *values);
    for (int c = 0; c < N_COUNTS; c++) {
        int64_t expected = 0;
        for (int64_t i = 0; i < counts[c]; i++) {
            values[i] = (float)(i % 7 - 3);
            expected += (i % 7 - 3) * (i % 7 - 3);
        }
        assert_true(ls_sum_squares(values, counts[c]) == (double)expected);
    }
    free(values);
}

/* The order of the header, written out without any cleverness. */
static double in_documented_order(const float *values, int64_t count) {
    double total = 0.0;
    for (int64_t start = 0; start < count; start += 4096) {
        double lane[16] = {0};
        int64_t end = start + 4096 < count ? start + 4096 : count;
        for (int64_t i = start; i < end; i++)
            lane[(i - start) % 16] += (double)values[i] * (double)values[i];
        double eight[8], four[4];
        for (int j = 0; j < 8; j++) eight[j] = lane[j] + lane[j + 8];
        for (int j = 0; j < 4; j++) four[j] = eight[j] + eight[j + 4];
        total += (four[0] + four[2]) + (four[1] + four[3]);
    }
    return total;
}

static void order_is_the_documented_one(void **state) {
    (void)state;
    float *values = make_values();
    for (int threads = 1; threads <= 3; threads++) {
        lsi_optim_set_threads(threads);
        for (int c = 0; c < N_COUNTS; c++)
            assert_true(ls_sum_squares(values, counts[c]) ==
                        in_documented_order(values, counts[c]));
    }
    lsi_optim_set_threads(1);
    free(values);
}

static void result_is_near_long_double(void **state) {
    (void)state;
    float *values = make_values();
    long double expected = 0.0L;
    for (int64_t i = 0; i < MAX_COUNT; i++) expected += (long double)values[i] * values[i];
    double found = ls_sum_squares(values, MAX_COUNT);
    assert_true(fabs(found - (double)expected) < 1e-13 * (double)expected);
    free(values);
}

/* Shards cut at block borders: their block sums, one after the other, give the whole. */
static void block_sums_of_shards_add_up_to_the_same_bits(void **state) {
    (void)state;
    float *values = make_values();
    const int64_t count = 4096 * 37 + 11, cut = 4096 * 20;
    double sums[64];
    lsi_norm_block_sums(values, cut, sums);
    lsi_norm_block_sums(values + cut, count - cut, sums + lsi_norm_n_blocks(cut));
    double total = 0.0;
    assert_int_equal(lsi_norm_n_blocks(count), 38);
    for (int i = 0; i < 38; i++) total += sums[i];
    assert_true(total == ls_sum_squares(values, count));
    free(values);
}

static void extreme_values_are_kept(void **state) {
    (void)state;
    const float largest[] = {FLT_MAX, -FLT_MAX}, smallest[] = {0x1p-149f};
    const float infinite[] = {1.0f, INFINITY}, undefined[] = {1.0f, NAN, 2.0f};
    assert_true(ls_sum_squares(largest, 2) == 2.0 * (double)FLT_MAX * (double)FLT_MAX);
    assert_true(ls_sum_squares(smallest, 1) == 0x1p-298);
    assert_true(isinf(ls_sum_squares(infinite, 2)));
    assert_true(isnan(ls_sum_squares(undefined, 3)));
    assert_true(ls_sum_squares(NULL, 0) == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_integers_sum_exactly),
        cmocka_unit_test(order_is_the_documented_one),
        cmocka_unit_test(result_is_near_long_double),
        cmocka_unit_test(block_sums_of_shards_add_up_to_the_same_bits),
        cmocka_unit_test(extreme_values_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
