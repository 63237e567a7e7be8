/* Two-level: first within each node, then across nodes, then within each node again, so that little
 * goes over the links between nodes.
 *
 * Source: the hierarchical scheme that MPI libraries use on clusters of multi-core nodes, e.g.
 * R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19 (2005), whose halving and trees serve as its
 * levels here (halving.c, binomial.c, doubling.c).
 * Restrictions: nodes are `local` >= 1 consecutive ranks, the last may have fewer. All-reduce keeps
 * the order exactly when `local` is a power of two or all ranks are on one node: then the nodes are
 * subtrees of the default tree.
 *
 * All-reduce: g is the largest power of two that is not above the smallest node. Ranks of a node
 * form blocks of g; the rest, if any, is a smaller last block. The buffer has g slices.
 *   1. Each block halves (halving.c): its ranks have a slice each. The smaller block reduces to its
 *      first rank.
 *   2. Blocks of a node reduce to the first block (binomial.c), slice by slice in parallel; the
 *      first rank of the smaller block sends one slice after the other.
 *   3. First blocks of all nodes: each slice is all-reduced across nodes (halving.c), in parallel.
 *   4, 5. As 2 and 1, backwards.
 *
 *   4 ranks, local 2     0 1 | 2 3                     slices (kept)
 *     1.  0 <-> 1   2 <-> 3    half of the buffer      0 (0)  1 (1) | 2 (0)  3 (1)
 *     3.  0 <-> 2   1 <-> 3    a quarter, twice
 *     5.  0 <-> 1   2 <-> 3    half of the buffer
 * Broadcast: root to one rank of each node, then within nodes (binomial.c). All-gather: gather to
 * the first rank of each node, these exchange (doubling.c), then broadcast within nodes.
 *
 * Steps, for m nodes of l = local ranks, both powers of two: all-reduce 2 log2 l + 2 log2 m,
 * broadcast log2 l + log2 m, all-gather 2 log2 l + log2 m.
 * Bytes sent per rank across nodes: all-reduce 2 S / g (m - 1) / m, i.e. 1 / g of what a ring of
 * one rank a node needs; all-gather S (m - 1) / m by one rank of each node.
 * Scratch: half of the buffer for what arrives; all of it if g = 1 or a smaller block has two ranks
 * or more (in pieces, if the channel has them).
 * Cost, exact for powers of two:
 *   all-reduce  2 (log2 l + log2 m) alpha + 2 (n - 1) / n S beta + (n - 1) / n S gamma
 *   broadcast   (log2 l + log2 m) (alpha + S beta)
 *   all-gather  (2 log2 l + log2 m) alpha + ((n - 1) / n + log2 l) S beta
 *   else        at most the levels added up, see cost(); a smaller block of r ranks adds up to
 *               2 (g - 1) alpha and 2 (ceil(log2 r) + 1) S beta.
 * alpha and beta do not tell the two kinds of links apart.
 * Chosen for all-reduce where links between nodes are much slower than within. Not on one node, and
 * not where the last node is much smaller than the others (few slices). */
#include "comm/pattern/pattern.h"

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && c->local >= 1 &&
           (c->kind == LSI_CALL_ALL_REDUCE || c->kind == LSI_CALL_BROADCAST ||
            c->kind == LSI_CALL_ALL_GATHER);
}

static bool keeps_order(const lsi_pattern_case *c) {
    return c->kind != LSI_CALL_ALL_REDUCE || lsi_is_power_of_two(c->local) || c->local >= c->n;
}

/* ---- where a rank is ---- */

static int n_nodes(const lsi_pattern_case *c) {
    return (c->n - 1) / c->local + 1;
}

/* The ranks of nodes [node, node + n), as parts of an all-gather too. */
static lsi_parts ranks_of(const lsi_pattern_case *c, int node, int n) {
    int begin = node * c->local, rest = c->n - begin;
    return (lsi_parts){begin, n * c->local < rest ? n * c->local : rest};
}

/* log2 of the number of slices. */
static int log_slices(const lsi_pattern_case *c) {
    return lsi_log2_floor(ranks_of(c, n_nodes(c) - 1, 1).n);
}

/* Parts of a slice: the halving across nodes cuts it again. */
static int slice_parts(const lsi_pattern_case *c) {
    return 1 << lsi_log2_floor(n_nodes(c));
}

static int n_parts(const lsi_pattern_case *c) {
    switch (c->kind) {
    case LSI_CALL_ALL_REDUCE: return slice_parts(c) << log_slices(c);
    case LSI_CALL_ALL_GATHER: return c->n;
    default: return 1;
    }
}

typedef struct place {
    const lsi_pattern_case *c;
    int node, index;       /* rank = first + index */
    int first, size;       /* ranks of the node */
    int n_full, n_smaller; /* blocks of g ranks; ranks of the last block if it has fewer, else 0 */
    int block, lane;       /* index = block * g + lane */
} place;

static place place_of(const lsi_pattern_case *c, int rank) {
    int node = rank / c->local, log = log_slices(c), low_bits = (1 << log) - 1;
    lsi_parts ranks = ranks_of(c, node, 1);
    int index = rank - ranks.begin;
    return (place){.c = c,
                   .node = node,
                   .index = index,
                   .first = ranks.begin,
                   .size = ranks.n,
                   .n_full = ranks.n >> log,
                   .n_smaller = ranks.n & low_bits,
                   .block = index >> log,
                   .lane = index & low_bits};
}

static bool in_smaller_block(const place *p) {
    return p->block == p->n_full;
}

static int block_begin(const place *p, int block) {
    return p->first + block * (1 << log_slices(p->c));
}

/* A step of a smaller problem among ranks begin, begin + stride …, whose part i is `size` of ours,
 * the first of them first_part. */
static lsi_step placed(lsi_step s, int begin, int stride, int first_part, int size) {
    s.sent = (lsi_parts){first_part + s.sent.begin * size, s.sent.n * size};
    s.received = (lsi_parts){first_part + s.received.begin * size, s.received.n * size};
    return lsi_step_both(begin + s.to * stride, s.sent, begin + s.from * stride, s.received, s.use);
}

static lsi_step tree_step(const place *p, int kind, int n, int root, int rank, int k, int begin) {
    lsi_step s =
        lsi_pattern_binomial.step(&(lsi_pattern_case){.kind = kind, .n = n, .root = root}, rank, k);
    return placed(s, begin, 1, 0, n_parts(p->c));
}

/* ---- all-reduce ---- */

static int n_in_block(const place *p) {
    return in_smaller_block(p) ? lsi_log2_ceil(p->n_smaller) : log_slices(p->c);
}

/* One half of the all-reduce of a full block. */
static lsi_step halving_step(const place *p, int k) {
    lsi_pattern_case among = {.kind = LSI_CALL_ALL_REDUCE, .n = 1 << log_slices(p->c)};
    return placed(lsi_pattern_halving.step(&among, p->lane, k), block_begin(p, p->block), 1, 0,
                  slice_parts(p->c));
}

static lsi_step reduce_in_block(const place *p, int k) {
    if (!in_smaller_block(p)) return halving_step(p, k);
    return tree_step(p, LSI_CALL_REDUCE, p->n_smaller, 0, p->lane, k, block_begin(p, p->block));
}

static lsi_step spread_in_block(const place *p, int k) {
    if (!in_smaller_block(p)) return halving_step(p, log_slices(p->c) + k);
    return tree_step(p, LSI_CALL_BROADCAST, p->n_smaller, 0, p->lane, k, block_begin(p, p->block));
}

static int n_blocks(const place *p) {
    return p->n_full + (p->n_smaller > 0);
}

static int n_among_blocks(const place *p) {
    if (!in_smaller_block(p)) return lsi_log2_ceil(n_blocks(p));
    return p->lane == 0 ? 1 << log_slices(p->c) : 0;
}

static lsi_parts slice_of_lane(const place *p, int lane) {
    int n = slice_parts(p->c);
    return (lsi_parts){lsi_mirror_bits(lane, log_slices(p->c)) * n, n};
}

/* Blocks as the ranks of a tree; `kind` says in which direction. Lanes talk to the same lane, but
 * for the smaller block its first rank speaks, to one lane after the other. */
static lsi_step among_blocks(const place *p, int kind, int k) {
    lsi_step s;
    if (in_smaller_block(p)) {
        int to = block_begin(p, p->block & (p->block - 1)) + k;
        lsi_parts slice = slice_of_lane(p, k);
        return kind == LSI_CALL_REDUCE ? lsi_step_send(to, slice)
                                       : lsi_step_receive(to, slice, LSI_REPLACE);
    }
    lsi_pattern_case among = {.kind = kind, .n = n_blocks(p)};
    lsi_parts slice = slice_of_lane(p, p->lane);
    s = lsi_pattern_binomial.step(&among, p->block, k);
    int to_lane = s.to == p->n_full ? 0 : p->lane, from_lane = s.from == p->n_full ? 0 : p->lane;
    return lsi_step_both(block_begin(p, s.to) + to_lane, s.to < 0 ? s.sent : slice,
                         block_begin(p, s.from) + from_lane, s.from < 0 ? s.received : slice,
                         s.use);
}

static lsi_step reduce_among_blocks(const place *p, int k) {
    return among_blocks(p, LSI_CALL_REDUCE, k);
}

static lsi_step spread_among_blocks(const place *p, int k) {
    return among_blocks(p, LSI_CALL_BROADCAST, k);
}

static lsi_pattern_case across_nodes(const lsi_pattern_case *c, int kind) {
    return (lsi_pattern_case){.kind = kind, .n = n_nodes(c), .root = c->root / c->local};
}

static int n_across(const place *p) {
    lsi_pattern_case among = across_nodes(p->c, LSI_CALL_ALL_REDUCE);
    return p->block == 0 ? lsi_pattern_halving.n_steps(&among, p->node) : 0;
}

static lsi_step reduce_across(const place *p, int k) {
    lsi_pattern_case among = across_nodes(p->c, LSI_CALL_ALL_REDUCE);
    return placed(lsi_pattern_halving.step(&among, p->node, k), p->index, p->c->local,
                  slice_of_lane(p, p->lane).begin, 1);
}

/* ---- broadcast and all-gather: one rank, the leader, acts for its node ---- */

static int leader_index(const place *p) {
    bool has_root = p->c->kind == LSI_CALL_BROADCAST && p->c->root / p->c->local == p->node;
    return has_root ? p->c->root % p->c->local : 0;
}

static int leader_of(const lsi_pattern_case *c, int node) {
    place p = place_of(c, node * c->local);
    return p.first + leader_index(&p);
}

static int n_levels(const place *p) {
    return lsi_log2_ceil(p->size);
}

static int n_broadcast_across(const place *p) {
    return p->index == leader_index(p) ? lsi_log2_ceil(n_nodes(p->c)) : 0;
}

static lsi_step broadcast_across(const place *p, int k) {
    lsi_pattern_case among = across_nodes(p->c, LSI_CALL_BROADCAST);
    lsi_step s = lsi_pattern_binomial.step(&among, p->node, k);
    if (s.to >= 0) s.to = (int16_t)leader_of(p->c, s.to);
    if (s.from >= 0) s.from = (int16_t)leader_of(p->c, s.from);
    return s;
}

static lsi_step broadcast_in_node(const place *p, int k) {
    return tree_step(p, LSI_CALL_BROADCAST, p->size, leader_index(p), p->index, k, p->first);
}

static lsi_step gather_in_node(const place *p, int k) {
    lsi_pattern_case within = {.kind = LSI_CALL_GATHER, .n = p->size};
    return placed(lsi_pattern_binomial.step(&within, p->index, k), p->first, 1, p->first, 1);
}

static int n_gather_across(const place *p) {
    lsi_pattern_case among = across_nodes(p->c, LSI_CALL_ALL_GATHER);
    return p->index == 0 ? lsi_pattern_doubling.n_steps(&among, p->node) : 0;
}

static lsi_step gather_across(const place *p, int k) {
    lsi_pattern_case among = across_nodes(p->c, LSI_CALL_ALL_GATHER);
    lsi_step s = lsi_pattern_doubling.step(&among, p->node, k);
    if (s.sent.n > 0) s.sent = ranks_of(p->c, s.sent.begin, s.sent.n);
    if (s.received.n > 0) s.received = ranks_of(p->c, s.received.begin, s.received.n);
    return placed(s, 0, p->c->local, 0, 1);
}

/* ---- the phases ---- */

typedef struct phase {
    int (*n_steps)(const place *p);
    lsi_step (*step)(const place *p, int k);
} phase;

static const phase all_reduce[] = {
    {n_in_block, reduce_in_block}, {n_among_blocks, reduce_among_blocks},
    {n_across, reduce_across},     {n_among_blocks, spread_among_blocks},
    {n_in_block, spread_in_block}, {NULL, NULL}};
static const phase broadcast[] = {
    {n_broadcast_across, broadcast_across}, {n_levels, broadcast_in_node}, {NULL, NULL}};
static const phase all_gather[] = {{n_levels, gather_in_node},
                                   {n_gather_across, gather_across},
                                   {n_levels, broadcast_in_node},
                                   {NULL, NULL}};

static const phase *phases_of(const lsi_pattern_case *c) {
    switch (c->kind) {
    case LSI_CALL_ALL_REDUCE: return all_reduce;
    case LSI_CALL_BROADCAST: return broadcast;
    default: return all_gather;
    }
}

static int n_steps(const lsi_pattern_case *c, int rank) {
    place p = place_of(c, rank);
    int n = 0;
    for (const phase *f = phases_of(c); f->step; f++) n += f->n_steps(&p);
    return n;
}

static lsi_step step(const lsi_pattern_case *c, int rank, int step) {
    place p = place_of(c, rank);
    for (const phase *f = phases_of(c); f->step; f++) {
        int n = f->n_steps(&p);
        if (step < n) return f->step(&p, step);
        step -= n;
    }
    return lsi_step_idle();
}

/* ---- cost ---- */

static double later(double a, double b) {
    return a > b ? a : b;
}

/* One way within a node: blocks, then among blocks. */
static lsi_pattern_cost within_node(const lsi_pattern_case *c, int node) {
    place p = place_of(c, node * c->local);
    double n_slices = 1 << log_slices(c), levels = lsi_log2_ceil(n_blocks(&p));
    double halving = (n_slices - 1) / n_slices;
    lsi_pattern_cost cost = {log_slices(c) + levels, halving + levels / n_slices,
                             halving + levels / n_slices};
    if (p.n_smaller == 0) return cost;
    double smaller = lsi_log2_ceil(p.n_smaller);
    cost.messages += n_slices - 1;
    cost.bytes = later(halving, smaller) + levels / n_slices + halving;
    cost.combined_bytes = later(halving, smaller) + levels / n_slices;
    return cost;
}

/* Full nodes are alike: the first and the last are all there are. */
static lsi_pattern_cost slower_node(const lsi_pattern_case *c) {
    lsi_pattern_cost a = within_node(c, 0), b = within_node(c, n_nodes(c) - 1);
    return (lsi_pattern_cost){later(a.messages, b.messages), later(a.bytes, b.bytes),
                              later(a.combined_bytes, b.combined_bytes)};
}

static lsi_pattern_cost all_reduce_cost(const lsi_pattern_case *c) {
    lsi_pattern_case among = across_nodes(c, LSI_CALL_ALL_REDUCE);
    lsi_pattern_cost within = slower_node(c), across = lsi_pattern_halving.cost(&among);
    double n_slices = 1 << log_slices(c);
    return (lsi_pattern_cost){2 * within.messages + across.messages,
                              2 * within.bytes + across.bytes / n_slices,
                              within.combined_bytes + across.combined_bytes / n_slices};
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    lsi_pattern_case among = across_nodes(c, c->kind);
    int size = ranks_of(c, 0, 1).n;
    double levels = lsi_log2_ceil(size);
    lsi_pattern_cost across;
    switch (c->kind) {
    case LSI_CALL_ALL_REDUCE: return all_reduce_cost(c);
    case LSI_CALL_BROADCAST:
        across = lsi_pattern_binomial.cost(&among);
        return (lsi_pattern_cost){across.messages + levels, across.bytes + levels, 0};
    default:
        across = lsi_pattern_doubling.cost(&among);
        /* As if all nodes were full. */
        across.bytes *= (double)among.n * size / c->n;
        return (lsi_pattern_cost){2 * levels + across.messages,
                                  (double)(size - 1) / c->n + across.bytes + levels, 0};
    }
}

const lsi_pattern lsi_pattern_two_level = {.name = "two-level",
                                           .supports = supports,
                                           .keeps_order = keeps_order,
                                           .n_parts = n_parts,
                                           .n_steps = n_steps,
                                           .step = step,
                                           .cost = cost};
