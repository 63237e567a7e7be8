/* Whether the processes of the ranks live. Whoever started them hears of a death first and says
 * most about it; this is for deaths that nobody is told about, such as that of a program which a
 * shell script among the workers had started. A pidfd stays that of one process even when its
 * number is given out again, and tells of the end without waiting for it.
 *
 * Ranks in containers of their own have pids that mean nothing here, or are a stranger's: they are
 * not looked at. */
#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/transport/control.h"

uint64_t lsi_pid_space(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* -1: it cannot be had; *gone says whether because there is no such process. */
static int pidfd_of(lsi_region *region, int rank, int pid, bool *gone) {
    int fd = atomic_load(&region->pidfd[rank]) - 1, none = 0;
    *gone = false;
    if (fd >= 0) return fd;
    fd = (int)syscall(SYS_pidfd_open, pid, 0);
    *gone = fd < 0 && errno == ESRCH;
    if (fd < 0 || atomic_compare_exchange_strong(&region->pidfd[rank], &none, fd + 1)) return fd;
    close(fd); /* another thread was faster */
    return none - 1;
}

/* The descriptor to look at for a rank; -1: not to be looked at. */
static int watch_rank(lsi_region *region, int rank, uint64_t pid_space, bool *gone) {
    lsi_rank_control *control = &region->world->ranks[rank];
    int pid = atomic_load(&control->pid);
    *gone = false;
    if (pid == 0 || pid == getpid() || atomic_load(&control->ended)) return -1;
    if (pid_space == 0 || atomic_load(&control->pid_space) != pid_space) return -1;
    return pidfd_of(region, rank, pid, gone);
}

int lsi_region_find_dead(lsi_region *region, int me) {
    uint64_t pid_space = atomic_load(&region->world->ranks[me].pid_space);
    struct pollfd look[LSI_MAX_RANKS];
    bool gone[LSI_MAX_RANKS];
    int n = region->control->n_ranks;
    for (int r = 0; r < n; r++)
        look[r] =
            (struct pollfd){.fd = watch_rank(region, r, pid_space, &gone[r]), .events = POLLIN};
    if (poll(look, (nfds_t)n, 0) < 0) return -1;
    /* A rank that leaves and then ends is not dead: it has left, and was seen to before. */
    for (int r = 0; r < n; r++)
        if ((gone[r] || look[r].revents) && !atomic_load(&region->world->ranks[r].ended)) return r;
    return -1;
}
