/* The flags between ranks (src/comm: work.c, collective/staged.c, transport/bell.h) as a model for
 * spin. All interleavings of N ranks that make the same WORKS calls are tried, each load, store and
 * ring being one step, as sequentially consistent atomics are.
 *
 * Claims
 *   no deadlock, no lost wake-up   every rank ends; sleeps have no time limit here, while the code
 *                                  looks again every 50 ms
 *   completion                     once a work is done anywhere, no rank is inside its part, so
 *                                  buffers may be freed
 *   descriptions                   a slot is not written while a peer may read it
 *   blocks                         a staging block is not filled while a rank adds from it, holds
 *                                  the right piece when it does, and all sums when it is copied out
 *
 * Reading: publish, copy_in, combine, copy_out, start_works, complete_works are what has these names
 * in the code. COARSE makes a look at all ranks, and a ring of all bells, one step, which lets three
 * ranks with three pieces be searched in a minute. Each WRONG_ switch breaks the protocol in one
 * place; the search must then find an error (see check.sh). */

#ifndef N
#define N 2 /* ranks */
#endif
#ifndef WORKS /* and the pieces of each; 0: direct */
#define WORKS 4
#define P0 0
#define P1 3
#define P2 1
#define P3 0
#endif
#define PIECES(w) (w == 0 -> P0 : (w == 1 -> P1 : (w == 2 -> P2 : P3)))
#define CALLS 2 /* slots of descriptions, LSI_CALLS */

/* ---- what ranks share ---- */

#define ARRIVED 0
#define DONE 1
#define STAGED 2
#define COMBINED 3
#define CONSUMED 4
byte counters[5 * N];
#define COUNTER(which, rank) counters[(which) * N + (rank)]

bit asleep[N], rung[N]; /* rung: the bell has moved since the ticket was taken */

/* ---- what is only looked at by assertions ---- */

byte described[N * CALLS]; /* number of the call in a slot, from 1 */
bit is_done[WORKS];        /* on some rank */
byte n_adding[2];          /* ranks inside `combine` on the blocks of this parity */
byte holds[N * 2];         /* number of the piece in a block, from 1; 0: being filled */
byte n_sums[N * 2];        /* ranks that have put their sums into the block */

#define SLOT(rank, work) described[(rank) * CALLS + (work) % CALLS]
#define BLOCK(rank, piece) ((rank) * 2 + (piece) % 2)

/* ---- sleeping and waking ---- */

/* all = every rank's counter has reached n; one load a step, in rank order. */
inline look(which, n) {
#ifdef COARSE
    d_step {
        all = 1;
        do
        :: q < N -> all = all && COUNTER(which, q) >= n; q++
        :: else -> break
        od;
        q = 0
    }
#else
    do
    :: atomic { q < N && COUNTER(which, q) >= n -> q++ }
    :: atomic { q < N && COUNTER(which, q) < n -> all = 0; q = 0; break }
    :: atomic { q == N -> all = 1; q = 0; break }
    od
#endif
}

inline ring() {
#ifdef COARSE
    d_step {
        do
        :: q < N -> rung[q] = rung[q] || asleep[q]; q++
        :: else -> break
        od;
        q = 0
    }
#else
    do
    :: atomic { q < N && (q == me || !asleep[q]) -> q++ }
    :: q < N && q != me && asleep[q] -> atomic { rung[q] = 1; q++ }
    :: atomic { q == N -> q = 0; break }
    od
#endif
}

inline publish(which, n) {
#ifdef WRONG_RING_BEFORE_STORE
    ring();
    COUNTER(which, me) = n
#else
    COUNTER(which, me) = n;
    look(which, n);
    if
    :: all -> ring()
    :: else
    fi
#endif
}

/* ---- parts ---- */

inline assert_described(w) {
    d_step {
        do
        :: q < N -> assert(SLOT(q, w) == w + 1); q++
        :: else -> break
        od;
        q = 0
    }
}

inline direct_part() {
    assert(!is_done[n_started]);
    assert_described(n_started);
    /* here peers' buffers are read and written */
    assert(!is_done[n_started]);
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
    publish(STAGED, n_in)
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
    publish(COMBINED, n_combined)
}

inline copy_out() {
    d_step {
        assert(holds[BLOCK(me, n_out)] == n_out + 1);
        assert(n_sums[BLOCK(me, n_out)] == N)
    }
    n_out++;
    publish(CONSUMED, n_out)
}

#ifdef WRONG_ONE_PIECE_EARLY
#define FREED(n) (n - 2)
#else
#define FREED(n) (n - 1)
#endif

/* Counts of pieces go through all works, so n_in and so on are the published numbers as well. */
inline staged_part() {
    do
    :: moved = 0;
       if
       :: n_out < n_combined ->
          look(COMBINED, n_out + 1);
          if
          :: all -> copy_out(); moved = 1
          :: else
          fi
       :: else
       fi;
       if
       :: n_combined < n_in ->
          look(STAGED, n_combined + 1);
          if
          :: all -> combine(); moved = 1
          :: else
          fi
       :: else
       fi;
       if
       :: n_in < n_end ->
          if
          :: n_in >= 2 -> look(CONSUMED, FREED(n_in))
          :: else -> all = 1
          fi;
          if
          :: all -> copy_in(); moved = 1
          :: else
          fi
       :: else
       fi;
       if
       :: moved
       :: else -> break
       fi
    od;
    moved = 0
}

/* ---- the engine ---- */

inline start_works() {
    do
    :: n_started < n_posted ->
       look(ARRIVED, n_started + 1);
       if
       :: !all -> break
       :: else
       fi;
       if
       :: PIECES(n_started) == 0 -> direct_part()
       :: else ->
          n_end = n_before + PIECES(n_started);
          assert_described(n_started);
          staged_part();
          if
          :: n_out < n_end -> break
          :: else -> n_before = n_end
          fi
       fi;
       n_started++;
       publish(DONE, n_started)
    :: else -> break
    od
}

inline complete_works() {
    do
    :: n_completed < n_started ->
#ifdef WRONG_DONE_WITH_OWN_PART
       all = 1;
#else
       look(DONE, n_completed + 1);
#endif
       if
       :: all -> atomic { is_done[n_completed] = 1; n_completed++ }
       :: else -> break
       fi
    :: else -> break
    od
}

/* The code repeats both while something moves. One round leaves the same state: completing makes
 * nothing startable. */
inline advance() {
    start_works();
    complete_works()
}

inline wait() {
    n_wanted = n_completed + 1;
    do
    :: n_completed >= n_wanted -> break
    :: else ->
#ifdef WRONG_LOOK_BEFORE_ANNOUNCE
       advance();
       rung[me] = 0;
       asleep[me] = 1;
#else
       rung[me] = 0; /* the ticket */
       asleep[me] = 1;
       advance();
#endif
       if
       :: n_completed < n_wanted -> rung[me] == 1
       :: else
       fi;
       asleep[me] = 0
    od
}

inline post() {
    SLOT(me, n_posted) = n_posted + 1;
    n_posted++;
    publish(ARRIVED, n_posted);
    advance()
}

proctype rank(byte me) {
    byte n_posted, n_started, n_completed, n_wanted;
    byte n_in, n_combined, n_out, n_before, n_end;
    byte q;
    bit all, moved;

    do
    /* Another call while the last are in flight, if a slot is free. */
#ifdef WRONG_SLOT_OF_A_STARTED_CALL
    :: n_posted < WORKS && n_posted - n_started < CALLS -> post()
#else
    :: n_posted < WORKS && n_posted - n_completed < CALLS -> post()
#endif
    /* Some progress while computing, or a wait for the oldest. */
    :: n_completed < n_posted -> wait()
    :: n_completed == WORKS -> break
    od
}

init {
    atomic {
        byte r = 0;
        do
        :: r < N -> run rank(r); r++
        :: else -> break
        od
    }
}
