/* A training worker: what one rank holds, and the parts of its life.
 *
 *     set up -> for each step: train_step, now and then evaluate -> finish (save, report)
 *
 * Everything that decides the course of a run (losses, the wish to stop, learning rates) is the
 * same on all ranks: either computed from the same numbers or gathered. */
#ifndef LSI_TRAIN_WORKER_H
#define LSI_TRAIN_WORKER_H

#include <lockstep/parallel.h>

#include "base/hash.h"
#include "comm/group.h"
#include "observe/observe.h"
#include "optim/optimizer.h"
#include "train/train.h"

typedef struct lsi_worker {
    const lsi_train_job *job;
    const lsi_train_config *config;
    const lsi_run_plan *plan;
    lsi_region *region;
    ls_group *group;
    int rank, n_ranks;

    lsi_tokenizer *tokenizer;
    lsi_dataset *dataset;
    ls_sampler *sampler;
    int64_t sampler_epoch;
    lsi_model *model;
    ls_ddp *ddp;
    lsi_optimizer *optimizer;
    float **masters; /* float32 values of each parameter */
    lsi_arena *arena;
    lsi_tape *tape;
    void *inputs; /* one micro-batch: tokens, or images as floats */
    int32_t *targets;

    float *reported; /* what ranks tell each other after a step, see step.c */
    double *losses;  /* per step, nats per token */
    double *step_ms, *comm_ms, *exposed_ms;
    int64_t n_done; /* steps */
    int64_t
        n_places; /* of the lists per step, which grow: a run may be stopped long before its end */
    int stop_signal;                         /* agreed by all ranks */
    double last_val_loss, last_val_accuracy; /* the latter NaN for tokens */
    int64_t last_val_step;                   /* -1: never validated */
    double wall_s;                           /* of all training steps */
    int64_t n_tokens;                        /* trained on, all ranks */
    int64_t bytes_sent;                      /* by this rank in the last step */

    lsi_profile *profile;   /* rank 0 with --profile */
    int64_t profile_ns;     /* of the steps in it */
    lsi_metrics *metrics;   /* rank 0 */
    lsi_progress *progress; /* rank 0 */
} lsi_worker;

/* One optimizer step (0 = the first). */
LS_CHECKED ls_status lsi_worker_step(lsi_worker *w, int64_t step);
/* Loss over the validation samples and, of images, the share that is recognised; collective. NaN
 * when there are none. */
LS_CHECKED ls_status lsi_worker_evaluate(lsi_worker *w, double *loss, double *accuracy);
/* Sample `index` of a split into place `place` of the micro-batch; without_targets: it only fills
 * it up. */
LS_CHECKED ls_status lsi_worker_load(lsi_worker *w, lsi_split split, int64_t index, int64_t place,
                                     bool without_targets);
/* The micro-batch that was loaded. */
lsi_batch lsi_worker_batch(const lsi_worker *w);
/* Floats that a rank reports after a step. */
int64_t lsi_worker_report_width(const lsi_worker *w);
bool lsi_worker_has_images(const lsi_worker *w);
size_t lsi_worker_sample_bytes(const lsi_worker *w); /* of a sample's inputs */
/* Hash of the weights, after comparing it over all ranks; collective. */
LS_CHECKED ls_status lsi_worker_agree_weights(lsi_worker *w, char sha256[LSI_SHA256_TEXT_BYTES]);
/* Collects memory of all ranks; rank 0 prints the summary and writes --json. Collective. */
LS_CHECKED ls_status lsi_worker_report(lsi_worker *w, const char *sha256);

#endif
