/* batch_norm: y = (x - mean) r w + b, r = 1 / sqrt(var + epsilon), per channel over all rows.
 *
 *   x, y (rows,C)  w, b (C)             mean and var of a channel: over the rows of this batch, or
 *                                       given (batch_norm_fixed: inference, running statistics)
 *   z  = (x - mean) r
 *   dw = sum over rows of dy z          db = sum over rows of dy
 *   dx = w r (dy - db / rows - z dw / rows)              given statistics: dx = w r dy
 *
 * Ioffe, Szegedy: "Batch normalization", ICML 2015. y uses the variance over rows; what is handed
 * out for running statistics is the unbiased one, as PyTorch has it.
 *
 * [Note: synchronised] Where the tape has an exchange, "the rows of this batch" are those of all
 * ranks, N of them. The loss is then the sum of the ranks' losses, and through mean and var each
 * of them depends on the x of all ranks. Differentiating the sum gives the same formula with sums
 * over all N rows:
 *
 *   dx = w r (dy - DB / N - z DW / N)   DB, DW: db and dw added up over ranks
 *
 * w and b exist once a rank: dw and db stay sums over this rank's rows, which the strategy adds up
 * like all gradients of parameters. Sent in forward: rows, sums and squares of each channel; in
 * backward: db and dw, in double, and only if x needs a gradient.
 *
 * Saved: mean and r of each channel, those of all ranks, and N; backward reads x and w.
 *
 * [Note: wide rows] Channels are few, so several rows are taken as one of `wide` columns, about
 * WIDE, and each of these columns has an accumulator. Rows come in chunks of a fixed number, which
 * threads share; a chunk's sums are float32, and chunks are put together in order, in double. The
 * order follows from the shape alone. Variance is summed about the mean of the chunk, which is
 * still in the nearest cache (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for
 * computing sample variances", 1979). */
#include <math.h>
#include <string.h>

#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/batch_norm_ranks.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

enum { WIDE = 256, CHUNK_WIDE_ROWS = 32 };

typedef struct norm {
    lsi_tape *tape;
    const void *x, *dy;
    void *out; /* y, or dx (which may be dy) */
    ls_dtype dtype;
    int64_t rows, columns;
    int64_t wide;       /* columns of a wide row, a multiple of `columns` */
    int64_t chunk_rows; /* of x */
    int64_t n_chunks;
    float *stats; /* mean (C), r (C) */
    double *sums; /* moments of all channels; in backward sums of dy (C) and of dy z (C) */
    void *memory;
    float *mean, *scale, *shift, *slope; /* wide rows, what each is: see the functions */
    float *chunks;                       /* two rows of C for each chunk */
    float *rooms;                        /* per worker ROOM_ROWS wide rows */
    bool first;
} norm;

enum { ROOM_ROWS = 4 };

/* Numbers of a node: whether the statistics were given, and else over how many rows they are. */
enum { IS_FIXED, ALL_ROWS };

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- shape and memory ---- */

static bool begin(norm *nm, lsi_tape *tape, const lsi_node *node) {
    const lsi_tensor *x = node->input[0];
    int64_t n = lsi_tensor_columns(x), rows_in_wide = n < WIDE ? WIDE / n : 1;
    *nm = (norm){.tape = tape,
                 .x = x->data,
                 .dtype = x->dtype,
                 .rows = lsi_tensor_rows(x),
                 .columns = n,
                 .wide = rows_in_wide * n,
                 .chunk_rows = rows_in_wide * CHUNK_WIDE_ROWS,
                 .stats = node->saved[0]};
    nm->n_chunks = (nm->rows + nm->chunk_rows - 1) / nm->chunk_rows;
    int64_t n_rooms = ROOM_ROWS * lsi_compute_threads();
    int64_t n_floats = (4 + n_rooms) * nm->wide + nm->n_chunks * 2 * n;
    size_t sums_bytes = (size_t)lsi_moments_count(n) * sizeof *nm->sums;
    nm->memory = lsi_tape_scratch(tape, sums_bytes + (size_t)n_floats * sizeof(float));
    if (!nm->memory) return false;
    nm->sums = nm->memory;
    float *floats = (float *)(nm->sums + lsi_moments_count(n));
    nm->mean = floats;
    nm->scale = floats + nm->wide;
    nm->shift = floats + 2 * nm->wide;
    nm->slope = floats + 3 * nm->wide;
    nm->rooms = floats + 4 * nm->wide;
    nm->chunks = nm->rooms + n_rooms * nm->wide;
    return true;
}

static void end(const norm *nm) {
    lsi_tape_release(nm->tape, nm->memory);
}

static float *room_of(const norm *nm, int worker) {
    return nm->rooms + worker * ROOM_ROWS * nm->wide;
}

/* The first C floats of a wide row, over and over. */
static void widen(const norm *nm, float *row) {
    for (int64_t i = nm->columns; i < nm->wide; i++) row[i] = row[i - nm->columns];
}

static int64_t rows_of_chunk(const norm *nm, int64_t chunk) {
    return smaller(nm->chunk_rows, nm->rows - chunk * nm->chunk_rows);
}

/* The element after a chunk. */
static int64_t chunk_end(const norm *nm, int64_t chunk) {
    return smaller((chunk + 1) * nm->chunk_rows, nm->rows) * nm->columns;
}

static int64_t width_at(const norm *nm, int64_t at, int64_t last) {
    return smaller(nm->wide, last - at);
}

/* Adds the columns of a wide row that belong to one channel, in order; the sums are its first C. */
static void narrow(const norm *nm, float *row) {
    for (int64_t at = nm->columns; at < nm->wide; at += nm->columns)
        for (int64_t c = 0; c < nm->columns; c++) row[c] += row[at + c];
}

/* ---- statistics of the batch ---- */

static void sum_chunk(const norm *nm, int64_t chunk, float *restrict sum, float *room) {
    int64_t last = chunk_end(nm, chunk);
    memset(sum, 0, (size_t)nm->wide * sizeof *sum);
    for (int64_t at = chunk * nm->chunk_rows * nm->columns; at < last; at += nm->wide) {
        int64_t n = width_at(nm, at, last);
        const float *restrict x = lsi_read(nm->x, nm->dtype, at, n, room);
        for (int64_t i = 0; i < n; i++) sum[i] += x[i];
    }
    narrow(nm, sum);
}

/* center: a wide row. */
static void square_chunk(const norm *nm, int64_t chunk, const float *restrict center,
                         float *restrict sum, float *room) {
    int64_t last = chunk_end(nm, chunk);
    memset(sum, 0, (size_t)nm->wide * sizeof *sum);
    for (int64_t at = chunk * nm->chunk_rows * nm->columns; at < last; at += nm->wide) {
        int64_t n = width_at(nm, at, last);
        const float *restrict x = lsi_read(nm->x, nm->dtype, at, n, room);
        for (int64_t i = 0; i < n; i++) sum[i] += (x[i] - center[i]) * (x[i] - center[i]);
    }
    narrow(nm, sum);
}

/* A chunk's mean, and its sum of squares about that. */
static void measure_range(void *context, int64_t begin_chunk, int64_t end_chunk, int worker) {
    const norm *nm = context;
    float *mean = room_of(nm, worker), *sum = mean + nm->wide, *room = sum + nm->wide;
    for (int64_t chunk = begin_chunk; chunk < end_chunk; chunk++) {
        float *found = nm->chunks + chunk * 2 * nm->columns;
        sum_chunk(nm, chunk, mean, room);
        for (int64_t c = 0; c < nm->columns; c++) mean[c] /= (float)rows_of_chunk(nm, chunk);
        widen(nm, mean);
        square_chunk(nm, chunk, mean, sum, room);
        memcpy(found, mean, (size_t)nm->columns * sizeof *found);
        memcpy(found + nm->columns, sum, (size_t)nm->columns * sizeof *found);
    }
}

/* Sum of channel c, and sum of squares about its mean, from those of the chunks. */
static void combine(const norm *nm, int64_t c, double *sum, double *squares) {
    *sum = *squares = 0.0;
    for (int64_t k = 0; k < nm->n_chunks; k++)
        *sum += (double)rows_of_chunk(nm, k) * (double)nm->chunks[k * 2 * nm->columns + c];
    double mean = *sum / (double)nm->rows;
    for (int64_t k = 0; k < nm->n_chunks; k++) {
        const float *chunk = nm->chunks + k * 2 * nm->columns;
        double off = (double)chunk[c] - mean;
        *squares += (double)chunk[nm->columns + c] + (double)rows_of_chunk(nm, k) * off * off;
    }
}

/* Fills nm->sums with the moments of all ranks' rows. */
static ls_status measure(norm *nm) {
    int64_t n = nm->columns;
    lsi_for_ranges(nm->n_chunks, lsi_grain(2 * nm->chunk_rows * n), measure_range, nm);
    nm->sums[0] = (double)nm->rows;
    for (int64_t c = 0; c < n; c++) combine(nm, c, &nm->sums[1 + c], &nm->sums[1 + n + c]);
    LSI_TRY(lsi_moments_of_ranks(nm->tape, n, nm->sums));
    if (nm->sums[0] >= 2.0) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT, "batch_norm: expected at least 2 values of each channel, "
                                     "found one; use a larger micro-batch");
}

/* Fills the saved mean and r, and, where somebody wants them, the statistics handed out. */
static void set_stats(norm *nm, float epsilon, float *handed_out) {
    int64_t n = nm->columns;
    double rows = nm->sums[0];
    for (int64_t c = 0; c < n; c++) {
        double mean = nm->sums[1 + c] / rows, squares = nm->sums[1 + n + c];
        nm->stats[c] = (float)mean;
        nm->stats[n + c] = (float)(1.0 / sqrt(squares / rows + (double)epsilon));
        if (!handed_out) continue;
        handed_out[c] = (float)mean;
        handed_out[n + c] = (float)(squares / (rows - 1.0));
    }
}

/* ---- forward: (x - mean) scale + shift ---- */

static void forward_range(void *context, int64_t begin_chunk, int64_t end_chunk, int worker) {
    const norm *nm = context;
    const float *restrict mean = nm->mean, *restrict scale = nm->scale, *restrict shift = nm->shift;
    float *room = room_of(nm, worker);
    int64_t last = chunk_end(nm, end_chunk - 1);
    for (int64_t at = begin_chunk * nm->chunk_rows * nm->columns; at < last; at += nm->wide) {
        int64_t n = width_at(nm, at, last);
        const float *restrict x = lsi_read(nm->x, nm->dtype, at, n, room);
        float *restrict y = lsi_place(nm->out, nm->dtype, at, room + nm->wide);
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean[i]) * scale[i] + shift[i];
        lsi_keep(nm->out, nm->dtype, at, n, y);
    }
}

/* Wide rows of mean and scale = w r. */
static void set_scale(norm *nm, const lsi_tensor *weight) {
    memcpy(nm->mean, nm->stats, (size_t)nm->columns * sizeof *nm->mean);
    lsi_to_floats(weight->data, weight->dtype, nm->columns, nm->scale);
    for (int64_t c = 0; c < nm->columns; c++) nm->scale[c] *= nm->stats[nm->columns + c];
    widen(nm, nm->mean);
    widen(nm, nm->scale);
}

static void normalise(norm *nm, lsi_node *node) {
    const lsi_tensor *bias = node->input[2];
    nm->out = node->output->data;
    set_scale(nm, node->input[1]);
    lsi_to_floats(bias->data, bias->dtype, nm->columns, nm->shift);
    widen(nm, nm->shift);
    lsi_for_ranges(nm->n_chunks, lsi_grain(nm->chunk_rows * nm->columns), forward_range, nm);
}

/* From the saved statistics, which do not change: nothing is handed out twice. */
static ls_status batch_norm_again(lsi_tape *tape, lsi_node *node) {
    norm nm;
    if (!begin(&nm, tape, node)) return lsi_tape_status(tape);
    normalise(&nm, node);
    end(&nm);
    return LS_OK;
}

/* ---- backward ---- */

/* A chunk's sums of dy and of dy z. mean and slope (here r) are wide rows. */
static void grad_chunk(const norm *nm, int64_t chunk, float *room) {
    float *restrict sum = room, *restrict sum_z = room + nm->wide;
    const float *restrict mean = nm->mean, *restrict r = nm->slope;
    int64_t last = chunk_end(nm, chunk);
    memset(sum, 0, 2 * (size_t)nm->wide * sizeof *sum);
    for (int64_t at = chunk * nm->chunk_rows * nm->columns; at < last; at += nm->wide) {
        int64_t n = width_at(nm, at, last);
        const float *restrict x = lsi_read(nm->x, nm->dtype, at, n, room + 2 * nm->wide);
        const float *restrict dy = lsi_read(nm->dy, nm->dtype, at, n, room + 3 * nm->wide);
        for (int64_t i = 0; i < n; i++) {
            sum[i] += dy[i];
            sum_z[i] += dy[i] * ((x[i] - mean[i]) * r[i]);
        }
    }
    narrow(nm, sum);
    narrow(nm, sum_z);
    float *found = nm->chunks + chunk * 2 * nm->columns;
    memcpy(found, sum, (size_t)nm->columns * sizeof *found);
    memcpy(found + nm->columns, sum_z, (size_t)nm->columns * sizeof *found);
}

static void grad_range(void *context, int64_t begin_chunk, int64_t end_chunk, int worker) {
    for (int64_t chunk = begin_chunk; chunk < end_chunk; chunk++)
        grad_chunk(context, chunk, room_of(context, worker));
}

/* dx = scale (dy - shift - (x - mean) slope): shift is db / rows, slope dw r / rows. */
static void backward_range(void *context, int64_t begin_chunk, int64_t end_chunk, int worker) {
    const norm *nm = context;
    const float *mean = nm->mean, *scale = nm->scale, *shift = nm->shift, *slope = nm->slope;
    float *room = room_of(nm, worker);
    bool first = nm->first;
    int64_t last = chunk_end(nm, end_chunk - 1);
    for (int64_t at = begin_chunk * nm->chunk_rows * nm->columns; at < last; at += nm->wide) {
        int64_t n = width_at(nm, at, last);
        const float *x = lsi_read(nm->x, nm->dtype, at, n, room);
        const float *dy = lsi_read(nm->dy, nm->dtype, at, n, room + nm->wide);
        float *dx = first ? lsi_place(nm->out, nm->dtype, at, room + 2 * nm->wide)
                          : lsi_edit(nm->out, nm->dtype, at, n, room + 2 * nm->wide);
        LSI_ELEMENTWISE
        for (int64_t i = 0; i < n; i++)
            lsi_contribute(dx + i, scale[i] * (dy[i] - shift[i] - (x[i] - mean[i]) * slope[i]),
                           first);
        lsi_keep(nm->out, nm->dtype, at, n, dx);
    }
}

/* The sums of dy and dy z over this rank's rows: gradients of bias and weight. */
static void add_chunks(norm *nm, float *dw, bool first_w, float *db, bool first_b) {
    for (int64_t c = 0; c < nm->columns; c++) {
        double sum = 0.0, sum_z = 0.0;
        for (int64_t k = 0; k < nm->n_chunks; k++) {
            sum += (double)nm->chunks[k * 2 * nm->columns + c];
            sum_z += (double)nm->chunks[(k * 2 + 1) * nm->columns + c];
        }
        if (dw) lsi_contribute(dw + c, (float)sum_z, first_w);
        if (db) lsi_contribute(db + c, (float)sum, first_b);
        nm->sums[c] = sum;
        nm->sums[nm->columns + c] = sum_z;
    }
}

/* What dx takes off, of the sums over all rows; nothing where statistics were given. */
static ls_status set_slope(norm *nm, const lsi_node *node) {
    bool is_fixed = node->number[IS_FIXED] != 0;
    if (!is_fixed) LSI_TRY(lsi_sums_of_ranks(nm->tape, 2 * nm->columns, nm->sums));
    double share = is_fixed ? 0.0 : 1.0 / (double)node->number[ALL_ROWS];
    for (int64_t c = 0; c < nm->columns; c++) {
        double r = (double)nm->stats[nm->columns + c];
        nm->shift[c] = (float)(nm->sums[c] * share);
        nm->slope[c] = (float)(nm->sums[nm->columns + c] * share * r);
    }
    widen(nm, nm->shift);
    widen(nm, nm->slope);
    return LS_OK;
}

static void param_grads(norm *nm, lsi_node *node) {
    bool first_w = false, first_b = false;
    float *dw = lsi_grad(nm->tape, node->input[1], &first_w);
    float *db = lsi_grad(nm->tape, node->input[2], &first_b);
    set_scale(nm, node->input[1]);
    memcpy(nm->slope, nm->stats + nm->columns, (size_t)nm->columns * sizeof *nm->slope);
    widen(nm, nm->slope);
    lsi_for_ranges(nm->n_chunks, lsi_grain(2 * nm->chunk_rows * nm->columns), grad_range, nm);
    add_chunks(nm, dw, first_w, db, first_b);
}

/* Comes last: dx may overwrite dy. */
static ls_status input_grad(norm *nm, lsi_node *node) {
    if (!node->input[0]->needs_grad) return LS_OK;
    LSI_TRY(set_slope(nm, node));
    nm->out = lsi_grad_inherit(nm->tape, node, node->input[0], &nm->first);
    if (nm->out)
        lsi_for_ranges(nm->n_chunks, lsi_grain(2 * nm->chunk_rows * nm->columns), backward_range,
                       nm);
    return lsi_tape_status(nm->tape);
}

static ls_status batch_norm_backward(lsi_tape *tape, lsi_node *node) {
    norm nm;
    if (!begin(&nm, tape, node)) return lsi_tape_status(tape);
    nm.dy = node->output->grad;
    param_grads(&nm, node);
    ls_status status = input_grad(&nm, node);
    end(&nm);
    return status == LS_OK ? lsi_tape_status(tape) : status;
}

/* ---- the ops ---- */

static bool fits(lsi_tape *tape, const char *name, lsi_tensor *x, lsi_tensor *weight,
                 lsi_tensor *bias, float epsilon) {
    if (!lsi_op_begin(tape, name, 3, (lsi_tensor *[]){x, weight, bias})) return false;
    int64_t columns = lsi_tensor_columns(x);
    if (!lsi_op_has_dims(tape, name, "weight", weight, 1, &columns) ||
        !lsi_op_has_dims(tape, name, "bias", bias, 1, &columns) ||
        !lsi_op_is_weight(tape, name, "weight", weight) ||
        !lsi_op_is_weight(tape, name, "bias", bias) || !lsi_op_same_type(tape, name, x, x))
        return false;
    if (epsilon > 0.0f && epsilon < INFINITY) return true;
    (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT, "%s: expected a positive epsilon, found %g", name,
                        (double)epsilon);
    return false;
}

/* A node with room for output and statistics; output NULL on failure. */
static lsi_node new_node(lsi_tape *tape, const char *name, lsi_tensor *x, lsi_tensor *weight,
                         lsi_tensor *bias) {
    lsi_node node = {.backward = batch_norm_backward,
                     .again = batch_norm_again,
                     .is_cheap = true,
                     .name = name,
                     .input = {x, weight, bias},
                     .reads = LSI_READS_INPUT(0) | LSI_READS_INPUT(1)};
    size_t stats_bytes = 2 * (size_t)lsi_tensor_columns(x) * sizeof(float);
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    node.saved[0] = y ? lsi_tape_scratch(tape, stats_bytes) : NULL;
    if (node.saved[0]) node.output = y;
    return node;
}

static lsi_tensor *finish(lsi_tape *tape, norm *nm, lsi_node *node) {
    normalise(nm, node);
    end(nm);
    lsi_tape_record(tape, node);
    return node->output;
}

lsi_tensor *lsi_op_batch_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                              float epsilon, float *stats) {
    norm nm;
    if (!fits(tape, "batch_norm", x, weight, bias, epsilon)) return NULL;
    lsi_node node = new_node(tape, "batch_norm", x, weight, bias);
    if (!node.output) return NULL;
    if (!begin(&nm, tape, &node)) {
        lsi_tape_release(tape, node.saved[0]);
        return NULL;
    }
    ls_status status = measure(&nm);
    if (status != LS_OK) {
        end(&nm);
        lsi_tape_release(tape, node.saved[0]);
        return lsi_tape_fail_with(tape, status);
    }
    set_stats(&nm, epsilon, stats);
    node.number[ALL_ROWS] = (int64_t)nm.sums[0];
    return finish(tape, &nm, &node);
}

lsi_tensor *lsi_op_batch_norm_fixed(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight,
                                    lsi_tensor *bias, float epsilon, const float *mean,
                                    const float *variance) {
    norm nm;
    if (!fits(tape, "batch_norm_fixed", x, weight, bias, epsilon)) return NULL;
    lsi_node node = new_node(tape, "batch_norm_fixed", x, weight, bias);
    if (!node.output) return NULL;
    node.number[IS_FIXED] = 1;
    float *kept = node.saved[0];
    int64_t n = lsi_tensor_columns(x);
    memcpy(kept, mean, (size_t)n * sizeof *kept);
    for (int64_t c = 0; c < n; c++) kept[n + c] = 1.0f / sqrtf(variance[c] + epsilon);
    if (!begin(&nm, tape, &node)) {
        lsi_tape_release(tape, node.saved[0]);
        return NULL;
    }
    return finish(tape, &nm, &node);
}
