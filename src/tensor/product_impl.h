/* What a library with primitives of its own does for products: product_dnnl.c, or nothing. */
#ifndef LSI_TENSOR_PRODUCT_IMPL_H
#define LSI_TENSOR_PRODUCT_IMPL_H

#include "tensor/product.h"

/* Whether bfloat16 products run with instructions made for them. */
bool lsi_product_knows_bf16(void);
const char *lsi_product_instructions(void); /* their name */
/* Whether a float32 product gains by a primitive over a plain call. */
bool lsi_product_wants_primitive(const lsi_product *product);
LS_CHECKED ls_status lsi_product_run(lsi_product_cache **cache, const lsi_scratch *scratch,
                                     const lsi_product *product);

/* Products by tiles of our own (product_tile.c): whether one is of the kind they are made for. */
bool lsi_product_is_small(const lsi_product *product);
LS_CHECKED ls_status lsi_product_run_small(const lsi_scratch *scratch, const lsi_product *product);

/* Products by the processor's tiles (product_amx.c): whether this process may use them. */
bool lsi_product_has_amx(void);
LS_CHECKED ls_status lsi_product_run_amx(const lsi_scratch *scratch, const lsi_product *product);

#endif
