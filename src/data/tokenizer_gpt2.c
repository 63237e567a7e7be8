/* GPT-2's tokenizer from its list of merges: vocab.bpe as OpenAI published it, merges.txt as
 * Hugging Face calls the same file.
 *
 *     #version: 0.2
 *     Ġ t               one merge a line, the first goes first
 *     Ġ a
 *     …
 *
 * The list is enough: ids 0 … 255 are the bytes in OpenAI's order, then the results of the merges
 * in order, then <|endoftext|>. Where the vocabulary lies beside it (vocab.json with merges.txt,
 * encoder.json with vocab.bpe), the ids are taken from there. Saved are always both, as merges.txt
 * and vocab.json. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/bpe.h"

static const char END_OF_TEXT[] = "<|endoftext|>";

static bool knows(const char *data, size_t bytes) {
    return bytes > 0 && !memchr(data, '\0', bytes);
}

/* ---- lines ---- */

/* The next line with something in it, without its end; false after the last. */
static bool next_line(const char **at, const char *end, const char **line, size_t *n,
                      int64_t *number) {
    while (*at < end) {
        const char *stop = memchr(*at, '\n', (size_t)(end - *at));
        *line = *at;
        *n = (size_t)((stop ? stop : end) - *at);
        *at = stop ? stop + 1 : end;
        ++*number;
        if (*n > 0 && (*line)[*n - 1] == '\r') --*n;
        if (*number == 1 && *n >= 8 && memcmp(*line, "#version", 8) == 0) continue;
        if (*n > 0) return true;
    }
    return false;
}

static int64_t count_lines(const char *data, size_t bytes) {
    const char *at = data, *line;
    int64_t number = 0, n_lines = 0;
    size_t n;
    while (next_line(&at, data + bytes, &line, &n, &number)) n_lines++;
    return n_lines;
}

static ls_status add_merges(lsi_tokenizer *t, const char *path, const char *data, size_t bytes,
                            bool makes_tokens) {
    const char *at = data, *line;
    int64_t number = 0;
    size_t n;
    while (next_line(&at, data + bytes, &line, &n, &number)) {
        int32_t product = makes_tokens ? (int32_t)(256 + t->merges.n) : -1;
        LSI_TRY(lsi_context(lsi_bpe_add_merge_line(t, line, n, product), "%s:%lld", path,
                            (long long)number));
    }
    return LS_OK;
}

/* ---- vocabulary ---- */

/* Bytes, results of merges, <|endoftext|>. */
static ls_status make_vocab(lsi_tokenizer *t, int64_t n_merges, size_t bytes) {
    t->vocab_size = 256 + n_merges + 1;
    LSI_TRY(lsi_vocab_init(&t->vocab, t->vocab_size, 256 + bytes + sizeof END_OF_TEXT));
    for (int i = 0; i < 256; i++) {
        char byte = (char)lsi_bpe_byte_at(i);
        lsi_vocab_add(&t->vocab, i, &byte, 1, true);
    }
    lsi_vocab_add(&t->vocab, t->vocab_size - 1, END_OF_TEXT, strlen(END_OF_TEXT), false);
    t->end_id = (int32_t)(t->vocab_size - 1);
    return LS_OK;
}

/* Whether a vocabulary lies beside the list; its path then. */
static bool find_vocab(const char *path, char *beside, size_t size, const char **name) {
    static const char *const pairs[][2] = {{"merges.txt", "vocab.json"},
                                           {"vocab.bpe", "encoder.json"}};
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    struct stat info;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(beside, size, "%.*s%s", (int)(file - path), path, pairs[i][1]);
        *name = "vocab.json";
        if (strcmp(file, pairs[i][0]) == 0 && n > 0 && (size_t)n < size)
            return stat(beside, &info) == 0;
    }
    return false;
}

static ls_status read_vocab(lsi_tokenizer *t, const char *path, const char *name) {
    lsi_tokenizer_file *file = &t->files[1];
    json_error_t error;
    LSI_TRY(lsi_file_read(path, LSI_TOKENIZER_CAP_BYTES, &file->data, &file->bytes));
    file->name = name;
    json_t *vocab = json_loadb(file->data, file->bytes, JSON_REJECT_DUPLICATES, &error);
    if (!vocab)
        return lsi_fail(LS_ERR_FORMAT, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    ls_status status = lsi_bpe_load_vocab(t, vocab, NULL, file->bytes);
    json_decref(vocab);
    LSI_TRY(lsi_context(status, "%s", path));
    t->end_id = lsi_vocab_find(&t->vocab, END_OF_TEXT, strlen(END_OF_TEXT));
    return LS_OK;
}

/* ---- saving ---- */

static ls_status list_tokens(const lsi_tokenizer *t, json_t *list) {
    for (int64_t id = 0; id < t->vocab_size; id++) {
        char symbols[4 * LSI_BPE_TOKEN_BYTES + 1];
        size_t n;
        const char *text = lsi_vocab_text(&t->vocab, id, &n);
        lsi_bpe_symbols_of(text, n, symbols);
        if (json_object_set_new(list, symbols, json_integer(id)) != 0)
            return lsi_fail(LS_ERR_MEMORY, "no memory for %lld tokens", (long long)t->vocab_size);
    }
    return LS_OK;
}

/* Other programs want the ids said, so a list of merges that came alone gets its vocabulary. */
static ls_status save_vocab(const lsi_tokenizer *t, const char *folder) {
    char path[4096];
    if (t->files[1].data) return LS_OK; /* saved as it came */
    int n = snprintf(path, sizeof path, "%s/vocab.json", folder);
    if (n < 0 || (size_t)n >= sizeof path)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: this path is too long", folder);
    json_t *list = json_object();
    ls_status status =
        list ? list_tokens(t, list) : lsi_fail(LS_ERR_MEMORY, "no memory for the vocabulary");
    if (status == LS_OK) status = lsi_file_replace_json(path, list);
    json_decref(list);
    return status;
}

/* ---- both ---- */

static ls_status load(lsi_tokenizer *t, const char *path, const char *data, size_t bytes) {
    char vocab_path[4096];
    const char *name;
    int64_t n_merges = count_lines(data, bytes);
    if (n_merges > LSI_VOCAB_MAX - 257)
        return lsi_fail(LS_ERR_FORMAT, "%s: %lld merges, expected at most %d", path,
                        (long long)n_merges, LSI_VOCAB_MAX - 257);
    bool has_vocab = find_vocab(path, vocab_path, sizeof vocab_path, &name);
    LSI_TRY(has_vocab ? read_vocab(t, vocab_path, name) : make_vocab(t, n_merges, bytes));
    LSI_TRY(lsi_merges_init(&t->merges, n_merges));
    LSI_TRY(add_merges(t, path, data, bytes, !has_vocab));
    return lsi_context(lsi_bpe_finish(t), "%s", has_vocab ? vocab_path : path);
}

const lsi_tokenizer_class lsi_tokenizer_gpt2 = {.name = "gpt2",
                                                .files = {"merges.txt", "vocab.bpe"},
                                                .knows = knows,
                                                .load = load,
                                                .word = lsi_bpe_word,
                                                .spell = lsi_bpe_spell,
                                                .decode = lsi_bpe_decode,
                                                .save_more = save_vocab};
