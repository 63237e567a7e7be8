/* Choosing a token from logits, and measuring a row of them: ties, borders, the order in which
 * temperature, top-k and top-p apply, and frequencies of draws. */
#include "train/sample.h"

#include <math.h>

#include "harness/harness.h"
#include "train/eval.h"

enum { MAX_N = 8 };

static int32_t sample(const lsi_sample_opts *opts, const float *logits, int64_t n, double uniform) {
    lsi_candidate scratch[MAX_N];
    return lsi_sample_token(opts, logits, n, uniform, scratch);
}

static void greedy_takes_the_likeliest_and_of_equal_ones_the_first(void **state) {
    (void)state;
    static const struct {
        float logits[MAX_N];
        int64_t n;
        int32_t id;
    } rows[] = {
        {{1, 2, 3}, 3, 2},  {{3, 2, 1}, 3, 0},  {{1, 3, 3, 0}, 4, 1},
        {{0, 0, 0}, 3, 0},  {{-5}, 1, 0},       {{-3, -2, -2}, 3, 1},
        {{0, -0.0f}, 2, 0}, {{-0.0f, 0}, 2, 0}, {{1e38f, -1e38f, 3e38f}, 3, 2},
    };
    static const lsi_sample_opts ways[] = {
        {0, 0, 1}, {0, 3, 0.5}, {1, 1, 1}, {1, 0, 1e-9}, {1e-3, 1, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            for (int u = 0; u < 4; u++)
                assert_int_equal(sample(&ways[w], rows[i].logits, rows[i].n, u / 4.0), rows[i].id);
}

/* Shares of 8, 4, 2, 1 and 1 sixteenths, not in order of ids. */
static const float SHARES[] = {0.6931472f, 0, 2.0794415f, 1.3862944f, 0};
static const int32_t ORDER[] = {2, 3, 0, 1, 4}; /* the likeliest first, equal ones by id */

static void draws_walk_through_the_shares_in_order(void **state) {
    (void)state;
    static const struct {
        lsi_sample_opts opts;
        double uniform;
        int place; /* in ORDER */
    } rows[] = {
        {{1, 0, 1}, 0, 0},
        {{1, 0, 1}, 0.49, 0},
        {{1, 0, 1}, 0.51, 1},
        {{1, 0, 1}, 0.74, 1},
        {{1, 0, 1}, 0.76, 2},
        {{1, 0, 1}, 0.88, 3},
        {{1, 0, 1}, 0.95, 4},
        {{1, 0, 1}, 1 - 1e-9, 4},
        /* the first two have shares of 2/3 and 1/3 of what is left */
        {{1, 2, 1}, 0.66, 0},
        {{1, 2, 1}, 0.67, 1},
        {{1, 2, 1}, 1 - 1e-9, 1},
        {{1, 99, 1}, 1 - 1e-9, 4},
        /* a nucleus is the shortest beginning that reaches p, and never empty */
        {{1, 0, 0.4}, 1 - 1e-9, 0},
        {{1, 0, 0.51}, 1 - 1e-9, 1},
        {{1, 0, 0.74}, 1 - 1e-9, 1},
        {{1, 0, 0.76}, 1 - 1e-9, 2},
        {{1, 0, 0.9}, 1 - 1e-9, 3},
        {{1, 0, 0.99}, 1 - 1e-9, 4},
        /* of the shares that top-k leaves: 8, 4, 2 of 14 */
        {{1, 3, 0.56}, 1 - 1e-9, 0},
        {{1, 3, 0.58}, 1 - 1e-9, 1},
        {{1, 3, 0.84}, 1 - 1e-9, 1},
        {{1, 3, 0.87}, 1 - 1e-9, 2},
        /* of the shares that temperature leaves: 64, 16, 4, 1, 1 of 86 at 1/2 */
        {{0.5, 0, 0.74}, 1 - 1e-9, 0},
        {{0.5, 0, 0.75}, 1 - 1e-9, 1},
        {{0.5, 0, 1}, 0.74, 0},
        {{0.5, 0, 1}, 0.75, 1},
        /* all alike when it is hot */
        {{1e6, 0, 1}, 0.5, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t id = sample(&rows[i].opts, SHARES, 5, rows[i].uniform);
        if (id != ORDER[rows[i].place])
            fail_msg("row %zu: token %d, expected %d", i, (int)id, (int)ORDER[rows[i].place]);
    }
}

static void every_share_is_drawn_as_often_as_it_is_large(void **state) {
    (void)state;
    enum { N = 1600 };
    static const int expected[] = {N / 8, N / 16, N / 2, N / 4, N / 16};
    const lsi_sample_opts opts = {1, 0, 1};
    int found[5] = {0};
    for (int i = 0; i < N; i++) found[sample(&opts, SHARES, 5, (i + 0.5) / N)]++;
    for (int id = 0; id < 5; id++) assert_in_range(found[id], expected[id] - 1, expected[id] + 1);
}

static void huge_logits_do_not_overflow(void **state) {
    (void)state;
    static const float logits[] = {3e38f, -3e38f, 3e38f};
    const lsi_sample_opts opts = {1, 0, 1};
    assert_int_equal(sample(&opts, logits, 3, 0.4), 0);
    assert_int_equal(sample(&opts, logits, 3, 0.6), 2);
}

/* ---- rows that are measured ---- */

static void rows_are_measured_in_double(void **state) {
    (void)state;
    static const struct {
        float logits[4];
        int64_t n;
        int32_t target;
        double loss;
        bool is_right;
    } rows[] = {
        {{0, 0}, 2, 0, 0.69314718055994531, true},
        {{0, 0}, 2, 1, 0.69314718055994531, false}, /* equal: the lowest id */
        {{7}, 1, 0, 0, true},
        {{1, 2, 3, 4}, 4, 3, 0.4401896985611953, true},
        {{1, 2, 3, 4}, 4, 0, 3.4401896985611953, false},
        {{1000, -1000}, 2, 1, 2000, false},
        {{3e38f, 3e38f}, 2, 0, 0.69314718055994531, true},
        {{-1e30f, -1e30f}, 2, 1, 0.69314718055994531, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool is_right = false;
        double loss = lsi_eval_row(rows[i].logits, rows[i].n, rows[i].target, &is_right);
        assert_true(fabs(loss - rows[i].loss) <= 4e-16 * (1 + fabs(rows[i].loss)));
        assert_int_equal(is_right, rows[i].is_right);
    }
}

static void what_is_no_number_gives_no_number(void **state) {
    (void)state;
    static const float rows[][3] = {
        {NAN, 0, 0}, {0, NAN, 0}, {0, 0, NAN}, {INFINITY, 0, 0}, {-INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int32_t target = 0; target < 3; target++) {
            bool is_right;
            assert_false(isfinite(lsi_eval_row(rows[i], 3, target, &is_right)));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_likeliest_and_of_equal_ones_the_first),
        cmocka_unit_test(draws_walk_through_the_shares_in_order),
        cmocka_unit_test(every_share_is_drawn_as_often_as_it_is_large),
        cmocka_unit_test(huge_logits_do_not_overflow),
        cmocka_unit_test(rows_are_measured_in_double),
        cmocka_unit_test(what_is_no_number_gives_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
