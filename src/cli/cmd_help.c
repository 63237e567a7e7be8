/* `lockstep help`: the list of commands, one command's options, or all options as Markdown. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"

static int columns(void) {
    const char *text = getenv("COLUMNS");
    int n = text ? atoi(text) : 0;
    return n >= 40 ? n : 100;
}

static const command *find(const char *name) {
    for (const command *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

void print_command_help(const command *c) {
    printf("Usage: lockstep %s %s\n%s.\n", c->name, c->usage, c->help);
    if (!c->options) return;
    printf("\n");
    lsi_opt_print_help(c->options, stdout, columns());
    printf("\nEvery option can also stand in a file for --config, or in the environment as "
           "LOCKSTEP_NAME.\n");
}

/* Arguments behind `--` belong to somebody else's program. */
bool answer_help(const char *name, int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        print_command_help(find(name));
        return true;
    }
    return false;
}

static void print_overview(void) {
    printf("Lockstep: data-parallel training in C.\n\nUsage: lockstep COMMAND [options]\n\n");
    for (const command *c = commands; c->name; c++) printf("  %-10s %s\n", c->name, c->help);
    printf("\n`lockstep help COMMAND` lists its options. Exit codes: 0 done, 1 failed, 2 wrong "
           "usage.\n");
}

static void print_markdown(void) {
    printf("# Options\n\nMade by `lockstep help --markdown` from the option tables in the "
           "source.\n\nEvery option can also stand in a JSON file for `--config`, or in the "
           "environment as `LOCKSTEP_NAME` (`LOCKSTEP_BATCH_SIZE=64`). Later wins: default, "
           "`--config`, environment, command line.\n");
    for (const command *c = commands; c->name; c++) {
        if (!c->options) continue;
        printf("\n## lockstep %s\n\n%s. `lockstep %s %s`\n\n", c->name, c->help, c->name, c->usage);
        lsi_opt_print_markdown(c->options, stdout);
    }
}

exit_code run_help(int argc, char **argv) {
    if (argc > 1) return refuse_words("help", argv[1]);
    if (argc == 0) {
        print_overview();
    } else if (strcmp(argv[0], "--markdown") == 0) {
        print_markdown();
    } else {
        const command *c = find(argv[0]);
        if (!c) return refuse_command(argv[0]);
        print_command_help(c);
    }
    return finish_output(EXIT_DONE);
}
