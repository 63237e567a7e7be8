/* What memory holds at the end of a run: measured on every rank, and worked out beside it. */
#include "parallel/memory.h"
#include "base/mem.h"
#include "observe/memory_table.h"
#include "train/worker.h"

/* ---- measured ---- */

void lsi_worker_note_memory(lsi_worker *w) {
    lsi_memory_row *mine = &w->memory;
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
        mine->now_bytes[kind] = lsi_mem_now((lsi_mem_kind)kind);
    mine->now_bytes[LSI_MEM_OTHER] += lsi_mem_library_bytes() + lsi_region_control_bytes(w->region);
    mine->now_rss_bytes = lsi_mem_rss_bytes();
    mine->file_bytes = lsi_mem_file_bytes();
}

ls_status lsi_worker_gather_memory(lsi_worker *w, lsi_memory_row rows[LSI_MAX_RANKS]) {
    lsi_memory_row *mine = &w->memory;
    /* Libraries only grow; asked at the end, they have their largest size. */
    lsi_mem_note(LSI_MEM_OTHER, lsi_mem_library_bytes() + lsi_region_control_bytes(w->region));
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
        mine->peak_bytes[kind] = lsi_mem_peak((lsi_mem_kind)kind);
    mine->peak_rss_bytes = lsi_mem_peak_rss_bytes();
    return ls_all_gather(w->group, mine, rows, sizeof *mine / sizeof(float), LS_DTYPE_F32, NULL);
}

/* ---- expected ---- */

static void count_params(const lsi_worker *w, lsi_memory_input *in) {
    for (int i = 0; i < w->model->n_params; i++) {
        const ls_param *param = &w->model->params[i];
        bool is_narrow = param->dtype == LS_DTYPE_BF16;
        bool is_frozen = param->flags & LS_PARAM_FROZEN;
        if (is_frozen && lsi_ddp_has_values(w->ddp, i)) {
            *(is_narrow ? &in->frozen_narrow_elems : &in->frozen_wide_elems) += param->count;
        } else if (is_frozen) {
            in->frozen_bytes += param->count * (int64_t)ls_dtype_bytes(param->dtype);
            in->frozen_lower_bytes += is_narrow ? param->count * (int64_t)sizeof(uint16_t) : 0;
        } else if (is_narrow) {
            in->narrow_elems += param->count;
        } else {
            in->wide_elems += param->count;
        }
    }
}

/* Of what comes and goes: how many buffers are in use at a time, at most, and the largest one.
 * Buckets that are open: the one that is being filled, the next one, which is begun before, that of
 * a table that the first unit and the last one use, and those on their way. Of units the same table
 * counts besides what a unit has for itself: a bucket, or two where some of it is frozen. */
static void count_buffers(const lsi_worker *w, lsi_memory_input *in) {
    enum { N_FILLED = 2, N_TIED = 1, N_IN_FLIGHT = 2 };
    const int n = ls_ddp_n_buckets(w->ddp), n_units = 1 + (int)w->config->prefetch;
    const int64_t value_bytes = (int64_t)ls_dtype_bytes(w->plan->dtype);
    int n_open = N_FILLED + N_TIED + N_IN_FLIGHT, n_sent = 0;
    for (int b = 0; b < n; b++) {
        ls_bucket_info info;
        ls_status status = ls_ddp_get_bucket(w->ddp, b, &info);
        (void)status; /* b is in range */
        n_sent += info.bytes > 0;
        if (info.bytes > in->largest_bucket_bytes) in->largest_bucket_bytes = info.bytes;
        if (info.count * value_bytes > in->largest_gathered_bytes)
            in->largest_gathered_bytes = info.count * value_bytes;
    }
    int n_gathered = (n_sent < n ? 2 : 1) * n_units + N_TIED;
    in->n_open_buckets = n_open < n_sent ? n_open : n_sent;
    in->n_gathered = n_gathered < n ? n_gathered : n;
}

static int64_t persistent_bytes(const lsi_worker *w) {
    int64_t bytes = 0;
    for (int i = 0; i < w->model->n_params; i++) {
        const ls_param *param = &w->model->params[i];
        if (lsi_ddp_has_values(w->ddp, i) && param->count < w->config->persist_below)
            bytes += param->count * (int64_t)ls_dtype_bytes(param->dtype);
    }
    return bytes;
}

void lsi_worker_expect_memory(const lsi_worker *w, lsi_mem_estimate *expected) {
    const lsi_run_plan *plan = w->plan;
    lsi_memory_input in = {.strategy = plan->strategy,
                           .replicas = plan->replicas,
                           .offload = plan->offload,
                           .n_ranks = w->n_ranks,
                           .shard_size = plan->shard_size,
                           .has_lower_halves = true,
                           .updates_in_backward = w->config->update_in_backward,
                           .is_reproducible = w->config->reproducible,
                           .n_micro_batches = plan->deal.largest,
                           .persistent_bytes = persistent_bytes(w),
                           .reshard_after_forward = plan->reshard};
    count_params(w, &in);
    count_buffers(w, &in);
    lsi_memory_formula(&in, expected);
    /* A hook has buffers of its own. */
    if (w->hook) expected->kinds[LSI_MEM_BUCKETS].rule = LSI_MEM_NO_RULE;
}

void lsi_worker_print_memory(const lsi_worker *w, const lsi_memory_row *rows) {
    lsi_mem_estimate expected;
    lsi_worker_expect_memory(w, &expected);
    lsi_memory_print(rows, w->n_ranks, &expected, w->job->out);
}
