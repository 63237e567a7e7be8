/* Steps whose loss or gradient is not finite, from outside: they end the run and name what it was,
 * or are left out as if never made, and only so often. Models are made for it, whose products leave
 * the range on any machine. */
#include "checkpoint/model_folder.h"
#include "cli/train_program.h"
#include "nn/model.h"

/* ---- models ---- */

static void multiply(lsi_model *model, const char *name, float factor, float offset) {
    int i = lsi_model_find(model, name);
    assert_true(i >= 0);
    float *values = lsi_model_values(model, i);
    for (int64_t e = 0; e < model->params[i].count; e++) values[e] = values[e] * factor + offset;
}

static lsi_model *make_model(void) {
    const lsi_model_config config = {.n_layer = 1,
                                     .n_head = 2,
                                     .n_embd = 16,
                                     .seq_len = SMALL_SEQ_LEN,
                                     .vocab_size = 256,
                                     .norm_epsilon = 1e-5};
    const lsi_model_class *class;
    lsi_model *model;
    assert_ok(lsi_model_class_find("gpt2", &class));
    assert_ok(lsi_model_create(class, &config, &model));
    lsi_model_init(model, 1);
    return model;
}

static void save_model(void **state, lsi_model *model, const char *name) {
    const lsi_model_save_opts opts = {.tokenizer = "byte"};
    assert_ok(lsi_model_save(model, &opts, in_scratch(state, name)));
}

/* Products of its feed-forward layer are usual, but gradients between the two factors are not. */
static void save_model_whose_gradient_overflows(void **state, char sha256[LSI_SHA256_TEXT_BYTES]) {
    lsi_model *model = make_model();
    multiply(model, "h.0.mlp.c_fc.weight", 1e-36f, 0);
    multiply(model, "h.0.mlp.c_proj.weight", 0, 1e38f);
    lsi_model_sha256(model, sha256);
    save_model(state, model, "bad-gradient");
    lsi_model_destroy(model);
}

static void save_model_whose_loss_overflows(void **state) {
    lsi_model *model = make_model();
    multiply(model, "wte.weight", 100, 0);
    multiply(model, "ln_f.weight", 0, 3e38f);
    save_model(state, model, "bad-loss");
    lsi_model_destroy(model);
}

/* Gradients of several units, which times 2^16 are more than float16 holds. */
static void save_model_with_large_gradients(void **state) {
    lsi_model *model = make_model();
    multiply(model, "ln_f.weight", 20, 0);
    save_model(state, model, "large-gradients");
    lsi_model_destroy(model);
}

/* ---- ending the run ---- */

static void assert_run_fails(void **state, const char *options, const char *const *texts) {
    program_result result;
    char what[512];
    snprintf(what, sizeof what, options, (const char *)*state);
    program_finish(start_training(state, NULL, "fails", what), &result);
    assert_refused_with(&result, 1, texts);
    program_release(&result);
}

static void what_is_not_finite_is_named(void **state) {
    char sha256[LSI_SHA256_TEXT_BYTES];
    save_model_whose_loss_overflows(state);
    save_model_whose_gradient_overflows(state, sha256);
    assert_run_fails(
        state, "--steps 5 --workers 2 --init %s/bad-loss",
        (const char *[]){"step 1: the loss of micro-batch 0 (rank 0) is ", "lower --lr", NULL});
    assert_run_fails(state, "--steps 5 --workers 2 --init %s/bad-gradient --first-bucket-mb 0.001",
                     (const char *[]){"step 1: ", "rank ",
                                      "the gradient of parameter h.0.mlp.c_fc.", "(bucket ", NULL});
    assert_run_fails(state, "--steps 3 --workers 2 --comm-hook fp16 --loss-scale 1048576",
                     (const char *[]){"step 1: ", "hook fp16", "not finite", NULL});
}

static void runs_end_after_too_many_skips(void **state) {
    char sha256[LSI_SHA256_TEXT_BYTES];
    save_model_whose_gradient_overflows(state, sha256);
    assert_run_fails(state,
                     "--steps 9 --workers 2 --init %s/bad-gradient --on-nonfinite skip "
                     "--max-skips 3",
                     (const char *[]){"step 4: 4 steps in a row were left out (--max-skips)",
                                      "is not finite", NULL});
}

/* ---- leaving steps out ---- */

static void skipped_steps_leave_the_weights_as_they_are(void **state) {
    char sha256[LSI_SHA256_TEXT_BYTES];
    save_model_whose_gradient_overflows(state, sha256);
    json_t *r =
        train(state, "skips", "--steps 5 --workers 2 --init %s/bad-gradient --on-nonfinite skip",
              (const char *)*state);
    assert_int_equal(number_of(r, "n_skipped"), 5);
    assert_string_equal(text_in(r, "weights_sha256"), sha256);
    json_t *lines = metrics_with(state, "skips", "optimizer_ms");
    for (size_t i = 0; i < 5; i++) /* the norm was taken */
        assert_true(number_of(json_array_get(lines, i), "optimizer_ms") > 0);
    json_decref(lines);
    json_decref(r);
}

/* JSON knows no NaN. */
static void losses_that_are_not_finite_are_null_in_results(void **state) {
    save_model_whose_loss_overflows(state);
    json_t *r =
        train(state, "nulls", "--steps 2 --workers 2 --init %s/bad-loss --on-nonfinite skip",
              (const char *)*state);
    assert_true(json_is_null(json_object_get(r, "loss_first")));
    assert_true(json_is_null(json_object_get(r, "loss_last")));
    assert_int_equal(json_array_size(json_object_get(r, "loss")), 2);
    assert_true(json_is_null(json_array_get(json_object_get(r, "loss"), 1)));
    json_decref(r);
}

/* Decay of a factor of -99 a step: the weights of any machine leave the range soon. */
#define RUINOUS                                                                                    \
    "--lr 10 --weight-decay 10 --schedule constant --warmup-steps 0 --clip-norm 0 --workers 2 "

/* Steps before the first skip. */
static int steps_before_skips(void **state, const char *name) {
    json_t *lines = metrics_with(state, name, "n_skipped");
    int n_good = 0, n_lines = (int)json_array_size(lines);
    while (n_good < n_lines && number_of(json_array_get(lines, (size_t)n_good), "n_skipped") == 0)
        n_good++;
    json_decref(lines);
    return n_good;
}

/* A run whose last step is left out ends where it was before. */
static void skipped_steps_are_as_if_never_made(void **state) {
    enum { STEPS = 40 };
    static const char skip[] = "--on-nonfinite skip --max-skips 100";
    json_decref(train(state, "search", RUINOUS "--steps %d %s", STEPS, skip));
    int n_good = steps_before_skips(state, "search");
    assert_in_range(n_good, 1, STEPS - 1);
    json_t *ruined = train(state, "ruined", RUINOUS "--steps %d %s", n_good + 1, skip);
    assert_int_equal(number_of(ruined, "n_skipped"), 1);
    json_t *good = train(state, "good", RUINOUS "--steps %d", n_good);
    assert_same_weights(good, ruined, "steps before the first skip");
    assert_int_equal(number_of(good, "n_skipped"), 0);
    json_decref(good);
    json_decref(ruined);
}

/* It begins as for gradients below 1, is too large for these, and finds what fits. */
static void dynamic_loss_scale_starts_high_and_recovers(void **state) {
    save_model_with_large_gradients(state);
    json_t *r = train(state, "scale",
                      "--steps 40 --lr 1e-2 --workers 2 --comm-hook fp16 --loss-scale dynamic "
                      "--init %s/large-gradients",
                      (const char *)*state);
    json_t *lines = metrics_with(state, "scale", "n_skipped");
    double skipped = number_of(r, "n_skipped");
    assert_in_range(skipped, 1, 8);
    assert_int_equal(number_of(json_array_get(lines, 0), "n_skipped"), 1);
    assert_true(number_of(json_array_get(lines, 20), "n_skipped") == skipped);
    assert_true(number_of(r, "loss_last") < 0.8 * number_of(r, "loss_first"));
    json_decref(lines);
    json_decref(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_finite_is_named),
        cmocka_unit_test(runs_end_after_too_many_skips),
        cmocka_unit_test(skipped_steps_leave_the_weights_as_they_are),
        cmocka_unit_test(losses_that_are_not_finite_are_null_in_results),
        cmocka_unit_test(skipped_steps_are_as_if_never_made),
        cmocka_unit_test(dynamic_loss_scale_starts_high_and_recovers),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
