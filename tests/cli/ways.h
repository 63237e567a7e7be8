/* The same training in many ways, all of which must end alike: the bits of the weights and of the
 * saved file, the loss of every step and what every validation found. */
#ifndef TESTS_CLI_WAYS_H
#define TESTS_CLI_WAYS_H

#include "cli/train_program.h"

typedef struct outcome {
    json_t *result, *validations;
    file_bytes model; /* model.safetensors */
} outcome;

static inline outcome outcome_of(void **state, const char *name) {
    char file[256];
    snprintf(file, sizeof file, "%s/model/model.safetensors", name);
    return (outcome){.result = result_of(state, name),
                     .validations = metrics_with(state, name, "val_loss"),
                     .model = bytes_of(state, file)};
}

static inline void outcome_release(outcome *o) {
    json_decref(o->result);
    json_decref(o->validations);
    lsi_free(o->model.data);
}

static inline void assert_same_outcome(const outcome *a, const outcome *b, const char *what) {
    assert_same_weights(a->result, b->result, what);
    if (!json_equal(json_object_get(a->result, "loss"), json_object_get(b->result, "loss")))
        fail_msg("%s: other losses", what);
    if (!json_equal(a->validations, b->validations)) fail_msg("%s: other validations", what);
    if (a->model.n != b->model.n || memcmp(a->model.data, b->model.data, a->model.n) != 0)
        fail_msg("%s: model.safetensors is another file", what);
}

/* A run that must succeed, into a folder that is empty before. start: how, or NULL. */
static inline outcome run_way(void **state, const program_opts *start, const char *options) {
    program_result result;
    if (access(in_scratch(state, "way"), F_OK) == 0) remove_in_scratch(state, "way");
    program_finish(start_training(state, start, "way", options), &result);
    if (result.exit_code != 0) print_error("options: %s\n", options);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    program_release(&result);
    return outcome_of(state, "way");
}

/* The first way is the one that others are held to; NULL ends. */
static inline void assert_ways_agree(void **state, const program_opts *start, const char *options,
                                     const char *const *ways) {
    outcome first = {0};
    for (int i = 0; ways[i]; i++) {
        char what[1024];
        snprintf(what, sizeof what, "%s %s", options, ways[i]);
        outcome found = run_way(state, start, what);
        if (i == 0) {
            first = found;
            continue;
        }
        assert_same_outcome(&first, &found, what);
        outcome_release(&found);
    }
    outcome_release(&first);
}

#endif
