/* One or two files of tokens as samples.
 *
 *     tokens   0 ……………………………………… n_train | n_train ……………… n - 1
 *              training split                 validation split
 *     sample i of a split that begins at token b: inputs  b + i T … b + i T + T - 1
 *                                                 targets one further
 *
 * With a file of its own for validation, each split is a whole file. A split has (tokens - 1) / T
 * samples; what is left over at its end is not used. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "data/dataset_impl.h"

typedef struct sequence {
    lsi_tokens files[LSI_N_SPLITS]; /* the second only with a file for validation */
    struct {
        const lsi_tokens *tokens;
        int64_t start;
    } splits[LSI_N_SPLITS];
} sequence;

/* ---- opening ---- */

static ls_status read_files(lsi_dataset *dataset, sequence *s, const lsi_dataset_opts *opts,
                            lsi_sequence_reader read) {
    int64_t n_classes = 0;
    LSI_TRY(read(opts->path, opts, &s->files[0], &dataset->shape.n_classes));
    if (!opts->val_path) return LS_OK;
    LSI_TRY(lsi_context(read(opts->val_path, opts, &s->files[1], &n_classes), "validation"));
    if (n_classes > dataset->shape.n_classes) dataset->shape.n_classes = n_classes;
    return LS_OK;
}

static void cut_splits(lsi_dataset *dataset, sequence *s, const lsi_dataset_opts *opts) {
    int64_t n = s->files[0].n;
    int64_t n_held_out = opts->val_path ? 0 : (int64_t)floor((double)n * opts->val_fraction);
    s->splits[LSI_SPLIT_TRAIN].tokens = &s->files[0];
    s->splits[LSI_SPLIT_VALIDATION].tokens = &s->files[opts->val_path ? 1 : 0];
    s->splits[LSI_SPLIT_VALIDATION].start = opts->val_path ? 0 : n - n_held_out;
    dataset->n_tokens[LSI_SPLIT_TRAIN] = n - n_held_out;
    dataset->n_tokens[LSI_SPLIT_VALIDATION] = opts->val_path ? s->files[1].n : n_held_out;
    for (int i = 0; i < LSI_N_SPLITS; i++)
        if (dataset->n_tokens[i] > 0)
            dataset->n_samples[i] = (dataset->n_tokens[i] - 1) / opts->seq_len;
}

/* A split that has tokens but no sample would train or measure nothing: an error, with the numbers
 * that repair it. */
static ls_status check_split(const lsi_dataset *dataset, int split, const lsi_dataset_opts *opts,
                             int64_t n_in_file) {
    if (dataset->n_samples[split] > 0) return LS_OK;
    char remedy[96] = "use a longer text", part[96] = "";
    int64_t n = dataset->n_tokens[split];
    if (n > 1)
        snprintf(remedy, sizeof remedy, "use a longer text or a seq_len of at most %lld",
                 (long long)n - 1);
    if (!opts->val_path)
        snprintf(part, sizeof part, " of which the %s split has %lld with val_fraction %g,",
                 lsi_split_names[split], (long long)n, opts->val_fraction);
    return lsi_fail(LS_ERR_FORMAT, "%s: %lld tokens,%s but a sample of seq_len %lld needs %lld; %s",
                    opts->val_path && split == LSI_SPLIT_VALIDATION ? opts->val_path : opts->path,
                    (long long)n_in_file, part, (long long)opts->seq_len,
                    (long long)opts->seq_len + 1, remedy);
}

ls_status lsi_sequence_open(lsi_dataset *dataset, const lsi_dataset_opts *opts,
                            lsi_sequence_reader read) {
    sequence *s = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *s);
    LSI_TRY(lsi_check_alloc(s));
    dataset->data = s;
    dataset->shape.n_time = opts->seq_len;
    LSI_TRY(read_files(dataset, s, opts, read));
    cut_splits(dataset, s, opts);
    LSI_TRY(check_split(dataset, LSI_SPLIT_TRAIN, opts, s->files[0].n));
    if (!opts->val_path && opts->val_fraction == 0.0) return LS_OK;
    return check_split(dataset, LSI_SPLIT_VALIDATION, opts,
                       s->splits[LSI_SPLIT_VALIDATION].tokens->n);
}

void lsi_sequence_close(lsi_dataset *dataset) {
    sequence *s = dataset->data;
    if (!s) return;
    for (int i = 0; i < LSI_N_SPLITS; i++) lsi_tokens_fini(&s->files[i]);
    lsi_free(s);
}

/* ---- reading ---- */

ls_status lsi_sequence_get(const lsi_dataset *dataset, lsi_split split, int64_t index, void *inputs,
                           int32_t *targets) {
    const sequence *s = dataset->data;
    int64_t n_time = dataset->shape.n_time, at = s->splits[split].start + index * n_time;
    lsi_tokens_read(s->splits[split].tokens, at, n_time, inputs);
    lsi_tokens_read(s->splits[split].tokens, at + 1, n_time, targets);
    return LS_OK;
}

/* Counted when asked: of a large file on a disk this takes as long as reading it. */
double lsi_sequence_entropy(const lsi_dataset *dataset, lsi_split split) {
    enum { PIECE = 1024 };
    int32_t ids[PIECE];
    const sequence *s = dataset->data;
    int64_t n_tokens = dataset->n_tokens[split], n_classes = dataset->shape.n_classes;
    int64_t *counts = lsi_calloc(LSI_MEM_OTHER, (size_t)n_classes, sizeof *counts);
    if (!counts) return (double)NAN;
    for (int64_t at = 0; at < n_tokens; at += PIECE) {
        int64_t n = n_tokens - at < PIECE ? n_tokens - at : PIECE;
        lsi_tokens_read(s->splits[split].tokens, s->splits[split].start + at, n, ids);
        for (int64_t i = 0; i < n; i++) counts[ids[i]]++;
    }
    double entropy = lsi_entropy_of_counts(counts, n_classes);
    lsi_free(counts);
    return entropy;
}
