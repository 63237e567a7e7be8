/* The two things that `lockstep inspect` shows, a file each. */
#ifndef LSI_CLI_INSPECT_H
#define LSI_CLI_INSPECT_H

#include <stdint.h>

#include "cli/command.h"

typedef struct inspect_config {
    const char *recorder, *json;
    int64_t last, group;
} inspect_config;

/* A model folder, or one safetensors file. Both print and report what fails. */
exit_code inspect_model(const char *path, const inspect_config *config);
/* A recorder's file, or the number of a process. */
exit_code inspect_recorder(const char *what, const inspect_config *config);

#endif
