/* add: y = a + b, the residual connection.
 *
 *   a, b, y (n)          da = dy     db = dy
 *
 * Saved: nothing. One of the inputs takes over the gradient's buffer, the other gets a copy; a
 * tensor added to itself gets both. */
#include <string.h>

#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct sum {
    const void *a, *b; /* b NULL: copy a */
    void *y;           /* may be a or b */
    ls_dtype dtype;
} sum;

static void add_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const sum *s = context;
    if (!s->b) {
        size_t size = ls_dtype_bytes(s->dtype);
        memcpy((char *)s->y + (size_t)begin * size, (const char *)s->a + (size_t)begin * size,
               (size_t)(end - begin) * size);
        return;
    }
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

static void contribute(const void *dy, ls_dtype dtype, void *grad, bool first, int64_t n) {
    sum s = {dy, first ? NULL : grad, grad, dtype};
    lsi_for_ranges(n, lsi_grain(1), add_range, &s);
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

static void run(const lsi_node *node) {
    lsi_tensor *y = node->output;
    sum s = {node->input[0]->data, node->input[1]->data, y->data, y->dtype};
    lsi_for_ranges(lsi_tensor_count(y), lsi_grain(1), add_range, &s);
}

static ls_status add_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    run(node);
    return LS_OK;
}

lsi_tensor *lsi_op_add(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b) {
    if (!lsi_op_begin(tape, "add", 2, (lsi_tensor *[]){a, b})) return NULL;
    if (!lsi_op_has_dims(tape, "add", "second input", b, a->n_dims, a->dims)) return NULL;
    if (!lsi_op_same_type(tape, "add", a, b)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, a->n_dims, a->dims);
    if (!y) return NULL;
    lsi_node node = {
        .backward = add_backward, .again = add_again, .name = "add", .input = {a, b}, .output = y};
    run(&node);
    lsi_tape_record(tape, &node);
    return y;
}
