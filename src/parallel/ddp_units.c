/* Private ZeRO-3 (FSDP): a rank keeps its slice of every bucket of parameters, and has a unit's
 * buckets whole while the unit computes.
 *
 *     before_forward(u), before_backward(u)   ask for what this pass of u and of the next units
 *                                             reads, wait for that of u
 *     after_forward(u), after_backward(u)     give up what the next unit of the pass does not read;
 *                                             in backward, post the gradients that are complete
 *
 * What is given up after forward may leave a part with each rank, see ddp_parts.c.
 *
 * Units come in the same order on every rank, so the all-gathers and the reduce-scatters between
 * them do, and how much is gathered ahead follows from sizes alone.
 *
 * [Note: old copies] A shard is written by ls_ddp_update alone. By then every rank has finished its
 * backward pass (the verdict has come from all), so nobody gathers from it; and what was gathered
 * before is dropped after it. */
#include <string.h>

#include "base/mem.h"
#include "comm/transport/control.h"
#include "parallel/ddp_impl.h"

static int64_t value_bytes(const ls_ddp *ddp, int bucket) {
    return ddp->plan.buckets[bucket].count * lsi_ddp_value_size(ddp, bucket);
}

static unsigned char *my_slice(const ls_ddp *ddp, int bucket) {
    return ddp->units.shard + lsi_ddp_slice_offset(ddp, bucket, ddp->states.plan.rank);
}

static bool persists(const ls_ddp *ddp, int bucket) {
    return ddp->units.plan.first[bucket] == LSI_PERSISTENT;
}

/* ---- gathers ---- */

static ls_status take_buffer(ls_ddp *ddp, int index) {
    lsi_gathered *g = &ddp->units.gathered[index];
    int64_t bytes = value_bytes(ddp, index);
    g->buffer = lsi_pool_take(&ddp->units.pool, bytes);
    return g->buffer ? LS_OK : lsi_pool_grow(&ddp->units.pool, bytes, &g->buffer);
}

/* Of a shard in a file: this rank's slice of the bucket is in memory while it is gathered. */
static ls_status read_slice(ls_ddp *ddp, int index) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    int64_t offset = lsi_ddp_slice_offset(ddp, index, plan->rank);
    int64_t bytes = lsi_shard_counts(plan, index)[plan->rank] * lsi_ddp_value_size(ddp, index);
    if (!ddp->units.spill) return LS_OK;
    lsi_spill_will_need(ddp->units.spill, offset, bytes);
    return lsi_spill_await(ddp->units.spill, offset, bytes, false);
}

static ls_status drop_slice(ls_ddp *ddp, int index) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    int64_t bytes = lsi_shard_counts(plan, index)[plan->rank] * lsi_ddp_value_size(ddp, index);
    return lsi_spill_is_done(ddp->units.spill, lsi_ddp_slice_offset(ddp, index, plan->rank), bytes,
                             false);
}

static ls_status gather_slices(ls_ddp *ddp, int index) {
    lsi_gathered *g = &ddp->units.gathered[index];
    LSI_TRY(read_slice(ddp, index));
    return ls_all_gather_v(ddp->shard_group, my_slice(ddp, index), g->buffer->at,
                           lsi_shard_counts(&ddp->states.plan, index),
                           ddp->plan.buckets[index].value_dtype, &g->work);
}

/* Unless it is there already, or on its way. */
static ls_status ask_for(ls_ddp *ddp, int index) {
    lsi_gathered *g = &ddp->units.gathered[index];
    if (g->buffer) return LS_OK;
    LSI_TRY(lsi_ddp_of_bucket(ddp, index, take_buffer(ddp, index)));
    g->n_gathers += ddp->state != IDLE;
    /* Units are often of one size: without a tag, ranks that use different ones would not notice.
     */
    bool by_parts = lsi_ddp_has_part(ddp, index);
    ls_group *group = by_parts ? ddp->units.parts.group : ddp->shard_group;
    lsi_group_tag(group, (uint32_t)index + 1);
    ls_status status = by_parts ? lsi_ddp_gather_parts(ddp, index) : gather_slices(ddp, index);
    lsi_group_tag(group, 0);
    return lsi_ddp_of_bucket(ddp, index, status);
}

static void point_params(ls_ddp *ddp, int index, unsigned char *at) {
    const lsi_bucket *bucket = &ddp->plan.buckets[index];
    for (int k = bucket->first; k < bucket->first + bucket->n_params; k++)
        ddp->params[ddp->plan.sequence[k]].data =
            at ? at + ddp->plan.offsets[k] * lsi_ddp_value_size(ddp, index) : NULL;
}

/* [Note: peers' pages] A gather reads the peers' slices in shared memory, and pages that are read
 * count as this process's. It lets go of them, or it would seem to have the whole model. */
static ls_status forget_slices(ls_ddp *ddp, int index) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    if (ddp->units.spill) return lsi_ddp_of_bucket(ddp, index, drop_slice(ddp, index));
    for (int r = 0; r < plan->n_ranks; r++) {
        if (r == plan->rank) continue;
        int64_t bytes = lsi_shard_counts(plan, index)[r] * lsi_ddp_value_size(ddp, index);
        lsi_forget_pages(ddp->units.shard_of[r] + lsi_ddp_slice_offset(ddp, index, r),
                         (size_t)bytes);
    }
    return LS_OK;
}

static ls_status await(ls_ddp *ddp, int index) {
    lsi_gathered *g = &ddp->units.gathered[index];
    ls_work *work = g->work;
    g->work = NULL;
    if (work) LSI_TRY(lsi_ddp_of_bucket(ddp, index, ls_work_wait(work, -1)));
    if (work && lsi_ddp_has_part(ddp, index))
        lsi_ddp_drop_part(ddp, index);
    else if (work)
        LSI_TRY(forget_slices(ddp, index));
    point_params(ddp, index, g->buffer->at);
    return LS_OK;
}

ls_status lsi_ddp_gather_bucket(ls_ddp *ddp, int index) {
    LSI_TRY(ask_for(ddp, index));
    return await(ddp, index);
}

void lsi_ddp_give_up_bucket(ls_ddp *ddp, int index) {
    lsi_gathered *g = &ddp->units.gathered[index];
    point_params(ddp, index, NULL);
    lsi_pool_give(&ddp->units.pool, g->buffer);
    g->buffer = NULL;
}

/* ---- units ---- */

static bool fits(const ls_ddp *ddp, int index) {
    double limit_bytes = ddp->opts.gather_limit_mb * 1024 * 1024;
    int64_t together = ddp->units.pool.taken_bytes + value_bytes(ddp, index);
    return limit_bytes == 0 || (double)together <= limit_bytes;
}

/* Stops at the first bucket for which there is no room, so that none is overtaken. */
static ls_status ask_ahead(ls_ddp *ddp, int unit, lsi_pass pass) {
    int n_ahead = ddp->opts.prefetch == 0 ? 1 : ddp->opts.prefetch;
    int direction = pass == LSI_FORWARD ? 1 : -1;
    if (n_ahead > ddp->units.plan.n_units) n_ahead = ddp->units.plan.n_units;
    for (int k = 1; k <= n_ahead; k++)
        for (int b = 0; b < ddp->plan.n_held; b++) {
            if (!lsi_unit_reads(&ddp->units.plan, unit + k * direction, b, pass)) continue;
            if (ddp->units.gathered[b].buffer) continue;
            if (!fits(ddp, b)) return LS_OK;
            LSI_TRY(ask_for(ddp, b));
        }
    return LS_OK;
}

static ls_status gather_unit(ls_ddp *ddp, int unit, lsi_pass pass) {
    const lsi_unit_plan *plan = &ddp->units.plan;
    for (int b = 0; b < ddp->plan.n_held; b++)
        if (lsi_unit_reads(plan, unit, b, pass)) LSI_TRY(ask_for(ddp, b));
    LSI_TRY(ask_ahead(ddp, unit, pass));
    for (int b = 0; b < ddp->plan.n_held; b++)
        if (lsi_unit_reads(plan, unit, b, pass)) LSI_TRY(await(ddp, b));
    return LS_OK;
}

/* Parts are of use where backward reads the bucket. */
static void give_up_behind_forward(ls_ddp *ddp, int unit) {
    const lsi_unit_plan *plan = &ddp->units.plan;
    bool turns = ddp->state != IDLE, keeps_parts = turns && ddp->units.parts.group;
    const lsi_reshard how = {ddp->opts.reshard_after_forward == LS_RESHARD_NO, turns};
    for (int b = 0; b < ddp->plan.n_held; b++) {
        if (!lsi_unit_reads(plan, unit, b, LSI_FORWARD)) continue;
        if (lsi_unit_plan_keeps(plan, unit, b, how)) continue;
        if (keeps_parts && lsi_unit_plan_reads_again(plan, b)) lsi_ddp_keep_part(ddp, b);
        lsi_ddp_give_up_bucket(ddp, b);
    }
}

static void give_up_behind_backward(ls_ddp *ddp, int unit) {
    const lsi_unit_plan *plan = &ddp->units.plan;
    for (int b = 0; b < ddp->plan.n_held; b++)
        if (lsi_unit_reads(plan, unit, b, LSI_BACKWARD) &&
            !lsi_unit_reads(plan, unit - 1, b, LSI_BACKWARD))
            lsi_ddp_give_up_bucket(ddp, b);
}

/* ---- events ---- */

static ls_status check_unit(const ls_ddp *ddp, int unit, bool is_backward, const char *call) {
    if (ddp->state == FAILED || (is_backward && ddp->state != BACKWARD))
        return lsi_fail(LS_ERR_STATE, "%s: unit %d: %s", call, unit,
                        ddp->state == FAILED ? "an earlier call failed"
                                             : "no backward pass is open");
    if (unit >= 0 && unit < ddp->units.plan.n_units) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT, "%s: unit %d, expected 0 to %d, as opts.uses says", call, unit,
                    ddp->units.plan.n_units - 1);
}

/* What a unit computes with must be there, not only asked for ahead. */
static ls_status check_there(const ls_ddp *ddp, int unit, lsi_pass pass, const char *call) {
    for (int b = 0; b < ddp->plan.n_held; b++) {
        const lsi_gathered *g = &ddp->units.gathered[b];
        if (lsi_unit_reads(&ddp->units.plan, unit, b, pass) && (!g->buffer || g->work))
            return lsi_fail(LS_ERR_STATE, "%s: unit %d was not gathered; call it in pairs", call,
                            unit);
    }
    return LS_OK;
}

static ls_status fail_pass(ls_ddp *ddp, ls_status status) {
    if (status != LS_OK) ddp->state = FAILED;
    return status;
}

ls_status ls_ddp_before_forward(ls_ddp *ddp, int unit) {
    if (!lsi_ddp_gathers(ddp)) return fail_pass(ddp, lsi_ddp_await_unit(ddp, unit));
    LSI_TRY(check_unit(ddp, unit, false, "ls_ddp_before_forward"));
    return fail_pass(ddp, gather_unit(ddp, unit, LSI_FORWARD));
}

ls_status ls_ddp_after_forward(ls_ddp *ddp, int unit) {
    if (!lsi_ddp_gathers(ddp)) return LS_OK;
    LSI_TRY(check_unit(ddp, unit, false, "ls_ddp_after_forward"));
    LSI_TRY(check_there(ddp, unit, LSI_FORWARD, "ls_ddp_after_forward"));
    give_up_behind_forward(ddp, unit);
    return LS_OK;
}

ls_status ls_ddp_before_backward(ls_ddp *ddp, int unit) {
    if (!lsi_ddp_gathers(ddp)) return LS_OK;
    LSI_TRY(check_unit(ddp, unit, true, "ls_ddp_before_backward"));
    return fail_pass(ddp, gather_unit(ddp, unit, LSI_BACKWARD));
}

ls_status ls_ddp_after_backward(ls_ddp *ddp, int unit) {
    if (!lsi_ddp_gathers(ddp)) return LS_OK;
    LSI_TRY(check_unit(ddp, unit, true, "ls_ddp_after_backward"));
    LSI_TRY(check_there(ddp, unit, LSI_BACKWARD, "ls_ddp_after_backward"));
    give_up_behind_backward(ddp, unit);
    return fail_pass(ddp, lsi_ddp_post_unit(ddp, unit));
}

/* ---- life ---- */

ls_status lsi_ddp_plan_units(ls_ddp *ddp) {
    return lsi_context(lsi_unit_plan_create(ddp->params, ddp->n_params, ddp->opts.uses,
                                            ddp->opts.n_uses, ddp->opts.persist_below,
                                            &ddp->units.plan),
                       "ddp options");
}

/* Where everybody's slices lie; returns the bytes of this rank's. */
static int64_t lay_out_slices(ls_ddp *ddp) {
    enum { LINE_BYTES = 64 };
    const lsi_shard_plan *plan = &ddp->states.plan;
    int64_t bytes[LSI_MAX_RANKS] = {0};
    for (int b = 0; b < ddp->plan.n_held; b++)
        for (int r = 0; r < plan->n_ranks; r++) {
            int64_t slice_bytes = lsi_shard_counts(plan, b)[r] * lsi_ddp_value_size(ddp, b);
            ddp->units.slice_at[(int64_t)b * plan->n_ranks + r] = bytes[r];
            bytes[r] += (slice_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
        }
    return bytes[plan->rank];
}

static ls_status find_peers(ls_ddp *ddp) {
    uint64_t mine, all[LSI_MAX_RANKS];
    lsi_region *region = lsi_group_region(ddp->group);
    mine = lsi_region_offset(region, ddp->units.shard, (size_t)ddp->units.shard_bytes);
    LSI_TRY(ls_all_gather(ddp->shard_group, &mine, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 0; r < ddp->states.plan.n_ranks; r++)
        ddp->units.shard_of[r] = region->base + all[r];
    return LS_OK;
}

static ls_status take_file(ls_ddp *ddp) {
    lsi_units *u = &ddp->units;
    LSI_TRY(lsi_context(lsi_spill_create(ddp->opts.offload_dir, u->shard_bytes, &u->spill),
                        "ddp: offloaded parameters"));
    u->shard = lsi_spill_at(u->spill, 0);
    return LS_OK;
}

static ls_status take_shard(ls_ddp *ddp) {
    lsi_units *u = &ddp->units;
    void *shard = NULL;
    u->shard_bytes = lay_out_slices(ddp);
    if (ddp->opts.offload == LS_OFFLOAD_PARAMS) return take_file(ddp);
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)u->shard_bytes, &shard));
    u->shard = shard;
    lsi_mem_note(LSI_MEM_PARAMS, u->shard_bytes);
    return find_peers(ddp);
}

ls_status lsi_ddp_shard_values(ls_ddp *ddp) {
    lsi_units *u = &ddp->units;
    size_t n = (size_t)ddp->plan.n_held, n_ranks = (size_t)ddp->states.plan.n_ranks;
    u->slice_at = lsi_calloc(LSI_MEM_OTHER, n * n_ranks, sizeof *u->slice_at);
    u->gathered = lsi_calloc(LSI_MEM_OTHER, n, sizeof *u->gathered);
    u->shard_of = lsi_calloc(LSI_MEM_OTHER, n_ranks, sizeof *u->shard_of);
    if (!u->slice_at || !u->gathered || !u->shard_of) return LS_ERR_MEMORY;
    LSI_TRY(lsi_ddp_make_parts(ddp));
    LSI_TRY(take_shard(ddp));
    LSI_TRY(lsi_pool_create(ddp->group, LSI_MEM_GATHERED, 1, ddp->plan.n_held, &u->pool));
    LSI_TRY(lsi_ddp_fill_pieces(ddp));
    for (int b = 0; b < ddp->plan.n_held; b++) point_params(ddp, b, NULL);
    LSI_TRY(lsi_ddp_renew_units(ddp));
    ddp->values.is_there = true;
    return LS_OK;
}

/* What is here, on its way, or was kept in parts by a unit that backward left out. */
static ls_status drop(ls_ddp *ddp, int index) {
    lsi_gathered *g = &ddp->units.gathered[index];
    if (g->work) LSI_TRY(await(ddp, index));
    if (lsi_ddp_has_part(ddp, index)) lsi_ddp_drop_part(ddp, index);
    if (g->buffer) lsi_ddp_give_up_bucket(ddp, index);
    return LS_OK;
}

/* What is frozen and persists is there for good. */
ls_status lsi_ddp_renew_units(ls_ddp *ddp) {
    const lsi_units *u = &ddp->units;
    if (u->spill)
        LSI_TRY(lsi_context(lsi_spill_is_done(u->spill, 0, u->shard_bytes, true),
                            "ddp: offloaded parameters"));
    for (int b = 0; b < ddp->plan.n_held; b++) {
        if (persists(ddp, b) && b >= ddp->plan.n_buckets && u->gathered[b].buffer) continue;
        LSI_TRY(drop(ddp, b));
        if (persists(ddp, b)) LSI_TRY(lsi_ddp_gather_bucket(ddp, b));
    }
    return LS_OK;
}

void lsi_ddp_free_units(ls_ddp *ddp) {
    lsi_units *u = &ddp->units;
    lsi_pool_fini(&u->pool, ddp->leaves_memory);
    lsi_ddp_free_parts(ddp);
    if (!u->spill && u->shard) {
        lsi_ddp_free_shared(ddp, u->shard);
        lsi_mem_note(LSI_MEM_PARAMS, -u->shard_bytes);
    }
    if (ddp->leaves_file)
        lsi_spill_abandon(u->spill);
    else
        lsi_spill_destroy(u->spill);
    lsi_free(u->slice_at);
    lsi_free(u->gathered);
    lsi_free(u->shard_of);
    lsi_unit_plan_fini(&u->plan);
    *u = (lsi_units){.shard = NULL};
}
