/* What all models share: the table of classes, and parameters from creation to initial values.
 *
 * build() of a class runs twice over lsi_model_add_param. The first pass (params == NULL) counts
 * parameters, elements and bytes of names; then everything is allocated; the second pass places. So
 * there is one list of parameters per model, written once, and one block of memory, which a hollow
 * model does without:
 *
 *     data   | param 0 ……… pad | param 1 … pad | …      each starts at a 64-byte border
 *
 * Invariant after create: params[i], shapes[i] and inits[i] describe the same parameter, names are
 * unique, n_elems is the sum of the counts, and the order is that of build().
 *
 * Initial values of parameter i come from the random stream (seed, init, i), element by element, so
 * they depend on neither machine nor rank nor on what else is initialised, and any range of them
 * can be made alone. */
#include "nn/model.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/opt.h"

enum { ALIGN_ELEMS = 16, MAX_CLASSES = 32 };

extern const lsi_model_class lsi_model_gpt2;
extern const lsi_model_class lsi_model_llama;
extern const lsi_model_class lsi_model_mlp;
extern const lsi_model_class lsi_model_convnet;

const lsi_model_class *const lsi_model_classes[] = {&lsi_model_gpt2, &lsi_model_llama,
                                                    &lsi_model_mlp, &lsi_model_convnet, NULL};

ls_status lsi_model_class_find(const char *name, const lsi_model_class **class) {
    const char *names[MAX_CLASSES + 1] = {0};
    char known[256] = "";
    for (int i = 0; lsi_model_classes[i] && i < MAX_CLASSES; i++) {
        names[i] = lsi_model_classes[i]->name;
        if (strcmp(names[i], name) == 0) {
            *class = lsi_model_classes[i];
            return LS_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = lsi_nearest(name, names);
    return lsi_fail(LS_ERR_NOT_FOUND, "unknown model '%s'; known: %s%s%s%s", name, known,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- building ---- */

static ls_status count_elems(const char *name, int n_dims, const int64_t *dims, int64_t *count) {
    int64_t product = 1;
    if (n_dims < 1 || n_dims > LSI_MAX_DIMS)
        return lsi_fail(LS_ERR_ARGUMENT, "parameter %s has %d dims, expected 1 to %d", name, n_dims,
                        LSI_MAX_DIMS);
    for (int d = 0; d < n_dims; d++)
        if (dims[d] < 0 || __builtin_mul_overflow(product, dims[d], &product))
            return lsi_fail(LS_ERR_ARGUMENT, "parameter %s: dim %d is %lld, too large or negative",
                            name, d, (long long)dims[d]);
    *count = product;
    return LS_OK;
}

/* Adds a parameter's padded length to *total; the whole must be addressable in bytes. */
static ls_status add_padded(const char *name, int64_t count, int64_t *total) {
    int64_t end, bytes;
    if (__builtin_add_overflow(*total, count, &end) ||
        __builtin_add_overflow(end, (int64_t)(ALIGN_ELEMS - 1), &end) ||
        __builtin_mul_overflow(end, (int64_t)sizeof(float), &bytes))
        return lsi_fail(LS_ERR_ARGUMENT, "the parameters up to %s need more than 2^63 bytes", name);
    *total = end / ALIGN_ELEMS * ALIGN_ELEMS;
    return LS_OK;
}

/* shapes[n_params] is there already. */
static void place_param(lsi_model *model, const char *name, int64_t count, uint32_t flags) {
    const lsi_param_shape *shape = &model->shapes[model->n_params];
    ls_param *param = &model->params[model->n_params];
    char *kept = model->names + model->n_name_bytes;
    memcpy(kept, name, strlen(name) + 1);
    *param = (ls_param){
        .name = kept,
        .count = count,
        .dtype = LS_DTYPE_F32,
        .flags = flags,
        .n_dims = shape->n_dims,
    };
    memcpy(param->shape, shape->dims, (size_t)shape->n_dims * sizeof *shape->dims);
}

ls_status lsi_model_add_param(lsi_model *model, const char *name, int n_dims, const int64_t *dims,
                              uint32_t flags, lsi_init_kind init, double std) {
    int64_t count = 0, offset = model->n_data_elems;
    LSI_TRY(count_elems(name, n_dims, dims, &count));
    LSI_TRY(add_padded(name, count, &model->n_data_elems));
    if (model->params) {
        lsi_param_shape *shape = &model->shapes[model->n_params];
        shape->n_dims = n_dims;
        shape->is_statistic = flags & LS_PARAM_FROZEN;
        memcpy(shape->dims, dims, (size_t)n_dims * sizeof *dims);
        model->inits[model->n_params] = (lsi_param_init){init, std};
        model->offsets[model->n_params] = offset;
        place_param(model, name, count, flags);
    }
    model->n_params++;
    model->n_elems += count;
    model->n_name_bytes += strlen(name) + 1;
    return LS_OK;
}

static ls_status allocate(lsi_model *model) {
    size_t n = (size_t)model->n_params;
    LSI_TRY(lsi_check_alloc(model->names = lsi_alloc(LSI_MEM_OTHER, model->n_name_bytes)));
    LSI_TRY(lsi_check_alloc(model->shapes = lsi_calloc(LSI_MEM_OTHER, n, sizeof *model->shapes)));
    LSI_TRY(lsi_check_alloc(model->inits = lsi_calloc(LSI_MEM_OTHER, n, sizeof *model->inits)));
    LSI_TRY(lsi_check_alloc(model->offsets = lsi_calloc(LSI_MEM_OTHER, n, sizeof *model->offsets)));
    return lsi_check_alloc(model->params = lsi_calloc(LSI_MEM_OTHER, n, sizeof *model->params));
}

static ls_status build(lsi_model *model) {
    LSI_TRY(model->class->build(model));
    LSI_TRY(allocate(model));
    model->n_params = 0;
    model->n_elems = model->n_data_elems = 0;
    model->n_name_bytes = 0;
    return model->class->build(model);
}

ls_status lsi_model_create_hollow(const lsi_model_class *class, const lsi_model_config *config,
                                  lsi_model **model) {
    LSI_TRY(class->check(config));
    lsi_model *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->class = class;
    made->config = *config;
    ls_status status = build(made);
    if (status != LS_OK) {
        lsi_model_destroy(made);
        return lsi_context(status, "model %s", class->name);
    }
    *model = made;
    return LS_OK;
}

/* Zeroed, so that padding has a value: files and hashes of the block are the same every time. */
static ls_status give_memory(lsi_model *model) {
    model->data = lsi_calloc(LSI_MEM_PARAMS, (size_t)model->n_data_elems, sizeof(float));
    LSI_TRY(lsi_check_alloc(model->data));
    for (int i = 0; i < model->n_params; i++)
        model->params[i].data = model->data + model->offsets[i];
    return LS_OK;
}

ls_status lsi_model_create(const lsi_model_class *class, const lsi_model_config *config,
                           lsi_model **model) {
    lsi_model *made;
    LSI_TRY(lsi_model_create_hollow(class, config, &made));
    ls_status status = give_memory(made);
    if (status != LS_OK) {
        lsi_model_destroy(made);
        return lsi_context(status, "model %s", class->name);
    }
    *model = made;
    return LS_OK;
}

static void free_values(lsi_model *model) {
    lsi_free(model->data);
    lsi_free(model->upper);
    lsi_free(model->lower);
    model->data = NULL;
    model->upper = model->lower = NULL;
}

void lsi_model_destroy(lsi_model *model) {
    if (!model) return;
    free_values(model);
    lsi_free(model->params);
    lsi_free(model->offsets);
    lsi_free(model->inits);
    lsi_free(model->shapes);
    lsi_free(model->names);
    lsi_free(model);
}

/* ---- values ---- */

static void set_all(float *values, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++) values[i] = value;
}

ls_status lsi_initial_values_fill(void *initial, int i, int64_t begin, int64_t count,
                                  float *values) {
    const lsi_initial_values *from = initial;
    const lsi_param_init *init = &from->model->inits[i];
    lsi_rng_stream stream = lsi_rng_open(from->seed, LSI_RNG_INIT, (uint32_t)i, 0);
    switch (init->kind) {
    case LSI_INIT_ZERO: set_all(values, count, 0.0f); break;
    case LSI_INIT_ONE: set_all(values, count, 1.0f); break;
    case LSI_INIT_NORMAL: lsi_rng_normal_at(&stream, (float)init->std, begin, values, count); break;
    }
    return LS_OK;
}

static ls_status fill_all(lsi_model *model, lsi_model_fill_fn fill, void *context) {
    for (int i = 0; i < model->n_params; i++)
        LSI_TRY(fill(context, i, 0, model->params[i].count, model->params[i].data));
    return LS_OK;
}

void lsi_model_init(lsi_model *model, uint64_t seed) {
    lsi_initial_values initial = {model, seed};
    (void)!fill_all(model, lsi_initial_values_fill, &initial); /* never fails */
}

ls_status lsi_model_make_whole(lsi_model *model, lsi_model_fill_fn fill, void *context) {
    LSI_TRY(give_memory(model));
    ls_status status = fill_all(model, fill, context);
    if (status == LS_OK) return LS_OK;
    free_values(model);
    for (int i = 0; i < model->n_params; i++) model->params[i].data = NULL;
    return status;
}

bool lsi_model_can_be_hollow(const lsi_model *model) {
    for (int i = 0; i < model->n_params; i++)
        if (model->params[i].flags & LS_PARAM_FROZEN) return false;
    return true;
}

/* ---- use ---- */

float *lsi_model_values(const lsi_model *model, int i) {
    const ls_param *param = &model->params[i];
    return param->dtype == LS_DTYPE_F32 ? param->data : NULL;
}

uint16_t *lsi_model_lower_half(const lsi_model *model, int i) {
    bool has_halves = model->params[i].dtype == LS_DTYPE_BF16 && model->lower;
    return has_halves ? model->lower + model->offsets[i] : NULL;
}

void lsi_model_release(lsi_model *model) {
    if (lsi_model_can_be_hollow(model)) free_values(model);
}

static bool stays_wide(const lsi_model *model, int i) {
    return model->shapes[i].is_statistic;
}

static int64_t aligned(int64_t count) {
    return (count + ALIGN_ELEMS - 1) / ALIGN_ELEMS * ALIGN_ELEMS;
}

/* A block for those that stay float32, one behind the other. */
static ls_status copy_wide(const lsi_model *model, float **block) {
    int64_t n_wide = 0;
    for (int i = 0; i < model->n_params; i++)
        if (stays_wide(model, i)) n_wide += aligned(model->params[i].count);
    if (n_wide == 0) return LS_OK;
    *block = lsi_alloc(LSI_MEM_PARAMS, (size_t)n_wide * sizeof **block);
    LSI_TRY(lsi_check_alloc(*block));
    float *to = *block;
    for (int i = 0; i < model->n_params; i++) {
        ls_param *param = &model->params[i];
        if (!stays_wide(model, i)) continue;
        memcpy(to, param->data, (size_t)param->count * sizeof *to);
        param->data = to;
        to += aligned(param->count);
    }
    return LS_OK;
}

static ls_status take_halves(lsi_model *model) {
    size_t n = (size_t)model->n_data_elems;
    float *wide = NULL;
    uint16_t *upper = lsi_alloc(LSI_MEM_PARAMS, n * sizeof *upper);
    uint16_t *lower = lsi_alloc(LSI_MEM_OPTIMIZER, n * sizeof *lower);
    ls_status status = upper && lower ? copy_wide(model, &wide) : LS_ERR_MEMORY;
    if (status != LS_OK) {
        lsi_free(upper);
        lsi_free(lower);
        return status;
    }
    for (size_t i = 0; i < n; i++) upper[i] = lsi_upper_half(model->data[i]);
    for (size_t i = 0; i < n; i++) lower[i] = lsi_lower_half(model->data[i]);
    lsi_free(model->data);
    model->data = wide;
    model->upper = upper;
    model->lower = lower;
    return LS_OK;
}

ls_status lsi_model_narrow(lsi_model *model) {
    if (model->data) LSI_TRY(take_halves(model));
    for (int i = 0; i < model->n_params; i++) {
        ls_param *param = &model->params[i];
        if (stays_wide(model, i)) continue;
        param->dtype = LS_DTYPE_BF16;
        param->data = model->upper ? model->upper + model->offsets[i] : NULL;
    }
    return LS_OK;
}

lsi_tensor *lsi_model_leaf(lsi_model *model, lsi_tape *tape, int i) {
    return lsi_tape_param(tape, &model->params[i], i, model->shapes[i].n_dims,
                          model->shapes[i].dims);
}

bool lsi_model_name_begins(const lsi_model *model, int i, const char *word, size_t n) {
    const char *prefix = model->class->file_prefix ? model->class->file_prefix : "";
    size_t length = strlen(prefix);
    if (n > length && strncmp(word, prefix, length) == 0) {
        word += length;
        n -= length;
    }
    return strncmp(model->params[i].name, word, n) == 0;
}

int lsi_model_find(const lsi_model *model, const char *name) {
    for (int i = 0; i < model->n_params; i++)
        if (strcmp(model->params[i].name, name) == 0) return i;
    return -1;
}

double lsi_model_flops_per_token(const lsi_model *model, int64_t n_time) {
    int n_units = model->class->n_units(&model->config);
    lsi_unit_cost *units = lsi_calloc(LSI_MEM_OTHER, (size_t)n_units, sizeof *units);
    if (!units) return 0.0;
    model->class->describe(model, 1, n_time, LS_DTYPE_F32, units);
    double flops = 0.0;
    for (int i = 0; i < n_units; i++) flops += units[i].flops;
    lsi_free(units);
    return flops / (double)n_time;
}
