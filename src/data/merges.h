/* Merges of neighbouring tokens, the heart of byte-pair encoding and of llama2.c's. */
#ifndef LSI_DATA_MERGES_H
#define LSI_DATA_MERGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

/* left and right, side by side, may become result. A smaller rank goes first. */
typedef struct lsi_merge {
    int32_t left, right, result;
    uint32_t rank;
} lsi_merge;

typedef struct lsi_merges {
    lsi_merge *rows;
    int64_t n, room;
    int32_t *table; /* rows by hash of their pair, -1: empty; a power of two */
    uint64_t mask;
} lsi_merges;

/* Room for n rows. fini frees; it may be called on zeroed memory. */
LS_CHECKED ls_status lsi_merges_init(lsi_merges *merges, int64_t room);
void lsi_merges_fini(lsi_merges *merges);
/* False where the pair is there already, and keeps the first. Not beyond the room. */
bool lsi_merges_add(lsi_merges *merges, const lsi_merge *row);
/* Row of a pair, -1: none. */
int32_t lsi_merges_find(const lsi_merges *merges, int32_t left, int32_t right);

/* Memory for the work below, kept between calls; zeroed at first. */
typedef struct lsi_merger {
    int32_t *next, *before; /* neighbours of each place */
    struct lsi_merge_chance {
        uint32_t rank;
        int32_t at, row;
    } * heap;
    int64_t room, n_heap;
} lsi_merger;

void lsi_merger_fini(lsi_merger *merger);
/* Replaces pairs in ids[0 … *n) until no merge applies: always the one of least rank, of equal ones
 * the leftmost. O(n log n). */
LS_CHECKED ls_status lsi_merger_run(lsi_merger *merger, const lsi_merges *merges, int32_t *ids,
                                    int64_t *n);

#endif
