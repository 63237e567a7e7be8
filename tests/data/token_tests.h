/* What tests of tokenizers share: making one from files written by the test, and comparing ids. */
#ifndef TESTS_DATA_TOKEN_TESTS_H
#define TESTS_DATA_TOKEN_TESTS_H

#include "checkpoint/files.h"

#include "base/file.h"
#include "base/mem.h"
#include "data/data.h"

static inline lsi_tokenizer *tokenizer_of(const char *spec) {
    lsi_tokenizer *tokenizer = NULL;
    assert_ok(lsi_tokenizer_create(spec, &tokenizer));
    return tokenizer;
}

/* A tokenizer from a file of the test's folder with this content. */
static inline ls_status create_from(const char *name, const void *data, size_t bytes,
                                    lsi_tokenizer **tokenizer) {
    write_whole(path_of(name), data, bytes);
    *tokenizer = NULL;
    return lsi_tokenizer_create(path_of(name), tokenizer);
}

static inline lsi_tokenizer *tokenizer_from(const char *name, const char *text) {
    lsi_tokenizer *tokenizer;
    assert_ok(create_from(name, text, strlen(text), &tokenizer));
    return tokenizer;
}

/* All tokens' bytes, one after the other, are the text. */
static inline void assert_decodes(const lsi_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids,
                                  const char *text, size_t bytes) {
    size_t at = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *token = lsi_tokenizer_decode(tokenizer, i ? ids[i - 1] : -1, ids[i], &n);
        if (at + n > bytes || memcmp(text + at, token, n) != 0)
            fail_msg("token %lld (%d) does not stand at byte %zu", (long long)i, ids[i], at);
        at += n;
    }
    assert_int_equal(at, bytes);
}

/* ids: as many as were given, ended by -1. */
static inline void assert_encodes(const lsi_tokenizer *tokenizer, const char *text, size_t bytes,
                                  const int32_t *expected) {
    int32_t *ids = NULL;
    int64_t n_ids = -1;
    assert_ok(lsi_tokenizer_encode(tokenizer, text, bytes, &ids, &n_ids));
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] != expected[i])
            fail_msg("'%s': token %lld is %d, expected %d", text, (long long)i, ids[i],
                     expected[i]);
    assert_int_equal(expected[n_ids], -1);
    assert_decodes(tokenizer, ids, n_ids, text, bytes);
    lsi_free(ids);
}

static inline void assert_encodes_text(const lsi_tokenizer *tokenizer, const char *text,
                                       const int32_t *expected) {
    assert_encodes(tokenizer, text, strlen(text), expected);
}

#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

#endif
