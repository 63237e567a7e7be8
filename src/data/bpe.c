/* Byte-level byte-pair encoding, whatever file it came from.
 *
 * Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units"
 * (ACL 2016), over bytes as in Radford et al., "Language Models are Unsupervised Multitask
 * Learners" (2019).
 *
 * Files write a token with one printable character for each byte: those of Latin-1 that are visible
 * stand for themselves, the other 68 bytes take the characters from U+0100 on, in order (a space is
 * "Ġ"). Here tokens are kept as the bytes they stand for. Since every byte is a token, every text
 * can be encoded, valid UTF-8 or not, and decodes to the same bytes. */
#include "data/bpe.h"

#include <string.h>

#include <utf8proc.h>

#include "data/words.h"

/* ---- characters for bytes ---- */

enum { N_HIDDEN = 68, FIRST_SUBSTITUTE = 256 };

static bool is_visible(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

/* The i-th visible (invisible) byte; i must be in range. */
static int find_byte(int i, bool visible) {
    int byte = 0;
    for (;; byte++)
        if (is_visible(byte) == visible && i-- == 0) return byte;
}

unsigned char lsi_bpe_byte_at(int i) {
    int n_visible = 256 - N_HIDDEN;
    return (unsigned char)(i < n_visible ? find_byte(i, true) : find_byte(i - n_visible, false));
}

static int byte_of_character(utf8proc_int32_t character) {
    if (character < FIRST_SUBSTITUTE) return is_visible(character) ? character : -1;
    if (character >= FIRST_SUBSTITUTE + N_HIDDEN) return -1;
    return find_byte(character - FIRST_SUBSTITUTE, false);
}

bool lsi_bpe_bytes_of(const char *symbols, size_t n, char *bytes, size_t *n_bytes) {
    *n_bytes = 0;
    while (n > 0) {
        utf8proc_int32_t character;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)symbols, (utf8proc_ssize_t)n, &character);
        int byte = length > 0 ? byte_of_character(character) : -1;
        if (byte < 0) return false;
        bytes[(*n_bytes)++] = (char)byte;
        symbols += length;
        n -= (size_t)length;
    }
    return true;
}

static utf8proc_int32_t character_of_byte(int byte) {
    int n_hidden_before = 0;
    if (is_visible(byte)) return byte;
    for (int i = 0; i < byte; i++) n_hidden_before += !is_visible(i);
    return FIRST_SUBSTITUTE + n_hidden_before;
}

void lsi_bpe_symbols_of(const char *bytes, size_t n, char *symbols) {
    for (size_t i = 0; i < n; i++)
        symbols += utf8proc_encode_char(character_of_byte((unsigned char)bytes[i]),
                                        (utf8proc_uint8_t *)symbols);
    *symbols = '\0';
}

/* ---- vocabulary ---- */

static ls_status read_id(const json_t *value, int64_t *id) {
    if (!json_is_integer(value)) return lsi_fail(LS_ERR_FORMAT, "its id is not a whole number");
    *id = json_integer_value(value);
    if (*id >= 0 && *id < LSI_VOCAB_MAX) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "its id is %lld, expected 0 to %d", (long long)*id,
                    LSI_VOCAB_MAX - 1);
}

static ls_status check_token_bytes(size_t n_bytes) {
    if (n_bytes > 0 && n_bytes <= LSI_BPE_TOKEN_BYTES) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "a token of %zu bytes, expected 1 to %d", n_bytes,
                    LSI_BPE_TOKEN_BYTES);
}

static ls_status read_added(const json_t *token, int64_t *id, const char **content) {
    *content = json_string_value(json_object_get(token, "content"));
    if (!*content) return lsi_fail(LS_ERR_FORMAT, "it has no text \"content\"");
    LSI_TRY(check_token_bytes(strlen(*content)));
    return read_id(json_object_get(token, "id"), id);
}

/* Largest id of all; checks what each entry is on its own. */
static ls_status find_last_id(const json_t *vocab, const json_t *added, int64_t *last) {
    const char *key;
    json_t *value;
    size_t i;
    int64_t id, n = 0;
    *last = -1;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        LSI_TRY(lsi_context(read_id(value, &id), "token %lld of \"vocab\"", (long long)n++));
        LSI_TRY(check_token_bytes(strlen(key)));
        if (id > *last) *last = id;
    }
    json_array_foreach(added, i, value) {
        LSI_TRY(lsi_context(read_added(value, &id, &key), "\"added_tokens\"[%zu]", i));
        if (id > *last) *last = id;
    }
    return *last >= 0 ? LS_OK : lsi_fail(LS_ERR_FORMAT, "the vocabulary is empty");
}

/* A token with characters that stand for no byte is no text, and decodes to what it is. */
static ls_status add_vocab(lsi_tokenizer *t, const json_t *vocab) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        char bytes[LSI_BPE_TOKEN_BYTES];
        size_t n_bytes, n_key = strlen(key);
        int64_t id = json_integer_value(value);
        if (lsi_vocab_has(&t->vocab, id))
            return lsi_fail(LS_ERR_FORMAT, "two tokens of \"vocab\" have id %lld", (long long)id);
        bool is_text = lsi_bpe_bytes_of(key, n_key, bytes, &n_bytes);
        lsi_vocab_add(&t->vocab, id, is_text ? bytes : key, is_text ? n_bytes : n_key, is_text);
    }
    return LS_OK;
}

static ls_status add_added(lsi_tokenizer *t, const json_t *added) {
    size_t i;
    json_t *value;
    json_array_foreach(added, i, value) {
        const char *content;
        int64_t id;
        size_t n_bytes;
        LSI_TRY(read_added(value, &id, &content));
        const char *there = lsi_vocab_text(&t->vocab, id, &n_bytes);
        bool is_same = n_bytes == strlen(content) && memcmp(there, content, n_bytes) == 0;
        if (lsi_vocab_has(&t->vocab, id) && !is_same)
            return lsi_fail(LS_ERR_FORMAT, "\"added_tokens\"[%zu]: id %lld is another token's", i,
                            (long long)id);
        if (!is_same) lsi_vocab_add(&t->vocab, id, content, strlen(content), false);
    }
    return LS_OK;
}

ls_status lsi_bpe_load_vocab(lsi_tokenizer *t, const json_t *vocab, const json_t *added,
                             size_t pool) {
    int64_t last;
    if (!json_is_object(vocab))
        return lsi_fail(LS_ERR_FORMAT, "the vocabulary is not an object of token: id");
    if (added && !json_is_array(added))
        return lsi_fail(LS_ERR_FORMAT, "\"added_tokens\" is not a list");
    LSI_TRY(find_last_id(vocab, added, &last));
    LSI_TRY(lsi_vocab_init(&t->vocab, last + 1, pool));
    t->vocab_size = last + 1;
    LSI_TRY(add_vocab(t, vocab));
    return add_added(t, added);
}

/* ---- merges ---- */

/* The id of one part of a merge, whose bytes are put behind the n_bytes that are there. */
static ls_status read_part(const lsi_tokenizer *t, const char *which, const char *symbols, size_t n,
                           char *bytes, size_t *n_bytes, int32_t *id) {
    size_t n_part;
    if (n == 0 || n > LSI_BPE_TOKEN_BYTES)
        return lsi_fail(LS_ERR_FORMAT, "the %s part has %zu bytes, expected 1 to %d", which, n,
                        LSI_BPE_TOKEN_BYTES);
    if (!lsi_bpe_bytes_of(symbols, n, bytes + *n_bytes, &n_part))
        return lsi_fail(LS_ERR_FORMAT,
                        "the %s part has a character that stands for no byte; expected two parts "
                        "of printable characters with one space between them",
                        which);
    *id = lsi_vocab_find(&t->vocab, bytes + *n_bytes, n_part);
    *n_bytes += n_part;
    if (*id >= 0) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "the %s part is no token yet: nothing before makes it", which);
}

ls_status lsi_bpe_add_merge(lsi_tokenizer *t, const char *left, size_t n_left, const char *right,
                            size_t n_right, int32_t product) {
    char bytes[2 * LSI_BPE_TOKEN_BYTES];
    size_t n_bytes = 0;
    lsi_merge row = {.rank = (uint32_t)t->merges.n};
    LSI_TRY(read_part(t, "left", left, n_left, bytes, &n_bytes, &row.left));
    LSI_TRY(read_part(t, "right", right, n_right, bytes, &n_bytes, &row.right));
    LSI_TRY(check_token_bytes(2 * n_bytes)); /* as long as it may be written */
    row.result = lsi_vocab_find(&t->vocab, bytes, n_bytes);
    if (product >= 0 && row.result >= 0)
        return lsi_fail(LS_ERR_FORMAT, "its result is there already, as token %d", row.result);
    if (product < 0 && row.result < 0)
        return lsi_fail(LS_ERR_FORMAT, "its result is not in the vocabulary");
    if (product >= 0) {
        lsi_vocab_add(&t->vocab, product, bytes, n_bytes, true);
        row.result = product;
    }
    if (lsi_merges_add(&t->merges, &row)) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "this pair was merged before");
}

ls_status lsi_bpe_add_merge_line(lsi_tokenizer *t, const char *line, size_t n, int32_t product) {
    const char *space = memchr(line, ' ', n);
    if (!space) return lsi_fail(LS_ERR_FORMAT, "expected two parts with a space between them");
    size_t n_left = (size_t)(space - line);
    return lsi_bpe_add_merge(t, line, n_left, space + 1, n - n_left - 1, product);
}

ls_status lsi_bpe_finish(lsi_tokenizer *t) {
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        t->id_of_byte[byte] = lsi_vocab_find(&t->vocab, &text, 1);
        if (t->id_of_byte[byte] < 0)
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "byte 0x%02X has no token, so texts that have it could not be encoded",
                            (unsigned)byte);
    }
    return LS_OK;
}

/* ---- texts ---- */

size_t lsi_bpe_word(const lsi_tokenizer *tokenizer, const char *text, size_t bytes) {
    (void)tokenizer;
    return lsi_word_gpt2(text, bytes);
}

int64_t lsi_bpe_spell(const lsi_tokenizer *tokenizer, const char *word, size_t bytes,
                      bool is_first_word, int32_t *ids) {
    (void)is_first_word;
    for (size_t i = 0; i < bytes; i++) ids[i] = tokenizer->id_of_byte[(unsigned char)word[i]];
    return (int64_t)bytes;
}

const char *lsi_bpe_decode(const lsi_tokenizer *tokenizer, int32_t previous, int32_t id,
                           size_t *bytes) {
    (void)previous;
    return lsi_vocab_text(&tokenizer->vocab, id, bytes);
}
