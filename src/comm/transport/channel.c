/* A ring with two counters that only grow, `written` by the sender and `read` by the receiver: what
 * is in between is in the ring. Both sides ring the other's bell, who may be waiting for bytes or
 * for room. */
#include "comm/transport/channel.h"

#include <string.h>

#include "comm/copy.h"
#include "comm/transport/bell.h"

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static void wake(ls_group *group, int peer) {
    lsi_group_fence(group);
    if (peer != group->rank) lsi_bell_ring(&group->ranks[peer]);
}

size_t lsi_channel_put(ls_group *group, lsi_channel_set set, int to, const void *data,
                       size_t bytes) {
    lsi_channel *channel = lsi_group_channel(group->control, set, group->rank, to);
    uint64_t written = atomic_load_explicit(&channel->written, memory_order_relaxed);
    uint64_t read = atomic_load_explicit(&channel->read, memory_order_acquire);
    bytes = least(bytes, LSI_CHANNEL_BYTES - (size_t)(written - read));
    if (bytes == 0) return 0;
    size_t at = (size_t)(written % LSI_CHANNEL_BYTES);
    size_t first = least(bytes, LSI_CHANNEL_BYTES - at);
    lsi_copy(channel->ring + at, data, first);
    lsi_copy(channel->ring, (const unsigned char *)data + first, bytes - first);
    atomic_store_explicit(&channel->written, written + bytes, memory_order_release);
    wake(group, to);
    return bytes;
}

size_t lsi_channel_get(ls_group *group, lsi_channel_set set, int from, void *data, size_t bytes) {
    lsi_channel *channel = lsi_group_channel(group->control, set, from, group->rank);
    uint64_t read = atomic_load_explicit(&channel->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&channel->written, memory_order_acquire);
    bytes = least(bytes, (size_t)(written - read));
    if (bytes == 0) return 0;
    size_t at = (size_t)(read % LSI_CHANNEL_BYTES);
    size_t first = least(bytes, LSI_CHANNEL_BYTES - at);
    lsi_copy_taking(data, channel->ring + at, first);
    lsi_copy_taking((unsigned char *)data + first, channel->ring, bytes - first);
    atomic_store_explicit(&channel->read, read + bytes, memory_order_release);
    wake(group, from);
    return bytes;
}
