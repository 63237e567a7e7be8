/* A text file as samples of tokens.
 *
 *     tokens   0 ……………………………………… n_train | n_train ……………… n - 1
 *              training split                 validation split
 *     sample i of a split that begins at token b: inputs  b + i T … b + i T + T - 1
 *                                                 targets one further
 *
 * The file is mapped only while it is encoded: afterwards it may change or vanish without harm, and
 * the ids are kept at one byte each for a vocabulary of up to 256. Everything that can be wrong
 * with the file is found by open, so get fails only on a bad index. A split has (tokens - 1) / T
 * samples; what is left over at its end is not used. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/data.h"
#include "data/tokenizer.h"
#include "data/tokens.h"

typedef struct split_range {
    const char *name;
    int64_t start, n_tokens, n_samples;
    double unigram_entropy; /* nats */
} split_range;

struct lsi_dataset {
    int64_t seq_len;
    lsi_tokens tokens;
    split_range splits[LSI_N_SPLITS];
};

static ls_status check_options(const char *path, int64_t seq_len, double val_fraction) {
    if (seq_len < 1 || seq_len > INT32_MAX)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: seq_len is %lld, expected 1 to %d", path,
                        (long long)seq_len, INT32_MAX);
    if (!(val_fraction >= 0.0 && val_fraction <= 0.5))
        return lsi_fail(LS_ERR_ARGUMENT, "%s: val_fraction is %g, expected 0 to 0.5", path,
                        val_fraction);
    return LS_OK;
}

/* Says what is wrong before the mapping would fail with less to say. */
static ls_status check_file(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0)
        return lsi_fail_errno(errno == ENOENT ? LS_ERR_NOT_FOUND : LS_ERR_IO,
                              "text file %s cannot be opened", path);
    if (S_ISDIR(info.st_mode))
        return lsi_fail(LS_ERR_IO,
                        "%s is a folder, expected a text file; name one of the files in it", path);
    if (!S_ISREG(info.st_mode))
        return lsi_fail(LS_ERR_IO,
                        "%s is no regular file (a pipe or device); write the text to a file first",
                        path);
    if (info.st_size == 0)
        return lsi_fail(LS_ERR_FORMAT, "%s is empty, expected text to train on", path);
    return LS_OK;
}

static ls_status append_piece(lsi_tokens *tokens, const lsi_tokenizer *tokenizer, const char *text,
                              size_t bytes) {
    int32_t *ids;
    int64_t n_ids;
    LSI_TRY(lsi_tokenizer_encode(tokenizer, text, bytes, &ids, &n_ids));
    ls_status status = lsi_tokens_append(tokens, ids, n_ids);
    lsi_free(ids);
    return status;
}

static ls_status encode(lsi_tokens *tokens, const lsi_tokenizer *tokenizer, const char *text,
                        size_t bytes) {
    size_t piece = lsi_tokenizer_piece_bytes(tokenizer);
    if (!piece) piece = bytes;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        LSI_TRY(append_piece(tokens, tokenizer, text + at, n));
    }
    lsi_tokens_shrink(tokens);
    return LS_OK;
}

static ls_status read_tokens(lsi_dataset *dataset, const char *path,
                             const lsi_tokenizer *tokenizer) {
    const void *text;
    size_t bytes;
    LSI_TRY(lsi_file_map(path, &text, &bytes));
    ls_status status =
        lsi_tokens_init(&dataset->tokens, lsi_tokenizer_vocab_size(tokenizer), (int64_t)bytes);
    if (status == LS_OK) status = encode(&dataset->tokens, tokenizer, text, bytes);
    lsi_file_unmap(text, bytes);
    return lsi_context(status, "text file %s", path);
}

/* A split that has tokens but no sample would train or measure nothing: an error, with the numbers
 * that repair it. */
static ls_status check_split(const lsi_dataset *dataset, const split_range *split, const char *path,
                             double val_fraction) {
    if (split->n_samples > 0) return LS_OK;
    char remedy[96] = "use a longer text";
    if (split->n_tokens > 1)
        snprintf(remedy, sizeof remedy, "use a longer text or a seq_len of at most %lld",
                 (long long)split->n_tokens - 1);
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: %lld tokens, of which the %s split has %lld with val_fraction %g, but a "
                    "sample of seq_len %lld needs %lld; %s",
                    path, (long long)dataset->tokens.n, split->name, (long long)split->n_tokens,
                    val_fraction, (long long)dataset->seq_len, (long long)dataset->seq_len + 1,
                    remedy);
}

static ls_status cut_splits(lsi_dataset *dataset, const char *path, double val_fraction) {
    int64_t n_validation = (int64_t)floor((double)dataset->tokens.n * val_fraction);
    int64_t n_train = dataset->tokens.n - n_validation;
    dataset->splits[LSI_SPLIT_TRAIN] = (split_range){"training", 0, n_train, 0, 0.0};
    dataset->splits[LSI_SPLIT_VALIDATION] =
        (split_range){"validation", n_train, n_validation, 0, 0.0};
    for (int i = 0; i < LSI_N_SPLITS; i++) {
        split_range *split = &dataset->splits[i];
        if (split->n_tokens > 0) split->n_samples = (split->n_tokens - 1) / dataset->seq_len;
        if (i == LSI_SPLIT_VALIDATION && val_fraction == 0.0) continue;
        LSI_TRY(check_split(dataset, split, path, val_fraction));
    }
    return LS_OK;
}

/* -sum of p log p over ids in order, p the share of an id in the split. */
static void measure_entropy(const lsi_tokens *tokens, split_range *split, int64_t *counts,
                            int64_t vocab_size) {
    enum { PIECE = 1024 };
    int32_t ids[PIECE];
    memset(counts, 0, (size_t)vocab_size * sizeof *counts);
    for (int64_t at = 0; at < split->n_tokens; at += PIECE) {
        int64_t n = split->n_tokens - at < PIECE ? split->n_tokens - at : PIECE;
        lsi_tokens_read(tokens, split->start + at, n, ids);
        for (int64_t i = 0; i < n; i++) counts[ids[i]]++;
    }
    double entropy = 0.0;
    for (int64_t id = 0; id < vocab_size; id++) {
        if (counts[id] == 0) continue;
        double share = (double)counts[id] / (double)split->n_tokens;
        entropy -= share * log(share);
    }
    split->unigram_entropy = entropy;
}

static ls_status measure_entropies(lsi_dataset *dataset, int64_t vocab_size) {
    int64_t *counts = lsi_calloc(LSI_MEM_OTHER, (size_t)vocab_size, sizeof *counts);
    LSI_TRY(lsi_check_alloc(counts));
    for (int i = 0; i < LSI_N_SPLITS; i++)
        measure_entropy(&dataset->tokens, &dataset->splits[i], counts, vocab_size);
    lsi_free(counts);
    return LS_OK;
}

static ls_status fill(lsi_dataset *dataset, const char *path, const lsi_tokenizer *tokenizer,
                      double val_fraction) {
    LSI_TRY(read_tokens(dataset, path, tokenizer));
    LSI_TRY(cut_splits(dataset, path, val_fraction));
    return measure_entropies(dataset, lsi_tokenizer_vocab_size(tokenizer));
}

ls_status lsi_dataset_open_text(const char *path, const lsi_tokenizer *tokenizer, int64_t seq_len,
                                double val_fraction, lsi_dataset **dataset) {
    LSI_TRY(check_options(path, seq_len, val_fraction));
    LSI_TRY(check_file(path));
    lsi_dataset *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->seq_len = seq_len;
    ls_status status = fill(made, path, tokenizer, val_fraction);
    if (status != LS_OK) {
        lsi_dataset_close(made);
        return status;
    }
    *dataset = made;
    return LS_OK;
}

void lsi_dataset_close(lsi_dataset *dataset) {
    if (!dataset) return;
    lsi_tokens_fini(&dataset->tokens);
    lsi_free(dataset);
}

int64_t lsi_dataset_n_samples(const lsi_dataset *dataset, lsi_split split) {
    return dataset->splits[split].n_samples;
}

int64_t lsi_dataset_n_tokens(const lsi_dataset *dataset, lsi_split split) {
    return dataset->splits[split].n_tokens;
}

ls_status lsi_dataset_get(const lsi_dataset *dataset, lsi_split split, int64_t index,
                          int32_t *inputs, int32_t *targets) {
    const split_range *range = &dataset->splits[split];
    if (index < 0 || index >= range->n_samples)
        return lsi_fail(LS_ERR_ARGUMENT, "sample %lld of the %s split, which has %lld",
                        (long long)index, range->name, (long long)range->n_samples);
    int64_t at = range->start + index * dataset->seq_len;
    lsi_tokens_read(&dataset->tokens, at, dataset->seq_len, inputs);
    lsi_tokens_read(&dataset->tokens, at + 1, dataset->seq_len, targets);
    return LS_OK;
}

double lsi_dataset_unigram_entropy(const lsi_dataset *dataset, lsi_split split) {
    return dataset->splits[split].unigram_entropy;
}
