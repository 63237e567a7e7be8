/* Layout of the shared region, as all processes of a run see it: the region's own control data,
 * then the control data of the world group, then a heap with shared buffers and the control data of
 * further groups.
 *
 * [Note: one writer per line] Every cache line below has one writer, named beside it, or is a
 * doorbell. Ranks never write into a counter of another rank, so no read-modify-write is needed
 * on the path of a collective: a rank publishes by a store, peers look by loads.
 *
 * [Note: one trip] Call k (0 = the first) of a rank is announced in arrivals[k % LSI_ARRIVALS], one
 * cache line: the fingerprint of the call and either a small contribution itself or where its
 * buffers are; `number` becomes k + 1 last. Whoever sees all arrivals of a call has, for small
 * ones, all data as well, and need not wait again. Larger contributions of one-shot calls lie in
 * the rank's slots. `done` counts calls from whose peers this rank reads nothing any more: a line
 * or slot is used again only when `done` of all ranks has passed its last call.
 *
 * `staged`, `combined`, `consumed` count pieces of calls on private buffers (collective/staged.c).
 *
 * records[] describes the last LSI_RECORDS calls of a rank; it explains mismatches, and
 * `lockstep inspect` reads it, also when the rank is dead. */
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
    LSI_CALLS = 1024,          /* calls in flight per rank and group */
    LSI_ARRIVALS = 64,         /* of them announced */
    LSI_RECORDS = 4096,        /* calls remembered */
    LSI_MESSAGE_RECORDS = 256, /* sends and receives remembered */
    LSI_SLOTS = 16,            /* one-shot contributions in flight, beyond a line */
    LSI_SLOT_BYTES = 16 << 10,
    LSI_INLINE_BYTES = 40,         /* contribution that fits into the arrival line */
    LSI_FLAGGED_PARTS_BYTES = 448, /* the same for contributions of n parts */
    LSI_FLAGGED_BYTES = 2 << 10,   /* that lies in lines with flags (collective/one_shot.c) */
    LSI_BLOCK_BYTES = 512 << 10,   /* one of the two staging blocks of a rank */
    LSI_CHANNEL_BYTES = 32 << 10,  /* in flight from one rank to another */
    LSI_HEAP_BLOCKS = 4096,
    LSI_REPORTS = 2 * LSI_MAX_RANKS, /* errors that can be under way at the same time */
    LSI_MAX_GROUPS = 1024,           /* alive at the same time in one region */
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
               "atomics that processes share must not hide locks");

#define LSI_LINE _Alignas(LSI_LINE_BYTES)

/* Written by its rank. */
typedef struct lsi_arrival {
    LSI_LINE _Atomic uint64_t number;
    uint64_t fingerprint;
    double scale; /* PREMUL_SUM: this rank's factor */
    union {
        uint64_t offset[2]; /* of input and output in the region, or LSI_NOT_SHARED */
        unsigned char payload[LSI_INLINE_BYTES];
        uint64_t word[LSI_INLINE_BYTES / 8];
    };
} lsi_arrival;
_Static_assert(sizeof(lsi_arrival) == LSI_LINE_BYTES, "an arrival is one cache line");

typedef struct lsi_rank_control {
    /* Written by the rank itself. */
    LSI_LINE _Atomic uint64_t done;
    LSI_LINE _Atomic uint64_t staged;
    _Atomic uint64_t combined;
    _Atomic uint64_t consumed;
    /* Written by whoever wakes the rank (bell) and by the rank (asleep); see transport/bell.h. */
    LSI_LINE _Atomic uint32_t bell;
    _Atomic uint32_t asleep;
    _Atomic int32_t processor; /* number + 1 of the one that the rank waited on; 0: not known */
    /* For messages about this rank; written by the rank, `left` also by the launcher. */
    LSI_LINE _Atomic int64_t step;
    _Atomic uint64_t published;  /* calls announced */
    _Atomic int32_t left;        /* destroyed its group or ended */
    _Atomic int32_t attached;    /* has, or had, its group: counters start at 0 only once */
    _Atomic int32_t pid;         /* 0 before it attached */
    _Atomic uint32_t n_messages; /* sends and receives posted */
    _Atomic uint64_t pid_space;  /* in which the pid counts; 0: not known */
    _Atomic uint32_t beat;       /* of the world: moves while the rank waits in any group */
    _Atomic int32_t waits_for;   /* rank + 1 whose message it waits for, 0: for a call of all */
    _Atomic int32_t ended; /* of the world: 1: has destroyed all its groups; 2: ended before */
    LSI_LINE lsi_arrival arrivals[LSI_ARRIVALS];
    lsi_call records[LSI_RECORDS];
    lsi_call messages[LSI_MESSAGE_RECORDS];
} lsi_rank_control;

typedef struct lsi_report {
    int32_t status, rank;
    int32_t noticed; /* a peer noticed that the rank is dead; whoever started it knows more */
    char message[LSI_MESSAGE_BYTES];
} lsi_report;

/* First error. A report is written into a slot of its own and then wins or loses by one exchange,
 * so a rank that is killed or stopped while it writes holds up nobody. */
typedef struct lsi_reports {
    LSI_LINE _Atomic uint32_t n_reports; /* slots given out */
    _Atomic uint32_t first;              /* number of the winner's slot, from 1; 0: no error */
    lsi_report report[LSI_REPORTS];
} lsi_reports;

/* Behind ranks[] come, each for every rank: slots, staging blocks, channels (group_layout). */
typedef struct lsi_group_control {
    /* Written by the creator before anyone else is there. */
    int32_t number; /* 0: the world */
    int32_t n_ranks;
    int32_t member[LSI_MAX_RANKS];   /* ranks in the world */
    LSI_LINE _Atomic int32_t n_gone; /* members that have destroyed it: the last one frees it */
    lsi_reports errors;
    LSI_LINE lsi_rank_control ranks[]; /* n_ranks */
} lsi_group_control;

/* Bytes from one rank to another, in order. Two sets per group: of algorithms, and of users' sends.
 */
typedef struct lsi_channel {
    LSI_LINE _Atomic uint64_t written; /* by the sender */
    LSI_LINE _Atomic uint64_t read;    /* by the receiver */
    LSI_LINE unsigned char ring[LSI_CHANNEL_BYTES];
} lsi_channel;
typedef enum lsi_channel_set {
    LSI_CHANNELS_OF_ALGORITHMS,
    LSI_CHANNELS_OF_USERS,
    LSI_N_CHANNEL_SETS
} lsi_channel_set;

typedef struct lsi_heap_block {
    uint64_t offset, bytes; /* from the start of the heap; sorted by offset */
} lsi_heap_block;

/* Where a group's control data is; for waking everybody and for `lockstep inspect`. A row keeps its
 * memory, zeroed, when its group is gone, for a later group of as many ranks. */
typedef struct lsi_group_row {
    _Atomic uint64_t offset; /* 0: has no memory yet */
    uint64_t bytes;
    _Atomic int32_t used;
} lsi_group_row;

typedef struct lsi_control {
    /* Written by the creator before anyone else is there. */
    uint64_t magic;
    int32_t n_ranks;
    int32_t n_cpus; /* that the creator could use: all ranks together, before they are bound */
    int32_t fenced; /* [Note: sleeping] in transport/bell.h */
    uint64_t region_bytes, world_offset, heap_offset, heap_bytes;
    LSI_LINE _Atomic int32_t stop_signal;
    /* Under the heap lock. A table is enough: allocations are few and large. */
    LSI_LINE _Atomic uint32_t heap_lock;
    int32_t n_blocks;
    uint32_t n_large_made; /* [Note: phases] in heap.c */
    lsi_heap_block blocks[LSI_HEAP_BLOCKS];
    lsi_group_row groups[LSI_MAX_GROUPS];
    _Atomic int32_t n_groups_made;
} lsi_control;

struct lsi_region {
    int fd;
    unsigned char *base; /* the mapping */
    size_t bytes;        /* its length */
    lsi_control *control;
    lsi_group_control *world;
    _Atomic int
        pidfd[LSI_MAX_RANKS]; /* of world ranks, plus 1; 0: not opened (transport/alive.c) */
    _Atomic int n_handles[LSI_MAX_RANKS]; /* groups that world ranks have open in this process */
    bool is_owned;                        /* closed with the last of these groups */
};

/* Whether this build laid out the region that begins with it. */
bool lsi_control_is_ours(const lsi_control *control, uint64_t region_bytes);
size_t lsi_group_control_bytes(int n_ranks);
/* Slot j % LSI_SLOTS of a rank; staging block 0 or 1 of a rank for a piece; a channel. */
unsigned char *lsi_group_slot(lsi_group_control *group, int rank, uint64_t j);
unsigned char *lsi_group_block(lsi_group_control *group, int rank, uint64_t piece);
lsi_channel *lsi_group_channel(lsi_group_control *group, lsi_channel_set set, int from, int to);

/* A group's own first error; lsi_region_abort and lsi_region_error are the same for the region. */
void lsi_reports_add(lsi_reports *reports, ls_status status, int rank, const char *message,
                     bool *first);
ls_status lsi_reports_get(const lsi_reports *reports, int *rank);

/* Offset of [ptr, ptr + bytes) in the region, LSI_NOT_SHARED if it is not inside the heap. */
uint64_t lsi_region_offset(const lsi_region *region, const void *ptr, size_t bytes);
/* Wakes every rank of one group; of all groups. */
void lsi_group_wake_all(const lsi_region *region, lsi_group_control *group);
void lsi_region_wake_all(lsi_region *region);

/* Memory for a group of n_ranks, zeroed but for its number and n_ranks. LS_ERR_BUSY when there are
 * too many. */
LS_CHECKED ls_status lsi_region_add_group(lsi_region *region, int n_ranks,
                                          lsi_group_control **group);
void lsi_region_remove_group(lsi_region *region, lsi_group_control *group);

/* A world rank that has attached and whose process is no more, -1 if all live (or cannot be seen).
 * `me` is the rank that looks. */
int lsi_region_find_dead(lsi_region *region, int me);
/* What pids of this process's /proc count in; 0 if that is not known. */
uint64_t lsi_pid_space(void);

LS_CHECKED ls_status lsi_heap_alloc(lsi_region *region, size_t bytes, void **ptr);
/* Bytes of the block that starts at ptr, 0 if there is none. */
uint64_t lsi_heap_block_bytes(lsi_region *region, const void *ptr);
void lsi_heap_free(lsi_region *region, void *ptr);
/* Zeroes memory of the heap and gives its pages back. */
void lsi_heap_clear(lsi_region *region, void *ptr, uint64_t bytes);

#endif
