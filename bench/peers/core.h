/* What all engines of the comparison share: sizes, buffers, rewriting, timing and printing.
 *
 * An engine says who it is and how it does a call; peer_measure does the rest, in the same way for
 * all of them: a batch of calls, each on a buffer of its own that its rank rewrote before, as a
 * backward pass does, an untimed barrier, two readings of the clock around the batch, and of each
 * iteration the time of the slowest rank. Of these the median is printed by rank 0, one line
 *
 *     COLLECTIVE BYTES MICROSECONDS
 *
 * per size. BYTES are those of the larger of a rank's two buffers. float32, sum. All-reduce and
 * broadcast are in place, reduce-scatter and all-gather from one buffer to another: the forms that
 * every engine offers. All-gather is measured in place as well, each rank's part lying where it
 * belongs, as where parameters are gathered from shards. The last output of each size is checked; a
 * wrong one ends the program.
 *
 * Small calls follow each other without a pause, so where only one rank has something to give
 * (broadcast) an engine may run ahead: its figure is then the time between calls, not the time
 * until the last rank has the data.
 *
 * Words of the command line: COLLECTIVES, then SIZES ("8 1K 64K"), each one word, then ITERATIONS
 * of the large sizes; small ones take more. */
#ifndef BENCH_PEERS_CORE_H
#define BENCH_PEERS_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum peer_kind {
    PEER_ALL_REDUCE,          /* large: count elements, in place; small: not used */
    PEER_REDUCE_SCATTER,      /* large: n * count in; small: count out */
    PEER_ALL_GATHER,          /* small: count in; large: n * count out */
    PEER_ALL_GATHER_IN_PLACE, /* large: n * count, of which the own count are there */
    PEER_BROADCAST,           /* large: count elements, from rank 0 */
    PEER_N_KINDS
} peer_kind;

typedef struct peer_engine {
    const char *name;
    int rank, n_ranks;
    /* Memory for buffers, as this engine's users get it; NULL when there is none. */
    void *(*alloc)(size_t bytes);
    void (*barrier)(void);
    /* numbers of all ranks, in rank order */
    void (*gather)(double mine, double *all);
    /* NULL: the engine has no such collective */
    void (*call[PEER_N_KINDS])(float *large, float *small, int64_t count);
} peer_engine;

/* Returns the program's exit code. */
int peer_measure(const peer_engine *engine, int argc, char **argv);
/* For engines that start their ranks by themselves: forks n_ranks - 1 times; the rank. */
int peer_fork(int n_ranks);
/* Keeps a rank without helper threads on a processor of its own, if there are enough. */
void peer_bind(int rank, int n_ranks);
/* Says what is wrong and ends the process. */
void peer_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#ifdef __cplusplus
}
#endif
#endif
