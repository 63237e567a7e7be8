/* The ops. One file each in op/, forward and backward side by side; each has a plain twin in
 * reference/ that tests compare with, and a row in the op test table.
 *
 * B sequences, T positions, C channels, V vocabulary, H heads. All return NULL on failure (see
 * [Note: sticky errors] in tensor.h). */
#ifndef LSI_TENSOR_OP_H
#define LSI_TENSOR_OP_H

#include "tensor/tensor.h"

/* (B,T) ids -> (B,T,C): token_table (V,C)[id] + position_table (Tmax,C)[t]. T <= Tmax. An id
 * outside [0, V) is an error. position_table may be NULL. */
lsi_tensor *lsi_op_embedding(lsi_tape *tape, const int32_t *ids, int64_t n_batch, int64_t n_time,
                             lsi_tensor *token_table, lsi_tensor *position_table);
/* (…,C) -> (…,C): (x - mean) / sqrt(var + epsilon) * weight (C) + bias (C). */
lsi_tensor *lsi_op_layer_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                              float epsilon);
/* (…,K) -> (…,N): x * weight (K,N) + bias (N); bias may be NULL. */
lsi_tensor *lsi_op_linear(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias);
/* (…,K) -> (…,N): x * transpose(weight (N,K)); the output layer tied to an embedding table. */
lsi_tensor *lsi_op_linear_transposed(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight);
/* (B,T,3C) queries, keys, values side by side -> (B,T,C). Causal, H heads, scale 1/sqrt(C/H),
 * dropout on the probabilities. No (T,T) matrix is kept: backward recomputes it per head. */
lsi_tensor *lsi_op_attention(lsi_tape *tape, lsi_tensor *qkv, int n_heads, float dropout);
/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's form ("gelu_new"). */
lsi_tensor *lsi_op_gelu(lsi_tape *tape, lsi_tensor *x);
/* a + b, same shape (residual). */
lsi_tensor *lsi_op_add(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b);
/* Zero with probability p, else x / (1 - p). p = 0 or not recording: returns x itself. */
lsi_tensor *lsi_op_dropout(lsi_tape *tape, lsi_tensor *x, float p);
/* logits (…,V), one target per row -> (1): SUM over rows of -log softmax(logits)[target], natural
 * logarithm. Target -1 leaves a row out. The gradient overwrites logits in place, so logits may
 * have no other use. Sums over rows are in double, in row order. */
lsi_tensor *lsi_op_cross_entropy(lsi_tape *tape, lsi_tensor *logits, const int32_t *targets);

#endif
