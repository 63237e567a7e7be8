/* The option table: what each way of writing an option gives, what each mistake is answered with,
 * who wins, and the printed forms. */
#include <locale.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/opt.h"
#include "harness/scratch.h"

typedef struct values {
    int64_t workers, tokens, offset;
    double lr;
    bool verbose, overlap;
    const char *out, *strategy, *config;
} values;

#define AT(field) offsetof(values, field)
static const lsi_opt table[] = {
    {"workers", 'n', LSI_OPT_INT, AT(workers), "N", "2", 1, 256, NULL, "Run", "Worker processes."},
    {"out", 'o', LSI_OPT_TEXT, AT(out), "FOLDER", NULL, 0, 0, NULL, "Run", "Where the results go."},
    {"strategy", 0, LSI_OPT_CHOICE, AT(strategy), NULL, "ddp", 0, 0, "single|ddp|zero1|zero2",
     "Run", "How replicas are kept the same."},
    {"lr", 0, LSI_OPT_FLOAT, AT(lr), NULL, "6e-4", 0, 1, NULL, "Training", "Learning rate."},
    {"micro-batch-tokens", 0, LSI_OPT_INT, AT(tokens), "tokens", "4Ki", 1, 9.3e18, NULL, "Training",
     "Tokens of one micro-batch | of one worker."},
    {"verbose", 'v', LSI_OPT_BOOL, AT(verbose), NULL, NULL, 0, 0, NULL, "Run", "Says more."},
    {"overlap", 0, LSI_OPT_BOOL, AT(overlap), NULL, "true", 0, 0, NULL, "Training",
     "Communicates during the backward pass."},
    {"offset", 0, LSI_OPT_INT, AT(offset), NULL, NULL, 0, 0, NULL, NULL, NULL},
    {"config", 0, LSI_OPT_TEXT, AT(config), "FILE", NULL, 0, 0, NULL, "Run",
     "JSON file of options."},
    {NULL, 0, LSI_OPT_INT, 0, NULL, NULL, 0, 0, NULL, NULL, NULL},
};

static const char *const variables[] = {"LOCKSTEP_WORKERS",  "LOCKSTEP_LR",
                                        "LOCKSTEP_CONFIG",   "LOCKSTEP_MICRO_BATCH_TOKENS",
                                        "LOCKSTEP_STRATEGY", "LOCKSTEP_OVERLAP"};

static int clean(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
    lsi_mem_fail_at(0);
    return lsi_mem_n_blocks() == 0 ? 0 : -1;
}

enum { MAX_WORDS = 12, N_POSITIONAL = 2 };

typedef const char *words[MAX_WORDS + 1]; /* NULL ends */

/* Everything one parse gives. */
typedef struct parsed {
    values values;
    const char *positional[N_POSITIONAL];
    lsi_opt_set *set;
} parsed;

static ls_status parse(const char *const *arguments, parsed *found) {
    char *argv[MAX_WORDS + 1];
    int argc = 0;
    for (; arguments[argc]; argc++) argv[argc] = (char *)(uintptr_t)arguments[argc];
    found->set = NULL;
    return lsi_opt_parse(table, argc, argv, &found->values, found->positional, N_POSITIONAL,
                         &found->set);
}

/* ---- right ones ---- */

static void no_arguments_give_defaults(void **state) {
    (void)state;
    parsed found;
    memset(&found, 0xA5, sizeof found);
    assert_ok(parse((words){NULL}, &found));
    assert_int_equal(found.values.workers, 2);
    assert_int_equal(found.values.tokens, 4096);
    assert_int_equal(found.values.offset, 0);
    assert_true(found.values.lr == 6e-4);
    assert_false(found.values.verbose);
    assert_true(found.values.overlap);
    assert_null(found.values.out);
    assert_null(found.values.config);
    assert_string_equal(found.values.strategy, "ddp");
    assert_null(found.positional[0]);
    assert_null(found.positional[1]);
    lsi_opt_destroy(found.set);
    lsi_opt_destroy(NULL);
}

static void every_way_of_writing_gives_value(void **state) {
    (void)state;
    static const struct {
        words arguments;
        values expected; /* zero: the default */
        const char *positional[N_POSITIONAL];
    } rows[] = {
        {{"--workers", "3"}, {.workers = 3}, {NULL}},
        {{"--workers=3"}, {.workers = 3}, {NULL}},
        {{"-n", "3"}, {.workers = 3}, {NULL}},
        {{"-n3"}, {.workers = 3}, {NULL}},
        {{"--workers", "3", "--workers", "4"}, {.workers = 4}, {NULL}},
        {{"--offset", "-5"}, {.offset = -5}, {NULL}},
        {{"--offset=-5"}, {.offset = -5}, {NULL}},
        {{"--offset", "7k"}, {.offset = 7000}, {NULL}},
        {{"--offset", "7M"}, {.offset = 7000000}, {NULL}},
        {{"--offset", "-7G"}, {.offset = -7000000000}, {NULL}},
        {{"--offset", "3Ki"}, {.offset = 3072}, {NULL}},
        {{"--offset", "3Mi"}, {.offset = 3145728}, {NULL}},
        {{"--offset", "3Gi"}, {.offset = 3221225472}, {NULL}},
        {{"--offset", "9223372036854775807"}, {.offset = INT64_MAX}, {NULL}},
        {{"--offset", "-9223372036854775808"}, {.offset = INT64_MIN}, {NULL}},
        {{"--offset", "010"}, {.offset = 10}, {NULL}},
        {{"--lr", "1e-3"}, {.lr = 1e-3}, {NULL}},
        {{"--lr", ".5"}, {.lr = 0.5}, {NULL}},
        {{"--lr=1"}, {.lr = 1}, {NULL}},
        {{"--verbose"}, {.verbose = true}, {NULL}},
        {{"-v"}, {.verbose = true}, {NULL}},
        {{"--verbose=yes"}, {.verbose = true}, {NULL}},
        {{"--verbose=on", "--no-verbose"}, {.verbose = false}, {NULL}},
        {{"--verbose", "word"}, {.verbose = true}, {"word"}},
        {{"--out", "a b"}, {.out = "a b"}, {NULL}},
        {{"--out", "-"}, {.out = "-"}, {NULL}},
        {{"--out="}, {.out = ""}, {NULL}},
        {{"--out=--x=y"}, {.out = "--x=y"}, {NULL}},
        {{"-o", "x"}, {.out = "x"}, {NULL}},
        {{"--strategy", "zero2"}, {.strategy = "zero2"}, {NULL}},
        {{"a", "--workers", "3", "b"}, {.workers = 3}, {"a", "b"}},
        {{"-", "--", "--workers"}, {.workers = 0}, {"-", "--workers"}},
        {{"--", "--"}, {.workers = 0}, {"--"}},
        {{""}, {.workers = 0}, {""}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parsed found;
        const values *expected = &rows[i].expected;
        assert_ok(parse(rows[i].arguments, &found));
        assert_int_equal(found.values.workers, expected->workers ? expected->workers : 2);
        assert_int_equal(found.values.offset, expected->offset);
        assert_true(found.values.lr == (expected->lr != 0 ? expected->lr : 6e-4));
        assert_int_equal(found.values.verbose, expected->verbose);
        assert_string_equal(found.values.strategy, expected->strategy ? expected->strategy : "ddp");
        if (expected->out) {
            assert_string_equal(found.values.out, expected->out);
        } else {
            assert_null(found.values.out);
        }
        for (int p = 0; p < N_POSITIONAL; p++) {
            if (rows[i].positional[p]) {
                assert_string_equal(found.positional[p], rows[i].positional[p]);
            } else {
                assert_null(found.positional[p]);
            }
        }
        lsi_opt_destroy(found.set);
    }
}

static void boolean_words_are_understood(void **state) {
    (void)state;
    static const struct {
        const char *word;
        bool expected;
    } rows[] = {
        {"--overlap", true},        {"--no-overlap", false}, {"--overlap=true", true},
        {"--overlap=yes", true},    {"--overlap=on", true},  {"--overlap=1", true},
        {"--overlap=false", false}, {"--overlap=no", false}, {"--overlap=off", false},
        {"--overlap=0", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parsed found;
        assert_ok(parse((words){rows[i].word}, &found));
        assert_int_equal(found.values.overlap, rows[i].expected);
        lsi_opt_destroy(found.set);
    }
}

static void decimal_point_is_point_in_every_locale(void **state) {
    (void)state;
    parsed found;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "C"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!setlocale(LC_ALL, names[i])) continue; /* not installed here */
        ls_status status = parse((words){"--lr", "0.25"}, &found);
        setlocale(LC_ALL, "C");
        assert_ok(status);
        assert_true(found.values.lr == 0.25);
        lsi_opt_destroy(found.set);
    }
}

/* ---- wrong ones ---- */

static void every_mistake_is_answered(void **state) {
    (void)state;
    static const struct {
        words arguments;
        const char *message;
    } rows[] = {
        {{"--werkers", "3"}, "unknown option --werkers; did you mean --workers?"},
        {{"--werkers=3"}, "unknown option --werkers; did you mean --workers?"},
        {{"--Workers", "3"}, "did you mean --workers?"},
        {{"--micro_batch_tokens=3"}, "did you mean --micro-batch-tokens?"},
        {{"--micro", "3"}, "did you mean --micro-batch-tokens?"},
        {{"--no-verbos"}, "did you mean --no-verbose?"},
        {{"--no-workers"}, "unknown option --no-workers; did you mean --workers?"},
        {{"-workers", "3"}, "unknown option -workers; did you mean --workers?"},
        {{"--blue"}, "unknown option --blue"},
        {{"--=3"}, "unknown option --"},
        {{"---"}, "unknown option ---"},
        {{"-z"}, "unknown option -z"},
        {{"-1"}, "unknown option -1"},
        {{"-vn"}, "-v: expected nothing after it, found 'n'"},
        {{"--workers"}, "--workers: expected a value (N) after it"},
        {{"-n"}, "-n: expected a value (N) after it"},
        {{"--out", "--lr", "1"},
         "--out: expected a value (FOLDER) after it, found option --lr; "
         "write --out=--lr if that is the value"},
        {{"--workers", "--", "3"}, "--workers: expected a value (N) after it, found option --"},
        {{"--workers", ""},
         "--workers: expected a whole number (k, M, G or Ki, Mi, Gi may follow), "
         "found ''"},
        {{"--workers", "x"}, "found 'x'"},
        {{"--workers", "3x"}, "found '3x'"},
        {{"--workers", " 3"}, "found ' 3'"},
        {{"--workers", "3.5"}, "found '3.5'"},
        {{"--workers", "0x10"}, "found '0x10'"},
        {{"--workers", "k"}, "found 'k'"},
        {{"--workers", "3K"}, "found '3K'"},
        {{"--workers", "0"}, "--workers: expected 1 to 256, found 0"},
        {{"--workers", "257"}, "--workers: expected 1 to 256, found 257"},
        {{"--workers", "1k"}, "--workers: expected 1 to 256, found 1000"},
        {{"--micro-batch-tokens", "0"}, "--micro-batch-tokens: expected at least 1, found 0"},
        {{"--offset", "9223372036854775808"}, "found '9223372036854775808'"},
        {{"--offset", "9223372036854775807k"}, "found '9223372036854775807k'"},
        {{"--lr", "1.5"}, "--lr: expected 0 to 1, found 1.5"},
        {{"--lr", "-1e-9"}, "--lr: expected 0 to 1, found -1e-09"},
        {{"--lr", "nan"}, "--lr: expected a finite number, found 'nan'"},
        {{"--lr", "inf"}, "found 'inf'"},
        {{"--lr", "1e999"}, "found '1e999'"},
        {{"--lr", "0,5"}, "found '0,5'"},
        {{"--lr="}, "found ''"},
        {{"--verbose=maybe"}, "--verbose: expected true or false, found 'maybe'"},
        {{"--no-verbose=true"}, "--no-verbose: expected no value, found 'true'"},
        {{"--strategy", "zero3"},
         "--strategy: expected one of single|ddp|zero1|zero2, found "
         "'zero3'; did you mean zero1?"},
        {{"--strategy", "DDP"}, "did you mean ddp?"},
        {{"--strategy", "fsdp"}, "found 'fsdp'"},
        {{"--strategy", "single|ddp"}, "found 'single|ddp'"},
        {{"--strategy="}, "found ''"},
        {{"a", "b", "c"}, "unexpected word 'c'"},
        {{"--", "a", "b", "--lr"}, "unexpected word '--lr'"},
        {{"--config", "/none/such.json"}, "--config: /none/such.json: cannot open: No such file"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parsed found;
        memset(&found, 0xA5, sizeof found);
        parsed before = found;
        ls_status status = parse(rows[i].arguments, &found);
        assert_fails(status, LS_ERR_USAGE, rows[i].message);
        assert_memory_equal(&found.values, &before.values, sizeof found.values);
        assert_null(found.set);
        assert_null(found.positional[0]);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void very_long_words_are_answered(void **state) {
    (void)state;
    static char text[5000];
    memset(text, 'w', sizeof text - 1);
    text[0] = text[1] = '-';
    parsed found;
    assert_fails(parse((words){text}, &found), LS_ERR_USAGE, "unknown option --www");
    assert_fails(parse((words){text + 1}, &found), LS_ERR_USAGE, "unknown option -www");
    assert_fails(parse((words){"--workers", text + 2}, &found), LS_ERR_USAGE, "found 'www");
    assert_fails(parse((words){"--strategy", text + 2}, &found), LS_ERR_USAGE, "found 'www");
    assert_ok(parse((words){text + 2}, &found));
    lsi_opt_destroy(found.set);
}

/* ---- sources ---- */

static void later_source_wins(void **state) {
    const char *path = in_scratch(state, "run.json");
    put_text(path, "{\"workers\": 4, \"lr\": 0.25, \"micro-batch-tokens\": \"8Ki\", \"out\": \"c\","
                   " \"verbose\": true, \"offset\": null}");
    setenv("LOCKSTEP_LR", "0.5", 1);
    setenv("LOCKSTEP_MICRO_BATCH_TOKENS", "77", 1);
    setenv("LOCKSTEP_STRATEGY", "", 1); /* empty: not set */
    parsed found;
    assert_ok(parse((words){"--micro-batch-tokens", "5", "--config", path}, &found));
    assert_int_equal(found.values.workers, 4);
    assert_true(found.values.lr == 0.5);
    assert_int_equal(found.values.tokens, 5);
    assert_true(found.values.verbose);
    assert_string_equal(found.values.out, "c");
    assert_string_equal(found.values.strategy, "ddp");
    static const struct {
        const char *name;
        lsi_opt_source source;
    } rows[] = {
        {"workers", LSI_OPT_FROM_CONFIG},
        {"lr", LSI_OPT_FROM_ENVIRONMENT},
        {"micro-batch-tokens", LSI_OPT_FROM_COMMAND_LINE},
        {"config", LSI_OPT_FROM_COMMAND_LINE},
        {"strategy", LSI_OPT_FROM_DEFAULT},
        {"offset", LSI_OPT_FROM_DEFAULT},
        {"no-such", LSI_OPT_FROM_DEFAULT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(lsi_opt_where(found.set, rows[i].name), rows[i].source);
    }
    lsi_opt_destroy(found.set);
}

static void environment_may_name_config(void **state) {
    const char *path = in_scratch(state, "env.json");
    put_text(path, "{\"workers\": 9}");
    setenv("LOCKSTEP_CONFIG", path, 1);
    setenv("LOCKSTEP_OVERLAP", "0", 1);
    parsed found;
    assert_ok(parse((words){NULL}, &found));
    assert_int_equal(found.values.workers, 9);
    assert_false(found.values.overlap);
    lsi_opt_destroy(found.set);
}

static void wrong_environment_is_named(void **state) {
    (void)state;
    parsed found;
    setenv("LOCKSTEP_WORKERS", "many", 1);
    assert_fails(parse((words){"--workers", "3"}, &found), LS_ERR_USAGE,
                 "LOCKSTEP_WORKERS: expected a whole number");
}

static void config_values_of_every_type_are_read(void **state) {
    static const struct {
        const char *text;
        values expected;
    } rows[] = {
        {"{\"offset\": -3}", {.offset = -3}},
        {"{\"offset\": 1e6}", {.offset = 1000000}},
        {"{\"offset\": \"-3k\"}", {.offset = -3000}},
        {"{\"offset\": 9223372036854775807}", {.offset = INT64_MAX}},
        {"{\"lr\": 1}", {.lr = 1}},
        {"{\"strategy\": \"zero1\"}", {.strategy = "zero1"}},
        {"{\"out\": \"ä\"}", {.out = "ä"}},
        {"{}", {.lr = 0}},
    };
    const char *path = in_scratch(state, "types.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parsed found;
        put_text(path, rows[i].text);
        assert_ok(parse((words){"--config", path}, &found));
        const values *expected = &rows[i].expected;
        assert_int_equal(found.values.offset, expected->offset);
        assert_true(found.values.lr == (expected->lr != 0 ? expected->lr : 6e-4));
        assert_string_equal(found.values.strategy, expected->strategy ? expected->strategy : "ddp");
        if (expected->out) assert_string_equal(found.values.out, expected->out);
        lsi_opt_destroy(found.set);
    }
}

static void wrong_config_is_answered(void **state) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"wokers\": 3}", ": unknown option \"wokers\"; did you mean \"workers\"?"},
        {"{\"blue\": 3}", ": unknown option \"blue\""},
        {"{\"workers\": true}", ": workers: expected a whole number"},
        {"{\"workers\": true}", "found true"},
        {"{\"workers\": 2.5}", "found a real number"},
        {"{\"workers\": 1e300}", "found a real number"},
        {"{\"workers\": \"x\"}", "found \"x\""},
        {"{\"workers\": []}", "found an array"},
        {"{\"workers\": {}}", "found an object"},
        {"{\"workers\": 1000}", ": workers: expected 1 to 256, found 1000"},
        {"{\"lr\": \"0.5\"}", ": lr: expected a finite number, found \"0.5\""},
        {"{\"verbose\": 1}", ": verbose: expected true or false, found a number"},
        {"{\"out\": 1}", ": out: expected a text, found a number"},
        {"{\"strategy\": \"dpp\"}", "did you mean ddp?"},
        {"{\"config\": \"x.json\"}", "cannot name another one"},
        {"{\"workers\": 3, \"workers\": 3}", "duplicate object key"},
        {"{\"workers\": 3,}", "--config: "},
        {"[1]", "expected a JSON object of options"},
        {"", "--config: "},
    };
    const char *path = in_scratch(state, "wrong.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parsed found;
        put_text(path, rows[i].text);
        /* an error also where the command line overrides the value */
        ls_status status = parse((words){"--config", path, "--workers", "2"}, &found);
        assert_fails(status, LS_ERR_USAGE, rows[i].message);
        assert_non_null(strstr(ls_last_message(), path));
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void every_allocation_may_fail(void **state) {
    const char *path = in_scratch(state, "alloc.json");
    put_text(path, "{\"out\": \"c\", \"strategy\": \"ddp\"}");
    for (int64_t n = 1;; n++) {
        parsed found;
        lsi_mem_fail_at(n);
        ls_status status = parse((words){"--out", "a", "--out", "b", "--config", path}, &found);
        if (!lsi_mem_has_failed()) {
            assert_ok(status);
            assert_string_equal(found.values.out, "b");
            lsi_opt_destroy(found.set);
            assert_true(n > 6);
            return;
        }
        assert_fails(status, LS_ERR_MEMORY, "failed on request");
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

/* ---- printed forms ---- */

static void json_form_comes_back_as_config(void **state) {
    const char *path = in_scratch(state, "back.json");
    parsed first, second;
    assert_ok(parse((words){"-n", "7", "--lr", "0.1", "--no-overlap", "--out", "x", "--verbose",
                            "--offset", "-9223372036854775808"},
                    &first));
    json_t *json = lsi_opt_to_json(table, &first.values);
    assert_non_null(json);
    assert_null(json_object_get(json, "config"));
    assert_int_equal(json_integer_value(json_object_get(json, "workers")), 7);
    assert_ok(lsi_file_replace_json(path, json));
    json_decref(json);
    assert_ok(parse((words){"--config", path}, &second));
    assert_int_equal(second.values.workers, 7);
    assert_true(second.values.lr == 0.1);
    assert_false(second.values.overlap);
    assert_true(second.values.verbose);
    assert_true(second.values.offset == INT64_MIN);
    assert_string_equal(second.values.out, "x");
    assert_string_equal(second.values.strategy, "ddp");
    lsi_opt_destroy(first.set);
    lsi_opt_destroy(second.set);
}

static char *printed(void (*print)(FILE *out, int columns), int columns) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    print(out, columns);
    fclose(out);
    return text;
}

static void print_help(FILE *out, int columns) {
    lsi_opt_print_help(table, out, columns);
}

static void print_markdown(FILE *out, int columns) {
    (void)columns;
    lsi_opt_print_markdown(table, out);
}

static void help_shows_groups_defaults_and_ranges(void **state) {
    (void)state;
    char *text = printed(print_help, 80);
    assert_string_equal(
        text, "Run:\n"
              "  -n, --workers N      Worker processes. [1 to 256, default 2]\n"
              "  -o, --out FOLDER     Where the results go.\n"
              "      --strategy WORD  How replicas are kept the same. One of single, ddp,\n"
              "                       zero1, zero2. [default ddp]\n"
              "  -v, --verbose        Says more.\n"
              "      --config FILE    JSON file of options.\n"
              "\n"
              "Training:\n"
              "      --lr X           Learning rate. [0 to 1, default 6e-4]\n"
              "      --micro-batch-tokens tokens\n"
              "                       Tokens of one micro-batch | of one worker. [at least 1,\n"
              "                       default 4Ki]\n"
              "      --[no-]overlap   Communicates during the backward pass. [default true]\n"
              "\n"
              "Options:\n"
              "      --offset N\n");
    free(text);
}

static void help_keeps_to_its_columns(void **state) {
    (void)state;
    static const int columns[] = {-1, 0, 44, 60, 79, 80, 100, 1000};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        char *text = printed(print_help, columns[i]);
        int limit = columns[i] < 43 ? 43 : columns[i]; /* two columns need 23 + 20 */
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
            assert_true((int)strcspn(line, "\n") <= limit);
        }
        free(text);
    }
}

static void markdown_has_one_table_a_group(void **state) {
    (void)state;
    char *text = printed(print_markdown, 0);
    assert_non_null(strstr(text,
                           "### Run\n\n| option | value | default | legal | meaning |\n"
                           "|---|---|---|---|---|\n"
                           "| `--workers`, `-n` | N | `2` | 1 to 256 | Worker processes. |\n"));
    assert_non_null(strstr(text, "| `--strategy` | WORD | `ddp` | single\\|ddp\\|zero1\\|zero2 |"));
    assert_non_null(strstr(text, "micro-batch \\| of one worker"));
    assert_non_null(strstr(text, "\n\n### Training\n\n"));
    free(text);
}

/* ---- suggestions ---- */

static void nearest_word_is_found_if_near(void **state) {
    (void)state;
    static const char *const list[] = {"train", "bench", "plan", "explain", "micro-batch-size",
                                       "x",     NULL};
    static const char *const rows[][2] = {
        {"train", "train"},
        {"trian", "train"},
        {"tarin", "train"},
        {"rain", "train"},
        {"trainn", "train"},
        {"TRAIN", "train"},
        {"benhc", "bench"},
        {"plane", "plan"},
        {"explian", "explain"},
        {"pan", "plan"},
        {"mic", "micro-batch-size"},
        {"mi", NULL},
        {"microbatchsize", "micro-batch-size"},
        {"y", "x"},
        {"", NULL},
        {"submarine", NULL},
        {"traffic", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *found = lsi_nearest(rows[i][0], list);
        if (rows[i][1]) {
            assert_non_null(found);
            assert_string_equal(found, rows[i][1]);
        } else {
            assert_null(found);
        }
    }
    static const char *const nothing[] = {NULL};
    assert_null(lsi_nearest("train", nothing));
}

int main(void) {
#define ROW(test) cmocka_unit_test_teardown(test, clean)
    const struct CMUnitTest tests[] = {
        ROW(no_arguments_give_defaults),
        ROW(every_way_of_writing_gives_value),
        ROW(boolean_words_are_understood),
        ROW(decimal_point_is_point_in_every_locale),
        ROW(every_mistake_is_answered),
        ROW(very_long_words_are_answered),
        ROW(later_source_wins),
        ROW(environment_may_name_config),
        ROW(wrong_environment_is_named),
        ROW(config_values_of_every_type_are_read),
        ROW(wrong_config_is_answered),
        ROW(every_allocation_may_fail),
        ROW(json_form_comes_back_as_config),
        ROW(help_shows_groups_defaults_and_ranges),
        ROW(help_keeps_to_its_columns),
        ROW(markdown_has_one_table_a_group),
        ROW(nearest_word_is_found_if_near),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
