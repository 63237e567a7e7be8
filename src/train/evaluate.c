/* Validation: the mean loss over a fixed choice of held-out samples, and of images the share that
 * is recognised.
 *
 * Samples are spread evenly over the split, cut into micro-batches of the training size (so that
 * results do not depend on the number of workers) and dealt in consecutive blocks. What each
 * micro-batch gives is gathered and added in double in one order. */
#include <math.h>

#include "base/mem.h"
#include "train/eval.h"
#include "train/worker.h"

/* Of one micro-batch, as gathered. */
typedef struct outcome {
    float loss, n_right;
} outcome;

typedef struct evaluation {
    int64_t n_samples, n_batches; /* in all */
    int64_t share;                /* batches of a rank; the last rank may have fewer */
    outcome *outcomes;            /* of all ranks' places */
} evaluation;

static int64_t sample_at(const lsi_worker *w, const evaluation *e, int64_t i) {
    return i * w->plan->n_samples[LSI_SPLIT_VALIDATION] / e->n_samples;
}

/* A micro-batch whose places past the last sample have no targets. */
static ls_status load(lsi_worker *w, const evaluation *e, int64_t batch) {
    int64_t size = w->plan->micro_batch_size;
    for (int64_t i = 0; i < size; i++) {
        int64_t place = batch * size + i;
        bool is_real = place < e->n_samples;
        LSI_TRY(lsi_worker_load(w, LSI_SPLIT_VALIDATION, sample_at(w, e, is_real ? place : 0), i,
                                !is_real));
    }
    return LS_OK;
}

/* Loss and hits from the logits (B,classes). */
static outcome measure(const lsi_worker *w, const lsi_tensor *logits) {
    int64_t n = lsi_tensor_columns(logits);
    double loss = 0;
    outcome found = {0};
    for (int64_t i = 0; i < w->plan->micro_batch_size; i++) {
        bool is_right;
        if (w->targets[i] < 0) continue;
        loss += lsi_eval_row((const float *)logits->data + i * n, n, w->targets[i], &is_right);
        found.n_right += is_right ? 1.0f : 0.0f;
    }
    found.loss = (float)loss;
    return found;
}

/* Of tokens the logits of a batch are large, and never exist as a whole. */
static ls_status run(lsi_worker *w, const evaluation *e, int64_t batch, outcome *found) {
    LSI_TRY(load(w, e, batch));
    lsi_tape_reset(w->tape, false);
    lsi_batch all = lsi_worker_batch(w);
    if (lsi_worker_has_images(w)) all.targets = NULL;
    lsi_tensor *result = w->model->class->forward(w->model, w->tape, &all);
    LSI_TRY(lsi_tape_status(w->tape));
    if (all.targets)
        found->loss = *(const float *)result->data;
    else
        *found = measure(w, result);
    return ls_group_progress(w->group); /* also notices an abort between batches */
}

static ls_status run_all(lsi_worker *w, const evaluation *e, double *loss, double *accuracy) {
    outcome *mine = e->outcomes + w->rank * e->share;
    int64_t first = w->rank * e->share;
    /* Where units are gathered all ranks make equally many passes, the last ones over nothing. */
    bool all_alike = w->plan->replicas == LS_REPLICAS_PRIVATE;
    for (int64_t i = 0; i < e->share && (all_alike || first + i < e->n_batches); i++)
        LSI_TRY(run(w, e, first + i, &mine[i]));
    LSI_TRY(ls_all_gather(w->group, mine, e->outcomes, 2 * e->share, LS_DTYPE_F32, NULL));
    double sum = 0, n_right = 0;
    for (int64_t b = 0; b < e->n_batches; b++) {
        sum += (double)e->outcomes[b].loss;
        n_right += (double)e->outcomes[b].n_right;
    }
    *loss = sum / ((double)e->n_samples * (double)w->plan->sample.n_time);
    if (lsi_worker_has_images(w)) *accuracy = n_right / (double)e->n_samples;
    return LS_OK;
}

static int64_t count_samples(const lsi_worker *w) {
    enum { USUAL_SEQUENCES = 256 };
    int64_t available = w->plan->n_samples[LSI_SPLIT_VALIDATION], wanted = w->config->eval_samples;
    if (wanted == 0) wanted = lsi_worker_has_images(w) ? available : USUAL_SEQUENCES;
    return wanted < available ? wanted : available;
}

static ls_status take_memory(const lsi_worker *w, evaluation *e) {
    size_t n_places = (size_t)(e->share * w->n_ranks);
    e->outcomes = lsi_calloc(LSI_MEM_OTHER, n_places, sizeof *e->outcomes);
    return lsi_check_alloc(e->outcomes);
}

ls_status lsi_worker_evaluate(lsi_worker *w, double *loss, double *accuracy) {
    evaluation e = {.n_samples = count_samples(w)};
    *loss = *accuracy = (double)NAN;
    if (e.n_samples == 0) return LS_OK;
    e.n_batches = (e.n_samples + w->plan->micro_batch_size - 1) / w->plan->micro_batch_size;
    e.share = (e.n_batches + w->n_ranks - 1) / w->n_ranks;
    ls_status status = take_memory(w, &e);
    lsi_tape_profile(w->tape, NULL); /* which is of steps */
    if (status == LS_OK) status = run_all(w, &e, loss, accuracy);
    lsi_tape_profile(w->tape, w->profile);
    lsi_free(e.outcomes);
    return lsi_context(status, "validation");
}
