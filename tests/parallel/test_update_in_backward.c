/* The update in the backward pass against ddp with ls_ddp_update, bit for bit: parameters and
 * float32 values after several steps, for every number of ranks, as threads and as processes, with
 * buckets of all sizes, frozen, tiny and empty parameters and ones that are larger than a block.
 * Each rank sees to it that a parameter does not change before it has said that its gradient is
 * ready, and not any more once ls_ddp_finish_step has returned. Then what is refused, what fails,
 * and memory.
 */
#include "harness/harness.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "harness/ranks.h"
#include "lone.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 3, MAX_ELEMS = 100000, MAX_PARAMS = 10 };
static const double MIB = 1024.0 * 1024.0;

typedef struct setting {
    int strategy;
    int64_t accumulation;
    double cap_bytes;
    bool is_large, is_narrow, reproducible, no_overlap, jitter;
    bool is_tied; /* the last parameter, first in its bucket, is ready last, as a tied table is */
    int average, nonfinite;
    double scale; /* given to ls_ddp_begin_step; 0: none */
} setting;

static const int64_t uneven[] = {17, 0, -8, 1, 1000, 7, -1, 16, 5003};
static const int64_t large[] = {16, 70001, -1001, 0, 7, 20000};

/* ---- a run ---- */

typedef struct player {
    const setting *s;
    bool is_early;
    toy model;
    ls_ddp *ddp;
    uint16_t *upper, *lower; /* halves of values where they are BF16 */
    uint16_t *lower_halves[MAX_PARAMS];
    unsigned char *seen; /* all values, as they were when they last could change */
} player;

static size_t value_bytes(const ls_param *param) {
    return (size_t)param->count * ls_dtype_bytes(param->dtype);
}

static unsigned char *seen_of(const player *p, int param) {
    unsigned char *at = p->seen;
    for (int i = 0; i < param; i++) at += value_bytes(&p->model.params[i]);
    return at;
}

static void look(const player *p) {
    for (int i = 0; i < p->model.n_params; i++)
        if (p->model.params[i].count > 0)
            memcpy(seen_of(p, i), p->model.params[i].data, value_bytes(&p->model.params[i]));
}

static ls_status expect_unchanged(const player *p, int param, const char *when) {
    const ls_param *at = &p->model.params[param];
    RANK_CHECK(at->count == 0 || memcmp(at->data, seen_of(p, param), value_bytes(at)) == 0,
               "%s: parameter %s has changed", when, at->name);
    return LS_OK;
}

static void hold_up(const player *p) {
    if (p->s->jitter) usleep((useconds_t)(rand() % 300));
}

/* The order in which gradients become ready: last to first, or the last one after all others. */
static int param_at(const player *p, int k) {
    int n = p->model.n_params;
    return p->s->is_tied ? (k == n - 1 ? n - 1 : n - 2 - k) : n - 1 - k;
}

static bool weighs(const setting *s) {
    return s->average == LS_AVERAGE_WEIGHTS || s->average == LS_AVERAGE_MEANS;
}

static ls_status backward(const player *p, int64_t step, int64_t micro) {
    if (weighs(p->s) && p->s->scale == 0) LSI_TRY(ls_ddp_weigh(p->ddp, (double)(1 + 2 * micro)));
    LSI_TRY(ls_ddp_begin_backward(p->ddp));
    for (int k = 0; k < p->model.n_params; k++) {
        int i = param_at(p, k);
        if (p->model.params[i].flags & LS_PARAM_FROZEN) continue;
        LSI_TRY(ls_ddp_grad_needed(p->ddp, i));
        toy_write_gradient(&p->model, i, step, micro, ls_ddp_accumulates(p->ddp));
        hold_up(p);
        LSI_TRY(expect_unchanged(p, i, "before its gradient is ready"));
        LSI_TRY(ls_ddp_grad_ready(p->ddp, i));
    }
    return ls_ddp_end_backward(p->ddp);
}

static ls_status train(const player *p, int rank) {
    const int64_t n = p->s->accumulation;
    for (int64_t step = 0; step < N_STEPS; step++) {
        ls_adamw_opts adamw = toy_adamw;
        adamw.lr /= (double)(1 + step);
        look(p);
        hold_up(p);
        for (int i = 0; i < p->model.n_params; i++)
            LSI_TRY(expect_unchanged(p, i, "after ls_ddp_finish_step"));
        LSI_TRY(ls_ddp_begin_step(p->ddp, n, p->s->scale));
        for (int64_t m = 0; m < n; m++) {
            if (p->is_early && m == n - 1) LSI_TRY(ls_ddp_plan_update(p->ddp, &adamw));
            LSI_TRY(backward(p, step, rank * n + m));
        }
        LSI_TRY(ls_ddp_finish_step(p->ddp));
        if (!p->is_early) LSI_TRY(ls_ddp_update(p->ddp, &adamw));
    }
    return LS_OK;
}

/* Values at full precision, one parameter behind the other, of those that are trained. */
static ls_status collect(const player *p, float *weights, int64_t *n) {
    *n = 0;
    for (int i = 0; i < p->model.n_params; i++) {
        const ls_param *param = &p->model.params[i];
        if (param->flags & LS_PARAM_FROZEN) continue;
        LSI_TRY(ls_ddp_get_values(p->ddp, i, weights + *n));
        for (int64_t e = 0; e < param->count && p->s->is_narrow; e++)
            RANK_CHECK(((const uint16_t *)param->data)[e] == lsi_upper_half(weights[*n + e]),
                       "%s: element %lld is not the upper half", param->name, (long long)e);
        *n += param->count;
    }
    return LS_OK;
}

static void narrow(player *p) {
    int64_t at = 0;
    for (int i = 0; i < p->model.n_params; i++) {
        ls_param *param = &p->model.params[i];
        ls_bf16_split(param->data, param->count, p->upper + at, p->lower + at);
        p->lower_halves[i] = p->lower + at;
        param->data = p->upper + at;
        param->dtype = LS_DTYPE_BF16;
        at += param->count;
    }
}

static ls_ddp_opts options_of(const player *p) {
    const setting *s = p->s;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.bucket_cap_mb = opts.first_bucket_mb = s->cap_bytes / MIB;
    opts.reproducible = s->reproducible;
    opts.no_overlap = s->no_overlap;
    opts.average = s->average;
    opts.nonfinite = s->nonfinite;
    if (s->is_narrow) opts.lower_halves = p->lower_halves;
    if (!p->is_early) return opts;
    opts.strategy = s->strategy;
    opts.update_in_backward = 7;
    return opts;
}

static ls_status play(ls_group *group, player *p, float *weights, int64_t *n) {
    const int64_t *counts = p->s->is_large ? large : uneven;
    toy_init(&p->model, counts, p->s->is_large ? COUNT_OF(large) : COUNT_OF(uneven),
             ls_group_rank(group));
    p->model.params[0].flags |= LS_PARAM_NO_DECAY;
    p->upper = malloc(MAX_ELEMS * sizeof *p->upper);
    p->lower = malloc(MAX_ELEMS * sizeof *p->lower);
    p->seen = malloc(MAX_ELEMS * sizeof(float));
    if (p->s->is_narrow) narrow(p);
    ls_ddp_opts opts = options_of(p);
    ls_status status = ls_ddp_create(group, p->model.params, p->model.n_params, &opts, &p->ddp);
    if (status == LS_OK) status = train(p, ls_group_rank(group));
    if (status == LS_OK) status = collect(p, weights, n);
    ls_ddp_destroy(p->ddp);
    free(p->upper);
    free(p->lower);
    free(p->seen);
    toy_fini(&p->model);
    return status;
}

static ls_status equals_ddp(ls_group *group, const setting *s) {
    static _Thread_local float weights[2][MAX_ELEMS];
    player late = {.s = s}, early = {.s = s, .is_early = true};
    int64_t n, n_found;
    LSI_TRY(play(group, &late, weights[0], &n));
    LSI_TRY(play(group, &early, weights[1], &n_found));
    RANK_CHECK(n == n_found, "%d elements, expected %d", (int)n_found, (int)n);
    for (int64_t i = 0; i < n; i++)
        RANK_CHECK(memcmp(&weights[0][i], &weights[1][i], sizeof(float)) == 0,
                   "element %lld is %.9g, expected %.9g", (long long)i, (double)weights[1][i],
                   (double)weights[0][i]);
    return LS_OK;
}

static ls_status try_setting(ls_group *group, const setting *s) {
    return lsi_context(equals_ddp(group, s),
                       "strategy %d, %d ranks, accumulation %d, cap %g, large %d, narrow %d, "
                       "average %d, scale %g, reproducible %d, no_overlap %d, tied %d, nonfinite "
                       "%d",
                       s->strategy, ls_group_world_size(group), (int)s->accumulation, s->cap_bytes,
                       s->is_large, s->is_narrow, s->average, s->scale, s->reproducible,
                       s->no_overlap, s->is_tied, s->nonfinite);
}

/* ---- the same bits ---- */

static const double caps[] = {1, 1024, 16384, 0};
enum { N_AVERAGES = LS_AVERAGE_MEANS + 1 };

/* What a row is besides: with two ranks all of it, with others one after the other. */
static void vary(setting *s, int at) {
    enum { PLAIN, REPRODUCIBLE, NO_OVERLAP, TIED, LOOKS, SCALED, N_WAYS };
    int way = at % N_WAYS;
    s->reproducible = way == REPRODUCIBLE;
    s->no_overlap = way == NO_OVERLAP;
    s->is_tied = way == TIED;
    s->nonfinite = way == LOOKS ? LS_NONFINITE_STOP : LS_NONFINITE_IGNORE;
    s->scale = way == SCALED ? 0.37 : 0;
    s->average = at % N_AVERAGES;
    s->is_narrow = at / N_AVERAGES % 2;
}

static ls_status every_setting(ls_group *group, void *context) {
    (void)context;
    int n_ways = ls_group_world_size(group) == 2 ? 30 : 2, row = 0;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++)
        for (size_t c = 0; c < COUNT_OF(caps); c++)
            for (int i = 0; i < n_ways; i++, row++) {
                setting s = {.strategy = strategy, .cap_bytes = caps[c]};
                vary(&s, n_ways == 30 ? i : row * 7 + ls_group_world_size(group));
                s.accumulation = strategy == LS_STRATEGY_ZERO1 ? 1 + row % 3 : 1;
                LSI_TRY(try_setting(group, &s));
            }
    return LS_OK;
}

static ls_status at_different_speeds(ls_group *group, void *context) {
    (void)context;
    for (int k = 0; k < 6; k++) {
        setting s = {.strategy = LS_STRATEGY_ZERO1 + k % 3,
                     .accumulation = k == 0 ? 2 : 1,
                     .cap_bytes = 65536,
                     .is_large = true,
                     .is_narrow = k >= 3,
                     .is_tied = k % 2,
                     .jitter = true};
        LSI_TRY(try_setting(group, &s));
    }
    return LS_OK;
}

static void weights_are_those_of_ddp(void **state) {
    (void)state;
    run_on_all_ranks(every_setting, NULL);
}

static void large_weights_are_those_of_ddp_at_different_speeds(void **state) {
    (void)state;
    run_on_all_ranks(at_different_speeds, NULL);
}

/* Updates by the group's thread, and on a link. */
static void threads_and_links_change_nothing(void **state) {
    (void)state;
    static const char *const links[] = {NULL, "latency_us=50", "latency_us=20,gb_per_s=1"};
    for (size_t k = 0; k < COUNT_OF(links); k++)
        for (int n = 2; n <= 4; n++) {
            setenv("LOCKSTEP_PROGRESS", "thread", 1);
            if (links[k]) setenv("LOCKSTEP_LINK", links[k], 1);
            ls_status status = run_ranks(RANKS_AS_THREADS, n, at_different_speeds, NULL);
            unsetenv("LOCKSTEP_PROGRESS");
            unsetenv("LOCKSTEP_LINK");
            assert_ok(status);
        }
}

/* ---- calls in a wrong order ---- */

static ls_status open_early(ls_group *group, int strategy, int nonfinite, toy *model,
                            ls_ddp **ddp) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.strategy = strategy;
    opts.nonfinite = nonfinite;
    opts.update_in_backward = 1;
    opts.bucket_cap_mb = opts.first_bucket_mb = 1e-6;
    toy_init(model, uneven, COUNT_OF(uneven), 0);
    return ls_ddp_create(group, model->params, model->n_params, &opts, ddp);
}

static ls_status pass(const toy *model, ls_ddp *ddp) {
    for (int i = model->n_params - 1; i >= 0; i--) {
        if (model->params[i].flags & LS_PARAM_FROZEN) continue;
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        toy_write_gradient(model, i, 0, 0, ls_ddp_accumulates(ddp));
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

static ls_status each_call_has_its_place(ls_group *group, void *context) {
    toy model;
    ls_ddp *ddp = NULL;
    double norm;
    ls_adamw_opts endless = toy_adamw;
    endless.lr = INFINITY;
    LSI_TRY(open_early(group, *(int *)context, LS_NONFINITE_IGNORE, &model, &ddp));
    RANK_FAILS(ls_ddp_plan_update(ddp, &toy_adamw), LS_ERR_STATE, "no step is open");
    for (int step = 0; step < 2; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
        /* that of the step before does not count */
        RANK_FAILS(ls_ddp_begin_backward(ddp), LS_ERR_STATE, "call ls_ddp_plan_update first");
        RANK_FAILS(ls_ddp_plan_update(ddp, &endless), LS_ERR_NUMERIC, "lr inf");
        LSI_TRY(ls_ddp_plan_update(ddp, &toy_adamw));
        LSI_TRY(ls_ddp_begin_backward(ddp));
        RANK_FAILS(ls_ddp_plan_update(ddp, &toy_adamw), LS_ERR_STATE, "a backward pass is open");
        LSI_TRY(pass(&model, ddp));
        RANK_FAILS(ls_ddp_plan_update(ddp, &toy_adamw), LS_ERR_STATE, "backward pass is over");
        LSI_TRY(ls_ddp_finish_step(ddp));
        RANK_FAILS(ls_ddp_update(ddp, &toy_adamw), LS_ERR_STATE, "ends with the update made");
        RANK_FAILS(ls_ddp_grad_norm(ddp, &norm), LS_ERR_STATE, "used up while they are made");
    }
    RANK_FAILS(ls_ddp_set_nonfinite(ddp, LS_NONFINITE_SKIP), LS_ERR_UNSUPPORTED,
               "no step can be left out");
    LSI_TRY(ls_ddp_set_nonfinite(ddp, LS_NONFINITE_STOP));
    LSI_TRY(ls_ddp_check_weights(ddp));
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static ls_status only_the_option_plans(ls_group *group, void *context) {
    toy model;
    ls_ddp *ddp = NULL;
    ls_ddp_opts opts = {.struct_size = sizeof opts, .strategy = *(int *)context};
    toy_init(&model, uneven, COUNT_OF(uneven), 0);
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    RANK_FAILS(ls_ddp_plan_update(ddp, &toy_adamw), LS_ERR_STATE, "update_in_backward is not set");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static ls_status sums_are_missed(ls_group *group, void *context) {
    toy model;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_early(group, *(int *)context, LS_NONFINITE_IGNORE, &model, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 2, 0));
    RANK_FAILS(ls_ddp_begin_backward(ddp), LS_ERR_UNSUPPORTED,
               "option update_in_backward needs the sum of the step's micro-batches");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void calls_out_of_place_are_refused(void **state) {
    (void)state;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++) {
        assert_ok(run_ranks(RANKS_AS_THREADS, 2, each_call_has_its_place, &strategy));
        assert_ok(run_ranks(RANKS_AS_THREADS, 2, only_the_option_plans, &strategy));
        if (strategy > LS_STRATEGY_ZERO1)
            assert_ok(run_ranks(RANKS_AS_THREADS, 2, sums_are_missed, &strategy));
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static ls_status ring_is_refused(ls_group *group, void *context) {
    toy model;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_early(group, *(int *)context, LS_NONFINITE_IGNORE, &model, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_plan_update(ddp, &toy_adamw));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    RANK_FAILS(pass(&model, ddp), LS_ERR_UNSUPPORTED, "LOCKSTEP_ALGO asks for ring");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void another_algorithm_is_refused(void **state) {
    (void)state;
    int strategy = LS_STRATEGY_ZERO1;
    setenv("LOCKSTEP_ALGO", "reducescatter=ring", 1);
    ls_status status = run_ranks(RANKS_AS_THREADS, 2, ring_is_refused, &strategy);
    unsetenv("LOCKSTEP_ALGO");
    assert_ok(status);
}

/* ---- steps that go wrong ---- */

typedef struct broken {
    int strategy;
    float bad[2]; /* what the two ranks have in the middle of p8 */
    const char *text;
} broken;

static ls_status step_with(const toy *model, ls_ddp *ddp, float bad) {
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_plan_update(ddp, &toy_adamw));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    LSI_TRY(ls_ddp_grad_needed(ddp, 8));
    toy_write_gradient(model, 8, 0, 0, 0);
    ((float *)model->params[8].grad)[2500] = bad;
    LSI_TRY(ls_ddp_grad_ready(ddp, 8));
    for (int i = 7; i >= 0; i--) {
        if (model->params[i].flags & LS_PARAM_FROZEN) continue;
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        toy_write_gradient(model, i, 0, 0, 0);
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    LSI_TRY(ls_ddp_end_backward(ddp));
    return ls_ddp_finish_step(ddp);
}

static ls_status stops(ls_group *group, void *context) {
    const broken *b = context;
    toy model;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_early(group, b->strategy, LS_NONFINITE_STOP, &model, &ddp));
    LSI_TRY(step_with(&model, ddp, 1));
    RANK_FAILS(step_with(&model, ddp, b->bad[ls_group_rank(group)]), LS_ERR_NUMERIC, b->text);
    RANK_CHECK(strstr(ls_last_message(), "parameters are of this step already"), "message '%s'",
               ls_last_message());
    RANK_FAILS(ls_ddp_begin_step(ddp, 1, 0), LS_ERR_STATE, "an earlier call failed");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void gradients_that_are_not_finite_stop_all_ranks(void **state) {
    (void)state;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++) {
        broken rows[] = {
            {strategy, {1, NAN}, "rank 1: the gradient of parameter p8"},
            {strategy, {INFINITY, INFINITY}, "rank 0: the gradient of parameter p8"},
            {strategy, {3e38f, 3e38f}, "sum over ranks: the gradient of parameter p8"},
        };
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, stops, &rows[i]));
    }
}

/* Rank 0 gives a step up with a bucket in flight, which the others' part of completes later. */
static ls_status gives_up(ls_group *group, void *context) {
    toy model;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_early(group, *(int *)context, LS_NONFINITE_IGNORE, &model, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_plan_update(ddp, &toy_adamw));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    if (ls_group_rank(group) != 0) usleep(20000);
    LSI_TRY(ls_ddp_grad_needed(ddp, 8));
    toy_write_gradient(&model, 8, 0, 0, 0);
    LSI_TRY(ls_ddp_grad_ready(ddp, 8));
    ls_ddp_keep_values(ddp); /* or they would be read while others write theirs */
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return ls_barrier(group, NULL);
}

static void who_gives_a_step_up_updates_nothing_more(void **state) {
    (void)state;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            assert_ok(run_ranks((rank_mode)mode, 3, gives_up, &strategy));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* The first allocation fails, then the second, until none does. */
static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO2; strategy++)
        for (int64_t n = 1;; n++) {
            lone f;
            ls_ddp_opts opts = {
                .struct_size = sizeof opts, .strategy = strategy, .update_in_backward = 1};
            lone_open(&f, uneven, COUNT_OF(uneven));
            lsi_mem_fail_at(n);
            ls_status status =
                ls_ddp_create(f.group, f.model.params, f.model.n_params, &opts, &f.ddp);
            if (status == LS_OK) status = step_with(&f.model, f.ddp, 1);
            bool has_failed = lsi_mem_has_failed();
            lsi_mem_fail_at(0);
            assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
            lone_close(&f);
            if (!has_failed) break;
        }
}

/* ---- memory ---- */

/* Of all ranks, which are threads, while they wait. */
static ls_status measure(ls_group *group, void *context) {
    int64_t *bytes = context;
    toy model;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_early(group, LS_STRATEGY_ZERO2, LS_NONFINITE_IGNORE, &model, &ddp));
    for (int step = 0; step < 2; step++) LSI_TRY(step_with(&model, ddp, 1));
    LSI_TRY(ls_barrier(group, NULL));
    for (int kind = 0; kind < LSI_MEM_N_KINDS && ls_group_rank(group) == 0; kind++)
        bytes[kind] = lsi_mem_now((lsi_mem_kind)kind);
    LSI_TRY(ls_barrier(group, NULL));
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void there_are_no_shards_of_gradients(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++) {
        int64_t bytes[LSI_MEM_N_KINDS] = {0}, n_elems = 0;
        for (size_t i = 0; i < COUNT_OF(uneven); i++) n_elems += uneven[i] > 0 ? uneven[i] : 0;
        assert_ok(run_ranks(RANKS_AS_THREADS, n, measure, bytes));
        assert_int_equal(bytes[LSI_MEM_GRADS], 0);
        assert_true(bytes[LSI_MEM_BUCKETS] > 0);
        assert_int_equal(bytes[LSI_MEM_OPTIMIZER], 8 * n_elems);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_ddp),
        cmocka_unit_test(large_weights_are_those_of_ddp_at_different_speeds),
        cmocka_unit_test(threads_and_links_change_nothing),
        cmocka_unit_test(calls_out_of_place_are_refused),
        cmocka_unit_test(another_algorithm_is_refused),
        cmocka_unit_test(gradients_that_are_not_finite_stop_all_ranks),
        cmocka_unit_test(who_gives_a_step_up_updates_nothing_more),
        cmocka_unit_test(failed_allocations_leave_nothing),
        cmocka_unit_test(there_are_no_shards_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
