/* The sampler: places, then samples.
 *
 * An epoch is a list of n_rounds * n_ranks * block places. Place p shows sample perm[p mod n]; it
 * is padding if p >= n. A rank's places follow from arithmetic alone:
 *
 *     strided                          p = i * n_ranks + rank            (a block of 1)
 *     blocks, with i = (round, offset) p = round * n_ranks * block + rank * block + offset
 *
 * so strided is blocks with block = 1, and one formula serves both. 10 samples, 3 ranks, padded:
 *
 *     place   0 1 2 | 3 4 5 | 6 7 8 | 9 10 11
 *     sample  0 1 2 | 3 4 5 | 6 7 8 | 9 (0)(1)       rank 0: 0 3 6 9, rank 1: 1 4 7 (0), …
 *
 * The permutation is Fisher-Yates from the end, draw i from position i of the stream (seed, epoch):
 * the same on every rank, with no state carried from epoch to epoch. It is kept in 4 bytes a sample
 * where they do; without shuffling there is none, and n_samples may be anything. */
#include <stdbool.h>
#include <stdio.h>

#include <lockstep/sampler.h>

#include "base/mem.h"
#include "base/message.h"
#include "base/rng.h"

struct ls_sampler {
    ls_sampler_opts opts;
    int64_t length;   /* places of this rank */
    uint32_t *narrow; /* the permutation if n_samples <= 2^32 */
    int64_t *wide;    /* … and otherwise; both NULL without shuffling */
};

/* ---- options ---- */

typedef struct field_check {
    bool good;
    const char *name;
    int64_t found;
    const char *expected;
} field_check;

static ls_status check_opts(const ls_sampler_opts *o) {
    const field_check rows[] = {
        {o->n_samples >= 1, "n_samples", o->n_samples, "at least 1"},
        {o->n_ranks >= 1, "n_ranks", o->n_ranks, "at least 1"},
        {o->rank >= 0 && o->rank < o->n_ranks, "rank", o->rank, "0 to n_ranks - 1"},
        {o->tail == LS_TAIL_PAD || o->tail == LS_TAIL_DROP, "tail", o->tail,
         "LS_TAIL_PAD or LS_TAIL_DROP"},
        {o->assign == LS_ASSIGN_STRIDED || o->assign == LS_ASSIGN_BLOCKS, "assign", o->assign,
         "LS_ASSIGN_STRIDED or LS_ASSIGN_BLOCKS"},
        {o->block >= 0, "block", o->block, "at least 0"},
    };
    char bad[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!rows[i].good && used < sizeof bad)
            used += (size_t)snprintf(bad + used, sizeof bad - used, "%s%s is %lld, expected %s",
                                     used ? "; " : "", rows[i].name, (long long)rows[i].found,
                                     rows[i].expected);
    return used ? lsi_fail(LS_ERR_ARGUMENT, "sampler: %s", bad) : LS_OK;
}

static int64_t block_of(const ls_sampler_opts *opts) {
    return opts->assign == LS_ASSIGN_BLOCKS && opts->block > 0 ? opts->block : 1;
}

/* Places of a rank; an epoch's places must be countable in int64. */
static ls_status plan_length(const ls_sampler_opts *opts, int64_t *length) {
    int64_t round, end;
    if (__builtin_mul_overflow(block_of(opts), (int64_t)opts->n_ranks, &round) ||
        __builtin_add_overflow(opts->n_samples, round - 1, &end))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "sampler: %lld samples for %d ranks in blocks of %lld are more than 2^63 "
                        "places; use a smaller block",
                        (long long)opts->n_samples, opts->n_ranks, (long long)block_of(opts));
    int64_t n_rounds = (opts->tail == LS_TAIL_PAD ? end : opts->n_samples) / round;
    *length = n_rounds * block_of(opts);
    return LS_OK;
}

/* ---- permutation ---- */

static ls_status allocate(ls_sampler *sampler) {
    int64_t n = sampler->opts.n_samples;
    if (!sampler->opts.shuffle) return LS_OK;
    if (n <= (int64_t)UINT32_MAX + 1) {
        sampler->narrow = lsi_calloc(LSI_MEM_OTHER, (size_t)n, sizeof *sampler->narrow);
        return lsi_check_alloc(sampler->narrow);
    }
    sampler->wide = lsi_calloc(LSI_MEM_OTHER, (size_t)n, sizeof *sampler->wide);
    return lsi_check_alloc(sampler->wide);
}

static void shuffle_narrow(uint32_t *perm, int64_t n, const lsi_rng_stream *stream) {
    for (int64_t i = 0; i < n; i++) perm[i] = (uint32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = lsi_rng_below(stream, (uint64_t)i, (uint64_t)i + 1);
        uint32_t kept = perm[i];
        perm[i] = perm[j];
        perm[j] = kept;
    }
}

static void shuffle_wide(int64_t *perm, int64_t n, const lsi_rng_stream *stream) {
    for (int64_t i = 0; i < n; i++) perm[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = lsi_rng_below(stream, (uint64_t)i, (uint64_t)i + 1);
        int64_t kept = perm[i];
        perm[i] = perm[j];
        perm[j] = kept;
    }
}

/* ---- the interface ---- */

ls_status ls_sampler_create(const ls_sampler_opts *opts, ls_sampler **sampler) {
    if (!opts || !sampler)
        return lsi_fail(LS_ERR_ARGUMENT, "sampler: options and result must not be NULL");
    if (opts->struct_size != sizeof *opts)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "sampler: struct_size is %u, expected sizeof(ls_sampler_opts) = %zu",
                        opts->struct_size, sizeof *opts);
    LSI_TRY(check_opts(opts));
    int64_t length = 0;
    LSI_TRY(plan_length(opts, &length));
    ls_sampler *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->opts = *opts;
    made->length = length;
    ls_status status = allocate(made);
    if (status == LS_OK) status = ls_sampler_set_epoch(made, 0);
    if (status != LS_OK) {
        ls_sampler_destroy(made);
        return lsi_context(status, "sampler of %lld samples", (long long)opts->n_samples);
    }
    *sampler = made;
    return LS_OK;
}

void ls_sampler_destroy(ls_sampler *sampler) {
    if (!sampler) return;
    lsi_free(sampler->wide);
    lsi_free(sampler->narrow);
    lsi_free(sampler);
}

ls_status ls_sampler_set_epoch(ls_sampler *sampler, int64_t epoch) {
    if (epoch < 0)
        return lsi_fail(LS_ERR_ARGUMENT, "sampler: epoch is %lld, expected at least 0",
                        (long long)epoch);
    lsi_rng_stream stream =
        lsi_rng_open(sampler->opts.seed, LSI_RNG_SHUFFLE, (uint32_t)epoch, (uint32_t)(epoch >> 32));
    if (sampler->narrow) shuffle_narrow(sampler->narrow, sampler->opts.n_samples, &stream);
    if (sampler->wide) shuffle_wide(sampler->wide, sampler->opts.n_samples, &stream);
    return LS_OK;
}

int64_t ls_sampler_length(const ls_sampler *sampler) {
    return sampler->length;
}

ls_status ls_sampler_get(const ls_sampler *sampler, int64_t i, int64_t *index, int *is_padding) {
    const ls_sampler_opts *opts = &sampler->opts;
    if (i < 0 || i >= sampler->length)
        return lsi_fail(LS_ERR_ARGUMENT, "sampler: place %lld of rank %d, which has %lld",
                        (long long)i, opts->rank, (long long)sampler->length);
    int64_t block = block_of(opts);
    int64_t place = (i / block * opts->n_ranks + opts->rank) * block + i % block;
    int64_t slot = place % opts->n_samples;
    *index = sampler->narrow ? (int64_t)sampler->narrow[slot]
             : sampler->wide ? sampler->wide[slot]
                             : slot;
    *is_padding = place >= opts->n_samples;
    return LS_OK;
}
