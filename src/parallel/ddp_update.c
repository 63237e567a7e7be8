/* AdamW by the ddp: of all parameters, or of this rank's pieces of them, and what it makes of them:
 * values at full precision. Updates are element by element, so it does not show in the bits who
 * makes them, nor where pieces are cut. */
#include <math.h>
#include <string.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "parallel/ddp_impl.h"
#include "parallel/memory.h"

/* ---- update ---- */

void lsi_ddp_update_elements(ls_ddp *ddp, const lsi_piece *part, const float *grad,
                             const lsi_state_view *states, const ls_adamw_opts *settings) {
    ls_adamw_opts opts = *settings;
    void *value = lsi_ddp_piece_value(ddp, part);
    opts.step = ddp->states.n_updates[part->param];
    if (ddp->params[part->param].flags & LS_PARAM_NO_DECAY) opts.weight_decay = 0;
    uint16_t *lower = states->lower;
    if (!lower && lsi_ddp_given_lower(ddp, part->param))
        lower = lsi_ddp_given_lower(ddp, part->param) + part->begin;
    if (lsi_ddp_is_narrow(ddp, part->param))
        ls_adamw_update_bf16(value, lower, grad, states->first, states->second, part->count, &opts);
    else
        ls_adamw_update(value, grad, states->first, states->second, part->count, &opts);
}

static ls_status update_part(ls_ddp *ddp, const lsi_piece *part, const lsi_state_view *states,
                             void *context) {
    if (!lsi_ddp_has_gradient(ddp, part->param)) return LS_OK;
    lsi_ddp_update_elements(ddp, part, lsi_ddp_piece_grad(ddp, part), states, context);
    return lsi_ddp_let_go_of_piece(ddp, part, true);
}

ls_status lsi_ddp_check_adamw(const char *call, const ls_adamw_opts *opts) {
    if (isfinite(opts->lr) && isfinite(opts->grad_scale)) return LS_OK;
    return lsi_fail(LS_ERR_NUMERIC, "%s: lr %g and gradient scale %g must be finite", call,
                    opts->lr, opts->grad_scale);
}

static ls_status check_update(const ls_ddp *ddp, const ls_adamw_opts *opts) {
    if (lsi_ddp_updates_early(ddp))
        return lsi_fail(LS_ERR_STATE,
                        "ls_ddp_update: with update_in_backward ls_ddp_finish_step ends with the "
                        "update made; say its settings by ls_ddp_plan_update and leave this out");
    if (ddp->state != IDLE || ddp->n_steps == 0)
        return lsi_fail(LS_ERR_STATE, "ls_ddp_update: expected after ls_ddp_finish_step");
    return lsi_ddp_check_adamw("ls_ddp_update", opts);
}

ls_status ls_ddp_update(ls_ddp *ddp, const ls_adamw_opts *opts) {
    ls_adamw_opts mine = *opts;
    LSI_TRY(check_update(ddp, opts));
    LSI_TRY(lsi_ddp_await_values(ddp));
    LSI_TRY(lsi_ddp_make_states(ddp));
    for (int i = 0; i < ddp->n_params; i++)
        ddp->states.n_updates[i] += lsi_ddp_has_gradient(ddp, i);
    ls_status status = lsi_ddp_visit_states(ddp, false, update_part, &mine);
    if (status != LS_OK) {
        ddp->state = FAILED; /* some elements are of the next step */
        return status;
    }
    if (lsi_ddp_is_sharded(ddp)) status = lsi_ddp_spread_values(ddp);
    if (status != LS_OK) ddp->state = FAILED; /* some ranks have values of the next step */
    return status;
}

/* ---- values at full precision ---- */

static const lsi_piece *find_piece(const ls_ddp *ddp, int index) {
    static const lsi_piece none = {0};
    const lsi_shard_plan *plan = &ddp->states.plan;
    for (int k = 0; k < plan->n_held_pieces; k++)
        if (plan->pieces[k].param == index) return &plan->pieces[k];
    return &none;
}

static ls_status copy_piece(const ls_ddp *ddp, int index, const lsi_piece *piece, float *to) {
    if (piece->count == 0) return LS_OK;
    LSI_TRY(lsi_ddp_read_piece(ddp, piece));
    if (lsi_ddp_is_narrow(ddp, index))
        LSI_TRY(lsi_ddp_join_piece(ddp, piece, to));
    else
        memcpy(to, lsi_ddp_piece_value(ddp, piece), (size_t)piece->count * sizeof *to);
    return lsi_ddp_let_go_of_piece(ddp, piece, false);
}

/* Every rank its piece, in rank order: pieces of a parameter follow each other. */
static ls_status gather_values(ls_ddp *ddp, int index, float *values) {
    int64_t counts[LSI_MAX_RANKS];
    const lsi_piece *mine = find_piece(ddp, index);
    LSI_TRY(ls_all_gather(ddp->shard_group, &mine->count, counts, 1, LS_DTYPE_I64, NULL));
    float *own = values;
    for (int r = 0; r < ls_group_rank(ddp->shard_group); r++) own += counts[r];
    LSI_TRY(copy_piece(ddp, index, mine, own));
    return ls_all_gather_v(ddp->shard_group, own, values, counts, LS_DTYPE_F32, NULL);
}

/* BF16 values that the ddp has not moved: with the caller's lower half, with its own, or, where
 * nobody ever had one, as they are. */
static ls_status join_own(const ls_ddp *ddp, int index, float *values) {
    const ls_param *param = &ddp->params[index];
    const uint16_t *upper = param->data, *given = lsi_ddp_given_lower(ddp, index);
    const lsi_piece *piece = find_piece(ddp, index);
    if (given)
        ls_bf16_join(upper, given, param->count, values);
    else if (piece->count > 0 && lsi_ddp_has_lower_halves(ddp))
        return lsi_ddp_join_piece(ddp, piece, values);
    else
        for (int64_t i = 0; i < param->count; i++) values[i] = lsi_bf16_to_f32(upper[i]);
    return LS_OK;
}

static ls_status get_values(ls_ddp *ddp, int index, float *values) {
    const ls_param *param = &ddp->params[index];
    bool is_whole = param->data || param->count == 0;
    if (lsi_ddp_has_values(ddp, index) && (lsi_ddp_is_narrow(ddp, index) || !is_whole))
        return gather_values(ddp, index, values);
    if (lsi_ddp_is_narrow(ddp, index)) return join_own(ddp, index, values);
    if (param->count > 0) memcpy(values, param->data, (size_t)param->count * sizeof *values);
    return LS_OK;
}

ls_status ls_ddp_get_values(ls_ddp *ddp, int index, float *values) {
    LSI_TRY(lsi_ddp_await_values(ddp));
    if (index < 0 || index >= ddp->n_params)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_ddp_get_values: parameter %d, expected 0 to %d", index,
                        ddp->n_params - 1);
    const ls_param *param = &ddp->params[index];
    if (ddp->state != IDLE)
        return lsi_fail(LS_ERR_STATE, "ls_ddp_get_values: a step is open; expected between steps");
    if (param->dtype != LS_DTYPE_F32 && !lsi_ddp_is_narrow(ddp, index))
        return lsi_fail(LS_ERR_UNSUPPORTED, "ls_ddp_get_values: parameter %s has dtype %s",
                        param->name, ls_dtype_name(param->dtype));
    return lsi_context(get_values(ddp, index, values), "ls_ddp_get_values: %s", param->name);
}
