/* Llama in two files: llama.c is the model, llama_config.c its configuration. */
#ifndef LSI_NN_MODELS_LLAMA_H
#define LSI_NN_MODELS_LLAMA_H

#include "nn/model.h"

#define LSI_LLAMA_INITIALIZER_RANGE 0.02

/* Parameters of a block. */
enum { LSI_LLAMA_BLOCK_PARAMS = 9 };

extern const lsi_model_class lsi_model_llama;

/* Rows of lsi_model_class. */
ls_status lsi_llama_check(const lsi_model_config *config);
json_t *lsi_llama_config_to_json(const lsi_model_config *config);
ls_status lsi_llama_config_from_json(const json_t *json, lsi_model_config *config);

#endif
