/* Every collective gives the exact result: all calls, algorithms, types, operations, numbers of
 * ranks, counts, places and roots, from the tables of harness/cases.h.
 *
 * The whole product would be some hundred thousand calls. Left out:
 *   - other types and operations than F32 sums take the counts 1, n + 1 and 1000, one place and
 *     one root each (they alternate): kernels know nothing of places and roots;
 *   - calls that only move data take all types with sum alone;
 *   - the largest count takes the last root, others up to three roots, but all where n <= 5;
 *   - kinds of buffers alternate, but every algorithm meets each kind it can do;
 *   - threads as ranks take a few counts, since they are the same code;
 *   - under sanitizers: fewer numbers of ranks and counts.
 *
 * Calls follow each other without a barrier, so that what one leaves behind would be seen by the
 * next; no buffer may be touched after its call. */
#include "harness/harness.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "harness/cases.h"

enum { ARENA_BYTES = 24 << 20, LARGEST = 65537 };

/* ---- F32 sums: the full product ---- */

static bool is_thin(int64_t count) {
    return count > 1000;
}

static ls_status every_root(case_arena *arena, call_case c) {
    int n = arena->group->n_ranks;
    for (int root = 0; root < n; root++) {
        bool some = n <= 5 || root == 0 || root == n / 2 || root == n - 1;
        if (!case_has_root(&c) && root > 0) break;
        if (case_has_root(&c) && (is_thin(c.count) ? root != n - 1 : !some)) continue;
        c.root = root;
        c.seed += 11;
        c.buffers = (case_buffers)(c.seed % N_CASE_BUFFERS);
        if (!case_possible(arena->group, &c)) c.buffers = CASE_SHARED;
        if (case_possible(arena->group, &c)) LSI_TRY(case_run(arena, &c));
    }
    return LS_OK;
}

static ls_status f32_sums_of_kind(case_arena *arena, case_kind kind, const int64_t *counts,
                                  int n_counts, uint32_t seed) {
    for (int a = 0; a <= lsi_n_algorithms(); a++)
        for (int i = 0; i < n_counts; i++)
            for (int in_place = 0; in_place < 2; in_place++) {
                call_case c = {.kind = kind.kind,
                               .uneven = kind.uneven,
                               .algorithm = a,
                               .dtype = LS_DTYPE_F32,
                               .op = LS_OP_SUM,
                               .scale = 1,
                               .count = counts[i],
                               .in_place = in_place,
                               .seed = seed++};
                LSI_TRY(every_root(arena, c));
            }
    return LS_OK;
}

static ls_status f32_sums(ls_group *group, void *context) {
    const rank_mode *mode = context;
    int64_t n = group->n_ranks, counts[] = {1, n + 1, 1000, 0, 2, n - 1, n, LARGEST};
    int n_counts = SANITIZED || *mode == RANKS_AS_THREADS ? 3 : 8;
    case_arena arena;
    LSI_TRY(case_arena_open(&arena, group, ARENA_BYTES));
    for (int k = 0; k < n_case_kinds; k++)
        LSI_TRY(f32_sums_of_kind(&arena, case_kinds[k], counts, n_counts, (uint32_t)k * 997));
    case_arena_close(&arena);
    return LS_OK;
}

static void run_all_ranks(rank_mode mode, rank_body body) {
    for (const int *n = rank_counts; *n; n++) {
        if (SANITIZED && *n != 1 && *n != 2 && *n != 4 && *n != 5) continue;
        assert_ok(run_ranks(mode, *n, body, &mode));
    }
}

static void f32_sums_are_exact_as_processes(void **state) {
    (void)state;
    run_all_ranks(RANKS_AS_PROCESSES, f32_sums);
}

static void f32_sums_are_exact_as_threads(void **state) {
    (void)state;
    run_all_ranks(RANKS_AS_THREADS, f32_sums);
}

/* ---- types and operations ---- */

static ls_status types_of_kind(case_arena *arena, case_kind kind, int dtype, int op,
                               const int64_t *counts, int n_counts) {
    uint32_t seed = (uint32_t)(dtype * 31 + op * 7);
    for (int a = 1; a <= lsi_n_algorithms(); a++)
        for (int i = 0; i < n_counts; i++) {
            call_case c = {.kind = kind.kind,
                           .uneven = kind.uneven,
                           .algorithm = a,
                           .dtype = case_dtypes[dtype],
                           .op = case_ops[op].op,
                           .scale = case_ops[op].scale,
                           .count = counts[i],
                           .root = (int)(seed % (uint32_t)arena->group->n_ranks),
                           .in_place = seed / 2 % 2,
                           .buffers = (case_buffers)(seed % N_CASE_BUFFERS),
                           .seed = seed};
            seed += 5;
            if (!case_possible(arena->group, &c)) c.buffers = CASE_SHARED;
            if (!case_possible(arena->group, &c)) c.in_place = false;
            if (case_possible(arena->group, &c)) LSI_TRY(case_run(arena, &c));
        }
    return LS_OK;
}

static ls_status types_and_operations(ls_group *group, void *context) {
    (void)context;
    int64_t counts[] = {group->n_ranks + 1, 1000, 1, LARGEST};
    case_arena arena;
    LSI_TRY(case_arena_open(&arena, group, ARENA_BYTES));
    for (int k = 0; k < n_case_kinds; k++)
        for (int dtype = 0; dtype < n_case_dtypes; dtype++)
            for (int op = 0; op < n_case_ops; op++) {
                call_case kind = {.kind = case_kinds[k].kind};
                if (!case_reduces(&kind) && op > 0) continue;
                int n_counts = SANITIZED ? 2 : op == 0 && group->n_ranks == 4 ? 4 : 3;
                LSI_TRY(types_of_kind(&arena, case_kinds[k], dtype, op, counts, n_counts));
            }
    case_arena_close(&arena);
    return LS_OK;
}

static void every_type_and_operation_is_exact(void **state) {
    (void)state;
    run_all_ranks(SANITIZED ? RANKS_AS_THREADS : RANKS_AS_PROCESSES, types_and_operations);
}

/* ---- barrier ---- */

/* How often each rank has come; shared by all ranks of a run, written by its rank. */
static ls_status barriers(ls_group *group, void *context) {
    _Atomic int *came = context;
    ls_work *work = NULL;
    for (int i = 1; i <= 200; i++) {
        atomic_store(&came[group->rank], i);
        if (i % 3 == 0) {
            LSI_TRY(ls_barrier(group, &work));
            LSI_TRY(ls_work_wait(work, -1));
        } else {
            LSI_TRY(ls_barrier(group, NULL));
        }
        for (int r = 0; r < group->n_ranks; r++)
            RANK_CHECK(atomic_load(&came[r]) >= i, "barrier %d let rank %d go before rank %d came",
                       i, group->rank, r);
    }
    return LS_OK;
}

static void barriers_wait_for_all(void **state) {
    (void)state;
    size_t bytes = LSI_MAX_RANKS * sizeof(_Atomic int);
    void *came = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(came != MAP_FAILED);
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++) {
            memset(came, 0, bytes);
            assert_ok(run_ranks((rank_mode)mode, *n, barriers, came));
        }
    munmap(came, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_sums_are_exact_as_processes),
        cmocka_unit_test(f32_sums_are_exact_as_threads),
        cmocka_unit_test(every_type_and_operation_is_exact),
        cmocka_unit_test(barriers_wait_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
