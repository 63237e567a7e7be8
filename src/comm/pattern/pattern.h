/* Patterns: the index arithmetic of algorithms that pass messages, apart from the passing.
 *
 * A pattern says, for one rank of n, what it does step by step: which parts of its working buffer
 * it sends to whom, which it receives from whom, and whether what it receives replaces or is
 * combined with what it has. Pure functions of (collective, n, root, rank, step): tests replay them
 * without processes, the explainer prints them, the simulator times them, and
 * collective/passing.c carries them out over point-to-point channels.
 *
 * The working buffer is cut into n_parts parts, numbered from 0. For collectives with n parts
 * (reduce-scatter, all-gather, gather, scatter, all-to-all) part p is that of rank p. For the
 * others (all-reduce, reduce, broadcast) the pattern chooses the number, and the parts are as equal
 * as possible: part p is elements [count * p / n_parts, count * (p + 1) / n_parts).
 *
 * What the working buffer holds:
 *   before   all-reduce, reduce, reduce-scatter: the rank's input. broadcast, scatter: the root's
 *            input on the root, undefined elsewhere. all-gather, gather: the own part in its place.
 *            all-to-all: see below.
 *   after    all-reduce: every part reduced over all ranks. reduce: on the root. reduce-scatter:
 *            the rank's own part. all-gather, broadcast: all parts. gather: all parts on the root.
 *            scatter: the rank's own part. Everything else is undefined.
 * all-to-all has two buffers: parts are sent from the input (part p for rank p) and received into
 * the output (part p from rank p); the own part needs no message.
 *
 * Steps of a rank run in order. Within one step sending and receiving go on at the same time; the
 * sent parts are what the buffer holds before the step, and parts sent and received in one step
 * never overlap unless the received are combined (a swap: what arrives is kept apart until the send
 * is finished). Patterns must not deadlock even if no message can be sent before its receiver is in
 * the matching receive. Messages between two ranks are matched in order. A message's parts have the
 * same numbers on both sides (all-to-all: that of the receiver when sent, that of the sender when
 * received). A step may be idle: neither sends nor receives. */
#ifndef LSI_COMM_PATTERN_H
#define LSI_COMM_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/call.h"

/* Where the order is not kept the side means nothing (every operation is commutative); it is that
 * of the sender's rank then. */
typedef enum lsi_arrival_use {
    LSI_REPLACE,       /* buffer = received */
    LSI_COMBINE_RIGHT, /* buffer = op(buffer, received): the sender stands for higher ranks */
    LSI_COMBINE_LEFT,  /* buffer = op(received, buffer): the sender stands for lower ranks */
} lsi_arrival_use;

/* Parts [begin, begin + n), n may be 0: an empty message is none. */
typedef struct lsi_parts {
    int32_t begin, n;
} lsi_parts;

typedef struct lsi_step {
    int16_t to, from; /* peers, -1: none */
    lsi_parts sent, received;
    lsi_arrival_use use;
} lsi_step;

/* The question: one collective among n ranks. */
typedef struct lsi_pattern_case {
    int kind;  /* lsi_call_kind */
    int n;     /* ranks */
    int root;  /* where the collective has one, else 0 */
    int local; /* two-level: ranks per node, the last node may have fewer; else ignored */
} lsi_pattern_case;

/* For cost formulas: the longest path through the pattern when only messages, only bytes or only
 * combined bytes take time, S being the bytes of the working buffer in n_parts equal parts. A rank
 * sends and receives at the same time. Where all ranks are busy throughout (ring) this is what each
 * of them does; in trees and pipelines it is more than any rank's own, by those it waits for. Never
 * too small; each file says for which n it is exact. */
typedef struct lsi_pattern_cost {
    double messages;       /* alpha: messages one after the other */
    double bytes;          /* beta: share of S, one way */
    double combined_bytes; /* gamma: share of S */
} lsi_pattern_cost;

typedef struct lsi_pattern {
    const char *name; /* "ring" */
    /* Whether it can do the case; the message for those it cannot is made from the name. */
    bool (*supports)(const lsi_pattern_case *c);
    /* Whether the combinations are those of the default order tree (comm/order.h), so that results
     * have the bits of the direct algorithm. True for cases that do not combine. */
    bool (*keeps_order)(const lsi_pattern_case *c);
    int (*n_parts)(const lsi_pattern_case *c);
    int (*n_steps)(const lsi_pattern_case *c, int rank);
    lsi_step (*step)(const lsi_pattern_case *c, int rank, int step);
    lsi_pattern_cost (*cost)(const lsi_pattern_case *c);
} lsi_pattern;

extern const lsi_pattern lsi_pattern_ring, lsi_pattern_halving, lsi_pattern_doubling,
    lsi_pattern_binomial, lsi_pattern_double_tree, lsi_pattern_two_level, lsi_pattern_pairwise;

/* One row per file of this folder; NULL ends. */
extern const lsi_pattern *const lsi_patterns[];
/* NULL if there is none of this name. */
const lsi_pattern *lsi_pattern_find(const char *name);

/* ---- arithmetic that the files of this folder share ---- */

/* n >= 1 */
static inline int lsi_log2_floor(int n) {
    return 31 - __builtin_clz((unsigned)n);
}
static inline int lsi_log2_ceil(int n) {
    return n == 1 ? 0 : lsi_log2_floor(n - 1) + 1;
}
static inline bool lsi_is_power_of_two(int n) {
    return (n & (n - 1)) == 0;
}

/* The lowest n_bits bits of i, mirrored. */
static inline int lsi_mirror_bits(int i, int n_bits) {
    int mirrored = 0;
    for (int bit = 0; bit < n_bits; bit++) mirrored = mirrored << 1 | (i >> bit & 1);
    return mirrored;
}

/* No parts, no message: a peer whose parts are empty becomes -1. */
static inline lsi_step lsi_step_both(int to, lsi_parts sent, int from, lsi_parts received,
                                     lsi_arrival_use use) {
    return (lsi_step){.to = (int16_t)(sent.n > 0 ? to : -1),
                      .from = (int16_t)(received.n > 0 ? from : -1),
                      .sent = sent,
                      .received = received,
                      .use = use};
}
static inline lsi_step lsi_step_idle(void) {
    return lsi_step_both(-1, (lsi_parts){0, 0}, -1, (lsi_parts){0, 0}, LSI_REPLACE);
}
static inline lsi_step lsi_step_send(int to, lsi_parts sent) {
    return lsi_step_both(to, sent, -1, (lsi_parts){0, 0}, LSI_REPLACE);
}
static inline lsi_step lsi_step_receive(int from, lsi_parts received, lsi_arrival_use use) {
    return lsi_step_both(-1, (lsi_parts){0, 0}, from, received, use);
}

#endif
