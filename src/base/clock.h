/* Monotonic time. */
#ifndef LSI_BASE_CLOCK_H
#define LSI_BASE_CLOCK_H

#include <stdint.h>

int64_t lsi_now_ns(void);                 /* CLOCK_MONOTONIC */
int64_t lsi_deadline_ns(int64_t wait_ms); /* now + wait_ms; wait_ms < 0: never (INT64_MAX) */
void lsi_sleep_ms(int64_t ms);

#endif
