/* Where the parts of a group's control data are: its ranks' lines first, then slots, staging blocks
 * and channels, each for all ranks. Pages exist once touched: a group that never stages or passes
 * messages costs their addresses only. */
#include "comm/transport/control.h"

enum { PAGE_BYTES = 4096 };

static size_t round_up(size_t value) {
    return (value + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static size_t slots_offset(int n) {
    return round_up(sizeof(lsi_group_control) + (size_t)n * sizeof(lsi_rank_control));
}

static size_t blocks_offset(int n) {
    return slots_offset(n) + (size_t)n * LSI_SLOTS * LSI_SLOT_BYTES;
}

static size_t channels_offset(int n) {
    return blocks_offset(n) + (size_t)n * 2 * LSI_BLOCK_BYTES;
}

size_t lsi_group_control_bytes(int n) {
    return round_up(channels_offset(n) +
                    (size_t)n * (size_t)n * LSI_N_CHANNEL_SETS * sizeof(lsi_channel));
}

static unsigned char *at(lsi_group_control *group, size_t offset) {
    return (unsigned char *)group + offset;
}

unsigned char *lsi_group_slot(lsi_group_control *group, int rank, uint64_t j) {
    size_t index = (size_t)rank * LSI_SLOTS + (size_t)(j % LSI_SLOTS);
    return at(group, slots_offset(group->n_ranks) + index * LSI_SLOT_BYTES);
}

unsigned char *lsi_group_block(lsi_group_control *group, int rank, uint64_t piece) {
    size_t index = (size_t)rank * 2 + (size_t)(piece % 2);
    return at(group, blocks_offset(group->n_ranks) + index * LSI_BLOCK_BYTES);
}

lsi_channel *lsi_group_channel(lsi_group_control *group, lsi_channel_set set, int from, int to) {
    size_t n = (size_t)group->n_ranks, index = ((size_t)set * n + (size_t)from) * n + (size_t)to;
    return (lsi_channel *)(void *)at(group,
                                     channels_offset(group->n_ranks) + index * sizeof(lsi_channel));
}
