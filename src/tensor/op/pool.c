/* average_pool: the mean over all places of an image, per channel.
 *
 *   x (B,H,W,C)  ->  y (B,C) = sum over H W of x / (H W)          dx = dy / (H W) at each place
 *
 * Saved: nothing, and backward reads nothing. Sums run over places in order, in float32: an image
 * at the end of a network has some dozens of them. Threads share images. */
#include <string.h>

#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct pool {
    const void *in; /* x, or dy */
    void *out;      /* y, or dx */
    ls_dtype dtype;
    int64_t n_places, n_channels;
    float *rooms; /* per worker two rows */
    bool first;
} pool;

enum { ROOM_ROWS = 2 };

static float *room_of(const pool *p, int worker) {
    return p->rooms + worker * ROOM_ROWS * p->n_channels;
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    const pool *p = context;
    int64_t n = p->n_channels;
    float *restrict sum = room_of(p, worker), *room = sum + n;
    for (int64_t image = begin; image < end; image++) {
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t i = 0; i < p->n_places; i++) {
            const float *x = lsi_read(p->in, p->dtype, (image * p->n_places + i) * n, n, room);
            for (int64_t c = 0; c < n; c++) sum[c] += x[c];
        }
        float *y = lsi_place(p->out, p->dtype, image * n, room);
        for (int64_t c = 0; c < n; c++) y[c] = sum[c] / (float)p->n_places;
        lsi_keep(p->out, p->dtype, image * n, n, y);
    }
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    const pool *p = context;
    int64_t n = p->n_channels;
    bool first = p->first;
    float *room = room_of(p, worker);
    for (int64_t image = begin; image < end; image++) {
        const float *dy = lsi_read(p->in, p->dtype, image * n, n, room);
        for (int64_t i = 0; i < p->n_places; i++) {
            int64_t at = (image * p->n_places + i) * n;
            float *dx = first ? lsi_place(p->out, p->dtype, at, room + n)
                              : lsi_edit(p->out, p->dtype, at, n, room + n);
            for (int64_t c = 0; c < n; c++)
                lsi_contribute(dx + c, dy[c] / (float)p->n_places, first);
            lsi_keep(p->out, p->dtype, at, n, dx);
        }
    }
}

static ls_status run(lsi_tape *tape, pool *p, const lsi_tensor *x, lsi_range_fn range) {
    p->dtype = x->dtype;
    p->n_places = x->dims[1] * x->dims[2];
    p->n_channels = x->dims[3];
    size_t n_rooms = ROOM_ROWS * (size_t)lsi_compute_threads();
    p->rooms = lsi_tape_scratch(tape, n_rooms * (size_t)p->n_channels * sizeof *p->rooms);
    if (!p->rooms) return lsi_tape_status(tape);
    lsi_for_ranges(x->dims[0], lsi_grain(p->n_places * p->n_channels), range, p);
    lsi_tape_release(tape, p->rooms);
    return LS_OK;
}

static ls_status pool_backward(lsi_tape *tape, lsi_node *node) {
    pool p = {.in = node->output->grad};
    p.out = lsi_grad(tape, node->input[0], &p.first);
    return p.out ? run(tape, &p, node->input[0], backward_range) : lsi_tape_status(tape);
}

static ls_status pool_again(lsi_tape *tape, lsi_node *node) {
    pool p = {.in = node->input[0]->data, .out = node->output->data};
    return run(tape, &p, node->input[0], forward_range);
}

lsi_tensor *lsi_op_average_pool(lsi_tape *tape, lsi_tensor *x) {
    if (!lsi_op_begin(tape, "average_pool", 1, (lsi_tensor *[]){x})) return NULL;
    if (x->n_dims != 4)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "average_pool: expected images of shape (B,H,W,C), found %s",
                             lsi_dims_text(x->n_dims, x->dims));
    if (!lsi_op_same_type(tape, "average_pool", x, x)) return NULL;
    const int64_t dims[] = {x->dims[0], x->dims[3]};
    lsi_tensor *y = lsi_tape_activation(tape, 2, dims);
    if (!y) return NULL;
    lsi_node node = {.backward = pool_backward,
                     .again = pool_again,
                     .name = "average_pool",
                     .input = {x},
                     .output = y};
    if (pool_again(tape, &node) != LS_OK) return NULL;
    lsi_tape_record(tape, &node);
    return y;
}
