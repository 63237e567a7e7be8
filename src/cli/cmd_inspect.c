/* `lockstep inspect`: shows what the recorder has of a run, alive or failed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/command.h"
#include "comm/record.h"

typedef struct inspect_config {
    const char *recorder, *json;
    int64_t last, group;
} inspect_config;

#define ROW(name, type, field, unit, initial, min, max, group, help)                               \
    { name, 0, type, offsetof(inspect_config, field), unit, initial, min, max, NULL, group, help }

const lsi_opt inspect_options[] = {
    ROW("recorder", LSI_OPT_TEXT, recorder, "FILE|PID", NULL, 0, 0, "Input",
        "File that a failed run left (lockstep run --recorder), or number of the launcher's "
        "process or of any worker; a file whose name is a number needs ./ before it."),
    ROW("last", LSI_OPT_INT, last, "calls", "16", 1, LSI_RECORD_MAX_LAST, "Output",
        "Calls of each group to show; where ranks first differ is shown even if older."),
    ROW("group", LSI_OPT_INT, group, "number", "-1", -1, INT32_MAX, "Output",
        "The one group to show (0: the world; -1: all)."),
    ROW("json", LSI_OPT_TEXT, json, "FILE", NULL, 0, 0, "Output",
        "Writes it for programs, beside the text."),
    {0},
};

static ls_status open_source(const char *what, lsi_record_source **source) {
    if (strspn(what, "0123456789") < strlen(what)) return lsi_record_open_file(what, source);
    errno = 0;
    long pid = strtol(what, NULL, 10);
    if (errno || pid < 1 || pid > INT32_MAX)
        return lsi_fail(LS_ERR_USAGE, "--recorder %s: expected a file or the number of a process",
                        what);
    return lsi_record_open_process((pid_t)pid, source);
}

static ls_status show(lsi_record_source *source, const inspect_config *config) {
    lsi_record_opts opts = {.last = (int)config->last,
                            .group = (int)config->group,
                            .color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR")};
    LSI_TRY(lsi_record_print(source, &opts, stdout));
    if (!config->json) return LS_OK;
    json_t *value = NULL;
    LSI_TRY(lsi_record_to_json(source, &opts, &value));
    ls_status status = lsi_file_replace_json(config->json, value);
    json_decref(value);
    return lsi_context(status, "--json");
}

static exit_code inspect(const inspect_config *config) {
    lsi_record_source *source = NULL;
    if (!config->recorder || !config->recorder[0]) {
        (void)lsi_fail(LS_ERR_USAGE, "inspect: nothing to look at; expected --recorder FILE or "
                                     "--recorder PID");
        return report_failure(LS_ERR_USAGE, EXIT_WRONG_USAGE);
    }
    ls_status status = open_source(config->recorder, &source);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    status = show(source, config);
    lsi_record_close(source);
    if (status == LS_OK) return finish_output(EXIT_DONE);
    fflush(stdout);
    return report_failure(status, status == LS_ERR_NOT_FOUND ? EXIT_WRONG_USAGE : EXIT_FAILED);
}

exit_code run_inspect(int argc, char **argv) {
    inspect_config config;
    lsi_opt_set *set = NULL;
    ls_status status = lsi_opt_parse(inspect_options, argc, argv, &config, NULL, 0, &set);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    exit_code code = inspect(&config);
    lsi_opt_destroy(set);
    return code;
}
