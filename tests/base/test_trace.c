/* The trace: spans come out as events of a Chrome trace, the ring keeps the last ones. */
#include <pthread.h>
#include <string.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"
#include "harness/scratch.h"

static int nothing_leaked(void **state) {
    (void)state;
    lsi_trace_stop();
    lsi_mem_fail_at(0);
    return lsi_mem_n_blocks() == 0 ? 0 : -1;
}

/* The printed members as a JSON array. */
static json_t *printed(int rank) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    fputc('[', out);
    lsi_trace_print(out, rank);
    fputc(']', out);
    fclose(out);
    json_error_t error;
    json_t *events = json_loads(text, 0, &error);
    if (!events) fail_msg("%s at line %d of\n%s", error.text, error.line, text);
    free(text);
    return events;
}

/* Event number n that is a span (ph "X"), borrowed; NULL if there are fewer. */
static json_t *span_at(json_t *events, size_t n) {
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0 && n-- == 0) {
            return event;
        }
    }
    return NULL;
}

static void spans_are_not_kept_while_off(void **state) {
    (void)state;
    assert_false(lsi_trace_is_on());
    assert_int_equal(lsi_trace_begin(), 0);
    lsi_trace_end(0, LSI_TRACE_COMPUTE, "nothing", -1);
    lsi_trace_end(1, LSI_TRACE_COMPUTE, "nothing", -1);
    json_t *events = printed(0);
    assert_null(span_at(events, 0));
    json_decref(events);
}

static void span_shows_name_lane_rank_and_index(void **state) {
    (void)state;
    assert_ok(lsi_trace_start());
    int64_t begin = lsi_trace_begin();
    assert_true(begin > 0);
    lsi_sleep_ms(2);
    lsi_trace_end(begin, LSI_TRACE_COMM, "all-reduce \"7\"\n", 7);
    lsi_trace_end(lsi_trace_begin(), LSI_TRACE_IO, "save", -1);
    json_t *events = printed(3);
    json_t *span = span_at(events, 0);
    assert_string_equal(json_string_value(json_object_get(span, "name")), "all-reduce \"7\"\n");
    assert_int_equal(json_integer_value(json_object_get(span, "pid")), 3);
    assert_int_equal(json_integer_value(json_object_get(span, "tid")), LSI_TRACE_COMM);
    double ts = json_real_value(json_object_get(span, "ts"));
    assert_true(ts > (double)begin / 1000 - 1 && ts < (double)begin / 1000 + 1);
    assert_true(json_real_value(json_object_get(span, "dur")) >= 2000);
    json_t *args = json_object_get(span, "args");
    assert_int_equal(json_integer_value(json_object_get(args, "index")), 7);
    span = span_at(events, 1);
    assert_string_equal(json_string_value(json_object_get(span, "name")), "save");
    assert_null(json_object_get(span, "args"));
    assert_null(span_at(events, 2));
    json_decref(events);
}

static void ring_keeps_last_spans_in_order(void **state) {
    (void)state;
    enum { N_MORE = 5 };
    assert_ok(lsi_trace_start());
    for (int64_t i = 0; i < LSI_TRACE_SPANS + N_MORE; i++) {
        lsi_trace_end(lsi_trace_begin(), LSI_TRACE_COMPUTE, "op", i);
    }
    json_t *events = printed(0);
    size_t i;
    json_t *event;
    int64_t expected = N_MORE;
    json_array_foreach(events, i, event) {
        json_t *index = json_object_get(json_object_get(event, "args"), "index");
        if (index) assert_int_equal(json_integer_value(index), expected++);
    }
    assert_int_equal(expected, LSI_TRACE_SPANS + N_MORE);
    json_decref(events);
}

/* ---- lanes and rows ---- */

static int64_t integer_of(const json_t *event, const char *name) {
    return json_integer_value(json_object_get(event, name));
}

static double real_of(const json_t *event, const char *name) {
    return json_number_value(json_object_get(event, name));
}

/* What the metadata named `kind` says of a row; NULL: nothing. */
static const json_t *of_row(json_t *events, const char *kind, int64_t tid, const char *argument) {
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "name")), kind) == 0 &&
            integer_of(event, "tid") == tid)
            return json_object_get(json_object_get(event, "args"), argument);
    }
    return NULL;
}

enum { US = 1000 };

static void spans_with_a_known_end_are_printed_as_they_began(void **state) {
    (void)state;
    assert_ok(lsi_trace_start());
    /* Recorded as they end: what is inside before what encloses it. */
    lsi_trace_span(20 * US, 30 * US, LSI_TRACE_COMPUTE, "inner", 1);
    lsi_trace_span(10 * US, 30 * US, LSI_TRACE_COMPUTE, "outer", -1);
    lsi_trace_span(10 * US, 20 * US, LSI_TRACE_COMPUTE, "inner", 0);
    lsi_trace_span_bytes(5 * US + 1, 6 * US, LSI_TRACE_COMM, "call", -1, 4096);
    lsi_trace_span(40 * US, 39 * US, LSI_TRACE_IO, "backwards", -1); /* a span of nothing */
    lsi_trace_span(0, 39 * US, LSI_TRACE_IO, "begun before tracing", -1);
    static const struct {
        const char *name;
        double ts, dur;
        int index, bytes;
    } rows[] = {
        {"call", 5.001, 0.999, -1, 4096}, {"outer", 10, 20, -1, -1},    {"inner", 10, 10, 0, -1},
        {"inner", 20, 10, 1, -1},         {"backwards", 40, 0, -1, -1},
    };
    json_t *events = printed(0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *span = span_at(events, i), *args = json_object_get(span, "args");
        assert_string_equal(json_string_value(json_object_get(span, "name")), rows[i].name);
        assert_true(real_of(span, "ts") == rows[i].ts && real_of(span, "dur") == rows[i].dur);
        assert_int_equal(json_object_size(args), (rows[i].index >= 0) + (rows[i].bytes >= 0));
        if (rows[i].index >= 0) assert_int_equal(integer_of(args, "index"), rows[i].index);
        if (rows[i].bytes >= 0) assert_int_equal(integer_of(args, "bytes"), rows[i].bytes);
    }
    assert_null(span_at(events, sizeof rows / sizeof *rows));
    json_decref(events);
}

static void buckets_take_the_first_row_that_is_free(void **state) {
    (void)state;
    static const struct {
        int64_t begin_us, end_us;
        int row;
    } rows[] = {
        {10, 30, 0}, {15, 40, 1}, {20, 60, 2}, {30, 35, 0}, {35, 50, 0}, {45, 70, 1}, {46, 47, 3},
    };
    enum { N = sizeof rows / sizeof *rows };
    assert_ok(lsi_trace_start());
    for (int i = N - 1; i >= 0; i--)
        lsi_trace_span_bytes(rows[i].begin_us * US, rows[i].end_us * US, LSI_TRACE_BUCKET, "bucket",
                             i, 100 + i);
    json_t *events = printed(5);
    for (int i = 0; i < N; i++) {
        char name[32];
        json_t *span = span_at(events, (size_t)i);
        snprintf(name, sizeof name, "bucket %d", i);
        assert_string_equal(json_string_value(json_object_get(span, "name")), name);
        assert_int_equal(integer_of(span, "tid"), LSI_TRACE_BUCKET + rows[i].row);
        assert_int_equal(integer_of(json_object_get(span, "args"), "bytes"), 100 + i);
    }
    json_decref(events);
}

static void rows_of_buckets_stand_below_computation(void **state) {
    (void)state;
    assert_ok(lsi_trace_start());
    json_t *events = printed(0); /* no bucket, no row */
    assert_null(of_row(events, "thread_name", LSI_TRACE_BUCKET, "name"));
    json_decref(events);
    for (int i = 0; i < 3; i++) lsi_trace_span(10, 20, LSI_TRACE_BUCKET, "bucket", i);
    events = printed(0);
    int64_t above =
        json_integer_value(of_row(events, "thread_sort_index", LSI_TRACE_COMPUTE, "sort_index"));
    for (int row = 0; row < 3; row++) {
        int64_t tid = LSI_TRACE_BUCKET + row;
        assert_string_equal(json_string_value(of_row(events, "thread_name", tid, "name")),
                            "buckets in flight");
        int64_t place = json_integer_value(of_row(events, "thread_sort_index", tid, "sort_index"));
        assert_int_equal(place, ++above);
    }
    assert_true(json_integer_value(
                    of_row(events, "thread_sort_index", LSI_TRACE_COMM, "sort_index")) > above);
    json_decref(events);
}

/* Any two spans of a row follow each other, or, in the lanes that nest, one encloses the other; and
 * the file is in the order of time. */
static void spans_of_a_row_never_cross(void **state) {
    (void)state;
    enum { N = 700, MOST_AT_ONCE = 512 };
    assert_ok(lsi_trace_start());
    for (int i = 0; i < N; i++) {
        int64_t begin = 1000 + i * 7919 % N * 100;
        lsi_trace_span(begin, begin + 100, LSI_TRACE_COMPUTE, "backward", i);
        lsi_trace_span(begin, begin + 100 * (i % MOST_AT_ONCE), LSI_TRACE_BUCKET, "bucket", i);
    }
    json_t *events = printed(0), *event;
    static double free_at[LSI_TRACE_BUCKET + MOST_AT_ONCE];
    double last = 0;
    int n = 0;
    size_t i;
    memset(free_at, 0, sizeof free_at);
    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) continue;
        double ts = real_of(event, "ts");
        assert_in_range(integer_of(event, "tid"), 0, LSI_TRACE_BUCKET + MOST_AT_ONCE - 1);
        double *until = &free_at[integer_of(event, "tid")];
        assert_true(ts >= last && ts >= *until - 1e-6);
        *until = ts + real_of(event, "dur");
        last = ts;
        n++;
    }
    assert_int_equal(n, 2 * N);
    json_decref(events);
}

static void start_twice_is_refused_and_stop_twice_is_not(void **state) {
    (void)state;
    assert_ok(lsi_trace_start());
    lsi_trace_end(lsi_trace_begin(), LSI_TRACE_COMPUTE, "old", -1);
    assert_fails(lsi_trace_start(), LS_ERR_STATE, "on already");
    lsi_trace_stop();
    lsi_trace_stop();
    assert_ok(lsi_trace_start()); /* a new trace begins empty */
    json_t *events = printed(0);
    assert_null(span_at(events, 0));
    json_decref(events);
}

static void start_without_memory_leaves_trace_off(void **state) {
    (void)state;
    for (int n = 1; n <= 2; n++) {
        lsi_mem_fail_at(n);
        assert_fails(lsi_trace_start(), LS_ERR_MEMORY, "starting the trace");
        assert_false(lsi_trace_is_on());
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

enum { N_THREADS = 4, N_EACH = 2000 };

static void *record(void *context) {
    (void)context;
    for (int i = 0; i < N_EACH; i++) lsi_trace_end(lsi_trace_begin(), LSI_TRACE_COMM, "work", i);
    return NULL;
}

static void threads_lose_no_span(void **state) {
    (void)state;
    pthread_t threads[N_THREADS];
    assert_ok(lsi_trace_start());
    for (int i = 0; i < N_THREADS; i++) pthread_create(&threads[i], NULL, record, NULL);
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    json_t *events = printed(0);
    assert_non_null(span_at(events, N_THREADS * N_EACH - 1));
    assert_null(span_at(events, N_THREADS * N_EACH));
    json_decref(events);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(spans_are_not_kept_while_off, nothing_leaked),
        cmocka_unit_test_teardown(span_shows_name_lane_rank_and_index, nothing_leaked),
        cmocka_unit_test_teardown(ring_keeps_last_spans_in_order, nothing_leaked),
        cmocka_unit_test_teardown(spans_with_a_known_end_are_printed_as_they_began, nothing_leaked),
        cmocka_unit_test_teardown(buckets_take_the_first_row_that_is_free, nothing_leaked),
        cmocka_unit_test_teardown(rows_of_buckets_stand_below_computation, nothing_leaked),
        cmocka_unit_test_teardown(spans_of_a_row_never_cross, nothing_leaked),
        cmocka_unit_test_teardown(start_twice_is_refused_and_stop_twice_is_not, nothing_leaked),
        cmocka_unit_test_teardown(start_without_memory_leaves_trace_off, nothing_leaked),
        cmocka_unit_test_teardown(threads_lose_no_span, nothing_leaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
