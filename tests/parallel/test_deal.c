/* Every deal of 1 to 40 micro-batches to 1 to 8 ranks, plain and reproducible: shares cover the
 * step, and the ranks' sums, joined in the deal's order, have the bits of the whole tree. */
#include "harness/harness.h"

#include "comm/reduce.h"
#include "parallel/deal.h"
#include "tree.h"

static void sum(const lsi_order *order, const float *const *input, float *const *output,
                int64_t count, double scale) {
    lsi_reduction reduction = {
        .order = order, .dtype = LS_DTYPE_F32, .op = LS_OP_SUM, .scale = scale};
    lsi_reduce(&reduction, (const void *const *)input, (void *const *)output, 1, count);
}

enum { MAX_MICRO = 40, MAX_RANKS = 8, N_ELEMS = 5 };

static void expect_shares_cover_the_step(const lsi_deal *deal, int64_t n_micro, int n_ranks) {
    int64_t next = 0, largest = 0;
    assert_int_equal(deal->n_ranks, n_ranks);
    assert_int_equal(deal->order.n_ranks, n_ranks);
    for (int r = 0; r < n_ranks; r++) {
        assert_int_equal(deal->first[r], next);
        assert_true(deal->count[r] >= 1);
        if (deal->count[r] > largest) largest = deal->count[r];
        next += deal->count[r];
    }
    assert_int_equal(next, n_micro);
    assert_int_equal(deal->largest, largest);
}

/* The sum as the ranks make it: each adds its share, the order joins the shares. */
static float dealt_sum(const lsi_deal *deal, const float *leaves, bool reproducible) {
    float partial[MAX_RANKS], result = 0;
    const float *input[MAX_RANKS];
    float *output = &result;
    for (int r = 0; r < deal->n_ranks; r++) {
        const float *share = leaves + deal->first[r];
        partial[r] =
            reproducible ? tree_sum(share, deal->count[r]) : linear_sum(share, deal->count[r]);
        input[r] = &partial[r];
    }
    sum(&deal->order, input, &output, 1, 1.0);
    return result;
}

static void reproducible_deals_give_the_bits_of_the_whole_tree(void **state) {
    (void)state;
    for (int64_t n_micro = 1; n_micro <= MAX_MICRO; n_micro++)
        for (int n_ranks = 1; n_ranks <= MAX_RANKS && n_ranks <= n_micro; n_ranks++) {
            lsi_deal deal;
            assert_ok(lsi_deal_micro_batches(&deal, n_micro, n_ranks, true));
            expect_shares_cover_the_step(&deal, n_micro, n_ranks);
            for (int e = 0; e < N_ELEMS; e++) {
                float leaves[MAX_MICRO];
                for (int64_t m = 0; m < n_micro; m++) leaves[m] = rough_value(m, n_micro, e);
                if (dealt_sum(&deal, leaves, true) != tree_sum(leaves, n_micro))
                    fail_msg("%d micro-batches on %d ranks: other bits than the tree", (int)n_micro,
                             n_ranks);
            }
        }
}

static void plain_deals_are_equal_shares_in_the_default_order(void **state) {
    (void)state;
    for (int64_t n_micro = 1; n_micro <= MAX_MICRO; n_micro++)
        for (int n_ranks = 1; n_ranks <= MAX_RANKS && n_ranks <= n_micro; n_ranks++) {
            lsi_deal deal;
            if (n_micro % n_ranks != 0) {
                assert_fails(lsi_deal_micro_batches(&deal, n_micro, n_ranks, false),
                             LS_ERR_ARGUMENT, "shared equally");
                continue;
            }
            lsi_order order;
            lsi_order_default(&order, n_ranks);
            assert_ok(lsi_deal_micro_batches(&deal, n_micro, n_ranks, false));
            expect_shares_cover_the_step(&deal, n_micro, n_ranks);
            assert_int_equal(deal.largest, n_micro / n_ranks);
            assert_int_equal(deal.order.hash, order.hash);
        }
}

/* Equal shares are kept where the tree allows them; elsewhere the border is the tree's. */
static void reproducible_shares_are_as_equal_as_the_tree_allows(void **state) {
    (void)state;
    const struct {
        int64_t n_micro;
        int n_ranks;
        int64_t count[5];
    } rows[] = {{6, 3, {2, 2, 2}}, {12, 3, {4, 4, 4}}, {20, 5, {4, 4, 4, 4, 4}},
                {6, 2, {4, 2}},    {9, 2, {8, 1}},     {12, 2, {8, 4}},
                {8, 2, {4, 4}},    {7, 3, {2, 2, 3}},  {5, 3, {2, 2, 1}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_deal deal;
        assert_ok(lsi_deal_micro_batches(&deal, rows[i].n_micro, rows[i].n_ranks, true));
        for (int r = 0; r < rows[i].n_ranks; r++) assert_int_equal(deal.count[r], rows[i].count[r]);
    }
}

static void the_largest_deals_are_possible(void **state) {
    (void)state;
    lsi_deal deal;
    for (int64_t n_micro = LSI_MAX_RANKS; n_micro < 4 * LSI_MAX_RANKS; n_micro += 7) {
        assert_ok(lsi_deal_micro_batches(&deal, n_micro, LSI_MAX_RANKS, true));
        expect_shares_cover_the_step(&deal, n_micro, LSI_MAX_RANKS);
    }
    assert_ok(lsi_deal_micro_batches(&deal, (int64_t)1 << 40, 1, true));
    assert_int_equal(deal.count[0], (int64_t)1 << 40);
}

static void impossible_deals_are_refused(void **state) {
    (void)state;
    const struct {
        int64_t n_micro;
        int n_ranks;
        const char *text;
    } rows[] = {{3, 4, "3 micro-batches cannot keep 4 ranks busy"},
                {0, 1, "0 micro-batches"},
                {-5, 2, "-5 micro-batches"},
                {INT64_MIN, 1, "micro-batches"},
                {4, 0, "0 ranks, expected 1 to 64"},
                {4, -1, "-1 ranks"},
                {100, LSI_MAX_RANKS + 1, "65 ranks"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int reproducible = 0; reproducible < 2; reproducible++) {
            lsi_deal deal;
            assert_fails(
                lsi_deal_micro_batches(&deal, rows[i].n_micro, rows[i].n_ranks, reproducible != 0),
                LS_ERR_ARGUMENT, rows[i].text);
        }
}

/* Whether every micro-batch is some rank's, and the ranks of a group have consecutive ones in turn.
 */
static void expect_rounds(const lsi_deal *deal, int64_t n, int group_size) {
    for (int64_t m = 0; m < n; m++) {
        int64_t i;
        int rank = lsi_deal_find(deal, m, &i), first = rank / group_size * group_size;
        assert_int_equal(lsi_deal_number(deal, rank, i), m);
        assert_in_range(i, 0, deal->count[rank] - 1);
        assert_int_equal(deal->count[rank], deal->count[first]);
        assert_int_equal((m - deal->first[first]) % group_size, rank - first);
    }
}

static void rounds_go_through_the_ranks_of_a_group_in_turn(void **state) {
    (void)state;
    for (int n_groups = 1; n_groups <= 4; n_groups++)
        for (int size = 1; size <= 8; size++)
            for (int64_t per_rank = 1; per_rank <= 5; per_rank++) {
                lsi_deal deal;
                int n_ranks = n_groups * size;
                int64_t n = per_rank * n_ranks;
                assert_ok(lsi_deal_rounds(&deal, n, n_ranks, size, false));
                assert_int_equal(deal.largest, per_rank);
                assert_int_equal(deal.group_order.n_ranks, n_groups);
                expect_rounds(&deal, n, size);
            }
    lsi_deal deal;
    assert_fails(lsi_deal_rounds(&deal, 7, 2, 2, false), LS_ERR_ARGUMENT,
                 "cannot be shared equally");
    assert_fails(lsi_deal_rounds(&deal, 6, 4, 2, false), LS_ERR_ARGUMENT,
                 "the 3 micro-batches of group 0 cannot be shared equally by its 2 ranks");
}

/* 12 on two groups: the tree has its border at 8. */
static void groups_have_the_parts_of_the_tree(void **state) {
    (void)state;
    lsi_deal deal;
    const int64_t expected[] = {4, 4, 2, 2};
    assert_ok(lsi_deal_rounds(&deal, 12, 4, 2, true));
    for (int r = 0; r < 4; r++) assert_int_equal(deal.count[r], expected[r]);
    assert_int_equal(deal.largest, 4);
    expect_rounds(&deal, 12, 2);
}

static void every_number_is_found_with_its_rank(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 24; n++)
        for (int n_ranks = 1; n_ranks <= 8 && n_ranks <= n; n_ranks++) {
            lsi_deal deal;
            assert_ok(lsi_deal_micro_batches(&deal, n, n_ranks, true));
            for (int r = 0; r < n_ranks; r++)
                for (int64_t i = 0; i < deal.count[r]; i++) {
                    int64_t found;
                    assert_int_equal(lsi_deal_find(&deal, lsi_deal_number(&deal, r, i), &found), r);
                    assert_int_equal(found, i);
                }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_go_through_the_ranks_of_a_group_in_turn),
        cmocka_unit_test(groups_have_the_parts_of_the_tree),
        cmocka_unit_test(every_number_is_found_with_its_rank),
        cmocka_unit_test(reproducible_deals_give_the_bits_of_the_whole_tree),
        cmocka_unit_test(plain_deals_are_equal_shares_in_the_default_order),
        cmocka_unit_test(reproducible_shares_are_as_equal_as_the_tree_allows),
        cmocka_unit_test(the_largest_deals_are_possible),
        cmocka_unit_test(impossible_deals_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
