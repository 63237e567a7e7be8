/* What a strategy keeps on each rank, in bytes by kind: formulas, worked out without making
 * anything.
 *
 * An element that is trained has a value, a gradient (float32 with us, whatever the value is),
 * AdamW's two moments (4 + 4) and, if its value is bfloat16, the lower half of it (2). A rank keeps
 * each of these for all elements, or for its shard; which one is a row of a table (memory.c). What
 * comes and goes, buckets of sharded gradients and units that are gathered, is known as an upper
 * bound only.
 *
 * Memory that ranks share is counted once: of a copy for all ranks each has its part. What a
 * process reads in its peers' memory besides is resident in it as well: peers' gradients are part
 * of the kind `buckets`, peers' parameters are peer_bytes and of no kind. */
#ifndef LSI_PARALLEL_MEMORY_H
#define LSI_PARALLEL_MEMORY_H

#include <stdbool.h>

#include <lockstep/parallel.h>

#include "base/mem.h"

typedef struct lsi_memory_input {
    int strategy, replicas, offload; /* LS_STRATEGY_…, LS_REPLICAS_…, LS_OFFLOAD_… */
    int n_ranks, shard_size;         /* shard_size: ranks of a shard group; 0: all */
    int64_t wide_elems;              /* trained, values in float32 */
    int64_t narrow_elems;            /* trained, values in bfloat16 */
    bool has_lower_halves;           /* of these */
    int grad_bytes;                  /* of an element's gradient; 0: 4 */
    int lower_bytes; /* of a lower half; 0: 2; 4: of systems that keep a float32 value instead */
    /* Parameters that are not trained are whole on every rank: their values, and the lower
     * halves of bfloat16 ones. But of private ZeRO-3 those that units use: these are
     * sharded, with lower halves if the others have some. */
    int64_t frozen_bytes, frozen_lower_bytes;
    int64_t frozen_wide_elems, frozen_narrow_elems;
    bool updates_in_backward; /* sharded gradients: there are no shards of them */
    /* Of a rank in a step. Reproducible sums of several are kept in a stack. */
    bool is_reproducible;
    int64_t n_micro_batches;
    /* Sharded gradients: buckets that have memory at a time, at most, and the largest one. */
    int n_open_buckets;
    int64_t largest_bucket_bytes;
    /* Private ZeRO-3: buffers of gathered parameters in use at a time, at most, the largest one,
     * and what persists. */
    int n_gathered;
    int64_t largest_gathered_bytes, persistent_bytes;
    int reshard_after_forward; /* as ls_ddp_opts has it */
} lsi_memory_input;

/* Whether the parameter's values are in memory of the ddp, and no longer the caller's. Local. */
bool lsi_ddp_has_values(const ls_ddp *ddp, int index);
/* Of the rank that has most. */
void lsi_memory_formula(const lsi_memory_input *in, lsi_mem_estimate *out);

#endif
