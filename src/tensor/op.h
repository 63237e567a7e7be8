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
/* (…,C) -> (…,C): x / sqrt(mean of x^2 + epsilon) * weight (C). */
lsi_tensor *lsi_op_rms_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, float epsilon);
/* (…,K) -> (…,N): x * weight (K,N) + bias (N); bias may be NULL. */
lsi_tensor *lsi_op_linear(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias);
/* (…,K) -> (…,N): x * transpose(weight (N,K)) + bias (N); bias may be NULL. The layout of Llama's
 * files, and of an output layer tied to an embedding table. */
lsi_tensor *lsi_op_linear_transposed(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight,
                                     lsi_tensor *bias);
/* The same at the end of a model: the result is float32 whatever the type of x, rounded to the
 * tape's type for outputs (lsi_tape_set_output_dtype), as its gradient is before it goes on. */
lsi_tensor *lsi_op_logits(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias);
/* (B,T,3C) queries, keys, values side by side -> (B,T,C). Causal, H heads, scale 1/sqrt(C/H),
 * dropout on the probabilities. No (T,T) matrix is kept: backward recomputes it per head. */
lsi_tensor *lsi_op_attention(lsi_tape *tape, lsi_tensor *qkv, int n_heads, float dropout);
/* The same for queries (B,T,H D) and keys and values (B,T,G D) of their own: H / n_groups heads
 * share a head of keys and values (grouped-query attention; n_groups = n_heads: each has its own).
 */
lsi_tensor *lsi_op_attention_grouped(lsi_tape *tape, lsi_tensor *q, lsi_tensor *k, lsi_tensor *v,
                                     int n_heads, int n_groups, float dropout);
/* -> (T,D) float32: row t has cos(t f[i]) for i = 0 … D/2-1, then sin(t f[i]), with f[i] =
 * theta^(-2i/D). A constant of one pass, for lsi_op_rope. */
lsi_tensor *lsi_op_rope_table(lsi_tape *tape, int64_t n_time, int64_t head_size, double theta);
/* (B,T,H D) -> the same: in every head elements i and i + D/2 are turned as one point of a plane by
 * the angle t f[i] of the table (T,D) (rotary positions, Hugging Face's order of elements). */
lsi_tensor *lsi_op_rope(lsi_tape *tape, lsi_tensor *x, lsi_tensor *table);
/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's form ("gelu_new"). */
lsi_tensor *lsi_op_gelu(lsi_tape *tape, lsi_tensor *x);
/* gate / (1 + e^-gate) * up, same shape (SwiGLU). */
lsi_tensor *lsi_op_silu_mul(lsi_tape *tape, lsi_tensor *gate, lsi_tensor *up);
/* a + b, same shape (residual). */
lsi_tensor *lsi_op_add(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b);

/* [Note: pairs] Two ops in one pass over memory: rows go through the second one while they are
 * near. That is so in float32, for sum and norm on one thread; else one pass follows the other. To
 * the bit and for the tape it is the first op, whose result *product or *sum gets on success, and
 * then the second: two nodes, dropped and made again each for itself. A profile counts gelu apart,
 * a trace shows it inside of the product; a sum made in one pass is part of the norm in both. */
lsi_tensor *lsi_op_linear_gelu(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                               lsi_tensor **product);
lsi_tensor *lsi_op_add_layer_norm(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_tensor *weight,
                                  lsi_tensor *bias, float epsilon, lsi_tensor **sum);
lsi_tensor *lsi_op_add_rms_norm(lsi_tape *tape, lsi_tensor *a, lsi_tensor *b, lsi_tensor *weight,
                                float epsilon, lsi_tensor **sum);

/* Zero with probability p, else x / (1 - p). p = 0 or not recording: returns x itself. */
lsi_tensor *lsi_op_dropout(lsi_tape *tape, lsi_tensor *x, float p);
/* x (…,C), weight (V,C), one target per row -> (1): the loss below of the logits x *
 * transpose(weight), which never exist as a whole, rounded as those of lsi_op_logits. Recording, it
 * computes the gradients in forward (the gradient buffer of weight must be there) and must be the
 * end of the pass. */
lsi_tensor *lsi_op_head_loss(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight,
                             const int32_t *targets);
/* The larger of x and 0. */
lsi_tensor *lsi_op_relu(lsi_tape *tape, lsi_tensor *x);
/* Images x (B,H,W,C), weight (N,K,K,C) with K odd -> (B,H',W',N), H' = (H - 1) / stride + 1:
 * filters of K x K pixels, zeros outside of the image, at each stride-th pixel. */
lsi_tensor *lsi_op_conv2d(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, int64_t stride);
/* (…,C) -> (…,C): (x - mean) / sqrt(var + epsilon) * weight (C) + bias (C), with mean and variance
 * of each channel over all rows; where the tape has an exchange, over the rows of all ranks. stats
 * gets, for running statistics, C means and C unbiased variances; NULL: nobody wants them. */
lsi_tensor *lsi_op_batch_norm(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, lsi_tensor *bias,
                              float epsilon, float *stats);
/* The same with statistics that are given, C values each. */
lsi_tensor *lsi_op_batch_norm_fixed(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight,
                                    lsi_tensor *bias, float epsilon, const float *mean,
                                    const float *variance);
/* (B,H,W,C) -> (B,C): the mean over H and W. */
lsi_tensor *lsi_op_average_pool(lsi_tape *tape, lsi_tensor *x);
/* For tests: rows are taken in pieces of so many bytes of logits, at least 64 rows; 0: as usual. */
void lsi_head_loss_piece(int64_t bytes);
/* logits (…,V), one target per row -> (1): SUM over rows of -log softmax(logits)[target], natural
 * logarithm. Target -1 leaves a row out. The gradient overwrites logits in place, so logits may
 * have no other use. Sums over rows are in double, in row order. */
lsi_tensor *lsi_op_cross_entropy(lsi_tape *tape, lsi_tensor *logits, const int32_t *targets);

#endif
