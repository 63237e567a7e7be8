/* The table of buckets: flight, what the backward pass hides of it, and how it is shown. */
#include "observe/bucket_table.h"

#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

enum { MIB = 1 << 20 };

static void total_counts_time_in_flight_once(void **state) {
    (void)state;
    static const struct {
        int n_rows;
        double posted_done_ms[3][2];
        double backward_end_ms, flight_ms, hidden_ms;
    } rows[] = {
        {0, {{0}}, 10, 0, 0},
        {1, {{2, 5}}, 10, 3, 3},  /* under the backward pass */
        {1, {{8, 13}}, 10, 5, 2}, /* half way */
        {1, {{10, 13}}, 10, 3, 0},
        {1, {{12, 13}}, 10, 1, 0}, /* after it: no overlap */
        {2, {{2, 5}, {8, 13}}, 10, 8, 5},
        {2, {{2, 6}, {4, 9}}, 10, 7, 7},               /* together in flight */
        {3, {{2, 12}, {3, 5}, {11, 14}}, 10, 12, 8},   /* one inside of another */
        {3, {{10, 11}, {10, 12}, {10, 14}}, 10, 4, 0}, /* all posted at the end */
        {2, {{4, 4}, {4, 4}}, 10, 0, 0},               /* one rank: no time at all */
        {2, {{2, 6}, {6, 9}}, 10, 7, 7},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lsi_bucket_row buckets[3] = {{0}};
        for (int b = 0; b < rows[i].n_rows; b++) {
            buckets[b].posted_ms = rows[i].posted_done_ms[b][0];
            buckets[b].done_ms = rows[i].posted_done_ms[b][1];
        }
        lsi_bucket_flight sum =
            lsi_bucket_sum_flight(buckets, rows[i].n_rows, rows[i].backward_end_ms);
        if (sum.flight_ms != rows[i].flight_ms || sum.hidden_ms != rows[i].hidden_ms)
            fail_msg("row %d: in flight %g, hidden %g", (int)i, sum.flight_ms, sum.hidden_ms);
    }
}

static const lsi_bucket_row BUCKETS[] = {
    {0, MIB / 4, MIB, "f32", 3, "head.weight", 1.5, 2, 5},
    {1, 25 * MIB / 4, 25 * MIB, "f32", 41, "h.3.mlp.weight", 7.75, 8, 13},
};

static char *print_to_text(int n_rows, double backward_end_ms) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    lsi_bucket_print(BUCKETS, n_rows, backward_end_ms, out);
    fclose(out);
    return text;
}

static void table_is_as_documented(void **state) {
    (void)state;
    char *text = print_to_text(2, 10);
    assert_string_equal(
        text,
        "bucket        size  type  params    ready  posted    done  flight  hidden  first "
        "parameter\n"
        "     0     1.0 MiB  f32        3      1.5     2.0     5.0     3.0     3.0  head.weight\n"
        "     1    25.0 MiB  f32       41      7.8     8.0    13.0     5.0     2.0  "
        "h.3.mlp.weight\n"
        " total    26.0 MiB            44                              8.0     5.0  62.5 % hidden\n"
        "times in ms since the backward pass began, which took 10.0\n");
    free(text);
}

static void table_before_the_first_step_shows_no_times(void **state) {
    (void)state;
    char *text = print_to_text(2, 0);
    assert_string_equal(text, "bucket        size  type  params  first parameter\n"
                              "     0     1.0 MiB  f32        3  head.weight\n"
                              "     1    25.0 MiB  f32       41  h.3.mlp.weight\n"
                              " total    26.0 MiB            44\n");
    free(text);
}

static void no_buckets_make_an_empty_table(void **state) {
    (void)state;
    char *text = print_to_text(0, 10);
    assert_non_null(strstr(text, " total         0 B             0"));
    assert_non_null(strstr(text, "0.0 % hidden"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(total_counts_time_in_flight_once),
        cmocka_unit_test(table_is_as_documented),
        cmocka_unit_test(table_before_the_first_step_shows_no_times),
        cmocka_unit_test(no_buckets_make_an_empty_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
