/* Sums of 2, 4 or 8 float inputs, or of 2 or 4 in BF16, in one loop: the way of nearly every
 * gradient.
 *
 * One step takes two cache lines of every input, adds them up pairwise in registers (which is the
 * default tree for powers of two), and stores the sum. All loads of a step come before its stores,
 * so outputs may be inputs. Bits: those of reduce_kernels.c, whose expressions these are.
 *
 * What it gains for two ranks on two cores of an EPYC 9004, as time against the plain loop
 * `v = x[i] + y[i]; x[i] = v; y[i] = v;` at -O3 -march=native, medians of interleaved runs with all
 * buffers written by their owner before:
 *   - Prefetch for writing, 6 lines ahead, of inputs that are also outputs: a line that the peer
 *     has modified comes over with the right to write it, instead of being fetched and then asked
 *     for again. 0.75 at 8 KiB, 0.88 at 512 KiB, 1 from 4 MiB on. From 4 to 8 lines it is all the
 *     same; with 16 half of the gain is lost, with 64 it is a loss. Never ahead of the range: those
 *     lines are the next rank's.
 *   - One line of a page 1.5 pages ahead, once a page, for its translation: 0.9 from 16 MiB on.
 *   - Two lines a step rather than one: 0.9 with one output elsewhere, no difference in place.
 *   - One output that is no input: stores past the cache, 0.75 from 16 MiB of input a rank (8 MiB
 *     ranges) on; at a quarter of that they take 1.5 times as long.
 *   - BF16, against blocks of float in scratch: 0.75 from 8 KiB on for two ranks and for four. */
#include "comm/reduce_kernels.h"

#include <string.h>

#include "base/dtype.h"

/* The widest vectors of the target, and its store past the cache. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { VECTOR_BYTES = 64 };
#define STREAM(to, value) _mm512_stream_ps(to, (__m512)(value))
#define STREAM_FENCE() _mm_sfence()
#elif defined(__AVX__)
#include <immintrin.h>
enum { VECTOR_BYTES = 32 };
#define STREAM(to, value) _mm256_stream_ps(to, (__m256)(value))
#define STREAM_FENCE() _mm_sfence()
#elif defined(__SSE__)
#include <immintrin.h>
enum { VECTOR_BYTES = 16 };
#define STREAM(to, value) _mm_stream_ps(to, (__m128)(value))
#define STREAM_FENCE() _mm_sfence()
#else
enum { VECTOR_BYTES = 16 };
#define STREAM(to, value) (*(vector *)(to) = (value))
#define STREAM_FENCE() ((void)0)
#endif

enum {
    MOST_INPUTS = 8,
    LINE_BYTES = 64,
    LINE_ELEMS = LINE_BYTES / sizeof(float),
    STEP_ELEMS = 2 * LINE_ELEMS,
    AHEAD_ELEMS = 6 * LINE_ELEMS,
    PAGE_ELEMS = 4096 / sizeof(float),
    PAGES_AHEAD_ELEMS = PAGE_ELEMS + PAGE_ELEMS / 2,
    VECTOR_ELEMS = VECTOR_BYTES / sizeof(float),
    STEP_VECTORS = STEP_ELEMS / VECTOR_ELEMS,
    STREAM_FROM_BYTES = 8 << 20
};

typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));

/* Functions below are made for constant n (and way), which turns their arrays into registers. */
#define INLINE static inline __attribute__((always_inline))

/* What is known about the outputs. */
typedef enum output_way {
    IN_PLACE, /* output[r] is input[r], for all of them */
    STREAMED, /* one, which is no input, large and aligned to cache lines */
    ANY
} output_way;

typedef struct streams {
    const float *input[MOST_INPUTS];
    float *const *output;
    int n_outputs;
    float factor;
} streams;

/* n_vectors is STEP_VECTORS, or 1 at the end of a range. */
INLINE void sum_vectors(int n, int n_vectors, const streams *s, int64_t at, vector *sum) {
    vector value[MOST_INPUTS][STEP_VECTORS];
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n_vectors; k++)
            value[r][k] = *(const vector *)(s->input[r] + at + k * VECTOR_ELEMS);
    for (int half = n / 2; half >= 1; half /= 2)
        for (int r = 0; r < half; r++)
            for (int k = 0; k < n_vectors; k++) value[r][k] = value[2 * r][k] + value[2 * r + 1][k];
    for (int k = 0; k < n_vectors; k++) sum[k] = value[0][k] * s->factor;
}

INLINE float sum_one(int n, const streams *s, int64_t at) {
    float value[MOST_INPUTS];
    for (int r = 0; r < n; r++) value[r] = s->input[r][at];
    for (int half = n / 2; half >= 1; half /= 2)
        for (int r = 0; r < half; r++) value[r] = value[2 * r] + value[2 * r + 1];
    return value[0] * s->factor;
}

INLINE void store_vectors(int n_vectors, float *to, const vector *sum) {
    for (int k = 0; k < n_vectors; k++) *(vector *)(to + k * VECTOR_ELEMS) = sum[k];
}

INLINE void step(int n, output_way way, int n_vectors, const streams *s, int64_t at) {
    vector sum[STEP_VECTORS];
    sum_vectors(n, n_vectors, s, at, sum);
    switch (way) {
    case IN_PLACE: /* input[r] rather than output[r], since those are in registers */
        for (int r = 0; r < n; r++) store_vectors(n_vectors, (float *)s->input[r] + at, sum);
        break;
    case STREAMED:
        for (int k = 0; k < n_vectors; k++) STREAM(s->output[0] + at + k * VECTOR_ELEMS, sum[k]);
        break;
    case ANY:
        for (int j = 0; j < s->n_outputs; j++) store_vectors(n_vectors, s->output[j] + at, sum);
        break;
    }
}

INLINE void prefetch_step(int n, output_way way, const streams *s, int64_t at) {
    for (int r = 0; r < n; r++)
        for (int k = 0; k < STEP_ELEMS; k += LINE_ELEMS) {
            if (way == IN_PLACE)
                __builtin_prefetch(s->input[r] + at + k, 1);
            else
                __builtin_prefetch(s->input[r] + at + k, 0);
        }
}

/* One line of a page to come, so that its address is translated by the time its lines are asked
 * for.
 */
INLINE void prefetch_page(int n, const streams *s, int64_t at) {
    for (int r = 0; r < n; r++) __builtin_prefetch(s->input[r] + at, 1);
}

INLINE void sum_all(int n, output_way way, const streams *s, int64_t count) {
    int64_t i = 0;
    for (; i + AHEAD_ELEMS + STEP_ELEMS <= count; i += STEP_ELEMS) {
        if (way == IN_PLACE && i % PAGE_ELEMS == 0 && i + PAGES_AHEAD_ELEMS < count)
            prefetch_page(n, s, i + PAGES_AHEAD_ELEMS);
        prefetch_step(n, way, s, i + AHEAD_ELEMS);
        step(n, way, STEP_VECTORS, s, i);
    }
    for (; i + STEP_ELEMS <= count; i += STEP_ELEMS) step(n, way, STEP_VECTORS, s, i);
    for (; i + VECTOR_ELEMS <= count; i += VECTOR_ELEMS) step(n, way, 1, s, i);
    if (way == STREAMED) STREAM_FENCE(); /* or a flag written later may be seen before the sum */
    for (; i < count; i++) {
        const float sum = sum_one(n, s, i);
        for (int j = 0; j < s->n_outputs; j++) s->output[j][i] = sum;
    }
}

static output_way way_of(int n, const void *const *input, void *const *output, int n_outputs,
                         int64_t count) {
    int n_same = 0, n_in_place = 0;
    for (int j = 0; j < n_outputs; j++)
        for (int r = 0; r < n; r++) {
            n_same += output[j] == input[r];
            n_in_place += j == r && output[j] == input[r];
        }
    if (n_in_place == n && n_outputs == n) return IN_PLACE;
    const int is_large = count >= STREAM_FROM_BYTES / (int64_t)sizeof(float);
    const int is_aligned = (uintptr_t)output[0] % LINE_BYTES == 0;
    return n_outputs == 1 && n_same == 0 && is_large && is_aligned ? STREAMED : ANY;
}

INLINE void sum_any(int n, const void *const *input, void *const *output, int n_outputs,
                    double factor, int64_t count) {
    streams s = {.n_outputs = n_outputs, .factor = (float)factor};
    s.output = (float *const *)output;
    for (int r = 0; r < n; r++) s.input[r] = input[r];
    switch (way_of(n, input, output, n_outputs, count)) {
    case IN_PLACE: sum_all(n, IN_PLACE, &s, count); break;
    case STREAMED: sum_all(n, STREAMED, &s, count); break;
    case ANY: sum_all(n, ANY, &s, count); break;
    }
}

#define FLOAT_SUM(n)                                                                               \
    static void sum_f32_##n(const void *const *input, void *const *output, int n_outputs,          \
                            double factor, int64_t count) {                                        \
        sum_any(n, input, output, n_outputs, factor, count);                                       \
    }
FLOAT_SUM(2)
FLOAT_SUM(4)
FLOAT_SUM(8)

/* ---- BF16: the work is in the conversions, which stay in registers here. Plain loops over blocks
 * small enough that the lines of the next one can be asked for meanwhile. ---- */

enum { BLOCK_ELEMS = 256 };

/* block[i] = the finished sum of x[…][i]. */
typedef void bf16_block_fn(const uint16_t *const *x, float factor, uint16_t *block, int64_t n);

#define VALUE(r) lsi_bf16_to_f32(x[r][i])
#define BF16_BLOCK(name, sum)                                                                      \
    static void name(const uint16_t *const *x, float factor, uint16_t *block, int64_t n) {         \
        for (int64_t i = 0; i < n; i++) block[i] = lsi_f32_to_bf16((sum)*factor);                  \
    }
BF16_BLOCK(block_2, VALUE(0) + VALUE(1))
BF16_BLOCK(block_4, (VALUE(0) + VALUE(1)) + (VALUE(2) + VALUE(3)))

static void prefetch_block(int n, const uint16_t *const *x) {
    for (int r = 0; r < n; r++)
        for (int i = 0; i < BLOCK_ELEMS; i += LINE_BYTES / (int)sizeof(uint16_t))
            __builtin_prefetch(x[r] + i, 1);
}

static void sum_bf16(bf16_block_fn *sum_block, int n, const void *const *input, void *const *output,
                     int n_outputs, double factor, int64_t count) {
    uint16_t block[BLOCK_ELEMS];
    const uint16_t *x[MOST_INPUTS], *next[MOST_INPUTS];
    const int in_place = way_of(n, input, output, n_outputs, count) == IN_PLACE;
    for (int64_t at = 0; at < count; at += BLOCK_ELEMS) {
        for (int r = 0; r < n; r++) {
            x[r] = (const uint16_t *)input[r] + at;
            next[r] = x[r] + BLOCK_ELEMS;
        }
        if (in_place && count - at >= 2 * BLOCK_ELEMS) prefetch_block(n, next);
        const int64_t elems = count - at < BLOCK_ELEMS ? count - at : BLOCK_ELEMS;
        sum_block(x, (float)factor, block, elems);
        for (int j = 0; j < n_outputs; j++)
            memcpy((uint16_t *)output[j] + at, block, (size_t)elems * sizeof block[0]);
    }
}

#define BF16_SUM(n)                                                                                \
    static void sum_bf16_##n(const void *const *input, void *const *output, int n_outputs,         \
                             double factor, int64_t count) {                                       \
        sum_bf16(block_##n, n, input, output, n_outputs, factor, count);                           \
    }
BF16_SUM(2)
BF16_SUM(4)

/* ---- the table ---- */

lsi_fused_sum_fn *lsi_reduce_fused_sum(ls_dtype dtype, int n_inputs) {
    static lsi_fused_sum_fn *const f32[MOST_INPUTS + 1] = {
        [2] = sum_f32_2, [4] = sum_f32_4, [8] = sum_f32_8};
    static lsi_fused_sum_fn *const bf16[MOST_INPUTS + 1] = {[2] = sum_bf16_2, [4] = sum_bf16_4};
    if (n_inputs < 0 || n_inputs > MOST_INPUTS) return NULL;
    return dtype == LS_DTYPE_F32 ? f32[n_inputs] : dtype == LS_DTYPE_BF16 ? bf16[n_inputs] : NULL;
}
