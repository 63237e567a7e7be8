/* Writing safetensors files (the format is described in safetensors.c).
 *
 * Invariant: what is written is what the reader accepts, byte for byte the same for the same
 * tensors in any order, and the number of data bytes is what the header says: shapes are held
 * against byte counts before the file is begun. The file appears under its name when it is whole
 * (base/file.h), so a full disk or a killed process leaves the old file.
 *
 * Layout: metadata first in the header, then tensors in name order; data in the same order. */
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/bf16.h"
#include "base/file.h"
#include "base/mem.h"

enum { LENGTH_BYTES = 8, ALIGN_BYTES = 8 };

static const char METADATA[] = "__metadata__";

/* ---- what callers may hand in ---- */

static bool is_rounded(const lsi_st_tensor *t) {
    return t->dtype == LS_DTYPE_BF16 && t->data_dtype == LS_DTYPE_F32;
}

static ls_status check_tensor(const char *path, const lsi_st_tensor *t) {
    char name[LSI_ST_SHOWN_BYTES];
    if (!t->name || strcmp(t->name, METADATA) == 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: a tensor cannot be named %s", path,
                        t->name ? METADATA : "NULL");
    lsi_st_shown(t->name, name);
    if (ls_dtype_bytes(t->dtype) == 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: tensor '%s': unknown dtype %d", path, name,
                        (int)t->dtype);
    if (t->n_dims < 0 || t->n_dims > LSI_ST_MAX_DIMS)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: tensor '%s': %d dims, at most %d allowed", path, name,
                        t->n_dims, LSI_ST_MAX_DIMS);
    if (t->data_dtype && t->data_dtype != t->dtype && !is_rounded(t))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: tensor '%s': cannot write %s as %s", path, name,
                        ls_dtype_name(t->data_dtype), ls_dtype_name(t->dtype));
    char shape[LSI_ST_SHOWN_BYTES];
    lsi_st_shape_text(t->n_dims, t->dims, shape);
    size_t expected;
    if (!lsi_st_shape_bytes(t, &expected))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: tensor '%s': shape %s is negative or too large", path,
                        name, shape);
    if (expected != t->bytes)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s: tensor '%s': shape %s of %s needs %zu bytes, %zu handed in", path,
                        name, shape, ls_dtype_name(t->dtype), expected, t->bytes);
    return LS_OK;
}

static int compare_names(const void *left, const void *right) {
    const lsi_st_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* Pointers to the tensors in name order; the caller frees them. */
static ls_status sort_tensors(const char *path, const lsi_st_tensor *tensors, int n_tensors,
                              const lsi_st_tensor ***sorted) {
    for (int i = 0; i < n_tensors; i++) LSI_TRY(check_tensor(path, &tensors[i]));
    const lsi_st_tensor **order = lsi_calloc(LSI_MEM_OTHER, (size_t)n_tensors, sizeof *order);
    LSI_TRY(lsi_check_alloc(order));
    for (int i = 0; i < n_tensors; i++) order[i] = &tensors[i];
    qsort(order, (size_t)n_tensors, sizeof *order, compare_names);
    for (int i = 1; i < n_tensors; i++) {
        if (compare_names(&order[i - 1], &order[i]) != 0) continue;
        char name[LSI_ST_SHOWN_BYTES];
        lsi_st_shown(order[i]->name, name);
        lsi_free(order);
        return lsi_fail(LS_ERR_ARGUMENT, "%s: two tensors named '%s'", path, name);
    }
    *sorted = order;
    return LS_OK;
}

/* ---- the header ---- */

/* Takes value over. jansson refuses texts that are not UTF-8; a NULL value means the same or that
 * memory ran out. */
static ls_status set_new(const char *path, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) == 0) return LS_OK;
    char shown[LSI_ST_SHOWN_BYTES];
    return lsi_fail(LS_ERR_ARGUMENT, "%s: header entry '%s' is not UTF-8, or memory ran out", path,
                    lsi_st_shown(key, shown));
}

static ls_status add_metadata(const char *path, json_t *header, const char *const *metadata) {
    json_t *texts = json_object();
    LSI_TRY(set_new(path, header, METADATA, texts));
    for (const char *const *pair = metadata; pair[0]; pair += 2) {
        if (!pair[1] || json_object_get(texts, pair[0]))
            return lsi_fail(LS_ERR_ARGUMENT, "%s: metadata '%s' has %s", path, pair[0],
                            pair[1] ? "two values" : "no value");
        LSI_TRY(set_new(path, texts, pair[0], json_string(pair[1])));
    }
    return LS_OK;
}

static json_t *entry_to_json(const lsi_st_tensor *t, size_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++)
        if (json_array_append_new(shape, json_integer(t->dims[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", ls_dtype_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + t->bytes));
}

static ls_status fill_header(const char *path, const lsi_st_tensor **tensors, int n_tensors,
                             const char *const *metadata, json_t *header) {
    if (metadata) LSI_TRY(add_metadata(path, header, metadata));
    size_t begin = 0;
    for (int i = 0; i < n_tensors; i++) {
        size_t end;
        if (__builtin_add_overflow(begin, tensors[i]->bytes, &end) || end > INT64_MAX)
            return lsi_fail(LS_ERR_ARGUMENT, "%s: the tensors together are too large", path);
        LSI_TRY(set_new(path, header, tensors[i]->name, entry_to_json(tensors[i], begin)));
        begin = end;
    }
    return LS_OK;
}

/* Length, JSON and padding as they stand in the file; from lsi_alloc. */
static ls_status frame_header(const char *path, const json_t *header, unsigned char **frame,
                              size_t *frame_bytes) {
    size_t text_bytes = json_dumpb(header, NULL, 0, JSON_COMPACT);
    if (text_bytes == 0) return lsi_fail(LS_ERR_MEMORY, "%s: making the header", path);
    size_t padded = (text_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (padded > LSI_ST_HEADER_CAP_BYTES)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: header of %zu bytes, at most %d allowed", path,
                        padded, LSI_ST_HEADER_CAP_BYTES);
    unsigned char *bytes = lsi_alloc(LSI_MEM_OTHER, LENGTH_BYTES + padded);
    LSI_TRY(lsi_check_alloc(bytes));
    for (int i = 0; i < LENGTH_BYTES; i++) bytes[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    memset(bytes + LENGTH_BYTES, ' ', padded);
    if (json_dumpb(header, (char *)bytes + LENGTH_BYTES, text_bytes, JSON_COMPACT) != text_bytes) {
        lsi_free(bytes);
        return lsi_fail(LS_ERR_MEMORY, "%s: making the header", path);
    }
    *frame = bytes;
    *frame_bytes = LENGTH_BYTES + padded;
    return LS_OK;
}

static ls_status make_header(const char *path, const lsi_st_tensor **tensors, int n_tensors,
                             const char *const *metadata, unsigned char **frame,
                             size_t *frame_bytes) {
    json_t *header = json_object();
    if (!header) return lsi_fail(LS_ERR_MEMORY, "%s: making the header", path);
    ls_status status = fill_header(path, tensors, n_tensors, metadata, header);
    if (status == LS_OK) status = frame_header(path, header, frame, frame_bytes);
    json_decref(header);
    return status;
}

/* ---- the file ---- */

static ls_status write_rounded(lsi_file_writer *writer, const float *values, size_t count) {
    enum { PIECE = 8192 };
    uint16_t halves[PIECE];
    for (size_t at = 0; at < count; at += PIECE) {
        size_t n = count - at < PIECE ? count - at : PIECE;
        lsi_bf16_from_floats(values + at, (int64_t)n, halves);
        LSI_TRY(lsi_file_write(writer, halves, n * sizeof *halves));
    }
    return LS_OK;
}

static ls_status write_tensor(lsi_file_writer *writer, const lsi_st_tensor *t, const void *data) {
    if (is_rounded(t)) return write_rounded(writer, data, t->bytes / sizeof(uint16_t));
    return t->bytes > 0 ? lsi_file_write(writer, data, t->bytes) : LS_OK;
}

static ls_status write_tensors(lsi_file_writer *writer, const lsi_st_tensor **tensors,
                               int n_tensors, lsi_st_get_fn get, void *context) {
    for (int i = 0; i < n_tensors; i++) {
        const void *data = NULL;
        LSI_TRY(get(context, tensors[i], &data));
        LSI_TRY(write_tensor(writer, tensors[i], data));
    }
    return LS_OK;
}

static ls_status begin_file(const char *path, const lsi_st_tensor **tensors, int n_tensors,
                            const char *const *metadata, lsi_file_writer **writer) {
    unsigned char *frame = NULL;
    size_t frame_bytes = 0;
    lsi_file_writer *begun;
    LSI_TRY(make_header(path, tensors, n_tensors, metadata, &frame, &frame_bytes));
    ls_status status = lsi_file_begin(path, &begun);
    if (status == LS_OK) {
        status = lsi_file_write(begun, frame, frame_bytes);
        if (status == LS_OK)
            *writer = begun;
        else
            lsi_file_cancel(begun);
    }
    lsi_free(frame);
    return status;
}

ls_status lsi_st_begin(const char *path, const lsi_st_tensor *tensors, int n_tensors,
                       const char *const *metadata, lsi_st_get_fn get, void *context,
                       lsi_file_writer **writer) {
    if (n_tensors < 0) return lsi_fail(LS_ERR_ARGUMENT, "%s: %d tensors", path, n_tensors);
    const lsi_st_tensor **sorted = NULL;
    lsi_file_writer *begun = NULL;
    LSI_TRY(sort_tensors(path, tensors, n_tensors, &sorted));
    ls_status status = begin_file(path, sorted, n_tensors, metadata, &begun);
    if (status == LS_OK) status = write_tensors(begun, sorted, n_tensors, get, context);
    if (status == LS_OK)
        *writer = begun;
    else
        lsi_file_cancel(begun);
    lsi_free(sorted);
    return status;
}

/* ---- numbers that are in memory ---- */

static ls_status get_data(void *context, const lsi_st_tensor *t, const void **data) {
    (void)context;
    *data = t->data;
    return LS_OK;
}

static ls_status check_data(const char *path, const lsi_st_tensor *t) {
    char name[LSI_ST_SHOWN_BYTES];
    if (t->data || t->bytes == 0) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT, "%s: tensor '%s' has no data", path,
                    lsi_st_shown(t->name ? t->name : "NULL", name));
}

ls_status lsi_st_write(const char *path, const lsi_st_tensor *tensors, int n_tensors,
                       const char *const *metadata) {
    lsi_file_writer *writer = NULL;
    for (int i = 0; i < n_tensors; i++) LSI_TRY(check_data(path, &tensors[i]));
    LSI_TRY(lsi_st_begin(path, tensors, n_tensors, metadata, get_data, NULL, &writer));
    return lsi_file_commit(writer);
}
