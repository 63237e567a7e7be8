/* The calls of a step: which may come when, and what each does to the parameters' states.
 * ddp_impl.h has the states of a step and the order of what is posted. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "parallel/ddp_impl.h"

static const char *const state_names[] = {"no step is open", "between micro-batches",
                                          "a backward pass is open", "an earlier call failed"};

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

/* ---- begin ---- */

static ls_status check_number(const ls_ddp *ddp, int64_t n_micro) {
    bool by_scope = n_micro == LS_MICRO_BATCHES_BY_SCOPE;
    if (n_micro < 1 && !by_scope && !(n_micro == 0 && ddp->opts.join != LS_JOIN_NONE))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ls_ddp_begin_step: %lld micro-batches, at least 1 is needed (0 is for "
                        "ranks without data, with opts.join)",
                        (long long)n_micro);
    if (by_scope && ddp->opts.join != LS_JOIN_NONE && ddp->opts.average == LS_AVERAGE_MEAN)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ls_ddp_begin_step: with join the mean over micro-batches needs their "
                        "number; give it, or take LS_AVERAGE_RANKS or LS_AVERAGE_WEIGHTS");
    return LS_OK;
}

static void clear_step(ls_ddp *ddp, int64_t n_micro, double scale) {
    ddp->n_micro = n_micro;
    ddp->given_scale = scale;
    ddp->next_micro = 0;
    ddp->is_last = ddp->in_no_sync = ddp->had_no_sync = ddp->has_weight = ddp->is_skipped = false;
    ddp->early.is_planned = false;
    ddp->scale = ddp->weight = 0;
    ddp->first_nonfinite = -1;
    ddp->skip_reason[0] = 0;
    ddp->n_ordered = 0;
    for (int b = 0; b < ddp->plan.n_held && ddp->units.gathered; b++)
        ddp->units.gathered[b].n_gathers = 0;
    for (int i = 0; i < ddp->n_params; i++)
        ddp->at[i].is_ready = ddp->at[i].is_used = ddp->at[i].is_missed = false;
    lsi_accumulator_clear(&ddp->accumulator);
    lsi_ddp_begin_exchange(ddp);
}

/* What the group is asked before a step. */
static ls_status prepare_step(ls_ddp *ddp) {
    if (ddp->n_steps == 1 && !ddp->opts.keep_buckets && !lsi_ddp_is_sharded(ddp))
        LSI_TRY(lsi_ddp_rebuild(ddp));
    if (ddp->opts.broadcast_buffers) LSI_TRY(lsi_ddp_broadcast_buffers(ddp));
    return LS_OK;
}

ls_status ls_ddp_begin_step(ls_ddp *ddp, int64_t n_micro_batches, double scale) {
    LSI_TRY(expect_state(ddp, IDLE, "ls_ddp_begin_step"));
    LSI_TRY(check_number(ddp, n_micro_batches));
    if (!isfinite(scale))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ls_ddp_begin_step: scale is %g, expected a finite number "
                        "(0: as opts.average says)",
                        scale);
    LSI_TRY(fail_step(ddp, lsi_ddp_agree_on_data(ddp, n_micro_batches)));
    if (ddp->n_live == 0) return LS_OK;
    LSI_TRY(fail_step(ddp, lsi_context(prepare_step(ddp), "ls_ddp_begin_step")));
    clear_step(ddp, n_micro_batches, scale);
    lsi_ddp_place_gradients(ddp);
    ddp->state = BETWEEN;
    return LS_OK;
}

int ls_ddp_n_live(const ls_ddp *ddp) {
    return ddp->n_live;
}

static ls_status set_no_sync(ls_ddp *ddp, bool on, const char *call) {
    LSI_TRY(expect_state(ddp, BETWEEN, call));
    if (ddp->in_no_sync == on)
        return lsi_fail(LS_ERR_STATE, "%s: a no_sync scope is %s", call,
                        on ? "open already" : "not open");
    ddp->in_no_sync = on;
    ddp->had_no_sync = true;
    return LS_OK;
}

ls_status ls_ddp_begin_no_sync(ls_ddp *ddp) {
    return set_no_sync(ddp, true, "ls_ddp_begin_no_sync");
}

ls_status ls_ddp_end_no_sync(ls_ddp *ddp) {
    return set_no_sync(ddp, false, "ls_ddp_end_no_sync");
}

ls_status ls_ddp_weigh(ls_ddp *ddp, double weight) {
    LSI_TRY(expect_state(ddp, BETWEEN, "ls_ddp_weigh"));
    if (!isfinite(weight) || weight < 0)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_ddp_weigh: %g, expected a finite number >= 0", weight);
    if (ddp->has_weight)
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_weigh: micro-batch %lld has a weight already; begin its backward "
                        "pass first",
                        (long long)ddp->next_micro + 1);
    ddp->weight += weight;
    ddp->has_weight = true;
    return LS_OK;
}

/* ---- backward ---- */

/* Whether the backward pass that begins is the step's last. */
static ls_status find_last(const ls_ddp *ddp, bool *is_last) {
    bool by_scope = ddp->n_micro == LS_MICRO_BATCHES_BY_SCOPE;
    *is_last = by_scope ? !ddp->in_no_sync : ddp->next_micro + 1 == ddp->n_micro;
    if (ddp->is_last || (!by_scope && ddp->next_micro == ddp->n_micro))
        return lsi_fail(LS_ERR_STATE,
                        by_scope ? "ls_ddp_begin_backward: the backward pass before exchanged the "
                                   "gradients of the step; put all but the last one into no_sync"
                                 : "ls_ddp_begin_backward: the step was begun with %lld "
                                   "micro-batches and has had them all",
                        (long long)ddp->n_micro);
    if (!by_scope && (ddp->had_no_sync || ddp->in_no_sync) && *is_last == ddp->in_no_sync)
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_begin_backward: micro-batch %lld of %lld is %s no_sync; all but "
                        "the last one must be in it",
                        (long long)ddp->next_micro + 1, (long long)ddp->n_micro,
                        ddp->in_no_sync ? "in" : "outside");
    return LS_OK;
}

/* From zero2 on nobody ever has the sum of several micro-batches of a rank. */
static ls_status check_sum(const ls_ddp *ddp, bool is_last) {
    if (!lsi_ddp_shards_gradients(ddp) || is_last) return LS_OK;
    const char *what = ddp->opts.hook ? "hook" : lsi_ddp_scales_before(ddp) ? "average" : "option";
    const char *who = ddp->opts.hook               ? ddp->opts.hook->name
                      : lsi_ddp_scales_before(ddp) ? "LS_AVERAGE_MEANS"
                      : lsi_ddp_updates_early(ddp) ? "update_in_backward"
                                                   : NULL;
    if (!who) return LS_OK;
    return lsi_fail(LS_ERR_UNSUPPORTED,
                    "ls_ddp_begin_backward: %s %s needs the sum of the step's micro-batches, but "
                    "LS_STRATEGY_ZERO2 and 3 exchange each of them; take one micro-batch a step, "
                    "or LS_STRATEGY_ZERO1",
                    what, who);
}

/* The update begins with this backward pass. */
static ls_status check_plan(const ls_ddp *ddp, bool is_last) {
    if (!lsi_ddp_updates_early(ddp) || !is_last || ddp->early.is_planned) return LS_OK;
    return lsi_fail(LS_ERR_STATE,
                    "ls_ddp_begin_backward: with update_in_backward the step's last backward pass "
                    "makes the update, and its settings are not known; call ls_ddp_plan_update "
                    "first");
}

ls_status ls_ddp_plan_update(ls_ddp *ddp, const ls_adamw_opts *opts) {
    LSI_TRY(expect_state(ddp, BETWEEN, "ls_ddp_plan_update"));
    if (!lsi_ddp_updates_early(ddp))
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_plan_update: update_in_backward is not set; set it, or call "
                        "ls_ddp_update after ls_ddp_finish_step");
    if (ddp->is_last)
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_plan_update: the step's last backward pass is over, and with it "
                        "the update; expected before ls_ddp_begin_backward");
    LSI_TRY(lsi_ddp_check_adamw("ls_ddp_plan_update", opts));
    return lsi_ddp_set_early(ddp, opts);
}

static void set_ready(ls_ddp *ddp, int index) {
    ddp->at[index].is_ready = true;
    lsi_bucket_state *on = &ddp->on[ddp->plan.bucket_of[index]];
    if (--on->n_waiting == 0) on->ready_ns = lsi_now_ns();
}

/* Sharded gradients: the parameter's bucket has memory. */
static ls_status need_bucket(ls_ddp *ddp, int index) {
    if (!lsi_ddp_shards_gradients(ddp)) return LS_OK;
    return lsi_ddp_open_bucket(ddp, ddp->plan.bucket_of[index]);
}

/* Nothing was added in this micro-batch; what is there before the first one is of another step. */
static ls_status set_unused(ls_ddp *ddp, int index) {
    LSI_TRY(fail_step(ddp, need_bucket(ddp, index)));
    if (!ls_ddp_accumulates(ddp))
        memset(lsi_ddp_place(ddp, index), 0, lsi_ddp_grad_bytes(ddp, index));
    set_ready(ddp, index);
    return LS_OK;
}

static ls_status post_ready(ls_ddp *ddp) {
    if (!lsi_ddp_posts_early(ddp)) return LS_OK;
    return fail_step(ddp, lsi_ddp_post_ready(ddp, false));
}

/* static_graph: buckets need not wait for parameters that this rank never uses. */
static ls_status pass_known_unused(ls_ddp *ddp) {
    for (int i = ddp->n_params - 1; i >= 0; i--) {
        if (!ddp->at[i].is_known_unused) continue;
        LSI_TRY(set_unused(ddp, i));
        if (lsi_ddp_shards_gradients(ddp)) LSI_TRY(post_ready(ddp)); /* memory may come back */
    }
    return LS_OK;
}

/* Sharded gradients: the micro-batch before is in the shards of all ranks. */
static ls_status end_micro(ls_ddp *ddp) {
    if (!lsi_ddp_shards_gradients(ddp) || ddp->next_micro == 0) return LS_OK;
    LSI_TRY(lsi_ddp_await_buckets(ddp));
    return lsi_ddp_push_micro(ddp);
}

ls_status ls_ddp_begin_backward(ls_ddp *ddp) {
    bool is_last = false;
    LSI_TRY(expect_state(ddp, BETWEEN, "ls_ddp_begin_backward"));
    LSI_TRY(find_last(ddp, &is_last));
    LSI_TRY(check_sum(ddp, is_last));
    LSI_TRY(check_plan(ddp, is_last));
    bool by_weight =
        ddp->opts.average == LS_AVERAGE_WEIGHTS || ddp->opts.average == LS_AVERAGE_MEANS;
    if (by_weight && ddp->given_scale == 0 && !ddp->has_weight)
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_begin_backward: micro-batch %lld has no weight; call ls_ddp_weigh",
                        (long long)ddp->next_micro + 1);
    LSI_TRY(fail_step(ddp, end_micro(ddp)));
    ddp->is_last = is_last;
    ddp->has_weight = false;
    ddp->next_micro++;
    ddp->backward_ns = lsi_now_ns();
    for (int i = 0; i < ddp->n_params; i++) ddp->at[i].is_ready = false;
    lsi_ddp_begin_exchange(ddp);
    ddp->state = BACKWARD;
    if (is_last) LSI_TRY(fail_step(ddp, lsi_ddp_begin_average(ddp)));
    return pass_known_unused(ddp);
}

int ls_ddp_accumulates(const ls_ddp *ddp) {
    return !ddp->opts.reproducible && !lsi_ddp_shards_gradients(ddp) && ddp->next_micro > 1;
}

static ls_status check_index(const ls_ddp *ddp, int index, const char *call) {
    LSI_TRY(expect_state(ddp, BACKWARD, call));
    if (index < 0 || index >= ddp->n_params)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: parameter %d, expected 0 to %d", call, index,
                        ddp->n_params - 1);
    if (lsi_ddp_is_frozen(ddp, index))
        return lsi_fail(LS_ERR_STATE, "%s: parameter %s is frozen", call, ddp->params[index].name);
    if (lsi_ddp_gathers(ddp) && ddp->plan.bucket_of[index] < ddp->n_posted)
        return lsi_fail(LS_ERR_STATE,
                        "%s: parameter %s comes after its unit; its gradient was sent by "
                        "ls_ddp_after_backward of the first unit that uses it",
                        call, ddp->params[index].name);
    if (ddp->at[index].is_ready && !ddp->at[index].is_known_unused)
        return lsi_fail(LS_ERR_STATE,
                        "%s: the gradient of parameter %s was ready "
                        "already; one that is used twice is ready after the last use",
                        call, ddp->params[index].name);
    return LS_OK;
}

ls_status ls_ddp_grad_needed(ls_ddp *ddp, int index) {
    LSI_TRY(check_index(ddp, index, "ls_ddp_grad_needed"));
    return fail_step(ddp, need_bucket(ddp, index));
}

ls_status ls_ddp_grad_ready(ls_ddp *ddp, int index) {
    LSI_TRY(check_index(ddp, index, "ls_ddp_grad_ready"));
    if (!lsi_ddp_place(ddp, index))
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_grad_ready: the gradient of parameter %s has no memory yet; call "
                        "ls_ddp_grad_needed before it is written",
                        ddp->params[index].name);
    ddp->at[index].is_used = true;
    if (ddp->at[index].is_ready) return LS_OK; /* against static_graph: the verdict will say so */
    if (ddp->is_last) ddp->ready_order[ddp->n_ordered++] = index;
    set_ready(ddp, index);
    return post_ready(ddp);
}

ls_status ls_ddp_grad_unused(ls_ddp *ddp, int index) {
    LSI_TRY(check_index(ddp, index, "ls_ddp_grad_unused"));
    if (!lsi_ddp_allows_unused(ddp))
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_grad_unused: parameter %s; set find_unused_parameters or "
                        "static_graph to allow it",
                        ddp->params[index].name);
    if (ddp->at[index].is_ready) return LS_OK;
    LSI_TRY(set_unused(ddp, index));
    return post_ready(ddp);
}

/* Whether the parameter can get a gradient after the unit's backward pass. */
static bool may_come(const ls_ddp *ddp, int index, int unit) {
    return unit > 0 && lsi_ddp_gathers(ddp) &&
           ddp->units.plan.first[ddp->plan.bucket_of[index]] < unit;
}

/* Those that nothing was said about; in the order of readiness they come last. */
ls_status lsi_ddp_pass_the_rest(ls_ddp *ddp, int unit) {
    for (int i = ddp->n_params - 1; i >= 0; i--) {
        if (lsi_ddp_is_frozen(ddp, i) || ddp->at[i].is_ready || may_come(ddp, i, unit)) continue;
        ddp->at[i].is_missed = !lsi_ddp_allows_unused(ddp);
        LSI_TRY(set_unused(ddp, i));
        LSI_TRY(post_ready(ddp)); /* so that memory of its bucket may come back */
    }
    return LS_OK;
}

/* The list that buckets may be rebuilt from has every parameter once. */
static void complete_order(ls_ddp *ddp) {
    for (int k = 0; k < ddp->n_ordered; k++) ddp->at[ddp->ready_order[k]].is_ready = false;
    int n = ddp->n_ordered;
    for (int i = ddp->n_params - 1; i >= 0; i--)
        if (ddp->at[i].is_ready || lsi_ddp_is_frozen(ddp, i)) ddp->ready_order[n++] = i;
}

static bool misses_any(const ls_ddp *ddp) {
    bool any = false;
    for (int i = 0; i < ddp->n_params; i++) any = any || ddp->at[i].is_missed;
    return any;
}

/* Everything is on its way, and what this rank has to say about the step as well. */
static ls_status end_last(ls_ddp *ddp) {
    complete_order(ddp);
    LSI_TRY(lsi_ddp_post_ready(ddp, true));
    LSI_TRY(lsi_ddp_post_verdict(ddp));
    if (!misses_any(ddp)) return LS_OK;
    LSI_TRY(lsi_ddp_await_buckets(ddp));
    return lsi_ddp_take_verdict(ddp);
}

ls_status ls_ddp_end_backward(ls_ddp *ddp) {
    LSI_TRY(expect_state(ddp, BACKWARD, "ls_ddp_end_backward"));
    LSI_TRY(lsi_ddp_pass_the_rest(ddp, 0));
    ddp->state = BETWEEN;
    if (ddp->is_last) return fail_step(ddp, end_last(ddp));
    if (lsi_ddp_shards_gradients(ddp)) return fail_step(ddp, lsi_ddp_post_ready(ddp, true));
    return fail_step(ddp, lsi_ddp_push_micro(ddp));
}

/* ---- finish ---- */

static ls_status check_finished(const ls_ddp *ddp) {
    if (!ddp->has_data || ddp->is_last) return LS_OK;
    if (ddp->n_micro == LS_MICRO_BATCHES_BY_SCOPE)
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_finish_step: %lld micro-batches are done, the last one in no_sync, "
                        "so nothing was exchanged; end the scope before the last backward pass",
                        (long long)ddp->next_micro);
    return lsi_fail(LS_ERR_STATE, "ls_ddp_finish_step: %lld of %lld micro-batches are done",
                    (long long)ddp->next_micro, (long long)ddp->n_micro);
}

/* A rank without data makes the same calls as the others, with zeros. */
static ls_status shadow_step(ls_ddp *ddp) {
    memset(ddp->gradients, 0, (size_t)ddp->plan.total_bytes);
    ddp->is_last = true;
    ddp->backward_ns = lsi_now_ns();
    for (int i = ddp->n_params - 1, n = 0; i >= 0; i--) ddp->ready_order[n++] = i;
    LSI_TRY(lsi_ddp_begin_average(ddp));
    LSI_TRY(lsi_ddp_post_ready(ddp, true));
    return lsi_ddp_post_verdict(ddp);
}

static ls_status finish(ls_ddp *ddp) {
    if (!ddp->has_data) LSI_TRY(shadow_step(ddp));
    LSI_TRY(lsi_ddp_await_buckets(ddp));
    LSI_TRY(lsi_ddp_take_verdict(ddp));
    for (int i = 0; i < ddp->n_params && lsi_ddp_allows_unused(ddp); i++)
        if (ddp->at[i].is_without_gradient) ddp->params[i].grad = NULL;
    return LS_OK;
}

ls_status ls_ddp_finish_step(ls_ddp *ddp) {
    LSI_TRY(expect_state(ddp, BETWEEN, "ls_ddp_finish_step"));
    LSI_TRY(check_finished(ddp));
    LSI_TRY(fail_step(ddp, finish(ddp)));
    ddp->n_steps++;
    ddp->state = IDLE;
    return LS_OK;
}

int ls_ddp_step_is_skipped(const ls_ddp *ddp) {
    return ddp->is_skipped;
}

const char *ls_ddp_skip_reason(const ls_ddp *ddp) {
    return ddp->skip_reason;
}

ls_status ls_ddp_set_nonfinite(ls_ddp *ddp, int nonfinite) {
    LSI_TRY(expect_state(ddp, IDLE, "ls_ddp_set_nonfinite"));
    if (nonfinite < LS_NONFINITE_IGNORE || nonfinite > LS_NONFINITE_SKIP)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_ddp_set_nonfinite: %d, expected 0 to %d", nonfinite,
                        LS_NONFINITE_SKIP);
    if (lsi_ddp_updates_early(ddp) && nonfinite == LS_NONFINITE_SKIP)
        return lsi_fail(LS_ERR_UNSUPPORTED, "ls_ddp_set_nonfinite: %s", lsi_ddp_no_skip);
    ddp->opts.nonfinite = nonfinite;
    return LS_OK;
}

/* ---- events ---- */

static ls_status on_event(void *context, ls_event event, int index) {
    ls_ddp *ddp = context;
    switch (event) {
    case LS_EVENT_BEFORE_FORWARD: return ls_ddp_before_forward(ddp, index);
    case LS_EVENT_AFTER_FORWARD: return ls_ddp_after_forward(ddp, index);
    case LS_EVENT_BEFORE_BACKWARD: return ls_ddp_before_backward(ddp, index);
    case LS_EVENT_AFTER_BACKWARD: return ls_ddp_after_backward(ddp, index);
    case LS_EVENT_GRAD_NEEDED: return ls_ddp_grad_needed(ddp, index);
    case LS_EVENT_GRAD_READY: return ls_ddp_grad_ready(ddp, index);
    case LS_EVENT_END_OF_BACKWARD: return ls_ddp_end_backward(ddp);
    case LS_EVENT_PROGRESS: return fail_step(ddp, lsi_ddp_progress(ddp));
    }
    return LS_OK;
}

ls_event_sink ls_ddp_sink(ls_ddp *ddp) {
    return (ls_event_sink){on_event, ddp};
}
