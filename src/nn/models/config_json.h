/* What the classes' config.json have in common: reading strictly and writing briefly.
 *
 *     lsi_config_reader r = {.json = json, .what = "llama configuration"};
 *     config.n_layer = lsi_config_size(&r, "num_hidden_layers");     … every key of the class …
 *     return lsi_config_finish(&r);                                  all complaints at once
 *
 * A reader goes on after a complaint with some legal number, so that one call reports everything.
 * Complaints are apart by status: what the format forbids (LS_ERR_FORMAT), and what it allows but
 * the model cannot do (LS_ERR_UNSUPPORTED). */
#ifndef LSI_NN_MODELS_CONFIG_JSON_H
#define LSI_NN_MODELS_CONFIG_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "nn/model.h"

/* Collects what is wrong; zeroed at first. Used by the checks of configurations as well. */
typedef struct lsi_complaints {
    char text[700];
    size_t used;
} lsi_complaints;

void lsi_complain(lsi_complaints *list, const char *format, ...) LSI_PRINTF(2, 3);

typedef struct lsi_config_reader {
    const json_t *json; /* an object, see lsi_config_begin */
    const char *what;
    lsi_complaints wrong, unsupported;
} lsi_config_reader;

/* LS_ERR_FORMAT if json is no object. */
LS_CHECKED ls_status lsi_config_begin(lsi_config_reader *r);
LS_CHECKED ls_status lsi_config_finish(const lsi_config_reader *r);

const json_t *lsi_config_get(const lsi_config_reader *r, const char *name);
/* "an integer" … for messages. */
const char *lsi_config_type(const json_t *value);
/* A size from 1 to INT32_MAX that must be there. */
int64_t lsi_config_size(lsi_config_reader *r, const char *name);
/* The same, and what a missing one or null means. */
int64_t lsi_config_size_or(lsi_config_reader *r, const char *name, int64_t missing);
/* A number in [min, max]. */
double lsi_config_number(lsi_config_reader *r, const char *name, double missing, double min,
                         double max);
/* A text that must be one of the words (NULL ends); the first is what missing means. */
void lsi_config_word(lsi_config_reader *r, const char *name, const char *const *words,
                     bool is_required);
bool lsi_config_bool(lsi_config_reader *r, const char *name, bool missing);
/* A switch with one supported position, which is also what missing means. */
void lsi_config_switch(lsi_config_reader *r, const char *name, bool supported);
/* An optional integer or null with one supported value. */
void lsi_config_fixed(lsi_config_reader *r, const char *name, int64_t supported);

/* Writing: nonzero where memory ran out, to be collected with |. */
static inline int lsi_config_put_text(json_t *json, const char *name, const char *text) {
    return json_object_set_new(json, name, json_string(text));
}
static inline int lsi_config_put_size(json_t *json, const char *name, int64_t size) {
    return json_object_set_new(json, name, json_integer(size));
}
static inline int lsi_config_put_number(json_t *json, const char *name, double number) {
    return json_object_set_new(json, name, json_real(number));
}

#endif
