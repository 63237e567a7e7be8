/* The flags between ranks of a group (src/comm: work.c, collective/one_shot.c, direct.c, staged.c) as
 * a model for spin. All interleavings of N ranks that make the same WORKS calls are tried, each
 * load, store and ring being one step; memory.pml says what a store is.
 *
 * Claims
 *   no deadlock, no lost wake-up   every rank ends
 *   arrivals and slots             while a rank reads them they hold the call that it reads, and
 *                                  every rank sees every call's arrival
 *   completion                     once a direct work is done anywhere, no rank is inside its part,
 *                                  so buffers may be freed
 *   blocks                         a staging block is not filled while a rank adds from it, holds
 *                                  the right piece when it does, and all sums when it is copied out
 *
 * Reading: publish, can_publish, finish_part, ring_who_is_ahead, copy_in, combine, copy_out and so
 * on are what has these names in the code. Each WRONG_ switch breaks the protocol in one place; the
 * search must then find an error (see check.sh). */

#ifndef N
#define N 2 /* ranks */
#endif
/* What a work is: LINE and SLOT are one-shot, the contribution being in the arrival or in a slot; a
 * number above 0 is staged, in so many pieces. */
#define DIRECT 0
#define LINE 100
#define SLOT 101
#ifndef WORKS
#define WORKS 3
#define W0 LINE
#define W1 DIRECT
#define W2 SLOT
#endif
#ifndef W1
#define W1 LINE
#endif
#ifndef W2
#define W2 LINE
#endif
#ifndef W3
#define W3 LINE
#endif
#define WORK(w) (w == 0 -> W0 : (w == 1 -> W1 : (w == 2 -> W2 : W3)))
#define IS_STAGED(w) (WORK(w) > 0 && WORK(w) < LINE)
#ifndef LINES
#define LINES 2 /* LSI_ARRIVALS */
#endif
#ifndef SLOTS
#define SLOTS 1 /* LSI_SLOTS */
#endif

/* ---- what ranks share ---- */

#define DONE 0
#define STAGED 1
#define COMBINED 2
#define CONSUMED 3
#define PUBLISHED 4
#define ARRIVAL 5 /* and the LINES - 1 behind it */
#define CELLS ((5 + LINES) * N)
#define CELL(which, rank) ((which) * N + (rank))
#define NUMBER(rank, work) CELL(ARRIVAL + (work) % LINES, rank)

#include "memory.pml"

/* ---- what is only looked at by assertions ---- */

byte arrival[N * LINES]; /* number of the call that the rest of an arrival describes, from 1 */
byte slot[N * SLOTS];    /* and of the contribution in a slot; 0: being written */
bit is_done[WORKS];      /* on some rank */
byte n_adding[2];        /* ranks inside `combine` on the blocks of this parity */
byte holds[N * 2];       /* number of the piece in a block, from 1; 0: being filled */
byte n_sums[N * 2];      /* ranks that have put their sums into the block */
#define BLOCK(rank, piece) ((rank) * 2 + (piece) % 2)

/* ---- looks at all ranks: one load a step, in rank order ---- */

/* all = every rank's counter has reached n; its own is known to a rank. */
inline look(which, n, own) {
    do
    :: atomic { q < N && (q == me -> own : memory[CELL(which, q)]) >= n -> q++ }
    :: atomic { q < N && (q == me -> own : memory[CELL(which, q)]) < n -> all = 0; q = 0; break }
    :: atomic { q == N -> all = 1; q = 0; break }
    od
}

inline look_published(w) {
    do
    :: atomic { q < N && (q == me || memory[NUMBER(q, w)] == w + 1) -> q++ }
    :: atomic { q < N && q != me && memory[NUMBER(q, w)] != w + 1 -> all = 0; q = 0; break }
    :: atomic { q == N -> all = 1; q = 0; break }
    od
}

/* Stores a counter and rings when this rank was the last. */
inline raise(which, n) {
#ifdef WRONG_RING_BEFORE_STORE
    ring_all();
    store(CELL(which, me), n)
#else
    store(CELL(which, me), n);
    fence_for_last();
    look(which, n, n);
    if
    :: all -> ring_all()
    :: else
    fi
#endif
}

/* ---- publish ---- */

inline can_publish(w) {
    all = 1;
#ifndef WRONG_LINE_OF_A_CALL_UNDER_WAY
    if
    :: w >= LINES -> look(DONE, w - LINES + 1, n_started)
    :: else
    fi;
#endif
#ifndef WRONG_SLOT_OF_A_CALL_UNDER_WAY
    if
    :: all && WORK(w) == SLOT && slot_call > 0 -> look(DONE, slot_call, n_started)
    :: else
    fi
#endif
}

inline publish(w) {
    arrival[me * LINES + w % LINES] = 0;
    if
    :: WORK(w) == SLOT ->
       slot[me] = 0;
       atomic { slot[me] = w + 1; slot_call = w + 1 }
    :: else
    fi;
    arrival[me * LINES + w % LINES] = w + 1;
    store(NUMBER(me, w), w + 1);
    store(CELL(PUBLISHED, me), w + 1);
    fence_for_last();
    look_published(w);
    if
    :: all -> ring_all()
    :: else
    fi;
    n_published++ /* only now: w may be this */
}

inline publish_works() {
    do
    :: n_published < n_posted ->
       can_publish(n_published);
       if
       :: all -> publish(n_published); moved = 1
       :: else -> break
       fi
    :: else -> break
    od
}

/* ---- parts ---- */

inline assert_described(w) {
    d_step {
        do
        :: q < N ->
           assert(arrival[q * LINES + w % LINES] == w + 1);
           assert(WORK(w) != SLOT || slot[q] == w + 1);
           assert(WORK(w) != DIRECT || !is_done[w]);
           q++
        :: else -> break
        od;
        q = 0
    }
}

/* One-shot: contributions are read. Direct: peers' buffers are read and written. */
inline part_in_one_go() {
    assert_described(n_started);
    assert_described(n_started)
}

inline copy_in() {
    d_step {
        assert(n_adding[n_in % 2] == 0);
        holds[BLOCK(me, n_in)] = 0
    }
    d_step {
        assert(n_adding[n_in % 2] == 0);
        holds[BLOCK(me, n_in)] = n_in + 1;
        n_sums[BLOCK(me, n_in)] = 0
    }
    n_in++;
    raise(STAGED, n_in)
}

inline assert_blocks() {
    do
    :: q < N -> assert(holds[BLOCK(q, n_combined)] == n_combined + 1); q++
    :: else -> break
    od;
    q = 0
}

inline combine() {
    d_step {
        n_adding[n_combined % 2]++;
        assert_blocks()
    }
    d_step {
        assert_blocks();
        do
        :: q < N -> n_sums[BLOCK(q, n_combined)]++; q++
        :: else -> break
        od;
        q = 0;
        n_adding[n_combined % 2]--
    }
    n_combined++;
    raise(COMBINED, n_combined)
}

inline copy_out() {
    d_step {
        assert(holds[BLOCK(me, n_out)] == n_out + 1);
        assert(n_sums[BLOCK(me, n_out)] == N)
    }
    n_out++;
    raise(CONSUMED, n_out)
}

#ifdef WRONG_ONE_PIECE_EARLY
#define FREED(n) (n - 2)
#else
#define FREED(n) (n - 1)
#endif

/* Counts of pieces go through all works, so n_in and so on are the published numbers as well. */
inline staged_part() {
    do
    :: moved_pieces = 0;
       if
       :: n_out < n_combined ->
          look(COMBINED, n_out + 1, n_combined);
          if
          :: all -> copy_out(); moved_pieces = 1
          :: else
          fi
       :: else
       fi;
       if
       :: n_combined < n_in ->
          look(STAGED, n_combined + 1, n_in);
          if
          :: all -> combine(); moved_pieces = 1
          :: else
          fi
       :: else
       fi;
       if
       :: n_in < n_end ->
          if
          :: n_in >= 2 -> look(CONSUMED, FREED(n_in), n_out)
          :: else -> all = 1
          fi;
          if
          :: all -> copy_in(); moved_pieces = 1
          :: else
          fi
       :: else
       fi;
       if
       :: moved_pieces -> changed = 1
       :: else -> break
       fi
    od
}

/* ---- the engine ---- */

/* A peer that is so far ahead that it may be asleep for want of a line or slot. */
inline ring_who_is_ahead() {
#ifdef WRONG_NOBODY_RINGS_WHO_IS_AHEAD
    skip
#else
    do
    :: atomic { q < N && (q == me || !asleep[q]) -> q++ }
    :: q < N && q != me && asleep[q] ->
       if
       :: memory[CELL(PUBLISHED, q)] + 1 >= n_started + SLOTS -> rung[q] = 1
       :: else
       fi;
       q++
    :: atomic { q == N -> q = 0; break }
    od
#endif
}

inline finish_part() {
    n_started++;
    if
    :: WORK(n_started - 1) == DIRECT -> raise(DONE, n_started)
    :: else ->
       store(CELL(DONE, me), n_started);
       fence();
       ring_who_is_ahead()
    fi
}

inline start_works() {
    do
    :: n_started < n_published ->
       look_published(n_started);
       if
       :: !all -> break
       :: else
       fi;
       if
       :: !IS_STAGED(n_started) -> part_in_one_go()
       :: else ->
          n_end = n_before + WORK(n_started);
          assert_described(n_started);
          staged_part();
          if
          :: n_out < n_end -> break
          :: else -> n_before = n_end
          fi
       fi;
       finish_part();
       moved = 1
    :: else -> break
    od
}

inline complete_works() {
    do
    :: n_completed < n_started ->
       all = 1;
#ifndef WRONG_DIRECT_DONE_WITH_OWN_PART
       if
       :: WORK(n_completed) == DIRECT -> look(DONE, n_completed + 1, n_started)
       :: else
       fi;
#endif
       if
       :: all -> atomic { is_done[n_completed] = 1; n_completed++; moved = 1 }
       :: else -> break
       fi
    :: else -> break
    od
}

inline advance() {
    do
    :: moved = 0;
       publish_works();
       start_works();
       complete_works();
       changed = changed || moved;
       if
       :: moved && n_completed < n_posted
       :: else -> moved = 0; break
       fi
    od
}

inline wait() {
    n_wanted = n_completed + 1;
    do
    :: n_completed >= n_wanted -> n_wanted = 0; break
    :: else ->
#ifdef WRONG_LOOK_BEFORE_ANNOUNCE
       advance();
       changed = 0;
       announce_sleep();
#else
       announce_sleep();
       changed = 0;
       advance();
#endif
       /* What was stored since the announcement may be in the buffer: look again after the next. */
#ifdef WRONG_SLEEP_AFTER_A_CHANGE
       changed = 0;
#endif
       if
       :: n_completed < n_wanted && !changed -> sleep()
       :: else
       fi;
       changed = 0;
       end_sleep()
    od
}

inline post() {
    n_posted++;
    advance();
    changed = 0
}

proctype rank(byte me) {
    byte n_posted, n_published, n_started, n_completed, n_wanted;
    byte n_in, n_combined, n_out, n_before, n_end;
    byte slot_call; /* number of the last call that used this rank's slot */
    byte q;
    bit all, moved, moved_pieces, changed;

    do
    :: n_posted < WORKS -> post() /* another call while the last are in flight */
    :: n_completed < n_posted -> wait()
    :: n_completed == WORKS -> break
    od
}

init {
    byte r = 0;
    start_ranks()
}
