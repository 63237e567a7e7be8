/* Dealing micro-batches: equal shares where possible, along the tree where bits require it. */
#include "parallel/deal.h"

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* How many of n_ranks ranks take the left part of a split of n micro-batches: the number that keeps
 * the largest share smallest, the lowest of these. */
static int ranks_on_the_left(int64_t left, int64_t right, int n_ranks) {
    int best = 0;
    int64_t best_share = INT64_MAX;
    for (int k = 1; k < n_ranks; k++) {
        if (k > left || n_ranks - k > right) continue;
        int64_t l = ceil_div(left, k), r = ceil_div(right, n_ranks - k);
        int64_t share = l > r ? l : r;
        if (share < best_share) {
            best_share = share;
            best = k;
        }
    }
    return best;
}

/* Shares of n >= n_ranks micro-batches along the borders of the tree over them. */
static void share_along_tree(int64_t n, int n_ranks, int64_t *count) {
    if (n_ranks == 1) {
        *count = n;
        return;
    }
    int64_t left = lsi_order_split(n);
    int k = ranks_on_the_left(left, n - left, n_ranks);
    share_along_tree(left, k, count);
    share_along_tree(n - left, n_ranks - k, count + k);
}

static void finish(lsi_deal *deal) {
    int64_t next = 0;
    deal->step = 1;
    deal->largest = 0;
    for (int r = 0; r < deal->n_ranks; r++) {
        deal->first[r] = next;
        next += deal->count[r];
        if (deal->count[r] > deal->largest) deal->largest = deal->count[r];
    }
}

ls_status lsi_deal_micro_batches(lsi_deal *deal, int64_t n_micro_batches, int n_ranks,
                                 bool reproducible) {
    deal->n_ranks = n_ranks;
    deal->group_order.n_ranks = 0;
    if (n_ranks < 1 || n_ranks > LSI_MAX_RANKS)
        return lsi_fail(LS_ERR_ARGUMENT, "%d ranks, expected 1 to %d", n_ranks, LSI_MAX_RANKS);
    if (n_micro_batches < n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%lld micro-batches cannot keep %d ranks busy; use at "
                        "most %lld",
                        (long long)n_micro_batches, n_ranks, (long long)n_micro_batches);
    bool equal = n_micro_batches % n_ranks == 0;
    if (!equal && !reproducible)
        return lsi_fail(LS_ERR_ARGUMENT, "%lld micro-batches cannot be shared equally by %d ranks",
                        (long long)n_micro_batches, n_ranks);
    for (int r = 0; r < n_ranks; r++) deal->count[r] = n_micro_batches / n_ranks;
    if (!reproducible)
        lsi_order_default(&deal->order, n_ranks);
    else if (!equal || lsi_order_from_weights(&deal->order, n_ranks, deal->count) != LS_OK) {
        share_along_tree(n_micro_batches, n_ranks, deal->count);
        LSI_TRY(lsi_order_from_weights(&deal->order, n_ranks, deal->count));
    }
    finish(deal);
    return LS_OK;
}

ls_status lsi_deal_rounds(lsi_deal *deal, int64_t n_micro_batches, int n_ranks, int group_size,
                          bool reproducible) {
    lsi_deal groups;
    int n_groups = n_ranks / group_size;
    LSI_TRY(lsi_deal_micro_batches(&groups, n_micro_batches, n_groups, reproducible));
    *deal = (lsi_deal){.n_ranks = n_ranks, .step = group_size, .group_order = groups.order};
    lsi_order_default(&deal->order, n_ranks);
    for (int g = 0; g < n_groups; g++) {
        if (groups.count[g] % group_size != 0)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "the %lld micro-batches of group %d cannot be shared equally by its %d "
                            "ranks",
                            (long long)groups.count[g], g, group_size);
        for (int r = 0; r < group_size; r++) {
            deal->first[g * group_size + r] = groups.first[g] + r;
            deal->count[g * group_size + r] = groups.count[g] / group_size;
        }
    }
    deal->largest = groups.largest / group_size;
    return LS_OK;
}

/* Group by group (a rank alone is one), then in rounds. */
int lsi_deal_find(const lsi_deal *deal, int64_t number, int64_t *i) {
    int size = (int)deal->step, rank = 0;
    while (number >= deal->first[rank] + deal->count[rank] * deal->step) rank += size;
    int64_t in_group = number - deal->first[rank];
    *i = in_group / size;
    return rank + (int)(in_group % size);
}
