/* Pairs of bfloat16 in vectors of 16 words: what tiles of either kind need (product_tile.c,
 * product_amx.c). For processors with AVX-512 only. */
#ifndef LSI_TENSOR_PAIRS_H
#define LSI_TENSOR_PAIRS_H

#include <immintrin.h>

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

#endif
