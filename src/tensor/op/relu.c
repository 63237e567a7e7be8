/* relu: y = x where x > 0, else 0.
 *
 *   x, y (n)          dx = dy where y > 0, else 0
 *
 * Saved: nothing of its own; backward reads y, which the next layer reads too, so x is not kept
 * for this op. That is also why y is not cheap to forget: x would have to be made again first. */
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct relu_loop {
    const void *in, *dy; /* x, or y with dy */
    void *out;           /* y, or dx (which may be dy) */
    ls_dtype dtype;
    bool first;
} relu_loop;

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const relu_loop *loop = context;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_x[LSI_STRETCH], room_y[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *x = lsi_read(loop->in, loop->dtype, at, n, room_x);
        float *y = lsi_place(loop->out, loop->dtype, at, room_y);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
        lsi_keep(loop->out, loop->dtype, at, n, y);
    }
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const relu_loop *loop = context;
    bool first = loop->first;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_y[LSI_STRETCH], room_dy[LSI_STRETCH], room_dx[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *y = lsi_read(loop->in, loop->dtype, at, n, room_y);
        const float *dy = lsi_read(loop->dy, loop->dtype, at, n, room_dy);
        float *dx = first ? lsi_place(loop->out, loop->dtype, at, room_dx)
                          : lsi_edit(loop->out, loop->dtype, at, n, room_dx);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) lsi_contribute(dx + i, y[i] > 0.0f ? dy[i] : 0.0f, first);
        lsi_keep(loop->out, loop->dtype, at, n, dx);
    }
}

static ls_status relu_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *y = node->output;
    relu_loop loop = {.in = y->data, .dy = y->grad, .dtype = y->dtype};
    loop.out = lsi_grad_inherit(tape, node, node->input[0], &loop.first);
    if (loop.out) lsi_for_ranges(lsi_tensor_count(y), lsi_grain(1), backward_range, &loop);
    return lsi_tape_status(tape);
}

static ls_status relu_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    lsi_tensor *y = node->output;
    relu_loop loop = {.in = node->input[0]->data, .out = y->data, .dtype = y->dtype};
    lsi_for_ranges(lsi_tensor_count(y), lsi_grain(1), forward_range, &loop);
    return LS_OK;
}

lsi_tensor *lsi_op_relu(lsi_tape *tape, lsi_tensor *x) {
    if (!lsi_op_begin(tape, "relu", 1, (lsi_tensor *[]){x})) return NULL;
    if (!lsi_op_same_type(tape, "relu", x, x)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    if (!y) return NULL;
    lsi_node node = {.backward = relu_backward,
                     .again = relu_again,
                     .name = "relu",
                     .input = {x},
                     .output = y,
                     .reads = LSI_READS_OUTPUT};
    (void)relu_again(tape, &node);
    lsi_tape_record(tape, &node);
    return y;
}
