/* One-shot: every rank puts its contribution where all can read it, and each makes its own output
 * from all of them.
 *
 * Source: the flat algorithms for small messages on shared memory (Graham and Shipman, "MPI support
 * for multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008), with data
 * and arrival in one cache line.
 * Restrictions: a contribution fits into a slot (LSI_SLOT_BYTES).
 *
 *   4 ranks        line or slot of each       rank 2
 *   rank 0   ->    [ 0 ]                 \
 *   rank 1   ->    [ 1 ]                  \   reads all four, reduces or picks what it needs,
 *   rank 2   ->    [ 2 ]                  /   writes its own output
 *   rank 3   ->    [ 3 ]                 /
 *
 * Steps: 1 (all arrived), whatever the number of ranks: no rank waits to be read, its line and slot
 * stay until all are done with them (control.h, [Note: one trip]).
 * Bytes from other ranks, per rank that has an output: (n - 1) C, C being a contribution: S, for
 * all-gather and gather S / n; of contributions in n parts the own one, S (n - 1) / n. Broadcast
 * and scatter: one contribution, one part; the root none. Scratch: a slot of C bytes, none up to
 * LSI_INLINE_BYTES. Cost: alpha + n C (beta + gamma); any n. When: up to some KiB, on any buffers.
 * Barriers have nothing to contribute and are always this.
 *
 * [Note: flagged lines] A reader that first sees the arrival and then fetches the slot makes two
 * trips. So contributions up to LSI_FLAGGED_BYTES lie in the slot as cache lines of 56 bytes and a
 * flag, a word that only this call of this rank has; the reader looks at these lines themselves,
 * all are on their way at once, and each is taken as soon as its flag is there (the LL128 protocol
 * of NCCL is of this kind). The arrival line is looked at only while a flag is missing: it may tell
 * that the peer made another call, whose flags would never come. */
#include <string.h>

#include "comm/collective/collective.h"
#include "comm/copy.h"

enum { LINE_PAYLOAD = LSI_LINE_BYTES - 8 };

typedef struct flagged_line {
    _Alignas(LSI_LINE_BYTES) unsigned char payload[LINE_PAYLOAD];
    _Atomic uint64_t flag;
} flagged_line;

static flagged_line *lines_of(const ls_work *work, int rank) {
    return (flagged_line *)(void *)lsi_group_slot(work->group->control, rank, work->slot);
}

static uint64_t flag_of(const ls_work *work) {
    return work->fingerprint ^ (work->index + 1) * 0x9E3779B97F4A7C15u;
}

static void write_lines(const ls_work *work, const unsigned char *from, size_t bytes) {
    flagged_line *line = lines_of(work, work->group->rank);
    uint64_t flag = flag_of(work);
    for (size_t at = 0; at < bytes; at += LINE_PAYLOAD, line++) {
        if (bytes - at >= LINE_PAYLOAD)
            memcpy(line->payload, from + at, LINE_PAYLOAD);
        else
            memcpy(line->payload, from + at, bytes - at);
        atomic_store_explicit(&line->flag, flag, memory_order_release);
    }
}

/* Where the contribution goes: the arrival line, lines with flags, or a slot. Factors of ranks come
 * with the arrival, which flags do not wait for. Where a reader needs one part of many, taking many
 * lines costs more than the second trip. */
static bool goes_into_lines(const ls_work *work) {
    bool in_parts = lsi_shape_of(work->call->kind)->many_in;
    return work->contribution_bytes <= (in_parts ? LSI_FLAGGED_PARTS_BYTES : LSI_FLAGGED_BYTES) &&
           work->group->n_ranks > 1 && work->call->op != LS_OP_PREMUL_SUM;
}

/* The own input as words of the arrival line. */
static int fill_words(const ls_work *work, uint64_t word[LSI_INLINE_BYTES / 8]) {
    enum { MOST = LSI_INLINE_BYTES / 8 };
    size_t bytes = (size_t)lsi_input_count(work) * lsi_elem_bytes(work), n = bytes / 8;
    const unsigned char *input = work->input;
    for (size_t i = 0; i < n && i < MOST; i++) memcpy(&word[i], input + 8 * i, 8);
    if (bytes == 8 * n || n >= MOST) return (int)n;
    word[n] = 0;
    memcpy(&word[n], input + 8 * n, bytes - 8 * n);
    return (int)n + 1;
}

int lsi_one_shot_contribute(ls_work *work, uint64_t word[LSI_INLINE_BYTES / 8]) {
    if (work->contribution_bytes <= LSI_INLINE_BYTES) return fill_words(work, word);
    work->flagged = goes_into_lines(work);
    if (!work->flagged)
        lsi_one_shot_contribute_to_slot(work);
    else if (lsi_input_count(work) > 0)
        write_lines(work, work->input, (size_t)lsi_input_count(work) * lsi_elem_bytes(work));
    return 0;
}

void lsi_one_shot_contribute_to_slot(ls_work *work) {
    const ls_group *group = work->group;
    lsi_contribute(work, lsi_group_slot(group->control, group->rank, work->slot), 0, work->count,
                   -1);
}

/* Where contributions are put together again; only the work that is being started uses it. */
static unsigned char *gathered(const ls_work *work, int rank) {
    return work->group->gathered + (size_t)rank * LSI_FLAGGED_BYTES;
}

/* Bytes that a rank contributes to this call. */
static size_t bytes_of(const ls_work *work, int rank) {
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    if (shape->root_in && rank != work->call->root) return 0;
    if (shape->many_in) return (size_t)work->contribution_bytes;
    int64_t elems = shape->many_out ? lsi_part_count(work, rank) : work->count;
    return (size_t)elems * lsi_elem_bytes(work);
}

bool lsi_one_shot_take(ls_work *work, int rank) {
    if (rank == work->group->rank) return true;
    size_t bytes = bytes_of(work, rank);
    flagged_line *line = lines_of(work, rank);
    unsigned char *to = gathered(work, rank);
    uint64_t flag = flag_of(work);
    bool sole_reader = work->group->n_ranks == 2;
    for (size_t at = work->n_lines_taken * LINE_PAYLOAD; at < bytes; at += LINE_PAYLOAD) {
        flagged_line *l = &line[work->n_lines_taken];
        if (atomic_load_explicit(&l->flag, memory_order_acquire) != flag) return false;
        memcpy(to + at, l->payload, bytes - at >= LINE_PAYLOAD ? LINE_PAYLOAD : bytes - at);
        /* The line changes hands (copy.h, [Note: taking]). */
        if (sole_reader) atomic_store_explicit(&l->flag, 0, memory_order_relaxed);
        work->n_lines_taken++;
    }
    work->n_lines_taken = 0;
    /* A rank with nothing to give has its arrival only. */
    return bytes > 0 || atomic_load_explicit(&lsi_work_arrival_of(work, rank)->number,
                                             memory_order_acquire) == work->index + 1;
}

/* All contributions; the own one is where it was. */
static void find_contributions(const ls_work *work, lsi_contributions *from) {
    ls_group *group = work->group;
    bool is_inline = work->contribution_bytes <= LSI_INLINE_BYTES;
    lsi_contributions_init(from, 0, -1);
    for (int r = 0; r < group->n_ranks; r++)
        from->at[r] = r == group->rank ? work->input
                      : is_inline      ? lsi_work_arrival_of(work, r)->payload
                      : work->flagged  ? gathered(work, r)
                                       : lsi_group_slot(group->control, r, work->slot);
    from->sole_reader = group->n_ranks == 2 && !is_inline && !work->flagged;
}

/* All-reduce and reduce, where this rank has an output: lsi_pull in fewer steps, since for a few
 * bytes the steps take as long as the trip. */
static int64_t reduce_all(const ls_work *work, const lsi_contributions *from) {
    const void *const *input = (const void *const *)from->at;
    int n = work->group->n_ranks, n_outputs = 1;
    void *output[2];
    double premul[LSI_MAX_RANKS];
    output[0] = work->output;
    /* The lines of the peer's contribution change hands (copy.h, [Note: taking]). */
    if (from->sole_reader) output[n_outputs++] = (void *)input[1 - work->group->rank];
    lsi_reduction reduction = lsi_work_reduction(work, premul);
    lsi_reduce(&reduction, input, output, n_outputs, work->count);
    return (n - 1) * work->contribution_bytes;
}

void lsi_one_shot(ls_work *work) {
    const lsi_call *call = work->call;
    const lsi_shape *shape = lsi_shape_of(call->kind);
    lsi_contributions from;
    find_contributions(work, &from);
    bool reduces_all = shape->reduces && !shape->many_in;
    bool wants_output = !shape->root_out || call->root == work->group->rank;
    work->group->stats.bytes_sent += reduces_all && wants_output
                                         ? reduce_all(work, &from)
                                         : lsi_pull(work, &from, 0, work->count);
}
