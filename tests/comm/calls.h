/* Calls of every kind from a description, and what tests of failures ask of the results. */
#ifndef TESTS_COMM_CALLS_H
#define TESTS_COMM_CALLS_H

#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/collective/collective.h"
#include "harness/ranks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline void expect(const rank_result *results, int rank, int status, const char *text) {
    if (results[rank].status != status || !strstr(results[rank].message, text))
        fail_msg("rank %d: expected status %d with '%s', found %d with '%s'", rank, status, text,
                 results[rank].status, results[rank].message);
}

static inline void expect_without(const rank_result *results, int rank, const char *text) {
    if (strstr(results[rank].message, text))
        fail_msg("rank %d: expected no '%s', found '%s'", rank, text, results[rank].message);
}

/* A call as it is made; what is 0 is that of the plain call, an all-reduce. */
typedef struct call {
    lsi_call_kind kind;
    ls_dtype dtype; /* F32 */
    ls_op op;       /* SUM */
    int64_t count;  /* that of the way; else -1 is none, -2 two fewer, -3 twice that of the way */
    int uneven;     /* 0: no; else the _v call, rank 0 has so many more, rank 1 fewer */
    double scale;   /* 1 */
    int root;
    const char *algo; /* that of the way */
} call;

/* As if LOCKSTEP_ALGO had been set when the group was made. */
static inline ls_status force(ls_group *group, const char *algo) {
    memset(group->chosen, 0, sizeof group->chosen);
    return lsi_rules_parse(algo, &group->rules);
}

static inline call complete(const call *c) {
    call full = *c;
    if (!full.kind) full.kind = LSI_CALL_ALL_REDUCE;
    if (!full.dtype) full.dtype = LS_DTYPE_F32;
    if (!full.op) full.op = LS_OP_SUM;
    if (full.scale == 0) full.scale = 1;
    return full;
}

static inline ls_status make_call(ls_group *group, const call *given, int64_t count, float *in,
                                  float *out, ls_work **work) {
    const call full = complete(given), *c = &full;
    int64_t counts[8];
    for (int r = 0; r < 8; r++) counts[r] = count + (r == 0) * c->uneven - (r == 1) * c->uneven;
    const int64_t *v = c->uneven ? counts : NULL;
    ls_dtype d = c->dtype;
    switch (c->kind) {
    case LSI_CALL_ALL_REDUCE: return ls_all_reduce(group, in, out, count, d, c->op, c->scale, work);
    case LSI_CALL_REDUCE:
        return ls_reduce(group, in, out, count, d, c->op, c->scale, c->root, work);
    case LSI_CALL_REDUCE_SCATTER:
        return v ? ls_reduce_scatter_v(group, in, out, v, d, c->op, c->scale, work)
                 : ls_reduce_scatter(group, in, out, count, d, c->op, c->scale, work);
    case LSI_CALL_ALL_GATHER:
        return v ? ls_all_gather_v(group, in, out, v, d, work)
                 : ls_all_gather(group, in, out, count, d, work);
    case LSI_CALL_BROADCAST: return ls_broadcast(group, in, out, count, d, c->root, work);
    case LSI_CALL_GATHER: return ls_gather(group, in, out, count, d, c->root, work);
    case LSI_CALL_SCATTER: return ls_scatter(group, in, out, count, d, c->root, work);
    case LSI_CALL_ALL_TO_ALL:
        return v ? ls_all_to_all_v(group, in, out, v, d, work)
                 : ls_all_to_all(group, in, out, count, d, work);
    default: return ls_barrier(group, work);
    }
}

/* Two zeroed buffers for n parts of about so many floats. */
static inline ls_status make_buffers(ls_group *group, int64_t count, bool shared,
                                     float *buffer[2]) {
    size_t bytes = (size_t)(2 * count + 16) * sizeof(float) * (size_t)ls_group_world_size(group);
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        if (shared)
            LSI_TRY(ls_group_alloc_shared(group, bytes, &memory));
        else
            LSI_TRY(lsi_check_alloc(memory = lsi_calloc(LSI_MEM_OTHER, 1, bytes)));
        buffer[i] = memory;
    }
    return LS_OK;
}

static inline void free_buffers(ls_group *group, bool shared, float *buffer[2]) {
    for (int i = 0; i < 2; i++)
        if (shared)
            ls_group_free_shared(group, buffer[i]);
        else
            lsi_free(buffer[i]);
}

#endif
