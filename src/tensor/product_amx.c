/* Products of bfloat16 in float32 sums by tiles of the processor (AMX).
 *
 * A tile is 16 rows of 64 bytes. tdpbf16ps adds to a tile of 16 x 16 float32 sums the product of
 *
 *   A  16 rows of 32 elements: row i has a[i][p], p = 0 … 31
 *   B  16 rows of 16 pairs:    row q has the pairs b[2q][j], b[2q + 1][j], j = 0 … 15
 *
 * Four tiles of sums, 32 x 32, stay in registers while k goes by in steps of 32; each step loads
 * two tiles of A and two of B (2 KiB each, one behind the other):
 *
 *            B0 B1          panel of A: 32 rows,    steps of k one behind the other
 *       A0 | C0 C1          panel of B: 32 columns, the same
 *       A1 | C2 C3
 *
 * Operands are copied into panels first, so it does not matter how they lie; what a panel lacks in
 * rows or in k is zero. Only rows of A that are tiles already are read where they are. Around the
 * block of sums run, from the inside, loops over
 *
 *   panels of B   of a group of columns, which fills half of the second cache
 *   panels of A   of a chunk of rows; one panel is read again for every panel of B
 *   groups of columns, pieces of k, chunks of rows
 *
 * Between pieces of k the sums wait in C where that is float32, else beside it, and are rounded
 * once. Subnormal numbers count as zero, as in all products of bfloat16 by this processor. Threads
 * share panels out, so the bits do not depend on their number.
 *
 * What this gains over the library's products by the same instruction: docs/decisions/026. */
#include "tensor/product_impl.h"

#if defined(LSI_GEMM_DNNL) && defined(__AMX_BF16__) && defined(__AVX512BF16__)

#include <immintrin.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tensor/pairs.h"
#include "tensor/threads.h"

enum {
    LANES = 16,                  /* words of a vector, rows of a tile */
    SIDE = 32,                   /* rows and columns of sums; elements of a step of k */
    TILE_BYTES = 16 * 64,        /* one tile */
    STEP_BYTES = 2 * TILE_BYTES, /* a panel's part of one step of k */
    PIECE = 1024,                /* k that is summed at once */
    GROUP_BYTES = 1 << 20,       /* B's panels in L2 */
    CHUNK_ROWS = 2048,           /* rows of A that are in panels at once */
    SUMS_BYTES = 8 << 20,        /* sums that wait beside C */
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t divide_up(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

static int64_t round_up(int64_t n) {
    return divide_up(n, SIDE) * SIDE;
}

/* ---- panels ---- */

/* An operand as panels see it: n lines, A's along m and B's along n. */
typedef struct lines {
    const uint16_t *at;
    int64_t stride, n;
    bool lie_in_rows; /* a line's elements are neighbours; else the lines are */
} lines;

/* 32 vectors: rows of 32 elements at `from`, `rows` x `columns` of which exist; the others are 0.
 */
static inline void load_block(const uint16_t *from, int64_t stride, int64_t rows, int64_t columns,
                              __m512i block[SIDE]) {
    __mmask32 mask = columns >= SIDE ? ~0u : (1u << columns) - 1u;
    for (int64_t i = 0; i < SIDE; i++)
        block[i] =
            i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * stride) : _mm512_setzero_si512();
}

/* Rows 2 q and 2 q + 1 become the pairs of row q: 16 in left, 16 in right. */
static inline void pair_rows(const __m512i block[SIDE], __m512i left[LANES], __m512i right[LANES]) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 16
    for (int q = 0; q < LANES; q++) {
        __m512i even = block[2 * q], odd = block[2 * q + 1];
        __m512i a = _mm512_unpacklo_epi16(even, odd), b = _mm512_unpackhi_epi16(even, odd);
        left[q] = _mm512_permutex2var_epi64(a, low, b);
        right[q] = _mm512_permutex2var_epi64(a, high, b);
    }
}

static inline void store_tile(const __m512i rows[LANES], char *to) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) _mm512_store_si512(to + i * 64, rows[i]);
}

/* A's tiles have a line in each row, B's in each column: lines that lie the other way are turned.
 */
static inline void pack_step(const uint16_t *from, int64_t stride, int64_t rows, int64_t columns,
                             bool lie_in_rows, bool is_b, char *to) {
    __m512i block[SIDE], left[LANES], right[LANES];
    load_block(from, stride, rows, columns, block);
    if (lie_in_rows) {
        if (is_b) lsi_turn_words(block), lsi_turn_words(block + LANES);
        store_tile(block, to);
        store_tile(block + LANES, to + TILE_BYTES);
        return;
    }
    pair_rows(block, left, right);
    if (!is_b) lsi_turn_words(left), lsi_turn_words(right);
    store_tile(left, to);
    store_tile(right, to + TILE_BYTES);
}

/* The part of panels [first, end) that lies in [k_begin, k_end), one panel behind the other. */
typedef struct packing {
    const lines *from;
    bool is_b;
    int64_t first, end, k_begin, k_end;
    char *to;
    int64_t panel_bytes;
} packing;

static void pack_at(const packing *pk, int64_t index, int64_t p) {
    const lines *l = pk->from;
    int64_t line = index * SIDE, n = smaller(l->n - line, SIDE), n_k = smaller(pk->k_end - p, SIDE);
    char *to =
        pk->to + (index - pk->first) * pk->panel_bytes + (p - pk->k_begin) / SIDE * STEP_BYTES;
    if (l->lie_in_rows)
        pack_step(l->at + line * l->stride + p, l->stride, n, n_k, true, pk->is_b, to);
    else
        pack_step(l->at + p * l->stride + line, l->stride, n_k, n, false, pk->is_b, to);
}

/* In the order in which 32 rows of the operand are read from left to right. */
static void pack(const packing *pk) {
    if (pk->from->lie_in_rows) {
        for (int64_t index = pk->first; index < pk->end; index++)
            for (int64_t p = pk->k_begin; p < pk->k_end; p += SIDE) pack_at(pk, index, p);
    } else {
        for (int64_t p = pk->k_begin; p < pk->k_end; p += SIDE)
            for (int64_t index = pk->first; index < pk->end; index++) pack_at(pk, index, p);
    }
}

/* ---- sums ---- */

/* Where a panel's tiles lie: a step's second tile, its rows, the next step; in bytes. */
typedef struct panel {
    const char *at;
    int64_t second, row, step;
} panel;

/* 32 x 32 sums at c: new ones, or those there go on. */
static inline void sum_block(const panel *from, const char *b, int64_t n_steps, float *c,
                             int64_t stride_bytes, bool goes_on) {
    const char *a = from->at;
    int64_t second = from->second, row = from->row, step = from->step;
    float *below = (float *)(void *)((char *)c + LANES * stride_bytes);
    if (goes_on) {
        _tile_loadd(0, c, stride_bytes);
        _tile_loadd(1, c + LANES, stride_bytes);
        _tile_loadd(2, below, stride_bytes);
        _tile_loadd(3, below + LANES, stride_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < n_steps; p++, a += step, b += STEP_BYTES) {
        _tile_loadd(4, a, row);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE_BYTES, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + second, row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, stride_bytes);
    _tile_stored(1, c + LANES, stride_bytes);
    _tile_stored(2, below, stride_bytes);
    _tile_stored(3, below + LANES, stride_bytes);
}

/* One product at work: the part of it that the loops have reached. */
typedef struct work {
    const lsi_product *p;
    lines a, b;
    char *a_panels, *b_panels;
    float *sums; /* (chunk,sums_stride) where they wait beside C, else NULL */
    int64_t sums_stride;
    int64_t rows, n_rows;       /* the chunk */
    int64_t k_begin, k_end;     /* the piece */
    int64_t columns, n_columns; /* the group */
    int64_t panel_bytes;        /* of the piece */
} work;

/* Up to 32 neighbours in C, as floats in two vectors. */
typedef struct row_part {
    __m512 low, high;
} row_part;

static inline __m512 widen_16(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline row_part read_floats(const float *from, __mmask32 mask) {
    return (row_part){_mm512_maskz_loadu_ps((__mmask16)mask, from),
                      _mm512_maskz_loadu_ps((__mmask16)(mask >> LANES), from + LANES)};
}

static inline row_part read_part(const lsi_product *p, int64_t at, __mmask32 mask) {
    if (p->c_dtype == LS_DTYPE_F32) return read_floats((const float *)p->c + at, mask);
    __m512i both = _mm512_maskz_loadu_epi16(mask, (const uint16_t *)p->c + at);
    return (row_part){widen_16(_mm512_castsi512_si256(both)),
                      widen_16(_mm512_extracti64x4_epi64(both, 1))};
}

static inline void write_part(const lsi_product *p, int64_t at, __mmask32 mask, row_part sum) {
    if (p->c_dtype == LS_DTYPE_F32) {
        _mm512_mask_storeu_ps((float *)p->c + at, (__mmask16)mask, sum.low);
        _mm512_mask_storeu_ps((float *)p->c + at + LANES, (__mmask16)(mask >> LANES), sum.high);
    } else {
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(sum.high, sum.low);
        _mm512_mask_storeu_epi16((uint16_t *)p->c + at, mask, both);
    }
}

static inline row_part add_parts(row_part a, row_part b) {
    return (row_part){_mm512_add_ps(a.low, b.low), _mm512_add_ps(a.high, b.high)};
}

/* n_rows x n sums become, or are added to, C at (i, j); with the bias if `is_last`. */
static void finish_block(const lsi_product *p, const float *sums, int64_t stride, int64_t i,
                         int64_t j, int64_t n_rows, int64_t n, bool adds, bool is_last) {
    __mmask32 mask = n >= SIDE ? ~0u : (1u << n) - 1u;
    bool biased = p->bias && is_last;
    row_part bias = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (biased) bias = read_floats(p->bias + j, mask);
    for (int64_t row = 0; row < n_rows; row++) {
        int64_t place = (i + row) * p->c_stride + j;
        row_part sum = read_floats(sums + row * stride, ~0u);
        if (adds) sum = add_parts(read_part(p, place, mask), sum);
        if (biased) sum = add_parts(sum, bias);
        write_part(p, place, mask, sum);
    }
}

/* ---- the band ---- */

/* Elements of the piece that rows [i, i + n) need: begin is a multiple of 32 behind k_begin. */
static void within_band(const work *w, int64_t i, int64_t n, int64_t *begin, int64_t *end) {
    const lsi_product *p = w->p;
    *begin = w->k_begin, *end = w->k_end;
    if (p->band == LSI_BAND_A_LOWER) *end = smaller(*end, i + n + p->diagonal);
    if (p->band == LSI_BAND_A_UPPER) *begin += larger(i - p->diagonal - *begin, 0) / SIDE * SIDE;
}

static int64_t wanted_columns(const lsi_product *p, int64_t i_end) {
    return p->band == LSI_BAND_C_LOWER ? smaller(p->n, larger(i_end + p->diagonal, 0)) : p->n;
}

/* ---- loops ---- */

static bool is_first(const work *w) {
    return w->k_begin == 0;
}

static bool is_last(const work *w) {
    return w->k_end == w->p->k;
}

/* The block at row i and column j of C. Whole blocks of float32 are summed in their place; others
 * beside it, in `sums` where they wait for the next piece. */
static void multiply_block(const work *w, panel a, const char *b, int64_t i, int64_t j) {
    const lsi_product *p = w->p;
    int64_t n_rows = smaller(p->m - i, SIDE), n = smaller(p->n - j, SIDE), begin, end;
    within_band(w, i, n_rows, &begin, &end);
    int64_t n_steps = divide_up(larger(end - begin, 0), SIDE);
    int64_t skipped = (begin - w->k_begin) / SIDE;
    a.at += skipped * a.step, b += skipped * STEP_BYTES;
    bool narrow = p->c_dtype != LS_DTYPE_F32, adds = p->add || (!narrow && !is_first(w));
    if (!narrow && !p->bias && n_rows == SIDE && n == SIDE && !(p->add && is_first(w))) {
        sum_block(&a, b, n_steps, (float *)p->c + i * p->c_stride + j, 4 * p->c_stride,
                  !is_first(w));
        return;
    }
    float room[SIDE * SIDE] __attribute__((aligned(64)));
    float *sums = w->sums ? w->sums + (i - w->rows) * w->sums_stride + j : room;
    int64_t stride = w->sums ? w->sums_stride : SIDE;
    sum_block(&a, b, n_steps, sums, 4 * stride, w->sums && !is_first(w));
    if (!narrow || is_last(w)) finish_block(p, sums, stride, i, j, n_rows, n, adds, is_last(w));
}

static void configure_tiles(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("" ::: "memory"); /* compilers do not know that tile loads read memory */
    _tile_loadconfig(&config);
}

/* Rows whose distance is a multiple of 2 KiB would share a few places of the nearest cache. */
static bool rows_are_apart(int64_t stride) {
    return stride % 1024 != 0;
}

/* A panel of A whose lines are whole and lie in rows is read where it is. */
static bool is_read_in_place(const work *w, int64_t index) {
    int64_t row = w->rows + index * SIDE;
    return w->a.lie_in_rows && row + SIDE <= w->p->m && (w->k_end - w->k_begin) % SIDE == 0 &&
           rows_are_apart(w->a.stride);
}

static panel panel_of_a(const work *w, int64_t index) {
    if (!is_read_in_place(w, index))
        return (panel){w->a_panels + index * w->panel_bytes, TILE_BYTES, 64, STEP_BYTES};
    const uint16_t *at = w->a.at + (w->rows + index * SIDE) * w->a.stride + w->k_begin;
    return (panel){(const char *)at, LANES * 2 * w->a.stride, 2 * w->a.stride, 64};
}

/* Items are panels of A in the chunk. */
static void multiply_range(void *context, int64_t first, int64_t end, int worker) {
    (void)worker;
    const work *w = context;
    configure_tiles();
    for (int64_t index = first; index < end; index++) {
        int64_t i = w->rows + index * SIDE;
        int64_t columns_end = smaller(w->columns + w->n_columns, wanted_columns(w->p, i + SIDE));
        panel a = panel_of_a(w, index);
        const char *b = w->b_panels;
        for (int64_t j = w->columns; j < columns_end; j += SIDE, b += w->panel_bytes)
            multiply_block(w, a, b, i, j);
    }
    _tile_release();
    __asm__ volatile("" ::: "memory"); /* nor that tile stores write it */
}

/* Panels [first, end) of the chunk or group that begins at `line`. */
static void pack_panels(const work *w, const lines *from, bool is_b, int64_t line, char *panels,
                        int64_t first, int64_t end) {
    const packing pk = {.from = from,
                        .is_b = is_b,
                        .first = line / SIDE + first,
                        .end = line / SIDE + end,
                        .k_begin = w->k_begin,
                        .k_end = w->k_end,
                        .to = panels + first * w->panel_bytes,
                        .panel_bytes = w->panel_bytes};
    pack(&pk);
}

static void pack_a_range(void *context, int64_t first, int64_t end, int worker) {
    (void)worker;
    const work *w = context;
    while (first < end && is_read_in_place(w, first)) first++;
    pack_panels(w, &w->a, false, w->rows, w->a_panels, first, end);
}

static void pack_b_range(void *context, int64_t first, int64_t end, int worker) {
    (void)worker;
    const work *w = context;
    pack_panels(w, &w->b, true, w->columns, w->b_panels, first, end);
}

static void for_panels(work *w, int64_t n_lines, int64_t work_per_panel, lsi_range_fn range) {
    int64_t n = divide_up(n_lines, SIDE);
    if (lsi_product_threads() == 1)
        range(w, 0, n, 0);
    else
        lsi_for_ranges(n, lsi_grain(work_per_panel), range, w);
}

/* How a product is cut: k, columns, rows, all multiples of 32; floats of sums that wait. */
typedef struct cut {
    int64_t piece, group, chunk, n_sums;
} cut;

static cut cut_of(const lsi_product *p) {
    cut c = {.chunk = CHUNK_ROWS};
    int64_t n = round_up(p->n), rows_of_sums = larger(SUMS_BYTES / 4 / n / SIDE * SIDE, SIDE);
    c.piece = round_up(divide_up(p->k, divide_up(p->k, PIECE)));
    c.group = smaller(larger(GROUP_BYTES / (2 * c.piece) / SIDE * SIDE, SIDE), n);
    bool sums_wait = p->c_dtype != LS_DTYPE_F32 && p->k > c.piece;
    if (sums_wait) c.chunk = smaller(c.chunk, rows_of_sums);
    c.chunk = round_up(divide_up(p->m, divide_up(p->m, c.chunk))); /* equal ones */
    c.n_sums = sums_wait ? c.chunk * n : 0;
    return c;
}

static void multiply_piece(work *w, const cut *c) {
    int64_t n_k = w->k_end - w->k_begin;
    w->panel_bytes = round_up(n_k) / SIDE * STEP_BYTES;
    for_panels(w, w->n_rows, SIDE * n_k, pack_a_range);
    for (w->columns = 0; w->columns < w->p->n; w->columns += c->group) {
        w->n_columns = smaller(c->group, w->p->n - w->columns);
        for_panels(w, w->n_columns, SIDE * n_k, pack_b_range);
        for_panels(w, w->n_rows, n_k * w->n_columns, multiply_range);
    }
}

static void multiply_chunks(work *w, const cut *c) {
    for (w->rows = 0; w->rows < w->p->m; w->rows += c->chunk) {
        w->n_rows = smaller(c->chunk, w->p->m - w->rows);
        for (w->k_begin = 0; w->k_begin < w->p->k; w->k_begin = w->k_end) {
            w->k_end = smaller(w->k_begin + c->piece, w->p->k);
            multiply_piece(w, c);
        }
    }
}

/* ---- the product ---- */

/* A's lines are its rows, B's its columns. */
static lines lines_of(const lsi_operand *o, int64_t n, bool is_b) {
    return (lines){o->data, o->stride, n, o->transposed == is_b};
}

/* Whether every panel of A is read where it is. */
static bool lies_in_tiles(const lsi_product *p) {
    return !p->a.transposed && rows_are_apart(p->a.stride) && p->m % SIDE == 0 && p->k % SIDE == 0;
}

ls_status lsi_product_run_amx(const lsi_scratch *scratch, const lsi_product *p) {
    cut c = cut_of(p);
    int64_t a_bytes = lies_in_tiles(p) ? 0 : c.chunk * c.piece * 2, b_bytes = c.group * c.piece * 2;
    char *memory = scratch->take(scratch->owner, (size_t)(a_bytes + b_bytes + 4 * c.n_sums));
    if (!memory) return LS_ERR_MEMORY;
    work w = {.p = p,
              .a = lines_of(&p->a, p->m, false),
              .b = lines_of(&p->b, p->n, true),
              .a_panels = memory,
              .b_panels = memory + a_bytes,
              .sums = c.n_sums ? (float *)(void *)(memory + a_bytes + b_bytes) : NULL,
              .sums_stride = round_up(p->n)};
    multiply_chunks(&w, &c);
    scratch->give(scratch->owner, memory);
    return LS_OK;
}

/* The kernel saves tiles at a switch of tasks only for processes that ask for it. */
bool lsi_product_has_amx(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, YES = 1, NO = 2 };
    static _Atomic int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        answer = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 ? YES : NO;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == YES;
}

#else

bool lsi_product_has_amx(void) {
    return false;
}

ls_status lsi_product_run_amx(const lsi_scratch *scratch, const lsi_product *p) {
    (void)scratch, (void)p;
    return lsi_fail(LS_ERR_UNSUPPORTED, "products: this build has no tiles of the processor");
}

#endif
