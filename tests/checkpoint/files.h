/* Whole files in the test's own folder, and the folder of real files. */
#ifndef TESTS_CHECKPOINT_FILES_H
#define TESTS_CHECKPOINT_FILES_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/data.h"
#include "harness/scratch.h"

static void *scratch; /* the test's own folder, gone when the test is over */

static inline int scratch_setup(void **state) {
    (void)state;
    return make_scratch(&scratch);
}

static inline int scratch_teardown(void **state) {
    (void)state;
    return remove_scratch(&scratch);
}

/* Path of a file in the test's folder; valid until the fourth call from now. */
static inline const char *path_of(const char *name) {
    return in_scratch(&scratch, name);
}

static inline int n_files_in(const char *folder) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Whole file, to be freed; bytes may be NULL. */
static inline char *read_whole(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, file), n);
    text[n] = 0;
    fclose(file);
    if (bytes) *bytes = n;
    return text;
}

static inline void write_whole(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

#endif
