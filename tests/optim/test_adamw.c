/* AdamW against steps computed by hand, against the same formula in double, and against itself cut
 * in other ways: ranges, threads and alignment must not change a bit. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "optim/threads.h"

static void assert_near(double found, double expected, double bound) {
    if (fabs(found - expected) <= bound) return;
    fail_msg("found %.9g, expected %.9g within %.3g", found, expected, bound);
}

static const ls_adamw_opts usual = {
    .lr = 0.1,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .epsilon = 1e-8,
    .weight_decay = 0.0,
    .grad_scale = 1.0,
    .step = 1,
};

/* ---- by hand ---- */

/* First step from zero moments: m / (1 - beta1) = g and sqrt(v / (1 - beta2)) = |g|, so the weight
 * moves by lr against the sign of g, whatever its size. */
static void first_step_moves_by_lr_against_the_sign(void **state) {
    (void)state;
    const float grads[] = {1.0f, -2.0f, 0.001f, -1000.0f};
    for (int i = 0; i < 4; i++) {
        float w = 1.0f, m = 0.0f, v = 0.0f;
        ls_adamw_update(&w, &grads[i], &m, &v, 1, &usual);
        assert_near(w, grads[i] > 0 ? 0.9 : 1.1, 2e-6);
        assert_near(m, 0.1 * grads[i], fabs(grads[i]) * 1e-6);
        assert_near(v, 0.001 * grads[i] * grads[i], grads[i] * grads[i] * 1e-6);
    }
}

/* beta1 = 0.5, beta2 = 0.75, g = 2 then 4, w = 1, lr = 0.5, decay 0.1, epsilon 1:
 * step 1: m = 1, v = 1, m^ = 2, v^ = 4, w = 1 * 0.95 - 0.5 * 2 / 3 = 0.6166667
 * step 2: m = 2.5, v = 4.75, m^ = 10/3, v^ = 4.75 / 0.4375 = 10.857143, root 3.2950179
 *         w = 0.6166667 * 0.95 - 0.5 * 3.3333333 / 4.2950179 = 0.1977844 */
static void two_steps_by_hand_equal(void **state) {
    (void)state;
    ls_adamw_opts opts = {0.5, 0.5, 0.75, 1.0, 0.1, 1.0, 1};
    float w = 1.0f, m = 0.0f, v = 0.0f, g = 2.0f;
    ls_adamw_update(&w, &g, &m, &v, 1, &opts);
    assert_near(w, 0.61666667, 1e-6);
    g = 4.0f;
    opts.step = 2;
    ls_adamw_update(&w, &g, &m, &v, 1, &opts);
    assert_near(m, 2.5, 0.0);
    assert_near(v, 4.75, 0.0);
    assert_near(w, 0.6166666667 * 0.95 - 0.5 * (10.0 / 3.0) / 4.2950178803, 1e-6);
}

static void decay_alone_shrinks_the_weight(void **state) {
    (void)state;
    ls_adamw_opts opts = usual;
    opts.weight_decay = 0.5;
    float w = 8.0f, m = 0.0f, v = 0.0f, g = 0.0f;
    ls_adamw_update(&w, &g, &m, &v, 1, &opts);
    assert_near(w, 8.0f * 0.95f, 0.0);
    assert_near(m, 0.0, 0.0);
}

static void gradient_scale_equals_scaled_gradients(void **state) {
    (void)state;
    float g[8], scaled[8], a[3][8], b[3][8];
    for (int i = 0; i < 8; i++) {
        g[i] = (float)(i - 3);
        scaled[i] = 0.25f * g[i];
        for (int k = 0; k < 3; k++) a[k][i] = b[k][i] = k == 0 ? 1.0f : 0.0f;
    }
    ls_adamw_opts opts = usual;
    ls_adamw_update(b[0], scaled, b[1], b[2], 8, &opts);
    opts.grad_scale = 0.25;
    ls_adamw_update(a[0], g, a[1], a[2], 8, &opts);
    assert_memory_equal(a, b, sizeof a);
}

static void count_zero_touches_nothing(void **state) {
    (void)state;
    float w = 3.0f;
    ls_adamw_update(&w, &w, &w, &w, 0, &usual);
    ls_adamw_update(NULL, NULL, NULL, NULL, 0, &usual);
    assert_near(w, 3.0f, 0.0);
}

/* ---- PyTorch ---- */

/* torch 2.13.0, torch.optim.AdamW on float64: w = [1, -2, 0.5, 3], three steps with gradients
 * g_t[i] = cos(1 + i + 10 t), lr 0.01, betas (0.9, 0.95), eps 1e-8, weight_decay 0.1. */
static void three_steps_equal_pytorch(void **state) {
    (void)state;
    static const double expected[] = {0.991808660296, -2.005167315350, 0.485003275507,
                                      2.974321007991};
    ls_adamw_opts opts = {0.01, 0.9, 0.95, 1e-8, 0.1, 1.0, 1};
    float w[] = {1.0f, -2.0f, 0.5f, 3.0f}, m[4] = {0}, v[4] = {0}, g[4];
    for (opts.step = 1; opts.step <= 3; opts.step++) {
        for (int i = 0; i < 4; i++) g[i] = (float)cos(1.0 + i + 10.0 * (double)opts.step);
        ls_adamw_update(w, g, m, v, 4, &opts);
    }
    for (int i = 0; i < 4; i++) assert_near(w[i], expected[i], 1e-6);
}

/* ---- many elements ---- */

enum { N = 70001 };

typedef struct arrays {
    float w[N], g[N], m[N], v[N];
} arrays;

static float wave(int i, int which) {
    return (float)sin(0.37 * i + 1.7 * which);
}

static void fill(arrays *a) {
    for (int i = 0; i < N; i++) {
        a->w[i] = wave(i, 0);
        a->g[i] = wave(i, 1) * (i % 17 ? 1.0f : 1e-6f);
        a->m[i] = 0.1f * wave(i, 2);
        a->v[i] = 0.01f * wave(i, 3) * wave(i, 3);
    }
}

static void results_stay_near_the_formula_in_double(void **state) {
    (void)state;
    arrays *a = malloc(sizeof *a), *before = malloc(sizeof *before);
    ls_adamw_opts o = {3e-4, 0.9, 0.95, 1e-8, 0.1, 0.5, 7};
    fill(a);
    fill(before);
    ls_adamw_update(a->w, a->g, a->m, a->v, N, &o);
    double c1 = 1.0 - pow(o.beta1, 7.0), c2 = 1.0 - pow(o.beta2, 7.0);
    for (int i = 0; i < N; i++) {
        double g = 0.5 * (double)before->g[i];
        double m = 0.9 * (double)before->m[i] + 0.1 * g;
        double v = 0.95 * (double)before->v[i] + 0.05 * g * g;
        double step = o.lr * (m / c1) / (sqrt(v / c2) + o.epsilon);
        double w = (double)before->w[i] * (1.0 - o.lr * o.weight_decay) - step;
        /* m may cancel: its error is that of its terms; w is rounded a few times */
        double m_bound = 2e-7 * (fabs(0.9 * (double)before->m[i]) + fabs(0.1 * g));
        assert_near(a->m[i], m, m_bound);
        assert_near(a->v[i], v, 5e-7 * v);
        double w_bound = 3e-7 * fabs(w) + 1e-6 * fabs(step) +
                         2.0 * o.lr / c1 * m_bound / (sqrt(v / c2) + o.epsilon) + 1e-12;
        assert_near(a->w[i], w, w_bound);
    }
    free(a);
    free(before);
}

static void cut_ranges_and_threads_give_the_same_bits(void **state) {
    (void)state;
    static const int cuts[] = {1, 3, 16, 4097, 16384, 16385, N};
    arrays *whole = malloc(sizeof *whole), *cut = malloc(sizeof *cut);
    ls_adamw_opts o = {3e-4, 0.9, 0.95, 1e-8, 0.1, 0.7, 3};
    fill(whole);
    ls_adamw_update(whole->w, whole->g, whole->m, whole->v, N, &o);
    for (int threads = 1; threads <= 3; threads++) {
        lsi_optim_set_threads(threads);
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            if (cuts[c] < 16 && threads > 1) continue;
            fill(cut);
            for (int at = 0; at < N; at += cuts[c]) {
                int n = N - at < cuts[c] ? N - at : cuts[c];
                ls_adamw_update(cut->w + at, cut->g + at, cut->m + at, cut->v + at, n, &o);
            }
            assert_memory_equal(cut, whole, sizeof *whole);
        }
    }
    lsi_optim_set_threads(1);
    free(whole);
    free(cut);
}

/* Cut at an odd place, over several pieces and ranges. */
static void halves_follow_float32_values_to_the_bit(void **state) {
    (void)state;
    enum { STEPS = 20, CUT = 4097 };
    static uint16_t upper[N], lower[N];
    static float joined[N];
    static arrays wide, split;
    fill(&wide), fill(&split);
    ls_bf16_split(split.w, N, upper, lower);
    ls_adamw_opts opts = usual;
    opts.lr = 1e-3, opts.weight_decay = 0.1;
    for (opts.step = 1; opts.step <= STEPS; opts.step++) {
        ls_adamw_update(wide.w, wide.g, wide.m, wide.v, N, &opts);
        ls_adamw_update_bf16(upper, lower, split.g, split.m, split.v, CUT, &opts);
        ls_adamw_update_bf16(upper + CUT, lower + CUT, split.g + CUT, split.m + CUT, split.v + CUT,
                             N - CUT, &opts);
        ls_bf16_join(upper, lower, N, joined);
        assert_memory_equal(joined, wide.w, sizeof joined);
        assert_memory_equal(split.m, wide.m, sizeof joined);
        assert_memory_equal(split.v, wide.v, sizeof joined);
        for (int i = 0; i < N; i++) assert_int_equal(upper[i], lsi_upper_half(wide.w[i]));
    }
}

static void thread_count_below_one_means_one(void **state) {
    (void)state;
    lsi_optim_set_threads(-4);
    assert_int_equal(lsi_optim_threads(), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_step_moves_by_lr_against_the_sign),
        cmocka_unit_test(two_steps_by_hand_equal),
        cmocka_unit_test(decay_alone_shrinks_the_weight),
        cmocka_unit_test(gradient_scale_equals_scaled_gradients),
        cmocka_unit_test(count_zero_touches_nothing),
        cmocka_unit_test(three_steps_equal_pytorch),
        cmocka_unit_test(results_stay_near_the_formula_in_double),
        cmocka_unit_test(cut_ranges_and_threads_give_the_same_bits),
        cmocka_unit_test(halves_follow_float32_values_to_the_bit),
        cmocka_unit_test(thread_count_below_one_means_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
