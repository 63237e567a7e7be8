/* Which collectives a step makes: number, order, counts, types and bytes, worked out from the plans
 * and options of an ls_ddp, without memory of values or processes. A test holds real steps to it; a
 * planner can read a step's traffic off it.
 *
 *     lsi_schedule_input in = {.opts = &opts, .buckets = &buckets, …};
 *     lsi_schedule_step(&in, &schedule);
 *     schedule.calls[0 … n_calls)
 *
 * Calls stand in the order in which a rank makes them; those of one group come in this order on all
 * its ranks. Groups know nothing of each other's order: sums over replicas stand behind the
 * reduction that they need, but are posted when that is seen to be over. When a call is over is
 * another matter: private zero1 and zero2 may wait for updated parameters in the next forward pass.
 *
 * A step here is all from ls_ddp_begin_step to the end of ls_ddp_update, after an update before it,
 * and one that goes well: every gradient is there and finite.
 *
 * Bytes are those of the formulas, f = (n - 1) / n of a group of n ranks and S the larger buffer on
 * one rank, padding included: all-reduce 2 f S, reduce-scatter, all-to-all, all-gather and
 * broadcast f S, on the average of the ranks. Sums by purpose are the table of strategies; P
 * parameters of p and g bytes:
 *
 *     ddp                2 f g P
 *     zero1              f g P + f p P               shared replicas: f g P
 *     zero2              m f g P + f p P             m micro-batches; shared, also zero3: m f g P
 *     zero3, private     m (f g P + 2 f p P - f p L)     L: what backward of the last unit reads,
 *                                                    which is kept, and what none reads;
 *                                                    frozen parameters count for p alone
 *     with shard groups  f of the group, s ranks; 2 f g P / s more, f of the replicas, in float32
 *
 * Several reproducible micro-batches are exchanged by all-to-all, which sends as much.
 * Of private zero3, units that are not resharded after forward are gathered once, those resharded
 * to k ranks the second time with f of k, those that persist once an update, or never where they
 * are frozen. A parameter that
 * several units use counts in forward, and in backward, as often as there are units that read it
 * and do not follow each other: a tied embedding, used by the first and the last one, twice in
 * forward, and in backward once, which is in L, as the first one does not read it there. */
#ifndef LSI_PARALLEL_SCHEDULE_H
#define LSI_PARALLEL_SCHEDULE_H

#include <stdbool.h>

#include <lockstep/parallel.h>

#include "comm/call.h"
#include "parallel/shard_norm.h"
#include "parallel/units.h"

typedef struct lsi_schedule_input {
    const ls_ddp_opts *opts; /* of `uses` and caps the plans are made already */
    const lsi_bucket_plan *buckets;
    const lsi_shard_plan *shards; /* sharded strategies: of this rank, in its shard group */
    const lsi_unit_plan *units;   /* private ZeRO-3 */
    const lsi_shard_norm *norm;   /* ls_ddp_grad_norm is called between; NULL: it is not */
    int n_ranks;                  /* of the world */
    int64_t n_steps;              /* finished before: behind the first one buckets are rebuilt */
    int64_t n_micro_batches;      /* of this rank, as many as it makes; 0: no data (join) */
    bool has_scale;               /* ls_ddp_begin_step is given a factor */
    bool forward_first;           /* ls_ddp_begin_backward comes behind the forward pass */
    bool updates;                 /* ls_ddp_update follows; with opts->update_in_backward it has no
                                     calls of its own */
} lsi_schedule_input;

/* A shard group of all ranks is the world. */
typedef enum lsi_schedule_group {
    LSI_IN_WORLD,
    LSI_IN_SHARD_GROUP,
    LSI_IN_REPLICATE_GROUP,
    LSI_IN_PART_GROUP, /* of opts.reshard_after_forward ranks */
    LSI_N_SCHEDULE_GROUPS,
} lsi_schedule_group;

/* X(name, text) */
#define LSI_PURPOSE_TABLE(X)                                                                       \
    X(JOIN, "who has data")                                                                        \
    X(REBUILD, "order of readiness")                                                               \
    X(BUFFERS, "buffers")                                                                          \
    X(WEIGHTS, "weights")                                                                          \
    X(UNITS, "parameters of units")                                                                \
    X(GRADS, "gradients")                                                                          \
    X(REPLICAS, "gradients over replicas")                                                         \
    X(VERDICT, "verdict")                                                                          \
    X(RESULTS, "results that are not finite")                                                      \
    X(NORM, "norm")                                                                                \
    X(UPDATE, "updated parameters")

typedef enum lsi_purpose {
#define LSI_PURPOSE_ENUM(name, text) LSI_FOR_##name,
    LSI_PURPOSE_TABLE(LSI_PURPOSE_ENUM)
#undef LSI_PURPOSE_ENUM
        LSI_N_PURPOSES
} lsi_purpose;

const char *lsi_purpose_name(lsi_purpose purpose);

typedef struct lsi_scheduled {
    lsi_schedule_group group;
    lsi_purpose purpose;
    lsi_call_kind kind;
    ls_dtype dtype;
    int64_t count;       /* as calls are described: of the _v calls of all ranks together */
    int bucket;          /* -1: of none */
    int64_t micro_batch; /* during which it is made; -1: before, behind all of them */
    int64_t group_bytes; /* that the ranks of the group send, all together */
} lsi_scheduled;

typedef struct lsi_schedule {
    lsi_scheduled *calls;
    int n_calls, n_room;
    int group_ranks[LSI_N_SCHEDULE_GROUPS]; /* 0: there is no such group */
} lsi_schedule;

/* LS_ERR_UNSUPPORTED with a hook, which makes calls of its own. */
LS_CHECKED ls_status lsi_schedule_step(const lsi_schedule_input *in, lsi_schedule *schedule);
void lsi_schedule_fini(lsi_schedule *schedule);
/* Bytes that a rank sends for a purpose, on the average of each group's ranks; LSI_N_PURPOSES: for
 * all. */
double lsi_schedule_bytes(const lsi_schedule *schedule, lsi_purpose purpose);

#endif
