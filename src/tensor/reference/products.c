/* Plain twins of the ops that multiply matrices: linear in both forms, attention (see
 * reference.h). Attention's backward goes the long way, through the derivative of softmax, so that
 * it shares no shortcut with op/attention.c. */
#include <math.h>

#include "tensor/dropout_mask.h"
#include "tensor/reference/reference.h"

/* ---- linear ---- */

static int64_t weight_at(const lsi_ref_product *product, int64_t k, int64_t n) {
    return product->transposed ? n * product->k + k : k * product->n + n;
}

void lsi_ref_linear(const lsi_ref_product *product, const double *x, const double *weight,
                    const double *bias, double *y) {
    for (int64_t row = 0; row < product->rows; row++) {
        for (int64_t n = 0; n < product->n; n++) {
            double sum = bias ? bias[n] : 0.0;
            for (int64_t k = 0; k < product->k; k++)
                sum += x[row * product->k + k] * weight[weight_at(product, k, n)];
            y[row * product->n + n] = sum;
        }
    }
}

void lsi_ref_linear_backward(const lsi_ref_product *product, const double *x, const double *weight,
                             const double *dy, double *dx, double *dweight, double *dbias) {
    for (int64_t i = 0; i < product->rows * product->k; i++) dx[i] = 0.0;
    for (int64_t i = 0; i < product->k * product->n; i++) dweight[i] = 0.0;
    for (int64_t n = 0; dbias && n < product->n; n++) dbias[n] = 0.0;
    for (int64_t row = 0; row < product->rows; row++) {
        for (int64_t n = 0; n < product->n; n++) {
            double g = dy[row * product->n + n];
            if (dbias) dbias[n] += g;
            for (int64_t k = 0; k < product->k; k++) {
                dx[row * product->k + k] += g * weight[weight_at(product, k, n)];
                dweight[weight_at(product, k, n)] += g * x[row * product->k + k];
            }
        }
    }
}

/* ---- attention ---- */

/* Where element d of query (part 0), key (1) or value (2) of a position stands in qkv. */
static int64_t qkv_at(const lsi_ref_heads *heads, int part, int64_t b, int64_t h, int64_t t,
                      int64_t d) {
    int64_t size = heads->channels / heads->n_heads;
    return (b * heads->n_time + t) * 3 * heads->channels + part * heads->channels + h * size + d;
}

static int64_t y_at(const lsi_ref_heads *heads, int64_t b, int64_t h, int64_t t, int64_t d) {
    int64_t size = heads->channels / heads->n_heads;
    return (b * heads->n_time + t) * heads->channels + h * size + d;
}

static double score(const lsi_ref_heads *heads, const double *qkv, int64_t b, int64_t h, int64_t i,
                    int64_t j) {
    int64_t size = heads->channels / heads->n_heads;
    double sum = 0.0;
    for (int64_t d = 0; d < size; d++)
        sum += qkv[qkv_at(heads, 0, b, h, i, d)] * qkv[qkv_at(heads, 1, b, h, j, d)];
    return sum / sqrt((double)size);
}

/* Probability of key j for query i, before dropout. */
static double probability(const lsi_ref_heads *heads, const double *qkv, int64_t b, int64_t h,
                          int64_t i, int64_t j) {
    double of_j = score(heads, qkv, b, h, i, j), sum = 0.0;
    for (int64_t other = 0; other <= i; other++)
        sum += exp(score(heads, qkv, b, h, i, other) - of_j);
    return 1.0 / sum;
}

static double mask(const lsi_ref_heads *heads, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (heads->dropout == 0.0f) return 1.0;
    int64_t row = (b * heads->n_heads + h) * heads->n_time + i;
    return lsi_ref_dropout_factor(&heads->stream, heads->dropout,
                                  row * lsi_mask_padded(heads->n_time) + j);
}

static void attention_row(const lsi_ref_heads *heads, const double *qkv, int64_t b, int64_t h,
                          int64_t i, double *y) {
    int64_t size = heads->channels / heads->n_heads;
    for (int64_t d = 0; d < size; d++) y[y_at(heads, b, h, i, d)] = 0.0;
    for (int64_t j = 0; j <= i; j++) {
        double p = probability(heads, qkv, b, h, i, j) * mask(heads, b, h, i, j);
        for (int64_t d = 0; d < size; d++)
            y[y_at(heads, b, h, i, d)] += p * qkv[qkv_at(heads, 2, b, h, j, d)];
    }
}

void lsi_ref_attention(const lsi_ref_heads *heads, const double *qkv, double *y) {
    for (int64_t b = 0; b < heads->n_batch; b++) {
        for (int64_t h = 0; h < heads->n_heads; h++) {
            for (int64_t i = 0; i < heads->n_time; i++) attention_row(heads, qkv, b, h, i, y);
        }
    }
}

/* Gradient of the probability of key j, before dropout. */
static double probability_grad(const lsi_ref_heads *heads, const double *qkv, const double *dy,
                               int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t size = heads->channels / heads->n_heads;
    double sum = 0.0;
    for (int64_t d = 0; d < size; d++)
        sum += dy[y_at(heads, b, h, i, d)] * qkv[qkv_at(heads, 2, b, h, j, d)];
    return sum * mask(heads, b, h, i, j);
}

/* What query i adds to the gradients of itself, its keys and its values. */
static void attention_row_backward(const lsi_ref_heads *heads, const double *qkv, const double *dy,
                                   int64_t b, int64_t h, int64_t i, double *dqkv) {
    int64_t size = heads->channels / heads->n_heads;
    double mean = 0.0; /* of the probabilities' gradients, under the probabilities */
    for (int64_t j = 0; j <= i; j++)
        mean += probability(heads, qkv, b, h, i, j) * probability_grad(heads, qkv, dy, b, h, i, j);
    for (int64_t j = 0; j <= i; j++) {
        double p = probability(heads, qkv, b, h, i, j);
        double ds = p * (probability_grad(heads, qkv, dy, b, h, i, j) - mean);
        for (int64_t d = 0; d < size; d++) {
            dqkv[qkv_at(heads, 0, b, h, i, d)] +=
                ds * qkv[qkv_at(heads, 1, b, h, j, d)] / sqrt((double)size);
            dqkv[qkv_at(heads, 1, b, h, j, d)] +=
                ds * qkv[qkv_at(heads, 0, b, h, i, d)] / sqrt((double)size);
            dqkv[qkv_at(heads, 2, b, h, j, d)] +=
                p * mask(heads, b, h, i, j) * dy[y_at(heads, b, h, i, d)];
        }
    }
}

void lsi_ref_attention_backward(const lsi_ref_heads *heads, const double *qkv, const double *dy,
                                double *dqkv) {
    for (int64_t i = 0; i < heads->n_batch * heads->n_time * 3 * heads->channels; i++)
        dqkv[i] = 0.0;
    for (int64_t b = 0; b < heads->n_batch; b++) {
        for (int64_t h = 0; h < heads->n_heads; h++) {
            for (int64_t i = 0; i < heads->n_time; i++)
                attention_row_backward(heads, qkv, dy, b, h, i, dqkv);
        }
    }
}
