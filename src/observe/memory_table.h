/* The table of memory that `lockstep train --print-memory` shows: bytes of each kind as the formula
 * has them, and as they were. */
#ifndef LSI_OBSERVE_MEMORY_TABLE_H
#define LSI_OBSERVE_MEMORY_TABLE_H

#include <stdint.h>
#include <stdio.h>

#include "base/mem.h"

/* What a rank held. */
typedef struct lsi_memory_row {
    int64_t now_bytes[LSI_MEM_N_KINDS]; /* at the end of training */
    int64_t peak_bytes[LSI_MEM_N_KINDS];
    int64_t now_rss_bytes, peak_rss_bytes; /* as the system counts them */
    int64_t file_bytes;
} lsi_memory_row;

/* The rank whose kinds add up to most, at peak. */
int lsi_memory_largest(const lsi_memory_row *rows, int n_ranks);
int64_t lsi_memory_peak_bytes(const lsi_memory_row *row); /* of all kinds */
/* rows: one a rank. */
void lsi_memory_print(const lsi_memory_row *rows, int n_ranks, const lsi_mem_estimate *expected,
                      FILE *out);

#endif
