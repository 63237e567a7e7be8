/* Files: complete or absent under every failure that can be provoked: no memory, no room, no
 * rights, a death in the middle; and strict reading. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/file.h"
#include "base/mem.h"
#include "harness/scratch.h"

static int nothing_leaked(void **state) {
    (void)state;
    lsi_mem_fail_at(0);
    return lsi_mem_n_blocks() == 0 ? 0 : -1;
}

/* Entries of a folder; -1 if it cannot be opened. */
static int n_entries(const char *folder) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, NULL);
    for (int i = 0; i < n; i++) free(list[i]);
    if (n > 0) free(list);
    return n < 0 ? -1 : n - 2; /* "." and ".." */
}

/* A fresh folder inside the scratch folder. */
static const char *fresh_folder(void **state, const char *name) {
    const char *folder = in_scratch(state, name);
    assert_ok(lsi_folder_make(folder));
    return folder;
}

/* ---- writing ---- */

static void replace_gives_new_content_and_nothing_else(void **state) {
    const char *folder = fresh_folder(state, "replace");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/a", folder);
    static const char *const contents[] = {"first", "", "third, longer than the others"};
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        assert_ok(lsi_file_replace(path, contents[i], strlen(contents[i])));
        assert_string_equal(text_of(path), contents[i]);
        assert_int_equal(n_entries(folder), 1);
    }
}

static void old_file_stays_until_commit(void **state) {
    const char *path = in_scratch(state, "commit");
    lsi_file_writer *writer;
    put_text(path, "old");
    assert_ok(lsi_file_begin(path, &writer));
    for (int i = 0; i < 1000; i++) assert_ok(lsi_file_write(writer, "0123456789", 10));
    assert_ok(lsi_file_write(writer, NULL, 0));
    assert_string_equal(text_of(path), "old");
    assert_ok(lsi_file_commit(writer));
    assert_int_equal(strlen(text_of(path)), 10000);
}

static void cancel_leaves_old_file_alone(void **state) {
    const char *folder = fresh_folder(state, "cancel");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/a", folder);
    put_text(path, "old");
    lsi_file_writer *writer;
    assert_ok(lsi_file_begin(path, &writer));
    assert_ok(lsi_file_write(writer, "new", 3));
    assert_int_equal(n_entries(folder), 2);
    lsi_file_cancel(writer);
    lsi_file_cancel(NULL);
    assert_int_equal(n_entries(folder), 1);
    assert_string_equal(text_of(path), "old");
}

static int die_while_writing(void *context) {
    lsi_file_writer *writer;
    if (lsi_file_begin(context, &writer) != LS_OK) return 1;
    if (lsi_file_write(writer, "half", 4) != LS_OK) return 2;
    raise(SIGKILL);
    return 3;
}

static void death_while_writing_leaves_old_file(void **state) {
    const char *path = in_scratch(state, "death");
    put_text(path, "old");
    assert_int_equal(run_in_child(die_while_writing, (void *)(uintptr_t)path), -SIGKILL);
    assert_string_equal(text_of(path), "old");
}

static void leftover_of_same_process_number_is_overwritten(void **state) {
    const char *path = in_scratch(state, "leftover");
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    put_text(temporary, "a long leftover of somebody else");
    assert_ok(lsi_file_replace(path, "new", 3));
    assert_string_equal(text_of(path), "new");
    assert_int_equal(access(temporary, F_OK), -1);
}

static void relative_path_is_fine(void **state) {
    char before[PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(*state), 0);
    ls_status status = lsi_file_replace("relative", "x", 1);
    assert_int_equal(chdir(before), 0);
    assert_ok(status);
    assert_string_equal(text_of(in_scratch(state, "relative")), "x");
}

static void missing_folder_is_not_found(void **state) {
    const char *path = in_scratch(state, "none/a");
    assert_fails(lsi_file_replace(path, "x", 1), LS_ERR_NOT_FOUND, "none/a: cannot create");
    assert_fails(lsi_file_replace("", "x", 1), LS_ERR_IO, "");
    static char path_too_long[2 * PATH_MAX];
    memset(path_too_long, 'a', sizeof path_too_long - 1);
    assert_fails(lsi_file_replace(path_too_long, "x", 1), LS_ERR_IO, "aaa");
}

static void folder_in_the_way_is_not_replaced(void **state) {
    const char *folder = fresh_folder(state, "way");
    char inner[PATH_MAX];
    snprintf(inner, sizeof inner, "%s/target", folder);
    assert_ok(lsi_folder_make(inner));
    assert_fails(lsi_file_replace(inner, "x", 1), LS_ERR_IO, "cannot rename");
    assert_int_equal(n_entries(folder), 1);
}

static void every_allocation_may_fail(void **state) {
    const char *folder = fresh_folder(state, "alloc");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/a", folder);
    put_text(path, "old");
    json_t *value = json_pack("{s:i}", "a", 1);
    for (int64_t n = 1;; n++) {
        lsi_mem_fail_at(n);
        ls_status status = lsi_file_replace_json(path, value);
        if (!lsi_mem_has_failed()) {
            assert_ok(status);
            assert_true(n > 3);
            break;
        }
        assert_fails(status, LS_ERR_MEMORY, "failed on request");
        assert_string_equal(text_of(path), "old");
        assert_int_equal(n_entries(folder), 1);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
    json_decref(value);
}

/* ---- no room ---- */

/* In a child that can write only so much: a file of 1 MiB has to fail cleanly. 0 when all is as it
 * should be, else the number of what is not. */
static int check_no_room(const char *folder) {
    char path[PATH_MAX];
    static char data[1 << 20];
    lsi_file_writer *writer;
    snprintf(path, sizeof path, "%s/a", folder);
    if (lsi_file_replace(path, "old", 3) != LS_OK) return 1;
    if (lsi_file_replace(path, data, sizeof data) != LS_ERR_IO) return 2;
    if (!strstr(ls_last_message(), path)) return 3;
    if (!strstr(ls_last_message(), " missing; free some space")) return 4;
    if (strcmp(text_of(path), "old") != 0) return 5;
    if (n_entries(folder) != 1) return 6;
    /* a writer that failed once stays failed, even if there is room again */
    if (lsi_file_begin(path, &writer) != LS_OK) return 7;
    if (lsi_file_write(writer, data, sizeof data) != LS_ERR_IO) return 8;
    if (lsi_file_write(writer, data, 1) != LS_ERR_STATE) return 9;
    if (lsi_file_commit(writer) != LS_ERR_STATE) return 10;
    if (strcmp(text_of(path), "old") != 0) return 11;
    if (n_entries(folder) != 1) return 12;
    return lsi_mem_n_blocks() == 0 ? 0 : 13;
}

static int reach_size_limit(void *context) {
    struct rlimit limit = {200000, 200000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 99;
    signal(SIGXFSZ, SIG_IGN);
    return check_no_room(context);
}

static void size_limit_leaves_old_file(void **state) {
    const char *folder = fresh_folder(state, "limit");
    assert_int_equal(run_in_child(reach_size_limit, (void *)(uintptr_t)folder), 0);
}

enum { CANNOT_MOUNT = 77 };

/* A small file system of its own, seen by this child only. */
static int fill_file_system(void *context) {
    const char *folder = context;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=256k") != 0) {
        return CANNOT_MOUNT;
    }
    return check_no_room(folder);
}

static void full_disk_leaves_old_file(void **state) {
    const char *folder = fresh_folder(state, "full");
    int result = run_in_child(fill_file_system, (void *)(uintptr_t)folder);
    if (result == CANNOT_MOUNT) skip(); /* needs root; size_limit_leaves_old_file does not */
    assert_int_equal(result, 0);
}

/* ---- reading ---- */

static void read_gives_whole_file_and_zero_byte(void **state) {
    static const size_t sizes[] = {0, 1, 2, 4095, 4096, 4097, 100003};
    const char *path = in_scratch(state, "read");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *expected = malloc(sizes[i] + 1), *data;
        size_t bytes;
        for (size_t j = 0; j < sizes[i]; j++) expected[j] = (char)(j * 31);
        assert_ok(lsi_file_replace(path, expected, sizes[i]));
        assert_ok(lsi_file_read(path, sizes[i], &data, &bytes));
        assert_int_equal(bytes, sizes[i]);
        if (bytes > 0) assert_memory_equal(data, expected, bytes);
        assert_int_equal(data[bytes], 0);
        lsi_free(data);
        if (sizes[i] > 0) {
            assert_fails(lsi_file_read(path, sizes[i] - 1, &data, &bytes), LS_ERR_FORMAT,
                         "larger than");
        }
        assert_ok(lsi_file_read(path, SIZE_MAX, &data, &bytes));
        lsi_free(data);
        free(expected);
    }
}

/* The system's own files say that they have 0 bytes; pipes say nothing. */
static void read_does_not_trust_claimed_size(void **state) {
    (void)state;
    char *data;
    size_t bytes;
    assert_ok(lsi_file_read("/proc/self/status", 1 << 20, &data, &bytes));
    assert_non_null(strstr(data, "VmRSS:"));
    lsi_free(data);
    assert_fails(lsi_file_read("/proc/self/status", 10, &data, &bytes), LS_ERR_FORMAT, "10 bytes");
    assert_fails(lsi_file_read("/dev/zero", 100000, &data, &bytes), LS_ERR_FORMAT, "100000");
}

static void unreadable_paths_are_answered(void **state) {
    char *data;
    size_t bytes;
    const void *mapped;
    json_t *value;
    const char *none = in_scratch(state, "none");
    assert_fails(lsi_file_read(none, 10, &data, &bytes), LS_ERR_NOT_FOUND, "none: cannot open");
    assert_fails(lsi_file_map(none, &mapped, &bytes), LS_ERR_NOT_FOUND, "none: cannot open");
    assert_fails(lsi_file_read_json(none, 10, &value), LS_ERR_NOT_FOUND, "none: cannot open");
    assert_fails(lsi_file_read(*state, 10, &data, &bytes), LS_ERR_IO, "Is a directory");
    assert_fails(lsi_file_map(*state, &mapped, &bytes), LS_ERR_IO, "regular file");
}

static void read_survives_every_failed_allocation(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        char *data;
        size_t bytes;
        lsi_mem_fail_at(n);
        ls_status status = lsi_file_read("/proc/self/status", 1 << 20, &data, &bytes);
        if (!lsi_mem_has_failed()) {
            assert_ok(status);
            lsi_free(data);
            assert_true(n > 2);
            return;
        }
        assert_fails(status, LS_ERR_MEMORY, "reading /proc/self/status");
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void map_shows_content(void **state) {
    const char *path = in_scratch(state, "map");
    const void *data;
    size_t bytes;
    put_text(path, "mapped");
    assert_ok(lsi_file_map(path, &data, &bytes));
    assert_int_equal(bytes, 6);
    assert_memory_equal(data, "mapped", 6);
    lsi_file_unmap(data, bytes);
    put_text(path, "");
    assert_ok(lsi_file_map(path, &data, &bytes));
    assert_int_equal(bytes, 0);
    assert_null(data);
    lsi_file_unmap(data, bytes);
}

/* ---- JSON ---- */

static void json_comes_back_as_written(void **state) {
    const char *path = in_scratch(state, "json");
    json_t *value = json_pack("{s:I, s:f, s:[n, b, s]}", "large", (json_int_t)INT64_MAX, "tenth",
                              0.1, "list", 1, "ä\"\n");
    json_t *back;
    assert_ok(lsi_file_replace_json(path, value));
    assert_ok(lsi_file_read_json(path, 1000, &back));
    assert_true(json_equal(value, back));
    const char *text = text_of(path);
    assert_int_equal(text[strlen(text) - 1], '\n');
    json_decref(value);
    json_decref(back);
    assert_fails(lsi_file_replace_json(path, NULL), LS_ERR_MEMORY, "could not be made");
}

static void wrong_json_is_named_with_line_and_column(void **state) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", ":1:0: "},
        {"{\"a\": 1,\n \"b\": }", ":2:7: "},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"{\"a\": 1} x", "end of file expected"},
        {"[1, 2", ":1:5: "},
        {"{\"a\": \"\xff\"}", "decode byte"},
        {"{\"a\": 99999999999999999999}", "too big"},
        {"{\"a\": NaN}", "invalid token"},
    };
    const char *path = in_scratch(state, "wrong");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *value;
        put_text(path, rows[i].text);
        assert_fails(lsi_file_read_json(path, 1000, &value), LS_ERR_FORMAT, rows[i].message);
        assert_non_null(strstr(ls_last_message(), path));
    }
}

static void deeply_nested_json_is_refused(void **state) {
    static char text[200001];
    const char *path = in_scratch(state, "deep");
    json_t *value;
    memset(text, '[', sizeof text - 1);
    put_text(path, text);
    assert_fails(lsi_file_read_json(path, sizeof text, &value), LS_ERR_FORMAT, "depth");
}

/* ---- folders ---- */

static void folder_is_made_with_its_parents(void **state) {
    static const char *const names[] = {"f", "f/a/b/c", "f/a/b/c", "f/d/", "f//e///g//"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct stat info;
        assert_ok(lsi_folder_make(in_scratch(state, names[i])));
        assert_int_equal(stat(in_scratch(state, names[i]), &info), 0);
        assert_true(S_ISDIR(info.st_mode));
    }
    assert_ok(lsi_folder_make("/tmp"));
}

static void impossible_folder_is_answered(void **state) {
    put_text(in_scratch(state, "file"), "x");
    assert_fails(lsi_folder_make(""), LS_ERR_ARGUMENT, "empty");
    assert_fails(lsi_folder_make(in_scratch(state, "file")), LS_ERR_IO, "not a folder");
    assert_fails(lsi_folder_make(in_scratch(state, "file/a")), LS_ERR_IO, "not a folder");
    assert_fails(lsi_folder_make("/proc/none/such"), LS_ERR_IO, "/proc/none: cannot make");
    lsi_mem_fail_at(1);
    assert_fails(lsi_folder_make("a"), LS_ERR_MEMORY, "");
}

/* Without root's rights; a root that runs the test gives them up first. */
static int make_in_read_only_folder(void *context) {
    const char *folder = context;
    if (chmod(folder, 0555) != 0) return 99;
    if (getuid() == 0 && setuid(65534) != 0) return CANNOT_MOUNT;
    char inner[PATH_MAX];
    snprintf(inner, sizeof inner, "%s/a", folder);
    if (lsi_folder_make(folder) != LS_ERR_IO) return 1;
    if (!strstr(ls_last_message(), "cannot be written: Permission denied")) return 2;
    if (lsi_folder_make(inner) != LS_ERR_IO) return 3;
    if (lsi_file_replace(inner, "x", 1) != LS_ERR_IO) return 4;
    return 0;
}

static void read_only_folder_is_named(void **state) {
    const char *folder = fresh_folder(state, "closed");
    assert_int_equal(chmod(*state, 0755), 0);
    int result = run_in_child(make_in_read_only_folder, (void *)(uintptr_t)folder);
    if (result == CANNOT_MOUNT) skip();
    assert_int_equal(result, 0);
}

int main(void) {
#define ROW(test) cmocka_unit_test_teardown(test, nothing_leaked)
    const struct CMUnitTest tests[] = {
        ROW(replace_gives_new_content_and_nothing_else),
        ROW(old_file_stays_until_commit),
        ROW(cancel_leaves_old_file_alone),
        ROW(death_while_writing_leaves_old_file),
        ROW(leftover_of_same_process_number_is_overwritten),
        ROW(relative_path_is_fine),
        ROW(missing_folder_is_not_found),
        ROW(folder_in_the_way_is_not_replaced),
        ROW(every_allocation_may_fail),
        ROW(size_limit_leaves_old_file),
        ROW(full_disk_leaves_old_file),
        ROW(read_gives_whole_file_and_zero_byte),
        ROW(read_does_not_trust_claimed_size),
        ROW(unreadable_paths_are_answered),
        ROW(read_survives_every_failed_allocation),
        ROW(map_shows_content),
        ROW(json_comes_back_as_written),
        ROW(wrong_json_is_named_with_line_and_column),
        ROW(deeply_nested_json_is_refused),
        ROW(folder_is_made_with_its_parents),
        ROW(impossible_folder_is_answered),
        ROW(read_only_folder_is_named),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
