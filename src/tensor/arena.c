/* The arena: memory of activations and of their gradients, from one reserved range of addresses.
 *
 * A training step allocates and releases the same few hundred blocks in the same order again and
 * again. A heap of its own, by first fit in address order, keeps them dense, makes the addresses a
 * function of the calls alone, and gives memory back to nobody between steps, so no page is
 * touched for the first time twice.
 *
 * Invariant: `blocks` lists the whole range [0, reserve_bytes) in address order without gaps; no
 * two neighbours are both free; offsets and sizes are multiples of ALIGNMENT_BYTES. The list lives
 * outside of the range, so a kernel that writes past its block cannot harm it.
 *
 * Addresses come from one mapping without access rights, which costs nothing under any overcommit
 * policy; rights are given in steps as the high-water mark rises, and there a system that is out
 * of memory says no. Pages exist once touched. Huge pages are asked for, because products walk
 * large matrices with large strides.
 *
 * Under the address sanitizer released blocks are poisoned: a use after release is reported. */
#include "tensor/tensor.h"

#include <sys/mman.h>

#include "base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(ptr, bytes) ASAN_POISON_MEMORY_REGION(ptr, bytes)
#define UNPOISON(ptr, bytes) ASAN_UNPOISON_MEMORY_REGION(ptr, bytes)
#else
#define POISON(ptr, bytes) ((void)(ptr), (void)(bytes))
#define UNPOISON(ptr, bytes) ((void)(ptr), (void)(bytes))
#endif

enum {
    ALIGNMENT_BYTES = 64,
    HUGE_PAGE_BYTES = 2 << 20,
    GROWTH_BYTES = 2 * HUGE_PAGE_BYTES, /* access rights are given in multiples of this */
    FIRST_CAPACITY = 64,
};

typedef struct block {
    size_t offset, bytes;
    bool used;
} block;

struct lsi_arena {
    void *mapping; /* what mmap gave */
    size_t mapping_bytes;
    char *base; /* the range begins here, at a border of huge pages */
    size_t reserve_bytes;
    size_t usable_bytes; /* [0, usable_bytes) has access rights */
    size_t used_bytes;
    size_t peak_bytes; /* highest end of a used block */
    block *blocks;
    int64_t n_blocks, capacity;
};

static size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

ls_status lsi_arena_create(size_t reserve_bytes, lsi_arena **arena) {
    if (reserve_bytes == 0 || reserve_bytes > SIZE_MAX / 4)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "arena: expected a reservation of 1 to %zu bytes, found %zu", SIZE_MAX / 4,
                        reserve_bytes);
    lsi_arena *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->blocks = lsi_alloc(LSI_MEM_OTHER, FIRST_CAPACITY * sizeof *made->blocks);
    if (!made->blocks) {
        lsi_free(made);
        return LS_ERR_MEMORY;
    }
    made->reserve_bytes = round_up(reserve_bytes, GROWTH_BYTES);
    made->mapping_bytes = made->reserve_bytes + HUGE_PAGE_BYTES;
    made->mapping = mmap(NULL, made->mapping_bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made->mapping == MAP_FAILED) {
        lsi_free(made->blocks);
        lsi_free(made);
        return lsi_fail_errno(LS_ERR_MEMORY, "arena: reserving %zu bytes of addresses",
                              reserve_bytes);
    }
    made->base = (char *)round_up((size_t)made->mapping, HUGE_PAGE_BYTES);
    /* a wish: the arena works with small pages too */
    (void)madvise(made->base, made->reserve_bytes, MADV_HUGEPAGE);
    made->blocks[0] = (block){.bytes = made->reserve_bytes};
    made->n_blocks = 1;
    made->capacity = FIRST_CAPACITY;
    *arena = made;
    return LS_OK;
}

void lsi_arena_destroy(lsi_arena *arena) {
    if (!arena) return;
    lsi_mem_note(LSI_MEM_ACTIVATIONS, -(int64_t)arena->peak_bytes);
    UNPOISON(arena->base, arena->usable_bytes);
    munmap(arena->mapping, arena->mapping_bytes);
    lsi_free(arena->blocks);
    lsi_free(arena);
}

/* ---- the list of blocks ---- */

/* Room for one more block in the list. */
static ls_status reserve_entry(lsi_arena *arena) {
    if (arena->n_blocks < arena->capacity) return LS_OK;
    size_t bytes = (size_t)arena->capacity * 2 * sizeof *arena->blocks;
    block *grown = lsi_realloc(LSI_MEM_OTHER, arena->blocks, bytes);
    LSI_TRY(lsi_check_alloc(grown));
    arena->blocks = grown;
    arena->capacity *= 2;
    return LS_OK;
}

static void remove_entry(lsi_arena *arena, int64_t at) {
    for (int64_t i = at; i + 1 < arena->n_blocks; i++) arena->blocks[i] = arena->blocks[i + 1];
    arena->n_blocks--;
}

/* Index of the first free block that is large enough, -1 if there is none. */
static int64_t find_fit(const lsi_arena *arena, size_t bytes) {
    for (int64_t i = 0; i < arena->n_blocks; i++) {
        if (!arena->blocks[i].used && arena->blocks[i].bytes >= bytes) return i;
    }
    return -1;
}

/* Index of the used block that begins at offset, -1 if there is none. */
static int64_t find_used(const lsi_arena *arena, size_t offset) {
    int64_t low = 0, high = arena->n_blocks;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (arena->blocks[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool found = low < arena->n_blocks && arena->blocks[low].offset == offset;
    return found && arena->blocks[low].used ? low : -1;
}

/* Cuts the first `bytes` off the free block `at`; the rest becomes the entry after it. */
static void split(lsi_arena *arena, int64_t at, size_t bytes) {
    block whole = arena->blocks[at];
    if (whole.bytes == bytes) return;
    for (int64_t i = arena->n_blocks; i > at + 1; i--) arena->blocks[i] = arena->blocks[i - 1];
    arena->n_blocks++;
    arena->blocks[at].bytes = bytes;
    arena->blocks[at + 1] =
        (block){.offset = whole.offset + bytes, .bytes = whole.bytes - bytes, .used = false};
}

static void merge_with_next(lsi_arena *arena, int64_t at) {
    if (at < 0 || at + 1 >= arena->n_blocks) return;
    if (arena->blocks[at].used || arena->blocks[at + 1].used) return;
    arena->blocks[at].bytes += arena->blocks[at + 1].bytes;
    remove_entry(arena, at + 1);
}

/* ---- blocks ---- */

static ls_status fail_full(const lsi_arena *arena, size_t bytes) {
    size_t gap = 0;
    for (int64_t i = 0; i < arena->n_blocks; i++) {
        const block *b = &arena->blocks[i];
        if (!b->used && b->bytes > gap) gap = b->bytes;
    }
    return lsi_fail(LS_ERR_MEMORY,
                    "arena: %zu bytes asked for, %zu of %zu in use, largest gap %zu: use a smaller "
                    "micro-batch or a shorter sequence",
                    bytes, arena->used_bytes, arena->reserve_bytes, gap);
}

/* Access rights and accounts for everything below `end`. */
static ls_status raise_peak(lsi_arena *arena, size_t end) {
    if (end > arena->usable_bytes) {
        size_t usable = round_up(end, GROWTH_BYTES);
        if (mprotect(arena->base + arena->usable_bytes, usable - arena->usable_bytes,
                     PROT_READ | PROT_WRITE) != 0)
            return lsi_fail_errno(LS_ERR_MEMORY, "arena: growing from %zu to %zu bytes",
                                  arena->usable_bytes, usable);
        arena->usable_bytes = usable;
    }
    if (end > arena->peak_bytes) {
        lsi_mem_note(LSI_MEM_ACTIVATIONS, (int64_t)(end - arena->peak_bytes));
        arena->peak_bytes = end;
    }
    return LS_OK;
}

void *lsi_arena_alloc(lsi_arena *arena, size_t bytes) {
    size_t rounded = bytes == 0 ? ALIGNMENT_BYTES : bytes;
    int64_t at = -1;
    if (rounded <= arena->reserve_bytes) {
        rounded = round_up(rounded, ALIGNMENT_BYTES);
        at = find_fit(arena, rounded);
    }
    if (at < 0) {
        (void)fail_full(arena, bytes);
        return NULL;
    }
    if (reserve_entry(arena) != LS_OK) return NULL;
    if (raise_peak(arena, arena->blocks[at].offset + rounded) != LS_OK) return NULL;
    split(arena, at, rounded);
    arena->blocks[at].used = true;
    arena->used_bytes += rounded;
    void *ptr = arena->base + arena->blocks[at].offset;
    UNPOISON(ptr, rounded);
    return ptr;
}

void lsi_arena_release(lsi_arena *arena, void *ptr) {
    if (!ptr || (char *)ptr < arena->base) return;
    int64_t at = find_used(arena, (size_t)((char *)ptr - arena->base));
    if (at < 0) return;
    arena->blocks[at].used = false;
    arena->used_bytes -= arena->blocks[at].bytes;
    POISON(ptr, arena->blocks[at].bytes);
    merge_with_next(arena, at);
    merge_with_next(arena, at - 1);
}

void lsi_arena_reset(lsi_arena *arena) {
    POISON(arena->base, arena->peak_bytes);
    arena->blocks[0] = (block){.bytes = arena->reserve_bytes};
    arena->n_blocks = 1;
    arena->used_bytes = 0;
}

size_t lsi_arena_used_bytes(const lsi_arena *arena) {
    return arena->used_bytes;
}

size_t lsi_arena_peak_bytes(const lsi_arena *arena) {
    return arena->peak_bytes;
}
