/* Sums are left + right: older parts on the left. */
#include "parallel/counter.h"

#include <string.h>

#include "base/mem.h"

void lsi_counter_init(lsi_counter *c, int64_t n_elems) {
    *c = (lsi_counter){.n_elems = n_elems};
}

void lsi_counter_fini(lsi_counter *c) {
    for (int k = 0; k < c->n_levels; k++) lsi_free(c->level[k]);
    *c = (lsi_counter){.n_levels = 0};
}

ls_status lsi_counter_reserve(lsi_counter *c, int64_t n_parts) {
    while (n_parts + 1 >= (int64_t)2 << c->n_levels) {
        if (c->n_levels == LSI_COUNTER_LEVELS)
            return lsi_fail(LS_ERR_STATE, "2^%d parts of a sum or more", LSI_COUNTER_LEVELS);
        float *level = lsi_alloc(LSI_MEM_GRADS, (size_t)c->n_elems * sizeof *level);
        LSI_TRY(lsi_check_alloc(level));
        c->level[c->n_levels++] = level;
    }
    return LS_OK;
}

static void add_left(float *restrict right, const float *restrict left, int64_t count) {
    for (int64_t i = 0; i < count; i++) right[i] = left[i] + right[i];
}

/* Bits that are set. */
static int depth_of(int64_t number) {
    return __builtin_popcountll((unsigned long long)number);
}

/* Joins the sums that are as large as what has become of the part. */
void lsi_counter_add(lsi_counter *c, int64_t number, float *part, int64_t begin, int64_t count) {
    int depth = depth_of(number);
    for (; number & 1; number >>= 1) add_left(part, c->level[--depth] + begin, count);
    memcpy(c->level[depth] + begin, part, (size_t)count * sizeof *part);
}

/* All that are there, whatever their size. */
void lsi_counter_join(const lsi_counter *c, int64_t number, float *part, int64_t begin,
                      int64_t count) {
    for (int depth = depth_of(number); depth > 0; depth--)
        add_left(part, c->level[depth - 1] + begin, count);
}
