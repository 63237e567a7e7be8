/* What the reader (safetensors_read.c) and the writer (safetensors_write.c) of safetensors files
 * agree on: how many bytes a shape asks for, how element types become float32, and how names and
 * shapes look in messages.
 *
 * The format: 8 bytes of header length n, little-endian; n bytes of JSON, padded with spaces so
 * that the data starts at a multiple of 8; then the data of all tensors without gaps. The header
 * maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, with offsets from the first
 * byte of data; the name "__metadata__" maps texts to texts instead. */
#include "checkpoint/safetensors.h"

#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are copied from files as they are: the host must be little-endian");

bool lsi_st_shape_bytes(const lsi_st_tensor *tensor, size_t *bytes) {
    size_t product = ls_dtype_bytes(tensor->dtype);
    bool is_empty = false;
    for (int i = 0; i < tensor->n_dims; i++) {
        int64_t dim = tensor->dims[i];
        if (dim < 0) return false;
        if (dim == 0) is_empty = true;
        size_t factor = dim == 0 ? 1 : (size_t)dim;
        if (__builtin_mul_overflow(product, factor, &product)) return false;
    }
    /* Sizes are handed on as int64_t as well. */
    if (product > INT64_MAX) return false;
    *bytes = is_empty ? 0 : product;
    return true;
}

/* ---- element types to float32 ---- */

static float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float float_from_bf16(uint16_t half) {
    return float_from_bits((uint32_t)half << 16);
}

/* Half precision by its bits, so that no rounding mode or flush-to-zero setting of a host program
 * can touch the result. */
static float float_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent != 0) return float_from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
    if (fraction == 0) return float_from_bits(sign);
    /* A subnormal fraction * 2^-24: shift its leading one to the hidden place. */
    uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21;
    return float_from_bits(sign | (127 - 14 - shift) << 23 | ((fraction << shift) & 0x3ff) << 13);
}

static void copy_f32(const unsigned char *source, int64_t count, float *target) {
    if (count > 0) memcpy(target, source, (size_t)count * sizeof *target);
}

static void widen_bf16(const unsigned char *source, int64_t count, float *target) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, source + i * (int64_t)sizeof half, sizeof half);
        target[i] = float_from_bf16(half);
    }
}

static void widen_f16(const unsigned char *source, int64_t count, float *target) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, source + i * (int64_t)sizeof half, sizeof half);
        target[i] = float_from_f16(half);
    }
}

static void narrow_f64(const unsigned char *source, int64_t count, float *target) {
    for (int64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, source + i * (int64_t)sizeof value, sizeof value);
        target[i] = (float)value;
    }
}

ls_status lsi_st_to_float(ls_dtype dtype, const void *source, int64_t count, float *target) {
    static const struct {
        ls_dtype dtype;
        void (*convert)(const unsigned char *source, int64_t count, float *target);
    } table[] = {
        {LS_DTYPE_F32, copy_f32},
        {LS_DTYPE_BF16, widen_bf16},
        {LS_DTYPE_F16, widen_f16},
        {LS_DTYPE_F64, narrow_f64},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].dtype != dtype) continue;
        table[i].convert(source, count, target);
        return LS_OK;
    }
    return lsi_fail(LS_ERR_UNSUPPORTED, "dtype %s, expected F32, BF16, F16 or F64",
                    ls_dtype_name(dtype));
}

/* ---- texts of messages ---- */

const char *lsi_st_shown(const char *text, char buffer[LSI_ST_SHOWN_BYTES]) {
    static const char more[] = "…";
    size_t length = strlen(text);
    size_t room = LSI_ST_SHOWN_BYTES - sizeof more;
    size_t kept = length;
    if (length > room) {
        kept = room;
        /* Never cut inside a UTF-8 sequence. */
        while (kept > 0 && ((unsigned char)text[kept] & 0xc0) == 0x80) kept--;
    }
    for (size_t i = 0; i < kept; i++) {
        unsigned char c = (unsigned char)text[i];
        buffer[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    buffer[kept] = 0;
    if (kept < length) memcpy(buffer + kept, more, sizeof more);
    return buffer;
}

const char *lsi_st_shape_text(int n_dims, const int64_t *dims, char buffer[LSI_ST_SHOWN_BYTES]) {
    size_t used = (size_t)snprintf(buffer, LSI_ST_SHOWN_BYTES, "(");
    for (int i = 0; i < n_dims && used < LSI_ST_SHOWN_BYTES; i++)
        used += (size_t)snprintf(buffer + used, LSI_ST_SHOWN_BYTES - used, "%s%lld",
                                 i == 0 ? "" : ", ", (long long)dims[i]);
    if (used < LSI_ST_SHOWN_BYTES) snprintf(buffer + used, LSI_ST_SHOWN_BYTES - used, ")");
    return buffer;
}
