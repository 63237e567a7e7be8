/* Groups split off a group: who is in them and in which order, that they go on side by side and
 * fail apart, that they may be destroyed in any order and their memory is used again, and that
 * there may have been more of them than can be alive. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/transport/control.h"
#include "harness/cases.h"

enum { ARENA_BYTES = 1 << 20 };

/* A few calls of each kind, by choice. */
static ls_status works_well(ls_group *group, uint32_t seed) {
    case_arena arena;
    LSI_TRY(case_arena_open(&arena, group, ARENA_BYTES));
    for (int k = 0; k < n_case_kinds; k++)
        for (int64_t count = 1; count < 6000; count *= 73) {
            call_case c = {.kind = case_kinds[k].kind,
                           .uneven = case_kinds[k].uneven,
                           .dtype = LS_DTYPE_F32,
                           .op = LS_OP_SUM,
                           .scale = 1,
                           .count = count,
                           .root = (int)(seed % (uint32_t)group->n_ranks),
                           .buffers = (case_buffers)(seed % N_CASE_BUFFERS),
                           .seed = seed};
            seed++;
            LSI_TRY(case_run(&arena, &c));
        }
    case_arena_close(&arena);
    return LS_OK;
}

/* ---- members ---- */

typedef struct splitting {
    const char *name;
    int color[8], key[8]; /* by rank */
} splitting;

static const splitting splittings[] = {
    {"all", {0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}},
    {"all, backwards", {5, 5, 5, 5, 5, 5, 5, 5}, {7, 6, 5, 4, 3, 2, 1, 0}},
    {"even and odd", {0, 1, 0, 1, 0, 1, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 0}},
    {"each alone", {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 0, 0, 0, 0, 0}},
    {"some in none", {-1, 2, 2, -1, 2, -5, 9, 9}, {3, 2, 1, 0, 0, 0, -1, -2}},
    {"nobody", {-1, -1, -1, -1, -1, -1, -1, -1}, {0, 0, 0, 0, 0, 0, 0, 0}},
    {"large numbers",
     {INT32_MAX, 0, INT32_MAX, 0, INT32_MAX, 0, INT32_MAX, 0},
     {INT32_MAX, INT32_MIN, INT32_MIN, INT32_MAX, 0, 0, 0, 1}},
};
enum { N_SPLITTINGS = sizeof splittings / sizeof splittings[0] };

/* Members of this rank's part, in order: by key, equal keys by rank. */
static int members_of(const splitting *s, int n, int me, int member[8]) {
    int n_members = 0;
    bool taken[8] = {false};
    for (;;) {
        int next = -1;
        for (int r = 0; r < n; r++) {
            bool in = s->color[r] == s->color[me] && !taken[r];
            if (in && (next < 0 || s->key[r] < s->key[next])) next = r;
        }
        if (next < 0) return n_members;
        taken[next] = true;
        member[n_members++] = next;
    }
}

static ls_status check_members(ls_group *part, const splitting *s, int n, int me) {
    int member[8], found[8], n_members = members_of(s, n, me, member);
    RANK_CHECK(ls_group_world_size(part) == n_members, "%s, %d ranks: rank %d has a group of %d",
               s->name, n, me, ls_group_world_size(part));
    RANK_CHECK(member[ls_group_rank(part)] == me, "%s, %d ranks: rank %d has number %d", s->name, n,
               me, ls_group_rank(part));
    LSI_TRY(ls_all_gather(part, &me, found, 1, LS_DTYPE_I32, NULL));
    for (int i = 0; i < n_members; i++)
        RANK_CHECK(found[i] == member[i], "%s, %d ranks: member %d is %d", s->name, n, i, found[i]);
    return LS_OK;
}

static ls_status every_splitting(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    for (int i = 0; i < N_SPLITTINGS; i++) {
        const splitting *s = &splittings[i];
        ls_group *part = (ls_group *)(void *)&part; /* NOLINT: anything but NULL */
        LSI_TRY(ls_group_split(group, s->color[me], s->key[me], &part));
        if (s->color[me] < 0) {
            RANK_CHECK(part == NULL, "%s: rank %d is in a group", s->name, me);
            continue;
        }
        LSI_TRY(check_members(part, s, n, me));
        LSI_TRY(works_well(part, (uint32_t)i));
        ls_group_destroy(part);
    }
    return works_well(group, 77);
}

static void run_everywhere(rank_body body) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            if (!SANITIZED || *n <= (mode == RANKS_AS_THREADS ? 4 : 2))
                assert_ok(run_ranks((rank_mode)mode, *n, body, NULL));
}

static void members_are_by_color_key_and_rank(void **state) {
    (void)state;
    run_everywhere(every_splitting);
}

/* ---- mesh ---- */

static ls_status every_mesh(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    for (int size = -1; size <= n + 1; size++) {
        ls_group *replicate = NULL, *shard = NULL;
        ls_status status = ls_group_mesh(group, size, &replicate, &shard);
        if (size < 1 || n % size) {
            RANK_CHECK(status == LS_ERR_ARGUMENT && !replicate && !shard,
                       "a shard size of %d for %d ranks was accepted", size, n);
            continue;
        }
        LSI_TRY(status);
        RANK_CHECK(ls_group_world_size(shard) == size && ls_group_rank(shard) == me % size,
                   "rank %d of %d is %d of %d in its shard", me, n, ls_group_rank(shard),
                   ls_group_world_size(shard));
        RANK_CHECK(ls_group_world_size(replicate) == n / size &&
                       ls_group_rank(replicate) == me / size,
                   "rank %d of %d is %d of %d in its replica", me, n, ls_group_rank(replicate),
                   ls_group_world_size(replicate));
        int members[8];
        LSI_TRY(ls_all_gather(replicate, &me, members, 1, LS_DTYPE_I32, NULL));
        for (int i = 0; i < n / size; i++)
            RANK_CHECK(members[i] == i * size + me % size, "replica %d is rank %d", i, members[i]);
        /* A sum over both axes is the sum over all. */
        float value = (float)(me + 1), sum = 0;
        LSI_TRY(ls_all_reduce(shard, &value, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
        LSI_TRY(ls_all_reduce(replicate, &sum, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
        RANK_CHECK(sum == (float)(n * (n + 1) / 2), "the sum is %g", (double)sum);
        ls_group_destroy(size % 2 ? shard : replicate);
        ls_group_destroy(size % 2 ? replicate : shard);
    }
    return LS_OK;
}

static void meshes_have_two_axes(void **state) {
    (void)state;
    run_everywhere(every_mesh);
}

/* ---- side by side ---- */

enum { N_SIDES = 3, N_ROUNDS = 40 };

/* Works of the whole and of parts in flight at once, posted in another order by each rank where
 * groups allow it, and waited for in another again. */
static ls_status side_by_side(ls_group *group, void *context) {
    (void)context;
    int n = group->n_ranks, me = group->rank;
    ls_group *all[N_SIDES] = {group};
    case_arena arena[N_SIDES];
    LSI_TRY(ls_group_split(group, me % 2, 0, &all[1]));
    LSI_TRY(ls_group_split(group, 0, -me, &all[2]));
    for (int g = 0; g < N_SIDES; g++) LSI_TRY(case_arena_open(&arena[g], all[g], ARENA_BYTES));
    for (int round = 0; round < N_ROUNDS; round++) {
        posted_case p[N_SIDES];
        for (int i = 0; i < N_SIDES; i++) {
            int g = (i + me + round) % N_SIDES, k = (round + g) % n_case_kinds;
            int root = round % all[g]->n_ranks;
            call_case c = {.kind = case_kinds[k].kind,
                           .uneven = case_kinds[k].uneven,
                           .dtype = LS_DTYPE_F32,
                           .op = LS_OP_SUM,
                           .scale = 1,
                           .count = round * round * round % 5003,
                           .root = root,
                           .buffers = (case_buffers)(round % N_CASE_BUFFERS),
                           .seed = (uint32_t)(round * N_SIDES + g)};
            case_arena_reset(&arena[g]);
            LSI_TRY(case_post(&arena[g], &c, true, &p[g]));
        }
        for (int i = 0; i < N_SIDES; i++) {
            int g = (i + round / 2) % N_SIDES; /* the same on all ranks: inline progress */
            LSI_TRY(ls_work_wait(p[g].work, -1));
            LSI_TRY(case_check(&p[g]));
        }
    }
    for (int g = 0; g < N_SIDES; g++) case_arena_close(&arena[g]);
    ls_group_destroy(all[1]);
    ls_group_destroy(all[2]);
    float value = 1;
    LSI_TRY(ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    RANK_CHECK(value == (float)n, "the sum is %g", (double)value);
    return LS_OK;
}

static void groups_go_on_side_by_side(void **state) {
    (void)state;
    run_everywhere(side_by_side);
}

/* An error of one group is not that of the others. */
static ls_status one_group_fails(ls_group *group, void *context) {
    (void)context;
    ls_group *part = NULL, *same = NULL;
    LSI_TRY(ls_group_split(group, group->rank / 2, 0, &part));
    LSI_TRY(ls_group_split(group, 0, 0, &same));
    if (group->rank == 0) ls_group_abort(part, LS_ERR_STATE, "on purpose");
    ls_status status = ls_barrier(part, NULL);
    ls_status expected = group->rank < 2 ? LS_ERR_STATE : LS_OK;
    /* Both may still have met before the abort was seen by the second. */
    if (group->rank < 2 && status == LS_OK) status = ls_barrier(part, NULL);
    RANK_CHECK(status == expected, "rank %d: %s", group->rank, ls_status_name(status));
    RANK_CHECK(status == LS_OK || strstr(ls_last_message(), "on purpose"), "found '%s'",
               ls_last_message());
    RANK_CHECK(ls_group_status(part) == expected, "the error does not stick");
    LSI_TRY(ls_group_status(same));
    LSI_TRY(works_well(same, 3));
    ls_group_destroy(part);
    LSI_TRY(works_well(group, 4));
    ls_group_destroy(same);
    return LS_OK;
}

static void an_error_stays_in_its_group(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 4, one_group_fails, NULL));
}

/* A member that destroys its handle early is named, in that group only. */
static ls_status one_member_leaves(ls_group *group, void *context) {
    (void)context;
    ls_group *part = NULL;
    LSI_TRY(ls_group_split(group, 0, 0, &part));
    if (group->rank == 1) {
        ls_group_destroy(part);
        LSI_TRY(ls_barrier(group, NULL));
    } else {
        LSI_TRY(ls_barrier(group, NULL));
        ls_status status = ls_barrier(part, NULL);
        RANK_CHECK(status == LS_ERR_PEER && strstr(ls_last_message(), "rank 1 did not join"),
                   "rank %d: %s '%s'", group->rank, ls_status_name(status), ls_last_message());
        ls_group_destroy(part);
    }
    return works_well(group, 5);
}

static void who_left_a_group_is_named(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 3, one_member_leaves, NULL));
}

/* ---- life ---- */

enum { N_NESTED = 4 };

/* Parts of parts; each rank destroys in an order of its own, parents before children too. */
static ls_status destroy_in_any_order(ls_group *group, void *context) {
    (void)context;
    for (int round = 0; round < 12; round++) {
        ls_group *nest[N_NESTED];
        ls_group *parent = group;
        for (int i = 0; i < N_NESTED; i++) {
            LSI_TRY(ls_group_split(parent, i % 2 ? parent->rank % 2 : 0, -parent->rank, &nest[i]));
            parent = nest[i];
        }
        LSI_TRY(works_well(nest[round % N_NESTED], (uint32_t)round));
        bool is_gone[N_NESTED] = {false};
        for (int i = 0; i < N_NESTED; i++) {
            int which = (i * (round % 2 ? 1 : N_NESTED - 1) + group->rank + round) % N_NESTED;
            is_gone[which] = true;
            ls_group_destroy(nest[which]);
        }
        for (int i = 0; i < N_NESTED; i++) RANK_CHECK(is_gone[i], "group %d was forgotten", i);
    }
    return works_well(group, 6);
}

static void groups_may_be_destroyed_in_any_order(void **state) {
    (void)state;
    run_everywhere(destroy_in_any_order);
}

/* With a work in flight that can never finish. */
static ls_status destroy_in_flight(ls_group *group, void *context) {
    (void)context;
    for (int round = 0; round < 20; round++) {
        ls_group *part = NULL;
        ls_work *work = NULL;
        float values[2000] = {0};
        LSI_TRY(ls_group_split(group, 0, 0, &part));
        if (group->rank > 0 || round % 2)
            LSI_TRY(ls_all_reduce(part, values, values, round % 3 ? 2000 : 1, LS_DTYPE_F32,
                                  LS_OP_SUM, 1, &work));
        LSI_TRY(ls_barrier(group, NULL));
        ls_group_destroy(part);
    }
    return works_well(group, 7);
}

static void groups_may_be_destroyed_with_works_in_flight(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++) {
        int64_t before = lsi_mem_n_blocks();
        assert_ok(run_ranks((rank_mode)mode, 3, destroy_in_flight, NULL));
        assert_int_equal(lsi_mem_n_blocks(), before);
    }
}

/* ---- many ---- */

static int n_rows_with_memory(const lsi_region *region) {
    int n = 0;
    for (int i = 0; i < LSI_MAX_GROUPS; i++)
        n += atomic_load(&region->control->groups[i].offset) != 0;
    return n;
}

static ls_status many_one_after_the_other(ls_group *group, void *context) {
    (void)context;
    for (int i = 0; i < LSI_MAX_GROUPS + 100; i++) {
        ls_group *part = NULL;
        int value = i + group->rank, sum = 0;
        LSI_TRY(
            ls_group_split(group, i % 3 == 0 ? group->rank : 0, i % 2 ? -group->rank : 0, &part));
        LSI_TRY(ls_all_reduce(part, &value, &sum, 1, LS_DTYPE_I32, LS_OP_SUM, 1, NULL));
        int expected = i % 3 == 0 ? value : 2 * i + 1;
        RANK_CHECK(sum == expected, "group %d: sum %d, expected %d", i, sum, expected);
        ls_group_destroy(part);
    }
    LSI_TRY(ls_barrier(group, NULL));
    RANK_CHECK(n_rows_with_memory(group->region) < 20, "%d groups keep memory",
               n_rows_with_memory(group->region));
    return LS_OK;
}

static void more_groups_than_can_live_follow_each_other(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, many_one_after_the_other, NULL));
}

/* As many as can be alive, refused on all ranks from there on, and some more once one is gone. */
static ls_status as_many_as_can_live(ls_group *group, void *context) {
    (void)context;
    static _Thread_local ls_group *parts[LSI_MAX_GROUPS];
    ls_group *extra = NULL;
    int n = 0;
    while (n < LSI_MAX_GROUPS - 1) {
        LSI_TRY(ls_group_split(group, 0, 0, &parts[n]));
        n++;
    }
    ls_status status = ls_group_split(group, 0, 0, &extra);
    RANK_CHECK(status == (group->rank == 0 ? LS_ERR_BUSY : LS_ERR_MEMORY) && !extra,
               "group %d: rank %d: %s", n + 1, group->rank, ls_status_name(status));
    LSI_TRY(ls_group_status(group));
    LSI_TRY(works_well(parts[n - 1], 8));
    ls_group_destroy(parts[5]);
    LSI_TRY(ls_barrier(group, NULL));
    LSI_TRY(ls_group_split(group, 0, 0, &parts[5]));
    LSI_TRY(works_well(parts[5], 9));
    for (int i = 0; i < n; i++) ls_group_destroy(parts[i * 7 % n]);
    LSI_TRY(ls_barrier(group, NULL));
    /* Rows that groups of 2 have left serve groups of 1. */
    LSI_TRY(ls_group_split(group, group->rank, 0, &extra));
    LSI_TRY(works_well(extra, 10));
    ls_group_destroy(extra);
    return works_well(group, 11);
}

static void too_many_groups_are_refused(void **state) {
    (void)state;
    rank_heap_bytes = (size_t)16 << 30; /* addresses */
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, as_many_as_can_live, NULL));
    rank_heap_bytes = RANK_HEAP_BYTES;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_by_color_key_and_rank),
        cmocka_unit_test(meshes_have_two_axes),
        cmocka_unit_test(groups_go_on_side_by_side),
        cmocka_unit_test(an_error_stays_in_its_group),
        cmocka_unit_test(who_left_a_group_is_named),
        cmocka_unit_test(groups_may_be_destroyed_in_any_order),
        cmocka_unit_test(groups_may_be_destroyed_with_works_in_flight),
        cmocka_unit_test(more_groups_than_can_live_follow_each_other),
        cmocka_unit_test(too_many_groups_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
