/* Trace points: named spans on the monotonic clock, kept in a ring per process.
 *
 * Off by default; a span then costs one load and a branch. When on, the ring keeps the last
 * LSI_TRACE_SPANS spans. Names must be string literals (only the pointer is kept).
 *
 * Threads: spans may begin and end on any thread; start, stop and print want that no other thread
 * is recording. */
#ifndef LSI_BASE_TRACE_H
#define LSI_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/message.h"

enum { LSI_TRACE_SPANS = 1 << 16 };

/* Lanes of the picture. Spans of one lane and rank nest or follow each other and share a row in the
 * viewer; only those of LSI_TRACE_BUCKET may overlap as they like and get as many rows as it takes.
 */
typedef enum lsi_trace_lane {
    LSI_TRACE_COMPUTE,
    LSI_TRACE_COMM,
    LSI_TRACE_IO,
    LSI_TRACE_BUCKET, /* a bucket of gradients from posting to done; the last lane */
} lsi_trace_lane;

LS_CHECKED ls_status lsi_trace_start(void);
void lsi_trace_stop(void); /* frees the ring */
bool lsi_trace_is_on(void);
/* Time to hand to lsi_trace_end; 0 when tracing is off. */
int64_t lsi_trace_begin(void);
/* Records [begin_ns, now); index is shown as an argument (bucket, layer, step; -1: none). */
void lsi_trace_end(int64_t begin_ns, lsi_trace_lane lane, const char *name, int64_t index);
/* Records [begin_ns, end_ns), for spans whose end is seen later; times of lsi_now_ns. begin_ns 0
 * (tracing was off): nothing. */
void lsi_trace_span(int64_t begin_ns, int64_t end_ns, lsi_trace_lane lane, const char *name,
                    int64_t index);
/* The same with the bytes moved as a second argument (-1: none). */
void lsi_trace_span_bytes(int64_t begin_ns, int64_t end_ns, lsi_trace_lane lane, const char *name,
                          int64_t index, int64_t bytes);
/* Spans as members of a Chrome trace "traceEvents" array (comma separated, no brackets), in the
 * order in which they began. */
void lsi_trace_print(FILE *out, int rank);

#endif
