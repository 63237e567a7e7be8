/* GPT-2's tokenizer: against three independent ones where the real list of merges is at hand, and
 * with small lists whose results can be worked out by hand. */
#include "data/token_tests.h"

#include <jansson.h>

#include "base/hash.h"

/* ---- the real one ---- */

static lsi_tokenizer *real_tokenizer(void) {
    char path[PATH_MAX];
    if (!find_data("gpt2-bpe/vocab.bpe", path)) skip();
    return tokenizer_of(path);
}

static void real_merges_give_the_published_ids(void **state) {
    (void)state;
    char path[PATH_MAX];
    lsi_tokenizer *tokenizer = real_tokenizer();
    assert_true(find_data("gpt2-bpe/cases.json", path));
    assert_string_equal(lsi_tokenizer_name(tokenizer), "gpt2");
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 50257);
    assert_int_equal(lsi_tokenizer_begin_id(tokenizer), -1);
    assert_int_equal(lsi_tokenizer_end_id(tokenizer), 50256);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, NULL), *one;
    size_t i, k, n_cases = json_array_size(cases);
    assert_true(n_cases >= 30);
    json_array_foreach(cases, i, one) {
        int32_t ids[512];
        json_t *text = json_object_get(one, "text"), *list = json_object_get(one, "ids"), *id;
        json_array_foreach(list, k, id) ids[k] = (int32_t)json_integer_value(id);
        ids[json_array_size(list)] = -1;
        assert_encodes(tokenizer, json_string_value(text), json_string_length(text), ids);
    }
    json_decref(cases);
    lsi_tokenizer_destroy(tokenizer);
}

static void shakespeare_has_the_published_tokens(void **state) {
    (void)state;
    char path[PATH_MAX], text[LSI_SHA256_TEXT_BYTES];
    if (!find_data("tinyshakespeare.txt", path)) skip();
    lsi_tokenizer *tokenizer = real_tokenizer();
    size_t bytes;
    char *whole = read_whole(path, &bytes);
    int32_t *ids;
    int64_t n_ids;
    assert_ok(lsi_tokenizer_encode(tokenizer, whole, bytes, &ids, &n_ids));
    assert_int_equal(n_ids, 338025);
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    for (int64_t i = 0; i < n_ids; i++) {
        unsigned char two[2] = {(unsigned char)ids[i], (unsigned char)(ids[i] >> 8)};
        lsi_sha256_update(&hash, two, sizeof two);
    }
    lsi_sha256_finish(&hash, text);
    assert_string_equal(text, "25c01b32b32f41897a6359dd222ec114992dc30c357bcafbfe6c56672f76cd31");
    assert_decodes(tokenizer, ids, n_ids, whole, bytes);
    lsi_free(ids);
    free(whole);
    lsi_tokenizer_destroy(tokenizer);
}

/* ---- a small one ---- */

/* Ids: ! is 0, a letter 64 more than its place in the alphabet; bytes that are not visible follow
 * the visible ones from 188 on (0x00), so a space is 220 and a line break 198. */
#define SMALL                                                                                      \
    "#version: 0.2\n"                                                                              \
    "h e\n" /* 256 */                                                                              \
    "l l\n" /* 257 */                                                                              \
    "he ll\n"                                                                                      \
    "hell o\n"                                                                                     \
    "\xC4\xA0 w\n"        /* 260: " w" */                                                          \
    "# #\n"               /* 261: the first line alone may be a comment */                         \
    "\xC3\x83 \xC2\xA9\n" /* 262: e with acute accent, C3 A9 */

static void merges_go_in_order(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer = tokenizer_from("any-name", SMALL);
    assert_string_equal(lsi_tokenizer_name(tokenizer), "gpt2");
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 256 + 7 + 1);
    assert_int_equal(lsi_tokenizer_end_id(tokenizer), 263);
    assert_encodes_text(tokenizer, "", IDS(-1));
    assert_encodes_text(tokenizer, "!", IDS(0));
    assert_encodes_text(tokenizer, "hello", IDS(259));
    assert_encodes_text(tokenizer, "hell", IDS(258));
    assert_encodes_text(tokenizer, "hel", IDS(256, 75));
    assert_encodes_text(tokenizer, "llll", IDS(257, 257));
    assert_encodes_text(tokenizer, "lll", IDS(257, 75));
    assert_encodes_text(tokenizer, "hello world\n", IDS(259, 260, 78, 81, 75, 67, 198));
    assert_encodes_text(tokenizer, "###", IDS(261, 2));
    assert_encodes_text(tokenizer, "\xC3\xA9", IDS(262));
    /* no UTF-8, and a word is cut between: bytes all the same */
    assert_encodes_text(tokenizer, "\xC3", IDS(127));
    assert_encodes(tokenizer, "\0\xFF", 2, IDS(188, 187));
    lsi_tokenizer_destroy(tokenizer);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void lists_may_lack_what_does_not_matter(void **state) {
    (void)state;
    static const char *const lists[] = {"h e\nhe y", "h e\r\nhe y\r\n", "\n\nh e\n\nhe y\n\n",
                                        "#version: 0.2 - made by hand\nh e\nhe y\n"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        lsi_tokenizer *tokenizer = tokenizer_from("merges.txt", lists[i]);
        assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 259);
        assert_encodes_text(tokenizer, "hey", IDS(257));
        lsi_tokenizer_destroy(tokenizer);
    }
}

static void special_tokens_in_texts_are_text(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer = tokenizer_from("merges.txt", SMALL);
    int32_t *ids;
    int64_t n_ids;
    size_t bytes;
    assert_ok(lsi_tokenizer_encode(tokenizer, "<|endoftext|>", 13, &ids, &n_ids));
    assert_int_equal(n_ids, 13);
    lsi_free(ids);
    const char *end = lsi_tokenizer_decode(tokenizer, -1, 263, &bytes);
    assert_int_equal(bytes, 13);
    assert_memory_equal(end, "<|endoftext|>", 13);
    lsi_tokenizer_destroy(tokenizer);
}

/* Longer than the pieces and the cache: every word the same, all words different, one word. */
static void long_texts_are_encoded_like_short_ones(void **state) {
    (void)state;
    enum { N = 200000 };
    lsi_tokenizer *tokenizer = tokenizer_from("merges.txt", SMALL);
    char *text = malloc(N * 8);
    int32_t *ids;
    int64_t n_ids;
    size_t used = 0;
    for (int i = 0; i < N; i++) used += (size_t)sprintf(text + used, " w%d", i % 70000);
    assert_ok(lsi_tokenizer_encode(tokenizer, text, used, &ids, &n_ids));
    assert_decodes(tokenizer, ids, n_ids, text, used);
    int64_t at = 0;
    for (int i = 0; i < N; i++) {
        char digits[8];
        assert_int_equal(ids[at++], 260);
        for (int k = 0, n = sprintf(digits, "%d", i % 70000); k < n; k++)
            assert_int_equal(ids[at++], digits[k] - '!');
    }
    assert_int_equal(at, n_ids);
    lsi_free(ids);
    memset(text, 'l', N);
    assert_ok(lsi_tokenizer_encode(tokenizer, text, N, &ids, &n_ids));
    assert_int_equal(n_ids, N / 2);
    lsi_free(ids);
    free(text);
    lsi_tokenizer_destroy(tokenizer);
}

/* ---- vocabulary beside the list ---- */

/* The ids of a list of merges alone, backwards. */
static json_t *vocab_backwards(void) {
    lsi_tokenizer *tokenizer = tokenizer_from("merges.txt", SMALL);
    assert_ok(lsi_tokenizer_save(tokenizer, scratch));
    lsi_tokenizer_destroy(tokenizer);
    json_t *vocab = json_load_file(path_of("vocab.json"), 0, NULL), *id;
    const char *token;
    assert_int_equal(json_object_size(vocab), 264);
    json_object_foreach(vocab, token, id)
        assert_int_equal(json_integer_set(id, 263 - json_integer_value(id)), 0);
    return vocab;
}

static void ids_come_from_the_vocabulary_beside_it(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"merges.txt", "vocab.json"},
                                           {"vocab.bpe", "encoder.json"}};
    json_t *vocab = vocab_backwards();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(json_dump_file(vocab, path_of(pairs[i][1]), 0), 0);
        lsi_tokenizer *tokenizer = tokenizer_from(pairs[i][0], SMALL);
        assert_encodes_text(
            tokenizer, "hello world\n",
            IDS(263 - 259, 263 - 260, 263 - 78, 263 - 81, 263 - 75, 263 - 67, 263 - 198));
        assert_int_equal(lsi_tokenizer_end_id(tokenizer), 0);
        assert_ok(lsi_folder_make(path_of("saved")));
        assert_ok(lsi_tokenizer_save(tokenizer, path_of("saved")));
        lsi_tokenizer_destroy(tokenizer);
        tokenizer = tokenizer_of(path_of("saved"));
        assert_encodes_text(tokenizer, "hello", IDS(263 - 259));
        lsi_tokenizer_destroy(tokenizer);
    }
    json_decref(vocab);
}

static void wrong_vocabularies_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *token; /* NULL: as it is */
        json_int_t id;     /* -1: taken out */
        const char *message;
    } rows[] = {
        {"hello", -1, "merges.txt:5: its result is not in the vocabulary"},
        {"ll", -1, "merges.txt:3: its result is not in the vocabulary"},
        {"~", -1, "byte 0x7E has no token"},
        {"hello", 3, "two tokens of \"vocab\" have id 3"},
        {"hello", -5, "its id is -5, expected 0 to"},
        {"hello", 1 << 20, "its id is 1048576, expected 0 to 1048575"},
        {"hello", (json_int_t)1 << 40, "its id is 1099511627776"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *vocab = vocab_backwards();
        if (rows[i].id == -1)
            json_object_del(vocab, rows[i].token);
        else
            json_object_set_new(vocab, rows[i].token, json_integer(rows[i].id));
        assert_int_equal(json_dump_file(vocab, path_of("vocab.json"), 0), 0);
        json_decref(vocab);
        lsi_tokenizer *tokenizer;
        ls_status status = create_from("merges.txt", SMALL, strlen(SMALL), &tokenizer);
        if (status == LS_ERR_UNSUPPORTED) status = LS_ERR_FORMAT; /* a byte that has no token */
        assert_fails(status, LS_ERR_FORMAT, rows[i].message);
        assert_null(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        remove(path_of("vocab.json"));
    }
}

static void vocabularies_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "vocab.json:1:0"},
        {"{\"a\": 1", "vocab.json:1:7"},
        {"[1, 2]", "not an object of token: id"},
        {"{}", "the vocabulary is empty"},
        {"{\"a\": \"1\"}", "token 0 of \"vocab\": its id is not a whole number"},
        {"{\"a\": 1.5}", "not a whole number"},
        {"{\"\": 0}", "a token of 0 bytes, expected 1 to 4096"},
        {"{\"a\": 0, \"a\": 1}", "duplicate object key"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_tokenizer *tokenizer;
        put_text(path_of("vocab.json"), rows[i].text);
        assert_fails(create_from("merges.txt", SMALL, strlen(SMALL), &tokenizer), LS_ERR_FORMAT,
                     rows[i].message);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

/* ---- lists that lie ---- */

static void wrong_merges_are_refused_with_their_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"h e\nhe", "merges.txt:2: expected two parts with a space between them"},
        {"h e\n he", "merges.txt:2: the left part has 0 bytes"},
        {"h ", "merges.txt:1: the right part has 0 bytes"},
        {"h e l", "merges.txt:1: the right part has a character that stands for no byte"},
        {"h\te", "merges.txt:1: expected two parts"},
        {"h \xFF", "merges.txt:1: the right part has a character that stands for no byte"},
        {"h \xE2\x82\xAC", "merges.txt:1: the right part has a character that stands for no byte"},
        {"#version\nhe llo", "merges.txt:2: the left part is no token yet"},
        {"h e\nhe ll", "merges.txt:2: the right part is no token yet"},
        {"h e\nh e", "merges.txt:2: its result is there already, as token 256"},
        {"a b\nb c\nab c\na bc", "merges.txt:4: its result is there already, as token 258"},
        {"#hello\n", "merges.txt:1: expected two parts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_tokenizer *tokenizer;
        assert_fails(create_from("merges.txt", rows[i].text, strlen(rows[i].text), &tokenizer),
                     LS_ERR_FORMAT, rows[i].message);
        assert_null(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

/* Each line doubles the token of the line before. */
static void tokens_do_not_grow_without_end(void **state) {
    (void)state;
    enum { LINES = 13 };
    char *text = calloc(1, 1 << 16);
    size_t used = 0;
    for (int line = 0; line < LINES; line++) {
        memset(text + used, 'a', (size_t)1 << line);
        used += (size_t)1 << line;
        text[used++] = ' ';
        memset(text + used, 'a', (size_t)1 << line);
        used += (size_t)1 << line;
        text[used++] = '\n';
    }
    lsi_tokenizer *tokenizer;
    assert_fails(create_from("merges.txt", text, used, &tokenizer), LS_ERR_FORMAT,
                 "merges.txt:12: a token of 8192 bytes, expected 1 to 4096");
    free(text);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    json_decref(vocab_backwards()); /* leaves merges.txt and vocab.json */
    for (int64_t n = 1;; n++) {
        lsi_tokenizer *tokenizer = NULL;
        int32_t *ids = NULL;
        int64_t n_ids;
        lsi_mem_fail_at(n);
        ls_status status = lsi_tokenizer_create(path_of("merges.txt"), &tokenizer);
        if (status == LS_OK)
            status = lsi_tokenizer_encode(tokenizer, "hello world hello world", 23, &ids, &n_ids);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        lsi_free(ids);
        lsi_tokenizer_destroy(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(real_merges_give_the_published_ids),
        IN_SCRATCH(shakespeare_has_the_published_tokens),
        IN_SCRATCH(merges_go_in_order),
        IN_SCRATCH(lists_may_lack_what_does_not_matter),
        IN_SCRATCH(special_tokens_in_texts_are_text),
        IN_SCRATCH(long_texts_are_encoded_like_short_ones),
        IN_SCRATCH(ids_come_from_the_vocabulary_beside_it),
        IN_SCRATCH(wrong_vocabularies_are_refused),
        IN_SCRATCH(vocabularies_that_are_none_are_refused),
        IN_SCRATCH(wrong_merges_are_refused_with_their_line),
        IN_SCRATCH(tokens_do_not_grow_without_end),
        IN_SCRATCH(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
