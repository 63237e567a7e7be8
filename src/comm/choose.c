/* The table of algorithms, their costs, LOCKSTEP_ALGO. */
#include "comm/choose.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/collective/collective.h"

/* What fits into an arrival, into lines with flags, into a slot, into a piece. */
const int64_t lsi_cost_bytes[LSI_COST_POINTS] = {LSI_INLINE_BYTES, 1 << 10, 8 << 10, 64 << 10};

/* Of the machine that Lockstep was first measured on, for groups that nobody measured. */
const lsi_costs lsi_costs_default = {.one_shot = {{150, 400, 1200, 9000}},
                                     .direct = {{250, 350, 550, 1800}},
                                     .staged = {{500, 600, 1200, 4500}},
                                     .message_ns = 400,
                                     .passing_ns = 1000,
                                     .message_per_byte_ns = 0.15,
                                     .combine_per_byte_ns = 0.05};

static const char *const memory_names[LSI_ALGORITHM_FIRST_PATTERN] = {
    [LSI_ALGORITHM_NONE] = "none",     [LSI_ALGORITHM_ONE_SHOT] = "one-shot",
    [LSI_ALGORITHM_SHARED] = "shared", [LSI_ALGORITHM_DIRECT] = "direct",
    [LSI_ALGORITHM_STAGED] = "staged",
};

static int n_patterns(void) {
    int n = 0;
    while (lsi_patterns[n]) n++;
    return n;
}

int lsi_n_algorithms(void) {
    return LSI_ALGORITHM_FIRST_PATTERN - 1 + n_patterns();
}

const lsi_pattern *lsi_algorithm_pattern(int algorithm) {
    int index = algorithm - LSI_ALGORITHM_FIRST_PATTERN;
    return index >= 0 && index < n_patterns() ? lsi_patterns[index] : NULL;
}

const char *lsi_algorithm_name(int algorithm) {
    const lsi_pattern *pattern = lsi_algorithm_pattern(algorithm);
    if (pattern) return pattern->name;
    bool known = algorithm > 0 && algorithm < LSI_ALGORITHM_FIRST_PATTERN;
    return memory_names[known ? algorithm : LSI_ALGORITHM_NONE];
}

int lsi_algorithm_from(const char *name) {
    for (int a = 1; a <= lsi_n_algorithms(); a++)
        if (strcmp(name, lsi_algorithm_name(a)) == 0) return a;
    return LSI_ALGORITHM_NONE;
}

/* ---- costs ---- */

lsi_pattern_case lsi_choice_pattern_case(const lsi_choice_case *c) {
    int local = c->local;
    if (local < 1)
        for (local = 1; local * local < c->n;) local *= 2;
    return (lsi_pattern_case){.kind = c->kind, .n = c->n, .root = c->root, .local = local};
}

bool lsi_algorithm_can(int algorithm, const lsi_choice_case *c) {
    const lsi_pattern *pattern = lsi_algorithm_pattern(algorithm);
    lsi_pattern_case p = lsi_choice_pattern_case(c);
    if (c->kind == LSI_CALL_BARRIER) return algorithm == LSI_ALGORITHM_ONE_SHOT;
    if (pattern) return c->n > 1 && pattern->supports(&p) && (!c->reduces || c->default_order);
    if (algorithm == LSI_ALGORITHM_ONE_SHOT) return c->slot_bytes <= LSI_SLOT_BYTES;
    return true;
}

bool lsi_choice_wants_slot(int algorithm, const lsi_choice_case *c, const lsi_costs *costs) {
    if (c->slot_bytes <= LSI_INLINE_BYTES || !lsi_algorithm_can(LSI_ALGORITHM_ONE_SHOT, c))
        return false;
    return algorithm == LSI_ALGORITHM_ONE_SHOT ||
           (algorithm == LSI_ALGORITHM_SHARED &&
            lsi_algorithm_cost_ns(LSI_ALGORITHM_ONE_SHOT, c, costs) <
                lsi_algorithm_cost_ns(LSI_ALGORITHM_STAGED, c, costs));
}

bool lsi_algorithm_keeps_order(int algorithm, const lsi_choice_case *c) {
    const lsi_pattern *pattern = lsi_algorithm_pattern(algorithm);
    lsi_pattern_case p = lsi_choice_pattern_case(c);
    return !pattern || !c->reduces || pattern->keeps_order(&p);
}

static double curve_ns(const lsi_curve *curve, int64_t bytes) {
    int i = 1;
    if (bytes <= lsi_cost_bytes[0]) return curve->ns[0];
    while (i < LSI_COST_POINTS - 1 && bytes > lsi_cost_bytes[i]) i++;
    double share = (double)(bytes - lsi_cost_bytes[i - 1]) /
                   (double)(lsi_cost_bytes[i] - lsi_cost_bytes[i - 1]);
    return curve->ns[i - 1] + share * (curve->ns[i] - curve->ns[i - 1]);
}

/* Contributions of many parts beyond a few lines do not come with flags: one trip more. */
static double one_shot_ns(const lsi_choice_case *c, const lsi_costs *costs) {
    bool in_parts = lsi_shape_of(c->kind)->many_in && c->slot_bytes > LSI_FLAGGED_PARTS_BYTES;
    return curve_ns(&costs->one_shot, c->slot_bytes) + (in_parts ? costs->one_shot.ns[0] : 0);
}

double lsi_algorithm_cost_ns(int algorithm, const lsi_choice_case *c, const lsi_costs *costs) {
    const lsi_pattern *pattern = lsi_algorithm_pattern(algorithm);
    double bytes = (double)c->bytes;
    switch (algorithm) {
    case LSI_ALGORITHM_ONE_SHOT: return one_shot_ns(c, costs);
    case LSI_ALGORITHM_SHARED:
    case LSI_ALGORITHM_DIRECT: return curve_ns(&costs->direct, c->bytes);
    case LSI_ALGORITHM_STAGED: return curve_ns(&costs->staged, c->bytes);
    default: break;
    }
    if (!pattern) return 0;
    lsi_pattern_case p = lsi_choice_pattern_case(c);
    lsi_pattern_cost cost = pattern->cost(&p);
    return costs->passing_ns + cost.messages * costs->message_ns +
           cost.bytes * bytes * costs->message_per_byte_ns +
           cost.combined_bytes * bytes * costs->combine_per_byte_ns;
}

/* ---- the choice ---- */

static const lsi_rule *find_rule(const lsi_choice_case *c, const lsi_rules *rules) {
    for (int i = rules ? rules->n - 1 : -1; i >= 0; i--) {
        const lsi_rule *rule = &rules->rule[i];
        if (rule->kind != 0 && rule->kind != c->kind) continue;
        if (c->bytes < rule->min_bytes || c->bytes > rule->max_bytes) continue;
        if (rule->kind == 0 && !lsi_algorithm_can(rule->algorithm, c)) continue;
        return rule;
    }
    return NULL;
}

/* What is put together from the costs of single messages may be this much too good: channels of
 * calls in a row get into each other's way, other ways through memory are measured as whole calls.
 * All-gather of 64 KiB to 16 MiB by ring takes 1.6 to 2.3 times as long as direct where costs said
 * 1.0 to 1.4 (`lockstep bench allgather`, with --algo and with --explain), so a noisy measurement
 * would now and then take it. */
static const double DOUBT_ABOUT_MESSAGES = 1.5;

/* Only what gives the bits of the order tree is chosen unasked; DIRECT and STAGED are what SHARED
 * becomes. */
static int cheapest(const lsi_choice_case *c, const lsi_costs *costs) {
    int best = LSI_ALGORITHM_SHARED;
    double best_ns = lsi_algorithm_cost_ns(best, c, costs);
    if (c->kind == LSI_CALL_BARRIER) return LSI_ALGORITHM_ONE_SHOT;
    for (int a = 1; a <= lsi_n_algorithms(); a++) {
        if (a == LSI_ALGORITHM_DIRECT || a == LSI_ALGORITHM_STAGED) continue;
        if (!lsi_algorithm_can(a, c) || !lsi_algorithm_keeps_order(a, c)) continue;
        double ns = lsi_algorithm_cost_ns(a, c, costs);
        if (lsi_algorithm_pattern(a)) ns *= DOUBT_ABOUT_MESSAGES;
        if (ns < best_ns) best = a, best_ns = ns;
    }
    return best;
}

ls_status lsi_choose(const lsi_choice_case *c, const lsi_costs *costs, const lsi_rules *rules,
                     int *algorithm, bool *forced) {
    const lsi_rule *rule = find_rule(c, rules);
    *forced = rule != NULL;
    if (!rule) {
        *algorithm = cheapest(c, costs);
        return LS_OK;
    }
    if (!lsi_algorithm_can(rule->algorithm, c))
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "%s: LOCKSTEP_ALGO asks for %s, which cannot do this call (%d ranks, %lld "
                        "bytes%s)",
                        lsi_call_kind_name(c->kind), lsi_algorithm_name(rule->algorithm), c->n,
                        (long long)c->bytes,
                        c->reduces && !c->default_order ? ", an order of reduction of its own"
                                                        : "");
    *algorithm = rule->algorithm;
    return LS_OK;
}

/* ---- LOCKSTEP_ALGO ---- */

static bool parse_bytes(const char *text, int64_t *bytes) {
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || value < 0 || errno) return false;
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (*end != 0 || value > INT64_MAX >> shift) return false;
    *bytes = (int64_t)value << shift;
    return true;
}

/* MIN-MAX, either may be missing. Cuts the text. */
static bool parse_range(char *text, lsi_rule *rule) {
    char *dash = strchr(text, '-');
    if (!dash) return false;
    *dash = 0;
    if (*text && !parse_bytes(text, &rule->min_bytes)) return false;
    if (dash[1] && !parse_bytes(dash + 1, &rule->max_bytes)) return false;
    return rule->min_bytes <= rule->max_bytes;
}

static ls_status parse_rule(const char *entry, lsi_rule *rule) {
    char text[128], *algorithm = text;
    *rule = (lsi_rule){.max_bytes = INT64_MAX};
    snprintf(text, sizeof text, "%s", entry);
    char *equals = strchr(text, '=');
    if (equals) {
        *equals = 0;
        algorithm = equals + 1;
        char *colon = strchr(text, ':');
        if (colon) *colon = 0;
        rule->kind = lsi_call_kind_from(text);
        if (rule->kind < 0 || rule->kind == LSI_CALL_SEND || rule->kind == LSI_CALL_RECV)
            return lsi_fail(LS_ERR_USAGE,
                            "LOCKSTEP_ALGO: '%s': no collective is called '%s'; expected barrier, "
                            "broadcast, allreduce, reduce, reducescatter, allgather, gather, "
                            "scatter or alltoall",
                            entry, text);
        if (colon && !parse_range(colon + 1, rule))
            return lsi_fail(LS_ERR_USAGE,
                            "LOCKSTEP_ALGO: '%s': expected sizes like 64K-1M after the colon",
                            entry);
    }
    rule->algorithm = lsi_algorithm_from(algorithm);
    if (rule->algorithm != LSI_ALGORITHM_NONE) return LS_OK;
    char names[256] = "";
    for (int a = 1; a <= lsi_n_algorithms(); a++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", a > 1 ? ", " : "",
                 lsi_algorithm_name(a));
    return lsi_fail(LS_ERR_USAGE, "LOCKSTEP_ALGO: '%s': no algorithm is called '%s'; there are %s",
                    entry, algorithm, names);
}

ls_status lsi_rules_parse(const char *text, lsi_rules *rules) {
    rules->n = 0;
    while (text && *text) {
        size_t length = strcspn(text, ",");
        char entry[128];
        if (length >= sizeof entry || rules->n == LSI_MAX_RULES)
            return lsi_fail(LS_ERR_USAGE,
                            "LOCKSTEP_ALGO: '%.100s…': at most %d entries of %zu letters are "
                            "possible",
                            text, LSI_MAX_RULES, sizeof entry - 1);
        memcpy(entry, text, length);
        entry[length] = 0;
        LSI_TRY(parse_rule(entry, &rules->rule[rules->n]));
        rules->n++;
        text += length + (text[length] == ',');
    }
    return LS_OK;
}
