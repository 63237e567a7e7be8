/* What a kind of dataset is made of. A kind is a file dataset_KIND.c and a row in dataset.c. */
#ifndef LSI_DATA_DATASET_IMPL_H
#define LSI_DATA_DATASET_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "data/data.h"
#include "data/tokens.h"

/* What can be seen of a path without knowing its kind. */
typedef struct lsi_data_path {
    const char *path;
    bool is_folder, is_file; /* neither: a pipe or device */
    unsigned char head[8];   /* the first bytes of a file */
    size_t n_head;
} lsi_data_path;

typedef struct lsi_dataset_class {
    const char *name; /* "text", "token file" …, for messages */
    bool (*matches)(const lsi_data_path *path);
    /* Fills shape, n_samples and n_tokens of a zeroed dataset, and data. On failure close follows.
     * Options are checked as far as all kinds have them; val_path, if any, is of the same kind. */
    ls_status (*open)(lsi_dataset *dataset, const lsi_dataset_opts *opts);
    void (*close)(lsi_dataset *dataset);
    /* index lies in [0, n_samples[split]). */
    ls_status (*get)(const lsi_dataset *dataset, lsi_split split, int64_t index, void *inputs,
                     int32_t *targets);
    double (*unigram_entropy)(const lsi_dataset *dataset, lsi_split split);
} lsi_dataset_class;

struct lsi_dataset {
    const lsi_dataset_class *class;
    lsi_sample_shape shape;
    int64_t n_samples[LSI_N_SPLITS], n_tokens[LSI_N_SPLITS];
    void *data; /* the kind's own */
};

extern const lsi_dataset_class lsi_dataset_images, lsi_dataset_token_file, lsi_dataset_text;

extern const char *const lsi_split_names[LSI_N_SPLITS];
/* LS_ERR_IO with what it is and what was expected, unless it is a file. */
LS_CHECKED ls_status lsi_data_check_file(const char *path, const char *expected);
/* -sum of p log p of n counts, in their order. */
double lsi_entropy_of_counts(const int64_t *counts, int64_t n);

/* ---- for kinds that are one sequence of tokens (sequence.c) ---- */

/* Reads one file into zeroed tokens; *n_classes: all ids are below. */
typedef ls_status (*lsi_sequence_reader)(const char *path, const lsi_dataset_opts *opts,
                                         lsi_tokens *tokens, int64_t *n_classes);
LS_CHECKED ls_status lsi_sequence_open(lsi_dataset *dataset, const lsi_dataset_opts *opts,
                                       lsi_sequence_reader read);
/* Of lsi_dataset_class. */
void lsi_sequence_close(lsi_dataset *dataset);
ls_status lsi_sequence_get(const lsi_dataset *dataset, lsi_split split, int64_t index, void *inputs,
                           int32_t *targets);
double lsi_sequence_entropy(const lsi_dataset *dataset, lsi_split split);

#endif
