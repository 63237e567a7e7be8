/* Plans of shards, without memory or processes: every element of every parameter has one owner, the
 * pieces of a rank are what its slices hold, and slices are as even as they can be. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/shard.h"

enum { MAX_MODEL = 40, MAX_TEST_RANKS = 9, MAX_COUNT = 70001 };

static void make_params(const int64_t *count, int n_params, ls_param *params) {
    for (int i = 0; i < n_params; i++)
        params[i] = (ls_param){.name = "p",
                               .dtype = i % 5 == 4 ? LS_DTYPE_F64 : LS_DTYPE_F32,
                               .count = count[i] < 0 ? -count[i] - 1 : count[i],
                               .flags = count[i] < 0 ? LS_PARAM_FROZEN : 0};
}

/* The rank whose slice of the bucket has this place. */
static int owner_of(const lsi_shard_plan *plan, int bucket, int64_t place) {
    int owner = -1;
    for (int r = 0; r < plan->n_ranks; r++)
        if (place >= lsi_shard_cut(plan, bucket, r) && place < lsi_shard_cut(plan, bucket, r + 1)) {
            assert_int_equal(owner, -1);
            owner = r;
        }
    return owner;
}

/* Slices follow each other without gap and fill the bucket. */
static void expect_cuts(const lsi_bucket_plan *buckets, const lsi_shard_plan *plan) {
    for (int b = 0; b < buckets->n_buckets; b++) {
        assert_int_equal(lsi_shard_cut(plan, b, 0), 0);
        assert_int_equal(lsi_shard_cut(plan, b, plan->n_ranks), buckets->buckets[b].count);
        for (int r = 0; r < plan->n_ranks; r++)
            assert_int_equal(lsi_shard_cut(plan, b, r) + lsi_shard_counts(plan, b)[r],
                             lsi_shard_cut(plan, b, r + 1));
    }
}

/* Marks what the pieces of a rank hold, each element once, in its slice. */
static void expect_pieces(const lsi_bucket_plan *buckets, const lsi_shard_plan *plan,
                          const ls_param *params, unsigned char *owned[]) {
    int64_t n_states = 0;
    for (int k = 0; k < plan->n_pieces; k++) {
        const lsi_piece *piece = &plan->pieces[k];
        int bucket = buckets->bucket_of[piece->param];
        assert_true(bucket >= 0 && piece->count > 0);
        assert_true(piece->begin >= 0 && piece->begin + piece->count <= params[piece->param].count);
        assert_int_equal(piece->state, n_states);
        n_states += piece->count;
        for (int64_t e = piece->begin; e < piece->begin + piece->count; e++) {
            assert_int_equal(owned[piece->param][e], 0);
            owned[piece->param][e] = 1;
        }
        int64_t first = buckets->offset_of[piece->param] + piece->begin;
        assert_int_equal(owner_of(plan, bucket, first), plan->rank);
        assert_int_equal(owner_of(plan, bucket, first + piece->count - 1), plan->rank);
    }
    assert_int_equal(plan->n_states, n_states);
}

static void expect_invariants(const ls_param *params, int n_params, int n_ranks,
                              int64_t cap_bytes) {
    lsi_bucket_plan buckets;
    unsigned char *owned[MAX_MODEL];
    assert_ok(lsi_bucket_plan_create(params, n_params, NULL, NULL, cap_bytes, cap_bytes, &buckets));
    for (int i = 0; i < n_params; i++) owned[i] = calloc((size_t)params[i].count + 1, 1);
    for (int r = 0; r < n_ranks; r++) {
        lsi_shard_plan plan;
        assert_ok(lsi_shard_plan_create(&buckets, params, n_ranks, r, &plan));
        expect_cuts(&buckets, &plan);
        expect_pieces(&buckets, &plan, params, owned);
        lsi_shard_plan_fini(&plan);
    }
    for (int i = 0; i < n_params; i++) {
        for (int64_t e = 0; e < params[i].count; e++)
            assert_int_equal(owned[i][e], !(params[i].flags & LS_PARAM_FROZEN));
        free(owned[i]);
    }
    lsi_bucket_plan_fini(&buckets);
}

static void every_element_has_one_owner(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 7, 15, 16, 17, 100, 1000, 4097, MAX_COUNT};
    static const int64_t caps[] = {0, 64, 4096, 1 << 20};
    srand(3);
    for (size_t c = 0; c < sizeof caps / sizeof caps[0]; c++)
        for (int n_ranks = 1; n_ranks <= MAX_TEST_RANKS; n_ranks++) {
            int64_t count[MAX_MODEL];
            ls_param params[MAX_MODEL];
            int n = rand() % (MAX_MODEL / 2);
            for (int i = 0; i < n; i++) {
                count[i] = sizes[rand() % (int)(sizeof sizes / sizeof sizes[0])];
                if (rand() % 6 == 0) count[i] = -count[i] - 1;
            }
            make_params(count, n, params);
            expect_invariants(params, n, n_ranks, caps[c]);
        }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* Elements that a rank owns of a model in one bucket. */
typedef struct share_row {
    const char *name;
    int n_params;
    int64_t count[8];
    int n_ranks;
    int64_t owned[4];
} share_row;

static const share_row shares[] = {
    {"7 on 3: ceil, not a line each (T028)", 1, {7}, 3, {3, 3, 1}},
    {"7 scalars on 3", 7, {1, 1, 1, 1, 1, 1, 1}, 3, {3, 3, 1}},
    {"3 scalars on 4: one has none (T023)", 3, {1, 1, 1}, 4, {1, 1, 1, 0}},
    {"one on 4", 1, {1}, 4, {1, 0, 0, 0}},
    {"none on 2", 1, {0}, 2, {0, 0}},
    {"large ones by lines", 1, {10001}, 2, {5008, 4993}},
};

static void slices_are_as_even_as_they_can_be(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        const share_row *row = &shares[i];
        ls_param params[8];
        lsi_bucket_plan buckets;
        for (int p = 0; p < row->n_params; p++)
            params[p] = (ls_param){.name = "p", .count = row->count[p], .dtype = LS_DTYPE_F32};
        assert_ok(
            lsi_bucket_plan_create(params, row->n_params, NULL, NULL, 1 << 20, 1 << 20, &buckets));
        for (int r = 0; r < row->n_ranks; r++) {
            lsi_shard_plan plan;
            assert_ok(lsi_shard_plan_create(&buckets, params, row->n_ranks, r, &plan));
            if (plan.n_states != row->owned[r])
                fail_msg("%s: rank %d owns %lld elements, expected %lld", row->name, r,
                         (long long)plan.n_states, (long long)row->owned[r]);
            lsi_shard_plan_fini(&plan);
        }
        lsi_bucket_plan_fini(&buckets);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_owner),
        cmocka_unit_test(slices_are_as_even_as_they_can_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
