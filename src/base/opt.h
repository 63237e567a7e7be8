/* The option table: one row per option gives the command line, the configuration file, the
 * environment, --help and docs/options.md.
 *
 * A subcommand declares a struct of values and a table of rows that point into it. Sources, later
 * wins: default < --config FILE (JSON object) < environment LOCKSTEP_<NAME> < command line. A wrong
 * value is an error even where a later source overrides it. An empty environment variable and a
 * null in the file count as not given; a file cannot name another one. */
#ifndef LSI_BASE_OPT_H
#define LSI_BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "base/message.h"

typedef enum lsi_opt_type {
    LSI_OPT_INT,    /* int64_t; accepts suffixes k, M, G (1000s) and Ki, Mi, Gi */
    LSI_OPT_FLOAT,  /* double */
    LSI_OPT_BOOL,   /* bool; --name, --no-name, --name=true|false */
    LSI_OPT_TEXT,   /* const char * (owned by the parse result); NULL when not given */
    LSI_OPT_CHOICE, /* const char *, one of the words in `choices` */
} lsi_opt_type;

typedef struct lsi_opt {
    const char *name; /* "micro-batch-size", at most 64 letters; NULL ends the table */
    char letter;      /* short form, 0: none */
    lsi_opt_type type;
    size_t offset;       /* of the value in the struct of values */
    const char *unit;    /* "tokens", "ms", "FILE" …: shown in help; NULL: none */
    const char *initial; /* default as text; NULL: not given (0, false, NULL) */
    double min, max;     /* legal range of numbers, both included; both 0: any */
    const char *choices; /* "a|b|c" for LSI_OPT_CHOICE */
    const char *group;   /* heading in help, "Model", "Run" … */
    const char *help;    /* one sentence */
} lsi_opt;

typedef struct lsi_opt_set lsi_opt_set; /* the parse result; owns texts, knows who set what */

typedef enum lsi_opt_source {
    LSI_OPT_FROM_DEFAULT,
    LSI_OPT_FROM_CONFIG,
    LSI_OPT_FROM_ENVIRONMENT,
    LSI_OPT_FROM_COMMAND_LINE,
} lsi_opt_source;

/* Parses arguments (argv[0] is the first argument, not the program) into *values. The option
 * "config" (LSI_OPT_TEXT), if the table has it, names a configuration file. Every bad option is
 * LS_ERR_USAGE with the near name suggested ("unknown option --werkers; did you mean --workers?"),
 * the legal range or the choices. At most n_positional words may come without a dash; they go to
 * positional[] in order (NULL where missing), borrowed from argv. `--` ends options. Forms: --name
 * value, --name=value, -x value, -xvalue; a value that begins with a dash and is no number needs
 * the = form. On failure *values and *set stay untouched.
 * On success *set must be released with lsi_opt_destroy, after the last use of *values. */
LS_CHECKED ls_status lsi_opt_parse(const lsi_opt *table, int argc, char **argv, void *values,
                                   const char **positional, int n_positional, lsi_opt_set **set);
void lsi_opt_destroy(lsi_opt_set *set);
lsi_opt_source lsi_opt_where(const lsi_opt_set *set, const char *name);

/* The values as a JSON object that --config accepts (new reference; NULL when memory ran out). */
json_t *lsi_opt_to_json(const lsi_opt *table, const void *values);
/* Help text by groups, wrapped to `columns`. */
void lsi_opt_print_help(const lsi_opt *table, FILE *out, int columns);
/* Markdown table for docs/options.md. */
void lsi_opt_print_markdown(const lsi_opt *table, FILE *out);
/* The word of the NULL-terminated list nearest to `word` by edit distance, NULL if none is near. */
const char *lsi_nearest(const char *word, const char *const *list);

#endif
