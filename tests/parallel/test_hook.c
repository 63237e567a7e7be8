/* What holds for every hook of LS_HOOK_TABLE: names, options, the same bits on all ranks, zeros
 * between parameters, what is not finite, F64, memory. Values are tested hook by hook. */
#include "hooks.h"

#include "base/mem.h"

typedef struct kind_row {
    ls_hook_kind kind;
    const char *name;
} kind_row;

static const kind_row kinds[] = {
#define ROW(name, number, text, help) {LS_HOOK_##name, text},
    LS_HOOK_TABLE(ROW)
#undef ROW
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Around blocks and lines, and matrices that are compressed; the seventh is a large odd count. */
static const rig_shape shapes[] = {{0, 0},   {1, 0},   {255, 0},  {256, 0},
                                   {257, 0}, {40, 33}, {7001, 0}, {3, 2}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static const ls_hook_opts from_the_start = {.struct_size = sizeof(ls_hook_opts), .start_step = -1};

/* ---- creation ---- */

static void every_kind_has_the_name_of_the_table(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        ls_comm_hook *hook = NULL;
        assert_ok(ls_hook_create(kinds[i].kind, NULL, &hook));
        assert_string_equal(hook->name, kinds[i].name);
        assert_non_null(hook->run);
        ls_hook_destroy(hook);
    }
    ls_hook_destroy(NULL);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void unknown_kinds_are_refused_with_a_list(void **state) {
    (void)state;
    static const int numbers[] = {0, -1, N_KINDS + 1, 1000};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        ls_comm_hook *hook = NULL;
        assert_fails(ls_hook_create((ls_hook_kind)numbers[i], NULL, &hook), LS_ERR_ARGUMENT,
                     "7 (powersgd)");
        assert_null(hook);
    }
}

typedef struct opts_row {
    ls_hook_opts opts;
    const char *texts[3]; /* NULL: legal */
} opts_row;

#define OPTS(...)                                                                                  \
    { .struct_size = sizeof(ls_hook_opts), __VA_ARGS__ }

static const opts_row opts_rows[] = {
    {OPTS(.topk_share = 1, .powersgd_rank = 64, .min_rate = 0.5), {NULL}},
    {OPTS(.start_step = -5), {NULL}},
    {{.struct_size = 8}, {"struct_size is 8"}},
    {OPTS(.topk_share = -0.1), {"topk_share is -0.1"}},
    {OPTS(.topk_share = 1.5), {"topk_share is 1.5"}},
    {OPTS(.topk_share = NAN), {"topk_share is"}},
    {OPTS(.powersgd_rank = -1), {"powersgd_rank is -1"}},
    {OPTS(.powersgd_rank = 65), {"powersgd_rank is 65, expected 1 to 64"}},
    {OPTS(.min_rate = -2), {"min_rate is -2"}},
    {OPTS(.min_rate = INFINITY), {"min_rate is inf"}},
    {OPTS(.topk_share = 2, .powersgd_rank = 99, .min_rate = NAN),
     {"topk_share is 2", "powersgd_rank is 99", "min_rate is"}},
};

static void every_bad_option_is_named(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof opts_rows / sizeof opts_rows[0]; r++)
        for (int i = 0; i < N_KINDS; i++) {
            ls_comm_hook *hook = NULL;
            ls_status status = ls_hook_create(kinds[i].kind, &opts_rows[r].opts, &hook);
            if (!opts_rows[r].texts[0]) {
                assert_ok(status);
                ls_hook_destroy(hook);
                continue;
            }
            for (int t = 0; t < 3 && opts_rows[r].texts[t]; t++)
                assert_fails(status, LS_ERR_ARGUMENT, opts_rows[r].texts[t]);
            assert_null(hook);
        }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- all ranks ---- */

/* A body that is run for each kind. */
typedef ls_status kind_body(hook_rig *rig, const ls_comm_hook *hook, ls_hook_kind kind);

typedef struct kind_task {
    kind_body *body;
    ls_dtype dtype;
    int per_bucket;
} kind_task;

static ls_status with_each_kind(ls_group *group, void *context) {
    const kind_task *task = context;
    for (int i = 0; i < N_KINDS; i++) {
        hook_rig rig;
        ls_comm_hook *hook;
        LSI_TRY(ls_hook_create(kinds[i].kind, &from_the_start, &hook));
        LSI_TRY(rig_open(&rig, group, task->dtype, shapes, N_SHAPES, task->per_bucket));
        LSI_TRY(rig_prepare(&rig, hook));
        LSI_TRY(lsi_context(task->body(&rig, hook, kinds[i].kind), "%s", kinds[i].name));
        ls_hook_destroy(hook);
        rig_close(&rig);
    }
    return LS_OK;
}

static void try_kinds(kind_body *body, ls_dtype dtype) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++) {
            kind_task task = {body, dtype, 1 + *n % 3};
            assert_ok(run_ranks((rank_mode)mode, *n, with_each_kind, &task));
        }
}

static ls_status bits_are_alike(hook_rig *rig, const ls_comm_hook *hook, ls_hook_kind kind) {
    for (int64_t step = 0; step < 3; step++) {
        rig_fill(rig, rig_rough, step);
        LSI_TRY(rig_step(rig, hook, step));
        if (kind != LS_HOOK_NOOP) LSI_TRY(rig_check_alike(rig, hook->name));
        LSI_TRY(rig_check_gaps(rig, hook->name));
    }
    return LS_OK;
}

static void all_ranks_end_with_the_same_bits(void **state) {
    (void)state;
    try_kinds(bits_are_alike, LS_DTYPE_F32);
}

/* The gradients of all parameters as a plain all-reduce leaves them. */
static ls_status all_reduced(hook_rig *rig, rig_value *value, int64_t step, char *result) {
    size_t bytes = (size_t)rig->total * ls_dtype_bytes(rig->dtype);
    rig_fill(rig, value, step);
    LSI_TRY(ls_all_reduce(rig->group, rig->memory, rig->memory, rig->total, rig->dtype, LS_OP_SUM,
                          rig->buckets[0].scale, NULL));
    memcpy(result, rig->memory, bytes);
    return LS_OK;
}

static ls_status is_an_all_reduce(hook_rig *rig, const ls_comm_hook *hook, int64_t step) {
    size_t bytes = (size_t)rig->total * ls_dtype_bytes(rig->dtype);
    char *expected = malloc(bytes);
    ls_status status = all_reduced(rig, rig_rough, step, expected);
    rig_fill(rig, rig_rough, step);
    if (status == LS_OK) status = rig_step(rig, hook, step);
    int differs = memcmp(expected, rig->memory, bytes) != 0;
    free(expected);
    LSI_TRY(status);
    RANK_CHECK(!differs, "%s is no all-reduce", hook->name);
    RANK_CHECK(rig->n_works == rig->n_buckets, "%d works", rig->n_works);
    return LS_OK;
}

static ls_status all_reduce_is_plain(hook_rig *rig, const ls_comm_hook *hook, ls_hook_kind kind) {
    return kind == LS_HOOK_ALL_REDUCE ? is_an_all_reduce(rig, hook, 0) : LS_OK;
}

static void the_all_reduce_hook_has_the_bits_of_no_hook(void **state) {
    (void)state;
    try_kinds(all_reduce_is_plain, LS_DTYPE_F32);
}

static ls_status double_is_plain(hook_rig *rig, const ls_comm_hook *hook, ls_hook_kind kind) {
    return kind == LS_HOOK_NOOP ? LS_OK : is_an_all_reduce(rig, hook, 20);
}

static void float64_is_never_compressed(void **state) {
    (void)state;
    try_kinds(double_is_plain, LS_DTYPE_F64);
}

static ls_status noop_is_local(hook_rig *rig, const ls_comm_hook *hook, ls_hook_kind kind) {
    if (kind != LS_HOOK_NOOP) return LS_OK;
    rig_set_scale(rig, 0.25);
    rig_fill(rig, rig_whole, 0);
    LSI_TRY(rig_step(rig, hook, 0));
    RANK_CHECK(rig->n_works == 0, "%d works", rig->n_works);
    for (int i = 0; i < rig->n_params; i++)
        for (int64_t e = 0; e < rig->params[i].count; e++) {
            double found = rig->dtype == LS_DTYPE_F64 ? ((double *)rig->params[i].grad)[e]
                                                      : rig_grad(rig, i)[e];
            double expected = rig_whole(rig->rank, 0, i, e) * 0.25 * rig->n_ranks;
            RANK_CHECK(found == expected, "%g instead of %g", found, expected);
        }
    return LS_OK;
}

static void noop_sends_nothing_and_keeps_the_size_of_an_average(void **state) {
    (void)state;
    try_kinds(noop_is_local, LS_DTYPE_F32);
    try_kinds(noop_is_local, LS_DTYPE_F64);
}

/* ---- what is not finite ---- */

/* One element of each parameter on the last rank, another one each step. */
static float spoiled(int rank, int64_t step, int param, int64_t e) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    if (rank == 100 && e == 0) return values[step % 3];
    return rig_rough(rank, step, param, e);
}

static ls_status spoil_and_recover(hook_rig *rig, const ls_comm_hook *hook, ls_hook_kind kind) {
    if (kind == LS_HOOK_NOOP) return LS_OK;
    for (int64_t step = 0; step < 6; step++) {
        bool is_bad = step % 2 == 1;
        rig_fill(rig, rig_rough, step);
        for (int i = 0; is_bad && i < rig->n_params && rig->rank == rig->n_ranks - 1; i++)
            if (rig->params[i].count) rig_grad(rig, i)[0] = spoiled(100, step / 2, i, 0);
        LSI_TRY(rig_step(rig, hook, step));
        LSI_TRY(rig_check_alike(rig, hook->name));
        LSI_TRY(rig_check_gaps(rig, hook->name));
        for (int i = 0; i < rig->n_params; i++)
            for (int64_t e = 0; e < rig->params[i].count; e++) {
                RANK_CHECK(!is_bad || e > 0 || !isfinite(rig_grad(rig, i)[e]),
                           "step %lld: parameter %d is finite: %g", (long long)step, i,
                           (double)rig_grad(rig, i)[e]);
                RANK_CHECK(is_bad || isfinite(rig_grad(rig, i)[e]),
                           "step %lld: element %lld of parameter %d is not finite", (long long)step,
                           (long long)e, i);
            }
    }
    return LS_OK;
}

static void what_is_not_finite_comes_out_so_and_does_not_stay(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++) {
            /* topk sends one element at least of each bucket, so one parameter each */
            kind_task task = {spoil_and_recover, LS_DTYPE_F32, 1};
            assert_ok(run_ranks((rank_mode)mode, *n, with_each_kind, &task));
        }
}

/* ---- memory ---- */

static ls_status live_once(const lone_group *lone, ls_hook_kind kind) {
    hook_rig rig;
    ls_comm_hook *hook = NULL;
    LSI_TRY(rig_open(&rig, lone->group, LS_DTYPE_F32, shapes, N_SHAPES, 3));
    ls_status status = ls_hook_create(kind, &from_the_start, &hook);
    for (int i = 0; i < 2 && status == LS_OK; i++) {
        rig_build(&rig, 3 - i, i);
        status = rig_prepare(&rig, hook);
        if (status == LS_OK) status = rig_step(&rig, hook, i);
    }
    ls_hook_destroy(hook);
    rig_close(&rig);
    return status;
}

static void failed_allocations_are_reported_and_leave_nothing(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        for (int64_t n = 1, failed = 1; failed; n++) {
            lone_group lone;
            lone_group_open(&lone);
            int64_t n_blocks = lsi_mem_n_blocks();
            lsi_mem_fail_at(n);
            ls_status status = live_once(&lone, kinds[i].kind);
            failed = lsi_mem_has_failed();
            lsi_mem_fail_at(0);
            if (failed)
                assert_fails(status, LS_ERR_MEMORY, "");
            else
                assert_ok(status);
            assert_int_equal(lone_group_blocks(&lone), 0);
            assert_int_equal(lsi_mem_now(LSI_MEM_BUCKETS), 0);
            assert_int_equal(lsi_mem_n_blocks(), n_blocks);
            lone_group_close(&lone);
        }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* The shared heap is smaller than what the wires need. */
static void a_full_heap_is_reported(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        lone_group lone;
        hook_rig rig;
        ls_comm_hook *hook = NULL;
        ls_hook_opts opts = {.struct_size = sizeof opts, .topk_share = 1};
        const rig_shape one = {600, 500};
        void *rest = NULL;
        lone_group_open(&lone);
        assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &one, 1, 1));
        while (ls_group_alloc_shared(lone.group, 1 << 12, &rest) == LS_OK) continue;
        assert_ok(ls_hook_create(kinds[i].kind, &opts, &hook));
        if (hook->prepare)
            assert_fails(rig_prepare(&rig, hook), LS_ERR_MEMORY, "on the wire for 1 buckets");
        ls_hook_destroy(hook);
        rig_close(&rig);
        assert_int_equal(lsi_mem_now(LSI_MEM_BUCKETS), 0);
        lone_group_close(&lone);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_the_name_of_the_table),
        cmocka_unit_test(unknown_kinds_are_refused_with_a_list),
        cmocka_unit_test(every_bad_option_is_named),
        cmocka_unit_test(all_ranks_end_with_the_same_bits),
        cmocka_unit_test(the_all_reduce_hook_has_the_bits_of_no_hook),
        cmocka_unit_test(float64_is_never_compressed),
        cmocka_unit_test(noop_sends_nothing_and_keeps_the_size_of_an_average),
        cmocka_unit_test(what_is_not_finite_comes_out_so_and_does_not_stay),
        cmocka_unit_test(failed_allocations_are_reported_and_leave_nothing),
        cmocka_unit_test(a_full_heap_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
