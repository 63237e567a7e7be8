/* gelu: y = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
 *
 * This is 0.5 x (1 + tanh(u)), GPT-2's "gelu_new", written with the logistic function
 * s = 1 / (1 + e^(-2u)), which keeps its relative precision where 1 + tanh(u) cancels.
 *
 *   x, y (n)          dx = dy (s + x s (1 - s) 2 du/dx)
 *
 * Saved: nothing of its own; backward reads x and computes s again, which is cheaper than keeping
 * it: the activation is four times as wide as the rest of a block. The exponent is cut where
 * e^(-2u) is still finite and y is below 1e-36. */
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

#define TWO_ROOT_2_OVER_PI 1.59576912f
#define CUBIC 0.044715f

typedef struct gelu_loop {
    const void *x, *dy;
    void *out; /* y, or dx (which may be dy) */
    ls_dtype dtype;
    bool first;
} gelu_loop;

/* e^(-2u) */
static inline float tail(float x) {
    const float a = -TWO_ROOT_2_OVER_PI * LSI_LOG2_E, b = a * CUBIC;
    return lsi_exp2f_bounded(x * lsi_fma(b, x * x, a));
}

static inline float slope(float x) {
    float e = tail(x);
    float s = 1.0f / (1.0f + e);
    float two_du = lsi_fma(3.0f * CUBIC * TWO_ROOT_2_OVER_PI, x * x, TWO_ROOT_2_OVER_PI);
    return lsi_fma(x * (s * (e * s)), two_du, s);
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const gelu_loop *loop = context;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_x[LSI_STRETCH], room_y[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *x = lsi_read(loop->x, loop->dtype, at, n, room_x);
        float *y = lsi_place(loop->out, loop->dtype, at, room_y);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1.0f + tail(x[i]));
        lsi_keep(loop->out, loop->dtype, at, n, y);
    }
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const gelu_loop *loop = context;
    bool first = loop->first;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_x[LSI_STRETCH], room_dy[LSI_STRETCH], room_dx[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *x = lsi_read(loop->x, loop->dtype, at, n, room_x);
        const float *dy = lsi_read(loop->dy, loop->dtype, at, n, room_dy);
        float *dx = first ? lsi_place(loop->out, loop->dtype, at, room_dx)
                          : lsi_edit(loop->out, loop->dtype, at, n, room_dx);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) lsi_contribute(dx + i, dy[i] * slope(x[i]), first);
        lsi_keep(loop->out, loop->dtype, at, n, dx);
    }
}

static ls_status gelu_backward(lsi_tape *tape, lsi_node *node) {
    gelu_loop loop = {
        .x = node->input[0]->data, .dy = node->output->grad, .dtype = node->output->dtype};
    int64_t n = lsi_tensor_count(node->output);
    loop.out = lsi_grad_inherit(tape, node, node->input[0], &loop.first);
    if (loop.out) lsi_for_ranges(n, lsi_grain(4), backward_range, &loop);
    return lsi_tape_status(tape);
}

static ls_status gelu_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    lsi_tensor *y = node->output;
    gelu_loop loop = {.x = node->input[0]->data, .out = y->data, .dtype = y->dtype};
    lsi_for_ranges(lsi_tensor_count(y), lsi_grain(4), forward_range, &loop);
    return LS_OK;
}

lsi_tensor *lsi_op_gelu(lsi_tape *tape, lsi_tensor *x) {
    if (!lsi_op_begin(tape, "gelu", 1, (lsi_tensor *[]){x})) return NULL;
    if (!lsi_op_same_type(tape, "gelu", x, x)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    if (!y) return NULL;
    lsi_node node = {.backward = gelu_backward,
                     .again = gelu_again,
                     .is_cheap = true,
                     .name = "gelu",
                     .input = {x},
                     .output = y,
                     .reads = LSI_READS_INPUT(0)};
    (void)gelu_again(tape, &node);
    lsi_tape_record(tape, &node);
    return y;
}
