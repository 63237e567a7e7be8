/* SIGKILL at random moments of a run: of a worker, and of the launcher itself, from before the
 * first call of a worker into a stream of collectives. Always the right report and nobody left. */
#include "harness/harness.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/group.h"
#include "launch/launch.h"

enum { N_KILLS = 50, MAX_WORKERS = 8, COUNT = 30000 };

static struct board { _Atomic int pid[MAX_WORKERS]; } * board;

/* Shared and private buffers, waited for at once and later, until an error ends it. */
static ls_status stream(ls_group *group) {
    static float own[COUNT];
    void *ptr = NULL;
    LSI_TRY(ls_group_alloc_shared(group, sizeof own, &ptr));
    for (int64_t i = 0;; i++) {
        ls_work *work = NULL;
        lsi_region_set_step(lsi_group_region(group), ls_group_rank(group), i);
        LSI_TRY(ls_all_reduce(group, ptr, ptr, COUNT, LS_DTYPE_F32, LS_OP_SUM, 0.5, &work));
        LSI_TRY(ls_all_reduce(group, own, own, COUNT, LS_DTYPE_F32, LS_OP_SUM, 0.5, NULL));
        LSI_TRY(ls_work_wait(work, -1));
        if (i % 7 == 0) LSI_TRY(ls_barrier(group, NULL));
    }
}

static ls_status streams(lsi_region *region, int rank, void *context) {
    (void)context;
    board->pid[rank] = getpid();
    ls_group *group = NULL;
    LSI_TRY(lsi_group_attach(region, rank, &group));
    ls_status status = stream(group);
    ls_group_destroy(group);
    return status;
}

static pid_t start_killer(int victim, int delay_us) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!board->pid[victim]) sched_yield();
    usleep((useconds_t)delay_us);
    kill(board->pid[victim], SIGKILL);
    _exit(0);
}

static void expect_nobody_left(void) {
    assert_true(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void a_killed_worker_is_always_the_one_reported(void **state) {
    (void)state;
    for (int i = 0; i < N_KILLS; i++) {
        int n = 2 + rand() % (MAX_WORKERS - 1), victim = rand() % n;
        lsi_launch_opts opts = {.n_workers = n, .shared_bytes = 16 << 20};
        char culprit[64];
        memset(board, 0, sizeof *board);
        pid_t killer = start_killer(victim, i % 5 == 0 ? 0 : rand() % 40000);
        ls_status status = lsi_launch(&opts, streams, NULL);
        snprintf(culprit, sizeof culprit, "rank %d (pid %d) was killed by signal 9", victim,
                 board->pid[victim]);
        assert_fails(status, LS_ERR_PEER, culprit);
        assert_int_equal(waitpid(killer, NULL, 0), killer);
        expect_nobody_left();
    }
}

/* The test adopts orphans, so whoever outlives the launcher is its child, known to it or not. */
static void a_killed_launcher_never_leaves_workers(void **state) {
    (void)state;
    for (int i = 0; i < N_KILLS; i++) {
        int delay_us = rand() % (i % 2 ? 3000 : 20000);
        pid_t launcher = fork();
        if (launcher == 0) {
            lsi_launch_opts opts = {.n_workers = MAX_WORKERS, .shared_bytes = 16 << 20};
            _exit(lsi_launch(&opts, streams, NULL) == LS_OK ? 0 : 1);
        }
        usleep((useconds_t)delay_us);
        kill(launcher, SIGKILL);
        pid_t pid = launcher;
        while (pid > 0) pid = waitpid(-1, NULL, 0);
        expect_nobody_left();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_is_always_the_one_reported),
        cmocka_unit_test(a_killed_launcher_never_leaves_workers),
    };
    srand(7);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
