/* The clock: it moves on, deadlines saturate, sleeps are at least as long as asked. */
#include <signal.h>
#include <string.h>
#include <sys/time.h>

#include "base/clock.h"
#include "harness/harness.h"

static void time_never_goes_back(void **state) {
    (void)state;
    int64_t last = lsi_now_ns();
    assert_true(last > 0);
    for (int i = 0; i < 10000; i++) {
        int64_t now = lsi_now_ns();
        assert_true(now >= last);
        last = now;
    }
}

static void deadline_is_now_plus_wait(void **state) {
    (void)state;
    static const int64_t waits_ms[] = {0, 1, 250, 86400000};
    for (size_t i = 0; i < sizeof waits_ms / sizeof waits_ms[0]; i++) {
        int64_t before = lsi_now_ns();
        int64_t deadline = lsi_deadline_ns(waits_ms[i]);
        assert_true(deadline >= before + waits_ms[i] * 1000000);
        assert_true(deadline <= lsi_now_ns() + waits_ms[i] * 1000000);
    }
}

static void deadline_without_end_is_never(void **state) {
    (void)state;
    static const int64_t waits_ms[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 1000000};
    for (size_t i = 0; i < sizeof waits_ms / sizeof waits_ms[0]; i++) {
        assert_true(lsi_deadline_ns(waits_ms[i]) == INT64_MAX);
    }
}

static void ignore_signal(int number) {
    (void)number;
}

static void sleep_is_not_cut_by_signals(void **state) {
    (void)state;
    struct sigaction action = {.sa_handler = ignore_signal};
    struct itimerval timer = {{0, 2000}, {0, 2000}}, off = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    int64_t before = lsi_now_ns();
    lsi_sleep_ms(30);
    int64_t slept = lsi_now_ns() - before;
    setitimer(ITIMER_REAL, &off, NULL);
    assert_true(slept >= 30 * 1000000);
    lsi_sleep_ms(0);
    lsi_sleep_ms(-5);
}

/* Ticks and clock count the same time; loose, since either may be read late. */
static void ticks_keep_up_with_the_clock(void **state) {
    (void)state;
    int64_t begin_ns = lsi_now_ns(), begin = lsi_ticks();
    lsi_sleep_ms(50);
    int64_t ticks = lsi_ticks() - begin, ns = lsi_now_ns() - begin_ns;
    assert_true(lsi_ticks_to_ns(ticks) > ns / 2 && lsi_ticks_to_ns(ticks) < 2 * ns);
    assert_int_equal(lsi_ticks_to_ns(0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_keep_up_with_the_clock),
        cmocka_unit_test(time_never_goes_back),
        cmocka_unit_test(deadline_is_now_plus_wait),
        cmocka_unit_test(deadline_without_end_is_never),
        cmocka_unit_test(sleep_is_not_cut_by_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
