/* Bytes that ranks count as sent, of every algorithm and collective, against the formulas of
 * docs/collectives.md, and those of patterns also against what their steps say. One way: what one
 * rank sends another receives, and it is counted once. */
#include "comm/calls.h"

#include "comm/choose.h"

/* ---- formulas ---- */

/* In n-th parts of the larger buffer, S / n; UNKNOWN: only the steps tell. */
typedef int64_t formula(int n, int rank, int root);
enum { UNKNOWN = -1 };

static int64_t its_own_part_of_each(int n, int rank, int root) {
    (void)rank, (void)root;
    return n - 1;
}
static int64_t parts_there_and_back(int n, int rank, int root) {
    (void)rank, (void)root;
    return 2 * (n - 1);
}
static int64_t all_of_each(int n, int rank, int root) {
    (void)rank, (void)root;
    return (n - 1) * n;
}
static int64_t root_all_of_each(int n, int rank, int root) {
    return rank == root ? (n - 1) * n : 0;
}
static int64_t root_a_part_of_each(int n, int rank, int root) {
    return rank == root ? n - 1 : 0;
}
static int64_t others_all(int n, int rank, int root) {
    return rank == root ? 0 : n;
}
static int64_t others_a_part(int n, int rank, int root) {
    (void)n;
    return rank != root;
}
/* … and one to the root. */
static int64_t its_own_part_of_each_to_root(int n, int rank, int root) {
    return n - 1 + (rank != root);
}
static int64_t all_but_the_last_all(int n, int rank, int root) {
    return (rank - root + n) % n < n - 1 ? n : 0;
}
/* In the last step ranks exchange what lies at the mirrored place. */
static int64_t halves(int n, int rank, int root) {
    (void)root;
    if (!lsi_is_power_of_two(n)) return UNKNOWN;
    return n - 1 + (n > 1 && lsi_mirror_bits(rank, lsi_log2_floor(n)) != rank);
}
static int64_t halves_there_and_back(int n, int rank, int root) {
    return lsi_is_power_of_two(n) ? parts_there_and_back(n, rank, root) : UNKNOWN;
}
static int64_t all_in_each_step(int n, int rank, int root) {
    (void)rank, (void)root;
    return lsi_is_power_of_two(n) ? n * lsi_log2_floor(n) : UNKNOWN;
}
static int64_t unknown(int n, int rank, int root) {
    (void)n, (void)rank, (void)root;
    return UNKNOWN;
}

/* What no rank sends more than, where ranks send unlike much. */
typedef int64_t bound(int n);

static int64_t all_but_one_part(int n) {
    return n - 1;
}
static int64_t all_once(int n) {
    return n;
}
static int64_t all_twice(int n) {
    return 2 * n;
}
static int64_t all_in_each_tree_step(int n) {
    return n * lsi_log2_ceil(n);
}
/* Of 2^a, the largest power of two in n, to 2^c, the smallest: as many steps up as down, and one
 * between the blocks. */
static int64_t all_in_each_doubling_step(int n) {
    int most = lsi_log2_floor(n), least = __builtin_ctz((unsigned)n);
    return n * (most == least ? most : 2 * most - least + 1);
}

typedef struct row {
    const char *algorithm;
    lsi_call_kind kind;
    formula *parts;
    bound *at_most; /* NULL: nothing to say */
} row;

static const row rows[] = {
    {"one-shot", LSI_CALL_ALL_REDUCE, all_of_each, NULL},
    {"one-shot", LSI_CALL_REDUCE, root_all_of_each, NULL},
    {"one-shot", LSI_CALL_REDUCE_SCATTER, its_own_part_of_each, NULL},
    {"one-shot", LSI_CALL_ALL_GATHER, its_own_part_of_each, NULL},
    {"one-shot", LSI_CALL_BROADCAST, others_all, NULL},
    {"one-shot", LSI_CALL_GATHER, root_a_part_of_each, NULL},
    {"one-shot", LSI_CALL_SCATTER, others_a_part, NULL},
    {"one-shot", LSI_CALL_ALL_TO_ALL, its_own_part_of_each, NULL},
    {"direct", LSI_CALL_ALL_REDUCE, parts_there_and_back, NULL},
    {"direct", LSI_CALL_REDUCE, its_own_part_of_each_to_root, NULL},
    {"direct", LSI_CALL_REDUCE_SCATTER, its_own_part_of_each, NULL},
    {"direct", LSI_CALL_ALL_GATHER, its_own_part_of_each, NULL},
    {"direct", LSI_CALL_BROADCAST, its_own_part_of_each, NULL},
    {"direct", LSI_CALL_GATHER, others_a_part, NULL},
    {"direct", LSI_CALL_SCATTER, others_a_part, NULL},
    {"direct", LSI_CALL_ALL_TO_ALL, its_own_part_of_each, NULL},
    {"staged", LSI_CALL_ALL_REDUCE, parts_there_and_back, NULL},
    {"staged", LSI_CALL_REDUCE, its_own_part_of_each_to_root, NULL},
    {"staged", LSI_CALL_REDUCE_SCATTER, its_own_part_of_each, NULL},
    {"staged", LSI_CALL_ALL_GATHER, its_own_part_of_each, NULL},
    {"staged", LSI_CALL_BROADCAST, others_all, NULL},
    {"staged", LSI_CALL_GATHER, root_a_part_of_each, NULL},
    {"staged", LSI_CALL_SCATTER, others_a_part, NULL},
    {"staged", LSI_CALL_ALL_TO_ALL, its_own_part_of_each, NULL},
    {"ring", LSI_CALL_ALL_REDUCE, parts_there_and_back, NULL},
    {"ring", LSI_CALL_REDUCE_SCATTER, its_own_part_of_each, NULL},
    {"ring", LSI_CALL_ALL_GATHER, its_own_part_of_each, NULL},
    {"ring", LSI_CALL_BROADCAST, all_but_the_last_all, NULL},
    {"halving", LSI_CALL_ALL_REDUCE, halves_there_and_back, all_twice},
    {"halving", LSI_CALL_REDUCE_SCATTER, halves, all_once},
    {"doubling", LSI_CALL_ALL_REDUCE, all_in_each_step, all_in_each_doubling_step},
    {"doubling", LSI_CALL_ALL_GATHER, its_own_part_of_each, NULL},
    {"binomial", LSI_CALL_ALL_REDUCE, unknown, all_in_each_tree_step},
    {"binomial", LSI_CALL_REDUCE, others_all, NULL},
    {"binomial", LSI_CALL_BROADCAST, unknown, all_in_each_tree_step},
    {"binomial", LSI_CALL_GATHER, unknown, all_but_one_part},
    {"binomial", LSI_CALL_SCATTER, unknown, all_but_one_part},
    {"double-tree", LSI_CALL_ALL_REDUCE, unknown, all_twice},
    {"double-tree", LSI_CALL_REDUCE, unknown, all_once},
    {"double-tree", LSI_CALL_BROADCAST, unknown, all_once},
    {"two-level", LSI_CALL_ALL_REDUCE, unknown, NULL},
    {"two-level", LSI_CALL_BROADCAST, unknown, NULL},
    {"two-level", LSI_CALL_ALL_GATHER, unknown, NULL},
    {"pairwise", LSI_CALL_ALL_TO_ALL, its_own_part_of_each, NULL},
    {"pairwise", LSI_CALL_REDUCE_SCATTER, its_own_part_of_each, NULL},
    {"pairwise", LSI_CALL_ALL_GATHER, its_own_part_of_each, NULL},
};

/* ---- what the steps of a pattern say ---- */

static bool has_n_parts(lsi_call_kind kind) {
    return lsi_shape_of(kind)->many_in || lsi_shape_of(kind)->many_out;
}

static bool has_root(lsi_call_kind kind) {
    return lsi_shape_of(kind)->root_in || lsi_shape_of(kind)->root_out;
}

static int64_t elems_of_steps(const lsi_pattern *pattern, const lsi_pattern_case *c, int rank,
                              int64_t n_elems) {
    int64_t n_parts = has_n_parts((lsi_call_kind)c->kind) ? c->n : pattern->n_parts(c), sum = 0;
    for (int i = 0; i < pattern->n_steps(c, rank); i++) {
        lsi_step step = pattern->step(c, rank, i);
        if (step.to < 0) continue;
        int64_t begin = n_elems * step.sent.begin / n_parts;
        sum += n_elems * (step.sent.begin + step.sent.n) / n_parts - begin;
    }
    return sum;
}

/* ---- every algorithm ---- */

/* Parts of whole cache lines, so that slices are equal; the large ones go in several pieces. */
static const int64_t part_counts[] = {128, 128 << 10};

typedef struct sending {
    const row *row;
    int64_t part_count;
    ls_dtype dtype;
    int root;
} sending;

static ls_status check_sum(ls_group *group, const sending *s, int64_t found, int64_t expected,
                           int64_t slack, const char *by) {
    RANK_CHECK(found >= expected - slack && found <= expected + slack,
               "%s by %s, parts of %lld %s, root %d: rank %d of %d sent %lld "
               "bytes, by its %s %lld",
               lsi_call_kind_name((int)s->row->kind), s->row->algorithm, (long long)s->part_count,
               ls_dtype_name(s->dtype), s->root, group->rank, group->n_ranks, (long long)found, by,
               (long long)expected);
    return LS_OK;
}

/* Staged calls cut each piece into slices, of whole cache lines: a line more or less of each rank,
 * read and written, where ranks do not divide a piece. */
static int64_t slack_of(const sending *s, int n, int64_t bytes) {
    enum { PIECE_BYTES = 256 << 10 };
    bool is_sliced = lsi_shape_of(s->row->kind)->reduces && !has_n_parts(s->row->kind);
    if (strcmp(s->row->algorithm, "staged") != 0 || !is_sliced || bytes <= PIECE_BYTES) return 0;
    if (lsi_is_power_of_two(n)) return 0;
    return (bytes / PIECE_BYTES + 1) * 2 * n * LSI_LINE_BYTES;
}

static ls_status check_sent(ls_group *group, const sending *s, int64_t found) {
    int n = group->n_ranks, rank = group->rank;
    const lsi_pattern *pattern = lsi_pattern_find(s->row->algorithm);
    bool as_f32 = pattern && lsi_shape_of(s->row->kind)->reduces; /* rounded at the end */
    int64_t elem_bytes = (int64_t)ls_dtype_bytes(as_f32 ? LS_DTYPE_F32 : s->dtype);
    int64_t part_bytes = s->part_count * elem_bytes, parts = s->row->parts(n, rank, s->root);
    if (parts != UNKNOWN)
        LSI_TRY(check_sum(group, s, found, parts * part_bytes, slack_of(s, n, n * part_bytes),
                          "formula"));
    if (s->row->at_most && found > s->row->at_most(n) * part_bytes)
        LSI_TRY(check_sum(group, s, found, s->row->at_most(n) * part_bytes, 0, "bound"));
    if (!pattern) return LS_OK;
    lsi_pattern_case c = lsi_choice_pattern_case(
        &(lsi_choice_case){.kind = (int)s->row->kind, .n = n, .root = s->root});
    int64_t elems = elems_of_steps(pattern, &c, rank, n * s->part_count);
    return check_sum(group, s, found, elems * elem_bytes, 0, "steps");
}

/* *is_done: the call was one for the algorithm. */
static ls_status send(ls_group *group, const sending *s, float *buffer[2], bool *is_done) {
    const call c = {.kind = s->row->kind, .dtype = s->dtype, .root = s->root};
    int64_t count = s->part_count * (has_n_parts(c.kind) ? 1 : group->n_ranks);
    lsi_group_stats before, after;
    LSI_TRY(force(group, s->row->algorithm));
    lsi_group_get_stats(group, &before);
    LSI_TRY(make_call(group, &c, count, buffer[0], buffer[1], NULL));
    lsi_group_get_stats(group, &after);
    *is_done = strcmp(lsi_group_last_algorithm(group), s->row->algorithm) == 0;
    return *is_done ? check_sent(group, s, after.bytes_sent - before.bytes_sent) : LS_OK;
}

static ls_status send_by_all(ls_group *group, void *context) {
    (void)context;
    static const ls_dtype dtypes[] = {LS_DTYPE_F32, LS_DTYPE_BF16};
    float *buffer[2];
    LSI_TRY(make_buffers(group, part_counts[COUNT_OF(part_counts) - 1], true, buffer));
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        int n_done = 0;
        for (size_t p = 0; p < COUNT_OF(part_counts); p++)
            for (int k = 0; k < 4; k++) {
                int root = has_root(rows[r].kind) ? k / 2 * (group->n_ranks - 1) : 0;
                sending s = {&rows[r], part_counts[p], dtypes[k % 2], root};
                bool is_done = false;
                LSI_TRY(send(group, &s, buffer, &is_done));
                n_done += is_done;
            }
        /* One rank has no messages to pass. */
        bool is_possible = group->n_ranks > 1 || !lsi_pattern_find(rows[r].algorithm);
        RANK_CHECK(n_done >= 4 * is_possible, "%s never did %s", rows[r].algorithm,
                   lsi_call_kind_name((int)rows[r].kind));
    }
    free_buffers(group, true, buffer);
    return LS_OK;
}

static const int sizes[] = {1, 2, 3, 4, 5, 8};

static void bytes_sent_are_those_of_the_formula(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, sizes[i], send_by_all, NULL));
}

/* A collective or algorithm without a row would go unseen. */
static void every_algorithm_has_its_rows(void **state) {
    (void)state;
    for (int a = 1; a <= lsi_n_algorithms(); a++)
        for (int kind = LSI_CALL_BROADCAST; kind <= LSI_CALL_ALL_TO_ALL; kind++) {
            const lsi_choice_case c = {.kind = kind,
                                       .n = 4,
                                       .slot_bytes = 64,
                                       .bytes = 64,
                                       .default_order = true,
                                       .reduces = lsi_shape_of(kind)->reduces};
            bool has_row = false;
            for (size_t r = 0; r < COUNT_OF(rows); r++)
                has_row = has_row || ((int)rows[r].kind == kind &&
                                      strcmp(rows[r].algorithm, lsi_algorithm_name(a)) == 0);
            if (a != LSI_ALGORITHM_SHARED && lsi_algorithm_can(a, &c) != has_row)
                fail_msg("%s by %s: row %d", lsi_call_kind_name(kind), lsi_algorithm_name(a),
                         has_row);
        }
}

/* ---- messages ---- */

/* Round the ring, more from higher ranks; by calls of their own, and in a batch. */
static ls_status send_messages(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, rank = group->rank, before = (rank + n - 1) % n;
    float *buffer[2];
    LSI_TRY(make_buffers(group, 5000, false, buffer));
    for (int i = 0; i < 4; i++) {
        int64_t sent = 1000 * rank + i, received = 1000 * before + i;
        lsi_group_stats first, last;
        lsi_group_get_stats(group, &first);
        LSI_TRY(ls_batch_begin(group));
        LSI_TRY(ls_send(group, buffer[0], sent, LS_DTYPE_F32, (rank + 1) % n, NULL));
        LSI_TRY(ls_recv(group, buffer[1], received, LS_DTYPE_F32, before, NULL));
        LSI_TRY(ls_batch_end(group, NULL));
        lsi_group_get_stats(group, &last);
        RANK_CHECK(last.bytes_sent - first.bytes_sent == 4 * sent,
                   "rank %d of %d: %lld bytes sent, expected %lld", rank, n,
                   (long long)(last.bytes_sent - first.bytes_sent), (long long)(4 * sent));
    }
    free_buffers(group, false, buffer);
    return LS_OK;
}

static void messages_count_where_they_are_sent(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, sizes[i], send_messages, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_sent_are_those_of_the_formula),
        cmocka_unit_test(every_algorithm_has_its_rows),
        cmocka_unit_test(messages_count_where_they_are_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
