/* A model without layers: parameters of given sizes, and gradients that are a formula of step,
 * micro-batch, parameter and element, so that any sum of them can be computed serially.
 *
 * Its memory is the C library's: counts of the library's blocks stay those of the code tested. */
#ifndef TESTS_PARALLEL_TOY_H
#define TESTS_PARALLEL_TOY_H

#include <stdio.h>
#include <stdlib.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tree.h"

typedef struct toy {
    int n_params;
    ls_param *params;
    char (*names)[16];
    float *data; /* of all parameters, one behind the other */
} toy;

/* A count below 0 is a frozen parameter of -count - 1 elements. Values are those of `rank`. */
static inline void toy_init(toy *t, const int64_t *counts, int n_params, int rank) {
    size_t n = (size_t)n_params, total = 1;
    for (int i = 0; i < n_params; i++)
        total += (size_t)(counts[i] < 0 ? -counts[i] - 1 : counts[i]);
    *t = (toy){n_params, calloc(n + 1, sizeof *t->params), calloc(n + 1, sizeof *t->names),
               calloc(total, sizeof *t->data)};
    float *at = t->data;
    for (int i = 0; i < n_params; i++) {
        int64_t count = counts[i] < 0 ? -counts[i] - 1 : counts[i];
        snprintf(t->names[i], sizeof t->names[i], "p%d", i);
        t->params[i] = (ls_param){.name = t->names[i],
                                  .count = count,
                                  .dtype = LS_DTYPE_F32,
                                  .flags = counts[i] < 0 ? LS_PARAM_FROZEN : 0,
                                  .data = at};
        for (int64_t e = 0; e < count; e++) at[e] = rough_value(rank, i, e);
        at += count;
    }
}

static inline void toy_fini(toy *t) {
    free(t->params);
    free(t->names);
    free(t->data);
}

/* What it is trained with. */
static const ls_adamw_opts toy_adamw = {
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 1};

static inline float toy_gradient(int64_t step, int64_t micro, int param, int64_t e) {
    return rough_value(step * 64 + micro, param, e);
}

/* What a backward pass of a micro-batch leaves in the parameter's gradient. */
static inline void toy_write_gradient(const toy *t, int param, int64_t step, int64_t micro,
                                      int adds) {
    float *grad = t->params[param].grad;
    for (int64_t e = 0; e < t->params[param].count; e++) {
        float value = toy_gradient(step, micro, param, e);
        grad[e] = adds ? grad[e] + value : value;
    }
}

/* A whole backward pass, last parameter first. */
static inline ls_status toy_backward(const toy *t, ls_ddp *ddp, int64_t step, int64_t micro) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = t->n_params - 1; i >= 0; i--) {
        if (t->params[i].flags & LS_PARAM_FROZEN) continue;
        toy_write_gradient(t, i, step, micro, ls_ddp_accumulates(ddp));
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

#endif
