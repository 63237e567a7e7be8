/* See spill.h.
 *
 * Pages of the mapping are pages of the file in the system's cache. A slice that is done leaves
 * this process at once (its mapping is empty again); in the cache it is dirty until the disk has
 * it, and from then on memory that the system takes back when somebody needs it. So what counts is
 * bounded: one slice that is worked on, one that is read, two that are written. */
#include "base/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"

/* Linux 5.14; the C library may be older than the kernel. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

typedef struct range {
    int64_t offset, bytes;
} range;

struct lsi_spill {
    unsigned char *at;
    int64_t bytes, mapped_bytes;
    int fd;
    char *folder;  /* for messages */
    range writing; /* back to the file; bytes 0: nothing */
    int64_t noted_bytes;
};

/* ---- the file ---- */

static ls_status fail_open(const char *folder) {
    return lsi_fail_errno(errno == ENOENT ? LS_ERR_NOT_FOUND : LS_ERR_IO,
                          "%s: cannot make a file in this folder", folder);
}

/* For file systems without O_TMPFILE: the name is there for a moment. */
static ls_status open_and_unlink(const char *folder, int *fd) {
    static const char suffix[] = "/lockstep-spill-XXXXXX";
    size_t size = strlen(folder) + sizeof suffix;
    char *path = lsi_alloc(LSI_MEM_OTHER, size);
    LSI_TRY(lsi_check_alloc(path));
    snprintf(path, size, "%s%s", folder, suffix);
    *fd = mkostemp(path, O_CLOEXEC);
    ls_status status = *fd < 0 ? fail_open(folder) : LS_OK;
    if (status == LS_OK && unlink(path) != 0)
        status = lsi_fail_errno(LS_ERR_IO, "%s: cannot remove the name of a file", path);
    lsi_free(path);
    return status;
}

static ls_status open_nameless(const char *folder, int *fd) {
    *fd = open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return LS_OK;
    /* EISDIR: a kernel that does not know the flag */
    if (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)
        return open_and_unlink(folder, fd);
    return fail_open(folder);
}

static uint64_t room_bytes(int fd) {
    struct statvfs info;
    return fstatvfs(fd, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
}

/* Asked first, because going over it ends a process that does not ignore SIGXFSZ. */
static ls_status check_limit(const lsi_spill *spill) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (uint64_t)spill->mapped_bytes <= limit.rlim_cur)
        return LS_OK;
    return lsi_fail(LS_ERR_IO,
                    "%s: a file of %" PRId64 " bytes is wanted here, this process may only make "
                    "files of %" PRIu64 " (RLIMIT_FSIZE); raise it with ulimit -f",
                    spill->folder, spill->bytes, (uint64_t)limit.rlim_cur);
}

static ls_status allocate(const lsi_spill *spill) {
    LSI_TRY(check_limit(spill));
    uint64_t free_bytes = room_bytes(spill->fd); /* a failed attempt may hold some of it */
    do errno = posix_fallocate(spill->fd, 0, spill->mapped_bytes);
    while (errno == EINTR);
    if (errno == 0) return LS_OK;
    return lsi_fail_errno(LS_ERR_IO,
                          "%s: a file of %" PRId64 " bytes is wanted here, %" PRIu64
                          " are free; free some space or choose another folder",
                          spill->folder, spill->bytes, free_bytes);
}

static ls_status map(lsi_spill *spill) {
    void *at =
        mmap(NULL, (size_t)spill->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, spill->fd, 0);
    if (at == MAP_FAILED)
        return lsi_fail_errno(LS_ERR_MEMORY, "%s: cannot map a file of %" PRId64 " bytes",
                              spill->folder, spill->bytes);
    spill->at = at;
    return LS_OK;
}

static ls_status set_up(lsi_spill *spill, const char *folder) {
    spill->folder = lsi_strdup(folder);
    LSI_TRY(lsi_check_alloc(spill->folder));
    LSI_TRY(open_nameless(folder, &spill->fd));
    LSI_TRY(allocate(spill));
    return map(spill);
}

ls_status lsi_spill_create(const char *folder, int64_t bytes, lsi_spill **out) {
    lsi_spill *spill = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *spill);
    LSI_TRY(lsi_check_alloc(spill));
    spill->fd = -1;
    spill->bytes = bytes;
    spill->mapped_bytes = bytes > 0 ? bytes : 1; /* nothing cannot be mapped */
    ls_status status = set_up(spill, folder);
    if (status != LS_OK) {
        lsi_spill_destroy(spill);
        return status;
    }
    lsi_mem_note_file(bytes);
    *out = spill;
    return LS_OK;
}

static void note(lsi_spill *spill, int64_t bytes) {
    spill->noted_bytes += bytes;
    lsi_mem_note(LSI_MEM_STAGING, bytes);
}

void lsi_spill_abandon(lsi_spill *spill) {
    if (!spill) return;
    lsi_mem_note_file(-spill->bytes);
    spill->at = NULL;
    lsi_spill_destroy(spill);
}

void lsi_spill_destroy(lsi_spill *spill) {
    if (!spill) return;
    note(spill, -spill->noted_bytes);
    if (spill->at) {
        munmap(spill->at, (size_t)spill->mapped_bytes);
        lsi_mem_note_file(-spill->bytes);
    }
    if (spill->fd >= 0) close(spill->fd);
    lsi_free(spill->folder);
    lsi_free(spill);
}

void *lsi_spill_at(const lsi_spill *spill, int64_t offset) {
    return spill->at + offset;
}

/* ---- slices ---- */

/* The pages that a slice touches. Those at its ends may be a neighbour's too, which loses nothing:
 * what is let go of is still in the cache. */
static range pages_of(int64_t offset, int64_t bytes) {
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t begin = offset / page * page;
    return (range){begin, (offset + bytes + page - 1) / page * page - begin};
}

/* In calls that are no larger than what the system reads ahead at once: it ignores the rest. */
void lsi_spill_will_need(lsi_spill *spill, int64_t offset, int64_t bytes) {
    enum { CALL_BYTES = 128 * 1024 };
    if (bytes <= 0) return;
    range pages = pages_of(offset, bytes);
    for (int64_t done = 0; done < pages.bytes; done += CALL_BYTES) {
        int64_t left = pages.bytes - done;
        madvise(spill->at + pages.offset + done, (size_t)(left < CALL_BYTES ? left : CALL_BYTES),
                MADV_WILLNEED); /* a refusal costs time only */
    }
    note(spill, bytes);
}

ls_status lsi_spill_await(lsi_spill *spill, int64_t offset, int64_t bytes, bool writes) {
    if (bytes <= 0) return LS_OK;
    range pages = pages_of(offset, bytes);
    int advice = writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    if (madvise(spill->at + pages.offset, (size_t)pages.bytes, advice) == 0 || errno == EINVAL)
        return LS_OK;
    if (errno == EFAULT) errno = EIO; /* "bad address": touching it would be SIGBUS */
    return lsi_fail_errno(LS_ERR_IO, "%s: cannot read %" PRId64 " bytes of a file used as memory",
                          spill->folder, pages.bytes);
}

static ls_status fail_write(const lsi_spill *spill, range r) {
    return lsi_fail_errno(LS_ERR_IO, "%s: cannot write %" PRId64 " bytes of a file used as memory",
                          spill->folder, r.bytes);
}

static ls_status start_writing(lsi_spill *spill, range r) {
    if (sync_file_range(spill->fd, r.offset, r.bytes, SYNC_FILE_RANGE_WRITE) != 0)
        return fail_write(spill, r);
    return LS_OK;
}

static ls_status finish_writing(lsi_spill *spill) {
    range r = spill->writing;
    unsigned int all =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    spill->writing.bytes = 0;
    if (r.bytes > 0 && sync_file_range(spill->fd, r.offset, r.bytes, all) != 0)
        return fail_write(spill, r);
    return LS_OK;
}

ls_status lsi_spill_is_done(lsi_spill *spill, int64_t offset, int64_t bytes, bool wrote) {
    if (bytes <= 0) return LS_OK;
    range pages = pages_of(offset, bytes);
    note(spill, -(bytes < spill->noted_bytes ? bytes : spill->noted_bytes));
    if (madvise(spill->at + pages.offset, (size_t)pages.bytes, MADV_DONTNEED) != 0)
        return lsi_fail_errno(LS_ERR_SYSTEM, "%s: cannot let go of a slice's memory",
                              spill->folder);
    if (!wrote) return LS_OK;
    LSI_TRY(start_writing(spill, pages));
    LSI_TRY(finish_writing(spill)); /* of the slice before */
    spill->writing = pages;
    return LS_OK;
}
