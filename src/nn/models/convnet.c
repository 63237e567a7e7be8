/* convnet: a small residual network for images, as He, Zhang, Ren, Sun: "Deep residual learning for
 * image recognition", CVPR 2016, section 4.2, have it for small pictures, with projections (1 x 1
 * filters) where a shortcut changes its size.
 *
 * B images of H x W pixels, C channels at first (n_embd), L blocks in a stage (n_layer).
 *
 *     unit 0          x = relu(bn1(conv1(images)))                                    (B,H,W,C)
 *     unit 1 … 3 L    x = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))
 *                     stage 1: (B,H,W,C); stage 2: (B,H/2,W/2,2C); stage 3: (B,H/4,W/4,4C)
 *     unit 3 L + 1    logits = fc(mean of x over its pixels)                          (B,classes)
 *                     loss = sum over targets of -log softmax(logits)[target]               (1)
 *
 * The first block of stages 2 and 3 takes every other pixel, in conv1 and in the shortcut. Filters
 * are 3 x 3, stored (out,3,3,in): what PyTorch calls channels_last. Names are torchvision's.
 *
 * [Note: running statistics] Training normalises with the statistics of the micro-batch at hand,
 * inference with running ones: frozen parameters, which are saved with the rest. forward leaves a
 * batch's statistics in lsi_batch.stats, norm after norm as parameters come, each as its running
 * mean and variance lie; so folding them in goes through frozen parameters and statistics side by
 * side. Parameters are in order of use, and a pass walks along them with a cursor. */
#include <stdio.h>

#include "nn/models/describe.h"
#include "nn/models/images.h"
#include "nn/units.h"
#include "tensor/op.h"

enum { N_STAGES = 3, KERNEL = 3 };

/* Of a norm: weight, bias, running mean, running variance. */
enum { NORM_PARAMS = 4 };

#define MOMENTUM 0.1f /* share of the new statistics, PyTorch's */

/* A block as its place in the network decides it. */
typedef struct block_shape {
    int64_t n_in, n_out, stride;
    bool has_projection;
} block_shape;

static block_shape shape_of(const lsi_model_config *config, int stage, int64_t block) {
    int64_t n_out = config->n_embd << stage;
    bool is_first = block == 0 && stage > 0;
    return (block_shape){is_first ? n_out / 2 : n_out, n_out, is_first ? 2 : 1, is_first};
}

static ls_status check(const lsi_model_config *config) {
    return lsi_image_check("convnet", config);
}

/* ---- parameters ---- */

static ls_status add_conv(lsi_model *model, const char *name, int64_t n_in, int64_t n_out,
                          int64_t kernel) {
    char full[96];
    const int64_t dims[] = {n_out, kernel, kernel, n_in};
    snprintf(full, sizeof full, "%s.weight", name);
    return lsi_image_add_weight(model, full, 4, dims, 2.0);
}

static ls_status add_norm(lsi_model *model, const char *name, int64_t n) {
    static const struct {
        const char *name;
        lsi_init_kind init;
        uint32_t flags;
    } rows[NORM_PARAMS] = {{"weight", LSI_INIT_ONE, 0},
                           {"bias", LSI_INIT_ZERO, 0},
                           {"running_mean", LSI_INIT_ZERO, LS_PARAM_FROZEN},
                           {"running_var", LSI_INIT_ONE, LS_PARAM_FROZEN}};
    for (int i = 0; i < NORM_PARAMS; i++) {
        char full[96];
        snprintf(full, sizeof full, "%s.%s", name, rows[i].name);
        LSI_TRY(lsi_image_add_vector(model, full, n, rows[i].init, rows[i].flags));
    }
    model->n_stats += 2 * n;
    return LS_OK;
}

/* A convolution and its norm. */
static ls_status add_pair(lsi_model *model, const char *block, const char *conv, const char *norm,
                          int64_t n_in, int64_t n_out, int64_t kernel) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", block, conv);
    LSI_TRY(add_conv(model, name, n_in, n_out, kernel));
    snprintf(name, sizeof name, "%s%s", block, norm);
    return add_norm(model, name, n_out);
}

static ls_status add_block(lsi_model *model, int stage, int64_t block) {
    char name[48];
    block_shape s = shape_of(&model->config, stage, block);
    snprintf(name, sizeof name, "layer%d.%lld.", stage + 1, (long long)block);
    LSI_TRY(add_pair(model, name, "conv1", "bn1", s.n_in, s.n_out, KERNEL));
    LSI_TRY(add_pair(model, name, "conv2", "bn2", s.n_out, s.n_out, KERNEL));
    if (!s.has_projection) return LS_OK;
    return add_pair(model, name, "downsample.0", "downsample.1", s.n_in, s.n_out, 1);
}

static ls_status build(lsi_model *model) {
    const lsi_model_config *config = &model->config;
    const int64_t last[] = {config->n_classes, config->n_embd << (N_STAGES - 1)};
    model->n_stats = 0;
    LSI_TRY(add_pair(model, "", "conv1", "bn1", config->n_channels, config->n_embd, KERNEL));
    for (int stage = 0; stage < N_STAGES; stage++)
        for (int64_t block = 0; block < config->n_layer; block++)
            LSI_TRY(add_block(model, stage, block));
    LSI_TRY(lsi_image_add_weight(model, "fc.weight", 2, last, 1.0));
    return lsi_image_add_vector(model, "fc.bias", config->n_classes, LSI_INIT_ZERO, 0);
}

/* ---- forward ---- */

/* What one forward pass carries around. */
typedef struct pass {
    lsi_model *model;
    lsi_tape *tape;
    int next;     /* parameter */
    float *stats; /* where the next norm leaves its own; NULL: nobody wants them */
    float epsilon;
} pass;

static lsi_tensor *leaf(pass *p) {
    return lsi_model_leaf(p->model, p->tape, p->next++);
}

/* `next` was made from `used`, which has no other use. */
static lsi_tensor *replace(const pass *p, lsi_tensor *used, lsi_tensor *next) {
    lsi_tape_drop(p->tape, used);
    return next;
}

static lsi_tensor *norm(pass *p, lsi_tensor *x) {
    lsi_tensor *weight = leaf(p), *bias = leaf(p);
    const float *mean = lsi_model_values(p->model, p->next++);
    const float *variance = lsi_model_values(p->model, p->next++);
    if (!lsi_tape_is_recording(p->tape))
        return lsi_op_batch_norm_fixed(p->tape, x, weight, bias, p->epsilon, mean, variance);
    lsi_tensor *y = lsi_op_batch_norm(p->tape, x, weight, bias, p->epsilon, p->stats);
    if (p->stats) p->stats += 2 * p->model->params[p->next - 1].count;
    return y;
}

/* The norm of the filtered x, which is kept. */
static lsi_tensor *filter(pass *p, lsi_tensor *x, int64_t stride) {
    lsi_tensor *seen = lsi_op_conv2d(p->tape, x, leaf(p), stride);
    return replace(p, seen, norm(p, seen));
}

static lsi_tensor *bend(pass *p, lsi_tensor *x) {
    return replace(p, x, lsi_op_relu(p->tape, x));
}

static lsi_tensor *residual_block(pass *p, lsi_tensor *x, block_shape s) {
    lsi_tensor *inner = bend(p, filter(p, x, s.stride));
    lsi_tensor *branch = replace(p, inner, filter(p, inner, 1));
    lsi_tensor *shortcut = s.has_projection ? filter(p, x, s.stride) : x;
    lsi_tensor *sum = lsi_op_add(p->tape, branch, shortcut);
    lsi_tape_drop(p->tape, branch);
    if (shortcut != x) lsi_tape_drop(p->tape, shortcut);
    return replace(p, x, bend(p, sum));
}

static lsi_tensor *head(pass *p, lsi_tensor *x, const lsi_batch *batch) {
    lsi_tensor *mean = replace(p, x, lsi_op_average_pool(p->tape, x));
    lsi_tensor *kept = lsi_op_dropout(p->tape, mean, (float)p->model->config.dropout);
    if (kept != mean) lsi_tape_drop(p->tape, mean);
    lsi_tensor *weight = leaf(p), *bias = leaf(p);
    lsi_tensor *logits = lsi_op_logits(p->tape, kept, weight, bias);
    return lsi_image_loss(p->tape, replace(p, kept, logits), batch);
}

static lsi_tensor *stem(pass *p, const lsi_batch *batch) {
    const lsi_model_config *config = &p->model->config;
    const int64_t dims[] = {batch->n_batch, config->height, config->width, config->n_channels};
    lsi_tensor *images = lsi_image_input(p->tape, p->model, batch, 4, dims);
    return replace(p, images, bend(p, filter(p, images, 1)));
}

static lsi_tensor *forward(lsi_model *model, lsi_tape *tape, const lsi_batch *batch) {
    const lsi_model_config *config = &model->config;
    pass p = {model, tape, 0, batch->stats, (float)config->norm_epsilon};
    int unit = 0;
    lsi_tape_unit_begin(tape, unit);
    lsi_tensor *x = stem(&p, batch);
    lsi_tape_unit_end(tape, unit++);
    for (int stage = 0; stage < N_STAGES; stage++) {
        for (int64_t block = 0; block < config->n_layer; block++) {
            lsi_tape_unit_begin(tape, unit);
            x = residual_block(&p, x, shape_of(config, stage, block));
            lsi_tape_unit_end(tape, unit++);
        }
    }
    lsi_tape_unit_begin(tape, unit);
    lsi_tensor *result = head(&p, x, batch);
    lsi_tape_unit_end(tape, unit);
    return result;
}

/* [Note: running statistics] */
static void fold_stats(lsi_model *model, const float *stats) {
    for (int i = 0; i < model->n_params; i++) {
        if (!model->shapes[i].is_statistic) continue;
        float *running = lsi_model_values(model, i);
        int64_t n = model->params[i].count;
        for (int64_t c = 0; c < n; c++)
            running[c] = (1.0f - MOMENTUM) * running[c] + MOMENTUM * stats[c];
        stats += n;
    }
}

/* ---- description ---- */

static int n_units(const lsi_model_config *config) {
    return (int)(N_STAGES * config->n_layer) + 2;
}

/* Of n convolutions with their norms, without the running statistics; what comes after them. */
static int use_pairs(lsi_use_list *list, int unit, int first, int n) {
    for (int i = 0; i < n; i++, first += 1 + NORM_PARAMS) lsi_use(list, unit, 1, first, 3);
    return first;
}

static void uses(const lsi_model *model, lsi_use_list *list) {
    int unit = 0, next = use_pairs(list, unit++, 0, 1);
    for (int stage = 0; stage < N_STAGES; stage++)
        for (int64_t block = 0; block < model->config.n_layer; block++) {
            block_shape s = shape_of(&model->config, stage, block);
            next = use_pairs(list, unit++, next, s.has_projection ? 3 : 2);
        }
    lsi_use(list, unit, 1, next, 2);
}

/* After a convolution of `places` results and `channels`: its output and the statistics of its
 * norm, and the output of relu where there is one. */
static int64_t pair_bytes(int64_t places, int64_t channels, bool has_relu, size_t size) {
    return (has_relu ? 2 : 1) * lsi_describe_bytes(places * channels, size) +
           lsi_describe_bytes(2 * channels, sizeof(float));
}

static int64_t block_bytes(block_shape s, int64_t places, size_t size) {
    return pair_bytes(places, s.n_out, true, size) + pair_bytes(places, s.n_out, true, size) +
           (s.has_projection ? pair_bytes(places, s.n_out, false, size) : 0);
}

/* The pixels need no gradient, which saves a third of the stem. */
static void describe(const lsi_model *model, int64_t n_batch, int64_t n_time, ls_dtype dtype,
                     lsi_unit_cost *units) {
    const lsi_model_config *config = &model->config;
    int64_t height = config->height, width = config->width, places = n_batch * height * width;
    size_t size = ls_dtype_bytes(dtype);
    int first = 1 + NORM_PARAMS, unit = 0;
    (void)n_time;
    units[unit] = lsi_describe_params(model, 0, first, places);
    units[unit].flops *= 2.0 / 3.0;
    units[unit++].activation_bytes = lsi_describe_bytes(places * config->n_channels, size) +
                                     pair_bytes(places, config->n_embd, true, size);
    for (int stage = 0; stage < N_STAGES; stage++) {
        for (int64_t block = 0; block < config->n_layer; block++) {
            block_shape s = shape_of(config, stage, block);
            int n_params = (s.has_projection ? 3 : 2) * (1 + NORM_PARAMS);
            height = (height - 1) / s.stride + 1, width = (width - 1) / s.stride + 1;
            places = n_batch * height * width;
            units[unit] = lsi_describe_params(model, first, n_params, places);
            units[unit++].activation_bytes = block_bytes(s, places, size);
            first += n_params;
        }
    }
    units[unit] = lsi_describe_params(model, first, 2, n_batch);
    units[unit].activation_bytes =
        lsi_describe_bytes(n_batch * (config->n_embd << (N_STAGES - 1)), size) +
        lsi_describe_bytes(n_batch * config->n_classes, sizeof(float)) +
        lsi_describe_bytes(1, sizeof(float));
}

static json_t *config_to_json(const lsi_model_config *config) {
    return lsi_image_config_to_json(&lsi_model_convnet, "LockstepConvnet", config);
}

static ls_status config_from_json(const json_t *json, lsi_model_config *config) {
    return lsi_image_config_from_json(&lsi_model_convnet, json, config);
}

const lsi_model_class lsi_model_convnet = {
    .name = "convnet",
    .help = "a residual network of three stages of n_layer blocks, with batch norm; for images",
    .check = check,
    .takes_images = true,
    .build = build,
    .forward = forward,
    .fold_stats = fold_stats,
    .n_units = n_units,
    .describe = describe,
    .uses = uses,
    .usual = {.n_layer = 1, .n_embd = 16},
    .model_type = "lockstep_convnet",
    .file_prefix = "",
    .config_to_json = config_to_json,
    .config_from_json = config_from_json,
};
