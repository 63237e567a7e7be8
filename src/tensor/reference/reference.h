/* Plain twins of the ops: what each op of op/ must compute, in double and in the most direct loops.
 *
 * They are the measure for the op files and are kept for ever: tests compare values and gradients
 * with them, and them with finite differences. Never fast, never clever, called by tests alone.
 *
 * Arrays are row-major doubles. A forward function writes y; a backward function is given dy and
 * overwrites the gradient of each input, NULL leaves one out. Shapes as in op.h. */
#ifndef LSI_TENSOR_REFERENCE_H
#define LSI_TENSOR_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"

typedef struct lsi_ref_lookup {
    const int32_t *ids; /* (B,T) */
    int64_t n_batch, n_time, n_tokens, n_positions, columns;
} lsi_ref_lookup;

/* token (n_tokens,C), position (n_positions,C) or NULL, y (B,T,C) */
void lsi_ref_embedding(const lsi_ref_lookup *look, const double *token, const double *position,
                       double *y);
void lsi_ref_embedding_backward(const lsi_ref_lookup *look, const double *dy, double *dtoken,
                                double *dposition);

typedef struct lsi_ref_norm {
    int64_t rows, columns;
    double epsilon;
} lsi_ref_norm;

/* x, y (rows,C), weight, bias (C) */
void lsi_ref_layer_norm(const lsi_ref_norm *norm, const double *x, const double *weight,
                        const double *bias, double *y);
void lsi_ref_layer_norm_backward(const lsi_ref_norm *norm, const double *x, const double *weight,
                                 const double *dy, double *dx, double *dweight, double *dbias);

/* x, y (rows,C), weight (C) */
void lsi_ref_rms_norm(const lsi_ref_norm *norm, const double *x, const double *weight, double *y);
void lsi_ref_rms_norm_backward(const lsi_ref_norm *norm, const double *x, const double *weight,
                               const double *dy, double *dx, double *dweight);

typedef struct lsi_ref_rope {
    int64_t n_batch, n_time, n_heads, head_size;
    double theta;
} lsi_ref_rope;

/* x, y (B,T,H D) */
void lsi_ref_rope_forward(const lsi_ref_rope *rope, const double *x, double *y);
void lsi_ref_rope_backward(const lsi_ref_rope *rope, const double *dy, double *dx);

typedef struct lsi_ref_product {
    int64_t rows, k, n;
    bool transposed; /* weight is (N,K), else (K,N) */
} lsi_ref_product;

/* x (rows,K), bias (N) or NULL, y (rows,N) */
void lsi_ref_linear(const lsi_ref_product *product, const double *x, const double *weight,
                    const double *bias, double *y);
void lsi_ref_linear_backward(const lsi_ref_product *product, const double *x, const double *weight,
                             const double *dy, double *dx, double *dweight, double *dbias);

typedef struct lsi_ref_heads {
    int64_t n_batch, n_time, channels, n_heads;
    float dropout;
    lsi_rng_stream stream; /* of the mask, if dropout > 0 */
} lsi_ref_heads;

/* qkv (B,T,3C), y (B,T,C) */
void lsi_ref_attention(const lsi_ref_heads *heads, const double *qkv, double *y);
void lsi_ref_attention_backward(const lsi_ref_heads *heads, const double *qkv, const double *dy,
                                double *dqkv);

void lsi_ref_gelu(int64_t n, const double *x, double *y);
void lsi_ref_gelu_backward(int64_t n, const double *x, const double *dy, double *dx);

void lsi_ref_silu_mul(int64_t n, const double *gate, const double *up, double *y);
void lsi_ref_silu_mul_backward(int64_t n, const double *gate, const double *up, const double *dy,
                               double *dgate, double *dup);

void lsi_ref_add(int64_t n, const double *a, const double *b, double *y);
void lsi_ref_add_backward(int64_t n, const double *dy, double *da, double *db);

/* The factor that dropout applies to an element of a stream: 0 or 1 / (1 - p). */
double lsi_ref_dropout_factor(const lsi_rng_stream *stream, float p, int64_t element);
void lsi_ref_dropout(int64_t n, const lsi_rng_stream *stream, float p, const double *x, double *y);
void lsi_ref_dropout_backward(int64_t n, const lsi_rng_stream *stream, float p, const double *dy,
                              double *dx);

void lsi_ref_relu(int64_t n, const double *x, double *y);
void lsi_ref_relu_backward(int64_t n, const double *x, const double *dy, double *dx);

typedef struct lsi_ref_conv {
    int64_t n_images, height, width, n_channels, kernel, stride, n_filters;
} lsi_ref_conv;

/* x (B,H,W,C), weight (N,K,K,C), y (B,H',W',N) */
void lsi_ref_conv2d(const lsi_ref_conv *conv, const double *x, const double *weight, double *y);
void lsi_ref_conv2d_backward(const lsi_ref_conv *conv, const double *x, const double *weight,
                             const double *dy, double *dx, double *dweight);

/* x, y (rows,C), the rest (C) */
void lsi_ref_batch_norm(const lsi_ref_norm *norm, const double *x, const double *weight,
                        const double *bias, double *y);
void lsi_ref_batch_norm_backward(const lsi_ref_norm *norm, const double *x, const double *weight,
                                 const double *dy, double *dx, double *dweight, double *dbias);
void lsi_ref_batch_norm_fixed(const lsi_ref_norm *norm, const double *mean, const double *variance,
                              const double *x, const double *weight, const double *bias, double *y);
void lsi_ref_batch_norm_fixed_backward(const lsi_ref_norm *norm, const double *mean,
                                       const double *variance, const double *x,
                                       const double *weight, const double *dy, double *dx,
                                       double *dweight, double *dbias);

/* x (B,places,C), y (B,C) */
void lsi_ref_average_pool(int64_t n_images, int64_t places, int64_t channels, const double *x,
                          double *y);
void lsi_ref_average_pool_backward(int64_t n_images, int64_t places, int64_t channels,
                                   const double *dy, double *dx);

/* logits (rows,V), targets (rows), one loss; dloss is its gradient. */
double lsi_ref_cross_entropy(int64_t rows, int64_t columns, const double *logits,
                             const int32_t *targets);
void lsi_ref_cross_entropy_backward(int64_t rows, int64_t columns, const double *logits,
                                    const int32_t *targets, double dloss, double *dlogits);

#endif
