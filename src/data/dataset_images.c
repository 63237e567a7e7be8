/* Folders of images in the IDX format of MNIST: LeCun, Cortes, Burges, "The MNIST database of
 * handwritten digits", 1998.
 *
 *     train-images-idx3-ubyte  train-labels-idx1-ubyte      training split
 *     t10k-images-idx3-ubyte   t10k-labels-idx1-ubyte       validation split; may be missing
 *
 * each as it is or, under a name ending in .gz, compressed. A file is a header of big-endian 32-bit
 * numbers and then bytes:
 *
 *     images   0x00000803, n, rows, columns; n rows columns pixels, 0 (white) to 255
 *     labels   0x00000801, n; n classes
 *
 * All is read when the folder is opened, and pixels stay in memory as bytes. A file must be exactly
 * as long as its header says, and since deflate shrinks nothing to less than 1/1032 of its size, a
 * header that asks for more than that of the file is refused before any memory is taken. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "data/dataset_impl.h"

enum { MAX_DIMS = 3, MAX_SIDE = 1 << 15, N_CLASSES = 256, PATH_BYTES = 4096 };

typedef struct images {
    struct {
        uint8_t *pixels, *labels; /* NULL: the split is missing */
    } splits[LSI_N_SPLITS];
    int64_t n_pixels; /* of an image */
} images;

/* The two kinds of file. */
static const struct idx_kind {
    const char *what;
    uint32_t magic;
    int n_dims;
} kinds[] = {{"images", 0x803, 3}, {"labels", 0x801, 1}};
enum { IMAGES, LABELS, N_KINDS };

static const char *const names[LSI_N_SPLITS][N_KINDS] = {
    {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
    {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}};

/* ---- finding files ---- */

/* "FOLDER/name" or "FOLDER/name.gz", whichever is there; false: neither, path is the second. */
static bool find_file(const char *folder, const char *name, char path[PATH_BYTES]) {
    static const char *const endings[] = {"", ".gz"};
    struct stat info;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path, PATH_BYTES, "%s/%s%s", folder, name, endings[i]);
        if (n > 0 && n < PATH_BYTES && stat(path, &info) == 0) return true;
    }
    return false;
}

static bool matches(const lsi_data_path *found) {
    char path[PATH_BYTES];
    if (!found->is_folder) return false;
    for (int split = 0; split < LSI_N_SPLITS; split++)
        for (int kind = 0; kind < N_KINDS; kind++)
            if (find_file(found->path, names[split][kind], path)) return true;
    return false;
}

/* ---- reading one file ---- */

typedef struct reader {
    const char *path;
    const struct idx_kind *kind;
    gzFile file; /* reads plain files as well */
    int64_t file_bytes;
    uint32_t dims[MAX_DIMS];
} reader;

static ls_status open_reader(reader *r) {
    struct stat info;
    LSI_TRY(lsi_data_check_file(r->path, "file of IDX images"));
    int fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        ls_status status = lsi_fail_errno(LS_ERR_IO, "%s cannot be opened", r->path);
        if (fd >= 0) close(fd);
        return status;
    }
    r->file_bytes = info.st_size;
    r->file = gzdopen(fd, "rb");
    if (r->file) return LS_OK;
    close(fd);
    return lsi_fail(LS_ERR_MEMORY, "%s: no memory to read it", r->path);
}

/* Up to n bytes; fewer only at the end of the file. */
static ls_status read_bytes(const reader *r, void *to, int64_t n, int64_t *n_read) {
    enum { PIECE = 1 << 24 };
    for (*n_read = 0; *n_read < n;) {
        int64_t left = n - *n_read;
        int got = gzread(r->file, (char *)to + *n_read, left < PIECE ? (unsigned)left : PIECE);
        int error = Z_OK;
        const char *why = gzerror(r->file, &error);
        if (error == Z_ERRNO) return lsi_fail_errno(LS_ERR_IO, "%s cannot be read", r->path);
        if (error == Z_MEM_ERROR) return lsi_fail(LS_ERR_MEMORY, "%s: no memory", r->path);
        if (error != Z_OK && error != Z_STREAM_END)
            return lsi_fail(LS_ERR_FORMAT, "%s: damaged gzip file: %s", r->path, why);
        if (got <= 0) return LS_OK;
        *n_read += got;
    }
    return LS_OK;
}

static uint32_t big_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Fills dims; *n_bytes follow the header. */
static ls_status read_header(reader *r, int64_t *n_bytes) {
    uint8_t header[4 * (1 + MAX_DIMS)];
    int64_t expected = 4 * (1 + r->kind->n_dims), found = 0;
    LSI_TRY(read_bytes(r, header, expected, &found));
    if (found < expected)
        return lsi_fail(LS_ERR_FORMAT, "%s: %" PRId64 " bytes, expected a header of %" PRId64,
                        r->path, found, expected);
    if (big_endian(header) != r->kind->magic)
        return lsi_fail(LS_ERR_FORMAT, "%s begins with 0x%08x, expected 0x%08x (IDX, %s as bytes)",
                        r->path, big_endian(header), r->kind->magic, r->kind->what);
    *n_bytes = 1;
    for (int i = 0; i < r->kind->n_dims; i++) {
        uint32_t limit = i == 0 ? INT32_MAX : MAX_SIDE;
        r->dims[i] = big_endian(header + 4 * (1 + i));
        if (r->dims[i] < 1 || r->dims[i] > limit)
            return lsi_fail(LS_ERR_FORMAT, "%s: dim %d of its header is %u, expected 1 to %u",
                            r->path, i, r->dims[i], limit);
        *n_bytes *= r->dims[i]; /* below 2^61 */
    }
    return LS_OK;
}

static ls_status refuse_length(const reader *r, int64_t expected, const char *found) {
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: its header says %u %s, %" PRId64 " bytes, but %s; the file is damaged",
                    r->path, r->dims[0], r->kind->what, expected, found);
}

static ls_status read_body(const reader *r, int64_t n_bytes, uint8_t *data) {
    int64_t n_read = 0, n_more = 0;
    uint8_t more;
    char found[64];
    LSI_TRY(read_bytes(r, data, n_bytes, &n_read));
    snprintf(found, sizeof found, "%" PRId64 " follow it", n_read);
    if (n_read < n_bytes) return refuse_length(r, n_bytes, found);
    LSI_TRY(read_bytes(r, &more, 1, &n_more));
    return n_more ? refuse_length(r, n_bytes, "more follow it") : LS_OK;
}

/* What can be said of the length before memory is taken. */
static ls_status check_length(const reader *r, int64_t n_bytes) {
    enum { MOST_INFLATED = 1032 };
    if (n_bytes / MOST_INFLATED <= r->file_bytes) return LS_OK;
    return refuse_length(r, n_bytes, "the whole file is too short for that");
}

/* *data from lsi_alloc. */
static ls_status read_file(reader *r, uint8_t **data) {
    int64_t n_bytes = 0;
    uint8_t *read = NULL;
    LSI_TRY(open_reader(r));
    ls_status status = read_header(r, &n_bytes);
    if (status == LS_OK) status = check_length(r, n_bytes);
    if (status == LS_OK) status = lsi_check_alloc(read = lsi_alloc(LSI_MEM_OTHER, (size_t)n_bytes));
    if (status == LS_OK) status = read_body(r, n_bytes, read);
    gzclose(r->file);
    if (status != LS_OK) {
        lsi_free(read);
        return status;
    }
    *data = read;
    return LS_OK;
}

/* ---- a split ---- */

static ls_status refuse_missing(const char *folder, const char *name) {
    return lsi_fail(LS_ERR_NOT_FOUND, "%s: %s is not there, neither as it is nor with .gz", folder,
                    name);
}

static int64_t largest(const uint8_t *labels, int64_t n) {
    uint8_t top = 0;
    for (int64_t i = 0; i < n; i++) top = labels[i] > top ? labels[i] : top;
    return top;
}

/* All splits have images of one size. */
static ls_status set_shape(lsi_dataset *dataset, const reader *r) {
    lsi_sample_shape *shape = &dataset->shape;
    int64_t height = r->dims[1], width = r->dims[2];
    if (shape->height == 0) {
        *shape = (lsi_sample_shape){.n_time = 1, .height = height, .width = width, .n_channels = 1};
        return LS_OK;
    }
    if (shape->height == height && shape->width == width) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: images of %" PRId64 " x %" PRId64 " pixels, those of the training split "
                    "have %" PRId64 " x %" PRId64,
                    r->path, height, width, shape->height, shape->width);
}

static ls_status read_split(lsi_dataset *dataset, images *all, const char *folder, int split) {
    char paths[N_KINDS][PATH_BYTES];
    reader readers[N_KINDS];
    uint8_t **data[] = {&all->splits[split].pixels, &all->splits[split].labels};
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (!find_file(folder, names[split][kind], paths[kind]))
            return refuse_missing(folder, names[split][kind]);
        readers[kind] = (reader){.path = paths[kind], .kind = &kinds[kind]};
        LSI_TRY(read_file(&readers[kind], data[kind]));
    }
    int64_t n = readers[IMAGES].dims[0];
    if (readers[LABELS].dims[0] != n)
        return lsi_fail(LS_ERR_FORMAT, "%s has %u labels, but %s has %" PRId64 " images",
                        paths[LABELS], readers[LABELS].dims[0], paths[IMAGES], n);
    LSI_TRY(set_shape(dataset, &readers[IMAGES]));
    int64_t n_classes = largest(all->splits[split].labels, n) + 1;
    if (n_classes > dataset->shape.n_classes) dataset->shape.n_classes = n_classes;
    dataset->n_samples[split] = dataset->n_tokens[split] = n;
    return LS_OK;
}

/* ---- the dataset ---- */

static bool has_split(const char *folder, int split) {
    char path[PATH_BYTES];
    return find_file(folder, names[split][IMAGES], path) ||
           find_file(folder, names[split][LABELS], path);
}

static ls_status open_images(lsi_dataset *dataset, const lsi_dataset_opts *opts) {
    if (opts->val_path)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s: a folder of images has its validation split in it (t10k-…), but a "
                        "second one, %s, was given",
                        opts->path, opts->val_path);
    images *all = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *all);
    LSI_TRY(lsi_check_alloc(all));
    dataset->data = all;
    LSI_TRY(read_split(dataset, all, opts->path, LSI_SPLIT_TRAIN));
    if (has_split(opts->path, LSI_SPLIT_VALIDATION))
        LSI_TRY(read_split(dataset, all, opts->path, LSI_SPLIT_VALIDATION));
    all->n_pixels = dataset->shape.height * dataset->shape.width;
    return LS_OK;
}

static void close_images(lsi_dataset *dataset) {
    images *all = dataset->data;
    if (!all) return;
    for (int split = 0; split < LSI_N_SPLITS; split++) {
        lsi_free(all->splits[split].pixels);
        lsi_free(all->splits[split].labels);
    }
    lsi_free(all);
}

static ls_status get(const lsi_dataset *dataset, lsi_split split, int64_t index, void *inputs,
                     int32_t *targets) {
    const images *all = dataset->data;
    const uint8_t *restrict from = all->splits[split].pixels + index * all->n_pixels;
    float *restrict to = inputs;
    for (int64_t i = 0; i < all->n_pixels; i++) to[i] = (float)from[i] / 255.0f;
    *targets = all->splits[split].labels[index];
    return LS_OK;
}

static double class_entropy(const lsi_dataset *dataset, lsi_split split) {
    const images *all = dataset->data;
    int64_t counts[N_CLASSES] = {0}, n = dataset->n_samples[split];
    for (int64_t i = 0; i < n; i++) counts[all->splits[split].labels[i]]++;
    return lsi_entropy_of_counts(counts, N_CLASSES);
}

const lsi_dataset_class lsi_dataset_images = {.name = "folder of images",
                                              .matches = matches,
                                              .open = open_images,
                                              .close = close_images,
                                              .get = get,
                                              .unigram_entropy = class_entropy};
