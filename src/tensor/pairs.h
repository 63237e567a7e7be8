/* Words of 32 bits, float32 or pairs of bfloat16, in vectors of 16: what all need who copy matrices
 * for products (product_tile.c, product_amx.c, product_turn.c). For processors with AVX-512 only.
 */
#ifndef LSI_TENSOR_PAIRS_H
#define LSI_TENSOR_PAIRS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* One of four steps that exchange rows and columns of 16 x 16 words: rows i and i + 8 are dealt
 * like cards into rows 2 i and 2 i + 1. */
static inline void lsi_deal_words(const __m512i from[16], __m512i to[16]) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        to[2 * i] = _mm512_permutex2var_epi32(from[i], low, from[i + 8]);
        to[2 * i + 1] = _mm512_permutex2var_epi32(from[i], high, from[i + 8]);
    }
}

/* Rows and columns of 16 x 16 words change places. */
static inline void lsi_turn_words(__m512i words[16]) {
    __m512i room[16];
    lsi_deal_words(words, room), lsi_deal_words(room, words);
    lsi_deal_words(words, room), lsi_deal_words(room, words);
}

static inline uint32_t lsi_word_at(const void *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* 16 rows of n_words words, `stride` bytes from one to the next, become columns of rows that are
 * to_stride words apart. */
static inline void lsi_turn_rows(const char *from, int64_t stride, int64_t n_words, uint32_t *to,
                                 int64_t to_stride) {
    int64_t p = 0;
    for (; p + 16 <= n_words; p += 16) {
        __m512i words[16];
        for (int i = 0; i < 16; i++) words[i] = _mm512_loadu_si512(from + i * stride + 4 * p);
        lsi_turn_words(words);
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + (p + i) * to_stride, words[i]);
    }
    for (; p < n_words; p++)
        for (int i = 0; i < 16; i++) to[p * to_stride + i] = lsi_word_at(from + i * stride + 4 * p);
}

#endif
