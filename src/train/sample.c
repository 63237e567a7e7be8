/* Choosing the next token.
 *
 * Holtzman et al.: "The curious case of neural text degeneration", ICLR 2020 (top-p, "nucleus"
 * sampling); Fan et al.: "Hierarchical neural story generation", ACL 2018 (top-k).
 *
 * The order is defined: tokens stand from the likeliest to the least likely, equal logits by id;
 * top-k keeps the first k; shares are exp(logit / temperature) over their sum, added in that order;
 * top-p keeps the shortest beginning whose shares reach p, and always the first; the draw walks
 * through what is left. So temperature comes before top-k and top-p, as in transformers. All in
 * double: float sums over a vocabulary of 100,000 would move the border of the nucleus. */
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>

static int32_t likeliest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Likelier first; equal ones by id. */
static int compare_candidates(const void *left, const void *right) {
    const lsi_candidate *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Logits become weights, the first is 1; returns their sum. */
static double weigh(lsi_candidate *list, int64_t n, double temperature) {
    double top = list[0].value, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        list[i].value = exp((list[i].value - top) / temperature);
        sum += list[i].value;
    }
    return sum;
}

/* Length of the nucleus; *sum becomes its weight. */
static int64_t cut(const lsi_candidate *list, int64_t n, double top_p, double *sum) {
    if (top_p >= 1) return n;
    double wanted = top_p * *sum, reached = 0;
    int64_t kept = 0;
    do reached += list[kept++].value;
    while (kept < n && reached < wanted);
    *sum = reached;
    return kept;
}

int32_t lsi_sample_token(const lsi_sample_opts *opts, const float *logits, int64_t n,
                         double uniform, lsi_candidate *list) {
    if (opts->temperature == 0) return likeliest(logits, n);
    for (int64_t i = 0; i < n; i++) list[i] = (lsi_candidate){(double)logits[i], (int32_t)i};
    qsort(list, (size_t)n, sizeof *list, compare_candidates);
    if (opts->top_k > 0 && opts->top_k < n) n = opts->top_k;
    double sum = weigh(list, n, opts->temperature);
    n = cut(list, n, opts->top_p, &sum);
    double left = uniform * sum;
    for (int64_t i = 0; i < n; i++) {
        left -= list[i].value;
        if (left < 0) return list[i].id;
    }
    return list[n - 1].id; /* rounding left a rest */
}
