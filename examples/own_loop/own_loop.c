/* A training loop of one's own, made data parallel, with any sharding.
 *
 * A perceptron of three layers learns y = sin(x). Forward and backward are this program's; Lockstep
 * is told where the parameters are, which layer uses which, and when a gradient is ready. What is
 * sharded over the workers is a row of `strategies`: the loop is the same for all of them, and so
 * are the bits of what it learns. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { WIDTH = 24, N_LAYERS = 3, BATCH = 24, N_STEPS = 400, LARGEST = WIDTH * (WIDTH + 1) };

/* A layer has a matrix, [outputs][inputs + 1]; the last column is the bias, whose input is 1. */
static const int width[N_LAYERS + 1] = {1, WIDTH, WIDTH, 1};
static float initial[N_LAYERS][LARGEST];
static ls_param params[N_LAYERS] = {
    {.name = "w0", .count = WIDTH * 2, .dtype = LS_DTYPE_F32, .data = initial[0]},
    {.name = "w1", .count = LARGEST, .dtype = LS_DTYPE_F32, .data = initial[1]},
    {.name = "w2", .count = WIDTH + 1, .dtype = LS_DTYPE_F32, .data = initial[2]},
};
static const ls_unit_use uses[] = {{.unit = 0, .param = 0},
                                   {.unit = 1, .param = 1},
                                   {.unit = 2, .param = 2}}; /* units are layers */

/* zero3: one copy of the model for all workers of a machine; fsdp: each gathers its layers. */
enum { SIZE = sizeof(ls_ddp_opts) };
static const struct strategy {
    const char *name;
    ls_ddp_opts opts;
} strategies[] = {
    {"ddp", {SIZE, .strategy = LS_STRATEGY_DDP}},
    {"zero1", {SIZE, .strategy = LS_STRATEGY_ZERO1}},
    {"zero2", {SIZE, .strategy = LS_STRATEGY_ZERO2}},
    {"zero3", {SIZE, .strategy = LS_STRATEGY_ZERO3}},
    {"fsdp",
     {SIZE, .strategy = LS_STRATEGY_ZERO3, .replicas = LS_REPLICAS_PRIVATE, .uses = uses,
      .n_uses = N_LAYERS}},
};

#define TRY(call)                                                                                  \
    for (ls_status status_ = (call); status_ != LS_OK;) return status_

/* Of each channel and sample: y[0] is the input, y[l + 1] what layer l makes of y[l], d[l] the
 * derivative of the loss with respect to y[l] before tanh. */
static float y[N_LAYERS + 1][WIDTH + 1][BATCH], d[N_LAYERS + 1][WIDTH][BATCH];

static void forward_layer(int l, int n) {
    const float *w = params[l].data;
    for (int s = 0; s < n; s++) {
        y[l][width[l]][s] = 1;
        for (int o = 0; o < width[l + 1]; o++) {
            float sum = 0;
            for (int i = 0; i <= width[l]; i++) sum += w[o * (width[l] + 1) + i] * y[l][i][s];
            y[l + 1][o][s] = l == N_LAYERS - 1 ? sum : tanhf(sum);
        }
    }
}

/* By halves, as sums over workers are: 1, 2, 4 and 8 workers get the same bits. */
static float total(const float *a, int n) {
    if (n < 2) return n == 0 ? 0 : *a;
    return total(a, n / 2) + total(a + n / 2, n - n / 2);
}

static void backward_layer(int l, int n) {
    const float *w = params[l].data;
    float *dw = params[l].grad;
    for (int o = 0; o < width[l + 1]; o++)
        for (int i = 0; i <= width[l]; i++) {
            float products[BATCH];
            for (int s = 0; s < n; s++) products[s] = d[l + 1][o][s] * y[l][i][s];
            *dw++ = total(products, n);
        }
    for (int i = 0; i < width[l]; i++)
        for (int s = 0; s < n; s++) {
            float sum = 0;
            for (int o = 0; o < width[l + 1]; o++)
                sum += w[o * (width[l] + 1) + i] * d[l + 1][o][s];
            d[l][i][s] = sum * (1 - y[l][i][s] * y[l][i][s]);
        }
}

/* ---- the loop ---- */

static ls_status forward(ls_ddp *ddp, int n) {
    for (int l = 0; l < N_LAYERS; l++) {
        TRY(ls_ddp_before_forward(ddp, l)); /* params[l].data is there … */
        forward_layer(l, n);
        TRY(ls_ddp_after_forward(ddp, l)); /* … and may be gone */
    }
    return LS_OK;
}

static ls_status backward(ls_ddp *ddp, int n) {
    TRY(ls_ddp_begin_backward(ddp));
    for (int l = N_LAYERS - 1; l >= 0; l--) {
        TRY(ls_ddp_before_backward(ddp, l));
        TRY(ls_ddp_grad_needed(ddp, l)); /* params[l].grad is there, to be overwritten */
        backward_layer(l, n);
        TRY(ls_ddp_grad_ready(ddp, l));
        TRY(ls_ddp_after_backward(ddp, l)); /* it travels while the next layer is computed */
    }
    return ls_ddp_end_backward(ddp);
}

/* This worker has samples [first, first + n) of the step's batch, its only micro-batch. */
static ls_status train_step(ls_ddp *ddp, int64_t step, int first, int n) {
    double lr = 0.01 * (1 - (double)step / N_STEPS), norm;
    ls_adamw_opts adamw = {
        .lr = lr, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.01};
    TRY(ls_ddp_begin_step(ddp, 1, 1.0 / BATCH));
    for (int s = 0; s < n; s++) /* any rule for inputs will do that all workers share */
        y[0][0][s] = (float)((step * BATCH + first + s) * 37 % 101) / 101 * 6 - 3;
    TRY(forward(ddp, n));
    for (int s = 0; s < n; s++) d[N_LAYERS][0][s] = y[N_LAYERS][0][s] - sinf(y[0][0][s]);
    TRY(backward(ddp, n));
    TRY(ls_ddp_finish_step(ddp)); /* gradients are means over the batch */
    TRY(ls_ddp_grad_norm(ddp, &norm));
    adamw.grad_scale = ls_clip_factor(norm, 1.0);
    return ls_ddp_update(ddp, &adamw);
}

static ls_status report(ls_ddp *ddp, int rank, int n_ranks) {
    float values[LARGEST], loss = 0;
    uint32_t hash = 2166136261u; /* FNV-1a of the weights */
    for (int s = 0; s < BATCH; s++) y[0][0][s] = (float)s / BATCH * 6 - 3;
    TRY(forward(ddp, BATCH));
    for (int s = 0; s < BATCH; s++) loss += powf(y[N_LAYERS][0][s] - sinf(y[0][0][s]), 2) / BATCH;
    for (int l = 0; l < N_LAYERS; l++) {
        TRY(ls_ddp_get_values(ddp, l, values)); /* whole, whatever is sharded */
        for (size_t k = 0; k < (size_t)params[l].count * sizeof *values; k++)
            hash = (hash ^ ((unsigned char *)values)[k]) * 16777619u;
    }
    printf("rank %d of %d: loss %.9g, weights %08x\n", rank, n_ranks, (double)loss, hash);
    return LS_OK;
}

static ls_status run(ls_group *group, const ls_ddp_opts *opts) {
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    int first = BATCH * rank / n_ranks, end = BATCH * (rank + 1) / n_ranks;
    for (int l = 0; l < N_LAYERS; l++) /* rank 0's values will be everybody's */
        for (int k = 0; k < params[l].count; k++)
            initial[l][k] = 0.4f * sinf((float)(k * k + l + rank));
    ls_ddp *ddp = NULL;
    TRY(ls_ddp_create(group, params, N_LAYERS, opts, &ddp));
    ls_status status = LS_OK;
    for (int64_t step = 0; step < N_STEPS && status == LS_OK; step++)
        status = train_step(ddp, step, first, end - first);
    if (status == LS_OK) status = report(ddp, rank, n_ranks);
    ls_ddp_destroy(ddp);
    return status;
}

int main(int argc, char **argv) {
    const struct strategy *chosen = strategies, *end = strategies + 5;
    while (chosen < end && strcmp(argc > 1 ? argv[1] : "ddp", chosen->name) != 0) chosen++;
    if (chosen == end) return fprintf(stderr, "own_loop [ddp|zero1|zero2|zero3|fsdp]\n"), 2;
    ls_group *group = NULL;
    ls_status status = ls_group_create(10000, &group);
    if (status == LS_OK) status = run(group, &chosen->opts);
    if (status != LS_OK) fprintf(stderr, "own_loop: %s\n", ls_last_message());
    ls_group_destroy(group);
    return status == LS_OK ? 0 : 1;
}
