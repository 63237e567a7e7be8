/* One optimizer step on one rank.
 *
 * The step's batch is the next batch_size places of the epoch's order. Micro-batch m (numbered over
 * all ranks) has places [m * micro_batch_size, (m + 1) * micro_batch_size) of it; the deal says
 * which rank computes which. Losses are sums over targets, and gradients of sums are scaled once by
 * 1 / (targets of the whole step), so a step means the same for any cut into micro-batches and
 * ranks, and padded places, which have no targets, count for nothing.
 *
 * After the gradients are averaged, ranks gather their micro-batches' losses together with the
 * wish to stop, so that all see the same numbers and stop after the same step. What models with
 * running statistics have measured goes with it, and every rank folds it in in the order of the
 * micro-batches. A rank's report:
 *
 *     losses (largest share)   stop (1)   statistics (largest share, n_stats of the model) */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"
#include "train/worker.h"

/* ---- batch ---- */

bool lsi_worker_has_images(const lsi_worker *w) {
    return w->plan->sample.height > 0;
}

size_t lsi_worker_sample_bytes(const lsi_worker *w) {
    const lsi_sample_shape *s = &w->plan->sample;
    if (!lsi_worker_has_images(w)) return (size_t)s->n_time * sizeof(int32_t);
    return (size_t)(s->height * s->width * s->n_channels) * sizeof(float);
}

ls_status lsi_worker_load(lsi_worker *w, lsi_split split, int64_t index, int64_t place,
                          bool without_targets) {
    int64_t n_time = w->plan->sample.n_time;
    int32_t *targets = w->targets + place * n_time;
    char *inputs = (char *)w->inputs + (size_t)place * lsi_worker_sample_bytes(w);
    LSI_TRY(lsi_dataset_get(w->dataset, split, index, inputs, targets));
    for (int64_t t = 0; without_targets && t < n_time; t++) targets[t] = -1;
    return LS_OK;
}

lsi_batch lsi_worker_batch(const lsi_worker *w) {
    lsi_batch batch = {.targets = w->targets,
                       .n_batch = w->plan->micro_batch_size,
                       .n_time = w->plan->sample.n_time};
    if (lsi_worker_has_images(w))
        batch.images = w->inputs;
    else
        batch.tokens = w->inputs;
    return batch;
}

static ls_status load_micro_batch(lsi_worker *w, int64_t step, int64_t micro) {
    const lsi_run_plan *plan = w->plan;
    int64_t size = plan->micro_batch_size;
    int64_t first = step % plan->steps_per_epoch * w->config->batch_size + micro * size;
    for (int64_t i = 0; i < size; i++) {
        int64_t index = 0;
        int is_padding = 0;
        LSI_TRY(ls_sampler_get(w->sampler, first + i, &index, &is_padding));
        LSI_TRY(lsi_worker_load(w, LSI_SPLIT_TRAIN, index, i, is_padding != 0));
    }
    return LS_OK;
}

/* Targets of a whole step: all places but the padded ones of an epoch's last batch. */
static int64_t count_targets(const lsi_worker *w, int64_t step) {
    const lsi_run_plan *plan = w->plan;
    int64_t batch = w->config->batch_size, n_samples = plan->n_samples[LSI_SPLIT_TRAIN];
    int64_t first = step % plan->steps_per_epoch * batch;
    int64_t real = n_samples - first < batch ? n_samples - first : batch;
    return real * plan->sample.n_time;
}

static ls_status set_epoch(lsi_worker *w, int64_t step) {
    int64_t epoch = step / w->plan->steps_per_epoch;
    if (epoch == w->sampler_epoch) return LS_OK;
    w->sampler_epoch = epoch;
    return ls_sampler_set_epoch(w->sampler, epoch);
}

/* ---- gradients ---- */

static ls_status run_micro_batch(lsi_worker *w, int64_t step, int64_t micro, float *loss,
                                 float *stats) {
    int64_t begin_ns = lsi_trace_begin();
    LSI_TRY(load_micro_batch(w, step, micro));
    LSI_TRY(ls_ddp_begin_backward(w->ddp));
    lsi_tape_reset(w->tape, true);
    lsi_tape_accumulate(w->tape, ls_ddp_accumulates(w->ddp));
    lsi_tape_seed(w->tape, (uint64_t)w->config->seed, (uint32_t)step, (uint32_t)micro);
    lsi_batch batch = lsi_worker_batch(w);
    batch.stats = stats;
    lsi_tensor *sum = w->model->class->forward(w->model, w->tape, &batch);
    LSI_TRY(lsi_tape_status(w->tape));
    *loss = *(const float *)sum->data;
    lsi_trace_end(begin_ns, LSI_TRACE_COMPUTE, "forward", micro);
    begin_ns = lsi_trace_begin();
    LSI_TRY(lsi_tape_backward(w->tape, sum));
    lsi_trace_end(begin_ns, LSI_TRACE_COMPUTE, "backward", micro);
    return LS_OK;
}

int64_t lsi_worker_report_width(const lsi_worker *w) {
    return w->plan->deal.largest * (1 + w->model->n_stats) + 1;
}

static float *report_of(const lsi_worker *w, int rank) {
    return w->reported + rank * lsi_worker_report_width(w);
}

/* Statistics of micro-batch i of a rank; NULL: the model has none. */
static float *stats_of(const lsi_worker *w, int rank, int64_t i) {
    int64_t n = w->model->n_stats;
    return n ? report_of(w, rank) + w->plan->deal.largest + 1 + i * n : NULL;
}

/* Averaged gradients; losses and statistics of this rank's micro-batches are left in its report. */
static ls_status compute_gradients(lsi_worker *w, int64_t step) {
    const lsi_deal *deal = &w->plan->deal;
    int64_t n_mine = deal->count[w->rank];
    float *losses = report_of(w, w->rank);
    LSI_TRY(ls_ddp_begin_step(w->ddp, n_mine, 1.0 / (double)count_targets(w, step)));
    for (int64_t i = 0; i < n_mine; i++) {
        int64_t micro = deal->first[w->rank] + i;
        LSI_TRY(lsi_context(run_micro_batch(w, step, micro, &losses[i], stats_of(w, w->rank, i)),
                            "step %lld, micro-batch %lld", (long long)step + 1, (long long)micro));
    }
    return lsi_context(ls_ddp_finish_step(w->ddp), "step %lld", (long long)step + 1);
}

/* ---- what all ranks must know ---- */

static ls_status refuse_loss(const lsi_worker *w, int64_t step, int rank, int64_t micro,
                             float loss) {
    return lsi_fail(LS_ERR_NUMERIC,
                    "step %lld: the loss of micro-batch %lld (rank %d) is %g, not a "
                    "finite number; lower --lr (now %g), use a longer --warmup-steps or a smaller "
                    "--clip-norm",
                    (long long)step + 1, (long long)micro, rank, (double)loss, w->config->lr);
}

/* Ranks have consecutive micro-batches, so this is their global order. */
static void fold_stats(lsi_worker *w) {
    const lsi_deal *deal = &w->plan->deal;
    if (!w->model->class->fold_stats) return;
    for (int r = 0; r < w->n_ranks; r++)
        for (int64_t i = 0; i < deal->count[r]; i++)
            w->model->class->fold_stats(w->model, stats_of(w, r, i));
}

/* Gathers the reports; *loss becomes the step's mean over targets. */
static ls_status agree_on_step(lsi_worker *w, int64_t step, double *loss) {
    const lsi_deal *deal = &w->plan->deal;
    int64_t width = lsi_worker_report_width(w);
    float *mine = report_of(w, w->rank);
    mine[deal->largest] = (float)lsi_region_stop_requested(w->region);
    LSI_TRY(ls_all_gather(w->group, mine, w->reported, width, LS_DTYPE_F32, NULL));
    double sum = 0;
    w->stop_signal = 0;
    for (int r = 0; r < w->n_ranks; r++) {
        const float *theirs = report_of(w, r);
        if (theirs[deal->largest] != 0) w->stop_signal = (int)theirs[deal->largest];
        for (int64_t i = 0; i < deal->count[r]; i++) {
            if (!isfinite(theirs[i])) return refuse_loss(w, step, r, deal->first[r] + i, theirs[i]);
            sum += (double)theirs[i];
        }
    }
    fold_stats(w);
    *loss = sum / (double)count_targets(w, step);
    return LS_OK;
}

/* The parameter to blame when the norm of the averaged gradient is not finite. */
static ls_status refuse_gradient(const lsi_worker *w, int64_t step, double norm) {
    const char *name = "?";
    for (int i = w->model->n_params - 1; i >= 0; i--)
        if (w->model->params[i].grad &&
            !isfinite(ls_sum_squares(w->model->params[i].grad, w->model->params[i].count)))
            name = w->model->params[i].name;
    return lsi_fail(LS_ERR_NUMERIC,
                    "step %lld: the norm of the gradient is %g; the first parameter "
                    "whose gradient is not finite is %s; lower --lr",
                    (long long)step + 1, norm, name);
}

static ls_status update_weights(lsi_worker *w, int64_t step, double *lr, double *norm) {
    int64_t begin_ns = lsi_trace_begin();
    ls_schedule schedule = {.peak_lr = w->config->lr,
                            .min_lr = w->plan->min_lr,
                            .warmup_steps = w->plan->warmup_steps,
                            .total_steps = w->plan->total_steps,
                            .kind = w->plan->schedule};
    *lr = ls_schedule_lr(&schedule, step);
    int64_t norm_ns = lsi_now_ns();
    *norm = lsi_optimizer_global_norm(w->optimizer);
    int64_t update_ns = lsi_now_ns();
    if (!isfinite(*norm)) return refuse_gradient(w, step, *norm);
    double factor = ls_clip_factor(*norm, w->config->clip_norm);
    LSI_TRY(lsi_optimizer_step(w->optimizer, *lr, factor));
    lsi_trace_end(begin_ns, LSI_TRACE_COMPUTE, "optimizer", step);
    if (!w->profile) return LS_OK;
    lsi_profile_add(w->profile, "gradient norm", LSI_PHASE_STEP, update_ns - norm_ns, 0);
    lsi_profile_add(w->profile, "adamw", LSI_PHASE_STEP, lsi_now_ns() - update_ns, 0);
    return LS_OK;
}

/* ---- the step ---- */

static ls_status grow_lists(lsi_worker *w) {
    enum { FIRST_PLACES = 1024 };
    if (w->n_done < w->n_places) return LS_OK;
    int64_t n_places = w->n_places > 0 ? 2 * w->n_places : FIRST_PLACES;
    double **lists[] = {&w->losses, &w->step_ms, &w->comm_ms, &w->exposed_ms};
    for (int i = 0; i < 4; i++) {
        double *longer =
            lsi_realloc(LSI_MEM_OTHER, *lists[i], (size_t)n_places * sizeof **lists[i]);
        LSI_TRY(lsi_check_alloc(longer));
        *lists[i] = longer;
    }
    w->n_places = n_places;
    return LS_OK;
}

/* The first step warms up. */
static void profile_step(lsi_worker *w, int64_t step_ns, int64_t wait_ns) {
    if (!w->profile) return;
    if (w->n_done == 0) {
        lsi_profile_clear(w->profile);
        return;
    }
    lsi_profile_add(w->profile, "waiting for ranks", LSI_PHASE_STEP, wait_ns, 0);
    w->profile_ns += step_ns;
}

static ls_status record_step(lsi_worker *w, lsi_step_record *record, const lsi_group_stats *before,
                             int64_t begin_ns) {
    lsi_group_stats after;
    LSI_TRY(grow_lists(w));
    lsi_group_get_stats(w->group, &after);
    record->step_ms = (double)(lsi_now_ns() - begin_ns) / 1e6;
    record->comm_ms = (double)(after.flight_ns - before->flight_ns) / 1e6;
    record->comm_exposed_ms =
        (double)(after.wait_ns - before->wait_ns + after.work_ns - before->work_ns) / 1e6;
    record->bytes_sent = after.bytes_sent - before->bytes_sent;
    w->wall_s += record->step_ms / 1e3;
    w->n_tokens += record->n_tokens;
    w->bytes_sent = record->bytes_sent;
    w->losses[w->n_done] = record->loss;
    w->step_ms[w->n_done] = record->step_ms;
    w->comm_ms[w->n_done] = record->comm_ms;
    w->exposed_ms[w->n_done] = record->comm_exposed_ms;
    profile_step(w, lsi_now_ns() - begin_ns, after.wait_ns - before->wait_ns);
    w->n_done++;
    if (w->rank != 0) return LS_OK;
    lsi_metrics_step(w->metrics, record);
    lsi_progress_step(w->progress, record);
    return LS_OK;
}

ls_status lsi_worker_step(lsi_worker *w, int64_t step) {
    int64_t begin_ns = lsi_now_ns();
    lsi_group_stats before;
    lsi_group_get_stats(w->group, &before);
    lsi_region_set_step(w->region, w->rank, step + 1);
    lsi_step_record record = {.step = step + 1, .n_tokens = count_targets(w, step)};
    LSI_TRY(set_epoch(w, step));
    LSI_TRY(compute_gradients(w, step));
    LSI_TRY(agree_on_step(w, step, &record.loss));
    LSI_TRY(update_weights(w, step, &record.lr, &record.grad_norm));
    return record_step(w, &record, &before, begin_ns);
}
