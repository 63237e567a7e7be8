/* Goes through a step as ddp_step.c, ddp_exchange.c and ddp_units.c do, and notes the calls. What
 * these decide by memory and works (which units are there, what fits) follows from the plans. */
#include "parallel/schedule.h"

#include "base/mem.h"

enum { WORD_BITS = 32, VERDICT_HEAD_WORDS = 3 }; /* of ddp_verdict.c */

/* What is known while going through. */
typedef struct walk {
    const lsi_schedule_input *in;
    lsi_schedule *out;
    ls_status status; /* of the first failure; nothing is noted behind it */
    int64_t micro_batch;
    bool *is_here, *has_part; /* private ZeRO-3, per bucket: gathered; was given up but for parts */
    int64_t here_bytes;
    int n_posted; /* buckets of this micro-batch */
} walk;

const char *lsi_purpose_name(lsi_purpose purpose) {
    static const char *const names[] = {
#define PURPOSE_NAME(name, text) text,
        LSI_PURPOSE_TABLE(PURPOSE_NAME)
#undef PURPOSE_NAME
    };
    return names[purpose];
}

/* ---- what the options say ---- */

static bool is_sharded(const lsi_schedule_input *in) {
    return in->opts->strategy != LS_STRATEGY_DDP;
}

static bool shards_gradients(const lsi_schedule_input *in) {
    return in->opts->strategy >= LS_STRATEGY_ZERO2;
}

static bool gathers(const lsi_schedule_input *in) {
    return lsi_gathers_units(in->opts->strategy, in->opts->replicas);
}

static void size_groups(const lsi_schedule_input *in, int group_ranks[LSI_N_SCHEDULE_GROUPS]) {
    int n_shard = is_sharded(in) ? in->shards->n_ranks : in->n_ranks;
    int n_part = gathers(in) ? in->opts->reshard_after_forward : 0;
    group_ranks[LSI_IN_WORLD] = in->n_ranks;
    group_ranks[LSI_IN_SHARD_GROUP] = n_shard < in->n_ranks ? n_shard : 0;
    group_ranks[LSI_IN_REPLICATE_GROUP] = n_shard < in->n_ranks ? in->n_ranks / n_shard : 0;
    group_ranks[LSI_IN_PART_GROUP] = n_part > 1 && n_part < n_shard ? n_part : 0;
}

static lsi_schedule_group shard_group(const walk *w) {
    return w->out->group_ranks[LSI_IN_SHARD_GROUP] ? LSI_IN_SHARD_GROUP : LSI_IN_WORLD;
}

/* ---- calls ---- */

static bool reserve(walk *w) {
    lsi_schedule *s = w->out;
    if (w->status != LS_OK) return false;
    if (s->n_calls < s->n_room) return true;
    int n_room = s->n_room ? 2 * s->n_room : 64;
    void *calls = lsi_realloc(LSI_MEM_OTHER, s->calls, (size_t)n_room * sizeof *s->calls);
    if (!calls) {
        w->status = LS_ERR_MEMORY;
        return false;
    }
    s->calls = calls;
    s->n_room = n_room;
    return true;
}

/* bytes: of the larger buffer on one rank. */
static int64_t group_bytes(lsi_call_kind kind, int n_ranks, int64_t bytes) {
    switch (kind) {
    case LSI_CALL_ALL_REDUCE: return 2 * (n_ranks - 1) * bytes;
    case LSI_CALL_REDUCE_SCATTER:
    case LSI_CALL_ALL_TO_ALL:
    case LSI_CALL_ALL_GATHER:
    case LSI_CALL_BROADCAST: return (n_ranks - 1) * bytes;
    default: return 0; /* a barrier */
    }
}

/* `call` but for its bytes; elems: of its larger buffer. */
static void add(walk *w, lsi_scheduled call, int64_t elems) {
    if (!reserve(w)) return;
    int n_ranks = w->out->group_ranks[call.group];
    call.micro_batch = w->micro_batch;
    call.group_bytes = group_bytes(call.kind, n_ranks, elems * (int64_t)ls_dtype_bytes(call.dtype));
    w->out->calls[w->out->n_calls++] = call;
}

/* Where the count is that of the larger buffer, as of all calls but plain all-gathers. */
static void add_whole(walk *w, lsi_schedule_group group, lsi_purpose purpose, lsi_call_kind kind,
                      ls_dtype dtype, int64_t elems, int bucket) {
    lsi_scheduled call = {.group = group,
                          .purpose = purpose,
                          .kind = kind,
                          .dtype = dtype,
                          .count = elems,
                          .bucket = bucket};
    add(w, call, elems);
}

/* So many elements from each rank of the world. */
static void tell_all(walk *w, lsi_purpose purpose, ls_dtype dtype, int64_t count) {
    lsi_scheduled call = {.group = LSI_IN_WORLD,
                          .purpose = purpose,
                          .kind = LSI_CALL_ALL_GATHER,
                          .dtype = dtype,
                          .count = count,
                          .bucket = -1};
    add(w, call, count * w->in->n_ranks);
}

/* ---- units of private ZeRO-3 ---- */

static int64_t value_bytes(const walk *w, int bucket) {
    const lsi_bucket *b = &w->in->buckets->buckets[bucket];
    int64_t bytes = b->count * (int64_t)ls_dtype_bytes(b->value_dtype);
    return bytes > 0 ? bytes : 1; /* as the pool counts */
}

static void set_here(walk *w, int bucket, bool is_here) {
    w->is_here[bucket] = is_here;
    w->here_bytes += is_here ? value_bytes(w, bucket) : -value_bytes(w, bucket);
}

static void gather(walk *w, int bucket, lsi_purpose purpose) {
    const lsi_bucket *b = &w->in->buckets->buckets[bucket];
    if (w->is_here[bucket]) return;
    add_whole(w, w->has_part[bucket] ? LSI_IN_PART_GROUP : shard_group(w), purpose,
              LSI_CALL_ALL_GATHER, b->value_dtype, b->count, bucket);
    set_here(w, bucket, true);
}

static bool fits(const walk *w, int bucket) {
    const lsi_bucket *b = &w->in->buckets->buckets[bucket];
    double limit_bytes = w->in->opts->gather_limit_mb * 1024 * 1024;
    int64_t bytes = b->count * (int64_t)ls_dtype_bytes(b->value_dtype);
    return limit_bytes == 0 || (double)(w->here_bytes + bytes) <= limit_bytes;
}

static void gather_ahead(walk *w, int unit, lsi_pass pass) {
    int n_ahead = w->in->opts->prefetch == 0 ? 1 : w->in->opts->prefetch;
    int direction = pass == LSI_FORWARD ? 1 : -1;
    for (int k = 1; k <= n_ahead; k++)
        for (int b = 0; b < w->in->buckets->n_held; b++) {
            if (!lsi_unit_reads(w->in->units, unit + k * direction, b, pass)) continue;
            if (w->is_here[b]) continue;
            if (!fits(w, b)) return;
            gather(w, b, LSI_FOR_UNITS);
        }
}

static void gather_unit(walk *w, int unit, lsi_pass pass) {
    for (int b = 0; b < w->in->buckets->n_held; b++)
        if (lsi_unit_reads(w->in->units, unit, b, pass)) gather(w, b, LSI_FOR_UNITS);
    gather_ahead(w, unit, pass);
}

static void give_up_behind_forward(walk *w, int unit) {
    const lsi_unit_plan *units = w->in->units;
    const lsi_reshard how = {w->in->opts->reshard_after_forward == LS_RESHARD_NO, true};
    bool keeps_parts = w->out->group_ranks[LSI_IN_PART_GROUP] > 0;
    for (int b = 0; b < w->in->buckets->n_held; b++) {
        if (!lsi_unit_reads(units, unit, b, LSI_FORWARD)) continue;
        if (lsi_unit_plan_keeps(units, unit, b, how)) continue;
        w->has_part[b] = keeps_parts && lsi_unit_plan_reads_again(units, b);
        set_here(w, b, false);
    }
}

static void give_up_behind_backward(walk *w, int unit) {
    const lsi_unit_plan *units = w->in->units;
    for (int b = 0; b < w->in->buckets->n_held; b++) {
        if (!lsi_unit_reads(units, unit, b, LSI_BACKWARD)) continue;
        if (lsi_unit_reads(units, unit - 1, b, LSI_BACKWARD)) continue;
        w->has_part[b] = false;
        set_here(w, b, false);
    }
}

static void forward(walk *w) {
    int n_units = gathers(w->in) ? w->in->units->n_units : 0;
    for (int u = 0; u < n_units; u++) {
        gather_unit(w, u, LSI_FORWARD);
        give_up_behind_forward(w, u);
    }
}

/* ---- gradients ---- */

/* Several micro-batches in the reproducible order: each rank gets all parts of its slice. */
static bool exchanges_parts(const lsi_schedule_input *in) {
    return shards_gradients(in) && in->opts->reproducible && in->n_micro_batches > 1;
}

static void all_reduce_bucket(walk *w, int bucket) {
    const lsi_bucket *b = &w->in->buckets->buckets[bucket];
    add_whole(w, LSI_IN_WORLD, LSI_FOR_GRADS, LSI_CALL_ALL_REDUCE, b->dtype, b->count, bucket);
}

static void scatter_bucket(walk *w, int bucket, bool is_last) {
    const lsi_bucket *b = &w->in->buckets->buckets[bucket];
    const lsi_shard_plan *shards = w->in->shards;
    lsi_call_kind kind = exchanges_parts(w->in) ? LSI_CALL_ALL_TO_ALL : LSI_CALL_REDUCE_SCATTER;
    ls_dtype dtype = w->in->opts->reduce_dtype == LS_DTYPE_BF16 ? LS_DTYPE_BF16 : b->dtype;
    add_whole(w, shard_group(w), LSI_FOR_GRADS, kind, dtype, b->count, bucket);
    if (w->out->group_ranks[LSI_IN_REPLICATE_GROUP] && is_last)
        add_whole(w, LSI_IN_REPLICATE_GROUP, LSI_FOR_REPLICAS, LSI_CALL_ALL_REDUCE, b->dtype,
                  lsi_shard_counts(shards, bucket)[shards->rank], bucket);
}

/* Those that no unit before this one uses. */
static void reduce_buckets(walk *w, int unit, bool is_last) {
    while (w->n_posted < w->in->buckets->n_buckets &&
           (unit == 0 || w->in->units->first[w->n_posted] >= unit)) {
        int bucket = w->n_posted++;
        if (is_sharded(w->in))
            scatter_bucket(w, bucket, is_last);
        else
            all_reduce_bucket(w, bucket);
    }
}

static void backward(walk *w, bool is_last) {
    w->n_posted = 0;
    for (int u = gathers(w->in) ? w->in->units->n_units - 1 : 0; u >= 0; u--) {
        if (gathers(w->in)) {
            gather_unit(w, u, LSI_BACKWARD);
            give_up_behind_backward(w, u);
        }
        if (is_last || shards_gradients(w->in)) reduce_buckets(w, u, is_last);
    }
}

static void add_weights(walk *w, bool is_last) {
    if (is_last && w->in->opts->average == LS_AVERAGE_WEIGHTS && !w->in->has_scale)
        add_whole(w, LSI_IN_WORLD, LSI_FOR_WEIGHTS, LSI_CALL_ALL_REDUCE, LS_DTYPE_F64, 1, -1);
}

static void go_through_micro_batch(walk *w, bool is_last) {
    if (!w->in->forward_first) add_weights(w, is_last);
    forward(w);
    if (w->in->forward_first) add_weights(w, is_last);
    backward(w, is_last);
}

/* ---- before and behind ---- */

static void begin(walk *w) {
    const ls_ddp_opts *opts = w->in->opts;
    if (opts->join != LS_JOIN_NONE) tell_all(w, LSI_FOR_JOIN, LS_DTYPE_I64, 1);
    if (w->in->n_steps == 1 && !opts->keep_buckets && !is_sharded(w->in))
        add_whole(w, LSI_IN_WORLD, LSI_FOR_REBUILD, LSI_CALL_BROADCAST, LS_DTYPE_I32,
                  w->in->buckets->n_params, -1);
    for (int i = 0; i < opts->n_buffers && opts->broadcast_buffers; i++)
        add_whole(w, LSI_IN_WORLD, LSI_FOR_BUFFERS, LSI_CALL_BROADCAST, opts->buffers[i].dtype,
                  opts->buffers[i].count, -1);
}

static void finish(walk *w) {
    int n_words = VERDICT_HEAD_WORDS + (w->in->buckets->n_params + WORD_BITS - 1) / WORD_BITS;
    tell_all(w, LSI_FOR_VERDICT, LS_DTYPE_I32, n_words);
    if (w->in->opts->nonfinite != LS_NONFINITE_IGNORE && is_sharded(w->in))
        tell_all(w, LSI_FOR_RESULTS, LS_DTYPE_I32, 1);
}

static void find_norm(walk *w) {
    const lsi_shard_norm *norm = w->in->norm;
    int64_t n_elems = 0;
    if (!norm || !is_sharded(w->in)) return;
    for (int r = 0; r < norm->n_ranks; r++) n_elems += norm->fragment_counts[r];
    add_whole(w, shard_group(w), LSI_FOR_NORM, LSI_CALL_ALL_GATHER, LS_DTYPE_F32, n_elems, -1);
    add_whole(w, shard_group(w), LSI_FOR_NORM, LSI_CALL_ALL_GATHER, LS_DTYPE_F64, norm->n_blocks,
              -1);
}

/* Frozen ones stay as they are. */
static void gather_persistent(walk *w) {
    for (int b = 0; b < w->in->buckets->n_buckets; b++) {
        if (w->in->units->first[b] != LSI_PERSISTENT) continue;
        set_here(w, b, false);
        gather(w, b, LSI_FOR_UPDATE);
    }
}

/* What the first unit uses comes first. */
static void gather_all(walk *w) {
    for (int b = w->in->buckets->n_buckets - 1; b >= 0; b--) gather(w, b, LSI_FOR_UPDATE);
}

static void update(walk *w) {
    if (!is_sharded(w->in) || !w->in->updates || w->in->opts->update_in_backward) return;
    if (w->in->opts->replicas == LS_REPLICAS_SHARED)
        add_whole(w, shard_group(w), LSI_FOR_UPDATE, LSI_CALL_BARRIER, LS_DTYPE_U8, 0, -1);
    else if (gathers(w->in))
        gather_persistent(w);
    else
        gather_all(w);
}

static void go_through_step(walk *w) {
    int64_t n_micro = w->in->n_micro_batches > 0 ? w->in->n_micro_batches : 1;
    begin(w);
    for (w->micro_batch = 0; w->micro_batch < n_micro; w->micro_batch++)
        go_through_micro_batch(w, w->micro_batch == n_micro - 1);
    w->micro_batch = -1;
    finish(w);
    find_norm(w);
    update(w);
}

ls_status lsi_schedule_step(const lsi_schedule_input *in, lsi_schedule *schedule) {
    size_t n = (size_t)in->buckets->n_held;
    *schedule = (lsi_schedule){.calls = NULL};
    if (in->opts->hook)
        return lsi_fail(LS_ERR_UNSUPPORTED, "schedule: hook %s makes calls of its own",
                        in->opts->hook->name);
    walk w = {.in = in, .out = schedule, .micro_batch = -1};
    size_groups(in, schedule->group_ranks);
    w.is_here = lsi_calloc(LSI_MEM_OTHER, n, sizeof *w.is_here);
    w.has_part = lsi_calloc(LSI_MEM_OTHER, n, sizeof *w.has_part);
    if (!w.is_here || !w.has_part) w.status = LS_ERR_MEMORY;
    for (int b = 0; b < in->buckets->n_held && gathers(in) && w.status == LS_OK; b++)
        if (in->units->first[b] == LSI_PERSISTENT) set_here(&w, b, true);
    if (w.status == LS_OK) go_through_step(&w);
    lsi_free(w.is_here);
    lsi_free(w.has_part);
    if (w.status != LS_OK) lsi_schedule_fini(schedule);
    return w.status;
}

void lsi_schedule_fini(lsi_schedule *schedule) {
    lsi_free(schedule->calls);
    *schedule = (lsi_schedule){.calls = NULL};
}

double lsi_schedule_bytes(const lsi_schedule *schedule, lsi_purpose purpose) {
    double bytes = 0;
    for (int i = 0; i < schedule->n_calls; i++) {
        const lsi_scheduled *call = &schedule->calls[i];
        if (purpose == LSI_N_PURPOSES || call->purpose == purpose)
            bytes += (double)call->group_bytes / schedule->group_ranks[call->group];
    }
    return bytes;
}
