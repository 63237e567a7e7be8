/* The artificial link (LOCKSTEP_LINK): works are over no earlier than its latency and bandwidth let
 * them be, in order, with the same results; errors, deadlines and ranks that leave are as without
 * it. Times have lower bounds only: how late a rank looks is the machine's business. Where an error
 * must not be held back the link is so slow that a work that came through would be seen. */
#include "comm/calls.h"

#include <signal.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "harness/cases.h"

static const char *const NO_LINK = NULL;
/* Every work takes 10 s. */
static const char *const STANDSTILL = "latency_us=10000000";

static void set(const char *variable, const char *value) {
    assert_int_equal(value ? setenv(variable, value, 1) : unsetenv(variable), 0);
}

static int set_nothing(void **state) {
    (void)state;
    set("LOCKSTEP_LINK", NULL);
    set("LOCKSTEP_PROGRESS", NULL);
    return 0;
}

static ls_status run_linked(const char *link, rank_mode mode, int n, rank_body body,
                            void *context) {
    set("LOCKSTEP_LINK", link);
    ls_status status = run_ranks(mode, n, body, context);
    set("LOCKSTEP_LINK", NO_LINK);
    return status;
}

/* ---- LOCKSTEP_LINK ---- */

static void texts_are_read_as_they_say(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool is_set;
        double latency_ns, ns_per_byte;
    } rows[] = {
        {NULL, false, 0, 0},
        {"", false, 0, 0},
        {"latency_us=50,gb_per_s=1.0", true, 50000, 1},
        {"gb_per_s=0.25,latency_us=2.5", true, 2500, 4},
        {"latency_us=7", true, 7000, 0},
        {"gb_per_s=8.", true, 0, 0.125},
        {"latency_us=0", true, 0, 0},
        {"latency_us=10000000", true, 1e10, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        lsi_link link;
        bool is_set = !rows[i].is_set;
        assert_ok(lsi_link_parse(rows[i].text, &link, &is_set));
        if (is_set != rows[i].is_set || link.latency_ns != rows[i].latency_ns ||
            link.ns_per_byte != rows[i].ns_per_byte)
            fail_msg("'%s': found %d, %g ns, %g ns a byte", rows[i].text, is_set, link.latency_ns,
                     link.ns_per_byte);
    }
}

static void wrong_texts_are_refused_by_the_part_that_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *text, *named;
    } rows[] = {
        {"latency_us=50,gb_per_s=fast", "'gb_per_s=fast': expected a number from 1e-06"},
        {"latency=50", "'latency=50': expected latency_us=X or gb_per_s=X"},
        {"latency_us", "'latency_us': expected"},
        {"latency_us=", "'latency_us=': expected a number"},
        {"latency_us=5,", "'': expected latency_us=X"},
        {",latency_us=5", "'': expected latency_us=X"},
        {"latency_us=5 ,gb_per_s=1", "'latency_us=5 ': expected a number"},
        {"latency_us=-5", "'latency_us=-5'"},
        {"latency_us=1e3", "'latency_us=1e3'"},
        {"latency_us=1.2.3", "'latency_us=1.2.3'"},
        {"latency_us=.", "'latency_us=.'"},
        {"latency_us=nan", "'latency_us=nan'"},
        {"latency_us=10000001", "from 0 to 10000000"},
        {"gb_per_s=0", "'gb_per_s=0'"},
        {"gb_per_s=1,gb_per_s=1", "gb_per_s is there twice"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        lsi_link link;
        bool is_set = false;
        assert_fails(lsi_link_parse(rows[i].text, &link, &is_set), LS_ERR_USAGE, rows[i].named);
    }
}

static ls_status never_runs(ls_group *group, void *context) {
    (void)group;
    (void)context;
    return LS_OK;
}

static void groups_refuse_a_wrong_text(void **state) {
    (void)state;
    assert_fails(run_linked("slow", RANKS_AS_THREADS, 2, never_runs, NULL), LS_ERR_USAGE,
                 "LOCKSTEP_LINK: 'slow'");
}

/* ---- times ---- */

enum { COUNT = 10000, LATENCY_NS = 2000000, BYTE_NS = 100 };
static const char *const SLOW = "latency_us=2000,gb_per_s=0.01";

/* What a call sends, in parts of COUNT elements: so many, and so many times (n - 1) / n. */
typedef struct traffic {
    lsi_call_kind kind;
    double parts, shares;
    bool many; /* n parts lie in the larger buffer */
} traffic;

static const traffic traffics[] = {
    {LSI_CALL_BARRIER, 0, 0, false},       {LSI_CALL_BROADCAST, 1, 0, false},
    {LSI_CALL_ALL_REDUCE, 0, 2, false},    {LSI_CALL_REDUCE, 1, 0, false},
    {LSI_CALL_REDUCE_SCATTER, 0, 1, true}, {LSI_CALL_ALL_GATHER, 0, 1, true},
    {LSI_CALL_GATHER, 0, 1, true},         {LSI_CALL_SCATTER, 0, 1, true},
    {LSI_CALL_ALL_TO_ALL, 0, 1, true},
};

static int64_t expected_ns(const traffic *t, int n) {
    double parts = (t->parts + t->shares * (n - 1) / n) * (t->many ? n : 1);
    return (int64_t)(LATENCY_NS + parts * COUNT * 4 * BYTE_NS);
}

static void calls_cost_latency_and_the_bytes_of_the_best_algorithm(void **state) {
    (void)state;
    const lsi_link link = {.latency_ns = LATENCY_NS, .ns_per_byte = BYTE_NS};
    for (size_t i = 0; i < COUNT_OF(traffics); i++)
        for (const int *n = rank_counts; *n; n++) {
            int64_t bytes = traffics[i].kind == LSI_CALL_BARRIER ? 0 : COUNT * 4;
            int64_t all = bytes * (traffics[i].many ? *n : 1);
            int64_t found = lsi_link_cost_ns(&link, traffics[i].kind, *n, all);
            int64_t wanted = expected_ns(&traffics[i], *n);
            if (found < wanted - 1 || found > wanted + 1)
                fail_msg("%s, %d ranks: %lld ns, expected %lld",
                         lsi_call_kind_name(traffics[i].kind), *n, (long long)found,
                         (long long)wanted);
        }
    assert_int_equal(lsi_link_cost_ns(&link, LSI_CALL_SEND, 4, 10), LATENCY_NS + 1000);
    assert_int_equal(lsi_link_cost_ns(&link, LSI_CALL_RECV, 4, 10), LATENCY_NS + 1000);
}

/* How a caller gets to know that a work is done. */
typedef enum way { BLOCKING, WAITING, TESTING, N_WAYS } way;

static ls_status finish(ls_work *work, way w) {
    int done = 0;
    while (work && w == TESTING && !done) LSI_TRY(ls_work_test(work, &done));
    return work ? ls_work_wait(work, -1) : LS_OK;
}

/* When the last rank began; blocks. */
static ls_status last_begin(ls_group *group, int64_t begin_ns, int64_t *last_ns) {
    return ls_all_reduce(group, &begin_ns, last_ns, 1, LS_DTYPE_I64, LS_OP_MAX, 1, NULL);
}

typedef struct timing {
    way way;
    bool late; /* the last rank */
} timing;

static ls_status takes_its_time(ls_group *group, void *context) {
    const timing *t = context;
    int n = group->n_ranks;
    float *buffer[2];
    LSI_TRY(make_buffers(group, COUNT, true, buffer));
    for (size_t i = 0; i < COUNT_OF(traffics); i++) {
        call c = {.kind = traffics[i].kind};
        ls_work *work = NULL;
        int64_t last_ns = 0;
        if (t->late && group->rank == n - 1) lsi_sleep_ms(3);
        int64_t begin_ns = lsi_now_ns();
        LSI_TRY(
            make_call(group, &c, COUNT, buffer[0], buffer[1], t->way == BLOCKING ? NULL : &work));
        LSI_TRY(finish(work, t->way));
        int64_t end_ns = lsi_now_ns();
        LSI_TRY(last_begin(group, begin_ns, &last_ns));
        int64_t least_ns = n > 1 ? expected_ns(&traffics[i], n) - 1 : 0;
        RANK_CHECK(end_ns - last_ns >= least_ns, "%s, way %d: done after %lld ns, expected %lld",
                   lsi_call_kind_name(c.kind), t->way, (long long)(end_ns - last_ns),
                   (long long)least_ns);
    }
    free_buffers(group, true, buffer);
    return LS_OK;
}

static void works_are_not_done_before_their_time(void **state) {
    (void)state;
    static const char *const progress[] = {"inline", "thread"};
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < 2 * N_WAYS; i++) {
            timing t = {(way)(i / 2), i % 2};
            set("LOCKSTEP_PROGRESS", progress[p]);
            for (int n = 1; n <= 3; n++)
                assert_ok(run_linked(SLOW, (rank_mode)((i + n) % 2), n, takes_its_time, &t));
        }
}

/* ---- rows of works ---- */

/* Waits from the last to the first: a work that is done has all before it done. */
static ls_status stays_in_order(ls_group *group, void *context) {
    enum { WORKS = 4 };
    const traffic all_reduce = {LSI_CALL_ALL_REDUCE, 0, 2, false};
    static _Thread_local float value[WORKS][COUNT];
    ls_work *work[WORKS];
    int n = group->n_ranks, done = 0;
    int64_t begin_ns = lsi_now_ns(), last_ns = 0;
    (void)context;
    for (int i = 0; i < WORKS; i++) {
        for (int k = 0; k < COUNT; k++) value[i][k] = (float)(group->rank + i);
        LSI_TRY(
            ls_all_reduce(group, value[i], value[i], COUNT, LS_DTYPE_F32, LS_OP_SUM, 1, &work[i]));
    }
    for (int i = WORKS - 1; i >= 0; i--) {
        int64_t seen_ns = 0;
        while (i == WORKS - 1 && !done) {
            LSI_TRY(ls_work_test(work[i], &done));
            seen_ns = lsi_now_ns();
        }
        LSI_TRY(ls_work_test(work[i], &done));
        RANK_CHECK(done, "work %d is not done, but one behind it is", i);
        if (i == WORKS - 1) {
            int64_t least_ns = begin_ns + WORKS * (expected_ns(&all_reduce, n) - 1);
            RANK_CHECK(seen_ns >= least_ns, "%lld ns too early", (long long)(least_ns - seen_ns));
        }
        LSI_TRY(ls_work_wait(work[i], -1));
        float sum = (float)(n * (n - 1) / 2 + n * i);
        RANK_CHECK(value[i][COUNT - 1] == sum, "work %d: %g", i, (double)value[i][COUNT - 1]);
    }
    return last_begin(group, begin_ns, &last_ns);
}

static void works_share_the_link_one_after_the_other(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (int n = 2; n <= 4; n++)
            assert_ok(run_linked(SLOW, (rank_mode)mode, n, stays_in_order, NULL));
}

/* A buffer of a work on its way is not the caller's yet. */
static ls_status buffers_stay_in_use(ls_group *group, void *context) {
    (void)context;
    float value = 1, sum = 0;
    ls_work *work = NULL, *other = NULL;
    LSI_TRY(ls_all_reduce(group, &value, &value, 1, LS_DTYPE_F32, LS_OP_SUM, 1, &work));
    ls_status status = ls_all_reduce(group, &value, &sum, 1, LS_DTYPE_F32, LS_OP_SUM, 1, &other);
    RANK_CHECK(status == LS_ERR_BUSY, "%s", ls_status_name(status));
    LSI_TRY(ls_work_wait(work, -1));
    RANK_CHECK(value == (float)group->n_ranks, "the sum is %g", (double)value);
    return LS_OK;
}

static void buffers_are_in_use_until_their_work_is_over(void **state) {
    (void)state;
    assert_ok(run_linked("latency_us=50000", RANKS_AS_PROCESSES, 2, buffers_stay_in_use, NULL));
}

/* ---- messages ---- */

typedef struct passing_on {
    bool batched;
    way way;
} passing_on;

static ls_status pass_round(ls_group *group, const passing_on *p, float *out, float *in) {
    int n = group->n_ranks, next = (group->rank + 1) % n, before = (group->rank + n - 1) % n;
    ls_work *sent = NULL, *got = NULL;
    if (p->batched) LSI_TRY(ls_batch_begin(group));
    LSI_TRY(ls_send(group, out, COUNT, LS_DTYPE_F32, next, p->batched ? NULL : &sent));
    LSI_TRY(ls_recv(group, in, COUNT, LS_DTYPE_F32, before, p->batched ? NULL : &got));
    if (p->batched) LSI_TRY(ls_batch_end(group, p->way == BLOCKING ? NULL : &got));
    LSI_TRY(finish(got, p->way));
    return finish(sent, p->way);
}

static ls_status messages_take_their_time(ls_group *group, void *context) {
    static _Thread_local float out[COUNT], in[COUNT];
    int n = group->n_ranks, before = (group->rank + n - 1) % n;
    int64_t least_ns = n > 1 ? LATENCY_NS + COUNT * 4 * BYTE_NS : 0;
    for (int i = 0; i < COUNT; i++) out[i] = (float)(group->rank * COUNT + i);
    int64_t begin_ns = lsi_now_ns();
    LSI_TRY(pass_round(group, context, out, in));
    RANK_CHECK(lsi_now_ns() - begin_ns >= least_ns, "done %lld ns too early",
               (long long)(begin_ns + least_ns - lsi_now_ns()));
    for (int i = 0; i < COUNT; i++)
        RANK_CHECK(in[i] == (float)(before * COUNT + i), "element %d is %g", i, (double)in[i]);
    return LS_OK;
}

static void messages_are_not_done_before_their_time(void **state) {
    (void)state;
    static const passing_on rows[] = {
        {false, WAITING}, {false, TESTING}, {true, BLOCKING}, {true, WAITING}, {true, TESTING}};
    static const char *const progress[] = {"inline", "thread"};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int p = 0; p < 2; p++) {
            passing_on row = rows[i];
            set("LOCKSTEP_PROGRESS", progress[p]);
            for (int n = 2; n <= 3; n++)
                assert_ok(run_linked(SLOW, (rank_mode)p, n, messages_take_their_time, &row));
        }
}

/* In rank 0's order; one direction leaves the other alone. */
static ls_status messages_queue_up(ls_group *group, void *context) {
    enum { MESSAGES = 3 };
    (void)context;
    int number[MESSAGES];
    int64_t begin_ns = lsi_now_ns();
    for (int i = 0; i < MESSAGES; i++) {
        number[i] = group->rank == 0 ? i : -1;
        if (group->rank == 0) LSI_TRY(ls_send(group, &number[i], 1, LS_DTYPE_I32, 1, NULL));
        if (group->rank == 1) LSI_TRY(ls_recv(group, &number[i], 1, LS_DTYPE_I32, 0, NULL));
        RANK_CHECK(lsi_now_ns() - begin_ns >= (i + 1) * (int64_t)LATENCY_NS,
                   "message %d came early", i);
        RANK_CHECK(number[i] == i, "message %d is %d", i, number[i]);
    }
    const lsi_link *link = &group->link;
    RANK_CHECK((link->sends_until_ns > 0) == (group->rank == 0) &&
                   (link->receives_until_ns > 0) == (group->rank == 1),
               "sends until %lld, receives until %lld", (long long)link->sends_until_ns,
               (long long)link->receives_until_ns);
    return LS_OK;
}

static void messages_of_a_direction_follow_each_other(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_linked(SLOW, (rank_mode)mode, 2, messages_queue_up, NULL));
}

/* ---- results ---- */

static ls_status every_kind_and_algorithm(ls_group *group, void *context) {
    (void)context;
    const int64_t counts[] = {group->n_ranks + 1, 5003};
    int n_algorithms = group->n_ranks > 4 ? 0 : lsi_n_algorithms();
    uint32_t seed = 0;
    case_arena arena;
    LSI_TRY(case_arena_open(&arena, group, 4 << 20));
    for (int k = 0; k < n_case_kinds; k++)
        for (int a = 0; a <= n_algorithms; a++)
            for (size_t i = 0; i < COUNT_OF(counts); i++) {
                call_case c = {.kind = case_kinds[k].kind,
                               .uneven = case_kinds[k].uneven,
                               .algorithm = a,
                               .dtype = case_dtypes[seed % (uint32_t)n_case_dtypes],
                               .op = LS_OP_SUM,
                               .scale = 1,
                               .count = counts[i],
                               .root = (int)(seed % (uint32_t)group->n_ranks),
                               .in_place = seed / 2 % 2,
                               .buffers = (case_buffers)(seed % N_CASE_BUFFERS),
                               .seed = seed};
                posted_case p;
                seed++;
                if (!case_possible(group, &c)) c.buffers = CASE_SHARED;
                if (!case_possible(group, &c)) continue;
                case_arena_reset(&arena);
                LSI_TRY(case_post(&arena, &c, seed % 2, &p));
                LSI_TRY(finish(p.work, seed % 4 == 1 ? TESTING : WAITING));
                LSI_TRY(case_check(&p));
            }
    case_arena_close(&arena);
    return LS_OK;
}

static void results_are_exact_on_a_link(void **state) {
    (void)state;
    static const char *const progress[] = {"inline", "thread"};
    for (const int *n = rank_counts; *n; n++)
        for (int p = 0; p < 2; p++) {
            if (*n > 3 && (SANITIZED || p == 1)) continue;
            set("LOCKSTEP_PROGRESS", progress[p]);
            assert_ok(run_linked("latency_us=20,gb_per_s=4", (rank_mode)((*n + p) % 2), *n,
                                 every_kind_and_algorithm, NULL));
        }
}

/* ---- which groups have one ---- */

static ls_status has_link(ls_group *group, void *context) {
    bool wanted = *(bool *)context && group->n_ranks > 1;
    ls_group *part = NULL, *alone = NULL;
    RANK_CHECK(group->has_link == wanted, "the world has_link is %d", group->has_link);
    LSI_TRY(ls_group_split(group, 0, 0, &part));
    RANK_CHECK(part->has_link == wanted, "of a part it is %d", part->has_link);
    LSI_TRY(ls_group_split(group, group->rank, 0, &alone));
    RANK_CHECK(!alone->has_link, "a group of one rank has a link");
    ls_group_destroy(alone);
    ls_group_destroy(part);
    return LS_OK;
}

static void splits_inherit_it_and_one_rank_has_none(void **state) {
    (void)state;
    for (int linked = 0; linked < 2; linked++)
        for (int n = 1; n <= 3; n++) {
            bool wanted = linked;
            assert_ok(run_linked(wanted ? "latency_us=100" : NO_LINK, (rank_mode)(n % 2), n,
                                 has_link, &wanted));
        }
}

static ls_status measures_memory(ls_group *group, void *context) {
    (void)context;
    LSI_TRY(lsi_group_calibrate(group));
    RANK_CHECK(group->costs.one_shot.ns[0] < 50e6 && group->costs.message_ns < 50e6,
               "a call costs %g ns, a message %g", group->costs.one_shot.ns[0],
               group->costs.message_ns);
    RANK_CHECK(group->has_link, "the link is gone");
    return LS_OK;
}

static void calibration_is_not_held_back(void **state) {
    (void)state;
    assert_ok(run_linked("latency_us=50000", RANKS_AS_PROCESSES, 2, measures_memory, NULL));
}

/* ---- what goes wrong ---- */

typedef struct trouble {
    const char *name;
    bool by_message; /* the work that is on its way; else an all-reduce */
    bool batched;
    int signal;           /* rank 1 ends by it; */
    bool aborts, differs; /* aborts; makes another call; */
    int64_t timeout_ms;   /* -1; of the wait of all ranks */
    ls_status expected;   /* of rank 0's wait */
    const char *text;
} trouble;

static ls_status post_for(ls_group *group, const trouble *t, float *value, ls_work **work) {
    int64_t count = t->differs && group->rank == 1 ? 2 : 1;
    ls_work **own = t->batched ? NULL : work;
    ls_status status = LS_OK;
    if (t->batched) LSI_TRY(ls_batch_begin(group));
    if (!t->by_message)
        status = ls_all_reduce(group, value, value, count, LS_DTYPE_F32, LS_OP_SUM, 1, own);
    else if (group->rank == 1)
        status = ls_send(group, value, count, LS_DTYPE_F32, 0, own);
    else
        status = ls_recv(group, value, count, LS_DTYPE_F32, 1, own);
    return status == LS_OK && t->batched ? ls_batch_end(group, work) : status;
}

static ls_status meet_trouble(ls_group *group, void *context) {
    const trouble *t = context;
    float value[2] = {1, 1};
    ls_work *work = NULL;
    ls_status status = post_for(group, t, value, &work);
    if (group->rank == 1 && (t->aborts || t->signal)) {
        lsi_sleep_ms(30); /* the others wait meanwhile */
        if (t->signal) raise(t->signal);
        ls_group_abort(group, LS_ERR_ABORTED, "on purpose");
    }
    return status == LS_OK ? ls_work_wait(work, t->timeout_ms) : status;
}

static const trouble troubles[] = {
    {"abort", false, false, 0, true, false, -1, LS_ERR_ABORTED, "on purpose"},
    {"abort, message", true, false, 0, true, false, -1, LS_ERR_ABORTED, "on purpose"},
    {"abort, batch", true, true, 0, true, false, -1, LS_ERR_ABORTED, "on purpose"},
    {"death", false, false, SIGKILL, false, false, -1, LS_ERR_PEER, "rank 1"},
    {"death, message", true, false, SIGKILL, false, false, -1, LS_ERR_PEER, "rank 1"},
    {"other call", false, false, 0, false, true, -1, LS_ERR_MISMATCH, "count 2"},
    {"other message", true, false, 0, false, true, -1, LS_ERR_MISMATCH, "count 2"},
    {"deadline", false, false, 0, false, false, 20, LS_ERR_TIMEOUT, "LOCKSTEP_LINK"},
    {"deadline, message", true, false, 0, false, false, 20, LS_ERR_TIMEOUT, "LOCKSTEP_LINK"},
    {"deadline, batch", true, true, 0, false, false, 20, LS_ERR_TIMEOUT, "LOCKSTEP_LINK"},
    {"deadline, batch of calls", false, true, 0, false, false, 20, LS_ERR_TIMEOUT, "LOCKSTEP_LINK"},
};

static void errors_and_deadlines_are_not_held_back(void **state) {
    (void)state;
    static const char *const progress[] = {"inline", "thread"};
    for (size_t i = 0; i < COUNT_OF(troubles); i++)
        for (int p = 0; p < 2; p++) {
            trouble t = troubles[i];
            rank_result results[2];
            set("LOCKSTEP_LINK", STANDSTILL);
            set("LOCKSTEP_PROGRESS", progress[p]);
            run_rank_processes(2, meet_trouble, &t, results);
            if (results[0].status != (int)t.expected || !strstr(results[0].message, t.text))
                fail_msg("%s, %s: expected '%s', found status %d, %s", t.name, progress[p], t.text,
                         results[0].status, results[0].message);
        }
}

/* Rank 1 has done its part and leaves while its work is on its way to rank 0. */
static ls_status leave_early(ls_group *group, void *context) {
    float value[2] = {3, 3};
    ls_work *work = NULL;
    const trouble *t = context;
    LSI_TRY(post_for(group, t, value, &work));
    if (group->rank == 0) return ls_work_wait(work, -1);
    while (!t->by_message && atomic_load(&group->me->done) == 0) LSI_TRY(ls_group_progress(group));
    return LS_OK;
}

static void who_leaves_with_works_on_their_way_is_not_missed(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int mode = 0; mode < N_RANK_MODES; mode++) {
            trouble t = {.by_message = i % 2, .batched = i / 2};
            int64_t before = lsi_mem_n_blocks();
            assert_ok(run_linked("latency_us=40000", (rank_mode)mode, 2, leave_early, &t));
            assert_int_equal(lsi_mem_n_blocks(), before);
        }
}

/* Also with messages that are still in the channel behind the first one. */
static ls_status leave_messages(ls_group *group, void *context) {
    enum { MESSAGES = 3 };
    int number[MESSAGES] = {0, 1, 2};
    ls_work *work[MESSAGES];
    (void)context;
    for (int i = 0; i < MESSAGES; i++)
        if (group->rank == 0)
            LSI_TRY(ls_recv(group, &number[i], 1, LS_DTYPE_I32, 1, &work[i]));
        else
            LSI_TRY(ls_send(group, &number[i], 1, LS_DTYPE_I32, 0, &work[i]));
    if (group->rank == 1) return ls_work_wait(work[MESSAGES - 1], -1);
    while (!atomic_load(&group->ranks[1].left)) lsi_sleep_ms(1);
    for (int i = MESSAGES - 1; i >= 0; i--) LSI_TRY(ls_work_wait(work[i], -1));
    for (int i = 0; i < MESSAGES; i++) RANK_CHECK(number[i] == i, "message %d: %d", i, number[i]);
    return LS_OK;
}

static void messages_on_their_way_arrive_after_their_sender_left(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_linked("latency_us=20000", (rank_mode)mode, 2, leave_messages, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_read_as_they_say),
        cmocka_unit_test(wrong_texts_are_refused_by_the_part_that_is_wrong),
        cmocka_unit_test(groups_refuse_a_wrong_text),
        cmocka_unit_test(calls_cost_latency_and_the_bytes_of_the_best_algorithm),
        cmocka_unit_test_teardown(works_are_not_done_before_their_time, set_nothing),
        cmocka_unit_test(works_share_the_link_one_after_the_other),
        cmocka_unit_test(buffers_are_in_use_until_their_work_is_over),
        cmocka_unit_test_teardown(messages_are_not_done_before_their_time, set_nothing),
        cmocka_unit_test(messages_of_a_direction_follow_each_other),
        cmocka_unit_test_teardown(results_are_exact_on_a_link, set_nothing),
        cmocka_unit_test(splits_inherit_it_and_one_rank_has_none),
        cmocka_unit_test(calibration_is_not_held_back),
        cmocka_unit_test_teardown(errors_and_deadlines_are_not_held_back, set_nothing),
        cmocka_unit_test(who_leaves_with_works_on_their_way_is_not_missed),
        cmocka_unit_test(messages_on_their_way_arrive_after_their_sender_left),
    };
    return cmocka_run_group_tests(tests, set_nothing, set_nothing);
}
