/* What ranks share, and how they sleep and wake (src/comm/transport/bell.h), for the models that
 * include this. Expects N ranks, CELLS numbers that ranks store and load, and in each rank `me`, a
 * byte `q` that is 0 between steps, and a bit `all`.
 *
 * Without BUFFERS a store is there at once. With it, a store goes into the rank's store buffer,
 * first in first out, and reaches memory at any time later, as on x86: a look that follows in the
 * program may come before. Then either ringers have a fence (FENCED), or those who go to sleep make
 * all ranks' stores arrive first (the membarrier call), which is what the code does where it can.
 * What is done by one atomic read and write in the code, `asleep` and the bell, is never delayed.
 * Sleeps have no time limit here, so that a wake-up that is lost is a deadlock; the code looks
 * again every few milliseconds. */

byte memory[CELLS];
bit asleep[N], rung[N]; /* rung: the bell has moved since the ticket was taken */

#ifdef BUFFERS
#define DEPTH 2
byte n_stored[N], cell_stored[N * DEPTH], value_stored[N * DEPTH];

inline store(cell, value) {
    atomic {
        n_stored[me] < DEPTH ->
        cell_stored[me * DEPTH + n_stored[me]] = cell;
        value_stored[me * DEPTH + n_stored[me]] = value;
        n_stored[me]++
    }
}

/* A processor's buffer empties by itself, one store after the other. */
proctype buffer(byte me) {
end:
    do
    :: d_step {
        n_stored[me] > 0 ->
        memory[cell_stored[me * DEPTH]] = value_stored[me * DEPTH];
        cell_stored[me * DEPTH] = cell_stored[me * DEPTH + 1];
        value_stored[me * DEPTH] = value_stored[me * DEPTH + 1];
        n_stored[me]--;
        cell_stored[me * DEPTH + n_stored[me]] = 0;
        value_stored[me * DEPTH + n_stored[me]] = 0
    }
    od
}
#else
#define store(cell, value) memory[cell] = value
#endif

/* Between a store and the looks that decide whom to ring. */
inline fence() {
#if defined(BUFFERS) && defined(FENCED) && !defined(WRONG_NO_FENCE)
    n_stored[me] == 0
#else
    skip
#endif
}

/* The same where only the last rank to store rings: two ranks whose stores are both still in their
 * buffers would each take the other for the last. The barrier of those who sleep comes too early to
 * help, so whoever sees a sleeper has a fence. With two ranks there is nobody else to leave it to. */
inline fence_for_last() {
#if defined(BUFFERS) && !defined(FENCED) && N > 2 && !defined(WRONG_NO_FENCE_FOR_LAST)
    do
    :: atomic { q < N && (q == me || !asleep[q]) -> q++ }
    :: atomic { q < N && q != me && asleep[q] -> q = 0 } n_stored[me] == 0; break
    :: atomic { q == N -> q = 0; break }
    od
#else
    fence()
#endif
}

inline announce_sleep() {
    rung[me] = 0; /* the ticket */
#ifdef BUFFERS
    atomic { n_stored[me] == 0 -> asleep[me] = 1 }
#else
    asleep[me] = 1;
#endif
#if defined(BUFFERS) && !defined(FENCED) && !defined(WRONG_NO_MEMBARRIER)
    do
    :: atomic { q < N && n_stored[q] == 0 -> q++ }
    :: atomic { q == N -> q = 0; break }
    od
#endif
}

#define sleep() rung[me] == 1
#define end_sleep() asleep[me] = 0

/* Rings the rank if it is asleep: a look and a store. */
inline ring(rank) {
    if
    :: asleep[rank] -> rung[rank] = 1
    :: else
    fi
}

inline ring_all() {
    do
    :: atomic { q < N && (q == me || !asleep[q]) -> q++ }
    :: q < N && q != me && asleep[q] -> atomic { rung[q] = 1; q++ }
    :: atomic { q == N -> q = 0; break }
    od
}

inline start_ranks() {
    atomic {
        do
        :: r < N ->
#ifdef BUFFERS
           run buffer(r);
#endif
           run rank(r);
           r++
        :: else -> break
        od
    }
}
