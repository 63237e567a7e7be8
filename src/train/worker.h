/* A training worker: what one rank holds, and the parts of its life.
 *
 *     set up -> for each step: train_step, now and then evaluate -> finish (save, report)
 *
 * Everything that decides the course of a run (losses, the wish to stop, learning rates) is the
 * same on all ranks: either computed from the same numbers or gathered. */
#ifndef LSI_TRAIN_WORKER_H
#define LSI_TRAIN_WORKER_H

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/hash.h"
#include "checkpoint/model_folder.h"
#include "comm/group.h"
#include "observe/memory_table.h"
#include "observe/monitor.h"
#include "train/train.h"

/* Where this rank's time goes; communication inside of passes is taken out of them. */
typedef struct lsi_step_times {
    int64_t forward_ns, backward_ns; /* of the step so far */
    int64_t optimizer_ns;            /* of the last optimizer step */
    int64_t opened_sink_ns;          /* updates within communication, when the step began */
    int64_t last_forward_ns;         /* of the last micro-batch, as the clock saw it, … */
    int64_t last_backward_ns;        /* … and its backward pass */
    int64_t met_ns;                  /* communication, as of the last meeting of the ranks */
    int64_t left_ns;                 /* the same at the end of the last step */
    int64_t lap_ns, lap_comm_ns;
} lsi_step_times;

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
    ls_comm_hook *hook;      /* NULL: none */
    ls_loss_scaler scaler;   /* of the fp16 hook */
    double wire_factor;      /* what it multiplies with in this step */
    uint16_t **lower_halves; /* of BF16 parameters; NULL: the model is hollow */
    ls_fill_fn fill;         /* until the ddp is there: where a hollow model's values come from */
    void *fill_context;
    lsi_initial_values initial; /* that, or … */
    lsi_model_source *source;   /* … of a model folder */
    float *gathered;            /* at the end: room for the values of one parameter */
    lsi_arena *arena;
    lsi_tape *tape;
    void *inputs; /* one micro-batch: tokens, or images as floats */
    int32_t *targets;

    float *reported; /* what ranks tell each other after a step, see step.c */
    double *losses;  /* per step, nats per token */
    double *step_ms, *comm_ms, *exposed_ms, *sent_bytes;
    int64_t n_done; /* steps */
    int64_t
        n_places; /* of the lists per step, which grow: a run may be stopped long before its end */
    int stop_signal;                         /* agreed by all ranks */
    double last_val_loss, last_val_accuracy; /* the latter NaN for tokens */
    int64_t last_val_step;                   /* -1: never validated */
    double wall_s;                           /* of all training steps */
    int64_t n_skipped, n_skipped_in_a_row;   /* steps that changed no weights */
    int64_t n_tokens;                        /* trained on, all ranks */

    lsi_memory_row memory;  /* of this rank, see memory.c */
    lsi_step_times times;   /* see times.c */
    lsi_monitor *monitor;   /* rank 0 */
    lsi_profile *profile;   /* rank 0 with --profile */
    int64_t profile_ns;     /* of the steps in it */
    lsi_metrics *metrics;   /* rank 0 */
    lsi_progress *progress; /* rank 0 */
} lsi_worker;

/* ---- values of parameters, values.c ---- */

/* A model with its values; of sharded strategies one that is hollow, and w->fill. */
LS_CHECKED ls_status lsi_worker_make_model(lsi_worker *w);
/* The ddp is there: w->fill is not needed any more. */
void lsi_worker_close_source(lsi_worker *w);
/* lsi_model_get_fn with an lsi_worker. Between steps; of sharded strategies collective. */
LS_CHECKED ls_status lsi_worker_get_values(void *worker, int i, const float **values);

/* ---- gradients and their exchange, gradients.c ---- */

/* What is frozen, the hook, and the ddp. */
LS_CHECKED ls_status lsi_worker_set_up_ddp(lsi_worker *w);
void lsi_worker_clean_up_ddp(lsi_worker *w);
/* Whether the averaged gradients of a step, whose norm is `norm`, must not be used, because a
 * loss or the norm is not finite: `what` says which, NULL if none. The same on all ranks. Not
 * allowed to go on: LS_ERR_NUMERIC, with all that can be found out. */
LS_CHECKED ls_status lsi_worker_judge(lsi_worker *w, int64_t step, const char *what, double norm,
                                      bool *is_skipped);
/* Averaged gradients, or with --update-in-backward new weights; losses and statistics of this
 * rank's micro-batches are left in its report. */
LS_CHECKED ls_status lsi_worker_compute_gradients(lsi_worker *w, int64_t step);
LS_CHECKED ls_status lsi_worker_print_buckets(lsi_worker *w);

/* ---- memory.c ---- */

/* After the last step, before anything is saved: what this rank has now. */
void lsi_worker_note_memory(lsi_worker *w);
/* At the end of a run, once: what was noted, and the peaks, of all ranks. Collective. */
LS_CHECKED ls_status lsi_worker_gather_memory(lsi_worker *w, lsi_memory_row rows[LSI_MAX_RANKS]);
/* What formulas say about a rank. */
void lsi_worker_expect_memory(const lsi_worker *w, lsi_mem_estimate *expected);
/* The table of --print-memory, by rank 0. */
void lsi_worker_print_memory(const lsi_worker *w, const lsi_memory_row *rows);

/* ---- times.c ---- */

enum { LSI_REPORTED_TIMES = 3 };
/* Around a step: communication between steps (validation, set-up) belongs to none. */
void lsi_times_open_step(lsi_worker *w);
void lsi_times_close_step(lsi_worker *w);
void lsi_times_begin(lsi_worker *w);
/* The optimizer step was made within communication since the step began. */
void lsi_times_take_update(lsi_worker *w);
/* Time since begin or the last lap, without communication and what is done within it. */
int64_t lsi_times_lap(lsi_worker *w, int64_t *wall_ns);
/* What the other ranks are told, just before they meet. */
void lsi_times_report(lsi_worker *w, float times[LSI_REPORTED_TIMES]);

/* Its settings; grad_scale clips. */
ls_adamw_opts lsi_worker_adamw(const lsi_worker *w, int64_t step, double grad_scale);
/* One optimizer step (0 = the first). */
LS_CHECKED ls_status lsi_worker_step(lsi_worker *w, int64_t step);
/* Loss over the validation samples and, of images, the share that is recognised; collective. NaN
 * when there are none. */
LS_CHECKED ls_status lsi_worker_evaluate(lsi_worker *w, double *loss, double *accuracy);
/* Sample `index` of a split into place `place` of the micro-batch; without_targets: it only fills
 * it up. */
LS_CHECKED ls_status lsi_worker_load(lsi_worker *w, lsi_split split, int64_t index, int64_t place,
                                     bool without_targets);
/* Micro-batch `micro` of a step, numbered over all ranks. */
LS_CHECKED ls_status lsi_worker_load_micro_batch(lsi_worker *w, int64_t step, int64_t micro);
/* Targets of a whole step, all ranks: all places but the padded ones of an epoch's last batch. */
int64_t lsi_worker_count_targets(const lsi_worker *w, int64_t step);
/* The micro-batch that was loaded. */
lsi_batch lsi_worker_batch(const lsi_worker *w);
/* Floats that a rank reports after a step. */
int64_t lsi_worker_report_width(const lsi_worker *w);
/* What a rank reported (or will: its own) after the last step, … */
float *lsi_worker_report_of(const lsi_worker *w, int rank);
/* … and of that the statistics of its micro-batch i; NULL: the model has none. */
float *lsi_worker_stats_of(const lsi_worker *w, int rank, int64_t i);
bool lsi_worker_has_images(const lsi_worker *w);
size_t lsi_worker_sample_bytes(const lsi_worker *w); /* of a sample's inputs */
/* Hash of the weights, after comparing it over all ranks; collective. */
LS_CHECKED ls_status lsi_worker_agree_weights(lsi_worker *w, char sha256[LSI_SHA256_TEXT_BYTES]);
/* Collects memory of all ranks; rank 0 prints the summary and writes --json. Collective. */
LS_CHECKED ls_status lsi_worker_report(lsi_worker *w, const char *sha256);

#endif
