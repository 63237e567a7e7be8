/* Numbers for people, the median, and the memory table. */
#include "observe/observe.h"

#include <math.h>
#include <string.h>

#include "harness/harness.h"

typedef const char *(*format_fn)(double value, char *buffer, size_t buffer_bytes);

typedef struct format_row {
    double value;
    const char *expected;
} format_row;

static void check(format_fn format, const format_row *rows, size_t n_rows) {
    for (size_t i = 0; i < n_rows; i++) {
        char buffer[16 + 1];
        buffer[16] = '#';
        assert_ptr_equal(format(rows[i].value, buffer, 16), buffer);
        assert_string_equal(buffer, rows[i].expected);
        assert_int_equal(buffer[16], '#');
    }
}

static void bytes_get_the_unit_that_fits(void **state) {
    (void)state;
    static const format_row rows[] = {
        {0, "0 B"},
        {1, "1 B"},
        {512, "512 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1023.9 * 1024, "1023.9 KiB"},
        {1024.0 * 1024 - 1, "1.0 MiB"},
        {1.2 * 1024 * 1024 * 1024, "1.2 GiB"},
        {0x1p40, "1.0 TiB"},
        {0x1p50, "1.0 PiB"},
        {0x1p63, "8.0 EiB"},
        {1e30, "8.67e+11 EiB"},
        {-2048, "-2.0 KiB"},
        {NAN, "?"},
        {INFINITY, "?"},
        {-INFINITY, "?"},
    };
    check(lsi_format_bytes, rows, sizeof rows / sizeof *rows);
}

static void seconds_get_the_units_that_fit(void **state) {
    (void)state;
    static const format_row rows[] = {
        {0, "0.0 s"},
        {3.4, "3.4 s"},
        {59.94, "59.9 s"},
        {59.97, "1m 00s"},
        {62, "1m 02s"},
        {80.4, "1m 20s"},
        {3599.4, "59m 59s"},
        {3599.6, "1h 00m"},
        {2 * 3600 + 5 * 60, "2h 05m"},
        {24 * 3600 - 31, "23h 59m"},
        {24 * 3600 - 29, "1d 00h"},
        {76 * 3600, "3d 04h"},
        {1e9, "11574d 02h"},
        {-1, "?"},
        {NAN, "?"},
        {INFINITY, "?"},
    };
    check(lsi_format_seconds, rows, sizeof rows / sizeof *rows);
}

static void small_buffers_are_never_overrun(void **state) {
    (void)state;
    for (size_t n = 1; n < 16; n++) {
        char buffer[16];
        memset(buffer, '#', sizeof buffer);
        lsi_format_bytes(1023.9 * 1024, buffer, n);
        assert_true(strlen(buffer) < n);
        lsi_format_seconds(1e300, buffer, n);
        assert_true(strlen(buffer) < n);
        for (size_t i = n; i < sizeof buffer; i++) assert_int_equal(buffer[i], '#');
    }
}

static void median_is_the_middle(void **state) {
    (void)state;
    static const struct {
        double values[6];
        int64_t n;
        double expected;
    } rows[] = {
        {{0}, 0, 0},
        {{7}, 1, 7},
        {{3, 1}, 2, 2},
        {{5, 1, 3}, 3, 3},
        {{4, 1, 100, 2}, 4, 3},
        {{-1, -1, -1, 8, 9}, 5, -1},
        {{1e308, 1.5e308}, 2, 1.25e308},
        {{NAN, 2, 1}, 3, 2},
        {{3, NAN, 1, NAN, 2}, 5, 3},
        {{INFINITY, -INFINITY, 4}, 3, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double values[6];
        memcpy(values, rows[i].values, sizeof values);
        assert_true(lsi_median(values, rows[i].n) == rows[i].expected);
    }
    assert_true(lsi_median(NULL, 0) == 0);
}

static void median_of_many_is_found(void **state) {
    (void)state;
    enum { N = 10007 };
    static double values[N];
    for (int i = 0; i < N; i++) values[i] = (double)((int64_t)i * 7919 % N);
    assert_true(lsi_median(values, N) == (N - 1) / 2);
}

static void memory_table_has_a_row_per_kind(void **state) {
    (void)state;
    int64_t bytes[LSI_MEM_N_KINDS];
    for (int i = 0; i < LSI_MEM_N_KINDS; i++) bytes[i] = ((int64_t)1 << 40) + i;
    json_t *table = lsi_memory_to_json(bytes);
    assert_int_equal(json_object_size(table), LSI_MEM_N_KINDS);
    for (int i = 0; i < LSI_MEM_N_KINDS; i++) {
        json_t *value = json_object_get(table, lsi_mem_kind_name((lsi_mem_kind)i));
        assert_true(json_is_integer(value));
        assert_int_equal(json_integer_value(value), bytes[i]);
    }
    assert_int_equal(json_integer_value(json_object_get(table, "params")), bytes[LSI_MEM_PARAMS]);
    json_decref(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_get_the_unit_that_fits),
        cmocka_unit_test(seconds_get_the_units_that_fit),
        cmocka_unit_test(small_buffers_are_never_overrun),
        cmocka_unit_test(median_is_the_middle),
        cmocka_unit_test(median_of_many_is_found),
        cmocka_unit_test(memory_table_has_a_row_per_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
