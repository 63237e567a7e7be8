/* Ranks that built different models: every rank gets the same message, which names the rank, both
 * forms of the first parameter that differs and how many each rank has; the group stays usable. */
#include "harness/harness.h"

#include <string.h>

#include "harness/ranks.h"
#include "parallel/agree.h"
#include "toy.h"

typedef enum change { NOTHING, EXTRA, FEWER, NONE_AT_ALL, SIZE, NAME, FROZEN, NO_DECAY } change;

typedef struct agree_row {
    const char *name;
    int n_ranks, culprit;
    change change;
    const char *text[3];
} agree_row;

static const agree_row rows[] = {
    {"one layer more",
     3,
     2,
     EXTRA,
     {"'extra' (3 elements, F32) on rank 2", "missing on rank 0", "4 4 5"}},
    {"one layer less",
     3,
     2,
     FEWER,
     {"'p3' (7 elements, F32) on rank 0", "missing on rank 2", "4 4 3"}},
    {"no layer",
     2,
     1,
     NONE_AT_ALL,
     {"'p0' (5 elements, F32) on rank 0", "missing on rank 1", "4 0"}},
    {"rank 0 has more",
     3,
     0,
     EXTRA,
     {"'extra' (3 elements, F32) on rank 0", "missing on rank 1", "5 4 4"}},
    {"another size",
     3,
     2,
     SIZE,
     {"'p1' (16 elements, F32) on rank 0", "'p1' (17 elements, F32) on rank 2", "parameter 1"}},
    {"another name",
     4,
     3,
     NAME,
     {"'p2' (0 elements, F32) on rank 0", "'other' (0 elements, F32) on rank 3", "parameter 2"}},
    {"frozen on one",
     2,
     1,
     FROZEN,
     {"'p3' (7 elements, F32) on rank 0", "'p3' (7 elements, F32, frozen) on rank 1",
      "parameter 3"}},
    {"no decay on one",
     8,
     5,
     NO_DECAY,
     {"'p0' (5 elements, F32) on rank 0", "'p0' (5 elements, F32, no decay) on rank 5",
      "4 4 4 4 4 4 4 4"}},
};

static void apply(change which, ls_param *params, int *n_params) {
    switch (which) {
    case NOTHING: return;
    case EXTRA: *n_params = 5; return;
    case FEWER: *n_params = 3; return;
    case NONE_AT_ALL: *n_params = 0; return;
    case SIZE: params[1].count = 17; return;
    case NAME: params[2].name = "other"; return;
    case FROZEN: params[3].flags = LS_PARAM_FROZEN; return;
    case NO_DECAY: params[0].flags = LS_PARAM_NO_DECAY; return;
    }
}

static ls_status models_differ(ls_group *group, void *context) {
    const agree_row *row = context;
    static const int64_t counts[] = {5, 16, 0, 7, 3};
    int rank = ls_group_rank(group), n_params = 4;
    toy model;
    float longer[17] = {0}; /* SIZE: the model has no room for it */
    toy_init(&model, counts, 5, rank);
    model.params[4].name = "extra";
    if (rank == row->culprit) apply(row->change, model.params, &n_params);
    if (model.params[1].count == 17) model.params[1].data = longer;
    ls_ddp *ddp = NULL;
    ls_status status = ls_ddp_create(group, model.params, n_params, NULL, &ddp);
    RANK_CHECK(status == LS_ERR_MISMATCH && !ddp, "%s: status %d", row->name, (int)status);
    for (int t = 0; t < 3; t++)
        RANK_CHECK(strstr(ls_last_message(), row->text[t]), "%s: '%s' is not in '%s'", row->name,
                   row->text[t], ls_last_message());
    toy_fini(&model);
    toy_init(&model, counts, 4, rank);
    LSI_TRY(lsi_context(lsi_agree_params(group, model.params, 4), "%s: afterwards", row->name));
    LSI_TRY(ls_ddp_create(group, model.params, 4, NULL, &ddp));
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return LS_OK;
}

static void different_models_are_named_on_all_ranks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            assert_ok(run_ranks((rank_mode)mode, rows[i].n_ranks, models_differ, (void *)&rows[i]));
}

/* Names longer than a message leave room for what the message is about. */
static ls_status long_names_differ(ls_group *group, void *context) {
    char name[5000];
    (void)context;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    if (ls_group_rank(group) == 1) name[sizeof name - 2] = 'm';
    ls_param param = {.name = name, .dtype = LS_DTYPE_F32};
    ls_status status = lsi_agree_params(group, &param, 1);
    RANK_CHECK(status == LS_ERR_MISMATCH, "status %d", (int)status);
    RANK_CHECK(strstr(ls_last_message(), "on rank 1; number of parameters by rank: 1 1"),
               "message '%s'", ls_last_message());
    return LS_OK;
}

static void long_names_are_cut_in_messages(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, long_names_differ, NULL));
}

static ls_status models_are_alike(ls_group *group, void *context) {
    static int64_t counts[300];
    toy model;
    (void)context;
    for (int n = 0; n <= 300; n += 60) {
        toy_init(&model, counts, n, 0);
        LSI_TRY(lsi_agree_params(group, model.params, n));
        toy_fini(&model);
    }
    return LS_OK;
}

static void equal_models_pass(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, models_are_alike, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_models_are_named_on_all_ranks),
        cmocka_unit_test(long_names_are_cut_in_messages),
        cmocka_unit_test(equal_models_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
