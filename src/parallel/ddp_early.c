/* The update in the backward pass (opts.update_in_backward): each rank adds its slice of a bucket
 * block by block and hands each block to AdamW, so the sum is in no memory, and that of the bucket
 * is free afterwards.
 *
 *     begin_step   plan_update   backward: bucket by bucket, sum of a block -> AdamW   finish_step
 *
 * [Note: early update] It is made by whoever moves the bucket's reduction on, perhaps the group's
 * thread while the backward pass computes. So all that it needs is there before the bucket is
 * posted, and it writes nothing but this rank's elements of the bucket (values and their states)
 * and the bucket's lsi_early_bucket, which is looked at when the work is over.
 *
 * Parameters are one copy. A rank's slice of a bucket is updated when all ranks have posted it,
 * each behind its own last use of the bucket's parameters; so nobody who says that a gradient is
 * ready may read the parameter after it. The reduction is a direct call, over on a rank only when
 * all have done their parts: who has waited for all buckets may read all parameters, without a
 * barrier. A step that fails half-way leaves some elements of it and some of the one before, and
 * the ddp FAILED. */
#include "base/mem.h"
#include "parallel/ddp_impl.h"

const char lsi_ddp_no_skip[] =
    "parameters are updated before it is known whether all gradients are finite, so no step can be "
    "left out; take LS_NONFINITE_STOP";

/* ---- life ---- */

ls_status lsi_ddp_prepare_early(ls_ddp *ddp) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    lsi_early_bucket *list = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->plan.n_buckets, sizeof *list);
    LSI_TRY(lsi_check_alloc(list));
    for (int b = 0, k = 0; b < ddp->plan.n_buckets; b++) {
        list[b] = (lsi_early_bucket){
            .ddp = ddp, .first_piece = k, .cut = lsi_shard_cut(plan, b, plan->rank)};
        while (k < plan->n_pieces && ddp->plan.bucket_of[plan->pieces[k].param] == b) k++;
        list[b].end_piece = k;
    }
    ddp->early.buckets = list;
    return LS_OK;
}

void lsi_ddp_end_early(ls_ddp *ddp) {
    for (int b = 0; b < ddp->plan.n_buckets && ddp->early.buckets; b++)
        lsi_group_drop_sink(ddp->group, &ddp->early.buckets[b]);
    lsi_free(ddp->early.buckets);
    ddp->early.buckets = NULL;
}

/* ---- a step ---- */

ls_status lsi_ddp_set_early(ls_ddp *ddp, const ls_adamw_opts *opts) {
    LSI_TRY(lsi_ddp_make_states(ddp));
    ddp->early.opts = *opts;
    ddp->early.is_planned = true;
    return LS_OK;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Some elements of one parameter. */
static void update(lsi_early_bucket *b, const lsi_piece *part, const float *sum) {
    lsi_state_view states = lsi_ddp_view_states(b->ddp, part->state);
    bool looks = b->ddp->opts.nonfinite != LS_NONFINITE_IGNORE && b->first_nonfinite < 0;
    if (looks && lsi_has_nonfinite_f32(sum, part->count)) b->first_nonfinite = part->param;
    lsi_ddp_update_elements(b->ddp, part, sum, &states, &b->ddp->early.opts);
}

/* lsi_sink_fn: elements [at, at + count) of this rank's slice, what lies between parameters
 * included. */
static void take_sum(void *context, int64_t at, const float *sum, int64_t count) {
    lsi_early_bucket *b = context;
    const lsi_shard_plan *plan = &b->ddp->states.plan;
    int64_t begin = b->cut + at, end = begin + count;
    for (; b->next_piece < b->end_piece; b->next_piece++) {
        const lsi_piece *piece = &plan->pieces[b->next_piece];
        int64_t place = b->ddp->plan.offset_of[piece->param] + piece->begin; /* in the bucket */
        int64_t first = larger(place, begin), last = smaller(place + piece->count, end);
        if (first < last) {
            const lsi_piece part = {.param = piece->param,
                                    .begin = piece->begin + (first - place),
                                    .count = last - first,
                                    .state = piece->state + (first - place)};
            update(b, &part, sum + (first - begin));
        }
        if (place + piece->count > end) return; /* the next block goes on with it */
    }
}

ls_status lsi_ddp_post_early(ls_ddp *ddp, int index, ls_op op) {
    lsi_early_bucket *b = &ddp->early.buckets[index];
    b->next_piece = b->first_piece;
    b->first_nonfinite = -1;
    for (int k = b->first_piece; k < b->end_piece; k++)
        ddp->states.n_updates[ddp->states.plan.pieces[k].param]++;
    return lsi_reduce_scatter_into(ddp->group, ddp->buckets[index].grad,
                                   lsi_shard_counts(&ddp->states.plan, index), op, ddp->scale,
                                   (lsi_sink){take_sum, b}, &ddp->on[index].work);
}

int lsi_ddp_early_nonfinite(const ls_ddp *ddp) {
    for (int b = 0; b < ddp->plan.n_buckets; b++)
        if (ddp->early.buckets[b].first_nonfinite >= 0)
            return ddp->early.buckets[b].first_nonfinite;
    return -1;
}
