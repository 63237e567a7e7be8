/* A step's averaged gradients: the ddp that a configuration asks for, and the passes it listens to.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/trace.h"
#include "nn/units.h"
#include "observe/bucket_table.h"
#include "parallel/hybrid.h"
#include "train/worker.h"

/* ---- set-up ---- */

/* Whether the parameter's name begins with one of the words that commas part. */
static bool begins_with_one_of(const lsi_model *model, int i, const char *words) {
    for (const char *at = words; *at;) {
        size_t n = strcspn(at, ",");
        if (n > 0 && lsi_model_name_begins(model, i, at, n)) return true;
        at += n + (at[n] == ',');
    }
    return false;
}

static ls_status freeze(lsi_worker *w) {
    int n_frozen = 0;
    if (!w->config->freeze) return LS_OK;
    for (int i = 0; i < w->model->n_params; i++) {
        ls_param *param = &w->model->params[i];
        if (!begins_with_one_of(w->model, i, w->config->freeze)) continue;
        param->flags |= LS_PARAM_FROZEN;
        n_frozen++;
    }
    if (n_frozen > 0) return LS_OK;
    return lsi_fail(LS_ERR_USAGE,
                    "--freeze %s: no parameter has a name that begins so; the first one is %s "
                    "(lockstep inspect MODEL lists them)",
                    w->config->freeze, w->model->params[0].name);
}

/* Gradients on their way are sums over targets: the factor that torch's scaler begins with, which
 * is meant for means, would be too large by their number. */
static void set_up_scale(lsi_worker *w) {
    w->scaler = (ls_loss_scaler)LS_LOSS_SCALER_INIT;
    for (int64_t n = lsi_worker_count_targets(w, 0); n > 1; n /= 2) w->scaler.scale /= 2;
    w->wire_factor = w->plan->loss_scale > 0 ? w->plan->loss_scale : w->scaler.scale;
}

static ls_status set_up_hook(lsi_worker *w) {
    const lsi_train_config *c = w->config;
    if (w->plan->hook == 0) return LS_OK;
    set_up_scale(w);
    const ls_hook_opts opts = {.struct_size = sizeof opts,
                               .topk_share = c->topk_share,
                               .powersgd_rank = (int)c->powersgd_rank,
                               .start_step = c->hook_start_step == 0 ? -1 : c->hook_start_step,
                               .min_rate = c->powersgd_min_rate,
                               .seed = (uint64_t)c->seed,
                               .factor = w->plan->hook == LS_HOOK_FP16 ? &w->wire_factor : NULL};
    return ls_hook_create((ls_hook_kind)w->plan->hook, &opts, &w->hook);
}

/* Backward does nothing in units before the first one with something to train, so it reads nothing
 * there. */
static int first_trained_unit(const lsi_worker *w, const lsi_unit_use *uses, int n_uses) {
    for (int k = 0; k < n_uses; k++)
        if (!(w->model->params[uses[k].param].flags & LS_PARAM_FROZEN)) return uses[k].unit;
    return 0;
}

/* What each unit of the model uses, in the words of the ddp. */
static ls_status find_uses(lsi_worker *w, ls_unit_use **uses, int *n_uses) {
    lsi_unit_use *list = NULL;
    *uses = NULL;
    *n_uses = 0;
    if (w->plan->strategy == LS_STRATEGY_DDP || w->plan->replicas != LS_REPLICAS_PRIVATE)
        return LS_OK;
    LSI_TRY(lsi_units_of(w->model, &list, n_uses));
    ls_status status = lsi_units_merge(w->model, w->config->unit, &list, n_uses);
    if (status == LS_OK) *uses = lsi_calloc(LSI_MEM_OTHER, (size_t)*n_uses, sizeof **uses);
    if (status == LS_OK && !*uses) status = LS_ERR_MEMORY;
    int first = first_trained_unit(w, list, *n_uses);
    for (int k = 0; k < *n_uses && status == LS_OK; k++) {
        bool is_read_again = !list[k].forward_only && list[k].unit >= first;
        (*uses)[k] =
            (ls_unit_use){list[k].unit, list[k].param, is_read_again ? 0 : LS_USE_FORWARD_ONLY};
    }
    lsi_free(list);
    return status;
}

static ls_status create_ddp(lsi_worker *w, const ls_unit_use *uses, int n_uses) {
    const lsi_train_config *c = w->config;
    bool gathers = uses && w->plan->strategy == LS_STRATEGY_ZERO3;
    const ls_ddp_opts opts = {.struct_size = sizeof opts,
                              .bucket_cap_mb = c->bucket_cap_mb,
                              .first_bucket_mb = c->first_bucket_mb,
                              .reproducible = c->reproducible,
                              .average = w->plan->average,
                              .keep_buckets = !c->rebuild_buckets,
                              .no_overlap = !c->overlap,
                              /* otherwise norms are looked at, see health.c */
                              .nonfinite = c->update_in_backward ? LS_NONFINITE_STOP : 0,
                              .hook = w->hook,
                              .strategy = w->plan->strategy,
                              .replicas = w->plan->replicas,
                              .lower_halves = w->lower_halves,
                              .shard_size = w->plan->shard_size,
                              .uses = uses,
                              .n_uses = n_uses,
                              .prefetch = gathers ? (c->prefetch == 0 ? -1 : (int)c->prefetch) : 0,
                              .reshard_after_forward = w->plan->reshard,
                              .gather_limit_mb = c->gather_limit_mb,
                              .persist_below = c->persist_below,
                              .offload = w->plan->offload,
                              .offload_dir = c->offload_dir ? c->offload_dir : c->out,
                              .reduce_dtype =
                                  strcmp(c->reduce_dtype, "bf16") == 0 ? LS_DTYPE_BF16 : 0,
                              .fill = w->fill,
                              .fill_context = w->fill_context,
                              .update_in_backward = c->update_in_backward};
    return ls_ddp_create(w->group, w->model->params, w->model->n_params, &opts, &w->ddp);
}

ls_status lsi_worker_set_up_ddp(lsi_worker *w) {
    ls_unit_use *uses = NULL;
    int n_uses = 0;
    LSI_TRY(freeze(w));
    LSI_TRY(set_up_hook(w));
    LSI_TRY(find_uses(w, &uses, &n_uses));
    ls_status status = create_ddp(w, uses, n_uses);
    lsi_free(uses);
    LSI_TRY(status);
    lsi_ddp_set_group_order(w->ddp, &w->plan->deal.group_order);
    if (w->plan->strategy == LS_STRATEGY_DDP) return LS_OK;
    ls_ddp_keep_values(w->ddp);
    lsi_model_release(w->model);
    lsi_mem_reset_peaks(); /* the model was there twice for a moment */
    return LS_OK;
}

void lsi_worker_clean_up_ddp(lsi_worker *w) {
    ls_ddp_destroy(w->ddp);
    ls_hook_destroy(w->hook);
}

/* ---- passes ---- */

static lsi_tensor *forward(lsi_worker *w, int64_t step, int64_t micro, float *stats) {
    lsi_tape_reset(w->tape, true);
    lsi_tape_accumulate(w->tape, ls_ddp_accumulates(w->ddp));
    lsi_tape_seed(w->tape, (uint64_t)w->config->seed, (uint32_t)step, (uint32_t)micro);
    lsi_batch batch = lsi_worker_batch(w);
    batch.stats = stats;
    return w->model->class->forward(w->model, w->tape, &batch);
}

static int64_t count_loaded_targets(const lsi_worker *w) {
    int64_t n = w->plan->micro_batch_size * w->plan->sample.n_time, found = 0;
    for (int64_t i = 0; i < n; i++) found += w->targets[i] >= 0;
    return found;
}

static ls_status run_micro_batch(lsi_worker *w, int64_t step, int64_t micro, float *loss,
                                 float *stats) {
    lsi_step_times *t = &w->times;
    int64_t trace_ns = lsi_trace_begin();
    LSI_TRY(lsi_worker_load_micro_batch(w, step, micro));
    if (w->plan->average == LS_AVERAGE_MEANS)
        LSI_TRY(ls_ddp_weigh(w->ddp, (double)count_loaded_targets(w)));
    LSI_TRY(ls_ddp_begin_backward(w->ddp));
    lsi_tensor *sum = forward(w, step, micro, stats);
    LSI_TRY(lsi_tape_status(w->tape));
    *loss = *(const float *)sum->data;
    lsi_trace_end(trace_ns, LSI_TRACE_COMPUTE, "forward", micro);
    t->forward_ns += lsi_times_lap(w, &t->last_forward_ns);
    trace_ns = lsi_trace_begin();
    LSI_TRY(lsi_tape_backward(w->tape, sum));
    lsi_trace_end(trace_ns, LSI_TRACE_COMPUTE, "backward", micro);
    t->backward_ns += lsi_times_lap(w, &t->last_backward_ns);
    return LS_OK;
}

/* Factor of the summed gradients; 0: the ddp knows. */
static double scale_of(const lsi_worker *w, int64_t step) {
    if (w->plan->average != LS_AVERAGE_WEIGHTS) return 0;
    return 1.0 / (double)lsi_worker_count_targets(w, step);
}

static ls_status plan_update(lsi_worker *w, int64_t step) {
    if (!w->config->update_in_backward) return LS_OK;
    const ls_adamw_opts adamw = lsi_worker_adamw(w, step, 1);
    return ls_ddp_plan_update(w->ddp, &adamw);
}

ls_status lsi_worker_compute_gradients(lsi_worker *w, int64_t step) {
    const lsi_deal *deal = &w->plan->deal;
    int64_t n_mine = deal->count[w->rank];
    float *losses = lsi_worker_report_of(w, w->rank);
    w->times.forward_ns = w->times.backward_ns = 0;
    lsi_times_begin(w);
    LSI_TRY(ls_ddp_begin_step(w->ddp, n_mine, scale_of(w, step)));
    LSI_TRY(plan_update(w, step));
    for (int64_t i = 0; i < n_mine; i++) {
        int64_t micro = lsi_deal_number(deal, w->rank, i);
        LSI_TRY(lsi_context(
            run_micro_batch(w, step, micro, &losses[i], lsi_worker_stats_of(w, w->rank, i)),
            "step %lld, micro-batch %lld", (long long)step + 1, (long long)micro));
    }
    LSI_TRY(lsi_context(ls_ddp_finish_step(w->ddp), "step %lld", (long long)step + 1));
    if (w->config->update_in_backward) lsi_times_take_update(w);
    return LS_OK;
}

/* ---- buckets ---- */

/* The ddp's times begin with the last micro-batch's forward pass, those shown with its backward.
 * Buckets of frozen parameters, which are gathered but not sent, have none. */
static double shown_ms(double ms, double forward_ms) {
    return isnan(ms) ? 0 : ms - forward_ms;
}

ls_status lsi_worker_print_buckets(lsi_worker *w) {
    int n = ls_ddp_n_buckets(w->ddp);
    double forward_ms = (double)w->times.last_forward_ns / 1e6;
    lsi_bucket_row *rows = lsi_calloc(LSI_MEM_OTHER, (size_t)n, sizeof *rows);
    LSI_TRY(lsi_check_alloc(rows));
    for (int b = 0; b < n; b++) {
        ls_bucket_info info;
        ls_status status = ls_ddp_get_bucket(w->ddp, b, &info);
        (void)status; /* b is in range */
        rows[b] = (lsi_bucket_row){.index = b,
                                   .count = info.count,
                                   .bytes = info.bytes,
                                   .dtype = ls_dtype_name(info.dtype),
                                   .n_params = info.n_params,
                                   .first_param = w->model->params[info.first_param].name,
                                   .ready_ms = shown_ms(info.ready_ms, forward_ms),
                                   .posted_ms = shown_ms(info.posted_ms, forward_ms),
                                   .done_ms = shown_ms(info.done_ms, forward_ms),
                                   .n_gathers = info.n_gathers};
    }
    lsi_bucket_print(rows, n, (double)w->times.last_backward_ns / 1e6, w->job->out);
    lsi_free(rows);
    return LS_OK;
}
