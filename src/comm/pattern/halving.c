/* Recursive halving and doubling: reduce-scatter by exchanging ever smaller halves, all-gather by
 * exchanging ever larger ones.
 *
 * Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
 * operations in MPICH", IJHPCA 19 (2005). Two differences, both for the order of combination.
 * Partners are at distance 1 first, then 2, 4 …, so that what is combined are neighbouring blocks
 * of ranks; the slice a rank ends with has its number with the bits mirrored. And when n is no
 * power of two, no ranks are folded away beforehand.
 * Restrictions: none on n. Keeps the order for all of them.
 *
 *   4 ranks, all-reduce: parts sent (and kept)
 *              rank 0      rank 1      rank 2      rank 3
 *     step 0   23 (01)     01 (23)     23 (01)     01 (23)     with the rank at distance 1
 *     step 1    1 (0)       3 (2)       0 (1)       2 (3)      at distance 2: now complete
 *     step 2    0           2           1           3          back, at distance 2
 *     step 3   01          23          01          23          back, at distance 1
 *   reduce-scatter: steps 0 and 1, then ranks 1 and 2 exchange parts 2 and 1.
 *
 * Any n: its binary digits cut the ranks into blocks, the largest first; 7 = 4 + 2 + 1 gives 0-3,
 * 4-5, 6. The default tree is block 0 + (block 1 + (block 2 …)). Each block does the halving within
 * itself. Then, from the last block to the first, the owner of a slice in block b sends its pieces
 * to their owners in block b - 1, who combine on the right. Between blocks 1 and 0 the two
 * exchange, so that both have the complete piece; the blocks from 2 on get theirs back the way it
 * went.
 *
 * Steps: powers of two, all-reduce 2 log2 n, reduce-scatter log2 n + 1 (n = 2: 1). Else, one after
 * the other, at most 2 a + 2^(a - b) for the two largest digits 2^a and 2^b of n, and
 * 2^(b - c + 1) for each further pair of digits; reduce-scatter two more, which bring parts to
 * their ranks.
 * Bytes sent per rank: powers of two, all-reduce 2 S (n - 1) / n, reduce-scatter S. Else at most
 * 2 S and S; but the digits wait for each other, see the cost.
 * Scratch: half of the buffer for what arrives.
 * Cost, exact for powers of two:
 *   all-reduce      2 log2 n alpha + 2 (n - 1) / n S beta + (n - 1) / n S gamma
 *   reduce-scatter  (log2 n + 1) alpha + S beta + (n - 1) / n S gamma  (n = 2: alpha + S / 2 …)
 *   else            the recursion in cost(), at most. All-reduce of 3 ranks 2 S beta, 6 ranks
 *                   2 S, 5 ranks 2.5 S, 7 ranks 3.5 S.
 * Chosen for large buffers when results must have the bits of the default order, above all for
 * powers of two and few digits. Not for n like 7 or 15 where the order does not matter (ring). */
#include "comm/pattern/pattern.h"

static bool supports(const lsi_pattern_case *c) {
    return c->n >= 1 && (c->kind == LSI_CALL_ALL_REDUCE || c->kind == LSI_CALL_REDUCE_SCATTER);
}

static bool keeps_order(const lsi_pattern_case *c) {
    (void)c;
    return true;
}

static int n_parts(const lsi_pattern_case *c) {
    return c->kind == LSI_CALL_REDUCE_SCATTER ? c->n : 1 << lsi_log2_floor(c->n);
}

/* ---- blocks and slices ---- */

/* A block: 2^log ranks from begin on. log < 0: there is none. */
typedef struct block {
    int begin, log, number;
} block;

/* The highest bit in which n and the rank differ is the digit of n that made the rank's block. */
static block block_of(int n, int rank) {
    int log = lsi_log2_floor(n ^ rank), higher = n >> log >> 1;
    return (block){higher << log << 1, log, __builtin_popcount((unsigned)higher)};
}

static block block_before(int n, block b) {
    return b.number == 0 ? (block){0, -1, -1} : block_of(n, b.begin - 1);
}

static block block_after(int n, block b) {
    int begin = b.begin + (1 << b.log);
    return begin == n ? (block){n, -1, b.number + 1} : block_of(n, begin);
}

/* Slice i of 2^depth; slices of a larger depth divide those of a smaller one. */
static lsi_parts slice(const lsi_pattern_case *c, int i, int depth) {
    int begin = i * n_parts(c) >> depth, end = (i + 1) * n_parts(c) >> depth;
    return (lsi_parts){begin, end - begin};
}

static int owner(block b, int i) {
    return b.begin + lsi_mirror_bits(i, b.log);
}

/* ---- phases, for one rank ---- */

typedef struct place {
    const lsi_pattern_case *c;
    block own, before, after;
    int rank;
    int slice; /* of 2^own.log: what the rank has after the halving */
} place;

static place place_of(const lsi_pattern_case *c, int rank) {
    block own = block_of(c->n, rank);
    return (place){.c = c,
                   .own = own,
                   .before = block_before(c->n, own),
                   .after = block_after(c->n, own),
                   .rank = rank,
                   .slice = lsi_mirror_bits(rank - own.begin, own.log)};
}

static int n_distances(const place *p) {
    return p->own.log;
}

/* In step k the rank keeps the half that bit k of its number says, at depth k + 1. */
static lsi_step halve(const place *p, int k) {
    bool upper = (p->rank - p->own.begin) >> k & 1;
    int kept = lsi_mirror_bits(p->rank - p->own.begin, k + 1);
    int peer = upper ? p->rank - (1 << k) : p->rank + (1 << k);
    return lsi_step_both(peer, slice(p->c, kept ^ 1, k + 1), peer, slice(p->c, kept, k + 1),
                         upper ? LSI_COMBINE_LEFT : LSI_COMBINE_RIGHT);
}

static lsi_step redouble(const place *p, int k) {
    lsi_step back = halve(p, p->own.log - 1 - k);
    return lsi_step_both(back.to, back.received, back.to, back.sent, LSI_REPLACE);
}

static bool exchanges(const place *p) {
    return p->c->kind == LSI_CALL_ALL_REDUCE;
}

static int n_from_after(const place *p) {
    return p->after.log >= 0;
}

static int owner_after(const place *p) {
    return owner(p->after, p->slice >> (p->own.log - p->after.log));
}

static lsi_step reduce_from_after(const place *p, int k) {
    (void)k;
    lsi_parts own = slice(p->c, p->slice, p->own.log);
    bool answers = p->own.number == 0 && exchanges(p);
    return lsi_step_both(owner_after(p), answers ? own : (lsi_parts){0, 0}, owner_after(p), own,
                         LSI_COMBINE_RIGHT);
}

static int n_pieces_before(const place *p) {
    return p->before.log < 0 ? 0 : 1 << (p->before.log - p->own.log);
}

/* Piece k of the rank's slice, as a slice of the block before. */
static int piece_before(const place *p, int k) {
    return p->slice * n_pieces_before(p) + k;
}

static lsi_step reduce_to_before(const place *p, int k) {
    lsi_parts piece = slice(p->c, piece_before(p, k), p->before.log);
    int peer = owner(p->before, piece_before(p, k));
    bool is_answered = p->own.number == 1 && exchanges(p);
    return lsi_step_both(peer, piece, peer, is_answered ? piece : (lsi_parts){0, 0},
                         LSI_COMBINE_LEFT);
}

/* From here on: complete pieces, back to the blocks from 2 on. */
static int n_from_before(const place *p) {
    return p->own.number < 2 ? 0 : n_pieces_before(p);
}

static lsi_step get_from_before(const place *p, int k) {
    return lsi_step_receive(owner(p->before, piece_before(p, k)),
                            slice(p->c, piece_before(p, k), p->before.log), LSI_REPLACE);
}

static int n_to_after(const place *p) {
    return p->own.number == 0 ? 0 : n_from_after(p);
}

static lsi_step pass_to_after(const place *p, int k) {
    (void)k;
    return lsi_step_send(owner_after(p), slice(p->c, p->slice, p->own.log));
}

/* Reduce-scatter: block 0 has all slices complete, of one or two parts each. The first parts of all
 * slices go to their ranks, then the second ones. (In one step the other way round, a rank could
 * wait for the second part of a slice whose owner waits in turn.) */
static int n_deliveries(const place *p) {
    return lsi_is_power_of_two(p->c->n) ? p->c->n > 2 : 2;
}

static lsi_step deliver(const place *p, int k) {
    block first = block_of(p->c->n, 0);
    int n = p->c->n, rank = p->rank;
    /* The slice that part `rank` is in: the last that begins at or before it. */
    int holding = (((rank + 1) << first.log) - 1) / n;
    lsi_parts wanted = slice(p->c, holding, first.log), held = {0, 0};
    if (p->own.number == 0) held = slice(p->c, p->slice, first.log);
    int from = owner(first, holding), to = held.begin + k;
    bool sends = k < held.n && to != rank, receives = wanted.begin + k == rank && from != rank;
    return lsi_step_both(to, (lsi_parts){sends ? to : 0, sends}, from,
                         (lsi_parts){receives ? rank : 0, receives}, LSI_REPLACE);
}

typedef struct phase {
    int (*n_steps)(const place *p);
    lsi_step (*step)(const place *p, int k);
} phase;

static const phase all_reduce[] = {{n_distances, halve},
                                   {n_from_after, reduce_from_after},
                                   {n_pieces_before, reduce_to_before},
                                   {n_from_before, get_from_before},
                                   {n_to_after, pass_to_after},
                                   {n_distances, redouble},
                                   {NULL, NULL}};

static const phase reduce_scatter[] = {{n_distances, halve},
                                       {n_from_after, reduce_from_after},
                                       {n_pieces_before, reduce_to_before},
                                       {n_deliveries, deliver},
                                       {NULL, NULL}};

static const phase *phases_of(const lsi_pattern_case *c) {
    return c->kind == LSI_CALL_ALL_REDUCE ? all_reduce : reduce_scatter;
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

/* Share of S in the largest slice of 2^depth. */
static double share(const lsi_pattern_case *c, int depth) {
    int n = n_parts(c);
    return (double)((n + (1 << depth) - 1) >> depth) / n;
}

static double halving_share(const lsi_pattern_case *c, block b) {
    double sum = 0;
    for (int depth = 1; depth <= b.log; depth++) sum += share(c, depth);
    return sum;
}

typedef struct times {
    double messages, bytes, combined;
} times;

/* What an owner in `b` sends to the block before or gets from there; combined: one piece. */
static times pieces(const lsi_pattern_case *c, block before, block b) {
    double n = 1 << (before.log - b.log), each = share(c, before.log);
    return (times){n, n * each, each};
}

/* When block `b` has its slices combined with those of all blocks after it. */
static times reduced_at(const lsi_pattern_case *c, block b) {
    double halving = halving_share(c, b);
    times own = {b.log, halving, halving};
    block after = block_after(c->n, b);
    if (after.log < 0) return own;
    times rest = reduced_at(c, after), sent = pieces(c, b, after);
    /* Where both combine, the owner after does so piece by piece, and the others wait for it. */
    bool both = b.number == 0 && c->kind == LSI_CALL_ALL_REDUCE;
    return (times){later(own.messages, rest.messages) + sent.messages,
                   later(own.bytes, rest.bytes) + sent.bytes,
                   later(own.combined, rest.combined) +
                       (both ? sent.messages * sent.combined : sent.combined)};
}

static lsi_pattern_cost cost(const lsi_pattern_case *c) {
    block b = block_of(c->n, 0);
    times t = reduced_at(c, b);
    lsi_pattern_cost result = {t.messages, t.bytes, t.combined};
    if (c->kind == LSI_CALL_REDUCE_SCATTER) {
        place p = place_of(c, 0);
        result.messages += n_deliveries(&p);
        result.bytes += n_deliveries(&p) * share(c, b.log) / (lsi_is_power_of_two(c->n) ? 1 : 2);
        return result;
    }
    /* Blocks 0 and 1 have complete slices at t; every block gathers when it has passed them on. */
    for (; b.log >= 0; b = block_after(c->n, b)) {
        block after = block_after(c->n, b);
        if (b.number > 0 && after.log >= 0) {
            times sent = pieces(c, b, after);
            t.messages += sent.messages;
            t.bytes += sent.bytes;
        }
        result.messages = later(result.messages, t.messages + b.log);
        result.bytes = later(result.bytes, t.bytes + halving_share(c, b));
    }
    return result;
}

const lsi_pattern lsi_pattern_halving = {.name = "halving",
                                         .supports = supports,
                                         .keeps_order = keeps_order,
                                         .n_parts = n_parts,
                                         .n_steps = n_steps,
                                         .step = step,
                                         .cost = cost};
