/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011).
 *
 * A draw is a pure function of (seed, stream, position), so it does not depend on who computes it,
 * in which order, or how often: the same dropout mask on any rank, in forward and in recompute. */
#ifndef LSI_BASE_RNG_H
#define LSI_BASE_RNG_H

#include <stdint.h>

typedef struct lsi_philox_block {
    uint32_t word[4];
} lsi_philox_block;

/* The bare function: counter and key to four words. */
lsi_philox_block lsi_philox(const uint32_t counter[4], const uint32_t key[2]);

/* What a draw is for; keeps draws of different purposes apart under one seed. */
typedef enum lsi_rng_purpose {
    LSI_RNG_INIT = 1,
    LSI_RNG_SHUFFLE = 2,
    LSI_RNG_DROPOUT = 3,
    LSI_RNG_SAMPLE = 4,
    LSI_RNG_TEST = 5,
    LSI_RNG_HOOK = 6,
} lsi_rng_purpose;

/* A stream: seed, purpose and up to two 32-bit labels (step and micro-batch, epoch, layer …). */
typedef struct lsi_rng_stream {
    uint32_t key[2];
    uint32_t label[2];
} lsi_rng_stream;

lsi_rng_stream lsi_rng_open(uint64_t seed, lsi_rng_purpose purpose, uint32_t label0,
                            uint32_t label1);
/* Word number `position` of the stream (four words per block; position / 4 is the counter). Blocks
 * are numbered in 62 bits, so every position of a word has a block of its own. */
uint32_t lsi_rng_u32(const lsi_rng_stream *stream, uint64_t position);
/* Four consecutive words 4 * block … 4 * block + 3 at the price of one. */
lsi_philox_block lsi_rng_block(const lsi_rng_stream *stream, uint64_t block);
/* Uniform in [0, 1), 24 bits. */
float lsi_rng_uniform(const lsi_rng_stream *stream, uint64_t position);
/* Uniform integer in [0, bound) without bias (multiply-shift with rejection in a sub-stream);
 * position below 2^62, bound = 0 gives 0. Shares no draw with lsi_rng_u32 of the same stream. */
uint64_t lsi_rng_below(const lsi_rng_stream *stream, uint64_t position, uint64_t bound);
/* Fills out[0..n) with normal draws (Box-Muller), mean 0, deviation std; element i depends only
 * on i. No libm but the root: the same bits on every machine. */
void lsi_rng_normal(const lsi_rng_stream *stream, float std, float *out, int64_t n);
/* Its elements first … first + n - 1 alone, the same bits; first >= 0. */
void lsi_rng_normal_at(const lsi_rng_stream *stream, float std, int64_t first, float *out,
                       int64_t n);

#endif
