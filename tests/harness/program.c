#include "harness/program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/harness.h"

extern char **environ;

static const char MARK[] = "TESTS_PROGRAM_RUN";
enum { DEFAULT_LIMIT_MS = 120000, LEFT_MS = 1000 };

struct program {
    pid_t pid;
    bool has_ended;
    int how;        /* from waitpid */
    int out, err;   /* memory files */
    char *out_text; /* of program_out */
    char mark[64];  /* "NAME=value" in the environment of all its processes */
    int64_t start_ns, end_ns, limit_ns;
};

static int n_running;

/* ---- words ---- */

void add_words(program_words *words, const char *const *list) {
    for (; *list; list++) {
        assert_true(words->n < PROGRAM_MAX_WORDS);
        words->at[words->n++] = *list;
    }
    words->at[words->n] = NULL;
}

void add_split(program_words *words, const char *format, ...) {
    va_list values;
    va_start(values, format);
    char *line = words->text + words->used;
    int n = vsnprintf(line, sizeof words->text - words->used, format, values);
    va_end(values);
    assert_true(n >= 0 && words->used + (size_t)n + 1 <= sizeof words->text);
    words->used += (size_t)n + 1;
    for (char *rest = line, *word; (word = strsep(&rest, " "));)
        if (word[0]) add_words(words, (const char *const[]){word, NULL});
}

/* ---- start ---- */

/* The environment of the program: ours without LOCKSTEP_…, then what was asked for. */
static void set_environment(const program *p, const char *const *more) {
    for (char **at = environ; *at;) {
        if (strncmp(*at, "LOCKSTEP_", 9) != 0) {
            at++;
            continue;
        }
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        unsetenv(name);
    }
    putenv((char *)(uintptr_t)p->mark);
    for (; more && *more; more++) putenv((char *)(uintptr_t)*more);
}

/* Whoever started the test may ignore or block signals (nohup, a shell's &), and what is ignored
 * stays so across exec. */
static void reset_signals(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGXFSZ};
    sigset_t none;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

_Noreturn static void become_program(const program *p, const program_opts *opts, const char *path,
                                     const char *const *words) {
    const char *argv[PROGRAM_MAX_WORDS + 2] = {path};
    for (int i = 0; words[i] && i < PROGRAM_MAX_WORDS; i++) argv[i + 1] = words[i];
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (dup2(nothing, STDIN_FILENO) < 0 || dup2(p->out, STDOUT_FILENO) < 0 ||
        dup2(p->err, STDERR_FILENO) < 0)
        _exit(98);
    reset_signals();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves nothing either */
    set_environment(p, opts->environment);
    if (opts->prepare && opts->prepare(opts->context) != 0) _exit(99);
    execv(path, (char **)(uintptr_t)argv);
    _exit(97);
}

/* Workers print at the same moment. The system keeps such writes apart for files on disk, but in a
 * memory file one may lie on another's place, unless both are to be put at its end. */
static int make_output(const char *name) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    assert_true(fd >= 0 && fcntl(fd, F_SETFL, O_APPEND) == 0);
    return fd;
}

program *program_start(const program_opts *opts, const char *const *words) {
    static const program_opts defaults = {0};
    static int n_started;
    const char *path = getenv("LOCKSTEP_PROGRAM");
    if (!path) fail_msg("LOCKSTEP_PROGRAM does not name the program to test");
    if (!opts) opts = &defaults;
    program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    /* Workers whose launcher was killed become our children, so we see them end. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    snprintf(p->mark, sizeof p->mark, "%s=%d.%d", MARK, (int)getpid(), ++n_started);
    p->out = make_output("out");
    p->err = make_output("err");
    p->start_ns = lsi_now_ns();
    p->limit_ns = lsi_deadline_ns(opts->limit_ms > 0 ? opts->limit_ms : DEFAULT_LIMIT_MS);
    fflush(NULL);
    p->pid = fork();
    if (p->pid == 0) become_program(p, opts, path, words);
    assert_true(p->pid > 0);
    n_running++;
    return p;
}

pid_t program_pid(const program *p) {
    return p->pid;
}

/* ---- looking at it ---- */

/* Reads without moving the position, which the program's descriptors share. */
static char *read_memory_file(int fd) {
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    size_t bytes = (size_t)info.st_size, used = 0;
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    while (used < bytes) {
        ssize_t n = pread(fd, text + used, bytes - used, (off_t)used);
        if (n <= 0) break;
        used += (size_t)n;
    }
    text[used] = '\0';
    return text;
}

const char *program_out(program *p) {
    free(p->out_text);
    p->out_text = read_memory_file(p->out);
    return p->out_text;
}

static bool check_ended(program *p) {
    if (p->has_ended || waitpid(p->pid, &p->how, WNOHANG) != p->pid) return p->has_ended;
    p->end_ns = lsi_now_ns();
    p->has_ended = true;
    n_running--;
    return true;
}

/* Pids of the living processes of this run, in rising order, without the launcher. */
static int find_processes(const program *p, pid_t *pids, int max) {
    DIR *folder = opendir("/proc");
    int n = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) && n < max;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        char path[64], text[65536];
        if (pid <= 0 || pid == p->pid) continue;
        snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t bytes = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        if (bytes <= 0) continue;
        text[bytes] = '\0';
        for (char *at = text; at < text + bytes; at += strlen(at) + 1)
            if (strcmp(at, p->mark) == 0) {
                pids[n++] = pid;
                break;
            }
    }
    closedir(folder);
    for (int i = 1; i < n; i++) /* /proc is in this order, but does not promise it */
        for (int j = i; j > 0 && pids[j - 1] > pids[j]; j--) {
            pid_t other = pids[j];
            pids[j] = pids[j - 1];
            pids[j - 1] = other;
        }
    return n;
}

static void end_at_once(program *p) {
    pid_t pids[LSI_MAX_RANKS + 8];
    kill(p->pid, SIGKILL);
    int n = find_processes(p, pids, LSI_MAX_RANKS + 8);
    for (int i = 0; i < n; i++) kill(pids[i], SIGKILL);
}

_Noreturn static void give_up(program *p, const char *what) {
    char *err = read_memory_file(p->err);
    end_at_once(p);
    if (!p->has_ended) n_running--;
    print_error("%s; it printed:\n%s\n%s\n", what, program_out(p), err);
    free(err);
    _fail(__FILE__, __LINE__);
    abort();
}

void program_await_out(program *p, const char *text) {
    while (!strstr(program_out(p), text)) {
        if (check_ended(p) && !strstr(program_out(p), text)) give_up(p, "the program ended early");
        if (lsi_now_ns() > p->limit_ns) give_up(p, "the awaited text did not come");
        lsi_sleep_ms(2);
    }
}

void program_await_workers(program *p, int n_workers, pid_t *pids) {
    while (find_processes(p, pids, n_workers) < n_workers) {
        if (check_ended(p)) give_up(p, "the program ended early");
        if (lsi_now_ns() > p->limit_ns) give_up(p, "the workers did not come");
    }
}

/* ---- the end ---- */

/* Reaps processes that became ours, and counts those that do not end. */
static int count_left(program *p) {
    pid_t pids[LSI_MAX_RANKS + 8];
    int64_t limit_ns = lsi_deadline_ns(LEFT_MS);
    int n = 0;
    do {
        if (n_running == 0)
            while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        n = find_processes(p, pids, LSI_MAX_RANKS + 8);
        if (n > 0) lsi_sleep_ms(5);
    } while (n > 0 && lsi_now_ns() < limit_ns);
    if (n > 0) end_at_once(p);
    return n;
}

void program_finish(program *p, program_result *result) {
    while (!check_ended(p)) {
        if (lsi_now_ns() > p->limit_ns) give_up(p, "the program did not end");
        lsi_sleep_ms(1);
    }
    *result = (program_result){
        .exit_code = WIFEXITED(p->how) ? WEXITSTATUS(p->how) : -WTERMSIG(p->how),
        .out = read_memory_file(p->out),
        .err = read_memory_file(p->err),
        .ms = (p->end_ns - p->start_ns) / 1000000,
        .n_left = count_left(p),
    };
    close(p->out);
    close(p->err);
    free(p->out_text);
    free(p);
}

void program_run(const program_opts *opts, const char *const *words, program_result *result) {
    program_finish(program_start(opts, words), result);
}

void program_release(program_result *result) {
    free(result->out);
    free(result->err);
    *result = (program_result){0};
}

/* ---- assertions ---- */

void assert_ended(const program_result *result, int exit_code) {
    if (result->exit_code == exit_code && result->n_left == 0) return;
    fail_msg("expected exit code %d, found %d, and %d processes left; it printed:\n%s\n%s",
             exit_code, result->exit_code, result->n_left, result->out, result->err);
}

void assert_refused_with(const program_result *result, int exit_code, const char *const *texts) {
    assert_ended(result, exit_code);
    if (strncmp(result->err, "lockstep: ", 10) != 0)
        fail_msg("standard error does not begin with 'lockstep: ':\n%s", result->err);
    for (; *texts; texts++)
        if (!strstr(result->err, *texts))
            fail_msg("no '%s' in standard error:\n%s", *texts, result->err);
}

bool process_lives(pid_t pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0) return false;
    const char *behind_name = strrchr(text, ')');
    return behind_name && behind_name[1] && behind_name[2] != 'Z' && behind_name[2] != 'X';
}

void assert_process_ends(pid_t pid, int64_t limit_ms) {
    int64_t limit_ns = lsi_deadline_ns(limit_ms);
    while (process_lives(pid)) {
        if (lsi_now_ns() > limit_ns) fail_msg("process %d still lives", (int)pid);
        lsi_sleep_ms(2);
    }
}
