/* Float32 to bfloat16 and back in the same memory: buckets that are sent as 16 bits an element. */
#ifndef LSI_PARALLEL_NARROW_H
#define LSI_PARALLEL_NARROW_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

/* Rounded copies in the first half; the second is scratch. */
static inline void lsi_narrow_in_place(void *values, int64_t count) {
    unsigned char *at = values;
    for (int64_t i = 0; i < count; i++) {
        float wide;
        memcpy(&wide, at + i * 4, sizeof wide);
        uint16_t narrow = lsi_f32_to_bf16(wide);
        memcpy(at + i * 2, &narrow, sizeof narrow);
    }
}

/* Elements [begin, begin + count) of a list of bfloat16 become the same elements of a list of
 * float32 that begins at the same address. */
static inline void lsi_widen_in_place(void *values, int64_t begin, int64_t count) {
    unsigned char *at = values;
    for (int64_t i = begin + count - 1; i >= begin; i--) {
        uint16_t narrow;
        memcpy(&narrow, at + i * 2, sizeof narrow);
        float wide = lsi_bf16_to_f32(narrow);
        memcpy(at + i * 4, &wide, sizeof wide);
    }
}

#endif
