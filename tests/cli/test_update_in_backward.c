/* `lockstep train --update-in-backward` ends with the weights, the losses, the validations and the
 * model file of --strategy ddp without clipping: no model reads a parameter after it has said that
 * its gradient is ready, tied tables and activations that are computed again included. */
#include "cli/sharding_ways.h"
#include "cli/train_images.h"

/* Beside ddp without clipping; zero2 and zero3 with one micro-batch each. A worker alone with a
 * bucket for each parameter updates it the moment that its gradient is ready. */
static const char *const ways[] = {
    "--workers 1",
    "--workers 1 --strategy zero1 --update-in-backward --bucket-cap-mb 0.00001 "
    "--first-bucket-mb 0.00001",
    "--workers 2 --strategy zero1 --update-in-backward",
    "--workers 3 --strategy zero1 --update-in-backward --no-overlap",
    "--workers 8 --strategy zero2 --update-in-backward",
    "--workers 8 --strategy zero3 --update-in-backward --bucket-cap-mb 0.002",
    NULL,
};

static void updates_in_the_backward_pass_have_the_weights_of_ddp(void **state) {
    static const char *const models[] = {
        "--model gpt2 --dtype bf16 --freeze h.0.,wpe",
        "--model gpt2 --checkpoint-activations full --dropout 0.1 --grad-average sum --lr 1e-5",
        "--model llama --untied --dtype bf16 --checkpoint-activations 1",
    };
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        char options[256];
        snprintf(options, sizeof options, STEPS EIGHT "--clip-norm 0 %s", models[m]);
        assert_ways_agree(state, NULL, options, ways);
    }
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        char options[512];
        snprintf(options, sizeof options,
                 STEPS "--data %s/set --batch-size 24 --micro-batch-size 3 --reproducible "
                       "--n-layer 1 --clip-norm 0 --model %s",
                 (const char *)*state, is_wide ? "mlp --dropout 0.1" : "convnet --n-embd 4");
        assert_ways_agree(state, NULL, options, ways);
    }
}

static void the_norm_that_nobody_has_is_null(void **state) {
    outcome early = run_way(state, NULL,
                            STEPS EIGHT "--workers 2 --strategy zero1 --update-in-backward "
                                        "--clip-norm 0");
    json_t *lines = metrics_with(state, "way", "grad_norm");
    assert_int_equal(json_array_size(lines), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *line = json_array_get(lines, i);
        assert_true(json_is_null(json_object_get(line, "grad_norm")));
        assert_true(number_of(line, "optimizer_ms") > 0);
    }
    json_decref(lines);
    outcome_release(&early);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_in_the_backward_pass_have_the_weights_of_ddp),
        cmocka_unit_test(the_norm_that_nobody_has_is_null),
    };
    return cmocka_run_group_tests(tests, make_images, remove_scratch);
}
