/* Private ZeRO-3 and hybrid sharding against DDP, bit for bit. The model has units whose gradients
 * depend on the values of the parameters, as these are while the unit computes: a unit that was not
 * gathered, gathered too early or read after it was given up shows in the weights.
 *
 * Outside of the units that use it a parameter has no data, nor has it in backward of a unit that
 * uses it in forward only, or the table of uses is wrong. */
#include "harness/harness.h"

#include <string.h>
#include <unistd.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "harness/ranks.h"
#include "parallel/deal.h"
#include "parallel/hybrid.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 3, MAX_ELEMS = 60000, MAX_USES = 64 };

/* Five units of two parameters; p0 is used by the first unit and the last, as a tied embedding is,
 * p5 by two units that follow each other. */
static const int64_t counts[] = {1003, 17, 0, 5003, 1, 1000, -8, 7, 64, 333};
static const ls_unit_use uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {2, 4}, {2, 5},
                                   {3, 5}, {3, 7}, {4, 8}, {4, 9}, {4, 0}};
/* The same, with tables that are looked up, in the first unit, in one that shares its own, and in
 * the last. */
enum { LOOK_UP = LS_USE_FORWARD_ONLY };
static const ls_unit_use lookups[COUNT_OF(uses)] = {
    {0, 0, LOOK_UP}, {0, 1, LOOK_UP}, {1, 2}, {1, 3},          {2, 4}, {2, 5, LOOK_UP},
    {3, 5},          {3, 7},          {4, 8}, {4, 9, LOOK_UP}, {4, 0}};
enum { N_PARAMS = COUNT_OF(counts), N_UNITS = 5 };

typedef struct setting {
    int strategy, replicas;
    ls_dtype dtype;
    int64_t accumulation;
    int shard_size, prefetch, reshard;
    int64_t persist_below;
    double gather_limit_mb;
    bool reproducible, jitter, fills, without_uses, looks_up, evaluates, no_overlap;
    int hook;   /* of both; one that looks at no other element than the one at hand; 0: none */
    int unused; /* parameter that this test's odd ranks do not use in odd steps; -1: none */
} setting;

/* ---- a pass ---- */

static bool uses_param(const setting *s, int unit, int param) {
    for (size_t k = 0; k < COUNT_OF(uses); k++)
        if (uses[k].param == param && (s->without_uses || uses[k].unit == unit)) return true;
    return false;
}

/* Whether backward of the unit, which uses the parameter, reads it. */
static bool reads_again(const setting *s, int unit, int param) {
    for (size_t k = 0; k < COUNT_OF(lookups) && s->looks_up; k++)
        if (lookups[k].unit == unit && lookups[k].param == param) return lookups[k].flags == 0;
    return true;
}

static int n_units(const setting *s) {
    return s->without_uses ? 1 : N_UNITS;
}

static int first_unit(const setting *s, int param) {
    int unit = 0;
    while (unit < n_units(s) - 1 && !uses_param(s, unit, param)) unit++;
    return unit;
}

static float value_of(const ls_param *param, int64_t e) {
    if (param->dtype == LS_DTYPE_BF16) return lsi_bf16_to_f32(((const uint16_t *)param->data)[e]);
    return ((const float *)param->data)[e];
}

/* Sums of what the unit computes with, which go into the unit's gradients. */
typedef struct sums {
    float all, again; /* again: of what backward reads as well */
} sums;

static ls_status read_unit(const setting *s, const toy *model, int unit, bool is_backward,
                           sums *sum) {
    *sum = (sums){0};
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *param = &model->params[i];
        bool is_read_again = reads_again(s, unit, i);
        if (!uses_param(s, unit, i) || (is_backward && !is_read_again)) continue;
        RANK_CHECK(param->data, "unit %d: parameter %d has no data", unit, i);
        for (int64_t e = 0; e < param->count; e++) {
            sum->all += value_of(param, e);
            if (is_read_again) sum->again += value_of(param, e);
        }
    }
    return LS_OK;
}

static ls_status forward(const setting *s, const toy *model, ls_ddp *ddp, sums *seen) {
    for (int u = 0; u < n_units(s); u++) {
        LSI_TRY(ls_ddp_before_forward(ddp, u));
        LSI_TRY(read_unit(s, model, u, false, &seen[u]));
        if (s->jitter) usleep((useconds_t)(rand() % 300));
        LSI_TRY(ls_ddp_after_forward(ddp, u));
    }
    return LS_OK;
}

static bool is_left_out(const setting *s, int param, int64_t step, int64_t micro) {
    return param == s->unused && step % 2 != 0 && micro % 2 != 0;
}

static ls_status backward_unit(const setting *s, const toy *model, ls_ddp *ddp, int unit, sums seen,
                               int64_t step, int64_t micro) {
    sums here;
    LSI_TRY(ls_ddp_before_backward(ddp, unit));
    LSI_TRY(read_unit(s, model, unit, true, &here));
    RANK_CHECK(memcmp(&here.again, &seen.again, sizeof here.again) == 0,
               "unit %d: %g, in forward %g", unit, (double)here.again, (double)seen.again);
    for (int i = model->n_params - 1; i >= 0; i--) {
        ls_param *param = &model->params[i];
        if (param->flags & LS_PARAM_FROZEN || first_unit(s, i) != unit) continue;
        if (is_left_out(s, i, step, micro)) continue;
        if (s->jitter) usleep((useconds_t)(rand() % 300));
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        toy_write_gradient(model, i, step, micro, ls_ddp_accumulates(ddp));
        float *grad = param->grad;
        for (int64_t e = 0; e < param->count; e++)
            grad[e] +=
                (reads_again(s, unit, i) ? 0.125f * value_of(param, e) : 0.0f) + 1e-4f * seen.all;
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_after_backward(ddp, unit);
}

static ls_status pass(const setting *s, const toy *model, ls_ddp *ddp, int64_t step,
                      int64_t micro) {
    sums seen[N_UNITS];
    if (s->accumulation % 2) LSI_TRY(ls_ddp_begin_backward(ddp)); /* before forward, or behind it */
    LSI_TRY(forward(s, model, ddp, seen));
    if (s->accumulation % 2 == 0) LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int u = n_units(s) - 1; u >= 0; u--)
        LSI_TRY(backward_unit(s, model, ddp, u, seen[u], step, micro));
    return ls_ddp_end_backward(ddp);
}

/* ---- training ---- */

static ls_status train(ls_group *group, const setting *s, const toy *model, ls_ddp *ddp,
                       const lsi_deal *deal, double *norm) {
    int rank = ls_group_rank(group);
    ls_adamw_opts opts = toy_adamw;
    sums seen[N_UNITS];
    for (int64_t step = 0; step < N_STEPS; step++) {
        double scale = 1.0 / (double)(s->accumulation * deal->n_ranks);
        LSI_TRY(ls_ddp_begin_step(ddp, deal->count[rank], scale));
        for (int64_t i = 0; i < deal->count[rank]; i++)
            LSI_TRY(pass(s, model, ddp, step, lsi_deal_number(deal, rank, i)));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(ls_ddp_grad_norm(ddp, norm));
        opts.grad_scale = ls_clip_factor(*norm, 0.5);
        LSI_TRY(ls_ddp_update(ddp, &opts));
        if (s->evaluates) LSI_TRY(forward(s, model, ddp, seen));
        LSI_TRY(ls_ddp_check_weights(ddp));
    }
    return LS_OK;
}

/* Frozen ones do not change, and sharded strategies keep no lower halves of them. */
static ls_status collect(const toy *model, ls_ddp *ddp, float *weights, int64_t *n) {
    *n = 0;
    for (int i = 0; i < model->n_params; i++) {
        if (model->params[i].flags & LS_PARAM_FROZEN) continue;
        LSI_TRY(ls_ddp_get_values(ddp, i, weights + *n));
        *n += model->params[i].count;
    }
    return LS_OK;
}

/* The values of a toy of rank 0. */
static ls_status fill(void *context, int param, int64_t begin, int64_t count, float *values) {
    (void)context;
    for (int64_t e = 0; e < count; e++) values[e] = rough_value(0, param, begin + e);
    return LS_OK;
}

static void narrow(toy *model, uint16_t *upper, uint16_t *lower, uint16_t **lower_halves) {
    for (int i = 0; i < model->n_params; i++) {
        ls_param *param = &model->params[i];
        ls_bf16_split(param->data, param->count, upper, lower);
        param->data = upper;
        param->dtype = LS_DTYPE_BF16;
        lower_halves[i] = lower;
        upper += param->count, lower += param->count;
    }
}

typedef struct result {
    float *weights;
    int64_t n;
    double norm;
} result;

static ls_ddp_opts options_of(const setting *s, int strategy) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    bool gathers = strategy == LS_STRATEGY_ZERO3 && s->replicas == LS_REPLICAS_PRIVATE;
    opts.reproducible = s->reproducible;
    opts.find_unused_parameters = s->unused >= 0;
    opts.no_overlap = s->no_overlap;
    opts.strategy = strategy;
    opts.replicas = s->replicas;
    if (strategy == LS_STRATEGY_DDP) return opts;
    opts.shard_size = s->shard_size;
    if (s->fills) opts.fill = fill;
    if (s->replicas == LS_REPLICAS_PRIVATE && !s->without_uses)
        opts.uses = s->looks_up ? lookups : uses, opts.n_uses = COUNT_OF(uses);
    if (!gathers) return opts;
    opts.prefetch = s->prefetch;
    opts.reshard_after_forward = s->reshard;
    opts.gather_limit_mb = s->gather_limit_mb;
    opts.persist_below = s->persist_below;
    return opts;
}

static ls_status deal_out(ls_group *group, const setting *s, int strategy, lsi_deal *deal) {
    int n_ranks = ls_group_world_size(group);
    int64_t n = s->accumulation * n_ranks;
    if (strategy < LS_STRATEGY_ZERO2)
        return lsi_deal_micro_batches(deal, n, n_ranks, s->reproducible);
    return lsi_deal_rounds(deal, n, n_ranks, s->shard_size > 0 ? s->shard_size : n_ranks,
                           s->reproducible);
}

static ls_status run(ls_group *group, const setting *s, int strategy, result *r) {
    static _Thread_local uint16_t upper[MAX_ELEMS], lower[MAX_ELEMS];
    uint16_t *lower_halves[N_PARAMS];
    toy model;
    lsi_deal deal;
    ls_ddp *ddp = NULL;
    ls_comm_hook *hook = NULL;
    ls_ddp_opts opts = options_of(s, strategy);
    if (s->hook) LSI_TRY(ls_hook_create((ls_hook_kind)s->hook, NULL, &hook));
    opts.hook = hook;
    LSI_TRY(deal_out(group, s, strategy, &deal));
    lsi_group_set_order(group, &deal.order);
    toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
    model.params[0].flags |= LS_PARAM_NO_DECAY;
    if (s->dtype == LS_DTYPE_BF16) {
        narrow(&model, upper, lower, lower_halves);
        opts.lower_halves = lower_halves;
    }
    for (int i = 0; i < N_PARAMS && opts.fill; i++)
        if (!(model.params[i].flags & LS_PARAM_FROZEN)) model.params[i].data = NULL;
    if (opts.fill) opts.lower_halves = NULL;
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
    lsi_ddp_set_group_order(ddp, &deal.group_order);
    LSI_TRY(train(group, s, &model, ddp, &deal, &r->norm));
    LSI_TRY(collect(&model, ddp, r->weights, &r->n));
    ls_ddp_destroy(ddp);
    ls_hook_destroy(hook);
    toy_fini(&model);
    return LS_OK;
}

static ls_status equals_ddp(ls_group *group, const setting *s) {
    static _Thread_local float weights[2][MAX_ELEMS];
    result ddp = {.weights = weights[0]}, sharded = {.weights = weights[1]};
    LSI_TRY(lsi_context(run(group, s, LS_STRATEGY_DDP, &ddp), "ddp"));
    LSI_TRY(lsi_context(run(group, s, s->strategy, &sharded), "sharded"));
    RANK_CHECK(memcmp(&ddp.norm, &sharded.norm, sizeof ddp.norm) == 0, "norm %.17g, expected %.17g",
               sharded.norm, ddp.norm);
    for (int64_t i = 0; i < ddp.n; i++)
        RANK_CHECK(memcmp(&weights[0][i], &weights[1][i], sizeof(float)) == 0,
                   "element %lld is %.9g, expected %.9g", (long long)i, (double)weights[1][i],
                   (double)weights[0][i]);
    return LS_OK;
}

static ls_status named(ls_group *group, const setting *s) {
    return lsi_context(
        equals_ddp(group, s),
        "%d ranks, strategy %d, replicas %d, %s, accumulation %d, shard_size %d, prefetch %d, "
        "reshard %d, persist_below %d, limit %g, reproducible %d, fills %d, without_uses %d, "
        "looks_up %d, unused %d, hook %d, no_overlap %d",
        ls_group_world_size(group), s->strategy, s->replicas, ls_dtype_name(s->dtype),
        (int)s->accumulation, s->shard_size, s->prefetch, s->reshard, (int)s->persist_below,
        s->gather_limit_mb, s->reproducible, s->fills, s->without_uses, s->looks_up, s->unused,
        s->hook, s->no_overlap);
}

/* ---- every setting of gathering ---- */

/* Rows differ in one thing each from the first; each is tried with all numbers of micro-batches
 * whose sums have one order. */
static const setting rows[] = {
    {.unused = -1},
    {.unused = -1, .prefetch = -1},
    {.unused = -1, .prefetch = 3},
    {.unused = -1, .prefetch = 9, .gather_limit_mb = 0.01},
    {.unused = -1, .reshard = 1},
    {.unused = -1, .reshard = 1, .prefetch = -1, .evaluates = true},
    {.unused = -1, .reshard = 2, .evaluates = true},
    {.unused = -1, .persist_below = 100},
    {.unused = -1, .persist_below = 1 << 20, .prefetch = 2},
    {.unused = -1, .without_uses = true},
    {.unused = -1, .evaluates = true},
    {.unused = -1, .fills = true},
    {.unused = -1, .dtype = LS_DTYPE_BF16, .persist_below = 100},
    {.unused = 3},
    {.unused = 0, .prefetch = -1},
    {.unused = 4, .persist_below = 100},
    {.unused = 9, .persist_below = 1 << 20},
    {.unused = -1, .jitter = true},
    {.unused = -1, .fills = true, .dtype = LS_DTYPE_BF16},
    {.unused = -1, .no_overlap = true},
    {.unused = 4, .no_overlap = true, .prefetch = -1, .jitter = true},
    {.unused = -1, .hook = LS_HOOK_ALL_REDUCE, .prefetch = 3},
    {.unused = -1, .hook = LS_HOOK_BF16, .jitter = true},
    {.unused = -1, .hook = LS_HOOK_FP16, .no_overlap = true, .reshard = 1},
    {.unused = -1, .looks_up = true},
    {.unused = -1, .looks_up = true, .prefetch = -1, .evaluates = true},
    {.unused = -1, .looks_up = true, .reshard = 1, .evaluates = true},
    {.unused = -1, .looks_up = true, .reshard = 2, .prefetch = 3, .dtype = LS_DTYPE_BF16},
};

static ls_status every_setting(ls_group *group, void *context) {
    (void)context;
    int n_ranks = ls_group_world_size(group);
    for (size_t k = 0; k < COUNT_OF(rows); k++)
        for (int64_t accumulation = 1; accumulation <= 3; accumulation++) {
            setting s = rows[k];
            s.strategy = LS_STRATEGY_ZERO3;
            s.replicas = LS_REPLICAS_PRIVATE;
            if (s.dtype == 0) s.dtype = LS_DTYPE_F32;
            s.accumulation = accumulation;
            s.reproducible = accumulation > 1;
            if (s.reshard > 1 && n_ranks % s.reshard != 0) continue;
            if (s.hook != 0 && accumulation > 1) continue;
            LSI_TRY(named(group, &s));
        }
    return LS_OK;
}

static void weights_are_those_of_ddp(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, every_setting, NULL));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- how often units are gathered ---- */

/* Gathers of each parameter in a micro-batch; 0: it is frozen. */
typedef struct gather_row {
    const char *name;
    int reshard, prefetch;
    bool looks_up;
    int n_gathers[N_PARAMS];
} gather_row;

/* What is looked up needs no gather in backward: p0 and p1 one less. p5 is gathered for two units
 * that follow each other, p8 and p9 for the last one. */
static const gather_row gather_rows[] = {
    {"all read again", 0, 0, false, {3, 2, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"looked up", 0, 0, true, {2, 1, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"looked up, none ahead", 0, -1, true, {2, 1, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"looked up, all ahead", 0, 9, true, {2, 1, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"all kept", 1, 0, false, {2, 1, 1, 1, 1, 1, 0, 1, 1, 1}},
    {"looked up, kept", 1, 0, true, {1, 1, 1, 1, 1, 1, 0, 1, 1, 1}},
    {"looked up, in parts", 2, 2, true, {2, 1, 2, 2, 2, 2, 0, 2, 1, 1}},
};

/* What backward of the unit does not read is not there. */
static ls_status expect_gone(const toy *model, int unit) {
    for (size_t k = 0; k < COUNT_OF(lookups); k++)
        if (lookups[k].unit == unit && lookups[k].flags != 0)
            RANK_CHECK(!model->params[lookups[k].param].data, "unit %d: parameter %d is there",
                       unit, lookups[k].param);
    return LS_OK;
}

static ls_status pass_and_look(const setting *s, const toy *model, ls_ddp *ddp) {
    sums seen[N_UNITS];
    LSI_TRY(forward(s, model, ddp, seen));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int u = N_UNITS - 1; u >= 0; u--) {
        LSI_TRY(backward_unit(s, model, ddp, u, seen[u], 0, 0));
        if (s->looks_up) LSI_TRY(expect_gone(model, u));
    }
    return ls_ddp_end_backward(ddp);
}

static ls_status expect_gathers(const gather_row *row, const ls_ddp *ddp, int n_micro_batches) {
    for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
        ls_bucket_info info;
        LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
        int expected = n_micro_batches * row->n_gathers[info.first_param];
        RANK_CHECK(info.n_gathers == expected, "%s, parameter %d: %d gathers, expected %d",
                   row->name, info.first_param, info.n_gathers, expected);
    }
    return LS_OK;
}

static ls_status count_gathers(ls_group *group, void *context) {
    enum { N_MICRO_BATCHES = 2 };
    const gather_row *row = context;
    setting s = {.strategy = LS_STRATEGY_ZERO3,
                 .replicas = LS_REPLICAS_PRIVATE,
                 .reshard = row->reshard,
                 .prefetch = row->prefetch,
                 .looks_up = row->looks_up,
                 .unused = -1};
    ls_ddp_opts opts = options_of(&s, s.strategy);
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, 0);
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
    for (int step = 0; step < 2; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, N_MICRO_BATCHES, 0));
        for (int i = 0; i < N_MICRO_BATCHES; i++) LSI_TRY(pass_and_look(&s, &model, ddp));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(ls_ddp_update(ddp, &toy_adamw));
        LSI_TRY(expect_gathers(row, ddp, N_MICRO_BATCHES));
    }
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void units_are_gathered_for_what_reads_them(void **state) {
    (void)state;
    for (size_t k = 0; k < COUNT_OF(gather_rows); k++)
        assert_ok(run_ranks(RANKS_AS_THREADS, 4, count_gathers, (void *)&gather_rows[k]));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- meshes ---- */

typedef struct mesh {
    int n_ranks, shard_size;
} mesh;

static const mesh meshes[] = {{4, 2}, {4, 1}, {4, 4}, {8, 2}, {8, 4},
                              {2, 1}, {6, 2}, {3, 1}, {1, 1}};

static ls_status every_strategy_on_a_mesh(ls_group *group, void *context) {
    const mesh *m = context;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++)
        for (int replicas = 0; replicas < 2; replicas++)
            for (int64_t accumulation = 1; accumulation <= 3; accumulation++) {
                setting s = {.strategy = strategy,
                             .replicas = replicas,
                             .dtype = LS_DTYPE_F32,
                             .accumulation = accumulation,
                             .reproducible = accumulation > 1 && strategy != LS_STRATEGY_ZERO1,
                             .shard_size = m->shard_size,
                             .fills = accumulation == 2,
                             .no_overlap = accumulation == 3,
                             .unused = -1};
                LSI_TRY(named(group, &s));
                s.hook = accumulation == 1 ? LS_HOOK_BF16 : 0;
                if (s.hook != 0) LSI_TRY(named(group, &s));
            }
    return LS_OK;
}

static void meshes_have_the_bits_of_ddp(void **state) {
    (void)state;
    for (size_t k = 0; k < COUNT_OF(meshes); k++)
        for (int mode = 0; mode < N_RANK_MODES; mode++) {
            mesh m = meshes[k];
            assert_ok(run_ranks((rank_mode)mode, m.n_ranks, every_strategy_on_a_mesh, &m));
        }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- more works than a group has places for ---- */

enum { MANY = 1100 };

static ls_status many_buckets(ls_group *group, void *context) {
    static const int strategies[] = {LS_STRATEGY_ZERO1, LS_STRATEGY_ZERO2, LS_STRATEGY_ZERO3};
    static _Thread_local int64_t ones[MANY];
    (void)context;
    for (int i = 0; i < MANY; i++) ones[i] = 1;
    for (size_t k = 0; k < 4 * COUNT_OF(strategies); k++) {
        toy model;
        ls_ddp *ddp = NULL;
        ls_comm_hook *hook = NULL;
        ls_ddp_opts opts = LS_DDP_OPTS_INIT;
        ls_unit_use everything[MANY];
        toy_init(&model, ones, MANY, 0);
        for (int i = 0; i < MANY; i++) everything[i] = (ls_unit_use){0, i};
        opts.strategy = strategies[k % COUNT_OF(strategies)];
        opts.replicas = LS_REPLICAS_PRIVATE;
        opts.bucket_cap_mb = opts.first_bucket_mb = 1e-6;
        opts.shard_size = k / COUNT_OF(strategies) % 2 ? 0 : 1;
        if (k >= 2 * COUNT_OF(strategies)) LSI_TRY(ls_hook_create(LS_HOOK_INT8, NULL, &hook));
        opts.hook = hook;
        opts.uses = everything;
        opts.n_uses = MANY;
        LSI_TRY(ls_ddp_create(group, model.params, MANY, &opts, &ddp));
        for (int64_t step = 0; step < 2; step++) {
            LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
            LSI_TRY(ls_ddp_begin_backward(ddp));
            for (int i = MANY - 1; i >= 0; i--) {
                LSI_TRY(ls_ddp_grad_needed(ddp, i));
                toy_write_gradient(&model, i, step, ls_group_rank(group), 0);
                LSI_TRY(ls_ddp_grad_ready(ddp, i));
            }
            LSI_TRY(ls_ddp_end_backward(ddp));
            LSI_TRY(ls_ddp_finish_step(ddp));
            LSI_TRY(ls_ddp_update(ddp, &toy_adamw));
        }
        ls_ddp_destroy(ddp);
        ls_hook_destroy(hook);
        toy_fini(&model);
    }
    return LS_OK;
}

static void works_beyond_the_places_of_a_group_wait(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, many_buckets, NULL));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- given up with a gather from the file in flight ---- */

static ls_status give_up_ahead(ls_group *group, void *context) {
    (void)context;
    for (int k = 0; k < 4; k++) {
        setting s = {.strategy = LS_STRATEGY_ZERO3,
                     .replicas = LS_REPLICAS_PRIVATE,
                     .dtype = LS_DTYPE_F32,
                     .prefetch = k,
                     .unused = -1};
        toy model;
        ls_ddp *ddp = NULL;
        ls_ddp_opts opts = options_of(&s, s.strategy);
        opts.offload = LS_OFFLOAD_PARAMS;
        opts.offload_dir = "/tmp";
        toy_init(&model, counts, N_PARAMS, 0);
        LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
        LSI_TRY(ls_ddp_before_forward(ddp, 0));
        ls_ddp_destroy(ddp);
        LSI_TRY(ls_barrier(group, NULL));
        toy_fini(&model);
    }
    return LS_OK;
}

static void a_file_stays_while_peers_read_it(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 3, give_up_ahead, NULL));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(works_beyond_the_places_of_a_group_wait),
        cmocka_unit_test(a_file_stays_while_peers_read_it),
        cmocka_unit_test(units_are_gathered_for_what_reads_them),
        cmocka_unit_test(weights_are_those_of_ddp),
        cmocka_unit_test(meshes_have_the_bits_of_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
