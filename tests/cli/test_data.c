/* `lockstep train` on text with a tokenizer and on token files: the same tokens give the same
 * weights whatever file they come from, and the tokenizer goes with the model. */
#include "cli/train_program.h"

#include "data/data.h"

/* Sentences of harness/text.h are ASCII, so a few merges of frequent pairs are a vocabulary. */
static const char MERGES[] = "#version: 0.2\nt h\nth e\n\xC4\xA0 the\na n\nan d\ni n\ne r\n";
enum { VOCAB = 256 + 7 + 1, LLM_MAGIC = 20240520 };

/* The ids of FOLDER/text, as nanoGPT and as llm.c write them. */
static void write_token_files(void **state) {
    lsi_tokenizer *tokenizer;
    char *text;
    size_t bytes;
    int32_t *ids, header[256] = {LLM_MAGIC, 1};
    int64_t n_ids;
    put_text(in_scratch(state, "merges.txt"), MERGES);
    assert_ok(lsi_tokenizer_create(in_scratch(state, "merges.txt"), &tokenizer));
    assert_ok(lsi_file_read(in_scratch(state, "text"), 1 << 20, &text, &bytes));
    assert_ok(lsi_tokenizer_encode(tokenizer, text, bytes, &ids, &n_ids));
    assert_true(n_ids < (int64_t)bytes * 9 / 10); /* the merges are used */
    uint16_t *narrow = calloc((size_t)n_ids, sizeof *narrow);
    for (int64_t i = 0; i < n_ids; i++) narrow[i] = (uint16_t)ids[i];
    header[2] = (int32_t)n_ids;
    assert_ok(lsi_file_replace(in_scratch(state, "nano.bin"), narrow, (size_t)n_ids * 2));
    lsi_file_writer *writer;
    assert_ok(lsi_file_begin(in_scratch(state, "llm.bin"), &writer));
    assert_ok(lsi_file_write(writer, header, sizeof header));
    assert_ok(lsi_file_write(writer, narrow, (size_t)n_ids * 2));
    assert_ok(lsi_file_commit(writer));
    free(narrow);
    lsi_free(ids);
    lsi_free(text);
    lsi_tokenizer_destroy(tokenizer);
}

static bool exists(void **state, const char *name) {
    return access(in_scratch(state, name), F_OK) == 0;
}

static int64_t saved_vocab(void **state, const char *config) {
    json_t *json = read_json(state, config);
    int64_t vocab = (int64_t)number_of(json, "vocab_size");
    json_decref(json);
    return vocab;
}

static void the_same_tokens_give_the_same_weights(void **state) {
    const char *folder = *state;
    write_token_files(state);
    json_t *text = train(state, "a", "--steps 6 --workers 2 --tokenizer %s/merges.txt", folder);
    json_t *nano = train(state, "b", "--steps 6 --workers 2 --data %s/nano.bin --vocab-size %d",
                         folder, VOCAB);
    json_t *llm =
        train(state, "c", "--steps 6 --workers 2 --data %s/llm.bin --tokenizer %s/merges.txt",
              folder, folder);
    assert_same_weights(text, nano, "nanoGPT's file");
    assert_same_weights(text, llm, "llm.c's file");
    json_decref(text);
    json_decref(nano);
    json_decref(llm);
    assert_int_equal(saved_vocab(state, "a/model/config.json"), VOCAB);
    assert_true(exists(state, "a/model/merges.txt") && exists(state, "a/model/vocab.json"));
    assert_true(exists(state, "c/model/merges.txt"));
    assert_false(exists(state, "b/model/merges.txt"));
}

static void kinds_are_named_in_the_configuration(void **state) {
    json_t *text = read_json(state, "a/model/config.json");
    json_t *nano = read_json(state, "b/model/config.json");
    assert_string_equal(text_in(json_object_get(text, "lockstep"), "tokenizer"), "gpt2");
    assert_null(json_object_get(json_object_get(nano, "lockstep"), "tokenizer"));
    json_decref(text);
    json_decref(nano);
}

static void vocabularies_follow_the_largest_token(void **state) {
    static const uint16_t ids[] = {5, 9, 1000, 3, 5, 9, 7, 3, 5, 9, 7, 3, 5, 9, 7, 3, 5};
    assert_ok(lsi_file_replace(in_scratch(state, "few.bin"), ids, sizeof ids));
    json_decref(train(state, "few",
                      "--steps 1 --data %s/few.bin --batch-size 1 --micro-batch-size 1",
                      (const char *)*state));
    assert_int_equal(saved_vocab(state, "few/model/config.json"), 1001);
}

static void validation_may_have_a_file_of_its_own(void **state) {
    write_sentences(in_scratch(state, "other"), 2000, 7);
    json_t *result = train(state, "val", "--steps 2 --val-data %s/other", (const char *)*state);
    json_t *lines = metrics_with(state, "val", "val_loss");
    assert_true(number_of(result, "val_loss") > 0);
    assert_int_equal(json_array_size(lines), 2);
    json_decref(lines);
    json_decref(result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens_give_the_same_weights),
        cmocka_unit_test(kinds_are_named_in_the_configuration),
        cmocka_unit_test(vocabularies_follow_the_largest_token),
        cmocka_unit_test(validation_may_have_a_file_of_its_own),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
