/* Windows of micro-batches by number and by scope (no_sync): which backward pass exchanges, with
 * what result, and every way to get it wrong that users have found. */
#include "small.h"

#include "tree.h"

/* ---- T003: two ranks; gradients of rank 0: 1 3 1, of rank 1: 2 5 2 ----
 *
 * A letter is a call: ( and ) begin and end a scope, W is what a forward pass calls (the weight),
 * B a whole backward pass, F finishes the step, s begins it, b begins a backward pass only. */

static const double micro_grads[2][3] = {{1, 3, 1}, {2, 5, 2}};

typedef struct window {
    small model;
    ls_ddp *ddp;
    int rank, n_begun;
    int64_t n_micro;
} window;

static ls_status backward(window *w) {
    return small_backward(&w->model, w->ddp, &micro_grads[w->rank % 2][w->n_begun++ % 3]);
}

static ls_status make_call(window *w, char letter) {
    switch (letter) {
    case 's': w->n_begun = 0; return ls_ddp_begin_step(w->ddp, w->n_micro, 0);
    case '(': return ls_ddp_begin_no_sync(w->ddp);
    case ')': return ls_ddp_end_no_sync(w->ddp);
    case 'W': return ls_ddp_weigh(w->ddp, 1);
    case 'B': return backward(w);
    case 'b': return ls_ddp_begin_backward(w->ddp);
    default: return ls_ddp_finish_step(w->ddp);
    }
}

static ls_status make_calls(window *w, const char *letters) {
    for (const char *c = letters; *c; c++) LSI_TRY(lsi_context(make_call(w, *c), "call '%s'", c));
    return LS_OK;
}

static ls_status open_window(window *w, ls_group *group, int64_t n_micro, int reproducible,
                             int average) {
    static const spec scalar[] = {{"w", 1, 0, 0}};
    ls_ddp_opts opts = {
        .struct_size = sizeof opts, .reproducible = reproducible, .average = average};
    *w = (window){.rank = ls_group_rank(group), .n_micro = n_micro};
    small_init(&w->model, scalar, 1);
    return ls_ddp_create(group, w->model.params, 1, &opts, &w->ddp);
}

enum { SCOPE = LS_MICRO_BATCHES_BY_SCOPE };

static const struct value_row {
    int64_t n_micro;
    const char *calls;
    double expected; /* the window's sum, by ranks */
} value_rows[] = {
    {2, "sBBF", 5.5},
    {2, "s(B)BF", 5.5},
    {SCOPE, "s(B)BF", 5.5},
    {SCOPE, "sW(B)WBF", 5.5},
    {SCOPE, "s(WB)WBF", 5.5},
    {SCOPE, "s()(B)()BF", 5.5},
    {SCOPE, "s(WB)W()BF", 5.5},
    {3, "sBBBF", 7},
    {3, "s(BB)BF", 7},
    {SCOPE, "s(BB)BF", 7},
    {SCOPE, "s(B)(B)BF", 7},
    {1, "sBF", 1.5},
    {1, "s()BF", 1.5},
    {SCOPE, "sBF", 1.5},
    {2, "sBBFs(B)BF", 5.5},
    {2, "s(B)BFsBBF", 5.5},
    {SCOPE, "s(B)BFs(BB)BF", 7},
    {SCOPE, "s(BB)BFs(B)BF", 5.5},
};

static ls_status windows_give(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(value_rows); i++)
        for (int reproducible = 0; reproducible < 2; reproducible++) {
            window w;
            LSI_TRY(open_window(&w, group, value_rows[i].n_micro, reproducible, LS_AVERAGE_RANKS));
            LSI_TRY(make_calls(&w, value_rows[i].calls));
            RANK_CHECK(grad_at(&w.model, 0, 0) == value_rows[i].expected,
                       "%s: rank %d found %g, expected %g", value_rows[i].calls, w.rank,
                       grad_at(&w.model, 0, 0), value_rows[i].expected);
            ls_ddp_destroy(w.ddp);
        }
    return LS_OK;
}

static void the_last_backward_pass_exchanges_the_window(void **state) {
    (void)state;
    run_in_both(2, windows_give, NULL);
}

/* ---- refused: the step goes on as if the call had not been ---- */

static const struct refused_row {
    int64_t n_micro;
    const char *before;
    char call;
    ls_status status;
    const char *text, *after;
    double expected;
} refused_rows[] = {
    /* The flag inverted. */
    {SCOPE, "sB(", 'b', LS_ERR_STATE,
     "the backward pass before exchanged the gradients of the step; put all but the last one into "
     "no_sync",
     ")F", 1.5},
    {SCOPE, "sB", 'b', LS_ERR_STATE, "put all but the last one into no_sync", "F", 1.5},
    {2, "sB(", 'b', LS_ERR_STATE,
     "micro-batch 2 of 2 is in no_sync; all but the last one must be in it", ")BF", 5.5},
    /* Never exchanged. */
    {SCOPE, "s(BB", 'F', LS_ERR_STATE,
     "2 micro-batches are done, the last one in no_sync, so nothing was exchanged; end the scope "
     "before the last backward pass",
     ")BF", 7},
    {SCOPE, "s(BB)", 'F', LS_ERR_STATE, "so nothing was exchanged", "BF", 7},
    {SCOPE, "s", 'F', LS_ERR_STATE, "0 micro-batches are done", "(B)BF", 5.5},
    {2, "s(B", 'b', LS_ERR_STATE, "micro-batch 2 of 2 is in no_sync", ")BF", 5.5},
    {2, "s(B)", 'F', LS_ERR_STATE, "1 of 2 micro-batches are done", "BF", 5.5},
    /* A scope that does not agree with the number. */
    {3, "s(B)", 'b', LS_ERR_STATE, "micro-batch 2 of 3 is outside no_sync", "(B)BF", 7},
    {1, "s(", 'b', LS_ERR_STATE, "micro-batch 1 of 1 is in no_sync", ")BF", 1.5},
    {2, "s()", 'b', LS_ERR_STATE, "micro-batch 1 of 2 is outside no_sync", "(B)BF", 5.5},
    {2, "s(B)B", 'b', LS_ERR_STATE, "begun with 2 micro-batches and has had them all", "F", 5.5},
    /* Scopes do not nest, and are about whole backward passes. */
    {SCOPE, "s(", '(', LS_ERR_STATE, "ls_ddp_begin_no_sync: a no_sync scope is open already",
     "B)BF", 5.5},
    {SCOPE, "s", ')', LS_ERR_STATE, "ls_ddp_end_no_sync: a no_sync scope is not open", "(B)BF",
     5.5},
    {SCOPE, "", '(', LS_ERR_STATE, "ls_ddp_begin_no_sync: no step is open", "s(B)BF", 5.5},
    {SCOPE, "", ')', LS_ERR_STATE, "ls_ddp_end_no_sync: no step is open", "s(B)BF", 5.5},
    {SCOPE, "sW", 'W', LS_ERR_STATE, "micro-batch 1 has a weight already", "(B)BF", 5.5},
};

static ls_status refused_windows_go_on(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(refused_rows); i++) {
        const struct refused_row *row = &refused_rows[i];
        window w;
        LSI_TRY(open_window(&w, group, row->n_micro, i % 2, LS_AVERAGE_RANKS));
        LSI_TRY(make_calls(&w, row->before));
        RANK_FAILS(make_call(&w, row->call), row->status, row->text);
        LSI_TRY(make_calls(&w, row->after));
        RANK_CHECK(grad_at(&w.model, 0, 0) == row->expected, "row %zu: %g, expected %g", i,
                   grad_at(&w.model, 0, 0), row->expected);
        ls_ddp_destroy(w.ddp);
    }
    return LS_OK;
}

static void wrong_scopes_are_refused_and_change_nothing(void **state) {
    (void)state;
    run_in_both(2, refused_windows_go_on, NULL);
}

static ls_status scopes_within_a_pass(ls_group *group, void *context) {
    (void)context;
    window w;
    LSI_TRY(open_window(&w, group, SCOPE, 0, LS_AVERAGE_RANKS));
    LSI_TRY(make_calls(&w, "s(b"));
    RANK_FAILS(make_call(&w, ')'), LS_ERR_STATE, "a backward pass is open");
    LSI_TRY(ready_with(&w.model, w.ddp, 0, 1));
    LSI_TRY(ls_ddp_end_backward(w.ddp));
    LSI_TRY(make_calls(&w, ")b"));
    RANK_FAILS(make_call(&w, '('), LS_ERR_STATE, "a backward pass is open");
    LSI_TRY(ready_with(&w.model, w.ddp, 0, 1));
    LSI_TRY(ls_ddp_end_backward(w.ddp));
    LSI_TRY(make_calls(&w, "F"));
    RANK_CHECK(grad_at(&w.model, 0, 0) == 2, "found %g", grad_at(&w.model, 0, 0));
    ls_ddp_destroy(w.ddp);
    return LS_OK;
}

static void scopes_cannot_change_within_a_backward_pass(void **state) {
    (void)state;
    run_in_both(2, scopes_within_a_pass, NULL);
}

static ls_status scopes_with_join(ls_group *group, void *context) {
    static const spec scalar[] = {{"w", 1, 0, 0}};
    ls_ddp_opts opts = {.struct_size = sizeof opts, .join = LS_JOIN_WORLD};
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    small_init(&s, scalar, 1);
    LSI_TRY(ls_ddp_create(group, s.params, 1, &opts, &ddp));
    RANK_FAILS(ls_ddp_begin_step(ddp, SCOPE, 0), LS_ERR_ARGUMENT,
               "with join the mean over micro-batches needs their number");
    RANK_FAILS(ls_ddp_begin_step(ddp, -2, 0), LS_ERR_ARGUMENT, "-2 micro-batches");
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void means_with_join_need_the_number(void **state) {
    (void)state;
    run_in_both(2, scopes_with_join, NULL);
}

/* ---- number and scopes: the same bits, and calls of the group in the last pass only ---- */

enum { N_PARAMS = 3, N_ELEMS = 40, MAX_MICRO = 5 };
static const spec params[N_PARAMS] = {{"a", 17, 0, 0}, {"b", N_ELEMS, 0, 0}, {"c", 1, 0, 0}};

static ls_status rough_backward(const small *s, ls_ddp *ddp, int64_t micro) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (int i = N_PARAMS - 1; i >= 0; i--) {
        for (int64_t e = 0; e < params[i].count; e++)
            put_grad(s, ddp, i, e, (double)rough_value(micro, i, e));
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

static ls_status quiet_micro_batches(ls_group *group, const small *s, ls_ddp *ddp, int n) {
    int64_t before = n_calls(group);
    for (int m = 0; m < n; m++)
        LSI_TRY(rough_backward(s, ddp, m * ls_group_world_size(group) + ls_group_rank(group)));
    RANK_CHECK(n_calls(group) == before, "%d calls of the group in no_sync",
               (int)(n_calls(group) - before));
    return LS_OK;
}

static ls_status rough_step(ls_group *group, const small *s, ls_ddp *ddp, int n, bool by_scope) {
    LSI_TRY(ls_ddp_begin_step(ddp, by_scope ? SCOPE : n, 0));
    if (by_scope) LSI_TRY(ls_ddp_begin_no_sync(ddp));
    LSI_TRY(quiet_micro_batches(group, s, ddp, n - 1));
    if (by_scope) LSI_TRY(ls_ddp_end_no_sync(ddp));
    LSI_TRY(rough_backward(s, ddp, (n - 1) * ls_group_world_size(group) + ls_group_rank(group)));
    return ls_ddp_finish_step(ddp);
}

static ls_status both_forms(ls_group *group, void *context) {
    (void)context;
    for (int n = 1; n <= MAX_MICRO; n++)
        for (int reproducible = 0; reproducible < 2; reproducible++) {
            ls_ddp_opts opts = {.struct_size = sizeof opts, .reproducible = reproducible};
            float kept[N_PARAMS][N_ELEMS];
            small s;
            ls_ddp *ddp = NULL;
            small_init(&s, params, N_PARAMS);
            LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
            LSI_TRY(rough_step(group, &s, ddp, n, false));
            for (int i = 0; i < N_PARAMS; i++)
                memcpy(kept[i], s.params[i].grad, (size_t)params[i].count * sizeof kept[i][0]);
            LSI_TRY(rough_step(group, &s, ddp, n, true));
            for (int i = 0; i < N_PARAMS; i++)
                RANK_CHECK(memcmp(kept[i], s.params[i].grad,
                                  (size_t)params[i].count * sizeof kept[i][0]) == 0,
                           "%d micro-batches: other bits in %s", n, params[i].name);
            ls_ddp_destroy(ddp);
        }
    return LS_OK;
}

static void scopes_give_the_bits_of_the_number(void **state) {
    (void)state;
    run_on_all(both_forms, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_backward_pass_exchanges_the_window),
        cmocka_unit_test(wrong_scopes_are_refused_and_change_nothing),
        cmocka_unit_test(scopes_cannot_change_within_a_backward_pass),
        cmocka_unit_test(means_with_join_need_the_number),
        cmocka_unit_test(scopes_give_the_bits_of_the_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
