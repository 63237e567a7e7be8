/* `lockstep eval`: opens model and data, starts the workers, reports the first failure. */
#include <stdio.h>

#include "base/cpu.h"
#include "cli/command.h"
#include "launch/launch.h"
#include "train/eval.h"

/* What the request is to blame for, before anything was started. */
static exit_code code_of(ls_status status) {
    return status == LS_ERR_USAGE || status == LS_ERR_ARGUMENT || status == LS_ERR_NOT_FOUND
               ? EXIT_WRONG_USAGE
               : EXIT_FAILED;
}

static exit_code evaluate(const lsi_eval_config *config) {
    lsi_eval_job job = {.out = stdout};
    ls_status status = lsi_eval_open(config, &job);
    exit_code code = status == LS_OK ? EXIT_DONE : report_failure(status, code_of(status));
    if (code == EXIT_DONE) {
        bool fits = job.n_threads == 1 || config->workers * job.n_threads <= lsi_cpu_count();
        lsi_launch_opts opts = {.n_workers = (int)config->workers, .bind = config->bind && fits};
        status = lsi_launch(&opts, lsi_eval_worker, &job);
        if (status != LS_OK) code = report_failure(status, EXIT_FAILED);
    }
    lsi_eval_close(&job);
    return finish_output(code);
}

exit_code run_eval(int argc, char **argv) {
    lsi_eval_config config;
    lsi_opt_set *set = NULL;
    ls_status status = lsi_opt_parse(lsi_eval_options, argc, argv, &config, NULL, 0, &set);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    exit_code code = evaluate(&config);
    lsi_opt_destroy(set);
    return code;
}
