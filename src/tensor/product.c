/* Products (see product.h): choice of the way, and the way that always works.
 *
 * Small products are made by tiles of our own (product_tile.c). Others of float32 are the library's
 * plain call, after turning B where that pays (product_turn.c). Others of bfloat16 are made by
 * tiles of our own with AMX (product_amx.c), else by the library's primitives where it knows the
 * type (product_dnnl.c); otherwise the matrices are widened, the second one a block of columns at a
 * time, and multiplied in float32, with the same result up to the order of additions. */
#include "tensor/product.h"

#include <stdatomic.h>
#include <string.h>

#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/product_impl.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

enum { BLOCK_COLUMNS = 512 };

static _Atomic bool always_widens;

void lsi_product_widens(bool always) {
    atomic_store(&always_widens, always);
}

static lsi_bf16_unit unit_now(void) {
    return atomic_load(&always_widens) ? LSI_BF16_NONE : lsi_product_unit();
}

const char *lsi_bf16_products(void) {
    static const char *const names[] = {[LSI_BF16_NONE] = "float32 after widening",
                                        [LSI_BF16_PAIRS] = "AVX512-BF16",
                                        [LSI_BF16_TILES] = "AMX"};
    return names[unit_now()];
}

/* ---- counting ---- */

static int64_t within(int64_t value, int64_t most) {
    return value < 0 ? 0 : value < most ? value : most;
}

int64_t lsi_product_flops(const lsi_product *p) {
    int64_t n_pairs = 0, n = p->n, k = p->k, d = p->diagonal;
    for (int64_t i = 0; i < p->m; i++) switch (p->band) {
        case LSI_BAND_NONE: n_pairs += n * k; break;
        case LSI_BAND_C_LOWER: n_pairs += within(i + d + 1, n) * k; break;
        case LSI_BAND_A_LOWER: n_pairs += n * within(i + d + 1, k); break;
        case LSI_BAND_A_UPPER: n_pairs += n * within(k - (i - d), k); break;
        }
    return 2 * n_pairs;
}

/* ---- widening ---- */

/* One widening product: whole A as floats, a block of B and of C. */
typedef struct widening {
    const lsi_product *p;
    float *a, *b, *c; /* (m,k), (BLOCK_COLUMNS,k) or (k,BLOCK_COLUMNS), (m,BLOCK_COLUMNS) */
} widening;

typedef struct copy_rows {
    const void *from;
    ls_dtype dtype;
    int64_t from_stride, to_stride, columns;
    float *to;
} copy_rows;

static void widen_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const copy_rows *copy = context;
    for (int64_t row = begin; row < end; row++) {
        float *to = copy->to + row * copy->to_stride;
        const float *from =
            lsi_read(copy->from, copy->dtype, row * copy->from_stride, copy->columns, to);
        if (from != to) memcpy(to, from, (size_t)copy->columns * sizeof *to);
    }
}

/* Rows x columns elements at `first` of the operand, as stored. */
static void widen(const lsi_operand *op, int64_t first, int64_t rows, int64_t columns, float *to) {
    const char *from = (const char *)op->data + first * lsi_dtype_size(op->dtype);
    copy_rows copy = {from, op->dtype, op->stride, columns, columns, to};
    lsi_for_ranges(rows, lsi_grain(columns), widen_range, &copy);
}

/* Adds the bias and what is there, and rounds, row by row. */
static void finish_block(const widening *w, int64_t first, int64_t n) {
    const lsi_product *p = w->p;
    float room[BLOCK_COLUMNS];
    for (int64_t row = 0; row < p->m; row++) {
        float *y = w->c + row * n;
        int64_t at = row * p->c_stride + first;
        if (p->add) {
            const float *old = lsi_read(p->c, p->c_dtype, at, n, room);
            for (int64_t i = 0; i < n; i++) y[i] = old[i] + y[i];
        }
        if (p->bias)
            for (int64_t i = 0; i < n; i++) y[i] += p->bias[first + i];
        lsi_store_floats((char *)p->c + at * lsi_dtype_size(p->c_dtype), p->c_dtype, n, y);
    }
}

static ls_status multiply_block(const widening *w, int64_t first, int64_t n) {
    const lsi_product *p = w->p;
    int64_t a_stride = p->a.transposed ? p->m : p->k;
    if (p->b.transposed)
        widen(&p->b, first * p->b.stride, n, p->k, w->b);
    else
        widen(&p->b, first, p->k, n, w->b);
    LSI_TRY(lsi_gemm(p->a.transposed, p->b.transposed, p->m, n, p->k, 1.0f, w->a, a_stride, w->b,
                     p->b.transposed ? p->k : n, 0.0f, w->c, n));
    finish_block(w, first, n);
    return LS_OK;
}

static ls_status multiply_widened(const lsi_scratch *scratch, const lsi_product *p) {
    int64_t block = p->n < BLOCK_COLUMNS ? p->n : BLOCK_COLUMNS;
    int64_t a_elems = p->m * p->k, b_elems = p->k * block, c_elems = p->m * block;
    float *memory =
        scratch->take(scratch->owner, (size_t)(a_elems + b_elems + c_elems) * sizeof *memory);
    if (!memory) return LS_ERR_MEMORY;
    widening w = {p, memory, memory + a_elems, memory + a_elems + b_elems};
    if (p->a.transposed)
        widen(&p->a, 0, p->k, p->m, w.a);
    else
        widen(&p->a, 0, p->m, p->k, w.a);
    ls_status status = LS_OK;
    for (int64_t at = 0; at < p->n && status == LS_OK; at += block)
        status = multiply_block(&w, at, p->n - at < block ? p->n - at : block);
    scratch->give(scratch->owner, memory);
    return status;
}

/* ---- float32 by the library's plain call ---- */

/* Rows that get their bias while they are still near. */
enum { BIAS_ROWS = 512 };

static void add_bias_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const lsi_product *p = context;
    for (int64_t row = begin; row < end; row++) {
        float *restrict y = (float *)p->c + row * p->c_stride;
        for (int64_t i = 0; i < p->n; i++) y[i] += p->bias[i];
    }
}

static ls_status multiply_rows(const lsi_product *p) {
    LSI_TRY(lsi_gemm(p->a.transposed, p->b.transposed, p->m, p->n, p->k, 1.0f, p->a.data,
                     p->a.stride, p->b.data, p->b.stride, p->add ? 1.0f : 0.0f, p->c, p->c_stride));
    lsi_product all = *p;
    if (p->bias) lsi_for_ranges(p->m, lsi_grain(p->n), add_bias_range, &all);
    return LS_OK;
}

static void tell(const lsi_product *p, int64_t first, int64_t n) {
    if (p->rows_done.run) p->rows_done.run(p->rows_done.context, first, n);
}

/* The library prepares B once a call; one that is stored transposed is dear to prepare. */
static bool is_by_blocks(const lsi_product *p) {
    return p->a.dtype == LS_DTYPE_F32 && p->bias && !p->a.transposed && !p->b.transposed &&
           !lsi_product_is_small(p);
}

static ls_status multiply_by_blocks(const lsi_product *p) {
    for (int64_t row = 0; row < p->m; row += BIAS_ROWS) {
        lsi_product rows = *p;
        rows.m = p->m - row < BIAS_ROWS ? p->m - row : BIAS_ROWS;
        rows.a.data = (const float *)p->a.data + row * p->a.stride;
        rows.c = (float *)p->c + row * p->c_stride;
        LSI_TRY(multiply_rows(&rows));
        tell(p, row, rows.m);
    }
    return LS_OK;
}

/* ---- bfloat16 by the library's primitives ---- */

/* oneDNN takes a transposed A slower where C is wide: at 0.92 to 0.95 of the speed it has for up to
 * MOST_COLUMNS (gradients of weights on Zen 4, 384 to 3,072 columns). */
enum { MOST_COLUMNS = 768, COLUMNS_ALIGN = 64 };

static ls_status run_in_blocks(lsi_product_cache **cache, const lsi_scratch *scratch,
                               const lsi_product *p) {
    if (!p->a.transposed || p->n <= MOST_COLUMNS) return lsi_product_run(cache, scratch, p);
    int64_t n_blocks = (p->n + MOST_COLUMNS - 1) / MOST_COLUMNS;
    int64_t block = (p->n + n_blocks * COLUMNS_ALIGN - 1) / (n_blocks * COLUMNS_ALIGN);
    block *= COLUMNS_ALIGN;
    for (int64_t first = 0; first < p->n; first += block) {
        lsi_product columns = *p;
        columns.n = p->n - first < block ? p->n - first : block;
        int64_t b_at = p->b.transposed ? first * p->b.stride : first;
        columns.b.data = (const char *)p->b.data + b_at * lsi_dtype_size(p->b.dtype);
        columns.c = (char *)p->c + first * lsi_dtype_size(p->c_dtype);
        if (p->bias) columns.bias = p->bias + first;
        LSI_TRY(lsi_product_run(cache, scratch, &columns));
    }
    return LS_OK;
}

/* ---- the way ---- */

static ls_status multiply_narrow(lsi_product_cache **cache, const lsi_scratch *scratch,
                                 const lsi_product *product) {
    switch (unit_now()) {
    case LSI_BF16_NONE: return multiply_widened(scratch, product);
    case LSI_BF16_PAIRS:
        if (lsi_product_is_small(product)) return lsi_product_run_small(scratch, product);
        break;
    case LSI_BF16_TILES:
        if (lsi_product_has_amx()) return lsi_product_run_amx(scratch, product);
        break;
    }
    return run_in_blocks(cache, scratch, product);
}

static ls_status multiply_at_once(lsi_product_cache **cache, const lsi_scratch *scratch,
                                  const lsi_product *product) {
    if (product->a.dtype == LS_DTYPE_BF16) return multiply_narrow(cache, scratch, product);
    if (lsi_product_is_small(product)) return lsi_product_run_small(scratch, product);
    if (lsi_product_is_turned(product)) return lsi_product_run_turned(scratch, product);
    return multiply_rows(product);
}

ls_status lsi_multiply(lsi_product_cache **cache, const lsi_scratch *scratch,
                       const lsi_product *product) {
    lsi_threads_apply();
    if (is_by_blocks(product)) return multiply_by_blocks(product);
    LSI_TRY(multiply_at_once(cache, scratch, product));
    tell(product, 0, product->m);
    return LS_OK;
}
