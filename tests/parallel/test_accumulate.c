/* Pushing and joining micro-batches against the recursion: same bits for every number of them,
 * whatever the ranges and their order; memory that runs out leaves nothing. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/accumulate.h"
#include "tree.h"

enum { MAX_MICRO = 70, COUNT = 131 };

static float leaf(int64_t micro, int64_t i) {
    return rough_value(micro, i, 5);
}

static lsi_bucket bucket_at(int64_t begin, int64_t count) {
    return (lsi_bucket){
        .offset_bytes = begin * (int64_t)sizeof(float), .count = count, .dtype = LS_DTYPE_F32};
}

static const lsi_bucket whole = {.count = COUNT, .dtype = LS_DTYPE_F32};

static void fill(float *gradient, int64_t micro) {
    for (int64_t i = 0; i < COUNT; i++) gradient[i] = leaf(micro, i);
}

static void expect_tree(const float *gradient, int64_t n_micro, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        float leaves[MAX_MICRO];
        for (int64_t m = 0; m < n_micro; m++) leaves[m] = leaf(m, i);
        if (gradient[i] != tree_sum(leaves, n_micro))
            fail_msg("%d micro-batches, element %d: other bits than the tree", (int)n_micro,
                     (int)i);
    }
}

/* All but the last of n micro-batches pushed, the last one in `gradient`. */
static void push_all_but_last(lsi_accumulator *a, float *gradient, int64_t n_micro) {
    for (int64_t m = 0; m < n_micro; m++) {
        fill(gradient, m);
        if (m < n_micro - 1) assert_ok(lsi_accumulator_push(a, gradient, &whole, 1));
    }
}

static void sums_have_the_bits_of_the_tree(void **state) {
    (void)state;
    lsi_accumulator a;
    float gradient[COUNT];
    lsi_accumulator_init(&a, COUNT * (int64_t)sizeof(float));
    for (int64_t n = 1; n <= MAX_MICRO; n++) {
        lsi_accumulator_clear(&a);
        push_all_but_last(&a, gradient, n);
        lsi_accumulator_join(&a, gradient, &whole);
        expect_tree(gradient, n, 0, COUNT);
    }
    assert_true(a.n_levels <= 7); /* log2(70) + 1 */
    lsi_accumulator_fini(&a);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* Ranges are joined as buckets become ready: each once, in any order, also empty ones. */
static void ranges_may_be_joined_in_any_order(void **state) {
    (void)state;
    static const int64_t ranges[][2] = {{100, 31}, {0, 1}, {131, 0}, {40, 60}, {1, 39}, {0, 0}};
    lsi_accumulator a;
    float gradient[COUNT];
    lsi_accumulator_init(&a, COUNT * (int64_t)sizeof(float));
    for (int64_t n = 1; n <= MAX_MICRO; n += 3) {
        lsi_accumulator_clear(&a);
        push_all_but_last(&a, gradient, n);
        for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
            int64_t begin = ranges[r][0], end = begin + ranges[r][1];
            float before[COUNT];
            memcpy(before, gradient, sizeof before);
            lsi_bucket bucket = bucket_at(begin, end - begin);
            lsi_accumulator_join(&a, gradient, &bucket);
            expect_tree(gradient, n, begin, end);
            memcpy(before + begin, gradient + begin, (size_t)(end - begin) * sizeof(float));
            assert_memory_equal(before, gradient, sizeof before);
        }
        expect_tree(gradient, n, 0, COUNT);
    }
    lsi_accumulator_fini(&a);
}

static void nothing_to_add_is_fine(void **state) {
    (void)state;
    lsi_accumulator a;
    float gradient[1] = {3};
    lsi_accumulator_init(&a, 0);
    const lsi_bucket empty = bucket_at(0, 0);
    for (int i = 0; i < 5; i++) assert_ok(lsi_accumulator_push(&a, gradient, &empty, 1));
    lsi_accumulator_join(&a, gradient, &empty);
    assert_true(gradient[0] == 3);
    lsi_accumulator_fini(&a);
    lsi_accumulator_fini(&a); /* an empty one may be ended again */
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* F32 and F64 side by side: each is added in its own type. */
static void types_are_added_apart(void **state) {
    (void)state;
    enum { N = 16, MICRO = 7 };
    struct {
        float narrow[N];
        double wide[N];
    } block;
    const lsi_bucket buckets[] = {
        {.count = N, .dtype = LS_DTYPE_F32},
        {.offset_bytes = (int64_t)sizeof block.narrow, .count = N, .dtype = LS_DTYPE_F64}};
    double sum = 0;
    lsi_accumulator a;
    lsi_accumulator_init(&a, (int64_t)sizeof block);
    for (int m = 0; m < MICRO; m++) {
        double value = ldexp(1, -10 * m); /* the sum has 61 bits: neither type holds all of it */
        for (int i = 0; i < N; i++) {
            block.narrow[i] = (float)value;
            block.wide[i] = value;
        }
        if (m < MICRO - 1) assert_ok(lsi_accumulator_push(&a, &block, buckets, 2));
        if (m < 6) sum += value;
    }
    for (int b = 0; b < 2; b++) lsi_accumulator_join(&a, &block, &buckets[b]);
    for (int i = 0; i < N; i++) {
        assert_true(block.narrow[i] == (float)(1 + ldexp(1, -10) + ldexp(1, -20)));
        assert_true(block.wide[i] == sum);
    }
    lsi_accumulator_fini(&a);
}

static void failed_allocations_leave_a_usable_accumulator(void **state) {
    (void)state;
    for (int64_t fail_at = 1; fail_at <= 3; fail_at++) {
        lsi_accumulator a;
        float gradient[COUNT];
        int n_failed = 0;
        lsi_accumulator_init(&a, COUNT * (int64_t)sizeof(float));
        lsi_mem_fail_at(fail_at);
        for (int64_t m = 0; m < 8; m++) {
            fill(gradient, m);
            if (lsi_accumulator_push(&a, gradient, &whole, 1) == LS_OK) continue;
            assert_string_not_equal(ls_last_message(), "");
            n_failed++;
            break;
        }
        lsi_mem_fail_at(0);
        assert_int_equal(n_failed, 1);
        lsi_accumulator_clear(&a);
        push_all_but_last(&a, gradient, 8);
        lsi_accumulator_join(&a, gradient, &whole);
        expect_tree(gradient, 8, 0, COUNT);
        lsi_accumulator_fini(&a);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_bits_of_the_tree),
        cmocka_unit_test(ranges_may_be_joined_in_any_order),
        cmocka_unit_test(nothing_to_add_is_fine),
        cmocka_unit_test(types_are_added_apart),
        cmocka_unit_test(failed_allocations_leave_a_usable_accumulator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
