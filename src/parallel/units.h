/* Units of a model: blocks of layers whose parameters are gathered before they compute and given up
 * afterwards. This is the plan, made without memory of values or processes: what goes together, and
 * when it is gathered and given up.
 *
 * Parameters that the same units use make a group, which has a bucket of its own (two where types
 * differ): with a tied embedding, the table, used by the first unit and the last, is one, and what
 * else the first unit uses is another. Persistent parameters are no unit's; they come last.
 * Frozen parameters that some unit uses are in groups as well, and have buckets of their own
 * (bucket.h); those that none uses, which the model writes itself, are left alone.
 *
 * Buckets are in the order in which their gradients are complete: those come first whose first unit
 * is last. In backward, behind unit u, buckets whose first unit is u are complete.
 *
 *     gathered    before a unit, forward and backward, what that pass reads and what is not there
 *     given up    behind a unit what the next one of the pass does not read
 *     kept        from forward to backward: what backward of the last unit reads
 *
 * Forward reads all that a unit uses. Backward need not: that of an embedding writes the gradient
 * of the table, but does not look at the table (LS_USE_FORWARD_ONLY). */
#ifndef LSI_PARALLEL_UNITS_H
#define LSI_PARALLEL_UNITS_H

#include <stdbool.h>

#include <lockstep/parallel.h>

#include "parallel/bucket.h"

enum { LSI_PERSISTENT = -1 };

/* Whether the ranks gather units of parameters: private ZeRO-3. */
static inline bool lsi_gathers_units(int strategy, int replicas) {
    return strategy == LS_STRATEGY_ZERO3 && replicas == LS_REPLICAS_PRIVATE;
}

/* Bits. */
typedef enum lsi_pass { LSI_FORWARD = 1, LSI_BACKWARD = 2 } lsi_pass;

typedef struct lsi_unit_plan {
    int n_units, n_params, n_buckets; /* n_buckets: of values, lsi_bucket_plan.n_held */
    unsigned char *uses; /* n_params x n_units: the passes of the unit that read the parameter; 0:
                            the unit does not use it */
    int *order, *group;  /* of parameters, for the bucket plan; group -1: frozen, no unit's */
    int *param;          /* per bucket: one of its parameters, which stands for all */
    int *first; /* per bucket: the first unit that uses it; LSI_PERSISTENT: none needs to */
} lsi_unit_plan;

/* uses NULL: unit 0 uses all that is trained. Every trained parameter must be used by some unit. */
LS_CHECKED ls_status lsi_unit_plan_create(const ls_param *params, int n_params,
                                          const ls_unit_use *uses, int n_uses,
                                          int64_t persist_below, lsi_unit_plan *plan);
/* Once the buckets are made from order and group. */
LS_CHECKED ls_status lsi_unit_plan_use_buckets(lsi_unit_plan *plan, const lsi_bucket_plan *buckets);
void lsi_unit_plan_fini(lsi_unit_plan *plan);

/* Whether the unit uses the parameter; no unit does of a number that there is not. */
bool lsi_unit_uses_param(const lsi_unit_plan *plan, int unit, int param);
/* Whether this pass of the unit reads the bucket. */
bool lsi_unit_reads(const lsi_unit_plan *plan, int unit, int bucket, lsi_pass pass);
/* Whether backward of any unit does. */
bool lsi_unit_plan_reads_again(const lsi_unit_plan *plan, int bucket);

typedef struct lsi_reshard {
    bool keeps; /* LS_RESHARD_NO: units stay whole until their backward pass */
    bool turns; /* backward comes behind the last unit: it is no evaluation */
} lsi_reshard;

/* Whether the bucket, which forward of the unit has read, stays whole behind it. In an evaluation
 * without resharding all does, for the next pass, which is forward again. */
bool lsi_unit_plan_keeps(const lsi_unit_plan *plan, int unit, int bucket, lsi_reshard how);

#endif
