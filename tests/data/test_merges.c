/* The heap of merges against looking at all pairs again after each merge. */
#include "data/merges.h"

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "harness/harness.h"

/* As a textbook has it: the pair of least rank, of equal ones the leftmost, until there is none. */
static int64_t merge_slowly(const lsi_merges *merges, int32_t *ids, int64_t n) {
    for (;;) {
        const lsi_merge *best = NULL;
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            int32_t row = lsi_merges_find(merges, ids[i], ids[i + 1]);
            if (row < 0 || (best && merges->rows[row].rank >= best->rank)) continue;
            best = &merges->rows[row];
            at = i;
        }
        if (!best) return n;
        ids[at] = best->result;
        memmove(&ids[at + 1], &ids[at + 2], (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Random tables, also with equal ranks and with results that are parts of earlier rows. */
static void heap_merges_as_the_textbook_does(void **state) {
    (void)state;
    enum { N_TABLES = 200, N_ROWS = 40, N_IDS = 12, LONGEST = 200 };
    lsi_merger merger = {0};
    for (uint32_t table = 0; table < N_TABLES; table++) {
        lsi_rng_stream stream = lsi_rng_open(11, LSI_RNG_TEST, table, 0);
        lsi_merges merges;
        uint64_t draw = 0;
        assert_ok(lsi_merges_init(&merges, N_ROWS));
        for (int i = 0; i < N_ROWS; i++) {
            lsi_merge row = {(int32_t)lsi_rng_below(&stream, draw, N_IDS),
                             (int32_t)lsi_rng_below(&stream, draw + 1, N_IDS),
                             (int32_t)lsi_rng_below(&stream, draw + 2, N_IDS),
                             (uint32_t)lsi_rng_below(&stream, draw + 3, 10)};
            draw += 4;
            (void)lsi_merges_add(&merges, &row);
        }
        int32_t ids[LONGEST], same[LONGEST];
        for (int64_t length = 0; length <= LONGEST; length += 1 + length / 3) {
            for (int64_t i = 0; i < length; i++)
                same[i] = ids[i] = (int32_t)lsi_rng_below(&stream, draw++, N_IDS);
            int64_t n = length;
            assert_ok(lsi_merger_run(&merger, &merges, ids, &n));
            assert_int_equal(n, merge_slowly(&merges, same, length));
            assert_memory_equal(ids, same, (size_t)n * sizeof *ids);
        }
        lsi_merges_fini(&merges);
    }
    lsi_merger_fini(&merger);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void pairs_are_kept_once(void **state) {
    (void)state;
    lsi_merges merges;
    assert_ok(lsi_merges_init(&merges, 2));
    assert_int_equal(lsi_merges_find(&merges, 1, 2), -1);
    assert_true(lsi_merges_add(&merges, &(lsi_merge){1, 2, 3, 0}));
    assert_false(lsi_merges_add(&merges, &(lsi_merge){1, 2, 4, 1}));
    assert_true(lsi_merges_add(&merges, &(lsi_merge){2, 1, 4, 1}));
    assert_false(lsi_merges_add(&merges, &(lsi_merge){5, 5, 5, 5})); /* no room */
    assert_int_equal(lsi_merges_find(&merges, 1, 2), 0);
    assert_int_equal(lsi_merges_find(&merges, 2, 1), 1);
    assert_int_equal(merges.rows[0].result, 3);
    lsi_merges_fini(&merges);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        lsi_merges merges = {0};
        lsi_merger merger = {0};
        int32_t ids[] = {1, 1, 1, 1};
        int64_t n_ids = 4;
        lsi_mem_fail_at(n);
        ls_status status = lsi_merges_init(&merges, 1);
        if (status == LS_OK) {
            (void)lsi_merges_add(&merges, &(lsi_merge){1, 1, 2, 0});
            status = lsi_merger_run(&merger, &merges, ids, &n_ids);
        }
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        lsi_merger_fini(&merger);
        lsi_merges_fini(&merges);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_merges_as_the_textbook_does),
        cmocka_unit_test(pairs_are_kept_once),
        cmocka_unit_test(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
