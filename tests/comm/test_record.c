/* The recorder: what it says about calls that were made up in a region by hand, that its file
 * brings back the same, and that nothing in a file or a region can lead it astray. */
#include "harness/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "comm/record_look.h"
#include "harness/ranks.h"
#include "harness/scratch.h"

static const size_t HEAP_BYTES = (size_t)64 << 20;
static const lsi_record_opts SHOW_16 = {.last = 16, .group = -1};

/* ---- calls made up by hand ---- */

static lsi_region *make_region(int n_ranks) {
    lsi_region *region = NULL;
    assert_ok(lsi_region_create(n_ranks, HEAP_BYTES, &region));
    return region;
}

static lsi_call all_reduce_of(int64_t count) {
    return (lsi_call){.kind = LSI_CALL_ALL_REDUCE,
                      .dtype = LS_DTYPE_F32,
                      .op = LS_OP_SUM,
                      .root = -1,
                      .order_hash = 1,
                      .count = count,
                      .scale = 1};
}

static lsi_call barrier(void) {
    return (lsi_call){.kind = LSI_CALL_BARRIER, .root = -1, .scale = 1};
}

/* Writes a call as the rank itself would, without announcing it. */
static void put_call(lsi_rank_control *rank, uint64_t number, lsi_call call) {
    call.number = number;
    rank->records[(number - 1) % LSI_RECORDS] = call;
}

/* Calls 1 … posted, all-reduces of as many elements as their number says. */
static void put_calls(lsi_region *region, int rank, uint64_t posted, uint64_t published,
                      uint64_t done) {
    lsi_rank_control *control = &region->world->ranks[rank];
    uint64_t from = posted > LSI_RECORDS ? posted - LSI_RECORDS + 1 : 1;
    for (uint64_t number = from; number <= posted; number++)
        put_call(control, number, all_reduce_of((int64_t)number));
    atomic_store(&control->attached, 1);
    atomic_store(&control->published, published);
    atomic_store(&control->done, done);
}

/* ---- what is shown ---- */

static char shown[1 << 20];

static ls_status show(lsi_record_source *source, const lsi_record_opts *opts) {
    FILE *out = fmemopen(shown, sizeof shown, "w");
    assert_non_null(out);
    ls_status status = lsi_record_print(source, opts, out);
    fputc('\0', out);
    fclose(out);
    shown[sizeof shown - 1] = '\0';
    return status;
}

static const char *show_region(const lsi_region *region, const lsi_record_opts *opts) {
    lsi_record_source *source = NULL;
    assert_ok(lsi_record_open_region(region, &source));
    assert_ok(show(source, opts));
    lsi_record_close(source);
    return shown;
}

static json_t *json_of(const lsi_region *region, const lsi_record_opts *opts) {
    lsi_record_source *source = NULL;
    json_t *value = NULL;
    assert_ok(lsi_record_open_region(region, &source));
    assert_ok(lsi_record_to_json(source, opts, &value));
    lsi_record_close(source);
    return value;
}

static void assert_shows(const lsi_region *region, const char *text) {
    if (!strstr(show_region(region, &SHOW_16), text)) fail_msg("no '%s' in\n%s", text, shown);
}

/* The number of seconds behind a text that is shown; it may have grown since it was set. */
static void assert_shows_age(const char *before, double least_s, const char *behind) {
    const char *at = strstr(shown, before);
    if (!at) fail_msg("no '%s' in\n%s", before, shown);
    char *end = NULL;
    double age_s = strtod(at + strlen(before), &end);
    if (age_s < least_s || age_s > least_s + 600 || strncmp(end, behind, strlen(behind)) != 0)
        fail_msg("expected '%s%.1f%s' or somewhat more in\n%s", before, least_s, behind, shown);
}

/* ---- differences ---- */

typedef struct counters {
    uint64_t posted, published, done;
} counters;

typedef struct difference_case {
    counters rank[3];
    uint64_t odd_number; /* call that rank 2 makes a barrier of; 0: none */
    const char *kind;    /* NULL: alike */
    int64_t number;
    const char *sentence;
} difference_case;

static void check_difference(const difference_case *c) {
    lsi_region *region = make_region(3);
    for (int r = 0; r < 3; r++)
        put_calls(region, r, c->rank[r].posted, c->rank[r].published, c->rank[r].done);
    if (c->odd_number) put_call(&region->world->ranks[2], c->odd_number, barrier());
    assert_shows(region, c->sentence);
    json_t *json = json_of(region, &SHOW_16);
    json_t *group = json_array_get(json_object_get(json, "groups"), 0);
    json_t *difference = json_object_get(group, "difference");
    if (c->kind) {
        assert_string_equal(json_string_value(json_object_get(difference, "kind")), c->kind);
        assert_int_equal(json_integer_value(json_object_get(difference, "number")), c->number);
        assert_string_equal(json_string_value(json_object_get(difference, "text")), c->sentence);
        char mark[32];
        snprintf(mark, sizeof mark, "\n* #%-9lld", (long long)c->number);
        assert_shows(region, mark);
    } else {
        assert_true(json_is_null(difference));
        assert_null(strstr(show_region(region, &SHOW_16), "\n*"));
    }
    json_decref(json);
    lsi_region_close(region);
}

static void the_first_difference_is_told(void **state) {
    (void)state;
    static const difference_case cases[] = {
        {{{0}, {0}, {0}}, 0, NULL, 0, "no calls yet"},
        {{{9, 9, 9}, {9, 9, 9}, {9, 9, 9}},
         0,
         NULL,
         0,
         "no difference: all ranks have finished call #9 and those before it"},
        {{{9, 9, 8}, {9, 9, 8}, {8, 8, 8}},
         0,
         "not-joined",
         9,
         "call #9, all-reduce (sum, F32, count 9, scale 1, order 00000001): rank 2 has not joined; "
         "its last call is #8, all-reduce (sum, F32, count 8, scale 1, order 00000001), finished"},
        {{{1, 1, 0}, {0}, {0}},
         0,
         "not-joined",
         1,
         "call #1, all-reduce (sum, F32, count 1, scale 1, order 00000001): ranks 1 and 2 have not "
         "joined; of rank 1: it has made no call; of rank 2: it has made no call"},
        {{{9, 9, 8}, {9, 9, 8}, {9, 9, 9}},
         0,
         "not-finished",
         9,
         "call #9, all-reduce (sum, F32, count 9, scale 1, order 00000001): ranks 0 and 1 have not "
         "finished its part; of rank 0: its last call is #9, all-reduce (sum, F32, count 9, scale "
         "1, order 00000001), unfinished; of rank 1: its last call is #9, all-reduce (sum, F32, "
         "count 9, scale 1, order 00000001), unfinished"},
        {{{12, 12, 8}, {9, 9, 8}, {12, 8, 8}},
         0,
         "not-joined",
         9,
         "call #9, all-reduce (sum, F32, count 9, scale 1, order 00000001): rank 2 has not joined; "
         "its last call is #12, all-reduce (sum, F32, count 12, scale 1, order 00000001), not "
         "announced"},
        {{{9, 9, 8}, {9, 9, 8}, {9, 9, 8}},
         9,
         "calls-differ",
         9,
         "call #9: ranks 0 and 1 called all-reduce (sum, F32, count 9, scale 1, order 00000001); "
         "rank 2 called barrier"},
        /* ranks far ahead of a difference that is older than the rows asked for */
        {{{900, 900, 100}, {900, 900, 100}, {100, 100, 100}},
         0,
         "not-joined",
         101,
         "call #101, all-reduce (sum, F32, count 101, scale 1, order 00000001): rank 2 has not "
         "joined; its last call is #100, all-reduce (sum, F32, count 100, scale 1, order "
         "00000001), finished"},
        {{{900, 900, 100}, {900, 900, 100}, {900, 900, 100}},
         101,
         "calls-differ",
         101,
         "call #101: ranks 0 and 1 called all-reduce (sum, F32, count 101, scale 1, order "
         "00000001); rank 2 called barrier"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_difference(&cases[i]);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void rows_have_a_state_of_each_rank(void **state) {
    (void)state;
    lsi_region *region = make_region(4);
    put_calls(region, 0, 3, 3, 2);
    put_calls(region, 1, 3, 2, 2);
    put_calls(region, 2, 2, 2, 1);
    put_calls(region, 3, 3, 3, 3);
    assert_shows(region, "  #2        finished  finished  joined    finished  ");
    assert_shows(region, "* #3        joined    posted    -         finished  ");
    put_call(&region->world->ranks[3], 2, barrier());
    assert_shows(region, "* #2        finished Afinished Ajoined A  finished B");
    assert_shows(region, "            A: by rank 0, 1, 2: all-reduce (sum, F32, count 2,");
    assert_shows(region, "            B: by rank 3: barrier\n");
    lsi_region_close(region);

    region = make_region(LSI_MAX_RANKS); /* too many for words */
    for (int r = 0; r < LSI_MAX_RANKS; r++) put_calls(region, r, 2, 2, r == 63 ? 1 : 2);
    assert_shows(region, "* #2        =  =  =");
    assert_shows(region, "=  =  +    ");
    lsi_region_close(region);
}

static void rows_are_as_many_as_asked_for(void **state) {
    (void)state;
    lsi_region *region = make_region(2);
    for (int r = 0; r < 2; r++) put_calls(region, r, 100, 100, 100);
    for (int last = 1; last <= 128; last *= 2) {
        json_t *json = json_of(region, &(lsi_record_opts){.last = last, .group = 0});
        json_t *calls =
            json_object_get(json_array_get(json_object_get(json, "groups"), 0), "calls");
        size_t n = json_array_size(calls);
        assert_int_equal(n, last < 100 ? last : 100);
        json_t *newest = json_array_get(calls, n - 1);
        assert_int_equal(json_integer_value(json_object_get(newest, "number")), 100);
        json_decref(json);
    }
    lsi_record_source *source = NULL;
    assert_ok(lsi_record_open_region(region, &source));
    assert_fails(show(source, &(lsi_record_opts){.last = 0, .group = -1}), LS_ERR_ARGUMENT,
                 "last 0");
    assert_fails(show(source, &(lsi_record_opts){.last = LSI_RECORD_MAX_LAST + 1, .group = -1}),
                 LS_ERR_ARGUMENT, "1 to 3072");
    assert_fails(show(source, &(lsi_record_opts){.last = 1, .group = 5}), LS_ERR_NOT_FOUND,
                 "no group 5; alive are: 0");
    lsi_record_close(source);
    lsi_region_close(region);
}

/* More calls than records: only whole ones are shown, and they are the right ones. */
static void a_ring_that_went_round_shows_its_newest_calls(void **state) {
    (void)state;
    static const uint64_t counts[] = {LSI_RECORDS - 1, LSI_RECORDS, LSI_RECORDS + 1, 10007};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        lsi_region *region = make_region(2);
        for (int r = 0; r < 2; r++) put_calls(region, r, counts[i], counts[i], counts[i]);
        json_t *json = json_of(region, &(lsi_record_opts){.last = LSI_RECORD_MAX_LAST, .group = 0});
        json_t *calls =
            json_object_get(json_array_get(json_object_get(json, "groups"), 0), "calls");
        assert_int_equal(json_array_size(calls), LSI_RECORD_MAX_LAST);
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *row = json_array_get(calls, k);
            json_int_t number = json_integer_value(json_object_get(row, "number"));
            assert_int_equal(number, counts[i] - LSI_RECORD_MAX_LAST + 1 + k);
            for (size_t r = 0; r < 2; r++) {
                json_t *cell = json_array_get(json_object_get(row, "ranks"), r);
                json_t *call = json_object_get(cell, "call");
                assert_int_equal(json_integer_value(json_object_get(call, "count")), number);
            }
        }
        json_decref(json);
        lsi_region_close(region);
    }
}

static void messages_errors_steps_and_ages_are_shown(void **state) {
    (void)state;
    lsi_region *region = make_region(2);
    lsi_rank_control *rank = &region->world->ranks[1];
    put_calls(region, 0, 2, 2, 2);
    put_calls(region, 1, 1, 1, 1);
    rank->records[0].posted_ms = lsi_coarse_ms() - 12300;
    for (uint32_t number = 1; number <= LSI_MESSAGE_RECORDS + 10; number++)
        rank->messages[(number - 1) % LSI_MESSAGE_RECORDS] =
            (lsi_call){.number = number,
                       .kind = LSI_CALL_SEND,
                       .dtype = LS_DTYPE_I64,
                       .count = number,
                       .scale = 1,
                       .posted_ms = lsi_coarse_ms() - 2000};
    atomic_store(&rank->n_messages, LSI_MESSAGE_RECORDS + 10);
    atomic_store(&rank->pid, 4711);
    lsi_region_set_step(region, 1, 17);
    lsi_region_mark_left(region, 1);
    lsi_region_abort(region, LS_ERR_PEER, 1, "rank 1 is\nno more");
    assert_shows(region, "first error: LS_ERR_PEER, first seen by rank 1: rank 1 is?no more\n");
    assert_shows(region, "  rank 1, pid 4711, step 17: 1 calls, has left the group\n");
    assert_shows_age(", posted ", 12.3, " s ago, finished; it has left the group\n");
    assert_shows_age("    #266      ", 2, " s ago  send (I64, count 266, to rank 0)\n");
    assert_null(strstr(shown, "    #250 "));
    json_t *json = json_of(region, &(lsi_record_opts){.last = 3072, .group = -1});
    json_t *ranks = json_object_get(json_array_get(json_object_get(json, "groups"), 0), "ranks");
    json_t *messages = json_object_get(json_array_get(ranks, 1), "messages");
    assert_int_equal(json_array_size(messages), LSI_MESSAGE_RECORDS - 1);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(json, "error"), "status")),
        "LS_ERR_PEER");
    json_decref(json);
    lsi_region_close(region);
}

/* Members of a group have their numbers in the world, also as roots and peers. */
static void ranks_of_a_group_are_told_as_those_of_the_world(void **state) {
    (void)state;
    static const char *const texts[] = {
        "\n  rank 2 (0 in the group)",
        "\n  rank 0 (1 in the group)",
        "\n  call      rank 2    rank 0 ",
        "A: by rank 2: broadcast (F32, count 5, root 2)\n",
        "B: by rank 0: broadcast (F32, count 5, root 0)\n",
        "messages of rank 0\n",
        "  send (U8, count 0, to rank 2)\n",
        "  call #1: rank 2 called broadcast (F32, count 5, root 2); "
        "rank 0 called broadcast (F32, count 5, root 0)\n",
    };
    lsi_region *region = make_region(3);
    lsi_group_control *part = NULL;
    assert_ok(lsi_region_add_group(region, 2, &part));
    part->member[0] = 2;
    part->member[1] = 0;
    for (int r = 0; r < 2; r++) {
        lsi_call call = {
            .kind = LSI_CALL_BROADCAST, .dtype = LS_DTYPE_F32, .count = 5, .root = r, .scale = 1};
        put_call(&part->ranks[r], 1, call);
        atomic_store(&part->ranks[r].attached, 1);
        atomic_store(&part->ranks[r].published, 1);
    }
    part->ranks[1].messages[0] =
        (lsi_call){.number = 1, .kind = LSI_CALL_SEND, .dtype = LS_DTYPE_U8, .root = 0, .scale = 1};
    atomic_store(&part->ranks[1].n_messages, 1);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) assert_shows(region, texts[i]);
    put_call(&part->ranks[1], 1, barrier());
    atomic_store(&part->ranks[1].published, 0);
    part->ranks[1].records[0].number = 0;
    assert_shows(region, "rank 0 has not joined; it has made no call\n");
    lsi_region_close(region);
}

/* ---- real calls ---- */

static ls_status split_and_call(ls_group *group, void *context) {
    ls_group *part = NULL;
    float value = 1;
    (void)context;
    LSI_TRY(ls_group_split(group, ls_group_rank(group) % 2, 0, &part));
    LSI_TRY(ls_all_reduce(part, &value, &value, 1, LS_DTYPE_F32, LS_OP_MAX, 1, NULL));
    LSI_TRY(ls_barrier(group, NULL));
    if (ls_group_rank(group) == 0) {
        const char *text = show_region(lsi_group_region(group), &SHOW_16);
        RANK_CHECK(strstr(text, "\ngroup 0 (world), 3 ranks\n"), "%s", text);
        RANK_CHECK(strstr(text, ", 2 ranks\n  rank 0 (0 in the group)"), "%s", text);
        RANK_CHECK(strstr(text, "\n  rank 2 (1 in the group)"), "%s", text);
        RANK_CHECK(strstr(text, ", 1 rank\n  rank 1 (0 in the group)"), "%s", text);
        RANK_CHECK(strstr(text, "all-reduce (max, F32, count 1, "), "%s", text);
    }
    LSI_TRY(ls_barrier(group, NULL));
    ls_group_destroy(part);
    return LS_OK;
}

static void every_group_alive_is_shown(void **state) {
    (void)state;
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        assert_ok(run_ranks((rank_mode)mode, 3, split_and_call, NULL));
}

/* One thread calls, another looks: what it sees of call k is call k, whole. */
typedef struct watch {
    lsi_region *region;
    _Atomic int ends, n_looks;
    _Atomic ls_status status;
    char message[LSI_MESSAGE_BYTES];
} watch;

static int64_t count_of(uint64_t number) {
    return (int64_t)(number * 2654435761u % 1009);
}

static ls_status look_once(lsi_region *region) {
    lsi_record_source *source = NULL;
    lsi_record_group group;
    bool found = false;
    LSI_TRY(lsi_record_open_region(region, &source));
    ls_status status = lsi_record_take(source, 0, NULL, &group, &found);
    lsi_record_close(source);
    LSI_TRY(status);
    for (uint64_t k = group.oldest[0]; k <= group.newest && status == LS_OK; k++) {
        const lsi_call *call = lsi_record_call(&group, 0, k);
        lsi_call expected = all_reduce_of(count_of(k));
        if (!call || call->count != expected.count || call->kind != expected.kind ||
            call->dtype != expected.dtype || call->op != expected.op || call->scale != 1)
            status = lsi_fail(LS_ERR_STATE, "call %llu of %llu is not what was called",
                              (unsigned long long)k, (unsigned long long)group.newest);
    }
    lsi_record_drop(&group);
    return status;
}

static void *watch_calls(void *context) {
    watch *w = context;
    while (!w->ends && w->status == LS_OK) {
        w->status = look_once(w->region);
        w->n_looks++;
    }
    snprintf(w->message, sizeof w->message, "%s", ls_last_message());
    return NULL;
}

static void a_region_in_use_shows_whole_calls(void **state) {
    (void)state;
    enum { LEAST_LOOKS = 200 };
    static float values[1009];
    watch w = {.region = make_region(1)};
    pthread_t thread;
    ls_group *group = NULL;
    assert_ok(lsi_group_attach(w.region, 0, &group));
    assert_int_equal(pthread_create(&thread, NULL, watch_calls, &w), 0);
    for (uint64_t k = 1; w.status == LS_OK && (k < 4 * LSI_RECORDS || w.n_looks < LEAST_LOOKS); k++)
        assert_ok(
            ls_all_reduce(group, values, values, count_of(k), LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    w.ends = 1;
    pthread_join(thread, NULL);
    if (w.status != LS_OK) fail_msg("%s", w.message);
    ls_group_destroy(group);
    lsi_region_close(w.region);
}

/* ---- the file ---- */

/* A region with something of everything. */
static lsi_region *make_example(void) {
    lsi_region *region = make_region(3);
    lsi_group_control *part = NULL;
    put_calls(region, 0, 5000, 5000, 4999);
    put_calls(region, 1, 5000, 5000, 4999);
    put_calls(region, 2, 4999, 4999, 4999);
    assert_ok(lsi_region_add_group(region, 2, &part));
    part->member[0] = 2;
    part->member[1] = 0;
    put_call(&part->ranks[1], 1, barrier());
    atomic_store(&part->ranks[1].published, 1);
    region->world->ranks[0].messages[0] =
        (lsi_call){.number = 1, .kind = LSI_CALL_RECV, .dtype = LS_DTYPE_U8, .root = 2, .scale = 1};
    atomic_store(&region->world->ranks[0].n_messages, 1);
    lsi_region_abort(region, LS_ERR_TIMEOUT, 0, "rank 0 waited");
    return region;
}

static ls_status show_file(const char *path) {
    lsi_record_source *source = NULL;
    LSI_TRY(lsi_record_open_file(path, &source));
    ls_status status = show(source, &SHOW_16);
    json_t *value = NULL;
    if (status == LS_OK) status = lsi_record_to_json(source, &SHOW_16, &value);
    json_decref(value);
    lsi_record_close(source);
    return status;
}

/* Not by lsi_file_replace: a disk that is synced hundreds of times takes its time. */
static void put_bytes(const char *path, const char *data, size_t bytes) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void a_file_shows_what_the_region_showed(void **state) {
    const char *path = in_scratch(state, "example");
    lsi_region *region = make_example();
    char *expected = strdup(strchr(show_region(region, &SHOW_16), '\n'));
    assert_ok(lsi_record_dump(region, path));
    lsi_region_close(region);
    assert_ok(show_file(path));
    assert_string_equal(strchr(shown, '\n'), expected);
    assert_true(strstr(expected, "\ngroup 1, 2 ranks\n") && strstr(expected, "rank 0 waited"));
    free(expected);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void a_file_that_is_cut_short_is_refused(void **state) {
    const char *path = in_scratch(state, "whole");
    char *data = NULL;
    size_t bytes = 0;
    lsi_region *region = make_example();
    assert_ok(lsi_record_dump(region, path));
    lsi_region_close(region);
    assert_ok(lsi_file_read(path, 64 << 20, &data, &bytes));
    const char *cut = in_scratch(state, "cut");
    for (size_t n = 0; n < bytes; n += n < 300 ? 1 : 512) {
        put_bytes(cut, data, n);
        ls_status status = show_file(cut);
        if (status != LS_ERR_FORMAT || !strstr(ls_last_message(), "cut short"))
            fail_msg("%zu of %zu bytes: %s: %s", n, bytes, ls_status_name(status),
                     ls_last_message());
    }
    data = lsi_realloc(LSI_MEM_OTHER, data, bytes + 1);
    put_bytes(cut, data, bytes + 1);
    assert_fails(show_file(cut), LS_ERR_FORMAT, "damaged at byte");
    lsi_free(data);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* Any answer but a crash or a leak. Most words changed lie where sizes and places are. */
static void damaged_files_are_answered(void **state) {
    enum { ROUNDS = 400, HEAD_BYTES = 256 };
    const char *path = in_scratch(state, "good"), *bad = in_scratch(state, "bad");
    static const uint64_t words[] = {0,          1,
                                     64,         65,
                                     0x7fffffff, 0x80000000,
                                     0xffffffff, UINT64_C(1) << 55,
                                     INT64_MAX,  UINT64_MAX - 4096,
                                     UINT64_MAX};
    lsi_rng_stream rng = lsi_rng_open(1, LSI_RNG_TEST, 0, 0);
    uint64_t at = 0;
    char *data = NULL, *copy = malloc(1 << 20);
    size_t bytes = 0;
    lsi_region *region = make_example();
    assert_ok(lsi_record_dump(region, path));
    lsi_region_close(region);
    assert_ok(lsi_file_read(path, 1 << 20, &data, &bytes));
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(copy, data, bytes);
        for (int i = 0; i <= round % 8; i++) {
            size_t range = round % 2 ? HEAD_BYTES : bytes;
            size_t place = (size_t)lsi_rng_below(&rng, at++, range / 4 - 1) * 4;
            uint64_t word = words[lsi_rng_below(&rng, at++, sizeof words / sizeof words[0])];
            memcpy(copy + place, &word, round % 3 ? 4 : 8);
        }
        put_bytes(bad, copy, bytes);
        ls_status status = show_file(bad);
        if (status != LS_OK && status != LS_ERR_FORMAT)
            fail_msg("round %d: %s: %s", round, ls_status_name(status), ls_last_message());
        assert_int_equal(lsi_mem_n_blocks(), 1); /* data */
    }
    for (size_t i = 0; i < bytes; i++) copy[i] = (char)lsi_rng_u32(&rng, at++);
    put_bytes(bad, copy, bytes);
    assert_fails(show_file(bad), LS_ERR_FORMAT, "no file of the recorder");
    memcpy(copy, data, 64);
    put_bytes(bad, copy, bytes);
    assert_int_equal(show_file(bad), LS_ERR_FORMAT);
    lsi_free(data);
    free(copy);
}

/* Numbers that no run writes, one at a time; the rest stays readable where it can. */
static void impossible_numbers_in_a_region_are_answered(void **state) {
    const char *path = in_scratch(state, "odd");
    for (int which = 0; which < 13; which++) {
        lsi_region *region = make_example();
        lsi_group_row *row = &region->control->groups[1];
        lsi_group_control *part = (lsi_group_control *)(void *)(region->base + row->offset);
        lsi_rank_control *rank = &region->world->ranks[1];
        bool is_part = which < 7;
        switch (which) {
        case 0:
            row->offset = region->bytes - 64;
            ((lsi_group_control *)(void *)(region->base + row->offset))->n_ranks = 2;
            break;
        case 1: row->offset = UINT64_MAX - 63; break;
        case 2: row->offset += 1; break;
        case 3: part->n_ranks = 65; break;
        case 4: part->n_ranks = -1; break;
        case 5: part->member[1] = 3; break;
        case 6: part->member[1] = part->member[0]; break;
        case 7: atomic_store(&region->world->errors.first, UINT32_MAX); break;
        case 8: atomic_store(&rank->n_messages, UINT32_MAX); break;
        case 9: memset(rank->records, 0xff, sizeof rank->records); break;
        case 10:
            memset(region->world->errors.report, 'x', sizeof region->world->errors.report);
            break;
        case 11: atomic_store(&rank->done, UINT64_MAX); break;
        case 12: atomic_store(&rank->published, UINT64_C(1) << 54); break;
        }
        assert_shows(region, "group 0 (world), 3 ranks");
        if (is_part) assert_shows(region, "group in row 1 of the table");
        json_t *json = json_of(region, &SHOW_16);
        assert_int_equal(json_array_size(json_object_get(json, "damaged")), is_part);
        json_decref(json);
        assert_ok(lsi_record_dump(region, path));
        lsi_region_close(region);
        assert_ok(show_file(path));
    }
    lsi_region *region = make_example();
    lsi_record_source *source = NULL;
    atomic_store(&region->world->ranks[1].published, UINT64_MAX);
    assert_ok(lsi_record_open_region(region, &source));
    assert_fails(show(source, &SHOW_16), LS_ERR_FORMAT, "a number of calls is impossible");
    region->world->n_ranks = 2;
    assert_fails(show(source, &SHOW_16), LS_ERR_FORMAT, "ranks of the world is impossible");
    lsi_record_close(source);
    lsi_region_close(region);
}

static void files_of_other_kinds_are_refused(void **state) {
    lsi_region *region = make_example();
    put_text(in_scratch(state, "text"), "This is a text of more bytes than the head of a dump has, "
                                        "so that it is not its length that gives it away first.");
    assert_fails(show_file(in_scratch(state, "absent")), LS_ERR_NOT_FOUND, "absent");
    assert_fails(show_file(in_scratch(state, "text")), LS_ERR_FORMAT, "no file of the recorder");
    assert_fails(show_file(*state), LS_ERR_FORMAT, "no plain file");
    assert_int_equal(mkfifo(in_scratch(state, "pipe"), 0600), 0);
    assert_fails(show_file(in_scratch(state, "pipe")), LS_ERR_FORMAT, "no plain file");
    assert_fails(lsi_record_dump(region, in_scratch(state, "no/such/folder")), LS_ERR_NOT_FOUND,
                 "no/such/folder");
    assert_fails(lsi_record_dump(region, "/dev/null/x"), LS_ERR_IO, "/dev/null/x");
    /* another build: the size of something is different */
    char *data = NULL;
    size_t bytes = 0;
    const char *path = in_scratch(state, "other");
    assert_ok(lsi_record_dump(region, path));
    assert_ok(lsi_file_read(path, 1 << 20, &data, &bytes));
    data[16]++;
    put_bytes(path, data, bytes);
    assert_fails(show_file(path), LS_ERR_FORMAT, "another build of Lockstep");
    lsi_free(data);
    lsi_region_close(region);
}

static void memory_that_runs_out_is_answered(void **state) {
    const char *path = in_scratch(state, "scarce");
    lsi_region *region = make_example();
    int64_t before = lsi_mem_n_blocks();
    for (int n = 1, failed = 1; failed; n++) {
        lsi_mem_fail_at(n);
        ls_status status = lsi_record_dump(region, path);
        if (status == LS_OK) status = show_file(path);
        failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), before);
    }
    lsi_region_close(region);
}

/* ---- processes ---- */

static ls_status show_process(pid_t pid) {
    lsi_record_source *source = NULL;
    LSI_TRY(lsi_record_open_process(pid, &source));
    ls_status status = show(source, &SHOW_16);
    lsi_record_close(source);
    return status;
}

static int look_as_nobody(void *context) {
    (void)context;
    if (setgid(65534) != 0 || setuid(65534) != 0) return 100;
    lsi_record_source *source = NULL;
    return (int)lsi_record_open_process(getppid(), &source);
}

static void a_process_is_found_or_refused(void **state) {
    (void)state;
    assert_fails(show_process(getpid()), LS_ERR_NOT_FOUND, "no shared region of Lockstep");
    lsi_region *region = make_example();
    assert_ok(show_process(getpid()));
    assert_non_null(strstr(shown, "rank 0 waited"));
    if (geteuid() == 0) assert_int_equal(run_in_child(look_as_nobody, NULL), LS_ERR_SYSTEM);
    lsi_region_close(region);
    pid_t child = fork();
    if (child == 0) _exit(0);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_fails(show_process(child), LS_ERR_NOT_FOUND, "there is no process");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_difference_is_told),
        cmocka_unit_test(rows_have_a_state_of_each_rank),
        cmocka_unit_test(rows_are_as_many_as_asked_for),
        cmocka_unit_test(a_ring_that_went_round_shows_its_newest_calls),
        cmocka_unit_test(messages_errors_steps_and_ages_are_shown),
        cmocka_unit_test(ranks_of_a_group_are_told_as_those_of_the_world),
        cmocka_unit_test(every_group_alive_is_shown),
        cmocka_unit_test(a_region_in_use_shows_whole_calls),
        cmocka_unit_test(a_file_shows_what_the_region_showed),
        cmocka_unit_test(a_file_that_is_cut_short_is_refused),
        cmocka_unit_test(damaged_files_are_answered),
        cmocka_unit_test(impossible_numbers_in_a_region_are_answered),
        cmocka_unit_test(files_of_other_kinds_are_refused),
        cmocka_unit_test(memory_that_runs_out_is_answered),
        cmocka_unit_test(a_process_is_found_or_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
