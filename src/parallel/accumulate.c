/* See accumulate.h for the picture. Sums are left + right: older micro-batches on the left. */
#include "parallel/accumulate.h"

#include <string.h>

#include "base/mem.h"

void lsi_accumulator_init(lsi_accumulator *a, int64_t bytes) {
    *a = (lsi_accumulator){.bytes = bytes};
}

void lsi_accumulator_fini(lsi_accumulator *a) {
    for (int i = 0; i < a->n_levels; i++) lsi_free(a->level[i]);
    *a = (lsi_accumulator){0};
}

void lsi_accumulator_clear(lsi_accumulator *a) {
    a->depth = 0;
}

static void add_left_f32(float *restrict right, const float *restrict left, int64_t count) {
    for (int64_t i = 0; i < count; i++) right[i] = left[i] + right[i];
}

static void add_left_f64(double *restrict right, const double *restrict left, int64_t count) {
    for (int64_t i = 0; i < count; i++) right[i] = left[i] + right[i];
}

static void add_left(unsigned char *block, const unsigned char *left, const lsi_bucket *bucket) {
    void *right = block + bucket->offset_bytes;
    const void *from = left + bucket->offset_bytes;
    if (bucket->dtype == LS_DTYPE_F64)
        add_left_f64(right, from, bucket->count);
    else
        add_left_f32(right, from, bucket->count);
}

static ls_status reserve_level(lsi_accumulator *a) {
    if (a->depth < a->n_levels) return LS_OK;
    if (a->n_levels == LSI_ACCUMULATE_LEVELS)
        return lsi_fail(LS_ERR_STATE, "more than 2^%d micro-batches in a step",
                        LSI_ACCUMULATE_LEVELS);
    unsigned char *level = lsi_alloc(LSI_MEM_GRADS, (size_t)a->bytes);
    LSI_TRY(lsi_check_alloc(level));
    a->level[a->n_levels++] = level;
    return LS_OK;
}

ls_status lsi_accumulator_push(lsi_accumulator *a, void *block, const lsi_bucket *buckets,
                               int n_buckets) {
    int64_t size = 1;
    while (a->depth > 0 && a->size[a->depth - 1] == size) {
        a->depth--;
        for (int b = 0; b < n_buckets; b++) add_left(block, a->level[a->depth], &buckets[b]);
        size *= 2;
    }
    LSI_TRY(reserve_level(a));
    memcpy(a->level[a->depth], block, (size_t)a->bytes);
    a->size[a->depth++] = size;
    return LS_OK;
}

void lsi_accumulator_join(const lsi_accumulator *a, void *block, const lsi_bucket *bucket) {
    for (int i = a->depth - 1; i >= 0; i--) add_left(block, a->level[i], bucket);
}
