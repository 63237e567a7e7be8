/* Threads inside one worker process: how a kernel's loop is shared out.
 *
 * [Note: bits and threads] A range function computes items [begin, end) of n independent items. An
 * item's result must not depend on where ranges are cut: reductions run inside an item, or over
 * all rows of a column range, in an order fixed by the item alone. So the bits are those of one
 * thread, whatever the number.
 *
 * With one thread no OpenMP team is ever made: worker processes are forked, and a team does not
 * survive a fork. */
#ifndef LSI_TENSOR_THREADS_H
#define LSI_TENSOR_THREADS_H

#include <stdint.h>

/* worker: 0 … lsi_n_workers(n, grain) - 1, for scratch memory of its own. */
typedef void (*lsi_range_fn)(void *context, int64_t begin, int64_t end, int worker);

/* How many workers lsi_for_ranges will use: at most lsi_compute_threads(), and at least `grain`
 * items each (the work below which a second thread costs more than it saves). */
int lsi_n_workers(int64_t n, int64_t grain);
void lsi_for_ranges(int64_t n, int64_t grain, lsi_range_fn range, void *context);
/* Items of `elems` elements each that are worth a thread. */
int64_t lsi_grain(int64_t elems);
/* How many threads a product made here runs on: one inside a range, else lsi_compute_threads(). */
int lsi_product_threads(void);
/* Makes the libraries follow lsi_product_threads; holds until a range or a team begins or ends. */
void lsi_threads_apply(void);

#endif
