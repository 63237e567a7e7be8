/* Where the ranks are that a call waits for: a rank yields its processor only to one that is
 * missing. The handles of all ranks are in one thread, which posts for them and moves their works
 * by hand. */
#include <stdlib.h>
#include <string.h>

#include "comm/group.h"
#include "comm/transport/control.h"
#include "harness/harness.h"

enum { N_RANKS = 3, N_FLOATS = 4096, HEAP_BYTES = 1 << 20 };

typedef struct world {
    lsi_region *region;
    ls_group *group[N_RANKS];
    float *buffer[N_RANKS];
    ls_work *work[N_RANKS];
} world;

static void open_world(world *w) {
    memset(w, 0, sizeof *w);
    assert_ok(lsi_region_create(N_RANKS, HEAP_BYTES, &w->region));
    for (int r = 0; r < N_RANKS; r++) {
        void *memory = NULL;
        assert_ok(lsi_group_attach(w->region, r, &w->group[r]));
        assert_ok(ls_group_alloc_shared(w->group[r], N_FLOATS * sizeof(float), &memory));
        w->buffer[r] = memory;
    }
}

static void close_world(world *w) {
    for (int r = 0; r < N_RANKS; r++) ls_group_destroy(w->group[r]);
    lsi_region_close(w->region);
}

static void place(world *w, int first, int second, int third) {
    const int processor[N_RANKS] = {first, second, third};
    for (int r = 0; r < N_RANKS; r++) atomic_store(&w->group[r]->me->processor, processor[r]);
}

static void post(world *w, int rank) {
    assert_ok(ls_all_reduce(w->group[rank], w->buffer[rank], w->buffer[rank], N_FLOATS,
                            LS_DTYPE_F32, LS_OP_SUM, 1, &w->work[rank]));
}

static void advance(world *w, int rank) {
    assert_ok(ls_group_progress(w->group[rank]));
}

/* What rank 0 sees with itself on processor 1 and the others there. */
static bool waits_elsewhere(world *w, int second, int third) {
    place(w, 1, second, third);
    return lsi_waits_elsewhere(w->work[0]);
}

static void arrivals_and_parts_are_waited_for(void **state) {
    (void)state;
    world w;
    open_world(&w);
    post(&w, 0);
    assert_true(waits_elsewhere(&w, 2, 3));
    assert_true(waits_elsewhere(&w, 2, 2));
    assert_false(waits_elsewhere(&w, 1, 2)); /* a neighbour is missing */
    assert_false(waits_elsewhere(&w, 2, 1));
    assert_false(waits_elsewhere(&w, 2, 0)); /* not known */

    post(&w, 1);
    assert_true(waits_elsewhere(&w, 1, 2)); /* the neighbour has arrived */
    assert_false(waits_elsewhere(&w, 2, 1));

    post(&w, 2); /* it sees all of them and does its part */
    advance(&w, 0);
    assert_true(waits_elsewhere(&w, 2, 1)); /* for the part of rank 1 */
    assert_false(waits_elsewhere(&w, 1, 2));

    advance(&w, 1);
    assert_true(waits_elsewhere(&w, 1, 1)); /* all have done theirs, rank 0 has not looked yet */
    for (int r = 0; r < N_RANKS; r++) assert_ok(ls_work_wait(w.work[r], -1));
    close_world(&w);
}

int main(void) {
    setenv("LOCKSTEP_PROGRESS", "inline", 1); /* nobody else moves the works */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrivals_and_parts_are_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
