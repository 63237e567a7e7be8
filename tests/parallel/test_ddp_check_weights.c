/* Whether replicas are still the same: one bit anywhere is found, and all ranks name the first
 * parameter that differs and the ranks that have it otherwise than rank 0. */
#include "small.h"

enum { N_PARAMS = 6, N_RANKS = 4 };

static const spec model[N_PARAMS] = {
    {"p0", 17, 0, 0},           {"p1", 3, LS_DTYPE_BF16, 0},   {"p2", 0, 0, 0},
    {"p3", 5, LS_DTYPE_F64, 0}, {"p4", 9, 0, LS_PARAM_FROZEN}, {"p5", 1, LS_DTYPE_F16, 0},
};

typedef struct bit_row {
    int param, byte, bit;
    int ranks; /* a bit for each rank that has it */
    const char *text;
} bit_row;

static const bit_row rows[] = {
    {0, 0, 0, 1 << 1 | 1 << 3, "the first parameter that differs is p0, on ranks 1 3, from rank 0"},
    {0, 67, 7, 1 << 3, "p0, on ranks 3, from rank 0"},
    {1, 5, 3, 1 << 2, "p1, on ranks 2, from rank 0"},
    {3, 39, 6, 1 << 1 | 1 << 2, "p3, on ranks 1 2, from rank 0"},
    {4, 35, 0, 1 << 1 | 1 << 3, "p4, on ranks 1 3, from rank 0"},
    {5, 1, 7, 1 << 3, "p5, on ranks 3, from rank 0"},
    {5, 0, 0, 1 << 0, "p5, on ranks 1 2 3, from rank 0"},
};

static void flip(small *s, const bit_row *row, int rank) {
    if (row->ranks >> rank & 1) s->data[row->param][row->byte] ^= (unsigned char)(1 << row->bit);
}

static ls_status open_model(ls_group *group, int n_params, small *s, ls_ddp **ddp) {
    small_init(s, model, n_params);
    for (int i = 0; i < n_params; i++)
        for (int b = 0; b < SMALL_BYTES; b++) s->data[i][b] = (unsigned char)(i * 31 + b);
    return ls_ddp_create(group, s->params, n_params, NULL, ddp);
}

static ls_status single_bits(ls_group *group, void *context) {
    int rank = ls_group_rank(group);
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_model(group, N_PARAMS, &s, &ddp));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        LSI_TRY(ls_ddp_check_weights(ddp));
        flip(&s, &rows[i], rank);
        RANK_FAILS(ls_ddp_check_weights(ddp), LS_ERR_MISMATCH, rows[i].text);
        flip(&s, &rows[i], rank);
    }
    /* Of several the first is named, with its own ranks. */
    flip(&s, &rows[5], rank);
    flip(&s, &rows[3], rank);
    RANK_FAILS(ls_ddp_check_weights(ddp), LS_ERR_MISMATCH,
               "after 0 steps: the first parameter that differs is p3, on ranks 1 2, from rank 0");
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void one_bit_is_found_and_named_on_all_ranks(void **state) {
    (void)state;
    run_in_both(N_RANKS, single_bits, NULL);
}

/* What lies behind the elements of a parameter is not its value. */
static ls_status equal_weights(ls_group *group, void *context) {
    (void)context;
    for (int n_params = 0; n_params <= N_PARAMS; n_params += 3) {
        double grads[N_PARAMS] = {1, 2, 3, 4, 5, 6};
        small s;
        ls_ddp *ddp = NULL;
        LSI_TRY(open_model(group, n_params, &s, &ddp));
        LSI_TRY(ls_ddp_check_weights(ddp));
        for (int i = 0; i < n_params; i++)
            s.data[i][SMALL_BYTES - 1] = (unsigned char)ls_group_rank(group);
        for (int step = 0; step < 2; step++) {
            LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
            RANK_FAILS(ls_ddp_check_weights(ddp), LS_ERR_STATE,
                       "ls_ddp_check_weights: a step is open");
            LSI_TRY(small_backward(&s, ddp, grads));
            LSI_TRY(ls_ddp_finish_step(ddp));
            LSI_TRY(ls_ddp_check_weights(ddp));
        }
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void equal_weights_pass(void **state) {
    (void)state;
    run_on_all(equal_weights, NULL);
}

/* The last rank differs, whatever the number of ranks. */
static ls_status last_rank(ls_group *group, void *context) {
    char text[64];
    int last = ls_group_world_size(group) - 1;
    small s;
    ls_ddp *ddp = NULL;
    (void)context;
    LSI_TRY(open_model(group, N_PARAMS, &s, &ddp));
    if (ls_group_rank(group) == last) s.data[3][0] ^= 1;
    snprintf(text, sizeof text, "is p3, on ranks %d, from rank 0", last);
    if (last == 0)
        LSI_TRY(ls_ddp_check_weights(ddp));
    else
        RANK_FAILS(ls_ddp_check_weights(ddp), LS_ERR_MISMATCH, text);
    LSI_TRY(ls_barrier(group, NULL));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void every_number_of_ranks_is_compared(void **state) {
    (void)state;
    run_on_all(last_rank, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bit_is_found_and_named_on_all_ranks),
        cmocka_unit_test(equal_weights_pass),
        cmocka_unit_test(every_number_of_ranks_is_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
