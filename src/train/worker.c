/* The life of a worker: set up, train, finish. Set-up order follows what needs what; the struct is
 * zero before, so clean-up can always undo everything. */
#include "train/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "optim/threads.h"
#include "tensor/gemm.h"

/* ---- set-up ---- */

static ls_status set_up_group(lsi_worker *w) {
    lsi_mem_reset_peaks(); /* the launcher's are not this worker's */
    lsi_compute_set_threads(w->plan->n_threads);
    lsi_optim_set_threads(w->plan->n_threads);
    LSI_TRY(lsi_group_attach(w->region, w->rank, &w->group));
    ls_group_set_timeout(w->group, w->config->timeout_ms);
    lsi_group_set_order(w->group, &w->plan->deal.order);
    w->n_ranks = ls_group_world_size(w->group);
    LSI_TRY(ls_barrier(w->group, NULL));
    return lsi_group_calibrate(w->group);
}

static ls_status set_up_data(lsi_worker *w) {
    LSI_TRY(lsi_open_data(w->config, &w->tokenizer, &w->dataset));
    ls_sampler_opts opts = {.struct_size = sizeof opts,
                            .n_samples = w->plan->n_samples[LSI_SPLIT_TRAIN],
                            .n_ranks = 1, /* one order for all; the deal splits each batch */
                            .shuffle = 1,
                            .seed = (uint64_t)w->config->seed,
                            .tail = w->plan->tail,
                            .assign = LS_ASSIGN_BLOCKS,
                            .block = w->config->batch_size};
    LSI_TRY(ls_sampler_create(&opts, &w->sampler));
    size_t size = (size_t)w->plan->micro_batch_size;
    size_t n_time = (size_t)w->plan->sample.n_time;
    w->inputs = lsi_calloc(LSI_MEM_OTHER, size, lsi_worker_sample_bytes(w));
    w->targets = lsi_calloc(LSI_MEM_OTHER, size * n_time, sizeof *w->targets);
    return w->inputs && w->targets ? LS_OK : LS_ERR_MEMORY;
}

static ls_status set_up_model(lsi_worker *w) {
    LSI_TRY(lsi_worker_make_model(w));
    LSI_TRY(lsi_worker_set_up_ddp(w));
    lsi_worker_close_source(w);
    return LS_OK;
}

/* Statistics of synchronised batch norm. */
static ls_status gather(void *context, const double *mine, int64_t count, double *all) {
    return ls_all_gather(context, mine, all, count, LS_DTYPE_F64, NULL);
}

static ls_status set_up_tape(lsi_worker *w) {
    size_t memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    LSI_TRY(lsi_arena_create(memory_bytes, &w->arena));
    LSI_TRY(lsi_tape_create(w->arena, &w->tape));
    if (w->config->profile && w->rank == 0) LSI_TRY(lsi_profile_create(&w->profile));
    lsi_tape_profile(w->tape, w->profile);
    lsi_tape_set_dtype(w->tape, w->plan->dtype);
    lsi_tape_set_output_dtype(w->tape, w->plan->output_dtype);
    lsi_tape_checkpoint(w->tape, w->plan->n_checkpointed);
    lsi_tape_listen(w->tape, ls_ddp_sink(w->ddp));
    if (w->config->sync_batch_norm)
        lsi_tape_set_exchange(
            w->tape, (lsi_exchange){.gather = gather, .context = w->group, .n_ranks = w->n_ranks});
    return LS_OK;
}

/* By what advice on communication goes. */
static lsi_traffic traffic_of(const lsi_run_plan *plan) {
    static const lsi_traffic kept[2][2] = {{LSI_TRAFFIC_ZERO3, LSI_TRAFFIC_ZERO3_KEPT},
                                           {LSI_TRAFFIC_HYBRID, LSI_TRAFFIC_HYBRID_KEPT}};
    if (plan->strategy == LS_STRATEGY_DDP) return LSI_TRAFFIC_DDP;
    if (plan->strategy == LS_STRATEGY_ZERO1) return LSI_TRAFFIC_ZERO1;
    if (plan->strategy == LS_STRATEGY_ZERO2 || plan->replicas == LS_REPLICAS_SHARED)
        return LSI_TRAFFIC_ZERO2;
    return kept[plan->shard_size > 0][plan->reshard == LS_RESHARD_NO];
}

static ls_status set_up_records(lsi_worker *w) {
    size_t n_reported = (size_t)w->n_ranks * (size_t)lsi_worker_report_width(w);
    w->reported = lsi_calloc(LSI_MEM_OTHER, n_reported, sizeof *w->reported);
    LSI_TRY(lsi_check_alloc(w->reported));
    w->last_val_step = -1;
    if (w->config->trace) LSI_TRY(lsi_trace_start());
    if (w->rank != 0) return LS_OK;
    LSI_TRY(lsi_monitor_create(w->n_ranks, traffic_of(w->plan), &w->monitor));
    char path[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", w->config->out);
    LSI_TRY(lsi_metrics_open(path, &w->metrics));
    LSI_TRY(
        lsi_progress_create(w->job->out, w->plan->total_steps, w->config->log_every, &w->progress));
    if (lsi_worker_has_images(w)) lsi_progress_count(w->progress, "images");
    return LS_OK;
}

static ls_status set_up(lsi_worker *w) {
    LSI_TRY(set_up_group(w));
    LSI_TRY(set_up_data(w));
    LSI_TRY(lsi_context(set_up_model(w), "setting up the model"));
    LSI_TRY(set_up_tape(w));
    return set_up_records(w);
}

static void clean_up(lsi_worker *w) {
    lsi_progress_destroy(w->progress);
    lsi_monitor_destroy(w->monitor);
    if (w->metrics) (void)!lsi_metrics_close(w->metrics);
    lsi_trace_stop();
    lsi_free(w->reported);
    lsi_free(w->losses);
    lsi_free(w->step_ms);
    lsi_free(w->comm_ms);
    lsi_free(w->exposed_ms);
    lsi_free(w->sent_bytes);
    lsi_tape_destroy(w->tape);
    lsi_profile_destroy(w->profile);
    lsi_arena_destroy(w->arena);
    lsi_free(w->lower_halves);
    lsi_free(w->gathered);
    lsi_worker_clean_up_ddp(w);
    lsi_worker_close_source(w);
    lsi_model_destroy(w->model);
    lsi_free(w->inputs);
    lsi_free(w->targets);
    ls_sampler_destroy(w->sampler);
    lsi_dataset_close(w->dataset);
    lsi_tokenizer_destroy(w->tokenizer);
    ls_group_destroy(w->group);
}

/* ---- training ---- */

static bool is_evaluation_due(const lsi_worker *w, int64_t n_done) {
    int64_t every = w->config->eval_every;
    if (every == 0) every = w->plan->total_steps / 5 > 0 ? w->plan->total_steps / 5 : 1;
    return n_done % every == 0 || n_done == w->plan->total_steps;
}

static ls_status evaluate(lsi_worker *w) {
    LSI_TRY(lsi_worker_evaluate(w, &w->last_val_loss, &w->last_val_accuracy));
    if (isnan(w->last_val_loss)) return LS_OK;
    w->last_val_step = w->n_done;
    if (w->rank != 0) return LS_OK;
    char accuracy[32] = "";
    if (!isnan(w->last_val_accuracy))
        snprintf(accuracy, sizeof accuracy, "  accuracy %.2f %%", 100 * w->last_val_accuracy);
    lsi_metrics_evaluation(w->metrics, w->n_done, w->last_val_loss, w->last_val_accuracy);
    lsi_progress_say(w->progress, "step %lld  validation loss %.4f%s", (long long)w->n_done,
                     w->last_val_loss, accuracy);
    return LS_OK;
}

static ls_status train(lsi_worker *w) {
    for (int64_t step = 0; step < w->plan->total_steps && !w->stop_signal; step++) {
        LSI_TRY(lsi_worker_step(w, step));
        /* Who was asked to stop saves at once: whoever asked may not wait much longer. */
        if (!w->stop_signal && is_evaluation_due(w, step + 1)) LSI_TRY(evaluate(w));
    }
    return LS_OK;
}

/* ---- the end ---- */

enum { SAVE_TIMEOUT_MS = 3600 * 1000 };

/* Rank 0 writes; the others help it to get the values. If it fails in the middle, they hear of it
 * while they wait for the next one. */
static ls_status save(lsi_worker *w) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/model", w->config->out);
    const lsi_model_save_opts opts = {.tokenizer =
                                          w->tokenizer ? lsi_tokenizer_name(w->tokenizer) : NULL};
    if (w->rank != 0) return lsi_model_walk(w->model, &opts, lsi_worker_get_values, w);
    if (w->tokenizer) {
        LSI_TRY(lsi_folder_make(folder));
        LSI_TRY(lsi_tokenizer_save(w->tokenizer, folder));
    }
    return lsi_model_save_from(w->model, &opts, folder, lsi_worker_get_values, w);
}

/* This rank's part of the timeline, appended to a file that is not complete yet. */
static ls_status append_trace(const lsi_worker *w, const char *part) {
    bool is_first = w->rank == 0, is_last = w->rank == w->n_ranks - 1;
    FILE *file = fopen(part, is_first ? "we" : "ae");
    if (!file) return lsi_fail_errno(LS_ERR_IO, "%s: cannot write the timeline", part);
    fputs(is_first ? "{\"traceEvents\": [\n" : ",\n", file);
    lsi_trace_print(file, w->rank);
    if (is_last) fputs("\n]}\n", file);
    bool is_whole = fflush(file) == 0 && !ferror(file) && (!is_last || fsync(fileno(file)) == 0);
    if (fclose(file) == 0 && is_whole && (!is_last || rename(part, w->config->trace) == 0))
        return LS_OK;
    ls_status status = lsi_fail_errno(LS_ERR_IO, "%s: cannot write the timeline", part);
    unlink(part);
    return status;
}

/* Ranks write one after the other; the last one gives the file its name. */
static ls_status write_trace(lsi_worker *w) {
    if (!w->config->trace) return LS_OK;
    char part[4096 + 8];
    snprintf(part, sizeof part, "%s.part", w->config->trace);
    for (int r = 0; r < w->n_ranks; r++) {
        LSI_TRY(ls_barrier(w->group, NULL));
        if (r == w->rank) LSI_TRY(append_trace(w, part));
    }
    return ls_barrier(w->group, NULL);
}

static ls_status close_metrics(lsi_worker *w) {
    if (!w->metrics) return LS_OK;
    lsi_metrics *metrics = w->metrics;
    w->metrics = NULL;
    return lsi_metrics_close(metrics);
}

static ls_status finish(lsi_worker *w) {
    char sha256[LSI_SHA256_TEXT_BYTES];
    LSI_TRY(lsi_worker_agree_weights(w, sha256));
    /* From here the others wait for rank 0's disk, which may take its time; a death is still
     * noticed by the launcher. */
    if (w->config->timeout_ms < SAVE_TIMEOUT_MS) ls_group_set_timeout(w->group, SAVE_TIMEOUT_MS);
    LSI_TRY(save(w));
    LSI_TRY(write_trace(w));
    LSI_TRY(close_metrics(w));
    LSI_TRY(lsi_worker_report(w, sha256));
    if (w->profile) lsi_profile_print(w->profile, w->n_done - 1, w->profile_ns, w->job->out);
    LSI_TRY(ls_barrier(w->group, NULL));
    if (w->stop_signal)
        return lsi_fail(LS_ERR_INTERRUPTED,
                        "stopped by signal %d (%s) after step %lld of %lld; the "
                        "model is in %s/model",
                        w->stop_signal, strsignal(w->stop_signal), (long long)w->n_done,
                        (long long)w->plan->total_steps, w->config->out);
    return LS_OK;
}

/* Before anything is cleaned up: a rank that destroys its group has left it, and others would
 * report that instead of its cause. All ranks stop for a signal alike, so it needs no rank. */
static void tell_others(const lsi_worker *w, ls_status status) {
    char message[LSI_MESSAGE_BYTES], who[32] = "";
    if (status != LS_ERR_INTERRUPTED) snprintf(who, sizeof who, "rank %d: ", w->rank);
    snprintf(message, sizeof message, "%s%s", who, ls_last_message());
    lsi_region_abort(w->region, status, w->rank, message);
}

ls_status lsi_train_worker(lsi_region *region, int rank, void *context) {
    const lsi_train_job *job = context;
    lsi_worker w = {
        .job = job, .config = job->config, .plan = job->plan, .region = region, .rank = rank};
    ls_status status = set_up(&w);
    if (status == LS_OK) status = train(&w);
    if (status == LS_OK) lsi_worker_note_memory(&w);
    if (status == LS_OK) status = finish(&w);
    if (status != LS_OK) tell_others(&w, status);
    clean_up(&w);
    return status;
}
