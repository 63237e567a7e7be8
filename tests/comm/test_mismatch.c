/* Calls and messages that differ between ranks, in everything that can differ and however they are
 * done: every rank gets the error, with both calls and the ranks that made them, and no result. */
#include "comm/calls.h"

#include <stdio.h>

/* ---- calls that differ ---- */

/* How a call of about so many elements is done; each row of the table below is tried with all. */
typedef struct way {
    const char *name, *algo; /* what LOCKSTEP_ALGO would say */
    int64_t count;
    bool shared; /* buffers */
} way;

static const way ways[] = {
    {"in the line", "one-shot", 6, false},
    {"in a slot", "one-shot", 640, false},
    {"direct", "direct", 40000, true},
    {"staged", "staged", 409600, false},
    {"chosen", "", 10, false},
    {"chosen, large", "", 409600, false},
    {"ring", "ring", 40000, false},
    {"halving", "halving", 40000, false},
    {"doubling", "doubling", 1000, false},
    {"binomial", "binomial", 40000, false},
};

typedef struct mismatch {
    const char *name;
    call of_most, of_last; /* what the last rank does instead */
    const char *text[2];   /* both must be in the message */
} mismatch;

static const mismatch mismatches[] = {
    {"count twice", {0}, {.count = -3}, {"", ""}},
    {"count two less", {0}, {.count = -2}, {"", ""}},
    {"something and nothing", {0}, {.count = -1}, {"count ", "count 0"}},
    {"F32 and BF16 of equal bytes", {0}, {.dtype = LS_DTYPE_BF16, .count = -3}, {"F32", "BF16"}},
    {"F32 and I32", {0}, {.dtype = LS_DTYPE_I32}, {"F32", "I32"}},
    {"sum and max", {0}, {.op = LS_OP_MAX}, {"sum", "max"}},
    {"sum and average", {0}, {.op = LS_OP_AVG}, {"sum", "avg"}},
    {"sum and premul-sum", {0}, {.op = LS_OP_PREMUL_SUM}, {"sum", "premul-sum"}},
    {"scales", {0}, {.scale = 0.5}, {"scale 1", "scale 0.5"}},
    {"all-reduce and broadcast", {0}, {.kind = LSI_CALL_BROADCAST}, {"all-reduce", "broadcast"}},
    {"all-reduce and reduce", {0}, {.kind = LSI_CALL_REDUCE}, {"all-reduce", "reduce ("}},
    {"all-reduce and barrier", {0}, {.kind = LSI_CALL_BARRIER}, {"all-reduce", "barrier"}},
    {"roots of broadcast",
     {.kind = LSI_CALL_BROADCAST},
     {.kind = LSI_CALL_BROADCAST, .root = 1},
     {"root 0", "root 1"}},
    {"roots of reduce",
     {.kind = LSI_CALL_REDUCE},
     {.kind = LSI_CALL_REDUCE, .root = 1},
     {"root 0", "root 1"}},
    {"roots of gather",
     {.kind = LSI_CALL_GATHER},
     {.kind = LSI_CALL_GATHER, .root = 1},
     {"root 0", "root 1"}},
    {"gather and scatter",
     {.kind = LSI_CALL_GATHER},
     {.kind = LSI_CALL_SCATTER},
     {"gather", "scatter"}},
    {"all-gather and reduce-scatter",
     {.kind = LSI_CALL_ALL_GATHER},
     {.kind = LSI_CALL_REDUCE_SCATTER},
     {"all-gather", "reduce-scatter"}},
    {"all-to-all and all-gather",
     {.kind = LSI_CALL_ALL_TO_ALL},
     {.kind = LSI_CALL_ALL_GATHER},
     {"all-to-all", "all-gather"}},
    {"uneven counts of equal totals",
     {.kind = LSI_CALL_ALL_GATHER, .uneven = 1},
     {.kind = LSI_CALL_ALL_GATHER, .uneven = 2},
     {"uneven counts", "uneven counts"}},
    {"uneven sums of equal totals",
     {.kind = LSI_CALL_REDUCE_SCATTER, .uneven = 1},
     {.kind = LSI_CALL_REDUCE_SCATTER, .uneven = -1},
     {"uneven counts", "uneven counts"}},
    {"uneven exchanges of equal totals",
     {.kind = LSI_CALL_ALL_TO_ALL, .uneven = 1},
     {.kind = LSI_CALL_ALL_TO_ALL, .uneven = -1},
     {"uneven counts", "uneven counts"}},
    {"longest parts of equal totals",
     {.kind = LSI_CALL_ALL_TO_ALL, .uneven = 1},
     {.kind = LSI_CALL_ALL_TO_ALL, .uneven = 5},
     {"uneven counts", "uneven counts"}},
    {"all-to-all in uneven and in equal parts",
     {.kind = LSI_CALL_ALL_TO_ALL, .uneven = 1},
     {.kind = LSI_CALL_ALL_TO_ALL},
     {"uneven counts", "all-to-all (F32, count"}},
    {"uneven all-to-all and reduce-scatter",
     {.kind = LSI_CALL_ALL_TO_ALL, .uneven = 1},
     {.kind = LSI_CALL_REDUCE_SCATTER, .uneven = 1},
     {"all-to-all", "reduce-scatter"}},
    {"algorithms", {0}, {.algo = "two-level"}, {"", "two-level"}},
    {"staged and chosen", {.algo = "staged"}, {.algo = "shared"}, {"staged", "shared"}},
    {"one-shot and staged",
     {.count = 8, .algo = "one-shot"},
     {.count = 8, .algo = "staged"},
     {"one-shot", "staged"}},
};

static int64_t count_of(const call *c, const way *w) {
    const int64_t relative[] = {w->count, 0, w->count - 2, 2 * w->count};
    return c->count > 0 ? c->count : relative[-c->count];
}

typedef struct mismatch_case {
    const mismatch *m;
    const way *w;
} mismatch_case;

static const call *call_of(const mismatch *m, int rank, int n) {
    return rank == n - 1 ? &m->of_last : &m->of_most;
}

static ls_status call_differently(ls_group *group, void *context) {
    const mismatch_case *k = context;
    const call *c = call_of(k->m, ls_group_rank(group), ls_group_world_size(group));
    float *buffer[2];
    LSI_TRY(make_buffers(group, k->w->count, k->w->shared, buffer));
    LSI_TRY(ls_barrier(group, NULL));
    LSI_TRY(force(group, c->algo ? c->algo : k->w->algo));
    buffer[1][0] = 3;
    ls_status status = make_call(group, c, count_of(c, k->w), buffer[0], buffer[1], NULL);
    bool untouched = buffer[1][0] == 3;
    free_buffers(group, k->w->shared, buffer);
    if (!untouched) return lsi_fail(LS_ERR_STATE, "a result was written");
    return status;
}

/* What the message says of a rank's call. */
static void put_call(char *text, size_t bytes, const mismatch_case *k, int rank, int n) {
    const call full = complete(call_of(k->m, rank, n)), *c = &full;
    int64_t count = count_of(c, k->w) * (c->uneven ? n : 1);
    if (c->kind == LSI_CALL_BARRIER)
        snprintf(text, bytes, "rank %d called barrier", rank);
    else if (lsi_shape_of(c->kind)->reduces)
        snprintf(text, bytes, "rank %d called %s (%s, %s, count %lld", rank,
                 lsi_call_kind_name(c->kind), ls_op_name(c->op), ls_dtype_name(c->dtype),
                 (long long)count);
    else
        snprintf(text, bytes, "rank %d called %s (%s, count %lld", rank,
                 lsi_call_kind_name(c->kind), ls_dtype_name(c->dtype), (long long)count);
}

static void expect_mismatch(const mismatch_case *k, int n) {
    rank_result results[5];
    char calls[2][128];
    run_rank_processes(n, call_differently, (void *)k, results);
    put_call(calls[0], sizeof calls[0], k, 0, n);
    put_call(calls[1], sizeof calls[1], k, n - 1, n);
    for (int r = 0; r < n; r++) {
        if (results[r].status != LS_ERR_MISMATCH)
            fail_msg("%s, %s, %d ranks, rank %d: status %d with '%s'", k->m->name, k->w->name, n, r,
                     results[r].status, results[r].message);
        expect(results, r, LS_ERR_MISMATCH, "call #2 differs");
        for (int i = 0; i < 2; i++) {
            expect(results, r, LS_ERR_MISMATCH, calls[i]);
            expect(results, r, LS_ERR_MISMATCH, k->m->text[i]);
        }
        /* Those who agree with rank 0 are no part of the difference. */
        if (n > 2) expect_without(results, r, "rank 1 called");
    }
}

static void different_calls_are_an_error_on_all_ranks(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(mismatches); i++)
        for (size_t w = 0; w < COUNT_OF(ways); w++)
            for (int n = 2; n <= 5; n += 3) {
                mismatch_case k = {&mismatches[i], &ways[w]};
                if (n == 5 && w % 3 != i % 3) continue; /* enough of each */
                expect_mismatch(&k, n);
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

/* Only the factors of a premul-sum are each rank's own. */
static ls_status factors_differ(ls_group *group, void *context) {
    const way *w = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *buffer[2];
    LSI_TRY(make_buffers(group, w->count, w->shared, buffer));
    LSI_TRY(force(group, w->algo));
    for (int64_t i = 0; i < w->count; i++) buffer[0][i] = (float)(i % 5);
    LSI_TRY(ls_all_reduce(group, buffer[0], buffer[1], w->count, LS_DTYPE_F32, LS_OP_PREMUL_SUM,
                          rank + 2, NULL));
    for (int64_t i = 0; i < w->count; i++)
        RANK_CHECK(buffer[1][i] == (float)(i % 5 * (n * (n - 1) / 2 + 2 * n)),
                   "%s: element %lld is %g", w->name, (long long)i, (double)buffer[1][i]);
    free_buffers(group, w->shared, buffer);
    return LS_OK;
}

static void factors_of_premul_sums_may_differ(void **state) {
    (void)state;
    for (size_t w = 0; w < COUNT_OF(ways); w++)
        for (int n = 2; n <= 3; n++)
            assert_ok(run_ranks(RANKS_AS_PROCESSES, n, factors_differ, (void *)&ways[w]));
}

/* ---- messages that differ ---- */

typedef struct message_row {
    int64_t count[2]; /* sent by rank 0, received by rank 1 */
    ls_dtype dtype[2];
} message_row;

static const message_row message_rows[] = {
    {{1, 2}, {LS_DTYPE_F32, LS_DTYPE_F32}},       {{0, 1}, {LS_DTYPE_F32, LS_DTYPE_F32}},
    {{1, 0}, {LS_DTYPE_U8, LS_DTYPE_U8}},         {{4, 8}, {LS_DTYPE_F32, LS_DTYPE_BF16}},
    {{6, 6}, {LS_DTYPE_F32, LS_DTYPE_I32}},       {{90000, 89999}, {LS_DTYPE_F32, LS_DTYPE_F32}},
    {{500, 90000}, {LS_DTYPE_F32, LS_DTYPE_F32}}, {{90000, 500}, {LS_DTYPE_F64, LS_DTYPE_F64}},
};

static ls_status messages_differ(ls_group *group, void *context) {
    const message_row *row = context;
    int rank = ls_group_rank(group);
    static double buffer[90000];
    if (rank == 0) LSI_TRY(ls_send(group, buffer, row->count[0], row->dtype[0], 1, NULL));
    if (rank == 1) return ls_recv(group, buffer, row->count[1], row->dtype[1], 0, NULL);
    /* A short one is sent before it is received: then the next call has the error. */
    return ls_barrier(group, NULL);
}

static void put_message(char *text, size_t bytes, const char *verb, const message_row *row, int i) {
    snprintf(text, bytes, "%s%s, count %lld", verb, ls_dtype_name(row->dtype[i]),
             (long long)row->count[i]);
}

static void different_messages_are_an_error_on_all_ranks(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(message_rows); i++) {
        rank_result results[3];
        char sent[64], received[64];
        run_rank_processes(3, messages_differ, (void *)&message_rows[i], results);
        put_message(sent, sizeof sent, "rank 0 sent ", &message_rows[i], 0);
        put_message(received, sizeof received, "rank 1 called receive (", &message_rows[i], 1);
        for (int r = 0; r < 3; r++) {
            expect(results, r, LS_ERR_MISMATCH, "message #1 from rank 0 to rank 1 differs");
            expect(results, r, LS_ERR_MISMATCH, sent);
            expect(results, r, LS_ERR_MISMATCH, received);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_calls_are_an_error_on_all_ranks),
        cmocka_unit_test(different_orders_are_an_error),
        cmocka_unit_test(factors_of_premul_sums_may_differ),
        cmocka_unit_test(different_messages_are_an_error_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
