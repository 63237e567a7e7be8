/* dropout: y = x * factor, factor = 0 with probability p, else 1 / (1 - p).
 *
 *   x, y (n)          dx = dy * factor
 *
 * Saved: the stream (a few words); backward draws the same mask again from it. */
#include "tensor/dropout_mask.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

enum { PIECE_GROUPS = 8, PIECE = PIECE_GROUPS * LSI_MASK_GROUP };

typedef struct dropout_loop {
    const void *in;
    void *out; /* may be `in` */
    ls_dtype dtype;
    int64_t n;
    float p;
    bool first;
    lsi_rng_stream stream;
} dropout_loop;

/* Items are pieces of PIECE elements. */
static void dropout_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const dropout_loop *loop = context;
    bool first = loop->first;
    for (int64_t piece = begin; piece < end; piece++) {
        float factor[PIECE], room_in[PIECE], room_out[PIECE];
        int64_t at = piece * PIECE;
        int64_t n = loop->n - at < PIECE ? loop->n - at : PIECE;
        const float *in = lsi_read(loop->in, loop->dtype, at, n, room_in);
        float *out = first ? lsi_place(loop->out, loop->dtype, at, room_out)
                           : lsi_edit(loop->out, loop->dtype, at, n, room_out);
        lsi_mask_factors(&loop->stream, loop->p, piece * PIECE_GROUPS, n, factor);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) lsi_contribute(out + i, in[i] * factor[i], first);
        lsi_keep(loop->out, loop->dtype, at, n, out);
    }
}

static void run(dropout_loop *loop) {
    lsi_for_ranges((loop->n + PIECE - 1) / PIECE, lsi_grain(PIECE), dropout_range, loop);
}

static ls_status dropout_backward(lsi_tape *tape, lsi_node *node) {
    dropout_loop loop = {.in = node->output->grad,
                         .dtype = node->output->dtype,
                         .n = lsi_tensor_count(node->output),
                         .p = node->scalar,
                         .stream = node->stream};
    loop.out = lsi_grad_inherit(tape, node, node->input[0], &loop.first);
    if (loop.out) run(&loop);
    return lsi_tape_status(tape);
}

static ls_status dropout_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    dropout_loop loop = {.in = node->input[0]->data,
                         .out = node->output->data,
                         .dtype = node->output->dtype,
                         .n = lsi_tensor_count(node->output),
                         .p = node->scalar,
                         .first = true,
                         .stream = node->stream};
    run(&loop);
    return LS_OK;
}

lsi_tensor *lsi_op_dropout(lsi_tape *tape, lsi_tensor *x, float p) {
    if (!lsi_op_begin(tape, "dropout", 1, (lsi_tensor *[]){x})) return NULL;
    if (!(p >= 0.0f && p < 1.0f))
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "dropout: expected a probability in [0, 1), found %g", (double)p);
    if (p == 0.0f || !lsi_tape_is_recording(tape)) return x;
    if (!lsi_op_same_type(tape, "dropout", x, x)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    if (!y) return NULL;
    lsi_node node = {.backward = dropout_backward,
                     .again = dropout_again,
                     .name = "dropout",
                     .input = {x},
                     .output = y,
                     .scalar = p,
                     .stream = lsi_tape_next_stream(tape)};
    (void)dropout_again(tape, &node);
    lsi_tape_record(tape, &node);
    return y;
}
