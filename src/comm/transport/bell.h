/* Sleeping and waking between ranks: a futex per rank.
 *
 * A rank that would wait announces `asleep`, looks at the counters once more, and only then sleeps
 * on its bell. A rank that has advanced a counter looks at `asleep` of its peers and rings. Both
 * sides write first and read second with sequentially consistent order, so at least one of them
 * sees the other (Dekker): no wake-up is lost. While nobody sleeps, waking costs one load per
 * peer and no system call.
 *
 * Every wait is for a counter of all ranks to reach a number, so only the rank whose store was the
 * last of them has to ring. Stores come first and looks at the others' counters second, so that
 * rank sees that it was the last (two may believe it). With 64 ranks on few processors this saves
 * nine of ten wake-ups. tests/model/ holds both arguments as a model. */
#ifndef LSI_COMM_BELL_H
#define LSI_COMM_BELL_H

#include <stdint.h>

#include "comm/transport/control.h"

/* Wakes the rank if it is asleep. Call after the store that it may be waiting for. */
void lsi_bell_ring(lsi_rank_control *rank);
/* Announces sleep; returns the ticket for lsi_bell_sleep. Look at what you wait for in between. */
uint32_t lsi_bell_prepare(lsi_rank_control *rank);
/* Sleeps until rung since prepare, or timeout_ns is over; spurious returns are allowed. */
void lsi_bell_sleep(lsi_rank_control *rank, uint32_t ticket, int64_t timeout_ns);
/* Ends the announcement (after sleep, or instead of it). */
void lsi_bell_cancel(lsi_rank_control *rank);

#endif
