/* The shared region: creation, opening, the table of groups, the first error, the wish to stop.
 *
 * Invariants: control->n_ranks and the offsets never change after creation; the first report of
 * each lsi_reports changes once, from 0 to the number of a report that is complete by then. */
#include "comm/region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "comm/transport/bell.h"
#include "comm/transport/control.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };
static const uint64_t MAGIC = 0x4c6f636b73746570; /* "Lockstep" */

static uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

static uint64_t world_offset_for(void) {
    return round_up(sizeof(lsi_control), LSI_LINE_BYTES);
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
    /* Granted where the system's setting for shared memory is `advise`. */
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    region->base = base;
    region->bytes = bytes;
    region->control = base;
    region->world = (lsi_group_control *)(void *)(region->base + world_offset_for());
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

/* At the border of a huge page, so that large buffers in the heap can have huge pages. */
static uint64_t heap_offset_for(int n_ranks) {
    return round_up(world_offset_for() + lsi_group_control_bytes(n_ranks), HUGE_PAGE_BYTES);
}

static void init_control(lsi_region *region, int n_ranks, uint64_t bytes, uint64_t heap_bytes) {
    lsi_control *control = region->control;
    control->n_ranks = n_ranks;
    control->n_cpus = lsi_cpu_count();
    control->fenced = control->n_cpus < n_ranks || !lsi_bell_register();
    control->region_bytes = bytes;
    control->world_offset = world_offset_for();
    control->heap_offset = heap_offset_for(n_ranks);
    control->heap_bytes = heap_bytes;
    region->world->n_ranks = n_ranks;
    for (int r = 0; r < n_ranks; r++) region->world->member[r] = r;
    control->groups[0] =
        (lsi_group_row){.bytes = 1, .used = 1}; /* a size that no other group has */
    atomic_store(&control->groups[0].offset, control->world_offset);
    atomic_store(&control->n_groups_made, 1);
    control->magic = MAGIC;
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

    uint64_t heap = round_up(heap_bytes ? heap_bytes : default_heap_bytes(), HUGE_PAGE_BYTES);
    uint64_t bytes = heap_offset_for(n_ranks) + heap;
    ls_status status = make_file(region, bytes);
    if (status == LS_OK) status = map_region(region, bytes);
    if (status != LS_OK) {
        lsi_region_close(region);
        return status;
    }
    init_control(region, n_ranks, bytes, heap);
    *out = region;
    return LS_OK;
}

/* Other builds may have other sizes of what comes before the heap. */
bool lsi_control_is_ours(const lsi_control *control, uint64_t region_bytes) {
    int n = control->n_ranks;
    return control->magic == MAGIC && n >= 1 && n <= LSI_MAX_RANKS &&
           control->world_offset == world_offset_for() &&
           control->heap_offset == heap_offset_for(n) && control->region_bytes == region_bytes &&
           control->heap_offset <= region_bytes &&
           control->heap_bytes == region_bytes - control->heap_offset;
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
    if (status == LS_OK && !lsi_control_is_ours(region->control, region->bytes))
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
    for (int r = 0; r < LSI_MAX_RANKS; r++)
        if (region->pidfd[r] > 0) close(region->pidfd[r] - 1);
    if (region->base) munmap(region->base, region->bytes);
    if (region->fd >= 0) close(region->fd);
    lsi_free(region);
}

int lsi_region_fd(const lsi_region *region) {
    return region->fd;
}

int lsi_region_n_cpus(const lsi_region *region) {
    return region->control->n_cpus;
}

int lsi_region_n_ranks(const lsi_region *region) {
    return region->control->n_ranks;
}

uint64_t lsi_region_offset(const lsi_region *region, const void *ptr, size_t bytes) {
    const lsi_control *control = region->control;
    uintptr_t heap = (uintptr_t)region->base + control->heap_offset;
    uintptr_t at = (uintptr_t)ptr;
    if (at < heap || at - heap > control->heap_bytes || bytes > control->heap_bytes - (at - heap))
        return LSI_NOT_SHARED;
    return at - (uintptr_t)region->base;
}

/* ---- groups ---- */

void lsi_group_wake_all(const lsi_region *region, lsi_group_control *group) {
    lsi_bell_fence(region);
    for (int r = 0; r < group->n_ranks; r++) lsi_bell_ring(&group->ranks[r]);
}

/* May look into a group that is being freed or made: rows keep their memory for other groups, and
 * nothing but zeros and bells of groups is ever there. */
void lsi_region_wake_all(lsi_region *region) {
    for (int i = 0; i < LSI_MAX_GROUPS; i++) {
        uint64_t offset = atomic_load(&region->control->groups[i].offset);
        if (offset)
            lsi_group_wake_all(region, (lsi_group_control *)(void *)(region->base + offset));
    }
}

/* What a free row is looked for, the best first: one that has the memory already, one without any,
 * one with more than is needed. */
typedef enum fit { SAME, NO_MEMORY, MORE, N_FITS } fit;

static bool row_fits(const lsi_group_row *row, uint64_t bytes, fit how) {
    return how == SAME        ? row->bytes == bytes
           : how == NO_MEMORY ? row->bytes == 0
                              : row->bytes > bytes;
}

/* NULL if none is free. */
static lsi_group_row *take_row(lsi_control *control, uint64_t bytes) {
    for (int how = 0; how < N_FITS; how++)
        for (int i = 0; i < LSI_MAX_GROUPS; i++) {
            lsi_group_row *row = &control->groups[i];
            int32_t unused = 0;
            if (!atomic_compare_exchange_strong(&row->used, &unused, 1)) continue;
            if (row_fits(row, bytes, (fit)how)) return row;
            atomic_store(&row->used, 0);
        }
    return NULL;
}

ls_status lsi_region_add_group(lsi_region *region, int n_ranks, lsi_group_control **group) {
    uint64_t bytes = lsi_group_control_bytes(n_ranks);
    lsi_group_row *row = take_row(region->control, bytes);
    if (!row)
        return lsi_fail(LS_ERR_BUSY,
                        "group: %d groups are alive, or were and have left too little memory for "
                        "%d ranks; no more are possible; destroy some",
                        LSI_MAX_GROUPS, n_ranks);
    if (row->bytes == 0) {
        void *memory = NULL;
        ls_status status = lsi_heap_alloc(region, bytes, &memory);
        if (status != LS_OK) {
            atomic_store(&row->used, 0);
            return status;
        }
        row->bytes = bytes;
        atomic_store(&row->offset, (uint64_t)((unsigned char *)memory - region->base));
    }
    *group = (lsi_group_control *)(void *)(region->base + atomic_load(&row->offset));
    (*group)->number = atomic_fetch_add(&region->control->n_groups_made, 1);
    (*group)->n_ranks = n_ranks;
    return LS_OK;
}

void lsi_region_remove_group(lsi_region *region, lsi_group_control *group) {
    uint64_t offset = (uint64_t)((unsigned char *)group - region->base);
    for (int i = 0; i < LSI_MAX_GROUPS; i++) {
        lsi_group_row *row = &region->control->groups[i];
        if (atomic_load(&row->offset) != offset) continue;
        lsi_heap_clear(region, group, row->bytes);
        atomic_store(&row->used, 0);
        return;
    }
}

/* ---- the first error ---- */

static void add_report(lsi_reports *reports, ls_status status, int rank, bool noticed,
                       const char *message, bool *first) {
    *first = false;
    if (atomic_load(&reports->first) != 0) return;
    uint32_t slot = atomic_fetch_add(&reports->n_reports, 1);
    if (slot >= LSI_REPORTS) return; /* so many are reporting right now that one of them is first */
    lsi_report *report = &reports->report[slot];
    report->status = (int32_t)status;
    report->rank = rank;
    report->noticed = noticed;
    size_t length = strnlen(message, LSI_MESSAGE_BYTES - 1);
    memcpy(report->message, message, length);
    report->message[length] = 0;
    uint32_t none = 0;
    *first = atomic_compare_exchange_strong(&reports->first, &none, slot + 1);
}

void lsi_reports_add(lsi_reports *reports, ls_status status, int rank, const char *message,
                     bool *first) {
    add_report(reports, status, rank, false, message, first);
}

ls_status lsi_reports_get(const lsi_reports *reports, int *rank) {
    uint32_t number = atomic_load_explicit(&reports->first, memory_order_acquire);
    if (number == 0) return LS_OK;
    const lsi_report *report = &reports->report[number - 1];
    if (rank) *rank = report->rank;
    lsi_message_set(report->message);
    return (ls_status)report->status;
}

void lsi_region_abort(lsi_region *region, ls_status status, int rank, const char *message) {
    bool first = false;
    lsi_reports_add(&region->world->errors, status, rank, message, &first);
    if (first) lsi_region_wake_all(region);
}

void lsi_region_report_dead(lsi_region *region, int rank, const char *message) {
    bool first = false;
    add_report(&region->world->errors, LS_ERR_PEER, rank, true, message, &first);
    if (first) lsi_region_wake_all(region);
}

int lsi_region_noticed_dead(const lsi_region *region) {
    const lsi_reports *reports = &region->world->errors;
    uint32_t number = atomic_load(&reports->first);
    const lsi_report *report = number ? &reports->report[number - 1] : NULL;
    return report && report->noticed ? report->rank : -1;
}

ls_status lsi_region_error(const lsi_region *region, int *rank) {
    return lsi_reports_get(&region->world->errors, rank);
}

void lsi_region_request_stop(lsi_region *region, int signal_number) {
    int32_t none = 0;
    atomic_compare_exchange_strong(&region->control->stop_signal, &none, signal_number);
}

int lsi_region_stop_requested(const lsi_region *region) {
    return atomic_load(&region->control->stop_signal);
}

void lsi_region_set_step(lsi_region *region, int rank, int64_t step) {
    atomic_store(&region->world->ranks[rank].step, step);
}

int64_t lsi_region_step(const lsi_region *region, int rank) {
    return atomic_load(&region->world->ranks[rank].step);
}

void lsi_region_mark_left(lsi_region *region, int rank) {
    lsi_rank_control *control = &region->world->ranks[rank];
    int32_t none = 0;
    atomic_compare_exchange_strong(&control->ended, &none, atomic_load(&control->left) ? 1 : 2);
    atomic_store(&control->left, 1);
    lsi_region_wake_all(region);
}
