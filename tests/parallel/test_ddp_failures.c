/* DDP when something fails: a rank that dies, differs or gives up within a step, memory that runs
 * out, a group whose ring is full. Wanted: the right status on every rank, a message that names the
 * culprit, errors that stick, and nothing left behind when everything is destroyed. */
#include "harness/harness.h"

#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "harness/ranks.h"
#include "lone.h"

static const int64_t counts[] = {16, 1000, -3, 7, 50000};
enum { N_PARAMS = 5 };
static const ls_ddp_opts tiny_buckets = {
    .struct_size = sizeof tiny_buckets, .bucket_cap_mb = 1e-9, .first_bucket_mb = 1e-9};
static const ls_ddp_opts tiny_reproducible = {.struct_size = sizeof tiny_reproducible,
                                              .bucket_cap_mb = 1e-9,
                                              .first_bucket_mb = 1e-9,
                                              .reproducible = 1};

static void expect(const rank_result *results, int rank, int status, const char *text) {
    if (results[rank].status != status || !strstr(results[rank].message, text))
        fail_msg("rank %d: expected status %d with '%s', found %d with '%s'", rank, status, text,
                 results[rank].status, results[rank].message);
}

/* ---- a step, call by call ---- */

typedef struct walk {
    toy *model;
    ls_ddp *ddp;
    int64_t n_micro;
    int n_calls, stop_after; /* calls made; the walk ends before call number stop_after */
} walk;

#define WALK(call)                                                                                 \
    do {                                                                                           \
        if (w->n_calls++ == w->stop_after) return LS_OK;                                           \
        LSI_TRY(call);                                                                             \
    } while (0)

static ls_status walk_step(walk *w) {
    WALK(ls_ddp_begin_step(w->ddp, w->n_micro, 0));
    for (int64_t m = 0; m < w->n_micro; m++) {
        WALK(ls_ddp_begin_backward(w->ddp));
        for (int i = N_PARAMS - 1; i >= 0; i--) {
            if (w->model->params[i].flags & LS_PARAM_FROZEN) continue;
            toy_write_gradient(w->model, i, 0, m, ls_ddp_accumulates(w->ddp));
            WALK(ls_ddp_grad_ready(w->ddp, i));
        }
        WALK(ls_ddp_end_backward(w->ddp));
    }
    WALK(ls_ddp_finish_step(w->ddp));
    return LS_OK;
}

/* Calls of a step: begin and finish; begin, end and 4 gradients of a micro-batch. */
static int calls_of_step(int n_micro) {
    return 2 + n_micro * 6;
}

/* ---- a rank dies ---- */

/* Rank 1 is killed before call number *context of its second step. */
static ls_status rank_1_dies_in_step(ls_group *group, void *context) {
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, ls_group_rank(group));
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &tiny_buckets, &ddp));
    ls_group_set_timeout(group, 500);
    bool is_victim = ls_group_rank(group) == 1;
    ls_status status = LS_OK;
    for (int step = 0; step < 3 && status == LS_OK; step++) {
        int last = is_victim && step == 1 ? *(int *)context : INT32_MAX;
        walk w = {&model, ddp, 1, 0, last};
        status = walk_step(&w);
        if (last != INT32_MAX) raise(SIGKILL);
    }
    RANK_CHECK(status != LS_OK, "the steps went on");
    RANK_CHECK(ls_ddp_finish_step(ddp) == status, "the error does not stick to finish_step");
    RANK_CHECK(ls_ddp_begin_step(ddp, 1, 0) == status, "the error does not stick to begin_step");
    ls_ddp_destroy(ddp);
    RANK_CHECK(strstr(ls_last_message(), "rank 1 (pid "), "destroy changed the message to '%s'",
               ls_last_message());
    toy_fini(&model);
    return status;
}

static void a_rank_killed_in_a_step_is_named_by_the_others(void **state) {
    (void)state;
    for (int call = 0; call <= calls_of_step(1); call++) {
        rank_result results[3];
        run_rank_processes(3, rank_1_dies_in_step, &call, results);
        assert_int_equal(results[1].status, -SIGKILL);
        expect(results, 0, LS_ERR_PEER, "rank 1 (pid ");
        expect(results, 2, LS_ERR_PEER, "rank 1 (pid ");
    }
}

/* ---- ranks differ ---- */

static ls_status w2_is_used_on_rank_1_only(ls_group *group, void *context) {
    (void)context;
    float values[2] = {1, 1};
    ls_param params[] = {{.name = "w1", .count = 1, .dtype = LS_DTYPE_F32, .data = &values[0]},
                         {.name = "w2", .count = 1, .dtype = LS_DTYPE_F32, .data = &values[1]}};
    ls_ddp *ddp = NULL;
    LSI_TRY(ls_ddp_create(group, params, 2, NULL, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    LSI_TRY(ls_ddp_grad_ready(ddp, 0));
    if (ls_group_rank(group) == 1) LSI_TRY(ls_ddp_grad_ready(ddp, 1));
    ls_status status = ls_ddp_end_backward(ddp);
    if (status == LS_OK) status = ls_ddp_finish_step(ddp);
    ls_ddp_destroy(ddp);
    return status;
}

static void a_parameter_used_on_one_rank_only_is_named(void **state) {
    (void)state;
    rank_result results[2];
    run_rank_processes(2, w2_is_used_on_rank_1_only, NULL, results);
    expect(results, 0, LS_ERR_STATE, "step 1: 1 parameters got no gradient: w2 (rank 0);");
    expect(results, 1, LS_ERR_STATE, "step 1: 1 parameters got no gradient: w2 (rank 0);");
}

/* With the default scale, which says how many micro-batches a rank has. */
static ls_status rank_1_has_more_micro_batches(ls_group *group, void *context) {
    (void)context;
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, 0);
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, NULL, &ddp));
    walk w = {&model, ddp, 1 + ls_group_rank(group) % 2, 0, INT32_MAX};
    ls_status status = walk_step(&w);
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return status;
}

static void different_numbers_of_micro_batches_are_found(void **state) {
    (void)state;
    rank_result results[2];
    run_rank_processes(2, rank_1_has_more_micro_batches, NULL, results);
    for (int r = 0; r < 2; r++) {
        expect(results, r, LS_ERR_MISMATCH, "scale 0.5,");
        expect(results, r, LS_ERR_MISMATCH, "rank 1 called all-reduce");
        expect(results, r, LS_ERR_MISMATCH, "scale 0.25,");
    }
}

/* ---- destroyed within a step ---- */

static ls_status expect_good_step(ls_group *group, toy *model) {
    ls_ddp *ddp = NULL;
    int n = ls_group_world_size(group);
    LSI_TRY(ls_ddp_create(group, model->params, N_PARAMS, &tiny_buckets, &ddp));
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(toy_backward(model, ddp, 3, ls_group_rank(group)));
    LSI_TRY(ls_ddp_finish_step(ddp));
    float leaves[LSI_MAX_RANKS];
    for (int r = 0; r < n; r++) leaves[r] = toy_gradient(3, r, 1, 5);
    float found = ((float *)model->params[1].grad)[5];
    RANK_CHECK(found == tree_sum(leaves, n) * (float)(1.0 / n), "found %g", (double)found);
    ls_ddp_destroy(ddp);
    return LS_OK;
}

/* All ranks give up before the same call, once what is in flight has ended: the group, its ring of
 * calls and its memory are as good as before. */
static ls_status all_ranks_give_up(ls_group *group, void *context) {
    const ls_ddp_opts *opts = context;
    toy model;
    toy_init(&model, counts, N_PARAMS, 0);
    for (int last = 0; last <= calls_of_step(2); last++) {
        ls_ddp *ddp = NULL;
        LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, opts, &ddp));
        walk w = {&model, ddp, 2, 0, last};
        LSI_TRY(walk_step(&w));
        LSI_TRY(ls_barrier(group, NULL));
        ls_ddp_destroy(ddp);
        for (int i = 0; i < N_PARAMS; i++)
            RANK_CHECK(!model.params[i].grad, "parameter %d still has a gradient", i);
        LSI_TRY(ls_barrier(group, NULL));
        RANK_CHECK(n_heap_blocks(group) == 0, "%d blocks left after %d calls", n_heap_blocks(group),
                   last);
        LSI_TRY(ls_barrier(group, NULL));
        LSI_TRY(expect_good_step(group, &model));
        LSI_TRY(ls_barrier(group, NULL));
    }
    toy_fini(&model);
    for (int i = 0; i < LSI_CALLS; i++) LSI_TRY(ls_barrier(group, NULL)); /* no slot was lost */
    return LS_OK;
}

static void destroying_within_a_step_leaves_nothing(void **state) {
    (void)state;
    const ls_ddp_opts *opts[] = {&tiny_buckets, &tiny_reproducible};
    for (int n = 1; n <= 4; n++)
        for (int o = 0; o < 2; o++) {
            assert_ok(run_ranks(RANKS_AS_THREADS, n, all_ranks_give_up, (void *)opts[o]));
            assert_int_equal(lsi_mem_n_blocks(), 0);
        }
}

/* Rank 0 gives up with a bucket in flight and takes new shared memory, while rank 1 comes only
 * later to add into the bucket: it must not find the new memory in its place. */
static ls_status rank_0_gives_up_early(ls_group *group, void *context) {
    _Atomic int *given_up = context;
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, 0);
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &tiny_buckets, &ddp));
    if (ls_group_rank(group) == 1)
        while (!*given_up) lsi_sleep_ms(1);
    walk w = {&model, ddp, 1, 0, 3};
    LSI_TRY(walk_step(&w));
    enum { N_BYTES = 300000 };
    unsigned char *memory = NULL;
    if (ls_group_rank(group) == 0) {
        (void)lsi_fail(LS_ERR_STATE, "the first failure");
        ls_ddp_destroy(ddp);
        RANK_CHECK(strcmp(ls_last_message(), "the first failure") == 0, "message '%s'",
                   ls_last_message());
        void *ptr = NULL;
        LSI_TRY(ls_group_alloc_shared(group, N_BYTES, &ptr));
        memory = ptr;
        memset(memory, 0x5a, N_BYTES);
        *given_up = 1;
    }
    LSI_TRY(ls_barrier(group, NULL));
    for (int i = 0; memory && i < N_BYTES; i++)
        RANK_CHECK(memory[i] == 0x5a, "byte %d was overwritten", i);
    if (ls_group_rank(group) == 1) ls_ddp_destroy(ddp);
    ls_group_free_shared(group, memory);
    LSI_TRY(expect_good_step(group, &model));
    toy_fini(&model);
    return LS_OK;
}

static void buckets_in_flight_outlive_their_owner(void **state) {
    (void)state;
    _Atomic int given_up = 0;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, rank_0_gives_up_early, &given_up));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* What destroying runs into is not what the caller wants to read. */
static ls_status rank_0_destroys_after_an_abort(ls_group *group, void *context) {
    _Atomic int *created = context;
    toy model;
    ls_ddp *ddp = NULL;
    toy_init(&model, counts, N_PARAMS, 0);
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &tiny_buckets, &ddp));
    if (ls_group_rank(group) == 1) *created = 1;
    while (!*created) lsi_sleep_ms(1);
    if (ls_group_rank(group) == 0) {
        walk w = {&model, ddp, 1, 0, 3};
        LSI_TRY(walk_step(&w));
        ls_group_abort(group, LS_ERR_NUMERIC, "the second failure");
        (void)lsi_fail(LS_ERR_STATE, "the first failure");
    }
    char before[LSI_MESSAGE_BYTES];
    snprintf(before, sizeof before, "%s", ls_last_message());
    ls_ddp_destroy(ddp);
    RANK_CHECK(strcmp(ls_last_message(), before) == 0, "message '%s'", ls_last_message());
    toy_fini(&model);
    return LS_OK;
}

static void destroying_keeps_the_message(void **state) {
    (void)state;
    _Atomic int created = 0;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, rank_0_destroys_after_an_abort, &created));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- what one rank cannot get ---- */

static ls_status create_and_walk(lone *f) {
    LSI_TRY(ls_ddp_create(f->group, f->model.params, N_PARAMS, &tiny_reproducible, &f->ddp));
    walk w = {&f->model, f->ddp, 5, 0, INT32_MAX};
    return walk_step(&w);
}

static void failed_allocations_are_reported_and_leave_nothing(void **state) {
    (void)state;
    int n_failures = 0, failed = 1;
    for (int64_t n = 1; failed; n++) {
        lone f;
        lone_open(&f, counts, N_PARAMS);
        lsi_mem_fail_at(n);
        ls_status status = create_and_walk(&f);
        failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        if (failed) {
            assert_fails(status, LS_ERR_MEMORY, "failed on request");
            n_failures++;
            if (f.ddp) {
                assert_fails(ls_ddp_finish_step(f.ddp), LS_ERR_STATE, "an earlier call failed");
                assert_fails(ls_ddp_begin_step(f.ddp, 1, 0), LS_ERR_STATE, "an earlier call");
                assert_fails(ls_ddp_begin_backward(f.ddp), LS_ERR_STATE, "an earlier call");
            }
        } else {
            assert_ok(status);
        }
        lone_close(&f);
    }
    assert_true(n_failures > 10);
}

/* Buckets are rebuilt in the second step, since gradients become ready first to last. */
static ls_status forward_step(lone *f) {
    LSI_TRY(ls_ddp_begin_step(f->ddp, 1, 0));
    LSI_TRY(ls_ddp_begin_backward(f->ddp));
    for (int i = 0; i < N_PARAMS; i++) {
        if (f->model.params[i].flags & LS_PARAM_FROZEN) continue;
        toy_write_gradient(&f->model, i, 0, 0, 0);
        LSI_TRY(ls_ddp_grad_ready(f->ddp, i));
    }
    LSI_TRY(ls_ddp_end_backward(f->ddp));
    return ls_ddp_finish_step(f->ddp);
}

static ls_status rebuild_and_check(lone *f) {
    LSI_TRY(forward_step(f));
    return ls_ddp_check_weights(f->ddp);
}

static void failed_allocations_of_a_rebuild_and_a_check_leave_nothing(void **state) {
    (void)state;
    int n_rebuilds = 0, n_checks = 0, failed = 1;
    for (int64_t n = 1; failed; n++) {
        lone f;
        lone_open(&f, counts, N_PARAMS);
        assert_ok(ls_ddp_create(f.group, f.model.params, N_PARAMS, &tiny_buckets, &f.ddp));
        assert_ok(forward_step(&f));
        lsi_mem_fail_at(n);
        ls_status status = rebuild_and_check(&f);
        failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        if (!failed) {
            assert_ok(status);
        } else {
            assert_fails(status, LS_ERR_MEMORY, "failed on request");
            ls_bucket_info info;
            assert_ok(ls_ddp_get_bucket(f.ddp, 3, &info));
            /* A rebuild is part of a step, a check is not. */
            status = ls_ddp_check_weights(f.ddp);
            n_checks += status == LS_OK;
            n_rebuilds += status == LS_ERR_STATE;
        }
        lone_close(&f);
    }
    assert_true(n_rebuilds >= 5 && n_checks >= 1);
}

/* Somebody else's works fill the ring of the group. */
static void a_full_ring_fails_the_step(void **state) {
    (void)state;
    static ls_work *works[LSI_CALLS];
    lone f;
    lone_open(&f, counts, N_PARAMS);
    assert_ok(ls_ddp_create(f.group, f.model.params, N_PARAMS, &tiny_reproducible, &f.ddp));
    for (int i = 0; i < LSI_CALLS; i++) assert_ok(ls_barrier(f.group, &works[i]));
    walk w = {&f.model, f.ddp, 2, 0, INT32_MAX};
    assert_fails(walk_step(&w), LS_ERR_BUSY, "ddp: bucket 0 of 4");
    for (int i = 0; i < LSI_CALLS; i++) assert_ok(ls_work_wait(works[i], -1));
    assert_fails(ls_ddp_grad_ready(f.ddp, 3), LS_ERR_STATE, "an earlier call failed");
    assert_fails(ls_ddp_end_backward(f.ddp), LS_ERR_STATE, "an earlier call failed");
    assert_fails(ls_ddp_finish_step(f.ddp), LS_ERR_STATE, "an earlier call failed");
    lone_close(&f);
}

static void a_heap_too_small_is_reported(void **state) {
    (void)state;
    static const int64_t too_many[] = {1 << 20};
    lone f;
    lone_open(&f, counts, N_PARAMS);
    toy large;
    toy_init(&large, too_many, 1, 0);
    assert_fails(ls_ddp_create(f.group, large.params, 1, NULL, &f.ddp), LS_ERR_MEMORY,
                 "4194304 bytes asked for");
    toy_fini(&large);
    lone_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_in_a_step_is_named_by_the_others),
        cmocka_unit_test(a_parameter_used_on_one_rank_only_is_named),
        cmocka_unit_test(different_numbers_of_micro_batches_are_found),
        cmocka_unit_test(destroying_within_a_step_leaves_nothing),
        cmocka_unit_test(buckets_in_flight_outlive_their_owner),
        cmocka_unit_test(destroying_keeps_the_message),
        cmocka_unit_test(failed_allocations_are_reported_and_leave_nothing),
        cmocka_unit_test(failed_allocations_of_a_rebuild_and_a_check_leave_nothing),
        cmocka_unit_test(a_full_ring_fails_the_step),
        cmocka_unit_test(a_heap_too_small_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
