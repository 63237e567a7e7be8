/* The order in which the ranks' contributions are added: a binary tree with the ranks as leaves,
 * from left to right.
 *
 * Default: n ranks are split at the largest power of two below n, recursively. For 5 ranks:
 *
 *         +
 *        / \
 *       +   4
 *      / \
 *     +   +
 *    0 1 2 3
 *
 * Other trees occur when ranks stand for unequal numbers of micro-batches (parallel/deal.h): then
 * the ranks' tree is the top of the tree over all micro-batches. */
#ifndef LSI_COMM_ORDER_H
#define LSI_COMM_ORDER_H

#include <stdint.h>

#include "base/message.h"
#include "comm/region.h"

/* Node i < n_ranks is leaf i. Inner nodes follow; children come before parents; the last is the
 * root. */
typedef struct lsi_order_node {
    int16_t left, right;
} lsi_order_node;

typedef struct lsi_order {
    int n_ranks;
    int depth; /* scratch blocks that an evaluation needs: 0 for one rank */
    uint32_t hash;
    lsi_order_node node[2 * LSI_MAX_RANKS];
} lsi_order;

/* Largest power of two below n (n >= 2): where a range of n splits. */
int64_t lsi_order_split(int64_t n);
void lsi_order_default(lsi_order *order, int n_ranks);
/* Each rank stands for weight[rank] >= 1 consecutive leaves of the default tree over all of them.
 * LS_ERR_ARGUMENT when a rank's leaves are not one subtree. */
LS_CHECKED ls_status lsi_order_from_weights(lsi_order *order, int n_ranks, const int64_t *weight);

#endif
