/* A folder of its own for a test that writes files, and bodies that run in a child process. */
#ifndef TESTS_HARNESS_SCRATCH_H
#define TESTS_HARNESS_SCRATCH_H

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/harness.h"

static inline char *scratch_folder(void) {
    static char name[64];
    snprintf(name, sizeof name, "/tmp/lockstep-test-XXXXXX");
    return name;
}

/* cmocka set-up and tear-down; *state is the folder's name. */
static inline int make_scratch(void **state) {
    *state = mkdtemp(scratch_folder());
    return *state ? 0 : -1;
}

static inline int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static inline int remove_scratch(void **state) {
    return nftw(*state, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* "FOLDER/name"; valid until the fourth call from now. */
static inline const char *in_scratch(void **state, const char *name) {
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", (const char *)*state, name);
    return path;
}

static inline void put_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The whole content of a small text file; valid until the next call. */
static inline const char *text_of(const char *path) {
    static char text[65536];
    FILE *file = fopen(path, "r");
    if (!file) return "(no such file)";
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Runs body in a child process; what it returned (0 to 255), or -signal. */
static inline int run_in_child(int (*body)(void *), void *context) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(body(context));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
