/* What the tests of DDP's features share: small models of any types whose gradients are written and
 * read as doubles, bodies that run in every mode, and calls that must fail on this rank.
 *
 * A body's status is the test's, so what must fail on a rank is checked within the body, and the
 * other ranks hear nothing of it. */
#ifndef TESTS_PARALLEL_SMALL_H
#define TESTS_PARALLEL_SMALL_H

#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <lockstep/parallel.h>

#include "base/clock.h"

#include "harness/ranks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { SMALL_PARAMS = 12, SMALL_BYTES = 512 };

typedef struct spec {
    const char *name;
    int64_t count;
    ls_dtype dtype; /* 0: F32 */
    uint32_t flags;
} spec;

/* Values are zero. */
typedef struct small {
    int n_params;
    ls_param params[SMALL_PARAMS];
    _Alignas(64) unsigned char data[SMALL_PARAMS][SMALL_BYTES];
} small;

static inline void small_init(small *s, const spec *specs, int n_params) {
    *s = (small){.n_params = n_params};
    for (int i = 0; i < n_params; i++)
        s->params[i] = (ls_param){.name = specs[i].name,
                                  .count = specs[i].count,
                                  .dtype = specs[i].dtype ? specs[i].dtype : LS_DTYPE_F32,
                                  .flags = specs[i].flags,
                                  .data = s->data[i]};
}

static inline bool small_is_frozen(const small *s, int param) {
    return (s->params[param].flags & LS_PARAM_FROZEN) != 0;
}

static inline double grad_at(const small *s, int param, int64_t e) {
    const ls_param *p = &s->params[param];
    return p->dtype == LS_DTYPE_F64 ? ((const double *)p->grad)[e] : ((const float *)p->grad)[e];
}

/* What a backward pass leaves in one element. */
static inline void put_grad(const small *s, const ls_ddp *ddp, int param, int64_t e, double value) {
    const ls_param *p = &s->params[param];
    double *wide = p->grad;
    float *narrow = p->grad;
    int adds = ls_ddp_accumulates(ddp);
    if (p->dtype == LS_DTYPE_F64)
        wide[e] = adds ? wide[e] + value : value;
    else
        narrow[e] = adds ? narrow[e] + (float)value : (float)value;
}

/* … and in all elements of a parameter, which is ready then. */
static inline ls_status ready_with(const small *s, ls_ddp *ddp, int param, double value) {
    for (int64_t e = 0; e < s->params[param].count; e++) put_grad(s, ddp, param, e, value);
    return ls_ddp_grad_ready(ddp, param);
}

/* A whole backward pass, last parameter first, in which each parameter gets one value. */
static inline ls_status small_backward(const small *s, ls_ddp *ddp, const double *values) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = s->n_params - 1; i >= 0; i--)
        if (!small_is_frozen(s, i)) LSI_TRY(ready_with(s, ddp, i, values[i]));
    return ls_ddp_end_backward(ddp);
}

/* Calls of the group so far. */
static inline int64_t n_calls(ls_group *group) {
    lsi_group_stats stats;
    lsi_group_get_stats(group, &stats);
    return stats.n_calls;
}

/* A number that ranks in threads and in processes see alike, 0 at first. */
static inline _Atomic int *shared_number(void) {
    void *at =
        mmap(NULL, sizeof(_Atomic int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail_msg("no page of memory");
    return at;
}

static inline void free_shared_number(_Atomic int *number) {
    munmap((void *)number, sizeof *number);
}

/* In a body: until the number is at least this; fails when that takes far too long. */
static inline ls_status await_number(_Atomic int *number, int least) {
    for (int waits = 0; *number < least; waits++) {
        RANK_CHECK(waits < 20000, "still %d, expected %d", *number, least);
        lsi_sleep_ms(1);
    }
    return LS_OK;
}

static inline void run_in_both(int n_ranks, rank_body body, void *context) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, n_ranks, body, context));
}

static inline void run_on_all(rank_body body, void *context) {
    for (const int *n = rank_counts; *n; n++) run_in_both(*n, body, context);
}

/* A body for each row of a table. */
#define RUN_ROWS(rows, n_ranks_of_row, body)                                                       \
    do {                                                                                           \
        for (size_t i = 0; i < COUNT_OF(rows); i++)                                                \
            run_in_both(rows[i].n_ranks_of_row, body, (void *)&rows[i]);                           \
    } while (0)

#endif
