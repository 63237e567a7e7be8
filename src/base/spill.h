/* Memory in a file: a block that is larger than one wants to keep in memory and is gone through
 * slice by slice. The file has no name in its folder, so nothing stays there, whatever ends the
 * process.
 *
 *     lsi_spill_will_need(spill, first slice);
 *     for each slice:
 *         lsi_spill_will_need(spill, next slice);
 *         LSI_TRY(lsi_spill_await(spill, slice, writes));
 *         read and write lsi_spill_at(spill, its offset);
 *         LSI_TRY(lsi_spill_is_done(spill, slice, wrote));
 *
 * [Note: mapping] The file is mapped, not read and written with calls: whoever works on it has
 * plain pointers and no buffers to manage, nothing is copied, and as long as there is memory to
 * spare the system keeps the slices there and reads nothing. It is no slower, if all pages of a
 * slice are mapped by one call (lsi_spill_await); one by one, as they are touched, they take twice
 * as long. The price: where a page is touched that was not awaited, and the disk cannot read it,
 * the process ends by SIGBUS. A full disk is no such case: all of the file is allocated when it is
 * made. On a file system in memory (tmpfs) it works and saves nothing.
 *
 * One thread at a time per spill. */
#ifndef LSI_BASE_SPILL_H
#define LSI_BASE_SPILL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

typedef struct lsi_spill lsi_spill;

/* Zeroed; bytes >= 0. LS_ERR_NOT_FOUND: there is no such folder. LS_ERR_IO: it cannot be written,
 * or has no room (the message says how much there is). */
LS_CHECKED ls_status lsi_spill_create(const char *folder, int64_t bytes, lsi_spill **spill);
void lsi_spill_destroy(lsi_spill *spill); /* NULL does nothing */
/* The same, but the block stays where it is until the process ends: somebody may still read it. */
void lsi_spill_abandon(lsi_spill *spill);

/* Where byte `offset` is; the whole block may be touched at any time. */
void *lsi_spill_at(const lsi_spill *spill, int64_t offset);

/* Starts to read a slice in the background. From now until it is done it counts as memory
 * (LSI_MEM_STAGING). A hint: what is not read yet when it is touched is waited for. */
void lsi_spill_will_need(lsi_spill *spill, int64_t offset, int64_t bytes);
/* Maps a slice, which waits until it is read; writes: to be written, all of it counts as changed.
 * LS_ERR_IO: it cannot be read. Kernels before Linux 5.14 do nothing. */
LS_CHECKED ls_status lsi_spill_await(lsi_spill *spill, int64_t offset, int64_t bytes, bool writes);
/* The process lets go of the slice's memory. wrote: writing it back starts in the background, and
 * that of the slice before is waited for, so no more than two are ever on their way. LS_ERR_IO:
 * something could not be written. */
LS_CHECKED ls_status lsi_spill_is_done(lsi_spill *spill, int64_t offset, int64_t bytes, bool wrote);

#endif
