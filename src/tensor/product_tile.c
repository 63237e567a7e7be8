/* Small products in float32 sums, in tiles of our own.
 *
 * The elements here are words of 32 bits: float32, or of bfloat16 the pairs of neighbours in k,
 * whose products vdpbf16ps adds to 16 float32 sums.
 *
 *   A  word (i, p) = a[i][p], or a[i][2p], a[i][2p + 1]    one is given to all 16 sums; taken as A
 *                                                          lies where that makes words
 *   B  word (p, j) = b[p][j], or b[2p][j], b[2p + 1][j]    16 columns a vector; taken as B lies, or
 *                                                          from a copy (words of k, PANEL)
 *
 * ROWS x VECTORS sums stay in registers over all of k. A library's product does the same, but
 * prepares more than such a small one is worth: those of attention, 64 x 64 x 64 and somewhat
 * larger, ran through oneDNN at 140 GFLOP/s where the processor has 230 (bfloat16), and at 70 where
 * it has 117 (float32). Products of bfloat16 by processors with AMX are in product_amx.c. */
#include "tensor/product_impl.h"

#if defined(__AVX512F__)

#include <immintrin.h>
#include <string.h>

#include "tensor/pairs.h"
#include "tensor/rows.h"

enum { LANES = 16, ROWS = 6, VECTORS = 4, PANEL = LANES * VECTORS };

/* Where sums get their words. */
typedef struct words {
    const char *a;
    int64_t a_row, a_word; /* bytes from one to the next */
    const uint32_t *b;
    int64_t b_word; /* words */
    int64_t n_words;
    bool are_pairs;
} words;

static bool is_narrow(const lsi_product *p) {
    return p->a.dtype == LS_DTYPE_BF16;
}

static int64_t words_of(const lsi_product *p, int64_t k) {
    return is_narrow(p) ? k / 2 : k;
}

/* ---- copies ---- */

/* Rows of n bfloat16: each two become one of pairs, `to_stride` pairs from one to the next. */
static void pair_rows(const uint16_t *from, int64_t stride, int64_t n_pairs, int64_t n,
                      uint32_t *to, int64_t to_stride) {
    for (int64_t p = 0; p < n_pairs; p++) {
        const uint16_t *restrict even = from + 2 * p * stride, *restrict odd = even + stride;
        uint32_t *restrict row = to + p * to_stride;
        for (int64_t i = 0; i < n; i++) row[i] = even[i] | (uint32_t)odd[i] << 16;
    }
}

/* Columns [first, first + n) of B. */
static void copy_panel(const lsi_product *p, int64_t first, int64_t n, uint32_t *to) {
    int64_t n_words = words_of(p, p->k);
    if (!p->b.transposed) {
        pair_rows((const uint16_t *)p->b.data + first, p->b.stride, n_words, n, to, n);
        return;
    }
    int64_t stride = p->b.stride * lsi_dtype_size(p->b.dtype);
    for (int64_t i = 0; i < n; i += LANES)
        lsi_turn_rows((const char *)p->b.data + (first + i) * stride, stride, n_words, to + i, n);
}

/* ---- sums ---- */

static inline __m512 add_products(__m512 sum, __m512i a, __m512i b, bool are_pairs) {
#if defined(__AVX512BF16__)
    if (are_pairs) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    (void)are_pairs; /* never, see lsi_product_is_small */
#endif
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

static inline __attribute__((always_inline)) void sum_tile(const words *from, bool are_pairs,
                                                           int n_rows, int n_vectors, float *c,
                                                           int64_t c_stride, bool add) {
    __m512 sum[ROWS][VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++)
            sum[i][v] = add ? _mm512_loadu_ps(c + i * c_stride + v * LANES) : _mm512_setzero_ps();
    const char *a = from->a;
    const uint32_t *b = from->b;
    int64_t b_word = from->b_word;
    for (int64_t p = 0; p < from->n_words; p++, a += from->a_word, b += b_word) {
        __m512i columns[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++) columns[v] = _mm512_loadu_si512(b + v * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < n_rows; i++) {
            __m512i row = _mm512_set1_epi32((int)lsi_word_at(a + i * from->a_row));
#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; v++)
                sum[i][v] = add_products(sum[i][v], row, columns[v], are_pairs);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++)
            _mm512_storeu_ps(c + i * c_stride + v * LANES, sum[i][v]);
}

#define SUM_VECTORS(n_rows, n)                                                                     \
    case n:                                                                                        \
        sum_tile(from, are_pairs, n_rows, n, c, c_stride, add);                                    \
        break;

#define SUM_ROWS(n)                                                                                \
    case n:                                                                                        \
        switch (n_vectors) {                                                                       \
            SUM_VECTORS(n, 1)                                                                      \
            SUM_VECTORS(n, 2)                                                                      \
            SUM_VECTORS(n, 3)                                                                      \
            SUM_VECTORS(n, 4)                                                                      \
        }                                                                                          \
        break;

static inline __attribute__((always_inline)) void sum_rows_of(const words *from, bool are_pairs,
                                                              int64_t n_rows, int64_t n_vectors,
                                                              float *c, int64_t c_stride,
                                                              bool add) {
    switch (n_rows) {
        SUM_ROWS(1)
        SUM_ROWS(2)
        SUM_ROWS(3)
        SUM_ROWS(4)
        SUM_ROWS(5)
        SUM_ROWS(6)
    }
}

static void sum_rows(const words *from, int64_t n_rows, int64_t n_vectors, float *c,
                     int64_t c_stride, bool add) {
    if (from->are_pairs)
        sum_rows_of(from, true, n_rows, n_vectors, c, c_stride, add);
    else
        sum_rows_of(from, false, n_rows, n_vectors, c, c_stride, add);
}

/* Rows of C that are bfloat16 are summed beside it, and rounded once. */
static void sum_narrow(const words *from, int64_t n_rows, int64_t n_vectors, uint16_t *c,
                       int64_t c_stride, bool add) {
    float sums[ROWS * PANEL];
    int64_t n = n_vectors * LANES;
    for (int64_t i = 0; add && i < n_rows; i++)
        (void)lsi_read(c, LS_DTYPE_BF16, i * c_stride, n, sums + i * n);
    sum_rows(from, n_rows, n_vectors, sums, n, add);
    for (int64_t i = 0; i < n_rows; i++) lsi_keep(c, LS_DTYPE_BF16, i * c_stride, n, sums + i * n);
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What the band leaves of the sums of rows [i, i + n_rows): fewer words, or fewer vectors. */
static words within_band(const lsi_product *p, words all, int64_t i, int64_t n_rows) {
    int64_t skipped = p->band == LSI_BAND_A_UPPER && i > p->diagonal ? i - p->diagonal : 0;
    int64_t end = p->band == LSI_BAND_A_LOWER ? smaller(p->k, i + n_rows + p->diagonal) : p->k;
    int64_t first = words_of(p, skipped);
    all.a += i * all.a_row + first * all.a_word;
    all.b += first * all.b_word;
    all.n_words = (is_narrow(p) ? (end + 1) / 2 : end) - first;
    return all;
}

static int64_t wanted_vectors(const lsi_product *p, int64_t first, int64_t n, int64_t i_end) {
    if (p->band == LSI_BAND_C_LOWER) n = smaller(n, i_end + p->diagonal - first);
    return (n + LANES - 1) / LANES;
}

/* Columns [first, first + n) of C. */
static void multiply_panel(const lsi_product *p, const words *all, int64_t first, int64_t n) {
    for (int64_t i = 0; i < p->m; i += ROWS) {
        int64_t n_rows = smaller(p->m - i, ROWS), at = i * p->c_stride + first;
        int64_t n_vectors = wanted_vectors(p, first, n, i + n_rows);
        words from = within_band(p, *all, i, n_rows);
        if (n_vectors <= 0) continue;
        if (p->c_dtype == LS_DTYPE_F32)
            sum_rows(&from, n_rows, n_vectors, (float *)p->c + at, p->c_stride, p->add);
        else
            sum_narrow(&from, n_rows, n_vectors, (uint16_t *)p->c + at, p->c_stride, p->add);
    }
}

/* ---- the product ---- */

bool lsi_product_is_small(const lsi_product *p) {
    if (p->packing != LSI_PACK_NEVER || p->bias || p->n % LANES != 0) return false;
#if defined(__AVX512BF16__)
    if (is_narrow(p)) return p->k % 2 == 0;
#endif
    return !is_narrow(p);
}

/* Words of A that lie one after the other in memory, in rows or in columns; `copies` has room for
 * the others. */
static words words_of_a(const lsi_product *p, uint32_t *copies) {
    words all = {.a = p->a.data, .n_words = words_of(p, p->k), .are_pairs = is_narrow(p)};
    int64_t stride = p->a.stride * lsi_dtype_size(p->a.dtype);
    if (!p->a.transposed) {
        all.a_row = stride, all.a_word = 4;
    } else if (!is_narrow(p)) {
        all.a_row = 4, all.a_word = stride;
    } else {
        pair_rows(p->a.data, p->a.stride, all.n_words, p->m, copies, p->m);
        all.a = (const char *)copies, all.a_row = 4, all.a_word = 4 * p->m;
    }
    return all;
}

ls_status lsi_product_run_small(const lsi_scratch *scratch, const lsi_product *p) {
    bool copies_b = is_narrow(p) || p->b.transposed;
    int64_t n_words = words_of(p, p->k), b_words = copies_b ? n_words * PANEL : 0;
    int64_t a_words = is_narrow(p) && p->a.transposed ? n_words * p->m : 0;
    uint32_t *panel = NULL;
    if (a_words + b_words > 0) {
        panel = scratch->take(scratch->owner, (size_t)(a_words + b_words) * sizeof *panel);
        if (!panel) return LS_ERR_MEMORY;
    }
    words all = words_of_a(p, panel ? panel + b_words : NULL);
    int64_t n;
    for (int64_t first = 0; first < p->n; first += n) {
        n = smaller(p->n - first, PANEL);
        if (copies_b) {
            copy_panel(p, first, n, panel);
            all.b = panel, all.b_word = n;
        } else {
            all.b = (const uint32_t *)p->b.data + first, all.b_word = p->b.stride;
        }
        multiply_panel(p, &all, first, n);
    }
    if (panel) scratch->give(scratch->owner, panel);
    return LS_OK;
}

#else

bool lsi_product_is_small(const lsi_product *p) {
    (void)p;
    return false;
}

ls_status lsi_product_run_small(const lsi_scratch *scratch, const lsi_product *p) {
    (void)scratch, (void)p;
    return lsi_fail(LS_ERR_UNSUPPORTED, "products: this build has no tiles of its own");
}

#endif
