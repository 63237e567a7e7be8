/* Subcommands of the program: one file and one row of the table in main.c each. */
#ifndef LSI_CLI_COMMAND_H
#define LSI_CLI_COMMAND_H

#include "base/message.h"
#include "base/opt.h"

/* Exit codes: 0 done, 1 failed while running, 2 nothing was started because the request was wrong.
 */
typedef enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_WRONG_USAGE = 2 } exit_code;

typedef struct command {
    const char *name;
    const char *usage;                       /* what follows the name */
    const char *help;                        /* one line */
    const lsi_opt *options;                  /* NULL: none */
    exit_code (*run)(int argc, char **argv); /* argv[0] is the first argument */
} command;

extern const command commands[]; /* name = NULL ends */

exit_code run_train(int argc, char **argv);
exit_code run_generate(int argc, char **argv);
exit_code run_eval(int argc, char **argv);
exit_code run_program(int argc, char **argv);
exit_code run_bench(int argc, char **argv);
exit_code run_inspect(int argc, char **argv);
exit_code run_version(int argc, char **argv);
exit_code run_help(int argc, char **argv);

extern const lsi_opt run_program_options[];
extern const lsi_opt bench_options[];
extern const lsi_opt inspect_options[];

/* Prints "lockstep: what went wrong" from this thread's message, with the status's advice on a
 * second line, and returns code. */
exit_code report_failure(ls_status status, exit_code code);
/* Says that there is no such command, with the nearest one. */
exit_code refuse_command(const char *word);
/* Says that the command takes no such word. */
exit_code refuse_words(const char *name, const char *word);
/* Hands --algo and --progress on to the groups of workers, after a look at --algo. NULL and "auto"
 * leave the choice to them. */
LS_CHECKED ls_status set_group_options(const char *algo, const char *progress);
/* For commands that are about what they print: code, or 1 with a message if that could not be
 * written (a closed pipe, a full disk). */
exit_code finish_output(exit_code code);
/* Whether the arguments ask for help; then it has been printed. */
bool answer_help(const char *name, int argc, char **argv);
void print_command_help(const command *c);

#endif
