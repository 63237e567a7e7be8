/* Which rank computes which micro-batches of a step.
 *
 * A step has n micro-batches, numbered over all ranks; each rank gets consecutive ones. Gradients
 * are added pairwise in the default tree over these numbers. If each rank's share is one subtree,
 * the rank can add it alone, the ranks' sums are joined by the top of the tree, and the result has
 * the same bits for any number of ranks.
 *
 * Strategies that exchange every micro-batch have them in rounds instead: micro-batch i of rank r
 * is number i * n_ranks + r, so that the sums over ranks come in the order of the numbers. Where
 * the ranks are a power of two, a round is one subtree.
 *
 * With shard groups of consecutive ranks, each group has consecutive micro-batches, which its ranks
 * have in rounds.
 *
 * Equal shares are subtrees when a share is a power of two. Otherwise a reproducible deal gives
 * unequal shares along the borders of the tree, for example 6 on 2 ranks: 4 and 2. */
#ifndef LSI_PARALLEL_DEAL_H
#define LSI_PARALLEL_DEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "comm/order.h"

typedef struct lsi_deal {
    int n_ranks;
    int64_t first[LSI_MAX_RANKS]; /* number of a rank's first micro-batch */
    int64_t step;                 /* from a micro-batch of a rank to its next: 1, or the ranks of a
                                     group that has them in rounds */
    int64_t count[LSI_MAX_RANKS]; /* how many it has, >= 1 */
    int64_t largest;              /* of the counts */
    lsi_order order;              /* of the ranks' sums */
    lsi_order group_order;        /* in rounds: of the sums of groups; else of 0 ranks */
} lsi_deal;

/* LS_ERR_ARGUMENT when there are fewer micro-batches than ranks, or, unless reproducible, when they
 * cannot be shared equally. */
LS_CHECKED ls_status lsi_deal_micro_batches(lsi_deal *deal, int64_t n_micro_batches, int n_ranks,
                                            bool reproducible);

/* The same in rounds of group_size consecutive ranks, which divides n_ranks. The ranks of a group
 * have equal shares; LS_ERR_ARGUMENT when they cannot. */
LS_CHECKED ls_status lsi_deal_rounds(lsi_deal *deal, int64_t n_micro_batches, int n_ranks,
                                     int group_size, bool reproducible);
/* The number of micro-batch i of a rank. */
static inline int64_t lsi_deal_number(const lsi_deal *deal, int rank, int64_t i) {
    return deal->first[rank] + i * deal->step;
}
/* Who has micro-batch `number`, as which of its own. */
int lsi_deal_find(const lsi_deal *deal, int64_t number, int64_t *i);

#endif
