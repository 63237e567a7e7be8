/* Recursive doubling: in step k everything a rank has so far is exchanged with the rank at distance
 * 2^k.
 *
 * Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
 * operations in MPICH", IJHPCA 19 (2005). All-gather for other n: J. Bruck, C.-T. Ho, S. Kipnis,
 * E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", IEEE TPDS 8 (1997), without its final rotation: parts go to their
 * places at once, and a range that wraps round takes two messages.
 * Restrictions: none on n. Keeps the order for all of them.
 *
 *   4 ranks, all-reduce                            all-gather: parts sent
 *     step 0   0 <-> 1   2 <-> 3   each the whole    0 <-> 1, 2 <-> 3 the own part
 *     step 1   0 <-> 2   1 <-> 3   buffer            0 <-> 2, 1 <-> 3 parts 01 and 23
 *
 * All-reduce for any n: its binary digits cut the ranks into blocks, the largest first; 7 = 4 + 2 +
 * 1 gives 0-3, 4-5, 6. The default tree is block 0 + (block 1 + (block 2 …)). Each block does the
 * doubling. Then the first g ranks of each block, g the smallest digit, pass their sums on from the
 * last block to the first, where they are combined on the right. Blocks 1 and 0 exchange, so that 2
 * g ranks have the result. From them it spreads in binomial trees, through block 0 and through the
 * rest at the same time.
 *
 *   6 ranks       0 1 2 3 | 4 5
 *     steps 0, 1  doubling in 0-3, in 4-5
 *     step 2      0 <-> 4   1 <-> 5
 *     step 3      0 -> 2    1 -> 3
 *
 * Steps: powers of two log2 n; else, with 2^a the largest and g = 2^c the smallest digit of n,
 * all-reduce 2 a - c + 1, all-gather 2 ceil(log2 n), every second one only where a range wraps.
 * Bytes sent per rank: all-reduce S a step; all-gather S (n - 1) / n.
 * Scratch: all-reduce one buffer for what arrives (in pieces, if the channel has them).
 * Cost, exact where not said otherwise:
 *   all-reduce  powers of two log2 n (alpha + S beta + S gamma)
 *               else (2 a - c + 1) (alpha + S beta) + (a + 1) S gamma
 *   all-gather  powers of two log2 n alpha + (n - 1) / n S beta
 *               else less than 2 ceil(log2 n) alpha + 2 (n - 1) / n S beta
 * Chosen for small buffers: the fewest messages one after the other. Not for large ones. */
#include "comm/pattern/pattern.h"

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && (c->kind == LSI_CALL_ALL_REDUCE || c->kind == LSI_CALL_ALL_GATHER);
}

static bool keeps_order(const lsi_pattern_case *c) {
    (void)c;
    return true;
}

static int n_parts(const lsi_pattern_case *c) {
    return c->kind == LSI_CALL_ALL_GATHER ? c->n : 1;
}

/* ---- all-gather ---- */

static int n_gather_steps(int n) {
    return (lsi_is_power_of_two(n) ? 1 : 2) * lsi_log2_ceil(n);
}

static lsi_step exchange_blocks(int rank, int k) {
    int size = 1 << k, own = rank >> k << k, peer = rank ^ size;
    return lsi_step_both(peer, (lsi_parts){own, size}, peer, (lsi_parts){own ^ size, size},
                         LSI_REPLACE);
}

/* The ring of parts is cut before part 0: piece 0 of [begin, begin + n_wanted) lies before the
 * cut, piece 1 after it. */
static lsi_parts piece_of_range(int n, int begin, int n_wanted, int piece) {
    begin %= n;
    int n_wrapped = begin + n_wanted > n ? begin + n_wanted - n : 0;
    return piece == 0 ? (lsi_parts){begin, n_wanted - n_wrapped} : (lsi_parts){0, n_wrapped};
}

static int moved_parts(int n, int distance) {
    return distance < n - distance ? distance : n - distance;
}

/* Before round k rank r has 2^k parts from r on. It gets as many, the next, from r + 2^k. */
static lsi_step bruck(int n, int rank, int step) {
    int distance = 1 << step / 2, piece = step % 2;
    int n_moved = moved_parts(n, distance);
    return lsi_step_both((rank + n - distance) % n, piece_of_range(n, rank, n_moved, piece),
                         (rank + distance) % n, piece_of_range(n, rank + distance, n_moved, piece),
                         LSI_REPLACE);
}

/* ---- all-reduce ---- */

static const lsi_parts whole = {0, 1};

/* Where a rank is: its block of 2^log ranks, and its lane, the ranks with the same number modulo
 * the smallest digit. Only the first rank of a lane in a block passes sums on. */
typedef struct place {
    int n, rank;
    int begin, log; /* block */
    int number;     /* of the block */
    int lane_width; /* smallest digit of n */
    bool passes_on;
} place;

static place place_of(int n, int rank) {
    /* The highest bit in which n and the rank differ is the digit of n that made the block. */
    int log = lsi_log2_floor(n ^ rank), higher = n >> log >> 1, begin = higher << log << 1;
    int lane_width = n & -n;
    return (place){.n = n,
                   .rank = rank,
                   .begin = begin,
                   .log = log,
                   .number = __builtin_popcount((unsigned)higher),
                   .lane_width = lane_width,
                   .passes_on = rank - begin < lane_width};
}

static int n_distances(const place *p) {
    return p->log;
}

static lsi_step exchange_all(const place *p, int k) {
    bool upper = (p->rank - p->begin) >> k & 1;
    int peer = upper ? p->rank - (1 << k) : p->rank + (1 << k);
    return lsi_step_both(peer, whole, peer, whole, upper ? LSI_COMBINE_LEFT : LSI_COMBINE_RIGHT);
}

static int n_from_after(const place *p) {
    return p->passes_on && p->begin + (1 << p->log) < p->n;
}

static lsi_step reduce_from_after(const place *p, int k) {
    (void)k;
    int peer = p->rank + (1 << p->log);
    return lsi_step_both(peer, p->number == 0 ? whole : (lsi_parts){0, 0}, peer, whole,
                         LSI_COMBINE_RIGHT);
}

static int n_to_before(const place *p) {
    return p->passes_on && p->number > 0;
}

static lsi_step reduce_to_before(const place *p, int k) {
    (void)k;
    /* The block before is as large as the lowest digit of begin, which ends it. */
    int peer = p->rank - (p->begin & -p->begin);
    return lsi_step_both(peer, whole, peer, p->number == 1 ? whole : (lsi_parts){0, 0},
                         LSI_COMBINE_LEFT);
}

/* Lanes of block 0, and so levels of the trees: those of the rest have no more. */
static int n_levels(const place *p) {
    return lsi_is_power_of_two(p->n) ? 0 : lsi_log2_floor(p->n) - lsi_log2_floor(p->lane_width);
}

static lsi_step spread(const place *p, int k) {
    int split = 1 << lsi_log2_floor(p->n), in_lane = (p->rank % split) / p->lane_width;
    int distance = 1 << (n_levels(p) - 1 - k), hop = distance * p->lane_width;
    if (in_lane % distance != 0) return lsi_step_idle();
    if (in_lane & distance) return lsi_step_receive(p->rank - hop, whole, LSI_REPLACE);
    return p->rank + hop < p->n ? lsi_step_send(p->rank + hop, whole) : lsi_step_idle();
}

static const struct {
    int (*n_steps)(const place *p);
    lsi_step (*step)(const place *p, int k);
} phases[] = {{n_distances, exchange_all},
              {n_from_after, reduce_from_after},
              {n_to_before, reduce_to_before},
              {n_levels, spread}};
enum { N_PHASES = sizeof phases / sizeof phases[0] };

static int n_steps(const lsi_pattern_case *c, int rank) {
    if (c->kind == LSI_CALL_ALL_GATHER) return n_gather_steps(c->n);
    place p = place_of(c->n, rank);
    int n = 0;
    for (int i = 0; i < N_PHASES; i++) n += phases[i].n_steps(&p);
    return n;
}

static lsi_step step(const lsi_pattern_case *c, int rank, int step) {
    if (c->kind == LSI_CALL_ALL_GATHER)
        return lsi_is_power_of_two(c->n) ? exchange_blocks(rank, step) : bruck(c->n, rank, step);
    place p = place_of(c->n, rank);
    for (int i = 0; i < N_PHASES; i++) {
        int n = phases[i].n_steps(&p);
        if (step < n) return phases[i].step(&p, step);
        step -= n;
    }
    return lsi_step_idle();
}

static lsi_pattern_cost gather_cost(int n) {
    if (lsi_is_power_of_two(n))
        return (lsi_pattern_cost){.messages = lsi_log2_ceil(n), .bytes = (double)(n - 1) / n};
    /* At worst a rank's own range is cut late and the one it gets early, or the other way round. */
    double messages = 0, parts = 0;
    for (int distance = 1; distance < n; distance *= 2) {
        int n_moved = moved_parts(n, distance);
        messages += n_moved == 1 ? 1 : 2;
        parts += 2 * n_moved - 1;
    }
    return (lsi_pattern_cost){.messages = messages, .bytes = parts / n};
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    if (c->kind == LSI_CALL_ALL_GATHER) return gather_cost(c->n);
    place first = place_of(c->n, 0);
    double combined = first.log + !lsi_is_power_of_two(c->n),
           messages = combined + n_levels(&first);
    return (lsi_pattern_cost){messages, messages, combined};
}

const lsi_pattern lsi_pattern_doubling = {.name = "doubling",
                                          .supports = supports,
                                          .keeps_order = keeps_order,
                                          .n_parts = n_parts,
                                          .n_steps = n_steps,
                                          .step = step,
                                          .cost = cost};
