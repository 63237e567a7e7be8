/* What the files of the recorder share: record_file.c (bytes), record.c (what they mean),
 * record_print.c (showing it). */
#ifndef LSI_COMM_RECORD_LOOK_H
#define LSI_COMM_RECORD_LOOK_H

#include "comm/record.h"
#include "comm/transport/control.h"

/* ---- bytes (record_file.c) ---- */

/* A stretch of the region that the file has; all else in the region was zero. */
typedef struct lsi_record_piece {
    uint64_t offset, bytes; /* in the region */
    uint64_t at;            /* in the file */
} lsi_record_piece;

struct lsi_record_source {
    int fd;
    bool owns_fd, is_file;
    pid_t pid; /* of the process, 0: none */
    uint64_t region_bytes;
    int64_t taken_ms;         /* coarse monotonic time of the dump */
    int64_t taken_unix_s;     /* the same on the calendar */
    lsi_record_piece *pieces; /* of a file, rising and apart */
    size_t n_pieces;
    lsi_control *control; /* checked copy */
    char name[256];       /* for messages */
};

/* [offset, offset + bytes) of the region. */
LS_CHECKED ls_status lsi_record_read(const lsi_record_source *source, uint64_t offset, void *data,
                                     size_t bytes);
/* When what is read was so: now, or the time of the dump. */
int64_t lsi_record_time_ms(const lsi_record_source *source);

/* ---- meaning (record.c) ---- */

/* X(name, word, symbol) */
#define LSI_RECORD_STATE_TABLE(X)                                                                  \
    X(ABSENT, "-", '-')          /* the rank has not made this call */                             \
    X(POSTED, "posted", '.')     /* made, not announced: it waits for a free place */              \
    X(JOINED, "joined", '+')     /* announced; the rank's part is not finished */                  \
    X(FINISHED, "finished", '=') /* the rank's part is finished */                                 \
    X(UNKNOWN, "?", '?')         /* too long ago, or the record is damaged */
typedef enum lsi_record_state {
#define LSI_RECORD_STATE_ENUM(name, word, symbol) LSI_RECORD_##name,
    LSI_RECORD_STATE_TABLE(LSI_RECORD_STATE_ENUM)
#undef LSI_RECORD_STATE_ENUM
} lsi_record_state;

/* The kinds of first difference, the strongest first. */
typedef enum lsi_record_verdict {
    LSI_RECORD_CALLS_DIFFER,
    LSI_RECORD_NOT_JOINED,
    LSI_RECORD_NOT_FINISHED,
    LSI_RECORD_ALIKE,
} lsi_record_verdict;

/* What is known of a rank from the world group. */
typedef struct lsi_record_rank {
    int pid;
    int64_t step;
    bool attached, left;
    bool ended; /* from all groups: what `left` of the world alone does not say */
} lsi_record_rank;

/* A group as it was; all numbers in it are checked. */
typedef struct lsi_record_group {
    lsi_group_control *control; /* copy */
    int number, n_ranks;
    int member[LSI_MAX_RANKS];           /* ranks in the world */
    lsi_record_rank rank[LSI_MAX_RANKS]; /* by rank in this group */
    uint64_t oldest[LSI_MAX_RANKS];      /* first call whose record is whole */
    uint64_t published[LSI_MAX_RANKS], done[LSI_MAX_RANKS], posted[LSI_MAX_RANKS];
    uint64_t newest; /* call that any rank has posted; 0: none */
    lsi_record_verdict verdict;
    uint64_t difference; /* number of its call, 0 where all is alike */
    int64_t time_ms;
} lsi_record_group;

/* Copies and checks the group of a row of control->groups. *found is false where the row has no
 * group (any more). world: the world group, for the processes of the ranks; NULL when this is it.
 */
LS_CHECKED ls_status lsi_record_take(const lsi_record_source *source, int row,
                                     const lsi_record_group *world, lsi_record_group *group,
                                     bool *found);
void lsi_record_drop(lsi_record_group *group);

lsi_record_state lsi_record_state_of(const lsi_record_group *group, int rank, uint64_t number);
/* The record of a call, NULL where there is none. */
const lsi_call *lsi_record_call(const lsi_record_group *group, int rank, uint64_t number);
/* Gives each rank that made the call a letter, the same for calls that match; others get -1.
 * Returns how many letters. */
int lsi_record_classes(const lsi_record_group *group, uint64_t number, int class_of[LSI_MAX_RANKS]);
/* The k-th message from the newest of a rank, NULL beyond the oldest. */
const lsi_call *lsi_record_message(const lsi_record_group *group, int rank, int k);
/* Rows to show: the last ones, or those around the first difference where that is older. */
void lsi_record_window(const lsi_record_group *group, int last, uint64_t *from, uint64_t *to);
/* A call of the group, as messages tell it (group.h, [Note: world ranks]). */
const char *lsi_record_call_print(const lsi_record_group *group, const lsi_call *call,
                                  char text[LSI_CALL_TEXT_BYTES]);
/* The first difference as a sentence; also when there is none. */
const char *lsi_record_sentence(const lsi_record_group *group, char text[LSI_MESSAGE_BYTES]);
/* Seconds since it was posted, -1 where that was not noted (it was over before that mattered). */
double lsi_record_age_s(const lsi_record_group *group, const lsi_call *call);
/* Of the call on any rank, the longest known; -1: none. */
double lsi_record_oldest_s(const lsi_record_group *group, uint64_t number);
/* First error of a copy of reports with printable text; LS_OK: none. */
ls_status lsi_record_error(const lsi_reports *reports, int *rank, char text[LSI_MESSAGE_BYTES]);

#endif
