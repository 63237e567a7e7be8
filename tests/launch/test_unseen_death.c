/* Deaths that the launcher hears of late or never: peers notice them, soon, and whoever knows how a
 * worker ended has the last word.
 *
 * With the word "worker" this program is a worker itself, of `lockstep run`. */
#include "harness/harness.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/group.h"
#include "harness/program.h"
#include "launch/launch.h"

/* ---- the launcher's report ---- */

static struct board {
    _Atomic int pid[4];
    _Atomic int n_waiting, n_errors;
    int status;
    char message[LSI_MESSAGE_BYTES];
} * board;

static ls_status rank_2_never_joins(lsi_region *region, int rank, void *context) {
    (void)context;
    ls_group *group = NULL;
    LSI_TRY(lsi_group_attach(region, rank, &group));
    board->pid[rank] = getpid();
    lsi_region_set_step(region, rank, 17);
    LSI_TRY(ls_barrier(group, NULL));
    board->n_waiting++;
    while (rank == 2) pause();
    ls_status status = ls_barrier(group, NULL);
    if (strstr(ls_last_message(), "noticed by rank")) board->n_errors++;
    ls_group_destroy(group);
    return status;
}

static void wait_for(_Atomic int *value, int at_least) {
    int64_t deadline_ns = lsi_deadline_ns(60000);
    while (*value < at_least && lsi_now_ns() < deadline_ns) lsi_sleep_ms(1);
    assert_true(*value >= at_least);
}

static _Noreturn void launch(void) {
    const lsi_launch_opts opts = {.n_workers = 4, .shared_bytes = 1 << 20, .grace_ms = 20000};
    board->status = (int)lsi_launch(&opts, rank_2_never_joins, NULL);
    snprintf(board->message, sizeof board->message, "%s", ls_last_message());
    _exit(0);
}

/* The launcher stands still while rank 2 dies, until all others have ended with their own notice.
 */
static void the_launcher_says_how_a_worker_died_also_when_peers_noticed_first(void **state) {
    (void)state;
    int how = 0;
    fflush(NULL);
    pid_t launcher = fork();
    if (launcher == 0) launch();
    wait_for(&board->n_waiting, 4);
    kill(launcher, SIGSTOP);
    assert_int_equal(waitpid(launcher, &how, WUNTRACED), launcher);
    kill(board->pid[2], SIGKILL);
    wait_for(&board->n_errors, 3);
    kill(launcher, SIGCONT);
    assert_int_equal(waitpid(launcher, &how, 0), launcher);
    assert_int_equal(board->status, LS_ERR_PEER);
    char expected[128];
    snprintf(expected, sizeof expected,
             "rank 2 (pid %d) was killed by signal 9 (Killed) at step 17", board->pid[2]);
    if (!strstr(board->message, expected))
        fail_msg("expected '%s', found '%s'", expected, board->message);
}

/* ---- a shell between launcher and worker ---- */

/* Rank 1 dies behind the first barrier; its step says when. */
static int be_worker(void) {
    ls_group *group = NULL;
    ls_status status = ls_group_create(60000, &group);
    if (status == LS_OK) {
        lsi_region *region = lsi_group_region(group);
        status = ls_barrier(group, NULL);
        if (ls_group_rank(group) == 1) {
            lsi_region_set_step(region, 1, lsi_now_ns());
            raise(SIGKILL);
        }
        /* A slow rank may still be in the first one then. */
        if (status == LS_OK) status = ls_barrier(group, NULL);
        int64_t ns = lsi_now_ns() - lsi_region_step(region, 1);
        printf("rank %d: %s after %.1f ms\n", ls_group_rank(group), ls_status_name(status),
               (double)ns / 1e6);
        fflush(stdout); /* whoever is killed later has still said this */
    }
    if (status != LS_OK) fprintf(stderr, "%s\n", ls_last_message());
    ls_group_destroy(group);
    return status == LS_OK ? 0 : 1;
}

static void expect_lines(const char *out) {
    for (int rank = 0; rank < 4; rank++) {
        char line[64];
        snprintf(line, sizeof line, "rank %d: LS_ERR_PEER after ", rank);
        const char *at = strstr(out, line);
        if (rank == 1) continue;
        if (!at) fail_msg("no '%s' in:\n%s", line, out);
        /* Some milliseconds; machines may be slow. */
        if (atof(at + strlen(line)) > 1000) fail_msg("this took long:\n%s", out);
    }
    print_message("%s", out);
}

static void expect_death(const char *behind, bool seen_by_peers, const char *const text[3]) {
    char self[512] = "", script[600];
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(script, sizeof script, "'%s' worker; %s", self, behind);
    const char *const words[] = {"run", "--workers", "4", "--", "sh", "-c", script, NULL};
    program_result result;
    program_run(NULL, words, &result);
    assert_ended(&result, 1);
    for (int i = 0; i < 3; i++)
        if (!strstr(result.err, text[i]))
            fail_msg("no '%s' in standard error:\n%s", text[i], result.err);
    if (seen_by_peers) expect_lines(result.out);
    program_release(&result);
}

static void a_death_behind_a_shell_is_noticed_by_the_peers(void **state) {
    (void)state;
    /* The shell goes on, so the launcher sees nothing. */
    expect_death("sleep 100", true,
                 (const char *[]){"rank 1 (pid ", "died at step", "(noticed by rank "});
}

/* All that the launcher sees is a worker that ended well; who is first tells. */
static void a_death_that_a_shell_denies_is_an_error(void **state) {
    (void)state;
    expect_death("true", false, (const char *[]){"lockstep: ", "rank 1 ", "pid "});
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_launcher_says_how_a_worker_died_also_when_peers_noticed_first),
        cmocka_unit_test(a_death_behind_a_shell_is_noticed_by_the_peers),
        cmocka_unit_test(a_death_that_a_shell_denies_is_an_error),
    };
    if (argc > 1 && strcmp(argv[1], "worker") == 0) return be_worker();
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
