/* Summation orders without processes: shape, hash, refusal, and the sums they give. */
#include "harness/harness.h"

#include <string.h>

#include "comm/order.h"
#include "comm/reduce.h"

static void sum(const lsi_order *order, const float *const *input, float *const *output,
                int64_t count, double scale) {
    lsi_reduction reduction = {
        .order = order, .dtype = LS_DTYPE_F32, .op = LS_OP_SUM, .scale = scale};
    lsi_reduce(&reduction, (const void *const *)input, (void *const *)output, 1, count);
}

static void split_is_largest_power_of_two_below(void **state) {
    (void)state;
    const struct {
        int64_t n, split;
    } rows[] = {{2, 1}, {3, 2}, {4, 2},  {5, 4},   {6, 4},  {7, 4},
                {8, 4}, {9, 8}, {12, 8}, {64, 32}, {65, 64}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(lsi_order_split(rows[i].n), rows[i].split);
}

/* The tree written out the other way: recursion over ranges instead of an array of nodes. */
static float range_sum(const float *values, int64_t n) {
    if (n == 1) return values[0];
    int64_t split = lsi_order_split(n);
    float left = range_sum(values, split);
    return left + range_sum(values + split, n - split);
}

static void default_order_sums_like_recursion(void **state) {
    (void)state;
    for (int n = 1; n <= LSI_MAX_RANKS; n++) {
        float values[LSI_MAX_RANKS], result = 0;
        const float *input[LSI_MAX_RANKS];
        float *output = &result;
        for (int r = 0; r < n; r++) {
            values[r] = 1.0f / (float)(r * r + 3);
            input[r] = &values[r];
        }
        lsi_order order;
        lsi_order_default(&order, n);
        sum(&order, input, &output, 1, 0.25);
        assert_true(result == range_sum(values, n) * 0.25f);
    }
}

static void weighted_order_is_top_of_larger_tree(void **state) {
    (void)state;
    const struct {
        int n_ranks;
        int64_t weight[5];
    } rows[] = {{1, {7}},          {2, {4, 2}},          {2, {8, 1}},
                {3, {4, 4, 4}},    {3, {2, 1, 1}},       {3, {1, 1, 2}},
                {4, {1, 1, 1, 1}}, {5, {2, 2, 2, 2, 2}}, {5, {2, 2, 4, 2, 2}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        float leaf[64], partial[5], result = 0;
        const float *input[5];
        float *output = &result;
        int64_t n = 0;
        for (int r = 0; r < rows[i].n_ranks; r++) {
            for (int64_t j = 0; j < rows[i].weight[r]; j++, n++)
                leaf[n] = 1.0f / (float)(n * n + 3);
            partial[r] = range_sum(leaf + n - rows[i].weight[r], rows[i].weight[r]);
            input[r] = &partial[r];
        }
        lsi_order order;
        assert_ok(lsi_order_from_weights(&order, rows[i].n_ranks, rows[i].weight));
        sum(&order, input, &output, 1, 1.0);
        assert_true(result == range_sum(leaf, n));
    }
}

static void weights_that_cut_a_subtree_are_refused(void **state) {
    (void)state;
    lsi_order order;
    assert_fails(lsi_order_from_weights(&order, 2, (int64_t[]){3, 3}), LS_ERR_ARGUMENT, "subtree");
    assert_fails(lsi_order_from_weights(&order, 3, (int64_t[]){1, 2, 1}), LS_ERR_ARGUMENT,
                 "subtree");
    assert_fails(lsi_order_from_weights(&order, 2, (int64_t[]){4, 0}), LS_ERR_ARGUMENT, "rank 1");
}

static void impossible_weights_are_refused(void **state) {
    (void)state;
    lsi_order order;
    int64_t half = INT64_MAX / 2 + 1;
    assert_fails(lsi_order_from_weights(&order, 2, (int64_t[]){half, half}), LS_ERR_ARGUMENT,
                 "rank 0");
    assert_fails(lsi_order_from_weights(&order, 2, (int64_t[]){half, 1}), LS_ERR_ARGUMENT,
                 "rank 0");
    assert_fails(lsi_order_from_weights(&order, 0, &half), LS_ERR_ARGUMENT, "0 ranks");
    assert_fails(lsi_order_from_weights(&order, LSI_MAX_RANKS + 1, &half), LS_ERR_ARGUMENT,
                 "65 ranks");
    int64_t large = (int64_t)1 << 50;
    assert_ok(lsi_order_from_weights(&order, 2, (int64_t[]){large, large}));
    assert_ok(lsi_order_from_weights(&order, 2, (int64_t[]){large, 1}));
}

static void hashes_tell_orders_apart(void **state) {
    (void)state;
    lsi_order three, two_one_one, four;
    lsi_order_default(&three, 3);
    lsi_order_default(&four, 4);
    assert_ok(lsi_order_from_weights(&two_one_one, 3, (int64_t[]){2, 1, 1}));
    assert_true(three.hash != two_one_one.hash);
    assert_true(three.hash != four.hash);
}

static void sums_do_not_depend_on_ranges(void **state) {
    (void)state;
    enum { COUNT = 4099, RANKS = 5 };
    static float values[RANKS][COUNT], whole[COUNT], parts[COUNT];
    const float *input[RANKS];
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < COUNT; i++) values[r][i] = 1.0f / (float)(r * 31 + i + 1);
    lsi_order order;
    lsi_order_default(&order, RANKS);
    float *output = whole;
    for (int r = 0; r < RANKS; r++) input[r] = values[r];
    sum(&order, input, &output, COUNT, 1.0 / 3);
    for (int begin = 0, step = 1; begin < COUNT; begin += step, step = step * 3 % 1000 + 1) {
        int count = begin + step > COUNT ? COUNT - begin : step;
        for (int r = 0; r < RANKS; r++) input[r] = values[r] + begin;
        output = parts + begin;
        sum(&order, input, &output, count, 1.0 / 3);
    }
    assert_memory_equal(whole, parts, sizeof whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_is_largest_power_of_two_below),
        cmocka_unit_test(default_order_sums_like_recursion),
        cmocka_unit_test(weighted_order_is_top_of_larger_tree),
        cmocka_unit_test(weights_that_cut_a_subtree_are_refused),
        cmocka_unit_test(impossible_weights_are_refused),
        cmocka_unit_test(hashes_tell_orders_apart),
        cmocka_unit_test(sums_do_not_depend_on_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
