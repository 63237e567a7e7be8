/* Which buffer is taken, and what the account says about it. */
#include "parallel/pool.h"

ls_status lsi_pool_create(ls_group *group, lsi_mem_kind kind, int n_touching, int n_things,
                          lsi_pool *pool) {
    *pool = (lsi_pool){.group = group,
                       .kind = kind,
                       .n_touching = n_touching,
                       .most_buffers = 2 * n_things}; /* some are too small */
    pool->buffers = lsi_calloc(LSI_MEM_OTHER, (size_t)pool->most_buffers, sizeof *pool->buffers);
    return lsi_check_alloc(pool->buffers);
}

void lsi_pool_fini(lsi_pool *pool, bool leaves_memory) {
    for (int k = 0; k < pool->n_buffers && !leaves_memory; k++)
        ls_group_free_shared(pool->group, pool->buffers[k].at);
    lsi_mem_note(pool->kind, -pool->noted_bytes);
    lsi_free(pool->buffers);
    *pool = (lsi_pool){.buffers = NULL};
}

static void note_touched(lsi_pool *pool, lsi_buffer *buffer, int64_t bytes) {
    if (bytes <= buffer->touched_bytes) return;
    int64_t more = bytes - buffer->touched_bytes;
    int64_t noted = more + more / pool->n_touching * (pool->n_touching - 1);
    buffer->touched_bytes = bytes;
    pool->noted_bytes += noted;
    lsi_mem_note(pool->kind, noted);
}

static lsi_buffer *take(lsi_pool *pool, lsi_buffer *buffer, int64_t bytes) {
    note_touched(pool, buffer, bytes);
    buffer->taken_bytes = bytes > 0 ? bytes : 1;
    pool->taken_bytes += buffer->taken_bytes;
    return buffer;
}

/* Whether a is the better one for so many bytes. */
static bool fits_better(const lsi_buffer *a, const lsi_buffer *b, int64_t bytes) {
    bool a_fits = a->touched_bytes >= bytes, b_fits = b->touched_bytes >= bytes;
    if (a_fits != b_fits) return a_fits;
    return (a->touched_bytes < b->touched_bytes) == a_fits;
}

lsi_buffer *lsi_pool_take(lsi_pool *pool, int64_t bytes) {
    lsi_buffer *best = NULL;
    for (int k = 0; k < pool->n_buffers; k++) {
        lsi_buffer *b = &pool->buffers[k];
        if (b->taken_bytes == 0 && b->bytes >= bytes && (!best || fits_better(b, best, bytes)))
            best = b;
    }
    return best ? take(pool, best, bytes) : NULL;
}

ls_status lsi_pool_grow(lsi_pool *pool, int64_t bytes, lsi_buffer **buffer) {
    void *at = NULL;
    if (pool->n_buffers == pool->most_buffers)
        return lsi_fail(LS_ERR_STATE, "all %d buffers are taken", pool->n_buffers);
    LSI_TRY(ls_group_alloc_shared(pool->group, (size_t)bytes, &at));
    lsi_buffer *made = &pool->buffers[pool->n_buffers++];
    *made = (lsi_buffer){.at = at, .bytes = bytes};
    *buffer = take(pool, made, bytes);
    return LS_OK;
}

void lsi_pool_give(lsi_pool *pool, lsi_buffer *buffer) {
    pool->taken_bytes -= buffer->taken_bytes;
    buffer->taken_bytes = 0;
}
