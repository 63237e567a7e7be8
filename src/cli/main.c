/* The program `lockstep`: finds the subcommand and runs it. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "comm/choose.h"
#include "train/eval.h"
#include "train/generate.h"
#include "train/train.h"

const command commands[] = {
    {"train", "--data FILE [options]", "Train a model with one or more workers", lsi_train_options,
     run_train},
    {"generate", "--model FOLDER [options]", "Continue a text with a trained model",
     lsi_generate_options, run_generate},
    {"eval", "--model FOLDER --data FILE [options]", "Measure a trained model on a whole file",
     lsi_eval_options, run_eval},
    {"run", "--workers N -- PROGRAM [arguments]", "Start a program of your own as workers",
     run_program_options, run_program},
    {"bench", "COLLECTIVE [options]", "Time collectives on this machine", bench_options, run_bench},
    {"inspect", "PATH | --recorder FILE|PID [options]",
     "Show what is in a model, or the last calls of all ranks of a run", inspect_options,
     run_inspect},
    {"version", "", "Print version, processor and libraries", NULL, run_version},
    {"help", "[command | --markdown]", "Print help", NULL, run_help},
    {0},
};

exit_code report_failure(ls_status status, exit_code code) {
    fprintf(stderr, "lockstep: %s\n", ls_last_message());
    fprintf(stderr, "(%s: %s)\n", ls_status_text(status), ls_status_advice(status));
    return code;
}

exit_code refuse_command(const char *word) {
    const char *names[sizeof commands / sizeof commands[0]];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) names[i] = commands[i].name;
    const char *near = lsi_nearest(word, names);
    fprintf(stderr, "lockstep: unknown command '%s'%s%s%s; `lockstep help` lists them\n", word,
            near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return EXIT_WRONG_USAGE;
}

exit_code refuse_words(const char *name, const char *word) {
    fprintf(stderr, "lockstep: %s: unexpected word '%s'; see `lockstep help %s`\n", name, word,
            name);
    return EXIT_WRONG_USAGE;
}

ls_status set_group_options(const char *algo, const char *progress) {
    lsi_rules rules;
    LSI_TRY(lsi_rules_parse(algo, &rules));
    if (algo) setenv("LOCKSTEP_ALGO", algo, 1);
    if (progress) setenv("LOCKSTEP_PROGRESS", progress, 1);
    return LS_OK;
}

exit_code finish_output(exit_code code) {
    bool failed = fflush(stdout) != 0;
    if ((!failed && !ferror(stdout)) || code != EXIT_DONE) return code;
    (void)lsi_fail_errno(LS_ERR_IO, "cannot write to standard output");
    return report_failure(LS_ERR_IO, EXIT_FAILED);
}

/* Descriptors 0 to 2 must be taken, or the next file opened, the shared region or a model, becomes
 * "standard output" and gets what is printed. */
static void open_standard_streams(void) {
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) close(fd);
}

int main(int argc, char **argv) {
    open_standard_streams();
    /* A closed pipe and a file that may not grow are errors of the write, with a message, and not a
     * silent death. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        run_help(0, NULL);
        return EXIT_WRONG_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) word = "help";
    if (strcmp(word, "--version") == 0) word = "version";
    for (const command *c = commands; c->name; c++) {
        if (strcmp(word, c->name) != 0) continue;
        if (answer_help(c->name, argc - 2, argv + 2)) return finish_output(EXIT_DONE);
        return c->run(argc - 2, argv + 2);
    }
    return refuse_command(word);
}
