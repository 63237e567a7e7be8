/* Buckets that are rebuilt after the first step, in the order in which rank 0's gradients became
 * ready: which order, when, on whom all agree, and that bits, gaps and pointers stay what they
 * were. */
#include "small.h"

#include "tree.h"

enum { N_PARAMS = 6, FROZEN = 2, WIDE = 4, MAX_ELEMS = 40 };

static const spec model[N_PARAMS] = {
    {"p0", 17, 0, 0},           {"p1", 3, 0, 0}, {"p2", 9, 0, LS_PARAM_FROZEN}, {"p3", 40, 0, 0},
    {"p4", 5, LS_DTYPE_F64, 0}, {"p5", 1, 0, 0},
};

static const double NO_ROOM_MB = 1e-9;

/* Gradients become ready in this order of digits; what is missing in it is unused. Rank r begins
 * with digit r. */
static ls_status backward(ls_group *group, const small *s, ls_ddp *ddp, const char *order,
                          int64_t micro) {
    size_t n = strlen(order), first = (size_t)ls_group_rank(group);
    LSI_TRY(ls_ddp_begin_backward(ddp));
    for (size_t k = 0; k < n; k++) {
        int i = order[(first + k) % n] - '0';
        for (int64_t e = 0; e < model[i].count; e++)
            put_grad(s, ddp, i, e, (double)rough_value(ls_group_rank(group) * 8 + micro, i, e));
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    return ls_ddp_end_backward(ddp);
}

/* orders: of each micro-batch. */
static ls_status step(ls_group *group, const small *s, ls_ddp *ddp, const char *const *orders,
                      int n_micro) {
    LSI_TRY(ls_ddp_begin_step(ddp, n_micro, 0));
    for (int m = 0; m < n_micro; m++) LSI_TRY(backward(group, s, ddp, orders[m], m));
    return ls_ddp_finish_step(ddp);
}

/* ---- which order ---- */

typedef struct order_row {
    const char *orders[2]; /* of the first step's micro-batches */
    int n_micro, keeps, find_unused;
    double bucket_mb;
    const char *before, *after; /* parameters in the order in which they lie, "|": a bucket ends */
} order_row;

static const order_row order_rows[] = {
    {{"01345", NULL}, 1, 0, 0, NO_ROOM_MB, "5|4|3|1|0", "0|1|3|4|5"},
    {{"01345", NULL}, 1, 1, 0, NO_ROOM_MB, "5|4|3|1|0", "5|4|3|1|0"},
    {{"54310", NULL}, 1, 0, 0, NO_ROOM_MB, "5|4|3|1|0", "5|4|3|1|0"},
    {{"35041", NULL}, 1, 0, 0, NO_ROOM_MB, "5|4|3|1|0", "3|5|0|4|1"},
    /* The last micro-batch is the one that communicates. */
    {{"54310", "13540"}, 2, 0, 0, NO_ROOM_MB, "5|4|3|1|0", "1|3|5|4|0"},
    /* What rank 0 did not use comes last, last parameter first. */
    {{"30", NULL}, 1, 0, 1, NO_ROOM_MB, "5|4|3|1|0", "3|0|5|4|1"},
    {{"", NULL}, 1, 0, 1, NO_ROOM_MB, "5|4|3|1|0", "5|4|3|1|0"},
    /* Types stay apart. */
    {{"43105", NULL}, 1, 0, 0, 0, "5310|4", "4|3105"},
    {{"01345", NULL}, 1, 0, 0, 0, "5310|4", "0135|4"},
    /* Caps of 192 bytes: p3 fills one, p0 takes two lines of it. */
    {{"15304", NULL}, 1, 0, 0, 192.0 / (1024 * 1024), "5|4|3|10", "15|3|0|4"},
};

/* As in order_row. */
static ls_status print_buckets(const ls_ddp *ddp, const small *s, char *text) {
    for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
        ls_bucket_info info;
        LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
        const unsigned char *at = s->params[info.first_param].grad;
        if (b > 0) *text++ = '|';
        for (const unsigned char *end = at + info.bytes; at < end; at += 64)
            for (int i = 0; i < N_PARAMS; i++)
                if (s->params[i].grad == (const void *)at) *text++ = (char)('0' + i);
    }
    *text = 0;
    return LS_OK;
}

static ls_status expect_buckets(const ls_ddp *ddp, const small *s, const char *expected,
                                const char *when) {
    char text[4 * N_PARAMS];
    LSI_TRY(print_buckets(ddp, s, text));
    RANK_CHECK(strcmp(text, expected) == 0, "%s: buckets %s, expected %s", when, text, expected);
    return LS_OK;
}

static ls_status buckets_follow(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(order_rows); i++) {
        const order_row *row = &order_rows[i];
        ls_ddp_opts opts = {.struct_size = sizeof opts,
                            .bucket_cap_mb = row->bucket_mb,
                            .first_bucket_mb = row->bucket_mb,
                            .keep_buckets = row->keeps,
                            .find_unused_parameters = row->find_unused};
        static const char *const all[] = {"01345"};
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        LSI_TRY(expect_buckets(ddp, &s, row->before, "at first"));
        LSI_TRY(step(group, &s, ddp, row->orders, row->n_micro));
        for (int later = 0; later < 3; later++) {
            LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
            LSI_TRY(expect_buckets(ddp, &s, row->after, "later"));
            LSI_TRY(backward(group, &s, ddp, all[0], 0));
            LSI_TRY(ls_ddp_finish_step(ddp));
            LSI_TRY(expect_buckets(ddp, &s, row->after, "after a step"));
        }
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void buckets_follow_the_readiness_of_rank_0(void **state) {
    (void)state;
    run_on_all(buckets_follow, NULL);
}

/* ---- bits and pointers ---- */

static void keep(const small *s, double kept[N_PARAMS][MAX_ELEMS]) {
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < (i == FROZEN ? 0 : model[i].count); e++)
            kept[i][e] = grad_at(s, i, e);
}

static ls_status expect_kept(const small *s, double kept[N_PARAMS][MAX_ELEMS], const char *when) {
    for (int i = 0; i < N_PARAMS; i++)
        for (int64_t e = 0; e < (i == FROZEN ? 0 : model[i].count); e++)
            RANK_CHECK(kept[i][e] == grad_at(s, i, e), "%s: other bits in %s", when, model[i].name);
    return LS_OK;
}

/* Pointers of gradients on this rank, as bytes behind each other. */
static void keep_pointers(const small *s, void *pointers[N_PARAMS]) {
    for (int i = 0; i < N_PARAMS; i++) pointers[i] = s->params[i].grad;
}

static int n_moved(const small *s, void *const pointers[N_PARAMS]) {
    int n = 0;
    for (int i = 0; i < N_PARAMS; i++) n += s->params[i].grad != pointers[i];
    return n;
}

static ls_status nothing_changes(ls_group *group, void *context) {
    static const char *const orders[] = {"01345", "30415", "04135"};
    (void)context;
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        ls_ddp_opts opts = {
            .struct_size = sizeof opts, .bucket_cap_mb = 1e-4, .reproducible = reproducible};
        double kept[N_PARAMS][MAX_ELEMS];
        void *pointers[N_PARAMS];
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        keep_pointers(&s, pointers);
        LSI_TRY(step(group, &s, ddp, orders, 3));
        keep(&s, kept);
        RANK_CHECK(n_moved(&s, pointers) == 0, "gradients moved in the first step");
        LSI_TRY(ls_barrier(group, NULL));
        LSI_TRY(expect_kept(&s, kept, "after the first step"));
        LSI_TRY(ls_ddp_begin_step(ddp, 3, 0));
        RANK_CHECK(n_moved(&s, pointers) > 0, "no gradient moved in the second step");
        keep_pointers(&s, pointers);
        for (int m = 0; m < 3; m++) LSI_TRY(backward(group, &s, ddp, orders[m], m));
        LSI_TRY(ls_ddp_finish_step(ddp));
        LSI_TRY(expect_kept(&s, kept, "after the second step"));
        LSI_TRY(step(group, &s, ddp, orders, 3));
        LSI_TRY(expect_kept(&s, kept, "after the third step"));
        RANK_CHECK(n_moved(&s, pointers) == 0, "gradients moved again");
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void bits_stay_and_pointers_move_in_begin_step_only(void **state) {
    (void)state;
    run_on_all(nothing_changes, NULL);
}

/* ---- hooks: told again, and gaps between parameters are zero ---- */

typedef struct watcher {
    int n_prepared, n_run;
    const ls_param *params;
} watcher;

static ls_status watch_prepare(void *context, ls_group *group, const ls_param *params, int n_params,
                               const ls_bucket *buckets, int n_buckets) {
    watcher *w = context;
    int n = 0;
    w->n_prepared++;
    w->params = params;
    RANK_CHECK(n_params == N_PARAMS && ls_group_world_size(group) > 0, "%d parameters", n_params);
    for (int b = 0; b < n_buckets; b++) {
        RANK_CHECK(buckets[b].index == b, "bucket %d has index %d", b, buckets[b].index);
        n += buckets[b].n_params;
    }
    RANK_CHECK(n == N_PARAMS - 1, "%d parameters in all buckets", n);
    return LS_OK;
}

static ls_status check_gap(const ls_bucket *bucket, int64_t begin, int64_t end) {
    size_t size = ls_dtype_bytes(bucket->dtype);
    const unsigned char *bytes = bucket->grad;
    for (int64_t at = begin * (int64_t)size; at < end * (int64_t)size; at++)
        RANK_CHECK(bytes[at] == 0, "step %d, bucket %d: byte %lld is %d", (int)bucket->step,
                   bucket->index, (long long)at, bytes[at]);
    return LS_OK;
}

static ls_status check_gaps(const watcher *w, const ls_bucket *bucket) {
    int64_t end = 0;
    for (int k = 0; k < bucket->n_params; k++) {
        LSI_TRY(check_gap(bucket, end, bucket->offsets[k]));
        end = bucket->offsets[k] + w->params[bucket->params[k]].count;
    }
    return check_gap(bucket, end, bucket->count);
}

static ls_status watch_run(void *context, ls_group *group, const ls_bucket *bucket, int stage,
                           ls_work **work) {
    watcher *w = context;
    w->n_run++;
    LSI_TRY(check_gaps(w, bucket));
    if (stage > 0) return LS_OK;
    return ls_all_reduce(group, bucket->grad, bucket->grad, bucket->count, bucket->dtype, LS_OP_SUM,
                         bucket->scale, work);
}

static const struct watch_row {
    const char *order;
    int keeps, reproducible, n_prepared;
    double bucket_mb;
} watch_rows[] = {
    {"01345", 0, 0, 2, 0},    {"01345", 0, 1, 2, 0}, {"10345", 0, 0, 2, NO_ROOM_MB},
    {"01345", 1, 0, 1, 0},    {"54310", 0, 0, 1, 0}, {"54310", 0, 1, 1, NO_ROOM_MB},
    {"35014", 0, 1, 2, 1e-4},
};

static ls_status hooks_see(ls_group *group, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(watch_rows); i++) {
        const struct watch_row *row = &watch_rows[i];
        const char *orders[] = {row->order, row->order};
        watcher w = {0};
        ls_comm_hook hook = {
            .name = "watch", .context = &w, .prepare = watch_prepare, .run = watch_run};
        ls_ddp_opts opts = {.struct_size = sizeof opts,
                            .bucket_cap_mb = row->bucket_mb,
                            .first_bucket_mb = row->bucket_mb,
                            .reproducible = row->reproducible,
                            .keep_buckets = row->keeps,
                            .hook = &hook};
        small s;
        ls_ddp *ddp = NULL;
        small_init(&s, model, N_PARAMS);
        LSI_TRY(ls_ddp_create(group, s.params, N_PARAMS, &opts, &ddp));
        RANK_CHECK(w.n_prepared == 1, "prepared %d times at first", w.n_prepared);
        for (int k = 0; k < 3; k++) LSI_TRY(step(group, &s, ddp, orders, 2));
        RANK_CHECK(w.n_prepared == row->n_prepared, "row %zu: prepared %d times, expected %d", i,
                   w.n_prepared, row->n_prepared);
        RANK_CHECK(w.n_run == 3 * 2 * ls_ddp_n_buckets(ddp), "run %d times", w.n_run);
        ls_ddp_destroy(ddp);
    }
    return LS_OK;
}

static void hooks_are_prepared_again_and_gaps_stay_zero(void **state) {
    (void)state;
    run_on_all(hooks_see, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_follow_the_readiness_of_rank_0),
        cmocka_unit_test(bits_stay_and_pointers_move_in_begin_step_only),
        cmocka_unit_test(hooks_are_prepared_again_and_gaps_stay_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
