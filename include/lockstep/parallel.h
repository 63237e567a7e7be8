/* Distributed data parallel: every rank holds the whole model, computes the gradients of its own
 * micro-batches, and the gradients are averaged over ranks before each optimizer step.
 *
 * The training loop may be anybody's. It describes its parameters (ls_param), lets ls_ddp_create
 * point their gradients into buckets, and tells when gradients are ready; the all-reduce of a
 * bucket starts as soon as its last gradient is, while the backward pass goes on.
 *
 *     ls_ddp_create(group, params, n_params, NULL, &ddp);
 *     for each step:
 *         ls_ddp_begin_step(ddp, n_micro_batches, 0);
 *         for each micro-batch:
 *             ls_ddp_begin_backward(ddp);
 *             compute gradients into params[i].grad, adding to what is there if
 *             ls_ddp_accumulates(ddp), otherwise overwriting it, and
 *             call ls_ddp_grad_ready(ddp, i) for each;
 *             ls_ddp_end_backward(ddp);
 *         ls_ddp_finish_step(ddp);      gradients are averaged now
 *         optimizer step
 *
 * Only the last micro-batch of a step communicates. All calls are made by all ranks in the same
 * order, one thread at a time. */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <stdint.h>

#include <lockstep/event.h>
#include <lockstep/group.h>
#include <lockstep/param.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_ddp ls_ddp;

typedef struct ls_ddp_opts {
    uint32_t struct_size;   /* sizeof(ls_ddp_opts) */
    double bucket_cap_mb;   /* MiB of a bucket, >= 0; 0: 25 */
    double first_bucket_mb; /* MiB of the first one, so that communication starts early; 0: 1 */
    int reproducible;       /* add micro-batches pairwise in a fixed tree instead of in place, so
                               that sums do not depend on how many ranks share them; costs
                               log2(micro-batches of a rank) + 1 more copies of the gradients */
} ls_ddp_opts;

#define LS_DDP_OPTS_INIT                                                                           \
    { sizeof(ls_ddp_opts), 0, 0, 0 }

/* Collective, blocks. Compares names, sizes and order of the parameters over ranks (a difference
 * is LS_ERR_MISMATCH and names the rank and the first parameter that differs), broadcasts rank 0's
 * values, allocates buckets in shared memory (zeroed, as many bytes as the parameters that are not
 * frozen) and sets params[i].grad. Buckets are filled in reverse order of the parameters, the order
 * in which backward usually makes them ready. params is borrowed and must outlive *ddp, as must
 * the group. opts may be NULL. */
LS_API LS_CHECKED ls_status ls_ddp_create(ls_group *group, ls_param *params, int n_params,
                                          const ls_ddp_opts *opts, ls_ddp **ddp);
/* Local; sets params[i].grad to NULL. NULL does nothing. In a step that was given up with buckets
 * in flight their memory stays with the group, because peers may still be adding to it. */
LS_API void ls_ddp_destroy(ls_ddp *ddp);

/* Local. n_micro_batches: of this rank in this step, >= 1. scale: factor of the summed gradients,
 * 0 means 1 / (world size * n_micro_batches); finite, the same on all ranks. */
LS_API LS_CHECKED ls_status ls_ddp_begin_step(ls_ddp *ddp, int64_t n_micro_batches, double scale);
/* Local: the next micro-batch's backward pass begins. */
LS_API LS_CHECKED ls_status ls_ddp_begin_backward(ls_ddp *ddp);
/* Whether gradients of this micro-batch must be added to params[i].grad (1) or overwrite it (0). */
LS_API int ls_ddp_accumulates(const ls_ddp *ddp);
/* Local, does not block (but waits for the oldest of more than 512 buckets in flight): the gradient
 * of parameter `index` is complete for this micro-batch. On the last micro-batch it may start
 * communication. Twice for one parameter is LS_ERR_STATE. */
LS_API LS_CHECKED ls_status ls_ddp_grad_ready(ls_ddp *ddp, int index);
/* Local: the backward pass is over. LS_ERR_STATE names every parameter that got no gradient. */
LS_API LS_CHECKED ls_status ls_ddp_end_backward(ls_ddp *ddp);
/* Collective, blocks until the averaged gradients are in params[i].grad. */
LS_API LS_CHECKED ls_status ls_ddp_finish_step(ls_ddp *ddp);

/* Feeds events to the calls above: GRAD_READY, END_OF_BACKWARD, PROGRESS (other events do nothing).
 * The sink is valid as long as ddp. */
LS_API ls_event_sink ls_ddp_sink(ls_ddp *ddp);

/* Buckets and where they are, for reports: number, elements of one. */
LS_API int ls_ddp_n_buckets(const ls_ddp *ddp);
LS_API int64_t ls_ddp_bucket_count(const ls_ddp *ddp, int bucket);

#ifdef __cplusplus
}
#endif
#endif
