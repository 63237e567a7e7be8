/* cross_entropy: loss = sum over rows of log(sum_v e^x[v]) - x[target].
 *
 *   logits x (rows,V)  targets (rows)  ->  loss (1)
 *
 *   dx[v] = dloss (e^x[v] / sum - (v == target)); a row without a target (-1): 0
 *
 * Saved: the gradient for dloss = 1, which forward computes in the place of the logits, since the
 * exponentials are at hand. So logits, the largest activation of a language model, exist once and
 * have no data afterwards; in backward the buffer becomes their gradient. Without recording the
 * logits stay as they are.
 *
 * Sums over a row in float32 lanes after subtracting the largest logit; the logarithm and the sum
 * over rows in double, in row order. A row with NaN gives a loss of NaN. */
#include <string.h>

#include "tensor/entropy.h"
#include "tensor/gemm.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct entropy {
    void *x;
    ls_dtype dtype;
    const int32_t *targets;
    double *row_loss;
    float *rooms; /* per worker one row */
    int64_t columns;
    bool keeps_logits;
} entropy;

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    const entropy *ce = context;
    int64_t n = ce->columns;
    float *room = ce->rooms + worker * n;
    for (int64_t row = begin; row < end; row++) {
        float *x = lsi_edit(ce->x, ce->dtype, row * n, n, room);
        ce->row_loss[row] = ce->keeps_logits ? lsi_entropy_row_alone(x, n, ce->targets[row])
                                             : lsi_entropy_row(x, n, ce->targets[row]);
        if (!ce->keeps_logits) lsi_keep(ce->x, ce->dtype, row * n, n, x);
    }
}

static ls_status check_targets(const int32_t *targets, int64_t rows, int64_t columns) {
    if (!targets) return lsi_fail(LS_ERR_ARGUMENT, "cross_entropy: expected targets, found NULL");
    for (int64_t row = 0; row < rows; row++) {
        if (targets[row] < -1 || targets[row] >= columns)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "cross_entropy: row %lld: expected a target from -1 to %lld, found %d",
                            (long long)row, (long long)columns - 1, (int)targets[row]);
    }
    return LS_OK;
}

/* ---- backward ---- */

typedef struct scaling {
    const void *from;
    void *to;
    ls_dtype dtype, to_dtype;
    float factor;
    bool first;
} scaling;

static void scale_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const scaling *s = context;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_from[LSI_STRETCH], room_to[LSI_STRETCH], factor = s->factor;
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *from = lsi_read(s->from, s->dtype, at, n, room_from);
        float *to = s->first ? lsi_place(s->to, s->to_dtype, at, room_to)
                             : lsi_edit(s->to, s->to_dtype, at, n, room_to);
        bool first = s->first;
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) lsi_contribute(to + i, from[i] * factor, first);
        lsi_keep(s->to, s->to_dtype, at, n, to);
    }
}

static ls_status cross_entropy_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *logits = node->input[0];
    scaling s = {.from = node->saved[0],
                 .dtype = logits->dtype,
                 .to_dtype = lsi_grad_dtype(logits),
                 .factor = *(const float *)node->output->grad};
    if (logits->param) {
        s.to = lsi_grad(tape, logits, &s.first);
        if (!s.to) return lsi_tape_status(tape);
    } else { /* the buffer changes its name */
        logits->grad = s.to = node->saved[0];
        node->saved[0] = NULL;
        logits->grad_written = s.first = true;
        if (s.factor == 1.0f) return LS_OK;
    }
    lsi_for_ranges(lsi_tensor_count(logits), lsi_grain(1), scale_range, &s);
    return LS_OK;
}

/* ---- the op ---- */

/* The buffer that will hold the gradient: that of the logits, or a copy if it is a parameter's. */
static void *take_logits(lsi_tape *tape, lsi_tensor *logits) {
    void *buffer = logits->data;
    if (!logits->param) {
        logits->data = NULL;
        return buffer;
    }
    size_t bytes = lsi_tensor_bytes(logits);
    buffer = lsi_tape_scratch(tape, bytes);
    if (buffer) memcpy(buffer, logits->data, bytes);
    return buffer;
}

static float sum_rows(const double *row_loss, int64_t rows) {
    double sum = 0.0;
    for (int64_t row = 0; row < rows; row++) sum += row_loss[row];
    return (float)sum;
}

lsi_tensor *lsi_op_cross_entropy(lsi_tape *tape, lsi_tensor *logits, const int32_t *targets) {
    if (!lsi_op_begin(tape, "cross_entropy", 1, &logits)) return NULL;
    int64_t rows = lsi_tensor_rows(logits), columns = lsi_tensor_columns(logits);
    ls_status status = check_targets(targets, rows, columns);
    bool needs_grad = lsi_tape_is_recording(tape) && logits->needs_grad;
    if (status == LS_OK && needs_grad && logits->n_uses > 0 && !logits->param)
        status = lsi_fail(LS_ERR_STATE, "cross_entropy: its logits have another use already");
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);

    lsi_tensor *loss = lsi_tape_activation_f32(tape, 1, (int64_t[]){1});
    size_t room_bytes = (size_t)lsi_compute_threads() * (size_t)columns * sizeof(float);
    double *row_loss =
        loss ? lsi_tape_scratch(tape, (size_t)rows * sizeof *row_loss + room_bytes) : NULL;
    if (!row_loss) return NULL;
    lsi_node node = {.backward = cross_entropy_backward,
                     .name = "cross_entropy",
                     .input = {logits},
                     .output = loss};
    entropy ce = {.x = logits->data,
                  .dtype = logits->dtype,
                  .targets = targets,
                  .row_loss = row_loss,
                  .rooms = (float *)(void *)(row_loss + rows),
                  .columns = columns,
                  .keeps_logits = !needs_grad};
    if (needs_grad) {
        ce.x = take_logits(tape, logits);
        node.saved[0] = ce.x;
    }
    if (ce.x) {
        lsi_for_ranges(rows, lsi_grain(4 * columns), forward_range, &ce);
        *(float *)loss->data = sum_rows(row_loss, rows);
    }
    lsi_tape_release(tape, row_loss);
    lsi_tape_record(tape, &node);
    return ce.x ? loss : NULL;
}
