/* int8: values against a plain reference, bit for bit; how far they may be from the average; whole
 * numbers that come back exactly; a bad block that leaves the others alone. */
#include "hooks.h"

enum { BLOCK = 256 };

static const rig_shape shapes[] = {{0, 0}, {1, 0}, {255, 0}, {256, 0}, {257, 0}, {30011, 0}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct run_task {
    int per_bucket;
} run_task;

/* ---- the reference: blocks are cut from the bucket's beginning ---- */

/* Rounds count elements to multiples of their largest magnitude's 127th; returns that. */
static float round_block(float *x, int64_t count) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(x[i]));
    float unit = largest / 127;
    for (int64_t i = 0; i < count && unit > 0; i++) x[i] = rintf(x[i] / unit) * unit;
    return unit;
}

static void fill_bucket(const hook_rig *rig, const ls_bucket *bucket, int rank, rig_value *value,
                        float *x) {
    memset(x, 0, (size_t)bucket->count * sizeof *x);
    for (int i = 0; i < bucket->n_params; i++)
        for (int64_t e = 0; e < rig->params[bucket->params[i]].count; e++)
            x[bucket->offsets[i] + e] = value(rank, 0, bucket->params[i], e);
}

/* One block: *bound is how far an element may be from the true average: half a unit of each rank,
 * times scale, half a unit of the result, and the rounding of float32. */
static void average_block(float **ranks, int n_ranks, int64_t first, int64_t count, float scale,
                          float *result, double *bound) {
    float units = 0, largest = 0;
    for (int r = 0; r < n_ranks; r++) units += round_block(ranks[r] + first, count);
    for (int64_t i = 0; i < count; i++) {
        float values[8];
        for (int r = 0; r < n_ranks; r++) values[r] = ranks[r][first + i];
        result[first + i] = tree_sum(values, n_ranks) * scale;
        largest = fmaxf(largest, fabsf(result[first + i]));
    }
    float unit = round_block(result + first, count);
    *bound = 0.5 * units * scale + 0.5 * unit + 16 * 0x1p-24 * (units * scale * 127 + largest);
}

static ls_status check_bucket(const hook_rig *rig, const ls_bucket *bucket, rig_value *value) {
    float *ranks[8] = {0}, scale = (float)bucket->scale;
    size_t n = (size_t)bucket->count + 1;
    float *result = calloc(n, sizeof *result);
    for (int r = 0; r < rig->n_ranks; r++) {
        ranks[r] = calloc(n, sizeof(float));
        fill_bucket(rig, bucket, r, value, ranks[r]);
    }
    const float *grad = bucket->grad;
    for (int64_t first = 0; first < bucket->count; first += BLOCK) {
        int64_t count = bucket->count - first < BLOCK ? bucket->count - first : BLOCK;
        double bound, average[BLOCK] = {0};
        for (int64_t i = 0; i < count; i++)
            for (int r = 0; r < rig->n_ranks; r++)
                average[i] += (double)ranks[r][first + i] * bucket->scale;
        average_block(ranks, rig->n_ranks, first, count, scale, result, &bound);
        for (int64_t i = 0; i < count; i++) {
            RANK_CHECK(same_bits(grad[first + i], result[first + i]) ||
                           (grad[first + i] == 0 && result[first + i] == 0),
                       "element %lld is %a, expected %a", (long long)(first + i),
                       (double)grad[first + i], (double)result[first + i]);
            RANK_CHECK(fabs(grad[first + i] - average[i]) <= bound,
                       "element %lld is %g, the average %g, bound %g", (long long)(first + i),
                       (double)grad[first + i], average[i], bound);
        }
    }
    for (int r = 0; r < rig->n_ranks; r++) free(ranks[r]);
    free(result);
    return LS_OK;
}

/* Sizes that differ from block to block, up to near the ends of float32. */
static float of_all_sizes(int rank, int64_t step, int param, int64_t e) {
    static const float sizes[] = {1, 1e-30f, 1e30f, 0, 0x1p-120f};
    return rig_rough(rank, step, param, e) * sizes[e / 300 % 5];
}

static ls_status matches_reference(ls_group *group, void *context) {
    const run_task *task = context;
    static rig_value *const values[] = {rig_rough, rig_whole, of_all_sizes};
    hook_rig rig;
    ls_comm_hook *hook;
    LSI_TRY(ls_hook_create(LS_HOOK_INT8, NULL, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, shapes, N_SHAPES, task->per_bucket));
    LSI_TRY(rig_prepare(&rig, hook));
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        rig_fill(&rig, values[v], 0);
        LSI_TRY(rig_step(&rig, hook, 0));
        for (int b = 0; b < rig.n_buckets; b++) {
            LSI_TRY(lsi_context(check_bucket(&rig, &rig.buckets[b], values[v]),
                                "bucket %d of %lld elements, values %d", b,
                                (long long)rig.buckets[b].count, (int)v));
        }
    }
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void values_are_those_of_the_reference_and_near_the_average(void **state) {
    (void)state;
    static run_task tasks[] = {{1}, {4}};
    for (int t = 0; t < 2; t++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            for (const int *n = rank_counts; *n; n++)
                assert_ok(run_ranks((rank_mode)mode, *n, matches_reference, &tasks[t]));
}

/* ---- exact ---- */

/* Every block has a 127, so the unit is 1; all ranks have the same. */
static float with_unit_1(int rank, int64_t step, int param, int64_t e) {
    (void)rank;
    (void)step;
    (void)param;
    return (float)(127 - e % BLOCK % 255);
}

static ls_status whole_numbers_return(ls_group *group, void *context) {
    static const rig_shape one = {1000, 0};
    hook_rig rig;
    ls_comm_hook *hook;
    (void)context;
    LSI_TRY(ls_hook_create(LS_HOOK_INT8, NULL, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, &one, 1, 1));
    LSI_TRY(rig_prepare(&rig, hook));
    rig_fill(&rig, with_unit_1, 0);
    LSI_TRY(rig_step(&rig, hook, 0));
    for (int64_t e = 0; e < 1000; e++)
        RANK_CHECK(rig_grad(&rig, 0)[e] == (float)(127 - e % BLOCK % 255), "[%lld] is %g",
                   (long long)e, (double)rig_grad(&rig, 0)[e]);
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void whole_numbers_up_to_127_come_back_exactly(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (int n = 1; n <= 8; n *= 2)
            assert_ok(run_ranks((rank_mode)mode, n, whole_numbers_return, NULL));
}

/* ---- not finite ---- */

static ls_status one_block_is_bad(ls_group *group, void *context) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const rig_shape one = {5 * BLOCK, 0};
    hook_rig rig;
    ls_comm_hook *hook;
    (void)context;
    LSI_TRY(ls_hook_create(LS_HOOK_INT8, NULL, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, &one, 1, 1));
    LSI_TRY(rig_prepare(&rig, hook));
    for (int v = 0; v < 3; v++) {
        rig_fill(&rig, rig_whole, 0);
        if (rig.rank == rig.n_ranks / 2) rig_grad(&rig, 0)[3 * BLOCK + 17] = bad[v];
        LSI_TRY(rig_step(&rig, hook, 0));
        LSI_TRY(rig_check_alike(&rig, "a bad block"));
        for (int64_t e = 0; e < one.rows; e++)
            RANK_CHECK(isnan(rig_grad(&rig, 0)[e]) == (e / BLOCK == 3), "[%lld] is %g",
                       (long long)e, (double)rig_grad(&rig, 0)[e]);
    }
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void a_bad_element_makes_its_block_nan_and_no_other(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, one_block_is_bad, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_reference_and_near_the_average),
        cmocka_unit_test(whole_numbers_up_to_127_come_back_exactly),
        cmocka_unit_test(a_bad_element_makes_its_block_nan_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
