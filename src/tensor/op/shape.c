/* Checks of inputs and shapes (see shape.h). */
#include "tensor/op/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/trace.h"
#include "tensor/tape_impl.h"

bool lsi_op_begin(lsi_tape *tape, const char *name, int n_inputs, lsi_tensor *const *inputs) {
    if (tape->status != LS_OK) return false;
    for (int i = 0; i < n_inputs; i++) {
        if (!inputs[i]) {
            (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                                "%s: input %d: expected a tensor, found NULL", name, i);
            return false;
        }
        if (!inputs[i]->data) {
            (void)lsi_tape_fail(
                tape, LS_ERR_STATE,
                "%s: input %d has no data: it was dropped, or used by cross_entropy", name, i);
            return false;
        }
    }
    lsi_tape_begin_span(tape);
    return true;
}

bool lsi_op_has_dims(lsi_tape *tape, const char *name, const char *what, const lsi_tensor *t,
                     int n_dims, const int64_t *dims) {
    if (t->n_dims == n_dims && memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims) == 0)
        return true;
    (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT, "%s: expected %s of shape %s, found %s", name, what,
                        lsi_dims_text(n_dims, dims), lsi_dims_text(t->n_dims, t->dims));
    return false;
}

bool lsi_op_same_type(lsi_tape *tape, const char *name, const lsi_tensor *a, const lsi_tensor *b) {
    if (a->param && a->dtype != LS_DTYPE_F32 && a->needs_grad) {
        (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                            "%s: expected a result of an op, found parameter %s of type %s", name,
                            a->param->name, ls_dtype_name(a->dtype));
        return false;
    }
    if (a->dtype == tape->dtype && b->dtype == tape->dtype) return true;
    (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT, "%s: expected inputs of type %s, found %s and %s",
                        name, ls_dtype_name(tape->dtype), ls_dtype_name(a->dtype),
                        ls_dtype_name(b->dtype));
    return false;
}

bool lsi_op_is_weight(lsi_tape *tape, const char *name, const char *what, const lsi_tensor *t) {
    if (!t || t->param || t->dtype == LS_DTYPE_F32 || !t->needs_grad) return true;
    (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                        "%s: expected a parameter as %s, found a result of type %s", name, what,
                        ls_dtype_name(t->dtype));
    return false;
}

const char *lsi_dims_text(int n_dims, const int64_t *dims) {
    enum { N_TEXTS = 4, TEXT_BYTES = LSI_MAX_DIMS * 21 + 3 };
    static _Thread_local char texts[N_TEXTS][TEXT_BYTES];
    static _Thread_local int next;
    char *text = texts[next++ % N_TEXTS];
    int at = snprintf(text, TEXT_BYTES, "(");
    for (int i = 0; i < n_dims && i < LSI_MAX_DIMS; i++)
        at += snprintf(text + at, (size_t)(TEXT_BYTES - at), i ? ",%lld" : "%lld",
                       (long long)dims[i]);
    snprintf(text + at, (size_t)(TEXT_BYTES - at), ")");
    return text;
}
