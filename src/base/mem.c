/* Heap memory with accounts by kind and failure on request (see mem.h).
 *
 * A block is [header, 64 bytes][the caller's bytes]; the header remembers size and kind, so that
 * lsi_free can take exactly what lsi_alloc entered into the accounts. Bytes counted are those asked
 * for, without headers.
 *
 * All state is a handful of atomics, because every thread allocates and none may wait for another.
 * Each is exact by itself; they are not a snapshot of each other, and nothing is ordered by them,
 * so relaxed order is enough.
 *
 * Failure on request: `countdown` is the number of allocations until one fails (1 = the next),
 * 0 = none, UNREAD = the environment has not been asked yet. */
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { ALIGNMENT_BYTES = 64, UNREAD = -1 };

typedef struct header {
    _Alignas(ALIGNMENT_BYTES) size_t bytes;
    lsi_mem_kind kind;
} header;

_Static_assert(sizeof(header) == ALIGNMENT_BYTES, "the caller's bytes must stay aligned");

static _Atomic int64_t bytes_now[LSI_MEM_N_KINDS];
static _Atomic int64_t bytes_peak[LSI_MEM_N_KINDS];
static _Atomic int64_t file_bytes;
static _Atomic int64_t n_blocks;
static _Atomic int64_t heap_bytes;
static _Atomic int64_t countdown = UNREAD;
static _Atomic int has_failed;

static const char *const kind_names[LSI_MEM_N_KINDS] = {
#define KIND_NAME(name, text) [LSI_MEM_##name] = text,
    LSI_MEM_KIND_TABLE(KIND_NAME)
#undef KIND_NAME
};

static lsi_mem_kind known_kind(lsi_mem_kind kind) {
    return (unsigned int)kind < LSI_MEM_N_KINDS ? kind : LSI_MEM_OTHER;
}

const char *lsi_mem_kind_name(lsi_mem_kind kind) {
    return kind_names[known_kind(kind)];
}

/* ---- accounts ---- */

void lsi_mem_note(lsi_mem_kind kind, int64_t bytes) {
    kind = known_kind(kind);
    int64_t now = atomic_fetch_add_explicit(&bytes_now[kind], bytes, memory_order_relaxed) + bytes;
    int64_t peak = atomic_load_explicit(&bytes_peak[kind], memory_order_relaxed);
    while (now > peak &&
           !atomic_compare_exchange_weak_explicit(&bytes_peak[kind], &peak, now,
                                                  memory_order_relaxed, memory_order_relaxed)) {
        continue;
    }
}

int64_t lsi_mem_now(lsi_mem_kind kind) {
    return atomic_load_explicit(&bytes_now[known_kind(kind)], memory_order_relaxed);
}

int64_t lsi_mem_peak(lsi_mem_kind kind) {
    return atomic_load_explicit(&bytes_peak[known_kind(kind)], memory_order_relaxed);
}

void lsi_mem_reset_peaks(void) {
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) {
        atomic_store_explicit(&bytes_peak[kind], lsi_mem_now((lsi_mem_kind)kind),
                              memory_order_relaxed);
    }
}

void lsi_mem_note_file(int64_t bytes) {
    atomic_fetch_add_explicit(&file_bytes, bytes, memory_order_relaxed);
}

int64_t lsi_mem_file_bytes(void) {
    return atomic_load_explicit(&file_bytes, memory_order_relaxed);
}

int64_t lsi_mem_heap_bytes(void) {
    return atomic_load_explicit(&heap_bytes, memory_order_relaxed);
}

int64_t lsi_mem_n_blocks(void) {
    return atomic_load_explicit(&n_blocks, memory_order_relaxed);
}

static int64_t bytes_of_all_kinds(void) {
    int64_t sum = 0;
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) sum += lsi_mem_now((lsi_mem_kind)kind);
    return sum;
}

/* ---- failure on request ---- */

void lsi_mem_fail_at(int64_t n) {
    atomic_store_explicit(&has_failed, 0, memory_order_relaxed);
    atomic_store_explicit(&countdown, n > 0 ? n : 0, memory_order_relaxed);
}

int lsi_mem_has_failed(void) {
    return atomic_load_explicit(&has_failed, memory_order_relaxed);
}

/* LOCKSTEP_FAIL_ALLOC as a number, 0 where it is not set. */
static int64_t countdown_from_environment(void) {
    const char *text = getenv("LOCKSTEP_FAIL_ALLOC");
    if (!text || !text[0]) return 0;
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno == 0 && *end == '\0' && n >= 0) return n;
    lsi_log(LSI_LOG_WARNING, "LOCKSTEP_FAIL_ALLOC: expected a number from 0, found '%s': ignored",
            text);
    return 0;
}

/* Whether this allocation is the one that has to fail. */
static int is_chosen_to_fail(void) {
    int64_t left = atomic_load_explicit(&countdown, memory_order_relaxed);
    if (left == 0) return 0;
    if (left == UNREAD) {
        int64_t found = countdown_from_environment();
        /* lost to another thread: it stored the same number, or lsi_mem_fail_at spoke */
        if (atomic_compare_exchange_strong_explicit(&countdown, &left, found, memory_order_relaxed,
                                                    memory_order_relaxed)) {
            left = found;
        }
    }
    while (left > 0) {
        if (!atomic_compare_exchange_weak_explicit(&countdown, &left, left - 1,
                                                   memory_order_relaxed, memory_order_relaxed)) {
            continue;
        }
        if (left > 1) return 0;
        atomic_store_explicit(&has_failed, 1, memory_order_relaxed);
        return 1;
    }
    return 0;
}

/* ---- blocks ---- */

static header *header_of(void *ptr) {
    return (header *)ptr - 1;
}

void *lsi_alloc(lsi_mem_kind kind, size_t bytes) {
    kind = known_kind(kind);
    if (is_chosen_to_fail()) {
        lsi_fail(LS_ERR_MEMORY, "allocation of %zu bytes for %s failed on request", bytes,
                 kind_names[kind]);
        return NULL;
    }
    void *base = NULL;
    if (bytes > PTRDIFF_MAX - sizeof(header) ||
        posix_memalign(&base, ALIGNMENT_BYTES, sizeof(header) + bytes) != 0) {
        lsi_fail(LS_ERR_MEMORY,
                 "no memory for %zu bytes of %s; the library holds %" PRId64
                 " bytes: use a smaller model or batch, or more memory",
                 bytes, kind_names[kind], bytes_of_all_kinds());
        return NULL;
    }
    header *head = base;
    head->bytes = bytes;
    head->kind = kind;
    lsi_mem_note(kind, (int64_t)bytes);
    atomic_fetch_add_explicit(&n_blocks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&heap_bytes, (int64_t)(sizeof *head + bytes), memory_order_relaxed);
    return head + 1;
}

void *lsi_calloc(lsi_mem_kind kind, size_t n, size_t bytes) {
    size_t all_bytes;
    if (__builtin_mul_overflow(n, bytes, &all_bytes)) {
        lsi_fail(LS_ERR_MEMORY,
                 "no memory for %zu times %zu bytes of %s: more than can be addressed", n, bytes,
                 lsi_mem_kind_name(kind));
        return NULL;
    }
    void *ptr = lsi_alloc(kind, all_bytes);
    if (ptr) memset(ptr, 0, all_bytes);
    return ptr;
}

/* Always a new block: realloc(3) would lose the alignment, and the accounts the size. */
void *lsi_realloc(lsi_mem_kind kind, void *ptr, size_t bytes) {
    void *next = lsi_alloc(kind, bytes);
    if (!next || !ptr) return next;
    size_t old_bytes = header_of(ptr)->bytes;
    memcpy(next, ptr, old_bytes < bytes ? old_bytes : bytes);
    lsi_free(ptr);
    return next;
}

char *lsi_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = lsi_alloc(LSI_MEM_OTHER, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

void lsi_free(void *ptr) {
    if (!ptr) return;
    header *head = header_of(ptr);
    lsi_mem_note(head->kind, -(int64_t)head->bytes);
    atomic_fetch_sub_explicit(&n_blocks, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&heap_bytes, (int64_t)(sizeof *head + head->bytes),
                              memory_order_relaxed);
    free(head);
}

ls_status lsi_check_alloc(const void *ptr) {
    if (ptr) return LS_OK;
    if (!ls_last_message()[0]) return lsi_fail(LS_ERR_MEMORY, "memory ran out");
    return LS_ERR_MEMORY; /* lsi_alloc has said what was asked for */
}

/* ---- what the system measures ---- */

/* A line "VmRSS:    1234 kB" of /proc/self/status in bytes; 0 if there is none. */
static int64_t status_bytes(const char *field) {
    FILE *file = fopen("/proc/self/status", "re");
    if (!file) return 0;
    char line[256];
    int64_t bytes = 0;
    size_t length = strlen(field);
    while (bytes == 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, field, length) != 0) continue;
        bytes = strtoll(line + length, NULL, 10) * 1024;
    }
    fclose(file);
    return bytes;
}

int64_t lsi_mem_rss_bytes(void) {
    return status_bytes("VmRSS:");
}

int64_t lsi_mem_peak_rss_bytes(void) {
    return status_bytes("VmHWM:");
}
