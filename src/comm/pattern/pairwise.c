/* Pairwise: in step k every rank sends to the rank k + 1 above it and receives from the one as far
 * below, so that each pair of ranks meets directly once and nothing is passed on.
 *
 * Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
 * operations in MPICH", IJHPCA 19 (2005): its long-message all-to-all and reduce-scatter.
 * Restrictions: none on n. Reduce-scatter keeps the order for n <= 2 only: contributions come one
 * by one, never combined before.
 *
 *   4 ranks, all-to-all: who sends to whom (the part is that of the receiver)
 *     step 0    0 -> 1   1 -> 2   2 -> 3   3 -> 0
 *     step 1    0 -> 2   1 -> 3   2 -> 0   3 -> 1
 *     step 2    0 -> 3   1 -> 0   2 -> 1   3 -> 2
 *   reduce-scatter: the same messages, the receiver combines. all-gather: each sends its own part.
 *
 * Steps: n - 1.
 * Bytes sent per rank: S (n - 1) / n, the least possible.
 * Scratch: none; reduce-scatter one part for what arrives.
 * Cost, exact for every n, power of two or not: (n - 1) alpha + (n - 1) / n S beta, and for
 * reduce-scatter + (n - 1) / n S gamma.
 * Chosen for all-to-all. For reduce-scatter and all-gather where links between all pairs are alike:
 * a late rank delays only its own parts, not, as in the ring, all that pass through it. Not for
 * small buffers, nor where results must have the bits of the default order. */
#include "comm/pattern/pattern.h"

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && (c->kind == LSI_CALL_ALL_TO_ALL || c->kind == LSI_CALL_REDUCE_SCATTER ||
                         c->kind == LSI_CALL_ALL_GATHER);
}

static bool keeps_order(const lsi_pattern_case *c) {
    return c->n <= 2 || c->kind != LSI_CALL_REDUCE_SCATTER;
}

static int n_parts(const lsi_pattern_case *c) {
    return c->n;
}

static int n_steps(const lsi_pattern_case *c, int rank) {
    (void)rank;
    return c->n - 1;
}

static lsi_step step(const lsi_pattern_case *c, int rank, int step) {
    int to = (rank + step + 1) % c->n, from = (rank + c->n - step - 1) % c->n;
    lsi_parts own = {rank, 1}, of_receiver = {to, 1}, of_sender = {from, 1};
    switch (c->kind) {
    case LSI_CALL_ALL_GATHER: return lsi_step_both(to, own, from, of_sender, LSI_REPLACE);
    case LSI_CALL_ALL_TO_ALL: return lsi_step_both(to, of_receiver, from, of_sender, LSI_REPLACE);
    default:
        return lsi_step_both(to, of_receiver, from, own,
                             from < rank ? LSI_COMBINE_LEFT : LSI_COMBINE_RIGHT);
    }
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    double messages = c->n - 1, share = messages / c->n;
    return (lsi_pattern_cost){messages, share, c->kind == LSI_CALL_REDUCE_SCATTER ? share : 0};
}

const lsi_pattern lsi_pattern_pairwise = {.name = "pairwise",
                                          .supports = supports,
                                          .keeps_order = keeps_order,
                                          .n_parts = n_parts,
                                          .n_steps = n_steps,
                                          .step = step,
                                          .cost = cost};
