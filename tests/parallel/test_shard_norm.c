/* The norm of sharded gradients has the bits of the norm of the whole, wherever shards are cut. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/optim.h>

#include "base/mem.h"
#include "harness/ranks.h"
#include "parallel/shard_norm.h"
#include "tree.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { MAX_PARAMS = 8 };

typedef struct model_row {
    const char *name;
    int n_params;
    int64_t count[MAX_PARAMS]; /* below 0: frozen */
    int64_t cap_bytes;
    int without; /* a parameter that no rank has a gradient of; -1: none */
} model_row;

static const model_row rows[] = {
    {"one element", 1, {1}, 1 << 20, -1},
    {"fewer elements than ranks", 3, {1, 1, 1}, 1 << 20, -1},
    {"nothing", 2, {0, -8}, 1 << 20, -1},
    {"blocks over many cuts", 2, {5000, 4096}, 1 << 20, -1},
    {"one large", 1, {100001}, 1 << 20, -1},
    {"several in a bucket", 6, {4096, 17, 70001, -5, 0, 8193}, 1 << 20, -1},
    {"a bucket each", 5, {4095, 1, 12289, 3, 30000}, 1, -1},
    {"one without gradient", 4, {4100, 9000, 77, 20000}, 1 << 20, 1},
};

typedef struct holder {
    const float *grad[MAX_PARAMS];
} holder;

static const float *grad_of(const void *context, const lsi_piece *piece) {
    const float *grad = ((const holder *)context)->grad[piece->param];
    return grad ? grad + piece->begin : NULL;
}

static double whole_norm(const model_row *row, float *const grads[]) {
    double total = 0;
    for (int i = 0; i < row->n_params; i++)
        if (row->count[i] >= 0 && i != row->without)
            total += ls_sum_squares(grads[i], row->count[i]);
    return sqrt(total);
}

/* What this rank does not own is NaN: whoever reads it is found out. */
static void hide_others(const lsi_shard_plan *plan, int n_params, const ls_param *params,
                        float *const whole[], float *mine[]) {
    for (int i = 0; i < n_params; i++)
        for (int64_t e = 0; e < params[i].count; e++) mine[i][e] = NAN;
    for (int k = 0; k < plan->n_pieces; k++) {
        const lsi_piece *p = &plan->pieces[k];
        memcpy(mine[p->param] + p->begin, whole[p->param] + p->begin,
               (size_t)p->count * sizeof(float));
    }
}

static ls_status norm_equals_the_whole(ls_group *group, void *context) {
    const model_row *row = context;
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    ls_param params[MAX_PARAMS];
    float *whole[MAX_PARAMS], *mine[MAX_PARAMS];
    holder h = {{NULL}};
    lsi_bucket_plan buckets;
    lsi_shard_plan plan;
    lsi_shard_norm norm;
    double found = -1;
    for (int i = 0; i < row->n_params; i++) {
        int64_t count = row->count[i] < 0 ? -row->count[i] - 1 : row->count[i];
        params[i] = (ls_param){.name = "p",
                               .count = count,
                               .dtype = LS_DTYPE_F32,
                               .flags = row->count[i] < 0 ? LS_PARAM_FROZEN : 0};
        whole[i] = malloc((size_t)(count + 1) * sizeof(float));
        mine[i] = malloc((size_t)(count + 1) * sizeof(float));
        for (int64_t e = 0; e < count; e++) whole[i][e] = rough_value(7, i, e);
        if (row->count[i] >= 0 && i != row->without) h.grad[i] = mine[i];
    }
    LSI_TRY(lsi_bucket_plan_create(params, row->n_params, NULL, NULL, row->cap_bytes,
                                   row->cap_bytes, &buckets));
    LSI_TRY(lsi_shard_plan_create(&buckets, params, n_ranks, rank, &plan));
    LSI_TRY(lsi_shard_norm_create(&buckets, params, row->n_params, &plan, &norm));
    hide_others(&plan, row->n_params, params, whole, mine);
    double expected = whole_norm(row, whole);
    for (int again = 0; again < 2; again++) {
        LSI_TRY(lsi_shard_norm_get(&norm, group, grad_of, &h, &found));
        RANK_CHECK(memcmp(&found, &expected, sizeof found) == 0,
                   "%s, rank %d of %d: expected %.17g, found %.17g", row->name, rank, n_ranks,
                   expected, found);
    }
    lsi_shard_norm_fini(&norm);
    lsi_shard_plan_fini(&plan);
    lsi_bucket_plan_fini(&buckets);
    for (int i = 0; i < row->n_params; i++) {
        free(whole[i]);
        free(mine[i]);
    }
    return LS_OK;
}

static void norms_of_shards_have_the_bits_of_the_whole(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            for (size_t i = 0; i < COUNT_OF(rows); i++)
                assert_ok(run_ranks((rank_mode)mode, *n, norm_equals_the_whole, (void *)&rows[i]));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_shards_have_the_bits_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
