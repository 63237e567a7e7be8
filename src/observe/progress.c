/* Progress of a run. On a terminal: one line that rewrites itself,
 *
 *     step  120/1500  loss 2.1034  lr 6.0e-04  norm 0.81  21,340 tokens/s  comm 3.1%  left 1m 02s
 *
 * elsewhere the same line now and then, so that a log stays short.
 *
 * Invariant: on a terminal the cursor rests at the end of the rewritten line, which never reaches
 * the last column (a line that wraps cannot be rewritten); lsi_progress_say clears it, prints, and
 * draws it again. Loss, learning rate and norm are those of the last step; tokens/s, the share of
 * exposed communication and the time left are means over the last WINDOW steps, so that the slow
 * first steps are soon forgotten.
 *
 * Read it downwards: what is shown (fields), how it is fitted into a line, when it is drawn. */
#include "observe/observe.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    WINDOW = 16,
    PLAIN_LINES = 20,
    REDRAW_MS = 50, /* more often nobody can see, and drawing costs a system call */
    FIELD_BYTES = 48,
    LINE_BYTES = 512,
    DEFAULT_COLUMNS = 80,
};

struct lsi_progress {
    FILE *out;
    const char *counts; /* "tokens" */
    int64_t total_steps, every_steps;
    bool is_terminal, has_color;
    int columns; /* from COLUMNS; 0: ask the terminal at each drawing (it may be resized) */
    lsi_step_record window[WINDOW];
    int64_t n_seen; /* steps in all; the last one is window[(n_seen - 1) % WINDOW] */
    bool is_drawn;  /* the rewritten line is on the terminal */
    int64_t next_draw_ns;
};

static const lsi_step_record *last_record(const lsi_progress *p) {
    return &p->window[(p->n_seen - 1) % WINDOW];
}

/* Sums over the window. */
typedef struct recent {
    int64_t n_steps;
    double tokens, step_ms, exposed_ms;
} recent;

static recent sum_recent(const lsi_progress *p) {
    recent sum = {.n_steps = p->n_seen < WINDOW ? p->n_seen : WINDOW};
    for (int64_t i = 0; i < sum.n_steps; i++) {
        sum.tokens += (double)p->window[i].n_tokens;
        sum.step_ms += p->window[i].step_ms;
        sum.exposed_ms += p->window[i].comm_exposed_ms;
    }
    return sum;
}

/* ---- fields: each writes "label value" ---- */

typedef void (*field_fn)(const lsi_progress *p, char text[FIELD_BYTES]);

static void print_step(const lsi_progress *p, char text[FIELD_BYTES]) {
    int width = snprintf(NULL, 0, "%lld", (long long)p->total_steps);
    snprintf(text, FIELD_BYTES, "step %*lld/%lld", width, (long long)last_record(p)->step,
             (long long)p->total_steps);
}

static void print_loss(const lsi_progress *p, char text[FIELD_BYTES]) {
    double loss = last_record(p)->loss;
    snprintf(text, FIELD_BYTES, fabs(loss) < 1e4 ? "loss %.4f" : "loss %.3e", loss);
}

static void print_lr(const lsi_progress *p, char text[FIELD_BYTES]) {
    snprintf(text, FIELD_BYTES, "lr %.1e", last_record(p)->lr);
}

static void print_norm(const lsi_progress *p, char text[FIELD_BYTES]) {
    double norm = last_record(p)->grad_norm;
    if (isnan(norm)) { /* nobody looked */
        snprintf(text, FIELD_BYTES, "norm -");
        return;
    }
    snprintf(text, FIELD_BYTES, fabs(norm) < 1e4 ? "norm %.2f" : "norm %.1e", norm);
}

/* 21340 -> "21,340" */
static void group_thousands(uint64_t value, char text[32]) {
    char digits[24];
    int n_digits = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    int n = 0;
    for (int i = 0; i < n_digits; i++) {
        if (i > 0 && (n_digits - i) % 3 == 0) text[n++] = ',';
        text[n++] = digits[i];
    }
    text[n] = 0;
}

static void print_speed(const lsi_progress *p, char text[FIELD_BYTES]) {
    recent sum = sum_recent(p);
    double per_s = sum.tokens / (sum.step_ms / 1e3);
    char grouped[32];
    if (!(per_s >= 0 && per_s < 1e15)) {
        snprintf(text, FIELD_BYTES, "? %s/s", p->counts);
    } else if (per_s < 9.95) {
        snprintf(text, FIELD_BYTES, "%.1f %s/s", per_s, p->counts);
    } else {
        group_thousands((uint64_t)(per_s + 0.5), grouped);
        snprintf(text, FIELD_BYTES, "%s %s/s", grouped, p->counts);
    }
}

/* What communication costs: time in flight that computation hides is free. */
static void print_comm(const lsi_progress *p, char text[FIELD_BYTES]) {
    recent sum = sum_recent(p);
    double percent = sum.step_ms > 0 ? 100 * sum.exposed_ms / sum.step_ms : 0;
    snprintf(text, FIELD_BYTES, fabs(percent) < 1e4 ? "comm %.1f%%" : "comm %.1e%%", percent);
}

static void print_left(const lsi_progress *p, char text[FIELD_BYTES]) {
    recent sum = sum_recent(p);
    int64_t n_left = p->total_steps - last_record(p)->step;
    double left_s = n_left > 0 ? (double)n_left * sum.step_ms / (double)sum.n_steps / 1e3 : 0;
    char duration[32];
    snprintf(text, FIELD_BYTES, "left %s", lsi_format_seconds(left_s, duration, sizeof duration));
}

/* In the order of the line; on a narrow terminal the highest `rank` is left out first. */
static const struct {
    field_fn print;
    int rank;
    bool is_bold;
} FIELDS[] = {
    {print_step, 0, true},   {print_loss, 1, true},  {print_lr, 6, false},   {print_norm, 5, false},
    {print_speed, 2, false}, {print_comm, 4, false}, {print_left, 3, false},
};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };

/* ---- the line ---- */

/* Rank below which fields fit into `columns` with two spaces between them; at least 1. */
static int ranks_that_fit(char texts[N_FIELDS][FIELD_BYTES], int columns) {
    for (int n_ranks = N_FIELDS; n_ranks > 1; n_ranks--) {
        int width = -2;
        for (int i = 0; i < N_FIELDS; i++)
            if (FIELDS[i].rank < n_ranks) width += (int)strlen(texts[i]) + 2;
        if (width <= columns) return n_ranks;
    }
    return 1;
}

/* Appends what fits; LINE_BYTES holds all fields with their colors, so nothing is ever cut here. */
static void append(char line[LINE_BYTES], const char *text) {
    size_t used = strlen(line);
    snprintf(line + used, LINE_BYTES - used, "%s", text);
}

/* columns <= 0: no limit. */
static void make_line(const lsi_progress *p, int columns, bool has_color, char line[LINE_BYTES]) {
    char texts[N_FIELDS][FIELD_BYTES];
    for (int i = 0; i < N_FIELDS; i++) FIELDS[i].print(p, texts[i]);
    int n_ranks = columns > 0 ? ranks_that_fit(texts, columns) : N_FIELDS;
    /* Only the step is left and even that is too long. */
    if (n_ranks == 1 && columns > 0 && columns < FIELD_BYTES) texts[0][columns] = 0;
    line[0] = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        if (FIELDS[i].rank >= n_ranks) continue;
        if (line[0]) append(line, "  ");
        bool is_bold = has_color && FIELDS[i].is_bold;
        if (is_bold) append(line, "\x1b[1m");
        append(line, texts[i]);
        if (is_bold) append(line, "\x1b[0m");
    }
}

/* ---- drawing ---- */

static int terminal_columns(const lsi_progress *p) {
    struct winsize size;
    if (p->columns > 0) return p->columns;
    if (ioctl(fileno(p->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return DEFAULT_COLUMNS;
}

static void draw(lsi_progress *p) {
    char line[LINE_BYTES];
    int columns = terminal_columns(p) - 1;
    make_line(p, columns > 0 ? columns : 1, p->has_color, line);
    fprintf(p->out, "\r%s\x1b[K", line);
    fflush(p->out);
    p->is_drawn = true;
    p->next_draw_ns = lsi_deadline_ns(REDRAW_MS);
}

static void print_plain(const lsi_progress *p) {
    char line[LINE_BYTES];
    make_line(p, 0, false, line);
    fprintf(p->out, "%s\n", line);
    fflush(p->out);
}

void lsi_progress_count(lsi_progress *progress, const char *what) {
    if (progress) progress->counts = what;
}

void lsi_progress_step(lsi_progress *progress, const lsi_step_record *record) {
    lsi_progress *p = progress;
    if (!p) return;
    p->window[p->n_seen % WINDOW] = *record;
    p->n_seen++;
    bool is_end = p->n_seen == 1 || record->step == p->total_steps;
    if (p->is_terminal) {
        if (is_end || lsi_now_ns() >= p->next_draw_ns) draw(p);
    } else if (is_end || record->step % p->every_steps == 0) {
        print_plain(p);
    }
}

void lsi_progress_say(lsi_progress *progress, const char *format, ...) {
    lsi_progress *p = progress;
    if (!p) return;
    if (p->is_drawn) fprintf(p->out, "\r\x1b[K");
    va_list values;
    va_start(values, format);
    vfprintf(p->out, format, values);
    va_end(values);
    fprintf(p->out, "\n");
    if (p->is_drawn)
        draw(p);
    else
        fflush(p->out);
}

/* ---- creation ---- */

static bool is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && value[0];
}

/* Whether the terminal can rewrite a line. */
static bool can_rewrite(FILE *out) {
    int fd = fileno(out);
    const char *term = getenv("TERM");
    return fd >= 0 && isatty(fd) && !(term && strcmp(term, "dumb") == 0);
}

static int columns_from_environment(void) {
    enum { MAX_COLUMNS = 10000 };
    const char *text = getenv("COLUMNS");
    long columns = text ? strtol(text, NULL, 10) : 0;
    return columns > 0 && columns <= MAX_COLUMNS ? (int)columns : 0;
}

ls_status lsi_progress_create(FILE *out, int64_t total_steps, int64_t every_steps,
                              lsi_progress **progress) {
    if (total_steps < 0 || every_steps < 0)
        return lsi_fail(LS_ERR_ARGUMENT, "progress of %lld steps every %lld, both must be >= 0",
                        (long long)total_steps, (long long)every_steps);
    lsi_progress *p = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *p);
    LSI_TRY(lsi_check_alloc(p));
    int64_t every_default = total_steps / PLAIN_LINES + (total_steps % PLAIN_LINES != 0);
    if (every_default == 0) every_default = 1;
    p->out = out;
    p->counts = "tokens";
    p->total_steps = total_steps;
    p->every_steps = every_steps > 0 ? every_steps : every_default;
    p->is_terminal = can_rewrite(out);
    p->has_color = !is_set("NO_COLOR");
    p->columns = columns_from_environment();
    *progress = p;
    return LS_OK;
}

void lsi_progress_destroy(lsi_progress *progress) {
    if (!progress) return;
    if (progress->is_drawn) {
        /* The last step may have come too soon after the one before it to be shown. */
        draw(progress);
        fprintf(progress->out, "\n");
        fflush(progress->out);
    }
    lsi_free(progress);
}
