/* Which algorithm does a call: the cheapest by measured costs, or the one that is forced.
 *
 * The choice is a pure function of what all ranks know: the call, the group's costs (measured once,
 * sent by rank 0) and LOCKSTEP_ALGO (which a launcher gives to all alike). It is part of the call's
 * fingerprint, so ranks that were told different things get an error and not a hang. */
#ifndef LSI_COMM_CHOOSE_H
#define LSI_COMM_CHOOSE_H

#include "base/message.h"
#include "comm/call.h"
#include "comm/pattern/pattern.h"

/* SHARED is what is chosen: direct where every buffer concerned is shared; else one-shot where that
 * is cheaper than staged, and all contributions are private; else staged. The others
 * are also forced; DIRECT is then refused where a buffer is private. From FIRST_PATTERN on:
 * lsi_patterns[]. */
typedef enum lsi_algorithm {
    LSI_ALGORITHM_NONE,
    LSI_ALGORITHM_ONE_SHOT,
    LSI_ALGORITHM_SHARED,
    LSI_ALGORITHM_DIRECT,
    LSI_ALGORITHM_STAGED,
    LSI_ALGORITHM_FIRST_PATTERN,
} lsi_algorithm;

const char *lsi_algorithm_name(int algorithm);
/* NONE if there is none of this name. */
int lsi_algorithm_from(const char *name);
/* The pattern of an algorithm, NULL if it is none. */
const lsi_pattern *lsi_algorithm_pattern(int algorithm);

/* What things cost in this group, measured by calibrate.c, in nanoseconds. A curve has the time of
 * a call at sizes lsi_cost_bytes[]; linear in between and beyond. */
enum { LSI_COST_POINTS = 4 };
extern const int64_t lsi_cost_bytes[LSI_COST_POINTS];
typedef struct lsi_curve {
    double ns[LSI_COST_POINTS];
} lsi_curve;
typedef struct lsi_costs {
    lsi_curve one_shot;       /* by the bytes of a contribution */
    lsi_curve direct, staged; /* by S, the bytes of the call's larger buffer on one rank */
    double message_ns, message_per_byte_ns; /* one message between two ranks */
    double passing_ns;                      /* to set up a call that passes messages */
    double combine_per_byte_ns;
} lsi_costs;
extern const lsi_costs lsi_costs_default;

/* One entry of LOCKSTEP_ALGO: [COLLECTIVE[:MIN-MAX]=]ALGORITHM, entries separated by commas. */
typedef struct lsi_rule {
    int kind; /* 0: every collective that the algorithm can do */
    int64_t min_bytes, max_bytes;
    int algorithm;
} lsi_rule;
enum { LSI_MAX_RULES = 32 };
typedef struct lsi_rules {
    int n;
    lsi_rule rule[LSI_MAX_RULES]; /* the last one that fits wins */
} lsi_rules;
/* text NULL or empty: no rules. LS_ERR_USAGE names the entry and what is possible. */
LS_CHECKED ls_status lsi_rules_parse(const char *text, lsi_rules *rules);

/* What a call looks like to the choice. */
typedef struct lsi_choice_case {
    int kind, n, root, local;
    int64_t bytes;      /* S: of the larger buffer on one rank */
    int64_t slot_bytes; /* of the largest contribution of a rank, what one-shot must hold */
    bool reduces;
    bool default_order; /* patterns know no other */
} lsi_choice_case;

/* LS_ERR_UNSUPPORTED when a rule for this collective names an algorithm that cannot do it. */
LS_CHECKED ls_status lsi_choose(const lsi_choice_case *c, const lsi_costs *costs,
                                const lsi_rules *rules, int *algorithm, bool *forced);
/* Whether the algorithm can do the case at all. */
bool lsi_algorithm_can(int algorithm, const lsi_choice_case *c);
/* Whether contributions go into slots: always for one-shot calls beyond a line; for SHARED where
 * one-shot is what suits private buffers best. */
bool lsi_choice_wants_slot(int algorithm, const lsi_choice_case *c, const lsi_costs *costs);
/* Whether its result has the bits of the order tree. */
bool lsi_algorithm_keeps_order(int algorithm, const lsi_choice_case *c);
double lsi_algorithm_cost_ns(int algorithm, const lsi_choice_case *c, const lsi_costs *costs);
/* The case as patterns see it. local = 0: one machine, where nodes are pretended, as many as they
 * have ranks. */
lsi_pattern_case lsi_choice_pattern_case(const lsi_choice_case *c);
int lsi_n_algorithms(void); /* ids are 1 … n */

#endif
