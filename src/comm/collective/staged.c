/* Staged: collectives on private buffers, in pieces through two shared blocks per rank.
 *
 * Source: double-buffered pipelines through shared memory, as in MPI libraries without kernel
 * assistance (Buntinas, Mercier and Gropp, "Design and evaluation of Nemesis", CCGrid 2006).
 * Restrictions: none.
 *
 * Each piece, elements [begin, end) of every part, goes through three phases; the counter behind
 * each tells the peers.
 *
 *   copy in    own input -> own block             staged   = pieces copied in
 *   combine    all blocks -> sums or outputs      combined = pieces combined
 *   copy out   own block -> own output            consumed = pieces that need no block any more
 *
 *   All-reduce of 4 ranks, one piece of slices 0..3, rank 1:
 *   copy in    slices 0, 2, 3 of its input into its block (nobody else needs slice 1 from there)
 *   combine    slice 1 from its input and the blocks of 0, 2, 3, into its output and, in place,
 *              into these blocks
 *   copy out   slices 0, 2, 3 from its block, where ranks 0, 2, 3 have put the sums
 *
 * So every line of a block goes to and fro between two ranks only (copy.h, [Note: taking]).
 *
 * When may a phase of piece i run (piece numbers count through all works of the group):
 *   copy in    every rank has consumed piece i - 2, which used the same blocks;
 *   combine    every rank has staged piece i;
 *   copy out   every rank has combined piece i.
 * So copying piece i + 1 in overlaps with the others' combining of piece i. A rank whose own buffer
 * is private knows that the call is staged before the others have come, and copies the first piece
 * in before it announces the call: one trip less, which is what counts for a few KiB.
 *
 * Bytes to and from other ranks, per rank: those of direct (broadcast as with private outputs, the
 * root of a gather takes all of it), and copies in and out of the own block. Scratch: two blocks
 * per rank. Steps: 2 or 3 per piece. Cost: alpha + pieces (2 alpha) + S (2 beta' + gamma), beta'
 * being a copy through cache. When: whenever direct is impossible and one-shot too small. */
#include <string.h>

#include "base/clock.h"
#include "comm/collective/collective.h"
#include "comm/copy.h"
#include "comm/transport/bell.h"

typedef enum counter { STAGED, COMBINED, CONSUMED } counter;

/* Bytes of a block that one piece uses: blocks that stay in the second-level cache together are
 * faster than large ones. */
enum { PIECE_BYTES = 256 << 10 };
_Static_assert((int)PIECE_BYTES <= (int)LSI_BLOCK_BYTES, "a piece fits into a block");

static _Atomic uint64_t *counter_of(lsi_rank_control *rank, counter which) {
    return which == STAGED ? &rank->staged : which == COMBINED ? &rank->combined : &rank->consumed;
}

static bool all_at_least(const ls_group *group, counter which, uint64_t n) {
    for (int r = 0; r < group->n_ranks; r++)
        if (atomic_load_explicit(counter_of(&group->ranks[r], which), memory_order_acquire) < n)
            return false;
    return true;
}

/* The last rank to get here wakes those who wait for it. */
static void publish(ls_group *group, counter which, uint64_t n) {
    atomic_store_explicit(counter_of(group->me, which), n, memory_order_release);
    lsi_group_fence_for_last(group);
    if (all_at_least(group, which, n)) lsi_group_ring(group);
}

/* ---- pieces ---- */

static bool has_slices(const ls_work *work) {
    return work->call->kind == LSI_CALL_ALL_REDUCE || work->call->kind == LSI_CALL_REDUCE;
}

/* Elements of each part in a piece; whole cache lines where a part has that many. */
static int64_t piece_elems(const ls_work *work) {
    size_t size = lsi_elem_bytes(work);
    bool many = lsi_shape_of(work->call->kind)->many_in;
    int64_t bytes = PIECE_BYTES / (many ? work->group->n_ranks : 1);
    return bytes / LSI_LINE_BYTES * LSI_LINE_BYTES / (int64_t)size;
}

static lsi_range piece_range(const ls_work *work, uint64_t piece) {
    int64_t elems = piece_elems(work), begin = (int64_t)piece * elems;
    return (lsi_range){begin, begin + elems < work->count ? begin + elems : work->count};
}

static unsigned char *block_of(const ls_work *work, int rank, uint64_t piece) {
    return lsi_group_block(work->group->control, rank, work->group->n_pieces + piece);
}

/* ---- all-reduce and reduce: slices of the piece ---- */

static lsi_range slice_of(const ls_work *work, lsi_range piece, int rank) {
    lsi_range s =
        lsi_slice(piece.end - piece.begin, lsi_elem_bytes(work), rank, work->group->n_ranks);
    return s;
}

static void copy_slices_in(const ls_work *work, uint64_t piece, lsi_range range) {
    const ls_group *group = work->group;
    size_t size = lsi_elem_bytes(work);
    unsigned char *block = block_of(work, group->rank, piece);
    const unsigned char *input = (const unsigned char *)work->input + (size_t)range.begin * size;
    lsi_range own = slice_of(work, range, group->rank);
    size_t before = (size_t)own.begin * size, after = (size_t)own.end * size;
    size_t all = (size_t)(range.end - range.begin) * size;
    lsi_copy(block, input, before);
    lsi_copy(block + after, input + after, all - after);
}

static bool wants_output(const ls_work *work, int rank) {
    return work->call->kind == LSI_CALL_ALL_REDUCE || work->call->root == rank;
}

static int64_t combine_slice(const ls_work *work, uint64_t piece, lsi_range range) {
    const ls_group *group = work->group;
    size_t size = lsi_elem_bytes(work);
    const void *input[LSI_MAX_RANKS];
    void *output[LSI_MAX_RANKS];
    double premul[LSI_MAX_RANKS];
    lsi_range own = slice_of(work, range, group->rank);
    int64_t n_elems = own.end - own.begin;
    int n_outputs = 0, n_written = 0; /* to others' blocks */
    size_t in_block = (size_t)own.begin * size,
           in_buffer = (size_t)(range.begin + own.begin) * size;
    for (int r = 0; r < group->n_ranks; r++) {
        unsigned char *block = block_of(work, r, piece) + in_block;
        bool mine = r == group->rank;
        input[r] = mine ? (const unsigned char *)work->input + in_buffer : block;
        if (!wants_output(work, r)) continue;
        n_written += !mine;
        output[n_outputs++] = mine ? (unsigned char *)work->output + in_buffer : block;
    }
    lsi_reduction reduction = lsi_work_reduction(work, premul);
    lsi_reduce(&reduction, input, output, n_outputs, n_elems);
    return (group->n_ranks - 1 + n_written) * n_elems * (int64_t)size;
}

static void copy_slices_out(const ls_work *work, uint64_t piece, lsi_range range) {
    const ls_group *group = work->group;
    size_t size = lsi_elem_bytes(work);
    if (!wants_output(work, group->rank)) return;
    unsigned char *output = (unsigned char *)work->output + (size_t)range.begin * size;
    unsigned char *block = block_of(work, group->rank, piece);
    lsi_range own = slice_of(work, range, group->rank);
    size_t before = (size_t)own.begin * size, after = (size_t)own.end * size;
    size_t all = (size_t)(range.end - range.begin) * size;
    lsi_copy_taking(output, block, before);
    lsi_copy_taking(output + after, block + after, all - after);
}

/* ---- the others: the output is made from the blocks ---- */

static int64_t pull_piece(const ls_work *work, uint64_t piece, lsi_range range) {
    lsi_contributions from;
    lsi_contributions_init(&from, range.begin, piece_elems(work));
    /* Part p of a block is for rank p alone, and a gather is for the root. */
    from.sole_reader = work->group->n_ranks == 2 || lsi_shape_of(work->call->kind)->many_in ||
                       work->call->kind == LSI_CALL_GATHER;
    for (int r = 0; r < work->group->n_ranks; r++) from.at[r] = block_of(work, r, piece);
    /* Where all ranks want the same, the own block is a peer's to take: the own input serves. */
    if (!lsi_shape_of(work->call->kind)->many_in && lsi_input_count(work) > 0)
        from.at[work->group->rank] =
            (const unsigned char *)work->input + (size_t)range.begin * lsi_elem_bytes(work);
    return lsi_pull(work, &from, range.begin, range.end);
}

/* ---- phases ---- */

static bool copy_in(ls_work *work) {
    ls_group *group = work->group;
    uint64_t number = group->n_pieces + work->n_in;
    if (work->n_in == work->n_pieces) return false;
    if (number >= 2 && !all_at_least(group, CONSUMED, number - 1)) return false;
    lsi_range range = piece_range(work, work->n_in);
    if (has_slices(work))
        copy_slices_in(work, work->n_in, range);
    else
        lsi_contribute(work, block_of(work, group->rank, work->n_in), range.begin, range.end,
                       piece_elems(work));
    work->n_in++;
    publish(group, STAGED, number + 1);
    return true;
}

static bool combine(ls_work *work) {
    ls_group *group = work->group;
    uint64_t number = group->n_pieces + work->n_combined;
    if (work->n_combined == work->n_in || !all_at_least(group, STAGED, number + 1)) return false;
    lsi_range range = piece_range(work, work->n_combined);
    group->stats.bytes_sent += has_slices(work) ? combine_slice(work, work->n_combined, range)
                                                : pull_piece(work, work->n_combined, range);
    work->n_combined++;
    publish(group, COMBINED, number + 1);
    return true;
}

static bool copy_out(ls_work *work) {
    ls_group *group = work->group;
    uint64_t number = group->n_pieces + work->n_out;
    if (work->n_out == work->n_combined) return false;
    if (has_slices(work)) {
        if (!all_at_least(group, COMBINED, number + 1)) return false;
        copy_slices_out(work, work->n_out, piece_range(work, work->n_out));
    }
    work->n_out++;
    publish(group, CONSUMED, number + 1);
    return true;
}

void lsi_staged_try_early(ls_work *work) {
    lsi_staged_begin(work);
    (void)copy_in(work);
}

void lsi_staged_begin(ls_work *work) {
    int64_t elems = piece_elems(work);
    work->n_pieces = (uint64_t)((work->count + elems - 1) / elems);
    work->n_in = work->n_combined = work->n_out = 0;
}

bool lsi_staged_advance(ls_work *work) {
    ls_group *group = work->group;
    bool moved = true;
    while (moved) {
        int64_t begin = lsi_ticks();
        /* Late phases first: they free blocks. */
        moved = copy_out(work);
        moved = combine(work) || moved;
        moved = copy_in(work) || moved;
        if (moved) group->stats.work_ns += lsi_ticks() - begin;
    }
    if (work->n_out < work->n_pieces) return false;
    group->n_pieces += work->n_pieces;
    return true;
}
