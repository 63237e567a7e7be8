/* Progress as plain lines (into memory) and on a terminal (through a pseudo-terminal). */
#include "observe/observe.h"

#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/harness.h"

static lsi_step_record record_of(int64_t step) {
    return (lsi_step_record){.step = step,
                             .loss = 2.1034,
                             .lr = 6e-4,
                             .grad_norm = 0.8123,
                             .n_tokens = 1067,
                             .step_ms = 50,
                             .comm_ms = 20, /* mostly hidden: not what is shown */
                             .comm_exposed_ms = 1.55};
}

static int setup(void **state) {
    (void)state;
    unsetenv("COLUMNS");
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    return 0;
}

/* ---- plain lines ---- */

static FILE *memory;
static char *memory_text;
static size_t memory_bytes;

static lsi_progress *open_plain(int64_t total_steps, int64_t every_steps) {
    lsi_progress *progress;
    memory = open_memstream(&memory_text, &memory_bytes);
    assert_non_null(memory);
    assert_ok(lsi_progress_create(memory, total_steps, every_steps, &progress));
    return progress;
}

/* What was printed, to be freed. */
static char *close_plain(lsi_progress *progress) {
    lsi_progress_destroy(progress);
    fclose(memory);
    assert_int_equal(lsi_mem_n_blocks(), 0);
    return memory_text;
}

static void plain_line_is_as_documented(void **state) {
    (void)state;
    lsi_progress *progress = open_plain(1360, 0);
    lsi_step_record record = record_of(120);
    lsi_progress_step(progress, &record);
    char *text = close_plain(progress);
    assert_string_equal(text, "step  120/1360  loss 2.1034  lr 6.0e-04  norm 0.81  "
                              "21,340 tokens/s  comm 3.1%  left 1m 02s\n");
    free(text);
}

static void images_are_called_images(void **state) {
    (void)state;
    lsi_progress *progress = open_plain(1360, 0);
    lsi_step_record record = record_of(120);
    lsi_progress_count(progress, "images");
    lsi_progress_step(progress, &record);
    char *text = close_plain(progress);
    assert_non_null(strstr(text, "21,340 images/s"));
    free(text);
    lsi_progress_count(NULL, "images"); /* ranks other than 0 */
}

static void strange_numbers_keep_the_line_readable(void **state) {
    (void)state;
    static const struct {
        lsi_step_record record;
        const char *expected;
    } rows[] = {
        {{.step = 9, .loss = NAN, .lr = 0, .grad_norm = INFINITY},
         "step 9/9  loss nan  lr 0.0e+00  norm inf  ? tokens/s  comm 0.0%  left 0.0 s\n"},
        {{.step = 10,
          .loss = 1e30,
          .grad_norm = 1e6,
          .n_tokens = 1,
          .step_ms = 2000,
          .comm_exposed_ms = 1e9},
         "step 10/9  loss 1.000e+30  lr 0.0e+00  norm 1.0e+06  0.5 tokens/s  comm 5.0e+07%  left "
         "0.0 s\n"},
        {{.step = 1, .n_tokens = 1234567890, .step_ms = 1, .loss = -1},
         "step 1/9  loss -1.0000  lr 0.0e+00  norm 0.00  1,234,567,890,000 tokens/s  comm 0.0%  "
         "left 0.0 s\n"},
        {{.step = 1, .n_tokens = INT64_MAX, .step_ms = 1},
         "step 1/9  loss 0.0000  lr 0.0e+00  norm 0.00  ? tokens/s  comm 0.0%  left 0.0 s\n"},
        {{.step = 1, .n_tokens = 999, .step_ms = 1000},
         "step 1/9  loss 0.0000  lr 0.0e+00  norm 0.00  999 tokens/s  comm 0.0%  left 8.0 s\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lsi_progress *progress = open_plain(9, 0);
        lsi_progress_step(progress, &rows[i].record);
        char *text = close_plain(progress);
        assert_string_equal(text, rows[i].expected);
        free(text);
    }
}

static void plain_lines_are_few(void **state) {
    (void)state;
    static const struct {
        int64_t first, total, every;
        int n_lines;
    } rows[] = {
        {1, 1, 0, 1},       {1, 2, 0, 2},       {1, 19, 0, 19},   {1, 20, 0, 20},
        {1, 21, 0, 12},     {1, 1500, 0, 21},   {1, 1501, 0, 21}, {1, 100003, 0, 21},
        {1, 100, 1, 100},   {1, 100, 7, 16},    {1, 100, 50, 3},  {1, 100, 1000, 2},
        {501, 1500, 0, 15}, {1500, 1500, 0, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lsi_progress *progress = open_plain(rows[i].total, rows[i].every);
        for (int64_t step = rows[i].first; step <= rows[i].total; step++) {
            lsi_step_record record = record_of(step);
            lsi_progress_step(progress, &record);
        }
        char *text = close_plain(progress), end[64];
        int n_lines = 0;
        for (const char *c = text; *c; c++) n_lines += *c == '\n';
        if (n_lines != rows[i].n_lines)
            fail_msg("row %zu: expected %d lines, found %d", i, rows[i].n_lines, n_lines);
        snprintf(end, sizeof end, "step %lld/%lld  ", (long long)rows[i].total,
                 (long long)rows[i].total);
        assert_non_null(strstr(text, end));
        assert_null(strchr(text, '\x1b'));
        assert_null(strchr(text, '\r'));
        free(text);
    }
}

static void speed_forgets_old_steps(void **state) {
    (void)state;
    lsi_progress *progress = open_plain(100, 50);
    for (int64_t step = 1; step <= 50; step++) {
        lsi_step_record record = record_of(step);
        if (step <= 30) record.step_ms = 10000, record.comm_exposed_ms = 9000;
        record.n_tokens = 1000;
        lsi_progress_step(progress, &record);
    }
    char *text = close_plain(progress);
    const char *line = strstr(text, "step  50/100");
    assert_non_null(line);
    assert_non_null(strstr(line, "  20,000 tokens/s  comm 3.1%  left 2.5 s\n"));
    free(text);
}

static void said_lines_stay(void **state) {
    (void)state;
    lsi_progress *progress = open_plain(3, 0);
    lsi_progress_say(progress, "begin %d", 1);
    lsi_step_record record = record_of(3);
    lsi_progress_step(progress, &record);
    lsi_progress_say(progress, "validation loss %.2f", 1.5);
    char *text = close_plain(progress);
    assert_memory_equal(text, "begin 1\nstep 3/3  ", 18);
    assert_non_null(strstr(text, "left 0.0 s\nvalidation loss 1.50\n"));
    free(text);
}

static void no_progress_takes_anything(void **state) {
    (void)state;
    lsi_step_record record = record_of(1);
    lsi_progress_step(NULL, &record);
    lsi_progress_say(NULL, "nothing");
    lsi_progress_destroy(NULL);
    lsi_progress *progress = NULL;
    assert_fails(lsi_progress_create(stdout, -1, 0, &progress), LS_ERR_ARGUMENT, "-1 steps");
    assert_fails(lsi_progress_create(stdout, 1, -2, &progress), LS_ERR_ARGUMENT, "every -2");
    lsi_mem_fail_at(1);
    assert_fails(lsi_progress_create(stdout, 1, 0, &progress), LS_ERR_MEMORY, "");
    lsi_mem_fail_at(0);
    assert_null(progress);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void run_of_no_steps_says_nothing(void **state) {
    (void)state;
    char *text = close_plain(open_plain(0, 0));
    assert_string_equal(text, "");
    free(text);
}

/* ---- on a terminal ---- */

typedef struct terminal {
    int master;
    FILE *out;
    lsi_progress *progress;
    char text[16384]; /* everything that was written */
} terminal;

static void open_terminal(terminal *t, unsigned short columns) {
    int slave;
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    assert_int_equal(openpty(&t->master, &slave, NULL, NULL, &size), 0);
    assert_int_equal(fcntl(t->master, F_SETFL, O_NONBLOCK), 0);
    t->out = fdopen(slave, "w");
    assert_non_null(t->out);
    t->text[0] = 0;
    assert_ok(lsi_progress_create(t->out, 1360, 0, &t->progress));
}

/* Takes what was written so far; the terminal turns "\n" into "\r\n". */
static const char *read_terminal(terminal *t) {
    size_t used = strlen(t->text);
    for (;;) {
        ssize_t n = read(t->master, t->text + used, sizeof t->text - 1 - used);
        if (n <= 0) break;
        used += (size_t)n;
    }
    t->text[used] = 0;
    return t->text;
}

static void close_terminal(terminal *t) {
    lsi_progress_destroy(t->progress);
    read_terminal(t);
    fclose(t->out);
    close(t->master);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

#define BOLD "\x1b[1m"
#define PLAIN "\x1b[0m"
#define CLEAR "\x1b[K"

static void terminal_line_rewrites_itself(void **state) {
    (void)state;
    terminal t;
    open_terminal(&t, 120);
    lsi_step_record record = record_of(120);
    lsi_progress_step(t.progress, &record);
#define LINE                                                                                       \
    "\r" BOLD "step  120/1360" PLAIN "  " BOLD "loss 2.1034" PLAIN                                 \
    "  lr 6.0e-04  norm 0.81  21,340 tokens/s  comm 3.1%  left 1m 02s" CLEAR
    assert_string_equal(read_terminal(&t), LINE);
    lsi_progress_say(t.progress, "validation loss %d", 2);
    assert_string_equal(read_terminal(&t), LINE "\r" CLEAR "validation loss 2\r\n" LINE);
    close_terminal(&t);
    assert_string_equal(t.text, LINE "\r" CLEAR "validation loss 2\r\n" LINE LINE "\r\n");
}

static void drawing_is_rare_and_the_last_step_is_shown(void **state) {
    (void)state;
    terminal t;
    open_terminal(&t, 200);
    for (int64_t step = 1; step <= 1359; step++) {
        lsi_step_record record = record_of(step);
        lsi_progress_step(t.progress, &record);
    }
    close_terminal(&t); /* ends before the last step, as an interrupted run does */
    assert_non_null(strstr(t.text, "step 1359/1360"));
    assert_string_equal(t.text + strlen(t.text) - 5, CLEAR "\r\n");
    int n_drawn = 0;
    for (const char *c = t.text; (c = strstr(c, CLEAR)); c++) n_drawn++;
    assert_in_range(n_drawn, 2, 200);
}

static void no_color_leaves_only_the_rewriting(void **state) {
    (void)state;
    setenv("NO_COLOR", "1", 1);
    terminal t;
    open_terminal(&t, 120);
    lsi_step_record record = record_of(120);
    lsi_progress_step(t.progress, &record);
    assert_string_equal(read_terminal(&t),
                        "\rstep  120/1360  loss 2.1034  lr 6.0e-04  norm 0.81  21,340 tokens/s  "
                        "comm 3.1%  left 1m 02s" CLEAR);
    close_terminal(&t);
}

static void line_fits_the_terminal(void **state) {
    (void)state;
    static const struct {
        const char *columns; /* COLUMNS; NULL: not set */
        unsigned short terminal_columns;
        const char *line;
    } rows[] = {
        {NULL, 92,
         "step  120/1360  loss 2.1034  lr 6.0e-04  norm 0.81  21,340 tokens/s  comm 3.1%  "
         "left 1m 02s"},
        {NULL, 91,
         "step  120/1360  loss 2.1034  norm 0.81  21,340 tokens/s  comm 3.1%  left 1m 02s"},
        {NULL, 80,
         "step  120/1360  loss 2.1034  norm 0.81  21,340 tokens/s  comm 3.1%  left 1m 02s"},
        {NULL, 0,
         "step  120/1360  loss 2.1034  norm 0.81  21,340 tokens/s  comm 3.1%  left 1m 02s"},
        {NULL, 70, "step  120/1360  loss 2.1034  21,340 tokens/s  comm 3.1%  left 1m 02s"},
        {NULL, 60, "step  120/1360  loss 2.1034  21,340 tokens/s  left 1m 02s"},
        {NULL, 50, "step  120/1360  loss 2.1034  21,340 tokens/s"},
        {NULL, 30, "step  120/1360  loss 2.1034"},
        {NULL, 20, "step  120/1360"},
        {NULL, 10, "step  120"},
        {NULL, 1, "s"},
        {"40", 120, "step  120/1360  loss 2.1034"},
        {"nonsense", 30, "step  120/1360  loss 2.1034"},
        {"-5", 30, "step  120/1360  loss 2.1034"},
    };
    setenv("NO_COLOR", "1", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].columns)
            setenv("COLUMNS", rows[i].columns, 1);
        else
            unsetenv("COLUMNS");
        terminal t;
        char expected[256];
        snprintf(expected, sizeof expected, "\r%s" CLEAR, rows[i].line);
        open_terminal(&t, rows[i].terminal_columns);
        lsi_step_record record = record_of(120);
        lsi_progress_step(t.progress, &record);
        assert_string_equal(read_terminal(&t), expected);
        close_terminal(&t);
    }
}

static void terminal_without_abilities_gets_plain_lines(void **state) {
    (void)state;
    setenv("TERM", "dumb", 1);
    terminal t;
    open_terminal(&t, 30);
    lsi_step_record record = record_of(120);
    lsi_progress_step(t.progress, &record);
    close_terminal(&t);
    assert_null(strchr(t.text, '\x1b'));
    assert_string_equal(strstr(t.text, "left"), "left 1m 02s\r\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(plain_line_is_as_documented, setup),
        cmocka_unit_test_setup(images_are_called_images, setup),
        cmocka_unit_test_setup(strange_numbers_keep_the_line_readable, setup),
        cmocka_unit_test_setup(plain_lines_are_few, setup),
        cmocka_unit_test_setup(speed_forgets_old_steps, setup),
        cmocka_unit_test_setup(said_lines_stay, setup),
        cmocka_unit_test_setup(no_progress_takes_anything, setup),
        cmocka_unit_test_setup(run_of_no_steps_says_nothing, setup),
        cmocka_unit_test_setup(terminal_line_rewrites_itself, setup),
        cmocka_unit_test_setup(drawing_is_rare_and_the_last_step_is_shown, setup),
        cmocka_unit_test_setup(no_color_leaves_only_the_rewriting, setup),
        cmocka_unit_test_setup(line_fits_the_terminal, setup),
        cmocka_unit_test_setup(terminal_without_abilities_gets_plain_lines, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
