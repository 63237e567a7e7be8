/* Building summation orders. Trees are built bottom up into one array, so that evaluating is a
 * walk over indices and a hash of the array identifies the tree. */
#include "comm/order.h"

int64_t lsi_order_split(int64_t n) {
    int64_t split = 1;
    while (2 * split < n) split *= 2;
    return split;
}

static int16_t add_node(lsi_order *order, int *n_nodes, int16_t left, int16_t right) {
    order->node[*n_nodes] = (lsi_order_node){left, right};
    return (int16_t)(*n_nodes)++;
}

/* The tree over leaves [first, first + n) of which the ranks from *rank on own weight[] each.
 * Returns the node, -1 if a border between ranks cuts a subtree that two ranks would share. */
static int16_t build(lsi_order *order, int *n_nodes, const int64_t *weight, int *rank, int64_t n) {
    if (*rank >= order->n_ranks || weight[*rank] > n) return -1;
    if (weight[*rank] == n) return (int16_t)(*rank)++;
    int64_t split = lsi_order_split(n);
    int16_t left = build(order, n_nodes, weight, rank, split);
    int16_t right = left < 0 ? left : build(order, n_nodes, weight, rank, n - split);
    return right < 0 ? right : add_node(order, n_nodes, left, right);
}

static int depth_of(const lsi_order *order, int node) {
    if (node < order->n_ranks) return 0;
    int left = depth_of(order, order->node[node].left);
    int right = depth_of(order, order->node[node].right);
    /* The left result may stay where it is while the right one is made. */
    int both = right + 1;
    return left > both ? left : both;
}

/* FNV-1a over the children. */
static uint32_t hash_of(const lsi_order *order, int n_nodes) {
    uint32_t hash = 2166136261u ^ (uint32_t)order->n_ranks;
    for (int i = order->n_ranks; i < n_nodes; i++) {
        hash = (hash ^ (uint16_t)order->node[i].left) * 16777619u;
        hash = (hash ^ (uint16_t)order->node[i].right) * 16777619u;
    }
    return hash;
}

ls_status lsi_order_from_weights(lsi_order *order, int n_ranks, const int64_t *weight) {
    const int64_t most = INT64_MAX / 4 / LSI_MAX_RANKS; /* doubling a split cannot overflow */
    int64_t total = 0;
    if (n_ranks < 1 || n_ranks > LSI_MAX_RANKS)
        return lsi_fail(LS_ERR_ARGUMENT, "summation order: %d ranks, 1 to %d are possible", n_ranks,
                        LSI_MAX_RANKS);
    for (int r = 0; r < n_ranks; r++) {
        if (weight[r] < 1 || weight[r] > most)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "summation order: rank %d has weight %lld, 1 to %lld "
                            "are possible",
                            r, (long long)weight[r], (long long)most);
        total += weight[r];
    }
    *order = (lsi_order){.n_ranks = n_ranks};
    int n_nodes = n_ranks, rank = 0;
    if (build(order, &n_nodes, weight, &rank, total) < 0 || rank != n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "summation order: the border before rank %d does not "
                        "fall between subtrees of %lld leaves",
                        rank, (long long)total);
    order->depth = depth_of(order, n_nodes - 1);
    order->hash = hash_of(order, n_nodes);
    return LS_OK;
}

void lsi_order_default(lsi_order *order, int n_ranks) {
    int64_t weight[LSI_MAX_RANKS];
    for (int r = 0; r < n_ranks; r++) weight[r] = 1;
    ls_status status = lsi_order_from_weights(order, n_ranks, weight);
    (void)status; /* equal weights of one always fit */
}
