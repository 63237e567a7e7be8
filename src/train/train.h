/* Training: what the program's subcommand calls. */
#ifndef LSI_TRAIN_TRAIN_H
#define LSI_TRAIN_TRAIN_H

#include <stdio.h>

#include "comm/region.h"
#include "train/config.h"

/* Everything a worker needs; made by the launcher's side before the workers start. */
typedef struct lsi_train_job {
    const lsi_train_config *config;
    const lsi_run_plan *plan;
    FILE *out; /* rank 0's progress and summary */
    const char *strategy;
} lsi_train_job;

/* Makes the run folder and writes the configuration used to run.json; files of an earlier run
 * there are renamed. Called once, before the workers start. */
LS_CHECKED ls_status lsi_train_prepare_folder(const lsi_train_config *config, FILE *out);
/* Body of a worker (lsi_worker_fn); context is the job. */
LS_CHECKED ls_status lsi_train_worker(lsi_region *region, int rank, void *job);

#endif
