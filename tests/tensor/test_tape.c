/* The tape: order of events, tied, frozen, unused and dead parameters, sticky errors, states,
 * lifetimes of activations, and a small pass in which every allocation fails once.
 *
 * The events of a pass are written as text, one word each: "f0" before forward of unit 0, "F0"
 * after it, "b0" and "B0" the same of backward, "g3" gradient of parameter 3 ready, "." progress,
 * "E" end of backward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "harness/harness.h"
#include "tensor/op.h"

/* ---- a small model: B = 2 sequences of T = 3, C = 4, V = 5 ---- */

enum { B = 2, T = 3, C = 4, V = 5, ROWS = B * T };
enum { TOKENS, POSITIONS, NORM_W, NORM_B, MIX_W, MIX_B, N_PARAMS };

static const int64_t dims[N_PARAMS][2] = {{V, C}, {T, C}, {C, 0}, {C, 0}, {C, C}, {C, 0}};
static const int32_t ids[ROWS] = {0, 1, 4, 4, 2, 1};
static const int32_t targets[ROWS] = {1, 4, -1, 2, 1, 0};
static const int32_t two_targets[2] = {1, -1};

typedef struct net {
    lsi_arena *arena;
    lsi_tape *tape;
    float data[N_PARAMS][V * C], grad[N_PARAMS][V * C];
    ls_param params[N_PARAMS];
    char events[400];
    int fail_at; /* the n-th event's handler fails; 0: none */
    int n_events;
    const lsi_tensor *watched; /* whether its data was gone when the last event came */
    bool watched_is_gone;
} net;

static ls_status hear(void *context, ls_event event, int index) {
    static const char *const words[] = {
        [LS_EVENT_BEFORE_FORWARD] = "f%d ",  [LS_EVENT_AFTER_FORWARD] = "F%d ",
        [LS_EVENT_BEFORE_BACKWARD] = "b%d ", [LS_EVENT_AFTER_BACKWARD] = "B%d ",
        [LS_EVENT_GRAD_READY] = "g%d ",      [LS_EVENT_PROGRESS] = ". ",
        [LS_EVENT_GRAD_NEEDED] = "n%d ",     [LS_EVENT_END_OF_BACKWARD] = "E",
    };
    net *n = context;
    size_t at = strlen(n->events);
    snprintf(n->events + at, sizeof n->events - at, words[event], index);
    if (n->watched) n->watched_is_gone = n->watched->data == NULL;
    if (++n->n_events == n->fail_at)
        return lsi_fail(LS_ERR_ABORTED, "handler failed at event %d", n->n_events);
    return LS_OK;
}

static int64_t count_of(int param) {
    return dims[param][1] ? dims[param][0] * dims[param][1] : dims[param][0];
}

static void fill_params(net *n) {
    for (int p = 0; p < N_PARAMS; p++) {
        n->params[p] = (ls_param){"p", count_of(p), LS_DTYPE_F32, 0, n->data[p], n->grad[p]};
        for (int i = 0; i < V * C; i++) {
            n->data[p][i] = (float)((i * 7 + p * 3) % 11) * 0.1f - 0.5f;
            n->grad[p][i] = NAN;
        }
    }
}

static void open_net(net *n) {
    memset(n, 0, sizeof *n);
    fill_params(n);
    assert_ok(lsi_arena_create(1 << 22, &n->arena));
    assert_ok(lsi_tape_create(n->arena, &n->tape));
    lsi_tape_listen(n->tape, (ls_event_sink){hear, n});
}

static void close_net(net *n) {
    lsi_tape_destroy(n->tape);
    assert_int_equal(lsi_arena_used_bytes(n->arena), 0);
    lsi_arena_destroy(n->arena);
}

static lsi_tensor *leaf(net *n, int param) {
    return lsi_tape_param(n->tape, &n->params[param], param, dims[param][1] ? 2 : 1, dims[param]);
}

/* Embedding, one block with a residual, output layer tied to the token table. */
static lsi_tensor *forward_to_logits(net *n) {
    lsi_tape *tape = n->tape;
    lsi_tape_unit_begin(tape, 0);
    lsi_tensor *x = lsi_op_embedding(tape, ids, B, T, leaf(n, TOKENS), leaf(n, POSITIONS));
    lsi_tape_unit_end(tape, 0);
    lsi_tape_unit_begin(tape, 1);
    lsi_tensor *z = lsi_op_layer_norm(tape, x, leaf(n, NORM_W), leaf(n, NORM_B), 1e-5f);
    z = lsi_op_linear(tape, z, leaf(n, MIX_W), leaf(n, MIX_B));
    z = lsi_op_gelu(tape, z);
    z = lsi_op_dropout(tape, z, 0.25f);
    x = lsi_op_add(tape, x, z);
    lsi_tape_unit_end(tape, 1);
    return lsi_op_linear_transposed(tape, x, leaf(n, TOKENS), NULL);
}

static lsi_tensor *forward(net *n) {
    return lsi_op_cross_entropy(n->tape, forward_to_logits(n), targets);
}

static lsi_tensor *input(net *n, int64_t rows, int64_t columns, bool needs_grad) {
    float values[64];
    assert_in_range(rows * columns, 1, 64);
    for (int i = 0; i < 64; i++) values[i] = (float)(i % 5) - 2.0f;
    return lsi_tape_input(n->tape, values, 2, (int64_t[]){rows, columns}, needs_grad);
}

/* ---- events ---- */

static void events_come_in_reverse_order_and_once_each(void **state) {
    (void)state;
    net n;
    open_net(&n);
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    /* entropy, output layer (its table has another use), end of unit 1, add, dropout, gelu,
     * linear, norm, unit 1, unit 0: embedding */
    assert_string_equal(n.events,
                        "f0 . F0 f1 . . . . . F1 . . . . b1 . . . g5 g4 g3 g2 B1 b0 g1 g0 B0 E");
    close_net(&n);
}

static void frozen_parameters_get_no_gradient_and_no_event(void **state) {
    (void)state;
    net n;
    open_net(&n);
    n.params[MIX_W].flags = n.params[NORM_B].flags = LS_PARAM_FROZEN;
    n.params[MIX_W].grad = n.params[NORM_B].grad = NULL;
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    assert_string_equal(n.events,
                        "f0 . F0 f1 . . . . . F1 . . . . b1 . . . g5 g2 B1 b0 g1 g0 B0 E");
    close_net(&n);
}

static void all_frozen_leaves_nothing_to_do(void **state) {
    (void)state;
    net n;
    open_net(&n);
    for (int p = 0; p < N_PARAMS; p++) n.params[p].flags = LS_PARAM_FROZEN;
    assert_fails(lsi_tape_backward(n.tape, forward(&n)), LS_ERR_ARGUMENT, "depends on nothing");
    close_net(&n);
}

/* A branch that does not lead to the loss: zeros and an event; and no event for the unused. */
static void dead_branches_give_zeros(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tensor *x = input(&n, 2, C, false);
    (void)leaf(&n, NORM_W); /* made, but not used */
    lsi_tensor *dead = lsi_op_linear(n.tape, x, leaf(&n, MIX_W), leaf(&n, MIX_B));
    (void)lsi_op_cross_entropy(n.tape, dead, two_targets);
    lsi_tensor *y = lsi_op_linear_transposed(n.tape, x, leaf(&n, TOKENS), NULL);
    assert_ok(lsi_tape_backward(n.tape, y));
    assert_string_equal(n.events, ". . . g0 g5 g4 E");
    for (int i = 0; i < C * C; i++) assert_true(n.grad[MIX_W][i] == 0.0f);
    for (int i = 0; i < C; i++) assert_true(n.grad[MIX_B][i] == 0.0f);
    assert_true(isnan(n.grad[NORM_W][0]));
    assert_true(n.grad[TOKENS][0] == -2.0f + 2.0f); /* rows 0 and 1 of x: -2 and 2 */
    close_net(&n);
}

static void failing_handler_ends_the_pass(void **state) {
    (void)state;
    net n;
    open_net(&n);
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    int n_events = n.n_events;
    for (int k = 1; k <= n_events; k++) {
        lsi_tape_reset(n.tape, true);
        n.n_events = 0;
        n.fail_at = k;
        n.events[0] = '\0';
        char text[40];
        snprintf(text, sizeof text, "handler failed at event %d", k);
        assert_fails(lsi_tape_backward(n.tape, forward(&n)), LS_ERR_ABORTED, text);
        assert_int_equal(n.n_events, k);
        assert_fails(lsi_tape_status(n.tape), LS_ERR_ABORTED, text);
    }
    close_net(&n);
}

static void inference_raises_forward_events_only(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tape_reset(n.tape, false);
    lsi_tensor *logits = forward_to_logits(&n);
    float kept[ROWS * V];
    memcpy(kept, logits->data, sizeof kept);
    lsi_tensor *loss = lsi_op_cross_entropy(n.tape, logits, targets);
    assert_ok(lsi_tape_status(n.tape));
    assert_memory_equal(kept, logits->data, sizeof kept); /* nothing was overwritten */
    assert_string_equal(n.events, "f0 . F0 f1 . . . . F1 . . ");
    assert_fails(lsi_tape_backward(n.tape, loss), LS_ERR_STATE, "did not record");
    close_net(&n);
}

/* ---- gradients: overwrite, add, twice the same tensor ---- */

static void gradients_overwrite_first_and_add_when_asked(void **state) {
    (void)state;
    net n;
    float once[N_PARAMS][V * C];
    open_net(&n);
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    memcpy(once, n.grad, sizeof once);
    for (int p = 0; p < N_PARAMS; p++) {
        for (int64_t i = 0; i < count_of(p); i++) assert_true(isfinite(once[p][i]));
    }
    lsi_tape_accumulate(n.tape, true);
    lsi_tape_reset(n.tape, true);
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    for (int p = 0; p < N_PARAMS; p++) {
        for (int64_t i = 0; i < count_of(p); i++)
            assert_true(fabsf(n.grad[p][i] - 2.0f * once[p][i]) <= 1e-6f);
    }
    lsi_tape_accumulate(n.tape, false);
    lsi_tape_reset(n.tape, true);
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    assert_memory_equal(n.grad, once, sizeof once);
    close_net(&n);
}

static void tensor_added_to_itself_gets_twice_the_gradient(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tensor *x = input(&n, 3, 5, true);
    lsi_tensor *y = lsi_op_add(n.tape, x, x);
    lsi_tensor *z = lsi_op_add(n.tape, y, x);
    assert_ok(lsi_tape_backward(n.tape, z));
    for (int i = 0; i < 15; i++) assert_true(((float *)x->grad)[i] == 3.0f);
    close_net(&n);
}

/* Buffers are handed from output to input where that is possible; every mix of uses must give the
 * number of paths from x to the loss. */
static void gradients_count_paths(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tensor *x = input(&n, 2, 3, true), *constant = input(&n, 2, 3, false);
    lsi_tensor *a = lsi_op_add(n.tape, x, constant);
    lsi_tensor *b = lsi_op_add(n.tape, constant, a);
    lsi_tensor *c = lsi_op_add(n.tape, a, b);
    lsi_tensor *d = lsi_op_add(n.tape, c, x);
    lsi_tensor *e = lsi_op_add(n.tape, d, c);
    assert_ok(lsi_tape_backward(n.tape, e));
    for (int i = 0; i < 6; i++) assert_true(((float *)x->grad)[i] == 5.0f);
    assert_null(constant->grad);
    close_net(&n);
}

static void parameter_as_logits_gets_its_gradient(void **state) {
    (void)state;
    net n;
    open_net(&n);
    int32_t target[V] = {0, 1, 2, 3, 0};
    lsi_tensor *loss = lsi_op_cross_entropy(n.tape, leaf(&n, TOKENS), target);
    float before[V * C];
    memcpy(before, n.data[TOKENS], sizeof before);
    assert_ok(lsi_tape_backward(n.tape, loss));
    assert_memory_equal(before, n.data[TOKENS], sizeof before);
    for (int row = 0; row < V; row++) {
        float sum = 0.0f;
        for (int c = 0; c < C; c++) sum += n.grad[TOKENS][row * C + c];
        assert_true(fabsf(sum) < 1e-6f);
        assert_true(n.grad[TOKENS][row * C + target[row]] < 0.0f);
    }
    close_net(&n);
}

/* Strategies may move buffers between forward and backward. */
static void moved_buffers_are_followed(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tensor *loss = forward(&n);
    float data[C * C], grad[C * C];
    memcpy(data, n.data[MIX_W], sizeof data);
    memset(n.data[MIX_W], 0xff, sizeof n.data[MIX_W]);
    n.params[MIX_W].data = data;
    n.params[MIX_W].grad = grad;
    assert_ok(lsi_tape_backward(n.tape, loss));
    assert_true(isfinite(grad[0]) && isfinite(n.grad[TOKENS][0]));
    assert_true(isnan(n.grad[MIX_W][0]));
    close_net(&n);
}

/* ---- errors ---- */

typedef lsi_tensor *(*bad_call)(net *n);

static lsi_tensor *norm_of_wrong_width(net *n) {
    return lsi_op_layer_norm(n->tape, input(n, 2, 3, true), leaf(n, NORM_W), leaf(n, NORM_B),
                             1e-5f);
}
static lsi_tensor *norm_with_no_epsilon(net *n) {
    return lsi_op_layer_norm(n->tape, input(n, 2, C, true), leaf(n, NORM_W), leaf(n, NORM_B), 0.0f);
}
static lsi_tensor *linear_of_wrong_width(net *n) {
    return lsi_op_linear(n->tape, input(n, 2, 3, true), leaf(n, MIX_W), NULL);
}
static lsi_tensor *linear_with_wrong_bias(net *n) {
    return lsi_op_linear(n->tape, input(n, 2, C, true), leaf(n, MIX_W), input(n, 1, 3, true));
}
static lsi_tensor *linear_without_weight(net *n) {
    return lsi_op_linear(n->tape, input(n, 2, C, true), NULL, NULL);
}
static lsi_tensor *transposed_of_wrong_width(net *n) {
    return lsi_op_linear_transposed(n->tape, input(n, 2, 3, true), leaf(n, TOKENS), NULL);
}
static lsi_tensor *add_of_other_shape(net *n) {
    return lsi_op_add(n->tape, input(n, 2, 3, true), input(n, 3, 2, true));
}
static lsi_tensor *attention_of_two_dims(net *n) {
    return lsi_op_attention(n->tape, input(n, 2, 6, true), 1, 0.0f);
}
static lsi_tensor *heads_that_do_not_divide(net *n) {
    float values[12] = {0};
    lsi_tensor *x = lsi_tape_input(n->tape, values, 3, (int64_t[]){1, 1, 12}, true);
    return lsi_op_attention(n->tape, x, 3, 0.0f);
}
static lsi_tensor *attention_dropping_all(net *n) {
    float values[12] = {0};
    lsi_tensor *x = lsi_tape_input(n->tape, values, 3, (int64_t[]){1, 1, 12}, true);
    return lsi_op_attention(n->tape, x, 2, 1.0f);
}
static lsi_tensor *id_outside_the_table(net *n) {
    int32_t bad[ROWS] = {0, 1, 4, 4, V, 1};
    return lsi_op_embedding(n->tape, bad, B, T, leaf(n, TOKENS), leaf(n, POSITIONS));
}
static lsi_tensor *negative_id(net *n) {
    int32_t bad[ROWS] = {-1, 0, 0, 0, 0, 0};
    return lsi_op_embedding(n->tape, bad, B, T, leaf(n, TOKENS), NULL);
}
static lsi_tensor *too_many_positions(net *n) {
    return lsi_op_embedding(n->tape, ids, 1, T + 1, leaf(n, TOKENS), leaf(n, POSITIONS));
}
static lsi_tensor *no_sequences(net *n) {
    return lsi_op_embedding(n->tape, ids, 0, T, leaf(n, TOKENS), NULL);
}
static lsi_tensor *sequences_beyond_counting(net *n) {
    return lsi_op_embedding(n->tape, ids, INT64_MAX / 2, 3, leaf(n, TOKENS), NULL);
}
static lsi_tensor *no_ids(net *n) {
    return lsi_op_embedding(n->tape, NULL, B, T, leaf(n, TOKENS), NULL);
}
static lsi_tensor *target_outside_the_vocabulary(net *n) {
    int32_t bad[2] = {0, 3};
    return lsi_op_cross_entropy(n->tape, input(n, 2, 3, true), bad);
}
static lsi_tensor *target_below_minus_one(net *n) {
    int32_t bad[2] = {-2, 0};
    return lsi_op_cross_entropy(n->tape, input(n, 2, 3, true), bad);
}
static lsi_tensor *no_targets(net *n) {
    return lsi_op_cross_entropy(n->tape, input(n, 2, 3, true), NULL);
}
static lsi_tensor *logits_with_another_use(net *n) {
    lsi_tensor *x = input(n, 2, 3, true);
    (void)lsi_op_gelu(n->tape, x);
    return lsi_op_cross_entropy(n->tape, x, two_targets);
}
static lsi_tensor *logits_used_afterwards(net *n) {
    lsi_tensor *x = input(n, 2, 3, true);
    (void)lsi_op_cross_entropy(n->tape, x, two_targets);
    return lsi_op_gelu(n->tape, x);
}
static lsi_tensor *use_of_a_dropped_tensor(net *n) {
    lsi_tensor *x = input(n, 2, 3, true);
    lsi_tape_drop(n->tape, x);
    return lsi_op_gelu(n->tape, x);
}
static lsi_tensor *param_of_wrong_count(net *n) {
    return lsi_tape_param(n->tape, &n->params[MIX_W], MIX_W, 1, (int64_t[]){C});
}
static lsi_tensor *param_with_other_dims(net *n) {
    (void)leaf(n, MIX_W);
    return lsi_tape_param(n->tape, &n->params[MIX_W], MIX_W, 1, (int64_t[]){C * C});
}
static lsi_tensor *index_taken(net *n) {
    (void)leaf(n, MIX_W);
    return lsi_tape_param(n->tape, &n->params[MIX_B], MIX_W, 1, (int64_t[]){C});
}
static lsi_tensor *negative_index(net *n) {
    return lsi_tape_param(n->tape, &n->params[MIX_B], -1, 1, (int64_t[]){C});
}
static lsi_tensor *param_without_data(net *n) {
    n->params[MIX_B].data = NULL;
    return leaf(n, MIX_B);
}
static lsi_tensor *param_of_other_dtype(net *n) {
    n->params[MIX_B].dtype = LS_DTYPE_F16;
    return leaf(n, MIX_B);
}
static lsi_tensor *no_param(net *n) {
    return lsi_tape_param(n->tape, NULL, 0, 1, (int64_t[]){C});
}
static lsi_tensor *too_many_dims(net *n) {
    float value = 0.0f;
    return lsi_tape_input(n->tape, &value, 5, (int64_t[]){1, 1, 1, 1, 1}, true);
}
static lsi_tensor *empty_dim(net *n) {
    float value = 0.0f;
    return lsi_tape_input(n->tape, &value, 2, (int64_t[]){1, 0}, true);
}
static lsi_tensor *dims_beyond_counting(net *n) {
    float value = 0.0f;
    return lsi_tape_input(n->tape, &value, 2, (int64_t[]){INT64_MAX / 8, 3}, true);
}
static lsi_tensor *input_beyond_the_arena(net *n) {
    float value = 0.0f;
    return lsi_tape_input(n->tape, &value, 1, (int64_t[]){1 << 24}, true);
}
static lsi_tensor *input_without_values(net *n) {
    return lsi_tape_input(n->tape, NULL, 1, (int64_t[]){1}, true);
}

static const struct {
    bad_call call;
    ls_status status;
    const char *text;
} bad_calls[] = {
    {norm_of_wrong_width, LS_ERR_ARGUMENT, "layer_norm: expected weight of shape (3), found (4)"},
    {norm_with_no_epsilon, LS_ERR_ARGUMENT, "layer_norm: expected a positive epsilon"},
    {linear_of_wrong_width, LS_ERR_ARGUMENT, "linear: expected weight of shape (3,4), found (4,4)"},
    {linear_with_wrong_bias, LS_ERR_ARGUMENT, "linear: expected bias of shape (4), found (1,3)"},
    {linear_without_weight, LS_ERR_ARGUMENT, "linear: input 1: expected a tensor, found NULL"},
    {transposed_of_wrong_width, LS_ERR_ARGUMENT, "expected weight of shape (5,3), found (5,4)"},
    {add_of_other_shape, LS_ERR_ARGUMENT, "add: expected second input of shape (2,3), found (3,2)"},
    {attention_of_two_dims, LS_ERR_ARGUMENT, "of shape (B,T,3C), found (2,6)"},
    {heads_that_do_not_divide, LS_ERR_ARGUMENT, "divides 4 channels, found 3"},
    {attention_dropping_all, LS_ERR_ARGUMENT, "attention: expected a dropout probability"},
    {id_outside_the_table, LS_ERR_ARGUMENT,
     "sequence 1, position 1: expected an id from 0 to 4, found 5"},
    {negative_id, LS_ERR_ARGUMENT, "sequence 0, position 0: expected an id from 0 to 4, found -1"},
    {too_many_positions, LS_ERR_ARGUMENT, "at most 3 positions"},
    {no_sequences, LS_ERR_ARGUMENT, "embedding: expected at least one sequence"},
    {sequences_beyond_counting, LS_ERR_ARGUMENT, "are too many"},
    {no_ids, LS_ERR_ARGUMENT, "embedding: expected ids"},
    {target_outside_the_vocabulary, LS_ERR_ARGUMENT,
     "row 1: expected a target from -1 to 2, found 3"},
    {target_below_minus_one, LS_ERR_ARGUMENT, "row 0: expected a target from -1 to 2, found -2"},
    {no_targets, LS_ERR_ARGUMENT, "cross_entropy: expected targets"},
    {logits_with_another_use, LS_ERR_STATE, "its logits have another use"},
    {logits_used_afterwards, LS_ERR_STATE, "gelu: input 0 has no data"},
    {use_of_a_dropped_tensor, LS_ERR_STATE, "gelu: input 0 has no data"},
    {param_of_wrong_count, LS_ERR_ARGUMENT, "its dims give 4 elements, it has 16"},
    {param_with_other_dims, LS_ERR_ARGUMENT, "a leaf of other dims"},
    {index_taken, LS_ERR_ARGUMENT, "its index 4 belongs to"},
    {negative_index, LS_ERR_ARGUMENT, "expected an index >= 0, found -1"},
    {param_without_data, LS_ERR_STATE, "it has no data"},
    {param_of_other_dtype, LS_ERR_UNSUPPORTED, "expected dtype F32 or BF16, found F16"},
    {no_param, LS_ERR_ARGUMENT, "expected one, found NULL"},
    {too_many_dims, LS_ERR_ARGUMENT, "expected 1 to 4 dims, found 5"},
    {empty_dim, LS_ERR_ARGUMENT, "expected dim 1 to be at least 1, found 0"},
    {dims_beyond_counting, LS_ERR_ARGUMENT, "too large to address"},
    {input_beyond_the_arena, LS_ERR_MEMORY, "arena: "},
    {input_without_values, LS_ERR_ARGUMENT, "input: expected values"},
};

static void bad_calls_are_answered_through_the_tape(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_calls / sizeof bad_calls[0]; i++) {
        net n;
        open_net(&n);
        assert_null(bad_calls[i].call(&n));
        /* later ops are silent and the first error stays, whatever was said in between */
        assert_null(forward(&n));
        (void)lsi_fail(LS_ERR_IO, "another failure of this thread");
        assert_fails(lsi_tape_status(n.tape), bad_calls[i].status, bad_calls[i].text);
        assert_fails(lsi_tape_backward(n.tape, NULL), bad_calls[i].status, bad_calls[i].text);
        lsi_tape_reset(n.tape, true);
        fill_params(&n);
        assert_ok(lsi_tape_backward(n.tape, forward(&n)));
        close_net(&n);
    }
}

static void backward_refuses_what_makes_no_sense(void **state) {
    (void)state;
    net n;
    open_net(&n);
    assert_fails(lsi_tape_backward(n.tape, NULL), LS_ERR_ARGUMENT, "expected a loss");
    lsi_tape_reset(n.tape, true);
    assert_fails(lsi_tape_backward(n.tape, leaf(&n, MIX_W)), LS_ERR_ARGUMENT, "depends on nothing");
    lsi_tape_reset(n.tape, true);
    assert_fails(lsi_tape_backward(n.tape, input(&n, 1, 1, false)), LS_ERR_ARGUMENT,
                 "depends on nothing");
    lsi_tape_reset(n.tape, true);
    lsi_tensor *loss = forward(&n);
    assert_ok(lsi_tape_backward(n.tape, loss));
    assert_fails(lsi_tape_backward(n.tape, loss), LS_ERR_STATE, "ran already");
    lsi_tape_reset(n.tape, true);
    loss = forward(&n);
    n.params[MIX_B].grad = NULL;
    assert_fails(lsi_tape_backward(n.tape, loss), LS_ERR_STATE, "no gradient buffer");
    close_net(&n);
    lsi_tape_destroy(NULL);
}

static void nan_logits_give_a_nan_loss(void **state) {
    (void)state;
    net n;
    open_net(&n);
    for (int record = 0; record < 2; record++) {
        lsi_tape_reset(n.tape, record);
        n.data[TOKENS][1] = NAN;
        lsi_tensor *loss = forward(&n);
        assert_ok(lsi_tape_status(n.tape));
        assert_true(isnan(*(float *)loss->data));
        if (record) assert_ok(lsi_tape_backward(n.tape, loss));
    }
    close_net(&n);
}

/* ---- memory ---- */

static void activations_are_gone_after_backward(void **state) {
    (void)state;
    net n;
    open_net(&n);
    size_t used[2];
    for (int drop = 0; drop < 2; drop++) {
        lsi_tape_reset(n.tape, true);
        lsi_tensor *x = input(&n, 4, C, true);
        lsi_tensor *y = lsi_op_linear(n.tape, x, leaf(&n, MIX_W), leaf(&n, MIX_B));
        lsi_tensor *z = lsi_op_add(n.tape, x, y);
        if (drop) {
            lsi_tape_drop(n.tape, x); /* linear's backward reads it: stays */
            lsi_tape_drop(n.tape, y); /* nobody does: goes */
            assert_non_null(x->data);
            assert_null(y->data);
        }
        used[drop] = lsi_arena_used_bytes(n.arena);
        assert_ok(lsi_tape_backward(n.tape, z));
        assert_null(x->data);
        assert_null(y->data);
        assert_null(y->grad);
        assert_non_null(x->grad);
        assert_non_null(z->data);
        assert_int_equal(lsi_arena_used_bytes(n.arena), 2 * 64); /* these two */
    }
    assert_int_equal(used[0] - used[1], 64);
    close_net(&n);
}

/* What only forward needed goes before backward asks for memory; what a node still has to read does
 * not. */
static void unread_data_goes_when_backward_starts(void **state) {
    (void)state;
    for (int watch_read = 0; watch_read < 2; watch_read++) {
        net n;
        open_net(&n);
        lsi_tensor *x = input(&n, 4, C, true);
        lsi_tensor *y = lsi_op_linear(n.tape, x, leaf(&n, MIX_W), leaf(&n, MIX_B));
        lsi_tensor *loss = lsi_op_gelu(n.tape, lsi_op_add(n.tape, x, y));
        n.watched = watch_read ? x : y;
        n.fail_at = n.n_events + 1; /* ends the pass after gelu's backward */
        assert_fails(lsi_tape_backward(n.tape, loss), LS_ERR_ABORTED, "handler failed");
        assert_int_equal(n.watched_is_gone, !watch_read);
        close_net(&n);
    }
}

static void steps_reuse_the_same_memory(void **state) {
    (void)state;
    net n;
    open_net(&n);
    assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    size_t peak = lsi_arena_peak_bytes(n.arena);
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int step = 0; step < 5; step++) {
        n.events[0] = '\0';
        lsi_tape_reset(n.tape, true);
        assert_ok(lsi_tape_backward(n.tape, forward(&n)));
    }
    assert_int_equal(lsi_arena_peak_bytes(n.arena), peak);
    assert_int_equal(lsi_mem_n_blocks(), n_blocks);
    close_net(&n);
}

static void tied_parameter_has_one_leaf(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tensor *first = leaf(&n, TOKENS);
    assert_ptr_equal(leaf(&n, TOKENS), first);
    lsi_tape_reset(n.tape, true);
    assert_non_null(lsi_tape_param(n.tape, &n.params[TOKENS], 1000, 1, (int64_t[]){V * C}));
    close_net(&n);
}

/* More tensors than a chunk holds, more nodes than the first array. */
static void long_passes_work(void **state) {
    (void)state;
    net n;
    open_net(&n);
    lsi_tape_listen(n.tape, (ls_event_sink){0});
    lsi_tensor *x = input(&n, 1, 4, true), *sum = x;
    for (int i = 0; i < 1000; i++) sum = lsi_op_add(n.tape, sum, x);
    assert_ok(lsi_tape_backward(n.tape, sum));
    for (int i = 0; i < 4; i++) assert_true(((float *)x->grad)[i] == 1001.0f);
    close_net(&n);
}

/* Every allocation of a pass fails once, the tape's own included. */
static void failed_allocations_are_reported_and_leave_nothing(void **state) {
    (void)state;
    int64_t n_blocks = lsi_mem_n_blocks();
    net n;
    for (int64_t at = 1;; at++) {
        memset(&n, 0, sizeof n);
        fill_params(&n);
        lsi_mem_fail_at(at);
        ls_status status = lsi_arena_create(1 << 22, &n.arena);
        if (status == LS_OK) status = lsi_tape_create(n.arena, &n.tape);
        if (status == LS_OK) status = lsi_tape_backward(n.tape, forward(&n));
        lsi_tape_destroy(n.tape);
        lsi_arena_destroy(n.arena);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
        assert_int_equal(status, lsi_mem_has_failed() ? LS_ERR_MEMORY : LS_OK);
        if (!lsi_mem_has_failed()) break;
        assert_in_range(at, 1, 100);
    }
    lsi_mem_fail_at(0);
}

/* The arena is full at every possible point of the pass: all but `left` bytes are taken first. */
static void full_arenas_are_reported_and_leave_nothing(void **state) {
    (void)state;
    enum { ALL = 4 << 20 };
    net n;
    open_net(&n);
    lsi_tape_listen(n.tape, (ls_event_sink){0});
    size_t left = 0;
    for (;; left += 64) {
        lsi_tape_reset(n.tape, true);
        void *taken = lsi_arena_alloc(n.arena, ALL - left);
        assert_non_null(taken);
        ls_status status = lsi_tape_backward(n.tape, forward(&n));
        lsi_tape_reset(n.tape, true);
        assert_int_equal(lsi_arena_used_bytes(n.arena), ALL - left);
        lsi_arena_release(n.arena, taken);
        if (status == LS_OK) break;
        assert_int_equal(status, LS_ERR_MEMORY);
        assert_in_range(left, 0, 1 << 16);
    }
    assert_in_range(left, 1000, 1 << 16);
    close_net(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_in_reverse_order_and_once_each),
        cmocka_unit_test(frozen_parameters_get_no_gradient_and_no_event),
        cmocka_unit_test(all_frozen_leaves_nothing_to_do),
        cmocka_unit_test(dead_branches_give_zeros),
        cmocka_unit_test(failing_handler_ends_the_pass),
        cmocka_unit_test(inference_raises_forward_events_only),
        cmocka_unit_test(gradients_overwrite_first_and_add_when_asked),
        cmocka_unit_test(tensor_added_to_itself_gets_twice_the_gradient),
        cmocka_unit_test(gradients_count_paths),
        cmocka_unit_test(parameter_as_logits_gets_its_gradient),
        cmocka_unit_test(moved_buffers_are_followed),
        cmocka_unit_test(bad_calls_are_answered_through_the_tape),
        cmocka_unit_test(backward_refuses_what_makes_no_sense),
        cmocka_unit_test(nan_logits_give_a_nan_loss),
        cmocka_unit_test(activations_are_gone_after_backward),
        cmocka_unit_test(unread_data_goes_when_backward_starts),
        cmocka_unit_test(steps_reuse_the_same_memory),
        cmocka_unit_test(tied_parameter_has_one_leaf),
        cmocka_unit_test(long_passes_work),
        cmocka_unit_test(failed_allocations_are_reported_and_leave_nothing),
        cmocka_unit_test(full_arenas_are_reported_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
