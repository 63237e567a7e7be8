/* Parts of descriptions (see describe.h). */
#include "nn/models/describe.h"

enum { ARENA_STEP_BYTES = 64, FLOPS_OF_WEIGHT = 6 };

int64_t lsi_describe_bytes(int64_t n_elems, size_t elem_bytes) {
    int64_t bytes = n_elems * (int64_t)elem_bytes;
    return (bytes + ARENA_STEP_BYTES - 1) / ARENA_STEP_BYTES * ARENA_STEP_BYTES;
}

lsi_unit_cost lsi_describe_params(const lsi_model *model, int first, int n, int64_t rows) {
    lsi_unit_cost cost = {.first_param = first, .n_params = n};
    for (int i = first; i < first + n; i++)
        if (model->shapes[i].n_dims >= 2)
            cost.flops += FLOPS_OF_WEIGHT * (double)rows * (double)model->params[i].count;
    return cost;
}

/* Scores and mixture: two products of (T,D) and (T,T) a head, which are weights of nobody. */
double lsi_describe_attention(int64_t n_batch, int64_t n_time, int64_t channels) {
    return 2 * FLOPS_OF_WEIGHT * (double)n_batch * (double)n_time * (double)n_time *
           (double)channels;
}
