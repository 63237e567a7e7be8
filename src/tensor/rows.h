/* Stretches of elements as float32, whatever the type they are kept in.
 *
 *     const float *x = lsi_read(data, dtype, at, n, room);       a kernel's input
 *     float *y = lsi_place(data, dtype, at, room);               where its output goes
 *     … compute y from x …
 *     lsi_keep(data, dtype, at, n, y);                           and now it is there
 *
 * float32 is read and written in its place; `room` (n floats of the caller) is used for bfloat16
 * only, which is widened exactly and rounded to nearest even. So a kernel is written once, in
 * float32, and the conversions run in the nearest cache. */
#ifndef LSI_TENSOR_ROWS_H
#define LSI_TENSOR_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bf16.h"
#include "base/dtype.h"

/* Elements that element-wise kernels take at once: their buffers stay in the nearest cache. */
enum { LSI_STRETCH = 1024 };

static inline const float *lsi_read(const void *data, ls_dtype dtype, int64_t at, int64_t n,
                                    float *room) {
    if (dtype == LS_DTYPE_F32) return (const float *)data + at;
    const uint16_t *restrict half = (const uint16_t *)data + at;
    float *restrict wide = room;
    for (int64_t i = 0; i < n; i++) wide[i] = lsi_bf16_to_f32(half[i]);
    return room;
}

static inline float *lsi_place(void *data, ls_dtype dtype, int64_t at, float *room) {
    return dtype == LS_DTYPE_F32 ? (float *)data + at : room;
}

static inline void lsi_keep(void *data, ls_dtype dtype, int64_t at, int64_t n, const float *row) {
    if (dtype == LS_DTYPE_F32) return;
    lsi_bf16_from_floats(row, n, (uint16_t *)data + at);
}

/* The elements in their place, to be read and changed: lsi_place that brings the old values. */
static inline float *lsi_edit(void *data, ls_dtype dtype, int64_t at, int64_t n, float *room) {
    if (dtype != LS_DTYPE_F32) (void)lsi_read(data, dtype, at, n, room);
    return lsi_place(data, dtype, at, room);
}

/* n floats, each to the nearest number that dtype has; they stay floats. */
static inline void lsi_round(float *row, ls_dtype dtype, int64_t n) {
    if (dtype == LS_DTYPE_F32) return;
    for (int64_t i = 0; i < n; i++) row[i] = lsi_bf16_to_f32(lsi_f32_to_bf16(row[i]));
}

/* n floats become elements of dtype in the first bytes of where they are: narrow follows wide. */
static inline void lsi_narrow(float *row, ls_dtype dtype, int64_t n) {
    if (dtype == LS_DTYPE_F32) return;
    for (int64_t at = 0; at < n; at += LSI_STRETCH) {
        float part[LSI_STRETCH];
        int64_t m = n - at < LSI_STRETCH ? n - at : LSI_STRETCH;
        memcpy(part, row + at, (size_t)m * sizeof *part);
        lsi_keep(row, dtype, at, m, part);
    }
}

/* grad[i] = or += from[i], one rounding. */
static inline void lsi_add_to_grad(void *grad, ls_dtype dtype, const void *from,
                                   ls_dtype from_dtype, int64_t n, bool first) {
    for (int64_t at = 0; at < n; at += LSI_STRETCH) {
        float room_from[LSI_STRETCH], room[LSI_STRETCH];
        int64_t m = n - at < LSI_STRETCH ? n - at : LSI_STRETCH;
        const float *x = lsi_read(from, from_dtype, at, m, room_from);
        float *y = first ? lsi_place(grad, dtype, at, room) : lsi_edit(grad, dtype, at, m, room);
        for (int64_t i = 0; i < m; i++) y[i] = first ? x[i] : y[i] + x[i];
        lsi_keep(grad, dtype, at, m, y);
    }
}

/* n floats into data of any type, and back, and one value into all of it. */
static inline void lsi_store_floats(void *data, ls_dtype dtype, int64_t n, const float *values) {
    if (dtype == LS_DTYPE_F32)
        memcpy(data, values, (size_t)n * sizeof *values);
    else
        lsi_keep(data, dtype, 0, n, values);
}

static inline void lsi_to_floats(const void *data, ls_dtype dtype, int64_t n, float *values) {
    const float *from = lsi_read(data, dtype, 0, n, values);
    if (from != values) memcpy(values, from, (size_t)n * sizeof *values);
}

static inline void lsi_fill(void *data, ls_dtype dtype, int64_t n, float value) {
    for (int64_t i = 0; i < n; i++) {
        if (dtype == LS_DTYPE_F32)
            ((float *)data)[i] = value;
        else
            ((uint16_t *)data)[i] = lsi_f32_to_bf16(value);
    }
}

#endif
