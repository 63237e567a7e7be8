/* Hooks under ls_ddp: through micro-batches, buckets that are rebuilt after the first step, F64
 * beside F32, and more than one stage. */
#include "hooks.h"

#include <lockstep/parallel.h>

#include "base/mem.h"

enum { N_PARAMS = 5, MOST_ELEMS = 2048, N_STEPS = 4, DRAIN = 40 };

static const struct spec {
    const char *name;
    ls_dtype dtype;
    int64_t rows, columns;
} specs[N_PARAMS] = {{"embedding", LS_DTYPE_F32, 32, 64},
                     {"bias", LS_DTYPE_F32, 33, 0},
                     {"exact", LS_DTYPE_F64, 20, 0},
                     {"weight", LS_DTYPE_F32, 24, 36},
                     {"gain", LS_DTYPE_F32, 1, 0}};

/* Backward makes them ready in this order, which is none that buckets have at first. */
static const int ready[N_PARAMS] = {1, 3, 0, 4, 2};

typedef struct model {
    ls_param params[N_PARAMS];
    double data[N_PARAMS][MOST_ELEMS];
    double sums[N_PARAMS][MOST_ELEMS]; /* of gradients after each step */
} model;

static model *model_make(void) {
    model *m = calloc(1, sizeof *m);
    for (int i = 0; i < N_PARAMS; i++) {
        const struct spec *s = &specs[i];
        m->params[i] = (ls_param){.name = s->name,
                                  .count = s->rows * (s->columns ? s->columns : 1),
                                  .dtype = s->dtype,
                                  .data = m->data[i],
                                  .n_dims = s->columns ? 2 : 1,
                                  .shape = {s->rows, s->columns}};
    }
    return m;
}

static double read_grad(const ls_param *param, int64_t e) {
    return param->dtype == LS_DTYPE_F64 ? ((double *)param->grad)[e] : ((float *)param->grad)[e];
}

static void write_grad(ls_ddp *ddp, const ls_param *param, int64_t e, double value) {
    if (ls_ddp_accumulates(ddp)) value += read_grad(param, e);
    if (param->dtype == LS_DTYPE_F64)
        ((double *)param->grad)[e] = value;
    else
        ((float *)param->grad)[e] = (float)value;
}

/* Two micro-batches a step; none has a gradient from N_STEPS on. */
static ls_status one_step(model *m, ls_ddp *ddp, int rank, int64_t step, double scale) {
    LSI_TRY(ls_ddp_begin_step(ddp, 2, scale));
    for (int micro = 0; micro < 2; micro++) {
        LSI_TRY(ls_ddp_begin_backward(ddp));
        for (int k = 0; k < N_PARAMS; k++) {
            int i = ready[k];
            for (int64_t e = 0; e < m->params[i].count; e++)
                write_grad(ddp, &m->params[i], e,
                           step < N_STEPS ? rig_whole(rank * 2 + micro, step, i, e) : 0);
            LSI_TRY(ls_ddp_grad_ready(ddp, i));
        }
        LSI_TRY(ls_ddp_end_backward(ddp));
    }
    LSI_TRY(ls_ddp_finish_step(ddp));
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < m->params[i].count; e++)
            m->sums[i][e] += read_grad(&m->params[i], e);
    return LS_OK;
}

static double true_sum(int n_ranks, int param, int64_t e, double scale) {
    double sum = 0;
    for (int64_t step = 0; step < N_STEPS; step++)
        for (int leaf = 0; leaf < 2 * n_ranks; leaf++) sum += rig_whole(leaf, step, param, e);
    return sum * scale;
}

/* ---- the table: how far sums over steps may be from the truth ---- */

typedef struct ddp_row {
    ls_hook_kind kind;
    ls_hook_opts opts;
    int64_t n_steps; /* enough for what was left out */
    double bound;    /* for F32; F64 is exact */
} ddp_row;

#define OPTS(...)                                                                                  \
    { .struct_size = sizeof(ls_hook_opts), __VA_ARGS__ }

/* Gradients of a rank and step are whole numbers up to 40, with 8 ranks a sum up to 320, times 1/4.
 * bf16: four sums up to 80, and the ranks' own numbers below 2^6 are exact: half of 2^-8 of each.
 * int8: half a unit of each rank (40 / 127 / 2) times 8 / 4, half a unit of the result (80 / 127 /
 * 2), four times. powersgd: rounding of sums up to a few thousand, in 44 steps. */
static const ddp_row rows[] = {
    {LS_HOOK_ALL_REDUCE, OPTS(.topk_share = 0), N_STEPS, 0},
    {LS_HOOK_BF16, OPTS(.topk_share = 0), N_STEPS, 4 * 80 * 0x1p-9},
    {LS_HOOK_FP16, OPTS(.topk_share = 0), N_STEPS, 0},
    {LS_HOOK_INT8, OPTS(.topk_share = 0), N_STEPS, 4 * (80.0 / 127 / 2 + 80.0 / 127 / 2)},
    {LS_HOOK_TOPK, OPTS(.topk_share = 0.1, .start_step = 1), N_STEPS + DRAIN, 0},
    {LS_HOOK_TOPK, OPTS(.topk_share = 0.1), N_STEPS, 0}, /* not before step 10 */
    {LS_HOOK_POWERSGD, OPTS(.powersgd_rank = 3, .start_step = -1), N_STEPS + DRAIN, 0.02},
    {LS_HOOK_POWERSGD, OPTS(.powersgd_rank = 3), N_STEPS, 0},
};

static ls_status check_sums(const model *m, const ddp_row *row, int n_ranks) {
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < m->params[i].count; e++) {
            double expected = true_sum(n_ranks, i, e, 0.25);
            double bound = specs[i].dtype == LS_DTYPE_F64 ? 0 : row->bound;
            RANK_CHECK(fabs(m->sums[i][e] - expected) <= bound, "%s, [%lld] is %.9g, expected %.9g",
                       m->params[i].name, (long long)e, m->sums[i][e], expected);
        }
    return LS_OK;
}

static ls_status check_alike(ls_group *group, model *m) {
    const int64_t n = N_PARAMS * MOST_ELEMS;
    double *first = calloc((size_t)n, sizeof *first);
    memcpy(first, m->sums, (size_t)n * sizeof *first);
    ls_status status = ls_broadcast(group, first, first, n, LS_DTYPE_F64, 0, NULL);
    bool differs = memcmp(first, m->sums, (size_t)n * sizeof *first) != 0;
    free(first);
    LSI_TRY(status);
    RANK_CHECK(!differs, "rank %d has other gradients than rank 0", ls_group_rank(group));
    return LS_OK;
}

static ls_status train(ls_group *group, void *context) {
    const ddp_row *row = context;
    model *m = model_make();
    ls_comm_hook *hook = NULL;
    ls_ddp *ddp = NULL;
    LSI_TRY(ls_hook_create(row->kind, &row->opts, &hook));
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.hook = hook;
    opts.bucket_cap_mb = opts.first_bucket_mb = 0.005; /* three buckets or four */
    LSI_TRY(ls_ddp_create(group, m->params, N_PARAMS, &opts, &ddp));
    for (int64_t step = 0; step < row->n_steps; step++)
        LSI_TRY(one_step(m, ddp, ls_group_rank(group), step, 0.25));
    LSI_TRY(lsi_context(check_sums(m, row, ls_group_world_size(group)), "%s", hook->name));
    LSI_TRY(lsi_context(check_alike(group, m), "%s", hook->name));
    ls_ddp_destroy(ddp);
    ls_hook_destroy(hook);
    free(m);
    return LS_OK;
}

static void sums_over_steps_are_the_true_ones(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            for (const int *n = rank_counts; *n; n++)
                assert_ok(run_ranks((rank_mode)mode, *n, train, (void *)&rows[r]));
    assert_int_equal(lsi_mem_now(LSI_MEM_BUCKETS), 0);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* Options of a rank's own are found when they make calls differ. */
static ls_status shares_differ(ls_group *group, void *context) {
    model *m = model_make();
    ls_comm_hook *hook = NULL;
    ls_ddp *ddp = NULL;
    (void)context;
    ls_hook_opts hook_opts =
        OPTS(.topk_share = ls_group_rank(group) == 1 ? 0.5 : 0.25, .start_step = -1);
    LSI_TRY(ls_hook_create(LS_HOOK_TOPK, &hook_opts, &hook));
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.hook = hook;
    LSI_TRY(ls_ddp_create(group, m->params, N_PARAMS, &opts, &ddp));
    ls_status status = one_step(m, ddp, ls_group_rank(group), 0, 0);
    RANK_CHECK(status == LS_ERR_MISMATCH, "status %d: %s", (int)status, ls_last_message());
    ls_ddp_destroy(ddp);
    ls_hook_destroy(hook);
    free(m);
    return LS_OK;
}

static void options_that_differ_are_found(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 3, shares_differ, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_steps_are_the_true_ones),
        cmocka_unit_test(options_that_differ_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
