/* Channels between ranks (src/comm/transport/channel.c) as a model for spin: N ranks in a ring, each
 * sends UNITS units to the next through a channel that holds ROOM, and receives as many from the one
 * before, in whatever order it can; whoever can do neither sleeps. memory.pml says what a store is.
 *
 * Claims
 *   no deadlock, no lost wake-up   every rank ends
 *   the ring                       no unit is overwritten before it is read; they come in order
 *
 * Each WRONG_ switch breaks it in one place; the search must then find an error (see check.sh). */

#ifndef N
#define N 2 /* ranks */
#endif
#ifndef UNITS
#define UNITS 3
#endif
#ifndef ROOM
#define ROOM 1
#endif

#define CELLS (2 * N)
#define WRITTEN(rank) (rank)      /* of the channel from this rank to the next */
#define READ(rank) (N + (rank))   /* of the channel to this rank from the one before */
#define NEXT ((me + 1) % N)
#define BEFORE ((me + N - 1) % N)

#include "memory.pml"

byte unit[N * ROOM]; /* what is in the channel from each rank: numbers from 1; 0: it was read */

#ifdef WRONG_WRITE_INTO_FULL
#define IS_FULL 0
#else
#define IS_FULL (n_sent - memory[READ(NEXT)] >= ROOM)
#endif

inline put() {
    if
    :: n_sent < UNITS && !IS_FULL ->
       d_step {
           assert(unit[me * ROOM + n_sent % ROOM] == 0);
           unit[me * ROOM + n_sent % ROOM] = n_sent + 1
       }
       n_sent++;
       store(WRITTEN(me), n_sent);
       fence();
       ring(NEXT);
       moved = 1
    :: else
    fi
}

inline get() {
    if
    :: n_received < UNITS && memory[WRITTEN(BEFORE)] > n_received ->
       d_step {
           assert(unit[BEFORE * ROOM + n_received % ROOM] == n_received + 1);
           unit[BEFORE * ROOM + n_received % ROOM] = 0
       }
       n_received++;
       store(READ(me), n_received);
       fence();
#ifndef WRONG_READER_DOES_NOT_RING
       ring(BEFORE);
#endif
       moved = 1
    :: else
    fi
}

inline advance() {
    do
    :: moved = 0;
       put();
       get();
       if
       :: moved
       :: else -> break
       fi
    od
}

proctype rank(byte me) {
    byte n_sent, n_received, q;
    bit all, moved;

    do
    :: n_sent == UNITS && n_received == UNITS -> break
    :: else ->
       announce_sleep();
       advance();
       if
       :: n_sent < UNITS || n_received < UNITS -> sleep()
       :: else
       fi;
       end_sleep()
    od
}

init {
    byte r = 0;
    start_ranks()
}
