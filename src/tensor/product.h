/* Products of matrices of either type, with what belongs into the same pass: a bias, adding to what
 * is there.
 *
 * The library at hand prepares a product once per kind (sizes, types, strides) and runs it often;
 * a cache keeps what it prepared. Small products, and those of bfloat16 with AMX, are made by tiles
 * of our own where the processor has instructions for them (product_tile.c, product_amx.c): these
 * prepare nothing, and copy what they need into panels whatever `packing` says. [Note: packing]
 * Where the library asks for the second matrix in a layout of its own, it is copied there right
 * before the product, into scratch memory that is given back after it: the copy costs 1 / m of the
 * product's work, and nothing is kept between products, so no weight exists twice for longer than
 * one product. */
#ifndef LSI_TENSOR_PRODUCT_H
#define LSI_TENSOR_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/dtype.h>

#include "base/message.h"

typedef struct lsi_operand {
    const void *data;
    ls_dtype dtype;  /* F32 or BF16 */
    int64_t stride;  /* elements from row to row, as stored */
    bool transposed; /* the product takes it with rows and columns exchanged */
} lsi_operand;

/* Whether B is packed: where many rows use it, never, always. */
typedef enum lsi_packing { LSI_PACK_IF_MANY_ROWS, LSI_PACK_NEVER, LSI_PACK_ALWAYS } lsi_packing;

/* Part of a product that need not be computed: a hint. `diagonal` is d. */
typedef enum lsi_band {
    LSI_BAND_NONE,
    LSI_BAND_C_LOWER, /* of C only (i,j) with j <= i + d is wanted */
    LSI_BAND_A_LOWER, /* A (i,p) is 0 for p > i + d */
    LSI_BAND_A_UPPER  /* A (i,p) is 0 for p < i - d */
} lsi_band;

/* Hears of rows [first, first + n) of C that are complete, on the thread of the call and while they
 * may still be in a cache: of each row once, in ascending order, possibly of all at once, of none
 * that a failed product left out. May loop over ranges, may not multiply. */
typedef struct lsi_rows_done {
    void (*run)(void *context, int64_t first, int64_t n); /* NULL: nobody hears */
    void *context;                                        /* borrowed */
} lsi_rows_done;

/* C (m,n) = A (m,k) B (k,n) + bias, or C += …; sizes are those after transposing, none is 0. A and
 * B have one type; C has it too or is float32. Sums are float32 and rounded once. */
typedef struct lsi_product {
    int64_t m, n, k;
    lsi_operand a, b;
    void *c;
    ls_dtype c_dtype;
    int64_t c_stride;
    const float *bias; /* n, added to each row; NULL: none */
    bool add;          /* C keeps what it has, and gets the product added */
    lsi_packing packing;
    lsi_band band;
    int64_t diagonal;
    lsi_rows_done rows_done;
} lsi_product;

/* Multiplications and additions, of what the band leaves. */
int64_t lsi_product_flops(const lsi_product *product);

/* Prepared products and scratch memory, used by one thread at a time. */
typedef struct lsi_product_cache lsi_product_cache;
typedef struct lsi_scratch {
    void *(*take)(void *owner, size_t bytes); /* 64-byte aligned; NULL with a message */
    void (*give)(void *owner, void *memory);
    void *owner;
} lsi_scratch;

/* *cache is made at the first call. The same call with the same number of threads gives the same
 * bits, wherever the operands lie and whatever ran before; inside a range of a loop the number is
 * one (threads.h). */
LS_CHECKED ls_status lsi_multiply(lsi_product_cache **cache, const lsi_scratch *scratch,
                                  const lsi_product *product);
void lsi_product_cache_destroy(lsi_product_cache *cache); /* NULL does nothing */

/* How products of bfloat16 run on this processor: "AMX", "AVX512-BF16" or "float32 after widening";
 * for logs and reports. */
const char *lsi_bf16_products(void);

/* For tests: products of bfloat16 take the way of processors without instructions for them. */
void lsi_product_widens(bool always);

#endif
