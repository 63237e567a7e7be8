/* DDP against a serial computation, bit for bit: every number of ranks, as threads and as
 * processes, plain and reproducible, with accumulation, buckets from a few bytes to all in one,
 * and gradients that become ready in any order. Then the cases that users of other systems
 * reported, with their right values. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "harness/ranks.h"
#include "parallel/bucket.h"
#include "parallel/deal.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 2, MAX_MICRO = 64, MAX_PARAMS = 12 };
static const double MIB = 1024.0 * 1024.0;

/* ---- parity ---- */

typedef enum ready_order {
    ORDER_REVERSE,
    ORDER_FORWARD,
    ORDER_SHUFFLED,
    ORDER_SHUFFLED_BY_RANK, /* each rank its own: buckets are posted in one order all the same */
    N_ORDERS
} ready_order;

typedef struct setting {
    const int64_t *counts;
    int n_params;
    int64_t accumulation; /* micro-batches of a step: accumulation * ranks, or n_micro if not 0 */
    int64_t n_micro;
    double cap_bytes, first_cap_bytes; /* 0: default */
    ready_order order;
    bool reproducible, events, jitter;
} setting;

/* What a rank knows while it runs a setting. */
typedef struct run {
    const setting *s;
    ls_group *group;
    int rank, n_ranks;
    toy model;
    ls_ddp *ddp;
    ls_event_sink sink;
    lsi_deal deal;
    lsi_bucket_plan plan;
    int64_t n_micro;
    double scale;
} run;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void order_params(const run *r, int64_t step, int64_t micro, int *order) {
    int n = r->model.n_params;
    uint32_t random = (uint32_t)(step * 977 + micro % r->deal.count[0] * 31 + 1);
    if (r->s->order == ORDER_SHUFFLED_BY_RANK) random += (uint32_t)r->rank * 7919u;
    for (int i = 0; i < n; i++) order[i] = r->s->order == ORDER_FORWARD ? i : n - 1 - i;
    if (r->s->order < ORDER_SHUFFLED) return;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(next_random(&random) % (uint32_t)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

/* Buckets that may be posted: all that come before the first with a parameter not ready. */
static int64_t n_complete_buckets(const run *r, const bool *is_ready) {
    int first_open = r->plan.n_buckets;
    for (int i = 0; i < r->model.n_params; i++) {
        int bucket = r->plan.bucket_of[i];
        if (bucket >= 0 && !is_ready[i] && bucket < first_open) first_open = bucket;
    }
    return first_open;
}

static int64_t n_calls(const run *r) {
    lsi_group_stats stats;
    lsi_group_get_stats(r->group, &stats);
    return stats.n_calls;
}

static ls_status raise_event(const run *r, ls_event event, int index) {
    if (r->s->jitter) usleep((useconds_t)(rand() % 300));
    if (r->s->events) return r->sink.on_event(r->sink.context, event, index);
    if (event == LS_EVENT_GRAD_READY) return ls_ddp_grad_ready(r->ddp, index);
    return event == LS_EVENT_END_OF_BACKWARD ? ls_ddp_end_backward(r->ddp) : LS_OK;
}

/* Communication begins as soon as a bucket is complete, and only in the last micro-batch. */
static ls_status backward(const run *r, int64_t step, int64_t micro) {
    int order[MAX_PARAMS];
    bool is_ready[MAX_PARAMS] = {false};
    bool is_last = micro == r->deal.first[r->rank] + r->deal.count[r->rank] - 1;
    int64_t n_before = n_calls(r);
    order_params(r, step, micro, order);
    LSI_TRY(ls_ddp_begin_backward(r->ddp));
    for (int k = 0; k < r->model.n_params; k++) {
        int i = order[k];
        if (r->plan.bucket_of[i] < 0) continue;
        toy_write_gradient(&r->model, i, step, micro, ls_ddp_accumulates(r->ddp));
        LSI_TRY(raise_event(r, LS_EVENT_GRAD_READY, i));
        LSI_TRY(raise_event(r, LS_EVENT_PROGRESS, 0));
        is_ready[i] = true;
        int64_t expected = is_last ? n_complete_buckets(r, is_ready) : 0;
        RANK_CHECK(n_calls(r) - n_before == expected,
                   "after parameter %d: %lld buckets posted, expected %lld", i,
                   (long long)(n_calls(r) - n_before), (long long)expected);
    }
    return raise_event(r, LS_EVENT_END_OF_BACKWARD, 0);
}

static float expected_gradient(const run *r, int64_t step, int param, int64_t e) {
    float leaves[MAX_MICRO], sums[LSI_MAX_RANKS];
    for (int64_t m = 0; m < r->n_micro; m++) leaves[m] = toy_gradient(step, m, param, e);
    if (r->s->reproducible) return tree_sum(leaves, r->n_micro) * (float)r->scale;
    for (int k = 0; k < r->n_ranks; k++)
        sums[k] = linear_sum(leaves + r->deal.first[k], r->deal.count[k]);
    return tree_sum(sums, r->n_ranks) * (float)r->scale;
}

static ls_status check_gradients(const run *r, int64_t step) {
    for (int i = 0; i < r->model.n_params; i++) {
        const float *grad = r->model.params[i].grad;
        bool frozen = r->plan.bucket_of[i] < 0;
        RANK_CHECK(frozen == (grad == NULL), "parameter %d: wrong place of its gradient", i);
        for (int64_t e = 0; e < (frozen ? 0 : r->model.params[i].count); e++) {
            float expected = expected_gradient(r, step, i, e);
            RANK_CHECK(memcmp(&grad[e], &expected, sizeof expected) == 0,
                       "rank %d of %d, step %d, %d micro-batches, reproducible %d, cap %g, order "
                       "%d, parameter %d, element %lld: expected %.9g, found %.9g",
                       r->rank, r->n_ranks, (int)step, (int)r->n_micro, r->s->reproducible,
                       r->s->cap_bytes, r->s->order, i, (long long)e, (double)expected,
                       (double)grad[e]);
        }
    }
    return LS_OK;
}

static ls_status train(const run *r) {
    for (int64_t step = 0; step < N_STEPS; step++) {
        /* A plain deal is equal, so its average is DDP's own default. */
        LSI_TRY(
            ls_ddp_begin_step(r->ddp, r->deal.count[r->rank], r->s->reproducible ? r->scale : 0));
        for (int64_t m = 0; m < r->deal.count[r->rank]; m++)
            LSI_TRY(backward(r, step, r->deal.first[r->rank] + m));
        LSI_TRY(ls_ddp_finish_step(r->ddp));
        LSI_TRY(check_gradients(r, step));
    }
    return LS_OK;
}

static int64_t cap_in_bytes(double bytes, double default_mb) {
    return (int64_t)(bytes > 0 ? bytes : default_mb * MIB);
}

static ls_status setting_equals_serial_sum(ls_group *group, void *context) {
    run r = {.s = context, .group = group};
    r.rank = ls_group_rank(group);
    r.n_ranks = ls_group_world_size(group);
    r.n_micro = r.s->n_micro ? r.s->n_micro : r.s->accumulation * r.n_ranks;
    r.scale = 1.0 / (double)r.n_micro;
    LSI_TRY(lsi_deal_micro_batches(&r.deal, r.n_micro, r.n_ranks, r.s->reproducible));
    lsi_group_set_order(group, &r.deal.order);
    toy_init(&r.model, r.s->counts, r.s->n_params, r.rank);
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = r.s->cap_bytes / MIB,
                        .first_bucket_mb = r.s->first_cap_bytes / MIB,
                        .reproducible = r.s->reproducible,
                        .keep_buckets = 1};
    LSI_TRY(lsi_bucket_plan_create(r.model.params, r.model.n_params, NULL, NULL,
                                   cap_in_bytes(r.s->cap_bytes, 25),
                                   cap_in_bytes(r.s->first_cap_bytes, 1), &r.plan));
    LSI_TRY(ls_ddp_create(group, r.model.params, r.model.n_params, &opts, &r.ddp));
    RANK_CHECK(ls_ddp_n_buckets(r.ddp) == r.plan.n_buckets, "%d buckets, expected %d",
               ls_ddp_n_buckets(r.ddp), r.plan.n_buckets);
    for (int b = -1; b <= r.plan.n_buckets; b++)
        RANK_CHECK(ls_ddp_bucket_count(r.ddp, b) ==
                       (b < 0 || b == r.plan.n_buckets ? 0 : r.plan.buckets[b].count),
                   "bucket %d has %lld elements", b, (long long)ls_ddp_bucket_count(r.ddp, b));
    r.sink = ls_ddp_sink(r.ddp);
    ls_status status = train(&r);
    ls_ddp_destroy(r.ddp);
    lsi_bucket_plan_fini(&r.plan);
    toy_fini(&r.model);
    return status;
}

static const int64_t uneven[] = {17, 0, -8, 1, 1000, 7, -1, 16};
static const int64_t accumulations[] = {1, 2, 3, 5};
static const double caps[][2] = {{1e-3, 1e-3}, {4, 4}, {1024, 100}, {0, 0}};

static ls_status every_setting(ls_group *group, void *context) {
    (void)context;
    for (int reproducible = 0; reproducible < 2; reproducible++)
        for (size_t a = 0; a < COUNT_OF(accumulations); a++)
            for (size_t c = 0; c < COUNT_OF(caps); c++)
                for (int order = 0; order < N_ORDERS; order++) {
                    setting s = {.counts = uneven,
                                 .n_params = COUNT_OF(uneven),
                                 .accumulation = accumulations[a],
                                 .cap_bytes = caps[c][0],
                                 .first_cap_bytes = caps[c][1],
                                 .order = (ready_order)order,
                                 .reproducible = reproducible != 0,
                                 .events = (a + c) % 2 != 0};
                    LSI_TRY(setting_equals_serial_sum(group, &s));
                }
    return LS_OK;
}

static void gradients_equal_a_serial_sum(void **state) {
    (void)state;
    run_on_all_ranks(every_setting, NULL);
}

static const int64_t large[] = {16, 70001, -1001, 0, 7};

static ls_status large_settings(ls_group *group, void *context) {
    (void)context;
    for (int i = 0; i < 4; i++) {
        setting s = {.counts = large,
                     .n_params = COUNT_OF(large),
                     .accumulation = 1 + i % 2,
                     .cap_bytes = i < 2 ? 0 : 65536,
                     .reproducible = i == 1 || i == 2};
        LSI_TRY(setting_equals_serial_sum(group, &s));
    }
    return LS_OK;
}

static void large_gradients_equal_a_serial_sum(void **state) {
    (void)state;
    run_on_all_ranks(large_settings, NULL);
}

/* The step is the same for all numbers of ranks, and so is the closed form that is compared. */
static ls_status twelve_micro_batches(ls_group *group, void *context) {
    (void)context;
    for (int64_t n_micro = 8; n_micro <= 13; n_micro++) {
        setting s = {.counts = uneven,
                     .n_params = COUNT_OF(uneven),
                     .n_micro = n_micro,
                     .cap_bytes = 1024,
                     .first_cap_bytes = 100,
                     .reproducible = true};
        LSI_TRY(setting_equals_serial_sum(group, &s));
    }
    return LS_OK;
}

static void reproducible_bits_do_not_depend_on_ranks(void **state) {
    (void)state;
    run_on_all_ranks(twelve_micro_batches, NULL);
}

static ls_status jittered_settings(ls_group *group, void *context) {
    (void)context;
    for (int i = 0; i < 4; i++) {
        setting s = {.counts = uneven,
                     .n_params = COUNT_OF(uneven),
                     .accumulation = 1 + i % 2,
                     .cap_bytes = 4,
                     .first_cap_bytes = 4,
                     .order = i < 2 ? ORDER_REVERSE : ORDER_SHUFFLED_BY_RANK,
                     .reproducible = i % 2 != 0,
                     .events = true,
                     .jitter = true};
        LSI_TRY(setting_equals_serial_sum(group, &s));
    }
    return LS_OK;
}

static void ranks_at_different_speeds_agree(void **state) {
    (void)state;
    run_on_all_ranks(jittered_settings, NULL);
}

/* ---- models of unusual size ---- */

static ls_status empty_models_step(ls_group *group, void *context) {
    static const int64_t nothing[] = {0}, frozen[] = {-6, -1};
    (void)context;
    for (int i = 0; i < 6; i++) {
        setting s = {.counts = i % 3 == 2 ? frozen : nothing,
                     .n_params = i % 3,
                     .accumulation = 2,
                     .reproducible = i < 3};
        LSI_TRY(setting_equals_serial_sum(group, &s));
    }
    return LS_OK;
}

static void models_without_gradients_step(void **state) {
    (void)state;
    run_on_all_ranks(empty_models_step, NULL);
}

enum { N_MANY = LSI_CALLS + 17 };

/* Three works a bucket; the latter two change nothing. */
static ls_status run_stages(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                            ls_work **work) {
    (void)context;
    if (stage == 3) return LS_OK;
    return ls_all_reduce(group, bucket->grad, bucket->grad, bucket->count, bucket->dtype,
                         stage == 0 ? LS_OP_SUM : LS_OP_MAX, stage == 0 ? bucket->scale : 1, work);
}

static const ls_comm_hook stages = {.name = "stages", .run = run_stages};

static ls_status more_buckets_than_calls(ls_group *group, void *context) {
    int64_t *counts = calloc(N_MANY, sizeof *counts);
    for (int i = 0; i < N_MANY; i++) counts[i] = 1 + i % 3;
    toy model;
    toy_init(&model, counts, N_MANY, ls_group_rank(group));
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = 1e-9,
                        .first_bucket_mb = 1e-9,
                        .hook = context};
    ls_ddp *ddp = NULL;
    int n = ls_group_world_size(group);
    LSI_TRY(ls_ddp_create(group, model.params, N_MANY, &opts, &ddp));
    RANK_CHECK(ls_ddp_n_buckets(ddp) == N_MANY, "%d buckets", ls_ddp_n_buckets(ddp));
    for (int64_t step = 0; step < 2; step++) {
        LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
        LSI_TRY(toy_backward(&model, ddp, step, ls_group_rank(group)));
        LSI_TRY(ls_ddp_finish_step(ddp));
        for (int i = 0; i < N_MANY; i++) {
            float leaves[LSI_MAX_RANKS], *grad = model.params[i].grad;
            for (int r = 0; r < n; r++) leaves[r] = toy_gradient(step, r, i, 0);
            RANK_CHECK(grad[0] == tree_sum(leaves, n) * (float)(1.0 / n), "parameter %d", i);
        }
    }
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    free(counts);
    return LS_OK;
}

static void more_buckets_than_calls_in_flight_work(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (int n = 1; n <= 3; n++)
            assert_ok(run_ranks((rank_mode)mode, n, more_buckets_than_calls, NULL));
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, more_buckets_than_calls, (void *)&stages));
}

/* ---- values of rank 0 ---- */

static ls_status values_become_those_of_rank_0(ls_group *group, void *context) {
    (void)context;
    toy model;
    toy_init(&model, large, COUNT_OF(large), ls_group_rank(group));
    ls_ddp *ddp = NULL;
    LSI_TRY(ls_ddp_create(group, model.params, model.n_params, NULL, &ddp));
    for (int i = 0; i < model.n_params; i++) {
        const float *data = model.params[i].data;
        for (int64_t e = 0; e < model.params[i].count; e++)
            RANK_CHECK(data[e] == rough_value(0, i, e), "parameter %d, element %lld", i,
                       (long long)e);
    }
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void creation_gives_all_ranks_the_values_of_rank_0(void **state) {
    (void)state;
    run_on_all_ranks(values_become_those_of_rank_0, NULL);
}

/* ---- cases of users ---- */

typedef struct scalar_case {
    const char *name;
    double grads[2][2]; /* rank, micro-batch */
    double scale;
    double expected;
} scalar_case;

static const scalar_case scalar_cases[] = {
    /* Only the last micro-batch communicates, and what it sends holds the whole window. */
    {"window sum averaged over ranks", {{1, 3}, {2, 5}}, 0.5, 5.5},
    {"average of the whole window", {{1, 3}, {2, 5}}, 0, 2.75},
    /* Sums over 1, 3, 4 and 2 tokens: one factor for all of them, not a mean of means. */
    {"weighted by tokens", {{4, 3}, {10, 2}}, 1.0 / 10, 1.9},
};

static ls_status scalar_gives(ls_group *group, void *context) {
    const scalar_case *c = context;
    int rank = ls_group_rank(group);
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        float value = 1;
        ls_param param = {.name = "w", .count = 1, .dtype = LS_DTYPE_F32, .data = &value};
        ls_ddp_opts opts = {.struct_size = sizeof opts, .reproducible = reproducible};
        ls_ddp *ddp = NULL;
        LSI_TRY(ls_ddp_create(group, &param, 1, &opts, &ddp));
        LSI_TRY(ls_ddp_begin_step(ddp, 2, c->scale));
        for (int m = 0; m < 2; m++) {
            float *grad = param.grad, mine = (float)c->grads[rank][m];
            LSI_TRY(ls_ddp_begin_backward(ddp));
            *grad = ls_ddp_accumulates(ddp) ? *grad + mine : mine;
            LSI_TRY(ls_ddp_grad_ready(ddp, 0));
            LSI_TRY(ls_ddp_end_backward(ddp));
        }
        LSI_TRY(ls_ddp_finish_step(ddp));
        float found = *(float *)param.grad;
        ls_ddp_destroy(ddp);
        RANK_CHECK(fabs(found - c->expected) < 1e-6, "%s: rank %d found %g, expected %g", c->name,
                   rank, (double)found, c->expected);
    }
    return LS_OK;
}

static void windows_have_the_values_users_expect(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(scalar_cases); i++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            assert_ok(run_ranks((rank_mode)mode, 2, scalar_gives, (void *)&scalar_cases[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_a_serial_sum),
        cmocka_unit_test(large_gradients_equal_a_serial_sum),
        cmocka_unit_test(reproducible_bits_do_not_depend_on_ranks),
        cmocka_unit_test(ranks_at_different_speeds_agree),
        cmocka_unit_test(models_without_gradients_step),
        cmocka_unit_test(more_buckets_than_calls_in_flight_work),
        cmocka_unit_test(creation_gives_all_ranks_the_values_of_rank_0),
        cmocka_unit_test(windows_have_the_values_users_expect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
