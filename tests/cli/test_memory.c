/* The memory table of a run: kinds add up to what the system measured at peak, within 5 %, for
 * models small and larger, by workers and threads, with and without the copies that
 * --reproducible keeps; what a parameter takes is what it must, on every rank, with no second
 * copy of gradients; and --print-memory says so. Under sanitizers the system counts their shadow
 * memory too, so there is nothing to compare. */
#include "harness/harness.h"

#include <math.h>

#include <jansson.h>

#include "harness/program.h"
#include "harness/scratch.h"
#include "harness/text.h"
#include "observe/observe.h"

static const char *const configurations[] = {
    "--workers 1 --threads 1",
    "--workers 1 --threads 2",
    "--workers 2 --n-embd 256 --n-head 8 --seq-len 256 --batch-size 8",
    "--workers 4 --micro-batch-size 2 --reproducible",
    "--workers 2 --n-layer 6 --n-embd 256 --vocab-size 5000 --batch-size 4",
    "--workers 2 --n-embd 256 --vocab-size 5000 --batch-size 4 --strategy zero1",
    "--workers 2 --n-embd 256 --vocab-size 5000 --batch-size 4 --strategy zero2 --replicas private",
    "--workers 4 --n-embd 256 --vocab-size 5000 --batch-size 4 --strategy zero3",
    "--workers 2 --n-embd 256 --vocab-size 5000 --batch-size 4 --strategy zero3 --replicas private",
};

static void check_rank(const char *configuration, const json_t *row) {
    /* of shared parameters the rank accounts for its part, and maps all of them */
    double sum = (double)json_integer_value(json_object_get(row, "peer_bytes"));
    const char *kind;
    json_t *bytes;
    json_object_foreach(json_object_get(row, "peak_bytes"), kind, bytes) {
        assert_true(json_integer_value(bytes) >= 0);
        sum += (double)json_integer_value(bytes);
    }
    double measured = (double)json_integer_value(json_object_get(row, "peak_rss_bytes"));
    assert_true(measured > 0);
    if (fabs(sum / measured - 1) > 0.05)
        fail_msg("%s: rank %lld: kinds add up to %.0f bytes, the system measured %.0f (%.1f %%)",
                 configuration, (long long)json_integer_value(json_object_get(row, "rank")), sum,
                 measured, 100 * sum / measured);
}

static void kinds_add_up_to_the_measured_peak(void **state) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    const char *folder = *state, *text = in_scratch(state, "text");
    const char *json = in_scratch(state, "json");
    write_sentences(text, 200000, 1);
    for (size_t c = 0; c < sizeof configurations / sizeof configurations[0]; c++) {
        program_words words = {0};
        add_split(&words, "train --data %s --out %s/run --json %s --steps 2 --eval-samples 1 %s",
                  text, folder, json, configurations[c]);
        program_result result;
        program_run(NULL, words.at, &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *all = json_load_file(json, 0, NULL), *row;
        assert_non_null(all);
        size_t r;
        json_array_foreach(json_object_get(all, "ranks"), r, row)
            check_rank(configurations[c], row);
        json_decref(all);
    }
}

/* ---- bytes of a parameter ---- */

/* Gradients are float32 and lie in buckets alone; bfloat16 has its lower half besides the
 * moments. A rank touches its slice of the buckets of all others. Frozen parameters have no
 * gradient. */
static const struct {
    const char *options;
    double params, grads, optimizer, buckets;
    bool is_frozen; /* some are: what is left of gradients is not known here, but moments are 2 */
} formulas[] = {
    {"--workers 1", 4, 4, 8, 0, false},
    {"--workers 2", 4, 4, 8, 4 * 1 / 2.0, false},
    {"--workers 4", 4, 4, 8, 4 * 3 / 4.0, false},
    {"--workers 1 --dtype bf16", 2, 4, 10, 0, false},
    {"--workers 2 --dtype bf16", 2, 4, 10, 4 * 1 / 2.0, false},
    {"--workers 4 --dtype bf16", 2, 4, 10, 4 * 3 / 4.0, false},
    {"--workers 2 --micro-batch-size 1", 4, 4, 8, 4 * 1 / 2.0, false},
    {"--workers 2 --bucket-cap-mb 0.01 --first-bucket-mb 0.01 --no-overlap", 4, 4, 8, 4 * 1 / 2.0,
     false},
    {"--workers 2 --freeze h.0.", 4, 0, 0, 0, true},
};

static double bytes_of(const json_t *row, const char *when, const char *kind) {
    const json_t *bytes = json_object_get(json_object_get(row, when), kind);
    assert_true(json_is_integer(bytes));
    return (double)json_integer_value(bytes);
}

static void assert_bytes(const char *options, const json_t *row, const char *kind,
                         double expected) {
    double found = bytes_of(row, "peak_bytes", kind);
    assert_true(bytes_of(row, "now_bytes", kind) == found); /* these kinds stay */
    if (fabs(found - expected) > 0.01 * expected)
        fail_msg("%s: rank %lld: %.0f bytes of %s, expected %.0f", options,
                 (long long)json_integer_value(json_object_get(row, "rank")), found, kind,
                 expected);
}

static void check_formula(size_t f, const json_t *row, double n_params) {
    const char *options = formulas[f].options;
    assert_bytes(options, row, "params", formulas[f].params * n_params);
    if (formulas[f].is_frozen) {
        assert_true(bytes_of(row, "peak_bytes", "grads") < 0.7 * 4 * n_params);
        assert_bytes(options, row, "optimizer", 2 * bytes_of(row, "peak_bytes", "grads"));
        return;
    }
    assert_bytes(options, row, "grads", formulas[f].grads * n_params);
    assert_bytes(options, row, "optimizer", formulas[f].optimizer * n_params);
    assert_bytes(options, row, "buckets", formulas[f].buckets * n_params);
}

static void a_parameter_takes_the_bytes_of_the_formula(void **state) {
    const char *folder = *state, *json = in_scratch(state, "json");
    write_sentences(in_scratch(state, "text"), 20000, 1);
    for (size_t f = 0; f < sizeof formulas / sizeof formulas[0]; f++) {
        program_words words = {0};
        program_result result;
        add_split(&words,
                  "train --data %s/text --out %s/run --json %s --steps 3 --threads 1 "
                  "--val-fraction 0 --batch-size 8 --n-layer 2 --n-embd 64 --seq-len 16 %s",
                  folder, folder, json, formulas[f].options);
        program_run(NULL, words.at, &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *all = json_load_file(json, 0, NULL), *row;
        double n_params = (double)json_integer_value(json_object_get(all, "n_params"));
        size_t r;
        json_array_foreach(json_object_get(all, "ranks"), r, row) check_formula(f, row, n_params);
        json_decref(all);
    }
}

/* ---- the table of --print-memory ---- */

/* The share of what is printed below that is trained then. */
#define FREEZE "--freeze wte,wpe,h.0.mlp,h.0.attn.c_attn.bias "
#define TRAINED (264704.0 / 654848)

/* Bytes a parameter that the formula must show and measured bytes must be, on each rank. */
static const struct {
    const char *options;
    double params, grads, optimizer, peers, file;
} printed[] = {
    {"--workers 2", 4, 4, 8, 0, 0},
    {"--workers 2 --strategy zero1", 4 / 2.0, 4, 8 / 2.0, 4 / 2.0, 0},
    {"--workers 2 --strategy zero1 --replicas private --dtype bf16", 2, 4, 10 / 2.0, 2 / 2.0, 0},
    {"--workers 4 --strategy zero2 --dtype bf16", 2 / 4.0, 4 / 4.0, 10 / 4.0, 2 * 3 / 4.0, 0},
    {"--workers 2 --strategy zero2 --replicas private", 4, 4 / 2.0, 8 / 2.0, 4 / 2.0, 0},
    {"--workers 2 --strategy zero3", 4 / 2.0, 4 / 2.0, 8 / 2.0, 4 / 2.0, 0},
    {"--workers 2 --strategy zero3 --replicas private", 4 / 2.0, 4 / 2.0, 8 / 2.0, 0, 0},
    {"--workers 4 --strategy hybrid --shard-group 2 --replicas private --dtype bf16", 2 / 2.0,
     4 / 2.0, 10 / 2.0, 0, 0},
    {"--workers 2 --strategy zero2 --offload optimizer --dtype bf16", 2 / 2.0, 4 / 2.0, 0, 2 / 2.0,
     10 / 2.0},
    {"--workers 2 --strategy zero3 --replicas private --offload params", 0, 4 / 2.0, 0, 0,
     4 / 2.0 + 8 / 2.0},
    /* frozen ones are sharded, with lower halves */
    {"--workers 2 --strategy zero3 --replicas private " FREEZE, 4 / 2.0, 4 / 2.0 * TRAINED,
     8 / 2.0 * TRAINED, 0, 0},
    {"--workers 4 --strategy zero3 --replicas private --dtype bf16 --persist-below 2 " FREEZE,
     2 / 4.0, 4 / 4.0 * TRAINED, 8 / 4.0 * TRAINED + 2 / 4.0, 0, 0},
    {"--workers 4 --strategy hybrid --shard-group 2 --replicas private --dtype bf16 " FREEZE,
     2 / 2.0, 4 / 2.0 * TRAINED, 8 / 2.0 * TRAINED + 2 / 2.0, 0, 0},
    {"--workers 2 --strategy zero3 --replicas private --offload params --dtype bf16 " FREEZE, 0,
     4 / 2.0 * TRAINED, 0, 0, 2 / 2.0 + 8 / 2.0 * TRAINED + 2 / 2.0},
};

/* The table's line that begins with a name, copied without its end; false if there is none. */
static bool find_line(const char *out, const char *name, char line[128]) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\n%-12s ", name);
    const char *table = strstr(out, "\nmemory              formula");
    if (!table) fail_msg("no table in\n%s", out);
    const char *at = strstr(table, pattern);
    if (at) snprintf(line, 128, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    return at != NULL;
}

static double percent_of(const char *line) {
    const char *sign = strrchr(line, '+') ? strrchr(line, '+') : strrchr(line, '-');
    if (!sign || !strchr(sign, '%')) fail_msg("no difference in: %s", line);
    return strtod(sign, NULL);
}

/* The formula is what it must be, and what was measured is within 2 % of it; nothing has no line.
 */
static void check_line(const char *options, const char *out, const char *name, double expected) {
    char line[128], bytes[16], formula[32];
    if (find_line(out, name, line) != (expected > 0))
        fail_msg("%s: %.0f bytes of %s expected in\n%s", options, expected, name, out);
    if (expected == 0) return;
    lsi_format_bytes(expected, bytes, sizeof bytes);
    snprintf(formula, sizeof formula, "%-12s %14s", name, bytes);
    if (strncmp(line, formula, strlen(formula)) != 0)
        fail_msg("%s: expected '%s', found: %s", options, formula, line);
    if (strcmp(name, "of peers") != 0 && fabs(percent_of(line)) > 2)
        fail_msg("%s: not within 2 %% of the formula: %s", options, line);
}

static void what_is_printed_is_formula_and_measure(void **state) {
    const char *folder = *state, *json = in_scratch(state, "json");
    write_sentences(in_scratch(state, "text"), 20000, 1);
    for (size_t c = 0; c < sizeof printed / sizeof printed[0]; c++) {
        const char *options = printed[c].options;
        program_words words = {0};
        program_result result;
        add_split(&words,
                  "train --data %s/text --out %s/run --json %s --steps 2 --threads 1 "
                  "--val-fraction 0 --batch-size 8 --micro-batch-size 2 --n-layer 2 --n-embd 128 "
                  "--seq-len 16 --vocab-size 2000 --print-memory %s",
                  folder, folder, json, options);
        program_run(NULL, words.at, &result);
        assert_ended(&result, 0);
        json_t *all = json_load_file(json, 0, NULL);
        double n_params = (double)json_integer_value(json_object_get(all, "n_params"));
        check_line(options, result.out, "params", printed[c].params * n_params);
        check_line(options, result.out, "grads", printed[c].grads * n_params);
        check_line(options, result.out, "optimizer", printed[c].optimizer * n_params);
        check_line(options, result.out, "of peers", printed[c].peers * n_params);
        check_line(options, result.out, "in a file", printed[c].file * n_params);
        json_decref(all);
        program_release(&result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kinds_add_up_to_the_measured_peak, make_scratch,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(a_parameter_takes_the_bytes_of_the_formula, make_scratch,
                                        remove_scratch),
        cmocka_unit_test_setup_teardown(what_is_printed_is_formula_and_measure, make_scratch,
                                        remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
