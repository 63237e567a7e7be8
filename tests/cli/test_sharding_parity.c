/* What is sharded, and over whom, does not show in the bits: `lockstep train` ends with the
 * weights, the losses, the validations and the model file of --strategy ddp, whatever the strategy,
 * replicas, units, groups and number of workers. */
#include "cli/sharding_ways.h"
#include "cli/train_images.h"

/* ---- strategies ---- */

static void every_strategy_trains_every_language_model_as_ddp_does(void **state) {
    for (size_t m = 0; m < COUNT_OF(language_models); m++) {
        char options[256];
        snprintf(options, sizeof options, STEPS EIGHT "%s", language_models[m]);
        assert_ways_agree(state, NULL, options, strategies);
    }
}

static void every_strategy_trains_every_image_model_as_ddp_does(void **state) {
    static const char *const models[] = {"--model mlp --n-embd 8 --dropout 0.1 --output-dtype bf16",
                                         "--model convnet --n-embd 4",
                                         "--model convnet --n-embd 4 --dtype bf16"};
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        char options[512];
        snprintf(options, sizeof options,
                 STEPS "--data %s/set --batch-size 24 --micro-batch-size 3 --reproducible "
                       "--n-layer 1 %s",
                 (const char *)*state, models[m]);
        assert_ways_agree(state, NULL, options, strategies);
    }
}

/* What happens between the sums and the update sees the same gradients everywhere. */
static void every_strategy_clips_as_ddp_does(void **state) {
    static const char *const options[] = {
        "--clip-norm 0.01",
        "--clip-norm 0 --grad-average sum --lr 1e-5",
        "--weight-decay 0.5 --beta1 0 --check-weights-every 1",
    };
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        char all[256];
        snprintf(all, sizeof all, STEPS EIGHT "%s", options[i]);
        assert_ways_agree(state, NULL, all, strategies);
    }
}

/* Decay of a factor of -99 a step: the weights leave the range soon, and then every step is left
 * out. */
static void every_strategy_skips_as_ddp_does(void **state) {
    static const char options[] = STEPS EIGHT
        "--steps 16 --lr 10 --weight-decay 10 --schedule constant --warmup-steps 0 --clip-norm 0 "
        "--on-nonfinite skip --max-skips 99";
    outcome ddp = run_way(state, NULL, options);
    assert_in_range(number_of(ddp.result, "n_skipped"), 1, 15);
    outcome_release(&ddp);
    assert_ways_agree(state, NULL, options, strategies);
}

/* ---- units that come and go ---- */

static void every_way_of_gathering_has_the_weights_of_ddp(void **state) {
    assert_ways_agree(state, NULL, STEPS EIGHT "--model gpt2 --n-layer 3 --dropout 0.1",
                      gatherings);
    assert_ways_agree(state, NULL, STEPS EIGHT "--model llama --untied --dtype bf16", gatherings);
    assert_ways_agree(state, NULL, STEPS EIGHT "--model gpt2 --dtype bf16 --freeze wte,wpe,h.0.",
                      gatherings);
}

static void units_by_name_have_the_weights_of_ddp(void **state) {
    static const char *const gpt2[] = {"--workers 1", "--workers 2 " FSDP "--unit h.1.",
                                       "--workers 4 " FSDP "--unit wte,h.0 --reshard 2", NULL};
    static const char *const llama[] = {"--workers 1", "--workers 4 " FSDP "--unit model.layers.1.",
                                        NULL};
    assert_ways_agree(state, NULL, STEPS EIGHT "--model gpt2", gpt2);
    assert_ways_agree(state, NULL, STEPS EIGHT "--model llama", llama);
}

/* ---- groups ---- */

/* 24 micro-batches: of two groups one has 16 and the other 8, because these are subtrees. */
static void every_mesh_has_the_weights_of_ddp(void **state) {
    static const char *const options[] = {
        STEPS EIGHT "--model gpt2",
        STEPS EIGHT "--model llama --dtype bf16",
        STEPS EIGHT "--model gpt2 --batch-size 24",
    };
    for (size_t i = 0; i < COUNT_OF(options); i++)
        assert_ways_agree(state, NULL, options[i], meshes);
}

static void groups_that_are_no_power_of_two_have_the_weights_of_ddp(void **state) {
    static const char *const ways[] = {
        "--workers 1",
        "--workers 6 --strategy hybrid --shard-group 2",
        "--workers 6 --strategy hybrid --shard-group 2 --replicas private",
        "--workers 3 --strategy hybrid --shard-group 3 --replicas private",
        "--workers 3 --strategy hybrid --shard-group 1",
        NULL,
    };
    assert_ways_agree(state, NULL, STEPS EIGHT "--model gpt2 --batch-size 24", ways);
}

/* ---- any number of workers ---- */

typedef struct way_list {
    char text[10][128];
    const char *at[11];
} way_list;

/* The strategies with so many workers, behind a first way. */
static void list_ways(way_list *list, const char *first, int n_workers, const char *const *rows,
                      size_t n) {
    snprintf(list->text[0], sizeof list->text[0], "%s", first);
    list->at[0] = list->text[0];
    for (size_t i = 0; i < n; i++) {
        snprintf(list->text[i + 1], sizeof list->text[0], "--workers %d --strategy %s", n_workers,
                 rows[i]);
        list->at[i + 1] = list->text[i + 1];
    }
    list->at[n + 1] = NULL;
}

static void assert_workers_agree(void **state, const char *model, int n_workers, int accumulation) {
    static const char *const rows[] = {"zero1",
                                       "zero1 --replicas private",
                                       "zero2",
                                       "zero2 --replicas private",
                                       "zero3",
                                       "zero3 --replicas private",
                                       "zero3 --replicas private --reshard no --prefetch 3"};
    char options[256];
    way_list list;
    list_ways(&list, "--workers 1", n_workers, rows, COUNT_OF(rows));
    snprintf(options, sizeof options, STEPS EIGHT "--batch-size %d %s", n_workers * accumulation,
             model);
    assert_ways_agree(state, NULL, options, list.at);
}

static void any_number_of_workers_has_the_weights_of_one(void **state) {
    static const int workers[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < COUNT_OF(workers); i++)
        for (int accumulation = 1; accumulation <= 3; accumulation += 2)
            assert_workers_agree(state, i % 2 ? "--model llama --dtype bf16" : "--model gpt2",
                                 workers[i], accumulation);
}

/* Without --reproducible it is the strategies of as many workers that agree. */
static void plain_sums_have_the_weights_of_ddp_with_as_many_workers(void **state) {
    static const int workers[] = {2, 3, 5, 8};
    static const char *const rows[] = {"zero1",
                                       "zero1 --replicas private --no-overlap",
                                       "zero2 --replicas private",
                                       "zero3",
                                       "zero3 --replicas private",
                                       "zero3 --replicas private --reshard no --persist-below 20"};
    for (size_t i = 0; i < COUNT_OF(workers); i++) {
        char options[128], ddp[32];
        way_list list;
        snprintf(ddp, sizeof ddp, "--workers %d", workers[i]);
        list_ways(&list, ddp, workers[i], rows, COUNT_OF(rows));
        snprintf(options, sizeof options, STEPS "--micro-batch-size 2 --batch-size %d",
                 2 * workers[i]);
        assert_ways_agree(state, NULL, options, list.at);
    }
}

/* ---- states in a file ---- */

static void offloaded_states_have_the_weights_of_ddp(void **state) {
    assert_ways_agree(state, NULL, STEPS EIGHT "--model gpt2", offloads);
    assert_ways_agree(state, NULL, STEPS EIGHT "--model llama --dtype bf16", offloads);
    assert_ways_agree(state, NULL, STEPS EIGHT "--model gpt2 --dtype bf16 --freeze wte,h.1.",
                      offloads);
}

/* ---- the comparison itself ---- */

/* Of a way that learns something else nothing is the same. */
static void other_trainings_are_told_apart(void **state) {
    outcome a = run_way(state, NULL, STEPS EIGHT "--workers 2 " FSDP);
    outcome b = run_way(state, NULL, STEPS EIGHT "--workers 2 --clip-norm 0.01 " FSDP);
    const char *x = text_in(a.result, "weights_sha256"), *y = text_in(b.result, "weights_sha256");
    assert_true(strcmp(x, y) != 0);
    assert_int_equal(json_array_size(a.validations), 2);
    assert_false(json_equal(a.validations, b.validations));
    assert_true(a.model.n == b.model.n && memcmp(a.model.data, b.model.data, a.model.n) != 0);
    outcome_release(&a);
    outcome_release(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_trains_every_language_model_as_ddp_does),
        cmocka_unit_test(every_strategy_trains_every_image_model_as_ddp_does),
        cmocka_unit_test(every_strategy_clips_as_ddp_does),
        cmocka_unit_test(every_strategy_skips_as_ddp_does),
        cmocka_unit_test(every_way_of_gathering_has_the_weights_of_ddp),
        cmocka_unit_test(units_by_name_have_the_weights_of_ddp),
        cmocka_unit_test(every_mesh_has_the_weights_of_ddp),
        cmocka_unit_test(groups_that_are_no_power_of_two_have_the_weights_of_ddp),
        cmocka_unit_test(any_number_of_workers_has_the_weights_of_one),
        cmocka_unit_test(plain_sums_have_the_weights_of_ddp_with_as_many_workers),
        cmocka_unit_test(offloaded_states_have_the_weights_of_ddp),
        cmocka_unit_test(other_trainings_are_told_apart),
    };
    return cmocka_run_group_tests(tests, make_images, remove_scratch);
}
