/* Reduction kernels without processes: every dtype and operation, numbers of ranks, counts and
 * placements of buffers, against values made one by one.
 *
 * The reference is written the long way: no blocks, no array of nodes, one element at a time by
 * recursion over ranges of micro-batches. Only the conversions of BF16 and F16 are shared with the
 * kernels (tests/base/test_dtype.c looks after those). */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/dtype.h"
#include "comm/reduce.h"

enum { MOST_COUNT = 4097, SPARE_ELEMS = 64, MOST_BYTES = 8, SPARE_BYTES = 16 * MOST_BYTES };

static const ls_dtype dtypes[] = {
#define DTYPE(name, number, bytes, text) LS_DTYPE_##name,
    LS_DTYPE_TABLE(DTYPE)
#undef DTYPE
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* SUM comes twice, without and with a scale. */
typedef struct op_row {
    ls_op op;
    int is_scaled;
} op_row;
static const op_row ops[] = {{LS_OP_SUM, 0}, {LS_OP_SUM, 1},  {LS_OP_AVG, 0},       {LS_OP_MIN, 0},
                             {LS_OP_MAX, 0}, {LS_OP_PROD, 0}, {LS_OP_PREMUL_SUM, 1}};
enum { N_OPS = sizeof ops / sizeof ops[0] };

/* ---- one number of any type ---- */

typedef enum family { FLOATS, DOUBLES, INTEGERS } family;

typedef struct number {
    float f;
    double d;
    int64_t i;
} number;

static family family_of(ls_dtype dtype) {
    switch (dtype) {
    case LS_DTYPE_F32:
    case LS_DTYPE_BF16:
    case LS_DTYPE_F16: return FLOATS;
    case LS_DTYPE_F64: return DOUBLES;
    case LS_DTYPE_I8:
    case LS_DTYPE_U8:
    case LS_DTYPE_I32:
    case LS_DTYPE_I64: break;
    }
    return INTEGERS;
}

#define READ(type, from) (*(const type *)(from))

static number number_read(ls_dtype dtype, const void *from) {
    switch (dtype) {
    case LS_DTYPE_F32: return (number){.f = READ(float, from)};
    case LS_DTYPE_F64: return (number){.d = READ(double, from)};
    case LS_DTYPE_BF16: return (number){.f = lsi_bf16_to_f32(READ(uint16_t, from))};
    case LS_DTYPE_F16: return (number){.f = lsi_f16_to_f32(READ(uint16_t, from))};
    case LS_DTYPE_I8: return (number){.i = READ(int8_t, from)};
    case LS_DTYPE_U8: return (number){.i = READ(uint8_t, from)};
    case LS_DTYPE_I32: return (number){.i = READ(int32_t, from)};
    case LS_DTYPE_I64: return (number){.i = READ(int64_t, from)};
    }
    return (number){0};
}

/* Integers keep their low bits. */
static void number_write(ls_dtype dtype, number value, void *to) {
    uint16_t half = dtype == LS_DTYPE_BF16 ? lsi_f32_to_bf16(value.f) : lsi_f32_to_f16(value.f);
    switch (dtype) {
    case LS_DTYPE_F32: memcpy(to, &value.f, 4); break;
    case LS_DTYPE_F64: memcpy(to, &value.d, 8); break;
    case LS_DTYPE_BF16:
    case LS_DTYPE_F16: memcpy(to, &half, 2); break;
    case LS_DTYPE_I8:
    case LS_DTYPE_U8:
    case LS_DTYPE_I32:
    case LS_DTYPE_I64: memcpy(to, &value.i, ls_dtype_bytes(dtype)); break; /* little-endian */
    }
}

static int is_nan(ls_dtype dtype, const void *value) {
    number n = number_read(dtype, value);
    return isnan(n.f) || isnan(n.d);
}

/* The same bits; one NaN is as good as another. */
static void assert_same(ls_dtype dtype, const void *found, const void *expected, int64_t count,
                        const char *what) {
    const size_t bytes = ls_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; i++) {
        const char *f = (const char *)found + (size_t)i * bytes;
        const char *e = (const char *)expected + (size_t)i * bytes;
        if (memcmp(f, e, bytes) == 0 || (is_nan(dtype, f) && is_nan(dtype, e))) continue;
        number a = number_read(dtype, f), b = number_read(dtype, e);
        fail_msg("%s: element %lld is %.9g %.17g %lld, expected %.9g %.17g %lld", what,
                 (long long)i, (double)a.f, a.d, (long long)a.i, (double)b.f, b.d, (long long)b.i);
    }
}

/* ---- the reference ---- */

static float float_extreme(float a, float b, int wants_least) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == 0 && b == 0) return wants_least ? (signbit(a) ? a : b) : (signbit(a) ? b : a);
    return wants_least ? fminf(a, b) : fmaxf(a, b);
}

static double double_extreme(double a, double b, int wants_least) {
    if (isnan(a) || isnan(b)) return NAN;
    if (a == 0 && b == 0) return wants_least ? (signbit(a) ? a : b) : (signbit(a) ? b : a);
    return wants_least ? fmin(a, b) : fmax(a, b);
}

static int64_t wrapped(ls_dtype dtype, uint64_t value) {
    int64_t cell = 0;
    number_write(dtype, (number){.i = (int64_t)value}, &cell);
    return number_read(dtype, &cell).i;
}

static number combined(ls_dtype dtype, ls_op op, number a, number b) {
    const ls_dtype acc = family_of(dtype) == INTEGERS && op == LS_OP_AVG ? LS_DTYPE_I64 : dtype;
    const uint64_t x = (uint64_t)a.i, y = (uint64_t)b.i;
    switch (op) {
    case LS_OP_SUM:
    case LS_OP_AVG:
    case LS_OP_PREMUL_SUM: return (number){a.f + b.f, a.d + b.d, wrapped(acc, x + y)};
    case LS_OP_PROD: return (number){a.f * b.f, a.d * b.d, wrapped(acc, x * y)};
    case LS_OP_MIN:
    case LS_OP_MAX: break;
    }
    const int least = op == LS_OP_MIN;
    return (number){float_extreme(a.f, b.f, least), double_extreme(a.d, b.d, least),
                    (a.i < b.i) == least ? a.i : b.i};
}

typedef struct tree {
    ls_dtype dtype;
    ls_op op;
    int n_ranks;
    const int64_t *weight;
    const number *leaf; /* one per rank */
} tree;

/* The tree over micro-batches [first, first + n). */
static number tree_value(const tree *t, int64_t first, int64_t n) {
    int64_t begin = 0;
    for (int r = 0; r < t->n_ranks; begin += t->weight[r++])
        if (begin == first && t->weight[r] == n) return t->leaf[r];
    int64_t half = 1;
    while (half * 2 < n) half *= 2;
    number left = tree_value(t, first, half);
    return combined(t->dtype, t->op, left, tree_value(t, first + half, n - half));
}

/* Element i of the result in `expected`, from the ranks' elements. */
static void reference(const lsi_reduction *reduction, const int64_t *weight,
                      const void *const *input, int64_t i, void *expected) {
    const ls_dtype dtype = reduction->dtype;
    const size_t bytes = ls_dtype_bytes(dtype);
    number leaf[LSI_MAX_RANKS], result;
    int64_t n_leaves = 0;
    const int n = reduction->order->n_ranks;
    for (int r = 0; r < n; r++) {
        leaf[r] = number_read(dtype, (const char *)input[r] + (size_t)i * bytes);
        n_leaves += weight[r];
        if (reduction->op != LS_OP_PREMUL_SUM) continue;
        const double factor = reduction->premul[r];
        leaf[r].f *= (float)factor;
        leaf[r].d *= factor;
        if (family_of(dtype) == INTEGERS)
            leaf[r].i = wrapped(dtype, (uint64_t)leaf[r].i * (uint64_t)(int64_t)factor);
    }
    tree t = {dtype, reduction->op, n, weight, leaf};
    result = tree_value(&t, 0, n_leaves);
    if (reduction->op == LS_OP_AVG) {
        result = (number){result.f * (1.0f / (float)n), result.d * (1.0 / n), result.i / n};
    } else if (reduction->op == LS_OP_SUM) {
        result.f *= (float)reduction->scale;
        result.d *= reduction->scale;
        if (family_of(dtype) == INTEGERS)
            result.i = wrapped(dtype, (uint64_t)result.i * (uint64_t)(int64_t)reduction->scale);
    }
    number_write(dtype, result, (char *)expected + (size_t)i * bytes);
}

/* ---- inputs ---- */

static uint64_t bits_of(uint64_t seed) { /* splitmix64 */
    uint64_t z = (seed + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Integers and numbers around 1 with full mantissas, so that sums round, and every 13th element or
 * so (of each rank at other places) one of the numbers that are easy to get wrong. Integers take
 * all values, so that sums and products wrap. */
static number rough(int rank, int64_t i) {
    static const double special[] = {0.0,       -0.0,     1.0,  -1.0,  NAN,      INFINITY,
                                     -INFINITY, 0x1p-130, 3e38, 65504, -0x1p-24, 0x1p-1030};
    const uint64_t bits = bits_of((uint64_t)i * LSI_MAX_RANKS + (uint64_t)rank);
    double d = ldexp((double)(int64_t)bits, -63 + (int)(bits % 7));
    if (bits / 7 % 13 == 0) d = special[bits / 128 % (sizeof special / sizeof special[0])];
    return (number){(float)d, d, (int64_t)(bits % 5 ? bits : bits % 3)};
}

/* ---- the table ---- */

typedef enum placement {
    IN_PLACE,      /* every output is its input */
    ELSEWHERE,     /* n outputs, none an input */
    ONE_OUTPUT,    /* as reduce-scatter */
    ONE_OF_INPUTS, /* one output, the last input */
    SHIFTED,       /* in place, buffers aligned to elements only, each in another way */
    MIXED,         /* three outputs: the first input, another buffer twice */
    N_PLACEMENTS
} placement;

static const char *const placement_name[N_PLACEMENTS] = {
    "in place", "elsewhere", "one output", "one of the inputs", "shifted", "mixed"};

typedef struct fixture {
    lsi_order order;
    int64_t weight[LSI_MAX_RANKS];
    double premul[LSI_MAX_RANKS];
    lsi_reduction reduction;
    const void *source[LSI_MAX_RANKS];
} fixture;

typedef struct buffer {
    _Alignas(64) char bytes[(MOST_COUNT + SPARE_ELEMS) * MOST_BYTES];
} buffer;

static buffer sources[LSI_MAX_RANKS], inputs[LSI_MAX_RANKS], outputs[LSI_MAX_RANKS], expected;

/* weight = NULL: the default order. */
static void fixture_init(fixture *f, ls_dtype dtype, op_row row, int n_ranks,
                         const int64_t *weight) {
    const family kind = family_of(dtype);
    for (int r = 0; r < n_ranks; r++) {
        f->weight[r] = weight ? weight[r] : 1;
        f->premul[r] = kind == INTEGERS ? (dtype == LS_DTYPE_U8 ? r + 1 : r - 2) : 0.3 * (r + 1);
        f->source[r] = sources[r].bytes;
        for (int64_t i = 0; i < MOST_COUNT; i++)
            number_write(dtype, rough(r, i), sources[r].bytes + (size_t)i * ls_dtype_bytes(dtype));
    }
    assert_ok(lsi_order_from_weights(&f->order, n_ranks, f->weight));
    f->reduction = (lsi_reduction){&f->order, dtype, row.op, 1, f->premul};
    if (row.is_scaled && row.op == LS_OP_SUM)
        f->reduction.scale = kind == INTEGERS ? (dtype == LS_DTYPE_U8 ? 3 : -3) : 0.3;
    assert_ok(lsi_reduction_check("test", dtype, row.op, f->reduction.scale));
}

static void make_expected(const fixture *f) {
    for (int64_t i = 0; i < MOST_COUNT; i++)
        reference(&f->reduction, f->weight, f->source, i, expected.bytes);
}

/* Where buffers begin, in elements. */
static size_t shift_of(placement place, int rank) {
    return place == SHIFTED ? (size_t)(rank * 5 % 16 + 1) : 0;
}

static int place_outputs(placement place, int n, void *const *input, void **output) {
    for (int r = 0; r < n; r++) output[r] = outputs[r].bytes;
    switch (place) {
    case IN_PLACE:
    case SHIFTED: memcpy(output, input, (size_t)n * sizeof *output); return n;
    case ELSEWHERE: return n;
    case ONE_OUTPUT: return 1;
    case ONE_OF_INPUTS: output[0] = input[n - 1]; return 1;
    case MIXED:
        output[2] = output[1] = output[0];
        output[0] = input[0];
        return 3;
    case N_PLACEMENTS: break;
    }
    return 0;
}

static void check(const fixture *f, placement place, int64_t count) {
    const ls_dtype dtype = f->reduction.dtype;
    const size_t bytes = ls_dtype_bytes(dtype), n_bytes = (size_t)count * bytes;
    const int n = f->order.n_ranks;
    void *input[LSI_MAX_RANKS], *output[LSI_MAX_RANKS];
    char what[200], untouched[SPARE_BYTES];
    memset(untouched, 0x5A, sizeof untouched);
    snprintf(what, sizeof what, "%s, operation %d, %d ranks, scale %g, count %lld, %s",
             ls_dtype_name(dtype), (int)f->reduction.op, n, f->reduction.scale, (long long)count,
             placement_name[place]);
    for (int r = 0; r < n; r++) {
        const size_t begin = shift_of(place, r) * bytes;
        input[r] = inputs[r].bytes + begin;
        memset(inputs[r].bytes, 0x5A, begin + n_bytes + sizeof untouched);
        memset(outputs[r].bytes, 0x5A, begin + n_bytes + sizeof untouched);
        memcpy(input[r], f->source[r], n_bytes);
    }
    const int n_outputs = place_outputs(place, n, input, output);
    lsi_reduce(&f->reduction, (const void *const *)input, output, n_outputs, count);
    for (int j = 0; j < n_outputs; j++) {
        assert_same(dtype, output[j], expected.bytes, count, what);
        if (memcmp((char *)output[j] + n_bytes, untouched, sizeof untouched) != 0)
            fail_msg("%s: output %d written behind its end", what, j);
    }
    for (int r = 0; r < n; r++) {
        const size_t begin = shift_of(place, r) * bytes;
        if (memcmp(inputs[r].bytes, untouched, begin) != 0)
            fail_msg("%s: input %d written before its begin", what, r);
        int is_output = 0;
        for (int j = 0; j < n_outputs; j++) is_output |= output[j] == input[r];
        if (!is_output && memcmp(input[r], f->source[r], n_bytes) != 0)
            fail_msg("%s: input %d, which is no output, was written", what, r);
    }
}

static void check_all_counts(const fixture *f) {
    static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 63, 191, 1000, 1023, 1025, MOST_COUNT};
    make_expected(f);
    for (int place = 0; place < N_PLACEMENTS; place++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            check(f, (placement)place, counts[c]);
}

static void every_type_and_operation_equals_reference(void **state) {
    (void)state;
    static const int n_ranks[] = {1, 2, 3, 4, 5, 7, 8};
    for (int d = 0; d < N_DTYPES; d++)
        for (int o = 0; o < N_OPS; o++)
            for (size_t n = 0; n < sizeof n_ranks / sizeof n_ranks[0]; n++) {
                fixture f;
                fixture_init(&f, dtypes[d], ops[o], n_ranks[n], NULL);
                check_all_counts(&f);
            }
}

/* Among them trees of 2, 4 and 8 ranks that are not the default ones, which have their own loop. */
static void other_orders_equal_reference(void **state) {
    (void)state;
    static const struct {
        int n_ranks;
        int64_t weight[8];
    } rows[] = {{2, {4, 2}},
                {3, {2, 1, 1}},
                {3, {1, 1, 2}},
                {4, {2, 1, 1, 4}},
                {4, {4, 2, 1, 1}},
                {4, {1, 1, 2, 4}},
                {5, {2, 2, 4, 2, 2}},
                {8, {1, 1, 2, 4, 1, 1, 2, 4}},
                {8, {64, 32, 16, 8, 4, 2, 1, 1}}};
    for (int d = 0; d < N_DTYPES; d++)
        for (int o = 0; o < N_OPS; o++)
            for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                fixture f;
                fixture_init(&f, dtypes[d], ops[o], rows[i].n_ranks, rows[i].weight);
                make_expected(&f);
                check(&f, IN_PLACE, 1025);
                check(&f, ONE_OUTPUT, 17);
            }
}

/* The tree that needs the most scratch: everything hangs on the right. */
static void most_ranks_and_deepest_tree_equal_reference(void **state) {
    (void)state;
    enum { DEEP = 50 };
    int64_t weight[DEEP];
    for (int r = 0; r < DEEP; r++) weight[r] = (int64_t)1 << (r < DEEP - 1 ? DEEP - 2 - r : 0);
    for (int d = 0; d < N_DTYPES; d++) {
        fixture f;
        fixture_init(&f, dtypes[d], ops[0], DEEP, weight);
        assert_int_equal(f.order.depth, DEEP - 1);
        make_expected(&f);
        check(&f, IN_PLACE, 1025);
        fixture_init(&f, dtypes[d], ops[2], LSI_MAX_RANKS, NULL);
        make_expected(&f);
        check(&f, IN_PLACE, 1025);
    }
}

/* Ranges from which outputs are stored past the caches, with ends that are no multiples. */
static void large_range_equals_plain_sum(void **state) {
    (void)state;
    enum { COUNT = (3 << 20) + 21 };
    const size_t bytes = (COUNT + 16) * sizeof(float);
    float *x = aligned_alloc(64, bytes / 64 * 64 + 64),
          *y = aligned_alloc(64, bytes / 64 * 64 + 64);
    float *to = aligned_alloc(64, bytes / 64 * 64 + 64);
    assert_true(x && y && to);
    for (int64_t i = 0; i < COUNT; i++) {
        x[i] = 1.0f / (float)(i + 1);
        y[i] = 1.0f / (float)(i % 1000 + 3);
    }
    lsi_order order;
    lsi_order_default(&order, 2);
    lsi_reduction reduction = {&order, LS_DTYPE_F32, LS_OP_SUM, 0.75, NULL};
    for (int shift = 0; shift < 2; shift++) { /* aligned to cache lines or not */
        void *output = to + shift;
        to[COUNT + shift] = 7;
        lsi_reduce(&reduction, (const void *const[]){x, y}, &output, 1, COUNT);
        for (int64_t i = 0; i < COUNT; i++)
            if (to[i + shift] != (x[i] + y[i]) * 0.75f) fail_msg("element %lld", (long long)i);
        assert_true(to[COUNT + shift] == 7);
    }
    free(x);
    free(y);
    free(to);
}

/* Buffers that share the low bits of their addresses are summed in another way. */
static void distance_of_buffers_does_not_matter(void **state) {
    (void)state;
    const size_t distance = (size_t)1 << 28, bytes = 3 * distance + sizeof(buffer);
    char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(map != MAP_FAILED);
    for (int n = 2; n <= 4; n += 2) {
        fixture f;
        fixture_init(&f, LS_DTYPE_F32, ops[1], n, NULL);
        make_expected(&f);
        void *far[4];
        for (int r = 0; r < n; r++)
            far[r] = memcpy(map + (size_t)r * distance, f.source[r], MOST_COUNT * sizeof(float));
        lsi_reduce(&f.reduction, (const void *const *)far, far, n, MOST_COUNT);
        for (int r = 0; r < n; r++)
            assert_same(LS_DTYPE_F32, far[r], expected.bytes, MOST_COUNT, "far buffers");
    }
    munmap(map, bytes);
}

static void no_outputs_and_no_elements_do_nothing(void **state) {
    (void)state;
    fixture f;
    fixture_init(&f, LS_DTYPE_F32, ops[0], 2, NULL);
    lsi_reduce(&f.reduction, f.source, NULL, 0, MOST_COUNT);
    lsi_reduce(&f.reduction, (const void *const[]){NULL, NULL}, (void *const[]){NULL}, 1, 0);
}

/* ---- single values, in numbers ---- */

static void values_are_exact(void **state) {
    (void)state;
    const double inf = INFINITY;
    static const ls_op SUM = LS_OP_SUM, AVG = LS_OP_AVG, MIN = LS_OP_MIN, MAX = LS_OP_MAX,
                       PROD = LS_OP_PROD;
    const struct {
        ls_dtype dtype;
        ls_op op;
        double scale;
        int n;
        double input[4], result;
    } rows[] = {
        /* 64.75 in float, between 64.5 and 65: to even */
        {LS_DTYPE_BF16, AVG, 1, 4, {256, 1, 1, 1}, 65},
        {LS_DTYPE_F32, AVG, 1, 4, {256, 1, 1, 1}, 64.75},
        {LS_DTYPE_BF16, SUM, 1, 4, {256, 1, 1, 1}, 260}, /* 259, between 258 and 260 */
        {LS_DTYPE_BF16, SUM, 0.25, 4, {256, 1, 1, 1}, 65},
        {LS_DTYPE_BF16, SUM, 1, 3, {256, 1, -256}, 1},    /* 257 is no BF16 */
        {LS_DTYPE_F16, SUM, 1, 4, {2048, 1, 1, 1}, 2052}, /* 2051, between 2050 and 2052 */
        {LS_DTYPE_F16, AVG, 1, 2, {65504, 65504}, 65504}, /* the sum is no F16 */
        {LS_DTYPE_F16, SUM, 1, 2, {65504, 65504}, inf},
        {LS_DTYPE_F16, PROD, 1, 3, {1024, 1024, 0x1p-10}, 1024},
        {LS_DTYPE_F32, SUM, 1, 4, {0x1p24, 1, 1, 1}, 0x1p24 + 2}, /* (2^24 + 1) + 2 */
        {LS_DTYPE_F32, SUM, 1, 3, {0x1p24, 1, 1}, 0x1p24},
        {LS_DTYPE_F64, SUM, 1, 4, {0x1p53, 1, 1, 1}, 0x1p53 + 2},
        {LS_DTYPE_F32, SUM, 1, 2, {inf, 1}, inf},
        {LS_DTYPE_F32, SUM, 1, 2, {inf, -inf}, NAN},
        {LS_DTYPE_F32, SUM, 1, 2, {-0.0, -0.0}, -0.0},
        {LS_DTYPE_F32, SUM, 1, 2, {-0.0, 0.0}, 0.0},
        {LS_DTYPE_F32, SUM, -1, 1, {0.0}, -0.0},
        {LS_DTYPE_F32, SUM, inf, 2, {0, 0}, NAN},
        {LS_DTYPE_F32, MIN, 1, 2, {0.0, -0.0}, -0.0},
        {LS_DTYPE_F32, MAX, 1, 2, {-0.0, 0.0}, 0.0},
        {LS_DTYPE_F64, MIN, 1, 2, {0.0, -0.0}, -0.0},
        {LS_DTYPE_F64, MAX, 1, 2, {0.0, -0.0}, 0.0},
        {LS_DTYPE_F32, MIN, 1, 3, {1, NAN, -inf}, NAN},
        {LS_DTYPE_F32, MAX, 1, 3, {NAN, 1, inf}, NAN},
        {LS_DTYPE_F64, MAX, 1, 2, {1, NAN}, NAN},
        {LS_DTYPE_BF16, MIN, 1, 2, {1, NAN}, NAN},
        {LS_DTYPE_F16, MAX, 1, 2, {NAN, 1}, NAN},
        {LS_DTYPE_F32, MIN, 1, 2, {-inf, 1}, -inf},
        {LS_DTYPE_I8, SUM, 1, 2, {100, 100}, -56},
        {LS_DTYPE_I8, SUM, -128, 1, {-1}, -128},
        {LS_DTYPE_I8, AVG, 1, 2, {127, 127}, 127},
        {LS_DTYPE_I8, AVG, 1, 2, {-3, -4}, -3}, /* towards zero */
        {LS_DTYPE_I8, AVG, 1, 2, {3, 4}, 3},
        {LS_DTYPE_I8, PROD, 1, 2, {-128, -1}, -128},
        {LS_DTYPE_I8, MIN, 1, 3, {5, -128, 127}, -128},
        {LS_DTYPE_U8, SUM, 1, 2, {200, 100}, 44},
        {LS_DTYPE_U8, AVG, 1, 3, {255, 255, 254}, 254},
        {LS_DTYPE_U8, MAX, 1, 2, {128, 127}, 128},
        {LS_DTYPE_U8, PROD, 1, 2, {16, 17}, 16},
        {LS_DTYPE_I32, SUM, 1, 2, {0x1p31 - 1, 1}, -0x1p31},
        {LS_DTYPE_I32, SUM, 2, 1, {0x1p30}, -0x1p31},
        {LS_DTYPE_I32, AVG, 1, 4, {-0x1p31, -0x1p31, -0x1p31, -0x1p31}, -0x1p31},
        {LS_DTYPE_I32, PROD, 1, 2, {65537, 65536}, 65536},
        {LS_DTYPE_I64, SUM, 1, 2, {0x1p62, 0x1p62}, -0x1p63},
        {LS_DTYPE_I64, AVG, 1, 2, {0x1p62, 0x1p62}, -0x1p62}, /* the sum wraps */
        {LS_DTYPE_I64, AVG, 1, 3, {-5, 0, 0}, -1},
        {LS_DTYPE_I64, PROD, 1, 2, {0x1p32 + 1, 0x1p32}, 0x1p32},
        {LS_DTYPE_I64, SUM, -0x1p63, 1, {3}, -0x1p63},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ls_dtype dtype = rows[i].dtype;
        int64_t cell[4], result = 0, wanted = 0;
        const void *input[4];
        void *output = &result;
        const int is_integer = family_of(dtype) == INTEGERS;
        for (int r = 0; r < rows[i].n; r++) {
            const double v = rows[i].input[r];
            number_write(dtype, (number){(float)v, v, is_integer ? (int64_t)v : 0}, &cell[r]);
            input[r] = &cell[r];
        }
        lsi_order order;
        lsi_order_default(&order, rows[i].n);
        lsi_reduction reduction = {&order, dtype, rows[i].op, rows[i].scale, NULL};
        assert_ok(lsi_reduction_check("test", dtype, rows[i].op, rows[i].scale));
        lsi_reduce(&reduction, input, &output, 1, 1);
        const double v = rows[i].result;
        number_write(dtype, (number){(float)v, v, is_integer ? (int64_t)v : 0}, &wanted);
        char what[40];
        snprintf(what, sizeof what, "row %zu", i);
        assert_same(dtype, &result, &wanted, 1, what);
    }
}

static void premultiplied_sum_takes_each_ranks_factor(void **state) {
    (void)state;
    lsi_order order;
    lsi_order_default(&order, 3);
    const double factor[] = {2, -1, 0.5}, whole[] = {2, -1, 100};
    const float f[] = {3, 4, 8};
    const int8_t i[] = {3, 4, 8};
    float sum = 0;
    int8_t wrapping = 0;
    lsi_reduction reduction = {&order, LS_DTYPE_F32, LS_OP_PREMUL_SUM, 1, factor};
    lsi_reduce(&reduction, (const void *const[]){f, f + 1, f + 2}, (void *const[]){&sum}, 1, 1);
    assert_true(sum == 6);
    reduction = (lsi_reduction){&order, LS_DTYPE_I8, LS_OP_PREMUL_SUM, 1, whole};
    lsi_reduce(&reduction, (const void *const[]){i, i + 1, i + 2}, (void *const[]){&wrapping}, 1,
               1);
    assert_int_equal(wrapping, 34); /* 802 - 3 * 256 */
}

static void reciprocals_are_rounded_once(void **state) {
    (void)state;
    for (int n = 1; n <= LSI_MAX_RANKS; n++) assert_true((float)(1.0 / n) == 1.0f / (float)n);
}

/* ---- what does not go together ---- */

static void bad_combinations_are_refused(void **state) {
    (void)state;
    const struct {
        int dtype, op;
        double scale;
        ls_status status;
        const char *text;
    } rows[] = {
        {0, LS_OP_SUM, 1, LS_ERR_ARGUMENT, "reduce: dtype 0"},
        {99, LS_OP_SUM, 1, LS_ERR_ARGUMENT, "reduce: dtype 99"},
        {-1, LS_OP_SUM, 1, LS_ERR_ARGUMENT, "dtype -1"},
        {LS_DTYPE_F32, 0, 1, LS_ERR_ARGUMENT, "reduce: operation 0"},
        {LS_DTYPE_F32, 7, 1, LS_ERR_ARGUMENT, "operation 7"},
        {LS_DTYPE_F32, -1, 1, LS_ERR_ARGUMENT, "operation -1"},
        {LS_DTYPE_F32, LS_OP_AVG, 2, LS_ERR_ARGUMENT, "scale 2 with operation avg, expected 1"},
        {LS_DTYPE_F32, LS_OP_MIN, 0.5, LS_ERR_ARGUMENT, "operation min"},
        {LS_DTYPE_F32, LS_OP_MAX, NAN, LS_ERR_ARGUMENT, "operation max"},
        {LS_DTYPE_I32, LS_OP_PROD, 0, LS_ERR_ARGUMENT, "operation prod"},
        {LS_DTYPE_I32, LS_OP_SUM, 0.5, LS_ERR_ARGUMENT, "scale 0.5 with dtype I32"},
        {LS_DTYPE_I32, LS_OP_PREMUL_SUM, -1.25, LS_ERR_ARGUMENT, "scale -1.25"},
        {LS_DTYPE_I32, LS_OP_SUM, 0x1p31, LS_ERR_ARGUMENT, "scale 2147483648"},
        {LS_DTYPE_I32, LS_OP_SUM, -0x1p31 - 1, LS_ERR_ARGUMENT, "scale -2147483649"},
        {LS_DTYPE_I8, LS_OP_SUM, 128, LS_ERR_ARGUMENT, "from -128 to below 128"},
        {LS_DTYPE_I8, LS_OP_SUM, -129, LS_ERR_ARGUMENT, "scale -129"},
        {LS_DTYPE_U8, LS_OP_SUM, -1, LS_ERR_ARGUMENT, "from 0 to below 256"},
        {LS_DTYPE_U8, LS_OP_PREMUL_SUM, 256, LS_ERR_ARGUMENT, "scale 256"},
        {LS_DTYPE_I64, LS_OP_SUM, 0x1p63, LS_ERR_ARGUMENT, "dtype I64"},
        {LS_DTYPE_I64, LS_OP_SUM, NAN, LS_ERR_ARGUMENT, "dtype I64"},
        {LS_DTYPE_I64, LS_OP_SUM, -INFINITY, LS_ERR_ARGUMENT, "dtype I64"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(lsi_reduction_check("reduce", (ls_dtype)rows[i].dtype, (ls_op)rows[i].op,
                                         rows[i].scale),
                     rows[i].status, rows[i].text);
}

static void every_combination_of_the_tables_is_taken(void **state) {
    (void)state;
    for (int d = 0; d < N_DTYPES; d++) {
#define CHECK(name, number, text)                                                                  \
    assert_ok(lsi_reduction_check("reduce", dtypes[d], LS_OP_##name, 1));
        LS_OP_TABLE(CHECK)
#undef CHECK
    }
    const struct {
        ls_dtype dtype;
        double scale;
    } rows[] = {{LS_DTYPE_F32, NAN},     {LS_DTYPE_F16, INFINITY}, {LS_DTYPE_F64, 0.1},
                {LS_DTYPE_BF16, 1e300},  {LS_DTYPE_I8, -128},      {LS_DTYPE_I8, 127},
                {LS_DTYPE_U8, 0},        {LS_DTYPE_U8, 255},       {LS_DTYPE_I32, 0x1p31 - 1},
                {LS_DTYPE_I32, -0x1p31}, {LS_DTYPE_I64, -0x1p63},  {LS_DTYPE_I64, -0.0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ok(lsi_reduction_check("reduce", rows[i].dtype, LS_OP_SUM, rows[i].scale));
        assert_ok(lsi_reduction_check("reduce", rows[i].dtype, LS_OP_PREMUL_SUM, rows[i].scale));
    }
}

/* ---- partial results ---- */

static void partials_travel_in_the_accumulation_type(void **state) {
    (void)state;
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_BF16, LS_OP_SUM), LS_DTYPE_F32);
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_F16, LS_OP_MIN), LS_DTYPE_F32);
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_F64, LS_OP_AVG), LS_DTYPE_F64);
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_U8, LS_OP_SUM), LS_DTYPE_U8);
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_U8, LS_OP_AVG), LS_DTYPE_I64);
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_I32, LS_OP_AVG), LS_DTYPE_I64);
    assert_int_equal(lsi_partial_dtype(LS_DTYPE_I32, LS_OP_PROD), LS_DTYPE_I32);
}

static buffer partials[8];

/* Combines along the order's nodes; the result ends up on the left and right rank by turns.
 * Returns the rank that has it. */
static int pass_along(const fixture *f, int node, int64_t count) {
    if (node < f->order.n_ranks) return node;
    int left = pass_along(f, f->order.node[node].left, count);
    int right = pass_along(f, f->order.node[node].right, count);
    lsi_partial_combine(&f->reduction, partials[left].bytes, partials[right].bytes, count,
                        node % 2);
    return node % 2 ? right : left;
}

static void partials_along_the_tree_equal_reference(void **state) {
    (void)state;
    static const int64_t weight[] = {2, 1, 1, 4};
    static const struct {
        int n_ranks;
        const int64_t *weight;
    } rows[] = {{1, NULL}, {2, NULL}, {4, NULL}, {4, weight}, {5, NULL}, {7, NULL}, {8, NULL}};
    static const int64_t counts[] = {0, 1, 17, MOST_COUNT};
    for (int d = 0; d < N_DTYPES; d++)
        for (int o = 0; o < N_OPS; o++)
            for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                const int n = rows[i].n_ranks;
                fixture f;
                fixture_init(&f, dtypes[d], ops[o], n, rows[i].weight);
                make_expected(&f);
                const int in_place = lsi_partial_dtype(dtypes[d], ops[o].op) == dtypes[d];
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    for (int r = 0; r < n; r++) {
                        const void *from = sources[r].bytes;
                        if (in_place) from = memcpy(partials[r].bytes, from, sizeof partials[r]);
                        lsi_partial_begin(&f.reduction, f.premul[r], from, partials[r].bytes,
                                          counts[c]);
                    }
                    int last = pass_along(&f, n == 1 ? 0 : 2 * n - 2, counts[c]);
                    void *to = in_place ? partials[last].bytes : outputs[0].bytes;
                    lsi_partial_finish(&f.reduction, partials[last].bytes, to, counts[c]);
                    assert_same(dtypes[d], to, expected.bytes, counts[c], "partials");
                }
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_operation_equals_reference),
        cmocka_unit_test(other_orders_equal_reference),
        cmocka_unit_test(most_ranks_and_deepest_tree_equal_reference),
        cmocka_unit_test(large_range_equals_plain_sum),
        cmocka_unit_test(distance_of_buffers_does_not_matter),
        cmocka_unit_test(no_outputs_and_no_elements_do_nothing),
        cmocka_unit_test(values_are_exact),
        cmocka_unit_test(premultiplied_sum_takes_each_ranks_factor),
        cmocka_unit_test(reciprocals_are_rounded_once),
        cmocka_unit_test(bad_combinations_are_refused),
        cmocka_unit_test(every_combination_of_the_tables_is_taken),
        cmocka_unit_test(partials_travel_in_the_accumulation_type),
        cmocka_unit_test(partials_along_the_tree_equal_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
