/* linear: y = x W + b, and the form with W stored transposed.
 *
 *   x (rows,K)  W (K,N)  b (N)  ->  y (rows,N)          linear
 *   x (rows,K)  W (N,K)         ->  y (rows,N)          linear_transposed
 *
 *   dx = dy W^T     dW = x^T dy     db = sum over rows of dy
 *
 * Saved: nothing of its own; backward reads x and W. The bias is written into y before the product,
 * which then adds to it (beta = 1), because a pass that only writes is cheaper than one that reads
 * and writes afterwards. Products accumulate in float32 as the library does it. */
#include <string.h>

#include "tensor/columns.h"
#include "tensor/gemm.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/threads.h"

typedef struct bias_rows {
    const float *bias;
    float *y;
    int64_t columns;
} bias_rows;

static void fill_bias(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const bias_rows *fill = context;
    for (int64_t row = begin; row < end; row++)
        memcpy(fill->y + row * fill->columns, fill->bias, (size_t)fill->columns * sizeof(float));
}

/* dx = or += dy op(W); W is (K,N) when transpose_w, else (N,K). */
static ls_status input_grad(lsi_tape *tape, lsi_node *node, bool transpose_w) {
    lsi_tensor *x = node->input[0], *weight = node->input[1];
    int64_t rows = lsi_tensor_rows(x), k = lsi_tensor_columns(x);
    int64_t n = lsi_tensor_columns(node->output);
    bool first;
    float *dx = lsi_grad(tape, x, &first);
    if (!dx) return lsi_tape_status(tape);
    return lsi_gemm(false, transpose_w, rows, k, n, 1.0f, node->output->grad, n, weight->data,
                    lsi_tensor_columns(weight), first ? 0.0f : 1.0f, dx, k);
}

/* dW = or += left^T right, both with one row per row of x. */
static ls_status weight_grad(lsi_tape *tape, lsi_tensor *weight, int64_t rows, const float *left,
                             const float *right) {
    bool first;
    float *dw = lsi_grad(tape, weight, &first);
    if (!dw) return lsi_tape_status(tape);
    int64_t m = weight->dims[0], n = weight->dims[1];
    return lsi_gemm(true, false, m, n, rows, 1.0f, left, m, right, n, first ? 0.0f : 1.0f, dw, n);
}

static ls_status linear_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0];
    const float *dy = node->output->grad;
    int64_t rows = lsi_tensor_rows(x);
    bool first;
    float *db = lsi_grad(tape, node->input[2], &first);
    if (db) lsi_add_columns(dy, rows, lsi_tensor_columns(node->output), db, first);
    LSI_TRY(weight_grad(tape, node->input[1], rows, x->data, dy));
    return input_grad(tape, node, true);
}

static ls_status linear_transposed_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0];
    LSI_TRY(weight_grad(tape, node->input[1], lsi_tensor_rows(x), node->output->grad, x->data));
    return input_grad(tape, node, false);
}

/* y of shape (…,n) for x of shape (…,K). */
static lsi_tensor *new_output(lsi_tape *tape, const lsi_tensor *x, int64_t n) {
    int64_t dims[LSI_MAX_DIMS];
    memcpy(dims, x->dims, sizeof dims);
    dims[x->n_dims - 1] = n;
    return lsi_tape_activation(tape, x->n_dims, dims);
}

static uint32_t what_backward_reads(const lsi_tensor *x, const lsi_tensor *weight) {
    return (weight->needs_grad ? LSI_READS_INPUT(0) : 0) | (x->needs_grad ? LSI_READS_INPUT(1) : 0);
}

lsi_tensor *lsi_op_linear(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias) {
    if (!lsi_op_begin(tape, "linear", bias ? 3 : 2, (lsi_tensor *[]){x, weight, bias})) return NULL;
    int64_t rows = lsi_tensor_rows(x), k = lsi_tensor_columns(x), n = lsi_tensor_columns(weight);
    if (!lsi_op_has_dims(tape, "linear", "weight", weight, 2, (int64_t[]){k, n})) return NULL;
    if (bias && !lsi_op_has_dims(tape, "linear", "bias", bias, 1, (int64_t[]){n})) return NULL;
    lsi_tensor *y = new_output(tape, x, n);
    if (!y) return NULL;
    if (bias) {
        bias_rows fill = {bias->data, y->data, n};
        lsi_for_ranges(rows, lsi_grain(n), fill_bias, &fill);
    }
    ls_status status = lsi_gemm(false, false, rows, n, k, 1.0f, x->data, k, weight->data, n,
                                bias ? 1.0f : 0.0f, y->data, n);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    lsi_node node = {.backward = linear_backward,
                     .name = "linear",
                     .input = {x, weight, bias},
                     .output = y,
                     .reads = what_backward_reads(x, weight)};
    lsi_tape_record(tape, &node);
    return y;
}

lsi_tensor *lsi_op_linear_transposed(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight) {
    if (!lsi_op_begin(tape, "linear_transposed", 2, (lsi_tensor *[]){x, weight})) return NULL;
    int64_t rows = lsi_tensor_rows(x), k = lsi_tensor_columns(x), n = weight->dims[0];
    if (!lsi_op_has_dims(tape, "linear_transposed", "weight", weight, 2, (int64_t[]){n, k}))
        return NULL;
    lsi_tensor *y = new_output(tape, x, n);
    if (!y) return NULL;
    ls_status status =
        lsi_gemm(false, true, rows, n, k, 1.0f, x->data, k, weight->data, k, 0.0f, y->data, n);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    lsi_node node = {.backward = linear_transposed_backward,
                     .name = "linear_transposed",
                     .input = {x, weight},
                     .output = y,
                     .reads = what_backward_reads(x, weight)};
    lsi_tape_record(tape, &node);
    return y;
}
