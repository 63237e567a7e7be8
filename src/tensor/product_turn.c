/* Float32 products whose second matrix is stored transposed and is not wide: turned before.
 *
 *   C (m,n) = A (m,k) W^T, W (n,k) with n <= k: the gradient of a linear layer's input
 *
 * oneDNN prepares such a W for AVX-512 in strips that lie across its rows, and the product runs at
 * 87 to 95 % of the speed (70 to 80 % on two threads) that it has with W^T in rows (Zen 4, m of 256
 * to 2,048, n of 384 and 768; with AVX2, or n > k, both are equally fast). So BLOCK_BYTES of W^T at
 * a time are made in scratch memory, 16 x 16 words at a time, which costs 1 / m of the product's
 * work, and C gets the blocks of k added one after the other. */
#include "tensor/product_impl.h"

#if defined(LSI_GEMM_DNNL) && defined(__AVX512F__)

#include "tensor/gemm.h"
#include "tensor/pairs.h"
#include "tensor/threads.h"

enum { LANES = 16, LEAST_ROWS = 256, BLOCK_BYTES = 4 << 20, LEAST_BLOCK = 256 /* of k */ };

typedef struct turning {
    const float *from; /* (n,k) at the block's first column */
    float *to;         /* (k of the block, n) */
    int64_t stride, k, n;
} turning;

bool lsi_product_is_turned(const lsi_product *p) {
    return p->a.dtype == LS_DTYPE_F32 && !p->a.transposed && p->b.transposed && !p->bias &&
           p->m >= LEAST_ROWS && p->n <= p->k;
}

/* Items are 16 rows of W, the last ones may be fewer. */
static void turn_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const turning *t = context;
    for (int64_t row = begin * LANES; row < end * LANES; row += LANES) {
        const float *from = t->from + row * t->stride;
        if (row + LANES <= t->n)
            lsi_turn_rows((const char *)from, t->stride * (int64_t)sizeof *from, t->k,
                          (uint32_t *)(void *)(t->to + row), t->n);
        else
            for (int64_t k = 0; k < t->k; k++)
                for (int64_t i = 0; i < t->n - row; i++)
                    t->to[k * t->n + row + i] = from[i * t->stride + k];
    }
}

static ls_status add_block(const lsi_product *p, int64_t first, const turning *t) {
    return lsi_gemm(false, false, p->m, p->n, t->k, 1.0f, (const float *)p->a.data + first,
                    p->a.stride, t->to, t->n, first > 0 || p->add ? 1.0f : 0.0f, p->c, p->c_stride);
}

ls_status lsi_product_run_turned(const lsi_scratch *scratch, const lsi_product *p) {
    int64_t block = BLOCK_BYTES / (int64_t)sizeof(float) / p->n / LANES * LANES;
    if (block < LEAST_BLOCK) block = LEAST_BLOCK;
    if (block > p->k) block = p->k;
    float *memory = scratch->take(scratch->owner, (size_t)(block * p->n) * sizeof *memory);
    if (!memory) return LS_ERR_MEMORY;
    ls_status status = LS_OK;
    for (int64_t first = 0; first < p->k && status == LS_OK; first += block) {
        int64_t k = p->k - first < block ? p->k - first : block;
        turning t = {(const float *)p->b.data + first, memory, p->b.stride, k, p->n};
        lsi_for_ranges((p->n + LANES - 1) / LANES, lsi_grain(LANES * k), turn_range, &t);
        status = add_block(p, first, &t);
    }
    scratch->give(scratch->owner, memory);
    return status;
}

#else

bool lsi_product_is_turned(const lsi_product *p) {
    (void)p;
    return false;
}

ls_status lsi_product_run_turned(const lsi_scratch *scratch, const lsi_product *p) {
    (void)scratch, (void)p;
    return lsi_fail(LS_ERR_UNSUPPORTED, "products: this build turns no matrices");
}

#endif
