/* Monotonic time (see clock.h): one clock for deadlines, spans and rates, never set back.
 *
 * Deadlines are absolute, so a wait that is cut into pieces does not grow; sums saturate at
 * INT64_MAX, which reads as "never". */
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

enum { NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

int64_t lsi_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t lsi_deadline_ns(int64_t wait_ms) {
    int64_t now = lsi_now_ns();
    if (wait_ms < 0 || wait_ms > (INT64_MAX - now) / NS_PER_MS) return INT64_MAX;
    return now + wait_ms * NS_PER_MS;
}

void lsi_sleep_ms(int64_t ms) {
    if (ms <= 0) return;
    int64_t until = lsi_deadline_ns(ms);
    struct timespec when = {.tv_sec = (time_t)(until / NS_PER_S), .tv_nsec = until % NS_PER_S};
    /* absolute: a signal does not lengthen the sleep */
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) continue;
}

int64_t lsi_coarse_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / NS_PER_MS;
}

/* Ticks per nanosecond, from both counters over a millisecond: right to about one in 10,000. */
static double ns_per_tick;

static void compare_counters(void) {
    int64_t ns = lsi_now_ns(), ticks = lsi_ticks();
    while (lsi_now_ns() - ns < NS_PER_MS) continue;
    int64_t end_ns = lsi_now_ns(), end_ticks = lsi_ticks();
    ns_per_tick = end_ticks > ticks ? (double)(end_ns - ns) / (double)(end_ticks - ticks) : 0;
}

int64_t lsi_ticks_to_ns(int64_t ticks) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, compare_counters);
    return (int64_t)((double)ticks * ns_per_tick);
}
