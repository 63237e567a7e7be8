/* Model folders as Hugging Face's transformers reads them: config.json and model.safetensors, or
 * shards with model.safetensors.index.json. */
#ifndef LSI_CHECKPOINT_MODEL_FOLDER_H
#define LSI_CHECKPOINT_MODEL_FOLDER_H

#include "base/hash.h"
#include "base/message.h"
#include "nn/model.h"

/* What transformers takes for one file when nothing else is asked for. */
#define LSI_SHARD_BYTES ((int64_t)5 * 1000 * 1000 * 1000)

typedef struct lsi_model_save_opts {
    const char *tokenizer; /* its kind, kept in config.json as {"lockstep": {"tokenizer": …}} */
    ls_dtype dtype;        /* of the tensors: LS_DTYPE_F32, also 0, or LS_DTYPE_BF16 (rounded) */
    int64_t shard_bytes;   /* most bytes of tensors in a file (one tensor may be larger); 0:
                              LSI_SHARD_BYTES */
} lsi_model_save_opts;

/* Writes config.json, then the weights: one file while they fit, else shards and the index last.
 * Everything is on the disk before the first file gets its name, so a full disk changes nothing;
 * weights of an earlier model in this folder are removed. Names of tensors are transformers'
 * ("transformer.h.0.attn.c_attn.weight"). opts NULL: zeros. */
LS_CHECKED ls_status lsi_model_save(const lsi_model *model, const lsi_model_save_opts *opts,
                                    const char *folder);

/* Creates a model from a folder; *tokenizer (lsi_strdup; "byte" if the file does not say and the
 * vocabulary is 256, else NULL). Accepts names with and without the class's prefix, a tied
 * "lm_head.weight" and the buffers that old files carry (attention masks, rotary frequencies).
 * BF16, F16 and F64 tensors become float32. Missing, surplus or misshapen tensors are errors that
 * name them. */
LS_CHECKED ls_status lsi_model_load(const char *folder, lsi_model **model, char **tokenizer);
/* config.json alone: what class, which sizes. */
LS_CHECKED ls_status lsi_model_load_config(const char *folder, const lsi_model_class **class,
                                           lsi_model_config *config, char **tokenizer);

/* sha256 over the float32 values of all parameters in name order, little-endian, without names or
 * padding. */
void lsi_model_sha256(const lsi_model *model, char text[LSI_SHA256_TEXT_BYTES]);

/* ---- shared by the files of this folder ---- */

#define LSI_CONFIG_FILE "config.json"
#define LSI_WEIGHTS_FILE "model.safetensors"
#define LSI_INDEX_FILE "model.safetensors.index.json"

/* "folder/name" from lsi_alloc. */
LS_CHECKED ls_status lsi_path_join(const char *folder, const char *name, char **path);

#endif
