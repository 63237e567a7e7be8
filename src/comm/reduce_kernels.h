/* What reduce.c asks of the typed loops: four functions per (dtype, operation), and fused sums.
 *
 * Elements live in two types: the storage type (the dtype's own) and the accumulation type (see
 * reduce.h). load takes the first to the second, combine stays in the second, finish goes back. All
 * take any count, 0 included, and buffers aligned to their elements; element i of the result
 * depends on nothing but element i of the inputs. Where both types are the same, source and result
 * may be the same address; they may never overlap otherwise. */
#ifndef LSI_COMM_REDUCE_KERNELS_H
#define LSI_COMM_REDUCE_KERNELS_H

#include "comm/reduce.h"

/* acc[i] = input[i] * factor. */
typedef void lsi_load_fn(void *acc, const void *input, double factor, int64_t n);
/* result[i] = op(left[i], right[i]); result may be left or right. */
typedef void lsi_combine_fn(void *result, const void *left, const void *right, int64_t n);
/* output[i] = acc[i] * factor, or acc[i] / factor for averages of integers, rounded once. */
typedef void lsi_finish_fn(void *output, const void *acc, double factor, int64_t n);

typedef struct lsi_kernels {
    ls_dtype acc_dtype;
    int bytes, acc_bytes;
    lsi_load_fn *load;
    lsi_combine_fn *combine;
    lsi_finish_fn *finish;
} lsi_kernels;

/* NULL if there is no such dtype or operation. */
const lsi_kernels *lsi_reduce_kernels(ls_dtype dtype, ls_op op);

/* output[j][i] = factor * (the default order's tree of input[…][i]): sums of 2, 4 or 8 inputs in
 * one loop without scratch, with the bits of load, combine and finish. */
typedef void lsi_fused_sum_fn(const void *const *input, void *const *output, int n_outputs,
                              double factor, int64_t count);
/* NULL if this dtype or number of inputs has none. */
lsi_fused_sum_fn *lsi_reduce_fused_sum(ls_dtype dtype, int n_inputs);

#endif
