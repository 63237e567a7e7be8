/* Matrix products (see gemm.h), by oneDNN or by CBLAS.
 *
 * dnnl_sgemm has the same signature in oneDNN 2.x and 3.x and takes row-major matrices, so one
 * call serves both. Cases where nothing is multiplied are answered here, because libraries differ
 * in what they do with a dimension of zero. */
#include "tensor/gemm.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tensor/threads.h"

/* C = beta * C, without reading C when beta is zero. */
static void scale(int64_t m, int64_t n, float beta, float *c, int64_t ldc) {
    for (int64_t i = 0; i < m; i++) {
        if (beta == 0.0f) {
            memset(c + i * ldc, 0, (size_t)n * sizeof *c);
            continue;
        }
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] *= beta;
    }
}

#if defined(LSI_GEMM_DNNL)

#include <oneapi/dnnl/dnnl.h>

static ls_status multiply(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                          float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                          float beta, float *c, int64_t ldc) {
    dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                      alpha, a, lda, b, ldb, beta, c, ldc);
    if (status == dnnl_success) return LS_OK;
    return lsi_fail(
        status == dnnl_out_of_memory ? LS_ERR_MEMORY : LS_ERR_ARGUMENT,
        "oneDNN refused a product of (%lld x %lld) and (%lld x %lld), row strides %lld, "
        "%lld, %lld: its status is %d",
        (long long)m, (long long)k, (long long)k, (long long)n, (long long)lda, (long long)ldb,
        (long long)ldc, (int)status);
}

const char *lsi_gemm_library(void) {
    static _Thread_local char text[64];
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
    return text;
}

#elif defined(LSI_GEMM_CBLAS)

#include <cblas.h>
#include <dlfcn.h>

static ls_status multiply(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                          float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                          float beta, float *c, int64_t ldc) {
    const int64_t sizes[] = {m, n, k, lda, ldb, ldc};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] > INT_MAX)
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "CBLAS takes sizes up to %d, found %lld: use a smaller micro-batch or "
                            "build with oneDNN",
                            INT_MAX, (long long)sizes[i]);
    }
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda,
                b, (int)ldb, beta, c, (int)ldc);
    return LS_OK;
}

/* OpenBLAS says "OpenBLAS 0.3.21 NO_AFFINITY …"; the first two words are its name. */
const char *lsi_gemm_library(void) {
    static _Thread_local char text[64];
    char *(*config)(void);
    *(void **)&config = dlsym(RTLD_DEFAULT, "openblas_get_config");
    const char *name = config ? config() : "unknown";
    size_t length = strcspn(name, " ");
    if (name[length]) length += 1 + strcspn(name + length + 1, " ");
    snprintf(text, sizeof text, "CBLAS (%.*s)", (int)length, name);
    return text;
}

#else
#error "no library for matrix products: define LSI_GEMM_DNNL or LSI_GEMM_CBLAS"
#endif

/* A stride shorter than a row is never right; checked here because libraries print or abort. */
static ls_status check(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t a_columns, int64_t ldb,
                       int64_t b_columns, int64_t ldc) {
    if (m >= 0 && n >= 0 && k >= 0 && lda >= a_columns && ldb >= b_columns && ldc >= n)
        return LS_OK;
    return lsi_fail(
        LS_ERR_ARGUMENT,
        "product of (%lld x %lld) and (%lld x %lld): expected sizes >= 0 and row strides "
        "of at least %lld, %lld, %lld, found strides %lld, %lld, %lld",
        (long long)m, (long long)k, (long long)k, (long long)n, (long long)a_columns,
        (long long)b_columns, (long long)n, (long long)lda, (long long)ldb, (long long)ldc);
}

ls_status lsi_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                   const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                   int64_t ldc) {
    LSI_TRY(check(m, n, k, lda, transpose_a ? m : k, ldb, transpose_b ? k : n, ldc));
    if (m == 0 || n == 0) return LS_OK;
    if (k == 0 || alpha == 0.0f) {
        scale(m, n, beta, c, ldc);
        return LS_OK;
    }
    lsi_threads_apply();
    return multiply(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
