/* Columns at right angles: random, nearly dependent, dependent, zero and not finite ones. */
#include "harness/harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/rng.h"
#include "parallel/hook_columns.h"

enum { MOST_COLUMNS = 8 };

static const double EPSILON = 0x1p-24;

static double exact_dot(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * y[i];
    return sum;
}

static float *random_columns(int n_columns, int64_t n) {
    lsi_rng_stream stream = lsi_rng_open(3, LSI_RNG_TEST, (uint32_t)n_columns, (uint32_t)n);
    float *columns = calloc((size_t)(n_columns * n) + 1, sizeof *columns);
    lsi_rng_normal(&stream, 1, columns, n_columns * n);
    return columns;
}

/* Lengths are rounded element by element, so squares of length by 2 EPSILON and a little. */
static void expect_orthonormal(const float *columns, int n_columns, int64_t n) {
    for (int c = 0; c < n_columns; c++)
        for (int k = 0; k <= c; k++) {
            double found = exact_dot(columns + c * n, columns + k * n, n);
            if (fabs(found - (c == k)) > 8 * EPSILON)
                fail_msg("%d columns of %lld: %d times %d is %.9g", n_columns, (long long)n, c, k,
                         found);
        }
}

static void random_columns_become_orthonormal(void **state) {
    (void)state;
    static const int64_t lengths[] = {8, 15, 16, 17, 255, 1001};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int n_columns = 1; n_columns <= MOST_COLUMNS; n_columns++) {
            float *columns = random_columns(n_columns, lengths[i]);
            lsi_columns_orthonormalize(columns, n_columns, lengths[i]);
            expect_orthonormal(columns, n_columns, lengths[i]);
            free(columns);
        }
}

/* Column c is column 0 and 2^-c of its own. */
static void nearly_dependent_columns_become_orthonormal(void **state) {
    (void)state;
    const int64_t n = 100;
    float *columns = random_columns(MOST_COLUMNS, n);
    for (int c = 1; c < MOST_COLUMNS; c++)
        for (int64_t i = 0; i < n; i++)
            columns[c * n + i] = columns[i] + ldexpf(columns[c * n + i], -c);
    lsi_columns_orthonormalize(columns, MOST_COLUMNS, n);
    expect_orthonormal(columns, MOST_COLUMNS, n);
    free(columns);
}

static void dependent_columns_become_zero(void **state) {
    (void)state;
    const int64_t n = 50;
    float *columns = random_columns(4, n);
    for (int64_t i = 0; i < n; i++) {
        columns[1 * n + i] = -3 * columns[i];
        columns[3 * n + i] = columns[i] + 0.7f * columns[2 * n + i];
    }
    lsi_columns_orthonormalize(columns, 4, n);
    for (int c = 0; c < 4; c++)
        assert_true(fabs(exact_dot(columns + c * n, columns + c * n, n) - (c % 2 == 0)) < 1e-6);
    for (int64_t i = 0; i < n; i++) assert_true(columns[n + i] == 0 && columns[3 * n + i] == 0);
    free(columns);
}

static void zeros_stay_and_what_is_not_finite_spreads_to_the_right(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const int64_t n = 20;
    for (int b = 0; b < 3; b++) {
        float *columns = random_columns(4, n);
        lsi_columns_fill(columns, 0, n);
        columns[2 * n + 7] = bad[b];
        lsi_columns_orthonormalize(columns, 4, n);
        for (int64_t i = 0; i < n; i++) {
            assert_true(columns[i] == 0);
            assert_true(isfinite(columns[n + i]));
            assert_true(isnan(columns[2 * n + i]) && isnan(columns[3 * n + i]));
        }
        free(columns);
    }
}

/* Whole numbers: every order of additions gives this. */
static void products_and_sums_of_whole_numbers_are_exact(void **state) {
    (void)state;
    float x[100], y[100];
    for (int n = 0; n <= 100; n++) {
        double expected = 0;
        for (int i = 0; i < n; i++) {
            x[i] = (float)(i % 13 - 6);
            y[i] = (float)(i % 7 - 2);
            expected += (double)x[i] * y[i];
        }
        assert_true(lsi_columns_dot(x, y, n) == expected);
        lsi_columns_add_times(y, x, -3, n);
        for (int i = 0; i < n; i++) assert_true(y[i] == (float)(i % 7 - 2) - 3 * x[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_columns_become_orthonormal),
        cmocka_unit_test(nearly_dependent_columns_become_orthonormal),
        cmocka_unit_test(dependent_columns_become_zero),
        cmocka_unit_test(zeros_stay_and_what_is_not_finite_spreads_to_the_right),
        cmocka_unit_test(products_and_sums_of_whole_numbers_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
