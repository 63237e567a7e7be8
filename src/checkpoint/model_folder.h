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

/* Where the float32 values of parameter i are: *values is valid until the next call, so that one
 * parameter at a time need be in memory. */
typedef ls_status (*lsi_model_get_fn)(void *context, int i, const float **values);
/* The model's own, with the model as context; LS_ERR_STATE where it has none. */
LS_CHECKED ls_status lsi_model_get_own(void *model, int i, const float **values);

/* Writes config.json, then the weights: one file while they fit, else shards and the index last.
 * Everything is on the disk before the first file gets its name, so a full disk changes nothing;
 * weights of an earlier model in this folder are removed. Names of tensors are transformers'
 * ("transformer.h.0.attn.c_attn.weight"). opts NULL: zeros. */
LS_CHECKED ls_status lsi_model_save(const lsi_model *model, const lsi_model_save_opts *opts,
                                    const char *folder);
/* The same with values from elsewhere; a failure of get is handed through and changes nothing in
 * the folder. get is called once for each parameter, file by file, by name within a file. */
LS_CHECKED ls_status lsi_model_save_from(const lsi_model *model, const lsi_model_save_opts *opts,
                                         const char *folder, lsi_model_get_fn get, void *context);
/* Makes the same calls in the same order, and writes nothing: where getting values takes all ranks
 * and one of them saves, this is for the others. */
LS_CHECKED ls_status lsi_model_walk(const lsi_model *model, const lsi_model_save_opts *opts,
                                    lsi_model_get_fn get, void *context);

/* Creates a model from a folder; *tokenizer (lsi_strdup; "byte" if the file does not say and the
 * vocabulary is 256, else NULL). Accepts names with and without the class's prefix, a tied
 * "lm_head.weight" and the buffers that old files carry (attention masks, rotary frequencies).
 * BF16, F16 and F64 tensors become float32. Missing, surplus or misshapen tensors are errors that
 * name them. */
LS_CHECKED ls_status lsi_model_load(const char *folder, lsi_model **model, char **tokenizer);
/* The same without the values, which the source has: the model is hollow. Nothing of the weights
 * but a tied output layer is read here. */
typedef struct lsi_model_source lsi_model_source;
LS_CHECKED ls_status lsi_model_open(const char *folder, lsi_model **model,
                                    lsi_model_source **source, char **tokenizer);
/* lsi_model_fill_fn with an lsi_model_source. */
LS_CHECKED ls_status lsi_model_source_fill(void *source, int i, int64_t begin, int64_t count,
                                           float *values);
void lsi_model_source_close(lsi_model_source *source); /* NULL does nothing */
/* config.json alone: what class, which sizes. */
LS_CHECKED ls_status lsi_model_load_config(const char *folder, const lsi_model_class **class,
                                           lsi_model_config *config, char **tokenizer);

/* sha256 over the float32 values of all parameters in name order, little-endian, without names or
 * padding. */
void lsi_model_sha256(const lsi_model *model, char text[LSI_SHA256_TEXT_BYTES]);
/* The same with values from elsewhere, which are asked for in name order. */
LS_CHECKED ls_status lsi_model_sha256_from(const lsi_model *model, lsi_model_get_fn get,
                                           void *context, char text[LSI_SHA256_TEXT_BYTES]);

/* ---- shared by the files of this folder ---- */

#define LSI_CONFIG_FILE "config.json"
#define LSI_WEIGHTS_FILE "model.safetensors"
#define LSI_INDEX_FILE "model.safetensors.index.json"

/* "folder/name" from lsi_alloc. */
LS_CHECKED ls_status lsi_path_join(const char *folder, const char *name, char **path);
/* Of parameters first … end - 1 the one with the smallest name above `last` (NULL: of all), -1 at
 * the end. Selection instead of sorting: no memory, so it cannot fail; a model has some hundred
 * parameters. */
int lsi_model_next_by_name(const lsi_model *model, int first, int end, const char *last);

#endif
