/* Every op against its plain twin, and the twins against finite differences.
 *
 * `kinds` has one row per op (how to call it and its twin), `cases` one row per shape. A new op
 * gets a row in the first and some in the second table and is then held to all of this:
 *   - values and gradients equal the twin's within the bound of its row;
 *   - a parameter's gradient is overwritten, or added to when asked;
 *   - bits do not depend on the number of threads;
 *   - the twin's gradient equals the central difference of its value. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "harness/harness.h"
#include "tensor/gemm.h"
#include "tensor/op.h"
#include "tensor/reference/reference.h"

enum { N_INPUTS = 3, ARENA_BYTES = 1 << 28 };

/* What the letters mean is the kind's business: rows and columns, or B, T, C, V and H. */
typedef struct op_case {
    const struct op_kind *kind;
    int64_t b, t, c, n;
    float p;
} op_case;

typedef struct shape {
    int n_dims;
    int64_t dims[LSI_MAX_DIMS];
} shape;

typedef struct op_kind {
    const char *name;
    int n_inputs;
    double bound; /* error allowed, relative to the largest element of an array (at least 1) */
    void (*shapes)(const op_case *c, shape in[N_INPUTS]);
    int64_t (*n_outputs)(const op_case *c);
    lsi_tensor *(*run)(lsi_tape *tape, lsi_tensor **in, const op_case *c);
    void (*forward)(const op_case *c, double **in, double *y);
    void (*backward)(const op_case *c, double **in, const double *dy, double **din);
} op_kind;

/* ---- memory and numbers ---- */

static void *grab(int64_t n, size_t bytes) {
    void *ptr = calloc((size_t)n + 1, bytes);
    assert_non_null(ptr);
    return ptr;
}

/* In [-1, 1), a function of (which, i). */
static float draw(uint32_t which, int64_t i) {
    lsi_rng_stream stream = lsi_rng_open(11, LSI_RNG_TEST, which, 0);
    return 2.0f * lsi_rng_uniform(&stream, (uint64_t)i) - 1.0f;
}

static int64_t count_of(const shape *s) {
    int64_t count = 1;
    for (int i = 0; i < s->n_dims; i++) count *= s->dims[i];
    return count;
}

static int32_t *make_ids(int64_t n, int64_t n_tokens) {
    int32_t *ids = grab(n, sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 7 + i * i) % n_tokens);
    return ids;
}

/* Every fifth row has no target. */
static int32_t *make_targets(int64_t rows, int64_t columns) {
    int32_t *targets = grab(rows, sizeof *targets);
    for (int64_t i = 0; i < rows; i++) targets[i] = i % 5 == 4 ? -1 : (int32_t)(i * 11 % columns);
    return targets;
}

static const uint64_t seed = 5;

/* The stream that the first dropout of a pass takes. */
static lsi_rng_stream first_stream(void) {
    lsi_arena *arena;
    lsi_tape *tape;
    assert_ok(lsi_arena_create(4096, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_seed(tape, seed, 1, 2);
    lsi_rng_stream stream = lsi_tape_next_stream(tape);
    lsi_tape_destroy(tape);
    lsi_arena_destroy(arena);
    return stream;
}

/* ---- embedding: b x t ids, c columns, n tokens, t + 2 positions; p = 1: no position table ---- */

static void embedding_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){2, {c->n, c->c}};
    in[1] = (shape){2, {c->t + 2, c->c}};
}
static int64_t embedding_outputs(const op_case *c) {
    return c->b * c->t * c->c;
}
static lsi_tensor *embedding_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    int32_t *ids = make_ids(c->b * c->t, c->n);
    lsi_tensor *y = lsi_op_embedding(tape, ids, c->b, c->t, in[0], in[1]);
    free(ids);
    return y;
}
static void embedding_forward(const op_case *c, double **in, double *y) {
    int32_t *ids = make_ids(c->b * c->t, c->n);
    lsi_ref_embedding(&(lsi_ref_lookup){ids, c->b, c->t, c->n, c->t + 2, c->c}, in[0], in[1], y);
    free(ids);
}
static void embedding_backward(const op_case *c, double **in, const double *dy, double **din) {
    (void)in;
    int32_t *ids = make_ids(c->b * c->t, c->n);
    lsi_ref_lookup look = {ids, c->b, c->t, c->n, c->t + 2, c->c};
    lsi_ref_embedding_backward(&look, dy, din[0], din[1]);
    free(ids);
}

/* ---- tokens alone: no position table ---- */

static lsi_tensor *tokens_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return embedding_run(tape, (lsi_tensor *[]){in[0], NULL}, c);
}
static void tokens_forward(const op_case *c, double **in, double *y) {
    embedding_forward(c, (double *[]){in[0], NULL}, y);
}
static void tokens_backward(const op_case *c, double **in, const double *dy, double **din) {
    embedding_backward(c, in, dy, (double *[]){din[0], NULL});
}

/* ---- layer_norm: b rows of c ---- */

static void layer_norm_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){2, {c->b, c->c}};
    in[1] = in[2] = (shape){1, {c->c}};
}
static int64_t rows_outputs(const op_case *c) {
    return c->b * c->c;
}
static lsi_tensor *layer_norm_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_layer_norm(tape, in[0], in[1], in[2], 1e-5f);
}
static void layer_norm_forward(const op_case *c, double **in, double *y) {
    lsi_ref_layer_norm(&(lsi_ref_norm){c->b, c->c, 1e-5}, in[0], in[1], in[2], y);
}
static void layer_norm_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_norm norm = {c->b, c->c, 1e-5};
    lsi_ref_layer_norm_backward(&norm, in[0], in[1], dy, din[0], din[1], din[2]);
}

/* ---- linear: b x t rows of c, n outputs ---- */

static void linear_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){3, {c->b, c->t, c->c}};
    in[1] = (shape){2, {c->c, c->n}};
    in[2] = (shape){1, {c->n}};
}
static int64_t linear_outputs(const op_case *c) {
    return c->b * c->t * c->n;
}
static lsi_tensor *linear_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return lsi_op_linear(tape, in[0], in[1], c->kind->n_inputs == 3 ? in[2] : NULL);
}
static void linear_forward(const op_case *c, double **in, double *y) {
    lsi_ref_product product = {c->b * c->t, c->c, c->n, false};
    lsi_ref_linear(&product, in[0], in[1], c->kind->n_inputs == 3 ? in[2] : NULL, y);
}
static void linear_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_product product = {c->b * c->t, c->c, c->n, false};
    lsi_ref_linear_backward(&product, in[0], in[1], dy, din[0], din[1],
                            c->kind->n_inputs == 3 ? din[2] : NULL);
}
static void transposed_shapes(const op_case *c, shape in[N_INPUTS]) {
    linear_shapes(c, in);
    in[1] = (shape){2, {c->n, c->c}};
}
static lsi_tensor *transposed_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_linear_transposed(tape, in[0], in[1]);
}
static void transposed_forward(const op_case *c, double **in, double *y) {
    lsi_ref_linear(&(lsi_ref_product){c->b * c->t, c->c, c->n, true}, in[0], in[1], NULL, y);
}
static void transposed_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_product product = {c->b * c->t, c->c, c->n, true};
    lsi_ref_linear_backward(&product, in[0], in[1], dy, din[0], din[1], NULL);
}

/* ---- attention: b sequences of t, c channels, n heads, dropout p ---- */

static void attention_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){3, {c->b, c->t, 3 * c->c}};
}
static int64_t attention_outputs(const op_case *c) {
    return c->b * c->t * c->c;
}
static lsi_tensor *attention_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return lsi_op_attention(tape, in[0], (int)c->n, c->p);
}
static void attention_forward(const op_case *c, double **in, double *y) {
    lsi_ref_heads heads = {c->b, c->t, c->c, c->n, c->p, first_stream()};
    lsi_ref_attention(&heads, in[0], y);
}
static void attention_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_heads heads = {c->b, c->t, c->c, c->n, c->p, first_stream()};
    lsi_ref_attention_backward(&heads, in[0], dy, din[0]);
}

/* ---- gelu, add, dropout: b rows of c, dropout p ---- */

static void rows_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = in[1] = (shape){2, {c->b, c->c}};
}
static lsi_tensor *gelu_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_gelu(tape, in[0]);
}
static void gelu_forward(const op_case *c, double **in, double *y) {
    lsi_ref_gelu(c->b * c->c, in[0], y);
}
static void gelu_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_gelu_backward(c->b * c->c, in[0], dy, din[0]);
}
static lsi_tensor *add_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_add(tape, in[0], in[1]);
}
static void add_forward(const op_case *c, double **in, double *y) {
    lsi_ref_add(c->b * c->c, in[0], in[1], y);
}
static void add_backward(const op_case *c, double **in, const double *dy, double **din) {
    (void)in;
    lsi_ref_add_backward(c->b * c->c, dy, din[0], din[1]);
}
static lsi_tensor *dropout_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return lsi_op_dropout(tape, in[0], c->p);
}
static void dropout_forward(const op_case *c, double **in, double *y) {
    lsi_rng_stream stream = first_stream();
    lsi_ref_dropout(c->b * c->c, &stream, c->p, in[0], y);
}
static void dropout_backward(const op_case *c, double **in, const double *dy, double **din) {
    (void)in;
    lsi_rng_stream stream = first_stream();
    lsi_ref_dropout_backward(c->b * c->c, &stream, c->p, dy, din[0]);
}

/* ---- cross_entropy: b rows of c logits ---- */

static int64_t one_output(const op_case *c) {
    (void)c;
    return 1;
}
static lsi_tensor *entropy_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    int32_t *targets = make_targets(c->b, c->c);
    lsi_tensor *loss = lsi_op_cross_entropy(tape, in[0], targets);
    free(targets);
    return loss;
}
static void entropy_forward(const op_case *c, double **in, double *y) {
    int32_t *targets = make_targets(c->b, c->c);
    y[0] = lsi_ref_cross_entropy(c->b, c->c, in[0], targets);
    free(targets);
}
static void entropy_backward(const op_case *c, double **in, const double *dy, double **din) {
    int32_t *targets = make_targets(c->b, c->c);
    lsi_ref_cross_entropy_backward(c->b, c->c, in[0], targets, dy[0], din[0]);
    free(targets);
}

/* ---- tables ---- */

#define KIND(name, n_inputs, bound, shapes, outputs)                                               \
    static const op_kind name##_kind = {#name,   n_inputs,   bound,          shapes##_shapes,      \
                                        outputs, name##_run, name##_forward, name##_backward}
KIND(embedding, 2, 1e-6, embedding, embedding_outputs);
KIND(tokens, 1, 1e-6, embedding, embedding_outputs);
KIND(layer_norm, 3, 2e-5, layer_norm, rows_outputs);
KIND(linear, 3, 2e-6, linear, linear_outputs);
static const op_kind product_kind = {
    "linear without bias", 2,          2e-6,           linear_shapes,
    linear_outputs,        linear_run, linear_forward, linear_backward};
KIND(transposed, 2, 2e-6, transposed, linear_outputs);
KIND(attention, 1, 4e-6, attention, attention_outputs);
KIND(gelu, 1, 1e-6, rows, rows_outputs);
KIND(add, 2, 1e-7, rows, rows_outputs);
KIND(dropout, 1, 2e-7, rows, rows_outputs);
KIND(entropy, 1, 1e-6, rows, one_output);

static const op_case cases[] = {
    /* kind            b    t    c    n   p */
    {&embedding_kind, 1, 1, 1, 1, 0},
    {&embedding_kind, 2, 3, 5, 7, 0},
    {&embedding_kind, 3, 17, 33, 11, 0},
    {&embedding_kind, 4, 64, 130, 50, 0},
    {&tokens_kind, 2, 3, 5, 7, 0},
    {&layer_norm_kind, 1, 0, 1, 0, 0},
    {&layer_norm_kind, 3, 0, 5, 0, 0},
    {&layer_norm_kind, 7, 0, 16, 0, 0},
    {&layer_norm_kind, 5, 0, 97, 0, 0},
    {&layer_norm_kind, 130, 0, 33, 0, 0},
    {&layer_norm_kind, 301, 0, 515, 0, 0},
    {&linear_kind, 1, 1, 1, 1, 0},
    {&linear_kind, 1, 3, 5, 7, 0},
    {&linear_kind, 2, 65, 17, 33, 0},
    {&linear_kind, 3, 100, 40, 300, 0},
    {&product_kind, 2, 3, 5, 1, 0},
    {&product_kind, 2, 7, 16, 9, 0},
    {&transposed_kind, 1, 1, 1, 1, 0},
    {&transposed_kind, 2, 3, 5, 7, 0},
    {&transposed_kind, 2, 33, 31, 65, 0},
    {&attention_kind, 1, 1, 1, 1, 0},
    {&attention_kind, 2, 3, 4, 1, 0},
    {&attention_kind, 2, 5, 6, 3, 0},
    {&attention_kind, 2, 5, 6, 3, 0.3f},
    {&attention_kind, 1, 64, 4, 2, 0},
    {&attention_kind, 1, 65, 8, 2, 0},
    {&attention_kind, 1, 70, 4, 1, 0.5f},
    {&attention_kind, 2, 130, 12, 3, 0},
    {&attention_kind, 2, 129, 12, 3, 0.1f},
    {&gelu_kind, 1, 0, 1, 0, 0},
    {&gelu_kind, 3, 0, 7, 0, 0},
    {&gelu_kind, 100, 0, 331, 0, 0},
    {&add_kind, 1, 0, 1, 0, 0},
    {&add_kind, 3, 0, 7, 0, 0},
    {&add_kind, 100, 0, 331, 0, 0},
    {&dropout_kind, 1, 0, 1, 0, 0.5f},
    {&dropout_kind, 3, 0, 67, 0, 0.1f},
    {&dropout_kind, 100, 0, 331, 0, 0.9f},
    {&entropy_kind, 1, 0, 1, 0, 0},
    {&entropy_kind, 6, 0, 7, 0, 0},
    {&entropy_kind, 11, 0, 33, 0, 0},
    {&entropy_kind, 100, 0, 1001, 0, 0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* ---- the data of a case ---- */

typedef struct fixture {
    const op_case *c;
    shape in[N_INPUTS];
    int64_t n_in[N_INPUTS], n_out;
    float *x[N_INPUTS], *weight; /* the loss is sum of weight[i] y[i], so dy = weight */
    double *exact_x[N_INPUTS], *exact_dy, *exact_y, *exact_dx[N_INPUTS];
    float *y, *dx[N_INPUTS]; /* found */
} fixture;

static fixture open_fixture(const op_case *c) {
    fixture f = {.c = c, .n_out = c->kind->n_outputs(c)};
    c->kind->shapes(c, f.in);
    f.weight = grab(f.n_out, sizeof(float));
    f.y = grab(f.n_out, sizeof(float));
    f.exact_dy = grab(f.n_out, sizeof(double));
    f.exact_y = grab(f.n_out, sizeof(double));
    for (int64_t i = 0; i < f.n_out; i++) f.exact_dy[i] = f.weight[i] = draw(90, i);
    for (int k = 0; k < c->kind->n_inputs; k++) {
        f.n_in[k] = count_of(&f.in[k]);
        f.x[k] = grab(f.n_in[k], sizeof(float));
        f.dx[k] = grab(f.n_in[k], sizeof(float));
        f.exact_x[k] = grab(f.n_in[k], sizeof(double));
        f.exact_dx[k] = grab(f.n_in[k], sizeof(double));
        for (int64_t i = 0; i < f.n_in[k]; i++)
            f.exact_x[k][i] = f.x[k][i] = 2.0f * draw((uint32_t)k, i);
    }
    return f;
}

static void close_fixture(fixture *f) {
    free(f->weight), free(f->y), free(f->exact_dy), free(f->exact_y);
    for (int k = 0; k < N_INPUTS; k++)
        free(f->x[k]), free(f->dx[k]), free(f->exact_x[k]), free(f->exact_dx[k]);
}

static void name_case(const op_case *c) {
    print_error("case: %s b=%d t=%d c=%d n=%d p=%g\n", c->kind->name, (int)c->b, (int)c->t,
                (int)c->c, (int)c->n, (double)c->p);
}

/* ---- a weighted sum as the loss, which is an op like any other ---- */

static ls_status weigh_backward(lsi_tape *tape, lsi_node *node) {
    bool first;
    float *grad = lsi_grad(tape, node->input[0], &first);
    if (!grad) return lsi_tape_status(tape);
    const float *weight = node->saved[0];
    for (int64_t i = 0; i < lsi_tensor_count(node->input[0]); i++)
        grad[i] = first ? weight[i] : grad[i] + weight[i];
    return LS_OK;
}

static lsi_tensor *weigh(lsi_tape *tape, lsi_tensor *y, const float *weight) {
    if (!y) return NULL;
    size_t bytes = (size_t)lsi_tensor_count(y) * sizeof *weight;
    lsi_tensor *loss = lsi_tape_activation(tape, 1, (int64_t[]){1});
    lsi_node node = {.backward = weigh_backward, .name = "weigh", .input = {y}, .output = loss};
    node.saved[0] = lsi_tape_scratch(tape, bytes);
    memcpy(node.saved[0], weight, bytes);
    lsi_tape_record(tape, &node);
    return loss;
}

/* ---- running a case on a tape ---- */

typedef enum mode { AS_INPUTS, AS_PARAMS, AS_PARAMS_ADDING, N_MODES } mode;

static const float before = 0.5f; /* what AS_PARAMS_ADDING finds in the gradient */

static void run_case(fixture *f, mode how) {
    lsi_arena *arena;
    lsi_tape *tape;
    assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_seed(tape, seed, 1, 2);
    lsi_tape_accumulate(tape, how == AS_PARAMS_ADDING);
    ls_param params[N_INPUTS];
    lsi_tensor *in[N_INPUTS] = {NULL};
    int n_inputs = f->c->kind->n_inputs;
    for (int k = 0; k < n_inputs; k++) {
        params[k] = (ls_param){"p", f->n_in[k], LS_DTYPE_F32, 0, f->x[k], f->dx[k]};
        for (int64_t i = 0; i < f->n_in[k]; i++)
            f->dx[k][i] = how == AS_PARAMS_ADDING ? before : NAN;
        in[k] = how == AS_INPUTS
                    ? lsi_tape_input(tape, f->x[k], f->in[k].n_dims, f->in[k].dims, true)
                    : lsi_tape_param(tape, &params[k], k, f->in[k].n_dims, f->in[k].dims);
    }
    lsi_tensor *y = f->c->kind->run(tape, in, f->c);
    assert_ok(lsi_tape_status(tape));
    assert_int_equal(lsi_tensor_count(y), f->n_out);
    memcpy(f->y, y->data, (size_t)f->n_out * sizeof(float));
    assert_ok(lsi_tape_backward(tape, weigh(tape, y, f->weight)));
    for (int k = 0; how == AS_INPUTS && k < n_inputs; k++)
        memcpy(f->dx[k], in[k]->grad, (size_t)f->n_in[k] * sizeof(float));
    lsi_tape_destroy(tape);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
}

/* ---- comparison ---- */

static void assert_near(const op_case *c, const char *what, int which, const float *found,
                        const double *expected, int64_t n, double offset) {
    double largest = 1.0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(expected[i] + offset));
    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)found[i] - expected[i] - offset);
        if (error <= c->kind->bound * largest) continue; /* false for NaN */
        name_case(c);
        fail_msg("%s %d, element %lld: expected %.9g, found %.9g (largest %.3g)", what, which,
                 (long long)i, expected[i] + offset, (double)found[i], largest);
    }
}

static void ops_equal_their_twins(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        fixture f = open_fixture(&cases[i]);
        const op_kind *kind = cases[i].kind;
        kind->forward(&cases[i], f.exact_x, f.exact_y);
        kind->backward(&cases[i], f.exact_x, f.exact_dy, f.exact_dx);
        for (mode how = 0; how < N_MODES; how++) {
            run_case(&f, how);
            assert_near(&cases[i], "value", 0, f.y, f.exact_y, f.n_out, 0.0);
            double offset = how == AS_PARAMS_ADDING ? (double)before : 0.0;
            for (int k = 0; k < kind->n_inputs; k++)
                assert_near(&cases[i], "gradient of input", k, f.dx[k], f.exact_dx[k], f.n_in[k],
                            offset);
        }
        close_fixture(&f);
    }
}

/* Products of a library may differ between numbers of threads; all that is ours may not. */
static bool is_ours(const op_kind *kind) {
    return kind != &linear_kind && kind != &product_kind && kind != &transposed_kind;
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        if (!is_ours(cases[i].kind)) continue;
        fixture one = open_fixture(&cases[i]), two = open_fixture(&cases[i]);
        run_case(&one, AS_PARAMS);
        lsi_compute_set_threads(2);
        run_case(&two, AS_PARAMS);
        lsi_compute_set_threads(1);
        assert_memory_equal(one.y, two.y, (size_t)one.n_out * sizeof(float));
        for (int k = 0; k < cases[i].kind->n_inputs; k++)
            assert_memory_equal(one.dx[k], two.dx[k], (size_t)one.n_in[k] * sizeof(float));
        close_fixture(&one);
        close_fixture(&two);
    }
}

static double exact_loss(fixture *f) {
    f->c->kind->forward(f->c, f->exact_x, f->exact_y);
    double loss = 0.0;
    for (int64_t i = 0; i < f->n_out; i++) loss += f->exact_dy[i] * f->exact_y[i];
    return loss;
}

static void assert_gradient(fixture *f, int k, int64_t i) {
    const double h = 1e-5;
    double kept = f->exact_x[k][i];
    f->exact_x[k][i] = kept + h;
    double above = exact_loss(f);
    f->exact_x[k][i] = kept - h;
    double below = exact_loss(f);
    f->exact_x[k][i] = kept;
    double expected = (above - below) / (2.0 * h), found = f->exact_dx[k][i];
    if (fabs(found - expected) <= 1e-7 * (1.0 + fabs(expected))) return;
    name_case(f->c);
    fail_msg("input %d, element %lld: difference %.12g, gradient %.12g", k, (long long)i, expected,
             found);
}

/* Layer norm of one or two columns is flat or a step, so differences say nothing there. */
static bool is_small_and_smooth(const fixture *f) {
    int64_t total = f->n_in[0] + f->n_in[1] + f->n_in[2];
    return total <= 400 && !(f->c->kind == &layer_norm_kind && f->c->c < 3);
}

static void twins_equal_finite_differences(void **state) {
    (void)state;
    int n_checked = 0;
    for (int c = 0; c < N_CASES; c++) {
        fixture f = open_fixture(&cases[c]);
        if (is_small_and_smooth(&f)) {
            n_checked++;
            f.c->kind->backward(f.c, f.exact_x, f.exact_dy, f.exact_dx);
            for (int k = 0; k < f.c->kind->n_inputs; k++) {
                for (int64_t i = 0; i < f.n_in[k]; i++) assert_gradient(&f, k, i);
            }
        }
        close_fixture(&f);
    }
    assert_true(n_checked > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_equal_their_twins),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(twins_equal_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
