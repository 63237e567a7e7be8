/* The sampler against PyTorch's examples, and against oracles that count places one by one. */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/sampler.h>

#include "base/mem.h"

static ls_sampler_opts options(int64_t n_samples, int n_ranks, int rank) {
    return (ls_sampler_opts){.struct_size = sizeof(ls_sampler_opts),
                             .n_samples = n_samples,
                             .n_ranks = n_ranks,
                             .rank = rank};
}

static ls_sampler *make(ls_sampler_opts opts) {
    ls_sampler *sampler = NULL;
    assert_ok(ls_sampler_create(&opts, &sampler));
    return sampler;
}

/* "0 3 6 9", padding in round brackets. */
static const char *places_of(const ls_sampler *sampler, char text[256]) {
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < ls_sampler_length(sampler); i++) {
        int64_t index;
        int is_padding;
        assert_ok(ls_sampler_get(sampler, i, &index, &is_padding));
        used += (size_t)snprintf(text + used, 256 - used, is_padding ? "%s(%lld)" : "%s%lld",
                                 i ? " " : "", (long long)index);
    }
    return text;
}

static void small_cases_equal_the_documented_ones(void **state) {
    (void)state;
    const struct {
        int64_t n_samples;
        int n_ranks, tail, assign;
        int64_t block;
        const char *places[4];
    } rows[] = {
        /* torch.utils.data.DistributedSampler, 10 samples, 3 ranks (T069) */
        {10, 3, LS_TAIL_PAD, LS_ASSIGN_STRIDED, 0, {"0 3 6 9", "1 4 7 (0)", "2 5 8 (1)"}},
        {10, 3, LS_TAIL_DROP, LS_ASSIGN_STRIDED, 0, {"0 3 6", "1 4 7", "2 5 8"}},
        /* fewer samples than ranks: the list repeats as often as needed; dropped: nothing is left
         */
        {1, 3, LS_TAIL_PAD, LS_ASSIGN_STRIDED, 0, {"0", "(0)", "(0)"}},
        {1, 3, LS_TAIL_DROP, LS_ASSIGN_STRIDED, 0, {"", "", ""}},
        {2, 4, LS_TAIL_PAD, LS_ASSIGN_STRIDED, 0, {"0", "1", "(0)", "(1)"}},
        {12, 3, LS_TAIL_PAD, LS_ASSIGN_STRIDED, 0, {"0 3 6 9", "1 4 7 10", "2 5 8 11"}},
        {10, 2, LS_TAIL_PAD, LS_ASSIGN_BLOCKS, 2, {"0 1 4 5 8 9", "2 3 6 7 (0) (1)"}},
        {10, 2, LS_TAIL_DROP, LS_ASSIGN_BLOCKS, 2, {"0 1 4 5", "2 3 6 7"}},
        {3, 2, LS_TAIL_PAD, LS_ASSIGN_BLOCKS, 4, {"0 1 2 (0)", "(1) (2) (0) (1)"}},
        {5, 1, LS_TAIL_PAD, LS_ASSIGN_BLOCKS, 2, {"0 1 2 3 4 (0)"}},
        {5, 2, LS_TAIL_PAD, LS_ASSIGN_BLOCKS, 0, {"0 2 4", "1 3 (0)"}},
        /* block counts only for blocks */
        {5, 2, LS_TAIL_PAD, LS_ASSIGN_STRIDED, 99, {"0 2 4", "1 3 (0)"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int rank = 0; rank < rows[i].n_ranks; rank++) {
            ls_sampler_opts opts = options(rows[i].n_samples, rows[i].n_ranks, rank);
            opts.tail = rows[i].tail;
            opts.assign = rows[i].assign;
            opts.block = rows[i].block;
            ls_sampler *sampler = make(opts);
            char text[256];
            assert_string_equal(places_of(sampler, text), rows[i].places[rank]);
            ls_sampler_destroy(sampler);
        }
}

/* ---- evaluation on all ranks ---- */

/* What ranks gather of a set's samples, in steps of `batch` places of each rank, padding left out;
 * the number of ids. */
static int64_t gather_ids(int64_t n_samples, int n_ranks, int64_t batch, int64_t *ids) {
    ls_sampler *samplers[8] = {NULL};
    int64_t n = 0;
    for (int r = 0; r < n_ranks; r++) samplers[r] = make(options(n_samples, n_ranks, r));
    int64_t length = ls_sampler_length(samplers[0]);
    for (int64_t first = 0; first < length; first += batch)
        for (int64_t i = first; i < first + batch && i < length; i++)
            for (int r = 0; r < n_ranks; r++) {
                int64_t index;
                int is_padding;
                assert_ok(ls_sampler_get(samplers[r], i, &index, &is_padding));
                if (!is_padding) ids[n++] = index;
            }
    for (int r = 0; r < n_ranks; r++) ls_sampler_destroy(samplers[r]);
    return n;
}

/* T076: as many as the set has, in its order. */
static void gathered_samples_are_the_set_in_index_order(void **state) {
    (void)state;
    const struct {
        int64_t n_samples, batch;
        int n_ranks;
    } rows[] = {{22, 8, 3}, {97, 8, 2}, {99, 8, 2}, {22, 1, 8}, {3, 8, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t ids[128];
        int64_t n = gather_ids(rows[i].n_samples, rows[i].n_ranks, rows[i].batch, ids);
        assert_int_equal(n, rows[i].n_samples);
        for (int64_t k = 0; k < n; k++) assert_int_equal(ids[k], k);
    }
}

/* T069: 10 samples, of which 0 and 1 are wrong; the lists of 3 ranks are in the table above. */
static void padding_does_not_count_in_a_metric(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) {
        int64_t ids[16], n = gather_ids(10, n_ranks, 2, ids), n_right = 0;
        for (int64_t k = 0; k < n; k++) n_right += ids[k] > 1;
        assert_int_equal(n, 10);
        assert_true((double)n_right / (double)n == 0.8);
    }
}

/* ---- oracle ---- */

enum { MAX_SAMPLES = 130 };

typedef struct totals {
    int seen[MAX_SAMPLES]; /* places that are no padding */
    int64_t n_places, n_padding;
} totals;

static totals count_epoch(ls_sampler_opts opts, int64_t epoch) {
    totals t = {{0}, 0, 0};
    int64_t length = -1;
    for (opts.rank = 0; opts.rank < opts.n_ranks; opts.rank++) {
        ls_sampler *sampler = make(opts);
        assert_ok(ls_sampler_set_epoch(sampler, epoch));
        if (length < 0) length = ls_sampler_length(sampler);
        assert_int_equal(ls_sampler_length(sampler), length);
        for (int64_t i = 0; i < length; i++) {
            int64_t index = -1;
            int is_padding = -1;
            assert_ok(ls_sampler_get(sampler, i, &index, &is_padding));
            assert_true(index >= 0 && index < opts.n_samples);
            assert_true(is_padding == 0 || is_padding == 1);
            t.n_places++;
            t.n_padding += is_padding;
            t.seen[index] += !is_padding;
        }
        ls_sampler_destroy(sampler);
    }
    return t;
}

static void check_epoch(ls_sampler_opts opts) {
    totals t = count_epoch(opts, 3);
    int64_t round = opts.n_ranks * (opts.assign == LS_ASSIGN_BLOCKS ? opts.block : 1);
    int64_t n_seen = 0;
    for (int64_t i = 0; i < opts.n_samples; i++) {
        assert_true(t.seen[i] <= 1);
        n_seen += t.seen[i];
    }
    assert_int_equal(t.n_places % round, 0);
    assert_int_equal(n_seen + t.n_padding, t.n_places);
    if (opts.tail == LS_TAIL_PAD) {
        assert_int_equal(n_seen, opts.n_samples);
        assert_true(t.n_padding < round);
    } else {
        assert_int_equal(t.n_padding, 0);
        assert_true(opts.n_samples - n_seen < round);
    }
}

static void each_sample_appears_once_but_for_padding(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 64, 97, MAX_SAMPLES};
    static const int worlds[] = {1, 2, 3, 4, 5, 7, 8};
    static const int64_t blocks[] = {1, 2, 3, 8};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
            for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++)
                for (int variant = 0; variant < 8; variant++) {
                    ls_sampler_opts opts = options(sizes[s], worlds[w], 0);
                    opts.tail = variant & 1;
                    opts.assign = variant >> 1 & 1;
                    opts.shuffle = variant >> 2 & 1;
                    opts.block = blocks[b];
                    opts.seed = 42;
                    check_epoch(opts);
                }
}

/* Each place of the whole epoch, computed by walking through ranks, must agree with the list
 * "permutation, repeated" that a single rank sees. */
static void ranks_share_one_permutation(void **state) {
    (void)state;
    for (int n_ranks = 1; n_ranks <= 5; n_ranks++)
        for (int64_t block = 1; block <= 3; block++) {
            ls_sampler_opts opts = options(101, 1, 0);
            opts.shuffle = 1;
            opts.seed = 7;
            ls_sampler *alone = make(opts);
            opts.assign = LS_ASSIGN_BLOCKS;
            opts.block = block;
            opts.n_ranks = n_ranks;
            for (opts.rank = 0; opts.rank < n_ranks; opts.rank++) {
                ls_sampler *sampler = make(opts);
                for (int64_t i = 0; i < ls_sampler_length(sampler); i++) {
                    int64_t place = i / block * block * n_ranks + opts.rank * block + i % block;
                    int64_t index, expected;
                    int is_padding, unused;
                    assert_ok(ls_sampler_get(sampler, i, &index, &is_padding));
                    assert_ok(ls_sampler_get(alone, place % 101, &expected, &unused));
                    assert_int_equal(index, expected);
                    assert_int_equal(is_padding, place >= 101);
                }
                ls_sampler_destroy(sampler);
            }
            ls_sampler_destroy(alone);
        }
}

/* ---- shuffling ---- */

static int64_t *order_of(ls_sampler *sampler, int64_t epoch) {
    int64_t n = ls_sampler_length(sampler);
    int64_t *order = malloc((size_t)n * sizeof *order);
    int is_padding;
    assert_ok(ls_sampler_set_epoch(sampler, epoch));
    for (int64_t i = 0; i < n; i++) assert_ok(ls_sampler_get(sampler, i, &order[i], &is_padding));
    return order;
}

static int64_t n_equal(const int64_t *a, const int64_t *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += a[i] == b[i];
    return count;
}

static void epochs_and_seeds_differ_and_come_back(void **state) {
    (void)state;
    enum { N = 1000 };
    ls_sampler_opts opts = options(N, 1, 0);
    opts.shuffle = 1;
    opts.seed = 1;
    ls_sampler *sampler = make(opts);
    opts.seed = 2;
    ls_sampler *other = make(opts);
    int64_t *first = order_of(sampler, 0), *second = order_of(sampler, 1);
    int64_t *far = order_of(sampler, ((int64_t)1 << 32)), *other_seed = order_of(other, 0);
    int64_t *again = order_of(sampler, 0);
    /* two random orders of 1000 agree at about one place */
    assert_true(n_equal(first, second, N) < 12);
    assert_true(n_equal(first, far, N) < 12);
    assert_true(n_equal(first, other_seed, N) < 12);
    assert_int_equal(n_equal(first, again, N), N);
    free(first);
    free(second);
    free(far);
    free(other_seed);
    free(again);
    ls_sampler_destroy(other);
    ls_sampler_destroy(sampler);
}

static void fresh_sampler_is_at_epoch_0(void **state) {
    (void)state;
    ls_sampler_opts opts = options(50, 1, 0);
    opts.shuffle = 1;
    ls_sampler *fresh = make(opts), *set = make(opts);
    assert_ok(ls_sampler_set_epoch(set, 5));
    assert_ok(ls_sampler_set_epoch(set, 0));
    char a[256], b[256];
    assert_string_equal(places_of(fresh, a), places_of(set, b));
    ls_sampler_destroy(fresh);
    ls_sampler_destroy(set);
}

/* Each of the 24 orders of four samples comes up: 2400 epochs, 100 expected, deviation 10. */
static void all_orders_are_about_equally_frequent(void **state) {
    (void)state;
    ls_sampler_opts opts = options(4, 1, 0);
    opts.shuffle = 1;
    opts.seed = 3;
    ls_sampler *sampler = make(opts);
    int count[256] = {0}, n_orders = 0;
    for (int64_t epoch = 0; epoch < 2400; epoch++) {
        int64_t *order = order_of(sampler, epoch);
        count[order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6]++;
        free(order);
    }
    for (int i = 0; i < 256; i++) {
        if (count[i] == 0) continue;
        n_orders++;
        assert_in_range(count[i], 50, 150);
    }
    assert_int_equal(n_orders, 24);
    ls_sampler_destroy(sampler);
}

/* ---- limits and bad inputs ---- */

static void huge_counts_work_without_shuffling(void **state) {
    (void)state;
    int64_t n = (int64_t)1 << 60, index;
    int is_padding;
    ls_sampler *sampler = make(options(n - 1, 1 << 20, (1 << 20) - 1));
    assert_int_equal(ls_sampler_length(sampler), (int64_t)1 << 40);
    assert_ok(ls_sampler_get(sampler, 5, &index, &is_padding));
    assert_int_equal(index, ((int64_t)6 << 20) - 1);
    assert_ok(ls_sampler_get(sampler, ((int64_t)1 << 40) - 1, &index, &is_padding));
    assert_int_equal(index, 0);
    assert_int_equal(is_padding, 1);
    ls_sampler_destroy(sampler);
}

static void all_bad_fields_are_named(void **state) {
    (void)state;
    ls_sampler_opts bad = options(0, 0, 3);
    ls_sampler *sampler = NULL;
    bad.tail = 9;
    bad.assign = -1;
    bad.block = -2;
    static const char *const texts[] = {"n_samples is 0", "n_ranks is 0", "rank is 3",
                                        "tail is 9",      "assign is -1", "block is -2"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(ls_sampler_create(&bad, &sampler), LS_ERR_ARGUMENT, texts[i]);
    bad = options(5, 2, -1);
    assert_fails(ls_sampler_create(&bad, &sampler), LS_ERR_ARGUMENT, "rank is -1");
    bad = options(5, 2, 0);
    bad.struct_size = 4;
    assert_fails(ls_sampler_create(&bad, &sampler), LS_ERR_ARGUMENT, "struct_size is 4");
    assert_fails(ls_sampler_create(NULL, &sampler), LS_ERR_ARGUMENT, "NULL");
    assert_null(sampler);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    ls_sampler *sampler = NULL;
    ls_sampler_opts opts = options(INT64_MAX, 2, 0);
    assert_fails(ls_sampler_create(&opts, &sampler), LS_ERR_ARGUMENT, "more than 2^63 places");
    opts = options(10, 8, 0);
    opts.assign = LS_ASSIGN_BLOCKS;
    opts.block = INT64_MAX / 4;
    assert_fails(ls_sampler_create(&opts, &sampler), LS_ERR_ARGUMENT, "smaller block");
    opts = options(INT64_MAX / 2, 1, 0);
    opts.shuffle = 1;
    assert_fails(ls_sampler_create(&opts, &sampler), LS_ERR_MEMORY, "sampler of 46116860184");
    assert_null(sampler);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void places_outside_are_refused(void **state) {
    (void)state;
    ls_sampler *sampler = make(options(10, 3, 1));
    int64_t index = 77;
    int is_padding = 77;
    assert_fails(ls_sampler_get(sampler, -1, &index, &is_padding), LS_ERR_ARGUMENT, "place -1");
    assert_fails(ls_sampler_get(sampler, 4, &index, &is_padding), LS_ERR_ARGUMENT,
                 "place 4 of rank 1, which has 4");
    assert_int_equal(index, 77);
    assert_int_equal(is_padding, 77);
    assert_fails(ls_sampler_set_epoch(sampler, -1), LS_ERR_ARGUMENT, "epoch is -1");
    ls_sampler_destroy(sampler);
    ls_sampler_destroy(NULL);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    ls_sampler_opts opts = options(10, 3, 1);
    opts.shuffle = 1;
    for (int64_t n = 1;; n++) {
        ls_sampler *sampler = NULL;
        lsi_mem_fail_at(n);
        ls_status status = ls_sampler_create(&opts, &sampler);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        ls_sampler_destroy(sampler);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_cases_equal_the_documented_ones),
        cmocka_unit_test(gathered_samples_are_the_set_in_index_order),
        cmocka_unit_test(padding_does_not_count_in_a_metric),
        cmocka_unit_test(each_sample_appears_once_but_for_padding),
        cmocka_unit_test(ranks_share_one_permutation),
        cmocka_unit_test(epochs_and_seeds_differ_and_come_back),
        cmocka_unit_test(fresh_sampler_is_at_epoch_0),
        cmocka_unit_test(all_orders_are_about_equally_frequent),
        cmocka_unit_test(huge_counts_work_without_shuffling),
        cmocka_unit_test(all_bad_fields_are_named),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(places_outside_are_refused),
        cmocka_unit_test(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
