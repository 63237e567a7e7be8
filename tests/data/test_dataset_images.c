/* Folders of IDX images: what is read from them, plain and compressed, and what is refused. The
 * real Fashion-MNIST is read where Debian's dataset-fashion-mnist is installed. */
#include <math.h>
#include <zlib.h>

#include "checkpoint/files.h"

#include "base/mem.h"
#include "data/data.h"
#include "data/idx_files.h"

static const char train_images[] = "train-images-idx3-ubyte",
                  train_labels[] = "train-labels-idx1-ubyte",
                  test_images[] = "t10k-images-idx3-ubyte",
                  test_labels[] = "t10k-labels-idx1-ubyte";

/* ---- writing sets ---- */

/* Pixel i of image k is 10 k + i. */
static idx_file images_file(uint32_t n, uint32_t height, uint32_t width) {
    idx_file b = idx_images_header(n, height, width);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < height * width; i++) b.bytes[b.n++] = (unsigned char)(10 * k + i);
    return b;
}

/* Label k is k mod 3. */
static idx_file labels_file(uint32_t n) {
    idx_file b = idx_labels_header(n);
    for (uint32_t k = 0; k < n; k++) b.bytes[b.n++] = (unsigned char)(k % 3);
    return b;
}

static void write_plain(const char *name, const idx_file *b) {
    write_whole(path_of(name), b->bytes, b->n);
}

static void write_gz(const char *name, const idx_file *b) {
    char gz[64];
    snprintf(gz, sizeof gz, "%s.gz", name);
    gzFile file = gzopen(path_of(gz), "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, b->bytes, (unsigned)b->n), b->n);
    assert_int_equal(gzclose(file), Z_OK);
}

/* 5 training images and 4 test images of 2 x 3 pixels. */
static void write_set(void (*write)(const char *name, const idx_file *b)) {
    idx_file files[] = {images_file(5, 2, 3), labels_file(5), images_file(4, 2, 3), labels_file(4)};
    write(train_images, &files[0]);
    write(train_labels, &files[1]);
    write(test_images, &files[2]);
    write(test_labels, &files[3]);
}

static ls_status open_folder(const char *path, lsi_dataset **dataset) {
    const lsi_dataset_opts opts = {.path = path, .seq_len = 1, .val_fraction = 0.05};
    *dataset = NULL;
    return lsi_dataset_open(&opts, dataset);
}

static void assert_leaves_nothing(int64_t n_blocks) {
    assert_int_equal(lsi_mem_n_blocks(), n_blocks);
}

/* ---- reading ---- */

static void assert_is_the_set(void) {
    lsi_dataset *dataset;
    float pixels[6];
    int32_t label = -1;
    assert_ok(open_folder((const char *)scratch, &dataset));
    lsi_sample_shape shape = lsi_dataset_shape(dataset);
    assert_int_equal(shape.n_time, 1);
    assert_int_equal(shape.height, 2);
    assert_int_equal(shape.width, 3);
    assert_int_equal(shape.n_channels, 1);
    assert_int_equal(shape.n_classes, 3);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), 5);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_VALIDATION), 4);
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), 5);
    assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, 4, pixels, &label));
    assert_int_equal(label, 1);
    for (int i = 0; i < 6; i++) assert_true(pixels[i] == (float)(40 + i) / 255.0f);
    assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_VALIDATION, 0, pixels, &label));
    assert_true(pixels[0] == 0.0f);
    assert_fails(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, 5, pixels, &label), LS_ERR_ARGUMENT,
                 "sample 5 of the training split, which has 5");
    /* 2, 2 and 1 of 5 */
    double entropy = -0.8 * log(0.4) - 0.2 * log(0.2);
    assert_true(fabs(lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_TRAIN) - entropy) < 1e-12);
    lsi_dataset_close(dataset);
}

static void a_set_is_read_as_it_was_written(void **state) {
    (void)state;
    int64_t n_blocks = lsi_mem_n_blocks();
    bool is_text = true;
    write_set(write_gz);
    assert_ok(lsi_dataset_is_text((const char *)scratch, &is_text));
    assert_false(is_text);
    assert_is_the_set();
    /* a plain file goes before a compressed one, which is not even looked at */
    put_text(path_of("train-images-idx3-ubyte.gz"), "nonsense");
    write_set(write_plain);
    assert_is_the_set();
    assert_leaves_nothing(n_blocks);
}

static void no_test_images_no_validation(void **state) {
    (void)state;
    lsi_dataset *dataset;
    write_set(write_plain);
    unlink(path_of(test_images));
    unlink(path_of(test_labels));
    assert_ok(open_folder((const char *)scratch, &dataset));
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_VALIDATION), 0);
    lsi_dataset_close(dataset);
}

static void a_second_folder_is_refused(void **state) {
    (void)state;
    lsi_dataset *dataset = NULL;
    write_set(write_plain);
    const lsi_dataset_opts opts = {.path = scratch, .val_path = scratch, .seq_len = 1};
    assert_fails(lsi_dataset_open(&opts, &dataset), LS_ERR_ARGUMENT, "has its validation split");
    assert_null(dataset);
}

/* ---- what is refused ---- */

/* A change to a good set: `file` gets the number at byte `at` (-1: none), then the length (-1: as
 * it is; longer: zeros). */
typedef struct damage {
    const char *file;
    int at;
    uint32_t number;
    int length;
    ls_status status;
    const char *message;
} damage;

static const damage damages[] = {
    {"train-images-idx3-ubyte", 0, 0x801, -1, LS_ERR_FORMAT, "begins with 0x00000801, expected"},
    {"train-labels-idx1-ubyte", 0, 0x803, -1, LS_ERR_FORMAT, "begins with 0x00000803, expected"},
    {"train-images-idx3-ubyte", -1, 0, 0, LS_ERR_FORMAT, "0 bytes, expected a header of 16"},
    {"train-images-idx3-ubyte", -1, 0, 15, LS_ERR_FORMAT, "15 bytes, expected a header of 16"},
    {"t10k-labels-idx1-ubyte", -1, 0, 7, LS_ERR_FORMAT, "7 bytes, expected a header of 8"},
    {"train-images-idx3-ubyte", -1, 0, 45, LS_ERR_FORMAT, "30 bytes, but 29 follow it"},
    {"train-images-idx3-ubyte", -1, 0, 47, LS_ERR_FORMAT, "30 bytes, but more follow it"},
    {"t10k-labels-idx1-ubyte", -1, 0, 8, LS_ERR_FORMAT, "4 bytes, but 0 follow it"},
    {"train-images-idx3-ubyte", 4, 0, -1, LS_ERR_FORMAT, "dim 0 of its header is 0"},
    {"train-images-idx3-ubyte", 4, 0xffffffff, -1, LS_ERR_FORMAT, "dim 0 of its header is 42949"},
    {"train-images-idx3-ubyte", 8, 0, -1, LS_ERR_FORMAT, "dim 1 of its header is 0"},
    {"train-images-idx3-ubyte", 12, 32769, -1, LS_ERR_FORMAT, "dim 2 of its header is 32769"},
    {"train-images-idx3-ubyte", 4, 0x7fffffff, -1, LS_ERR_FORMAT, "the whole file is too short"},
    {"train-images-idx3-ubyte", 4, 6, -1, LS_ERR_FORMAT, "36 bytes, but 30 follow it"},
    {"train-images-idx3-ubyte", 4, 4, -1, LS_ERR_FORMAT, "24 bytes, but more follow it"},
    {"train-labels-idx1-ubyte", 4, 6, 14, LS_ERR_FORMAT, "has 6 labels, but"},
    {"t10k-images-idx3-ubyte", 8, 3, 52, LS_ERR_FORMAT, "images of 3 x 3 pixels, those of the"},
};
enum { N_DAMAGES = sizeof damages / sizeof damages[0] };

static void apply(const damage *d) {
    size_t n;
    char *bytes = read_whole(path_of(d->file), &n);
    idx_file b = {.n = 0};
    memcpy(b.bytes, bytes, n);
    free(bytes);
    b.n = (size_t)d->at;
    if (d->at >= 0) idx_put(&b, d->number);
    b.n = d->length >= 0 ? (size_t)d->length : n;
    write_plain(d->file, &b);
}

static void damaged_sets_are_refused(void **state) {
    (void)state;
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int i = 0; i < N_DAMAGES; i++) {
        lsi_dataset *dataset;
        write_set(write_plain);
        apply(&damages[i]);
        ls_status status = open_folder((const char *)scratch, &dataset);
        assert_fails(status, damages[i].status, damages[i].message);
        assert_non_null(strstr(ls_last_message(), damages[i].file));
        assert_null(dataset);
        assert_leaves_nothing(n_blocks);
    }
}

static void missing_files_are_named(void **state) {
    (void)state;
    const char *const all[] = {train_images, train_labels, test_images, test_labels};
    for (int i = 0; i < 4; i++) {
        lsi_dataset *dataset;
        write_set(write_plain);
        unlink(path_of(all[i]));
        assert_fails(open_folder((const char *)scratch, &dataset), LS_ERR_NOT_FOUND, all[i]);
    }
}

static void other_things_under_the_name_are_refused(void **state) {
    (void)state;
    lsi_dataset *dataset;
    write_set(write_plain);
    unlink(path_of(train_labels));
    assert_int_equal(mkfifo(path_of(train_labels), 0600), 0);
    assert_fails(open_folder((const char *)scratch, &dataset), LS_ERR_IO, "no regular file");
    unlink(path_of(train_labels));
    assert_int_equal(mkdir(path_of(train_labels), 0700), 0);
    assert_fails(open_folder((const char *)scratch, &dataset), LS_ERR_IO, "is a folder");
}

/* Every length of a compressed file, and every byte of it turned over: read, or refused. */
static void no_damage_to_compressed_files_does_harm(void **state) {
    (void)state;
    int64_t n_blocks = lsi_mem_n_blocks();
    size_t n;
    write_set(write_gz);
    const char *path = path_of("train-images-idx3-ubyte.gz");
    char *whole = read_whole(path, &n);
    for (size_t i = 0; i < 2 * n; i++) {
        lsi_dataset *dataset;
        if (i >= n) whole[i - n] = (char)~whole[i - n];
        write_whole(path_of("train-images-idx3-ubyte.gz"), whole, i < n ? i : n);
        if (i >= n) whole[i - n] = (char)~whole[i - n];
        ls_status status = open_folder((const char *)scratch, &dataset);
        if (status == LS_OK)
            lsi_dataset_close(dataset);
        else
            assert_int_equal(status, LS_ERR_FORMAT);
        if (i < n) assert_int_not_equal(status, LS_OK);
        assert_leaves_nothing(n_blocks);
    }
    free(whole);
}

static void every_failed_allocation_is_reported(void **state) {
    (void)state;
    write_set(write_plain);
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int64_t n = 1;; n++) {
        lsi_dataset *dataset;
        lsi_mem_fail_at(n);
        ls_status status = open_folder((const char *)scratch, &dataset);
        bool has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        if (!has_failed) {
            assert_ok(status);
            assert_true(n > 5);
            lsi_dataset_close(dataset);
            break;
        }
        assert_int_equal(status, LS_ERR_MEMORY);
        assert_leaves_nothing(n_blocks);
    }
}

/* ---- the real thing ---- */

static void fashion_mnist_is_read(void **state) {
    (void)state;
    static const char folder[] = "/usr/share/datasets/fashion-mnist";
    lsi_dataset *dataset;
    float pixels[784];
    int32_t label;
    double sum = 0.0;
    if (access(folder, R_OK) != 0) {
        print_message("skipped: no %s (Debian: dataset-fashion-mnist)\n", folder);
        skip();
    }
    assert_ok(open_folder(folder, &dataset));
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), 60000);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_VALIDATION), 10000);
    assert_int_equal(lsi_dataset_shape(dataset).n_classes, 10);
    /* 6000 images of each of 10 classes; the mean pixel is known to be 0.2860 */
    assert_true(fabs(lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_TRAIN) - log(10.0)) < 1e-12);
    for (int64_t i = 0; i < 60000; i++) {
        assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, i, pixels, &label));
        for (int k = 0; k < 784; k++) sum += (double)pixels[k];
    }
    assert_true(fabs(sum / (60000.0 * 784.0) - 0.2860) < 5e-5);
    lsi_dataset_close(dataset);
}

#define ROW(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        ROW(a_set_is_read_as_it_was_written),
        ROW(no_test_images_no_validation),
        ROW(a_second_folder_is_refused),
        ROW(damaged_sets_are_refused),
        ROW(missing_files_are_named),
        ROW(other_things_under_the_name_are_refused),
        ROW(no_damage_to_compressed_files_does_harm),
        ROW(every_failed_allocation_is_reported),
        cmocka_unit_test(fashion_mnist_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
