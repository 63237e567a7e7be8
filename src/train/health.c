/* What becomes of a step with a loss or a gradient that is not finite. All ranks have the same
 * losses and the same averaged gradients, so they come to the same verdict without asking.
 *
 * Nothing is looked for in a step that is well: the norm, which clipping needs anyway, is finite
 * then. When it is not, the step is made a second time, which gives the same numbers, and the ddp
 * looks at each rank's own gradients before they are added: it names rank, bucket and parameter.
 * With --update-in-backward there is no norm and no second time: the ddp looks in every step. */
#include <math.h>
#include <stdio.h>

#include "train/worker.h"

static ls_status refuse_loss(const lsi_worker *w, int64_t step, const char *what) {
    return lsi_fail(LS_ERR_NUMERIC,
                    "step %lld: %s, not a finite number; lower --lr (now %g), use a longer "
                    "--warmup-steps or %s",
                    (long long)step + 1, what, w->config->lr,
                    w->config->update_in_backward ? "do without --update-in-backward and clip"
                                                  : "a smaller --clip-norm");
}

/* Makes the step again and looks: "rank 1: the gradient of parameter …". With a hook it may be
 * found in the result only. */
static ls_status find_culprit(lsi_worker *w, int64_t step, char text[256]) {
    LSI_TRY(ls_ddp_set_nonfinite(w->ddp, LS_NONFINITE_SKIP));
    LSI_TRY(lsi_worker_compute_gradients(w, step));
    snprintf(text, 256, "%s",
             ls_ddp_step_is_skipped(w->ddp) ? ls_ddp_skip_reason(w->ddp)
                                            : "the squares of the gradients are too large to add");
    return ls_ddp_set_nonfinite(w->ddp, LS_NONFINITE_IGNORE);
}

static ls_status refuse_gradient(lsi_worker *w, int64_t step, const char *who) {
    return lsi_fail(LS_ERR_NUMERIC, "step %lld: %s; lower --lr%s, or see --on-nonfinite skip",
                    (long long)step + 1, who, w->hook ? ", do without --comm-hook" : "");
}

static ls_status skip(lsi_worker *w, int64_t step, const char *what) {
    w->n_skipped++;
    lsi_progress_say(w->progress, "step %lld left out: %s", (long long)step + 1, what);
    if (++w->n_skipped_in_a_row <= w->config->max_skips) return LS_OK;
    return lsi_fail(LS_ERR_NUMERIC,
                    "step %lld: %lld steps in a row were left out (--max-skips), the last one "
                    "because %s; lower --lr",
                    (long long)step + 1, (long long)w->n_skipped_in_a_row, what);
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
    char who[256] = "";
    bool is_loss = what != NULL;
    if (by_scale)
        snprintf(who, sizeof who, "gradients overflow in float16, their factor becomes %g",
                 w->wire_factor);
    else if (!is_loss)
        LSI_TRY(find_culprit(w, step, who));
    if (!is_loss) what = who;
    if (w->plan->skips || by_scale) return skip(w, step, what);
    return is_loss ? refuse_loss(w, step, what) : refuse_gradient(w, step, what);
}
