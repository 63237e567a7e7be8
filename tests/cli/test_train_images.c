/* `lockstep train` on images from outside: the promise about bits for every number of workers,
 * running statistics included, accuracy, and what does not fit together. */
#include <math.h>

#include "cli/train_images.h"

/* ---- bits ---- */

static void reproducible_runs_have_the_same_bits_for_any_number_of_workers(void **state) {
    static const char *const options[] = {
        "--model convnet --steps 8",
        "--model convnet --steps 12 --tail pad --batch-size 42 --dropout 0.2",
        "--model convnet --steps 8 --dtype bf16",
        "--model convnet --steps 8 --output-dtype bf16",
        "--model mlp --steps 8 --dtype bf16 --output-dtype bf16",
        "--model convnet --steps 8 --n-layer 2 --checkpoint-activations full",
        "--model mlp --steps 12 --dropout 0.2",
    };
    static const int workers[] = {1, 2, 4, 3};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        json_t *first = NULL;
        for (size_t k = 0; k < sizeof workers / sizeof workers[0]; k++) {
            json_t *result =
                train_images(state, "%s --reproducible --workers %d", options[i], workers[k]);
            if (!first) first = json_incref(result);
            assert_same_weights(first, result, options[i]);
            assert_true(number_of(first, "val_loss") == number_of(result, "val_loss"));
            assert_true(number_of(first, "val_accuracy") == number_of(result, "val_accuracy"));
            json_decref(result);
        }
        json_decref(first);
    }
}

/* Statistics stay with each worker, other frozen parameters are sharded where units come and go. */
static void frozen_layers_have_the_same_bits_with_every_strategy(void **state) {
    static const char *const ways[] = {"--workers 1", "--workers 2 --strategy zero2",
                                       "--workers 2 --strategy zero3 --replicas private",
                                       "--workers 4 --strategy hybrid --shard-group 2 "
                                       "--replicas private --dtype f32"};
    json_t *first = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        json_t *result = train_images(
            state, "--model convnet --steps 4 --reproducible --freeze conv1,bn1.,layer1 %s",
            ways[i]);
        if (!first) first = json_incref(result);
        assert_same_weights(first, result, ways[i]);
        assert_true(number_of(first, "val_loss") == number_of(result, "val_loss"));
        json_decref(result);
    }
    json_decref(first);
}

/* An option that changed nothing would pass the test above. */
static void every_option_of_the_model_changes_it(void **state) {
    static const char *const options[] = {"--model convnet",
                                          "--model convnet --n-layer 2",
                                          "--model convnet --n-embd 5",
                                          "--model convnet --dropout 0.1",
                                          "--model convnet --output-dtype bf16",
                                          "--model convnet --dtype bf16",
                                          "--model convnet --dtype bf16 --output-dtype bf16",
                                          "--model mlp",
                                          "--model mlp --n-layer 1",
                                          "--model mlp --n-embd 5",
                                          "--model mlp --dropout 0.1",
                                          "--model mlp --output-dtype bf16",
                                          "--model mlp --dtype bf16",
                                          "--model mlp --dtype bf16 --output-dtype bf16"};
    enum { N = sizeof options / sizeof options[0] };
    char hashes[N][80];
    for (int i = 0; i < N; i++) {
        json_t *result = train_images(state, "--steps 2 %s", options[i]);
        snprintf(hashes[i], sizeof hashes[i], "%s", text_in(result, "weights_sha256"));
        for (int j = 0; j < i; j++)
            if (strcmp(hashes[i], hashes[j]) == 0)
                fail_msg("'%s' and '%s' give the same weights", options[i], options[j]);
        json_decref(result);
    }
}

/* ---- learning ---- */

/* `lockstep eval` cuts the test images into other batches, and finds the same. */
static void assert_evaluates_alike(void **state, const json_t *trained) {
    const char *folder = *state;
    program_words words = {.n = 0};
    program_result result;
    add_split(&words, "eval --model %s/run/model --data %s/set --workers 2 --json %s/eval.json",
              folder, folder, folder);
    program_run(NULL, words.at, &result);
    assert_ended(&result, 0);
    program_release(&result);
    json_t *found = result_of(state, "eval");
    assert_int_equal(number_of(found, "n_samples"), N_TEST);
    assert_true(number_of(found, "accuracy") == number_of(trained, "val_accuracy"));
    double loss = number_of(found, "loss");
    assert_true(fabs(loss - number_of(trained, "val_loss")) < 1e-4 * (1.0 + loss));
    json_decref(found);
}

static void models_learn_and_are_saved(void **state) {
    static const char *const models[] = {"convnet", "mlp"};
    for (int i = 0; i < 2; i++) {
        json_t *result = train_images(
            state, "--model %s --epochs 8 --lr 1e-2 --workers 2 --n-embd 8", models[i]);
        if (!(number_of(result, "val_accuracy") > 0.9))
            fail_msg("%s: accuracy %g", models[i], number_of(result, "val_accuracy"));
        assert_evaluates_alike(state, result);
        json_t *lines = metrics_with(state, "run", "val_accuracy");
        assert_true(json_array_size(lines) >= 5);
        const json_t *last = json_array_get(lines, json_array_size(lines) - 1);
        assert_true(number_of(last, "val_accuracy") == number_of(result, "val_accuracy"));
        json_decref(lines);
        json_decref(result);
    }
}

/* What an option means that is not given depends on the model. */
static void models_have_their_usual_sizes(void **state) {
    static const struct {
        const char *model;
        int n_layer, n_embd;
    } rows[] = {{"convnet", 1, 16}, {"mlp", 2, 256}};
    for (int i = 0; i < 2; i++) {
        json_decref(train_images(state, "--model %s --steps 1 --n-embd 0", rows[i].model));
        json_t *config = read_json(state, "run/model/config.json");
        assert_int_equal(number_of(config, "n_layer"), rows[i].n_layer);
        assert_int_equal(number_of(config, "n_embd"), rows[i].n_embd);
        assert_int_equal(number_of(config, "height"), SIDE);
        assert_int_equal(number_of(config, "n_classes"), N_CLASSES);
        json_decref(config);
    }
}

static void what_is_printed_counts_images(void **state) {
    program_result result;
    run_program(state, "--model convnet --steps 3 --log-every 1", &result);
    assert_ended(&result, 0);
    static const char *const texts[] = {"240 training and 60 validation images, 10 steps an epoch",
                                        "images of 8 x 8 x 1, 4 classes", "images/s", "nats/image",
                                        "accuracy  "};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!strstr(result.out, texts[i])) fail_msg("no '%s' in: %s", texts[i], result.out);
    assert_null(strstr(result.out, "token"));
    program_release(&result);
}

/* ---- what does not fit together ---- */

static void models_and_data_that_do_not_fit_are_refused(void **state) {
    const struct {
        const char *options, *text;
    } rows[] = {
        {"--model gpt2", "--model gpt2 takes tokens, but --data"},
        {"--model convnet --data %s/text", "has tokens; would work: --model gpt2"},
        {"--model convnet --tokenizer %s/merges.txt", "has images, which need none"},
        {"--model mlp --n-kv-head 2", "are for --model llama"},
        {"--model convnet --val-data %s/set", "has its validation split in it"},
        {"--model convnet --batch-size 300",
         "240 training images do not fill one --batch-size 300"},
        {"--model convnet --n-embd 1000000", "parameters"},
    };
    put_text(in_scratch(state, "merges.txt"), "#version: 0.2\na b\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[512];
        program_result result;
        const char *at = strstr(rows[i].options, "%s");
        snprintf(options, sizeof options, "%.*s%s%s",
                 at ? (int)(at - rows[i].options) : (int)strlen(rows[i].options), rows[i].options,
                 at ? (const char *)*state : "", at ? at + 2 : "");
        run_program(state, options, &result);
        assert_true(result.exit_code == 2);
        if (!strstr(result.err, rows[i].text))
            fail_msg("%s: expected '%s' in: %s", options, rows[i].text, result.err);
        program_release(&result);
    }
}

#define ROW(test) cmocka_unit_test_setup_teardown(test, make_images, remove_scratch)

int main(void) {
    const struct CMUnitTest tests[] = {
        ROW(reproducible_runs_have_the_same_bits_for_any_number_of_workers),
        ROW(frozen_layers_have_the_same_bits_with_every_strategy),
        ROW(every_option_of_the_model_changes_it),
        ROW(models_learn_and_are_saved),
        ROW(models_have_their_usual_sizes),
        ROW(what_is_printed_counts_images),
        ROW(models_and_data_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
