/* Heap memory with accounts by kind, and failure of the N-th allocation on request.
 *
 * Every allocation of the library goes through here, so `train --json` can say where memory went
 * and tests can make any one of them fail. Blocks are aligned to 64 bytes (a cache line and an
 * AVX-512 register). Thread safe. */
#ifndef LSI_BASE_MEM_H
#define LSI_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

/* X(name in code, name in reports) */
#define LSI_MEM_KIND_TABLE(X)                                                                      \
    X(PARAMS, "params")                                                                            \
    X(GRADS, "grads")                                                                              \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(ACTIVATIONS, "activations")                                                                  \
    X(BUCKETS, "buckets")                                                                          \
    X(GATHERED, "gathered") /* units that private ZeRO-3 has gathered */                           \
    X(STAGING, "staging")   /* buffers on the way to a file, or between types */                   \
    X(OTHER, "other")

typedef enum lsi_mem_kind {
#define LSI_MEM_KIND_ENUM(name, text) LSI_MEM_##name,
    LSI_MEM_KIND_TABLE(LSI_MEM_KIND_ENUM)
#undef LSI_MEM_KIND_ENUM
        LSI_MEM_N_KINDS
} lsi_mem_kind;

const char *lsi_mem_kind_name(lsi_mem_kind kind);

/* What a formula says about the bytes of a kind: what they are, or what they are at most. */
typedef enum lsi_mem_rule { LSI_MEM_NO_RULE, LSI_MEM_EQUALS, LSI_MEM_AT_MOST } lsi_mem_rule;

typedef struct lsi_mem_figure {
    lsi_mem_rule rule;
    int64_t bytes;
} lsi_mem_figure;

/* What formulas say that a process takes; parallel/memory.h makes it. */
typedef struct lsi_mem_estimate {
    lsi_mem_figure kinds[LSI_MEM_N_KINDS];
    int64_t peer_bytes; /* of peers, which account for it, but resident here too: of no kind */
    int64_t file_bytes;
} lsi_mem_estimate;

/* 64-byte aligned, not zeroed. NULL (with a message) when memory ran out or failure was injected.
 * bytes = 0 gives a valid pointer to nothing. */
void *lsi_alloc(lsi_mem_kind kind, size_t bytes);
/* The same, zeroed, n * bytes with overflow check. */
void *lsi_calloc(lsi_mem_kind kind, size_t n, size_t bytes);
/* Grows or shrinks (ptr may be NULL); on failure NULL and ptr stays valid. Alignment is kept. */
void *lsi_realloc(lsi_mem_kind kind, void *ptr, size_t bytes);
char *lsi_strdup(const char *text); /* LSI_MEM_OTHER */
void lsi_free(void *ptr);           /* lsi_free(NULL) does nothing */

/* Fails with LS_ERR_MEMORY unless ptr is set: LSI_TRY(lsi_check_alloc(p = lsi_alloc(…))). */
ls_status lsi_check_alloc(const void *ptr);

/* Accounts for memory that did not come from lsi_alloc (mappings): positive or negative. */
void lsi_mem_note(lsi_mem_kind kind, int64_t bytes);
int64_t lsi_mem_now(lsi_mem_kind kind);  /* bytes accounted now */
int64_t lsi_mem_peak(lsi_mem_kind kind); /* highest value of lsi_mem_now since start or reset */
void lsi_mem_reset_peaks(void);
/* States that lie in a file instead: no kind, because they take no memory. */
void lsi_mem_note_file(int64_t bytes);
int64_t lsi_mem_file_bytes(void);
int64_t lsi_mem_heap_bytes(void); /* in live blocks of lsi_alloc, all kinds, headers included */
int64_t lsi_mem_n_blocks(void);   /* live blocks of lsi_alloc: 0 when nothing leaked */

/* The n-th allocation from now (1 = the next) fails, once; 0 switches injection off.
 * Returns nothing to undo: the counter is process-wide. Tests only. */
void lsi_mem_fail_at(int64_t n);
/* Whether the failure asked for has happened. */
int lsi_mem_has_failed(void);

/* Resident and peak resident bytes of this process as the system measures them; 0 if unknown. */
int64_t lsi_mem_rss_bytes(void);
int64_t lsi_mem_peak_rss_bytes(void);
/* Resident bytes that nobody here asked for, as the system counts them: pages of the program and
 * its libraries, code they generate, their heap blocks and the heap's gaps. 0 where the system does
 * not say. (footprint.c) */
int64_t lsi_mem_library_bytes(void);
/* Takes the whole pages of [at, at + bytes), which are of a shared mapping, out of this process:
 * the next access brings them back with what they hold. (footprint.c) */
void lsi_forget_pages(void *at, size_t bytes);

#endif
