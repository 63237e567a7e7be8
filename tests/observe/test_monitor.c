/* The monitor on numbers whose answer is known: means, waiting, slow ranks (with and without
 * noise), advice, reports. */
#include "observe/monitor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

enum { MOST_RANKS = 64 };

static const int RANKS[] = {1, 2, 3, 4, 5, 7, 8, 64};
enum { N_SIZES = sizeof RANKS / sizeof *RANKS };

static lsi_monitor *open_monitor_of(int n_ranks, lsi_traffic traffic) {
    lsi_monitor *monitor;
    assert_ok(lsi_monitor_create(n_ranks, traffic, &monitor));
    return monitor;
}

static lsi_monitor *open_monitor(int n_ranks) {
    return open_monitor_of(n_ranks, LSI_TRAFFIC_DDP);
}

static void close_monitor(lsi_monitor *monitor) {
    lsi_monitor_destroy(monitor);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static lsi_monitor_summary summary_of(const lsi_monitor *monitor) {
    lsi_monitor_summary summary;
    lsi_monitor_get(monitor, &summary);
    return summary;
}

static lsi_rank_summary rank_of(const lsi_monitor *monitor, int rank) {
    lsi_rank_summary summary;
    lsi_monitor_get_rank(monitor, rank, &summary);
    return summary;
}

/* A step in which rank r computes for compute_ms[r]; the others wait for the slowest. */
static void feed(lsi_monitor *monitor, const double *compute_ms) {
    int n_ranks = lsi_monitor_n_ranks(monitor);
    lsi_rank_times ranks[MOST_RANKS];
    double most = 0;
    for (int r = 0; r < n_ranks; r++) most = fmax(most, compute_ms[r]);
    for (int r = 0; r < n_ranks; r++)
        ranks[r] =
            (lsi_rank_times){.compute_ms = compute_ms[r], .exposed_ms = most - compute_ms[r]};
    lsi_step_record record = {.step_ms = most, .comm_exposed_ms = ranks[0].exposed_ms};
    lsi_monitor_step(monitor, &record, ranks);
    assert_true(record.wait_ms == ranks[0].exposed_ms);
}

static void assert_slow(const lsi_monitor *monitor, uint64_t expected) {
    int n_expected = 0;
    for (int r = 0; r < lsi_monitor_n_ranks(monitor); r++) {
        int is_expected = (int)(expected >> r & 1);
        if (rank_of(monitor, r).is_slow != is_expected)
            fail_msg("rank %d of %d: expected slow = %d", r, lsi_monitor_n_ranks(monitor),
                     is_expected);
        n_expected += is_expected;
    }
    assert_int_equal(summary_of(monitor).n_slow, n_expected);
}

/* ---- means ---- */

static const lsi_step_record STEP = {.step_ms = 100,
                                     .forward_ms = 20,
                                     .backward_ms = 40,
                                     .optimizer_ms = 5,
                                     .comm_ms = 45,
                                     .comm_exposed_ms = 30};

static void means_leave_out_the_first_step(void **state) {
    (void)state;
    lsi_monitor *monitor = open_monitor(2);
    for (int i = 0; i < 4; i++) {
        double factor = i == 0 ? 1000 : i; /* 1 2 3: 2 in the mean */
        lsi_step_record record = {.step_ms = 100 * factor,
                                  .forward_ms = 20 * factor,
                                  .backward_ms = 40 * factor,
                                  .optimizer_ms = 5 * factor,
                                  .comm_ms = 45 * factor,
                                  .comm_exposed_ms = 30 * factor,
                                  .n_skipped = i};
        const lsi_rank_times ranks[] = {{60 * factor, 30 * factor, 5 * factor},
                                        {72 * factor, 18 * factor, 5 * factor}};
        lsi_monitor_step(monitor, &record, ranks);
        assert_true(record.wait_ms == 12 * factor);
    }
    lsi_monitor_summary s = summary_of(monitor);
    assert_int_equal(s.n_steps, 3);
    assert_int_equal(s.n_skipped, 3);
    assert_true(s.step_ms == 200 && s.forward_ms == 40 && s.backward_ms == 80);
    assert_true(s.optimizer_ms == 10 && s.comm_ms == 90 && s.comm_exposed_ms == 60);
    assert_true(s.wait_ms == 24 && s.other_ms == 10);
    assert_true(s.comm_share == 0.24);      /* (30 + 18) / 2 of 100 */
    assert_true(s.wait_share == 12.0 / 48); /* rank 0's 12, rank 1's 0 */
    lsi_rank_summary rank = rank_of(monitor, 1);
    assert_true(rank.compute_ms == 144 && rank.exposed_ms == 36 && rank.optimizer_ms == 10);
    assert_true(rank.wait_ms == 0 && rank_of(monitor, 0).wait_ms == 24);
    assert_true(rank.work_ratio == 77.0 / 65);
    close_monitor(monitor);
}

static void run_of_one_step_is_reported(void **state) {
    (void)state;
    lsi_monitor *monitor = open_monitor(1);
    lsi_step_record record = STEP;
    const lsi_rank_times rank = {60, 0, 0};
    assert_int_equal(summary_of(monitor).n_steps, 0);
    assert_true(summary_of(monitor).step_ms == 0 && rank_of(monitor, 0).work_ratio == 1);
    lsi_monitor_step(monitor, &record, &rank);
    assert_int_equal(summary_of(monitor).n_steps, 1);
    assert_true(summary_of(monitor).step_ms == 100);
    close_monitor(monitor);
}

static void waiting_is_the_lack_of_work(void **state) {
    (void)state;
    static const struct {
        lsi_rank_times ranks[3];
        double wait_ms[3];
    } rows[] = {
        {{{100, 5, 0}, {100, 5, 0}, {100, 5, 0}}, {0, 0, 0}},
        {{{100, 55, 0}, {150, 5, 0}, {120, 35, 0}}, {50, 0, 30}},
        {{{100, 40, 50}, {110, 30, 0}, {150, 0, 0}}, {0, 30, 0}},    /* at most what is exposed */
        {{{100, 90, 5}, {100, 80, 25}, {100, 70, 10}}, {20, 0, 15}}, /* the optimizer is work */
        {{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, {0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int r = 0; r < 3; r++)
            assert_true(lsi_wait_ms(rows[i].ranks, 3, r) == rows[i].wait_ms[r]);
}

static void memory_does_not_grow_with_steps(void **state) {
    (void)state;
    double compute_ms[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    lsi_monitor *monitor = open_monitor(8);
    int64_t bytes = lsi_mem_heap_bytes();
    for (int i = 0; i < 1000; i++) feed(monitor, compute_ms);
    assert_int_equal(lsi_mem_heap_bytes(), bytes);
    close_monitor(monitor);
}

/* ---- slow ranks ---- */

static void slow_rank_is_named_after_nine_steps(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES; i++) {
        int n_ranks = RANKS[i];
        for (int slow = 0; slow < n_ranks && n_ranks > 1; slow += n_ranks > 8 ? 21 : 1) {
            lsi_monitor *monitor = open_monitor(n_ranks);
            double compute_ms[MOST_RANKS];
            char expected[128];
            for (int r = 0; r < n_ranks; r++) compute_ms[r] = r == slow ? 125 : 100;
            for (int step = 0; step < 9; step++) {
                feed(monitor, compute_ms);
                assert_null(lsi_monitor_note(monitor));
            }
            feed(monitor, compute_ms); /* the ninth that counts */
            snprintf(expected, sizeof expected,
                     "rank %d is slow: its work takes 1.25 times as long as the median rank's",
                     slow);
            assert_non_null(lsi_monitor_note(monitor));
            assert_string_equal(lsi_monitor_note(monitor), expected);
            assert_slow(monitor, (uint64_t)1 << slow);
            assert_int_equal(summary_of(monitor).slowest, slow);
            feed(monitor, compute_ms); /* known already */
            assert_null(lsi_monitor_note(monitor));
            close_monitor(monitor);
        }
    }
}

static void rank_that_recovers_is_cleared(void **state) {
    (void)state;
    double slow_ms[] = {100, 200, 100, 100}, even_ms[] = {100, 100, 100, 100};
    lsi_monitor *monitor = open_monitor(4);
    for (int i = 0; i < 200; i++) feed(monitor, slow_ms);
    assert_slow(monitor, 2);
    for (int i = 0; i < LSI_MONITOR_WINDOW / 2; i++) {
        feed(monitor, even_ms);
        assert_null(lsi_monitor_note(monitor));
    }
    assert_slow(monitor, 2); /* late in just half of the window */
    feed(monitor, even_ms);
    assert_string_equal(lsi_monitor_note(monitor), "rank 1 is no longer slow");
    assert_slow(monitor, 0);
    close_monitor(monitor);
}

static void ranks_are_judged_against_the_median_rank(void **state) {
    (void)state;
    static const struct {
        int n_ranks;
        double compute_ms[8];
        uint64_t slow;
        int slowest;
    } rows[] = {
        {1, {100}, 0, -1},
        {2, {100, 100}, 0, -1},
        {2, {100, 110}, 0, -1}, /* 1.10 is not over 1.10 */
        {2, {112, 100}, 1, 0},
        {3, {100, 100, 130}, 4, 2},
        {3, {50, 100, 100}, 0, -1}, /* one fast rank makes no slow ones */
        {4, {100, 120, 100, 150}, 10, 3},
        {5, {150, 120, 100, 100, 100}, 3, 0},
        {5, {150, 150, 150, 100, 100}, 0, -1}, /* most are as slow: that is the usual speed */
        {8, {100, 101, 102, 103, 104, 105, 106, 107}, 0, -1},
        {8, {100, 101, 102, 103, 104, 105, 106, 114}, 128, 7},
        {4, {0, 0, 0, 0}, 0, -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lsi_monitor *monitor = open_monitor(rows[i].n_ranks);
        for (int step = 0; step < 100; step++) feed(monitor, rows[i].compute_ms);
        assert_slow(monitor, rows[i].slow);
        assert_int_equal(summary_of(monitor).slowest, rows[i].slowest);
        close_monitor(monitor);
    }
}

static void slow_optimizer_is_slow_work(void **state) {
    (void)state;
    const lsi_rank_times ranks[] = {{100, 30, 10}, {100, 30, 10}, {100, 0, 40}};
    lsi_monitor *monitor = open_monitor(3);
    for (int i = 0; i < 20; i++) {
        lsi_step_record record = STEP;
        lsi_monitor_step(monitor, &record, ranks);
    }
    assert_slow(monitor, 4);
    assert_true(rank_of(monitor, 2).work_ratio == 140.0 / 110);
    close_monitor(monitor);
}

/* Steps of very different length, as sequences or evaluations make them. */
static void steps_of_any_length_are_compared(void **state) {
    (void)state;
    lsi_monitor *monitor = open_monitor(4);
    for (int step = 0; step < 100; step++) {
        double compute_ms[4], length = 10 + step * 37 % 100;
        for (int r = 0; r < 4; r++) compute_ms[r] = length * (r == 2 ? 1.2 : 1);
        feed(monitor, compute_ms);
    }
    assert_slow(monitor, 4);
    close_monitor(monitor);
}

/* Of 64 steps 44 are enough and 43 are not, wherever in the window they are. */
static void late_steps_must_be_most_steps(void **state) {
    (void)state;
    for (int n_late = 43; n_late <= 44; n_late++) {
        lsi_monitor *monitor = open_monitor(3);
        for (int step = 0; step < 20 * LSI_MONITOR_WINDOW; step++) {
            /* Evenly spread: no shorter stretch at the start has more of them. */
            int at = step % LSI_MONITOR_WINDOW;
            int is_late = (at + 1) * n_late / LSI_MONITOR_WINDOW - at * n_late / LSI_MONITOR_WINDOW;
            double compute_ms[] = {100, is_late ? 130 : 100, 100};
            feed(monitor, compute_ms);
        }
        assert_slow(monitor, n_late == 44 ? 2 : 0);
        close_monitor(monitor);
    }
}

/* A rank that saves or prints now and then. */
static void rare_long_steps_make_no_slow_rank(void **state) {
    (void)state;
    lsi_monitor *monitor = open_monitor(4);
    for (int step = 0; step < 200; step++) {
        double compute_ms[] = {step % 3 ? 100 : 1000, 100, 100, 100};
        feed(monitor, compute_ms);
        assert_null(lsi_monitor_note(monitor));
    }
    assert_slow(monitor, 0);
    close_monitor(monitor);
}

/* Uniform in [0, 1), the same everywhere. */
static double next_uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53;
}

/* About normal, of mean 0 and deviation 1. */
static double next_normal(uint64_t *seed) {
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += next_uniform(seed);
    return sum;
}

/* Ranks of the same speed but `slow` (-1: none), which takes `ratio` times as long; every step has
 * noise of this deviation and, in one of 16, a hiccup that doubles it. */
static lsi_monitor *run_with_noise(int n_ranks, int slow, double ratio, double deviation,
                                   uint64_t seed, int *n_notes) {
    lsi_monitor *monitor = open_monitor(n_ranks);
    for (int step = 0; step < 300; step++) {
        double compute_ms[MOST_RANKS];
        for (int r = 0; r < n_ranks; r++) {
            compute_ms[r] = 100 * fmax(0.1, 1 + deviation * next_normal(&seed));
            if (r == slow) compute_ms[r] *= ratio;
            if (next_uniform(&seed) < 1.0 / 16) compute_ms[r] *= 2;
        }
        feed(monitor, compute_ms);
        *n_notes += lsi_monitor_note(monitor) != NULL;
    }
    return monitor;
}

static void noise_makes_no_slow_rank(void **state) {
    (void)state;
    static const double deviations[] = {0.02, 0.1, 0.2};
    for (int i = 0; i < N_SIZES; i++)
        for (int d = 0; d < 3; d++)
            for (uint64_t seed = 1; seed <= 5; seed++) {
                int n_notes = 0;
                close_monitor(run_with_noise(RANKS[i], -1, 1, deviations[d], seed, &n_notes));
                if (n_notes)
                    fail_msg("%d ranks, deviation %g, seed %d: %d notes", RANKS[i], deviations[d],
                             (int)seed, n_notes);
            }
}

static void noise_does_not_hide_a_slow_rank(void **state) {
    (void)state;
    static const struct {
        double ratio, deviation;
    } rows[] = {{1.2, 0.02}, {1.3, 0.05}, {1.5, 0.1}};
    for (int i = 0; i < N_SIZES; i++)
        for (int row = 0; row < 3 && RANKS[i] > 1; row++)
            for (uint64_t seed = 1; seed <= 5; seed++) {
                int n_notes = 0, slow = (int)seed * 13 % RANKS[i];
                lsi_monitor *monitor = run_with_noise(RANKS[i], slow, rows[row].ratio,
                                                      rows[row].deviation, seed, &n_notes);
                assert_slow(monitor, (uint64_t)1 << slow);
                assert_int_equal(n_notes, 1);
                close_monitor(monitor);
            }
}

static void notes_of_all_ranks_at_once_fit(void **state) {
    (void)state;
    double compute_ms[MOST_RANKS];
    for (int r = 0; r < MOST_RANKS; r++) compute_ms[r] = r % 2 ? 200 : 100;
    lsi_monitor *monitor = open_monitor(MOST_RANKS);
    for (int i = 0; i < 10; i++) feed(monitor, compute_ms);
    assert_memory_equal(lsi_monitor_note(monitor), "rank 1 is slow", 14);
    assert_non_null(strstr(lsi_monitor_note(monitor), "; rank 3 is slow"));
    assert_slow(monitor, 0xaaaaaaaaaaaaaaaa);
    close_monitor(monitor);
}

/* ---- advice ---- */

/* Steps of 100 ms of two ranks: what computes, what is exposed; late: 0 or 1 is later by late_ms,
 * 2 each in turn. */
static void feed_run(lsi_monitor *monitor, double exposed_ms, int late, double late_ms) {
    for (int i = 0; i < 41; i++) {
        int last = late == 2 ? i % 2 : late;
        lsi_rank_times ranks[2];
        for (int r = 0; r < 2; r++) {
            double more = r == last ? late_ms : 0;
            ranks[r] = (lsi_rank_times){.compute_ms = 40 + more, .exposed_ms = exposed_ms - more};
        }
        lsi_step_record record = {.step_ms = 100};
        lsi_monitor_step(monitor, &record, ranks);
    }
}

static lsi_monitor *run_of(int n_ranks, double exposed_ms, int late, double late_ms) {
    lsi_monitor *monitor = open_monitor(n_ranks);
    feed_run(monitor, exposed_ms, late, late_ms);
    return monitor;
}

static void share_and_its_cause_give_the_advice(void **state) {
    (void)state;
    static const struct {
        int n_ranks;
        double exposed_ms;
        int late;
        double late_ms;
        lsi_verdict verdict;
        const char *text;
    } rows[] = {
        {1, 0, 0, 0, LSI_VERDICT_ALONE, "none: there is one rank"},
        {2, 0, 0, 0, LSI_VERDICT_HEALTHY,
         "0.0 % of a step is exposed communication: healthy (under 30 %)"},
        {2, 29.5, 0, 0, LSI_VERDICT_HEALTHY, "29.5 % of a step is exposed communication: healthy"},
        {2, 30, 0, 0, LSI_VERDICT_LOOK,
         "30.0 % of a step is exposed communication: worth a look (30 to 50 %)"},
        {2, 50, 0, 0, LSI_VERDICT_LOOK, "a larger batch or accumulation"},
        {2, 50.5, 0, 0, LSI_VERDICT_BOUND,
         "50.5 % of a step is exposed communication: communication-bound (above 50 %); a larger"},
        /* Rank 1 is late by 42: 60 and 18 are exposed, 39 in the mean, 42 of 78 waiting. */
        {2, 60, 1, 42, LSI_VERDICT_SLOW_RANK,
         "39.0 % of a step is exposed communication: mostly waiting for "
         "rank 1, which is slow; faster links would not help"},
        {2, 60, 0, 42, LSI_VERDICT_SLOW_RANK, "waiting for rank 0"},
        /* 30 of 90: slow, but not the cause. */
        {2, 60, 1, 30, LSI_VERDICT_LOOK, "worth a look"},
        {2, 60, 2, 42, LSI_VERDICT_UNEVEN, "another one each time; faster links would not help"},
        /* Little is exposed: nothing to say even if someone is slow. */
        {2, 20, 1, 20, LSI_VERDICT_HEALTHY, "10.0 % of a step is exposed communication: healthy"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lsi_monitor *monitor =
            run_of(rows[i].n_ranks, rows[i].exposed_ms, rows[i].late, rows[i].late_ms);
        char text[LSI_ADVICE_BYTES];
        assert_ptr_equal(lsi_monitor_advice(monitor, text, sizeof text), text);
        if (!strstr(text, rows[i].text)) fail_msg("row %d: %s", (int)i, text);
        assert_true(strlen(text) < sizeof text - 1);
        assert_int_equal(summary_of(monitor).verdict, rows[i].verdict);
        close_monitor(monitor);
    }
}

/* Nobody is told to do what is done already, or what would send as much. */
static void advice_is_for_what_the_run_exchanges(void **state) {
    (void)state;
#define STEP_IS_LONGER "a larger batch or accumulation computes more for the same bytes"
#define MICRO_BATCH_IS_LARGER                                                                      \
    "larger micro-batches compute more for the same bytes; accumulation does not, each "           \
    "micro-batch is exchanged"
    static const struct {
        lsi_traffic traffic;
        const char *more, *less;
    } rows[] = {
        {LSI_TRAFFIC_DDP, STEP_IS_LONGER, "--strategy zero1, a --comm-hook"},
        {LSI_TRAFFIC_ZERO1, STEP_IS_LONGER, "--reduce-dtype bf16"},
        {LSI_TRAFFIC_ZERO2, MICRO_BATCH_IS_LARGER, "--strategy zero1, --reduce-dtype bf16"},
        {LSI_TRAFFIC_ZERO3, MICRO_BATCH_IS_LARGER,
         "--reshard no, --strategy hybrid, --replicas shared"},
        {LSI_TRAFFIC_ZERO3_KEPT, MICRO_BATCH_IS_LARGER, "--strategy hybrid, --replicas shared"},
        {LSI_TRAFFIC_HYBRID, MICRO_BATCH_IS_LARGER, "--reshard no, --replicas shared"},
        {LSI_TRAFFIC_HYBRID_KEPT, MICRO_BATCH_IS_LARGER, "--replicas shared"},
    };
    assert_int_equal(sizeof rows / sizeof *rows, LSI_N_TRAFFICS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int is_bound = 0; is_bound < 2; is_bound++) {
            char text[LSI_ADVICE_BYTES], expected[512];
            lsi_monitor *monitor = open_monitor_of(2, rows[i].traffic);
            feed_run(monitor, is_bound ? 100 : 40, 0, 0);
            if (is_bound)
                snprintf(expected, sizeof expected,
                         "100.0 %% of a step is exposed communication: communication-bound (above "
                         "50 %%); %s; what sends less: %s; or faster links",
                         rows[i].more, rows[i].less);
            else
                snprintf(expected, sizeof expected,
                         "40.0 %% of a step is exposed communication: worth a look (30 to 50 %%); "
                         "%s",
                         rows[i].more);
            assert_string_equal(lsi_monitor_advice(monitor, text, sizeof text), expected);
            close_monitor(monitor);
        }
}

static void advice_never_overruns(void **state) {
    (void)state;
    lsi_monitor *monitor = run_of(2, 60, 1, 42);
    for (size_t n = 1; n < 128; n++) {
        char text[128];
        memset(text, '#', sizeof text);
        lsi_monitor_advice(monitor, text, n);
        assert_int_equal(strlen(text), n - 1);
        for (size_t i = n; i < sizeof text; i++) assert_int_equal(text[i], '#');
    }
    close_monitor(monitor);
}

/* ---- reports ---- */

/* Rank 3 of 4 computes 20 ms more than the others in steps of 100 ms. */
static lsi_monitor *example(int64_t n_skipped) {
    static const lsi_rank_times ranks[] = {{60, 30, 2}, {60, 30, 2}, {60, 30, 2}, {80, 10, 2}};
    lsi_monitor *monitor = open_monitor(4);
    for (int i = 0; i < 60; i++) {
        lsi_step_record record = STEP;
        record.n_skipped = n_skipped;
        lsi_monitor_step(monitor, &record, ranks);
    }
    return monitor;
}

static char *print_to_text(const lsi_monitor *monitor) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    lsi_monitor_print(monitor, out);
    fclose(out);
    return text;
}

static void report_is_as_documented(void **state) {
    (void)state;
    lsi_monitor *monitor = example(2);
    char *text = print_to_text(monitor);
    assert_string_equal(
        text, "a step of rank 0                ms     share\n"
              "forward                       20.0    20.0 %\n"
              "backward                      40.0    40.0 %\n"
              "optimizer                      5.0     5.0 %\n"
              "communication, exposed        30.0    30.0 %\n"
              "  waiting for ranks           20.0    20.0 %\n"
              "other                          5.0     5.0 %\n"
              "step                         100.0   100.0 %   (mean of 59 steps)\n"
              "communication, hidden         15.0    15.0 %   (while computing)\n"
              "advice           25.0 % of a step is exposed communication: healthy (under 30 %)\n"
              "slow ranks       rank 3 (1.32 times the median rank's work)\n");
    free(text);
    close_monitor(monitor);
}

static void report_says_only_what_there_is(void **state) {
    (void)state;
    lsi_monitor *monitor = open_monitor(1);
    char *text = print_to_text(monitor);
    assert_string_equal(text, "");
    free(text);
    lsi_step_record record = {.step_ms = 10, .forward_ms = 12}; /* clocks may disagree a little */
    const lsi_rank_times rank = {12, 0, 0};
    lsi_monitor_step(monitor, &record, &rank);
    text = print_to_text(monitor);
    assert_non_null(strstr(text, "other                          0.0     0.0 %\n"));
    assert_non_null(strstr(text, "(mean of 1 step)\n"));
    assert_non_null(strstr(text, "advice           none: there is one rank\n"));
    assert_null(strstr(text, "slow ranks"));
    free(text);
    close_monitor(monitor);
    monitor = run_of(2, 10, 0, 0);
    text = print_to_text(monitor);
    assert_non_null(strstr(text, "slow ranks       none\n"));
    free(text);
    close_monitor(monitor);
}

static double number_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void json_has_all_of_the_report(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"n_steps", 59},        {"n_skipped", 2},    {"step_ms", 100}, {"forward_ms", 20},
        {"backward_ms", 40},    {"optimizer_ms", 5}, {"comm_ms", 45},  {"comm_exposed_ms", 30},
        {"comm_hidden_ms", 15}, {"wait_ms", 20},     {"other_ms", 5},  {"comm_share", 0.25},
        {"wait_share", 0.6},
    };
    lsi_monitor *monitor = example(2);
    json_t *report = lsi_monitor_to_json(monitor), *ranks = json_object_get(report, "ranks");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_true(number_of(report, numbers[i].name) == numbers[i].value);
    assert_string_equal(json_string_value(json_object_get(report, "verdict")), "healthy");
    assert_string_equal(json_string_value(json_object_get(report, "advice")),
                        "25.0 % of a step is exposed communication: healthy (under 30 %)");
    assert_int_equal(json_array_size(ranks), 4);
    for (int r = 0; r < 4; r++) {
        json_t *rank = json_array_get(ranks, (size_t)r);
        assert_true(number_of(rank, "rank") == r);
        assert_true(number_of(rank, "compute_ms") == (r == 3 ? 80 : 60));
        assert_true(number_of(rank, "optimizer_ms") == 2);
        assert_true(number_of(rank, "comm_exposed_ms") == (r == 3 ? 10 : 30));
        assert_true(number_of(rank, "wait_ms") == (r == 3 ? 0 : 20));
        assert_true(number_of(rank, "work_ratio") == (r == 3 ? 82.0 / 62 : 1));
        assert_int_equal(json_is_true(json_object_get(rank, "is_slow")), r == 3);
    }
    json_decref(report);
    close_monitor(monitor);
}

static void no_monitor_takes_anything(void **state) {
    (void)state;
    lsi_step_record record = STEP;
    char text[8] = "#";
    lsi_monitor_step(NULL, &record, NULL);
    assert_null(lsi_monitor_note(NULL));
    assert_string_equal(lsi_monitor_advice(NULL, text, sizeof text), "");
    lsi_monitor_print(NULL, stdout);
    lsi_monitor_destroy(NULL);
    lsi_monitor *monitor = NULL;
    assert_fails(lsi_monitor_create(0, LSI_TRAFFIC_DDP, &monitor), LS_ERR_ARGUMENT, "0 ranks");
    for (int n = 1; n <= 3; n++) {
        lsi_mem_fail_at(n);
        assert_fails(lsi_monitor_create(4, LSI_TRAFFIC_DDP, &monitor), LS_ERR_MEMORY, "");
        lsi_mem_fail_at(0);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
    assert_null(monitor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_leave_out_the_first_step),
        cmocka_unit_test(run_of_one_step_is_reported),
        cmocka_unit_test(waiting_is_the_lack_of_work),
        cmocka_unit_test(memory_does_not_grow_with_steps),
        cmocka_unit_test(slow_rank_is_named_after_nine_steps),
        cmocka_unit_test(rank_that_recovers_is_cleared),
        cmocka_unit_test(ranks_are_judged_against_the_median_rank),
        cmocka_unit_test(slow_optimizer_is_slow_work),
        cmocka_unit_test(steps_of_any_length_are_compared),
        cmocka_unit_test(late_steps_must_be_most_steps),
        cmocka_unit_test(rare_long_steps_make_no_slow_rank),
        cmocka_unit_test(noise_makes_no_slow_rank),
        cmocka_unit_test(noise_does_not_hide_a_slow_rank),
        cmocka_unit_test(notes_of_all_ranks_at_once_fit),
        cmocka_unit_test(share_and_its_cause_give_the_advice),
        cmocka_unit_test(advice_is_for_what_the_run_exchanges),
        cmocka_unit_test(advice_never_overruns),
        cmocka_unit_test(report_is_as_documented),
        cmocka_unit_test(report_says_only_what_there_is),
        cmocka_unit_test(json_has_all_of_the_report),
        cmocka_unit_test(no_monitor_takes_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
