/* add: y = a + b, the residual connection.
 *
 *   a, b, y (n)          da = dy     db = dy
 *
 * Saved: nothing. One of the inputs takes over the gradient's buffer, the other gets a copy; a
 * tensor added to itself gets both. Norms may make the sum, a row at a time ([Note: pairs] in
 * op.h). */
#include "tensor/op/add.h"

#include <string.h>

#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

void lsi_sum_elements(const lsi_sum *s, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_a[LSI_STRETCH], room_b[LSI_STRETCH], room_y[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *a = lsi_read(s->a, s->dtype, at, n, room_a);
        const float *b = lsi_read(s->b, s->dtype, at, n, room_b);
        float *y = lsi_place(s->y, s->dtype, at, room_y);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
        lsi_keep(s->y, s->dtype, at, n, y);
    }
}

static void add_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    lsi_sum_elements(context, begin, end);
}

/* y = a */
static void copy_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const lsi_sum *s = context;
    size_t size = ls_dtype_bytes(s->dtype), first = (size_t)begin * size;
    memcpy((char *)s->y + first, (const char *)s->a + first, (size_t)(end - begin) * size);
}

static void contribute(const void *dy, ls_dtype dtype, void *grad, bool first, int64_t n) {
    lsi_sum s = {dy, grad, grad, dtype};
    lsi_for_ranges(n, lsi_grain(1), first ? copy_range : add_range, &s);
}

static ls_status add_backward(lsi_tape *tape, lsi_node *node) {
    int64_t n = lsi_tensor_count(node->output);
    const void *dy = node->output->grad;
    ls_dtype dtype = node->output->dtype;
    lsi_tensor *other = node->input[0], *heir = node->input[1];
    if (!heir->needs_grad || heir->grad_written) {
        other = node->input[1];
        heir = node->input[0];
    }
    bool first;
    void *grad = lsi_grad(tape, other, &first);
    if (grad) contribute(dy, dtype, grad, first, n);
    grad = lsi_grad_inherit(tape, node, heir, &first);
    if (grad && grad != dy) contribute(dy, dtype, grad, first, n);
    return lsi_tape_status(tape);
}

static lsi_sum sum_of(const lsi_node *node) {
    const lsi_tensor *y = node->output;
    return (lsi_sum){node->input[0]->data, node->input[1]->data, y->data, y->dtype};
}

static void run(const lsi_node *node) {
    lsi_sum s = sum_of(node);
    lsi_for_ranges(lsi_tensor_count(node->output), lsi_grain(1), add_range, &s);
}

static ls_status add_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    run(node);
    return LS_OK;
}

/* The node of a + b, with memory for its output; false on failure. */
static bool prepare(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_node *node) {
    if (!lsi_op_begin(tape, "add", 2, (lsi_tensor *[]){a, b})) return false;
    if (!lsi_op_has_dims(tape, "add", "second input", b, a->n_dims, a->dims)) return false;
    if (!lsi_op_same_type(tape, "add", a, b)) return false;
    lsi_tensor *y = lsi_tape_activation(tape, a->n_dims, a->dims);
    if (!y) return false;
    *node = (lsi_node){
        .backward = add_backward, .again = add_again, .name = "add", .input = {a, b}, .output = y};
    return true;
}

lsi_tensor *lsi_op_add(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b) {
    lsi_node node;
    if (!prepare(tape, a, b, &node)) return NULL;
    run(&node);
    lsi_tape_record(tape, &node);
    return node.output;
}

/* Where a sum and its norm in turns are slower than one after the other: 1.1 to 1.5 times in
 * bfloat16, 1.25 times on two threads. */
static bool is_faster_whole(const lsi_tensor *a) {
    return a->dtype != LS_DTYPE_F32 || lsi_compute_threads() > 1;
}

lsi_tensor *lsi_add_by_rows(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_sum *sum) {
    *sum = (lsi_sum){0};
    if (!a || is_faster_whole(a)) return lsi_op_add(tape, a, b);
    lsi_node node;
    if (!prepare(tape, a, b, &node)) return NULL;
    lsi_tape_record(tape, &node);
    *sum = sum_of(&node);
    return node.output;
}
