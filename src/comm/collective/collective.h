/* What the algorithms share: the shape of each collective, and the two moves of which those over
 * shared memory are made.
 *
 * A collective's buffers have one part or n parts, the same for input and output or not, on every
 * rank or on the root only; and it reduces or only moves. That table (shape.c) is all that tells
 * one collective from another: contribute puts what peers may need of the input where they can
 * read it, pull makes the own output from the contributions of all. */
#ifndef LSI_COMM_COLLECTIVE_H
#define LSI_COMM_COLLECTIVE_H

#include "comm/group.h"

typedef struct lsi_shape {
    bool many_in, many_out; /* n parts in the input, in the output */
    bool root_in, root_out; /* only the root's buffer counts */
    bool reduces;
    bool has_buffers; /* all but the barrier */
} lsi_shape;
extern const lsi_shape lsi_shapes[LSI_CALL_N_KINDS];
static inline const lsi_shape *lsi_shape_of(int kind) {
    return &lsi_shapes[kind];
}

/* Elements of part p, and of the parts before it, in an input of n parts. */
static inline int64_t lsi_part_count(const ls_work *work, int p) {
    return work->displs ? work->displs[p + 1] - work->displs[p] : work->count;
}
static inline int64_t lsi_part_begin(const ls_work *work, int p) {
    return work->displs ? work->displs[p] : p * work->count;
}
/* The same in an output of n parts. Of all-to-all they are as long as the rank's own part of the
 * inputs, which they were. */
static inline int64_t lsi_output_part_count(const ls_work *work, int p) {
    bool exchanges = lsi_shape_of(work->call->kind)->many_in;
    return lsi_part_count(work, exchanges ? work->group->rank : p);
}
static inline int64_t lsi_output_part_begin(const ls_work *work, int p) {
    bool exchanges = lsi_shape_of(work->call->kind)->many_in;
    return exchanges ? p * lsi_part_count(work, work->group->rank) : lsi_part_begin(work, p);
}
/* All-to-all in place. With counts it never is; an empty buffer may have the other's address. */
static inline bool lsi_swaps_in_place(const ls_work *work) {
    return work->call->kind == LSI_CALL_ALL_TO_ALL && work->input == work->output && !work->displs;
}
/* Elements of this rank's input and output, 0 for a buffer that does not count. */
int64_t lsi_input_count(const ls_work *work);
int64_t lsi_output_count(const ls_work *work);
static inline size_t lsi_elem_bytes(const ls_work *work) {
    return (size_t)work->elem_bytes;
}

/* Contributions of all ranks, or a stretch of them: elements [begin, …) of each part. */
typedef struct lsi_contributions {
    const unsigned char *at[LSI_MAX_RANKS];
    int64_t begin;
    int64_t stride;   /* elements between parts; -1: parts lie as in the whole input */
    bool sole_reader; /* nobody else reads the peers' contributions: they may be overwritten */
} lsi_contributions;
/* All but the pointers: filling 64 of them with zeros takes longer than a short call. */
static inline void lsi_contributions_init(lsi_contributions *c, int64_t begin, int64_t stride) {
    c->begin = begin;
    c->stride = stride;
    c->sole_reader = false;
}

/* Copies elements [begin, end) of each part of the own input to `to`, stride elements apart (-1: as
 * they lie in the input). Returns bytes. */
size_t lsi_contribute(const ls_work *work, unsigned char *to, int64_t begin, int64_t end,
                      int64_t stride);
/* Makes elements [begin, end) of each part of the own output. Returns bytes read from peers. */
int64_t lsi_pull(const ls_work *work, const lsi_contributions *from, int64_t begin, int64_t end);
/* Of a reduction: n_elems from `begin` on of the own part, made at `to`. */
int64_t lsi_pull_reduced(const ls_work *work, const lsi_contributions *from, int64_t begin,
                         int64_t n_elems, void *to);

/* The reduction of a work; premul holds the ranks' factors. */
lsi_reduction lsi_work_reduction(const ls_work *work, double premul[LSI_MAX_RANKS]);

/* Part [begin, end) of count elements that a rank reduces: equal parts, cut at cache lines so that
 * no line is written by two ranks; the last may be shorter or empty. */
typedef struct lsi_range {
    int64_t begin, end;
} lsi_range;
lsi_range lsi_slice(int64_t count, size_t elem_bytes, int rank, int n_ranks);

/* ---- algorithms; each moves this rank's part of a published work on. *finished: all of it ---- */

/* Buffers of peers, mapped here. */
bool lsi_direct_possible(const ls_work *work, int *rank,
                         bool *input); /* if not: whose is private */
/* Whether this rank's own buffers, of which it knows before the others have come, rule it out. */
bool lsi_direct_ruled_out(const ls_work *work, const uint64_t own_offset[2]);
void lsi_direct(ls_work *work);
/* Before the arrival is published: the contribution goes into lines or slot, or it is the words of
 * the arrival itself; returns how many. */
int lsi_one_shot_contribute(ls_work *work, uint64_t word[LSI_INLINE_BYTES / 8]);
/* The same into the slot, for calls that become one-shot only where all buffers are private. */
void lsi_one_shot_contribute_to_slot(ls_work *work);
/* Takes what has come of a rank's contribution; true when that is all. Only for the work that is
 * next to be started, if it is `flagged`. */
bool lsi_one_shot_take(ls_work *work, int rank);
void lsi_one_shot(ls_work *work);
void lsi_staged_begin(ls_work *work);
/* The same and, if blocks are free, the first piece, before the call is announced. Only for a work
 * before which none is unfinished. */
void lsi_staged_try_early(ls_work *work);
bool lsi_staged_advance(ls_work *work);
ls_status lsi_passing_begin(ls_work *work);
ls_status lsi_passing_advance(ls_work *work, bool *finished);
void lsi_passing_end(ls_work *work); /* frees; NULL state does nothing */
/* What the choice of algorithm looks at. */
void lsi_work_choice_case(const ls_work *work, const lsi_call *call, lsi_choice_case *c);

#endif
