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

static ls_status fill_zeros(void *context, int param, int64_t begin, int64_t count, float *values) {
    (void)context, (void)param, (void)begin;
    memset(values, 0, (size_t)count * sizeof *values);
    return LS_OK;
}

static uint16_t small_half[8];
static ls_param one_buffer = {.name = "buffer", .count = 1, .dtype = LS_DTYPE_F32};
static uint16_t *const some_halves[] = {small_half, small_half};
static const ls_unit_use apart[] = {{0, 0}, {1, 1}}, crossed[] = {{0, 1}, {1, 0}};

#define OPTS(...)                                                                                  \
    { .struct_size = sizeof(ls_ddp_opts), __VA_ARGS__ }
#define FSDP .strategy = LS_STRATEGY_ZERO3, .replicas = LS_REPLICAS_PRIVATE
#define ZERO1 .strategy = LS_STRATEGY_ZERO1, .replicas = LS_REPLICAS_PRIVATE
#define EARLY .strategy = LS_STRATEGY_ZERO1, .update_in_backward = 1

/* The last rank has `other` options than the rest. What differs, and no more, is named. */
static const struct difference_row {
    ls_ddp_opts base, other;
    const char *base_text, *other_text;
} difference_rows[] = {
    {OPTS(0), OPTS(.reproducible = 1), "reproducible 0", "reproducible 1"},
    {OPTS(0), OPTS(.average = LS_AVERAGE_SUM), "average 0", "average 2"},
    {OPTS(0), OPTS(.find_unused_parameters = 1), "find_unused_parameters 0",
     "find_unused_parameters 1"},
    {OPTS(0), OPTS(.static_graph = 1), "static_graph 0", "static_graph 1"},
    {OPTS(0), OPTS(.keep_buckets = 1), "keep_buckets 0", "keep_buckets 1"},
    {OPTS(0), OPTS(.no_overlap = 1), "no_overlap 0", "no_overlap 1"},
    {OPTS(0), OPTS(.join = LS_JOIN_STOP), "join 0", "join 3"},
    {OPTS(0), OPTS(.nonfinite = LS_NONFINITE_SKIP), "nonfinite 0", "nonfinite 2"},
    {OPTS(0), OPTS(.broadcast_buffers = 1), "broadcast_buffers 0", "broadcast_buffers 1"},
    {OPTS(0), OPTS(.bucket_cap_mb = 2.5), "bucket_cap_mb 0", "bucket_cap_mb 2.5"},
    {OPTS(0), OPTS(.first_bucket_mb = 0.125), "first_bucket_mb 0", "first_bucket_mb 0.125"},
    {OPTS(0), OPTS(.buffers = &one_buffer, .n_buffers = 1), "buffers 0", "buffers 1"},
    {OPTS(0), OPTS(.hook = &other_hook), "hook none", "hook other"},
    {OPTS(0), OPTS(.lower_halves = some_halves), "lower_halves 0", "lower_halves 1"},
    {OPTS(0), OPTS(.strategy = LS_STRATEGY_ZERO1), "strategy 0", "strategy 1"},
    {OPTS(0), OPTS(.replicas = LS_REPLICAS_PRIVATE), "replicas 0", "replicas 1"},
    {OPTS(0), OPTS(.join = LS_JOIN_LIVE, .keep_buckets = 1, .bucket_cap_mb = 8),
     "join 0 bucket_cap_mb 0 keep_buckets 0", "join 1 bucket_cap_mb 8 keep_buckets 1"},
    {OPTS(.strategy = LS_STRATEGY_ZERO2), OPTS(.strategy = LS_STRATEGY_ZERO2, .shard_size = 1),
     "shard_size 0", "shard_size 1"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1),
     OPTS(.strategy = LS_STRATEGY_ZERO1, .offload = LS_OFFLOAD_OPTIMIZER, .offload_dir = "/tmp"),
     "offload 0", "offload 1"},
    {OPTS(.strategy = LS_STRATEGY_ZERO2),
     OPTS(.strategy = LS_STRATEGY_ZERO2, .reduce_dtype = LS_DTYPE_BF16), "reduce_dtype 0",
     "reduce_dtype 3"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1), OPTS(.strategy = LS_STRATEGY_ZERO1, .fill = fill_zeros),
     "fill 0", "fill 1"},
    {OPTS(FSDP), OPTS(FSDP, .uses = apart, .n_uses = 2), "uses 0:", "uses 2:"},
    {OPTS(FSDP, .uses = apart, .n_uses = 2), OPTS(FSDP, .uses = crossed, .n_uses = 2),
     "uses 2:", "uses 2:"},
    {OPTS(ZERO1), OPTS(ZERO1, .uses = apart, .n_uses = 2), "uses 0:", "uses 2:"},
    {OPTS(FSDP), OPTS(FSDP, .prefetch = -1), "prefetch 0", "prefetch -1"},
    {OPTS(FSDP), OPTS(FSDP, .reshard_after_forward = 1), "reshard_after_forward 0",
     "reshard_after_forward 1"},
    {OPTS(FSDP), OPTS(FSDP, .gather_limit_mb = 1.5), "gather_limit_mb 0", "gather_limit_mb 1.5"},
    {OPTS(FSDP), OPTS(FSDP, .persist_below = 7), "persist_below 0", "persist_below 7"},
    {OPTS(FSDP, .offload = LS_OFFLOAD_OPTIMIZER, .offload_dir = "/tmp"),
     OPTS(FSDP, .offload = LS_OFFLOAD_PARAMS, .offload_dir = "/tmp"), "offload 1", "offload 2"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1), OPTS(EARLY), "update_in_backward 0",
     "update_in_backward 1"},
};

static ls_status expect_difference(ls_group *group, const struct difference_row *row) {
    char here[160], there[160];
    int last = ls_group_world_size(group) - 1;
    bool is_last = ls_group_rank(group) == last;
    small s;
    ls_ddp *ddp = NULL;
    float value = 0; /* ranks that are threads have a buffer each */
    ls_param buffer = one_buffer;
    ls_ddp_opts other = row->other;
    buffer.data = &value;
    if (other.buffers) other.buffers = &buffer;
    int n = build_model(&s, PLAIN);
    snprintf(here, sizeof here, "the ranks have different ddp options: rank 0 %s", row->base_text);
    snprintf(there, sizeof there, ", rank %d %s", last, row->other_text);
    RANK_FAILS(ls_ddp_create(group, s.params, n, is_last ? &other : &row->base, &ddp),
               LS_ERR_MISMATCH, here);
    const char *found = ls_last_message() + strlen(here);
    RANK_CHECK(strstr(found, there), "message '%s', expected '%s'", ls_last_message(), there);
    RANK_CHECK(strchr(found, ',') == strstr(found, there), "more is named: '%s'",
               ls_last_message());
    RANK_CHECK(!ddp && s.params[0].data == s.data[0], "%s: something was made", there);
    LSI_TRY(lsi_context(ls_ddp_create(group, s.params, n, &other, &ddp), "%s", there));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static ls_status options_differ(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(difference_rows); i++)
        LSI_TRY(expect_difference(group, &difference_rows[i]));
    return LS_OK;
}

static void different_options_are_named(void **state) {
    (void)state;
    run_in_both(2, options_differ, NULL);
    run_in_both(5, options_differ, NULL);
}

/* Ranks of a group made from others have the names that the world knows them by. */
static ls_status differs_in_a_part(ls_group *group, void *context) {
    (void)context;
    static const ls_ddp_opts rows[] = {OPTS(0), OPTS(.keep_buckets = 1)};
    ls_group *part = NULL;
    small s;
    ls_ddp *ddp = NULL;
    int rank = ls_group_rank(group), n = build_model(&s, PLAIN);
    LSI_TRY(ls_group_split(group, rank % 2, 0, &part));
    RANK_FAILS(ls_ddp_create(part, s.params, n, &rows[rank / 2], &ddp), LS_ERR_MISMATCH,
               rank % 2 ? "rank 1 keep_buckets 0, rank 3 keep_buckets 1"
                        : "rank 0 keep_buckets 0, rank 2 keep_buckets 1");
    s.params[0].count += rank / 2;
    RANK_FAILS(ls_ddp_create(part, s.params, n, &rows[0], &ddp), LS_ERR_MISMATCH,
               rank % 2 ? "on rank 3" : "on rank 2");
    ls_group_destroy(part);
    return LS_OK;
}

static void ranks_have_the_names_of_the_world(void **state) {
    (void)state;
    run_in_both(4, differs_in_a_part, NULL);
}

/* Yes may be said by any number. */
static ls_status yes_is_yes(ls_group *group, void *context) {
    ls_ddp_opts opts = {.struct_size = sizeof opts, .reproducible = 1 + ls_group_rank(group)};
    opts.no_overlap = opts.keep_buckets = opts.reproducible;
    if (*(const bool *)context) {
        opts.strategy = LS_STRATEGY_ZERO1;
        opts.update_in_backward = opts.reproducible;
    } else {
        opts.find_unused_parameters = opts.reproducible;
    }
    small s;
    ls_ddp *ddp = NULL;
    int n = build_model(&s, PLAIN);
    LSI_TRY(ls_ddp_create(group, s.params, n, &opts, &ddp));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void any_number_but_zero_is_yes(void **state) {
    (void)state;
    for (int is_early = 0; is_early < 2; is_early++) run_in_both(3, yes_is_yes, &(bool){is_early});
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

/* Options that mean something for some strategies only, and what cannot go together. */
static const struct refused_row {
    ls_ddp_opts opts;
    ls_status status;
    const char *text;
} refused_rows[] = {
    {OPTS(.strategy = 4), LS_ERR_ARGUMENT, "strategy is 4, expected 0 to 3"},
    {OPTS(.strategy = -1), LS_ERR_ARGUMENT, "strategy is -1"},
    {OPTS(.replicas = 2), LS_ERR_ARGUMENT, "replicas is 2, expected 0 to 1"},
    {OPTS(FSDP, .join = LS_JOIN_LIVE), LS_ERR_UNSUPPORTED, "with join ranks have different num"},
    {OPTS(FSDP, .reduce_dtype = LS_DTYPE_BF16, .hook = &other_hook), LS_ERR_UNSUPPORTED,
     "a hook decides itself in which type"},
    {OPTS(.shard_size = 1), LS_ERR_ARGUMENT, "shard_size is for sharded strategies"},
    {OPTS(FSDP, .shard_size = -1), LS_ERR_ARGUMENT, "shard_size must be at least 0"},
    {OPTS(.fill = fill_zeros), LS_ERR_ARGUMENT, "fill is for sharded strategies"},
    {OPTS(.reduce_dtype = LS_DTYPE_BF16), LS_ERR_ARGUMENT, "reduce_dtype is for sharded strateg"},
    {OPTS(FSDP, .reduce_dtype = LS_DTYPE_F64), LS_ERR_ARGUMENT, "reduce_dtype must be LS_DTYPE_F3"},
    {OPTS(FSDP, .reduce_dtype = -1), LS_ERR_ARGUMENT, "reduce_dtype must be LS_DTYPE_F32"},
    {OPTS(.offload = LS_OFFLOAD_OPTIMIZER, .offload_dir = "/tmp"), LS_ERR_ARGUMENT,
     "offload is for sharded strategies"},
    {OPTS(FSDP, .offload = LS_OFFLOAD_OPTIMIZER), LS_ERR_ARGUMENT, "offload needs offload_dir"},
    {OPTS(FSDP, .offload = LS_OFFLOAD_PARAMS), LS_ERR_ARGUMENT, "offload needs offload_dir"},
    {OPTS(.strategy = LS_STRATEGY_ZERO3, .offload = LS_OFFLOAD_PARAMS, .offload_dir = "/tmp"),
     LS_ERR_ARGUMENT, "LS_OFFLOAD_PARAMS is for LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE"},
    {OPTS(FSDP, .offload = 3, .offload_dir = "/tmp"), LS_ERR_ARGUMENT, "offload is 3, expected"},
    {OPTS(FSDP, .offload = -1, .offload_dir = "/tmp"), LS_ERR_ARGUMENT, "offload is -1, expected"},
    {OPTS(.uses = apart, .n_uses = 2), LS_ERR_ARGUMENT,
     "uses is for sharded strategies with LS_REPLICAS_PRIVATE"},
    {OPTS(.strategy = LS_STRATEGY_ZERO3, .uses = apart, .n_uses = 2), LS_ERR_ARGUMENT,
     "uses is for sharded strategies with LS_REPLICAS_PRIVATE"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1, .replicas = LS_REPLICAS_PRIVATE, .n_uses = 2),
     LS_ERR_ARGUMENT, "n_uses must be the length of uses"},
    {OPTS(.n_uses = 2), LS_ERR_ARGUMENT, "uses is for"},
    {OPTS(FSDP, .n_uses = 2), LS_ERR_ARGUMENT, "n_uses must be the length of uses"},
    {OPTS(FSDP, .uses = apart, .n_uses = -1), LS_ERR_ARGUMENT, "n_uses must be the length of uses"},
    {OPTS(.prefetch = 1), LS_ERR_ARGUMENT, "prefetch is for LS_STRATEGY_ZERO3 with LS_REPLICAS"},
    {OPTS(.strategy = LS_STRATEGY_ZERO3, .prefetch = -1), LS_ERR_ARGUMENT, "prefetch is for"},
    {OPTS(.strategy = LS_STRATEGY_ZERO2, .replicas = LS_REPLICAS_PRIVATE,
          .reshard_after_forward = 1),
     LS_ERR_ARGUMENT, "reshard_after_forward is for LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE"},
    {OPTS(FSDP, .reshard_after_forward = -1), LS_ERR_ARGUMENT, "reshard_after_forward must be at"},
    {OPTS(.gather_limit_mb = 1), LS_ERR_ARGUMENT, "gather_limit_mb is for LS_STRATEGY_ZERO3 with"},
    {OPTS(FSDP, .gather_limit_mb = -1e-9), LS_ERR_ARGUMENT, "gather_limit_mb must be at least 0"},
    {OPTS(FSDP, .gather_limit_mb = NAN), LS_ERR_ARGUMENT, "gather_limit_mb must be at least 0"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1, .persist_below = 9), LS_ERR_ARGUMENT,
     "persist_below is for LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE"},
    {OPTS(FSDP, .persist_below = -1), LS_ERR_ARGUMENT, "persist_below must be at least 0"},
    {OPTS(.update_in_backward = 1), LS_ERR_ARGUMENT, "update_in_backward is for sharded strateg"},
    {OPTS(FSDP, .update_in_backward = 1), LS_ERR_UNSUPPORTED,
     "update_in_backward: private copies are gathered after an update of all"},
    {OPTS(EARLY, .hook = &other_hook), LS_ERR_UNSUPPORTED, "update_in_backward: a hook leaves"},
    {OPTS(EARLY, .reduce_dtype = LS_DTYPE_BF16), LS_ERR_UNSUPPORTED,
     "update_in_backward: buckets are added as they are"},
    {OPTS(EARLY, .offload = LS_OFFLOAD_OPTIMIZER, .offload_dir = "/tmp"), LS_ERR_UNSUPPORTED,
     "update_in_backward: states that are in a file"},
    {OPTS(EARLY, .find_unused_parameters = 1), LS_ERR_UNSUPPORTED,
     "update_in_backward: which parameters no rank used is known at the end of a step"},
    {OPTS(EARLY, .static_graph = 1), LS_ERR_UNSUPPORTED,
     "do without find_unused_parameters and static_graph"},
    {OPTS(EARLY, .join = LS_JOIN_WORLD), LS_ERR_UNSUPPORTED,
     "update_in_backward: who has run out of data"},
    {OPTS(EARLY, .nonfinite = LS_NONFINITE_SKIP), LS_ERR_UNSUPPORTED,
     "update_in_backward: parameters are updated before it is known"},
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
    for (size_t i = 0; i < COUNT_OF(refused_rows); i++) {
        RANK_FAILS(ls_ddp_create(group, s.params, n, &refused_rows[i].opts, &ddp),
                   refused_rows[i].status, refused_rows[i].text);
        RANK_CHECK(!ddp && s.params[0].data == s.data[0], "row %zu: something was made", i);
    }
    return LS_OK;
}

/* A list of lower halves that has none for a BF16 parameter; frozen and empty ones need none. */
static ls_status refuse_halves(ls_group *group) {
    static uint16_t values[3][4];
    ls_param params[] = {{.name = "a",
                          .dtype = LS_DTYPE_BF16,
                          .count = 4,
                          .data = values[0],
                          .flags = LS_PARAM_FROZEN},
                         {.name = "b", .dtype = LS_DTYPE_BF16, .count = 0, .data = values[1]},
                         {.name = "c", .dtype = LS_DTYPE_BF16, .count = 4, .data = values[2]}};
    uint16_t *const none[3] = {NULL};
    ls_ddp *ddp = NULL;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.lower_halves = none;
    for (int strategy = 0; strategy <= LS_STRATEGY_ZERO3; strategy++) {
        opts.strategy = strategy;
        RANK_FAILS(ls_ddp_create(group, params, 3, &opts, &ddp), LS_ERR_ARGUMENT,
                   "lower_halves has none for parameter c");
    }
    return LS_OK;
}

static ls_status refuse_all(ls_group *group, void *context) {
    int64_t before = n_calls(group);
    (void)context;
    LSI_TRY(refuse_options(group));
    LSI_TRY(refuse_halves(group));
    RANK_CHECK(n_calls(group) == before, "something was sent");
    LSI_TRY(refuse_params(group, false));
    return refuse_params(group, true);
}

static void impossible_parameters_buffers_and_options_are_refused(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, n_ranks, refuse_all, NULL));
}

/* ---- refused by all ranks, once they know that they have been asked the same ---- */

static const ls_unit_use wrong_uses[][2] = {{{0, 0}, {1, -1}}, {{0, 2}, {0, 0}},
                                            {{-1, 0}, {0, 1}}, {{0, 0}, {1 << 20, 1}},
                                            {{0, 0}, {1, 0}},  {{0, 1}, {0, 1}}};
#define WRONG(k) FSDP, .uses = wrong_uses[k], .n_uses = 2

static const struct late_row {
    ls_ddp_opts opts;
    ls_dtype dtype; /* of parameter 0; 0: F32 */
    ls_status status;
    const char *text;
} late_rows[] = {
    {OPTS(.strategy = LS_STRATEGY_ZERO1, .shard_size = 3), 0, LS_ERR_ARGUMENT,
     "shard_size 3 does not divide 4 ranks"},
    {OPTS(FSDP, .shard_size = 8), 0, LS_ERR_ARGUMENT, "shard_size 8 does not divide 4 ranks"},
    {OPTS(EARLY, .shard_size = 2), 0, LS_ERR_UNSUPPORTED,
     "shard_size is 2, expected 0 or all 4 ranks"},
    {OPTS(FSDP, .reshard_after_forward = 3), 0, LS_ERR_ARGUMENT,
     "reshard_after_forward 3 does not divide the 4 ranks of a shard group"},
    {OPTS(FSDP, .reshard_after_forward = 8), 0, LS_ERR_ARGUMENT,
     "reshard_after_forward 8 does not"},
    {OPTS(FSDP, .shard_size = 2, .reshard_after_forward = 4), 0, LS_ERR_ARGUMENT,
     "reshard_after_forward 4 does not divide the 2 ranks of a shard group"},
    {OPTS(WRONG(0)), 0, LS_ERR_ARGUMENT, "use 1: parameter -1, expected 0 to 1"},
    {OPTS(WRONG(1)), 0, LS_ERR_ARGUMENT, "use 0: parameter 2, expected 0 to 1"},
    {OPTS(WRONG(2)), 0, LS_ERR_ARGUMENT, "use 0: unit -1, expected 0 to"},
    {OPTS(WRONG(3)), 0, LS_ERR_ARGUMENT, "use 1: unit 1048576, expected 0 to 1048575"},
    {OPTS(WRONG(4)), 0, LS_ERR_ARGUMENT, "parameter w is used by no unit"},
    {OPTS(WRONG(5)), 0, LS_ERR_ARGUMENT, "parameter b is used by no unit"},
    {OPTS(ZERO1, .uses = wrong_uses[1], .n_uses = 2), 0, LS_ERR_ARGUMENT,
     "use 0: parameter 2, expected 0 to 1"},
    {OPTS(FSDP, .uses = apart, .n_uses = 0), 0, LS_ERR_ARGUMENT, "parameter b is used by no unit"},
    {OPTS(FSDP), LS_DTYPE_F64, LS_ERR_UNSUPPORTED, "parameter b has dtype F64, expected F32 or B"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1), LS_DTYPE_F16, LS_ERR_UNSUPPORTED, "has dtype F16"},
    {OPTS(.strategy = LS_STRATEGY_ZERO1, .offload = LS_OFFLOAD_OPTIMIZER,
          .offload_dir = "/nowhere/at/all"),
     0, LS_ERR_NOT_FOUND, "/nowhere/at/all"},
    {OPTS(FSDP, .offload = LS_OFFLOAD_PARAMS, .offload_dir = "/nowhere/at/all"), 0,
     LS_ERR_NOT_FOUND, "/nowhere/at/all"},
};

static ls_status refuse_late(ls_group *group, void *context) {
    const ls_ddp_opts plain = OPTS(FSDP);
    (void)context;
    for (size_t i = 0; i < COUNT_OF(late_rows); i++) {
        const struct late_row *row = &late_rows[i];
        small s;
        ls_ddp *ddp = NULL;
        int n = build_model(&s, PLAIN);
        if (row->dtype) s.params[0].dtype = row->dtype;
        RANK_FAILS(ls_ddp_create(group, s.params, n, &row->opts, &ddp), row->status, row->text);
        for (int p = 0; p < n; p++)
            RANK_CHECK(!ddp && s.params[p].data == s.data[p] && !s.params[p].grad,
                       "row %zu: parameter %d was moved", i, p);
        s.params[0].dtype = LS_DTYPE_F32;
        LSI_TRY(lsi_context(ls_ddp_create(group, s.params, n, &plain, &ddp), "after row %zu", i));
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void refusals_of_all_ranks_leave_the_group_usable(void **state) {
    (void)state;
    run_in_both(4, refuse_late, NULL);
}

/* ---- values from a function ---- */

static ls_status fail_to_fill(void *context, int param, int64_t begin, int64_t count,
                              float *values) {
    (void)context, (void)begin, (void)count, (void)values;
    return lsi_fail(LS_ERR_IO, "no values for parameter %d", param);
}

static ls_status fill_or_not(ls_group *group, void *context) {
    const ls_ddp_opts given = OPTS(FSDP), filled = OPTS(FSDP, .fill = fill_zeros),
                      failing = OPTS(FSDP, .fill = fail_to_fill);
    small s, buffers;
    ls_ddp *ddp = NULL;
    int n = build_model(&s, PLAIN);
    (void)context;
    s.params[1].data = NULL;
    RANK_FAILS(ls_ddp_create(group, s.params, n, &given, &ddp), LS_ERR_ARGUMENT,
               "parameter 1 needs a name, a count >= 0 and data");
    LSI_TRY(ls_ddp_create(group, s.params, n, &filled, &ddp));
    ls_ddp_destroy(ddp);
    RANK_CHECK(!s.params[1].data, "data of nobody");
    s.params[1].flags = LS_PARAM_FROZEN;
    ddp = NULL;
    RANK_FAILS(ls_ddp_create(group, s.params, n, &filled, &ddp), LS_ERR_ARGUMENT,
               "parameter w needs data: it is frozen, and stays where it is");
    build_model(&s, PLAIN);
    build_model(&buffers, PLAIN);
    buffers.params[0].data = NULL;
    ls_ddp_opts opts = OPTS(FSDP, .fill = fill_zeros, .buffers = buffers.params, .n_buffers = 2);
    RANK_FAILS(ls_ddp_create(group, s.params, n, &opts, &ddp), LS_ERR_ARGUMENT,
               "buffer 0 needs a name, a count >= 0 and data");
    s.params[0].data = NULL;
    RANK_FAILS(ls_ddp_create(group, s.params, n, &failing, &ddp), LS_ERR_IO, "no values for param");
    RANK_CHECK(!ddp && !s.params[0].data && s.params[1].data == s.data[1], "something was moved");
    return LS_OK;
}

static void what_is_filled_needs_no_data(void **state) {
    (void)state;
    run_in_both(1, fill_or_not, NULL);
    run_in_both(3, fill_or_not, NULL);
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
        cmocka_unit_test(ranks_have_the_names_of_the_world),
        cmocka_unit_test(any_number_but_zero_is_yes),
        cmocka_unit_test(impossible_parameters_buffers_and_options_are_refused),
        cmocka_unit_test(refusals_of_all_ranks_leave_the_group_usable),
        cmocka_unit_test(what_is_filled_needs_no_data),
        cmocka_unit_test(buffers_are_those_of_rank_0),
        cmocka_unit_test(different_buffers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
