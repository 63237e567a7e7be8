/* gelu for an op that makes its input row by row: open, rows as they come, record. */
#ifndef LSI_TENSOR_OP_GELU_H
#define LSI_TENSOR_OP_GELU_H

#include "tensor/tensor.h"

typedef struct lsi_gelu {
    lsi_tape *tape;
    lsi_tensor *x, *y;
    int64_t ns; /* spent here, where there is a profile */
} lsi_gelu;

/* Takes memory for y; the data of x may be still to come. False on failure. */
bool lsi_gelu_open(lsi_tape *tape, lsi_tensor *x, lsi_gelu *gelu);
/* Rows [first, first + n) of y. context: an lsi_gelu. On the tape's thread, inside of the span of
 * the op that makes x, from which its time is taken off. */
void lsi_gelu_rows(void *context, int64_t first, int64_t n);
/* Records what lsi_op_gelu does, when all rows are there and x is recorded. y, or NULL. */
lsi_tensor *lsi_gelu_record(const lsi_gelu *gelu);

#endif
