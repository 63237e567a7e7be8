/* DDP called wrongly, in a group of one: every call in every wrong state, arguments and options
 * outside their range. Refused calls change nothing: the step goes on as if they had not been. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

#include "lone.h"

/* Parameter 1 is frozen. */
static const int64_t counts[] = {3, -5, 20};
enum { N_PARAMS = 3 };

/* ---- calls in the wrong state ----
 *
 * A letter is a call: s and S begin a step of 1 and 2 micro-batches, B begins and E ends a
 * backward pass, F finishes the step; r makes all gradients ready, a digit that of a parameter. */

static ls_status make_call(lone *f, char letter) {
    switch (letter) {
    case 's': return ls_ddp_begin_step(f->ddp, 1, 0);
    case 'S': return ls_ddp_begin_step(f->ddp, 2, 0);
    case 'B': return ls_ddp_begin_backward(f->ddp);
    case 'E': return ls_ddp_end_backward(f->ddp);
    case 'F': return ls_ddp_finish_step(f->ddp);
    case 'r': LSI_TRY(ls_ddp_grad_ready(f->ddp, 2)); return ls_ddp_grad_ready(f->ddp, 0);
    default: return ls_ddp_grad_ready(f->ddp, letter - '0');
    }
}

typedef struct call_row {
    const char *before, *refused, *text, *after;
} call_row;

static const call_row call_rows[] = {
    {"", "B", "ls_ddp_begin_backward: no step is open", "sBrEF"},
    {"", "0", "ls_ddp_grad_ready: no step is open", "sBrEF"},
    {"", "E", "ls_ddp_end_backward: no step is open", "sBrEF"},
    {"", "F", "ls_ddp_finish_step: no step is open", "sBrEF"},
    {"s", "s", "ls_ddp_begin_step: between micro-batches, expected: no step is open", "BrEF"},
    {"s", "0", "expected: a backward pass is open", "BrEF"},
    {"s", "E", "expected: a backward pass is open", "BrEF"},
    {"s", "F", "0 of 1 micro-batches are done", "BrEF"},
    {"sB", "s", "a backward pass is open, expected: no step is open", "rEF"},
    {"sB", "B", "a backward pass is open, expected: between micro-batches", "rEF"},
    {"sB", "F", "a backward pass is open, expected: between micro-batches", "rEF"},
    {"sB0", "0", "the gradient of parameter p0 was ready already", "2EF"},
    {"sB2", "2", "the gradient of parameter p2 was ready already", "0EF"},
    {"sB", "1", "parameter p1 is frozen", "rEF"},
    {"sBr", "r", "was ready already", "EF"},
    {"sBrE", "s", "between micro-batches", "F"},
    {"sBrE", "B", "begun with 1 micro-batches and has had them all", "F"},
    {"sBrE", "0", "expected: a backward pass is open", "F"},
    {"sBrE", "E", "expected: a backward pass is open", "F"},
    {"sBrEF", "F", "no step is open", "sBrEF"},
    {"sBrEF", "0", "no step is open", "sBrEF"},
    {"SBrE", "F", "1 of 2 micro-batches are done", "BrEF"},
};

static void open_for_calls(lone *f, int reproducible) {
    const ls_ddp_opts opts = {.struct_size = sizeof opts,
                              .bucket_cap_mb = 1e-9,
                              .first_bucket_mb = 1e-9,
                              .reproducible = reproducible};
    lone_open(f, counts, N_PARAMS);
    assert_ok(ls_ddp_create(f->group, f->model.params, N_PARAMS, &opts, &f->ddp));
}

static void wrong_calls_are_refused_and_change_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof call_rows / sizeof call_rows[0]; i++)
        for (int reproducible = 0; reproducible < 2; reproducible++) {
            const call_row *row = &call_rows[i];
            lone f;
            open_for_calls(&f, reproducible);
            for (const char *c = row->before; *c; c++) assert_ok(make_call(&f, *c));
            assert_fails(make_call(&f, row->refused[0]), LS_ERR_STATE, row->text);
            for (const char *c = row->after; *c; c++) assert_ok(make_call(&f, *c));
            lone_close(&f);
        }
}

/* Missing gradients are found when the step's last backward pass ends, whichever lacked them: the
 * gradients are sent by then, so the step cannot go on. */
static const call_row missing_rows[] = {
    {"sB", "E", "step 1: 2 parameters got no gradient: p0 (all ranks), p2 (all ranks); use", ""},
    {"sB0", "E", "step 1: 1 parameters got no gradient: p2 (all ranks); use", ""},
    {"sB2", "E", "step 1: 1 parameters got no gradient: p0 (all ranks); use", ""},
    {"sBrEFsB", "E", "step 2: 2 parameters got no gradient", ""},
    {"SBrEB", "E", "step 1: 2 parameters got no gradient", ""},
    {"SBEBr", "E", "step 1: 2 parameters got no gradient", ""},
    {"SB0EB2", "E", "step 1: 2 parameters got no gradient", ""},
};

static void missing_gradients_end_the_step(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof missing_rows / sizeof missing_rows[0]; i++)
        for (int reproducible = 0; reproducible < 2; reproducible++) {
            const call_row *row = &missing_rows[i];
            lone f;
            open_for_calls(&f, reproducible);
            for (const char *c = row->before; *c; c++) assert_ok(make_call(&f, *c));
            assert_fails(make_call(&f, row->refused[0]), LS_ERR_STATE, row->text);
            for (const char *c = "sB0EF"; *c; c++)
                assert_fails(make_call(&f, *c), LS_ERR_STATE, "an earlier call failed");
            lone_close(&f);
        }
}

/* ---- arguments ---- */

static void steps_without_micro_batches_or_scale_are_refused(void **state) {
    (void)state;
    lone f;
    lone_open(&f, counts, N_PARAMS);
    assert_ok(ls_ddp_create(f.group, f.model.params, N_PARAMS, NULL, &f.ddp));
    assert_fails(ls_ddp_begin_step(f.ddp, 0, 0), LS_ERR_ARGUMENT, "0 micro-batches");
    assert_fails(ls_ddp_begin_step(f.ddp, -3, 0), LS_ERR_ARGUMENT, "-3 micro-batches");
    assert_fails(ls_ddp_begin_step(f.ddp, INT64_MIN, 0), LS_ERR_ARGUMENT, "micro-batches");
    assert_fails(ls_ddp_begin_step(f.ddp, 1, NAN), LS_ERR_ARGUMENT, "scale");
    assert_fails(ls_ddp_begin_step(f.ddp, 1, INFINITY), LS_ERR_ARGUMENT, "scale is inf");
    assert_fails(ls_ddp_begin_step(f.ddp, 1, -INFINITY), LS_ERR_ARGUMENT, "scale");
    assert_ok(ls_ddp_begin_step(f.ddp, 1, -1));
    assert_ok(ls_ddp_begin_backward(f.ddp));
    const int wrong[] = {-1, N_PARAMS, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++)
        assert_fails(ls_ddp_grad_ready(f.ddp, wrong[i]), LS_ERR_ARGUMENT, "expected 0 to 2");
    *(float *)f.model.params[2].grad = 3;
    assert_ok(make_call(&f, 'r'));
    assert_ok(make_call(&f, 'E'));
    assert_ok(make_call(&f, 'F'));
    assert_true(*(float *)f.model.params[2].grad == -3);
    lone_close(&f);
}

static const struct {
    uint32_t struct_size;
    double cap_mb, first_mb;
    const char *text;
} opts_rows[] = {
    {0, 0, 0, "struct_size is 0"},
    {sizeof(ls_ddp_opts) + 8, 0, 0, "struct_size"},
    {sizeof(ls_ddp_opts), -1, 0, "bucket_cap_mb -1"},
    {sizeof(ls_ddp_opts), NAN, 0, "bucket_cap_mb"},
    {sizeof(ls_ddp_opts), INFINITY, 0, "bucket_cap_mb inf"},
    {sizeof(ls_ddp_opts), 1e10, 0, "bucket_cap_mb 1e+10"},
    {sizeof(ls_ddp_opts), 0, -1e-9, "first_bucket_mb -1e-09"},
    {sizeof(ls_ddp_opts), 0, NAN, "first_bucket_mb"},
    {sizeof(ls_ddp_opts), 0, -INFINITY, "first_bucket_mb -inf"},
    {sizeof(ls_ddp_opts), 0, 2e9, "first_bucket_mb 2e+09"},
};

static void options_outside_their_range_are_refused(void **state) {
    (void)state;
    lone f;
    lone_open(&f, counts, N_PARAMS);
    for (size_t i = 0; i < sizeof opts_rows / sizeof opts_rows[0]; i++) {
        const ls_ddp_opts opts = {.struct_size = opts_rows[i].struct_size,
                                  .bucket_cap_mb = opts_rows[i].cap_mb,
                                  .first_bucket_mb = opts_rows[i].first_mb};
        assert_fails(ls_ddp_create(f.group, f.model.params, N_PARAMS, &opts, &f.ddp),
                     LS_ERR_ARGUMENT, opts_rows[i].text);
        assert_null(f.ddp);
    }
    const ls_ddp_opts largest = {.struct_size = sizeof largest,
                                 .bucket_cap_mb = 1e9,
                                 .first_bucket_mb = 1e9,
                                 .reproducible = 1};
    assert_ok(ls_ddp_create(f.group, f.model.params, N_PARAMS, &largest, &f.ddp));
    assert_int_equal(ls_ddp_n_buckets(f.ddp), 1);
    lone_close(&f);
}

static float some_data[4];

static const struct {
    ls_param param;
    ls_status status;
    const char *text;
} param_rows[] = {
    {{.name = NULL, .count = 4, .dtype = LS_DTYPE_F32, .data = some_data},
     LS_ERR_ARGUMENT,
     "parameter 0 needs a name"},
    {{.name = "w", .count = -1, .dtype = LS_DTYPE_F32, .data = some_data},
     LS_ERR_ARGUMENT,
     "count >= 0"},
    {{.name = "w", .count = 4, .dtype = LS_DTYPE_F32, .data = NULL}, LS_ERR_ARGUMENT, "and data"},
    {{.name = "w", .count = 4, .dtype = LS_DTYPE_I32, .data = some_data},
     LS_ERR_UNSUPPORTED,
     "parameter w has dtype I32"},
    {{.name = "w", .count = 4, .dtype = LS_DTYPE_U8, .data = some_data},
     LS_ERR_UNSUPPORTED,
     "parameter w has dtype U8"},
    {{.name = "w", .count = 4, .dtype = (ls_dtype)77, .data = some_data},
     LS_ERR_UNSUPPORTED,
     "parameter w has dtype"},
    {{.name = "w", .count = INT64_MAX, .dtype = LS_DTYPE_F32, .data = some_data},
     LS_ERR_ARGUMENT,
     "parameter w"},
    {{.name = "w", .count = (int64_t)1 << 40, .dtype = LS_DTYPE_F32, .data = some_data},
     LS_ERR_MEMORY,
     "shared heap"},
    {{.name = "w",
      .count = INT64_MAX,
      .dtype = LS_DTYPE_F32,
      .flags = LS_PARAM_FROZEN,
      .data = some_data},
     LS_ERR_ARGUMENT,
     "parameter w"},
};

static void parameters_that_cannot_be_are_refused(void **state) {
    (void)state;
    lone f;
    lone_open(&f, counts, N_PARAMS);
    for (size_t i = 0; i < sizeof param_rows / sizeof param_rows[0]; i++) {
        ls_param param = param_rows[i].param;
        assert_fails(ls_ddp_create(f.group, &param, 1, NULL, &f.ddp), param_rows[i].status,
                     param_rows[i].text);
        assert_null(f.ddp);
    }
    assert_fails(ls_ddp_create(f.group, f.model.params, -1, NULL, &f.ddp), LS_ERR_ARGUMENT,
                 "-1 parameters");
    assert_fails(ls_ddp_create(f.group, NULL, 2, NULL, &f.ddp), LS_ERR_ARGUMENT, "NULL");
    assert_ok(ls_ddp_create(f.group, NULL, 0, NULL, &f.ddp));
    lone_close(&f);
}

static void events_of_others_do_nothing(void **state) {
    (void)state;
    static const ls_event others[] = {LS_EVENT_BEFORE_FORWARD,  LS_EVENT_AFTER_FORWARD,
                                      LS_EVENT_BEFORE_BACKWARD, LS_EVENT_AFTER_BACKWARD,
                                      LS_EVENT_PROGRESS,        (ls_event)99};
    lone f;
    lone_open(&f, counts, N_PARAMS);
    assert_ok(ls_ddp_create(f.group, f.model.params, N_PARAMS, NULL, &f.ddp));
    ls_event_sink sink = ls_ddp_sink(f.ddp);
    for (const char *c = "-sBrEF"; *c; c++) {
        if (*c != '-') assert_ok(make_call(&f, *c));
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            assert_ok(sink.on_event(sink.context, others[i], -7));
    }
    assert_fails(sink.on_event(sink.context, LS_EVENT_GRAD_READY, 0), LS_ERR_STATE, "no step");
    assert_fails(sink.on_event(sink.context, LS_EVENT_END_OF_BACKWARD, 0), LS_ERR_STATE, "no step");
    lone_close(&f);
    ls_ddp_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_calls_are_refused_and_change_nothing),
        cmocka_unit_test(missing_gradients_end_the_step),
        cmocka_unit_test(steps_without_micro_batches_or_scale_are_refused),
        cmocka_unit_test(options_outside_their_range_are_refused),
        cmocka_unit_test(parameters_that_cannot_be_are_refused),
        cmocka_unit_test(events_of_others_do_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
