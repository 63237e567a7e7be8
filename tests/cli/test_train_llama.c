/* `lockstep train --model llama` from outside: the promise about bits for every number of workers,
 * what is saved, and which options belong to it. */
#include "cli/train_program.h"

static void reproducible_runs_have_the_same_bits_for_any_number_of_workers(void **state) {
    static const char *const options[] = {
        "--n-kv-head 1",
        "--untied --dropout 0.1 --rope-theta 500",
        "--n-inner 20 --checkpoint-activations full",
        "--dtype bf16",
    };
    static const int workers[] = {1, 2, 4, 3};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        json_t *first = NULL;
        for (size_t k = 0; k < sizeof workers / sizeof workers[0]; k++) {
            json_t *result =
                train(state, "bits", "--model llama %s --steps 10 --reproducible --workers %d",
                      options[i], workers[k]);
            if (!first) first = json_incref(result);
            assert_same_weights(first, result, options[i]);
            json_decref(result);
        }
        json_decref(first);
    }
}

/* An option that changed nothing would pass the test above. */
static void every_option_of_the_model_changes_it(void **state) {
    static const char *const options[] = {"",          "--n-kv-head 1",    "--n-inner 40",
                                          "--untied",  "--rope-theta 500", "--dropout 0.1",
                                          "--n-head 4"};
    enum { N = sizeof options / sizeof options[0] };
    char hashes[N][80];
    for (int i = 0; i < N; i++) {
        json_t *result = train(state, "change", "--model llama --steps 3 %s", options[i]);
        snprintf(hashes[i], sizeof hashes[i], "%s", text_in(result, "weights_sha256"));
        for (int j = 0; j < i; j++)
            if (strcmp(hashes[i], hashes[j]) == 0)
                fail_msg("'%s' and '%s' give the same weights", options[i], options[j]);
        json_decref(result);
    }
}

static void loss_falls_and_the_folder_says_what_the_model_is(void **state) {
    json_t *result =
        train(state, "run", "--model llama --steps 60 --lr 1e-2 --n-kv-head 1 --workers 2");
    assert_true(number_of(result, "loss_last") < 0.8 * number_of(result, "loss_first"));
    json_t *config = read_json(state, "run/model/config.json");
    assert_string_equal(text_in(config, "model_type"), "llama");
    assert_int_equal(number_of(config, "num_key_value_heads"), 1);
    assert_int_equal(number_of(config, "num_attention_heads"), 2);
    assert_int_equal(number_of(config, "intermediate_size"), 64); /* 8/3 of 16, in steps of 32 */
    assert_true(number_of(config, "rope_theta") == 10000.0);
    assert_true(json_is_true(json_object_get(config, "tie_word_embeddings")));
    json_decref(config);
    json_decref(result);
}

static void options_that_do_not_fit_are_refused(void **state) {
    const struct {
        const char *options, *text;
    } rows[] = {
        {"--model gpt2 --n-kv-head 1", "are for --model llama; --model gpt2 has none of them"},
        {"--model gpt2 --n-inner 64", "are for --model llama"},
        {"--model gpt2 --rope-theta 500", "are for --model llama"},
        {"--model gpt2 --untied", "are for --model llama"},
        {"--model llama --n-kv-head 3", "n_kv_head is 3, expected a divisor of n_head, 2"},
        {"--model llama --n-head 16", "the size of a head, is 1, expected an even number"},
        {"--model lama", "llama"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_result result;
        program_finish(start_training(state, NULL, "refused", rows[i].options), &result);
        assert_true(result.exit_code != 0);
        if (!strstr(result.err, rows[i].text))
            fail_msg("%s: expected '%s' in: %s", rows[i].options, rows[i].text, result.err);
        program_release(&result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            reproducible_runs_have_the_same_bits_for_any_number_of_workers, make_text,
            remove_scratch),
        cmocka_unit_test_setup_teardown(every_option_of_the_model_changes_it, make_text,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(loss_falls_and_the_folder_says_what_the_model_is, make_text,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(options_that_do_not_fit_are_refused, make_text,
                                        remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
