/* Conversions between float and the 16-bit types, and element types by name.
 *
 * All are integer arithmetic: round to nearest, ties to even; subnormals are kept whatever the
 * processor's flush-to-zero flags say; NaN stays NaN with its sign and the upper bits of its
 * payload, and becomes quiet. Inline and without branches that a compiler cannot turn into
 * selects, so loops over them vectorise. */
#ifndef LSI_BASE_DTYPE_H
#define LSI_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include <lockstep/dtype.h>

/* ls_dtype_bytes for types that are known to be in the table or 0. */
static inline int lsi_dtype_size(int dtype) {
    static const unsigned char sizes[] = {0,
#define LSI_DTYPE_SIZE(name, number, bytes, text) [number] = bytes,
                                          LS_DTYPE_TABLE(LSI_DTYPE_SIZE)
#undef LSI_DTYPE_SIZE
    };
    return dtype > 0 && dtype < (int)sizeof sizes ? sizes[dtype] : 0;
}

/* The type called `name` in safetensors files ("F32", "BF16", …), 0 if there is none. */
int lsi_dtype_from_name(const char *name);

static inline uint32_t lsi_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float lsi_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float lsi_bf16_to_f32(uint16_t value) {
    return lsi_float_from_bits((uint32_t)value << 16);
}

static inline uint16_t lsi_f32_to_bf16(float value) {
    uint32_t bits = lsi_float_bits(value);
    uint32_t rounded =
        bits + 0x7FFFu + (bits >> 16 & 1u); /* carries into the exponent, up to inf */
    uint32_t quiet = bits | 0x400000u;
    int is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return (uint16_t)((is_nan ? quiet : rounded) >> 16);
}

/* [Note: halves] A float32 number as a bfloat16 number near to it, which can be computed with, and
 * the rest, the lower half of its bits. Joining takes a rest from 0x8000 on as negative: the number
 * was rounded up. So that this is known, the middle between two neighbours is always rounded up,
 * away from zero, and not to the even one: of all numbers only 1 in 131,072 becomes another
 * neighbour, which is as near, and nothing is lost. (Kalamkar, Georganas et al.: "Optimizing Deep
 * Learning Recommender Systems Training on CPU Cluster Architectures", SC 2020, cut instead of
 * rounding.) */
static inline uint16_t lsi_upper_half(float value) {
    uint32_t bits = lsi_float_bits(value);
    int is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return (uint16_t)((is_nan ? bits | 0x400000u : bits + 0x8000u) >> 16);
}

static inline uint16_t lsi_lower_half(float value) {
    return (uint16_t)lsi_float_bits(value);
}

/* NaN stays NaN, with another payload. */
static inline float lsi_join_halves(uint16_t upper, uint16_t lower) {
    uint32_t sign = lower & 0x8000u; /* counts as minus 0x8000: twice itself less */
    return lsi_float_from_bits(((uint32_t)upper << 16) + lower - 2 * sign);
}

static inline float lsi_f16_to_f32(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t rest = value & 0x7FFFu;
    uint32_t bits = (rest << 13) + (112u << 23); /* exponent bias 15 becomes 127 */
    bits += rest >= 0x7C00u ? 112u << 23 : 0u;   /* infinity and NaN: 31 becomes 255 */
    bits |= rest > 0x7C00u ? 0x400000u : 0u;     /* quiet */
    /* a subnormal is rest * 2^-24: 2^-14 with the mantissa rest, less 2^-14, both exact */
    float offset = lsi_float_from_bits((rest << 13) + (113u << 23));
    uint32_t subnormal = lsi_float_bits(offset - 0x1p-14f);
    uint32_t mask = rest < 0x0400u ? ~0u : 0u; /* a mask, since gcc makes a jump of a select here */
    return lsi_float_from_bits(sign | (bits & ~mask) | (subnormal & mask));
}

static inline uint16_t lsi_f32_to_f16(float value) {
    uint32_t bits = lsi_float_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t rest = bits & 0x7FFFFFFFu;
    uint32_t normal = rest - (112u << 23);
    normal = (normal + 0xFFFu + (normal >> 13 & 1u)) >> 13; /* from 65520 on this is inf or more */
    normal = normal > 0x7C00u ? 0x7C00u : normal;
    /* below 2^-14: the mantissa in units of 2^-24; a shift of 25 or more leaves nothing */
    uint32_t exponent = rest >> 23;
    uint32_t shift = exponent > 101u ? 126u - exponent : 25u;
    shift = shift > 25u ? 25u : shift;
    uint32_t mantissa = (rest & 0x7FFFFFu) | 0x800000u;
    uint32_t half = (1u << shift) >> 1;
    uint32_t subnormal = mantissa + half - 1u + (mantissa >> shift & 1u);
    subnormal = exponent > 101u ? subnormal >> shift : 0u;
    uint32_t nan = 0x7E00u | (rest >> 13 & 0x3FFu);
    uint32_t finite = rest >= 0x38800000u ? normal : subnormal;
    return (uint16_t)(sign | (rest > 0x7F800000u ? nan : finite));
}

#endif
