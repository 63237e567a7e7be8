/* Inside of groups and works.
 *
 * Life of a work (one call on one rank). Works are posted, started and completed in order; three
 * counters in the group say how far each stage is.
 *
 *      post                 all ranks arrived,            every rank finished
 *        |                  calls match                   its part
 *        v                       v                             v
 *     POSTED  ------------->  STARTED  ------------------->  DONE  ----> released by wait
 *     index >= n_started      index >= n_completed         index < n_completed
 *
 * POSTED   the description is public, the buffers belong to the group.
 * STARTED  this rank's part is done (direct) or under way in pieces (staged).
 * DONE     output is valid, the buffers belong to the caller again.
 *
 * An error of the region ends every state: test and wait return it. */
#ifndef LSI_COMM_GROUP_H
#define LSI_COMM_GROUP_H

#include <sys/types.h>

#include <lockstep/group.h>

#include "comm/order.h"
#include "comm/transport/control.h"

struct ls_work {
    ls_group *group;
    uint64_t index; /* number of the call in its group, 0 = the first */
    lsi_call call;
    const void *input;
    void *output;
    bool held;   /* the caller has not released it yet */
    bool staged; /* decided when started: some buffer is private */
    /* Staged works: pieces copied in, combined, copied out so far, of n_pieces. */
    uint64_t n_pieces, n_in, n_combined, n_out;
};

/* Time and bytes since the group was made; take differences. */
typedef struct lsi_group_stats {
    int64_t wait_ns;    /* blocked in wait, nothing to do */
    int64_t work_ns;    /* moving and adding data */
    int64_t flight_ns;  /* at least one work posted and not done */
    int64_t bytes_sent; /* moved between this rank's buffers and those of others */
    int64_t n_calls;
} lsi_group_stats;

struct ls_group {
    lsi_region *region;
    bool owns_region;
    pid_t pid; /* of the process it belongs to: a fork has a copy that means nothing */
    int rank, n_ranks;
    int64_t timeout_ms;
    int spins; /* looks before sleeping: 0 when ranks outnumber processors */
    lsi_rank_control *ranks, *me;
    lsi_order order;
    uint64_t n_posted, n_started, n_completed;
    uint64_t n_pieces; /* pieces of all staged works started so far */
    int64_t flight_start_ns;
    lsi_group_stats stats;
    ls_work works[LSI_CALLS];
};

/* Order in which ranks are added from now on; all ranks must set the same one (checked by every
 * call). The default is lsi_order_default. */
void lsi_group_set_order(ls_group *group, const lsi_order *order);
void lsi_group_get_stats(const ls_group *group, lsi_group_stats *stats);
lsi_region *lsi_group_region(const ls_group *group);

/* ---- between the files of this folder ---- */

/* A collective: how it is done on shared buffers and on private ones. One row per kind in
 * collective/table.c. */
typedef struct lsi_collective {
    /* Whether every buffer that peers must reach is shared. calls: of all ranks, in rank order. */
    bool (*is_direct)(const ls_work *work);
    /* This rank's whole part, given that all ranks arrived. Returns bytes moved between ranks. */
    int64_t (*direct)(ls_work *work);
    /* A staging block holds a stretch of every rank's part (reduce-scatter), not of one buffer. */
    bool holds_all_parts;
    /* Copies piece i of this rank's input into its staging block. */
    void (*copy_in)(ls_work *work, uint64_t piece);
    /* Reads the staging blocks of all; may write into all of them (all-reduce). */
    int64_t (*combine)(ls_work *work, uint64_t piece);
    /* Copies the combined piece to the output; NULL: combine already did. */
    void (*copy_out)(ls_work *work, uint64_t piece);
} lsi_collective;

const lsi_collective *lsi_collective_of(int kind);
/* Elements of the work that one piece holds. */
int64_t lsi_piece_elems(const ls_work *work);
/* The description that a rank published for this work. */
const lsi_call *lsi_work_call_of(const ls_work *work, int rank);

/* Moves a staged work on; true when this rank's part is finished. */
bool lsi_staged_advance(ls_work *work);
/* Whether every rank has posted the work with this index. */
bool lsi_all_arrived(const ls_group *group, uint64_t index);
/* Wakes the peers that sleep; called by the rank that was the last to move a counter. */
void lsi_group_ring(ls_group *group);
/* Moves all posted works on without waiting. */
ls_status lsi_group_advance(ls_group *group);
/* Reports on the calls of the ranks when they differ: aborts the region and returns the error. */
ls_status lsi_report_mismatch(const ls_work *work);
/* Reports who is missing when a wait ran out of time or a rank left: aborts the region and returns
 * the error. LS_OK when nobody is, because a counter moved meanwhile. */
ls_status lsi_report_missing(const ls_work *work, int64_t waited_ms);
/* Whether a rank left that has not finished its part of the work, so never will. */
bool lsi_someone_left(const ls_work *work);

#endif
