/* Where gradients lie. Of ddp and zero1: one block for all buckets, for good. Of zero2: a buffer
 * for a bucket from the moment its first gradient is asked for until its sum is in the shards, so
 * that a rank has its shard and the few buckets that are being filled or sent.
 *
 * [Note: buffers] All buffers have the size of the largest bucket, but only memory that is touched
 * exists. A bucket takes the free buffer that has been touched least among those touched enough, or
 * else the one touched most. Where more than MOST_IN_FLIGHT buckets are on their way and no buffer
 * is free, the oldest is waited for, not another buffer made. */
#include <string.h>

#include "base/mem.h"
#include "parallel/ddp_impl.h"

enum { MOST_IN_FLIGHT = 2 };

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

static ls_status take_shard(ls_ddp *ddp) {
    lsi_grads *g = &ddp->grads;
    const lsi_shard_plan *plan = &ddp->states.plan;
    size_t n = (size_t)ddp->plan.n_buckets;
    int64_t n_elems = 0;
    void *shard = NULL;
    g->slices = lsi_calloc(LSI_MEM_OTHER, n, sizeof *g->slices);
    g->buffers = lsi_calloc(LSI_MEM_OTHER, n, sizeof *g->buffers);
    if (!g->slices || !g->buffers) return LS_ERR_MEMORY;
    for (int b = 0; b < ddp->plan.n_buckets; b++) {
        int64_t count = lsi_shard_counts(plan, b)[plan->rank];
        int64_t bytes = ddp->plan.buckets[b].count * (int64_t)sizeof(float);
        g->slices[b] = (lsi_bucket){.offset_bytes = n_elems * (int64_t)sizeof(float),
                                    .count = count,
                                    .dtype = LS_DTYPE_F32};
        n_elems += count;
        if (bytes > g->buffer_bytes) g->buffer_bytes = bytes;
    }
    g->shard_bytes = n_elems * (int64_t)sizeof(float);
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)g->shard_bytes, &shard));
    g->shard = shard;
    ddp->noted_bytes[0] = g->shard_bytes;
    return LS_OK;
}

ls_status lsi_ddp_take_gradients(ls_ddp *ddp) {
    LSI_TRY(lsi_ddp_shards_gradients(ddp) ? take_shard(ddp) : take_block(ddp));
    lsi_mem_note(LSI_MEM_GRADS, ddp->noted_bytes[0]);
    lsi_mem_note(LSI_MEM_BUCKETS, ddp->noted_bytes[1]);
    int64_t bytes = lsi_ddp_shards_gradients(ddp) ? ddp->grads.shard_bytes : ddp->plan.total_bytes;
    lsi_accumulator_init(&ddp->accumulator, bytes);
    return LS_OK;
}

void lsi_ddp_release_gradients(ls_ddp *ddp) {
    lsi_grads *g = &ddp->grads;
    ls_group_free_shared(ddp->group, ddp->gradients);
    ls_group_free_shared(ddp->group, g->shard);
    for (int k = 0; k < g->n_buffers; k++) ls_group_free_shared(ddp->group, g->buffers[k].at);
    lsi_mem_note(LSI_MEM_GRADS, -ddp->noted_bytes[0]);
    lsi_mem_note(LSI_MEM_BUCKETS, -ddp->noted_bytes[1]);
    lsi_accumulator_fini(&ddp->accumulator);
    lsi_free(g->slices);
    lsi_free(g->buffers);
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
    return (float *)(ddp->grads.shard + ddp->grads.slices[bucket].offset_bytes);
}

/* ---- buffers of buckets ---- */

static void note_touched(ls_ddp *ddp, lsi_grad_buffer *buffer, int64_t bytes) {
    if (bytes <= buffer->touched_bytes) return;
    int n_ranks = ls_group_world_size(ddp->group);
    int64_t more = bytes - buffer->touched_bytes;
    int64_t noted = more + more / n_ranks * (n_ranks - 1); /* and of peers' as much */
    buffer->touched_bytes = bytes;
    ddp->noted_bytes[1] += noted;
    lsi_mem_note(LSI_MEM_BUCKETS, noted);
}

static lsi_grad_buffer *find_buffer(ls_ddp *ddp, int64_t bytes) {
    lsi_grad_buffer *best = NULL;
    for (int k = 0; k < ddp->grads.n_buffers; k++) {
        lsi_grad_buffer *b = &ddp->grads.buffers[k];
        if (b->is_taken) continue;
        bool fits = b->touched_bytes >= bytes;
        bool best_fits = best && best->touched_bytes >= bytes;
        if (!best || (fits && !best_fits) ||
            (fits == best_fits && (b->touched_bytes < best->touched_bytes) == fits))
            best = b;
    }
    return best;
}

static ls_status make_buffer(ls_ddp *ddp, lsi_grad_buffer **made) {
    lsi_grads *g = &ddp->grads;
    void *at = NULL;
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)g->buffer_bytes, &at));
    *made = &g->buffers[g->n_buffers++];
    **made = (lsi_grad_buffer){.at = at};
    return LS_OK;
}

static ls_status get_buffer(ls_ddp *ddp, int64_t bytes, lsi_grad_buffer **found) {
    while (!(*found = find_buffer(ddp, bytes))) {
        if (lsi_ddp_n_in_flight(ddp) < MOST_IN_FLIGHT) return make_buffer(ddp, found);
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
    lsi_grad_buffer *buffer = NULL;
    LSI_TRY(lsi_context(get_buffer(ddp, bytes, &buffer), "ddp: memory for bucket %d of %d", index,
                        ddp->plan.n_buckets));
    buffer->is_taken = true;
    note_touched(ddp, buffer, bytes);
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
    ddp->on[index].buffer->is_taken = false;
    ddp->on[index].buffer = NULL;
    bucket->grad = NULL;
}

/* ---- sums of micro-batches ---- */

/* Whether a reduction leaves its result in the shard at once, and not in the bucket. */
bool lsi_ddp_reduces_into_shard(const ls_ddp *ddp) {
    return ddp->opts.reproducible || ddp->next_micro <= 1;
}

void lsi_ddp_retire_bucket(ls_ddp *ddp, int index) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    if (!lsi_ddp_shards_gradients(ddp)) return;
    if (!lsi_ddp_reduces_into_shard(ddp)) {
        const float *sum =
            (float *)ddp->buckets[index].grad + lsi_shard_cut(plan, index, plan->rank);
        float *slice = lsi_ddp_slice(ddp, index);
        for (int64_t i = 0; i < ddp->grads.slices[index].count; i++) slice[i] += sum[i];
    }
    close_bucket(ddp, index);
}

ls_status lsi_ddp_push_micro(ls_ddp *ddp) {
    if (!ddp->opts.reproducible) return LS_OK;
    if (lsi_ddp_shards_gradients(ddp))
        return lsi_accumulator_push(&ddp->accumulator, ddp->grads.shard, ddp->grads.slices,
                                    ddp->plan.n_buckets);
    return lsi_accumulator_push(&ddp->accumulator, ddp->gradients, ddp->plan.buckets,
                                ddp->plan.n_buckets);
}

/* Sharded gradients of several micro-batches, all of them there: the sum, times the factor. */
void lsi_ddp_finish_shard(ls_ddp *ddp) {
    if (!lsi_ddp_shards_gradients(ddp) || ddp->next_micro <= 1) return;
    for (int b = 0; b < ddp->plan.n_buckets; b++) {
        float *slice = lsi_ddp_slice(ddp, b), scale = (float)ddp->scale;
        if (ddp->opts.reproducible)
            lsi_accumulator_join(&ddp->accumulator, ddp->grads.shard, &ddp->grads.slices[b]);
        for (int64_t i = 0; i < ddp->grads.slices[b].count; i++) slice[i] *= scale;
    }
}
