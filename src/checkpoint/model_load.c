/* Loading model folders: opened and held against its files first, then values are converted from
 * the mapped files, all of them or the ranges that somebody asks for. Neither file is trusted: the
 * configuration is checked by the model's own class, and then every parameter of the model needs
 * exactly one tensor of the same shape, and every tensor needs a parameter, or a row in the table
 * of those that may be passed over. Weights are taken as they are, finite or not.
 *
 * Files of the bare model without its output layer lack the prefix of names ("h.0.ln_1.weight"
 * instead of "transformer.h.0.ln_1.weight"); both are read. */
#include "checkpoint/model_folder.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "checkpoint/weights.h"

enum { CONFIG_CAP_BYTES = 1 << 20, MAX_CLASSES = 32 };

struct lsi_model_source {
    lsi_weights *weights;
    const lsi_st_tensor **tensors; /* one a parameter */
};

/* ---- the configuration ---- */

/* By what transformers calls it, which need not be our name. */
static ls_status find_class(const char *model_type, const lsi_model_class **class) {
    const char *names[MAX_CLASSES + 1] = {0};
    char known[256] = "", shown[LSI_ST_SHOWN_BYTES];
    for (int i = 0; lsi_model_classes[i] && i < MAX_CLASSES; i++) {
        names[i] = lsi_model_classes[i]->model_type;
        if (strcmp(names[i], model_type) == 0) {
            *class = lsi_model_classes[i];
            return LS_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = lsi_nearest(model_type, names);
    return lsi_fail(LS_ERR_UNSUPPORTED, "unknown model '%s'; known: %s%s%s%s",
                    lsi_st_shown(model_type, shown), known, near ? "; did you mean '" : "",
                    near ? near : "", near ? "'?" : "");
}

static ls_status read_sizes(const json_t *json, const char *path, const lsi_model_class **class,
                            lsi_model_config *config) {
    const char *model_type = json_string_value(json_object_get(json, "model_type"));
    if (!model_type)
        return lsi_fail(LS_ERR_FORMAT, "%s: no text \"model_type\" that names the kind of model",
                        path);
    LSI_TRY(lsi_context(find_class(model_type, class), "%s: \"model_type\"", path));
    LSI_TRY(lsi_context((*class)->config_from_json(json, config), "%s", path));
    return lsi_context((*class)->check(config), "%s", path);
}

/* *name: borrowed from json or static; NULL: not said. */
static ls_status read_tokenizer(const json_t *json, const char *path,
                                const lsi_model_config *config, const char **name) {
    enum { BYTE_VOCAB = 256 };
    *name = config->vocab_size == BYTE_VOCAB ? "byte" : NULL;
    const json_t *ours = json_object_get(json, "lockstep");
    if (!ours) return LS_OK;
    if (!json_is_object(ours))
        return lsi_fail(LS_ERR_FORMAT, "%s: \"lockstep\" is not an object", path);
    const json_t *value = json_object_get(ours, "tokenizer");
    if (!value) return LS_OK;
    if (!json_is_string(value))
        return lsi_fail(LS_ERR_FORMAT, "%s: \"lockstep\": \"tokenizer\" is not a text", path);
    *name = json_string_value(value);
    return LS_OK;
}

static ls_status read_config(const json_t *json, const char *path, const lsi_model_class **class,
                             lsi_model_config *config, char **tokenizer) {
    const char *name = NULL;
    lsi_model_config found = {0};
    LSI_TRY(read_sizes(json, path, class, &found));
    LSI_TRY(read_tokenizer(json, path, &found, &name));
    char *copy = name ? lsi_strdup(name) : NULL;
    if (name) LSI_TRY(lsi_check_alloc(copy));
    *config = found;
    *tokenizer = copy;
    return LS_OK;
}

static ls_status read_config_file(const char *path, const lsi_model_class **class,
                                  lsi_model_config *config, char **tokenizer) {
    json_t *json;
    LSI_TRY(lsi_file_read_json(path, CONFIG_CAP_BYTES, &json));
    ls_status status = read_config(json, path, class, config, tokenizer);
    json_decref(json);
    return status;
}

ls_status lsi_model_load_config(const char *folder, const lsi_model_class **class,
                                lsi_model_config *config, char **tokenizer) {
    char *path;
    LSI_TRY(lsi_path_join(folder, LSI_CONFIG_FILE, &path));
    ls_status status = read_config_file(path, class, config, tokenizer);
    lsi_free(path);
    return status;
}

/* ---- one tensor ---- */

/* What the steps of matching tensors and parameters share. */
typedef struct loading {
    const lsi_weights *weights;
    const lsi_model *model;
    const char *prefix; /* "" for none */
} loading;

/* The parameter's name behind a name in the file. */
static const char *without_prefix(const loading *l, const char *name) {
    size_t length = strlen(l->prefix);
    return strncmp(name, l->prefix, length) == 0 ? name + length : name;
}

/* The tensor of a parameter under either name; NULL when the files have none. */
static ls_status find_tensor(const loading *l, const char *name, const lsi_st_tensor **tensor) {
    *tensor = lsi_weights_find(l->weights, name);
    if (!l->prefix[0]) return LS_OK;
    size_t bytes = strlen(l->prefix) + strlen(name) + 1;
    char *prefixed = lsi_alloc(LSI_MEM_OTHER, bytes);
    LSI_TRY(lsi_check_alloc(prefixed));
    snprintf(prefixed, bytes, "%s%s", l->prefix, name);
    const lsi_st_tensor *long_form = lsi_weights_find(l->weights, prefixed);
    lsi_free(prefixed);
    if (long_form && *tensor)
        return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s' is there twice, with and without '%s'",
                        lsi_weights_path(l->weights), name, l->prefix);
    if (long_form) *tensor = long_form;
    return LS_OK;
}

static bool has_shape(const lsi_st_tensor *t, const lsi_param_shape *shape) {
    return t->n_dims == shape->n_dims &&
           memcmp(t->dims, shape->dims, (size_t)t->n_dims * sizeof *t->dims) == 0;
}

static ls_status check_tensor(const loading *l, int i, const lsi_st_tensor *t) {
    const lsi_param_shape *shape = &l->model->shapes[i];
    const char *path = lsi_weights_file_of(l->weights, t);
    char name[LSI_ST_SHOWN_BYTES];
    lsi_st_shown(t->name, name);
    if (!has_shape(t, shape)) {
        char expected[LSI_ST_SHOWN_BYTES], found[LSI_ST_SHOWN_BYTES];
        return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s': expected shape %s, found %s", path, name,
                        lsi_st_shape_text(shape->n_dims, shape->dims, expected),
                        lsi_st_shape_text(t->n_dims, t->dims, found));
    }
    /* of no elements: whether the type can be converted */
    return lsi_context(lsi_st_to_float(t->dtype, t->data, 0, NULL), "%s: tensor '%s'", path, name);
}

static ls_status find_tensors(const loading *l, const lsi_st_tensor **tensors) {
    int n_missing = 0;
    const char *missing = NULL;
    for (int i = 0; i < l->model->n_params; i++) {
        LSI_TRY(find_tensor(l, l->model->params[i].name, &tensors[i]));
        if (tensors[i]) {
            LSI_TRY(check_tensor(l, i, tensors[i]));
        } else if (n_missing++ == 0) {
            missing = l->model->params[i].name;
        }
    }
    if (n_missing == 0) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: %d of %d tensors are missing, the first is '%s%s'",
                    lsi_weights_path(l->weights), n_missing, l->model->n_params, l->prefix,
                    missing);
}

/* ---- tensors without a parameter ---- */

/* Constant causal masks and frequencies: buffers of the original code, not weights. */
static ls_status pass_over(const loading *l, const lsi_st_tensor *t) {
    (void)l, (void)t;
    return LS_OK;
}

/* The token table, which a language model uses first of all (lsi_model.params). */
static ls_status find_embedding(const loading *l, const lsi_st_tensor **embedding) {
    const lsi_model_config *config = &l->model->config;
    const lsi_param_shape *shape = &l->model->shapes[0];
    *embedding = NULL;
    if (l->model->n_params < 1 || shape->n_dims != 2 || shape->dims[0] != config->vocab_size ||
        shape->dims[1] != config->n_embd)
        return LS_OK;
    return find_tensor(l, l->model->params[0].name, embedding);
}

/* The output projection of a tied model is the token embedding again, and must be. */
static ls_status check_tied(const loading *l, const lsi_st_tensor *t) {
    const lsi_st_tensor *embedding;
    LSI_TRY(find_embedding(l, &embedding));
    if (embedding && t->dtype == embedding->dtype && has_shape(t, &l->model->shapes[0]) &&
        memcmp(t->data, embedding->data, t->bytes) == 0)
        return LS_OK;
    char name[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_UNSUPPORTED,
                    "%s: tensor '%s' is not the same as the token embedding, but the %s model of "
                    "%s has tied embeddings",
                    lsi_weights_file_of(l->weights, t), lsi_st_shown(t->name, name),
                    l->model->class->name, LSI_CONFIG_FILE);
}

/* Tensors that have no parameter and yet may be in a file, by the last parts of their names. */
static const struct {
    const char *ending;
    ls_status (*check)(const loading *l, const lsi_st_tensor *t);
} EXTRAS[] = {
    {"attn.bias", pass_over},
    {"attn.masked_bias", pass_over},
    {"rotary_emb.inv_freq", pass_over},
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
                    "%s: tensor '%s' of shape %s belongs to no parameter of this %s model",
                    lsi_weights_file_of(l->weights, t), lsi_st_shown(t->name, name),
                    lsi_st_shape_text(t->n_dims, t->dims, shape), l->model->class->name);
}

static ls_status check_surplus(const loading *l) {
    for (int i = 0; i < lsi_weights_n_tensors(l->weights); i++) {
        const lsi_st_tensor *t = lsi_weights_at(l->weights, i);
        if (lsi_model_find(l->model, without_prefix(l, t->name)) < 0) LSI_TRY(check_extra(l, t));
    }
    return LS_OK;
}

/* ---- all tensors ---- */

/* A configuration may ask for more memory than any machine has. Before a model is created its
 * elements are counted (the first pass of build, see model.h) and must be in proportion to those in
 * the file; smaller differences are left to the steps above, which can name the tensor. Counting
 * takes time by layer, and each layer has a tensor at least, so their number is looked at first. */
static ls_status check_size(const lsi_weights *weights, const lsi_model_class *class,
                            const lsi_model_config *config) {
    enum { HEADROOM = 16 };
    const char *path = lsi_weights_path(weights);
    int n_tensors = lsi_weights_n_tensors(weights);
    if (config->n_layer > n_tensors)
        return lsi_fail(LS_ERR_FORMAT, "%s: %s asks for %lld layers, the file has %d tensors", path,
                        LSI_CONFIG_FILE, (long long)config->n_layer, n_tensors);
    lsi_model counted = {.class = class, .config = *config};
    LSI_TRY(lsi_context(class->build(&counted), "%s", path));
    int64_t n_found = 1;
    for (int i = 0; i < n_tensors; i++) {
        const lsi_st_tensor *t = lsi_weights_at(weights, i);
        n_found += (int64_t)(t->bytes / ls_dtype_bytes(t->dtype));
    }
    if (counted.n_elems / HEADROOM <= n_found) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: %s asks for %lld parameters, the tensors here have only %lld", path,
                    LSI_CONFIG_FILE, (long long)counted.n_elems, (long long)n_found - 1);
}

static ls_status match(lsi_model_source *source, const lsi_model *model) {
    const loading l = {.weights = source->weights,
                       .model = model,
                       .prefix = model->class->file_prefix ? model->class->file_prefix : ""};
    source->tensors = lsi_calloc(LSI_MEM_OTHER, (size_t)model->n_params, sizeof *source->tensors);
    LSI_TRY(lsi_check_alloc(source->tensors));
    LSI_TRY(find_tensors(&l, source->tensors));
    return check_surplus(&l);
}

static ls_status open_folder(const char *folder, lsi_model **model, lsi_model_source *source,
                             char **tokenizer) {
    const lsi_model_class *class;
    lsi_model_config config;
    LSI_TRY(lsi_model_load_config(folder, &class, &config, tokenizer));
    LSI_TRY(lsi_weights_open(folder, &source->weights));
    LSI_TRY(check_size(source->weights, class, &config));
    LSI_TRY(lsi_model_create_hollow(class, &config, model));
    return match(source, *model);
}

ls_status lsi_model_open(const char *folder, lsi_model **model, lsi_model_source **source,
                         char **tokenizer) {
    lsi_model *created = NULL;
    char *name = NULL;
    lsi_model_source *opened = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *opened);
    LSI_TRY(lsi_check_alloc(opened));
    ls_status status = open_folder(folder, &created, opened, &name);
    if (status == LS_OK) {
        *model = created;
        *source = opened;
        *tokenizer = name;
        return LS_OK;
    }
    lsi_model_destroy(created);
    lsi_model_source_close(opened);
    lsi_free(name);
    return lsi_context(status, "loading the model");
}

void lsi_model_source_close(lsi_model_source *source) {
    if (!source) return;
    lsi_weights_close(source->weights);
    lsi_free(source->tensors);
    lsi_free(source);
}

/* ---- values ---- */

ls_status lsi_model_source_fill(void *source, int i, int64_t begin, int64_t count, float *values) {
    const lsi_st_tensor *t = ((const lsi_model_source *)source)->tensors[i];
    const unsigned char *data = t->data;
    return lsi_st_to_float(t->dtype, data + (size_t)begin * ls_dtype_bytes(t->dtype), count,
                           values);
}

ls_status lsi_model_load(const char *folder, lsi_model **model, char **tokenizer) {
    lsi_model *created;
    lsi_model_source *source;
    char *name;
    LSI_TRY(lsi_model_open(folder, &created, &source, &name));
    ls_status status = lsi_model_make_whole(created, lsi_model_source_fill, source);
    lsi_model_source_close(source);
    if (status == LS_OK) {
        *model = created;
        *tokenizer = name;
        return LS_OK;
    }
    lsi_model_destroy(created);
    lsi_free(name);
    return lsi_context(status, "loading the model");
}
