/* bf16 and fp16: values against a serial reference, bit for bit; one rounding for any number of
 * ranks; the loss scale of fp16. */
#include "hooks.h"

#include "base/dtype.h"

static const rig_shape shapes[] = {{0, 0}, {1, 0}, {255, 0}, {256, 0}, {257, 0}, {70001, 0}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct narrow_row {
    ls_hook_kind kind;
    double factor; /* 0: not given */
    uint16_t (*narrow)(float);
    float (*widen)(uint16_t);
} narrow_row;

static const narrow_row rows[] = {
    {LS_HOOK_BF16, 0, lsi_f32_to_bf16, lsi_bf16_to_f32},
    {LS_HOOK_FP16, 0, lsi_f32_to_f16, lsi_f16_to_f32},
    {LS_HOOK_FP16, 4096, lsi_f32_to_f16, lsi_f16_to_f32},
    {LS_HOOK_FP16, 3, lsi_f32_to_f16, lsi_f16_to_f32},
};

static float expected_value(const narrow_row *row, int n_ranks, double scale, int param,
                            int64_t e) {
    float values[8], factor = row->factor != 0 ? (float)row->factor : 1;
    for (int r = 0; r < n_ranks; r++)
        values[r] = row->widen(row->narrow(rig_rough(r, 0, param, e) * factor));
    return row->widen(row->narrow(tree_sum(values, n_ranks) * (float)scale)) / factor;
}

static ls_status matches_reference(ls_group *group, void *context) {
    const narrow_row *row = context;
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = LS_HOOK_OPTS_INIT;
    opts.factor = row->factor != 0 ? &row->factor : NULL;
    LSI_TRY(ls_hook_create(row->kind, &opts, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, shapes, N_SHAPES, 2));
    LSI_TRY(rig_prepare(&rig, hook));
    rig_fill(&rig, rig_rough, 0);
    LSI_TRY(rig_step(&rig, hook, 0));
    RANK_CHECK(rig.n_works == rig.n_buckets, "%d works", rig.n_works);
    for (int i = 0; i < N_SHAPES; i++)
        for (int64_t e = 0; e < rig.params[i].count; e++) {
            float expected = expected_value(row, rig.n_ranks, 1.0 / rig.n_ranks, i, e);
            RANK_CHECK(same_bits(rig_grad(&rig, i)[e], expected), "%s: [%lld] is %a, expected %a",
                       hook->name, (long long)e, (double)rig_grad(&rig, i)[e], (double)expected);
        }
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void values_are_those_of_the_serial_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            for (const int *n = rank_counts; *n; n++)
                assert_ok(run_ranks((rank_mode)mode, *n, matches_reference, (void *)&rows[i]));
}

/* ---- single values ---- */

typedef struct value_row {
    const char *what;
    ls_hook_kind kind;
    int n_ranks;
    double factor, scale;
    float inputs[4];
    float expected;
} value_row;

static const value_row value_rows[] = {
    /* 259 / 4 = 64.75; bfloat16 has steps of 0.5 there. Rounded at each hop: 256 / 4 = 64. */
    {"added in float32", LS_HOOK_BF16, 4, 1, 0.25, {256, 1, 1, 1}, 65.0f},
    {"bf16 has the range of float32", LS_HOOK_BF16, 2, 1, 0.5, {0x1p100f, 0x1p100f}, 0x1p100f},
    {"fp16 has 11 bits", LS_HOOK_FP16, 4, 1, 0.25, {256, 1, 1, 1}, 64.75f},
    {"an input overflows", LS_HOOK_FP16, 2, 1, 0.5, {65520, 0}, INFINITY},
    {"an input overflows below", LS_HOOK_FP16, 2, 1, 0.5, {-1e30f, 5}, -INFINITY},
    {"the factor makes it overflow", LS_HOOK_FP16, 2, 1024, 0.5, {64, 0}, INFINITY},
    {"the sum may be larger than an average", LS_HOOK_FP16, 2, 1, 0.5, {60000, 60000}, 60000},
    {"the sum overflows", LS_HOOK_FP16, 2, 1, 1, {60000, 60000}, INFINITY},
    {"small gradients are lost", LS_HOOK_FP16, 2, 1, 0.5, {0x1p-30f, 0x1p-30f}, 0},
    {"and saved by the factor", LS_HOOK_FP16, 2, 65536, 0.5, {0x1p-30f, 0x1p-30f}, 0x1p-30f},
};

static ls_status gives_value(ls_group *group, void *context) {
    const value_row *row = context;
    static const rig_shape one = {1, 0};
    hook_rig rig;
    ls_comm_hook *hook;
    ls_hook_opts opts = LS_HOOK_OPTS_INIT;
    opts.factor = &row->factor;
    LSI_TRY(ls_hook_create(row->kind, &opts, &hook));
    LSI_TRY(rig_open(&rig, group, LS_DTYPE_F32, &one, 1, 1));
    LSI_TRY(rig_prepare(&rig, hook));
    rig_set_scale(&rig, row->scale);
    rig_grad(&rig, 0)[0] = row->inputs[rig.rank];
    LSI_TRY(rig_step(&rig, hook, 0));
    RANK_CHECK(rig_grad(&rig, 0)[0] == row->expected, "%s: %g, expected %g", row->what,
               (double)rig_grad(&rig, 0)[0], (double)row->expected);
    ls_hook_destroy(hook);
    rig_close(&rig);
    return LS_OK;
}

static void single_values_are_rounded_once(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof value_rows / sizeof value_rows[0]; i++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            assert_ok(run_ranks((rank_mode)mode, value_rows[i].n_ranks, gives_value,
                                (void *)&value_rows[i]));
}

/* ---- the loss scale ---- */

static void the_factor_of_stage_0_is_taken_off_in_stage_1(void **state) {
    (void)state;
    static const rig_shape one = {3, 0};
    lone_group lone;
    hook_rig rig;
    ls_comm_hook *hook;
    double factor = 8;
    ls_hook_opts opts = {.struct_size = sizeof opts, .factor = &factor};
    ls_work *work = NULL;
    lone_group_open(&lone);
    assert_ok(ls_hook_create(LS_HOOK_FP16, &opts, &hook));
    assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &one, 1, 1));
    assert_ok(rig_prepare(&rig, hook));
    rig_grad(&rig, 0)[1] = 5;
    assert_ok(hook->run(hook->context, lone.group, &rig.buckets[0], 0, &work));
    factor = 16;
    assert_ok(ls_work_wait(work, -1));
    work = NULL;
    assert_ok(hook->run(hook->context, lone.group, &rig.buckets[0], 1, &work));
    assert_null(work);
    assert_true(rig_grad(&rig, 0)[1] == 5);
    ls_hook_destroy(hook);
    rig_close(&rig);
    lone_group_close(&lone);
}

static void a_factor_without_an_inverse_is_refused(void **state) {
    (void)state;
    static const double factors[] = {0, -1, INFINITY, NAN, 1e300, 1e-300, 0x1p-149};
    static const rig_shape one = {3, 0};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        lone_group lone;
        hook_rig rig;
        ls_comm_hook *hook;
        ls_hook_opts opts = {.struct_size = sizeof opts, .factor = &factors[i]};
        lone_group_open(&lone);
        assert_ok(ls_hook_create(LS_HOOK_FP16, &opts, &hook));
        assert_ok(rig_open(&rig, lone.group, LS_DTYPE_F32, &one, 1, 1));
        assert_ok(rig_prepare(&rig, hook));
        assert_fails(rig_step(&rig, hook, 0), LS_ERR_ARGUMENT, "hook fp16: *factor is");
        ls_hook_destroy(hook);
        rig_close(&rig);
        lone_group_close(&lone);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_serial_reference),
        cmocka_unit_test(single_values_are_rounded_once),
        cmocka_unit_test(the_factor_of_stage_0_is_taken_off_in_stage_1),
        cmocka_unit_test(a_factor_without_an_inverse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
