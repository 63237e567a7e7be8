/* layer_norm: y = (x - mean) r w + b, r = 1 / sqrt(var + epsilon), per row of C elements.
 *
 *   x, y (rows,C)  w, b (C)
 *
 *   g  = dy w                  z = (x - mean) r
 *   dx = r (g - mean(g) - z mean(g z))
 *   dw = sum over rows of dy z            db = sum over rows of dy
 *
 * Saved: mean and r of each row, two floats, so that backward needs no reduction over x again;
 * it reads x and w. Sums over a row run in lanes ([Note: lanes] in math.h), sums over rows in
 * blocks ([Note: sums over rows] in columns.h), both in float32. The variance is that of the
 * centred row, in a second pass, because E(x^2) - mean^2 cancels.
 *
 * add_layer_norm ([Note: pairs] in op.h): rows of x = a + b may be made right before their turn. */
#include <math.h>
#include <string.h>

#include "tensor/columns.h"
#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/add.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

/* Facts of a row that are saved. */
typedef struct row_stat {
    float mean, r;
} row_stat;

enum { ROOM_ROWS = 3 };

typedef struct norm {
    const void *x, *dy;
    lsi_sum sum; /* makes x, a row right before its turn; y NULL: x is there */
    void *out;   /* y, or dx (which may be dy) */
    ls_dtype dtype;
    const float *w, *b;
    float *dw, *db;
    float *rooms; /* per worker three rows */
    float *parts; /* per block of rows its sums for dw and db */
    row_stat *stats;
    int64_t rows, columns;
    float epsilon;
    bool first_x, first_w, first_b;
} norm;

/* ---- forward ---- */

static void forward_row(const norm *nm, int64_t row, float *room) {
    int64_t n = nm->columns;
    const float *restrict x = lsi_read(nm->x, nm->dtype, row * n, n, room);
    const float *restrict w = nm->w, *restrict b = nm->b;
    float *restrict y = lsi_place(nm->out, nm->dtype, row * n, room + n);
    float mean = lsi_row_sum(x, n) / (float)n;
    float r = 1.0f / sqrtf(lsi_row_squares(x, n, mean) / (float)n + nm->epsilon);
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * r * w[i] + b[i];
    lsi_keep(nm->out, nm->dtype, row * n, n, y);
    nm->stats[row] = (row_stat){mean, r};
}

static float *room_of(const norm *nm, int worker) {
    return nm->rooms + worker * ROOM_ROWS * nm->columns;
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    const norm *nm = context;
    for (int64_t row = begin; row < end; row++) {
        if (nm->sum.y) lsi_sum_elements(&nm->sum, row * nm->columns, (row + 1) * nm->columns);
        forward_row(nm, row, room_of(nm, worker));
    }
}

/* ---- backward ---- */

static int64_t n_row_blocks(const norm *nm) {
    return (nm->rows + LSI_ROW_BLOCK - 1) / LSI_ROW_BLOCK;
}

/* Sum of g and of g z. */
static void row_sums(const float *restrict x, const float *restrict dy, const float *restrict w,
                     int64_t n, row_stat stat, float sums[2]) {
    float lane_g[LSI_LANES] = {0.0f}, lane_gz[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) {
            float g = dy[i + l] * w[i + l];
            lane_g[l] += g;
            lane_gz[l] += g * ((x[i + l] - stat.mean) * stat.r);
        }
    }
    for (int l = 0; i + l < n; l++) {
        float g = dy[i + l] * w[i + l];
        lane_g[l] += g;
        lane_gz[l] += g * ((x[i + l] - stat.mean) * stat.r);
    }
    sums[0] = lsi_add_lanes(lane_g);
    sums[1] = lsi_add_lanes(lane_gz);
}

/* dx of a row. */
static void store_dx(const norm *nm, int64_t row, const float *x, const float *dy, float *room) {
    int64_t n = nm->columns;
    const float *w = nm->w;
    float *dx = nm->first_x ? lsi_place(nm->out, nm->dtype, row * n, room)
                            : lsi_edit(nm->out, nm->dtype, row * n, n, room);
    row_stat stat = nm->stats[row];
    float sums[2];
    row_sums(x, dy, w, n, stat, sums);
    float mean_g = sums[0] / (float)n, mean_gz = sums[1] / (float)n;
    bool first = nm->first_x;
    LSI_ELEMENTWISE
    for (int64_t i = 0; i < n; i++) {
        float z = (x[i] - stat.mean) * stat.r;
        lsi_contribute(dx + i, stat.r * (dy[i] * w[i] - mean_g - z * mean_gz), first);
    }
    lsi_keep(nm->out, nm->dtype, row * n, n, dx);
}

/* A row's share of dw and db. */
static void add_row(const norm *nm, int64_t row, const float *restrict x, const float *restrict dy,
                    float *restrict part_w, float *restrict part_b) {
    row_stat stat = nm->stats[row];
    for (int64_t i = 0; i < nm->columns; i++) {
        part_w[i] += dy[i] * ((x[i] - stat.mean) * stat.r);
        part_b[i] += dy[i];
    }
}

/* Items are blocks of rows, each of which is read once: while it is at hand, it gives to the sums
 * of its block and then becomes dx (which may lie in the place of dy). */
static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    const norm *nm = context;
    int64_t n = nm->columns;
    float *room = room_of(nm, worker);
    for (int64_t block = begin; block < end; block++) {
        float *part_w = nm->parts + block * 2 * n, *part_b = part_w + n;
        memset(part_w, 0, (size_t)(2 * n) * sizeof *part_w);
        int64_t stop = (block + 1) * LSI_ROW_BLOCK;
        for (int64_t row = block * LSI_ROW_BLOCK; row < stop && row < nm->rows; row++) {
            const float *x = lsi_read(nm->x, nm->dtype, row * n, n, room);
            const float *dy = lsi_read(nm->dy, nm->dtype, row * n, n, room + n);
            add_row(nm, row, x, dy, part_w, part_b);
            if (nm->out) store_dx(nm, row, x, dy, room + 2 * n);
        }
    }
}

/* The sums of the blocks, in order ([Note: sums over rows] in columns.h). */
static void add_parts(const norm *nm, const float *parts, float *grad, bool first) {
    int64_t n = nm->columns, n_blocks = n_row_blocks(nm);
    if (!grad) return;
    for (int64_t at = 0; at < n; at += LSI_COLUMN_TILE) {
        float total[LSI_COLUMN_TILE] = {0.0f};
        int64_t width = n - at < LSI_COLUMN_TILE ? n - at : LSI_COLUMN_TILE;
        for (int64_t block = 0; block < n_blocks; block++)
            for (int64_t c = 0; c < width; c++) total[c] += parts[block * 2 * n + at + c];
        for (int64_t c = 0; c < width; c++) lsi_contribute(grad + at + c, total[c], first);
    }
}

/* ---- the op ---- */

/* What forward and backward share: the weights as floats and the rooms, in one piece of scratch. */
static norm begin(lsi_tape *tape, const lsi_node *node, bool needs_bias) {
    const lsi_tensor *x = node->input[0], *weight = node->input[1], *bias = node->input[2];
    int64_t n = lsi_tensor_columns(x);
    norm nm = {.x = x->data,
               .dtype = x->dtype,
               .stats = node->saved[0],
               .rows = lsi_tensor_rows(x),
               .columns = n,
               .epsilon = node->scalar};
    size_t n_rows = 2 + ROOM_ROWS * (size_t)lsi_compute_threads();
    float *memory = lsi_tape_scratch(tape, n_rows * (size_t)n * sizeof *memory);
    if (!memory) return nm;
    nm.rooms = memory + 2 * n;
    lsi_to_floats(weight->data, weight->dtype, n, memory);
    if (needs_bias) lsi_to_floats(bias->data, bias->dtype, n, memory + n);
    nm.w = memory;
    nm.b = memory + n;
    return nm;
}

static void end(lsi_tape *tape, const norm *nm) {
    lsi_tape_release(tape, nm->rooms - 2 * nm->columns);
}

static ls_status forward(lsi_tape *tape, const lsi_node *node, lsi_sum sum) {
    norm nm = begin(tape, node, true);
    if (!nm.rooms) return lsi_tape_status(tape);
    nm.out = node->output->data;
    nm.sum = sum;
    lsi_for_ranges(nm.rows, lsi_grain(2 * nm.columns), forward_range, &nm);
    end(tape, &nm);
    return LS_OK;
}

static ls_status layer_norm_again(lsi_tape *tape, lsi_node *node) {
    return forward(tape, node, (lsi_sum){0});
}

static ls_status layer_norm_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0], *weight = node->input[1];
    norm nm = begin(tape, node, false);
    if (!nm.rooms) return lsi_tape_status(tape);
    nm.dy = node->output->grad;
    nm.dw = lsi_grad(tape, weight, &nm.first_w);
    nm.db = lsi_grad(tape, node->input[2], &nm.first_b);
    nm.out = lsi_grad_inherit(tape, node, x, &nm.first_x);
    int64_t n_blocks = n_row_blocks(&nm);
    nm.parts = lsi_tape_scratch(tape, (size_t)(n_blocks * 2 * nm.columns) * sizeof *nm.parts);
    if (nm.parts) {
        lsi_for_ranges(n_blocks, lsi_grain(4 * LSI_ROW_BLOCK * nm.columns), backward_range, &nm);
        add_parts(&nm, nm.parts, nm.dw, nm.first_w);
        add_parts(&nm, nm.parts + nm.columns, nm.db, nm.first_b);
    }
    lsi_tape_release(tape, nm.parts);
    end(tape, &nm);
    return lsi_tape_status(tape);
}

static lsi_tensor *layer_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                              float epsilon, lsi_sum sum) {
    if (!lsi_op_begin(tape, "layer_norm", 3, (lsi_tensor *[]){x, weight, bias})) return NULL;
    int64_t rows = lsi_tensor_rows(x), columns = lsi_tensor_columns(x);
    if (!lsi_op_has_dims(tape, "layer_norm", "weight", weight, 1, &columns) ||
        !lsi_op_has_dims(tape, "layer_norm", "bias", bias, 1, &columns))
        return NULL;
    if (!(epsilon > 0.0f && epsilon < INFINITY))
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "layer_norm: expected a positive epsilon, found %g", (double)epsilon);
    if (!lsi_op_same_type(tape, "layer_norm", x, x) ||
        !lsi_op_is_weight(tape, "layer_norm", "weight", weight) ||
        !lsi_op_is_weight(tape, "layer_norm", "bias", bias))
        return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    row_stat *stats = y ? lsi_tape_scratch(tape, (size_t)rows * sizeof *stats) : NULL;
    if (!stats) return NULL;
    lsi_node node = {.backward = layer_norm_backward,
                     .again = layer_norm_again,
                     .is_cheap = true,
                     .name = "layer_norm",
                     .input = {x, weight, bias},
                     .output = y,
                     .reads = LSI_READS_INPUT(0) | LSI_READS_INPUT(1),
                     .saved = {stats},
                     .scalar = epsilon};
    (void)lsi_tape_fail_with(tape, forward(tape, &node, sum));
    lsi_tape_record(tape, &node);
    return lsi_tape_status(tape) == LS_OK ? y : NULL;
}

lsi_tensor *lsi_op_layer_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                              float epsilon) {
    return layer_norm(tape, x, weight, bias, epsilon, (lsi_sum){0});
}

lsi_tensor *lsi_op_add_layer_norm(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_tensor *weight,
                                  lsi_tensor *bias, float epsilon, lsi_tensor **sum) {
    lsi_sum making;
    lsi_tensor *x = lsi_add_by_rows(tape, a, b, &making);
    lsi_tensor *y = layer_norm(tape, x, weight, bias, epsilon, making);
    if (y) *sum = x;
    return y;
}
