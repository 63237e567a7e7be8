/* Log lines to standard error: "lockstep[rank 2] warning: …". The library itself never logs above
 * LSI_LOG_INFO unless a caller raised the level; programs choose the level. */
#ifndef LSI_BASE_LOG_H
#define LSI_BASE_LOG_H

#include "base/message.h"

typedef enum lsi_log_level {
    LSI_LOG_ERROR,
    LSI_LOG_WARNING,
    LSI_LOG_INFO,
    LSI_LOG_DEBUG,
} lsi_log_level;

void lsi_log_set_level(lsi_log_level level); /* default: LSI_LOG_WARNING */
void lsi_log_set_rank(int rank);             /* -1 (default): no rank in the prefix */
int lsi_log_rank(void);
/* One write(2) per line, so that lines of several processes do not mix. Adds the new line. */
void lsi_log(lsi_log_level level, const char *format, ...) LSI_PRINTF(2, 3);

#endif
