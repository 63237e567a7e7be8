/* What the tests of commands that take a saved model share: a small model with random weights, made
 * without training, and the project's data folder. */
#ifndef TESTS_CLI_MODEL_PROGRAM_H
#define TESTS_CLI_MODEL_PROGRAM_H

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/model_folder.h"
#include "harness/data.h"
#include "harness/program.h"
#include "harness/scratch.h"
#include "nn/model.h"

enum { MODEL_SEQ_LEN = 12 };

/* A GPT-2 over bytes, its weights large enough that its opinions are strong. */
static inline lsi_model *make_byte_model(uint64_t seed) {
    const lsi_model_config config = {.n_layer = 2,
                                     .n_head = 2,
                                     .n_embd = 16,
                                     .seq_len = MODEL_SEQ_LEN,
                                     .vocab_size = 256,
                                     .norm_epsilon = 1e-5};
    const lsi_model_class *class;
    lsi_model *model;
    assert_ok(lsi_model_class_find("gpt2", &class));
    assert_ok(lsi_model_create(class, &config, &model));
    lsi_model_init(model, seed);
    for (int i = 0; i < model->n_params; i++) {
        float *values = lsi_model_values(model, i);
        if (model->shapes[i].n_dims < 2) continue;
        for (int64_t e = 0; e < model->params[i].count; e++) values[e] *= 20;
    }
    return model;
}

static inline void save_byte_model(const lsi_model *model, const char *folder) {
    const lsi_model_save_opts opts = {.tokenizer = "byte"};
    assert_ok(lsi_model_save(model, &opts, folder));
}

#endif
