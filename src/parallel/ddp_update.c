/* AdamW by the ddp: of all parameters, or of this rank's pieces of them. Updates are element by
 * element, so it does not show in the bits who makes them.
 *
 * Masters (float32 values of BF16 parameters) are the caller's, or the rank's own: a shard of them
 * that is copied when the ddp is made, or all of them, widened at the first update. */
#include <math.h>
#include <string.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "parallel/ddp_impl.h"

/* ---- states ---- */

static bool is_narrow(const ls_ddp *ddp, int index) {
    return ddp->params[index].dtype == LS_DTYPE_BF16;
}

static bool has_narrow(const ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        if (is_narrow(ddp, i) && !lsi_ddp_is_frozen(ddp, i)) return true;
    return false;
}

static float *given_master(const ls_ddp *ddp, int index) {
    return ddp->opts.masters ? ddp->opts.masters[index] : NULL;
}

/* A piece of the values at their full precision. */
static void copy_master(const ls_ddp *ddp, const lsi_piece *piece, float *to) {
    const float *given = given_master(ddp, piece->param);
    const uint16_t *narrow = (const uint16_t *)ddp->params[piece->param].data + piece->begin;
    if (given)
        memcpy(to, given + piece->begin, (size_t)piece->count * sizeof *to);
    else
        for (int64_t i = 0; i < piece->count; i++) to[i] = lsi_bf16_to_f32(narrow[i]);
}

static ls_status make_masters(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    bool uses_given = !lsi_ddp_is_sharded(ddp) && ddp->opts.masters;
    if (s->masters || uses_given || !has_narrow(ddp)) return LS_OK;
    s->masters = lsi_calloc(LSI_MEM_OPTIMIZER, (size_t)s->plan.n_states, sizeof *s->masters);
    LSI_TRY(lsi_check_alloc(s->masters));
    for (int k = 0; k < s->plan.n_pieces; k++)
        if (is_narrow(ddp, s->plan.pieces[k].param))
            copy_master(ddp, &s->plan.pieces[k], s->masters + s->plan.pieces[k].state);
    return LS_OK;
}

static ls_status check_types(const ls_ddp *ddp, const char *who) {
    for (int i = 0; i < ddp->n_params; i++)
        if (!lsi_ddp_is_frozen(ddp, i) && ddp->params[i].dtype != LS_DTYPE_F32 &&
            !is_narrow(ddp, i))
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "%s: parameter %s has dtype %s, expected F32 or BF16", who,
                            ddp->params[i].name, ls_dtype_name(ddp->params[i].dtype));
    return LS_OK;
}

ls_status lsi_ddp_plan_states(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    if (!lsi_ddp_is_sharded(ddp)) return LS_OK;
    LSI_TRY(check_types(ddp, "ddp with shards"));
    LSI_TRY(lsi_shard_plan_create(&ddp->plan, ddp->params, ls_group_world_size(ddp->group),
                                  ls_group_rank(ddp->group), &s->plan));
    return lsi_shard_norm_create(&ddp->plan, ddp->params, ddp->n_params, &s->plan, &s->norm);
}

/* Rank 0's, as all values are. */
static ls_status broadcast_masters(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        if (is_narrow(ddp, i) && given_master(ddp, i))
            LSI_TRY(lsi_context(ls_broadcast(ddp->group, given_master(ddp, i), given_master(ddp, i),
                                             ddp->params[i].count, LS_DTYPE_F32, 0, NULL),
                                "ddp: broadcast of the master of %s", ddp->params[i].name));
    return LS_OK;
}

ls_status lsi_ddp_shard_masters(ls_ddp *ddp) {
    LSI_TRY(broadcast_masters(ddp));
    if (!lsi_ddp_is_sharded(ddp)) return LS_OK;
    LSI_TRY(make_masters(ddp));
    ddp->opts.masters = NULL;
    return LS_OK;
}

void lsi_ddp_free_states(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    lsi_shard_norm_fini(&s->norm);
    lsi_shard_plan_fini(&s->plan);
    lsi_free(s->first);
    lsi_free(s->second);
    lsi_free(s->masters);
    lsi_free(s->n_updates);
    *s = (lsi_states){.first = NULL};
}

/* At the first update; who makes none needs none. */
static ls_status make_states(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    if (s->n_updates) return LS_OK;
    LSI_TRY(check_types(ddp, "ls_ddp_update"));
    if (!lsi_ddp_is_sharded(ddp) && !s->plan.pieces)
        LSI_TRY(lsi_shard_plan_create(&ddp->plan, ddp->params, 1, 0, &s->plan));
    LSI_TRY(make_masters(ddp));
    size_t n = (size_t)s->plan.n_states;
    if (!s->first) s->first = lsi_calloc(LSI_MEM_OPTIMIZER, n, sizeof(float));
    if (!s->second) s->second = lsi_calloc(LSI_MEM_OPTIMIZER, n, sizeof(float));
    if (!s->first || !s->second) return LS_ERR_MEMORY;
    s->n_updates = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->n_params, sizeof *s->n_updates);
    return lsi_check_alloc(s->n_updates);
}

int64_t ls_ddp_state_bytes(const ls_ddp *ddp) {
    int64_t n_copies = 2 + (ddp->states.masters != NULL);
    return n_copies * (int64_t)sizeof(float) * ddp->states.plan.n_states;
}

/* ---- update ---- */

static float *master_of(const ls_ddp *ddp, const lsi_piece *piece) {
    if (ddp->states.masters) return ddp->states.masters + piece->state;
    return given_master(ddp, piece->param) + piece->begin;
}

static void update_piece(ls_ddp *ddp, const lsi_piece *piece, const ls_adamw_opts *opts) {
    const ls_param *param = &ddp->params[piece->param];
    const float *grad = lsi_ddp_piece_grad(ddp, piece);
    float *first = ddp->states.first + piece->state, *second = ddp->states.second + piece->state;
    ls_adamw_opts mine = *opts;
    mine.step = ddp->states.n_updates[piece->param];
    if (param->flags & LS_PARAM_NO_DECAY) mine.weight_decay = 0;
    if (is_narrow(ddp, piece->param))
        ls_adamw_update_bf16(master_of(ddp, piece), (uint16_t *)param->data + piece->begin, grad,
                             first, second, piece->count, &mine);
    else
        ls_adamw_update((float *)param->data + piece->begin, grad, first, second, piece->count,
                        &mine);
}

static ls_status check_update(const ls_ddp *ddp, const ls_adamw_opts *opts) {
    if (ddp->state != IDLE || ddp->n_steps == 0)
        return lsi_fail(LS_ERR_STATE, "ls_ddp_update: expected after ls_ddp_finish_step");
    if (!isfinite(opts->lr) || !isfinite(opts->grad_scale))
        return lsi_fail(LS_ERR_NUMERIC, "ls_ddp_update: lr %g and gradient scale %g must be finite",
                        opts->lr, opts->grad_scale);
    return LS_OK;
}

ls_status ls_ddp_update(ls_ddp *ddp, const ls_adamw_opts *opts) {
    LSI_TRY(check_update(ddp, opts));
    LSI_TRY(make_states(ddp));
    for (int i = 0; i < ddp->n_params; i++)
        ddp->states.n_updates[i] += lsi_ddp_has_gradient(ddp, i);
    for (int k = 0; k < ddp->states.plan.n_pieces; k++)
        if (lsi_ddp_has_gradient(ddp, ddp->states.plan.pieces[k].param))
            update_piece(ddp, &ddp->states.plan.pieces[k], opts);
    return lsi_ddp_is_sharded(ddp) ? lsi_ddp_spread_values(ddp) : LS_OK;
}

/* ---- values at full precision ---- */

static void widen(const ls_param *param, float *values) {
    for (int64_t i = 0; i < param->count; i++)
        values[i] = lsi_bf16_to_f32(((const uint16_t *)param->data)[i]);
}

/* Every rank its piece, in rank order: pieces of a parameter follow each other. */
static ls_status gather_master(ls_ddp *ddp, int index, float *values) {
    int64_t counts[LSI_MAX_RANKS];
    const lsi_piece none = {0}, *mine = &none;
    const lsi_states *s = &ddp->states;
    for (int k = 0; k < s->plan.n_pieces; k++)
        if (s->plan.pieces[k].param == index) mine = &s->plan.pieces[k];
    LSI_TRY(ls_all_gather(ddp->group, &mine->count, counts, 1, LS_DTYPE_I64, NULL));
    return ls_all_gather_v(ddp->group, s->masters + mine->state, values, counts, LS_DTYPE_F32,
                           NULL);
}

/* Of a ddp that has all masters itself; before its first update they are the BF16 values. */
static void copy_own_master(const ls_ddp *ddp, int index, float *values) {
    const lsi_states *s = &ddp->states;
    widen(&ddp->params[index], values);
    for (int k = 0; k < s->plan.n_pieces && s->masters; k++)
        if (s->plan.pieces[k].param == index)
            memcpy(values, s->masters + s->plan.pieces[k].state,
                   (size_t)s->plan.pieces[k].count * sizeof *values);
}

ls_status ls_ddp_get_values(ls_ddp *ddp, int index, float *values) {
    if (index < 0 || index >= ddp->n_params)
        return lsi_fail(LS_ERR_ARGUMENT, "ls_ddp_get_values: parameter %d, expected 0 to %d", index,
                        ddp->n_params - 1);
    const ls_param *param = &ddp->params[index];
    if (param->dtype == LS_DTYPE_F32)
        memcpy(values, param->data, (size_t)param->count * sizeof *values);
    else if (!is_narrow(ddp, index))
        return lsi_fail(LS_ERR_UNSUPPORTED, "ls_ddp_get_values: parameter %s has dtype %s",
                        param->name, ls_dtype_name(param->dtype));
    else if (lsi_ddp_is_sharded(ddp) && !lsi_ddp_is_frozen(ddp, index))
        return lsi_context(gather_master(ddp, index, values), "ls_ddp_get_values: %s", param->name);
    else if (given_master(ddp, index))
        memcpy(values, given_master(ddp, index), (size_t)param->count * sizeof *values);
    else
        copy_own_master(ddp, index, values);
    return LS_OK;
}
