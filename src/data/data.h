/* Data sets: text as samples of tokens, or images with a class each.
 *
 * Text, or a file of token ids, is one sequence of ids; its last part (or a second file) is the
 * validation split. Sample i of a split is tokens [i T, i T + T] of it: T inputs and, shifted by
 * one, T targets. Samples do not overlap but for that one token, so an epoch shows each target
 * once. An image is one sample with one target. */
#ifndef LSI_DATA_DATA_H
#define LSI_DATA_DATA_H

#include <stdbool.h>

#include <lockstep/sampler.h>

#include "base/message.h"

/* ---- tokenizer ---- */

typedef struct lsi_tokenizer lsi_tokenizer;
/* spec: "byte" (ids are bytes, vocabulary 256), or the path of a tokenizer's file or of a folder
 * that has one: vocab.bpe or merges.txt (GPT-2; with ids from encoder.json or vocab.json where that
 * lies beside it), tokenizer.json (byte-level BPE), tokenizer.bin (llama2.c). Unknown names list
 * the known ones. */
LS_CHECKED ls_status lsi_tokenizer_create(const char *spec, lsi_tokenizer **tokenizer);
void lsi_tokenizer_destroy(lsi_tokenizer *tokenizer);
/* Kind: "byte", "gpt2", "bpe" (tokenizer.json) or "llama2c"; what config.json of a saved model
 * says. */
const char *lsi_tokenizer_name(const lsi_tokenizer *tokenizer);
/* Writes what lsi_tokenizer_create(folder) needs to make the same tokenizer, in the format it came
 * from, under the usual name ("gpt2" always as merges.txt and vocab.json); "byte" needs nothing. */
LS_CHECKED ls_status lsi_tokenizer_save(const lsi_tokenizer *tokenizer, const char *folder);
int64_t lsi_tokenizer_vocab_size(const lsi_tokenizer *tokenizer);
/* Ids of tokens that begin and end a text; -1: the tokenizer has none. */
int32_t lsi_tokenizer_begin_id(const lsi_tokenizer *tokenizer);
int32_t lsi_tokenizer_end_id(const lsi_tokenizer *tokenizer);
/* *ids from lsi_alloc. Special tokens are not looked for in the text. */
LS_CHECKED ls_status lsi_tokenizer_encode(const lsi_tokenizer *tokenizer, const char *text,
                                          size_t bytes, int32_t **ids, int64_t *n_ids);
/* Bytes of one token, borrowed; *bytes may be 0 for ids that are no text. previous: the token
 * before it, -1 at the start (llama2.c drops the space that its encoder puts before a text). */
const char *lsi_tokenizer_decode(const lsi_tokenizer *tokenizer, int32_t previous, int32_t id,
                                 size_t *bytes);

/* ---- dataset ---- */

typedef enum lsi_split { LSI_SPLIT_TRAIN, LSI_SPLIT_VALIDATION, LSI_N_SPLITS } lsi_split;

/* What a sample is. */
typedef struct lsi_sample_shape {
    int64_t n_time;                    /* tokens: T; images: 1, the number of targets */
    int64_t height, width, n_channels; /* images; 0 for tokens */
    int64_t n_classes;                 /* images: classes; tokens: least vocabulary of a model */
} lsi_sample_shape;

typedef struct lsi_dataset lsi_dataset;

typedef struct lsi_dataset_opts {
    const char *path;     /* text, token file (.bin of nanoGPT or llm.c), folder of IDX images */
    const char *val_path; /* the validation split from another file of the same kind; NULL: see
                             val_fraction. Folders of images bring theirs (t10k-…) */
    const lsi_tokenizer *tokenizer; /* for text; else NULL */
    int64_t seq_len;                /* tokens */
    double val_fraction; /* [0, 0.5]: share at the end that is held out; 0: no validation */
} lsi_dataset_opts;

/* Opens what is at path, whatever of the kinds above it is. Errors name the file and, when it is
 * too short, its tokens and how many a sample needs (seq_len + 1). Memory: one, two or four bytes
 * per token of a text, one per pixel; token files are mapped, and must not be shortened meanwhile.
 */
LS_CHECKED ls_status lsi_dataset_open(const lsi_dataset_opts *opts, lsi_dataset **dataset);
void lsi_dataset_close(lsi_dataset *dataset);
/* Whether lsi_dataset_open(path) needs a tokenizer: *is_text. */
LS_CHECKED ls_status lsi_dataset_is_text(const char *path, bool *is_text);
lsi_sample_shape lsi_dataset_shape(const lsi_dataset *dataset);
int64_t lsi_dataset_n_samples(const lsi_dataset *dataset, lsi_split split);
int64_t lsi_dataset_n_tokens(const lsi_dataset *dataset, lsi_split split); /* images: samples */
/* Writes one sample: T tokens as int32_t, or an image as height * width * n_channels floats
 * (0 … 1), to inputs, and T targets. LS_ERR_ARGUMENT outside [0, n_samples). */
LS_CHECKED ls_status lsi_dataset_get(const lsi_dataset *dataset, lsi_split split, int64_t index,
                                     void *inputs, int32_t *targets);
/* Entropy in nats of the frequencies of tokens (classes) in a split: the loss of the best model
 * that knows only how frequent each is. Counted anew at each call, which reads the whole split; NaN
 * when memory ran out. */
double lsi_dataset_unigram_entropy(const lsi_dataset *dataset, lsi_split split);

#endif
