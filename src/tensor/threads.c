/* Number of threads, and loops over ranges (see threads.h).
 *
 * The number is one atomic, read by every thread that computes. oneDNN and the OpenMP build of
 * OpenBLAS take theirs from OpenMP, the pthread build of OpenBLAS from a call of its own. Those two
 * calls are looked up at run time, because whether they exist depends on the library that the
 * process was linked with.
 *
 * OpenMP keeps its number per task, not per thread: members of a team start with the number of who
 * made the team, and what they set is gone with the team. A note of what this thread set last would
 * be wrong after every team, so each product sets the number again: a store of a few nanoseconds.
 *
 * A product inside a range of a loop runs on one thread, also where the loop is too short to be
 * shared out: its bits would depend on their number otherwise. The pthread build of OpenBLAS has
 * one number for the whole process (`openblas_has`), on which all threads in ranges agree. */
#include "tensor/threads.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include "tensor/gemm.h"

enum { GRAIN_ELEMS = 16384 }; /* 4 to 20 microseconds of element-wise work */

static _Atomic int n_threads = 1;
static _Atomic int openblas_has; /* 0: not told yet */
static _Thread_local bool in_range;

/* Looked up once: a product may change the number, and there are many. */
static void call_setter(const char *name, void *_Atomic *known, int value) {
    static char absent;
    void *found = atomic_load_explicit(known, memory_order_relaxed);
    if (!found) {
        found = dlsym(RTLD_DEFAULT, name);
        if (!found) found = &absent;
        atomic_store_explicit(known, found, memory_order_relaxed);
    }
    if (found == &absent) return;
    void (*set)(int);
    *(void **)&set = found;
    set(value);
}

void lsi_compute_set_threads(int wanted) {
    atomic_store_explicit(&n_threads, wanted < 1 ? 1 : wanted, memory_order_relaxed);
    lsi_threads_apply();
}

int lsi_compute_threads(void) {
    return atomic_load_explicit(&n_threads, memory_order_relaxed);
}

/* Told before it is noted: who finds the number noted can rely on it. */
static void apply_to_openblas(int wanted) {
    if (atomic_load(&openblas_has) == wanted) return;
    static void *_Atomic set;
    call_setter("openblas_set_num_threads", &set, wanted);
    atomic_store(&openblas_has, wanted);
}

int lsi_product_threads(void) {
    return in_range ? 1 : lsi_compute_threads();
}

void lsi_threads_apply(void) {
    int wanted = lsi_product_threads();
    apply_to_openblas(wanted);
    static void *_Atomic set;
    call_setter("omp_set_num_threads", &set, wanted);
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

static void run_range(lsi_range_fn range, void *context, int64_t begin, int64_t end, int worker) {
    bool was = in_range;
    in_range = true;
    range(context, begin, end, worker);
    in_range = was;
}

void lsi_for_ranges(int64_t n, int64_t grain, lsi_range_fn range, void *context) {
    int n_workers = lsi_n_workers(n, grain);
    if (n_workers == 1) {
        run_range(range, context, 0, n, 0);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(n_workers)
    for (int worker = 0; worker < n_workers; worker++)
        run_range(range, context, n * worker / n_workers, n * (worker + 1) / n_workers, worker);
#endif
}
