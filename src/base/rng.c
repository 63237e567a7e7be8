/* Philox4x32-10 and the draws made from it (see rng.h).
 *
 * Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
 * sections 3.3 and 4 (bijection, constants, ten rounds).
 *
 * How a draw is addressed: the key is a hash of (seed, purpose); the 128 bits of the counter are
 *
 *     word 0, 1: number of the block, 62 bits, and a tag of 2 bits on top      word 2, 3: labels
 *
 * so two draws of one key share a counter only if block, tag and both labels are equal. The tag
 * keeps the 64-bit draws of lsi_rng_below apart from the words of the stream.
 *
 * Same bits everywhere: uniform and integer draws are integer arithmetic. Normal draws use only
 * + - * / and sqrt in double, which IEEE 754 rounds in one way, and no logarithm or sine of a
 * libm, whose last bit differs from one to the next. The loops over a batch have no branches and
 * vectorise; the vector width changes nothing since every element has its own expression. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { N_ROUNDS = 10, TAG_SHIFT = 62, TAG_BELOW = 1 };

lsi_philox_block lsi_philox(const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * x0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * x2;
        x0 = (uint32_t)(product1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)product1;
        x2 = (uint32_t)(product0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)product0;
        k0 += 0x9E3779B9u; /* Weyl sequence: golden ratio, square root of 3 minus 1 */
        k1 += 0xBB67AE85u;
    }
    return (lsi_philox_block){{x0, x1, x2, x3}};
}

/* A key of its own for (parent key, number): the parent's output, so near seeds give far keys. */
static void derive_key(const uint32_t parent[2], uint64_t number, uint32_t key[2]) {
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), 0, 0};
    lsi_philox_block block = lsi_philox(counter, parent);
    key[0] = block.word[0];
    key[1] = block.word[1];
}

lsi_rng_stream lsi_rng_open(uint64_t seed, lsi_rng_purpose purpose, uint32_t label0,
                            uint32_t label1) {
    const uint32_t parent[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    lsi_rng_stream stream = {.label = {label0, label1}};
    derive_key(parent, (uint64_t)purpose, stream.key);
    return stream;
}

static lsi_philox_block tagged_block(const lsi_rng_stream *stream, uint64_t number, uint64_t tag) {
    uint64_t address = number | tag << TAG_SHIFT;
    const uint32_t counter[4] = {(uint32_t)address, (uint32_t)(address >> 32), stream->label[0],
                                 stream->label[1]};
    return lsi_philox(counter, stream->key);
}

lsi_philox_block lsi_rng_block(const lsi_rng_stream *stream, uint64_t block) {
    return tagged_block(stream, block, 0);
}

uint32_t lsi_rng_u32(const lsi_rng_stream *stream, uint64_t position) {
    return lsi_rng_block(stream, position / 4).word[position % 4];
}

float lsi_rng_uniform(const lsi_rng_stream *stream, uint64_t position) {
    return (float)(lsi_rng_u32(stream, position) >> 8) * 0x1p-24f;
}

/* Lemire: "Fast random integer generation in an interval", ACM TOMACS 29, 2019. The upper half of
 * x * bound is the draw; a lower half below 2^64 mod bound would favour some values and is
 * rejected. Rejections beyond a block's two draws (for bounds below 2^32: once in 2^64 calls) go
 * on under derived keys. */
uint64_t lsi_rng_below(const lsi_rng_stream *stream, uint64_t position, uint64_t bound) {
    __extension__ typedef unsigned __int128 uint128;
    if (bound == 0) return 0;
    lsi_rng_stream at = *stream;
    for (uint64_t attempt = 1;; attempt++) {
        lsi_philox_block block = tagged_block(&at, position, TAG_BELOW);
        for (int half = 0; half < 2; half++) {
            uint64_t x = (uint64_t)block.word[2 * half + 1] << 32 | block.word[2 * half];
            uint128 product = (uint128)x * bound;
            uint64_t lower = (uint64_t)product;
            /* the first test spares nearly every call the division of the second */
            if (lower >= bound || lower >= -bound % bound) return (uint64_t)(product >> 64);
        }
        derive_key(stream->key, attempt, at.key);
    }
}

/* ---- normal draws ---- */

enum { BATCH_BLOCKS = 64, BATCH_PAIRS = 2 * BATCH_BLOCKS };

/* ln((word + 1) / 2^32), always <= 0, relative error below 1e-15. The argument is m * 2^e with m in
 * [1/sqrt(2), sqrt(2)); ln m = 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + …), s = (m - 1) / (m + 1), and
 * |s| < 0.172 makes the terms from s^23 on smaller than rounding. */
static inline double log_of_word(uint32_t word) {
    double x = (double)word + 1.0;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* adding what separates sqrt(2) from 2 moves the border between exponents to sqrt(2) */
    uint64_t shifted = bits + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu);
    int32_t exponent = (int32_t)(shifted >> 52) - 1023;
    bits -= (uint64_t)(uint32_t)exponent << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0);
    double q = s * s;
    double sum = 1.0 / 21;
    sum = sum * q + 1.0 / 19;
    sum = sum * q + 1.0 / 17;
    sum = sum * q + 1.0 / 15;
    sum = sum * q + 1.0 / 13;
    sum = sum * q + 1.0 / 11;
    sum = sum * q + 1.0 / 9;
    sum = sum * q + 1.0 / 7;
    sum = sum * q + 1.0 / 5;
    sum = sum * q + 1.0 / 3;
    sum = sum * q + 1.0;
    return (double)(exponent - 32) * 0x1.62E42FEFA39EFp-1 + 2.0 * s * sum;
}

/* Cosine and sine of word / 2^32 turns. The nearest multiple of a quarter turn is taken off in
 * integers, exactly; on the rest, at most pi/4, the Taylor series to x^16 and x^15 have an error
 * below 1e-16. */
static inline void turn_of_word(uint32_t word, double *cosine, double *sine) {
    uint32_t quarter = (word + 0x20000000u) >> 30;
    int32_t rest = (int32_t)(word - (quarter << 30));
    double x = (double)rest * (0x1.921FB54442D18p+0 * 0x1p-30);
    double q = x * x;
    double c = 1.0 / 20922789888000;
    c = c * q - 1.0 / 87178291200;
    c = c * q + 1.0 / 479001600;
    c = c * q - 1.0 / 3628800;
    c = c * q + 1.0 / 40320;
    c = c * q - 1.0 / 720;
    c = c * q + 1.0 / 24;
    c = c * q - 1.0 / 2;
    c = c * q + 1.0;
    double s = -1.0 / 1307674368000;
    s = s * q + 1.0 / 6227020800;
    s = s * q - 1.0 / 39916800;
    s = s * q + 1.0 / 362880;
    s = s * q - 1.0 / 5040;
    s = s * q + 1.0 / 120;
    s = s * q - 1.0 / 6;
    s = s * q + 1.0;
    s = s * x;
    /* quarters 0 1 2 3: (c, s) (-s, c) (-c, -s) (s, -c) */
    double first = quarter & 1 ? s : c;
    double second = quarter & 1 ? c : s;
    *cosine = (quarter + 1) & 2 ? -first : first;
    *sine = quarter & 2 ? -second : second;
}

/* Words 2p and 2p + 1 give draws 2p and 2p + 1 (Box, Muller: "A note on the generation of random
 * normal deviates", 1958). Largest possible draw: sqrt(64 ln 2) = 6.66 deviations. */
static void normal_from_words(const uint32_t *restrict radius_word,
                              const uint32_t *restrict turn_word, double std, float *restrict first,
                              float *restrict second) {
    for (int i = 0; i < BATCH_PAIRS; i++) {
        double radius = std * sqrt(-2.0 * log_of_word(radius_word[i]));
        double cosine, sine;
        turn_of_word(turn_word[i], &cosine, &sine);
        first[i] = (float)(radius * cosine);
        second[i] = (float)(radius * sine);
    }
}

static void draw_batch(const lsi_rng_stream *stream, uint64_t block0, float std,
                       float first[BATCH_PAIRS], float second[BATCH_PAIRS]) {
    uint32_t radius_word[BATCH_PAIRS], turn_word[BATCH_PAIRS];
    for (int b = 0; b < BATCH_BLOCKS; b++) {
        lsi_philox_block block = lsi_rng_block(stream, block0 + (uint64_t)b);
        for (int half = 0; half < 2; half++) {
            radius_word[2 * b + half] = block.word[2 * half];
            turn_word[2 * b + half] = block.word[2 * half + 1];
        }
    }
    normal_from_words(radius_word, turn_word, std, first, second);
}

/* Batches begin with the block of element `first`, whatever its place in it. */
void lsi_rng_normal_at(const lsi_rng_stream *stream, float std, int64_t first, float *out,
                       int64_t n) {
    float even[BATCH_PAIRS], odd[BATCH_PAIRS];
    uint64_t block0 = (uint64_t)first / 4;
    for (int64_t at = -(first % 4); at < n; at += 2 * BATCH_PAIRS, block0 += BATCH_BLOCKS) {
        draw_batch(stream, block0, std, even, odd);
        int64_t end = n - at < 2 * BATCH_PAIRS ? n - at : 2 * BATCH_PAIRS;
        for (int64_t i = at < 0 ? -at : 0; i < end; i++)
            out[at + i] = i % 2 ? odd[i / 2] : even[i / 2];
    }
}

void lsi_rng_normal(const lsi_rng_stream *stream, float std, float *out, int64_t n) {
    lsi_rng_normal_at(stream, std, 0, out, n);
}
