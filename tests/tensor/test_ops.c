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

#include "harness/harness.h"
#include "tensor/gemm.h"
#include "tensor/op.h"
#include "tensor/reference/reference.h"
#include "tensor/rows.h"

enum { N_INPUTS = 4, ARENA_BYTES = 1 << 28 };

/* What the letters mean is the kind's business: rows and columns, or B, T, C, V and H. */
typedef struct op_case {
    const struct op_kind *kind;
    int64_t b, t, c, n;
    float p;
    int64_t k, s;
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

/* ---- rms_norm: b rows of c ---- */

static lsi_tensor *rms_norm_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_rms_norm(tape, in[0], in[1], 1e-5f);
}
static void rms_norm_forward(const op_case *c, double **in, double *y) {
    lsi_ref_rms_norm(&(lsi_ref_norm){c->b, c->c, 1e-5}, in[0], in[1], y);
}
static void rms_norm_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_norm norm = {c->b, c->c, 1e-5};
    lsi_ref_rms_norm_backward(&norm, in[0], in[1], dy, din[0], din[1]);
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
    return lsi_op_linear_transposed(tape, in[0], in[1], NULL);
}
static void transposed_forward(const op_case *c, double **in, double *y) {
    lsi_ref_linear(&(lsi_ref_product){c->b * c->t, c->c, c->n, true}, in[0], in[1], NULL, y);
}
static void transposed_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_product product = {c->b * c->t, c->c, c->n, true};
    lsi_ref_linear_backward(&product, in[0], in[1], dy, din[0], din[1], NULL);
}

/* ---- logits: b x t rows of c, n outputs ---- */

static lsi_tensor *logits_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_logits(tape, in[0], in[1], in[2]);
}
static void logits_forward(const op_case *c, double **in, double *y) {
    lsi_ref_linear(&(lsi_ref_product){c->b * c->t, c->c, c->n, true}, in[0], in[1], in[2], y);
}
static void logits_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_product product = {c->b * c->t, c->c, c->n, true};
    lsi_ref_linear_backward(&product, in[0], in[1], dy, din[0], din[1], din[2]);
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

/* ---- grouped: b sequences of t, n heads and half as many of keys (1 for odd n), c channels ----
 *
 * The twin is that of attention, with every head of keys and values written out for each head that
 * looks at it, and its gradient added up over them. */

static int64_t groups_of(const op_case *c) {
    return c->n % 2 == 0 ? c->n / 2 : 1;
}
static int64_t key_columns(const op_case *c) {
    return c->c / c->n * groups_of(c);
}
static void grouped_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){3, {c->b, c->t, c->c}};
    in[1] = in[2] = (shape){3, {c->b, c->t, key_columns(c)}};
}
static lsi_tensor *grouped_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return lsi_op_attention_grouped(tape, in[0], in[1], in[2], (int)c->n, (int)groups_of(c), c->p);
}
/* Calls with every element of qkv and the one of q, k or v that it is. */
static void for_fused(const op_case *c, double **parts, double *qkv,
                      void (*each)(double *part, double *fused)) {
    int64_t size = c->c / c->n, sharing = c->n / groups_of(c);
    for (int64_t row = 0; row < c->b * c->t; row++) {
        for (int64_t i = 0; i < c->c; i++) {
            int64_t shared = i / size / sharing * size + i % size;
            each(&parts[0][row * c->c + i], &qkv[row * 3 * c->c + i]);
            for (int k = 1; k < 3; k++)
                each(&parts[k][row * key_columns(c) + shared], &qkv[(row * 3 + k) * c->c + i]);
        }
    }
}
static void write_out(double *part, double *fused) {
    *fused = *part;
}
static void add_up(double *part, double *fused) {
    *part += *fused;
}
static void grouped_forward(const op_case *c, double **in, double *y) {
    double *qkv = grab(3 * c->b * c->t * c->c, sizeof *qkv);
    for_fused(c, in, qkv, write_out);
    attention_forward(c, &qkv, y);
    free(qkv);
}
static void grouped_backward(const op_case *c, double **in, const double *dy, double **din) {
    double *qkv = grab(3 * c->b * c->t * c->c, sizeof *qkv);
    double *dqkv = grab(3 * c->b * c->t * c->c, sizeof *dqkv);
    for_fused(c, in, qkv, write_out);
    attention_backward(c, &qkv, dy, &dqkv);
    shape shapes[N_INPUTS];
    grouped_shapes(c, shapes);
    for (int k = 0; k < 3; k++) memset(din[k], 0, (size_t)count_of(&shapes[k]) * sizeof(double));
    for_fused(c, din, dqkv, add_up);
    free(dqkv);
    free(qkv);
}

/* ---- rope: b sequences of t, n heads, c channels ---- */

static const double theta = 10000.0;

static void rope_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){3, {c->b, c->t, c->c}};
}
static lsi_tensor *rope_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return lsi_op_rope(tape, in[0], lsi_op_rope_table(tape, c->t, c->c / c->n, theta));
}
static void rope_forward(const op_case *c, double **in, double *y) {
    lsi_ref_rope_forward(&(lsi_ref_rope){c->b, c->t, c->n, c->c / c->n, theta}, in[0], y);
}
static void rope_backward(const op_case *c, double **in, const double *dy, double **din) {
    (void)in;
    lsi_ref_rope rope = {c->b, c->t, c->n, c->c / c->n, theta};
    lsi_ref_rope_backward(&rope, dy, din[0]);
}

/* ---- silu_mul: b rows of c ---- */

static lsi_tensor *silu_mul_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_silu_mul(tape, in[0], in[1]);
}
static void silu_mul_forward(const op_case *c, double **in, double *y) {
    lsi_ref_silu_mul(c->b * c->c, in[0], in[1], y);
}
static void silu_mul_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_silu_mul_backward(c->b * c->c, in[0], in[1], dy, din[0], din[1]);
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

/* ---- relu: b rows of c ---- */

static lsi_tensor *relu_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_relu(tape, in[0]);
}
static void relu_forward(const op_case *c, double **in, double *y) {
    lsi_ref_relu(c->b * c->c, in[0], y);
}
static void relu_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_relu_backward(c->b * c->c, in[0], dy, din[0]);
}

/* ---- conv: b images of t x (t + 1) pixels and c channels, n filters of k x k, step s ---- */

static lsi_ref_conv conv_of(const op_case *c) {
    return (lsi_ref_conv){c->b, c->t, c->t + 1, c->c, c->k, c->s, c->n};
}
static void conv_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){4, {c->b, c->t, c->t + 1, c->c}};
    in[1] = (shape){4, {c->n, c->k, c->k, c->c}};
}
static int64_t conv_outputs(const op_case *c) {
    return c->b * ((c->t - 1) / c->s + 1) * (c->t / c->s + 1) * c->n;
}
static lsi_tensor *conv_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    return lsi_op_conv2d(tape, in[0], in[1], c->s);
}
static void conv_forward(const op_case *c, double **in, double *y) {
    lsi_ref_conv conv = conv_of(c);
    lsi_ref_conv2d(&conv, in[0], in[1], y);
}
static void conv_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_conv conv = conv_of(c);
    lsi_ref_conv2d_backward(&conv, in[0], in[1], dy, din[0], din[1]);
}

/* ---- batch_norm, with statistics of the batch and given ones: b rows of c ---- */

static lsi_tensor *batch_norm_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_batch_norm(tape, in[0], in[1], in[2], 1e-5f, NULL);
}
static void batch_norm_forward(const op_case *c, double **in, double *y) {
    lsi_ref_batch_norm(&(lsi_ref_norm){c->b, c->c, 1e-5}, in[0], in[1], in[2], y);
}
static void batch_norm_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_norm norm = {c->b, c->c, 1e-5};
    lsi_ref_batch_norm_backward(&norm, in[0], in[1], dy, din[0], din[1], din[2]);
}

/* Means 0 … 1, variances 0.5 … 1.5. */
typedef struct given {
    float mean[600], variance[600];
    double exact_mean[600], exact_variance[600];
} given;

static const given *given_stats(void) {
    static given g;
    for (int i = 0; i < 600; i++) {
        g.exact_mean[i] = g.mean[i] = 0.5f + 0.5f * draw(91, i);
        g.exact_variance[i] = g.variance[i] = 1.0f + 0.5f * draw(92, i);
    }
    return &g;
}
static lsi_tensor *fixed_norm_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    const given *g = given_stats();
    return lsi_op_batch_norm_fixed(tape, in[0], in[1], in[2], 1e-5f, g->mean, g->variance);
}
static void fixed_norm_forward(const op_case *c, double **in, double *y) {
    lsi_ref_norm norm = {c->b, c->c, 1e-5};
    const given *g = given_stats();
    lsi_ref_batch_norm_fixed(&norm, g->exact_mean, g->exact_variance, in[0], in[1], in[2], y);
}
static void fixed_norm_backward(const op_case *c, double **in, const double *dy, double **din) {
    lsi_ref_norm norm = {c->b, c->c, 1e-5};
    const given *g = given_stats();
    lsi_ref_batch_norm_fixed_backward(&norm, g->exact_mean, g->exact_variance, in[0], in[1], dy,
                                      din[0], din[1], din[2]);
}

/* ---- pool: b images of t x (t + 1) pixels, c channels ---- */

static void pool_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){4, {c->b, c->t, c->t + 1, c->c}};
}
static int64_t pool_outputs(const op_case *c) {
    return c->b * c->c;
}
static lsi_tensor *pool_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    return lsi_op_average_pool(tape, in[0]);
}
static void pool_forward(const op_case *c, double **in, double *y) {
    lsi_ref_average_pool(c->b, c->t * (c->t + 1), c->c, in[0], y);
}
static void pool_backward(const op_case *c, double **in, const double *dy, double **din) {
    (void)in;
    lsi_ref_average_pool_backward(c->b, c->t * (c->t + 1), c->c, dy, din[0]);
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

/* ---- head_loss: b rows of c, n words; it is the loss, so its gradient is 1 ---- */

static void head_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = (shape){2, {c->b, c->c}};
    in[1] = (shape){2, {c->n, c->c}};
}
static lsi_tensor *head_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    int32_t *targets = make_targets(c->b, c->n);
    lsi_tensor *loss = lsi_op_head_loss(tape, in[0], in[1], targets);
    free(targets);
    return loss;
}
static double *head_logits(const op_case *c, double **in) {
    double *logits = grab(c->b * c->n, sizeof *logits);
    for (int64_t i = 0; i < c->b * c->n; i++)
        for (int64_t k = 0; k < c->c; k++)
            logits[i] += in[0][i / c->n * c->c + k] * in[1][i % c->n * c->c + k];
    return logits;
}
static void head_forward(const op_case *c, double **in, double *y) {
    int32_t *targets = make_targets(c->b, c->n);
    double *logits = head_logits(c, in);
    y[0] = lsi_ref_cross_entropy(c->b, c->n, logits, targets);
    free(logits), free(targets);
}
static void head_backward(const op_case *c, double **in, const double *dy, double **din) {
    int32_t *targets = make_targets(c->b, c->n);
    double *logits = head_logits(c, in), *grad = grab(c->b * c->n, sizeof *grad);
    lsi_ref_cross_entropy_backward(c->b, c->n, logits, targets, dy[0], grad);
    memset(din[0], 0, (size_t)(c->b * c->c) * sizeof(double));
    memset(din[1], 0, (size_t)(c->n * c->c) * sizeof(double));
    for (int64_t i = 0; i < c->b * c->n; i++)
        for (int64_t k = 0; k < c->c; k++) {
            din[0][i / c->n * c->c + k] += grad[i] * in[1][i % c->n * c->c + k];
            din[1][i % c->n * c->c + k] += grad[i] * in[0][i / c->n * c->c + k];
        }
    free(grad), free(logits), free(targets);
}

/* ---- pairs of ops in one pass; the first result is dropped as in models ---- */

static lsi_tensor *linear_gelu_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    lsi_tensor *product = NULL;
    lsi_tensor *y = lsi_op_linear_gelu(tape, in[0], in[1], in[2], &product);
    lsi_tape_drop(tape, product);
    return y;
}
static void linear_gelu_forward(const op_case *c, double **in, double *y) {
    linear_forward(c, in, y);
    lsi_ref_gelu(linear_outputs(c), y, y);
}
static void linear_gelu_backward(const op_case *c, double **in, const double *dy, double **din) {
    int64_t n = linear_outputs(c);
    double *product = grab(n, sizeof *product), *dproduct = grab(n, sizeof *dproduct);
    linear_forward(c, in, product);
    lsi_ref_gelu_backward(n, product, dy, dproduct);
    linear_backward(c, in, dproduct, din);
    free(product), free(dproduct);
}
static void add_norm_shapes(const op_case *c, shape in[N_INPUTS]) {
    in[0] = in[1] = (shape){2, {c->b, c->c}};
    in[2] = in[3] = (shape){1, {c->c}};
}
static lsi_tensor *add_layer_norm_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    lsi_tensor *sum = NULL;
    lsi_tensor *y = lsi_op_add_layer_norm(tape, in[0], in[1], in[2], in[3], 1e-5f, &sum);
    lsi_tape_drop(tape, sum);
    return y;
}
static lsi_tensor *add_rms_norm_run(lsi_tape *tape, lsi_tensor **in, const op_case *c) {
    (void)c;
    lsi_tensor *sum = NULL;
    lsi_tensor *y = lsi_op_add_rms_norm(tape, in[0], in[1], in[2], 1e-5f, &sum);
    lsi_tape_drop(tape, sum);
    return y;
}
static double *exact_sum(const op_case *c, double **in) {
    double *sum = grab(rows_outputs(c), sizeof *sum);
    lsi_ref_add(rows_outputs(c), in[0], in[1], sum);
    return sum;
}
static void add_layer_norm_forward(const op_case *c, double **in, double *y) {
    double *sum = exact_sum(c, in);
    layer_norm_forward(c, (double *[]){sum, in[2], in[3]}, y);
    free(sum);
}
static void add_rms_norm_forward(const op_case *c, double **in, double *y) {
    double *sum = exact_sum(c, in);
    rms_norm_forward(c, (double *[]){sum, in[2]}, y);
    free(sum);
}
static void add_layer_norm_backward(const op_case *c, double **in, const double *dy, double **din) {
    double *sum = exact_sum(c, in), *dsum = grab(rows_outputs(c), sizeof *dsum);
    layer_norm_backward(c, (double *[]){sum, in[2], in[3]}, dy, (double *[]){dsum, din[2], din[3]});
    lsi_ref_add_backward(rows_outputs(c), dsum, din[0], din[1]);
    free(sum), free(dsum);
}
static void add_rms_norm_backward(const op_case *c, double **in, const double *dy, double **din) {
    double *sum = exact_sum(c, in), *dsum = grab(rows_outputs(c), sizeof *dsum);
    rms_norm_backward(c, (double *[]){sum, in[2]}, dy, (double *[]){dsum, din[2]});
    lsi_ref_add_backward(rows_outputs(c), dsum, din[0], din[1]);
    free(sum), free(dsum);
}

/* ---- tables ---- */

#define KIND(name, n_inputs, bound, shapes, outputs)                                               \
    static const op_kind name##_kind = {#name,   n_inputs,   bound,          shapes##_shapes,      \
                                        outputs, name##_run, name##_forward, name##_backward}
KIND(embedding, 2, 1e-6, embedding, embedding_outputs);
KIND(tokens, 1, 1e-6, embedding, embedding_outputs);
KIND(layer_norm, 3, 2e-5, layer_norm, rows_outputs);
KIND(rms_norm, 2, 4e-6, layer_norm, rows_outputs);
KIND(linear, 3, 2e-6, linear, linear_outputs);
static const op_kind product_kind = {
    "linear without bias", 2,          2e-6,           linear_shapes,
    linear_outputs,        linear_run, linear_forward, linear_backward};
KIND(transposed, 2, 2e-6, transposed, linear_outputs);
KIND(logits, 3, 2e-6, transposed, linear_outputs);
KIND(attention, 1, 4e-6, attention, attention_outputs);
KIND(grouped, 3, 4e-6, grouped, attention_outputs);
KIND(rope, 1, 3e-7, rope, attention_outputs);
KIND(gelu, 1, 1e-6, rows, rows_outputs);
KIND(silu_mul, 2, 1e-6, rows, rows_outputs);
KIND(add, 2, 1e-7, rows, rows_outputs);
KIND(dropout, 1, 2e-7, rows, rows_outputs);
KIND(relu, 1, 1e-7, rows, rows_outputs);
KIND(conv, 2, 2e-6, conv, conv_outputs);
KIND(batch_norm, 3, 2e-5, layer_norm, rows_outputs);
KIND(fixed_norm, 3, 2e-6, layer_norm, rows_outputs);
KIND(pool, 1, 1e-6, pool, pool_outputs);
KIND(entropy, 1, 1e-6, rows, one_output);
KIND(head, 2, 4e-6, head, one_output);
KIND(linear_gelu, 3, 2e-6, linear, linear_outputs);
KIND(add_layer_norm, 4, 2e-5, add_norm, rows_outputs);
KIND(add_rms_norm, 3, 4e-6, add_norm, rows_outputs);

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
    {&rms_norm_kind, 1, 0, 1, 0, 0},
    {&rms_norm_kind, 3, 0, 5, 0, 0},
    {&rms_norm_kind, 7, 0, 16, 0, 0},
    {&rms_norm_kind, 130, 0, 33, 0, 0},
    {&rms_norm_kind, 301, 0, 515, 0, 0},
    {&linear_kind, 1, 1, 1, 1, 0},
    {&linear_kind, 1, 3, 5, 7, 0},
    {&linear_kind, 2, 65, 17, 33, 0},
    {&linear_kind, 3, 100, 40, 300, 0},
    {&product_kind, 2, 3, 5, 1, 0},
    {&product_kind, 2, 7, 16, 9, 0},
    {&transposed_kind, 1, 1, 1, 1, 0},
    {&transposed_kind, 2, 3, 5, 7, 0},
    {&transposed_kind, 2, 33, 31, 65, 0},
    {&logits_kind, 1, 1, 1, 1, 0},
    {&logits_kind, 2, 3, 5, 7, 0},
    {&logits_kind, 1, 33, 24, 1300, 0},
    {&attention_kind, 1, 1, 1, 1, 0},
    {&attention_kind, 2, 3, 4, 1, 0},
    {&attention_kind, 2, 5, 6, 3, 0},
    {&attention_kind, 2, 5, 6, 3, 0.3f},
    {&attention_kind, 1, 64, 4, 2, 0},
    {&attention_kind, 1, 65, 8, 2, 0},
    {&attention_kind, 1, 70, 4, 1, 0.5f},
    {&attention_kind, 2, 130, 12, 3, 0},
    {&attention_kind, 2, 129, 12, 3, 0.1f},
    {&attention_kind, 1, 66, 32, 2, 0.1f},
    {&grouped_kind, 1, 1, 1, 1, 0},
    {&grouped_kind, 2, 3, 4, 2, 0},
    {&grouped_kind, 2, 5, 6, 3, 0},
    {&grouped_kind, 2, 5, 8, 4, 0.3f},
    {&grouped_kind, 2, 130, 12, 6, 0},
    {&grouped_kind, 2, 129, 12, 3, 0.1f},
    {&rope_kind, 1, 1, 2, 1, 0},
    {&rope_kind, 2, 3, 6, 3, 0},
    {&rope_kind, 1, 7, 10, 1, 0},
    {&rope_kind, 3, 130, 24, 4, 0},
    {&rope_kind, 1, 3, 2500, 1, 0},
    {&gelu_kind, 1, 0, 1, 0, 0},
    {&gelu_kind, 3, 0, 7, 0, 0},
    {&gelu_kind, 100, 0, 331, 0, 0},
    {&silu_mul_kind, 1, 0, 1, 0, 0},
    {&silu_mul_kind, 3, 0, 7, 0, 0},
    {&silu_mul_kind, 100, 0, 331, 0, 0},
    {&add_kind, 1, 0, 1, 0, 0},
    {&add_kind, 3, 0, 7, 0, 0},
    {&add_kind, 100, 0, 331, 0, 0},
    {&dropout_kind, 1, 0, 1, 0, 0.5f},
    {&dropout_kind, 3, 0, 67, 0, 0.1f},
    {&dropout_kind, 100, 0, 331, 0, 0.9f},
    {&relu_kind, 1, 0, 1, 0, 0},
    {&relu_kind, 3, 0, 7, 0, 0},
    {&relu_kind, 100, 0, 331, 0, 0},
    /*          b  t   c   n   p  k  s */
    {&conv_kind, 1, 1, 1, 1, 0, 1, 1},
    {&conv_kind, 1, 1, 1, 1, 0, 3, 1},
    {&conv_kind, 1, 3, 2, 3, 0, 3, 1},
    {&conv_kind, 2, 4, 3, 2, 0, 3, 2},
    {&conv_kind, 2, 5, 3, 2, 0, 3, 2},
    {&conv_kind, 3, 4, 5, 3, 0, 1, 1},
    {&conv_kind, 2, 5, 4, 3, 0, 1, 2},
    {&conv_kind, 1, 2, 2, 2, 0, 5, 1},
    {&conv_kind, 2, 7, 1, 4, 0, 5, 3},
    {&conv_kind, 1, 3, 1, 1, 0, 7, 4},
    {&conv_kind, 33, 7, 9, 17, 0, 3, 1},  /* many groups of several images */
    {&conv_kind, 3, 41, 20, 33, 0, 3, 1}, /* several blocks to an image */
    {&conv_kind, 19, 14, 16, 32, 0, 3, 2},
    {&batch_norm_kind, 2, 0, 1, 0, 0},
    {&batch_norm_kind, 3, 0, 5, 0, 0},
    {&batch_norm_kind, 60, 0, 3, 0, 0},
    {&batch_norm_kind, 1100, 0, 16, 0, 0},
    {&batch_norm_kind, 777, 0, 130, 0, 0},
    {&batch_norm_kind, 130, 0, 515, 0, 0},
    {&fixed_norm_kind, 1, 0, 1, 0, 0},
    {&fixed_norm_kind, 3, 0, 5, 0, 0},
    {&fixed_norm_kind, 1100, 0, 16, 0, 0},
    {&fixed_norm_kind, 130, 0, 515, 0, 0},
    {&pool_kind, 1, 1, 1, 0, 0},
    {&pool_kind, 2, 3, 5, 0, 0},
    {&pool_kind, 9, 7, 65, 0, 0},
    {&entropy_kind, 1, 0, 1, 0, 0},
    {&entropy_kind, 6, 0, 7, 0, 0},
    {&entropy_kind, 11, 0, 33, 0, 0},
    {&entropy_kind, 100, 0, 1001, 0, 0},
    {&head_kind, 1, 0, 1, 1, 0},
    {&head_kind, 6, 0, 3, 7, 0},
    {&head_kind, 70, 0, 5, 33, 0},
    {&head_kind, 200, 0, 24, 1001, 0}, /* several pieces, see main */
    {&linear_gelu_kind, 1, 1, 1, 1, 0},
    {&linear_gelu_kind, 1, 3, 5, 7, 0},
    {&linear_gelu_kind, 2, 65, 17, 33, 0},
    {&linear_gelu_kind, 1, 1100, 5, 9, 0}, /* several blocks of rows */
    {&add_layer_norm_kind, 1, 0, 1, 0, 0},
    {&add_layer_norm_kind, 3, 0, 5, 0, 0},
    {&add_layer_norm_kind, 130, 0, 33, 0, 0},
    {&add_layer_norm_kind, 301, 0, 515, 0, 0},
    {&add_rms_norm_kind, 1, 0, 1, 0, 0},
    {&add_rms_norm_kind, 3, 0, 5, 0, 0},
    {&add_rms_norm_kind, 130, 0, 33, 0, 0},
    {&add_rms_norm_kind, 301, 0, 515, 0, 0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* ---- the data of a case ---- */

typedef struct fixture {
    const op_case *c;
    shape in[N_INPUTS];
    int64_t n_in[N_INPUTS], n_out;
    float *x[N_INPUTS], *weight; /* the loss is sum of weight[i] y[i], so dy = weight */
    double *exact_x[N_INPUTS], *exact_dy, *exact_y, *exact_dx[N_INPUTS];
    float *y, *dx[N_INPUTS];    /* found */
    uint16_t *narrow[N_INPUTS]; /* x as bfloat16, for BF16 */
    ls_dtype dtype;
} fixture;

/* A number that dtype can hold. */
static float round_to(ls_dtype dtype, float value) {
    return dtype == LS_DTYPE_F32 ? value : lsi_bf16_to_f32(lsi_f32_to_bf16(value));
}

/* The gradient of output i: drawn, but for a loss that must be the end of the pass. */
static float weight_at(const op_case *c, ls_dtype dtype, int64_t i) {
    return c->kind == &head_kind ? 1.0f : round_to(dtype, draw(90, i));
}

static fixture open_fixture(const op_case *c, ls_dtype dtype) {
    fixture f = {.c = c, .n_out = c->kind->n_outputs(c), .dtype = dtype};
    c->kind->shapes(c, f.in);
    f.weight = grab(f.n_out, sizeof(float));
    f.y = grab(f.n_out, sizeof(float));
    f.exact_dy = grab(f.n_out, sizeof(double));
    f.exact_y = grab(f.n_out, sizeof(double));
    for (int64_t i = 0; i < f.n_out; i++) f.exact_dy[i] = f.weight[i] = weight_at(c, dtype, i);
    for (int k = 0; k < c->kind->n_inputs; k++) {
        f.n_in[k] = count_of(&f.in[k]);
        f.x[k] = grab(f.n_in[k], sizeof(float));
        f.dx[k] = grab(f.n_in[k], sizeof(float));
        f.exact_x[k] = grab(f.n_in[k], sizeof(double));
        f.exact_dx[k] = grab(f.n_in[k], sizeof(double));
        f.narrow[k] = grab(f.n_in[k], sizeof(uint16_t));
        for (int64_t i = 0; i < f.n_in[k]; i++) {
            f.exact_x[k][i] = f.x[k][i] = round_to(dtype, 2.0f * draw((uint32_t)k, i));
            f.narrow[k][i] = lsi_f32_to_bf16(f.x[k][i]);
        }
    }
    return f;
}

static void close_fixture(fixture *f) {
    free(f->weight), free(f->y), free(f->exact_dy), free(f->exact_y);
    for (int k = 0; k < N_INPUTS; k++)
        free(f->x[k]), free(f->dx[k]), free(f->exact_x[k]), free(f->exact_dx[k]),
            free(f->narrow[k]);
}

static void name_case(const op_case *c) {
    print_error("case: %s b=%d t=%d c=%d n=%d p=%g\n", c->kind->name, (int)c->b, (int)c->t,
                (int)c->c, (int)c->n, (double)c->p);
}

/* ---- a weighted sum as the loss, which is an op like any other ---- */

/* What y was when backward read it; NULL: nobody asks. */
static float *seen_in_backward;

static ls_status weigh_backward(lsi_tape *tape, lsi_node *node) {
    bool first;
    lsi_tensor *y = node->input[0];
    int64_t n = lsi_tensor_count(y);
    if (seen_in_backward) lsi_to_floats(y->data, y->dtype, n, seen_in_backward);
    void *grad = lsi_grad(tape, y, &first);
    if (!grad) return lsi_tape_status(tape);
    lsi_add_to_grad(grad, lsi_grad_dtype(y), node->saved[0], LS_DTYPE_F32, n, first);
    return LS_OK;
}

static lsi_tensor *weigh(lsi_tape *tape, lsi_tensor *y, const float *weight) {
    if (!y) return NULL;
    size_t bytes = (size_t)lsi_tensor_count(y) * sizeof *weight;
    lsi_tensor *loss = lsi_tape_activation_f32(tape, 1, (int64_t[]){1});
    lsi_node node = {.backward = weigh_backward, .name = "weigh", .input = {y}, .output = loss};
    if (seen_in_backward) node.reads = LSI_READS_INPUT(0);
    node.saved[0] = lsi_tape_scratch(tape, bytes);
    memcpy(node.saved[0], weight, bytes);
    lsi_tape_record(tape, &node);
    return loss;
}

/* ---- running a case on a tape ---- */

typedef enum mode { AS_INPUTS, AS_PARAMS, AS_PARAMS_ADDING, FORGOTTEN, N_MODES } mode;

static bool is_weight(const op_kind *kind, int k);

static void *param_data(fixture *f, int k) {
    return f->dtype == LS_DTYPE_F32 ? (void *)f->x[k] : (void *)f->narrow[k];
}

/* The op in a unit that keeps nothing but its inputs: backward makes y again, the same to the bit.
 */
static lsi_tensor *forget(fixture *f, lsi_tape *tape, lsi_tensor *y, lsi_tensor *loss) {
    lsi_tape_drop(tape, y);
    lsi_tape_unit_end(tape, 1);
    bool is_loss = f->n_out == 1 && lsi_tensor_count(y) == 1;
    if (y->data && y->producer && !is_loss) {
        name_case(f->c);
        fail_msg("its output was kept");
    }
    return loss;
}

static const float before = 0.5f; /* what AS_PARAMS_ADDING finds in the gradient */

static void run_case(fixture *f, mode how) {
    lsi_arena *arena;
    lsi_tape *tape;
    assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_seed(tape, seed, 1, 2);
    lsi_tape_accumulate(tape, how == AS_PARAMS_ADDING);
    lsi_tape_set_dtype(tape, f->dtype);
    seen_in_backward = how == FORGOTTEN ? grab(f->n_out, sizeof(float)) : NULL;
    bool as_inputs = how == AS_INPUTS || how == FORGOTTEN;
    ls_param params[N_INPUTS];
    lsi_tensor *in[N_INPUTS] = {NULL};
    int n_inputs = f->c->kind->n_inputs;
    for (int k = 0; k < n_inputs; k++) {
        params[k] = (ls_param){"p", f->n_in[k], f->dtype, 0, param_data(f, k), f->dx[k]};
        for (int64_t i = 0; i < f->n_in[k]; i++)
            f->dx[k][i] = how == AS_PARAMS_ADDING ? before : NAN;
        bool is_input = f->dtype == LS_DTYPE_F32 ? as_inputs : !is_weight(f->c->kind, k);
        in[k] = is_input ? lsi_tape_input(tape, f->x[k], f->in[k].n_dims, f->in[k].dims, true)
                         : lsi_tape_param(tape, &params[k], k, f->in[k].n_dims, f->in[k].dims);
    }
    lsi_tape_checkpoint(tape, how == FORGOTTEN ? 1 : 0);
    lsi_tape_unit_begin(tape, 1);
    lsi_tensor *y = f->c->kind->run(tape, in, f->c);
    assert_ok(lsi_tape_status(tape));
    assert_int_equal(lsi_tensor_count(y), f->n_out);
    lsi_to_floats(y->data, y->dtype, f->n_out, f->y);
    lsi_tensor *loss = weigh(tape, y, f->weight);
    if (how == FORGOTTEN) loss = forget(f, tape, y, loss);
    assert_ok(lsi_tape_backward(tape, loss));
    if (how == FORGOTTEN)
        assert_memory_equal(seen_in_backward, f->y, (size_t)f->n_out * sizeof(float));
    free(seen_in_backward);
    seen_in_backward = NULL;
    for (int k = 0; k < n_inputs; k++)
        if (!in[k]->param) lsi_to_floats(in[k]->grad, in[k]->dtype, f->n_in[k], f->dx[k]);
    lsi_tape_destroy(tape);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
}

/* ---- comparison ---- */

/* bfloat16 keeps 8 bits, so a rounding is within 1/256 of the largest element, and on the way from
 * inputs to a gradient there are at most four: y, probabilities, their gradients, the result. */
static const double bf16_bound = 4.0 / 256;

static void assert_near(const fixture *f, const char *what, int which, const float *found,
                        const double *expected, int64_t n, double offset) {
    const op_case *c = f->c;
    double largest = 1.0, bound = f->dtype == LS_DTYPE_F32 ? c->kind->bound : bf16_bound;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(expected[i] + offset));
    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)found[i] - expected[i] - offset);
        if (error <= bound * largest) continue; /* false for NaN */
        name_case(c);
        print_error("type %s\n", ls_dtype_name(f->dtype));
        fail_msg("%s %d, element %lld: expected %.9g, found %.9g (largest %.3g)", what, which,
                 (long long)i, expected[i] + offset, (double)found[i], largest);
    }
}

/* A weight's gradient is float32 whatever its type, so in bfloat16 it has to be a parameter. */
static bool is_weight(const op_kind *kind, int k) {
    static const op_kind *const weighted[] = {&layer_norm_kind, &rms_norm_kind,   &linear_kind,
                                              &product_kind,    &transposed_kind, &conv_kind,
                                              &batch_norm_kind, &fixed_norm_kind, &head_kind,
                                              &logits_kind,     &linear_gelu_kind};
    if (kind == &embedding_kind || kind == &tokens_kind) return true;
    if (kind == &add_layer_norm_kind || kind == &add_rms_norm_kind) return k >= 2;
    for (size_t i = 0; i < sizeof weighted / sizeof *weighted; i++)
        if (kind == weighted[i]) return k >= 1;
    return false;
}

static void compare_with_twins(ls_dtype dtype) {
    for (int i = 0; i < N_CASES; i++) {
        fixture f = open_fixture(&cases[i], dtype);
        const op_kind *kind = cases[i].kind;
        kind->forward(&cases[i], f.exact_x, f.exact_y);
        kind->backward(&cases[i], f.exact_x, f.exact_dy, f.exact_dx);
        for (mode how = 0; how < N_MODES; how++) {
            run_case(&f, how);
            assert_near(&f, "value", 0, f.y, f.exact_y, f.n_out, 0.0);
            double offset = how == AS_PARAMS_ADDING ? (double)before : 0.0;
            for (int k = 0; k < kind->n_inputs; k++) {
                bool adds = dtype == LS_DTYPE_F32 || is_weight(kind, k);
                assert_near(&f, "gradient of input", k, f.dx[k], f.exact_dx[k], f.n_in[k],
                            adds ? offset : 0.0);
            }
        }
        close_fixture(&f);
    }
}

static void ops_equal_their_twins(void **state) {
    (void)state;
    compare_with_twins(LS_DTYPE_F32);
}

static void bfloat16_equals_the_twins(void **state) {
    (void)state;
    compare_with_twins(LS_DTYPE_BF16);
}

/* A result as a narrow weight would get a gradient of another type than its buffer: refused. */
static void narrow_results_are_no_weights(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const op_kind *kind = cases[i].kind;
        bool is_product = kind == &product_kind || kind == &transposed_kind; /* suit their weight */
        if (is_product || !is_weight(kind, kind->n_inputs - 1)) continue;
        fixture f = open_fixture(&cases[i], LS_DTYPE_BF16);
        lsi_arena *arena;
        lsi_tape *tape;
        lsi_tensor *in[N_INPUTS] = {NULL};
        assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
        assert_ok(lsi_tape_create(arena, &tape));
        lsi_tape_set_dtype(tape, LS_DTYPE_BF16);
        for (int k = 0; k < kind->n_inputs; k++)
            in[k] = lsi_tape_input(tape, f.x[k], f.in[k].n_dims, f.in[k].dims, true);
        if (kind->run(tape, in, &cases[i])) name_case(&cases[i]);
        assert_fails(lsi_tape_status(tape), LS_ERR_ARGUMENT, "expected a parameter as");
        lsi_tape_destroy(tape);
        assert_int_equal(lsi_arena_used_bytes(arena), 0);
        lsi_arena_destroy(arena);
        close_fixture(&f);
    }
}

/* The way of processors without instructions for bfloat16. */
static void widened_bfloat16_equals_the_twins(void **state) {
    (void)state;
    lsi_product_widens(true);
    compare_with_twins(LS_DTYPE_BF16);
    lsi_product_widens(false);
}

/* Products of a library may differ between numbers of threads; all that is ours may not. */
static bool is_ours(const op_kind *kind) {
    return kind != &linear_kind && kind != &product_kind && kind != &transposed_kind &&
           kind != &logits_kind && kind != &head_kind && kind != &linear_gelu_kind;
}

static void compare_numbers_of_threads(ls_dtype dtype) {
    for (int i = 0; i < N_CASES; i++) {
        if (!is_ours(cases[i].kind)) continue;
        fixture one = open_fixture(&cases[i], dtype), two = open_fixture(&cases[i], dtype);
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

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    compare_numbers_of_threads(LS_DTYPE_F32);
    compare_numbers_of_threads(LS_DTYPE_BF16);
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
    int64_t total = 0;
    for (int k = 0; k < N_INPUTS; k++) total += f->n_in[k];
    bool centres = f->c->kind == &layer_norm_kind || f->c->kind == &add_layer_norm_kind;
    return total <= 400 && !(centres && f->c->c < 3);
}

static void twins_equal_finite_differences(void **state) {
    (void)state;
    int n_checked = 0;
    for (int c = 0; c < N_CASES; c++) {
        fixture f = open_fixture(&cases[c], LS_DTYPE_F32);
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
    lsi_head_loss_piece(64 * 1024 * (int64_t)sizeof(float));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_equal_their_twins),
        cmocka_unit_test(bfloat16_equals_the_twins),
        cmocka_unit_test(widened_bfloat16_equals_the_twins),
        cmocka_unit_test(narrow_results_are_no_weights),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(twins_equal_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
