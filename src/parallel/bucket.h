/* Which gradient lies where: the plan of the buckets, made without memory or processes.
 *
 * Parameters are taken in reverse order and put one behind the other, each on a cache line; a
 * bucket is closed when the next parameter would make it larger than its cap. A parameter larger
 * than the cap has a bucket to itself. Frozen parameters have no place. */
#ifndef LSI_PARALLEL_BUCKET_H
#define LSI_PARALLEL_BUCKET_H

#include <stdint.h>

#include <lockstep/param.h>

#include "base/message.h"

typedef struct lsi_bucket {
    int64_t offset; /* elements before it in the gradient block */
    int64_t count;  /* elements, padding included */
    int n_params;
} lsi_bucket;

typedef struct lsi_bucket_plan {
    int n_params, n_buckets;
    int *bucket_of;     /* per parameter: its bucket, -1 if frozen */
    int64_t *offset_of; /* per parameter: elements before it in the gradient block */
    lsi_bucket *buckets;
    int64_t total_count; /* elements of the gradient block */
} lsi_bucket_plan;

LS_CHECKED ls_status lsi_bucket_plan_create(const ls_param *params, int n_params, int64_t cap_bytes,
                                            int64_t first_cap_bytes, lsi_bucket_plan *plan);
void lsi_bucket_plan_fini(lsi_bucket_plan *plan);

#endif
