/* GPT-2 in two files: gpt2.c is the model, gpt2_config.c its configuration. */
#ifndef LSI_NN_MODELS_GPT2_H
#define LSI_NN_MODELS_GPT2_H

#include "nn/model.h"

#define LSI_GPT2_INITIALIZER_RANGE 0.02

extern const lsi_model_class lsi_model_gpt2;

/* Rows of lsi_model_class. */
ls_status lsi_gpt2_check(const lsi_model_config *config);
json_t *lsi_gpt2_config_to_json(const lsi_model_config *config);
ls_status lsi_gpt2_config_from_json(const json_t *json, lsi_model_config *config);

#endif
