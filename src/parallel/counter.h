/* Pairwise sums of numbered parts, range by range: a stack of partial sums, as in binary counting.
 *
 * When parts 0 … n-1 of a range were added, the stack holds the sum of 2^k of them for every bit k
 * that is set in n, larger ones below: the subtrees of the default tree of comm/order.h. What lies
 * where follows from n alone, so the ranges of a block (the slices of a shard's buckets) may be at
 * different parts at a time. accumulate.h does the same for whole blocks. */
#ifndef LSI_PARALLEL_COUNTER_H
#define LSI_PARALLEL_COUNTER_H

#include <stdint.h>

#include "base/message.h"

enum { LSI_COUNTER_LEVELS = 48 };

typedef struct lsi_counter {
    int64_t n_elems; /* of a level */
    int n_levels;
    float *level[LSI_COUNTER_LEVELS];
} lsi_counter;

void lsi_counter_init(lsi_counter *c, int64_t n_elems);
void lsi_counter_fini(lsi_counter *c);
/* Memory for n_parts parts, and one that is joined: log2(n_parts + 1) blocks. */
LS_CHECKED ls_status lsi_counter_reserve(lsi_counter *c, int64_t n_parts);
/* Part `number` of elements [begin, begin + count), for which there is memory; it is scratch after.
 * Parts 0 to number - 1 were added before. */
void lsi_counter_add(lsi_counter *c, int64_t number, float *part, int64_t begin, int64_t count);
/* The same for the last part, which becomes the sum of all. */
void lsi_counter_join(const lsi_counter *c, int64_t number, float *part, int64_t begin,
                      int64_t count);

#endif
