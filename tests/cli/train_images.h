/* What the tests of `lockstep train` on images share: a small set that can be learned, because one
 * quarter of each image is bright, and one call per run. */
#ifndef TESTS_CLI_TRAIN_IMAGES_H
#define TESTS_CLI_TRAIN_IMAGES_H

#include "checkpoint/files.h"
#include "cli/train_program.h"
#include "data/idx_files.h"

enum { SIDE = 8, N_TRAIN = 240, N_TEST = 60, N_CLASSES = 4 };

static inline uint32_t noise(uint32_t i) {
    i = (i ^ 61u ^ (i >> 16)) * 9u;
    i = (i ^ (i >> 4)) * 0x27d4eb2du;
    return i ^ (i >> 15);
}

static inline unsigned char pixel(uint32_t image, uint32_t row, uint32_t column) {
    uint32_t class = image % N_CLASSES, at = (image * SIDE + row) * SIDE + column;
    uint32_t quarter = row / (SIDE / 2) * 2 + column / (SIDE / 2);
    return (unsigned char)(noise(at) % 100 + (quarter == class ? 100 : 0));
}

static inline void write_split(void **state, const char *split, uint32_t first, uint32_t n) {
    char name[64];
    idx_file images = idx_images_header(n, SIDE, SIDE), labels = idx_labels_header(n);
    for (uint32_t i = first; i < first + n; i++) {
        labels.bytes[labels.n++] = (unsigned char)(i % N_CLASSES);
        for (uint32_t k = 0; k < SIDE * SIDE; k++)
            images.bytes[images.n++] = pixel(i, k / SIDE, k % SIDE);
    }
    snprintf(name, sizeof name, "set/%s-images-idx3-ubyte", split);
    write_whole(in_scratch(state, name), images.bytes, images.n);
    snprintf(name, sizeof name, "set/%s-labels-idx1-ubyte", split);
    write_whole(in_scratch(state, name), labels.bytes, labels.n);
}

/* The text of train_program.h, and the images in FOLDER/set. */
static inline int make_images(void **state) {
    if (make_text(state) != 0 || mkdir(in_scratch(state, "set"), 0700) != 0) return -1;
    write_split(state, "train", 0, N_TRAIN);
    write_split(state, "t10k", N_TRAIN, N_TEST);
    return 0;
}

/* A run into FOLDER/run, whatever becomes of it. */
static inline void run_program(void **state, const char *options, program_result *result) {
    program_words words = {.n = 0};
    const char *folder = *state;
    add_split(&words, "train --data %s/set --threads 1 --batch-size 24 --micro-batch-size 6",
              folder);
    add_split(&words, "--n-embd 4 --out %s/run --json %s/run.json", folder, folder);
    add_split(&words, "%s", options);
    program_run(NULL, words.at, result);
}

/* A run that must succeed; its result (release it with json_decref). */
__attribute__((format(printf, 2, 3))) static inline json_t *train_images(void **state,
                                                                         const char *format, ...) {
    char options[512];
    program_result result;
    va_list values;
    va_start(values, format);
    vsnprintf(options, sizeof options, format, values);
    va_end(values);
    run_program(state, options, &result);
    if (result.exit_code != 0) print_error("options: %s\n", options);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    program_release(&result);
    return result_of(state, "run");
}

#endif
