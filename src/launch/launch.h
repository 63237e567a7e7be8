/* Starting and supervising the workers of one machine.
 *
 * The parent creates the shared region, forks the workers, waits for them, and is the one who
 * notices deaths: a worker that ends badly aborts the region with a message that names rank, pid
 * and exit status; the others get grace_ms to end by themselves, then SIGKILL. Workers die with
 * their parent (PR_SET_PDEATHSIG), so none is left after kill -9 of anyone. A worker leads a
 * process group of its own; when it ends badly, what it started dies with it. (After kill -9 of the
 * launcher only the workers die: what a worker had started itself is not ours to know then.) */
#ifndef LSI_LAUNCH_LAUNCH_H
#define LSI_LAUNCH_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "comm/region.h"

typedef struct lsi_launch_opts {
    int n_workers;
    size_t shared_bytes;  /* address space for shared buffers of all ranks; 0: from memory size */
    int64_t grace_ms;     /* between the first failure and SIGKILL; 0: 500 */
    int64_t stop_ms;      /* between SIGINT or SIGTERM and the end of patience; 0: 60,000 */
    bool bind;            /* each worker to its share of the processors */
    bool forward_signals; /* also send the first SIGINT, SIGTERM or SIGHUP to the workers: for
                             programs that know nothing of lsi_region_stop_requested */
    const char *recorder_path; /* NULL: none. When the run fails, the last calls of all ranks are
                                  written there (comm/record.h), and the message says so */
} lsi_launch_opts;

/* Body of a worker; its status becomes the worker's exit code. The region is already attached. */
typedef ls_status (*lsi_worker_fn)(lsi_region *region, int rank, void *context);

/* Runs body in n_workers processes and waits. Returns LS_OK when all did, otherwise the first
 * failure with its message ("rank 2 (pid 71) was killed by signal 9 (Killed) at step 17").
 * SIGINT / SIGTERM: the first asks workers to stop after the current step
 * (lsi_region_stop_requested), a second one, or stop_ms later, aborts them. SIGHUP is the same
 * unless the caller ignores it (nohup). Ignoring SIGCHLD does no harm. */
LS_CHECKED ls_status lsi_launch(const lsi_launch_opts *opts, lsi_worker_fn body, void *context);

#endif
