/* The documented training of the convnet on Fashion-MNIST (docs/data.md), cut short: 200 of its
 * 1874 steps see 12,800 of the images once, and must be well on the way. Skipped where Debian's
 * dataset-fashion-mnist is not installed. */
#include <unistd.h>

#include "cli/train_program.h"

static const char folder[] = "/usr/share/datasets/fashion-mnist";

static void two_hundred_steps_recognise_three_quarters(void **state) {
    if (access(folder, R_OK) != 0) {
        print_message("skipped: no %s (Debian: dataset-fashion-mnist)\n", folder);
        skip();
    }
    program_words words = {.n = 0};
    program_result result;
    const program_opts opts = {.limit_ms = 1200 * 1000};
    add_split(&words, "train --model convnet --data %s --workers 2 --threads 1", folder);
    add_split(&words, "--batch-size 64 --micro-batch-size 32 --lr 0.004 --steps 200");
    add_split(&words, "--eval-every 200 --eval-samples 2000 --out %s/run --json %s/run.json",
              (const char *)*state, (const char *)*state);
    program_run(&opts, words.at, &result);
    assert_ended(&result, 0);
    program_release(&result);
    json_t *json = result_of(state, "run");
    double accuracy = number_of(json, "val_accuracy");
    print_message("accuracy on 2000 test images: %.1f %%\n", 100 * accuracy);
    assert_true(accuracy > 0.75);
    assert_true(number_of(json, "loss_last") < 1.0);
    json_decref(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        two_hundred_steps_recognise_three_quarters, make_scratch, remove_scratch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
