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
 * centred row, in a second pass, because E(x^2) - mean^2 cancels. */
#include <math.h>

#include "tensor/columns.h"
#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
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
    void *out; /* y, or dx (which may be dy) */
    ls_dtype dtype;
    const float *w, *b;
    float *dw, *db;
    float *rooms; /* per worker three rows */
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
    for (int64_t row = begin; row < end; row++) forward_row(context, row, room_of(context, worker));
}

/* ---- backward: x ---- */

/* Sum of g and of g z. */
static void row_sums(const float *restrict x, const float *restrict dy, const float *restrict w,
                     int64_t n, row_stat stat, float sums[2]) {
    float lane_g[LSI_LANES] = {0.0f}, lane_gz[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
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

static void backward_row(const norm *nm, int64_t row, float *room) {
    int64_t n = nm->columns;
    const float *w = nm->w;
    const float *x = lsi_read(nm->x, nm->dtype, row * n, n, room);
    const float *dy = lsi_read(nm->dy, nm->dtype, row * n, n, room + n);
    float *dx = nm->first_x ? lsi_place(nm->out, nm->dtype, row * n, room + 2 * n)
                            : lsi_edit(nm->out, nm->dtype, row * n, n, room + 2 * n);
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

static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    for (int64_t row = begin; row < end; row++)
        backward_row(context, row, room_of(context, worker));
}

/* ---- backward: w and b, a tile of columns over all rows ---- */

static void add_block(const norm *nm, int64_t row, int64_t end, int64_t begin, int64_t width,
                      float *restrict total_w, float *restrict total_b) {
    float part_w[LSI_COLUMN_TILE] = {0.0f}, part_b[LSI_COLUMN_TILE] = {0.0f};
    float room_x[LSI_COLUMN_TILE], room_dy[LSI_COLUMN_TILE];
    for (; row < end; row++) {
        int64_t at = row * nm->columns + begin;
        const float *restrict x = lsi_read(nm->x, nm->dtype, at, width, room_x);
        const float *restrict dy = lsi_read(nm->dy, nm->dtype, at, width, room_dy);
        row_stat stat = nm->stats[row];
        for (int64_t c = 0; c < width; c++) {
            part_w[c] += dy[c] * ((x[c] - stat.mean) * stat.r);
            part_b[c] += dy[c];
        }
    }
    for (int64_t c = 0; c < width; c++) {
        total_w[c] += part_w[c];
        total_b[c] += part_b[c];
    }
}

static void sum_tile(const norm *nm, int64_t begin, int64_t width) {
    float total_w[LSI_COLUMN_TILE] = {0.0f}, total_b[LSI_COLUMN_TILE] = {0.0f};
    for (int64_t row = 0; row < nm->rows; row += LSI_ROW_BLOCK) {
        int64_t end = row + LSI_ROW_BLOCK < nm->rows ? row + LSI_ROW_BLOCK : nm->rows;
        add_block(nm, row, end, begin, width, total_w, total_b);
    }
    for (int64_t c = 0; c < width; c++) {
        if (nm->dw) lsi_contribute(nm->dw + begin + c, total_w[c], nm->first_w);
        if (nm->db) lsi_contribute(nm->db + begin + c, total_b[c], nm->first_b);
    }
}

static void sum_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t at = begin; at < end; at += LSI_COLUMN_TILE)
        sum_tile(context, at, end - at < LSI_COLUMN_TILE ? end - at : LSI_COLUMN_TILE);
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

static ls_status layer_norm_again(lsi_tape *tape, lsi_node *node) {
    norm nm = begin(tape, node, true);
    if (!nm.rooms) return lsi_tape_status(tape);
    nm.out = node->output->data;
    lsi_for_ranges(nm.rows, lsi_grain(2 * nm.columns), forward_range, &nm);
    end(tape, &nm);
    return LS_OK;
}

static ls_status layer_norm_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *x = node->input[0], *weight = node->input[1];
    norm nm = begin(tape, node, false);
    if (!nm.rooms) return lsi_tape_status(tape);
    nm.dy = node->output->grad;
    nm.dw = lsi_grad(tape, weight, &nm.first_w);
    nm.db = lsi_grad(tape, node->input[2], &nm.first_b);
    if (nm.dw || nm.db) lsi_for_ranges(nm.columns, lsi_grain(2 * nm.rows), sum_range, &nm);
    /* last: dx may overwrite dy */
    nm.out = lsi_grad_inherit(tape, node, x, &nm.first_x);
    if (nm.out) lsi_for_ranges(nm.rows, lsi_grain(2 * nm.columns), backward_range, &nm);
    end(tape, &nm);
    return lsi_tape_status(tape);
}

lsi_tensor *lsi_op_layer_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                              float epsilon) {
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
    (void)lsi_tape_fail_with(tape, layer_norm_again(tape, &node));
    lsi_tape_record(tape, &node);
    return lsi_tape_status(tape) == LS_OK ? y : NULL;
}
