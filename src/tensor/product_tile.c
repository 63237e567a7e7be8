/* Small products of bfloat16 in float32 sums, by the processor's own instruction for pairs.
 *
 * vdpbf16ps adds to 16 float32 sums the products of 16 pairs with 16 pairs. So the pairs of
 * neighbours in k are the elements here, words of 32 bits:
 *
 *   A  pair (i, p) = a[i][2p], a[i][2p + 1]    one is given to all 16 sums; where A lies in rows it
 *                                              is taken as it lies, else from a copy (k/2, m)
 *   B  pair (p, j) = b[2p][j], b[2p + 1][j]    16 columns a vector; from a copy (k/2, PANEL) of the
 *                                              columns at hand
 *
 * ROWS x VECTORS sums stay in registers over all of k. A library's product does the same, but
 * prepares more than such a small one is worth: those of attention, 64 x 64 x 64 and somewhat
 * larger, ran at 140 GFLOP/s through oneDNN where the processor has 230. Processors with AMX take
 * product_amx.c. */
#include "tensor/product_impl.h"

#if defined(LSI_GEMM_DNNL) && defined(__AVX512BF16__)

#include <immintrin.h>
#include <string.h>

#include "tensor/pairs.h"
#include "tensor/rows.h"

enum { LANES = 16, ROWS = 6, VECTORS = 4, PANEL = LANES * VECTORS };

/* Where sums get their pairs. */
typedef struct pairs {
    const char *a;
    int64_t a_row, a_pair; /* bytes from one to the next */
    const uint32_t *b;
    int64_t b_pair; /* words */
    int64_t n_pairs;
} pairs;

/* ---- copies ---- */

static uint32_t pair_at(const void *at) {
    uint32_t pair;
    memcpy(&pair, at, sizeof pair);
    return pair;
}

/* Rows of n elements: each two become one of pairs, `to_stride` pairs from one to the next. */
static void pair_rows(const uint16_t *from, int64_t stride, int64_t n_pairs, int64_t n,
                      uint32_t *to, int64_t to_stride) {
    for (int64_t p = 0; p < n_pairs; p++) {
        const uint16_t *restrict even = from + 2 * p * stride, *restrict odd = even + stride;
        uint32_t *restrict row = to + p * to_stride;
        for (int64_t i = 0; i < n; i++) row[i] = even[i] | (uint32_t)odd[i] << 16;
    }
}

/* 16 rows of n_pairs pairs become columns. */
static void turn_rows(const uint16_t *from, int64_t stride, int64_t n_pairs, uint32_t *to,
                      int64_t to_stride) {
    int64_t p = 0;
    for (; p + LANES <= n_pairs; p += LANES) {
        __m512i a[LANES];
        for (int i = 0; i < LANES; i++) a[i] = _mm512_loadu_si512(from + i * stride + 2 * p);
        lsi_turn_pairs(a);
        for (int i = 0; i < LANES; i++) _mm512_storeu_si512(to + (p + i) * to_stride, a[i]);
    }
    for (; p < n_pairs; p++)
        for (int i = 0; i < LANES; i++) to[p * to_stride + i] = pair_at(from + i * stride + 2 * p);
}

/* Columns [first, first + n) of B. */
static void copy_panel(const lsi_product *p, int64_t first, int64_t n, uint32_t *to) {
    const uint16_t *b = p->b.data;
    if (!p->b.transposed) {
        pair_rows(b + first, p->b.stride, p->k / 2, n, to, n);
        return;
    }
    for (int64_t i = 0; i < n; i += LANES)
        turn_rows(b + (first + i) * p->b.stride, p->b.stride, p->k / 2, to + i, n);
}

/* ---- sums ---- */

static inline __attribute__((always_inline)) void
sum_tile(const pairs *from, int n_rows, int n_vectors, float *c, int64_t c_stride, bool add) {
    __m512 sum[ROWS][VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < n_rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++)
            sum[i][v] = add ? _mm512_loadu_ps(c + i * c_stride + v * LANES) : _mm512_setzero_ps();
    const char *a = from->a;
    const uint32_t *b = from->b;
    int64_t b_pair = from->b_pair;
    for (int64_t p = 0; p < from->n_pairs; p++, a += from->a_pair, b += b_pair) {
        __m512bh columns[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < n_vectors; v++)
            columns[v] = (__m512bh)_mm512_loadu_si512(b + v * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < n_rows; i++) {
            __m512bh row = (__m512bh)_mm512_set1_epi32((int)pair_at(a + i * from->a_row));
#pragma GCC unroll 4
            for (int v = 0; v < n_vectors; v++)
                sum[i][v] = _mm512_dpbf16_ps(sum[i][v], row, columns[v]);
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
        sum_tile(from, n_rows, n, c, c_stride, add);                                               \
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

static void sum_rows(const pairs *from, int64_t n_rows, int64_t n_vectors, float *c,
                     int64_t c_stride, bool add) {
    switch (n_rows) {
        SUM_ROWS(1)
        SUM_ROWS(2)
        SUM_ROWS(3)
        SUM_ROWS(4)
        SUM_ROWS(5)
        SUM_ROWS(6)
    }
}

/* Rows of C that are bfloat16 are summed beside it, and rounded once. */
static void sum_narrow(const pairs *from, int64_t n_rows, int64_t n_vectors, uint16_t *c,
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

/* What the band leaves of the sums of rows [i, i + n_rows): fewer pairs, or fewer vectors. */
static pairs within_band(const lsi_product *p, pairs all, int64_t i, int64_t n_rows) {
    int64_t skipped = p->band == LSI_BAND_A_UPPER && i > p->diagonal ? (i - p->diagonal) / 2 : 0;
    all.a += i * all.a_row + skipped * all.a_pair;
    all.b += skipped * all.b_pair;
    all.n_pairs -= skipped;
    if (p->band == LSI_BAND_A_LOWER)
        all.n_pairs = smaller(all.n_pairs, (i + n_rows + p->diagonal + 1) / 2);
    return all;
}

static int64_t wanted_vectors(const lsi_product *p, int64_t first, int64_t n, int64_t i_end) {
    if (p->band == LSI_BAND_C_LOWER) n = smaller(n, i_end + p->diagonal - first);
    return (n + LANES - 1) / LANES;
}

/* Columns [first, first + n) of C. */
static void multiply_panel(const lsi_product *p, const pairs *all, int64_t first, int64_t n) {
    for (int64_t i = 0; i < p->m; i += ROWS) {
        int64_t n_rows = smaller(p->m - i, ROWS), at = i * p->c_stride + first;
        int64_t n_vectors = wanted_vectors(p, first, n, i + n_rows);
        pairs from = within_band(p, *all, i, n_rows);
        if (n_vectors <= 0) continue;
        if (p->c_dtype == LS_DTYPE_F32)
            sum_rows(&from, n_rows, n_vectors, (float *)p->c + at, p->c_stride, p->add);
        else
            sum_narrow(&from, n_rows, n_vectors, (uint16_t *)p->c + at, p->c_stride, p->add);
    }
}

/* ---- the product ---- */

bool lsi_product_is_small(const lsi_product *p) {
    return p->packing == LSI_PACK_NEVER && p->a.dtype == LS_DTYPE_BF16 && !p->bias &&
           p->n % LANES == 0 && p->k % 2 == 0;
}

ls_status lsi_product_run_small(const lsi_scratch *scratch, const lsi_product *p) {
    int64_t n_pairs = p->k / 2, a_pairs = p->a.transposed ? n_pairs * p->m : 0;
    uint32_t *panel =
        scratch->take(scratch->owner, (size_t)(n_pairs * PANEL + a_pairs) * sizeof *panel);
    if (!panel) return LS_ERR_MEMORY;
    pairs all = {p->a.data, 2 * p->a.stride, 4, panel, 0, n_pairs};
    if (p->a.transposed) {
        uint32_t *a = panel + n_pairs * PANEL;
        pair_rows(p->a.data, p->a.stride, n_pairs, p->m, a, p->m);
        all.a = (const char *)a, all.a_row = 4, all.a_pair = 4 * p->m;
    }
    int64_t n;
    for (int64_t first = 0; first < p->n; first += n) {
        n = smaller(p->n - first, PANEL);
        all.b_pair = n;
        copy_panel(p, first, n, panel);
        multiply_panel(p, &all, first, n);
    }
    scratch->give(scratch->owner, panel);
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
