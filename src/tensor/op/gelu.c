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
#include "tensor/op/gelu.h"

#include "base/clock.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/tape_impl.h"
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

/* Elements [at, at + n) of y. */
static void forward(const lsi_tensor *x, const lsi_tensor *y, int64_t at, int64_t n) {
    int64_t bytes = at * lsi_dtype_size(y->dtype);
    gelu_loop loop = {
        .x = (const char *)x->data + bytes, .out = (char *)y->data + bytes, .dtype = y->dtype};
    lsi_for_ranges(n, lsi_grain(4), forward_range, &loop);
}

static ls_status gelu_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    forward(node->input[0], node->output, 0, lsi_tensor_count(node->output));
    return LS_OK;
}

static lsi_node node_of(lsi_tensor *x, lsi_tensor *y) {
    return (lsi_node){.backward = gelu_backward,
                      .again = gelu_again,
                      .is_cheap = true,
                      .name = "gelu",
                      .input = {x},
                      .output = y,
                      .reads = LSI_READS_INPUT(0)};
}

lsi_tensor *lsi_op_gelu(lsi_tape *tape, lsi_tensor *x) {
    if (!lsi_op_begin(tape, "gelu", 1, (lsi_tensor *[]){x})) return NULL;
    if (!lsi_op_same_type(tape, "gelu", x, x)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    if (!y) return NULL;
    lsi_node node = node_of(x, y);
    (void)gelu_again(tape, &node);
    lsi_tape_record(tape, &node);
    return y;
}

/* ---- inside of the op that makes x ---- */

bool lsi_gelu_open(lsi_tape *tape, lsi_tensor *x, lsi_gelu *gelu) {
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    *gelu = (lsi_gelu){tape, x, y, 0};
    return y != NULL;
}

void lsi_gelu_rows(void *context, int64_t first, int64_t n) {
    lsi_gelu *gelu = context;
    int64_t columns = lsi_tensor_columns(gelu->y), out_ns = lsi_tape_step_out(gelu->tape);
    forward(gelu->x, gelu->y, first * columns, n * columns);
    if (out_ns != 0) gelu->ns += lsi_now_ns() - out_ns;
    lsi_tape_step_in(gelu->tape, out_ns);
}

lsi_tensor *lsi_gelu_record(const lsi_gelu *gelu) {
    lsi_node node = node_of(gelu->x, gelu->y);
    lsi_tape_begin_span(gelu->tape);
    gelu->tape->away_ns = -gelu->ns; /* what the rows took, before this span began */
    lsi_tape_record(gelu->tape, &node);
    return lsi_tape_status(gelu->tape) == LS_OK ? gelu->y : NULL;
}
