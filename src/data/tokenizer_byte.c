/* Bytes as tokens: ids are the bytes themselves, so any text has any id below 256 and nothing has
 * to be kept with a model. */
#include "data/tokenizer.h"

static ls_status load(lsi_tokenizer *tokenizer, const char *path, const char *data, size_t bytes) {
    (void)path, (void)data, (void)bytes;
    tokenizer->vocab_size = 256;
    return LS_OK;
}

static size_t word(const lsi_tokenizer *tokenizer, const char *text, size_t bytes) {
    enum { AT_ONCE = 1 << 16 }; /* any number would do */
    (void)tokenizer, (void)text;
    return bytes < AT_ONCE ? bytes : AT_ONCE;
}

static int64_t spell(const lsi_tokenizer *tokenizer, const char *text, size_t bytes,
                     bool is_first_word, int32_t *ids) {
    (void)tokenizer, (void)is_first_word;
    for (size_t i = 0; i < bytes; i++) ids[i] = (unsigned char)text[i];
    return (int64_t)bytes;
}

static const char *decode(const lsi_tokenizer *tokenizer, int32_t previous, int32_t id,
                          size_t *bytes) {
    (void)previous;
    *bytes = 1;
    return &tokenizer->byte_of_value[id];
}

const lsi_tokenizer_class lsi_tokenizer_byte = {
    .name = "byte", .load = load, .word = word, .spell = spell, .decode = decode};
