/* What a run leaves: the agreed hash of the weights, the memory table, the summary and --json. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "tensor/gemm.h"
#include "train/worker.h"

/* ---- agreement ---- */

ls_status lsi_worker_agree_weights(lsi_worker *w, char sha256[LSI_SHA256_TEXT_BYTES]) {
    enum { WORDS = 64 / sizeof(float) };
    char all[LSI_MAX_RANKS][64];
    if (w->plan->hook == LS_HOOK_NOOP) /* replicas differ by intention */
        return lsi_model_sha256_from(w->model, lsi_worker_get_values, w, sha256);
    LSI_TRY(ls_ddp_check_weights(w->ddp)); /* names the parameter */
    LSI_TRY(lsi_model_sha256_from(w->model, lsi_worker_get_values, w, sha256));
    LSI_TRY(ls_all_gather(w->group, sha256, all, WORDS, LS_DTYPE_F32, NULL));
    for (int r = 1; r < w->n_ranks; r++)
        if (memcmp(all[0], all[r], sizeof all[0]) != 0)
            return lsi_fail(LS_ERR_MISMATCH,
                            "replicas differ after %" PRId64 " steps: rank 0 has "
                            "weights %.12s…, rank %d has %.12s…",
                            w->n_done, all[0], r, all[r]);
    return LS_OK;
}

/* ---- JSON ---- */

/* JSON has no NaN and no infinity, which losses of steps that were left out may be. */
static json_t *number_of(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *list_of(const double *values, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, number_of(values[i]));
    return list;
}

static json_t *memory_of(int rank, const lsi_memory_row *row, int64_t peer_bytes) {
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(rank));
    json_object_set_new(object, "now_bytes", lsi_memory_to_json(row->now_bytes));
    json_object_set_new(object, "peak_bytes", lsi_memory_to_json(row->peak_bytes));
    json_object_set_new(object, "peak_total_bytes", json_integer(lsi_memory_peak_bytes(row)));
    json_object_set_new(object, "peer_bytes", json_integer(peer_bytes));
    json_object_set_new(object, "file_bytes", json_integer(row->file_bytes));
    json_object_set_new(object, "now_rss_bytes", json_integer(row->now_rss_bytes));
    json_object_set_new(object, "peak_rss_bytes", json_integer(row->peak_rss_bytes));
    return object;
}

static void add_memory(json_t *result, const lsi_worker *w, const lsi_memory_row *rows) {
    json_t *ranks = json_array(), *rss = json_array();
    int largest = lsi_memory_largest(rows, w->n_ranks);
    lsi_mem_estimate expected;
    lsi_worker_expect_memory(w, &expected);
    for (int r = 0; r < w->n_ranks; r++) {
        json_array_append_new(ranks, memory_of(r, &rows[r], expected.peer_bytes));
        json_array_append_new(rss, json_integer(rows[r].peak_rss_bytes));
    }
    json_object_set_new(result, "peak_bytes", lsi_memory_to_json(rows[largest].peak_bytes));
    json_object_set_new(result, "peak_rss_bytes", rss);
    json_object_set_new(result, "ranks", ranks);
}

static json_t *make_result(lsi_worker *w, const char *sha256, const lsi_memory_row *rows) {
    const lsi_run_plan *p = w->plan;
    json_t *result = json_pack(
        "{s:s, s:i, s:I, s:o, s:o, s:s, s:f, s:I, s:I, s:I, s:i, s:s, s:s}", "strategy",
        w->job->strategy, "world_size", w->n_ranks, "steps", (json_int_t)w->n_done, "loss_first",
        number_of(w->losses[0]), "loss_last", number_of(w->losses[w->n_done - 1]), "weights_sha256",
        sha256, "tokens_per_s", (double)w->n_tokens / w->wall_s, "n_params",
        (json_int_t)w->model->n_elems, "micro_batch_size", (json_int_t)p->micro_batch_size,
        "n_micro_batches", (json_int_t)p->n_micro_batches, "threads", p->n_threads, "processor",
        lsi_cpu_name(), "gemm_library", lsi_gemm_library());
    if (!result) return NULL;
    /* Medians reorder their lists, so the losses go first. */
    json_object_set_new(result, "loss", list_of(w->losses, w->n_done));
    json_object_set_new(result, "step_ms", json_real(lsi_median(w->step_ms, w->n_done)));
    json_object_set_new(result, "comm_ms", json_real(lsi_median(w->comm_ms, w->n_done)));
    json_object_set_new(result, "comm_exposed_ms", json_real(lsi_median(w->exposed_ms, w->n_done)));
    json_object_set_new(result, "bytes_sent",
                        json_integer((json_int_t)lsi_median(w->sent_bytes, w->n_done)));
    json_object_set_new(result, "unigram_entropy", json_real(p->unigram_entropy[LSI_SPLIT_TRAIN]));
    if (w->last_val_step >= 0) json_object_set_new(result, "val_loss", number_of(w->last_val_loss));
    if (w->last_val_step >= 0 && !isnan(w->last_val_accuracy))
        json_object_set_new(result, "val_accuracy", json_real(w->last_val_accuracy));
    json_object_set_new(result, "grad_average", json_string(w->config->grad_average));
    json_object_set_new(result, "comm_hook", json_string(w->config->comm_hook));
    json_object_set_new(result, "n_skipped", json_integer(w->n_skipped));
    json_object_set_new(result, "monitor", lsi_monitor_to_json(w->monitor));
    add_memory(result, w, rows);
    return result;
}

/* ---- summary ---- */

static void print_summary(lsi_worker *w, const lsi_memory_row *rows) {
    FILE *out = w->job->out;
    const lsi_run_plan *p = w->plan;
    char memory[32], time[32];
    int64_t tail = w->n_done < 20 ? w->n_done : 20;
    double recent = 0, exposed = 0;
    for (int64_t i = w->n_done - tail; i < w->n_done; i++) recent += w->losses[i] / (double)tail;
    for (int64_t i = 0; i < w->n_done; i++) exposed += w->exposed_ms[i] / 1e3;
    bool has_images = lsi_worker_has_images(w);
    fprintf(out, "\ntrain loss       %.4f nats/%s (mean of the last %" PRId64 " steps)\n", recent,
            has_images ? "image" : "token", tail);
    if (w->last_val_step >= 0) fprintf(out, "validation loss  %.4f\n", w->last_val_loss);
    if (w->last_val_step >= 0 && !isnan(w->last_val_accuracy))
        fprintf(out, "accuracy         %.2f %%\n", 100 * w->last_val_accuracy);
    if (!has_images)
        fprintf(out, "unigram entropy  %.4f (the best loss without any context)\n",
                p->unigram_entropy[LSI_SPLIT_TRAIN]);
    fprintf(out, "speed            %.0f %s/s, %s in all\n", (double)w->n_tokens / w->wall_s,
            has_images ? "images" : "tokens", lsi_format_seconds(w->wall_s, time, sizeof time));
    fprintf(out, "communication    %.1f %% of the time, %s sent per step and worker\n",
            100 * exposed / w->wall_s,
            lsi_format_bytes(lsi_median(w->sent_bytes, w->n_done), memory, sizeof memory));
    if (w->n_skipped > 0)
        fprintf(out, "left out         %" PRId64 " steps that were not finite\n", w->n_skipped);
    if (w->plan->hook == LS_HOOK_NOOP)
        fprintf(out, "replicas         differ: --comm-hook noop sends nothing\n");
    fprintf(out, "memory           %s at peak per worker\n",
            lsi_format_bytes((double)rows[0].peak_rss_bytes, memory, sizeof memory));
    fprintf(out, "model            %s/model\n", w->config->out);
    if (w->n_ranks > 1) {
        fputc('\n', out);
        lsi_monitor_print(w->monitor, out);
    }
    fflush(out);
}

ls_status lsi_worker_report(lsi_worker *w, const char *sha256) {
    lsi_memory_row rows[LSI_MAX_RANKS];
    LSI_TRY(lsi_worker_gather_memory(w, rows));
    if (w->rank != 0) return LS_OK;
    lsi_progress_destroy(w->progress);
    w->progress = NULL;
    print_summary(w, rows);
    if (w->config->print_buckets) {
        fputc('\n', w->job->out);
        LSI_TRY(lsi_worker_print_buckets(w));
    }
    if (w->config->print_memory) {
        fputc('\n', w->job->out);
        lsi_worker_print_memory(w, rows);
    }
    if (!w->config->json) return LS_OK;
    json_t *result = make_result(w, sha256, rows);
    if (!result) return lsi_fail(LS_ERR_MEMORY, "%s: no memory for the result", w->config->json);
    ls_status status = lsi_file_replace_json(w->config->json, result);
    json_decref(result);
    return status;
}
