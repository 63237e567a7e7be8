/* The loops of reductions, one per type and what it does, and the table that names them.
 *
 * How to read: the LOAD, COMBINE and FINISH macros each make one function with one loop over
 * elements. They are applied below in a list per accumulation type; the rows at the end put them
 * together. No loop has a branch, so gcc vectorises all of them but the division of integers.
 *
 * Integers are computed as unsigned numbers of their width, where overflow is defined, and turned
 * back (modulo 2^bits in gcc and clang). */
#include "comm/reduce_kernels.h"

#include "base/dtype.h"

/* The same address or none in common (reduce_kernels.h): no element depends on another. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* that a sanitizer prevents it is no fault */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* ---- values of one element ---- */

/* IEEE 754-2019 minimum and maximum: NaN wins over numbers, -0 is below +0, so that the result does
 * not depend on the order of inputs. */
#define FLOAT_MIN_MAX(type, bits_type)                                                             \
    static inline type min_##type(type a, type b) {                                                \
        union {                                                                                    \
            type value;                                                                            \
            bits_type bits;                                                                        \
        } x = {a}, y = {b}, equal;                                                                 \
        equal.bits = x.bits | y.bits; /* differs from a and b only where they are two zeros */     \
        type least = ((a < b) | (a != a)) ? a : b;                                                 \
        return a == b ? equal.value : least;                                                       \
    }                                                                                              \
    static inline type max_##type(type a, type b) {                                                \
        union {                                                                                    \
            type value;                                                                            \
            bits_type bits;                                                                        \
        } x = {a}, y = {b}, equal;                                                                 \
        equal.bits = x.bits & y.bits;                                                              \
        type most = ((a > b) | (a != a)) ? a : b;                                                  \
        return a == b ? equal.value : most;                                                        \
    }
FLOAT_MIN_MAX(float, uint32_t)
FLOAT_MIN_MAX(double, uint64_t)

/* ---- load: storage type to accumulation type ---- */

#define LOAD(name, storage, acc, convert, multiply)                                                \
    static void load_##name(void *to, const void *from, double factor, int64_t n) {                \
        acc *result = to;                                                                          \
        const storage *input = from;                                                               \
        const acc f = (acc)factor;                                                                 \
        INDEPENDENT                                                                                \
        for (int64_t i = 0; i < n; i++) result[i] = multiply(acc, convert(input[i]), f);           \
    }

#define AS_IT_IS(x) x
#define FLOAT_TIMES(type, a, b) ((a) * (b))
#define INT_TIMES(type, a, b) ((type)((type##_wrapping)(a) * (type##_wrapping)(b)))

/* 8-bit types are promoted to int, in which their sums and products cannot overflow. */
typedef uint8_t int8_t_wrapping;
typedef uint8_t uint8_t_wrapping;
typedef uint32_t int32_t_wrapping;
typedef uint64_t int64_t_wrapping;

LOAD(f32, float, float, AS_IT_IS, FLOAT_TIMES)
LOAD(f64, double, double, AS_IT_IS, FLOAT_TIMES)
LOAD(bf16, uint16_t, float, lsi_bf16_to_f32, FLOAT_TIMES)
LOAD(f16, uint16_t, float, lsi_f16_to_f32, FLOAT_TIMES)
LOAD(i8, int8_t, int8_t, AS_IT_IS, INT_TIMES)
LOAD(u8, uint8_t, uint8_t, AS_IT_IS, INT_TIMES)
LOAD(i32, int32_t, int32_t, AS_IT_IS, INT_TIMES)
LOAD(i64, int64_t, int64_t, AS_IT_IS, INT_TIMES)
LOAD(wide_i8, int8_t, int64_t, AS_IT_IS, INT_TIMES)
LOAD(wide_u8, uint8_t, int64_t, AS_IT_IS, INT_TIMES)
LOAD(wide_i32, int32_t, int64_t, AS_IT_IS, INT_TIMES)

/* ---- combine: two accumulators ---- */

#define COMBINE(name, type, expression)                                                            \
    static void name(void *result, const void *left, const void *right, int64_t n) {               \
        type *to = result;                                                                         \
        const type *x = left, *y = right;                                                          \
        INDEPENDENT                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const type a = x[i], b = y[i];                                                         \
            to[i] = expression;                                                                    \
        }                                                                                          \
    }

#define COMBINE_FLOATS(name, type)                                                                 \
    COMBINE(add_##name, type, a + b)                                                               \
    COMBINE(min_##name, type, min_##type(a, b))                                                    \
    COMBINE(max_##name, type, max_##type(a, b))                                                    \
    COMBINE(multiply_##name, type, a *b)

#define COMBINE_INTS(name, type)                                                                   \
    COMBINE(add_##name, type, (type)((type##_wrapping)a + (type##_wrapping)b))                     \
    COMBINE(min_##name, type, a < b ? a : b)                                                       \
    COMBINE(max_##name, type, a > b ? a : b)                                                       \
    COMBINE(multiply_##name, type, INT_TIMES(type, a, b))

COMBINE_FLOATS(f32, float)
COMBINE_FLOATS(f64, double)
COMBINE_INTS(i8, int8_t)
COMBINE_INTS(u8, uint8_t)
COMBINE_INTS(i32, int32_t)
COMBINE_INTS(i64, int64_t)

/* ---- finish: accumulation type to storage type ---- */

#define FINISH(name, storage, acc, convert, scaled)                                                \
    static void name(void *to, const void *from, double factor, int64_t n) {                       \
        storage *output = to;                                                                      \
        const acc *x = from;                                                                       \
        const acc f = (acc)factor;                                                                 \
        INDEPENDENT                                                                                \
        for (int64_t i = 0; i < n; i++) output[i] = convert(scaled(acc, x[i], f));                 \
    }

#define INT_DIVIDED(type, a, b) ((a) / (b))

FINISH(scale_f32, float, float, AS_IT_IS, FLOAT_TIMES)
FINISH(scale_f64, double, double, AS_IT_IS, FLOAT_TIMES)
FINISH(scale_bf16, uint16_t, float, lsi_f32_to_bf16, FLOAT_TIMES)
FINISH(scale_f16, uint16_t, float, lsi_f32_to_f16, FLOAT_TIMES)
FINISH(scale_i8, int8_t, int8_t, AS_IT_IS, INT_TIMES)
FINISH(scale_u8, uint8_t, uint8_t, AS_IT_IS, INT_TIMES)
FINISH(scale_i32, int32_t, int32_t, AS_IT_IS, INT_TIMES)
FINISH(scale_i64, int64_t, int64_t, AS_IT_IS, INT_TIMES)
FINISH(divide_i8, int8_t, int64_t, (int8_t), INT_DIVIDED)
FINISH(divide_u8, uint8_t, int64_t, (uint8_t), INT_DIVIDED)
FINISH(divide_i32, int32_t, int64_t, (int32_t), INT_DIVIDED)
FINISH(divide_i64, int64_t, int64_t, AS_IT_IS, INT_DIVIDED)

/* ---- the table ---- */

/* A row of one dtype: name of its load and finish, name and type of its accumulator; then load,
 * accumulator and finish of averages, where integers differ. */
#define DTYPE(dtype, name, storage, acc_dtype, acc_name, acc, avg_load, avg_acc_dtype,             \
              avg_acc_name, avg_acc, avg_finish)                                                   \
    [LS_DTYPE_##dtype] = {                                                                         \
        [LS_OP_SUM] = ROW(acc_dtype, storage, acc, load_##name, add_##acc_name, scale_##name),     \
        [LS_OP_AVG] =                                                                              \
            ROW(avg_acc_dtype, storage, avg_acc, avg_load, add_##avg_acc_name, avg_finish),        \
        [LS_OP_MIN] = ROW(acc_dtype, storage, acc, load_##name, min_##acc_name, scale_##name),     \
        [LS_OP_MAX] = ROW(acc_dtype, storage, acc, load_##name, max_##acc_name, scale_##name),     \
        [LS_OP_PROD] =                                                                             \
            ROW(acc_dtype, storage, acc, load_##name, multiply_##acc_name, scale_##name),          \
        [LS_OP_PREMUL_SUM] =                                                                       \
            ROW(acc_dtype, storage, acc, load_##name, add_##acc_name, scale_##name),               \
    }
#define ROW(acc_dtype, storage, acc, load, combine, finish)                                        \
    { LS_DTYPE_##acc_dtype, sizeof(storage), sizeof(acc), load, combine, finish }
#define FLOAT_DTYPE(dtype, name, storage, acc_dtype, acc_name, acc)                                \
    DTYPE(dtype, name, storage, acc_dtype, acc_name, acc, load_##name, acc_dtype, acc_name, acc,   \
          scale_##name)
#define INT_DTYPE(dtype, name, storage, avg_load)                                                  \
    DTYPE(dtype, name, storage, dtype, name, storage, avg_load, I64, i64, int64_t, divide_##name)

static const lsi_kernels kernels[][LS_OP_PREMUL_SUM + 1] = {
    FLOAT_DTYPE(F32, f32, float, F32, f32, float),
    FLOAT_DTYPE(F64, f64, double, F64, f64, double),
    FLOAT_DTYPE(BF16, bf16, uint16_t, F32, f32, float),
    FLOAT_DTYPE(F16, f16, uint16_t, F32, f32, float),
    INT_DTYPE(I8, i8, int8_t, load_wide_i8),
    INT_DTYPE(U8, u8, uint8_t, load_wide_u8),
    INT_DTYPE(I32, i32, int32_t, load_wide_i32),
    INT_DTYPE(I64, i64, int64_t, load_i64),
};

const lsi_kernels *lsi_reduce_kernels(ls_dtype dtype, ls_op op) {
    unsigned int d = (unsigned int)dtype, o = (unsigned int)op;
    if (d >= sizeof kernels / sizeof kernels[0] || o > LS_OP_PREMUL_SUM) return NULL;
    return kernels[d][o].load ? &kernels[d][o] : NULL;
}
