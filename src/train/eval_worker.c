/* A worker of `lockstep eval`.
 *
 * Rank r computes the batches [r share, (r + 1) share), share = batches / ranks rounded up, and
 * leaves for each sample the sum of its losses and the number of targets that the model finds. All
 * ranks gather these and add them in the order of the samples, in double: places past the last
 * sample exist in the gather and are never added. So each sample counts once, and the result does
 * not depend on the number of ranks. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/group.h"
#include "tensor/gemm.h"
#include "tensor/threads.h"
#include "train/eval.h"

/* Of one sample, as gathered. */
typedef struct outcome {
    double loss, n_right;
} outcome;

typedef struct eval_worker {
    lsi_eval_job *job;
    lsi_region *region;
    ls_group *group;
    int rank;
    int64_t share; /* batches of a rank */
    void *inputs;  /* of one batch */
    int32_t *targets;
    double *losses; /* of its targets */
    bool *is_right;
    outcome *outcomes; /* of all ranks' places */
    int64_t begin_ns;
} eval_worker;

/* ---- one batch ---- */

typedef struct rows {
    const float *logits;
    int64_t n_columns;
    const eval_worker *w;
} rows;

static void measure_range(void *context, int64_t begin, int64_t end, int worker) {
    const rows *r = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        r->w->losses[i] = lsi_eval_row(r->logits + i * r->n_columns, r->n_columns, r->w->targets[i],
                                       &r->w->is_right[i]);
}

static size_t sample_bytes(const lsi_sample_shape *shape) {
    if (shape->height == 0) return (size_t)shape->n_time * sizeof(int32_t);
    return (size_t)(shape->height * shape->width * shape->n_channels) * sizeof(float);
}

static ls_status load(eval_worker *w, int64_t first, int64_t n) {
    const lsi_eval_job *job = w->job;
    for (int64_t i = 0; i < n; i++)
        LSI_TRY(lsi_dataset_get(job->dataset, job->split, first + i,
                                (char *)w->inputs + (size_t)i * sample_bytes(&job->shape),
                                w->targets + i * job->shape.n_time));
    return LS_OK;
}

static ls_status forward(eval_worker *w, int64_t n, lsi_tensor **logits) {
    lsi_batch batch = {.n_batch = n, .n_time = w->job->shape.n_time};
    if (w->job->shape.height > 0)
        batch.images = w->inputs;
    else
        batch.tokens = w->inputs;
    return lsi_saved_run(&w->job->saved, &batch, logits);
}

static ls_status collect(const eval_worker *w, int64_t first, int64_t n, outcome *outcomes) {
    int64_t n_time = w->job->shape.n_time;
    for (int64_t i = 0; i < n; i++) {
        outcomes[i] = (outcome){0};
        for (int64_t t = 0; t < n_time; t++) {
            outcomes[i].loss += w->losses[i * n_time + t];
            outcomes[i].n_right += w->is_right[i * n_time + t];
        }
        if (!isfinite(outcomes[i].loss))
            return lsi_fail(LS_ERR_NUMERIC,
                            "%s: the loss of sample %" PRId64 " is %g; the weights are damaged",
                            w->job->config->model, first + i, outcomes[i].loss);
    }
    return LS_OK;
}

static ls_status run_batch(eval_worker *w, int64_t batch, outcome *outcomes) {
    const lsi_eval_job *job = w->job;
    int64_t first = batch * job->batch_size, left = job->n_samples - first;
    int64_t n = left < job->batch_size ? left : job->batch_size;
    lsi_tensor *logits = NULL;
    LSI_TRY(load(w, first, n));
    LSI_TRY(forward(w, n, &logits));
    rows r = {logits->data, lsi_tensor_columns(logits), w};
    lsi_for_ranges(n * job->shape.n_time, lsi_grain(4 * r.n_columns), measure_range, &r);
    LSI_TRY(collect(w, first, n, outcomes));
    int signal_number = lsi_region_stop_requested(w->region);
    if (signal_number)
        return lsi_fail(LS_ERR_INTERRUPTED, "stopped by signal %d (%s)", signal_number,
                        strsignal(signal_number));
    return ls_group_progress(w->group); /* also notices an abort between batches */
}

/* ---- all batches ---- */

static ls_status run_share(eval_worker *w) {
    int64_t first = w->rank * w->share;
    for (int64_t i = 0; i < w->share && first + i < w->job->n_batches; i++) {
        int64_t batch = first + i;
        lsi_region_set_step(w->region, w->rank, i + 1);
        LSI_TRY(run_batch(w, batch, w->outcomes + batch * w->job->batch_size));
    }
    return LS_OK;
}

static ls_status gather(eval_worker *w) {
    int64_t n = w->share * w->job->batch_size;
    return ls_all_gather(w->group, w->outcomes + w->rank * n, w->outcomes,
                         n * (int64_t)(sizeof(outcome) / sizeof(double)), LS_DTYPE_F64, NULL);
}

/* ---- the report ---- */

/* Means over all targets. */
typedef struct score {
    double loss, perplexity, accuracy, n_right, wall_s;
    int64_t n_targets;
} score;

static score add_up(const eval_worker *w) {
    score sum = {.n_targets = w->job->n_samples * w->job->shape.n_time,
                 .wall_s = (double)(lsi_now_ns() - w->begin_ns) / 1e9};
    for (int64_t i = 0; i < w->job->n_samples; i++) {
        sum.loss += w->outcomes[i].loss;
        sum.n_right += w->outcomes[i].n_right;
    }
    sum.loss /= (double)sum.n_targets;
    sum.accuracy = sum.n_right / (double)sum.n_targets;
    sum.perplexity = exp(sum.loss);
    return sum;
}

static void print_score(const eval_worker *w, const score *s) {
    const lsi_eval_job *job = w->job;
    bool has_images = job->shape.height > 0;
    if (has_images)
        fprintf(job->out, "%s: %" PRId64 " test images\n", job->config->data, job->n_samples);
    else
        fprintf(job->out, "%s: %" PRId64 " tokens, %" PRId64 " sequences of %" PRId64 "\n",
                job->config->data, s->n_targets, job->n_samples, job->shape.n_time);
    fprintf(job->out, "loss        %.6f nats/%s\n", s->loss, has_images ? "image" : "token");
    fprintf(job->out, "perplexity  %.6g\n", s->perplexity);
    fprintf(job->out, "accuracy    %.4f %% (%.0f of %" PRId64 ")\n", 100 * s->accuracy, s->n_right,
            s->n_targets);
    fprintf(job->out, "speed       %.0f %s/s\n", (double)s->n_targets / s->wall_s,
            has_images ? "images" : "tokens");
    fflush(job->out);
}

/* JSON has no infinity: a loss above 709 has a perplexity of null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *score_to_json(const eval_worker *w, const score *s) {
    const lsi_eval_job *job = w->job;
    const lsi_tokenizer *tokenizer = job->saved.tokenizer;
    return json_pack(
        "{s:s, s:s, s:s, s:s?, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:o}", "model",
        job->config->model, "class", job->saved.model->class->name, "data", job->config->data,
        "tokenizer", tokenizer ? lsi_tokenizer_name(tokenizer) : NULL, "loss", number(s->loss),
        "perplexity", number(s->perplexity), "accuracy", number(s->accuracy), "n_targets",
        (json_int_t)s->n_targets, "n_right", (json_int_t)s->n_right, "n_samples",
        (json_int_t)job->n_samples, "seq_len", (json_int_t)job->shape.n_time, "batch_size",
        (json_int_t)job->batch_size, "world_size", ls_group_world_size(w->group), "threads",
        job->n_threads, "targets_per_s", number((double)s->n_targets / s->wall_s));
}

static ls_status report(const eval_worker *w) {
    if (w->rank != 0) return LS_OK;
    score s = add_up(w);
    print_score(w, &s);
    const char *path = w->job->config->json;
    if (!path) return LS_OK;
    json_t *json = score_to_json(w, &s);
    if (!json) return lsi_fail(LS_ERR_ARGUMENT, "--json %s: a path is not UTF-8", path);
    ls_status status = lsi_file_replace_json(path, json);
    json_decref(json);
    return lsi_context(status, "--json");
}

/* ---- the life of a worker ---- */

static ls_status set_up_group(eval_worker *w) {
    enum { A_DAY_MS = 24 * 3600 * 1000 };
    LSI_TRY(lsi_group_attach(w->region, w->rank, &w->group));
    /* Ranks meet once, when all are done, which may take one much longer than another; a death is
     * noticed by the launcher. */
    ls_group_set_timeout(w->group, A_DAY_MS);
    return LS_OK;
}

static ls_status set_up(eval_worker *w) {
    const lsi_eval_job *job = w->job;
    LSI_TRY(set_up_group(w));
    int n_ranks = ls_group_world_size(w->group);
    w->share = (job->n_batches + n_ranks - 1) / n_ranks;
    size_t n_places = (size_t)(job->batch_size * job->shape.n_time);
    size_t n_outcomes = (size_t)(w->share * n_ranks * job->batch_size);
    w->inputs = lsi_calloc(LSI_MEM_OTHER, (size_t)job->batch_size, sample_bytes(&job->shape));
    w->targets = lsi_calloc(LSI_MEM_OTHER, n_places, sizeof *w->targets);
    w->losses = lsi_calloc(LSI_MEM_OTHER, n_places, sizeof *w->losses);
    w->is_right = lsi_calloc(LSI_MEM_OTHER, n_places, sizeof *w->is_right);
    w->outcomes = lsi_calloc(LSI_MEM_OTHER, n_outcomes, sizeof *w->outcomes);
    if (!w->inputs || !w->targets || !w->losses || !w->is_right || !w->outcomes)
        return LS_ERR_MEMORY;
    return lsi_saved_open_tape(&w->job->saved);
}

static ls_status work(eval_worker *w) {
    LSI_TRY(set_up(w));
    LSI_TRY(run_share(w));
    LSI_TRY(gather(w));
    LSI_TRY(report(w));
    return ls_barrier(w->group, NULL);
}

static void clean_up(eval_worker *w) {
    lsi_free(w->outcomes);
    lsi_free(w->is_right);
    lsi_free(w->losses);
    lsi_free(w->targets);
    lsi_free(w->inputs);
    lsi_saved_close_tape(&w->job->saved);
    ls_group_destroy(w->group);
}

/* Before anything is cleaned up: a rank that destroys its group has left it, and others would
 * report that instead of its cause. */
static void tell_others(const eval_worker *w, ls_status status) {
    char message[LSI_MESSAGE_BYTES], who[32] = "";
    if (status != LS_ERR_INTERRUPTED) snprintf(who, sizeof who, "rank %d: ", w->rank);
    snprintf(message, sizeof message, "%s%s", who, ls_last_message());
    lsi_region_abort(w->region, status, w->rank, message);
}

ls_status lsi_eval_worker(lsi_region *region, int rank, void *context) {
    eval_worker w = {.job = context, .region = region, .rank = rank, .begin_ns = lsi_now_ns()};
    lsi_compute_set_threads(w.job->n_threads);
    ls_status status = work(&w);
    if (status != LS_OK) tell_others(&w, status);
    clean_up(&w);
    return status;
}
