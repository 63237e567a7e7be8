/* Gradients that are not finite, wherever they come from, and what all ranks make of them alike:
 * an error, or a step that is skipped on all, after which training goes on; and the norm that
 * clipping needs. */
#include "small.h"

#include <lockstep/optim.h>

enum { N_PARAMS = 5 };

static const spec model[N_PARAMS] = {
    {"p0", 20, 0, 0}, {"p1", 1, LS_DTYPE_F64, 0}, {"p2", 0, 0, 0}, {"p3", 2, 0, LS_PARAM_FROZEN},
    {"p4", 33, 0, 0},
};

/* One element that is not finite: on this rank, in this micro-batch. */
typedef struct poison {
    int rank, micro, param;
    int64_t element;
    double value;
} poison;

static const poison poisons[] = {
    {0, 0, 0, 0, NAN},       {1, 0, 0, 19, INFINITY}, {1, 1, 1, 0, NAN},
    {0, 1, 1, 0, -INFINITY}, {1, 1, 4, 32, -NAN},     {1, 0, 4, 16, -INFINITY},
};

static const struct variant {
    int reproducible, has_hook;
    double bucket_mb;
} variants[] = {{0, 0, 0}, {1, 0, 1e-9}, {0, 1, 1e-9}, {1, 1, 0}};

/* p: NULL, or what is written in this step. */
static ls_status backward(const small *s, ls_ddp *ddp, int micro, const poison *p) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = N_PARAMS - 1; i >= 0; i--) {
        if (small_is_frozen(s, i)) continue;
        for (int64_t e = 0; e < model[i].count; e++) {
            bool bad = p && p->micro == micro && p->param == i && p->element == e;
            put_grad(s, ddp, i, e, bad ? p->value : i + 1);
        }
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

static ls_status step(ls_group *group, const small *s, ls_ddp *ddp, const poison *p) {
    if (p && p->rank % ls_group_world_size(group) != ls_group_rank(group)) p = NULL;
    LSI_TRY(ls_ddp_begin_step(ddp, 2, 0));
    for (int m = 0; m < 2; m++) LSI_TRY(backward(s, ddp, m, p));
    return ls_ddp_finish_step(ddp);
}

/* "rank 1: the gradient of parameter p4 (bucket 0 of 3) is not finite" */
static void describe(const ls_ddp *ddp, const small *s, const poison *p, int n_ranks,
                     char text[200]) {
    int bucket = -1;
    for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
        ls_bucket_info info;
        if (ls_ddp_get_bucket(ddp, b, &info) != LS_OK) continue;
        const char *begin = s->params[info.first_param].grad, *at = s->params[p->param].grad;
        if (at >= begin && at < begin + info.bytes) bucket = b;
    }
    snprintf(text, 200, "rank %d: the gradient of parameter %s (bucket %d of %d) is not finite",
             p->rank % n_ranks, model[p->param].name, bucket, ls_ddp_n_buckets(ddp));
}

static ls_status open_model(ls_group *group, const struct variant *v, int nonfinite, small *s,
                            ls_comm_hook **hook, ls_ddp **ddp) {
    if (v->has_hook) LSI_TRY(ls_hook_create(LS_HOOK_ALL_REDUCE, NULL, hook));
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = v->bucket_mb,
                        .first_bucket_mb = v->bucket_mb,
                        .reproducible = v->reproducible,
                        .nonfinite = nonfinite,
                        .hook = *hook};
    small_init(s, model, N_PARAMS);
    return ls_ddp_create(group, s->params, N_PARAMS, &opts, ddp);
}

/* ---- STOP ---- */

static ls_status stop_at(ls_group *group, const struct variant *v, const poison *p) {
    char text[200];
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_model(group, v, LS_NONFINITE_STOP, &s, &hook, &ddp));
    LSI_TRY(step(group, &s, ddp, NULL));
    describe(ddp, &s, p, ls_group_world_size(group), text);
    RANK_FAILS(step(group, &s, ddp, p), LS_ERR_NUMERIC, text);
    RANK_FAILS(ls_ddp_begin_step(ddp, 1, 0), LS_ERR_STATE, "an earlier call failed");
    LSI_TRY(ls_barrier(group, NULL)); /* the group is as good as before */
    ls_ddp_destroy(ddp);
    ls_hook_destroy(hook);
    return LS_OK;
}

static ls_status stop_everywhere(ls_group *group, void *context) {
    (void)context;
    for (size_t v = 0; v < COUNT_OF(variants); v++)
        for (size_t i = 0; i < COUNT_OF(poisons); i++)
            LSI_TRY(lsi_context(stop_at(group, &variants[v], &poisons[i]), "variant %zu, row %zu",
                                v, i));
    return LS_OK;
}

static void all_ranks_stop_and_name_the_gradient(void **state) {
    (void)state;
    run_on_all(stop_everywhere, NULL);
}

/* ---- SKIP ---- */

static ls_status expect_clean(const small *s, const ls_ddp *ddp) {
    RANK_CHECK(!ls_ddp_step_is_skipped(ddp) && !*ls_ddp_skip_reason(ddp), "skipped: %s",
               ls_ddp_skip_reason(ddp));
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < (small_is_frozen(s, i) ? 0 : model[i].count); e++)
            RANK_CHECK(grad_at(s, i, e) == i + 1, "%s: %g", model[i].name, grad_at(s, i, e));
    return LS_OK;
}

static ls_status skip_at(ls_group *group, const struct variant *v) {
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    LSI_TRY(open_model(group, v, LS_NONFINITE_SKIP, &s, &hook, &ddp));
    RANK_CHECK(!ls_ddp_step_is_skipped(ddp), "skipped before the first step");
    for (size_t i = 0; i < COUNT_OF(poisons); i++) {
        char text[200];
        LSI_TRY(step(group, &s, ddp, &poisons[i]));
        describe(ddp, &s, &poisons[i], ls_group_world_size(group), text);
        RANK_CHECK(ls_ddp_step_is_skipped(ddp) == 1, "row %zu: not skipped", i);
        RANK_CHECK(strcmp(ls_ddp_skip_reason(ddp), text) == 0, "reason '%s', expected '%s'",
                   ls_ddp_skip_reason(ddp), text);
        LSI_TRY(step(group, &s, ddp, NULL));
        LSI_TRY(expect_clean(&s, ddp));
    }
    ls_ddp_destroy(ddp);
    ls_hook_destroy(hook);
    return LS_OK;
}

static ls_status skip_everywhere(ls_group *group, void *context) {
    (void)context;
    for (size_t v = 0; v < COUNT_OF(variants); v++)
        LSI_TRY(lsi_context(skip_at(group, &variants[v]), "variant %zu", v));
    return LS_OK;
}

static void all_ranks_skip_and_the_next_step_is_clean(void **state) {
    (void)state;
    run_on_all(skip_everywhere, NULL);
}

/* Two ranks, two parameters: the lowest rank is named, on all. */
static ls_status two_culprits(ls_group *group, void *context) {
    static const poison both[] = {{1, 0, 4, 3, NAN}, {2, 1, 0, 7, INFINITY}};
    int rank = ls_group_rank(group);
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_model(group, &variants[0], LS_NONFINITE_SKIP, &s, &hook, &ddp));
    LSI_TRY(step(group, &s, ddp, rank == 0 ? NULL : &both[rank - 1]));
    RANK_CHECK(strstr(ls_ddp_skip_reason(ddp), "rank 1: the gradient of parameter p4"),
               "reason '%s'", ls_ddp_skip_reason(ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void the_lowest_rank_is_named(void **state) {
    (void)state;
    run_in_both(3, two_culprits, NULL);
}

static ls_status nothing_is_looked_at(ls_group *group, void *context) {
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_model(group, &variants[0], LS_NONFINITE_IGNORE, &s, &hook, &ddp));
    LSI_TRY(step(group, &s, ddp, &poisons[0]));
    RANK_CHECK(isnan(grad_at(&s, 0, 0)), "found %g", grad_at(&s, 0, 0));
    RANK_CHECK(!ls_ddp_step_is_skipped(ddp), "skipped");
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void ignoring_lets_them_pass(void **state) {
    (void)state;
    run_in_both(2, nothing_is_looked_at, NULL);
}

/* A step that went wrong unseen is made again with open eyes. */
static ls_status look_again(ls_group *group, void *context) {
    char text[200];
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_model(group, &variants[1], LS_NONFINITE_IGNORE, &s, &hook, &ddp));
    LSI_TRY(step(group, &s, ddp, &poisons[5]));
    RANK_FAILS(ls_ddp_set_nonfinite(ddp, -1), LS_ERR_ARGUMENT, "-1, expected 0 to 2");
    RANK_FAILS(ls_ddp_set_nonfinite(ddp, 3), LS_ERR_ARGUMENT, "3, expected 0 to 2");
    LSI_TRY(ls_ddp_set_nonfinite(ddp, LS_NONFINITE_SKIP));
    LSI_TRY(step(group, &s, ddp, &poisons[5]));
    RANK_CHECK(ls_ddp_step_is_skipped(ddp), "not skipped");
    LSI_TRY(ls_ddp_set_nonfinite(ddp, LS_NONFINITE_IGNORE));
    LSI_TRY(step(group, &s, ddp, &poisons[5]));
    RANK_CHECK(!ls_ddp_step_is_skipped(ddp), "skipped");
    LSI_TRY(ls_ddp_set_nonfinite(ddp, LS_NONFINITE_STOP));
    describe(ddp, &s, &poisons[5], ls_group_world_size(group), text);
    RANK_FAILS(step(group, &s, ddp, &poisons[5]), LS_ERR_NUMERIC, text);
    RANK_FAILS(ls_ddp_set_nonfinite(ddp, LS_NONFINITE_SKIP), LS_ERR_STATE, "ls_ddp_set_nonfinite");
    LSI_TRY(ls_barrier(group, NULL));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void looking_can_begin_later(void **state) {
    (void)state;
    run_on_all(look_again, NULL);
}

/* ---- T043: infinity on rank 1 only ---- */

static ls_status t043(ls_group *group, void *context) {
    static const poison inf = {1, 0, 0, 5, INFINITY};
    const ls_sgd_opts sgd = {.lr = 0.1, .grad_scale = 1};
    ls_loss_scaler scaler = LS_LOSS_SCALER_INIT;
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    unsigned char before[SMALL_BYTES];
    (void)context;
    LSI_TRY(open_model(group, &variants[0], LS_NONFINITE_SKIP, &s, &hook, &ddp));
    for (int k = 0; k < 3; k++) {
        memcpy(before, s.data[0], sizeof before);
        LSI_TRY(step(group, &s, ddp, k == 1 ? &inf : NULL));
        if (!ls_loss_scaler_update(&scaler, ls_ddp_step_is_skipped(ddp)))
            ls_sgd_update(s.params[0].data, s.params[0].grad, NULL, model[0].count, &sgd);
        RANK_CHECK((memcmp(before, s.data[0], sizeof before) == 0) == (k == 1), "step %d: weights",
                   k);
    }
    RANK_CHECK(scaler.n_skipped == 1 && scaler.scale == 32768, "%d skipped, scale %g",
               (int)scaler.n_skipped, scaler.scale);
    LSI_TRY(ls_ddp_check_weights(ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void an_overflow_on_one_rank_leaves_all_weights(void **state) {
    (void)state;
    run_in_both(2, t043, NULL);
}

/* ---- finite on every rank, infinite after the sum ---- */

/* In the second of three steps the result gets an infinity on the rank *context. */
static ls_status spoil(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                       ls_work **work) {
    const int *culprit = context;
    float *grad = bucket->grad;
    if (stage == 0)
        return ls_all_reduce(group, bucket->grad, bucket->grad, bucket->count, bucket->dtype,
                             LS_OP_SUM, bucket->scale, work);
    bool is_hit = bucket->params[0] == 0 && (*culprit < 0 || *culprit == ls_group_rank(group));
    if (bucket->step == 1 && is_hit) grad[bucket->offsets[0]] = INFINITY;
    return LS_OK;
}

static ls_status hook_overflows(ls_group *group, void *context) {
    ls_comm_hook hook = {.name = "spoil", .context = context, .run = spoil};
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = 1e-9,
                        .nonfinite = LS_NONFINITE_SKIP,
                        .hook = &hook};
    opts.first_bucket_mb = opts.bucket_cap_mb;
    opts.keep_buckets = 1;
    small s;
    ls_ddp *ddp = NULL;
    small_init(&s, model, N_PARAMS);
    LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
    for (int k = 0; k < 3; k++) {
        LSI_TRY(step(group, &s, ddp, NULL));
        RANK_CHECK(ls_ddp_step_is_skipped(ddp) == (k == 1), "step %d: %s", k,
                   ls_ddp_skip_reason(ddp));
        RANK_CHECK(k != 1 || strstr(ls_ddp_skip_reason(ddp),
                                    "result of hook spoil: the gradient of parameter p0"),
                   "reason '%s'", ls_ddp_skip_reason(ddp));
    }
    LSI_TRY(ls_barrier(group, NULL));
    opts.nonfinite = LS_NONFINITE_STOP;
    ls_ddp_destroy(ddp);
    LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
    LSI_TRY(step(group, &s, ddp, NULL));
    RANK_FAILS(step(group, &s, ddp, NULL), LS_ERR_NUMERIC, "result of hook spoil");
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void hooks_that_overflow_are_found(void **state) {
    (void)state;
    static int culprits[] = {-1, 0, 1};
    for (size_t i = 0; i < COUNT_OF(culprits); i++) run_in_both(2, hook_overflows, &culprits[i]);
    run_in_both(1, hook_overflows, &culprits[1]);
    run_in_both(5, hook_overflows, &culprits[2]);
}

/* More than half of the largest number, twice. */
static ls_status sum_overflows(ls_group *group, void *context) {
    static const poison large[] = {{0, 0, 0, 2, 2e38}, {1, 0, 0, 2, 2e38}};
    ls_comm_hook *hook = NULL;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_model(group, &variants[0], LS_NONFINITE_SKIP, &s, &hook, &ddp));
    LSI_TRY(step(group, &s, ddp, &large[ls_group_rank(group)]));
    RANK_CHECK(isinf(grad_at(&s, 0, 2)), "found %g", grad_at(&s, 0, 2));
    RANK_CHECK(ls_ddp_step_is_skipped(ddp), "not skipped");
    RANK_CHECK(strstr(ls_ddp_skip_reason(ddp), "sum over ranks: the gradient of parameter p0 "),
               "reason '%s'", ls_ddp_skip_reason(ddp));
    LSI_TRY(step(group, &s, ddp, NULL));
    LSI_TRY(expect_clean(&s, ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void sums_that_overflow_are_found(void **state) {
    (void)state;
    run_in_both(2, sum_overflows, NULL);
}

/* ---- T016: norm and clipping ---- */

static ls_status t016(ls_group *group, void *context) {
    static const spec two[] = {{"a", 1, 0, 0}, {"b", 1, 0, 0}};
    static const double grads[2][2] = {{2, 5}, {4, 3}};
    ls_ddp_opts opts = {.struct_size = sizeof opts, .bucket_cap_mb = 1e-9};
    const float expected[] = {3 * (float)0.2, 4 * (float)0.2};
    double norm = 0;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    small_init(&s, two, 2);
    LSI_TRY(ls_ddp_create(group, s.params, 2, &opts, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(small_backward(&s, ddp, grads[ls_group_rank(group)]));
    LSI_TRY(ls_ddp_finish_step(ddp));
    LSI_TRY(ls_ddp_grad_norm(ddp, &norm));
    RANK_CHECK(norm == 5, "norm %.17g", norm);
    const ls_sgd_opts sgd = {.lr = 1, .grad_scale = ls_clip_factor(norm, 1)};
    for (int i = 0; i < 2; i++) {
        ls_sgd_update(s.params[i].data, s.params[i].grad, NULL, 1, &sgd);
        float w = *(float *)s.params[i].data;
        RANK_CHECK(fabsf(w + expected[i]) < 1e-7F, "%s is %.9g", two[i].name, (double)w);
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void all_ranks_clip_by_one_norm(void **state) {
    (void)state;
    run_in_both(2, t016, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_stop_and_name_the_gradient),
        cmocka_unit_test(all_ranks_skip_and_the_next_step_is_clean),
        cmocka_unit_test(the_lowest_rank_is_named),
        cmocka_unit_test(ignoring_lets_them_pass),
        cmocka_unit_test(looking_can_begin_later),
        cmocka_unit_test(an_overflow_on_one_rank_leaves_all_weights),
        cmocka_unit_test(hooks_that_overflow_are_found),
        cmocka_unit_test(sums_that_overflow_are_found),
        cmocka_unit_test(all_ranks_clip_by_one_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
