/* Measuring a saved model on a whole file: what `lockstep eval` calls. */
#ifndef LSI_TRAIN_EVAL_H
#define LSI_TRAIN_EVAL_H

#include <stdio.h>

#include "base/opt.h"
#include "comm/region.h"
#include "train/saved.h"

typedef struct lsi_eval_config {
    const char *model, *data, *tokenizer, *json;
    int64_t seq_len, batch_size, workers, threads;
    bool bind;
} lsi_eval_config;

extern const lsi_opt lsi_eval_options[];

/* What the workers share: opened once, before they are forked, and only read by them (but for the
 * tape, which each makes for itself). */
typedef struct lsi_eval_job {
    const lsi_eval_config *config;
    lsi_saved_model saved;
    lsi_dataset *dataset;
    lsi_split split; /* the one to go through */
    lsi_sample_shape shape;
    int64_t n_samples, n_batches, batch_size;
    int n_threads;
    FILE *out; /* rank 0's report */
} lsi_eval_job;

/* Opens model and data and holds them against each other; errors name the options to change. *job
 * zeroed before; lsi_eval_close undoes it, also after a failure. */
LS_CHECKED ls_status lsi_eval_open(const lsi_eval_config *config, lsi_eval_job *job);
void lsi_eval_close(lsi_eval_job *job);
/* Body of a worker (lsi_worker_fn); context is the job. */
LS_CHECKED ls_status lsi_eval_worker(lsi_region *region, int rank, void *job);

/* Of one row of n logits: -log softmax[target] in nats, and whether the target is the likeliest
 * (of equal ones the lowest id). In double. */
double lsi_eval_row(const float *logits, int64_t n, int32_t target, bool *is_right);

#endif
