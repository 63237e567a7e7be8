/* Who makes products: a library with primitives of its own (product_dnnl.c, or nothing), or tiles
 * of our own (product_tile.c, product_amx.c). product.c chooses. */
#ifndef LSI_TENSOR_PRODUCT_IMPL_H
#define LSI_TENSOR_PRODUCT_IMPL_H

#include "tensor/product.h"

/* Instructions for bfloat16 that the processor has and the library may use. */
typedef enum lsi_bf16_unit { LSI_BF16_NONE, LSI_BF16_PAIRS, LSI_BF16_TILES } lsi_bf16_unit;
lsi_bf16_unit lsi_product_unit(void);
LS_CHECKED ls_status lsi_product_run(lsi_product_cache **cache, const lsi_scratch *scratch,
                                     const lsi_product *product);

/* Products by tiles of our own (product_tile.c): whether one is of the kind they are made for. */
bool lsi_product_is_small(const lsi_product *product);
LS_CHECKED ls_status lsi_product_run_small(const lsi_scratch *scratch, const lsi_product *product);

/* Float32 products with a copy of B in rows (product_turn.c): whether one gains by it. */
bool lsi_product_is_turned(const lsi_product *product);
LS_CHECKED ls_status lsi_product_run_turned(const lsi_scratch *scratch, const lsi_product *product);

/* Products by the processor's tiles (product_amx.c): whether this process may use them. */
bool lsi_product_has_amx(void);
LS_CHECKED ls_status lsi_product_run_amx(const lsi_scratch *scratch, const lsi_product *product);

#endif
