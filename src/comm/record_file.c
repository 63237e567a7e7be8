/* The bytes of the recorder: where they come from, and the file that keeps them.
 *
 * Bytes are read with pread, not mapped: what is not there reads as zero without becoming memory,
 * a file that somebody shortens is an error and no signal, and a copy stays as it was checked.
 *
 * A dump is a head, then pieces of the region (each a small head and its bytes), then an end mark
 * with their number. What no piece covers was zero. A file that is cut short has no end mark. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/version.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/record_look.h"

enum { VERSION = 1, CHUNK_BYTES = 4096, N_SIZES = 8 };
static const char MAGIC[8] = {'L', 'S', 'r', 'e', 'c', 'o', 'r', 'd'};

typedef struct file_head {
    char magic[8];
    uint32_t version, head_bytes;
    uint32_t size[N_SIZES]; /* of what the bytes are made of, see set_sizes */
    uint64_t region_bytes;
    int64_t taken_ms, taken_unix_s;
    char program[32]; /* version of Lockstep, for messages */
} file_head;

typedef struct piece_head {
    uint64_t offset; /* END: no more pieces */
    uint64_t bytes;  /* behind END: how many pieces there were */
} piece_head;
static const uint64_t END = UINT64_MAX;

static void set_sizes(uint32_t size[N_SIZES]) {
    const uint32_t sizes[N_SIZES] = {
        sizeof(lsi_control), sizeof(lsi_group_control), sizeof(lsi_rank_control), sizeof(lsi_call),
        LSI_RECORDS,         LSI_MESSAGE_RECORDS,       LSI_MAX_GROUPS,           LSI_MAX_RANKS};
    memcpy(size, sizes, sizeof sizes);
}

/* ---- reading ---- */

/* Exactly these bytes of the descriptor. */
static ls_status read_at(const lsi_record_source *source, uint64_t at, void *data, size_t bytes) {
    unsigned char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(source->fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return lsi_fail_errno(LS_ERR_IO, "%s: read", source->name);
        if (n == 0)
            return lsi_fail(LS_ERR_FORMAT, "%s: cut short: ends at byte %llu, %zu more expected",
                            source->name, (unsigned long long)at, bytes);
        to += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return LS_OK;
}

/* The first piece that ends behind offset. */
static size_t find_piece(const lsi_record_source *source, uint64_t offset) {
    size_t low = 0, high = source->n_pieces;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const lsi_record_piece *piece = &source->pieces[middle];
        if (piece->offset + piece->bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ls_status read_pieces(const lsi_record_source *source, uint64_t offset, unsigned char *data,
                             size_t bytes) {
    memset(data, 0, bytes);
    uint64_t end = offset + bytes;
    for (size_t i = find_piece(source, offset); i < source->n_pieces; i++) {
        const lsi_record_piece *piece = &source->pieces[i];
        if (piece->offset >= end) break;
        uint64_t from = piece->offset > offset ? piece->offset : offset;
        uint64_t to = piece->offset + piece->bytes < end ? piece->offset + piece->bytes : end;
        LSI_TRY(read_at(source, piece->at + (from - piece->offset), data + (from - offset),
                        (size_t)(to - from)));
    }
    return LS_OK;
}

ls_status lsi_record_read(const lsi_record_source *source, uint64_t offset, void *data,
                          size_t bytes) {
    if (offset > source->region_bytes || bytes > source->region_bytes - offset)
        return lsi_fail(LS_ERR_FORMAT, "%s: %zu bytes at %llu are outside of the region",
                        source->name, bytes, (unsigned long long)offset);
    return source->is_file ? read_pieces(source, offset, data, bytes)
                           : read_at(source, offset, data, bytes);
}

int64_t lsi_record_time_ms(const lsi_record_source *source) {
    return source->is_file ? source->taken_ms : lsi_coarse_ms();
}

/* ---- opening ---- */

LSI_PRINTF(2, 3)
static ls_status make_source(lsi_record_source **out, const char *format, ...) {
    lsi_record_source *source = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *source);
    LSI_TRY(lsi_check_alloc(source));
    va_list values;
    va_start(values, format);
    vsnprintf(source->name, sizeof source->name, format, values);
    va_end(values);
    source->fd = -1;
    *out = source;
    return LS_OK;
}

void lsi_record_close(lsi_record_source *source) {
    if (!source) return;
    if (source->owns_fd && source->fd >= 0) close(source->fd);
    lsi_free(source->pieces);
    lsi_free(source->control);
    lsi_free(source);
}

static ls_status read_control(lsi_record_source *source) {
    source->control = lsi_alloc(LSI_MEM_OTHER, sizeof *source->control);
    LSI_TRY(lsi_check_alloc(source->control));
    if (source->region_bytes < sizeof *source->control)
        return lsi_fail(LS_ERR_FORMAT, "%s: holds no region of Lockstep", source->name);
    LSI_TRY(lsi_record_read(source, 0, source->control, sizeof *source->control));
    if (lsi_control_is_ours(source->control, source->region_bytes)) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: no region of this version of Lockstep (%s)", source->name,
                    ls_version());
}

/* Ends an opening: hands the source out, or closes it. */
static ls_status opened(ls_status status, lsi_record_source *source, lsi_record_source **out) {
    if (status == LS_OK)
        *out = source;
    else
        lsi_record_close(source);
    return status;
}

ls_status lsi_record_open_region(const lsi_region *region, lsi_record_source **out) {
    lsi_record_source *source = NULL;
    LSI_TRY(make_source(&source, "shared region"));
    source->fd = region->fd;
    source->region_bytes = region->bytes;
    return opened(read_control(source), source, out);
}

/* ---- of a process ---- */

/* Opens the file behind a link in /proc/PID if it is a region. */
static ls_status try_link(lsi_record_source *source, const char *path) {
    static const char wanted[] = "/memfd:lockstep";
    char target[64] = "";
    struct stat info;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0 || strncmp(target, wanted, sizeof wanted - 1) != 0 ||
        (target[sizeof wanted - 1] != ' ' && target[sizeof wanted - 1] != '\0'))
        return LS_ERR_NOT_FOUND;
    source->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->fd < 0) return lsi_fail_errno(LS_ERR_SYSTEM, "%s: %s", source->name, path);
    ls_status status = LS_OK;
    if (fstat(source->fd, &info) != 0)
        status = lsi_fail_errno(LS_ERR_SYSTEM, "%s: %s", source->name, path);
    source->region_bytes = status == LS_OK ? (uint64_t)info.st_size : 0;
    if (status == LS_OK) status = read_control(source);
    if (status == LS_OK) return LS_OK;
    close(source->fd);
    source->fd = -1;
    lsi_free(source->control);
    source->control = NULL;
    return status;
}

static ls_status cannot_look(pid_t pid, const char *path) {
    if (errno == ENOENT || errno == ESRCH)
        return lsi_fail(LS_ERR_NOT_FOUND, "inspect: there is no process %d", (int)pid);
    return lsi_fail_errno(LS_ERR_SYSTEM,
                          "inspect: cannot look into process %d (%s); it must be of the same user "
                          "and alive",
                          (int)pid, path);
}

/* *status: LS_ERR_NOT_FOUND while nothing like a region was seen, else what was wrong with it. */
static ls_status search_folder(lsi_record_source *source, const char *folder, ls_status *status) {
    char path[320];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)source->pid, folder);
    DIR *links = opendir(path);
    if (!links) return cannot_look(source->pid, path);
    errno = 0;
    for (struct dirent *entry; *status != LS_OK && (entry = readdir(links));) {
        snprintf(path, sizeof path, "/proc/%d/%s/%s", (int)source->pid, folder, entry->d_name);
        ls_status found = try_link(source, path);
        if (found != LS_ERR_NOT_FOUND) *status = found;
        errno = 0;
    }
    int error = errno; /* of readdir: the process ended meanwhile, or may not be looked into */
    closedir(links);
    errno = error;
    if (error && *status == LS_ERR_NOT_FOUND) return cannot_look(source->pid, path);
    return LS_OK;
}

static ls_status find_region(lsi_record_source *source) {
    ls_status found = LS_ERR_NOT_FOUND;
    LSI_TRY(search_folder(source, "fd", &found));
    /* Mapped but no longer open; only some users may look there. */
    if (found == LS_ERR_NOT_FOUND && search_folder(source, "map_files", &found) != LS_OK)
        found = LS_ERR_NOT_FOUND;
    if (found != LS_ERR_NOT_FOUND) return found;
    return lsi_fail(LS_ERR_NOT_FOUND,
                    "inspect: process %d has no shared region of Lockstep; expected the launcher "
                    "(lockstep run, train or bench) or a worker that has its group",
                    (int)source->pid);
}

ls_status lsi_record_open_process(pid_t pid, lsi_record_source **out) {
    lsi_record_source *source = NULL;
    LSI_TRY(make_source(&source, "process %d", (int)pid));
    source->pid = pid;
    source->owns_fd = true;
    return opened(find_region(source), source, out);
}

/* ---- of a file ---- */

static ls_status check_head(lsi_record_source *source, const file_head *head) {
    file_head ours;
    if (memcmp(head->magic, MAGIC, sizeof MAGIC) != 0)
        return lsi_fail(LS_ERR_FORMAT, "%s: no file of the recorder (lockstep run --recorder FILE)",
                        source->name);
    set_sizes(ours.size);
    if (head->version == VERSION && head->head_bytes == sizeof *head &&
        memcmp(head->size, ours.size, sizeof ours.size) == 0)
        return LS_OK;
    char program[sizeof head->program + 1] = "";
    for (size_t i = 0; i < sizeof head->program && isprint((unsigned char)head->program[i]); i++)
        program[i] = head->program[i];
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: written by another build of Lockstep (%s, this is %s); inspect it with "
                    "that one",
                    source->name, program, ls_version());
}

static ls_status add_piece(lsi_record_source *source, size_t *room, lsi_record_piece piece) {
    if (source->n_pieces == *room) {
        size_t next = *room ? 2 * *room : 64;
        lsi_record_piece *pieces =
            lsi_realloc(LSI_MEM_OTHER, source->pieces, next * sizeof *pieces);
        LSI_TRY(lsi_check_alloc(pieces));
        source->pieces = pieces;
        *room = next;
    }
    source->pieces[source->n_pieces++] = piece;
    return LS_OK;
}

static ls_status damaged(const lsi_record_source *source, uint64_t at) {
    return lsi_fail(LS_ERR_FORMAT, "%s: damaged at byte %llu", source->name,
                    (unsigned long long)at);
}

/* Walks over the pieces; their bytes are not looked at. */
static ls_status read_directory(lsi_record_source *source, uint64_t file_bytes) {
    uint64_t at = sizeof(file_head), behind = 0;
    size_t room = 0;
    for (;;) {
        piece_head head;
        LSI_TRY(read_at(source, at, &head, sizeof head));
        uint64_t data_at = at + sizeof head;
        if (head.offset == END)
            return head.bytes == source->n_pieces && data_at == file_bytes ? LS_OK
                                                                           : damaged(source, at);
        if (head.offset < behind || head.offset > source->region_bytes || head.bytes == 0 ||
            head.bytes > source->region_bytes - head.offset)
            return damaged(source, at);
        if (data_at > file_bytes || head.bytes > file_bytes - data_at)
            return lsi_fail(LS_ERR_FORMAT, "%s: cut short: %llu bytes, more than %llu expected",
                            source->name, (unsigned long long)file_bytes,
                            (unsigned long long)(data_at + head.bytes));
        LSI_TRY(add_piece(source, &room, (lsi_record_piece){head.offset, head.bytes, data_at}));
        behind = head.offset + head.bytes;
        at = data_at + head.bytes;
    }
}

static ls_status read_file(lsi_record_source *source, const char *path) {
    struct stat info;
    file_head head;
    /* Not to wait for a writer of a pipe. */
    source->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->fd < 0)
        return lsi_fail_errno(errno == ENOENT ? LS_ERR_NOT_FOUND : LS_ERR_IO, "inspect: %s", path);
    if (fstat(source->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return lsi_fail(LS_ERR_FORMAT, "%s: expected a file of the recorder, found no plain file",
                        source->name);
    LSI_TRY(read_at(source, 0, &head, sizeof head));
    LSI_TRY(check_head(source, &head));
    source->region_bytes = head.region_bytes;
    source->taken_ms = head.taken_ms;
    source->taken_unix_s = head.taken_unix_s;
    /* Offsets are handed to calls that take signed ones. */
    if (head.region_bytes > INT64_MAX) return damaged(source, offsetof(file_head, region_bytes));
    LSI_TRY(read_directory(source, (uint64_t)info.st_size));
    return read_control(source);
}

ls_status lsi_record_open_file(const char *path, lsi_record_source **out) {
    lsi_record_source *source = NULL;
    LSI_TRY(make_source(&source, "%s", path));
    source->is_file = source->owns_fd = true;
    return opened(read_file(source, path), source, out);
}

/* ---- writing ---- */

typedef struct range {
    uint64_t offset, bytes;
} range;

static int by_offset(const void *a, const void *b) {
    uint64_t x = ((const range *)a)->offset, y = ((const range *)b)->offset;
    return x < y ? -1 : x > y;
}

/* What is worth keeping of the region, in rising order. Returns how many ranges. */
static int find_ranges(const lsi_record_source *source, range ranges[LSI_MAX_GROUPS + 1]) {
    int n = 0;
    ranges[n++] = (range){0, sizeof(lsi_control)};
    for (int i = 0; i < LSI_MAX_GROUPS; i++) {
        const lsi_group_row *row = &source->control->groups[i];
        int32_t n_ranks = 0;
        uint64_t offset = row->offset;
        if (!row->used || offset < sizeof(lsi_control) || offset > source->region_bytes ||
            lsi_record_read(source, offset + offsetof(lsi_group_control, n_ranks), &n_ranks,
                            sizeof n_ranks) != LS_OK ||
            n_ranks < 1 || n_ranks > LSI_MAX_RANKS)
            continue;
        uint64_t bytes = sizeof(lsi_group_control) + (uint64_t)n_ranks * sizeof(lsi_rank_control);
        if (bytes <= source->region_bytes - offset) ranges[n++] = (range){offset, bytes};
    }
    qsort(ranges, (size_t)n, sizeof *ranges, by_offset);
    int n_apart = 1;
    for (int i = 1; i < n; i++) { /* groups apart are all that a region of ours can have */
        const range *last = &ranges[n_apart - 1];
        if (ranges[i].offset >= last->offset + last->bytes) ranges[n_apart++] = ranges[i];
    }
    return n_apart;
}

static bool is_zero(const unsigned char *data, size_t bytes) {
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* The chunks of a range that are not zero, each as a piece. */
static ls_status write_range(const lsi_record_source *source, range r, lsi_file_writer *writer,
                             uint64_t *n_pieces) {
    unsigned char chunk[CHUNK_BYTES];
    for (uint64_t done = 0; done < r.bytes; done += CHUNK_BYTES) {
        size_t bytes = r.bytes - done < CHUNK_BYTES ? (size_t)(r.bytes - done) : CHUNK_BYTES;
        LSI_TRY(lsi_record_read(source, r.offset + done, chunk, bytes));
        if (is_zero(chunk, bytes)) continue;
        piece_head head = {r.offset + done, bytes};
        LSI_TRY(lsi_file_write(writer, &head, sizeof head));
        LSI_TRY(lsi_file_write(writer, chunk, bytes));
        ++*n_pieces;
    }
    return LS_OK;
}

static ls_status write_all(const lsi_record_source *source, lsi_file_writer *writer) {
    range *ranges = lsi_alloc(LSI_MEM_OTHER, (LSI_MAX_GROUPS + 1) * sizeof *ranges);
    LSI_TRY(lsi_check_alloc(ranges));
    file_head head = {.version = VERSION,
                      .head_bytes = sizeof head,
                      .region_bytes = source->region_bytes,
                      .taken_ms = lsi_coarse_ms(),
                      .taken_unix_s = (int64_t)time(NULL)};
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    set_sizes(head.size);
    snprintf(head.program, sizeof head.program, "%s", ls_version());
    piece_head end = {.offset = END};
    int n_ranges = find_ranges(source, ranges);
    ls_status status = lsi_file_write(writer, &head, sizeof head);
    for (int i = 0; i < n_ranges && status == LS_OK; i++)
        status = write_range(source, ranges[i], writer, &end.bytes);
    if (status == LS_OK) status = lsi_file_write(writer, &end, sizeof end);
    lsi_free(ranges);
    return status;
}

ls_status lsi_record_dump(const lsi_region *region, const char *path) {
    lsi_record_source *source = NULL;
    lsi_file_writer *writer = NULL;
    LSI_TRY(lsi_record_open_region(region, &source));
    ls_status status = lsi_file_begin(path, &writer);
    if (status == LS_OK) status = write_all(source, writer);
    if (status == LS_OK)
        status = lsi_file_commit(writer);
    else
        lsi_file_cancel(writer);
    lsi_record_close(source);
    return status;
}
