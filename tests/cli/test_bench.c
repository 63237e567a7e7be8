/* `lockstep bench` from outside: wrong requests are refused by name, every collective's outputs are
 * right at odd sizes, dtypes and ranks, and rows and JSON say what was asked for. No figure is
 * judged: the machine may be busy. */
#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "harness/program.h"
#include "harness/scratch.h"

/* In options `%` stands for the scratch folder. */
static void add_options(program_words *words, const char *options, const char *folder) {
    char line[1024];
    size_t used = 0;
    for (; *options; options++) {
        int n = *options == '%' ? snprintf(line + used, sizeof line - used, "%s", folder)
                                : snprintf(line + used, sizeof line - used, "%c", *options);
        used += (size_t)n;
        assert_true(used < sizeof line);
    }
    line[used] = '\0';
    add_split(words, "bench %s", line);
}

/* ---- refusals ---- */

static void wrong_requests_are_refused(void **state) {
    static const struct {
        const char *options;
        const char *texts[4];
    } rows[] = {
        {"", {"no collective", "allreduce", "barrier"}},
        {"allreduc", {"'allreduc'", "did you mean allreduce?"}},
        {"xyzzy", {"'xyzzy'", "expected one of allreduce"}},
        {"allreduce broadcast", {"unexpected word 'broadcast'"}},
        {"allreduce -b 0", {"--min-bytes", "from 1", "'0'"}},
        {"allreduce -b -8", {"--min-bytes", "'-8'"}},
        {"allreduce -b 8X", {"--min-bytes", "'8X'"}},
        {"allreduce -b 8KK", {"--min-bytes", "'8KK'"}},
        {"allreduce -e 99999999999999999999", {"--max-bytes", "1024G"}},
        {"allreduce -e 2000G", {"--max-bytes", "1024G"}},
        {"allreduce -e 1000G", {"GiB", "--max-bytes"}},
        {"allreduce -b 2K -e 1K", {"--min-bytes 2K", "--max-bytes 1K"}},
        {"allreduce -f 1", {"-f", "found 1"}},
        {"allreduce -f 4 -i 8", {"--step-bytes 8", "--step-factor 4", "give one"}},
        {"allreduce -o mul", {"-o", "sum|avg|min|max|prod|premul-sum|all"}},
        {"allreduce -d float", {"-d", "float32"}},
        {"allreduce -c 2", {"-c", "found 2"}},
        {"allreduce -n 0", {"-n", "found 0"}},
        {"allreduce --buffers private", {"--buffers", "shared|plain"}},
        {"allreduce --workers 65", {"--workers", "1 to 64"}},
        {"broadcast -r 2", {"--root 2", "0 to 1"}},
        {"allreduce --algo xyzzy", {"LOCKSTEP_ALGO", "xyzzy"}},
        {"allreduce --json %", {"--json", "found a folder"}},
        {"allreduce --json %/missing/x", {"--json", "/missing/x", "No such file"}},
        {"allreduce --json=", {"--json", "the name of a file"}},
        {"allreduce --iter 3", {"--iter", "did you mean --iters?"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_words words = {.n = 0};
        program_result result;
        add_options(&words, rows[i].options, *state);
        program_run(NULL, words.at, &result);
        if (result.exit_code != 2) print_error("%s\n", rows[i].options);
        assert_refused_with(&result, 2, rows[i].texts);
        assert_string_equal(result.out, "");
        program_release(&result);
    }
}

/* ---- results ---- */

static json_t *run_bench(void **state, const char *options, char *out, size_t out_bytes) {
    program_words words = {.n = 0};
    program_result result;
    json_t *json;
    add_options(&words, options, *state);
    add_split(&words, "--json %s/json", (const char *)*state);
    program_run(NULL, words.at, &result);
    if (result.exit_code != 0) print_error("%s\n", options);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    if (out) snprintf(out, out_bytes, "%s", result.out);
    program_release(&result);
    json = json_load_file(in_scratch(state, "json"), 0, NULL);
    assert_non_null(json);
    return json;
}

static const char *text_in(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));
    if (!text) fail_msg("no text \"%s\"", key);
    return text;
}

static double number_in(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

static void check_row(const json_t *row, const char *options) {
    static const char *const positive[] = {"time_us", "p50_us", "p99_us"};
    if (number_in(row, "wrong") != 0.0)
        fail_msg("%s: %g wrong of %g bytes", options, number_in(row, "wrong"),
                 number_in(row, "bytes"));
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        assert_true(number_in(row, positive[i]) > 0);
    assert_true(number_in(row, "p99_us") >= number_in(row, "p50_us"));
    assert_true(number_in(row, "busbw_gb_per_s") >= 0);
    assert_true(text_in(row, "algorithm")[0] != '\0');
    assert_true(json_is_boolean(json_object_get(row, "in_place")));
    assert_true(json_is_boolean(json_object_get(row, "cold")));
    assert_non_null(json_object_get(row, "roof_share"));
    (void)text_in(row, "dtype");
    (void)text_in(row, "op");
    (void)text_in(row, "buffers");
}

/* Rows: sizes x dtypes x ops x (out of place, in place) x (warm, cold). */
static void every_output_is_right(void **state) {
    static const struct {
        const char *options;
        const char *collective;
        int world_size;
        size_t n_rows;
    } rows[] = {
        {"allreduce -b 4 -e 1M -f 512 -n 2 -w 1", "allreduce", 2, 3 * 2},
        {"allreduce -b 20 -e 20 -o all -d all -n 1 -w 0 --workers 3", "allreduce", 3, 2 * 48},
        {"allreduce -b 40000 -e 40000 -o all -d all -n 1 -w 0 --buffers plain", "allreduce", 2,
         2 * 48},
        {"reducescatter -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3", "reducescatter", 3, 2 * 2},
        {"reducescatter -b 4K -e 4K -o all -d bfloat16 -n 1", "reducescatter", 2, 2 * 6},
        {"allgather -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3", "allgather", 3, 2 * 2},
        {"broadcast -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3 -r 2", "broadcast", 3, 2 * 2},
        {"reduce -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3 -r 1 -o prod", "reduce", 3, 2 * 2},
        {"gather -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3 -r 2", "gather", 3, 2 * 2},
        {"scatter -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3 -r 1", "scatter", 3, 2 * 2},
        {"alltoall -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3", "alltoall", 3, 2 * 2},
        {"alltoall -b 300K -e 300K -d int8 -n 2 -w 0 --buffers plain", "alltoall", 2, 2},
        {"sendrecv -b 60 -e 300K -f 5000 -n 2 -w 0 --workers 3", "sendrecv", 3, 2},
        {"sendrecv -b 60 -e 300K -f 5000 -n 2 -w 0 --buffers plain", "sendrecv", 2, 2},
        {"barrier -n 2 --workers 3", "barrier", 3, 1},
#if !defined(__SANITIZE_THREAD__) /* keeps several times the caches, which may be all memory */
        {"allreduce -b 64 -e 64 -n 2 --cold", "allreduce", 2, 2 * 2},
#endif
        {"allreduce -b 64 -e 64 -n 2 --workers 1", "allreduce", 1, 2},
        {"allreduce -b 8 -e 40 -i 16 -n 1", "allreduce", 2, 3 * 2},
        {"allreduce -b 1 -e 8 -n 1 -d float32", "allreduce", 2, 2 * 2}, /* 1, 2, 4 B: 1 element */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *json = run_bench(state, rows[i].options, NULL, 0), *row;
        size_t r;
        assert_string_equal(text_in(json, "collective"), rows[i].collective);
        assert_int_equal((int)number_in(json, "world_size"), rows[i].world_size);
        assert_true(number_in(json, "processors") >= 1);
        (void)text_in(json, "progress");
        (void)text_in(json, "progress_reason");
        const json_t *list = json_object_get(json, "rows");
        if (json_array_size(list) != rows[i].n_rows)
            fail_msg("%s: %zu rows, expected %zu", rows[i].options, json_array_size(list),
                     rows[i].n_rows);
        json_array_foreach(list, r, row) check_row(row, rows[i].options);
        json_decref(json);
    }
}

static void a_row_says_what_was_measured(void **state) {
    char out[16384];
    json_t *json = run_bench(state,
                             "reducescatter -b 8K -e 8K -d float64 -o max -n 3 --buffers plain "
                             "--algo reducescatter=staged",
                             out, sizeof out);
    const json_t *row = json_array_get(json_object_get(json, "rows"), 1);
    assert_int_equal((int)number_in(row, "bytes"), 8192);
    assert_int_equal((int)number_in(row, "count"), 512);
    assert_string_equal(text_in(row, "dtype"), "float64");
    assert_string_equal(text_in(row, "op"), "max");
    assert_string_equal(text_in(row, "buffers"), "plain");
    assert_string_equal(text_in(row, "algorithm"), "staged");
    assert_true(json_is_true(json_object_get(row, "in_place")));
    assert_true(json_is_false(json_object_get(row, "cold")));
    static const char *const said[] = {"2 ranks",    "progress:",      "one-way latency",
                                       "at the end", "buffers: plain", "transparent_hugepage",
                                       "float64",    "staged",         "wrong"};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        if (!strstr(out, said[i])) fail_msg("it does not say '%s':\n%s", said[i], out);
    json_decref(json);
}

static void check_can_be_left_out(void **state) {
    json_t *json = run_bench(state, "allreduce -b 64 -e 64 -n 2 -c 0", NULL, 0);
    const json_t *row = json_array_get(json_object_get(json, "rows"), 0);
    assert_true(json_is_null(json_object_get(row, "wrong")));
    json_decref(json);
}

/* ---- why ---- */

static void explain_says_what_was_chosen_and_what_else_there_is(void **state) {
    char out[16384];
    json_t *json = run_bench(state, "allreduce --explain -b 64 -e 4M -f 256", out, sizeof out);
    json_t *row;
    size_t r;
    assert_int_equal((int)json_array_size(json_object_get(json, "rows")), 3);
    json_array_foreach(json_object_get(json, "rows"), r, row) {
        const json_t *all = json_object_get(row, "candidates");
        assert_true(json_array_size(all) >= 2);
        assert_string_equal(text_in(row, "algorithm"),
                            text_in(json_array_get(all, 0), "algorithm"));
        for (size_t i = 1; i < json_array_size(all); i++)
            assert_true(number_in(json_array_get(all, i), "expected_us") >=
                        number_in(json_array_get(all, i - 1), "expected_us"));
        assert_non_null(strstr(out, text_in(row, "algorithm")));
    }
    json_decref(json);
}

static void explain_says_what_was_forced(void **state) {
    char out[16384];
    json_t *json =
        run_bench(state, "broadcast --explain -b 64 -e 64 --algo binomial", out, sizeof out);
    const json_t *row = json_array_get(json_object_get(json, "rows"), 0);
    assert_string_equal(text_in(row, "algorithm"), "binomial");
    assert_true(json_is_true(json_object_get(row, "forced")));
    assert_non_null(strstr(out, "forced by LOCKSTEP_ALGO"));
    json_decref(json);
}

static void explain_knows_the_only_way(void **state) {
    char out[16384];
    json_decref(run_bench(state, "sendrecv --explain -b 64 -e 64", out, sizeof out));
    assert_non_null(strstr(out, "the only way"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_requests_are_refused, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(every_output_is_right, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(a_row_says_what_was_measured, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(check_can_be_left_out, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(explain_says_what_was_chosen_and_what_else_there_is,
                                        make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(explain_says_what_was_forced, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(explain_knows_the_only_way, make_scratch, remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
