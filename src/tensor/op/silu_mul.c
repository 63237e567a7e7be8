/* silu_mul: y = g s u, s = 1 / (1 + e^-g), the gated unit of Llama's feed-forward layers.
 *
 *   g (gate), u (up), y (n)      dg = dy u s (1 + g (1 - s))      du = dy g s
 *
 * Shazeer: "GLU variants improve transformer", 2020 (SwiGLU).
 *
 * Saved: nothing of its own; backward reads gate and up and computes s again, which is cheaper than
 * keeping it. The exponential is the unbounded one: from a bound a compiler makes a case of its own
 * that every lane computes, g times the least s, and that product is subnormal, which takes a
 * processor a hundred times as long. */
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct gated {
    const void *gate, *up, *dy;
    void *y;
    void *dgate, *dup; /* NULL: not wanted; dgate may be dy */
    ls_dtype dtype;
    bool first_gate, first_up;
} gated;

static inline float logistic(float x) {
    return 1.0f / (1.0f + lsi_expf(-x));
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const gated *loop = context;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_g[LSI_STRETCH], room_u[LSI_STRETCH], room_y[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *g = lsi_read(loop->gate, loop->dtype, at, n, room_g);
        const float *u = lsi_read(loop->up, loop->dtype, at, n, room_u);
        float *y = lsi_place(loop->y, loop->dtype, at, room_y);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) y[i] = g[i] * logistic(g[i]) * u[i];
        lsi_keep(loop->y, loop->dtype, at, n, y);
    }
}

/* One stretch of one gradient: dx = or += dy slope. slope is not in a tensor; dx may be dy. */
static void contribute(void *dx, ls_dtype dtype, int64_t at, int64_t n, const float *dy,
                       const float *slope, bool first) {
    float room[LSI_STRETCH];
    float *out = first ? lsi_place(dx, dtype, at, room) : lsi_edit(dx, dtype, at, n, room);
    LSI_ELEMENTWISE
    for (int64_t i = 0; i < n; i++) lsi_contribute(out + i, dy[i] * slope[i], first);
    lsi_keep(dx, dtype, at, n, out);
}

/* up first: gate's gradient may overwrite dy. */
static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const gated *loop = context;
    for (int64_t at = begin; at < end; at += LSI_STRETCH) {
        float room_g[LSI_STRETCH], room_u[LSI_STRETCH], room_dy[LSI_STRETCH];
        float of_gate[LSI_STRETCH], of_up[LSI_STRETCH];
        int64_t n = end - at < LSI_STRETCH ? end - at : LSI_STRETCH;
        const float *g = lsi_read(loop->gate, loop->dtype, at, n, room_g);
        const float *u = lsi_read(loop->up, loop->dtype, at, n, room_u);
        const float *dy = lsi_read(loop->dy, loop->dtype, at, n, room_dy);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++) {
            float s = logistic(g[i]), gated_unit = g[i] * s;
            of_up[i] = gated_unit;
            of_gate[i] = u[i] * (s + gated_unit * (1.0f - s));
        }
        if (loop->dup) contribute(loop->dup, loop->dtype, at, n, dy, of_up, loop->first_up);
        if (loop->dgate) contribute(loop->dgate, loop->dtype, at, n, dy, of_gate, loop->first_gate);
    }
}

static ls_status silu_mul_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    lsi_tensor *y = node->output;
    gated loop = {
        .gate = node->input[0]->data, .up = node->input[1]->data, .y = y->data, .dtype = y->dtype};
    lsi_for_ranges(lsi_tensor_count(y), lsi_grain(4), forward_range, &loop);
    return LS_OK;
}

static ls_status silu_mul_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *gate = node->input[0], *up = node->input[1], *y = node->output;
    gated loop = {.gate = gate->data, .up = up->data, .dy = y->grad, .dtype = y->dtype};
    loop.dup = lsi_grad(tape, up, &loop.first_up);
    loop.dgate = lsi_grad_inherit(tape, node, gate, &loop.first_gate);
    if (loop.dup || loop.dgate)
        lsi_for_ranges(lsi_tensor_count(y), lsi_grain(8), backward_range, &loop);
    return lsi_tape_status(tape);
}

lsi_tensor *lsi_op_silu_mul(lsi_tape *tape, lsi_tensor *gate, lsi_tensor *up) {
    if (!lsi_op_begin(tape, "silu_mul", 2, (lsi_tensor *[]){gate, up})) return NULL;
    if (!lsi_op_has_dims(tape, "silu_mul", "up", up, gate->n_dims, gate->dims)) return NULL;
    if (!lsi_op_same_type(tape, "silu_mul", gate, up)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, gate->n_dims, gate->dims);
    if (!y) return NULL;
    lsi_node node = {.backward = silu_mul_backward,
                     .again = silu_mul_again,
                     .is_cheap = true,
                     .name = "silu_mul",
                     .input = {gate, up},
                     .output = y,
                     .reads = LSI_READS_INPUT(0) | LSI_READS_INPUT(1)};
    (void)silu_mul_again(tape, &node);
    lsi_tape_record(tape, &node);
    return y;
}
