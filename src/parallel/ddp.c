/* The life of an ls_ddp: checks, buckets and their memory, values of rank 0. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "parallel/agree.h"
#include "parallel/ddp_impl.h"
#include "parallel/hybrid.h"
#include "parallel/params.h"

static const double MIB = 1024.0 * 1024.0, DEFAULT_CAP_MB = 25, DEFAULT_FIRST_MB = 1;

/* ---- options ---- */

static ls_status check_size(const ls_ddp_opts *opts) {
    if (opts->struct_size == sizeof *opts) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT, "ddp options: struct_size is %u, this library expects %zu",
                    opts->struct_size, sizeof *opts);
}

/* Options that mean something for some strategies only are refused with the others, not passed
 * over. */
static ls_status check_sharding(const ls_ddp_opts *o) {
    bool is_sharded = o->strategy != LS_STRATEGY_DDP;
    bool gathers = lsi_gathers_units(o->strategy, o->replicas);
    bool has_copies = is_sharded && o->replicas == LS_REPLICAS_PRIVATE;
    const char *sharded = "is for sharded strategies";
    const char *private = "is for LS_STRATEGY_ZERO3 with LS_REPLICAS_PRIVATE";
    const struct {
        bool is_wrong;
        const char *name, *why;
    } rows[] = {
        {o->shard_size != 0 && !is_sharded, "shard_size", sharded},
        {o->shard_size < 0, "shard_size", "must be at least 0"},
        {o->shard_size != 0 && o->average == LS_AVERAGE_MEANS, "shard_size",
         "does not go with LS_AVERAGE_MEANS, where each rank has a factor of its own; take "
         "LS_AVERAGE_WEIGHTS"},
        {o->fill && !is_sharded, "fill", sharded},
        {o->reduce_dtype != 0 && !is_sharded, "reduce_dtype",
         "is for sharded strategies; take LS_HOOK_BF16"},
        {o->reduce_dtype != 0 && o->reduce_dtype != LS_DTYPE_F32 &&
             o->reduce_dtype != LS_DTYPE_BF16,
         "reduce_dtype", "must be LS_DTYPE_F32 or LS_DTYPE_BF16"},
        {o->offload != LS_OFFLOAD_NONE && !is_sharded, "offload", sharded},
        {o->offload == LS_OFFLOAD_PARAMS && !gathers, "offload LS_OFFLOAD_PARAMS", private},
        {o->offload != LS_OFFLOAD_NONE && !o->offload_dir, "offload", "needs offload_dir"},
        {(o->uses || o->n_uses != 0) && !has_copies, "uses",
         "is for sharded strategies with LS_REPLICAS_PRIVATE"},
        {o->n_uses < 0 || (o->n_uses > 0 && !o->uses), "n_uses", "must be the length of uses"},
        {o->prefetch != 0 && !gathers, "prefetch", private},
        {o->reshard_after_forward != 0 && !gathers, "reshard_after_forward", private},
        {o->reshard_after_forward < 0, "reshard_after_forward", "must be at least 0"},
        {o->gather_limit_mb != 0 && !gathers, "gather_limit_mb", private},
        {!(o->gather_limit_mb >= 0), "gather_limit_mb", "must be at least 0"},
        {o->persist_below != 0 && !gathers, "persist_below", private},
        {o->persist_below < 0, "persist_below", "must be at least 0"},
        {o->update_in_backward && !is_sharded, "update_in_backward", sharded},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].is_wrong)
            return lsi_fail(LS_ERR_ARGUMENT, "ddp options: %s %s", rows[i].name, rows[i].why);
    return LS_OK;
}

/* What is understood, but does not go together. */
static ls_status check_together(const ls_ddp_opts *o) {
    if (o->hook && (!o->hook->run || !o->hook->name))
        return lsi_fail(LS_ERR_ARGUMENT, "ddp options: the hook needs a name and run");
    const struct {
        bool is_wrong;
        const char *why;
    } rows[] = {
        {o->hook && o->average == LS_AVERAGE_MEANS,
         "LS_AVERAGE_MEANS gives every rank a factor of its own, which hooks do not know; take "
         "LS_AVERAGE_WEIGHTS"},
        {o->hook && o->reduce_dtype != 0,
         "a hook decides itself in which type gradients are sent; leave reduce_dtype 0"},
        {o->strategy >= LS_STRATEGY_ZERO2 && o->join != LS_JOIN_NONE,
         "LS_STRATEGY_ZERO2 and 3 exchange every micro-batch, and with join ranks have different "
         "numbers of them; take LS_STRATEGY_ZERO1"},
        {o->static_graph && o->join != LS_JOIN_NONE,
         "static_graph learns from the first step, in which with join a rank may have no data; "
         "take find_unused_parameters"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].is_wrong) return lsi_fail(LS_ERR_UNSUPPORTED, "ddp options: %s", rows[i].why);
    return LS_OK;
}

/* What does not go with an update that is made before a step's gradients are all there. */
static ls_status check_early(const ls_ddp_opts *o) {
    const struct {
        bool is_wrong;
        const char *why;
    } rows[] = {
        {o->replicas != LS_REPLICAS_SHARED,
         "private copies are gathered after an update of all; take LS_REPLICAS_SHARED"},
        {o->hook, "a hook leaves averages in memory, which there are none of; leave hook NULL"},
        {o->reduce_dtype == LS_DTYPE_BF16,
         "buckets are added as they are; take reduce_dtype LS_DTYPE_F32"},
        {o->offload != LS_OFFLOAD_NONE,
         "states that are in a file would be waited for within a reduction; take LS_OFFLOAD_NONE"},
        {o->find_unused_parameters || o->static_graph,
         "which parameters no rank used is known at the end of a step, when all are updated; do "
         "without find_unused_parameters and static_graph"},
        {o->join != LS_JOIN_NONE,
         "who has run out of data has no backward pass to make the update in; take LS_JOIN_NONE"},
        {o->nonfinite == LS_NONFINITE_SKIP, lsi_ddp_no_skip},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && o->update_in_backward; i++)
        if (rows[i].is_wrong)
            return lsi_fail(LS_ERR_UNSUPPORTED, "ddp options: update_in_backward: %s", rows[i].why);
    return LS_OK;
}

static ls_status check_opts(const ls_ddp_opts *opts) {
    LSI_TRY(check_size(opts));
    if (!(opts->bucket_cap_mb >= 0 && opts->bucket_cap_mb <= 1e9) ||
        !(opts->first_bucket_mb >= 0 && opts->first_bucket_mb <= 1e9))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ddp options: bucket_cap_mb %g and first_bucket_mb %g must "
                        "be at least 0 and at most 1e9",
                        opts->bucket_cap_mb, opts->first_bucket_mb);
    const struct {
        const char *name;
        int value, largest;
    } rows[] = {{"average", opts->average, LS_AVERAGE_MEANS},
                {"join", opts->join, LS_JOIN_STOP},
                {"nonfinite", opts->nonfinite, LS_NONFINITE_SKIP},
                {"strategy", opts->strategy, LS_STRATEGY_ZERO3},
                {"replicas", opts->replicas, LS_REPLICAS_PRIVATE},
                {"offload", opts->offload, LS_OFFLOAD_PARAMS}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].value < 0 || rows[i].value > rows[i].largest)
            return lsi_fail(LS_ERR_ARGUMENT, "ddp options: %s is %d, expected 0 to %d",
                            rows[i].name, rows[i].value, rows[i].largest);
    LSI_TRY(check_together(opts));
    LSI_TRY(check_sharding(opts));
    LSI_TRY(check_early(opts));
    return lsi_check_params("buffer", opts->buffers, opts->n_buffers, false);
}

static ls_status check_halves(const ls_ddp_opts *opts, const ls_param *params, int n_params) {
    for (int i = 0; i < n_params && opts->lower_halves && !opts->fill; i++)
        if (params[i].dtype == LS_DTYPE_BF16 && !(params[i].flags & LS_PARAM_FROZEN) &&
            params[i].count > 0 && !opts->lower_halves[i])
            return lsi_fail(LS_ERR_ARGUMENT,
                            "ddp options: lower_halves has none for parameter %s, which is BF16; "
                            "make it by ls_bf16_split (zeros for its values as they are), or leave "
                            "out the list",
                            params[i].name);
    return LS_OK;
}

/* Of frozen ones, opts.fill gives those that units are gathered with. */
static bool is_filled(const ls_ddp_opts *opts, const ls_param *params, int index) {
    bool is_used = !(params[index].flags & LS_PARAM_FROZEN);
    bool gathers = lsi_gathers_units(opts->strategy, opts->replicas) && opts->uses;
    for (int k = 0; gathers && k < opts->n_uses && !is_used; k++)
        is_used = opts->uses[k].param == index;
    return is_used;
}

static ls_status check_not_filled(const ls_ddp_opts *opts, const ls_param *params, int n_params) {
    for (int i = 0; i < n_params; i++)
        if (params[i].count > 0 && !params[i].data && !is_filled(opts, params, i))
            return lsi_fail(LS_ERR_ARGUMENT,
                            "ddp: parameter %s needs data: it is frozen, and stays where it is",
                            params[i].name);
    return LS_OK;
}

static uint64_t hash_uses(const ls_ddp_opts *opts) {
    return lsi_hash64(opts->uses, opts->uses ? (size_t)opts->n_uses * sizeof *opts->uses : 0);
}

/* What must be the same on all ranks, as text. */
static ls_status agree_on_options(ls_ddp *ddp) {
    char text[800];
    const ls_ddp_opts *o = &ddp->opts;
    snprintf(
        text, sizeof text,
        "strategy %d replicas %d hook %.30s average %d join %d reproducible %d "
        "bucket_cap_mb %.10g first_bucket_mb %.10g nonfinite %d find_unused_parameters %d "
        "static_graph %d keep_buckets %d no_overlap %d buffers %d broadcast_buffers %d "
        "lower_halves %d "
        "shard_size %d uses %d:%08x prefetch %d reshard_after_forward %d gather_limit_mb %.10g "
        "persist_below %lld offload %d reduce_dtype %d fill %d update_in_backward %d",
        o->strategy, o->replicas, o->hook ? o->hook->name : "none", o->average, o->join,
        !!o->reproducible, o->bucket_cap_mb, o->first_bucket_mb, o->nonfinite,
        !!o->find_unused_parameters, !!o->static_graph, !!o->keep_buckets, !!o->no_overlap,
        o->n_buffers, !!o->broadcast_buffers, o->lower_halves != NULL, o->shard_size, o->n_uses,
        (unsigned)hash_uses(o), o->prefetch, o->reshard_after_forward, o->gather_limit_mb,
        (long long)o->persist_below, o->offload, o->reduce_dtype, o->fill != NULL,
        !!o->update_in_backward);
    return lsi_agree_text(ddp->group, "ddp options", text);
}

/* ---- buckets ---- */

ls_status lsi_ddp_plan(ls_ddp *ddp, const int *order, lsi_bucket_plan *plan) {
    double cap_mb = ddp->opts.bucket_cap_mb, first_mb = ddp->opts.first_bucket_mb;
    if (cap_mb == 0) cap_mb = DEFAULT_CAP_MB;
    if (first_mb == 0) first_mb = DEFAULT_FIRST_MB;
    const int *group = lsi_ddp_gathers(ddp) ? ddp->units.plan.group : NULL;
    if (group) order = ddp->units.plan.order;
    return lsi_bucket_plan_create(ddp->params, ddp->n_params, order, group, (int64_t)(cap_mb * MIB),
                                  (int64_t)(first_mb * MIB), plan);
}

static void describe_buckets(ls_ddp *ddp) {
    const lsi_bucket_plan *plan = &ddp->plan;
    for (int b = 0; b < plan->n_buckets; b++) {
        const lsi_bucket *bucket = &plan->buckets[b];
        ddp->buckets[b] =
            (ls_bucket){.index = b,
                        .dtype = bucket->dtype,
                        .grad = ddp->gradients ? ddp->gradients + bucket->offset_bytes : NULL,
                        .count = bucket->count,
                        .n_params = bucket->n_params,
                        .params = plan->sequence + bucket->first,
                        .offsets = plan->offsets + bucket->first};
    }
}

ls_status lsi_ddp_use_plan(ls_ddp *ddp, lsi_bucket_plan *plan) {
    size_t n = (size_t)plan->n_buckets;
    lsi_bucket_state *on = lsi_calloc(LSI_MEM_OTHER, n, sizeof *on);
    ls_bucket *buckets = lsi_calloc(LSI_MEM_OTHER, n, sizeof *buckets);
    if (!on || !buckets) {
        lsi_free(on);
        lsi_free(buckets);
        lsi_bucket_plan_fini(plan);
        return LS_ERR_MEMORY;
    }
    lsi_bucket_plan_fini(&ddp->plan);
    lsi_free(ddp->on);
    lsi_free(ddp->buckets);
    ddp->plan = *plan;
    ddp->on = on;
    ddp->buckets = buckets;
    ddp->n_posted = ddp->n_room = ddp->n_seen_done = 0;
    *plan = (lsi_bucket_plan){0};
    return LS_OK;
}

static ls_status prepare_hook(ls_ddp *ddp) {
    const ls_comm_hook *hook = ddp->opts.hook;
    if (!hook || !hook->prepare) return LS_OK;
    return lsi_context(hook->prepare(hook->context, ddp->group, ddp->params, ddp->n_params,
                                     ddp->buckets, ddp->plan.n_buckets),
                       "ddp: hook %s", hook->name);
}

/* ---- set-up ---- */

static ls_status allocate(ls_ddp *ddp) {
    size_t n = (size_t)ddp->n_params;
    ddp->at = lsi_calloc(LSI_MEM_OTHER, n, sizeof *ddp->at);
    ddp->ready_order = lsi_calloc(LSI_MEM_OTHER, n, sizeof *ddp->ready_order);
    if (!ddp->at || !ddp->ready_order) return LS_ERR_MEMORY;
    LSI_TRY(lsi_ddp_verdict_init(ddp));
    return lsi_ddp_take_gradients(ddp);
}

static ls_status broadcast(ls_ddp *ddp, const char *what, ls_param *list, int n) {
    for (int i = 0; i < n; i++)
        LSI_TRY(lsi_context(ls_broadcast(ddp->group, list[i].data, list[i].data, list[i].count,
                                         list[i].dtype, 0, NULL),
                            "ddp: broadcast of %s %s", what, list[i].name));
    return LS_OK;
}

/* Those that are filled are the same everywhere by themselves. */
static ls_status broadcast_values(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        if (!ddp->opts.fill || !lsi_ddp_is_held(ddp, i))
            LSI_TRY(broadcast(ddp, "parameter", &ddp->params[i], 1));
    return LS_OK;
}

ls_status lsi_ddp_broadcast_buffers(ls_ddp *ddp) {
    return broadcast(ddp, "buffer", ddp->opts.buffers, ddp->opts.n_buffers);
}

static ls_status split_group(ls_ddp *ddp) {
    int size = ddp->opts.shard_size, n_ranks = ls_group_world_size(ddp->group);
    ddp->shard_group = ddp->group;
    if (size == 0 || size == n_ranks) return LS_OK;
    if (size > n_ranks || n_ranks % size != 0)
        return lsi_fail(LS_ERR_ARGUMENT, "ddp options: shard_size %d does not divide %d ranks",
                        size, n_ranks);
    if (lsi_ddp_updates_early(ddp))
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "ddp options: update_in_backward: sums over shard groups come after those "
                        "within; shard_size is %d, expected 0 or all %d ranks",
                        size, n_ranks);
    ddp->shard_group = NULL;
    return lsi_context(ls_group_mesh(ddp->group, size, &ddp->replicate_group, &ddp->shard_group),
                       "ddp: groups of %d ranks", size);
}

void lsi_ddp_set_group_order(ls_ddp *ddp, const lsi_order *order) {
    if (ddp->replicate_group && order->n_ranks > 0)
        lsi_group_set_order(ddp->replicate_group, order);
}

void lsi_ddp_get_stats(const ls_ddp *ddp, lsi_group_stats *stats) {
    const ls_group *others[] = {ddp->shard_group != ddp->group ? ddp->shard_group : NULL,
                                ddp->replicate_group, ddp->units.parts.group};
    lsi_group_get_stats(ddp->group, stats);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        lsi_group_stats more;
        if (!others[i]) continue;
        lsi_group_get_stats(others[i], &more);
        stats->wait_ns += more.wait_ns;
        stats->work_ns += more.work_ns;
        stats->sink_ns += more.sink_ns;
        stats->flight_ns += more.flight_ns;
        stats->bytes_sent += more.bytes_sent;
        stats->n_calls += more.n_calls;
    }
}

/* Buckets, who owns what of them, and memory for gradients. */
static ls_status set_up_buckets(ls_ddp *ddp) {
    lsi_bucket_plan plan;
    if (lsi_ddp_gathers(ddp) || ddp->opts.uses) LSI_TRY(lsi_ddp_plan_units(ddp));
    LSI_TRY(lsi_ddp_plan(ddp, NULL, &plan));
    LSI_TRY(lsi_ddp_use_plan(ddp, &plan));
    if (lsi_ddp_gathers(ddp)) LSI_TRY(lsi_unit_plan_use_buckets(&ddp->units.plan, &ddp->plan));
    LSI_TRY(lsi_ddp_plan_states(ddp));
    if (lsi_ddp_updates_early(ddp)) LSI_TRY(lsi_ddp_prepare_early(ddp));
    LSI_TRY(allocate(ddp));
    describe_buckets(ddp);
    return LS_OK;
}

static ls_status set_up(ls_ddp *ddp) {
    LSI_TRY(agree_on_options(ddp));
    LSI_TRY(lsi_agree_params(ddp->group, ddp->params, ddp->n_params));
    LSI_TRY(lsi_agree_params(ddp->group, ddp->opts.buffers, ddp->opts.n_buffers));
    LSI_TRY(split_group(ddp));
    LSI_TRY(set_up_buckets(ddp));
    LSI_TRY(broadcast_values(ddp));
    LSI_TRY(lsi_ddp_broadcast_buffers(ddp));
    LSI_TRY(lsi_ddp_shard_lower_halves(ddp));
    if (lsi_ddp_is_sharded(ddp)) LSI_TRY(lsi_ddp_move_values(ddp));
    LSI_TRY(prepare_hook(ddp));
    lsi_ddp_place_gradients(ddp);
    ddp->opts.uses = NULL; /* the caller's, and used up */
    return LS_OK;
}

ls_status ls_ddp_create(ls_group *group, ls_param *params, int n_params, const ls_ddp_opts *opts,
                        ls_ddp **out) {
    const ls_ddp_opts defaults = LS_DDP_OPTS_INIT;
    if (!opts) opts = &defaults;
    LSI_TRY(check_opts(opts));
    LSI_TRY(lsi_check_params("parameter", params, n_params, opts->fill != NULL));
    if (opts->fill) LSI_TRY(check_not_filled(opts, params, n_params));
    LSI_TRY(check_halves(opts, params, n_params));
    ls_ddp *ddp = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *ddp);
    LSI_TRY(lsi_check_alloc(ddp));
    ddp->group = group;
    ddp->params = params;
    ddp->n_params = n_params;
    ddp->opts = *opts;
    ddp->n_live = ls_group_world_size(group);
    ls_status status = set_up(ddp);
    if (status != LS_OK) {
        ls_ddp_destroy(ddp);
        return status;
    }
    *out = ddp;
    return LS_OK;
}

/* ---- new buckets in the same memory ---- */

ls_status lsi_ddp_rebuild(ls_ddp *ddp) {
    lsi_bucket_plan plan;
    bool is_same = true;
    LSI_TRY(ls_broadcast(ddp->group, ddp->ready_order, ddp->ready_order, ddp->n_params,
                         LS_DTYPE_I32, 0, NULL));
    LSI_TRY(lsi_ddp_plan(ddp, ddp->ready_order, &plan));
    for (int k = 0; k < plan.n_placed; k++)
        is_same = is_same && plan.sequence[k] == ddp->plan.sequence[k];
    if (is_same) {
        lsi_bucket_plan_fini(&plan);
        return LS_OK;
    }
    LSI_TRY(lsi_ddp_use_plan(ddp, &plan));
    describe_buckets(ddp);
    /* What lay in the middle of a parameter may lie between two now. */
    memset(ddp->gradients, 0, (size_t)ddp->plan.total_bytes);
    return prepare_hook(ddp);
}

/* ---- the end ---- */

static void abandon(ls_ddp *ddp, ls_work *work) {
    if (!work) return;
    ls_group *group = work->group;
    ddp->leaves_memory = ddp->leaves_memory || group != ddp->group;
    lsi_group_lock(group);
    lsi_work_release(work);
    lsi_group_unlock(group);
}

/* Lets go of works that nobody waited for, in a step or an evaluation that was given up. */
static void abandon_works(ls_ddp *ddp) {
    if (ddp->state == IDLE && !ddp->units.gathered) return;
    ls_status status = ls_group_progress(ddp->group);
    (void)status; /* what has ended by now is enough */
    /* After an error peers may be in the middle of a work that is none of ours any more. */
    bool has_parts = ddp->shard_group != ddp->group || ddp->units.parts.group;
    ddp->leaves_memory = ddp->state == FAILED && has_parts;
    for (int b = 0; b < ddp->plan.n_buckets && ddp->values.works; b++)
        abandon(ddp, ddp->values.works[b]);
    for (int b = 0; b < ddp->n_posted; b++) abandon(ddp, ddp->on[b].work);
    for (int b = 0; b < ddp->n_posted; b++) abandon(ddp, ddp->on[b].replicate_work);
    for (int b = 0; b < ddp->plan.n_held && ddp->units.gathered; b++) {
        ddp->leaves_file = ddp->leaves_file || ddp->units.gathered[b].work;
        abandon(ddp, ddp->units.gathered[b].work);
    }
    abandon(ddp, ddp->weight_work);
    abandon(ddp, ddp->verdict_work);
}

void lsi_ddp_free_shared(ls_ddp *ddp, void *block) {
    if (!ddp->leaves_memory) ls_group_free_shared(ddp->group, block);
}

void ls_ddp_destroy(ls_ddp *ddp) {
    if (!ddp) return;
    /* What failed before is what the caller will want to read. */
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", ls_last_message());
    for (int i = 0; i < ddp->n_params; i++) ddp->params[i].grad = NULL;
    if (ddp->state == IDLE && lsi_ddp_await_values(ddp) != LS_OK) ddp->state = FAILED;
    abandon_works(ddp);
    lsi_ddp_end_early(ddp);
    lsi_ddp_release_gradients(ddp);
    lsi_ddp_free_shared(ddp, ddp->words);
    lsi_ddp_return_values(ddp);
    lsi_ddp_free_units(ddp);
    lsi_ddp_free_states(ddp);
    if (ddp->shard_group != ddp->group) ls_group_destroy(ddp->shard_group);
    ls_group_destroy(ddp->replicate_group);
    lsi_message_set(message);
    lsi_bucket_plan_fini(&ddp->plan);
    lsi_free(ddp->at);
    lsi_free(ddp->on);
    lsi_free(ddp->buckets);
    lsi_free(ddp->ready_order);
    lsi_free(ddp);
}
