/* Safetensors files written and read back: to the bit, in name order, whole or not at all. */
#include "checkpoint/safetensors.h"

#include <signal.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "checkpoint/files.h"

static const float SIX_FLOATS[] = {1, -2, 3.5f, -0.0f, 1e-45f, 3e38f};
static const int64_t ONE_INTEGER[] = {-5};

/* A tensor of each kind; in an order that is not that of the names. */
static const lsi_st_tensor TENSORS[] = {
    {.name = "w", .dtype = LS_DTYPE_F32, .n_dims = 2, .dims = {2, 3}, SIX_FLOATS, 24},
    {.name = "bytes", .dtype = LS_DTYPE_U8, .n_dims = 1, .dims = {5}, "\0\1\2\377\n", 5},
    {.name = "scalar", .dtype = LS_DTYPE_I64, .n_dims = 0, .data = ONE_INTEGER, .bytes = 8},
    {.name = "empty", .dtype = LS_DTYPE_F64, .n_dims = 3, .dims = {4, 0, 7}},
    {.name = "ümlaut \"quoted\" \\ \n",
     .dtype = LS_DTYPE_I8,
     .n_dims = 8,
     .dims = {1, 1, 1, 3, 1, 1, 1, 1},
     "abc",
     3},
    {.name = "", .dtype = LS_DTYPE_BF16, .n_dims = 1, .dims = {1}, "\x80\x3f", 2},
    {.name = "W", .dtype = LS_DTYPE_F16, .n_dims = 1, .dims = {2}, "\0\x3c\0\x3c", 4},
    {.name = "i", .dtype = LS_DTYPE_I32, .n_dims = 1, .dims = {1}, "\1\0\0\0", 4},
};
enum { N_TENSORS = sizeof TENSORS / sizeof *TENSORS };

static const char *const METADATA[] = {"format", "pt", "note", "two words", NULL};

static void assert_same_tensor(const lsi_st_tensor *found, const lsi_st_tensor *expected) {
    assert_non_null(found);
    assert_string_equal(found->name, expected->name);
    assert_int_equal(found->dtype, expected->dtype);
    assert_int_equal(found->n_dims, expected->n_dims);
    for (int i = 0; i < found->n_dims; i++) assert_int_equal(found->dims[i], expected->dims[i]);
    assert_int_equal(found->bytes, expected->bytes);
    if (found->bytes > 0) assert_memory_equal(found->data, expected->data, found->bytes);
}

static void written_tensors_come_back_to_the_bit(void **state) {
    (void)state;
    const char *path = path_of("model.safetensors");
    lsi_st_file *file;
    assert_ok(lsi_st_write(path, TENSORS, N_TENSORS, METADATA));
    assert_ok(lsi_st_open(path, &file));
    assert_int_equal(lsi_st_n_tensors(file), N_TENSORS);
    for (int i = 0; i < N_TENSORS; i++)
        assert_same_tensor(lsi_st_find(file, TENSORS[i].name), &TENSORS[i]);
    for (int i = 1; i < N_TENSORS; i++)
        assert_true(strcmp(lsi_st_tensor_at(file, i - 1)->name, lsi_st_tensor_at(file, i)->name) <
                    0);
    assert_null(lsi_st_find(file, "nothing"));
    assert_null(lsi_st_find(file, "__metadata__"));
    lsi_st_close(file);
}

static void layout_is_as_the_format_says(void **state) {
    (void)state;
    const lsi_st_tensor tensors[] = {
        {.name = "b", .dtype = LS_DTYPE_U8, .n_dims = 1, .dims = {3}, "xyz", 3},
        {.name = "a", .dtype = LS_DTYPE_U8, .n_dims = 0, .dims = {0}, "w", 1},
    };
    static const char *const metadata[] = {"format", "pt", NULL};
    static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                               "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}";
    size_t json_bytes = sizeof json - 1, header_bytes = (json_bytes + 7) / 8 * 8, found_bytes;
    assert_true(json_bytes < header_bytes && header_bytes < 256);
    char expected[300] = {(char)header_bytes};
    snprintf(expected + 8, sizeof expected - 8, "%-*swxyz", (int)header_bytes, json);

    assert_ok(lsi_st_write(path_of("layout"), tensors, 2, metadata));
    char *found = read_whole(path_of("layout"), &found_bytes);
    assert_int_equal(found_bytes, 8 + header_bytes + 4);
    assert_memory_equal(found, expected, found_bytes);
    free(found);
}

static void order_of_tensors_changes_no_byte(void **state) {
    (void)state;
    lsi_st_tensor reversed[N_TENSORS];
    for (int i = 0; i < N_TENSORS; i++) reversed[i] = TENSORS[N_TENSORS - 1 - i];
    assert_ok(lsi_st_write(path_of("one"), TENSORS, N_TENSORS, METADATA));
    assert_ok(lsi_st_write(path_of("two"), reversed, N_TENSORS, METADATA));
    size_t bytes[2];
    char *one = read_whole(path_of("one"), &bytes[0]);
    char *two = read_whole(path_of("two"), &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(one, two, bytes[0]);
    free(one);
    free(two);
}

static void file_without_tensors_is_a_file(void **state) {
    (void)state;
    static const char *const none[] = {NULL};
    const char *const *metadata[] = {NULL, none, METADATA};
    for (int i = 0; i < 3; i++) {
        lsi_st_file *file;
        assert_ok(lsi_st_write(path_of("none"), NULL, 0, metadata[i]));
        assert_ok(lsi_st_open(path_of("none"), &file));
        assert_int_equal(lsi_st_n_tensors(file), 0);
        assert_null(lsi_st_find(file, "w"));
        lsi_st_close(file);
    }
}

static void many_tensors_are_all_found(void **state) {
    (void)state;
    enum { N = 1009 };
    static lsi_st_tensor tensors[N];
    static char names[N][32];
    static int32_t values[N];
    for (int i = 0; i < N; i++) {
        values[i] = i;
        snprintf(names[i], sizeof names[i], "layer.%d.weight", i * 7919 % N);
        tensors[i] = (lsi_st_tensor){.name = names[i],
                                     .dtype = LS_DTYPE_I32,
                                     .n_dims = 1,
                                     .dims = {1},
                                     .data = &values[i],
                                     .bytes = 4};
    }
    lsi_st_file *file;
    assert_ok(lsi_st_write(path_of("many"), tensors, N, NULL));
    assert_ok(lsi_st_open(path_of("many"), &file));
    for (int i = 0; i < N; i++) assert_same_tensor(lsi_st_find(file, names[i]), &tensors[i]);
    lsi_st_close(file);
}

/* ---- what the writer refuses ---- */

static void bad_tensors_are_refused(void **state) {
    (void)state;
    static const struct {
        lsi_st_tensor tensor;
        const char *message;
    } rows[] = {
        {{.name = NULL, .dtype = LS_DTYPE_U8, .data = "a", .bytes = 1}, "named NULL"},
        {{.name = "__metadata__", .dtype = LS_DTYPE_U8, .data = "a", .bytes = 1}, "__metadata__"},
        {{.name = "t", .dtype = (ls_dtype)0, .data = "a", .bytes = 1}, "unknown dtype 0"},
        {{.name = "t", .dtype = (ls_dtype)99, .data = "a", .bytes = 1}, "unknown dtype 99"},
        {{.name = "t", .dtype = LS_DTYPE_U8, .n_dims = 9, .data = "a", .bytes = 1}, "9 dims"},
        {{.name = "t", .dtype = LS_DTYPE_U8, .n_dims = -1, .data = "a", .bytes = 1}, "-1 dims"},
        {{.name = "t", .dtype = LS_DTYPE_U8, .n_dims = 1, .dims = {-1}}, "negative"},
        {{.name = "t", .dtype = LS_DTYPE_F32, .n_dims = 2, .dims = {INT64_MAX, 2}}, "too large"},
        {{.name = "t", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {2}, "abcd", 4},
         "needs 8 bytes, 4 handed in"},
        {{.name = "t", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {2}, NULL, 8}, "has no data"},
        {{.name = "t", .dtype = LS_DTYPE_F16, .data = "ab", .bytes = 2, .data_dtype = LS_DTYPE_F32},
         "cannot write F32 as F16"},
        {{.name = "\xff", .dtype = LS_DTYPE_U8, .n_dims = 0, .data = "a", .bytes = 1}, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_fails(lsi_st_write(path_of("bad"), &rows[i].tensor, 1, NULL), LS_ERR_ARGUMENT,
                     rows[i].message);
    const lsi_st_tensor twins[] = {TENSORS[0], TENSORS[1], TENSORS[0]};
    assert_fails(lsi_st_write(path_of("bad"), twins, 3, NULL), LS_ERR_ARGUMENT,
                 "two tensors named 'w'");
    assert_fails(lsi_st_write(path_of("bad"), twins, -1, NULL), LS_ERR_ARGUMENT, "-1 tensors");
    static const char *const half[] = {"format", NULL};
    static const char *const twice[] = {"a", "1", "a", "2", NULL};
    static const char *const not_utf8[] = {"a", "\xc3", NULL};
    assert_fails(lsi_st_write(path_of("bad"), NULL, 0, half), LS_ERR_ARGUMENT, "no value");
    assert_fails(lsi_st_write(path_of("bad"), NULL, 0, twice), LS_ERR_ARGUMENT, "two values");
    assert_fails(lsi_st_write(path_of("bad"), NULL, 0, not_utf8), LS_ERR_ARGUMENT, "UTF-8");
    assert_int_equal(n_files_in(scratch), 0);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- faults ---- */

static void missing_places_are_named(void **state) {
    (void)state;
    lsi_st_file *file = NULL;
    assert_fails(lsi_st_open(path_of("absent"), &file), LS_ERR_NOT_FOUND, "absent");
    assert_fails(lsi_st_open(scratch, &file), LS_ERR_IO, scratch);
    assert_fails(lsi_st_write(path_of("no/such/folder"), TENSORS, N_TENSORS, NULL),
                 LS_ERR_NOT_FOUND, "no/such/folder");
    assert_null(file);
    lsi_st_close(NULL);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void every_failed_allocation_is_answered(void **state) {
    (void)state;
    const char *path = path_of("alloc");
    int64_t n = 0;
    ls_status status;
    do {
        lsi_mem_fail_at(++n);
        status = lsi_st_write(path, TENSORS, N_TENSORS, METADATA);
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(n_files_in(scratch), has_failed ? 0 : 1);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    } while (status != LS_OK);
    assert_true(n > 3);
    n = 0;
    do {
        lsi_st_file *file = NULL;
        lsi_mem_fail_at(++n);
        status = lsi_st_open(path, &file);
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(file == NULL, has_failed);
        lsi_st_close(file);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    } while (status != LS_OK);
    assert_true(n > 3);
}

/* A limit on the size of files stands for a disk that is full at that byte. */
static void full_disk_leaves_the_old_file(void **state) {
    (void)state;
    const char *path = path_of("full");
    assert_ok(lsi_st_write(path, TENSORS, 2, NULL));
    size_t old_bytes, found_bytes;
    char *old = read_whole(path, &old_bytes);
    assert_ok(lsi_st_write(path_of("size"), TENSORS, N_TENSORS, METADATA));
    free(read_whole(path_of("size"), &found_bytes));
    size_t new_bytes = found_bytes;

    struct rlimit usual, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t room = 0; room <= new_bytes; room++) {
        limit = usual;
        limit.rlim_cur = room;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        ls_status status = lsi_st_write(path, TENSORS, N_TENSORS, METADATA);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
        assert_int_equal(status, room < new_bytes ? LS_ERR_IO : LS_OK);
        assert_int_equal(n_files_in(scratch), 2);
        char *found = read_whole(path, &found_bytes);
        assert_int_equal(found_bytes, room < new_bytes ? old_bytes : new_bytes);
        if (room < new_bytes) assert_memory_equal(found, old, old_bytes);
        free(found);
    }
    signal(SIGXFSZ, handler);
    free(old);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- files that others made ---- */

static void real_files_are_read(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int n_tensors;
        const char *tensor;
        int n_dims;
        int64_t dims[3];
    } rows[] = {
        {"silero_vad_16k.safetensors", 15, "stft_conv.weight", 3, {258, 1, 256}},
        {"stories260K-hf/model.safetensors", 47, "model.embed_tokens.weight", 2, {512, 64}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[PATH_MAX];
        if (!find_data(rows[i].name, path)) skip();
        lsi_st_file *file;
        assert_ok(lsi_st_open(path, &file));
        assert_int_equal(lsi_st_n_tensors(file), rows[i].n_tensors);
        for (int t = 0; t < rows[i].n_tensors; t++)
            assert_int_equal(lsi_st_tensor_at(file, t)->dtype, LS_DTYPE_F32);
        const lsi_st_tensor *tensor = lsi_st_find(file, rows[i].tensor);
        assert_non_null(tensor);
        assert_int_equal(tensor->n_dims, rows[i].n_dims);
        for (int d = 0; d < tensor->n_dims; d++) assert_int_equal(tensor->dims[d], rows[i].dims[d]);

        /* Written again and read again, every tensor is the same. */
        lsi_st_file *again;
        assert_ok(
            lsi_st_write(path_of("again"), lsi_st_tensor_at(file, 0), rows[i].n_tensors, NULL));
        assert_ok(lsi_st_open(path_of("again"), &again));
        for (int t = 0; t < rows[i].n_tensors; t++)
            assert_same_tensor(lsi_st_tensor_at(again, t), lsi_st_tensor_at(file, t));
        lsi_st_close(again);
        lsi_st_close(file);
    }
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(written_tensors_come_back_to_the_bit),
        IN_SCRATCH(layout_is_as_the_format_says),
        IN_SCRATCH(order_of_tensors_changes_no_byte),
        IN_SCRATCH(file_without_tensors_is_a_file),
        IN_SCRATCH(many_tensors_are_all_found),
        IN_SCRATCH(bad_tensors_are_refused),
        IN_SCRATCH(missing_places_are_named),
        IN_SCRATCH(every_failed_allocation_is_answered),
        IN_SCRATCH(full_disk_leaves_the_old_file),
        IN_SCRATCH(real_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
