/* The heap of the shared region: a sorted table of blocks under a lock, first fit.
 *
 * The lock is a spin lock with a deadline and not a mutex because its owner may be killed; the
 * launcher then ends the run, and this keeps others from waiting for ever meanwhile. It is held
 * for microseconds, a few times per run: pages are given back outside of it. Freed pages are
 * punched out of the file, so memory goes back to the system and later blocks start zeroed. Blocks
 * that peers may still touch are kept away from here by ls_group_free_shared. */
#include <fcntl.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/control.h"

enum { ALIGN_BYTES = 4096, HUGE_BYTES = 2 << 20, LOCK_WAIT_MS = 10000 };

static ls_status lock_heap(lsi_region *region) {
    int64_t deadline_ns = lsi_deadline_ns(LOCK_WAIT_MS);
    uint32_t unlocked = 0;
    while (!atomic_compare_exchange_weak(&region->control->heap_lock, &unlocked, 1)) {
        unlocked = 0;
        LSI_TRY(lsi_region_error(region, NULL));
        sched_yield();
        if (lsi_now_ns() > deadline_ns)
            return lsi_fail(LS_ERR_TIMEOUT,
                            "shared heap: locked for %d ms; the rank that held it "
                            "was probably killed",
                            LOCK_WAIT_MS);
    }
    return LS_OK;
}

static void unlock_heap(lsi_region *region) {
    atomic_store(&region->control->heap_lock, 0);
}

/* Where blocks may begin: `phase` behind a multiple of `align`. */
typedef struct placement {
    uint64_t align, phase;
} placement;

/* Index of the first block behind a gap of at least `bytes`; *offset is the start of the gap. */
static int find_gap(const lsi_control *control, uint64_t bytes, placement place, uint64_t *offset) {
    uint64_t end = 0;
    for (int i = 0; i <= control->n_blocks; i++) {
        *offset = (end + place.align - 1) / place.align * place.align + place.phase;
        uint64_t limit = i < control->n_blocks ? control->blocks[i].offset : control->heap_bytes;
        if (limit >= *offset && limit - *offset >= bytes) return i;
        if (i < control->n_blocks) end = limit + control->blocks[i].bytes;
    }
    return -1;
}

/* [Note: phases] Buffers of the ranks of one call are mostly of one size and made at one time. If
 * large ones all began at the same place within their huge pages, the lines that one reduction
 * touches at a time would compete for the same few places in the caches; a multiple of 256 MiB
 * apart they are slow on some processors for another reason (reduce.c, lies_badly). So each begins
 * a bit further than the last, where the heap is so large that the gaps do not matter. */
static int find_place(lsi_control *control, uint64_t bytes, uint64_t *offset) {
    enum { N_PHASES = 8, PHASE_BYTES = 17 * ALIGN_BYTES };
    placement small = {ALIGN_BYTES, 0};
    placement large = {HUGE_BYTES, (uint64_t)(control->n_large_made % N_PHASES) * PHASE_BYTES};
    int at = -1;
    if (bytes >= HUGE_BYTES && bytes <= control->heap_bytes / 16) {
        at = find_gap(control, bytes, large, offset);
        if (at >= 0) control->n_large_made++;
    }
    return at >= 0 ? at : find_gap(control, bytes, small, offset);
}

static ls_status take_block(lsi_control *control, uint64_t bytes, uint64_t *offset) {
    if (control->n_blocks == LSI_HEAP_BLOCKS)
        return lsi_fail(LS_ERR_MEMORY, "shared heap: %d blocks are in use, no more are possible",
                        LSI_HEAP_BLOCKS);
    int at = find_place(control, bytes, offset);
    if (at < 0) {
        uint64_t used = 0;
        for (int i = 0; i < control->n_blocks; i++) used += control->blocks[i].bytes;
        return lsi_fail(LS_ERR_MEMORY,
                        "shared heap: %llu bytes asked for in one piece, %llu of %llu "
                        "left, perhaps in several",
                        (unsigned long long)bytes, (unsigned long long)(control->heap_bytes - used),
                        (unsigned long long)control->heap_bytes);
    }
    memmove(&control->blocks[at + 1], &control->blocks[at],
            (size_t)(control->n_blocks - at) * sizeof control->blocks[0]);
    control->blocks[at] = (lsi_heap_block){*offset, bytes};
    control->n_blocks++;
    return LS_OK;
}

ls_status lsi_heap_alloc(lsi_region *region, size_t bytes, void **ptr) {
    lsi_control *control = region->control;
    if (bytes > control->heap_bytes)
        return lsi_fail(LS_ERR_MEMORY, "shared heap: %zu bytes asked for, the heap has %llu", bytes,
                        (unsigned long long)control->heap_bytes);
    uint64_t rounded = ((uint64_t)bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (rounded == 0) rounded = ALIGN_BYTES;
    LSI_TRY(lock_heap(region));
    uint64_t offset = 0;
    ls_status status = take_block(control, rounded, &offset);
    unlock_heap(region);
    if (status == LS_OK) *ptr = region->base + control->heap_offset + offset;
    return status;
}

/* The block that starts at ptr, NULL if there is none. Under the lock. */
static lsi_heap_block *find_block(const lsi_region *region, const void *ptr) {
    lsi_control *control = region->control;
    uint64_t offset = (uint64_t)((const unsigned char *)ptr - region->base) - control->heap_offset;
    for (int i = 0; i < control->n_blocks; i++)
        if (control->blocks[i].offset == offset) return &control->blocks[i];
    return NULL;
}

uint64_t lsi_heap_block_bytes(lsi_region *region, const void *ptr) {
    if (lock_heap(region) != LS_OK) return 0; /* the run is ending */
    const lsi_heap_block *block = find_block(region, ptr);
    uint64_t bytes = block ? block->bytes : 0;
    unlock_heap(region);
    return bytes;
}

void lsi_heap_clear(lsi_region *region, void *ptr, uint64_t bytes) {
    off_t offset = (off_t)((unsigned char *)ptr - region->base);
    int flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(region->fd, flags, offset, (off_t)bytes) != 0) memset(ptr, 0, bytes);
}

void lsi_heap_free(lsi_region *region, void *ptr) {
    uint64_t bytes = lsi_heap_block_bytes(region, ptr);
    if (bytes == 0) return;
    lsi_heap_clear(region, ptr, bytes);
    if (lock_heap(region) != LS_OK) return;
    lsi_control *control = region->control;
    lsi_heap_block *block = find_block(region, ptr);
    if (block) {
        memmove(block, block + 1,
                (size_t)(&control->blocks[control->n_blocks] - block - 1) * sizeof *block);
        control->n_blocks--;
    }
    unlock_heap(region);
}
