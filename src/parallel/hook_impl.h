/* What the communication hooks share: a row for each in the table of hook.c, buffers on the wire,
 * and what is kept of gradients that were not sent.
 *
 * A method's file holds its state, prepare, run and release, and one lsi_hook_method. Buckets of
 * F64 take no part in any compression: lsi_hook_plain. */
#ifndef LSI_PARALLEL_HOOK_IMPL_H
#define LSI_PARALLEL_HOOK_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/hook.h>

#include "base/message.h"

enum { LSI_HOOK_MOST_RANK = 64 }; /* of powersgd */

/* ---- methods ---- */

typedef struct lsi_hook_method {
    const char *name;
    size_t state_bytes; /* zeroed; begins with ls_hook_opts, defaults filled in */
    ls_status (*prepare)(void *state, ls_group *group, const ls_param *params, int n_params,
                         const ls_bucket *buckets, int n_buckets);
    ls_status (*run)(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                     ls_work **work);
    void (*release)(void *state);
} lsi_hook_method;

extern const lsi_hook_method lsi_hook_all_reduce, lsi_hook_noop, lsi_hook_bf16, lsi_hook_fp16,
    lsi_hook_int8, lsi_hook_topk, lsi_hook_powersgd;

/* Stage 0: all bits are all-reduced in place; later stages: nothing. */
LS_CHECKED ls_status lsi_hook_plain(ls_group *group, const ls_bucket *bucket, int stage,
                                    ls_work **work);

/* ---- buffers on the wire ---- */

/* One block of shared memory, zeroed, a part of it for each bucket: buckets are in flight together.
 * The group must outlive the block. */
typedef struct lsi_hook_wires {
    ls_group *group;
    char *block;
    int64_t *offset_bytes; /* per bucket */
    int64_t noted_bytes;
} lsi_hook_wires;

/* Bytes that a bucket needs, 0 for none. */
typedef int64_t lsi_hook_bytes_fn(const void *state, const ls_group *group,
                                  const ls_bucket *bucket);

/* Lets go of what was there and makes it anew. */
LS_CHECKED ls_status lsi_hook_wires_make(lsi_hook_wires *wires, ls_group *group,
                                         const ls_bucket *buckets, int n_buckets,
                                         lsi_hook_bytes_fn *bytes_of, const void *state);
void lsi_hook_wires_free(lsi_hook_wires *wires);
/* NULL if no bucket needs any. */
static inline void *lsi_hook_wire(const lsi_hook_wires *wires, const ls_bucket *bucket) {
    return wires->block ? wires->block + wires->offset_bytes[bucket->index] : NULL;
}

/* ---- error feedback ---- */

/* What was left out of a parameter's sums so far, in this rank's units before scaling: what the sum
 * over ranks has to be multiplied by when it is sent at last. */
typedef struct lsi_hook_error {
    int64_t count;
    float *left_out; /* NULL: none is kept */
    double scale;    /* of the step in which it was left out */
} lsi_hook_error;

/* Kept by the parameter's index, so that it outlives buckets. */
typedef struct lsi_hook_errors {
    int n_params;
    lsi_hook_error *of; /* per parameter */
} lsi_hook_errors;

/* What is kept stays if the parameters have the sizes that they had, and goes otherwise. */
LS_CHECKED ls_status lsi_hook_errors_prepare(lsi_hook_errors *errors, const ls_param *params,
                                             int n_params);
/* Memory for a parameter's, zeroed, unless it has it. */
LS_CHECKED ls_status lsi_hook_errors_keep(lsi_hook_errors *errors, int param);
void lsi_hook_errors_free(lsi_hook_errors *errors);
/* What left_out has to be multiplied by in a step with this scale, so that the average gets what it
 * would have got at the time: 1 where the scale stays the same. */
float lsi_hook_error_factor(const lsi_hook_error *error, double scale);

#endif
