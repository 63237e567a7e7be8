/* Text as samples of tokens.
 *
 * A file becomes one sequence of token ids; its last part is the validation split. Sample i of a
 * split is tokens [i T, i T + T] of it: T inputs and, shifted by one, T targets. Samples do not
 * overlap but for that one token, so an epoch shows each target once. */
#ifndef LSI_DATA_DATA_H
#define LSI_DATA_DATA_H

#include <lockstep/sampler.h>

#include "base/message.h"

/* ---- tokenizer ---- */

typedef struct lsi_tokenizer lsi_tokenizer;
/* name: "byte" (ids are bytes, vocabulary 256). Unknown names list the known ones. */
LS_CHECKED ls_status lsi_tokenizer_create(const char *name, lsi_tokenizer **tokenizer);
void lsi_tokenizer_destroy(lsi_tokenizer *tokenizer);
const char *lsi_tokenizer_name(const lsi_tokenizer *tokenizer);
int64_t lsi_tokenizer_vocab_size(const lsi_tokenizer *tokenizer);
/* *ids from lsi_alloc. */
LS_CHECKED ls_status lsi_tokenizer_encode(const lsi_tokenizer *tokenizer, const char *text,
                                          size_t bytes, int32_t **ids, int64_t *n_ids);
/* Bytes of one token, borrowed; *bytes may be 0 for ids that are no text. */
const char *lsi_tokenizer_decode(const lsi_tokenizer *tokenizer, int32_t id, size_t *bytes);

/* ---- dataset ---- */

typedef enum lsi_split { LSI_SPLIT_TRAIN, LSI_SPLIT_VALIDATION, LSI_N_SPLITS } lsi_split;

typedef struct lsi_dataset lsi_dataset;
/* Reads a text file. val_fraction in [0, 0.5]: share of tokens at the end that is held out; the
 * split is at a token position, 0 means no validation. Errors name the file and, when it is too
 * short, its tokens and how many a sample needs (seq_len + 1). Memory: one or two bytes per token.
 */
LS_CHECKED ls_status lsi_dataset_open_text(const char *path, const lsi_tokenizer *tokenizer,
                                           int64_t seq_len, double val_fraction,
                                           lsi_dataset **dataset);
void lsi_dataset_close(lsi_dataset *dataset);
int64_t lsi_dataset_n_samples(const lsi_dataset *dataset, lsi_split split);
int64_t lsi_dataset_n_tokens(const lsi_dataset *dataset, lsi_split split);
/* Writes T inputs and T targets. LS_ERR_ARGUMENT outside [0, n_samples). */
LS_CHECKED ls_status lsi_dataset_get(const lsi_dataset *dataset, lsi_split split, int64_t index,
                                     int32_t *inputs, int32_t *targets);
/* Entropy in nats of the token frequencies of a split: the loss of the best model that knows only
 * how frequent each token is. */
double lsi_dataset_unigram_entropy(const lsi_dataset *dataset, lsi_split split);

#endif
