/* Options from four sources (see opt.h): who wins, and which words of a command line are what.
 *
 * Every row of the table has a slot that holds its best value so far and where it came from. A
 * source offers values in any order, and an offer is taken if its source ranks at least as high as
 * that of the slot. So the command line is read first (it may name the configuration file), then
 * the environment, then the file, then the defaults, each to the end: a wrong value is an error
 * even where a stronger source overrides it.
 *
 * Nothing is written to the caller's values until everything was found right. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/opt_internal.h"

enum { CONFIG_CAP_BYTES = 1 << 20 };

typedef struct slot {
    lsi_opt_source source;
    bool is_given;
    lsi_opt_value value; /* a text is owned by the slot */
} slot;

struct lsi_opt_set {
    const lsi_opt *table;
    int n_rows;
    slot *slots;        /* one per row */
    const char **names; /* of the rows, NULL ends: what suggestions are chosen from */
};

static bool is_text(const lsi_opt *row) {
    return row->type == LSI_OPT_TEXT || row->type == LSI_OPT_CHOICE;
}

static int find_row(const lsi_opt_set *set, const char *name, size_t length) {
    for (int i = 0; i < set->n_rows; i++) {
        const char *row_name = set->table[i].name;
        if (strlen(row_name) == length && memcmp(row_name, name, length) == 0) return i;
    }
    return -1;
}

static int find_letter(const lsi_opt_set *set, char letter) {
    for (int i = 0; i < set->n_rows; i++) {
        if (letter && set->table[i].letter == letter) return i;
    }
    return -1;
}

/* Takes a checked value unless a stronger source has spoken. */
static ls_status offer(lsi_opt_set *set, int row, lsi_opt_source source, lsi_opt_value value) {
    slot *at = &set->slots[row];
    if (at->is_given && source < at->source) return LS_OK;
    if (is_text(&set->table[row])) {
        char *copy = lsi_strdup(value.text);
        LSI_TRY(lsi_check_alloc(copy));
        if (at->is_given) lsi_free((char *)(uintptr_t)at->value.text);
        value.text = copy;
    }
    *at = (slot){.source = source, .is_given = true, .value = value};
    return LS_OK;
}

static ls_status offer_text(lsi_opt_set *set, int row, lsi_opt_source source, const char *where,
                            const char *text) {
    lsi_opt_value value;
    LSI_TRY(lsi_opt_read_text(&set->table[row], where, text, &value));
    return offer(set, row, source, value);
}

/* ---- command line ---- */

/* The arguments that are still to be read. */
typedef struct words {
    char **at;
    int n_left;
} words;

/* A word that can be the value of the option before it: it does not look like an option, but
 * negative numbers and "-" do not either. */
static bool can_be_value(const char *word) {
    return word[0] != '-' || !word[1] || isdigit((unsigned char)word[1]) || word[1] == '.';
}

static ls_status fail_no_value(const lsi_opt *row, const char *where, const char *next) {
    const char *unit = row->unit ? row->unit : lsi_opt_ops(row->type)->metavar;
    if (!next) return lsi_fail(LS_ERR_USAGE, "%s: expected a value (%s) after it", where, unit);
    return lsi_fail(LS_ERR_USAGE,
                    "%s: expected a value (%s) after it, found option %s; write --%s=%s if that is "
                    "the value",
                    where, unit, next, row->name, next);
}

/* The option of `row` was met, `where` as it was written, `attached` its value if one was attached
 * to it. */
static ls_status read_option(lsi_opt_set *set, int row, const char *where, const char *attached,
                             words *rest) {
    const lsi_opt *option = &set->table[row];
    if (!attached && option->type == LSI_OPT_BOOL) attached = "true";
    if (!attached) {
        if (rest->n_left == 0) return fail_no_value(option, where, NULL);
        if (!can_be_value(rest->at[0])) return fail_no_value(option, where, rest->at[0]);
        attached = *rest->at++;
        rest->n_left--;
    }
    return offer_text(set, row, LSI_OPT_FROM_COMMAND_LINE, where, attached);
}

/* "no-" before a name that was meant as a negation; the rest of the word is what to look up. */
static const char *without_no(const char *name) {
    return strncmp(name, "no-", 3) == 0 ? name + 3 : NULL;
}

static ls_status fail_unknown(const lsi_opt_set *set, const char *word, size_t length) {
    char name[80];
    const char *nearest = NULL, *prefix = "";
    if (length - 2 < sizeof name) {
        memcpy(name, word + 2, length - 2);
        name[length - 2] = '\0';
        nearest = lsi_nearest(name, set->names);
        if (!nearest && without_no(name)) {
            nearest = lsi_nearest(without_no(name), set->names);
            int row = nearest ? find_row(set, nearest, strlen(nearest)) : -1;
            if (row >= 0 && set->table[row].type == LSI_OPT_BOOL) prefix = "no-";
        }
    }
    if (!nearest) return lsi_fail(LS_ERR_USAGE, "unknown option %.*s", (int)length, word);
    return lsi_fail(LS_ERR_USAGE, "unknown option %.*s; did you mean --%s%s?", (int)length, word,
                    prefix, nearest);
}

/* --name, --name=value, --name value, --no-name. */
static ls_status read_long(lsi_opt_set *set, const char *word, words *rest) {
    const char *name = word + 2;
    size_t length = strcspn(name, "=");
    const char *attached = name[length] ? name + length + 1 : NULL;
    char where[80];
    snprintf(where, sizeof where, "%.*s", (int)(length + 2 < 79 ? length + 2 : 79), word);
    int row = find_row(set, name, length);
    if (row >= 0) return read_option(set, row, where, attached, rest);

    const char *negated = without_no(name);
    if (negated) row = find_row(set, negated, length - 3);
    if (row < 0 || set->table[row].type != LSI_OPT_BOOL) {
        return fail_unknown(set, word, length + 2);
    }
    if (attached) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected no value, found '%s'; write --%s=%s", where,
                        attached, set->table[row].name, attached);
    }
    return read_option(set, row, where, "false", rest);
}

/* -x, -x value, -xvalue. */
static ls_status read_short(lsi_opt_set *set, const char *word, words *rest) {
    int row = find_letter(set, word[1]);
    if (row < 0) {
        /* one dash too few is a common slip */
        const char *nearest = word[2] ? lsi_nearest(word + 1, set->names) : NULL;
        if (!nearest) return lsi_fail(LS_ERR_USAGE, "unknown option %s", word);
        return lsi_fail(LS_ERR_USAGE, "unknown option %s; did you mean --%s?", word, nearest);
    }
    const char where[] = {'-', word[1], '\0'};
    if (word[2] && set->table[row].type == LSI_OPT_BOOL) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected nothing after it, found '%s'", where, word + 2);
    }
    return read_option(set, row, where, word[2] ? word + 2 : NULL, rest);
}

static ls_status read_arguments(lsi_opt_set *set, words rest, const char **positional,
                                int n_positional) {
    bool options_ended = false;
    int n_found = 0;
    while (rest.n_left > 0) {
        const char *word = *rest.at++;
        rest.n_left--;
        if (!options_ended && strcmp(word, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && word[0] == '-' && word[1] == '-') {
            LSI_TRY(read_long(set, word, &rest));
        } else if (!options_ended && word[0] == '-' && word[1]) {
            LSI_TRY(read_short(set, word, &rest));
        } else if (n_found < n_positional) {
            positional[n_found++] = word;
        } else {
            return lsi_fail(LS_ERR_USAGE, "unexpected word '%s'; options begin with --", word);
        }
    }
    return LS_OK;
}

/* ---- environment ---- */

/* "micro-batch-size" as "LOCKSTEP_MICRO_BATCH_SIZE"; names of a table are short, see start(). */
static void variable_of(const char *name, char *text, size_t size) {
    snprintf(text, size, "LOCKSTEP_%s", name);
    for (char *at = text; *at; at++) *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
}

/* An empty variable counts as not set. */
static ls_status read_environment(lsi_opt_set *set) {
    for (int i = 0; i < set->n_rows; i++) {
        char variable[96];
        variable_of(set->table[i].name, variable, sizeof variable);
        const char *text = getenv(variable);
        if (!text || !text[0]) continue;
        LSI_TRY(offer_text(set, i, LSI_OPT_FROM_ENVIRONMENT, variable, text));
    }
    return LS_OK;
}

/* ---- configuration file ---- */

static ls_status read_member(lsi_opt_set *set, const char *path, const char *name,
                             const json_t *json) {
    int row = find_row(set, name, strlen(name));
    if (row < 0) {
        const char *nearest = lsi_nearest(name, set->names);
        if (!nearest) return lsi_fail(LS_ERR_USAGE, "%s: unknown option \"%s\"", path, name);
        return lsi_fail(LS_ERR_USAGE, "%s: unknown option \"%s\"; did you mean \"%s\"?", path, name,
                        nearest);
    }
    if (strcmp(name, "config") == 0) {
        return lsi_fail(LS_ERR_USAGE, "%s: a configuration file cannot name another one", path);
    }
    if (json_is_null(json)) return LS_OK; /* not given */
    lsi_opt_value value;
    char where[LSI_MESSAGE_BYTES / 2];
    snprintf(where, sizeof where, "%s: %s", path, name);
    LSI_TRY(lsi_opt_read_json(&set->table[row], where, json, &value));
    return offer(set, row, LSI_OPT_FROM_CONFIG, value);
}

static ls_status read_members(lsi_opt_set *set, const char *path, json_t *object) {
    if (!json_is_object(object)) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected a JSON object of options", path);
    }
    const char *name;
    json_t *json;
    json_object_foreach(object, name, json) {
        LSI_TRY(read_member(set, path, name, json));
    }
    return LS_OK;
}

static ls_status read_config(lsi_opt_set *set) {
    int row = find_row(set, "config", 6);
    if (row < 0 || set->table[row].type != LSI_OPT_TEXT || !set->slots[row].is_given) return LS_OK;
    const char *path = set->slots[row].value.text;
    json_t *object;
    ls_status status = lsi_file_read_json(path, CONFIG_CAP_BYTES, &object);
    /* a wrong name or a wrong text is the user's to correct, like any other option */
    if (status == LS_ERR_NOT_FOUND || status == LS_ERR_FORMAT) status = LS_ERR_USAGE;
    LSI_TRY(lsi_context(status, "--config"));
    status = read_members(set, path, object);
    json_decref(object);
    return status;
}

/* ---- defaults, and the whole ---- */

static ls_status read_defaults(lsi_opt_set *set) {
    for (int i = 0; i < set->n_rows; i++) {
        const lsi_opt *row = &set->table[i];
        if (!row->initial || set->slots[i].is_given) continue;
        LSI_TRY(lsi_context(offer_text(set, i, LSI_OPT_FROM_DEFAULT, row->name, row->initial),
                            "default of the option table"));
    }
    return LS_OK;
}

static void store_all(const lsi_opt_set *set, void *values) {
    for (int i = 0; i < set->n_rows; i++) {
        const lsi_opt *row = &set->table[i];
        lsi_opt_value value = {0};
        if (set->slots[i].is_given) {
            value = set->slots[i].value;
        } else if (is_text(row)) {
            value.text = NULL;
        }
        lsi_opt_ops(row->type)->store((char *)values + row->offset, value);
    }
}

static ls_status start(const lsi_opt *table, lsi_opt_set **set) {
    lsi_opt_set *next = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *next);
    LSI_TRY(lsi_check_alloc(next));
    *set = next; /* from here on the caller destroys it */
    next->table = table;
    while (table[next->n_rows].name) next->n_rows++;
    size_t n = (size_t)next->n_rows;
    next->slots = lsi_calloc(LSI_MEM_OTHER, n, sizeof *next->slots);
    LSI_TRY(lsi_check_alloc(next->slots));
    next->names = lsi_calloc(LSI_MEM_OTHER, n + 1, sizeof *next->names);
    LSI_TRY(lsi_check_alloc(next->names));
    for (size_t i = 0; i < n; i++) {
        next->names[i] = table[i].name;
        if (strlen(table[i].name) > 64) {
            return lsi_fail(LS_ERR_ARGUMENT, "option table: name longer than 64 letters: %s",
                            table[i].name);
        }
    }
    return LS_OK;
}

static ls_status read_all(lsi_opt_set *set, words arguments, const char **positional,
                          int n_positional) {
    LSI_TRY(read_arguments(set, arguments, positional, n_positional));
    LSI_TRY(read_environment(set));
    LSI_TRY(read_config(set));
    return read_defaults(set);
}

ls_status lsi_opt_parse(const lsi_opt *table, int argc, char **argv, void *values,
                        const char **positional, int n_positional, lsi_opt_set **set) {
    lsi_opt_set *next = NULL;
    for (int i = 0; i < n_positional; i++) positional[i] = NULL;
    ls_status status = start(table, &next);
    if (status == LS_OK) status = read_all(next, (words){argv, argc}, positional, n_positional);
    if (status != LS_OK) {
        for (int i = 0; i < n_positional; i++) positional[i] = NULL;
        lsi_opt_destroy(next);
        return status;
    }
    store_all(next, values);
    *set = next;
    return LS_OK;
}

void lsi_opt_destroy(lsi_opt_set *set) {
    if (!set) return;
    for (int i = 0; set->slots && i < set->n_rows; i++) {
        if (set->slots[i].is_given && is_text(&set->table[i])) {
            lsi_free((char *)(uintptr_t)set->slots[i].value.text);
        }
    }
    lsi_free(set->names);
    lsi_free(set->slots);
    lsi_free(set);
}

lsi_opt_source lsi_opt_where(const lsi_opt_set *set, const char *name) {
    int row = find_row(set, name, strlen(name));
    return row < 0 ? LSI_OPT_FROM_DEFAULT : set->slots[row].source;
}

json_t *lsi_opt_to_json(const lsi_opt *table, const void *values) {
    json_t *object = json_object();
    for (const lsi_opt *row = table; object && row->name; row++) {
        const void *field = (const char *)values + row->offset;
        if (strcmp(row->name, "config") == 0) continue; /* a file may not name another */
        if (is_text(row) && !*(const char *const *)field) continue;
        if (json_object_set_new(object, row->name, lsi_opt_ops(row->type)->to_json(field)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}
