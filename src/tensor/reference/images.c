/* Plain twins of the ops that images need: relu, conv2d, batch_norm, average_pool (see
 * reference.h). */
#include <math.h>
#include <stddef.h>

#include "tensor/reference/reference.h"

/* ---- relu ---- */

void lsi_ref_relu(int64_t n, const double *x, double *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] > 0.0 ? x[i] : 0.0;
}

void lsi_ref_relu_backward(int64_t n, const double *x, const double *dy, double *dx) {
    for (int64_t i = 0; i < n; i++) dx[i] = x[i] > 0.0 ? dy[i] : 0.0;
}

/* ---- conv2d ---- */

static int64_t steps(int64_t size, int64_t stride) {
    return (size + stride - 1) / stride;
}

/* Calls with all that is multiplied: an element of x, one of w, and the one of y it goes to. */
typedef void (*visit_fn)(const double *const in[3], double *const out[3], int64_t x, int64_t w,
                         int64_t y);

static void visit_filter(const lsi_ref_conv *cv, int64_t b, int64_t i, int64_t j, int64_t n,
                         const double *const in[3], double *const out[3], visit_fn visit) {
    int64_t y = ((b * steps(cv->height, cv->stride) + i) * steps(cv->width, cv->stride) + j) *
                    cv->n_filters +
                n;
    for (int64_t p = 0; p < cv->kernel; p++) {
        for (int64_t q = 0; q < cv->kernel; q++) {
            int64_t row = i * cv->stride + p - cv->kernel / 2;
            int64_t column = j * cv->stride + q - cv->kernel / 2;
            if (row < 0 || row >= cv->height || column < 0 || column >= cv->width) continue;
            for (int64_t c = 0; c < cv->n_channels; c++)
                visit(in, out, ((b * cv->height + row) * cv->width + column) * cv->n_channels + c,
                      ((n * cv->kernel + p) * cv->kernel + q) * cv->n_channels + c, y);
        }
    }
}

static void visit_all(const lsi_ref_conv *cv, const double *const in[3], double *const out[3],
                      visit_fn visit) {
    for (int64_t b = 0; b < cv->n_images; b++)
        for (int64_t i = 0; i < steps(cv->height, cv->stride); i++)
            for (int64_t j = 0; j < steps(cv->width, cv->stride); j++)
                for (int64_t n = 0; n < cv->n_filters; n++)
                    visit_filter(cv, b, i, j, n, in, out, visit);
}

static void clear(double *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) values[i] = 0.0;
}

static void add_product(const double *const in[3], double *const out[3], int64_t x, int64_t w,
                        int64_t y) {
    out[2][y] += in[0][x] * in[1][w];
}

static void add_grads(const double *const in[3], double *const out[3], int64_t x, int64_t w,
                      int64_t y) {
    out[0][x] += in[2][y] * in[1][w];
    out[1][w] += in[2][y] * in[0][x];
}

void lsi_ref_conv2d(const lsi_ref_conv *cv, const double *x, const double *weight, double *y) {
    clear(y, cv->n_images * steps(cv->height, cv->stride) * steps(cv->width, cv->stride) *
                 cv->n_filters);
    visit_all(cv, (const double *const[]){x, weight, NULL}, (double *const[]){NULL, NULL, y},
              add_product);
}

void lsi_ref_conv2d_backward(const lsi_ref_conv *cv, const double *x, const double *weight,
                             const double *dy, double *dx, double *dweight) {
    clear(dx, cv->n_images * cv->height * cv->width * cv->n_channels);
    clear(dweight, cv->n_filters * cv->kernel * cv->kernel * cv->n_channels);
    visit_all(cv, (const double *const[]){x, weight, dy}, (double *const[]){dx, dweight, NULL},
              add_grads);
}

/* ---- batch_norm ---- */

static double column_mean(const double *x, int64_t rows, int64_t columns) {
    double sum = 0.0;
    for (int64_t row = 0; row < rows; row++) sum += x[row * columns];
    return sum / (double)rows;
}

/* Over rows, not rows - 1. */
static double column_variance(const double *x, int64_t rows, int64_t columns) {
    double mean = column_mean(x, rows, columns), sum = 0.0;
    for (int64_t row = 0; row < rows; row++)
        sum += (x[row * columns] - mean) * (x[row * columns] - mean);
    return sum / (double)rows;
}

void lsi_ref_batch_norm(const lsi_ref_norm *norm, const double *x, const double *weight,
                        const double *bias, double *y) {
    int64_t n = norm->columns;
    for (int64_t c = 0; c < n; c++) {
        double mean = column_mean(x + c, norm->rows, n);
        double deviation = sqrt(column_variance(x + c, norm->rows, n) + norm->epsilon);
        for (int64_t row = 0; row < norm->rows; row++)
            y[row * n + c] = (x[row * n + c] - mean) / deviation * weight[c] + bias[c];
    }
}

/* Through the derivatives of mean and variance, one after the other. */
static void column_backward(const lsi_ref_norm *norm, const double *x, double weight,
                            const double *dy, double *dx, double *dweight, double *dbias) {
    int64_t n = norm->columns, rows = norm->rows;
    double mean = column_mean(x, rows, n);
    double deviation = sqrt(column_variance(x, rows, n) + norm->epsilon);
    double dvariance = 0.0, dmean = 0.0;
    *dweight = *dbias = 0.0;
    for (int64_t at = 0; at < rows * n; at += n) {
        *dweight += dy[at] * (x[at] - mean) / deviation;
        *dbias += dy[at];
        dvariance -= dy[at] * weight * (x[at] - mean) / (2.0 * deviation * deviation * deviation);
        dmean -= dy[at] * weight / deviation;
    }
    for (int64_t at = 0; at < rows * n; at += n)
        dx[at] =
            dy[at] * weight / deviation + (dvariance * 2.0 * (x[at] - mean) + dmean) / (double)rows;
}

void lsi_ref_batch_norm_backward(const lsi_ref_norm *norm, const double *x, const double *weight,
                                 const double *dy, double *dx, double *dweight, double *dbias) {
    for (int64_t c = 0; c < norm->columns; c++)
        column_backward(norm, x + c, weight[c], dy + c, dx + c, dweight + c, dbias + c);
}

void lsi_ref_batch_norm_fixed(const lsi_ref_norm *norm, const double *mean, const double *variance,
                              const double *x, const double *weight, const double *bias,
                              double *y) {
    for (int64_t i = 0; i < norm->rows * norm->columns; i++) {
        int64_t c = i % norm->columns;
        y[i] = (x[i] - mean[c]) / sqrt(variance[c] + norm->epsilon) * weight[c] + bias[c];
    }
}

void lsi_ref_batch_norm_fixed_backward(const lsi_ref_norm *norm, const double *mean,
                                       const double *variance, const double *x,
                                       const double *weight, const double *dy, double *dx,
                                       double *dweight, double *dbias) {
    clear(dweight, norm->columns);
    clear(dbias, norm->columns);
    for (int64_t i = 0; i < norm->rows * norm->columns; i++) {
        int64_t c = i % norm->columns;
        double deviation = sqrt(variance[c] + norm->epsilon);
        dx[i] = dy[i] * weight[c] / deviation;
        dweight[c] += dy[i] * (x[i] - mean[c]) / deviation;
        dbias[c] += dy[i];
    }
}

/* ---- average_pool ---- */

void lsi_ref_average_pool(int64_t n_images, int64_t places, int64_t channels, const double *x,
                          double *y) {
    clear(y, n_images * channels);
    for (int64_t i = 0; i < n_images * places * channels; i++)
        y[i / (places * channels) * channels + i % channels] += x[i] / (double)places;
}

void lsi_ref_average_pool_backward(int64_t n_images, int64_t places, int64_t channels,
                                   const double *dy, double *dx) {
    for (int64_t i = 0; i < n_images * places * channels; i++)
        dx[i] = dy[i / (places * channels) * channels + i % channels] / (double)places;
}
