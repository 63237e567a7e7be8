/* Sleeping and waking between ranks: a futex per rank and group.
 *
 * [Note: sleeping] A rank that would wait announces `asleep`, looks at the counters once more, and
 * only then sleeps on its bell. A rank that has advanced a counter looks at `asleep` of its peers
 * and rings. If on both sides the write comes before the read, at least one of them sees the other
 * (Dekker): no wake-up is lost. Processors reorder a store and a later load unless there is a
 * fence, and a fence costs a rank in a hurry as much as a trip of the cache line. So the fence is
 * on one side only where the system can do that: the sleeper, who has time, asks the kernel for a
 * barrier on all processors that run ranks (membarrier), and those who ring need none. Where it
 * cannot, or where ranks outnumber processors so that sleeping is the rule, control->fenced is set
 * and both sides have a fence.
 *
 * A rank that stored something after it announced announces again before it sleeps.
 *
 * Every wait is for a counter of all ranks to reach a number, so only the rank whose store was the
 * last of them has to ring. Stores come first and looks at the others' counters second, so that
 * rank sees that it was the last (two may believe it). Without a fence two could also each take the
 * other for the last, both stores being on their way, and the barrier of those who sleep came too
 * early to help: whoever sees a sleeper has a fence after all (lsi_group_fence_for_last). With 64
 * ranks on few processors this saves nine of ten wake-ups. While nobody sleeps, waking costs one
 * load per peer and no system call. tests/model/ holds both arguments as a model. */
#ifndef LSI_COMM_BELL_H
#define LSI_COMM_BELL_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/transport/control.h"

/* Registers this process for the sleepers' barrier; false if the system has none. */
bool lsi_bell_register(void);
/* A full fence. ThreadSanitizer knows none, but takes a read-modify-write for one. */
static inline void lsi_full_fence(void) {
#if defined(__SANITIZE_THREAD__)
    static _Atomic int line;
    atomic_fetch_add(&line, 1);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}
/* Between the store that others may be waiting for and the looks at counters and `asleep`. */
static inline void lsi_bell_fence(const lsi_region *region) {
    if (region->control->fenced)
        lsi_full_fence();
    else
        atomic_signal_fence(memory_order_seq_cst);
}
/* Wakes the rank if it is asleep. */
void lsi_bell_ring(lsi_rank_control *rank);
/* Announces sleep; returns the ticket for lsi_bell_sleep. Look at what you wait for in between. */
uint32_t lsi_bell_prepare(const lsi_region *region, lsi_rank_control *rank);
/* Sleeps until rung since prepare, or timeout_ns is over; spurious returns are allowed. */
void lsi_bell_sleep(lsi_rank_control *rank, uint32_t ticket, int64_t timeout_ns);
/* Ends the announcement (after sleep, or instead of it). */
void lsi_bell_cancel(lsi_rank_control *rank);

#endif
