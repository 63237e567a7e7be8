/* The choice of algorithms: what LOCKSTEP_ALGO may say and what it does, the cheapest by made-up
 * costs, and what ls_group_choose tells. */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/collective/collective.h"
#include "harness/ranks.h"

static int algorithm_called(const char *name) {
    for (int a = 1; a <= lsi_n_algorithms(); a++)
        if (strcmp(lsi_algorithm_name(a), name) == 0) return a;
    fail_msg("no algorithm is called %s", name);
    return 0;
}

static lsi_choice_case case_of(int kind, int n, int64_t bytes) {
    const lsi_shape *shape = lsi_shape_of(kind);
    bool whole = shape->many_in || (!shape->many_in && !shape->many_out);
    return (lsi_choice_case){.kind = kind,
                             .n = n,
                             .bytes = bytes,
                             .slot_bytes = whole ? bytes : bytes / n,
                             .reduces = shape->reduces,
                             .default_order = true};
}

/* ---- names ---- */

static void names_are_known_and_unique(void **state) {
    (void)state;
    for (int a = 1; a <= lsi_n_algorithms(); a++) {
        assert_string_not_equal(lsi_algorithm_name(a), "none");
        assert_int_equal(algorithm_called(lsi_algorithm_name(a)), a);
        assert_int_equal(lsi_algorithm_pattern(a) != NULL, a >= LSI_ALGORITHM_FIRST_PATTERN);
    }
    assert_string_equal(lsi_algorithm_name(0), "none");
    assert_string_equal(lsi_algorithm_name(-3), "none");
    assert_string_equal(lsi_algorithm_name(lsi_n_algorithms() + 1), "none");
}

/* ---- LOCKSTEP_ALGO ---- */

typedef struct good_text {
    const char *text;
    int n;
    int kind; /* of the last entry */
    int64_t min_bytes, max_bytes;
    const char *algorithm;
} good_text;

static const good_text good_texts[] = {
    {NULL, 0, 0, 0, 0, NULL},
    {"", 0, 0, 0, 0, NULL},
    {"ring", 1, 0, 0, INT64_MAX, "ring"},
    {"one-shot", 1, 0, 0, INT64_MAX, "one-shot"},
    {"allreduce=direct", 1, LSI_CALL_ALL_REDUCE, 0, INT64_MAX, "direct"},
    {"alltoall=pairwise", 1, LSI_CALL_ALL_TO_ALL, 0, INT64_MAX, "pairwise"},
    {"allreduce:0-100=staged", 1, LSI_CALL_ALL_REDUCE, 0, 100, "staged"},
    {"allreduce:64K-1M=ring", 1, LSI_CALL_ALL_REDUCE, 64 << 10, 1 << 20, "ring"},
    {"reducescatter:2G-=halving", 1, LSI_CALL_REDUCE_SCATTER, INT64_C(2) << 30, INT64_MAX,
     "halving"},
    {"allgather:-4K=doubling", 1, LSI_CALL_ALL_GATHER, 0, 4 << 10, "doubling"},
    {"broadcast:-=binomial", 1, LSI_CALL_BROADCAST, 0, INT64_MAX, "binomial"},
    {"gather:7-7=binomial", 1, LSI_CALL_GATHER, 7, 7, "binomial"},
    {"barrier=one-shot", 1, LSI_CALL_BARRIER, 0, INT64_MAX, "one-shot"},
    {"ring,scatter=binomial,reduce:1-2=double-tree", 3, LSI_CALL_REDUCE, 1, 2, "double-tree"},
    {"ring,", 1, 0, 0, INT64_MAX, "ring"},
};

static void rules_are_read(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good_texts / sizeof good_texts[0]; i++) {
        good_text g = good_texts[i];
        lsi_rules rules;
        memset(&rules, 0x5A, sizeof rules);
        assert_ok(lsi_rules_parse(g.text, &rules));
        assert_int_equal(rules.n, g.n);
        if (g.n == 0) continue;
        const lsi_rule *last = &rules.rule[g.n - 1];
        if (last->kind != g.kind || last->min_bytes != g.min_bytes ||
            last->max_bytes != g.max_bytes || last->algorithm != algorithm_called(g.algorithm))
            fail_msg("'%s': kind %d, %lld to %lld, %s", g.text, last->kind,
                     (long long)last->min_bytes, (long long)last->max_bytes,
                     lsi_algorithm_name(last->algorithm));
    }
}

typedef struct bad_text {
    const char *text, *message;
} bad_text;

static const bad_text bad_texts[] = {
    {"circle", "no algorithm is called 'circle'; there are one-shot, shared, direct"},
    {"allreduce=circle", "no algorithm is called 'circle'"},
    {"allreduce=", "no algorithm is called ''"},
    {"=ring", "no collective is called ''"},
    {",ring", "no algorithm is called ''"},
    {"ring,,ring", "no algorithm is called ''"},
    {"none", "no algorithm is called 'none'"},
    {"Ring", "no algorithm is called 'Ring'"},
    {" ring", "no algorithm is called ' ring'"},
    {"all-reduce=ring", "no collective is called 'all-reduce'; expected barrier"},
    {"send=ring", "no collective is called 'send'"},
    {"recv=ring", "no collective is called 'recv'"},
    {"-=ring", "no collective is called '-'"},
    {"allreduce:=ring", "expected sizes like 64K-1M"},
    {"allreduce:64K=ring", "expected sizes like 64K-1M"},
    {"allreduce:2-1=ring", "expected sizes like 64K-1M"},
    {"allreduce:1X-2=ring", "expected sizes like 64K-1M"},
    {"allreduce:1KK-2M=ring", "expected sizes like 64K-1M"},
    {"allreduce:1-2-3=ring", "expected sizes like 64K-1M"},
    {"allreduce:0-99999999999999999999=ring", "expected sizes like 64K-1M"},
    {"allreduce:0-9999999999999G=ring", "expected sizes like 64K-1M"},
    {"allreduce:a-b=ring", "expected sizes like 64K-1M"},
};

static void bad_rules_are_refused(void **state) {
    (void)state;
    lsi_rules rules;
    char text[8192] = "";
    for (size_t i = 0; i < sizeof bad_texts / sizeof bad_texts[0]; i++)
        assert_fails(lsi_rules_parse(bad_texts[i].text, &rules), LS_ERR_USAGE,
                     bad_texts[i].message);
    for (int i = 0; i <= LSI_MAX_RULES; i++) strcat(text, "ring,");
    assert_fails(lsi_rules_parse(text, &rules), LS_ERR_USAGE, "at most 32 entries");
    text[5 * LSI_MAX_RULES] = 0;
    assert_ok(lsi_rules_parse(text, &rules));
    memset(text, 'x', 2000);
    text[2000] = 0;
    assert_fails(lsi_rules_parse(text, &rules), LS_ERR_USAGE, "entries of 127 letters");
}

static int chosen_by(const char *text, const lsi_choice_case *c, bool *forced) {
    lsi_rules rules;
    int algorithm = -1;
    assert_ok(lsi_rules_parse(text, &rules));
    assert_ok(lsi_choose(c, &lsi_costs_default, &rules, &algorithm, forced));
    return algorithm;
}

static void rules_decide(void **state) {
    (void)state;
    bool forced = false;
    lsi_choice_case sum = case_of(LSI_CALL_ALL_REDUCE, 5, 1000);
    lsi_choice_case scatter = case_of(LSI_CALL_SCATTER, 5, 1000);
    int ring = algorithm_called("ring"), staged = LSI_ALGORITHM_STAGED;
    assert_int_equal(chosen_by("ring", &sum, &forced), ring);
    assert_true(forced);
    /* the last that fits wins */
    assert_int_equal(chosen_by("ring,staged", &sum, &forced), staged);
    assert_int_equal(chosen_by("staged,ring", &sum, &forced), ring);
    assert_int_equal(chosen_by("allreduce=ring,reduce=staged", &sum, &forced), ring);
    assert_int_equal(chosen_by("ring,allreduce:1001-=staged", &sum, &forced), ring);
    assert_int_equal(chosen_by("ring,allreduce:1000-=staged", &sum, &forced), staged);
    assert_int_equal(chosen_by("ring,allreduce:-1000=staged", &sum, &forced), staged);
    assert_int_equal(chosen_by("ring,allreduce:-999=staged", &sum, &forced), ring);
    /* one for all collectives leaves out what the algorithm cannot do */
    int unforced = chosen_by("", &scatter, &forced);
    assert_false(forced);
    assert_int_equal(chosen_by("ring", &scatter, &forced), unforced);
    assert_false(forced);
    assert_int_equal(chosen_by("staged,ring", &scatter, &forced), staged);
    assert_true(forced);
}

static void impossible_wishes_are_refused(void **state) {
    (void)state;
    lsi_rules rules;
    int algorithm = 77;
    bool forced = false;
    lsi_choice_case scatter = case_of(LSI_CALL_SCATTER, 5, 1000);
    assert_ok(lsi_rules_parse("scatter=ring", &rules));
    assert_fails(lsi_choose(&scatter, &lsi_costs_default, &rules, &algorithm, &forced),
                 LS_ERR_UNSUPPORTED, "LOCKSTEP_ALGO asks for ring, which cannot do this call");
    lsi_choice_case sum = case_of(LSI_CALL_ALL_REDUCE, 5, LSI_SLOT_BYTES + 1);
    assert_ok(lsi_rules_parse("allreduce=one-shot", &rules));
    assert_fails(lsi_choose(&sum, &lsi_costs_default, &rules, &algorithm, &forced),
                 LS_ERR_UNSUPPORTED, "one-shot");
    sum.bytes = sum.slot_bytes = LSI_SLOT_BYTES;
    assert_ok(lsi_choose(&sum, &lsi_costs_default, &rules, &algorithm, &forced));
    sum.default_order = false;
    assert_ok(lsi_rules_parse("allreduce=ring", &rules));
    assert_fails(lsi_choose(&sum, &lsi_costs_default, &rules, &algorithm, &forced),
                 LS_ERR_UNSUPPORTED, "an order of reduction of its own");
    lsi_choice_case barrier = case_of(LSI_CALL_BARRIER, 5, 0);
    assert_ok(lsi_rules_parse("barrier=direct", &rules));
    assert_fails(lsi_choose(&barrier, &lsi_costs_default, &rules, &algorithm, &forced),
                 LS_ERR_UNSUPPORTED, "barrier");
}

/* ---- costs ---- */

typedef struct cost_row {
    const char *name;
    lsi_costs costs;
    int kind, n;
    int64_t bytes;
    const char *expected;
} cost_row;

/* Each row makes one thing cheap and the rest dear. What nothing is said of costs nothing. */
#define FLAT(time_ns)                                                                              \
    {                                                                                              \
        { time_ns, time_ns, time_ns, time_ns }                                                     \
    }
#define CURVES(shots, others)                                                                      \
    .one_shot = FLAT(shots), .direct = FLAT(others), .staged = FLAT(others)
#define MESSAGES(each, byte, combined_byte)                                                        \
    .message_ns = each, .message_per_byte_ns = byte, .combine_per_byte_ns = combined_byte
#define NO_MESSAGES MESSAGES(1e9, 1e3, 1)
static const cost_row cost_rows[] = {
    {"one-shot is cheaper",
     {CURVES(100, 101), NO_MESSAGES},
     LSI_CALL_ALL_REDUCE,
     4,
     64,
     "one-shot"},
    {"shared is cheaper", {CURVES(101, 100), NO_MESSAGES}, LSI_CALL_ALL_REDUCE, 4, 64, "shared"},
    {"one-shot grows with bytes",
     {.one_shot = {{100, 500, 900, 4900}}, .direct = FLAT(300), .staged = FLAT(1e9), NO_MESSAGES},
     LSI_CALL_ALL_REDUCE,
     4,
     528,
     "one-shot"},
    {"the middle of 40 and 1024 is 532",
     {.one_shot = {{100, 500, 900, 4900}}, .direct = FLAT(300), .staged = FLAT(1e9), NO_MESSAGES},
     LSI_CALL_ALL_REDUCE,
     4,
     536,
     "shared"},
    {"direct grows with bytes",
     {.one_shot = FLAT(600), .direct = {{100, 500, 700, 4900}}, .staged = FLAT(1e9), NO_MESSAGES},
     LSI_CALL_ALL_REDUCE,
     4,
     4604,
     "shared"},
    {"the middle of 1024 and 8192 is 4608",
     {.one_shot = FLAT(600), .direct = {{100, 500, 700, 4900}}, .staged = FLAT(1e9), NO_MESSAGES},
     LSI_CALL_ALL_REDUCE,
     4,
     4612,
     "one-shot"},
    {"a slot holds no more",
     {CURVES(1, 1e9), NO_MESSAGES},
     LSI_CALL_ALL_REDUCE,
     4,
     LSI_SLOT_BYTES + 4,
     "shared"},
    {"gathers contribute a part",
     {CURVES(1, 1e9), NO_MESSAGES},
     LSI_CALL_ALL_GATHER,
     4,
     LSI_SLOT_BYTES * 4,
     "one-shot"},
    {"messages are cheap: latency",
     {CURVES(1e9, 1e9), MESSAGES(1, 1e-9, 1e-9)},
     LSI_CALL_ALL_REDUCE,
     8,
     1000,
     "doubling"},
    {"messages are cheap: bandwidth",
     {CURVES(1e9, 1e9), MESSAGES(1e-6, 1, 1e-9)},
     LSI_CALL_ALL_REDUCE,
     8,
     1 << 20,
     "halving"},
    {"messages are hardly cheaper",
     {CURVES(1e9, 100), MESSAGES(70, 1e-9, 1e-9)},
     LSI_CALL_ALL_GATHER,
     2,
     1 << 20,
     "shared"},
    {"messages are clearly cheaper",
     {CURVES(1e9, 100), MESSAGES(60, 1e-9, 1e-9)},
     LSI_CALL_ALL_GATHER,
     2,
     1 << 20,
     "ring"},
    {"all-to-all", {CURVES(1e9, 1e9), MESSAGES(1, 1, 1)}, LSI_CALL_ALL_TO_ALL, 5, 5000, "pairwise"},
    {"scatter", {CURVES(1e9, 1e9), MESSAGES(1, 1, 1)}, LSI_CALL_SCATTER, 5, 5000, "binomial"},
    {"a group of one",
     {CURVES(1e9, 350), MESSAGES(0, 0, 0)},
     LSI_CALL_ALL_REDUCE,
     1,
     5000,
     "shared"},
    {"a barrier", {CURVES(1e9, 1), MESSAGES(1, 1, 1)}, LSI_CALL_BARRIER, 4, 0, "one-shot"},
};

static void the_cheapest_is_chosen(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cost_rows / sizeof cost_rows[0]; i++) {
        cost_row row = cost_rows[i];
        lsi_choice_case c = case_of(row.kind, row.n, row.bytes);
        int algorithm = 0;
        bool forced = true;
        assert_ok(lsi_choose(&c, &row.costs, NULL, &algorithm, &forced));
        if (forced || strcmp(lsi_algorithm_name(algorithm), row.expected) != 0)
            fail_msg("%s: expected %s, found %s", row.name, row.expected,
                     lsi_algorithm_name(algorithm));
    }
}

/* Whatever costs say: what is chosen unasked can do the call and keeps the order. */
static void choices_are_possible_and_keep_the_order(void **state) {
    (void)state;
    for (int kind = LSI_CALL_BROADCAST; kind <= LSI_CALL_ALL_TO_ALL; kind++)
        for (int n = 1; n <= LSI_MAX_RANKS; n++)
            for (int64_t bytes = 1; bytes < INT64_C(1) << 40; bytes *= 37)
                for (uint32_t draw = 0; draw < 32; draw++) {
                    uint32_t bits = draw * 2654435761u;
                    double cheap[2] = {1, 1e6};
                    lsi_costs costs;
                    double *figure = (double *)(void *)&costs;
                    for (size_t f = 0; f < sizeof costs / sizeof *figure; f++)
                        figure[f] = cheap[bits >> (31 - f % 32) & 1];
                    lsi_choice_case c = case_of(kind, n, bytes);
                    c.root = (int)(draw % (uint32_t)n);
                    c.default_order = draw % 4 > 0;
                    int algorithm = 0;
                    bool forced = false;
                    assert_ok(lsi_choose(&c, &costs, NULL, &algorithm, &forced));
                    if (!lsi_algorithm_can(algorithm, &c) ||
                        !lsi_algorithm_keeps_order(algorithm, &c) ||
                        algorithm == LSI_ALGORITHM_DIRECT || algorithm == LSI_ALGORITHM_STAGED)
                        fail_msg("%s, %d ranks, %lld bytes: chose %s", lsi_call_kind_name(kind), n,
                                 (long long)bytes, lsi_algorithm_name(algorithm));
                }
}

/* ---- groups ---- */

static ls_status what_a_group_tells(ls_group *group, void *context) {
    (void)context;
    static const char *const names[] = {"barrier", "broadcast",     "allreduce",
                                        "reduce",  "reducescatter", "allgather",
                                        "gather",  "scatter",       "alltoall"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        for (int64_t count = 0; count < 1 << 24; count = count * 91 + 1) {
            ls_choice choice = {0}, all[32] = {{0}}, few[2] = {{0}};
            int n_found = -1, n_few = -1;
            LSI_TRY(
                ls_group_choose(group, names[i], count, LS_DTYPE_F32, &choice, all, 32, &n_found));
            RANK_CHECK(n_found >= 1 && n_found <= lsi_n_algorithms(), "%s: %d found", names[i],
                       n_found);
            bool listed = false;
            for (int k = 0; k < n_found; k++) {
                RANK_CHECK(k == 0 || all[k - 1].time_us <= all[k].time_us,
                           "%s: the list is not sorted", names[i]);
                listed = listed || strcmp(all[k].algorithm, choice.algorithm) == 0;
            }
            RANK_CHECK(listed && !choice.forced, "%s: %s is not in the list", names[i],
                       choice.algorithm);
            LSI_TRY(ls_group_choose(group, names[i], count, LS_DTYPE_F32, &choice, few, 2, &n_few));
            RANK_CHECK(n_few == n_found, "%s: %d and %d found", names[i], n_few, n_found);
            LSI_TRY(ls_group_choose(group, names[i], count, LS_DTYPE_F32, &choice, NULL, 0, NULL));
        }
    ls_choice choice = {.algorithm = "untouched"};
    static const char *const unknown[] = {"", "-", "send", "recv", "all-reduce", "Barrier"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        RANK_CHECK(ls_group_choose(group, unknown[i], 1, LS_DTYPE_F32, &choice, NULL, 0, NULL) ==
                       LS_ERR_ARGUMENT,
                   "'%s' was accepted", unknown[i]);
    RANK_CHECK(ls_group_choose(group, "allreduce", -1, LS_DTYPE_F32, &choice, NULL, 0, NULL) ==
                       LS_ERR_ARGUMENT &&
                   ls_group_choose(group, "allreduce", 1, (ls_dtype)99, &choice, NULL, 0, NULL) ==
                       LS_ERR_ARGUMENT,
               "bad counts and types were accepted");
    RANK_CHECK(strcmp(choice.algorithm, "untouched") == 0, "written on failure");
    return LS_OK;
}

static void groups_tell_what_they_would_choose(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n; n++)
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, what_a_group_tells, NULL));
}

/* What is told is what is done. */
static ls_status told_and_done(ls_group *group, void *context) {
    const char *wish = context;
    static float values[1 << 16], sums[1 << 16];
    for (int64_t count = 1; count <= 1 << 16; count *= 4) {
        ls_choice choice;
        LSI_TRY(ls_group_choose(group, "allreduce", count, LS_DTYPE_F32, &choice, NULL, 0, NULL));
        LSI_TRY(ls_all_reduce(group, values, sums, count, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
        const char *done = lsi_group_last_algorithm(group);
        /* private buffers: where direct is told, another way through memory is taken */
        bool same = strcmp(done, choice.algorithm) == 0 ||
                    (strcmp(choice.algorithm, "direct") == 0 &&
                     (strcmp(done, "staged") == 0 || strcmp(done, "one-shot") == 0));
        RANK_CHECK(same, "count %lld: told %s, done %s", (long long)count, choice.algorithm, done);
        RANK_CHECK(choice.forced == (wish != NULL) && (!wish || strcmp(done, wish) == 0),
                   "count %lld, wish %s: done %s", (long long)count, wish ? wish : "none", done);
    }
    return LS_OK;
}

static void what_is_told_is_done(void **state) {
    (void)state;
    static char wishes[][16] = {"ring", "halving", "doubling", "double-tree", "staged"};
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, told_and_done, NULL));
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        setenv("LOCKSTEP_ALGO", wishes[i], 1);
        assert_ok(run_ranks(RANKS_AS_PROCESSES, 3, told_and_done, wishes[i]));
    }
    unsetenv("LOCKSTEP_ALGO");
}

static ls_status one_wish(ls_group *group, void *context) {
    const char *collective = context;
    float value[8] = {1}, sum[8] = {0};
    if (strcmp(collective, "scatter") == 0)
        return ls_scatter(group, value, sum, 1, LS_DTYPE_F32, 0, NULL);
    return ls_all_reduce(group, value, sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
}

/* Wishes that cannot be are errors and no hangs. */
static void wishes_that_cannot_be_are_errors(void **state) {
    (void)state;
    setenv("LOCKSTEP_ALGO", "circle", 1);
    assert_fails(run_ranks(RANKS_AS_PROCESSES, 2, one_wish, "allreduce"), LS_ERR_USAGE, "circle");
    setenv("LOCKSTEP_ALGO", "scatter=ring", 1);
    assert_fails(run_ranks(RANKS_AS_PROCESSES, 2, one_wish, "scatter"), LS_ERR_UNSUPPORTED,
                 "LOCKSTEP_ALGO asks for ring");
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, one_wish, "allreduce"));
    setenv("LOCKSTEP_ALGO", "allreduce=direct", 1);
    assert_fails(run_ranks(RANKS_AS_PROCESSES, 2, one_wish, "allreduce"), LS_ERR_UNSUPPORTED,
                 "not in shared memory");
    unsetenv("LOCKSTEP_ALGO");
}

/* Ranks that were told different things. */
static ls_status different_wishes(ls_group *group, void *context) {
    (void)context;
    const char *wish = group->rank == 1 ? "ring" : "doubling";
    LSI_TRY(lsi_rules_parse(wish, &group->rules));
    float value = 1, sum = 0;
    return ls_all_reduce(group, &value, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
}

static void different_wishes_are_an_error(void **state) {
    (void)state;
    rank_result results[3];
    run_rank_processes(3, different_wishes, NULL, results);
    for (int r = 0; r < 3; r++)
        if (results[r].status != LS_ERR_MISMATCH || !strstr(results[r].message, "ring") ||
            !strstr(results[r].message, "doubling"))
            fail_msg("rank %d: %d with '%s'", r, results[r].status, results[r].message);
}

/* ---- calibration ---- */

static ls_status calibrate(ls_group *group, void *context) {
    (void)context;
    LSI_TRY(lsi_group_calibrate(group));
    lsi_costs all[8];
    LSI_TRY(ls_all_gather(group, &group->costs, all, sizeof(lsi_costs) / 8, LS_DTYPE_F64, NULL));
    for (int r = 1; r < group->n_ranks; r++)
        RANK_CHECK(memcmp(&all[0], &all[r], sizeof all[0]) == 0, "rank %d has other costs", r);
    const double *figures = (const double *)(const void *)all;
    for (size_t i = 0; i < sizeof(lsi_costs) / 8; i++)
        RANK_CHECK(figures[i] > 0 && figures[i] < 1e12, "figure %zu is %g", i, figures[i]);
    RANK_CHECK(group->rules.n == 0, "a rule was left behind");
    return what_a_group_tells(group, NULL);
}

static void measured_costs_are_the_same_on_all_ranks(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, calibrate, NULL));
}

/* Room for one of two: the rank that gets none tells the other. */
static ls_status calibrate_without_room(ls_group *group, void *context) {
    (void)context;
    void *most = NULL;
    if (ls_group_rank(group) == 0) {
        size_t heap_bytes = lsi_group_region(group)->control->heap_bytes;
        LSI_TRY(ls_group_alloc_shared(group, heap_bytes - (64 << 10), &most));
    }
    LSI_TRY(ls_barrier(group, NULL));
    return lsi_group_calibrate(group);
}

static void a_rank_without_room_ends_the_calibration_of_all(void **state) {
    (void)state;
    rank_result results[2];
    run_rank_processes(2, calibrate_without_room, NULL, results);
    for (int r = 0; r < 2; r++)
        if (results[r].status != LS_ERR_MEMORY)
            fail_msg("rank %d: expected %d, found %d with '%s'", r, LS_ERR_MEMORY,
                     results[r].status, results[r].message);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_known_and_unique),
        cmocka_unit_test(rules_are_read),
        cmocka_unit_test(bad_rules_are_refused),
        cmocka_unit_test(rules_decide),
        cmocka_unit_test(impossible_wishes_are_refused),
        cmocka_unit_test(the_cheapest_is_chosen),
        cmocka_unit_test(choices_are_possible_and_keep_the_order),
        cmocka_unit_test(groups_tell_what_they_would_choose),
        cmocka_unit_test(what_is_told_is_done),
        cmocka_unit_test(wishes_that_cannot_be_are_errors),
        cmocka_unit_test(different_wishes_are_an_error),
        cmocka_unit_test(measured_costs_are_the_same_on_all_ranks),
        cmocka_unit_test(a_rank_without_room_ends_the_calibration_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
