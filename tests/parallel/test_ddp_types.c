/* Parameters of F64, F32, F16 and BF16 in one model: gradients of F64 keep what float32 would lose,
 * those of the narrow types are float32, buckets hold values of one type each, and the norm is over
 * all. */
#include "small.h"

#include "comm/order.h"
#include "parallel/deal.h"

enum { N_PARAMS = 7, MAX_MICRO = 16 };

static const spec model[N_PARAMS] = {
    {"wide", 5, LS_DTYPE_F64, 0},    {"plain", 17, LS_DTYPE_F32, 0},
    {"half", 3, LS_DTYPE_F16, 0},    {"fixed", 4, LS_DTYPE_F64, LS_PARAM_FROZEN},
    {"brain", 40, LS_DTYPE_BF16, 0}, {"one", 1, LS_DTYPE_F64, 0},
    {"none", 0, LS_DTYPE_F64, 0},
};

static bool is_wide(int param) {
    return model[param].dtype == LS_DTYPE_F64;
}

/* ---- buckets ---- */

static ls_status types_stay_apart(ls_group *group, void *context) {
    static const double caps_mb[] = {0, 1e-9, 1e-4};
    (void)context;
    for (size_t c = 0; c < COUNT_OF(caps_mb); c++) {
        ls_ddp_opts opts = {
            .struct_size = sizeof opts, .bucket_cap_mb = caps_mb[c], .first_bucket_mb = caps_mb[c]};
        int n_of[2] = {0};
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
            ls_bucket_info info;
            LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
            bool wide = info.dtype == LS_DTYPE_F64;
            RANK_CHECK(wide == is_wide(info.first_param), "bucket %d has the wrong type", b);
            RANK_CHECK(info.bytes == info.count * (wide ? 8 : 4) && info.bytes % 64 == 0,
                       "bucket %d has %lld bytes", b, (long long)info.bytes);
            n_of[wide] += info.n_params;
        }
        RANK_CHECK(n_of[0] == 3 && n_of[1] == 3, "%d narrow and %d wide ones", n_of[0], n_of[1]);
        RANK_CHECK(c > 0 || ls_ddp_n_buckets(ddp) == 4, "%d buckets", ls_ddp_n_buckets(ddp));
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void buckets_hold_one_type_each(void **state) {
    (void)state;
    run_in_both(2, types_stay_apart, NULL);
}

/* ---- sums ---- */

/* A third of something: no sum of these is exact, and float32 loses half of the digits. */
static double rough(int64_t micro, int param, int64_t e) {
    double value = (double)((micro * 7919 + param * 104729 + e * 1299709) % 10007) + 1;
    return (micro + e) % 3 ? 1 / value : -7 / value;
}

static double tree_sum_f64(const double *values, int64_t n) {
    if (n == 1) return values[0];
    int64_t split = lsi_order_split(n);
    double left = tree_sum_f64(values, split);
    return left + tree_sum_f64(values + split, n - split);
}

static float tree_sum_f32(const double *values, int64_t n) {
    if (n == 1) return (float)values[0];
    int64_t split = lsi_order_split(n);
    float left = tree_sum_f32(values, split);
    return left + tree_sum_f32(values + split, n - split);
}

static ls_status check_sums(const small *s, int64_t n_micro, double scale) {
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < (small_is_frozen(s, i) ? 0 : model[i].count); e++) {
            double leaves[MAX_MICRO];
            for (int64_t m = 0; m < n_micro; m++) leaves[m] = rough(m, i, e);
            double expected = is_wide(i) ? tree_sum_f64(leaves, n_micro) * scale
                                         : (double)(tree_sum_f32(leaves, n_micro) * (float)scale);
            RANK_CHECK(grad_at(s, i, e) == expected, "%s, element %lld: %.17g, expected %.17g",
                       model[i].name, (long long)e, grad_at(s, i, e), expected);
        }
    return LS_OK;
}

static ls_status rough_backward(const small *s, ls_ddp *ddp, int64_t micro) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = N_PARAMS - 1; i >= 0; i--) {
        if (small_is_frozen(s, i)) continue;
        for (int64_t e = 0; e < model[i].count; e++) put_grad(s, ddp, i, e, rough(micro, i, e));
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

/* One micro-batch on each rank in place, or 9 of them dealt to the ranks and added as a tree. */
static ls_status sums_are_exact(ls_group *group, void *context) {
    (void)context;
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        int64_t n_micro = reproducible ? 9 : n_ranks;
        double scale = 1 / (double)n_micro;
        ls_ddp_opts opts = {
            .struct_size = sizeof opts, .bucket_cap_mb = 1e-4, .reproducible = reproducible};
        lsi_deal deal;
        small s;
        ls_ddp *ddp = NULL;
        LSI_TRY(lsi_deal_micro_batches(&deal, n_micro, n_ranks, reproducible));
        lsi_group_set_order(group, &deal.order);
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        for (int step = 0; step < 3; step++) {
            LSI_TRY(ls_ddp_begin_step(ddp, deal.count[rank], reproducible ? scale : 0));
            for (int64_t m = 0; m < deal.count[rank]; m++)
                LSI_TRY(rough_backward(&s, ddp, deal.first[rank] + m));
            LSI_TRY(ls_ddp_finish_step(ddp));
            LSI_TRY(check_sums(&s, n_micro, scale));
        }
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void sums_have_the_digits_of_their_type(void **state) {
    (void)state;
    run_on_all(sums_are_exact, NULL);
}

/* Rank r adds r units in the last places of a float64. */
static ls_status last_places(ls_group *group, void *context) {
    const double unit = ldexp(1, -45);
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    ls_ddp_opts opts = {.struct_size = sizeof opts, .average = LS_AVERAGE_SUM};
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    small_init(&s, model, N_PARAMS);
    LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
    double mine[N_PARAMS];
    for (int i = 0; i < N_PARAMS; i++) mine[i] = 1 + rank * unit;
    LSI_TRY(ls_ddp_begin_step(ddp, 2, 0));
    for (int m = 0; m < 2; m++) LSI_TRY(small_backward(&s, ddp, mine));
    LSI_TRY(ls_ddp_finish_step(ddp));
    double wide = 2 * n_ranks + n_ranks * (n_ranks - 1) * unit;
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < (small_is_frozen(&s, i) ? 0 : model[i].count); e++)
            RANK_CHECK(grad_at(&s, i, e) == (is_wide(i) ? wide : 2 * n_ranks), "%s: %.17g",
                       model[i].name, grad_at(&s, i, e));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void float64_keeps_what_float32_would_lose(void **state) {
    (void)state;
    run_on_all(last_places, NULL);
}

/* ---- norm and values ---- */

static ls_status norm_is_over_all(ls_group *group, void *context) {
    static const double grads[][N_PARAMS] = {
        {0, 0, 0, 0, 0, 3, 0}, {1, 1, 1, 0, 1, 1, 1}, {2, 0, 0, 0, 0, 4, 0}, {0}};
    static const double expected[] = {3, 8.12403840463596, 6, 0}; /* … of 66, of 5 * 4 + 16 */
    (void)context;
    small s;
    ls_ddp *ddp = NULL;
    double norm = -1;
    small_init(&s, model, N_PARAMS);
    LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, NULL, &ddp));
    for (size_t i = 0; i < COUNT_OF(grads); i++) {
        LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
        RANK_FAILS(ls_ddp_grad_norm(ddp, &norm), LS_ERR_STATE, "ls_ddp_grad_norm: a step is open");
        LSI_TRY(small_backward(&s, ddp, grads[i]));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(ls_ddp_grad_norm(ddp, &norm));
        RANK_CHECK(fabs(norm - expected[i]) < 1e-12, "row %zu: norm %.17g, expected %.17g", i, norm,
                   expected[i]);
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void the_norm_is_over_all_types(void **state) {
    (void)state;
    run_in_both(1, norm_is_over_all, NULL);
    run_in_both(2, norm_is_over_all, NULL);
}

static ls_status values_of_rank_0(ls_group *group, void *context) {
    (void)context;
    small s;
    ls_ddp *ddp = NULL;
    small_init(&s, model, N_PARAMS);
    for (int i = 0; i < N_PARAMS; i++)
        memset(s.data[i], ls_group_rank(group) * 16 + i, sizeof s.data[i]);
    LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, NULL, &ddp));
    for (int i = 0; i < N_PARAMS; i++) {
        size_t size = (size_t)model[i].count * ls_dtype_bytes(model[i].dtype);
        for (size_t b = 0; b < SMALL_BYTES; b++) {
            int expected = b < size ? i : ls_group_rank(group) * 16 + i;
            RANK_CHECK(s.data[i][b] == expected, "%s, byte %zu: %d, expected %d", model[i].name, b,
                       s.data[i][b], expected);
        }
    }
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void values_of_all_types_become_those_of_rank_0(void **state) {
    (void)state;
    run_on_all(values_of_rank_0, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_hold_one_type_each),
        cmocka_unit_test(sums_have_the_digits_of_their_type),
        cmocka_unit_test(float64_keeps_what_float32_would_lose),
        cmocka_unit_test(the_norm_is_over_all_types),
        cmocka_unit_test(values_of_all_types_become_those_of_rank_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
