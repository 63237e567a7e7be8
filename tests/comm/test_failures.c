/* What goes wrong between ranks: errors of parts, ranks that are late, stopped, killed or
 * gone, aborts (calls that differ: test_mismatch.c, every phase of every algorithm:
 * test_missing_slow.c). Wanted each time: the right status on every rank, a message that names the
 * culprit, and an end long before the deadline of the test. */
#include "comm/calls.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- errors of a part ---- */

/* Ranks 0 and 1 disagree in a group of their own, 2 and 3 and the world do not. */
static ls_status parts_disagree(ls_group *group, void *context) {
    bool by_message = *(bool *)context;
    int rank = ls_group_rank(group);
    float one = 1, sum = 0;
    ls_group *part = NULL;
    LSI_TRY(ls_group_split(group, rank / 2, rank, &part));
    ls_status status = LS_OK;
    if (rank < 2 && by_message)
        status = rank == 0 ? ls_send(part, &one, 1, LS_DTYPE_F32, 1, NULL)
                           : ls_recv(part, &one, 1, LS_DTYPE_I32, 0, NULL);
    if (status == LS_OK)
        status = ls_all_reduce(part, &one, &sum, 1, LS_DTYPE_F32, LS_OP_SUM,
                               rank == 1 && !by_message ? 2 : 1, NULL);
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status == LS_OK ? "" : ls_last_message());
    RANK_CHECK(rank < 2 ? status == LS_ERR_MISMATCH : status == LS_OK, "status %d: %s", status,
               message);
    RANK_CHECK(rank >= 2 || strncmp(message, "group 1: ", 9) == 0 ||
                   strncmp(message, "group 2: ", 9) == 0,
               "the message does not begin with its group: %s", message);
    RANK_CHECK(ls_group_status(part) == status, "the error does not stick");
    RANK_CHECK(ls_barrier(part, NULL) == status, "the error does not stick");
    LSI_TRY(ls_all_reduce(group, &one, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    RANK_CHECK(sum == 4, "the sum of the world is %g", (double)sum);
    ls_group_destroy(part);
    return ls_barrier(group, NULL);
}

static void an_error_of_a_part_names_it_and_leaves_the_others_usable(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (int by_message = 0; by_message < 2; by_message++) {
            bool context = by_message;
            assert_ok(run_ranks((rank_mode)mode, 4, parts_disagree, &context));
        }
}

/* The world's handle may go first: whoever has a part of it is not gone there, and the memory
 * stays.
 */
static ls_status use_part_after_world(int rank) {
    ls_group *world = NULL, *part = NULL;
    float one = 1, sum = 0;
    LSI_TRY(ls_group_create(60000, &world));
    LSI_TRY(ls_group_split(world, 0, -rank, &part));
    ls_group_destroy(world);
    if (rank == 1) lsi_sleep_ms(50);
    LSI_TRY(ls_all_reduce(part, &one, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    RANK_CHECK(sum == 2, "the sum is %g", (double)sum);
    ls_group_destroy(part);
    RANK_CHECK(lsi_mem_n_blocks() == 0, "memory was left");
    return LS_OK;
}

static void parts_outlive_the_world(void **state) {
    (void)state;
    lsi_region *region = NULL;
    pid_t pid[2];
    assert_ok(lsi_region_create(2, (size_t)64 << 20, &region));
    for (int rank = 0; rank < 2; rank++) {
        fflush(NULL);
        if ((pid[rank] = fork()) != 0) continue;
        char text[16];
        snprintf(text, sizeof text, "%d", dup(lsi_region_fd(region)));
        setenv("LOCKSTEP_FD", text, 1);
        setenv("LOCKSTEP_RANK", rank ? "1" : "0", 1);
        lsi_region_close(region);
        ls_status status = use_part_after_world(rank);
        if (status != LS_OK) print_error("rank %d: %s\n", rank, ls_last_message());
        _exit(status == LS_OK ? 0 : 1);
    }
    for (int rank = 0; rank < 2; rank++) {
        int how = 0;
        assert_int_equal(waitpid(pid[rank], &how, 0), pid[rank]);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
    lsi_region_close(region);
}

/* ---- ranks that are missing ---- */

typedef struct absence {
    const char *name;
    int signal; /* what rank 1 does to itself: 0 sleeps, SIGKILL, SIGSTOP; -1 leaves */
    int64_t timeout_ms;
    ls_status expected;
    const char *text;
} absence;

static ls_status rank_1_stays_away(ls_group *group, void *context) {
    const absence *a = context;
    float value = 1;
    LSI_TRY(ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    if (ls_group_rank(group) == 1) {
        if (a->signal > 0) raise(a->signal);
        if (a->signal == 0) lsi_sleep_ms(3000);
        return LS_OK;
    }
    ls_group_set_timeout(group, a->timeout_ms);
    return ls_barrier(group, NULL);
}

static void late_ranks_are_named_at_the_deadline(void **state) {
    (void)state;
    absence a = {"late", 0, 300, LS_ERR_TIMEOUT, "rank 1 did not join (last call #1, all-reduce"};
    rank_result results[3];
    run_rank_processes(3, rank_1_stays_away, &a, results);
    expect(results, 0, a.expected, a.text);
    expect(results, 2, a.expected, a.text);
    expect(results, 0, a.expected, "call #2, barrier");
}

static void ranks_that_left_are_named_at_once(void **state) {
    (void)state;
    absence a = {"left", -1, 60000, LS_ERR_PEER, "rank 1 did not join"};
    rank_result results[3];
    int64_t begin_ns = lsi_now_ns();
    run_rank_processes(3, rank_1_stays_away, &a, results);
    assert_true(lsi_now_ns() - begin_ns < (int64_t)30e9);
    expect(results, 0, a.expected, a.text);
    expect(results, 2, a.expected, "it has left the group");
}

/* Rank 1 posts and destroys its group; the others join only then. */
static ls_status rank_1_leaves_in_flight(ls_group *group, void *context) {
    (void)context;
    enum { COUNT = 100000 }; /* in several pieces */
    float *value = calloc(COUNT, sizeof *value);
    ls_work *work = NULL;
    if (ls_group_rank(group) != 1)
        while (!group->ranks[1].left) lsi_sleep_ms(1);
    ls_status status = ls_all_reduce(group, value, value, COUNT, LS_DTYPE_F32, LS_OP_SUM, 1, &work);
    if (status == LS_OK && ls_group_rank(group) != 1) status = ls_work_wait(work, 60000);
    free(value);
    return status;
}

static void ranks_that_left_in_flight_are_named_at_once(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, rank_1_leaves_in_flight, NULL, results);
    assert_int_equal(results[1].status, LS_OK);
    expect(results, 0, LS_ERR_PEER,
           "rank 1 did not finish (last call #1, all-reduce, count 100000");
    expect(results, 2, LS_ERR_PEER, "it has left the group");
    expect_without(results, 0, "rank 0 did");
    expect_without(results, 0, "rank 2 did");
}

/* Rank 1 leaves in flight and rank 2 is late: who left is the reason. */
static ls_status rank_1_leaves_and_rank_2_is_late(ls_group *group, void *context) {
    _Atomic int *done = context;
    if (ls_group_rank(group) != 2) {
        ls_status status = rank_1_leaves_in_flight(group, NULL);
        if (ls_group_rank(group) == 0) *done = 1;
        return status;
    }
    while (!*done) lsi_sleep_ms(1);
    return ls_group_status(group);
}

static void who_left_is_named_before_who_is_late(void **state) {
    (void)state;
    _Atomic int done = 0;
    assert_fails(run_ranks(RANKS_AS_THREADS, 3, rank_1_leaves_and_rank_2_is_late, &done),
                 LS_ERR_PEER, "rank 1 did not finish (last call #1, all-reduce, count 100000");
    assert_null(strstr(ls_last_message(), "rank 2 did"));
}

/* The deadline of a rank that was held up itself passes, but by then nobody is missing. */
static ls_status nobody_is_missing(ls_group *group, void *context) {
    (void)context;
    ls_work *work = NULL;
    LSI_TRY(ls_barrier(group, &work));
    LSI_TRY(ls_barrier(group, NULL));
    LSI_TRY(lsi_report_missing(work, 1000));
    LSI_TRY(ls_group_status(group));
    return ls_work_wait(work, -1);
}

static void a_deadline_without_a_culprit_is_no_error(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, nobody_is_missing, NULL, results);
    for (int r = 0; r < 3; r++) expect(results, r, LS_OK, "");
}

/* A rank killed or stopped without a launcher to notice: a death is seen at once, a stop at the
 * deadline. The stopped one is released by rank 0 afterwards. */
static ls_status rank_1_is_hit(ls_group *group, void *context) {
    const absence *a = context;
    float mine = (float)getpid(), all[3]; /* pids are below 2^22: exact */
    LSI_TRY(ls_all_gather(group, &mine, all, 1, LS_DTYPE_F32, NULL));
    ls_status status = rank_1_stays_away(group, context);
    if (ls_group_rank(group) == 0 && a->signal == SIGSTOP) kill((pid_t)all[1], SIGCONT);
    return status;
}

static void killed_and_stopped_ranks_are_named(void **state) {
    (void)state;
    absence rows[] = {{"killed", SIGKILL, 60000, LS_ERR_PEER, "rank 1 (pid "},
                      {"stopped", SIGSTOP, 300, LS_ERR_TIMEOUT, "rank 1 did not join"}};
    for (int i = 0; i < 2; i++) {
        rank_result results[3];
        run_rank_processes(3, rank_1_is_hit, &rows[i], results);
        expect(results, 0, rows[i].expected, rows[i].text);
        expect(results, 2, rows[i].expected, rows[i].text);
    }
}

/* Takes the place of the system's: a machine where others compute whenever a rank yields. */
static _Atomic int n_slow_yields;
static _Atomic bool is_machine_busy;

int sched_yield(void) {
    if (!is_machine_busy) return (int)syscall(SYS_sched_yield);
    n_slow_yields++;
    lsi_sleep_ms(10);
    return 0;
}

/* Rank 1 is dead before rank 0 begins to wait. */
static ls_status rank_1_dies_on_a_busy_machine(ls_group *group, void *context) {
    (void)context;
    LSI_TRY(ls_barrier(group, NULL));
    if (ls_group_rank(group) == 1) raise(SIGKILL);
    while (lsi_region_find_dead(group->region, 0) < 0) lsi_sleep_ms(1);
    group->spins = 1; /* as where ranks outnumber processors */
    group->yields = 100;
    is_machine_busy = true;
    ls_status status = ls_barrier(group, NULL);
    RANK_CHECK(n_slow_yields < 10, "%d yields came before the look at the dead", n_slow_yields);
    return status;
}

static void a_death_is_noticed_where_yields_take_long(void **state) {
    (void)state;
    rank_result results[2];
    run_rank_processes(2, rank_1_dies_on_a_busy_machine, NULL, results);
    expect(results, 0, LS_ERR_PEER, "rank 1 (pid ");
}

/* A death or a leave for those who only test: also a message that will never come. */
static ls_status others_only_test(ls_group *group, void *context) {
    const absence *a = context;
    ls_work *work[2];
    int done = 0;
    float value = 1;
    LSI_TRY(ls_barrier(group, NULL));
    if (ls_group_rank(group) == 1) {
        if (a->signal > 0) raise(a->signal);
        return LS_OK;
    }
    LSI_TRY(ls_barrier(group, &work[0]));
    LSI_TRY(ls_recv(group, &value, 1, LS_DTYPE_F32, 1, &work[1]));
    for (;;) LSI_TRY(ls_work_test(work[ls_group_rank(group) / 2], &done));
}

static void dead_and_gone_ranks_are_named_to_those_who_only_test(void **state) {
    (void)state;
    absence rows[] = {{"killed", SIGKILL, 0, LS_ERR_PEER, "rank 1 (pid "},
                      {"gone", -1, 0, LS_ERR_PEER, "it has left the group"}};
    for (int i = 0; i < 2; i++) {
        rank_result results[3];
        run_rank_processes(3, others_only_test, &rows[i], results);
        expect(results, 0, rows[i].expected, rows[i].text);
        expect(results, 2, rows[i].expected, rows[i].text);
    }
}

/* Who waits for whom: rank 0 for rank 2, that one for rank 1. */
static ls_status chain_of_messages(ls_group *group, void *context) {
    (void)context;
    float value = 1;
    int rank = ls_group_rank(group);
    LSI_TRY(ls_barrier(group, NULL));
    if (rank == 1) {
        while (ls_group_status(group) == LS_OK) lsi_sleep_ms(1);
        return ls_group_status(group);
    }
    ls_group_set_timeout(group, rank == 0 ? 100 : 60000);
    return ls_recv(group, &value, 1, LS_DTYPE_F32, rank == 0 ? 2 : 1, NULL);
}

static void the_end_of_a_chain_is_named(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, chain_of_messages, NULL, results);
    for (int r = 0; r < 3; r++) {
        expect(results, r, LS_ERR_TIMEOUT, "rank 2, who is to send it, waits itself");
        expect(results, r, LS_ERR_TIMEOUT, "for rank 1, which stands still (last call #1, barrier");
    }
}

/* A message that is there counts, even when its sender has gone since. */
static ls_status send_and_go(ls_group *group, void *context) {
    int64_t count = *(int64_t *)context;
    static float buffer[4000];
    int rank = ls_group_rank(group);
    for (int64_t i = 0; rank == 1 && i < count; i++) buffer[i] = (float)i;
    if (rank == 1) return ls_send(group, buffer, count, LS_DTYPE_F32, 0, NULL);
    LSI_TRY(ls_recv(group, buffer, count, LS_DTYPE_F32, 1, NULL));
    for (int64_t i = 0; i < count; i++)
        RANK_CHECK(buffer[i] == (float)i, "element %lld is %g", (long long)i, (double)buffer[i]);
    return LS_OK;
}

static void messages_of_ranks_that_left_arrive(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++) {
        int64_t count = i % 2 ? 4000 : 1;
        assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, send_and_go, &count));
        assert_ok(run_ranks(RANKS_AS_THREADS, 2, send_and_go, &count));
    }
}

/* Ends normally while the others go on with each other, for longer than deaths take to be seen. */
static ls_status rank_1_ends_early(ls_group *group, void *context) {
    (void)context;
    ls_group *part = NULL;
    int rank = ls_group_rank(group);
    float one = 1, sum = 0;
    LSI_TRY(ls_group_split(group, rank == 1, rank, &part));
    for (int i = 0; i < 20 && rank != 1; i++) {
        if (rank == 2) lsi_sleep_ms(10);
        LSI_TRY(ls_all_reduce(part, &one, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    }
    ls_group_destroy(part);
    return LS_OK;
}

static void who_ends_normally_is_not_called_dead(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, rank_1_ends_early, NULL));
}

/* ---- ranks that are stopped and go on ---- */

typedef struct stopper {
    _Atomic int is_over; /* shared by all ranks */
    _Atomic int n_stops;
} stopper;

/* Stops and wakes one rank after the other, a few milliseconds each, wherever they are. */
static void stop_ranks(stopper *s, const float *pids, int n) {
    for (unsigned i = 1; !s->is_over; i++) {
        pid_t victim = (pid_t)pids[(i * 7 + i / 5) % (unsigned)n];
        kill(victim, SIGSTOP);
        lsi_sleep_ms(1 + i % 3);
        kill(victim, SIGCONT);
        lsi_sleep_ms(i % 2);
        s->n_stops++;
    }
}

/* Staged in two pieces, direct, and mixed, all in flight together. */
static ls_status three_works(ls_group *group, float *large, float *small, int round) {
    enum { LARGE = 131073, SMALL = 5000 };
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float all[8], mine = (float)(rank + round);
    ls_work *work[3];
    for (int i = 0; i < LARGE; i++) large[i] = (float)(rank + i % 7);
    for (int i = 0; i < SMALL; i++) small[i] = (float)(rank + round);
    LSI_TRY(ls_all_reduce(group, large, large, LARGE, LS_DTYPE_F32, LS_OP_SUM, 1, &work[0]));
    LSI_TRY(ls_all_reduce(group, small, small, SMALL, LS_DTYPE_F32, LS_OP_SUM, 1, &work[1]));
    LSI_TRY(ls_all_gather(group, &mine, all, 1, LS_DTYPE_F32, &work[2]));
    for (int w = 2; w >= 0; w--) LSI_TRY(ls_work_wait(work[w], -1));
    const float ranks_sum = (float)(n * (n - 1) / 2);
    for (int i = 0; i < LARGE; i++)
        RANK_CHECK(large[i] == ranks_sum + (float)(n * (i % 7)), "round %d, large element %d is %g",
                   round, i, (double)large[i]);
    for (int i = 0; i < SMALL; i++)
        RANK_CHECK(small[i] == ranks_sum + (float)(n * round), "round %d, small element %d is %g",
                   round, i, (double)small[i]);
    for (int r = 0; r < n; r++)
        RANK_CHECK(all[r] == (float)(r + round), "round %d, rank %d's value is %g", round, r,
                   (double)all[r]);
    return LS_OK;
}

static ls_status stream_while_stopped(ls_group *group, void *context) {
    stopper *s = context;
    float mine = (float)getpid(), pids[8]; /* pids are below 2^22: exact */
    void *small = NULL;
    LSI_TRY(ls_all_gather(group, &mine, pids, 1, LS_DTYPE_F32, NULL));
    LSI_TRY(ls_group_alloc_shared(group, 5000 * sizeof(float), &small));
    float *large = calloc(131073, sizeof *large);
    pid_t helper = ls_group_rank(group) == 0 ? fork() : -1;
    if (helper == 0) {
        stop_ranks(s, pids, ls_group_world_size(group));
        _exit(0);
    }
    ls_status status = LS_OK;
    for (int round = 0; round < 100 && status == LS_OK; round++)
        status = three_works(group, large, small, round);
    s->is_over = 1;
    if (helper > 0) waitpid(helper, NULL, 0);
    if (status == LS_OK) status = ls_barrier(group, NULL); /* all pids were good until here */
    free(large);
    return status;
}

static void ranks_stopped_anywhere_only_cost_time(void **state) {
    (void)state;
    stopper *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    for (int n = 2; n <= 4; n++) {
        s->is_over = 0;
        assert_ok(run_ranks(RANKS_AS_PROCESSES, n, stream_while_stopped, s));
    }
    assert_true(s->n_stops > 0);
    munmap(s, sizeof *s);
}

/* ---- abort ---- */

static void *abort_soon(void *group) {
    lsi_sleep_ms(50);
    ls_group_abort(group, LS_ERR_NUMERIC, "loss is nan");
    return NULL;
}

static ls_status waits_end_by_abort(ls_group *group, void *context) {
    (void)context;
    pthread_t thread;
    if (ls_group_rank(group) == 2) {
        if (pthread_create(&thread, NULL, abort_soon, group) != 0)
            return lsi_fail(LS_ERR_SYSTEM, "no thread");
        pthread_join(thread, NULL);
        return ls_group_status(group);
    }
    ls_status status = ls_barrier(group, NULL);
    RANK_CHECK(ls_barrier(group, NULL) == status, "the error does not stick");
    return status;
}

static void abort_reaches_every_wait_and_sticks(void **state) {
    (void)state;
    rank_result results[4];
    run_rank_processes(4, waits_end_by_abort, NULL, results);
    for (int r = 0; r < 4; r++)
        expect(results, r, LS_ERR_NUMERIC, "rank 2 aborted the group: loss is nan");
}

/* Also a wait for a work that is done already, so that no rank goes on alone. */
static ls_status done_works_end_by_abort(ls_group *group, void *context) {
    (void)context;
    ls_work *work = NULL;
    LSI_TRY(ls_barrier(group, &work));
    int done = 0;
    while (!done) LSI_TRY(ls_work_test(work, &done));
    ls_group_abort(group, LS_ERR_NUMERIC, "loss is nan");
    RANK_CHECK(ls_work_test(work, &done) == LS_ERR_NUMERIC, "test does not return the error");
    return ls_work_wait(work, -1);
}

static void abort_reaches_works_that_are_done(void **state) {
    (void)state;
    rank_result result;
    run_rank_processes(1, done_works_end_by_abort, NULL, &result);
    expect(&result, 0, LS_ERR_NUMERIC, "loss is nan");
}

static ls_status two_abort_at_once(ls_group *group, void *context) {
    (void)context;
    LSI_TRY(ls_barrier(group, NULL));
    ls_group_abort(group, LS_ERR_NUMERIC, ls_group_rank(group) ? "one" : "zero");
    return ls_group_status(group);
}

static void first_error_wins_on_all_ranks(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        rank_result results[2];
        run_rank_processes(2, two_abort_at_once, NULL, results);
        assert_string_equal(results[0].message, results[1].message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_of_a_part_names_it_and_leaves_the_others_usable),
        cmocka_unit_test(parts_outlive_the_world),
        cmocka_unit_test(late_ranks_are_named_at_the_deadline),
        cmocka_unit_test(ranks_that_left_are_named_at_once),
        cmocka_unit_test(ranks_that_left_in_flight_are_named_at_once),
        cmocka_unit_test(who_left_is_named_before_who_is_late),
        cmocka_unit_test(a_deadline_without_a_culprit_is_no_error),
        cmocka_unit_test(killed_and_stopped_ranks_are_named),
        cmocka_unit_test(a_death_is_noticed_where_yields_take_long),
        cmocka_unit_test(dead_and_gone_ranks_are_named_to_those_who_only_test),
        cmocka_unit_test(the_end_of_a_chain_is_named),
        cmocka_unit_test(messages_of_ranks_that_left_arrive),
        cmocka_unit_test(who_ends_normally_is_not_called_dead),
        cmocka_unit_test(ranks_stopped_anywhere_only_cost_time),
        cmocka_unit_test(abort_reaches_every_wait_and_sticks),
        cmocka_unit_test(abort_reaches_works_that_are_done),
        cmocka_unit_test(first_error_wins_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
