/* Buckets on their way: posted in index order as they become complete, waited for at the end of the
 * step, or where their memory is needed. ddp: an all-reduce each, or as many stages as a hook has.
 * Sharded strategies: a reduce-scatter within the shard group, or all ranks' parts where these are
 * added in the order of micro-batches; the last micro-batch's slice goes over the shard groups, or
 * is used up while it is added (ddp_early.c). */
#include <string.h>

#include "base/clock.h"
#include "base/trace.h"
#include "parallel/ddp_impl.h"
#include "parallel/narrow.h"

void lsi_ddp_begin_exchange(ls_ddp *ddp) {
    for (int b = 0; b < ddp->plan.n_buckets; b++)
        ddp->on[b] = (lsi_bucket_state){.n_waiting = ddp->plan.buckets[b].n_params,
                                        .buffer = ddp->on[b].buffer};
    ddp->n_posted = ddp->n_room = ddp->n_seen_done = 0;
}

static ls_status in_bucket(const ls_ddp *ddp, int index, ls_status status) {
    return lsi_context(status, "ddp: bucket %d of %d", index, ddp->plan.n_buckets);
}

/* ---- waiting ---- */

static void note_done(ls_ddp *ddp, int index) {
    lsi_bucket_state *on = &ddp->on[index];
    on->done_ns = lsi_now_ns();
    const ls_bucket *bucket = &ddp->buckets[index];
    lsi_trace_span_bytes(on->posted_ns, on->done_ns, LSI_TRACE_BUCKET, "bucket", index,
                         bucket->count * (int64_t)ls_dtype_bytes(bucket->dtype));
}

/* A wait releases the work whatever comes of it. */
static ls_status await(ls_ddp *ddp, int index) {
    lsi_bucket_state *on = &ddp->on[index];
    ls_work *work = on->work;
    if (!work) return LS_OK;
    on->work = NULL;
    LSI_TRY(in_bucket(ddp, index, ls_work_wait(work, -1)));
    if (on->done_ns == 0) note_done(ddp, index);
    return ddp->opts.hook ? LS_OK : lsi_ddp_retire_bucket(ddp, index);
}

ls_status lsi_ddp_await_replicate(ls_ddp *ddp, int index) {
    ls_work *work = ddp->on[index].replicate_work;
    ddp->on[index].replicate_work = NULL;
    if (!work) return LS_OK;
    LSI_TRY(in_bucket(ddp, index, ls_work_wait(work, -1)));
    lsi_ddp_forget_replicates(ddp, index);
    return LS_OK;
}

static bool is_over(const ls_work *work) {
    lsi_group_lock(work->group);
    bool is_done = lsi_work_is_done(work);
    lsi_group_unlock(work->group);
    return is_done;
}

ls_status lsi_ddp_make_replicate_room(ls_ddp *ddp, int index) {
    if (index >= MAX_IN_FLIGHT) LSI_TRY(lsi_ddp_await_replicate(ddp, index - MAX_IN_FLIGHT));
    for (int b = 0; b < index; b++) {
        const ls_work *work = ddp->on[b].replicate_work;
        if (work && is_over(work)) LSI_TRY(lsi_ddp_await_replicate(ddp, b));
    }
    return LS_OK;
}

/* Sums of slices over shard groups. */
static ls_status await_replicates(ls_ddp *ddp) {
    for (int b = 0; b < ddp->plan.n_buckets && ddp->replicate_group; b++)
        LSI_TRY(lsi_ddp_await_replicate(ddp, b));
    return LS_OK;
}

int lsi_ddp_n_in_flight(const ls_ddp *ddp) {
    int n = 0;
    for (int b = 0; b < ddp->n_posted; b++) n += ddp->on[b].work != NULL;
    return n;
}

ls_status lsi_ddp_await_oldest(ls_ddp *ddp) {
    for (int b = 0; b < ddp->n_posted; b++)
        if (ddp->on[b].work) return await(ddp, b);
    return LS_OK;
}

/* Room for another work: the group keeps a limited number. */
static ls_status make_room(ls_ddp *ddp) {
    if (ddp->n_posted - ddp->n_room < MAX_IN_FLIGHT) return LS_OK;
    return await(ddp, ddp->n_room++);
}

/* ---- posting ---- */

static ls_status run_hook(ls_ddp *ddp, int index, int stage) {
    const ls_comm_hook *hook = ddp->opts.hook;
    ls_bucket bucket = ddp->buckets[index];
    bucket.scale = ddp->scale;
    bucket.step = ddp->n_steps;
    ls_work *work = NULL;
    LSI_TRY(lsi_context(
        in_bucket(ddp, index, hook->run(hook->context, ddp->group, &bucket, stage, &work)),
        "hook %s", hook->name));
    ddp->on[index].work = work;
    ddp->on[index].is_done = work == NULL;
    return LS_OK;
}

/* Sharded gradients with a hook: every stage that is left of a bucket, and its memory is free. */
static ls_status run_stages(ls_ddp *ddp, int index) {
    for (int stage = 1; !ddp->on[index].is_done; stage++) {
        LSI_TRY(await(ddp, index));
        LSI_TRY(run_hook(ddp, index, stage));
    }
    return lsi_ddp_retire_bucket(ddp, index);
}

/* Sharded gradients: what is over with before the next bucket is posted. Stages of hooks are works
 * too, so what has its turn follows from numbers of buckets alone, the same on every rank. */
static ls_status finish_early(ls_ddp *ddp, int index) {
    if (!lsi_ddp_shards_gradients(ddp)) return LS_OK;
    if (ddp->opts.hook && ddp->opts.no_overlap) return run_stages(ddp, index);
    if (ddp->opts.hook) return index > 0 ? run_stages(ddp, index - 1) : LS_OK;
    if (!ddp->opts.no_overlap) return LS_OK;
    LSI_TRY(await(ddp, index));
    return lsi_ddp_await_replicate(ddp, index);
}

/* The type that a bucket is sent in; its elements are in it afterwards. */
static ls_dtype make_wire(const ls_ddp *ddp, const ls_bucket *bucket) {
    if (!lsi_ddp_narrows(ddp)) return bucket->dtype;
    lsi_narrow_in_place(bucket->grad, bucket->count);
    return LS_DTYPE_BF16;
}

/* Each rank gets its slice of the sum, where it lies or in its shard. */
static ls_status reduce_scatter(ls_ddp *ddp, int index, ls_op op) {
    const ls_bucket *bucket = &ddp->buckets[index];
    const lsi_shard_plan *plan = &ddp->states.plan;
    ls_dtype dtype = make_wire(ddp, bucket);
    int64_t cut_bytes = lsi_shard_cut(plan, index, plan->rank) * (int64_t)ls_dtype_bytes(dtype);
    void *slice = (unsigned char *)bucket->grad + cut_bytes;
    if (lsi_ddp_shards_gradients(ddp) && lsi_ddp_reduces_into_shard(ddp))
        slice = lsi_ddp_slice(ddp, index);
    return ls_reduce_scatter_v(ddp->shard_group, bucket->grad, slice, lsi_shard_counts(plan, index),
                               dtype, op, lsi_ddp_scales_later(ddp) ? 1.0 : ddp->scale,
                               &ddp->on[index].work);
}

/* Each rank gets all ranks' parts of its slice. */
static ls_status exchange_parts(ls_ddp *ddp, int index) {
    const ls_bucket *bucket = &ddp->buckets[index];
    ls_dtype dtype = make_wire(ddp, bucket);
    LSI_TRY(lsi_ddp_open_parts(ddp, index));
    return ls_all_to_all_v(ddp->shard_group, bucket->grad, ddp->on[index].parts->at,
                           lsi_shard_counts(&ddp->states.plan, index), dtype, &ddp->on[index].work);
}

static ls_status post_bucket(ls_ddp *ddp, int index) {
    lsi_bucket_state *on = &ddp->on[index];
    const ls_bucket *bucket = &ddp->buckets[index];
    ls_op op = lsi_ddp_scales_before(ddp) ? LS_OP_PREMUL_SUM : LS_OP_SUM;
    /* Places in the group's order: all-gathers of a loop that says nothing of its units are over.
     */
    if (ddp->n_posted == 0) LSI_TRY(lsi_ddp_await_values(ddp));
    LSI_TRY(make_room(ddp));
    if (ddp->opts.reproducible && ddp->has_data && !lsi_ddp_shards_gradients(ddp))
        lsi_accumulator_join(&ddp->accumulator, ddp->gradients, &ddp->plan.buckets[index]);
    if (ddp->opts.nonfinite != LS_NONFINITE_IGNORE) lsi_ddp_look_for_nonfinite(ddp, bucket);
    on->posted_ns = lsi_now_ns();
    if (ddp->opts.hook)
        LSI_TRY(run_hook(ddp, index, 0));
    else if (lsi_ddp_orders_parts(ddp))
        LSI_TRY(in_bucket(ddp, index, exchange_parts(ddp, index)));
    else if (lsi_ddp_updates_early(ddp))
        LSI_TRY(in_bucket(ddp, index, lsi_ddp_post_early(ddp, index, op)));
    else if (lsi_ddp_is_sharded(ddp))
        LSI_TRY(in_bucket(ddp, index, reduce_scatter(ddp, index, op)));
    else
        LSI_TRY(in_bucket(ddp, index,
                          ls_all_reduce(ddp->group, bucket->grad, bucket->grad, bucket->count,
                                        bucket->dtype, op, ddp->scale, &on->work)));
    ddp->n_posted++;
    return finish_early(ddp, index);
}

ls_status lsi_ddp_post_unit(ls_ddp *ddp, int unit) {
    LSI_TRY(lsi_ddp_pass_the_rest(ddp, unit));
    while (ddp->n_posted < ddp->plan.n_buckets &&
           (unit == 0 || ddp->units.plan.first[ddp->n_posted] >= unit)) {
        bool is_known = false;
        if (ddp->is_last) LSI_TRY(lsi_ddp_know_scale(ddp, true, &is_known));
        LSI_TRY(post_bucket(ddp, ddp->n_posted));
    }
    return LS_OK;
}

ls_status lsi_ddp_post_ready(ls_ddp *ddp, bool all) {
    if (lsi_ddp_gathers(ddp) && !all) return LS_OK;
    while (ddp->n_posted < ddp->plan.n_buckets) {
        bool is_known = false;
        if (!all && ddp->on[ddp->n_posted].n_waiting > 0) return LS_OK;
        if (ddp->is_last) LSI_TRY(lsi_ddp_know_scale(ddp, all, &is_known));
        if (ddp->is_last && !is_known) return LS_OK;
        LSI_TRY(post_bucket(ddp, ddp->n_posted));
    }
    /* Without any bucket nobody has asked yet. */
    bool is_known = false;
    return all && ddp->is_last ? lsi_ddp_know_scale(ddp, true, &is_known) : LS_OK;
}

/* ---- going on ---- */

/* For the timeline: works end in the order in which they were posted. */
static void look_for_done(ls_ddp *ddp) {
    ls_group *group = ddp->opts.hook ? ddp->group : ddp->shard_group;
    lsi_group_lock(group);
    while (ddp->n_seen_done < ddp->n_posted) {
        lsi_bucket_state *on = &ddp->on[ddp->n_seen_done];
        if (on->work && !lsi_work_is_done(on->work)) break;
        if (on->done_ns == 0) note_done(ddp, ddp->n_seen_done);
        ddp->n_seen_done++;
    }
    lsi_group_unlock(group);
}

static ls_status progress_groups(ls_ddp *ddp) {
    ls_group *groups[] = {ddp->group, ddp->shard_group != ddp->group ? ddp->shard_group : NULL,
                          ddp->replicate_group, ddp->units.parts.group};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (groups[i]) LSI_TRY(ls_group_progress(groups[i]));
    return LS_OK;
}

ls_status lsi_ddp_progress(ls_ddp *ddp) {
    if (ddp->state == FAILED) return LS_OK;
    LSI_TRY(progress_groups(ddp));
    if (!lsi_ddp_exchanges(ddp) || ddp->state == IDLE) return LS_OK;
    look_for_done(ddp);
    if (!lsi_ddp_posts_early(ddp) || ddp->state != BACKWARD) return LS_OK;
    return lsi_ddp_post_ready(ddp, false);
}

/* All buckets take the next stage, in index order. */
static ls_status run_stage(ls_ddp *ddp, int stage, bool *is_last) {
    int n_in_flight = 0, oldest = 0, n = ddp->plan.n_buckets;
    *is_last = true;
    /* Works keep their places in the group's order, which must not be needed again meanwhile. */
    for (int b = 0; b < n && n > MAX_IN_FLIGHT; b++) LSI_TRY(await(ddp, b));
    for (int b = 0; b < n; b++) {
        if (ddp->on[b].is_done) continue;
        LSI_TRY(await(ddp, b));
        for (; n_in_flight >= MAX_IN_FLIGHT / 2; oldest++)
            if (ddp->on[oldest].work) {
                LSI_TRY(await(ddp, oldest));
                n_in_flight--;
            }
        LSI_TRY(run_hook(ddp, b, stage));
        if (ddp->on[b].is_done) continue;
        ddp->on[b].done_ns = 0;
        n_in_flight++;
        *is_last = false;
    }
    return LS_OK;
}

/* All stages of all buckets. */
static ls_status await_hook(ls_ddp *ddp) {
    bool is_last = false;
    /* A place in the group's order is free again only when its work was waited for, and the stages
     * of many buckets may come round to the verdict's. */
    LSI_TRY(lsi_ddp_await_verdict(ddp));
    if (!lsi_ddp_shards_gradients(ddp)) {
        for (int stage = 1; !is_last; stage++) LSI_TRY(run_stage(ddp, stage, &is_last));
        return LS_OK;
    }
    for (int b = 0; b < ddp->plan.n_buckets; b++)
        if (ddp->on[b].buffer) LSI_TRY(run_stages(ddp, b));
    return LS_OK;
}

ls_status lsi_ddp_await_buckets(ls_ddp *ddp) {
    if (ddp->opts.hook) return await_hook(ddp);
    for (int b = 0; b < ddp->plan.n_buckets; b++) LSI_TRY(await(ddp, b));
    return await_replicates(ddp);
}
