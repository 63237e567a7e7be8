/* Driving the built program (environment LOCKSTEP_PROGRAM) by fork and exec, without a shell.
 *
 * What the program prints goes to memory files, so it can be read while the program runs and no
 * pipe can fill up. Its processes are found by a mark in their environment: also workers whose
 * launcher was killed. Everything a run leaves is ended by program_finish; a test asserts that
 * there was nothing.
 *
 * Waits are for conditions, with a limit after which the test fails; sanitizer builds are slow, so
 * limits are generous. The calls use cmocka's assertions and belong into the test's own thread. */
#ifndef TESTS_HARNESS_PROGRAM_H
#define TESTS_HARNESS_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/region.h"

enum { PROGRAM_MAX_WORDS = 128 };

typedef struct program_opts {
    const char *const *environment; /* "NAME=value" to add, NULL ends; the test's own LOCKSTEP_… are
                                     * not passed on */
    int (*prepare)(void *context); /* in the child, before exec; nonzero gives exit code 99 */
    void *context;
    int64_t limit_ms; /* 0: 120,000 */
} program_opts;

typedef struct program program;

typedef struct program_result {
    int exit_code;   /* or minus the signal that ended it */
    char *out, *err; /* what it printed */
    int64_t ms;      /* from start to end */
    int n_left;      /* processes that were still there a second after its end */
} program_result;

/* Words are the arguments behind the program's name, NULL ends. opts NULL: defaults. */
program *program_start(const program_opts *opts, const char *const *words);
pid_t program_pid(const program *p);
/* What was printed so far; valid until the next call for this program. */
const char *program_out(program *p);
/* Waits until standard output has the text; fails when the program ended or limit_ms passed. */
void program_await_out(program *p, const char *text);
/* Pids of the n workers in rank order, once all were forked. */
void program_await_workers(program *p, int n_workers, pid_t *pids);
/* Waits for the end, collects, and releases. */
void program_finish(program *p, program_result *result);
/* Start and finish in one; release the result afterwards. */
void program_run(const program_opts *opts, const char *const *words, program_result *result);
void program_release(program_result *result);

/* Fails unless the program ended with this code and left no process. */
void assert_ended(const program_result *result, int exit_code);
/* The same, and standard error begins "lockstep: " and has each of the texts (NULL ends). */
void assert_refused_with(const program_result *result, int exit_code, const char *const *texts);

/* Whether a process exists and is no zombie. */
bool process_lives(pid_t pid);
/* Fails when the process still lives after limit_ms. */
void assert_process_ends(pid_t pid, int64_t limit_ms);

/* A list of words: base (NULL ends), then more words in one line split at spaces. The line's copy
 * lives in the list. */
typedef struct program_words {
    const char *at[PROGRAM_MAX_WORDS + 1];
    int n;
    char text[4096];
    size_t used;
} program_words;
void add_words(program_words *words, const char *const *list);
void add_split(program_words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
