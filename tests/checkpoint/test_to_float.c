/* Element types of files to float32, over every half-precision number. */
#include "checkpoint/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* IEEE 754 binary formats by their definition. */
static double from_fields(uint32_t bits, int fraction_bits, int exponent_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double fraction = (double)(bits & ((1u << fraction_bits) - 1));
    double sign = bits >> (fraction_bits + exponent_bits) ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + ldexp(1, fraction_bits), exponent - bias - fraction_bits);
}

static void half_precision_widens_exactly(void **state) {
    (void)state;
    static const struct {
        ls_dtype dtype;
        int fraction_bits, exponent_bits;
    } rows[] = {{LS_DTYPE_F16, 10, 5}, {LS_DTYPE_BF16, 7, 8}};
    enum { N = 1 << 16 };
    static unsigned char source[1 + 2 * N]; /* from an odd address on */
    static float found[N];
    for (uint32_t i = 0; i < N; i++) {
        source[1 + 2 * i] = (unsigned char)i;
        source[2 + 2 * i] = (unsigned char)(i >> 8);
    }
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        assert_ok(lsi_st_to_float(rows[row].dtype, source + 1, N, found));
        for (uint32_t i = 0; i < N; i++) {
            float expected =
                (float)from_fields(i, rows[row].fraction_bits, rows[row].exponent_bits);
            if (isnan(expected) ? !isnan(found[i]) : bits_of(found[i]) != bits_of(expected))
                fail_msg("%s 0x%04x: expected %a, found %a", ls_dtype_name(rows[row].dtype), i,
                         (double)expected, (double)found[i]);
        }
    }
}

static void wide_types_are_rounded_or_copied(void **state) {
    (void)state;
    static const double wide[] = {1, -0.0, 1 + 0x1p-24, 1 + 0x1.8p-24, 1e-60, -1e300, INFINITY};
    static const float expected[] = {1, -0.0f, 1, 1 + 0x1p-23f, 0, -INFINITY, INFINITY};
    enum { N = sizeof wide / sizeof *wide };
    unsigned char source[1 + sizeof wide];
    float found[N];
    memcpy(source + 1, wide, sizeof wide);
    assert_ok(lsi_st_to_float(LS_DTYPE_F64, source + 1, N, found));
    assert_memory_equal(found, expected, sizeof found);
    memcpy(source + 1, expected, sizeof expected);
    assert_ok(lsi_st_to_float(LS_DTYPE_F32, source + 1, N, found));
    assert_memory_equal(found, expected, sizeof found);
}

static void zero_elements_touch_nothing(void **state) {
    (void)state;
    static const ls_dtype dtypes[] = {LS_DTYPE_F32, LS_DTYPE_F64, LS_DTYPE_BF16, LS_DTYPE_F16};
    for (int i = 0; i < 4; i++) assert_ok(lsi_st_to_float(dtypes[i], NULL, 0, NULL));
}

static void other_types_are_refused(void **state) {
    (void)state;
    static const ls_dtype dtypes[] = {LS_DTYPE_I8, LS_DTYPE_I32, LS_DTYPE_I64, LS_DTYPE_U8,
                                      (ls_dtype)0};
    float found = 7;
    for (int i = 0; i < 5; i++)
        assert_fails(lsi_st_to_float(dtypes[i], "abcdefgh", 1, &found), LS_ERR_UNSUPPORTED,
                     "expected F32, BF16, F16 or F64");
    assert_true(found == 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_precision_widens_exactly),
        cmocka_unit_test(wide_types_are_rounded_or_copied),
        cmocka_unit_test(zero_elements_touch_nothing),
        cmocka_unit_test(other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
