/* Workers with different amounts of data.
 *
 * Each worker has samples of the line y = 2 x - 1, more the higher its rank, and goes through them
 * once in batches of 8; its last batch is smaller. Without join a worker that ends early would
 * leave the others waiting for its gradients. With it, every step begins by asking who still has
 * data; those who have none go on without a backward pass and make the same updates, until nobody
 * has any.
 *
 * A gradient is a sum over samples here, and LS_AVERAGE_WEIGHTS divides by the number of samples of
 * all workers: each sample counts the same, however many share its batch. */
#include <stdint.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { BATCH_SIZE = 8 };
static const float LEARNING_RATE = 0.5f;
static float line[2]; /* slope, value at 0 */
static ls_param params[] = {
    {.name = "line", .count = 2, .dtype = LS_DTYPE_F32, .data = line, .n_dims = 1, .shape = {2}},
};

#define TRY(call)                                                                                  \
    for (ls_status status_ = (call); status_ != LS_OK;) return status_

static int n_samples_of(int rank) {
    return 501 + 300 * rank;
}

/* Any rule that spreads samples over -1 … 1, different ones for each rank. */
static float input_of(int rank, int sample) {
    return (float)((sample * 37 + rank * 11) % 101) / 50.0f - 1.0f;
}

static ls_status train_batch(ls_ddp *ddp, int rank, int first, int end) {
    TRY(ls_ddp_weigh(ddp, end - first));
    TRY(ls_ddp_begin_backward(ddp));
    float *grad = params[0].grad;
    grad[0] = grad[1] = 0;
    for (int s = first; s < end; s++) {
        float x = input_of(rank, s);
        float error = line[0] * x + line[1] - (2.0f * x - 1.0f);
        grad[0] += error * x;
        grad[1] += error;
    }
    TRY(ls_ddp_grad_ready(ddp, 0));
    return ls_ddp_end_backward(ddp);
}

static ls_status train(ls_ddp *ddp, int rank, int *n_steps) {
    int n_samples = n_samples_of(rank);
    for (int first = 0;; first += BATCH_SIZE) {
        int end = first + BATCH_SIZE < n_samples ? first + BATCH_SIZE : n_samples;
        TRY(ls_ddp_begin_step(ddp, first < end, 0)); /* 1 micro-batch, or 0: out of data */
        if (ls_ddp_n_live(ddp) == 0) return LS_OK;
        if (first < end) TRY(train_batch(ddp, rank, first, end));
        TRY(ls_ddp_finish_step(ddp));
        const float *grad = params[0].grad;
        for (int i = 0; i < 2; i++) line[i] -= LEARNING_RATE * grad[i];
        ++*n_steps;
    }
}

static ls_status run(ls_group *group) {
    int rank = ls_group_rank(group), n_steps = 0;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.join = LS_JOIN_LIVE;
    opts.average = LS_AVERAGE_WEIGHTS;
    ls_ddp *ddp = NULL;
    TRY(ls_ddp_create(group, params, 1, &opts, &ddp));
    ls_status status = train(ddp, rank, &n_steps);
    if (status == LS_OK)
        printf("rank %d of %d: %d samples, %d steps, slope %.9g, value at 0 %.9g\n", rank,
               ls_group_world_size(group), n_samples_of(rank), n_steps, line[0], line[1]);
    ls_ddp_destroy(ddp);
    return status;
}

int main(void) {
    ls_group *group = NULL;
    ls_status status = ls_group_create(10000, &group);
    if (status == LS_OK) status = run(group);
    if (status != LS_OK) fprintf(stderr, "uneven: %s\n", ls_last_message());
    ls_group_destroy(group);
    return status == LS_OK ? 0 : 1;
}
