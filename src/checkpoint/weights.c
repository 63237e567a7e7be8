/* A model's weights from one file or many (see weights.h).
 *
 *     model.safetensors.index.json
 *         {"metadata": …, "weight_map": {"h.0.ln_1.bias": "model-00001-of-00002.safetensors", …}}
 *
 * Nothing of the index is believed: a name of a file must be a plain name (no way out of the
 * folder; symbolic links are followed, since download caches are made of them), each file passes
 * the checks of lsi_st_open, and afterwards the map and the files must agree in both directions.
 * As a tensor has one entry in the map, no tensor can be in two files. "metadata" is not looked at:
 * its total_size is wrong in files that exist.
 *
 * Invariant after opening: entries are in name order, names are unique, each entry's tensor is one
 * of its file's. */
#include "checkpoint/weights.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/model_folder.h"

enum { INDEX_CAP_BYTES = 64 << 20, NAME_BYTES = 255 };

typedef struct shard {
    char *path;
    const char *name; /* within path */
    lsi_st_file *file;
} shard;

typedef struct entry {
    const lsi_st_tensor *tensor;
    int shard;
} entry;

struct lsi_weights {
    char *path;
    shard *shards;
    entry *entries;
    int n_shards, n_entries;
};

/* ---- all kinds ---- */

static int compare_entries(const void *left, const void *right) {
    const entry *a = left, *b = right;
    return strcmp(a->tensor->name, b->tensor->name);
}

/* Makes the list of all tensors, once all files are open. */
static ls_status list_entries(lsi_weights *w) {
    int64_t n = 0;
    for (int s = 0; s < w->n_shards; s++) n += lsi_st_n_tensors(w->shards[s].file);
    if (n > INT_MAX) return lsi_fail(LS_ERR_UNSUPPORTED, "%s: %lld tensors", w->path, (long long)n);
    w->entries = lsi_calloc(LSI_MEM_OTHER, (size_t)n, sizeof *w->entries);
    LSI_TRY(lsi_check_alloc(w->entries));
    for (int s = 0; s < w->n_shards; s++)
        for (int i = 0; i < lsi_st_n_tensors(w->shards[s].file); i++)
            w->entries[w->n_entries++] = (entry){lsi_st_tensor_at(w->shards[s].file, i), s};
    qsort(w->entries, (size_t)n, sizeof *w->entries, compare_entries);
    return LS_OK;
}

static ls_status make_shards(lsi_weights *w, size_t n) {
    w->shards = lsi_calloc(LSI_MEM_OTHER, n, sizeof *w->shards);
    return lsi_check_alloc(w->shards);
}

/* Takes path over. */
static ls_status open_shard(lsi_weights *w, char *path) {
    shard *s = &w->shards[w->n_shards++];
    s->path = path;
    const char *slash = strrchr(path, '/');
    s->name = slash ? slash + 1 : path;
    return lsi_st_open(path, &s->file);
}

/* ---- one file ---- */

static ls_status fill_from_file(lsi_weights *w, const char *path) {
    LSI_TRY(lsi_check_alloc(w->path = lsi_strdup(path)));
    LSI_TRY(make_shards(w, 1));
    char *copy = lsi_strdup(path);
    LSI_TRY(lsi_check_alloc(copy));
    LSI_TRY(open_shard(w, copy));
    return list_entries(w);
}

/* ---- an index: what it names ---- */

static ls_status check_file_name(const lsi_weights *w, const char *tensor, const json_t *value) {
    static const char ENDING[] = ".safetensors";
    char shown_tensor[LSI_ST_SHOWN_BYTES], shown[LSI_ST_SHOWN_BYTES];
    lsi_st_shown(tensor, shown_tensor);
    if (!json_is_string(value))
        return lsi_fail(LS_ERR_FORMAT, "%s: \"weight_map\": the value of '%s' is not a text",
                        w->path, shown_tensor);
    const char *name = json_string_value(value);
    size_t length = strlen(name), ending = sizeof ENDING - 1;
    if (length > ending && length <= NAME_BYTES && name[0] != '.' && !strchr(name, '/') &&
        strcmp(name + length - ending, ENDING) == 0)
        return LS_OK;
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: \"weight_map\": tensor '%s' is in '%s', expected the name of a file in "
                    "the same folder that ends with %s",
                    w->path, shown_tensor, lsi_st_shown(name, shown), ENDING);
}

/* The files of the map, each once, as the keys of *names. */
static ls_status collect_names(const lsi_weights *w, const json_t *map, json_t *names) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        LSI_TRY(check_file_name(w, tensor, value));
        const char *name = json_string_value(value);
        if (json_object_get(names, name)) continue;
        if (json_object_set_new(names, name, json_null()) != 0)
            return lsi_fail(LS_ERR_MEMORY, "%s: listing the files", w->path);
    }
    return LS_OK;
}

static int compare_texts(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* In name order, so that the first error is the same each time. */
static ls_status open_sorted(lsi_weights *w, const char *folder, const char **sorted, size_t n) {
    qsort(sorted, n, sizeof *sorted, compare_texts);
    for (size_t i = 0; i < n; i++) {
        char *path;
        LSI_TRY(lsi_path_join(folder, sorted[i], &path));
        LSI_TRY(open_shard(w, path));
    }
    return LS_OK;
}

static ls_status open_names(lsi_weights *w, const char *folder, const json_t *names) {
    size_t n = json_object_size(names), i = 0;
    LSI_TRY(make_shards(w, n));
    const char **sorted = lsi_calloc(LSI_MEM_OTHER, n, sizeof *sorted);
    LSI_TRY(lsi_check_alloc(sorted));
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)names, name, value) sorted[i++] = name;
    ls_status status = open_sorted(w, folder, sorted, n);
    lsi_free(sorted);
    return status;
}

static ls_status open_shards(lsi_weights *w, const char *folder, const json_t *map) {
    json_t *names = json_object();
    if (!names) return lsi_fail(LS_ERR_MEMORY, "%s: listing the files", w->path);
    ls_status status = collect_names(w, map, names);
    if (status == LS_OK) status = open_names(w, folder, names);
    json_decref(names);
    return status;
}

/* ---- an index: held against the files ---- */

/* Everything in the files is in the map, under the file that has it. */
static ls_status check_files(const lsi_weights *w, const json_t *map) {
    char tensor[LSI_ST_SHOWN_BYTES], other[LSI_ST_SHOWN_BYTES];
    for (int i = 0; i < w->n_entries; i++) {
        const shard *s = &w->shards[w->entries[i].shard];
        const char *name = w->entries[i].tensor->name;
        const char *said = json_string_value(json_object_get(map, name));
        if (!said)
            return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s' of %s is not in \"weight_map\"",
                            w->path, lsi_st_shown(name, tensor), s->name);
        if (strcmp(said, s->name) != 0)
            return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s' is in %s, \"weight_map\" says '%s'",
                            w->path, lsi_st_shown(name, tensor), s->name,
                            lsi_st_shown(said, other));
    }
    return LS_OK;
}

/* Everything in the map is in some file, and by the check above in the right one. */
static ls_status check_map(const lsi_weights *w, const json_t *map) {
    char tensor[LSI_ST_SHOWN_BYTES], file[LSI_ST_SHOWN_BYTES];
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)map, name, value) {
        if (lsi_weights_find(w, name)) continue;
        return lsi_fail(LS_ERR_FORMAT, "%s: \"weight_map\" has tensor '%s' in '%s', which lacks it",
                        w->path, lsi_st_shown(name, tensor),
                        lsi_st_shown(json_string_value(value), file));
    }
    return LS_OK;
}

static ls_status fill_from_map(lsi_weights *w, const char *folder, const json_t *index) {
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return lsi_fail(LS_ERR_FORMAT, "%s: \"weight_map\" is %s", w->path,
                        map ? "no object, or an empty one" : "missing");
    LSI_TRY(open_shards(w, folder, map));
    LSI_TRY(list_entries(w));
    LSI_TRY(check_files(w, map));
    return check_map(w, map);
}

static ls_status fill_from_index(lsi_weights *w, const char *folder) {
    LSI_TRY(lsi_path_join(folder, LSI_INDEX_FILE, &w->path));
    json_t *index;
    LSI_TRY(lsi_file_read_json(w->path, INDEX_CAP_BYTES, &index));
    ls_status status = fill_from_map(w, folder, index);
    json_decref(index);
    return status;
}

/* ---- opening and looking up ---- */

/* Whether something is there under this name, of whatever kind. */
static ls_status look(const char *folder, const char *name, bool *is_there) {
    struct stat info;
    char *path;
    LSI_TRY(lsi_path_join(folder, name, &path));
    *is_there = stat(path, &info) == 0 || errno != ENOENT;
    lsi_free(path);
    return LS_OK;
}

/* Names the file that is expected, and says what else a folder from elsewhere may have. */
static ls_status refuse_folder(const char *folder) {
    bool has_pickle = false;
    LSI_TRY(look(folder, "pytorch_model.bin", &has_pickle));
    return lsi_fail(LS_ERR_NOT_FOUND, "%s/%s: No such file, and no %s either%s", folder,
                    LSI_WEIGHTS_FILE, LSI_INDEX_FILE,
                    has_pickle ? "; pytorch_model.bin is not read: load and save the model once "
                                 "with transformers, which writes safetensors"
                               : "");
}

static ls_status fill_from_folder(lsi_weights *w, const char *folder) {
    bool is_there = false;
    LSI_TRY(look(folder, LSI_WEIGHTS_FILE, &is_there));
    if (!is_there) {
        LSI_TRY(look(folder, LSI_INDEX_FILE, &is_there));
        return is_there ? fill_from_index(w, folder) : refuse_folder(folder);
    }
    char *path;
    LSI_TRY(lsi_path_join(folder, LSI_WEIGHTS_FILE, &path));
    ls_status status = fill_from_file(w, path);
    lsi_free(path);
    return status;
}

static ls_status open_with(ls_status (*fill)(lsi_weights *w, const char *path), const char *path,
                           lsi_weights **weights) {
    lsi_weights *opened = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *opened);
    LSI_TRY(lsi_check_alloc(opened));
    ls_status status = fill(opened, path);
    if (status == LS_OK)
        *weights = opened;
    else
        lsi_weights_close(opened);
    return status;
}

ls_status lsi_weights_open(const char *folder, lsi_weights **weights) {
    return open_with(fill_from_folder, folder, weights);
}

ls_status lsi_weights_open_file(const char *path, lsi_weights **weights) {
    return open_with(fill_from_file, path, weights);
}

void lsi_weights_close(lsi_weights *w) {
    if (!w) return;
    for (int s = 0; s < w->n_shards; s++) {
        lsi_st_close(w->shards[s].file);
        lsi_free(w->shards[s].path);
    }
    lsi_free(w->shards);
    lsi_free(w->entries);
    lsi_free(w->path);
    lsi_free(w);
}

const char *lsi_weights_path(const lsi_weights *w) {
    return w->path;
}

int lsi_weights_n_files(const lsi_weights *w) {
    return w->n_shards;
}

int lsi_weights_n_tensors(const lsi_weights *w) {
    return w->n_entries;
}

const lsi_st_tensor *lsi_weights_at(const lsi_weights *w, int i) {
    return w->entries[i].tensor;
}

static const entry *find_entry(const lsi_weights *w, const char *name) {
    const lsi_st_tensor wanted = {.name = name};
    const entry key = {.tensor = &wanted};
    return bsearch(&key, w->entries, (size_t)w->n_entries, sizeof key, compare_entries);
}

const lsi_st_tensor *lsi_weights_find(const lsi_weights *w, const char *name) {
    const entry *found = find_entry(w, name);
    return found ? found->tensor : NULL;
}

const char *lsi_weights_file_at(const lsi_weights *w, int i) {
    return w->shards[w->entries[i].shard].path;
}

const char *lsi_weights_file_of(const lsi_weights *w, const lsi_st_tensor *tensor) {
    const entry *found = find_entry(w, tensor->name);
    return found ? w->shards[found->shard].path : w->path;
}
