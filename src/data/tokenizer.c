/* Tokenizers: finding the kind, and the interface over all of them.
 *
 * A kind is a row below. A name of a kind that needs no file makes it; anything else is a path: of
 * a file, whose content tells the kind, or of a folder, where the usual names are looked for row by
 * row. The files a tokenizer was made from are kept as they were, so that it can be saved beside a
 * model: a file that changed meanwhile cannot slip in. */
#include "data/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"

static const lsi_tokenizer_class *const classes[] = {&lsi_tokenizer_byte, &lsi_tokenizer_json,
                                                     &lsi_tokenizer_llama2c, &lsi_tokenizer_gpt2};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

/* ---- names and paths that lead nowhere ---- */

/* "tokenizer.json, tokenizer.bin, …" */
static const char *list_files(char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < N_CLASSES; i++)
        for (int k = 0; classes[i]->files[k] && used < size; k++)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     classes[i]->files[k]);
    return text;
}

static ls_status refuse_name(const char *name) {
    char files[256];
    const char *names[N_CLASSES + 1] = {0};
    for (int i = 0; i < N_CLASSES; i++) names[i] = classes[i]->name;
    const char *near = lsi_nearest(name, names);
    for (int i = 0; i < N_CLASSES; i++)
        if (strcmp(name, names[i]) == 0)
            return lsi_fail(LS_ERR_NOT_FOUND,
                            "tokenizer '%s' is read from a file, and there is none of that name; "
                            "give the path of its %s",
                            name, classes[i]->files[0]);
    return lsi_fail(
        LS_ERR_NOT_FOUND,
        "unknown tokenizer '%s'; known: byte, or the path of a file or folder (%s)%s%s%s", name,
        list_files(files, sizeof files), near ? "; did you mean '" : "", near ? near : "",
        near ? "'?" : "");
}

static ls_status refuse_folder(const char *path) {
    char files[256], sentence_piece[4096];
    struct stat info;
    int n = snprintf(sentence_piece, sizeof sentence_piece, "%s/tokenizer.model", path);
    bool is_there = n > 0 && (size_t)n < sizeof sentence_piece && stat(sentence_piece, &info) == 0;
    return lsi_fail(LS_ERR_NOT_FOUND, "folder %s has no tokenizer that can be read; expected %s%s",
                    path, list_files(files, sizeof files),
                    is_there ? " (its tokenizer.model becomes a tokenizer.bin with llama2.c's "
                               "tokenizer.py)"
                             : "");
}

static ls_status refuse_content(const char *path) {
    char files[256];
    return lsi_fail(LS_ERR_FORMAT, "%s: no tokenizer of a known kind; expected one of %s", path,
                    list_files(files, sizeof files));
}

/* ---- making ---- */

static ls_status make(const lsi_tokenizer_class *class, lsi_tokenizer **tokenizer) {
    lsi_tokenizer *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->class = class;
    made->begin_id = made->end_id = -1;
    for (int i = 0; i < 256; i++) made->byte_of_value[i] = (char)i;
    *tokenizer = made;
    return LS_OK;
}

static ls_status load(const lsi_tokenizer_class *class, const char *path, char *data, size_t bytes,
                      lsi_tokenizer **tokenizer) {
    lsi_tokenizer *made = NULL;
    ls_status status = make(class, &made);
    if (status != LS_OK) {
        lsi_free(data);
        return status;
    }
    made->files[0] = (lsi_tokenizer_file){class->files[0], data, bytes};
    status = class->load(made, path, data, bytes);
    if (status != LS_OK) {
        lsi_tokenizer_destroy(made);
        return lsi_context(status, "tokenizer");
    }
    *tokenizer = made;
    return LS_OK;
}

ls_status lsi_tokenizer_create_from(const char *path, char *data, size_t bytes,
                                    lsi_tokenizer **tokenizer) {
    for (int i = 0; i < N_CLASSES; i++)
        if (classes[i]->knows && classes[i]->knows(data, bytes))
            return load(classes[i], path, data, bytes, tokenizer);
    lsi_free(data);
    return refuse_content(path);
}

static ls_status load_file(const char *path, lsi_tokenizer **tokenizer) {
    char *data;
    size_t bytes;
    LSI_TRY(lsi_context(lsi_file_read(path, LSI_TOKENIZER_CAP_BYTES, &data, &bytes), "tokenizer"));
    return lsi_tokenizer_create_from(path, data, bytes, tokenizer);
}

static ls_status load_folder(const char *folder, lsi_tokenizer **tokenizer) {
    char path[4096];
    struct stat info;
    for (int i = 0; i < N_CLASSES; i++)
        for (int k = 0; classes[i]->files[k]; k++) {
            int n = snprintf(path, sizeof path, "%s/%s", folder, classes[i]->files[k]);
            if (n > 0 && (size_t)n < sizeof path && stat(path, &info) == 0)
                return load_file(path, tokenizer);
        }
    return refuse_folder(folder);
}

ls_status lsi_tokenizer_create(const char *spec, lsi_tokenizer **tokenizer) {
    struct stat info;
    for (int i = 0; i < N_CLASSES; i++)
        if (!classes[i]->files[0] && strcmp(classes[i]->name, spec) == 0)
            return load(classes[i], spec, NULL, 0, tokenizer);
    if (stat(spec, &info) == 0)
        return S_ISDIR(info.st_mode) ? load_folder(spec, tokenizer) : load_file(spec, tokenizer);
    if (errno == ENOENT) return refuse_name(spec);
    return lsi_fail_errno(LS_ERR_IO, "tokenizer %s cannot be opened", spec);
}

void lsi_tokenizer_destroy(lsi_tokenizer *tokenizer) {
    if (!tokenizer) return;
    for (int i = 0; i < 2; i++) lsi_free(tokenizer->files[i].data);
    lsi_merges_fini(&tokenizer->merges);
    lsi_vocab_fini(&tokenizer->vocab);
    lsi_free(tokenizer);
}

ls_status lsi_tokenizer_save(const lsi_tokenizer *tokenizer, const char *folder) {
    for (int i = 0; i < 2; i++) {
        const lsi_tokenizer_file *file = &tokenizer->files[i];
        char path[4096];
        if (!file->data) continue;
        int n = snprintf(path, sizeof path, "%s/%s", folder, file->name);
        if (n < 0 || (size_t)n >= sizeof path)
            return lsi_fail(LS_ERR_ARGUMENT, "saving the tokenizer: the path is longer than %zu",
                            sizeof path);
        LSI_TRY(
            lsi_context(lsi_file_replace(path, file->data, file->bytes), "saving the tokenizer"));
    }
    if (!tokenizer->class->save_more) return LS_OK;
    return lsi_context(tokenizer->class->save_more(tokenizer, folder), "saving the tokenizer");
}

/* ---- the interface ---- */

const char *lsi_tokenizer_name(const lsi_tokenizer *tokenizer) {
    return tokenizer->class->name;
}

int64_t lsi_tokenizer_vocab_size(const lsi_tokenizer *tokenizer) {
    return tokenizer->vocab_size;
}

int32_t lsi_tokenizer_begin_id(const lsi_tokenizer *tokenizer) {
    return tokenizer->begin_id;
}

int32_t lsi_tokenizer_end_id(const lsi_tokenizer *tokenizer) {
    return tokenizer->end_id;
}

/* Ids become the caller's; the room for one id a byte is given back where it was too much. */
ls_status lsi_tokenizer_encode(const lsi_tokenizer *tokenizer, const char *text, size_t bytes,
                               int32_t **ids, int64_t *n_ids) {
    lsi_encoder encoder;
    ls_status status = lsi_encoder_init(&encoder, tokenizer, text, bytes);
    if (status == LS_OK) status = lsi_encoder_next(&encoder, bytes);
    if (status == LS_OK) {
        int32_t *fitted = NULL;
        if (bytes > 4096)
            fitted =
                lsi_realloc(LSI_MEM_OTHER, encoder.ids, (size_t)encoder.n_ids * sizeof *fitted);
        *ids = fitted ? fitted : encoder.ids;
        *n_ids = encoder.n_ids;
        encoder.ids = NULL;
    }
    lsi_encoder_fini(&encoder);
    return status;
}

const char *lsi_tokenizer_decode(const lsi_tokenizer *tokenizer, int32_t previous, int32_t id,
                                 size_t *bytes) {
    *bytes = 0;
    if (id < 0 || id >= tokenizer->vocab_size) return "";
    return tokenizer->class->decode(tokenizer, previous, id, bytes);
}
