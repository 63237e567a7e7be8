/* Parameters sorted by the units that use them. */
#include "parallel/units.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static unsigned char *uses_of(const lsi_unit_plan *plan, int param) {
    return plan->uses + (int64_t)param * plan->n_units;
}

static int first_unit(const lsi_unit_plan *plan, int param) {
    for (int u = 0; u < plan->n_units; u++)
        if (uses_of(plan, param)[u]) return u;
    return LSI_PERSISTENT;
}

/* ---- what the caller says ---- */

static ls_status count_units(const ls_unit_use *uses, int n_uses, int n_params, int *n_units) {
    enum { MOST = 1 << 20 };
    *n_units = 1;
    for (int k = 0; k < n_uses && uses; k++) {
        if (uses[k].param < 0 || uses[k].param >= n_params)
            return lsi_fail(LS_ERR_ARGUMENT, "use %d: parameter %d, expected 0 to %d", k,
                            uses[k].param, n_params - 1);
        if (uses[k].unit < 0 || uses[k].unit >= MOST)
            return lsi_fail(LS_ERR_ARGUMENT, "use %d: unit %d, expected 0 to %d", k, uses[k].unit,
                            MOST - 1);
        if (uses[k].unit >= *n_units) *n_units = uses[k].unit + 1;
    }
    return LS_OK;
}

static ls_status check_used(const lsi_unit_plan *plan, const ls_param *params) {
    for (int i = 0; i < plan->n_params; i++)
        if (!(params[i].flags & LS_PARAM_FROZEN) && first_unit(plan, i) == LSI_PERSISTENT)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "parameter %s is used by no unit, so it would never be gathered",
                            params[i].name);
    return LS_OK;
}

static void note_uses(lsi_unit_plan *plan, const ls_unit_use *uses, int n_uses) {
    for (int k = 0; k < n_uses && uses; k++) uses_of(plan, uses[k].param)[uses[k].unit] = 1;
    for (int i = 0; i < plan->n_params && !uses; i++) uses_of(plan, i)[0] = 1;
}

static void let_persist(lsi_unit_plan *plan, const ls_param *params, int64_t below) {
    for (int i = 0; i < plan->n_params; i++)
        if (params[i].count < below) memset(uses_of(plan, i), 0, (size_t)plan->n_units);
}

/* ---- order ---- */

typedef struct place {
    int param, first, n_units;
    const unsigned char *uses;
} place;

static int compare_uses(const place *a, const place *b) {
    if (a->first != b->first) return a->first > b->first ? -1 : 1;
    return memcmp(a->uses, b->uses, (size_t)a->n_units);
}

static int compare_places(const void *left, const void *right) {
    const place *a = left, *b = right;
    int by_uses = compare_uses(a, b);
    return by_uses != 0 ? by_uses : (b->param > a->param) - (b->param < a->param);
}

static ls_status sort(lsi_unit_plan *plan) {
    size_t n = (size_t)plan->n_params;
    place *places = lsi_calloc(LSI_MEM_OTHER, n, sizeof *places);
    LSI_TRY(lsi_check_alloc(places));
    for (int i = 0; i < plan->n_params; i++)
        places[i] = (place){i, first_unit(plan, i), plan->n_units, uses_of(plan, i)};
    qsort(places, n, sizeof *places, compare_places);
    for (int k = 0, group = 0; k < plan->n_params; k++) {
        group += k > 0 && compare_uses(&places[k - 1], &places[k]) != 0;
        plan->order[k] = places[k].param;
        plan->group[places[k].param] = group;
    }
    lsi_free(places);
    return LS_OK;
}

/* ---- the plan ---- */

static ls_status allocate(lsi_unit_plan *plan) {
    size_t n = (size_t)plan->n_params;
    plan->uses = lsi_calloc(LSI_MEM_OTHER, n, (size_t)plan->n_units);
    plan->order = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->order);
    plan->group = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->group);
    return plan->uses && plan->order && plan->group ? LS_OK : LS_ERR_MEMORY;
}

static ls_status fill(lsi_unit_plan *plan, const ls_param *params, const ls_unit_use *uses,
                      int n_uses, int64_t persist_below) {
    LSI_TRY(allocate(plan));
    note_uses(plan, uses, n_uses);
    LSI_TRY(check_used(plan, params));
    let_persist(plan, params, persist_below);
    return sort(plan);
}

ls_status lsi_unit_plan_create(const ls_param *params, int n_params, const ls_unit_use *uses,
                               int n_uses, int64_t persist_below, lsi_unit_plan *plan) {
    *plan = (lsi_unit_plan){.n_params = n_params};
    LSI_TRY(count_units(uses, n_uses, n_params, &plan->n_units));
    ls_status status = fill(plan, params, uses, n_uses, persist_below);
    if (status != LS_OK) lsi_unit_plan_fini(plan);
    return status;
}

ls_status lsi_unit_plan_use_buckets(lsi_unit_plan *plan, const lsi_bucket_plan *buckets) {
    size_t n = (size_t)buckets->n_buckets;
    plan->n_buckets = buckets->n_buckets;
    plan->param = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->param);
    plan->first = lsi_calloc(LSI_MEM_OTHER, n, sizeof *plan->first);
    if (!plan->param || !plan->first) return LS_ERR_MEMORY;
    for (int b = 0; b < plan->n_buckets; b++) {
        plan->param[b] = buckets->sequence[buckets->buckets[b].first];
        plan->first[b] = first_unit(plan, plan->param[b]);
    }
    return LS_OK;
}

void lsi_unit_plan_fini(lsi_unit_plan *plan) {
    lsi_free(plan->uses);
    lsi_free(plan->order);
    lsi_free(plan->group);
    lsi_free(plan->param);
    lsi_free(plan->first);
    *plan = (lsi_unit_plan){.uses = NULL};
}
