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

static ls_status check_use(const ls_unit_use *use, int k, int n_params) {
    enum { MOST = 1 << 20 };
    if (use->param < 0 || use->param >= n_params)
        return lsi_fail(LS_ERR_ARGUMENT, "use %d: parameter %d, expected 0 to %d", k, use->param,
                        n_params - 1);
    if (use->unit < 0 || use->unit >= MOST)
        return lsi_fail(LS_ERR_ARGUMENT, "use %d: unit %d, expected 0 to %d", k, use->unit,
                        MOST - 1);
    if (use->flags & ~LS_USE_FORWARD_ONLY)
        return lsi_fail(LS_ERR_ARGUMENT, "use %d: flags %d, expected 0 or LS_USE_FORWARD_ONLY (%d)",
                        k, use->flags, LS_USE_FORWARD_ONLY);
    return LS_OK;
}

static ls_status count_units(const ls_unit_use *uses, int n_uses, int n_params, int *n_units) {
    *n_units = 1;
    for (int k = 0; k < n_uses && uses; k++) {
        LSI_TRY(check_use(&uses[k], k, n_params));
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

/* A pair that is said twice is read by all that either says. */
static void note_uses(lsi_unit_plan *plan, const ls_param *params, const ls_unit_use *uses,
                      int n_uses) {
    enum { BOTH = LSI_FORWARD | LSI_BACKWARD };
    for (int k = 0; k < n_uses && uses; k++)
        uses_of(plan, uses[k].param)[uses[k].unit] |=
            uses[k].flags & LS_USE_FORWARD_ONLY ? LSI_FORWARD : BOTH;
    for (int i = 0; i < plan->n_params && !uses; i++)
        if (!(params[i].flags & LS_PARAM_FROZEN)) uses_of(plan, i)[0] = BOTH;
}

/* Before some persist: what no unit uses is frozen, and none of ours. */
static void leave_unused(lsi_unit_plan *plan) {
    for (int i = 0; i < plan->n_params; i++)
        if (first_unit(plan, i) == LSI_PERSISTENT) plan->group[i] = -1;
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
        if (plan->group[places[k].param] >= 0) plan->group[places[k].param] = group;
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
    note_uses(plan, params, uses, n_uses);
    LSI_TRY(check_used(plan, params));
    leave_unused(plan);
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
    size_t n = (size_t)buckets->n_held;
    plan->n_buckets = buckets->n_held;
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

/* ---- what it says ---- */

bool lsi_unit_uses_param(const lsi_unit_plan *plan, int unit, int param) {
    return unit >= 0 && unit < plan->n_units && uses_of(plan, param)[unit] != 0;
}

bool lsi_unit_reads(const lsi_unit_plan *plan, int unit, int bucket, lsi_pass pass) {
    if (unit < 0 || unit >= plan->n_units) return false;
    return uses_of(plan, plan->param[bucket])[unit] & pass;
}

bool lsi_unit_plan_reads_again(const lsi_unit_plan *plan, int bucket) {
    for (int u = 0; u < plan->n_units; u++)
        if (lsi_unit_reads(plan, u, bucket, LSI_BACKWARD)) return true;
    return false;
}

bool lsi_unit_plan_keeps(const lsi_unit_plan *plan, int unit, int bucket, lsi_reshard how) {
    if (lsi_unit_reads(plan, unit + 1, bucket, LSI_FORWARD)) return true;
    if (how.keeps) return !how.turns || lsi_unit_plan_reads_again(plan, bucket);
    return how.turns && unit == plan->n_units - 1 &&
           lsi_unit_reads(plan, unit, bucket, LSI_BACKWARD);
}
