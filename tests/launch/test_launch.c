/* The launcher: workers that end well, fail, die or never end; signals to the launcher; its own
 * death. Wanted each time: the first failure with its message, and nobody and nothing left.
 *
 * Tests and workers share a board. Who sends signals is a helper process, because lsi_launch does
 * not return before the end. The test is the reaper of orphans, so it sees those who outlive their
 * parent. */
#include "harness/harness.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "launch/launch.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct board {
    _Atomic int pid[LSI_MAX_RANKS];
    _Atomic int n_there;    /* workers that have begun */
    _Atomic int grandchild; /* pid of a process that a worker started */
    _Atomic int stop_seen;  /* the signal that workers were asked to stop with */
    _Atomic int sent;       /* signals that the helper has sent */
    _Atomic int value[LSI_MAX_RANKS];
} * board;

static void wait_for(_Atomic int *value, int at_least) {
    int64_t deadline_ns = lsi_deadline_ns(60000);
    while (*value < at_least && lsi_now_ns() < deadline_ns) lsi_sleep_ms(1);
}

/* ---- what workers do ---- */

static void sign_in(lsi_region *region, int rank) {
    lsi_region_set_step(region, rank, 17);
    if (atomic_exchange(&board->pid[rank], getpid()) == 0) board->n_there++;
}

static _Noreturn void compute_for_ever(void) {
    for (volatile unsigned int i = 0;; i++) continue;
}

static ls_status wait_for_ever(lsi_region *region, int rank, int64_t timeout_ms) {
    ls_group *group = NULL;
    LSI_TRY(lsi_group_attach(region, rank, &group));
    ls_group_set_timeout(group, timeout_ms);
    while (rank == 2) pause(); /* it never joins */
    ls_status status = ls_barrier(group, NULL);
    ls_group_destroy(group);
    return status;
}

static ls_status adds_ranks(lsi_region *region, int rank, void *context) {
    (void)context;
    ls_group *group = NULL;
    float sum = (float)(rank + 1);
    sign_in(region, rank);
    LSI_TRY(lsi_group_attach(region, rank, &group));
    LSI_TRY(ls_all_reduce(group, &sum, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    board->value[rank] = (int)sum;
    ls_group_destroy(group);
    return LS_OK;
}

static ls_status waits(lsi_region *region, int rank, void *context) {
    (void)context;
    sign_in(region, rank);
    return wait_for_ever(region, rank, -1);
}

static ls_status computes(lsi_region *region, int rank, void *context) {
    (void)context;
    sign_in(region, rank);
    compute_for_ever();
}

static ls_status waits_or_computes(lsi_region *region, int rank, void *context) {
    return (rank % 2 ? waits : computes)(region, rank, context);
}

static ls_status ignores_everything(lsi_region *region, int rank, void *context) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    return computes(region, rank, context);
}

static ls_status rank_2_fails(lsi_region *region, int rank, void *context) {
    sign_in(region, rank);
    if (rank == 2) {
        wait_for(&board->n_there, 4);
        return lsi_fail(LS_ERR_NUMERIC, "the loss is nan");
    }
    return (rank == 1 ? ignores_everything : waits)(region, rank, context);
}

static ls_status rank_1_exits_with_3(lsi_region *region, int rank, void *context) {
    if (rank != 1) return waits(region, rank, context);
    sign_in(region, rank);
    exit(3);
}

static ls_status rank_1_exits_with_0(lsi_region *region, int rank, void *context) {
    if (rank != 1) return waits(region, rank, context);
    sign_in(region, rank);
    exit(0);
}

static ls_status rank_1_crashes(lsi_region *region, int rank, void *context) {
    if (rank != 1) return waits(region, rank, context);
    sign_in(region, rank);
    signal(SIGSEGV, SIG_DFL); /* sanitizers have a handler */
    raise(SIGSEGV);
    return LS_OK;
}

static ls_status rank_1_aborts(lsi_region *region, int rank, void *context) {
    if (rank != 1) return waits(region, rank, context);
    sign_in(region, rank);
    signal(SIGABRT, SIG_DFL);
    abort();
}

static ls_status rank_2_stops_itself(lsi_region *region, int rank, void *context) {
    (void)context;
    sign_in(region, rank);
    if (rank == 2) raise(SIGSTOP);
    return wait_for_ever(region, rank, 300);
}

static ls_status rank_2_starts_another(lsi_region *region, int rank, void *context) {
    if (rank == 2) {
        pid_t pid = fork();
        if (pid < 0) return lsi_fail_errno(LS_ERR_SYSTEM, "fork");
        if (pid == 0) compute_for_ever();
        board->grandchild = pid;
    }
    return waits(region, rank, context);
}

static ls_status stops_when_asked(lsi_region *region, int rank, void *context) {
    (void)context;
    sign_in(region, rank);
    while (!lsi_region_stop_requested(region)) lsi_sleep_ms(1);
    board->stop_seen = lsi_region_stop_requested(region);
    return LS_OK;
}

static ls_status goes_on_when_asked_to_stop(lsi_region *region, int rank, void *context) {
    sign_in(region, rank);
    while (!lsi_region_stop_requested(region)) lsi_sleep_ms(1);
    board->stop_seen = lsi_region_stop_requested(region);
    return ignores_everything(region, rank, context);
}

/* Long enough after the signal for the launcher to have passed it on. */
static ls_status looks_whether_asked(lsi_region *region, int rank, void *context) {
    (void)context;
    sign_in(region, rank);
    wait_for(&board->sent, 1);
    lsi_sleep_ms(200);
    board->value[rank] = lsi_region_stop_requested(region);
    return LS_OK;
}

static ls_status notes_sigchld(lsi_region *region, int rank, void *context) {
    struct sigaction now;
    sigaction(SIGCHLD, NULL, &now);
    board->value[rank] = now.sa_handler == SIG_IGN;
    return rank_1_exits_with_3(region, rank, context);
}

/* ---- one launch, and what may not be left of it ---- */

typedef struct launch_row {
    const char *name;
    lsi_worker_fn body;
    int signal;  /* sent by the helper when all workers are there; 0: none */
    int n_times; /* to the launcher, once more when workers have seen the first; 0: to rank 2 */
    int64_t grace_ms, stop_ms;
    ls_status expected;
    const char *text[3];
} launch_row;

enum { N_WORKERS = 4 };

/* Descriptors of this process, and files of ours in /dev/shm. */
static int n_entries(const char *path, const char *part) {
    int n = 0;
    DIR *folder = opendir(path);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder))
        n += strstr(e->d_name, part) != NULL;
    if (folder) closedir(folder);
    return n;
}

static _Noreturn void send_signals(const launch_row *row, pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    wait_for(&board->n_there, N_WORKERS);
    lsi_sleep_ms(20);
    kill(row->n_times ? launcher : board->pid[2], row->signal);
    board->sent++;
    if (row->n_times > 1) {
        wait_for(&board->stop_seen, 1);
        kill(launcher, row->signal);
    }
    _exit(0);
}

static pid_t start_helper(const launch_row *row) {
    pid_t launcher = getpid(), pid = row->signal ? fork() : 0;
    if (row->signal && pid == 0) send_signals(row, launcher);
    return pid;
}

static bool forward_signals; /* of the next launches */

static ls_status launch_and_look_around(const launch_row *row, int n_workers) {
    memset(board, 0, sizeof *board);
    lsi_launch_opts opts = {.n_workers = n_workers,
                            .shared_bytes = 1 << 20,
                            .grace_ms = row->grace_ms,
                            .stop_ms = row->stop_ms,
                            .forward_signals = forward_signals};
    int n_descriptors = n_entries("/proc/self/fd", "");
    int64_t begin_ns = lsi_now_ns();
    pid_t helper = start_helper(row);
    ls_status status = lsi_launch(&opts, row->body, NULL);
    /* Far below the deadlines of waiting workers, far above any grace. */
    assert_true(lsi_now_ns() - begin_ns < (int64_t)60e9);
    if (helper) waitpid(helper, NULL, 0);
    /* A process that a worker started was killed, and is ours to wait for. */
    if (board->grandchild) {
        int how = 0;
        assert_int_equal(waitpid(board->grandchild, &how, 0), board->grandchild);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    }
    assert_true(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    for (int r = 0; r < n_workers; r++) /* 0: ended before it could begin */
        assert_true(board->pid[r] == 0 || kill(board->pid[r], 0) == -1);
    assert_int_equal(n_entries("/proc/self/fd", ""), n_descriptors);
    assert_int_equal(n_entries("/dev/shm", "lockstep"), 0);
    assert_int_equal(lsi_mem_n_blocks(), 0);
    return status;
}

static const launch_row launch_rows[] = {
    {"a worker fails", rank_2_fails, 0, 0, 0, 0, LS_ERR_NUMERIC, {"rank 2: the loss is nan"}},
    {"a worker exits with 3",
     rank_1_exits_with_3,
     0,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 1 (pid ", "exited with code 3", "at step 17"}},
    {"a worker exits with 0 too early",
     rank_1_exits_with_0,
     0,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 1 "}}, /* who waits may see its end before or after the launcher */
    {"a worker crashes",
     rank_1_crashes,
     0,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 1 (pid ", "killed by signal 11", "at step 17"}},
    {"a worker aborts",
     rank_1_aborts,
     0,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 1 (pid ", "killed by signal 6", "at step 17"}},
    {"a worker stops itself",
     rank_2_stops_itself,
     0,
     0,
     0,
     0,
     LS_ERR_TIMEOUT,
     {"rank 2 did not join", "barrier"}},
    {"killed, others wait",
     waits,
     SIGKILL,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 2 (pid ", "killed by signal 9", "at step 17"}},
    {"killed, others compute",
     computes,
     SIGKILL,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 2 (pid ", "killed by signal 9", "at step 17"}},
    {"killed, others do both",
     waits_or_computes,
     SIGKILL,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 2 (pid ", "killed by signal 9", "at step 17"}},
    {"terminated, others wait",
     waits,
     SIGTERM,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 2 (pid ", "killed by signal 15", "at step 17"}},
    {"killed, others ignore all",
     ignores_everything,
     SIGKILL,
     0,
     100,
     0,
     LS_ERR_PEER,
     {"rank 2 (pid ", "killed by signal 9"}},
    {"a worker with a child is killed",
     rank_2_starts_another,
     SIGKILL,
     0,
     0,
     0,
     LS_ERR_PEER,
     {"rank 2 (pid ", "killed by signal 9"}},
    {"SIGINT, workers stop", stops_when_asked, SIGINT, 1, 0, 0, LS_OK, {NULL}},
    {"SIGTERM, workers stop", stops_when_asked, SIGTERM, 1, 0, 0, LS_OK, {NULL}},
    {"SIGHUP, workers stop", stops_when_asked, SIGHUP, 1, 0, 0, LS_OK, {NULL}},
    {"SIGTERM twice",
     goes_on_when_asked_to_stop,
     SIGTERM,
     2,
     100,
     0,
     LS_ERR_INTERRUPTED,
     {"stopped at once by signal 15"}},
    {"SIGINT twice",
     goes_on_when_asked_to_stop,
     SIGINT,
     2,
     100,
     0,
     LS_ERR_INTERRUPTED,
     {"stopped at once by signal 2"}},
    {"SIGTERM, then patience ends",
     goes_on_when_asked_to_stop,
     SIGTERM,
     1,
     100,
     200,
     LS_ERR_INTERRUPTED,
     {"stopped at once by signal 15"}},
};

static void expect_row(const launch_row *row) {
    ls_status status = launch_and_look_around(row, N_WORKERS);
    if (status != row->expected)
        fail_msg("%s: expected %s, found %s: %s", row->name, ls_status_name(row->expected),
                 ls_status_name(status), status == LS_OK ? "" : ls_last_message());
    for (int t = 0; t < 3 && row->text[t]; t++)
        if (!strstr(ls_last_message(), row->text[t]))
            fail_msg("%s: '%s' is not in '%s'", row->name, row->text[t], ls_last_message());
    if (row->n_times) assert_int_equal(board->stop_seen, row->signal);
}

static void the_first_failure_is_reported_and_nobody_is_left(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(launch_rows); i++) expect_row(&launch_rows[i]);
}

/* ---- workers that end well ---- */

static void launches_in_a_row_work(void **state) {
    (void)state;
    const launch_row row = {.name = "all well", .body = adds_ranks};
    for (int i = 0; i < 50; i++) {
        int n = i % 8 + 1;
        assert_ok(launch_and_look_around(&row, n));
        for (int r = 0; r < n; r++) assert_int_equal(board->value[r], n * (n + 1) / 2);
    }
}

static void the_default_heap_can_be_mapped(void **state) {
    (void)state;
    const lsi_launch_opts opts = {.n_workers = 2};
    memset(board, 0, sizeof *board);
    assert_ok(lsi_launch(&opts, adds_ranks, NULL));
    assert_int_equal(board->value[1], 3);
}

static void impossible_numbers_of_workers_are_refused(void **state) {
    (void)state;
    const int numbers[] = {0, -1, LSI_MAX_RANKS + 1, INT32_MIN};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        lsi_launch_opts opts = {.n_workers = numbers[i]};
        assert_fails(lsi_launch(&opts, adds_ranks, NULL), LS_ERR_ARGUMENT, "1 to 64");
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* What the launcher had written but not flushed is written once, not once per worker. */
static void buffered_output_appears_once(void **state) {
    (void)state;
    const launch_row row = {.name = "all well", .body = adds_ranks};
    char text[64] = "";
    FILE *file = tmpfile();
    fputs("once", file);
    assert_ok(launch_and_look_around(&row, 4));
    rewind(file);
    assert_int_equal(fread(text, 1, sizeof text, file), 4);
    assert_string_equal(text, "once");
    fclose(file);
}

/* ---- signals that were ignored before ---- */

/* What `lockstep run` does: its workers are programs that cannot look whether they were asked. */
static void forwarded_signals_reach_workers_that_cannot_be_asked(void **state) {
    (void)state;
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        const launch_row row = {
            .name = "forwarded", .body = computes, .signal = signals[i], .n_times = 1};
        char text[32];
        forward_signals = true;
        ls_status status = launch_and_look_around(&row, N_WORKERS);
        forward_signals = false;
        snprintf(text, sizeof text, "was killed by signal %d", signals[i]);
        assert_fails(status, LS_ERR_PEER, text);
    }
}

/* nohup ignores SIGHUP, and that must hold; a script's & ignores SIGINT, and kill -INT must work.
 */
static void an_ignored_hang_up_stays_ignored_an_interrupt_does_not(void **state) {
    (void)state;
    const struct { int signal, seen; } rows[] = {{SIGHUP, 0}, {SIGINT, SIGINT}, {SIGTERM, SIGTERM}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const launch_row row = {
            .name = "ignored", .body = looks_whether_asked, .signal = rows[i].signal, .n_times = 1};
        signal(rows[i].signal, SIG_IGN);
        ls_status status = launch_and_look_around(&row, N_WORKERS);
        signal(rows[i].signal, SIG_DFL);
        assert_ok(status);
        for (int r = 0; r < N_WORKERS; r++) assert_int_equal(board->value[r], rows[i].seen);
    }
}

/* Some shells and supervisors start programs so; the system then reaps children by itself. */
static void ignored_sigchld_does_not_hide_how_workers_end(void **state) {
    (void)state;
    const launch_row well = {.name = "all well", .body = adds_ranks};
    const launch_row badly = {.name = "exit", .body = notes_sigchld};
    struct sigaction after;
    signal(SIGCHLD, SIG_IGN);
    ls_status status = launch_and_look_around(&well, N_WORKERS);
    sigaction(SIGCHLD, NULL, &after);
    ls_status status_badly = launch_and_look_around(&badly, N_WORKERS);
    signal(SIGCHLD, SIG_DFL);
    assert_ok(status);
    assert_true(after.sa_handler == SIG_IGN);
    assert_fails(status_badly, LS_ERR_PEER, "exited with code 3");
    for (int r = 0; r < 2; r++) assert_int_equal(board->value[r], 1);
}

static void the_signal_mask_is_restored(void **state) {
    (void)state;
    const launch_row row = {.name = "all well", .body = adds_ranks};
    sigset_t before, after;
    sigprocmask(SIG_SETMASK, NULL, &before);
    assert_ok(launch_and_look_around(&row, 2));
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; s++) assert_int_equal(sigismember(&before, s), sigismember(&after, s));
}

/* ---- the launcher dies ---- */

static void workers_die_with_their_launcher(void **state) {
    (void)state;
    const lsi_worker_fn bodies[] = {waits, computes, ignores_everything};
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        memset(board, 0, sizeof *board);
        pid_t launcher = fork();
        if (launcher == 0) {
            lsi_launch_opts opts = {.n_workers = N_WORKERS, .shared_bytes = 1 << 20};
            _exit(lsi_launch(&opts, bodies[i], NULL) == LS_OK ? 0 : 1);
        }
        wait_for(&board->n_there, N_WORKERS);
        assert_int_equal(board->n_there, N_WORKERS);
        kill(launcher, SIGKILL);
        assert_int_equal(waitpid(launcher, NULL, 0), launcher);
        for (int r = 0; r < N_WORKERS; r++) {
            int how = 0;
            assert_int_equal(waitpid(board->pid[r], &how, 0), board->pid[r]);
            assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_failure_is_reported_and_nobody_is_left),
        cmocka_unit_test(launches_in_a_row_work),
        cmocka_unit_test(the_default_heap_can_be_mapped),
        cmocka_unit_test(impossible_numbers_of_workers_are_refused),
        cmocka_unit_test(buffered_output_appears_once),
        cmocka_unit_test(forwarded_signals_reach_workers_that_cannot_be_asked),
        cmocka_unit_test(an_ignored_hang_up_stays_ignored_an_interrupt_does_not),
        cmocka_unit_test(ignored_sigchld_does_not_hide_how_workers_end),
        cmocka_unit_test(the_signal_mask_is_restored),
        cmocka_unit_test(workers_die_with_their_launcher),
    };
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    lsi_log_set_level(LSI_LOG_ERROR); /* the launcher's word on a first signal */
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
