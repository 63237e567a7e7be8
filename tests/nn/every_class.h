/* A small model of every class: more than one batch of random numbers in some parameters, odd
 * counts in others. */
#ifndef TESTS_NN_EVERY_CLASS_H
#define TESTS_NN_EVERY_CLASS_H

#include "nn/model.h"

/* Classes leave alone what is not theirs. */
static inline lsi_model_config small_config(const lsi_model_class *class) {
    if (class->takes_images)
        return (lsi_model_config){.n_layer = 1,
                                  .n_embd = 3,
                                  .norm_epsilon = 1e-5,
                                  .height = 10,
                                  .width = 9,
                                  .n_channels = 1,
                                  .n_classes = 3};
    return (lsi_model_config){.n_layer = 2,
                              .n_head = 2,
                              .n_embd = 12,
                              .seq_len = 7,
                              .vocab_size = 11,
                              .norm_epsilon = 1e-5,
                              .n_kv_head = 1,
                              .n_inner = 25,
                              .rope_theta = 1e4,
                              .untied = true};
}

#endif
