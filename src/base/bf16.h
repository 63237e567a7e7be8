/* Rows of float32 numbers to bfloat16, with the bits of lsi_f32_to_bf16.
 *
 * Processors with AVX512-BF16 round 32 numbers by one instruction, but it makes zeros of subnormal
 * numbers; the rare 32 that have one take the other way. */
#ifndef LSI_BASE_BF16_H
#define LSI_BASE_BF16_H

#include <stdint.h>

#include "base/dtype.h"

#if defined(__AVX512BF16__) && defined(__AVX512DQ__)

#include <immintrin.h>

enum { LSI_BF16_AT_ONCE = 32 };

/* False, and nothing is written: a number is subnormal. */
static inline int lsi_bf16_from_32_floats(const float *from, uint16_t *to) {
    enum { SUBNORMAL = 0x20 };
    __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
    if (_mm512_fpclass_ps_mask(low, SUBNORMAL) | _mm512_fpclass_ps_mask(high, SUBNORMAL)) return 0;
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    return 1;
}

#else

enum { LSI_BF16_AT_ONCE = 1 };

static inline int lsi_bf16_from_32_floats(const float *from, uint16_t *to) {
    (void)from, (void)to;
    return 0;
}

#endif

static inline void lsi_bf16_from_floats_plainly(const float *restrict from, int64_t n,
                                                uint16_t *restrict to) {
    for (int64_t i = 0; i < n; i++) to[i] = lsi_f32_to_bf16(from[i]);
}

/* n numbers; the two rows are separate. */
static inline void lsi_bf16_from_floats(const float *from, int64_t n, uint16_t *to) {
    int64_t i = 0;
    for (; LSI_BF16_AT_ONCE > 1 && i + LSI_BF16_AT_ONCE <= n; i += LSI_BF16_AT_ONCE)
        if (!lsi_bf16_from_32_floats(from + i, to + i))
            lsi_bf16_from_floats_plainly(from + i, LSI_BF16_AT_ONCE, to + i);
    lsi_bf16_from_floats_plainly(from + i, n - i, to + i);
}

#endif
