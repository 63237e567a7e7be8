/* Generating text: what `lockstep generate` calls. */
#ifndef LSI_TRAIN_GENERATE_H
#define LSI_TRAIN_GENERATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/opt.h"

typedef struct lsi_generate_config {
    const char *model, *tokenizer, *prompt; /* prompt "-": from `in`; NULL: see generate.c */
    int64_t n_tokens, top_k, seed, threads;
    double temperature, top_p;
    bool begin, ignore_end;
} lsi_generate_config;

extern const lsi_opt lsi_generate_options[];
/* Loads the model folder and writes prompt and continuation to out as they come. */
LS_CHECKED ls_status lsi_generate(const lsi_generate_config *config, FILE *in, FILE *out);

#endif
