/* `lockstep run`: starts somebody's own program once per rank. Each finds its group with
 * ls_group_create, which reads LOCKSTEP_FD (the shared region) and LOCKSTEP_RANK. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/command.h"
#include "launch/launch.h"

typedef struct run_config {
    int64_t workers;
    bool bind;
    const char *algo, *progress, *recorder;
} run_config;

const lsi_opt run_program_options[] = {
    {"workers", 0, LSI_OPT_INT, offsetof(run_config, workers), "processes", "2", 1, LSI_MAX_RANKS,
     NULL, "Work", "Processes to start."},
    {"bind", 0, LSI_OPT_BOOL, offsetof(run_config, bind), NULL, "true", 0, 0, NULL, "Work",
     "Binds each process to its share of the processors."},
    {"algo", 0, LSI_OPT_TEXT, offsetof(run_config, algo), "TEXT", NULL, 0, 0, NULL, "Communication",
     "Algorithms of collectives: ring, allreduce=ring, allreduce:64K-1M=ring "
     "(docs/collectives.md)."},
    {"progress", 0, LSI_OPT_CHOICE, offsetof(run_config, progress), NULL, "auto", 0, 0,
     "auto|thread|inline", "Communication",
     "Who moves communication on while a process computes: a thread, or the process itself (auto: "
     "a thread where there are two processors for each)."},
    {"recorder", 0, LSI_OPT_TEXT, offsetof(run_config, recorder), "FILE", NULL, 0, 0, NULL,
     "Output", "Where a run that fails leaves the last calls of all ranks (lockstep inspect)."},
    {0},
};

static ls_status become_program(lsi_region *region, int rank, void *context) {
    char **argv = context;
    char text[16];
    int fd = lsi_region_fd(region);
    if (fcntl(fd, F_SETFD, 0) != 0) return lsi_fail_errno(LS_ERR_SYSTEM, "run: fcntl");
    snprintf(text, sizeof text, "%d", fd);
    setenv("LOCKSTEP_FD", text, 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("LOCKSTEP_RANK", text, 1);
    /* What main ignores would stay ignored across exec. */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    execvp(argv[0], argv);
    return lsi_fail_errno(errno == ENOENT ? LS_ERR_NOT_FOUND : LS_ERR_SYSTEM,
                          "run: cannot start %s", argv[0]);
}

/* Where the program's own words begin: behind `--`, or NULL. */
static char **program_words(int argc, char **argv, int *n_options) {
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") != 0) continue;
        *n_options = i;
        return i + 1 < argc ? argv + i + 1 : NULL;
    }
    return NULL;
}

/* Known before the run, which may take days, rather than after it. */
static ls_status check_recorder(const char *path) {
    struct stat info;
    lsi_file_writer *writer = NULL;
    if (!path) return LS_OK;
    if (!path[0] || (stat(path, &info) == 0 && S_ISDIR(info.st_mode)))
        return lsi_fail(LS_ERR_USAGE, "--recorder '%s': expected the name of a file%s", path,
                        path[0] ? ", found a folder" : "");
    LSI_TRY(lsi_context(lsi_file_begin(path, &writer), "--recorder"));
    lsi_file_cancel(writer);
    return LS_OK;
}

exit_code run_program(int argc, char **argv) {
    run_config config;
    lsi_opt_set *set = NULL;
    int n_options = 0;
    char **words = program_words(argc, argv, &n_options);
    ls_status status = words ? LS_OK
                             : lsi_fail(LS_ERR_USAGE, "run: no program; expected: lockstep "
                                                      "run --workers N -- PROGRAM [arguments]");
    if (status == LS_OK)
        status = lsi_opt_parse(run_program_options, n_options, argv, &config, NULL, 0, &set);
    if (status == LS_OK) status = check_recorder(config.recorder);
    if (status == LS_OK) status = set_group_options(config.algo, config.progress);
    if (status != LS_OK) {
        lsi_opt_destroy(set);
        return report_failure(status, EXIT_WRONG_USAGE);
    }
    lsi_launch_opts opts = {.n_workers = (int)config.workers,
                            .forward_signals = true,
                            .bind = config.bind,
                            .recorder_path = config.recorder};
    status = lsi_launch(&opts, become_program, words);
    lsi_opt_destroy(set);
    return status == LS_OK ? EXIT_DONE : report_failure(status, EXIT_FAILED);
}
