/* Rows of float32 numbers to bfloat16, with the bits of lsi_f32_to_bf16.
 *
 * Processors with AVX512-BF16 round 32 numbers by one instruction, but it makes zeros of subnormal
 * numbers; from the rare 32 that have one on, a row takes the other way. */
#ifndef LSI_BASE_BF16_H
#define LSI_BASE_BF16_H

#include <stdint.h>

#include "base/dtype.h"

#if defined(__AVX512BF16__) && defined(__AVX512DQ__)

#include <immintrin.h>

/* The first n / 32 * 32, at most until 32 that have a subnormal number; returns how many. */
static inline int64_t lsi_bf16_from_floats_at_once(const float *from, int64_t n, uint16_t *to) {
    enum { SUBNORMAL = 0x20 };
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + 16);
        if (_mm512_fpclass_ps_mask(low, SUBNORMAL) | _mm512_fpclass_ps_mask(high, SUBNORMAL)) break;
        _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    return i;
}

#else

static inline int64_t lsi_bf16_from_floats_at_once(const float *from, int64_t n, uint16_t *to) {
    (void)from, (void)n, (void)to;
    return 0;
}

#endif

static inline void lsi_bf16_from_floats_plainly(const float *restrict from, int64_t n,
                                                uint16_t *restrict to) {
    for (int64_t i = 0; i < n; i++) to[i] = lsi_f32_to_bf16(from[i]);
}

/* n numbers; the two rows are separate. */
static inline void lsi_bf16_from_floats(const float *from, int64_t n, uint16_t *to) {
    int64_t i = lsi_bf16_from_floats_at_once(from, n, to);
    lsi_bf16_from_floats_plainly(from + i, n - i, to + i);
}

#endif
