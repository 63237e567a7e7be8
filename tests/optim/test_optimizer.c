/* The optimizer over a list of parameters: flags, unused ones, state, norm, bad inputs, lack of
 * memory. */
#include "harness/harness.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "optim/optimizer.h"

static const lsi_optimizer_opts usual = {0.9, 0.999, 1e-8, 0.1};

/* Four parameters: decayed, not decayed, frozen, empty. */
enum { N_PARAMS = 4 };

typedef struct fixture {
    float data[3][7], grad[3][7];
    ls_param params[N_PARAMS];
} fixture;

static void make(fixture *f) {
    static const char *const names[N_PARAMS] = {"weight", "bias", "frozen", "empty"};
    static const int64_t counts[N_PARAMS] = {7, 3, 5, 0};
    static const uint32_t flags[N_PARAMS] = {0, LS_PARAM_NO_DECAY, LS_PARAM_FROZEN, 0};
    for (int i = 0; i < N_PARAMS; i++) {
        f->params[i] = (ls_param){names[i], counts[i], LS_DTYPE_F32, flags[i], NULL, NULL};
        if (i == 3) continue;
        f->params[i].data = f->data[i];
        f->params[i].grad = f->grad[i];
        for (int k = 0; k < 7; k++) {
            f->data[i][k] = (float)(k + 1);
            f->grad[i][k] = (float)(k - 3);
        }
    }
}

static void step_honours_flags(void **state) {
    (void)state;
    fixture f, expected;
    make(&f);
    make(&expected);
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer));
    float m[2][7] = {{0}}, v[2][7] = {{0}};
    for (int64_t step = 1; step <= 3; step++) {
        ls_adamw_opts opts = {0.01, 0.9, 0.999, 1e-8, 0.1, 0.5, step};
        assert_ok(lsi_optimizer_step(optimizer, 0.01, 0.5));
        ls_adamw_update(expected.data[0], expected.grad[0], m[0], v[0], 7, &opts);
        opts.weight_decay = 0.0;
        ls_adamw_update(expected.data[1], expected.grad[1], m[1], v[1], 3, &opts);
        assert_int_equal(lsi_optimizer_n_steps(optimizer), step);
    }
    assert_memory_equal(f.data, expected.data, sizeof f.data);
    float *first, *second;
    lsi_optimizer_moments(optimizer, 1, &first, &second);
    assert_memory_equal(first, m[1], 3 * sizeof(float));
    assert_memory_equal(second, v[1], 3 * sizeof(float));
    lsi_optimizer_moments(optimizer, 2, &first, &second);
    assert_null(first);
    assert_null(second);
    lsi_optimizer_destroy(optimizer);
}

/* What a checkpoint does: carry moments and the count of steps over, and go on with the same bits.
 */
static void state_carried_over_continues_with_the_same_bits(void **state) {
    (void)state;
    fixture f, copy;
    make(&f);
    lsi_optimizer *optimizer, *resumed;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer));
    for (int i = 0; i < 4; i++) assert_ok(lsi_optimizer_step(optimizer, 0.01, 1.0));
    make(&copy);
    memcpy(copy.data, f.data, sizeof f.data);
    assert_ok(lsi_optimizer_create(copy.params, N_PARAMS, &usual, &resumed));
    lsi_optimizer_set_n_steps(resumed, lsi_optimizer_n_steps(optimizer));
    for (int i = 0; i < 2; i++) {
        float *from[2], *to[2];
        lsi_optimizer_moments(optimizer, i, &from[0], &from[1]);
        lsi_optimizer_moments(resumed, i, &to[0], &to[1]);
        for (int k = 0; k < 2; k++)
            memcpy(to[k], from[k], (size_t)f.params[i].count * sizeof(float));
    }
    assert_ok(lsi_optimizer_step(optimizer, 0.01, 1.0));
    assert_ok(lsi_optimizer_step(resumed, 0.01, 1.0));
    assert_memory_equal(f.data, copy.data, sizeof f.data);
    lsi_optimizer_destroy(resumed);
    lsi_optimizer_destroy(optimizer);
}

/* ---- parameters that some steps do not use ---- */

static const lsi_optimizer_opts skipping = {0.9, 0.999, 1e-8, 0.1, .skips_unused = true};

/* Which of the two parameters that are not frozen has a gradient in each step. */
static const bool uses[][2] = {{true, true},  {true, false}, {false, false},
                               {false, true}, {true, true},  {true, false}};
enum { N_USES = sizeof uses / sizeof uses[0] };

/* Each parameter goes its own way, as if the steps without it had never been. */
static void unused_parameters_are_left_alone(void **state) {
    (void)state;
    fixture f, expected;
    make(&f);
    make(&expected);
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &skipping, &optimizer));
    float m[2][7] = {{0}}, v[2][7] = {{0}}, *first, *second;
    int64_t n_updates[2] = {0};
    for (int step = 0; step < N_USES; step++) {
        for (int i = 0; i < 2; i++) {
            f.params[i].grad = uses[step][i] ? f.grad[i] : NULL;
            if (!uses[step][i]) continue;
            ls_adamw_opts opts = {0.01, 0.9, 0.999, 1e-8, i == 0 ? 0.1 : 0.0, 0.5, ++n_updates[i]};
            ls_adamw_update(expected.data[i], expected.grad[i], m[i], v[i], f.params[i].count,
                            &opts);
        }
        assert_ok(lsi_optimizer_step(optimizer, 0.01, 0.5));
        assert_int_equal(lsi_optimizer_n_steps(optimizer), step + 1);
        assert_memory_equal(f.data, expected.data, sizeof f.data);
        for (int i = 0; i < 2; i++) {
            size_t bytes = (size_t)f.params[i].count * sizeof(float);
            lsi_optimizer_moments(optimizer, i, &first, &second);
            assert_memory_equal(first, m[i], bytes);
            assert_memory_equal(second, v[i], bytes);
            assert_int_equal(lsi_optimizer_n_updates(optimizer, i), n_updates[i]);
        }
    }
    assert_int_equal(n_updates[0], 4);
    assert_int_equal(n_updates[1], 3);
    lsi_optimizer_destroy(optimizer);
}

static void all_parameters_unused_change_nothing_but_the_count_of_steps(void **state) {
    (void)state;
    fixture f, before;
    make(&f);
    make(&before);
    for (int i = 0; i < N_PARAMS; i++) f.params[i].grad = NULL;
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &skipping, &optimizer));
    assert_ok(lsi_optimizer_step(optimizer, 0.01, 1.0));
    assert_memory_equal(f.data, before.data, sizeof f.data);
    assert_int_equal(lsi_optimizer_n_steps(optimizer), 1);
    assert_int_equal(lsi_optimizer_n_updates(optimizer, 0), 0);
    assert_true(lsi_optimizer_global_norm(optimizer) == 0.0);
    lsi_optimizer_destroy(optimizer);
}

static void parameters_in_use_have_the_same_bits_with_and_without_skipping(void **state) {
    (void)state;
    fixture f[2];
    for (int k = 0; k < 2; k++) {
        lsi_optimizer *optimizer;
        make(&f[k]);
        assert_ok(lsi_optimizer_create(f[k].params, N_PARAMS, k ? &skipping : &usual, &optimizer));
        for (int step = 0; step < 3; step++) assert_ok(lsi_optimizer_step(optimizer, 0.01, 0.5));
        assert_int_equal(lsi_optimizer_n_updates(optimizer, 1), 3);
        lsi_optimizer_destroy(optimizer);
    }
    assert_memory_equal(f[0].data, f[1].data, sizeof f[0].data);
}

/* A checkpoint sets the steps first and the parameters that differ afterwards. */
static void counts_of_updates_can_be_set(void **state) {
    (void)state;
    fixture f, expected;
    make(&f);
    make(&expected);
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &skipping, &optimizer));
    lsi_optimizer_set_n_steps(optimizer, 9);
    assert_int_equal(lsi_optimizer_n_updates(optimizer, 0), 9);
    lsi_optimizer_set_n_updates(optimizer, 1, 4);
    assert_int_equal(lsi_optimizer_n_steps(optimizer), 9);
    assert_ok(lsi_optimizer_step(optimizer, 0.01, 1.0));
    float m[2][7] = {{0}}, v[2][7] = {{0}};
    for (int i = 0; i < 2; i++) {
        ls_adamw_opts opts = {0.01, 0.9, 0.999, 1e-8, i == 0 ? 0.1 : 0.0, 1.0, i == 0 ? 10 : 5};
        ls_adamw_update(expected.data[i], expected.grad[i], m[i], v[i], f.params[i].count, &opts);
    }
    assert_memory_equal(f.data, expected.data, sizeof f.data);
    lsi_optimizer_destroy(optimizer);
}

static void norm_leaves_out_frozen_parameters(void **state) {
    (void)state;
    fixture f;
    make(&f);
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer));
    /* 9+4+1+0+1+4+9 and 9+4+1 */
    assert_true(lsi_optimizer_global_norm(optimizer) == sqrt(42.0));
    f.params[1].grad = NULL;
    assert_true(lsi_optimizer_global_norm(optimizer) == sqrt(28.0));
    lsi_optimizer_destroy(optimizer);
}

static void bad_options_are_all_named(void **state) {
    (void)state;
    fixture f;
    make(&f);
    lsi_optimizer *optimizer = NULL;
    const struct {
        lsi_optimizer_opts opts;
        const char *text;
    } rows[] = {
        {{1.0, 0.9, 1e-8, 0.0}, "beta1 is 1, expected [0, 1)"},
        {{0.9, -0.1, 1e-8, 0.0}, "beta2 is -0.1, expected [0, 1)"},
        {{0.9, 0.9, 0.0, 0.0}, "epsilon is 0"},
        {{0.9, 0.9, NAN, 0.0}, "epsilon is nan"},
        {{0.9, 0.9, 1e-8, -1.0}, "weight_decay is -1"},
        {{0.9, 0.9, 1e-8, INFINITY}, "weight_decay is inf"},
        {{NAN, 2.0, -1.0, NAN}, "; beta2 is 2, expected [0, 1); epsilon is -1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(lsi_optimizer_create(f.params, N_PARAMS, &rows[i].opts, &optimizer),
                     LS_ERR_ARGUMENT, rows[i].text);
    assert_fails(lsi_optimizer_create(NULL, 2, &usual, &optimizer), LS_ERR_ARGUMENT, "2 param");
    assert_fails(lsi_optimizer_create(f.params, -1, &usual, &optimizer), LS_ERR_ARGUMENT, "-1");
    assert_null(optimizer);
}

static void bad_parameters_are_named(void **state) {
    (void)state;
    fixture f;
    lsi_optimizer *optimizer = NULL;
    make(&f);
    f.params[1].dtype = LS_DTYPE_F16;
    assert_fails(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer), LS_ERR_UNSUPPORTED,
                 "bias has type F16");
    make(&f);
    f.params[0].count = -3;
    assert_fails(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer), LS_ERR_ARGUMENT,
                 "weight has -3 elements");
    f.params[0].count = f.params[1].count = INT64_MAX / 2 + 1;
    assert_fails(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer), LS_ERR_ARGUMENT,
                 "bias have more than 2^63");
    f.params[0].count = INT64_MAX / 4;
    f.params[1].count = 1;
    assert_fails(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer), LS_ERR_MEMORY, "");
    f.params[0].count = INT64_MAX;
    assert_fails(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer), LS_ERR_ARGUMENT,
                 "weight");
    assert_null(optimizer);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void failed_step_changes_nothing(void **state) {
    (void)state;
    fixture f, before;
    make(&f);
    make(&before);
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer));
    f.params[1].grad = NULL;
    assert_fails(lsi_optimizer_step(optimizer, 0.1, 1.0), LS_ERR_STATE,
                 "parameter bias has no gradient");
    f.params[1].grad = f.grad[1];
    f.params[0].data = NULL;
    assert_fails(lsi_optimizer_step(optimizer, 0.1, 1.0), LS_ERR_STATE, "weight has no data");
    f.params[0].data = f.data[0];
    f.params[2].grad = NULL; /* frozen: nobody asks */
    assert_fails(lsi_optimizer_step(optimizer, NAN, 1.0), LS_ERR_NUMERIC, "lr nan");
    assert_fails(lsi_optimizer_step(optimizer, 0.1, NAN), LS_ERR_NUMERIC, "scale nan");
    assert_int_equal(lsi_optimizer_n_steps(optimizer), 0);
    assert_memory_equal(f.data, before.data, sizeof f.data);
    assert_ok(lsi_optimizer_step(optimizer, 0.1, 1.0));
    lsi_optimizer_destroy(optimizer);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    fixture f;
    make(&f);
    for (int64_t n = 1;; n++) {
        lsi_optimizer *optimizer = NULL;
        lsi_mem_fail_at(n);
        ls_status status = lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_true(failed ? optimizer == NULL : optimizer != NULL);
        lsi_optimizer_destroy(optimizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 20);
    }
}

static void moments_are_accounted_as_optimizer_memory(void **state) {
    (void)state;
    fixture f;
    make(&f);
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.params, N_PARAMS, &usual, &optimizer));
    /* 7 and 3 elements, each padded to 16, two moments */
    assert_int_equal(lsi_mem_now(LSI_MEM_OPTIMIZER), 2 * 2 * 16 * 4);
    lsi_optimizer_destroy(optimizer);
    assert_int_equal(lsi_mem_now(LSI_MEM_OPTIMIZER), 0);
    lsi_optimizer_destroy(NULL);
}

static void no_parameters_are_fine(void **state) {
    (void)state;
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(NULL, 0, &usual, &optimizer));
    assert_ok(lsi_optimizer_step(optimizer, 0.1, 1.0));
    assert_true(lsi_optimizer_global_norm(optimizer) == 0.0);
    lsi_optimizer_destroy(optimizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_honours_flags),
        cmocka_unit_test(state_carried_over_continues_with_the_same_bits),
        cmocka_unit_test(unused_parameters_are_left_alone),
        cmocka_unit_test(all_parameters_unused_change_nothing_but_the_count_of_steps),
        cmocka_unit_test(parameters_in_use_have_the_same_bits_with_and_without_skipping),
        cmocka_unit_test(counts_of_updates_can_be_set),
        cmocka_unit_test(norm_leaves_out_frozen_parameters),
        cmocka_unit_test(bad_options_are_all_named),
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(failed_step_changes_nothing),
        cmocka_unit_test(failed_allocations_leak_nothing),
        cmocka_unit_test(moments_are_accounted_as_optimizer_memory),
        cmocka_unit_test(no_parameters_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
