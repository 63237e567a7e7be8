/* Which unit of a model computes with which parameters, for strategies that have the parameters of
 * a unit in memory only while it runs.
 *
 * A unit is what lies between lsi_tape_unit_begin and lsi_tape_unit_end, and it uses the parameters
 * that its forward makes leaves of: forward and backward of a unit look at the data of these and of
 * no others. What several units use (a tied table) has a pair for each. Running statistics have
 * none: they are no leaves, and nothing shards them.
 *
 * Backward of an embedding writes the table's gradient without looking at the table, so its pair is
 * marked. (The tape checkpoints no unit 0, or backward would look up rows again.) Biases that
 * backward does not read either are not marked: they are too small to be gathered on their own.
 *
 * Lists of pairs are sorted by unit, then by parameter, and have no pair twice. */
#ifndef LSI_NN_UNITS_H
#define LSI_NN_UNITS_H

#include <stdbool.h>

#include "nn/model.h"

typedef struct lsi_unit_use {
    int unit, param;
    bool forward_only; /* backward of the unit does not look at the parameter's data */
} lsi_unit_use;

/* For lsi_model_class.uses: a list while it is made. */
struct lsi_use_list {
    lsi_unit_use *pairs; /* NULL: they are only counted */
    int64_t n;
};

/* Units `unit` … unit + n_units - 1 use n_params parameters each, one after the other, the first of
 * all being `first`. */
void lsi_use(lsi_use_list *list, int unit, int n_units, int first, int n_params);
/* A unit looks up rows of n_params tables, the first of them being `first`. */
void lsi_use_tables(lsi_use_list *list, int unit, int first, int n_params);

/* The caller releases *uses with lsi_free. */
LS_CHECKED ls_status lsi_units_of(const lsi_model *model, lsi_unit_use **uses, int *n_uses);

/* Joins units as --unit of `lockstep train` says: "block" joins none; a number, one after the other
 * until they have so many elements of parameters, each counted once; words with commas between
 * them, up to the next unit with a parameter whose name begins with one of them. Units keep their
 * numbers, but each one of those joined uses what any of them does, in backward as well, so that
 * all of it comes and goes together. Replaces the list, on success only; LS_ERR_USAGE for a rule
 * that is none. */
LS_CHECKED ls_status lsi_units_merge(const lsi_model *model, const char *rule, lsi_unit_use **uses,
                                     int *n_uses);

#endif
