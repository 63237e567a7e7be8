/* head_loss: the output layer of a language model and its loss in one: cross-entropy of x W^T.
 *
 *   x (rows,C)  W (V,C)  targets (rows)  ->  loss (1)
 *
 *   logits = round(x W^T)      loss = sum over rows of log(sum_v e^logits[v]) - logits[target]
 *   dlogits = round(softmax(logits) - (v == target)), 0 for rows without a target (-1)
 *   dx = dlogits W      dW = dlogits^T x
 *
 * The logits, by far the largest activation of a small model, are never there as a whole: rows are
 * taken in pieces of some 64 MiB, and while a piece's logits are at hand they become dlogits and
 * both products are made. So the gradients are computed in forward, with the loss as the end of
 * the pass: backward only hands dx on, and refuses a loss that is not the end (whose gradient is
 * not 1). The gradient buffer of W must be there in forward.
 *
 * Saved: dx. Logits and sums are float32 ([Note: lanes] in math.h), dlogits enter products in the
 * type of x; the sum over rows is in double, in row order. round() is to the tape's type for
 * outputs: to float32 it does nothing. */
#include <stdatomic.h>

#include "tensor/entropy.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

enum { PIECE_BYTES = 64 << 20, LEAST_ROWS = 64, ROW_ALIGN = 32 };

static _Atomic int64_t piece_bytes = PIECE_BYTES;

void lsi_head_loss_piece(int64_t bytes) {
    piece_bytes = bytes > 0 ? bytes : PIECE_BYTES;
}

typedef struct head_pass {
    lsi_tape *tape;
    const lsi_tensor *x, *weight;
    const int32_t *targets;
    int64_t rows, channels, vocab;
    int64_t piece, stride; /* rows of a piece; floats from row to row of its logits */
    float *logits;         /* (piece,stride) */
    ls_dtype output_dtype; /* whose numbers logits and dlogits are */
    double *row_loss;      /* (rows) */
    void *dx;              /* (rows,channels) of x's type; NULL: not wanted */
    float *dw;             /* NULL: not wanted */
    bool first;            /* dw is to be overwritten */
    int64_t begin;         /* first row of the piece at hand */
} head_pass;

static bool wants_grads(const head_pass *hp) {
    return hp->dx || hp->dw;
}

/* Rows of the piece: losses, and logits to dlogits in the type of x. */
static void loss_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const head_pass *hp = context;
    for (int64_t i = begin; i < end; i++) {
        float *row = hp->logits + i * hp->stride;
        int32_t target = hp->targets[hp->begin + i];
        double *loss = &hp->row_loss[hp->begin + i];
        lsi_round(row, hp->output_dtype, hp->vocab);
        *loss = wants_grads(hp) ? lsi_entropy_row(row, hp->vocab, target)
                                : lsi_entropy_row_alone(row, hp->vocab, target);
        if (!wants_grads(hp)) continue;
        if (hp->x->dtype == LS_DTYPE_F32)
            lsi_round(row, hp->output_dtype, hp->vocab);
        else /* its type is as narrow as any of outputs */
            lsi_narrow(row, hp->x->dtype, hp->vocab);
    }
}

static lsi_operand matrix(const head_pass *hp, const lsi_tensor *t, int64_t row, bool transposed) {
    const char *at = (const char *)t->data + row * hp->channels * lsi_dtype_size(t->dtype);
    return (lsi_operand){at, t->dtype, hp->channels, transposed};
}

static lsi_operand logit_grads(const head_pass *hp, bool transposed) {
    int64_t stride = hp->x->dtype == LS_DTYPE_F32 ? hp->stride : 2 * hp->stride;
    return (lsi_operand){hp->logits, hp->x->dtype, stride, transposed};
}

static ls_status make_logits(const head_pass *hp, int64_t rows) {
    lsi_product p = {.m = rows,
                     .n = hp->vocab,
                     .k = hp->channels,
                     .a = matrix(hp, hp->x, hp->begin, false),
                     .b = matrix(hp, hp->weight, 0, true),
                     .c = hp->logits,
                     .c_dtype = LS_DTYPE_F32,
                     .c_stride = hp->stride};
    return lsi_tape_multiply(hp->tape, &p);
}

static ls_status make_dx(const head_pass *hp, int64_t rows) {
    int64_t at = hp->begin * hp->channels * lsi_dtype_size(hp->x->dtype);
    lsi_product p = {.m = rows,
                     .n = hp->channels,
                     .k = hp->vocab,
                     .a = logit_grads(hp, false),
                     .b = matrix(hp, hp->weight, 0, false),
                     .c = (char *)hp->dx + at,
                     .c_dtype = hp->x->dtype,
                     .c_stride = hp->channels};
    return lsi_tape_multiply(hp->tape, &p);
}

static ls_status make_dw(const head_pass *hp, int64_t rows) {
    lsi_product p = {.m = hp->vocab,
                     .n = hp->channels,
                     .k = rows,
                     .a = logit_grads(hp, true),
                     .b = matrix(hp, hp->x, hp->begin, false),
                     .c = hp->dw,
                     .c_dtype = LS_DTYPE_F32,
                     .c_stride = hp->channels,
                     .add = !hp->first || hp->begin > 0};
    return lsi_tape_multiply(hp->tape, &p);
}

static ls_status run_piece(head_pass *hp, int64_t begin, int64_t rows) {
    hp->begin = begin;
    LSI_TRY(make_logits(hp, rows));
    lsi_for_ranges(rows, lsi_grain(4 * hp->vocab), loss_range, hp);
    if (hp->dx) LSI_TRY(make_dx(hp, rows));
    return hp->dw ? make_dw(hp, rows) : LS_OK;
}

static ls_status run(head_pass *hp, float *loss) {
    double sum = 0.0;
    for (int64_t begin = 0; begin < hp->rows; begin += hp->piece) {
        int64_t left = hp->rows - begin;
        LSI_TRY(run_piece(hp, begin, left < hp->piece ? left : hp->piece));
    }
    for (int64_t row = 0; row < hp->rows; row++) sum += hp->row_loss[row];
    *loss = (float)sum;
    return LS_OK;
}

static ls_status head_loss_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0];
    if (*(const float *)node->output->grad != 1.0f)
        return lsi_fail(LS_ERR_STATE,
                        "head_loss: expected to be the loss itself, found a gradient of %g; "
                        "scale gradients after the pass",
                        (double)*(const float *)node->output->grad);
    if (!x->needs_grad) return LS_OK;
    if (!x->grad && !x->grad_written && !x->param) {
        x->grad = node->saved[0];
        node->saved[0] = NULL;
        x->grad_written = true;
        return LS_OK;
    }
    bool first;
    void *grad = lsi_grad(tape, x, &first);
    if (!grad) return lsi_tape_status(tape);
    lsi_add_to_grad(grad, lsi_grad_dtype(x), node->saved[0], x->dtype, lsi_tensor_count(x), first);
    return LS_OK;
}

/* ---- the op ---- */

static ls_status check(const lsi_tensor *x, const lsi_tensor *weight, const int32_t *targets) {
    if (!targets) return lsi_fail(LS_ERR_ARGUMENT, "head_loss: expected targets, found NULL");
    for (int64_t row = 0; row < lsi_tensor_rows(x); row++)
        if (targets[row] < -1 || targets[row] >= weight->dims[0])
            return lsi_fail(LS_ERR_ARGUMENT,
                            "head_loss: row %lld: expected a target from -1 to %lld, found %d",
                            (long long)row, (long long)weight->dims[0] - 1, (int)targets[row]);
    return LS_OK;
}

/* Rows of logits that are there at once. */
static int64_t rows_of_piece(int64_t rows, int64_t stride) {
    int64_t piece = piece_bytes / (stride * (int64_t)sizeof(float)) / LEAST_ROWS * LEAST_ROWS;
    if (piece < LEAST_ROWS) piece = LEAST_ROWS;
    return piece < rows ? piece : rows;
}

static bool take_memory(head_pass *hp, lsi_node *node) {
    lsi_tensor *x = node->input[0], *weight = node->input[1];
    if (lsi_tape_is_recording(hp->tape)) {
        if (x->needs_grad) {
            node->saved[0] = hp->dx = lsi_tape_scratch(hp->tape, lsi_tensor_bytes(x));
            if (!hp->dx) return false;
        }
        hp->dw = lsi_grad(hp->tape, weight, &hp->first);
        if (!hp->dw && weight->needs_grad) return false;
    }
    size_t row_bytes = (size_t)hp->rows * sizeof *hp->row_loss;
    size_t logit_bytes = (size_t)(hp->piece * hp->stride) * sizeof *hp->logits;
    hp->logits = lsi_tape_scratch(hp->tape, logit_bytes + row_bytes);
    hp->row_loss = (double *)(void *)(hp->logits + hp->piece * hp->stride);
    return hp->logits != NULL;
}

lsi_tensor *lsi_op_head_loss(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight,
                             const int32_t *targets) {
    if (!lsi_op_begin(tape, "head_loss", 2, (lsi_tensor *[]){x, weight})) return NULL;
    const int64_t dims[] = {weight->dims[0], lsi_tensor_columns(x)};
    if (!lsi_op_has_dims(tape, "head_loss", "weight", weight, 2, dims)) return NULL;
    if (!lsi_op_same_type(tape, "head_loss", x, weight)) return NULL;
    if (!lsi_op_is_weight(tape, "head_loss", "weight", weight)) return NULL;
    ls_status status = check(x, weight, targets);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    lsi_tensor *loss = lsi_tape_activation_f32(tape, 1, (int64_t[]){1});
    if (!loss) return NULL;
    lsi_node node = {
        .backward = head_loss_backward, .name = "head_loss", .input = {x, weight}, .output = loss};
    head_pass hp = {.tape = tape,
                    .x = x,
                    .weight = weight,
                    .targets = targets,
                    .output_dtype = lsi_tape_output_dtype(tape),
                    .rows = lsi_tensor_rows(x),
                    .channels = dims[1],
                    .vocab = dims[0],
                    .stride = (dims[0] + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN};
    hp.piece = rows_of_piece(hp.rows, hp.stride);
    if (take_memory(&hp, &node)) (void)lsi_tape_fail_with(tape, run(&hp, loss->data));
    lsi_tape_release(tape, hp.logits);
    lsi_tape_record(tape, &node);
    return lsi_tape_status(tape) == LS_OK ? loss : NULL;
}
