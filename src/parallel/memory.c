/* The formulas of memory.h. The table says what a strategy shards; all else follows from it. */
#include "parallel/memory.h"

#include "parallel/units.h"

enum { MOMENTS_BYTES = 8, LOWER_BYTES = 2, WIDE_BYTES = 4, NARROW_BYTES = 2, GRAD_BYTES = 4 };

/* Whether a rank keeps its shard of a state only. */
typedef struct row {
    bool params, grads, optimizer;
} row;

static const row rows[][2] = {
    /*                          LS_REPLICAS_SHARED     LS_REPLICAS_PRIVATE
     *                          params grads optimizer params grads optimizer */
    [LS_STRATEGY_DDP] = {{false, false, false}, {false, false, false}},
    [LS_STRATEGY_ZERO1] = {{true, false, true}, {false, false, true}},
    [LS_STRATEGY_ZERO2] = {{true, true, true}, {false, true, true}},
    [LS_STRATEGY_ZERO3] = {{true, true, true}, {true, true, true}},
};

/* Of the rank that has most. */
static int64_t shard_of(int64_t bytes, int n_ranks) {
    return (bytes + n_ranks - 1) / n_ranks;
}

/* What a rank touches of buffers that all n ranks have: its slice of each of the others'. */
static int64_t slices_of_peers(int64_t bytes, int n_ranks) {
    return bytes - shard_of(bytes, n_ranks);
}

static lsi_mem_figure equals(int64_t bytes) {
    return (lsi_mem_figure){LSI_MEM_EQUALS, bytes};
}

static lsi_mem_figure at_most(int64_t bytes) {
    return (lsi_mem_figure){LSI_MEM_AT_MOST, bytes};
}

static bool orders_parts(const lsi_memory_input *in) {
    return in->is_reproducible && in->n_micro_batches > 1 && in->strategy >= LS_STRATEGY_ZERO2;
}

/* Partial sums on the stack of accumulate.h (a rank's own micro-batches) or counter.h (those of all
 * ranks that share shards). */
static int n_partial_sums(const lsi_memory_input *in, int n_shards) {
    int n = 0;
    int64_t n_parts = in->n_micro_batches * (orders_parts(in) ? n_shards : 1);
    for (int64_t left = n_parts; in->is_reproducible && left > 1; left /= 2) n++;
    return n;
}

static bool gathers(const lsi_memory_input *in) {
    return lsi_gathers_units(in->strategy, in->replicas);
}

static lsi_mem_figure gathered(const lsi_memory_input *in, int64_t value_bytes) {
    int reshard = in->reshard_after_forward;
    if (!gathers(in)) return equals(0);
    if (reshard == 1) return at_most(value_bytes);
    int64_t kept_bytes = reshard > 1 ? shard_of(value_bytes, reshard) : 0;
    return at_most(in->persistent_bytes + in->n_gathered * in->largest_gathered_bytes + kept_bytes);
}

/* Gradients in one block are the kind `grads`, and here what is touched of the peers': within the
 * shard group and, of the own shard, in all groups. Others are here with what the group touches. */
static lsi_mem_figure buckets(const lsi_memory_input *in, int64_t grad_bytes, int n_shards) {
    if (in->strategy < LS_STRATEGY_ZERO2) return equals(slices_of_peers(grad_bytes, in->n_ranks));
    int64_t open_bytes = in->n_open_buckets * in->largest_bucket_bytes;
    return at_most(open_bytes + slices_of_peers(open_bytes, n_shards));
}

static void move_to_file(int64_t *bytes, lsi_mem_estimate *out) {
    out->file_bytes += *bytes;
    *bytes = 0;
}

/* Bytes of the states of all elements, wherever they are. */
typedef struct states {
    int64_t params, grads, optimizer;
} states;

static states of_all_elements(const lsi_memory_input *in) {
    int64_t n_elems = in->wide_elems + in->narrow_elems;
    int64_t n_wide = in->wide_elems + in->frozen_wide_elems;
    int64_t n_narrow = in->narrow_elems + in->frozen_narrow_elems;
    int64_t n_lower = in->has_lower_halves ? n_narrow : 0;
    return (states){.params = WIDE_BYTES * n_wide + NARROW_BYTES * n_narrow,
                    .grads = (in->grad_bytes ? in->grad_bytes : GRAD_BYTES) * n_elems,
                    .optimizer = MOMENTS_BYTES * n_elems +
                                 (in->lower_bytes ? in->lower_bytes : LOWER_BYTES) * n_lower};
}

void lsi_memory_formula(const lsi_memory_input *in, lsi_mem_estimate *out) {
    const row *is_sharded = &rows[in->strategy][in->replicas];
    const int n = in->shard_size > 0 ? in->shard_size : in->n_ranks;
    const states all = of_all_elements(in);
    int64_t params = is_sharded->params ? shard_of(all.params, n) : all.params;
    int64_t grads = is_sharded->grads ? shard_of(all.grads, n) : all.grads;
    if (is_sharded->grads && in->updates_in_backward) grads = 0;
    int64_t optimizer = is_sharded->optimizer ? shard_of(all.optimizer, n) : all.optimizer;
    *out = (lsi_mem_estimate){.file_bytes = 0};
    if (in->offload >= LS_OFFLOAD_OPTIMIZER) move_to_file(&optimizer, out);
    if (in->offload >= LS_OFFLOAD_PARAMS) move_to_file(&params, out);
    /* Slices that other ranks write are read where they are. Units that are gathered let go of
     * them afterwards. */
    if (in->strategy != LS_STRATEGY_DDP && !gathers(in))
        out->peer_bytes = slices_of_peers(all.params, n);

    out->kinds[LSI_MEM_PARAMS] = equals(params + in->frozen_bytes);
    out->kinds[LSI_MEM_GRADS] = equals(grads * (1 + n_partial_sums(in, n)));
    out->kinds[LSI_MEM_OPTIMIZER] = equals(optimizer + in->frozen_lower_bytes);
    out->kinds[LSI_MEM_BUCKETS] = buckets(in, all.grads, n);
    out->kinds[LSI_MEM_GATHERED] = gathered(in, all.params);
    if (orders_parts(in))
        out->kinds[LSI_MEM_STAGING] = at_most(in->n_open_buckets * in->largest_bucket_bytes);
}
