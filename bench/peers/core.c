/* The measuring core of the comparison (see core.h). Plain C without Lockstep's library, so that
 * every engine runs the same instructions around its calls. */
#include "core.h"

#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_RANKS = 64,
    MAX_SIZES = 64,
    LINE_BYTES = 64,
    MAX_BATCH = 64,
    BATCH_BYTES = 128 << 10,
    MAX_ITERATIONS = 401,
    N_WARMUP = 2,
    LEAST_ITERATIONS = 3,
    BUDGET_US = 1000 * 1000, /* of one size */
    /* more iterations where they cost nothing */
    SMALL_BYTES = 64 << 10,
    MIDDLE_BYTES = 4 << 20,
    SMALL_FACTOR = 10,
    MIDDLE_FACTOR = 4,
};

static const char *const names[PEER_N_KINDS] = {"allreduce", "reducescatter", "allgather",
                                                "allgather-inplace", "broadcast"};

typedef struct bench {
    const peer_engine *engine;
    char *large, *small; /* batches of buffers */
    int64_t n_filled;
} bench;

typedef struct point {
    peer_kind kind;
    int64_t bytes, count; /* of the large buffer; of the call */
    size_t stride;        /* between the buffers of a batch */
    int n_batch, n_iterations;
} point;

void peer_fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- values: small whole numbers, another beginning for each call ---- */

static float value_at(int rank, int64_t at) {
    return (float)((at + 3 * rank) % 7);
}

static float sum_at(int n_ranks, int64_t at) {
    float sum = 0;
    for (int r = 0; r < n_ranks; r++) sum += value_at(r, at);
    return sum;
}

/* Seven numbers over and over, written as fast as memory takes them. */
static void fill(float *to, int64_t count, int rank, int64_t at) {
    enum { TILE = 7 * 64 };
    float tile[TILE];
    for (int i = 0; i < TILE; i++) tile[i] = value_at(rank, at + i);
    for (; count > TILE; count -= TILE, to += TILE) memcpy(to, tile, sizeof tile);
    memcpy(to, tile, (size_t)count * sizeof *to);
}

static void expect(const float *found, int64_t count, int64_t at, int rank, int n_ranks,
                   const char *what) {
    float period[7];
    for (int i = 0; i < 7; i++)
        period[i] = rank < 0 ? sum_at(n_ranks, at + i) : value_at(rank, at + i);
    for (int64_t i = 0; i < count; i++)
        if (found[i] != period[i % 7])
            peer_fail("%s: element %lld of %lld is %g, expected %g", what, (long long)i,
                      (long long)count, (double)found[i], (double)period[i % 7]);
}

/* ---- one batch ---- */

static float *large_of(const bench *b, const point *p, int k) {
    return (float *)(void *)(b->large + (size_t)k * p->stride);
}
static float *own_part_of(const bench *b, const point *p, int k) {
    return large_of(b, p, k) + b->engine->rank * p->count;
}
static float *small_of(const bench *b, const point *p, int k) {
    return (float *)(void *)(b->small + (size_t)k * p->stride);
}

static int is_all_gather(peer_kind kind) {
    return kind == PEER_ALL_GATHER || kind == PEER_ALL_GATHER_IN_PLACE;
}

/* What call k of this batch works on begins at n_filled + k. */
static void rewrite(bench *b, const point *p) {
    b->n_filled += p->n_batch;
    for (int k = 0; k < p->n_batch; k++) {
        float *to = p->kind == PEER_ALL_GATHER            ? small_of(b, p, k)
                    : p->kind == PEER_ALL_GATHER_IN_PLACE ? own_part_of(b, p, k)
                                                          : large_of(b, p, k);
        int64_t count = is_all_gather(p->kind) ? p->count : p->bytes / (int64_t)sizeof(float);
        fill(to, count, b->engine->rank, b->n_filled + k);
    }
}

static double time_batch(bench *b, const point *p) {
    void (*call)(float *, float *, int64_t) = b->engine->call[p->kind];
    rewrite(b, p);
    b->engine->barrier();
    double begin_us = now_us();
    for (int k = 0; k < p->n_batch; k++) call(large_of(b, p, k), small_of(b, p, k), p->count);
    return (now_us() - begin_us) / p->n_batch;
}

/* The outputs of the last batch. */
static void check(const bench *b, const point *p) {
    const peer_engine *e = b->engine;
    for (int k = 0; k < p->n_batch; k++) {
        const float *large = large_of(b, p, k), *small = small_of(b, p, k);
        int64_t at = b->n_filled + k;
        switch (p->kind) {
        case PEER_ALL_REDUCE: expect(large, p->count, at, -1, e->n_ranks, names[p->kind]); break;
        case PEER_REDUCE_SCATTER:
            expect(small, p->count, at + e->rank * p->count, -1, e->n_ranks, names[p->kind]);
            break;
        case PEER_ALL_GATHER:
        case PEER_ALL_GATHER_IN_PLACE:
            for (int r = 0; r < e->n_ranks; r++)
                expect(large + r * p->count, p->count, at, r, e->n_ranks, names[p->kind]);
            break;
        case PEER_BROADCAST: expect(large, p->count, at, 0, e->n_ranks, names[p->kind]); break;
        case PEER_N_KINDS: break;
        }
    }
}

/* ---- one size ---- */

static int n_iterations_of(int64_t bytes, int least) {
    int n = bytes <= SMALL_BYTES    ? least * SMALL_FACTOR
            : bytes <= MIDDLE_BYTES ? least * MIDDLE_FACTOR
                                    : least;
    return n < MAX_ITERATIONS ? n : MAX_ITERATIONS;
}

static point make_point(const peer_engine *e, peer_kind kind, int64_t bytes, int least) {
    int parts = kind == PEER_REDUCE_SCATTER || is_all_gather(kind) ? e->n_ranks : 1;
    point p = {.kind = kind, .count = bytes / (int64_t)sizeof(float) / parts};
    if (p.count < 1) p.count = 1;
    p.bytes = p.count * (int64_t)sizeof(float) * parts;
    p.stride = ((size_t)p.bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    size_t n = BATCH_BYTES / p.stride;
    p.n_batch = n < 1 ? 1 : n > MAX_BATCH ? MAX_BATCH : (int)n;
    p.n_iterations = n_iterations_of(bytes, least);
    return p;
}

static double slowest(const peer_engine *e, double us) {
    double all[MAX_RANKS];
    e->gather(us, all);
    for (int r = 0; r < e->n_ranks; r++)
        if (all[r] > us) us = all[r];
    return us;
}

/* An engine that spins while its ranks share processors needs milliseconds where others need one
 * microsecond: fewer calls then. All ranks see the same time, so they decide alike; the first call
 * sets up connections and does not count. */
static void fit_into_budget(bench *b, point *p) {
    int n_batch = p->n_batch;
    double call_us = 0;
    p->n_batch = 1;
    for (int i = 0; i < N_WARMUP; i++) call_us = slowest(b->engine, time_batch(b, p));
    double n_calls = BUDGET_US / call_us;
    p->n_batch = n_calls / LEAST_ITERATIONS < n_batch ? (int)(n_calls / LEAST_ITERATIONS) : n_batch;
    if (p->n_batch < 1) p->n_batch = 1;
    double n = n_calls / p->n_batch;
    if (n < p->n_iterations) p->n_iterations = n > LEAST_ITERATIONS ? (int)n : LEAST_ITERATIONS;
}

static void measure(bench *b, peer_kind kind, int64_t bytes, int least) {
    const peer_engine *e = b->engine;
    double us[MAX_ITERATIONS];
    point p = make_point(e, kind, bytes, least);
    fit_into_budget(b, &p);
    for (int i = -N_WARMUP; i < p.n_iterations; i++) us[i < 0 ? 0 : i] = time_batch(b, &p);
    check(b, &p);
    for (int i = 0; i < p.n_iterations; i++) us[i] = slowest(e, us[i]);
    qsort(us, (size_t)p.n_iterations, sizeof *us, compare);
    if (e->rank == 0)
        printf("%s %lld %.3f\n", names[kind], (long long)bytes, us[p.n_iterations / 2]);
    fflush(stdout);
}

/* ---- all ---- */

static int parse_sizes(const char *text, int64_t *sizes) {
    static const char suffixes[] = "KMG";
    int n = 0;
    char *end;
    for (; *text; text = end) {
        long long bytes = strtoll(text, &end, 10);
        const char *suffix = *end && *end != ' ' ? strchr(suffixes, *end) : NULL;
        if (suffix) {
            bytes <<= 10 * (suffix - suffixes + 1);
            end++;
        }
        if (bytes < 1 || (*end && *end != ' ') || n == MAX_SIZES)
            peer_fail("SIZES: expected up to %d numbers with K, M or G, found '%s'", MAX_SIZES,
                      text);
        sizes[n++] = bytes;
        end += strspn(end, " ");
    }
    return n;
}

static int is_wanted(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at++)
        if ((at == list || at[-1] == ' ') && (at[length] == '\0' || at[length] == ' ')) return 1;
    return 0;
}

int peer_measure(const peer_engine *engine, int argc, char **argv) {
    int64_t sizes[MAX_SIZES], largest = BATCH_BYTES;
    if (argc != 4) peer_fail("usage: %s COLLECTIVES SIZES ITERATIONS", argv[0]);
    if (engine->n_ranks > MAX_RANKS) peer_fail("at most %d ranks", MAX_RANKS);
    int n_sizes = parse_sizes(argv[2], sizes), least = atoi(argv[3]);
    if (least < 1) peer_fail("ITERATIONS: expected 1 or more, found '%s'", argv[3]);
    for (int i = 0; i < n_sizes; i++)
        if (sizes[i] > largest) largest = sizes[i];
    size_t bytes = (size_t)largest + (size_t)LINE_BYTES * MAX_BATCH;
    bench b = {engine, engine->alloc(bytes), engine->alloc(bytes), 0};
    if (!b.large || !b.small) peer_fail("%s: no memory for %zu bytes", engine->name, bytes);
    memset(b.large, 0, bytes);
    memset(b.small, 0, bytes);
    for (int kind = 0; kind < PEER_N_KINDS; kind++) {
        if (!engine->call[kind] || !is_wanted(argv[1], names[kind])) continue;
        for (int i = 0; i < n_sizes; i++) measure(&b, (peer_kind)kind, sizes[i], least);
    }
    return 0;
}

/* ---- ranks ---- */

void peer_bind(int rank, int n_ranks) {
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < n_ranks) return;
    CPU_ZERO(&one);
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && n++ == rank) CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

int peer_fork(int n_ranks) {
    int rank = 0;
    pid_t parent = getpid();
    fflush(NULL);
    while (rank + 1 < n_ranks) {
        pid_t pid = fork();
        if (pid < 0) peer_fail("fork failed");
        rank++;
        if (pid != 0) {
            if (rank + 1 < n_ranks) continue;
            rank = 0; /* the parent, once all others are there */
            break;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        break;
    }
    return rank;
}
