/* 8 bits an element and a float32 scale for each block of 256.
 *
 *     stage 0   cut the bucket into a slice of whole blocks for each rank and quantize it; slice r
 *               goes to rank r (all-to-all)
 *     stage 1   add the ranks' versions of the own slice in float32, in the group's order, times
 *               scale; quantize the average and give it to all (all-gather)
 *     stage 2   dequantize; every rank reads the same bytes
 *
 * A slice on the wire is its scales, then its elements, so each rank sends 2 f (1 + 1/64) bytes an
 * element, f = (n - 1) / n. An element x of a block whose largest magnitude is a comes back as
 * round(x / s) s with s = a / 127: at most s / 2 away, twice (before and after adding).
 *
 * A block with an element that is not finite has the scale NaN, and so is NaN as a whole in the
 * result. What lies between parameters is never written, so it stays zero even then. */
#include "base/dtype.h"
#include "base/mem.h"
#include "comm/group.h"
#include "parallel/hook_impl.h"

enum { BLOCK_ELEMS = 256, MOST_LEVEL = 127, BLOCK_BYTES = BLOCK_ELEMS + (int)sizeof(float) };

static const float ROUNDER = 0x1.8p23f; /* added to |x| < 2^22, leaves x rounded in the low bits */

typedef struct int8_hook {
    ls_hook_opts opts;
    const ls_param *params; /* of ddp */
    lsi_hook_wires wires;
    float *dequantized; /* a block of each rank */
} int8_hook;

/* A slice on the wire. */
typedef struct slice {
    float *scales;
    int8_t *levels;
} slice;

static int64_t slice_blocks(const ls_group *group, const ls_bucket *bucket) {
    int64_t slice_elems = (int64_t)ls_group_world_size(group) * BLOCK_ELEMS;
    return bucket->count / slice_elems + (bucket->count % slice_elems > 0);
}

static slice slice_at(char *wire, int64_t n_blocks, int rank) {
    char *at = wire + rank * n_blocks * BLOCK_BYTES;
    return (slice){(float *)(void *)at, (int8_t *)at + n_blocks * (int64_t)sizeof(float)};
}

/* What is sent, then what is received. */
static int64_t wire_bytes(const void *state, const ls_group *group, const ls_bucket *bucket) {
    (void)state;
    if (bucket->dtype != LS_DTYPE_F32) return 0;
    return 2 * ls_group_world_size(group) * slice_blocks(group, bucket) * BLOCK_BYTES;
}

static void release(void *state) {
    int8_hook *s = state;
    lsi_hook_wires_free(&s->wires);
    lsi_free(s->dequantized);
    s->dequantized = NULL;
}

static ls_status prepare(void *state, ls_group *group, const ls_param *params, int n_params,
                         const ls_bucket *buckets, int n_buckets) {
    int8_hook *s = state;
    (void)n_params;
    release(s);
    s->params = params;
    s->dequantized = lsi_calloc(LSI_MEM_BUCKETS, (size_t)ls_group_world_size(group) * BLOCK_ELEMS,
                                sizeof *s->dequantized);
    LSI_TRY(lsi_check_alloc(s->dequantized));
    return lsi_hook_wires_make(&s->wires, group, buckets, n_buckets, wire_bytes, s);
}

/* ---- blocks ---- */

/* As integers, magnitudes are in order, and what is not finite is above all others. */
static uint32_t largest_magnitude(const float *x, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = lsi_float_bits(x[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static float block_scale(const float *x, int64_t count) {
    uint32_t largest = largest_magnitude(x, count);
    if (largest >= 0x7F800000u) return lsi_float_from_bits(0x7FC00000u);
    return lsi_float_from_bits(largest) / MOST_LEVEL;
}

/* count <= BLOCK_ELEMS elements; the rest of the block is zero. */
static void quantize_block(const float *restrict x, int64_t count, float *scale,
                           int8_t *restrict levels) {
    *scale = block_scale(x, count);
    /* Of a block of zeros, or of numbers so small that a 127-th of them is none. */
    const float divisor = *scale > 0 ? *scale : 1;
    for (int64_t i = 0; i < count; i++) {
        float level = x[i] / divisor;
        level = level > MOST_LEVEL ? MOST_LEVEL : level; /* a scale of few bits is rounded far */
        level = level < -MOST_LEVEL ? -MOST_LEVEL : level;
        levels[i] = (int8_t)(uint8_t)lsi_float_bits(level + ROUNDER);
    }
    for (int64_t i = count; i < BLOCK_ELEMS; i++) levels[i] = 0;
}

static void dequantize(const int8_t *restrict levels, float scale, float *restrict x,
                       int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] = (float)levels[i] * scale;
}

/* ---- stages ---- */

static void quantize_bucket(const ls_bucket *bucket, int n_ranks, int64_t n_blocks, char *wire) {
    const float *grad = bucket->grad;
    for (int64_t b = 0; b < n_ranks * n_blocks; b++) {
        slice to = slice_at(wire, n_blocks, (int)(b / n_blocks));
        int64_t in_slice = b % n_blocks, left = bucket->count - b * BLOCK_ELEMS;
        int64_t count = left < 0 ? 0 : left < BLOCK_ELEMS ? left : BLOCK_ELEMS;
        quantize_block(count ? grad + b * BLOCK_ELEMS : grad, count, &to.scales[in_slice],
                       to.levels + in_slice * BLOCK_ELEMS);
    }
}

/* The slices received, added block by block into the own slice of what is sent. */
static void average(const int8_hook *s, const ls_group *group, int64_t n_blocks, double scale,
                    char *received, slice to) {
    const void *input[LSI_MAX_RANKS];
    void *sum = s->dequantized;
    const lsi_reduction add = {
        .order = &group->order, .dtype = LS_DTYPE_F32, .op = LS_OP_SUM, .scale = scale};
    for (int64_t b = 0; b < n_blocks; b++) {
        for (int r = 0; r < group->n_ranks; r++) {
            slice from = slice_at(received, n_blocks, r);
            float *block = s->dequantized + r * BLOCK_ELEMS;
            dequantize(from.levels + b * BLOCK_ELEMS, from.scales[b], block, BLOCK_ELEMS);
            input[r] = block;
        }
        lsi_reduce(&add, input, &sum, 1, BLOCK_ELEMS);
        quantize_block(sum, BLOCK_ELEMS, &to.scales[b], to.levels + b * BLOCK_ELEMS);
    }
}

/* Elements [first, first + count) of the bucket. */
static void dequantize_range(char *wire, int64_t n_blocks, int64_t first, int64_t count,
                             float *grad) {
    for (int64_t at = first; at < first + count;) {
        int64_t b = at / BLOCK_ELEMS, within = at % BLOCK_ELEMS;
        slice from = slice_at(wire, n_blocks, (int)(b / n_blocks));
        int64_t in_slice = b % n_blocks, n = BLOCK_ELEMS - within;
        if (n > first + count - at) n = first + count - at;
        dequantize(from.levels + in_slice * BLOCK_ELEMS + within, from.scales[in_slice], grad + at,
                   n);
        at += n;
    }
}

static ls_status run(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                     ls_work **work) {
    int8_hook *s = state;
    if (bucket->dtype != LS_DTYPE_F32) return lsi_hook_plain(group, bucket, stage, work);
    const int n_ranks = ls_group_world_size(group), rank = ls_group_rank(group);
    const int64_t n_blocks = slice_blocks(group, bucket), slice_bytes = n_blocks * BLOCK_BYTES;
    if (n_blocks == 0) return LS_OK;
    char *sent = lsi_hook_wire(&s->wires, bucket), *received = sent + n_ranks * slice_bytes;
    if (stage == 0) {
        quantize_bucket(bucket, n_ranks, n_blocks, sent);
        return ls_all_to_all(group, sent, received, slice_bytes, LS_DTYPE_U8, work);
    }
    if (stage == 1) {
        average(s, group, n_blocks, bucket->scale, received, slice_at(sent, n_blocks, rank));
        return ls_all_gather(group, sent + rank * slice_bytes, sent, slice_bytes, LS_DTYPE_U8,
                             work);
    }
    for (int i = 0; i < bucket->n_params; i++)
        dequantize_range(sent, n_blocks, bucket->offsets[i], s->params[bucket->params[i]].count,
                         bucket->grad);
    return LS_OK;
}

const lsi_hook_method lsi_hook_int8 = {.name = "int8",
                                       .state_bytes = sizeof(int8_hook),
                                       .prepare = prepare,
                                       .run = run,
                                       .release = release};
