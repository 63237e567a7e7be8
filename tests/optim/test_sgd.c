/* SGD with momentum against steps by hand and closed forms, against its plain twin, and against
 * itself cut in other ways: ranges, threads and alignment must not change a bit. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/optim.h>

#include "optim/threads.h"

/* ---- by hand, all numbers exact ---- */

/* w = 8, m = 2, g = 4 * 0.5 + 0.25 * 8 = 4, lr = 0.5, momentum 0.5: m = 0.5 * 2 + 4 = 5;
 * w = 8 - 0.5 * 5; Nesterov: 8 - 0.5 * (4 + 0.5 * 5); without momentum 8 - 0.5 * 4. */
static void one_step_by_hand_equals(void **state) {
    (void)state;
    static const struct {
        int has_momentum, nesterov;
        float weight, momentum;
    } rows[] = {{1, 0, 5.5f, 5.0f}, {1, 1, 4.75f, 5.0f}, {0, 0, 6.0f, 2.0f}, {0, 1, 6.0f, 2.0f}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ls_sgd_opts opts = {.lr = 0.5,
                            .momentum = 0.5,
                            .weight_decay = 0.25,
                            .grad_scale = 0.5,
                            .nesterov = rows[i].nesterov};
        float w = 8.0f, g = 4.0f, m = 2.0f;
        ls_sgd_update(&w, &g, rows[i].has_momentum ? &m : NULL, 1, &opts);
        assert_true(w == rows[i].weight);
        assert_true(m == rows[i].momentum);
    }
}

/* g = 1 in each of n steps from m = 0 with momentum 1/2 and lr 1: m after step t is 2 - 2^(1 - t),
 * and w the sum of these, -(2 n - 2 + 2^(1 - n)). Exact in float32 up to n = 12. */
static void constant_gradients_follow_the_closed_form(void **state) {
    (void)state;
    const ls_sgd_opts opts = {.lr = 1.0, .momentum = 0.5, .grad_scale = 1.0};
    float w = 0.0f, m = 0.0f;
    const float g = 1.0f;
    for (int n = 1; n <= 12; n++) {
        ls_sgd_update(&w, &g, &m, 1, &opts);
        assert_true(m == (float)(2.0 - ldexp(1.0, 1 - n)));
        assert_true(w == (float)-(2.0 * n - 2.0 + ldexp(1.0, 1 - n)));
    }
}

/* Decay alone is a geometric series: w (1 - lr * weight_decay)^n, here (1/2)^n. */
static void decay_alone_shrinks_the_weight(void **state) {
    (void)state;
    const ls_sgd_opts opts = {.lr = 0.5, .weight_decay = 1.0, .grad_scale = 1.0};
    float w = 64.0f;
    const float g = 0.0f;
    for (int n = 1; n <= 20; n++) {
        ls_sgd_update(&w, &g, NULL, 1, &opts);
        assert_true(w == (float)ldexp(64.0, -n));
    }
}

static void momentum_of_zero_is_plain_descent(void **state) {
    (void)state;
    const ls_sgd_opts opts = {.lr = 0.3, .weight_decay = 0.1, .grad_scale = 0.7};
    float with[9], without[9], g[9], m[9] = {0};
    for (int i = 0; i < 9; i++) {
        with[i] = without[i] = 1.0f + 0.1f * (float)i;
        g[i] = sinf((float)i);
    }
    for (int step = 0; step < 3; step++) {
        ls_sgd_update(with, g, m, 9, &opts);
        ls_sgd_update(without, g, NULL, 9, &opts);
        assert_memory_equal(with, without, sizeof with);
    }
}

static void count_zero_touches_nothing(void **state) {
    (void)state;
    const ls_sgd_opts opts = {.lr = 1.0, .momentum = 0.5, .grad_scale = 1.0};
    float w = 3.0f;
    ls_sgd_update(&w, &w, &w, 0, &opts);
    ls_sgd_update(NULL, NULL, NULL, 0, &opts);
    assert_true(w == 3.0f);
}

/* ---- many elements ---- */

enum { N = 70001 };

typedef struct arrays {
    float w[N], g[N], m[N];
} arrays;

static void fill(arrays *a) {
    for (int i = 0; i < N; i++) {
        a->w[i] = (float)sin(0.37 * i);
        a->g[i] = (float)sin(0.37 * i + 1.7) * (i % 17 ? 1.0f : 1e-6f);
        a->m[i] = (float)sin(0.37 * i + 3.4);
    }
}

/* The formula, an element at a time, without any cleverness: the same bits. */
static void twin(arrays *a, int has_momentum, const ls_sgd_opts *o) {
    float scale = (float)o->grad_scale, decay = (float)o->weight_decay;
    float momentum = (float)o->momentum, lr = (float)o->lr;
    for (int i = 0; i < N; i++) {
        volatile float scaled = scale * a->g[i], shrink = decay * a->w[i];
        volatile float g = scaled + shrink, step = g;
        if (has_momentum) {
            volatile float kept = momentum * a->m[i];
            a->m[i] = kept + g;
            volatile float ahead = momentum * a->m[i];
            step = o->nesterov ? g + ahead : a->m[i];
        }
        volatile float moved = lr * step;
        a->w[i] = a->w[i] - moved;
    }
}

static const ls_sgd_opts variants[] = {
    {0.1, 0.9, 0.01, 0.7, 0}, {0.1, 0.9, 0.01, 0.7, 1}, {0.1, 0.9, 0.0, 1.0, 0}};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

static void plain_twin_has_the_same_bits(void **state) {
    (void)state;
    arrays *found = malloc(sizeof *found), *expected = malloc(sizeof *expected);
    for (int v = 0; v < N_VARIANTS; v++) {
        for (int has_momentum = 0; has_momentum < 2; has_momentum++) {
            fill(found);
            fill(expected);
            for (int step = 0; step < 2; step++) {
                ls_sgd_update(found->w, found->g, has_momentum ? found->m : NULL, N, &variants[v]);
                twin(expected, has_momentum, &variants[v]);
            }
            assert_memory_equal(found, expected, sizeof *found);
        }
    }
    free(found);
    free(expected);
}

static void update_in_cuts(arrays *a, int cut, const ls_sgd_opts *opts) {
    for (int at = 0; at < N; at += cut) {
        int n = N - at < cut ? N - at : cut;
        ls_sgd_update(a->w + at, a->g + at, a->m + at, n, opts);
    }
}

static void cut_ranges_and_threads_give_the_same_bits(void **state) {
    (void)state;
    static const int cuts[] = {1, 3, 16, 4097, 16384, 16385, N};
    arrays *whole = malloc(sizeof *whole), *cut = malloc(sizeof *cut);
    for (int v = 0; v < N_VARIANTS; v++) {
        fill(whole);
        ls_sgd_update(whole->w, whole->g, whole->m, N, &variants[v]);
        for (int threads = 1; threads <= 3; threads++) {
            lsi_optim_set_threads(threads);
            for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
                if (cuts[c] < 16 && threads > 1) continue;
                fill(cut);
                update_in_cuts(cut, cuts[c], &variants[v]);
                assert_memory_equal(cut, whole, sizeof *whole);
            }
        }
    }
    lsi_optim_set_threads(1);
    free(whole);
    free(cut);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_step_by_hand_equals),
        cmocka_unit_test(constant_gradients_follow_the_closed_form),
        cmocka_unit_test(decay_alone_shrinks_the_weight),
        cmocka_unit_test(momentum_of_zero_is_plain_descent),
        cmocka_unit_test(count_zero_touches_nothing),
        cmocka_unit_test(plain_twin_has_the_same_bits),
        cmocka_unit_test(cut_ranges_and_threads_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
