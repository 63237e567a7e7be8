/* Element types: the table, and the 16-bit conversions over every value they have. */
#include <math.h>
#include <string.h>

#include "base/bf16.h"
#include "base/dtype.h"
#include "harness/harness.h"

static void every_dtype_has_size_and_name(void **state) {
    (void)state;
#define CHECK(name, number, bytes, text)                                                           \
    assert_int_equal(LS_DTYPE_##name, number);                                                     \
    assert_int_equal(ls_dtype_bytes(LS_DTYPE_##name), bytes);                                      \
    assert_string_equal(ls_dtype_name(LS_DTYPE_##name), text);                                     \
    assert_int_equal(lsi_dtype_from_name(text), number);
    LS_DTYPE_TABLE(CHECK)
#undef CHECK
}

static void unknown_dtype_has_no_size(void **state) {
    (void)state;
    static const int numbers[] = {0, -1, 9, 1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_int_equal(ls_dtype_bytes((ls_dtype)numbers[i]), 0);
        assert_string_equal(ls_dtype_name((ls_dtype)numbers[i]), "?");
    }
    static const char *const names[] = {"", "?", "f32", "F3", "F32 ", "F8_E4M3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(lsi_dtype_from_name(names[i]), 0);
    }
}

/* What a 16-bit pattern stands for, by the definition of its format. */
static double value_of(uint32_t bits, int n_mantissa_bits) {
    int n_exponent_bits = 15 - n_mantissa_bits;
    int bias = (1 << (n_exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> n_mantissa_bits) & ((1 << n_exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << n_mantissa_bits) - 1));
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << n_exponent_bits) - 1) return mantissa == 0 ? sign * INFINITY : NAN;
    double unit = ldexp(1.0, (exponent > 0 ? exponent : 1) - bias - n_mantissa_bits);
    return sign * unit * (mantissa + (exponent > 0 ? ldexp(1.0, n_mantissa_bits) : 0));
}

typedef struct format {
    int n_mantissa_bits;
    uint32_t infinity;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
} format;

static const format formats[] = {
    {7, 0x7F80, lsi_bf16_to_f32, lsi_f32_to_bf16},
    {10, 0x7C00, lsi_f16_to_f32, lsi_f32_to_f16},
};

static void every_value_widens_exactly_and_comes_back(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            float wide = formats[f].widen((uint16_t)bits);
            double expected = value_of(bits, formats[f].n_mantissa_bits);
            uint16_t back = formats[f].narrow(wide);
            if (isnan(expected)) {
                assert_true(isnan(wide));
                assert_int_equal(signbit(wide) != 0, bits >> 15);
                uint32_t quiet_bit = 1u << (formats[f].n_mantissa_bits - 1);
                assert_int_equal(back, bits | quiet_bit);
            } else {
                assert_true((double)wide == expected && !signbit(wide) == !signbit(expected));
                assert_int_equal(back, bits);
            }
        }
    }
}

/* Between each two neighbours: the middle goes to the even one, a float above or below the middle
 * to the nearer one. The neighbour of the largest finite value is where infinity would lie. */
static void middle_between_neighbours_rounds_to_even(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        for (uint32_t low = 0; low < formats[f].infinity; low++) {
            double a = value_of(low, formats[f].n_mantissa_bits);
            double b = value_of(low + 1, formats[f].n_mantissa_bits);
            if (isinf(b)) b = 2 * a - value_of(low - 1, formats[f].n_mantissa_bits);
            float middle = (float)((a + b) / 2); /* exact: one more bit than the format */
            uint32_t even = low % 2 ? low + 1 : low;
            for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
                float s = sign ? -1.0f : 1.0f;
                assert_int_equal(formats[f].narrow(s * middle), sign | even);
                assert_int_equal(formats[f].narrow(s * nextafterf(middle, 0)), sign | low);
                assert_int_equal(formats[f].narrow(s * nextafterf(middle, INFINITY)),
                                 sign | (low + 1));
            }
        }
    }
}

static void extremes_become_infinity_zero_or_nan(void **state) {
    (void)state;
    static const struct {
        uint32_t bits;
        uint16_t bf16, f16;
    } rows[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000}, {0x00000001, 0x0000, 0x0000},
        {0x007FFFFF, 0x0080, 0x0000}, {0x7F7FFFFF, 0x7F80, 0x7C00}, {0xFF7FFFFF, 0xFF80, 0xFC00},
        {0x7F800000, 0x7F80, 0x7C00}, {0xFF800000, 0xFF80, 0xFC00}, {0x7F800001, 0x7FC0, 0x7E00},
        {0x7FFFFFFF, 0x7FFF, 0x7FFF}, {0xFFC00000, 0xFFC0, 0xFE00}, {0xFFFFFFFF, 0xFFFF, 0xFFFF},
        {0x477FE000, 0x4780, 0x7BFF}, {0x477FEFFF, 0x4780, 0x7BFF}, {0x477FF000, 0x4780, 0x7C00},
        {0x33000000, 0x3300, 0x0000}, {0x33000001, 0x3300, 0x0001}, {0x33800000, 0x3380, 0x0001},
        {0x3F800000, 0x3F80, 0x3C00}, {0xC0000000, 0xC000, 0xC000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        float value = lsi_float_from_bits(rows[i].bits);
        assert_int_equal(lsi_f32_to_bf16(value), rows[i].bf16);
        assert_int_equal(lsi_f32_to_f16(value), rows[i].f16);
    }
}

/* The vectorised loop gives what single calls give. */
static void loop_equals_single_calls(void **state) {
    (void)state;
    enum { N = 4099 };
    static float values[N];
    static uint16_t bf16[N], f16[N];
    for (uint32_t i = 0; i < N; i++) values[i] = lsi_float_from_bits(i * 2654435761u);
    for (int i = 0; i < N; i++) bf16[i] = lsi_f32_to_bf16(values[i]);
    for (int i = 0; i < N; i++) f16[i] = lsi_f32_to_f16(values[i]);
    for (int i = 0; i < N; i++) {
        assert_int_equal(bf16[i], formats[0].narrow(values[i]));
        assert_int_equal(f16[i], formats[1].narrow(values[i]));
    }
}

/* Rows of any length, with something special at any place, and nothing behind them is touched. */
static void rows_equal_single_calls(void **state) {
    (void)state;
    enum { N = 100 };
    static const uint32_t special[] = {0x00000001, 0x807FFFFF, 0x00800000, 0x80000000, 0x7F800000,
                                       0x7F7FFFFF, 0x7F800001, 0xFFC12345, 0x3F808000, 0x3F818000};
    float values[N];
    uint16_t row[N + 1];
    for (size_t s = 0; s < sizeof special / sizeof special[0]; s++)
        for (int n = 0; n <= N; n++) {
            for (int i = 0; i < n; i++) values[i] = 1.0f + (float)i / 3000.0f;
            for (int at = 0; at < n; at++) {
                float kept = values[at];
                values[at] = lsi_float_from_bits(special[s]);
                row[n] = 0xABCD;
                lsi_bf16_from_floats(values, n, row);
                for (int i = 0; i < n; i++) assert_int_equal(row[i], lsi_f32_to_bf16(values[i]));
                assert_int_equal(row[n], 0xABCD);
                values[at] = kept;
            }
        }
}

/* ---- halves ---- */

static int is_nan(uint32_t bits) {
    return (bits & 0x7FFFFFFFu) > 0x7F800000u;
}

/* Nothing is lost, and the upper half is a nearest neighbour. */
static void check_halves(uint32_t bits) {
    float value = lsi_float_from_bits(bits);
    uint16_t upper = lsi_upper_half(value), rounded = lsi_f32_to_bf16(value);
    uint32_t joined = lsi_float_bits(lsi_join_halves(upper, lsi_lower_half(value)));
    int is_middle = (bits & 0xFFFFu) == 0x8000u;
    int is_near = upper == rounded || (is_middle && upper == rounded + 1);
    if (is_near && (is_nan(bits) ? is_nan(joined) : joined == bits)) return;
    fail_msg("0x%08X: halves 0x%04X and 0x%04X are 0x%08X; rounded to even 0x%04X", bits, upper,
             lsi_lower_half(value), joined, rounded);
}

/* Every lower half with upper halves around which something changes, and numbers from all over. */
static void halves_join_to_the_number(void **state) {
    (void)state;
    static const uint32_t upper[] = {0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81,
                                     0x7F7E, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF,
                                     0x8000, 0x8001, 0xBF80, 0xFF7F, 0xFF80, 0xFFFF};
    for (size_t i = 0; i < sizeof upper / sizeof upper[0]; i++)
        for (uint32_t lower = 0; lower <= 0xFFFF; lower++) check_halves(upper[i] << 16 | lower);
    for (uint32_t i = 0; i < 1u << 20; i++) check_halves(i * 2654435761u);
}

static void zeros_below_give_the_bfloat16_number(void **state) {
    (void)state;
    for (uint32_t upper = 0; upper <= 0xFFFF; upper++)
        assert_int_equal(lsi_float_bits(lsi_join_halves((uint16_t)upper, 0)), upper << 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_has_size_and_name),
        cmocka_unit_test(unknown_dtype_has_no_size),
        cmocka_unit_test(every_value_widens_exactly_and_comes_back),
        cmocka_unit_test(middle_between_neighbours_rounds_to_even),
        cmocka_unit_test(extremes_become_infinity_zero_or_nan),
        cmocka_unit_test(loop_equals_single_calls),
        cmocka_unit_test(rows_equal_single_calls),
        cmocka_unit_test(halves_join_to_the_number),
        cmocka_unit_test(zeros_below_give_the_bfloat16_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
