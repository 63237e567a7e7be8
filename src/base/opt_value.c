/* One value of the option table: from text or JSON, checked, stored, and back to JSON.
 *
 * A type is a row of `types`; adding one touches this file and the enum. Readers are strict: the
 * whole text must be the value, numbers that do not fit are errors, and a decimal point is a point
 * in every locale. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt_internal.h"

/* ---- whole numbers ---- */

typedef struct suffix {
    const char *text;
    int64_t factor;
} suffix;

static const suffix suffixes[] = {
    {"", 1},         {"k", 1000},     {"M", 1000 * 1000}, {"G", 1000 * 1000 * 1000},
    {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
};

static bool int_from_text(const char *text, lsi_opt_value *value) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || isspace((unsigned char)text[0])) return false;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (strcmp(end, suffixes[i].text) != 0) continue;
        return !__builtin_mul_overflow(number, suffixes[i].factor, &value->integer);
    }
    return false;
}

/* JSON writers may print a whole number as 1e6; up to 2^53 a double holds it exactly. */
static bool int_from_json(const json_t *json, lsi_opt_value *value) {
    if (json_is_string(json)) return int_from_text(json_string_value(json), value);
    if (json_is_integer(json)) {
        value->integer = json_integer_value(json);
        return true;
    }
    double real = json_real_value(json);
    if (!json_is_real(json) || fabs(real) > 0x1p53 || floor(real) != real) return false;
    value->integer = (int64_t)real;
    return true;
}

static json_t *int_to_json(const void *field) {
    return json_integer(*(const int64_t *)field);
}

static void int_store(void *field, lsi_opt_value value) {
    *(int64_t *)field = value.integer;
}

/* ---- numbers ---- */

static bool float_from_text(const char *text, lsi_opt_value *value) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    char *end;
    value->real = strtod_l(text, &end, plain);
    freelocale(plain);
    bool is_whole = end != text && *end == '\0' && !isspace((unsigned char)text[0]);
    return is_whole && isfinite(value->real);
}

static bool float_from_json(const json_t *json, lsi_opt_value *value) {
    if (!json_is_number(json)) return false;
    value->real = json_number_value(json);
    return true;
}

static json_t *float_to_json(const void *field) {
    return json_real(*(const double *)field);
}

static void float_store(void *field, lsi_opt_value value) {
    *(double *)field = value.real;
}

/* ---- yes or no ---- */

static bool bool_from_text(const char *text, lsi_opt_value *value) {
    static const char *const words[][2] = {
        {"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int is_true = 0; is_true < 2; is_true++) {
            if (strcmp(text, words[i][is_true]) != 0) continue;
            value->boolean = is_true;
            return true;
        }
    }
    return false;
}

static bool bool_from_json(const json_t *json, lsi_opt_value *value) {
    value->boolean = json_is_true(json);
    return json_is_boolean(json);
}

static json_t *bool_to_json(const void *field) {
    return json_boolean(*(const bool *)field);
}

static void bool_store(void *field, lsi_opt_value value) {
    *(bool *)field = value.boolean;
}

/* ---- texts and choices ---- */

static bool text_from_text(const char *text, lsi_opt_value *value) {
    value->text = text;
    return true;
}

static bool text_from_json(const json_t *json, lsi_opt_value *value) {
    value->text = json_string_value(json);
    return value->text != NULL;
}

static json_t *text_to_json(const void *field) {
    const char *text = *(const char *const *)field;
    return text ? json_string(text) : NULL;
}

static void text_store(void *field, lsi_opt_value value) {
    *(const char **)field = value.text;
}

/* ---- the types ---- */

static const lsi_opt_type_ops types[] = {
    [LSI_OPT_INT] = {"a whole number (k, M, G or Ki, Mi, Gi may follow)", "N", int_from_text,
                     int_from_json, int_to_json, int_store},
    [LSI_OPT_FLOAT] = {"a finite number", "X", float_from_text, float_from_json, float_to_json,
                       float_store},
    [LSI_OPT_BOOL] = {"true or false", "BOOL", bool_from_text, bool_from_json, bool_to_json,
                      bool_store},
    [LSI_OPT_TEXT] = {"a text", "TEXT", text_from_text, text_from_json, text_to_json, text_store},
    [LSI_OPT_CHOICE] = {"a word", "WORD", text_from_text, text_from_json, text_to_json, text_store},
};

const lsi_opt_type_ops *lsi_opt_ops(lsi_opt_type type) {
    return &types[type];
}

/* ---- checks ---- */

bool lsi_opt_has_range(const lsi_opt *row) {
    bool is_number = row->type == LSI_OPT_INT || row->type == LSI_OPT_FLOAT;
    return is_number && (row->min != 0 || row->max != 0);
}

const char *lsi_opt_range_text(const lsi_opt *row, char *text, size_t size) {
    if (!lsi_opt_has_range(row)) return NULL;
    bool has_min = row->min > -9e18, has_max = row->max < 9e18; /* int64_t has no more anyway */
    if (!has_min && !has_max) return NULL;
    /* whole numbers in full: "at most 1000000" reads better than 1e+06 */
    int digits = row->type == LSI_OPT_INT ? 19 : 6;
    if (!has_max) {
        snprintf(text, size, "at least %.*g", digits, row->min);
    } else if (!has_min) {
        snprintf(text, size, "at most %.*g", digits, row->max);
    } else {
        snprintf(text, size, "%.*g to %.*g", digits, row->min, digits, row->max);
    }
    return text;
}

static ls_status check_range(const lsi_opt *row, const char *where, lsi_opt_value value) {
    char range[96];
    if (!lsi_opt_range_text(row, range, sizeof range)) return LS_OK;
    double number = row->type == LSI_OPT_INT ? (double)value.integer : value.real;
    if (number >= row->min && number <= row->max) return LS_OK;
    if (row->type == LSI_OPT_INT) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected %s, found %" PRId64, where, range,
                        value.integer);
    }
    return lsi_fail(LS_ERR_USAGE, "%s: expected %s, found %g", where, range, value.real);
}

enum { MAX_CHOICES = 64, CHOICES_BYTES = 1024 };

/* Fails, naming the choices and the nearest of them. Tables are ours: one with more words than fit
 * here loses only the suggestion. */
static ls_status fail_choice(const lsi_opt *row, const char *where, const char *found) {
    char words[CHOICES_BYTES];
    const char *list[MAX_CHOICES + 1] = {NULL};
    size_t length = strlen(row->choices);
    if (length < sizeof words) {
        memcpy(words, row->choices, length + 1);
        char *rest = words;
        for (int n = 0; n < MAX_CHOICES && rest; n++) list[n] = strsep(&rest, "|");
    }
    const char *nearest = lsi_nearest(found, list);
    if (!nearest) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected one of %s, found '%s'", where, row->choices,
                        found);
    }
    return lsi_fail(LS_ERR_USAGE, "%s: expected one of %s, found '%s'; did you mean %s?", where,
                    row->choices, found, nearest);
}

static ls_status check_choice(const lsi_opt *row, const char *where, lsi_opt_value value) {
    size_t n = strlen(value.text);
    for (const char *word = row->choices;;) {
        size_t m = strcspn(word, "|");
        if (n == m && memcmp(word, value.text, n) == 0) return LS_OK;
        if (!word[m]) return fail_choice(row, where, value.text);
        word += m + 1;
    }
}

static ls_status check(const lsi_opt *row, const char *where, lsi_opt_value value) {
    if (row->type == LSI_OPT_CHOICE) return check_choice(row, where, value);
    return check_range(row, where, value);
}

ls_status lsi_opt_read_text(const lsi_opt *row, const char *where, const char *text,
                            lsi_opt_value *value) {
    const lsi_opt_type_ops *ops = lsi_opt_ops(row->type);
    if (!ops->from_text(text, value)) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected %s, found '%s'", where, ops->expected, text);
    }
    return check(row, where, *value);
}

static const char *const json_type_names[] = {
    [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array",     [JSON_STRING] = "a text",
    [JSON_INTEGER] = "a number", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
    [JSON_FALSE] = "false",      [JSON_NULL] = "null",
};

ls_status lsi_opt_read_json(const lsi_opt *row, const char *where, const json_t *json,
                            lsi_opt_value *value) {
    const lsi_opt_type_ops *ops = lsi_opt_ops(row->type);
    if (ops->from_json(json, value)) return check(row, where, *value);
    if (json_is_string(json)) {
        return lsi_fail(LS_ERR_USAGE, "%s: expected %s, found \"%s\"", where, ops->expected,
                        json_string_value(json));
    }
    return lsi_fail(LS_ERR_USAGE, "%s: expected %s, found %s", where, ops->expected,
                    json_type_names[json_typeof(json)]);
}
