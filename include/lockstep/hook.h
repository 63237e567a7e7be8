/* Communication hooks: other ways to bring a bucket of gradients to all ranks than an all-reduce of
 * all its bits, to save bytes on slow links. Ours, or one of your own.
 *
 * A hook is run for each bucket. Stage 0 comes as soon as the bucket is complete, while the
 * backward pass goes on; it posts a work on the group. When that work is done, ls_ddp_finish_step
 * runs stage 1, and so on, until a stage posts nothing: the bucket's gradients are the result then.
 * Stages 0 are posted in the order of buckets; then in finish_step all stages 1 in that order, all
 * stages 2, …: on every rank alike. LS_STRATEGY_ZERO2 and 3, which want the bucket's memory back,
 * run all stages that are left of a bucket behind stage 0 of the next one; each rank keeps its
 * slice of the result. */
#ifndef LOCKSTEP_HOOK_H
#define LOCKSTEP_HOOK_H

#include <stdint.h>

#include <lockstep/group.h>
#include <lockstep/param.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A bucket as a hook sees it. */
typedef struct ls_bucket {
    int index;      /* in the order of posting */
    ls_dtype dtype; /* of gradients: LS_DTYPE_F32, or LS_DTYPE_F64 */
    void *grad;     /* count elements in memory that all ranks of the machine share; what lies
                       between parameters is zero, and stays so */
    int64_t count;
    double scale;           /* the sum over ranks is multiplied by it once: the average */
    int64_t step;           /* 0: the first */
    int n_params;           /* parameters in it, … */
    const int *params;      /* … their indices in the list given to ls_ddp_create, … */
    const int64_t *offsets; /* … and the elements before each of them */
} ls_bucket;

typedef struct ls_comm_hook {
    const char *name; /* compared between ranks */
    void *context;
    /* Local. When buckets were made and again when they were rebuilt after the first step, between
     * steps. NULL: nothing to prepare. */
    ls_status (*prepare)(void *context, ls_group *group, const ls_param *params, int n_params,
                         const ls_bucket *buckets, int n_buckets);
    /* See above. *work is NULL before the call; the caller waits for what it is set to and releases
     * it. */
    ls_status (*run)(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                     ls_work **work);
    /* By ls_hook_destroy. NULL: nothing to release. */
    void (*release)(void *context);
} ls_comm_hook;

/* X(name, number, text, what it does) */
#define LS_HOOK_TABLE(X)                                                                           \
    X(ALL_REDUCE, 1, "allreduce", "all bits; the same as no hook")                                 \
    X(NOOP, 2, "noop", "no communication at all: how fast it could be; replicas drift apart")      \
    X(BF16, 3, "bf16", "bfloat16 on the wire, added in float32")                                   \
    X(FP16, 4, "fp16", "float16 on the wire, added in float32, scaled against underflow")          \
    X(INT8, 5, "int8", "8 bits an element and a scale for each block of 256")                      \
    X(TOPK, 6, "topk", "the largest elements only; the rest is kept for the next step")            \
    X(POWERSGD, 7, "powersgd", "matrices as products of two thin ones; the rest is kept")

typedef enum ls_hook_kind {
#define LS_HOOK_ENUM(name, number, text, help) LS_HOOK_##name = number,
    LS_HOOK_TABLE(LS_HOOK_ENUM)
#undef LS_HOOK_ENUM
} ls_hook_kind;

typedef struct ls_hook_opts {
    uint32_t struct_size; /* sizeof(ls_hook_opts) */
    double topk_share;    /* topk: share of a bucket's elements that is sent, (0, 1]; 0: 0.01 */
    int powersgd_rank;    /* columns of the thin matrices, 1 to 64; 0: 4 */
    int64_t start_step; /* powersgd, topk: before this step everything is sent; 0: 10; < 0: none */
    double min_rate; /* powersgd: matrices that would shrink less are sent as they are; 0: 2, else
                        finite and > 0 */
    uint64_t seed;   /* powersgd: of the first thin matrices, the same on all ranks */
    const double *factor; /* fp16: gradients are multiplied by *factor on the wire (a loss scale,
                             the same on all ranks, read at each bucket); NULL: 1 */
} ls_hook_opts;

#define LS_HOOK_OPTS_INIT                                                                          \
    { sizeof(ls_hook_opts), 0, 0, 0, 0, 0, 0 }

/* Local. opts NULL: defaults. The caller owns *hook and destroys it after the ddp that uses it and
 * before the group, whose memory it holds; ls_hook_destroy is for hooks made here only.
 * LS_ERR_ARGUMENT names every bad field. */
LS_API LS_CHECKED ls_status ls_hook_create(ls_hook_kind kind, const ls_hook_opts *opts,
                                           ls_comm_hook **hook);
LS_API void ls_hook_destroy(ls_comm_hook *hook);

#ifdef __cplusplus
}
#endif
#endif
