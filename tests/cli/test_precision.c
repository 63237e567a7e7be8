/* Types and checkpointing of activations from outside: checkpointing changes memory and no bit,
 * also with dropout; bfloat16 learns as float32 does and keeps the promises about bits; logits can
 * be rounded before the loss sees them; fine-tuning starts where a saved model ended. */
#include <math.h>

#include "cli/train_program.h"

static double activation_bytes(const json_t *result) {
    const json_t *peaks = json_object_get(result, "peak_bytes");
    return json_number_value(json_object_get(peaks, "activations"));
}

static const char shape[] = "--n-layer 4 --n-embd 64 --seq-len 64 --dropout 0.2 --steps 6";

static void checkpointed_activations_change_no_bit(void **state) {
    static const char *const models[] = {"gpt2", "llama"};
    static const char *const dtypes[] = {"f32", "bf16"};
    static const char *const which[] = {"none", "2", "full"};
    for (int m = 0; m < 2; m++)
        for (int d = 0; d < 2; d++) {
            json_t *first = NULL;
            double bytes = INFINITY;
            for (int i = 0; i < 3; i++) {
                json_t *result =
                    train(state, "kept", "%s --model %s --dtype %s --checkpoint-activations %s",
                          shape, models[m], dtypes[d], which[i]);
                if (!first) first = json_incref(result);
                assert_same_weights(first, result, which[i]);
                if (activation_bytes(result) >= bytes)
                    fail_msg("%s %s, %s: %g bytes of activations, before %g", models[m], dtypes[d],
                             which[i], activation_bytes(result), bytes);
                bytes = activation_bytes(result);
                json_decref(result);
            }
            json_decref(first);
        }
}

static void bfloat16_learns_as_float32_does(void **state) {
    json_t *wide = train(state, "wide", "--steps 60 --lr 1e-2 --workers 2");
    json_t *narrow = train(state, "narrow", "--steps 60 --lr 1e-2 --workers 2 --dtype bf16");
    double last = number_of(wide, "loss_last");
    assert_true(last < 0.8 * number_of(wide, "loss_first"));
    if (fabs(number_of(narrow, "loss_last") - last) > 0.02 * last)
        fail_msg("float32 %g, bfloat16 %g", last, number_of(narrow, "loss_last"));
    assert_true(strcmp(text_in(wide, "weights_sha256"), text_in(narrow, "weights_sha256")) != 0);
    json_decref(wide);
    json_decref(narrow);
}

static void bfloat16_keeps_the_promise_about_bits(void **state) {
    json_t *first = NULL;
    for (int workers = 1; workers <= 4; workers++) {
        json_t *result =
            train(state, "bits", "--steps 8 --dtype bf16 --reproducible --workers %d", workers);
        if (!first) first = json_incref(result);
        assert_same_weights(first, result, "bf16");
        json_decref(result);
    }
    json_decref(first);
}

/* Losses of training and validation are those of other logits: close, and seen in both types. */
static void logits_of_bfloat16_change_every_loss_a_little(void **state) {
    static const char *const models[] = {"--model gpt2 --dtype f32", "--model gpt2 --dtype bf16",
                                         "--model llama --dtype f32", "--model llama --dtype bf16"};
    static const char *const keys[] = {"loss_first", "loss_last", "val_loss"};
    for (int m = 0; m < 4; m++) {
        json_t *results[3];
        static const char *const types[] = {"", "--output-dtype f32", "--output-dtype bf16"};
        for (int i = 0; i < 3; i++)
            results[i] = train(state, "out", "%s --steps 20 --lr 1e-2 --val-fraction 0.1 %s",
                               models[m], types[i]);
        assert_same_weights(results[0], results[1], "f32 is the default");
        for (int k = 0; k < 3; k++) {
            double wide = number_of(results[1], keys[k]), narrow = number_of(results[2], keys[k]);
            if (narrow == wide || !(fabs(narrow - wide) < 0.01 * wide))
                fail_msg("%s, %s: %.9g, with logits of bfloat16 %.9g", models[m], keys[k], wide,
                         narrow);
        }
        for (int i = 0; i < 3; i++) json_decref(results[i]);
    }
}

static void fine_tuning_starts_where_a_model_ended(void **state) {
    json_t *before = train(state, "before", "--steps 60 --lr 1e-2");
    json_t *after =
        train(state, "after", "--init %s/before/model --steps 5 --lr 1e-3", (const char *)*state);
    assert_true(fabs(number_of(after, "loss_first") - number_of(before, "loss_last")) <
                0.2 * number_of(before, "loss_last"));
    assert_true(number_of(after, "loss_first") < 0.8 * number_of(before, "loss_first"));
    json_decref(before);
    json_decref(after);
}

static void models_to_start_from_are_checked(void **state) {
    const struct {
        const char *options, *expected;
    } rows[] = {
        {"--init %s/before/model --n-layer 7", "--n-layer 7"},
        {"--init %s/before/model --seq-len 4096", "--seq-len 4096 is longer than"},
        {"--init %s/before/model --model mlp --n-embd 7", "--n-embd 7"},
        {"--init %s/nothing", "config.json"},
        {"--checkpoint-activations some", "expected none, full or a number"},
        {"--dtype f16", "--dtype"},
        {"--output-dtype f16", "--output-dtype: expected one of f32|bf16"},
    };
    json_decref(train(state, "before", "--steps 2"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_words words = {.n = 0};
        program_result result;
        add_split(&words, "train --data %s/text --val-fraction 0 --steps 1", (const char *)*state);
        add_split(&words, rows[i].options, (const char *)*state);
        program_run(NULL, words.at, &result);
        assert_ended(&result, 2);
        if (!strstr(result.err, rows[i].expected))
            fail_msg("%s: no '%s' in:\n%s", rows[i].options, rows[i].expected, result.err);
        program_release(&result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(checkpointed_activations_change_no_bit, make_text,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(bfloat16_learns_as_float32_does, make_text, remove_scratch),
        cmocka_unit_test_setup_teardown(bfloat16_keeps_the_promise_about_bits, make_text,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(logits_of_bfloat16_change_every_loss_a_little, make_text,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(fine_tuning_starts_where_a_model_ended, make_text,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(models_to_start_from_are_checked, make_text,
                                        remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
