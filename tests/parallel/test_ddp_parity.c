/* What must hold whatever is chosen: a step's gradients have the bits of a serial sum over its
 * micro-batches, with `reproducible` the same ones for every number of ranks, for every size and
 * order of buckets, with and without overlap, through a hook, and over parameters that are tied,
 * frozen, unused, empty or of one element. */
#include "small.h"

#include "parallel/deal.h"
#include "tree.h"

enum { N_PARAMS = 8, TIED = 1, FROZEN = 2, RARE = 4, UNUSED = 6, N_STEPS = 3, MAX_MICRO = 16 };

static const spec model[N_PARAMS] = {
    {"tiny", 1, 0, 0},   {"tied", 20, 0, 0}, {"fixed", 7, 0, LS_PARAM_FROZEN},
    {"empty", 0, 0, 0},  {"rare", 3, 0, 0},  {"large", 100, 0, 0},
    {"unused", 5, 0, 0}, {"last", 17, 0, 0},
};

typedef enum route { NO_HOOK, ALL_REDUCE_HOOK, HALVES_HOOK } route;

typedef struct setting_row {
    const char *name;
    double bucket_bytes;
    int no_overlap, keep_buckets, static_graph;
    route route;
    const char *order; /* of readiness, "": last parameter first */
} setting_row;

static const setting_row settings[] = {
    {"one bucket", 0, 0, 0, 0, NO_HOOK, ""},
    {"tiny buckets", 1, 0, 0, 0, NO_HOOK, ""},
    {"without overlap", 1, 1, 0, 0, NO_HOOK, ""},
    {"buckets of 200 bytes", 200, 0, 0, 0, NO_HOOK, ""},
    {"rebuilt", 1, 0, 0, 0, NO_HOOK, "0137546"},
    {"rebuilt, larger", 200, 0, 0, 0, NO_HOOK, "5713046"},
    {"not rebuilt", 1, 0, 1, 0, NO_HOOK, "0137546"},
    {"rebuilt, without overlap", 200, 1, 0, 0, NO_HOOK, "5713046"},
    {"static graph", 1, 0, 0, 1, NO_HOOK, "0137546"},
    {"static graph, one bucket", 0, 1, 1, 1, NO_HOOK, ""},
    {"hook", 200, 0, 0, 0, ALL_REDUCE_HOOK, ""},
    {"hook, rebuilt, without overlap", 1, 1, 0, 0, ALL_REDUCE_HOOK, "0137546"},
    {"halves", 200, 0, 0, 0, HALVES_HOOK, "0137546"},
    {"halves, tiny buckets", 1, 0, 1, 1, HALVES_HOOK, ""},
};

/* ---- a hook of our own: the first half of a bucket in stage 0, the rest in stage 1 ---- */

static ls_status reduce_part(ls_group *group, const ls_bucket *bucket, int64_t begin, int64_t end,
                             ls_work **work) {
    float *grad = (float *)bucket->grad + begin;
    return ls_all_reduce(group, grad, grad, end - begin, bucket->dtype, LS_OP_SUM, bucket->scale,
                         work);
}

static ls_status run_halves(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                            ls_work **work) {
    (void)context;
    int64_t half = bucket->count / 2;
    switch (stage) {
    case 0: return reduce_part(group, bucket, 0, half, work);
    case 1: return reduce_part(group, bucket, half, bucket->count, work);
    default: return LS_OK;
    }
}

static const ls_comm_hook halves_hook = {.name = "halves", .run = run_halves};

/* ---- gradients ---- */

/* A parameter that is rare takes part in every third micro-batch. */
static bool is_used(int param, int64_t micro) {
    return param != UNUSED && !(param == RARE && micro % 3 != 1);
}

/* The tied one is used twice, the others once. */
static float gradient(int64_t step, int64_t micro, int param, int64_t e) {
    float value = rough_value(step * 64 + micro, param, e);
    return param == TIED ? value + rough_value(step * 64 + micro, param + 50, e) : value;
}

/* The micro-batches of a step, and how they are added. */
typedef struct step_plan {
    lsi_deal deal;
    int64_t n_micro;
    int n_ranks, reproducible;
} step_plan;

/* A rank's own sum in place: each use is added as it comes. */
static float sum_in_place(const step_plan *p, int rank, int64_t step, int param, int64_t e) {
    float sum = 0;
    for (int64_t k = 0; k < p->deal.count[rank]; k++) {
        int64_t micro = p->deal.first[rank] + k;
        if (!is_used(param, micro)) continue;
        sum += rough_value(step * 64 + micro, param, e);
        if (param == TIED) sum += rough_value(step * 64 + micro, param + 50, e);
    }
    return sum;
}

static float expected_gradient(const step_plan *p, int64_t step, int param, int64_t e) {
    float leaves[MAX_MICRO], scale = (float)(1.0 / (double)p->n_micro);
    if (!p->reproducible) {
        for (int r = 0; r < p->n_ranks; r++) leaves[r] = sum_in_place(p, r, step, param, e);
        return tree_sum(leaves, p->n_ranks) * scale;
    }
    for (int64_t m = 0; m < p->n_micro; m++)
        leaves[m] = is_used(param, m) ? gradient(step, m, param, e) : 0;
    return tree_sum(leaves, p->n_micro) * scale;
}

static ls_status check_gradients(const small *s, const char *name, int64_t step,
                                 const step_plan *p) {
    for (int i = 0; i < N_PARAMS; i++) {
        bool is_there = i != FROZEN && i != UNUSED;
        RANK_CHECK(is_there == (s->params[i].grad != NULL), "%s: %s", name, model[i].name);
        for (int64_t e = 0; e < (is_there ? model[i].count : 0); e++) {
            float expected = expected_gradient(p, step, i, e);
            float found = ((float *)s->params[i].grad)[e];
            RANK_CHECK(memcmp(&found, &expected, sizeof found) == 0,
                       "%s, %d micro-batches, step %d, %s, element %d: %.9g, expected %.9g", name,
                       (int)p->n_micro, (int)step, model[i].name, (int)e, (double)found,
                       (double)expected);
        }
    }
    return LS_OK;
}

/* ---- steps ---- */

/* Written by two uses where it is tied; ready after the last. */
static ls_status ready_param(const small *s, ls_ddp *ddp, int param, int64_t step, int64_t micro) {
    if (param == FROZEN || !is_used(param, micro)) return LS_OK;
    for (int64_t e = 0; e < model[param].count; e++)
        put_grad(s, ddp, param, e, (double)rough_value(step * 64 + micro, param, e));
    float *grad = s->params[param].grad;
    for (int64_t e = 0; e < (param == TIED ? model[param].count : 0); e++)
        grad[e] += rough_value(step * 64 + micro, param + 50, e);
    return ls_ddp_grad_ready(ddp, param);
}

static ls_status backward(const small *s, ls_ddp *ddp, const setting_row *row, int64_t step,
                          int64_t micro) {
    const char *order = *row->order ? row->order : "7654310";
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (const char *c = order; *c; c++) LSI_TRY(ready_param(s, ddp, *c - '0', step, micro));
    return ls_ddp_end_backward(ddp);
}

static ls_status train(ls_group *group, const setting_row *row, const step_plan *p,
                       const ls_ddp_opts *opts) {
    int rank = ls_group_rank(group);
    small s;
    ls_ddp *ddp = NULL;
    small_init(&s, model, N_PARAMS);
    LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, opts, &ddp));
    for (int64_t step = 0; step < N_STEPS; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, p->deal.count[rank], 1.0 / (double)p->n_micro));
        for (int64_t m = 0; m < p->deal.count[rank]; m++)
            LSI_TRY(backward(&s, ddp, row, step, p->deal.first[rank] + m));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(check_gradients(&s, row->name, step, p));
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static ls_status run_setting(ls_group *group, const setting_row *row, step_plan *p) {
    static const double MIB = 1024.0 * 1024.0;
    ls_comm_hook *all_reduce = NULL;
    p->n_ranks = ls_group_world_size(group);
    LSI_TRY(lsi_deal_micro_batches(&p->deal, p->n_micro, p->n_ranks, p->reproducible));
    lsi_group_set_order(group, &p->deal.order);
    LSI_TRY(ls_hook_create(LS_HOOK_ALL_REDUCE, NULL, &all_reduce));
    const ls_comm_hook *hooks[] = {NULL, all_reduce, &halves_hook};
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = row->bucket_bytes / MIB,
                        .first_bucket_mb = row->bucket_bytes / MIB,
                        .reproducible = p->reproducible,
                        .find_unused_parameters = !row->static_graph,
                        .static_graph = row->static_graph,
                        .keep_buckets = row->keep_buckets,
                        .no_overlap = row->no_overlap,
                        .hook = hooks[row->route]};
    ls_status status = train(group, row, p, &opts);
    ls_hook_destroy(all_reduce);
    return status;
}

/* 8 is a whole number of micro-batches for 1, 2, 4 and 8 ranks, 11 for none; in place all ranks
 * must have as many. */
static ls_status every_setting(ls_group *group, void *context) {
    step_plan plans[] = {{.n_micro = 8, .reproducible = 1},
                         {.n_micro = 11, .reproducible = 1},
                         {.n_micro = 2 * ls_group_world_size(group)}};
    (void)context;
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        for (size_t k = 0; k < COUNT_OF(plans); k++)
            LSI_TRY(run_setting(group, &settings[i], &plans[k]));
    return LS_OK;
}

static void steps_have_the_bits_of_a_serial_sum(void **state) {
    (void)state;
    run_on_all(every_setting, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_have_the_bits_of_a_serial_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
