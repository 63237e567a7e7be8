/* The loss scaler: sequences of good and bad steps written out, bounds, bad fields, and a run that
 * finds its scale. */
#include "harness/harness.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <lockstep/optim.h>

/* ---- sequences ---- */

/* steps: '.' finite, 'x' not; scale, n_good and n_skipped after them. From scale 8 with a growth
 * interval of 3 and bounds 2 and 32. */
typedef struct sequence {
    const char *steps;
    double scale;
    int64_t n_good, n_skipped;
} sequence;

static const sequence sequences[] = {
    {"", 8, 0, 0},
    {"..", 8, 2, 0},
    {"...", 16, 0, 0},
    {"....", 16, 1, 0},
    {"......", 32, 0, 0},
    {".........", 32, 0, 0}, /* the upper bound; counting begins anew all the same */
    {"..........", 32, 1, 0},
    {"x", 4, 0, 1},
    {"xx", 2, 0, 2},
    {"xxx", 2, 0, 3}, /* the lower bound */
    {"..x", 4, 0, 1}, /* good steps must be in a row */
    {"..x..", 4, 2, 1},
    {"..x...", 8, 0, 1},
    {"...x", 8, 0, 1},
    {"xxxxx...", 4, 0, 5},
    {"x...x...x...", 8, 0, 3},
};

static void sequences_end_as_written(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++) {
        const sequence *row = &sequences[i];
        ls_loss_scaler scaler = {8, 2, 0.5, 3, 2, 32, 0, 0};
        assert_ok(ls_loss_scaler_check(&scaler));
        for (const char *step = row->steps; *step; step++) {
            int is_skipped = ls_loss_scaler_update(&scaler, *step == 'x');
            assert_int_equal(is_skipped, *step == 'x');
            assert_ok(ls_loss_scaler_check(&scaler));
        }
        if (scaler.scale == row->scale && scaler.n_good == row->n_good &&
            scaler.n_skipped == row->n_skipped)
            continue;
        fail_msg("'%s': scale %g, %d good, %d skipped; expected %g, %d, %d", row->steps,
                 scaler.scale, (int)scaler.n_good, (int)scaler.n_skipped, row->scale,
                 (int)row->n_good, (int)row->n_skipped);
    }
}

static void usual_numbers_are_those_of_pytorch(void **state) {
    (void)state;
    ls_loss_scaler scaler = LS_LOSS_SCALER_INIT;
    assert_ok(ls_loss_scaler_check(&scaler));
    assert_true(scaler.min_scale == (double)FLT_MIN);
    assert_true(2.0 * scaler.max_scale > (double)FLT_MAX && scaler.max_scale < (double)FLT_MAX);
    for (int step = 1; step < 2000; step++) assert_int_equal(ls_loss_scaler_update(&scaler, 0), 0);
    assert_true(scaler.scale == 65536.0);
    assert_int_equal(ls_loss_scaler_update(&scaler, 0), 0);
    assert_true(scaler.scale == 131072.0);
    assert_int_equal(ls_loss_scaler_update(&scaler, 7), 1);
    assert_true(scaler.scale == 65536.0);
}

/* Scaling is exact for every scale a run can have, and ends at the bounds instead of at zero or
 * infinity. */
static void scale_is_always_a_finite_power_of_two(void **state) {
    (void)state;
    ls_loss_scaler scaler = LS_LOSS_SCALER_INIT;
    scaler.growth_interval = 1;
    for (int step = 0; step < 600; step++) {
        int exponent;
        (void)ls_loss_scaler_update(&scaler, step < 300);
        assert_true(frexp(scaler.scale, &exponent) == 0.5);
        assert_true((double)(float)scaler.scale == scaler.scale && scaler.scale > 0.0);
    }
    assert_true(scaler.scale == scaler.max_scale);
    assert_int_equal(scaler.n_skipped, 300);
}

/* Gradients overflow from 2^11 on: the scale comes down to 2^10, and tries 2^11 again and again. */
static void run_finds_the_largest_scale_that_works(void **state) {
    (void)state;
    ls_loss_scaler scaler = LS_LOSS_SCALER_INIT;
    scaler.growth_interval = 10;
    for (int step = 0; step < 200; step++)
        (void)ls_loss_scaler_update(&scaler, scaler.scale >= 2048.0);
    /* 6 steps from 2^16 to 2^10, then rounds of 10 good steps and a bad one: 194 = 17 * 11 + 7 */
    assert_true(scaler.scale == 1024.0);
    assert_int_equal(scaler.n_skipped, 6 + 17);
    assert_int_equal(scaler.n_good, 7);
}

/* ---- bad fields ---- */

static void bad_fields_are_all_named(void **state) {
    (void)state;
    static const struct {
        ls_loss_scaler scaler;
        const char *text;
    } rows[] = {
        {{3, 2, 0.5, 3, 2, 32, 0, 0}, "scale is 3, expected a power of two"},
        {{1, 2, 0.5, 3, 2, 32, 0, 0}, "scale is 1"},
        {{64, 2, 0.5, 3, 2, 32, 0, 0}, "scale is 64"},
        {{NAN, 2, 0.5, 3, 2, 32, 0, 0}, "scale is nan"},
        {{8, 1.5, 0.5, 3, 2, 32, 0, 0}, "growth_factor is 1.5"},
        {{8, 0.5, 0.5, 3, 2, 32, 0, 0}, "growth_factor is 0.5"},
        {{8, 2, 1.0, 3, 2, 32, 0, 0}, "backoff_factor is 1"},
        {{8, 2, 0.0, 3, 2, 32, 0, 0}, "backoff_factor is 0"},
        {{8, 2, 0.5, 0, 2, 32, 0, 0}, "growth_interval is 0"},
        {{8, 2, 0.5, 3, 0, 32, 0, 0}, "min_scale is 0"},
        {{8, 2, 0.5, 3, 2, INFINITY, 0, 0}, "max_scale is inf"},
        {{8, 2, 0.5, 3, 8, 4, 0, 0}, "max_scale is 4, expected a power of two, min_scale at least"},
        {{8, 2, 0.5, 3, 2, 32, -1, -2}, "n_good is -1, expected 0 at least; n_skipped is -2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(ls_loss_scaler_check(&rows[i].scaler), LS_ERR_ARGUMENT, rows[i].text);
    const ls_loss_scaler zero = {0};
    assert_fails(ls_loss_scaler_check(&zero), LS_ERR_ARGUMENT, "min_scale is 0");
    assert_fails(ls_loss_scaler_check(&zero), LS_ERR_ARGUMENT, "growth_interval is 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_end_as_written),
        cmocka_unit_test(usual_numbers_are_those_of_pytorch),
        cmocka_unit_test(scale_is_always_a_finite_power_of_two),
        cmocka_unit_test(run_finds_the_largest_scale_that_works),
        cmocka_unit_test(bad_fields_are_all_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
