/* The shared region: creation, opening, the first error, the wish to stop.
 *
 * Invariants: control->n_ranks and the offsets never change after creation; error_* are written
 * once, by the rank that moved error_state from 0 to 1, and read only when it is 2. */
#include "comm/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/transport/bell.h"
#include "comm/transport/control.h"

enum { PAGE_BYTES = 4096 };
static const uint64_t MAGIC = 0x4c6f636b73746570; /* "Lockstep" */

static uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Twice what the machine could ever hold for each of gradients and parameters; addresses only. */
static size_t default_heap_bytes(void) {
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) * 4;
}

static ls_status map_region(lsi_region *region, size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, region->fd,
                      0);
    if (base == MAP_FAILED)
        return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: cannot map %zu bytes of addresses "
                              "(see `ulimit -v`)", bytes);
    /* Gradients do not belong into core files. */
    (void)madvise(base, bytes, MADV_DONTDUMP);
    region->base = base;
    region->control = base;
    return LS_OK;
}

static ls_status make_file(lsi_region *region, size_t bytes) {
    region->fd = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (region->fd < 0) return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: memfd_create");
    if (ftruncate(region->fd, (off_t)bytes) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: cannot extend the memory file to %zu "
                              "bytes (see `ulimit -f`)", bytes);
    if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: cannot seal the memory file");
    return LS_OK;
}

ls_status lsi_region_create(int n_ranks, size_t heap_bytes, lsi_region **out) {
    if (n_ranks < 1 || n_ranks > LSI_MAX_RANKS)
        return lsi_fail(LS_ERR_ARGUMENT, "shared region: %d ranks, 1 to %d are possible", n_ranks,
                        LSI_MAX_RANKS);
    lsi_region *region = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *region);
    LSI_TRY(lsi_check_alloc(region));
    region->fd = -1;

    uint64_t control_bytes = round_up(
        sizeof(lsi_control) + (uint64_t)n_ranks * sizeof(lsi_rank_control), PAGE_BYTES);
    uint64_t staging_bytes = (uint64_t)n_ranks * 2 * LSI_PIECE_BYTES;
    uint64_t heap = round_up(heap_bytes ? heap_bytes : default_heap_bytes(), PAGE_BYTES);
    uint64_t bytes = control_bytes + staging_bytes + heap;

    ls_status status = make_file(region, bytes);
    if (status == LS_OK) status = map_region(region, bytes);
    if (status != LS_OK) {
        lsi_region_close(region);
        return status;
    }
    lsi_control *control = region->control;
    control->magic = MAGIC;
    control->n_ranks = n_ranks;
    control->region_bytes = bytes;
    control->staging_offset = control_bytes;
    control->heap_offset = control_bytes + staging_bytes;
    control->heap_bytes = heap;
    *out = region;
    return LS_OK;
}

ls_status lsi_region_open(int fd, lsi_region **out) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: descriptor %d (was it inherited?)",
                              fd);
    if ((size_t)info.st_size < sizeof(lsi_control))
        return lsi_fail(LS_ERR_FORMAT, "shared region: descriptor %d holds %lld bytes, which is no "
                        "region of Lockstep", fd, (long long)info.st_size);
    lsi_region *region = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *region);
    LSI_TRY(lsi_check_alloc(region));
    region->fd = fd;
    ls_status status = map_region(region, (size_t)info.st_size);
    if (status == LS_OK && (region->control->magic != MAGIC ||
                            region->control->region_bytes != (uint64_t)info.st_size))
        status = lsi_fail(LS_ERR_FORMAT, "shared region: descriptor %d is no region of this "
                          "version of Lockstep", fd);
    if (status != LS_OK) {
        if (region->base) munmap(region->base, (size_t)info.st_size);
        lsi_free(region);
        return status;
    }
    *out = region;
    return LS_OK;
}

void lsi_region_close(lsi_region *region) {
    if (!region) return;
    if (region->base) munmap(region->base, region->control->region_bytes);
    if (region->fd >= 0) close(region->fd);
    lsi_free(region);
}

int lsi_region_fd(const lsi_region *region) {
    return region->fd;
}

int lsi_region_n_ranks(const lsi_region *region) {
    return region->control->n_ranks;
}

unsigned char *lsi_region_staging(const lsi_region *region, int rank, uint64_t piece) {
    return region->base + region->control->staging_offset +
           ((uint64_t)rank * 2 + piece % 2) * LSI_PIECE_BYTES;
}

uint64_t lsi_region_offset(const lsi_region *region, const void *ptr, size_t bytes) {
    const lsi_control *control = region->control;
    uintptr_t heap = (uintptr_t)region->base + control->heap_offset;
    uintptr_t at = (uintptr_t)ptr;
    if (at < heap || at - heap > control->heap_bytes || bytes > control->heap_bytes - (at - heap))
        return LSI_NOT_SHARED;
    return at - (uintptr_t)region->base;
}

void lsi_region_wake_all(lsi_region *region) {
    for (int r = 0; r < region->control->n_ranks; r++)
        lsi_bell_ring(&region->control->ranks[r]);
}

/* ---- the first error ---- */

void lsi_region_abort(lsi_region *region, ls_status status, int rank, const char *message) {
    lsi_control *control = region->control;
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&control->error_state, &none, 1)) return;
    control->error_status = (int32_t)status;
    control->error_rank = rank;
    size_t length = strnlen(message, LSI_MESSAGE_BYTES - 1);
    memcpy(control->error_message, message, length);
    control->error_message[length] = 0;
    atomic_store(&control->error_state, 2);
    lsi_region_wake_all(region);
}

/* The writer needs microseconds between states 1 and 2, unless it was killed there. */
static void await_message(const lsi_control *control) {
    int64_t deadline_ns = lsi_deadline_ns(100);
    while (atomic_load(&control->error_state) == 1 && lsi_now_ns() < deadline_ns)
        lsi_sleep_ms(1);
}

ls_status lsi_region_error(const lsi_region *region, int *rank) {
    const lsi_control *control = region->control;
    if (atomic_load(&control->error_state) == 0) return LS_OK;
    await_message(control);
    if (atomic_load(&control->error_state) != 2)
        return lsi_fail(LS_ERR_ABORTED, "a rank died while it reported an error");
    if (rank) *rank = control->error_rank;
    lsi_message_set(control->error_message);
    return (ls_status)control->error_status;
}

void lsi_region_request_stop(lsi_region *region, int signal_number) {
    int32_t none = 0;
    atomic_compare_exchange_strong(&region->control->stop_signal, &none, signal_number);
}

int lsi_region_stop_requested(const lsi_region *region) {
    return atomic_load(&region->control->stop_signal);
}

void lsi_region_set_step(lsi_region *region, int rank, int64_t step) {
    atomic_store(&region->control->ranks[rank].step, step);
}

int64_t lsi_region_step(const lsi_region *region, int rank) {
    return atomic_load(&region->control->ranks[rank].step);
}

void lsi_region_mark_left(lsi_region *region, int rank) {
    atomic_store(&region->control->ranks[rank].left, 1);
    lsi_region_wake_all(region);
}
