/* The number of threads of the optimizer's loops.
 *
 * A setting of its own, because this layer stands beside the tensor layer and may be used without
 * it, and because a library that grabs all cores by itself would slow a machine where every core
 * already has its worker. So one thread unless told otherwise. */
#include "optim/threads.h"

static int n_threads_now = 1;

void lsi_optim_set_threads(int n_threads) {
    n_threads_now = n_threads < 1 ? 1 : n_threads;
}

int lsi_optim_threads(void) {
    return n_threads_now;
}
