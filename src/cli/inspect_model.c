/* `lockstep inspect MODEL`: the tensors of a model folder or a safetensors file, and what
 * config.json says.
 *
 * A folder is worth looking at just when something is wrong with it: what config.json cannot tell
 * is said in a line, and the tensors are shown all the same. Only headers are read; the size of a
 * model does not matter. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weights.h"
#include "cli/inspect.h"
#include "data/data.h"
#include "observe/observe.h"

/* What is there to show. */
typedef struct model_view {
    const char *path;
    lsi_weights *weights;
    bool is_folder;
    const lsi_model_class *class; /* NULL: config.json did not tell */
    lsi_model_config config;
    int64_t n_params;
    char *tokenizer; /* NULL: not known */
    char trouble[LSI_MESSAGE_BYTES];
} model_view;

/* ---- finding out ---- */

/* The first pass of build counts (nn/model.h). It takes time by layer, so a number of layers that
 * the tensors do not bear out is not followed. */
static void count_params(model_view *v) {
    lsi_model counted = {.class = v->class, .config = v->config};
    if (v->config.n_layer > lsi_weights_n_tensors(v->weights)) return;
    if (v->class->build(&counted) == LS_OK) v->n_params = counted.n_elems;
}

static void find_tokenizer(model_view *v) {
    lsi_tokenizer *tokenizer = NULL;
    if (v->class->takes_images || v->tokenizer) return;
    if (lsi_tokenizer_create(v->path, &tokenizer) != LS_OK) return;
    v->tokenizer = lsi_strdup(lsi_tokenizer_name(tokenizer));
    lsi_tokenizer_destroy(tokenizer);
}

static void read_config(model_view *v) {
    if (lsi_model_load_config(v->path, &v->class, &v->config, &v->tokenizer) == LS_OK) {
        count_params(v);
        find_tokenizer(v);
        return;
    }
    v->class = NULL;
    snprintf(v->trouble, sizeof v->trouble, "%s", ls_last_message());
}

static ls_status open_view(const char *path, model_view *v) {
    struct stat info;
    v->path = path;
    v->is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    if (!v->is_folder) return lsi_weights_open_file(path, &v->weights);
    LSI_TRY(lsi_weights_open(path, &v->weights));
    read_config(v);
    return LS_OK;
}

/* ---- the configuration ---- */

typedef struct field {
    const char *name;
    size_t offset;
    enum { WHOLE, REAL, YES } kind;
} field;

#define FIELD(name, kind)                                                                          \
    { #name, offsetof(lsi_model_config, name), kind }

static const field fields[] = {
    FIELD(n_layer, WHOLE),    FIELD(n_head, WHOLE),     FIELD(n_kv_head, WHOLE),
    FIELD(n_embd, WHOLE),     FIELD(n_inner, WHOLE),    FIELD(seq_len, WHOLE),
    FIELD(vocab_size, WHOLE), FIELD(rope_theta, REAL),  FIELD(norm_epsilon, REAL),
    FIELD(dropout, REAL),     FIELD(untied, YES),       FIELD(height, WHOLE),
    FIELD(width, WHOLE),      FIELD(n_channels, WHOLE), FIELD(n_classes, WHOLE),
};

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* NULL for a field that the class does not use. */
static json_t *field_to_json(const lsi_model_config *config, const field *f) {
    const char *at = (const char *)config + f->offset;
    int64_t whole = 0;
    double real = 0;
    bool yes = false;
    switch (f->kind) {
    case WHOLE: memcpy(&whole, at, sizeof whole); return whole ? json_integer(whole) : NULL;
    case REAL: memcpy(&real, at, sizeof real); return real != 0 ? json_real(real) : NULL;
    case YES: memcpy(&yes, at, sizeof yes); return yes ? json_true() : NULL;
    }
    return NULL;
}

static void print_config(const lsi_model_config *config) {
    const char *between = "";
    for (int i = 0; i < N_FIELDS; i++) {
        json_t *value = field_to_json(config, &fields[i]);
        if (!value) continue;
        if (json_is_integer(value))
            printf("%s%s %" PRId64, between, fields[i].name, (int64_t)json_integer_value(value));
        else if (json_is_real(value))
            printf("%s%s %g", between, fields[i].name, json_real_value(value));
        else
            printf("%s%s", between, fields[i].name);
        between = ", ";
        json_decref(value);
    }
    printf("\n");
}

static json_t *config_to_json(const lsi_model_config *config) {
    json_t *object = json_object();
    for (int i = 0; i < N_FIELDS; i++) {
        json_t *value = field_to_json(config, &fields[i]);
        if (value) json_object_set_new(object, fields[i].name, value);
    }
    return object;
}

/* ---- totals by type ---- */

enum { MAX_DTYPES = 32 };

typedef struct total {
    int64_t n_tensors, n_elems, bytes;
} total;

static int64_t count_elems(const lsi_st_tensor *t) {
    return (int64_t)(t->bytes / ls_dtype_bytes(t->dtype));
}

/* By the number of the type; totals[0] is all of them. */
static void add_up(const lsi_weights *weights, total totals[MAX_DTYPES]) {
    memset(totals, 0, MAX_DTYPES * sizeof *totals);
    for (int i = 0; i < lsi_weights_n_tensors(weights); i++) {
        const lsi_st_tensor *t = lsi_weights_at(weights, i);
        total *both[] = {&totals[0], &totals[t->dtype]};
        for (int k = 0; k < 2; k++) {
            both[k]->n_tensors++;
            both[k]->n_elems += count_elems(t);
            both[k]->bytes += (int64_t)t->bytes;
        }
    }
}

/* ---- text ---- */

static void print_head(const model_view *v) {
    if (!v->is_folder) return;
    if (!v->class) {
        printf("%s\nconfiguration: %s\n\n", v->path, v->trouble);
        return;
    }
    printf("%s: %s", v->path, v->class->name);
    if (v->n_params) printf(", %" PRId64 " parameters", v->n_params);
    if (!v->class->takes_images)
        printf(", tokenizer %s", v->tokenizer ? v->tokenizer : "not known");
    printf("\n");
    print_config(&v->config);
    printf("\n");
}

/* Characters, not bytes: names may be UTF-8. */
static int n_characters(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_tensors(const lsi_weights *weights) {
    char name[LSI_ST_SHOWN_BYTES], shape[LSI_ST_SHOWN_BYTES], bytes[32];
    int n = lsi_weights_n_tensors(weights), name_width = 6, shape_width = 5;
    for (int i = 0; i < n; i++) {
        const lsi_st_tensor *t = lsi_weights_at(weights, i);
        int width = n_characters(lsi_st_shown(t->name, name));
        int other = n_characters(lsi_st_shape_text(t->n_dims, t->dims, shape));
        if (width > name_width) name_width = width;
        if (other > shape_width) shape_width = other;
    }
    printf("%-*s  type  %-*s  %14s  %10s\n", name_width, "tensor", shape_width, "shape", "elements",
           "size");
    for (int i = 0; i < n; i++) {
        const lsi_st_tensor *t = lsi_weights_at(weights, i);
        int padding = name_width - n_characters(lsi_st_shown(t->name, name));
        printf("%s%*s  %-4s  %-*s  %14" PRId64 "  %10s\n", name, padding, "",
               ls_dtype_name(t->dtype), shape_width, lsi_st_shape_text(t->n_dims, t->dims, shape),
               count_elems(t), lsi_format_bytes((double)t->bytes, bytes, sizeof bytes));
    }
}

static void print_total(const char *what, const total *t) {
    char bytes[32];
    printf("%s: %" PRId64 " tensor%s, %" PRId64 " elements, %" PRId64 " bytes (%s)\n", what,
           t->n_tensors, t->n_tensors == 1 ? "" : "s", t->n_elems, t->bytes,
           lsi_format_bytes((double)t->bytes, bytes, sizeof bytes));
}

static void print_totals(const lsi_weights *weights) {
    total totals[MAX_DTYPES];
    char what[32];
    add_up(weights, totals);
    printf("\n");
    for (int dtype = 1; dtype < MAX_DTYPES; dtype++)
        if (totals[dtype].n_tensors) print_total(ls_dtype_name((ls_dtype)dtype), &totals[dtype]);
    int n_files = lsi_weights_n_files(weights);
    snprintf(what, sizeof what, "%d file%s", n_files, n_files == 1 ? "" : "s");
    print_total(what, &totals[0]);
}

/* ---- JSON ---- */

static json_t *tensors_to_json(const lsi_weights *weights) {
    json_t *list = json_array();
    for (int i = 0; i < lsi_weights_n_tensors(weights); i++) {
        const lsi_st_tensor *t = lsi_weights_at(weights, i);
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer(t->dims[d]));
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:I, s:I, s:s}", "name", t->name, "dtype",
                                        ls_dtype_name(t->dtype), "shape", shape, "elements",
                                        (json_int_t)count_elems(t), "bytes", (json_int_t)t->bytes,
                                        "file", lsi_weights_file_at(weights, i)));
    }
    return list;
}

static json_t *total_to_json(const total *t) {
    return json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)t->n_tensors, "elements",
                     (json_int_t)t->n_elems, "bytes", (json_int_t)t->bytes);
}

static json_t *totals_to_json(const lsi_weights *weights) {
    total totals[MAX_DTYPES];
    json_t *types = json_object();
    add_up(weights, totals);
    for (int dtype = 1; dtype < MAX_DTYPES; dtype++)
        if (totals[dtype].n_tensors)
            json_object_set_new(types, ls_dtype_name((ls_dtype)dtype),
                                total_to_json(&totals[dtype]));
    return json_pack("{s:o, s:o}", "all", total_to_json(&totals[0]), "types", types);
}

static json_t *view_to_json(const model_view *v) {
    json_t *json = json_pack("{s:s, s:s, s:i, s:o, s:o}", "path", v->path, "kind",
                             v->is_folder ? "folder" : "safetensors", "n_files",
                             lsi_weights_n_files(v->weights), "total", totals_to_json(v->weights),
                             "tensors", tensors_to_json(v->weights));
    if (!json || !v->is_folder) return json;
    if (!v->class) {
        json_object_set_new(json, "trouble", json_string(v->trouble));
        return json;
    }
    json_object_set_new(json, "class", json_string(v->class->name));
    json_object_set_new(json, "config", config_to_json(&v->config));
    if (v->n_params) json_object_set_new(json, "n_params", json_integer(v->n_params));
    json_object_set_new(json, "tokenizer", v->tokenizer ? json_string(v->tokenizer) : json_null());
    return json;
}

/* ---- all ---- */

static ls_status write_json(const model_view *v, const char *path) {
    json_t *json = view_to_json(v);
    if (!json) return lsi_fail(LS_ERR_ARGUMENT, "--json %s: a path is not UTF-8", path);
    ls_status status = lsi_file_replace_json(path, json);
    json_decref(json);
    return lsi_context(status, "--json");
}

static ls_status show(const char *path, const inspect_config *config, model_view *v) {
    LSI_TRY(open_view(path, v));
    print_head(v);
    print_tensors(v->weights);
    print_totals(v->weights);
    return config->json ? write_json(v, config->json) : LS_OK;
}

exit_code inspect_model(const char *path, const inspect_config *config) {
    model_view v = {0};
    ls_status status = show(path, config, &v);
    lsi_weights_close(v.weights);
    lsi_free(v.tokenizer);
    fflush(stdout);
    if (status == LS_OK) return EXIT_DONE;
    return report_failure(status, status == LS_ERR_NOT_FOUND ? EXIT_WRONG_USAGE : EXIT_FAILED);
}
