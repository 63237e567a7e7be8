/* Sums in blocks that stay in the first-level cache: a block of every input is read once from
 * memory, inner results live in small scratch blocks, the result is written to all outputs.
 * Memory traffic per element: n reads and n_outputs writes, the least possible. */
#include "comm/sum.h"

enum { BLOCK_ELEMS = 1024 };

typedef struct evaluation {
    const lsi_order *order;
    const float *const *input;
    int64_t offset, count;
    float (*scratch)[BLOCK_ELEMS]; /* order->depth + 1 blocks; 0 is for the root */
} evaluation;

static void add(float *restrict sum, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
}

static void add_to(float *restrict sum, const float *restrict b, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + b[i];
}

/* The values of a node: the input itself for a leaf, else scratch block `level`. */
static const float *evaluate(const evaluation *e, int node, int level) {
    if (node < e->order->n_ranks) return e->input[node] + e->offset;
    float *sum = e->scratch[level];
    const float *left = evaluate(e, e->order->node[node].left, level);
    const float *right = evaluate(e, e->order->node[node].right, level + 1);
    if (left == sum)
        add_to(sum, right, e->count);
    else
        add(sum, left, right, e->count);
    return sum;
}

static void write_scaled(float *restrict out, const float *restrict sum, float scale, int64_t n) {
    if (scale == 1.0f)
        for (int64_t i = 0; i < n; i++) out[i] = sum[i];
    else
        for (int64_t i = 0; i < n; i++) out[i] = sum[i] * scale;
}

void lsi_sum_f32(const lsi_order *order, const float *const *input, float *const *output,
                 int n_outputs, int64_t count, double scale) {
    /* Depth is at most log2(n) + 1 for default trees, n for degenerate ones. */
    static _Thread_local float scratch[LSI_MAX_RANKS + 1][BLOCK_ELEMS];
    int root = order->n_ranks == 1 ? 0 : 2 * order->n_ranks - 2;
    evaluation e = {.order = order, .input = input, .scratch = scratch};
    for (e.offset = 0; e.offset < count; e.offset += BLOCK_ELEMS) {
        e.count = count - e.offset < BLOCK_ELEMS ? count - e.offset : BLOCK_ELEMS;
        const float *sum = evaluate(&e, root, 0);
        if (root == 0) { /* one rank: the input may be an output, so it goes through scratch */
            for (int64_t i = 0; i < e.count; i++) scratch[0][i] = sum[i];
            sum = scratch[0];
        }
        for (int j = 0; j < n_outputs; j++)
            write_scaled(output[j] + e.offset, sum, (float)scale, e.count);
    }
}
