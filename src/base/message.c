/* Messages of failures, one per thread (see message.h).
 *
 * Invariant: the thread's text is always a complete string of at most LSI_MESSAGE_BYTES - 1 bytes;
 * a longer one is cut and ends in "...". A new text is made in a second buffer first, because the
 * old text is often one of its ingredients (lsi_context, or a caller that passes
 * ls_last_message()). Nothing here allocates, so memory that ran out can be reported, and errno
 * is left as it was found. */
#include "base/message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[LSI_MESSAGE_BYTES];

static const char cut_mark[] = "...";

/* Marks a text whose full length did not fit, without leaving half a UTF-8 character. */
static void mark_cut(char text[LSI_MESSAGE_BYTES]) {
    size_t end = LSI_MESSAGE_BYTES - sizeof cut_mark;
    while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80) end--;
    memcpy(text + end, cut_mark, sizeof cut_mark);
}

/* Appends to text, which holds `used` bytes; returns the new length, or the size when it is full.
 */
static size_t append(char text[LSI_MESSAGE_BYTES], size_t used, const char *format,
                     va_list values) {
    if (used >= LSI_MESSAGE_BYTES) return used;
    int n = vsnprintf(text + used, LSI_MESSAGE_BYTES - used, format, values);
    if (n < 0) return used; /* the format itself is faulty: keep what there is */
    used += (size_t)n;
    if (used < LSI_MESSAGE_BYTES) return used;
    mark_cut(text);
    return LSI_MESSAGE_BYTES;
}

static size_t append_text(char text[LSI_MESSAGE_BYTES], size_t used, const char *format, ...)
    LSI_PRINTF(3, 4);

static size_t append_text(char text[LSI_MESSAGE_BYTES], size_t used, const char *format, ...) {
    va_list values;
    va_start(values, format);
    used = append(text, used, format, values);
    va_end(values);
    return used;
}

const char *ls_last_message(void) {
    return message;
}

void lsi_message_set(const char *text) {
    char next[LSI_MESSAGE_BYTES] = "";
    append_text(next, 0, "%s", text ? text : "");
    memcpy(message, next, sizeof message);
}

ls_status lsi_fail(ls_status status, const char *format, ...) {
    int saved_errno = errno;
    char next[LSI_MESSAGE_BYTES] = "";
    va_list values;
    va_start(values, format);
    append(next, 0, format, values);
    va_end(values);
    memcpy(message, next, sizeof message);
    errno = saved_errno;
    return status;
}

ls_status lsi_fail_errno(ls_status status, const char *format, ...) {
    int saved_errno = errno;
    char reason[256];
    char next[LSI_MESSAGE_BYTES] = "";
    va_list values;
    va_start(values, format);
    size_t used = append(next, 0, format, values);
    va_end(values);
    append_text(next, used, ": %s", strerror_r(saved_errno, reason, sizeof reason));
    memcpy(message, next, sizeof message);
    errno = saved_errno;
    return status;
}

ls_status lsi_context(ls_status status, const char *format, ...) {
    if (status == LS_OK) return status;
    int saved_errno = errno;
    char next[LSI_MESSAGE_BYTES] = "";
    va_list values;
    va_start(values, format);
    size_t used = append(next, 0, format, values);
    va_end(values);
    append_text(next, used, ": %s", message[0] ? message : ls_status_text(status));
    memcpy(message, next, sizeof message);
    errno = saved_errno;
    return status;
}
