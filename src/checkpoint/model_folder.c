/* Model folders: the configuration and the weights of one model as transformers reads and writes
 * them, and the hash that tells whether two models are the same.
 *
 * Saving writes config.json first and the weights last, each whole or not at all, so a folder that
 * has weights has the configuration that belongs to them. Loading trusts neither file: the
 * configuration is checked by the model's own class, and then every parameter of the model needs
 * exactly one tensor of the same shape, and every tensor needs a parameter (or a row in the table
 * of those that may be passed over). Weights are taken as they are, finite or not.
 *
 * A name in the file is "transformer." and the parameter's name, as GPT2LMHeadModel has it; files
 * of the bare GPT2Model lack the prefix, and both are read. */
#include "checkpoint/model_folder.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

static const char PREFIX[] = "transformer.";
static const char CONFIG_FILE[] = "config.json";
static const char WEIGHTS_FILE[] = "model.safetensors";

enum { CONFIG_CAP_BYTES = 1 << 20 };

/* "folder/name" from lsi_alloc. */
static ls_status join(const char *folder, const char *name, char **path) {
    size_t bytes = strlen(folder) + strlen(name) + 2;
    *path = lsi_alloc(LSI_MEM_OTHER, bytes);
    LSI_TRY(lsi_check_alloc(*path));
    snprintf(*path, bytes, "%s/%s", folder, name);
    return LS_OK;
}

/* ---- saving ---- */

/* Takes json over. */
static ls_status save_config(json_t *json, const char *tokenizer, const char *path) {
    ls_status status = LS_OK;
    if (!json)
        status = lsi_fail(LS_ERR_MEMORY, "%s: making the configuration", path);
    else if (tokenizer &&
             json_object_set_new(json, "lockstep", json_pack("{s:s}", "tokenizer", tokenizer)) != 0)
        status = lsi_fail(LS_ERR_ARGUMENT,
                          "%s: the tokenizer's name is not UTF-8, or memory ran out", path);
    if (status == LS_OK) status = lsi_file_replace_json(path, json);
    json_decref(json);
    return status;
}

/* Tensors of all parameters with their names in files; names holds the texts. */
static void describe(const lsi_model *model, lsi_st_tensor *tensors, char *names) {
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *param = &model->params[i];
        const lsi_param_shape *shape = &model->shapes[i];
        lsi_st_tensor *t = &tensors[i];
        *t = (lsi_st_tensor){.name = names,
                             .dtype = param->dtype,
                             .n_dims = shape->n_dims,
                             .data = param->data,
                             .bytes = (size_t)param->count * ls_dtype_bytes(param->dtype)};
        memcpy(t->dims, shape->dims, (size_t)shape->n_dims * sizeof *t->dims);
        size_t name_bytes = sizeof PREFIX + strlen(param->name);
        snprintf(names, name_bytes, "%s%s", PREFIX, param->name);
        names += name_bytes;
    }
}

static ls_status save_weights(const lsi_model *model, const char *path) {
    /* transformers refuses files that do not say which framework's layout they have. */
    static const char *const metadata[] = {"format", "pt", NULL};
    size_t name_bytes = 0;
    for (int i = 0; i < model->n_params; i++)
        name_bytes += sizeof PREFIX + strlen(model->params[i].name);
    lsi_st_tensor *tensors = lsi_calloc(LSI_MEM_OTHER, (size_t)model->n_params, sizeof *tensors);
    LSI_TRY(lsi_check_alloc(tensors));
    char *names = lsi_alloc(LSI_MEM_OTHER, name_bytes);
    ls_status status = lsi_check_alloc(names);
    if (status == LS_OK) {
        describe(model, tensors, names);
        status = lsi_st_write(path, tensors, model->n_params, metadata);
    }
    lsi_free(names);
    lsi_free(tensors);
    return status;
}

static ls_status save_files(const lsi_model *model, const char *tokenizer, const char *config_path,
                            const char *weights_path) {
    json_t *json = model->class->config_to_json(&model->config);
    LSI_TRY(save_config(json, tokenizer, config_path));
    return save_weights(model, weights_path);
}

ls_status lsi_model_save(const lsi_model *model, const char *tokenizer, const char *folder) {
    LSI_TRY(lsi_folder_make(folder));
    char *config_path = NULL, *weights_path = NULL;
    ls_status status = join(folder, CONFIG_FILE, &config_path);
    if (status == LS_OK) status = join(folder, WEIGHTS_FILE, &weights_path);
    if (status == LS_OK) status = save_files(model, tokenizer, config_path, weights_path);
    lsi_free(config_path);
    lsi_free(weights_path);
    return lsi_context(status, "saving the model");
}

/* ---- loading the configuration ---- */

static ls_status load_config(const json_t *json, const char *path, const lsi_model_class **class,
                             lsi_model_config *config) {
    const char *model_type = json_string_value(json_object_get(json, "model_type"));
    if (!model_type)
        return lsi_fail(LS_ERR_FORMAT, "%s: no text \"model_type\" that names the kind of model",
                        path);
    LSI_TRY(lsi_context(lsi_model_class_find(model_type, class), "%s: \"model_type\"", path));
    LSI_TRY(lsi_context((*class)->config_from_json(json, config), "%s", path));
    return lsi_context((*class)->check(config), "%s", path);
}

/* *tokenizer: borrowed from json or static. */
static ls_status load_tokenizer(const json_t *json, const char *path,
                                const lsi_model_config *config, const char **tokenizer) {
    enum { BYTE_VOCAB = 256 };
    *tokenizer = config->vocab_size == BYTE_VOCAB ? "byte" : NULL;
    const json_t *ours = json_object_get(json, "lockstep");
    if (!ours) return LS_OK;
    if (!json_is_object(ours))
        return lsi_fail(LS_ERR_FORMAT, "%s: \"lockstep\" is not an object", path);
    const json_t *value = json_object_get(ours, "tokenizer");
    if (!value) return LS_OK;
    if (!json_is_string(value))
        return lsi_fail(LS_ERR_FORMAT, "%s: \"lockstep\": \"tokenizer\" is not a text", path);
    *tokenizer = json_string_value(value);
    return LS_OK;
}

/* ---- loading the weights ---- */

/* What the steps of loading share. */
typedef struct loading {
    const char *path;
    const lsi_st_file *file;
    lsi_model *model;
} loading;

static const char *without_prefix(const char *name) {
    size_t length = sizeof PREFIX - 1;
    return strncmp(name, PREFIX, length) == 0 ? name + length : name;
}

/* The tensor of parameter i under either name; NULL when the file has none. */
static ls_status find_tensor(const loading *l, int i, const lsi_st_tensor **tensor) {
    const char *name = l->model->params[i].name;
    size_t bytes = sizeof PREFIX + strlen(name);
    char *prefixed = lsi_alloc(LSI_MEM_OTHER, bytes);
    LSI_TRY(lsi_check_alloc(prefixed));
    snprintf(prefixed, bytes, "%s%s", PREFIX, name);
    const lsi_st_tensor *long_form = lsi_st_find(l->file, prefixed);
    const lsi_st_tensor *short_form = lsi_st_find(l->file, name);
    lsi_free(prefixed);
    if (long_form && short_form)
        return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s' is there twice, with and without '%s'",
                        l->path, name, PREFIX);
    *tensor = long_form ? long_form : short_form;
    return LS_OK;
}

static bool has_shape(const lsi_st_tensor *t, const lsi_param_shape *shape) {
    return t->n_dims == shape->n_dims &&
           memcmp(t->dims, shape->dims, (size_t)t->n_dims * sizeof *t->dims) == 0;
}

static ls_status load_param(const loading *l, int i, const lsi_st_tensor *t) {
    const lsi_param_shape *shape = &l->model->shapes[i];
    char name[LSI_ST_SHOWN_BYTES];
    lsi_st_shown(t->name, name);
    if (!has_shape(t, shape)) {
        char expected[LSI_ST_SHOWN_BYTES], found[LSI_ST_SHOWN_BYTES];
        return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s': expected shape %s, found %s", l->path,
                        name, lsi_st_shape_text(shape->n_dims, shape->dims, expected),
                        lsi_st_shape_text(t->n_dims, t->dims, found));
    }
    const ls_param *param = &l->model->params[i];
    return lsi_context(lsi_st_to_float(t->dtype, t->data, param->count, param->data),
                       "%s: tensor '%s'", l->path, name);
}

static ls_status load_params(const loading *l) {
    int n_missing = 0;
    const char *missing = NULL;
    for (int i = 0; i < l->model->n_params; i++) {
        const lsi_st_tensor *t;
        LSI_TRY(find_tensor(l, i, &t));
        if (t) {
            LSI_TRY(load_param(l, i, t));
        } else if (n_missing++ == 0) {
            missing = l->model->params[i].name;
        }
    }
    if (n_missing == 0) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: %d of %d tensors are missing, the first is '%s%s'", l->path,
                    n_missing, l->model->n_params, PREFIX, missing);
}

/* Constant causal masks: buffers of the original code, not weights. */
static ls_status pass_over(const loading *l, const lsi_st_tensor *t) {
    (void)l, (void)t;
    return LS_OK;
}

/* The output projection of a tied model is the token embedding again, and must be. */
static ls_status check_tied(const loading *l, const lsi_st_tensor *t) {
    int i = lsi_model_find(l->model, "wte.weight");
    const lsi_st_tensor *embedding = NULL;
    if (i >= 0) LSI_TRY(find_tensor(l, i, &embedding));
    if (embedding && t->dtype == embedding->dtype && has_shape(t, &l->model->shapes[i]) &&
        memcmp(t->data, embedding->data, t->bytes) == 0)
        return LS_OK;
    char name[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_UNSUPPORTED,
                    "%s: tensor '%s' is not the same as the token embedding; only models with "
                    "tied embeddings can be loaded",
                    l->path, lsi_st_shown(t->name, name));
}

/* Tensors that have no parameter and yet may be in a file, by the last parts of their names. */
static const struct {
    const char *ending;
    ls_status (*check)(const loading *l, const lsi_st_tensor *t);
} EXTRAS[] = {
    {"attn.bias", pass_over},
    {"attn.masked_bias", pass_over},
    {"lm_head.weight", check_tied},
};

/* Whole parts only: "h.0.attn.bias" ends with "attn.bias", "h.0.attn.c_attn.bias" does not. */
static bool ends_with(const char *name, const char *ending) {
    size_t length = strlen(name), end_length = strlen(ending);
    if (length < end_length || strcmp(name + length - end_length, ending) != 0) return false;
    return length == end_length || name[length - end_length - 1] == '.';
}

static ls_status check_extra(const loading *l, const lsi_st_tensor *t) {
    for (size_t i = 0; i < sizeof EXTRAS / sizeof *EXTRAS; i++)
        if (ends_with(t->name, EXTRAS[i].ending)) return EXTRAS[i].check(l, t);
    char name[LSI_ST_SHOWN_BYTES], shape[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: tensor '%s' of shape %s belongs to no parameter of this %s model", l->path,
                    lsi_st_shown(t->name, name), lsi_st_shape_text(t->n_dims, t->dims, shape),
                    l->model->class->name);
}

static ls_status check_surplus(const loading *l) {
    for (int i = 0; i < lsi_st_n_tensors(l->file); i++) {
        const lsi_st_tensor *t = lsi_st_tensor_at(l->file, i);
        if (lsi_model_find(l->model, without_prefix(t->name)) < 0) LSI_TRY(check_extra(l, t));
    }
    return LS_OK;
}

/* A configuration may ask for more memory than any machine has. Before a model is created its
 * elements are counted (the first pass of build, see model.h) and must be in proportion to those in
 * the file; smaller differences are left to the steps above, which can name the tensor. Counting
 * takes time by layer, and each layer has a tensor at least, so their number is looked at first. */
static ls_status check_size(const char *path, const lsi_st_file *file, const lsi_model_class *class,
                            const lsi_model_config *config) {
    enum { HEADROOM = 16 };
    if (config->n_layer > lsi_st_n_tensors(file))
        return lsi_fail(LS_ERR_FORMAT, "%s: %s asks for %lld layers, the file has %d tensors", path,
                        CONFIG_FILE, (long long)config->n_layer, lsi_st_n_tensors(file));
    lsi_model counted = {.class = class, .config = *config};
    LSI_TRY(lsi_context(class->build(&counted), "%s", path));
    int64_t n_found = 1;
    for (int i = 0; i < lsi_st_n_tensors(file); i++) {
        const lsi_st_tensor *t = lsi_st_tensor_at(file, i);
        n_found += (int64_t)(t->bytes / ls_dtype_bytes(t->dtype));
    }
    if (counted.n_elems / HEADROOM <= n_found) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: %s asks for %lld parameters, the tensors here have only %lld", path,
                    CONFIG_FILE, (long long)counted.n_elems, (long long)n_found - 1);
}

static ls_status load_weights(const char *path, const lsi_st_file *file,
                              const lsi_model_class *class, const lsi_model_config *config,
                              lsi_model **model) {
    LSI_TRY(check_size(path, file, class, config));
    lsi_model *created;
    LSI_TRY(lsi_model_create(class, config, &created));
    const loading l = {.path = path, .file = file, .model = created};
    ls_status status = load_params(&l);
    if (status == LS_OK) status = check_surplus(&l);
    if (status == LS_OK)
        *model = created;
    else
        lsi_model_destroy(created);
    return status;
}

/* ---- loading both ---- */

static ls_status load_with_config(const json_t *json, const char *config_path,
                                  const char *weights_path, lsi_model **model, char **tokenizer) {
    const lsi_model_class *class;
    lsi_model_config config = {0};
    const char *tokenizer_name;
    LSI_TRY(load_config(json, config_path, &class, &config));
    LSI_TRY(load_tokenizer(json, config_path, &config, &tokenizer_name));
    lsi_st_file *file;
    LSI_TRY(lsi_st_open(weights_path, &file));
    char *name = tokenizer_name ? lsi_strdup(tokenizer_name) : NULL;
    ls_status status = tokenizer_name ? lsi_check_alloc(name) : LS_OK;
    if (status == LS_OK) status = load_weights(weights_path, file, class, &config, model);
    lsi_st_close(file);
    if (status == LS_OK)
        *tokenizer = name;
    else
        lsi_free(name);
    return status;
}

static ls_status load_files(const char *config_path, const char *weights_path, lsi_model **model,
                            char **tokenizer) {
    json_t *json;
    LSI_TRY(lsi_file_read_json(config_path, CONFIG_CAP_BYTES, &json));
    ls_status status = load_with_config(json, config_path, weights_path, model, tokenizer);
    json_decref(json);
    return status;
}

ls_status lsi_model_load(const char *folder, lsi_model **model, char **tokenizer) {
    char *config_path = NULL, *weights_path = NULL;
    ls_status status = join(folder, CONFIG_FILE, &config_path);
    if (status == LS_OK) status = join(folder, WEIGHTS_FILE, &weights_path);
    if (status == LS_OK) status = load_files(config_path, weights_path, model, tokenizer);
    lsi_free(config_path);
    lsi_free(weights_path);
    return lsi_context(status, "loading the model");
}

/* ---- the hash ---- */

/* The parameter with the smallest name above `last` (NULL: of all), NULL at the end. Selection
 * instead of sorting: no memory, so the hash cannot fail; a model has some hundred parameters. */
static const ls_param *next_by_name(const lsi_model *model, const char *last) {
    const ls_param *next = NULL;
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *param = &model->params[i];
        if (last && strcmp(param->name, last) <= 0) continue;
        if (!next || strcmp(param->name, next->name) < 0) next = param;
    }
    return next;
}

void lsi_model_sha256(const lsi_model *model, char text[LSI_SHA256_TEXT_BYTES]) {
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    for (const ls_param *param = next_by_name(model, NULL); param;
         param = next_by_name(model, param->name))
        lsi_sha256_update(&hash, param->data, (size_t)param->count * ls_dtype_bytes(param->dtype));
    lsi_sha256_finish(&hash, text);
}
