/* Parameters of sharded strategies: one copy for all ranks of the machine, or one a rank.
 *
 * They lie as their gradients do, bucket by bucket, so a rank's slice of a bucket's gradients and
 * its slice of the parameters are the same elements.
 *
 * [Note: one copy] Shared parameters are written by ls_ddp_update alone, each element by one rank.
 * No rank reads them meanwhile: ls_ddp_finish_step ends with a verdict that has come from every
 * rank after its backward pass, and ls_ddp_update with a barrier. The block is released by the last
 * rank that lets go of it. */
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "comm/transport/control.h"
#include "parallel/ddp_impl.h"

struct lsi_values_head {
    _Alignas(64) _Atomic int32_t n_users;
};

/* ---- memory ---- */

/* Rank 0's block, as this rank sees it. */
static ls_status find_shared(ls_ddp *ddp, void *block, size_t bytes) {
    lsi_region *region = lsi_group_region(ddp->group);
    uint64_t offset = block ? lsi_region_offset(region, block, bytes) : LSI_NOT_SHARED;
    LSI_TRY(ls_broadcast(ddp->group, &offset, &offset, 1, LS_DTYPE_I64, 0, NULL));
    if (offset == LSI_NOT_SHARED)
        return lsi_fail(LS_ERR_MEMORY, "ddp: rank 0 has no memory for the shared parameters");
    ddp->values.head = (lsi_values_head *)(region->base + offset);
    ddp->values.at = (unsigned char *)(ddp->values.head + 1);
    return LS_OK;
}

static ls_status take_shared(ls_ddp *ddp) {
    size_t bytes = sizeof(lsi_values_head) + (size_t)ddp->plan.total_value_bytes;
    void *block = NULL;
    ls_status status = LS_OK;
    if (ls_group_rank(ddp->group) == 0) status = ls_group_alloc_shared(ddp->group, bytes, &block);
    if (block) /* all that will ever come are counted before anybody could leave */
        atomic_store(&((lsi_values_head *)block)->n_users, ls_group_world_size(ddp->group));
    LSI_TRY(find_shared(ddp, block, bytes)); /* also when there is none: the others wait for it */
    return status;
}

static ls_status take_private(ls_ddp *ddp) {
    void *block = NULL;
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)ddp->plan.total_value_bytes, &block));
    ddp->values.at = block;
    return LS_OK;
}

static bool are_shared(const ls_ddp *ddp) {
    return ddp->opts.replicas == LS_REPLICAS_SHARED;
}

/* Own bytes: of a shared copy a rank has its part. */
static void note_bytes(ls_ddp *ddp) {
    int n_ranks = are_shared(ddp) ? ls_group_world_size(ddp->group) : 1;
    ddp->values.noted_bytes = ddp->plan.total_value_bytes / n_ranks;
    lsi_mem_note(LSI_MEM_PARAMS, ddp->values.noted_bytes);
}

/* ---- moving ---- */

static unsigned char *value_at(const ls_ddp *ddp, int index) {
    const lsi_bucket *bucket = &ddp->plan.buckets[ddp->plan.bucket_of[index]];
    return ddp->values.at + bucket->value_offset_bytes +
           ddp->plan.offset_of[index] * (int64_t)ls_dtype_bytes(bucket->value_dtype);
}

static size_t value_bytes(const ls_ddp *ddp, int index) {
    return (size_t)ddp->params[index].count * ls_dtype_bytes(ddp->params[index].dtype);
}

static void move(ls_ddp *ddp, bool copy) {
    for (int i = 0; i < ddp->n_params; i++) {
        ls_param *param = &ddp->params[i];
        if (lsi_ddp_is_frozen(ddp, i)) continue;
        ddp->values.given[i] = param->data;
        if (copy && param->count > 0) memcpy(value_at(ddp, i), param->data, value_bytes(ddp, i));
        param->data = value_at(ddp, i);
    }
}

ls_status lsi_ddp_move_values(ls_ddp *ddp) {
    ddp->values.given = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->n_params, sizeof(void *));
    LSI_TRY(lsi_check_alloc(ddp->values.given));
    LSI_TRY(are_shared(ddp) ? take_shared(ddp) : take_private(ddp));
    note_bytes(ddp);
    move(ddp, !are_shared(ddp) || ls_group_rank(ddp->group) == 0);
    if (are_shared(ddp)) LSI_TRY(ls_barrier(ddp->group, NULL));
    ddp->values.is_there = true;
    return LS_OK;
}

/* ---- the end ---- */

static void release(ls_ddp *ddp) {
    lsi_values *v = &ddp->values;
    if (!v->at) return;
    if (!v->head)
        ls_group_free_shared(ddp->group, v->at);
    else if (atomic_fetch_sub(&v->head->n_users, 1) == 1)
        ls_group_free_shared(ddp->group, v->head);
    lsi_mem_note(LSI_MEM_PARAMS, -v->noted_bytes);
    v->at = NULL;
    v->head = NULL;
}

void lsi_ddp_return_values(ls_ddp *ddp) {
    lsi_values *v = &ddp->values;
    for (int i = 0; i < ddp->n_params && v->at && v->given; i++) {
        if (!v->given[i]) continue;
        if (!v->is_kept && v->is_there) memcpy(v->given[i], value_at(ddp, i), value_bytes(ddp, i));
        ddp->params[i].data = v->is_kept ? NULL : v->given[i];
    }
    release(ddp);
    lsi_free(v->given);
    v->given = NULL;
}

void ls_ddp_keep_values(ls_ddp *ddp) {
    ddp->values.is_kept = true;
}

/* ---- after an update ---- */

static ls_status gather_bucket(ls_ddp *ddp, int index) {
    const lsi_bucket *bucket = &ddp->plan.buckets[index];
    const lsi_shard_plan *plan = &ddp->states.plan;
    unsigned char *whole = ddp->values.at + bucket->value_offset_bytes;
    int64_t elem_bytes = (int64_t)ls_dtype_bytes(bucket->value_dtype);
    return lsi_context(
        ls_all_gather_v(ddp->group, whole + lsi_shard_cut(plan, index, plan->rank) * elem_bytes,
                        whole, lsi_shard_counts(plan, index), bucket->value_dtype, NULL),
        "ddp: parameters of bucket %d", index);
}

ls_status lsi_ddp_spread_values(ls_ddp *ddp) {
    if (are_shared(ddp)) return lsi_context(ls_barrier(ddp->group, NULL), "ddp: update");
    for (int b = 0; b < ddp->plan.n_buckets; b++) LSI_TRY(gather_bucket(ddp, b));
    return LS_OK;
}
