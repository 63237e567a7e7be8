/* topk: values against a plain reference, bit for bit; which elements are taken; that nothing is
 * lost: with whole numbers, what comes out over steps is exactly what went in. */
#include "hooks.h"

static const rig_shape shapes[] = {{0, 0}, {1, 0}, {255, 0}, {256, 0}, {257, 0}, {1501, 0}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static ls_hook_opts opts_of(double share, int64_t start_step) {
    return (ls_hook_opts){
        .struct_size = sizeof(ls_hook_opts), .topk_share = share, .start_step = start_step};
}

static int64_t n_sent(double share, int64_t count) {
    int64_t k = (int64_t)(share * (double)count);
    return k > 0 ? k : count > 0;
}

/* ---- the reference: k times the largest that is left ---- */

static void take_by_search(float *x, int64_t count, int64_t k, float *taken) {
    for (int64_t n = 0; n < k; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++)
            if (isfinite(x[i]) && (best < 0 || fabsf(x[i]) > fabsf(x[best]))) best = i;
        taken[best] += x[best];
        x[best] = NAN; /* taken */
    }
}

static ls_status check_bucket(const hook_rig *rig, const ls_bucket *bucket, rig_value *value,
                              double share) {
    size_t n = (size_t)bucket->count + 1;
    float *sum = calloc(n, sizeof *sum), *x = calloc(n, sizeof *x);
    int64_t wrong = -1;
    for (int r = 0; r < rig->n_ranks; r++) {
        memset(x, 0, n * sizeof *x);
        for (int i = 0; i < bucket->n_params; i++)
            for (int64_t e = 0; e < rig->params[bucket->params[i]].count; e++)
                x[bucket->offsets[i] + e] = value(r, 0, bucket->params[i], e);
        take_by_search(x, bucket->count, n_sent(share, bucket->count), sum);
    }
    for (int64_t i = 0; i < bucket->count; i++)
        if (((float *)bucket->grad)[i] != sum[i] * (float)bucket->scale) wrong = i;
    free(sum);
    free(x);
    RANK_CHECK(wrong < 0, "element %lld of %lld is %a", (long long)wrong, (long long)bucket->count,
               (double)((float *)bucket->grad)[wrong]);
    return LS_OK;
}

static ls_status matches_reference(ls_group *group, void *context) {
    static const double shares[] = {1e-9, 0.02, 0.1};
    static rig_value *const values[] = {rig_rough, rig_whole};
    (void)context;
    for (int s = 0; s < 3; s++)
        for (int v = 0; v < 2; v++) {
            hook_rig rig;
            ls_comm_hook *hook;
            ls_hook_opts opts = opts_of(shares[s], -1);
            LSI_TRY(ls_hook_create(LS_HOOK_TOPK, &opts, &hook));
            LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, shapes, N_SHAPES, 1 + 2 * v));
            LSI_TRY(rig_prepare(&rig, hook));
            rig_fill(&rig, values[v], 0);
            LSI_TRY(rig_step(&rig, hook, 0));
            for (int b = 0; b < rig.n_buckets; b++)
                LSI_TRY(check_bucket(&rig, &rig.buckets[b], values[v], shares[s]));
            ls_hook_destroy(hook);
            rig_close(&rig);
        }
    return LS_OK;
}

static void values_are_those_of_the_reference(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, matches_reference, NULL));
}

/* ---- what is taken ---- */

typedef struct take_row {
    const char *what;
    float in[8], out[8];
} take_row;

/* A bucket of 16 elements, 3 of which are sent. */
static const take_row take_rows[] = {
    {"the largest", {1, -9, 2, 8, 0, 7, 3, -6}, {0, -9, 0, 8, 0, 7, 0, 0}},
    {"of equal ones the lower", {5, -5, 5, 5, -5, 5, 5, 5}, {5, -5, 5, 0, 0, 0, 0, 0}},
    {"equal ones behind larger ones", {1, 1, 1, 2, 1, 1, 9, 1}, {1, 0, 0, 2, 0, 0, 9, 0}},
    {"zeros when there is nothing else", {0, 0, 0, 0, 0, 0, 4, 0}, {0, 0, 0, 0, 0, 0, 4, 0}},
    {"close ones by the last bit",
     {1, 1 + 0x1p-23f, 1 + 0x1p-22f, 1, 1 + 0x1p-23f, 1, 1, 1},
     {0, 1 + 0x1p-23f, 1 + 0x1p-22f, 0, 1 + 0x1p-23f, 0, 0, 0}},
    {"the smallest there are",
     {0x1p-149f, 0, 0, 0x1p-148f, 0, 0, 0, 0x1p-149f},
     {0x1p-149f, 0, 0, 0x1p-148f, 0, 0, 0, 0x1p-149f}},
};

static void the_largest_are_taken_and_of_equal_ones_the_lower(void **state) {
    (void)state;
    static const rig_shape one = {8, 0};
    for (size_t r = 0; r < sizeof take_rows / sizeof take_rows[0]; r++) {
        lone_group lone;
        hook_rig rig;
        ls_comm_hook *hook;
        ls_hook_opts opts = opts_of(3.0 / 16, -1);
        lone_group_open(&lone);
        assert_ok(ls_hook_create(LS_HOOK_TOPK, &opts, &hook));
        assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &one, 1, 1));
        assert_ok(rig_prepare(&rig, hook));
        memcpy(rig_grad(&rig, 0), take_rows[r].in, sizeof take_rows[r].in);
        assert_ok(rig_step(&rig, hook, 0));
        for (int e = 0; e < 8; e++)
            if (rig_grad(&rig, 0)[e] != take_rows[r].out[e])
                fail_msg("%s: [%d] is %g", take_rows[r].what, e, (double)rig_grad(&rig, 0)[e]);
        ls_hook_destroy(hook);
        rig_close(&rig);
        lone_group_close(&lone);
    }
}

/* ---- nothing is lost ---- */

enum { STEPS = 50, DRAIN = 60, MOST_TOTAL = 8192 };

/* Which steps are disturbed, and how. */
typedef struct feedback_row {
    const char *what;
    int64_t start_step;
    int rebuilds;     /* other buckets in another order in the middle */
    int halves_scale; /* another scale in the middle */
    double share;
} feedback_row;

static const feedback_row feedback_rows[] = {
    {"from the start", -1, 0, 0, 0.05},  {"from step 20", 20, 0, 0, 0.05},
    {"buckets rebuilt", -1, 1, 0, 0.05}, {"another scale", -1, 0, 1, 0.05},
    {"all at once", -1, 0, 0, 1},
};

static void add_result(const hook_rig *rig, double *sums) {
    int64_t at = 0;
    for (int i = 0; i < rig->n_params; i++)
        for (int64_t e = 0; e < rig->params[i].count; e++) sums[at++] += rig_grad(rig, i)[e];
}

static float nothing(int rank, int64_t step, int param, int64_t e) {
    (void)rank;
    (void)step;
    (void)param;
    (void)e;
    return 0;
}

static float whole_and_constant(int rank, int64_t step, int param, int64_t e) {
    (void)step;
    return rig_whole(rank, 0, param, e);
}

/* Whole numbers below 2^24 and scales that are powers of two: every sum is exact. */
static ls_status all_comes_out(ls_group *group, void *context) {
    const feedback_row *row = context;
    static const rig_shape small[] = {{1, 0}, {300, 0}, {257, 0}, {31, 5}};
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(row->share, row->start_step);
    double sums[MOST_TOTAL] = {0}, total_scale = 0;
    LSI_TRY(ls_hook_create(LS_HOOK_TOPK, &opts, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, small, 4, 2));
    LSI_TRY(rig_prepare(&rig, hook));
    for (int64_t step = 0; step < STEPS + DRAIN; step++) {
        double scale = row->halves_scale && step >= STEPS / 2 ? 0.125 : 0.25;
        if (row->rebuilds && step % 20 == 7) {
            rig_build(&rig, 1 + (int)(step / 20) % 3, step / 20 % 2 == 0);
            LSI_TRY(rig_prepare(&rig, hook));
        }
        rig_set_scale(&rig, scale);
        rig_fill(&rig, step < STEPS ? whole_and_constant : nothing, step);
        LSI_TRY(rig_step(&rig, hook, step));
        add_result(&rig, sums);
        if (step < STEPS) total_scale += scale;
    }
    int64_t at = 0;
    for (int i = 0; i < rig.n_params; i++)
        for (int64_t e = 0; e < rig.params[i].count; e++, at++) {
            double expected = 0;
            for (int r = 0; r < rig.n_ranks; r++)
                expected += whole_and_constant(r, 0, i, e) * total_scale;
            RANK_CHECK(sums[at] == expected, "%s: parameter %d, [%lld]: %g of %g came out",
                       row->what, i, (long long)e, sums[at], expected);
        }
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void what_is_left_out_comes_out_later(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof feedback_rows / sizeof feedback_rows[0]; r++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)(r % N_RANK_MODES), *n, all_comes_out,
                                (void *)&feedback_rows[r]));
}

/* More elements are not finite than are sent: the others do not come later. */
static void what_is_not_finite_is_never_kept(void **state) {
    (void)state;
    static const rig_shape one = {64, 0};
    lone_group lone;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(2.0 / 64, -1);
    lone_group_open(&lone);
    assert_ok(ls_hook_create(LS_HOOK_TOPK, &opts, &hook));
    assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &one, 1, 1));
    assert_ok(rig_prepare(&rig, hook));
    for (int64_t step = 0; step < 40; step++) {
        int n_bad = 0;
        rig_fill(&rig, nothing, step);
        for (int e = 0; e < 64 && step == 0; e++)
            rig_grad(&rig, 0)[e] = e < 10 ? (e % 2 ? NAN : -INFINITY) : 1;
        assert_ok(rig_step(&rig, hook, step));
        for (int e = 0; e < 64; e++) n_bad += !isfinite(rig_grad(&rig, 0)[e]);
        assert_int_equal(n_bad, step == 0 ? 2 : 0);
    }
    ls_hook_destroy(hook);
    rig_close(&rig);
    lone_group_close(&lone);
}

/* A step before start_step is an all-reduce, and keeps nothing. */
static ls_status starts_late(ls_group *group, void *context) {
    hook_rig rig;
    ls_comm_hook *hook;
    (void)context;
    ls_hook_opts opts = opts_of(0.01, 0); /* 0: step 10 */
    LSI_TRY(ls_hook_create(LS_HOOK_TOPK, &opts, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, shapes, N_SHAPES, 3));
    LSI_TRY(rig_prepare(&rig, hook));
    rig_set_scale(&rig, 1);
    for (int64_t step = 9; step < 12; step++) {
        int64_t n_right = 0, n = 0;
        rig_fill(&rig, rig_whole, 0);
        LSI_TRY(rig_step(&rig, hook, step));
        for (int i = 0; i < rig.n_params; i++)
            for (int64_t e = 0; e < rig.params[i].count; e++, n++) {
                float sum = 0;
                for (int r = 0; r < rig.n_ranks; r++) sum += rig_whole(r, 0, i, e);
                n_right += rig_grad(&rig, i)[e] == sum;
            }
        RANK_CHECK((n_right == n) == (step < 10), "step %lld: %lld of %lld are the sum",
                   (long long)step, (long long)n_right, (long long)n);
    }
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void steps_before_the_start_are_sent_as_they_are(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_THREADS, *n, starts_late, NULL));
}

/* Another model of the same number of parameters: what was kept is not its. */
static void what_is_kept_of_another_model_goes(void **state) {
    (void)state;
    static const rig_shape first = {64, 0}, second = {48, 0};
    lone_group lone;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(0.1, -1);
    lone_group_open(&lone);
    assert_ok(ls_hook_create(LS_HOOK_TOPK, &opts, &hook));
    assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &first, 1, 1));
    assert_ok(rig_prepare(&rig, hook));
    rig_fill(&rig, rig_whole, 0);
    assert_ok(rig_step(&rig, hook, 0));
    rig_close(&rig);
    assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &second, 1, 1));
    assert_ok(rig_prepare(&rig, hook));
    for (int64_t step = 1; step < 10; step++) {
        rig_fill(&rig, nothing, 0);
        assert_ok(rig_step(&rig, hook, step));
        for (int e = 0; e < 48; e++) assert_true(rig_grad(&rig, 0)[e] == 0);
    }
    ls_hook_destroy(hook);
    rig_close(&rig);
    lone_group_close(&lone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_reference),
        cmocka_unit_test(the_largest_are_taken_and_of_equal_ones_the_lower),
        cmocka_unit_test(what_is_left_out_comes_out_later),
        cmocka_unit_test(what_is_not_finite_is_never_kept),
        cmocka_unit_test(steps_before_the_start_are_sent_as_they_are),
        cmocka_unit_test(what_is_kept_of_another_model_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
