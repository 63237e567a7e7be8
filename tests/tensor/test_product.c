/* Values of products, with both types of operands and results, all transposes, bands and odd sizes,
 * against the naive triple loop. Elements are small integers, so sums are exact in any order and
 * compared for equality. Products without packing are those that tiles of our own may make.
 * Each product is listened to: rows are told of once, complete (rows_done). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "harness/harness.h"
#include "tensor/product.h"
#include "tensor/rows.h"

enum { PAD = 3 }; /* columns that are no part of a matrix */

static const float guard = 77.0f;

typedef struct size {
    int64_t m, n, k;
} size;

static const size sizes[] = {
    {1, 1, 1},    {3, 5, 2},    {1, 16, 2},   {5, 16, 32},   {6, 64, 34},  {7, 64, 32},
    {13, 80, 30}, {64, 64, 64}, {12, 48, 65}, {70, 128, 64}, {64, 20, 66}, {66, 144, 100},
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct types {
    ls_dtype in, out;
} types;

static const types all_types[] = {
    {LS_DTYPE_F32, LS_DTYPE_F32}, {LS_DTYPE_BF16, LS_DTYPE_F32}, {LS_DTYPE_BF16, LS_DTYPE_BF16}};
enum { N_TYPES = sizeof all_types / sizeof all_types[0] };

typedef struct one_case {
    size size;
    types types;
    lsi_packing packing;
    lsi_band band;
    int64_t diagonal;
    bool a_transposed, b_transposed, add, biased;
} one_case;

static void *take(void *owner, size_t bytes) {
    (void)owner;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void give(void *owner, void *memory) {
    (void)owner;
    free(memory);
}

/* ---- matrices, as floats in the order of the product ---- */

static float *draw(int64_t rows, int64_t columns, uint32_t which) {
    lsi_rng_stream stream = lsi_rng_open(1, LSI_RNG_TEST, which, 0);
    float *m = calloc((size_t)(rows * columns), sizeof *m);
    assert_non_null(m);
    for (int64_t i = 0; i < rows * columns; i++)
        m[i] = (float)((int)(lsi_rng_u32(&stream, (uint64_t)i) % 5) - 2);
    return m;
}

static bool is_zero_of_a(const one_case *c, int64_t i, int64_t p) {
    return (c->band == LSI_BAND_A_LOWER && p > i + c->diagonal) ||
           (c->band == LSI_BAND_A_UPPER && p < i - c->diagonal);
}

static bool is_wanted(const one_case *c, int64_t i, int64_t j) {
    return c->band != LSI_BAND_C_LOWER || j <= i + c->diagonal;
}

/* As an operand: transposed if asked for, rows with guards behind. */
static void *store(const float *m, int64_t rows, int64_t columns, bool transposed, ls_dtype dtype) {
    int64_t stored_rows = transposed ? columns : rows, width = transposed ? rows : columns;
    int64_t stride = width + PAD;
    float *floats = calloc((size_t)(stored_rows * stride), sizeof *floats);
    void *data = calloc((size_t)(stored_rows * stride), sizeof *floats);
    assert_true(floats && data);
    for (int64_t i = 0; i < stored_rows * stride; i++) {
        int64_t r = i / stride, c = i % stride;
        floats[i] = c >= width ? guard : m[transposed ? c * columns + r : r * columns + c];
    }
    lsi_store_floats(data, dtype, stored_rows * stride, floats);
    free(floats);
    return data;
}

/* ---- a case ---- */

static void fail_at(const one_case *c, int64_t i, int64_t j, float expected, float found) {
    fail_msg("%dx%dx%d %s to %s ta=%d tb=%d add=%d biased=%d packing %d band %d at (%d,%d): "
             "expected %g, found %g",
             (int)c->size.m, (int)c->size.n, (int)c->size.k, ls_dtype_name(c->types.in),
             ls_dtype_name(c->types.out), c->a_transposed, c->b_transposed, c->add, c->biased,
             (int)c->packing, (int)c->band, (int)i, (int)j, (double)expected, (double)found);
}

/* Row i of the product, as floats. */
static void naive_row(const one_case *c, int64_t i, const float *a, const float *b,
                      const float *old, const float *bias, float *row) {
    int64_t n = c->size.n, k = c->size.k;
    for (int64_t j = 0; j < n; j++)
        row[j] = (c->add ? old[i * n + j] : 0.0f) + (c->biased ? bias[j] : 0.0f);
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < n; j++) row[j] += a[i * k + p] * b[p * n + j];
    lsi_round(row, c->types.out, n);
}

static void compare(const one_case *c, const float *a, const float *b, const float *old,
                    const float *bias, const void *result) {
    size s = c->size;
    int64_t stride = s.n + PAD;
    float *found = calloc((size_t)(s.m * stride), sizeof *found);
    float *expected = calloc((size_t)stride, sizeof *expected);
    assert_true(found && expected);
    lsi_to_floats(result, c->types.out, s.m * stride, found);
    for (int64_t j = s.n; j < stride; j++) expected[j] = guard;
    for (int64_t i = 0; i < s.m; i++) {
        naive_row(c, i, a, b, old, bias, expected);
        for (int64_t j = 0; j < stride; j++) {
            if (j < s.n && !is_wanted(c, i, j)) continue;
            if (found[i * stride + j] != expected[j])
                fail_at(c, i, j, expected[j], found[i * stride + j]);
        }
    }
    free(found), free(expected);
}

/* Rows as they were when rows_done told of them. */
typedef struct told_rows {
    const lsi_product *p;
    int64_t next;
    char *seen;
} told_rows;

static void hear_rows(void *context, int64_t first, int64_t n) {
    told_rows *told = context;
    const lsi_product *p = told->p;
    size_t row_bytes = (size_t)p->c_stride * ls_dtype_bytes(p->c_dtype);
    size_t begin = (size_t)first * row_bytes;
    assert_int_equal(first, told->next);
    assert_in_range(n, 1, p->m - first);
    memcpy(told->seen + begin, (const char *)p->c + begin, (size_t)n * row_bytes);
    told->next = first + n;
}

/* Whoever listens has heard of each row once, when it was complete. */
static void multiply(lsi_product *p) {
    size_t bytes = (size_t)(p->m * p->c_stride) * ls_dtype_bytes(p->c_dtype);
    told_rows told = {p, 0, calloc(1, bytes)};
    lsi_product_cache *cache = NULL;
    lsi_scratch scratch = {take, give, NULL};
    assert_non_null(told.seen);
    p->rows_done = (lsi_rows_done){hear_rows, &told};
    assert_ok(lsi_multiply(&cache, &scratch, p));
    assert_int_equal(told.next, p->m);
    assert_memory_equal(told.seen, p->c, bytes);
    lsi_product_cache_destroy(cache);
    free(told.seen);
}

static void check(const one_case *c) {
    size s = c->size;
    float *a = draw(s.m, s.k, 1), *b = draw(s.k, s.n, 2), *old = draw(s.m, s.n, 3);
    float *bias = draw(1, s.n, 4);
    for (int64_t i = 0; i < s.m * s.k; i++)
        if (is_zero_of_a(c, i / s.k, i % s.k)) a[i] = 0.0f;
    void *stored_a = store(a, s.m, s.k, c->a_transposed, c->types.in);
    void *stored_b = store(b, s.k, s.n, c->b_transposed, c->types.in);
    void *result = store(old, s.m, s.n, false, c->types.out);
    lsi_product p = {
        .m = s.m,
        .n = s.n,
        .k = s.k,
        .a = {stored_a, c->types.in, (c->a_transposed ? s.m : s.k) + PAD, c->a_transposed},
        .b = {stored_b, c->types.in, (c->b_transposed ? s.k : s.n) + PAD, c->b_transposed},
        .c = result,
        .c_dtype = c->types.out,
        .c_stride = s.n + PAD,
        .bias = c->biased ? bias : NULL,
        .add = c->add,
        .packing = c->packing,
        .band = c->band,
        .diagonal = c->diagonal};
    multiply(&p);
    compare(c, a, b, old, bias, result);
    free(a), free(b), free(old), free(bias), free(stored_a), free(stored_b), free(result);
}

static void products_equal_the_triple_loop(void **state) {
    (void)state;
    static const lsi_packing packings[] = {LSI_PACK_NEVER, LSI_PACK_ALWAYS};
    for (int at = 0; at < N_SIZES * N_TYPES * 2 * 16; at++) {
        int rest = at / 16;
        one_case c = {
            .a_transposed = at & 1, .b_transposed = at & 2, .add = at & 4, .biased = at & 8};
        c.packing = packings[rest % 2];
        c.types = all_types[rest / 2 % N_TYPES];
        c.size = sizes[rest / 2 / N_TYPES];
        check(&c);
    }
}

/* Sizes that are cut: in pieces of k, groups of columns and chunks of rows (product_amx.c), with
 * sums that wait for the next piece beside a narrow result; in columns where A is transposed, and
 * in rows where there is a bias (product.c); in blocks of k where B is turned (product_turn.c). */
static void products_in_pieces_equal_the_triple_loop(void **state) {
    (void)state;
    static const size large[] = {{33, 545, 1090},  {2085, 35, 33}, {40, 33, 3100},   {64, 64, 2048},
                                 {32, 1024, 1030}, {17, 1700, 40}, {260, 1025, 1100}};
    enum { N_LARGE = sizeof large / sizeof large[0] };
    for (int at = 0; at < N_LARGE * N_TYPES * 8; at++) {
        one_case c = {.a_transposed = at & 1,
                      .b_transposed = at & 2,
                      .add = at & 4,
                      .biased = at & 4,
                      .types = all_types[at / 8 % N_TYPES],
                      .size = large[at / 8 / N_TYPES]};
        check(&c);
        c.biased = !c.biased;
        check(&c);
    }
}

/* A diagonal that begins at a block of queries, as attention has it, and others. */
static void bands_change_nothing_that_counts(void **state) {
    (void)state;
    static const int64_t diagonals[] = {0, 1, 7, 36, 200};
    for (int at = 0; at < N_SIZES * N_TYPES * 5 * 3 * 8; at++) {
        int rest = at / 8;
        one_case c = {.a_transposed = at & 1, .b_transposed = at & 2, .add = at & 4};
        c.packing = LSI_PACK_NEVER;
        c.band = (lsi_band)(1 + rest % 3);
        c.diagonal = diagonals[rest / 3 % 5];
        c.types = all_types[rest / 15 % N_TYPES];
        c.size = sizes[rest / 15 / N_TYPES];
        check(&c);
    }
}

/* Whether the product needs this pair. */
static bool is_needed(lsi_band band, int64_t diagonal, int64_t i, int64_t j, int64_t p) {
    switch (band) {
    case LSI_BAND_NONE: return true;
    case LSI_BAND_C_LOWER: return j <= i + diagonal;
    case LSI_BAND_A_LOWER: return p <= i + diagonal;
    case LSI_BAND_A_UPPER: return p >= i - diagonal;
    }
    return false;
}

static void operations_are_those_that_the_band_leaves(void **state) {
    (void)state;
    static const int64_t diagonals[] = {0, 1, 7, 36, 200};
    for (int s = 0; s < N_SIZES; s++)
        for (int at = 0; at < 4 * 5; at++) {
            const lsi_product product = {.m = sizes[s].m,
                                         .n = sizes[s].n,
                                         .k = sizes[s].k,
                                         .band = (lsi_band)(at % 4),
                                         .diagonal = diagonals[at / 4]};
            int64_t n_needed = 0;
            for (int64_t i = 0; i < product.m; i++)
                for (int64_t j = 0; j < product.n; j++)
                    for (int64_t p = 0; p < product.k; p++)
                        n_needed += is_needed(product.band, product.diagonal, i, j, p);
            assert_int_equal(lsi_product_flops(&product), 2 * n_needed);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_are_those_that_the_band_leaves),
        cmocka_unit_test(products_equal_the_triple_loop),
        cmocka_unit_test(products_in_pieces_equal_the_triple_loop),
        cmocka_unit_test(bands_change_nothing_that_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
