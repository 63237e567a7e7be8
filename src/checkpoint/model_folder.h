/* Model folders as Hugging Face's transformers reads them: config.json + model.safetensors. */
#ifndef LSI_CHECKPOINT_MODEL_FOLDER_H
#define LSI_CHECKPOINT_MODEL_FOLDER_H

#include "base/hash.h"
#include "base/message.h"
#include "nn/model.h"

/* Writes folder/config.json and folder/model.safetensors (the weights last, each atomically).
 * Names are GPT2LMHeadModel's ("transformer.h.0.attn.c_attn.weight"). tokenizer is kept in
 * config.json under "lockstep": {"tokenizer": …}. */
LS_CHECKED ls_status lsi_model_save(const lsi_model *model, const char *tokenizer,
                                    const char *folder);
/* Creates a model from a folder; *tokenizer (lsi_strdup; "byte" if the file does not say and the
 * vocabulary is 256, else NULL). Accepts names with and without "transformer.", a tied "lm_head
 * .weight" and the attention masks old files carry ("attn.bias"). BF16, F16 and F64 tensors become
 * float32. Missing, surplus or misshapen tensors are errors that name them. */
LS_CHECKED ls_status lsi_model_load(const char *folder, lsi_model **model, char **tokenizer);
/* sha256 over all parameters in name order, little-endian, without names or padding. */
void lsi_model_sha256(const lsi_model *model, char text[LSI_SHA256_TEXT_BYTES]);

#endif
