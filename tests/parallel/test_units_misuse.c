/* The calls around units made wrongly, left out or made by some ranks only; a ddp that gathers
 * destroyed in the middle of a step; memory that is not there. Refused calls change nothing: the
 * step goes on, and ends with the same bits, as if they had not been.
 *
 * A pass is written as words: s and S begin a step of one and two micro-batches, B and E a
 * backward pass, X finishes the step, U updates, V asks for values, N for the norm, C compares
 * weights. With a number behind it: f and F are before and after the forward pass of a unit, b and
 * A of its backward pass, n and r say that a gradient is needed and ready, g is both and writes it.
 */
#include "small.h"

#include <stdlib.h>

#include "lone.h"

/* Three units; parameter 1 is frozen, parameter 0 is used by the first unit and the last. */
static const int64_t counts[] = {3, -5, 200, 7, 64};
static const ls_unit_use uses[] = {{0, 0}, {0, 1}, {1, 2}, {1, 3}, {2, 4}, {2, 0}};
enum { N_PARAMS = COUNT_OF(counts), N_UNITS = 3, MAX_ELEMS = 300 };

#define FORWARD "f0 F0 f1 F1 f2 F2 "
#define BACKWARD "B b2 g4 A2 b1 g3 g2 A1 b0 g0 A0 E "
#define STEP "s " FORWARD BACKWARD "X U "

/* The same, but that backward does not look at all that the first unit uses, and at p4. */
static const ls_unit_use lookups[] = {
    {0, 0, LS_USE_FORWARD_ONLY},
    {0, 1, LS_USE_FORWARD_ONLY},
    {1, 2},
    {1, 3},
    {2, 4, LS_USE_FORWARD_ONLY},
    {2, 0},
};

#define FSDP_OF(table, ...)                                                                        \
    {                                                                                              \
        .struct_size = sizeof(ls_ddp_opts), .strategy = LS_STRATEGY_ZERO3,                         \
        .replicas = LS_REPLICAS_PRIVATE, .uses = table, .n_uses = COUNT_OF(table), __VA_ARGS__     \
    }
#define FSDP(...) FSDP_OF(uses, __VA_ARGS__)

static const ls_adamw_opts adamw = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .grad_scale = 1};

static ls_status write_gradient(const toy *model, ls_ddp *ddp, int param) {
    LSI_TRY(ls_ddp_grad_needed(ddp, param));
    toy_write_gradient(model, param, 0, 0, ls_ddp_accumulates(ddp));
    return ls_ddp_grad_ready(ddp, param);
}

static ls_status make_call(const toy *model, ls_ddp *ddp, const char *word) {
    float values[MAX_ELEMS];
    double norm;
    int number = atoi(word + 1);
    switch (word[0]) {
    case 's': return ls_ddp_begin_step(ddp, 1, 1);
    case 'S': return ls_ddp_begin_step(ddp, 2, 1);
    case 'B': return ls_ddp_begin_backward(ddp);
    case 'E': return ls_ddp_end_backward(ddp);
    case 'X': return ls_ddp_finish_step(ddp);
    case 'U': return ls_ddp_update(ddp, &adamw);
    case 'V': return ls_ddp_get_values(ddp, 0, values);
    case 'N': return ls_ddp_grad_norm(ddp, &norm);
    case 'C': return ls_ddp_check_weights(ddp);
    case 'f': return ls_ddp_before_forward(ddp, number);
    case 'F': return ls_ddp_after_forward(ddp, number);
    case 'b': return ls_ddp_before_backward(ddp, number);
    case 'A': return ls_ddp_after_backward(ddp, number);
    case 'n': return ls_ddp_grad_needed(ddp, number);
    case 'r': return ls_ddp_grad_ready(ddp, number);
    default: return write_gradient(model, ddp, number);
    }
}

/* Up to the first call that fails. */
static ls_status make_calls(const toy *model, ls_ddp *ddp, const char *words) {
    for (const char *at = words; *at; at += strcspn(at, " "), at += strspn(at, " "))
        LSI_TRY(lsi_context(make_call(model, ddp, at), "'%.3s' of '%s'", at, words));
    return LS_OK;
}

/* All values, one parameter behind the other. */
static ls_status collect(const toy *model, ls_ddp *ddp, float values[MAX_ELEMS]) {
    memset(values, 0, MAX_ELEMS * sizeof *values);
    for (int i = 0; i < model->n_params; values += model->params[i++].count)
        LSI_TRY(ls_ddp_get_values(ddp, i, values));
    return LS_OK;
}

static bool uses_param(int unit, int param) {
    for (size_t k = 0; k < COUNT_OF(uses); k++)
        if (uses[k].unit == unit && uses[k].param == param) return true;
    return false;
}

/* A forward pass between steps sees these values. */
static ls_status expect_to_compute_with(const toy *model, ls_ddp *ddp, const float *values) {
    for (int unit = 0; unit < N_UNITS; unit++) {
        const float *at = values;
        LSI_TRY(ls_ddp_before_forward(ddp, unit));
        for (int i = 0; i < model->n_params; at += model->params[i++].count) {
            const ls_param *param = &model->params[i];
            if (uses_param(unit, i))
                RANK_CHECK(memcmp(param->data, at, (size_t)param->count * sizeof *at) == 0,
                           "unit %d computes with other values of %s", unit, param->name);
        }
        LSI_TRY(ls_ddp_after_forward(ddp, unit));
    }
    return LS_OK;
}

/* ---- in a group of one ---- */

static void open_with(lone *f, const ls_ddp_opts *opts) {
    lone_open(f, counts, N_PARAMS);
    assert_ok(ls_ddp_create(f->group, f->model.params, N_PARAMS, opts, &f->ddp));
}

static void expect_values(lone *f, const float *expected) {
    float found[MAX_ELEMS];
    assert_ok(collect(&f->model, f->ddp, found));
    assert_memory_equal(found, expected, sizeof found);
    assert_ok(expect_to_compute_with(&f->model, f->ddp, expected));
}

/* What one step makes of the model. */
static void make_step(float values[MAX_ELEMS]) {
    const ls_ddp_opts opts = FSDP(.prefetch = -1);
    lone f;
    open_with(&f, &opts);
    assert_ok(make_calls(&f.model, f.ddp, STEP));
    assert_ok(collect(&f.model, f.ddp, values));
    lone_close(&f);
}

static const int prefetches[] = {-1, 0, 2, INT32_MAX};

typedef struct call_row {
    const char *before, *refused;
    ls_status status;
    const char *text, *after;
} call_row;

#define PAIRS " was not gathered; call it in pairs"
#define NO_BACKWARD ": no backward pass is open"

static const call_row call_rows[] = {
    {"", "b2", LS_ERR_STATE, "ls_ddp_before_backward: unit 2" NO_BACKWARD, STEP},
    {"", "A0", LS_ERR_STATE, "ls_ddp_after_backward: unit 0" NO_BACKWARD, STEP},
    {"", "F0", LS_ERR_STATE, "ls_ddp_after_forward: unit 0" PAIRS, STEP},
    {"", "f3", LS_ERR_ARGUMENT, "ls_ddp_before_forward: unit 3, expected 0 to 2", STEP},
    {"", "U", LS_ERR_STATE, "ls_ddp_update: expected after ls_ddp_finish_step", STEP},
    {"f0 F0", "F0", LS_ERR_STATE, "unit 0" PAIRS, FORWARD STEP},
    {"f0 F0 f1 F1 f2 F2", "F2", LS_ERR_STATE, "unit 2" PAIRS, STEP},
    {"f0 F0 f1", "F2", LS_ERR_STATE, "unit 2" PAIRS, "F1 " STEP},
    {"s", "F0", LS_ERR_STATE, "ls_ddp_after_forward: unit 0" PAIRS, FORWARD BACKWARD "X U"},
    {"s", "f-1", LS_ERR_ARGUMENT, "unit -1, expected 0 to 2", FORWARD BACKWARD "X U"},
    {"s", "F3", LS_ERR_ARGUMENT, "ls_ddp_after_forward: unit 3", FORWARD BACKWARD "X U"},
    {"s", "U", LS_ERR_STATE, "ls_ddp_update: expected after ls_ddp_finish_step",
     FORWARD BACKWARD "X U"},
    {"s f0", "F1", LS_ERR_STATE, "unit 1" PAIRS, "F0 f1 F1 f2 F2 " BACKWARD "X U"},
    {"s f0", "F2", LS_ERR_STATE, "unit 2" PAIRS, "F0 f1 F1 f2 F2 " BACKWARD "X U"},
    {"s f0 F0", "F0", LS_ERR_STATE, "unit 0" PAIRS, "f1 F1 f2 F2 " BACKWARD "X U"},
    {"s f0 F0 f1", "b1", LS_ERR_STATE, "unit 1" NO_BACKWARD, "F1 f2 F2 " BACKWARD "X U"},
    {"s f0 F0 f1", "V", LS_ERR_STATE, "ls_ddp_get_values: a step is open",
     "F1 f2 F2 " BACKWARD "X U"},
    {"s f0 F0 f1", "N", LS_ERR_STATE, "ls_ddp_grad_norm: a step is open",
     "F1 f2 F2 " BACKWARD "X U"},
    {"s f0 F0 f1", "C", LS_ERR_STATE, "ls_ddp_check_weights: a step is open",
     "F1 f2 F2 " BACKWARD "X U"},
    {"s " FORWARD "B", "A1", LS_ERR_STATE, "ls_ddp_after_backward: unit 1" PAIRS,
     "b2 g4 A2 b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B", "b3", LS_ERR_ARGUMENT, "ls_ddp_before_backward: unit 3, expected 0 to 2",
     "b2 g4 A2 b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B b2", "A-1", LS_ERR_ARGUMENT, "ls_ddp_after_backward: unit -1",
     "g4 A2 b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B b2", "r4", LS_ERR_STATE,
     "parameter p4 has no memory yet; call ls_ddp_grad_needed", "g4 A2 b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B b2 g4", "n4", LS_ERR_STATE, "the gradient of parameter p4 was ready already",
     "A2 b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B b2 g4", "A1", LS_ERR_STATE, "unit 1" PAIRS, "A2 b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B b2 g4 A2", "A1", LS_ERR_STATE, "unit 1" PAIRS, "b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD "B b2 g4 A2", "U", LS_ERR_STATE, "expected after ls_ddp_finish_step",
     "b1 g3 g2 A1 b0 g0 A0 E X U"},
    {"s " FORWARD BACKWARD, "b0", LS_ERR_STATE, "unit 0" NO_BACKWARD, "X U"},
    {"s " FORWARD BACKWARD, "U", LS_ERR_STATE, "expected after ls_ddp_finish_step", "X U"},
};

static void wrong_calls_are_refused_and_change_nothing(void **state) {
    float expected[MAX_ELEMS];
    (void)state;
    make_step(expected);
    for (size_t i = 0; i < COUNT_OF(call_rows); i++)
        for (size_t p = 0; p < COUNT_OF(prefetches); p++) {
            const call_row *row = &call_rows[i];
            const ls_ddp_opts opts = FSDP(.prefetch = prefetches[p]);
            lone f;
            open_with(&f, &opts);
            assert_ok(make_calls(&f.model, f.ddp, row->before));
            assert_fails(make_call(&f.model, f.ddp, row->refused), row->status, row->text);
            assert_ok(make_calls(&f.model, f.ddp, row->after));
            expect_values(&f, expected);
            lone_close(&f);
        }
}

/* Passes that are unusual, but right, end with the same values as any other step. */
static const char *const good_rows[] = {
    "f0 F0 f1 " STEP,                            /* an evaluation that was given up */
    "f0 " STEP,                                  /* with a unit asked for ahead */
    FORWARD "f0 F0 " STEP,                       /* or begun anew */
    "s f0 F0 f0 F0 f1 F1 f2 F2 " BACKWARD "X U", /* a unit computed twice */
    "s " FORWARD FORWARD BACKWARD "X U",
    "s B " FORWARD "b2 g4 A2 b1 g3 g2 A1 b0 g0 A0 E X U",
    "s " FORWARD BACKWARD "X f0 U", /* on its way while shards are updated */
    "s " FORWARD BACKWARD "X f0 F0 f1 F1 U",
    "s " FORWARD BACKWARD "X f2 U",
    "s " FORWARD BACKWARD "X N C V U V C",
    "s f2 F2 f1 F1 f0 F0 " BACKWARD "X U", /* nothing asked for ahead is of use */
    "s f1 F1 " BACKWARD "X U",             /* units without a forward pass */
    "s " BACKWARD "X U",
};

static void unusual_passes_end_with_the_same_values(void **state) {
    float expected[MAX_ELEMS];
    (void)state;
    make_step(expected);
    for (size_t i = 0; i < COUNT_OF(good_rows); i++)
        for (size_t p = 0; p < COUNT_OF(prefetches); p++)
            for (int way = 0; way < 4; way++) {
                ls_ddp_opts opts =
                    FSDP(.prefetch = prefetches[p], .reshard_after_forward = way % 2);
                lone f;
                if (way / 2) opts.uses = lookups;
                open_with(&f, &opts);
                assert_ok(make_calls(&f.model, f.ddp, good_rows[i]));
                expect_values(&f, expected);
                lone_close(&f);
            }
}

static void flags_that_are_none_are_refused(void **state) {
    static const int flags[] = {2, 3, -1, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        for (int strategy = LS_STRATEGY_ZERO1; strategy <= LS_STRATEGY_ZERO3; strategy++) {
            ls_unit_use wrong[COUNT_OF(uses)];
            char text[64];
            ls_ddp_opts opts = FSDP_OF(wrong, .prefetch = 0);
            lone f;
            opts.strategy = strategy;
            memcpy(wrong, uses, sizeof wrong);
            wrong[3].flags = flags[i];
            snprintf(text, sizeof text, "use 3: flags %d, expected 0 or LS_USE_FORWARD_ONLY (1)",
                     flags[i]);
            lone_open(&f, counts, N_PARAMS);
            assert_fails(ls_ddp_create(f.group, f.model.params, N_PARAMS, &opts, &f.ddp),
                         LS_ERR_ARGUMENT, text);
            lone_close(&f);
        }
}

/* Neither at the turn nor where units are kept. */
static void what_backward_does_not_read_has_no_data(void **state) {
    (void)state;
    for (size_t p = 0; p < COUNT_OF(prefetches); p++)
        for (int keeps = 0; keeps < 2; keeps++) {
            const ls_ddp_opts opts =
                FSDP_OF(lookups, .prefetch = prefetches[p], .reshard_after_forward = keeps);
            lone f;
            open_with(&f, &opts);
            const ls_param *params = f.model.params;
            assert_ok(make_calls(&f.model, f.ddp, "s f0 F0 f1 F1 f2"));
            assert_non_null(params[0].data);
            assert_non_null(params[4].data);
            assert_ok(make_calls(&f.model, f.ddp, "F2 B b2"));
            assert_non_null(params[0].data);
            assert_null(params[4].data);
            assert_ok(make_calls(&f.model, f.ddp, "g4 A2 b1 g3 g2 A1 b0"));
            assert_null(params[0].data);
            assert_ok(make_calls(&f.model, f.ddp, "g0 A0 E X U"));
            lone_close(&f);
        }
}

static void pairs_said_twice_are_read_in_both_passes(void **state) {
    static const ls_unit_use twice[] = {
        {0, 0, LS_USE_FORWARD_ONLY}, {0, 1}, {0, 2}, {0, 3}, {0, 0}, {0, 4},
        {0, 2, LS_USE_FORWARD_ONLY}};
    const ls_ddp_opts opts = FSDP_OF(twice, .prefetch = -1);
    lone f;
    (void)state;
    open_with(&f, &opts);
    assert_int_equal(ls_ddp_n_buckets(f.ddp), 2); /* the frozen one has its own */
    assert_ok(make_calls(&f.model, f.ddp, "s f0 F0 B b0"));
    for (int i = 0; i < N_PARAMS; i++) assert_non_null(f.model.params[i].data);
    assert_ok(make_calls(&f.model, f.ddp, "g4 g3 g2 g0 A0 E X U"));
    lone_close(&f);
}

/* A gradient that comes when its unit is done, or never, is missing: the step says so at its end.
 */
static const struct late_row {
    const char *before, *refused, *text, *after, *missing;
} late_rows[] = {
    {"s " FORWARD "B b2 A2", "n4", "parameter p4", "b1 g3 g2 A1 b0 g0 A0",
     "1 parameters got no gradient: p4"},
    {"s " FORWARD "B b2 n4 A2", "r4", "parameter p4", "b1 g3 g2 A1 b0 g0 A0",
     "1 parameters got no gradient: p4"},
    {"s " FORWARD "B b2 g4 A2 b0 g0 A0", "n2", "parameter p2", "",
     "2 parameters got no gradient: p2 (all ranks), p3"},
};

static void gradients_behind_their_unit_are_missing(void **state) {
    static const char *const calls[] = {"s", "f0", "F0", "b0", "A0", "X", "U"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(late_rows); i++) {
        const struct late_row *row = &late_rows[i];
        const ls_ddp_opts opts = FSDP(.prefetch = 0);
        lone f;
        open_with(&f, &opts);
        assert_ok(make_calls(&f.model, f.ddp, row->before));
        assert_fails(make_call(&f.model, f.ddp, row->refused), LS_ERR_STATE, row->text);
        assert_fails(make_call(&f.model, f.ddp, row->refused), LS_ERR_STATE, "after its unit");
        assert_ok(make_calls(&f.model, f.ddp, row->after));
        assert_fails(ls_ddp_end_backward(f.ddp), LS_ERR_STATE, row->missing);
        for (size_t k = 0; k < COUNT_OF(calls); k++)
            assert_fails(make_call(&f.model, f.ddp, calls[k]), LS_ERR_STATE,
                         calls[k][0] == 'U' ? "expected after" : "an earlier call failed");
        lone_close(&f);
    }
}

/* Where nothing is gathered the calls do nothing, whatever is said in them. */
static ls_status say_anything(ls_group *group, void *context) {
    static const char calls[] = "A7 b-1 F0 s f9 F8 f-1 b0 B A0 g0 g4 b3 g3 g2 E A1 X U f99 f-2 F5 ";
    static const ls_ddp_opts rows[] = {
        {.struct_size = sizeof(ls_ddp_opts)},
        {.struct_size = sizeof(ls_ddp_opts), .strategy = LS_STRATEGY_ZERO1},
        {.struct_size = sizeof(ls_ddp_opts), .strategy = LS_STRATEGY_ZERO2},
        {.struct_size = sizeof(ls_ddp_opts), .strategy = LS_STRATEGY_ZERO3},
        {.struct_size = sizeof(ls_ddp_opts),
         .strategy = LS_STRATEGY_ZERO1,
         .replicas = LS_REPLICAS_PRIVATE},
        {.struct_size = sizeof(ls_ddp_opts),
         .strategy = LS_STRATEGY_ZERO1,
         .replicas = LS_REPLICAS_PRIVATE,
         .uses = uses,
         .n_uses = COUNT_OF(uses)},
        {.struct_size = sizeof(ls_ddp_opts),
         .strategy = LS_STRATEGY_ZERO2,
         .replicas = LS_REPLICAS_PRIVATE,
         .uses = uses,
         .n_uses = COUNT_OF(uses)},
    };
    float first[MAX_ELEMS] = {0}, found[MAX_ELEMS];
    (void)context;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        toy model;
        ls_ddp *ddp = NULL;
        toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
        LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &rows[i], &ddp));
        for (int round = 0; round < 3; round++) LSI_TRY(make_calls(&model, ddp, calls));
        LSI_TRY(collect(&model, ddp, i == 0 ? first : found));
        ls_ddp_destroy(ddp);
        toy_fini(&model);
        RANK_CHECK(i == 0 || memcmp(first, found, sizeof found) == 0, "row %zu: other bits", i);
    }
    return LS_OK;
}

static void other_strategies_take_any_units(void **state) {
    (void)state;
    run_in_both(1, say_anything, NULL);
    run_in_both(3, say_anything, NULL);
}

/* ---- ranks that make other calls ---- */

/* The last rank makes `other` calls than the rest. */
static const struct other_row {
    int n_ranks, shard_size, prefetch;
    const char *calls, *other;
    bool is_even; /* units are of one size */
} other_rows[] = {
    {2, 0, -1, "s f0 F0 f1", "s f0 F0 f2"},
    {3, 0, -1, "s f0 F0 f1 F1 f2", "s f0 F0 f2 F2 f1"},
    {2, 0, -1, "s f0", "s f1"},
    {2, 0, 2, "s f0", "s f1"},
    {2, 0, -1, "f0 F0 f1", "f0 F0 f2"},
    {2, 0, -1, "s " FORWARD BACKWARD, "s f0 F0 f2 F2 " BACKWARD},
    {4, 0, -1, "s " FORWARD BACKWARD, "s " FORWARD "B b2 g4 b1 g3 g2 A2 A1 b0 g0 A0 E"},
    {4, 2, -1, "s f0 F0 f1", "s f0 F0 f2"},
    {2, 0, -1, "s f0", "s f1", true},
    {3, 0, 2, "s f0 F0 f1", "s f1 F1 f0", true},
    {2, 0, -1, "s " FORWARD "B b2 g2 A2 b1", "s " FORWARD "B b2 g2 A2 b0", true},
};

static ls_status call_otherwise(ls_group *group, void *context) {
    const struct other_row *row = context;
    static const int64_t even_counts[] = {64, 64, 64};
    static const ls_unit_use even_uses[] = {{0, 0}, {1, 1}, {2, 2}};
    ls_ddp_opts opts = FSDP(.prefetch = row->prefetch, .shard_size = row->shard_size);
    int rank = ls_group_rank(group), last = row->n_ranks - 1;
    toy model;
    ls_ddp *ddp = NULL;
    if (row->is_even) opts.uses = even_uses, opts.n_uses = 3;
    toy_init(&model, row->is_even ? even_counts : counts, row->is_even ? 3 : N_PARAMS, rank);
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, &opts, &ddp));
    ls_status status = make_calls(&model, ddp, rank == last ? row->other : row->calls);
    /* Another shard group has nothing to object to. */
    bool is_concerned = row->shard_size == 0 || rank / row->shard_size == last / row->shard_size;
    if (is_concerned) RANK_FAILS(status, LS_ERR_MISMATCH, "differs between ranks: rank ");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void ranks_with_other_units_are_told(void **state) {
    (void)state;
    RUN_ROWS(other_rows, n_ranks, call_otherwise);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- the end in the middle ---- */

static const ls_ddp_opts end_opts[] = {
    FSDP(.prefetch = -1),
    FSDP(.prefetch = 2),
    FSDP(.prefetch = 2, .reshard_after_forward = 1),
    FSDP(.prefetch = 2, .reshard_after_forward = 2),
    FSDP_OF(lookups, .prefetch = 2, .reshard_after_forward = 2),
    FSDP(.reshard_after_forward = 2, .persist_below = 1000), /* nothing is left in parts */
    FSDP(.prefetch = 2, .shard_size = 2),
    FSDP(.prefetch = 2, .shard_size = 1),
    FSDP(.prefetch = 2, .persist_below = 10, .find_unused_parameters = 1),
    {.struct_size = sizeof(ls_ddp_opts),
     .strategy = LS_STRATEGY_ZERO1,
     .replicas = LS_REPLICAS_PRIVATE,
     .uses = uses,
     .n_uses = COUNT_OF(uses)},
};

static const char *const ends[] = {
    "",
    "f0",
    "f0 F0 f1",
    "s",
    "s f0",
    "s f0 F0 f1",
    "s " FORWARD,
    "s " FORWARD "B b2",
    "s " FORWARD "B b2 g4 A2",
    "s " FORWARD "B b2 g4 A2 b1 g3 g2 A1",
    "s " FORWARD BACKWARD,
    "s " FORWARD BACKWARD "X f0",
    STEP,
};

typedef struct end_row {
    ls_ddp_opts opts;
    const char *calls;
} end_row;

/* All ranks give up at the same place; what comes next is a step like any other. */
static ls_status end_and_begin_again(ls_group *group, void *context) {
    const end_row *row = context;
    float expected[MAX_ELEMS], found[MAX_ELEMS];
    for (int round = 0; round < 2; round++) {
        toy model;
        ls_ddp *ddp = NULL;
        toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
        LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &row->opts, &ddp));
        LSI_TRY(make_calls(&model, ddp, round == 0 ? STEP : row->calls));
        if (round == 0) LSI_TRY(collect(&model, ddp, expected));
        ls_ddp_destroy(ddp);
        for (int i = 0; i < N_PARAMS; i++)
            RANK_CHECK(!model.params[i].grad, "parameter %d has a gradient", i);
        toy_fini(&model);
    }
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &row->opts, &ddp));
    LSI_TRY(make_calls(&model, ddp, STEP));
    LSI_TRY(collect(&model, ddp, found));
    RANK_CHECK(memcmp(expected, found, sizeof found) == 0, "another step than the first time");
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void destroying_in_the_middle_leaves_nothing(void **state) {
    (void)state;
    for (size_t o = 0; o < COUNT_OF(end_opts); o++)
        for (size_t e = 0; e < COUNT_OF(ends); e++) {
            end_row row = {end_opts[o], ends[e]};
            assert_ok(lsi_context(run_ranks(RANKS_AS_THREADS, 4, end_and_begin_again, &row),
                                  "options %zu, '%s'", o, ends[e]));
            assert_int_equal(lsi_mem_n_blocks(), 0);
        }
}

/* A ddp after another leaves no more blocks than one does: groups that were made keep theirs, for
 * the next ones. */
static ls_status count_blocks(ls_group *group, void *context) {
    const ls_ddp_opts *opts = context;
    int n_blocks[2];
    for (int round = 0; round < 2; round++) {
        toy model;
        ls_ddp *ddp = NULL;
        toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
        LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, opts, &ddp));
        LSI_TRY(make_calls(&model, ddp, STEP));
        ls_ddp_destroy(ddp);
        toy_fini(&model);
        LSI_TRY(ls_barrier(group, NULL));
        n_blocks[round] = n_heap_blocks(group);
        LSI_TRY(ls_barrier(group, NULL));
    }
    RANK_CHECK(n_blocks[1] == n_blocks[0], "%d blocks, before %d", n_blocks[1], n_blocks[0]);
    return LS_OK;
}

static void the_groups_memory_comes_back(void **state) {
    (void)state;
    for (size_t o = 0; o < COUNT_OF(end_opts); o++)
        assert_ok(lsi_context(run_ranks(RANKS_AS_THREADS, 4, count_blocks, (void *)&end_opts[o]),
                              "options %zu", o));
}

/* The last rank leaves; the others go on, and are not left waiting. */
static ls_status leave_the_others(ls_group *group, void *context) {
    const end_row *row = context;
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, rank);
    ls_status status = ls_ddp_create(group, model.params, N_PARAMS, &row->opts, &ddp);
    const char *calls = rank == n_ranks - 1 ? row->calls : STEP STEP;
    if (status == LS_OK) status = ls_barrier(group, NULL);
    if (status == LS_OK) status = make_calls(&model, ddp, calls);
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    if (rank == n_ranks - 1) return status;
    bool is_told = status == LS_ERR_PEER || status == LS_ERR_MISMATCH;
    RANK_CHECK(is_told, "%s: %s", ls_status_name(status), ls_last_message());
    return LS_OK;
}

static void ranks_that_are_left_are_told(void **state) {
    (void)state;
    for (size_t o = 0; o < COUNT_OF(end_opts); o++)
        for (size_t e = 0; e < COUNT_OF(ends); e++) {
            end_row row = {end_opts[o], ends[e]};
            assert_ok(lsi_context(run_ranks(RANKS_AS_THREADS, 4, leave_the_others, &row),
                                  "options %zu, '%s'", o, ends[e]));
            assert_int_equal(lsi_mem_n_blocks(), 0);
        }
}

/* ---- steps that leave something behind ---- */

/* What was gathered, asked for or kept in parts before an update is old after it. */
static const char *const leaving_rows[] = {
    STEP,
    "s " FORWARD "B b2 g4 A2 b0 g0 A0 E X U", /* unit 1 is not part of the loss */
    "S " FORWARD BACKWARD FORWARD "B b2 g4 A2 b0 g0 A0 E X U",
    "s " FORWARD BACKWARD FORWARD "X U", /* an evaluation within the step */
    "s " FORWARD BACKWARD "f0 F0 f1 X U",
    "s " FORWARD BACKWARD "X f0 F0 f1 U",
};

static ls_status leave_something(ls_group *group, const ls_ddp_opts *opts) {
    toy model;
    ls_ddp *ddp = NULL;
    float values[MAX_ELEMS];
    toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, opts, &ddp));
    for (size_t i = 0; i < 2 * COUNT_OF(leaving_rows); i++) {
        const char *calls = leaving_rows[i % COUNT_OF(leaving_rows)];
        LSI_TRY(make_calls(&model, ddp, calls));
        LSI_TRY(collect(&model, ddp, values));
        LSI_TRY(lsi_context(expect_to_compute_with(&model, ddp, values), "after '%s'", calls));
        LSI_TRY(ls_ddp_check_weights(ddp));
    }
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static ls_status leave_with_all_options(ls_group *group, void *context) {
    (void)context;
    for (int reshard = 0; reshard < 3; reshard++)
        for (int prefetch = -1; prefetch < 3; prefetch++) {
            const ls_ddp_opts opts = FSDP(.prefetch = prefetch, .reshard_after_forward = reshard,
                                          .find_unused_parameters = 1);
            LSI_TRY(lsi_context(leave_something(group, &opts), "reshard %d, prefetch %d", reshard,
                                prefetch));
        }
    return LS_OK;
}

static void what_is_older_than_an_update_is_gathered_anew(void **state) {
    (void)state;
    run_in_both(4, leave_with_all_options, NULL);
}

/* A group has places for LSI_CALLS works. Those of works that nobody waited for come back. */
static ls_status give_up_often(ls_group *group, void *context) {
    const ls_ddp_opts opts = FSDP(.prefetch = 2);
    (void)context;
    toy model;
    ls_ddp *ddp = NULL;
    for (int i = 0; i < LSI_CALLS; i++) {
        toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
        LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &opts, &ddp));
        LSI_TRY(make_calls(&model, ddp, i % 2 ? "f0" : "s f0"));
        ls_ddp_destroy(ddp);
        toy_fini(&model);
    }
    toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &opts, &ddp));
    for (int i = 0; i < LSI_CALLS; i++)
        LSI_TRY(make_calls(&model, ddp, "s " FORWARD BACKWARD "X f0 U"));
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void works_that_are_given_up_leave_their_places(void **state) {
    (void)state;
    run_in_both(1, give_up_often, NULL);
    run_in_both(2, give_up_often, NULL);
}

/* ---- memory that is not there ---- */

static const ls_ddp_opts memory_opts[] = {
    FSDP(.prefetch = 2),
    FSDP(.reproducible = 1, .persist_below = 10, .shard_size = 1),
    FSDP(.offload = LS_OFFLOAD_PARAMS, .offload_dir = "/tmp"),
    {.struct_size = sizeof(ls_ddp_opts), .strategy = LS_STRATEGY_ZERO2, .shard_size = 1},
};

static ls_status create_and_step(lone *f, const ls_ddp_opts *opts) {
    float values[MAX_ELEMS];
    LSI_TRY(ls_ddp_create(f->group, f->model.params, N_PARAMS, opts, &f->ddp));
    LSI_TRY(make_calls(&f->model, f->ddp, STEP));
    return collect(&f->model, f->ddp, values);
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    for (size_t o = 0; o < COUNT_OF(memory_opts); o++) {
        int n_created = 0, failed = 1;
        for (int64_t n = 1; failed; n++) {
            lone f;
            void *given[N_PARAMS];
            lone_open(&f, counts, N_PARAMS);
            for (int i = 0; i < N_PARAMS; i++) given[i] = f.model.params[i].data;
            lsi_mem_fail_at(n);
            ls_status status = create_and_step(&f, &memory_opts[o]);
            failed = lsi_mem_has_failed();
            lsi_mem_fail_at(0);
            if (failed)
                assert_fails(status, LS_ERR_MEMORY, "failed on request");
            else
                assert_ok(status);
            n_created += f.ddp != NULL;
            for (int i = 0; i < N_PARAMS && !f.ddp; i++)
                assert_ptr_equal(f.model.params[i].data, given[i]);
            lone_close(&f);
            assert_true(n > 20 || !f.ddp);
        }
        assert_true(n_created > 1);
    }
}

/* One rank of four has no memory for its n-th block: it says so, and the others do not wait. */
typedef struct shortage {
    ls_ddp_opts opts;
    int64_t n;
    _Atomic int *n_failed;
} shortage;

static ls_status create_without_memory(ls_group *group, void *context) {
    const shortage *s = context;
    bool is_short = ls_group_rank(group) == 1;
    toy model;
    void *given[N_PARAMS];
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
    for (int i = 0; i < N_PARAMS; i++) given[i] = model.params[i].data;
    int64_t before = lsi_mem_n_blocks();
    if (is_short) lsi_mem_fail_at(s->n);
    ls_status status = ls_ddp_create(group, model.params, N_PARAMS, &s->opts, &ddp);
    bool has_failed = is_short && lsi_mem_has_failed();
    if (is_short) lsi_mem_fail_at(0);
    if (has_failed) {
        ++*s->n_failed;
        RANK_FAILS(status, LS_ERR_MEMORY, "failed on request");
        RANK_CHECK(!ddp, "allocation %lld: made", (long long)s->n);
    }
    for (int i = 0; i < N_PARAMS && !ddp; i++)
        RANK_CHECK(model.params[i].data == given[i] && !model.params[i].grad,
                   "allocation %lld: parameter %d was moved", (long long)s->n, i);
    ls_ddp_destroy(ddp);
    RANK_CHECK(lsi_mem_n_blocks() == before, "allocation %lld: %lld blocks are left",
               (long long)s->n, (long long)(lsi_mem_n_blocks() - before));
    toy_fini(&model);
    return LS_OK;
}

static void a_rank_without_memory_keeps_nobody_waiting(void **state) {
    (void)state;
    static const ls_ddp_opts rows[] = {
        FSDP(.shard_size = 2),
        FSDP(.reshard_after_forward = 2),
        {.struct_size = sizeof(ls_ddp_opts), .strategy = LS_STRATEGY_ZERO1, .shard_size = 2},
    };
    for (size_t o = 0; o < COUNT_OF(rows); o++) {
        shortage s = {.opts = rows[o], .n_failed = shared_number()};
        for (int before = -1; before < *s.n_failed;) {
            before = *s.n_failed;
            s.n++;
            assert_ok(run_ranks(RANKS_AS_PROCESSES, 4, create_without_memory, &s));
        }
        assert_true(*s.n_failed > 15);
        free_shared_number(s.n_failed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_calls_are_refused_and_change_nothing),
        cmocka_unit_test(unusual_passes_end_with_the_same_values),
        cmocka_unit_test(flags_that_are_none_are_refused),
        cmocka_unit_test(what_backward_does_not_read_has_no_data),
        cmocka_unit_test(pairs_said_twice_are_read_in_both_passes),
        cmocka_unit_test(gradients_behind_their_unit_are_missing),
        cmocka_unit_test(other_strategies_take_any_units),
        cmocka_unit_test(ranks_with_other_units_are_told),
        cmocka_unit_test(destroying_in_the_middle_leaves_nothing),
        cmocka_unit_test(the_groups_memory_comes_back),
        cmocka_unit_test(ranks_that_are_left_are_told),
        cmocka_unit_test(what_is_older_than_an_update_is_gathered_anew),
        cmocka_unit_test(works_that_are_given_up_leave_their_places),
        cmocka_unit_test(failed_allocations_leave_nothing),
        cmocka_unit_test(a_rank_without_memory_keeps_nobody_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
