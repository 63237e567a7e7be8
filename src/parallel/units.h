/* Units of a model: blocks of layers whose parameters are gathered before they compute and given up
 * afterwards. This is the plan, made without memory of values or processes: what goes together, and
 * when it is gathered and given up.
 *
 * Parameters that the same units use make a group, which has a bucket of its own (two where types
 * differ): with a tied embedding, the table, used by the first unit and the last, is one, and what
 * else the first unit uses is another. Persistent parameters are no unit's; they come last.
 *
 * Buckets are in the order in which their gradients are complete: those come first whose first unit
 * is last. In backward, behind unit u, buckets whose first unit is u are complete.
 *
 *     gathered    before a unit, forward and backward, what it uses and what is not there
 *     given up    behind a unit what the next one of the pass does not use
 *     kept        from forward to backward: what the last unit uses */
#ifndef LSI_PARALLEL_UNITS_H
#define LSI_PARALLEL_UNITS_H

#include <stdbool.h>

#include <lockstep/parallel.h>

#include "parallel/bucket.h"

enum { LSI_PERSISTENT = -1 };

typedef struct lsi_unit_plan {
    int n_units, n_params, n_buckets;
    unsigned char *uses; /* n_params x n_units: whether the unit uses the parameter */
    int *order, *group;  /* of parameters, for the bucket plan */
    int *param;          /* per bucket: one of its parameters, which stands for all */
    int *first; /* per bucket: the first unit that uses it; LSI_PERSISTENT: none needs to */
} lsi_unit_plan;

/* uses NULL: unit 0 uses everything. Every trained parameter must be used by some unit. */
LS_CHECKED ls_status lsi_unit_plan_create(const ls_param *params, int n_params,
                                          const ls_unit_use *uses, int n_uses,
                                          int64_t persist_below, lsi_unit_plan *plan);
/* Once the buckets are made from order and group. */
LS_CHECKED ls_status lsi_unit_plan_use_buckets(lsi_unit_plan *plan, const lsi_bucket_plan *buckets);
void lsi_unit_plan_fini(lsi_unit_plan *plan);

/* Whether the unit uses the parameter, or the bucket; no unit does of a number that there is not.
 */
static inline bool lsi_unit_uses_param(const lsi_unit_plan *plan, int unit, int param) {
    return unit >= 0 && unit < plan->n_units && plan->uses[(int64_t)param * plan->n_units + unit];
}
static inline bool lsi_unit_uses(const lsi_unit_plan *plan, int unit, int bucket) {
    return lsi_unit_uses_param(plan, unit, plan->param[bucket]);
}

#endif
