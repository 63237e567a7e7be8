/* What C says of the types and constants that lockstep.f90 mirrors: sizes of structs with the
 * offsets of their fields, and numbers. layout.f90 has the same list and compares. */
#include <stddef.h>
#include <stdint.h>

#include <lockstep/lockstep.h>

#define PARAM(field) offsetof(ls_param, field)
#define OPTS(field) offsetof(ls_ddp_opts, field)
#define USE(field) offsetof(ls_unit_use, field)
#define ADAMW(field) offsetof(ls_adamw_opts, field)

const int64_t layout_param[] = {
    sizeof(ls_param), PARAM(name), PARAM(count),  PARAM(dtype), PARAM(flags),
    PARAM(data),      PARAM(grad), PARAM(n_dims), PARAM(shape),
};

const int64_t layout_opts[] = {
    sizeof(ls_ddp_opts),
    OPTS(struct_size),
    OPTS(bucket_cap_mb),
    OPTS(first_bucket_mb),
    OPTS(reproducible),
    OPTS(average),
    OPTS(find_unused_parameters),
    OPTS(static_graph),
    OPTS(keep_buckets),
    OPTS(no_overlap),
    OPTS(join),
    OPTS(nonfinite),
    OPTS(hook),
    OPTS(buffers),
    OPTS(n_buffers),
    OPTS(broadcast_buffers),
    OPTS(strategy),
    OPTS(replicas),
    OPTS(lower_halves),
    OPTS(shard_size),
    OPTS(uses),
    OPTS(n_uses),
    OPTS(prefetch),
    OPTS(reshard_after_forward),
    OPTS(gather_limit_mb),
    OPTS(persist_below),
    OPTS(offload),
    OPTS(offload_dir),
    OPTS(reduce_dtype),
    OPTS(fill),
    OPTS(fill_context),
    OPTS(update_in_backward),
};

const int64_t layout_use[] = {sizeof(ls_unit_use), USE(unit), USE(param), USE(flags)};

const int64_t layout_adamw[] = {
    sizeof(ls_adamw_opts), ADAMW(lr),           ADAMW(beta1),      ADAMW(beta2),
    ADAMW(epsilon),        ADAMW(weight_decay), ADAMW(grad_scale), ADAMW(step),
};

const int64_t layout_numbers[] = {LS_OK,
                                  LS_ERR_ARGUMENT,
                                  LS_DTYPE_F32,
                                  LS_DTYPE_F64,
                                  LS_MAX_DIMS,
                                  LS_STRATEGY_DDP,
                                  LS_STRATEGY_ZERO1,
                                  LS_STRATEGY_ZERO2,
                                  LS_STRATEGY_ZERO3,
                                  LS_REPLICAS_SHARED,
                                  LS_REPLICAS_PRIVATE};

/* Elements of the lists above. */
const int64_t layout_counts[] = {
    sizeof layout_param / sizeof *layout_param,     sizeof layout_opts / sizeof *layout_opts,
    sizeof layout_use / sizeof *layout_use,         sizeof layout_adamw / sizeof *layout_adamw,
    sizeof layout_numbers / sizeof *layout_numbers,
};
