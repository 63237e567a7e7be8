/* Error feedback (Seide, Fu, Droppo, Li, Yu: "1-bit stochastic gradient descent", Interspeech
 * 2014): what a step leaves out of a gradient is added to the next step's, so that nothing is lost,
 * only late.
 *
 * The invariant, for each element: over the steps so far, the sum of averages that came out plus
 * the scaled sum over ranks of what is left out is the sum of the true averages, up to rounding. */
#include <math.h>

#include "base/mem.h"
#include "parallel/hook_impl.h"

void lsi_hook_errors_free(lsi_hook_errors *errors) {
    for (int i = 0; i < errors->n_params; i++) lsi_free(errors->of[i].left_out);
    lsi_free(errors->of);
    *errors = (lsi_hook_errors){0};
}

static bool fits(const lsi_hook_errors *errors, const ls_param *params, int n_params) {
    if (!errors->of || errors->n_params != n_params) return false;
    for (int i = 0; i < n_params; i++)
        if (errors->of[i].count != params[i].count) return false;
    return true;
}

ls_status lsi_hook_errors_prepare(lsi_hook_errors *errors, const ls_param *params, int n_params) {
    if (fits(errors, params, n_params)) return LS_OK;
    lsi_hook_errors_free(errors);
    errors->of = lsi_calloc(LSI_MEM_OTHER, (size_t)n_params, sizeof *errors->of);
    LSI_TRY(lsi_check_alloc(errors->of));
    errors->n_params = n_params;
    for (int i = 0; i < n_params; i++) errors->of[i].count = params[i].count;
    return LS_OK;
}

ls_status lsi_hook_errors_keep(lsi_hook_errors *errors, int param) {
    lsi_hook_error *error = &errors->of[param];
    if (error->left_out) return LS_OK;
    error->left_out = lsi_calloc(LSI_MEM_BUCKETS, (size_t)error->count, sizeof(float));
    return lsi_check_alloc(error->left_out);
}

float lsi_hook_error_factor(const lsi_hook_error *error, double scale) {
    float factor = (float)(error->scale / scale);
    return error->scale == scale || !isfinite(factor) ? 1 : factor;
}
