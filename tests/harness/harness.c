#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

void assert_fails_with(ls_status found, ls_status expected, const char *text, const char *file,
                       int line) {
    if (found == expected && strstr(ls_last_message(), text)) return;
    print_error("expected %s with '%s', found %s with '%s'\n", ls_status_name(expected), text,
                ls_status_name(found), found == LS_OK ? "" : ls_last_message());
    _fail(file, line);
}
