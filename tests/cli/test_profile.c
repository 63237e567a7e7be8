/* `lockstep train --profile`: the table is of steps alone, whatever happens between them, and its
 * rows leave something of the step, also where ops and events wait for other ranks. */
#include <math.h>

#include "cli/train_images.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

typedef struct profile_row {
    char op[32], phase[16];
    double calls, ms, share;
} profile_row;

typedef struct profile_table {
    int n_steps, n_rows; /* the rest is the last row */
    profile_row rows[64];
} profile_table;

enum { OP_COLUMNS = 18, PHASE_COLUMNS = 10 };

static void copy_word(char *to, size_t to_bytes, const char *from, int n) {
    while (n > 0 && from[n - 1] == ' ') n--;
    snprintf(to, to_bytes, "%.*s", n, from);
}

static void read_table(const char *text, profile_table *table) {
    const char *at = strstr(text, "profile of ");
    table->n_rows = 0;
    if (!at || sscanf(at, "profile of %d steps", &table->n_steps) != 1)
        fail_msg("no profile in\n%s", text);
    at = strchr(strchr(at, '\n') + 1, '\n') + 1; /* behind the heads */
    for (; *at && table->n_rows < 64; at = strchr(at, '\n') + 1) {
        profile_row *row = &table->rows[table->n_rows];
        copy_word(row->op, sizeof row->op, at, OP_COLUMNS);
        copy_word(row->phase, sizeof row->phase, at + OP_COLUMNS + 1, PHASE_COLUMNS);
        if (sscanf(at + OP_COLUMNS + PHASE_COLUMNS + 2, "%lf %lf %lf%%", &row->calls, &row->ms,
                   &row->share) != 3)
            fail_msg("no numbers in the row of %s:\n%s", row->op, text);
        table->n_rows++;
        if (strcmp(row->op, "the rest") == 0) return;
    }
    fail_msg("no rest in\n%s", text);
}

/* link: LOCKSTEP_LINK=…, or NULL. */
static void profile(void **state, const char *link, bool images, const char *options,
                    profile_table *table) {
    const char *const environment[] = {link, NULL};
    const program_opts opts = {.environment = environment};
    program_words words = {.n = 0};
    program_result result;
    add_small_run(&words, state);
    if (images) add_split(&words, "--data %s/set --micro-batch-size 4", (const char *)*state);
    add_split(&words, "--profile --out %s/run %s", (const char *)*state, options);
    program_finish(program_start(&opts, words.at), &result);
    assert_ended(&result, 0);
    read_table(result.out, table);
    program_release(&result);
}

static const profile_row *row_of(const profile_table *table, const char *op, const char *phase) {
    for (int i = 0; i < table->n_rows; i++)
        if (strcmp(table->rows[i].op, op) == 0 && strcmp(table->rows[i].phase, phase) == 0)
            return &table->rows[i];
    return NULL;
}

/* ---- validation ---- */

static void assert_same_calls(const profile_table *a, const profile_table *b, const char *what) {
    assert_int_equal(a->n_steps, b->n_steps);
    assert_int_equal(a->n_rows, b->n_rows);
    for (int i = 0; i < a->n_rows; i++) {
        const profile_row *x = &a->rows[i], *y = row_of(b, x->op, x->phase);
        if (!y || x->calls != y->calls)
            fail_msg("%s: %g calls of %s %s a step without validation, %g with it", what, x->calls,
                     x->op, x->phase, y ? y->calls : 0);
    }
}

/* Validation as long as many a step. */
static void validation_is_not_counted(void **state) {
    static const struct {
        bool images;
        const char *options, *without, *with;
    } rows[] = {
        {false, "--workers 1", "", "--val-fraction 0.3 --eval-every 1 --eval-samples 100"},
        {false, "--workers 2 --strategy zero3 --replicas private", "",
         "--val-fraction 0.3 --eval-every 1 --eval-samples 100"},
        {false, "--workers 1 --checkpoint-activations full", "",
         "--val-fraction 0.3 --eval-every 1 --eval-samples 100"},
        {true, "--workers 1 --model convnet", "--eval-every 1000 --eval-samples 1",
         "--eval-every 1 --eval-samples 60"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        profile_table without, with;
        char options[256];
        snprintf(options, sizeof options, "--steps 6 %s %s", rows[i].options, rows[i].without);
        profile(state, NULL, rows[i].images, options, &without);
        snprintf(options, sizeof options, "--steps 6 %s %s", rows[i].options, rows[i].with);
        profile(state, NULL, rows[i].images, options, &with);
        assert_int_equal(with.n_steps, 5);
        assert_same_calls(&without, &with, rows[i].options);
    }
}

/* ---- the rest ---- */

static void assert_adds_up(const profile_table *table, const char *what) {
    double ms = 0, share = 0, rest = table->rows[table->n_rows - 1].share;
    for (int i = 0; i < table->n_rows; i++) {
        ms += table->rows[i].ms;
        share += table->rows[i].share;
    }
    if (rest < 0) fail_msg("%s: the rest is %g %% of a step of %g ms", what, rest, ms);
    if (fabs(share - 100) > 0.1 * table->n_rows) fail_msg("%s: %g %% in all", what, share);
}

/* On a slow link most of a step is waiting: in front of units, for room for gradients, in the sums
 * of batch norm. */
static void rows_leave_a_rest_of_the_step(void **state) {
    static const struct {
        bool images;
        const char *options;
    } rows[] = {
        {false, "--workers 2"},
        {false, "--workers 2 --eval-every 1 --val-fraction 0.3 --eval-samples 100"},
        {false, "--workers 2 --strategy zero2 --bucket-cap-mb 0.0001 --first-bucket-mb 0.0001"},
        {false, "--workers 2 --strategy zero3 --replicas private --eval-every 1 --val-fraction 0.3 "
                "--eval-samples 10"},
        {true, "--workers 2 --model convnet --sync-batch-norm --eval-every 1"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        profile_table table;
        char options[256];
        snprintf(options, sizeof options, "--steps 4 %s", rows[i].options);
        profile(state, "LOCKSTEP_LINK=latency_us=2000", rows[i].images, options, &table);
        assert_adds_up(&table, rows[i].options);
        if (!(row_of(&table, "waiting for ranks", "")->share > 20))
            fail_msg("%s: ranks hardly waited", rows[i].options);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_is_not_counted),
        cmocka_unit_test(rows_leave_a_rest_of_the_step),
    };
    return cmocka_run_group_tests(tests, make_images, remove_scratch);
}
