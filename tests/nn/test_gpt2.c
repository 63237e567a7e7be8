/* GPT-2's arithmetic: against PyTorch, against finite differences, and against itself (order of
 * passes, inference, events, failures). Golden numbers come from golden_gpt2.py. */
#include "harness/harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "nn/models/gpt2.h"
#include "optim/optimizer.h"

enum { V = 13, T = 6, C = 8, B = 2, N_TARGETS = 11, N_STEPS = 10, ARENA_BYTES = 1 << 24 };

static const lsi_model_config tiny = {
    .n_layer = 2,
    .n_head = 2,
    .n_embd = C,
    .seq_len = T,
    .vocab_size = V,
    .dropout = 0.0,
    .norm_epsilon = 1e-5,
};

static void assert_near(const char *what, double found, double expected, double bound) {
    if (fabs(found - expected) <= bound) return;
    fail_msg("%s: found %.9g, expected %.9g within %.3g", what, found, expected, bound);
}

/* ---- a model with its gradients and a tape ---- */

typedef struct fixture {
    lsi_model *model;
    lsi_arena *arena;
    lsi_tape *tape;
    float *grads; /* laid out like model->data */
    uint16_t *lower_halves[28];
} fixture;

static int64_t data_elems(const lsi_model *model) {
    const ls_param *last = &model->params[model->n_params - 1];
    return (const float *)last->data + last->count - model->data;
}

static fixture make(const lsi_model_config *config) {
    fixture f;
    assert_ok(lsi_model_create(&lsi_model_gpt2, config, &f.model));
    lsi_model_init(f.model, 1);
    f.grads = calloc((size_t)data_elems(f.model), sizeof *f.grads);
    for (int i = 0; i < f.model->n_params; i++) {
        ls_param *param = &f.model->params[i];
        param->grad = f.grads + ((const float *)param->data - f.model->data);
    }
    assert_ok(lsi_arena_create(ARENA_BYTES, &f.arena));
    assert_ok(lsi_tape_create(f.arena, &f.tape));
    return f;
}

static void drop(fixture *f) {
    lsi_tape_destroy(f->tape);
    assert_int_equal(lsi_arena_used_bytes(f->arena), 0);
    lsi_arena_destroy(f->arena);
    lsi_model_destroy(f->model);
    free(f->grads);
}

/* Counted from the start of each test, so that one failed test does not fail the rest. */
static int64_t n_blocks_before;

static int count_blocks(void **state) {
    (void)state;
    n_blocks_before = lsi_mem_n_blocks();
    return 0;
}

static int nothing_leaked(void **state) {
    (void)state;
    return lsi_mem_n_blocks() != n_blocks_before;
}

/* w[i] = 0.3 sin(i + 1 + 1000 p), plus 1 for norm weights: the weights of golden_gpt2.py, far from
 * the small ones of a fresh model, so that every part of it counts. */
static void set_golden_weights(lsi_model *model) {
    for (int p = 0; p < model->n_params; p++) {
        const char *name = model->params[p].name;
        double one = strstr(name, "ln_") && strstr(name, "weight") ? 1.0 : 0.0;
        float *values = model->params[p].data;
        for (int64_t i = 0; i < model->params[p].count; i++)
            values[i] = (float)(one + 0.3 * sin((double)(i + 1 + 1000 * p)));
    }
}

typedef struct tokens {
    int32_t inputs[B * T], targets[B * T];
} tokens;

static lsi_batch golden_batch(tokens *t) {
    for (int b = 0; b < B; b++)
        for (int k = 0; k < T; k++) {
            t->inputs[b * T + k] = (7 * b + 5 * k + 3) % V;
            t->targets[b * T + k] = (3 * b + 2 * k + 1) % V;
        }
    t->targets[T + 2] = -1;
    return (lsi_batch){t->inputs, t->targets, B, T};
}

static lsi_batch other_batch(tokens *t) {
    for (int i = 0; i < B * T; i++) {
        t->inputs[i] = (i * i + 2) % V;
        t->targets[i] = (i * 5 + 7) % V;
    }
    return (lsi_batch){t->inputs, t->targets, B, T};
}

static double loss_of(fixture *f, const lsi_batch *batch) {
    lsi_tape_reset(f->tape, false);
    lsi_tensor *loss = f->model->class->forward(f->model, f->tape, batch);
    assert_ok(lsi_tape_status(f->tape));
    return (double)*(float *)loss->data;
}

static double forward_backward(fixture *f, const lsi_batch *batch) {
    lsi_tape_reset(f->tape, true);
    lsi_tensor *loss = f->model->class->forward(f->model, f->tape, batch);
    assert_ok(lsi_tape_status(f->tape));
    double value = (double)*(float *)loss->data;
    assert_ok(lsi_tape_backward(f->tape, loss));
    return value;
}

static const float *logits_of(fixture *f, lsi_batch batch) {
    batch.targets = NULL;
    lsi_tape_reset(f->tape, false);
    lsi_tensor *logits = f->model->class->forward(f->model, f->tape, &batch);
    assert_ok(lsi_tape_status(f->tape));
    assert_int_equal(logits->n_dims, 3);
    assert_int_equal(logits->dims[0], batch.n_batch);
    assert_int_equal(logits->dims[1], batch.n_time);
    assert_int_equal(logits->dims[2], V);
    return logits->data;
}

/* Returns the loss a target before the step. */
static double train_step(fixture *f, lsi_optimizer *optimizer, const lsi_batch *batch) {
    double loss = forward_backward(f, batch) / N_TARGETS;
    double factor = ls_clip_factor(lsi_optimizer_global_norm(optimizer) / N_TARGETS, 1.0);
    assert_ok(lsi_optimizer_step(optimizer, 1e-2, factor / N_TARGETS));
    return loss;
}

static lsi_optimizer *make_optimizer(fixture *f) {
    const lsi_optimizer_opts opts = {0.9, 0.95, 1e-8, 0.1, f->lower_halves};
    lsi_optimizer *optimizer;
    assert_true(f->model->n_params <= (int)(sizeof f->lower_halves / sizeof f->lower_halves[0]));
    for (int i = 0; i < f->model->n_params; i++)
        f->lower_halves[i] = lsi_model_lower_half(f->model, i);
    assert_ok(lsi_optimizer_create(f->model->params, f->model->n_params, &opts, &optimizer));
    return optimizer;
}

/* ---- PyTorch ---- */

typedef struct golden_row {
    const char *name;
    double norm; /* of the gradient */
    double wave; /* sum of gradient[i] sin(i + 1): sees order and sign, which a norm does not */
} golden_row;

/* torch 2.13.0 in float64, equal to GPT2LMHeadModel of transformers. */
static const double golden_loss = 38.829197085405;
/* of the last position */
static const double golden_logits[V] = {
    1.978189728, 0.192214123, -2.034124047, 0.399716090,  1.917806623, -0.957797954, -1.639087417,
    1.434772472, 1.221568497, -1.790249000, -0.700605884, 1.994125359, 0.120315281};
static const double golden_training[N_STEPS] = {3.529927008, 3.205009208, 2.939170381, 2.811671995,
                                                2.689157167, 2.571780621, 2.438478001, 2.330464058,
                                                2.229225853, 2.115656396};
static const golden_row golden[] = {
    {"wte.weight", 14.255341586, 68.432440986},
    {"wpe.weight", 6.438679803, -4.409666334},
    {"h.0.ln_1.weight", 0.733475219, -0.152620649},
    {"h.0.ln_1.bias", 0.402645236, -0.178388773},
    {"h.0.attn.c_attn.weight", 5.719927835, -0.816186843},
    {"h.0.attn.c_attn.bias", 1.244065093, 0.295252214},
    {"h.0.attn.c_proj.weight", 4.105572541, -1.310074793},
    {"h.0.attn.c_proj.bias", 1.933713757, -0.498998047},
    {"h.0.ln_2.weight", 0.438287450, -0.257093718},
    {"h.0.ln_2.bias", 0.447611385, -0.273309602},
    {"h.0.mlp.c_fc.weight", 3.865641614, -2.783162275},
    {"h.0.mlp.c_fc.bias", 1.096618939, -0.037792606},
    {"h.0.mlp.c_proj.weight", 3.478350330, 1.450182785},
    {"h.0.mlp.c_proj.bias", 1.164043254, -0.473993796},
    {"h.1.ln_1.weight", 0.086718276, 0.013616738},
    {"h.1.ln_1.bias", 0.040013053, 0.080053176},
    {"h.1.attn.c_attn.weight", 1.088292203, -0.727066139},
    {"h.1.attn.c_attn.bias", 0.392445497, -0.010917734},
    {"h.1.attn.c_proj.weight", 3.163988086, -0.545411336},
    {"h.1.attn.c_proj.bias", 1.157238464, -0.313760897},
    {"h.1.ln_2.weight", 0.228251682, 0.023839234},
    {"h.1.ln_2.bias", 0.295209422, 0.065387289},
    {"h.1.mlp.c_fc.weight", 5.391839520, -0.781696600},
    {"h.1.mlp.c_fc.bias", 1.435307284, -0.442231895},
    {"h.1.mlp.c_proj.weight", 2.854163769, -0.016768248},
    {"h.1.mlp.c_proj.bias", 1.137790414, -0.761805416},
    {"ln_f.weight", 5.761651807, 1.329061644},
    {"ln_f.bias", 4.864241092, 10.359226759},
};

/* Rounding of float32 sums of a few hundred terms, relative to the size of the gradient. */
static void loss_and_gradients_equal_pytorch(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    set_golden_weights(f.model);
    assert_near("loss", forward_backward(&f, &batch), golden_loss, 2e-6 * golden_loss);
    assert_int_equal(f.model->n_params, sizeof golden / sizeof golden[0]);
    for (int i = 0; i < f.model->n_params; i++) {
        const ls_param *param = &f.model->params[i];
        const float *grad = param->grad;
        double wave = 0.0;
        for (int64_t k = 0; k < param->count; k++) wave += (double)grad[k] * sin((double)(k + 1));
        assert_string_equal(param->name, golden[i].name);
        double norm = sqrt(ls_sum_squares(grad, param->count));
        assert_near(param->name, norm, golden[i].norm, 1e-5 * golden[i].norm + 1e-6);
        assert_near(param->name, wave, golden[i].wave, 1e-5 * golden[i].norm * sqrt(C) + 1e-6);
    }
    drop(&f);
}

static void logits_equal_pytorch(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    set_golden_weights(f.model);
    const float *last = logits_of(&f, golden_batch(&t)) + (B * T - 1) * V;
    for (int v = 0; v < V; v++) assert_near("logit", (double)last[v], golden_logits[v], 5e-6);
    drop(&f);
}

static void ten_losses_of_training_equal_pytorch(void **state) {
    (void)state;
    const struct {
        ls_dtype dtype;
        double bound;
    } rows[] = {
        /* AdamW divides by the size of the gradient: relative errors go into the weights. */
        {LS_DTYPE_F32, 5e-6},
        /* PyTorch's own ten losses in bfloat16 are up to 0.049 away from those in float64. */
        {LS_DTYPE_BF16, 0.05},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fixture f = make(&tiny);
        tokens t;
        lsi_batch batch = golden_batch(&t);
        set_golden_weights(f.model);
        if (rows[i].dtype == LS_DTYPE_BF16) assert_ok(lsi_model_narrow(f.model));
        lsi_tape_set_dtype(f.tape, rows[i].dtype);
        lsi_optimizer *optimizer = make_optimizer(&f);
        for (int step = 0; step < N_STEPS; step++)
            assert_near(ls_dtype_name(rows[i].dtype), train_step(&f, optimizer, &batch),
                        golden_training[step], rows[i].bound);
        lsi_optimizer_destroy(optimizer);
        drop(&f);
    }
}

/* ---- finite differences ---- */

/* Along its own gradient g a parameter's loss changes by |g|: the symmetric difference
 * s(h) = (loss(w + h g/|g|) - loss(w - h g/|g|)) / 2h is |g| + O(h^2), and (4 s(h) - s(2h)) / 3 is
 * |g| + O(h^4). Float32 losses of about 39 are off by a few 1e-6, which h = 0.003 makes 1e-3. */
static double slope_along(fixture *f, const lsi_batch *batch, ls_param *param, double norm) {
    const double h = 0.003;
    float *values = param->data;
    const float *grad = param->grad;
    float kept[4 * C * C];
    double loss[5]; /* at -2h, -h, 0, h, 2h */
    assert_true(param->count <= (int64_t)(sizeof kept / sizeof kept[0]));
    memcpy(kept, values, (size_t)param->count * sizeof *kept);
    for (int at = 0; at < 5; at++) {
        double step = (at - 2) * h / norm;
        for (int64_t k = 0; k < param->count; k++)
            values[k] = (float)((double)kept[k] + step * (double)grad[k]);
        loss[at] = loss_of(f, batch);
    }
    memcpy(values, kept, (size_t)param->count * sizeof *kept);
    double near = (loss[3] - loss[1]) / (2.0 * h), far = (loss[4] - loss[0]) / (4.0 * h);
    return (4.0 * near - far) / 3.0;
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    set_golden_weights(f.model);
    forward_backward(&f, &batch);
    for (int i = 0; i < f.model->n_params; i++) {
        ls_param *param = &f.model->params[i];
        double norm = sqrt(ls_sum_squares(param->grad, param->count));
        double slope = slope_along(&f, &batch, param, norm);
        assert_near(param->name, slope, norm, 1e-3 * norm + 3e-3);
    }
    drop(&f);
}

/* ---- training ---- */

static void fresh_model_knows_nothing(void **state) {
    (void)state;
    lsi_model_config config = {2, 4, 32, 16, 64, 0.0, 1e-5};
    fixture f = make(&config);
    int32_t inputs[64], targets[64];
    for (int i = 0; i < 64; i++) {
        inputs[i] = (i * 29 + 3) % 64;
        targets[i] = (i * 37 + 11) % 64;
    }
    lsi_batch batch = {inputs, targets, 4, 16};
    /* logits of deviation 0.02 sqrt(32) = 0.11 add about half their variance */
    assert_near("loss", loss_of(&f, &batch) / 64, log(64.0), 0.03);
    drop(&f);
}

static void loss_falls_over_thirty_steps_on_one_batch(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    lsi_optimizer *optimizer = make_optimizer(&f);
    double first = 0.0, last = 0.0;
    for (int step = 0; step < 30; step++) {
        last = train_step(&f, optimizer, &batch);
        if (step == 0) first = last;
    }
    assert_near("first loss", first, log(V), 0.05);
    assert_true(last < 0.5 * first);
    lsi_optimizer_destroy(optimizer);
    drop(&f);
}

/* ---- one pass does not know of another ---- */

static void gradients_do_not_depend_on_earlier_passes(void **state) {
    (void)state;
    lsi_model_config config = tiny;
    config.dropout = 0.3;
    fixture f = make(&config), fresh = make(&config);
    tokens t, u;
    lsi_batch batch = golden_batch(&t), other = other_batch(&u), shorter = other;
    shorter.n_time = 3;
    lsi_tape_seed(fresh.tape, 5, 2, 9);
    double expected = forward_backward(&fresh, &batch);

    lsi_tape_seed(f.tape, 5, 2, 8);
    forward_backward(&f, &other);
    loss_of(&f, &shorter);
    forward_backward(&f, &shorter);
    for (int64_t i = 0; i < data_elems(f.model); i++) f.grads[i] = NAN; /* must be overwritten */
    lsi_tape_seed(f.tape, 5, 2, 9);
    double found = forward_backward(&f, &batch);
    assert_true(found == expected);
    for (int i = 0; i < f.model->n_params; i++)
        assert_memory_equal(f.model->params[i].grad, fresh.model->params[i].grad,
                            (size_t)f.model->params[i].count * sizeof(float));

    /* another micro-batch, other masks */
    lsi_tape_seed(f.tape, 5, 2, 10);
    assert_true(forward_backward(&f, &batch) != expected);
    drop(&f);
    drop(&fresh);
}

static void micro_batches_add_up(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t, u;
    lsi_batch first = golden_batch(&t), second = other_batch(&u);
    int64_t n = data_elems(f.model);
    double *sum = calloc((size_t)n, sizeof *sum);
    set_golden_weights(f.model);
    forward_backward(&f, &first);
    for (int64_t i = 0; i < n; i++) sum[i] = (double)f.grads[i];
    forward_backward(&f, &second);
    for (int64_t i = 0; i < n; i++) sum[i] += (double)f.grads[i];

    forward_backward(&f, &first);
    lsi_tape_accumulate(f.tape, true);
    forward_backward(&f, &second);
    for (int64_t i = 0; i < n; i++) assert_near("sum", (double)f.grads[i], sum[i], 2e-5);
    free(sum);
    drop(&f);
}

static void frozen_parameters_leave_the_others_alone(void **state) {
    (void)state;
    fixture f = make(&tiny), frozen = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    set_golden_weights(f.model);
    set_golden_weights(frozen.model);
    for (int i = 0; i < frozen.model->n_params; i++) {
        if (i % 3 != 0) continue;
        frozen.model->params[i].flags |= LS_PARAM_FROZEN;
        frozen.model->params[i].grad = NULL;
    }
    assert_true(forward_backward(&f, &batch) == forward_backward(&frozen, &batch));
    for (int i = 0; i < f.model->n_params; i++)
        if (frozen.model->params[i].grad)
            assert_memory_equal(f.model->params[i].grad, frozen.model->params[i].grad,
                                (size_t)f.model->params[i].count * sizeof(float));
    drop(&frozen);
    drop(&f);
}

static void no_targets_at_all_give_zero(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    for (int i = 0; i < B * T; i++) t.targets[i] = -1;
    assert_true(forward_backward(&f, &batch) == 0.0);
    for (int i = 0; i < f.model->n_params; i++)
        assert_true(ls_sum_squares(f.model->params[i].grad, f.model->params[i].count) == 0.0);
    drop(&f);
}

/* ---- inference ---- */

static void logits_give_the_loss(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    set_golden_weights(f.model);
    const float *logits = logits_of(&f, batch);
    double loss = 0.0;
    for (int row = 0; row < B * T; row++) {
        double sum = 0.0;
        for (int v = 0; v < V; v++) sum += exp((double)logits[row * V + v]);
        if (t.targets[row] >= 0) loss += log(sum) - (double)logits[row * V + t.targets[row]];
    }
    assert_near("loss", loss, golden_loss, 2e-6 * golden_loss);
    drop(&f);
}

static void inference_ignores_dropout(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    float expected[B * T * V];
    set_golden_weights(f.model);
    memcpy(expected, logits_of(&f, batch), sizeof expected);
    f.model->config.dropout = 0.5;
    assert_memory_equal(logits_of(&f, batch), expected, sizeof expected);
    assert_true(fabs(forward_backward(&f, &batch) - golden_loss) > 1e-3);
    drop(&f);
}

static void later_tokens_do_not_change_earlier_logits(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    set_golden_weights(f.model);
    float before[B * T * V];
    for (int at = 0; at < T; at++) {
        golden_batch(&t);
        memcpy(before, logits_of(&f, batch), sizeof before);
        t.inputs[at] = (t.inputs[at] + 1) % V; /* of the first sequence */
        const float *after = logits_of(&f, batch);
        assert_memory_equal(after, before, (size_t)(at * V) * sizeof *after);
        assert_memory_not_equal(after + at * V, before + at * V, V * sizeof *after);
        assert_memory_equal(after + T * V, before + T * V, (size_t)(T * V) * sizeof *after);
    }
    drop(&f);
}

static void inference_keeps_little_memory(void **state) {
    (void)state;
    lsi_model_config config = {12, 2, 16, 32, V, 0.0, 1e-5};
    fixture f = make(&config);
    int32_t inputs[32] = {0};
    lsi_batch batch = {inputs, inputs, 1, 32};
    loss_of(&f, &batch);
    size_t inference = lsi_arena_peak_bytes(f.arena);
    forward_backward(&f, &batch);
    /* what two blocks work on, against what twelve keep */
    assert_true(inference * 4 < lsi_arena_peak_bytes(f.arena));
    drop(&f);
}

/* ---- events ---- */

typedef struct event_log {
    int n, n_ready[64];
    struct {
        ls_event event;
        int index;
    } units[64];
} event_log;

static ls_status write_down(void *context, ls_event event, int index) {
    event_log *log = context;
    if (event == LS_EVENT_GRAD_READY)
        log->n_ready[index]++;
    else if (event != LS_EVENT_PROGRESS && log->n < 64)
        log->units[log->n++] = (typeof(log->units[0])){event, index};
    return LS_OK;
}

static void units_pass_in_order_and_parameters_once(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    event_log log = {0};
    lsi_tape_listen(f.tape, (ls_event_sink){write_down, &log});
    forward_backward(&f, &batch);
    int at = 0, n_units = (int)tiny.n_layer + 2;
    for (int unit = 0; unit < n_units; unit++) {
        assert_int_equal(log.units[at].event, LS_EVENT_BEFORE_FORWARD);
        assert_int_equal(log.units[at++].index, unit);
        assert_int_equal(log.units[at].event, LS_EVENT_AFTER_FORWARD);
        assert_int_equal(log.units[at++].index, unit);
    }
    for (int unit = n_units - 1; unit >= 0; unit--) {
        assert_int_equal(log.units[at].event, LS_EVENT_BEFORE_BACKWARD);
        assert_int_equal(log.units[at++].index, unit);
        assert_int_equal(log.units[at].event, LS_EVENT_AFTER_BACKWARD);
        assert_int_equal(log.units[at++].index, unit);
    }
    assert_int_equal(log.units[at++].event, LS_EVENT_END_OF_BACKWARD);
    assert_int_equal(log.n, at);
    for (int i = 0; i < f.model->n_params; i++) assert_int_equal(log.n_ready[i], 1);
    drop(&f);
}

/* ---- failures ---- */

static void bad_batches_are_refused(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    const lsi_batch good = golden_batch(&t);
    const struct {
        int64_t n_batch, n_time;
        int32_t input, target;
        const char *text;
    } rows[] = {
        {B, T + 1, 0, 0, "2 sequences of 7 tokens, expected at least 1 sequence of 1 to 6"},
        {B, 0, 0, 0, "2 sequences of 0 tokens"},
        {0, T, 0, 0, "0 sequences"},
        {-1, T, 0, 0, "-1 sequences"},
        {B, T, V, 0, "13"},
        {B, T, -1, 0, "-1"},
        {B, T, 0, V, "13"},
        {B, T, 0, -2, "-2"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_batch batch = good;
        golden_batch(&t);
        batch.n_batch = rows[i].n_batch;
        batch.n_time = rows[i].n_time;
        t.inputs[3] = rows[i].input;
        t.targets[4] = rows[i].target;
        lsi_tape_reset(f.tape, true);
        assert_null(f.model->class->forward(f.model, f.tape, &batch));
        assert_fails(lsi_tape_status(f.tape), LS_ERR_ARGUMENT, rows[i].text);
    }
    golden_batch(&t);
    forward_backward(&f, &good); /* none the worse for it */
    drop(&f);
}

/* Everything that a first step allocates, from the model to the optimizer. */
static ls_status whole_step(size_t arena_bytes) {
    lsi_model *model = NULL;
    lsi_arena *arena = NULL;
    lsi_tape *tape = NULL;
    lsi_optimizer *optimizer = NULL;
    static float grads[1 << 13];
    const lsi_optimizer_opts opts = {0.9, 0.95, 1e-8, 0.1};
    tokens t;
    lsi_batch batch = golden_batch(&t);
    ls_status status = lsi_model_create(&lsi_model_gpt2, &tiny, &model);
    if (status == LS_OK) {
        lsi_model_init(model, 1);
        assert_true(data_elems(model) <= (int64_t)(sizeof grads / sizeof grads[0]));
        for (int i = 0; i < model->n_params; i++)
            model->params[i].grad = grads + ((float *)model->params[i].data - model->data);
        status = lsi_optimizer_create(model->params, model->n_params, &opts, &optimizer);
    }
    if (status == LS_OK) status = lsi_arena_create(arena_bytes, &arena);
    if (status == LS_OK) status = lsi_tape_create(arena, &tape);
    if (status == LS_OK) {
        lsi_tensor *loss = model->class->forward(model, tape, &batch);
        status = lsi_tape_status(tape);
        assert_true(status == LS_OK ? loss != NULL : loss == NULL);
        if (status == LS_OK) status = lsi_tape_backward(tape, loss);
    }
    if (status == LS_OK) status = lsi_optimizer_step(optimizer, 1e-3, 1.0);
    lsi_tape_destroy(tape);
    if (arena) assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
    lsi_optimizer_destroy(optimizer);
    lsi_model_destroy(model);
    return status;
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        lsi_mem_fail_at(n);
        ls_status status = whole_step(ARENA_BYTES);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks_before);
        if (!failed) break;
        assert_true(n < 200);
    }
}

static void arenas_too_small_fail_cleanly(void **state) {
    (void)state;
    bool passed = false;
    for (size_t bytes = 4096; bytes <= ARENA_BYTES; bytes += bytes < 65536 ? 4096 : bytes) {
        ls_status status = whole_step(bytes);
        assert_true(status == LS_OK || status == LS_ERR_MEMORY);
        assert_true(status == LS_OK || !passed);
        passed |= status == LS_OK;
        assert_int_equal(lsi_mem_n_blocks(), n_blocks_before);
    }
    assert_true(passed);
}

#define LEAK_TEST(name) cmocka_unit_test_setup_teardown(name, count_blocks, nothing_leaked)

int main(void) {
    const struct CMUnitTest tests[] = {
        LEAK_TEST(logits_equal_pytorch),
        LEAK_TEST(loss_and_gradients_equal_pytorch),
        LEAK_TEST(ten_losses_of_training_equal_pytorch),
        LEAK_TEST(gradients_equal_finite_differences),
        LEAK_TEST(fresh_model_knows_nothing),
        LEAK_TEST(loss_falls_over_thirty_steps_on_one_batch),
        LEAK_TEST(gradients_do_not_depend_on_earlier_passes),
        LEAK_TEST(micro_batches_add_up),
        LEAK_TEST(frozen_parameters_leave_the_others_alone),
        LEAK_TEST(no_targets_at_all_give_zero),
        LEAK_TEST(logits_give_the_loss),
        LEAK_TEST(inference_ignores_dropout),
        LEAK_TEST(later_tokens_do_not_change_earlier_logits),
        LEAK_TEST(inference_keeps_little_memory),
        LEAK_TEST(units_pass_in_order_and_parameters_once),
        LEAK_TEST(bad_batches_are_refused),
        LEAK_TEST(failed_allocations_leak_nothing),
        LEAK_TEST(arenas_too_small_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
