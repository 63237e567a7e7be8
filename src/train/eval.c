/* `lockstep eval`: what is measured, and on what.
 *
 * The samples of a file stand in one order and are cut into batches of one size, the last one
 * smaller. Batches are what workers share, so what is computed together does not depend on their
 * number; nothing is filled up, so nothing has to be left out of the sums again. eval_worker.c goes
 * through them. */
#include "train/eval.h"

#include <inttypes.h>
#include <math.h>

#include "base/cpu.h"
#include "base/mem.h"

#define AT(field) offsetof(lsi_eval_config, field)

const lsi_opt lsi_eval_options[] = {
    {"model", 'm', LSI_OPT_TEXT, AT(model), "FOLDER", NULL, 0, 0, NULL, "Input",
     "Model folder (config.json and model.safetensors), for example lockstep-run/model."},
    {"data", 0, LSI_OPT_TEXT, AT(data), "FILE", NULL, 0, 0, NULL, "Input",
     "Text, file of tokens, or folder of images, of which the test images are taken."},
    {"tokenizer", 0, LSI_OPT_TEXT, AT(tokenizer), "FILE", NULL, 0, 0, NULL, "Input",
     "byte, or a tokenizer's file or folder (not given: what the model folder has)."},
    {"seq-len", 0, LSI_OPT_INT, AT(seq_len), "tokens", "0", 0, 1e6, NULL, "Input",
     "Length of a sequence (0: the longest that the model takes)."},
    {"workers", 0, LSI_OPT_INT, AT(workers), "processes", "1", 1, LSI_MAX_RANKS, NULL, "Work",
     "Worker processes, which share the sequences; the result is the same for any number."},
    {"threads", 0, LSI_OPT_INT, AT(threads), "threads", "1", 0, 4096, NULL, "Work",
     "Threads of a worker (0: processors / workers; the library for matrix products may round "
     "otherwise with another number)."},
    {"batch-size", 0, LSI_OPT_INT, AT(batch_size), "sequences", "0", 0, 1e6, NULL, "Work",
     "Sequences that a worker computes at once (0: up to 8, fewer where they need much memory)."},
    {"bind", 0, LSI_OPT_BOOL, AT(bind), NULL, "true", 0, 0, NULL, "Work",
     "Binds each worker to its share of the processors (not where threads outnumber them)."},
    {"json", 0, LSI_OPT_TEXT, AT(json), "FILE", NULL, 0, 0, NULL, "Output",
     "Writes the result for programs."},
    {0},
};

double lsi_eval_row(const float *logits, int64_t n, int32_t target, bool *is_right) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    double top = (double)logits[best], sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - top);
    *is_right = best == target;
    return log(sum) + (top - (double)logits[target]);
}

/* ---- data ---- */

static ls_status refuse_kind(const lsi_eval_job *job, bool has_images) {
    const lsi_model_class *class = job->saved.model->class;
    return lsi_fail(LS_ERR_ARGUMENT, "%s has %s, the %s model in %s takes %s", job->config->data,
                    has_images ? "images" : "no images", class->name, job->config->model,
                    class->takes_images ? "images" : "tokens");
}

static ls_status open_tokens(const lsi_eval_config *c, lsi_eval_job *job) {
    bool is_text = false;
    LSI_TRY(lsi_dataset_is_text(c->data, &is_text));
    if (!is_text) return LS_OK;
    if (job->saved.model->class->takes_images) return refuse_kind(job, false);
    return lsi_saved_open_tokenizer(&job->saved, c->tokenizer);
}

static ls_status open_data(const lsi_eval_config *c, lsi_eval_job *job) {
    int64_t longest = job->saved.model->config.seq_len;
    bool takes_images = job->saved.model->class->takes_images;
    if (!takes_images && c->seq_len > longest)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--seq-len %" PRId64 ": the model in %s takes at most %" PRId64 " tokens",
                        c->seq_len, c->model, longest);
    LSI_TRY(open_tokens(c, job));
    const lsi_dataset_opts opts = {.path = c->data,
                                   .tokenizer = job->saved.tokenizer,
                                   .seq_len = takes_images ? 1
                                              : c->seq_len ? c->seq_len
                                                           : longest};
    LSI_TRY(lsi_dataset_open(&opts, &job->dataset));
    job->shape = lsi_dataset_shape(job->dataset);
    job->split = job->shape.height > 0 ? LSI_SPLIT_VALIDATION : LSI_SPLIT_TRAIN;
    job->n_samples = lsi_dataset_n_samples(job->dataset, job->split);
    if (job->n_samples == 0)
        return lsi_fail(LS_ERR_FORMAT, "%s: there is no %s in it", c->data,
                        job->shape.height > 0 ? "test image (t10k-…)" : "sequence");
    return LS_OK;
}

/* ---- does the model fit ---- */

static ls_status check_images(const lsi_eval_job *job) {
    const lsi_model_config *m = &job->saved.model->config;
    const lsi_sample_shape *s = &job->shape;
    if (s->height == m->height && s->width == m->width && s->n_channels == m->n_channels &&
        s->n_classes <= m->n_classes)
        return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "%s: images of %" PRId64 " x %" PRId64 " x %" PRId64 " in %" PRId64
                    " classes, the model in %s takes %" PRId64 " x %" PRId64 " x %" PRId64
                    " in %" PRId64,
                    job->config->data, s->height, s->width, s->n_channels, s->n_classes,
                    job->config->model, m->height, m->width, m->n_channels, m->n_classes);
}

static ls_status check_fit(const lsi_eval_job *job) {
    bool takes_images = job->saved.model->class->takes_images;
    if (takes_images != (job->shape.height > 0)) return refuse_kind(job, job->shape.height > 0);
    if (takes_images) return check_images(job);
    if (job->shape.n_classes <= job->saved.model->config.vocab_size) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "%s: its tokens need a vocabulary of %" PRId64 ", the model in %s has %" PRId64,
                    job->config->data, job->shape.n_classes, job->config->model,
                    job->saved.model->config.vocab_size);
}

/* Logits of a batch are its largest tensor: at most 64 Mi of them. */
static int64_t choose_batch_size(const lsi_eval_job *job) {
    enum { AT_MOST = 8, LOGITS = 64 << 20 };
    int64_t outputs = job->saved.model->class->takes_images ? job->saved.model->config.n_classes
                                                            : job->saved.model->config.vocab_size;
    int64_t fits = LOGITS / job->shape.n_time / (outputs > 0 ? outputs : 1);
    return fits < 1 ? 1 : fits < AT_MOST ? fits : AT_MOST;
}

static void plan_work(const lsi_eval_config *c, lsi_eval_job *job) {
    job->batch_size = c->batch_size ? c->batch_size : choose_batch_size(job);
    job->n_batches = (job->n_samples + job->batch_size - 1) / job->batch_size;
    int64_t share = lsi_cpu_count() / c->workers;
    job->n_threads = (int)(c->threads > 0 ? c->threads : share > 1 ? share : 1);
}

ls_status lsi_eval_open(const lsi_eval_config *config, lsi_eval_job *job) {
    job->config = config;
    if (!config->model)
        return lsi_fail(LS_ERR_USAGE, "no model; give a folder with --model FOLDER");
    if (!config->data)
        return lsi_fail(LS_ERR_USAGE, "nothing to evaluate on; give it with --data FILE");
    LSI_TRY(lsi_saved_open(config->model, &job->saved));
    LSI_TRY(open_data(config, job));
    LSI_TRY(check_fit(job));
    plan_work(config, job);
    return LS_OK;
}

void lsi_eval_close(lsi_eval_job *job) {
    lsi_dataset_close(job->dataset);
    lsi_saved_close(&job->saved);
}
