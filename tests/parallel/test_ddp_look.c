/* What can be seen of buckets: when they are posted, with and without overlap, and what a report
 * gets about them. */
#include "small.h"

enum { N_PARAMS = 4 };

static const spec model[N_PARAMS] = {
    {"p0", 17, 0, 0}, {"p1", 3, 0, 0}, {"p2", 4, 0, LS_PARAM_FROZEN}, {"p3", 0, 0, 0}};
static const double grads[N_PARAMS] = {1, 2, 0, 4};

static ls_status open_model(ls_group *group, int no_overlap, small *s, ls_ddp **ddp) {
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = 1e-9,
                        .first_bucket_mb = 1e-9,
                        .no_overlap = no_overlap};
    small_init(s, model, N_PARAMS);
    return ls_ddp_create(group, s->params, N_PARAMS, &opts, ddp);
}

/* p3 has no elements and shares its bucket with nobody, as the cap is below a line. */
static ls_status expect_before(const ls_ddp *ddp) {
    static const int64_t counts[] = {0, 16, 32};
    static const int first[] = {3, 1, 0};
    for (int b = 0; b < 3; b++) {
        ls_bucket_info info;
        LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
        RANK_CHECK(info.count == counts[b] && info.bytes == counts[b] * 4 &&
                       info.dtype == LS_DTYPE_F32 && info.n_params == 1 &&
                       info.first_param == first[b] && ls_ddp_bucket_count(ddp, b) == counts[b],
                   "bucket %d: %lld elements, first %d", b, (long long)info.count,
                   info.first_param);
        RANK_CHECK(isnan(info.ready_ms) && isnan(info.posted_ms) && isnan(info.done_ms),
                   "bucket %d has times before the first step", b);
    }
    return LS_OK;
}

static ls_status expect_times(const ls_ddp *ddp, int no_overlap) {
    double last_ready_ms = 0;
    for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
        ls_bucket_info info;
        LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
        RANK_CHECK(info.ready_ms >= last_ready_ms && info.posted_ms >= info.ready_ms &&
                       info.done_ms >= info.posted_ms,
                   "bucket %d: ready %g, posted %g, done %g", b, info.ready_ms, info.posted_ms,
                   info.done_ms);
        last_ready_ms = info.ready_ms;
    }
    ls_bucket_info first;
    LSI_TRY(ls_ddp_get_bucket(ddp, 0, &first));
    RANK_CHECK(!no_overlap || first.posted_ms >= last_ready_ms, "posted at %g, all ready at %g",
               first.posted_ms, last_ready_ms);
    return LS_OK;
}

static ls_status step(ls_group *group, const small *s, ls_ddp *ddp, int no_overlap) {
    ls_event_sink sink = ls_ddp_sink(ddp);
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    int64_t before = n_calls(group), n_ready = 0;
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = N_PARAMS - 1; i >= 0; i--) {
        if (small_is_frozen(s, i)) continue;
        LSI_TRY(ready_with(s, ddp, i, grads[i]));
        LSI_TRY(sink.on_event(sink.context, LS_EVENT_PROGRESS, 0));
        n_ready++;
        RANK_CHECK(n_calls(group) - before == (no_overlap ? 0 : n_ready), "%d posted of %d",
                   (int)(n_calls(group) - before), (int)n_ready);
    }
    LSI_TRY(ls_ddp_end_backward(ddp));
    RANK_CHECK(n_calls(group) - before == n_ready + 1, "%d posted", (int)(n_calls(group) - before));
    return ls_ddp_finish_step(ddp);
}

static ls_status look(ls_group *group, void *context) {
    (void)context;
    for (int no_overlap = 0; no_overlap < 2; no_overlap++) {
        small s;
        ls_ddp *ddp = NULL;
        ls_bucket_info info;
        LSI_TRY(open_model(group, no_overlap, &s, &ddp));
        RANK_CHECK(ls_ddp_n_buckets(ddp) == 3, "%d buckets", ls_ddp_n_buckets(ddp));
        RANK_FAILS(ls_ddp_get_bucket(ddp, -1, &info), LS_ERR_ARGUMENT,
                   "bucket -1, expected 0 to 2");
        RANK_FAILS(ls_ddp_get_bucket(ddp, 3, &info), LS_ERR_ARGUMENT, "bucket 3, expected 0 to 2");
        RANK_CHECK(ls_ddp_bucket_count(ddp, 3) == 0, "a bucket too many");
        LSI_TRY(expect_before(ddp));
        for (int k = 0; k < 3; k++) {
            LSI_TRY(step(group, &s, ddp, no_overlap));
            LSI_TRY(expect_times(ddp, no_overlap));
        }
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void buckets_are_posted_and_seen_in_order(void **state) {
    (void)state;
    run_on_all(look, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_posted_and_seen_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
