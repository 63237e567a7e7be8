/* The shared region: creation, opening, the first error, the wish to stop.
 *
 * Invariants: control->n_ranks and the offsets never change after creation; first_report changes
 * once, from 0 to the number of a report that is complete by then. */
#include "comm/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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
    void *base =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, region->fd, 0);
    if (base == MAP_FAILED)
        return lsi_fail_errno(LS_ERR_SYSTEM,
                              "shared region: cannot map %zu bytes of addresses "
                              "(see `ulimit -v`)",
                              bytes);
    /* Gradients do not belong into core files. */
    (void)madvise(base, bytes, MADV_DONTDUMP);
    region->base = base;
    region->bytes = bytes;
    region->control = base;
    return LS_OK;
}

/* Beyond this limit the system does not only refuse, it also sends a deadly signal. */
static ls_status check_file_limit(size_t bytes) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= bytes)
        return LS_OK;
    return lsi_fail(LS_ERR_SYSTEM,
                    "shared region: %zu bytes are needed, files may have %llu; raise "
                    "the limit (`ulimit -f`)",
                    bytes, (unsigned long long)limit.rlim_cur);
}

static ls_status make_file(lsi_region *region, size_t bytes) {
    LSI_TRY(check_file_limit(bytes));
    region->fd = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (region->fd < 0) return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: memfd_create");
    if (ftruncate(region->fd, (off_t)bytes) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM,
                              "shared region: cannot extend the memory file to %zu "
                              "bytes",
                              bytes);
    if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: cannot seal the memory file");
    return LS_OK;
}

static uint64_t staging_offset_for(int n_ranks) {
    return round_up(sizeof(lsi_control) + (uint64_t)n_ranks * sizeof(lsi_rank_control), PAGE_BYTES);
}

static uint64_t heap_offset_for(int n_ranks) {
    return staging_offset_for(n_ranks) + (uint64_t)n_ranks * 2 * LSI_PIECE_BYTES;
}

ls_status lsi_region_create(int n_ranks, size_t heap_bytes, lsi_region **out) {
    if (n_ranks < 1 || n_ranks > LSI_MAX_RANKS)
        return lsi_fail(LS_ERR_ARGUMENT, "shared region: %d ranks, 1 to %d are possible", n_ranks,
                        LSI_MAX_RANKS);
    if (heap_bytes > INT64_MAX / 2)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "shared region: a heap of %zu bytes, at most %lld are "
                        "possible",
                        heap_bytes, (long long)INT64_MAX / 2);
    lsi_region *region = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *region);
    LSI_TRY(lsi_check_alloc(region));
    region->fd = -1;

    uint64_t heap = round_up(heap_bytes ? heap_bytes : default_heap_bytes(), PAGE_BYTES);
    uint64_t bytes = heap_offset_for(n_ranks) + heap;
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
    control->staging_offset = staging_offset_for(n_ranks);
    control->heap_offset = heap_offset_for(n_ranks);
    control->heap_bytes = heap;
    *out = region;
    return LS_OK;
}

/* Other builds may have other sizes of what comes before the heap. */
static bool has_our_layout(const lsi_region *region) {
    const lsi_control *control = region->control;
    int n = control->n_ranks;
    return control->magic == MAGIC && n >= 1 && n <= LSI_MAX_RANKS &&
           control->staging_offset == staging_offset_for(n) &&
           control->heap_offset == heap_offset_for(n) && control->region_bytes == region->bytes &&
           control->heap_bytes == region->bytes - control->heap_offset;
}

ls_status lsi_region_open(int fd, lsi_region **out) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "shared region: descriptor %d (was it inherited?)",
                              fd);
    if ((size_t)info.st_size < sizeof(lsi_control))
        return lsi_fail(LS_ERR_FORMAT,
                        "shared region: descriptor %d holds %lld bytes, which is no "
                        "region of Lockstep",
                        fd, (long long)info.st_size);
    lsi_region *region = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *region);
    LSI_TRY(lsi_check_alloc(region));
    region->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    ls_status status = region->fd >= 0 ? map_region(region, (size_t)info.st_size)
                                       : lsi_fail_errno(LS_ERR_SYSTEM, "shared region: fcntl");
    if (status == LS_OK && !has_our_layout(region))
        status = lsi_fail(LS_ERR_FORMAT,
                          "shared region: descriptor %d is no region of this "
                          "version of Lockstep",
                          fd);
    if (status != LS_OK) {
        lsi_region_close(region);
        return status;
    }
    *out = region;
    return LS_OK;
}

void lsi_region_close(lsi_region *region) {
    if (!region) return;
    if (region->base) munmap(region->base, region->bytes);
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
    for (int r = 0; r < region->control->n_ranks; r++) lsi_bell_ring(&region->control->ranks[r]);
}

/* ---- the first error ---- */

void lsi_region_abort(lsi_region *region, ls_status status, int rank, const char *message) {
    lsi_control *control = region->control;
    if (atomic_load(&control->first_report) != 0) return;
    uint32_t slot = atomic_fetch_add(&control->n_reports, 1);
    if (slot >= LSI_REPORTS) return; /* so many are reporting right now that one of them is first */
    lsi_report *report = &control->reports[slot];
    report->status = (int32_t)status;
    report->rank = rank;
    size_t length = strnlen(message, LSI_MESSAGE_BYTES - 1);
    memcpy(report->message, message, length);
    report->message[length] = 0;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&control->first_report, &none, slot + 1))
        lsi_region_wake_all(region);
}

ls_status lsi_region_error(const lsi_region *region, int *rank) {
    uint32_t number = atomic_load(&region->control->first_report);
    if (number == 0) return LS_OK;
    const lsi_report *report = &region->control->reports[number - 1];
    if (rank) *rank = report->rank;
    lsi_message_set(report->message);
    return (ls_status)report->status;
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
