/* Plans of buckets, without memory or processes: a table of models and caps with the buckets
 * wanted, and the invariants of every plan over models of all kinds of sizes. */
#include "harness/harness.h"

#include <stdlib.h>

#include "base/mem.h"
#include "parallel/bucket.h"

enum { MAX_PARAMS = 8, MAX_MODEL = 200, LINE_ELEMS = 16, FROZEN = -1 };

typedef struct case_row {
    const char *name;
    int n_params;
    int64_t count[MAX_PARAMS]; /* elements; below 0: frozen, with -count - 1 elements */
    int64_t cap_bytes, first_cap_bytes;
    int bucket_of[MAX_PARAMS]; /* FROZEN for none */
} case_row;

static const case_row rows[] = {
    {"nothing", 0, {0}, 1 << 20, 1 << 20, {0}},
    {"one", 1, {5}, 1 << 20, 1 << 20, {0}},
    {"all in the first", 4, {16, 16, 16, 16}, 1 << 20, 256, {0, 0, 0, 0}},
    {"reverse order", 4, {16, 16, 16, 16}, 64, 64, {3, 2, 1, 0}},
    {"first cap, then cap", 6, {16, 16, 16, 16, 16, 16}, 128, 64, {3, 2, 2, 1, 1, 0}},
    {"cap met exactly", 4, {16, 16, 16, 16}, 128, 128, {1, 1, 0, 0}},
    {"one byte below", 4, {16, 16, 16, 16}, 127, 127, {3, 2, 1, 0}},
    {"padding counts", 4, {1, 1, 1, 1}, 128, 128, {1, 1, 0, 0}},
    {"larger than the cap", 3, {16, 1000, 16}, 128, 128, {2, 1, 0}},
    {"larger than the cap, first", 3, {16, 16, 1000}, 128, 128, {1, 1, 0}},
    {"no room at all", 3, {16, 16, 16}, 0, 0, {2, 1, 0}},
    {"empty ones need no room", 4, {0, 16, 0, 0}, 64, 64, {0, 0, 0, 0}},
    {"only empty ones", 3, {0, 0, 0}, 0, 0, {0, 0, 0}},
    {"frozen between", 4, {16, -17, 16, -1}, 1 << 20, 1 << 20, {0, FROZEN, 0, FROZEN}},
    {"only frozen", 2, {-17, -2}, 1 << 20, 1 << 20, {FROZEN, FROZEN}},
};

static void make_params(const int64_t *count, int n_params, ls_param *params) {
    for (int i = 0; i < n_params; i++)
        params[i] = (ls_param){.name = "p",
                               .count = count[i] < 0 ? -count[i] - 1 : count[i],
                               .flags = count[i] < 0 ? LS_PARAM_FROZEN : 0};
}

static int64_t padded(int64_t count) {
    return (count + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS;
}

/* What holds for every plan: places are aligned and follow each other without gap or overlap in
 * reverse order of the parameters, so every element is in exactly one bucket; buckets keep their
 * cap unless they hold a single parameter (besides empty ones). */
static void expect_invariants(const ls_param *params, int n_params, int64_t cap_bytes,
                              int64_t first_cap_bytes, const lsi_bucket_plan *plan) {
    lsi_bucket expected[MAX_MODEL] = {{0}};
    int n_filled[MAX_MODEL] = {0}, bucket = -1, n_placed = 0;
    int64_t next = 0;
    for (int i = n_params - 1; i >= 0; i--) {
        if (params[i].flags & LS_PARAM_FROZEN) {
            assert_int_equal(plan->bucket_of[i], FROZEN);
            continue;
        }
        if (plan->bucket_of[i] != bucket) {
            assert_int_equal(plan->bucket_of[i], ++bucket);
            expected[bucket].offset_bytes = next * 4;
        }
        assert_int_equal(plan->buckets[bucket].offset_bytes + plan->offset_of[i] * 4, next * 4);
        assert_int_equal(plan->offset_of[i] % LINE_ELEMS, 0);
        assert_int_equal(plan->sequence[n_placed], i);
        assert_int_equal(plan->offsets[n_placed++], plan->offset_of[i]);
        expected[bucket].count += padded(params[i].count);
        expected[bucket].n_params++;
        n_filled[bucket] += params[i].count > 0;
        next += padded(params[i].count);
    }
    assert_int_equal(plan->n_params, n_params);
    assert_int_equal(plan->n_placed, n_placed);
    assert_int_equal(plan->n_buckets, bucket + 1);
    assert_int_equal(plan->total_bytes, next * 4);
    for (int b = 0; b < plan->n_buckets; b++) {
        int64_t cap = b == 0 ? first_cap_bytes : cap_bytes;
        assert_int_equal(plan->buckets[b].offset_bytes, expected[b].offset_bytes);
        assert_int_equal(plan->buckets[b].count, expected[b].count);
        assert_int_equal(plan->buckets[b].n_params, expected[b].n_params);
        if (n_filled[b] > 1) assert_true(plan->buckets[b].count * (int64_t)sizeof(float) <= cap);
    }
}

static void plans_are_as_the_table_says(void **state) {
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const case_row *row = &rows[r];
        ls_param params[MAX_PARAMS];
        lsi_bucket_plan plan;
        make_params(row->count, row->n_params, params);
        assert_ok(lsi_bucket_plan_create(params, row->n_params, NULL, NULL, row->cap_bytes,
                                         row->first_cap_bytes, &plan));
        for (int i = 0; i < row->n_params; i++)
            if (plan.bucket_of[i] != row->bucket_of[i])
                fail_msg("%s: parameter %d is in bucket %d, expected %d", row->name, i,
                         plan.bucket_of[i], row->bucket_of[i]);
        expect_invariants(params, row->n_params, row->cap_bytes, row->first_cap_bytes, &plan);
        lsi_bucket_plan_fini(&plan);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void invariants_hold_for_any_model(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 7, 15, 16, 17, 100, 1000, 70001};
    static const int64_t caps[] = {0, 1, 64, 65, 1000, 4096, 1 << 20, (int64_t)1 << 50};
    srand(1);
    for (size_t c = 0; c < sizeof caps / sizeof caps[0]; c++)
        for (size_t f = 0; f < sizeof caps / sizeof caps[0]; f++) {
            int64_t count[MAX_MODEL];
            ls_param params[MAX_MODEL];
            lsi_bucket_plan plan;
            int n = rand() % (MAX_MODEL + 1);
            for (int i = 0; i < n; i++) {
                count[i] = sizes[rand() % (int)(sizeof sizes / sizeof sizes[0])];
                if (rand() % 5 == 0) count[i] = -count[i] - 1;
            }
            make_params(count, n, params);
            assert_ok(lsi_bucket_plan_create(params, n, NULL, NULL, caps[c], caps[f], &plan));
            expect_invariants(params, n, caps[c], caps[f], &plan);
            lsi_bucket_plan_fini(&plan);
        }
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    static const int64_t counts[][2] = {
        {INT64_MAX, 1}, {INT64_MAX - 15, 1}, {INT64_MAX / 4, 1}, {INT64_MAX / 8, INT64_MAX / 8}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        ls_param params[2];
        lsi_bucket_plan plan;
        make_params(counts[i], 2, params);
        assert_fails(lsi_bucket_plan_create(params, 2, NULL, NULL, 1 << 20, 1 << 20, &plan),
                     LS_ERR_ARGUMENT, "elements");
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    ls_param params[4];
    make_params((const int64_t[]){1, 2, 3, 4}, 4, params);
    for (int64_t n = 1;; n++) {
        lsi_bucket_plan plan;
        lsi_mem_fail_at(n);
        ls_status status = lsi_bucket_plan_create(params, 4, NULL, NULL, 64, 64, &plan);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        if (!failed) {
            assert_ok(status);
            lsi_bucket_plan_fini(&plan);
            assert_true(n > 3);
            break;
        }
        assert_fails(status, LS_ERR_MEMORY, "");
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_as_the_table_says),
        cmocka_unit_test(invariants_hold_for_any_model),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
