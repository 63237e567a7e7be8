/* Process groups and collectives.
 *
 * A group is a fixed set of ranks 0 … world size - 1. Every collective is called by all ranks of
 * the group in the same order with the same count, dtype and operation; a difference is found on
 * every call and reported on every rank with both calls. The first error of a group sticks: every
 * later call on any rank returns it. The call during which it arose may have returned LS_OK on some
 * ranks, whose results are then right; on the others the content of outputs is undefined.
 *
 * Buffers from ls_group_alloc_shared can be read and written by all ranks of the machine;
 * collectives on them copy nothing. Other buffers work too, through shared blocks in pieces.
 *
 * Summation order: ranks are added pairwise in a fixed binary tree (the ranks split at the largest
 * power of two below their number, recursively), so results have the same bits on all ranks, in
 * all runs, whatever the algorithm. `scale` multiplies once, after the sum.
 *
 * Threads: one thread at a time per group handle, but ls_group_abort from any thread. A group
 * belongs to the process that made it: after fork the child must make no calls on it (destroying
 * its copy is harmless). */
#ifndef LOCKSTEP_GROUP_H
#define LOCKSTEP_GROUP_H

#include <stdint.h>

#include <lockstep/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_group ls_group;
typedef struct ls_work ls_work;

typedef enum ls_op {
    LS_OP_SUM = 1,
} ls_op;

/* The group of the workers that `lockstep` started: made from what the launcher left in the
 * environment (LOCKSTEP_FD, LOCKSTEP_RANK), or a group of one rank when there is no launcher.
 * Collective, blocks until all ranks are there or timeout_ms (< 0: no deadline) is over. The caller
 * owns *group. Once per worker: LS_ERR_STATE afterwards, even when the group was destroyed. */
LS_API LS_CHECKED ls_status ls_group_create(int64_t timeout_ms, ls_group **group);
/* Local; never fails; NULL does nothing. Works still in flight are cancelled: ranks that wait for
 * this one's part get LS_ERR_PEER. Handles of works end with the group. */
LS_API void ls_group_destroy(ls_group *group);

LS_API int ls_group_rank(const ls_group *group);
LS_API int ls_group_world_size(const ls_group *group);

/* Memory mapped by every rank of the machine, zeroed, aligned to 4096 bytes. Local, not
 * collective: ranks may allocate different sizes. Freed by ls_group_free_shared or with the last
 * rank's group. LS_ERR_MEMORY says how much was asked for and how much is left. The block of a
 * work that is not done stays allocated, since peers may be in it. */
LS_API LS_CHECKED ls_status ls_group_alloc_shared(ls_group *group, size_t bytes, void **ptr);
LS_API void ls_group_free_shared(ls_group *group, void *ptr);

/* ---- collectives; each posts a work, see ls_work_wait. work = NULL: blocks with the group's
 * default deadline. Buffers must stay untouched until the work is done. In place: output = input
 * (for reduce-scatter and all-gather: the rank's own part of the large buffer); other overlaps are
 * LS_ERR_ARGUMENT, a buffer of a work in flight is LS_ERR_BUSY. ---- */

/* output[i] = scale * sum over ranks of input[i]; count elements (0 is fine). Bytes read and
 * written per rank on shared buffers: 2 * count * size, the lower bound. */
LS_API LS_CHECKED ls_status ls_all_reduce(ls_group *group, const void *input, void *output,
                                          int64_t count, ls_dtype dtype, ls_op op, double scale,
                                          ls_work **work);
/* input: world size * count elements; output: the rank's own count elements of the scaled sum. */
LS_API LS_CHECKED ls_status ls_reduce_scatter(ls_group *group, const void *input, void *output,
                                              int64_t count, ls_dtype dtype, ls_op op, double scale,
                                              ls_work **work);
/* input: count elements; output: world size * count elements in rank order. */
LS_API LS_CHECKED ls_status ls_all_gather(ls_group *group, const void *input, void *output,
                                          int64_t count, ls_dtype dtype, ls_work **work);
/* The root's count elements to all ranks, in place. */
LS_API LS_CHECKED ls_status ls_broadcast(ls_group *group, void *buffer, int64_t count,
                                         ls_dtype dtype, int root, ls_work **work);
/* Returns when every rank has called it. */
LS_API LS_CHECKED ls_status ls_barrier(ls_group *group, ls_work **work);

/* ---- works ---- */

/* Moves works of the group on, as far as possible without waiting, and says in *done whether this
 * one is finished. Does not release it. */
LS_API LS_CHECKED ls_status ls_work_test(ls_work *work, int *done);
/* Blocks until done or timeout_ms (< 0: the group's default) is over, and releases the work
 * whatever the result. LS_ERR_TIMEOUT names the ranks that have not arrived and in which call they
 * are. */
LS_API LS_CHECKED ls_status ls_work_wait(ls_work *work, int64_t timeout_ms);
/* Moves posted works on without waiting (call it now and then while computing). */
LS_API LS_CHECKED ls_status ls_group_progress(ls_group *group);

/* ---- failure ---- */

/* Makes every present and future wait on every rank of the group return `status` with `reason`
 * (and this rank's number). The first abort wins. Any thread; does not block. */
LS_API void ls_group_abort(ls_group *group, ls_status status, const char *reason);
/* LS_OK, or the group's first error with its message set for this thread. */
LS_API LS_CHECKED ls_status ls_group_status(ls_group *group);
/* Deadline of waits without their own; < 0: none. Default 300,000 ms. */
LS_API void ls_group_set_timeout(ls_group *group, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
