/* Stochastic gradient descent with momentum, as torch.optim.SGD has it (without dampening):
 *
 *     g = grad_scale * grad + weight_decay * w
 *     m = momentum * m + g                        without momentum: m = g, and none is kept
 *     w = w - lr * m                              Nesterov: w - lr * (g + momentum * m)
 *
 * Polyak: "Some methods of speeding up the convergence of iteration methods", 1964; Nesterov's form
 * and the factor lr outside of m: Sutskever, Martens, Dahl, Hinton: "On the importance of
 * initialization and momentum in deep learning", ICML 2013.
 *
 * One pass over the three arrays (20 bytes an element), float32 throughout, scalars rounded once.
 *
 * Invariant: as in adamw.c, an element's new values are a function of its old ones and the options
 * alone, by correctly rounded operations, so ranges, threads and vector lanes give the same bits.
 */
#include <stdbool.h>
#include <stddef.h>

#include <lockstep/optim.h>

#include "optim/threads.h"

/* Elements of one work item, see adamw.c. */
enum { RANGE_ELEMS = 16384 };

typedef struct sgd_factors {
    float grad_scale, weight_decay, momentum, lr;
    bool is_nesterov;
} sgd_factors;

static void plain_range(float *restrict weight, const float *restrict grad, int64_t count,
                        sgd_factors f) {
    for (int64_t i = 0; i < count; i++) {
        float g = f.grad_scale * grad[i] + f.weight_decay * weight[i];
        weight[i] = weight[i] - f.lr * g;
    }
}

static void momentum_range(float *restrict weight, const float *restrict grad,
                           float *restrict momentum, int64_t count, sgd_factors f) {
    for (int64_t i = 0; i < count; i++) {
        float g = f.grad_scale * grad[i] + f.weight_decay * weight[i];
        float m = f.momentum * momentum[i] + g;
        momentum[i] = m;
        weight[i] = weight[i] - f.lr * (f.is_nesterov ? g + f.momentum * m : m);
    }
}

void ls_sgd_update(float *weight, const float *grad, float *momentum, int64_t count,
                   const ls_sgd_opts *opts) {
    sgd_factors factors = {
        .grad_scale = (float)opts->grad_scale,
        .weight_decay = (float)opts->weight_decay,
        .momentum = (float)opts->momentum,
        .lr = (float)opts->lr,
        .is_nesterov = opts->nesterov != 0,
    };
    int64_t n_ranges = count <= 0 ? 0 : (count - 1) / RANGE_ELEMS + 1;
    LSI_OPTIM_PARALLEL_FOR(n_ranges)
    for (int64_t range = 0; range < n_ranges; range++) {
        int64_t at = range * RANGE_ELEMS;
        int64_t n = count - at < RANGE_ELEMS ? count - at : RANGE_ELEMS;
        if (momentum)
            momentum_range(weight + at, grad + at, momentum + at, n, factors);
        else
            plain_range(weight + at, grad + at, n, factors);
    }
}
