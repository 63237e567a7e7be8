/* The futex calls are not private: ranks are processes that share memory. `asleep` is a number
 * because a rank may wait in two threads at once, its own and that of the group. */
#include "comm/transport/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool lsi_bell_register(void) {
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void lsi_bell_ring(lsi_rank_control *rank) {
    if (atomic_load_explicit(&rank->asleep, memory_order_relaxed) == 0) return;
    atomic_fetch_add(&rank->bell, 1);
    syscall(SYS_futex, &rank->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t lsi_bell_prepare(const lsi_region *region, lsi_rank_control *rank) {
    uint32_t ticket = atomic_load(&rank->bell);
    atomic_fetch_add(&rank->asleep, 1);
    if (!region->control->fenced) syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    return ticket;
}

void lsi_bell_sleep(lsi_rank_control *rank, uint32_t ticket, int64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    syscall(SYS_futex, &rank->bell, FUTEX_WAIT, ticket, &timeout, NULL, 0);
}

void lsi_bell_cancel(lsi_rank_control *rank) {
    atomic_fetch_sub(&rank->asleep, 1);
}
