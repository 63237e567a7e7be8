/* Sharded strategies against DDP, bit for bit: weights after several steps of AdamW with clipping,
 * for every number of ranks, as threads and as processes, both forms of replicas, with
 * accumulation, buckets of all sizes, frozen, unused, tiny and empty parameters. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/optim.h>

#include "base/mem.h"
#include "harness/ranks.h"
#include "parallel/deal.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 4, MAX_ELEMS = 120000 };
static const double MIB = 1024.0 * 1024.0;

typedef struct setting {
    const int64_t *counts;
    int n_params;
    int64_t accumulation;
    double cap_bytes;
    int strategy, replicas;
    bool reproducible, no_overlap, jitter;
    int unused; /* parameter that no rank uses in odd steps; -1: none */
} setting;

static ls_status backward(const setting *s, const toy *model, ls_ddp *ddp, int64_t step,
                          int64_t micro) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = model->n_params - 1; i >= 0; i--) {
        if (model->params[i].flags & LS_PARAM_FROZEN) continue;
        if (i == s->unused && step % 2 != 0) continue;
        if (s->jitter) usleep((useconds_t)(rand() % 300));
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        toy_write_gradient(model, i, step, micro, ls_ddp_accumulates(ddp));
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

/* in_rounds: micro-batch m of a rank is number m * ranks + rank, not rank * n + m. */
static ls_status train(ls_group *group, const setting *s, const toy *model, ls_ddp *ddp,
                       bool in_rounds, double *last_norm) {
    const int64_t n = s->accumulation;
    const int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    ls_adamw_opts opts = {.lr = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .grad_scale = 1};
    for (int64_t step = 0; step < N_STEPS; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, n, 0));
        for (int64_t m = 0; m < n; m++)
            LSI_TRY(backward(s, model, ddp, step, in_rounds ? m * n_ranks + rank : rank * n + m));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(ls_ddp_grad_norm(ddp, last_norm));
        opts.grad_scale = ls_clip_factor(*last_norm, 0.5);
        if (s->jitter) usleep((useconds_t)(rand() % 500));
        LSI_TRY(ls_ddp_update(ddp, &opts));
    }
    return LS_OK;
}

/* Weights of a strategy, one parameter behind the other. Returns how many. */
static int64_t collect(const toy *model, float *weights) {
    int64_t n = 0;
    for (int i = 0; i < model->n_params; i++) {
        if (model->params[i].count > 0)
            memcpy(weights + n, model->params[i].data,
                   (size_t)model->params[i].count * sizeof(float));
        n += model->params[i].count;
    }
    return n;
}

typedef struct result {
    float *weights;
    int64_t n, state_bytes;
    double norm;
} result;

static ls_status run(ls_group *group, const setting *s, int strategy, result *r) {
    toy model;
    ls_ddp *ddp = NULL;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.bucket_cap_mb = opts.first_bucket_mb = s->cap_bytes / MIB;
    opts.reproducible = s->reproducible;
    opts.no_overlap = s->no_overlap;
    opts.find_unused_parameters = s->unused >= 0;
    opts.strategy = strategy;
    opts.replicas = s->replicas;
    toy_init(&model, s->counts, s->n_params, ls_group_rank(group));
    model.params[0].flags |= LS_PARAM_NO_DECAY;
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
    LSI_TRY(train(group, s, &model, ddp, strategy >= LS_STRATEGY_ZERO2, &r->norm));
    r->n = collect(&model, r->weights);
    r->state_bytes = ls_ddp_state_bytes(ddp);
    float *after = malloc((size_t)(r->n + 1) * sizeof(float));
    ls_ddp_destroy(ddp);
    bool is_kept = collect(&model, after) == r->n &&
                   memcmp(after, r->weights, (size_t)r->n * sizeof(float)) == 0;
    free(after);
    toy_fini(&model);
    RANK_CHECK(is_kept, "weights changed when the ddp was destroyed");
    return LS_OK;
}

static ls_status equals_ddp(ls_group *group, void *context) {
    static _Thread_local float weights[2][MAX_ELEMS];
    const setting *s = context;
    result ddp = {.weights = weights[0]}, sharded = {.weights = weights[1]};
    LSI_TRY(run(group, s, LS_STRATEGY_DDP, &ddp));
    LSI_TRY(run(group, s, s->strategy, &sharded));
    RANK_CHECK(memcmp(&ddp.norm, &sharded.norm, sizeof ddp.norm) == 0,
               "norm %.17g, expected %.17g (strategy %d, replicas %d, %d ranks)", sharded.norm,
               ddp.norm, s->strategy, s->replicas, ls_group_world_size(group));
    for (int64_t i = 0; i < ddp.n; i++)
        RANK_CHECK(memcmp(&weights[0][i], &weights[1][i], sizeof(float)) == 0,
                   "strategy %d, replicas %d, %d ranks, accumulation %d, cap %g, reproducible %d: "
                   "element %lld is %.9g, expected %.9g",
                   s->strategy, s->replicas, ls_group_world_size(group), (int)s->accumulation,
                   s->cap_bytes, s->reproducible, (long long)i, (double)weights[1][i],
                   (double)weights[0][i]);
    return LS_OK;
}

typedef enum way { PLAIN, REPRODUCIBLE, NO_OVERLAP, UNUSED, N_WAYS } way;

static bool is_power_of_two(int64_t n) {
    return (n & (n - 1)) == 0;
}

/* Whether a strategy adds in the order of ddp, whose ranks have equal shares here. */
static bool has_one_order(const setting *s, int n_ranks) {
    if (s->accumulation == 1 || s->strategy == LS_STRATEGY_ZERO1) return true;
    return s->reproducible && is_power_of_two(s->accumulation) && is_power_of_two(n_ranks);
}

static const int64_t uneven[] = {17, 0, -8, 1, 1000, 7, -1, 16, 5003};
static const double caps[] = {1, 1024, 16384, 0};

static ls_status every_setting(ls_group *group, void *context) {
    (void)context;
    const int strategies[] = {LS_STRATEGY_ZERO1, LS_STRATEGY_ZERO2};
    /* All of it with two ranks; with others each row in one of its ways. */
    int n_ways = ls_group_world_size(group) == 2 ? N_WAYS : 1, row = 0;
    for (int k = 0; k < 4; k++)
        for (int64_t accumulation = 1; accumulation <= 4; accumulation++)
            for (size_t c = 0; c < COUNT_OF(caps); c++, row++)
                for (int i = 0; i < n_ways; i++) {
                    int at = (row + i + (int)accumulation) % N_WAYS;
                    setting s = {.counts = uneven,
                                 .n_params = COUNT_OF(uneven),
                                 .accumulation = accumulation,
                                 .cap_bytes = caps[c],
                                 .strategy = strategies[k / 2],
                                 .replicas = k % 2,
                                 .reproducible = at == REPRODUCIBLE,
                                 .no_overlap = at == NO_OVERLAP,
                                 .unused = at == UNUSED ? 4 : -1};
                    if (has_one_order(&s, ls_group_world_size(group)))
                        LSI_TRY(equals_ddp(group, &s));
                }
    return LS_OK;
}

static const int64_t large[] = {16, 70001, -1001, 0, 7, 20000};

static ls_status large_setting(ls_group *group, void *context) {
    (void)context;
    for (int k = 0; k < 4; k++) {
        setting s = {.counts = large,
                     .n_params = COUNT_OF(large),
                     .accumulation = k < 2 ? 2 : 1,
                     .cap_bytes = 65536,
                     .strategy = k < 2 ? LS_STRATEGY_ZERO1 : LS_STRATEGY_ZERO2,
                     .replicas = k % 2,
                     .jitter = true,
                     .unused = -1};
        LSI_TRY(equals_ddp(group, &s));
    }
    return LS_OK;
}

static void run_all(rank_body body) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, body, NULL));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void weights_are_those_of_ddp(void **state) {
    (void)state;
    run_all(every_setting);
}

static void large_weights_are_those_of_ddp_at_different_speeds(void **state) {
    (void)state;
    run_all(large_setting);
}

/* T028: states are ceil(7 / 3) elements a rank, not all of them. */
static ls_status states_are_a_share(ls_group *group, void *context) {
    static const int64_t seven[] = {7};
    float weights[7];
    setting s = {.counts = seven,
                 .n_params = 1,
                 .accumulation = 1,
                 .replicas = *(int *)context,
                 .unused = -1};
    result r = {.weights = weights};
    LSI_TRY(run(group, &s, LS_STRATEGY_ZERO1, &r));
    int64_t expected = ls_group_rank(group) < 2 ? 24 : 8;
    RANK_CHECK(r.state_bytes == expected, "rank %d: %lld bytes of states, expected %lld",
               ls_group_rank(group), (long long)r.state_bytes, (long long)expected);
    return LS_OK;
}

static void seven_parameters_on_three_ranks_are_shared_out(void **state) {
    (void)state;
    for (int replicas = 0; replicas < 2; replicas++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, states_are_a_share, &replicas));
}

/* T016: one norm, one factor, whoever has which shard. */
static ls_status clips_alike(ls_group *group, void *context) {
    float values[2] = {0, 0}, grads[2] = {3, 4};
    ls_param params[] = {{.name = "a", .count = 1, .dtype = LS_DTYPE_F32, .data = &values[0]},
                         {.name = "b", .count = 1, .dtype = LS_DTYPE_F32, .data = &values[1]}};
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    ls_ddp *ddp = NULL;
    double norm = 0;
    opts.strategy = LS_STRATEGY_ZERO1;
    opts.replicas = *(int *)context;
    LSI_TRY(ls_ddp_create(group, params, 2, &opts, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = 1; i >= 0; i--) {
        *(float *)params[i].grad = grads[i];
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    LSI_TRY(ls_ddp_end_backward(ddp));
    LSI_TRY(ls_ddp_finish_step(ddp));
    LSI_TRY(ls_ddp_grad_norm(ddp, &norm));
    double factor = ls_clip_factor(norm, 1);
    ls_ddp_destroy(ddp);
    RANK_CHECK(norm == 5, "norm %g, expected 5", norm);
    RANK_CHECK(fabs(3 * factor - 0.6) < 1e-12 && fabs(4 * factor - 0.8) < 1e-12, "factor %g",
               factor);
    return LS_OK;
}

/* T043: finite gradients whose sum overflows in rank 1's shard only: all ranks leave the step out.
 */
static ls_status skips_alike(ls_group *group, void *context) {
    float values[2] = {1, 2};
    ls_param params[] = {{.name = "a", .count = 1, .dtype = LS_DTYPE_F32, .data = &values[0]},
                         {.name = "b", .count = 1, .dtype = LS_DTYPE_F32, .data = &values[1]}};
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    ls_ddp *ddp = NULL;
    opts.strategy = LS_STRATEGY_ZERO1;
    opts.replicas = *(int *)context;
    opts.nonfinite = LS_NONFINITE_SKIP;
    opts.average = LS_AVERAGE_SUM;
    LSI_TRY(ls_ddp_create(group, params, 2, &opts, &ddp));
    for (int step = 0; step < 2; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
        LSI_TRY(ls_ddp_begin_backward(ddp));
        for (int i = 1; i >= 0; i--) { /* a is the last element of the only bucket */
            *(float *)params[i].grad = i == 0 && step == 0 ? 3e38f : 1.0f;
            LSI_TRY(ls_ddp_grad_ready(ddp, i));
        }
        LSI_TRY(ls_ddp_end_backward(ddp));
        LSI_TRY(ls_ddp_finish_step(ddp));
        RANK_CHECK(ls_ddp_step_is_skipped(ddp) == (step == 0), "step %d: skipped %d", step,
                   ls_ddp_step_is_skipped(ddp));
        RANK_CHECK(step > 0 || strstr(ls_ddp_skip_reason(ddp), "parameter a"), "reason '%s'",
                   ls_ddp_skip_reason(ddp));
    }
    ls_ddp_destroy(ddp);
    RANK_CHECK(values[0] == 1 && values[1] == 2, "weights %g %g", (double)values[0],
               (double)values[1]);
    return LS_OK;
}

static void an_overflow_in_one_shard_is_seen_by_all(void **state) {
    (void)state;
    for (int replicas = 0; replicas < 2; replicas++)
        for (int n = 2; n <= 3; n++)
            assert_ok(run_ranks(RANKS_AS_PROCESSES, n, skips_alike, &replicas));
}

static void the_norm_is_of_all_shards(void **state) {
    (void)state;
    for (int replicas = 0; replicas < 2; replicas++)
        for (int n = 1; n <= 3; n++)
            assert_ok(run_ranks(RANKS_AS_PROCESSES, n, clips_alike, &replicas));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_ddp),
        cmocka_unit_test(large_weights_are_those_of_ddp_at_different_speeds),
        cmocka_unit_test(seven_parameters_on_three_ranks_are_shared_out),
        cmocka_unit_test(the_norm_is_of_all_shards),
        cmocka_unit_test(an_overflow_in_one_shard_is_seen_by_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
