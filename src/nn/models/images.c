/* Configuration and ends of the classes for images (see images.h). */
#include "nn/models/images.h"

#include <math.h>

#include "nn/models/config_json.h"
#include "tensor/op.h"

/* ---- check ---- */

enum { MAX_SIDE = 1 << 15, MAX_CHANNELS = 1 << 15, MAX_WIDTH = 1 << 24 };

static void check_numbers(const lsi_model_config *config, lsi_complaints *list) {
    if (!(config->dropout >= 0.0 && config->dropout < 1.0))
        lsi_complain(list, "dropout is %g, expected 0 to less than 1", config->dropout);
    if (!(config->norm_epsilon > 0.0 && config->norm_epsilon < 1.0))
        lsi_complain(list, "norm_epsilon is %g, expected more than 0 and less than 1",
                     config->norm_epsilon);
}

/* Too large models are found when their parameters are counted. */
ls_status lsi_image_check(const char *name, const lsi_model_config *config) {
    const struct {
        const char *name;
        int64_t found, max;
    } sizes[] = {
        {"n_layer", config->n_layer, LSI_IMAGE_MAX_LAYERS},
        {"n_embd", config->n_embd, MAX_WIDTH},
        {"height", config->height, MAX_SIDE},
        {"width", config->width, MAX_SIDE},
        {"n_channels", config->n_channels, MAX_CHANNELS},
        {"n_classes", config->n_classes, MAX_WIDTH},
    };
    lsi_complaints list = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].found < 1 || sizes[i].found > sizes[i].max)
            lsi_complain(&list, "%s is %lld, expected 1 to %lld", sizes[i].name,
                         (long long)sizes[i].found, (long long)sizes[i].max);
    check_numbers(config, &list);
    return list.used ? lsi_fail(LS_ERR_ARGUMENT, "%s: %s", name, list.text) : LS_OK;
}

/* ---- JSON ---- */

json_t *lsi_image_config_to_json(const lsi_model_class *class, const char *architecture,
                                 const lsi_model_config *config) {
    return json_pack("{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "model_type",
                     class->model_type, "architectures", architecture, "n_layer",
                     (json_int_t)config->n_layer, "n_embd", (json_int_t)config->n_embd, "height",
                     (json_int_t)config->height, "width", (json_int_t)config->width, "n_channels",
                     (json_int_t)config->n_channels, "n_classes", (json_int_t)config->n_classes,
                     "dropout", config->dropout, "norm_epsilon", config->norm_epsilon);
}

ls_status lsi_image_config_from_json(const lsi_model_class *class, const json_t *json,
                                     lsi_model_config *config) {
    char what[64];
    const char *const model_types[] = {class->model_type, NULL};
    snprintf(what, sizeof what, "%s configuration", class->name);
    lsi_config_reader r = {.json = json, .what = what};
    lsi_model_config found = {0};
    LSI_TRY(lsi_config_begin(&r));
    lsi_config_word(&r, "model_type", model_types, true);
    found.n_layer = lsi_config_size(&r, "n_layer");
    found.n_embd = lsi_config_size(&r, "n_embd");
    found.height = lsi_config_size(&r, "height");
    found.width = lsi_config_size(&r, "width");
    found.n_channels = lsi_config_size(&r, "n_channels");
    found.n_classes = lsi_config_size(&r, "n_classes");
    found.dropout = lsi_config_number(&r, "dropout", 0.0, 0.0, 1.0);
    found.norm_epsilon = lsi_config_number(&r, "norm_epsilon", 1e-5, 0.0, 1.0);
    LSI_TRY(lsi_config_finish(&r));
    LSI_TRY(lsi_context(class->check(&found), "configuration"));
    *config = found;
    return LS_OK;
}

/* ---- parameters ---- */

ls_status lsi_image_add_weight(lsi_model *model, const char *name, int n_dims, const int64_t *dims,
                               double gain) {
    double fan_in = 1.0;
    for (int i = 1; i < n_dims; i++) fan_in *= (double)dims[i];
    return lsi_model_add_param(model, name, n_dims, dims, 0, LSI_INIT_NORMAL, sqrt(gain / fan_in));
}

ls_status lsi_image_add_vector(lsi_model *model, const char *name, int64_t n, lsi_init_kind init,
                               uint32_t flags) {
    return lsi_model_add_param(model, name, 1, &n, LS_PARAM_NO_DECAY | flags, init, 0.0);
}

/* ---- the ends of a pass ---- */

lsi_tensor *lsi_image_input(lsi_tape *tape, const lsi_model *model, const lsi_batch *batch,
                            int n_dims, const int64_t *dims) {
    if (batch->n_batch < 1 || !batch->images)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "%s: a batch of %lld images, expected at least 1 (this model takes "
                             "images, not tokens)",
                             model->class->name, batch->images ? (long long)batch->n_batch : 0LL);
    return lsi_tape_input(tape, batch->images, n_dims, dims, false);
}

lsi_tensor *lsi_image_loss(lsi_tape *tape, lsi_tensor *logits, const lsi_batch *batch) {
    if (!batch->targets) return logits;
    lsi_tensor *loss = lsi_op_cross_entropy(tape, logits, batch->targets);
    lsi_tape_drop(tape, logits);
    return loss;
}
