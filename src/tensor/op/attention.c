/* attention: causal self-attention of H heads, dropout on the probabilities.
 *
 *   qkv (B,T,3C): queries, keys, values side by side, each (B,T,H,D) with D = C / H  ->  y (B,T,C)
 *
 *   per sequence and head, matrices (T,D) and (T,T):
 *   S = Q K^T / sqrt(D)      P = softmax of row i over keys 0 … i      M = mask / (1 - p)
 *   Y = (P M) V
 *
 *   dV = (P M)^T dY                          delta[i] = dY[i] . Y[i]  (= sum over j of P dP)
 *   dS = P (M (dY V^T) - delta)              the form of Dao, Fu, Ermon, Rudra, Ré:
 *   dQ = dS K / sqrt(D)                      "FlashAttention", NeurIPS 2022, appendix B.4
 *   dK = dS^T Q / sqrt(D)
 *
 * Saved: of each row its largest score and the reciprocal of its sum of exponentials, two floats;
 * backward reads qkv and y and computes P again with the same bits. No (T,T) matrix is kept or even
 * made: queries are taken in blocks of QUERY_BLOCK rows, a block looks only at the keys up to its
 * own end, and all it needs is one scratch of (QUERY_BLOCK,T) per thread (two in backward). The
 * keys beyond are never multiplied, which halves the work.
 *
 * Sums over keys run in float32 lanes; products accumulate as the library does. Threads share
 * (sequence, head) pairs, and each pair's products run on one thread, so the bits do not depend on
 * the number of threads. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "tensor/dropout_mask.h"
#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/threads.h"

enum { QUERY_BLOCK = 64 };

typedef struct row_stat {
    float largest, reciprocal;
} row_stat;

/* One call of the op, forward or backward. Row strides: 3C in qkv and dqkv, C in y and dy. */
typedef struct attention {
    const float *qkv;
    float *y;
    const float *dy;
    float *dqkv;
    row_stat *stats; /* (B,H,T) */
    float *scratch;  /* scratch_elems per worker */
    int64_t scratch_elems;
    int64_t n_time, channels, n_heads, head_size;
    float scale, dropout;
    bool first;
    lsi_rng_stream stream;
    _Atomic int failure; /* an ls_status; a failed product of any worker */
} attention;

/* One (sequence, head) pair: where its matrices begin. */
typedef struct head {
    const float *q, *k, *v;
    float *dq, *dk, *dv;
    float *y;
    const float *dy;
    row_stat *stats;
    int64_t first_group; /* of the dropout mask of its row 0 */
    float *scores, *grads, *factor;
} head;

/* Groups of the dropout mask that a row owns: masks do not depend on the block of queries. */
static int64_t groups_per_row(const attention *at) {
    return lsi_mask_padded(at->n_time) / LSI_MASK_GROUP;
}

static head head_at(const attention *at, int64_t pair, int worker) {
    int64_t b = pair / at->n_heads, h = pair % at->n_heads;
    int64_t column = h * at->head_size;
    int64_t in = b * at->n_time * 3 * at->channels + column;
    int64_t out = b * at->n_time * at->channels + column;
    float *scratch = at->scratch + worker * at->scratch_elems;
    head hd = {.q = at->qkv + in,
               .k = at->qkv + in + at->channels,
               .v = at->qkv + in + 2 * at->channels,
               .y = at->y + out,
               .stats = at->stats + pair * at->n_time,
               .first_group = pair * at->n_time * groups_per_row(at),
               .factor = scratch,
               .scores = scratch + lsi_mask_padded(at->n_time)};
    if (!at->dqkv) return hd;
    hd.dq = at->dqkv + in;
    hd.dk = hd.dq + at->channels;
    hd.dv = hd.dk + at->channels;
    hd.dy = at->dy + out;
    hd.grads = hd.scores + QUERY_BLOCK * at->n_time;
    return hd;
}

/* Scratch of a worker in floats: a row of mask factors and n_blocks of (QUERY_BLOCK,T). */
static int64_t scratch_elems(int64_t n_time, int n_blocks) {
    return lsi_mask_padded(n_time) + n_blocks * QUERY_BLOCK * n_time;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Scores of queries [begin, end) and keys [0, end), one row of T floats a query. */
static ls_status compute_scores(const attention *at, const head *hd, int64_t begin, int64_t end) {
    int64_t stride = 3 * at->channels;
    return lsi_gemm(false, true, end - begin, end, at->head_size, at->scale, hd->q + begin * stride,
                    stride, hd->k, stride, 0.0f, hd->scores, at->n_time);
}

static void mask_row(const attention *at, const head *hd, int64_t query) {
    lsi_mask_factors(&at->stream, at->dropout, hd->first_group + query * groups_per_row(at),
                     query + 1, hd->factor);
}

/* ---- forward ---- */

/* Scores of one query become exponentials, masked, with zeros for the keys behind it. */
static void weigh_row(const attention *at, const head *hd, float *scores, int64_t query,
                      int64_t n_keys) {
    int64_t n = query + 1;
    float largest = lsi_row_max(scores, n);
    float sum = lsi_row_exp(scores, n, largest);
    hd->stats[query] = (row_stat){largest, 1.0f / sum};
    memset(scores + n, 0, (size_t)(n_keys - n) * sizeof *scores);
    if (at->dropout == 0.0f) return;
    mask_row(at, hd, query);
    const float *restrict factor = hd->factor;
    for (int64_t j = 0; j < n; j++) scores[j] *= factor[j];
}

/* Dividing by the sum after the product with V takes D operations a row instead of T. */
static void forward_block(attention *at, const head *hd, int64_t begin, int64_t end) {
    ls_status status = compute_scores(at, hd, begin, end);
    for (int64_t i = begin; i < end; i++)
        weigh_row(at, hd, hd->scores + (i - begin) * at->n_time, i, end);
    if (status == LS_OK)
        status =
            lsi_gemm(false, false, end - begin, at->head_size, end, 1.0f, hd->scores, at->n_time,
                     hd->v, 3 * at->channels, 0.0f, hd->y + begin * at->channels, at->channels);
    if (status != LS_OK) at->failure = (int)status;
    for (int64_t i = begin; i < end; i++) {
        float *y = hd->y + i * at->channels, reciprocal = hd->stats[i].reciprocal;
        for (int64_t d = 0; d < at->head_size; d++) y[d] *= reciprocal;
    }
}

static void forward_range(void *context, int64_t first_pair, int64_t end_pair, int worker) {
    attention *at = context;
    for (int64_t pair = first_pair; pair < end_pair; pair++) {
        head hd = head_at(at, pair, worker);
        for (int64_t begin = 0; begin < at->n_time; begin += QUERY_BLOCK)
            forward_block(at, &hd, begin, smaller(begin + QUERY_BLOCK, at->n_time));
    }
}

/* ---- backward ---- */

/* One query: scores become P M, the product dY V^T becomes dS; zeros for the keys behind it. */
static void grad_row(const attention *at, const head *hd, float *scores, float *grads,
                     int64_t query, int64_t n_keys) {
    int64_t n = query + 1;
    row_stat stat = hd->stats[query];
    const float *dy = hd->dy + query * at->channels;
    float delta = lsi_row_dot(dy, hd->y + query * at->channels, at->head_size);
    float *restrict s = scores, *restrict g = grads;
    if (at->dropout == 0.0f) {
        for (int64_t j = 0; j < n; j++) {
            float p = lsi_expf(s[j] - stat.largest) * stat.reciprocal;
            s[j] = p;
            g[j] = p * (g[j] - delta);
        }
    } else {
        mask_row(at, hd, query);
        const float *restrict factor = hd->factor;
        for (int64_t j = 0; j < n; j++) {
            float p = lsi_expf(s[j] - stat.largest) * stat.reciprocal;
            s[j] = p * factor[j];
            g[j] = p * (g[j] * factor[j] - delta);
        }
    }
    memset(scores + n, 0, (size_t)(n_keys - n) * sizeof *scores);
    memset(grads + n, 0, (size_t)(n_keys - n) * sizeof *grads);
}

/* Queries [begin, end) contribute to their dQ and to dK, dV of the keys before `end`. The last
 * block, which comes first, overwrites all of dK and dV if this is the first contribution. */
static ls_status backward_block(const attention *at, const head *hd, int64_t begin, int64_t end) {
    int64_t n = end - begin, d = at->head_size, t = at->n_time;
    int64_t in = 3 * at->channels, out = at->channels;
    const float *q = hd->q + begin * in, *dy = hd->dy + begin * out;
    float keep = at->first ? 0.0f : 1.0f;
    float keep_keys = at->first && end == t ? 0.0f : 1.0f;
    LSI_TRY(compute_scores(at, hd, begin, end));
    LSI_TRY(lsi_gemm(false, true, n, end, d, 1.0f, dy, out, hd->v, in, 0.0f, hd->grads, t));
    for (int64_t i = begin; i < end; i++)
        grad_row(at, hd, hd->scores + (i - begin) * t, hd->grads + (i - begin) * t, i, end);
    LSI_TRY(lsi_gemm(true, false, end, d, n, 1.0f, hd->scores, t, dy, out, keep_keys, hd->dv, in));
    LSI_TRY(
        lsi_gemm(true, false, end, d, n, at->scale, hd->grads, t, q, in, keep_keys, hd->dk, in));
    return lsi_gemm(false, false, n, d, end, at->scale, hd->grads, t, hd->k, in, keep,
                    hd->dq + begin * in, in);
}

static void backward_range(void *context, int64_t first_pair, int64_t end_pair, int worker) {
    attention *at = context;
    int64_t last_block = (at->n_time - 1) / QUERY_BLOCK * QUERY_BLOCK;
    for (int64_t pair = first_pair; pair < end_pair; pair++) {
        head hd = head_at(at, pair, worker);
        for (int64_t begin = last_block; begin >= 0; begin -= QUERY_BLOCK) {
            int64_t end = smaller(begin + QUERY_BLOCK, at->n_time);
            ls_status status = backward_block(at, &hd, begin, end);
            if (status != LS_OK) at->failure = (int)status;
        }
    }
}

/* ---- the op ---- */

/* Runs over all pairs with scratch of n_blocks per worker. */
static ls_status run(lsi_tape *tape, attention *at, int64_t n_batch, int n_blocks,
                     lsi_range_fn range) {
    int64_t pairs = n_batch * at->n_heads;
    int64_t grain = lsi_grain(at->n_time * at->n_time * at->head_size / 16);
    at->scratch_elems = scratch_elems(at->n_time, n_blocks);
    size_t elems = (size_t)(lsi_n_workers(pairs, grain) * at->scratch_elems);
    at->scratch = lsi_tape_scratch(tape, elems * sizeof *at->scratch);
    if (!at->scratch) return lsi_tape_status(tape);
    lsi_for_ranges(pairs, grain, range, at);
    lsi_tape_release(tape, at->scratch);
    if (at->failure == LS_OK) return LS_OK;
    return lsi_fail((ls_status)at->failure, "attention: a matrix product failed");
}

static attention describe(const lsi_tensor *qkv, int64_t n_heads, float dropout) {
    int64_t channels = qkv->dims[2] / 3;
    return (attention){.qkv = qkv->data,
                       .n_time = qkv->dims[1],
                       .channels = channels,
                       .n_heads = n_heads,
                       .head_size = channels / n_heads,
                       .scale = 1.0f / sqrtf((float)(channels / n_heads)),
                       .dropout = dropout};
}

static ls_status attention_backward(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *qkv = node->input[0];
    attention at = describe(qkv, node->number[0], node->scalar);
    at.y = node->output->data;
    at.dy = node->output->grad;
    at.stats = node->saved[0];
    at.stream = node->stream;
    at.dqkv = lsi_grad(tape, qkv, &at.first);
    if (!at.dqkv) return lsi_tape_status(tape);
    return run(tape, &at, qkv->dims[0], 2, backward_range);
}

static ls_status check(const lsi_tensor *qkv, int n_heads, float dropout) {
    if (qkv->n_dims != 3 || qkv->dims[2] % 3 != 0)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "attention: expected queries, keys, values of shape (B,T,3C), found %s",
                        lsi_dims_text(qkv->n_dims, qkv->dims));
    if (n_heads < 1 || qkv->dims[2] / 3 % n_heads != 0)
        return lsi_fail(
            LS_ERR_ARGUMENT,
            "attention: expected a number of heads that divides %lld channels, found %d",
            (long long)qkv->dims[2] / 3, n_heads);
    if (!(dropout >= 0.0f && dropout < 1.0f))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "attention: expected a dropout probability in [0, 1), found %g",
                        (double)dropout);
    return LS_OK;
}

lsi_tensor *lsi_op_attention(lsi_tape *tape, lsi_tensor *qkv, int n_heads, float dropout) {
    if (!lsi_op_begin(tape, "attention", 1, &qkv)) return NULL;
    ls_status status = check(qkv, n_heads, dropout);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    if (!lsi_tape_is_recording(tape)) dropout = 0.0f;

    attention at = describe(qkv, n_heads, dropout);
    if (dropout > 0.0f) at.stream = lsi_tape_next_stream(tape);
    int64_t n_batch = qkv->dims[0];
    size_t rows = (size_t)(n_batch * n_heads * at.n_time);
    lsi_tensor *y = lsi_tape_activation(tape, 3, (int64_t[]){n_batch, at.n_time, at.channels});
    at.stats = y ? lsi_tape_scratch(tape, rows * sizeof *at.stats) : NULL;
    if (!at.stats) return NULL;
    at.y = y->data;
    (void)lsi_tape_fail_with(tape, run(tape, &at, n_batch, 1, forward_range));
    lsi_node node = {.backward = attention_backward,
                     .name = "attention",
                     .input = {qkv},
                     .output = y,
                     .reads = LSI_READS_INPUT(0) | LSI_READS_OUTPUT,
                     .saved = {at.stats},
                     .number = {n_heads},
                     .scalar = dropout,
                     .stream = at.stream};
    lsi_tape_record(tape, &node);
    return lsi_tape_status(tape) == LS_OK ? y : NULL;
}
