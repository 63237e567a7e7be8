/* Binomial tree: blocks of 1, 2, 4 … consecutive ranks are merged, one message for each merge.
 *
 * Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
 * operations in MPICH", IJHPCA 19 (2005). Their tree counts ranks from the root, which changes the
 * order of combination and makes blocks wrap round. Here blocks stay where they are and only the
 * rank that holds a block's data depends on the root: the root in its own blocks, the lowest rank
 * in the others.
 * Restrictions: none on n or root. Keeps the order for all of them: blocks are the nodes of the
 * default tree, and what comes from the upper half is combined on the right wherever it goes.
 *
 *   4 ranks, reduce to 0          reduce to 2
 *     level 0   0 <- 1   2 <- 3     level 0   0 <- 1   2 <- 3
 *     level 1   0 <- 2              level 1   0 -> 2
 *   gather: the same messages, carrying the parts of the sender's block. broadcast and scatter: the
 *   same messages the other way, highest level first. all-reduce: reduce to 0, then broadcast.
 *
 * Steps: L = ceil(log2 n), one a level; all-reduce 2 L. Ranks idle where they hold nothing.
 * Bytes sent per rank: reduce S (all but the root), broadcast up to L S, gather up to m / n S.
 * Scratch: reduce, all-reduce one buffer for what arrives (in pieces, if the channel has them).
 * Cost, exact for every n, power of two or not:
 *   reduce      L alpha + L S beta + L S gamma        broadcast   L alpha + L S beta
 *   all-reduce  2 L alpha + 2 L S beta + L S gamma
 *   gather, scatter  L alpha + (n - 1) / n S beta; at most (2 m - 1) / n S beta when n is no power
 *   of two and the root is not below m, the largest power of two below n
 * Chosen for small buffers, and for reduce, gather and scatter. Not for large broadcasts and
 * all-reduces, where the root sends everything L times. */
#include "comm/pattern/pattern.h"

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && (c->kind == LSI_CALL_ALL_REDUCE || c->kind == LSI_CALL_REDUCE ||
                         c->kind == LSI_CALL_BROADCAST || c->kind == LSI_CALL_GATHER ||
                         c->kind == LSI_CALL_SCATTER);
}

static bool keeps_order(const lsi_pattern_case *c) {
    (void)c;
    return true;
}

static bool has_part_per_rank(const lsi_pattern_case *c) {
    return c->kind == LSI_CALL_GATHER || c->kind == LSI_CALL_SCATTER;
}

static int n_parts(const lsi_pattern_case *c) {
    return has_part_per_rank(c) ? c->n : 1;
}

static int n_steps(const lsi_pattern_case *c, int rank) {
    (void)rank;
    return (c->kind == LSI_CALL_ALL_REDUCE ? 2 : 1) * lsi_log2_ceil(c->n);
}

/* The rank that holds what block [begin, begin + 2^level) has. */
static int holder(const lsi_pattern_case *c, int begin, int level) {
    return c->root >> level == begin >> level ? c->root : begin;
}

static lsi_parts block_parts(const lsi_pattern_case *c, int begin, int level) {
    if (!has_part_per_rank(c)) return (lsi_parts){0, 1};
    int size = 1 << level, rest = c->n - begin;
    return (lsi_parts){begin, size < rest ? size : rest};
}

/* Merges the rank's block of 2^level ranks with the other half of the block above. `up`: towards
 * the root; else the same message the other way. */
static lsi_step merge(const lsi_pattern_case *c, int rank, int level, bool up) {
    int own = rank >> level << level, other = own ^ (1 << level);
    if (other >= c->n || holder(c, own, level) != rank) return lsi_step_idle();
    int peer = holder(c, other, level);
    bool stays_holder = holder(c, rank >> (level + 1) << (level + 1), level + 1) == rank;
    lsi_parts moved = block_parts(c, stays_holder ? other : own, level);
    if (stays_holder != up) return lsi_step_send(peer, moved);
    bool combines = up && c->kind != LSI_CALL_GATHER;
    lsi_arrival_use side = other > own ? LSI_COMBINE_RIGHT : LSI_COMBINE_LEFT;
    return lsi_step_receive(peer, moved, combines ? side : LSI_REPLACE);
}

static lsi_step step(const lsi_pattern_case *c, int rank, int step) {
    int n_levels = lsi_log2_ceil(c->n);
    bool up = c->kind == LSI_CALL_REDUCE || c->kind == LSI_CALL_GATHER ||
              (c->kind == LSI_CALL_ALL_REDUCE && step < n_levels);
    return merge(c, rank, up ? step : n_levels - 1 - step % n_levels, up);
}

/* Parts one after the other until the root has all: at each level the later of the two halves (the
 * other one, of x ranks, has passed x - 1 parts within itself), then the x parts of the other. */
static int gathered_parts(const lsi_pattern_case *c) {
    int path = 0;
    for (int level = 0; level < lsi_log2_ceil(c->n); level++) {
        int other = (c->root >> level << level) ^ (1 << level);
        if (other >= c->n) continue;
        int n_other = block_parts(c, other, level).n;
        path = (path > n_other - 1 ? path : n_other - 1) + n_other;
    }
    return path;
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    double levels = lsi_log2_ceil(c->n);
    switch (c->kind) {
    case LSI_CALL_REDUCE: return (lsi_pattern_cost){levels, levels, levels};
    case LSI_CALL_BROADCAST: return (lsi_pattern_cost){levels, levels, 0};
    case LSI_CALL_ALL_REDUCE: return (lsi_pattern_cost){2 * levels, 2 * levels, levels};
    default: return (lsi_pattern_cost){levels, (double)gathered_parts(c) / c->n, 0};
    }
}

const lsi_pattern lsi_pattern_binomial = {.name = "binomial",
                                          .supports = supports,
                                          .keeps_order = keeps_order,
                                          .n_parts = n_parts,
                                          .n_steps = n_steps,
                                          .step = step,
                                          .cost = cost};
