/* The collectives that `lockstep bench` knows, one row each.
 *
 * Sizes and bandwidths are those of nccl-tests (doc/PERFORMANCE.md). S is the size of the larger of
 * a rank's two buffers, t the time of the slowest rank, n the number of ranks:
 *
 *     algbw = S / t           what a caller gets
 *     busbw = algbw * factor  what a link between ranks carried, so that figures for different n
 * and different collectives can be held against the same hardware
 *
 * The factor is the traffic that each rank's link must carry at least, divided by S. All-reduce: of
 * each of the S bytes, n values must meet, which takes n - 1 transfers, and the result must come
 * back in n - 1 more; spread over n links that is 2 (n - 1) / n. Reduce-scatter and all-gather are
 * one half of that, (n - 1) / n. All-to-all, gather and scatter: all but a rank's own n-th part
 * travels, (n - 1) / n. Broadcast, reduce, send and receive: all S bytes pass a link once, 1.
 *
 * The roof is another bound, of ranks that share memory: no link, but each byte that a rank reads
 * or writes costs. `touched` is what is left per rank, as a multiple of S, when the bytes that must
 * be read and written at all are shared evenly by the n ranks:
 *
 *     all-reduce      reads n S (every input), writes n S (every output)      2
 *     reduce-scatter  reads n S, writes n parts of S / n                      1 + 1/n
 *     reduce          reads n S, writes S                                     1 + 1/n
 *     all-gather      reads n parts of S / n, writes n S                      1 + 1/n
 *       in place      all parts but one of each output are missing: (n-1) S   1/n + (n-1)/n = 1
 *     broadcast       reads S, writes n S                                     1 + 1/n
 *       in place      the root has it                                         1/n + (n-1)/n = 1
 *     gather, scatter read S, write S                                         2/n
 *       in place      the root's own part stays                               2 (n-1) / n^2
 *     all-to-all      reads n S, writes n S                                   2
 *       in place      a rank's own part stays                                 2 (n-1) / n
 *     send + receive  reads S, writes S                                       2 */
#include "cli/bench.h"

/* ---- factors ---- */

static double none(int n) {
    (void)n;
    return 0;
}
static double one(int n) {
    (void)n;
    return 1;
}
static double others_share(int n) {
    return (double)(n - 1) / n;
}
static double twice_others_share(int n) {
    return 2.0 * (n - 1) / n;
}

static double touched_nothing(int n, bool in_place) {
    (void)n;
    (void)in_place;
    return 0;
}
static double touched_twice(int n, bool in_place) {
    (void)n;
    (void)in_place;
    return 2;
}
static double touched_reducing(int n, bool in_place) {
    (void)in_place;
    return 1 + 1.0 / n;
}
static double touched_spreading(int n, bool in_place) {
    return in_place ? 1 : 1 + 1.0 / n;
}
static double touched_by_root(int n, bool in_place) {
    return in_place ? 2.0 * (n - 1) / ((double)n * n) : 2.0 / n;
}
static double touched_exchanging(int n, bool in_place) {
    return in_place ? 2.0 * (n - 1) / n : 2;
}

/* ---- calls ---- */

static ls_status all_reduce(const bench_call *c) {
    return ls_all_reduce(c->group, c->input, c->output, c->count, c->dtype, c->op, c->scale, NULL);
}
static ls_status reduce_scatter(const bench_call *c) {
    return ls_reduce_scatter(c->group, c->input, c->output, c->count, c->dtype, c->op, c->scale,
                             NULL);
}
static ls_status all_gather(const bench_call *c) {
    return ls_all_gather(c->group, c->input, c->output, c->count, c->dtype, NULL);
}
static ls_status broadcast(const bench_call *c) {
    return ls_broadcast(c->group, c->input, c->output, c->count, c->dtype, c->root, NULL);
}
static ls_status reduce(const bench_call *c) {
    return ls_reduce(c->group, c->input, c->output, c->count, c->dtype, c->op, c->scale, c->root,
                     NULL);
}
static ls_status gather(const bench_call *c) {
    return ls_gather(c->group, c->input, c->output, c->count, c->dtype, c->root, NULL);
}
static ls_status scatter(const bench_call *c) {
    return ls_scatter(c->group, c->input, c->output, c->count, c->dtype, c->root, NULL);
}
static ls_status all_to_all(const bench_call *c) {
    return ls_all_to_all(c->group, c->input, c->output, c->count, c->dtype, NULL);
}
/* Each rank sends to the next and receives from the one before; grouped, so nobody waits for a
 * receiver that is itself sending. */
static ls_status send_recv(const bench_call *c) {
    int next = (c->rank + 1) % c->n_ranks, previous = (c->rank + c->n_ranks - 1) % c->n_ranks;
    LSI_TRY(ls_batch_begin(c->group));
    ls_status sent = ls_send(c->group, c->input, c->count, c->dtype, next, NULL);
    ls_status received = ls_recv(c->group, c->output, c->count, c->dtype, previous, NULL);
    LSI_TRY(ls_batch_end(c->group, NULL));
    return sent != LS_OK ? sent : received;
}
static ls_status barrier(const bench_call *c) {
    return ls_barrier(c->group, NULL);
}

double bench_scale(ls_op op, int rank) {
    return op == LS_OP_PREMUL_SUM ? 1 + rank % 2 : 1;
}

const bench_collective bench_collectives[] = {
    {.name = "allreduce",
     .source = BENCH_FROM_COMBINED,
     .reduces = true,
     .has_in_place = true,
     .bus_factor = twice_others_share,
     .touched = touched_twice,
     .call = all_reduce},
    {.name = "reducescatter",
     .source = BENCH_FROM_COMBINED,
     .reduces = true,
     .input_has_parts = true,
     .takes_own_part = true,
     .has_in_place = true,
     .bus_factor = others_share,
     .touched = touched_reducing,
     .call = reduce_scatter},
    {.name = "allgather",
     .source = BENCH_FROM_EACH,
     .output_has_parts = true,
     .has_in_place = true,
     .bus_factor = others_share,
     .touched = touched_spreading,
     .call = all_gather},
    {.name = "broadcast",
     .source = BENCH_FROM_ROOT,
     .has_root = true,
     .has_in_place = true,
     .bus_factor = one,
     .touched = touched_spreading,
     .call = broadcast},
    {.name = "reduce",
     .source = BENCH_FROM_COMBINED,
     .reduces = true,
     .has_root = true,
     .root_has_output = true,
     .has_in_place = true,
     .bus_factor = one,
     .touched = touched_reducing,
     .call = reduce},
    {.name = "gather",
     .source = BENCH_FROM_EACH,
     .has_root = true,
     .root_has_output = true,
     .output_has_parts = true,
     .has_in_place = true,
     .bus_factor = others_share,
     .touched = touched_by_root,
     .call = gather},
    {.name = "scatter",
     .source = BENCH_FROM_ROOT,
     .has_root = true,
     .input_has_parts = true,
     .takes_own_part = true,
     .has_in_place = true,
     .bus_factor = others_share,
     .touched = touched_by_root,
     .call = scatter},
    {.name = "alltoall",
     .source = BENCH_FROM_EACH,
     .input_has_parts = true,
     .output_has_parts = true,
     .takes_own_part = true,
     .has_in_place = true,
     .bus_factor = others_share,
     .touched = touched_exchanging,
     .call = all_to_all},
    {.name = "sendrecv",
     .source = BENCH_FROM_PREVIOUS,
     .only_way = "point-to-point",
     .bus_factor = one,
     .touched = touched_twice,
     .call = send_recv},
    {.name = "barrier",
     .source = BENCH_FROM_NOBODY,
     .bus_factor = none,
     .touched = touched_nothing,
     .call = barrier},
    {0},
};
