/* The collectives of real steps, as each rank's recorder has them, against the schedule: number,
 * order, kinds, types and counts in every group, exactly, and the bytes that ranks moved.
 *
 * Bytes. Over shared memory each byte between two ranks is moved once, by one of them, so what all
 * ranks moved together is what the formulas say they send, exactly; but an all-reduce in one shot,
 * where each rank reads all the others' inputs, moves n (n - 1) S instead of 2 (n - 1) S. So steps
 * are made twice: with shared buffers used where they are, as in a real run beyond some KiB, and
 * with the group's own choice, where the recorder says which calls were in one shot.
 * How much of it falls to which rank depends on how slices are cut. In the even model all are
 * equally long, and each rank moves what the table of schedule.h says, to the byte. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

#include <lockstep/optim.h>

#include "base/mem.h"
#include "harness/cases.h"
#include "harness/ranks.h"
#include "parallel/ddp_impl.h"
#include "parallel/schedule.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { MAX_RANKS = 4, MAX_PARAMS = 40 };

/* ---- models ---- */

typedef struct sizes {
    const int64_t *counts; /* below 0: frozen, as toy.h says */
    int n_params;
    const ls_unit_use *uses;
    int n_uses, n_units;
} sizes;

/* p0 is used by the first unit and the last, as a tied embedding is, p4 and p5 by two that follow
 * each other; slices of all lengths, also 0. */
static const int64_t odd_counts[] = {1003, 17, 0, 5003, 1, 1000, -8, 7, 64, 333};
static const ls_unit_use odd_uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {2, 4}, {2, 5},
                                       {3, 4}, {3, 5}, {3, 7}, {4, 8}, {4, 9}, {4, 0}};
/* Slices of 2, 3 and 4 ranks, and slices of slices, are whole cache lines. */
static const int64_t even_counts[] = {9216, 3072, 6144, 3072, 12288, 3072, 3072, 6144};
static const ls_unit_use even_uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3},
                                        {2, 4}, {2, 5}, {3, 6}, {3, 7}};
/* p0 twice. */
static const ls_unit_use tied_uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {2, 4},
                                        {2, 5}, {3, 6}, {3, 7}, {3, 0}};
/* The same where the first unit looks up rows of its tables. */
enum { LOOK_UP = LS_USE_FORWARD_ONLY };
static const ls_unit_use lookup_uses[] = {{0, 0, LOOK_UP}, {0, 1, LOOK_UP}, {1, 2}, {1, 3}, {2, 4},
                                          {2, 5},          {3, 6},          {3, 7}, {3, 0}};
/* The odd ones where units look up what the next one, the one before or another one reads again,
 * and the last one something that none does. */
static const ls_unit_use odd_lookups[] = {{0, 0, LOOK_UP}, {0, 1},          {1, 2}, {1, 3},
                                          {1, 9, LOOK_UP}, {2, 4, LOOK_UP}, {2, 5}, {2, 0},
                                          {3, 4},          {3, 5, LOOK_UP}, {3, 7}, {4, 8, LOOK_UP},
                                          {4, 9, LOOK_UP}, {4, 0, LOOK_UP}, {4, 3}};
/* Both with frozen parameters that units use; p6 of the odd one is used by none. */
static const int64_t odd_frozen_counts[] = {-1004, 17, -1, 5003, -2, 1000, -8, 7, -65, 333};
static const ls_unit_use odd_frozen_uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {2, 4}, {2, 5},
                                              {3, 4}, {3, 5}, {3, 7}, {4, 8}, {4, 9}, {4, 0}};
static const int64_t even_frozen_counts[] = {-9217, 3072, -6145, 3072, 12288, -3073, 3072, 6144};
/* More parameters than a word of the verdict has bits. */
static const int64_t many_counts[MAX_PARAMS] = {40, 4, 4, 70000, 5};

enum { ODD, MANY, EVEN, TIED, LOOKED_UP, ODD_LOOKED_UP, FROZEN, ODD_FROZEN, ODD_FROZEN_LOOKED_UP };
static const sizes models[] = {
    [ODD] = {odd_counts, COUNT_OF(odd_counts), odd_uses, COUNT_OF(odd_uses), 5},
    [MANY] = {many_counts, MAX_PARAMS, NULL, 0, 1},
    [EVEN] = {even_counts, COUNT_OF(even_counts), even_uses, COUNT_OF(even_uses), 4},
    [TIED] = {even_counts, COUNT_OF(even_counts), tied_uses, COUNT_OF(tied_uses), 4},
    [LOOKED_UP] = {even_counts, COUNT_OF(even_counts), lookup_uses, COUNT_OF(lookup_uses), 4},
    [ODD_LOOKED_UP] = {odd_counts, COUNT_OF(odd_counts), odd_lookups, COUNT_OF(odd_lookups), 5},
    [FROZEN] = {even_frozen_counts, COUNT_OF(even_counts), lookup_uses, COUNT_OF(lookup_uses), 4},
    [ODD_FROZEN] = {odd_frozen_counts, COUNT_OF(odd_counts), odd_frozen_uses,
                    COUNT_OF(odd_frozen_uses), 5},
    [ODD_FROZEN_LOOKED_UP] = {odd_frozen_counts, COUNT_OF(odd_counts), odd_lookups,
                              COUNT_OF(odd_lookups), 5},
};

/* ---- settings ---- */

typedef struct setting {
    int strategy, replicas, model;
    int n_ranks, shard_size; /* 0: all numbers of ranks, all ranks */
    int prefetch, reshard;
    int64_t persist_below;
    double gather_limit_mb;
    int average, join, nonfinite;
    double scale;
    bool without_uses, forward_first, ascending, is_narrow, broadcasts, finds_unused, no_overlap,
        keeps_buckets, without_update, early, reproducible, sends_narrow, updates_in_backward;
} setting;

#define DDP .strategy = LS_STRATEGY_DDP
#define ZERO1 .strategy = LS_STRATEGY_ZERO1
#define ZERO2 .strategy = LS_STRATEGY_ZERO2
#define ZERO3 .strategy = LS_STRATEGY_ZERO3
#define PRIVATE .replicas = LS_REPLICAS_PRIVATE
#define IN_BACKWARD .updates_in_backward = true
#define TWO_BY_TWO .n_ranks = 4, .shard_size = 2
#define ONE_BY_FOUR .n_ranks = 4, .shard_size = 4
#define FOUR_BY_ONE .n_ranks = 4, .shard_size = 1

static const setting rows[] = {
    {DDP},
    {DDP, .ascending = true},
    {DDP, .ascending = true, .keeps_buckets = true},
    {DDP, .average = LS_AVERAGE_WEIGHTS},
    {DDP, .average = LS_AVERAGE_WEIGHTS, .scale = 0.5},
    {DDP, .join = LS_JOIN_LIVE},
    {DDP, .nonfinite = LS_NONFINITE_SKIP, .no_overlap = true},
    {DDP, .broadcasts = true, .finds_unused = true},
    {DDP, .model = MANY},
    {DDP, .reproducible = true},
    {ZERO1},
    {ZERO1, .reproducible = true, .sends_narrow = true},
    {ZERO1, .average = LS_AVERAGE_WEIGHTS, .nonfinite = LS_NONFINITE_SKIP, .broadcasts = true},
    {ZERO1, .join = LS_JOIN_WORLD},
    {ZERO1, .model = MANY, .no_overlap = true},
    {ZERO1, PRIVATE},
    {ZERO1, PRIVATE, .is_narrow = true},
    {ZERO1, PRIVATE, .without_uses = true},
    {ZERO2},
    {ZERO2, .reproducible = true},
    {ZERO2, .sends_narrow = true},
    {ZERO2, .average = LS_AVERAGE_WEIGHTS, .forward_first = true},
    {ZERO2, PRIVATE},
    {ZERO2, PRIVATE, .is_narrow = true, .finds_unused = true},
    {ZERO3},
    {ZERO3, .is_narrow = true},
    {ZERO3, PRIVATE},
    {ZERO3, PRIVATE, .without_uses = true},
    {ZERO3, PRIVATE, .model = MANY},
    {ZERO3, PRIVATE, .is_narrow = true, .nonfinite = LS_NONFINITE_SKIP},
    {ZERO3, PRIVATE, .average = LS_AVERAGE_WEIGHTS},
    {ZERO3, PRIVATE, .average = LS_AVERAGE_WEIGHTS, .forward_first = true},
    {ZERO3, PRIVATE, .reproducible = true, .sends_narrow = true, .is_narrow = true},
    {ZERO3, PRIVATE, .prefetch = -1},
    {ZERO3, PRIVATE, .prefetch = 3},
    {ZERO3, PRIVATE, .prefetch = 3, .gather_limit_mb = 0.01},
    {ZERO3, PRIVATE, .prefetch = 3, .gather_limit_mb = 0.03, .persist_below = 100},
    /* room for the next unit, to the byte; for what persists too; an empty bucket has a byte */
    {ZERO3, PRIVATE, .prefetch = 3, .gather_limit_mb = 24192.0 / (1 << 20)},
    {ZERO3, PRIVATE, .prefetch = 3, .gather_limit_mb = 0.025, .persist_below = 1001},
    {ZERO3, PRIVATE, .prefetch = 3, .gather_limit_mb = 24192.0 / (1 << 20), .persist_below = 1},
    {ZERO3, PRIVATE, .early = true},
    {ZERO3, PRIVATE, .reshard = 1},
    {ZERO3, PRIVATE, .reshard = 1, .prefetch = -1},
    {ZERO3, PRIVATE, .reshard = 1, .prefetch = 3},
    {ZERO3, PRIVATE, .reshard = 2},
    {ZERO3, PRIVATE, .reshard = 2, .prefetch = -1},
    {ZERO3, PRIVATE, .reshard = 2, .prefetch = 3, .is_narrow = true},
    {ZERO3, PRIVATE, .persist_below = 100},
    {ZERO3, PRIVATE, .persist_below = 100, .without_update = true},
    {ZERO3, PRIVATE, .persist_below = 1 << 20},
    {ZERO3, PRIVATE, .finds_unused = true},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .prefetch = -1},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .prefetch = 3},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .prefetch = 3, .gather_limit_mb = 0.03},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .reshard = 1},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .reshard = 2, .prefetch = 2},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .reshard = 1, .prefetch = 3, .persist_below = 100},
    {ZERO3, PRIVATE, .model = ODD_LOOKED_UP, .early = true, .is_narrow = true},
    {ZERO1, PRIVATE, .model = ODD_LOOKED_UP},
    {DDP, .model = ODD_FROZEN},
    {ZERO1, PRIVATE, .model = ODD_FROZEN},
    {ZERO2, PRIVATE, .model = ODD_FROZEN, .nonfinite = LS_NONFINITE_SKIP},
    {ZERO3, .model = ODD_FROZEN},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .nonfinite = LS_NONFINITE_SKIP},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .without_uses = true},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .prefetch = -1, .is_narrow = true},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .prefetch = 3, .reproducible = true},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .prefetch = 3, .gather_limit_mb = 0.03},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .reshard = 1, .persist_below = 100},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .reshard = 2, .prefetch = 2},
    {ZERO3, PRIVATE, .model = ODD_FROZEN, .persist_below = 1 << 20, .finds_unused = true},
    {ZERO3, PRIVATE, .model = ODD_FROZEN_LOOKED_UP, .prefetch = 3},
    {ZERO3, PRIVATE, .model = ODD_FROZEN_LOOKED_UP, .reshard = 2, .persist_below = 70},
    {ZERO3, TWO_BY_TWO, PRIVATE, .model = ODD_FROZEN, .persist_below = 100},
    {ZERO1, TWO_BY_TWO},
    {ZERO1, TWO_BY_TWO, PRIVATE, .average = LS_AVERAGE_WEIGHTS},
    {ZERO1, FOUR_BY_ONE},
    {ZERO2, TWO_BY_TWO, .nonfinite = LS_NONFINITE_SKIP},
    {ZERO2, TWO_BY_TWO, PRIVATE},
    {ZERO3, TWO_BY_TWO},
    {ZERO3, ONE_BY_FOUR},
    {ZERO3, FOUR_BY_ONE},
    {ZERO3, TWO_BY_TWO, PRIVATE},
    {ZERO3, TWO_BY_TWO, PRIVATE, .reproducible = true, .sends_narrow = true},
    {ZERO3, TWO_BY_TWO, PRIVATE, .prefetch = 3, .persist_below = 100, .is_narrow = true},
    {ZERO3, ONE_BY_FOUR, PRIVATE},
    {ZERO3, ONE_BY_FOUR, PRIVATE, .reshard = 2},
    {ZERO3, FOUR_BY_ONE, PRIVATE},
    {ZERO1, IN_BACKWARD},
    {ZERO1, IN_BACKWARD, .reproducible = true, .average = LS_AVERAGE_WEIGHTS, .broadcasts = true},
    {ZERO1, IN_BACKWARD, .model = MANY, .no_overlap = true},
    {ZERO2, IN_BACKWARD, .nonfinite = LS_NONFINITE_STOP},
    {ZERO2, IN_BACKWARD, .reproducible = true, .no_overlap = true, .is_narrow = true},
    {ZERO3, IN_BACKWARD, .model = ODD_FROZEN},
    {ZERO3, ONE_BY_FOUR, IN_BACKWARD},
    /* the table, to the byte */
    {DDP, .model = EVEN},
    {ZERO1, .model = EVEN},
    {ZERO1, .model = EVEN, PRIVATE},
    {ZERO1, .model = EVEN, PRIVATE, .is_narrow = true},
    {ZERO2, .model = EVEN},
    {ZERO2, .model = EVEN, PRIVATE},
    {ZERO2, .model = EVEN, .reproducible = true},
    {ZERO3, .model = EVEN},
    {ZERO3, .model = EVEN, PRIVATE},
    {ZERO3, .model = EVEN, PRIVATE, .is_narrow = true},
    {ZERO3, .model = EVEN, PRIVATE, .is_narrow = true, .sends_narrow = true},
    {ZERO3, .model = EVEN, PRIVATE, .prefetch = -1},
    {ZERO3, .model = EVEN, PRIVATE, .prefetch = 3, .gather_limit_mb = 0.1},
    {ZERO3, .model = EVEN, PRIVATE, .without_uses = true},
    {ZERO3, .model = TIED, PRIVATE},
    {ZERO3, .model = LOOKED_UP, PRIVATE},
    {ZERO3, .model = LOOKED_UP, PRIVATE, .prefetch = 3},
    {ZERO3, .model = LOOKED_UP, PRIVATE, .reshard = 1},
    {ZERO3, .model = LOOKED_UP, PRIVATE, .reshard = 2},
    {ZERO3, .model = LOOKED_UP, TWO_BY_TWO, PRIVATE, .is_narrow = true},
    {ZERO1, .model = FROZEN, PRIVATE},
    {ZERO2, .model = FROZEN},
    {ZERO3, .model = FROZEN, PRIVATE},
    {ZERO3, .model = FROZEN, PRIVATE, .is_narrow = true, .prefetch = 2},
    {ZERO3, .model = FROZEN, PRIVATE, .reshard = 1},
    {ZERO3, .model = FROZEN, PRIVATE, .reshard = 2},
    {ZERO3, .model = FROZEN, PRIVATE, .persist_below = 4000},
    {ZERO3, .model = FROZEN, TWO_BY_TWO, PRIVATE},
    {ZERO3, .model = EVEN, PRIVATE, .reshard = 1},
    {ZERO3, .model = EVEN, PRIVATE, .reshard = 2},
    {ZERO3, .model = EVEN, PRIVATE, .persist_below = 4000},
    {ZERO1, .model = EVEN, TWO_BY_TWO},
    {ZERO2, .model = EVEN, TWO_BY_TWO, PRIVATE},
    {ZERO3, .model = EVEN, TWO_BY_TWO, PRIVATE},
    {ZERO3, .model = EVEN, TWO_BY_TWO},
    {ZERO3, .model = EVEN, ONE_BY_FOUR, PRIVATE},
    {ZERO3, .model = EVEN, FOUR_BY_ONE, PRIVATE},
    {ZERO1, .model = EVEN, IN_BACKWARD},
    {ZERO2, .model = EVEN, IN_BACKWARD, .is_narrow = true},
};

static bool gathers(const setting *s) {
    return s->strategy == LS_STRATEGY_ZERO3 && s->replicas == LS_REPLICAS_PRIVATE;
}

static bool has_units(const setting *s) {
    return models[s->model].uses && !s->without_uses;
}

static int n_units(const setting *s) {
    return has_units(s) ? models[s->model].n_units : 1;
}

static bool uses_param(const setting *s, int unit, int param) {
    const sizes *sized = &models[s->model];
    if (!has_units(s)) return true;
    for (int k = 0; k < sized->n_uses; k++)
        if (sized->uses[k].unit == unit && sized->uses[k].param == param) return true;
    return false;
}

static bool reads_again(const setting *s, int unit, int param) {
    const sizes *sized = &models[s->model];
    if (!has_units(s)) return true;
    for (int k = 0; k < sized->n_uses; k++)
        if (sized->uses[k].unit == unit && sized->uses[k].param == param)
            return sized->uses[k].flags == 0;
    return false;
}

/* Behind whose backward pass a parameter's gradient is ready: the first unit that uses it, or, with
 * s->early, the last one. */
static int ready_unit(const setting *s, int param) {
    int unit = s->early ? n_units(s) - 1 : 0, step = s->early ? -1 : 1;
    while (unit + step >= 0 && unit + step < n_units(s) && !uses_param(s, unit, param))
        unit += step;
    return unit;
}

static ls_ddp_opts options_of(const setting *s, ls_param *buffers, int n_buffers) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.bucket_cap_mb = opts.first_bucket_mb = 0.02;
    opts.reproducible = s->reproducible;
    opts.strategy = s->strategy;
    opts.average = s->average;
    opts.join = s->join;
    opts.nonfinite = s->nonfinite;
    opts.no_overlap = s->no_overlap;
    opts.keep_buckets = s->keeps_buckets;
    opts.find_unused_parameters = s->finds_unused;
    opts.buffers = buffers;
    opts.n_buffers = n_buffers;
    opts.broadcast_buffers = s->broadcasts;
    if (s->strategy == LS_STRATEGY_DDP) return opts;
    opts.replicas = s->replicas;
    opts.shard_size = s->shard_size;
    opts.reduce_dtype = s->sends_narrow ? LS_DTYPE_BF16 : 0;
    opts.update_in_backward = s->updates_in_backward;
    if (s->replicas == LS_REPLICAS_SHARED) return opts;
    opts.uses = has_units(s) ? models[s->model].uses : NULL;
    opts.n_uses = has_units(s) ? models[s->model].n_uses : 0;
    if (!gathers(s)) return opts;
    opts.prefetch = s->prefetch;
    opts.reshard_after_forward = s->reshard;
    opts.gather_limit_mb = s->gather_limit_mb;
    opts.persist_below = s->persist_below;
    return opts;
}

/* ---- a step ---- */

/* With finds_unused, odd parameters get no gradient. */
static ls_status give_gradient(const setting *s, const toy *model, ls_ddp *ddp, int param) {
    const ls_param *p = &model->params[param];
    if (p->flags & LS_PARAM_FROZEN || (s->finds_unused && param % 2)) return LS_OK;
    LSI_TRY(ls_ddp_grad_needed(ddp, param));
    memset(p->grad, 0, (size_t)p->count * sizeof(float));
    return ls_ddp_grad_ready(ddp, param);
}

static ls_status backward_unit(const setting *s, const toy *model, ls_ddp *ddp, int unit) {
    int n = model->n_params;
    LSI_TRY(ls_ddp_before_backward(ddp, unit));
    for (int k = 0; k < n; k++) {
        int i = s->ascending ? k : n - 1 - k;
        if (ready_unit(s, i) == unit) LSI_TRY(give_gradient(s, model, ddp, i));
    }
    return ls_ddp_after_backward(ddp, unit);
}

static ls_status pass(const setting *s, const toy *model, ls_ddp *ddp) {
    if (s->average == LS_AVERAGE_WEIGHTS) LSI_TRY(ls_ddp_weigh(ddp, 2));
    if (!s->forward_first) LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int u = 0; u < n_units(s); u++) {
        LSI_TRY(ls_ddp_before_forward(ddp, u));
        LSI_TRY(ls_ddp_after_forward(ddp, u));
    }
    if (s->forward_first) LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int u = n_units(s) - 1; u >= 0; u--) LSI_TRY(backward_unit(s, model, ddp, u));
    return ls_ddp_end_backward(ddp);
}

static const ls_adamw_opts adamw = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .grad_scale = 1};

static bool is_even(const setting *s) {
    return s->model == EVEN || s->model == TIED || s->model == LOOKED_UP || s->model == FROZEN;
}

/* Norms are never even, and there is none of gradients that are used up. */
static bool has_norm(const setting *s) {
    return !is_even(s) && !s->updates_in_backward;
}

static ls_status make_step(const setting *s, const toy *model, ls_ddp *ddp, int64_t n_micro) {
    double norm;
    LSI_TRY(ls_ddp_begin_step(ddp, n_micro, s->scale));
    if (s->updates_in_backward) LSI_TRY(ls_ddp_plan_update(ddp, &adamw));
    for (int64_t i = 0; i < n_micro; i++) LSI_TRY(pass(s, model, ddp));
    LSI_TRY(ls_ddp_finish_step(ddp));
    if (has_norm(s)) LSI_TRY(ls_ddp_grad_norm(ddp, &norm));
    if (s->without_update || s->updates_in_backward) return LS_OK;
    LSI_TRY(ls_ddp_update(ddp, &adamw));
    return lsi_ddp_await_values(ddp); /* or bytes would be moved in the next step */
}

/* ---- what was recorded ---- */

typedef struct looked {
    ls_group *groups[LSI_N_SCHEDULE_GROUPS]; /* NULL: there is none */
    uint64_t n_calls[LSI_N_SCHEDULE_GROUPS]; /* before the step */
    int64_t moved_bytes;
} looked;

static int64_t moved_bytes(const looked *look) {
    int64_t bytes = 0;
    for (int g = 0; g < LSI_N_SCHEDULE_GROUPS; g++) {
        lsi_group_stats stats;
        if (!look->groups[g]) continue;
        lsi_group_get_stats(look->groups[g], &stats);
        bytes += stats.bytes_sent;
    }
    return bytes;
}

static void look_before(const ls_ddp *ddp, looked *look) {
    *look = (looked){.groups = {[LSI_IN_WORLD] = ddp->group,
                                [LSI_IN_REPLICATE_GROUP] = ddp->replicate_group,
                                [LSI_IN_PART_GROUP] = ddp->units.parts.group}};
    if (ddp->shard_group != ddp->group) look->groups[LSI_IN_SHARD_GROUP] = ddp->shard_group;
    for (int g = 0; g < LSI_N_SCHEDULE_GROUPS; g++)
        look->n_calls[g] = look->groups[g] ? look->groups[g]->n_posted : 0;
    look->moved_bytes = -moved_bytes(look);
}

static const lsi_call *recorded(const ls_group *group, uint64_t index) {
    return &group->me->records[index % LSI_RECORDS];
}

static ls_status check_call(const lsi_call *found, const lsi_scheduled *call, const char *where) {
    char text[LSI_CALL_TEXT_BYTES];
    RANK_CHECK(found->kind == call->kind && found->dtype == call->dtype &&
                   found->count == call->count,
               "%s: %s; expected %s of %s, %s, count %lld, bucket %d, micro-batch %d", where,
               lsi_call_print(found, text), lsi_call_kind_name((int)call->kind),
               lsi_purpose_name(call->purpose), ls_dtype_name(call->dtype), (long long)call->count,
               call->bucket, (int)call->micro_batch);
    return LS_OK;
}

/* The same calls in the same order. one_shot_bytes: more than the formulas, of all ranks. */
static ls_status check_group(const looked *look, const lsi_schedule *schedule, int g,
                             int64_t *one_shot_bytes) {
    const ls_group *group = look->groups[g];
    int n_ranks = group ? group->n_ranks : 0;
    uint64_t next = look->n_calls[g], end = group ? group->n_posted : 0;
    RANK_CHECK(schedule->group_ranks[g] == n_ranks, "group %d has %d ranks, expected %d", g,
               n_ranks, schedule->group_ranks[g]);
    for (int i = 0; i < schedule->n_calls; i++) {
        const lsi_scheduled *call = &schedule->calls[i];
        char where[64];
        if ((int)call->group != g) continue;
        snprintf(where, sizeof where, "group %d, call %d of the step", g,
                 (int)(next - look->n_calls[g]));
        RANK_CHECK(next < end, "%s is missing: %s of %s, bucket %d", where,
                   lsi_call_kind_name((int)call->kind), lsi_purpose_name(call->purpose),
                   call->bucket);
        const lsi_call *found = recorded(group, next++);
        LSI_TRY(check_call(found, call, where));
        RANK_CHECK(found->algorithm < LSI_ALGORITHM_FIRST_PATTERN, "%s: by messages", where);
        if (found->algorithm == LSI_ALGORITHM_ONE_SHOT && found->kind == LSI_CALL_ALL_REDUCE)
            *one_shot_bytes += call->group_bytes * (n_ranks - 2) / 2;
    }
    RANK_CHECK(next == end, "group %d: %d calls more than expected", g, (int)(end - next));
    return LS_OK;
}

/* ---- bytes ---- */

static int64_t group_bytes(const looked *look, const lsi_schedule *schedule, bool of_lowest) {
    int64_t bytes = 0;
    for (int i = 0; i < schedule->n_calls; i++) {
        const ls_group *group = look->groups[schedule->calls[i].group];
        if (!of_lowest || group->rank == 0) bytes += schedule->calls[i].group_bytes;
    }
    return bytes;
}

/* What all ranks moved is what their groups send; each group is counted by its rank 0. */
static ls_status check_sums(ls_group *group, const looked *look, const lsi_schedule *schedule,
                            int64_t one_shot_bytes) {
    int64_t mine[2] = {look->moved_bytes, group_bytes(look, schedule, true) + one_shot_bytes};
    int64_t all[2 * MAX_RANKS], moved = 0, expected = 0;
    LSI_TRY(ls_all_gather(group, mine, all, 2, LS_DTYPE_I64, NULL));
    for (int r = 0; r < group->n_ranks; r++) {
        moved += all[2 * r];
        expected += all[2 * r + 1];
    }
    RANK_CHECK(moved == expected, "%lld bytes were moved, expected %lld", (long long)moved,
               (long long)expected);
    return LS_OK;
}

static double fraction(int n) {
    return (double)(n - 1) / n;
}

/* How often private ZeRO-3 gathers a parameter in a micro-batch: for each run of units that read
 * it, forward and backward, but once for the last unit, where it turns. */
static int count_gathers(const setting *s, int param) {
    int last = n_units(s) - 1, n_runs = 0;
    for (int u = 0; u <= last; u++) {
        n_runs += uses_param(s, u, param) && (u == 0 || !uses_param(s, u - 1, param));
        n_runs += reads_again(s, u, param) && (u == 0 || !reads_again(s, u - 1, param));
    }
    return n_runs - reads_again(s, last, param);
}

/* Bytes that a rank sends to gather units, and what persists and is trained. again: fraction of all
 * but the first gather of a micro-batch. */
static double gathered_bytes(const setting *s, double m, double f, double again, double p) {
    double bytes = 0;
    for (int i = 0; i < models[s->model].n_params; i++) {
        bool is_frozen = models[s->model].counts[i] < 0;
        int64_t count = is_frozen ? -models[s->model].counts[i] - 1 : models[s->model].counts[i];
        if (count >= s->persist_below)
            bytes += m * p * (double)count * (f + again * (count_gathers(s, i) - 1));
        else if (!is_frozen)
            bytes += f * p * (double)count;
    }
    return bytes;
}

/* Bytes that a rank sends for gradients and parameters, by the table in schedule.h. */
static double table_bytes(const setting *s, int n_ranks, int64_t accumulation) {
    int n_shard = s->shard_size ? s->shard_size : n_ranks;
    double f = fraction(n_shard), g = s->sends_narrow ? 2 : 4, p = s->is_narrow ? 2 : 4, params = 0;
    double m = s->strategy >= LS_STRATEGY_ZERO2 ? (double)accumulation : 1;
    for (int i = 0; i < models[s->model].n_params; i++)
        if (models[s->model].counts[i] > 0) params += (double)models[s->model].counts[i];
    if (s->strategy == LS_STRATEGY_DDP) return 2 * f * g * params;
    double sums = m * f * g * params + 2 * fraction(n_ranks / n_shard) * 4 * params / n_shard;
    if (s->replicas == LS_REPLICAS_SHARED) return sums;
    if (!gathers(s)) return sums + f * p * params;
    double again = s->reshard == 0 ? f : s->reshard == 1 ? 0 : fraction(s->reshard);
    return sums + gathered_bytes(s, m, f, again, p);
}

static double payload_bytes(const lsi_schedule *schedule) {
    return lsi_schedule_bytes(schedule, LSI_FOR_GRADS) +
           lsi_schedule_bytes(schedule, LSI_FOR_REPLICAS) +
           lsi_schedule_bytes(schedule, LSI_FOR_UNITS) +
           lsi_schedule_bytes(schedule, LSI_FOR_UPDATE);
}

/* Even slices: this rank alone moved the average, and gradients and parameters are the table's. */
static ls_status check_table(ls_group *group, const setting *s, int64_t accumulation,
                             const looked *look, const lsi_schedule *schedule) {
    double expected = table_bytes(s, group->n_ranks, accumulation);
    double all = lsi_schedule_bytes(schedule, LSI_N_PURPOSES), payload = payload_bytes(schedule);
    double other = 4.0 * 4 * (group->n_ranks - 1); /* 4 words of a verdict */
    if (s->strategy == LS_STRATEGY_DDP && schedule->calls[0].purpose == LSI_FOR_REBUILD)
        return LS_OK;
    RANK_CHECK(all - payload == other, "the schedule has %g bytes besides, expected %g",
               all - payload, other);
    RANK_CHECK(fabs(payload - expected) < 1e-3, "the schedule has %.1f bytes, the table %.1f",
               payload, expected);
    RANK_CHECK((double)look->moved_bytes == all, "%lld bytes, expected %.1f",
               (long long)look->moved_bytes, all);
    return LS_OK;
}

/* ---- holding steps to the schedule ---- */

/* How the group chooses algorithms. */
typedef enum choosing { IN_PLACE, ITS_OWN, N_CHOOSINGS } choosing;

typedef struct trial {
    const setting *s;
    choosing how;
    int64_t accumulation;
} trial;

static ls_status check_step(ls_group *group, const trial *t, const ls_ddp *ddp, looked *look,
                            int64_t n_micro) {
    lsi_schedule schedule;
    int64_t one_shot_bytes = 0;
    lsi_schedule_input in = {.opts = &ddp->opts,
                             .buckets = &ddp->plan,
                             .shards = &ddp->states.plan,
                             .units = &ddp->units.plan,
                             .norm = has_norm(t->s) ? &ddp->states.norm : NULL,
                             .n_ranks = group->n_ranks,
                             .n_steps = ddp->n_steps - 1,
                             .n_micro_batches = n_micro,
                             .has_scale = t->s->scale != 0,
                             .forward_first = t->s->forward_first,
                             .updates = !t->s->without_update};
    look->moved_bytes += moved_bytes(look);
    LSI_TRY(lsi_schedule_step(&in, &schedule));
    ls_status status = LS_OK;
    for (int g = 0; g < LSI_N_SCHEDULE_GROUPS && status == LS_OK; g++) {
        int64_t bytes = 0;
        status = check_group(look, &schedule, g, &bytes);
        if (look->groups[g] && look->groups[g]->rank == 0) one_shot_bytes += bytes;
    }
    if (status == LS_OK) status = check_sums(group, look, &schedule, one_shot_bytes);
    if (status == LS_OK && is_even(t->s) && t->how == IN_PLACE)
        status = check_table(group, t->s, t->accumulation, look, &schedule);
    lsi_schedule_fini(&schedule);
    return status;
}

/* The third step of ddp has the buckets that were rebuilt in the second; others repeat themselves.
 */
static int count_steps(const setting *s) {
    return s->strategy == LS_STRATEGY_DDP ? 3 : 2;
}

/* With join, the last rank runs out of data. */
static int64_t n_micro_of(const ls_group *group, const trial *t, int step) {
    bool has_none = t->s->join != LS_JOIN_NONE && step == count_steps(t->s) - 1 &&
                    group->n_ranks > 1 && group->rank == group->n_ranks - 1;
    return has_none ? 0 : t->accumulation;
}

static void choose(const ls_ddp *ddp, choosing how) {
    looked look;
    look_before(ddp, &look);
    for (int g = 0; g < LSI_N_SCHEDULE_GROUPS; g++)
        if (look.groups[g]) case_force(look.groups[g], how == IN_PLACE ? LSI_ALGORITHM_SHARED : 0);
}

static ls_status run(ls_group *group, const trial *t) {
    float data[2][8] = {{0}};
    ls_param buffers[] = {{.name = "mean", .count = 7, .dtype = LS_DTYPE_F32, .data = data[0]},
                          {.name = "n", .count = 1, .dtype = LS_DTYPE_I32, .data = data[1]}};
    ls_ddp_opts opts = options_of(t->s, buffers, COUNT_OF(buffers));
    const sizes *sized = &models[t->s->model];
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, sized->counts, sized->n_params, 0);
    for (int i = 0; i < model.n_params && t->s->is_narrow; i++) {
        model.params[i].dtype = LS_DTYPE_BF16; /* in the first half of its memory */
        memset(model.params[i].data, 0, (size_t)model.params[i].count * 2);
    }
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
    choose(ddp, t->how);
    for (int step = 0; step < count_steps(t->s); step++) {
        int64_t n_micro = n_micro_of(group, t, step);
        looked look;
        look_before(ddp, &look);
        LSI_TRY(lsi_context(make_step(t->s, &model, ddp, n_micro), "step %d", step));
        LSI_TRY(lsi_context(check_step(group, t, ddp, &look, n_micro), "step %d", step));
    }
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static bool is_possible(const setting *s, int n_ranks, int64_t accumulation) {
    bool exchanges_each = s->strategy >= LS_STRATEGY_ZERO2;
    if (s->updates_in_backward && exchanges_each && accumulation > 1) return false;
    if (s->n_ranks != 0 && s->n_ranks != n_ranks) return false;
    return s->reshard <= 1 || n_ranks % s->reshard == 0;
}

static ls_status every_setting(ls_group *group, void *context) {
    const choosing *how = context;
    for (size_t k = 0; k < COUNT_OF(rows); k++)
        for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
            trial t = {&rows[k], *how, accumulation};
            if (!is_possible(t.s, group->n_ranks, accumulation)) continue;
            if (*how == ITS_OWN && accumulation > 1) continue;
            LSI_TRY(lsi_context(run(group, &t), "row %zu, accumulation %d, %s", k,
                                (int)accumulation, *how == IN_PLACE ? "in place" : "own choice"));
        }
    return LS_OK;
}

static void steps_make_the_calls_of_the_schedule(void **state) {
    (void)state;
    for (choosing how = 0; how < N_CHOOSINGS; how++)
        for (int n = 1; n <= MAX_RANKS; n++)
            assert_ok(run_ranks(RANKS_AS_THREADS, n, every_setting, &how));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- the schedule alone ---- */

static void hooks_have_no_schedule(void **state) {
    (void)state;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    ls_comm_hook hook = {.name = "half"};
    lsi_bucket_plan buckets = {.n_params = 0};
    lsi_schedule schedule;
    opts.hook = &hook;
    lsi_schedule_input in = {.opts = &opts, .buckets = &buckets, .n_ranks = 2};
    assert_int_equal(lsi_schedule_step(&in, &schedule), LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ls_last_message(), "half"));
}

/* Plans of 2 ranks, made without any group; every allocation may fail. */
static ls_status plan_and_schedule(lsi_schedule *schedule) {
    ls_param params[] = {{.name = "w", .count = 100, .dtype = LS_DTYPE_F32},
                         {.name = "b", .count = 10, .dtype = LS_DTYPE_F32}};
    const ls_unit_use uses[] = {{0, 0}, {1, 1}};
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    lsi_unit_plan units = {0};
    lsi_bucket_plan buckets = {0};
    lsi_shard_plan shards = {0};
    opts.strategy = LS_STRATEGY_ZERO3;
    opts.replicas = LS_REPLICAS_PRIVATE;
    ls_status status = lsi_unit_plan_create(params, 2, uses, 2, 0, &units);
    if (status == LS_OK)
        status = lsi_bucket_plan_create(params, 2, units.order, units.group, 0, 0, &buckets);
    if (status == LS_OK) status = lsi_unit_plan_use_buckets(&units, &buckets);
    if (status == LS_OK) status = lsi_shard_plan_create(&buckets, params, 2, 0, &shards);
    lsi_schedule_input in = {.opts = &opts,
                             .buckets = &buckets,
                             .shards = &shards,
                             .units = &units,
                             .n_ranks = 2,
                             .n_micro_batches = 20,
                             .updates = true};
    if (status == LS_OK) status = lsi_schedule_step(&in, schedule);
    lsi_shard_plan_fini(&shards);
    lsi_bucket_plan_fini(&buckets);
    lsi_unit_plan_fini(&units);
    return status;
}

static void schedules_need_no_group(void **state) {
    (void)state;
    lsi_schedule schedule;
    assert_ok(plan_and_schedule(&schedule));
    /* gather 0, 1; gather 0 again while 1 is reduced, then 0 is */
    assert_int_equal(schedule.n_calls, 20 * 5 + 1);
    const lsi_purpose expected[] = {LSI_FOR_UNITS, LSI_FOR_UNITS, LSI_FOR_UNITS, LSI_FOR_GRADS,
                                    LSI_FOR_GRADS};
    for (int i = 0; i < 20 * 5; i++) assert_int_equal(schedule.calls[i].purpose, expected[i % 5]);
    assert_int_equal(schedule.calls[100].purpose, LSI_FOR_VERDICT);
    /* lines of 16: 112 and 16 elements of 4 bytes, half of them sent */
    assert_true(lsi_schedule_bytes(&schedule, LSI_FOR_UNITS) == 20 * (112 + 16 + 112) * 4 / 2.0);
    assert_true(lsi_schedule_bytes(&schedule, LSI_FOR_GRADS) == 20 * (112 + 16) * 4 / 2.0);
    lsi_schedule_fini(&schedule);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        lsi_schedule schedule = {.calls = NULL};
        lsi_mem_fail_at(n);
        ls_status status = plan_and_schedule(&schedule);
        bool has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        lsi_schedule_fini(&schedule);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!has_failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_make_the_calls_of_the_schedule),
        cmocka_unit_test(hooks_have_no_schedule),
        cmocka_unit_test(schedules_need_no_group),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
