/* What the files of the option table share: opt.c (sources and order), opt_value.c (one value),
 * opt_print.c (help and documentation), nearest.c (suggestions). */
#ifndef LSI_BASE_OPT_INTERNAL_H
#define LSI_BASE_OPT_INTERNAL_H

#include "base/opt.h"

/* A value of any type; which member counts is said by the row. */
typedef union lsi_opt_value {
    int64_t integer;
    double real;
    bool boolean;
    const char *text; /* borrowed; for CHOICE it points to the text that was checked */
} lsi_opt_value;

/* What a type of option is called, reads and writes. */
typedef struct lsi_opt_type_ops {
    const char *expected; /* "a whole number …", for messages */
    const char *metavar;  /* what help shows where a row names no unit */
    bool (*from_text)(const char *text, lsi_opt_value *value);
    bool (*from_json)(const json_t *json, lsi_opt_value *value);
    json_t *(*to_json)(const void *field); /* NULL: out of memory, or a text that is not given */
    void (*store)(void *field, lsi_opt_value value);
} lsi_opt_type_ops;

const lsi_opt_type_ops *lsi_opt_ops(lsi_opt_type type);

bool lsi_opt_has_range(const lsi_opt *row);
/* "1 to 64", "at least 1", "at most 9"; NULL if there is no range. */
const char *lsi_opt_range_text(const lsi_opt *row, char *text, size_t size);

/* Parse and check against the row's range or choices. `where` starts the message: "--steps",
 * "LOCKSTEP_STEPS", "run.json: steps". */
LS_CHECKED ls_status lsi_opt_read_text(const lsi_opt *row, const char *where, const char *text,
                                       lsi_opt_value *value);
LS_CHECKED ls_status lsi_opt_read_json(const lsi_opt *row, const char *where, const json_t *json,
                                       lsi_opt_value *value);

#endif
