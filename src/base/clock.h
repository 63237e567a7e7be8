/* Monotonic time. */
#ifndef LSI_BASE_CLOCK_H
#define LSI_BASE_CLOCK_H

#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

int64_t lsi_now_ns(void);                 /* CLOCK_MONOTONIC */
int64_t lsi_deadline_ns(int64_t wait_ms); /* now + wait_ms; wait_ms < 0: never (INT64_MAX) */
void lsi_sleep_ms(int64_t ms);
/* CLOCK_MONOTONIC_COARSE: a few ms behind, at a fifth of the price. */
int64_t lsi_coarse_ms(void);

/* A cheap count for spans that are too short for the clock: the processor's time stamp where it has
 * one, else nanoseconds. Only differences mean something. */
static inline int64_t lsi_ticks(void) {
#if defined(__x86_64__)
    return (int64_t)__rdtsc();
#else
    return lsi_now_ns();
#endif
}
/* Nanoseconds in so many ticks. The first call in a process takes a millisecond, to compare. */
int64_t lsi_ticks_to_ns(int64_t ticks);

#endif
