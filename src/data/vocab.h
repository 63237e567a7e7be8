/* The tokens of a vocabulary: bytes of an id, and the id of bytes. */
#ifndef LSI_DATA_VOCAB_H
#define LSI_DATA_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

/* Largest vocabulary that a file may ask for: four times the largest in use. */
enum { LSI_VOCAB_MAX = 1 << 20 };

typedef struct lsi_vocab {
    int64_t n; /* ids are 0 … n - 1; some may be no token */
    char *pool;
    size_t pool_bytes, pool_room;
    struct lsi_vocab_place {
        size_t start;
        uint32_t bytes;
        bool is_there;
    } * places;     /* n */
    int32_t *table; /* ids by hash of their bytes, -1: empty; a power of two */
    uint64_t mask;
} lsi_vocab;

/* Room for n ids with pool_room bytes of text in all; no id is there yet. fini frees; it may be
 * called on zeroed memory. */
LS_CHECKED ls_status lsi_vocab_init(lsi_vocab *vocab, int64_t n, size_t pool_room);
void lsi_vocab_fini(lsi_vocab *vocab);
/* Gives an id (in range, not there yet) its bytes. is_text: lsi_vocab_find may give this id; where
 * several tokens have the same bytes it gives the first. */
void lsi_vocab_add(lsi_vocab *vocab, int64_t id, const char *bytes, size_t n_bytes, bool is_text);
bool lsi_vocab_has(const lsi_vocab *vocab, int64_t id);
/* -1: no token has these bytes. */
int32_t lsi_vocab_find(const lsi_vocab *vocab, const char *bytes, size_t n_bytes);
/* Borrowed; *n_bytes = 0 for ids that are out of range or not there. */
const char *lsi_vocab_text(const lsi_vocab *vocab, int64_t id, size_t *n_bytes);

/* For tables of this layer; good in all bits, not made to withstand an enemy. */
uint64_t lsi_hash_bytes(const char *bytes, size_t n_bytes);
/* The least power of two that is at least n (n at most 2^62). */
uint64_t lsi_power_of_two(uint64_t n);

#endif
