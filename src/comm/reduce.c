/* Reductions: the walk over the order's tree, with the loops of reduce_kernels.c.
 *
 * General trees are evaluated in blocks: a block of every input is read once from memory, inner
 * results live in small scratch blocks that stay in the first-level cache, the finished block is
 * written to all outputs. Memory traffic per element: n reads and n_outputs writes, the least
 * possible. Sums of 2, 4 or 8 inputs in the default order have loops of their own without scratch
 * (reduce_fused.c). */
#include "comm/reduce.h"

#include <math.h>
#include <string.h>

#include "comm/reduce_kernels.h"

/* ---- what goes together ---- */

typedef struct int_limits {
    double least, beyond; /* the range of the type as [least, beyond), exact in double */
} int_limits;

/* Indexed by dtype; beyond = 0: not an integer type. */
static const int_limits limits[] = {
    [LS_DTYPE_I8] = {-0x1p7, 0x1p7},
    [LS_DTYPE_U8] = {0, 0x1p8},
    [LS_DTYPE_I32] = {-0x1p31, 0x1p31},
    [LS_DTYPE_I64] = {-0x1p63, 0x1p63},
};

static int is_integer(ls_dtype dtype) {
    return (size_t)dtype < sizeof limits / sizeof limits[0] && limits[dtype].beyond > 0;
}

ls_status lsi_reduction_check(const char *call, ls_dtype dtype, ls_op op, double scale) {
    if (ls_dtype_bytes(dtype) == 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: dtype %d, which is none (see LS_DTYPE_TABLE)", call,
                        (int)dtype);
    if (!lsi_reduce_kernels(dtype, LS_OP_SUM))
        return lsi_fail(LS_ERR_UNSUPPORTED, "%s: dtype %s cannot be reduced", call,
                        ls_dtype_name(dtype));
    if (!lsi_reduce_kernels(dtype, op))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: operation %d, which is none (see LS_OP_TABLE)", call,
                        (int)op);
    if (op != LS_OP_SUM && op != LS_OP_PREMUL_SUM) {
        if (scale == 1) return LS_OK;
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s: scale %g with operation %s, expected 1 (only %s and %s scale)", call,
                        scale, ls_op_name(op), ls_op_name(LS_OP_SUM), ls_op_name(LS_OP_PREMUL_SUM));
    }
    if (!is_integer(dtype)) return LS_OK;
    /* NaN fails every comparison; infinities are outside the range */
    if (scale >= limits[dtype].least && scale < limits[dtype].beyond && scale == trunc(scale))
        return LS_OK;
    return lsi_fail(
        LS_ERR_ARGUMENT,
        "%s: scale %.17g with dtype %s, expected a whole number from %.0f to below %.0f", call,
        scale, ls_dtype_name(dtype), limits[dtype].least, limits[dtype].beyond);
}

/* ---- factors ---- */

static double load_factor(const lsi_reduction *reduction, double premul) {
    return reduction->op == LS_OP_PREMUL_SUM ? premul : 1;
}

/* What finish multiplies by (divides by, for averages of integers). The reciprocal of n is rounded
 * to double here and to float in the kernel; for n up to LSI_MAX_RANKS that is what rounding once
 * gives (tested). */
static double finish_factor(const lsi_reduction *reduction) {
    if (reduction->op == LS_OP_SUM) return reduction->scale;
    if (reduction->op != LS_OP_AVG) return 1;
    const int n = reduction->order->n_ranks;
    return is_integer(reduction->dtype) ? n : 1.0 / n;
}

/* ---- trees, in blocks ---- */

enum { SHORT_ELEMS = 8, SCRATCH_BYTES = 16384, LINE_BYTES = 64, MOST_BLOCK_ELEMS = 1024 };

typedef struct evaluation {
    const lsi_reduction *reduction;
    const lsi_kernels *kernels;
    const void *const *input;
    int64_t offset, count; /* the block, in elements */
    char *scratch;         /* order->depth + 1 blocks; 0 is for the root */
    int64_t block_bytes;
    int has_scratch_leaves; /* inputs have to be converted or multiplied */
} evaluation;

static const void *evaluate_leaf(const evaluation *e, int rank, void *scratch) {
    const char *input = (const char *)e->input[rank] + e->offset * e->kernels->bytes;
    if (!e->has_scratch_leaves) return input;
    const double premul = e->reduction->premul ? e->reduction->premul[rank] : 1;
    e->kernels->load(scratch, input, load_factor(e->reduction, premul), e->count);
    return scratch;
}

/* The values of a node: the input itself for a leaf if it needs no work, else scratch block
 * `level`. */
static const void *evaluate(const evaluation *e, int node, int level) {
    const lsi_order *order = e->reduction->order;
    void *result = e->scratch + level * e->block_bytes;
    if (node < order->n_ranks) return evaluate_leaf(e, node, result);
    const void *left = evaluate(e, order->node[node].left, level);
    const void *right = evaluate(e, order->node[node].right, level + 1);
    e->kernels->combine(result, left, right, e->count);
    return result;
}

/* Converted once; the other outputs are copies (of one rank's in-place output, too, when the value
 * was the input itself and is gone). */
static void write_outputs(const evaluation *e, const void *value, double factor,
                          void *const *output, int n_outputs) {
    const int64_t begin = e->offset * e->kernels->bytes, bytes = e->count * e->kernels->bytes;
    char *first = (char *)output[0] + begin;
    e->kernels->finish(first, value, factor, e->count);
    for (int j = 1; j < n_outputs; j++)
        if (output[j] != output[0]) memcpy((char *)output[j] + begin, first, (size_t)bytes);
}

static void reduce_in_blocks(const lsi_reduction *reduction, const lsi_kernels *kernels,
                             const void *const *input, void *const *output, int n_outputs,
                             int64_t count) {
    _Alignas(LINE_BYTES) char scratch[SCRATCH_BYTES];
    const lsi_order *order = reduction->order;
    const int64_t block_bytes = SCRATCH_BYTES / (order->depth + 1) / LINE_BYTES * LINE_BYTES;
    int64_t block_elems = block_bytes / kernels->acc_bytes;
    if (block_elems > MOST_BLOCK_ELEMS) block_elems = MOST_BLOCK_ELEMS;
    evaluation e = {.reduction = reduction,
                    .kernels = kernels,
                    .input = input,
                    .scratch = scratch,
                    .block_bytes = block_bytes};
    e.has_scratch_leaves =
        kernels->acc_dtype != reduction->dtype || reduction->op == LS_OP_PREMUL_SUM;
    const int root = order->n_ranks == 1 ? 0 : 2 * order->n_ranks - 2;
    const double factor = finish_factor(reduction);
    for (e.offset = 0; e.offset < count; e.offset += block_elems) {
        e.count = count - e.offset < block_elems ? count - e.offset : block_elems;
        write_outputs(&e, evaluate(&e, root, 0), factor, output, n_outputs);
    }
}

/* ---- the choice ---- */

/* The inner nodes of default orders, as lsi_order_default numbers them. */
static const lsi_order_node default_2[] = {{0, 1}};
static const lsi_order_node default_4[] = {{0, 1}, {2, 3}, {4, 5}};
static const lsi_order_node default_8[] = {{0, 1}, {2, 3},   {8, 9},  {4, 5},
                                           {6, 7}, {11, 12}, {10, 13}};

static int is_default(const lsi_order *order) {
    const lsi_order_node *node = order->node + order->n_ranks;
    switch (order->n_ranks) {
    case 2: return memcmp(node, default_2, sizeof default_2) == 0;
    case 4: return memcmp(node, default_4, sizeof default_4) == 0;
    case 8: return memcmp(node, default_8, sizeof default_8) == 0;
    default: return 0;
    }
}

/* Whether two buffers lie a multiple of 256 MiB apart. Taking turns between their lines is slow
 * then, probably since AMD's first-level caches look for a line by a hash of address bits 12 to 27
 * (Lipp and others, "Take A Way: exploring the security implications of AMD's cache way
 * predictors", 2020), which such lines share. Blocks take fewer turns. Time of blocks against the
 * fused loop, two ranks in place, 64 KiB to 4 MiB on an EPYC 9004: 0.4 where buffers lie like this,
 * 1.7 where they do not. With one output elsewhere the fused loop stays ahead. */
static int lies_badly(const void *const *input, int n_inputs) {
    const uintptr_t counts = ((uintptr_t)1 << 28) - 1;
    for (int r = 1; r < n_inputs; r++)
        if ((((uintptr_t)input[r] ^ (uintptr_t)input[0]) & counts) == 0) return 1;
    return 0;
}

static lsi_fused_sum_fn *fused_sum(const lsi_reduction *reduction, const void *const *input,
                                   int n_outputs) {
    const int n = reduction->order->n_ranks;
    const int is_sum = reduction->op == LS_OP_SUM || reduction->op == LS_OP_AVG;
    if (!is_sum || !is_default(reduction->order)) return NULL;
    if (reduction->dtype == LS_DTYPE_F32 && n_outputs > 1 && lies_badly(input, n)) return NULL;
    return lsi_reduce_fused_sum(reduction->dtype, n);
}

/* A few floats of two ranks, for which choosing would take longer than adding. Two ranks have one
 * tree only. */
static int is_short_sum(const lsi_reduction *reduction, int64_t count) {
    return count <= SHORT_ELEMS && reduction->order->n_ranks == 2 &&
           reduction->dtype == LS_DTYPE_F32 &&
           (reduction->op == LS_OP_SUM || reduction->op == LS_OP_AVG);
}

static void short_sum(const void *const *input, void *const *output, int n_outputs, float factor,
                      int64_t count) {
    const float *a = input[0], *b = input[1];
    for (int64_t i = 0; i < count; i++) {
        const float sum = (a[i] + b[i]) * factor;
        for (int j = 0; j < n_outputs; j++) ((float *)output[j])[i] = sum;
    }
}

/* One rank alone, in place, and nothing to scale. */
static int is_done(const lsi_reduction *reduction, const void *const *input, void *const *output,
                   int n_outputs) {
    return reduction->order->n_ranks == 1 && n_outputs == 1 && input[0] == output[0] &&
           reduction->op != LS_OP_PREMUL_SUM && finish_factor(reduction) == 1;
}

void lsi_reduce(const lsi_reduction *reduction, const void *const *input, void *const *output,
                int n_outputs, int64_t count) {
    if (n_outputs == 0 || count == 0 || is_done(reduction, input, output, n_outputs)) return;
    if (is_short_sum(reduction, count)) {
        short_sum(input, output, n_outputs, (float)finish_factor(reduction), count);
        return;
    }
    lsi_fused_sum_fn *sum = fused_sum(reduction, input, n_outputs);
    if (sum)
        sum(input, output, n_outputs, finish_factor(reduction), count);
    else
        reduce_in_blocks(reduction, lsi_reduce_kernels(reduction->dtype, reduction->op), input,
                         output, n_outputs, count);
}

/* ---- partial results ---- */

ls_dtype lsi_partial_dtype(ls_dtype dtype, ls_op op) {
    return lsi_reduce_kernels(dtype, op)->acc_dtype;
}

void lsi_partial_begin(const lsi_reduction *reduction, double premul, const void *input,
                       void *partial, int64_t count) {
    lsi_reduce_kernels(reduction->dtype, reduction->op)
        ->load(partial, input, load_factor(reduction, premul), count);
}

void lsi_partial_combine(const lsi_reduction *reduction, void *left, void *right, int64_t count,
                         int right_is_result) {
    lsi_reduce_kernels(reduction->dtype, reduction->op)
        ->combine(right_is_result ? right : left, left, right, count);
}

void lsi_partial_finish(const lsi_reduction *reduction, const void *partial, void *output,
                        int64_t count) {
    lsi_reduce_kernels(reduction->dtype, reduction->op)
        ->finish(output, partial, finish_factor(reduction), count);
}
