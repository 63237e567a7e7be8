/* The group's thread (LOCKSTEP_PROGRESS=thread): works move on while their rank computes and never
 * calls the group, everything is as right as without it, and it ends with its group, whatever is
 * in flight. */
#include "harness/harness.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/transport/control.h"
#include "harness/cases.h"

enum { ARENA_BYTES = 16 << 20, PATIENCE_MS = 60000 };

static const char *progress_before;

static int ask_for_threads(void **state) {
    (void)state;
    progress_before = getenv("LOCKSTEP_PROGRESS");
    return setenv("LOCKSTEP_PROGRESS", "thread", 1);
}

static int ask_for_nothing(void **state) {
    (void)state;
    return progress_before ? setenv("LOCKSTEP_PROGRESS", progress_before, 1)
                           : unsetenv("LOCKSTEP_PROGRESS");
}

/* ---- who has one ---- */

static ls_status has_thread(ls_group *group, void *context) {
    const bool *expected = context;
    const char *reason = NULL;
    bool wanted = *expected && group->n_ranks > 1;
    RANK_CHECK(ls_group_has_thread(group, &reason) == wanted, "%d ranks: %s", group->n_ranks,
               reason);
    RANK_CHECK(reason && strlen(reason) > 10, "no reason");
    RANK_CHECK(group->n_ranks == 1 || strstr(reason, "LOCKSTEP_PROGRESS"), "reason: %s", reason);
    RANK_CHECK(ls_group_has_thread(group, NULL) == wanted, "the answer changed");
    ls_group *part = NULL;
    LSI_TRY(ls_group_split(group, 0, 0, &part));
    RANK_CHECK(ls_group_has_thread(part, NULL) == wanted, "a part is not like the whole");
    ls_group_destroy(part);
    return LS_OK;
}

static void threads_are_as_asked_for(void **state) {
    (void)state;
    bool wanted = true;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 1, has_thread, &wanted));
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, has_thread, &wanted));
    setenv("LOCKSTEP_PROGRESS", "inline", 1);
    wanted = false;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, has_thread, &wanted));
    setenv("LOCKSTEP_PROGRESS", "thread", 1);
}

/* ---- works that move on alone ---- */

/* Until the counter, which the rank's own thread moves, gets there; makes no call on the group. */
static ls_status compute_until(const _Atomic uint64_t *counter, uint64_t n, const char *what) {
    int64_t deadline_ns = lsi_deadline_ns(PATIENCE_MS);
    while (atomic_load(counter) < n) {
        RANK_CHECK(lsi_now_ns() < deadline_ns, "%s did not move on: %llu of %llu", what,
                   (unsigned long long)atomic_load(counter), (unsigned long long)n);
        lsi_sleep_ms(1);
    }
    return LS_OK;
}

typedef struct alone {
    int algorithm;
    int64_t count;
    case_buffers buffers;
} alone;

static ls_status moves_on_alone(ls_group *group, void *context) {
    const alone *a = context;
    case_arena arena;
    posted_case p[4];
    LSI_TRY(case_arena_open(&arena, group, ARENA_BYTES));
    for (int i = 0; i < 4; i++) {
        call_case c = {.kind = LSI_CALL_ALL_REDUCE,
                       .algorithm = a->algorithm,
                       .dtype = LS_DTYPE_F32,
                       .op = LS_OP_SUM,
                       .scale = 1,
                       .count = a->count,
                       .buffers = a->buffers,
                       .seed = (uint32_t)i};
        /* some ranks come late: the others' threads have gone to sleep by then */
        if (group->rank == i % group->n_ranks) lsi_sleep_ms(8);
        LSI_TRY(case_post(&arena, &c, true, &p[i]));
    }
    LSI_TRY(compute_until(&group->me->done, 4, lsi_algorithm_name(a->algorithm)));
    for (int i = 3; i >= 0; i--) {
        LSI_TRY(ls_work_wait(p[i].work, -1));
        LSI_TRY(case_check(&p[i]));
    }
    case_arena_close(&arena);
    return LS_OK;
}

static void works_complete_without_calls(void **state) {
    (void)state;
    static const int64_t counts[] = {4, 1000, 150001};
    for (int a = 1; a <= lsi_n_algorithms(); a++)
        for (int i = 0; i < 3; i++)
            for (int n = 2; n <= 3; n++) {
                alone row = {a, counts[i], CASE_SHARED};
                lsi_choice_case c = {.kind = LSI_CALL_ALL_REDUCE,
                                     .n = n,
                                     .reduces = true,
                                     .default_order = true,
                                     .bytes = counts[i] * 4,
                                     .slot_bytes = counts[i] * 4};
                if (!lsi_algorithm_can(a, &c)) continue;
                if (a == LSI_ALGORITHM_STAGED) row.buffers = CASE_PRIVATE;
                assert_ok(run_ranks(RANKS_AS_PROCESSES, n, moves_on_alone, &row));
                if (i == 1) assert_ok(run_ranks(RANKS_AS_THREADS, n, moves_on_alone, &row));
            }
}

/* A message far larger than its channel, whose sender and receiver both compute. */
static ls_status message_moves_on_alone(ls_group *group, void *context) {
    (void)context;
    enum { BYTES = 300000, HEAD = sizeof((ls_work *)NULL)->head };
    unsigned char *data = malloc(BYTES);
    ls_work *work = NULL;
    memset(data, group->rank == 0 ? 7 : 0, BYTES);
    if (group->rank == 0)
        LSI_TRY(ls_send(group, data, BYTES, LS_DTYPE_U8, 1, &work));
    else
        LSI_TRY(ls_recv(group, data, BYTES, LS_DTYPE_U8, 0, &work));
    lsi_channel *channel = lsi_group_channel(group->control, LSI_CHANNELS_OF_USERS, 0, 1);
    LSI_TRY(compute_until(&channel->read, BYTES + HEAD, "the message"));
    LSI_TRY(ls_work_wait(work, -1));
    for (int i = 0; i < BYTES; i++) RANK_CHECK(data[i] == 7, "byte %d is %d", i, data[i]);
    free(data);
    return LS_OK;
}

static void messages_complete_without_calls(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 2, message_moves_on_alone, NULL));
}

static ls_status batch_moves_on_alone(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank, out = me, in = -1;
    static _Thread_local float values[5000], sums[5000];
    ls_work *work = NULL;
    for (int i = 0; i < 5000; i++) values[i] = (float)me;
    LSI_TRY(ls_batch_begin(group));
    LSI_TRY(ls_recv(group, &in, 1, LS_DTYPE_I32, (me + 1) % n, NULL));
    LSI_TRY(ls_all_reduce(group, values, sums, 5000, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    LSI_TRY(ls_send(group, &out, 1, LS_DTYPE_I32, (me + n - 1) % n, NULL));
    LSI_TRY(ls_batch_end(group, &work));
    LSI_TRY(compute_until(&group->me->done, 1, "the batch"));
    LSI_TRY(ls_work_wait(work, -1));
    RANK_CHECK(in == (me + 1) % n && sums[4999] == (float)(n * (n - 1) / 2), "found %d and %g", in,
               (double)sums[4999]);
    return LS_OK;
}

static void batches_complete_without_calls(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 3, batch_moves_on_alone, NULL));
}

/* ---- the small matrix ---- */

/* Posts and waits, half of the calls at once and half later, by seed. */
static ls_status run_case(case_arena *arena, const call_case *c) {
    posted_case p;
    case_arena_reset(arena);
    LSI_TRY(case_post(arena, c, c->seed % 2, &p));
    if (p.work && c->seed % 4 == 1) sched_yield();
    if (p.work && c->seed % 8 == 3) LSI_TRY(ls_group_progress(arena->group));
    if (p.work) LSI_TRY(ls_work_wait(p.work, -1));
    return case_check(&p);
}

static ls_status small_matrix(ls_group *group, void *context) {
    (void)context;
    int64_t counts[] = {1, group->n_ranks + 1, 1000, 20011};
    int n_counts = SANITIZED ? 3 : 4;
    uint32_t seed = 0;
    case_arena arena;
    LSI_TRY(case_arena_open(&arena, group, ARENA_BYTES));
    for (int k = 0; k < n_case_kinds; k++)
        for (int a = 0; a <= lsi_n_algorithms(); a++)
            for (int i = 0; i < n_counts; i++)
                for (int t = 0; t < (i < 3 ? n_case_dtypes : 1); t++) {
                    const case_op *op = &case_ops[(seed / 3) % (uint32_t)n_case_ops];
                    call_case c = {.kind = case_kinds[k].kind,
                                   .uneven = case_kinds[k].uneven,
                                   .algorithm = a,
                                   .dtype = case_dtypes[t],
                                   .op = op->op,
                                   .scale = op->scale,
                                   .count = counts[i],
                                   .root = (int)(seed % (uint32_t)group->n_ranks),
                                   .in_place = seed / 2 % 2,
                                   .buffers = (case_buffers)(seed % N_CASE_BUFFERS),
                                   .seed = seed};
                    seed++;
                    if (!case_possible(group, &c)) c.buffers = CASE_SHARED;
                    if (case_possible(group, &c)) LSI_TRY(run_case(&arena, &c));
                }
    case_arena_close(&arena);
    return LS_OK;
}

static void collectives_are_exact(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++) {
        if (SANITIZED && *n > 4) continue;
        if (!SANITIZED) assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, small_matrix, NULL));
        if (*n <= 4) assert_ok(run_ranks(RANKS_AS_THREADS, *n, small_matrix, NULL));
    }
}

/* Statistics and aborts from elsewhere, while the thread works. */
static ls_status statistics_add_up(ls_group *group, void *context) {
    (void)context;
    lsi_group_stats before, after;
    lsi_group_get_stats(group, &before);
    for (int i = 0; i < 50; i++) {
        static _Thread_local float values[3000];
        ls_work *work = NULL;
        LSI_TRY(ls_all_reduce(group, values, values, 3000, LS_DTYPE_F32, LS_OP_SUM, 1, &work));
        lsi_group_get_stats(group, &after);
        LSI_TRY(ls_work_wait(work, -1));
    }
    lsi_group_get_stats(group, &after);
    RANK_CHECK(after.n_calls - before.n_calls == 50 && after.bytes_sent > before.bytes_sent &&
                   after.flight_ns > before.flight_ns,
               "%lld calls, %lld bytes", (long long)(after.n_calls - before.n_calls),
               (long long)(after.bytes_sent - before.bytes_sent));
    return LS_OK;
}

static void statistics_can_be_read_meanwhile(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, statistics_add_up, NULL));
}

/* ---- ends ---- */

typedef struct ending {
    bool abort, split;
} ending;

/* Some that complete, some that wait for rank 0, which never comes, and a receive of what nobody
 * sends. */
static ls_status post_too_much(ls_group *group, float *values) {
    ls_work *work = NULL;
    int n_calls = group->rank == 0 ? 3 : 6;
    for (int i = 0; i < n_calls; i++)
        LSI_TRY(ls_all_reduce(group, values + i * 30000, values + i * 30000, i % 2 ? 30000 : 9,
                              LS_DTYPE_F32, LS_OP_SUM, 1, &work));
    if (group->rank != 1) return LS_OK;
    return ls_recv(group, values + 190000, 9, LS_DTYPE_F32, 0, &work);
}

static ls_status end_in_flight(ls_group *group, void *context) {
    static _Thread_local float values[200000]; /* outlives the group */
    const ending *e = context;
    ls_group *part = group;
    if (e->split) LSI_TRY(ls_group_split(group, 0, 0, &part));
    ls_status status = post_too_much(part, values);
    if (e->abort && group->rank == 2) ls_group_abort(part, LS_ERR_ABORTED, "on purpose");
    if (!e->split) return status;
    /* Others may have aborted it already. */
    if (e->abort && status == LS_ERR_ABORTED) status = LS_OK;
    ls_group_destroy(part);
    LSI_TRY(ls_barrier(group, NULL)); /* nobody leaves the world before */
    return status;
}

static void groups_end_with_works_in_flight(void **state) {
    (void)state;
    for (int round = 0; round < 24; round++) {
        int64_t before = lsi_mem_n_blocks();
        ending e = {.abort = round % 3 == 1, .split = round % 2};
        ls_status status = run_ranks((rank_mode)(round / 2 % 2), 3, end_in_flight, &e);
        /* Who comes late may find the abort or the leaving of others. */
        if (status != LS_OK && (e.split || (status != LS_ERR_ABORTED && status != LS_ERR_PEER)))
            fail_msg("round %d: %s: %s", round, ls_status_name(status), ls_last_message());
        assert_int_equal(lsi_mem_n_blocks(), before);
    }
}

/* Errors reach waits, also of a rank whose thread meets them first. */
static ls_status mismatch_with_threads(ls_group *group, void *context) {
    (void)context;
    float values[4] = {0};
    ls_work *work = NULL;
    LSI_TRY(ls_all_reduce(group, values, values, group->rank == 1 ? 3 : 4, LS_DTYPE_F32, LS_OP_SUM,
                          1, &work));
    lsi_sleep_ms(20);
    ls_status status = ls_work_wait(work, -1);
    RANK_CHECK(status == LS_ERR_MISMATCH && strstr(ls_last_message(), "count 3"), "%s: %s",
               ls_status_name(status), ls_last_message());
    return LS_OK;
}

static ls_status peer_is_late(ls_group *group, void *context) {
    (void)context;
    float value = 0;
    ls_work *work = NULL;
    LSI_TRY(ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1,
                          group->rank == 0 ? &work : NULL));
    if (work) LSI_TRY(ls_work_wait(work, -1));
    if (group->rank == 1) {
        lsi_sleep_ms(1500);
        return LS_OK;
    }
    LSI_TRY(ls_barrier(group, &work));
    ls_status status = ls_work_wait(work, 100);
    RANK_CHECK(status == LS_ERR_TIMEOUT && strstr(ls_last_message(), "rank 1 did not join"),
               "%s: %s", ls_status_name(status), ls_last_message());
    return LS_OK;
}

static void errors_reach_the_caller(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, mismatch_with_threads, NULL, results);
    for (int r = 0; r < 3; r++)
        if (results[r].status != LS_OK && results[r].status != LS_ERR_MISMATCH)
            fail_msg("rank %d: %d: %s", r, results[r].status, results[r].message);
    run_rank_processes(2, peer_is_late, NULL, results);
    if (results[0].status != LS_OK) fail_msg("%s", results[0].message);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_as_asked_for),
        cmocka_unit_test(works_complete_without_calls),
        cmocka_unit_test(messages_complete_without_calls),
        cmocka_unit_test(batches_complete_without_calls),
        cmocka_unit_test(collectives_are_exact),
        cmocka_unit_test(statistics_can_be_read_meanwhile),
        cmocka_unit_test(groups_end_with_works_in_flight),
        cmocka_unit_test(errors_reach_the_caller),
    };
    return cmocka_run_group_tests(tests, ask_for_threads, ask_for_nothing);
}
