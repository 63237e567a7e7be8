/* A training loop of one's own, made data parallel.
 *
 * A perceptron with one hidden layer learns y = sin(x) by plain SGD. Model, gradients and update
 * are this program's; Lockstep is told where the parameters are and when a gradient is ready, and
 * averages the gradients over all workers. A step is 8 micro-batches whatever the number of
 * workers, and `reproducible` adds them in a fixed tree: 1, 2, 4 and 8 workers end with the same
 * bits. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { HIDDEN = 24, MICRO_BATCHES = 8, SAMPLES = 4, STEPS = 3000, W1 = 0, B1, W2, B2, N_PARAMS };
static const float LEARNING_RATE = 0.05f;
static float w1[HIDDEN], b1[HIDDEN], w2[HIDDEN], b2[1];
static ls_param params[N_PARAMS] = {
    {.name = "w1", .count = HIDDEN, .dtype = LS_DTYPE_F32, .data = w1},
    {.name = "b1", .count = HIDDEN, .dtype = LS_DTYPE_F32, .data = b1},
    {.name = "w2", .count = HIDDEN, .dtype = LS_DTYPE_F32, .data = w2},
    {.name = "b2", .count = 1, .dtype = LS_DTYPE_F32, .data = b2},
};

#define TRY(call)                                                                                  \
    for (ls_status status_ = (call); status_ != LS_OK;) return status_

static float predict(float x, float hidden[HIDDEN]) {
    float y = b2[0];
    for (int j = 0; j < HIDDEN; j++) {
        hidden[j] = tanhf(w1[j] * x + b1[j]);
        y += w2[j] * hidden[j];
    }
    return y;
}

/* Input of a sample: any rule will do that all workers share. */
static float input_of(int64_t sample) {
    return (float)(sample * 37 % 101) / 101.0f * 6.0f - 3.0f;
}

static float *gradient_of(const ls_ddp *ddp, int param) {
    float *grad = params[param].grad;
    if (!ls_ddp_accumulates(ddp)) memset(grad, 0, (size_t)params[param].count * sizeof *grad);
    return grad;
}

/* Gradients of half the squared error, output layer first: its all-reduce starts while those of the
 * hidden layer are computed. */
static ls_status train_micro_batch(ls_ddp *ddp, int64_t micro_batch) {
    float x[SAMPLES], hidden[SAMPLES][HIDDEN], error[SAMPLES];
    for (int s = 0; s < SAMPLES; s++) {
        x[s] = input_of(micro_batch * SAMPLES + s);
        error[s] = predict(x[s], hidden[s]) - sinf(x[s]);
    }
    TRY(ls_ddp_begin_backward(ddp));
    float *d_b2 = gradient_of(ddp, B2), *d_w2 = gradient_of(ddp, W2);
    for (int s = 0; s < SAMPLES; s++) {
        d_b2[0] += error[s];
        for (int j = 0; j < HIDDEN; j++) d_w2[j] += error[s] * hidden[s][j];
    }
    TRY(ls_ddp_grad_ready(ddp, B2));
    TRY(ls_ddp_grad_ready(ddp, W2));
    float *d_b1 = gradient_of(ddp, B1), *d_w1 = gradient_of(ddp, W1);
    for (int s = 0; s < SAMPLES; s++)
        for (int j = 0; j < HIDDEN; j++) {
            float d = error[s] * w2[j] * (1 - hidden[s][j] * hidden[s][j]);
            d_b1[j] += d;
            d_w1[j] += d * x[s];
        }
    TRY(ls_ddp_grad_ready(ddp, B1));
    TRY(ls_ddp_grad_ready(ddp, W1));
    return ls_ddp_end_backward(ddp);
}

static ls_status train(ls_ddp *ddp, int rank, int n_ranks) {
    int first = MICRO_BATCHES * rank / n_ranks, end = MICRO_BATCHES * (rank + 1) / n_ranks;
    for (int64_t step = 0; step < STEPS; step++) {
        TRY(ls_ddp_begin_step(ddp, end - first, 1.0 / (MICRO_BATCHES * SAMPLES)));
        for (int m = first; m < end; m++) TRY(train_micro_batch(ddp, step * MICRO_BATCHES + m));
        TRY(ls_ddp_finish_step(ddp));
        for (int p = 0; p < N_PARAMS; p++)
            for (int64_t i = 0; i < params[p].count; i++)
                ((float *)params[p].data)[i] -= LEARNING_RATE * ((float *)params[p].grad)[i];
    }
    return LS_OK;
}

static void report(int rank, int n_ranks) {
    float hidden[HIDDEN];
    double loss = 0;
    for (int s = 0; s < 101; s++) loss += pow(predict(input_of(s), hidden) - sinf(input_of(s)), 2);
    printf("rank %d of %d: loss %.12f, w1[0] %.9g\n", rank, n_ranks, loss / 101, w1[0]);
}

static ls_status run(ls_group *group) {
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    for (int j = 0; j < HIDDEN; j++) { /* rank 0's values will be everybody's */
        w1[j] = 1.0f + (float)rank;
        b1[j] = (float)j * 0.25f - 3.0f;
    }
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.reproducible = 1;
    ls_ddp *ddp = NULL;
    TRY(ls_ddp_create(group, params, N_PARAMS, &opts, &ddp));
    ls_status status = train(ddp, rank, n_ranks);
    if (status == LS_OK) report(rank, n_ranks);
    ls_ddp_destroy(ddp);
    return status;
}

int main(void) {
    ls_group *group = NULL;
    ls_status status = ls_group_create(10000, &group);
    if (status == LS_OK) status = run(group);
    if (status != LS_OK) fprintf(stderr, "own_loop: %s\n", ls_last_message());
    ls_group_destroy(group);
    return status == LS_OK ? 0 : 1;
}
