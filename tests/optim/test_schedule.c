/* Learning-rate schedules and the clip factor, one row a case. */
#include "harness/harness.h"

#include <math.h>

#include <lockstep/optim.h>

typedef struct schedule_case {
    const char *name;
    ls_schedule schedule; /* peak, min, warm-up, total, kind */
    int64_t step;
    double expected;
} schedule_case;

static const ls_schedule cosine = {1.0, 0.1, 10, 110, LS_SCHEDULE_COSINE};
static const ls_schedule linear = {1.0, 0.1, 10, 110, LS_SCHEDULE_LINEAR};
static const ls_schedule constant = {1.0, 0.1, 10, 110, LS_SCHEDULE_CONSTANT};

static void check_cases(const schedule_case *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double found = ls_schedule_lr(&rows[i].schedule, rows[i].step);
        if (!(fabs(found - rows[i].expected) < 1e-12))
            fail_msg("%s, step %lld: %.15g, expected %.15g", rows[i].name, (long long)rows[i].step,
                     found, rows[i].expected);
    }
}

static void schedules_follow_their_formulas(void **state) {
    (void)state;
    const schedule_case rows[] = {
        {"first warm-up step", cosine, 0, 0.1},
        {"warm-up is linear", cosine, 4, 0.5},
        {"last warm-up step", cosine, 9, 1.0},
        {"decay begins at the peak", cosine, 10, 1.0},
        {"cosine at half way", cosine, 60, 0.55},
        {"cosine at a quarter", cosine, 35, 0.1 + 0.9 * 0.5 * (1.0 + sqrt(0.5))},
        {"cosine past the end", cosine, 110, 0.1},
        {"cosine far past the end", cosine, INT64_MAX, 0.1},
        {"linear at half way", linear, 60, 0.55},
        {"linear at a tenth", linear, 20, 0.91},
        {"linear at the last step", linear, 109, 0.109},
        {"linear warm-up", linear, 1, 0.2},
        {"constant warm-up", constant, 1, 0.2},
        {"constant after warm-up", constant, 50, 1.0},
        {"constant past the end", constant, 1000, 1.0},
        {"before the first step", cosine, -5, 0.1},
    };
    check_cases(rows, sizeof rows / sizeof rows[0]);
}

static void odd_lengths_have_values(void **state) {
    (void)state;
    const schedule_case rows[] = {
        {"no warm-up begins at the peak", {2.0, 0.0, 0, 5, LS_SCHEDULE_LINEAR}, 0, 2.0},
        {"no warm-up ends a tick before the least", {2.0, 0.0, 0, 5, LS_SCHEDULE_LINEAR}, 4, 0.4},
        {"T099: 1 to 0 over 100 steps", {1.0, 0.0, 0, 100, LS_SCHEDULE_LINEAR}, 50, 0.5},
        {"one step trains at the peak", {2.0, 0.0, 0, 1, LS_SCHEDULE_COSINE}, 0, 2.0},
        {"one step of warm-up", {2.0, 0.0, 1, 1, LS_SCHEDULE_COSINE}, 0, 2.0},
        {"two steps", {2.0, 1.0, 0, 2, LS_SCHEDULE_COSINE}, 1, 1.5},
        {"only warm-up", {2.0, 0.0, 4, 4, LS_SCHEDULE_COSINE}, 3, 2.0},
        {"warm-up longer than the run", {2.0, 0.0, 8, 4, LS_SCHEDULE_COSINE}, 3, 1.0},
        {"no steps at all", {2.0, 0.5, 0, 0, LS_SCHEDULE_COSINE}, 0, 0.5},
        {"unknown kind is constant", {2.0, 0.5, 0, 10, 77}, 9, 2.0},
    };
    check_cases(rows, sizeof rows / sizeof rows[0]);
}

static void decay_never_rises_and_stays_in_range(void **state) {
    (void)state;
    for (int kind = LS_SCHEDULE_COSINE; kind <= LS_SCHEDULE_LINEAR; kind++)
        for (int64_t warmup = 0; warmup < 7; warmup++) {
            ls_schedule s = {3e-4, 3e-5, warmup, 41, kind};
            double before = INFINITY;
            for (int64_t step = warmup; step < 50; step++) {
                double lr = ls_schedule_lr(&s, step);
                assert_true(lr <= before && lr <= s.peak_lr * (1 + 1e-15));
                assert_true(lr >= s.min_lr * (1 - 1e-15));
                before = lr;
            }
        }
}

static void clip_factor_limits_the_norm(void **state) {
    (void)state;
    const struct {
        double norm, max_norm, expected;
    } rows[] = {
        {0.5, 1.0, 1.0},  {1.0, 1.0, 1.0}, {4.0, 1.0, 0.25},     {4.0, 0.0, 1.0},
        {4.0, -1.0, 1.0}, {0.0, 1.0, 1.0}, {1e300, 1.0, 1e-300},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_true(ls_clip_factor(rows[i].norm, rows[i].max_norm) == rows[i].expected);
    assert_true(isnan(ls_clip_factor(NAN, 1.0)));
    assert_true(isnan(ls_clip_factor(8.0, NAN)));
    assert_true(isnan(ls_clip_factor(INFINITY, 1.0)));
    assert_true(isnan(ls_clip_factor(INFINITY, 0.0)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_follow_their_formulas),
        cmocka_unit_test(odd_lengths_have_values),
        cmocka_unit_test(decay_never_rises_and_stays_in_range),
        cmocka_unit_test(clip_factor_limits_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
