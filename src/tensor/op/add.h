/* add for an op that makes the sum on its way, where that is faster: first the node, then the data,
 * row by row. */
#ifndef LSI_TENSOR_OP_ADD_H
#define LSI_TENSOR_OP_ADD_H

#include "tensor/tensor.h"

typedef struct lsi_sum {
    const void *a, *b;
    void *y; /* may be a or b; NULL: nothing is left to do */
    ls_dtype dtype;
} lsi_sum;

/* Records a + b as lsi_op_add does. In float32 on one thread its data is the caller's to make, by
 * *sum, before anything reads it. In bfloat16 or on several threads, where rows in turns with a
 * norm's are slower than two passes, it is made. NULL on failure. */
lsi_tensor *lsi_add_by_rows(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_sum *sum);
/* Elements [begin, end). Any thread. */
void lsi_sum_elements(const lsi_sum *sum, int64_t begin, int64_t end);

#endif
