/* What all tests share: cmocka with its includes, and the rank harness. */
#ifndef TESTS_HARNESS_HARNESS_H
#define TESTS_HARNESS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <lockstep/status.h>

/* A call that must succeed; prints the message otherwise. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        ls_status assert_ok_status_ = (expression);                                                \
        if (assert_ok_status_ != LS_OK)                                                            \
            fail_msg("%s: %s: %s", #expression, ls_status_name(assert_ok_status_),                 \
                     ls_last_message());                                                           \
    } while (0)

/* A call that must fail with this status and a message that contains the text. */
void assert_fails_with(ls_status found, ls_status expected, const char *text, const char *file,
                       int line);
#define assert_fails(expression, expected, text)                                                   \
    assert_fails_with((expression), (expected), (text), __FILE__, __LINE__)

#endif
