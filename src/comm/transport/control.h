/* Layout of the shared region, as all processes of a run see it.
 *
 * [Note: one writer per line] Every cache line below has one writer, named beside it, or is a
 * doorbell. Ranks never write into a counter of another rank, so no read-modify-write is needed
 * on the path of a collective: a rank publishes by a store, peers look by loads.
 *
 * Counters only grow. `arrived` counts calls posted, `done` calls this rank has finished its part
 * of; `staged`, `combined`, `consumed` count pieces of calls on private buffers (see
 * collective/staged.c). Call k (0 = the first) of a rank is described in calls[k % LSI_CALLS]; the
 * description is written before `arrived` becomes k + 1 and stays until call k + LSI_CALLS, which
 * is not posted before call k is complete on all ranks. */
#ifndef LSI_COMM_CONTROL_H
#define LSI_COMM_CONTROL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"
#include "comm/call.h"
#include "comm/region.h"

enum {
    LSI_LINE_BYTES = 64,
    LSI_CALLS = 1024,            /* calls in flight per rank */
    LSI_PIECE_BYTES = 512 << 10, /* one of the two staging blocks of a rank */
    LSI_HEAP_BLOCKS = 4096,
    LSI_REPORTS = 2 * LSI_MAX_RANKS, /* errors that can be under way at the same time */
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics that processes share must not hide locks");

#define LSI_LINE _Alignas(LSI_LINE_BYTES)

typedef struct lsi_rank_control {
    /* Written by the rank itself. */
    LSI_LINE _Atomic uint64_t arrived;
    _Atomic uint64_t done;
    _Atomic uint64_t staged;
    _Atomic uint64_t combined;
    _Atomic uint64_t consumed;
    /* Written by whoever wakes the rank (bell) and by the rank (asleep); see transport/bell.h. */
    LSI_LINE _Atomic uint32_t bell;
    _Atomic uint32_t asleep;
    /* For messages about this rank; written by the rank, `left` also by the launcher. */
    LSI_LINE _Atomic int64_t step;
    _Atomic int32_t last_kind;
    _Atomic int64_t last_count;
    _Atomic int32_t left;     /* destroyed its group or ended */
    _Atomic int32_t attached; /* has, or had, its group: counters start at 0 only once */
    LSI_LINE lsi_call calls[LSI_CALLS];
} lsi_rank_control;

typedef struct lsi_report {
    int32_t status, rank;
    char message[LSI_MESSAGE_BYTES];
} lsi_report;

typedef struct lsi_heap_block {
    uint64_t offset, bytes; /* from the start of the heap; sorted by offset */
} lsi_heap_block;

typedef struct lsi_control {
    /* Written by the creator before anyone else is there. */
    uint64_t magic;
    int32_t n_ranks;
    uint64_t region_bytes, staging_offset, heap_offset, heap_bytes;
    /* First error. A report is written into a slot of its own and then wins or loses by one
     * exchange, so a rank that is killed or stopped while it writes holds up nobody. */
    LSI_LINE _Atomic uint32_t n_reports; /* slots given out */
    _Atomic uint32_t first_report;       /* number of the winner's slot, from 1; 0: no error */
    lsi_report reports[LSI_REPORTS];
    LSI_LINE _Atomic int32_t stop_signal;
    /* Under the heap lock. A table is enough: allocations are few and large. */
    LSI_LINE _Atomic uint32_t heap_lock;
    int32_t n_blocks;
    lsi_heap_block blocks[LSI_HEAP_BLOCKS];
    LSI_LINE lsi_rank_control ranks[]; /* n_ranks */
} lsi_control;

struct lsi_region {
    int fd;
    unsigned char *base; /* the mapping */
    size_t bytes;        /* its length */
    lsi_control *control;
};

/* Staging block 0 or 1 of a rank. */
unsigned char *lsi_region_staging(const lsi_region *region, int rank, uint64_t piece);
/* Offset of [ptr, ptr + bytes) in the region, LSI_NOT_SHARED if it is not inside the heap. */
uint64_t lsi_region_offset(const lsi_region *region, const void *ptr, size_t bytes);
/* Wakes every rank. */
void lsi_region_wake_all(lsi_region *region);

LS_CHECKED ls_status lsi_heap_alloc(lsi_region *region, size_t bytes, void **ptr);
/* Bytes of the block that starts at ptr, 0 if there is none. */
uint64_t lsi_heap_block_bytes(lsi_region *region, const void *ptr);
void lsi_heap_free(lsi_region *region, void *ptr);

#endif
