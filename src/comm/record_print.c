/* Showing the recorder: a table per group for people, JSON for programs. A table has a row a call
 * and a column a rank; where ranks made different calls, letters say who made which. Texts have
 * ranks of the world (group.h, [Note: world ranks]). */
#include <string.h>
#include <time.h>

#include "comm/choose.h"
#include "comm/record_look.h"

/* Up to so many ranks states are words, beyond that symbols, or lines would be too long. */
enum { MAX_WORD_RANKS = 8, WORD_COLUMNS = 10, SYMBOL_COLUMNS = 3 };

static const char *const state_words[] = {
#define WORD(name, word, symbol) word,
    LSI_RECORD_STATE_TABLE(WORD)
#undef WORD
};
static const char state_symbols[] = {
#define SYMBOL(name, word, symbol) symbol,
    LSI_RECORD_STATE_TABLE(SYMBOL)
#undef SYMBOL
};

/* ---- going through the groups ---- */

/* What is done with each group, or with the message about one that cannot be read. */
typedef struct visitor {
    ls_status (*group)(const lsi_record_group *group, void *context);
    ls_status (*damaged)(const char *message, void *context);
    void *context;
} visitor;

/* Numbers of groups alive, for the message that one is not. */
typedef struct alive {
    char text[128];
    size_t used;
} alive;

static void note_alive(alive *a, int number) {
    if (a->used >= sizeof a->text - 8) return;
    int n =
        snprintf(a->text + a->used, sizeof a->text - a->used, "%s%d", a->used ? ", " : "", number);
    if (n > 0) a->used += (size_t)n;
}

static ls_status visit_rows(const lsi_record_source *source, const lsi_record_group *world,
                            int wanted, const visitor *v, alive *a, bool *found) {
    for (int row = 0; row < LSI_MAX_GROUPS; row++) {
        lsi_record_group group;
        bool there = false;
        ls_status status = lsi_record_take(source, row, row == 0 ? NULL : world, &group, &there);
        if (status == LS_ERR_FORMAT) {
            if (wanted < 0) LSI_TRY(v->damaged(ls_last_message(), v->context));
            continue;
        }
        LSI_TRY(status);
        if (!there) continue;
        note_alive(a, group.number);
        if (wanted < 0 || group.number == wanted) {
            *found = true;
            status = v->group(&group, v->context);
        }
        lsi_record_drop(&group);
        LSI_TRY(status);
    }
    return LS_OK;
}

static ls_status visit(const lsi_record_source *source, const lsi_record_group *world, int wanted,
                       const visitor *v) {
    alive a = {.used = 0};
    bool found = false;
    LSI_TRY(visit_rows(source, world, wanted, v, &a, &found));
    if (found || wanted < 0) return LS_OK;
    return lsi_fail(LS_ERR_NOT_FOUND, "%s: there is no group %d; alive are: %s", source->name,
                    wanted, a.text);
}

/* The world group must be readable: the others' ranks are told by it. */
static ls_status take_world(const lsi_record_source *source, lsi_record_group *world) {
    bool found = false;
    LSI_TRY(lsi_record_take(source, 0, NULL, world, &found));
    if (found) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: the world group is not there", source->name);
}

static ls_status check_opts(const lsi_record_opts *opts) {
    if (opts->last >= 1 && opts->last <= LSI_RECORD_MAX_LAST) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT, "recorder: last %d calls, 1 to %d are possible", opts->last,
                    LSI_RECORD_MAX_LAST);
}

/* ---- text ---- */

typedef struct printer {
    const lsi_record_opts *opts;
    FILE *out;
} printer;

static bool uses_words(const lsi_record_group *group) {
    return group->n_ranks <= MAX_WORD_RANKS;
}

/* One cell, padded to its column. letter: 0 where all ranks made the same call. */
static void print_cell(const printer *p, const lsi_record_group *group, int rank, uint64_t number,
                       char letter) {
    lsi_record_state state = lsi_record_state_of(group, rank, number);
    char cell[32];
    if (uses_words(group))
        snprintf(cell, sizeof cell, "%s%s%c", state_words[state], letter ? " " : "", letter);
    else
        snprintf(cell, sizeof cell, "%c%c", state_symbols[state], letter);
    fprintf(p->out, "%-*s", uses_words(group) ? WORD_COLUMNS : SYMBOL_COLUMNS, cell);
}

static char letter_of(int class) {
    return class < 0 ? '\0' : class < 26 ? (char)('A' + class) : '*';
}

/* The ranks of a class as a list, and their call. */
static void print_class(const printer *p, const lsi_record_group *group, uint64_t number, int class,
                        const int class_of[LSI_MAX_RANKS]) {
    char words[LSI_CALL_TEXT_BYTES];
    const lsi_call *call = NULL;
    fprintf(p->out, "            %c: by rank", letter_of(class));
    for (int r = 0; r < group->n_ranks; r++) {
        if (class_of[r] != class) continue;
        fprintf(p->out, "%s %d", call ? "," : "", group->member[r]);
        call = lsi_record_call(group, r, number);
    }
    fprintf(p->out, ": %s\n", lsi_record_call_print(group, call, words));
}

static void print_age(const printer *p, double age_s) {
    if (age_s < 0)
        fprintf(p->out, "%10s      ", "-");
    else
        fprintf(p->out, "%10.1f s ago", age_s);
}

/* Age of the first posting of the call, and what it is if ranks agree. */
static void print_call(const printer *p, const lsi_record_group *group, uint64_t number,
                       bool agree) {
    char words[LSI_CALL_TEXT_BYTES];
    const lsi_call *any = NULL;
    for (int r = 0; r < group->n_ranks && !any; r++) any = lsi_record_call(group, r, number);
    if (!any) return;
    print_age(p, lsi_record_oldest_s(group, number));
    fprintf(p->out, "  %s", agree ? lsi_record_call_print(group, any, words) : "calls differ:");
}

static void print_row(const printer *p, const lsi_record_group *group, uint64_t number) {
    int class_of[LSI_MAX_RANKS], n_classes = lsi_record_classes(group, number, class_of);
    bool is_marked = number == group->difference, agree = n_classes <= 1;
    const char *on = is_marked && p->opts->color ? "\033[1;31m" : "", *off = *on ? "\033[0m" : "";
    char label[32];
    snprintf(label, sizeof label, "#%llu", (unsigned long long)number);
    fprintf(p->out, "%s%c %-9s ", on, is_marked ? '*' : ' ', label);
    for (int r = 0; r < group->n_ranks; r++)
        print_cell(p, group, r, number, agree ? '\0' : letter_of(class_of[r]));
    print_call(p, group, number, agree);
    fprintf(p->out, "%s\n", off);
    for (int c = 0; c < n_classes && !agree; c++) print_class(p, group, number, c, class_of);
}

static void print_heads(const printer *p, const lsi_record_group *group) {
    fprintf(p->out, "  call      ");
    for (int r = 0; r < group->n_ranks; r++) {
        char head[32];
        snprintf(head, sizeof head, uses_words(group) ? "rank %d" : "%d", group->member[r]);
        fprintf(p->out, "%-*s", uses_words(group) ? WORD_COLUMNS : SYMBOL_COLUMNS, head);
    }
    fprintf(p->out, "   first posted\n");
}

static void print_calls(const printer *p, const lsi_record_group *group) {
    uint64_t from, to;
    if (group->newest == 0) return;
    lsi_record_window(group, p->opts->last, &from, &to);
    print_heads(p, group);
    for (uint64_t number = from; number <= to; number++) print_row(p, group, number);
    if (to < group->newest)
        fprintf(p->out, "  … up to #%llu (--last shows more)\n", (unsigned long long)group->newest);
}

static void print_members(const printer *p, const lsi_record_group *group) {
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_record_rank *rank = &group->rank[r];
        fprintf(p->out, "  rank %d", group->member[r]);
        if (group->number != 0) fprintf(p->out, " (%d in the group)", r);
        if (rank->pid > 0) fprintf(p->out, ", pid %d", rank->pid);
        if (rank->step > 0) fprintf(p->out, ", step %lld", (long long)rank->step);
        fprintf(p->out, ": %llu calls%s%s\n", (unsigned long long)group->posted[r],
                rank->attached ? "" : ", has not come to the group",
                rank->left ? ", has left the group" : "");
    }
}

static void print_messages(const printer *p, const lsi_record_group *group) {
    for (int r = 0; r < group->n_ranks; r++) {
        int n = 0;
        while (n < p->opts->last && lsi_record_message(group, r, n)) n++;
        if (n > 0) fprintf(p->out, "  messages of rank %d\n", group->member[r]);
        for (int k = n - 1; k >= 0; k--) {
            const lsi_call *message = lsi_record_message(group, r, k);
            char words[LSI_CALL_TEXT_BYTES];
            fprintf(p->out, "    #%-9llu", (unsigned long long)message->number);
            print_age(p, lsi_record_age_s(group, message));
            fprintf(p->out, "  %s\n", lsi_record_call_print(group, message, words));
        }
    }
}

static void print_error(const printer *p, const char *what, const lsi_reports *reports) {
    char message[LSI_MESSAGE_BYTES];
    int rank = -1;
    ls_status status = lsi_record_error(reports, &rank, message);
    if (status == LS_OK) return;
    fprintf(p->out, "%s: %s", what, ls_status_name(status));
    if (rank >= 0 && rank < LSI_MAX_RANKS) fprintf(p->out, ", first seen by rank %d", rank);
    fprintf(p->out, ": %s\n", message);
}

static ls_status print_group(const lsi_record_group *group, void *context) {
    const printer *p = context;
    char sentence[LSI_MESSAGE_BYTES];
    fprintf(p->out, "\ngroup %d%s, %d rank%s\n", group->number, group->number ? "" : " (world)",
            group->n_ranks, group->n_ranks == 1 ? "" : "s");
    print_members(p, group);
    if (group->number != 0) print_error(p, "  first error", &group->control->errors);
    print_calls(p, group);
    print_messages(p, group);
    fprintf(p->out, "  %s\n", lsi_record_sentence(group, sentence));
    return LS_OK;
}

static ls_status print_damaged(const char *message, void *context) {
    const printer *p = context;
    fprintf(p->out, "\n%s\n", message);
    return LS_OK;
}

static void print_source(const lsi_record_source *source, FILE *out) {
    char date[64] = "at an unknown time";
    time_t taken = (time_t)source->taken_unix_s;
    struct tm parts;
    fprintf(out, "%s: %d ranks", source->name, source->control->n_ranks);
    if (source->is_file && gmtime_r(&taken, &parts))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &parts);
    if (source->is_file) fprintf(out, ", written %s", date);
    fprintf(out, "\n");
}

static void print_legend(FILE *out) {
    fprintf(out, "\nfinished (=): the rank's part of the call is done; joined (+): announced, not "
                 "done; posted (.): waits for a free place; -: not called; ?: not known any more; "
                 "*: the first difference\n");
}

ls_status lsi_record_print(lsi_record_source *source, const lsi_record_opts *opts, FILE *out) {
    printer p = {opts, out};
    lsi_record_group world;
    LSI_TRY(check_opts(opts));
    LSI_TRY(take_world(source, &world));
    print_source(source, out);
    print_error(&p, "first error", &world.control->errors);
    ls_status status =
        visit(source, &world, opts->group, &(visitor){print_group, print_damaged, &p});
    if (status == LS_OK) print_legend(out);
    lsi_record_drop(&world);
    return status;
}

/* ---- JSON ---- */

typedef struct writer {
    const lsi_record_opts *opts;
    json_t *groups, *damaged;
} writer;

/* Texts of the region may be no UTF-8. */
static json_t *text_to_json(const char *text) {
    json_t *value = json_string(text);
    if (value) return value;
    char plain[LSI_MESSAGE_BYTES];
    snprintf(plain, sizeof plain, "%s", text);
    for (char *c = plain; *c; c++)
        if ((unsigned char)*c > 127) *c = '?';
    return json_string(plain);
}

static json_t *error_to_json(const lsi_reports *reports) {
    char message[LSI_MESSAGE_BYTES];
    int rank = -1;
    ls_status status = lsi_record_error(reports, &rank, message);
    if (status == LS_OK) return json_null();
    return json_pack("{s:s, s:i, s:o}", "status", ls_status_name(status), "rank", rank, "message",
                     text_to_json(message));
}

static json_t *call_to_json(const lsi_record_group *group, const lsi_call *call) {
    char words[LSI_CALL_TEXT_BYTES];
    double age_s = lsi_record_age_s(group, call);
    return json_pack(
        "{s:I, s:s, s:s, s:s, s:s, s:I, s:i, s:s, s:o}", "number", (json_int_t)call->number, "text",
        lsi_record_call_print(group, call, words), "kind", lsi_call_short_name(call->kind), "dtype",
        ls_dtype_name((ls_dtype)call->dtype), "op", call->op ? ls_op_name((ls_op)call->op) : "-",
        "count", (json_int_t)call->count, "root", (int)call->root, "algorithm",
        lsi_algorithm_name(call->algorithm), "age_s", age_s < 0 ? json_null() : json_real(age_s));
}

static json_t *messages_to_json(const lsi_record_group *group, int rank, int last) {
    json_t *list = json_array();
    for (int k = 0; k < last && lsi_record_message(group, rank, k); k++)
        json_array_insert_new(list, 0, call_to_json(group, lsi_record_message(group, rank, k)));
    return list;
}

static json_t *rank_to_json(const lsi_record_group *group, int rank, int last) {
    const lsi_record_rank *r = &group->rank[rank];
    return json_pack("{s:i, s:i, s:i, s:I, s:b, s:b, s:I, s:I, s:I, s:o}", "rank", rank,
                     "world_rank", group->member[rank], "pid", r->pid, "step", (json_int_t)r->step,
                     "has_come", (int)r->attached, "has_left", (int)r->left, "posted",
                     (json_int_t)group->posted[rank], "published",
                     (json_int_t)group->published[rank], "finished", (json_int_t)group->done[rank],
                     "messages", messages_to_json(group, rank, last));
}

static json_t *row_to_json(const lsi_record_group *group, uint64_t number) {
    int class_of[LSI_MAX_RANKS], n = lsi_record_classes(group, number, class_of);
    json_t *ranks = json_array();
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_call *call = lsi_record_call(group, r, number);
        json_array_append_new(ranks,
                              json_pack("{s:s, s:o}", "state",
                                        state_words[lsi_record_state_of(group, r, number)], "call",
                                        call ? call_to_json(group, call) : json_null()));
    }
    return json_pack("{s:I, s:b, s:o}", "number", (json_int_t)number, "differs", n > 1, "ranks",
                     ranks);
}

static json_t *difference_to_json(const lsi_record_group *group) {
    static const char *const kinds[] = {"calls-differ", "not-joined", "not-finished", "-"};
    char sentence[LSI_MESSAGE_BYTES];
    if (group->difference == 0) return json_null();
    return json_pack("{s:I, s:s, s:s}", "number", (json_int_t)group->difference, "kind",
                     kinds[group->verdict], "text", lsi_record_sentence(group, sentence));
}

static ls_status write_group(const lsi_record_group *group, void *context) {
    writer *w = context;
    json_t *ranks = json_array(), *calls = json_array();
    uint64_t from = 1, to = 0;
    if (group->newest > 0) lsi_record_window(group, w->opts->last, &from, &to);
    for (int r = 0; r < group->n_ranks; r++)
        json_array_append_new(ranks, rank_to_json(group, r, w->opts->last));
    for (uint64_t number = from; number <= to; number++)
        json_array_append_new(calls, row_to_json(group, number));
    json_t *json =
        json_pack("{s:i, s:i, s:I, s:o, s:o, s:o, s:o}", "number", group->number, "n_ranks",
                  group->n_ranks, "newest", (json_int_t)group->newest, "error",
                  group->number ? error_to_json(&group->control->errors) : json_null(), "ranks",
                  ranks, "calls", calls, "difference", difference_to_json(group));
    return json_array_append_new(w->groups, json) == 0
               ? LS_OK
               : lsi_fail(LS_ERR_MEMORY, "recorder: no memory for the JSON text");
}

static ls_status write_damaged(const char *message, void *context) {
    writer *w = context;
    json_array_append_new(w->damaged, text_to_json(message));
    return LS_OK;
}

ls_status lsi_record_to_json(lsi_record_source *source, const lsi_record_opts *opts,
                             json_t **value) {
    lsi_record_group world;
    LSI_TRY(check_opts(opts));
    LSI_TRY(take_world(source, &world));
    writer w = {opts, json_array(), json_array()};
    ls_status status =
        visit(source, &world, opts->group, &(visitor){write_group, write_damaged, &w});
    json_t *json =
        json_pack("{s:o, s:i, s:I, s:o, s:o, s:o}", "source", text_to_json(source->name), "n_ranks",
                  world.n_ranks, "taken_unix_s",
                  (json_int_t)(source->is_file ? source->taken_unix_s : time(NULL)), "error",
                  error_to_json(&world.control->errors), "groups", w.groups, "damaged", w.damaged);
    lsi_record_drop(&world);
    if (status == LS_OK && !json)
        status = lsi_fail(LS_ERR_MEMORY, "recorder: no memory for the JSON text");
    if (status == LS_OK)
        *value = json;
    else
        json_decref(json);
    return status;
}
