/* What sums over ranks and micro-batches are divided by: every LS_AVERAGE_…, weights of all kinds,
 * windows that are not full, and weights that come late and hold nobody up. */
#include "small.h"

#include <lockstep/optim.h>

enum { MAX_RANKS = 3, MAX_MICRO = 3 };

static const spec scalar[] = {{"w", 1, 0, 0}};

static ls_status open_scalar(small *s, ls_group *group, int average, int reproducible,
                             ls_ddp **ddp) {
    ls_ddp_opts opts = {
        .struct_size = sizeof opts, .average = average, .reproducible = reproducible};
    small_init(s, scalar, 1);
    return ls_ddp_create(group, s->params, 1, &opts, ddp);
}

/* ---- values ---- */

typedef struct average_row {
    const char *name;
    int n_ranks, average;
    double scale; /* given to begin_step */
    int n_micro[MAX_RANKS];
    double grads[MAX_RANKS][MAX_MICRO], weights[MAX_RANKS][MAX_MICRO];
    double expected;
} average_row;

static const average_row average_rows[] = {
    {"T012", 2, LS_AVERAGE_WEIGHTS, 0, {2, 2}, {{4, 3}, {10, 2}}, {{1, 3}, {4, 2}}, 1.9},
    {"T012, mean of means", 2, LS_AVERAGE_MEAN, 0, {2, 2}, {{4, 1}, {2.5, 1}}, {{0}}, 2.125},
    {"mean", 2, LS_AVERAGE_MEAN, 0, {2, 2}, {{4, 3}, {10, 2}}, {{0}}, 4.75},
    {"ranks", 2, LS_AVERAGE_RANKS, 0, {2, 2}, {{4, 3}, {10, 2}}, {{0}}, 9.5},
    {"sum", 2, LS_AVERAGE_SUM, 0, {2, 2}, {{4, 3}, {10, 2}}, {{0}}, 19},
    {"ranks, of unequal windows", 2, LS_AVERAGE_RANKS, 0, {1, 3}, {{4}, {10, 2, 1}}, {{0}}, 8.5},
    {"sum, of unequal windows", 2, LS_AVERAGE_SUM, 0, {3, 1}, {{4, 3, 1}, {10}}, {{0}}, 18},
    {"weights, of unequal windows",
     2,
     LS_AVERAGE_WEIGHTS,
     0,
     {1, 3},
     {{4}, {10, 2, 1}},
     {{2}, {4, 1, 1}},
     2.125},
    {"weights that are no whole numbers",
     2,
     LS_AVERAGE_WEIGHTS,
     0,
     {1, 1},
     {{1}, {2}},
     {{0.25}, {0.5}},
     4},
    {"a weight of zero", 3, LS_AVERAGE_WEIGHTS, 0, {1, 1, 1}, {{6}, {0}, {2}}, {{3}, {0}, {1}}, 2},
    {"only weights of zero", 2, LS_AVERAGE_WEIGHTS, 0, {2, 1}, {{3, 4}, {5}}, {{0, 0}, {0}}, 0},
    {"alone", 1, LS_AVERAGE_WEIGHTS, 0, {3}, {{1, 2, 6}}, {{1, 0, 2}}, 3},
    {"means, T012", 2, LS_AVERAGE_MEANS, 0, {2, 2}, {{4, 3}, {10, 2}}, {{1, 3}, {4, 2}}, 1.875},
    {"means, a rank weighs nothing",
     2,
     LS_AVERAGE_MEANS,
     0,
     {2, 1},
     {{4, 3}, {10}},
     {{1, 3}, {0}},
     0.875},
    {"given, instead of means", 2, LS_AVERAGE_MEANS, 0.5, {1, 1}, {{4}, {10}}, {{0}}, 7},
    {"given, instead of the mean", 2, LS_AVERAGE_MEAN, 0.5, {2, 2}, {{4, 3}, {10, 2}}, {{0}}, 9.5},
    {"given, instead of ranks", 2, LS_AVERAGE_RANKS, -2, {1, 1}, {{4}, {10}}, {{0}}, -28},
    {"given, instead of the sum", 2, LS_AVERAGE_SUM, 0.25, {1, 1}, {{4}, {10}}, {{0}}, 3.5},
    {"given, instead of weights", 2, LS_AVERAGE_WEIGHTS, 0.5, {1, 1}, {{4}, {10}}, {{0}}, 7},
};

static ls_status average_step(const average_row *row, const small *s, ls_ddp *ddp, int rank) {
    LSI_TRY(ls_ddp_begin_step(ddp, row->n_micro[rank], row->scale));
    for (int m = 0; m < row->n_micro[rank]; m++) {
        if (row->average >= LS_AVERAGE_WEIGHTS && row->scale == 0)
            LSI_TRY(ls_ddp_weigh(ddp, row->weights[rank][m]));
        LSI_TRY(small_backward(s, ddp, &row->grads[rank][m]));
    }
    return ls_ddp_finish_step(ddp);
}

static ls_status average_gives(ls_group *group, void *context) {
    const average_row *row = context;
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        small s;
        ls_ddp *ddp = NULL;
        LSI_TRY(open_scalar(&s, group, row->average, reproducible, &ddp));
        for (int step = 0; step < 3; step++) {
            LSI_TRY(average_step(row, &s, ddp, ls_group_rank(group)));
            RANK_CHECK(fabs(grad_at(&s, 0, 0) - row->expected) < 1e-6,
                       "%s: rank %d, step %d found %g, expected %g", row->name,
                       ls_group_rank(group), step, grad_at(&s, 0, 0), row->expected);
        }
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void sums_are_divided_as_the_option_says(void **state) {
    (void)state;
    RUN_ROWS(average_rows, n_ranks, average_gives);
}

/* Rank r has 1 + r % 2 micro-batches with gradient r + 1 and weight r + 2. */
static ls_status weigh_all_ranks(ls_group *group, void *context) {
    int rank = ls_group_rank(group);
    double grad = rank + 1, sum = 0, weight = 0;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_scalar(&s, group, LS_AVERAGE_WEIGHTS, 0, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1 + rank % 2, 0));
    for (int m = 0; m < 1 + rank % 2; m++) {
        LSI_TRY(ls_ddp_weigh(ddp, rank + 2));
        LSI_TRY(small_backward(&s, ddp, &grad));
    }
    LSI_TRY(ls_ddp_finish_step(ddp));
    for (int r = 0; r < ls_group_world_size(group); r++) {
        sum += (1 + r % 2) * (r + 1);
        weight += (1 + r % 2) * (r + 2);
    }
    float expected = (float)sum * (float)(1 / weight);
    RANK_CHECK(grad_at(&s, 0, 0) == expected, "found %.9g, expected %.9g", grad_at(&s, 0, 0),
               (double)expected);
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void weights_of_every_number_of_ranks_are_added(void **state) {
    (void)state;
    run_on_all(weigh_all_ranks, NULL);
}

/* ---- weights that are wrong ---- */

static ls_status refuse_weights(ls_group *group, void *context) {
    double grad = 6;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_scalar(&s, group, LS_AVERAGE_WEIGHTS, 0, &ddp));
    RANK_FAILS(ls_ddp_weigh(ddp, 1), LS_ERR_STATE, "ls_ddp_weigh: no step is open");
    LSI_TRY(ls_ddp_begin_step(ddp, 2, 0));
    RANK_FAILS(ls_ddp_begin_backward(ddp), LS_ERR_STATE,
               "micro-batch 1 has no weight; call ls_ddp_weigh");
    RANK_FAILS(ls_ddp_weigh(ddp, -1), LS_ERR_ARGUMENT, "ls_ddp_weigh: -1, expected a finite");
    RANK_FAILS(ls_ddp_weigh(ddp, NAN), LS_ERR_ARGUMENT, "expected a finite number >= 0");
    RANK_FAILS(ls_ddp_weigh(ddp, INFINITY), LS_ERR_ARGUMENT, "ls_ddp_weigh: inf");
    LSI_TRY(ls_ddp_weigh(ddp, 2));
    RANK_FAILS(ls_ddp_weigh(ddp, 2), LS_ERR_STATE, "micro-batch 1 has a weight already");
    LSI_TRY(small_backward(&s, ddp, &grad));
    RANK_FAILS(ls_ddp_begin_backward(ddp), LS_ERR_STATE, "micro-batch 2 has no weight");
    LSI_TRY(ls_ddp_weigh(ddp, 1));
    LSI_TRY(small_backward(&s, ddp, &grad));
    LSI_TRY(ls_ddp_finish_step(ddp));
    RANK_CHECK(grad_at(&s, 0, 0) == 4, "found %g", grad_at(&s, 0, 0));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void missing_and_impossible_weights_are_refused(void **state) {
    (void)state;
    run_in_both(2, refuse_weights, NULL);
}

/* Nothing waits for the weights of a model without gradients, and yet they are over. */
static ls_status weigh_nothing(ls_group *group, void *context) {
    static const spec fixed[] = {{"fixed", 4, 0, LS_PARAM_FROZEN}};
    ls_ddp_opts opts = {.struct_size = sizeof opts, .average = LS_AVERAGE_WEIGHTS};
    (void)context;
    for (int n_params = 0; n_params < 2; n_params++) {
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, fixed, n_params);
        LSI_TRY(ls_ddp_create(group, s.params, n_params, &opts, &ddp));
        for (int step = 0; step < 3; step++) {
            LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
            LSI_TRY(ls_ddp_weigh(ddp, 1));
            LSI_TRY(small_backward(&s, ddp, NULL));
            LSI_TRY(ls_ddp_finish_step(ddp));
        }
        ls_ddp_destroy(ddp);
    }
    for (int i = 0; i < LSI_CALLS; i++) { /* no place among the group's works was lost */
        ls_work *work = NULL;
        LSI_TRY(ls_barrier(group, &work));
        LSI_TRY(ls_work_wait(work, -1));
    }
    return LS_OK;
}

static void models_without_gradients_can_be_weighed(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) run_in_both(n_ranks, weigh_nothing, NULL);
}

/* ---- weights that come late ---- */

/* The last rank begins its backward pass when all others have made all gradients ready. */
static ls_status one_rank_is_late(ls_group *group, void *context) {
    static const spec several[] = {{"a", 5, 0, 0}, {"b", 1, 0, 0}, {"c", 40, 0, 0}};
    _Atomic int *n_ready = context;
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .average = LS_AVERAGE_WEIGHTS,
                        .bucket_cap_mb = 1e-9,
                        .first_bucket_mb = 1e-9};
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    small s;
    ls_ddp *ddp = NULL;
    small_init(&s, several, 3);
    LSI_TRY(ls_ddp_create(group, s.params, 3, &opts, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_weigh(ddp, 2));
    if (rank == n_ranks - 1) LSI_TRY(await_number(n_ready, n_ranks - 1));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = 2; i >= 0; i--) LSI_TRY(ready_with(&s, ddp, i, 3 * (i + 1)));
    ++*n_ready;
    LSI_TRY(ls_ddp_end_backward(ddp));
    LSI_TRY(ls_ddp_finish_step(ddp));
    float scale = (float)(1 / (2.0 * n_ranks));
    for (int i = 0; i < 3; i++) {
        float expected = (float)(3 * (i + 1) * n_ranks) * scale;
        RANK_CHECK(grad_at(&s, i, 0) == expected, "found %g", grad_at(&s, i, 0));
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void late_weights_do_not_hold_backward_up(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        for (int mode = 0; mode < N_RANK_MODES; mode++) {
            _Atomic int *n_ready = shared_number();
            assert_ok(run_ranks((rank_mode)mode, *n, one_rank_is_late, (void *)n_ready));
            free_shared_number(n_ready);
        }
}

/* ---- T014: a window that is not full ---- */

/* 10 micro-batches of gradient 1 in windows of 4, dealt to the ranks. */
static ls_status flush_windows(ls_group *group, void *context) {
    static const int windows[] = {4, 4, 2};
    const int *average = context;
    const ls_sgd_opts sgd = {.lr = 0.1, .grad_scale = 1};
    int n_ranks = ls_group_world_size(group);
    double grad = 1;
    small s;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_scalar(&s, group, *average, 0, &ddp));
    for (size_t step = 0; step < COUNT_OF(windows); step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, windows[step] / n_ranks, 0));
        for (int m = 0; m < windows[step] / n_ranks; m++) {
            LSI_TRY(ls_ddp_weigh(ddp, 1));
            LSI_TRY(small_backward(&s, ddp, &grad));
        }
        LSI_TRY(ls_ddp_finish_step(ddp));
        ls_sgd_update(s.params[0].data, s.params[0].grad, NULL, 1, &sgd);
    }
    float found = *(float *)s.params[0].data, expected = -0.1F - 0.1F - 0.1F;
    RANK_CHECK(fabsf(found - expected) < 1e-6F, "w is %g, expected -0.3", (double)found);
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void the_last_window_counts_what_it_has(void **state) {
    (void)state;
    static const int averages[] = {LS_AVERAGE_MEAN, LS_AVERAGE_WEIGHTS};
    for (size_t i = 0; i < COUNT_OF(averages); i++)
        for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
            run_in_both(n_ranks, flush_windows, (void *)&averages[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_divided_as_the_option_says),
        cmocka_unit_test(weights_of_every_number_of_ranks_are_added),
        cmocka_unit_test(missing_and_impossible_weights_are_refused),
        cmocka_unit_test(models_without_gradients_can_be_weighed),
        cmocka_unit_test(late_weights_do_not_hold_backward_up),
        cmocka_unit_test(the_last_window_counts_what_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
