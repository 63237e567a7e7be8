/* What a benchmark's figures depend on and cannot change: the distance between ranks, whether huge
 * pages back the buffers, the caches.
 *
 * Distance: rank 0 sends a cache line to one rank at a time and gets it back. The machine drifts
 * (a virtual core may move to another cache within minutes), so the benchmark measures it at its
 * beginning and at its end. Of the blocks of trips the lower quartile counts: what else runs on the
 * machine, or two ranks that begin on one processor, can only lengthen a block. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench.h"

enum { N_BLOCKS = 201, TRIPS_PER_BLOCK = 200, LOOKS_BEFORE_YIELD = 4096 };
enum { LATENCY_LIMIT_NS = 40 * 1000 * 1000, GUESSED_CACHE_BYTES = 32 << 20 };

ls_status bench_board_create(bench_board **board) {
    void *memory =
        mmap(NULL, sizeof **board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return lsi_fail_errno(LS_ERR_MEMORY, "bench: mmap");
    *board = memory;
    return LS_OK;
}

/* ---- latency ---- */

/* Ranks may share a processor: then nothing comes until this one is given up. */
static uint64_t await_above(atomic_uint_fast64_t *flag, uint64_t least) {
    uint64_t value;
    for (int looks = 0; (value = atomic_load_explicit(flag, memory_order_acquire)) < least;)
        if (++looks % LOOKS_BEFORE_YIELD == 0) sched_yield();
    return value;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Rank 0's side: the numbers rise over all measurements; the last one has the stop bit. */
enum { STOP_SHIFT = 62 };

static double ping(atomic_uint_fast64_t *to, atomic_uint_fast64_t *from) {
    double block_ns[N_BLOCKS];
    uint64_t number = atomic_load(to);
    int n = 0;
    int64_t begin_ns = lsi_now_ns(), last_ns = begin_ns;
    while (n < N_BLOCKS && (n < 1 || last_ns - begin_ns < LATENCY_LIMIT_NS)) {
        for (int i = 0; i < TRIPS_PER_BLOCK; i++) {
            atomic_store_explicit(to, ++number, memory_order_release);
            await_above(from, number);
        }
        int64_t now_ns = lsi_now_ns();
        block_ns[n++] = (double)(now_ns - last_ns) / (2 * TRIPS_PER_BLOCK);
        last_ns = now_ns;
    }
    atomic_store_explicit(to, (uint64_t)1 << STOP_SHIFT, memory_order_release);
    await_above(from, (uint64_t)1 << STOP_SHIFT);
    qsort(block_ns, (size_t)n, sizeof *block_ns, compare);
    return block_ns[n / 4];
}

static void pong(atomic_uint_fast64_t *from, atomic_uint_fast64_t *to) {
    uint64_t number = 0;
    while (number < (uint64_t)1 << STOP_SHIFT) {
        number = await_above(from, number + 1);
        atomic_store_explicit(to, number, memory_order_release);
    }
}

ls_status bench_measure_latency(ls_group *group, bench_board *board, bench_latency *latency) {
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    *latency = (bench_latency){0, 0};
    for (int peer = 1; peer < n_ranks; peer++) {
        if (rank == 0) { /* the flags of an earlier measurement: its end was seen here last */
            atomic_store(&board->pair[peer].ping, 0);
            atomic_store(&board->pair[peer].pong, 0);
        }
        LSI_TRY(ls_barrier(group, NULL));
        if (rank == peer) pong(&board->pair[peer].ping, &board->pair[peer].pong);
        if (rank != 0) continue;
        double ns = ping(&board->pair[peer].ping, &board->pair[peer].pong);
        if (peer == 1 || ns < latency->least_ns) latency->least_ns = ns;
        if (ns > latency->most_ns) latency->most_ns = ns;
    }
    return LS_OK;
}

/* ---- pages ---- */

static bool is_huge_field(const char *name) {
    static const char *const names[] = {"AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

bool bench_huge_pages(const void *start, size_t bytes, int64_t *mapped_bytes, int64_t *huge_bytes) {
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return false;
    unsigned long first = (unsigned long)(uintptr_t)start, last = first + bytes;
    char line[512];
    bool inside = false;
    *mapped_bytes = *huge_bytes = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long from, to;
        char name[64];
        long long kib;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            inside = from < last && to > first;
        } else if (inside && sscanf(line, "%63[A-Za-z_]: %lld kB", name, &kib) == 2) {
            if (strcmp(name, "Rss") == 0) *mapped_bytes += kib * 1024;
            if (is_huge_field(name)) *huge_bytes += kib * 1024;
        }
    }
    fclose(file);
    return true;
}

const char *bench_huge_page_setting(const char *name, char *text, size_t text_bytes) {
    char path[128], line[256] = "";
    snprintf(path, sizeof path, "/sys/kernel/mm/transparent_hugepage/%s", name);
    snprintf(text, text_bytes, "unknown");
    FILE *file = fopen(path, "re");
    if (!file) return text;
    if (fgets(line, sizeof line, file)) {
        const char *open = strchr(line, '['), *close = strchr(line, ']');
        if (open && close > open)
            snprintf(text, text_bytes, "%.*s", (int)(close - open - 1), open + 1);
    }
    fclose(file);
    return text;
}

/* ---- sizes ---- */

size_t bench_cold_bytes(void) {
    size_t largest = 0;
    for (int i = 0; i < 8; i++) {
        char path[96];
        unsigned long kib;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "re");
        if (!file) break;
        if (fscanf(file, "%luK", &kib) == 1 && kib * 1024 > largest) largest = kib * 1024;
        fclose(file);
    }
    return 2 * (largest ? largest : GUESSED_CACHE_BYTES); /* a guess where nobody says */
}

int64_t bench_memory_bytes(void) {
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}
