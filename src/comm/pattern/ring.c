/* Ring: every rank sends to the next one and receives from the one before, one part at a time.
 *
 * Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 69 (2009). Broadcast: the pipelined chain, which is older.
 * Restrictions: none on n. All-reduce and reduce-scatter keep the order for n <= 2 only: a part is
 * combined rank by rank round the ring, from p + 1 to p. Already for n = 3 part 0 is (1 + 2) + 0.
 *
 *   4 ranks, reduce-scatter: which part goes over each link
 *               0 -> 1   1 -> 2   2 -> 3   3 -> 0
 *     step 0      3        0        1        2
 *     step 1      2        3        0        1
 *     step 2      1        2        3        0      now part p is complete on rank p
 *   all-gather: step 0 sends the own part, every further one what has just come.
 *   broadcast from 0: part k goes over the link from d to d + 1 in step k + d.
 *
 * Steps: all-reduce 2 (n - 1), reduce-scatter and all-gather n - 1, broadcast n - 2 + K with
 * K = 8 (n - 2) parts (1 for n = 2).
 * Bytes sent per rank: all-reduce 2 S (n - 1) / n, the least possible; reduce-scatter, all-gather
 * S (n - 1) / n; broadcast S.
 * Scratch: one part for what arrives.
 * Cost, exact for every n, power of two or not:
 *   all-reduce      2 (n - 1) alpha + 2 (n - 1) / n S beta + (n - 1) / n S gamma
 *   reduce-scatter    (n - 1) alpha +   (n - 1) / n S beta + (n - 1) / n S gamma
 *   all-gather        (n - 1) alpha +   (n - 1) / n S beta
 *   broadcast       9 (n - 2) alpha + 9 / 8 S beta           (n = 2: alpha + S beta)
 * Chosen for large buffers, above all when n is no power of two. Not for small ones (n messages one
 * after the other) nor where results must have the bits of the default order. */
#include "comm/pattern/pattern.h"

enum { PARTS_PER_HOP = 8 }; /* broadcast: filling the chain takes 1/8 of the time of the bytes */

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && (c->kind == LSI_CALL_ALL_REDUCE || c->kind == LSI_CALL_REDUCE_SCATTER ||
                         c->kind == LSI_CALL_ALL_GATHER || c->kind == LSI_CALL_BROADCAST);
}

static bool keeps_order(const lsi_pattern_case *c) {
    return c->n <= 2 || c->kind == LSI_CALL_ALL_GATHER || c->kind == LSI_CALL_BROADCAST;
}

static int n_parts(const lsi_pattern_case *c) {
    if (c->kind != LSI_CALL_BROADCAST) return c->n;
    return c->n <= 2 ? 1 : PARTS_PER_HOP * (c->n - 2);
}

/* i is above -2 n everywhere. */
static int wrap(int i, int n) {
    return (i + 2 * n) % n;
}

static int n_steps(const lsi_pattern_case *c, int rank) {
    int n = c->n;
    if (n == 1) return 0;
    if (c->kind == LSI_CALL_ALL_REDUCE) return 2 * (n - 1);
    if (c->kind != LSI_CALL_BROADCAST) return n - 1;
    int distance = wrap(rank - c->root, n);
    bool passes_on = distance > 0 && distance < n - 1;
    return n_parts(c) + passes_on;
}

/* Sends part i to the next rank, receives part i - 1 from the one before. */
static lsi_step turn(int n, int rank, int i, lsi_arrival_use use) {
    return lsi_step_both(wrap(rank + 1, n), (lsi_parts){wrap(i, n), 1}, wrap(rank - 1, n),
                         (lsi_parts){wrap(i - 1, n), 1}, use);
}

/* Part p sets out from rank p + 1 and ends, complete, on rank p. */
static lsi_step reducing_turn(int n, int rank, int step) {
    return turn(n, rank, rank - 1 - step, rank == 0 ? LSI_COMBINE_RIGHT : LSI_COMBINE_LEFT);
}

static lsi_step gathering_turn(int n, int rank, int step) {
    return turn(n, rank, rank - step, LSI_REPLACE);
}

static lsi_step chain_step(const lsi_pattern_case *c, int rank, int step) {
    int n = c->n, last = n_parts(c) - 1, distance = wrap(rank - c->root, n);
    int part_sent = distance == 0 ? step : step - 1;
    bool sends = distance < n - 1 && part_sent >= 0;
    bool receives = distance > 0 && step <= last;
    return lsi_step_both(wrap(rank + 1, n), (lsi_parts){sends ? part_sent : 0, sends},
                         wrap(rank - 1, n), (lsi_parts){receives ? step : 0, receives},
                         LSI_REPLACE);
}

static lsi_step step(const lsi_pattern_case *c, int rank, int step) {
    int n = c->n;
    switch (c->kind) {
    case LSI_CALL_BROADCAST: return chain_step(c, rank, step);
    case LSI_CALL_ALL_GATHER: return gathering_turn(n, rank, step);
    default:
        return step < n - 1 ? reducing_turn(n, rank, step)
                            : gathering_turn(n, rank, step - (n - 1));
    }
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    if (c->n == 1) return (lsi_pattern_cost){0};
    double turns = c->n - 1, share = turns / c->n;
    switch (c->kind) {
    case LSI_CALL_BROADCAST: {
        double messages = c->n - 2 + n_parts(c);
        return (lsi_pattern_cost){.messages = messages, .bytes = messages / n_parts(c)};
    }
    case LSI_CALL_ALL_GATHER: return (lsi_pattern_cost){.messages = turns, .bytes = share};
    case LSI_CALL_REDUCE_SCATTER: return (lsi_pattern_cost){turns, share, share};
    default: return (lsi_pattern_cost){2 * turns, 2 * share, share};
    }
}

const lsi_pattern lsi_pattern_ring = {.name = "ring",
                                      .supports = supports,
                                      .keeps_order = keeps_order,
                                      .n_parts = n_parts,
                                      .n_steps = n_steps,
                                      .step = step,
                                      .cost = cost};
