/* Pairs of ops that run in one pass ([Note: pairs] in op.h): to the bit they are the two ops.
 *
 * `pairs` has a row for each. A run takes either way through a unit that keeps nothing and returns
 * all that can be told apart: both results, the same as backward finds them when they are made
 * again, and all gradients. The two ways must agree in each bit, where one pass is taken (float32,
 * one thread) and where it is not; what the numbers should be is the business of test_ops.c. And a
 * pair that runs out of memory half way leaves none behind. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "harness/harness.h"
#include "tensor/gemm.h"
#include "tensor/op.h"
#include "tensor/product.h"
#include "tensor/rows.h"

enum { MAX_INPUTS = 4, ARENA_BYTES = 1 << 26, MAX_THREADS = 2 };

static const float epsilon = 1e-5f;

typedef enum way { APART, AT_ONCE } way;

typedef struct op_pair {
    const char *name;
    int n_inputs, first_weight; /* inputs from here on are parameters */
    int64_t inner, outer;       /* columns in and out: odd, and more than a stretch of a row */
    lsi_tensor *(*run[2])(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first);
} op_pair;

static lsi_tensor *linear_then_gelu(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first) {
    *first = lsi_op_linear(tape, in[0], in[1], in[2]);
    return lsi_op_gelu(tape, *first);
}
static lsi_tensor *linear_gelu(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first) {
    return lsi_op_linear_gelu(tape, in[0], in[1], in[2], first);
}
static lsi_tensor *add_then_layer_norm(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first) {
    *first = lsi_op_add(tape, in[0], in[1]);
    return lsi_op_layer_norm(tape, *first, in[2], in[3], epsilon);
}
static lsi_tensor *add_layer_norm(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first) {
    return lsi_op_add_layer_norm(tape, in[0], in[1], in[2], in[3], epsilon, first);
}
static lsi_tensor *add_then_rms_norm(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first) {
    *first = lsi_op_add(tape, in[0], in[1]);
    return lsi_op_rms_norm(tape, *first, in[2], epsilon);
}
static lsi_tensor *add_rms_norm(lsi_tape *tape, lsi_tensor **in, lsi_tensor **first) {
    return lsi_op_add_rms_norm(tape, in[0], in[1], in[2], epsilon, first);
}

static const op_pair pairs[] = {
    {"linear_gelu", 3, 1, 33, 129, {linear_then_gelu, linear_gelu}},
    {"add_layer_norm", 4, 2, 1031, 1031, {add_then_layer_norm, add_layer_norm}},
    {"add_rms_norm", 3, 2, 1031, 1031, {add_then_rms_norm, add_rms_norm}},
};
enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };

/* ---- the data of a case ---- */

typedef struct numbers {
    const op_pair *pair;
    ls_dtype dtype;
    int64_t rows, n_out, n_in[MAX_INPUTS];
    float *x[MAX_INPUTS], *dy; /* dy: of both results */
    void *stored[MAX_INPUTS];  /* x in dtype, for parameters */
} numbers;

static void *grab(int64_t n, size_t bytes) {
    void *ptr = calloc((size_t)n, bytes);
    assert_non_null(ptr);
    return ptr;
}

/* In [-2, 2), numbers that dtype can hold. */
static float *draw(uint32_t which, ls_dtype dtype, int64_t n) {
    lsi_rng_stream stream = lsi_rng_open(11, LSI_RNG_TEST, which, 0);
    float *x = grab(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = 4.0f * lsi_rng_uniform(&stream, (uint64_t)i) - 2.0f;
    lsi_round(x, dtype, n);
    return x;
}

/* Inputs are rows, the weight of a product is a matrix, other weights are as long as a row. */
static int shape_of(const numbers *n, int k, int64_t dims[2]) {
    const op_pair *pair = n->pair;
    bool is_rows = k < pair->first_weight, is_matrix = k == 1 && !is_rows;
    dims[0] = is_rows ? n->rows : is_matrix ? pair->inner : pair->outer;
    dims[1] = is_matrix ? pair->outer : pair->inner;
    return is_rows || is_matrix ? 2 : 1;
}

static numbers open_numbers(const op_pair *pair, ls_dtype dtype, int64_t rows) {
    numbers n = {.pair = pair, .dtype = dtype, .rows = rows, .n_out = rows * pair->outer};
    n.dy = draw(MAX_INPUTS, dtype, n.n_out);
    for (int k = 0; k < pair->n_inputs; k++) {
        int64_t dims[2];
        n.n_in[k] = shape_of(&n, k, dims) == 2 ? dims[0] * dims[1] : dims[0];
        n.x[k] = draw((uint32_t)k, dtype, n.n_in[k]);
        n.stored[k] = grab(n.n_in[k], sizeof(float));
        lsi_store_floats(n.stored[k], dtype, n.n_in[k], n.x[k]);
    }
    return n;
}

static void close_numbers(numbers *n) {
    free(n->dy);
    for (int k = 0; k < MAX_INPUTS; k++) free(n->x[k]), free(n->stored[k]);
}

/* ---- a run ---- */

typedef struct found {
    float *made[2], *again[2], *dx[MAX_INPUTS];
} found;

static found open_found(const numbers *n) {
    found f = {0};
    for (int k = 0; k < 2; k++) {
        f.made[k] = grab(n->n_out, sizeof(float));
        f.again[k] = grab(n->n_out, sizeof(float));
    }
    for (int k = 0; k < n->pair->n_inputs; k++) {
        f.dx[k] = grab(n->n_in[k], sizeof(float));
        for (int64_t i = 0; i < n->n_in[k]; i++) f.dx[k][i] = NAN;
    }
    return f;
}

static void close_found(found *f) {
    for (int k = 0; k < 2; k++) free(f->made[k]), free(f->again[k]);
    for (int k = 0; k < MAX_INPUTS; k++) free(f->dx[k]);
}

static found *looking; /* where look_backward puts what it reads */

static ls_status look_backward(lsi_tape *tape, lsi_node *node) {
    for (int k = 0; k < 2; k++) {
        lsi_tensor *t = node->input[k];
        int64_t n = lsi_tensor_count(t);
        bool first;
        lsi_to_floats(t->data, t->dtype, n, looking->again[k]);
        void *grad = lsi_grad(tape, t, &first);
        if (!grad) return lsi_tape_status(tape);
        lsi_add_to_grad(grad, lsi_grad_dtype(t), node->saved[0], LS_DTYPE_F32, n, first);
    }
    return LS_OK;
}

/* A loss whose gradient by both results is dy. */
static lsi_tensor *look(lsi_tape *tape, lsi_tensor *result[2], const float *dy) {
    size_t bytes = (size_t)lsi_tensor_count(result[0]) * sizeof *dy;
    lsi_node node = {.backward = look_backward,
                     .name = "look",
                     .input = {result[0], result[1]},
                     .output = lsi_tape_activation_f32(tape, 1, (int64_t[]){1}),
                     .reads = LSI_READS_INPUT(0) | LSI_READS_INPUT(1),
                     .saved = {lsi_tape_scratch(tape, bytes)}};
    memcpy(node.saved[0], dy, bytes);
    lsi_tape_record(tape, &node);
    return node.output;
}

/* grad: where those of parameters go. */
static void make_inputs(const numbers *n, lsi_tape *tape, ls_param params[MAX_INPUTS],
                        float *const grad[MAX_INPUTS], lsi_tensor *in[MAX_INPUTS]) {
    for (int k = 0; k < n->pair->n_inputs; k++) {
        int64_t dims[2];
        int n_dims = shape_of(n, k, dims);
        params[k] = (ls_param){"p", n->n_in[k], n->dtype, 0, n->stored[k], grad[k]};
        in[k] = k < n->pair->first_weight ? lsi_tape_input(tape, n->x[k], n_dims, dims, true)
                                          : lsi_tape_param(tape, &params[k], k, n_dims, dims);
    }
}

static void forget(lsi_tape *tape, lsi_tensor *result[2]) {
    for (int k = 0; k < 2; k++) {
        lsi_tape_drop(tape, result[k]);
        assert_null(result[k]->data);
    }
}

static found run(const numbers *n, way how, bool record) {
    found f = open_found(n);
    lsi_arena *arena;
    lsi_tape *tape;
    ls_param params[MAX_INPUTS];
    lsi_tensor *in[MAX_INPUTS] = {NULL}, *result[2] = {NULL, NULL};
    assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_reset(tape, record);
    lsi_tape_set_dtype(tape, n->dtype);
    lsi_tape_checkpoint(tape, 1);
    make_inputs(n, tape, params, f.dx, in);
    lsi_tape_unit_begin(tape, 1);
    result[1] = n->pair->run[how](tape, in, &result[0]);
    assert_ok(lsi_tape_status(tape));
    for (int k = 0; k < 2; k++)
        lsi_to_floats(result[k]->data, result[k]->dtype, n->n_out, f.made[k]);
    looking = &f;
    lsi_tensor *loss = look(tape, result, n->dy);
    forget(tape, result);
    lsi_tape_unit_end(tape, 1);
    if (record) assert_ok(lsi_tape_backward(tape, loss));
    for (int k = 0; record && k < n->pair->first_weight; k++)
        lsi_to_floats(in[k]->grad, lsi_grad_dtype(in[k]), n->n_in[k], f.dx[k]);
    lsi_tape_destroy(tape);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
    return f;
}

/* ---- comparison ---- */

static void assert_bits(const numbers *n, const char *what, int which, const float *got,
                        const float *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &expected[i], sizeof *got) != 0)
            fail_msg("%s, %d rows of %s on %d threads: %s %d, element %d: expected %a, found %a",
                     n->pair->name, (int)n->rows, ls_dtype_name(n->dtype), lsi_compute_threads(),
                     what, which, (int)i, (double)expected[i], (double)got[i]);
}

static void compare(const numbers *n, bool record) {
    found apart = run(n, APART, record), at_once = run(n, AT_ONCE, record);
    for (int k = 0; k < 2; k++) {
        assert_bits(n, "result", k, at_once.made[k], apart.made[k], n->n_out);
        if (!record) continue;
        assert_bits(n, "result made again", k, at_once.again[k], apart.made[k], n->n_out);
        assert_bits(n, "result made again apart", k, apart.again[k], apart.made[k], n->n_out);
    }
    for (int k = 0; record && k < n->pair->n_inputs; k++) {
        assert_false(isnan(apart.dx[k][n->n_in[k] - 1]));
        assert_bits(n, "gradient", k, at_once.dx[k], apart.dx[k], n->n_in[k]);
    }
    close_found(&apart), close_found(&at_once);
}

/* Rows around a block of products (product.c) and more than two of them. */
static void compare_all(ls_dtype dtype) {
    static const int64_t rows[] = {1, 511, 512, 513, 1100};
    enum { N_ROWS = sizeof rows / sizeof rows[0] };
    for (int at = 0; at < N_PAIRS * N_ROWS; at++) {
        numbers n = open_numbers(&pairs[at / N_ROWS], dtype, rows[at % N_ROWS]);
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            lsi_compute_set_threads(n_threads);
            compare(&n, true);
            compare(&n, false);
        }
        lsi_compute_set_threads(1);
        close_numbers(&n);
    }
}

static void pairs_have_the_bits_of_one_after_the_other(void **state) {
    (void)state;
    compare_all(LS_DTYPE_F32);
    compare_all(LS_DTYPE_BF16);
    lsi_product_widens(true);
    compare_all(LS_DTYPE_BF16);
    lsi_product_widens(false);
}

/* ---- without memory ---- */

/* The pair with `left` bytes in the arena, the rest of which is taken first. */
static ls_status run_in(const numbers *n, lsi_arena *arena, lsi_tape *tape, size_t left) {
    ls_param params[MAX_INPUTS];
    lsi_tensor *in[MAX_INPUTS] = {NULL}, *first = NULL;
    float *const no_grad[MAX_INPUTS] = {NULL};
    lsi_tape_reset(tape, true);
    make_inputs(n, tape, params, no_grad, in);
    size_t taken_bytes = ARENA_BYTES - lsi_arena_used_bytes(arena) - left;
    void *taken = lsi_arena_alloc(arena, taken_bytes);
    assert_non_null(taken);
    lsi_tensor *y = n->pair->run[AT_ONCE](tape, in, &first);
    ls_status status = lsi_tape_status(tape);
    assert_int_equal(status, y ? LS_OK : LS_ERR_MEMORY);
    assert_int_equal(first != NULL, y != NULL);
    lsi_tape_reset(tape, true);
    assert_int_equal(lsi_arena_used_bytes(arena), taken_bytes);
    lsi_arena_release(arena, taken);
    return status;
}

/* The arena is full at each point, one after the other, until the pair comes through. */
static void fill(const op_pair *pair, ls_dtype dtype) {
    enum { ENOUGH = 1 << 18, STEP = 64 };
    numbers n = open_numbers(pair, dtype, 3);
    lsi_arena *arena;
    lsi_tape *tape;
    assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_set_dtype(tape, dtype);
    size_t left = 0;
    while (run_in(&n, arena, tape, left) != LS_OK) {
        left += STEP;
        assert_in_range(left, 0, ENOUGH);
    }
    assert_true(left > 0);
    lsi_tape_destroy(tape);
    lsi_arena_destroy(arena);
    close_numbers(&n);
}

static void pairs_without_memory_leave_nothing(void **state) {
    (void)state;
    for (int p = 0; p < N_PAIRS; p++)
        for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
            lsi_compute_set_threads(n_threads);
            fill(&pairs[p], LS_DTYPE_F32);
            fill(&pairs[p], LS_DTYPE_BF16);
        }
    lsi_compute_set_threads(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_have_the_bits_of_one_after_the_other),
        cmocka_unit_test(pairs_without_memory_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
