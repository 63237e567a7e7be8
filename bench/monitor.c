/* What watching a step costs: the calls that every step makes for the monitor, each timed alone.
 *
 *     cmake --build build --target bench_monitor && build/bench/monitor
 *
 * A step with one micro-batch reads the group's counters READS times and the clock LOOKS times, and
 * on rank 0 the monitor takes the times of all ranks, which travel in an all-gather that there is
 * anyway. */
#include <stdio.h>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/region.h"
#include "observe/monitor.h"

enum { READS = 12, LOOKS = 20, ROUNDS = 1000000, N_RANKS = 8 };

static volatile int64_t sink;

static double time_reads(ls_group *group) {
    int64_t begin_ns = lsi_now_ns();
    for (int i = 0; i < ROUNDS; i++) {
        lsi_group_stats stats;
        lsi_group_get_stats(group, &stats);
        sink += stats.wait_ns;
    }
    return (double)(lsi_now_ns() - begin_ns) / ROUNDS;
}

static double time_looks(void) {
    int64_t begin_ns = lsi_now_ns();
    for (int i = 0; i < ROUNDS; i++) sink += lsi_now_ns();
    return (double)(lsi_now_ns() - begin_ns) / ROUNDS;
}

static double time_steps(lsi_monitor *monitor) {
    lsi_step_record record = {.step_ms = 100, .comm_exposed_ms = 5};
    int64_t begin_ns = lsi_now_ns();
    for (int i = 0; i < ROUNDS; i++) {
        lsi_rank_times times[N_RANKS];
        for (int r = 0; r < N_RANKS; r++)
            times[r] = (lsi_rank_times){90 + (i * 7 + r * 13) % 10, 5, 3};
        record.step = i + 1;
        lsi_monitor_step(monitor, &record, times);
    }
    return (double)(lsi_now_ns() - begin_ns) / ROUNDS;
}

int main(void) {
    lsi_region *region = NULL;
    ls_group *group = NULL;
    lsi_monitor *monitor = NULL;
    if (lsi_region_create(1, 1 << 20, &region) != LS_OK ||
        lsi_group_attach(region, 0, &group) != LS_OK ||
        lsi_monitor_create(N_RANKS, &monitor) != LS_OK) {
        fprintf(stderr, "monitor: %s\n", ls_last_message());
        return 1;
    }
    double reads = time_reads(group), looks = time_looks(), steps = time_steps(monitor);
    printf("counters of the group  %6.0f ns, %d times a step\n", reads, READS);
    printf("clock                  %6.0f ns, %d times a step\n", looks, LOOKS);
    printf("monitor, %d ranks       %6.0f ns, once a step\n", N_RANKS, steps);
    printf("together               %6.2f us a step\n",
           (READS * reads + LOOKS * looks + steps) / 1e3);
    lsi_monitor_destroy(monitor);
    ls_group_destroy(group);
    lsi_region_close(region);
    return 0;
}
