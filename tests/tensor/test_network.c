/* A tiny two-layer transformer from ids to loss: its gradients, of every parameter, against finite
 * differences of the loss, with dropout on; and the same bits in every run.
 *
 * The loss is a float32, so a difference of it has an error of about its last place over the step;
 * the step and the bound below are chosen for that. Exactness is the business of test_ops.c, the
 * wiring (residuals, tied table, order of contributions) that of this file. */
#include <math.h>
#include <string.h>

#include "harness/harness.h"
#include "tensor/op.h"

enum { B = 2, T = 5, C = 6, H = 2, V = 9, L = 2, ROWS = B * T };
enum { PER_LAYER = 12, N_PARAMS = 2 + PER_LAYER * L + 2, MAX_COUNT = C * 4 * C };

typedef struct net {
    lsi_arena *arena;
    lsi_tape *tape;
    float data[N_PARAMS][MAX_COUNT], grad[N_PARAMS][MAX_COUNT];
    ls_param params[N_PARAMS];
    int next; /* parameter that weight() hands out next */
    float dropout;
} net;

static float start(int param, int64_t i, bool is_norm_weight) {
    lsi_rng_stream stream = lsi_rng_open(21, LSI_RNG_TEST, (uint32_t)param, 0);
    return lsi_rng_uniform(&stream, (uint64_t)i) - 0.5f + (is_norm_weight ? 1.0f : 0.0f);
}

/* The next parameter, filled on its first use. columns = 0: one dim. */
static lsi_tensor *weight(net *n, int64_t rows, int64_t columns, bool is_norm_weight) {
    int p = n->next++;
    int64_t dims[2] = {rows, columns}, count = columns ? rows * columns : rows;
    if (!n->params[p].data) {
        n->params[p] = (ls_param){"p", count, LS_DTYPE_F32, 0, n->data[p], n->grad[p]};
        for (int64_t i = 0; i < count; i++) n->data[p][i] = start(p, i, is_norm_weight);
    }
    return lsi_tape_param(n->tape, &n->params[p], p, columns ? 2 : 1, dims);
}

static lsi_tensor *norm(net *n, lsi_tensor *x) {
    lsi_tensor *w = weight(n, C, 0, true), *b = weight(n, C, 0, false);
    return lsi_op_layer_norm(n->tape, x, w, b, 1e-5f);
}

static lsi_tensor *linear(net *n, lsi_tensor *x, int64_t from, int64_t to) {
    lsi_tensor *w = weight(n, from, to, false), *b = weight(n, to, 0, false);
    return lsi_op_linear(n->tape, x, w, b);
}

static lsi_tensor *block(net *n, lsi_tensor *x) {
    lsi_tape *tape = n->tape;
    lsi_tensor *a = lsi_op_attention(tape, linear(n, norm(n, x), C, 3 * C), H, n->dropout);
    lsi_tensor *p = lsi_op_dropout(tape, linear(n, a, C, C), n->dropout);
    lsi_tensor *y = lsi_op_add(tape, x, p);
    lsi_tape_drop(tape, p);
    lsi_tensor *h = lsi_op_gelu(tape, linear(n, norm(n, y), C, 4 * C));
    lsi_tensor *q = lsi_op_dropout(tape, linear(n, h, 4 * C, C), n->dropout);
    return lsi_op_add(tape, y, q);
}

static lsi_tensor *forward(net *n) {
    static const int32_t ids[ROWS] = {0, 8, 3, 3, 1, 7, 2, 3, 0, 5};
    static const int32_t targets[ROWS] = {8, 3, 3, 1, -1, 2, 3, 0, 5, 6};
    lsi_tape_reset(n->tape, true);
    lsi_tape_seed(n->tape, 9, 1, 0);
    n->next = 0;
    lsi_tensor *tokens = weight(n, V, C, false), *positions = weight(n, T, C, false);
    lsi_tensor *x = lsi_op_embedding(n->tape, ids, B, T, tokens, positions);
    for (int l = 0; l < L; l++) x = block(n, x);
    lsi_tensor *logits = lsi_op_linear_transposed(n->tape, norm(n, x), tokens, NULL);
    lsi_tensor *loss = lsi_op_cross_entropy(n->tape, logits, targets);
    assert_ok(lsi_tape_status(n->tape));
    assert_int_equal(n->next, N_PARAMS);
    return loss;
}

static void open_net(net *n, float dropout) {
    memset(n, 0, sizeof *n);
    n->dropout = dropout;
    assert_ok(lsi_arena_create(1 << 22, &n->arena));
    assert_ok(lsi_tape_create(n->arena, &n->tape));
}

static void close_net(net *n) {
    lsi_tape_destroy(n->tape);
    lsi_arena_destroy(n->arena);
}

static double loss_with(net *n, float *at, float value) {
    float kept = *at;
    *at = value;
    double loss = (double)*(float *)forward(n)->data;
    *at = kept;
    return loss;
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    static const float dropouts[] = {0.0f, 0.2f};
    const float h = 4e-3f;
    for (size_t d = 0; d < 2; d++) {
        net n;
        open_net(&n, dropouts[d]);
        assert_ok(lsi_tape_backward(n.tape, forward(&n)));
        for (int p = 0; p < N_PARAMS; p++) {
            for (int64_t i = 0; i < n.params[p].count; i++) {
                float *at = &n.data[p][i], above = *at + h, below = *at - h;
                double rise = loss_with(&n, at, above) - loss_with(&n, at, below);
                double expected = rise / ((double)above - (double)below);
                double found = (double)n.grad[p][i];
                if (fabs(found - expected) <= 3e-3 * (1.0 + fabs(expected))) continue;
                fail_msg("dropout %g, parameter %d, element %d: difference %g, gradient %g",
                         (double)dropouts[d], p, (int)i, expected, found);
            }
        }
        close_net(&n);
    }
}

static void runs_have_the_same_bits(void **state) {
    (void)state;
    net first, second;
    open_net(&first, 0.2f);
    open_net(&second, 0.2f);
    void *shift = lsi_arena_alloc(second.arena, 4032); /* other addresses */
    for (int run = 0; run < 3; run++) {
        lsi_tensor *a = forward(&first), *b = forward(&second);
        assert_memory_equal(a->data, b->data, sizeof(float));
        assert_ok(lsi_tape_backward(first.tape, a));
        assert_ok(lsi_tape_backward(second.tape, b));
        assert_memory_equal(first.grad, second.grad, sizeof first.grad);
    }
    lsi_arena_release(second.arena, shift);
    close_net(&first);
    close_net(&second);
}

static void loss_falls_along_the_gradient(void **state) {
    (void)state;
    net n;
    open_net(&n, 0.0f);
    float last = INFINITY;
    for (int step = 0; step < 20; step++) {
        lsi_tensor *loss = forward(&n);
        assert_true(*(float *)loss->data < last);
        last = *(float *)loss->data;
        assert_ok(lsi_tape_backward(n.tape, loss));
        for (int p = 0; p < N_PARAMS; p++) {
            for (int64_t i = 0; i < n.params[p].count; i++) n.data[p][i] -= 0.003f * n.grad[p][i];
        }
    }
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(runs_have_the_same_bits),
        cmocka_unit_test(loss_falls_along_the_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
