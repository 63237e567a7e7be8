/* Whole files, complete or absent (see file.h).
 *
 * Invariants of a writer:
 * 1. Until the rename in lsi_file_commit nothing at `path` has changed.
 * 2. What is renamed is complete and synced: a writer that once failed to write never commits.
 * 3. `temporary` exists on disk exactly as long as the writer lives.
 * After the rename the folder is synced, which makes the new name itself survive a power cut.
 *
 * A write that hits the file-size limit of the process (RLIMIT_FSIZE) raises SIGXFSZ, which ends a
 * program that does not ignore it; that choice is the program's. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

struct lsi_file_writer {
    char *path;
    char *temporary;
    int fd;
    size_t bytes_written;
    int has_failed;
};

/* ---- writing ---- */

static void free_writer(lsi_file_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    lsi_free(writer->temporary);
    lsi_free(writer->path);
    lsi_free(writer);
}

/* A missing folder is a wrong name, everything else is the file system's. */
static ls_status status_of_errno(void) {
    return errno == ENOENT ? LS_ERR_NOT_FOUND : LS_ERR_IO;
}

static ls_status open_temporary(lsi_file_writer *writer, const char *path) {
    enum { SUFFIX_BYTES = 32 };
    size_t size = strlen(path) + SUFFIX_BYTES;
    writer->path = lsi_strdup(path);
    LSI_TRY(lsi_check_alloc(writer->path));
    writer->temporary = lsi_alloc(LSI_MEM_OTHER, size);
    LSI_TRY(lsi_check_alloc(writer->temporary));
    snprintf(writer->temporary, size, "%s.tmp-%ld", path, (long)getpid());
    /* an earlier process of the same number may have left one: its content is worthless */
    writer->fd =
        open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (writer->fd < 0) {
        return lsi_fail_errno(status_of_errno(), "%s: cannot create %s", path, writer->temporary);
    }
    return LS_OK;
}

ls_status lsi_file_begin(const char *path, lsi_file_writer **writer) {
    lsi_file_writer *next = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *next);
    LSI_TRY(lsi_check_alloc(next));
    next->fd = -1;
    ls_status status = open_temporary(next, path);
    if (status != LS_OK) {
        free_writer(next);
        return status;
    }
    *writer = next;
    return LS_OK;
}

static ls_status fail_write(lsi_file_writer *writer, size_t missing_bytes) {
    int is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    writer->has_failed = 1;
    return lsi_fail_errno(LS_ERR_IO, "%s: %zu bytes written, %zu missing%s", writer->path,
                          writer->bytes_written, missing_bytes,
                          is_full ? "; free some space or choose another folder" : "");
}

ls_status lsi_file_write(lsi_file_writer *writer, const void *data, size_t bytes) {
    const char *at = data;
    if (writer->has_failed) {
        return lsi_fail(LS_ERR_STATE, "%s: an earlier write failed", writer->path);
    }
    while (bytes > 0) {
        ssize_t n = write(writer->fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* no progress and no reason: the next call would loop */
        if (n <= 0) return fail_write(writer, bytes);
        at += n;
        bytes -= (size_t)n;
        writer->bytes_written += (size_t)n;
    }
    return LS_OK;
}

/* Syncs the folder that holds path. Some file systems cannot (EINVAL) and have nothing to sync. */
static ls_status sync_folder_of(char *path) {
    char *slash = strrchr(path, '/');
    const char *folder = !slash ? "." : slash == path ? "/" : path;
    if (slash && slash != path) *slash = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL && errno != EROFS);
    ls_status status = LS_OK;
    if (failed) status = lsi_fail_errno(LS_ERR_IO, "%s: cannot sync the folder", folder);
    if (fd >= 0) close(fd);
    if (slash && slash != path) *slash = '/';
    return status;
}

static ls_status sync_and_rename(lsi_file_writer *writer) {
    if (writer->has_failed) {
        return lsi_fail(LS_ERR_STATE, "%s: not replaced, an earlier write failed", writer->path);
    }
    /* network file systems and quotas report a full disk only here */
    if (fsync(writer->fd) != 0) {
        return lsi_fail_errno(LS_ERR_IO, "%s: cannot sync %zu bytes", writer->path,
                              writer->bytes_written);
    }
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) != 0) return lsi_fail_errno(LS_ERR_IO, "%s: cannot close", writer->path);
    if (rename(writer->temporary, writer->path) != 0) {
        return lsi_fail_errno(LS_ERR_IO, "%s: cannot rename %s to it", writer->path,
                              writer->temporary);
    }
    return LS_OK;
}

ls_status lsi_file_commit(lsi_file_writer *writer) {
    ls_status status = sync_and_rename(writer);
    if (status != LS_OK) {
        lsi_file_cancel(writer);
        return status;
    }
    status = lsi_context(sync_folder_of(writer->path),
                         "%s is in place, but may not outlive a crash", writer->path);
    free_writer(writer);
    return status;
}

void lsi_file_cancel(lsi_file_writer *writer) {
    if (!writer) return;
    unlink(writer->temporary);
    free_writer(writer);
}

ls_status lsi_file_replace(const char *path, const void *data, size_t bytes) {
    lsi_file_writer *writer;
    LSI_TRY(lsi_file_begin(path, &writer));
    ls_status status = lsi_file_write(writer, data, bytes);
    if (status != LS_OK) {
        lsi_file_cancel(writer);
        return status;
    }
    return lsi_file_commit(writer);
}

ls_status lsi_file_replace_json(const char *path, const json_t *value) {
    const size_t flags = JSON_INDENT(2);
    size_t bytes = json_dumpb(value, NULL, 0, flags);
    if (bytes == 0) return lsi_fail(LS_ERR_MEMORY, "%s: its JSON value could not be made", path);
    char *text = lsi_alloc(LSI_MEM_OTHER, bytes + 1);
    LSI_TRY(lsi_context(lsi_check_alloc(text), "writing %s", path));
    bytes = json_dumpb(value, text, bytes, flags);
    text[bytes] = '\n';
    ls_status status = lsi_file_replace(path, text, bytes + 1);
    lsi_free(text);
    return status;
}

/* ---- reading ---- */

static ls_status open_to_read(const char *path, int *fd, struct stat *info) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return lsi_fail_errno(status_of_errno(), "%s: cannot open", path);
    if (fstat(*fd, info) == 0) return LS_OK;
    ls_status status = lsi_fail_errno(LS_ERR_IO, "%s: cannot ask its size", path);
    close(*fd);
    return status;
}

static ls_status fail_too_large(const char *path, size_t cap_bytes) {
    return lsi_fail(LS_ERR_FORMAT, "%s: larger than the %zu bytes that are allowed here", path,
                    cap_bytes);
}

/* Reads to the end of the file, whatever size it claimed: it may be a pipe, or still growing. */
static ls_status read_to_end(const char *path, int fd, size_t cap_bytes, char **data,
                             size_t *capacity, size_t *bytes) {
    for (;;) {
        if (*bytes == *capacity) {
            size_t larger = *capacity < SIZE_MAX / 2 - 1 ? *capacity * 2 + 1 : SIZE_MAX - 1;
            if (larger > cap_bytes)
                larger = cap_bytes + 1; /* one more shows that it is too large */
            char *next = lsi_realloc(LSI_MEM_OTHER, *data, larger + 1);
            LSI_TRY(lsi_context(lsi_check_alloc(next), "reading %s", path));
            *data = next;
            *capacity = larger;
        }
        ssize_t n = read(fd, *data + *bytes, *capacity - *bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return lsi_fail_errno(LS_ERR_IO, "%s: cannot read", path);
        *bytes += (size_t)n;
        if (*bytes > cap_bytes) return fail_too_large(path, cap_bytes);
        if (n == 0) return LS_OK;
    }
}

ls_status lsi_file_read(const char *path, size_t cap_bytes, char **data, size_t *bytes) {
    int fd;
    struct stat info;
    if (cap_bytes > PTRDIFF_MAX - 2) cap_bytes = PTRDIFF_MAX - 2;
    LSI_TRY(open_to_read(path, &fd, &info));
    size_t size = S_ISREG(info.st_mode) && info.st_size > 0 ? (size_t)info.st_size : 0;
    if (size > cap_bytes) {
        close(fd);
        return fail_too_large(path, cap_bytes);
    }
    /* one byte more than the size, so that the read which finds the end needs no larger block */
    size_t capacity = size + 1, found = 0;
    char *text = lsi_alloc(LSI_MEM_OTHER, capacity + 1);
    ls_status status = lsi_context(lsi_check_alloc(text), "reading %s", path);
    if (status == LS_OK) status = read_to_end(path, fd, cap_bytes, &text, &capacity, &found);
    close(fd);
    if (status != LS_OK) {
        lsi_free(text);
        return status;
    }
    text[found] = '\0';
    *data = text;
    *bytes = found;
    return LS_OK;
}

ls_status lsi_file_read_json(const char *path, size_t cap_bytes, json_t **value) {
    char *text;
    size_t bytes;
    LSI_TRY(lsi_file_read(path, cap_bytes, &text, &bytes));
    json_error_t error;
    json_t *found = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    lsi_free(text);
    if (!found) {
        ls_status status =
            json_error_code(&error) == json_error_out_of_memory ? LS_ERR_MEMORY : LS_ERR_FORMAT;
        return lsi_fail(status, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    }
    *value = found;
    return LS_OK;
}

ls_status lsi_file_map(const char *path, const void **data, size_t *bytes) {
    int fd;
    struct stat info;
    LSI_TRY(open_to_read(path, &fd, &info));
    ls_status status = LS_OK;
    void *found = NULL;
    size_t size = (size_t)info.st_size;
    if (!S_ISREG(info.st_mode)) {
        status = lsi_fail(LS_ERR_IO, "%s: expected a regular file, found something else", path);
    } else if (size > 0) {
        found = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (found == MAP_FAILED) {
            status = lsi_fail_errno(LS_ERR_IO, "%s: cannot map its %zu bytes", path, size);
        }
    }
    close(fd); /* the mapping lives on */
    if (status != LS_OK) return status;
    *data = found;
    *bytes = size;
    return LS_OK;
}

void lsi_file_unmap(const void *data, size_t bytes) {
    if (data && bytes > 0) munmap((void *)(uintptr_t)data, bytes);
}

/* ---- folders ---- */

static ls_status make_one(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0) return LS_OK;
    int reason = errno; /* EEXIST, or EACCES and EROFS for a folder that is there all the same */
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return LS_OK;
        return lsi_fail(LS_ERR_IO, "%s: exists and is not a folder", path);
    }
    errno = reason;
    return lsi_fail_errno(LS_ERR_IO, "%s: cannot make this folder", path);
}

/* Makes each parent, from the top down, by ending the path at each slash in turn. */
static ls_status make_all(char *path) {
    for (char *at = path + 1; *at; at++) {
        if (*at != '/' || at[-1] == '/') continue;
        *at = '\0';
        ls_status status = make_one(path);
        *at = '/';
        LSI_TRY(status);
    }
    return make_one(path);
}

ls_status lsi_folder_make(const char *path) {
    if (!path[0]) return lsi_fail(LS_ERR_ARGUMENT, "a folder needs a name, found an empty one");
    char *copy = lsi_strdup(path);
    LSI_TRY(lsi_check_alloc(copy));
    ls_status status = make_all(copy);
    lsi_free(copy);
    LSI_TRY(status);
    if (access(path, W_OK | X_OK) != 0) {
        return lsi_fail_errno(LS_ERR_IO, "%s: this folder cannot be written", path);
    }
    return LS_OK;
}
