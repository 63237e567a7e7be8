/* Staged: collectives on private buffers, in pieces through two shared blocks per rank.
 *
 * Each piece goes through three phases; the counter behind each tells the peers.
 *
 *   copy in   own input -> own block             staged   = pieces copied in
 *   combine   all blocks -> sums or outputs      combined = pieces combined
 *   copy out  own block -> own output            consumed = pieces that need no block any more
 *
 * When may a phase of piece i run (piece numbers count through all works of the group):
 *   copy in    every rank has consumed piece i - 2, which used the same blocks;
 *   combine    every rank has staged piece i;
 *   copy out   every rank has combined piece i.
 * So copying piece i + 1 in overlaps with the others' combining of piece i. */
#include "base/clock.h"
#include "comm/collective/collective.h"

typedef enum counter { STAGED, COMBINED, CONSUMED } counter;

static _Atomic uint64_t *counter_of(lsi_rank_control *rank, counter which) {
    return which == STAGED ? &rank->staged : which == COMBINED ? &rank->combined : &rank->consumed;
}

static bool all_at_least(const ls_group *group, counter which, uint64_t n) {
    for (int r = 0; r < group->n_ranks; r++)
        if (atomic_load(counter_of(&group->ranks[r], which)) < n) return false;
    return true;
}

/* The last rank to get here wakes those who wait for it. */
static void publish(ls_group *group, counter which, uint64_t n) {
    atomic_store(counter_of(group->me, which), n);
    if (all_at_least(group, which, n)) lsi_group_ring(group);
}

static bool copy_in(ls_work *work, const lsi_collective *collective) {
    ls_group *group = work->group;
    uint64_t number = group->n_pieces + work->n_in;
    if (work->n_in == work->n_pieces) return false;
    if (number >= 2 && !all_at_least(group, CONSUMED, number - 1)) return false;
    collective->copy_in(work, work->n_in);
    work->n_in++;
    publish(group, STAGED, number + 1);
    return true;
}

static bool combine(ls_work *work, const lsi_collective *collective) {
    ls_group *group = work->group;
    uint64_t number = group->n_pieces + work->n_combined;
    if (work->n_combined == work->n_in || !all_at_least(group, STAGED, number + 1)) return false;
    group->stats.bytes_sent += collective->combine(work, work->n_combined);
    work->n_combined++;
    publish(group, COMBINED, number + 1);
    return true;
}

static bool copy_out(ls_work *work, const lsi_collective *collective) {
    ls_group *group = work->group;
    uint64_t number = group->n_pieces + work->n_out;
    if (work->n_out == work->n_combined) return false;
    if (collective->copy_out) {
        if (!all_at_least(group, COMBINED, number + 1)) return false;
        collective->copy_out(work, work->n_out);
    }
    work->n_out++;
    publish(group, CONSUMED, number + 1);
    return true;
}

bool lsi_staged_advance(ls_work *work) {
    ls_group *group = work->group;
    const lsi_collective *collective = lsi_collective_of(work->call.kind);
    int64_t begin_ns = lsi_now_ns();
    bool moved = true;
    while (moved) {
        /* Late phases first: they free blocks. */
        moved = copy_out(work, collective);
        moved = combine(work, collective) || moved;
        moved = copy_in(work, collective) || moved;
        if (moved) {
            group->stats.work_ns += lsi_now_ns() - begin_ns;
            begin_ns = lsi_now_ns();
        }
    }
    if (work->n_out < work->n_pieces) return false;
    group->n_pieces += work->n_pieces;
    return true;
}
