/* Files of token ids, as nanoGPT and llm.c write them. All numbers are little-endian.
 *
 *     nanoGPT    uint16 ids to the end of the file
 *     llm.c      256 int32: magic number, version, number of ids, the rest unused; then the ids
 *                20240520, version 1: uint16 (GPT-2)     20240801, version 7: uint32 (Llama 3)
 *
 * The magic number tells the formats apart: as ids of nanoGPT its first half would be token 55448,
 * beyond GPT-2's vocabulary. Any other file is taken for nanoGPT's if its name ends in ".bin".
 *
 * The file stays mapped: ranks of a machine share its pages, whatever its size, and opening reads
 * it once to find the largest id. It must not be shortened meanwhile: a page that is gone ends the
 * process (SIGBUS). Replacing it under the same name by a new file is safe. */
#include <string.h>

#include "base/file.h"
#include "data/dataset_impl.h"

enum { N_HEADER = 256, HEADER_BYTES = N_HEADER * 4 };

static const struct header_format {
    int32_t magic, version;
    int width;
} headers[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { N_HEADERS = sizeof headers / sizeof headers[0] };

static const struct header_format *find_header(const void *head, size_t bytes) {
    int32_t magic = 0;
    if (bytes >= sizeof magic) memcpy(&magic, head, sizeof magic);
    for (int i = 0; i < N_HEADERS; i++)
        if (headers[i].magic == magic) return &headers[i];
    return NULL;
}

static bool ends_in_bin(const char *path) {
    size_t n = strlen(path);
    return n >= 4 && strcmp(path + n - 4, ".bin") == 0;
}

static bool matches(const lsi_data_path *path) {
    return !path->is_folder && (ends_in_bin(path->path) || find_header(path->head, path->n_head));
}

/* ---- reading ---- */

static ls_status read_header(const char *path, const struct header_format *format,
                             lsi_tokens *tokens) {
    int32_t head[3];
    if (tokens->mapped_bytes < HEADER_BYTES)
        return lsi_fail(LS_ERR_FORMAT, "%s: %zu bytes, expected a header of %d", path,
                        tokens->mapped_bytes, HEADER_BYTES);
    memcpy(head, tokens->mapping, sizeof head);
    if (head[1] != format->version)
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "%s: version %d of token files with magic number %d, expected %d; write it "
                        "again with a current llm.c",
                        path, head[1], head[0], format->version);
    size_t body = tokens->mapped_bytes - HEADER_BYTES;
    if (head[2] < 0 || (uint64_t)head[2] * (uint64_t)format->width != body)
        return lsi_fail(LS_ERR_FORMAT,
                        "%s: its header says %d tokens of %d bytes, but %zu bytes follow it; the "
                        "file is cut off or damaged",
                        path, head[2], format->width, body);
    tokens->width = format->width;
    tokens->n = head[2];
    tokens->data = (char *)(uintptr_t)tokens->mapping + HEADER_BYTES;
    return LS_OK;
}

static ls_status read_bare(const char *path, lsi_tokens *tokens) {
    if (tokens->mapped_bytes % 2 != 0)
        return lsi_fail(LS_ERR_FORMAT,
                        "%s: %zu bytes are no whole number of uint16 tokens; the file is cut off, "
                        "or no token file (text should not be named .bin)",
                        path, tokens->mapped_bytes);
    tokens->width = 2;
    tokens->n = (int64_t)(tokens->mapped_bytes / 2);
    tokens->data = (void *)(uintptr_t)tokens->mapping;
    return LS_OK;
}

static uint32_t largest_id(const lsi_tokens *tokens) {
    uint32_t largest = 0;
    if (tokens->width == 2) {
        const uint16_t *ids = tokens->data;
        uint16_t top = 0;
        for (int64_t i = 0; i < tokens->n; i++) top = ids[i] > top ? ids[i] : top;
        return top;
    }
    const uint32_t *ids = tokens->data;
    for (int64_t i = 0; i < tokens->n; i++) largest = ids[i] > largest ? ids[i] : largest;
    return largest;
}

static ls_status check_ids(const char *path, const lsi_tokens *tokens, const lsi_tokenizer *t,
                           int64_t *n_classes) {
    int64_t largest = largest_id(tokens), limit = t ? lsi_tokenizer_vocab_size(t) : INT32_MAX;
    *n_classes = largest + 1;
    if (largest < limit) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: its largest token is %lld, %s %lld%s", path,
                    (long long)largest, t ? "the tokenizer has only" : "expected less than",
                    (long long)limit, t ? "; give the one that the file was made with" : "");
}

static ls_status read(const char *path, const lsi_dataset_opts *opts, lsi_tokens *tokens,
                      int64_t *n_classes) {
    LSI_TRY(lsi_data_check_file(path, "token file"));
    LSI_TRY(lsi_file_map(path, &tokens->mapping, &tokens->mapped_bytes));
    if (tokens->mapped_bytes == 0)
        return lsi_fail(LS_ERR_FORMAT, "%s is empty, expected tokens to train on", path);
    const struct header_format *format = find_header(tokens->mapping, tokens->mapped_bytes);
    LSI_TRY(format ? read_header(path, format, tokens) : read_bare(path, tokens));
    return check_ids(path, tokens, opts->tokenizer, n_classes);
}

static ls_status open_tokens(lsi_dataset *dataset, const lsi_dataset_opts *opts) {
    return lsi_sequence_open(dataset, opts, read);
}

const lsi_dataset_class lsi_dataset_token_file = {.name = "token file",
                                                  .matches = matches,
                                                  .open = open_tokens,
                                                  .close = lsi_sequence_close,
                                                  .get = lsi_sequence_get,
                                                  .unigram_entropy = lsi_sequence_entropy};
