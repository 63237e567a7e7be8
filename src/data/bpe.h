/* What the two kinds of byte-level BPE files share. */
#ifndef LSI_DATA_BPE_H
#define LSI_DATA_BPE_H

#include <jansson.h>

#include "data/tokenizer.h"

/* Longest token that is read, in bytes. */
enum { LSI_BPE_TOKEN_BYTES = 4096 };

/* A byte-level token as files write it, one printable character a byte, as the bytes it stands for
 * (at most n of them). False where a character stands for no byte. */
bool lsi_bpe_bytes_of(const char *symbols, size_t n, char *bytes, size_t *n_bytes);
/* The other way: symbols with a zero byte behind them, at most 2 n + 1 bytes. */
void lsi_bpe_symbols_of(const char *bytes, size_t n, char *symbols);
/* The byte that OpenAI's vocabulary has at place i (0 … 255), which is its id there. */
unsigned char lsi_bpe_byte_at(int i);

/* Makes the vocabulary from an object of token: id, and a list of added tokens (NULL: none), each
 * {"id": …, "content": …}, which decode to their content and are not looked for in texts. pool: at
 * least the bytes of all tokens. */
LS_CHECKED ls_status lsi_bpe_load_vocab(lsi_tokenizer *tokenizer, const json_t *vocab,
                                        const json_t *added, size_t pool);
/* Adds the next merge: its parts as files write them. product: the id that the result gets as a new
 * token; -1: the vocabulary has it. */
LS_CHECKED ls_status lsi_bpe_add_merge(lsi_tokenizer *tokenizer, const char *left, size_t n_left,
                                       const char *right, size_t n_right, int32_t product);
/* Adds a merge written as one text, "left right". */
LS_CHECKED ls_status lsi_bpe_add_merge_line(lsi_tokenizer *tokenizer, const char *line, size_t n,
                                            int32_t product);
/* When all is loaded: every byte must have a token. */
LS_CHECKED ls_status lsi_bpe_finish(lsi_tokenizer *tokenizer);

/* Of lsi_tokenizer_class. */
size_t lsi_bpe_word(const lsi_tokenizer *tokenizer, const char *text, size_t bytes);
int64_t lsi_bpe_spell(const lsi_tokenizer *tokenizer, const char *word, size_t bytes,
                      bool is_first_word, int32_t *ids);
const char *lsi_bpe_decode(const lsi_tokenizer *tokenizer, int32_t previous, int32_t id,
                           size_t *bytes);

#endif
