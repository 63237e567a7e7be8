/* What can be asked between steps: the norm of the gradients, whether replicas are still the same,
 * buckets and their times. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/optim.h>

#include "base/hash.h"
#include "base/mem.h"
#include "parallel/ddp_impl.h"

static ls_status expect_idle(const ls_ddp *ddp, const char *call) {
    if (ddp->state == IDLE) return LS_OK;
    return lsi_fail(LS_ERR_STATE, "%s: a step is open; expected between steps", call);
}

/* ---- norm ---- */

/* As ls_sum_squares: blocks of 4096, each in 16 lanes that are added as a tree. */
static double sum_squares_f64(const double *values, int64_t count) {
    enum { BLOCK = 4096, LANES = 16 };
    double total = 0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        double lanes[LANES] = {0};
        int64_t n = count - start < BLOCK ? count - start : BLOCK;
        for (int64_t i = 0; i < n; i++) lanes[i % LANES] += values[start + i] * values[start + i];
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
        total += lanes[0];
    }
    return total;
}

static const float *grad_of(const void *context, const lsi_piece *piece) {
    return lsi_ddp_piece_grad(context, piece);
}

ls_status ls_ddp_grad_norm(ls_ddp *ddp, double *norm) {
    LSI_TRY(expect_idle(ddp, "ls_ddp_grad_norm"));
    if (lsi_ddp_updates_early(ddp))
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_grad_norm: with update_in_backward averaged gradients are used up "
                        "while they are made; leave the option out where their norm is needed");
    if (lsi_ddp_is_sharded(ddp))
        return lsi_context(
            lsi_shard_norm_get(&ddp->states.norm, ddp->shard_group, grad_of, ddp, norm),
            "ls_ddp_grad_norm");
    double total = 0;
    for (int i = 0; i < ddp->n_params; i++) {
        const ls_param *param = &ddp->params[i];
        if (!param->grad) continue;
        total += param->dtype == LS_DTYPE_F64 ? sum_squares_f64(param->grad, param->count)
                                              : ls_sum_squares(param->grad, param->count);
    }
    *norm = sqrt(total);
    return LS_OK;
}

/* ---- are replicas the same ---- */

static uint64_t hash_param(const ls_param *param) {
    return lsi_hash64(param->data, (size_t)param->count * ls_dtype_bytes(param->dtype));
}

/* Private ZeRO-3 has a bucket whole for the time that it is looked at. */
static ls_status hash_bucket(ls_ddp *ddp, int index, uint64_t *hashes) {
    const lsi_bucket *bucket = &ddp->plan.buckets[index];
    const int *params = ddp->plan.sequence + bucket->first;
    bool is_here = ddp->units.gathered[index].buffer != NULL;
    LSI_TRY(lsi_ddp_gather_bucket(ddp, index));
    for (int k = 0; k < bucket->n_params; k++)
        hashes[params[k]] = hash_param(&ddp->params[params[k]]);
    if (!is_here) lsi_ddp_give_up_bucket(ddp, index);
    return LS_OK;
}

static ls_status hash_params(ls_ddp *ddp, uint64_t *hashes) {
    for (int i = 0; i < ddp->n_params; i++)
        if (ddp->params[i].data) hashes[i] = hash_param(&ddp->params[i]);
    for (int b = 0; b < ddp->plan.n_held && lsi_ddp_gathers(ddp); b++)
        LSI_TRY(hash_bucket(ddp, b, hashes));
    return LS_OK;
}

/* hashes: n_params of each rank. */
static ls_status report_difference(const ls_ddp *ddp, const uint64_t *hashes) {
    char ranks[LSI_MAX_RANKS * 5] = "";
    size_t n = (size_t)ddp->n_params, used = 0;
    int n_ranks = ls_group_world_size(ddp->group), first = ddp->n_params;
    for (int r = 1; r < n_ranks; r++)
        for (int i = 0; i < first; i++)
            if (hashes[(size_t)r * n + (size_t)i] != hashes[i]) first = i;
    if (first == ddp->n_params) return LS_OK;
    for (int r = 1; r < n_ranks; r++)
        if (hashes[(size_t)r * n + (size_t)first] != hashes[first])
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, " %d", r);
    return lsi_fail(LS_ERR_MISMATCH,
                    "replicas differ after %lld steps: the first parameter that differs is %s, on "
                    "ranks%s, from rank 0; look for updates that are not made alike, memory that "
                    "is shared by mistake, or an uninitialised value",
                    (long long)ddp->n_steps, ddp->params[first].name, ranks);
}

static ls_status find_difference(ls_ddp *ddp, const uint64_t *mine) {
    size_t n = (size_t)ddp->n_params * (size_t)ls_group_world_size(ddp->group);
    uint64_t *all = lsi_calloc(LSI_MEM_OTHER, n, sizeof *all);
    LSI_TRY(lsi_check_alloc(all));
    ls_status status = ls_all_gather(ddp->group, mine, all, ddp->n_params, LS_DTYPE_I64, NULL);
    if (status == LS_OK) status = report_difference(ddp, all);
    lsi_free(all);
    return status;
}

static ls_status compare(ls_ddp *ddp, const uint64_t *hashes) {
    uint64_t all[LSI_MAX_RANKS];
    uint64_t mine = lsi_hash64(hashes, (size_t)ddp->n_params * sizeof *hashes);
    bool is_same = true;
    LSI_TRY(ls_all_gather(ddp->group, &mine, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 1; r < ls_group_world_size(ddp->group); r++) is_same = is_same && all[r] == all[0];
    return is_same ? LS_OK : find_difference(ddp, hashes);
}

ls_status ls_ddp_check_weights(ls_ddp *ddp) {
    LSI_TRY(expect_idle(ddp, "ls_ddp_check_weights"));
    uint64_t *hashes = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->n_params, sizeof *hashes);
    LSI_TRY(lsi_check_alloc(hashes));
    ls_status status = lsi_ddp_await_values(ddp);
    if (status == LS_OK) status = hash_params(ddp, hashes);
    if (status == LS_OK) status = compare(ddp, hashes);
    lsi_free(hashes);
    return status;
}

/* ---- buckets ---- */

int ls_ddp_n_buckets(const ls_ddp *ddp) {
    return ddp->plan.n_held;
}

int64_t ls_ddp_bucket_count(const ls_ddp *ddp, int bucket) {
    return bucket >= 0 && bucket < ddp->plan.n_held ? ddp->plan.buckets[bucket].count : 0;
}

static double since_backward_ms(const ls_ddp *ddp, int64_t ns) {
    return ns == 0 ? NAN : (double)(ns - ddp->backward_ns) / 1e6;
}

ls_status ls_ddp_get_bucket(const ls_ddp *ddp, int bucket, ls_bucket_info *info) {
    static const lsi_bucket_state never = {.ready_ns = 0};
    if (bucket < 0 || bucket >= ddp->plan.n_held)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_ddp_get_bucket: bucket %d, expected 0 to %d", bucket,
                        ddp->plan.n_held - 1);
    bool has_grads = bucket < ddp->plan.n_buckets;
    const lsi_bucket *plan = &ddp->plan.buckets[bucket];
    const lsi_bucket_state *on = has_grads ? &ddp->on[bucket] : &never;
    int64_t elem_bytes = has_grads ? (int64_t)ls_dtype_bytes(plan->dtype) : 0;
    *info = (ls_bucket_info){.count = plan->count,
                             .bytes = plan->count * elem_bytes,
                             .dtype = plan->dtype,
                             .n_params = plan->n_params,
                             .first_param = ddp->plan.sequence[plan->first],
                             .ready_ms = since_backward_ms(ddp, on->ready_ns),
                             .posted_ms = since_backward_ms(ddp, on->posted_ns),
                             .done_ms = since_backward_ms(ddp, on->done_ns)};
    if (ddp->units.gathered) info->n_gathers = (int)ddp->units.gathered[bucket].n_gathers;
    return LS_OK;
}
