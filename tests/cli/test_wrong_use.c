/* Wrong requests, one row each: exit code, the words that name the culprit and the way out, and
 * nothing started: no output, no run folder, no process. */
#include "cli/train_program.h"

/* In options `%` stands for the scratch folder. */
typedef struct wrong_use {
    const char *options;
    int exit_code;
    const char *texts[5];
} wrong_use;

static void expand(const char *from, const char *folder, char *to, size_t size) {
    size_t used = 0;
    for (; *from; from++) {
        int n = *from == '%' ? snprintf(to + used, size - used, "%s", folder)
                             : snprintf(to + used, size - used, "%c", *from);
        used += (size_t)n;
        assert_true(used < size);
    }
    to[used] = '\0';
}

static void assert_nothing_started(void **state, const program_result *result, const char *what) {
    if (result->out[0]) fail_msg("%s: it printed\n%s", what, result->out);
    if (access(in_scratch(state, "out/run.json"), F_OK) == 0 ||
        access(in_scratch(state, "out/metrics.jsonl"), F_OK) == 0)
        fail_msg("%s: the run folder has files", what);
}

static void check_row(void **state, const program_opts *opts, const program_words *before,
                      const wrong_use *row) {
    char options[2048];
    program_words words = *before;
    program_result result;
    for (int i = 0; i < words.n; i++) /* copied words lie in the copy's own text */
        if (words.at[i] >= before->text && words.at[i] < before->text + sizeof before->text)
            words.at[i] = words.text + (words.at[i] - before->text);
    expand(row->options, *state, options, sizeof options);
    add_split(&words, "%s", options);
    program_run(opts, words.at, &result);
    if (result.exit_code != row->exit_code) print_error("%s\n", options);
    assert_refused_with(&result, row->exit_code, row->texts);
    assert_nothing_started(state, &result, options);
    program_release(&result);
}

static void wrong_training_is_refused(void **state) {
    static const wrong_use rows[] = {
        /* text */
        {"--data %/missing", 2, {"/missing", "No such file"}},
        {"--data %/empty", 2, {"/empty is empty"}},
        {"--data %", 2, {"is a folder", "expected a text file"}},
        {"--data /dev/zero", 2, {"/dev/zero", "no regular file"}},
        {"--data %/short", 2, {"/short: 10 tokens", "needs 17", "at most 9"}},
        {"--data %/few --batch-size 64", 2, {"/few: 18 training sequences", "--tail pad"}},
        {"--data", 2, {"--data: expected a value"}},
        {"--data --workers 2", 2, {"--data: expected a value", "found option --workers"}},
        /* batch and workers */
        {"--batch-size 10 --micro-batch-size 4", 2, {"--batch-size 10", "--batch-size 8 or 12"}},
        {"--workers 3 --batch-size 8", 2, {"--workers 3", "--batch-size 6 or 12"}},
        {"--workers 8 --batch-size 8 --micro-batch-size 2",
         2,
         {"--workers 8", "4 micro-batches", "--micro-batch-size 1", "--batch-size 16"}},
        {"--workers 0", 2, {"--workers", "1 to 64", "found 0"}},
        {"--workers 65", 2, {"--workers", "1 to 64", "found 65"}},
        {"--workers -1", 2, {"--workers", "1 to 64", "found -1"}},
        {"--workers abc", 2, {"--workers", "a whole number", "'abc'"}},
        {"--workers 2.5", 2, {"--workers", "'2.5'"}},
        {"--workers 99999999999999999999", 2, {"--workers", "99999999999999999999"}},
        {"--workers=", 2, {"--workers", "''"}},
        {"--batch-size 0", 2, {"--batch-size", "found 0"}},
        {"--steps 5 --epochs 2", 2, {"--steps 5", "--epochs 2", "give one"}},
        {"--steps -5", 2, {"--steps", "found -5"}},
        {"--threads 5000", 2, {"--threads", "0 to 4096"}},
        /* model */
        {"--n-embd 10 --n-head 3", 2, {"n_embd is 10", "multiple of n_head, 3"}},
        {"--vocab-size 100", 2, {"--vocab-size 100", "256"}},
        {"--model gpt5", 2, {"--model", "'gpt5'", "did you mean gpt2?"}},
        {"--dropout 1", 2, {"--dropout", "0 to 0.99"}},
        {"--n-layer 10000 --n-embd 1000000 --n-head 1000",
         2,
         {"parameters", "this machine has", "--n-embd"}},
        /* optimizer */
        {"--lr 0", 2, {"--lr", "found 0"}},
        {"--lr nan", 2, {"--lr", "finite", "'nan'"}},
        {"--lr inf", 2, {"--lr", "'inf'"}},
        {"--min-lr -0.5", 2, {"--min-lr -0.5", "-1"}},
        {"--schedule cosin", 2, {"--schedule", "cosine|linear|constant", "did you mean cosine?"}},
        {"--schedule xyzzy", 2, {"--schedule", "cosine|linear|constant", "'xyzzy'"}},
        /* where results go */
        {"--out %/empty", 2, {"--out", "/empty", "not a folder"}},
        {"--out %/empty/run", 2, {"--out", "/empty", "not a folder"}},
        {"--out /proc/x", 2, {"--out", "/proc/x"}},
        {"--out=", 2, {"--out"}},
        {"--json %/missing/result.json", 2, {"--json", "/missing/result.json", "No such file"}},
        {"--json %", 2, {"--json", "found a folder"}},
        {"--json=", 2, {"--json", "the name of a file"}},
        {"--trace %/missing/trace.json", 2, {"--trace", "/missing/trace.json"}},
        {"--out %/\xff\xfe", 2, {"UTF-8"}},
        /* words */
        {"--werkers 2", 2, {"--werkers", "did you mean --workers?"}},
        {"--xyzzy 2", 2, {"unknown option --xyzzy"}},
        {"-workers 2", 2, {"-workers", "did you mean --workers?"}},
        {"--no-workers", 2, {"--no-workers"}},
        {"--reproducible=maybe", 2, {"--reproducible", "true or false", "'maybe'"}},
        {"%/text", 2, {"unexpected word"}},
        {"-- --workers", 2, {"unexpected word '--workers'"}},
        /* configuration files */
        {"--config %/missing.json", 2, {"--config", "/missing.json", "No such file"}},
        {"--config %", 2, {"--config"}},
        {"--config %/empty", 2, {"--config", "/empty:1:0"}},
        {"--config %/half.json", 2, {"--config", "/half.json:1:"}},
        {"--config %/list.json", 2, {"/list.json", "a JSON object"}},
        {"--config %/unknown.json",
         2,
         {"/unknown.json", "\"wrkers\"", "did you mean \"workers\"?"}},
        {"--config %/type.json", 2, {"/type.json: workers", "a whole number", "\"two\""}},
        {"--config %/range.json", 2, {"/range.json: workers", "1 to 64", "found 0"}},
        {"--config %/range.json --workers 2", 2, {"/range.json: workers"}},
        {"--config %/twice.json", 2, {"/twice.json:1:", "duplicate"}},
        {"--config %/nested.json", 2, {"cannot name another"}},
    };
    program_words words = {.n = 0};
    add_small_run(&words, state);
    add_split(&words, "--steps 1 --out %s/out", (const char *)*state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(state, NULL, &words, &rows[i]);
}

static void wrong_environment_is_refused(void **state) {
    static const struct {
        const char *variable;
        wrong_use row;
    } rows[] = {
        {"LOCKSTEP_LR=fast", {"", 2, {"LOCKSTEP_LR", "'fast'"}}},
        {"LOCKSTEP_LR=fast", {"--lr 0.1", 2, {"LOCKSTEP_LR", "'fast'"}}},
        {"LOCKSTEP_WORKERS=0", {"", 2, {"LOCKSTEP_WORKERS", "1 to 64"}}},
        {"LOCKSTEP_BATCH_SIZE=3", {"--micro-batch-size 2", 2, {"--batch-size 3"}}},
        {"LOCKSTEP_CONFIG=/does/not/exist", {"", 2, {"/does/not/exist"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const environment[] = {rows[i].variable, NULL};
        program_opts opts = {.environment = environment};
        program_words words = {.n = 0};
        add_split(&words, "train --data %s/text --seq-len 16 --out %s/out", (const char *)*state,
                  (const char *)*state);
        check_row(state, &opts, &words, &rows[i].row);
    }
}

static void wrong_commands_are_refused(void **state) {
    static const wrong_use rows[] = {
        {"trian", 2, {"unknown command 'trian'", "did you mean 'train'?"}},
        {"xyzzy", 2, {"unknown command 'xyzzy'", "lockstep help"}},
        {"--trian", 2, {"unknown command '--trian'"}},
        {"help trian", 2, {"unknown command 'trian'", "did you mean 'train'?"}},
        {"help train extra", 2, {"help", "unexpected word 'extra'"}},
        {"version extra", 2, {"version", "unexpected word 'extra'"}},
        {"train", 2, {"--data FILE"}},
        {"generate", 2, {"--model FOLDER"}},
        {"generate --model %/missing", 2, {"/missing/config.json", "No such file"}},
        {"generate --model %/empty", 1, {"/empty/config.json", "Not a directory"}},
        {"generate --model %/model --prompt=", 2, {"--prompt is empty"}},
        {"generate --model %/model --temperature -1", 2, {"--temperature", "0 to 100"}},
        {"generate --model %/model --tokens -1", 2, {"--tokens", "found -1"}},
        {"generate --model %/model --modle x", 2, {"--modle", "did you mean --model?"}},
        {"generate %/model", 2, {"unexpected word"}},
        /* damaged models are failures, not wrong requests */
        {"generate --model %/cut", 1, {"/cut/model.safetensors", "not inside"}},
        {"generate --model %/cut-early", 1, {"/cut-early/model.safetensors", "cut off"}},
        {"generate --model %/no-weights", 2, {"/no-weights/model.safetensors", "No such file"}},
        {"generate --model %/no-config", 2, {"/no-config/config.json", "No such file"}},
        {"generate --model %/bad-config", 1, {"/bad-config/config.json:1:"}},
        {"generate --model %/other-config", 1, {"/other-config/", "wpe"}},
        {"run", 2, {"lockstep run --workers N -- PROGRAM"}},
        {"run --workers 2", 2, {"PROGRAM"}},
        {"run --workers 2 --", 2, {"PROGRAM"}},
        {"run --workers 100 -- true", 2, {"--workers", "1 to 64"}},
        {"run --wrkers 2 -- true", 2, {"--wrkers", "did you mean --workers?"}},
        {"run --workers 2 -- /does/not/exist", 1, {"/does/not/exist", "No such file"}},
        {"run --workers 2 -- false", 1, {"exited with code 1"}},
    };
    program_words words = {.n = 0};
    add_split(&words, "%s", "");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(state, NULL, &words, &rows[i]);
}

/* Root may read and write everything, so its test is done by nobody. */
static int become_nobody(void *context) {
    (void)context;
    enum { NOBODY = 65534 };
    if (geteuid() != 0) return 0;
    return setgid(NOBODY) != 0 || setuid(NOBODY) != 0;
}

static void paths_without_permission_are_refused(void **state) {
    static const wrong_use rows[] = {
        {"--data %/secret", 2, {"/secret", "Permission denied"}},
        {"--out %/locked/run", 2, {"--out", "/locked", "Permission denied"}},
        {"--out %/locked", 2, {"--out", "/locked", "Permission denied"}},
        {"--json %/locked/x.json", 2, {"--json", "/locked", "Permission denied"}},
    };
    program_opts opts = {.prepare = become_nobody};
    program_result result;
    program_run(&opts, (const char *const[]){"version", NULL}, &result);
    bool can_start = result.exit_code == 0; /* not when the program lies in a private folder */
    program_release(&result);
    if (!can_start) skip();
    program_words words = {.n = 0};
    add_small_run(&words, state);
    add_split(&words, "--steps 1 --out %s/open/out", (const char *)*state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_row(state, &opts, &words, &rows[i]);
}

static void no_command_shows_the_list(void **state) {
    (void)state;
    program_result result;
    program_run(NULL, (const char *const[]){NULL}, &result);
    assert_ended(&result, 2);
    assert_non_null(strstr(result.out, "train"));
    program_release(&result);
}

static void help_of_every_command_is_printed(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"help", "generate"},
        {"--help", "generate"},
        {"-h", "generate"},
        {"help train", "--workers"},
        {"train --help", "--lr"},
        {"train -h", "--lr"},
        {"help generate", "--top-k"},
        {"help run", "PROGRAM"},
        {"help version", "version"},
        {"help help", "--markdown"},
        {"help --markdown", "## lockstep train"},
        {"version", "compiler"},
        {"--version", "compiler"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_words words = {.n = 0};
        program_result result;
        add_split(&words, "%s", rows[i][0]);
        program_run(NULL, words.at, &result);
        assert_ended(&result, 0);
        assert_string_equal(result.err, "");
        if (!strstr(result.out, rows[i][1]))
            fail_msg("%s: no '%s' in\n%s", rows[i][0], rows[i][1], result.out);
        program_release(&result);
    }
}

/* What a run's own file says is weaker than the environment, and that weaker than the words. */
static void stronger_sources_win(void **state) {
    json_decref(train(state, "sources", "--steps 1 --seed 5"));
    const char *folder = *state;
    static const char *const environment[] = {"LOCKSTEP_SEED=6", "LOCKSTEP_LR=0.5",
                                              "LOCKSTEP_N_LAYER=", NULL};
    program_opts opts = {.environment = environment};
    program_words words = {.n = 0};
    program_result result;
    add_split(&words, "train --config %s/sources/run.json --seed 7", folder);
    program_run(&opts, words.at, &result);
    assert_ended(&result, 0);
    program_release(&result);
    json_t *run = read_json(state, "sources/run.json");
    assert_int_equal(number_of(run, "seed"), 7);
    assert_true(number_of(run, "lr") == 0.5);
    assert_int_equal(number_of(run, "n-embd"), 16);
    assert_int_equal(number_of(run, "n-layer"), 1);
    json_decref(run);
}

static void make_model_folder(void **state, const char *name, const char *config,
                              file_bytes weights) {
    char file[256];
    assert_int_equal(mkdir(in_scratch(state, name), 0777), 0);
    snprintf(file, sizeof file, "%s/config.json", name);
    if (config) put_text(in_scratch(state, file), config);
    snprintf(file, sizeof file, "%s/model.safetensors", name);
    if (weights.data) assert_ok(lsi_file_replace(in_scratch(state, file), weights.data, weights.n));
}

static int set_up(void **state) {
    if (make_text(state) != 0) return -1;
    put_text(in_scratch(state, "empty"), "");
    put_text(in_scratch(state, "short"), "ten bytes.");
    write_sentences(in_scratch(state, "few"), 300, 2);
    put_text(in_scratch(state, "secret"), "text");
    put_text(in_scratch(state, "half.json"), "{\"workers\": 2,");
    put_text(in_scratch(state, "list.json"), "[1]");
    put_text(in_scratch(state, "unknown.json"), "{\"wrkers\": 2}");
    put_text(in_scratch(state, "type.json"), "{\"workers\": \"two\"}");
    put_text(in_scratch(state, "range.json"), "{\"workers\": 0}");
    put_text(in_scratch(state, "twice.json"), "{\"workers\": 1, \"workers\": 2}");
    put_text(in_scratch(state, "nested.json"), "{\"config\": \"other.json\"}");
    assert_int_equal(chmod(in_scratch(state, "secret"), 0), 0);
    assert_int_equal(mkdir(in_scratch(state, "locked"), 0555), 0);
    assert_int_equal(mkdir(in_scratch(state, "open"), 0777), 0);
    assert_int_equal(chmod(in_scratch(state, "open"), 0777), 0);
    assert_int_equal(chmod(*state, 0755), 0);

    json_decref(train(state, "made", "--steps 1"));
    file_bytes weights = bytes_of(state, "made/model/model.safetensors");
    file_bytes config = bytes_of(state, "made/model/config.json");
    file_bytes cut = {weights.data, weights.n - 1}, cut_early = {weights.data, 1000}, none = {0};
    /* more positions than there are weights for */
    char *other = strdup(config.data);
    for (char *at = other; (at = strstr(at, ": 16,")) && at < strstr(other, "n_embd");) at[3] = '7';
    make_model_folder(state, "model", config.data, weights);
    make_model_folder(state, "cut", config.data, cut);
    make_model_folder(state, "cut-early", config.data, cut_early);
    make_model_folder(state, "no-weights", config.data, none);
    make_model_folder(state, "no-config", NULL, weights);
    make_model_folder(state, "bad-config", "{", weights);
    make_model_folder(state, "other-config", other, weights);
    free(other);
    lsi_free(weights.data);
    lsi_free(config.data);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_training_is_refused),
        cmocka_unit_test(wrong_environment_is_refused),
        cmocka_unit_test(wrong_commands_are_refused),
        cmocka_unit_test(paths_without_permission_are_refused),
        cmocka_unit_test(no_command_shows_the_list),
        cmocka_unit_test(help_of_every_command_is_printed),
        cmocka_unit_test(stronger_sources_win),
    };
    return cmocka_run_group_tests(tests, set_up, remove_scratch);
}
