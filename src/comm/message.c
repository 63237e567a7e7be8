/* Sends, receives and batches.
 *
 * A message is a header and the data, through the channel from sender to receiver. Each pair of
 * ranks and direction has a queue of works, the oldest first; only the first of a queue moves, so
 * messages arrive in order. The queues go on beside the collectives and beside each other: a send
 * that nobody receives holds up nothing but later sends to the same rank.
 *
 * A batch is a work that counts: messages of it that are not done, and the last collective posted
 * in it. Works in a batch have no handle of their own.
 *
 * Works of messages and batches come from a pool; one that is done and released goes back. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/group.h"
#include "comm/transport/channel.h"

/* What is sent before the data. */
typedef struct header {
    uint64_t number; /* of the message between the two, from 0 */
    int64_t count;
    int32_t dtype, unused;
} header;
_Static_assert(sizeof(header) == sizeof((ls_work *)NULL)->head, "a work has room for a header");

/* ---- the pool ---- */

static ls_status make_pool(ls_group *group) {
    group->messages = lsi_calloc(LSI_MEM_OTHER, LSI_MESSAGES, sizeof *group->messages);
    LSI_TRY(lsi_check_alloc(group->messages));
    for (int i = 0; i < LSI_MESSAGES; i++) {
        group->messages[i].next = group->free_messages;
        group->free_messages = &group->messages[i];
    }
    return LS_OK;
}

void lsi_messages_free(ls_group *group) {
    lsi_free(group->messages);
}

ls_work *lsi_message_work(ls_group *group, lsi_work_kind what, ls_status *status) {
    *status = group->messages ? LS_OK : make_pool(group);
    if (*status != LS_OK) return NULL;
    ls_work *work = group->free_messages;
    if (!work) {
        *status = lsi_fail(LS_ERR_BUSY,
                           "rank %d: %d messages and batches are in flight, the most that a group "
                           "can hold; wait for some first",
                           lsi_world_rank(group, group->rank), LSI_MESSAGES);
        return NULL;
    }
    group->free_messages = work->next;
    *work = (ls_work){.group = group, .what = what};
    return work;
}

static void give_back(ls_work *work) {
    work->next = work->group->free_messages;
    work->group->free_messages = work;
}

void lsi_work_release(ls_work *work) {
    work->held = false;
    if (work->what != LSI_WORK_CALL && lsi_work_is_done(work)) give_back(work);
}

/* ---- moving ---- */

static int64_t message_bytes(const ls_work *work) {
    return work->call->count * (int64_t)ls_dtype_bytes((ls_dtype)work->call->dtype);
}

/* Moves header and data of the first work of a queue on; headers go in one piece. */
static ls_status move(ls_work *work, bool *moved) {
    ls_group *group = work->group;
    int peer = work->call->root;
    bool sends = work->call->kind == LSI_CALL_SEND;
    header head = {.number = group->message_number[sends ? LSI_SENDING : LSI_RECEIVING][peer],
                   .count = work->call->count,
                   .dtype = work->call->dtype};
    size_t n = 0;
    do {
        int64_t at = work->n_bytes_moved - (int64_t)sizeof head;
        unsigned char *data =
            at < 0 ? work->head + sizeof head + at : (unsigned char *)work->output + at;
        size_t left = (size_t)(at < 0 ? -at : message_bytes(work) - at);
        if (at < 0 && sends) memcpy(work->head, &head, sizeof head);
        n = sends ? lsi_channel_put(group, LSI_CHANNELS_OF_USERS, peer, data, left)
                  : lsi_channel_get(group, LSI_CHANNELS_OF_USERS, peer, data, left);
        work->n_bytes_moved += (int64_t)n;
        *moved = *moved || n > 0;
        if (n > 0 && !sends && work->n_bytes_moved == sizeof head) {
            header found;
            memcpy(&found, work->head, sizeof found);
            if (found.count != head.count || found.dtype != head.dtype)
                return lsi_report_message(work, found.number, found.count, (ls_dtype)found.dtype);
        }
    } while (n > 0);
    return LS_OK;
}

static void finish(ls_work *work) {
    ls_group *group = work->group;
    work->done = true;
    group->n_messages_left--;
    if (work->call->kind == LSI_CALL_SEND)
        group->stats.bytes_sent += message_bytes(work);
    else
        group->bytes_received += message_bytes(work);
    if (work->batch && --work->batch->n_left == 0 && !work->batch->held &&
        work->batch != group->batch && lsi_work_is_done(work->batch))
        give_back(work->batch); /* given up by a wait that failed */
    if (!work->held) give_back(work);
}

/* A message that was moved, on a link. */
static bool is_on_its_way(ls_work *work) {
    if (!work->group->has_link) return false;
    if (work->over_ns == 0) lsi_link_take(work);
    return lsi_link_holds(work);
}

static ls_status move_queue(ls_group *group, lsi_direction direction, int peer, bool *moved) {
    ls_work **queue = &group->queue[direction][peer];
    while (*queue) {
        ls_work *work = *queue;
        LSI_TRY(move(work, moved));
        if (work->n_bytes_moved < (int64_t)sizeof(header) + message_bytes(work)) return LS_OK;
        if (is_on_its_way(work)) return LS_OK;
        *queue = work->next;
        group->message_number[direction][peer]++;
        finish(work);
    }
    return LS_OK;
}

ls_status lsi_messages_advance(ls_group *group, bool *moved) {
    for (int direction = 0; direction < LSI_N_DIRECTIONS; direction++)
        for (int peer = 0; peer < group->n_ranks; peer++)
            if (group->queue[direction][peer])
                LSI_TRY(move_queue(group, (lsi_direction)direction, peer, moved));
    return LS_OK;
}

/* ---- posting ---- */

static ls_status check_message(const ls_group *group, lsi_call_kind kind, const void *buffer,
                               int64_t count, ls_dtype dtype, int peer) {
    const char *name = lsi_call_kind_name(kind);
    size_t size = ls_dtype_bytes(dtype);
    if (size == 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: dtype %d, expected one of LS_DTYPE_TABLE", name,
                        (int)dtype);
    if (peer < 0 || peer >= group->n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: rank %d, expected 0 to %d", name, peer,
                        group->n_ranks - 1);
    if (count < 0 || (uint64_t)count > SIZE_MAX / 2 / size)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: count %lld is outside the legal range", name,
                        (long long)count);
    if (count > 0 && !buffer) return lsi_fail(LS_ERR_ARGUMENT, "%s: the buffer is NULL", name);
    if ((uintptr_t)buffer % size != 0)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: buffers must be aligned to their elements, %zu bytes",
                        name, size);
    return LS_OK;
}

static ls_status post_locked(ls_group *group, const lsi_call *call, void *buffer,
                             ls_work **handle) {
    ls_status status = LS_OK;
    LSI_TRY(lsi_group_error(group));
    LSI_TRY(lsi_check_batch(group, handle));
    LSI_TRY(
        check_message(group, call->kind, buffer, call->count, (ls_dtype)call->dtype, call->root));
    ls_work *work = lsi_message_work(group, LSI_WORK_MESSAGE, &status);
    if (!work) return status;
    uint32_t number = atomic_load(&group->me->n_messages);
    lsi_call *record = &group->me->messages[number % LSI_MESSAGE_RECORDS];
    *record = *call;
    record->number = number + 1;
    record->posted_ms = lsi_coarse_ms();
    atomic_store(&group->me->n_messages, number + 1);
    work->own_call = *call;
    work->call = &work->own_call;
    work->output = buffer;
    ls_work **end =
        &group->queue[call->kind == LSI_CALL_SEND ? LSI_SENDING : LSI_RECEIVING][call->root];
    while (*end) end = &(*end)->next;
    *end = work;
    group->n_messages_left++;
    return lsi_post_end(work, handle);
}

static ls_status post(ls_group *group, lsi_call_kind kind, void *buffer, int64_t count,
                      ls_dtype dtype, int peer, ls_work **handle) {
    lsi_call call = {
        .kind = (uint16_t)kind, .dtype = (uint16_t)dtype, .count = count, .root = peer, .scale = 1};
    lsi_group_lock(group);
    ls_status status = post_locked(group, &call, buffer, handle);
    if (status != LS_OK && group->batch) status = lsi_post_failed(group, status);
    lsi_group_unlock(group);
    return status;
}

ls_status ls_send(ls_group *group, const void *buffer, int64_t count, ls_dtype dtype, int to,
                  ls_work **work) {
    return post(group, LSI_CALL_SEND, (void *)buffer, count, dtype, to, work);
}

ls_status ls_recv(ls_group *group, void *buffer, int64_t count, ls_dtype dtype, int from,
                  ls_work **work) {
    return post(group, LSI_CALL_RECV, buffer, count, dtype, from, work);
}

/* ---- the end of every post, and batches ---- */

static ls_status hand_out(ls_work *work, ls_work **handle) {
    ls_group *group = work->group;
    ls_status status = lsi_group_advance(group);
    if (status != LS_OK) {
        lsi_work_release(work);
        return status;
    }
    *handle = work;
    if (!lsi_work_is_done(work)) lsi_thread_notify(group);
    return LS_OK;
}

ls_status lsi_post_end(ls_work *work, ls_work **handle) {
    ls_group *group = work->group;
    if (group->batch) {
        if (work->what == LSI_WORK_CALL) {
            group->batch->index = work->index + 1;
        } else {
            work->batch = group->batch;
            group->batch->n_left++;
        }
        return lsi_group_advance(group);
    }
    work->held = true;
    if (handle) return hand_out(work, handle);
    ls_status status = lsi_work_await(work, -1);
    lsi_work_release(work);
    return status;
}

ls_status lsi_post_failed(ls_group *group, ls_status status) {
    if (group->batch_error == LS_OK) {
        group->batch_error = status;
        snprintf(group->batch_message, sizeof group->batch_message, "%s", ls_last_message());
    }
    return status;
}

ls_status ls_batch_begin(ls_group *group) {
    ls_status status = LS_OK;
    lsi_group_lock(group);
    if (group->batch)
        status = lsi_fail(LS_ERR_STATE, "rank %d: a batch is open already; end it first",
                          lsi_world_rank(group, group->rank));
    else
        group->batch = lsi_message_work(group, LSI_WORK_BATCH, &status);
    group->batch_error = LS_OK;
    lsi_group_unlock(group);
    return status;
}

static ls_status end_batch(ls_group *group, ls_work **handle) {
    ls_work *batch = group->batch;
    group->batch = NULL;
    if (group->batch_error != LS_OK) {
        lsi_message_set(group->batch_message);
        if (lsi_work_is_done(batch)) give_back(batch);
        return group->batch_error;
    }
    batch->held = true;
    if (handle) return hand_out(batch, handle);
    ls_status status = lsi_work_await(batch, -1);
    lsi_work_release(batch);
    return status;
}

ls_status ls_batch_end(ls_group *group, ls_work **work) {
    lsi_group_lock(group);
    ls_status status = group->batch ? end_batch(group, work)
                                    : lsi_fail(LS_ERR_STATE, "rank %d: no batch is open",
                                               lsi_world_rank(group, group->rank));
    lsi_group_unlock(group);
    return status;
}
