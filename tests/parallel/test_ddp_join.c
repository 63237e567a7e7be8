/* Ranks that run out of data at different times: all come to the same end with the same weights,
 * whatever is averaged and however buckets travel; and without join an error that names the rank
 * which stopped. */
#include "small.h"

#include <lockstep/optim.h>

static const ls_sgd_opts sgd = {.lr = 0.1, .grad_scale = 1};

static void update(const small *s) {
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].grad)
            ls_sgd_update(s->params[i].data, s->params[i].grad, NULL, s->params[i].count, &sgd);
}

/* ---- T005 ---- */

static const spec scalar[] = {{"w", 1, 0, 0}};
static const double t005_grads[2][3] = {{1, 1, 6}, {1, 1, 0}};

static const struct t005_row {
    int join, average, n_steps;
    double w;
} t005_rows[] = {
    {LS_JOIN_WORLD, LS_AVERAGE_MEAN, 3, -0.5}, {LS_JOIN_WORLD, LS_AVERAGE_RANKS, 3, -0.5},
    {LS_JOIN_LIVE, LS_AVERAGE_MEAN, 3, -0.8},  {LS_JOIN_LIVE, LS_AVERAGE_RANKS, 3, -0.8},
    {LS_JOIN_LIVE, LS_AVERAGE_SUM, 3, -1.0},   {LS_JOIN_STOP, LS_AVERAGE_MEAN, 2, -0.2},
    {LS_JOIN_STOP, LS_AVERAGE_RANKS, 2, -0.2},
};

static ls_status t005(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(t005_rows); i++) {
        const struct t005_row *row = &t005_rows[i];
        ls_ddp_opts opts = {.struct_size = sizeof opts, .join = row->join, .average = row->average};
        int rank = ls_group_rank(group), step = 0;
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, scalar, 1);
        LSI_TRY(ls_ddp_create(group, s.params, 1, &opts, &ddp));
        for (;; step++) {
            bool has_data = step < 3 - rank;
            LSI_TRY(ls_ddp_begin_step(ddp, has_data, 0));
            if (ls_ddp_n_live(ddp) == 0) break;
            if (has_data) LSI_TRY(small_backward(&s, ddp, &t005_grads[rank][step]));
            LSI_TRY(ls_ddp_finish_step(ddp));
            update(&s);
        }
        float w = *(float *)s.params[0].data;
        RANK_CHECK(step == row->n_steps, "row %zu: rank %d made %d steps", i, rank, step);
        RANK_CHECK(fabs(w - row->w) < 1e-6, "row %zu: rank %d has w = %g", i, rank, (double)w);
        LSI_TRY(ls_ddp_check_weights(ddp));
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void means_are_over_the_world_or_the_living(void **state) {
    (void)state;
    run_in_both(2, t005, NULL);
}

/* ---- weights ---- */

/* T012 in the first step: sums 4, 3 and 10, 2 over 1, 3 and 4, 2 tokens; then rank 1 has no more.
 */
static ls_status weighed(ls_group *group, void *context) {
    static const double grads[2][2] = {{4, 3}, {10, 2}}, weights[2][2] = {{1, 3}, {4, 2}};
    static const double expected[] = {1.9, 1.75};
    const int *join = context;
    ls_ddp_opts opts = {.struct_size = sizeof opts, .join = *join, .average = LS_AVERAGE_WEIGHTS};
    int rank = ls_group_rank(group);
    small s;
    ls_ddp *ddp = NULL;
    small_init(&s, scalar, 1);
    LSI_TRY(ls_ddp_create(group, s.params, 1, &opts, &ddp));
    for (int step = 0; step < 2; step++) {
        int n_micro = step == 0 || rank == 0 ? 2 : 0;
        LSI_TRY(ls_ddp_begin_step(ddp, n_micro, 0));
        for (int m = 0; m < n_micro; m++) {
            LSI_TRY(ls_ddp_weigh(ddp, weights[rank][m]));
            LSI_TRY(small_backward(&s, ddp, &grads[rank][m]));
        }
        LSI_TRY(ls_ddp_finish_step(ddp));
        RANK_CHECK(fabs(grad_at(&s, 0, 0) - expected[step]) < 1e-6, "step %d: %g, expected %g",
                   step, grad_at(&s, 0, 0), expected[step]);
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void ranks_without_data_weigh_nothing(void **state) {
    (void)state;
    static const int joins[] = {LS_JOIN_LIVE, LS_JOIN_WORLD};
    for (size_t i = 0; i < COUNT_OF(joins); i++) run_in_both(2, weighed, (void *)&joins[i]);
}

/* ---- many ranks, some without any data ---- */

enum { N_PARAMS = 5, RARE = 2, FROZEN = 3, MAX_STEPS = 4 };
static const spec model[N_PARAMS] = {
    {"a", 1, 0, 0},    {"b", 20, 0, 0}, {"rare", 3, 0, 0}, {"fixed", 2, 0, LS_PARAM_FROZEN},
    {"none", 0, 0, 0},
};

static const struct world_row {
    int join, average, reproducible, find_unused, has_hook, by_scope;
    double bucket_mb;
} world_rows[] = {
    {LS_JOIN_WORLD, LS_AVERAGE_MEAN, 0, 0, 0, 0, 0},
    {LS_JOIN_LIVE, LS_AVERAGE_MEAN, 1, 0, 0, 0, 1e-9},
    {LS_JOIN_WORLD, LS_AVERAGE_RANKS, 0, 1, 0, 0, 1e-9},
    {LS_JOIN_LIVE, LS_AVERAGE_RANKS, 1, 1, 1, 1, 1e-9},
    {LS_JOIN_LIVE, LS_AVERAGE_SUM, 0, 1, 1, 0, 0},
    {LS_JOIN_LIVE, LS_AVERAGE_WEIGHTS, 0, 1, 0, 1, 1e-9},
    {LS_JOIN_WORLD, LS_AVERAGE_WEIGHTS, 1, 0, 1, 0, 1e-9},
    {LS_JOIN_STOP, LS_AVERAGE_MEAN, 0, 1, 0, 0, 0},
};

/* Rank 0 has no data, the others for 1 to 4 steps (LS_JOIN_STOP: two at least). */
static int n_steps_of(const struct world_row *row, int rank) {
    if (row->join == LS_JOIN_STOP) return 2 + rank % 2;
    return rank == 0 ? 0 : 1 + rank * 5 % MAX_STEPS;
}

static int n_micro_of(const struct world_row *row, int rank, int step) {
    return step < n_steps_of(row, rank) ? 1 + (rank + step) % 3 : 0;
}

static double grad_of(int rank, int step, int m, int param) {
    return rank + 2 * step + 3 * m + param;
}

/* Where parameters may be unused, one of them is in even steps and in the first micro-batch. */
static bool is_used(const struct world_row *row, int param, int step, int m) {
    return param != FROZEN && !(param == RARE && row->find_unused && (step % 2 == 0 || m == 0));
}

static ls_status micro_batch(const struct world_row *row, const small *s, ls_ddp *ddp, int rank,
                             int step, int m) {
    bool is_quiet = row->by_scope && m < n_micro_of(row, rank, step) - 1;
    if (is_quiet) LSI_TRY(ls_ddp_begin_no_sync(ddp));
    LSI_TRY(ls_ddp_weigh(ddp, rank + 1));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = N_PARAMS - 1; i >= 0; i--)
        if (is_used(row, i, step, m)) LSI_TRY(ready_with(s, ddp, i, grad_of(rank, step, m, i)));
    LSI_TRY(ls_ddp_end_backward(ddp));
    return is_quiet ? ls_ddp_end_no_sync(ddp) : LS_OK;
}

/* What the step is made of, counted without the library. */
typedef struct total {
    int n_live, n_micro, n_micro_most;
    double weight, sum[N_PARAMS];
    bool is_used[N_PARAMS];
} total;

static total count_step(const struct world_row *row, int n_ranks, int step) {
    total t = {0};
    for (int r = 0; r < n_ranks; r++) {
        int n_micro = n_micro_of(row, r, step);
        t.n_live += n_micro > 0;
        t.n_micro += n_micro;
        if (n_micro > t.n_micro_most) t.n_micro_most = n_micro;
        for (int m = 0; m < n_micro; m++) {
            t.weight += r + 1;
            for (int i = 0; i < N_PARAMS; i++) {
                if (!is_used(row, i, step, m)) continue;
                t.sum[i] += grad_of(r, step, m, i);
                t.is_used[i] = true;
            }
        }
    }
    return t;
}

static double scale_of(const struct world_row *row, const total *t, int n_ranks) {
    bool by_world = row->join == LS_JOIN_WORLD;
    switch (row->average) {
    case LS_AVERAGE_MEAN:
        return 1.0 / (t->n_micro + (by_world ? (n_ranks - t->n_live) * t->n_micro_most : 0));
    case LS_AVERAGE_RANKS: return 1.0 / (by_world ? n_ranks : t->n_live);
    case LS_AVERAGE_WEIGHTS: return 1.0 / t->weight;
    default: return 1;
    }
}

static ls_status check_step(const struct world_row *row, const small *s, int n_ranks, int step) {
    total t = count_step(row, n_ranks, step);
    for (int i = 0; i < N_PARAMS; i++) {
        RANK_CHECK(t.is_used[i] == (s->params[i].grad != NULL), "%s: wrong place of its gradient",
                   model[i].name);
        float expected = (float)t.sum[i] * (float)scale_of(row, &t, n_ranks);
        for (int64_t e = 0; e < (t.is_used[i] ? model[i].count : 0); e++)
            RANK_CHECK(grad_at(s, i, e) == expected,
                       "join %d, average %d, step %d: %s is %.9g, expected %.9g", row->join,
                       row->average, step, model[i].name, grad_at(s, i, e), (double)expected);
    }
    return LS_OK;
}

static ls_status train(ls_group *group, const struct world_row *row, const small *s, ls_ddp *ddp) {
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group), step = 0;
    for (;; step++) {
        int n_micro = n_micro_of(row, rank, step);
        int n_live = count_step(row, n_ranks, step).n_live;
        if (row->join == LS_JOIN_STOP && n_live < n_ranks) n_live = 0;
        LSI_TRY(ls_ddp_begin_step(
            ddp, n_micro && row->by_scope ? LS_MICRO_BATCHES_BY_SCOPE : n_micro, 0));
        RANK_CHECK(ls_ddp_n_live(ddp) == n_live, "step %d: %d live, expected %d", step,
                   ls_ddp_n_live(ddp), n_live);
        if (n_live == 0) break;
        for (int m = 0; m < n_micro; m++) LSI_TRY(micro_batch(row, s, ddp, rank, step, m));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(check_step(row, s, n_ranks, step));
        update(s);
    }
    RANK_FAILS(ls_ddp_finish_step(ddp), LS_ERR_STATE, "no step is open");
    return ls_ddp_check_weights(ddp);
}

static ls_status train_all_rows(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(world_rows); i++) {
        const struct world_row *row = &world_rows[i];
        ls_comm_hook *hook = NULL;
        small s;
        ls_ddp *ddp = NULL;
        if (row->has_hook) LSI_TRY(ls_hook_create(LS_HOOK_ALL_REDUCE, NULL, &hook));
        ls_ddp_opts opts = {.struct_size = sizeof opts,
                            .bucket_cap_mb = row->bucket_mb,
                            .first_bucket_mb = row->bucket_mb,
                            .join = row->join,
                            .average = row->average,
                            .reproducible = row->reproducible,
                            .find_unused_parameters = row->find_unused,
                            .hook = hook};
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        LSI_TRY(lsi_context(train(group, row, &s, ddp), "row %zu", i));
        ls_ddp_destroy(ddp);
        ls_hook_destroy(hook);
    }
    return LS_OK;
}

static void any_numbers_of_steps_end_with_equal_weights(void **state) {
    (void)state;
    run_on_all(train_all_rows, NULL);
}

/* ---- calls of a rank without data ---- */

static ls_status refuse_without_data(ls_group *group, void *context) {
    ls_ddp_opts opts = {.struct_size = sizeof opts, .join = LS_JOIN_LIVE};
    int rank = ls_group_rank(group);
    double grad = 2;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    small_init(&s, scalar, 1);
    LSI_TRY(ls_ddp_create(group, s.params, 1, &opts, &ddp));
    RANK_CHECK(ls_ddp_n_live(ddp) == 2, "%d live before the first step", ls_ddp_n_live(ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, rank == 0, 0));
    if (rank == 1)
        RANK_FAILS(ls_ddp_begin_backward(ddp), LS_ERR_STATE,
                   "begun with 0 micro-batches and has had them all");
    else
        LSI_TRY(small_backward(&s, ddp, &grad));
    LSI_TRY(ls_ddp_finish_step(ddp));
    RANK_CHECK(grad_at(&s, 0, 0) == 2, "found %g", grad_at(&s, 0, 0));
    /* Data that comes back is data. */
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(small_backward(&s, ddp, &grad));
    LSI_TRY(ls_ddp_finish_step(ddp));
    RANK_CHECK(grad_at(&s, 0, 0) == 2 && ls_ddp_n_live(ddp) == 2, "found %g", grad_at(&s, 0, 0));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void ranks_without_data_have_no_backward_pass(void **state) {
    (void)state;
    run_in_both(2, refuse_without_data, NULL);
}

/* ---- without join ---- */

typedef enum ending { LEAVES, IS_LATE, DOES_SOMETHING_ELSE } ending;

typedef struct stop_row {
    ending ending;
    ls_status status;
    const char *text;
    _Atomic int *is_seen; /* rank 0 has its error */
} stop_row;

static ls_status whole_step(const small *s, ls_ddp *ddp, double grad) {
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(small_backward(s, ddp, &grad));
    return ls_ddp_finish_step(ddp);
}

/* Rank 1 ends after two steps; rank 0 goes on with its third. */
static ls_status rank_1_stops(ls_group *group, void *context) {
    const stop_row *row = context;
    int rank = ls_group_rank(group);
    small s;
    ls_ddp *ddp = NULL;
    small_init(&s, scalar, 1);
    LSI_TRY(ls_ddp_create(group, s.params, 1, NULL, &ddp));
    ls_group_set_timeout(group, row->ending == IS_LATE ? 300 : 20000);
    for (int step = 0; step < 2; step++) LSI_TRY(whole_step(&s, ddp, t005_grads[rank][step]));
    if (rank == 0) {
        RANK_FAILS(whole_step(&s, ddp, t005_grads[rank][2]), row->status, row->text);
        RANK_FAILS(ls_ddp_finish_step(ddp), row->status, row->text);
        *row->is_seen = 1;
    } else if (row->ending == IS_LATE) {
        LSI_TRY(await_number(row->is_seen, 1));
    } else if (row->ending == DOES_SOMETHING_ELSE) {
        RANK_FAILS(ls_barrier(group, NULL), row->status, row->text);
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void without_join_the_rank_that_stopped_is_named(void **state) {
    (void)state;
    static const stop_row rows[] = {
        {LEAVES, LS_ERR_PEER, "rank 1", NULL},
        {IS_LATE, LS_ERR_TIMEOUT, "rank 1", NULL},
        {DOES_SOMETHING_ELSE, LS_ERR_MISMATCH, "rank 1 called barrier", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int mode = 0; mode < N_RANK_MODES; mode++) {
            stop_row row = rows[i];
            row.is_seen = shared_number();
            assert_ok(run_ranks((rank_mode)mode, 2, rank_1_stops, &row));
            free_shared_number(row.is_seen);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_over_the_world_or_the_living),
        cmocka_unit_test(ranks_without_data_weigh_nothing),
        cmocka_unit_test(any_numbers_of_steps_end_with_equal_weights),
        cmocka_unit_test(ranks_without_data_have_no_backward_pass),
        cmocka_unit_test(without_join_the_rank_that_stopped_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
