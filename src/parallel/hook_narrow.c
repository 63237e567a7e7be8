/* 16 bits an element on the wire.
 *
 *     stage 0   round the gradients to 16 bits, to nearest even; post their all-reduce
 *     stage 1   widen the result
 *
 * The group adds in float32 and rounds the average once, so a sum of many ranks loses no more than
 * one of two. bf16 has the range of float32 and 8 bits of precision. fp16 has 11, but ends at 65504
 * and loses what is below 6e-8: gradients are multiplied by the loss scale before they are rounded
 * and divided by it afterwards. What overflows is infinite in the result, on all ranks. */
#include <math.h>

#include "base/bf16.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "parallel/hook_impl.h"

typedef struct narrow {
    ls_hook_opts opts;
    lsi_hook_wires wires;
    float *factors; /* fp16: per bucket, of the step: *factor may change before stage 1 */
} narrow;

static int64_t wire_bytes(const void *state, const ls_group *group, const ls_bucket *bucket) {
    (void)state;
    (void)group;
    return bucket->dtype == LS_DTYPE_F32 ? bucket->count * (int64_t)sizeof(uint16_t) : 0;
}

static void release(void *state) {
    narrow *s = state;
    lsi_hook_wires_free(&s->wires);
    lsi_free(s->factors);
    s->factors = NULL;
}

static ls_status prepare(void *state, ls_group *group, const ls_param *params, int n_params,
                         const ls_bucket *buckets, int n_buckets) {
    narrow *s = state;
    (void)params;
    (void)n_params;
    release(s);
    s->factors = lsi_calloc(LSI_MEM_OTHER, (size_t)n_buckets, sizeof *s->factors);
    LSI_TRY(lsi_check_alloc(s->factors));
    return lsi_hook_wires_make(&s->wires, group, buckets, n_buckets, wire_bytes, s);
}

/* ---- loops ---- */

static void to_bf16(const float *from, uint16_t *to, int64_t count) {
    lsi_bf16_from_floats(from, count, to);
}

static void from_bf16(const uint16_t *restrict from, float *restrict to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = lsi_bf16_to_f32(from[i]);
}

static void to_f16(const float *restrict from, uint16_t *restrict to, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i++) to[i] = lsi_f32_to_f16(from[i] * factor);
}

static void from_f16(const uint16_t *restrict from, float *restrict to, int64_t count,
                     float factor) {
    for (int64_t i = 0; i < count; i++) to[i] = lsi_f16_to_f32(from[i]) / factor;
}

/* ---- stages ---- */

static ls_status run_bf16(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                          ls_work **work) {
    narrow *s = state;
    if (bucket->dtype != LS_DTYPE_F32) return lsi_hook_plain(group, bucket, stage, work);
    uint16_t *wire = lsi_hook_wire(&s->wires, bucket);
    if (stage > 0) {
        from_bf16(wire, bucket->grad, bucket->count);
        return LS_OK;
    }
    to_bf16(bucket->grad, wire, bucket->count);
    return ls_all_reduce(group, wire, wire, bucket->count, LS_DTYPE_BF16, LS_OP_SUM, bucket->scale,
                         work);
}

static ls_status read_factor(const narrow *s, float *factor) {
    double given = s->opts.factor ? *s->opts.factor : 1;
    *factor = (float)given;
    if (*factor > 0 && isfinite(*factor) && isfinite(1 / *factor)) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "hook fp16: *factor is %g, expected a float32 above 0 that has an inverse; "
                    "the loss scale must stay in range",
                    given);
}

static ls_status run_fp16(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                          ls_work **work) {
    narrow *s = state;
    if (bucket->dtype != LS_DTYPE_F32) return lsi_hook_plain(group, bucket, stage, work);
    uint16_t *wire = lsi_hook_wire(&s->wires, bucket);
    float *factor = &s->factors[bucket->index];
    if (stage > 0) {
        from_f16(wire, bucket->grad, bucket->count, *factor);
        return LS_OK;
    }
    LSI_TRY(read_factor(s, factor));
    to_f16(bucket->grad, wire, bucket->count, *factor);
    return ls_all_reduce(group, wire, wire, bucket->count, LS_DTYPE_F16, LS_OP_SUM, bucket->scale,
                         work);
}

const lsi_hook_method lsi_hook_bf16 = {.name = "bf16",
                                       .state_bytes = sizeof(narrow),
                                       .prepare = prepare,
                                       .run = run_bf16,
                                       .release = release};
const lsi_hook_method lsi_hook_fp16 = {.name = "fp16",
                                       .state_bytes = sizeof(narrow),
                                       .prepare = prepare,
                                       .run = run_fp16,
                                       .release = release};
