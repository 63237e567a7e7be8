/* Ranks that are late: every rank pauses at random before and after every call and in the middle of
 * computing, one of them ten times as long as the others, on a link with latency or without, with a
 * progress thread or without. The weights are those of ddp without any pause, to the bit.
 *
 * A unit's parameters are read twice with a pause between, so what is gathered too early, or
 * overwritten or given up while it is in use, is found where it happens.
 *
 * A program is drawn from its seed. LOCKSTEP_TEST_SEED=N runs that one, LOCKSTEP_TEST_PROGRAMS=N so
 * many. */
#include "harness/harness.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "harness/cases.h"
#include "harness/ranks.h"
#include "parallel/deal.h"
#include "parallel/hybrid.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 2, N_UNITS = 4, MAX_ELEMS = 4096 };

/* p0 is used by the first unit and the last, as a tied embedding is, p3 by two that follow each
 * other; p6 is frozen. */
static const int64_t counts[] = {503, 17, 0, 700, 1, 300, -9, 7, 64, 133};
static const ls_unit_use uses[] = {{0, 0, LS_USE_FORWARD_ONLY},
                                   {0, 1},
                                   {1, 2},
                                   {1, 3},
                                   {1, 6},
                                   {2, 3},
                                   {2, 4},
                                   {2, 5},
                                   {3, 7},
                                   {3, 8},
                                   {3, 9},
                                   {3, 0}};
enum { N_PARAMS = COUNT_OF(counts), BROKEN = 3 };

typedef struct form {
    const char *name;
    int strategy, replicas, shard_size, prefetch, reshard, persist_below, offload;
    bool by_units;    /* the ddp knows which unit uses what */
    bool in_backward; /* updates are made there; nothing is clipped, by ddp neither */
} form;

#define FSDP .strategy = LS_STRATEGY_ZERO3, .replicas = LS_REPLICAS_PRIVATE, .by_units = true
#define BY_UNITS .replicas = LS_REPLICAS_PRIVATE, .by_units = true

static const form forms[] = {
    {"ddp"},
    {"zero1", .strategy = LS_STRATEGY_ZERO1},
    {"zero1 private", .strategy = LS_STRATEGY_ZERO1, .replicas = LS_REPLICAS_PRIVATE},
    {"zero2", .strategy = LS_STRATEGY_ZERO2},
    {"zero2 private", .strategy = LS_STRATEGY_ZERO2, .replicas = LS_REPLICAS_PRIVATE},
    {"zero1, private, by units", .strategy = LS_STRATEGY_ZERO1, BY_UNITS},
    {"zero2, private, by units", .strategy = LS_STRATEGY_ZERO2, BY_UNITS},
    {"zero3", .strategy = LS_STRATEGY_ZERO3},
    {"fsdp", FSDP},
    {"fsdp, no prefetch", FSDP, .prefetch = -1},
    {"fsdp, prefetch 3, small ones persist", FSDP, .prefetch = 3, .persist_below = 100},
    {"fsdp, no reshard", FSDP, .reshard = 1},
    {"fsdp, reshard 2", FSDP, .reshard = 2, .prefetch = 2},
    {"zero1 in groups of 2", .strategy = LS_STRATEGY_ZERO1, .shard_size = 2},
    {"zero2 in groups of 2", .strategy = LS_STRATEGY_ZERO2, .shard_size = 2},
    {"fsdp in groups of 2", FSDP, .shard_size = 2, .prefetch = 3},
    {"fsdp in groups of 4, reshard 2", FSDP, .shard_size = 4, .reshard = 2},
    {"fsdp in groups of 1", FSDP, .shard_size = 1},
    {"zero2, optimizer offloaded", .strategy = LS_STRATEGY_ZERO2, .offload = LS_OFFLOAD_OPTIMIZER},
    {"fsdp, parameters offloaded", FSDP, .offload = LS_OFFLOAD_PARAMS},
    {"zero1, update in backward", .strategy = LS_STRATEGY_ZERO1, .in_backward = true},
    {"zero2, update in backward", .strategy = LS_STRATEGY_ZERO2, .in_backward = true},
    {"zero3, update in backward", .strategy = LS_STRATEGY_ZERO3, .in_backward = true},
};
/* Without the first, which the others are held to. */
enum { N_FORMS = COUNT_OF(forms) - 1, N_PROGRAMS = N_FORMS * (SANITIZED ? 3 : 8) };

typedef struct program {
    uint64_t seed;
    const form *form;
    int n_ranks;
    int64_t accumulation; /* micro-batches of a rank */
    ls_dtype dtype;
    int average;                                 /* LS_AVERAGE_… */
    bool gives_scale, breaks, fills, has_thread; /* breaks: a gradient of step 0 is infinite */
    const char *link;                            /* NULL: none */
    rank_mode mode;
} program;

/* ---- pauses ---- */

typedef struct player {
    const program *program;
    const form *form;
    toy model;
    ls_ddp *ddp;
    uint64_t dice;
    int most_us; /* 0: no pauses */
} player;

static int throw_dice(player *p, int sides) {
    p->dice = p->dice * 6364136223846793005u + 1442695040888963407u;
    return (int)((p->dice >> 33) % (uint64_t)sides);
}

/* Half of the times none. */
static void hold_up(player *p) {
    int what = p->most_us > 0 ? throw_dice(p, 8) : 0;
    if (what == 4 || what == 5) sched_yield();
    if (what >= 6) usleep((useconds_t)throw_dice(p, p->most_us));
}

#define LATE(p, call)                                                                              \
    do {                                                                                           \
        hold_up(p);                                                                                \
        LSI_TRY(call);                                                                             \
        hold_up(p);                                                                                \
    } while (0)

/* ---- a pass ---- */

static bool uses_param(int unit, int param) {
    for (size_t k = 0; k < COUNT_OF(uses); k++)
        if (uses[k].unit == unit && uses[k].param == param) return true;
    return false;
}

/* Whether backward of the unit, which uses the parameter, reads it. */
static bool reads_again(int unit, int param) {
    for (size_t k = 0; k < COUNT_OF(uses); k++)
        if (uses[k].unit == unit && uses[k].param == param) return uses[k].flags == 0;
    return false;
}

/* Where backward meets it last, so that its gradient is complete. */
static int first_unit(int param) {
    int unit = 0;
    while (!uses_param(unit, param)) unit++;
    return unit;
}

static float value_of(const ls_param *param, int64_t e) {
    if (param->dtype == LS_DTYPE_BF16) return lsi_bf16_to_f32(((const uint16_t *)param->data)[e]);
    return ((const float *)param->data)[e];
}

/* Of what backward reads as well, or of all. */
static ls_status add_up(const player *p, int unit, bool is_again, float *sum) {
    *sum = 0;
    for (int i = 0; i < N_PARAMS; i++) {
        const ls_param *param = &p->model.params[i];
        if (is_again ? !reads_again(unit, i) : !uses_param(unit, i)) continue;
        RANK_CHECK(param->data || param->count == 0, "unit %d: p%d is not there", unit, i);
        for (int64_t e = 0; e < param->count; e++) *sum += value_of(param, e);
    }
    return LS_OK;
}

/* A sum of what the unit computes with, which must not change meanwhile. */
static ls_status read_unit(player *p, int unit, bool is_again, float *sum) {
    float later;
    LSI_TRY(add_up(p, unit, is_again, sum));
    hold_up(p);
    LSI_TRY(add_up(p, unit, is_again, &later));
    RANK_CHECK(memcmp(sum, &later, sizeof later) == 0, "unit %d was %g, and is %g while in use",
               unit, (double)*sum, (double)later);
    return LS_OK;
}

/* Of a unit in forward. */
typedef struct sums {
    float all, again; /* again: of what backward reads as well */
} sums;

static ls_status forward(player *p, sums seen[N_UNITS]) {
    for (int u = 0; u < N_UNITS; u++) {
        LATE(p, ls_ddp_before_forward(p->ddp, u));
        LSI_TRY(read_unit(p, u, false, &seen[u].all));
        LSI_TRY(add_up(p, u, true, &seen[u].again));
        LATE(p, ls_ddp_after_forward(p->ddp, u));
    }
    return LS_OK;
}

/* Depends on what the unit computed with, and on the micro-batch. */
static void write_gradient(player *p, int i, float sum, bool is_there, int64_t step,
                           int64_t micro) {
    const ls_param *param = &p->model.params[i];
    float *grad = param->grad;
    toy_write_gradient(&p->model, i, step, micro, ls_ddp_accumulates(p->ddp));
    hold_up(p);
    for (int64_t e = 0; e < param->count; e++)
        grad[e] += (is_there ? 0.125f * value_of(param, e) : 0.0f) + 1e-4f * sum;
    bool breaks = p->program->breaks && step == 0 && micro == 1;
    if (breaks && i == BROKEN) grad[param->count / 2] = INFINITY;
}

static ls_status backward_unit(player *p, int unit, sums seen, int64_t step, int64_t micro) {
    float here;
    LATE(p, ls_ddp_before_backward(p->ddp, unit));
    LSI_TRY(read_unit(p, unit, true, &here));
    RANK_CHECK(memcmp(&here, &seen.again, sizeof here) == 0, "unit %d is %g, in forward %g", unit,
               (double)here, (double)seen.again);
    for (int i = N_PARAMS - 1; i >= 0; i--) {
        if (counts[i] < 0 || first_unit(i) != unit) continue;
        LATE(p, ls_ddp_grad_needed(p->ddp, i));
        write_gradient(p, i, seen.all, reads_again(unit, i), step, micro);
        LATE(p, ls_ddp_grad_ready(p->ddp, i));
    }
    LATE(p, ls_ddp_after_backward(p->ddp, unit));
    return LS_OK;
}

static ls_status pass(player *p, int64_t step, int64_t micro) {
    sums seen[N_UNITS];
    if (p->program->average == LS_AVERAGE_WEIGHTS)
        LATE(p, ls_ddp_weigh(p->ddp, (double)(1 + micro % 3)));
    LATE(p, ls_ddp_begin_backward(p->ddp));
    LSI_TRY(forward(p, seen));
    for (int u = N_UNITS - 1; u >= 0; u--) LSI_TRY(backward_unit(p, u, seen[u], step, micro));
    LATE(p, ls_ddp_end_backward(p->ddp));
    return LS_OK;
}

/* ---- training ---- */

static ls_status update(player *p, double *norm) {
    ls_adamw_opts opts = toy_adamw;
    if (p->form->in_backward) return LS_OK;
    if (p->program->form->in_backward) return ls_ddp_update(p->ddp, &opts);
    LATE(p, ls_ddp_grad_norm(p->ddp, norm));
    opts.grad_scale = ls_clip_factor(*norm, 0.5);
    LATE(p, ls_ddp_update(p->ddp, &opts));
    return LS_OK;
}

/* Or leaves it out, if it is the one with a broken gradient. */
static ls_status update_unless_broken(player *p, int64_t step, double *norm) {
    bool is_broken = p->program->breaks && step == 0;
    RANK_CHECK(ls_ddp_step_is_skipped(p->ddp) == is_broken, "step %d: skipped %d", (int)step,
               ls_ddp_step_is_skipped(p->ddp));
    if (!is_broken) return update(p, norm);
    RANK_CHECK(strstr(ls_ddp_skip_reason(p->ddp), "parameter p3"), "reason '%s'",
               ls_ddp_skip_reason(p->ddp));
    return LS_OK;
}

/* With an evaluation before and behind each update, as long as nothing is accumulated. */
static ls_status train(player *p, const lsi_deal *deal, int rank, double *norm) {
    sums seen[N_UNITS];
    bool evaluates = p->program->accumulation == 1;
    double scale = 1.0 / (double)(p->program->accumulation * deal->n_ranks);
    for (int64_t step = 0; step < N_STEPS; step++) {
        LATE(p, ls_ddp_begin_step(p->ddp, deal->count[rank], p->program->gives_scale ? scale : 0));
        if (p->form->in_backward) LATE(p, ls_ddp_plan_update(p->ddp, &toy_adamw));
        for (int64_t i = 0; i < deal->count[rank]; i++)
            LSI_TRY(pass(p, step, lsi_deal_number(deal, rank, i)));
        LATE(p, ls_ddp_finish_step(p->ddp));
        if (evaluates) LSI_TRY(forward(p, seen));
        LSI_TRY(update_unless_broken(p, step, norm));
        if (evaluates) LSI_TRY(forward(p, seen));
    }
    LATE(p, ls_ddp_check_weights(p->ddp));
    return LS_OK;
}

typedef struct result {
    float weights[MAX_ELEMS];
    double norm;
} result;

static ls_status collect(player *p, result *r) {
    int64_t n = 0;
    for (int i = 0; i < N_PARAMS; i++) {
        if (counts[i] < 0) continue; /* sharded strategies keep no lower halves of frozen ones */
        LATE(p, ls_ddp_get_values(p->ddp, i, r->weights + n));
        n += p->model.params[i].count;
    }
    return LS_OK;
}

/* ---- set-up ---- */

/* The values of rank 0. */
static ls_status fill(void *context, int param, int64_t begin, int64_t count, float *values) {
    (void)context;
    for (int64_t e = 0; e < count; e++) values[e] = rough_value(0, param, begin + e);
    return LS_OK;
}

static bool is_reproducible(const program *p) {
    return p->accumulation > 1;
}

static ls_ddp_opts options_of(const player *p) {
    const form *f = p->form;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.reproducible = is_reproducible(p->program);
    opts.average = p->program->average;
    opts.nonfinite = p->program->breaks ? LS_NONFINITE_SKIP : LS_NONFINITE_IGNORE;
    opts.strategy = f->strategy;
    opts.replicas = f->replicas;
    opts.shard_size = f->shard_size;
    opts.bucket_cap_mb = opts.first_bucket_mb = 2048.0 / (1024 * 1024);
    opts.offload = f->offload;
    opts.offload_dir = f->offload ? "/tmp" : NULL;
    if (f->strategy != LS_STRATEGY_DDP && p->program->fills) opts.fill = fill;
    opts.uses = f->by_units ? uses : NULL;
    opts.n_uses = f->by_units ? COUNT_OF(uses) : 0;
    opts.prefetch = f->prefetch;
    opts.reshard_after_forward = f->reshard;
    opts.persist_below = f->persist_below;
    opts.update_in_backward = f->in_backward;
    return opts;
}

static void narrow(toy *model, uint16_t *upper, uint16_t *lower, uint16_t **lower_halves) {
    for (int i = 0; i < N_PARAMS; i++) {
        ls_param *param = &model->params[i];
        ls_bf16_split(param->data, param->count, upper, lower);
        param->data = upper;
        param->dtype = LS_DTYPE_BF16;
        lower_halves[i] = lower;
        upper += param->count, lower += param->count;
    }
}

static ls_status deal_out(const player *p, lsi_deal *deal) {
    int n_ranks = p->program->n_ranks, size = p->form->shard_size ? p->form->shard_size : n_ranks;
    int64_t n = p->program->accumulation * n_ranks;
    bool reproducible = is_reproducible(p->program);
    if (p->form->strategy < LS_STRATEGY_ZERO2)
        return lsi_deal_micro_batches(deal, n, n_ranks, reproducible);
    return lsi_deal_rounds(deal, n, n_ranks, size, reproducible);
}

static ls_status play(ls_group *group, player *p, result *r) {
    static _Thread_local uint16_t upper[MAX_ELEMS], lower[MAX_ELEMS];
    uint16_t *lower_halves[N_PARAMS];
    lsi_deal deal;
    ls_ddp_opts opts = options_of(p);
    LSI_TRY(deal_out(p, &deal));
    lsi_group_set_order(group, &deal.order);
    toy_init(&p->model, counts, N_PARAMS, ls_group_rank(group));
    p->model.params[0].flags |= LS_PARAM_NO_DECAY;
    if (p->program->dtype == LS_DTYPE_BF16) {
        narrow(&p->model, upper, lower, lower_halves);
        if (!opts.fill) opts.lower_halves = lower_halves;
    }
    for (int i = 0; i < N_PARAMS && opts.fill; i++)
        if (counts[i] >= 0) p->model.params[i].data = NULL;
    LATE(p, ls_ddp_create(group, p->model.params, N_PARAMS, &opts, &p->ddp));
    lsi_ddp_set_group_order(p->ddp, &deal.group_order);
    LSI_TRY(train(p, &deal, ls_group_rank(group), &r->norm));
    LSI_TRY(collect(p, r));
    hold_up(p);
    ls_ddp_destroy(p->ddp);
    toy_fini(&p->model);
    return LS_OK;
}

/* ---- programs ---- */

static ls_status late_ranks_have_the_bits_of_ddp(ls_group *group, void *context) {
    const program *what = context;
    int rank = ls_group_rank(group);
    bool is_slow = (uint64_t)rank == what->seed / 3 % (uint64_t)what->n_ranks;
    result expected = {.norm = 0}, found = {.norm = 0};
    player calm = {.program = what, .form = &forms[0]};
    player late = {.program = what,
                   .form = what->form,
                   .dice = what->seed * 1000 + (uint64_t)rank,
                   .most_us = is_slow ? 500 : 50};
    LSI_TRY(lsi_context(play(group, &calm, &expected), "without pauses"));
    LSI_TRY(lsi_context(play(group, &late, &found), "with pauses"));
    RANK_CHECK(memcmp(&expected.norm, &found.norm, sizeof found.norm) == 0,
               "norm %.17g, expected %.17g", found.norm, expected.norm);
    for (int i = 0; i < MAX_ELEMS; i++)
        RANK_CHECK(memcmp(&expected.weights[i], &found.weights[i], sizeof(float)) == 0,
                   "element %d is %.9g, expected %.9g", i, (double)found.weights[i],
                   (double)expected.weights[i]);
    return LS_OK;
}

static bool is_possible(const form *f, int n_ranks) {
    int size = f->shard_size ? f->shard_size : n_ranks;
    return n_ranks % size == 0 && size % (f->reshard > 1 ? f->reshard : 1) == 0;
}

/* Forms go round with the seed, then numbers of ranks, then threads and processes; the rest is
 * drawn.
 */
static program draw(uint64_t seed) {
    static const int ranks[] = {2, 3, 4, 8};
    static const char *const links[] = {NULL, "latency_us=100", "latency_us=20,gb_per_s=0.02"};
    enum { N_RANKS = SANITIZED ? 3 : 4 };
    player dice = {.dice = seed};
    program p = {.seed = seed, .form = &forms[1 + seed % N_FORMS]};
    uint64_t round = seed / N_FORMS, k = round;
    do p.n_ranks = ranks[k++ % N_RANKS];
    while (!is_possible(p.form, p.n_ranks));
    p.mode = SANITIZED ? RANKS_AS_THREADS : (rank_mode)(round / N_RANKS % 2);
    for (int i = 0; i < 8; i++) (void)throw_dice(&dice, 2); /* close seeds begin alike */
    p.accumulation = 1 + throw_dice(&dice, 3);
    /* groups of zero1 add the sums of their ranks, whose micro-batches need not be a subtree */
    if (p.form->strategy == LS_STRATEGY_ZERO1 && p.form->shard_size > 0) p.accumulation = 1;
    /* nor is there a sum of the micro-batches that others exchange one by one */
    if (p.form->strategy >= LS_STRATEGY_ZERO2 && p.form->in_backward) p.accumulation = 1;
    p.dtype = throw_dice(&dice, 2) ? LS_DTYPE_BF16 : LS_DTYPE_F32;
    p.average = throw_dice(&dice, 3) ? LS_AVERAGE_MEAN : LS_AVERAGE_WEIGHTS;
    /* shares of the reproducible deal may be unequal, which the ddp does not know */
    bool must_give = p.accumulation > 1;
    p.gives_scale = p.average == LS_AVERAGE_MEAN && (throw_dice(&dice, 2) || must_give);
    p.breaks = throw_dice(&dice, 4) == 0 && !p.form->in_backward;
    p.fills = throw_dice(&dice, 2);
    p.has_thread = throw_dice(&dice, 4) == 0;
    p.link = links[throw_dice(&dice, COUNT_OF(links))];
    return p;
}

static void run_program(uint64_t seed) {
    program p = draw(seed);
    if (p.has_thread) setenv("LOCKSTEP_PROGRESS", "thread", 1);
    if (p.link) setenv("LOCKSTEP_LINK", p.link, 1);
    ls_status status = run_ranks(p.mode, p.n_ranks, late_ranks_have_the_bits_of_ddp, &p);
    unsetenv("LOCKSTEP_PROGRESS");
    unsetenv("LOCKSTEP_LINK");
    if (status != LS_OK)
        fail_msg("program %llu (run it alone: LOCKSTEP_TEST_SEED=%llu), %s, accumulation %d, %s, "
                 "average %d, gives_scale %d, breaks %d, fills %d, thread %d, link %s: %s",
                 (unsigned long long)seed, (unsigned long long)seed, p.form->name,
                 (int)p.accumulation, ls_dtype_name(p.dtype), p.average, p.gives_scale, p.breaks,
                 p.fills, p.has_thread, p.link ? p.link : "none", ls_last_message());
}

static void every_form_with_late_ranks_has_the_bits_of_ddp(void **state) {
    (void)state;
    const char *seed = getenv("LOCKSTEP_TEST_SEED"), *many = getenv("LOCKSTEP_TEST_PROGRAMS");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t n = many ? strtoull(many, NULL, 10) : seed ? 1 : (uint64_t)N_PROGRAMS;
    for (uint64_t i = 0; i < n; i++) run_program(first + i);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* Each form meets each number of ranks that it can be on. */
static void programs_have_all_forms_on_all_numbers_of_ranks(void **state) {
    (void)state;
    static const int ranks[] = {2, 3, 4, 8};
    bool is_drawn[N_FORMS + 1][9] = {{false}};
    for (uint64_t seed = 1; seed <= N_PROGRAMS; seed++) {
        program p = draw(seed);
        is_drawn[p.form - forms][p.n_ranks] = true;
    }
    for (int f = 1; f <= N_FORMS; f++)
        for (int i = 0; i < (SANITIZED ? 3 : 4); i++)
            if (is_possible(&forms[f], ranks[i]) && !is_drawn[f][ranks[i]])
                fail_msg("no program with %s on %d ranks", forms[f].name, ranks[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_have_all_forms_on_all_numbers_of_ranks),
        cmocka_unit_test(every_form_with_late_ranks_has_the_bits_of_ddp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
