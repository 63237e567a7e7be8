/* tokenizer.json: what is read, and that whatever would change ids is refused by name. */
#include "data/token_tests.h"

#include <jansson.h>

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* 256 bytes in OpenAI's order, "he" 256, "ll" 257, "hell" 258, <s> 259, </s> 261; 260 is no token.
 */
static json_t *small_json(void) {
    put_text(path_of("merges.txt"), "h e\nl l\nhe ll\n");
    lsi_tokenizer *bytes = tokenizer_of(path_of("merges.txt"));
    assert_ok(lsi_tokenizer_save(bytes, scratch));
    lsi_tokenizer_destroy(bytes);
    json_t *vocab = json_load_file(path_of("vocab.json"), 0, NULL);
    assert_non_null(vocab);
    json_object_del(vocab, "<|endoftext|>");
    assert_int_equal(json_object_size(vocab), 259);
    json_t *root = json_pack(
        "{s:[{s:i,s:s,s:b},{s:i,s:s,s:b}], s:n, s:{s:s,s:b}, s:{s:s,s:[{s:{s:s,s:i}},{s:{}}]},"
        " s:{s:s}, s:{s:s,s:n,s:o,s:[s,[s,s],s]}}",
        "added_tokens", "id", 259, "content", "<s>", "special", 1, "id", 261, "content", "</s>",
        "special", 1, "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
        "post_processor", "type", "TemplateProcessing", "single", "SpecialToken", "id", "<s>",
        "type_id", 0, "Sequence", "decoder", "type", "ByteLevel", "model", "type", "BPE", "dropout",
        "vocab", vocab, "merges", "h e", "l", "l", "he ll");
    assert_non_null(root);
    return root;
}

/* Frees root. */
static ls_status create_json(json_t *root, lsi_tokenizer **tokenizer) {
    assert_int_equal(json_dump_file(root, path_of("tokenizer.json"), 0), 0);
    json_decref(root);
    *tokenizer = NULL;
    return lsi_tokenizer_create(path_of("tokenizer.json"), tokenizer);
}

static void both_spellings_of_merges_are_read(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer;
    size_t bytes;
    assert_ok(create_json(small_json(), &tokenizer));
    assert_string_equal(lsi_tokenizer_name(tokenizer), "bpe");
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 262);
    assert_int_equal(lsi_tokenizer_begin_id(tokenizer), 259);
    assert_int_equal(lsi_tokenizer_end_id(tokenizer), 261);
    assert_encodes_text(tokenizer, "hello <s>", IDS(258, 78, 220, 27, 82, 29));
    assert_memory_equal(lsi_tokenizer_decode(tokenizer, 0, 261, &bytes), "</s>", 4);
    assert_int_equal(bytes, 4);
    (void)lsi_tokenizer_decode(tokenizer, 0, 260, &bytes);
    assert_int_equal(bytes, 0);
    assert_ok(lsi_folder_make(path_of("saved")));
    assert_ok(lsi_tokenizer_save(tokenizer, path_of("saved")));
    lsi_tokenizer_destroy(tokenizer);
    tokenizer = tokenizer_of(path_of("saved"));
    assert_encodes_text(tokenizer, "hell", IDS(258));
    lsi_tokenizer_destroy(tokenizer);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static json_t *split(const char *pattern, const char *behavior, int invert) {
    return json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", pattern,
                     "behavior", behavior, "invert", invert);
}

static json_t *byte_level(int add_prefix_space, int use_regex) {
    return json_pack("{s:s,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", add_prefix_space,
                     "use_regex", use_regex);
}

static json_t *sequence(json_t *first, json_t *second) {
    return json_pack("{s:s,s:[o,o]}", "type", "Sequence", "pretokenizers", first, second);
}

static void cuts_that_are_gpt2s_are_known(void **state) {
    (void)state;
    json_t *const cuts[] = {
        byte_level(0, 1),
        sequence(split(GPT2_PATTERN, "Isolated", 0), byte_level(0, 0)),
        sequence(split(GPT2_PATTERN, "Isolated", 0), byte_level(0, 1)),
        sequence(split("'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
                       "|\\s+",
                       "Isolated", 0),
                 byte_level(0, 0)),
    };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        lsi_tokenizer *tokenizer;
        json_t *root = small_json();
        json_object_set_new(root, "pre_tokenizer", cuts[i]);
        assert_ok(create_json(root, &tokenizer));
        assert_encodes_text(tokenizer, "hell  hell", IDS(258, 220, 220, 258));
        lsi_tokenizer_destroy(tokenizer);
    }
}

static void other_cuts_are_refused(void **state) {
    (void)state;
    const struct {
        json_t *cut;
        const char *message;
    } rows[] = {
        {json_null(), "\"pre_tokenizer\": \"type\" is missing, which is not supported"},
        {byte_level(1, 1), "\"pre_tokenizer\": \"add_prefix_space\" is true"},
        {json_pack("{s:s}", "type", "ByteLevel"), "\"add_prefix_space\" is missing"},
        {byte_level(0, 0), "\"pre_tokenizer\" is {\"type\":\"ByteLevel\""},
        {json_pack("{s:s}", "type", "Metaspace"), "\"type\" is \"Metaspace\""},
        {split(GPT2_PATTERN, "Isolated", 0), "\"pre_tokenizer\" is {\"type\":\"Split\""},
        {sequence(split("\\p{N}{1,3}", "Isolated", 0), byte_level(0, 0)),
         "\"pattern\" is \"\\\\p{N}{1,3}\""},
        {sequence(split(GPT2_PATTERN, "Removed", 0), byte_level(0, 0)),
         "\"behavior\" is \"Removed\""},
        {sequence(split(GPT2_PATTERN, "Isolated", 1), byte_level(0, 0)), "\"invert\" is true"},
        {sequence(byte_level(0, 1), json_pack("{s:s}", "type", "Digits")),
         "\"type\" is \"Digits\""},
        {json_pack("{s:s}", "type", "Sequence"), "\"pre_tokenizer\" is {\"type\":\"Sequence\"}"},
        {json_pack("[]"), "\"type\" is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_tokenizer *tokenizer;
        json_t *root = small_json();
        json_object_set_new(root, "pre_tokenizer", rows[i].cut);
        assert_fails(create_json(root, &tokenizer), LS_ERR_UNSUPPORTED, rows[i].message);
        assert_null(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

/* One value of the file replaced, by its place. */
static void what_would_change_ids_is_refused(void **state) {
    (void)state;
    static const struct {
        bool in_model;
        const char *name, *value;
        ls_status status;
        const char *message;
    } rows[] = {
        {false, "normalizer", "{\"type\":\"NFC\"}", LS_ERR_UNSUPPORTED,
         "\"normalizer\" is {\"type\":\"NFC\"}, which is not supported"},
        {false, "decoder", "{\"type\":\"Metaspace\"}", LS_ERR_UNSUPPORTED, "\"decoder\" is"},
        {false, "added_tokens", "{}", LS_ERR_FORMAT, "\"added_tokens\" is not a list"},
        {false, "added_tokens", "[1]", LS_ERR_FORMAT, "\"added_tokens\"[0]: it has no text"},
        {false, "added_tokens", "[{\"content\":\"x\"}]", LS_ERR_FORMAT, "not a whole number"},
        {false, "added_tokens", "[{\"id\":0,\"content\":\"<s>\"}]", LS_ERR_FORMAT,
         "\"added_tokens\"[0]: id 0 is another token's"},
        {false, "added_tokens", "[{\"id\":-1,\"content\":\"<s>\"}]", LS_ERR_FORMAT, "its id is -1"},
        {false, "added_tokens", "[{\"id\":9999999,\"content\":\"x\"}]", LS_ERR_FORMAT, "9999999"},
        {false, "model", "[]", LS_ERR_FORMAT, "no object \"model\""},
        {true, "type", "\"Unigram\"", LS_ERR_UNSUPPORTED, "\"type\" is \"Unigram\""},
        {true, "type", "1", LS_ERR_UNSUPPORTED, "\"type\" is 1"},
        {true, "dropout", "0.1", LS_ERR_UNSUPPORTED, "\"dropout\" is 0.1"},
        {true, "byte_fallback", "true", LS_ERR_UNSUPPORTED, "\"byte_fallback\" is true"},
        {true, "ignore_merges", "true", LS_ERR_UNSUPPORTED, "\"ignore_merges\" is true"},
        {true, "end_of_word_suffix", "\"</w>\"", LS_ERR_UNSUPPORTED, "\"end_of_word_suffix\" is"},
        {true, "continuing_subword_prefix", "\"##\"", LS_ERR_UNSUPPORTED, "prefix\" is \"##\""},
        {true, "vocab", "[]", LS_ERR_FORMAT, "not an object of token: id"},
        {true, "vocab", "{\"a\": 0}", LS_ERR_FORMAT, "\"merges\"[0]: the left part is no token"},
        {true, "merges", "{}", LS_ERR_FORMAT, "\"merges\" is not a list"},
        {true, "merges", "[\"h e\", 5]", LS_ERR_FORMAT, "\"merges\"[1]: expected \"left right\""},
        {true, "merges", "[[\"h\"]]", LS_ERR_FORMAT, "\"merges\"[0]: expected \"left right\""},
        {true, "merges", "[[\"h\",\"e\",\"l\"]]", LS_ERR_FORMAT, "\"merges\"[0]: expected"},
        {true, "merges", "[\"h e\", [\"h\",\"e\"]]", LS_ERR_FORMAT, "[1]: this pair was merged"},
        {true, "merges", "[\"x y\"]", LS_ERR_FORMAT, "[0]: its result is not in the vocabulary"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_tokenizer *tokenizer;
        json_t *root = small_json(), *value = json_loads(rows[i].value, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        json_object_set_new(rows[i].in_model ? json_object_get(root, "model") : root, rows[i].name,
                            value);
        assert_fails(create_json(root, &tokenizer), rows[i].status, rows[i].message);
        assert_null(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void settings_that_change_nothing_are_passed_over(void **state) {
    (void)state;
    lsi_tokenizer *tokenizer;
    json_t *root = small_json(), *model = json_object_get(root, "model");
    json_object_set_new(model, "unk_token", json_string("<s>"));
    json_object_set_new(model, "fuse_unk", json_true());
    json_object_set_new(model, "end_of_word_suffix", json_string(""));
    json_object_del(model, "type"); /* files from before there were other kinds */
    json_object_set_new(root, "truncation", json_pack("{s:i}", "max_length", 7));
    json_object_del(root, "post_processor");
    json_object_del(root, "decoder");
    json_object_del(root, "added_tokens");
    assert_ok(create_json(root, &tokenizer));
    assert_int_equal(lsi_tokenizer_begin_id(tokenizer), -1);
    assert_int_equal(lsi_tokenizer_end_id(tokenizer), -1);
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 259);
    lsi_tokenizer_destroy(tokenizer);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    json_t *root = small_json();
    assert_int_equal(json_dump_file(root, path_of("tokenizer.json"), 0), 0);
    json_decref(root);
    for (int64_t n = 1;; n++) {
        lsi_tokenizer *tokenizer = NULL;
        lsi_mem_fail_at(n);
        ls_status status = lsi_tokenizer_create(path_of("tokenizer.json"), &tokenizer);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        lsi_tokenizer_destroy(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(both_spellings_of_merges_are_read),
        IN_SCRATCH(cuts_that_are_gpt2s_are_known),
        IN_SCRATCH(other_cuts_are_refused),
        IN_SCRATCH(what_would_change_ids_is_refused),
        IN_SCRATCH(settings_that_change_nothing_are_passed_over),
        IN_SCRATCH(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
