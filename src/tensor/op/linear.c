/* linear: y = x W + b, in both layouts that W comes in.
 *
 *   x (rows,K)  W (K,N)  b (N)  ->  y (rows,N)          linear
 *   x (rows,K)  W (N,K)  b (N)  ->  y (rows,N)          linear_transposed, logits
 *
 *   dx = dy op(W)^T     dW = x^T dy, or dy^T x     db = sum over rows of dy
 *
 * logits: y and dy are float32 whatever the type of x, and hold numbers of the tape's type for
 * outputs: y is rounded to it when it is made, dy before anything is made from it. dy enters
 * products in the type of x, in the first half of its rows where that is narrower.
 *
 * Saved: nothing of its own; backward reads x and W. The bias goes into the product, and all
 * gradients are added to what is there by the product itself. Products accumulate in float32 as the
 * library does it, and dW is float32 whatever the type of x.
 *
 * linear_gelu ([Note: pairs] in op.h): gelu takes the rows of y as the product completes them. */
#include <string.h>

#include "tensor/columns.h"
#include "tensor/op.h"
#include "tensor/op/gelu.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

/* number[0] of a node: W is (N,K). number[1]: the type that logits are rounded to; 0: no logits. */

static lsi_operand matrix(const lsi_tensor *t, bool transposed) {
    return (lsi_operand){t->data, t->dtype, lsi_tensor_columns(t), transposed};
}

static lsi_operand output_grad(const lsi_node *node, bool transposed) {
    const lsi_tensor *y = node->output;
    ls_dtype dtype = node->input[0]->dtype;
    int64_t stride = lsi_tensor_columns(y) * lsi_dtype_size(y->dtype) / lsi_dtype_size(dtype);
    return (lsi_operand){y->grad, dtype, stride, transposed};
}

/* ---- logits ---- */

typedef struct row_work {
    float *values; /* (rows,columns) */
    int64_t columns;
    ls_dtype dtype;
} row_work;

static void round_range(void *context, int64_t begin, int64_t end, int worker) {
    const row_work *w = context;
    (void)worker;
    lsi_round(w->values + begin * w->columns, w->dtype, (end - begin) * w->columns);
}

static void narrow_range(void *context, int64_t begin, int64_t end, int worker) {
    const row_work *w = context;
    (void)worker;
    for (int64_t row = begin; row < end; row++)
        lsi_narrow(w->values + row * w->columns, w->dtype, w->columns);
}

static void for_rows(const lsi_tensor *y, void *values, ls_dtype dtype, lsi_range_fn range) {
    row_work w = {values, lsi_tensor_columns(y), dtype};
    if (dtype != LS_DTYPE_F32) lsi_for_ranges(lsi_tensor_rows(y), lsi_grain(w.columns), range, &w);
}

/* ---- backward ---- */

/* dx = or += dy op(W)^T */
static ls_status input_grad(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0];
    bool first;
    void *dx = lsi_grad(tape, x, &first);
    if (!dx) return lsi_tape_status(tape);
    lsi_product p = {.m = lsi_tensor_rows(x),
                     .n = lsi_tensor_columns(x),
                     .k = lsi_tensor_columns(node->output),
                     .a = output_grad(node, false),
                     .b = matrix(node->input[1], !node->number[0]),
                     .c = dx,
                     .c_dtype = lsi_grad_dtype(x),
                     .c_stride = lsi_tensor_columns(x),
                     .add = !first};
    return lsi_tape_multiply(tape, &p);
}

/* dW = or += x^T dy; for W stored transposed, dy^T x */
static ls_status weight_grad(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0], *weight = node->input[1];
    bool first;
    float *dw = lsi_grad(tape, weight, &first);
    if (!dw) return lsi_tape_status(tape);
    lsi_product p = {.m = weight->dims[0],
                     .n = weight->dims[1],
                     .k = lsi_tensor_rows(x),
                     .a = node->number[0] ? output_grad(node, true) : matrix(x, true),
                     .b = node->number[0] ? matrix(x, false) : output_grad(node, false),
                     .c = dw,
                     .c_dtype = lsi_grad_dtype(weight),
                     .c_stride = weight->dims[1],
                     .add = !first};
    return lsi_tape_multiply(tape, &p);
}

static ls_status linear_backward(lsi_tape *tape, lsi_node *node) {
    const lsi_tensor *y = node->output;
    ls_dtype x_dtype = node->input[0]->dtype, output_dtype = (ls_dtype)node->number[1];
    bool first, is_logits = output_dtype != 0;
    if (is_logits)
        for_rows(y, y->grad, x_dtype == LS_DTYPE_F32 ? output_dtype : x_dtype, round_range);
    float *db = lsi_grad(tape, node->input[2], &first);
    if (db)
        lsi_add_columns(y->grad, y->dtype, lsi_tensor_rows(y), lsi_tensor_columns(y), db, first);
    if (is_logits) for_rows(y, y->grad, x_dtype, narrow_range);
    LSI_TRY(weight_grad(tape, node));
    return input_grad(tape, node);
}

/* ---- forward ---- */

static ls_status forward(lsi_tape *tape, const lsi_node *node, lsi_rows_done rows_done) {
    const lsi_tensor *x = node->input[0], *bias = node->input[2];
    lsi_tensor *y = node->output;
    int64_t n = lsi_tensor_columns(y);
    float *floats = NULL;
    lsi_product p = {.m = lsi_tensor_rows(x),
                     .n = n,
                     .k = lsi_tensor_columns(x),
                     .a = matrix(x, false),
                     .b = matrix(node->input[1], node->number[0]),
                     .c = y->data,
                     .c_dtype = y->dtype,
                     .c_stride = n,
                     .rows_done = rows_done};
    if (bias) {
        floats = lsi_tape_scratch(tape, (size_t)n * sizeof *floats);
        if (!floats) return lsi_tape_status(tape);
        lsi_to_floats(bias->data, bias->dtype, n, floats);
        p.bias = floats;
    }
    ls_status status = lsi_tape_multiply(tape, &p);
    lsi_tape_release(tape, floats);
    if (node->number[1]) for_rows(y, y->data, (ls_dtype)node->number[1], round_range);
    return status;
}

static ls_status linear_again(lsi_tape *tape, lsi_node *node) {
    return forward(tape, node, (lsi_rows_done){0});
}

/* ---- the ops ---- */

typedef enum form { LINEAR, LINEAR_TRANSPOSED, LOGITS } form;

static const char *const form_names[] = {"linear", "linear_transposed", "logits"};

/* y of shape (…,n) for x of shape (…,K). */
static lsi_tensor *new_output(lsi_tape *tape, const lsi_tensor *x, int64_t n, form as) {
    int64_t dims[LSI_MAX_DIMS];
    memcpy(dims, x->dims, sizeof dims);
    dims[x->n_dims - 1] = n;
    return as == LOGITS ? lsi_tape_activation_f32(tape, x->n_dims, dims)
                        : lsi_tape_activation(tape, x->n_dims, dims);
}

static uint32_t what_backward_reads(const lsi_tensor *x, const lsi_tensor *weight) {
    return (weight->needs_grad ? LSI_READS_INPUT(0) : 0) | (x->needs_grad ? LSI_READS_INPUT(1) : 0);
}

/* The node of a form, with memory for its output; false on failure. */
static bool prepare(lsi_tape *tape, form as, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                    lsi_node *node) {
    const char *name = form_names[as];
    bool transposed = as != LINEAR;
    if (!lsi_op_begin(tape, name, bias ? 3 : 2, (lsi_tensor *[]){x, weight, bias})) return false;
    int64_t k = lsi_tensor_columns(x), n = transposed ? weight->dims[0] : weight->dims[1];
    const int64_t dims[] = {transposed ? n : k, transposed ? k : n};
    if (!lsi_op_has_dims(tape, name, "weight", weight, 2, dims)) return false;
    if (bias && !lsi_op_has_dims(tape, name, "bias", bias, 1, &n)) return false;
    if (!lsi_op_same_type(tape, name, x, weight)) return false;
    if (!lsi_op_is_weight(tape, name, "bias", bias)) return false;
    lsi_tensor *y = new_output(tape, x, n, as);
    if (!y) return false;
    *node = (lsi_node){.backward = linear_backward,
                       .again = linear_again,
                       .name = name,
                       .input = {x, weight, bias},
                       .output = y,
                       .reads = what_backward_reads(x, weight),
                       .number = {transposed, as == LOGITS ? lsi_tape_output_dtype(tape) : 0}};
    return true;
}

static lsi_tensor *linear(lsi_tape *tape, form as, lsi_tensor *x, lsi_tensor *weight,
                          lsi_tensor *bias) {
    lsi_node node;
    if (!prepare(tape, as, x, weight, bias, &node)) return NULL;
    if (linear_again(tape, &node) != LS_OK) return NULL;
    lsi_tape_record(tape, &node);
    return node.output;
}

lsi_tensor *lsi_op_linear(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias) {
    return linear(tape, LINEAR, x, weight, bias);
}

lsi_tensor *lsi_op_linear_transposed(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight,
                                     lsi_tensor *bias) {
    return linear(tape, LINEAR_TRANSPOSED, x, weight, bias);
}

lsi_tensor *lsi_op_logits(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias) {
    return linear(tape, LOGITS, x, weight, bias);
}

lsi_tensor *lsi_op_linear_gelu(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                               lsi_tensor **product) {
    lsi_node node;
    lsi_gelu gelu;
    if (!prepare(tape, LINEAR, x, weight, bias, &node)) return NULL;
    if (!lsi_gelu_open(tape, node.output, &gelu)) return NULL;
    if (forward(tape, &node, (lsi_rows_done){lsi_gelu_rows, &gelu}) != LS_OK) return NULL;
    lsi_tape_record(tape, &node);
    lsi_tensor *y = lsi_gelu_record(&gelu);
    if (y) *product = node.output;
    return y;
}
