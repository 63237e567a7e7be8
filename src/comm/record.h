/* The recorder: what every rank of every group called lately, for people who ask why a run hangs or
 * failed. Ranks write their calls into the shared region as they go (transport/control.h), so a
 * rank that was killed has left its part; here is who reads it.
 *
 * A source is the region of a living process or a file that lsi_record_dump wrote. Nothing of the
 * region is changed, mapped or waited for: bytes are read, copied and checked, and every number in
 * them is taken for a claim, because the file may be of another build, cut short or garbage, and
 * the region of a living process changes meanwhile.
 *
 * record_file.c has the bytes (sources and dumps), record.c what they mean, record_print.c the two
 * ways to show it. One thread at a time per source. */
#ifndef LSI_COMM_RECORD_H
#define LSI_COMM_RECORD_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include <jansson.h>

#include "comm/region.h"

typedef struct lsi_record_source lsi_record_source;

/* A launcher or any worker, found by the shared memory that it holds open. LS_ERR_NOT_FOUND: no
 * such process, or it has no region; LS_ERR_SYSTEM: no right to look. */
LS_CHECKED ls_status lsi_record_open_process(pid_t pid, lsi_record_source **source);
/* A file from lsi_record_dump. LS_ERR_FORMAT says what is wrong with any other. */
LS_CHECKED ls_status lsi_record_open_file(const char *path, lsi_record_source **source);
/* The region itself; it must stay open as long as the source. */
LS_CHECKED ls_status lsi_record_open_region(const lsi_region *region, lsi_record_source **source);
void lsi_record_close(lsi_record_source *source); /* NULL does nothing */

/* Writes the control data of the region and its groups, without buffers and without what is zero:
 * some 100 KiB for a few ranks. Complete or absent (base/file.h). */
LS_CHECKED ls_status lsi_record_dump(const lsi_region *region, const char *path);

typedef struct lsi_record_opts {
    int last;   /* calls to show, 1 to LSI_RECORD_MAX_LAST; the first difference is always shown */
    int group;  /* number of the one group to show; -1: all */
    bool color; /* of the first difference, for terminals */
} lsi_record_opts;

enum { LSI_RECORD_MAX_LAST = 3072 }; /* the older records may be about to be written again */

/* For each group alive the last calls of its ranks side by side, the first difference in a
 * sentence, sends and receives; the first error. LS_ERR_NOT_FOUND: no such group, says which are.
 */
LS_CHECKED ls_status lsi_record_print(lsi_record_source *source, const lsi_record_opts *opts,
                                      FILE *out);
/* The same for programs (new reference). */
LS_CHECKED ls_status lsi_record_to_json(lsi_record_source *source, const lsi_record_opts *opts,
                                        json_t **value);

#endif
