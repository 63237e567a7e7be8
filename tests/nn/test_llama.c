/* Llama's arithmetic: against PyTorch, against finite differences, against itself (order of passes,
 * checkpoints, inference, events, failures), and with the weights of a small real model. Golden
 * numbers come from golden_llama.py. */
#include "checkpoint/files.h"

#include <jansson.h>
#include <math.h>

#include "base/mem.h"
#include "checkpoint/model_folder.h"
#include "nn/models/llama.h"
#include "optim/optimizer.h"

enum { V = 13, T = 6, C = 16, B = 2, N_TARGETS = 11, ARENA_BYTES = 1 << 26 };

static const lsi_model_config tiny = {
    .n_layer = 2,
    .n_head = 4,
    .n_embd = C,
    .seq_len = T,
    .vocab_size = V,
    .norm_epsilon = 1e-5,
    .n_kv_head = 2,
    .n_inner = 20,
    .rope_theta = 100.0,
};

static lsi_model_config tiny_as(bool untied) {
    lsi_model_config config = tiny;
    config.untied = untied;
    return config;
}

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
} fixture;

static int64_t data_elems(const lsi_model *model) {
    const ls_param *last = &model->params[model->n_params - 1];
    return lsi_model_values(model, model->n_params - 1) + last->count - model->data;
}

static fixture make_from(lsi_model *model) {
    fixture f = {.model = model};
    f.grads = calloc((size_t)data_elems(model), sizeof *f.grads);
    for (int i = 0; i < model->n_params; i++)
        model->params[i].grad = f.grads + (lsi_model_values(model, i) - model->data);
    assert_ok(lsi_arena_create(ARENA_BYTES, &f.arena));
    assert_ok(lsi_tape_create(f.arena, &f.tape));
    return f;
}

static fixture make(const lsi_model_config *config) {
    lsi_model *model = NULL;
    assert_ok(lsi_model_create(&lsi_model_llama, config, &model));
    lsi_model_init(model, 1);
    return make_from(model);
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

static int set_up(void **state) {
    n_blocks_before = lsi_mem_n_blocks();
    return scratch_setup(state);
}

static int tear_down(void **state) {
    return scratch_teardown(state) != 0 || lsi_mem_n_blocks() != n_blocks_before;
}

/* w[i] = 0.3 sin(i + 1 + 1000 p), plus 1 for norm weights: the weights of golden_llama.py, far from
 * the small ones of a fresh model, so that every part of it counts. */
static void set_golden_weights(lsi_model *model) {
    for (int p = 0; p < model->n_params; p++) {
        double one = strstr(model->params[p].name, "norm") ? 1.0 : 0.0;
        float *values = model->params[p].data;
        for (int64_t i = 0; i < model->params[p].count; i++)
            values[i] = (float)(one + 0.3 * sin((double)(i + 1 + 1000 * p)));
    }
}

typedef struct tokens {
    int32_t inputs[B * T], targets[B * T];
} tokens;

static lsi_batch batch_of(tokens *t) {
    return (lsi_batch){.tokens = t->inputs, .targets = t->targets, .n_batch = B, .n_time = T};
}

static lsi_batch golden_batch(tokens *t) {
    for (int b = 0; b < B; b++)
        for (int k = 0; k < T; k++) {
            t->inputs[b * T + k] = (7 * b + 5 * k + 3) % V;
            t->targets[b * T + k] = (3 * b + 2 * k + 1) % V;
        }
    t->targets[T + 2] = -1;
    return batch_of(t);
}

static lsi_batch other_batch(tokens *t) {
    for (int i = 0; i < B * T; i++) {
        t->inputs[i] = (i * i + 2) % V;
        t->targets[i] = (i * 5 + 7) % V;
    }
    return batch_of(t);
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
    const int64_t dims[] = {batch.n_batch, batch.n_time, f->model->config.vocab_size};
    batch.targets = NULL;
    lsi_tape_reset(f->tape, false);
    lsi_tensor *logits = f->model->class->forward(f->model, f->tape, &batch);
    assert_ok(lsi_tape_status(f->tape));
    assert_int_equal(logits->n_dims, 3);
    assert_memory_equal(logits->dims, dims, sizeof dims);
    return logits->data;
}

static double train_step(fixture *f, lsi_optimizer *optimizer, const lsi_batch *batch, double lr,
                         int64_t n_targets) {
    double n = (double)n_targets, loss = forward_backward(f, batch) / n;
    double factor = ls_clip_factor(lsi_optimizer_global_norm(optimizer) / n, 1.0);
    assert_ok(lsi_optimizer_step(optimizer, lr, factor / n));
    return loss;
}

/* ---- PyTorch ---- */

typedef struct golden_grad {
    double norm;
    double wave; /* sum of gradient[i] sin(i + 1): sees order and sign, which a norm does not */
} golden_grad;

typedef struct golden_row {
    const char *name;
    golden_grad grad[2]; /* tied, untied */
} golden_row;

/* torch 2.13.0 in float64, equal to LlamaForCausalLM of transformers 5.24. */
static const double golden_loss[] = {31.684464301490, 32.864188095011};
/* of the last position */
static const double golden_logits[2][V] = {
    {1.403540065, -1.233734851, 0.959455619, -0.603928727, 0.197260526, 0.226111944, -0.630336937,
     0.981184417, -1.248944150, 1.410942012, -1.453459818, 1.372897120, -1.176076126},
    {0.918232453, -0.554423505, 0.143665366, 0.279258462, -0.678534439, 1.020351342, -1.275763828,
     1.423143405, -1.450009710, 1.354087603, -1.143499921, 0.836079650, -0.457859171}};
static const double golden_training[2][10] = {
    {2.880405846, 2.767152265, 2.422572226, 1.873146281, 1.981817283, 1.737241202, 1.489083707,
     1.338952050, 1.209093374, 1.171356902},
    {2.987653463, 2.695715965, 2.125874454, 1.795029797, 1.517790860, 1.297641122, 1.164247813,
     1.006136634, 0.918537880, 0.812269657}};
static const golden_row golden[] = {
    {"model.embed_tokens.weight", {{19.484317644, 35.420868107}, {12.967040803, 20.109637585}}},
    {"model.layers.0.input_layernorm.weight",
     {{1.664650972, -0.578818263}, {3.146409759, -1.476972317}}},
    {"model.layers.0.self_attn.q_proj.weight",
     {{3.010018104, 13.411300763}, {3.702649526, 15.694760339}}},
    {"model.layers.0.self_attn.k_proj.weight",
     {{2.739388047, 3.315096953}, {5.159281619, 7.900774084}}},
    {"model.layers.0.self_attn.v_proj.weight",
     {{13.433551342, 10.236534082}, {22.278810645, 13.951590392}}},
    {"model.layers.0.self_attn.o_proj.weight",
     {{92.379395574, -9.874823961}, {69.583967092, -8.720578069}}},
    {"model.layers.0.post_attention_layernorm.weight",
     {{4.803232417, -0.959475521}, {3.902134389, -0.147268699}}},
    {"model.layers.0.mlp.gate_proj.weight",
     {{30.955093460, -4.632881288}, {28.552495153, 0.326119509}}},
    {"model.layers.0.mlp.up_proj.weight",
     {{29.235837613, -20.892918182}, {26.287179862, -12.242955277}}},
    {"model.layers.0.mlp.down_proj.weight",
     {{12.952323122, 10.697933684}, {12.210105642, 4.622863352}}},
    {"model.layers.1.input_layernorm.weight",
     {{1.132035723, -0.368288835}, {1.218553776, -0.369417108}}},
    {"model.layers.1.self_attn.q_proj.weight",
     {{3.105333029, 4.164567540}, {3.673154772, 3.179390186}}},
    {"model.layers.1.self_attn.k_proj.weight",
     {{0.946270801, -1.248477055}, {1.054681276, -1.706241218}}},
    {"model.layers.1.self_attn.v_proj.weight",
     {{9.774411895, -3.671382339}, {12.476515070, -4.864768412}}},
    {"model.layers.1.self_attn.o_proj.weight",
     {{22.077262312, -3.589092468}, {24.658260434, -5.999959743}}},
    {"model.layers.1.post_attention_layernorm.weight",
     {{1.914731304, 0.545638445}, {2.413889332, 0.784456967}}},
    {"model.layers.1.mlp.gate_proj.weight",
     {{13.927678577, -8.771087952}, {15.368067654, -12.419511222}}},
    {"model.layers.1.mlp.up_proj.weight",
     {{12.079457611, 6.525837822}, {13.750393223, 1.765150707}}},
    {"model.layers.1.mlp.down_proj.weight",
     {{10.574786778, -10.316048956}, {12.176890697, -4.361241328}}},
    {"model.norm.weight", {{3.501645966, 0.859156923}, {3.708131739, 0.864886476}}},
    {"lm_head.weight", {{0.000000000, 0.000000000}, {14.084340272, 16.372461773}}},
};
enum { N_GOLDEN = sizeof golden / sizeof golden[0] };

static void logits_equal_pytorch(void **state) {
    (void)state;
    for (int untied = 0; untied < 2; untied++) {
        lsi_model_config config = tiny_as(untied);
        fixture f = make(&config);
        tokens t;
        set_golden_weights(f.model);
        const float *last = logits_of(&f, golden_batch(&t)) + (B * T - 1) * V;
        for (int v = 0; v < V; v++)
            assert_near("logit", (double)last[v], golden_logits[untied][v], 5e-6);
        drop(&f);
    }
}

/* Rounding of float32 sums of a few hundred terms, relative to the size of the gradient. */
static void assert_golden_grad(const ls_param *param, const golden_grad *expected) {
    const float *grad = param->grad;
    double wave = 0.0, norm = sqrt(ls_sum_squares(grad, param->count));
    for (int64_t k = 0; k < param->count; k++) wave += (double)grad[k] * sin((double)(k + 1));
    assert_near(param->name, norm, expected->norm, 1e-5 * expected->norm + 1e-6);
    assert_near(param->name, wave, expected->wave, 1e-5 * expected->norm * sqrt(C) + 1e-6);
}

static void loss_and_gradients_equal_pytorch(void **state) {
    (void)state;
    for (int untied = 0; untied < 2; untied++) {
        lsi_model_config config = tiny_as(untied);
        fixture f = make(&config);
        tokens t;
        lsi_batch batch = golden_batch(&t);
        set_golden_weights(f.model);
        double expected = golden_loss[untied];
        assert_near("loss", forward_backward(&f, &batch), expected, 2e-6 * expected);
        assert_int_equal(f.model->n_params, untied ? N_GOLDEN : N_GOLDEN - 1);
        for (int i = 0; i < f.model->n_params; i++) {
            assert_string_equal(f.model->params[i].name, golden[i].name);
            assert_golden_grad(&f.model->params[i], &golden[i].grad[untied]);
        }
        drop(&f);
    }
}

/* AdamW divides by the size of the gradient, so it carries relative errors into the weights. */
static void ten_losses_of_training_equal_pytorch(void **state) {
    (void)state;
    const lsi_optimizer_opts opts = {0.9, 0.95, 1e-8, 0.1};
    for (int untied = 0; untied < 2; untied++) {
        lsi_model_config config = tiny_as(untied);
        fixture f = make(&config);
        tokens t;
        lsi_batch batch = golden_batch(&t);
        set_golden_weights(f.model);
        lsi_optimizer *optimizer;
        assert_ok(lsi_optimizer_create(f.model->params, f.model->n_params, &opts, &optimizer));
        for (int step = 0; step < 10; step++)
            assert_near("loss", train_step(&f, optimizer, &batch, 1e-2, N_TARGETS),
                        golden_training[untied][step], 2e-5);
        lsi_optimizer_destroy(optimizer);
        drop(&f);
    }
}

/* ---- finite differences ---- */

/* Along its own gradient g a parameter's loss changes by |g|: the symmetric difference
 * s(h) = (loss(w + h g/|g|) - loss(w - h g/|g|)) / 2h is |g| + O(h^2), and (4 s(h) - s(2h)) / 3 is
 * |g| + O(h^4). Float32 losses of about 32 are off by a few 1e-6, which h = 0.003 makes 1e-3. */
static double slope_along(fixture *f, const lsi_batch *batch, ls_param *param, double norm) {
    const double h = 0.003;
    float *values = param->data;
    const float *grad = param->grad;
    float kept[20 * C];
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
    lsi_model_config config = tiny_as(true);
    fixture f = make(&config);
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

/* ---- parameters ---- */

static void known_models_have_the_known_number_of_parameters(void **state) {
    (void)state;
    lsi_model llama_2_7b = {.class = &lsi_model_llama,
                            .config = {.n_layer = 32,
                                       .n_head = 32,
                                       .n_kv_head = 32,
                                       .n_embd = 4096,
                                       .n_inner = 11008,
                                       .vocab_size = 32000,
                                       .untied = true}};
    assert_ok(lsi_model_llama.build(&llama_2_7b));
    assert_int_equal(llama_2_7b.n_params, 291);
    assert_int_equal(llama_2_7b.n_elems, 6738415616);
    lsi_model llama_3_2_1b = {.class = &lsi_model_llama,
                              .config = {.n_layer = 16,
                                         .n_head = 32,
                                         .n_kv_head = 8,
                                         .n_embd = 2048,
                                         .n_inner = 8192,
                                         .vocab_size = 128256}};
    assert_ok(lsi_model_llama.build(&llama_3_2_1b));
    assert_int_equal(llama_3_2_1b.n_elems, 1235814400);
}

static void only_norms_are_not_decayed(void **state) {
    (void)state;
    lsi_model_config config = tiny_as(true);
    fixture f = make(&config);
    for (int i = 0; i < f.model->n_params; i++) {
        bool is_norm = strstr(f.model->params[i].name, "norm") != NULL;
        assert_int_equal(f.model->params[i].flags, is_norm ? LS_PARAM_NO_DECAY : 0);
        assert_int_equal(f.model->shapes[i].n_dims, is_norm ? 1 : 2);
    }
    drop(&f);
}

static void fresh_model_knows_nothing(void **state) {
    (void)state;
    lsi_model_config config = tiny_as(true); /* tied, a token expects itself a little */
    config.vocab_size = 64;
    config.seq_len = 16;
    fixture f = make(&config);
    int32_t inputs[64], targets[64];
    for (int i = 0; i < 64; i++) {
        inputs[i] = (i * 29 + 3) % 64;
        targets[i] = (i * 37 + 11) % 64;
    }
    lsi_batch batch = {.tokens = inputs, .targets = targets, .n_batch = 4, .n_time = 16};
    assert_near("loss", loss_of(&f, &batch) / 64, log(64.0), 0.03);
    drop(&f);
}

/* ---- one pass does not know of another ---- */

static void assert_same_gradients(const fixture *a, const fixture *b) {
    for (int i = 0; i < a->model->n_params; i++)
        if (a->model->params[i].grad && b->model->params[i].grad)
            assert_memory_equal(a->model->params[i].grad, b->model->params[i].grad,
                                (size_t)a->model->params[i].count * sizeof(float));
}

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
    assert_true(forward_backward(&f, &batch) == expected);
    assert_same_gradients(&f, &fresh);

    /* another micro-batch, other masks */
    lsi_tape_seed(f.tape, 5, 2, 10);
    assert_true(forward_backward(&f, &batch) != expected);
    drop(&f);
    drop(&fresh);
}

static void checkpoints_change_memory_but_no_bit(void **state) {
    (void)state;
    lsi_model_config config = tiny;
    config.dropout = 0.3;
    config.n_layer = 6;
    fixture f = make(&config), thrifty = make(&config);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    for (int n_units = 6; n_units > 0; n_units--) {
        lsi_tape_checkpoint(thrifty.tape, n_units);
        lsi_tape_seed(f.tape, 5, 2, 9);
        lsi_tape_seed(thrifty.tape, 5, 2, 9);
        assert_true(forward_backward(&f, &batch) == forward_backward(&thrifty, &batch));
        assert_same_gradients(&f, &thrifty);
        if (n_units == 6)
            assert_true(lsi_arena_peak_bytes(thrifty.arena) < lsi_arena_peak_bytes(f.arena));
    }
    drop(&f);
    drop(&thrifty);
}

static void micro_batches_add_up(void **state) {
    (void)state;
    lsi_model_config config = tiny_as(true);
    fixture f = make(&config);
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
    for (int64_t i = 0; i < n; i++) assert_near("sum", (double)f.grads[i], sum[i], 5e-5);
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
    for (int i = 0; i < frozen.model->n_params; i += 3) {
        frozen.model->params[i].flags |= LS_PARAM_FROZEN;
        frozen.model->params[i].grad = NULL;
    }
    assert_true(forward_backward(&f, &batch) == forward_backward(&frozen, &batch));
    assert_same_gradients(&f, &frozen);
    drop(&frozen);
    drop(&f);
}

/* ---- bfloat16 ---- */

/* A bfloat16 number has 8 bits, so gradients are off by about a hundredth of their size. */
static void bfloat16_gives_nearly_the_same(void **state) {
    (void)state;
    fixture f = make(&tiny);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    set_golden_weights(f.model);
    double expected = forward_backward(&f, &batch), dot = 0.0, ours = 0.0, theirs = 0.0;
    int64_t n = data_elems(f.model);
    float *wide = calloc((size_t)n, sizeof *wide);
    memcpy(wide, f.grads, (size_t)n * sizeof *wide);
    assert_ok(lsi_model_narrow(f.model));
    lsi_tape_set_dtype(f.tape, LS_DTYPE_BF16);
    assert_near("loss", forward_backward(&f, &batch), expected, 5e-3 * expected);
    for (int64_t i = 0; i < n; i++) {
        dot += (double)wide[i] * (double)f.grads[i];
        ours += (double)f.grads[i] * (double)f.grads[i];
        theirs += (double)wide[i] * (double)wide[i];
    }
    assert_near("size of the gradient", sqrt(ours), sqrt(theirs), 0.02 * sqrt(theirs));
    assert_near("cosine", dot / sqrt(ours * theirs), 1.0, 1e-3);
    free(wide);
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
    assert_near("loss", loss, golden_loss[0], 2e-6 * golden_loss[0]);
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
    lsi_model_config config = tiny;
    config.n_layer = 12;
    config.seq_len = 32;
    fixture f = make(&config);
    int32_t inputs[32] = {0};
    lsi_batch batch = {.tokens = inputs, .targets = inputs, .n_batch = 1, .n_time = 32};
    loss_of(&f, &batch);
    size_t inference = lsi_arena_peak_bytes(f.arena);
    forward_backward(&f, &batch);
    /* what two blocks work on, against what twelve keep */
    assert_true(inference * 4 < lsi_arena_peak_bytes(f.arena));
    drop(&f);
}

/* ---- events ---- */

typedef struct event_log {
    int n, n_ready[64], last_ready;
    struct {
        ls_event event;
        int index;
    } units[64];
} event_log;

static ls_status write_down(void *context, ls_event event, int index) {
    event_log *log = context;
    if (event == LS_EVENT_GRAD_READY) {
        assert_true(index < log->last_ready); /* the reverse of the order of use */
        log->last_ready = index;
        log->n_ready[index]++;
    } else if (event != LS_EVENT_PROGRESS && log->n < 64) {
        log->units[log->n++] = (typeof(log->units[0])){event, index};
    }
    return LS_OK;
}

static void units_pass_in_order_and_parameters_once(void **state) {
    (void)state;
    lsi_model_config config = tiny_as(true);
    fixture f = make(&config);
    tokens t;
    lsi_batch batch = golden_batch(&t);
    event_log log = {.last_ready = INT_MAX};
    lsi_tape_listen(f.tape, (ls_event_sink){write_down, &log});
    forward_backward(&f, &batch);
    int at = 0, n_units = f.model->class->n_units(&config);
    assert_int_equal(n_units, config.n_layer + 2);
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

/* Everything that a first pass allocates. */
static ls_status whole_pass(size_t arena_bytes) {
    lsi_model *model = NULL;
    lsi_arena *arena = NULL;
    lsi_tape *tape = NULL;
    static float grads[1 << 13];
    tokens t;
    lsi_batch batch = golden_batch(&t);
    ls_status status = lsi_model_create(&lsi_model_llama, &tiny, &model);
    if (status == LS_OK) {
        lsi_model_init(model, 1);
        assert_true(data_elems(model) <= (int64_t)(sizeof grads / sizeof grads[0]));
        for (int i = 0; i < model->n_params; i++)
            model->params[i].grad = grads + ((float *)model->params[i].data - model->data);
        status = lsi_arena_create(arena_bytes, &arena);
    }
    if (status == LS_OK) status = lsi_tape_create(arena, &tape);
    if (status == LS_OK) {
        lsi_tensor *loss = model->class->forward(model, tape, &batch);
        status = lsi_tape_status(tape);
        assert_true(status == LS_OK ? loss != NULL : loss == NULL);
        if (status == LS_OK) status = lsi_tape_backward(tape, loss);
    }
    lsi_tape_destroy(tape);
    if (arena) assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
    lsi_model_destroy(model);
    return status;
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        lsi_mem_fail_at(n);
        ls_status status = whole_pass(ARENA_BYTES);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks_before);
        if (!failed) break;
        assert_true(n < 400);
    }
}

static void arenas_too_small_fail_cleanly(void **state) {
    (void)state;
    bool passed = false;
    for (size_t bytes = 4096; bytes <= ARENA_BYTES; bytes += bytes < 65536 ? 4096 : bytes) {
        ls_status status = whole_pass(bytes);
        assert_true(status == LS_OK || status == LS_ERR_MEMORY);
        assert_true(status == LS_OK || !passed);
        passed |= status == LS_OK;
        assert_int_equal(lsi_mem_n_blocks(), n_blocks_before);
    }
    assert_true(passed);
}

/* ---- the 260 K stories model ---- */

enum { N_STORY = 201, N_FIRST = 8 };

typedef struct story {
    int32_t tokens[N_STORY];
    double loss, first_logits[N_FIRST];
} story;

/* The folder's golden.json: a text, what it costs, and logits of the last position that has a next
 * token, which a float64 program computed. */
static story read_story(const char *folder) {
    char path[PATH_MAX + 16];
    story found = {0};
    snprintf(path, sizeof path, "%s/golden.json", folder);
    json_t *json = json_load_file(path, 0, NULL);
    assert_non_null(json);
    const json_t *ids = json_object_get(json, "tokens");
    const json_t *logits = json_object_get(json, "last_logits_first8");
    assert_int_equal(json_array_size(ids), N_STORY);
    for (size_t i = 0; i < N_STORY; i++)
        found.tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    for (size_t i = 0; i < N_FIRST; i++)
        found.first_logits[i] = json_number_value(json_array_get(logits, i));
    found.loss = json_number_value(json_object_get(json, "mean_next_token_loss"));
    json_decref(json);
    return found;
}

static fixture load_stories(const char *folder) {
    lsi_model *model = NULL;
    char *tokenizer = NULL;
    assert_ok(lsi_model_load(folder, &model, &tokenizer));
    lsi_free(tokenizer);
    return make_from(model);
}

/* Predicting each token of the story from those before it. */
static lsi_batch story_batch(const story *s) {
    return (lsi_batch){
        .tokens = s->tokens, .targets = s->tokens + 1, .n_batch = 1, .n_time = N_STORY - 1};
}

static void stories_have_the_golden_loss_and_logits(void **state) {
    (void)state;
    char folder[PATH_MAX];
    if (!find_data("stories260K-hf", folder)) skip();
    story s = read_story(folder);
    fixture f = load_stories(folder);
    assert_int_equal(f.model->n_elems, 260032);
    lsi_batch batch = story_batch(&s);
    assert_near("mean loss", loss_of(&f, &batch) / (N_STORY - 1), 0.473418, 1e-6);
    assert_near("mean loss", forward_backward(&f, &batch) / (N_STORY - 1), s.loss, 1e-6);
    const float *last = logits_of(&f, batch) + (N_STORY - 2) * f.model->config.vocab_size;
    for (int i = 0; i < N_FIRST; i++)
        assert_near("logit", (double)last[i], s.first_logits[i], 5e-5);
    drop(&f);
}

/* A text that the model has not seen: the story's tokens in another order. */
static lsi_batch new_text(story *s) {
    for (int i = 0; i < N_STORY; i++) s->tokens[i] = (int32_t)((i * 37 + i * i * 11 + 5) % 512);
    return story_batch(s);
}

static void fine_tuned_stories_learn_and_are_saved_to_the_bit(void **state) {
    (void)state;
    char folder[PATH_MAX];
    if (!find_data("stories260K-hf", folder)) skip();
    story s;
    fixture f = load_stories(folder);
    lsi_batch batch = new_text(&s);
    const lsi_optimizer_opts opts = {0.9, 0.95, 1e-8, 0.1};
    lsi_optimizer *optimizer;
    assert_ok(lsi_optimizer_create(f.model->params, f.model->n_params, &opts, &optimizer));
    double before = loss_of(&f, &batch);
    for (int step = 0; step < 20; step++) train_step(&f, optimizer, &batch, 1e-3, batch.n_time);
    double after = loss_of(&f, &batch);
    assert_true(after < 0.8 * before);
    lsi_optimizer_destroy(optimizer);

    assert_ok(lsi_model_save(f.model, NULL, path_of("model")));
    fixture again = load_stories(path_of("model"));
    char first[LSI_SHA256_TEXT_BYTES], second[LSI_SHA256_TEXT_BYTES];
    lsi_model_sha256(f.model, first);
    lsi_model_sha256(again.model, second);
    assert_string_equal(first, second);
    assert_memory_equal(&f.model->config, &again.model->config, sizeof f.model->config);
    assert_true(loss_of(&again, &batch) == after);
    drop(&again);
    drop(&f);
}

#define LEAK_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        LEAK_TEST(logits_equal_pytorch),
        LEAK_TEST(loss_and_gradients_equal_pytorch),
        LEAK_TEST(ten_losses_of_training_equal_pytorch),
        LEAK_TEST(gradients_equal_finite_differences),
        LEAK_TEST(known_models_have_the_known_number_of_parameters),
        LEAK_TEST(only_norms_are_not_decayed),
        LEAK_TEST(fresh_model_knows_nothing),
        LEAK_TEST(gradients_do_not_depend_on_earlier_passes),
        LEAK_TEST(checkpoints_change_memory_but_no_bit),
        LEAK_TEST(micro_batches_add_up),
        LEAK_TEST(frozen_parameters_leave_the_others_alone),
        LEAK_TEST(bfloat16_gives_nearly_the_same),
        LEAK_TEST(logits_give_the_loss),
        LEAK_TEST(later_tokens_do_not_change_earlier_logits),
        LEAK_TEST(inference_keeps_little_memory),
        LEAK_TEST(units_pass_in_order_and_parameters_once),
        LEAK_TEST(bad_batches_are_refused),
        LEAK_TEST(failed_allocations_leak_nothing),
        LEAK_TEST(arenas_too_small_fail_cleanly),
        LEAK_TEST(stories_have_the_golden_loss_and_logits),
        LEAK_TEST(fine_tuned_stories_learn_and_are_saved_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
