/* What one writes in thirty lines when everything is known: the ranks' buffers are mapped by all,
 * each rank adds its slice of everybody's and writes it back to all, a barrier before and one
 * after. No other collective, no check of calls, no deadline, no sleeping, fp32 sums only: the
 * floor that a library for all of this is held against.
 *
 * --latency: prints the nanoseconds that a cache line needs from one rank to the other, instead. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core.h"

enum { MAX_RANKS = 64, N_BUFFERS = 2, N_BLOCKS = 100, TRIPS = 200, LOOKS_BEFORE_YIELD = 4096 };
#define BUFFER_BYTES ((size_t)2 << 30) /* address space; pages come when touched */

typedef struct line {
    _Alignas(64) atomic_long arrived;
    double number;
} line;

static line *lines;
static char *buffers[MAX_RANKS]; /* of all ranks */
static int rank, n_ranks, n_taken;
static long n_barriers;

static void *map_shared(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) peer_fail("sketch: no memory");
    return memory;
}

static void *alloc(size_t bytes) {
    if (bytes > BUFFER_BYTES || n_taken == N_BUFFERS) return NULL;
    return buffers[rank] + BUFFER_BYTES * (size_t)n_taken++;
}

static void relax(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static void barrier(void) {
    int looks = 0;
    n_barriers++;
    atomic_store_explicit(&lines[rank].arrived, n_barriers, memory_order_release);
    for (int r = 0; r < n_ranks; r++)
        while (atomic_load_explicit(&lines[r].arrived, memory_order_acquire) < n_barriers) {
            relax();
            if (++looks % LOOKS_BEFORE_YIELD == 0) sched_yield();
        }
}

static void gather(double mine, double *all) {
    lines[rank].number = mine;
    barrier();
    for (int r = 0; r < n_ranks; r++) all[r] = lines[r].number;
    barrier();
}

static void add_two(float *restrict a, float *restrict b, int64_t n) {
    for (int64_t i = 0; i < n; i++) a[i] = b[i] = a[i] + b[i];
}

static void add_many(size_t at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < n_ranks; r++) sum += ((float *)(void *)(buffers[r] + at))[i];
        for (int r = 0; r < n_ranks; r++) ((float *)(void *)(buffers[r] + at))[i] = sum;
    }
}

static void all_reduce(float *large, float *small, int64_t count) {
    (void)small;
    int64_t first = count * rank / n_ranks, last = count * (rank + 1) / n_ranks;
    size_t at = (size_t)((char *)(large + first) - buffers[rank]);
    barrier();
    if (n_ranks == 2)
        add_two((float *)(void *)(buffers[0] + at), (float *)(void *)(buffers[1] + at),
                last - first);
    else
        add_many(at, last - first);
    barrier();
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A line to and fro, between ranks 0 and 1. */
static void trip(void) {
    n_barriers++;
    if (rank == 0) atomic_store_explicit(&lines[0].arrived, n_barriers, memory_order_release);
    while (atomic_load_explicit(&lines[1 - rank].arrived, memory_order_acquire) < n_barriers)
        continue;
    if (rank == 1) atomic_store_explicit(&lines[1].arrived, n_barriers, memory_order_release);
}

/* Half of a trip, in the blocks that were disturbed least: their lower quartile. */
static void print_latency(void) {
    double ns[N_BLOCKS];
    barrier();
    for (int b = 0; b < N_BLOCKS; b++) {
        double begin_ns = now_ns();
        for (int i = 0; i < TRIPS; i++) trip();
        ns[b] = (now_ns() - begin_ns) / (2.0 * TRIPS);
    }
    qsort(ns, N_BLOCKS, sizeof *ns, compare);
    if (rank == 0) printf("%.1f\n", ns[N_BLOCKS / 4]);
}

int main(int argc, char **argv) {
    const char *ranks = getenv("PEER_RANKS");
    int is_latency = argc == 2 && strcmp(argv[1], "--latency") == 0;
    n_ranks = ranks ? atoi(ranks) : 2;
    if (is_latency) n_ranks = 2;
    if (n_ranks < 1 || n_ranks > MAX_RANKS) peer_fail("PEER_RANKS: expected 1 to %d", MAX_RANKS);
    lines = map_shared(sizeof *lines * MAX_RANKS);
    for (int r = 0; r < n_ranks; r++) buffers[r] = map_shared(N_BUFFERS * BUFFER_BYTES);
    rank = peer_fork(n_ranks);
    peer_bind(rank, n_ranks);
    if (is_latency) {
        print_latency();
        return 0;
    }
    const peer_engine engine = {.name = "sketch",
                                .rank = rank,
                                .n_ranks = n_ranks,
                                .alloc = alloc,
                                .barrier = barrier,
                                .gather = gather,
                                .call = {all_reduce}};
    return peer_measure(&engine, argc, argv);
}
