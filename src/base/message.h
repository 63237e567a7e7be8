/* Messages of failures, one per thread. The first detector writes, upper layers add context.
 *
 *     return lsi_fail(LS_ERR_FORMAT, "%s: header of %zu bytes, at most %zu allowed", path, n, cap);
 *     ...
 *     return lsi_context(status, "loading the model");   ->  "loading the model: FILE: header …"
 */
#ifndef LSI_BASE_MESSAGE_H
#define LSI_BASE_MESSAGE_H

#include <stddef.h>

#include <lockstep/status.h>

enum { LSI_MESSAGE_BYTES = 1024 };

#define LSI_PRINTF(format_at, values_at) __attribute__((format(printf, format_at, values_at)))

/* Evaluates an expression of type ls_status and hands a failure to the caller. */
#define LSI_TRY(expression)                                                                        \
    do {                                                                                           \
        ls_status lsi_try_status_ = (expression);                                                  \
        if (lsi_try_status_ != LS_OK) return lsi_try_status_;                                      \
    } while (0)

/* Writes this thread's message and returns status. */
ls_status lsi_fail(ls_status status, const char *format, ...) LSI_PRINTF(2, 3);
/* The same, with ": " and the text of errno appended. */
ls_status lsi_fail_errno(ls_status status, const char *format, ...) LSI_PRINTF(2, 3);
/* Puts "…: " before this thread's message and returns status; LS_OK passes untouched.
 * A thread without a message gets the meaning of the status after the colon. */
ls_status lsi_context(ls_status status, const char *format, ...) LSI_PRINTF(2, 3);
/* Replaces this thread's message by a text made elsewhere (another thread, another rank). */
void lsi_message_set(const char *text);

#endif
