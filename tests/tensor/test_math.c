/* The arithmetic of the kernels: exponential against libm over all of its range, and row
 * reductions of every length around the number of lanes. */
#include <math.h>
#include <string.h>

#include "harness/harness.h"
#include "tensor/math.h"

/* Distance in units of the last place of the exact value rounded to float32. */
static double error_in_ulps(float found, double exact) {
    float rounded = (float)exact;
    float next = nextafterf(fabsf(rounded), INFINITY);
    double unit = (double)next - fabs((double)rounded);
    return fabs((double)found - exact) / unit;
}

/* Every 1009th float32 up to 110, of both signs. */
static void exp_is_within_one_unit(void **state) {
    (void)state;
    double worst = 0.0;
    float at = 0.0f;
    for (uint32_t bits = 0; bits < lsi_bits_of(110.0f); bits += 1009) {
        for (int sign = 0; sign < 2; sign++) {
            float x = lsi_float_of(bits | (uint32_t)sign << 31);
            double exact = exp((double)x);
            if (exact > 3.4028235e38) {
                assert_true(isinf(lsi_expf(x)));
                continue;
            }
            double error = error_in_ulps(lsi_expf(x), exact);
            if (error > worst) worst = error, at = x;
        }
    }
    if (worst > 1.0) fail_msg("error of %.3f units at %.9g", worst, (double)at);
}

/* Every 1009th float32 up to 125, of both signs. */
static void power_of_two_is_within_two_units_and_clamps(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits <= lsi_bits_of(125.0f); bits += 1009) {
        for (int sign = 0; sign < 2; sign++) {
            float x = lsi_float_of(bits | (uint32_t)sign << 31);
            double error = error_in_ulps(lsi_exp2f_bounded(x), exp2((double)x));
            if (error > 2.0) fail_msg("error of %.3f units at %.9g", error, (double)x);
        }
    }
    for (int n = -125; n <= 125; n++) assert_true(lsi_exp2f_bounded((float)n) == ldexpf(1.0f, n));
    assert_true(lsi_exp2f_bounded(1e30f) == 0x1p125f);
    assert_true(lsi_exp2f_bounded(INFINITY) == 0x1p125f);
    assert_true(lsi_exp2f_bounded(-INFINITY) == 0x1p-125f);
    assert_true(isnan(lsi_exp2f_bounded(NAN)));
    assert_true(isnan(lsi_exp2f_bounded(lsi_float_of(0x7FC00001u))));
}

static void extremes_of_exp_are_exact(void **state) {
    (void)state;
    static const float in[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e38f, -1e38f, 88.8f, -104.5f};
    static const float out[] = {1.0f, 1.0f, INFINITY, 0.0f, INFINITY, 0.0f, INFINITY, 0.0f};
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++) assert_true(lsi_expf(in[i]) == out[i]);
    assert_true(isnan(lsi_expf(NAN)));
    assert_true(isnan(lsi_expf(-NAN)));
    assert_true(lsi_expf(-103.0f) > 0.0f); /* subnormal */
}

enum { N_MAX = 100 };

/* x[i] = i mod 7 - 3: sums are exact in any order. */
static void row_sums_equal_closed_forms(void **state) {
    (void)state;
    float x[N_MAX], y[N_MAX];
    for (int n = 0; n <= N_MAX; n++) {
        float sum = 0.0f, squares = 0.0f, dot = 0.0f, largest = -INFINITY;
        for (int i = 0; i < n; i++) {
            x[i] = (float)(i % 7 - 3);
            y[i] = (float)(i % 5);
            sum += x[i];
            squares += (x[i] - 2.0f) * (x[i] - 2.0f);
            dot += x[i] * y[i];
            largest = fmaxf(largest, x[i]);
        }
        assert_true(lsi_row_sum(x, n) == sum);
        assert_true(lsi_row_squares(x, n, 2.0f) == squares);
        assert_true(lsi_row_dot(x, y, n) == dot);
        assert_true(lsi_row_max(x, n) == largest);
    }
}

static void largest_is_found_anywhere(void **state) {
    (void)state;
    for (int n = 1; n <= N_MAX; n++) {
        for (int at = 0; at < n; at++) {
            float x[N_MAX];
            for (int i = 0; i < n; i++) x[i] = -100.0f - (float)i;
            x[at] = -1.0f;
            assert_true(lsi_row_max(x, n) == -1.0f);
            x[at] = NAN;
            assert_true(n == 1 || lsi_row_max(x, n) <= -100.0f);
        }
    }
}

static void row_exp_gives_elements_and_their_sum(void **state) {
    (void)state;
    for (int n = 0; n <= N_MAX; n++) {
        float x[N_MAX], e[N_MAX];
        double sum = 0.0;
        for (int i = 0; i < n; i++) {
            x[i] = e[i] = (float)(i % 9) - 6.0f;
            sum += exp((double)x[i] - 2.0);
        }
        float found = lsi_row_exp(e, n, 2.0f);
        assert_true(lsi_row_exp_sum(x, n, 2.0f) == found);
        assert_true(fabs((double)found - sum) <= 1e-6 * sum);
        for (int i = 0; i < n; i++) assert_true(e[i] == lsi_expf(x[i] - 2.0f));
    }
}

static void row_exp2_gives_elements_and_their_sum(void **state) {
    (void)state;
    for (int n = 0; n <= N_MAX; n++) {
        float x[N_MAX], e[N_MAX];
        double sum = 0.0;
        for (int i = 0; i < n; i++) {
            x[i] = e[i] = i % 10 == 9 ? -INFINITY : (float)(i % 9) - 6.0f;
            sum += exp2(0.5 * (double)x[i] - 2.0);
        }
        float found = lsi_row_exp2(e, n, 0.5f, 2.0f);
        assert_true(fabs((double)found - sum) <= 1e-6 * sum);
        for (int i = 0; i < n; i++) assert_true(e[i] == lsi_exp2f_bounded(0.5f * x[i] - 2.0f));
    }
}

static void first_contribution_ignores_what_was_there(void **state) {
    (void)state;
    float at = NAN;
    lsi_contribute(&at, 2.0f, true);
    assert_true(at == 2.0f);
    lsi_contribute(&at, 0.5f, false);
    assert_true(at == 2.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_one_unit),
        cmocka_unit_test(power_of_two_is_within_two_units_and_clamps),
        cmocka_unit_test(extremes_of_exp_are_exact),
        cmocka_unit_test(row_sums_equal_closed_forms),
        cmocka_unit_test(largest_is_found_anywhere),
        cmocka_unit_test(row_exp_gives_elements_and_their_sum),
        cmocka_unit_test(row_exp2_gives_elements_and_their_sum),
        cmocka_unit_test(first_contribution_ignores_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
