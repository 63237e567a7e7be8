/* The run folder: run.json (configuration), metrics.jsonl, model/.
 *
 * Nothing is overwritten: what an earlier run left is renamed to NAME.1, NAME.2 … first. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/train.h"

static ls_status keep_earlier(const char *folder, const char *name, FILE *out) {
    char path[4096], kept[4096 + 16];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return lsi_fail(LS_ERR_ARGUMENT, "--out: the path is longer than %zu bytes", sizeof path);
    if (access(path, F_OK) != 0) return LS_OK;
    int number = 1;
    do snprintf(kept, sizeof kept, "%s.%d", path, number++);
    while (access(kept, F_OK) == 0);
    if (rename(path, kept) != 0)
        return lsi_fail_errno(LS_ERR_IO, "%s: cannot keep it as %s", path, kept);
    fprintf(out, "kept %s as %s\n", path, kept);
    return LS_OK;
}

ls_status lsi_train_prepare_folder(const lsi_train_config *config, FILE *out) {
    static const char *const names[] = {"run.json", "metrics.jsonl", "model"};
    LSI_TRY(lsi_folder_make(config->out));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        LSI_TRY(keep_earlier(config->out, names[i], out));
    json_t *used = lsi_opt_to_json(lsi_train_options, config);
    if (!used) return lsi_fail(LS_ERR_MEMORY, "no memory for the configuration");
    char path[4096];
    snprintf(path, sizeof path, "%s/run.json", config->out);
    ls_status status = lsi_file_replace_json(path, used);
    json_decref(used);
    return status;
}
