/* Descriptions of language models against what a pass does: bytes that the arena holds when forward
 * ends, parameters that the units use, operations. */
#include "harness/harness.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "nn/models/gpt2.h"
#include "nn/models/llama.h"

enum { MAX_UNITS = 16 };

typedef struct description_case {
    const lsi_model_class *class;
    lsi_model_config config;
    int64_t n_batch, n_time;
} description_case;

static const description_case cases[] = {
    {&lsi_model_gpt2, {1, 1, 8, 4, 11, 0.0, 1e-5}, 1, 1},
    {&lsi_model_gpt2, {2, 2, 24, 17, 50, 0.0, 1e-5}, 3, 17},
    {&lsi_model_gpt2, {3, 4, 64, 100, 300, 0.0, 1e-5}, 2, 96},
    {&lsi_model_gpt2, {3, 4, 64, 100, 300, 0.2, 1e-5}, 2, 96},
    {&lsi_model_llama, {1, 1, 8, 4, 11, 0.0, 1e-5, 1, 12, 1e4, false}, 1, 1},
    {&lsi_model_llama, {2, 6, 24, 17, 50, 0.0, 1e-5, 2, 40, 1e4, true}, 3, 17},
    {&lsi_model_llama, {3, 4, 64, 100, 300, 0.0, 1e-5, 2, 172, 1e4, false}, 2, 96},
    {&lsi_model_llama, {3, 4, 64, 100, 300, 0.2, 1e-5, 4, 172, 1e4, true}, 2, 96},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static lsi_model *make(const description_case *c) {
    lsi_model *model = NULL;
    assert_ok(lsi_model_create(c->class, &c->config, &model));
    lsi_model_init(model, 1);
    return model;
}

static int describe(const description_case *c, const lsi_model *model, ls_dtype dtype,
                    lsi_unit_cost units[MAX_UNITS]) {
    int n_units = c->class->n_units(&c->config);
    assert_true(n_units <= MAX_UNITS);
    c->class->describe(model, c->n_batch, c->n_time, dtype, units);
    return n_units;
}

/* Bytes in use when forward is over, after each of the units. */
typedef struct memory_log {
    const lsi_arena *arena;
    int64_t bytes[MAX_UNITS];
} memory_log;

static ls_status look_at_memory(void *context, ls_event event, int index) {
    memory_log *log = context;
    if (event == LS_EVENT_AFTER_FORWARD)
        log->bytes[index] = (int64_t)lsi_arena_used_bytes(log->arena);
    return LS_OK;
}

static void run_forward(const description_case *c, lsi_model *model, ls_dtype dtype,
                        memory_log *log) {
    lsi_arena *arena = NULL;
    lsi_tape *tape = NULL;
    int64_t rows = c->n_batch * c->n_time, n = 0;
    int32_t *tokens = calloc((size_t)rows, sizeof *tokens);
    for (int i = 0; i < model->n_params; i++) n += model->params[i].count;
    float *grads = calloc((size_t)n, sizeof *grads), *grad = grads;
    for (int i = 0; i < model->n_params; grad += model->params[i++].count)
        model->params[i].grad = grad;
    assert_ok(lsi_arena_create(1 << 28, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_set_dtype(tape, dtype);
    log->arena = arena;
    lsi_tape_listen(tape, (ls_event_sink){look_at_memory, log});
    lsi_batch batch = {
        .tokens = tokens, .targets = tokens, .n_batch = c->n_batch, .n_time = c->n_time};
    lsi_tensor *loss = c->class->forward(model, tape, &batch);
    assert_ok(lsi_tape_status(tape));
    assert_ok(lsi_tape_backward(tape, loss));
    lsi_tape_destroy(tape);
    lsi_arena_destroy(arena);
    free(grads);
    free(tokens);
}

/* To the byte after every unit. */
static void described_bytes_are_in_the_arena_after_forward(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        for (int narrow = 0; narrow < 2; narrow++) {
            ls_dtype dtype = narrow ? LS_DTYPE_BF16 : LS_DTYPE_F32;
            lsi_model *model = make(&cases[i]);
            lsi_unit_cost units[MAX_UNITS] = {{0}};
            memory_log log = {0};
            int n_units = describe(&cases[i], model, dtype, units);
            if (narrow) assert_ok(lsi_model_narrow(model));
            run_forward(&cases[i], model, dtype, &log);
            int64_t sum = 0;
            for (int unit = 0; unit < n_units; unit++) {
                sum += units[unit].activation_bytes;
                if (sum != log.bytes[unit])
                    fail_msg("case %d, %s, unit %d: described %lld, found %lld", i,
                             ls_dtype_name(dtype), unit, (long long)sum,
                             (long long)log.bytes[unit]);
            }
            lsi_model_destroy(model);
        }
    }
}

static void units_share_out_all_parameters_in_order(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        lsi_model *model = make(&cases[i]);
        lsi_unit_cost units[MAX_UNITS] = {{0}};
        int n_units = describe(&cases[i], model, LS_DTYPE_F32, units), next = 0;
        for (int unit = 0; unit < n_units; unit++) {
            assert_int_equal(units[unit].first_param, next);
            next += units[unit].n_params;
        }
        assert_int_equal(next, model->n_params);
        lsi_model_destroy(model);
    }
}

/* 6 for each weight that is multiplied, and the square of attention. */
static double expected_flops(const description_case *c, const lsi_model *model) {
    double weights = 0.0, rows = (double)(c->n_batch * c->n_time);
    for (int i = 0; i < model->n_params; i++) {
        const char *name = model->params[i].name;
        bool is_looked_up = strcmp(name, "wpe.weight") == 0 ||
                            (c->config.untied && strcmp(name, "model.embed_tokens.weight") == 0);
        if (model->shapes[i].n_dims == 2 && !is_looked_up)
            weights += (double)model->params[i].count;
    }
    return 6.0 * rows * weights +
           12.0 * rows * (double)c->config.n_layer * (double)c->config.n_embd * (double)c->n_time;
}

static void operations_are_six_a_weight_and_attention(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        lsi_model *model = make(&cases[i]);
        lsi_unit_cost units[MAX_UNITS] = {{0}};
        int n_units = describe(&cases[i], model, LS_DTYPE_F32, units);
        double flops = 0.0, expected = expected_flops(&cases[i], model);
        for (int unit = 0; unit < n_units; unit++) flops += units[unit].flops;
        assert_true(flops == expected);
        double rows = (double)(cases[i].n_batch * cases[i].n_time);
        double of_token = lsi_model_flops_per_token(model, cases[i].n_time);
        assert_true(of_token * rows == expected);
        lsi_model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(described_bytes_are_in_the_arena_after_forward),
        cmocka_unit_test(units_share_out_all_parameters_in_order),
        cmocka_unit_test(operations_are_six_a_weight_and_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
