/* The table of gradient buckets that `lockstep train --print-buckets` shows: what is in each
 * bucket, and when in the last backward pass it was ready, asked for and done. */
#ifndef LSI_OBSERVE_BUCKET_TABLE_H
#define LSI_OBSERVE_BUCKET_TABLE_H

#include <stdint.h>
#include <stdio.h>

/* Times in ms since the backward pass began. */
typedef struct lsi_bucket_row {
    int index;
    int64_t count; /* elements, padding included */
    int64_t bytes;
    const char *dtype; /* "f32" */
    int n_params;
    const char *first_param; /* name of the first one, "" for none */
    double ready_ms;         /* the last gradient was ready */
    double posted_ms;        /* communication was asked for */
    double done_ms;          /* it was seen to be over */
    int n_gathers;           /* of its parameters in the last step; 0: they are not gathered */
} lsi_bucket_row;

/* Buckets in flight together, summed up: time in which at least one was, and how much of it the
 * backward pass covered. */
typedef struct lsi_bucket_flight {
    double flight_ms, hidden_ms;
} lsi_bucket_flight;

/* rows: in the order of posting. */
lsi_bucket_flight lsi_bucket_sum_flight(const lsi_bucket_row *rows, int n_rows,
                                        double backward_end_ms);
/* backward_end_ms: end of the backward pass; 0: there was none yet, and no times are shown. */
void lsi_bucket_print(const lsi_bucket_row *rows, int n_rows, double backward_end_ms, FILE *out);

#endif
