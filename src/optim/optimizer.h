/* An AdamW optimizer for a list of parameters: owns the moments, counts the steps and the updates
 * of each parameter.
 *
 * Moments are one flat block each, parameters in order, each starting at a 64-byte border; frozen
 * parameters have none. Weights and gradients stay where the ls_param says at the time of the
 * step, so a strategy may move them between steps. One thread at a time per object; local. */
#ifndef LSI_OPTIM_OPTIMIZER_H
#define LSI_OPTIM_OPTIMIZER_H

#include <stdbool.h>

#include <lockstep/optim.h>
#include <lockstep/param.h>

#include "base/message.h"

typedef struct lsi_optimizer lsi_optimizer;

typedef struct lsi_optimizer_opts {
    double beta1, beta2; /* [0, 1) */
    double epsilon;      /* > 0 */
    double weight_decay; /* >= 0; parameters with LS_PARAM_NO_DECAY get 0 */
    /* lower_halves[i]: of parameter i if its type is BF16 (ls_bf16_split). Borrowed, list and
     * values; NULL if all parameters are F32. */
    uint16_t *const *lower_halves;
    /* A parameter whose gradient is NULL is one that nobody used: the step leaves it, its moments
     * and its count of updates alone, decay included. Otherwise such a parameter is an error. */
    bool skips_unused;
} lsi_optimizer_opts;

/* Borrows params (and what they point to) until destroy. LS_ERR_ARGUMENT names every bad field.
 * Moments start at zero. */
LS_CHECKED ls_status lsi_optimizer_create(const ls_param *params, int n_params,
                                          const lsi_optimizer_opts *opts,
                                          lsi_optimizer **optimizer);
void lsi_optimizer_destroy(lsi_optimizer *optimizer);
/* One update of all parameters that are not frozen; gradients are multiplied by grad_scale first.
 * A parameter without data or (see skips_unused) gradient is LS_ERR_STATE, an lr or grad_scale that
 * is not finite LS_ERR_NUMERIC; both are found before anything is changed. */
LS_CHECKED ls_status lsi_optimizer_step(lsi_optimizer *optimizer, double lr, double grad_scale);
/* Root of the sum over parameters, in order, of ls_sum_squares(grad); frozen parameters and those
 * without a gradient are left out. */
double lsi_optimizer_global_norm(const lsi_optimizer *optimizer);

/* ---- for checkpoints ---- */

/* Steps done so far. Setting them makes them the updates of every parameter too. */
int64_t lsi_optimizer_n_steps(const lsi_optimizer *optimizer);
void lsi_optimizer_set_n_steps(lsi_optimizer *optimizer, int64_t n_steps);
/* Updates of parameter i so far, which its bias correction counts by: the steps, less those in
 * which it was unused. */
int64_t lsi_optimizer_n_updates(const lsi_optimizer *optimizer, int i);
void lsi_optimizer_set_n_updates(lsi_optimizer *optimizer, int i, int64_t n_updates);
/* Moments of parameter i, params[i].count elements each, borrowed; both NULL if it is frozen. */
void lsi_optimizer_moments(lsi_optimizer *optimizer, int i, float **first, float **second);

#endif
