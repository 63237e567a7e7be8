/* Data that tests need and that is no part of the sources. */
#ifndef LSI_HARNESS_DATA_H
#define LSI_HARNESS_DATA_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/harness.h"

/* Finds a file of the folder of test data: LOCKSTEP_DATA, ../shared/data from here, or the same
 * from the root of the sources. Says so when it is not there; the test then skips. */
static inline bool find_data(const char *name, char path[PATH_MAX]) {
    const char *tests = strstr(__FILE__, "tests/harness/");
    char root[PATH_MAX];
    snprintf(root, sizeof root, "%.*s../shared/data", tests ? (int)(tests - __FILE__) : 0,
             __FILE__);
    const char *folders[] = {getenv("LOCKSTEP_DATA"), "../shared/data", root};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (!folders[i]) continue;
        snprintf(path, PATH_MAX, "%s/%s", folders[i], name);
        if (access(path, R_OK) == 0) return true;
    }
    print_message("skipped: %s is not there (set LOCKSTEP_DATA to the folder of test data)\n",
                  name);
    return false;
}

#endif
