/* Memory in a file: what was written comes back however slices are cut, nothing stays in the
 * folder, memory and what waits for the disk stay within a few slices, and every failure that can
 * be provoked is an error with a reason: no folder, no rights, no room, a limit, a disk that loses
 * writes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/spill.h"
#include "harness/refuse.h"
#include "harness/scratch.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { CANNOT = 77, PAGE = 4096, MIB = 1 << 20 };

static int nothing_is_left(void **state) {
    (void)state;
    lsi_mem_fail_at(0);
    bool is_clean =
        lsi_mem_n_blocks() == 0 && lsi_mem_now(LSI_MEM_STAGING) == 0 && lsi_mem_file_bytes() == 0;
    return is_clean ? 0 : -1;
}

/* Entries of a folder. */
static int n_entries(const char *folder) {
    int n = -2; /* "." and ".." */
    DIR *dir = opendir(folder);
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n;
}

static const char *fresh_folder(void **state, const char *name) {
    const char *folder = in_scratch(state, name);
    assert_ok(lsi_folder_make(folder));
    return folder;
}

/* The descriptor of the only file that this process has open in a folder; -1: none. */
static int descriptor_in(const char *folder) {
    for (int fd = 0; fd < 256; fd++) {
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0 && strncmp(path, folder, strlen(folder)) == 0) return fd;
    }
    return -1;
}

/* ---- content ---- */

static unsigned char pattern(int64_t i, int seed) {
    return (unsigned char)((i * 31 + i / 251 + seed) % 256);
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

typedef ls_status (*slice_body)(lsi_spill *spill, int64_t offset, int64_t bytes, int seed);

/* Goes through all slices as it is meant to be done. */
static ls_status go_through(lsi_spill *spill, int64_t bytes, int64_t slice, int seed, bool writes,
                            slice_body body) {
    lsi_spill_will_need(spill, 0, smaller(slice, bytes));
    for (int64_t at = 0; at < bytes; at += slice) {
        int64_t n = smaller(slice, bytes - at), next = at + n;
        lsi_spill_will_need(spill, next, smaller(slice, bytes - next));
        LSI_TRY(lsi_spill_await(spill, at, n, writes));
        LSI_TRY(body(spill, at, n, seed));
        LSI_TRY(lsi_spill_is_done(spill, at, n, writes));
    }
    return LS_OK;
}

static ls_status fill(lsi_spill *spill, int64_t offset, int64_t bytes, int seed) {
    unsigned char *at = lsi_spill_at(spill, offset);
    for (int64_t i = 0; i < bytes; i++) at[i] = pattern(offset + i, seed);
    return LS_OK;
}

static ls_status expect(lsi_spill *spill, int64_t offset, int64_t bytes, int seed) {
    const unsigned char *at = lsi_spill_at(spill, offset);
    for (int64_t i = 0; i < bytes; i++)
        if (at[i] != (seed < 0 ? 0 : pattern(offset + i, seed)))
            return lsi_fail(LS_ERR_STATE, "byte %lld is %d", (long long)(offset + i), at[i]);
    return LS_OK;
}

/* Zeros, then what was written, then what was written over it, by slices of one size and another.
 */
static ls_status write_and_read(const char *folder, int64_t bytes, int64_t slice, int64_t other) {
    lsi_spill *spill;
    LSI_TRY(lsi_spill_create(folder, bytes, &spill));
    ls_status status = go_through(spill, bytes, other, -1, false, expect);
    for (int seed = 0; seed < 2 && status == LS_OK; seed++) {
        status = go_through(spill, bytes, slice, seed, true, fill);
        if (status == LS_OK) status = go_through(spill, bytes, other, seed, false, expect);
    }
    lsi_spill_destroy(spill);
    return status;
}

static void what_is_written_comes_back(void **state) {
    static const struct {
        int64_t bytes, slice, other;
    } rows[] = {
        {0, 1, 1},           {1, 1, 7},
        {PAGE - 1, 1000, 7}, {PAGE, PAGE, PAGE},
        {PAGE + 1, 12, 999}, {64 * PAGE + 5, 3 * PAGE, PAGE + 1},
        {3 * MIB, MIB, 600}, {20 * MIB + 5, 5 * MIB, 3 * MIB + 1},
    };
    const char *folders[] = {fresh_folder(state, "content"), "/dev/shm"};
    for (size_t f = 0; f < COUNT_OF(folders); f++)
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            if (access(folders[f], W_OK) == 0)
                assert_ok(write_and_read(folders[f], rows[i].bytes, rows[i].slice, rows[i].other));
    assert_int_equal(n_entries(folders[0]), 0);
}

static void two_do_not_mix(void **state) {
    enum { BYTES = 100003, SLICE = 9000 };
    const char *folder = fresh_folder(state, "two");
    lsi_spill *a, *b;
    assert_ok(lsi_spill_create(folder, BYTES, &a));
    assert_ok(lsi_spill_create(folder, BYTES, &b));
    assert_ok(go_through(a, BYTES, SLICE, 1, true, fill));
    assert_ok(go_through(b, BYTES, SLICE, 2, true, fill));
    assert_ok(go_through(a, BYTES, SLICE, 1, false, expect));
    lsi_spill_destroy(a);
    assert_ok(go_through(b, BYTES, SLICE, 2, false, expect));
    lsi_spill_destroy(b);
}

static void any_order_and_no_slices_are_fine(void **state) {
    enum { BYTES = 100003 };
    lsi_spill *spill;
    assert_ok(lsi_spill_create(fresh_folder(state, "order"), BYTES, &spill));
    assert_ok(fill(spill, 0, BYTES, 3));
    assert_ok(lsi_spill_is_done(spill, 50000, 100, true));
    assert_ok(lsi_spill_is_done(spill, 200, 70000, true));
    assert_ok(lsi_spill_is_done(spill, 200, 70000, false));
    assert_ok(expect(spill, 0, BYTES, 3));
    assert_ok(lsi_spill_is_done(spill, 0, 0, true));
    lsi_spill_will_need(spill, BYTES, 0);
    lsi_spill_will_need(spill, 7, 20000); /* and is never done */
    assert_int_equal(lsi_mem_now(LSI_MEM_STAGING), 20000);
    lsi_spill_destroy(spill);
    lsi_spill_destroy(NULL);
}

/* ---- the folder ---- */

static int die_with_a_spill(void *context) {
    lsi_spill *spill;
    if (lsi_spill_create(context, 10 * PAGE, &spill) != LS_OK) return 1;
    if (fill(spill, 0, 10 * PAGE, 1) != LS_OK) return 2;
    if (n_entries(context) != 0) return 3;
    raise(SIGKILL);
    return 4;
}

static void nothing_stays_in_the_folder(void **state) {
    const char *folder = fresh_folder(state, "death");
    assert_int_equal(run_in_child(die_with_a_spill, (void *)(uintptr_t)folder), -SIGKILL);
    assert_int_equal(n_entries(folder), 0);
}

static int work_without_nameless_files(void *context) {
    const char *folder = context;
    lsi_spill *spill;
    if (!refuse_call(SYS_openat, 2, O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP)) return CANNOT;
    if (open(folder, O_TMPFILE | O_RDWR, 0600) >= 0 || errno != EOPNOTSUPP) return 1;
    if (write_and_read(folder, 30000, 7000, 400) != LS_OK) return 2;
    if (lsi_spill_create(folder, 30000, &spill) != LS_OK) return 3;
    if (n_entries(folder) != 0) return 4;
    lsi_spill_destroy(spill);
    char none[PATH_MAX];
    snprintf(none, sizeof none, "%s/none", folder);
    if (lsi_spill_create(none, 10, &spill) != LS_ERR_NOT_FOUND) return 5;
    return lsi_mem_n_blocks() == 0 ? 0 : 6;
}

static void file_systems_without_nameless_files_do(void **state) {
    const char *folder = fresh_folder(state, "named");
    int result = run_in_child(work_without_nameless_files, (void *)(uintptr_t)folder);
    if (result == CANNOT) skip();
    assert_int_equal(result, 0);
    assert_int_equal(n_entries(folder), 0);
}

static void impossible_folders_are_named(void **state) {
    lsi_spill *spill;
    put_text(in_scratch(state, "file"), "x");
    assert_fails(lsi_spill_create(in_scratch(state, "none"), 10, &spill), LS_ERR_NOT_FOUND,
                 "none: cannot make a file in this folder: No such file");
    assert_fails(lsi_spill_create(in_scratch(state, "file"), 10, &spill), LS_ERR_IO,
                 "file: cannot make a file in this folder: Not a directory");
    assert_fails(lsi_spill_create("", 10, &spill), LS_ERR_NOT_FOUND, "No such file");
}

/* Without root's rights; a root that runs the test gives them up first. */
static int create_in_read_only_folder(void *context) {
    lsi_spill *spill;
    if (chmod(context, 0555) != 0) return 99;
    if (getuid() == 0 && setuid(65534) != 0) return CANNOT;
    if (lsi_spill_create(context, 10, &spill) != LS_ERR_IO) return 1;
    return strstr(ls_last_message(), "cannot make a file in this folder: Permission denied") ? 0
                                                                                             : 2;
}

static void read_only_folder_is_named(void **state) {
    const char *folder = fresh_folder(state, "closed");
    assert_int_equal(chmod(*state, 0755), 0);
    int result = run_in_child(create_in_read_only_folder, (void *)(uintptr_t)folder);
    if (result == CANNOT) skip();
    assert_int_equal(result, 0);
}

/* ---- no room ---- */

static uint64_t free_bytes(const char *folder) {
    struct statvfs info;
    return statvfs(folder, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
}

/* A small file system of its own, seen by this child only. */
static int fill_file_system(void *context) {
    const char *folder = context;
    char expected[128];
    lsi_spill *spill;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=256k") != 0) {
        return CANNOT;
    }
    uint64_t room = free_bytes(folder);
    snprintf(expected, sizeof expected, "of 1048576 bytes is wanted here, %llu are free",
             (unsigned long long)room);
    if (lsi_spill_create(folder, MIB, &spill) != LS_ERR_IO) return 1;
    if (!strstr(ls_last_message(), folder) || !strstr(ls_last_message(), expected)) return 2;
    if (!strstr(ls_last_message(), "No space left")) return 3;
    if (free_bytes(folder) != room) return 4;
    /* What fits can be written to the last byte. */
    if (write_and_read(folder, (int64_t)room, 50000, 9000) != LS_OK) return 5;
    if (free_bytes(folder) != room) return 6;
    return lsi_mem_n_blocks() == 0 ? 0 : 7;
}

static void full_disk_is_an_error_at_once(void **state) {
    const char *folder = fresh_folder(state, "full");
    int result = run_in_child(fill_file_system, (void *)(uintptr_t)folder);
    if (result == CANNOT) skip(); /* needs root */
    assert_int_equal(result, 0);
}

/* With the signal as it is: the process must live. */
static int reach_size_limit(void *context) {
    struct rlimit limit = {200000, 200000};
    lsi_spill *spill;
    signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 99;
    if (lsi_spill_create(context, 200001, &spill) != LS_ERR_IO) return 1;
    if (!strstr(ls_last_message(), "of 200001 bytes is wanted here")) return 2;
    if (!strstr(ls_last_message(), "files of 200000 (RLIMIT_FSIZE)")) return 3;
    return write_and_read(context, 200000, 50000, 9000) == LS_OK ? 0 : 4;
}

static void size_limit_is_an_error(void **state) {
    const char *folder = fresh_folder(state, "limit");
    assert_int_equal(run_in_child(reach_size_limit, (void *)(uintptr_t)folder), 0);
}

/* Slices are done until an error comes; how many were good. */
static int n_good_slices(lsi_spill *spill, ls_status *status) {
    for (int n = 0; n < 4; n++) {
        *status = fill(spill, n * PAGE, PAGE, 1);
        if (*status == LS_OK) *status = lsi_spill_is_done(spill, n * PAGE, PAGE, true);
        if (*status != LS_OK) return n;
    }
    return 4;
}

/* The disk says so when it is waited for (SYNC_FILE_RANGE_WAIT_AFTER), which is one slice later. */
static int lose_writes(void *context) {
    lsi_spill *spill;
    ls_status status;
    if (lsi_spill_create(context, 4 * PAGE, &spill) != LS_OK) return 99;
    if (!refuse_call(SYS_sync_file_range, 3, SYNC_FILE_RANGE_WAIT_AFTER, EIO)) return CANNOT;
    if (n_good_slices(spill, &status) != 1) return 1;
    if (status != LS_ERR_IO || !strstr(ls_last_message(), context)) return 2;
    if (!strstr(ls_last_message(), "cannot write 4096 bytes")) return 3;
    if (!strstr(ls_last_message(), "Input/output error")) return 4;
    if (!refuse_call(SYS_sync_file_range, 3, SYNC_FILE_RANGE_WRITE, EIO)) return CANNOT;
    if (n_good_slices(spill, &status) != 0 || status != LS_ERR_IO) return 5;
    lsi_spill_destroy(spill);
    return lsi_mem_n_blocks() == 0 ? 0 : 6;
}

static void lost_writes_are_errors(void **state) {
    const char *folder = fresh_folder(state, "lost");
    int result = run_in_child(lose_writes, (void *)(uintptr_t)folder);
    if (result == CANNOT) skip();
    assert_int_equal(result, 0);
}

/* A file that ends too early stands for a disk that cannot read. */
static void what_cannot_be_read_is_an_error(void **state) {
    const char *folder = fresh_folder(state, "unreadable");
    lsi_spill *spill;
    assert_ok(lsi_spill_create(folder, 4 * PAGE, &spill));
    assert_int_equal(ftruncate(descriptor_in(folder), 2 * PAGE), 0);
    for (int writes = 0; writes < 2; writes++) {
        assert_ok(lsi_spill_await(spill, 0, 2 * PAGE, writes));
        assert_fails(lsi_spill_await(spill, 0, 4 * PAGE, writes), LS_ERR_IO,
                     "cannot read 16384 bytes of a file used as memory: Input/output error");
    }
    lsi_spill_destroy(spill);
}

static void every_allocation_may_fail(void **state) {
    const char *folder = fresh_folder(state, "alloc");
    for (int64_t n = 1;; n++) {
        lsi_spill *spill;
        lsi_mem_fail_at(n);
        ls_status status = lsi_spill_create(folder, 1000, &spill);
        if (!lsi_mem_has_failed()) {
            assert_ok(status);
            lsi_spill_destroy(spill);
            assert_true(n > 2);
            return;
        }
        assert_fails(status, LS_ERR_MEMORY, "failed on request");
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

/* ---- memory ---- */

enum { LARGE = 64 * MIB, SLICE = 4 * MIB };

/* What the system knows of a file's pages (cachestat, Linux 6.5). */
typedef struct cache_state {
    uint64_t n_cached, n_dirty, n_writing, n_evicted, n_evicted_lately;
} cache_state;

static bool get_cache_state(int fd, cache_state *found) {
    struct {
        uint64_t offset, bytes;
    } all = {0, 0};
    const long cachestat = 451;
    return syscall(cachestat, fd, &all, found, 0) == 0;
}

/* Of the mapping of that file, what is in this process. */
static int64_t resident_bytes(const char *folder) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[PATH_MAX];
    bool is_it = false;
    long long kib = -1;
    assert_non_null(file);
    while (kib < 0 && fgets(line, sizeof line, file)) {
        is_it = is_it || strstr(line, folder);
        if (is_it && sscanf(line, "Rss: %lld kB", &kib) != 1) kib = -1;
    }
    fclose(file);
    return kib * 1024;
}

static const char *large_folder;
static int64_t most_resident_bytes;
static uint64_t most_pages_on_their_way;

static ls_status fill_and_look(lsi_spill *spill, int64_t offset, int64_t bytes, int seed) {
    cache_state state = {0};
    (void)get_cache_state(descriptor_in(large_folder), &state);
    uint64_t n = state.n_dirty + state.n_writing; /* of this slice and the one before */
    if (n > most_pages_on_their_way) most_pages_on_their_way = n;
    LSI_TRY(fill(spill, offset, bytes, seed));
    int64_t resident = resident_bytes(large_folder);
    if (resident > most_resident_bytes) most_resident_bytes = resident;
    return LS_OK;
}

static void memory_stays_within_a_few_slices(void **state) {
    lsi_spill *spill;
    large_folder = fresh_folder(state, "large");
    assert_ok(lsi_spill_create(large_folder, LARGE, &spill));
    assert_int_equal(lsi_mem_file_bytes(), LARGE);
    assert_true(descriptor_in(large_folder) >= 0);
    lsi_mem_reset_peaks();
    for (int seed = 0; seed < 2; seed++)
        assert_ok(go_through(spill, LARGE, SLICE, seed, true, fill_and_look));
    assert_int_equal(most_resident_bytes, SLICE);
    assert_int_equal(resident_bytes(large_folder), 0);
    assert_int_equal(lsi_mem_peak(LSI_MEM_STAGING), 2 * SLICE);
    assert_int_equal(lsi_mem_now(LSI_MEM_STAGING), 0);
    assert_in_range(most_pages_on_their_way, 0, 2 * SLICE / PAGE);
    assert_ok(go_through(spill, LARGE, SLICE, 1, false, expect));
    lsi_spill_destroy(spill);
}

static int64_t n_cached_pages(lsi_spill *spill, int64_t offset, int64_t bytes) {
    static unsigned char is_there[LARGE / PAGE];
    int64_t n = 0;
    if (mincore(lsi_spill_at(spill, offset), (size_t)bytes, is_there) != 0) return -1;
    for (int64_t i = 0; i < bytes / PAGE; i++) n += is_there[i] & 1;
    return n;
}

/* A slice that has left memory comes back without being touched; the one behind it does not. */
static void slices_are_read_in_the_background(void **state) {
    enum { AHEAD = 12 * MIB }; /* more than any system reads ahead by itself */
    const char *folder = fresh_folder(state, "ahead");
    lsi_spill *spill;
    assert_ok(lsi_spill_create(folder, 3 * AHEAD, &spill));
    assert_ok(go_through(spill, 3 * AHEAD, AHEAD, 5, true, fill));
    int fd = descriptor_in(folder);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    if (n_cached_pages(spill, 0, 3 * AHEAD) > 0) {
        print_message("skipped: %s is on a file system in memory\n", folder);
        lsi_spill_destroy(spill);
        skip();
    }
    lsi_spill_will_need(spill, AHEAD, AHEAD);
    int64_t n = 0;
    for (int waits = 0; n < AHEAD / PAGE && waits < 10000; waits++) {
        lsi_sleep_ms(1);
        n = n_cached_pages(spill, AHEAD, AHEAD);
    }
    assert_int_equal(n, AHEAD / PAGE);
    assert_in_range(n_cached_pages(spill, 2 * AHEAD, AHEAD), 0, MIB / PAGE);
    assert_ok(expect(spill, 0, 3 * AHEAD, 5));
    lsi_spill_destroy(spill);
}

int main(void) {
#define ROW(test) cmocka_unit_test_teardown(test, nothing_is_left)
    const struct CMUnitTest tests[] = {
        ROW(what_is_written_comes_back),
        ROW(two_do_not_mix),
        ROW(any_order_and_no_slices_are_fine),
        ROW(nothing_stays_in_the_folder),
        ROW(file_systems_without_nameless_files_do),
        ROW(impossible_folders_are_named),
        ROW(read_only_folder_is_named),
        ROW(full_disk_is_an_error_at_once),
        ROW(size_limit_is_an_error),
        ROW(lost_writes_are_errors),
        ROW(what_cannot_be_read_is_an_error),
        ROW(every_allocation_may_fail),
        ROW(memory_stays_within_a_few_slices),
        ROW(slices_are_read_in_the_background),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
