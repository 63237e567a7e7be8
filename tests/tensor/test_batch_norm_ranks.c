/* Synchronised batch norm: ranks that have parts of a batch against one tape that has all of it,
 * and what the op asks of the exchange: how often, how much, and what becomes of its failures.
 *
 * `part` runs the op over some rows of a problem; dy is given, so that the loss of a rank is the
 * sum of dy y over its rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/ranks.h"

#include "harness/harness.h"
#include "tensor/op.h"
#include "tensor/reference/reference.h"

enum { MAX_ROWS = 800, MAX_COLUMNS = 130, MAX_COUNT = MAX_ROWS * MAX_COLUMNS, MAX_RANKS = 8 };
enum { ARENA_BYTES = 1 << 24 };

typedef struct problem {
    int64_t rows, columns;
    float epsilon;
    bool input_is_constant; /* x needs no gradient */
    float x[MAX_COUNT], dy[MAX_COUNT], weight[MAX_COLUMNS], bias[MAX_COLUMNS];
} problem;

typedef struct result {
    float y[MAX_COUNT], dx[MAX_COUNT]; /* in the place of the problem's rows */
    float dw[MAX_COLUMNS], db[MAX_COLUMNS], stats[2 * MAX_COLUMNS];
} result;

static problem *new_problem(int64_t rows, int64_t columns, float epsilon) {
    problem *p = calloc(1, sizeof *p);
    p->rows = rows;
    p->columns = columns;
    p->epsilon = epsilon;
    return p;
}

/* ---- the op over rows [first, first + n) ---- */

static ls_status weigh_backward(lsi_tape *tape, lsi_node *node) {
    bool first;
    float *grad = lsi_grad(tape, node->input[0], &first);
    if (!grad) return lsi_tape_status(tape);
    memcpy(grad, node->saved[0], lsi_tensor_bytes(node->input[0]));
    return LS_OK;
}

/* A loss through which the gradient of y is dy. */
static lsi_tensor *weigh(lsi_tape *tape, lsi_tensor *y, const float *dy) {
    lsi_tensor *loss = y ? lsi_tape_activation_f32(tape, 1, (int64_t[]){1}) : NULL;
    void *kept = loss ? lsi_tape_scratch(tape, lsi_tensor_bytes(y)) : NULL;
    if (!kept) return NULL;
    lsi_node node = {.backward = weigh_backward,
                     .name = "weigh",
                     .input = {y},
                     .output = loss,
                     .reads = LSI_READS_INPUT(0),
                     .saved = {kept}};
    memcpy(kept, dy, lsi_tensor_bytes(y));
    lsi_tape_record(tape, &node);
    return loss;
}

static ls_status pass(lsi_tape *tape, const problem *p, int64_t first, int64_t n, result *r) {
    int64_t at = first * p->columns, dims[] = {n, p->columns};
    size_t bytes = (size_t)(n * p->columns) * sizeof(float);
    ls_param params[] = {{"weight", p->columns, LS_DTYPE_F32, 0, (void *)p->weight, r->dw},
                         {"bias", p->columns, LS_DTYPE_F32, 0, (void *)p->bias, r->db}};
    lsi_tape_checkpoint(tape, 1);
    lsi_tape_unit_begin(tape, 1);
    lsi_tensor *x = lsi_tape_input(tape, p->x + at, 2, dims, !p->input_is_constant);
    lsi_tensor *w = lsi_tape_param(tape, &params[0], 0, 1, &p->columns);
    lsi_tensor *b = lsi_tape_param(tape, &params[1], 1, 1, &p->columns);
    lsi_tensor *y = lsi_op_batch_norm(tape, x, w, b, p->epsilon, r->stats);
    LSI_TRY(lsi_tape_status(tape));
    memcpy(r->y + at, y->data, bytes);
    lsi_tensor *loss = weigh(tape, y, p->dy + at);
    lsi_tape_drop(tape, y); /* backward makes it again: the exchange must not be asked for that */
    lsi_tape_unit_end(tape, 1);
    LSI_TRY(lsi_tape_backward(tape, loss));
    if (x->grad) memcpy(r->dx + at, x->grad, bytes);
    return LS_OK;
}

/* Status of the pass; a leak is LS_ERR_STATE. The arena has free_bytes. */
static ls_status part(const problem *p, int64_t first, int64_t n, lsi_exchange exchange,
                      size_t free_bytes, result *r) {
    lsi_arena *arena;
    lsi_tape *tape;
    LSI_TRY(lsi_arena_create(ARENA_BYTES, &arena));
    LSI_TRY(lsi_tape_create(arena, &tape));
    void *taken =
        free_bytes < ARENA_BYTES ? lsi_arena_alloc(arena, ARENA_BYTES - free_bytes) : NULL;
    lsi_tape_set_exchange(tape, exchange);
    ls_status status = pass(tape, p, first, n, r);
    lsi_tape_destroy(tape);
    lsi_arena_release(arena, taken);
    size_t left = lsi_arena_used_bytes(arena);
    lsi_arena_destroy(arena);
    return left ? lsi_fail(LS_ERR_STATE, "%zu bytes of the arena are lost", left) : status;
}

static const lsi_exchange alone = {0};

static void whole(const problem *p, result *r) {
    assert_ok(part(p, 0, p->rows, alone, ARENA_BYTES, r));
}

/* ---- ranks and their rows ---- */

static ls_status gather(void *group, const double *mine, int64_t count, double *all) {
    return ls_all_gather(group, mine, all, count, LS_DTYPE_F64, NULL);
}

typedef struct split {
    const problem *p;
    const result *expected;    /* of the whole batch */
    int64_t n_rows[MAX_RANKS]; /* of each rank */
    ls_status (*check)(const struct split *split, ls_group *group, const result *found,
                       int64_t first, int64_t n);
} split;

/* Gradients of parameters become their sums over ranks. */
static ls_status run_split(ls_group *group, void *context) {
    const split *s = context;
    const problem *p = s->p;
    int rank = ls_group_rank(group);
    int64_t first = 0;
    result *r = calloc(1, sizeof *r);
    for (int k = 0; k < rank; k++) first += s->n_rows[k];
    lsi_exchange exchange = {gather, group, ls_group_world_size(group)};
    LSI_TRY(part(p, first, s->n_rows[rank], exchange, ARENA_BYTES, r));
    LSI_TRY(ls_all_reduce(group, r->dw, r->dw, p->columns, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
    LSI_TRY(ls_all_reduce(group, r->db, r->db, p->columns, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
    ls_status status = s->check(s, group, r, first, s->n_rows[rank]);
    free(r);
    return status;
}

static void run_all(split *s, void (*deal)(split *s, int n_ranks)) {
    for (const int *n = rank_counts; *n; n++) {
        deal(s, *n);
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            assert_ok(run_ranks((rank_mode)mode, *n, run_split, s));
    }
}

/* ---- sums that are exact: every bit must be that of the whole batch ---- */

enum { EXACT_ROWS = 16, EXACT_COLUMNS = 3 };

/* Deviations of mean 0 and mean square 3: with epsilon 1, r is 1/2. */
static const float deviations[8] = {3, -3, 1, -1, 1, -1, 1, -1};
static const float means[EXACT_COLUMNS] = {0.0f, 100.0f, -4096.0f};

static problem *exact_problem(void) {
    problem *p = new_problem(EXACT_ROWS, EXACT_COLUMNS, 1.0f);
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        int64_t row = i / p->columns, c = i % p->columns;
        p->x[i] = means[c] + deviations[(row + 3 * c) % 8];
        p->dy[i] = (float)((7 * i) % 5 - 1);
    }
    for (int c = 0; c < EXACT_COLUMNS; c++) {
        p->weight[c] = (float)(c - 1) * 2.0f + 1.0f;
        p->bias[c] = 0.5f * (float)c;
    }
    return p;
}

/* Powers of two, so that means of parts are exact: 16; 8 8; 8 4 4; … 8 2 1 1 1 1 1 1. */
static void deal_powers(split *s, int n_ranks) {
    s->n_rows[0] = EXACT_ROWS;
    for (int k = 1; k < n_ranks; k++) {
        int from = k - 1;
        while (s->n_rows[from] == 1) from--;
        s->n_rows[k] = s->n_rows[from] /= 2;
    }
}

#define SAME_BITS(what, count)                                                                     \
    RANK_CHECK(memcmp(found->what, s->expected->what, (size_t)(count) * sizeof(float)) == 0,       \
               #what " is not that of the whole batch")

static ls_status check_exact(const split *s, ls_group *group, const result *found, int64_t first,
                             int64_t n) {
    const problem *p = s->p;
    (void)group;
    for (int64_t i = first * p->columns; i < (first + n) * p->columns; i++) {
        int64_t row = i / p->columns, c = i % p->columns;
        float y = 0.5f * deviations[(row + 3 * c) % 8] * p->weight[c] + p->bias[c];
        RANK_CHECK(found->y[i] == y, "y[%d] is %g, expected %g", (int)i, (double)found->y[i],
                   (double)y);
        RANK_CHECK(found->dx[i] == s->expected->dx[i], "dx[%d] is %g, expected %g", (int)i,
                   (double)found->dx[i], (double)s->expected->dx[i]);
    }
    SAME_BITS(dw, p->columns);
    SAME_BITS(db, p->columns);
    SAME_BITS(stats, 2 * p->columns);
    for (int64_t c = 0; c < p->columns; c++) {
        RANK_CHECK(found->stats[c] == means[c], "mean %g", (double)found->stats[c]);
        RANK_CHECK(found->stats[p->columns + c] == (float)(48.0 / 15.0), "variance %g",
                   (double)found->stats[p->columns + c]);
    }
    return LS_OK;
}

/* One row on some ranks: alone they could not do it at all. */
static void exact_parts_have_the_bits_of_the_whole_batch(void **state) {
    (void)state;
    problem *p = exact_problem();
    result *expected = calloc(1, sizeof *expected);
    whole(p, expected);
    split s = {.p = p, .expected = expected, .check = check_exact};
    run_all(&s, deal_powers);
    free(expected);
    free(p);
}

/* ---- any numbers: near the plain twin in double ---- */

static problem *wavy_problem(int64_t rows, int64_t columns) {
    problem *p = new_problem(rows, columns, 1e-5f);
    for (int64_t i = 0; i < rows * columns; i++) {
        double spread = 0.5 + (double)(i % columns) / 40.0;
        double offset = (double)(i % columns % 7) / 3.0 - 1.0;
        /* channels drift from row to row, so means of parts differ */
        p->x[i] = (float)(offset + spread * (sin(0.7 * (double)i) + (double)(i / columns) / 100.0));
        p->dy[i] = (float)(0.3 + sin(1.3 * (double)i));
    }
    for (int64_t c = 0; c < columns; c++) {
        p->weight[c] = (float)(1.0 + 0.5 * sin((double)c));
        p->bias[c] = (float)cos((double)c);
    }
    return p;
}

typedef struct exact_result {
    double x[MAX_COUNT], dy[MAX_COUNT], y[MAX_COUNT], dx[MAX_COUNT];
    double weight[MAX_COLUMNS], bias[MAX_COLUMNS], dw[MAX_COLUMNS], db[MAX_COLUMNS];
} exact_result;

static exact_result *by_twin(const problem *p) {
    exact_result *e = calloc(1, sizeof *e);
    lsi_ref_norm norm = {p->rows, p->columns, (double)p->epsilon};
    for (int64_t i = 0; i < p->rows * p->columns; i++) e->x[i] = p->x[i], e->dy[i] = p->dy[i];
    for (int64_t c = 0; c < p->columns; c++) e->weight[c] = p->weight[c], e->bias[c] = p->bias[c];
    lsi_ref_batch_norm(&norm, e->x, e->weight, e->bias, e->y);
    lsi_ref_batch_norm_backward(&norm, e->x, e->weight, e->dy, e->dx, e->dw, e->db);
    return e;
}

/* Rows one behind the other in the given ratio, at least one each. */
static void deal_unevenly(split *s, int n_ranks) {
    int64_t left = s->p->rows;
    for (int k = 0; k < n_ranks; k++) {
        s->n_rows[k] = k + 1 == n_ranks ? left : left * (k % 2 ? 1 : 2) / (n_ranks - k + 1);
        if (s->n_rows[k] < 1) s->n_rows[k] = 1;
        left -= s->n_rows[k];
    }
}

static ls_status near(const char *what, const float *found, const double *expected, int64_t n,
                      double bound) {
    for (int64_t i = 0; i < n; i++)
        RANK_CHECK(fabs((double)found[i] - expected[i]) <= bound,
                   "%s[%d] is %.9g, expected %.9g within %.2g", what, (int)i, (double)found[i],
                   expected[i], bound);
    return LS_OK;
}

static double largest_of(const double *values, int64_t n) {
    double largest = 1.0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(values[i]));
    return largest;
}

/* Statistics must be the same bits on all ranks. */
static ls_status check_agreement(ls_group *group, const result *found, int64_t n) {
    float all[MAX_RANKS * 2 * MAX_COLUMNS];
    LSI_TRY(ls_all_gather(group, found->stats, all, n, LS_DTYPE_F32, NULL));
    for (int k = 0; k < ls_group_world_size(group); k++)
        RANK_CHECK(memcmp(all + k * n, all, (size_t)n * sizeof *all) == 0,
                   "rank %d has other statistics than rank 0", k);
    return LS_OK;
}

/* y and dx: the bound of test_ops.c, of the largest element. dw and db: sums over rows of terms of
 * about 1, each within a few roundings (6e-8), which for dw all have the error of the same mean. */
static ls_status check_near(const split *s, ls_group *group, const result *found, int64_t first,
                            int64_t n) {
    const problem *p = s->p;
    int64_t at = first * p->columns, count = n * p->columns, all = p->rows * p->columns;
    exact_result *e = by_twin(p);
    LSI_TRY(near("y", found->y + at, e->y + at, count, 2e-5 * largest_of(e->y, all)));
    LSI_TRY(near("dx", found->dx + at, e->dx + at, count, 2e-5 * largest_of(e->dx, all)));
    LSI_TRY(near("dw", found->dw, e->dw, p->columns, 1e-6 * (double)p->rows));
    LSI_TRY(near("db", found->db, e->db, p->columns, 1e-6 * (double)p->rows));
    free(e);
    return check_agreement(group, found, 2 * p->columns);
}

static void uneven_parts_are_near_the_twin_of_the_whole_batch(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{8, 1}, {61, 5}, {777, 16}, {130, 130}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        problem *p = wavy_problem(shapes[i][0], shapes[i][1]);
        split s = {.p = p, .check = check_near};
        run_all(&s, deal_unevenly);
        free(p);
    }
}

/* ---- an exchange that plays the others ---- */

/* All ranks have the numbers of this one. */
typedef struct echo {
    int n_ranks, n_calls, fail_at; /* fail_at: number of a call, from 1 */
    int64_t counts[4];
} echo;

static ls_status answer(void *context, const double *mine, int64_t count, double *all) {
    echo *e = context;
    if (e->n_calls < 4) e->counts[e->n_calls] = count;
    if (++e->n_calls == e->fail_at) return lsi_fail(LS_ERR_PEER, "rank 1 is gone");
    for (int k = 0; k < e->n_ranks; k++) memcpy(all + k * count, mine, (size_t)count * sizeof *all);
    return LS_OK;
}

static lsi_exchange exchange_of(echo *e) {
    return (lsi_exchange){answer, e, e->n_ranks};
}

static void one_rank_has_the_bits_of_no_exchange(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{2, 1}, {61, 5}, {777, 130}};
    result *r[2] = {calloc(1, sizeof *r[0]), calloc(1, sizeof *r[1])};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        problem *p = wavy_problem(shapes[i][0], shapes[i][1]);
        echo e = {.n_ranks = 1};
        whole(p, r[0]);
        assert_ok(part(p, 0, p->rows, exchange_of(&e), ARENA_BYTES, r[1]));
        assert_memory_equal(r[0], r[1], sizeof *r[0]);
        free(p);
    }
    free(r[0]);
    free(r[1]);
}

/* Twice the same rows have the same mean, variance and gradients; only the unbiased variance, which
 * is handed out, knows that they are twice as many. */
static void peers_with_the_same_rows_change_only_unbiased_variances(void **state) {
    (void)state;
    problem *p = wavy_problem(61, 5);
    result *one = calloc(1, sizeof *one), *two = calloc(1, sizeof *two);
    echo e = {.n_ranks = 2};
    whole(p, one);
    assert_ok(part(p, 0, p->rows, exchange_of(&e), ARENA_BYTES, two));
    for (int c = 5; c < 10; c++) {
        double ratio = (double)two->stats[c] / (double)one->stats[c];
        assert_true(fabs(ratio - (122.0 / 121.0) / (61.0 / 60.0)) < 2e-7);
        two->stats[c] = one->stats[c];
    }
    assert_memory_equal(one, two, sizeof *one);
    free(one);
    free(two);
    free(p);
}

/* Backward makes y again from what was saved, and asks nobody for that. */
static void exchange_is_asked_once_a_pass(void **state) {
    (void)state;
    problem *p = wavy_problem(61, 5);
    result *r = calloc(1, sizeof *r);
    echo e = {.n_ranks = 3};
    assert_ok(part(p, 0, p->rows, exchange_of(&e), ARENA_BYTES, r));
    assert_int_equal(e.n_calls, 2);
    assert_int_equal(e.counts[0], 1 + 2 * 5);
    assert_int_equal(e.counts[1], 2 * 5);
    p->input_is_constant = true; /* gradients of parameters stay here */
    e.n_calls = 0;
    assert_ok(part(p, 0, p->rows, exchange_of(&e), ARENA_BYTES, r));
    assert_int_equal(e.n_calls, 1);
    free(r);
    free(p);
}

static void given_statistics_need_no_exchange(void **state) {
    (void)state;
    static const float ones[3] = {1.0f, 1.0f, 1.0f}, x[6] = {0.0f};
    lsi_arena *arena;
    lsi_tape *tape;
    echo e = {.n_ranks = 2};
    assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_set_exchange(tape, exchange_of(&e));
    lsi_tensor *in = lsi_tape_input(tape, x, 2, (int64_t[]){2, 3}, true);
    lsi_tensor *w = lsi_tape_input(tape, ones, 1, (int64_t[]){3}, true);
    lsi_tensor *y = lsi_op_batch_norm_fixed(tape, in, w, w, 1e-5f, ones, ones);
    assert_ok(lsi_tape_backward(tape, y));
    assert_int_equal(e.n_calls, 0);
    lsi_tape_destroy(tape);
    lsi_arena_destroy(arena);
}

/* ---- failures ---- */

static void failing_exchange_fails_the_pass(void **state) {
    (void)state;
    problem *p = wavy_problem(61, 5);
    result *r = calloc(1, sizeof *r);
    for (int call = 1; call <= 2; call++) {
        echo e = {.n_ranks = 2, .fail_at = call};
        ls_status status = part(p, 0, p->rows, exchange_of(&e), ARENA_BYTES, r);
        assert_fails(status, LS_ERR_PEER, "batch_norm: sums of all ranks: rank 1 is gone");
        assert_int_equal(e.n_calls, call);
    }
    free(r);
    free(p);
}

static void single_value_of_all_ranks_is_refused(void **state) {
    (void)state;
    problem *p = wavy_problem(1, 5);
    result *r = calloc(1, sizeof *r);
    echo e = {.n_ranks = 1};
    assert_fails(part(p, 0, 1, alone, ARENA_BYTES, r), LS_ERR_ARGUMENT, "at least 2 values");
    assert_fails(part(p, 0, 1, exchange_of(&e), ARENA_BYTES, r), LS_ERR_ARGUMENT, "2 values");
    e.n_ranks = 2;
    assert_ok(part(p, 0, 1, exchange_of(&e), ARENA_BYTES, r));
    free(r);
    free(p);
}

/* Arenas from too small to large enough: each place where memory runs out is met. */
static void lack_of_memory_loses_nothing(void **state) {
    (void)state;
    problem *p = wavy_problem(61, 130);
    result *r = calloc(1, sizeof *r);
    int n_failed = 0;
    for (size_t bytes = 512;; bytes += 512) {
        echo e = {.n_ranks = 8};
        ls_status status = part(p, 0, p->rows, exchange_of(&e), bytes, r);
        if (status == LS_OK) break;
        assert_int_equal(status, LS_ERR_MEMORY);
        n_failed++;
        assert_true(n_failed < 1000);
    }
    assert_true(n_failed > 10);
    free(r);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_parts_have_the_bits_of_the_whole_batch),
        cmocka_unit_test(uneven_parts_are_near_the_twin_of_the_whole_batch),
        cmocka_unit_test(one_rank_has_the_bits_of_no_exchange),
        cmocka_unit_test(peers_with_the_same_rows_change_only_unbiased_variances),
        cmocka_unit_test(exchange_is_asked_once_a_pass),
        cmocka_unit_test(given_statistics_need_no_exchange),
        cmocka_unit_test(failing_exchange_fails_the_pass),
        cmocka_unit_test(single_value_of_all_ranks_is_refused),
        cmocka_unit_test(lack_of_memory_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
