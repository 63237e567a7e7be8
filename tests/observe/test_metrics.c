/* The metrics file: whole JSON lines, exact numbers, and what happens when they cannot be kept. */
#include "observe/observe.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "harness/scratch.h"

static void *folder;
static char path[96];

static int setup(void **state) {
    (void)state;
    if (make_scratch(&folder) != 0) return -1;
    snprintf(path, sizeof path, "%s", in_scratch(&folder, "metrics.jsonl"));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return remove_scratch(&folder);
}

static const lsi_step_record RECORD = {.step = 3,
                                       .loss = 2.1034,
                                       .lr = 6e-4,
                                       .grad_norm = 1.0 / 3,
                                       .n_tokens = 4096,
                                       .n_workers = 4,
                                       .step_ms = 250,
                                       .forward_ms = 60.5,
                                       .backward_ms = 120.25,
                                       .optimizer_ms = 30.125,
                                       .comm_ms = 12.5,
                                       .comm_exposed_ms = 1e-3,
                                       .wait_ms = 5e-4,
                                       .bytes_sent = (int64_t)1 << 40,
                                       .n_skipped = 2};

/* Line number `line` (0 = the first) of the file as JSON; NULL past the end. */
static json_t *read_line(int line) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char text[1024];
    json_t *found = NULL;
    for (int i = 0; fgets(text, sizeof text, file); i++) {
        assert_int_equal(text[strlen(text) - 1], '\n');
        if (i != line) continue;
        found = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(found);
    }
    fclose(file);
    return found;
}

static double number_of(const json_t *line, const char *name) {
    const json_t *value = json_object_get(line, name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void steps_are_kept_exactly_and_at_once(void **state) {
    (void)state;
    lsi_metrics *metrics;
    assert_ok(lsi_metrics_open(path, &metrics));
    lsi_metrics_step(metrics, &RECORD);
    json_t *line = read_line(0); /* before close: every line is flushed */
    assert_int_equal(json_object_size(line), 17);
    assert_true(number_of(line, "step") == 3);
    assert_true(number_of(line, "loss") == RECORD.loss);
    assert_true(number_of(line, "lr") == RECORD.lr);
    assert_true(number_of(line, "grad_norm") == RECORD.grad_norm);
    assert_true(number_of(line, "n_tokens") == 4096);
    assert_true(number_of(line, "n_workers") == 4);
    assert_true(number_of(line, "step_ms") == 250);
    assert_true(number_of(line, "forward_ms") == 60.5);
    assert_true(number_of(line, "backward_ms") == 120.25);
    assert_true(number_of(line, "optimizer_ms") == 30.125);
    assert_true(number_of(line, "comm_ms") == 12.5);
    assert_true(number_of(line, "comm_exposed_ms") == 1e-3);
    assert_true(number_of(line, "wait_ms") == 5e-4);
    assert_true(number_of(line, "bytes_sent") == 0x1p40);
    assert_true(number_of(line, "n_skipped") == 2);
    assert_true(number_of(line, "tokens_per_s") == 16384);
    assert_true(number_of(line, "tokens_per_s_per_worker") == 4096);
    json_decref(line);

    lsi_metrics_evaluation(metrics, 3, 1.75, NAN);
    line = read_line(1);
    assert_int_equal(json_object_size(line), 2);
    assert_true(number_of(line, "step") == 3);
    assert_true(number_of(line, "val_loss") == 1.75);
    json_decref(line);
    lsi_metrics_evaluation(metrics, 4, 1.5, 0.875);
    line = read_line(2);
    assert_int_equal(json_object_size(line), 3);
    assert_true(number_of(line, "val_accuracy") == 0.875);
    json_decref(line);
    assert_null(read_line(3));
    assert_ok(lsi_metrics_close(metrics));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* T116: 4 workers with 4 micro-batches of 2 sequences of 8 tokens each, half a second a step. */
static void throughput_counts_all_workers_and_micro_batches(void **state) {
    (void)state;
    lsi_metrics *metrics;
    lsi_step_record record = {.n_tokens = 4 * 4 * 2 * 8, .n_workers = 4, .step_ms = 500};
    assert_ok(lsi_metrics_open(path, &metrics));
    lsi_metrics_step(metrics, &record);
    assert_ok(lsi_metrics_close(metrics));
    json_t *line = read_line(0);
    assert_true(number_of(line, "n_tokens") == 256);
    assert_true(number_of(line, "tokens_per_s") == 512);
    assert_true(number_of(line, "tokens_per_s_per_worker") == 128);
    json_decref(line);
}

static void numbers_that_are_none_become_null(void **state) {
    (void)state;
    lsi_metrics *metrics;
    lsi_step_record record = RECORD;
    record.loss = NAN, record.grad_norm = INFINITY, record.step_ms = 0;
    assert_ok(lsi_metrics_open(path, &metrics));
    lsi_metrics_step(metrics, &record);
    lsi_metrics_evaluation(metrics, 1, -INFINITY, NAN);
    assert_ok(lsi_metrics_close(metrics));
    json_t *line = read_line(0);
    assert_true(json_is_null(json_object_get(line, "loss")));
    assert_true(json_is_null(json_object_get(line, "grad_norm")));
    assert_true(json_is_null(json_object_get(line, "tokens_per_s")));
    json_decref(line);
    line = read_line(1);
    assert_true(json_is_null(json_object_get(line, "val_loss")));
    json_decref(line);
}

static void opening_starts_an_empty_file(void **state) {
    (void)state;
    lsi_metrics *metrics;
    for (int i = 0; i < 2; i++) {
        assert_ok(lsi_metrics_open(path, &metrics));
        assert_null(read_line(0));
        lsi_metrics_step(metrics, &RECORD);
        assert_ok(lsi_metrics_close(metrics));
    }
    json_decref(read_line(0));
    assert_null(read_line(1));
}

static void no_metrics_take_anything(void **state) {
    (void)state;
    lsi_metrics_step(NULL, &RECORD);
    lsi_metrics_evaluation(NULL, 1, 1, NAN);
    assert_ok(lsi_metrics_close(NULL));
}

static void file_that_cannot_be_made_is_named(void **state) {
    (void)state;
    lsi_metrics *metrics = NULL;
    char absent[128];
    snprintf(absent, sizeof absent, "%s/no/metrics.jsonl", (const char *)folder);
    assert_fails(lsi_metrics_open(absent, &metrics), LS_ERR_IO, absent);
    assert_fails(lsi_metrics_open(folder, &metrics), LS_ERR_IO, (const char *)folder);
    assert_null(metrics);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void full_disk_is_said_by_close(void **state) {
    (void)state;
    lsi_metrics *metrics;
    struct rlimit usual, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_ok(lsi_metrics_open(path, &metrics));
    lsi_metrics_step(metrics, &RECORD);
    limit = usual;
    limit.rlim_cur = 400;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 10; i++) lsi_metrics_step(metrics, &RECORD);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
    signal(SIGXFSZ, handler);
    /* Room again: yet nothing may follow the half line. */
    lsi_metrics_step(metrics, &RECORD);
    lsi_metrics_evaluation(metrics, 1, 1, NAN);
    assert_fails(lsi_metrics_close(metrics), LS_ERR_IO, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    assert_int_equal(ftell(file), 400);
    fclose(file);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void every_failed_allocation_is_answered(void **state) {
    (void)state;
    int64_t n = 0;
    ls_status status;
    do {
        lsi_metrics *metrics = NULL;
        lsi_mem_fail_at(++n);
        status = lsi_metrics_open(path, &metrics);
        if (status == LS_OK) {
            lsi_metrics_step(metrics, &RECORD);
            lsi_metrics_evaluation(metrics, 1, 1, NAN);
            status = lsi_metrics_close(metrics);
        }
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    } while (status != LS_OK);
    assert_true(n > 3);
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(steps_are_kept_exactly_and_at_once),
        IN_FOLDER(throughput_counts_all_workers_and_micro_batches),
        IN_FOLDER(numbers_that_are_none_become_null),
        IN_FOLDER(opening_starts_an_empty_file),
        IN_FOLDER(no_metrics_take_anything),
        IN_FOLDER(file_that_cannot_be_made_is_named),
        IN_FOLDER(full_disk_is_said_by_close),
        IN_FOLDER(every_failed_allocation_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
