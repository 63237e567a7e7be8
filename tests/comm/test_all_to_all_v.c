/* All-to-all with a count for each rank: every rank gets the bytes of its part from all ranks, one
 * behind the other, and nothing else moves. The matrix (test_matrix.c) has it among the other calls
 * in counts of one form; here the counts are of all forms, and each case also says which algorithm
 * did it and how many bytes it took from others. */
#include "comm/calls.h"

#include "harness/cases.h"

enum { MAX_N = 8, MOST = 70016, CANARY = 0xA5, CANARY_BYTES = 64 };

typedef struct row {
    const char *name;
    int64_t counts[MAX_N]; /* the first n are those of n ranks */
} row;

/* 70001 elements are several pieces of a staged call, however few bytes and ranks. */
static const row rows[] = {
    {"one each", {1, 1, 1, 1, 1, 1, 1, 1}},
    {"odd", {1, 3, 5, 7, 9, 11, 13, 15}},
    {"nothing for the first", {0, 2, 0, 1, 0, 0, 3, 0}},
    {"some nothing", {17, 0, 31, 1, 0, 64, 0, 3}},
    {"a slot full", {101, 0, 97, 1, 0, 499, 31, 0}},
    {"primes", {997, 0, 4999, 1, 101, 0, 10007, 31}},
    {"nothing at all", {0, 0, 0, 0, 0, 0, 0, 0}},
    {"all to one", {70001, 0, 0, 0, 0, 0, 0, 0}},
    {"several pieces", {20011, 65537, 0, 131, 40009, 1, 0, 9973}},
};
static const row sums_row = {"sums", {1009, 0, 20011, 1, 17, 4999, 0, 64}};

static int64_t begin_of(const row *r, int p) {
    int64_t begin = 0;
    for (int q = 0; q < p; q++) begin += r->counts[q];
    return begin;
}

static unsigned char byte_at(int rank, int64_t i) {
    return (unsigned char)(rank * 89 + i * 7 + (i >> 8) * 13 + (i >> 16) * 31);
}

/* ---- every exchange ---- */

static const char *const ways[] = {"", "one-shot", "direct", "staged", "pairwise"};

typedef struct exchange {
    const row *row;
    const char *way;
    ls_dtype dtype;
    bool shared[2]; /* input, output */
    unsigned char *input, *output;
} exchange;

#define CHECK_EXCHANGE(condition, found, expected)                                                 \
    RANK_CHECK(condition,                                                                          \
               "%s, '%s' by %s, %s input, %s output, rank %d of %d: expected %lld, "               \
               "found %lld",                                                                       \
               e->row->name, e->way, lsi_group_last_algorithm(group),                              \
               e->shared[0] ? "shared" : "private", e->shared[1] ? "shared" : "private",           \
               group->rank, group->n_ranks, (long long)(expected), (long long)(found))

static ls_status check_bytes(ls_group *group, const exchange *e, int64_t size) {
    int64_t own = e->row->counts[group->rank] * size, at = begin_of(e->row, group->rank) * size;
    for (int q = 0; q < group->n_ranks; q++)
        for (int64_t i = 0; i < own; i++)
            CHECK_EXCHANGE(e->output[q * own + i] == byte_at(q, at + i), e->output[q * own + i],
                           byte_at(q, at + i));
    for (int i = 0; i < CANARY_BYTES; i++)
        CHECK_EXCHANGE(e->output[group->n_ranks * own + i] == CANARY, i, -1);
    int64_t all = begin_of(e->row, group->n_ranks) * size;
    for (int64_t i = 0; i < all; i++)
        CHECK_EXCHANGE(e->input[i] == byte_at(group->rank, i), e->input[i],
                       byte_at(group->rank, i));
    return LS_OK;
}

/* Each rank takes its part from the others and no more, or sends theirs in messages. Nothing is
 * staged where inputs are shared, wherever outputs are. */
static ls_status check_way(ls_group *group, const exchange *e, int64_t size, int64_t moved) {
    int64_t own = e->row->counts[group->rank] * size;
    int64_t all = begin_of(e->row, group->n_ranks) * size;
    const char *algorithm = lsi_group_last_algorithm(group);
    int64_t expected = (group->n_ranks - 1) * own;
    if (strcmp(algorithm, "pairwise") == 0) expected = all - own;
    CHECK_EXCHANGE(moved == expected, moved, expected);
    bool one_way = all == 0 || group->n_ranks == 1 || strcmp(e->way, "one-shot") == 0;
    if (one_way || (!*e->way && all <= LSI_SLOT_BYTES)) return LS_OK;
    const char *wanted = *e->way ? e->way : e->shared[0] ? "direct" : "staged";
    CHECK_EXCHANGE(strcmp(algorithm, wanted) == 0, 0, 1);
    return LS_OK;
}

static ls_status run_exchange(ls_group *group, const exchange *e) {
    int64_t size = (int64_t)ls_dtype_bytes(e->dtype);
    int64_t all = begin_of(e->row, group->n_ranks) * size;
    int64_t out = group->n_ranks * e->row->counts[group->rank] * size;
    lsi_group_stats before, after;
    for (int64_t i = 0; i < all; i++) e->input[i] = byte_at(group->rank, i);
    memset(e->output, CANARY, (size_t)out + CANARY_BYTES);
    LSI_TRY(force(group, e->way));
    lsi_group_get_stats(group, &before);
    LSI_TRY(ls_all_to_all_v(group, e->input, e->output, e->row->counts, e->dtype, NULL));
    lsi_group_get_stats(group, &after);
    LSI_TRY(check_way(group, e, size, after.bytes_sent - before.bytes_sent));
    return check_bytes(group, e, size);
}

static bool is_possible(const ls_group *group, const exchange *e) {
    return strcmp(e->way, "direct") != 0 || e->shared[0] || group->n_ranks == 1;
}

/* Rows of many elements take types and places in turns. */
static ls_status every_exchange(ls_group *group, void *context) {
    const rank_mode *mode = context;
    float *buffer[2][2]; /* private and shared; input and output */
    int turn = 0;
    for (int shared = 0; shared < 2; shared++)
        LSI_TRY(make_buffers(group, MOST, shared, buffer[shared]));
    for (size_t r = 0; r < COUNT_OF(rows); r++)
        for (size_t w = 0; w < COUNT_OF(ways); w++)
            for (int place = 0; place < 4; place++)
                for (int t = 0; t < n_case_dtypes; t++) {
                    bool in_turns = SANITIZED || *mode == RANKS_AS_THREADS ||
                                    begin_of(&rows[r], group->n_ranks) > 10000;
                    exchange e = {&rows[r], ways[w], case_dtypes[t], {place % 2, place / 2}, 0, 0};
                    e.input = (unsigned char *)buffer[e.shared[0]][0];
                    e.output = (unsigned char *)buffer[e.shared[1]][1];
                    if (!is_possible(group, &e)) continue;
                    if (in_turns && turn++ % 5 != 0) continue;
                    LSI_TRY(run_exchange(group, &e));
                }
    LSI_TRY(ls_barrier(group, NULL));
    for (int shared = 0; shared < 2; shared++) free_buffers(group, shared, buffer[shared]);
    return LS_OK;
}

static void every_rank_gets_its_part_of_all(void **state) {
    (void)state;
    for (rank_mode mode = RANKS_AS_THREADS; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            if (!SANITIZED || *n <= 5) assert_ok(run_ranks(mode, *n, every_exchange, &mode));
}

/* ---- in the words of other calls ---- */

static ls_status equal_counts(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks;
    float *buffer[2], *other[2];
    int64_t counts[MAX_N];
    for (int64_t count = 1; count < 60000; count = 7 * count + 4) {
        LSI_TRY(make_buffers(group, count, count % 2, buffer));
        LSI_TRY(make_buffers(group, count, false, other));
        for (int p = 0; p < n; p++) counts[p] = count;
        for (int64_t i = 0; i < n * count; i++)
            buffer[0][i] = (float)(group->rank * 1000003 + i % 999983);
        LSI_TRY(ls_all_to_all_v(group, buffer[0], buffer[1], counts, LS_DTYPE_F32, NULL));
        LSI_TRY(ls_all_to_all(group, buffer[0], other[1], count, LS_DTYPE_F32, NULL));
        RANK_CHECK(memcmp(buffer[1], other[1], (size_t)(n * count) * sizeof(float)) == 0,
                   "rank %d of %d, count %lld: not what all-to-all gives", group->rank, n,
                   (long long)count);
        free_buffers(group, count % 2, buffer);
        free_buffers(group, false, other);
    }
    return LS_OK;
}

static void equal_counts_are_an_all_to_all(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, equal_counts, NULL));
}

/* Element i of parts first … first + n - 1, in the order of ls_reduce_scatter_v. */
static float tree_sum(const float *parts, int64_t count, int first, int n, int64_t i) {
    if (n == 1) return parts[first * count + i];
    int split = (int)lsi_order_split(n);
    float left = tree_sum(parts, count, first, split, i);
    return left + tree_sum(parts, count, first + split, n - split, i);
}

static ls_status sums_of_parts(ls_group *group, void *context) {
    const bool *shared = context;
    const int64_t *counts = sums_row.counts;
    int n = group->n_ranks;
    int64_t own = counts[group->rank];
    float *buffer[2], *sums[2];
    LSI_TRY(make_buffers(group, MOST, *shared, buffer));
    LSI_TRY(make_buffers(group, MOST, false, sums));
    for (int64_t i = 0; i < begin_of(&sums_row, n); i++)
        buffer[0][i] = 1.0f / (float)(group->rank * 131 + i * 7 + 3);
    LSI_TRY(ls_all_to_all_v(group, buffer[0], buffer[1], counts, LS_DTYPE_F32, NULL));
    LSI_TRY(
        ls_reduce_scatter_v(group, buffer[0], sums[1], counts, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
    for (int64_t i = 0; i < own; i++) {
        float sum = tree_sum(buffer[1], own, 0, n, i);
        RANK_CHECK(memcmp(&sum, &sums[1][i], sizeof sum) == 0,
                   "rank %d of %d, element %lld: expected %a, found %a", group->rank, n,
                   (long long)i, (double)sums[1][i], (double)sum);
    }
    free_buffers(group, *shared, buffer);
    free_buffers(group, false, sums);
    return LS_OK;
}

static void parts_added_in_order_are_a_reduce_scatter(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, sums_of_parts, &(bool){shared != 0}));
}

/* ---- works in flight ---- */

enum { N_WORKS = 12 };

/* All read the same input, with counts of their own that are gone when they are done. Rank 1 comes
 * when rank 0 has tried what must be refused. */
static ls_status many_in_flight(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    ls_work *work[N_WORKS], *extra = NULL;
    float *buffer[2];
    int64_t counts[MAX_N];
    int32_t token = 0;
    LSI_TRY(make_buffers(group, 2000 * N_WORKS, me % 2, buffer));
    if (me == 1) LSI_TRY(ls_recv(group, &token, 1, LS_DTYPE_I32, 0, NULL));
    for (int64_t i = 0; i < 2000 * n; i++) buffer[0][i] = (float)(me * 20000 + i);
    for (int w = 0; w < N_WORKS; w++) {
        float *output = buffer[1] + (ptrdiff_t)w * 2000 * n;
        for (int p = 0; p < n; p++) counts[p] = (w * 531 + p * 77) % 2000;
        LSI_TRY(ls_all_to_all_v(group, buffer[0], output, counts, LS_DTYPE_F32, &work[w]));
        memset(counts, 0xFF, sizeof counts);
    }
    for (int p = 0; p < n; p++) counts[p] = 5;
    if (n > 1 && me == 0)
        RANK_CHECK(ls_all_to_all_v(group, buffer[1], buffer[0], counts, LS_DTYPE_F32, &extra) ==
                           LS_ERR_BUSY &&
                       !extra,
                   "the input of works in flight was taken as an output");
    if (n > 1 && me == 0) LSI_TRY(ls_send(group, &token, 1, LS_DTYPE_I32, 1, NULL));
    for (int w = N_WORKS - 1; w >= 0; w--) LSI_TRY(ls_work_wait(work[w], -1));
    for (int w = 0; w < N_WORKS; w++) {
        const float *output = buffer[1] + (ptrdiff_t)w * 2000 * n;
        int64_t begin = 0, own = (w * 531 + me * 77) % 2000;
        for (int p = 0; p < me; p++) begin += (w * 531 + p * 77) % 2000;
        for (int64_t i = 0; i < n * own; i++) {
            float expected = (float)(i / own * 20000 + begin + i % own);
            RANK_CHECK(output[i] == expected, "rank %d of %d, work %d, element %lld: %g, not %g",
                       me, n, w, (long long)i, (double)output[i], (double)expected);
        }
    }
    LSI_TRY(ls_barrier(group, NULL));
    free_buffers(group, me % 2, buffer);
    return LS_OK;
}

static void works_in_flight_keep_their_counts(void **state) {
    (void)state;
    for (rank_mode mode = RANKS_AS_THREADS; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks(mode, *n, many_in_flight, NULL));
}

/* ---- what is refused ---- */

#define REFUSE(call, text)                                                                         \
    RANK_CHECK((call) == LS_ERR_ARGUMENT && strstr(ls_last_message(), text),                       \
               "expected an error with '%s', found '%s'", text, ls_last_message())

static ls_status bad_calls(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    float memory[64] = {0}, *odd = (float *)(void *)((char *)memory + 2);
    int64_t counts[MAX_N], bad[MAX_N];
    for (int p = 0; p < MAX_N; p++) counts[p] = bad[p] = 2;
    ls_dtype d = LS_DTYPE_F32;
    REFUSE(ls_all_to_all_v(group, memory, memory + 32, NULL, d, NULL), "counts is NULL");
    REFUSE(ls_all_to_all_v(group, memory, memory, counts, d, NULL), "never in place");
    REFUSE(ls_all_to_all_v(group, memory, memory + 1, counts, d, NULL), "never in place");
    REFUSE(ls_all_to_all_v(group, NULL, memory, counts, d, NULL), "the input is NULL");
    REFUSE(ls_all_to_all_v(group, memory, NULL, counts, d, NULL), "the output is NULL");
    REFUSE(ls_all_to_all_v(group, odd, memory + 32, counts, d, NULL), "aligned");
    REFUSE(ls_all_to_all_v(group, memory, memory + 32, counts, (ls_dtype)77, NULL), "dtype 77");
    bad[n - 1] = -1;
    REFUSE(ls_all_to_all_v(group, memory, memory + 32, bad, d, NULL), ", -1, is outside");
    bad[n - 1] = INT64_MAX;
    REFUSE(ls_all_to_all_v(group, memory, memory + 32, bad, d, NULL), "outside the legal range");
    /* The group is as good as before. */
    memory[2 * me] = 5;
    LSI_TRY(ls_all_to_all_v(group, memory, memory + 32, counts, d, NULL));
    RANK_CHECK(memory[32 + 2 * me] == 5, "the own part is %g", (double)memory[32 + 2 * me]);
    return LS_OK;
}

static void bad_calls_leave_the_group_usable(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, bad_calls, NULL));
}

/* A rank that gets nothing may give any pointer as output, also that of its input. */
static ls_status nothing_at_the_input(ls_group *group, void *context) {
    (void)context;
    int64_t counts[MAX_N];
    float *buffer[2];
    LSI_TRY(make_buffers(group, 5000, true, buffer));
    LSI_TRY(force(group, "direct"));
    for (int p = 0; p < MAX_N; p++) counts[p] = p == 0 ? 5000 : 0;
    buffer[0][4999] = (float)group->rank;
    void *outputs[] = {buffer[1], buffer[0], NULL, (char *)buffer[0] + 1};
    LSI_TRY(
        ls_all_to_all_v(group, buffer[0], outputs[group->rank % 4], counts, LS_DTYPE_F32, NULL));
    for (int q = 0; q < group->n_ranks && group->rank == 0; q++)
        RANK_CHECK(buffer[1][q * 5000 + 4999] == (float)q, "part %d ends with %g", q,
                   (double)buffer[1][q * 5000 + 4999]);
    memset(counts, 0, sizeof counts);
    LSI_TRY(ls_all_to_all_v(group, NULL, buffer[1], counts, LS_DTYPE_F32, NULL));
    LSI_TRY(ls_all_to_all_v(group, buffer[0], NULL, counts, LS_DTYPE_F32, NULL));
    free_buffers(group, true, buffer);
    return LS_OK;
}

static void nothing_goes_anywhere(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, nothing_at_the_input, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_its_part_of_all),
        cmocka_unit_test(equal_counts_are_an_all_to_all),
        cmocka_unit_test(parts_added_in_order_are_a_reduce_scatter),
        cmocka_unit_test(works_in_flight_keep_their_counts),
        cmocka_unit_test(bad_calls_leave_the_group_usable),
        cmocka_unit_test(nothing_goes_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
