/* rms_norm: y = x r w, r = 1 / sqrt(mean(x^2) + epsilon), per row of C elements.
 *
 *   x, y (rows,C)  w (C)
 *
 *   g  = dy w                  z = x r
 *   dx = r (g - z mean(g z))   dw = sum over rows of dy z
 *
 * Zhang, Sennrich: "Root mean square layer normalization", NeurIPS 2019; as Llama has it, with
 * epsilon under the root.
 *
 * Saved: r of each row, a float, so that backward needs no reduction over x^2 again; it reads x and
 * w. Sums over a row run in lanes ([Note: lanes] in math.h), sums over rows in blocks ([Note: sums
 * over rows] in columns.h), both in float32 for either type.
 *
 * add_rms_norm ([Note: pairs] in op.h): rows of x = a + b may be made right before their turn. */
#include <math.h>

#include "tensor/columns.h"
#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/add.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

enum { ROOM_ROWS = 3 };

typedef struct norm {
    const void *x, *dy;
    lsi_sum sum; /* makes x, a row right before its turn; y NULL: x is there */
    void *out;   /* y, or dx (which may be dy) */
    ls_dtype dtype;
    const float *w;
    float *dw;
    float *memory; /* w as floats, then per worker three rows */
    float *r;      /* (rows) */
    int64_t rows, columns;
    float epsilon;
    bool first_x, first_w;
} norm;

static float *room_of(const norm *nm, int worker) {
    return nm->memory + (1 + worker * ROOM_ROWS) * nm->columns;
}

/* ---- forward ---- */

static void forward_row(const norm *nm, int64_t row, float *room) {
    int64_t n = nm->columns;
    const float *restrict x = lsi_read(nm->x, nm->dtype, row * n, n, room);
    const float *restrict w = nm->w;
    float *restrict y = lsi_place(nm->out, nm->dtype, row * n, room + n);
    float r = 1.0f / sqrtf(lsi_row_dot(x, x, n) / (float)n + nm->epsilon);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * w[i];
    lsi_keep(nm->out, nm->dtype, row * n, n, y);
    nm->r[row] = r;
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    const norm *nm = context;
    for (int64_t row = begin; row < end; row++) {
        if (nm->sum.y) lsi_sum_elements(&nm->sum, row * nm->columns, (row + 1) * nm->columns);
        forward_row(nm, row, room_of(nm, worker));
    }
}

/* ---- backward: x ---- */

/* Sum of g x. */
static float sum_of_gx(const float *restrict x, const float *restrict dy, const float *restrict w,
                       int64_t n) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) lane[l] += dy[i + l] * w[i + l] * x[i + l];
    }
    for (int l = 0; i + l < n; l++) lane[l] += dy[i + l] * w[i + l] * x[i + l];
    return lsi_add_lanes(lane);
}

static void backward_row(const norm *nm, int64_t row, float *room) {
    int64_t n = nm->columns;
    bool first = nm->first_x;
    const float *w = nm->w;
    const float *x = lsi_read(nm->x, nm->dtype, row * n, n, room);
    const float *dy = lsi_read(nm->dy, nm->dtype, row * n, n, room + n);
    float *dx = first ? lsi_place(nm->out, nm->dtype, row * n, room + 2 * n)
                      : lsi_edit(nm->out, nm->dtype, row * n, n, room + 2 * n);
    float r = nm->r[row], mean_gz = sum_of_gx(x, dy, w, n) * r / (float)n;
    LSI_ELEMENTWISE
    for (int64_t i = 0; i < n; i++)
        lsi_contribute(dx + i, r * (dy[i] * w[i] - x[i] * r * mean_gz), first);
    lsi_keep(nm->out, nm->dtype, row * n, n, dx);
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    for (int64_t row = begin; row < end; row++)
        backward_row(context, row, room_of(context, worker));
}

/* ---- backward: w, a tile of columns over all rows ---- */

static void add_block(const norm *nm, int64_t row, int64_t end, int64_t begin, int64_t width,
                      float *restrict total) {
    float part[LSI_COLUMN_TILE] = {0.0f};
    float room_x[LSI_COLUMN_TILE], room_dy[LSI_COLUMN_TILE];
    for (; row < end; row++) {
        int64_t at = row * nm->columns + begin;
        const float *restrict x = lsi_read(nm->x, nm->dtype, at, width, room_x);
        const float *restrict dy = lsi_read(nm->dy, nm->dtype, at, width, room_dy);
        float r = nm->r[row];
        for (int64_t c = 0; c < width; c++) part[c] += dy[c] * (x[c] * r);
    }
    for (int64_t c = 0; c < width; c++) total[c] += part[c];
}

static void sum_tile(const norm *nm, int64_t begin, int64_t width) {
    float total[LSI_COLUMN_TILE] = {0.0f};
    for (int64_t row = 0; row < nm->rows; row += LSI_ROW_BLOCK) {
        int64_t end = row + LSI_ROW_BLOCK < nm->rows ? row + LSI_ROW_BLOCK : nm->rows;
        add_block(nm, row, end, begin, width, total);
    }
    for (int64_t c = 0; c < width; c++) lsi_contribute(nm->dw + begin + c, total[c], nm->first_w);
}

static void sum_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t at = begin; at < end; at += LSI_COLUMN_TILE)
        sum_tile(context, at, end - at < LSI_COLUMN_TILE ? end - at : LSI_COLUMN_TILE);
}

/* ---- the op ---- */

/* What forward and backward share; memory is NULL when there is none. */
static norm begin(lsi_tape *tape, const lsi_node *node) {
    const lsi_tensor *x = node->input[0], *weight = node->input[1];
    int64_t n = lsi_tensor_columns(x);
    norm nm = {.x = x->data,
               .dtype = x->dtype,
               .r = node->saved[0],
               .rows = lsi_tensor_rows(x),
               .columns = n,
               .epsilon = node->scalar};
    size_t n_rows = 1 + ROOM_ROWS * (size_t)lsi_compute_threads();
    nm.w = nm.memory = lsi_tape_scratch(tape, n_rows * (size_t)n * sizeof *nm.memory);
    if (nm.memory) lsi_to_floats(weight->data, weight->dtype, n, nm.memory);
    return nm;
}

static ls_status forward(lsi_tape *tape, const lsi_node *node, lsi_sum sum) {
    norm nm = begin(tape, node);
    if (!nm.memory) return lsi_tape_status(tape);
    nm.out = node->output->data;
    nm.sum = sum;
    lsi_for_ranges(nm.rows, lsi_grain(2 * nm.columns), forward_range, &nm);
    lsi_tape_release(tape, nm.memory);
    return LS_OK;
}

static ls_status rms_norm_again(lsi_tape *tape, lsi_node *node) {
    return forward(tape, node, (lsi_sum){0});
}

static ls_status rms_norm_backward(lsi_tape *tape, lsi_node *node) {
    norm nm = begin(tape, node);
    if (!nm.memory) return lsi_tape_status(tape);
    nm.dy = node->output->grad;
    nm.dw = lsi_grad(tape, node->input[1], &nm.first_w);
    if (nm.dw) lsi_for_ranges(nm.columns, lsi_grain(2 * nm.rows), sum_range, &nm);
    /* last: dx may overwrite dy */
    nm.out = lsi_grad_inherit(tape, node, node->input[0], &nm.first_x);
    if (nm.out) lsi_for_ranges(nm.rows, lsi_grain(2 * nm.columns), backward_range, &nm);
    lsi_tape_release(tape, nm.memory);
    return lsi_tape_status(tape);
}

static lsi_tensor *rms_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, float epsilon,
                            lsi_sum sum) {
    if (!lsi_op_begin(tape, "rms_norm", 2, (lsi_tensor *[]){x, weight})) return NULL;
    int64_t rows = lsi_tensor_rows(x), columns = lsi_tensor_columns(x);
    if (!lsi_op_has_dims(tape, "rms_norm", "weight", weight, 1, &columns) ||
        !lsi_op_is_weight(tape, "rms_norm", "weight", weight))
        return NULL;
    if (!(epsilon > 0.0f && epsilon < INFINITY))
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "rms_norm: expected a positive epsilon, found %g", (double)epsilon);
    if (!lsi_op_same_type(tape, "rms_norm", x, x)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    float *r = y ? lsi_tape_scratch(tape, (size_t)rows * sizeof *r) : NULL;
    if (!r) return NULL;
    lsi_node node = {.backward = rms_norm_backward,
                     .again = rms_norm_again,
                     .is_cheap = true,
                     .name = "rms_norm",
                     .input = {x, weight},
                     .output = y,
                     .reads = LSI_READS_INPUT(0) | LSI_READS_INPUT(1),
                     .saved = {r},
                     .scalar = epsilon};
    (void)lsi_tape_fail_with(tape, forward(tape, &node, sum));
    lsi_tape_record(tape, &node);
    return lsi_tape_status(tape) == LS_OK ? y : NULL;
}

lsi_tensor *lsi_op_rms_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, float epsilon) {
    return rms_norm(tape, x, weight, epsilon, (lsi_sum){0});
}

lsi_tensor *lsi_op_add_rms_norm(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_tensor *weight,
                                float epsilon, lsi_tensor **sum) {
    lsi_sum making;
    lsi_tensor *x = lsi_add_by_rows(tape, a, b, &making);
    lsi_tensor *y = rms_norm(tape, x, weight, epsilon, making);
    if (y) *sum = x;
    return y;
}
