/* Help and documentation from the option table (see opt.h).
 *
 * Rows appear under their groups, groups in the order of their first row. Help has two columns:
 *
 *     -n, --workers N          Worker processes. [1 to 256, default 2]
 *
 * The right one is wrapped at blanks to the width that the caller gives; a left part too long for
 * its column gets a line of its own. Widths are counted in characters of UTF-8, not bytes. */
#include <string.h>

#include "base/opt_internal.h"

enum { LEFT_COLUMNS_MAX = 32, LEFT_BYTES = 160, RIGHT_COLUMNS_MIN = 20 };

static int width_of(const char *text, size_t bytes) {
    int width = 0;
    for (size_t i = 0; i < bytes; i++) width += ((unsigned char)text[i] & 0xC0) != 0x80;
    return width;
}

/* ---- groups ---- */

static bool same_group(const lsi_opt *a, const lsi_opt *b) {
    const char *x = a->group ? a->group : "", *y = b->group ? b->group : "";
    return strcmp(x, y) == 0;
}

static bool is_first_of_group(const lsi_opt *table, const lsi_opt *row) {
    for (; table < row; table++) {
        if (same_group(table, row)) return false;
    }
    return true;
}

static const char *group_name(const lsi_opt *row) {
    return row->group ? row->group : "Options";
}

/* ---- help ---- */

/* What stands left: "-n, --workers N", "    --[no-]verbose". */
static void make_left(const lsi_opt *row, char text[LEFT_BYTES]) {
    char letter[] = {'-', row->letter, ',', ' ', '\0'};
    const char *unit = row->unit ? row->unit : lsi_opt_ops(row->type)->metavar;
    bool is_bool = row->type == LSI_OPT_BOOL;
    bool can_negate = is_bool && row->initial && strcmp(row->initial, "true") == 0;
    snprintf(text, LEFT_BYTES, "%s--%s%s%s%s", row->letter ? letter : "    ",
             can_negate ? "[no-]" : "", row->name, is_bool ? "" : " ", is_bool ? "" : unit);
}

static int left_columns_of(const lsi_opt *table) {
    int widest = 0;
    for (const lsi_opt *row = table; row->name; row++) {
        char left[LEFT_BYTES];
        make_left(row, left);
        int width = width_of(left, strlen(left)) + 4; /* two blanks before, two after */
        if (width > widest && width <= LEFT_COLUMNS_MAX) widest = width;
    }
    return widest;
}

/* The right column while it is printed. */
typedef struct wrapper {
    FILE *out;
    int indent;  /* where its lines begin */
    int columns; /* what no line passes, unless a single word does */
    int column;  /* where the last character ended */
} wrapper;

static void print_word(wrapper *at, const char *word, size_t bytes) {
    int width = width_of(word, bytes);
    int start = at->column < at->indent ? at->indent : at->column + 1;
    if (start > at->indent && start + width > at->columns) {
        fputc('\n', at->out);
        at->column = 0;
        start = at->indent;
    }
    fprintf(at->out, "%*s%.*s", start - at->column, "", (int)bytes, word);
    at->column = start + width;
}

static void print_words(wrapper *at, const char *text) {
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        size_t bytes = strcspn(text, " ");
        print_word(at, text, bytes);
        text += bytes;
    }
}

/* "a|b|c" as "a, b, c": words that can be wrapped. */
static void print_choices(wrapper *at, const char *choices) {
    for (;;) {
        char word[80];
        size_t bytes = strcspn(choices, "|");
        bool is_last = !choices[bytes];
        snprintf(word, sizeof word, "%.*s%s", (int)bytes, choices, is_last ? "." : ",");
        print_word(at, word, strlen(word));
        if (is_last) return;
        choices += bytes + 1;
    }
}

/* "[1 to 64, default 2]", whatever of it there is. */
static void print_limits(wrapper *at, const lsi_opt *row) {
    char range[96], text[256];
    const char *legal = lsi_opt_range_text(row, range, sizeof range);
    bool has_default =
        row->initial && !(row->type == LSI_OPT_BOOL && strcmp(row->initial, "false") == 0);
    if (!legal && !has_default) return;
    snprintf(text, sizeof text, "[%s%s%s%s]", legal ? legal : "", legal && has_default ? ", " : "",
             has_default ? "default " : "", has_default ? row->initial : "");
    print_words(at, text);
}

static void print_row(const lsi_opt *row, FILE *out, int left_columns, int columns) {
    char left[LEFT_BYTES];
    make_left(row, left);
    int width = 2 + width_of(left, strlen(left));
    fprintf(out, "  %s", left);
    if (width + 2 > left_columns) {
        fputc('\n', out);
        width = 0;
    }
    wrapper at = {out, left_columns, columns, width};
    print_words(&at, row->help ? row->help : "");
    if (row->type == LSI_OPT_CHOICE) {
        print_words(&at, "One of");
        print_choices(&at, row->choices);
    }
    print_limits(&at, row);
    fputc('\n', out);
}

void lsi_opt_print_help(const lsi_opt *table, FILE *out, int columns) {
    int left_columns = left_columns_of(table);
    if (columns < left_columns + RIGHT_COLUMNS_MIN) columns = left_columns + RIGHT_COLUMNS_MIN;
    for (const lsi_opt *group = table; group->name; group++) {
        if (!is_first_of_group(table, group)) continue;
        fprintf(out, "%s%s:\n", group == table ? "" : "\n", group_name(group));
        for (const lsi_opt *row = group; row->name; row++) {
            if (same_group(group, row)) print_row(row, out, left_columns, columns);
        }
    }
}

/* ---- Markdown ---- */

/* A bar would end the cell of the table. */
static void print_cell(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

static void print_markdown_row(const lsi_opt *row, FILE *out) {
    char range[96];
    const char *legal = lsi_opt_range_text(row, range, sizeof range);
    const char *unit = row->unit ? row->unit : lsi_opt_ops(row->type)->metavar;
    fprintf(out, "| `--%s`", row->name);
    if (row->letter) fprintf(out, ", `-%c`", row->letter);
    fprintf(out, " | ");
    print_cell(out, row->type == LSI_OPT_BOOL ? "" : unit);
    fprintf(out, " | ");
    if (row->initial) fprintf(out, "`%s`", row->initial);
    fprintf(out, " | ");
    print_cell(out, row->type == LSI_OPT_CHOICE ? row->choices : legal ? legal : "");
    fprintf(out, " | ");
    print_cell(out, row->help ? row->help : "");
    fprintf(out, " |\n");
}

void lsi_opt_print_markdown(const lsi_opt *table, FILE *out) {
    for (const lsi_opt *group = table; group->name; group++) {
        if (!is_first_of_group(table, group)) continue;
        fprintf(out, "%s### %s\n\n", group == table ? "" : "\n", group_name(group));
        fprintf(out, "| option | value | default | legal | meaning |\n|---|---|---|---|---|\n");
        for (const lsi_opt *row = group; row->name; row++) {
            if (same_group(group, row)) print_markdown_row(row, out);
        }
    }
}
