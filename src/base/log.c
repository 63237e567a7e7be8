/* Log lines to standard error (see log.h).
 *
 * A line is made in one buffer and leaves in one write(2), so lines of several workers that share
 * a terminal stay whole. Level and rank are atomics only because any thread may log while the
 * program sets them; they order nothing. A line that cannot be written is lost: there is nobody
 * left to tell. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { LINE_BYTES = LSI_MESSAGE_BYTES + 64 };

static _Atomic int max_level = LSI_LOG_WARNING;
static _Atomic int own_rank = -1;

static const char *const level_names[] = {
    [LSI_LOG_ERROR] = "error",
    [LSI_LOG_WARNING] = "warning",
    [LSI_LOG_INFO] = "info",
    [LSI_LOG_DEBUG] = "debug",
};

void lsi_log_set_level(lsi_log_level level) {
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

void lsi_log_set_rank(int rank) {
    atomic_store_explicit(&own_rank, rank, memory_order_relaxed);
}

int lsi_log_rank(void) {
    return atomic_load_explicit(&own_rank, memory_order_relaxed);
}

static void write_all(const char *line, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(STDERR_FILENO, line, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        line += n;
        bytes -= (size_t)n;
    }
}

/* The length after n more bytes were wanted: what did not fit is cut, one byte is kept for '\n'. */
static size_t advance(size_t used, int n) {
    if (n < 0) return used;
    size_t next = used + (size_t)n;
    return next < LINE_BYTES - 1 ? next : LINE_BYTES - 2;
}

void lsi_log(lsi_log_level level, const char *format, ...) {
    if ((unsigned int)level > LSI_LOG_DEBUG) level = LSI_LOG_DEBUG;
    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed)) return;
    int saved_errno = errno;
    char line[LINE_BYTES];
    size_t used;
    int rank = lsi_log_rank();
    if (rank < 0) {
        used = advance(0, snprintf(line, sizeof line, "lockstep %s: ", level_names[level]));
    } else {
        used = advance(
            0, snprintf(line, sizeof line, "lockstep[rank %d] %s: ", rank, level_names[level]));
    }
    va_list values;
    va_start(values, format);
    used = advance(used, vsnprintf(line + used, sizeof line - used, format, values));
    va_end(values);
    line[used++] = '\n';
    write_all(line, used);
    errno = saved_errno;
}
