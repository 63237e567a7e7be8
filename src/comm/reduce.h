/* The kernel of every reducing collective: one pass over a range of all ranks' inputs.
 *
 * [Note: bits of a reduction] Element i of the result is the value of the order's tree at element
 * i, finished once (scale or division, rounding), whatever the range, block size or vector width:
 * operations on one element do not depend on its neighbours.
 *
 * Which NaN comes out where several meet is not said. Compiled without contraction.
 *
 * Accumulation type: float for F32, BF16 and F16 (one rounding at the end, to nearest even), double
 * for F64, the type itself for integers (sums and products wrap modulo 2^bits, as unsigned). AVG of
 * I8, U8 and I32 accumulates in int64_t, so that the average of any inputs is right; the sum of an
 * average of I64 wraps. AVG of floating types multiplies by 1 / n rounded to the accumulation type.
 * MIN and MAX take -0 as below +0. */
#ifndef LSI_COMM_REDUCE_H
#define LSI_COMM_REDUCE_H

#include <stdint.h>

#include "comm/order.h"

typedef struct lsi_reduction {
    const lsi_order *order; /* n_ranks inputs, in rank order */
    ls_dtype dtype;
    ls_op op;
    double
        scale; /* SUM: factor after the sum, rounded to the accumulation type. Ignored by others */
    /* PREMUL_SUM: factor of each rank, n_ranks of them, rounded to the accumulation type */
    const double *premul;
} lsi_reduction;

/* LS_ERR_UNSUPPORTED or LS_ERR_ARGUMENT if dtype, op and scale do not go together (see LS_OP_TABLE
 * in lockstep/group.h); `call` names the caller in the message. Done once per call, not per range.
 */
LS_CHECKED ls_status lsi_reduction_check(const char *call, ls_dtype dtype, ls_op op, double scale);

/* output[j][i] = finish(tree(input[0][i], …)) for i in [0, count) and every j < n_outputs. Buffers
 * are aligned to their elements. Outputs may be the inputs themselves (the same address), not
 * shifted copies of them. n_outputs = 0 does nothing. */
void lsi_reduce(const lsi_reduction *reduction, const void *const *input, void *const *output,
                int n_outputs, int64_t count);

/* ---- for algorithms that pass partial results from rank to rank (collective/passing.c) ---- */

/* Type in which partial results travel, the accumulation type: LS_DTYPE_F32 for BF16 and F16,
 * LS_DTYPE_I64 for AVG of I8, U8 and I32, else the type itself. */
ls_dtype lsi_partial_dtype(ls_dtype dtype, ls_op op);
/* partial[i] = input[i], converted, times premul if the operation is PREMUL_SUM. May be in place
 * where the types are the same. */
void lsi_partial_begin(const lsi_reduction *reduction, double premul, const void *input,
                       void *partial, int64_t count);
/* left[i] = op(left[i], right[i]); with `right_is_result` right[i] = op(left[i], right[i]). */
void lsi_partial_combine(const lsi_reduction *reduction, void *left, void *right, int64_t count,
                         int right_is_result);
/* output[i] = finish(partial[i]) over order->n_ranks contributions. May be in place where the types
 * are the same. */
void lsi_partial_finish(const lsi_reduction *reduction, const void *partial, void *output,
                        int64_t count);

#endif
