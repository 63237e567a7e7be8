/* Dot products in lanes, and modified Gram-Schmidt, each column twice.
 *
 * Taking the columns before it off a column leaves EPSILON of what it was, which is much where
 * little is left; taking them off again leaves EPSILON of that. Twice is enough (Giraud, Langou,
 * Rozloznik: "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005)
 * unless the column was a combination of the others: then all that is left is rounding, and it is
 * dropped. */
#include "parallel/hook_columns.h"

#include <math.h>

#include <lockstep/optim.h>

enum { N_LANES = 16 };

/* What is left of a column, relative to what it was, if it is only rounding: sums in float32 leave
 * some 1e-6. */
static const double DEPENDENT = 1e-5;

#define DOT(name, type)                                                                            \
    static inline type name(const float *x, const float *y, int64_t n) {                           \
        type lane[N_LANES] = {0};                                                                  \
        int64_t i = 0;                                                                             \
        for (; i + N_LANES <= n; i += N_LANES)                                                     \
            for (int l = 0; l < N_LANES; l++) lane[l] += (type)x[i + l] * (type)y[i + l];          \
        for (int l = 0; i < n; l++, i++) lane[l] += (type)x[i] * (type)y[i];                       \
        for (int half = N_LANES / 2; half > 0; half /= 2)                                          \
            for (int l = 0; l < half; l++) lane[l] += lane[l + half];                              \
        return lane[0];                                                                            \
    }
DOT(dot, float)
DOT(exact_dot, double)

float lsi_columns_dot(const float *x, const float *y, int64_t n) {
    return dot(x, y, n);
}

void lsi_columns_add_times(float *restrict y, const float *restrict x, float a, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* y -= a x */
static void take_off(float *restrict y, const float *restrict x, double a, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = (float)(y[i] - a * x[i]);
}

void lsi_columns_fill(float *x, float value, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = value;
}

void lsi_columns_normalize(float *x, int64_t n, double least) {
    double length = sqrt(ls_sum_squares(x, n));
    if (!isfinite(length))
        lsi_columns_fill(x, NAN, n);
    else if (length <= least)
        lsi_columns_fill(x, 0, n);
    else
        for (int64_t i = 0; i < n; i++) x[i] = (float)(x[i] / length);
}

void lsi_columns_orthonormalize(float *columns, int n_columns, int64_t n) {
    for (int c = 0; c < n_columns; c++) {
        float *column = columns + c * n;
        double before = sqrt(ls_sum_squares(column, n));
        for (int k = 0; k < 2 * c; k++) {
            const float *other = columns + k % c * n;
            take_off(column, other, exact_dot(column, other, n), n);
        }
        lsi_columns_normalize(column, n, DEPENDENT * before);
    }
}
