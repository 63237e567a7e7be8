/* AdamW and SGD on flat ranges, learning-rate schedule, gradient norm, loss scaling. Plain
 * functions over buffers: a range can be a parameter, a shard or a whole model. Any thread, local,
 * no communication. */
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
    int64_t step;        /* 1 for the first update of these elements (bias correction) */
} ls_adamw_opts;

/* One AdamW update (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019) of
 * count float32 elements in one pass; the same arithmetic and order of operations for every
 * element, so the result does not depend on how a model is cut into ranges. */
LS_API void ls_adamw_update(float *weight, const float *grad, float *first_moment,
                            float *second_moment, int64_t count, const ls_adamw_opts *opts);

/* The same update of float32 values that are kept in halves: `upper`, count bfloat16 elements to
 * compute with, and `lower`, what they lack. Together they take the four bytes of a float32 value
 * and have all of its bits. */
LS_API void ls_adamw_update_bf16(void *upper, uint16_t *lower, const float *grad,
                                 float *first_moment, float *second_moment, int64_t count,
                                 const ls_adamw_opts *opts);
/* count float32 values to halves, and back to the same values. `upper`: the nearest bfloat16
 * numbers, of two that are as near the one farther from zero; NULL: only `lower` is made. `lower`:
 * the lower 16 bits. No half is NULL in ls_bf16_join; zeros as `lower` give the bfloat16 values. */
LS_API void ls_bf16_split(const float *values, int64_t count, void *upper, uint16_t *lower);
LS_API void ls_bf16_join(const void *upper, const uint16_t *lower, int64_t count, float *values);

typedef struct ls_sgd_opts {
    double lr;           /* > 0, already scheduled */
    double momentum;     /* [0, 1); used where there is a buffer for it */
    double weight_decay; /* >= 0, added to the gradient: weight_decay * w (L2, not decoupled) */
    double grad_scale;   /* every gradient is multiplied by it first (clipping); 1: none */
    int nesterov;        /* 1: Nesterov's momentum */
} ls_sgd_opts;

/* One update of stochastic gradient descent, as torch.optim.SGD, of count float32 elements in one
 * pass; like ls_adamw_update independent of how a model is cut into ranges. momentum: count
 * elements, zeros before the first update; NULL: none. */
LS_API void ls_sgd_update(float *weight, const float *grad, float *momentum, int64_t count,
                          const ls_sgd_opts *opts);

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

/* The factor of a loss whose gradients would be too small for a narrow type, and how it follows
 * what comes of it. A plain value: copy it into a checkpoint and back. All numbers but the counts
 * are powers of two.
 *
 *     ls_loss_scaler scaler = LS_LOSS_SCALER_INIT;
 *     each step:
 *         gradients of scaler.scale * loss
 *         double factor = 1 / scaler.scale;                before the update, which changes it
 *         if (!ls_loss_scaler_update(&scaler, some gradient on some rank is not finite))
 *             optimizer step with grad_scale = factor * clipping
 *
 * All ranks must hand in the same found_inf: then all have the same scale without talking. */
typedef struct ls_loss_scaler {
    double scale;            /* of the next step's loss */
    double growth_factor;    /* >= 1 */
    double backoff_factor;   /* < 1 */
    int64_t growth_interval; /* steps in a row that must be good before the scale grows, >= 1 */
    double min_scale, max_scale;
    int64_t n_good;    /* steps in a row since the scale last changed, or tried to */
    int64_t n_skipped; /* steps in all */
} ls_loss_scaler;

/* torch.amp.GradScaler's numbers; the bounds are those of float32. */
#define LS_LOSS_SCALER_INIT                                                                        \
    { 65536.0, 2.0, 0.5, 2000, 1.1754943508222875e-38, 1.7014118346046923e38, 0, 0 }

/* LS_ERR_ARGUMENT names every field that is out of its range. */
LS_API LS_CHECKED ls_status ls_loss_scaler_check(const ls_loss_scaler *scaler);
/* After the gradients of a step are there. found_inf: one of them, on any rank, is not finite.
 * Returns whether the optimizer step must be skipped, which is whether found_inf. Call it once a
 * step; the scale that these gradients have is the one from before. */
LS_API int ls_loss_scaler_update(ls_loss_scaler *scaler, int found_inf);

#ifdef __cplusplus
}
#endif
#endif
