/* The counter against the tree, for every number of parts: partial sums and what is left of them.
 */
#include "harness/harness.h"

#include <string.h>

#include "base/mem.h"
#include "parallel/counter.h"
#include "tree.h"

enum { N_ELEMS = 37, MOST_PARTS = 70 };

static float part_of(int64_t number, int64_t e) {
    return rough_value(number, 3, e);
}

/* Parts [first, first + n) in the default tree. */
static float tree_of_parts(int64_t first, int64_t n, int64_t e) {
    if (n == 1) return part_of(first, e);
    int64_t left = 1;
    while (2 * left < n) left *= 2;
    return tree_of_parts(first, left, e) + tree_of_parts(first + left, n - left, e);
}

/* The parts of elements [begin, end), one by one. */
static void add_range(lsi_counter *c, int64_t n, int64_t begin, int64_t end, float *sum) {
    for (int64_t k = 0; k < n; k++) {
        for (int64_t e = begin; e < end; e++) sum[e] = part_of(k, e);
        if (k + 1 < n)
            lsi_counter_add(c, k, sum + begin, begin, end - begin);
        else
            lsi_counter_join(c, k, sum + begin, begin, end - begin);
    }
}

static void sums_are_those_of_the_tree(void **state) {
    (void)state;
    for (int64_t n = 1; n <= MOST_PARTS; n++) {
        lsi_counter c;
        float sum[N_ELEMS];
        lsi_counter_init(&c, N_ELEMS);
        assert_ok(lsi_counter_reserve(&c, n - 1));
        add_range(&c, n, 20, N_ELEMS, sum); /* ranges in any order, and one of nothing */
        add_range(&c, n, 7, 7, sum);
        add_range(&c, n, 0, 20, sum);
        for (int64_t e = 0; e < N_ELEMS; e++) {
            float expected = tree_of_parts(0, n, e);
            assert_memory_equal(&sum[e], &expected, sizeof expected);
        }
        lsi_counter_fini(&c);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void levels_are_no_more_than_needed(void **state) {
    (void)state;
    const struct {
        int64_t n_parts;
        int n_levels;
    } rows[] = {{0, 0}, {1, 1}, {2, 1}, {3, 2}, {6, 2}, {7, 3}, {14, 3}, {15, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_counter c;
        lsi_counter_init(&c, N_ELEMS);
        assert_ok(lsi_counter_reserve(&c, rows[i].n_parts));
        assert_int_equal(c.n_levels, rows[i].n_levels);
        lsi_counter_fini(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_tree),
        cmocka_unit_test(levels_are_no_more_than_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
