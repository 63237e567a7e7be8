/* AdamW: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, with
 * the schedule multiplier folded into lr (as PyTorch's torch.optim.AdamW does).
 *
 *     g = grad_scale * grad
 *     m = beta1 * m + (1 - beta1) * g
 *     v = beta2 * v + (1 - beta2) * g * g
 *     w = (1 - lr * weight_decay) * w - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) +
 * epsilon)
 *
 * Scalars are prepared in double and rounded once to float32; elements are float32 throughout, in
 * one pass over the four arrays (28 bytes an element, so memory bandwidth is the limit). Values in
 * halves (base/dtype.h) are joined and split again in the nearest cache.
 *
 * Invariant: an element's new values are a function of its old values and the options alone.
 * Every operation in the loop is a correctly rounded IEEE one (add, multiply, divide, square root,
 * no fused or approximate form: -ffp-contract=off, no -ffast-math), so vector lanes, loop tails,
 * ranges and threads all give the same bits. */
#include <math.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "optim/threads.h"

/* Elements of one work item: four arrays of 64 KiB, so a range stays in L2 and a model of a few
 * million elements still feeds every thread. */
enum { RANGE_ELEMS = 16384, PIECE_ELEMS = 1024 };

typedef struct adamw_factors {
    float grad_scale;
    float keep1, take1; /* beta1, 1 - beta1 */
    float keep2, take2; /* beta2, 1 - beta2 */
    float decay;        /* 1 - lr * weight_decay */
    float step_size;    /* lr / (1 - beta1^t) */
    float root_scale;   /* 1 / sqrt(1 - beta2^t): sqrt(v / (1 - beta2^t)) = root_scale * sqrt(v) */
    float epsilon;
} adamw_factors;

void ls_bf16_split(const float *values, int64_t count, void *upper, uint16_t *lower) {
    uint16_t *restrict high = upper, *restrict low = lower;
    for (int64_t i = 0; i < count; i++) low[i] = lsi_lower_half(values[i]);
    for (int64_t i = 0; i < count && high; i++) high[i] = lsi_upper_half(values[i]);
}

void ls_bf16_join(const void *upper, const uint16_t *lower, int64_t count, float *values) {
    const uint16_t *restrict high = upper, *restrict low = lower;
    float *restrict wide = values;
    for (int64_t i = 0; i < count; i++) wide[i] = lsi_join_halves(high[i], low[i]);
}

static adamw_factors prepare(const ls_adamw_opts *opts) {
    double step = (double)opts->step;
    double correction1 = 1.0 - pow(opts->beta1, step);
    double correction2 = 1.0 - pow(opts->beta2, step);
    return (adamw_factors){
        .grad_scale = (float)opts->grad_scale,
        .keep1 = (float)opts->beta1,
        .take1 = (float)(1.0 - opts->beta1),
        .keep2 = (float)opts->beta2,
        .take2 = (float)(1.0 - opts->beta2),
        .decay = (float)(1.0 - opts->lr * opts->weight_decay),
        .step_size = (float)(opts->lr / correction1),
        .root_scale = (float)(1.0 / sqrt(correction2)),
        .epsilon = (float)opts->epsilon,
    };
}

/* The arrays of one update never overlap: restrict lets the compiler use whole vectors. */
static void update_range(float *restrict weight, const float *restrict grad, float *restrict first,
                         float *restrict second, int64_t count, adamw_factors f) {
    for (int64_t i = 0; i < count; i++) {
        float g = f.grad_scale * grad[i];
        float m = f.keep1 * first[i] + f.take1 * g;
        float v = f.keep2 * second[i] + f.take2 * (g * g);
        float root = f.root_scale * sqrtf(v) + f.epsilon;
        first[i] = m;
        second[i] = v;
        weight[i] = f.decay * weight[i] - f.step_size * (m / root);
    }
}

/* What is updated: float32 values, or their halves. */
typedef struct weights {
    float *wide;
    uint16_t *upper, *lower;
} weights;

static void update_piece(const weights *w, int64_t at, const float *grad, float *first,
                         float *second, int64_t n, adamw_factors factors) {
    if (w->wide) {
        update_range(w->wide + at, grad + at, first + at, second + at, n, factors);
        return;
    }
    float values[PIECE_ELEMS];
    ls_bf16_join(w->upper + at, w->lower + at, n, values);
    update_range(values, grad + at, first + at, second + at, n, factors);
    ls_bf16_split(values, n, w->upper + at, w->lower + at);
}

static void update(weights w, const float *grad, float *first_moment, float *second_moment,
                   int64_t count, const ls_adamw_opts *opts) {
    adamw_factors factors = prepare(opts);
    int64_t n_ranges = count <= 0 ? 0 : (count - 1) / RANGE_ELEMS + 1;
    LSI_OPTIM_PARALLEL_FOR(n_ranges)
    for (int64_t range = 0; range < n_ranges; range++) {
        int64_t start = range * RANGE_ELEMS;
        int64_t n = count - start < RANGE_ELEMS ? count - start : RANGE_ELEMS;
        for (int64_t at = start; at < start + n; at += PIECE_ELEMS) {
            int64_t m = start + n - at < PIECE_ELEMS ? start + n - at : PIECE_ELEMS;
            update_piece(&w, at, grad, first_moment, second_moment, m, factors);
        }
    }
}

void ls_adamw_update(float *weight, const float *grad, float *first_moment, float *second_moment,
                     int64_t count, const ls_adamw_opts *opts) {
    update((weights){.wide = weight}, grad, first_moment, second_moment, count, opts);
}

void ls_adamw_update_bf16(void *upper, uint16_t *lower, const float *grad, float *first_moment,
                          float *second_moment, int64_t count, const ls_adamw_opts *opts) {
    update((weights){.upper = upper, .lower = lower}, grad, first_moment, second_moment, count,
           opts);
}
