/* What the buffers of a benchmark hold, and how many elements of an output are wrong.
 *
 * Values are whole numbers so small that every operation on up to 64 of them is exact in every
 * dtype: a reduction in any order has one right result, and checks compare bits. They come from
 * tiles of TILE elements, one per rank and one for the reduction of all; a buffer is a tile over
 * and over, begun at a different place for each call, so that the output of the call before is
 * wrong for this one. TILE is a prime: no power of two, no slice and no piece is a multiple of it,
 * so data that end up in the wrong place do not look right.
 *
 * Sum, avg and premul-sum: 0 … top, top as large (at most 3) as the sum over ranks fits an int8.
 * Prod: 1 or 2, at most three ranks have 2 at the same place. */
#include "base/dtype.h"
#include "base/mem.h"
#include "cli/bench.h"

enum { TILE = 1021, LARGEST_ELEM_BYTES = 8, INT8_LARGEST = 127 };

/* ---- one element ---- */

typedef union element {
    float f32;
    double f64;
    uint16_t half;
    int8_t i8;
    uint8_t u8;
    int32_t i32;
    int64_t i64;
} element;

static element element_of(ls_dtype dtype, double value) {
    element e = {.i64 = 0};
    switch (dtype) {
    case LS_DTYPE_F32: e.f32 = (float)value; break;
    case LS_DTYPE_F64: e.f64 = value; break;
    case LS_DTYPE_BF16: e.half = lsi_f32_to_bf16((float)value); break;
    case LS_DTYPE_F16: e.half = lsi_f32_to_f16((float)value); break;
    case LS_DTYPE_I8: e.i8 = (int8_t)value; break;
    case LS_DTYPE_I32: e.i32 = (int32_t)value; break;
    case LS_DTYPE_I64: e.i64 = (int64_t)value; break;
    case LS_DTYPE_U8: e.u8 = (uint8_t)value; break;
    }
    return e;
}

static double value_of(ls_dtype dtype, const void *at) {
    element e = {.i64 = 0};
    memcpy(&e, at, ls_dtype_bytes(dtype));
    switch (dtype) {
    case LS_DTYPE_F32: return (double)e.f32;
    case LS_DTYPE_F64: return e.f64;
    case LS_DTYPE_BF16: return (double)lsi_bf16_to_f32(e.half);
    case LS_DTYPE_F16: return (double)lsi_f16_to_f32(e.half);
    case LS_DTYPE_I8: return e.i8;
    case LS_DTYPE_I32: return e.i32;
    case LS_DTYPE_I64: return (double)e.i64;
    case LS_DTYPE_U8: return e.u8;
    }
    return 0;
}

/* ---- tiles ---- */

static double weight_of_all(ls_op op, int n_ranks) {
    double sum = 0;
    for (int r = 0; r < n_ranks; r++) sum += bench_scale(op, r);
    return sum;
}

static int input_at(const bench_values *v, int rank, int i) {
    if (v->op == LS_OP_PROD) return 1 + ((rank + i) % (v->n_ranks > 6 ? v->n_ranks : 6) < 3);
    int top = (int)(INT8_LARGEST / weight_of_all(v->op, v->n_ranks));
    return (i * 5 + rank * 3 + i / 8) % ((top < 3 ? top : 3) + 1);
}

static double combine(ls_op op, double so_far, double next) {
    switch (op) {
    case LS_OP_MIN: return next < so_far ? next : so_far;
    case LS_OP_MAX: return next > so_far ? next : so_far;
    case LS_OP_PROD: return so_far * next;
    case LS_OP_SUM:
    case LS_OP_AVG:
    case LS_OP_PREMUL_SUM: break;
    }
    return so_far + next;
}

static double combined_at(const bench_values *v, int i) {
    double all = bench_scale(v->op, 0) * input_at(v, 0, i);
    for (int r = 1; r < v->n_ranks; r++)
        all = combine(v->op, all, bench_scale(v->op, r) * input_at(v, r, i));
    return v->op == LS_OP_AVG ? all / v->n_ranks : all;
}

/* A tile lies there twice, so that TILE elements from any place in it are in one piece. */
static unsigned char *tile_at(const bench_values *v, int tile, int64_t at) {
    size_t bytes = ls_dtype_bytes(v->dtype);
    return v->tiles + ((size_t)tile * 2 * TILE + (size_t)(at % TILE)) * bytes;
}

ls_status bench_values_init(bench_values *values, int n_ranks) {
    *values = (bench_values){.n_ranks = n_ranks, .dtype = LS_DTYPE_F32, .op = LS_OP_SUM};
    values->tiles = lsi_calloc(LSI_MEM_OTHER, (size_t)(n_ranks + 1) * 2 * TILE, LARGEST_ELEM_BYTES);
    return lsi_check_alloc(values->tiles);
}

void bench_values_fini(bench_values *values) {
    lsi_free(values->tiles);
}

void bench_values_set(bench_values *v, ls_dtype dtype, ls_op op) {
    v->dtype = dtype;
    v->op = op;
    size_t bytes = ls_dtype_bytes(dtype);
    for (int tile = 0; tile <= v->n_ranks; tile++) {
        unsigned char *at = tile_at(v, tile, 0);
        for (int i = 0; i < 2 * TILE; i++, at += bytes) {
            int k = i % TILE;
            element e =
                element_of(dtype, tile < v->n_ranks ? input_at(v, tile, k) : combined_at(v, k));
            memcpy(at, &e, bytes);
        }
    }
}

/* ---- buffers ---- */

void bench_fill(const bench_values *v, int tile, int64_t at, void *to, int64_t count) {
    size_t bytes = ls_dtype_bytes(v->dtype);
    const unsigned char *from = tile_at(v, tile, at);
    unsigned char *next = to;
    for (; count > TILE; count -= TILE, next += TILE * bytes) memcpy(next, from, TILE * bytes);
    memcpy(next, from, (size_t)count * bytes);
}

/* An average over a number of ranks that is no power of two is not a whole number, and 1 / n is not
 * exact either: one unit in the last place is right. */
static bool is_near(const bench_values *v, const void *found, const void *expected) {
    double units_per_one;
    switch (v->dtype) {
    case LS_DTYPE_F32: units_per_one = 0x1p23; break;
    case LS_DTYPE_F64: units_per_one = 0x1p52; break;
    case LS_DTYPE_BF16: units_per_one = 0x1p7; break;
    case LS_DTYPE_F16: units_per_one = 0x1p10; break;
    default: return false;
    }
    double x = value_of(v->dtype, found), y = value_of(v->dtype, expected);
    double gap = x > y ? x - y : y - x;
    return gap * units_per_one <= y;
}

static int64_t count_wrong_in_tile(const bench_values *v, const unsigned char *found,
                                   const unsigned char *expected, int64_t count) {
    size_t bytes = ls_dtype_bytes(v->dtype);
    if (memcmp(found, expected, (size_t)count * bytes) == 0) return 0;
    bool is_inexact = v->op == LS_OP_AVG && (v->n_ranks & (v->n_ranks - 1)) != 0;
    int64_t n_wrong = 0;
    for (; count > 0; count--, found += bytes, expected += bytes)
        n_wrong +=
            memcmp(found, expected, bytes) != 0 && !(is_inexact && is_near(v, found, expected));
    return n_wrong;
}

int64_t bench_count_wrong(const bench_values *v, int tile, int64_t at, const void *found,
                          int64_t count) {
    size_t bytes = ls_dtype_bytes(v->dtype);
    const unsigned char *expected = tile_at(v, tile, at), *next = found;
    int64_t n_wrong = 0;
    for (; count > TILE; count -= TILE, next += TILE * bytes)
        n_wrong += count_wrong_in_tile(v, next, expected, TILE);
    return n_wrong + count_wrong_in_tile(v, next, expected, count);
}
