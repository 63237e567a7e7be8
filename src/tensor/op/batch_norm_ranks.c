/* Sums over ranks for batch_norm (see batch_norm_ranks.h).
 *
 * Moments: rank k has n_k rows of a channel with sum s_k and sum of squares q_k about its own mean
 * m_k = s_k / n_k. Of all rows together
 *
 *     n = sum of n_k    m = (sum of s_k) / n    q = sum of q_k + n_k (m_k - m)^2
 *
 * (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample
 * variances", 1979). Raw sums of squares would be half the numbers to send, but take the variance
 * as a difference of two numbers that may both be far larger.
 *
 * With one rank m_1 - m is exactly 0, and nothing changes by a bit. */
#include "tensor/op/batch_norm_ranks.h"

#include "tensor/tape_impl.h"

/* What every rank gave, one behind the other; scratch, NULL on failure. */
static double *gather(lsi_tape *tape, const lsi_exchange *exchange, const double *mine,
                      int64_t count) {
    double *all = lsi_tape_scratch(tape, (size_t)(exchange->n_ranks * count) * sizeof *all);
    if (!all) return NULL;
    int64_t out_ns = lsi_tape_step_out(tape);
    ls_status status = exchange->gather(exchange->context, mine, count, all);
    lsi_tape_step_in(tape, out_ns);
    if (status == LS_OK) return all;
    (void)lsi_tape_fail_with(tape, lsi_context(status, "batch_norm: sums of all ranks"));
    lsi_tape_release(tape, all);
    return NULL;
}

/* The first `count` of the numbers that each rank gave, `stride` in all. */
static void add_up(const double *all, int n_ranks, int64_t stride, int64_t count, double *sums) {
    for (int64_t i = 0; i < count; i++) {
        sums[i] = all[i];
        for (int k = 1; k < n_ranks; k++) sums[i] += all[k * stride + i];
    }
}

/* q of channel c; moments has n and the sums already. */
static double squares_about_mean(const double *all, int n_ranks, int64_t n_channels, int64_t c,
                                 const double *moments) {
    double mean = moments[1 + c] / moments[0], squares = 0.0;
    for (int k = 0; k < n_ranks; k++) {
        const double *part = all + k * lsi_moments_count(n_channels);
        double off = part[1 + c] / part[0] - mean;
        squares += part[1 + n_channels + c] + part[0] * off * off;
    }
    return squares;
}

ls_status lsi_moments_of_ranks(lsi_tape *tape, int64_t n_channels, double *moments) {
    const lsi_exchange *exchange = lsi_tape_get_exchange(tape);
    if (!exchange) return LS_OK;
    int64_t count = lsi_moments_count(n_channels);
    double *all = gather(tape, exchange, moments, count);
    if (!all) return lsi_tape_status(tape);
    int n_ranks = exchange->n_ranks;
    add_up(all, n_ranks, count, 1 + n_channels, moments);
    for (int64_t c = 0; c < n_channels; c++)
        moments[1 + n_channels + c] = squares_about_mean(all, n_ranks, n_channels, c, moments);
    lsi_tape_release(tape, all);
    return LS_OK;
}

ls_status lsi_sums_of_ranks(lsi_tape *tape, int64_t count, double *sums) {
    const lsi_exchange *exchange = lsi_tape_get_exchange(tape);
    if (!exchange) return LS_OK;
    double *all = gather(tape, exchange, sums, count);
    if (!all) return lsi_tape_status(tape);
    add_up(all, exchange->n_ranks, count, count, sums);
    lsi_tape_release(tape, all);
    return LS_OK;
}
