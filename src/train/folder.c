/* The run folder: run.json (configuration), metrics.jsonl, model/.
 *
 * Nothing is overwritten: what an earlier run left is renamed to NAME.1, NAME.2 … first. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "train/train.h"

/* Renames unless the new name exists already (EEXIST). Two runs may be in one folder; file systems
 * that cannot do both in one step (EINVAL) leave a gap between looking and renaming. */
static int rename_to_new(const char *from, const char *to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    if (access(to, F_OK) != 0) return rename(from, to);
    errno = EEXIST;
    return -1;
}

static ls_status keep_earlier(const char *folder, const char *name, FILE *out) {
    char path[4096], kept[4096 + 16];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return lsi_fail(LS_ERR_ARGUMENT, "--out: the path is longer than %zu bytes", sizeof path);
    for (int number = 1; number > 0; number++) {
        snprintf(kept, sizeof kept, "%s.%d", path, number);
        if (rename_to_new(path, kept) == 0) {
            fprintf(out, "kept %s as %s\n", path, kept);
            return LS_OK;
        }
        if (errno == ENOENT) return LS_OK; /* there is none */
        if (errno != EEXIST) break;
    }
    return lsi_fail_errno(LS_ERR_IO, "%s: cannot keep it as %s", path, kept);
}

/* ---- files elsewhere ---- */

/* A result that cannot be written is better known before the training than after it. */
static ls_status check_can_write(const char *option, const char *path) {
    struct stat info;
    char folder[4096];
    if (!path) return LS_OK;
    if (!path[0] || (stat(path, &info) == 0 && S_ISDIR(info.st_mode)))
        return lsi_fail(LS_ERR_ARGUMENT, "--%s '%s': expected the name of a file%s", option, path,
                        path[0] ? ", found a folder" : "");
    if (strlen(path) >= sizeof folder)
        return lsi_fail(LS_ERR_ARGUMENT, "--%s: the path is longer than %zu bytes", option,
                        sizeof folder);
    memcpy(folder, path, strlen(path) + 1);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    if (access(slash ? folder : ".", W_OK | X_OK) != 0)
        return lsi_fail_errno(LS_ERR_IO, "--%s %s: cannot make a file in folder %s", option, path,
                              slash ? folder : ".");
    return LS_OK;
}

ls_status lsi_train_prepare_folder(const lsi_train_config *config, FILE *out) {
    static const char *const names[] = {"run.json", "metrics.jsonl", "model"};
    LSI_TRY(lsi_context(lsi_folder_make(config->out), "--out"));
    LSI_TRY(check_can_write("json", config->json)); /* often inside --out */
    LSI_TRY(check_can_write("trace", config->trace));
    LSI_TRY(check_can_write("recorder", config->recorder));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        LSI_TRY(keep_earlier(config->out, names[i], out));
    json_t *used = lsi_opt_to_json(lsi_train_options, config);
    if (!used)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "the configuration cannot be written as JSON: a path is not "
                        "UTF-8, or memory ran out");
    char path[4096];
    snprintf(path, sizeof path, "%s/run.json", config->out);
    ls_status status = lsi_file_replace_json(path, used);
    json_decref(used);
    return status;
}
