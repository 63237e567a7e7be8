/* powersgd: one step against a reference in double; matrices of low rank, which come back up to
 * rounding; that nothing is lost over steps; what is compressed and what goes along as it is. */
#include "hooks.h"

#include "base/rng.h"

static const double EPSILON = 0x1p-24;

static ls_hook_opts opts_of(int rank, double min_rate) {
    return (ls_hook_opts){.struct_size = sizeof(ls_hook_opts),
                          .powersgd_rank = rank,
                          .min_rate = min_rate,
                          .start_step = -1,
                          .seed = 77};
}

/* A hook on matrices in buckets of per_bucket. */
static ls_status open_all(hook_rig *rig, ls_comm_hook **hook, ls_group *group,
                          const ls_hook_opts *opts, const rig_shape *shapes, int n_params,
                          int per_bucket) {
    LSI_TRY(ls_hook_create(LS_HOOK_POWERSGD, opts, hook));
    LSI_TRY(rig_open(rig, group, LS_DTYPE_F32, shapes, n_params, per_bucket));
    return rig_prepare(rig, *hook);
}

static void close_all(hook_rig *rig, ls_comm_hook *hook) {
    ls_hook_destroy(hook);
    rig_close(rig);
}

static float random_value(int rank, int64_t step, int param, int64_t e) {
    lsi_rng_stream stream =
        lsi_rng_open(5, LSI_RNG_TEST, (uint32_t)(rank * 100 + param), (uint32_t)step);
    return lsi_rng_uniform(&stream, (uint64_t)e) - 0.5f;
}

static float constant_value(int rank, int64_t step, int param, int64_t e) {
    (void)step;
    return random_value(rank, 0, param, e);
}

static float nothing(int rank, int64_t step, int param, int64_t e) {
    (void)rank;
    (void)step;
    (void)param;
    (void)e;
    return 0;
}

/* ---- the reference: the average, projected onto the columns of average * Q ---- */

enum { N = 24, M = 36, R = 3 };

static void project(double mean[N][M], double p[N][R], double result[N][M]) {
    for (int c = 0; c < R; c++) {
        for (int pass = 0; pass < 2; pass++)
            for (int k = 0; k < c; k++) {
                double along = 0;
                for (int i = 0; i < N; i++) along += p[i][c] * p[i][k];
                for (int i = 0; i < N; i++) p[i][c] -= along * p[i][k];
            }
        double length = 0;
        for (int i = 0; i < N; i++) length += p[i][c] * p[i][c];
        for (int i = 0; i < N; i++) p[i][c] /= sqrt(length);
    }
    for (int j = 0; j < M; j++)
        for (int c = 0; c < R; c++) {
            double along = 0;
            for (int i = 0; i < N; i++) along += p[i][c] * mean[i][j];
            for (int i = 0; i < N; i++) result[i][j] += p[i][c] * along;
        }
}

static void reference_step(int n_ranks, int param, double result[N][M]) {
    double mean[N][M] = {{0}}, p[N][R] = {{0}};
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++)
            for (int r = 0; r < n_ranks; r++)
                mean[i][j] += (double)random_value(r, 0, param, i * M + j) / n_ranks;
    for (int c = 0; c < R; c++) {
        float q[M];
        lsi_rng_stream stream = lsi_rng_open(77, LSI_RNG_HOOK, (uint32_t)param, (uint32_t)c);
        lsi_rng_normal(&stream, 1, q, M);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < M; j++) p[i][c] += mean[i][j] * q[j];
    }
    project(mean, p, result);
}

/* Columns of average * Q are far from dependent here: float32 changes the projection by less than
 * 100 roundings of the largest sums. */
static ls_status step_matches_reference(ls_group *group, void *context) {
    static const rig_shape shapes[] = {{7, 0}, {N, M}, {N, M}, {100, 0}};
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(R, 2);
    (void)context;
    LSI_TRY(open_all(&rig, &hook, group, &opts, shapes, 4, 2));
    rig_fill(&rig, random_value, 0);
    LSI_TRY(rig_step(&rig, hook, 0));
    for (int param = 1; param <= 2; param++) {
        double result[N][M] = {{0}};
        reference_step(rig.n_ranks, param, result);
        for (int e = 0; e < N * M; e++)
            RANK_CHECK(fabs(rig_grad(&rig, param)[e] - result[e / M][e % M]) <= 100 * EPSILON * N,
                       "parameter %d, [%d] is %g, expected %g", param, e,
                       (double)rig_grad(&rig, param)[e], result[e / M][e % M]);
    }
    close_all(&rig, hook);
    return LS_OK;
}

static void a_step_is_the_projection_of_the_average(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, step_matches_reference, NULL));
}

/* ---- what goes along ---- */

static ls_status vectors_are_all_reduced(ls_group *group, void *context) {
    static const rig_shape shapes[] = {{7, 0}, {40, 33}, {0, 0}, {3, 3}, {257, 0}, {64, 16}};
    static const int is_compressed[] = {0, 1, 0, 0, 0, 1};
    const int *per_bucket = context;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(2, 2);
    LSI_TRY(open_all(&rig, &hook, group, &opts, shapes, 6, *per_bucket));
    rig_fill(&rig, rig_rough, 0);
    LSI_TRY(rig_step(&rig, hook, 0));
    for (int i = 0; i < 6; i++)
        for (int64_t e = 0; e < rig.params[i].count && !is_compressed[i]; e++) {
            float values[8];
            for (int r = 0; r < rig.n_ranks; r++) values[r] = rig_rough(r, 0, i, e);
            float expected = tree_sum(values, rig.n_ranks) * (float)(1.0 / rig.n_ranks);
            RANK_CHECK(same_bits(rig_grad(&rig, i)[e], expected), "parameter %d, [%lld] is %a", i,
                       (long long)e, (double)rig_grad(&rig, i)[e]);
        }
    close_all(&rig, hook);
    return LS_OK;
}

static void what_is_no_matrix_has_the_bits_of_an_all_reduce(void **state) {
    (void)state;
    for (int per_bucket = 1; per_bucket <= 6; per_bucket += 2)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks(RANKS_AS_THREADS, *n, vectors_are_all_reduced, &per_bucket));
}

typedef struct rate_row {
    int n_dims;
    int64_t shape[3], count;
    int rank;
    double min_rate;
    int n_works; /* 2: compressed */
} rate_row;

static const rate_row rate_rows[] = {
    {1, {4096}, 4096, 1, 1, 1},
    {0, {0}, 4096, 1, 1, 1},
    {2, {64, 64}, 4096, 4, 2, 2},  /* 4096 > 2 * 4 * 128 */
    {2, {64, 64}, 4096, 16, 2, 1}, /* 4096 = 2 * 16 * 128 */
    {2, {64, 64}, 4096, 16, 1.9, 2},
    {2, {64, 64}, 4096, 64, 0.3, 2},
    {2, {2, 2048}, 4096, 4, 0.9, 2}, /* its rank is 2 */
    {2, {1, 4096}, 4096, 4, 1, 1},
    {3, {64, 8, 8}, 4096, 4, 2, 2},
    {3, {8, 8, 64}, 4096, 4, 2, 1}, /* 8 rows of 512 */
    {2, {0, 64}, 0, 4, 1, 1},
    {2, {63, 64}, 4096, 4, 1, 1}, /* no shape of so many elements */
};

static void matrices_that_would_shrink_little_are_sent_as_they_are(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof rate_rows / sizeof rate_rows[0]; r++) {
        const rate_row *row = &rate_rows[r];
        const rig_shape flat = {row->count, 0};
        lone_group lone;
        hook_rig rig;
        ls_comm_hook *hook;
        ls_hook_opts opts = opts_of(row->rank, row->min_rate);
        lone_group_open(&lone);
        assert_ok(ls_hook_create(LS_HOOK_POWERSGD, &opts, &hook));
        assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &flat, 1, 1));
        rig.params[0].n_dims = row->n_dims;
        memcpy(rig.params[0].shape, row->shape, sizeof row->shape);
        assert_ok(rig_prepare(&rig, hook));
        assert_ok(rig_step(&rig, hook, 0));
        if (rig.n_works != row->n_works) fail_msg("row %zu: %d works", r, rig.n_works);
        close_all(&rig, hook);
        lone_group_close(&lone);
    }
}

static ls_status starts_late(ls_group *group, void *context) {
    static const rig_shape one = {32, 32};
    hook_rig rig;
    ls_comm_hook *hook;
    (void)context;
    ls_hook_opts opts = opts_of(2, 2);
    opts.start_step = 3;
    LSI_TRY(open_all(&rig, &hook, group, &opts, &one, 1, 1));
    for (int64_t step = 2; step < 4; step++) {
        rig_fill(&rig, rig_whole, 0);
        rig_set_scale(&rig, 1);
        LSI_TRY(rig_step(&rig, hook, step));
        int n_right = 0;
        for (int e = 0; e < 1024; e++) {
            float sum = 0;
            for (int r = 0; r < rig.n_ranks; r++) sum += rig_whole(r, 0, 0, e);
            n_right += rig_grad(&rig, 0)[e] == sum;
        }
        RANK_CHECK((n_right == 1024) == (step < 3), "step %lld: %d are the sum", (long long)step,
                   n_right);
    }
    close_all(&rig, hook);
    return LS_OK;
}

static void steps_before_the_start_are_sent_as_they_are(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_THREADS, *n, starts_late, NULL));
}

/* ---- low rank ---- */

/* Rows and columns of +1 and -1 that are at right angles: element of row i of a Hadamard matrix. */
static float hadamard(int64_t i, int64_t j) {
    return __builtin_popcountll((unsigned long long)(i & j)) % 2 ? -1.0f : 1.0f;
}

enum { SIDE = 64, MOST_LOW_RANK = 4 };
static int low_rank;

/* A matrix of `low_rank` singular values that are all alike: the sum of as many products u v', the
 * same on all ranks but for a factor. */
static float of_low_rank(int rank, int64_t step, int param, int64_t e) {
    float sum = 0;
    (void)step;
    (void)param;
    for (int k = 0; k < low_rank; k++)
        sum += hadamard(e / SIDE, 3 * k + 1) * hadamard(e % SIDE, 5 * k + 2);
    return sum * (float)(rank + 1);
}

/* Let a = |M| be the largest element. From the second step on Q spans the rows of M, and since the
 * singular values are alike, P spans its columns as well as float32 can say: each element of M Q is
 * a sum in 16 lanes of SIDE / 16 terms and 4 levels (at most 8 roundings), then log2(8) + 1
 * roundings of the average; dividing by the length and taking off other columns adds 2 a column. M'
 * P then has SIDE roundings in a row, and P Q' one for each column. Errors add up to less than 2
 * SIDE roundings of sums of at most `rank` products, each below a: 2 SIDE rank a EPSILON. */
static ls_status low_rank_returns(ls_group *group, void *context) {
    static const rig_shape one = {SIDE, SIDE};
    const int *rank = context;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(*rank, 1);
    LSI_TRY(open_all(&rig, &hook, group, &opts, &one, 1, 1));
    double factor = (rig.n_ranks + 1) / 2.0;
    for (int64_t step = 0; step < 4; step++) {
        rig_fill(&rig, of_low_rank, step);
        LSI_TRY(rig_step(&rig, hook, step));
        /* the first Q is random: its columns may be close to each other */
        double bound = 2 * SIDE * *rank * EPSILON * low_rank * factor * (step == 0 ? 100 : 1);
        for (int e = 0; e < SIDE * SIDE; e++) {
            double expected = of_low_rank(0, 0, 0, e) * factor;
            RANK_CHECK(fabs(rig_grad(&rig, 0)[e] - expected) <= bound,
                       "rank %d by %d, step %lld: [%d] is %.9g, expected %g, bound %g", low_rank,
                       *rank, (long long)step, e, (double)rig_grad(&rig, 0)[e], expected, bound);
        }
    }
    close_all(&rig, hook);
    return LS_OK;
}

static void matrices_of_low_rank_come_back_up_to_rounding(void **state) {
    (void)state;
    for (low_rank = 0; low_rank <= MOST_LOW_RANK; low_rank++)
        for (int rank = low_rank ? low_rank : 1; rank <= MOST_LOW_RANK + 1; rank++)
            for (const int *n = rank_counts; *n; n++)
                assert_ok(run_ranks(RANKS_AS_THREADS, *n, low_rank_returns, &rank));
}

/* Two singular values, the second 2^-12 of the first. */
static float of_unlike_values(int rank, int64_t step, int param, int64_t e) {
    (void)rank;
    (void)step;
    (void)param;
    return hadamard(e / SIDE, 1) * hadamard(e % SIDE, 2) +
           hadamard(e / SIDE, 4) * hadamard(e % SIDE, 7) * 0x1p-12f;
}

/* The columns of the first P are nearly the same. Taking the first off the second once leaves some
 * 2^12 EPSILON of it there, which would come out as an error of that size; twice, about EPSILON. */
static ls_status unlike_values_return(ls_group *group, void *context) {
    static const rig_shape one = {SIDE, SIDE};
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(2, 1);
    (void)context;
    LSI_TRY(open_all(&rig, &hook, group, &opts, &one, 1, 1));
    for (int64_t step = 0; step < 3; step++) {
        rig_fill(&rig, of_unlike_values, step);
        LSI_TRY(rig_step(&rig, hook, step));
        for (int e = 0; e < SIDE * SIDE; e++) {
            double expected = of_unlike_values(0, 0, 0, e);
            RANK_CHECK(fabs(rig_grad(&rig, 0)[e] - expected) <= 100 * EPSILON,
                       "step %lld: [%d] is %.9g, expected %.9g", (long long)step, e,
                       (double)rig_grad(&rig, 0)[e], expected);
        }
    }
    close_all(&rig, hook);
    return LS_OK;
}

static void nearly_dependent_columns_end_at_right_angles(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_THREADS, *n, unlike_values_return, NULL));
}

/* After steps without any gradient there is no direction to go on from. */
static void a_matrix_that_was_zero_is_learned_again(void **state) {
    (void)state;
    static const rig_shape one = {SIDE, SIDE};
    lone_group lone;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(2, 1);
    low_rank = 2;
    lone_group_open(&lone);
    assert_ok(open_all(&rig, &hook, lone.group, &opts, &one, 1, 1));
    for (int64_t step = 0; step < 6; step++) {
        rig_fill(&rig, step < 3 ? nothing : of_low_rank, step);
        assert_ok(rig_step(&rig, hook, step));
        if (step < 3)
            for (int e = 0; e < SIDE * SIDE; e++) assert_true(rig_grad(&rig, 0)[e] == 0);
    }
    for (int e = 0; e < SIDE * SIDE; e++)
        assert_true(fabsf(rig_grad(&rig, 0)[e] - of_low_rank(0, 0, 0, e)) < 1e-3f);
    close_all(&rig, hook);
    lone_group_close(&lone);
}

/* ---- nothing is lost ---- */

enum { STEPS = 50, DRAIN = 60, FED_PARAMS = 3, FED_TOTAL = 2000, FED_RANK = 4 };
static const rig_shape fed[FED_PARAMS] = {{24, 20}, {9, 0}, {16, 30}};

typedef struct feedback_row {
    const char *what;
    int rebuilds, halves_scale;
    rig_value *value;
} feedback_row;

static const feedback_row feedback_rows[] = {
    {"constant", 0, 0, constant_value},
    {"another each step", 0, 0, random_value},
    {"buckets rebuilt", 1, 0, constant_value},
    {"another scale", 0, 1, constant_value},
};

static double scale_of(const feedback_row *row, const hook_rig *rig, int64_t step) {
    return (row->halves_scale && step >= STEPS / 3 ? 0.5 : 1.0) / rig->n_ranks;
}

static double true_sum(const feedback_row *row, const hook_rig *rig, int param, int64_t e) {
    double sum = 0;
    for (int64_t step = 0; step < STEPS; step++)
        for (int r = 0; r < rig->n_ranks; r++)
            sum += (double)row->value(r, step, param, e) * scale_of(row, rig, step);
    return sum;
}

static ls_status run_steps(hook_rig *rig, ls_comm_hook *hook, const feedback_row *row,
                           double *sums) {
    for (int64_t step = 0; step < STEPS + DRAIN; step++) {
        if (row->rebuilds && step % 10 == 3) {
            rig_build(rig, 1 + (int)(step / 10) % 3, step / 10 % 2 == 0);
            LSI_TRY(rig_prepare(rig, hook));
        }
        rig_set_scale(rig, scale_of(row, rig, step));
        rig_fill(rig, step < STEPS ? row->value : nothing, step);
        LSI_TRY(rig_step(rig, hook, step));
        int64_t at = 0;
        for (int i = 0; i < FED_PARAMS; i++)
            for (int64_t e = 0; e < rig->params[i].count; e++) sums[at++] += rig_grad(rig, i)[e];
    }
    return LS_OK;
}

/* A step's result and what it leaves out differ from what went in by the roundings of M (1), of
 * what is left out (2 a column), of the average of Q and of the result (2 a column, and 4): less
 * than 4 (r + 2) roundings of numbers that are below the longest M. M is what a step brings, at
 * most sqrt(24 * 20) / 2 = 11 long, and what was left out, which had piled up for 15 steps or so
 * before its direction was sent: below 200 in length, and an element below a fifth of it. In 110
 * steps that is 110 * 24 * 40 EPSILON = 0.0063. After the steps without gradients nothing else is
 * left. */
static ls_status sums_are_true(ls_group *group, void *context) {
    const feedback_row *row = context;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(FED_RANK, 0.5);
    double sums[FED_TOTAL] = {0}, bound = (STEPS + DRAIN) * 4 * (FED_RANK + 2) * 40 * EPSILON;
    LSI_TRY(open_all(&rig, &hook, group, &opts, fed, FED_PARAMS, 2));
    LSI_TRY(run_steps(&rig, hook, row, sums));
    int64_t at = 0;
    for (int i = 0; i < FED_PARAMS; i++)
        for (int64_t e = 0; e < rig.params[i].count; e++, at++) {
            double expected = true_sum(row, &rig, i, e);
            RANK_CHECK(fabs(sums[at] - expected) <= bound,
                       "%s: parameter %d, [%lld]: %.9g came out, expected %.9g", row->what, i,
                       (long long)e, sums[at], expected);
        }
    close_all(&rig, hook);
    return LS_OK;
}

static void what_is_left_out_comes_out_later(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof feedback_rows / sizeof feedback_rows[0]; r++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)(r % N_RANK_MODES), *n, sums_are_true,
                                (void *)&feedback_rows[r]));
}

/* ---- the seed ---- */

static float first_element(uint64_t seed) {
    static const rig_shape one = {SIDE, SIDE};
    lone_group lone;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = opts_of(2, 1);
    opts.seed = seed;
    lone_group_open(&lone);
    assert_ok(open_all(&rig, &hook, lone.group, &opts, &one, 1, 1));
    rig_fill(&rig, random_value, 0);
    assert_ok(rig_step(&rig, hook, 0));
    float first = rig_grad(&rig, 0)[0];
    close_all(&rig, hook);
    lone_group_close(&lone);
    return first;
}

static void the_seed_decides_where_it_begins(void **state) {
    (void)state;
    assert_true(same_bits(first_element(1), first_element(1)));
    assert_false(same_bits(first_element(1), first_element(2)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_projection_of_the_average),
        cmocka_unit_test(what_is_no_matrix_has_the_bits_of_an_all_reduce),
        cmocka_unit_test(matrices_that_would_shrink_little_are_sent_as_they_are),
        cmocka_unit_test(steps_before_the_start_are_sent_as_they_are),
        cmocka_unit_test(matrices_of_low_rank_come_back_up_to_rounding),
        cmocka_unit_test(nearly_dependent_columns_end_at_right_angles),
        cmocka_unit_test(a_matrix_that_was_zero_is_learned_again),
        cmocka_unit_test(what_is_left_out_comes_out_later),
        cmocka_unit_test(the_seed_decides_where_it_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
