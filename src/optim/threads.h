/* How many threads the optimizer's loops may use, and the one way to cut a range for them. */
#ifndef LSI_OPTIM_THREADS_H
#define LSI_OPTIM_THREADS_H

/* Process-wide, 1 (the default) at least. Results do not depend on it: element-wise loops have no
 * order, and sums are made of blocks whose values are added in block order. Not to be changed
 * while an update runs. Ignored in builds without OpenMP. */
void lsi_optim_set_threads(int n_threads);
int lsi_optim_threads(void);

/* `#pragma omp parallel for` over n independent iterations of equal cost; no team for a single one,
 * nothing without OpenMP. */
#ifdef _OPENMP
#define LSI_OPTIM_PRAGMA(text) _Pragma(#text)
#define LSI_OPTIM_PARALLEL_FOR(n)                                                                  \
    LSI_OPTIM_PRAGMA(omp parallel for schedule(static) num_threads(lsi_optim_threads())            \
                         if (n > 1 && lsi_optim_threads() > 1))
#else
#define LSI_OPTIM_PARALLEL_FOR(n)
#endif

#endif
