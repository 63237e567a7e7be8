/* Reading safetensors files (the format is described in safetensors.c).
 *
 * Invariant: after lsi_st_open every tensor lies inside the data section, its byte count is what
 * its shape and type ask for, and the tensors cover the data section from first to last byte
 * without overlap or gap. A file that breaks this is refused with the name of the tensor and the
 * numbers that disagree.
 *
 * Nothing is believed before it is compared with the real size of the file: first the length of the
 * header, then the header as JSON (no duplicate names), then each entry alone, then all of them in
 * the order of their offsets. Memory in use: the parsed header while opening; afterwards one array
 * of tensors and one block of names, both in proportion to the header.
 *
 * Read it from the bottom: lsi_st_open, parse, then the steps in order. */
#include "checkpoint/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "base/mem.h"

enum { LENGTH_BYTES = 8 };

static const char METADATA[] = "__metadata__";

struct lsi_st_file {
    const void *map; /* of the whole file; NULL: the caller's memory */
    size_t map_bytes;
    lsi_st_tensor *tensors;
    int n_tensors;
    char *names;
};

/* What the steps of opening share. */
typedef struct source {
    const char *label;
    const unsigned char *header, *data;
    size_t header_bytes, data_bytes;
} source;

/* ---- step 1: the frame ---- */

static ls_status split(const unsigned char *bytes, size_t n_bytes, source *src) {
    if (n_bytes < LENGTH_BYTES)
        return lsi_fail(LS_ERR_FORMAT, "%s: not a safetensors file: %zu bytes, at least 8 expected",
                        src->label, n_bytes);
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | bytes[i];
    size_t rest = n_bytes - LENGTH_BYTES;
    if (length > rest)
        return lsi_fail(LS_ERR_FORMAT,
                        "%s: not a safetensors file, or cut off: offset 0 promises a header of "
                        "%llu bytes, but only %zu follow",
                        src->label, (unsigned long long)length, rest);
    if (length > LSI_ST_HEADER_CAP_BYTES)
        return lsi_fail(LS_ERR_FORMAT, "%s: header of %llu bytes, at most %d allowed", src->label,
                        (unsigned long long)length, LSI_ST_HEADER_CAP_BYTES);
    if (length == 0 || bytes[LENGTH_BYTES] != '{')
        return lsi_fail(
            LS_ERR_FORMAT,
            "%s: not a safetensors file: the header does not start with '{' at offset 8",
            src->label);
    src->header = bytes + LENGTH_BYTES;
    src->header_bytes = (size_t)length;
    src->data = src->header + src->header_bytes;
    src->data_bytes = rest - src->header_bytes;
    return LS_OK;
}

/* ---- step 2: the header as JSON ---- */

static ls_status parse_header(const source *src, json_t **header) {
    json_error_t error;
    *header =
        json_loadb((const char *)src->header, src->header_bytes, JSON_REJECT_DUPLICATES, &error);
    if (*header) return LS_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return lsi_fail(LS_ERR_MEMORY, "%s: parsing a header of %zu bytes", src->label,
                        src->header_bytes);
    char shown[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_FORMAT, "%s: header is not valid JSON at offset %lld: %s", src->label,
                    (long long)LENGTH_BYTES + error.position, lsi_st_shown(error.text, shown));
}

static ls_status check_metadata(const source *src, const json_t *metadata) {
    if (!json_is_object(metadata))
        return lsi_fail(LS_ERR_FORMAT, "%s: %s is not an object", src->label, METADATA);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        char shown[LSI_ST_SHOWN_BYTES];
        if (!json_is_string(value))
            return lsi_fail(LS_ERR_FORMAT, "%s: %s: the value of '%s' is not a text", src->label,
                            METADATA, lsi_st_shown(key, shown));
    }
    return LS_OK;
}

/* Makes room for all tensors and their names. */
static ls_status allocate(const json_t *header, lsi_st_file *file) {
    size_t n_tensors = 0, name_bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)header, key, value) {
        if (strcmp(key, METADATA) == 0) continue;
        n_tensors++;
        name_bytes += strlen(key) + 1;
    }
    if (n_tensors > INT_MAX) return lsi_fail(LS_ERR_UNSUPPORTED, "%zu tensors", n_tensors);
    file->tensors = lsi_calloc(LSI_MEM_OTHER, n_tensors, sizeof *file->tensors);
    LSI_TRY(lsi_check_alloc(file->tensors));
    file->names = lsi_alloc(LSI_MEM_OTHER, name_bytes);
    return lsi_check_alloc(file->names);
}

/* ---- step 3: one entry ---- */

static const struct {
    const char *text;
    ls_dtype dtype;
} DTYPES[] = {
#define DTYPE_ROW(name, number, bytes, text) {text, LS_DTYPE_##name},
    LS_DTYPE_TABLE(DTYPE_ROW)
#undef DTYPE_ROW
    /* Bytes of 0 and 1; old GPT-2 files keep their attention masks so. */
    {"BOOL", LS_DTYPE_U8},
};

static ls_status entry_fail(const source *src, const lsi_st_tensor *t, const char *what) {
    char name[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s': %s", src->label, lsi_st_shown(t->name, name),
                    what);
}

static ls_status check_keys(const source *src, const lsi_st_tensor *t, json_t *entry) {
    if (!json_is_object(entry)) return entry_fail(src, t, "not an object");
    if (!json_object_get(entry, "dtype")) return entry_fail(src, t, "no dtype");
    if (!json_object_get(entry, "shape")) return entry_fail(src, t, "no shape");
    if (!json_object_get(entry, "data_offsets")) return entry_fail(src, t, "no data_offsets");
    /* What another key would mean for the data cannot be guessed. */
    if (json_object_size(entry) > 3)
        return entry_fail(src, t, "has keys other than dtype, shape and data_offsets");
    return LS_OK;
}

static ls_status read_dtype(const source *src, const json_t *value, lsi_st_tensor *t) {
    if (!json_is_string(value)) return entry_fail(src, t, "dtype is not a text");
    const char *text = json_string_value(value);
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++) {
        if (strcmp(text, DTYPES[i].text) != 0) continue;
        t->dtype = DTYPES[i].dtype;
        return LS_OK;
    }
    char name[LSI_ST_SHOWN_BYTES], shown[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_UNSUPPORTED,
                    "%s: tensor '%s': dtype '%s', expected F32, F64, BF16, F16, I8, I32, I64, U8 "
                    "or BOOL",
                    src->label, lsi_st_shown(t->name, name), lsi_st_shown(text, shown));
}

static ls_status read_shape(const source *src, const json_t *value, lsi_st_tensor *t) {
    if (!json_is_array(value)) return entry_fail(src, t, "shape is not a list");
    if (json_array_size(value) > LSI_ST_MAX_DIMS) {
        char name[LSI_ST_SHOWN_BYTES];
        return lsi_fail(LS_ERR_UNSUPPORTED, "%s: tensor '%s': %zu dims, at most %d allowed",
                        src->label, lsi_st_shown(t->name, name), json_array_size(value),
                        LSI_ST_MAX_DIMS);
    }
    t->n_dims = (int)json_array_size(value);
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *dim = json_array_get(value, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return entry_fail(src, t, "a dim of its shape is not a non-negative integer");
        t->dims[i] = json_integer_value(dim);
    }
    return LS_OK;
}

static ls_status read_offsets(const source *src, const json_t *value, lsi_st_tensor *t) {
    const json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(first) ||
        !json_is_integer(second))
        return entry_fail(src, t, "data_offsets are not two integers");
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    char name[LSI_ST_SHOWN_BYTES];
    if (begin < 0 || begin > end || (uint64_t)end > src->data_bytes)
        return lsi_fail(LS_ERR_FORMAT,
                        "%s: tensor '%s': data_offsets [%lld, %lld] are not inside the %zu bytes "
                        "of data",
                        src->label, lsi_st_shown(t->name, name), (long long)begin, (long long)end,
                        src->data_bytes);
    t->data = src->data + begin;
    t->bytes = (size_t)(end - begin);
    return LS_OK;
}

static ls_status check_bytes(const source *src, const lsi_st_tensor *t) {
    char name[LSI_ST_SHOWN_BYTES], shape[LSI_ST_SHOWN_BYTES];
    lsi_st_shape_text(t->n_dims, t->dims, shape);
    size_t expected;
    if (!lsi_st_shape_bytes(t, &expected))
        return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s': shape %s is too large", src->label,
                        lsi_st_shown(t->name, name), shape);
    if (expected != t->bytes)
        return lsi_fail(LS_ERR_FORMAT,
                        "%s: tensor '%s': shape %s of %s needs %zu bytes, its data_offsets hold "
                        "%zu",
                        src->label, lsi_st_shown(t->name, name), shape, ls_dtype_name(t->dtype),
                        expected, t->bytes);
    return LS_OK;
}

static ls_status read_entry(const source *src, json_t *entry, lsi_st_tensor *t) {
    LSI_TRY(check_keys(src, t, entry));
    LSI_TRY(read_dtype(src, json_object_get(entry, "dtype"), t));
    LSI_TRY(read_shape(src, json_object_get(entry, "shape"), t));
    LSI_TRY(read_offsets(src, json_object_get(entry, "data_offsets"), t));
    return check_bytes(src, t);
}

static ls_status read_entries(const source *src, const json_t *header, lsi_st_file *file) {
    LSI_TRY(allocate(header, file));
    char *name = file->names;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)header, key, value) {
        if (strcmp(key, METADATA) == 0) {
            LSI_TRY(check_metadata(src, value));
            continue;
        }
        lsi_st_tensor *t = &file->tensors[file->n_tensors++];
        size_t bytes = strlen(key) + 1;
        t->name = memcpy(name, key, bytes);
        name += bytes;
        LSI_TRY(read_entry(src, value, t));
    }
    return LS_OK;
}

/* ---- step 4: all entries together ---- */

/* By place; an empty tensor stands before the one that starts where it does. */
static int compare_places(const void *left, const void *right) {
    const lsi_st_tensor *a = left, *b = right;
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const lsi_st_tensor *)left)->name, ((const lsi_st_tensor *)right)->name);
}

static ls_status check_cover(const source *src, const lsi_st_file *file) {
    size_t covered = 0;
    for (int i = 0; i < file->n_tensors; i++) {
        const lsi_st_tensor *t = &file->tensors[i];
        size_t begin = (size_t)((const unsigned char *)t->data - src->data);
        char name[LSI_ST_SHOWN_BYTES];
        if (begin != covered)
            return lsi_fail(LS_ERR_FORMAT, "%s: tensor '%s' starts at data offset %zu, %s %zu",
                            src->label, lsi_st_shown(t->name, name), begin,
                            begin < covered ? "inside another one that ends at"
                                            : "after a gap that starts at",
                            covered);
        covered += t->bytes;
    }
    if (covered != src->data_bytes)
        return lsi_fail(LS_ERR_FORMAT, "%s: %zu bytes follow the last tensor at data offset %zu",
                        src->label, src->data_bytes - covered, covered);
    return LS_OK;
}

static void sort_tensors(lsi_st_file *file, int (*compare)(const void *, const void *)) {
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, compare);
}

/* ---- opening and looking up ---- */

static ls_status parse(const void *data, size_t bytes, const char *label, lsi_st_file *file) {
    source src = {.label = label};
    LSI_TRY(split(data, bytes, &src));
    json_t *header;
    LSI_TRY(parse_header(&src, &header));
    ls_status status = read_entries(&src, header, file);
    json_decref(header);
    LSI_TRY(status);
    sort_tensors(file, compare_places);
    LSI_TRY(check_cover(&src, file));
    sort_tensors(file, compare_names);
    return LS_OK;
}

ls_status lsi_st_open_memory(const void *data, size_t bytes, const char *label,
                             lsi_st_file **file) {
    lsi_st_file *opened = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *opened);
    LSI_TRY(lsi_check_alloc(opened));
    ls_status status = parse(data, bytes, label, opened);
    if (status == LS_OK)
        *file = opened;
    else
        lsi_st_close(opened);
    return status;
}

ls_status lsi_st_open(const char *path, lsi_st_file **file) {
    const void *map;
    size_t map_bytes;
    LSI_TRY(lsi_file_map(path, &map, &map_bytes));
    lsi_st_file *opened;
    ls_status status = lsi_st_open_memory(map, map_bytes, path, &opened);
    if (status != LS_OK) {
        lsi_file_unmap(map, map_bytes);
        return status;
    }
    opened->map = map;
    opened->map_bytes = map_bytes;
    *file = opened;
    return LS_OK;
}

void lsi_st_close(lsi_st_file *file) {
    if (!file) return;
    if (file->map) lsi_file_unmap(file->map, file->map_bytes);
    lsi_free(file->tensors);
    lsi_free(file->names);
    lsi_free(file);
}

int lsi_st_n_tensors(const lsi_st_file *file) {
    return file->n_tensors;
}

const lsi_st_tensor *lsi_st_tensor_at(const lsi_st_file *file, int i) {
    return &file->tensors[i];
}

const lsi_st_tensor *lsi_st_find(const lsi_st_file *file, const char *name) {
    const lsi_st_tensor key = {.name = name};
    return bsearch(&key, file->tensors, (size_t)file->n_tensors, sizeof key, compare_names);
}
