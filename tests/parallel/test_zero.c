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
    int unused;      /* parameter that no rank uses in odd steps; -1: none */
    int hook;        /* of both; 0: none */
    bool sends_bf16; /* … of the ddp that is compared with, the other has reduce_dtype */
    int average;     /* LS_AVERAGE_MEANS: ranks and micro-batches have different weights */
} setting;

static ls_status backward(const setting *s, const toy *model, ls_ddp *ddp, int64_t step,
                          int64_t micro) {
    if (s->average == LS_AVERAGE_MEANS) LSI_TRY(ls_ddp_weigh(ddp, (double)(1 + 2 * micro)));
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
    ls_adamw_opts opts = toy_adamw;
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

/* Neither is said of both: one of the two must do what the other does. */
static ls_status set_wire(const setting *s, int strategy, ls_ddp_opts *opts, ls_comm_hook **hook) {
    ls_hook_opts hook_opts = LS_HOOK_OPTS_INIT;
    hook_opts.start_step = -1;
    bool by_dtype = strategy != LS_STRATEGY_DDP && s->sends_bf16;
    if (by_dtype) opts->reduce_dtype = LS_DTYPE_BF16;
    if (s->hook == 0 || by_dtype) return LS_OK;
    LSI_TRY(ls_hook_create((ls_hook_kind)s->hook, &hook_opts, hook));
    opts->hook = *hook;
    return LS_OK;
}

static ls_status run(ls_group *group, const setting *s, int strategy, result *r) {
    toy model;
    ls_ddp *ddp = NULL;
    ls_comm_hook *hook = NULL;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    LSI_TRY(set_wire(s, strategy, &opts, &hook));
    opts.bucket_cap_mb = opts.first_bucket_mb = s->cap_bytes / MIB;
    opts.reproducible = s->reproducible;
    opts.no_overlap = s->no_overlap;
    opts.keep_buckets = s->hook != 0; /* hooks that lose bits depend on them */
    opts.average = s->average;
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
    ls_hook_destroy(hook);
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
static bool has_one_order(const setting *s) {
    if (s->accumulation == 1 || s->strategy == LS_STRATEGY_ZERO1) return true;
    return s->reproducible && is_power_of_two(s->accumulation);
}

static const int64_t uneven[] = {17, 0, -8, 1, 1000, 7, -1, 16, 5003};
static const double caps[] = {1, 1024, 16384, 0};

static ls_status every_setting(ls_group *group, void *context) {
    (void)context;
    static const struct {
        int strategy, replicas;
    } kinds[] = {{LS_STRATEGY_ZERO1, LS_REPLICAS_SHARED},
                 {LS_STRATEGY_ZERO1, LS_REPLICAS_PRIVATE},
                 {LS_STRATEGY_ZERO2, LS_REPLICAS_SHARED},
                 {LS_STRATEGY_ZERO2, LS_REPLICAS_PRIVATE},
                 {LS_STRATEGY_ZERO3, LS_REPLICAS_SHARED}};
    /* All of it with two ranks; with others each row in one of its ways. */
    int n_ways = ls_group_world_size(group) == 2 ? N_WAYS : 1, row = 0;
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (int64_t accumulation = 1; accumulation <= 4; accumulation++)
            for (size_t c = 0; c < COUNT_OF(caps); c++, row++)
                for (int i = 0; i < n_ways; i++) {
                    int at = (row + i + (int)accumulation) % N_WAYS;
                    setting s = {.counts = uneven,
                                 .n_params = COUNT_OF(uneven),
                                 .accumulation = accumulation,
                                 .cap_bytes = caps[c],
                                 .strategy = kinds[k].strategy,
                                 .replicas = kinds[k].replicas,
                                 .reproducible = at == REPRODUCIBLE,
                                 .no_overlap = at == NO_OVERLAP,
                                 .unused = at == UNUSED ? 4 : -1};
                    if (has_one_order(&s)) LSI_TRY(equals_ddp(group, &s));
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

/* Gradients on the way as BF16, as the hook of that name sends them. */
static ls_status every_wire(ls_group *group, void *context) {
    (void)context;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++)
        for (size_t c = 0; c < COUNT_OF(caps); c++) {
            setting s = {.counts = uneven,
                         .n_params = COUNT_OF(uneven),
                         .accumulation = 1,
                         .cap_bytes = caps[c],
                         .strategy = strategy,
                         .hook = LS_HOOK_BF16,
                         .sends_bf16 = true,
                         .unused = c % 2 ? 4 : -1};
            LSI_TRY(equals_ddp(group, &s));
        }
    return LS_OK;
}

/* Those that lose bits as well: they see the same buckets. */
static ls_status every_hook(ls_group *group, void *context) {
    (void)context;
    for (int hook = LS_HOOK_ALL_REDUCE; hook <= LS_HOOK_POWERSGD; hook++)
        for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++)
            for (size_t c = 0; c < COUNT_OF(caps); c++) {
                setting s = {.counts = uneven,
                             .n_params = COUNT_OF(uneven),
                             .accumulation = strategy == LS_STRATEGY_ZERO1 ? 2 : 1,
                             .cap_bytes = caps[c],
                             .strategy = strategy,
                             .replicas = c % 2 && strategy < LS_STRATEGY_ZERO3,
                             .hook = hook,
                             .no_overlap = c / 2 % 2,
                             .jitter = c == 0,
                             .unused = -1};
                if (hook != LS_HOOK_NOOP) LSI_TRY(equals_ddp(group, &s));
            }
    return LS_OK;
}

/* Every rank's own factor goes before the sum. */
static ls_status every_mean(ls_group *group, void *context) {
    (void)context;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++)
        for (int replicas = 0; replicas < 2 && strategy + replicas <= LS_STRATEGY_ZERO3;
             replicas++) {
            setting s = {.counts = uneven,
                         .n_params = COUNT_OF(uneven),
                         .accumulation = strategy == LS_STRATEGY_ZERO1 ? 2 : 1,
                         .cap_bytes = 1024,
                         .strategy = strategy,
                         .replicas = replicas,
                         .average = LS_AVERAGE_MEANS,
                         .unused = -1};
            LSI_TRY(equals_ddp(group, &s));
        }
    return LS_OK;
}

/* Nobody has the sum of several micro-batches, so what needs it is told so at the first. */
static ls_status sums_are_missed(ls_group *group, void *context) {
    (void)context;
    const struct {
        int hook, average;
        int64_t n_micro;
        const char *text;
    } rows[] = {
        {LS_HOOK_BF16, LS_AVERAGE_MEAN, 2, "hook bf16 needs the sum of the step's micro-batches"},
        {LS_HOOK_TOPK, LS_AVERAGE_MEAN, LS_MICRO_BATCHES_BY_SCOPE, "hook topk needs the sum"},
        {0, LS_AVERAGE_MEANS, 3, "average LS_AVERAGE_MEANS needs the sum"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int strategy = LS_STRATEGY_ZERO2; strategy <= LS_STRATEGY_ZERO3; strategy++) {
            toy model;
            ls_ddp *ddp = NULL;
            ls_comm_hook *hook = NULL;
            ls_ddp_opts opts = LS_DDP_OPTS_INIT;
            if (rows[i].hook) LSI_TRY(ls_hook_create((ls_hook_kind)rows[i].hook, NULL, &hook));
            opts.hook = hook;
            opts.average = rows[i].average;
            opts.strategy = strategy;
            toy_init(&model, uneven, COUNT_OF(uneven), 0);
            LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
            LSI_TRY(ls_ddp_begin_step(ddp, rows[i].n_micro, 0));
            if (rows[i].n_micro < 0) LSI_TRY(ls_ddp_begin_no_sync(ddp));
            if (!rows[i].hook) LSI_TRY(ls_ddp_weigh(ddp, 1));
            RANK_FAILS(ls_ddp_begin_backward(ddp), LS_ERR_UNSUPPORTED, rows[i].text);
            ls_ddp_destroy(ddp);
            ls_hook_destroy(hook);
            toy_fini(&model);
        }
    return LS_OK;
}

static void weights_are_those_of_ddp(void **state) {
    (void)state;
    run_on_all_ranks(every_setting, NULL);
}

static void gradients_are_sent_as_by_hooks(void **state) {
    (void)state;
    run_on_all_ranks(every_wire, NULL);
}

static void hooks_do_as_with_ddp(void **state) {
    (void)state;
    run_on_all_ranks(every_hook, NULL);
}

static void sums_that_nobody_has_are_refused(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, sums_are_missed, NULL));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void means_of_ranks_are_those_of_ddp(void **state) {
    (void)state;
    run_on_all_ranks(every_mean, NULL);
}

static void large_weights_are_those_of_ddp_at_different_speeds(void **state) {
    (void)state;
    run_on_all_ranks(large_setting, NULL);
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

/* ---- cases of users, by every strategy ---- */

typedef struct strategy_row {
    int strategy, replicas;
} strategy_row;

static const strategy_row strategies[] = {
    {LS_STRATEGY_DDP, 0},
    {LS_STRATEGY_ZERO1, LS_REPLICAS_SHARED},
    {LS_STRATEGY_ZERO1, LS_REPLICAS_PRIVATE},
    {LS_STRATEGY_ZERO2, LS_REPLICAS_SHARED},
    {LS_STRATEGY_ZERO2, LS_REPLICAS_PRIVATE},
    {LS_STRATEGY_ZERO3, LS_REPLICAS_SHARED},
};

/* Two scalars, a behind b in the only bucket: of two ranks, rank 1 has the shard of a. */
typedef struct scalars {
    float values[2];
    ls_param params[2];
    ls_ddp *ddp;
} scalars;

static ls_status open_scalars(scalars *s, ls_group *group, const strategy_row *row, int nonfinite) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    *s = (scalars){.values = {1, 2}};
    for (int i = 0; i < 2; i++)
        s->params[i] = (ls_param){
            .name = i ? "b" : "a", .count = 1, .dtype = LS_DTYPE_F32, .data = &s->values[i]};
    opts.strategy = row->strategy;
    opts.replicas = row->replicas;
    opts.nonfinite = nonfinite;
    opts.average = LS_AVERAGE_RANKS;
    return ls_ddp_create(group, s->params, 2, &opts, &s->ddp);
}

static ls_status pass(scalars *s, float grad_a, float grad_b) {
    const float grads[2] = {grad_a, grad_b};
    LSI_TRY(ls_ddp_begin_backward(s->ddp));
    for (int i = 1; i >= 0; i--) {
        LSI_TRY(ls_ddp_grad_needed(s->ddp, i));
        float *grad = s->params[i].grad;
        *grad = ls_ddp_accumulates(s->ddp) ? *grad + grads[i] : grads[i];
        LSI_TRY(ls_ddp_grad_ready(s->ddp, i));
    }
    return ls_ddp_end_backward(s->ddp);
}

static ls_status one_step(scalars *s, float grad_a, float grad_b) {
    LSI_TRY(ls_ddp_begin_step(s->ddp, 1, 0));
    LSI_TRY(pass(s, grad_a, grad_b));
    return ls_ddp_finish_step(s->ddp);
}

/* An update that shows the gradient: w -= lr sign(g), and the moments start at g. */
static ls_status update(scalars *s, double grad_scale) {
    const ls_adamw_opts opts = {
        .lr = 0.5, .beta1 = 0, .beta2 = 0, .epsilon = 1, .grad_scale = grad_scale};
    return ls_ddp_update(s->ddp, &opts);
}

/* With these betas a step is lr g / (|g| + 1). */
static float after_update(float value, double grad) {
    return (float)((double)value - 0.5 * grad / (fabs(grad) + 1));
}

/* T016: gradients 3 and 4, clipped to a norm of 1. */
static ls_status clips_alike(ls_group *group, void *context) {
    scalars s;
    double norm = 0;
    LSI_TRY(open_scalars(&s, group, context, LS_NONFINITE_IGNORE));
    LSI_TRY(one_step(&s, 3, 4));
    LSI_TRY(ls_ddp_grad_norm(s.ddp, &norm));
    LSI_TRY(update(&s, ls_clip_factor(norm, 1)));
    float found[2] = {*(float *)s.params[0].data, *(float *)s.params[1].data};
    ls_ddp_destroy(s.ddp);
    RANK_CHECK(norm == 5, "norm %g, expected 5", norm);
    RANK_CHECK(fabsf(found[0] - after_update(1, 0.6)) < 1e-6f &&
                   fabsf(found[1] - after_update(2, 0.8)) < 1e-6f,
               "weights %g %g, expected those of gradients 0.6 and 0.8", (double)found[0],
               (double)found[1]);
    return LS_OK;
}

/* T043: infinity in rank 1's shard, first in its own gradient, then only in the sum over ranks. */
static ls_status skips_alike(ls_group *group, void *context) {
    scalars s;
    bool is_rank_1 = ls_group_rank(group) == 1;
    LSI_TRY(open_scalars(&s, group, context, LS_NONFINITE_SKIP));
    for (int step = 0; step < 3; step++) {
        float bad = step == 0 ? (is_rank_1 ? INFINITY : 1.0f) : 3e38f;
        LSI_TRY(one_step(&s, step < 2 ? bad : 1.0f, 1));
        RANK_CHECK(ls_ddp_step_is_skipped(s.ddp) == (step < 2), "step %d: skipped %d", step,
                   ls_ddp_step_is_skipped(s.ddp));
        RANK_CHECK(step == 2 || strstr(ls_ddp_skip_reason(s.ddp), "parameter a"), "reason '%s'",
                   ls_ddp_skip_reason(s.ddp));
        if (!ls_ddp_step_is_skipped(s.ddp)) LSI_TRY(update(&s, 1));
    }
    float found[2] = {*(float *)s.params[0].data, *(float *)s.params[1].data};
    ls_ddp_destroy(s.ddp);
    RANK_CHECK(found[0] == after_update(1, 1) && found[1] == after_update(2, 1),
               "weights %g %g, expected those of one step", (double)found[0], (double)found[1]);
    return LS_OK;
}

/* T032: a tied parameter is used twice, 2 + 3 on rank 0 and 4 + 3 on rank 1: 6 on average, counted
 * once. */
static ls_status ties_add_up(ls_group *group, void *context) {
    scalars s;
    double norm = 0;
    LSI_TRY(open_scalars(&s, group, context, LS_NONFINITE_IGNORE));
    LSI_TRY(one_step(&s, 0, ls_group_rank(group) == 0 ? 2.0f + 3.0f : 4.0f + 3.0f));
    LSI_TRY(ls_ddp_grad_norm(s.ddp, &norm));
    ls_ddp_destroy(s.ddp);
    RANK_CHECK(norm == 6, "gradient %g, expected 6", norm);
    return LS_OK;
}

/* Factors that ranks do not have in common, where no all-reduce compares them: two micro-batches.
 */
static ls_status factors_differ(ls_group *group, void *context) {
    scalars s;
    LSI_TRY(open_scalars(&s, group, context, LS_NONFINITE_IGNORE));
    LSI_TRY(ls_ddp_begin_step(s.ddp, 2, ls_group_rank(group) == 1 ? 0.5 : 0.25));
    LSI_TRY(pass(&s, 1, 1));
    /* Where a call carries the factor, it may fail as early as that. */
    ls_status status = pass(&s, 1, 1);
    if (status == LS_OK) status = ls_ddp_finish_step(s.ddp);
    bool is_named = status == LS_ERR_MISMATCH && strstr(ls_last_message(), "0.25") &&
                    strstr(ls_last_message(), "0.5");
    ls_ddp_destroy(s.ddp);
    RANK_CHECK(is_named, "status %d: %s", (int)status, ls_last_message());
    return LS_OK;
}

/* ---- memory of buckets ---- */

enum { N_BUCKETS = 20, BUCKET_ELEMS = 4096 };

static ls_status open_many(toy *model, ls_group *group, bool static_graph, ls_ddp **ddp) {
    int64_t counts[N_BUCKETS];
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    for (int i = 0; i < N_BUCKETS; i++) counts[i] = BUCKET_ELEMS;
    toy_init(model, counts, N_BUCKETS, ls_group_rank(group));
    opts.bucket_cap_mb = opts.first_bucket_mb = 1e-6;
    opts.strategy = LS_STRATEGY_ZERO2;
    opts.find_unused_parameters = !static_graph;
    opts.static_graph = static_graph;
    return ls_ddp_create(group, model->params, model->n_params, &opts, ddp);
}

/* A pass that uses parameters 0 and, if wanted, the last one too late. */
static ls_status use_first(const toy *model, ls_ddp *ddp, int64_t step, bool use_last) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = 0; i < N_BUCKETS; i += N_BUCKETS - 1) {
        if (i > 0 && !use_last) break;
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        toy_write_gradient(model, i, step, 0, 0);
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

/* Buckets of which nothing is used take turns with a few buffers. */
static ls_status unused_buckets_take_turns(ls_group *group, void *context) {
    (void)context;
    toy model;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_many(&model, group, false, &ddp));
    for (int64_t step = 0; step < 3; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, 2, 0));
        for (int m = 0; m < 2; m++) LSI_TRY(use_first(&model, ddp, step, false));
        LSI_TRY(ls_ddp_finish_step(ddp));
    }
    LSI_TRY(ls_barrier(group, NULL));
    /* Of a rank: values, words, its shard, and four buffers at most. */
    int n_blocks = lsi_group_region(group)->control->n_blocks;
    LSI_TRY(ls_barrier(group, NULL));
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    RANK_CHECK(n_blocks <= 7 * ls_group_world_size(group), "%d blocks of shared memory", n_blocks);
    return LS_OK;
}

static void unused_buckets_share_memory(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, n, unused_buckets_take_turns, NULL));
}

/* static_graph: a parameter that was unused is used after its bucket was on its way. */
static ls_status change_is_reported(ls_group *group, void *context) {
    (void)context;
    toy model;
    ls_ddp *ddp = NULL;
    ls_status status = LS_OK;
    LSI_TRY(open_many(&model, group, true, &ddp));
    for (int64_t step = 0; step < 2 && status == LS_OK; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, 2, 0));
        for (int m = 0; m < 2 && status == LS_OK; m++)
            status = use_first(&model, ddp, step, step == 1 && m == 0);
        if (status == LS_OK) status = ls_ddp_finish_step(ddp);
    }
    bool is_named = status == LS_ERR_STATE && strstr(ls_last_message(), "static_graph") &&
                    strstr(ls_last_message(), "p19 (all ranks)");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    RANK_CHECK(is_named, "status %d: %s", (int)status, ls_last_message());
    return LS_OK;
}

static void a_change_of_the_graph_is_reported(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, n, change_is_reported, NULL));
}

static void by_every_strategy(rank_body body) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (size_t i = 0; i < COUNT_OF(strategies); i++)
            assert_ok(run_ranks((rank_mode)mode, 2, body, (void *)&strategies[i]));
}

static void gradients_are_clipped_by_one_norm(void **state) {
    (void)state;
    by_every_strategy(clips_alike);
}

static void an_overflow_in_one_shard_is_seen_by_all(void **state) {
    (void)state;
    by_every_strategy(skips_alike);
}

static void tied_parameters_count_once(void **state) {
    (void)state;
    by_every_strategy(ties_add_up);
}

static void different_factors_are_found(void **state) {
    (void)state;
    by_every_strategy(factors_differ);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_ddp),
        cmocka_unit_test(gradients_are_sent_as_by_hooks),
        cmocka_unit_test(hooks_do_as_with_ddp),
        cmocka_unit_test(sums_that_nobody_has_are_refused),
        cmocka_unit_test(means_of_ranks_are_those_of_ddp),
        cmocka_unit_test(large_weights_are_those_of_ddp_at_different_speeds),
        cmocka_unit_test(seven_parameters_on_three_ranks_are_shared_out),
        cmocka_unit_test(gradients_are_clipped_by_one_norm),
        cmocka_unit_test(an_overflow_in_one_shard_is_seen_by_all),
        cmocka_unit_test(tied_parameters_count_once),
        cmocka_unit_test(different_factors_are_found),
        cmocka_unit_test(unused_buckets_share_memory),
        cmocka_unit_test(a_change_of_the_graph_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
