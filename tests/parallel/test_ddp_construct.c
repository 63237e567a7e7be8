/* What ls_ddp_create compares, refuses and hands out: models and options that differ between ranks
 * are named on all of them, parameters that cannot be are refused before anything is sent, and
 * buffers are those of rank 0. */
#include "small.h"

/* ---- T007: ranks built different models ---- */

typedef enum build { PLAIN, EXTRA_LAYER, TRANSPOSED, FLAT, WIDER_DTYPE } build;

typedef struct model_row {
    build build; /* of rank 2; the others: PLAIN */
    const char *text[3];
} model_row;

static const model_row model_rows[] = {
    {EXTRA_LAYER,
     {"parameter 2 is missing on rank 0", "'extra' (3 elements, F32) on rank 2", "2 2 3"}},
    {TRANSPOSED,
     {"parameter 1 is 'w' (8 elements, shape 4x2, F32) on rank 0",
      "'w' (8 elements, shape 2x4, F32) on rank 2", "by rank: 2 2 2"}},
    {FLAT,
     {"'w' (8 elements, shape 4x2, F32) on rank 0", "'w' (8 elements, shape 8, F32) on rank 2",
      ""}},
    {WIDER_DTYPE, {"parameter 0 is 'b' (5 elements, F32) on rank 0", "'b' (5 elements, F64)", ""}},
};

static int build_model(small *s, build how) {
    static const spec layers[] = {{"b", 5, 0, 0}, {"w", 8, 0, 0}, {"extra", 3, 0, 0}};
    small_init(s, layers, how == EXTRA_LAYER ? 3 : 2);
    ls_param *w = &s->params[1];
    w->n_dims = how == FLAT ? 1 : 2;
    w->shape[0] = how == TRANSPOSED ? 2 : how == FLAT ? 8 : 4;
    w->shape[1] = how == TRANSPOSED ? 4 : how == FLAT ? 0 : 2;
    if (how == WIDER_DTYPE) s->params[0].dtype = LS_DTYPE_F64;
    return s->n_params;
}

static ls_status models_differ(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(model_rows); i++) {
        small s;
        ls_ddp *ddp = NULL;
        int n = build_model(&s, ls_group_rank(group) == 2 ? model_rows[i].build : PLAIN);
        for (int t = 0; t < 3; t++)
            RANK_FAILS(ls_ddp_create(group, s.params, n, NULL, &ddp), LS_ERR_MISMATCH,
                       model_rows[i].text[t]);
        RANK_CHECK(!ddp && !s.params[0].grad, "row %zu: something was made", i);
        n = build_model(&s, PLAIN);
        LSI_TRY(ls_ddp_create(group, s.params, n, NULL, &ddp));
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void different_models_are_named_with_their_shapes(void **state) {
    (void)state;
    run_in_both(3, models_differ, NULL);
}

/* ---- options that differ ---- */

static ls_status run_nothing(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                             ls_work **work) {
    (void)context, (void)group, (void)bucket, (void)stage, (void)work;
    return LS_OK;
}

static const ls_comm_hook other_hook = {.name = "other", .run = run_nothing};

static const struct number_row {
    const char *name;
    size_t offset;
    int value;
} number_rows[] = {
    {"reproducible", offsetof(ls_ddp_opts, reproducible), 1},
    {"average", offsetof(ls_ddp_opts, average), LS_AVERAGE_SUM},
    {"find_unused_parameters", offsetof(ls_ddp_opts, find_unused_parameters), 1},
    {"static_graph", offsetof(ls_ddp_opts, static_graph), 1},
    {"keep_buckets", offsetof(ls_ddp_opts, keep_buckets), 1},
    {"no_overlap", offsetof(ls_ddp_opts, no_overlap), 1},
    {"join", offsetof(ls_ddp_opts, join), LS_JOIN_STOP},
    {"nonfinite", offsetof(ls_ddp_opts, nonfinite), LS_NONFINITE_SKIP},
    {"broadcast_buffers", offsetof(ls_ddp_opts, broadcast_buffers), 1},
    {"strategy", offsetof(ls_ddp_opts, strategy), LS_STRATEGY_ZERO1},
    {"replicas", offsetof(ls_ddp_opts, replicas), LS_REPLICAS_PRIVATE},
};

static const struct size_row {
    const char *name;
    size_t offset;
    double value;
    const char *text;
} size_rows[] = {
    {"bucket_cap_mb", offsetof(ls_ddp_opts, bucket_cap_mb), 2.5, "bucket_cap_mb 2.5"},
    {"first_bucket_mb", offsetof(ls_ddp_opts, first_bucket_mb), 0.125, "first_bucket_mb 0.125"},
};

/* The last rank has other options than the rest; `text` is what it has. */
static ls_status expect_difference(ls_group *group, const ls_ddp_opts *other, const char *text) {
    const ls_ddp_opts plain = LS_DDP_OPTS_INIT;
    char start[80];
    int last = ls_group_world_size(group) - 1;
    bool is_last = ls_group_rank(group) == last;
    small s;
    ls_ddp *ddp = NULL;
    int n = build_model(&s, PLAIN);
    RANK_FAILS(ls_ddp_create(group, s.params, n, is_last ? other : &plain, &ddp), LS_ERR_MISMATCH,
               text);
    snprintf(start, sizeof start, "the ranks have different ddp options: rank 0 strategy 0 ");
    RANK_CHECK(strstr(ls_last_message(), start), "message '%s'", ls_last_message());
    snprintf(start, sizeof start, ", rank %d strategy ", last);
    RANK_CHECK(strstr(ls_last_message(), start), "message '%s'", ls_last_message());
    LSI_TRY(ls_ddp_create(group, s.params, n, other, &ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static ls_status options_differ(ls_group *group, void *context) {
    char text[80];
    (void)context;
    for (size_t i = 0; i < COUNT_OF(number_rows); i++) {
        ls_ddp_opts opts = LS_DDP_OPTS_INIT;
        memcpy((char *)&opts + number_rows[i].offset, &number_rows[i].value, sizeof(int));
        snprintf(text, sizeof text, " %s %d", number_rows[i].name, number_rows[i].value);
        LSI_TRY(expect_difference(group, &opts, text));
    }
    for (size_t i = 0; i < COUNT_OF(size_rows); i++) {
        ls_ddp_opts opts = LS_DDP_OPTS_INIT;
        memcpy((char *)&opts + size_rows[i].offset, &size_rows[i].value, sizeof(double));
        LSI_TRY(expect_difference(group, &opts, size_rows[i].text));
    }
    float value = 0;
    ls_param buffer = {.name = "buffer", .count = 1, .dtype = LS_DTYPE_F32, .data = &value};
    ls_ddp_opts opts = {.struct_size = sizeof opts, .buffers = &buffer, .n_buffers = 1};
    LSI_TRY(expect_difference(group, &opts, " buffers 1 "));
    opts = (ls_ddp_opts){.struct_size = sizeof opts, .hook = &other_hook};
    return expect_difference(group, &opts, " hook other ");
}

static void different_options_are_named(void **state) {
    (void)state;
    run_in_both(2, options_differ, NULL);
    run_in_both(5, options_differ, NULL);
}

/* Yes may be said by any number. */
static ls_status yes_is_yes(ls_group *group, void *context) {
    ls_ddp_opts opts = {.struct_size = sizeof opts, .reproducible = 1 + ls_group_rank(group)};
    (void)context;
    opts.no_overlap = opts.keep_buckets = opts.find_unused_parameters = opts.reproducible;
    small s;
    ls_ddp *ddp = NULL;
    int n = build_model(&s, PLAIN);
    LSI_TRY(ls_ddp_create(group, s.params, n, &opts, &ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void any_number_but_zero_is_yes(void **state) {
    (void)state;
    run_in_both(3, yes_is_yes, NULL);
}

/* ---- refused on every rank, before anything is sent ---- */

static const struct range_row {
    size_t offset;
    int value;
    const char *text;
} range_rows[] = {
    {offsetof(ls_ddp_opts, average), -1, "average is -1, expected 0 to 4"},
    {offsetof(ls_ddp_opts, average), 5, "average is 5, expected 0 to 4"},
    {offsetof(ls_ddp_opts, join), 4, "join is 4, expected 0 to 3"},
    {offsetof(ls_ddp_opts, join), INT32_MIN, "join is -2147483648"},
    {offsetof(ls_ddp_opts, nonfinite), 3, "nonfinite is 3, expected 0 to 2"},
    {offsetof(ls_ddp_opts, n_buffers), 2, "2 buffers at NULL"},
    {offsetof(ls_ddp_opts, n_buffers), -1, "-1 buffers"},
};

static const struct hook_row {
    ls_comm_hook hook;
    int average;
    ls_status status;
    const char *text;
} hook_rows[] = {
    {{.name = "no run"}, 0, LS_ERR_ARGUMENT, "the hook needs a name and run"},
    {{.run = run_nothing}, 0, LS_ERR_ARGUMENT, "the hook needs a name and run"},
    {{.name = "other", .run = run_nothing},
     LS_AVERAGE_MEANS,
     LS_ERR_UNSUPPORTED,
     "LS_AVERAGE_MEANS gives every rank a factor of its own, which hooks do not know"},
};

static float memory[16];

/* The second of two parameters; the first is 4 float32 elements in the middle of the memory. */
static const struct param_row {
    ls_param param;
    const char *text;
} param_rows[] = {
    {{.name = "a", .count = 1, .data = memory}, "two THINGs are named a; names must be unique"},
    {{.name = "b", .count = 4, .data = memory + 6}, "THINGs a and b share memory; describe tied"},
    {{.name = "b", .count = 1, .data = memory + 9}, "THINGs a and b share memory"},
    {{.name = "b", .count = 7, .data = memory}, "THINGs b and a share memory"},
    {{.name = "b", .count = 16, .data = memory}, "THINGs b and a share memory"},
    {{.name = "b", .count = 4, .data = memory, .n_dims = 2, .shape = {2, 3}},
     "THING b has 4 elements, its shape of 2 dims (0 to 8) means another number"},
    {{.name = "b", .count = 4, .data = memory, .n_dims = 9}, "its shape of 9 dims (0 to 8)"},
    {{.name = "b", .count = 4, .data = memory, .n_dims = -1}, "its shape of -1 dims (0 to 8)"},
    {{.name = "b", .count = 4, .data = memory, .n_dims = 2, .shape = {-2, -2}}, "THING b has 4"},
    {{.name = "b",
      .count = 0,
      .data = memory,
      .n_dims = 3,
      .shape = {INT64_MAX, INT64_MAX, INT64_MAX}},
     "THING b has 0 elements"},
    {{.name = NULL, .count = 1, .data = memory}, "THING 1 needs a name"},
    {{.name = "b", .count = -1, .data = memory}, "THING 1 needs a name, a count >= 0 and data"},
    {{.name = "b", .count = 1, .data = NULL}, "THING 1 needs a name, a count >= 0 and data"},
};

static const struct good_row {
    ls_param param;
} good_rows[] = {
    {{.name = "b", .count = 6, .data = memory}},
    {{.name = "b", .count = 6, .data = memory + 10}},
    {{.name = "b", .count = 0, .data = memory + 8}},
    {{.name = "b", .count = 0, .data = NULL}},
    {{.name = "b", .count = 6, .data = memory, .n_dims = 3, .shape = {3, 1, 2}}},
    {{.name = "b", .count = 0, .data = memory, .n_dims = 2, .shape = {0, 7}}},
    {{.name = "b", .count = 1, .data = memory, .n_dims = 8, .shape = {1, 1, 1, 1, 1, 1, 1, 1}}},
};

/* As parameters, or as buffers; what was made is destroyed. */
static ls_status create_with(ls_group *group, const ls_param *second, bool as_buffers) {
    ls_param list[2] = {{.name = "a", .count = 4, .dtype = LS_DTYPE_F32, .data = memory + 6},
                        *second};
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    ls_ddp *ddp = NULL;
    list[1].dtype = LS_DTYPE_F32;
    opts.buffers = as_buffers ? list : NULL;
    opts.n_buffers = as_buffers ? 2 : 0;
    LSI_TRY(ls_ddp_create(group, list, as_buffers ? 0 : 2, &opts, &ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void for_thing(const char *text, const char *thing, char out[120]) {
    const char *at = strstr(text, "THING");
    int before = at ? (int)(at - text) : (int)strlen(text);
    snprintf(out, 120, "%.*s%s%s", before, text, at ? thing : "", at ? at + 5 : "");
}

static ls_status refuse_params(ls_group *group, bool as_buffers) {
    char text[120];
    int64_t before = n_calls(group);
    for (size_t i = 0; i < COUNT_OF(param_rows); i++) {
        for_thing(param_rows[i].text, as_buffers ? "buffer" : "parameter", text);
        RANK_FAILS(create_with(group, &param_rows[i].param, as_buffers), LS_ERR_ARGUMENT, text);
    }
    RANK_CHECK(n_calls(group) == before, "something was sent");
    for (size_t i = 0; i < COUNT_OF(good_rows); i++)
        LSI_TRY(
            lsi_context(create_with(group, &good_rows[i].param, as_buffers), "good row %zu", i));
    return LS_OK;
}

static ls_status refuse_options(ls_group *group) {
    small s;
    ls_ddp *ddp = NULL;
    int n = build_model(&s, PLAIN);
    for (size_t i = 0; i < COUNT_OF(range_rows); i++) {
        ls_ddp_opts opts = LS_DDP_OPTS_INIT;
        memcpy((char *)&opts + range_rows[i].offset, &range_rows[i].value, sizeof(int));
        RANK_FAILS(ls_ddp_create(group, s.params, n, &opts, &ddp), LS_ERR_ARGUMENT,
                   range_rows[i].text);
    }
    for (size_t i = 0; i < COUNT_OF(hook_rows); i++) {
        ls_ddp_opts opts = {.struct_size = sizeof opts,
                            .hook = &hook_rows[i].hook,
                            .average = hook_rows[i].average};
        RANK_FAILS(ls_ddp_create(group, s.params, n, &opts, &ddp), hook_rows[i].status,
                   hook_rows[i].text);
    }
    return LS_OK;
}

static ls_status refuse_all(ls_group *group, void *context) {
    int64_t before = n_calls(group);
    (void)context;
    LSI_TRY(refuse_options(group));
    RANK_CHECK(n_calls(group) == before, "something was sent");
    LSI_TRY(refuse_params(group, false));
    return refuse_params(group, true);
}

static void impossible_parameters_buffers_and_options_are_refused(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, n_ranks, refuse_all, NULL));
}

/* ---- buffers ---- */

enum { N_BUFFERS = 4 };
static const spec buffer_specs[N_BUFFERS] = {{"mean", 7, 0, 0},
                                             {"seen", 1, LS_DTYPE_I64, 0},
                                             {"mask", 3, LS_DTYPE_U8, 0},
                                             {"none", 0, LS_DTYPE_BF16, 0}};

static void fill_buffers(small *b, int rank, int step) {
    for (int i = 0; i < N_BUFFERS; i++) memset(b->data[i], 100 * rank + 10 * step + i, SMALL_BYTES);
}

static ls_status expect_buffers(const small *b, int rank, int step) {
    for (int i = 0; i < N_BUFFERS; i++) {
        size_t size = (size_t)b->params[i].count * ls_dtype_bytes(b->params[i].dtype);
        for (size_t k = 0; k < size; k++)
            RANK_CHECK(b->data[i][k] == (unsigned char)(100 * rank + 10 * step + i),
                       "step %d: %s, byte %zu: %d", step, b->params[i].name, k, b->data[i][k]);
    }
    return LS_OK;
}

static ls_status buffers_follow(ls_group *group, void *context) {
    (void)context;
    for (int each_step = 0; each_step < 2; each_step++) {
        double grads[] = {1, 2};
        int rank = ls_group_rank(group);
        small s, buffers;
        ls_ddp *ddp = NULL;
        int n = build_model(&s, PLAIN);
        small_init(&buffers, buffer_specs, N_BUFFERS);
        ls_ddp_opts opts = {.struct_size = sizeof opts,
                            .buffers = buffers.params,
                            .n_buffers = N_BUFFERS,
                            .broadcast_buffers = each_step};
        fill_buffers(&buffers, rank, 0);
        LSI_TRY(ls_ddp_create(group, s.params, n, &opts, &ddp));
        LSI_TRY(expect_buffers(&buffers, 0, 0));
        for (int step = 1; step < 4; step++) {
            fill_buffers(&buffers, rank, step);
            LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
            LSI_TRY(expect_buffers(&buffers, each_step ? 0 : rank, step));
            LSI_TRY(small_backward(&s, ddp, grads));
            LSI_TRY(ls_ddp_finish_step(ddp));
            LSI_TRY(expect_buffers(&buffers, each_step ? 0 : rank, step));
        }
        for (int i = 0; i < N_BUFFERS; i++)
            RANK_CHECK(!buffers.params[i].grad, "buffer %d has a gradient", i);
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void buffers_are_those_of_rank_0(void **state) {
    (void)state;
    run_on_all(buffers_follow, NULL);
}

static ls_status buffers_differ(ls_group *group, void *context) {
    small s, buffers;
    ls_ddp *ddp = NULL;
    int n = build_model(&s, PLAIN);
    (void)context;
    small_init(&buffers, buffer_specs, N_BUFFERS);
    if (ls_group_rank(group) == 1) buffers.params[1].dtype = LS_DTYPE_F64;
    ls_ddp_opts opts = {
        .struct_size = sizeof opts, .buffers = buffers.params, .n_buffers = N_BUFFERS};
    RANK_FAILS(ls_ddp_create(group, s.params, n, &opts, &ddp), LS_ERR_MISMATCH,
               "'seen' (1 elements, I64) on rank 0 and 'seen' (1 elements, F64) on rank 1");
    return LS_OK;
}

static void different_buffers_are_named(void **state) {
    (void)state;
    run_in_both(3, buffers_differ, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_models_are_named_with_their_shapes),
        cmocka_unit_test(different_options_are_named),
        cmocka_unit_test(any_number_but_zero_is_yes),
        cmocka_unit_test(impossible_parameters_buffers_and_options_are_refused),
        cmocka_unit_test(buffers_are_those_of_rank_0),
        cmocka_unit_test(different_buffers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
