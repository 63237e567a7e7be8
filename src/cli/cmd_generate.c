/* `lockstep generate`: text from a saved model. */
#include <stdio.h>

#include "cli/command.h"
#include "train/generate.h"

exit_code run_generate(int argc, char **argv) {
    lsi_generate_config config;
    lsi_opt_set *set = NULL;
    ls_status status = lsi_opt_parse(lsi_generate_options, argc, argv, &config, NULL, 0, &set);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    status = lsi_generate(&config, stdin, stdout);
    if (status == LS_OK) printf("\n");
    exit_code code = EXIT_DONE;
    if (status != LS_OK)
        code = report_failure(status, status == LS_ERR_USAGE || status == LS_ERR_ARGUMENT ||
                                              status == LS_ERR_NOT_FOUND
                                          ? EXIT_WRONG_USAGE
                                          : EXIT_FAILED);
    lsi_opt_destroy(set);
    return finish_output(code);
}
