/* A sequence of token ids at the width its vocabulary needs: 1, 2 or 4 bytes a token. */
#ifndef LSI_DATA_TOKENS_H
#define LSI_DATA_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

typedef struct lsi_tokens {
    void *data; /* n ids of `width` bytes, room for `capacity` */
    int width;
    int64_t n, capacity;
    const void *mapping; /* the file that data lies in; NULL: data is memory of its own */
    size_t mapped_bytes;
} lsi_tokens;

/* Room for `capacity` ids in [0, vocab_size). fini frees; both may be called on zeroed memory. */
LS_CHECKED ls_status lsi_tokens_init(lsi_tokens *tokens, int64_t vocab_size, int64_t capacity);
void lsi_tokens_fini(lsi_tokens *tokens);
/* Appends ids, growing as needed; ids must lie in the vocabulary. */
LS_CHECKED ls_status lsi_tokens_append(lsi_tokens *tokens, const int32_t *ids, int64_t n_ids);
/* Gives back what was reserved and not used. */
void lsi_tokens_shrink(lsi_tokens *tokens);
/* Ids [start, start + n) as int32; the caller keeps inside [0, tokens->n). */
void lsi_tokens_read(const lsi_tokens *tokens, int64_t start, int64_t n, int32_t *ids);

#endif
