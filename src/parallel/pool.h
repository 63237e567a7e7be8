/* Buffers that come and go: of gradients on their way, of units that are gathered.
 *
 * All buffers have the size of the largest thing that is kept in one, but only memory that was
 * touched exists. Who takes one gets the free buffer that has been touched least among those
 * touched enough, or else the one touched most. They lie in memory that peers can read, and stay
 * until the pool ends. */
#ifndef LSI_PARALLEL_POOL_H
#define LSI_PARALLEL_POOL_H

#include <stdbool.h>

#include <lockstep/group.h>

#include "base/mem.h"

typedef struct lsi_buffer {
    unsigned char *at;
    int64_t bytes;
    int64_t touched_bytes; /* of it that exist */
    int64_t taken_bytes;   /* 0: free */
} lsi_buffer;

typedef struct lsi_pool {
    ls_group *group; /* borrowed */
    lsi_mem_kind kind;
    int n_touching; /* processes that touch as much of their peers' buffers as of their own, or 1 */
    int n_buffers, most_buffers;
    lsi_buffer *buffers;
    int64_t taken_bytes, noted_bytes;
} lsi_pool;

/* n_things: that are to be kept, at most, each in one buffer. */
LS_CHECKED ls_status lsi_pool_create(ls_group *group, lsi_mem_kind kind, int n_touching,
                                     int n_things, lsi_pool *pool);
/* leaves_memory: peers may still use it, so it stays in the region. */
void lsi_pool_fini(lsi_pool *pool, bool leaves_memory);
/* NULL: all buffers of this size that there are are taken. */
lsi_buffer *lsi_pool_take(lsi_pool *pool, int64_t bytes);
/* One more buffer, taken. */
LS_CHECKED ls_status lsi_pool_grow(lsi_pool *pool, int64_t bytes, lsi_buffer **buffer);
void lsi_pool_give(lsi_pool *pool, lsi_buffer *buffer);

#endif
