/* Matrix products by a library chosen at configure time: oneDNN, or CBLAS where it is missing. */
#ifndef LSI_TENSOR_GEMM_H
#define LSI_TENSOR_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

/* C = alpha * op(A) * op(B) + beta * C, row-major float32; op(A) is (m x k), op(B) (k x n);
 * lda, ldb, ldc are row strides of the matrices as stored. beta = 0 never reads C. The same call
 * with the same number of threads gives the same bits, wherever the matrices lie; inside a range of
 * a loop the number is one (threads.h). m, n or k of 0 are fine. */
LS_CHECKED ls_status lsi_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                              float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                              float beta, float *c, int64_t ldc);
/* "oneDNN 2.6.3", "CBLAS (OpenBLAS 0.3.21)": for version, logs and run files. */
const char *lsi_gemm_library(void);
/* Threads used by products and by our own kernels in this process. Bits of results of our own
 * kernels do not depend on it. */
void lsi_compute_set_threads(int n_threads);
int lsi_compute_threads(void);

#endif
