/* Hooks without ddp: buckets made by hand from a list of shapes, and the loop over stages.
 *
 * Memory is the C library's and the group's: counts of the library's blocks stay those of the hook.
 */
#ifndef TESTS_PARALLEL_HOOKS_H
#define TESTS_PARALLEL_HOOKS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/hook.h>

#include "harness/harness.h"

#include "harness/ranks.h"
#include "tree.h"

enum { RIG_PARAMS = 8, RIG_PAD = 16 };

typedef struct rig_shape {
    int64_t rows, columns; /* columns 0: a vector */
} rig_shape;

typedef struct hook_rig {
    ls_group *group;
    int rank, n_ranks;
    ls_dtype dtype; /* of gradients */
    ls_param params[RIG_PARAMS];
    int n_params;
    ls_bucket buckets[RIG_PARAMS];
    int n_buckets;
    int order[RIG_PARAMS];
    int64_t offsets[RIG_PARAMS];
    void *memory; /* of all buckets, shared */
    int64_t total;
    int n_works; /* posted by the last step */
} hook_rig;

static inline int64_t rig_padded(int64_t count) {
    return (count + RIG_PAD - 1) / RIG_PAD * RIG_PAD;
}

/* Buckets of per_bucket parameters each, in order of the list or backwards. */
static inline void rig_build(hook_rig *rig, int per_bucket, int backwards) {
    int64_t at = 0;
    size_t bytes = ls_dtype_bytes(rig->dtype);
    rig->n_buckets = 0;
    for (int i = 0; i < rig->n_params; i++) {
        int param = rig->order[i] = backwards ? rig->n_params - 1 - i : i;
        if (i % per_bucket == 0) {
            int index = rig->n_buckets++;
            rig->buckets[index] = (ls_bucket){.index = index,
                                              .dtype = rig->dtype,
                                              .grad = (char *)rig->memory + (size_t)at * bytes,
                                              .scale = 1.0 / rig->n_ranks,
                                              .params = &rig->order[i],
                                              .offsets = &rig->offsets[i]};
        }
        ls_bucket *bucket = &rig->buckets[rig->n_buckets - 1];
        rig->offsets[i] = bucket->count;
        rig->params[param].grad = (char *)rig->memory + (size_t)at * bytes;
        bucket->n_params++;
        bucket->count += rig_padded(rig->params[param].count);
        at += rig_padded(rig->params[param].count);
    }
    memset(rig->memory, 0, (size_t)at * bytes);
}

static inline ls_status rig_open(hook_rig *rig, ls_group *group, ls_dtype dtype,
                                 const rig_shape *shapes, int n_params, int per_bucket) {
    *rig = (hook_rig){.group = group,
                      .rank = ls_group_rank(group),
                      .n_ranks = ls_group_world_size(group),
                      .dtype = dtype,
                      .n_params = n_params};
    for (int i = 0; i < n_params; i++) {
        int64_t columns = shapes[i].columns;
        rig->params[i] = (ls_param){.name = "p",
                                    .count = shapes[i].rows * (columns ? columns : 1),
                                    .dtype = dtype,
                                    .n_dims = columns ? 2 : 1,
                                    .shape = {shapes[i].rows, columns}};
        rig->total += rig_padded(rig->params[i].count);
    }
    LSI_TRY(ls_group_alloc_shared(group, (size_t)rig->total * ls_dtype_bytes(dtype), &rig->memory));
    rig_build(rig, per_bucket, 0);
    return LS_OK;
}

static inline void rig_close(hook_rig *rig) {
    ls_group_free_shared(rig->group, rig->memory);
}

static inline ls_status rig_prepare(hook_rig *rig, const ls_comm_hook *hook) {
    if (!hook->prepare) return LS_OK;
    return hook->prepare(hook->context, rig->group, rig->params, rig->n_params, rig->buckets,
                         rig->n_buckets);
}

/* All buckets, stage by stage. */
static inline ls_status rig_step(hook_rig *rig, const ls_comm_hook *hook, int64_t step) {
    ls_work *works[RIG_PARAMS];
    int is_over[RIG_PARAMS] = {0}, n_left = rig->n_buckets;
    rig->n_works = 0;
    for (int stage = 0; n_left > 0; stage++) {
        for (int b = 0; b < rig->n_buckets; b++) {
            works[b] = NULL;
            if (is_over[b]) continue;
            rig->buckets[b].step = step;
            LSI_TRY(hook->run(hook->context, rig->group, &rig->buckets[b], stage, &works[b]));
            is_over[b] = !works[b];
            n_left -= is_over[b];
            rig->n_works += !is_over[b];
        }
        for (int b = 0; b < rig->n_buckets; b++)
            if (works[b]) LSI_TRY(ls_work_wait(works[b], -1));
    }
    return LS_OK;
}

static inline void rig_set_scale(hook_rig *rig, double scale) {
    for (int b = 0; b < rig->n_buckets; b++) rig->buckets[b].scale = scale;
}

/* A rank's gradient in a step, at one element. */
typedef float rig_value(int rank, int64_t step, int param, int64_t e);

static inline void rig_fill(hook_rig *rig, rig_value *value, int64_t step) {
    for (int i = 0; i < rig->n_params; i++)
        for (int64_t e = 0; e < rig->params[i].count; e++) {
            float v = value(rig->rank, step, i, e);
            if (rig->dtype == LS_DTYPE_F64)
                ((double *)rig->params[i].grad)[e] = v;
            else
                ((float *)rig->params[i].grad)[e] = v;
        }
}

static inline float rig_rough(int rank, int64_t step, int param, int64_t e) {
    return rough_value(rank * 5 + step * 64, param, e);
}

/* Small whole numbers, so that sums are exact. */
static inline float rig_whole(int rank, int64_t step, int param, int64_t e) {
    return (float)((rank * 31 + step * 7 + param * 13 + e * e % 101) % 41 - 20);
}

/* The same bits on all ranks, and zeros between parameters. */
static inline ls_status rig_check_alike(hook_rig *rig, const char *what) {
    size_t bytes = (size_t)rig->total * ls_dtype_bytes(rig->dtype);
    char *first = malloc(bytes + 1);
    memcpy(first, rig->memory, bytes);
    ls_status status = ls_broadcast(rig->group, first, first, (int64_t)bytes, LS_DTYPE_U8, 0, NULL);
    int differs = status == LS_OK && memcmp(first, rig->memory, bytes) != 0;
    free(first);
    LSI_TRY(status);
    RANK_CHECK(!differs, "%s: rank %d has other bits than rank 0", what, rig->rank);
    return LS_OK;
}

static inline ls_status rig_check_gaps(hook_rig *rig, const char *what) {
    for (int b = 0; b < rig->n_buckets; b++)
        for (int i = 0; i < rig->buckets[b].n_params; i++) {
            int64_t count = rig->params[rig->buckets[b].params[i]].count;
            const char *at = rig->params[rig->buckets[b].params[i]].grad;
            for (int64_t e = count; e < rig_padded(count); e++) {
                double value =
                    rig->dtype == LS_DTYPE_F64 ? ((const double *)at)[e] : ((const float *)at)[e];
                RANK_CHECK(value == 0, "%s: element %lld of %lld is %g", what, (long long)e,
                           (long long)count, value);
            }
        }
    return LS_OK;
}

static inline float *rig_grad(const hook_rig *rig, int param) {
    return rig->params[param].grad;
}

static inline int same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* A group of one, and the checks that nothing is left of a hook. */
typedef struct lone_group {
    lsi_region *region;
    ls_group *group;
} lone_group;

static inline void lone_group_open(lone_group *lone) {
    assert_ok(lsi_region_create(1, 1 << 22, &lone->region));
    assert_ok(lsi_group_attach(lone->region, 0, &lone->group));
}

static inline int lone_group_blocks(const lone_group *lone) {
    return lsi_group_region(lone->group)->control->n_blocks;
}

static inline void lone_group_close(lone_group *lone) {
    ls_group_destroy(lone->group);
    lsi_region_close(lone->region);
}

#endif
