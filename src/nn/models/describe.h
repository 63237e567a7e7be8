/* What the descriptions of models (lsi_model_class.describe) share.
 *
 * [Note: what a description counts] Floating-point operations: those of matrix products, 2 a
 * multiplication and addition, forward and twice as many backward; a product with a weight of n
 * elements is 6 n a row. Attention is counted over the whole square of queries and keys, as is
 * usual, though little more than half of it is computed, and what backward computes again is not
 * counted. Activation bytes: what the arena holds when forward ends, as the unit made it: data that
 * backward reads (not what is cheap to make again), statistics of norms and rows, rounded to the
 * arena's steps. Not counted: parameters and gradients, scratch memory while an op runs, and what
 * backward takes at its widest place (some gradients, and data made again). */
#ifndef LSI_NN_MODELS_DESCRIBE_H
#define LSI_NN_MODELS_DESCRIBE_H

#include "nn/model.h"

/* Bytes of n elements in the arena. */
int64_t lsi_describe_bytes(int64_t n_elems, size_t elem_bytes);
/* Sets first_param, n_params and the operations of their matrices with `rows` rows; no bytes. */
lsi_unit_cost lsi_describe_params(const lsi_model *model, int first, int n, int64_t rows);
/* Causal attention over all heads, which have `channels` together. */
double lsi_describe_attention(int64_t n_batch, int64_t n_time, int64_t channels);

#endif
