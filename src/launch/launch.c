/* Supervising workers: one loop over a signalfd, no thread.
 *
 * State of a run:
 *
 *     RUNNING --SIGINT/SIGTERM/SIGHUP--> STOPPING --again, or stop_ms over--> ENDING
 *        |                                                                      ^
 *        +--- a worker ended badly, or a rank aborted the region ---------------+
 *
 * RUNNING   all workers work; those that ended well are marked as having left.
 * STOPPING  workers were asked to stop after the current step; they end by themselves.
 * ENDING    the region has an error; workers get grace_ms to return, then SIGKILL.
 *
 * The run is over when every worker was waited for. */
#include "launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "comm/record.h"

enum { DEFAULT_GRACE_MS = 500, DEFAULT_STOP_MS = 60000 };

typedef struct supervisor {
    lsi_region *region;
    int n_workers, n_alive;
    pid_t pid[LSI_MAX_RANKS]; /* 0: not there (any more) */
    sigset_t signals, signals_before;
    struct sigaction child_before; /* what SIGCHLD did before */
    int signal_fd;
    int64_t grace_ms, stop_ms;
    bool bind, forward_signals;
    int64_t stop_deadline_ns;      /* INT64_MAX until asked to stop */
    int64_t kill_deadline_ns;      /* INT64_MAX until the region has an error */
    char death[LSI_MESSAGE_BYTES]; /* of a worker whose peers noticed it first, with fewer words */
} supervisor;

/* ---- in the worker ---- */

static ls_status prepare_worker(supervisor *s, pid_t parent) {
    /* Of its own process group: Ctrl-C reaches the launcher alone, which asks workers to stop. */
    setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "worker: prctl");
    if (getppid() != parent) _exit(1); /* the launcher died before prctl */
    sigaction(SIGCHLD, &s->child_before, NULL);
    sigprocmask(SIG_SETMASK, &s->signals_before, NULL);
    close(s->signal_fd);
    return LS_OK;
}

_Noreturn static void run_worker(supervisor *s, int rank, pid_t parent, lsi_worker_fn body,
                                 void *context) {
    lsi_log_set_rank(rank);
    if (s->bind) (void)lsi_cpu_bind(rank, s->n_workers);
    ls_status status = prepare_worker(s, parent);
    if (status == LS_OK) status = body(s->region, rank, context);
    if (status != LS_OK) {
        /* Reports that came from the region name their ranks already; the first one stays. */
        char message[LSI_MESSAGE_BYTES];
        snprintf(message, sizeof message, "rank %d: %s", rank, ls_last_message());
        lsi_region_abort(s->region, status, rank, message);
    }
    exit(status == LS_OK ? 0 : 1);
}

/* ---- in the launcher ---- */

static void restore_signals(const supervisor *s) {
    sigaction(SIGCHLD, &s->child_before, NULL);
    sigprocmask(SIG_SETMASK, &s->signals_before, NULL);
}

static ls_status open_signals(supervisor *s) {
    const int handled[] = {SIGCHLD, SIGINT, SIGTERM};
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    struct sigaction hang_up;
    sigemptyset(&s->signals);
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        sigaddset(&s->signals, handled[i]);
    /* What nohup made us ignore stays ignored. SIGINT counts even so: a script's & ignores it, and
     * whoever then sends it to this process means it. */
    if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
        sigaddset(&s->signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &s->signals, &s->signals_before);
    /* Where SIGCHLD is ignored the system reaps workers, and how they ended would be lost. */
    sigaction(SIGCHLD, &by_default, &s->child_before);
    s->signal_fd = signalfd(-1, &s->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd >= 0) return LS_OK;
    ls_status status = lsi_fail_errno(LS_ERR_SYSTEM, "launcher: signalfd");
    restore_signals(s);
    return status;
}

static void close_signals(supervisor *s) {
    close(s->signal_fd);
    restore_signals(s);
}

static void begin_ending(supervisor *s) {
    if (s->kill_deadline_ns == INT64_MAX) s->kill_deadline_ns = lsi_deadline_ns(s->grace_ms);
}

static void start_workers(supervisor *s, lsi_worker_fn body, void *context) {
    pid_t parent = getpid();
    fflush(NULL); /* or buffered output would appear once per worker */
    for (int rank = 0; rank < s->n_workers; rank++) {
        pid_t pid = fork();
        if (pid == 0) run_worker(s, rank, parent, body, context);
        if (pid < 0) {
            char message[LSI_MESSAGE_BYTES];
            snprintf(message, sizeof message, "rank %d could not be started: fork: %s", rank,
                     strerror(errno));
            lsi_region_abort(s->region, LS_ERR_SYSTEM, rank, message);
            begin_ending(s);
            return;
        }
        setpgid(pid, pid); /* whoever of the two comes first: from here on the group exists */
        s->pid[rank] = pid;
        s->n_alive++;
    }
}

/* A worker that ended badly without a word of its own gets one here. Peers may have seen that it
 * ended before its end was known here, but not how: then this is what the run is reported with. */
static void report_death(supervisor *s, int rank, const siginfo_t *how) {
    char message[LSI_MESSAGE_BYTES], end[128];
    bool by_signal = how->si_code == CLD_KILLED || how->si_code == CLD_DUMPED;
    if (by_signal)
        snprintf(end, sizeof end, "was killed by signal %d (%s)", how->si_status,
                 strsignal(how->si_status));
    else if (how->si_code == CLD_EXITED)
        snprintf(end, sizeof end, "exited with code %d", how->si_status);
    else
        snprintf(end, sizeof end, "ended, and another part of this program took its exit status");
    /* Programs that `lockstep run` starts have no steps that we know of. */
    char at_step[32] = "";
    int64_t step = lsi_region_step(s->region, rank);
    if (step > 0) snprintf(at_step, sizeof at_step, " at step %lld", (long long)step);
    snprintf(message, sizeof message, "rank %d (pid %d) %s%s; all workers were stopped%s", rank,
             (int)s->pid[rank], end, at_step,
             by_signal && how->si_status == SIGKILL
                 ? " (if nobody killed it, memory ran out: try fewer workers or smaller batches)"
                 : "");
    lsi_region_abort(s->region, LS_ERR_PEER, rank, message);
    if (lsi_region_noticed_dead(s->region) == rank)
        snprintf(s->death, sizeof s->death, "%s", message);
}

/* A worker may be a script that started others: they are of its process group. */
static void kill_group(pid_t pid) {
    kill(-pid, SIGKILL);
}

static void forward_signal(const supervisor *s, int signal_number) {
    for (int rank = 0; rank < s->n_workers; rank++)
        if (s->pid[rank]) kill(-s->pid[rank], signal_number);
}

static void reap_worker(supervisor *s, int rank) {
    siginfo_t how = {.si_pid = 0};
    bool is_ours = waitid(P_PID, (id_t)s->pid[rank], &how, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (is_ours && how.si_pid == 0) return; /* it is alive */
    bool well = how.si_code == CLD_EXITED && how.si_status == 0;
    if (well) lsi_region_mark_left(s->region, rank);
    if (!well || lsi_region_noticed_dead(s->region) == rank) {
        report_death(s, rank, &how);
        begin_ending(s);
        /* It was looked at but not waited for: until then its number cannot be another's. */
        if (is_ours) kill_group(s->pid[rank]);
    }
    waitpid(s->pid[rank], NULL, 0);
    s->pid[rank] = 0;
    s->n_alive--;
}

static void reap(supervisor *s) {
    for (int rank = 0; rank < s->n_workers; rank++)
        if (s->pid[rank]) reap_worker(s, rank);
}

static void handle_stop_signal(supervisor *s, int signal_number) {
    if (s->stop_deadline_ns == INT64_MAX) {
        lsi_region_request_stop(s->region, signal_number);
        s->stop_deadline_ns = lsi_deadline_ns(s->stop_ms);
        if (s->forward_signals)
            forward_signal(s, signal_number);
        else
            lsi_log(LSI_LOG_WARNING, "%s: stopping after the current step; once more stops at once",
                    strsignal(signal_number));
        return;
    }
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "stopped at once by signal %d (%s)", signal_number,
             strsignal(signal_number));
    lsi_region_abort(s->region, LS_ERR_INTERRUPTED, -1, message);
    begin_ending(s);
}

static void handle_signals(supervisor *s) {
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD) handle_stop_signal(s, (int)info.ssi_signo);
}

static void kill_workers(const supervisor *s) {
    for (int rank = 0; rank < s->n_workers; rank++)
        if (s->pid[rank]) kill_group(s->pid[rank]);
}

static void check_deadlines(supervisor *s) {
    int64_t now_ns = lsi_now_ns();
    if (lsi_region_error(s->region, NULL) != LS_OK) begin_ending(s);
    if (now_ns >= s->stop_deadline_ns && s->kill_deadline_ns == INT64_MAX)
        handle_stop_signal(s, lsi_region_stop_requested(s->region));
    if (now_ns >= s->kill_deadline_ns) kill_workers(s);
}

static void supervise(supervisor *s) {
    /* SIGCHLD wakes the poll at once; the tick only serves deadlines and errors ranks reported. */
    const int tick_ms = 50;
    struct pollfd signals = {.fd = s->signal_fd, .events = POLLIN};
    while (s->n_alive > 0) {
        (void)poll(&signals, 1, tick_ms);
        handle_signals(s);
        reap(s);
        check_deadlines(s);
    }
}

/* ---- what is left of a failed run ---- */

/* Puts what there is to say behind this thread's message, which is cut where both do not fit. */
static void add_to_message(const char *more) {
    char message[LSI_MESSAGE_BYTES];
    int room = LSI_MESSAGE_BYTES - 1 - (int)strlen(more), length = (int)strlen(ls_last_message());
    snprintf(message, sizeof message, "%.*s%s%s", length <= room ? length : room - 3,
             ls_last_message(), length <= room ? "" : "...", more);
    lsi_message_set(message);
}

/* All workers are gone, so their records stand still. The first error stays the run's. */
static ls_status write_record(const lsi_region *region, const char *path, ls_status status) {
    char first[LSI_MESSAGE_BYTES], more[LSI_MESSAGE_BYTES / 2];
    snprintf(first, sizeof first, "%s", ls_last_message());
    if (lsi_record_dump(region, path) == LS_OK)
        snprintf(more, sizeof more,
                 "; the last calls of all ranks are in %s (lockstep inspect --recorder %s)", path,
                 path);
    else
        snprintf(more, sizeof more, "; the last calls of all ranks could not be written: %s",
                 ls_last_message());
    lsi_message_set(first);
    add_to_message(more);
    return status;
}

ls_status lsi_launch(const lsi_launch_opts *opts, lsi_worker_fn body, void *context) {
    supervisor s = {.n_workers = opts->n_workers,
                    .grace_ms = opts->grace_ms > 0 ? opts->grace_ms : DEFAULT_GRACE_MS,
                    .stop_ms = opts->stop_ms > 0 ? opts->stop_ms : DEFAULT_STOP_MS,
                    .bind = opts->bind,
                    .forward_signals = opts->forward_signals,
                    .stop_deadline_ns = INT64_MAX,
                    .kill_deadline_ns = INT64_MAX};
    LSI_TRY(lsi_region_create(opts->n_workers, opts->shared_bytes, &s.region));
    ls_status status = open_signals(&s);
    if (status == LS_OK) {
        start_workers(&s, body, context);
        supervise(&s);
        close_signals(&s);
        status = lsi_region_error(s.region, NULL);
        if (s.death[0]) lsi_message_set(s.death);
        if (status != LS_OK && opts->recorder_path)
            status = write_record(s.region, opts->recorder_path, status);
    }
    lsi_region_close(s.region);
    return status;
}
