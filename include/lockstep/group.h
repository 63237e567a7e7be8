/* Process groups and collectives.
 *
 * A group is a fixed set of ranks 0 … world size - 1. Every collective is called by all ranks of
 * the group in the same order with the same count, dtype, operation and root; a difference is found
 * on every call and reported on every rank with both calls. The first error of a group sticks:
 * every later call on any rank returns it. The call during which it arose may have returned LS_OK
 * on some ranks, whose results are then right; on the others the content of outputs is undefined.
 * An error of the world ends the run: half a second later the launcher kills what is left of it. An
 * error of another group stays there.
 *
 * Buffers from ls_group_alloc_shared can be read and written by all ranks of the machine;
 * collectives on them copy nothing. Other buffers work too, through shared blocks in pieces. Counts
 * are 64-bit: more than 2^31 elements work.
 *
 * Order of reduction: ranks are combined pairwise in a fixed binary tree (the ranks split at the
 * largest power of two below their number, recursively), so results have the same bits on all
 * ranks, in all runs, with every algorithm that keeps the order (docs/collectives.md says which
 * do). BF16 and F16 are added in float32 and rounded once, to nearest even.
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

/* X(name, number, text). What `scale` does: SUM: multiplies once, after the sum. PREMUL_SUM:
 * multiplies this rank's input before the sum; ranks may give different ones. The others: must be 1
 * (LS_ERR_ARGUMENT). AVG divides the sum by the number of ranks: floating types multiply by
 * 1 / ranks, integers are divided, rounded towards zero. Integer sums and products wrap; integers
 * take only whole-numbered scales. MIN and MAX give NaN where any rank has NaN. */
#define LS_OP_TABLE(X)                                                                             \
    X(SUM, 1, "sum")                                                                               \
    X(AVG, 2, "avg")                                                                               \
    X(MIN, 3, "min")                                                                               \
    X(MAX, 4, "max")                                                                               \
    X(PROD, 5, "prod")                                                                             \
    X(PREMUL_SUM, 6, "premul-sum")

typedef enum ls_op {
#define LS_OP_ENUM(name, number, text) LS_OP_##name = number,
    LS_OP_TABLE(LS_OP_ENUM)
#undef LS_OP_ENUM
} ls_op;

/* "sum" and so on; "?" for a number outside the table. Any thread. */
LS_API const char *ls_op_name(ls_op op);

/* The group of the workers that `lockstep` started: made from what the launcher left in the
 * environment (LOCKSTEP_FD, LOCKSTEP_RANK), or a group of one rank when there is no launcher.
 * Collective, blocks until all ranks are there or timeout_ms (< 0: no deadline) is over; the
 * deadline of later waits is set by ls_group_set_timeout. Measures the machine for the choice of
 * algorithms, which takes a few milliseconds. The caller owns *group. Once per worker: LS_ERR_STATE
 * afterwards, even when the group was destroyed. */
LS_API LS_CHECKED ls_status ls_group_create(int64_t timeout_ms, ls_group **group);
/* Local; never fails; NULL does nothing. Works still in flight are cancelled: ranks that wait for
 * this one's part get LS_ERR_PEER. Handles of works end with the group. */
LS_API void ls_group_destroy(ls_group *group);

/* Groups of those ranks of `group` that give the same color, numbered by key, then by rank in
 * `group`. Collective over `group`; blocks with its default deadline. color < 0: takes part in no
 * new group, *part is NULL. The new group has its own order of calls and its own errors, starts
 * with the deadline of `group`, and is the caller's; groups may be destroyed in any order. As
 * MPI_Comm_split. */
LS_API LS_CHECKED ls_status ls_group_split(ls_group *group, int color, int key, ls_group **part);
/* A mesh of two axes, `replicate` outside, `shard` inside: rank = replica * shard_size + shard.
 * *shard: the shard_size consecutive ranks this rank belongs to; *replicate: the ranks with the
 * same number in theirs. Collective; shard_size must divide the world size. Both are the caller's.
 */
LS_API LS_CHECKED ls_status ls_group_mesh(ls_group *group, int shard_size, ls_group **replicate,
                                          ls_group **shard);

LS_API int ls_group_rank(const ls_group *group);
LS_API int ls_group_world_size(const ls_group *group);

/* Memory mapped by every rank of the machine, zeroed, aligned to 4096 bytes. Local, not collective:
 * ranks may allocate different sizes. Serves every group of the process. Freed by
 * ls_group_free_shared or with the last rank's group. LS_ERR_MEMORY says how much was asked for and
 * how much is left. The block of a work of this group that is not done stays allocated, since peers
 * may be in it; works of other groups must be done. */
LS_API LS_CHECKED ls_status ls_group_alloc_shared(ls_group *group, size_t bytes, void **ptr);
LS_API void ls_group_free_shared(ls_group *group, void *ptr);

/* ---- collectives; each posts a work, see ls_work_wait. work = NULL: blocks with the group's
 * default deadline. Buffers must stay untouched until the work is done. n is the world size.
 *
 * In place: output = input where both have the same size; where one has n parts and the other one,
 * the small one is the rank's own part of the large one. Other overlaps are LS_ERR_ARGUMENT, a
 * buffer of a work in flight is LS_ERR_BUSY (but two works may read the same one). Both are this
 * rank's alone and do not stick: nothing was posted, and the other ranks wait for this one's call.
 * Where only the root has a buffer, the others' pointer is not looked at. ---- */

/* output[i] = op over ranks of input[i], on every rank; count elements (0 is fine). Bytes read and
 * written per rank on shared buffers: 2 * count * size, the lower bound. */
LS_API LS_CHECKED ls_status ls_all_reduce(ls_group *group, const void *input, void *output,
                                          int64_t count, ls_dtype dtype, ls_op op, double scale,
                                          ls_work **work);
/* The same, output on the root only. */
LS_API LS_CHECKED ls_status ls_reduce(ls_group *group, const void *input, void *output,
                                      int64_t count, ls_dtype dtype, ls_op op, double scale,
                                      int root, ls_work **work);
/* input: n * count elements; output: the rank's own count elements of the reduction. */
LS_API LS_CHECKED ls_status ls_reduce_scatter(ls_group *group, const void *input, void *output,
                                              int64_t count, ls_dtype dtype, ls_op op, double scale,
                                              ls_work **work);
/* The same with counts[r] elements for rank r, one behind the other; counts has n numbers, the same
 * on all ranks, and is copied. */
LS_API LS_CHECKED ls_status ls_reduce_scatter_v(ls_group *group, const void *input, void *output,
                                                const int64_t *counts, ls_dtype dtype, ls_op op,
                                                double scale, ls_work **work);
/* input: count elements; output: n * count elements in rank order. */
LS_API LS_CHECKED ls_status ls_all_gather(ls_group *group, const void *input, void *output,
                                          int64_t count, ls_dtype dtype, ls_work **work);
/* The same with counts[r] elements from rank r, as in ls_reduce_scatter_v. */
LS_API LS_CHECKED ls_status ls_all_gather_v(ls_group *group, const void *input, void *output,
                                            const int64_t *counts, ls_dtype dtype, ls_work **work);
/* The root's input, count elements, to the output of all. */
LS_API LS_CHECKED ls_status ls_broadcast(ls_group *group, const void *input, void *output,
                                         int64_t count, ls_dtype dtype, int root, ls_work **work);
/* input: count elements; output, on the root only: n * count elements in rank order. */
LS_API LS_CHECKED ls_status ls_gather(ls_group *group, const void *input, void *output,
                                      int64_t count, ls_dtype dtype, int root, ls_work **work);
/* input, on the root only: n * count elements; output: the rank's own count elements. */
LS_API LS_CHECKED ls_status ls_scatter(ls_group *group, const void *input, void *output,
                                       int64_t count, ls_dtype dtype, int root, ls_work **work);
/* input and output: n * count elements; part p of the input goes to rank p, part p of the output
 * comes from rank p. */
LS_API LS_CHECKED ls_status ls_all_to_all(ls_group *group, const void *input, void *output,
                                          int64_t count, ls_dtype dtype, ls_work **work);
/* As ls_reduce_scatter_v without the reduction: part p of the input, counts[p] elements, goes to
 * rank p; output: n * counts[rank] elements, part p from rank p. counts has n numbers, the same on
 * all ranks, and is copied. Never in place. Bytes read from others: (n - 1) * counts[rank] * size;
 * where all inputs are shared nothing else is copied, wherever the outputs are. */
LS_API LS_CHECKED ls_status ls_all_to_all_v(ls_group *group, const void *input, void *output,
                                            const int64_t *counts, ls_dtype dtype, ls_work **work);
/* Returns when every rank has called it. */
LS_API LS_CHECKED ls_status ls_barrier(ls_group *group, ls_work **work);

/* ---- between two ranks; local. The k-th send from a to b meets the k-th receive on b from a; both
 * must have the same count and dtype (a difference is LS_ERR_MISMATCH, a first error of the group).
 * They go on beside collectives. A send is done when its buffer may be used again, which may be
 * before the receive; the sender then gets that error from its next call.
 * To oneself: a send and a receive, at least the first of them not waited for. ---- */

LS_API LS_CHECKED ls_status ls_send(ls_group *group, const void *buffer, int64_t count,
                                    ls_dtype dtype, int to, ls_work **work);
LS_API LS_CHECKED ls_status ls_recv(ls_group *group, void *buffer, int64_t count, ls_dtype dtype,
                                    int from, ls_work **work);

/* ---- grouped calls: between begin and end no call waits (`work` must be NULL), so sends and
 * receives in any order cannot block each other; end waits for all of them or, with work, hands out
 * one handle for all. Batches do not nest. The first error of a call within is returned by it and
 * again by end. ---- */

LS_API LS_CHECKED ls_status ls_batch_begin(ls_group *group);
LS_API LS_CHECKED ls_status ls_batch_end(ls_group *group, ls_work **work);

/* ---- works ---- */

/* Moves works of the group on, as far as possible without waiting, and says in *done whether this
 * one is finished. Where it fails, *done is left as it was: look at the status. Does not release
 * it. */
LS_API LS_CHECKED ls_status ls_work_test(ls_work *work, int *done);
/* Blocks until done or timeout_ms (< 0: the group's default) is over, and releases the work
 * whatever the result. LS_ERR_TIMEOUT names the ranks that have not arrived and in which call they
 * are. */
LS_API LS_CHECKED ls_status ls_work_wait(ls_work *work, int64_t timeout_ms);
/* Moves posted works on without waiting (call it now and then while computing). */
LS_API LS_CHECKED ls_status ls_group_progress(ls_group *group);
/* Who moves works on between calls: 1 a thread of the group, 0 the callers ("inline"); *reason is a
 * sentence that says why, valid as long as the group. Decided when the group was made: a thread
 * where each rank of the machine has a processor to spare (affinity and cgroup quota), or as the
 * environment variable LOCKSTEP_PROGRESS (thread, inline) says. */
LS_API int ls_group_has_thread(const ls_group *group, const char **reason);

/* ---- failure ---- */

/* Makes every present and future wait on every rank of the group return `status` (LS_OK counts as
 * LS_ERR_ABORTED) with `reason` and this rank's number in the group. The first error wins. Any
 * thread; does not block. */
LS_API void ls_group_abort(ls_group *group, ls_status status, const char *reason);
/* LS_OK, or the group's first error with its message set for this thread. */
LS_API LS_CHECKED ls_status ls_group_status(ls_group *group);
/* Deadline of waits without their own; < 0: none. Default 300,000 ms. */
LS_API void ls_group_set_timeout(ls_group *group, int64_t timeout_ms);

/* ---- choice of algorithms ---- */

/* How one call would be done: the cheapest by the measured costs, or the one that is forced by the
 * environment variable LOCKSTEP_ALGO (docs/collectives.md). */
typedef struct ls_choice {
    const char *algorithm; /* "direct" (or staged: buffers decide), "ring" …; static */
    double time_us;        /* what the cost model expects */
    int forced;            /* 1: LOCKSTEP_ALGO says so */
} ls_choice;

/* Collectives are named as in `lockstep bench`: "allreduce", "reducescatter", …. Local. `all`, if
 * not NULL, takes up to n_all choices: every algorithm that can do the call, the cheapest first;
 * *n_found says how many there are. LS_ERR_ARGUMENT for an unknown collective. */
LS_API LS_CHECKED ls_status ls_group_choose(const ls_group *group, const char *collective,
                                            int64_t count, ls_dtype dtype, ls_choice *choice,
                                            ls_choice *all, int n_all, int *n_found);

#ifdef __cplusplus
}
#endif
#endif
