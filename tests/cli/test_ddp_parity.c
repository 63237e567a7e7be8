/* One step is one step, whoever makes it: the bits of the weights that `lockstep train` ends with
 * do not depend on how gradients are cut into buckets and when these are sent, and with
 * --reproducible not on the number of workers either. Every model is trained in every way. */
#include "checkpoint/model_folder.h"
#include "cli/train_images.h"
#include "cli/ways.h"
#include "nn/model.h"

/* ---- any number of workers ---- */

static const char *const reproducible_ways[] = {
    "--reproducible --workers 1",
    "--reproducible --workers 2",
    "--reproducible --workers 4",
    "--reproducible --workers 8",
    "--reproducible --workers 2 --no-overlap",
    "--reproducible --workers 4 --bucket-cap-mb 0.0001 --first-bucket-mb 0.0001",
    "--reproducible --workers 2 --no-rebuild-buckets",
    "--reproducible --workers 4 --comm-hook allreduce --bucket-cap-mb 0.004 "
    "--first-bucket-mb 0.001",
    "--reproducible --workers 2 --strategy zero1",
    "--reproducible --workers 8 --strategy zero1 --replicas private",
    "--reproducible --workers 2 --strategy zero2 --bucket-cap-mb 0.004 --first-bucket-mb 0.001",
    "--reproducible --workers 4 --strategy zero2 --replicas private",
    "--reproducible --workers 2 --strategy fsdp",
    NULL,
};

/* One worker accumulates 8 micro-batches, 8 have one each; tables of embeddings are tied unless
 * said otherwise. */
static void reproducible_language_models_are_the_same_for_any_workers_and_buckets(void **state) {
    static const char *const models[] = {
        "--model gpt2",
        "--model gpt2 --dtype bf16",
        "--model gpt2 --freeze h.0.,wpe --n-layer 2",
        "--model llama --dropout 0.1",
        "--model llama --untied --dtype bf16",
    };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char options[128];
        snprintf(options, sizeof options, "--micro-batch-size 1 --steps 4 %s", models[m]);
        assert_ways_agree(state, NULL, options, reproducible_ways);
    }
}

static void reproducible_image_models_are_the_same_for_any_workers_and_buckets(void **state) {
    static const char *const models[] = {"--model mlp --n-embd 8", "--model convnet --dtype bf16"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char options[256];
        snprintf(options, sizeof options,
                 "--data %s/set --val-fraction 0.05 --batch-size 24 --micro-batch-size 3 --steps 4 "
                 "--eval-samples 4 %s",
                 (const char *)*state, models[m]);
        assert_ways_agree(state, NULL, options, reproducible_ways);
    }
}

/* ---- a fixed number of workers ---- */

static void buckets_and_overlap_change_no_bit_without_the_promise(void **state) {
    static const char *const options[] = {
        "--batch-size 12 --steps 4 --workers 2",
        "--batch-size 12 --steps 4 --workers 3 --model llama --dtype bf16",
        "--batch-size 12 --steps 4 --workers 2 --freeze wte",
    };
    static const char *const ways[] = {
        "",
        "--no-overlap",
        "--no-rebuild-buckets",
        "--strategy zero1",
        "--strategy zero1 --replicas private --bucket-cap-mb 0.0001 --first-bucket-mb 0.0001",
        "--bucket-cap-mb 0.0001 --first-bucket-mb 0.0001",
        "--bucket-cap-mb 0.004 --first-bucket-mb 0.001 --no-overlap --no-rebuild-buckets",
        "--comm-hook allreduce",
        "--progress thread",
        "--progress inline",
        NULL,
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        assert_ways_agree(state, NULL, options[i], ways);
}

/* ---- frozen parameters ---- */

static bool is_frozen(const char *name) {
    return strncmp(name, "h.0.", 4) == 0 || strncmp(name, "wpe", 3) == 0;
}

/* Fails unless exactly the frozen parameters are those of a fresh model. */
static void assert_only_others_moved(const lsi_model *trained, const lsi_model *fresh) {
    assert_int_equal(trained->n_params, fresh->n_params);
    for (int i = 0; i < fresh->n_params; i++) {
        const char *name = fresh->params[i].name;
        const float *expected = lsi_model_values(fresh, i), *found = lsi_model_values(trained, i);
        bool same = memcmp(expected, found, (size_t)fresh->params[i].count * sizeof(float)) == 0;
        if (same != is_frozen(name))
            fail_msg("%s is%s frozen and has %s values", name, is_frozen(name) ? "" : " not",
                     same ? "its initial" : "other");
    }
}

static void frozen_parameters_keep_their_initial_bits(void **state) {
    static const char *const ways[] = {
        "--workers 1", "--workers 2", "--workers 4 --reproducible",
        "--workers 2 --bucket-cap-mb 0.0001 --first-bucket-mb 0.0001"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        lsi_model *trained, *fresh;
        char *tokenizer;
        json_decref(
            train(state, "frozen", "--steps 3 --n-layer 2 --seed 5 --freeze h.0.,wpe %s", ways[i]));
        assert_ok(lsi_model_load(in_scratch(state, "frozen/model"), &trained, &tokenizer));
        assert_ok(lsi_model_create(trained->class, &trained->config, &fresh));
        lsi_model_init(fresh, 5);
        assert_only_others_moved(trained, fresh);
        lsi_model_destroy(fresh);
        lsi_model_destroy(trained);
        lsi_free(tokenizer);
    }
}

/* Otherwise the comparisons above would compare runs in which nothing is frozen. */
static void freezing_changes_what_is_learnt(void **state) {
    json_t *all = train(state, "run", "--steps 2 --workers 2");
    json_t *some = train(state, "run", "--steps 2 --workers 2 --freeze wpe");
    assert_true(strcmp(text_in(all, "weights_sha256"), text_in(some, "weights_sha256")) != 0);
    assert_true(number_of(some, "bytes_sent") < number_of(all, "bytes_sent"));
    json_decref(all);
    json_decref(some);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reproducible_language_models_are_the_same_for_any_workers_and_buckets),
        cmocka_unit_test(reproducible_image_models_are_the_same_for_any_workers_and_buckets),
        cmocka_unit_test(buckets_and_overlap_change_no_bit_without_the_promise),
        cmocka_unit_test(frozen_parameters_keep_their_initial_bits),
        cmocka_unit_test(freezing_changes_what_is_learnt),
    };
    return cmocka_run_group_tests(tests, make_images, remove_scratch);
}
