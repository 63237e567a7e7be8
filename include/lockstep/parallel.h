/* Data parallelism: every rank computes the gradients of its own micro-batches, and the gradients
 * are averaged over ranks before each optimizer step. Every rank holds the whole model
 * (LS_STRATEGY_DDP), or shards of its states (docs/sharding.md).
 *
 * The training loop may be anybody's. It describes its parameters (ls_param), lets ls_ddp_create
 * point their gradients into buckets, and tells when gradients are ready; a
 * bucket is sent as soon as its last gradient is, while the backward pass goes on.
 *
 *     ls_ddp_create(group, params, n_params, NULL, &ddp);
 *     for each step:
 *         ls_ddp_begin_step(ddp, n_micro_batches, 0);
 *         for each micro-batch:
 *             for each unit: ls_ddp_before_forward, forward pass, ls_ddp_after_forward;
 *             ls_ddp_begin_backward(ddp);
 *             for each unit, the last one first: ls_ddp_before_backward; for each of its gradients
 *             ls_ddp_grad_needed(ddp, i), compute it into params[i].grad, adding to what is there
 *             if ls_ddp_accumulates(ddp), otherwise overwriting it, ls_ddp_grad_ready(ddp, i);
 *             ls_ddp_after_backward;
 *             ls_ddp_end_backward(ddp);
 *         ls_ddp_finish_step(ddp);      gradients are averaged now
 *         ls_ddp_update(ddp, &adamw), or with LS_STRATEGY_DDP an optimizer of one's own (with
 *         opts.update_in_backward: ls_ddp_plan_update before the last backward pass instead)
 *
 * LS_STRATEGY_DDP needs neither the calls around units nor ls_ddp_grad_needed. It and
 * LS_STRATEGY_ZERO1 send gradients in the last micro-batch of a step only, the others in each. All
 * calls are made by all ranks in the same
 * order, one thread at a time. docs/ddp.md is the guide. */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <stdint.h>

#include <lockstep/event.h>
#include <lockstep/group.h>
#include <lockstep/hook.h>
#include <lockstep/optim.h>
#include <lockstep/param.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_ddp ls_ddp;

/* What a sum over ranks and micro-batches is divided by. */
typedef enum ls_average {
    LS_AVERAGE_MEAN = 0,    /* the micro-batches of all ranks */
    LS_AVERAGE_RANKS = 1,   /* the ranks: the micro-batches of a rank are added, as PyTorch does */
    LS_AVERAGE_SUM = 2,     /* nothing */
    LS_AVERAGE_WEIGHTS = 3, /* the weights of all micro-batches, see ls_ddp_weigh: gradients of sums
                               over tokens become those of the mean over all tokens */
    LS_AVERAGE_MEANS = 4,   /* each rank's sum by the weights of its own micro-batches, and these by
                               the ranks: what loops do whose loss is a mean. Tokens of ranks with
                               few of them count more. Not with a hook, and from LS_STRATEGY_ZERO2
                               on with one micro-batch a step: what is sent has its factor already */
} ls_average;

/* Which of the states of a model are sharded, so that each rank keeps a part (docs/sharding.md). */
typedef enum ls_strategy {
    LS_STRATEGY_DDP = 0,   /* nothing: every rank has everything */
    LS_STRATEGY_ZERO1 = 1, /* optimizer states: gradients are reduce-scattered, each rank updates
                              its shard with ls_ddp_update, which brings the parameters to all */
    LS_STRATEGY_ZERO2 = 2, /* gradients as well: buckets have memory from ls_ddp_grad_needed until
                              they are reduced, every micro-batch is exchanged, sums are kept in
                              shards. A step of several micro-batches has the sum over ranks of each
                              added up, so plain sums have other bits than those of the strategies
                              above; reproducible ones have the same, if micro-batch i of rank r is
                              number i * ranks + r of the step */
    LS_STRATEGY_ZERO3 = 3, /* parameters as well (FSDP). With LS_REPLICAS_SHARED the ranks of the
                              machine have one copy together, so nothing need be gathered, and this
                              is LS_STRATEGY_ZERO2; with LS_REPLICAS_PRIVATE units are gathered
                              before they are used, see ls_ddp_before_forward */
} ls_strategy;

/* Where the parameters of sharded strategies are. */
typedef enum ls_replicas {
    LS_REPLICAS_SHARED = 0, /* one copy for all ranks of the machine, each writes its shard: between
                               ls_ddp_finish_step and the end of ls_ddp_update nobody may read it
                               (with update_in_backward: see there) */
    LS_REPLICAS_PRIVATE = 1, /* one copy a rank, all-gathered after each update; of
                                LS_STRATEGY_ZERO3 the units that are in use */
} ls_replicas;

/* LS_STRATEGY_ZERO3: unit `unit` of a model, a block of layers, computes with parameter `param`. */
typedef struct ls_unit_use {
    int unit, param;
    int flags; /* 0, or LS_USE_… */
} ls_unit_use;

/* Of a pair: the unit's backward pass does not look at the parameter's values, though it may write
 * its gradient, as that of an embedding does. They are not gathered for it: there, data is NULL
 * unless another unit keeps them. */
enum { LS_USE_FORWARD_ONLY = 1 };

/* What becomes of a unit after its forward pass, other than parts by groups of ranks. */
enum {
    LS_RESHARD_YES = 0, /* it is given up, and gathered again for backward */
    LS_RESHARD_NO = 1,  /* it stays whole until its backward pass, but for what backward does not
                           read */
};

/* Which states are in a file instead of memory. */
typedef enum ls_offload {
    LS_OFFLOAD_NONE = 0,
    LS_OFFLOAD_OPTIMIZER = 1, /* moments and lower halves */
    LS_OFFLOAD_PARAMS = 2,    /* and the shards of parameters that units are gathered from */
} ls_offload;

/* Initial values: writes elements [begin, begin + count) of parameter `param` as float32. Must give
 * the same on every rank for the same elements, in whatever pieces they are asked for. */
typedef ls_status (*ls_fill_fn)(void *context, int param, int64_t begin, int64_t count,
                                float *values);

/* What happens when ranks run out of data at different times. */
typedef enum ls_join {
    LS_JOIN_NONE = 0,  /* not foreseen: the others wait for the rank and get an error */
    LS_JOIN_LIVE = 1,  /* a rank without data goes on with gradients of zero; means are over the
                          ranks that have data */
    LS_JOIN_WORLD = 2, /* the same, but means are over all ranks */
    LS_JOIN_STOP = 3,  /* all end with the first one that has none */
} ls_join;

/* What to do about gradients that are not finite. */
typedef enum ls_nonfinite {
    LS_NONFINITE_IGNORE = 0, /* nothing is looked at */
    LS_NONFINITE_STOP = 1,   /* ls_ddp_finish_step fails on all ranks */
    LS_NONFINITE_SKIP = 2,   /* ls_ddp_step_is_skipped says 1 on all ranks */
} ls_nonfinite;

typedef struct ls_ddp_opts {
    uint32_t struct_size;   /* sizeof(ls_ddp_opts) */
    double bucket_cap_mb;   /* MiB of a bucket, >= 0; 0: 25 */
    double first_bucket_mb; /* MiB of the first one, so that communication starts early; 0: 1 */
    int reproducible;       /* add micro-batches pairwise in a fixed tree instead of in place, so
                               that sums do not depend on how many ranks share them; costs
                               log2(micro-batches of a rank) + 1 more copies of the gradients */
    int average;            /* LS_AVERAGE_…, where ls_ddp_begin_step is given no factor */
    int find_unused_parameters; /* parameters may get no gradient, see ls_ddp_end_backward */
    int static_graph; /* the same ones are unused on a rank in every step: learned in the first one,
                         a change is an error; buckets need not wait for the end of backward.
                         Not with join: a rank may have no first step to learn from */
    int keep_buckets; /* do not rebuild buckets after the first step in the order in which rank 0's
                         gradients became ready */
    int no_overlap;   /* communicate after the backward pass, not during it; from LS_STRATEGY_ZERO2
                         on, where buckets come and go: wait for each bucket when it is posted */
    int join;         /* LS_JOIN_… */
    int nonfinite;    /* LS_NONFINITE_…; costs two passes over the gradients */
    const ls_comm_hook *hook; /* borrowed, outlives ddp; NULL: all-reduce */
    /* State that is not trained (running statistics): rank 0's is broadcast at create and, with
     * broadcast_buffers, at the beginning of each step. Borrowed; grad is not used. */
    ls_param *buffers;
    int n_buffers;
    int broadcast_buffers;
    /* Sharded strategies: parameters that are trained are F32 or BF16, a hook leaves whole averages
     * of which each rank keeps its slice (from LS_STRATEGY_ZERO2 on with one micro-batch a step:
     * nobody has a sum of several), buckets are not rebuilt. ls_ddp_create moves these parameters
     * into memory of its own: params[i].data changes. ls_ddp_destroy copies them back to where they
     * were, unless ls_ddp_keep_values was called; of LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE no
     * rank has them, data is NULL afterwards (before, ls_ddp_get_values puts them together). There
     * all of this is so as well for frozen parameters that some unit of `uses` uses: they are
     * sharded and gathered like the others. Those that none uses stay where they are. */
    int strategy; /* LS_STRATEGY_… */
    int replicas; /* LS_REPLICAS_… */
    /* For ls_ddp_update: lower_halves[i]: what the values of BF16 parameter i, which are the upper
     * halves, lack of float32 (ls_bf16_split). LS_STRATEGY_DDP: used in place, borrowed. Sharded:
     * the rank's shard of them is copied at create, the list is not needed afterwards. No list:
     * zeros, the BF16 values are all there is; a list has one for each that is trained. */
    uint16_t *const *lower_halves;
    /* Sharded strategies: ranks of a shard group; 0: all. Shards are within groups of so many
     * consecutive ranks, which must divide the world size, and the groups have replicas of each
     * other (hybrid sharding: shard inside of a machine, replicate over machines). Sums are added
     * within groups first: the same bits where shard_size is a power of two. */
    int shard_size; /* deadlines of these groups are those that `group` has at create */
    /* Sharded strategies with LS_REPLICAS_PRIVATE. Which unit uses which parameters, in any order;
     * units are numbered from 0 in the order of the forward pass. Every trained parameter must be
     * used by some unit. Copied. LS_STRATEGY_ZERO3: parameters that the same units use are gathered
     * together; NULL: unit 0 uses all that are trained. The others: the all-gather after an update
     * goes on while the next forward pass begins, which waits in ls_ddp_before_forward for what the
     * unit uses; NULL: ls_ddp_update waits for all of it. The rest is for LS_STRATEGY_ZERO3. */
    const ls_unit_use *uses;
    int n_uses;
    int prefetch;              /* units gathered ahead of their use, both ways; 0: 1, < 0: none */
    int reshard_after_forward; /* LS_RESHARD_…, or a number k > 1: each rank keeps 1/k, and backward
                                  gathers within k consecutive ranks; k divides the shard group */
    double gather_limit_mb;    /* no unit is gathered ahead beyond so many MiB; 0: no limit */
    int64_t persist_below;     /* parameters of fewer elements are whole on every rank, gathered
                                  after each update; frozen ones once */
    int offload;               /* LS_OFFLOAD_…; sharded strategies, PARAMS as `uses` */
    const char *offload_dir;   /* where the file is made (it has no name there) */
    /* Sharded strategies: the type in which gradients are sent: LS_DTYPE_F32, also 0, or
     * LS_DTYPE_BF16. They are added in float32, the sum of a micro-batch is rounded once, and kept
     * as float32. The same as LS_HOOK_BF16 does for LS_STRATEGY_DDP. */
    int reduce_dtype;
    /* Sharded strategies: values of all that ls_ddp_create moves come from here, each rank asks for
     * its shard only, and params[i].data may be NULL. They are not broadcast. */
    ls_fill_fn fill;
    void *fill_context;
    /* Sharded strategies with LS_REPLICAS_SHARED and one shard group: each rank updates its slice
     * of a bucket while it adds it, as ls_ddp_plan_update says, and ls_ddp_finish_step ends with
     * all parameters updated. Sums are in no memory, from LS_STRATEGY_ZERO2 on there are no shards
     * of gradients at all, and there is no norm: nothing can be clipped. A parameter may change,
     * for all ranks, as soon as all have said that its gradient is ready in the last backward pass:
     * a rank that has said so must not read it before ls_ddp_finish_step has returned. From
     * LS_STRATEGY_ZERO2 on with one micro-batch a step. Not with a hook, reduce_dtype
     * LS_DTYPE_BF16, offload, join, find_unused_parameters, static_graph, LS_NONFINITE_SKIP; after
     * an error of ls_ddp_finish_step parameters may be of that step already. */
    int update_in_backward;
} ls_ddp_opts;

#define LS_DDP_OPTS_INIT                                                                           \
    {                                                                                              \
        sizeof(ls_ddp_opts), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  \
            0, 0, 0, 0, 0, 0, 0                                                                    \
    }

/* Collective, blocks. Compares names, sizes, shapes, types, flags and order of the parameters over
 * ranks (a difference is LS_ERR_MISMATCH and names the rank and the first parameter that differs),
 * and the options, broadcasts rank 0's values and buffers, allocates buckets in shared memory
 * (zeroed, as many bytes as the gradients of parameters that are not frozen) and sets
 * params[i].grad. Buckets are filled in reverse order of the parameters, the order in which
 * backward usually makes them ready, those of each type apart. Two parameters with the same name,
 * or with memory in common (tied ones: describe them once, ready after the last use) are
 * LS_ERR_ARGUMENT. params is borrowed and must outlive *ddp, as must the group. opts: NULL is
 * all zeros. */
LS_API LS_CHECKED ls_status ls_ddp_create(ls_group *group, ls_param *params, int n_params,
                                          const ls_ddp_opts *opts, ls_ddp **ddp);
/* Local (but waits for all-gathers that ls_ddp_update left going on, see opts.uses); sets
 * params[i].grad to NULL. NULL does nothing. In a step that was given up with buckets
 * in flight their memory stays with the group, because peers may still be adding to it; with
 * opts.update_in_backward they may be updating as well: what is copied back may be of either
 * step. */
LS_API void ls_ddp_destroy(ls_ddp *ddp);

/* ---- a step ---- */

/* The backward passes that ls_ddp_begin_no_sync does not cover say which one is the last. */
enum { LS_MICRO_BATCHES_BY_SCOPE = -1 };

/* n_micro_batches: of this rank in this step, >= 1, or LS_MICRO_BATCHES_BY_SCOPE. scale: factor of
 * the summed gradients, 0: as opts.average says; finite, the same on all ranks.
 * Local, but for: the second step, which may rebuild buckets (one broadcast); join; buffers that
 * are broadcast. params[i].grad may move in the second step.
 *
 * With join, the call is collective and blocks; n_micro_batches 0 says that this rank has no data
 * for the step. Afterwards ls_ddp_n_live is the number of ranks that have. 0: the end, no step was
 * begun. A rank without data calls ls_ddp_finish_step at once and then makes the same optimizer
 * step as the others. */
LS_API LS_CHECKED ls_status ls_ddp_begin_step(ls_ddp *ddp, int64_t n_micro_batches, double scale);
/* Ranks that have data in this step; without join the world size. Local. */
LS_API int ls_ddp_n_live(const ls_ddp *ddp);
/* Backward passes begun between these only accumulate (or send their gradients to be added up in
 * shards); the next one outside is the step's last. It does not matter whether the forward pass is
 * inside. Where the step was begun with a number, scopes must agree with it. Local. */
LS_API LS_CHECKED ls_status ls_ddp_begin_no_sync(ls_ddp *ddp);
LS_API LS_CHECKED ls_status ls_ddp_end_no_sync(ls_ddp *ddp);
/* With LS_AVERAGE_WEIGHTS and LS_AVERAGE_MEANS, before each backward pass: the weight (>= 0) of the
 * micro-batch, for example the number of its tokens that have a target. Local. */
LS_API LS_CHECKED ls_status ls_ddp_weigh(ls_ddp *ddp, double weight);
/* Local: the next micro-batch's backward pass begins. */
LS_API LS_CHECKED ls_status ls_ddp_begin_backward(ls_ddp *ddp);
/* Whether gradients of this micro-batch must be added to params[i].grad (1) or overwrite it (0). */
LS_API int ls_ddp_accumulates(const ls_ddp *ddp);
/* Before the gradient of a parameter is first written in this micro-batch: params[index].grad is
 * there afterwards. Needed from LS_STRATEGY_ZERO2 on, where gradients come and go (it may wait for
 * the oldest bucket in flight); nothing happens with the others. Local. */
LS_API LS_CHECKED ls_status ls_ddp_grad_needed(ls_ddp *ddp, int index);
/* Local, does not block (but waits for the oldest of more than 512 buckets in flight): the gradient
 * of parameter `index` is complete for this micro-batch. On the last micro-batch it may start
 * communication, and with opts.update_in_backward the parameter's update: do not read it any more.
 * Twice for one parameter is LS_ERR_STATE. */
LS_API LS_CHECKED ls_status ls_ddp_grad_ready(ls_ddp *ddp, int index);
/* Local. With find_unused_parameters or static_graph: the parameter takes no part in this
 * micro-batch's loss. Saying so early lets its bucket go; parameters that nothing was said about
 * are taken as unused at the end. */
LS_API LS_CHECKED ls_status ls_ddp_grad_unused(ls_ddp *ddp, int index);
/* Local: the backward pass is over. Every parameter must have got a gradient in every micro-batch;
 * otherwise all ranks get LS_ERR_STATE in the step's last call of it (on ranks where nothing is
 * missing, in ls_ddp_finish_step), which names every such parameter and the ranks.
 *
 * With find_unused_parameters or static_graph none need: one that some ranks used gets the average,
 * with zeros from the others; one that no rank used in the step has no gradient after
 * ls_ddp_finish_step (params[i].grad is NULL until the next step), and the optimizer must leave it
 * and its moments alone. */
LS_API LS_CHECKED ls_status ls_ddp_end_backward(ls_ddp *ddp);
/* Around the forward and backward pass of each unit, units of a forward pass in ascending order, of
 * a backward pass in descending order, on all ranks alike. Where nothing is gathered they return at
 * once; of LS_STRATEGY_ZERO1 and 2 see opts.uses. LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE:
 *   before_forward, before_backward: params[i].data of all parameters that this pass of the unit
 *       reads is there afterwards (collective, blocks until they are gathered; backward reads all
 *       but those of LS_USE_FORWARD_ONLY); the next units are asked for.
 *   after_forward: they are given up, data is NULL, unless the next unit uses them too, or they are
 *       read in backward and the unit is the last one of a step's pass or reshard_after_forward
 *       keeps them.
 *   after_backward: they are given up, unless backward of the unit before reads them too; gradients
 *       of parameters that no unit before uses are complete, and are reduce-scattered.
 * Between steps, forward alone may run, for evaluation, equally often on all ranks. */
LS_API LS_CHECKED ls_status ls_ddp_before_forward(ls_ddp *ddp, int unit);
LS_API LS_CHECKED ls_status ls_ddp_after_forward(ls_ddp *ddp, int unit);
LS_API LS_CHECKED ls_status ls_ddp_before_backward(ls_ddp *ddp, int unit);
LS_API LS_CHECKED ls_status ls_ddp_after_backward(ls_ddp *ddp, int unit);
/* Collective, blocks until the averaged gradients are in params[i].grad (of sharded strategies:
 * this rank's shard of them; what else is there is undefined; with opts.update_in_backward all of
 * it, and the new parameters are in params[i].data on every rank). LS_ERR_NUMERIC with
 * LS_NONFINITE_STOP names rank, bucket and parameter. */
LS_API LS_CHECKED ls_status ls_ddp_finish_step(ls_ddp *ddp);
/* 1: a gradient of the last step is not finite, on all ranks alike (LS_NONFINITE_SKIP): make no
 * optimizer step. ls_ddp_skip_reason says which, valid until the next step. Local. */
LS_API int ls_ddp_step_is_skipped(const ls_ddp *ddp);
LS_API const char *ls_ddp_skip_reason(const ls_ddp *ddp);
/* Between steps, on all ranks alike: another LS_NONFINITE_… from now on. A loop that finds a norm
 * that is not finite can make the step again with LS_NONFINITE_STOP to learn where it comes from,
 * and need not pay for looking in every step. Local. */
LS_API LS_CHECKED ls_status ls_ddp_set_nonfinite(ls_ddp *ddp, int nonfinite);
/* Between steps: the norm of the averaged gradients, each parameter counted once: the root of the
 * sums of squares of the parameters added in their order (ls_sum_squares; F64 in the same order),
 * which every rank finds alike, with the same bits for every strategy. Local; of sharded strategies
 * collective, blocks; LS_ERR_STATE with opts.update_in_backward, which leaves no gradients. */
LS_API LS_CHECKED ls_status ls_ddp_grad_norm(ls_ddp *ddp, double *norm);
/* Between steps: AdamW with the averaged gradients, of all parameters or of this rank's shard, and
 * then the new parameters are in params[i].data on every rank. opts: as ls_adamw_update, `step` is
 * not looked at (each parameter counts its own updates), weight_decay is 0 for LS_PARAM_NO_DECAY.
 * Parameters without a gradient are left alone with their states. The moments are made at the
 * first call. F32 and BF16. Collective, blocks (LS_STRATEGY_DDP: local). */
LS_API LS_CHECKED ls_status ls_ddp_update(ls_ddp *ddp, const ls_adamw_opts *opts);
/* With opts.update_in_backward, which takes the place of ls_ddp_update: between ls_ddp_begin_step
 * and the step's last ls_ddp_begin_backward, which otherwise is LS_ERR_STATE. The update of this
 * step is made with these settings, which mean what they mean there; said twice, the later ones
 * count. Local; the moments are made at the first call. */
LS_API LS_CHECKED ls_status ls_ddp_plan_update(ls_ddp *ddp, const ls_adamw_opts *opts);
/* The memory that parameters were in before ls_ddp_create may be given up from now on: destroy will
 * not copy them back, and leaves params[i].data NULL. Sharded strategies; local. */
LS_API void ls_ddp_keep_values(ls_ddp *ddp);
/* Bytes of optimizer states that this rank keeps once ls_ddp_update was called (before, 0 with
 * LS_STRATEGY_DDP). Local. */
LS_API int64_t ls_ddp_state_bytes(const ls_ddp *ddp);
/* Between steps: the float32 values of parameter i, joined from halves where it is BF16, put
 * together from all shards (of a frozen one that a sharded strategy leaves whole its BF16 values,
 * since it keeps no list of lower halves); values: params[i].count floats, the caller's.
 * Collective, blocks (LS_STRATEGY_DDP: local). */
LS_API LS_CHECKED ls_status ls_ddp_get_values(ls_ddp *ddp, int index, float *values);
/* Between steps: compares a hash of all parameters over ranks. LS_ERR_MISMATCH names the first
 * parameter that differs and the ranks that differ from rank 0. Collective, blocks; reads every
 * parameter once and sends 8 bytes. */
LS_API LS_CHECKED ls_status ls_ddp_check_weights(ls_ddp *ddp);

/* Feeds events to the calls above: those of units, GRAD_NEEDED, GRAD_READY, END_OF_BACKWARD,
 * PROGRESS. The sink is valid as long as ddp. */
LS_API ls_event_sink ls_ddp_sink(ls_ddp *ddp);

/* ---- for reports; local ---- */

/* LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE: those of frozen parameters come last. */
LS_API int ls_ddp_n_buckets(const ls_ddp *ddp);
/* Elements of a bucket. */
LS_API int64_t ls_ddp_bucket_count(const ls_ddp *ddp, int bucket);

/* A bucket in the last step on this rank; times are since the last backward pass began. */
typedef struct ls_bucket_info {
    int64_t count; /* elements, padding included */
    int64_t bytes; /* of gradients; 0 of frozen parameters, and times are NaN */
    ls_dtype dtype;
    int n_params, first_param; /* the parameter that lies first in it */
    double ready_ms;           /* the last gradient was ready */
    double posted_ms;          /* communication was asked for */
    double done_ms;            /* it was seen to be over */
    int n_gathers;             /* of its parameters, LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE: 2
                                  for each micro-batch, 1 where they are kept in between or backward
                                  does not read them, more where units that do not follow each other
                                  do */
} ls_bucket_info;
LS_API LS_CHECKED ls_status ls_ddp_get_bucket(const ls_ddp *ddp, int bucket, ls_bucket_info *info);

#ifdef __cplusplus
}
#endif
#endif
