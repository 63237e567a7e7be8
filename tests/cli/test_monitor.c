/* Where the time of a run goes, as docs/monitoring.md says it: the table of buckets, the timeline,
 * metrics.jsonl and the monitor in --json. Times are held against each other, never to a clock. */
#include <math.h>

#include "checkpoint/model_folder.h"
#include "cli/train_program.h"
#include "nn/model.h"

/* ---- the table of buckets ---- */

typedef struct bucket_line {
    int index, n_params;
    double bytes; /* as printed: rounded where there are more than 1023 */
} bucket_line;

static double unit_bytes(const char *unit) {
    return strcmp(unit, "B") == 0 ? 1 : strcmp(unit, "KiB") == 0 ? 1024 : 1024 * 1024;
}

/* What --print-buckets printed; the number of rows. The total has index -1. */
static int read_table(const char *text, bucket_line *rows, int most, bucket_line *total) {
    const char *at = strstr(text, "\nbucket ");
    int n = 0;
    *total = (bucket_line){.index = 0};
    while (at && (at = strchr(at + 1, '\n')) && total->index == 0) {
        char first[16], unit[8], type[8];
        double size;
        bucket_line row = {.index = -1};
        if (sscanf(at, " total %lf %7s %d", &size, unit, &row.n_params) == 3) {
            row.bytes = size * unit_bytes(unit);
            *total = row;
        } else if (n < most && sscanf(at, " %15s %lf %7s %7s %d", first, &size, unit, type,
                                      &row.n_params) == 5) {
            row.index = atoi(first);
            row.bytes = size * unit_bytes(unit);
            assert_string_equal(type, "F32");
            rows[n++] = row;
        }
    }
    return n;
}

enum { CACHE_LINE_FLOATS = 16 };

static void print_buckets(void **state, const char *options, program_result *result) {
    program_finish(start_training(state, NULL, "table", options), result);
    assert_ended(result, 0);
}

/* Gradients in cache lines that no two parameters share. */
static double padded_bytes(const lsi_model *model) {
    double bytes = 0;
    for (int i = 0; i < model->n_params; i++) {
        int64_t lines = (model->params[i].count + CACHE_LINE_FLOATS - 1) / CACHE_LINE_FLOATS;
        bytes += (double)(lines * CACHE_LINE_FLOATS) * sizeof(float);
    }
    return bytes;
}

static void assert_adds_up(const bucket_line *rows, int n, bucket_line total,
                           const lsi_model *model) {
    const double rounding = 0.05 * 1024;
    double expected = padded_bytes(model), sum = 0;
    int n_params = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(rows[i].index, i);
        sum += rows[i].bytes;
        n_params += rows[i].n_params;
    }
    if (fabs(sum - expected) > n * rounding || fabs(total.bytes - expected) > rounding)
        fail_msg("buckets of %.0f, total %.0f, expected %.0f bytes", sum, total.bytes, expected);
    assert_int_equal(n_params, model->n_params);
    assert_int_equal(total.n_params, model->n_params);
}

#define SMALL_BUCKETS "--bucket-cap-mb 0.004 --first-bucket-mb 0.001 "

static void buckets_of_the_table_hold_all_gradients_once(void **state) {
    static const struct {
        const char *options;
        int at_least, at_most;
    } rows[] = {
        {"", 1, 1},
        {SMALL_BUCKETS, 4, 15},
        {"--bucket-cap-mb 0.0001 --first-bucket-mb 0.0001", 16, 16},
        {SMALL_BUCKETS "--dtype bf16", 4, 15},
        {SMALL_BUCKETS "--no-overlap --no-rebuild-buckets", 4, 15},
        {SMALL_BUCKETS "--comm-hook bf16", 4, 15},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[128], *tokenizer;
        bucket_line lines[32], total;
        program_result result;
        lsi_model *model;
        snprintf(options, sizeof options, "--steps 3 --workers 2 --print-buckets %s",
                 rows[i].options);
        print_buckets(state, options, &result);
        int n = read_table(result.out, lines, 32, &total);
        if (n < rows[i].at_least || n > rows[i].at_most)
            fail_msg("%s: %d buckets in:\n%s", options, n, result.out);
        assert_ok(lsi_model_load(in_scratch(state, "table/model"), &model, &tokenizer));
        assert_adds_up(lines, n, total, model);
        lsi_model_destroy(model);
        lsi_free(tokenizer);
        program_release(&result);
    }
}

static void tables_are_printed_only_where_asked_for(void **state) {
    bucket_line lines[4], total;
    program_result result;
    print_buckets(state, "--steps 2 --workers 2", &result);
    assert_int_equal(read_table(result.out, lines, 4, &total), 0);
    assert_non_null(strstr(result.out, "\na step of rank 0 "));
    assert_non_null(strstr(result.out, "\nadvice "));
    program_release(&result);
}

/* ---- the timeline ---- */

static const char *name_of(const json_t *event) {
    const char *name = json_string_value(json_object_get(event, "name"));
    return name ? name : "";
}

static bool is_bucket(const json_t *event) {
    return strncmp(name_of(event), "bucket ", 7) == 0;
}

static double end_of(const json_t *event) {
    return number_of(event, "ts") + number_of(event, "dur");
}

/* Whether a backward pass of the bucket's rank, in which its span begins, computes something later:
 * the end of the pass, when what was held back is posted, belongs to it too. */
static bool is_followed_by_work(const json_t *events, const json_t *bucket) {
    double begin = number_of(bucket, "ts"), rank = number_of(bucket, "pid"), end = -1;
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) {
        bool is_pass = strcmp(name_of(event), "backward") == 0 && number_of(event, "pid") == rank;
        if (is_pass && number_of(event, "ts") <= begin && begin < end_of(event))
            end = end_of(event);
    }
    json_array_foreach(events, i, event) {
        const json_t *lane = json_object_get(event, "tid");
        if (!json_object_get(event, "dur") || number_of(event, "pid") != rank) continue;
        if (json_integer_value(lane) == 0 && number_of(event, "ts") >= begin &&
            end_of(event) <= end)
            return true;
    }
    return false;
}

typedef struct bucket_spans {
    int n[4], n_early[4];     /* by rank: all, and those that begin amid backward */
    double largest, bytes[4]; /* number of a bucket; sum over all spans */
} bucket_spans;

static bucket_spans count_buckets(void **state, const char *options) {
    bucket_spans spans = {.largest = -1};
    size_t i;
    json_t *event;
    json_decref(
        train(state, "trace", "--steps 3 --trace %s/trace.out %s", (const char *)*state, options));
    json_t *trace = read_json(state, "trace.out");
    const json_t *events = json_object_get(trace, "traceEvents");
    json_array_foreach(events, i, event) {
        if (!is_bucket(event)) continue;
        int rank = (int)number_of(event, "pid");
        assert_in_range(rank, 0, 3);
        const json_t *arguments = json_object_get(event, "args");
        spans.n[rank]++;
        spans.n_early[rank] += is_followed_by_work(events, event);
        spans.bytes[rank] += number_of(arguments, "bytes");
        spans.largest = fmax(spans.largest, number_of(arguments, "index"));
        assert_true(number_of(event, "dur") >= 0);
    }
    json_decref(trace);
    return spans;
}

/* A span for each bucket and step of each rank; with overlap all but those that the last gradients
 * complete, both embeddings', begin amid the backward pass, without it none. */
static void timelines_show_buckets_in_flight_during_backward(void **state) {
    static const char small[] = "--workers 3 --batch-size 6 --no-rebuild-buckets " SMALL_BUCKETS;
    char late[128];
    snprintf(late, sizeof late, "%s --no-overlap", small);
    bucket_spans overlapped = count_buckets(state, small), after = count_buckets(state, late);
    assert_true(overlapped.largest >= 3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(overlapped.n[r], 3 * (overlapped.largest + 1));
        assert_int_equal(after.n[r], overlapped.n[r]);
        assert_true(overlapped.bytes[r] == overlapped.bytes[0] && overlapped.bytes[r] > 0);
        assert_true(overlapped.n_early[r] >= 3 * (overlapped.largest - 1));
        assert_int_equal(after.n_early[r], 0);
    }
}

static void one_worker_has_a_timeline_too(void **state) {
    bucket_spans alone = count_buckets(state, "--workers 1");
    assert_int_equal(alone.n[1], 0);
}

/* ---- metrics and monitor ---- */

static void metrics_have_the_documented_fields(void **state) {
    static const char *const fields[] = {"step",
                                         "loss",
                                         "lr",
                                         "grad_norm",
                                         "n_tokens",
                                         "n_workers",
                                         "step_ms",
                                         "forward_ms",
                                         "backward_ms",
                                         "optimizer_ms",
                                         "comm_ms",
                                         "wait_ms",
                                         "bytes_sent",
                                         "comm_exposed_ms",
                                         "n_skipped",
                                         "tokens_per_s",
                                         "tokens_per_s_per_worker"};
    enum { N_FIELDS = sizeof fields / sizeof fields[0], STEPS = 8 };
    for (int workers = 1; workers <= 2; workers++) {
        json_decref(train(state, "fields", "--steps %d --workers %d", STEPS, workers));
        json_t *lines = metrics_with(state, "fields", "step");
        assert_int_equal(json_array_size(lines), STEPS);
        for (size_t i = 0; i < STEPS; i++) {
            const json_t *line = json_array_get(lines, i);
            for (size_t f = 0; f < N_FIELDS; f++)
                if (!(number_of(line, fields[f]) >= 0))
                    fail_msg("step %zu: %s is %g", i + 1, fields[f], number_of(line, fields[f]));
            assert_int_equal(json_object_size(line), N_FIELDS);
            assert_int_equal(number_of(line, "n_workers"), workers);
        }
        json_decref(lines);
    }
}

/* Passes, optimizer and exposed communication are inside of the step and fill it, but for gaps. */
static void assert_times_fill_the_step(const json_t *times) {
    double step = number_of(times, "step_ms");
    double sum = number_of(times, "forward_ms") + number_of(times, "backward_ms") +
                 number_of(times, "optimizer_ms") + number_of(times, "comm_exposed_ms");
    if (!(sum <= 1.01 * step)) fail_msg("parts of %g ms in a step of %g ms", sum, step);
    assert_true(number_of(times, "forward_ms") > 0 && number_of(times, "backward_ms") > 0);
    assert_true(number_of(times, "optimizer_ms") > 0);
    const json_t *other = json_object_get(times, "other_ms");
    if (other && fabs(sum + json_number_value(other) - step) > 0.01 * step)
        fail_msg("parts of %g and other %g ms, a step of %g ms", sum, json_number_value(other),
                 step);
}

static void times_add_up_to_the_step(void **state) {
    for (int workers = 1; workers <= 4; workers *= 2) {
        json_t *r = train(state, "times", "--steps 12 --workers %d", workers);
        const json_t *monitor = json_object_get(r, "monitor");
        json_t *lines = metrics_with(state, "times", "step_ms");
        double step_ms = 0;
        for (size_t i = 0; i < 12; i++) {
            assert_times_fill_the_step(json_array_get(lines, i));
            if (i > 0) step_ms += number_of(json_array_get(lines, i), "step_ms") / 11;
        }
        assert_times_fill_the_step(monitor);
        assert_int_equal(number_of(monitor, "n_steps"), 11);
        assert_true(fabs(number_of(monitor, "step_ms") - step_ms) < 1e-9 * step_ms);
        json_decref(lines);
        json_decref(r);
    }
}

static void monitors_in_results_say_everything(void **state) {
    static const char *const numbers[] = {
        "n_steps",      "n_skipped",  "step_ms",         "forward_ms",     "backward_ms",
        "optimizer_ms", "comm_ms",    "comm_exposed_ms", "comm_hidden_ms", "wait_ms",
        "other_ms",     "comm_share", "wait_share"};
    static const char *const verdicts[] = {"alone",      "healthy",   "worth_a_look",
                                           "comm_bound", "slow_rank", "uneven"};
    for (int workers = 1; workers <= 2; workers++) {
        json_t *r = train(state, "monitor", "--steps 5 --workers %d", workers);
        const json_t *m = json_object_get(r, "monitor");
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            assert_true(number_of(m, numbers[i]) >= 0);
        assert_true(number_of(m, "comm_share") <= 1 && number_of(m, "wait_share") <= 1);
        bool known = false;
        for (size_t i = 0; i < sizeof verdicts / sizeof verdicts[0]; i++)
            known |= strcmp(text_in(m, "verdict"), verdicts[i]) == 0;
        assert_true(known);
        assert_true((strcmp(text_in(m, "verdict"), "alone") == 0) == (workers == 1));
        const json_t *ranks = json_object_get(m, "ranks");
        assert_int_equal(json_array_size(ranks), workers);
        for (int k = 0; k < workers; k++)
            assert_true(number_of(json_array_get(ranks, (size_t)k), "compute_ms") > 0);
        json_decref(r);
    }
}

/* On a link where all runs are bound by communication. */
static void advice_is_for_the_strategy(void **state) {
    static const struct {
        const char *options, *helps;
    } rows[] = {
        {"--strategy ddp", "--strategy zero1, a --comm-hook;"},
        {"--strategy zero1", "a larger batch or accumulation computes more"},
        {"--strategy zero2", "accumulation does not, each micro-batch is exchanged"},
        {"--strategy zero3", "what sends less: --strategy zero1, --reduce-dtype bf16;"},
        {"--strategy fsdp --replicas private", "--reshard no, --strategy hybrid, --replicas"},
        {"--strategy zero3 --replicas private --reshard no", "less: --strategy hybrid, --replicas"},
        {"--strategy hybrid --shard-group 2 --replicas private", "less: --reshard no, --replicas"},
        {"--strategy hybrid --shard-group 2 --replicas private --reshard no",
         "less: --replicas shared;"},
        {"--strategy hybrid --shard-group 2", "less: --strategy zero1, --reduce-dtype bf16;"},
    };
    const program_opts slow = {.environment =
                                   (const char *const[]){"LOCKSTEP_LINK=latency_us=4000", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[256];
        program_result result;
        snprintf(options, sizeof options, "--steps 2 --workers 2 --batch-size 4 %s",
                 rows[i].options);
        program_finish(start_training(state, &slow, "advice", options), &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *r = result_of(state, "advice");
        const json_t *monitor = json_object_get(r, "monitor");
        assert_string_equal(text_in(monitor, "verdict"), "comm_bound");
        if (!strstr(text_in(monitor, "advice"), rows[i].helps))
            fail_msg("%s: no '%s' in: %s", rows[i].options, rows[i].helps,
                     text_in(monitor, "advice"));
        json_decref(r);
    }
}

/* ---- the contract of --json ---- */

static void results_have_what_programs_rely_on(void **state) {
    static const char *const numbers[] = {
        "world_size", "steps",   "loss_first",      "loss_last",  "tokens_per_s",
        "step_ms",    "comm_ms", "comm_exposed_ms", "bytes_sent", "n_skipped"};
    static const char *const texts[] = {"strategy", "grad_average", "comm_hook"};
    static const char *const kinds[] = {"params",      "grads",   "optimizer",
                                        "activations", "buckets", "other"};
    json_t *r = train(state, "contract", "--steps 3 --workers 2 --comm-hook int8");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_true(number_of(r, numbers[i]) >= 0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_true(strlen(text_in(r, texts[i])) > 0);
    assert_int_equal(strlen(text_in(r, "weights_sha256")), 64);
    assert_int_equal(json_array_size(json_object_get(r, "loss")), 3);
    assert_int_equal(json_array_size(json_object_get(r, "peak_rss_bytes")), 2);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        assert_true(number_of(json_object_get(r, "peak_bytes"), kinds[i]) > 0);
    json_decref(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_of_the_table_hold_all_gradients_once),
        cmocka_unit_test(tables_are_printed_only_where_asked_for),
        cmocka_unit_test(timelines_show_buckets_in_flight_during_backward),
        cmocka_unit_test(one_worker_has_a_timeline_too),
        cmocka_unit_test(metrics_have_the_documented_fields),
        cmocka_unit_test(times_add_up_to_the_step),
        cmocka_unit_test(monitors_in_results_say_everything),
        cmocka_unit_test(advice_is_for_the_strategy),
        cmocka_unit_test(results_have_what_programs_rely_on),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
