/* What a run shows and keeps: progress lines, the metrics file, the memory table. (The monitor is
 * monitor.h, the table of buckets bucket_table.h.) */
#ifndef LSI_OBSERVE_OBSERVE_H
#define LSI_OBSERVE_OBSERVE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "base/mem.h"
#include "base/message.h"

/* One optimizer step, as measured on rank 0 (losses: over all ranks). */
typedef struct lsi_step_record {
    int64_t step;         /* 1 = the first */
    double loss;          /* mean over all targets of the step, nats */
    double lr, grad_norm; /* norm before clipping */
    int64_t n_tokens;     /* targets of the step, all ranks, all micro-batches */
    int64_t n_workers;    /* that share them */
    double step_ms;
    /* Computation: passes without the communication that goes on inside of them. */
    double forward_ms; /* loading the batch included */
    double backward_ms;
    double optimizer_ms;    /* norm and clipping included */
    double comm_ms;         /* at least one communication call was in flight */
    double comm_exposed_ms; /* communication, waiting included, while no computation went on */
    double wait_ms;         /* of that, waiting for the slowest rank (set by lsi_monitor_step) */
    int64_t bytes_sent;     /* by this rank */
    int64_t n_skipped;      /* steps so far, this one included, that changed no weights */
} lsi_step_record;

/* ---- metrics: one JSON object a line, flushed each line ---- */

typedef struct lsi_metrics lsi_metrics;
/* Starts an empty file. The calls below do nothing when metrics is NULL (ranks other than 0). */
LS_CHECKED ls_status lsi_metrics_open(const char *path, lsi_metrics **metrics);
/* A line with the names of lsi_step_record, plus "tokens_per_s" (of all ranks together) and
 * "tokens_per_s_per_worker"; numbers that are not finite are null. Write errors are kept and
 * returned by close. */
void lsi_metrics_step(lsi_metrics *metrics, const lsi_step_record *record);
/* accuracy: NaN where there is none. */
void lsi_metrics_evaluation(lsi_metrics *metrics, int64_t step, double val_loss, double accuracy);
LS_CHECKED ls_status lsi_metrics_close(lsi_metrics *metrics);

/* ---- progress: a line that rewrites itself on a terminal, plain lines elsewhere ---- */

typedef struct lsi_progress lsi_progress;
/* every_steps: a plain line that often when out is no terminal (0: about 20 lines in all), besides
 * the first and the last step. Follows NO_COLOR, COLUMNS and TERM=dumb (plain lines). out stays the
 * caller's. The calls below do nothing when progress is NULL (ranks other than 0). */
LS_CHECKED ls_status lsi_progress_create(FILE *out, int64_t total_steps, int64_t every_steps,
                                         lsi_progress **progress);
/* What n_tokens of a step counts, "tokens" at first; a string literal. */
void lsi_progress_count(lsi_progress *progress, const char *what);
void lsi_progress_step(lsi_progress *progress, const lsi_step_record *record);
/* A line that stays (validation loss, notes). */
void lsi_progress_say(lsi_progress *progress, const char *format, ...) LSI_PRINTF(2, 3);
void lsi_progress_destroy(lsi_progress *progress);

/* ---- helpers for reports ---- */

/* Reorders values; n = 0 gives 0, NaN counts as larger than any number. */
double lsi_median(double *values, int64_t n);
/* "1.2 GiB", "512 B", "?" when not finite; buffer at least 16 bytes. Returns buffer. */
const char *lsi_format_bytes(double bytes, char *buffer, size_t buffer_bytes);
/* "3.4 s", "1m 20s", "2h 05m", "3d 04h", "?" when negative or not finite. Same buffer. */
const char *lsi_format_seconds(double seconds, char *buffer, size_t buffer_bytes);
/* {"params": bytes, …} of peaks by kind (new reference; NULL when memory ran out). */
json_t *lsi_memory_to_json(const int64_t peak_bytes[LSI_MEM_N_KINDS]);

#endif
