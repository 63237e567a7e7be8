/* What the tests of faults share: a run that lasts until something happens to it, a way to stop it
 * in the middle of saving, and a private place for mounts. */
#ifndef TESTS_CLI_FAULTS_H
#define TESTS_CLI_FAULTS_H

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include "base/clock.h"
#include "cli/train_program.h"

/* Steps that no test waits for. */
#define ENDLESS "--steps 1000000 --batch-size 8 --micro-batch-size 1 "
/* What it prints after its first step, and after the thousandth. */
#define FIRST_STEP " 1/1000000 "
#define LATER_STEP " 1000/1000000 "

/* A worker's death ends the run within a second; sanitizers and busy machines need longer. */
enum { END_MS = 10000 };

/* Waits for the end and asserts exit code 1 with these words, soon. */
static inline void assert_fails_soon(program *p, const char *const *texts) {
    program_result result;
    int64_t begin_ns = lsi_now_ns();
    program_finish(p, &result);
    assert_ended(&result, 1);
    for (; *texts; texts++)
        if (!strstr(result.err, *texts)) fail_msg("no '%s' in\n%s", *texts, result.err);
    if (lsi_now_ns() - begin_ns > END_MS * (int64_t)1000000)
        fail_msg("it took %lld ms to end", (long long)(lsi_now_ns() - begin_ns) / 1000000);
    program_release(&result);
}

/* Whether a model folder below the scratch folder loads. */
static inline void assert_loads(void **state, const char *name) {
    program_words words = {.n = 0};
    program_result result;
    add_split(&words, "generate --model %s/%s --tokens 1", (const char *)*state, name);
    program_run(NULL, words.at, &result);
    assert_ended(&result, 0);
    program_release(&result);
}

static inline int count_temporary(const char *path, const struct stat *info, int kind,
                                  struct FTW *at) {
    (void)info, (void)at;
    return kind == FTW_F && strstr(path, ".tmp-") != NULL;
}

static inline void assert_no_temporary_files(void **state, const char *name) {
    if (nftw(in_scratch(state, name), count_temporary, 16, FTW_PHYS) != 0)
        fail_msg("temporary files are left in %s", name);
}

/* Makes rank 0 stop in the middle of writing its weights: the temporary file is a pipe, larger than
 * which the model must be, that nobody reads. Returns its reading end. */
static inline int block_saving(void **state, const char *run, pid_t rank0) {
    char path[256];
    snprintf(path, sizeof path, "%s/model", run);
    assert_true(mkdir(in_scratch(state, path), 0777) == 0);
    snprintf(path, sizeof path, "%s/model/model.safetensors.tmp-%d", run, (int)rank0);
    assert_int_equal(mkfifo(in_scratch(state, path), 0600), 0);
    int fd = open(in_scratch(state, path), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static inline void await_saving(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 60000), 1);
    assert_true(wait.revents & POLLIN);
}

/* Mounts made from here on are seen by this test and its programs alone; needs root. */
static inline bool enter_private_mounts(void) {
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

#endif
