/* What goes wrong between ranks: calls that differ, ranks that are late, stopped, killed or gone,
 * aborts. Wanted each time: the right status on every rank, a message that names the culprit, and
 * an end long before the deadline of the test. */
#include "harness/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/ranks.h"

static void expect(const rank_result *results, int rank, int status, const char *text) {
    if (results[rank].status != status || !strstr(results[rank].message, text))
        fail_msg("rank %d: expected status %d with '%s', found %d with '%s'", rank, status, text,
                 results[rank].status, results[rank].message);
}

static void expect_without(const rank_result *results, int rank, const char *text) {
    if (strstr(results[rank].message, text))
        fail_msg("rank %d: expected no '%s', found '%s'", rank, text, results[rank].message);
}

/* ---- calls that differ ---- */

typedef struct mismatch {
    const char *name;
    lsi_call_kind kind[2];
    int64_t count[2];
    double scale[2];
    int root[2];
    const char *text[2]; /* both calls must be in the message */
} mismatch;

static const mismatch mismatches[] = {
    {"counts",
     {LSI_CALL_ALL_REDUCE, LSI_CALL_ALL_REDUCE},
     {100, 200},
     {1, 1},
     {0, 0},
     {"count 100", "count 200"}},
    {"large counts",
     {LSI_CALL_ALL_REDUCE, LSI_CALL_ALL_REDUCE},
     {409600, 409598},
     {1, 1},
     {0, 0},
     {"count 409600", "count 409598"}},
    {"nothing and something",
     {LSI_CALL_ALL_REDUCE, LSI_CALL_ALL_REDUCE},
     {0, 1},
     {1, 1},
     {0, 0},
     {"count 0", "count 1"}},
    {"scales",
     {LSI_CALL_ALL_REDUCE, LSI_CALL_ALL_REDUCE},
     {8, 8},
     {1, 0.5},
     {0, 0},
     {"scale 1,", "scale 0.5"}},
    {"kinds",
     {LSI_CALL_ALL_REDUCE, LSI_CALL_BROADCAST},
     {8, 8},
     {1, 1},
     {0, 0},
     {"all-reduce", "broadcast"}},
    {"barrier and sum",
     {LSI_CALL_BARRIER, LSI_CALL_REDUCE_SCATTER},
     {0, 8},
     {1, 1},
     {0, 0},
     {"barrier", "reduce-scatter"}},
    {"gather and scatter",
     {LSI_CALL_ALL_GATHER, LSI_CALL_REDUCE_SCATTER},
     {8, 8},
     {1, 1},
     {0, 0},
     {"all-gather", "reduce-scatter"}},
    {"roots",
     {LSI_CALL_BROADCAST, LSI_CALL_BROADCAST},
     {8, 8},
     {1, 1},
     {0, 1},
     {"root 0", "root 1"}},
};

static ls_status make_call(ls_group *group, const mismatch *m, int which, float *buffer,
                           float *large) {
    int64_t count = m->count[which];
    switch (m->kind[which]) {
    case LSI_CALL_ALL_REDUCE:
        return ls_all_reduce(group, buffer, buffer, count, LS_DTYPE_F32, LS_OP_SUM, m->scale[which],
                             NULL);
    case LSI_CALL_REDUCE_SCATTER:
        return ls_reduce_scatter(group, large, buffer, count, LS_DTYPE_F32, LS_OP_SUM,
                                 m->scale[which], NULL);
    case LSI_CALL_ALL_GATHER: return ls_all_gather(group, buffer, large, count, LS_DTYPE_F32, NULL);
    case LSI_CALL_BROADCAST:
        return ls_broadcast(group, buffer, count, LS_DTYPE_F32, m->root[which], NULL);
    default: return ls_barrier(group, NULL);
    }
}

static ls_status call_differently(ls_group *group, void *context) {
    float *buffer = calloc(1 << 20, sizeof *buffer), *large = calloc(1 << 20, sizeof *large);
    buffer[0] = 3;
    int which = ls_group_rank(group) == ls_group_world_size(group) - 1;
    LSI_TRY(ls_barrier(group, NULL));
    ls_status status = make_call(group, context, which, buffer, large);
    bool untouched = buffer[0] == 3;
    free(buffer);
    free(large);
    if (!untouched) return lsi_fail(LS_ERR_STATE, "a result was written");
    return status;
}

static void different_calls_are_an_error_on_all_ranks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mismatches / sizeof mismatches[0]; i++)
        for (int n = 2; n <= 5; n += 3) {
            rank_result results[5];
            mismatch m = mismatches[i];
            run_rank_processes(n, call_differently, &m, results);
            for (int r = 0; r < n; r++)
                for (int which = 0; which < 2; which++) {
                    expect(results, r, LS_ERR_MISMATCH, m.text[which]);
                    expect(results, r, LS_ERR_MISMATCH, "call #2");
                }
            char culprit[32];
            snprintf(culprit, sizeof culprit, "rank %d called", n - 1);
            expect(results, 0, LS_ERR_MISMATCH, culprit);
        }
}

static ls_status order_differs(ls_group *group, void *context) {
    (void)context;
    lsi_order order;
    if (ls_group_rank(group) == 1) {
        LSI_TRY(lsi_order_from_weights(&order, 3, (int64_t[]){2, 1, 1}));
        lsi_group_set_order(group, &order);
    }
    float value = 1;
    return ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
}

static void different_orders_are_an_error(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, order_differs, NULL, results);
    for (int r = 0; r < 3; r++) expect(results, r, LS_ERR_MISMATCH, "order");
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
    float value = 1;
    ls_work *work = NULL;
    if (ls_group_rank(group) != 1)
        while (!group->ranks[1].left) lsi_sleep_ms(1);
    LSI_TRY(ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1, &work));
    return ls_group_rank(group) == 1 ? LS_OK : ls_work_wait(work, 60000);
}

static void ranks_that_left_in_flight_are_named_at_once(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, rank_1_leaves_in_flight, NULL, results);
    assert_int_equal(results[1].status, LS_OK);
    expect(results, 0, LS_ERR_PEER, "rank 1 did not finish (last call #1, all-reduce, count 1");
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
                 LS_ERR_PEER, "rank 1 did not finish (last call #1, all-reduce, count 1");
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

/* A rank killed or stopped without a launcher to notice: the deadline finds it. The stopped one is
 * released by rank 0 afterwards. */
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
    absence rows[] = {{"killed", SIGKILL, 300, LS_ERR_TIMEOUT, "rank 1 did not join"},
                      {"stopped", SIGSTOP, 300, LS_ERR_TIMEOUT, "rank 1 did not join"}};
    for (int i = 0; i < 2; i++) {
        rank_result results[3];
        run_rank_processes(3, rank_1_is_hit, &rows[i], results);
        expect(results, 0, rows[i].expected, rows[i].text);
        expect(results, 2, rows[i].expected, rows[i].text);
    }
}

/* Killed at any moment of a stream of collectives: the others always end, with rank 1 named. */
static void await_all_joined(ls_group *group, uint64_t n_calls) {
    for (int r = 0; r < ls_group_world_size(group); r++)
        while (group->ranks[r].arrived < n_calls) lsi_sleep_ms(1);
}

static ls_status stream_until_killed(ls_group *group, void *context) {
    int victim_call = *(int *)context;
    enum { COUNT = 300000 };
    float *buffer = calloc(COUNT, sizeof *buffer);
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK; i++) {
        ls_work *work = NULL;
        status = ls_all_reduce(group, buffer, buffer, COUNT, LS_DTYPE_F32, LS_OP_SUM, 1, &work);
        if (ls_group_rank(group) == 1 && i == victim_call) raise(SIGKILL);
        /* A short deadline only where it counts: until then a slow machine is no failure. */
        if (i == victim_call) await_all_joined(group, (uint64_t)i + 1);
        if (status == LS_OK) status = ls_work_wait(work, i == victim_call ? 1000 : -1);
    }
    free(buffer);
    return status;
}

static void a_kill_in_the_middle_ends_all_ranks(void **state) {
    (void)state;
    for (int victim_call = 0; victim_call < 4; victim_call++) {
        rank_result results[4];
        run_rank_processes(4, stream_until_killed, &victim_call, results);
        assert_int_equal(results[1].status, -SIGKILL);
        for (int r = 0; r < 4; r++)
            if (r != 1) {
                expect(results, r, LS_ERR_TIMEOUT, "rank 1 did not");
                /* The others could not finish either, but only because of rank 1. */
                expect_without(results, r, "rank 0 did");
                expect_without(results, r, "rank 2 did");
                expect_without(results, r, "rank 3 did");
            }
    }
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
        cmocka_unit_test(different_calls_are_an_error_on_all_ranks),
        cmocka_unit_test(different_orders_are_an_error),
        cmocka_unit_test(late_ranks_are_named_at_the_deadline),
        cmocka_unit_test(ranks_that_left_are_named_at_once),
        cmocka_unit_test(ranks_that_left_in_flight_are_named_at_once),
        cmocka_unit_test(who_left_is_named_before_who_is_late),
        cmocka_unit_test(a_deadline_without_a_culprit_is_no_error),
        cmocka_unit_test(killed_and_stopped_ranks_are_named),
        cmocka_unit_test(a_kill_in_the_middle_ends_all_ranks),
        cmocka_unit_test(ranks_stopped_anywhere_only_cost_time),
        cmocka_unit_test(abort_reaches_every_wait_and_sticks),
        cmocka_unit_test(abort_reaches_works_that_are_done),
        cmocka_unit_test(first_error_wins_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
