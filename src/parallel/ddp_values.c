/* Parameters of sharded strategies: one copy for all ranks of a shard group, or one a rank
 * (ddp_units.c has the third form, a shard a rank).
 *
 * They lie as their gradients do, bucket by bucket, so a rank's slice of a bucket's gradients and
 * its slice of the parameters are the same elements.
 *
 * [Note: one copy] Shared parameters are written by ls_ddp_update alone, each element by one rank.
 * No rank reads them meanwhile: ls_ddp_finish_step ends with a verdict that has come from every
 * rank after its backward pass, and ls_ddp_update with a barrier. The block is released by the last
 * rank that lets go of it. With opts.update_in_backward it is otherwise, see [Note: early update].
 */
#include <stdatomic.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "comm/transport/control.h"
#include "parallel/ddp_impl.h"
#include "parallel/memory.h"

struct lsi_values_head {
    _Alignas(64) _Atomic int32_t n_users;
};

/* ---- memory ---- */

/* Rank 0's block, as this rank sees it. */
static ls_status find_shared(ls_ddp *ddp, void *block, size_t bytes) {
    lsi_region *region = lsi_group_region(ddp->group);
    uint64_t offset = block ? lsi_region_offset(region, block, bytes) : LSI_NOT_SHARED;
    LSI_TRY(ls_broadcast(ddp->shard_group, &offset, &offset, 1, LS_DTYPE_I64, 0, NULL));
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
    if (ls_group_rank(ddp->shard_group) == 0)
        status = ls_group_alloc_shared(ddp->group, bytes, &block);
    if (block) /* all that will ever come are counted before anybody could leave */
        atomic_store(&((lsi_values_head *)block)->n_users, ls_group_world_size(ddp->shard_group));
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
    int n_ranks = are_shared(ddp) ? ls_group_world_size(ddp->shard_group) : 1;
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

/* What has no memory at first is filled later. */
static void move(ls_ddp *ddp, bool copy) {
    for (int i = 0; i < ddp->n_params; i++) {
        ls_param *param = &ddp->params[i];
        if (!lsi_ddp_is_held(ddp, i)) continue;
        if (copy && param->count > 0) memcpy(value_at(ddp, i), param->data, value_bytes(ddp, i));
        param->data = value_at(ddp, i);
    }
}

static ls_status move_whole(ls_ddp *ddp) {
    bool fills = ddp->opts.fill != NULL;
    LSI_TRY(are_shared(ddp) ? take_shared(ddp) : take_private(ddp));
    note_bytes(ddp);
    move(ddp, !fills && (!are_shared(ddp) || ls_group_rank(ddp->shard_group) == 0));
    if (fills) {
        LSI_TRY(lsi_ddp_fill_pieces(ddp));
        LSI_TRY(lsi_ddp_spread_values(ddp));
        LSI_TRY(lsi_ddp_await_values(ddp));
    } else if (are_shared(ddp)) {
        LSI_TRY(ls_barrier(ddp->shard_group, NULL));
    }
    ddp->values.is_there = true;
    return LS_OK;
}

ls_status lsi_ddp_move_values(ls_ddp *ddp) {
    ddp->values.works = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->plan.n_buckets, sizeof(ls_work *));
    LSI_TRY(lsi_check_alloc(ddp->values.works));
    /* Last: what it holds goes back to the parameters, whatever fails. */
    ddp->values.given = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->n_params, sizeof(void *));
    LSI_TRY(lsi_check_alloc(ddp->values.given));
    for (int i = 0; i < ddp->n_params; i++) ddp->values.given[i] = ddp->params[i].data;
    return lsi_ddp_gathers(ddp) ? lsi_ddp_shard_values(ddp) : move_whole(ddp);
}

/* ---- pieces ---- */

void *lsi_ddp_piece_value(const ls_ddp *ddp, const lsi_piece *piece) {
    const ls_param *param = &ddp->params[piece->param];
    int64_t elem_bytes = (int64_t)ls_dtype_bytes(param->dtype);
    if (!lsi_ddp_gathers(ddp)) return (unsigned char *)param->data + piece->begin * elem_bytes;
    const lsi_shard_plan *plan = &ddp->states.plan;
    int bucket = ddp->plan.bucket_of[piece->param];
    int64_t in_bucket = ddp->plan.offset_of[piece->param] + piece->begin;
    int64_t in_slice = in_bucket - lsi_shard_cut(plan, bucket, plan->rank);
    return ddp->units.shard + lsi_ddp_slice_offset(ddp, bucket, plan->rank) + in_slice * elem_bytes;
}

/* The upper halves of float32 values. */
static ls_status fill_narrow(ls_ddp *ddp, const lsi_piece *piece, float *wide, int64_t n_wide) {
    uint16_t *to = lsi_ddp_piece_value(ddp, piece);
    for (int64_t done = 0; done < piece->count; done += n_wide) {
        int64_t n = piece->count - done < n_wide ? piece->count - done : n_wide;
        LSI_TRY(ddp->opts.fill(ddp->opts.fill_context, piece->param, piece->begin + done, n, wide));
        for (int64_t i = 0; i < n; i++) to[done + i] = lsi_upper_half(wide[i]);
    }
    return LS_OK;
}

static ls_status fill_piece(ls_ddp *ddp, const lsi_piece *piece) {
    enum { WIDE = 4096 };
    float wide[WIDE];
    const ls_param *param = &ddp->params[piece->param];
    void *to = lsi_ddp_piece_value(ddp, piece);
    size_t bytes = ls_dtype_bytes(param->dtype);
    if (ddp->opts.fill && param->dtype == LS_DTYPE_BF16) return fill_narrow(ddp, piece, wide, WIDE);
    if (ddp->opts.fill)
        return ddp->opts.fill(ddp->opts.fill_context, piece->param, piece->begin, piece->count, to);
    memcpy(to, (unsigned char *)param->data + (size_t)piece->begin * bytes,
           (size_t)piece->count * bytes);
    return LS_OK;
}

ls_status lsi_ddp_fill_pieces(ls_ddp *ddp) {
    for (int k = 0; k < ddp->states.plan.n_held_pieces; k++) {
        const lsi_piece *piece = &ddp->states.plan.pieces[k];
        LSI_TRY(lsi_context(fill_piece(ddp, piece), "ddp: values of parameter %s",
                            ddp->params[piece->param].name));
        LSI_TRY(lsi_ddp_let_go_of_piece(ddp, piece, true));
    }
    return LS_OK;
}

/* Where values are in a file: the bytes of a piece. */
typedef struct extent {
    int64_t offset, bytes;
} extent;

static extent extent_of(const ls_ddp *ddp, const lsi_piece *piece) {
    int64_t elem_bytes = (int64_t)ls_dtype_bytes(ddp->params[piece->param].dtype);
    int64_t offset = (unsigned char *)lsi_ddp_piece_value(ddp, piece) - ddp->units.shard;
    return (extent){offset, piece->count * elem_bytes};
}

ls_status lsi_ddp_read_piece(const ls_ddp *ddp, const lsi_piece *piece) {
    if (!ddp->units.spill) return LS_OK;
    extent e = extent_of(ddp, piece);
    lsi_spill_will_need(ddp->units.spill, e.offset, e.bytes);
    return lsi_context(lsi_spill_await(ddp->units.spill, e.offset, e.bytes, false),
                       "ddp: offloaded parameters");
}

/* Small ones that were written wait for the end of the update: each call waits for the disk. */
ls_status lsi_ddp_let_go_of_piece(const ls_ddp *ddp, const lsi_piece *piece, bool wrote) {
    enum { SMALL_BYTES = 1 << 16 };
    if (!ddp->units.spill) return LS_OK;
    extent e = extent_of(ddp, piece);
    if (wrote && e.bytes < SMALL_BYTES) return LS_OK;
    return lsi_context(lsi_spill_is_done(ddp->units.spill, e.offset, e.bytes, wrote),
                       "ddp: offloaded parameters");
}

/* ---- the end ---- */

static void release(ls_ddp *ddp) {
    lsi_values *v = &ddp->values;
    if (!v->at) return;
    if (!v->head)
        lsi_ddp_free_shared(ddp, v->at);
    else if (atomic_fetch_sub(&v->head->n_users, 1) == 1)
        lsi_ddp_free_shared(ddp, v->head);
    lsi_mem_note(LSI_MEM_PARAMS, -v->noted_bytes);
    v->at = NULL;
    v->head = NULL;
}

/* Whoever has a shard only cannot give back the whole, but where the ddp was not even made. */
void lsi_ddp_return_values(ls_ddp *ddp) {
    lsi_values *v = &ddp->values;
    bool are_lost = v->is_kept || lsi_ddp_gathers(ddp);
    for (int i = 0; i < ddp->n_params && v->given; i++) {
        if (!lsi_ddp_is_held(ddp, i)) continue;
        if (v->given[i] && v->is_there && !are_lost)
            memcpy(v->given[i], value_at(ddp, i), value_bytes(ddp, i));
        ddp->params[i].data = v->is_there && are_lost ? NULL : v->given[i];
    }
    release(ddp);
    lsi_free(v->given);
    lsi_free(v->works);
    v->given = NULL;
    v->works = NULL;
}

void ls_ddp_keep_values(ls_ddp *ddp) {
    ddp->values.is_kept = true;
}

bool lsi_ddp_has_values(const ls_ddp *ddp, int index) {
    return lsi_ddp_is_sharded(ddp) && lsi_ddp_is_held(ddp, index);
}

/* ---- after an update ----
 *
 * Private copies are gathered bucket by bucket, last bucket first: the first unit's parameters. A
 * loop that says which unit uses what (opts.uses) waits for a unit's buckets when it gets there;
 * others wait at once. */

ls_status lsi_ddp_of_bucket(const ls_ddp *ddp, int index, ls_status status) {
    return lsi_context(status, "ddp: parameters of bucket %d of %d", index, ddp->plan.n_held);
}

static ls_status post_gather(ls_ddp *ddp, int index) {
    const lsi_bucket *bucket = &ddp->plan.buckets[index];
    const lsi_shard_plan *plan = &ddp->states.plan;
    unsigned char *whole = ddp->values.at + bucket->value_offset_bytes;
    int64_t elem_bytes = (int64_t)ls_dtype_bytes(bucket->value_dtype);
    return lsi_ddp_of_bucket(
        ddp, index,
        ls_all_gather_v(
            ddp->shard_group, whole + lsi_shard_cut(plan, index, plan->rank) * elem_bytes, whole,
            lsi_shard_counts(plan, index), bucket->value_dtype, &ddp->values.works[index]));
}

static ls_status await_gather(ls_ddp *ddp, int index) {
    ls_work *work = ddp->values.works[index];
    ddp->values.works[index] = NULL;
    return work ? lsi_ddp_of_bucket(ddp, index, ls_work_wait(work, -1)) : LS_OK;
}

static bool unit_uses(const ls_ddp *ddp, int unit, int index) {
    const lsi_bucket *bucket = &ddp->plan.buckets[index];
    for (int k = bucket->first; k < bucket->first + bucket->n_params; k++)
        if (lsi_unit_uses_param(&ddp->units.plan, unit, ddp->plan.sequence[k])) return true;
    return false;
}

ls_status lsi_ddp_await_unit(ls_ddp *ddp, int unit) {
    for (int b = 0; b < ddp->plan.n_buckets && ddp->values.works; b++)
        if (ddp->values.works[b] && unit_uses(ddp, unit, b)) LSI_TRY(await_gather(ddp, b));
    return LS_OK;
}

ls_status lsi_ddp_await_values(ls_ddp *ddp) {
    for (int b = ddp->plan.n_buckets - 1; b >= 0 && ddp->values.works; b--)
        LSI_TRY(await_gather(ddp, b));
    return LS_OK;
}

/* The group keeps a limited number of works. */
static ls_status gather_all(ls_ddp *ddp) {
    int n = ddp->plan.n_buckets;
    for (int b = n - 1; b >= 0; b--) {
        if (b + MAX_IN_FLIGHT < n) LSI_TRY(await_gather(ddp, b + MAX_IN_FLIGHT));
        LSI_TRY(post_gather(ddp, b));
    }
    return ddp->units.plan.n_units > 0 ? LS_OK : lsi_ddp_await_values(ddp);
}

ls_status lsi_ddp_spread_values(ls_ddp *ddp) {
    if (lsi_ddp_gathers(ddp)) return lsi_ddp_renew_units(ddp);
    if (are_shared(ddp)) return lsi_context(ls_barrier(ddp->shard_group, NULL), "ddp: update");
    return gather_all(ddp);
}
