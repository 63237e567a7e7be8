/* Saving model folders.
 *
 *     begin     config.json, weights, index      everything is written under temporary names
 *     clear     the old index                    its shards are about to be replaced
 *     commit    config.json, weights, index      each is synced and gets its name
 *     clear     weights that are not of this model
 *
 * Invariants: until the last byte is written nothing in the folder has changed, so a full disk
 * leaves the old model; whoever is killed between the renames leaves a folder that loads as one
 * model or is refused with the name of a file, but for this: an old model of the same sizes can be
 * left with the new config.json. The index is last, so a folder with an index has all its shards.
 *
 * Tensors go into shards in the order of the parameters, each shard taking what fits. Values are
 * asked for when they are written: shard by shard, by name within a shard. */
#include "checkpoint/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

enum { SHARD_NAME_BYTES = 64 };

/* ---- what is written ---- */

typedef struct saving {
    const lsi_model *model;
    const lsi_model_save_opts *opts;
    const char *folder;
    ls_dtype dtype;
    lsi_model_get_fn get;
    void *context;          /* of get */
    lsi_st_tensor *tensors; /* one a parameter */
    int *shard_of;          /* the same */
    char *names;            /* of tensors, one after the other */
    int n_shards;
    lsi_file_writer **writers; /* config, shards, and the index if there is one */
    int n_writers, n_committed;
} saving;

static const char *prefix_of(const saving *s) {
    return s->model->class->file_prefix ? s->model->class->file_prefix : "";
}

/* One shard is the whole model, under the usual name. */
static void name_shard(const saving *s, int shard, char name[SHARD_NAME_BYTES]) {
    if (s->n_shards == 1)
        snprintf(name, SHARD_NAME_BYTES, "%s", LSI_WEIGHTS_FILE);
    else
        snprintf(name, SHARD_NAME_BYTES, "model-%05d-of-%05d.safetensors", shard + 1, s->n_shards);
}

/* Tensors of all parameters with their names in files. */
static void describe(saving *s) {
    char *name = s->names;
    for (int i = 0; i < s->model->n_params; i++) {
        const ls_param *param = &s->model->params[i];
        const lsi_param_shape *shape = &s->model->shapes[i];
        lsi_st_tensor *t = &s->tensors[i];
        *t = (lsi_st_tensor){.name = name,
                             .dtype = s->dtype,
                             .n_dims = shape->n_dims,
                             .bytes = (size_t)param->count * ls_dtype_bytes(s->dtype),
                             .data_dtype = LS_DTYPE_F32};
        memcpy(t->dims, shape->dims, (size_t)shape->n_dims * sizeof *t->dims);
        name += sprintf(name, "%s%s", prefix_of(s), param->name) + 1;
    }
}

static void deal_shards(saving *s) {
    int64_t cap = s->opts->shard_bytes ? s->opts->shard_bytes : LSI_SHARD_BYTES, used = 0;
    s->n_shards = 1;
    for (int i = 0; i < s->model->n_params; i++) {
        int64_t bytes = (int64_t)s->tensors[i].bytes;
        if (used > 0 && used + bytes > cap) {
            s->n_shards++;
            used = 0;
        }
        s->shard_of[i] = s->n_shards - 1;
        used += bytes;
    }
}

static ls_status prepare(saving *s) {
    size_t n = (size_t)s->model->n_params, name_bytes = 0;
    for (size_t i = 0; i < n; i++)
        name_bytes += strlen(prefix_of(s)) + strlen(s->model->params[i].name) + 1;
    LSI_TRY(lsi_check_alloc(s->tensors = lsi_calloc(LSI_MEM_OTHER, n, sizeof *s->tensors)));
    LSI_TRY(lsi_check_alloc(s->shard_of = lsi_calloc(LSI_MEM_OTHER, n, sizeof *s->shard_of)));
    LSI_TRY(lsi_check_alloc(s->names = lsi_alloc(LSI_MEM_OTHER, name_bytes)));
    describe(s);
    deal_shards(s);
    s->writers = lsi_calloc(LSI_MEM_OTHER, (size_t)s->n_shards + 2, sizeof *s->writers);
    return lsi_check_alloc(s->writers);
}

/* ---- begin ---- */

/* Takes json over; NULL: memory ran out. */
static ls_status begin_json(saving *s, const char *name, json_t *json) {
    char *path = NULL, *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    ls_status status = LS_OK;
    if (!text) status = lsi_fail(LS_ERR_MEMORY, "%s/%s: making it", s->folder, name);
    if (status == LS_OK) status = lsi_path_join(s->folder, name, &path);
    if (status == LS_OK) status = lsi_file_begin(path, &s->writers[s->n_writers]);
    if (status == LS_OK) {
        lsi_file_writer *writer = s->writers[s->n_writers++];
        status = lsi_file_write(writer, text, strlen(text));
        if (status == LS_OK) status = lsi_file_write(writer, "\n", 1);
    }
    lsi_free(path);
    free(text);
    json_decref(json);
    return status;
}

static ls_status begin_config(saving *s) {
    json_t *json = s->model->class->config_to_json(&s->model->config);
    const char *tokenizer = s->opts->tokenizer;
    const char *dtype = s->dtype == LS_DTYPE_BF16 ? "bfloat16" : "float32";
    bool is_good = json && json_object_set_new(json, "torch_dtype", json_string(dtype)) == 0;
    if (is_good && tokenizer &&
        json_object_set_new(json, "lockstep", json_pack("{s:s}", "tokenizer", tokenizer)) != 0) {
        json_decref(json);
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s/%s: the tokenizer's name is not UTF-8, or memory ran out", s->folder,
                        LSI_CONFIG_FILE);
    }
    if (is_good) return begin_json(s, LSI_CONFIG_FILE, json);
    json_decref(json);
    return begin_json(s, LSI_CONFIG_FILE, NULL);
}

static ls_status get_values(void *context, const lsi_st_tensor *tensor, const void **data) {
    const saving *s = context;
    const float *values;
    LSI_TRY(s->get(s->context, (int)(tensor - s->tensors), &values));
    *data = values;
    return LS_OK;
}

static ls_status begin_shard(saving *s, int shard, int first, int end) {
    /* transformers refuses files that do not say which framework's layout they have. */
    static const char *const metadata[] = {"format", "pt", NULL};
    char name[SHARD_NAME_BYTES], *path;
    name_shard(s, shard, name);
    LSI_TRY(lsi_path_join(s->folder, name, &path));
    ls_status status = lsi_st_begin(path, s->tensors + first, end - first, metadata, get_values, s,
                                    &s->writers[s->n_writers]);
    if (status == LS_OK) s->n_writers++;
    lsi_free(path);
    return status;
}

/* The same calls of get, as lsi_st_begin makes them. */
static ls_status walk_shard(saving *s, int shard, int first, int end) {
    (void)shard;
    const char *last = NULL;
    for (int i; (i = lsi_model_next_by_name(s->model, first, end, last)) >= 0;) {
        const float *values;
        LSI_TRY(s->get(s->context, i, &values));
        last = s->model->params[i].name;
    }
    return LS_OK;
}

/* The tensors of a shard stand side by side, because shards are dealt in order. */
static ls_status each_shard(saving *s, ls_status (*act)(saving *s, int shard, int first, int end)) {
    int first = 0;
    for (int shard = 0; shard < s->n_shards; shard++) {
        int end = first;
        while (end < s->model->n_params && s->shard_of[end] == shard) end++;
        LSI_TRY(act(s, shard, first, end));
        first = end;
    }
    return LS_OK;
}

static json_t *make_index(const saving *s) {
    json_t *map = json_object();
    int64_t total_bytes = 0;
    for (int i = 0; map && i < s->model->n_params; i++) {
        char name[SHARD_NAME_BYTES];
        name_shard(s, s->shard_of[i], name);
        total_bytes += (int64_t)s->tensors[i].bytes;
        if (json_object_set_new(map, s->tensors[i].name, json_string(name)) == 0) continue;
        json_decref(map);
        map = NULL;
    }
    return json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters",
                     (json_int_t)s->model->n_elems, "total_size", (json_int_t)total_bytes,
                     "weight_map", map);
}

static ls_status begin_all(saving *s) {
    LSI_TRY(begin_config(s));
    LSI_TRY(each_shard(s, begin_shard));
    return s->n_shards == 1 ? LS_OK : begin_json(s, LSI_INDEX_FILE, make_index(s));
}

/* ---- commit and clear ---- */

static ls_status remove_file(const char *folder, const char *name) {
    char *path;
    LSI_TRY(lsi_path_join(folder, name, &path));
    ls_status status = LS_OK;
    if (unlink(path) != 0 && errno != ENOENT)
        status = lsi_fail_errno(LS_ERR_IO, "%s: cannot remove it; it is of an earlier model", path);
    lsi_free(path);
    return status;
}

static ls_status commit_all(saving *s) {
    while (s->n_committed < s->n_writers)
        LSI_TRY(lsi_file_commit(s->writers[s->n_committed++])); /* freed whatever happens */
    return LS_OK;
}

/* Whether it is a file of weights as name_shard names them, and none of this model's. */
static bool is_stale(const saving *s, const char *name) {
    int number = 0, total = 0;
    char again[SHARD_NAME_BYTES];
    if (strcmp(name, LSI_WEIGHTS_FILE) == 0) return s->n_shards > 1;
    if (sscanf(name, "model-%9d-of-%9d", &number, &total) != 2) return false;
    snprintf(again, sizeof again, "model-%05d-of-%05d.safetensors", number, total);
    if (strcmp(name, again) != 0) return false;
    return s->n_shards == 1 || total != s->n_shards || number < 1 || number > total;
}

static ls_status remove_stale(const saving *s) {
    DIR *dir = opendir(s->folder);
    if (!dir) return lsi_fail_errno(LS_ERR_IO, "%s: cannot list it", s->folder);
    ls_status status = LS_OK;
    for (struct dirent *entry; status == LS_OK && (entry = readdir(dir));)
        if (is_stale(s, entry->d_name)) status = remove_file(s->folder, entry->d_name);
    closedir(dir);
    return status;
}

static ls_status check_opts(const lsi_model_save_opts *opts) {
    if (opts->dtype && opts->dtype != LS_DTYPE_F32 && opts->dtype != LS_DTYPE_BF16)
        return lsi_fail(LS_ERR_ARGUMENT, "dtype %s, expected F32 or BF16",
                        ls_dtype_name(opts->dtype));
    if (opts->shard_bytes < 0)
        return lsi_fail(LS_ERR_ARGUMENT, "shard_bytes is %lld, expected 0 or more",
                        (long long)opts->shard_bytes);
    return LS_OK;
}

static ls_status save(saving *s) {
    LSI_TRY(lsi_folder_make(s->folder));
    LSI_TRY(prepare(s));
    LSI_TRY(begin_all(s));
    if (s->n_shards > 1) LSI_TRY(remove_file(s->folder, LSI_INDEX_FILE));
    LSI_TRY(commit_all(s));
    /* One file counts before an index, so until now the old index did no harm. */
    if (s->n_shards == 1) LSI_TRY(remove_file(s->folder, LSI_INDEX_FILE));
    return remove_stale(s);
}

static ls_status walk(saving *s) {
    LSI_TRY(prepare(s));
    return each_shard(s, walk_shard);
}

static ls_status run(saving *s, ls_status (*act)(saving *s)) {
    static const lsi_model_save_opts defaults = {0};
    if (!s->opts) s->opts = &defaults;
    s->dtype = s->opts->dtype ? s->opts->dtype : LS_DTYPE_F32;
    ls_status status = check_opts(s->opts);
    if (status == LS_OK) status = act(s);
    for (int i = s->n_committed; i < s->n_writers; i++) lsi_file_cancel(s->writers[i]);
    lsi_free(s->writers);
    lsi_free(s->names);
    lsi_free(s->shard_of);
    lsi_free(s->tensors);
    return lsi_context(status, "saving the model");
}

ls_status lsi_model_save_from(const lsi_model *model, const lsi_model_save_opts *opts,
                              const char *folder, lsi_model_get_fn get, void *context) {
    saving s = {.model = model, .opts = opts, .folder = folder, .get = get, .context = context};
    return run(&s, save);
}

ls_status lsi_model_walk(const lsi_model *model, const lsi_model_save_opts *opts,
                         lsi_model_get_fn get, void *context) {
    saving s = {.model = model, .opts = opts, .get = get, .context = context};
    return run(&s, walk);
}

ls_status lsi_model_save(const lsi_model *model, const lsi_model_save_opts *opts,
                         const char *folder) {
    return lsi_model_save_from(model, opts, folder, lsi_model_get_own, (void *)model);
}
