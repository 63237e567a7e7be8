/* Dropout masks: a pure function of (stream, element), made where they are needed and never kept.
 *
 * Element e is dropped if word(e) < p * 2^32, where word(e) is a word of the Philox blocks of the
 * stream. Elements are dealt to blocks in groups of LSI_MASK_GROUP, so that 16 blocks are computed
 * at once: element e of group g = e / 64 has word (e mod 64) / 16 of block 16 g + e mod 16. */
#ifndef LSI_TENSOR_DROPOUT_MASK_H
#define LSI_TENSOR_DROPOUT_MASK_H

#include <stdint.h>

#include "base/rng.h"

enum { LSI_MASK_GROUP = 64 };

/* n rounded up to whole groups. */
static inline int64_t lsi_mask_padded(int64_t n) {
    return (n + LSI_MASK_GROUP - 1) / LSI_MASK_GROUP * LSI_MASK_GROUP;
}

/* factor[i] = 0 if element LSI_MASK_GROUP * first_group + i is dropped, else 1 / (1 - p). Writes
 * lsi_mask_padded(n) elements. 0 < p < 1. */
void lsi_mask_factors(const lsi_rng_stream *stream, float p, int64_t first_group, int64_t n,
                      float *factor);

#endif
