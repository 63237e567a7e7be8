/* What every op asks first: are the inputs there, and do their shapes fit. */
#ifndef LSI_TENSOR_OP_SHAPE_H
#define LSI_TENSOR_OP_SHAPE_H

#include "tensor/tensor.h"

/* True if the op may go on: no earlier error, n_inputs tensors that are there and hold data. False
 * leaves the reason in the tape ([Note: sticky errors]). Starts the op's span in the trace. */
bool lsi_op_begin(lsi_tape *tape, const char *name, int n_inputs, lsi_tensor *const *inputs);
/* True if t has exactly these dims; `what` names it in the error. */
bool lsi_op_has_dims(lsi_tape *tape, const char *name, const char *what, const lsi_tensor *t,
                     int n_dims, const int64_t *dims);
/* True if both have the tape's type for activations, and a, if it is narrow, is no parameter (whose
 * gradient would have another type; b may be a weight). */
bool lsi_op_same_type(lsi_tape *tape, const char *name, const lsi_tensor *a, const lsi_tensor *b);
/* True if the gradient of a weight (NULL: none) would be float32: it is a parameter, or float32. */
bool lsi_op_is_weight(lsi_tape *tape, const char *name, const char *what, const lsi_tensor *t);
/* "(2,3,4)"; a few such texts can be in use at once. */
const char *lsi_dims_text(int n_dims, const int64_t *dims);

#endif
