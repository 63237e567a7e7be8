/* A communication hook of one's own: majority vote (Bernstein et al., "signSGD", ICML 2018).
 * Workers exchange signs of gradients, a byte an element; each element goes the way that most want.
 * Worker r pulls weight i towards r^2 + i: the vote ends at the median of these, not at the mean.
 */
#include <stdint.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { N_WEIGHTS = 100, N_PARAMS = 1, STEPS = 2000 };
static float weights[N_WEIGHTS];
static ls_param params[N_PARAMS] = {
    {.name = "weights", .count = N_WEIGHTS, .dtype = LS_DTYPE_F32, .data = weights},
};

#define TRY(call)                                                                                  \
    for (ls_status status_ = (call); status_ != LS_OK;) return status_

static ls_status prepare(void *context, ls_group *group, const ls_param *all, int n_params,
                         const ls_bucket *buckets, int n_buckets) {
    void **wires = context; /* of buckets; in shared memory, so that nothing is copied */
    (void)all, (void)n_params;
    for (int b = 0; b < n_buckets; b++) {
        ls_group_free_shared(group, wires[b]);
        TRY(ls_group_alloc_shared(group, (size_t)buckets[b].count, &wires[b]));
    }
    return LS_OK;
}

/* Stage 0 adds signs over ranks (a byte holds up to 127 of them), stage 1 takes the sum's sign. */
static ls_status vote(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                      ls_work **work) {
    int8_t *wire = ((void **)context)[bucket->index];
    float *grad = bucket->grad;
    if (stage == 0) {
        for (int64_t i = 0; i < bucket->count; i++) wire[i] = (grad[i] > 0) - (grad[i] < 0);
        return ls_all_reduce(group, wire, wire, bucket->count, LS_DTYPE_I8, LS_OP_SUM, 1, work);
    }
    for (int64_t i = 0; i < bucket->count; i++) grad[i] = (float)((wire[i] > 0) - (wire[i] < 0));
    return LS_OK;
}

static ls_status train(ls_ddp *ddp, int rank) {
    for (int step = 0; step < STEPS; step++) {
        TRY(ls_ddp_begin_step(ddp, 1, 0));
        TRY(ls_ddp_begin_backward(ddp));
        float *grad = params[0].grad;
        for (int i = 0; i < N_WEIGHTS; i++) grad[i] = weights[i] - (float)(rank * rank + i);
        TRY(ls_ddp_grad_ready(ddp, 0));
        TRY(ls_ddp_end_backward(ddp));
        TRY(ls_ddp_finish_step(ddp));
        for (int i = 0; i < N_WEIGHTS; i++) weights[i] -= grad[i] / 8;
    }
    return LS_OK;
}

static ls_status run(ls_group *group) {
    void *wires[N_PARAMS] = {NULL}; /* there are no more buckets than parameters */
    const ls_comm_hook hook = {.name = "vote", .context = wires, .prepare = prepare, .run = vote};
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.hook = &hook;
    ls_ddp *ddp = NULL;
    TRY(ls_ddp_create(group, params, N_PARAMS, &opts, &ddp));
    ls_status status = train(ddp, rank);
    if (status == LS_OK)
        printf("rank %d of %d: weights %g to %g\n", rank, n, weights[0], weights[N_WEIGHTS - 1]);
    ls_ddp_destroy(ddp);
    return status;
}

int main(void) {
    ls_group *group = NULL;
    ls_status status = ls_group_create(10000, &group);
    if (status == LS_OK) status = run(group);
    if (status != LS_OK) fprintf(stderr, "own_hook: %s\n", ls_last_message());
    ls_group_destroy(group); /* and the wires */
    return status == LS_OK ? 0 : 1;
}
