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
 *     losses (largest share)   stop (1)   times (3)   statistics (largest share, n_stats of the
 *                                                     model) */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"
#include "parallel/hybrid.h"
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

ls_status lsi_worker_load_micro_batch(lsi_worker *w, int64_t step, int64_t micro) {
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
int64_t lsi_worker_count_targets(const lsi_worker *w, int64_t step) {
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

int64_t lsi_worker_report_width(const lsi_worker *w) {
    return w->plan->deal.largest * (1 + w->model->n_stats) + 1 + LSI_REPORTED_TIMES;
}

float *lsi_worker_report_of(const lsi_worker *w, int rank) {
    return w->reported + rank * lsi_worker_report_width(w);
}

/* Statistics of micro-batch i of a rank; NULL: the model has none. */
float *lsi_worker_stats_of(const lsi_worker *w, int rank, int64_t i) {
    int64_t n = w->model->n_stats;
    float *report = lsi_worker_report_of(w, rank);
    return n ? report + w->plan->deal.largest + 1 + LSI_REPORTED_TIMES + i * n : NULL;
}

/* ---- what all ranks must know ---- */

/* In the global order of micro-batches. With synchronised batch norm the ranks' micro-batches of a
 * round share their statistics, which count once. */
static void fold_stats(lsi_worker *w) {
    const lsi_deal *deal = &w->plan->deal;
    if (!w->model->class->fold_stats) return;
    for (int64_t m = 0; m < w->plan->n_micro_batches; m++) {
        int64_t i;
        int rank = lsi_deal_find(deal, m, &i);
        if (w->config->sync_batch_norm && rank > 0) continue;
        w->model->class->fold_stats(w->model, lsi_worker_stats_of(w, rank, i));
    }
}

/* The step's mean loss over targets; `what` names the first one that is not finite, if any. */
static double add_losses(const lsi_worker *w, int64_t step, char what[96]) {
    double sum = 0;
    for (int64_t m = 0; m < w->plan->n_micro_batches; m++) {
        int64_t i;
        int rank = lsi_deal_find(&w->plan->deal, m, &i);
        float loss = lsi_worker_report_of(w, rank)[i];
        if (!isfinite(loss) && !*what)
            snprintf(what, 96, "the loss of micro-batch %lld (rank %d) is %g", (long long)m, rank,
                     (double)loss);
        sum += (double)loss;
    }
    return sum / (double)lsi_worker_count_targets(w, step);
}

/* Gathers the reports. */
static ls_status meet(lsi_worker *w, int64_t step, double *loss, char what[96]) {
    const lsi_deal *deal = &w->plan->deal;
    float *mine = lsi_worker_report_of(w, w->rank);
    mine[deal->largest] = (float)lsi_region_stop_requested(w->region);
    lsi_times_report(w, mine + deal->largest + 1);
    LSI_TRY(
        ls_all_gather(w->group, mine, w->reported, lsi_worker_report_width(w), LS_DTYPE_F32, NULL));
    w->stop_signal = 0;
    for (int r = 0; r < w->n_ranks; r++) {
        int signal = (int)lsi_worker_report_of(w, r)[deal->largest];
        if (signal != 0) w->stop_signal = signal;
    }
    *loss = add_losses(w, step, what);
    return LS_OK;
}

/* ---- weights ---- */

static double learning_rate(const lsi_worker *w, int64_t step) {
    const ls_schedule schedule = {.peak_lr = w->config->lr,
                                  .min_lr = w->plan->min_lr,
                                  .warmup_steps = w->plan->warmup_steps,
                                  .total_steps = w->plan->total_steps,
                                  .kind = w->plan->schedule};
    return ls_schedule_lr(&schedule, step);
}

ls_adamw_opts lsi_worker_adamw(const lsi_worker *w, int64_t step, double grad_scale) {
    const lsi_train_config *c = w->config;
    return (ls_adamw_opts){.lr = learning_rate(w, step),
                           .beta1 = c->beta1,
                           .beta2 = c->beta2,
                           .epsilon = c->epsilon,
                           .weight_decay = c->weight_decay,
                           .grad_scale = grad_scale};
}

/* --update-in-backward: weights are those of the next step already, whatever the losses say; that
 * gradients are finite is known. */
static ls_status account_for_update(lsi_worker *w, int64_t step, const char *what,
                                    lsi_step_record *record) {
    bool is_skipped = false;
    record->lr = learning_rate(w, step);
    record->grad_norm = NAN; /* nobody has it */
    LSI_TRY(lsi_worker_judge(w, step, what, 0, &is_skipped));
    fold_stats(w);
    if (w->profile) lsi_profile_add(w->profile, "adamw", LSI_PHASE_STEP, w->times.optimizer_ns, 0);
    return LS_OK;
}

static ls_status update_weights(lsi_worker *w, int64_t step, const char *what,
                                lsi_step_record *record) {
    int64_t trace_ns = lsi_trace_begin();
    bool is_skipped = false;
    lsi_times_begin(w);
    record->lr = learning_rate(w, step);
    LSI_TRY(ls_ddp_grad_norm(w->ddp, &record->grad_norm));
    int64_t norm_ns = lsi_times_lap(w, NULL);
    w->times.optimizer_ns = norm_ns; /* all there is to a step that is left out */
    LSI_TRY(lsi_worker_judge(w, step, what, record->grad_norm, &is_skipped));
    if (is_skipped) return LS_OK;
    fold_stats(w);
    const ls_adamw_opts adamw =
        lsi_worker_adamw(w, step, ls_clip_factor(record->grad_norm, w->config->clip_norm));
    LSI_TRY(ls_ddp_update(w->ddp, &adamw));
    int64_t update_ns = lsi_times_lap(w, NULL);
    w->times.optimizer_ns = norm_ns + update_ns;
    lsi_trace_end(trace_ns, LSI_TRACE_COMPUTE, "optimizer", step);
    if (!w->profile) return LS_OK;
    lsi_profile_add(w->profile, "gradient norm", LSI_PHASE_STEP, norm_ns, 0);
    lsi_profile_add(w->profile, "adamw", LSI_PHASE_STEP, update_ns, 0);
    return LS_OK;
}

/* ---- the step ---- */

static ls_status grow_lists(lsi_worker *w) {
    enum { FIRST_PLACES = 1024 };
    if (w->n_done < w->n_places) return LS_OK;
    int64_t n_places = w->n_places > 0 ? 2 * w->n_places : FIRST_PLACES;
    double **lists[] = {&w->losses, &w->step_ms, &w->comm_ms, &w->exposed_ms, &w->sent_bytes};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
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

/* Sets what only the times of all ranks can tell. */
static void watch(lsi_worker *w, lsi_step_record *record) {
    lsi_rank_times ranks[LSI_MAX_RANKS];
    for (int r = 0; r < w->n_ranks; r++) {
        const float *times = lsi_worker_report_of(w, r) + w->plan->deal.largest + 1;
        ranks[r] = (lsi_rank_times){(double)times[0], (double)times[1], (double)times[2]};
    }
    lsi_monitor_step(w->monitor, record, ranks);
}

static ls_status record_step(lsi_worker *w, lsi_step_record *record, const lsi_group_stats *before,
                             int64_t begin_ns) {
    lsi_group_stats after;
    LSI_TRY(grow_lists(w));
    lsi_ddp_get_stats(w->ddp, &after);
    record->step_ms = (double)(lsi_now_ns() - begin_ns) / 1e6;
    record->comm_ms = (double)(after.flight_ns - before->flight_ns) / 1e6;
    record->comm_exposed_ms =
        (double)(after.wait_ns - before->wait_ns + after.work_ns - before->work_ns) / 1e6;
    record->bytes_sent = after.bytes_sent - before->bytes_sent;
    record->forward_ms = (double)w->times.forward_ns / 1e6;
    record->backward_ms = (double)w->times.backward_ns / 1e6;
    record->optimizer_ms = (double)w->times.optimizer_ns / 1e6;
    record->n_skipped = w->n_skipped;
    w->wall_s += record->step_ms / 1e3;
    w->n_tokens += record->n_tokens;
    w->losses[w->n_done] = record->loss;
    w->step_ms[w->n_done] = record->step_ms;
    w->comm_ms[w->n_done] = record->comm_ms;
    w->exposed_ms[w->n_done] = record->comm_exposed_ms;
    w->sent_bytes[w->n_done] = (double)record->bytes_sent;
    profile_step(w, lsi_now_ns() - begin_ns, after.wait_ns - before->wait_ns);
    w->n_done++;
    if (w->rank != 0) return LS_OK;
    watch(w, record);
    lsi_metrics_step(w->metrics, record);
    lsi_progress_step(w->progress, record);
    const char *note = lsi_monitor_note(w->monitor);
    if (note) lsi_progress_say(w->progress, "step %lld: %s", (long long)record->step, note);
    return LS_OK;
}

/* Replicas that drifted apart are found out before they are saved. */
static ls_status check_weights(lsi_worker *w, int64_t step) {
    int64_t every = w->config->check_weights_every;
    if (every == 0 || (step + 1) % every != 0 || w->plan->hook == LS_HOOK_NOOP) return LS_OK;
    return lsi_context(ls_ddp_check_weights(w->ddp), "step %lld", (long long)step + 1);
}

ls_status lsi_worker_step(lsi_worker *w, int64_t step) {
    int64_t begin_ns = lsi_now_ns();
    char what[96] = "";
    lsi_group_stats before;
    lsi_ddp_get_stats(w->ddp, &before);
    lsi_region_set_step(w->region, w->rank, step + 1);
    lsi_step_record record = {
        .step = step + 1, .n_tokens = lsi_worker_count_targets(w, step), .n_workers = w->n_ranks};
    lsi_times_open_step(w);
    LSI_TRY(set_epoch(w, step));
    LSI_TRY(lsi_worker_compute_gradients(w, step));
    LSI_TRY(meet(w, step, &record.loss, what));
    const char *wrong = *what ? what : NULL;
    LSI_TRY(w->config->update_in_backward ? account_for_update(w, step, wrong, &record)
                                          : update_weights(w, step, wrong, &record));
    LSI_TRY(check_weights(w, step));
    lsi_times_close_step(w);
    return record_step(w, &record, &before, begin_ns);
}
