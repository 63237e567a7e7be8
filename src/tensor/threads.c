/* Number of threads, and loops over ranges (see threads.h).
 *
 * The number is one atomic, read by every thread that computes. OpenMP keeps its own number per
 * thread, so a thread brings it up to date before its first product (`applied`). oneDNN and the
 * OpenMP build of OpenBLAS take the number from OpenMP, the pthread build of OpenBLAS from a call
 * of its own. Those two calls are looked up at run time, because whether they exist depends on the
 * library that the process was linked with. */
#include "tensor/threads.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include "tensor/gemm.h"

enum { GRAIN_ELEMS = 16384 }; /* 4 to 20 microseconds of element-wise work */

static _Atomic int n_threads = 1;
static _Thread_local int applied;

static void call_setter(const char *name, int value) {
    void (*set)(int);
    *(void **)&set = dlsym(RTLD_DEFAULT, name);
    if (set) set(value);
}

void lsi_compute_set_threads(int wanted) {
    atomic_store_explicit(&n_threads, wanted < 1 ? 1 : wanted, memory_order_relaxed);
    lsi_threads_apply();
}

int lsi_compute_threads(void) {
    return atomic_load_explicit(&n_threads, memory_order_relaxed);
}

void lsi_threads_apply(void) {
    int wanted = lsi_compute_threads();
    if (applied == wanted) return;
    call_setter("omp_set_num_threads", wanted);
    call_setter("openblas_set_num_threads", wanted);
    applied = wanted;
}

int64_t lsi_grain(int64_t elems) {
    return elems >= GRAIN_ELEMS ? 1 : GRAIN_ELEMS / (elems < 1 ? 1 : elems);
}

int lsi_n_workers(int64_t n, int64_t grain) {
#ifdef _OPENMP
    int64_t useful = n / (grain < 1 ? 1 : grain);
    int64_t workers = lsi_compute_threads();
    if (workers > useful) workers = useful;
    return workers < 1 ? 1 : (int)workers;
#else
    (void)n, (void)grain;
    return 1;
#endif
}

void lsi_for_ranges(int64_t n, int64_t grain, lsi_range_fn range, void *context) {
    int n_workers = lsi_n_workers(n, grain);
    if (n_workers == 1) {
        range(context, 0, n, 0);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(n_workers)
    for (int worker = 0; worker < n_workers; worker++)
        range(context, n * worker / n_workers, n * (worker + 1) / n_workers, worker);
#endif
}
