/* `lockstep train` and `lockstep generate` from outside, on a small text with a small model: the
 * promise about bits for every number of workers, and what a run leaves behind. */
#include <math.h>

#include "cli/train_program.h"

/* ---- bits ---- */

static void reproducible_runs_have_the_same_bits_for_any_number_of_workers(void **state) {
    static const int four[] = {1, 2, 4, 3, 0}, eight[] = {1, 8, 5, 3, 0};
    const struct {
        const char *name, *options;
        const int *workers;
    } rows[] = {
        {"4 micro-batches", "--steps 20", four},
        {"8 micro-batches", "--steps 20 --micro-batch-size 1", eight},
        {"dropout", "--steps 20 --micro-batch-size 1 --dropout 0.1", eight},
        {"small buckets", "--steps 20 --bucket-cap-mb 0.002 --first-bucket-mb 0.001", four},
        {"padded tail", "--steps 20 --batch-size 40 --micro-batch-size 5 --tail pad", eight},
        {"two threads", "--steps 5 --threads 2", four},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *first = NULL;
        for (const int *workers = rows[i].workers; *workers; workers++) {
            json_t *result =
                train(state, "bits", "%s --reproducible --workers %d", rows[i].options, *workers);
            assert_int_equal(number_of(result, "world_size"), *workers);
            if (!first) first = json_incref(result);
            assert_same_weights(first, result, rows[i].name);
            assert_true(
                json_equal(json_object_get(first, "loss"), json_object_get(result, "loss")));
            json_decref(result);
        }
        json_decref(first);
    }
}

static void buckets_do_not_change_bits(void **state) {
    static const char *const caps[] = {"--bucket-cap-mb 25",
                                       "--bucket-cap-mb 0.004 --first-bucket-mb 0.002",
                                       "--bucket-cap-mb 0.0001 --first-bucket-mb 0.0001"};
    json_t *first = train(state, "buckets", "--steps 10 --workers 2");
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        json_t *result = train(state, "buckets", "--steps 10 --workers 2 %s", caps[i]);
        assert_same_weights(first, result, caps[i]);
        json_decref(result);
    }
    json_decref(first);
}

/* An option that changed nothing would pass the tests above. */
static void seeds_dropout_and_order_change_bits(void **state) {
    static const char *const options[] = {"--seed 1",  "--seed 2",           "--dropout 0.2",
                                          "--lr 2e-3", "--weight-decay 0.2", "--batch-size 16"};
    enum { N = sizeof options / sizeof options[0] };
    char hashes[N][80];
    for (int i = 0; i < N; i++) {
        json_t *result = train(state, "change", "--steps 3 --workers 2 %s", options[i]);
        snprintf(hashes[i], sizeof hashes[i], "%s", text_in(result, "weights_sha256"));
        for (int j = 0; j < i; j++)
            if (strcmp(hashes[i], hashes[j]) == 0)
                fail_msg("%s and %s give the same weights", options[i], options[j]);
        json_decref(result);
    }
}

static void assert_near_losses(const json_t *a, const json_t *b, double tolerance) {
    const json_t *x = json_object_get(a, "loss"), *y = json_object_get(b, "loss");
    assert_int_equal(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        double d =
            json_number_value(json_array_get(x, i)) - json_number_value(json_array_get(y, i));
        if (!(fabs(d) <= tolerance))
            fail_msg("%d and %d workers: losses of step %zu differ by %g",
                     (int)number_of(a, "world_size"), (int)number_of(b, "world_size"), i + 1, d);
    }
}

static void runs_repeat_their_bits_and_agree_in_loss_without_the_flag(void **state) {
    static const int workers[] = {1, 2, 4, 3, 5, 0};
    json_t *first = NULL;
    for (const int *n = workers; *n; n++) {
        char options[128];
        snprintf(options, sizeof options,
                 "--steps 20 --batch-size 60 --micro-batch-size 1 "
                 "--workers %d",
                 *n);
        json_t *once = train(state, "repeat", "%s", options);
        json_t *again = train(state, "repeat", "%s", options);
        assert_same_weights(once, again, options);
        if (!first) first = json_incref(once);
        assert_near_losses(first, once, 1e-5);
        json_decref(again);
        json_decref(once);
    }
    json_decref(first);
}

/* ---- what a run leaves ---- */

static void assert_result_adds_up(const json_t *r, int workers, int steps) {
    static const char *const texts[] = {"strategy", "weights_sha256", "processor", "gemm_library"};
    static const char *const numbers[] = {"loss_first", "loss_last", "tokens_per_s", "step_ms"};
    static const char *const kinds[] = {"params",      "grads",   "optimizer",
                                        "activations", "buckets", "other"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_true(strlen(text_in(r, texts[i])) > 0);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_true(number_of(r, numbers[i]) > 0);
    assert_string_equal(text_in(r, "strategy"), workers == 1 ? "single" : "ddp");
    assert_int_equal(number_of(r, "world_size"), workers);
    assert_int_equal(number_of(r, "steps"), steps);

    const json_t *loss = json_object_get(r, "loss");
    assert_int_equal(json_array_size(loss), steps);
    assert_true(json_number_value(json_array_get(loss, 0)) == number_of(r, "loss_first"));
    assert_true(json_number_value(json_array_get(loss, (size_t)steps - 1)) ==
                number_of(r, "loss_last"));
    /* before it has learnt anything a model knows 256 equally likely bytes */
    assert_true(fabs(number_of(r, "loss_first") - log(256)) < 0.1);
    assert_true(number_of(r, "comm_ms") >= 0 && number_of(r, "comm_exposed_ms") >= 0);
    assert_true(number_of(r, "comm_exposed_ms") <= number_of(r, "step_ms") + 1);

    const json_t *ranks = json_object_get(r, "ranks"), *rss = json_object_get(r, "peak_rss_bytes");
    assert_int_equal(json_array_size(ranks), workers);
    assert_int_equal(json_array_size(rss), workers);
    const json_t *peaks = json_object_get(r, "peak_bytes");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!(number_of(peaks, kinds[i]) > 0) && !(workers == 1 && i == 4))
            fail_msg("peak_bytes of %s is %g", kinds[i], number_of(peaks, kinds[i]));
    double model_bytes = 4 * number_of(r, "n_params");
    assert_true(number_of(peaks, "params") >= model_bytes);
    assert_true(number_of(peaks, "optimizer") >= 2 * model_bytes);
    for (int i = 0; i < workers; i++)
        assert_true(json_number_value(json_array_get(rss, (size_t)i)) > model_bytes);
}

static void results_have_all_keys_with_values_that_add_up(void **state) {
    static const int workers[] = {1, 2, 4, 0};
    for (const int *n = workers; *n; n++) {
        json_t *r = train(state, "keys", "--steps 6 --workers %d", *n);
        assert_result_adds_up(r, *n, 6);
        json_decref(r);
    }
}

/* 2 (N - 1) / N of the gradients, and the gather of the step's losses: a number per micro-batch of
 * a rank and one for the wish to stop, to each peer. */
static void bytes_sent_are_those_of_the_formula(void **state) {
    for (int n = 1; n <= 4; n++) {
        json_t *r = train(state, "bytes", "--steps 3 --workers %d --batch-size 24", n);
        double grad_bytes = 4 * number_of(r, "n_params");
        double gather = 4.0 * (n - 1) * (number_of(r, "n_micro_batches") / n + 1);
        double expected = 2.0 * (n - 1) / n * grad_bytes + gather;
        /* slices are whole cache lines, so a rank may have one more or less */
        if (!(fabs(number_of(r, "bytes_sent") - expected) <= 2.0 * 64 * n))
            fail_msg("%d workers: %.0f bytes sent, expected %.0f", n, number_of(r, "bytes_sent"),
                     expected);
        if (n == 1) assert_true(number_of(r, "bytes_sent") == 0);
        json_decref(r);
    }
}

static void metrics_have_a_line_per_step_and_per_validation(void **state) {
    json_t *r = train(state, "metrics", "--steps 12 --workers 2 --val-fraction 0.1 --eval-every 5");
    json_t *steps = metrics_with(state, "metrics", "loss");
    json_t *evaluations = metrics_with(state, "metrics", "val_loss");
    assert_int_equal(json_array_size(steps), 12);
    for (size_t i = 0; i < 12; i++) {
        const json_t *line = json_array_get(steps, i);
        assert_int_equal(number_of(line, "step"), i + 1);
        assert_true(number_of(line, "loss") ==
                    json_number_value(json_array_get(json_object_get(r, "loss"), i)));
        assert_true(number_of(line, "grad_norm") > 0 && number_of(line, "lr") > 0);
        assert_true(number_of(line, "bytes_sent") == number_of(r, "bytes_sent"));
    }
    static const int at[] = {5, 10, 12};
    assert_int_equal(json_array_size(evaluations), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(number_of(json_array_get(evaluations, i), "step"), at[i]);
    assert_true(number_of(json_array_get(evaluations, 2), "val_loss") == number_of(r, "val_loss"));
    json_decref(evaluations);
    json_decref(steps);
    json_decref(r);
}

static void validation_does_not_depend_on_workers(void **state) {
    double first = 0;
    for (int n = 1; n <= 4; n++) {
        json_t *r = train(state, "validation",
                          "--steps 2 --reproducible --workers %d "
                          "--val-fraction 0.2 --eval-samples 13",
                          n);
        if (n == 1) first = number_of(r, "val_loss");
        assert_true(number_of(r, "val_loss") == first);
        json_decref(r);
    }
}

static void the_configuration_of_a_run_repeats_it(void **state) {
    json_t *first = train(state, "first",
                          "--steps 7 --workers 2 --dropout 0.1 --seed 9 --lr 3e-3 "
                          "--clip-norm 0.5 --beta2 0.97 --val-fraction 0.13");
    const char *folder = *state;
    program_words words = {.n = 0};
    program_result result;
    add_split(&words, "train --config %s/first/run.json --out %s/second --json %s/second.json",
              folder, folder, folder);
    program_run(NULL, words.at, &result);
    assert_ended(&result, 0);
    program_release(&result);
    json_t *second = result_of(state, "second");
    assert_same_weights(first, second, "run.json");
    assert_true(number_of(first, "val_loss") == number_of(second, "val_loss"));

    json_t *a = read_json(state, "first/run.json"), *b = read_json(state, "second/run.json");
    json_object_del(a, "out"), json_object_del(b, "out");
    json_object_del(a, "json"), json_object_del(b, "json");
    assert_true(json_equal(a, b));
    json_decref(a);
    json_decref(b);
    json_decref(first);
    json_decref(second);
}

static void earlier_runs_in_the_folder_are_kept(void **state) {
    static const char *const kept[] = {"kept/model.1/model.safetensors",
                                       "kept/model.2/model.safetensors",
                                       "kept/model/model.safetensors"};
    static const char *const runs[] = {"kept/run.json.1", "kept/run.json.2", "kept/run.json"};
    file_bytes weights[3];
    for (int i = 0; i < 3; i++) {
        json_decref(train(state, "kept", "--steps 1 --seed %d", i + 1));
        weights[i] = bytes_of(state, kept[2]);
    }
    for (int i = 0; i < 3; i++) {
        json_t *run = read_json(state, runs[i]);
        assert_int_equal(number_of(run, "seed"), i + 1);
        assert_unchanged(state, kept[i], weights[i]);
        lsi_free(weights[i].data);
        json_decref(run);
    }
}

static void timelines_are_json_with_all_ranks(void **state) {
    json_decref(train(state, "trace", "--steps 2 --workers 3 --batch-size 6 --trace %s/trace.out",
                      (const char *)*state));
    json_t *trace = read_json(state, "trace.out");
    const json_t *events = json_object_get(trace, "traceEvents");
    bool seen[3] = {false};
    assert_true(json_array_size(events) > 0);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *pid = json_object_get(json_array_get(events, i), "pid");
        if (json_is_integer(pid) && json_integer_value(pid) < 3)
            seen[json_integer_value(pid)] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    json_decref(trace);
}

/* ---- what is measured ---- */

/* T099: one tick of the schedule per optimizer step: 0.5 at step 50 (0 is the first) of 100. */
static void the_schedule_ticks_once_a_step(void **state) {
    json_t *first = NULL;
    for (int workers = 1; workers <= 4; workers *= 2)
        for (int accumulation = 1; accumulation <= 4; accumulation += 3) {
            json_decref(train(state, "schedule",
                              "--steps 100 --schedule linear --lr 1 --min-lr 0 "
                              "--warmup-steps 0 --clip-norm 1e-9 --weight-decay 0 --seq-len 2 "
                              "--micro-batch-size 1 --workers %d --batch-size %d",
                              workers, workers * accumulation));
            json_t *lines = metrics_with(state, "schedule", "lr"), *rates = json_array();
            assert_int_equal(json_array_size(lines), 100);
            for (size_t i = 0; i < 100; i++)
                json_array_append(rates, json_object_get(json_array_get(lines, i), "lr"));
            assert_true(json_number_value(json_array_get(rates, 0)) == 1);
            assert_true(fabs(json_number_value(json_array_get(rates, 50)) - 0.5) < 1e-15);
            if (!first) first = json_incref(rates);
            assert_true(json_equal(first, rates));
            json_decref(rates);
            json_decref(lines);
        }
    json_decref(first);
}

/* T116: 4 workers with 4 micro-batches of 2 sequences of 8 tokens are 256 tokens a step. */
static void throughput_counts_all_ranks_and_micro_batches(void **state) {
    json_t *r = train(state, "speed",
                      "--steps 5 --workers 4 --seq-len 8 --micro-batch-size 2 "
                      "--batch-size 32");
    json_t *lines = metrics_with(state, "speed", "n_tokens");
    double tokens = 0, ms = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        assert_int_equal(number_of(line, "n_tokens"), 256);
        assert_true(fabs(number_of(line, "tokens_per_s") * number_of(line, "step_ms") / 256e3 - 1) <
                    1e-9);
        tokens += number_of(line, "n_tokens");
        ms += number_of(line, "step_ms");
    }
    assert_true(fabs(number_of(r, "tokens_per_s") / (tokens / ms * 1e3) - 1) < 1e-9);
    json_decref(lines);
    json_decref(r);
}

/* Padded places have no targets: an epoch counts every sample once. */
static void padding_is_not_counted(void **state) {
    json_decref(train(state, "padded",
                      "--epochs 2 --workers 2 --batch-size 100 "
                      "--micro-batch-size 10 --tail pad"));
    json_t *lines = metrics_with(state, "padded", "n_tokens");
    double tokens = 0;
    assert_int_equal(json_array_size(lines), 8); /* 374 samples in batches of 100 */
    for (size_t i = 0; i < 8; i++) tokens += number_of(json_array_get(lines, i), "n_tokens");
    assert_int_equal(tokens, 2 * SMALL_SAMPLES * SMALL_SEQ_LEN);
    json_decref(lines);
}

/* ---- learning and generating ---- */

/* A third below the entropy of the letters: the model has learnt what follows what. */
static void loss_falls_below_the_unigram_entropy(void **state) {
    json_t *r = train(state, "learnt",
                      "--steps 300 --workers 2 --batch-size 16 --micro-batch-size 8 "
                      "--n-embd 32 --lr 1e-2 --val-fraction 0.1 --weight-decay 0");
    double entropy = number_of(r, "unigram_entropy");
    assert_true(entropy > 2 && entropy < 4);
    if (!(number_of(r, "loss_last") < entropy * 2 / 3 &&
          number_of(r, "val_loss") < entropy * 2 / 3))
        fail_msg("loss %g, validation %g, unigram entropy %g", number_of(r, "loss_last"),
                 number_of(r, "val_loss"), entropy);
    json_decref(r);
}

/* What `generate` prints for the model of the test above; free it. */
static char *generate(void **state, const char *options) {
    program_words words = {.n = 0};
    program_result result;
    add_split(&words, "generate --model %s/learnt/model --prompt The --tokens 60",
              (const char *)*state);
    add_split(&words, "%s", options);
    program_run(NULL, words.at, &result);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    assert_true(strncmp(result.out, "The", 3) == 0);
    char *text = strdup(result.out);
    program_release(&result);
    return text;
}

static void assert_generated(void **state, const char *a, const char *b, bool same) {
    char *x = generate(state, a), *y = generate(state, b);
    if ((strcmp(x, y) == 0) != same)
        fail_msg("'%s' and '%s' expected %s text:\n%s\n%s", a, b, same ? "the same" : "another", x,
                 y);
    free(x);
    free(y);
}

static void generated_text_depends_on_seed_and_options_alone(void **state) {
    assert_generated(state, "--seed 3", "--seed 3", true);
    assert_generated(state, "--seed 3", "--seed 4", false);
    assert_generated(state, "--seed 3 --threads 1", "--seed 3 --threads 2", true);
    assert_generated(state, "--temperature 0 --seed 1", "--temperature 0 --seed 2", true);
    assert_generated(state, "--temperature 0", "--top-k 1 --seed 5", true);
    assert_generated(state, "--temperature 0.5", "--temperature 1.5", false);
    assert_generated(state, "--tokens 0", "--tokens 0 --seed 8", true);
    assert_generated(state, "--top-k 0", "--top-k 100000", true);
    char *text = generate(state, "--tokens 0");
    assert_string_equal(text, "The\n");
    free(text);
    text = generate(state, "--temperature 0");
    assert_true(strlen(text) == 3 + 60 + 1);
    /* the likeliest letters of this text make its words */
    assert_non_null(strchr(text, ' '));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproducible_runs_have_the_same_bits_for_any_number_of_workers),
        cmocka_unit_test(buckets_do_not_change_bits),
        cmocka_unit_test(seeds_dropout_and_order_change_bits),
        cmocka_unit_test(runs_repeat_their_bits_and_agree_in_loss_without_the_flag),
        cmocka_unit_test(results_have_all_keys_with_values_that_add_up),
        cmocka_unit_test(bytes_sent_are_those_of_the_formula),
        cmocka_unit_test(metrics_have_a_line_per_step_and_per_validation),
        cmocka_unit_test(validation_does_not_depend_on_workers),
        cmocka_unit_test(the_configuration_of_a_run_repeats_it),
        cmocka_unit_test(earlier_runs_in_the_folder_are_kept),
        cmocka_unit_test(timelines_are_json_with_all_ranks),
        cmocka_unit_test(the_schedule_ticks_once_a_step),
        cmocka_unit_test(throughput_counts_all_ranks_and_micro_batches),
        cmocka_unit_test(padding_is_not_counted),
        cmocka_unit_test(loss_falls_below_the_unigram_entropy),
        cmocka_unit_test(generated_text_depends_on_seed_and_options_alone),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
