/* Frozen parameters of private ZeRO-3, which are sharded and gathered as the trained ones are, but
 * have no gradients: against DDP, bit for bit, and what a rank keeps of them.
 *
 * Gradients depend on the values that a unit computes with, frozen ones among them. What no unit
 * uses (p6) the model writes itself. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "harness/ranks.h"
#include "parallel/ddp_impl.h"
#include "parallel/deal.h"
#include "parallel/hybrid.h"
#include "parallel/memory.h"

#include "lone.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 3, MAX_ELEMS = 8000 };

/* ---- a model ---- */

/* p0 is used by the first unit and the last, as a tied embedding is, p5 by two units that follow
 * each other, p6 by none. */
static const int64_t sizes[] = {1003, 17, 0, 5003, 1, 100, 8, 7, 64, 333};
static const ls_unit_use uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {2, 4}, {2, 5},
                                   {3, 5}, {3, 7}, {4, 8}, {4, 9}, {4, 0}};
/* The same, where backward of some units does not look at some of them. */
enum { LOOK_UP = LS_USE_FORWARD_ONLY };
static const ls_unit_use lookups[COUNT_OF(uses)] = {
    {0, 0, LOOK_UP}, {0, 1, LOOK_UP}, {1, 2}, {1, 3, LOOK_UP}, {2, 4}, {2, 5, LOOK_UP},
    {3, 5},          {3, 7},          {4, 8}, {4, 9, LOOK_UP}, {4, 0}};
enum { N_PARAMS = COUNT_OF(sizes), N_UNITS = 5, UNUSED = 6 };

typedef enum source { FROM_VALUES, FROM_HALVES, FROM_FUNCTION } source;

typedef struct setting {
    const char *frozen; /* digits: parameters */
    int n_ranks, shard_size;
    ls_dtype dtype;
    source source;
    int64_t accumulation, persist_below;
    int prefetch, reshard, offload;
    int64_t slice; /* elements of one of offloaded states; 0: as usual */
    double gather_limit_mb;
    bool looks_up, evaluates, jitter, finds_unused;
} setting;

static bool is_frozen(const setting *s, int param) {
    return param == UNUSED || strchr(s->frozen, '0' + param);
}

static bool is_narrow(const setting *s, int param) {
    return s->dtype == LS_DTYPE_BF16 && param != UNUSED;
}

static const ls_unit_use *find_use(const setting *s, int unit, int param) {
    const ls_unit_use *table = s->looks_up ? lookups : uses;
    for (size_t k = 0; k < COUNT_OF(uses); k++)
        if (table[k].unit == unit && table[k].param == param) return &table[k];
    return NULL;
}

static int first_unit(const setting *s, int param) {
    int unit = 0;
    while (unit < N_UNITS && !find_use(s, unit, param)) unit++;
    return unit;
}

typedef struct model {
    toy toy;
    uint16_t upper[MAX_ELEMS], lower[MAX_ELEMS];
    float *wide[N_PARAMS]; /* where values were at first */
    uint16_t *lower_halves[N_PARAMS];
} model;

static void model_init(model *m, const setting *s, int rank) {
    int64_t counts[N_PARAMS];
    for (int i = 0; i < N_PARAMS; i++) counts[i] = is_frozen(s, i) ? -sizes[i] - 1 : sizes[i];
    toy_init(&m->toy, counts, N_PARAMS, rank);
    m->toy.params[0].flags |= LS_PARAM_NO_DECAY;
    int64_t at = 0;
    for (int i = 0; i < N_PARAMS; i++) {
        ls_param *param = &m->toy.params[i];
        m->wide[i] = param->data;
        m->lower_halves[i] = m->lower + at;
        if (!is_narrow(s, i)) continue;
        ls_bf16_split(param->data, param->count, m->upper + at, m->lower + at);
        param->data = m->upper + at;
        param->dtype = LS_DTYPE_BF16;
        at += param->count;
    }
}

/* The values of a toy of rank 0. */
static ls_status fill(void *context, int param, int64_t begin, int64_t count, float *values) {
    (void)context;
    for (int64_t e = 0; e < count; e++) values[e] = rough_value(0, param, begin + e);
    return LS_OK;
}

static float value_of(const ls_param *param, int64_t e) {
    if (param->dtype == LS_DTYPE_BF16) return lsi_bf16_to_f32(((const uint16_t *)param->data)[e]);
    return ((const float *)param->data)[e];
}

/* ---- a pass ---- */

/* Of all that this pass of the unit reads. What it does not read is not there: ddp, whose data
 * always is, is not asked. */
static ls_status read_unit(const setting *s, const model *m, int unit, bool is_backward,
                           bool gathers, float *sum) {
    *sum = 0;
    for (int i = 0; i < N_PARAMS; i++) {
        const ls_param *param = &m->toy.params[i];
        const ls_unit_use *use = find_use(s, unit, i);
        bool is_read = use && !(is_backward && use->flags == LOOK_UP);
        if (gathers && use && !is_read && param->count >= s->persist_below)
            RANK_CHECK(!param->data, "unit %d: parameter %d is there", unit, i);
        if (!is_read) continue;
        RANK_CHECK(param->data, "unit %d: parameter %d has no data", unit, i);
        for (int64_t e = 0; e < param->count; e++) *sum += value_of(param, e);
    }
    return LS_OK;
}

static ls_status forward(const setting *s, const model *m, ls_ddp *ddp, bool gathers,
                         float sums[N_UNITS]) {
    for (int u = 0; u < N_UNITS; u++) {
        LSI_TRY(ls_ddp_before_forward(ddp, u));
        LSI_TRY(read_unit(s, m, u, false, gathers, &sums[u]));
        if (s->jitter) usleep((useconds_t)(rand() % 300));
        LSI_TRY(ls_ddp_after_forward(ddp, u));
    }
    return LS_OK;
}

static ls_status backward_unit(const setting *s, const model *m, ls_ddp *ddp, int unit,
                               bool gathers, float seen, int64_t step, int64_t micro) {
    float here;
    LSI_TRY(ls_ddp_before_backward(ddp, unit));
    LSI_TRY(read_unit(s, m, unit, true, gathers, &here));
    for (int i = N_PARAMS - 1; i >= 0; i--) {
        const ls_param *param = &m->toy.params[i];
        if (is_frozen(s, i) || first_unit(s, i) != unit) continue;
        if (s->finds_unused && i % 2 && step % 2) continue;
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        toy_write_gradient(&m->toy, i, step, micro, ls_ddp_accumulates(ddp));
        for (int64_t e = 0; e < param->count; e++)
            ((float *)param->grad)[e] += 1e-3f * here + 1e-4f * seen;
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_after_backward(ddp, unit);
}

static ls_status pass(const setting *s, const model *m, ls_ddp *ddp, bool gathers, int64_t step,
                      int64_t micro) {
    float seen[N_UNITS];
    LSI_TRY(forward(s, m, ddp, gathers, seen));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int u = N_UNITS - 1; u >= 0; u--)
        LSI_TRY(backward_unit(s, m, ddp, u, gathers, seen[u], step, micro));
    return ls_ddp_end_backward(ddp);
}

/* ---- training ---- */

static ls_status make_step(const setting *s, model *m, ls_ddp *ddp, bool gathers,
                           const lsi_deal *deal, int rank, int64_t step, double *norm) {
    ls_adamw_opts opts = toy_adamw;
    float seen[N_UNITS];
    double scale = 1.0 / (double)(s->accumulation * deal->n_ranks);
    LSI_TRY(ls_ddp_begin_step(ddp, deal->count[rank], scale));
    for (int64_t i = 0; i < deal->count[rank]; i++)
        LSI_TRY(pass(s, m, ddp, gathers, step, lsi_deal_number(deal, rank, i)));
    LSI_TRY(ls_ddp_finish_step(ddp));
    LSI_TRY(ls_ddp_grad_norm(ddp, norm));
    opts.grad_scale = ls_clip_factor(*norm, 0.5);
    LSI_TRY(ls_ddp_update(ddp, &opts));
    if (s->evaluates) LSI_TRY(forward(s, m, ddp, gathers, seen));
    for (int64_t e = 0; e < sizes[UNUSED]; e++) m->wide[UNUSED][e] += (float)step;
    return ls_ddp_check_weights(ddp);
}

typedef struct result {
    float weights[MAX_ELEMS];
    double norm;
} result;

static ls_status collect(ls_ddp *ddp, result *r) {
    float *at = r->weights;
    for (int i = 0; i < N_PARAMS; at += sizes[i++]) LSI_TRY(ls_ddp_get_values(ddp, i, at));
    return LS_OK;
}

static ls_ddp_opts options_of(const setting *s, int strategy, model *m) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.reproducible = s->accumulation > 1;
    opts.find_unused_parameters = s->finds_unused;
    if (s->source != FROM_VALUES && s->dtype == LS_DTYPE_BF16) opts.lower_halves = m->lower_halves;
    if (strategy == LS_STRATEGY_DDP) return opts;
    opts.strategy = strategy;
    opts.replicas = LS_REPLICAS_PRIVATE;
    opts.uses = s->looks_up ? lookups : uses;
    opts.n_uses = COUNT_OF(uses);
    opts.shard_size = s->shard_size;
    opts.prefetch = s->prefetch;
    opts.reshard_after_forward = s->reshard;
    opts.gather_limit_mb = s->gather_limit_mb;
    opts.persist_below = s->persist_below;
    opts.offload = s->offload;
    opts.offload_dir = s->offload ? "/tmp" : NULL;
    if (s->source != FROM_FUNCTION) return opts;
    opts.lower_halves = NULL;
    opts.fill = fill;
    for (int i = 0; i < N_PARAMS; i++)
        if (i != UNUSED) m->toy.params[i].data = NULL;
    return opts;
}

static ls_status deal_out(ls_group *group, const setting *s, int strategy, lsi_deal *deal) {
    int n_ranks = ls_group_world_size(group);
    int64_t n = s->accumulation * n_ranks;
    bool reproducible = s->accumulation > 1;
    if (strategy == LS_STRATEGY_DDP) return lsi_deal_micro_batches(deal, n, n_ranks, reproducible);
    return lsi_deal_rounds(deal, n, n_ranks, s->shard_size > 0 ? s->shard_size : n_ranks,
                           reproducible);
}

/* What is gathered is nowhere afterwards; what no unit uses is where it was. */
static ls_status expect_left(const model *m, bool gathers) {
    RANK_CHECK(m->toy.params[UNUSED].data == m->wide[UNUSED], "p6 was moved");
    for (int i = 0; i < N_PARAMS && gathers; i++)
        RANK_CHECK(i == UNUSED || !m->toy.params[i].data, "parameter %d is left", i);
    return LS_OK;
}

static ls_status run(ls_group *group, const setting *s, int strategy, result *r) {
    static _Thread_local model m;
    lsi_deal deal;
    ls_ddp *ddp = NULL;
    int rank = ls_group_rank(group);
    bool gathers = strategy != LS_STRATEGY_DDP;
    LSI_TRY(deal_out(group, s, strategy, &deal));
    lsi_group_set_order(group, &deal.order);
    model_init(&m, s, rank);
    ls_ddp_opts opts = options_of(s, strategy, &m);
    LSI_TRY(ls_ddp_create(group, m.toy.params, N_PARAMS, &opts, &ddp));
    lsi_ddp_set_group_order(ddp, &deal.group_order);
    for (int64_t step = 0; step < N_STEPS; step++)
        LSI_TRY(make_step(s, &m, ddp, gathers, &deal, rank, step, &r->norm));
    LSI_TRY(collect(ddp, r));
    ls_ddp_destroy(ddp);
    LSI_TRY(expect_left(&m, gathers));
    toy_fini(&m.toy);
    return LS_OK;
}

static ls_status equals_ddp(ls_group *group, const setting *s) {
    static _Thread_local result ddp, sharded;
    LSI_TRY(lsi_context(run(group, s, LS_STRATEGY_DDP, &ddp), "ddp"));
    LSI_TRY(lsi_context(run(group, s, LS_STRATEGY_ZERO3, &sharded), "sharded"));
    RANK_CHECK(memcmp(&ddp.norm, &sharded.norm, sizeof ddp.norm) == 0, "norm %.17g, expected %.17g",
               sharded.norm, ddp.norm);
    const float *expected = ddp.weights, *found = sharded.weights;
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < sizes[i]; e++, expected++, found++)
            RANK_CHECK(memcmp(expected, found, sizeof *found) == 0,
                       "element %lld of p%d is %.9g, expected %.9g", (long long)e, i,
                       (double)*found, (double)*expected);
    return LS_OK;
}

static ls_status named(ls_group *group, void *context) {
    const setting *s = context;
    return lsi_context(
        equals_ddp(group, s),
        "%d ranks, %s frozen, shard_size %d, %s, source %d, accumulation %d, persist_below %d, "
        "prefetch %d, reshard %d, offload %d, slice %d, limit %g, looks_up %d, unused %d",
        ls_group_world_size(group), s->frozen, s->shard_size, ls_dtype_name(s->dtype),
        (int)s->source, (int)s->accumulation, (int)s->persist_below, s->prefetch, s->reshard,
        s->offload, (int)s->slice, s->gather_limit_mb, s->looks_up, s->finds_unused);
}

/* A table, of one or of two units that follow each other, of 1 and of 0 elements, whole units, a
 * part of each, all but one, all, and none. */
static const char *const masks[] = {"0",    "5",        "24",       "123",       "01234", "135",
                                    "2489", "01245789", "12345789", "012345789", ""};

/* Rows differ in one thing each from the first. */
static const setting rows[] = {
    {.prefetch = 0},
    {.prefetch = -1},
    {.prefetch = 3, .looks_up = true},
    {.prefetch = 9, .gather_limit_mb = 0.01},
    {.reshard = 1},
    {.reshard = 1, .evaluates = true, .prefetch = -1},
    {.reshard = 2, .evaluates = true},
    {.reshard = 2, .looks_up = true, .dtype = LS_DTYPE_BF16},
    {.persist_below = 101},
    {.persist_below = 1 << 20, .prefetch = 2},
    {.persist_below = 101, .dtype = LS_DTYPE_BF16, .source = FROM_FUNCTION},
    {.evaluates = true, .looks_up = true},
    {.source = FROM_FUNCTION},
    {.dtype = LS_DTYPE_BF16},
    {.dtype = LS_DTYPE_BF16, .source = FROM_HALVES},
    {.dtype = LS_DTYPE_BF16, .source = FROM_FUNCTION},
    {.finds_unused = true},
    {.jitter = true},
    {.offload = LS_OFFLOAD_OPTIMIZER},
    {.offload = LS_OFFLOAD_OPTIMIZER, .slice = 7, .dtype = LS_DTYPE_BF16, .source = FROM_HALVES},
    {.offload = LS_OFFLOAD_PARAMS, .slice = 500, .dtype = LS_DTYPE_BF16, .source = FROM_FUNCTION},
    {.offload = LS_OFFLOAD_PARAMS, .persist_below = 101, .prefetch = 3},
};

/* So that ddp and the sharded one make sums in one order. */
static setting completed(const setting *row, const char *frozen, int64_t accumulation) {
    setting s = *row;
    s.frozen = frozen;
    s.accumulation = accumulation;
    if (s.dtype == 0) s.dtype = LS_DTYPE_F32;
    return s;
}

static void assert_equals_ddp(int mode, int n_ranks, setting *s) {
    lsi_ddp_set_slice(s->slice);
    assert_ok(run_ranks((rank_mode)mode, n_ranks, named, s));
    lsi_ddp_set_slice(0);
}

static void every_row_has_the_weights_of_ddp(void **state) {
    (void)state;
    for (size_t m = 0; m < COUNT_OF(masks); m++)
        for (size_t k = 0; k < COUNT_OF(rows); k++) {
            setting s = completed(&rows[k], masks[m], 1 + (int64_t)(m + k) % 2);
            assert_equals_ddp(RANKS_AS_THREADS, 2, &s);
        }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void any_number_of_ranks_has_the_weights_of_ddp(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            for (size_t k = 0; k < COUNT_OF(rows); k++) {
                const char *frozen = masks[(k + (size_t)*n) % COUNT_OF(masks)];
                setting s = completed(&rows[k], frozen, 1 + (int64_t)k % 3);
                if (s.reshard > 1 && *n % s.reshard != 0) continue;
                assert_equals_ddp(mode, *n, &s);
            }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void meshes_have_the_weights_of_ddp(void **state) {
    static const setting meshes[] = {
        {.n_ranks = 4, .shard_size = 2},
        {.n_ranks = 4, .shard_size = 1},
        {.n_ranks = 4, .shard_size = 4, .reshard = 2, .dtype = LS_DTYPE_BF16},
        {.n_ranks = 8, .shard_size = 4, .reshard = 2, .source = FROM_FUNCTION},
        {.n_ranks = 8, .shard_size = 2, .persist_below = 101, .dtype = LS_DTYPE_BF16},
        {.n_ranks = 6, .shard_size = 2, .offload = LS_OFFLOAD_OPTIMIZER, .dtype = LS_DTYPE_BF16},
        {.n_ranks = 1, .shard_size = 1},
    };
    (void)state;
    for (size_t k = 0; k < COUNT_OF(meshes); k++)
        for (size_t m = 0; m < COUNT_OF(masks); m++)
            for (int mode = 0; mode < N_RANK_MODES; mode++) {
                setting s = completed(&meshes[k], masks[m], 1 + (int64_t)m % 2);
                assert_equals_ddp(mode, s.n_ranks, &s);
            }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- how often they are gathered ---- */

/* In a micro-batch, by parameter. Frozen ones come and go as trained ones do; what persists was
 * gathered before. */
typedef struct gather_row {
    const char *name, *frozen;
    int reshard;
    int64_t persist_below;
    bool looks_up;
    int n_gathers[N_PARAMS];
} gather_row;

static const gather_row gather_rows[] = {
    {"none frozen", "", 0, 0, false, {3, 2, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"the table", "0", 0, 0, false, {3, 2, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"all but one", "01245789", 0, 0, false, {3, 2, 2, 2, 2, 2, 0, 2, 1, 1}},
    {"looked up", "0135", 0, 0, true, {2, 1, 2, 1, 2, 2, 0, 2, 1, 1}},
    {"kept", "0135", 1, 0, false, {2, 1, 1, 1, 1, 1, 0, 1, 1, 1}},
    {"persist", "0145", 0, 101, false, {3, 0, 0, 2, 0, 0, 0, 0, 0, 1}},
};

/* Buckets with gradients first. */
static ls_status expect_gathers(const gather_row *row, const setting *s, const ls_ddp *ddp,
                                int n_micro) {
    bool was_frozen = false;
    for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
        ls_bucket_info info;
        LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
        bool frozen = is_frozen(s, info.first_param);
        int expected = n_micro * row->n_gathers[info.first_param];
        RANK_CHECK(info.n_gathers == expected, "%s, parameter %d: %d gathers, expected %d",
                   row->name, info.first_param, info.n_gathers, expected);
        RANK_CHECK(frozen >= was_frozen && (info.posted_ms != info.posted_ms) == frozen &&
                       info.bytes == (frozen ? 0 : 4 * info.count),
                   "%s, bucket %d: %lld bytes, posted %g", row->name, b, (long long)info.bytes,
                   info.posted_ms);
        was_frozen = frozen;
    }
    return LS_OK;
}

static ls_status count_gathers(ls_group *group, void *context) {
    enum { N_MICRO = 2 };
    static _Thread_local model m;
    const gather_row *row = context;
    const setting s = {.frozen = row->frozen,
                       .dtype = LS_DTYPE_F32,
                       .accumulation = 1,
                       .reshard = row->reshard,
                       .persist_below = row->persist_below,
                       .looks_up = row->looks_up};
    ls_ddp *ddp = NULL;
    model_init(&m, &s, 0);
    ls_ddp_opts opts = options_of(&s, LS_STRATEGY_ZERO3, &m);
    LSI_TRY(ls_ddp_create(group, m.toy.params, N_PARAMS, &opts, &ddp));
    for (int64_t step = 0; step < 2; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, N_MICRO, 0));
        for (int i = 0; i < N_MICRO; i++) LSI_TRY(pass(&s, &m, ddp, true, step, i));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(ls_ddp_update(ddp, &toy_adamw));
        LSI_TRY(expect_gathers(row, &s, ddp, N_MICRO));
    }
    ls_ddp_destroy(ddp);
    toy_fini(&m.toy);
    return LS_OK;
}

static void frozen_units_are_gathered_as_others_are(void **state) {
    (void)state;
    for (size_t k = 0; k < COUNT_OF(gather_rows); k++)
        assert_ok(run_ranks(RANKS_AS_THREADS, 4, count_gathers, (void *)&gather_rows[k]));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- what a rank keeps ---- */

typedef struct keeping {
    const char *frozen;
    ls_dtype dtype;
    int offload;
} keeping;

static ls_status expect_bytes(const lsi_mem_estimate *formula, const int64_t *before,
                              lsi_mem_kind kind) {
    double found = (double)(lsi_mem_now(kind) - before[kind]);
    double expected = (double)formula->kinds[kind].bytes;
    /* a line for each bucket, which the formula leaves out, and rounding to lines of slices */
    RANK_CHECK(fabs(found - expected) <= 0.02 * expected + 64 * (N_PARAMS + 2),
               "%.0f bytes of %s, expected %.0f", found, lsi_mem_kind_name(kind), expected);
    return LS_OK;
}

static ls_status keep_shards(ls_group *group, void *context) {
    static _Thread_local model m;
    static _Thread_local float values[MAX_ELEMS];
    const keeping *k = context;
    const setting s = {.frozen = k->frozen,
                       .dtype = k->dtype,
                       .accumulation = 1,
                       .offload = k->offload,
                       .source = FROM_FUNCTION};
    lsi_memory_input in = {.strategy = LS_STRATEGY_ZERO3,
                           .replicas = LS_REPLICAS_PRIVATE,
                           .offload = k->offload,
                           .n_ranks = ls_group_world_size(group),
                           .has_lower_halves = true};
    lsi_mem_estimate formula;
    int64_t before[LSI_MEM_N_KINDS], n_trained = 0, n_narrow = 0;
    lsi_deal deal;
    double norm;
    ls_ddp *ddp = NULL;
    for (int i = 0; i < N_PARAMS; i++) {
        if (i == UNUSED) continue;
        if (is_frozen(&s, i))
            *(is_narrow(&s, i) ? &in.frozen_narrow_elems : &in.frozen_wide_elems) += sizes[i];
        else
            *(is_narrow(&s, i) ? &in.narrow_elems : &in.wide_elems) += sizes[i];
        n_trained += is_frozen(&s, i) ? 0 : sizes[i];
        n_narrow += is_narrow(&s, i) ? sizes[i] : 0;
    }
    lsi_memory_formula(&in, &formula);
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
        before[kind] = lsi_mem_now((lsi_mem_kind)kind);
    LSI_TRY(deal_out(group, &s, LS_STRATEGY_ZERO3, &deal));
    model_init(&m, &s, 0);
    ls_ddp_opts opts = options_of(&s, LS_STRATEGY_ZERO3, &m);
    LSI_TRY(ls_ddp_create(group, m.toy.params, N_PARAMS, &opts, &ddp));
    LSI_TRY(make_step(&s, &m, ddp, true, &deal, ls_group_rank(group), 0, &norm));
    LSI_TRY(expect_bytes(&formula, before, LSI_MEM_PARAMS));
    LSI_TRY(expect_bytes(&formula, before, LSI_MEM_OPTIMIZER));
    LSI_TRY(expect_bytes(&formula, before, LSI_MEM_GRADS));
    int64_t mine = ls_ddp_state_bytes(ddp), all[LSI_MAX_RANKS], sum = 0;
    LSI_TRY(ls_all_gather(group, &mine, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 0; r < ls_group_world_size(group); r++) sum += all[r];
    RANK_CHECK(sum == 8 * n_trained + 2 * n_narrow, "%lld bytes of states, expected %lld",
               (long long)sum, (long long)(8 * n_trained + 2 * n_narrow));
    for (int i = 0; i < N_PARAMS; i++) {
        RANK_CHECK(i == UNUSED || !m.toy.params[i].data, "parameter %d is there", i);
        LSI_TRY(ls_ddp_get_values(ddp, i, values));
        for (int64_t e = 0; e < sizes[i] && is_frozen(&s, i) && i != UNUSED; e++)
            RANK_CHECK(values[e] == rough_value(0, i, e), "element %lld of p%d is %g", (long long)e,
                       i, (double)values[e]);
    }
    ls_ddp_destroy(ddp);
    toy_fini(&m.toy);
    return LS_OK;
}

/* Processes, so that what is counted is a rank's own. */
static void a_rank_keeps_its_shard_of_frozen_parameters(void **state) {
    static const keeping keepings[] = {
        {"", LS_DTYPE_F32, 0},
        {"3", LS_DTYPE_F32, 0},
        {"0124578", LS_DTYPE_BF16, 0},
        {"01245789", LS_DTYPE_F32, LS_OFFLOAD_OPTIMIZER},
        {"3", LS_DTYPE_BF16, LS_OFFLOAD_OPTIMIZER},
        {"3", LS_DTYPE_BF16, LS_OFFLOAD_PARAMS},
    };
    (void)state;
    for (size_t k = 0; k < COUNT_OF(keepings); k++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, keep_shards, (void *)&keepings[k]));
}

/* T031: 1000 parameters of one unit, of which 100 are trained: 4000 bytes of values, 400 of
 * gradients and 800 of states in all, and padding of a line for each slice. */
static ls_status keep_a_tenth(ls_group *group, void *context) {
    enum { FROZEN = 900, TRAINED = 100, N_KINDS = 3, SLICES = 3, LINE = 64 };
    static const lsi_mem_kind kinds[N_KINDS] = {LSI_MEM_PARAMS, LSI_MEM_GRADS, LSI_MEM_OPTIMIZER};
    static const int64_t lengths[] = {-FROZEN, TRAINED};
    static const ls_unit_use both[] = {{.param = 0}, {.param = 1}};
    toy t;
    ls_ddp *ddp = NULL;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    int64_t mine = 0, all[LSI_MAX_RANKS], sum = 0, n = ls_group_world_size(group);
    (void)context;
    opts.strategy = LS_STRATEGY_ZERO3;
    opts.replicas = LS_REPLICAS_PRIVATE;
    opts.uses = both;
    opts.n_uses = COUNT_OF(both);
    toy_init(&t, lengths, COUNT_OF(lengths), 0);
    for (int k = 0; k < N_KINDS; k++) mine -= lsi_mem_now(kinds[k]);
    LSI_TRY(ls_ddp_create(group, t.params, t.n_params, &opts, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_before_forward(ddp, 0));
    LSI_TRY(ls_ddp_after_forward(ddp, 0));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    LSI_TRY(ls_ddp_before_backward(ddp, 0));
    LSI_TRY(ls_ddp_grad_needed(ddp, 1));
    toy_write_gradient(&t, 1, 0, ls_group_rank(group), 0);
    LSI_TRY(ls_ddp_grad_ready(ddp, 1));
    LSI_TRY(ls_ddp_after_backward(ddp, 0));
    LSI_TRY(ls_ddp_end_backward(ddp));
    LSI_TRY(ls_ddp_finish_step(ddp));
    LSI_TRY(ls_ddp_update(ddp, &toy_adamw));
    for (int k = 0; k < N_KINDS; k++) mine += lsi_mem_now(kinds[k]);
    LSI_TRY(ls_all_gather(group, &mine, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 0; r < n; r++) sum += all[r];
    RANK_CHECK(sum >= 5200 && sum <= 5200 + n * SLICES * LINE, "%lld bytes in all", (long long)sum);
    RANK_CHECK(mine <= 5200 / n + (SLICES + 2) * LINE, "%lld bytes", (long long)mine);
    ls_ddp_destroy(ddp);
    toy_fini(&t);
    return LS_OK;
}

static void a_unit_may_mix_frozen_and_trained(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, keep_a_tenth, NULL));
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 4, keep_a_tenth, NULL));
}

/* ---- are replicas the same ---- */

/* Two groups of one rank, the second of which has another p3. */
static ls_status change_one(ls_group *group, void *context) {
    static _Thread_local model m;
    enum { CHANGED = 3 };
    const setting s = {.frozen = "0135", .dtype = LS_DTYPE_F32, .accumulation = 1, .shard_size = 1};
    ls_ddp *ddp = NULL;
    (void)context;
    model_init(&m, &s, 0);
    ls_ddp_opts opts = options_of(&s, LS_STRATEGY_ZERO3, &m);
    LSI_TRY(ls_ddp_create(group, m.toy.params, N_PARAMS, &opts, &ddp));
    LSI_TRY(ls_ddp_check_weights(ddp));
    int bucket = ddp->plan.bucket_of[CHANGED];
    if (ls_group_rank(group) == 1) ddp->units.shard[lsi_ddp_slice_offset(ddp, bucket, 0)] ^= 1;
    RANK_FAILS(ls_ddp_check_weights(ddp), LS_ERR_MISMATCH,
               "the first parameter that differs is p3");
    ls_ddp_destroy(ddp);
    toy_fini(&m.toy);
    return LS_OK;
}

static void replicas_of_frozen_parameters_are_compared(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, change_one, NULL));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- misuse ---- */

static void open_with(lone *f, model *m, const setting *s, ls_ddp_opts *opts) {
    assert_ok(lsi_region_create(1, 1 << 20, &f->region));
    assert_ok(lsi_group_attach(f->region, 0, &f->group));
    f->ddp = NULL;
    model_init(m, s, 0);
    f->model = m->toy; /* which lone_close releases */
    *opts = options_of(s, LS_STRATEGY_ZERO3, m);
}

static void frozen_parameters_get_no_gradient(void **state) {
    static model m;
    const setting s = {.frozen = "05", .dtype = LS_DTYPE_F32, .accumulation = 1};
    ls_ddp_opts opts;
    lone f;
    (void)state;
    open_with(&f, &m, &s, &opts);
    assert_ok(ls_ddp_create(f.group, m.toy.params, N_PARAMS, &opts, &f.ddp));
    assert_ok(ls_ddp_begin_step(f.ddp, 1, 0));
    assert_ok(ls_ddp_begin_backward(f.ddp));
    assert_fails(ls_ddp_grad_needed(f.ddp, 0), LS_ERR_STATE, "parameter p0 is frozen");
    assert_fails(ls_ddp_grad_ready(f.ddp, 5), LS_ERR_STATE, "parameter p5 is frozen");
    assert_null(m.toy.params[0].grad);
    lone_close(&f);
}

/* Where values come from a function, what stays with the caller needs some. */
static void what_is_not_gathered_needs_data(void **state) {
    static model m;
    const setting s = {
        .frozen = "5", .dtype = LS_DTYPE_F32, .accumulation = 1, .source = FROM_FUNCTION};
    static const struct {
        int strategy, replicas;
        bool without_uses;
        const char *text;
    } table[] = {
        {LS_STRATEGY_ZERO3, LS_REPLICAS_PRIVATE, true, "parameter p5 needs data"},
        {LS_STRATEGY_ZERO3, LS_REPLICAS_SHARED, true, "parameter p5 needs data"},
        {LS_STRATEGY_ZERO2, LS_REPLICAS_PRIVATE, false, "parameter p5 needs data"},
        {LS_STRATEGY_ZERO3, LS_REPLICAS_PRIVATE, false, "parameter p6 needs data"},
    };
    (void)state;
    for (size_t k = 0; k < COUNT_OF(table); k++) {
        ls_ddp_opts opts;
        lone f;
        open_with(&f, &m, &s, &opts);
        if (strchr(table[k].text, '6')) m.toy.params[UNUSED].data = NULL;
        opts.strategy = table[k].strategy;
        opts.replicas = table[k].replicas;
        if (table[k].without_uses) opts.uses = NULL, opts.n_uses = 0;
        assert_fails(ls_ddp_create(f.group, m.toy.params, N_PARAMS, &opts, &f.ddp), LS_ERR_ARGUMENT,
                     table[k].text);
        lone_close(&f);
    }
}

/* Without `uses` nobody says that the model does not write them itself. */
static void without_uses_they_stay_where_they_are(void **state) {
    static model m;
    const setting s = {.frozen = "5", .dtype = LS_DTYPE_F32, .accumulation = 1};
    ls_ddp_opts opts;
    lone f;
    (void)state;
    open_with(&f, &m, &s, &opts);
    opts.uses = NULL;
    opts.n_uses = 0;
    assert_ok(ls_ddp_create(f.group, m.toy.params, N_PARAMS, &opts, &f.ddp));
    for (int i = 0; i < N_PARAMS; i++)
        assert_ptr_equal(m.toy.params[i].data, is_frozen(&s, i) ? m.wide[i] : NULL);
    lone_close(&f);
}

/* A ddp that could not be made leaves parameters as they were. */
static void failed_allocations_move_nothing(void **state) {
    static model m;
    const setting s = {.frozen = "0135",
                       .dtype = LS_DTYPE_BF16,
                       .accumulation = 1,
                       .source = FROM_HALVES,
                       .persist_below = 18};
    (void)state;
    for (int64_t n = 1;; n++) {
        ls_ddp_opts opts;
        lone f;
        void *before[N_PARAMS];
        open_with(&f, &m, &s, &opts);
        for (int i = 0; i < N_PARAMS; i++) before[i] = m.toy.params[i].data;
        lsi_mem_fail_at(n);
        ls_status status = ls_ddp_create(f.group, m.toy.params, N_PARAMS, &opts, &f.ddp);
        bool has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        for (int i = 0; i < N_PARAMS && has_failed; i++)
            assert_ptr_equal(m.toy.params[i].data, before[i]);
        lone_close(&f);
        if (!has_failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_parameters_get_no_gradient),
        cmocka_unit_test(what_is_not_gathered_needs_data),
        cmocka_unit_test(without_uses_they_stay_where_they_are),
        cmocka_unit_test(failed_allocations_move_nothing),
        cmocka_unit_test(frozen_units_are_gathered_as_others_are),
        cmocka_unit_test(a_rank_keeps_its_shard_of_frozen_parameters),
        cmocka_unit_test(a_unit_may_mix_frozen_and_trained),
        cmocka_unit_test(replicas_of_frozen_parameters_are_compared),
        cmocka_unit_test(every_row_has_the_weights_of_ddp),
        cmocka_unit_test(any_number_of_ranks_has_the_weights_of_ddp),
        cmocka_unit_test(meshes_have_the_weights_of_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
