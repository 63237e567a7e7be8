/* Walks over the parameters: which bucket each one falls into, trained ones first, then where it
 * lies. */
#include "parallel/bucket.h"

#include "base/mem.h"

enum { LINE_BYTES = 64 };

/* More than any address space holds, and far from where sums of byte counts overflow. */
static const int64_t MAX_BYTES = (int64_t)1 << 50;

static int64_t elem_bytes(ls_dtype dtype) {
    return (int64_t)ls_dtype_bytes(dtype);
}

static int64_t padded(int64_t count, ls_dtype dtype) {
    int64_t line = LINE_BYTES / elem_bytes(dtype);
    return (count + line - 1) / line * line;
}

static ls_status allocate(lsi_bucket_plan *plan, int n_params) {
    size_t n = (size_t)n_params;
    *plan = (lsi_bucket_plan){.n_params = n_params};
    plan->bucket_of = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->bucket_of);
    plan->offset_of = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->offset_of);
    plan->sequence = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->sequence);
    plan->offsets = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->offsets);
    plan->buckets = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->buckets);
    if (plan->bucket_of && plan->offset_of && plan->sequence && plan->offsets && plan->buckets)
        return LS_OK;
    lsi_bucket_plan_fini(plan);
    return LS_ERR_MEMORY;
}

/* How buckets are filled. */
typedef struct filling {
    const int *order, *group; /* as the caller gave them */
    int64_t cap_bytes, first_cap_bytes;
    int64_t total_bytes; /* so far */
    int first;           /* buckets below it are of earlier groups */
} filling;

/* The bucket of this type that is open, or -1. */
static int open_bucket(const lsi_bucket_plan *plan, const filling *f, ls_dtype value_dtype) {
    for (int b = plan->n_held - 1; b >= f->first; b--)
        if (plan->buckets[b].value_dtype == value_dtype) return b;
    return -1;
}

static ls_status put(lsi_bucket_plan *plan, filling *f, const ls_param *param, int index) {
    ls_dtype dtype = ls_grad_dtype(param->dtype);
    if (param->count > (MAX_BYTES - f->total_bytes) / elem_bytes(dtype) - LINE_BYTES)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "parameter %s has %lld elements: together more than the %lld bytes that "
                        "gradients can have",
                        param->name, (long long)param->count, (long long)MAX_BYTES);
    int64_t count = padded(param->count, dtype);
    int at = open_bucket(plan, f, param->dtype);
    const lsi_bucket *open = at >= 0 ? &plan->buckets[at] : NULL;
    int64_t cap = at <= 0 ? f->first_cap_bytes : f->cap_bytes;
    if (!open || (open->n_params > 0 && (open->count + count) * elem_bytes(dtype) > cap)) {
        at = plan->n_held++;
        plan->buckets[at] = (lsi_bucket){.dtype = dtype, .value_dtype = param->dtype};
    }
    plan->bucket_of[index] = at;
    plan->offset_of[index] = plan->buckets[at].count;
    plan->buckets[at].count += count;
    plan->buckets[at].n_params++;
    f->total_bytes += count * elem_bytes(dtype);
    return LS_OK;
}

static int in_order(const lsi_bucket_plan *plan, const int *order, int k) {
    return order ? order[k] : plan->n_params - 1 - k;
}

/* Those that are trained, or those that are not. */
static ls_status put_all(lsi_bucket_plan *plan, filling *f, const ls_param *params, bool frozen) {
    f->first = frozen ? plan->n_held : 0;
    for (int k = 0, before = -1; k < plan->n_params; k++) {
        int i = in_order(plan, f->order, k);
        bool is_frozen = params[i].flags & LS_PARAM_FROZEN;
        if (is_frozen != frozen || (frozen && f->group[i] < 0)) continue;
        if (f->group && before >= 0 && f->group[before] != f->group[i]) f->first = plan->n_held;
        before = i;
        LSI_TRY(put(plan, f, &params[i], i));
    }
    return LS_OK;
}

/* Once the sizes are known: where buckets begin, and their parameters in the order they lie. */
static void lay_out(lsi_bucket_plan *plan, const int *order) {
    int64_t offset_bytes = 0;
    for (int b = 0; b < plan->n_held; b++) {
        lsi_bucket *bucket = &plan->buckets[b];
        bucket->offset_bytes = offset_bytes;
        bucket->first = plan->n_placed;
        bucket->value_offset_bytes = plan->total_value_bytes;
        if (b < plan->n_buckets) offset_bytes += bucket->count * elem_bytes(bucket->dtype);
        plan->total_value_bytes += bucket->count * (int64_t)ls_dtype_bytes(bucket->value_dtype);
        plan->n_placed += bucket->n_params;
        bucket->n_params = 0;
    }
    plan->total_bytes = offset_bytes;
    for (int k = 0; k < plan->n_params; k++) {
        int i = in_order(plan, order, k);
        if (plan->bucket_of[i] < 0) continue;
        lsi_bucket *bucket = &plan->buckets[plan->bucket_of[i]];
        int place = bucket->first + bucket->n_params++;
        plan->sequence[place] = i;
        plan->offsets[place] = plan->offset_of[i];
    }
}

ls_status lsi_bucket_plan_create(const ls_param *params, int n_params, const int *order,
                                 const int *group, int64_t cap_bytes, int64_t first_cap_bytes,
                                 lsi_bucket_plan *plan) {
    filling f = {.order = order,
                 .group = group,
                 .cap_bytes = group ? INT64_MAX : cap_bytes,
                 .first_cap_bytes = group ? INT64_MAX : first_cap_bytes};
    LSI_TRY(allocate(plan, n_params));
    for (int i = 0; i < n_params; i++) plan->bucket_of[i] = -1;
    ls_status status = put_all(plan, &f, params, false);
    plan->n_buckets = plan->n_held;
    if (status == LS_OK && group) status = put_all(plan, &f, params, true);
    if (status == LS_OK)
        lay_out(plan, order);
    else
        lsi_bucket_plan_fini(plan);
    return status;
}

void lsi_bucket_plan_fini(lsi_bucket_plan *plan) {
    lsi_free(plan->bucket_of);
    lsi_free(plan->offset_of);
    lsi_free(plan->sequence);
    lsi_free(plan->offsets);
    lsi_free(plan->buckets);
    *plan = (lsi_bucket_plan){0};
}
