/* What datasets need to know of a tokenizer beyond data.h. */
#ifndef LSI_DATA_TOKENIZER_H
#define LSI_DATA_TOKENIZER_H

#include <stddef.h>

#include "data/data.h"

/* Pieces of so many bytes give the same ids one by one as the whole text; 0: they may not. */
size_t lsi_tokenizer_piece_bytes(const lsi_tokenizer *tokenizer);

#endif
