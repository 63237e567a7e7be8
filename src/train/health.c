/* What becomes of a step with a loss or a gradient that is not finite. All ranks have the same
 * losses and the same averaged gradients, so they come to the same verdict without asking.
 *
 * Nothing is looked for in a step that is well: the norm, which clipping needs anyway, is finite
 * then. When it is not, and the run is to end, the step is made a second time, which gives the same
 * numbers, and the ddp looks at each rank's own gradients before they are added: it names rank,
 * bucket and parameter. */
#include <math.h>

#include "train/worker.h"

/* The parameter to blame when the norm of the averaged gradients is not finite. Of sharded
 * gradients no rank has all. */
static const char *find_parameter(const lsi_worker *w) {
    const char *name = w->plan->strategy == LS_STRATEGY_DDP ? "?" : "in some shard";
    if (w->plan->strategy != LS_STRATEGY_DDP) return name;
    for (int i = w->model->n_params - 1; i >= 0; i--)
        if (w->model->params[i].grad &&
            !isfinite(ls_sum_squares(w->model->params[i].grad, w->model->params[i].count)))
            name = w->model->params[i].name;
    return name;
}

static ls_status refuse_loss(const lsi_worker *w, int64_t step, const char *what) {
    return lsi_fail(LS_ERR_NUMERIC,
                    "step %lld: %s, not a finite number; lower --lr (now %g), use a longer "
                    "--warmup-steps or a smaller --clip-norm",
                    (long long)step + 1, what, w->config->lr);
}

static ls_status refuse_gradient(lsi_worker *w, int64_t step, double norm) {
    const char *name = find_parameter(w);
    LSI_TRY(ls_ddp_set_nonfinite(w->ddp, LS_NONFINITE_STOP));
    LSI_TRY(lsi_worker_compute_gradients(w, step));
    return lsi_fail(LS_ERR_NUMERIC,
                    "step %lld: the norm of the gradient is %g, though the gradients of every rank "
                    "are finite; the first parameter whose average is not is %s; lower --lr%s",
                    (long long)step + 1, norm, name, w->hook ? " or do without --comm-hook" : "");
}

static ls_status skip(lsi_worker *w, int64_t step, const char *what, double norm) {
    w->n_skipped++;
    if (++w->n_skipped_in_a_row > w->config->max_skips)
        return lsi_fail(
            LS_ERR_NUMERIC,
            "step %lld: %lld steps in a row were left out (--max-skips), the last one "
            "because %s%s; lower --lr",
            (long long)step + 1, (long long)w->n_skipped_in_a_row,
            what ? what : "of a gradient that is not finite: ", what ? "" : find_parameter(w));
    if (what)
        lsi_progress_say(w->progress, "step %lld left out: %s", (long long)step + 1, what);
    else
        lsi_progress_say(w->progress, "step %lld left out: the norm of the gradient is %g, %s",
                         (long long)step + 1, norm, find_parameter(w));
    return LS_OK;
}

/* The fp16 hook's factor follows what came of it. Returns whether an overflow is its doing. */
static bool adapt_scale(lsi_worker *w, bool is_finite) {
    if (w->plan->hook != LS_HOOK_FP16 || w->plan->loss_scale > 0) return false;
    bool could_shrink = w->scaler.scale > w->scaler.min_scale;
    (void)ls_loss_scaler_update(&w->scaler, !is_finite);
    w->wire_factor = w->scaler.scale;
    return !is_finite && could_shrink;
}

ls_status lsi_worker_judge(lsi_worker *w, int64_t step, const char *what, double norm,
                           bool *is_skipped) {
    *is_skipped = false;
    bool is_finite = isfinite(norm) && !what;
    bool by_scale = !what && adapt_scale(w, is_finite);
    if (is_finite) {
        w->n_skipped_in_a_row = 0;
        return LS_OK;
    }
    *is_skipped = true;
    if (w->plan->skips || by_scale) return skip(w, step, what, norm);
    return what ? refuse_loss(w, step, what) : refuse_gradient(w, step, norm);
}
