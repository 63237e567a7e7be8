/* Sends, receives and batches: what is sent arrives, in order, beside collectives; grouped calls
 * cannot block each other; differences and misuse are answered. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/control.h"
#include "harness/ranks.h"

/* Nothing, less and more than a line, around and far above what a channel holds. */
static const int64_t sizes[] = {0, 1, 7, 40, 64, 1000, 32767, 32768, 32769, 65536, (1 << 20) + 3};
enum { N_SIZES = sizeof sizes / sizeof sizes[0], MOST_BYTES = (1 << 20) + 64, CANARY = 0x5A };

static void fill(unsigned char *to, int64_t bytes, int from, int number) {
    for (int64_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(i * 7 + i / 251 + from * 31 + number * 13 + 1);
}

static ls_status check(const unsigned char *found, int64_t bytes, int from, int number, int rank) {
    for (int64_t i = 0; i < bytes; i++) {
        unsigned char wanted = (unsigned char)(i * 7 + i / 251 + from * 31 + number * 13 + 1);
        RANK_CHECK(found[i] == wanted,
                   "message %d of %lld bytes from rank %d to rank %d: byte %lld is %d, expected %d",
                   number, (long long)bytes, from, rank, (long long)i, found[i], wanted);
    }
    RANK_CHECK(found[bytes] == CANARY, "message %d from rank %d wrote behind its buffer", number,
               from);
    return LS_OK;
}

/* ---- rounds: every rank to its neighbour ---- */

static ls_status ring_of_every_size(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank, to = (me + 1) % n, from = (me + n - 1) % n;
    unsigned char *out = malloc(MOST_BYTES), *in = malloc(MOST_BYTES);
    for (int s = 0; s < N_SIZES; s++) {
        ls_work *send = NULL, *receive = NULL;
        fill(out, sizes[s], me, s);
        memset(in, CANARY, MOST_BYTES);
        if (s % 2) {
            LSI_TRY(ls_recv(group, in, sizes[s], LS_DTYPE_U8, from, &receive));
            LSI_TRY(ls_send(group, out, sizes[s], LS_DTYPE_U8, to, NULL));
            LSI_TRY(ls_work_wait(receive, -1));
        } else {
            LSI_TRY(ls_send(group, out, sizes[s], LS_DTYPE_U8, to, &send));
            LSI_TRY(ls_recv(group, in, sizes[s], LS_DTYPE_U8, from, NULL));
            LSI_TRY(ls_work_wait(send, -1));
        }
        LSI_TRY(check(in, sizes[s], from, s, me));
    }
    free(out);
    free(in);
    return LS_OK;
}

static void run_everywhere(rank_body body) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, body, NULL));
}

static void messages_of_every_size_arrive(void **state) {
    (void)state;
    run_everywhere(ring_of_every_size);
}

static ls_status every_type(ls_group *group, void *context) {
    static const ls_dtype dtypes[] = {
#define DTYPE(name, number, bytes, text) LS_DTYPE_##name,
        LS_DTYPE_TABLE(DTYPE)
#undef DTYPE
    };
    (void)context;
    _Alignas(8) unsigned char out[1024], in[1024];
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
        int64_t bytes = 100 * (int64_t)ls_dtype_bytes(dtypes[t]);
        memset(in, CANARY, sizeof in);
        fill(out, bytes, 0, (int)t);
        if (group->rank == 0) LSI_TRY(ls_send(group, out, 100, dtypes[t], 1, NULL));
        if (group->rank == 1) LSI_TRY(ls_recv(group, in, 100, dtypes[t], 0, NULL));
        if (group->rank == 1) LSI_TRY(check(in, bytes, 0, (int)t, 1));
    }
    return LS_OK;
}

static void every_type_can_be_sent(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, every_type, NULL));
}

/* ---- order ---- */

enum { N_QUEUED = 200 };

/* Receives are posted first on one half, sends on the other; waited for from the last to the first.
 */
static ls_status queue_up(ls_group *group, void *context) {
    (void)context;
    static const int64_t most = 700;
    int n = group->n_ranks, me = group->rank;
    unsigned char *out = malloc(N_QUEUED * 1024), *in = malloc(N_QUEUED * 1024);
    ls_work *works[2][N_QUEUED];
    memset(in, CANARY, N_QUEUED * 1024);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < N_QUEUED; i++) {
            int64_t bytes = i * 37 % most;
            int to = (me + 1 + i % n) % n, from = (me + 2 * n - 1 - i % n) % n;
            bool sends = half == me % 2;
            if (sends) fill(out + i * 1024, bytes, me, i);
            if (sends)
                LSI_TRY(ls_send(group, out + i * 1024, bytes, LS_DTYPE_U8, to, &works[0][i]));
            else
                LSI_TRY(ls_recv(group, in + i * 1024, bytes, LS_DTYPE_U8, from, &works[1][i]));
        }
    for (int i = N_QUEUED - 1; i >= 0; i--) {
        LSI_TRY(ls_work_wait(works[1][i], -1));
        LSI_TRY(ls_work_wait(works[0][i], -1));
        LSI_TRY(check(in + i * 1024, i * 37 % most, (me + 2 * n - 1 - i % n) % n, i, me));
    }
    free(out);
    free(in);
    return LS_OK;
}

static void queued_messages_keep_their_order(void **state) {
    (void)state;
    run_everywhere(queue_up);
}

/* ---- beside collectives ---- */

/* A receive whose send comes only after collectives that both ranks make. */
static ls_status collectives_go_on(ls_group *group, void *context) {
    (void)context;
    unsigned char in[101], out[100];
    int n = group->n_ranks, me = group->rank;
    ls_work *receive = NULL, *sum_work = NULL;
    memset(in, CANARY, sizeof in);
    fill(out, 100, me, 5);
    LSI_TRY(ls_recv(group, in, 100, LS_DTYPE_U8, (me + 1) % n, &receive));
    for (int i = 0; i < 50; i++) {
        float value = (float)(me + i), sum = 0;
        LSI_TRY(ls_all_reduce(group, &value, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, &sum_work));
        if (i == 25) LSI_TRY(ls_send(group, out, 100, LS_DTYPE_U8, (me + n - 1) % n, NULL));
        LSI_TRY(ls_work_wait(sum_work, -1));
        RANK_CHECK(sum == (float)(n * (n - 1) / 2 + i * n), "sum %d is %g", i, (double)sum);
    }
    LSI_TRY(ls_work_wait(receive, -1));
    return check(in, 100, (me + 1) % n, 5, me);
}

static void messages_go_on_beside_collectives(void **state) {
    (void)state;
    run_everywhere(collectives_go_on);
}

/* ---- batches ---- */

/* All to all by hand: all sends first, far more than channels hold, and a collective between. */
static ls_status batch_of_everything(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    const int64_t bytes = 100003;
    size_t part = (size_t)bytes + 1;
    unsigned char *out = malloc(part * (size_t)n), *in = malloc(part * (size_t)n);
    for (int round = 0; round < 3; round++) {
        float value = 1, sum = 0;
        ls_work *work = NULL;
        memset(in, CANARY, part * (size_t)n);
        for (int r = 0; r < n; r++) fill(out + part * (size_t)r, bytes, me, r + round);
        LSI_TRY(ls_batch_begin(group));
        for (int r = 0; r < n; r++)
            LSI_TRY(ls_send(group, out + part * (size_t)r, bytes, LS_DTYPE_U8, r, NULL));
        LSI_TRY(ls_all_reduce(group, &value, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
        for (int r = n - 1; r >= 0; r--)
            LSI_TRY(ls_recv(group, in + part * (size_t)r, bytes, LS_DTYPE_U8, r, NULL));
        LSI_TRY(ls_batch_end(group, round == 1 ? &work : NULL));
        if (work) LSI_TRY(ls_work_wait(work, -1));
        RANK_CHECK(sum == (float)n, "the sum in the batch is %g", (double)sum);
        for (int r = 0; r < n; r++) LSI_TRY(check(in + part * (size_t)r, bytes, r, me + round, me));
    }
    free(out);
    free(in);
    return LS_OK;
}

static void batches_do_not_block(void **state) {
    (void)state;
    run_everywhere(batch_of_everything);
}

/* Empty batches, batches of collectives alone, handles that are tested. */
static ls_status odd_batches(ls_group *group, void *context) {
    (void)context;
    ls_work *work = NULL;
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {0};
    int done = 0;
    LSI_TRY(ls_batch_begin(group));
    LSI_TRY(ls_batch_end(group, NULL));
    LSI_TRY(ls_batch_begin(group));
    LSI_TRY(ls_batch_end(group, &work));
    LSI_TRY(ls_work_wait(work, -1));
    LSI_TRY(ls_batch_begin(group));
    for (int i = 0; i < 8; i++)
        LSI_TRY(ls_all_reduce(group, &in[i], &out[i], 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    LSI_TRY(ls_batch_end(group, &work));
    while (!done) LSI_TRY(ls_work_test(work, &done));
    LSI_TRY(ls_work_wait(work, -1));
    for (int i = 0; i < 8; i++)
        RANK_CHECK(out[i] == in[i] * (float)group->n_ranks, "sum %d is %g", i, (double)out[i]);
    return LS_OK;
}

static void odd_batches_work(void **state) {
    (void)state;
    run_everywhere(odd_batches);
}

/* Works of messages and batches come from a pool: a thousand rounds must not use it up. */
static ls_status many_rounds(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    for (int i = 0; i < 3 * LSI_MESSAGES; i++) {
        int out = me * 10000 + i, in = -1;
        LSI_TRY(ls_batch_begin(group));
        LSI_TRY(ls_send(group, &out, 1, LS_DTYPE_I32, (me + 1) % n, NULL));
        LSI_TRY(ls_recv(group, &in, 1, LS_DTYPE_I32, (me + n - 1) % n, NULL));
        LSI_TRY(ls_batch_end(group, NULL));
        RANK_CHECK(in == (me + n - 1) % n * 10000 + i, "round %d: found %d", i, in);
    }
    return LS_OK;
}

static void rounds_do_not_use_up_the_pool(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 1, many_rounds, NULL));
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, many_rounds, NULL));
    assert_ok(run_ranks(RANKS_AS_THREADS, 3, many_rounds, NULL));
}

/* ---- misuse ---- */

#define EXPECT(expression, status)                                                                 \
    do {                                                                                           \
        ls_status expect_found_ = (expression);                                                    \
        RANK_CHECK(expect_found_ == (status), "%s: found %s", #expression,                         \
                   ls_status_name(expect_found_));                                                 \
    } while (0)

static ls_status bad_messages(ls_group *group, void *context) {
    (void)context;
    _Alignas(8) char bytes[64] = {0};
    ls_work *work = NULL;
    EXPECT(ls_send(group, bytes, 1, LS_DTYPE_F32, -1, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_recv(group, bytes, 1, LS_DTYPE_F32, group->n_ranks, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_send(group, bytes, -1, LS_DTYPE_F32, 0, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_send(group, bytes, INT64_MAX, LS_DTYPE_F32, 0, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_send(group, NULL, 1, LS_DTYPE_F32, 0, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_send(group, bytes + 2, 1, LS_DTYPE_F32, 0, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_recv(group, bytes, 1, (ls_dtype)77, 0, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_batch_end(group, NULL), LS_ERR_STATE);
    LSI_TRY(ls_batch_begin(group));
    EXPECT(ls_batch_begin(group), LS_ERR_STATE);
    EXPECT(ls_send(group, bytes, 1, LS_DTYPE_F32, 99, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_reduce_scatter_v(group, bytes, bytes, NULL, LS_DTYPE_F32, LS_OP_SUM, 1, NULL),
           LS_ERR_ARGUMENT);
    EXPECT(ls_batch_end(group, NULL), LS_ERR_ARGUMENT);
    RANK_CHECK(strstr(ls_last_message(), "rank 99"), "the first error is not told again: %s",
               ls_last_message());
    /* An error of a call that never gets to the group. */
    LSI_TRY(ls_batch_begin(group));
    EXPECT(ls_all_gather_v(group, bytes, bytes, NULL, LS_DTYPE_F32, NULL), LS_ERR_ARGUMENT);
    EXPECT(ls_batch_end(group, NULL), LS_ERR_ARGUMENT);
    /* Splits wait, so they cannot be grouped. */
    ls_group *part = NULL;
    LSI_TRY(ls_batch_begin(group));
    EXPECT(ls_group_split(group, 0, 0, &part), LS_ERR_STATE);
    LSI_TRY(ls_batch_end(group, NULL));
    /* The group is as good as before. */
    LSI_TRY(ls_send(group, bytes, 3, LS_DTYPE_F32, group->rank, &work));
    LSI_TRY(ls_recv(group, bytes + 16, 3, LS_DTYPE_F32, group->rank, NULL));
    LSI_TRY(ls_work_wait(work, -1));
    EXPECT(ls_work_wait(work, -1), LS_ERR_ARGUMENT);
    return ls_barrier(group, NULL);
}

static void misuse_leaves_the_group_usable(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 1, bad_messages, NULL));
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, bad_messages, NULL));
}

static ls_status full_pool(ls_group *group, void *context) {
    (void)context;
    static _Thread_local ls_work *works[LSI_MESSAGES];
    static _Thread_local float values[LSI_MESSAGES];
    ls_work *extra = NULL;
    if (group->rank == 0) {
        for (int i = 0; i < LSI_MESSAGES; i++)
            LSI_TRY(ls_recv(group, &values[i], 1, LS_DTYPE_F32, 1, &works[i]));
        EXPECT(ls_recv(group, values, 1, LS_DTYPE_F32, 1, &extra), LS_ERR_BUSY);
        EXPECT(ls_batch_begin(group), LS_ERR_BUSY);
        LSI_TRY(ls_barrier(group, NULL));
        for (int i = 0; i < LSI_MESSAGES; i++) {
            LSI_TRY(ls_work_wait(works[i], -1));
            RANK_CHECK(values[i] == (float)i, "value %d is %g", i, (double)values[i]);
        }
    } else {
        LSI_TRY(ls_barrier(group, NULL));
        for (int i = 0; i < LSI_MESSAGES; i++) {
            float value = (float)i;
            LSI_TRY(ls_send(group, &value, 1, LS_DTYPE_F32, 0, NULL));
        }
    }
    return ls_barrier(group, NULL);
}

static void a_full_pool_is_refused(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, full_pool, NULL));
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, full_pool, NULL));
}

/* Blocks of messages that are not done stay allocated. */
static ls_status free_in_flight(ls_group *group, void *context) {
    (void)context;
    void *block = NULL, *other = NULL;
    ls_work *work = NULL;
    if (group->rank == 0) {
        LSI_TRY(ls_group_alloc_shared(group, 4096, &block));
        LSI_TRY(ls_recv(group, block, 4096, LS_DTYPE_U8, 1, &work));
        ls_group_free_shared(group, block);
        LSI_TRY(ls_group_alloc_shared(group, 4096, &other));
        RANK_CHECK(other != block, "the block of a receive in flight was given out again");
        LSI_TRY(ls_barrier(group, NULL));
        LSI_TRY(ls_work_wait(work, -1));
        RANK_CHECK(((unsigned char *)other)[17] == 0, "another block was written");
        return LS_OK;
    }
    unsigned char data[4096];
    memset(data, 1, sizeof data);
    LSI_TRY(ls_barrier(group, NULL));
    return ls_send(group, data, sizeof data, LS_DTYPE_U8, 0, NULL);
}

static void blocks_of_messages_in_flight_are_kept(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, free_in_flight, NULL));
}

/* ---- failures ---- */

typedef struct difference {
    const char *name;
    int64_t count[2]; /* sent, received */
    ls_dtype dtype[2];
} difference;

static ls_status send_differently(ls_group *group, void *context) {
    const difference *d = context;
    static double memory[1 << 16];
    if (group->rank == 0) LSI_TRY(ls_send(group, memory, d->count[0], d->dtype[0], 1, NULL));
    if (group->rank == 1) LSI_TRY(ls_recv(group, memory, d->count[1], d->dtype[1], 0, NULL));
    return ls_barrier(group, NULL);
}

static void differences_are_errors_on_both(void **state) {
    static const difference differences[] = {
        {"count", {100, 99}, {LS_DTYPE_F32, LS_DTYPE_F32}},
        {"large", {1 << 16, 1 << 15}, {LS_DTYPE_F32, LS_DTYPE_F32}},
        {"type", {100, 100}, {LS_DTYPE_F32, LS_DTYPE_I32}},
        {"bytes", {0, 1}, {LS_DTYPE_U8, LS_DTYPE_U8}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        difference d = differences[i];
        rank_result results[3];
        run_rank_processes(3, send_differently, &d, results);
        for (int r = 0; r < 3; r++)
            if (results[r].status != LS_ERR_MISMATCH ||
                !strstr(results[r].message, "from rank 0 to rank 1"))
                fail_msg("%s: rank %d: %d with '%s'", d.name, r, results[r].status,
                         results[r].message);
    }
}

static ls_status nobody_sends(ls_group *group, void *context) {
    bool leaves = context != NULL;
    float value = 0;
    if (group->rank == 1) {
        if (!leaves) lsi_sleep_ms(2000);
        return LS_OK;
    }
    return leaves ? ls_recv(group, &value, 1, LS_DTYPE_F32, 1, NULL)
                  : (ls_group_set_timeout(group, 200),
                     ls_recv(group, &value, 1, LS_DTYPE_F32, 1, NULL));
}

static void who_does_not_send_is_named(void **state) {
    (void)state;
    rank_result results[2];
    run_rank_processes(2, nobody_sends, NULL, results);
    if (results[0].status != LS_ERR_TIMEOUT || !strstr(results[0].message, "rank 1 did not send"))
        fail_msg("late: %d with '%s'", results[0].status, results[0].message);
    run_rank_processes(2, nobody_sends, results, results);
    if (results[0].status != LS_ERR_PEER || !strstr(results[0].message, "rank 1 did not send"))
        fail_msg("gone: %d with '%s'", results[0].status, results[0].message);
}

/* The sender may leave as soon as its send is done: what it has sent arrives. */
static ls_status sender_leaves(ls_group *group, void *context) {
    (void)context;
    float values[100] = {0};
    if (group->rank == 1) {
        for (int i = 0; i < 100; i++) values[i] = (float)i;
        return ls_send(group, values, 100, LS_DTYPE_F32, 0, NULL);
    }
    while (!atomic_load(&group->ranks[1].left)) lsi_sleep_ms(1);
    LSI_TRY(ls_recv(group, values, 100, LS_DTYPE_F32, 1, NULL));
    RANK_CHECK(values[99] == 99, "found %g", (double)values[99]);
    return LS_OK;
}

static void what_was_sent_arrives_after_its_sender_left(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 2, sender_leaves, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_every_size_arrive),
        cmocka_unit_test(every_type_can_be_sent),
        cmocka_unit_test(queued_messages_keep_their_order),
        cmocka_unit_test(messages_go_on_beside_collectives),
        cmocka_unit_test(batches_do_not_block),
        cmocka_unit_test(odd_batches_work),
        cmocka_unit_test(rounds_do_not_use_up_the_pool),
        cmocka_unit_test(misuse_leaves_the_group_usable),
        cmocka_unit_test(a_full_pool_is_refused),
        cmocka_unit_test(blocks_of_messages_in_flight_are_kept),
        cmocka_unit_test(differences_are_errors_on_both),
        cmocka_unit_test(who_does_not_send_is_named),
        cmocka_unit_test(what_was_sent_arrives_after_its_sender_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
