/* See accumulate.h for the picture. Sums are left + right: older micro-batches on the left. */
#include "parallel/accumulate.h"

#include <string.h>

#include "base/mem.h"

void lsi_accumulator_init(lsi_accumulator *a, int64_t count) {
    *a = (lsi_accumulator){.count = count};
}

void lsi_accumulator_fini(lsi_accumulator *a) {
    for (int i = 0; i < a->n_levels; i++) lsi_free(a->level[i]);
    *a = (lsi_accumulator){0};
}

void lsi_accumulator_clear(lsi_accumulator *a) {
    a->depth = 0;
}

static void add_left(float *restrict right, const float *restrict left, int64_t count) {
    for (int64_t i = 0; i < count; i++) right[i] = left[i] + right[i];
}

static ls_status reserve_level(lsi_accumulator *a) {
    if (a->depth < a->n_levels) return LS_OK;
    if (a->n_levels == LSI_ACCUMULATE_LEVELS)
        return lsi_fail(LS_ERR_STATE, "more than 2^%d micro-batches in a step",
                        LSI_ACCUMULATE_LEVELS);
    float *level = lsi_alloc(LSI_MEM_GRADS, (size_t)a->count * sizeof(float));
    LSI_TRY(lsi_check_alloc(level));
    a->level[a->n_levels++] = level;
    return LS_OK;
}

ls_status lsi_accumulator_push(lsi_accumulator *a, float *gradient) {
    int64_t size = 1;
    while (a->depth > 0 && a->size[a->depth - 1] == size) {
        add_left(gradient, a->level[a->depth - 1], a->count);
        size *= 2;
        a->depth--;
    }
    LSI_TRY(reserve_level(a));
    memcpy(a->level[a->depth], gradient, (size_t)a->count * sizeof(float));
    a->size[a->depth++] = size;
    return LS_OK;
}

void lsi_accumulator_join(const lsi_accumulator *a, float *gradient, int64_t offset,
                          int64_t count) {
    for (int i = a->depth - 1; i >= 0; i--)
        add_left(gradient + offset, a->level[i] + offset, count);
}
