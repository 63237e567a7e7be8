/* Parameters that take no part in a micro-batch's loss: values where some ranks or micro-batches
 * used them and none where nobody did, buckets that go early, graphs that are learned, and errors
 * on all ranks, with names and ranks, where none may be missing. */
#include "small.h"

enum { N_PARAMS = 5, N_LETTERS = 4, MAX_RANKS = 4, MAX_STEPS = 4 };

static const spec model[N_PARAMS] = {
    {"w1", 1, 0, 0},   {"w2", 3, 0, 0},  {"fixed", 2, 0, LS_PARAM_FROZEN},
    {"none", 0, 0, 0}, {"w4", 17, 0, 0},
};
static const int param_of_letter[N_LETTERS] = {0, 1, 3, 4};

/* A micro-batch is four letters, for w1, w2, none (no elements) and w4: a digit is the gradient,
 * - says that there is none. Micro-batches of a step are apart by a blank. */
typedef struct step_row {
    const char *ranks[MAX_RANKS];
    double expected[N_LETTERS]; /* the mean; NAN: no gradient */
} step_row;

typedef enum mode { STRICT, FIND, STATIC } mode;

typedef struct script_row {
    const char *name;
    int n_ranks, n_micro, n_steps;
    mode mode;
    const char *error; /* of the last step, on all ranks; NULL: none */
    step_row steps[MAX_STEPS];
} script_row;

typedef struct setting_row {
    int reproducible, says_early, keep_buckets, no_overlap;
    double bucket_mb;
} setting_row;

typedef struct run {
    const script_row *script;
    const setting_row *setting;
    small model;
    ls_ddp *ddp;
    int rank;
} run;

static ls_status open_run(run *r, ls_group *group) {
    ls_ddp_opts opts = {.struct_size = sizeof opts,
                        .bucket_cap_mb = r->setting->bucket_mb,
                        .first_bucket_mb = r->setting->bucket_mb,
                        .reproducible = r->setting->reproducible,
                        .keep_buckets = r->setting->keep_buckets,
                        .no_overlap = r->setting->no_overlap,
                        .find_unused_parameters = r->script->mode == FIND,
                        .static_graph = r->script->mode == STATIC};
    r->rank = ls_group_rank(group);
    small_init(&r->model, model, N_PARAMS);
    return ls_ddp_create(group, r->model.params, N_PARAMS, &opts, &r->ddp);
}

static ls_status letter(run *r, int param, char c) {
    if (c != '-') return ready_with(&r->model, r->ddp, param, c - '0');
    return r->setting->says_early ? ls_ddp_grad_unused(r->ddp, param) : LS_OK;
}

static ls_status micro_batch(run *r, const char *letters) {
    LSI_TRY(ls_ddp_begin_backward(r->ddp));
    for (int k = N_LETTERS - 1; k >= 0; k--) LSI_TRY(letter(r, param_of_letter[k], letters[k]));
    return ls_ddp_end_backward(r->ddp);
}

static ls_status step(run *r, const step_row *row) {
    LSI_TRY(ls_ddp_begin_step(r->ddp, r->script->n_micro, 0));
    for (int m = 0; m < r->script->n_micro; m++)
        LSI_TRY(micro_batch(r, row->ranks[r->rank] + m * (N_LETTERS + 1)));
    return ls_ddp_finish_step(r->ddp);
}

static ls_status check_gradients(const run *r, const step_row *row, int number) {
    RANK_CHECK(!r->model.params[2].grad, "the frozen parameter has a gradient");
    for (int k = 0; k < N_LETTERS; k++) {
        const ls_param *param = &r->model.params[param_of_letter[k]];
        RANK_CHECK(isnan(row->expected[k]) == (param->grad == NULL),
                   "%s: rank %d, step %d: %s has %s gradient", r->script->name, r->rank, number,
                   param->name, param->grad ? "a" : "no");
        for (int64_t e = 0; e < (param->grad ? param->count : 0); e++)
            RANK_CHECK(grad_at(&r->model, param_of_letter[k], e) == row->expected[k],
                       "%s: rank %d, step %d: %s is %g, expected %g", r->script->name, r->rank,
                       number, param->name, grad_at(&r->model, param_of_letter[k], e),
                       row->expected[k]);
    }
    return LS_OK;
}

static ls_status play(ls_group *group, const script_row *script, const setting_row *setting) {
    run r = {.script = script, .setting = setting};
    LSI_TRY(open_run(&r, group));
    for (int s = 0; s < script->n_steps; s++) {
        if (script->error && s == script->n_steps - 1) {
            RANK_FAILS(step(&r, &script->steps[s]), LS_ERR_STATE, script->error);
            RANK_FAILS(ls_ddp_begin_step(r.ddp, 1, 0), LS_ERR_STATE, "an earlier call failed");
            continue;
        }
        LSI_TRY(lsi_context(step(&r, &script->steps[s]), "%s", script->name));
        LSI_TRY(check_gradients(&r, &script->steps[s], s));
    }
    LSI_TRY(ls_barrier(group, NULL));
    ls_ddp_destroy(r.ddp);
    return LS_OK;
}

static const setting_row settings[] = {
    {0, 0, 0, 0, 0},    {1, 0, 0, 0, 0},    {0, 1, 0, 0, 1e-9}, {1, 1, 0, 0, 1e-9},
    {0, 0, 1, 0, 1e-9}, {1, 1, 1, 1, 1e-4}, {0, 0, 0, 1, 1e-9},
};

static ls_status play_in_all_settings(ls_group *group, void *context) {
    const script_row *script = context;
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        if (script->mode != STRICT || !settings[i].says_early)
            LSI_TRY(play(group, script, &settings[i]));
    return LS_OK;
}

/* ---- find_unused_parameters ---- */

static const script_row find_scripts[] = {
    {"T001: w2 on rank 1 only",
     2,
     1,
     2,
     FIND,
     NULL,
     {{{"2-55", "4455"}, {3, 2, 5, 5}}, {{"2-55", "4455"}, {3, 2, 5, 5}}}},
    {"in one micro-batch of several",
     2,
     2,
     2,
     FIND,
     NULL,
     {{{"2-11 -411", "4--- ----"}, {1.5, 1, 0.5, 0.5}},
      {{"---- 8888", "---- ----"}, {2, 2, 2, 2}}}},
    {"by nobody, then again",
     2,
     1,
     4,
     FIND,
     NULL,
     {{{"1111", "3333"}, {2, 2, 2, 2}},
      {{"1--1", "3--3"}, {2, NAN, NAN, 2}},
      {{"5555", "7777"}, {6, 6, 6, 6}},
      {{"-5--", "-7--"}, {NAN, 6, NAN, NAN}}}},
    {"by nobody in the first step",
     3,
     1,
     2,
     FIND,
     NULL,
     {{{"-333", "-333", "-333"}, {NAN, 3, 3, 3}}, {{"3---", "333-", "3-3-"}, {3, 1, 2, NAN}}}},
    {"nothing at all",
     2,
     2,
     3,
     FIND,
     NULL,
     {{{"---- ----", "---- ----"}, {NAN, NAN, NAN, NAN}},
      {{"4444 4444", "4444 4444"}, {4, 4, 4, 4}},
      {{"---- ----", "---- ----"}, {NAN, NAN, NAN, NAN}}}},
    {"what an older step left does not count",
     2,
     2,
     3,
     FIND,
     NULL,
     {{{"9999 9999", "9999 9999"}, {9, 9, 9, 9}},
      {{"---- 4444", "4444 ----"}, {2, 2, 2, 2}},
      {{"-4-4 4-4-", "---- ----"}, {1, 1, 1, 1}}}},
    {"alone",
     1,
     3,
     2,
     FIND,
     NULL,
     {{{"3-3- 3--- 3---"}, {3, NAN, 1, NAN}}, {{"---3 --3- -3--"}, {NAN, 1, 1, 1}}}},
};

static void gradients_are_means_with_zeros_from_ranks_without(void **state) {
    (void)state;
    RUN_ROWS(find_scripts, n_ranks, play_in_all_settings);
}

/* Rank r uses parameter i in step s where (r + i + s) % 3 is 0, with the gradient r + 1. */
static bool uses(int rank, int param, int step) {
    return (rank + param + step) % 3 == 0;
}

static ls_status pattern_step(ls_group *group, small *s, ls_ddp *ddp, int step) {
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = N_PARAMS - 1; i >= 0; i--)
        if (!small_is_frozen(s, i) && uses(rank, i, step)) LSI_TRY(ready_with(s, ddp, i, rank + 1));
    LSI_TRY(ls_ddp_end_backward(ddp));
    LSI_TRY(ls_ddp_finish_step(ddp));
    for (int i = 0; i < N_PARAMS; i++) {
        double sum = 0;
        for (int r = 0; r < n_ranks; r++) sum += uses(r, i, step) ? r + 1 : 0;
        bool is_there = sum > 0 && !small_is_frozen(s, i);
        RANK_CHECK(is_there == (s->params[i].grad != NULL), "step %d, %s", step, model[i].name);
        for (int64_t e = 0; e < (is_there ? model[i].count : 0); e++)
            RANK_CHECK(grad_at(s, i, e) == sum, "step %d, %s: %g, expected %g", step, model[i].name,
                       grad_at(s, i, e), sum);
    }
    return LS_OK;
}

static ls_status pattern(ls_group *group, void *context) {
    (void)context;
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        ls_ddp_opts opts = {.struct_size = sizeof opts,
                            .bucket_cap_mb = 1e-9,
                            .first_bucket_mb = 1e-9,
                            .reproducible = reproducible,
                            .average = LS_AVERAGE_SUM,
                            .find_unused_parameters = 1};
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        for (int step = 0; step < 4; step++) LSI_TRY(pattern_step(group, &s, ddp, step));
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void every_number_of_ranks_sums_those_that_used_it(void **state) {
    (void)state;
    run_on_all(pattern, NULL);
}

/* ---- errors on all ranks ---- */

static const script_row strict_scripts[] = {
    {"T001: w2 on rank 1 only",
     2,
     1,
     1,
     STRICT,
     "step 1: 1 parameters got no gradient: w2 (rank 0); use them in the loss, mark them "
     "LS_PARAM_FROZEN, or set find_unused_parameters",
     {{{"2-55", "4455"}, {0}}}},
    {"on two of four",
     4,
     1,
     2,
     STRICT,
     "step 2: 1 parameters got no gradient: w4 (ranks 1, 3);",
     {{{"1111", "1111", "1111", "1111"}, {1, 1, 1, 1}}, {{"1111", "111-", "1111", "111-"}, {0}}}},
    {"nobody",
     3,
     1,
     1,
     STRICT,
     "got no gradient: w1 (all ranks);",
     {{{"-111", "-111", "-111"}, {0}}}},
    {"different ones",
     3,
     1,
     1,
     STRICT,
     "3 parameters got no gradient: w1 (rank 2), w2 (rank 0), none (ranks 0, 2);",
     {{{"1--1", "1111", "-1-1"}, {0}}}},
    {"in the first micro-batch",
     2,
     2,
     1,
     STRICT,
     "got no gradient: w2 (rank 1);",
     {{{"1111 1111", "1-11 1111"}, {0}}}},
    {"in the last micro-batch",
     2,
     2,
     1,
     STRICT,
     "got no gradient: w2 (rank 1);",
     {{{"1111 1111", "1111 1-11"}, {0}}}},
};

static void missing_gradients_are_named_on_all_ranks(void **state) {
    (void)state;
    RUN_ROWS(strict_scripts, n_ranks, play_in_all_settings);
}

static const script_row static_scripts[] = {
    {"the same in every step",
     2,
     1,
     4,
     STATIC,
     NULL,
     {{{"1-3-", "3---"}, {2, NAN, 1.5, NAN}},
      {{"3-1-", "5---"}, {4, NAN, 0.5, NAN}},
      {{"1-1-", "1---"}, {1, NAN, 0.5, NAN}},
      {{"1-3-", "3---"}, {2, NAN, 1.5, NAN}}}},
    {"now in the other micro-batch",
     2,
     2,
     2,
     STATIC,
     NULL,
     {{{"1-1- -4--", "1--- ----"}, {0.5, 1, 0.25, NAN}},
      {{"-4-- 1-1-", "---- 1---"}, {0.5, 1, 0.25, NAN}}}},
    {"one is used after all",
     3,
     1,
     3,
     STATIC,
     "step 3: static_graph is set, but 1 parameters are used in another way than in the first "
     "step: w2 (rank 1);",
     {{{"1-11", "1-11", "1111"}, {1, 1 / 3.0F, 1, 1}},
      {{"1-11", "1-11", "1111"}, {1, 1 / 3.0F, 1, 1}},
      {{"1-11", "1111", "1111"}, {0}}}},
    {"one is missing now",
     2,
     1,
     2,
     STATIC,
     "step: w4 (rank 0); use find_unused_parameters",
     {{{"1-11", "1111"}, {1, 0.5, 1, 1}}, {{"1-1-", "1111"}, {0}}}},
    {"both, on all ranks",
     2,
     1,
     2,
     STATIC,
     "step: w1 (all ranks), w2 (rank 0);",
     {{{"1-11", "1111"}, {1, 0.5, 1, 1}}, {{"-111", "-111"}, {0}}}},
};

static void static_graphs_are_learned_and_changes_named(void **state) {
    (void)state;
    RUN_ROWS(static_scripts, n_ranks, play_in_all_settings);
}

/* ---- buckets go early ---- */

typedef struct early_row {
    mode mode;
    int says_early;
    const char *letters; /* of every step */
    int n_steps;
    int n_posted[N_LETTERS]; /* buckets in the last step, after each letter from the last one on */
} early_row;

static const early_row early_rows[] = {
    {FIND, 0, "1111", 1, {1, 2, 3, 4}},   {FIND, 0, "11-1", 1, {1, 1, 1, 1}},
    {FIND, 1, "11-1", 1, {1, 2, 3, 4}},   {FIND, 1, "-1--", 1, {1, 2, 3, 4}},
    {FIND, 0, "11-1", 2, {1, 1, 1, 1}},   {STATIC, 0, "11-1", 1, {1, 1, 1, 1}},
    {STATIC, 1, "11-1", 1, {1, 2, 3, 4}}, {STATIC, 0, "11-1", 2, {2, 2, 3, 4}},
    {STATIC, 0, "1--1", 2, {3, 3, 3, 4}}, {STATIC, 0, "-1--", 3, {0, 0, 4, 4}},
    {STATIC, 1, "-1--", 3, {0, 0, 4, 4}},
};

static ls_status early_step(ls_group *group, run *r, const early_row *row, bool is_last) {
    LSI_TRY(ls_ddp_begin_step(r->ddp, 1, 0));
    int64_t before = n_calls(group);
    LSI_TRY(ls_ddp_begin_backward(r->ddp));
    for (int k = 0; k < N_LETTERS; k++) {
        int at = N_LETTERS - 1 - k;
        LSI_TRY(letter(r, param_of_letter[at], row->letters[at]));
        RANK_CHECK(!is_last || n_calls(group) - before == row->n_posted[k],
                   "'%s', mode %d, early %d: %d buckets after %d letters, expected %d",
                   row->letters, row->mode, row->says_early, (int)(n_calls(group) - before), k + 1,
                   row->n_posted[k]);
    }
    LSI_TRY(ls_ddp_end_backward(r->ddp));
    /* … the rest of them, and the verdict. */
    RANK_CHECK(n_calls(group) - before == N_LETTERS + 1, "%d calls in all",
               (int)(n_calls(group) - before));
    return ls_ddp_finish_step(r->ddp);
}

/* Buckets stay as they are and hold one parameter each. */
static ls_status buckets_go_early(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(early_rows); i++) {
        const early_row *row = &early_rows[i];
        const script_row script = {.mode = row->mode};
        const setting_row setting = {
            .says_early = row->says_early, .keep_buckets = 1, .bucket_mb = 1e-9};
        run r = {.script = &script, .setting = &setting};
        LSI_TRY(open_run(&r, group));
        for (int s = 0; s < row->n_steps; s++)
            LSI_TRY(early_step(group, &r, row, s == row->n_steps - 1));
        ls_ddp_destroy(r.ddp);
    }
    return LS_OK;
}

static void buckets_wait_only_for_what_is_not_known(void **state) {
    (void)state;
    run_on_all(buckets_go_early, NULL);
}

/* ---- calls of grad_unused that are refused ---- */

static ls_status refuse(ls_group *group, void *context) {
    const script_row strict = {.mode = STRICT}, find = {.mode = FIND};
    const setting_row plain = {0};
    (void)context;
    run r = {.script = &strict, .setting = &plain};
    LSI_TRY(open_run(&r, group));
    LSI_TRY(ls_ddp_begin_step(r.ddp, 1, 0));
    RANK_FAILS(ls_ddp_grad_unused(r.ddp, 0), LS_ERR_STATE, "expected: a backward pass is open");
    LSI_TRY(ls_ddp_begin_backward(r.ddp));
    RANK_FAILS(ls_ddp_grad_unused(r.ddp, 0), LS_ERR_STATE,
               "parameter w1; set find_unused_parameters or static_graph to allow it");
    LSI_TRY(ls_barrier(group, NULL));
    ls_ddp_destroy(r.ddp);
    r = (run){.script = &find, .setting = &plain};
    LSI_TRY(open_run(&r, group));
    LSI_TRY(ls_ddp_begin_step(r.ddp, 1, 0));
    LSI_TRY(ls_ddp_begin_backward(r.ddp));
    RANK_FAILS(ls_ddp_grad_unused(r.ddp, 2), LS_ERR_STATE, "parameter fixed is frozen");
    RANK_FAILS(ls_ddp_grad_unused(r.ddp, N_PARAMS), LS_ERR_ARGUMENT, "expected 0 to 4");
    LSI_TRY(ls_ddp_grad_unused(r.ddp, 0));
    RANK_FAILS(ls_ddp_grad_ready(r.ddp, 0), LS_ERR_STATE, "w1 was ready already");
    LSI_TRY(ls_ddp_end_backward(r.ddp));
    LSI_TRY(ls_ddp_finish_step(r.ddp));
    ls_ddp_destroy(r.ddp);
    return LS_OK;
}

static void unused_ones_are_refused_where_none_may_be(void **state) {
    (void)state;
    run_in_both(2, refuse, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_means_with_zeros_from_ranks_without),
        cmocka_unit_test(every_number_of_ranks_sums_those_that_used_it),
        cmocka_unit_test(missing_gradients_are_named_on_all_ranks),
        cmocka_unit_test(static_graphs_are_learned_and_changes_named),
        cmocka_unit_test(buckets_wait_only_for_what_is_not_known),
        cmocka_unit_test(unused_ones_are_refused_where_none_may_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
