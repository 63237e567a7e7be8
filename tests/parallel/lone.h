/* A toy model and its DDP in a group of one, for tests of single calls; closing checks that nothing
 * is left in the shared heap, in the accounts or on the heap. */
#ifndef TESTS_PARALLEL_LONE_H
#define TESTS_PARALLEL_LONE_H

#include "harness/harness.h"

#include "base/mem.h"
#include "comm/group.h"
#include "toy.h"

typedef struct lone {
    lsi_region *region;
    ls_group *group;
    toy model;
    ls_ddp *ddp;
} lone;

static inline int n_heap_blocks(ls_group *group) {
    return lsi_group_region(group)->control->n_blocks;
}

static inline void lone_open(lone *f, const int64_t *counts, int n_params) {
    assert_ok(lsi_region_create(1, 1 << 20, &f->region));
    assert_ok(lsi_group_attach(f->region, 0, &f->group));
    toy_init(&f->model, counts, n_params, 0);
    f->ddp = NULL;
}

static inline void lone_close(lone *f) {
    ls_ddp_destroy(f->ddp);
    assert_int_equal(n_heap_blocks(f->group), 0);
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
        if (kind != LSI_MEM_OTHER) assert_int_equal(lsi_mem_now((lsi_mem_kind)kind), 0);
    ls_group_destroy(f->group);
    lsi_region_close(f->region);
    toy_fini(&f->model);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

#endif
