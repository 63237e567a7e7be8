/* mlp: layers in which everything is connected, for images (or any H x W x channels numbers).
 *
 * B images, C width of a hidden layer (n_embd), L hidden layers.
 *
 *     unit 0 … L-1   x = dropout(relu(x w^T + b)), at first x (B, H W channels)             (B,C)
 *     unit L         logits = x w^T + b                                               (B,classes)
 *                    loss = sum over targets of -log softmax(logits)[target]                  (1)
 *
 * Weights are (out,in), as PyTorch's Linear has them, under names of its Sequential: "layers.0" …,
 * "head". A leaf is made inside the unit that uses it. */
#include <stdio.h>

#include "nn/models/describe.h"
#include "nn/models/images.h"
#include "nn/units.h"
#include "tensor/op.h"

/* Of a layer: weight, bias. */
enum { LAYER_PARAMS = 2 };

static ls_status check(const lsi_model_config *config) {
    return lsi_image_check("mlp", config);
}

static int64_t pixels(const lsi_model_config *config) {
    return config->height * config->width * config->n_channels;
}

/* ---- parameters ---- */

static ls_status add_layer(lsi_model *model, const char *name, int64_t n_in, int64_t n_out,
                           double gain) {
    char full[64];
    const int64_t dims[] = {n_out, n_in};
    snprintf(full, sizeof full, "%s.weight", name);
    LSI_TRY(lsi_image_add_weight(model, full, 2, dims, gain));
    snprintf(full, sizeof full, "%s.bias", name);
    return lsi_image_add_vector(model, full, n_out, LSI_INIT_ZERO, 0);
}

static ls_status build(lsi_model *model) {
    const lsi_model_config *config = &model->config;
    int64_t n_in = pixels(config);
    for (int64_t layer = 0; layer < config->n_layer; layer++, n_in = config->n_embd) {
        char name[48];
        snprintf(name, sizeof name, "layers.%lld", (long long)layer);
        LSI_TRY(add_layer(model, name, n_in, config->n_embd, 2.0));
    }
    return add_layer(model, "head", n_in, config->n_classes, 1.0);
}

/* ---- forward ---- */

/* x, which has no other use, through layer number `layer`; behind the last one are logits. */
static lsi_tensor *linear(lsi_model *model, lsi_tape *tape, lsi_tensor *x, int layer) {
    lsi_tensor *weight = lsi_model_leaf(model, tape, layer * LAYER_PARAMS);
    lsi_tensor *bias = lsi_model_leaf(model, tape, layer * LAYER_PARAMS + 1);
    lsi_tensor *y = layer == model->config.n_layer
                        ? lsi_op_logits(tape, x, weight, bias)
                        : lsi_op_linear_transposed(tape, x, weight, bias);
    lsi_tape_drop(tape, x);
    return y;
}

static lsi_tensor *hidden(lsi_model *model, lsi_tape *tape, lsi_tensor *x, int layer) {
    lsi_tensor *sum = linear(model, tape, x, layer);
    lsi_tensor *bent = lsi_op_relu(tape, sum);
    lsi_tape_drop(tape, sum);
    lsi_tensor *thinned = lsi_op_dropout(tape, bent, (float)model->config.dropout);
    if (thinned != bent) lsi_tape_drop(tape, bent);
    return thinned;
}

static lsi_tensor *forward(lsi_model *model, lsi_tape *tape, const lsi_batch *batch) {
    int L = (int)model->config.n_layer;
    const int64_t dims[] = {batch->n_batch, pixels(&model->config)};
    lsi_tensor *x = NULL;
    for (int layer = 0; layer < L; layer++) {
        lsi_tape_unit_begin(tape, layer);
        if (layer == 0) x = lsi_image_input(tape, model, batch, 2, dims);
        x = hidden(model, tape, x, layer);
        lsi_tape_unit_end(tape, layer);
    }
    lsi_tape_unit_begin(tape, L);
    lsi_tensor *result = lsi_image_loss(tape, linear(model, tape, x, L), batch);
    lsi_tape_unit_end(tape, L);
    return result;
}

/* ---- description ---- */

static int n_units(const lsi_model_config *config) {
    return (int)config->n_layer + 1;
}

static void uses(const lsi_model *model, lsi_use_list *list) {
    lsi_use(list, 0, n_units(&model->config), 0, LAYER_PARAMS);
}

/* The pixels need no gradient, which saves a third of the first layer. */
static void describe(const lsi_model *model, int64_t n_batch, int64_t n_time, ls_dtype dtype,
                     lsi_unit_cost *units) {
    const lsi_model_config *config = &model->config;
    int L = (int)config->n_layer;
    size_t size = ls_dtype_bytes(dtype);
    (void)n_time;
    for (int layer = 0; layer <= L; layer++)
        units[layer] = lsi_describe_params(model, layer * LAYER_PARAMS, LAYER_PARAMS, n_batch);
    units[0].flops *= 2.0 / 3.0;
    units[0].activation_bytes = lsi_describe_bytes(n_batch * pixels(config), size);
    for (int layer = 0; layer < L; layer++) {
        int64_t kept = lsi_describe_bytes(n_batch * config->n_embd, size);
        units[layer].activation_bytes += config->dropout > 0.0 ? 2 * kept : kept;
    }
    units[L].activation_bytes = lsi_describe_bytes(n_batch * config->n_classes, sizeof(float)) +
                                lsi_describe_bytes(1, sizeof(float));
}

static json_t *config_to_json(const lsi_model_config *config) {
    return lsi_image_config_to_json(&lsi_model_mlp, "LockstepMlp", config);
}

static ls_status config_from_json(const json_t *json, lsi_model_config *config) {
    return lsi_image_config_from_json(&lsi_model_mlp, json, config);
}

const lsi_model_class lsi_model_mlp = {
    .name = "mlp",
    .help = "layers of width n_embd, fully connected, with relu; for images",
    .check = check,
    .takes_images = true,
    .build = build,
    .forward = forward,
    .n_units = n_units,
    .describe = describe,
    .uses = uses,
    .usual = {.n_layer = 2, .n_embd = 256},
    .model_type = "lockstep_mlp",
    .file_prefix = "",
    .config_to_json = config_to_json,
    .config_from_json = config_from_json,
};
