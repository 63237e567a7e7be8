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

enum { LANES = 16, LEAST_ROWS = 256, BLOCK_BYTES = 4 << 20 };

typedef struct turning {
    const float *from; /* (n,k) at the block's first column */
    float *to;         /* (k of the block, n) */
    int64_t stride, k, n;
} turning;

bool lsi_product_is_turned(const lsi_product *p) {
    return p->a.dtype == LS_DTYPE_F32 && !p->a.transposed && p->b.transposed && !p->bias &&
           p->m >= LEAST_ROWS && p->n <= p->k;
}

static void turn_singly(const turning *t, int64_t row, int64_t row_end, int64_t k_begin) {
    for (int64_t k = k_begin; k < t->k; k++)
        for (int64_t i = row; i < row_end; i++) t->to[k * t->n + i] = t->from[i * t->stride + k];
}

/* Items are 16 rows of W, the last ones may be fewer. */
static void turn_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const turning *t = context;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item * LANES, k = 0;
        if (row + LANES > t->n) {
            turn_singly(t, row, t->n, 0);
            return;
        }
        for (; k + LANES <= t->k; k += LANES) {
            __m512i words[LANES];
            for (int i = 0; i < LANES; i++)
                words[i] = _mm512_loadu_si512(t->from + (row + i) * t->stride + k);
            lsi_turn_words(words);
            for (int i = 0; i < LANES; i++)
                _mm512_storeu_si512(t->to + (k + i) * t->n + row, words[i]);
        }
        turn_singly(t, row, row + LANES, k);
    }
}

static ls_status add_block(const lsi_product *p, int64_t first, const turning *t) {
    return lsi_gemm(false, false, p->m, p->n, t->k, 1.0f, (const float *)p->a.data + first,
                    p->a.stride, t->to, t->n, first > 0 || p->add ? 1.0f : 0.0f, p->c, p->c_stride);
}

ls_status lsi_product_run_turned(const lsi_scratch *scratch, const lsi_product *p) {
    int64_t block = BLOCK_BYTES / (int64_t)sizeof(float) / p->n / LANES * LANES;
    if (block < LEAST_ROWS) block = LEAST_ROWS;
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
