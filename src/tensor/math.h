/* Arithmetic of the kernels: an exponential that vectorises, and reductions over a row in lanes.
 *
 * Everything is + - * / on float32, and lsi_fma where it is asked for by name, each element or lane
 * by itself. IEEE 754 rounds these in one way and contraction is off, so the bits are the same at
 * any vector width and on any processor with a fused multiply-add (x86-64-v3, Armv8); a libm's last
 * bit is not.
 *
 * [Note: lanes] A sum over a row runs in LSI_LANES accumulators, element i into lane i mod
 * LSI_LANES, and these are added as a binary tree. That is an order of additions that any vector
 * unit can follow, and its error is that of n / LSI_LANES additions. */
#ifndef LSI_TENSOR_MATH_H
#define LSI_TENSOR_MATH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LSI_LANES = 16 };

#define LSI_LOG2_E 1.44269504f

/* Before a loop over elements whose output may be exactly its input, or is separate from it: tells
 * the compiler that no element depends on another. */
#if defined(__clang__)
#define LSI_ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define LSI_ELEMENTWISE _Pragma("GCC ivdep")
#endif

/* Before a loop over the lanes inside a loop over a row: one vector of lanes it shall become, not
 * LSI_LANES single additions. */
#if defined(__clang__)
#define LSI_LANE_LOOP _Pragma("clang loop unroll(disable)")
#else
#define LSI_LANE_LOOP _Pragma("GCC unroll 1")
#endif

static inline uint32_t lsi_bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float lsi_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The smaller and the larger one; b where one is NaN. With a choice by ?: the compiler gives each
 * outcome a branch of its own and makes what follows three times; a mask leaves one way. */
static inline float lsi_smaller(float a, float b) {
    uint32_t pick = 0u - (uint32_t)(a < b);
    return lsi_float_of((lsi_bits_of(a) & pick) | (lsi_bits_of(b) & ~pick));
}

static inline float lsi_larger(float a, float b) {
    uint32_t pick = 0u - (uint32_t)(a > b);
    return lsi_float_of((lsi_bits_of(a) & pick) | (lsi_bits_of(b) & ~pick));
}

/* a b + c, rounded once where the processor can, for which this is compiled. */
static inline float lsi_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* x = n ln 2 + r with |r| <= ln 2 / 2: returns e^r and leaves n (a two's complement number).
 *
 * e^r = 1 + r + r^2 q(r), q of degree 4 fitted for the least relative error of e^r (3e-9). ln 2 is
 * taken off in two pieces, the first of 9 bits so that n times it is exact. Adding 1.5 * 2^23
 * rounds to an integer and leaves it in the low bits, which is defined for NaN as well. */
static inline float lsi_exp_parts(float x, uint32_t *n) {
    const float round = 12582912.0f;
    float shifted = lsi_fma(x, LSI_LOG2_E, round);
    float whole = shifted - round;
    float r = lsi_fma(whole, 2.12194440e-4f, lsi_fma(whole, -0.693359375f, x));
    float q = 0.0013814467f;
    q = lsi_fma(q, r, 0.008368781f);
    q = lsi_fma(q, r, 0.041668393f);
    q = lsi_fma(q, r, 0.1666652f);
    q = lsi_fma(q, r, 0.49999994f);
    *n = lsi_bits_of(shifted) - lsi_bits_of(round);
    return lsi_fma(q, r * r, r) + 1.0f;
}

/* e^x within one unit in the last place; subnormal results, infinities and NaN are right too. 2^n
 * is multiplied in two halves: each is a normal number, and the result is rounded once when it is
 * subnormal. */
static inline float lsi_expf(float x) {
    x = lsi_smaller(89.0f, x);  /* e^89 overflows */
    x = lsi_larger(-104.0f, x); /* e^-104 is below half of the least number */
    uint32_t n;
    float e = lsi_exp_parts(x, &n);
    uint32_t half = (uint32_t)((int32_t)n >> 1);
    return e * lsi_float_of((half + 127u) << 23) * lsi_float_of((n - half + 127u) << 23);
}

/* 2^x for a caller that needs no more than [-125, 125], where everything is normal: outside of it
 * the nearer end counts. A base of 2 leaves the fraction f of x without rounding:
 * 2^x = 2^n 2^f, |f| <= 1/2, and 2^f = 1 + f p(f), p of degree 5 fitted for the least relative
 * error of 2^f (2e-9; rounding adds one unit in the last place). */
static inline float lsi_exp2f_bounded(float x) {
    const float round = 12582912.0f;
    x = lsi_smaller(125.0f, x);
    x = lsi_larger(-125.0f, x);
    float shifted = x + round;
    float f = x - (shifted - round);
    float p = 0.00015353362f;
    p = lsi_fma(p, f, 0.0013398875f);
    p = lsi_fma(p, f, 0.00961843692f);
    p = lsi_fma(p, f, 0.0555033237f);
    p = lsi_fma(p, f, 0.240226477f);
    p = lsi_fma(p, f, 0.693147182f);
    uint32_t n = lsi_bits_of(shifted) - lsi_bits_of(round);
    return lsi_fma(p, f, 1.0f) * lsi_float_of((n + 127u) << 23);
}

/* The lanes added as a tree. Overwrites them. */
static inline float lsi_add_lanes(float lane[LSI_LANES]) {
    for (int l = 0; l < 8; l++) lane[l] += lane[l + 8];
    for (int l = 0; l < 4; l++) lane[l] += lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

static inline float lsi_row_sum(const float *x, int64_t n) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) lane[l] += x[i + l];
    }
    for (int l = 0; i + l < n; l++) lane[l] += x[i + l];
    return lsi_add_lanes(lane);
}

/* Sum of (x - center)^2. */
static inline float lsi_row_squares(const float *x, int64_t n, float center) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) {
            float d = x[i + l] - center;
            lane[l] += d * d;
        }
    }
    for (int l = 0; i + l < n; l++) {
        float d = x[i + l] - center;
        lane[l] += d * d;
    }
    return lsi_add_lanes(lane);
}

static inline float lsi_row_dot(const float *a, const float *b, int64_t n) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) lane[l] += a[i + l] * b[i + l];
    }
    for (int l = 0; i + l < n; l++) lane[l] += a[i + l] * b[i + l];
    return lsi_add_lanes(lane);
}

/* The largest element; NaN are passed over; minus infinity for n = 0. */
static inline float lsi_row_max(const float *x, int64_t n) {
    float lane[LSI_LANES];
    for (int l = 0; l < LSI_LANES; l++) lane[l] = -__builtin_inff();
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    }
    for (int l = 0; i + l < n; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (int l = 0; l < 8; l++) lane[l] = lane[l + 8] > lane[l] ? lane[l + 8] : lane[l];
    for (int l = 0; l < 4; l++) lane[l] = lane[l + 4] > lane[l] ? lane[l + 4] : lane[l];
    for (int l = 0; l < 2; l++) lane[l] = lane[l + 2] > lane[l] ? lane[l + 2] : lane[l];
    return lane[1] > lane[0] ? lane[1] : lane[0];
}

/* x[i] = e^(x[i] - shift), and the sum of these. */
static inline float lsi_row_exp(float *x, int64_t n, float shift) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) {
            float e = lsi_expf(x[i + l] - shift);
            x[i + l] = e;
            lane[l] += e;
        }
    }
    for (int l = 0; i + l < n; l++) {
        float e = lsi_expf(x[i + l] - shift);
        x[i + l] = e;
        lane[l] += e;
    }
    return lsi_add_lanes(lane);
}

/* The same without changing x. */
static inline float lsi_row_exp_sum(const float *x, int64_t n, float shift) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) lane[l] += lsi_expf(x[i + l] - shift);
    }
    for (int l = 0; i + l < n; l++) lane[l] += lsi_expf(x[i + l] - shift);
    return lsi_add_lanes(lane);
}

/* x[i] = 2^(scale x[i] - shift) within the bounds of lsi_exp2f_bounded, and the sum of these. */
static inline float lsi_row_exp2(float *x, int64_t n, float scale, float shift) {
    float lane[LSI_LANES] = {0.0f};
    int64_t i = 0;
    for (; i + LSI_LANES <= n; i += LSI_LANES) {
        LSI_LANE_LOOP
        for (int l = 0; l < LSI_LANES; l++) {
            float e = lsi_exp2f_bounded(lsi_fma(x[i + l], scale, -shift));
            x[i + l] = e;
            lane[l] += e;
        }
    }
    for (int l = 0; i + l < n; l++) {
        float e = lsi_exp2f_bounded(lsi_fma(x[i + l], scale, -shift));
        x[i + l] = e;
        lane[l] += e;
    }
    return lsi_add_lanes(lane);
}

/* at = value or at += value: how a contribution reaches a gradient buffer. The old value is masked
 * to zero when it does not count: a choice would be a branch, and the loop would not vectorise. */
static inline void lsi_contribute(float *at, float value, bool first) {
    uint32_t keep = (uint32_t)first - 1u;
    *at = lsi_float_of(lsi_bits_of(*at) & keep) + value;
}

#endif
