/* The hooks that change nothing on the wire: all bits, or none.
 *
 * allreduce   what ddp does without a hook, call for call and bit for bit.
 * noop        posts nothing. A rank's own gradients are multiplied by scale * world size, so they
 *             have the size that an average would have, and the optimizer's work stays the same. */
#include "parallel/hook_impl.h"

ls_status lsi_hook_plain(ls_group *group, const ls_bucket *bucket, int stage, ls_work **work) {
    if (stage > 0) return LS_OK;
    return ls_all_reduce(group, bucket->grad, bucket->grad, bucket->count, bucket->dtype, LS_OP_SUM,
                         bucket->scale, work);
}

static ls_status run_all_reduce(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                                ls_work **work) {
    (void)state;
    return lsi_hook_plain(group, bucket, stage, work);
}

static void multiply_f32(float *values, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i++) values[i] *= factor;
}

static void multiply_f64(double *values, int64_t count, double factor) {
    for (int64_t i = 0; i < count; i++) values[i] *= factor;
}

static ls_status run_noop(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                          ls_work **work) {
    (void)state;
    (void)work;
    double factor = bucket->scale * ls_group_world_size(group);
    if (stage > 0 || factor == 1) return LS_OK;
    if (bucket->dtype == LS_DTYPE_F64)
        multiply_f64(bucket->grad, bucket->count, factor);
    else
        multiply_f32(bucket->grad, bucket->count, (float)factor);
    return LS_OK;
}

const lsi_hook_method lsi_hook_all_reduce = {
    .name = "allreduce", .state_bytes = sizeof(ls_hook_opts), .run = run_all_reduce};
const lsi_hook_method lsi_hook_noop = {
    .name = "noop", .state_bytes = sizeof(ls_hook_opts), .run = run_noop};
