/* Times all-reduce on shared and on private buffers, beside the bound that memory sets.
 *
 *     lockstep run --workers 2 -- build/bench/allreduce
 *
 * Each rank rewrites its buffer before each call, as a backward pass does. Calls on the two kinds
 * of buffer and the bound are measured in turn, so that a noisy machine disturbs all alike; the
 * medians of the slowest rank are printed.
 *
 * bound: the time in which a rank can touch 2 S bytes (read and write its slice of everybody's
 * buffer), at the speed at which it adds one private array of S bytes to another in the same run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>

enum { N_KINDS = 3, MAX_REPEATS = 401 };
static const char *const kind_names[N_KINDS] = {"shared", "private", "bound"};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return (float)values[n / 2];
}

static void check(ls_status status) {
    if (status == LS_OK) return;
    fprintf(stderr, "%s\n", ls_last_message());
    exit(1);
}

typedef struct buffers {
    float *shared, *plain, *other;
} buffers;

static double time_once(ls_group *group, const buffers *b, int kind, int64_t count) {
    float *buffer = kind == 0 ? b->shared : b->plain;
    for (int64_t i = 0; i < count; i++) buffer[i] = (float)(i % 7);
    check(ls_barrier(group, NULL));
    double begin_us = now_us();
    if (kind < 2)
        check(ls_all_reduce(group, buffer, buffer, count, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
    else
        for (int64_t i = 0; i < count; i++) buffer[i] += b->other[i];
    double took_us = now_us() - begin_us;
    return kind < 2 ? took_us : took_us * 2 / 3; /* the add touches 3 S bytes */
}

/* Medians of the slowest rank, per kind. */
static void measure(ls_group *group, const buffers *b, int64_t count, float slowest[N_KINDS]) {
    static double times[N_KINDS][MAX_REPEATS];
    int n = count > 4 << 20 ? 11 : count > 65536 ? 51 : MAX_REPEATS;
    for (int i = -2; i < n; i++) /* two rounds of warm-up */
        for (int kind = 0; kind < N_KINDS; kind++)
            times[kind][i < 0 ? 0 : i] = time_once(group, b, kind, count);
    float mine[N_KINDS], all[64][N_KINDS];
    for (int kind = 0; kind < N_KINDS; kind++) mine[kind] = median(times[kind], n);
    check(ls_all_gather(group, mine, all, N_KINDS, LS_DTYPE_F32, NULL));
    for (int kind = 0; kind < N_KINDS; kind++) {
        slowest[kind] = 0;
        for (int r = 0; r < ls_group_world_size(group); r++)
            if (all[r][kind] > slowest[kind]) slowest[kind] = all[r][kind];
    }
}

int main(void) {
    static const int64_t bytes[] = {8,       1 << 10,  8 << 10,  64 << 10, 512 << 10, 1 << 20,
                                    4 << 20, 16 << 20, 25 << 20, 64 << 20, 256 << 20};
    const int n_sizes = sizeof bytes / sizeof bytes[0];
    ls_group *group = NULL;
    void *shared = NULL;
    check(ls_group_create(60000, &group));
    size_t largest = (size_t)bytes[n_sizes - 1];
    check(ls_group_alloc_shared(group, largest, &shared));
    buffers b = {shared, calloc(1, largest), calloc(1, largest)};
    if (!b.plain || !b.other) return 1;
    memset(b.other, 0, largest);
    int is_first = ls_group_rank(group) == 0;
    if (is_first)
        printf("all-reduce, float32 sum, %d ranks, microseconds (median of the slowest rank)\n"
               "%12s %10s %10s %10s %12s\n",
               ls_group_world_size(group), "bytes", kind_names[0], kind_names[1], kind_names[2],
               "bound/shared");
    for (int s = 0; s < n_sizes; s++) {
        float us[N_KINDS];
        measure(group, &b, bytes[s] / (int64_t)sizeof(float), us);
        if (is_first)
            printf("%12lld %10.2f %10.2f %10.2f %11.0f%%\n", (long long)bytes[s], (double)us[0],
                   (double)us[1], (double)us[2], 100 * (double)us[2] / (double)us[0]);
    }
    free(b.plain);
    free(b.other);
    ls_group_destroy(group);
    return 0;
}
