/* The shared region: everything the ranks of one machine share.
 *
 * One memfd, passed by inheritance: no name, no port, gone with its last process. It begins with
 * control data (one part per rank, see transport/control.h) and goes on with a heap from which
 * ls_group_alloc_shared takes buffers. The file is as large as the reservation but sparse: pages
 * exist once touched. It is sealed against shrinking, so no process can pull memory from under
 * another. */
#ifndef LSI_COMM_REGION_H
#define LSI_COMM_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/group.h>

#include "base/message.h"

typedef struct lsi_region lsi_region;

enum { LSI_MAX_RANKS = 64 };

/* Called once, by the parent of the workers. heap_bytes = 0: four times the machine's memory. */
LS_CHECKED ls_status lsi_region_create(int n_ranks, size_t heap_bytes, lsi_region **region);
/* In a process that inherited the descriptor across exec. The caller keeps fd. */
LS_CHECKED ls_status lsi_region_open(int fd, lsi_region **region);
/* Unmaps and closes here; other processes keep theirs. NULL does nothing. */
void lsi_region_close(lsi_region *region);
int lsi_region_fd(const lsi_region *region); /* close-on-exec is set; clear it to pass it on */
int lsi_region_n_ranks(const lsi_region *region);
/* Processors that all ranks together can use: the creator's, before ranks are bound to theirs. */
int lsi_region_n_cpus(const lsi_region *region);

/* Resident bytes of this process that are the region's own, not buffers; 0 where the system does
 * not say. */
int64_t lsi_region_control_bytes(const lsi_region *region);

/* A handle for one rank, in its own process or thread; local, no meeting. Once per rank: counters
 * of a region only grow, so LS_ERR_STATE afterwards, even when the first handle is destroyed. */
LS_CHECKED ls_status lsi_group_attach(lsi_region *region, int rank, ls_group **group);

/* First error of the region, from any rank or the launcher (rank -1). First wins; wakes everyone.
 * message: complete, with rank and call. */
void lsi_region_abort(lsi_region *region, ls_status status, int rank, const char *message);
/* The same for a rank whose death a peer noticed. */
void lsi_region_report_dead(lsi_region *region, int rank, const char *message);
/* The rank whose death is the first error, as noticed by a peer: whoever started that rank knows
 * more. -1 when the first error is another. */
int lsi_region_noticed_dead(const lsi_region *region);
/* LS_OK, or the first error with its message set for this thread. *rank (may be NULL): who. */
LS_CHECKED ls_status lsi_region_error(const lsi_region *region, int *rank);

/* A request to stop after the current step (SIGINT, SIGTERM): the signal's number, 0 if none. */
void lsi_region_request_stop(lsi_region *region, int signal_number);
int lsi_region_stop_requested(const lsi_region *region);

/* What a rank is doing, for messages about its death: its step number, 0 before the first. */
void lsi_region_set_step(lsi_region *region, int rank, int64_t step);
int64_t lsi_region_step(const lsi_region *region, int rank);

/* Says that a rank will make no further calls (it ended); who waits for it gets an error at once.
 */
void lsi_region_mark_left(lsi_region *region, int rank);

#endif
