/* dropout: y = x * factor, factor = 0 with probability p, else 1 / (1 - p).
 *
 *   x, y (n)          dx = dy * factor
 *
 * Saved: the stream (a few words); backward draws the same mask again from it. */
#include "tensor/dropout_mask.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/threads.h"

enum { PIECE_GROUPS = 8, PIECE = PIECE_GROUPS * LSI_MASK_GROUP };

typedef struct dropout_loop {
    const float *in;
    float *out; /* may be `in` */
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
        float factor[PIECE];
        int64_t at = piece * PIECE;
        int64_t n = loop->n - at < PIECE ? loop->n - at : PIECE;
        const float *in = loop->in + at;
        float *out = loop->out + at;
        lsi_mask_factors(&loop->stream, loop->p, piece * PIECE_GROUPS, n, factor);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) lsi_contribute(out + i, in[i] * factor[i], first);
    }
}

static void run(dropout_loop *loop) {
    lsi_for_ranges((loop->n + PIECE - 1) / PIECE, lsi_grain(PIECE), dropout_range, loop);
}

static ls_status dropout_backward(lsi_tape *tape, lsi_node *node) {
    dropout_loop loop = {.in = node->output->grad,
                         .n = lsi_tensor_count(node->output),
                         .p = node->scalar,
                         .stream = node->stream};
    loop.out = lsi_grad_inherit(tape, node, node->input[0], &loop.first);
    if (loop.out) run(&loop);
    return lsi_tape_status(tape);
}

lsi_tensor *lsi_op_dropout(lsi_tape *tape, lsi_tensor *x, float p) {
    if (!lsi_op_begin(tape, "dropout", 1, (lsi_tensor *[]){x})) return NULL;
    if (!(p >= 0.0f && p < 1.0f))
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "dropout: expected a probability in [0, 1), found %g", (double)p);
    if (p == 0.0f || !lsi_tape_is_recording(tape)) return x;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    if (!y) return NULL;
    lsi_rng_stream stream = lsi_tape_next_stream(tape);
    dropout_loop loop = {x->data, y->data, lsi_tensor_count(y), p, true, stream};
    run(&loop);
    lsi_node node = {.backward = dropout_backward,
                     .name = "dropout",
                     .input = {x},
                     .output = y,
                     .scalar = p,
                     .stream = stream};
    lsi_tape_record(tape, &node);
    return y;
}
