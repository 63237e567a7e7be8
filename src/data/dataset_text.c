/* A text file, encoded when it is opened.
 *
 * The file is mapped only while it is encoded: afterwards it may change or vanish without harm. It
 * is encoded piece by piece, and ids are kept at one or two bytes each where the vocabulary allows,
 * so that memory stays near the size of the text. */
#include "base/file.h"
#include "data/dataset_impl.h"
#include "data/tokenizer.h"

/* What no other kind claims is text. */
static bool matches(const lsi_data_path *path) {
    (void)path;
    return true;
}

static ls_status encode(const lsi_tokenizer *tokenizer, const char *text, size_t bytes,
                        lsi_tokens *tokens) {
    enum { PIECE_BYTES = 1 << 20 };
    lsi_encoder encoder;
    ls_status status = lsi_encoder_init(&encoder, tokenizer, text, bytes);
    while (status == LS_OK && encoder.at < bytes) {
        status = lsi_encoder_next(&encoder, PIECE_BYTES);
        if (status == LS_OK) status = lsi_tokens_append(tokens, encoder.ids, encoder.n_ids);
    }
    lsi_encoder_fini(&encoder);
    if (status == LS_OK) lsi_tokens_shrink(tokens);
    return status;
}

static ls_status read(const char *path, const lsi_dataset_opts *opts, lsi_tokens *tokens,
                      int64_t *n_classes) {
    enum { BYTES_PER_TOKEN = 3 }; /* a guess that is seldom too high; tokens grow where it is */
    const void *text;
    size_t bytes;
    LSI_TRY(lsi_data_check_file(path, "text file"));
    if (!opts->tokenizer)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: text needs a tokenizer, found none", path);
    *n_classes = lsi_tokenizer_vocab_size(opts->tokenizer);
    LSI_TRY(lsi_file_map(path, &text, &bytes));
    if (bytes == 0) return lsi_fail(LS_ERR_FORMAT, "%s is empty, expected text to train on", path);
    int64_t room = (int64_t)(*n_classes <= 256 ? bytes : bytes / BYTES_PER_TOKEN + 1);
    ls_status status = lsi_tokens_init(tokens, *n_classes, room);
    if (status == LS_OK) status = encode(opts->tokenizer, text, bytes, tokens);
    lsi_file_unmap(text, bytes);
    return lsi_context(status, "text file %s", path);
}

static ls_status open_text(lsi_dataset *dataset, const lsi_dataset_opts *opts) {
    return lsi_sequence_open(dataset, opts, read);
}

const lsi_dataset_class lsi_dataset_text = {.name = "text file",
                                            .matches = matches,
                                            .open = open_text,
                                            .close = lsi_sequence_close,
                                            .get = lsi_sequence_get,
                                            .unigram_entropy = lsi_sequence_entropy};
