/* The patterns, one row per file of this folder. A new one is its file, its declaration in
 * pattern.h and a row here; tests, explainer and choice iterate over the rows. */
#include <string.h>

#include "comm/pattern/pattern.h"

const lsi_pattern *const lsi_patterns[] = {
    &lsi_pattern_ring,        &lsi_pattern_halving,   &lsi_pattern_doubling, &lsi_pattern_binomial,
    &lsi_pattern_double_tree, &lsi_pattern_two_level, &lsi_pattern_pairwise, NULL,
};

const lsi_pattern *lsi_pattern_find(const char *name) {
    for (int i = 0; name && lsi_patterns[i]; i++)
        if (!strcmp(lsi_patterns[i]->name, name)) return lsi_patterns[i];
    return NULL;
}
