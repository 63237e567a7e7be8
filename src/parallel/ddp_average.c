/* What sums are divided by, and which ranks have data.
 *
 *     LS_AVERAGE_MEAN      micro-batches of all ranks; all have as many, or join has counted them
 *     LS_AVERAGE_RANKS     ranks (LS_JOIN_LIVE: those with data)
 *     LS_AVERAGE_SUM       1
 *     LS_AVERAGE_WEIGHTS   weights of all ranks' micro-batches, added by an all-reduce that is
 *                          posted when the last backward pass begins; buckets that are complete
 *                          before it is over wait for it, backward does not
 *
 *     LS_AVERAGE_MEANS     ranks, and on each rank first the weights of its own micro-batches: the
 *                          factor is the rank's own and goes before the sum
 *
 * All others: the factor is one number, multiplied once after the sum. Weights that add up to 0
 * give factor 0: there was nothing to learn from. */
#include "parallel/ddp_impl.h"

/* ---- who has data ---- */

static int64_t largest(const int64_t *values, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        if (values[i] > most) most = values[i];
    return most;
}

/* Micro-batches that the mean is over. A rank without data counts for LS_JOIN_WORLD as many as the
 * rank that has most. */
static double total_micro(const ls_ddp *ddp, const int64_t *n_micro, int n_ranks) {
    double total = 0;
    int64_t most = largest(n_micro, n_ranks);
    for (int r = 0; r < n_ranks; r++)
        total += (double)(n_micro[r] == 0 && ddp->opts.join == LS_JOIN_WORLD ? most : n_micro[r]);
    return total;
}

ls_status lsi_ddp_agree_on_data(ls_ddp *ddp, int64_t n_micro) {
    int64_t all[LSI_MAX_RANKS];
    int n_ranks = ls_group_world_size(ddp->group);
    ddp->n_live = n_ranks;
    ddp->has_data = true;
    ddp->n_micro_total = 0;
    if (ddp->opts.join == LS_JOIN_NONE) return LS_OK;
    LSI_TRY(lsi_context(ls_all_gather(ddp->group, &n_micro, all, 1, LS_DTYPE_I64, NULL),
                        "ls_ddp_begin_step: which ranks have data"));
    for (int r = 0; r < n_ranks; r++) ddp->n_live -= all[r] == 0;
    if (ddp->opts.join == LS_JOIN_STOP && ddp->n_live < n_ranks) ddp->n_live = 0;
    ddp->has_data = n_micro != 0;
    if (n_micro != LS_MICRO_BATCHES_BY_SCOPE) ddp->n_micro_total = total_micro(ddp, all, n_ranks);
    return LS_OK;
}

/* ---- the factor ---- */

static double mean_scale(const ls_ddp *ddp) {
    if (ddp->n_micro_total > 0) return 1.0 / ddp->n_micro_total;
    return 1.0 / ((double)ls_group_world_size(ddp->group) * (double)ddp->next_micro);
}

static double ranks_scale(const ls_ddp *ddp) {
    bool by_live = ddp->opts.join == LS_JOIN_LIVE;
    return 1.0 / (double)(by_live ? ddp->n_live : ls_group_world_size(ddp->group));
}

ls_status lsi_ddp_begin_average(ls_ddp *ddp) {
    ddp->scale = ddp->given_scale;
    if (ddp->scale != 0) return LS_OK;
    switch ((ls_average)ddp->opts.average) {
    case LS_AVERAGE_MEAN: ddp->scale = mean_scale(ddp); return LS_OK;
    case LS_AVERAGE_RANKS: ddp->scale = ranks_scale(ddp); return LS_OK;
    case LS_AVERAGE_SUM: ddp->scale = 1.0; return LS_OK;
    case LS_AVERAGE_MEANS:
        if (ddp->weight > 0) ddp->scale = ranks_scale(ddp) / ddp->weight;
        return LS_OK;
    case LS_AVERAGE_WEIGHTS: break;
    }
    ddp->words->mine = ddp->weight;
    return lsi_context(ls_all_reduce(ddp->group, &ddp->words->mine, &ddp->words->total, 1,
                                     LS_DTYPE_F64, LS_OP_SUM, 1.0, &ddp->weight_work),
                       "ddp: weights");
}

static ls_status take_weights(ls_ddp *ddp) {
    ls_work *work = ddp->weight_work;
    ddp->weight_work = NULL;
    LSI_TRY(lsi_context(ls_work_wait(work, -1), "ddp: weights"));
    ddp->scale = ddp->words->total > 0 ? 1.0 / ddp->words->total : 0;
    return LS_OK;
}

ls_status lsi_ddp_know_scale(ls_ddp *ddp, bool wait, bool *is_known) {
    int is_done = 0;
    *is_known = true;
    if (!ddp->weight_work) return LS_OK;
    if (!wait) {
        LSI_TRY(lsi_context(ls_work_test(ddp->weight_work, &is_done), "ddp: weights"));
        if (!is_done) {
            *is_known = false;
            return LS_OK;
        }
    }
    return take_weights(ddp);
}
