/* How products of bfloat16 run here, in words, for `version` and the head of `train`: a run that
 * widens them takes several times as long, so its owner must be able to see it. */
#ifndef LSI_CLI_BF16_PRODUCTS_H
#define LSI_CLI_BF16_PRODUCTS_H

#include <string.h>

#include "tensor/product.h"

/* What follows "products". */
static inline const char *bf16_products_in_words(void) {
    static const struct {
        const char *way, *words;
    } rows[] = {
        {"AMX", "by AMX"},
        {"AVX512-BF16", "by AVX512-BF16"},
        {"float32 after widening",
         "in float32 after widening: this processor has no bfloat16 instructions, or the library "
         "does not know them"},
    };
    const char *way = lsi_bf16_products();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(way, rows[i].way) == 0) return rows[i].words;
    return way;
}

#endif
