/* Who is to blame where ranks wait in different groups, as those of a mesh do: rank 0 stands still,
 * rank 1 waits for it in the group of their row, rank 3 for rank 1 in that of their column. Rank
 * 3's time is up first, but rank 1 is not to blame and knows who is. */
#include "comm/calls.h"

#include <stdio.h>

#include "base/clock.h"

enum { N_RANKS = 4, TIMEOUT_MS = 400, LATER_MS = 100, STILL_MS = 2500 };

static ls_status add_up(ls_group *group) {
    float value = 1;
    ls_group_set_timeout(group, TIMEOUT_MS);
    return ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
}

static ls_status play(int rank, ls_group *row, ls_group *column) {
    if (rank == 0) lsi_sleep_ms(STILL_MS);
    if (rank == 1) {
        lsi_sleep_ms(LATER_MS);
        ls_status status = add_up(row);
        RANK_CHECK(status == LS_ERR_TIMEOUT && strstr(ls_last_message(), "rank 0 did not join"),
                   "status %d: %s", (int)status, ls_last_message());
    }
    if (rank == 3) {
        ls_status status = add_up(column);
        RANK_CHECK(status == LS_ERR_PEER, "status %d: %s", (int)status, ls_last_message());
    }
    return LS_OK;
}

static ls_status blame(ls_group *world, void *context) {
    int rank = ls_group_rank(world);
    ls_group *row, *column;
    (void)context;
    LSI_TRY(ls_group_split(world, rank / 2, rank, &row));
    LSI_TRY(ls_group_split(world, rank % 2, rank, &column));
    ls_status status = play(rank, row, column);
    ls_group_destroy(row);
    ls_group_destroy(column);
    return status;
}

static void who_waits_in_another_group_is_not_to_blame(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, N_RANKS, blame, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_in_another_group_is_not_to_blame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
