/* A rank that is killed before any call of a step of any sharded strategy: in gathers of forward
 * and backward, between gradients, in the norm, the update, an evaluation and what is asked between
 * steps. The others get LS_ERR_PEER with its name, the error sticks, and nobody hangs. */
#include "harness/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/cases.h"
#include "harness/ranks.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* p0 is used by the first unit and the last, as a tied embedding is. */
static const int64_t counts[] = {600, 17, 300, 700, 5};
static const int64_t large_counts[] = {100003, 17, 200000, 150000, 50000};
static const ls_unit_use uses[] = {
    {0, 0, LS_USE_FORWARD_ONLY}, {0, 1}, {1, 2}, {2, 3}, {2, 4}, {2, 0}};
enum { N_PARAMS = COUNT_OF(counts), N_UNITS = 3, MOST_COUNT = 200000, N_STEPS = 4 };

/* Where backward meets a parameter last. */
static const int first_unit[N_PARAMS] = {0, 0, 1, 2, 2};

typedef struct row {
    const char *name;
    int n_ranks, victim, strategy, replicas, shard_size, reshard, offload;
} row;

#define PRIVATE .replicas = LS_REPLICAS_PRIVATE
#define FSDP .strategy = LS_STRATEGY_ZERO3, PRIVATE

static const row rows[] = {
    {"fsdp", 3, 1, FSDP},
    {"fsdp, reshard 2", 4, 2, FSDP, .reshard = 2},
    {"fsdp in groups of 2", 4, 3, FSDP, .shard_size = 2},
    {"fsdp, parameters offloaded", 2, 0, FSDP, .offload = LS_OFFLOAD_PARAMS},
    {"zero1 private", 3, 2, .strategy = LS_STRATEGY_ZERO1, PRIVATE},
    {"zero2", 3, 0, .strategy = LS_STRATEGY_ZERO2},
    {"zero2 in groups of 2", 4, 1, .strategy = LS_STRATEGY_ZERO2, .shard_size = 2},
};

typedef struct walk {
    toy *model;
    ls_ddp *ddp;
    int n_calls, dies_before; /* calls made; the rank dies before this one, -1: never */
} walk;

#define WALK(call)                                                                                 \
    do {                                                                                           \
        if (w->n_calls++ == w->dies_before) raise(SIGKILL);                                        \
        LSI_TRY(call);                                                                             \
    } while (0)

/* ---- a step, call by call ---- */

static ls_status forward(walk *w) {
    for (int u = 0; u < N_UNITS; u++) {
        WALK(ls_ddp_before_forward(w->ddp, u));
        WALK(ls_ddp_after_forward(w->ddp, u));
    }
    return LS_OK;
}

static ls_status backward(walk *w) {
    for (int u = N_UNITS - 1; u >= 0; u--) {
        WALK(ls_ddp_before_backward(w->ddp, u));
        for (int i = N_PARAMS - 1; i >= 0; i--) {
            if (first_unit[i] != u) continue;
            WALK(ls_ddp_grad_needed(w->ddp, i));
            toy_write_gradient(w->model, i, 0, 0, 0);
            WALK(ls_ddp_grad_ready(w->ddp, i));
        }
        WALK(ls_ddp_after_backward(w->ddp, u));
    }
    return LS_OK;
}

static ls_status walk_step(walk *w) {
    static const ls_adamw_opts adamw = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .grad_scale = 1};
    static _Thread_local float values[MOST_COUNT];
    double norm;
    WALK(ls_ddp_begin_step(w->ddp, 1, 0));
    WALK(ls_ddp_begin_backward(w->ddp));
    LSI_TRY(forward(w));
    LSI_TRY(backward(w));
    WALK(ls_ddp_end_backward(w->ddp));
    WALK(ls_ddp_finish_step(w->ddp));
    WALK(ls_ddp_grad_norm(w->ddp, &norm));
    WALK(ls_ddp_update(w->ddp, &adamw));
    LSI_TRY(forward(w));
    WALK(ls_ddp_check_weights(w->ddp));
    for (int i = 0; i < N_PARAMS; i++) WALK(ls_ddp_get_values(w->ddp, i, values));
    return LS_OK;
}

/* ---- the others ---- */

static ls_ddp_opts options_of(const row *r) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.strategy = r->strategy;
    opts.replicas = r->replicas;
    opts.shard_size = r->shard_size;
    opts.reshard_after_forward = r->reshard;
    opts.offload = r->offload;
    opts.offload_dir = r->offload ? "/tmp" : NULL;
    opts.bucket_cap_mb = opts.first_bucket_mb = 1024.0 / (1024 * 1024);
    opts.uses = r->replicas == LS_REPLICAS_PRIVATE ? uses : NULL;
    opts.n_uses = opts.uses ? COUNT_OF(uses) : 0;
    return opts;
}

typedef struct death {
    const row *row;
    const int64_t *counts;
    int call;     /* of the second step, before which the victim dies, … */
    int after_us; /* … or >= 0: microseconds since its first step began */
} death;

static void *die_later(void *context) {
    usleep((useconds_t)((const death *)context)->after_us);
    raise(SIGKILL);
    return NULL;
}

/* Another step has the same error. */
static ls_status stays_failed(toy *model, ls_ddp *ddp, ls_status status) {
    walk again = {model, ddp, 0, -1};
    ls_status found = walk_step(&again);
    RANK_CHECK(found == status, "then %s, and in another step %s", ls_status_name(status),
               ls_status_name(found));
    return LS_OK;
}

/* Steps until an error comes; after the victim's death one must. */
static ls_status take_steps(const death *d, toy *model, ls_ddp *ddp, bool is_victim) {
    pthread_t thread;
    ls_status status = LS_OK;
    bool dies_later = d->after_us >= 0;
    if (is_victim && dies_later && pthread_create(&thread, NULL, die_later, (void *)(uintptr_t)d))
        abort();
    for (int step = 0; status == LS_OK && (step < N_STEPS || dies_later); step++) {
        walk w = {model, ddp, 0, is_victim && step == 1 && !dies_later ? d->call : -1};
        status = walk_step(&w);
    }
    return status;
}

static ls_status survive(ls_group *group, void *context) {
    const death *d = context;
    bool is_victim = ls_group_rank(group) == d->row->victim;
    toy model;
    ls_ddp *ddp = NULL;
    ls_ddp_opts opts = options_of(d->row);
    ls_group_set_timeout(group, 20000);
    toy_init(&model, d->counts, N_PARAMS, 0);
    LSI_TRY(ls_ddp_create(group, model.params, N_PARAMS, &opts, &ddp));
    ls_status status = take_steps(d, &model, ddp, is_victim);
    if (is_victim && status == LS_OK) return LS_OK; /* the step has no such call */
    if (status != LS_OK) LSI_TRY(stays_failed(&model, ddp, status));
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return status;
}

/* Returns whether the victim died. */
static bool kill_in(const death *d) {
    const row *r = d->row;
    rank_result results[8];
    char culprit[32];
    snprintf(culprit, sizeof culprit, "rank %d (pid ", r->victim);
    run_rank_processes(r->n_ranks, survive, (void *)(uintptr_t)d, results);
    if (results[r->victim].status == LS_OK) return false;
    for (int i = 0; i < r->n_ranks; i++) {
        bool is_victim = i == r->victim;
        int expected = is_victim ? -SIGKILL : LS_ERR_PEER;
        if (results[i].status != expected || (!is_victim && !strstr(results[i].message, culprit)))
            fail_msg("%s, rank %d killed before call %d or after %d us: rank %d: expected status "
                     "%d with '%s', found %d with '%s'",
                     r->name, r->victim, d->call, d->after_us, i, expected, culprit,
                     results[i].status, results[i].message);
    }
    return true;
}

static void a_rank_killed_before_any_call_is_named_by_the_others(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        death d = {&rows[i], counts, 0, -1};
        while (kill_in(&d)) d.call += SANITIZED ? 5 : 1;
        assert_in_range(d.call, 30, 60);
    }
}

static void a_rank_killed_at_any_moment_is_named_by_the_others(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int k = 0; k < (SANITIZED ? 3 : 12); k++) {
            death d = {&rows[i], large_counts, -1, k * 1300};
            assert_true(kill_in(&d));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_before_any_call_is_named_by_the_others),
        cmocka_unit_test(a_rank_killed_at_any_moment_is_named_by_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
