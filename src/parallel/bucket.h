/* Which gradient lies where: the plan of the buckets, made without memory or processes.
 *
 * Parameters are taken in a given order and put one behind the other, each on a cache line; a
 * bucket is closed when the next parameter would make it larger than its cap. A parameter larger
 * than the cap has a bucket to itself. Parameters of different types lie in different buckets,
 * which are numbered in the order in which they were begun. Frozen parameters have no place.
 *
 * With groups (units.h) the parameters of a group share a bucket, whatever its size, and no others
 * are in it. There frozen parameters may have a place too: in buckets of their own behind all
 * others, which hold values and have no gradients. */
#ifndef LSI_PARALLEL_BUCKET_H
#define LSI_PARALLEL_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/param.h>

#include "base/message.h"

typedef struct lsi_bucket {
    int64_t offset_bytes;       /* before it in the gradient block */
    int64_t count;              /* elements, padding included */
    ls_dtype dtype;             /* of gradients */
    ls_dtype value_dtype;       /* of the parameters */
    int64_t value_offset_bytes; /* before it where parameters lie as gradients do */
    int n_params;
    int first; /* its parameters are plan->sequence[first … first + n_params) */
} lsi_bucket;

typedef struct lsi_bucket_plan {
    int n_params;
    int n_buckets;      /* of gradients, which are exchanged */
    int n_held;         /* of values: these, and those of frozen parameters behind them */
    int n_placed;       /* parameters, in all of them */
    int *bucket_of;     /* per parameter: its bucket, -1: it has no place */
    int64_t *offset_of; /* per parameter: elements before it in its bucket */
    int *sequence;      /* n_placed parameters, bucket by bucket, as they lie there */
    int64_t *offsets;   /* offset_of of these */
    lsi_bucket *buckets;
    int64_t total_bytes; /* of the gradient block */
    int64_t total_value_bytes;
} lsi_bucket_plan;

/* order: all parameters in the order in which their gradients become ready; NULL: last to first.
 * group: of each parameter; those of a group follow each other in the order, and caps do not count;
 * -1: of a frozen one without a place. NULL: there are no groups, and frozen ones have no place. */
LS_CHECKED ls_status lsi_bucket_plan_create(const ls_param *params, int n_params, const int *order,
                                            const int *group, int64_t cap_bytes,
                                            int64_t first_cap_bytes, lsi_bucket_plan *plan);
void lsi_bucket_plan_fini(lsi_bucket_plan *plan);

/* Whether the parameter has a gradient. */
static inline bool lsi_bucket_trains(const lsi_bucket_plan *plan, int param) {
    return plan->bucket_of[param] >= 0 && plan->bucket_of[param] < plan->n_buckets;
}

#endif
