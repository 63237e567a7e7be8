/* Inside of groups and works.
 *
 * Life of a work (one collective call on one rank). Works go through their states in the order of
 * posting; counters in the group say how far each state has got.
 *
 *    post            line and slot     all ranks published,        own part finished, and if peers
 *      |             are free          calls match                 touch the buffers theirs too
 *      v                 v                 v                           v
 *    POSTED ----> PUBLISHED ------> STARTED ------> PART DONE -----> DONE ----> released by wait
 *  >= n_published  >= n_started    == n_started     < n_started     < n_completed
 *
 * POSTED     the buffers belong to the group; nothing is public yet.
 * PUBLISHED  peers can see the call, and for a one-shot call this rank's data.
 * STARTED    this rank's part is under way (in pieces or messages), or is done in one go.
 * PART DONE  this rank reads and writes nothing of its peers any more.
 * DONE       output is valid, the buffers belong to the caller again. A link (link.h) puts it off.
 *
 * Sends and receives are works too, but outside of that order: see message.c.
 *
 * An error of the group or the region ends every state: test and wait return it. */
#ifndef LSI_COMM_GROUP_H
#define LSI_COMM_GROUP_H

#include <pthread.h>
#include <sys/types.h>

#include <lockstep/group.h>

#include "comm/choose.h"
#include "comm/link.h"
#include "comm/order.h"
#include "comm/reduce.h"
#include "comm/transport/bell.h"
#include "comm/transport/control.h"

typedef struct lsi_passing lsi_passing; /* state of a pattern, collective/passing.c */

/* Who takes the result of a reduction block by block, so that it is never written to memory:
 * elements [at, at + count) of this rank's part, in ascending order. It is called under the group's
 * lock, by whoever moves works on, the group's thread as well: it computes, and does no more. */
typedef void (*lsi_sink_fn)(void *context, int64_t at, const float *values, int64_t count);
typedef struct lsi_sink {
    lsi_sink_fn take; /* NULL: the result goes to the output */
    void *context;
} lsi_sink;

typedef enum lsi_work_kind { LSI_WORK_CALL, LSI_WORK_MESSAGE, LSI_WORK_BATCH } lsi_work_kind;

struct ls_work {
    ls_group *group;
    uint64_t index; /* number of the call in its group, 0 = the first; of a batch: of its last */
    lsi_work_kind what;
    bool held; /* the caller has not released it yet */
    bool started;
    bool waits_for_all; /* peers touch this rank's buffers until they are done */
    int algorithm;      /* SHARED becomes DIRECT or STAGED when started */
    int elem_bytes;
    int64_t contribution_bytes; /* one-shot: the most that a rank contributes */
    lsi_call *call;             /* this rank's record of it */
    uint64_t fingerprint;
    const void *input;
    void *output;
    lsi_sink sink;   /* instead of an output */
    int64_t count;   /* of each part; of the _v calls: the longest part */
    int64_t *displs; /* of the _v calls: where parts begin, n + 1 numbers; else NULL */
    uint64_t slot;   /* one-shot: number of the slot, if the contribution needs one */
    bool flagged;    /* one-shot: contributions come in lines with flags … */
    uint32_t n_looks;
    uint32_t n_lines_taken; /* … this many of rank n_seen's are taken */
    int n_seen;             /* ranks 0 … n_seen - 1 are known to have published */
    bool staged_early; /* the first piece may have been copied in before the call was announced */
    /* Staged works: pieces copied in, combined, copied out so far, of n_pieces. */
    uint64_t n_pieces, n_in, n_combined, n_out;
    lsi_passing *passing;
    /* Messages and batches. */
    ls_work *next;     /* behind it in the same direction to the same peer, or in the free list */
    ls_work *batch;    /* that it belongs to, NULL: none */
    lsi_call own_call; /* of a message: its record may be used again before it is done */
    unsigned char head[24]; /* of a message: the header, sent or received so far */
    int64_t n_bytes_moved;  /* header and data */
    int n_left;             /* of a batch: messages not done */
    bool done;
    int64_t over_ns; /* in a group with a link (link.h): not done before; of a message that was not
                        moved yet 0 */
};

/* Time and bytes since the group was made; take differences. Calls of less than LSI_TIMED_BYTES
 * that are waited for at once are timed only when they wait long. */
typedef struct lsi_group_stats {
    int64_t wait_ns;    /* blocked in wait, nothing to do */
    int64_t work_ns;    /* moving and adding data */
    int64_t sink_ns;    /* what sinks did meanwhile; not in the two above */
    int64_t flight_ns;  /* at least one work posted and not done */
    int64_t bytes_sent; /* one way: what this rank read from and wrote to others' memory, and what
                           it sent in messages, so each byte is counted by one rank */
    int64_t n_calls;
} lsi_group_stats;

enum { LSI_TIMED_BYTES = 8 << 10, LSI_MESSAGES = 1024, LSI_CHOICE_BITS = 6 };
typedef enum lsi_direction { LSI_SENDING, LSI_RECEIVING, LSI_N_DIRECTIONS } lsi_direction;

/* A choice of algorithm that was made, by kind, root and size. */
typedef struct lsi_chosen {
    uint64_t key; /* 0: none */
    int algorithm;
    int64_t contribution_bytes; /* of a rank in a one-shot call */
    bool wants_slot;
} lsi_chosen;

struct ls_group {
    lsi_region *region;
    lsi_group_control *control;
    pid_t pid; /* of the process it belongs to: a fork has a copy that means nothing */
    int rank, n_ranks;
    int64_t timeout_ms;
    int spins, yields; /* looks before yielding, and before sleeping; few when ranks outnumber
                          processors */
    lsi_rank_control *ranks, *me;
    lsi_reports *errors; /* of this group; the world's are the region's */
    const lsi_reports *world_errors;
    bool fenced; /* as control->fenced of the region */
    lsi_order order;
    uint32_t default_order_hash;
    uint32_t tag; /* of the next calls that do not reduce: must agree as well, see lsi_group_tag */
    lsi_costs costs;
    lsi_rules rules;

    uint64_t n_posted, n_published, n_started, n_completed;
    uint64_t done_seen; /* calls that all ranks are known to be done with */
    uint64_t n_slots;   /* slots used so far */
    uint64_t slot_call[LSI_SLOTS];
    unsigned char *gathered; /* contributions that came in lines, LSI_FLAGGED_BYTES for each rank */
    uint64_t n_pieces;       /* pieces of all staged works started so far */
    int64_t n_messages_left; /* posted and not done */
    int64_t flight_start_ticks;
    uint64_t n_tests;       /* that found a work not done */
    lsi_group_stats stats;  /* the _ns fields count ticks (base/clock.h) */
    int64_t bytes_received; /* in messages: whoever sent them counts them, this is progress only */

    /* Messages: queues by peer, the oldest first. */
    ls_work *queue[LSI_N_DIRECTIONS][LSI_MAX_RANKS];
    uint32_t message_number[LSI_N_DIRECTIONS][LSI_MAX_RANKS]; /* done so far */
    ls_work *free_messages;
    ls_work *messages; /* LSI_MESSAGES of them, made at first use */

    ls_work *batch; /* of grouped calls, being made; NULL: none */
    ls_status batch_error;
    char batch_message[LSI_MESSAGE_BYTES];

    lsi_chosen chosen[1 << LSI_CHOICE_BITS];

    bool has_link; /* its works are held back, link.h */
    lsi_link link;

    /* The thread that makes progress, thread.c. */
    bool has_thread;
    _Atomic bool thread_ends;
    char progress_reason[128];
    pthread_t thread;
    pthread_mutex_t lock; /* on everything above, while there is a thread */
    _Atomic uint32_t thread_bell;

    /* Works by their index; but a call that is waited for at once in an idle group is `at_once`:
     * its place stays in the cache, where 1,024 places in turns would not. */
    ls_work at_once;
    uint64_t at_once_index;
    ls_work works[LSI_CALLS];
};

/* Order in which ranks are added from now on; all ranks must set the same one (checked by every
 * call). The default is lsi_order_default. */
void lsi_group_set_order(ls_group *group, const lsi_order *order);
/* What ranks must agree on besides, where calls of different meaning look alike. 0: nothing. */
static inline void lsi_group_tag(ls_group *group, uint32_t tag) {
    group->tag = tag;
}
/* ls_reduce_scatter_v of float32 into a sink, by the direct algorithm: inputs are shared. When the
 * work is done, the sinks of all ranks have had all. LS_ERR_UNSUPPORTED where LOCKSTEP_ALGO asks
 * for another algorithm. */
LS_CHECKED ls_status lsi_reduce_scatter_into(ls_group *group, const float *input,
                                             const int64_t *counts, ls_op op, double scale,
                                             lsi_sink sink, ls_work **work);
/* The sink with this context takes nothing from now on, whatever becomes of its works. */
void lsi_group_drop_sink(ls_group *group, const void *context);
void lsi_group_get_stats(const ls_group *group, lsi_group_stats *stats);
lsi_region *lsi_group_region(const ls_group *group);
/* Measures what things cost in this group; collective, blocks, a few milliseconds. Groups that were
 * not measured use typical figures, those of a split their parent's. */
LS_CHECKED ls_status lsi_group_calibrate(ls_group *group);
/* The algorithm that did the last call: "one-shot", "direct", "staged", "ring" …. */
const char *lsi_group_last_algorithm(const ls_group *group);

/* ---- between the files of this folder ---- */

/* LOCKSTEP_ALGO is about users' calls. Calls of our own, whose buffers are private, go between
 * these; begin returns what end puts back. */
lsi_rules lsi_own_calls_begin(ls_group *group);
void lsi_own_calls_end(ls_group *group, const lsi_rules *rules);

/* Holds the group's thread off, where there is one. */
static inline void lsi_group_lock(ls_group *group) {
    if (group->has_thread) pthread_mutex_lock(&group->lock);
}
static inline void lsi_group_unlock(ls_group *group) {
    if (group->has_thread) pthread_mutex_unlock(&group->lock);
}

/* Makes the handle of one member; control is complete. */
LS_CHECKED ls_status lsi_group_open(lsi_region *region, lsi_group_control *control, int rank,
                                    ls_group **group);

/* lsi_bell_fence, without the way through the region. */
static inline void lsi_group_fence(const ls_group *group) {
    if (group->fenced)
        lsi_full_fence();
    else
        atomic_signal_fence(memory_order_seq_cst);
}
/* The same where only the last rank to store rings, see [Note: sleeping] in transport/bell.h. */
static inline void lsi_group_fence_for_last(const ls_group *group) {
    lsi_group_fence(group);
    if (group->fenced || group->n_ranks == 2) return;
    for (int r = 0; r < group->n_ranks; r++)
        if (atomic_load_explicit(&group->ranks[r].asleep, memory_order_relaxed) != 0) {
            lsi_full_fence();
            return;
        }
}

/* First error of the group or the region. */
static inline ls_status lsi_group_error(const ls_group *group) {
    const lsi_reports *world = group->world_errors;
    if (__builtin_expect(atomic_load_explicit(&world->first, memory_order_acquire) == 0 &&
                             atomic_load_explicit(&group->errors->first, memory_order_acquire) == 0,
                         1))
        return LS_OK;
    ls_status status = lsi_reports_get(group->errors, NULL);
    return status != LS_OK ? status : lsi_reports_get(world, NULL);
}
/* Says that this rank waits and is not to blame, to all groups that it is in. */
void lsi_beat(ls_group *group);

/* Makes it the group's first error unless there is one, and wakes the members. */
void lsi_group_raise(ls_group *group, ls_status status, const char *message);

static inline ls_work *lsi_work_at(ls_group *group, uint64_t index) {
    return index == group->at_once_index ? &group->at_once : &group->works[index % LSI_CALLS];
}
/* The description that a rank published for this work. Valid once it has. */
static inline const lsi_call *lsi_work_call_of(const ls_work *work, int rank) {
    return &work->group->ranks[rank].records[work->index % LSI_RECORDS];
}
/* What a rank announced for this work. */
static inline const lsi_arrival *lsi_work_arrival_of(const ls_work *work, int rank) {
    return &work->group->ranks[rank].arrivals[work->index % LSI_ARRIVALS];
}
/* Wakes the peers that sleep; called by the rank that was the last to move a counter. */
void lsi_group_ring(ls_group *group);
/* Moves all posted works on without waiting. Under the lock. */
ls_status lsi_group_advance(ls_group *group);
bool lsi_work_is_done(const ls_work *work);
/* Whether all ranks that a call still waits for were last seen on other processors than this one;
 * so too when the last of them has just come. False where that is not known. */
bool lsi_waits_elsewhere(const ls_work *work);
/* For a call that is waited for at once in an idle group, see work.c. */
bool lsi_may_go_the_short_way(const ls_work *work);
ls_status lsi_go_the_short_way(ls_work *work, bool *done);
static inline void lsi_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}
/* Grows with everything of this rank that can move while a work is waited for. */
uint64_t lsi_progress_of(const ls_group *group);
void lsi_work_release(ls_work *work);
/* Blocks until done; under the lock, which is given up between looks. */
ls_status lsi_work_await(ls_work *work, int64_t timeout_ms);

/* [Note: world ranks] Messages name ranks by their number in the world, whatever group they are
 * about: launcher, reports and traces know workers by it, and a group's own numbers would name
 * somebody else. That goes for roots and peers of calls as well. Only what is wrong with an
 * argument is told in the numbers of the argument. */
static inline int lsi_world_rank(const ls_group *group, int rank) {
    return group->control->member[rank];
}
static inline const char *lsi_group_call_print(const ls_group *group, const lsi_call *call,
                                               char text[LSI_CALL_TEXT_BYTES]) {
    return lsi_call_print_in_world(call, group->control->member, group->n_ranks, text);
}
/* How messages about a group begin: "group 3: ", for the world "". Returns text. */
enum { LSI_GROUP_TEXT_BYTES = 24 };
const char *lsi_group_print(const ls_group *group, char text[LSI_GROUP_TEXT_BYTES]);

/* Reports (watchdog.c): each makes the error the group's and returns the first one. */
ls_status lsi_report_mismatch(const ls_work *work);
ls_status lsi_report_private(const ls_work *work, int rank, bool input);
/* Who is missing when a wait ran out of time or a rank left. LS_OK when nobody is, because a
 * counter moved meanwhile. Blocks for a tenth of a second where it must find out who stands still.
 */
ls_status lsi_report_missing(const ls_work *work, int64_t waited_ms);
/* The same where all did their parts and the link holds the work back (link.h). */
ls_status lsi_report_link(const ls_work *work, int64_t waited_ms);
ls_status lsi_report_message(const ls_work *work, uint64_t number, int64_t count, ls_dtype dtype);
ls_status lsi_report_dead(ls_group *group, int world_rank);
/* Whether a rank left that has not finished its part of the work, so never will. */
bool lsi_someone_left(const ls_work *work);
/* The rank whose part of a message is waited for, -1 when it is a call. */
int lsi_waits_for(const ls_work *work);

/* Messages and batches (message.c). */
ls_status lsi_messages_advance(ls_group *group, bool *moved);
void lsi_messages_free(ls_group *group);
/* A work without a place in the order of calls; NULL with LS_ERR_BUSY or LS_ERR_MEMORY as message.
 */
ls_work *lsi_message_work(ls_group *group, lsi_work_kind what, ls_status *status);
/* End of a public call that posted: waits, hands out the handle, or leaves the work to the batch.
 * Under the lock. */
ls_status lsi_post_end(ls_work *work, ls_work **handle);
/* Between begin and end of a batch calls have no handle of their own. */
static inline ls_status lsi_check_batch(const ls_group *group, ls_work **handle) {
    if (!group->batch || !handle) return LS_OK;
    return lsi_fail(
        LS_ERR_ARGUMENT,
        "rank %d: a batch is open; expected work = NULL, ls_batch_end gives one work for "
        "all",
        lsi_world_rank(group, group->rank));
}
/* First error of a batch is kept for its end. Returns status. */
ls_status lsi_post_failed(ls_group *group, ls_status status);
/* Tells the thread that there is something to do. */
void lsi_thread_notify(ls_group *group);
/* LS_ERR_USAGE if LOCKSTEP_PROGRESS is no word that we know. */
ls_status lsi_thread_check(void);
void lsi_thread_start(ls_group *group);
void lsi_thread_stop(ls_group *group);

#endif
