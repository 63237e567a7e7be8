/* attention: causal self-attention of H heads in groups, dropout on the probabilities.
 *
 *   qkv (B,T,3C): queries, keys, values side by side, D = C / H         ->  y (B,T,C)   attention
 *   q (B,T,H D)  k, v (B,T,G D): H / G heads share a head of keys       ->  y (B,T,H D) …_grouped
 *
 *   per sequence and head, matrices (T,D) and (T,T):
 *   S = Q K^T / sqrt(D)      P = softmax of row i over keys 0 … i      M = mask / (1 - p)
 *   Y = (P M) V
 *
 *   dV = (P M)^T dY                          delta[i] = dY[i] . Y[i]  (= sum over j of P dP)
 *   dS = P (M (dY V^T) - delta)              the form of Dao, Fu, Ermon, Rudra, Ré:
 *   dQ = dS K / sqrt(D)                      "FlashAttention", NeurIPS 2022, appendix B.4
 *   dK = dS^T Q / sqrt(D)
 *   Shared keys and values get the sum over their heads (Ainslie et al.: "GQA", EMNLP 2023).
 *
 * Saved: of each row its largest score and the reciprocal of its sum of exponentials, two floats;
 * backward reads q, k, v and y and computes P again with the same bits. No (T,T) matrix is kept or
 * even made: queries are taken in blocks of QUERY_BLOCK rows, a block looks only at the keys up to
 * its own end, and all it needs is one scratch of (QUERY_BLOCK,T) per thread (two in backward). The
 * keys beyond are never multiplied, which halves the work; of the block's own keys, products may
 * leave out what lies behind the diagonal (lsi_band). e^x is 2^(x log2 e), which is cheaper.
 *
 * Scores, softmax and the sums for dK and dV are float32 for either type; P and dS enter products
 * in the type of q. Threads share (sequence, head of keys) pairs, and each pair's products run on
 * one thread, so the bits do not depend on the number of threads. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "tensor/dropout_mask.h"
#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/tape_impl.h"
#include "tensor/threads.h"

enum { QUERY_BLOCK = 64, ROW_ALIGN = 32 };

/* P of a row = 2^(binary_scale S - largest) reciprocal. */
typedef struct row_stat {
    float largest, reciprocal;
} row_stat;

/* A matrix of rows with `stride` elements from one to the next. */
typedef struct view {
    char *at;
    int64_t stride;
} view;

/* One call of the op, forward or backward. */
typedef struct attention {
    ls_dtype dtype;
    view q, k, v, y, dq, dk, dv, dy; /* of all sequences and heads; a head is a range of columns */
    bool first_q, first_k, first_v;
    row_stat *stats; /* (B,H,T) */
    lsi_tape *tape;
    char *scratch; /* scratch_bytes per worker */
    size_t scratch_bytes;
    int64_t n_batch, n_time, n_heads, n_groups, head_size;
    float scale, binary_scale; /* of scores, for e^ and for 2^ */
    float dropout;
    lsi_rng_stream stream;
    _Atomic int failure; /* an ls_status; a failed product of any worker */
} attention;

/* One (sequence, head): where its matrices begin, and the worker's scratch. */
typedef struct head {
    view q, k, v, y, dq, dk, dv, dy;
    row_stat *stats;
    int64_t first_group; /* of the dropout mask of its row 0 */
    int worker;
    int64_t row;           /* elements from row to row of scores, as floats */
    float *scores, *grads; /* (QUERY_BLOCK,row) */
    float *sum_k, *sum_v;  /* (T,D): gradients of the group's keys and values, if narrow */
    float *block;          /* (QUERY_BLOCK,D) */
    float *factor;         /* of the mask, one row */
    float *room;           /* two rows of D */
} head;

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/* Groups of the dropout mask that a row owns: masks do not depend on the block of queries. */
static int64_t groups_per_row(const attention *at) {
    return lsi_mask_padded(at->n_time) / LSI_MASK_GROUP;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Row `row` and column `column` of a matrix. */
static view part(const attention *at, view whole, int64_t row, int64_t column) {
    if (!whole.at) return whole;
    whole.at += (row * whole.stride + column) * lsi_dtype_size(at->dtype);
    return whole;
}

/* Floats of a worker's scratch, in the order of `head`; those of gradients are empty in forward. */
enum { N_PIECES = 7 };

static void piece_sizes(const attention *at, int64_t sizes[N_PIECES]) {
    int64_t d = at->head_size, t = at->n_time, row = round_up(t, ROW_ALIGN);
    bool is_backward = at->dy.at != NULL;
    sizes[0] = QUERY_BLOCK * row;
    sizes[1] = is_backward ? QUERY_BLOCK * row : 0;
    sizes[2] = sizes[3] = is_backward && at->dtype != LS_DTYPE_F32 ? round_up(t * d, ROW_ALIGN) : 0;
    sizes[4] = round_up(QUERY_BLOCK * d, ROW_ALIGN);
    sizes[5] = lsi_mask_padded(t);
    sizes[6] = round_up(2 * d, ROW_ALIGN);
}

static void lay_out(const attention *at, head *hd, float *scratch) {
    float **pieces[N_PIECES] = {&hd->scores, &hd->grads,  &hd->sum_k, &hd->sum_v,
                                &hd->block,  &hd->factor, &hd->room};
    int64_t sizes[N_PIECES];
    piece_sizes(at, sizes);
    hd->row = round_up(at->n_time, ROW_ALIGN);
    for (int i = 0; i < N_PIECES; scratch += sizes[i++]) *pieces[i] = scratch;
}

static size_t scratch_bytes(const attention *at) {
    int64_t sizes[N_PIECES], elems = 0;
    piece_sizes(at, sizes);
    for (int i = 0; i < N_PIECES; i++) elems += sizes[i];
    return (size_t)elems * sizeof(float);
}

static head head_at(const attention *at, int64_t b, int64_t h, int worker) {
    int64_t group = h / (at->n_heads / at->n_groups);
    int64_t row = b * at->n_time, column = h * at->head_size, shared = group * at->head_size;
    head hd = {.q = part(at, at->q, row, column),
               .k = part(at, at->k, row, shared),
               .v = part(at, at->v, row, shared),
               .y = part(at, at->y, row, column),
               .dq = part(at, at->dq, row, column),
               .dk = part(at, at->dk, row, shared),
               .dv = part(at, at->dv, row, shared),
               .dy = part(at, at->dy, row, column),
               .stats = at->stats + (b * at->n_heads + h) * at->n_time,
               .first_group = (b * at->n_heads + h) * at->n_time * groups_per_row(at),
               .worker = worker};
    lay_out(at, &hd, (float *)(void *)(at->scratch + (size_t)worker * at->scratch_bytes));
    return hd;
}

/* ---- products ---- */

static lsi_operand operand(const attention *at, view v, bool transposed) {
    return (lsi_operand){v.at, at->dtype, v.stride, transposed};
}

/* A block of scores that rows have turned into the type of q: bfloat16 takes the first half of each
 * row. */
static lsi_operand weights(const attention *at, const head *hd, const float *block,
                           bool transposed) {
    int64_t stride = at->dtype == LS_DTYPE_F32 ? hd->row : 2 * hd->row;
    return (lsi_operand){block, at->dtype, stride, transposed};
}

/* Sums are float32 unless the product says otherwise. */
static ls_status multiply(const attention *at, const head *hd, lsi_product p) {
    if (!p.c_dtype) p.c_dtype = LS_DTYPE_F32;
    p.packing = LSI_PACK_NEVER;
    return lsi_tape_multiply_by(at->tape, hd->worker, &p);
}

/* C = rows keys^T of queries [begin, end) and keys [0, end), one row a query. */
static ls_status multiply_by_keys(const attention *at, const head *hd, int64_t begin, int64_t end,
                                  view rows, view keys, float *c) {
    return multiply(at, hd,
                    (lsi_product){.m = end - begin,
                                  .n = end,
                                  .k = at->head_size,
                                  .a = operand(at, part(at, rows, begin, 0), false),
                                  .b = operand(at, keys, true),
                                  .c = c,
                                  .c_stride = hd->row,
                                  .band = LSI_BAND_C_LOWER,
                                  .diagonal = begin});
}

/* Unscaled scores. */
static ls_status compute_scores(const attention *at, const head *hd, int64_t begin, int64_t end) {
    return multiply_by_keys(at, hd, begin, end, hd->q, hd->k, hd->scores);
}

static void mask_row(const attention *at, const head *hd, int64_t query, int64_t n) {
    lsi_mask_factors(&at->stream, at->dropout, hd->first_group + query * groups_per_row(at), n,
                     hd->factor);
}

/* Keys that a row computes, of the block's: those up to its query, and as many more as fill the
 * lanes. */
static int64_t keys_of_row(int64_t query, int64_t n_keys) {
    return smaller(round_up(query + 1, LSI_LANES), n_keys);
}

/* The first n of a row of weights, then zeros up to n_keys, in the type of q. */
static void finish_row(const attention *at, float *row, int64_t n, int64_t n_keys) {
    memset(row + n, 0, (size_t)(n_keys - n) * sizeof *row);
    lsi_narrow(row, at->dtype, n_keys);
}

/* ---- forward ---- */

/* Scores of one query become exponentials, masked. */
static void weigh_row(const attention *at, const head *hd, float *scores, int64_t query,
                      int64_t n_keys) {
    int64_t n = keys_of_row(query, n_keys);
    float *restrict s = scores;
    for (int64_t j = query + 1; j < n; j++) s[j] = -INFINITY; /* 2^-125, which no sum notices */
    float largest = at->binary_scale * lsi_row_max(scores, n);
    float sum = lsi_row_exp2(scores, n, at->binary_scale, largest);
    hd->stats[query] = (row_stat){largest, 1.0f / sum};
    if (at->dropout > 0.0f) {
        mask_row(at, hd, query, n);
        const float *restrict factor = hd->factor;
        for (int64_t j = 0; j < n; j++) s[j] *= factor[j];
    }
    finish_row(at, scores, query + 1, n_keys);
}

/* Dividing by the sum after the product with V takes D operations a row instead of T. */
static void store_outputs(const attention *at, const head *hd, int64_t begin, int64_t end) {
    int64_t d = at->head_size;
    for (int64_t i = begin; i < end; i++) {
        float *restrict sum = hd->block + (i - begin) * d, reciprocal = hd->stats[i].reciprocal;
        for (int64_t c = 0; c < d; c++) sum[c] *= reciprocal;
        lsi_store_floats(part(at, hd->y, i, 0).at, at->dtype, d, sum);
    }
}

static ls_status forward_block(const attention *at, const head *hd, int64_t begin, int64_t end) {
    LSI_TRY(compute_scores(at, hd, begin, end));
    for (int64_t i = begin; i < end; i++)
        weigh_row(at, hd, hd->scores + (i - begin) * hd->row, i, end);
    LSI_TRY(multiply(at, hd,
                     (lsi_product){.m = end - begin,
                                   .n = at->head_size,
                                   .k = end,
                                   .a = weights(at, hd, hd->scores, false),
                                   .b = operand(at, hd->v, false),
                                   .c = hd->block,
                                   .c_stride = at->head_size,
                                   .band = LSI_BAND_A_LOWER,
                                   .diagonal = begin}));
    store_outputs(at, hd, begin, end);
    return LS_OK;
}

static ls_status forward_head(const attention *at, const head *hd) {
    for (int64_t begin = 0; begin < at->n_time; begin += QUERY_BLOCK)
        LSI_TRY(forward_block(at, hd, begin, smaller(begin + QUERY_BLOCK, at->n_time)));
    return LS_OK;
}

/* Items are (sequence, head) pairs. */
static void forward_range(void *context, int64_t first, int64_t end, int worker) {
    attention *at = context;
    for (int64_t pair = first; pair < end; pair++) {
        head hd = head_at(at, pair / at->n_heads, pair % at->n_heads, worker);
        ls_status status = forward_head(at, &hd);
        if (status != LS_OK) at->failure = (int)status;
    }
}

/* ---- backward ---- */

/* dY[i] . Y[i] of a block's queries, ahead of their rows: this way the processor waits for the
 * memory of several at once. */
static void compute_deltas(const attention *at, const head *hd, int64_t begin, int64_t end,
                           float delta[QUERY_BLOCK]) {
    int64_t d = at->head_size;
    for (int64_t i = begin; i < end; i++) {
        const float *dy = lsi_read(part(at, hd->dy, i, 0).at, at->dtype, 0, d, hd->room);
        const float *y = lsi_read(part(at, hd->y, i, 0).at, at->dtype, 0, d, hd->room + d);
        delta[i - begin] = lsi_row_dot(dy, y, d);
    }
}

/* One query: scores become P M, the product dY V^T becomes dS / sqrt(D). */
static void grad_row(const attention *at, const head *hd, float *scores, float *grads, float delta,
                     int64_t query, int64_t n_keys) {
    int64_t n = keys_of_row(query, n_keys);
    row_stat stat = hd->stats[query];
    float scale = at->scale, binary = at->binary_scale;
    float *restrict s = scores, *restrict g = grads;
    if (at->dropout == 0.0f) {
        for (int64_t j = 0; j < n; j++) {
            float p = lsi_exp2f_bounded(lsi_fma(s[j], binary, -stat.largest)) * stat.reciprocal;
            s[j] = p;
            g[j] = p * (g[j] - delta) * scale;
        }
    } else {
        mask_row(at, hd, query, n);
        const float *restrict factor = hd->factor;
        for (int64_t j = 0; j < n; j++) {
            float p = lsi_exp2f_bounded(lsi_fma(s[j], binary, -stat.largest)) * stat.reciprocal;
            s[j] = p * factor[j];
            g[j] = p * (g[j] * factor[j] - delta) * scale;
        }
    }
    finish_row(at, scores, query + 1, n_keys);
    finish_row(at, grads, query + 1, n_keys);
}

/* Where gradients of a group's keys or values are added up. */
typedef struct key_sums {
    float *at; /* (T,D); NULL: not wanted */
    int64_t stride;
    bool add; /* something is there that counts */
} key_sums;

/* float32 in the gradient's place, else in scratch, from where `contribute` brings them. */
static key_sums sums_for(const attention *at, view grad, float *scratch, bool first) {
    if (!grad.at) return (key_sums){NULL, 0, false};
    if (at->dtype != LS_DTYPE_F32) return (key_sums){scratch, at->head_size, false};
    return (key_sums){(float *)(void *)grad.at, grad.stride, !first};
}

/* sums (end,D) = or += block^T rows, of queries [begin, end): their share of dV or dK. */
static ls_status add_to_keys(const attention *at, const head *hd, int64_t begin, int64_t end,
                             const float *block, view rows, key_sums sums, bool is_first) {
    if (!sums.at) return LS_OK;
    return multiply(at, hd,
                    (lsi_product){.m = end,
                                  .n = at->head_size,
                                  .k = end - begin,
                                  .a = weights(at, hd, block, true),
                                  .b = operand(at, part(at, rows, begin, 0), false),
                                  .c = sums.at,
                                  .c_stride = sums.stride,
                                  .add = sums.add || !is_first,
                                  .band = LSI_BAND_A_UPPER,
                                  .diagonal = begin});
}

static ls_status store_query_grads(const attention *at, const head *hd, int64_t begin,
                                   int64_t end) {
    view dq = part(at, hd->dq, begin, 0);
    if (!dq.at) return LS_OK;
    return multiply(at, hd,
                    (lsi_product){.m = end - begin,
                                  .n = at->head_size,
                                  .k = end,
                                  .a = weights(at, hd, hd->grads, false),
                                  .b = operand(at, hd->k, false),
                                  .c = dq.at,
                                  .c_dtype = at->dtype,
                                  .c_stride = dq.stride,
                                  .add = !at->first_q,
                                  .band = LSI_BAND_A_LOWER,
                                  .diagonal = begin});
}

/* Queries [begin, end) contribute to their dQ and to the sums for the keys before `end`. The last
 * block of the group's first head, which comes first, overwrites all of these. */
static ls_status backward_block(const attention *at, const head *hd, int64_t begin, int64_t end,
                                bool is_first) {
    float delta[QUERY_BLOCK];
    LSI_TRY(compute_scores(at, hd, begin, end));
    LSI_TRY(multiply_by_keys(at, hd, begin, end, hd->dy, hd->v, hd->grads));
    compute_deltas(at, hd, begin, end, delta);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = (i - begin) * hd->row;
        grad_row(at, hd, hd->scores + row, hd->grads + row, delta[i - begin], i, end);
    }
    key_sums dv = sums_for(at, hd->dv, hd->sum_v, at->first_v);
    key_sums dk = sums_for(at, hd->dk, hd->sum_k, at->first_k);
    LSI_TRY(add_to_keys(at, hd, begin, end, hd->scores, hd->dy, dv, is_first));
    LSI_TRY(add_to_keys(at, hd, begin, end, hd->grads, hd->q, dk, is_first));
    return store_query_grads(at, hd, begin, end);
}

static ls_status backward_head(const attention *at, const head *hd, bool is_first) {
    int64_t last_block = (at->n_time - 1) / QUERY_BLOCK * QUERY_BLOCK;
    for (int64_t begin = last_block; begin >= 0; begin -= QUERY_BLOCK) {
        int64_t end = smaller(begin + QUERY_BLOCK, at->n_time);
        LSI_TRY(backward_block(at, hd, begin, end, is_first));
        is_first = false;
    }
    return LS_OK;
}

/* Sums in scratch reach the gradient. */
static void contribute(const attention *at, view to, const float *sum, bool first, float *room) {
    if (!to.at || at->dtype == LS_DTYPE_F32) return;
    for (int64_t i = 0; i < at->n_time; i++) {
        void *row = part(at, to, i, 0).at;
        const float *restrict from = sum + i * at->head_size;
        float *out = first ? lsi_place(row, at->dtype, 0, room)
                           : lsi_edit(row, at->dtype, 0, at->head_size, room);
        for (int64_t c = 0; c < at->head_size; c++) lsi_contribute(out + c, from[c], first);
        lsi_keep(row, at->dtype, 0, at->head_size, out);
    }
}

/* Items are (sequence, head of keys) pairs. */
static void backward_range(void *context, int64_t first, int64_t end, int worker) {
    attention *at = context;
    int64_t heads = at->n_heads / at->n_groups;
    for (int64_t pair = first; pair < end; pair++) {
        int64_t b = pair / at->n_groups, h = pair % at->n_groups * heads;
        head hd = head_at(at, b, h, worker);
        for (int64_t i = 0; i < heads; i++) {
            hd = head_at(at, b, h + i, worker);
            ls_status status = backward_head(at, &hd, i == 0);
            if (status != LS_OK) at->failure = (int)status;
        }
        contribute(at, hd.dk, hd.sum_k, at->first_k, hd.room);
        contribute(at, hd.dv, hd.sum_v, at->first_v, hd.room);
    }
}

/* ---- the ops ---- */

/* Runs over `pairs` items. */
static ls_status run(attention *at, int64_t pairs, lsi_range_fn range) {
    int64_t grain = lsi_grain(at->n_time * at->n_time * at->head_size / 16);
    int n_workers = lsi_n_workers(pairs, grain);
    at->scratch_bytes = scratch_bytes(at);
    at->scratch = lsi_tape_scratch(at->tape, (size_t)n_workers * at->scratch_bytes);
    if (!at->scratch) return lsi_tape_status(at->tape);
    LSI_TRY(lsi_tape_reserve_workers(at->tape, n_workers));
    lsi_for_ranges(pairs, grain, range, at);
    lsi_tape_release(at->tape, at->scratch);
    if (at->failure == LS_OK) return LS_OK;
    return lsi_fail((ls_status)at->failure, "attention: a matrix product failed");
}

static view view_of(void *data, const lsi_tensor *t, int64_t column) {
    if (!data) return (view){NULL, 0};
    return (view){(char *)data + column * lsi_dtype_size(t->dtype), lsi_tensor_columns(t)};
}

/* number: heads, groups. One input: queries, keys and values side by side. */
static attention describe(lsi_tape *tape, const lsi_node *node) {
    lsi_tensor *y = node->output, *q = node->input[0];
    int64_t n_heads = node->number[0], columns = lsi_tensor_columns(y);
    bool fused = !node->input[1];
    attention at = {.dtype = y->dtype,
                    .y = view_of(y->data, y, 0),
                    .stats = node->saved[0],
                    .tape = tape,
                    .n_batch = y->dims[0],
                    .n_time = y->dims[1],
                    .n_heads = n_heads,
                    .n_groups = node->number[1],
                    .head_size = columns / n_heads,
                    .scale = 1.0f / sqrtf((float)(columns / n_heads)),
                    .dropout = node->scalar,
                    .stream = node->stream};
    at.q = view_of(q->data, q, 0);
    at.k = fused ? view_of(q->data, q, columns) : view_of(node->input[1]->data, node->input[1], 0);
    at.v =
        fused ? view_of(q->data, q, 2 * columns) : view_of(node->input[2]->data, node->input[2], 0);
    at.binary_scale = at.scale * LSI_LOG2_E;
    return at;
}

/* The gradients of the inputs that need one. */
static ls_status find_grads(lsi_tape *tape, lsi_node *node, attention *at) {
    lsi_tensor *q = node->input[0], *k = node->input[1], *v = node->input[2];
    int64_t columns = lsi_tensor_columns(node->output);
    at->dy = view_of(node->output->grad, node->output, 0);
    void *dq = lsi_grad(tape, q, &at->first_q);
    at->dq = view_of(dq, q, 0);
    if (!k) {
        at->dk = view_of(dq, q, columns);
        at->dv = view_of(dq, q, 2 * columns);
        at->first_k = at->first_v = at->first_q;
        return lsi_tape_status(tape);
    }
    at->dk = view_of(lsi_grad(tape, k, &at->first_k), k, 0);
    at->dv = view_of(lsi_grad(tape, v, &at->first_v), v, 0);
    return lsi_tape_status(tape);
}

static ls_status attention_backward(lsi_tape *tape, lsi_node *node) {
    attention at = describe(tape, node);
    LSI_TRY(find_grads(tape, node, &at));
    return run(&at, at.n_batch * at.n_groups, backward_range);
}

static ls_status attention_again(lsi_tape *tape, lsi_node *node) {
    attention at = describe(tape, node);
    return run(&at, at.n_batch * at.n_heads, forward_range);
}

static ls_status check(const char *name, int64_t columns, int n_heads, float dropout) {
    if (n_heads < 1 || columns % n_heads != 0)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s: expected a number of heads that divides %lld channels, found %d", name,
                        (long long)columns, n_heads);
    if (!(dropout >= 0.0f && dropout < 1.0f))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: expected a dropout probability in [0, 1), found %g",
                        name, (double)dropout);
    return LS_OK;
}

/* The rest of both ops: node has name, inputs, reads and numbers. */
static lsi_tensor *attend(lsi_tape *tape, lsi_node *node, int64_t columns, float dropout) {
    const lsi_tensor *q = node->input[0];
    int64_t n_batch = q->dims[0], n_time = q->dims[1];
    size_t rows = (size_t)(n_batch * node->number[0] * n_time);
    lsi_tensor *y = lsi_tape_activation(tape, 3, (int64_t[]){n_batch, n_time, columns});
    row_stat *stats = y ? lsi_tape_scratch(tape, rows * sizeof *stats) : NULL;
    if (!stats) return NULL;
    node->backward = attention_backward;
    node->again = attention_again;
    node->output = y;
    node->saved[0] = stats;
    node->scalar = lsi_tape_is_recording(tape) ? dropout : 0.0f;
    if (node->scalar > 0.0f) node->stream = lsi_tape_next_stream(tape);
    (void)lsi_tape_fail_with(tape, attention_again(tape, node));
    lsi_tape_record(tape, node);
    return lsi_tape_status(tape) == LS_OK ? y : NULL;
}

lsi_tensor *lsi_op_attention(lsi_tape *tape, lsi_tensor *qkv, int n_heads, float dropout) {
    if (!lsi_op_begin(tape, "attention", 1, &qkv)) return NULL;
    if (qkv->n_dims != 3 || qkv->dims[2] % 3 != 0)
        return lsi_tape_fail(
            tape, LS_ERR_ARGUMENT,
            "attention: expected queries, keys, values of shape (B,T,3C), found %s",
            lsi_dims_text(qkv->n_dims, qkv->dims));
    ls_status status = check("attention", qkv->dims[2] / 3, n_heads, dropout);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    if (!lsi_op_same_type(tape, "attention", qkv, qkv)) return NULL;
    lsi_node node = {.name = "attention",
                     .input = {qkv},
                     .reads = LSI_READS_INPUT(0) | LSI_READS_OUTPUT,
                     .number = {n_heads, n_heads}};
    return attend(tape, &node, qkv->dims[2] / 3, dropout);
}

lsi_tensor *lsi_op_attention_grouped(lsi_tape *tape, lsi_tensor *q, lsi_tensor *k, lsi_tensor *v,
                                     int n_heads, int n_groups, float dropout) {
    static const char name[] = "attention_grouped";
    if (!lsi_op_begin(tape, name, 3, (lsi_tensor *[]){q, k, v})) return NULL;
    if (q->n_dims != 3)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT, "%s: expected queries (B,T,C), found %s", name,
                             lsi_dims_text(q->n_dims, q->dims));
    ls_status status = check(name, q->dims[2], n_heads, dropout);
    if (status == LS_OK && (n_groups < 1 || n_heads % n_groups != 0))
        status = lsi_fail(LS_ERR_ARGUMENT,
                          "%s: expected a number of key heads that divides %d heads, found %d",
                          name, n_heads, n_groups);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    const int64_t dims[] = {q->dims[0], q->dims[1], q->dims[2] / n_heads * n_groups};
    if (!lsi_op_has_dims(tape, name, "keys", k, 3, dims) ||
        !lsi_op_has_dims(tape, name, "values", v, 3, dims) || !lsi_op_same_type(tape, name, q, k) ||
        !lsi_op_same_type(tape, name, v, v))
        return NULL;
    uint32_t reads = LSI_READS_INPUT(0) | LSI_READS_INPUT(1) | LSI_READS_INPUT(2);
    lsi_node node = {.name = name,
                     .input = {q, k, v},
                     .reads = reads | LSI_READS_OUTPUT,
                     .number = {n_heads, n_groups}};
    return attend(tape, &node, q->dims[2], dropout);
}
