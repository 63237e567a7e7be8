/* What it costs to send data through shared memory between two cores, by how it is copied.
 *
 *     build/bench/lines
 *
 * Two processes, each bound to a processor of its own, write a block that the other then reads, in
 * turns. Ways of copying take turns too; medians, in nanoseconds per cache line. See
 * docs/decisions/009-lines-change-hands.md. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "comm/copy.h"

enum { N_ROUNDS = 101, LINE_BYTES = 64, MOST_BYTES = 256 << 10, MOST_WAYS = 4 };

typedef struct shared {
    struct {
        _Alignas(LINE_BYTES) _Atomic long count;
    } arrived[2];
    /* Each way has blocks of its own: what a write costs depends on how the block was read last. */
    _Alignas(4096) unsigned char block[MOST_WAYS][2][MOST_BYTES];
} shared;

typedef struct process {
    shared *s;
    int me;
    long count;
    unsigned char *plain;
} process;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void meet(process *p) {
    atomic_store_explicit(&p->s->arrived[p->me].count, ++p->count, memory_order_release);
    while (atomic_load_explicit(&p->s->arrived[1 - p->me].count, memory_order_acquire) < p->count)
        continue;
}

/* ---- ways ---- */

static void read_plainly(void *to, void *from, size_t bytes) {
    lsi_copy(to, from, bytes);
}

static void write_memcpy(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

static void read_memcpy(void *to, void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

typedef struct way {
    const char *name;
    void (*write)(void *to, const void *from, size_t bytes);
    void (*read)(void *to, void *from, size_t bytes);
} way;

static const way ways[] = {
    {"memcpy", write_memcpy, read_memcpy},
    {"plain lines", lsi_copy, read_plainly},
    {"taking", lsi_copy, lsi_copy_taking},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

/* ---- measuring ---- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, N_ROUNDS, sizeof *values, compare);
    return values[N_ROUNDS / 2];
}

static void measure(process *p, size_t bytes) {
    static double written[N_WAYS][N_ROUNDS], read[N_WAYS][N_ROUNDS];
    for (int round = -3; round < N_ROUNDS; round++)
        for (int w = 0; w < N_WAYS; w++) {
            meet(p);
            double begin = now_ns();
            ways[w].write(p->s->block[w][p->me], p->plain, bytes);
            double middle = now_ns();
            meet(p);
            double again = now_ns();
            ways[w].read(p->plain, p->s->block[w][1 - p->me], bytes);
            double end = now_ns();
            if (round < 0) continue;
            written[w][round] = middle - begin;
            read[w][round] = end - again;
        }
    if (p->me != 0) return;
    double n_lines = (double)(bytes / LINE_BYTES);
    printf("%8zu", bytes);
    for (int w = 0; w < N_WAYS; w++)
        printf("  %9.2f %9.2f", median(written[w]) / n_lines, median(read[w]) / n_lines);
    printf("\n");
    fflush(stdout);
}

static int run(process *p) {
    static const size_t sizes[] = {1 << 10, 4 << 10, 16 << 10, 64 << 10, MOST_BYTES};
    p->plain = aligned_alloc(4096, MOST_BYTES);
    if (!p->plain) return 1;
    memset(p->plain, 1, MOST_BYTES);
    (void)lsi_cpu_bind(p->me, 2);
    if (p->me == 0) {
        printf("nanoseconds per cache line, written / read\n%8s", "bytes");
        for (int w = 0; w < N_WAYS; w++) printf("  %19s", ways[w].name);
        printf("\n");
        fflush(stdout);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) measure(p, sizes[i]);
    free(p->plain);
    return 0;
}

int main(void) {
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return 1;
    memset(s, 0, sizeof *s);
    pid_t other = fork();
    if (other < 0) return 1;
    process p = {.s = s, .me = other == 0};
    int failed = run(&p);
    if (other == 0) _exit(failed);
    waitpid(other, NULL, 0);
    return failed;
}
