/* Byte tokenizer, finding a tokenizer by name, file or folder, and the compact token sequence. */
#include "data/token_tests.h"

#include "data/tokens.h"

static void byte_tokens_are_bytes_both_ways(void **state) {
    (void)state;
    char text[256];
    for (int i = 0; i < 256; i++) text[i] = (char)(255 - i);
    lsi_tokenizer *tokenizer;
    assert_ok(lsi_tokenizer_create("byte", &tokenizer));
    assert_string_equal(lsi_tokenizer_name(tokenizer), "byte");
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 256);
    int32_t *ids;
    int64_t n_ids;
    assert_ok(lsi_tokenizer_encode(tokenizer, text, sizeof text, &ids, &n_ids));
    assert_int_equal(n_ids, 256);
    for (int i = 0; i < 256; i++) {
        size_t bytes;
        assert_int_equal(ids[i], 255 - i);
        const char *decoded = lsi_tokenizer_decode(tokenizer, -1, ids[i], &bytes);
        assert_int_equal(bytes, 1);
        assert_int_equal(decoded[0], text[i]);
    }
    lsi_free(ids);
    lsi_tokenizer_destroy(tokenizer);
}

static void empty_text_has_no_tokens(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer;
    int32_t *ids;
    int64_t n_ids = -1;
    assert_ok(lsi_tokenizer_create("byte", &tokenizer));
    assert_ok(lsi_tokenizer_encode(tokenizer, NULL, 0, &ids, &n_ids));
    assert_int_equal(n_ids, 0);
    lsi_free(ids);
    lsi_tokenizer_destroy(tokenizer);
}

static void ids_that_are_no_text_decode_to_nothing(void **state) {
    (void)state;
    static const int32_t ids[] = {-1, 256, 50256, INT32_MAX, INT32_MIN};
    lsi_tokenizer *tokenizer;
    assert_ok(lsi_tokenizer_create("byte", &tokenizer));
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        size_t bytes = 9;
        assert_non_null(lsi_tokenizer_decode(tokenizer, -1, ids[i], &bytes));
        assert_int_equal(bytes, 0);
    }
    lsi_tokenizer_destroy(tokenizer);
}

static void unknown_names_list_the_known_ones(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer = NULL;
    assert_fails(lsi_tokenizer_create("bytes", &tokenizer), LS_ERR_NOT_FOUND,
                 "unknown tokenizer 'bytes'; known: byte, or the path of a file or folder "
                 "(tokenizer.json, tokenizer.bin, merges.txt, vocab.bpe); did you mean 'byte'?");
    assert_fails(lsi_tokenizer_create("", &tokenizer), LS_ERR_NOT_FOUND, "known: byte");
    assert_fails(lsi_tokenizer_create("sentencepiece", &tokenizer), LS_ERR_NOT_FOUND,
                 "known: byte");
    assert_fails(lsi_tokenizer_create("gpt2", &tokenizer), LS_ERR_NOT_FOUND,
                 "'gpt2' is read from a file, and there is none of that name; give the path of "
                 "its merges.txt");
    assert_null(tokenizer);
}

/* ---- files and folders ---- */

static const char MERGES[] = "a b\n";

static void folders_are_searched(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer = NULL;
    assert_ok(lsi_folder_make(path_of("folder")));
    assert_fails(lsi_tokenizer_create(path_of("folder"), &tokenizer), LS_ERR_NOT_FOUND,
                 "folder has no tokenizer that can be read; expected tokenizer.json, "
                 "tokenizer.bin, merges.txt, vocab.bpe");
    put_text(path_of("folder/tokenizer.model"), "x");
    assert_fails(lsi_tokenizer_create(path_of("folder"), &tokenizer), LS_ERR_NOT_FOUND,
                 "its tokenizer.model becomes a tokenizer.bin");
    put_text(path_of("folder/vocab.bpe"), MERGES);
    tokenizer = tokenizer_of(path_of("folder"));
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 258);
    lsi_tokenizer_destroy(tokenizer);
    tokenizer = NULL;
    put_text(path_of("folder/tokenizer.json"), "{}"); /* goes before, and is no tokenizer */
    assert_fails(lsi_tokenizer_create(path_of("folder"), &tokenizer), LS_ERR_FORMAT,
                 "tokenizer.json: no object \"model\"");
    assert_null(tokenizer);
}

static void saved_tokenizers_are_the_same(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer = tokenizer_from("list", MERGES);
    put_text(path_of("list"), "c d\n"); /* what was read counts */
    assert_ok(lsi_folder_make(path_of("folder")));
    assert_ok(lsi_tokenizer_save(tokenizer, path_of("folder")));
    lsi_tokenizer_destroy(tokenizer);
    assert_string_equal(text_of(path_of("folder/merges.txt")), MERGES);
    tokenizer = tokenizer_of(path_of("folder"));
    assert_encodes_text(tokenizer, "abc", IDS(256, 66));
    assert_fails(lsi_tokenizer_save(tokenizer, path_of("none")), LS_ERR_NOT_FOUND,
                 "saving the tokenizer");
    lsi_tokenizer_destroy(tokenizer);
    tokenizer = tokenizer_of("byte");
    assert_ok(lsi_tokenizer_save(tokenizer, path_of("none"))); /* writes nothing */
    lsi_tokenizer_destroy(tokenizer);
}

static void files_that_are_no_tokenizers_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *data;
        size_t bytes;
        const char *message;
    } rows[] = {
        {"", 0, "no tokenizer of a known kind; expected one of tokenizer.json"},
        {"ab\0\1cd", 6, "no tokenizer of a known kind"},
        {"\0\0\0\0", 4, "longest token of 0 bytes"},
        {" {", 2, "file:1:2"},
        {"{\"a\": 0}", 8, "a vocab.json is read together with the merges.txt beside it"},
        {"hello", 5, "file:1: expected two parts with a space between them"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_tokenizer *tokenizer;
        assert_fails(create_from("file", rows[i].data, rows[i].bytes, &tokenizer), LS_ERR_FORMAT,
                     rows[i].message);
        assert_null(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
    lsi_tokenizer *tokenizer = NULL;
    assert_fails(lsi_tokenizer_create(path_of("file/below"), &tokenizer), LS_ERR_IO,
                 "Not a directory");
}

static void texts_too_long_for_memory_are_refused(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer;
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    assert_ok(lsi_tokenizer_create("byte", &tokenizer));
    assert_fails(lsi_tokenizer_encode(tokenizer, "", SIZE_MAX, &ids, &n_ids), LS_ERR_MEMORY,
                 "too long");
    assert_fails(lsi_tokenizer_encode(tokenizer, "", PTRDIFF_MAX / 4, &ids, &n_ids), LS_ERR_MEMORY,
                 "");
    assert_null(ids);
    lsi_tokenizer_destroy(tokenizer);
    lsi_tokenizer_destroy(NULL);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer = NULL;
    lsi_mem_fail_at(1);
    assert_fails(lsi_tokenizer_create("byte", &tokenizer), LS_ERR_MEMORY, "");
    assert_null(tokenizer);
    assert_ok(lsi_tokenizer_create("byte", &tokenizer));
    int32_t *ids = NULL;
    int64_t n_ids;
    lsi_mem_fail_at(1);
    assert_fails(lsi_tokenizer_encode(tokenizer, "abc", 3, &ids, &n_ids), LS_ERR_MEMORY, "");
    lsi_mem_fail_at(0);
    assert_null(ids);
    lsi_tokenizer_destroy(tokenizer);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- token sequences ---- */

static void widths_follow_the_vocabulary(void **state) {
    (void)state;
    const struct {
        int64_t vocab_size;
        int width;
    } rows[] = {{1, 1},     {255, 1},   {256, 1},   {257, 2},
                {50257, 2}, {65536, 2}, {65537, 4}, {(int64_t)1 << 31, 4}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        lsi_tokens tokens;
        int64_t top = rows[r].vocab_size - 1;
        const int32_t ids[] = {0, (int32_t)(top / 2), (int32_t)top, 0, (int32_t)top};
        assert_ok(lsi_tokens_init(&tokens, rows[r].vocab_size, 2));
        assert_int_equal(tokens.width, rows[r].width);
        for (int i = 0; i < 100; i++) assert_ok(lsi_tokens_append(&tokens, ids, 5));
        assert_ok(lsi_tokens_append(&tokens, ids, 0));
        lsi_tokens_shrink(&tokens);
        assert_int_equal(tokens.n, 500);
        assert_int_equal(tokens.capacity, 500);
        int32_t back[7];
        lsi_tokens_read(&tokens, 493, 7, back);
        for (int i = 0; i < 7; i++) assert_int_equal(back[i], ids[(493 + i) % 5]);
        lsi_tokens_fini(&tokens);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void impossible_sequences_are_refused(void **state) {
    (void)state;
    lsi_tokens tokens;
    assert_fails(lsi_tokens_init(&tokens, 0, 1), LS_ERR_ARGUMENT, "vocabulary of 0");
    assert_fails(lsi_tokens_init(&tokens, ((int64_t)1 << 31) + 1, 1), LS_ERR_ARGUMENT, "2^31");
    assert_fails(lsi_tokens_init(&tokens, 65537, INT64_MAX / 2), LS_ERR_MEMORY, "do not fit");
    assert_fails(lsi_tokens_init(&tokens, 10, -1), LS_ERR_MEMORY, "-1 tokens");
    lsi_tokens_fini(&tokens);
}

static void failed_growth_keeps_what_was_there(void **state) {
    (void)state;
    lsi_tokens tokens;
    const int32_t ids[] = {1, 2, 3};
    int32_t back[3];
    assert_ok(lsi_tokens_init(&tokens, 300, 3));
    assert_ok(lsi_tokens_append(&tokens, ids, 3));
    lsi_mem_fail_at(1);
    assert_fails(lsi_tokens_append(&tokens, ids, 3), LS_ERR_MEMORY, "");
    lsi_mem_fail_at(0);
    assert_int_equal(tokens.n, 3);
    lsi_tokens_read(&tokens, 0, 3, back);
    assert_memory_equal(back, ids, sizeof ids);
    assert_ok(lsi_tokens_append(&tokens, ids, 3));
    lsi_mem_fail_at(1);
    lsi_tokens_shrink(&tokens);
    lsi_mem_fail_at(0);
    assert_int_equal(tokens.n, 6);
    lsi_tokens_fini(&tokens);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_tokens_are_bytes_both_ways),
        cmocka_unit_test(empty_text_has_no_tokens),
        cmocka_unit_test(ids_that_are_no_text_decode_to_nothing),
        cmocka_unit_test(unknown_names_list_the_known_ones),
        IN_SCRATCH(folders_are_searched),
        IN_SCRATCH(saved_tokenizers_are_the_same),
        IN_SCRATCH(files_that_are_no_tokenizers_are_refused),
        cmocka_unit_test(texts_too_long_for_memory_are_refused),
        cmocka_unit_test(failed_allocations_leak_nothing),
        cmocka_unit_test(widths_follow_the_vocabulary),
        cmocka_unit_test(impossible_sequences_are_refused),
        cmocka_unit_test(failed_growth_keeps_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
