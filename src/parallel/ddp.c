/* Distributed data parallel.
 *
 * State of a step:
 *
 *     IDLE --begin_step--> BETWEEN --begin_backward--> BACKWARD --end_backward--> BETWEEN
 *      ^                                                                             |
 *      +--------------- finish_step, after the step's last micro-batch --------------+
 *
 * IDLE      gradients of the last step are valid, no work in flight.
 * BETWEEN   micro-batches [0, next_micro) are summed in the buckets (or on the stack).
 * BACKWARD  parameters with is_ready are complete for this micro-batch.
 * FAILED    communication or memory failed within the step: what the gradients hold is not known,
 *           works may be in flight. Every call but destroy is refused.
 *
 * Invariants: buckets are posted in index order, each once per step, only during the last
 * micro-batch, and only when all its parameters are ready; a posted bucket is not touched before
 * finish_step has waited for it. At most MAX_IN_FLIGHT works are in flight. */
#include <lockstep/parallel.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/group.h"
#include "parallel/accumulate.h"
#include "parallel/agree.h"
#include "parallel/bucket.h"

typedef enum ddp_state { IDLE, BETWEEN, BACKWARD, FAILED } ddp_state;

static const char *const state_names[] = {"no step is open", "between micro-batches",
                                          "a backward pass is open", "an earlier call failed"};

enum { MAX_IN_FLIGHT = LSI_CALLS / 2 };
static const double MIB = 1024.0 * 1024.0;

struct ls_ddp {
    ls_group *group;
    ls_param *params;
    int n_params;
    bool reproducible;
    lsi_bucket_plan plan;
    float *gradients; /* shared; plan.total_count elements */
    int64_t noted_bytes[2];
    lsi_accumulator accumulator;

    ddp_state state;
    int64_t n_micro, next_micro; /* of this step; next_micro counts begun backward passes */
    double scale;
    bool *is_ready;  /* per parameter */
    int *n_waiting;  /* per bucket: parameters not ready */
    ls_work **works; /* per bucket */
    int n_posted, n_waited;
};

/* ---- life ---- */

static ls_status check_opts(const ls_ddp_opts *opts) {
    if (opts->struct_size != sizeof *opts)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ddp options: struct_size is %u, this library expects "
                        "%zu",
                        opts->struct_size, sizeof *opts);
    if (!(opts->bucket_cap_mb >= 0 && opts->bucket_cap_mb <= 1e9) ||
        !(opts->first_bucket_mb >= 0 && opts->first_bucket_mb <= 1e9))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ddp options: bucket_cap_mb %g and first_bucket_mb %g must "
                        "be at least 0 and at most 1e9",
                        opts->bucket_cap_mb, opts->first_bucket_mb);
    return LS_OK;
}

static ls_status check_params(const ls_param *params, int n_params) {
    if (n_params < 0 || (n_params > 0 && !params))
        return lsi_fail(LS_ERR_ARGUMENT, "ddp: %d parameters%s, expected a list of 0 or more",
                        n_params, params ? "" : " at NULL");
    for (int i = 0; i < n_params; i++) {
        if (!params[i].name || params[i].count < 0 || (params[i].count > 0 && !params[i].data))
            return lsi_fail(LS_ERR_ARGUMENT,
                            "ddp: parameter %d needs a name, a count >= 0 and "
                            "data",
                            i);
        if (params[i].dtype != LS_DTYPE_F32 && params[i].dtype != LS_DTYPE_BF16)
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "ddp: parameter %s has dtype %s; this version "
                            "trains F32 and BF16",
                            params[i].name, ls_dtype_name(params[i].dtype));
    }
    return LS_OK;
}

static ls_status allocate(ls_ddp *ddp) {
    size_t n_buckets = (size_t)ddp->plan.n_buckets;
    ddp->is_ready = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->n_params, sizeof *ddp->is_ready);
    ddp->n_waiting = lsi_calloc(LSI_MEM_OTHER, n_buckets, sizeof *ddp->n_waiting);
    ddp->works = lsi_calloc(LSI_MEM_OTHER, n_buckets, sizeof *ddp->works);
    if (!ddp->is_ready || !ddp->n_waiting || !ddp->works) return LS_ERR_MEMORY;
    size_t bytes = (size_t)ddp->plan.total_count * sizeof(float);
    void *gradients = NULL;
    LSI_TRY(ls_group_alloc_shared(ddp->group, bytes, &gradients));
    ddp->gradients = gradients;
    /* An all-reduce makes this process touch its slice of every peer's buckets as well. */
    int n = ls_group_world_size(ddp->group);
    ddp->noted_bytes[0] = (int64_t)bytes;
    ddp->noted_bytes[1] = (int64_t)bytes / n * (n - 1);
    lsi_mem_note(LSI_MEM_GRADS, ddp->noted_bytes[0]);
    lsi_mem_note(LSI_MEM_BUCKETS, ddp->noted_bytes[1]);
    return LS_OK;
}

static void place_gradients(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        ddp->params[i].grad =
            ddp->plan.bucket_of[i] < 0 ? NULL : ddp->gradients + ddp->plan.offset_of[i];
}

static ls_status broadcast_params(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        LSI_TRY(lsi_context(ls_broadcast(ddp->group, ddp->params[i].data, ddp->params[i].data,
                                         ddp->params[i].count, ddp->params[i].dtype, 0, NULL),
                            "ddp: broadcast of parameter %s", ddp->params[i].name));
    return LS_OK;
}

static ls_status set_up(ls_ddp *ddp, const ls_ddp_opts *opts) {
    double cap_mb = opts->bucket_cap_mb > 0 ? opts->bucket_cap_mb : 25;
    double first_mb = opts->first_bucket_mb > 0 ? opts->first_bucket_mb : 1;
    LSI_TRY(lsi_agree_params(ddp->group, ddp->params, ddp->n_params));
    LSI_TRY(lsi_bucket_plan_create(ddp->params, ddp->n_params, (int64_t)(cap_mb * MIB),
                                   (int64_t)(first_mb * MIB), &ddp->plan));
    LSI_TRY(allocate(ddp));
    lsi_accumulator_init(&ddp->accumulator, ddp->plan.total_count);
    LSI_TRY(broadcast_params(ddp));
    place_gradients(ddp);
    return LS_OK;
}

ls_status ls_ddp_create(ls_group *group, ls_param *params, int n_params, const ls_ddp_opts *opts,
                        ls_ddp **out) {
    const ls_ddp_opts defaults = LS_DDP_OPTS_INIT;
    if (!opts) opts = &defaults;
    LSI_TRY(check_opts(opts));
    LSI_TRY(check_params(params, n_params));
    ls_ddp *ddp = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *ddp);
    LSI_TRY(lsi_check_alloc(ddp));
    ddp->group = group;
    ddp->params = params;
    ddp->n_params = n_params;
    ddp->reproducible = opts->reproducible != 0;
    ls_status status = set_up(ddp, opts);
    if (status != LS_OK) {
        ls_ddp_destroy(ddp);
        return status;
    }
    *out = ddp;
    return LS_OK;
}

/* Lets go of works that nobody waited for, in a step that was given up. */
static void abandon_works(ls_ddp *ddp) {
    if (ddp->n_waited == ddp->n_posted) return;
    ls_status status = ls_group_progress(ddp->group);
    (void)status; /* what has ended by now is enough */
    for (int b = ddp->n_waited; b < ddp->n_posted; b++) ddp->works[b]->held = false;
}

void ls_ddp_destroy(ls_ddp *ddp) {
    if (!ddp) return;
    /* What failed before is what the caller will want to read. */
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", ls_last_message());
    for (int i = 0; i < ddp->n_params; i++) ddp->params[i].grad = NULL;
    abandon_works(ddp);
    ls_group_free_shared(ddp->group, ddp->gradients);
    lsi_message_set(message);
    lsi_mem_note(LSI_MEM_GRADS, -ddp->noted_bytes[0]);
    lsi_mem_note(LSI_MEM_BUCKETS, -ddp->noted_bytes[1]);
    lsi_accumulator_fini(&ddp->accumulator);
    lsi_bucket_plan_fini(&ddp->plan);
    lsi_free(ddp->is_ready);
    lsi_free(ddp->n_waiting);
    lsi_free(ddp->works);
    lsi_free(ddp);
}

/* ---- a step ---- */

static ls_status expect_state(const ls_ddp *ddp, ddp_state expected, const char *call) {
    if (ddp->state == expected) return LS_OK;
    /* After an error of the group all calls repeat it. */
    if (ddp->state == FAILED) LSI_TRY(lsi_context(ls_group_status(ddp->group), "%s", call));
    return lsi_fail(LS_ERR_STATE, "%s: %s, expected: %s", call, state_names[ddp->state],
                    state_names[expected]);
}

static ls_status fail_step(ls_ddp *ddp, ls_status status) {
    if (status != LS_OK) ddp->state = FAILED;
    return status;
}

static bool is_last_micro(const ls_ddp *ddp) {
    return ddp->next_micro == ddp->n_micro;
}

ls_status ls_ddp_begin_step(ls_ddp *ddp, int64_t n_micro_batches, double scale) {
    LSI_TRY(expect_state(ddp, IDLE, "ls_ddp_begin_step"));
    if (n_micro_batches < 1)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ls_ddp_begin_step: %lld micro-batches, at least 1 is "
                        "needed",
                        (long long)n_micro_batches);
    if (!isfinite(scale))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ls_ddp_begin_step: scale is %g, expected a finite number "
                        "(0: average)",
                        scale);
    int n_ranks = ls_group_world_size(ddp->group);
    ddp->scale = scale != 0 ? scale : 1.0 / ((double)n_ranks * (double)n_micro_batches);
    ddp->n_micro = n_micro_batches;
    ddp->next_micro = 0;
    ddp->n_posted = ddp->n_waited = 0;
    lsi_accumulator_clear(&ddp->accumulator);
    ddp->state = BETWEEN;
    return LS_OK;
}

int ls_ddp_accumulates(const ls_ddp *ddp) {
    return !ddp->reproducible && ddp->next_micro > 1;
}

ls_status ls_ddp_begin_backward(ls_ddp *ddp) {
    LSI_TRY(expect_state(ddp, BETWEEN, "ls_ddp_begin_backward"));
    if (ddp->next_micro == ddp->n_micro)
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_begin_backward: the step was begun with %lld "
                        "micro-batches and has had them all",
                        (long long)ddp->n_micro);
    ddp->next_micro++;
    memset(ddp->is_ready, 0, (size_t)ddp->n_params * sizeof *ddp->is_ready);
    for (int b = 0; b < ddp->plan.n_buckets; b++) ddp->n_waiting[b] = ddp->plan.buckets[b].n_params;
    ddp->state = BACKWARD;
    return LS_OK;
}

/* Room for another work: the group keeps a limited number. */
static ls_status make_room(ls_ddp *ddp) {
    if (ddp->n_posted - ddp->n_waited < MAX_IN_FLIGHT) return LS_OK;
    return ls_work_wait(ddp->works[ddp->n_waited++], -1);
}

static ls_status post_bucket(ls_ddp *ddp, int index) {
    const lsi_bucket *bucket = &ddp->plan.buckets[index];
    LSI_TRY(make_room(ddp));
    if (ddp->reproducible)
        lsi_accumulator_join(&ddp->accumulator, ddp->gradients, bucket->offset, bucket->count);
    float *data = ddp->gradients + bucket->offset;
    LSI_TRY(lsi_context(ls_all_reduce(ddp->group, data, data, bucket->count, LS_DTYPE_F32,
                                      LS_OP_SUM, ddp->scale, &ddp->works[index]),
                        "ddp: bucket %d of %d", index, ddp->plan.n_buckets));
    ddp->n_posted++;
    return LS_OK;
}

ls_status ls_ddp_grad_ready(ls_ddp *ddp, int index) {
    LSI_TRY(expect_state(ddp, BACKWARD, "ls_ddp_grad_ready"));
    if (index < 0 || index >= ddp->n_params)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_ddp_grad_ready: parameter %d, expected 0 to %d", index,
                        ddp->n_params - 1);
    if (ddp->plan.bucket_of[index] < 0)
        return lsi_fail(LS_ERR_STATE, "ls_ddp_grad_ready: parameter %s is frozen",
                        ddp->params[index].name);
    if (ddp->is_ready[index])
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_grad_ready: the gradient of parameter %s was ready "
                        "already; one that is used twice is ready after the last use",
                        ddp->params[index].name);
    ddp->is_ready[index] = true;
    ddp->n_waiting[ddp->plan.bucket_of[index]]--;
    if (!is_last_micro(ddp)) return LS_OK;
    while (ddp->n_posted < ddp->plan.n_buckets && ddp->n_waiting[ddp->n_posted] == 0)
        LSI_TRY(fail_step(ddp, post_bucket(ddp, ddp->n_posted)));
    return LS_OK;
}

static ls_status check_all_ready(const ls_ddp *ddp) {
    char names[LSI_MESSAGE_BYTES / 2] = "";
    size_t used = 0;
    int n_missing = 0;
    for (int i = 0; i < ddp->n_params; i++) {
        if (ddp->plan.bucket_of[i] < 0 || ddp->is_ready[i]) continue;
        n_missing++;
        int n = snprintf(names + used, sizeof names - used, " %s", ddp->params[i].name);
        if (n > 0 && used + (size_t)n < sizeof names) used += (size_t)n;
    }
    names[used] = 0;
    if (n_missing == 0) return LS_OK;
    return lsi_fail(LS_ERR_STATE,
                    "rank %d, micro-batch %lld: %d parameters got no gradient:%s; "
                    "use them in the loss or mark them LS_PARAM_FROZEN",
                    ls_group_rank(ddp->group), (long long)ddp->next_micro, n_missing, names);
}

ls_status ls_ddp_end_backward(ls_ddp *ddp) {
    LSI_TRY(expect_state(ddp, BACKWARD, "ls_ddp_end_backward"));
    LSI_TRY(check_all_ready(ddp));
    ddp->state = BETWEEN;
    if (ddp->reproducible && !is_last_micro(ddp))
        return fail_step(ddp, lsi_accumulator_push(&ddp->accumulator, ddp->gradients));
    return LS_OK;
}

ls_status ls_ddp_finish_step(ls_ddp *ddp) {
    LSI_TRY(expect_state(ddp, BETWEEN, "ls_ddp_finish_step"));
    if (!is_last_micro(ddp))
        return lsi_fail(LS_ERR_STATE, "ls_ddp_finish_step: %lld of %lld micro-batches are done",
                        (long long)ddp->next_micro, (long long)ddp->n_micro);
    while (ddp->n_waited < ddp->n_posted) {
        int bucket = ddp->n_waited++; /* a wait releases the work whatever comes of it */
        LSI_TRY(fail_step(ddp, lsi_context(ls_work_wait(ddp->works[bucket], -1),
                                           "ddp: bucket %d of %d", bucket, ddp->plan.n_buckets)));
    }
    ddp->state = IDLE;
    return LS_OK;
}

/* ---- events ---- */

static ls_status on_event(void *context, ls_event event, int index) {
    ls_ddp *ddp = context;
    switch (event) {
    case LS_EVENT_GRAD_READY: return ls_ddp_grad_ready(ddp, index);
    case LS_EVENT_END_OF_BACKWARD: return ls_ddp_end_backward(ddp);
    case LS_EVENT_PROGRESS:
        return ddp->n_posted > ddp->n_waited ? ls_group_progress(ddp->group) : LS_OK;
    default: return LS_OK;
    }
}

ls_event_sink ls_ddp_sink(ls_ddp *ddp) {
    return (ls_event_sink){on_event, ddp};
}

int ls_ddp_n_buckets(const ls_ddp *ddp) {
    return ddp->plan.n_buckets;
}

int64_t ls_ddp_bucket_count(const ls_ddp *ddp, int bucket) {
    return bucket >= 0 && bucket < ddp->plan.n_buckets ? ddp->plan.buckets[bucket].count : 0;
}
