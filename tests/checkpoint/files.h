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

/* Finds a file of the project's data folder: LOCKSTEP_DATA, ../shared/data from here, or the same
 * from the repository's root. Says so when it is not there; the test then skips. */
static inline bool find_data(const char *name, char path[PATH_MAX]) {
    const char *tests = strstr(__FILE__, "tests/checkpoint/");
    char root[PATH_MAX];
    snprintf(root, sizeof root, "%.*s../shared/data", tests ? (int)(tests - __FILE__) : 0,
             __FILE__);
    const char *folders[] = {getenv("LOCKSTEP_DATA"), "../shared/data", root};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (!folders[i]) continue;
        snprintf(path, PATH_MAX, "%s/%s", folders[i], name);
        if (access(path, R_OK) == 0) return true;
    }
    print_message("skipped: %s is not there (set LOCKSTEP_DATA to the folder of test data)\n",
                  name);
    return false;
}

#endif
