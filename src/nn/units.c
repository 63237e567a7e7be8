/* Lists of what units use, and rules that join units (see units.h).
 *
 * A list is made in two passes over the same code, of which the first only counts. A joined unit
 * has a stamp, the number of its first unit plus one; a parameter that bears the stamp belongs to
 * it, and a second one says that backward reads it. Joining goes through units in order and asks
 * only for the stamp at hand, so no stamp need be taken off again. */
#include "nn/units.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "base/opt_internal.h"

/* ---- making a list ---- */

static void add(lsi_use_list *list, lsi_unit_use pair) {
    if (list->pairs) list->pairs[list->n] = pair;
    list->n++;
}

void lsi_use(lsi_use_list *list, int unit, int n_units, int first, int n_params) {
    for (int u = 0; u < n_units; u++)
        for (int i = 0; i < n_params; i++)
            add(list, (lsi_unit_use){unit + u, first + u * n_params + i, .forward_only = false});
}

void lsi_use_tables(lsi_use_list *list, int unit, int first, int n_params) {
    for (int i = 0; i < n_params; i++)
        add(list, (lsi_unit_use){unit, first + i, .forward_only = true});
}

/* Room for what was counted, to be filled from the beginning. */
static ls_status make_room(lsi_use_list *list) {
    if (list->n > INT_MAX)
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "units and the parameters they use: expected at most %d pairs, found %lld",
                        INT_MAX, (long long)list->n);
    list->pairs = lsi_calloc(LSI_MEM_OTHER, (size_t)list->n, sizeof *list->pairs);
    list->n = 0;
    return lsi_check_alloc(list->pairs);
}

ls_status lsi_units_of(const lsi_model *model, lsi_unit_use **uses, int *n_uses) {
    lsi_use_list list = {0};
    model->class->uses(model, &list);
    LSI_TRY(make_room(&list));
    model->class->uses(model, &list);
    *uses = list.pairs;
    *n_uses = (int)list.n;
    return LS_OK;
}

/* ---- where joined units begin ---- */

typedef struct joining {
    const lsi_model *model;
    const lsi_unit_use *uses;
    int n_uses, n_units;
    bool *begins; /* of each unit: whether a joined one begins with it */
    int *stamps;  /* of each parameter */
    int *again;   /* of each that backward reads */
} joining;

/* With each unit that finds the joined one at hand large enough. */
static ls_status begin_by_size(joining *j, const char *rule) {
    static const lsi_opt row = {.type = LSI_OPT_INT, .min = 1, .max = 1e19};
    lsi_opt_value least;
    LSI_TRY(lsi_opt_read_text(&row, "--unit", rule, &least));
    int64_t n_elems = 0;
    for (int unit = 0, at = 0, stamp = 1; unit < j->n_units; unit++) {
        if (n_elems >= least.integer) {
            j->begins[unit] = true;
            stamp = unit + 1;
            n_elems = 0;
        }
        for (; at < j->n_uses && j->uses[at].unit == unit; at++) {
            int param = j->uses[at].param;
            if (j->stamps[param] != stamp) n_elems += j->model->params[param].count;
            j->stamps[param] = stamp;
        }
    }
    return LS_OK;
}

/* Whether any unit begins with it. */
static bool begin_by_word(joining *j, const char *word, size_t n) {
    bool is_found = false;
    for (int i = 0; n > 0 && i < j->n_uses; i++) {
        if (!lsi_model_name_begins(j->model, j->uses[i].param, word, n)) continue;
        j->begins[j->uses[i].unit] = true;
        is_found = true;
    }
    return is_found;
}

static ls_status fail_word(const joining *j, const char *rule, const char *word, size_t n) {
    if (n == 0)
        return lsi_fail(LS_ERR_USAGE,
                        "--unit '%s': expected block, a number of parameters, or beginnings of "
                        "their names with commas between them; found an empty one",
                        rule);
    return lsi_fail(LS_ERR_USAGE,
                    "--unit %s: no parameter has a name that begins with '%.*s'; one of them is %s "
                    "(lockstep inspect MODEL lists all)",
                    rule, (int)n, word, j->model->params[j->uses[j->n_uses / 2].param].name);
}

static ls_status begin_by_words(joining *j, const char *rule) {
    for (const char *word = rule;; word++) {
        size_t n = strcspn(word, ",");
        if (!begin_by_word(j, word, n)) return fail_word(j, rule, word, n);
        word += n;
        if (!*word) return LS_OK;
    }
}

static ls_status find_beginnings(joining *j, const char *rule) {
    bool is_number = isdigit((unsigned char)rule[0]) || rule[0] == '-' || rule[0] == '+';
    return is_number ? begin_by_size(j, rule) : begin_by_words(j, rule);
}

/* ---- joining ---- */

/* A joined unit, which has pairs from *at on: all its parameters for each of begin … end - 1. */
static void join_range(joining *j, int begin, int end, int *at, lsi_use_list *list) {
    int stamp = begin + 1, low = INT_MAX, high = -1;
    for (; *at < j->n_uses && j->uses[*at].unit < end; ++*at) {
        int param = j->uses[*at].param;
        j->stamps[param] = stamp;
        if (!j->uses[*at].forward_only) j->again[param] = stamp;
        if (param < low) low = param;
        if (param > high) high = param;
    }
    for (int unit = begin; unit < end; unit++)
        for (int param = low; param <= high; param++)
            if (j->stamps[param] == stamp)
                add(list, (lsi_unit_use){unit, param, j->again[param] != stamp});
}

static void join(joining *j, lsi_use_list *list) {
    for (int begin = 0, end = 1, at = 0; begin < j->n_units; begin = end++) {
        while (end < j->n_units && !j->begins[end]) end++;
        join_range(j, begin, end, &at, list);
    }
}

static ls_status begin_and_join(joining *j, const char *rule, lsi_use_list *list) {
    LSI_TRY(lsi_check_alloc(j->begins && j->stamps && j->again ? j : NULL));
    LSI_TRY(find_beginnings(j, rule));
    join(j, list);
    LSI_TRY(make_room(list));
    join(j, list);
    return LS_OK;
}

ls_status lsi_units_merge(const lsi_model *model, const char *rule, lsi_unit_use **uses,
                          int *n_uses) {
    if (strcmp(rule, "block") == 0) return LS_OK;
    joining j = {.model = model,
                 .uses = *uses,
                 .n_uses = *n_uses,
                 .n_units = model->class->n_units(&model->config)};
    lsi_use_list list = {0};
    j.begins = lsi_calloc(LSI_MEM_OTHER, (size_t)j.n_units, sizeof *j.begins);
    j.stamps = lsi_calloc(LSI_MEM_OTHER, (size_t)model->n_params, sizeof *j.stamps);
    j.again = lsi_calloc(LSI_MEM_OTHER, (size_t)model->n_params, sizeof *j.again);
    ls_status status = begin_and_join(&j, rule, &list);
    lsi_free(j.again);
    lsi_free(j.stamps);
    lsi_free(j.begins);
    LSI_TRY(status);
    lsi_free(*uses);
    *uses = list.pairs;
    *n_uses = (int)list.n;
    return LS_OK;
}
