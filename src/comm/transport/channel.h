/* Bytes from one rank to another of a group, in order, through a ring in shared memory. Each side
 * takes what fits and comes again; nothing here waits. */
#ifndef LSI_COMM_CHANNEL_H
#define LSI_COMM_CHANNEL_H

#include "comm/group.h"

/* Puts as much of [data, data + bytes) as fits; returns how much. */
size_t lsi_channel_put(ls_group *group, lsi_channel_set set, int to, const void *data,
                       size_t bytes);
/* Takes up to `bytes` of what has come; returns how much. */
size_t lsi_channel_get(ls_group *group, lsi_channel_set set, int from, void *data, size_t bytes);

#endif
