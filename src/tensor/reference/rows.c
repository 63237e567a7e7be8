/* Plain twins of the ops that treat rows or elements alone: embedding, layer_norm, rms_norm, rope,
 * gelu, silu_mul, add, dropout, cross_entropy (see reference.h). Written from the equations at the
 * top of the op files, without a line in common with them. */
#include <math.h>

#include "tensor/reference/reference.h"

static void clear(double *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) values[i] = 0.0;
}

/* ---- embedding ---- */

void lsi_ref_embedding(const lsi_ref_lookup *look, const double *token, const double *position,
                       double *y) {
    int64_t n = look->columns;
    for (int64_t b = 0; b < look->n_batch; b++) {
        for (int64_t t = 0; t < look->n_time; t++) {
            int64_t place = b * look->n_time + t;
            for (int64_t c = 0; c < n; c++)
                y[place * n + c] =
                    token[look->ids[place] * n + c] + (position ? position[t * n + c] : 0.0);
        }
    }
}

void lsi_ref_embedding_backward(const lsi_ref_lookup *look, const double *dy, double *dtoken,
                                double *dposition) {
    int64_t n = look->columns;
    if (dtoken) clear(dtoken, look->n_tokens * n);
    if (dposition) clear(dposition, look->n_positions * n);
    for (int64_t b = 0; b < look->n_batch; b++) {
        for (int64_t t = 0; t < look->n_time; t++) {
            int64_t place = b * look->n_time + t;
            for (int64_t c = 0; c < n; c++) {
                if (dtoken) dtoken[look->ids[place] * n + c] += dy[place * n + c];
                if (dposition) dposition[t * n + c] += dy[place * n + c];
            }
        }
    }
}

/* ---- layer_norm ---- */

static double row_mean(const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t c = 0; c < n; c++) sum += x[c];
    return sum / (double)n;
}

/* 1 / sqrt(variance + epsilon) */
static double row_reciprocal(const double *x, int64_t n, double epsilon) {
    double mean = row_mean(x, n), sum = 0.0;
    for (int64_t c = 0; c < n; c++) sum += (x[c] - mean) * (x[c] - mean);
    return 1.0 / sqrt(sum / (double)n + epsilon);
}

void lsi_ref_layer_norm(const lsi_ref_norm *norm, const double *x, const double *weight,
                        const double *bias, double *y) {
    int64_t n = norm->columns;
    for (int64_t row = 0; row < norm->rows; row++) {
        double mean = row_mean(x + row * n, n);
        double r = row_reciprocal(x + row * n, n, norm->epsilon);
        for (int64_t c = 0; c < n; c++)
            y[row * n + c] = (x[row * n + c] - mean) * r * weight[c] + bias[c];
    }
}

void lsi_ref_layer_norm_backward(const lsi_ref_norm *norm, const double *x, const double *weight,
                                 const double *dy, double *dx, double *dweight, double *dbias) {
    int64_t n = norm->columns;
    clear(dweight, n);
    clear(dbias, n);
    for (int64_t row = 0; row < norm->rows; row++) {
        const double *xr = x + row * n, *dyr = dy + row * n;
        double mean = row_mean(xr, n), r = row_reciprocal(xr, n, norm->epsilon);
        double mean_g = 0.0, mean_gz = 0.0;
        for (int64_t c = 0; c < n; c++) {
            double z = (xr[c] - mean) * r, g = dyr[c] * weight[c];
            mean_g += g / (double)n;
            mean_gz += g * z / (double)n;
            dweight[c] += dyr[c] * z;
            dbias[c] += dyr[c];
        }
        for (int64_t c = 0; c < n; c++) {
            double z = (xr[c] - mean) * r, g = dyr[c] * weight[c];
            dx[row * n + c] = r * (g - mean_g - z * mean_gz);
        }
    }
}

/* ---- rms_norm ---- */

static double root_mean_square(const double *x, int64_t n, double epsilon) {
    double sum = 0.0;
    for (int64_t c = 0; c < n; c++) sum += x[c] * x[c];
    return sqrt(sum / (double)n + epsilon);
}

void lsi_ref_rms_norm(const lsi_ref_norm *norm, const double *x, const double *weight, double *y) {
    int64_t n = norm->columns;
    for (int64_t row = 0; row < norm->rows; row++) {
        double size = root_mean_square(x + row * n, n, norm->epsilon);
        for (int64_t c = 0; c < n; c++) y[row * n + c] = x[row * n + c] / size * weight[c];
    }
}

/* dy[c]/dx[k] = w[c] (c == k) / size - w[c] x[c] x[k] / (n size^3), summed as it stands. */
void lsi_ref_rms_norm_backward(const lsi_ref_norm *norm, const double *x, const double *weight,
                               const double *dy, double *dx, double *dweight) {
    int64_t n = norm->columns;
    clear(dweight, n);
    for (int64_t row = 0; row < norm->rows; row++) {
        const double *xr = x + row * n, *dyr = dy + row * n;
        double size = root_mean_square(xr, n, norm->epsilon), sum = 0.0;
        for (int64_t c = 0; c < n; c++) {
            dweight[c] += dyr[c] * xr[c] / size;
            sum += dyr[c] * weight[c] * xr[c];
        }
        for (int64_t k = 0; k < n; k++)
            dx[row * n + k] =
                dyr[k] * weight[k] / size - sum * xr[k] / ((double)n * size * size * size);
    }
}

/* ---- rope: every pair is a complex number, multiplied by e^(+-i angle) ---- */

static void turn_all(const lsi_ref_rope *rope, double direction, const double *x, double *y) {
    int64_t half = rope->head_size / 2;
    for (int64_t head = 0; head < rope->n_batch * rope->n_time * rope->n_heads; head++) {
        int64_t t = head / rope->n_heads % rope->n_time;
        for (int64_t i = 0; i < half; i++) {
            double exponent = 2.0 * (double)i / (double)rope->head_size;
            double angle = direction * (double)t / pow(rope->theta, exponent);
            int64_t re = head * rope->head_size + i, im = re + half;
            double turned_re = x[re] * cos(angle) - x[im] * sin(angle);
            y[im] = x[re] * sin(angle) + x[im] * cos(angle);
            y[re] = turned_re;
        }
    }
}

void lsi_ref_rope_forward(const lsi_ref_rope *rope, const double *x, double *y) {
    turn_all(rope, 1.0, x, y);
}

void lsi_ref_rope_backward(const lsi_ref_rope *rope, const double *dy, double *dx) {
    turn_all(rope, -1.0, dy, dx);
}

/* ---- gelu ---- */

static const double root_2_over_pi = 0.79788456080286535588;

void lsi_ref_gelu(int64_t n, const double *x, double *y) {
    for (int64_t i = 0; i < n; i++) {
        double u = root_2_over_pi * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
        y[i] = 0.5 * x[i] * (1.0 + tanh(u));
    }
}

void lsi_ref_gelu_backward(int64_t n, const double *x, const double *dy, double *dx) {
    for (int64_t i = 0; i < n; i++) {
        double u = root_2_over_pi * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
        double du = root_2_over_pi * (1.0 + 3.0 * 0.044715 * x[i] * x[i]);
        double slope = 0.5 * (1.0 + tanh(u)) + 0.5 * x[i] * (1.0 - tanh(u) * tanh(u)) * du;
        dx[i] = dy[i] * slope;
    }
}

/* ---- silu_mul ---- */

void lsi_ref_silu_mul(int64_t n, const double *gate, const double *up, double *y) {
    for (int64_t i = 0; i < n; i++) y[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
}

void lsi_ref_silu_mul_backward(int64_t n, const double *gate, const double *up, const double *dy,
                               double *dgate, double *dup) {
    for (int64_t i = 0; i < n; i++) {
        double e = exp(-gate[i]);
        dup[i] = dy[i] * gate[i] / (1.0 + e);
        dgate[i] = dy[i] * up[i] * (1.0 + e + gate[i] * e) / ((1.0 + e) * (1.0 + e));
    }
}

/* ---- add ---- */

void lsi_ref_add(int64_t n, const double *a, const double *b, double *y) {
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void lsi_ref_add_backward(int64_t n, const double *dy, double *da, double *db) {
    for (int64_t i = 0; i < n; i++) da[i] = db[i] = dy[i];
}

/* ---- dropout: words are dealt to elements as dropout_mask.h says ---- */

double lsi_ref_dropout_factor(const lsi_rng_stream *stream, float p, int64_t element) {
    int64_t group = element / 64, place = element % 64;
    lsi_philox_block block = lsi_rng_block(stream, (uint64_t)(16 * group + place % 16));
    double draw = (double)block.word[place / 16] / 4294967296.0;
    return draw < (double)p ? 0.0 : 1.0 / (1.0 - (double)p);
}

void lsi_ref_dropout(int64_t n, const lsi_rng_stream *stream, float p, const double *x, double *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * lsi_ref_dropout_factor(stream, p, i);
}

void lsi_ref_dropout_backward(int64_t n, const lsi_rng_stream *stream, float p, const double *dy,
                              double *dx) {
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * lsi_ref_dropout_factor(stream, p, i);
}

/* ---- cross_entropy ---- */

static double log_sum_exp(const double *x, int64_t n) {
    double largest = x[0], sum = 0.0;
    for (int64_t v = 0; v < n; v++) largest = x[v] > largest ? x[v] : largest;
    for (int64_t v = 0; v < n; v++) sum += exp(x[v] - largest);
    return largest + log(sum);
}

double lsi_ref_cross_entropy(int64_t rows, int64_t columns, const double *logits,
                             const int32_t *targets) {
    double loss = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const double *x = logits + row * columns;
        if (targets[row] >= 0) loss += log_sum_exp(x, columns) - x[targets[row]];
    }
    return loss;
}

void lsi_ref_cross_entropy_backward(int64_t rows, int64_t columns, const double *logits,
                                    const int32_t *targets, double dloss, double *dlogits) {
    clear(dlogits, rows * columns);
    for (int64_t row = 0; row < rows; row++) {
        if (targets[row] < 0) continue;
        const double *x = logits + row * columns;
        double *dx = dlogits + row * columns;
        for (int64_t v = 0; v < columns; v++)
            dx[v] = dloss * (exp(x[v] - log_sum_exp(x, columns)) - (v == targets[row] ? 1.0 : 0.0));
    }
}
