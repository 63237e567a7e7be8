/* See shard_norm.h. What is exchanged follows from the plan alone, so it is worked out once. */
#include "parallel/shard_norm.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "optim/norm.h"

enum { BLOCK = LSI_NORM_BLOCK_ELEMS };

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t block_start(int64_t element) {
    return element / BLOCK * BLOCK;
}

/* The first block that begins in the piece, as an element; may lie behind its end. */
static int64_t first_own_block(const lsi_piece *piece) {
    return (piece->begin + BLOCK - 1) / BLOCK * BLOCK;
}

/* ---- plan ---- */

/* Fragments and blocks of one rank; counts only where norm->fragments is not there yet. */
static void take_rank(lsi_shard_norm *norm, const lsi_shard_plan *plan, int64_t *n_elems,
                      int64_t *n_sums, bool place) {
    for (int k = 0; k < plan->n_pieces; k++) {
        const lsi_piece *piece = &plan->pieces[k];
        int64_t end = piece->begin + piece->count, first = first_own_block(piece);
        if (piece->begin % BLOCK != 0) {
            int64_t count = smaller(first, end) - piece->begin;
            if (place)
                norm->fragments[norm->n_fragments] =
                    (lsi_fragment){piece->param, piece->begin, count, *n_elems};
            norm->n_fragments++;
            *n_elems += count;
        }
        for (int64_t at = first; at < end; at += BLOCK, ++*n_sums)
            if (place) norm->place_of[norm->first_block[piece->param] + at / BLOCK] = *n_sums;
    }
}

static ls_status take_ranks(lsi_shard_norm *norm, const lsi_bucket_plan *buckets, bool place) {
    int64_t n_elems = 0, n_sums = 0;
    norm->n_fragments = 0;
    for (int r = 0; r < norm->n_ranks; r++) {
        lsi_shard_plan plan;
        int64_t elems = n_elems, sums = n_sums;
        LSI_TRY(lsi_shard_plan_create(buckets, norm->params, norm->n_ranks, r, &plan));
        take_rank(norm, &plan, &n_elems, &n_sums, place);
        lsi_shard_plan_fini(&plan);
        norm->fragment_counts[r] = n_elems - elems;
        norm->block_counts[r] = n_sums - sums;
        if (r != norm->rank) continue;
        norm->my_first_elem = elems;
        norm->my_first_sum = sums;
    }
    return LS_OK;
}

static ls_status allocate_lists(lsi_shard_norm *norm) {
    size_t n_ranks = (size_t)norm->n_ranks;
    norm->fragment_counts = lsi_calloc(LSI_MEM_OTHER, n_ranks, sizeof *norm->fragment_counts);
    norm->block_counts = lsi_calloc(LSI_MEM_OTHER, n_ranks, sizeof *norm->block_counts);
    norm->first_block = lsi_calloc(LSI_MEM_OTHER, (size_t)norm->n_params, sizeof(int64_t));
    return norm->fragment_counts && norm->block_counts && norm->first_block ? LS_OK : LS_ERR_MEMORY;
}

static ls_status allocate_contents(lsi_shard_norm *norm) {
    int64_t n_elems = 0;
    for (int r = 0; r < norm->n_ranks; r++) n_elems += norm->fragment_counts[r];
    size_t n_blocks = (size_t)norm->n_blocks;
    norm->fragments = lsi_calloc(LSI_MEM_OTHER, (size_t)norm->n_fragments, sizeof *norm->fragments);
    norm->place_of = lsi_calloc(LSI_MEM_OTHER, n_blocks, sizeof *norm->place_of);
    norm->elems = lsi_calloc(LSI_MEM_OTHER, (size_t)n_elems, sizeof *norm->elems);
    norm->sums = lsi_calloc(LSI_MEM_OTHER, n_blocks, sizeof *norm->sums);
    return norm->fragments && norm->place_of && norm->elems && norm->sums ? LS_OK : LS_ERR_MEMORY;
}

static void number_blocks(lsi_shard_norm *norm, const lsi_bucket_plan *buckets) {
    for (int i = 0; i < norm->n_params; i++) {
        norm->first_block[i] = norm->n_blocks;
        if (lsi_bucket_trains(buckets, i))
            norm->n_blocks += lsi_norm_n_blocks(norm->params[i].count);
    }
}

static ls_status plan_all(lsi_shard_norm *norm, const lsi_bucket_plan *buckets) {
    LSI_TRY(allocate_lists(norm));
    number_blocks(norm, buckets);
    LSI_TRY(take_ranks(norm, buckets, false));
    LSI_TRY(allocate_contents(norm));
    return take_ranks(norm, buckets, true);
}

ls_status lsi_shard_norm_create(const lsi_bucket_plan *buckets, const ls_param *params,
                                int n_params, const lsi_shard_plan *plan, lsi_shard_norm *norm) {
    *norm = (lsi_shard_norm){.n_ranks = plan->n_ranks,
                             .rank = plan->rank,
                             .n_params = n_params,
                             .params = params,
                             .plan = plan};
    ls_status status = plan_all(norm, buckets);
    if (status != LS_OK) lsi_shard_norm_fini(norm);
    return status;
}

void lsi_shard_norm_fini(lsi_shard_norm *norm) {
    lsi_free(norm->fragments);
    lsi_free(norm->fragment_counts);
    lsi_free(norm->block_counts);
    lsi_free(norm->first_block);
    lsi_free(norm->place_of);
    lsi_free(norm->elems);
    lsi_free(norm->sums);
    *norm = (lsi_shard_norm){0};
}

/* ---- values ---- */

typedef struct grads {
    const float *(*of)(const void *context, const lsi_piece *piece);
    const void *context;
} grads;

static void pack_fragments(lsi_shard_norm *norm, grads g) {
    float *to = norm->elems + norm->my_first_elem;
    for (int k = 0; k < norm->plan->n_pieces; k++) {
        const lsi_piece *piece = &norm->plan->pieces[k];
        if (piece->begin % BLOCK == 0) continue;
        int64_t count = smaller(first_own_block(piece), piece->begin + piece->count) - piece->begin;
        const float *grad = g.of(g.context, piece);
        if (grad) memcpy(to, grad, (size_t)count * sizeof *to);
        to += count;
    }
}

static const lsi_fragment *find_fragment(const lsi_shard_norm *norm, int param, int64_t begin) {
    for (int k = 0; k < norm->n_fragments; k++)
        if (norm->fragments[k].param == param && norm->fragments[k].begin == begin)
            return &norm->fragments[k];
    return NULL;
}

/* The block that begins in this piece, at element `start` of the parameter, and ends in others'
 * slices. grad: of the piece. */
static double sum_cut_block(const lsi_shard_norm *norm, const float *grad, const lsi_piece *piece,
                            int64_t start) {
    float elems[BLOCK];
    double sum;
    int64_t end = smaller(start + BLOCK, norm->params[piece->param].count);
    int64_t n = piece->begin + piece->count - start;
    memcpy(elems, grad + (start - piece->begin), (size_t)n * sizeof *elems);
    while (start + n < end) {
        const lsi_fragment *f = find_fragment(norm, piece->param, start + n);
        memcpy(elems + n, norm->elems + f->at, (size_t)f->count * sizeof *elems);
        n += f->count;
    }
    lsi_norm_block_sums(elems, n, &sum);
    return sum;
}

/* Sums of the blocks that begin in the piece. Returns how many. */
static int64_t sum_piece(const lsi_shard_norm *norm, const float *grad, const lsi_piece *piece,
                         double *sums) {
    int64_t end = piece->begin + piece->count, first = first_own_block(piece);
    if (first >= end) return 0;
    bool is_whole = end == norm->params[piece->param].count;
    int64_t last = is_whole ? end : block_start(end); /* whole blocks end here */
    int64_t n = lsi_norm_n_blocks(last - first);
    if (!grad) {
        int64_t n_all = lsi_norm_n_blocks(end - first);
        memset(sums, 0, (size_t)n_all * sizeof *sums);
        return n_all;
    }
    lsi_norm_block_sums(grad + (first - piece->begin), last - first, sums);
    if (last < end) sums[n++] = sum_cut_block(norm, grad, piece, last);
    return n;
}

static void sum_pieces(lsi_shard_norm *norm, grads g) {
    double *sums = norm->sums + norm->my_first_sum;
    for (int k = 0; k < norm->plan->n_pieces; k++) {
        const lsi_piece *piece = &norm->plan->pieces[k];
        sums += sum_piece(norm, g.of(g.context, piece), piece, sums);
    }
}

/* In the order of parameters and blocks, as one rank alone would. */
static double add_up(const lsi_shard_norm *norm) {
    double total = 0;
    for (int i = 0; i < norm->n_params; i++) {
        int64_t first = norm->first_block[i];
        int64_t end = i + 1 < norm->n_params ? norm->first_block[i + 1] : norm->n_blocks;
        double sum = 0;
        for (int64_t b = first; b < end; b++) sum += norm->sums[norm->place_of[b]];
        total += sum;
    }
    return total;
}

ls_status lsi_shard_norm_get(lsi_shard_norm *norm, ls_group *group,
                             const float *(*grad_of)(const void *context, const lsi_piece *piece),
                             const void *context, double *value) {
    grads g = {grad_of, context};
    pack_fragments(norm, g);
    LSI_TRY(ls_all_gather_v(group, norm->elems + norm->my_first_elem, norm->elems,
                            norm->fragment_counts, LS_DTYPE_F32, NULL));
    sum_pieces(norm, g);
    LSI_TRY(ls_all_gather_v(group, norm->sums + norm->my_first_sum, norm->sums, norm->block_counts,
                            LS_DTYPE_F64, NULL));
    *value = sqrt(add_up(norm));
    return LS_OK;
}
