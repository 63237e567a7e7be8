/* What the tests of `lockstep train` share: a small text, a small model, and one call per run. */
#ifndef TESTS_CLI_TRAIN_PROGRAM_H
#define TESTS_CLI_TRAIN_PROGRAM_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "base/mem.h"
#include "harness/program.h"
#include "harness/scratch.h"
#include "harness/text.h"

/* 6,000 tokens: 374 samples of 16. One thread, because bits may depend on their number. */
enum { SMALL_TEXT_BYTES = 6000, SMALL_SAMPLES = 374, SMALL_SEQ_LEN = 16 };

static inline int make_text(void **state) {
    if (make_scratch(state) != 0) return -1;
    write_sentences(in_scratch(state, "text"), SMALL_TEXT_BYTES, 1);
    return 0;
}

static inline void remove_in_scratch(void **state, const char *name) {
    assert_int_equal(nftw(in_scratch(state, name), remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* Words of a run with the small model; out folder, --json and more options are added by callers. */
static inline void add_small_run(program_words *words, void **state) {
    add_split(words, "train --data %s/text --val-fraction 0 --threads 1 --log-every 1000",
              (const char *)*state);
    add_split(words,
              "--n-layer 1 --n-head 2 --n-embd 16 --seq-len %d --batch-size 8 "
              "--micro-batch-size 2",
              SMALL_SEQ_LEN);
}

/* Starts a run into FOLDER/name, result in FOLDER/name.json. */
static inline program *start_training(void **state, const program_opts *opts, const char *name,
                                      const char *options) {
    program_words words = {.n = 0};
    add_small_run(&words, state);
    add_split(&words, "--out %s/%s --json %s/%s.json", (const char *)*state, name,
              (const char *)*state, name);
    add_split(&words, "%s", options);
    return program_start(opts, words.at);
}

static inline json_t *read_json(void **state, const char *name) {
    json_t *json = NULL;
    assert_ok(lsi_file_read_json(in_scratch(state, name), 64 << 20, &json));
    return json;
}

static inline json_t *result_of(void **state, const char *name) {
    char file[256];
    snprintf(file, sizeof file, "%s.json", name);
    return read_json(state, file);
}

/* A run that must succeed; its result (release it with json_decref). */
__attribute__((format(printf, 3, 4))) static inline json_t *train(void **state, const char *name,
                                                                  const char *format, ...) {
    char options[1024];
    program_result result;
    va_list values;
    va_start(values, format);
    vsnprintf(options, sizeof options, format, values);
    va_end(values);
    program_finish(start_training(state, NULL, name, options), &result);
    if (result.exit_code != 0) print_error("options: %s\n", options);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    program_release(&result);
    return result_of(state, name);
}

static inline double number_of(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}

static inline const char *text_in(const json_t *json, const char *key) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_string(value)) fail_msg("no text \"%s\"", key);
    return json_string_value(value);
}

static inline void assert_same_weights(const json_t *a, const json_t *b, const char *what) {
    const char *x = text_in(a, "weights_sha256"), *y = text_in(b, "weights_sha256");
    if (strlen(x) != 64 || strcmp(x, y) != 0) fail_msg("%s: weights %s and %s", what, x, y);
}

/* A file's bytes as they are now, to be compared later; release them with lsi_free. */
typedef struct file_bytes {
    char *data;
    size_t n;
} file_bytes;

static inline file_bytes bytes_of(void **state, const char *name) {
    file_bytes bytes = {0};
    assert_ok(lsi_file_read(in_scratch(state, name), 64 << 20, &bytes.data, &bytes.n));
    return bytes;
}

static inline void assert_unchanged(void **state, const char *name, file_bytes before) {
    file_bytes now = bytes_of(state, name);
    if (now.n != before.n || memcmp(now.data, before.data, now.n) != 0)
        fail_msg("%s is not what it was", name);
    lsi_free(now.data);
}

/* Lines of metrics.jsonl of a run that have the key, as an array. */
static inline json_t *metrics_with(void **state, const char *name, const char *key) {
    char file[256], *text = NULL;
    size_t bytes = 0;
    json_t *lines = json_array();
    snprintf(file, sizeof file, "%s/metrics.jsonl", name);
    assert_ok(lsi_file_read(in_scratch(state, file), 64 << 20, &text, &bytes));
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        if (!line[0]) continue;
        json_t *json = json_loads(line, 0, NULL);
        if (!json) fail_msg("%s: not JSON: %s", file, line);
        if (json_object_get(json, key)) json_array_append(lines, json);
        json_decref(json);
    }
    lsi_free(text);
    return lines;
}

#endif
