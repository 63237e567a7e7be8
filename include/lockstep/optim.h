/* AdamW on flat ranges, learning-rate schedule, gradient norm. Plain functions over buffers: a
 * range can be a parameter, a shard or a whole model. Any thread, local, no communication. */
#ifndef LOCKSTEP_OPTIM_H
#define LOCKSTEP_OPTIM_H

#include <stdint.h>

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_adamw_opts {
    double lr;           /* > 0, already scheduled */
    double beta1, beta2; /* [0, 1) */
    double epsilon;      /* > 0 */
    double weight_decay; /* >= 0, decoupled: w -= lr * weight_decay * w */
    double grad_scale;   /* every gradient is multiplied by it first (clipping); 1: none */
    int64_t step;        /* 1 for the first update (bias correction) */
} ls_adamw_opts;

/* One AdamW update (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019) of
 * count float32 elements in one pass; the same arithmetic and order of operations for every
 * element, so the result does not depend on how a model is cut into ranges. */
LS_API void ls_adamw_update(float *weight, const float *grad, float *first_moment,
                            float *second_moment, int64_t count, const ls_adamw_opts *opts);

/* The same update of the float32 values that a bfloat16 weight stands for (its master), and weight
 * becomes master rounded to nearest even, all in one pass. weight: count bfloat16 elements. */
LS_API void ls_adamw_update_bf16(float *master, void *weight, const float *grad,
                                 float *first_moment, float *second_moment, int64_t count,
                                 const ls_adamw_opts *opts);

/* Sum of squares of count float32 elements in double: blocks of 4096 elements from the start of
 * the range, each summed in a fixed order of 16 lanes, then the block sums in order. Does not
 * depend on threads. The global norm of a model is the root of these sums over its parameters,
 * added in parameter order, so it does not depend on sharding that cuts at block borders. */
LS_API double ls_sum_squares(const float *values, int64_t count);

typedef struct ls_schedule {
    double peak_lr;
    double min_lr;        /* what step total_steps would have, one tick after the last */
    int64_t warmup_steps; /* linear from peak_lr / warmup_steps to peak_lr */
    int64_t total_steps;
    int kind; /* LS_SCHEDULE_… */
} ls_schedule;

enum {
    LS_SCHEDULE_COSINE = 0,
    LS_SCHEDULE_LINEAR = 1,
    LS_SCHEDULE_CONSTANT = 2,
};

/* Learning rate of step (0 = the first). One tick per optimizer step, whatever the number of
 * workers or micro-batches. Steps past the end get min_lr (constant: peak_lr). */
LS_API double ls_schedule_lr(const ls_schedule *schedule, int64_t step);

/* The factor that clips a gradient of this norm: 1 if max_norm <= 0 or norm <= max_norm, else
 * max_norm / norm. A norm that is not finite gives NaN: the caller must stop or skip. */
LS_API double ls_clip_factor(double norm, double max_norm);

#ifdef __cplusplus
}
#endif
#endif
