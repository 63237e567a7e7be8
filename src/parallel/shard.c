/* Cuts are counted in elements that exist, then looked up in the bucket. */
#include "parallel/shard.h"

#include "base/mem.h"

enum { LINE_ELEMS = 16, LINES_WORTH_IT = 64 };

static ls_status allocate(lsi_shard_plan *plan, size_t n_params) {
    size_t n_ranks = (size_t)plan->n_ranks, n_buckets = (size_t)plan->n_buckets;
    plan->cut = lsi_calloc(LSI_MEM_OTHER, n_buckets * (n_ranks + 1), sizeof *plan->cut);
    plan->counts = lsi_calloc(LSI_MEM_OTHER, n_buckets * n_ranks, sizeof *plan->counts);
    plan->pieces = lsi_calloc(LSI_MEM_OTHER, n_params, sizeof *plan->pieces);
    if (plan->cut && plan->counts && plan->pieces) return LS_OK;
    lsi_shard_plan_fini(plan);
    return LS_ERR_MEMORY;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Elements of a slice: the same for all ranks but the last ones with any. */
static int64_t slice_length(int64_t n_elems, int n_ranks) {
    int64_t length = (n_elems + n_ranks - 1) / n_ranks;
    if (length < LINE_ELEMS * LINES_WORTH_IT) return length;
    return (length + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS;
}

/* A bucket while it is walked through, parameter by parameter. */
typedef struct walk {
    int64_t length; /* of a slice */
    int64_t done;   /* elements of the parameters before this one */
    int next;       /* the rank whose cut is looked for */
} walk;

/* Cuts that fall into a parameter that lies at `offset`. */
static void cut_param(walk *k, int64_t *cut, int n_ranks, int64_t offset, int64_t count) {
    while (k->next < n_ranks && k->next * k->length < k->done + count) {
        cut[k->next] = offset + (k->next * k->length - k->done);
        k->next++;
    }
    k->done += count;
}

/* This rank's piece of a parameter, if it has one. */
static void take_piece(lsi_shard_plan *plan, const walk *k, int param, int64_t count) {
    int64_t first = plan->rank * k->length - k->done, last = first + k->length;
    int64_t begin = first > 0 ? first : 0, end = smaller(last, count);
    if (begin >= end) return;
    plan->pieces[plan->n_held_pieces++] =
        (lsi_piece){.param = param, .begin = begin, .count = end - begin, .state = plan->n_held};
    plan->n_held += end - begin;
}

static void cut_bucket(lsi_shard_plan *plan, const lsi_bucket_plan *buckets, const ls_param *params,
                       int index) {
    const lsi_bucket *bucket = &buckets->buckets[index];
    int64_t *cut = plan->cut + (int64_t)index * (plan->n_ranks + 1), n_elems = 0;
    walk k = {.next = 1};
    for (int i = 0; i < bucket->n_params; i++)
        n_elems += params[buckets->sequence[bucket->first + i]].count;
    k.length = slice_length(n_elems, plan->n_ranks);
    for (int i = 0; i < bucket->n_params; i++) {
        int param = buckets->sequence[bucket->first + i];
        take_piece(plan, &k, param, params[param].count);
        cut_param(&k, cut, plan->n_ranks, buckets->offset_of[param], params[param].count);
    }
    cut[0] = 0;
    while (k.next <= plan->n_ranks) cut[k.next++] = bucket->count;
    for (int r = 0; r < plan->n_ranks; r++)
        plan->counts[(int64_t)index * plan->n_ranks + r] = cut[r + 1] - cut[r];
}

ls_status lsi_shard_plan_create(const lsi_bucket_plan *buckets, const ls_param *params, int n_ranks,
                                int rank, lsi_shard_plan *plan) {
    *plan = (lsi_shard_plan){.n_ranks = n_ranks, .rank = rank, .n_buckets = buckets->n_held};
    LSI_TRY(allocate(plan, (size_t)buckets->n_placed));
    for (int b = 0; b < buckets->n_held; b++) {
        cut_bucket(plan, buckets, params, b);
        if (b >= buckets->n_buckets) continue;
        plan->n_pieces = plan->n_held_pieces;
        plan->n_states = plan->n_held;
    }
    return LS_OK;
}

void lsi_shard_plan_fini(lsi_shard_plan *plan) {
    lsi_free(plan->cut);
    lsi_free(plan->counts);
    lsi_free(plan->pieces);
    *plan = (lsi_shard_plan){0};
}
