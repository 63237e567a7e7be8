/* Reading configurations of models (see config_json.h). */
#include "nn/models/config_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void lsi_complain(lsi_complaints *list, const char *format, ...) {
    if (list->used + 3 >= sizeof list->text) return;
    if (list->used) list->used += (size_t)sprintf(list->text + list->used, "; ");
    va_list values;
    va_start(values, format);
    size_t room = sizeof list->text - list->used;
    int n = vsnprintf(list->text + list->used, room, format, values);
    va_end(values);
    list->used += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

const char *lsi_config_type(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list",       [JSON_STRING] = "a text",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return value ? names[json_typeof(value)] : "nothing";
}

const json_t *lsi_config_get(const lsi_config_reader *r, const char *name) {
    return json_object_get(r->json, name);
}

ls_status lsi_config_begin(lsi_config_reader *r) {
    if (json_is_object(r->json)) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: %s, expected a JSON object", r->what,
                    lsi_config_type(r->json));
}

ls_status lsi_config_finish(const lsi_config_reader *r) {
    if (r->wrong.used)
        return lsi_fail(LS_ERR_FORMAT, "%s: %s%s%s", r->what, r->wrong.text,
                        r->unsupported.used ? "; " : "", r->unsupported.text);
    if (r->unsupported.used)
        return lsi_fail(LS_ERR_UNSUPPORTED, "%s: %s", r->what, r->unsupported.text);
    return LS_OK;
}

/* ---- numbers ---- */

static int64_t size_of(lsi_config_reader *r, const char *name, const json_t *value) {
    if (!json_is_integer(value))
        lsi_complain(&r->wrong, "%s is %s, expected an integer", name, lsi_config_type(value));
    else if (json_integer_value(value) < 1 || json_integer_value(value) > INT32_MAX)
        lsi_complain(&r->wrong, "%s is %lld, expected 1 to %d", name,
                     (long long)json_integer_value(value), INT32_MAX);
    else
        return json_integer_value(value);
    return 1; /* any legal number: the reading has failed already */
}

int64_t lsi_config_size(lsi_config_reader *r, const char *name) {
    const json_t *value = lsi_config_get(r, name);
    if (value) return size_of(r, name, value);
    lsi_complain(&r->wrong, "%s is missing", name);
    return 1;
}

int64_t lsi_config_size_or(lsi_config_reader *r, const char *name, int64_t missing) {
    const json_t *value = lsi_config_get(r, name);
    return !value || json_is_null(value) ? missing : size_of(r, name, value);
}

double lsi_config_number(lsi_config_reader *r, const char *name, double missing, double min,
                         double max) {
    const json_t *value = lsi_config_get(r, name);
    if (!value) return missing;
    double number = json_number_value(value);
    if (!json_is_number(value))
        lsi_complain(&r->wrong, "%s is %s, expected a number", name, lsi_config_type(value));
    else if (!(number >= min && number <= max))
        lsi_complain(&r->wrong, "%s is %g, expected %g to %g", name, number, min, max);
    else
        return number;
    return missing;
}

void lsi_config_fixed(lsi_config_reader *r, const char *name, int64_t supported) {
    const json_t *value = lsi_config_get(r, name);
    if (!value || json_is_null(value)) return;
    if (!json_is_integer(value))
        lsi_complain(&r->wrong, "%s is %s, expected an integer", name, lsi_config_type(value));
    else if (json_integer_value(value) != supported)
        lsi_complain(&r->unsupported, "%s is %lld, supported is %lld", name,
                     (long long)json_integer_value(value), (long long)supported);
}

/* ---- texts and switches ---- */

void lsi_config_word(lsi_config_reader *r, const char *name, const char *const *words,
                     bool is_required) {
    const json_t *value = lsi_config_get(r, name);
    if (!value) {
        if (is_required) lsi_complain(&r->wrong, "%s is missing, expected \"%s\"", name, words[0]);
        return;
    }
    if (!json_is_string(value)) {
        lsi_complain(&r->wrong, "%s is %s, expected a text", name, lsi_config_type(value));
        return;
    }
    for (int i = 0; words[i]; i++)
        if (strcmp(json_string_value(value), words[i]) == 0) return;
    lsi_complain(&r->unsupported, "%s is \"%.40s\", supported is \"%s\"", name,
                 json_string_value(value), words[0]);
}

bool lsi_config_bool(lsi_config_reader *r, const char *name, bool missing) {
    const json_t *value = lsi_config_get(r, name);
    if (!value) return missing;
    if (json_is_boolean(value)) return json_is_true(value);
    lsi_complain(&r->wrong, "%s is %s, expected true or false", name, lsi_config_type(value));
    return missing;
}

void lsi_config_switch(lsi_config_reader *r, const char *name, bool supported) {
    if (lsi_config_bool(r, name, supported) != supported)
        lsi_complain(&r->unsupported, "%s is %s, supported is %s", name,
                     supported ? "false" : "true", supported ? "true" : "false");
}
