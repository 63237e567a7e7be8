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
#include "tensor/threads.h"

typedef struct sum {
    const float *a, *b; /* b NULL: copy a */
    float *y;
} sum;

static void add_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const sum *s = context;
    if (!s->b) {
        memcpy(s->y + begin, s->a + begin, (size_t)(end - begin) * sizeof *s->y);
        return;
    }
    const float *a = s->a, *b = s->b;
    float *y = s->y;
    LSI_ELEMENTWISE
    for (int64_t i = begin; i < end; i++) y[i] = a[i] + b[i];
}

static void contribute(const float *dy, float *grad, bool first, int64_t n) {
    sum s = {dy, first ? NULL : grad, grad};
    lsi_for_ranges(n, lsi_grain(1), add_range, &s);
}

static ls_status add_backward(lsi_tape *tape, lsi_node *node) {
    int64_t n = lsi_tensor_count(node->output);
    const float *dy = node->output->grad;
    lsi_tensor *other = node->input[0], *heir = node->input[1];
    if (!heir->needs_grad || heir->grad_written) {
        other = node->input[1];
        heir = node->input[0];
    }
    bool first;
    float *grad = lsi_grad(tape, other, &first);
    if (grad) contribute(dy, grad, first, n);
    grad = lsi_grad_inherit(tape, node, heir, &first);
    if (grad && grad != dy) contribute(dy, grad, first, n);
    return lsi_tape_status(tape);
}

lsi_tensor *lsi_op_add(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b) {
    if (!lsi_op_begin(tape, "add", 2, (lsi_tensor *[]){a, b})) return NULL;
    if (!lsi_op_has_dims(tape, "add", "second input", b, a->n_dims, a->dims)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, a->n_dims, a->dims);
    if (!y) return NULL;
    sum s = {a->data, b->data, y->data};
    lsi_for_ranges(lsi_tensor_count(y), lsi_grain(1), add_range, &s);
    lsi_node node = {.backward = add_backward, .name = "add", .input = {a, b}, .output = y};
    lsi_tape_record(tape, &node);
    return y;
}
