/* Double tree: two binary trees over the same ranks, half of the parts down (or up) each, in a
 * pipeline. A rank that has children in one tree is a leaf of the other, so every rank sends and
 * receives one part in every step.
 *
 * Source: P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
 * reduction and scan", Parallel Computing 35 (2009).
 * Restrictions: none on n or root. Keeps the order for n <= 2, and for n = 3 when the root is 2.
 * All-reduce is a reduce to n - 1 and a broadcast from there.
 *
 * Nodes: 0 is the root, the others, 1 to p = n - 1, are the ranks after it, wrapping round. Tree 0
 * is the search tree over 1 … p: odd nodes are leaves, node i of height h (i is divisible by 2^h
 * and not by 2^(h + 1)) has the children i - 2^(h - 1) and i + 2^(h - 1), or the next below that
 * exists. Tree 1 is its mirror image: node i has the position q + 1 - i, where q is p or, if p is
 * odd, p - 1; then node p is the last leaf in both. The root has one child in each.
 *
 *   4 ranks, root 0      tree 0     0        tree 1     0
 *                                   |                   |
 *                                   2                   1
 *                                  / \                 / \
 *                                 1   3               2   3
 *
 * Every edge has a colour, 0 or 1: edges to a node from its two parents differ, and so do those
 * from a node to its two children. An edge of colour x carries parts in steps of the parity of x.
 * From inner node to inner node the colour changes by (q / 2) mod 2 and, to the left, once more;
 * what leaves get follows from their edges in the other tree. (The paper proves that a colouring
 * exists; that this is one is what the test shows, for every n up to the largest group.)
 *
 * Steps: K + 2 h - 2 with h = floor(log2(n - 1)) + 1 the height, K = 16 floor(log2 n) parts (2 for
 * n = 2); all-reduce twice that. Step s of all ranks happens at the same time; some are idle.
 * Bytes sent per rank: broadcast, reduce at most S; all-reduce at most 2 S.
 * Scratch: one part for what arrives.
 * Cost, at most, powers of two or not, with T steps one way:
 *   broadcast T alpha + T / K S beta     reduce     T alpha + T / K S beta + T / K S gamma
 *                                        all-reduce 2 T alpha + 2 T / K S beta + T / K S gamma
 * where T / K is at most 1 + 1 / 8. The longest path is no more than 6 % shorter.
 * Chosen for large broadcasts and reduces among many ranks: the bytes of a chain at the latency of
 * a tree. Not for small buffers, nor where results must have the bits of the default order. */
#include "comm/pattern/pattern.h"

enum { PARTS_PER_LEVEL = 16 };

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && (c->kind == LSI_CALL_ALL_REDUCE || c->kind == LSI_CALL_REDUCE ||
                         c->kind == LSI_CALL_BROADCAST);
}

static int root_of(const lsi_pattern_case *c) {
    return c->kind == LSI_CALL_ALL_REDUCE ? c->n - 1 : c->root;
}

static bool keeps_order(const lsi_pattern_case *c) {
    return c->kind == LSI_CALL_BROADCAST || c->n <= 2 || (c->n == 3 && root_of(c) == 2);
}

static int n_parts(const lsi_pattern_case *c) {
    return c->n <= 2 ? c->n : PARTS_PER_LEVEL * lsi_log2_floor(c->n);
}

/* ---- the trees, by position 1 … p ---- */

static int height_of(int position) {
    return __builtin_ctz((unsigned)position);
}

static int top(int p) {
    return 1 << lsi_log2_floor(p);
}

/* 0 if there is none. */
static int child(int p, int position, bool right) {
    int height = height_of(position);
    if (!right) return height > 0 ? position - (1 << (height - 1)) : 0;
    for (int h = height - 1; h >= 0; h--)
        if (position + (1 << h) <= p) return position + (1 << h);
    return 0;
}

/* The node that clears the lowest bit of `position`, unless the one that carries it is nearer. */
static int parent(int p, int position) {
    int size = 1 << height_of(position), above = position + size;
    if ((position & 2 * size) == 0 && above <= p) return above;
    return position - size;
}

/* Of a node in a tree or back: each is its own inverse. */
static int position_of(int p, int tree, int node) {
    int q = p & ~1;
    return tree == 1 && node <= q ? q + 1 - node : node;
}

/* The colour of the edge to an inner node of tree 0. */
static int inner_colour(int p, int position) {
    int colour = 0;
    for (int at = top(p); at != position; at = child(p, at, position > at))
        colour ^= (p / 2 & 1) ^ (position < at);
    return colour;
}

/* Of the edge to any position of tree 0: a leaf has that of its mirror image, an inner node; the
 * last leaf of an odd number the one that its sibling has not. Tree 1 has the other colours. */
static int colour_of(int p, int position) {
    bool is_last = position == p && p > 1;
    if (position % 2 == 0 || p == 1) return inner_colour(p, position);
    if (is_last) return 1 ^ colour_of(p, child(p, p - 1, false));
    return inner_colour(p, (p & ~1) + 1 - position);
}

/* The step in which the tree's first part comes to a position: the first of the edge's parity after
 * it came to the parent. Part k of the tree comes 2 k steps later. */
static int arrival(int p, int tree, int position) {
    int at = top(p), step = tree;
    while (at != position) {
        at = child(p, at, position > at);
        int parity = colour_of(p, at) ^ tree;
        step += (step + 1) % 2 == parity ? 1 : 2;
    }
    return step;
}

static int n_steps_one_way(const lsi_pattern_case *c) {
    return c->n == 1 ? 0 : n_parts(c) + 2 * lsi_log2_floor(c->n - 1);
}

/* ---- one step of the broadcast ---- */

/* What comes to a position in this step. */
static lsi_parts arriving(const lsi_pattern_case *c, int tree, int position, int step) {
    int since = step - arrival(c->n - 1, tree, position);
    bool comes = since >= 0 && since % 2 == 0 && since < n_parts(c);
    return (lsi_parts){comes ? since + tree : 0, comes};
}

static int rank_at(const lsi_pattern_case *c, int tree, int position) {
    int node = position == 0 ? 0 : position_of(c->n - 1, tree, position);
    return (root_of(c) + node) % c->n;
}

static void send_to(const lsi_pattern_case *c, int tree, int position, int step, lsi_step *s) {
    if (position == 0) return;
    lsi_parts parts = arriving(c, tree, position, step);
    if (parts.n == 0) return;
    s->sent = parts;
    s->to = (int16_t)rank_at(c, tree, position);
}

static void receive_at(const lsi_pattern_case *c, int tree, int position, int step, lsi_step *s) {
    lsi_parts parts = arriving(c, tree, position, step);
    if (parts.n == 0) return;
    int p = c->n - 1;
    s->received = parts;
    s->from = (int16_t)rank_at(c, tree, position == top(p) ? 0 : parent(p, position));
}

/* At most one of the sends and one of the receives applies: that is what the colours are for. */
static lsi_step broadcast_step(const lsi_pattern_case *c, int rank, int step) {
    int p = c->n - 1, node = (rank + c->n - root_of(c)) % c->n;
    lsi_step s = lsi_step_idle();
    for (int tree = 0; tree < 2; tree++) {
        int position = node == 0 ? 0 : position_of(p, tree, node);
        if (node == 0) {
            send_to(c, tree, top(p), step, &s);
        } else {
            receive_at(c, tree, position, step, &s);
            send_to(c, tree, child(p, position, false), step, &s);
            send_to(c, tree, child(p, position, true), step, &s);
        }
    }
    return s;
}

/* The broadcast backwards in time: what was sent is received. */
static lsi_step reduce_step(const lsi_pattern_case *c, int rank, int step) {
    lsi_step s = broadcast_step(c, rank, n_steps_one_way(c) - 1 - step);
    return lsi_step_both(s.from, s.received, s.to, s.sent,
                         s.to < rank ? LSI_COMBINE_LEFT : LSI_COMBINE_RIGHT);
}

static int n_steps(const lsi_pattern_case *c, int rank) {
    (void)rank;
    return (c->kind == LSI_CALL_ALL_REDUCE ? 2 : 1) * n_steps_one_way(c);
}

static lsi_step step(const lsi_pattern_case *c, int rank, int step) {
    int one_way = n_steps_one_way(c);
    if (step >= one_way) return broadcast_step(c, rank, step - one_way);
    return c->kind == LSI_CALL_BROADCAST ? broadcast_step(c, rank, step)
                                         : reduce_step(c, rank, step);
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    double steps = n_steps_one_way(c), share = steps / n_parts(c);
    switch (c->kind) {
    case LSI_CALL_BROADCAST: return (lsi_pattern_cost){steps, share, 0};
    case LSI_CALL_REDUCE: return (lsi_pattern_cost){steps, share, share};
    default: return (lsi_pattern_cost){2 * steps, 2 * share, share};
    }
}

const lsi_pattern lsi_pattern_double_tree = {.name = "double-tree",
                                             .supports = supports,
                                             .keeps_order = keeps_order,
                                             .n_parts = n_parts,
                                             .n_steps = n_steps,
                                             .step = step,
                                             .cost = cost};
