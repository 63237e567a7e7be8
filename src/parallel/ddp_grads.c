/* Where gradients lie. Of ddp and zero1: one block for all buckets, for good. Of zero2: a buffer
 * for a bucket from the moment its first gradient is asked for until its sum is in the shards, so
 * that a rank has its shard and the few buckets that are being filled or sent. Where MOST_SENDING
 * of them are on their way and no buffer is free, the oldest is waited for, not another buffer
 * made. Where sums are used up while they are made (ddp_early.c) there is no shard. */
#include <string.h>

#include "base/mem.h"
#include "comm/transport/control.h"
#include "parallel/ddp_impl.h"
#include "parallel/narrow.h"

enum { MOST_SENDING = 2 };

/* ---- the block, or the shard ---- */

static ls_status take_block(ls_ddp *ddp) {
    void *block = NULL;
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)ddp->plan.total_bytes, &block));
    ddp->gradients = block;
    /* A reduction makes this process touch its slice of every peer's buckets as well. */
    int n_ranks = ls_group_world_size(ddp->group);
    ddp->noted_bytes[0] = ddp->plan.total_bytes;
    ddp->noted_bytes[1] = ddp->plan.total_bytes / n_ranks * (n_ranks - 1);
    return LS_OK;
}

static ls_status take_pools(ls_ddp *ddp) {
    lsi_grads *g = &ddp->grads;
    int n = ddp->plan.n_buckets;
    LSI_TRY(lsi_pool_create(ddp->group, LSI_MEM_STAGING, 1, n, &g->parts));
    /* A reduction touches as much of peers' buffers. */
    return lsi_pool_create(ddp->group, LSI_MEM_BUCKETS, ddp->states.plan.n_ranks, n, &g->pool);
}

static ls_status find_replicates(ls_ddp *ddp, size_t bytes) {
    uint64_t mine, all[LSI_MAX_RANKS];
    if (!ddp->replicate_group) return LS_OK;
    int n = ls_group_world_size(ddp->replicate_group);
    lsi_region *region = lsi_group_region(ddp->group);
    ddp->grads.replicates = lsi_calloc(LSI_MEM_OTHER, (size_t)n, sizeof *ddp->grads.replicates);
    LSI_TRY(lsi_check_alloc(ddp->grads.replicates));
    mine = lsi_region_offset(region, ddp->grads.shard, bytes);
    LSI_TRY(ls_all_gather(ddp->replicate_group, &mine, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 0; r < n; r++) ddp->grads.replicates[r] = (float *)(void *)(region->base + all[r]);
    return LS_OK;
}

static ls_status take_shard(ls_ddp *ddp) {
    lsi_grads *g = &ddp->grads;
    const lsi_shard_plan *plan = &ddp->states.plan;
    int64_t n_elems = 0;
    void *shard = NULL;
    g->slices = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->plan.n_buckets, sizeof *g->slices);
    LSI_TRY(lsi_check_alloc(g->slices));
    for (int b = 0; b < ddp->plan.n_buckets; b++) {
        g->slices[b] = (lsi_slice){n_elems, lsi_shard_counts(plan, b)[plan->rank]};
        n_elems += g->slices[b].count;
    }
    int64_t bytes = n_elems * (int64_t)sizeof *g->shard;
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)bytes, &shard));
    g->shard = shard;
    lsi_counter_init(&g->counter, n_elems);
    LSI_TRY(find_replicates(ddp, (size_t)bytes));
    LSI_TRY(take_pools(ddp));
    ddp->noted_bytes[0] = bytes; /* which are noted now, since nothing fails any more */
    return LS_OK;
}

static ls_status take_memory(ls_ddp *ddp) {
    if (!lsi_ddp_shards_gradients(ddp)) return take_block(ddp);
    return lsi_ddp_updates_early(ddp) ? take_pools(ddp) : take_shard(ddp);
}

ls_status lsi_ddp_take_gradients(ls_ddp *ddp) {
    LSI_TRY(take_memory(ddp));
    lsi_mem_note(LSI_MEM_GRADS, ddp->noted_bytes[0]);
    lsi_mem_note(LSI_MEM_BUCKETS, ddp->noted_bytes[1]);
    lsi_accumulator_init(&ddp->accumulator, ddp->plan.total_bytes);
    return LS_OK;
}

void lsi_ddp_release_gradients(ls_ddp *ddp) {
    lsi_grads *g = &ddp->grads;
    lsi_ddp_free_shared(ddp, ddp->gradients);
    lsi_ddp_free_shared(ddp, g->shard);
    lsi_pool_fini(&g->pool, ddp->leaves_memory);
    lsi_pool_fini(&g->parts, ddp->leaves_memory);
    lsi_counter_fini(&g->counter);
    lsi_mem_note(LSI_MEM_GRADS, -ddp->noted_bytes[0]);
    lsi_mem_note(LSI_MEM_BUCKETS, -ddp->noted_bytes[1]);
    lsi_accumulator_fini(&ddp->accumulator);
    lsi_free(g->slices);
    lsi_free(g->replicates);
    *g = (lsi_grads){.shard = NULL};
}

/* ---- places ---- */

void *lsi_ddp_place(const ls_ddp *ddp, int index) {
    const ls_bucket *bucket = &ddp->buckets[ddp->plan.bucket_of[index]];
    if (!bucket->grad) return NULL;
    return (unsigned char *)bucket->grad +
           ddp->plan.offset_of[index] * (int64_t)ls_dtype_bytes(bucket->dtype);
}

size_t lsi_ddp_grad_bytes(const ls_ddp *ddp, int index) {
    const ls_param *param = &ddp->params[index];
    return (size_t)param->count * ls_dtype_bytes(ls_grad_dtype(param->dtype));
}

void lsi_ddp_place_gradients(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        ddp->params[i].grad = lsi_ddp_is_frozen(ddp, i) ? NULL : lsi_ddp_place(ddp, i);
}

bool lsi_ddp_has_gradient(const ls_ddp *ddp, int index) {
    return !lsi_ddp_is_frozen(ddp, index) &&
           !(lsi_ddp_allows_unused(ddp) && ddp->at[index].is_without_gradient);
}

/* The averaged gradient of one of this rank's pieces. */
const float *lsi_ddp_piece_grad(const ls_ddp *ddp, const lsi_piece *piece) {
    if (!lsi_ddp_has_gradient(ddp, piece->param)) return NULL;
    if (!lsi_ddp_shards_gradients(ddp))
        return (const float *)lsi_ddp_place(ddp, piece->param) + piece->begin;
    int bucket = ddp->plan.bucket_of[piece->param];
    int64_t in_bucket = ddp->plan.offset_of[piece->param] + piece->begin;
    int64_t in_slice = in_bucket - lsi_shard_cut(&ddp->states.plan, bucket, ddp->states.plan.rank);
    return lsi_ddp_slice(ddp, bucket) + in_slice;
}

float *lsi_ddp_slice(const ls_ddp *ddp, int bucket) {
    return ddp->grads.shard + ddp->grads.slices[bucket].begin;
}

/* ---- buffers of buckets ---- */

static ls_status get_buffer(ls_ddp *ddp, int64_t bytes, lsi_buffer **found) {
    while (!(*found = lsi_pool_take(&ddp->grads.pool, bytes))) {
        if (lsi_ddp_n_in_flight(ddp) < MOST_SENDING)
            return lsi_pool_grow(&ddp->grads.pool, bytes, found);
        LSI_TRY(lsi_ddp_await_oldest(ddp));
    }
    return LS_OK;
}

/* What lies between parameters is never read as data, but must not look like a gradient that is not
 * finite, nor make sums slow. */
static void clear_gaps(const ls_ddp *ddp, const ls_bucket *bucket) {
    float *grad = bucket->grad;
    for (int k = 0; k < bucket->n_params; k++) {
        int64_t end = bucket->offsets[k] + ddp->params[bucket->params[k]].count;
        int64_t next = k + 1 < bucket->n_params ? bucket->offsets[k + 1] : bucket->count;
        memset(grad + end, 0, (size_t)(next - end) * sizeof *grad);
    }
}

ls_status lsi_ddp_open_bucket(ls_ddp *ddp, int index) {
    ls_bucket *bucket = &ddp->buckets[index];
    if (bucket->grad) return LS_OK;
    int64_t bytes = bucket->count * (int64_t)sizeof(float);
    lsi_buffer *buffer = NULL;
    LSI_TRY(lsi_context(get_buffer(ddp, bytes, &buffer), "ddp: memory for bucket %d of %d", index,
                        ddp->plan.n_buckets));
    ddp->on[index].buffer = buffer;
    bucket->grad = buffer->at;
    clear_gaps(ddp, bucket);
    for (int k = 0; k < bucket->n_params; k++)
        ddp->params[bucket->params[k]].grad = lsi_ddp_place(ddp, bucket->params[k]);
    return LS_OK;
}

static void close_bucket(ls_ddp *ddp, int index) {
    ls_bucket *bucket = &ddp->buckets[index];
    for (int k = 0; k < bucket->n_params; k++) ddp->params[bucket->params[k]].grad = NULL;
    lsi_pool_give(&ddp->grads.pool, ddp->on[index].buffer);
    ddp->on[index].buffer = NULL;
    bucket->grad = NULL;
}

/* ---- sums of micro-batches ---- */

/* Whether a reduction leaves its result in the shard at once, and not in the bucket. */
bool lsi_ddp_reduces_into_shard(const ls_ddp *ddp) {
    return ddp->next_micro <= 1 && !lsi_ddp_narrows(ddp) && !ddp->opts.hook;
}

bool lsi_ddp_orders_parts(const ls_ddp *ddp) {
    bool is_only = ddp->is_last && ddp->next_micro == 1;
    return lsi_ddp_shards_gradients(ddp) && ddp->opts.reproducible && !is_only;
}

ls_status lsi_ddp_open_parts(ls_ddp *ddp, int index) {
    lsi_grads *g = &ddp->grads;
    int n_ranks = ddp->states.plan.n_ranks;
    int64_t bytes = n_ranks * g->slices[index].count * (int64_t)sizeof(float);
    LSI_TRY(lsi_counter_reserve(&g->counter, ddp->next_micro * n_ranks - ddp->is_last));
    lsi_buffer *buffer = lsi_pool_take(&g->parts, bytes);
    if (!buffer) LSI_TRY(lsi_pool_grow(&g->parts, bytes, &buffer));
    ddp->on[index].parts = buffer;
    return LS_OK;
}

/* Parts of a round of micro-batches, in rank order; the step's last one makes the sum. */
static void add_parts(ls_ddp *ddp, int index) {
    lsi_grads *g = &ddp->grads;
    lsi_slice slice = g->slices[index];
    int64_t n = ddp->states.plan.n_ranks, first = (ddp->next_micro - 1) * n;
    int64_t n_added = ddp->is_last ? n - 1 : n;
    float *part = (float *)ddp->on[index].parts->at;
    if (lsi_ddp_narrows(ddp)) lsi_widen_in_place(part, 0, n * slice.count);
    for (int64_t r = 0; r < n_added; r++, part += slice.count)
        lsi_counter_add(&g->counter, first + r, part, slice.begin, slice.count);
    if (ddp->is_last) {
        lsi_counter_join(&g->counter, first + n - 1, part, slice.begin, slice.count);
        memcpy(g->shard + slice.begin, part, (size_t)slice.count * sizeof *part);
    }
    lsi_pool_give(&g->parts, ddp->on[index].parts);
    ddp->on[index].parts = NULL;
}

bool lsi_ddp_scales_later(const ls_ddp *ddp) {
    if (ddp->opts.hook) return false;
    bool is_part = lsi_ddp_shards_gradients(ddp) && !(ddp->is_last && ddp->next_micro == 1);
    return is_part || ddp->replicate_group;
}

/* This rank's slice of a bucket, where its sum is kept. */
static float *kept_slice(const ls_ddp *ddp, int index) {
    if (lsi_ddp_shards_gradients(ddp)) return lsi_ddp_slice(ddp, index);
    return (float *)ddp->buckets[index].grad +
           lsi_shard_cut(&ddp->states.plan, index, ddp->states.plan.rank);
}

/* The sum of a micro-batch, from the bucket to where it is kept. */
static void keep_sum(ls_ddp *ddp, int index) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    ls_bucket *bucket = &ddp->buckets[index];
    int64_t cut = lsi_shard_cut(plan, index, plan->rank);
    int64_t count = lsi_shard_counts(plan, index)[plan->rank];
    if (lsi_ddp_narrows(ddp)) lsi_widen_in_place(bucket->grad, cut, count);
    if (!lsi_ddp_shards_gradients(ddp)) {
        if (lsi_ddp_narrows(ddp)) clear_gaps(ddp, bucket);
        return;
    }
    if (lsi_ddp_reduces_into_shard(ddp)) return;
    const float *sum = (float *)bucket->grad + cut;
    float *slice = lsi_ddp_slice(ddp, index);
    if (ddp->next_micro <= 1) memcpy(slice, sum, (size_t)count * sizeof *slice);
    for (int64_t i = 0; i < count && ddp->next_micro > 1; i++) slice[i] += sum[i];
}

void lsi_ddp_forget_replicates(const ls_ddp *ddp, int index) {
    if (!ddp->grads.replicates) return;
    lsi_slice slice = ddp->grads.slices[index];
    int rank = ls_group_rank(ddp->replicate_group);
    for (int r = 0; r < ls_group_world_size(ddp->replicate_group); r++)
        if (r != rank)
            lsi_forget_pages(ddp->grads.replicates[r] + slice.begin,
                             (size_t)slice.count * sizeof(float));
}

/* The step's last micro-batch is in the slice: the sum of all, times the factor, and with shard
 * groups over all of them. */
static ls_status complete_slice(ls_ddp *ddp, int index) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    float *slice = kept_slice(ddp, index), scale = (float)ddp->scale;
    int64_t count = lsi_shard_counts(plan, index)[plan->rank];
    if (ddp->replicate_group) LSI_TRY(lsi_ddp_make_replicate_room(ddp, index));
    if (ddp->replicate_group)
        return lsi_context(ls_all_reduce(ddp->replicate_group, slice, slice, count, LS_DTYPE_F32,
                                         LS_OP_SUM, ddp->scale, &ddp->on[index].replicate_work),
                           "ddp: bucket %d over shard groups", index);
    for (int64_t i = 0; i < count; i++) slice[i] *= scale;
    return LS_OK;
}

ls_status lsi_ddp_retire_bucket(ls_ddp *ddp, int index) {
    if (!lsi_ddp_is_sharded(ddp)) return LS_OK;
    if (lsi_ddp_orders_parts(ddp))
        add_parts(ddp, index);
    else if (!lsi_ddp_updates_early(ddp))
        keep_sum(ddp, index);
    if (lsi_ddp_scales_later(ddp) && ddp->is_last) LSI_TRY(complete_slice(ddp, index));
    if (lsi_ddp_shards_gradients(ddp)) close_bucket(ddp, index);
    return LS_OK;
}

ls_status lsi_ddp_push_micro(ls_ddp *ddp) {
    if (!ddp->opts.reproducible || lsi_ddp_shards_gradients(ddp)) return LS_OK;
    return lsi_accumulator_push(&ddp->accumulator, ddp->gradients, ddp->plan.buckets,
                                ddp->plan.n_buckets);
}
