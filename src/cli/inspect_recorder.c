/* `lockstep inspect --recorder`: shows what the recorder has of a run, alive or failed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/inspect.h"
#include "comm/record.h"

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

exit_code inspect_recorder(const char *what, const inspect_config *config) {
    lsi_record_source *source = NULL;
    ls_status status = open_source(what, &source);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    status = show(source, config);
    lsi_record_close(source);
    fflush(stdout);
    if (status == LS_OK) return EXIT_DONE;
    return report_failure(status, status == LS_ERR_NOT_FOUND ? EXIT_WRONG_USAGE : EXIT_FAILED);
}
