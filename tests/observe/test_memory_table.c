/* The table of memory: which rank a line is about, what differences are of, and how it is shown. */
#include "observe/memory_table.h"

#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

enum { MIB = 1 << 20 };

static char *print_to_text(const lsi_memory_row *rows, int n_ranks,
                           const lsi_mem_estimate *expected) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    lsi_memory_print(rows, n_ranks, expected, out);
    fclose(out);
    return text;
}

static lsi_mem_estimate expected_of_zero3(void) {
    return (lsi_mem_estimate){.kinds = {[LSI_MEM_PARAMS] = {LSI_MEM_EQUALS, 2 * MIB},
                                        [LSI_MEM_GRADS] = {LSI_MEM_EQUALS, 4 * MIB},
                                        [LSI_MEM_OPTIMIZER] = {LSI_MEM_EQUALS, 0},
                                        [LSI_MEM_BUCKETS] = {LSI_MEM_AT_MOST, 10 * MIB},
                                        [LSI_MEM_GATHERED] = {LSI_MEM_EQUALS, 0}},
                              .peer_bytes = 2 * MIB,
                              .file_bytes = 12 * MIB};
}

/* Rank 1 has most in all, rank 0 most parameters. */
static const lsi_memory_row ROWS[] = {
    {.now_bytes = {[LSI_MEM_PARAMS] = 2 * MIB + MIB / 20, [LSI_MEM_GRADS] = 4 * MIB},
     .peak_bytes = {[LSI_MEM_PARAMS] = 3 * MIB, [LSI_MEM_GRADS] = 4 * MIB},
     .now_rss_bytes = 9 * MIB,
     .peak_rss_bytes = 10 * MIB,
     .file_bytes = 12 * MIB},
    {.now_bytes = {[LSI_MEM_PARAMS] = 2 * MIB,
                   [LSI_MEM_GRADS] = 4 * MIB - 1,
                   [LSI_MEM_ACTIVATIONS] = 9 * MIB,
                   [LSI_MEM_BUCKETS] = 5 * MIB,
                   [LSI_MEM_OTHER] = MIB},
     .peak_bytes = {[LSI_MEM_PARAMS] = 2 * MIB,
                    [LSI_MEM_GRADS] = 4 * MIB - 1,
                    [LSI_MEM_ACTIVATIONS] = 10 * MIB,
                    [LSI_MEM_BUCKETS] = 6 * MIB,
                    [LSI_MEM_OTHER] = 2 * MIB + 1},
     .now_rss_bytes = 24 * MIB,
     .peak_rss_bytes = 25 * MIB,
     .file_bytes = 11 * MIB},
};

static void table_is_as_documented(void **state) {
    (void)state;
    const lsi_mem_estimate expected = expected_of_zero3();
    char *text = print_to_text(ROWS, 2, &expected);
    assert_string_equal(
        text, "memory              formula         now        peak  rank  difference\n"
              "params              2.0 MiB     2.0 MiB     3.0 MiB     0      +2.5 %\n"
              "grads               4.0 MiB     4.0 MiB     4.0 MiB     0      +0.0 %\n"
              "activations                     9.0 MiB    10.0 MiB     1\n"
              "buckets         <= 10.0 MiB     5.0 MiB     6.0 MiB     1\n"
              "other                           1.0 MiB     2.0 MiB     1\n"
              "of peers            2.0 MiB\n"
              "sum                            23.0 MiB    26.0 MiB     1\n"
              "resident                       24.0 MiB    25.0 MiB     1      +4.0 %\n"
              "in a file          12.0 MiB    12.0 MiB    12.0 MiB     0      +0.0 %\n"
              "rank: who has most; now: after the last step; difference: now to formula, sum to "
              "resident at peak\n"
              "of peers: parameters that are mapped here and accounted for by other ranks\n");
    free(text);
}

static void lines_fit_into_100_columns_whatever_the_numbers(void **state) {
    (void)state;
    lsi_mem_estimate expected = {.peer_bytes = INT64_MAX / 4, .file_bytes = 1};
    lsi_memory_row row = {.now_rss_bytes = 1, .peak_rss_bytes = 1, .file_bytes = INT64_MAX};
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) {
        expected.kinds[kind] = (lsi_mem_figure){kind % 3, INT64_MAX / 16};
        row.now_bytes[kind] = row.peak_bytes[kind] = INT64_MAX / 16;
    }
    char *text = print_to_text(&row, 1, &expected);
    int n_lines = 0;
    for (const char *at = text; *at; at = strchr(at, '\n') + 1, n_lines++)
        assert_true(strcspn(at, "\n") <= 100);
    assert_int_equal(n_lines, 1 + LSI_MEM_N_KINDS + 6);
    free(text);
}

static void kinds_that_are_not_there_have_no_line(void **state) {
    (void)state;
    const lsi_mem_estimate none = {.file_bytes = 0};
    const lsi_memory_row row = {.now_rss_bytes = 0};
    char *text = print_to_text(&row, 1, &none);
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
        assert_null(strstr(text, lsi_mem_kind_name((lsi_mem_kind)kind)));
    assert_null(strstr(text, "of peers"));
    assert_null(strstr(text, "in a file"));
    assert_non_null(strstr(text, "resident"));
    assert_null(strchr(text, '%')); /* nothing to compare with */
    free(text);
}

/* A formula that asks for what nobody has, and bytes that no formula asks for, must show. */
static void what_lacks_on_either_side_is_shown(void **state) {
    (void)state;
    const lsi_mem_estimate expected = {
        .kinds =
            {[LSI_MEM_GRADS] = {LSI_MEM_EQUALS, MIB}, [LSI_MEM_GATHERED] = {LSI_MEM_EQUALS, 0}},
        .file_bytes = MIB};
    const lsi_memory_row row = {.now_bytes = {[LSI_MEM_GATHERED] = MIB},
                                .peak_bytes = {[LSI_MEM_GATHERED] = MIB}};
    char *text = print_to_text(&row, 1, &expected);
    assert_non_null(strstr(text, "grads               1.0 MiB         0 B         0 B     0    "
                                 "-100.0 %"));
    assert_non_null(strstr(text, "gathered                0 B     1.0 MiB     1.0 MiB     0\n"));
    assert_non_null(strstr(text, "in a file           1.0 MiB         0 B         0 B     0    "
                                 "-100.0 %"));
    free(text);
}

static void largest_rank_is_by_all_kinds_together(void **state) {
    (void)state;
    assert_int_equal(lsi_memory_largest(ROWS, 1), 0);
    assert_int_equal(lsi_memory_largest(ROWS, 2), 1);
    assert_int_equal(lsi_memory_peak_bytes(&ROWS[1]), 24 * MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_as_documented),
        cmocka_unit_test(lines_fit_into_100_columns_whatever_the_numbers),
        cmocka_unit_test(kinds_that_are_not_there_have_no_line),
        cmocka_unit_test(what_lacks_on_either_side_is_shown),
        cmocka_unit_test(largest_rank_is_by_all_kinds_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
