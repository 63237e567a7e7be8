/* The futex calls are not private: ranks are processes that share memory. */
#include "comm/transport/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void lsi_bell_ring(lsi_rank_control *rank) {
    if (atomic_load(&rank->asleep) == 0) return;
    atomic_fetch_add(&rank->bell, 1);
    syscall(SYS_futex, &rank->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint32_t lsi_bell_prepare(lsi_rank_control *rank) {
    uint32_t ticket = atomic_load(&rank->bell);
    atomic_store(&rank->asleep, 1);
    return ticket;
}

void lsi_bell_sleep(lsi_rank_control *rank, uint32_t ticket, int64_t timeout_ns) {
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    syscall(SYS_futex, &rank->bell, FUTEX_WAIT, ticket, &timeout, NULL, 0);
}

void lsi_bell_cancel(lsi_rank_control *rank) {
    atomic_store(&rank->asleep, 0);
}
