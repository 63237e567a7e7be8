/* One walk over the parameters, last to first. */
#include "parallel/bucket.h"

#include "base/mem.h"

enum { LINE_ELEMS = 16 }; /* 64 bytes of float32 */

/* More than any address space holds, and far from where sums of byte counts overflow. */
static const int64_t MAX_ELEMS = (int64_t)1 << 48;

static int64_t padded(int64_t count) {
    return (count + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS;
}

static ls_status allocate(lsi_bucket_plan *plan, int n_params) {
    size_t n = (size_t)n_params;
    *plan = (lsi_bucket_plan){.n_params = n_params};
    plan->bucket_of = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->bucket_of);
    plan->offset_of = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->offset_of);
    plan->buckets = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->buckets);
    if (plan->bucket_of && plan->offset_of && plan->buckets) return LS_OK;
    lsi_bucket_plan_fini(plan);
    return LS_ERR_MEMORY;
}

ls_status lsi_bucket_plan_create(const ls_param *params, int n_params, int64_t cap_bytes,
                                 int64_t first_cap_bytes, lsi_bucket_plan *plan) {
    LSI_TRY(allocate(plan, n_params));
    for (int i = n_params - 1; i >= 0; i--) {
        if (params[i].flags & LS_PARAM_FROZEN) {
            plan->bucket_of[i] = -1;
            continue;
        }
        if (params[i].count > MAX_ELEMS - plan->total_count - LINE_ELEMS) {
            lsi_bucket_plan_fini(plan);
            return lsi_fail(LS_ERR_ARGUMENT,
                            "parameter %s has %lld elements: together more than "
                            "the %lld that can have gradients",
                            params[i].name, (long long)params[i].count, (long long)MAX_ELEMS);
        }
        int64_t count = padded(params[i].count);
        int64_t cap = plan->n_buckets <= 1 ? first_cap_bytes : cap_bytes;
        lsi_bucket *last = plan->n_buckets ? &plan->buckets[plan->n_buckets - 1] : NULL;
        if (!last || (last->n_params > 0 && (last->count + count) * (int64_t)sizeof(float) > cap)) {
            last = &plan->buckets[plan->n_buckets++];
            last->offset = plan->total_count;
        }
        plan->bucket_of[i] = plan->n_buckets - 1;
        plan->offset_of[i] = plan->total_count;
        last->count += count;
        last->n_params++;
        plan->total_count += count;
    }
    return LS_OK;
}

void lsi_bucket_plan_fini(lsi_bucket_plan *plan) {
    lsi_free(plan->bucket_of);
    lsi_free(plan->offset_of);
    lsi_free(plan->buckets);
    *plan = (lsi_bucket_plan){0};
}
