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
    lsi_mem_fail_at(1);
    assert_fails(lsi_trace_start(), LS_ERR_MEMORY, "starting the trace");
    assert_false(lsi_trace_is_on());
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
        cmocka_unit_test_teardown(start_twice_is_refused_and_stop_twice_is_not, nothing_leaked),
        cmocka_unit_test_teardown(start_without_memory_leaves_trace_off, nothing_leaked),
        cmocka_unit_test_teardown(threads_lose_no_span, nothing_leaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
