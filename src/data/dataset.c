/* Datasets: finding the kind of what is at a path, and the interface over all kinds.
 *
 * Rows are asked in order whether a path is theirs, and the last one takes what is left. Everything
 * that can be wrong with the data is found by open, so get fails only on a bad index. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset_impl.h"

static const lsi_dataset_class *const classes[] = {&lsi_dataset_images, &lsi_dataset_token_file,
                                                   &lsi_dataset_text};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

const char *const lsi_split_names[LSI_N_SPLITS] = {"training", "validation"};

/* ---- paths ---- */

/* What cannot be read is left to the kind's own reading, which says why. */
static void read_head(lsi_data_path *found) {
    int fd = open(found->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, found->head, sizeof found->head);
    found->n_head = n > 0 ? (size_t)n : 0;
    close(fd);
}

static ls_status look_up(const char *path, struct stat *info) {
    if (stat(path, info) == 0) return LS_OK;
    return lsi_fail_errno(errno == ENOENT ? LS_ERR_NOT_FOUND : LS_ERR_IO,
                          "data file %s cannot be opened", path);
}

static ls_status look_at(const char *path, lsi_data_path *found, const lsi_dataset_class **class) {
    struct stat info;
    if (!path) return lsi_fail(LS_ERR_ARGUMENT, "dataset: no path");
    LSI_TRY(look_up(path, &info));
    *found = (lsi_data_path){path, S_ISDIR(info.st_mode), S_ISREG(info.st_mode), {0}, 0};
    if (found->is_file) read_head(found);
    int row = 0;
    while (row < N_CLASSES - 1 && !classes[row]->matches(found)) row++;
    *class = classes[row];
    return LS_OK;
}

ls_status lsi_data_check_file(const char *path, const char *expected) {
    struct stat info;
    LSI_TRY(look_up(path, &info));
    if (S_ISDIR(info.st_mode))
        return lsi_fail(LS_ERR_IO, "%s is a folder, expected a %s; name one of the files in it",
                        path, expected);
    if (!S_ISREG(info.st_mode))
        return lsi_fail(LS_ERR_IO,
                        "%s is no regular file (a pipe or device); write its content to a %s first",
                        path, expected);
    return LS_OK;
}

ls_status lsi_dataset_is_text(const char *path, bool *is_text) {
    lsi_data_path found;
    const lsi_dataset_class *class = NULL;
    LSI_TRY(look_at(path, &found, &class));
    *is_text = class == &lsi_dataset_text;
    return LS_OK;
}

/* ---- opening ---- */

static ls_status check_options(const lsi_dataset_opts *o) {
    if (o->seq_len < 1 || o->seq_len > INT32_MAX)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: seq_len is %lld, expected 1 to %d", o->path,
                        (long long)o->seq_len, INT32_MAX);
    if (!(o->val_fraction >= 0.0 && o->val_fraction <= 0.5))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: val_fraction is %g, expected 0 to 0.5", o->path,
                        o->val_fraction);
    return LS_OK;
}

static ls_status check_val_path(const lsi_dataset_opts *opts, const lsi_dataset_class *class) {
    lsi_data_path found;
    const lsi_dataset_class *other = NULL;
    if (!opts->val_path) return LS_OK;
    LSI_TRY(lsi_context(look_at(opts->val_path, &found, &other), "validation"));
    if (other == class) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "validation: %s is a %s, expected a %s as %s is", opts->val_path,
                    other->name, class->name, opts->path);
}

ls_status lsi_dataset_open(const lsi_dataset_opts *opts, lsi_dataset **dataset) {
    lsi_data_path found;
    const lsi_dataset_class *class = NULL;
    LSI_TRY(look_at(opts->path, &found, &class));
    LSI_TRY(check_options(opts));
    LSI_TRY(check_val_path(opts, class));
    lsi_dataset *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->class = class;
    ls_status status = class->open(made, opts);
    if (status != LS_OK) {
        lsi_dataset_close(made);
        return status;
    }
    *dataset = made;
    return LS_OK;
}

void lsi_dataset_close(lsi_dataset *dataset) {
    if (!dataset) return;
    dataset->class->close(dataset);
    lsi_free(dataset);
}

/* ---- the interface ---- */

lsi_sample_shape lsi_dataset_shape(const lsi_dataset *dataset) {
    return dataset->shape;
}

int64_t lsi_dataset_n_samples(const lsi_dataset *dataset, lsi_split split) {
    return dataset->n_samples[split];
}

int64_t lsi_dataset_n_tokens(const lsi_dataset *dataset, lsi_split split) {
    return dataset->n_tokens[split];
}

ls_status lsi_dataset_get(const lsi_dataset *dataset, lsi_split split, int64_t index, void *inputs,
                          int32_t *targets) {
    if (index < 0 || index >= dataset->n_samples[split])
        return lsi_fail(LS_ERR_ARGUMENT, "sample %lld of the %s split, which has %lld",
                        (long long)index, lsi_split_names[split],
                        (long long)dataset->n_samples[split]);
    return dataset->class->get(dataset, split, index, inputs, targets);
}

double lsi_dataset_unigram_entropy(const lsi_dataset *dataset, lsi_split split) {
    return dataset->class->unigram_entropy(dataset, split);
}

double lsi_entropy_of_counts(const int64_t *counts, int64_t n) {
    int64_t total = 0;
    double entropy = 0.0;
    for (int64_t i = 0; i < n; i++) total += counts[i];
    for (int64_t i = 0; i < n; i++) {
        if (counts[i] == 0) continue;
        double share = (double)counts[i] / (double)total;
        entropy -= share * log(share);
    }
    return entropy;
}
