/* `lockstep inspect`: a model folder, a safetensors file, or what the recorder has of a run. What
 * PATH is decides: a folder is a model; a file whose ninth byte is '{', or whose name ends with
 * .safetensors, is safetensors; any other file, or the number of a process, is the recorder's. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/command.h"
#include "cli/inspect.h"
#include "comm/record.h"

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

static bool ends_with(const char *text, const char *ending) {
    size_t length = strlen(text), end_length = strlen(ending);
    return length >= end_length && strcmp(text + length - end_length, ending) == 0;
}

/* Files that cannot be read are left to those who say why. */
static bool is_model(const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return true;
    if (ends_with(path, ".safetensors")) return true;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    char head[9] = "";
    FILE *file = fopen(path, "re");
    bool is_header = file && fread(head, 1, sizeof head, file) == sizeof head && head[8] == '{';
    if (file) fclose(file);
    return is_header;
}

static exit_code inspect(const char *path, const inspect_config *config) {
    if (config->recorder && config->recorder[0])
        return path ? refuse_words("inspect", path) : inspect_recorder(config->recorder, config);
    if (path && path[0])
        return is_model(path) ? inspect_model(path, config) : inspect_recorder(path, config);
    (void)lsi_fail(LS_ERR_USAGE, "inspect: nothing to look at; expected a model folder, a "
                                 "safetensors file, --recorder FILE or --recorder PID");
    return report_failure(LS_ERR_USAGE, EXIT_WRONG_USAGE);
}

exit_code run_inspect(int argc, char **argv) {
    inspect_config config;
    lsi_opt_set *set = NULL;
    const char *path = NULL;
    ls_status status = lsi_opt_parse(inspect_options, argc, argv, &config, &path, 1, &set);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    exit_code code = inspect(path, &config);
    lsi_opt_destroy(set);
    return finish_output(code);
}
