/* Collectives as programs use them, by the algorithms that are chosen: kind of buffer x place x
 * ranks x counts, as threads and as processes; works, their limits, and misuse. Every algorithm,
 * type and operation: test_matrix.c.
 *
 * Inputs are small integers in floating point, so sums are exact and expected values have a closed
 * form: rank r holds (r + 1) * (i % 7 + 1) at element i. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "harness/ranks.h"

typedef enum buffer_kind {
    BUFFER_SHARED,
    BUFFER_PRIVATE,
    BUFFER_MIXED,
    N_BUFFER_KINDS
} buffer_kind;

typedef struct shape {
    buffer_kind buffers;
    bool in_place;
    int64_t count;
} shape;

static const char *const buffer_names[] = {"shared", "private", "mixed"};

static bool is_shared(const shape *s, const ls_group *group) {
    return s->buffers == BUFFER_SHARED ||
           (s->buffers == BUFFER_MIXED && ls_group_rank(group) % 2 == 0);
}

static ls_status take(ls_group *group, const shape *s, int64_t count, float **buffer) {
    size_t bytes = (size_t)(count + 1) * sizeof(float);
    void *ptr = NULL;
    if (is_shared(s, group))
        LSI_TRY(ls_group_alloc_shared(group, bytes, &ptr));
    else
        ptr = malloc(bytes);
    *buffer = ptr;
    for (int64_t i = 0; i <= count; i++) (*buffer)[i] = -77;
    return LS_OK;
}

static void give(ls_group *group, const shape *s, float *buffer) {
    if (is_shared(s, group))
        ls_group_free_shared(group, buffer);
    else
        free(buffer);
}

static float value_at(int rank, int64_t i) {
    return (float)((rank + 1) * (i % 7 + 1));
}

static void fill(float *buffer, int rank, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++) buffer[i] = value_at(rank, first + i);
}

#define CHECK_VALUE(found, expected, i)                                                            \
    RANK_CHECK((found) == (expected),                                                              \
               "rank %d of %d, %s buffers, %s, count %lld, element %lld: "                         \
               "expected %g, found %g",                                                            \
               rank, n, buffer_names[s->buffers], s->in_place ? "in place" : "out of place",       \
               (long long)s->count, (long long)(i), (double)(expected), (double)(found))

static ls_status all_reduce_gives_scaled_sum(ls_group *group, void *context) {
    const shape *s = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *in = NULL, *out = NULL;
    LSI_TRY(take(group, s, s->count, &in));
    LSI_TRY(take(group, s, s->count, &out));
    fill(in, rank, 0, s->count);
    float *result = s->in_place ? in : out;
    LSI_TRY(ls_all_reduce(group, in, result, s->count, LS_DTYPE_F32, LS_OP_SUM, 0.5, NULL));
    for (int64_t i = 0; i < s->count; i++)
        CHECK_VALUE(result[i], (float)((i % 7 + 1) * n * (n + 1) / 2) * 0.5f, i);
    CHECK_VALUE(result[s->count], -77.0f, s->count);
    give(group, s, in);
    give(group, s, out);
    return LS_OK;
}

static ls_status reduce_scatter_gives_own_part(ls_group *group, void *context) {
    const shape *s = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *in = NULL, *out = NULL;
    LSI_TRY(take(group, s, s->count * n, &in));
    LSI_TRY(take(group, s, s->count, &out));
    fill(in, rank, 0, s->count * n);
    float *result = s->in_place ? in + rank * s->count : out;
    LSI_TRY(ls_reduce_scatter(group, in, result, s->count, LS_DTYPE_F32, LS_OP_SUM, 2.0, NULL));
    for (int64_t i = 0; i < s->count; i++) {
        int64_t at = rank * s->count + i;
        CHECK_VALUE(result[i], (float)((at % 7 + 1) * n * (n + 1) / 2) * 2.0f, i);
    }
    LSI_TRY(ls_barrier(group, NULL));
    give(group, s, in);
    give(group, s, out);
    return LS_OK;
}

static ls_status all_gather_gives_all_parts(ls_group *group, void *context) {
    const shape *s = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *in = NULL, *out = NULL;
    LSI_TRY(take(group, s, s->count, &in));
    LSI_TRY(take(group, s, s->count * n, &out));
    float *source = s->in_place ? out + rank * s->count : in;
    fill(source, rank, 0, s->count);
    LSI_TRY(ls_all_gather(group, source, out, s->count, LS_DTYPE_F32, NULL));
    for (int64_t i = 0; i < s->count * n; i++)
        CHECK_VALUE(out[i], value_at((int)(i / s->count), i % s->count), i);
    CHECK_VALUE(out[s->count * n], -77.0f, s->count * n);
    give(group, s, in);
    give(group, s, out);
    return LS_OK;
}

static ls_status broadcast_gives_roots_values(ls_group *group, void *context) {
    const shape *s = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *in = NULL, *out = NULL;
    LSI_TRY(take(group, s, s->count, &in));
    LSI_TRY(take(group, s, s->count, &out));
    float *result = s->in_place ? in : out;
    for (int root = 0; root < n; root++) {
        fill(in, rank, root, s->count);
        LSI_TRY(ls_broadcast(group, in, result, s->count, LS_DTYPE_F32, root, NULL));
        for (int64_t i = 0; i < s->count; i++) CHECK_VALUE(result[i], value_at(root, root + i), i);
    }
    CHECK_VALUE(result[s->count], -77.0f, s->count);
    give(group, s, in);
    give(group, s, out);
    return LS_OK;
}

static ls_status barrier_returns(ls_group *group, void *context) {
    (void)context;
    for (int i = 0; i < 20; i++) LSI_TRY(ls_barrier(group, NULL));
    return LS_OK;
}

static const struct {
    const char *name;
    rank_body body;
} collectives[] = {
    {"all-reduce", all_reduce_gives_scaled_sum},
    {"reduce-scatter", reduce_scatter_gives_own_part},
    {"all-gather", all_gather_gives_all_parts},
    {"broadcast", broadcast_gives_roots_values},
    {"barrier", barrier_returns},
};

/* 65536 floats are a piece of a staged call with one part: counts are below, at and above one,
 * and above two and four of them. As threads the small ones do. Sanitizers, which look at every
 * element several times, get one count of each kind (none, less than a line, more than a line, one
 * piece, several), and several only with up to three ranks. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const int64_t counts[] = {0, 1, 17, 1000, 131073};
enum { N_SMALL_COUNTS = 4, MOST_ELEMS = 3 * 131073, ORDER_COUNT = 20011, WORK_COUNT = 500 };
#else
static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 1000, 65535, 65536, 131073, 262147};
enum { N_SMALL_COUNTS = 8, MOST_ELEMS = INT32_MAX, ORDER_COUNT = 200003, WORK_COUNT = 5000 };
#endif
static const size_t n_counts[N_RANK_MODES] = {
    [RANKS_AS_THREADS] = N_SMALL_COUNTS, [RANKS_AS_PROCESSES] = sizeof counts / sizeof counts[0]};

typedef struct sweep {
    rank_body body;
    rank_mode mode;
} sweep;

/* All shapes of one collective in one run, so that works follow each other as in real use. */
static ls_status every_shape(ls_group *group, void *context) {
    const sweep *all = context;
    for (int buffers = 0; buffers < N_BUFFER_KINDS; buffers++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t c = 0; c < n_counts[all->mode]; c++) {
                shape s = {(buffer_kind)buffers, in_place != 0, counts[c]};
                if (s.count * ls_group_world_size(group) > MOST_ELEMS) continue;
                LSI_TRY(all->body(group, &s));
            }
    return LS_OK;
}

static void run_all(rank_mode mode) {
    for (size_t c = 0; c < sizeof collectives / sizeof collectives[0]; c++)
        for (const int *n = rank_counts; *n; n++) {
            sweep all = {collectives[c].body, mode};
            ls_status status = run_ranks(mode, *n, every_shape, &all);
            if (status != LS_OK) fail_msg("%s: %s", collectives[c].name, ls_last_message());
        }
}

static void collectives_are_exact_as_threads(void **state) {
    (void)state;
    run_all(RANKS_AS_THREADS);
}

static void collectives_are_exact_as_processes(void **state) {
    (void)state;
    run_all(RANKS_AS_PROCESSES);
}

/* ---- bits ---- */

static float range_sum(const float *values, int n) {
    if (n == 1) return values[0];
    int split = (int)lsi_order_split(n);
    float left = range_sum(values, split);
    return left + range_sum(values + split, n - split);
}

static float rough_value(int rank, int64_t i) {
    return 1.0f / (float)(rank * 131 + i * 7 + 3);
}

static ls_status sums_keep_the_order(ls_group *group, void *context) {
    const shape *s = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *buffer = NULL;
    LSI_TRY(take(group, s, s->count, &buffer));
    for (int64_t i = 0; i < s->count; i++) buffer[i] = rough_value(rank, i);
    LSI_TRY(ls_all_reduce(group, buffer, buffer, s->count, LS_DTYPE_F32, LS_OP_SUM, 1.0 / n, NULL));
    for (int64_t i = 0; i < s->count; i++) {
        float values[LSI_MAX_RANKS];
        for (int r = 0; r < n; r++) values[r] = rough_value(r, i);
        CHECK_VALUE(buffer[i], range_sum(values, n) * (float)(1.0 / n), i);
    }
    give(group, s, buffer);
    return LS_OK;
}

static void all_reduce_keeps_the_fixed_order(void **state) {
    (void)state;
    for (int buffers = 0; buffers < N_BUFFER_KINDS; buffers++)
        for (const int *n = rank_counts; *n; n++) {
            shape s = {(buffer_kind)buffers, true, ORDER_COUNT};
            assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, sums_keep_the_order, &s));
        }
}

/* ---- works ---- */

enum { N_WORKS = 40 };

static ls_status many_works_complete_in_any_wait_order(ls_group *group, void *context) {
    const shape *s = context;
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    float *buffer[N_WORKS];
    ls_work *work[N_WORKS];
    for (int w = 0; w < N_WORKS; w++) {
        LSI_TRY(take(group, s, s->count + w, &buffer[w]));
        fill(buffer[w], rank, w, s->count + w);
    }
    for (int w = 0; w < N_WORKS; w++)
        LSI_TRY(ls_all_reduce(group, buffer[w], buffer[w], s->count + w, LS_DTYPE_F32, LS_OP_SUM,
                              1.0, &work[w]));
    int done = 0;
    LSI_TRY(ls_work_test(work[N_WORKS / 2], &done));
    for (int w = N_WORKS - 1; w >= 0; w--) LSI_TRY(ls_work_wait(work[w], -1));
    for (int w = 0; w < N_WORKS; w++) {
        for (int64_t i = 0; i < s->count + w; i++)
            CHECK_VALUE(buffer[w][i], (float)(((w + i) % 7 + 1) * n * (n + 1) / 2), i);
        give(group, s, buffer[w]);
    }
    return LS_OK;
}

static void posted_works_complete(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (int buffers = 0; buffers < N_BUFFER_KINDS; buffers++)
            for (const int *n = rank_counts; *n; n++) {
                shape s = {(buffer_kind)buffers, true, WORK_COUNT};
                assert_ok(
                    run_ranks((rank_mode)mode, *n, many_works_complete_in_any_wait_order, &s));
            }
}

static ls_status more_calls_than_slots(ls_group *group, void *context) {
    (void)context;
    int n = ls_group_world_size(group);
    void *memory = NULL;
    LSI_TRY(ls_group_alloc_shared(group, 64, &memory));
    float *value = memory;
    for (int i = 0; i < 3 * LSI_CALLS; i++) {
        *value = (float)i;
        LSI_TRY(ls_all_reduce(group, value, value, 1, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
        RANK_CHECK(*value == (float)(i * n), "call %d: expected %d, found %g", i, i * n,
                   (double)*value);
    }
    return LS_OK;
}

static void slots_are_used_again(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, more_calls_than_slots, NULL));
}

/* Rank 1 stays away until rank 0 has tried what must be refused. */
static ls_status busy_buffers_and_full_rings_are_refused(ls_group *group, void *context) {
    _Atomic int *go = context;
    static ls_work *works[2][LSI_CALLS];
    ls_work **work = works[ls_group_rank(group)], *extra = NULL;
    float values[4] = {1, 2, 3, 4};
    if (ls_group_rank(group) == 1)
        while (!*go) lsi_sleep_ms(1);
    LSI_TRY(ls_all_reduce(group, values, values, 3, LS_DTYPE_F32, LS_OP_SUM, 1.0, &work[0]));
    if (ls_group_rank(group) == 0)
        RANK_CHECK(ls_all_reduce(group, values + 2, values + 2, 2, LS_DTYPE_F32, LS_OP_SUM, 1.0,
                                 &extra) == LS_ERR_BUSY,
                   "an overlapping buffer was accepted");
    for (int i = 1; i < LSI_CALLS; i++) LSI_TRY(ls_barrier(group, &work[i]));
    if (ls_group_rank(group) == 0)
        RANK_CHECK(ls_barrier(group, &extra) == LS_ERR_BUSY, "call %d was accepted", LSI_CALLS + 1);
    *go = 1;
    for (int i = 0; i < LSI_CALLS; i++) LSI_TRY(ls_work_wait(work[i], -1));
    RANK_CHECK(ls_work_wait(work[0], -1) == LS_ERR_ARGUMENT, "a released work was accepted");
    RANK_CHECK(values[0] == 2 && values[3] == 4, "wrong sums");
    return LS_OK;
}

static void works_guard_their_buffers(void **state) {
    (void)state;
    _Atomic int go = 0;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, busy_buffers_and_full_rings_are_refused, &go));
}

static ls_status bad_arguments_are_answered(ls_group *group, void *context) {
    (void)context;
    float v = 0;
    RANK_CHECK(ls_all_reduce(group, &v, &v, -1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL) ==
                   LS_ERR_ARGUMENT,
               "count -1");
    RANK_CHECK(ls_all_reduce(group, &v, &v, INT64_MAX, LS_DTYPE_F32, LS_OP_SUM, 1, NULL) ==
                   LS_ERR_ARGUMENT,
               "huge count");
    RANK_CHECK(ls_all_reduce(group, NULL, &v, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL) ==
                   LS_ERR_ARGUMENT,
               "no input");
    RANK_CHECK(ls_all_gather(group, &v, NULL, 1, LS_DTYPE_F32, NULL) == LS_ERR_ARGUMENT,
               "no output");
    RANK_CHECK(ls_all_reduce(group, &v, &v, 1, (ls_dtype)9, LS_OP_SUM, 1, NULL) == LS_ERR_ARGUMENT,
               "dtype 9");
    RANK_CHECK(ls_broadcast(group, &v, &v, 1, (ls_dtype)0, 0, NULL) == LS_ERR_ARGUMENT, "dtype 0");
    RANK_CHECK(ls_all_reduce(group, &v, &v, 1, LS_DTYPE_F32, (ls_op)9, 1, NULL) == LS_ERR_ARGUMENT,
               "operation 9");
    RANK_CHECK(ls_all_reduce(group, &v, &v, 1, LS_DTYPE_F32, LS_OP_MAX, 2, NULL) == LS_ERR_ARGUMENT,
               "a scale of max");
    RANK_CHECK(ls_all_reduce(group, &v, &v, 1, LS_DTYPE_I32, LS_OP_SUM, 0.5, NULL) ==
                   LS_ERR_ARGUMENT,
               "half of integers");
    RANK_CHECK(ls_broadcast(group, &v, &v, 1, LS_DTYPE_F32, 1, NULL) == LS_ERR_ARGUMENT, "root 1");
    RANK_CHECK(ls_reduce(group, &v, &v, 1, LS_DTYPE_F32, LS_OP_SUM, 1, -1, NULL) == LS_ERR_ARGUMENT,
               "root -1");
    int64_t bad_counts[1] = {-1};
    RANK_CHECK(ls_all_gather_v(group, &v, &v, bad_counts, LS_DTYPE_F32, NULL) == LS_ERR_ARGUMENT,
               "count -1 of a rank");
    RANK_CHECK(ls_all_gather_v(group, &v, &v, NULL, LS_DTYPE_F32, NULL) == LS_ERR_ARGUMENT,
               "no counts");
    void *ptr = NULL;
    RANK_CHECK(ls_group_alloc_shared(group, SIZE_MAX - 5000, &ptr) == LS_ERR_MEMORY, "all memory");
    RANK_CHECK(ptr == NULL, "output written on failure");
    return LS_OK;
}

static void bad_arguments_leave_the_group_usable(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 1, bad_arguments_are_answered, NULL));
}

/* Where input and output of one call may lie: apart or in place, nothing between. Rank 1 of 2,
 * which is the root. */
typedef struct placement {
    const char *name;
    lsi_call_kind kind;
    int input, output; /* in elements; all rows have count 8 */
    ls_status expected;
} placement;

static const placement placements[] = {
    {"all-reduce apart", LSI_CALL_ALL_REDUCE, 0, 8, LS_OK},
    {"all-reduce in place", LSI_CALL_ALL_REDUCE, 4, 4, LS_OK},
    {"all-reduce shifted up", LSI_CALL_ALL_REDUCE, 0, 1, LS_ERR_ARGUMENT},
    {"all-reduce shifted down", LSI_CALL_ALL_REDUCE, 7, 0, LS_ERR_ARGUMENT},
    {"reduce-scatter apart", LSI_CALL_REDUCE_SCATTER, 0, 16, LS_OK},
    {"reduce-scatter in place", LSI_CALL_REDUCE_SCATTER, 0, 8, LS_OK},
    {"reduce-scatter into another's part", LSI_CALL_REDUCE_SCATTER, 0, 0, LS_ERR_ARGUMENT},
    {"reduce-scatter into the border", LSI_CALL_REDUCE_SCATTER, 0, 15, LS_ERR_ARGUMENT},
    {"all-gather apart", LSI_CALL_ALL_GATHER, 16, 0, LS_OK},
    {"all-gather in place", LSI_CALL_ALL_GATHER, 8, 0, LS_OK},
    {"all-gather from another's part", LSI_CALL_ALL_GATHER, 0, 0, LS_ERR_ARGUMENT},
    {"all-gather from the border", LSI_CALL_ALL_GATHER, 12, 0, LS_ERR_ARGUMENT},
    {"broadcast to itself", LSI_CALL_BROADCAST, 0, 0, LS_OK},
    {"broadcast shifted", LSI_CALL_BROADCAST, 0, 3, LS_ERR_ARGUMENT},
    {"gather in place", LSI_CALL_GATHER, 8, 0, LS_OK},
    {"gather from another's part", LSI_CALL_GATHER, 0, 0, LS_ERR_ARGUMENT},
    {"scatter in place", LSI_CALL_SCATTER, 0, 8, LS_OK},
    {"scatter into another's part", LSI_CALL_SCATTER, 0, 0, LS_ERR_ARGUMENT},
    {"all-to-all in place", LSI_CALL_ALL_TO_ALL, 0, 0, LS_OK},
    {"all-to-all shifted by a part", LSI_CALL_ALL_TO_ALL, 0, 8, LS_ERR_ARGUMENT},
};

static ls_status call_placed(ls_group *group, const placement *p, float *input, float *output) {
    switch (p->kind) {
    case LSI_CALL_ALL_REDUCE:
        return ls_all_reduce(group, input, output, 8, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
    case LSI_CALL_REDUCE_SCATTER:
        return ls_reduce_scatter(group, input, output, 8, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
    case LSI_CALL_BROADCAST: return ls_broadcast(group, input, output, 8, LS_DTYPE_F32, 1, NULL);
    case LSI_CALL_GATHER: return ls_gather(group, input, output, 8, LS_DTYPE_F32, 1, NULL);
    case LSI_CALL_SCATTER: return ls_scatter(group, input, output, 8, LS_DTYPE_F32, 1, NULL);
    case LSI_CALL_ALL_TO_ALL: return ls_all_to_all(group, input, output, 8, LS_DTYPE_F32, NULL);
    default: return ls_all_gather(group, input, output, 8, LS_DTYPE_F32, NULL);
    }
}

/* Rank 0 stays apart and joins only the calls that rank 1 may make. */
static ls_status every_placement(ls_group *group, void *context) {
    (void)context;
    float memory[64] = {0};
    for (size_t i = 0; i < sizeof placements / sizeof placements[0]; i++) {
        placement p = placements[i];
        if (ls_group_rank(group) == 0) {
            if (p.expected == LS_OK) LSI_TRY(call_placed(group, &p, memory, memory + 32));
            continue;
        }
        ls_status found = call_placed(group, &p, memory + p.input, memory + p.output);
        RANK_CHECK(found == p.expected, "%s: expected %s, found %s", p.name,
                   ls_status_name(p.expected), ls_status_name(found));
        float *odd = (float *)(void *)((char *)memory + 2);
        RANK_CHECK(call_placed(group, &p, odd, memory + 32) == LS_ERR_ARGUMENT &&
                       call_placed(group, &p, memory + 32, odd) == LS_ERR_ARGUMENT,
                   "%s: a buffer off the boundary of its elements was accepted", p.name);
    }
    return ls_barrier(group, NULL);
}

static void buffers_that_overlap_in_part_are_refused(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, every_placement, NULL));
}

/* Nothing to move: no pointer is looked at, wherever the other ranks' are. */
static ls_status calls_of_nothing(ls_group *group, void *context) {
    (void)context;
    void *shared = NULL;
    LSI_TRY(ls_group_alloc_shared(group, 64, &shared));
    void *some = ls_group_rank(group) == 1 ? NULL : shared;
    LSI_TRY(ls_all_reduce(group, shared, NULL, 0, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    LSI_TRY(ls_all_reduce(group, NULL, some, 0, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    LSI_TRY(ls_reduce_scatter(group, shared, NULL, 0, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    LSI_TRY(ls_reduce_scatter(group, some, NULL, 0, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    LSI_TRY(ls_all_gather(group, shared, NULL, 0, LS_DTYPE_F32, NULL));
    LSI_TRY(ls_all_gather(group, NULL, some, 0, LS_DTYPE_F32, NULL));
    LSI_TRY(ls_broadcast(group, some, NULL, 0, LS_DTYPE_F32, 0, NULL));
    LSI_TRY(ls_reduce(group, some, NULL, 0, LS_DTYPE_F32, LS_OP_SUM, 1, 0, NULL));
    LSI_TRY(ls_gather(group, NULL, some, 0, LS_DTYPE_F32, 0, NULL));
    LSI_TRY(ls_scatter(group, some, NULL, 0, LS_DTYPE_F32, 0, NULL));
    return ls_all_to_all(group, NULL, some, 0, LS_DTYPE_F32, NULL);
}

static void counts_of_zero_take_any_pointer(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, calls_of_nothing, NULL));
}

/* As many ranks as there can be, on however few processors. */
static ls_status all_ranks_meet(ls_group *group, void *context) {
    (void)context;
    shape s = {BUFFER_MIXED, true, 1000};
    LSI_TRY(barrier_returns(group, NULL));
    LSI_TRY(all_reduce_gives_scaled_sum(group, &s));
    LSI_TRY(reduce_scatter_gives_own_part(group, &s));
    return all_gather_gives_all_parts(group, &s);
}

static void the_most_ranks_possible_work(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, LSI_MAX_RANKS, all_ranks_meet, NULL));
}

static ls_status freed_memory_comes_back_zeroed(ls_group *group, void *context) {
    (void)context;
    const size_t bytes = 1 << 20;
    for (int round = 0; round < 50; round++) {
        void *a = NULL, *b = NULL;
        LSI_TRY(ls_group_alloc_shared(group, bytes + (size_t)round * 4096, &a));
        LSI_TRY(ls_group_alloc_shared(group, 100, &b));
        for (size_t i = 0; i < bytes; i += 509)
            RANK_CHECK(((char *)a)[i] == 0, "round %d, byte %zu is not zero", round, i);
        memset(a, 1, bytes);
        memset(b, 2, 100);
        ls_group_free_shared(group, a);
        ls_group_free_shared(group, b);
    }
    return ls_barrier(group, NULL);
}

static void shared_heap_reuses_memory(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 4, freed_memory_comes_back_zeroed, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_exact_as_threads),
        cmocka_unit_test(collectives_are_exact_as_processes),
        cmocka_unit_test(all_reduce_keeps_the_fixed_order),
        cmocka_unit_test(posted_works_complete),
        cmocka_unit_test(slots_are_used_again),
        cmocka_unit_test(works_guard_their_buffers),
        cmocka_unit_test(bad_arguments_leave_the_group_usable),
        cmocka_unit_test(buffers_that_overlap_in_part_are_refused),
        cmocka_unit_test(counts_of_zero_take_any_pointer),
        cmocka_unit_test(the_most_ranks_possible_work),
        cmocka_unit_test(shared_heap_reuses_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
