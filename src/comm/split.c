/* Groups of some ranks of a group. Members find each other by an all-gather of color and key; the
 * lowest member takes memory for the control data from the shared heap and tells where it is by a
 * second one. From then on the groups have nothing in common but the region. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"

typedef struct answer {
    int32_t color, key;
} answer;

/* Ranks of `group` with the color of `me`, by key, then by rank. Returns how many. */
static int find_members(const answer *answers, int n, int me, int member[LSI_MAX_RANKS]) {
    int n_members = 0;
    for (int r = 0; r < n; r++) {
        if (answers[r].color != answers[me].color) continue;
        int at = n_members++;
        for (; at > 0 && answers[member[at - 1]].key > answers[r].key; at--)
            member[at] = member[at - 1];
        member[at] = r;
    }
    return n_members;
}

/* The first member makes the control data; the others get its offset, 0 if that failed. */
static ls_status make_control(ls_group *group, const int *member, int n_members, uint64_t *offset) {
    lsi_group_control *control = NULL;
    LSI_TRY(lsi_region_add_group(group->region, n_members, &control));
    for (int i = 0; i < n_members; i++) control->member[i] = lsi_world_rank(group, member[i]);
    *offset = (uint64_t)((unsigned char *)control - group->region->base);
    return LS_OK;
}

/* A member that could not make its handle: the others need not wait for it. */
static void leave(ls_group *group, lsi_group_control *control, int rank) {
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", ls_last_message());
    atomic_store(&control->ranks[rank].left, 1);
    lsi_group_wake_all(group->region, control);
    if (atomic_fetch_add(&control->n_gone, 1) + 1 == control->n_ranks)
        lsi_region_remove_group(group->region, control);
    lsi_message_set(message);
}

static ls_status split(ls_group *group, int color, int key, ls_group **part) {
    answer mine = {color < 0 ? -1 : color, key}, answers[LSI_MAX_RANKS];
    int member[LSI_MAX_RANKS], me = group->rank;
    if (group->batch)
        return lsi_fail(LS_ERR_STATE, "split: rank %d has a batch open, in which no call waits",
                        lsi_world_rank(group, me));
    LSI_TRY(ls_all_gather(group, &mine, answers, 2, LS_DTYPE_I32, NULL));
    int n_members = find_members(answers, group->n_ranks, me, member);
    uint64_t offset = 0, offsets[LSI_MAX_RANKS];
    ls_status made = LS_OK;
    if (color >= 0 && member[0] == me) made = make_control(group, member, n_members, &offset);
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", made == LS_OK ? "" : ls_last_message());
    LSI_TRY(ls_all_gather(group, &offset, offsets, 1, LS_DTYPE_I64, NULL));
    if (made != LS_OK) {
        lsi_message_set(message);
        return lsi_context(made, "split");
    }
    *part = NULL;
    if (color < 0) return LS_OK;
    if (offsets[member[0]] == 0)
        return lsi_fail(LS_ERR_MEMORY, "split: rank %d could not make the group of color %d",
                        lsi_world_rank(group, member[0]), color);
    int rank = 0;
    while (member[rank] != me) rank++;
    lsi_group_control *control =
        (lsi_group_control *)(void *)(group->region->base + offsets[member[0]]);
    ls_status status = lsi_group_open(group->region, control, rank, part);
    if (status != LS_OK) {
        leave(group, control, rank);
        return status;
    }
    (*part)->costs = group->costs;
    (*part)->timeout_ms = group->timeout_ms;
    return LS_OK;
}

ls_status ls_group_split(ls_group *group, int color, int key, ls_group **part) {
    lsi_rules rules = lsi_own_calls_begin(group);
    ls_status status = split(group, color, key, part);
    lsi_own_calls_end(group, &rules);
    return status;
}

ls_status ls_group_mesh(ls_group *group, int shard_size, ls_group **replicate, ls_group **shard) {
    int n = group->n_ranks;
    if (shard_size < 1 || n % shard_size != 0)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "mesh: a shard size of %d does not divide the world size of %d", shard_size,
                        n);
    ls_group *row = NULL, *column = NULL;
    LSI_TRY(ls_group_split(group, group->rank / shard_size, group->rank, &row));
    ls_status status = ls_group_split(group, group->rank % shard_size, group->rank, &column);
    if (status != LS_OK) {
        ls_group_destroy(row);
        return status;
    }
    *shard = row;
    *replicate = column;
    return LS_OK;
}
