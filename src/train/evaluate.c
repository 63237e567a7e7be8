/* Validation: the mean loss over a fixed choice of held-out sequences.
 *
 * Samples are spread evenly over the split, cut into micro-batches of the training size (so that
 * results do not depend on the number of workers) and dealt in consecutive blocks. Each
 * micro-batch's sum is gathered and added in double in one order. */
#include <math.h>

#include "base/mem.h"
#include "train/worker.h"

typedef struct evaluation {
    int64_t n_samples, n_batches; /* in all */
    int64_t share;                /* batches of a rank; the last rank may have fewer */
} evaluation;

static int64_t sample_at(const lsi_worker *w, const evaluation *e, int64_t i) {
    return i * w->plan->n_samples[LSI_SPLIT_VALIDATION] / e->n_samples;
}

/* A micro-batch whose places past the last sample have no targets. */
static ls_status load(lsi_worker *w, const evaluation *e, int64_t batch) {
    int64_t n_time = w->config->seq_len, size = w->plan->micro_batch_size;
    for (int64_t i = 0; i < size; i++) {
        int64_t place = batch * size + i;
        int32_t *targets = w->targets + i * n_time;
        bool is_real = place < e->n_samples;
        LSI_TRY(lsi_dataset_get(w->dataset, LSI_SPLIT_VALIDATION,
                                sample_at(w, e, is_real ? place : 0), w->inputs + i * n_time,
                                targets));
        if (!is_real)
            for (int64_t t = 0; t < n_time; t++) targets[t] = -1;
    }
    return LS_OK;
}

static ls_status run(lsi_worker *w, const evaluation *e, int64_t batch, float *loss) {
    LSI_TRY(load(w, e, batch));
    lsi_tape_reset(w->tape, false);
    lsi_batch all = {w->inputs, w->targets, w->plan->micro_batch_size, w->config->seq_len};
    lsi_tensor *sum = w->model->class->forward(w->model, w->tape, &all);
    LSI_TRY(lsi_tape_status(w->tape));
    *loss = *sum->data;
    return ls_group_progress(w->group); /* also notices an abort between batches */
}

static ls_status run_all(lsi_worker *w, const evaluation *e, float *sums, double *loss) {
    float *mine = sums + w->rank * e->share;
    int64_t first = w->rank * e->share;
    for (int64_t i = 0; i < e->share; i++) {
        mine[i] = 0;
        if (first + i < e->n_batches) LSI_TRY(run(w, e, first + i, &mine[i]));
    }
    LSI_TRY(ls_all_gather(w->group, mine, sums, e->share, LS_DTYPE_F32, NULL));
    double sum = 0;
    for (int64_t b = 0; b < e->n_batches; b++) sum += (double)sums[b];
    *loss = sum / ((double)e->n_samples * (double)w->config->seq_len);
    return LS_OK;
}

ls_status lsi_worker_evaluate(lsi_worker *w, double *loss) {
    int64_t available = w->plan->n_samples[LSI_SPLIT_VALIDATION];
    *loss = (double)NAN;
    if (available == 0) return LS_OK;
    evaluation e = {.n_samples =
                        available < w->config->eval_samples ? available : w->config->eval_samples};
    e.n_batches = (e.n_samples + w->plan->micro_batch_size - 1) / w->plan->micro_batch_size;
    e.share = (e.n_batches + w->n_ranks - 1) / w->n_ranks;
    float *sums = lsi_calloc(LSI_MEM_OTHER, (size_t)(e.share * w->n_ranks), sizeof *sums);
    LSI_TRY(lsi_check_alloc(sums));
    ls_status status = run_all(w, &e, sums, loss);
    lsi_free(sums);
    return lsi_context(status, "validation");
}
