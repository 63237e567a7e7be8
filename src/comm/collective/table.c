/* The collectives, one row each: direct on shared buffers, staged in pieces on private ones. */
#include "comm/collective/collective.h"

const lsi_collective *lsi_collective_of(int kind) {
    static const lsi_collective *const rows[LSI_CALL_N_KINDS] = {
        [LSI_CALL_BARRIER] = &lsi_barrier,       [LSI_CALL_BROADCAST] = &lsi_broadcast,
        [LSI_CALL_ALL_REDUCE] = &lsi_all_reduce, [LSI_CALL_REDUCE_SCATTER] = &lsi_reduce_scatter,
        [LSI_CALL_ALL_GATHER] = &lsi_all_gather,
    };
    return rows[kind];
}
