/* The optimizer of replicas that hold everything: AdamW over whole parameters.
 *
 * Two blocks of moments, each param at offsets[i] (elements, a multiple of 16). A frozen parameter
 * has offset -1. n_steps counts finished steps. n_updates[i] counts those that changed parameter i:
 * its next update is number n_updates[i] + 1, which the bias correction needs, because moments that
 * a step has left alone are no closer to their averages. Of a parameter that is always used it is
 * n_steps. */
#include "optim/optimizer.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/mem.h"

enum { ALIGN_ELEMS = 16 };

struct lsi_optimizer {
    const ls_param *params;
    int n_params;
    lsi_optimizer_opts opts;
    int64_t n_steps;
    int64_t *offsets, *n_updates; /* of each parameter */
    float *first, *second;
};

static ls_status check_opts(const lsi_optimizer_opts *opts) {
    struct {
        bool good;
        const char *name, *range;
        double value;
    } rows[] = {
        {opts->beta1 >= 0.0 && opts->beta1 < 1.0, "beta1", "[0, 1)", opts->beta1},
        {opts->beta2 >= 0.0 && opts->beta2 < 1.0, "beta2", "[0, 1)", opts->beta2},
        {opts->epsilon > 0.0 && isfinite(opts->epsilon), "epsilon", "(0, inf)", opts->epsilon},
        {opts->weight_decay >= 0.0 && isfinite(opts->weight_decay), "weight_decay", "[0, inf)",
         opts->weight_decay},
    };
    char bad[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!rows[i].good && used < sizeof bad)
            used += (size_t)snprintf(bad + used, sizeof bad - used, "%s%s is %g, expected %s",
                                     used ? "; " : "", rows[i].name, rows[i].value, rows[i].range);
    return used ? lsi_fail(LS_ERR_ARGUMENT, "optimizer: %s", bad) : LS_OK;
}

/* Lays the moments out; *n_elems is the length of each block. */
static ls_status place(const ls_param *params, int n_params, uint16_t *const *lower_halves,
                       int64_t *offsets, int64_t *n_elems) {
    *n_elems = 0;
    for (int i = 0; i < n_params; i++) {
        offsets[i] = -1;
        if (params[i].flags & LS_PARAM_FROZEN) continue;
        bool is_narrow = params[i].dtype == LS_DTYPE_BF16;
        if (params[i].dtype != LS_DTYPE_F32 && !is_narrow)
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "optimizer: parameter %s has type %s, expected F32 or BF16",
                            params[i].name, ls_dtype_name(params[i].dtype));
        if (is_narrow && !(lower_halves && lower_halves[i]))
            return lsi_fail(LS_ERR_ARGUMENT,
                            "optimizer: parameter %s is BF16 and has no lower halves",
                            params[i].name);
        int64_t padded;
        if (params[i].count < 0 ||
            __builtin_add_overflow(params[i].count, ALIGN_ELEMS - 1, &padded))
            return lsi_fail(LS_ERR_ARGUMENT, "optimizer: parameter %s has %lld elements",
                            params[i].name, (long long)params[i].count);
        offsets[i] = *n_elems;
        if (__builtin_add_overflow(*n_elems, padded / ALIGN_ELEMS * ALIGN_ELEMS, n_elems))
            return lsi_fail(LS_ERR_ARGUMENT,
                            "optimizer: the parameters up to %s have more than 2^63 elements",
                            params[i].name);
    }
    return LS_OK;
}

static ls_status fill(lsi_optimizer *optimizer) {
    int64_t n_elems;
    optimizer->offsets = lsi_calloc(LSI_MEM_OTHER, (size_t)optimizer->n_params, sizeof(int64_t));
    LSI_TRY(lsi_check_alloc(optimizer->offsets));
    optimizer->n_updates = lsi_calloc(LSI_MEM_OTHER, (size_t)optimizer->n_params, sizeof(int64_t));
    LSI_TRY(lsi_check_alloc(optimizer->n_updates));
    LSI_TRY(place(optimizer->params, optimizer->n_params, optimizer->opts.lower_halves,
                  optimizer->offsets, &n_elems));
    optimizer->first = lsi_calloc(LSI_MEM_OPTIMIZER, (size_t)n_elems, sizeof(float));
    LSI_TRY(lsi_check_alloc(optimizer->first));
    optimizer->second = lsi_calloc(LSI_MEM_OPTIMIZER, (size_t)n_elems, sizeof(float));
    return lsi_check_alloc(optimizer->second);
}

ls_status lsi_optimizer_create(const ls_param *params, int n_params, const lsi_optimizer_opts *opts,
                               lsi_optimizer **optimizer) {
    if (n_params < 0 || (n_params > 0 && !params))
        return lsi_fail(LS_ERR_ARGUMENT, "optimizer: %d parameters at %p", n_params,
                        (const void *)params);
    LSI_TRY(check_opts(opts));
    lsi_optimizer *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->params = params;
    made->n_params = n_params;
    made->opts = *opts;
    ls_status status = fill(made);
    if (status != LS_OK) {
        lsi_optimizer_destroy(made);
        return status;
    }
    *optimizer = made;
    return LS_OK;
}

void lsi_optimizer_destroy(lsi_optimizer *optimizer) {
    if (!optimizer) return;
    lsi_free(optimizer->second);
    lsi_free(optimizer->first);
    lsi_free(optimizer->n_updates);
    lsi_free(optimizer->offsets);
    lsi_free(optimizer);
}

/* Frozen, or unused where that is allowed. */
static bool is_left_alone(const lsi_optimizer *optimizer, int i) {
    return optimizer->offsets[i] < 0 ||
           (optimizer->opts.skips_unused && !optimizer->params[i].grad);
}

static ls_status check_step(const lsi_optimizer *optimizer, double lr, double grad_scale) {
    if (!isfinite(lr) || !isfinite(grad_scale))
        return lsi_fail(LS_ERR_NUMERIC,
                        "optimizer step %lld: lr %g and gradient scale %g must be finite",
                        (long long)optimizer->n_steps + 1, lr, grad_scale);
    for (int i = 0; i < optimizer->n_params; i++) {
        const ls_param *param = &optimizer->params[i];
        if (is_left_alone(optimizer, i) || param->count == 0 || (param->data && param->grad))
            continue;
        return lsi_fail(LS_ERR_STATE, "optimizer step %lld: parameter %s has no %s",
                        (long long)optimizer->n_steps + 1, param->name,
                        param->data ? "gradient; run backward first or mark it LS_PARAM_FROZEN"
                                    : "data");
    }
    return LS_OK;
}

static void update(lsi_optimizer *optimizer, int i, double lr, double grad_scale) {
    const ls_param *param = &optimizer->params[i];
    ls_adamw_opts opts = {
        .lr = lr,
        .beta1 = optimizer->opts.beta1,
        .beta2 = optimizer->opts.beta2,
        .epsilon = optimizer->opts.epsilon,
        .weight_decay = param->flags & LS_PARAM_NO_DECAY ? 0.0 : optimizer->opts.weight_decay,
        .grad_scale = grad_scale,
        .step = ++optimizer->n_updates[i],
    };
    float *first, *second;
    lsi_optimizer_moments(optimizer, i, &first, &second);
    if (param->dtype == LS_DTYPE_BF16)
        ls_adamw_update_bf16(param->data, optimizer->opts.lower_halves[i], param->grad, first,
                             second, param->count, &opts);
    else
        ls_adamw_update(param->data, param->grad, first, second, param->count, &opts);
}

ls_status lsi_optimizer_step(lsi_optimizer *optimizer, double lr, double grad_scale) {
    LSI_TRY(check_step(optimizer, lr, grad_scale));
    optimizer->n_steps++;
    for (int i = 0; i < optimizer->n_params; i++)
        if (!is_left_alone(optimizer, i)) update(optimizer, i, lr, grad_scale);
    return LS_OK;
}

double lsi_optimizer_global_norm(const lsi_optimizer *optimizer) {
    double total = 0.0;
    for (int i = 0; i < optimizer->n_params; i++)
        if (optimizer->offsets[i] >= 0 && optimizer->params[i].grad)
            total += ls_sum_squares(optimizer->params[i].grad, optimizer->params[i].count);
    return sqrt(total);
}

int64_t lsi_optimizer_n_steps(const lsi_optimizer *optimizer) {
    return optimizer->n_steps;
}

void lsi_optimizer_set_n_steps(lsi_optimizer *optimizer, int64_t n_steps) {
    optimizer->n_steps = n_steps;
    for (int i = 0; i < optimizer->n_params; i++) optimizer->n_updates[i] = n_steps;
}

int64_t lsi_optimizer_n_updates(const lsi_optimizer *optimizer, int i) {
    return optimizer->n_updates[i];
}

void lsi_optimizer_set_n_updates(lsi_optimizer *optimizer, int i, int64_t n_updates) {
    optimizer->n_updates[i] = n_updates;
}

void lsi_optimizer_moments(lsi_optimizer *optimizer, int i, float **first, float **second) {
    int64_t offset = optimizer->offsets[i];
    *first = offset < 0 ? NULL : optimizer->first + offset;
    *second = offset < 0 ? NULL : optimizer->second + offset;
}
