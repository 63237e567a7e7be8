/* Tokenizers: one row each in the table below.
 *
 * A row makes a tokenizer of its kind and says how large a piece of text may be encoded on its own
 * (0: only the whole text at once, because a token may reach over any border), so that a file much
 * larger than memory for int32 ids can be encoded piece by piece. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt.h"
#include "data/data.h"
#include "data/tokenizer.h"

typedef struct tokenizer_class {
    const char *name;
    int64_t vocab_size;
    size_t piece_bytes;
    ls_status (*encode)(const char *text, size_t bytes, int32_t *ids, int64_t *n_ids);
    const char *(*decode)(const lsi_tokenizer *tokenizer, int32_t id, size_t *bytes);
} tokenizer_class;

struct lsi_tokenizer {
    const tokenizer_class *class;
    char byte_of_id[256]; /* decode lends one byte each */
};

/* ---- byte: ids are bytes ---- */

static ls_status byte_encode(const char *text, size_t bytes, int32_t *ids, int64_t *n_ids) {
    for (size_t i = 0; i < bytes; i++) ids[i] = (unsigned char)text[i];
    *n_ids = (int64_t)bytes;
    return LS_OK;
}

static const char *byte_decode(const lsi_tokenizer *tokenizer, int32_t id, size_t *bytes) {
    *bytes = 1;
    return &tokenizer->byte_of_id[id];
}

static const tokenizer_class classes[] = {
    {"byte", 256, 1 << 20, byte_encode, byte_decode},
};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

/* ---- the interface ---- */

static ls_status unknown_name(const char *name) {
    const char *names[N_CLASSES + 1] = {0};
    char known[256] = "";
    for (int i = 0; i < N_CLASSES; i++) {
        names[i] = classes[i].name;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", classes[i].name);
    }
    const char *near = lsi_nearest(name, names);
    return lsi_fail(LS_ERR_NOT_FOUND, "unknown tokenizer '%s'; known: %s%s%s%s", name, known,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

ls_status lsi_tokenizer_create(const char *name, lsi_tokenizer **tokenizer) {
    const tokenizer_class *class = NULL;
    for (int i = 0; i < N_CLASSES && !class; i++)
        if (strcmp(classes[i].name, name) == 0) class = &classes[i];
    if (!class) return unknown_name(name);
    lsi_tokenizer *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->class = class;
    for (int i = 0; i < 256; i++) made->byte_of_id[i] = (char)i;
    *tokenizer = made;
    return LS_OK;
}

void lsi_tokenizer_destroy(lsi_tokenizer *tokenizer) {
    lsi_free(tokenizer);
}

const char *lsi_tokenizer_name(const lsi_tokenizer *tokenizer) {
    return tokenizer->class->name;
}

int64_t lsi_tokenizer_vocab_size(const lsi_tokenizer *tokenizer) {
    return tokenizer->class->vocab_size;
}

size_t lsi_tokenizer_piece_bytes(const lsi_tokenizer *tokenizer) {
    return tokenizer->class->piece_bytes;
}

/* No known tokenizer makes more tokens than bytes, so one int32 a byte is room enough. */
ls_status lsi_tokenizer_encode(const lsi_tokenizer *tokenizer, const char *text, size_t bytes,
                               int32_t **ids, int64_t *n_ids) {
    if (bytes > PTRDIFF_MAX / sizeof(int32_t))
        return lsi_fail(LS_ERR_MEMORY, "a text of %zu bytes is too long to encode at once", bytes);
    int32_t *made = lsi_alloc(LSI_MEM_OTHER, bytes * sizeof(int32_t));
    LSI_TRY(lsi_check_alloc(made));
    int64_t n_made;
    ls_status status = tokenizer->class->encode(text, bytes, made, &n_made);
    if (status != LS_OK) {
        lsi_free(made);
        return status;
    }
    *ids = made;
    *n_ids = n_made;
    return LS_OK;
}

const char *lsi_tokenizer_decode(const lsi_tokenizer *tokenizer, int32_t id, size_t *bytes) {
    *bytes = 0;
    if (id < 0 || id >= tokenizer->class->vocab_size) return "";
    return tokenizer->class->decode(tokenizer, id, bytes);
}
