/* The largest elements of each bucket, with error feedback.
 *
 * Sources: Stich, Cordonnier, Jaggi: "Sparsified SGD with memory", NeurIPS 2018; Lin, Han, Mao,
 * Wang, Dally: "Deep gradient compression", ICLR 2018.
 *
 *     stage 0   add what was left out; take the k = max(1, share * count) largest magnitudes, of
 *               equal ones those at lower places; keep the rest for the next step
 *               all-gather the (place, value) pairs of all ranks
 *     stage 1   add the pairs of rank 0, 1, … into a bucket of zeros; times scale
 *
 * Each rank sends (n - 1) 8 k bytes. The k-th largest magnitude is found in three passes that
 * count, by the bits of the floats from the top: no copy, no order of comparisons. What is not
 * finite has the largest bits of all, so some of it is always sent; what is left over of it is
 * dropped, or it would spoil every later step. Before start_step everything is sent and nothing is
 * kept. */
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "parallel/hook_impl.h"

typedef struct topk {
    ls_hook_opts opts;
    lsi_hook_wires wires;
    lsi_hook_errors errors;
} topk;

/* A rank's part on the wire: k places, then k values. */
typedef struct pairs {
    uint32_t *place;
    float *value;
} pairs;

static const int64_t MOST_ELEMS = (int64_t)1 << 32; /* places are 32 bits */

static int64_t n_sent(const topk *s, const ls_bucket *bucket) {
    int64_t k = (int64_t)(s->opts.topk_share * (double)bucket->count);
    return k > 0 ? k : bucket->count > 0;
}

static int64_t wire_bytes(const void *state, const ls_group *group, const ls_bucket *bucket) {
    if (bucket->dtype != LS_DTYPE_F32) return 0;
    return ls_group_world_size(group) * n_sent(state, bucket) *
           (int64_t)(sizeof(uint32_t) + sizeof(float));
}

static pairs pairs_at(void *wire, int64_t k, int rank) {
    uint32_t *place = (uint32_t *)wire + 2 * k * rank;
    return (pairs){place, (float *)place + k};
}

static void release(void *state) {
    topk *s = state;
    lsi_hook_wires_free(&s->wires);
    lsi_hook_errors_free(&s->errors);
}

static ls_status prepare(void *state, ls_group *group, const ls_param *params, int n_params,
                         const ls_bucket *buckets, int n_buckets) {
    topk *s = state;
    LSI_TRY(lsi_hook_errors_prepare(&s->errors, params, n_params));
    for (int b = 0; b < n_buckets; b++) {
        if (buckets[b].dtype != LS_DTYPE_F32) continue;
        if (buckets[b].count > MOST_ELEMS)
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "hook topk: bucket %d has %lld elements, at most %lld are possible; "
                            "use smaller parameters or another hook",
                            b, (long long)buckets[b].count, (long long)MOST_ELEMS);
        for (int i = 0; i < buckets[b].n_params; i++)
            LSI_TRY(lsi_hook_errors_keep(&s->errors, buckets[b].params[i]));
    }
    return lsi_hook_wires_make(&s->wires, group, buckets, n_buckets, wire_bytes, s);
}

/* ---- the k-th largest ---- */

static inline uint32_t magnitude(float x) {
    return lsi_float_bits(x) & 0x7FFFFFFFu;
}

/* Digits of a magnitude, from the top: 11 + 11 + 9 bits. */
enum { N_DIGITS = 3, MOST_VALUES = 1 << 11 };
static const struct digit { int shift, bits; } digits[N_DIGITS] = {{20, 11}, {9, 11}, {0, 9}};

/* How often each value of the digit occurs among magnitudes that begin like `prefix`. */
static void count_values(const float *x, int64_t count, struct digit digit, uint32_t prefix,
                         int64_t *n_of) {
    const int above = digit.shift + digit.bits;
    memset(n_of, 0, MOST_VALUES * sizeof *n_of);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = magnitude(x[i]);
        if (bits >> above == prefix >> above)
            n_of[bits >> digit.shift & ((1u << digit.bits) - 1u)]++;
    }
}

/* The k-th largest magnitude, 1 <= k <= count; *n_equal: how many of that size are among the k. */
static uint32_t kth_largest(const float *x, int64_t count, int64_t k, int64_t *n_equal) {
    int64_t n_of[MOST_VALUES];
    uint32_t found = 0;
    for (int d = 0; d < N_DIGITS; d++) {
        count_values(x, count, digits[d], found, n_of);
        uint32_t value = (1u << digits[d].bits) - 1u;
        while (n_of[value] < k) k -= n_of[value--];
        found |= value << digits[d].shift;
    }
    *n_equal = k;
    return found;
}

/* Moves the k largest elements from the bucket to the pairs. */
static void take_largest(float *x, int64_t count, int64_t k, pairs to) {
    int64_t n_equal, n = 0;
    const uint32_t least = kth_largest(x, count, k, &n_equal);
    for (int64_t i = 0; i < count && n < k; i++) {
        uint32_t bits = magnitude(x[i]);
        if (bits < least || (bits == least && n_equal-- <= 0)) continue;
        to.place[n] = (uint32_t)i;
        to.value[n++] = x[i];
        x[i] = 0;
    }
}

/* ---- stages ---- */

static void add_left_out(float *restrict grad, const lsi_hook_error *error, double scale) {
    const float factor = lsi_hook_error_factor(error, scale);
    const float *restrict left_out = error->left_out;
    for (int64_t i = 0; i < error->count; i++) grad[i] += left_out[i] * factor;
}

static void keep_rest(const float *restrict grad, lsi_hook_error *error, double scale) {
    float *restrict left_out = error->left_out;
    error->scale = scale;
    for (int64_t i = 0; i < error->count; i++)
        left_out[i] = magnitude(grad[i]) < 0x7F800000u ? grad[i] : 0;
}

static void compress(topk *s, const ls_bucket *bucket, int64_t k, pairs to) {
    float *grad = bucket->grad;
    for (int i = 0; i < bucket->n_params; i++)
        add_left_out(grad + bucket->offsets[i], &s->errors.of[bucket->params[i]], bucket->scale);
    take_largest(grad, bucket->count, k, to);
    for (int i = 0; i < bucket->n_params; i++)
        keep_rest(grad + bucket->offsets[i], &s->errors.of[bucket->params[i]], bucket->scale);
}

static void add_pairs(const ls_bucket *bucket, int n_ranks, int64_t k, void *wire) {
    float *grad = bucket->grad;
    const float scale = (float)bucket->scale;
    memset(grad, 0, (size_t)bucket->count * sizeof *grad);
    for (int r = 0; r < n_ranks; r++) {
        pairs from = pairs_at(wire, k, r);
        for (int64_t i = 0; i < k; i++) grad[from.place[i]] += from.value[i];
    }
    for (int64_t i = 0; i < bucket->count; i++) grad[i] *= scale;
}

static ls_status run(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                     ls_work **work) {
    topk *s = state;
    bool is_due = bucket->step >= s->opts.start_step && bucket->scale != 0;
    if (bucket->dtype != LS_DTYPE_F32 || !is_due || bucket->count == 0)
        return lsi_hook_plain(group, bucket, stage, work);
    const int64_t k = n_sent(s, bucket);
    void *wire = lsi_hook_wire(&s->wires, bucket);
    if (stage > 0) {
        add_pairs(bucket, ls_group_world_size(group), k, wire);
        return LS_OK;
    }
    pairs own = pairs_at(wire, k, ls_group_rank(group));
    compress(s, bucket, k, own);
    return ls_all_gather(group, own.place, wire, 2 * k, LS_DTYPE_I32, work);
}

const lsi_hook_method lsi_hook_topk = {.name = "topk",
                                       .state_bytes = sizeof(topk),
                                       .prepare = prepare,
                                       .run = run,
                                       .release = release};
