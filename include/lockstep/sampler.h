/* Which sample goes where: the semantics of PyTorch's DistributedSampler, plus the assignment by
 * blocks that reproducible training needs. A pure function of its options: no state but the epoch,
 * so its position is the number of samples already taken. Local, one thread at a time. */
#ifndef LOCKSTEP_SAMPLER_H
#define LOCKSTEP_SAMPLER_H

#include <stdint.h>

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_sampler ls_sampler;

enum {
    LS_TAIL_PAD = 0,  /* the list is filled up from its own start; those places are marked */
    LS_TAIL_DROP = 1, /* samples that do not fill a round are left out this epoch */
};
enum {
    LS_ASSIGN_STRIDED = 0, /* rank r gets places r, r + n_ranks, … (DistributedSampler) */
    LS_ASSIGN_BLOCKS = 1,  /* each round of n_ranks * block places: rank r gets the r-th block */
};

typedef struct ls_sampler_opts {
    uint32_t struct_size; /* sizeof(ls_sampler_opts) */
    int64_t n_samples;    /* >= 1 */
    int n_ranks;          /* >= 1 */
    int rank;             /* [0, n_ranks) */
    int shuffle;          /* 0: in order; else a new permutation each epoch from (seed, epoch) */
    uint64_t seed;
    int tail;      /* LS_TAIL_… */
    int assign;    /* LS_ASSIGN_… */
    int64_t block; /* samples of a rank in a round, LS_ASSIGN_BLOCKS only; 0 means 1 */
} ls_sampler_opts;

/* The caller owns *sampler. Errors: LS_ERR_ARGUMENT names every bad field. */
LS_API LS_CHECKED ls_status ls_sampler_create(const ls_sampler_opts *opts, ls_sampler **sampler);
LS_API void ls_sampler_destroy(ls_sampler *sampler);
/* Computes the permutation of an epoch; a fresh sampler is at epoch 0. */
LS_API LS_CHECKED ls_status ls_sampler_set_epoch(ls_sampler *sampler, int64_t epoch);
/* Places of this rank in an epoch, padding included. */
LS_API int64_t ls_sampler_length(const ls_sampler *sampler);
/* Place i of this rank: the sample's index; *is_padding = 1 if the place repeats a sample that the
 * epoch has elsewhere (leave it out of metrics). LS_ERR_ARGUMENT outside [0, length). */
LS_API LS_CHECKED ls_status ls_sampler_get(const ls_sampler *sampler, int64_t i, int64_t *index,
                                           int *is_padding);

#ifdef __cplusplus
}
#endif
#endif
