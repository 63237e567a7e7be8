/* The rank harness: runs a body once per rank, as processes or as threads of this process.
 *
 * A body reports by its status and message (lsi_fail), not by cmocka's assertions, which jump and
 * must stay in the test's own thread. Rank counts and element counts that every collective and
 * strategy is tried with are here, once. */
#ifndef TESTS_HARNESS_RANKS_H
#define TESTS_HARNESS_RANKS_H

#include <string.h>

#include "base/message.h"
#include "comm/group.h"
#include "comm/region.h"

typedef ls_status (*rank_body)(ls_group *group, void *context);

typedef enum rank_mode { RANKS_AS_THREADS, RANKS_AS_PROCESSES, N_RANK_MODES } rank_mode;

/* Runs and waits; LS_OK when every rank returned LS_OK, else the status and message of the lowest
 * failing rank. A rank that ended by a signal is LS_ERR_PEER. */
ls_status run_ranks(rank_mode mode, int n_ranks, rank_body body, void *context);
/* Processes only: what each rank returned (-signal if it was killed), and its message. */
typedef struct rank_result {
    int status;
    char message[LSI_MESSAGE_BYTES];
} rank_result;
void run_rank_processes(int n_ranks, rank_body body, void *context, rank_result *results);

/* Of the region that the next run makes; addresses, not memory. */
#define RANK_HEAP_BYTES ((size_t)1 << 30)
extern size_t rank_heap_bytes;

extern const int rank_counts[]; /* 1 2 3 4 5 7 8, 0 ends */
/* The body with every number of ranks, in both modes; fails the test if one fails, or if memory is
 * left. */
void run_on_all_ranks(rank_body body, void *context);

/* In a body: fails with place and text unless the condition holds. */
#define RANK_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)lsi_fail(LS_ERR_STATE, __VA_ARGS__);                                             \
            return lsi_context(LS_ERR_STATE, "%s:%d: %s", __FILE__, __LINE__, #condition);         \
        }                                                                                          \
    } while (0)

/* In a body: a call that must fail with this status and a message that contains the text. */
#define RANK_FAILS(call, expected, text)                                                           \
    do {                                                                                           \
        ls_status rank_fails_found_ = (call);                                                      \
        RANK_CHECK(rank_fails_found_ == (expected) && strstr(ls_last_message(), (text)),           \
                   "expected %s with '%s', found %s with '%.300s'", ls_status_name(expected),      \
                   (text), ls_status_name(rank_fails_found_),                                      \
                   rank_fails_found_ == LS_OK ? "" : ls_last_message());                           \
    } while (0)

#endif
