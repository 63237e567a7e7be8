/* Text datasets: samples, splits, entropy, and every way in which a file can be wrong. */
#include "harness/scratch.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/data.h"

typedef struct fixture {
    void *folder;
    char path[128];
    lsi_tokenizer *tokenizer;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f || make_scratch(&f->folder) != 0) return -1;
    snprintf(f->path, sizeof f->path, "%s", in_scratch(&f->folder, "text.txt"));
    *state = f;
    return lsi_tokenizer_create("byte", &f->tokenizer) == LS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    fixture *f = *state;
    lsi_tokenizer_destroy(f->tokenizer);
    int failed = remove_scratch(&f->folder);
    free(f);
    return failed || lsi_mem_n_blocks() != 0;
}

static void write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *path, const char *text) {
    write_bytes(path, text, strlen(text));
}

static ls_status open_text(const char *path, const fixture *f, int64_t seq_len, double val_fraction,
                           lsi_dataset **dataset) {
    const lsi_dataset_opts opts = {
        .path = path, .tokenizer = f->tokenizer, .seq_len = seq_len, .val_fraction = val_fraction};
    return lsi_dataset_open(&opts, dataset);
}

static lsi_dataset *open_dataset(fixture *f, int64_t seq_len, double val_fraction) {
    lsi_dataset *dataset = NULL;
    assert_ok(open_text(f->path, f, seq_len, val_fraction, &dataset));
    return dataset;
}

/* ---- samples ---- */

static void assert_sample(const lsi_dataset *dataset, lsi_split split, int64_t index,
                          const char *inputs, const char *targets) {
    int32_t in[16] = {0}, out[16] = {0};
    assert_ok(lsi_dataset_get(dataset, split, index, in, out));
    for (size_t i = 0; i < strlen(inputs); i++) {
        assert_int_equal(in[i], inputs[i]);
        assert_int_equal(out[i], targets[i]);
    }
    assert_int_equal(in[strlen(inputs)], 0);
}

static void samples_follow_each_other_with_shifted_targets(void **state) {
    fixture *f = *state;
    write_text(f->path, "abcdefghijkl"); /* 12 tokens */
    lsi_dataset *dataset = open_dataset(f, 3, 0.0);
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), 12);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), 3);
    assert_sample(dataset, LSI_SPLIT_TRAIN, 0, "abc", "bcd");
    assert_sample(dataset, LSI_SPLIT_TRAIN, 1, "def", "efg");
    assert_sample(dataset, LSI_SPLIT_TRAIN, 2, "ghi", "hij");
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_VALIDATION), 0);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_VALIDATION), 0);
    assert_true(lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_VALIDATION) == 0.0);
    lsi_dataset_close(dataset);
}

static void validation_is_the_last_part(void **state) {
    fixture *f = *state;
    write_text(f->path, "abcdefghijkl");
    lsi_dataset *dataset = open_dataset(f, 3, 0.4); /* floor(4.8) = 4 tokens held out */
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), 8);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), 2);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_VALIDATION), 1);
    assert_sample(dataset, LSI_SPLIT_TRAIN, 1, "def", "efg");
    assert_sample(dataset, LSI_SPLIT_VALIDATION, 0, "ijk", "jkl");
    lsi_dataset_close(dataset);
}

static void shortest_possible_text_is_one_sample(void **state) {
    fixture *f = *state;
    write_text(f->path, "ab");
    lsi_dataset *dataset = open_dataset(f, 1, 0.0);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), 1);
    assert_sample(dataset, LSI_SPLIT_TRAIN, 0, "a", "b");
    lsi_dataset_close(dataset);
}

/* Longer than the pieces in which a text is encoded, all byte values, zero bytes too. */
static void long_binary_text_is_kept_byte_for_byte(void **state) {
    fixture *f = *state;
    enum { N = (5 << 19) + 77, T = 1021 };
    unsigned char *bytes = malloc(N);
    for (int i = 0; i < N; i++) bytes[i] = (unsigned char)((i * 2654435761u) >> 13);
    write_bytes(f->path, bytes, N);
    lsi_dataset *dataset = open_dataset(f, T, 0.0);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), (N - 1) / T);
    int32_t in[T], out[T];
    for (int64_t s = 0; s < (N - 1) / T; s++) {
        assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, s, in, out));
        for (int64_t i = 0; i < T; i++)
            if (in[i] != bytes[s * T + i] || out[i] != bytes[s * T + i + 1])
                fail_msg("sample %lld, place %lld", (long long)s, (long long)i);
    }
    lsi_dataset_close(dataset);
    free(bytes);
}

static void memory_is_a_byte_a_token(void **state) {
    fixture *f = *state;
    enum { N = 3 << 20 };
    char *bytes = calloc(N, 1);
    write_bytes(f->path, bytes, N);
    int64_t before = lsi_mem_now(LSI_MEM_OTHER);
    lsi_dataset *dataset = open_dataset(f, 64, 0.1);
    assert_in_range(lsi_mem_now(LSI_MEM_OTHER) - before, N, N + 4096);
    lsi_dataset_close(dataset);
    free(bytes);
}

static void text_may_change_after_open(void **state) {
    fixture *f = *state;
    write_text(f->path, "abcdefg");
    lsi_dataset *dataset = open_dataset(f, 2, 0.0);
    write_text(f->path, "");
    assert_sample(dataset, LSI_SPLIT_TRAIN, 2, "ef", "fg");
    lsi_dataset_close(dataset);
}

/* ---- entropy ---- */

static void entropy_is_that_of_token_frequencies(void **state) {
    fixture *f = *state;
    const struct {
        const char *text;
        double val_fraction, train, validation;
    } rows[] = {
        {"aaaaaaaa", 0.0, 0.0, 0.0},
        {"abababab", 0.0, log(2.0), 0.0},
        {"abcdabcd", 0.5, log(4.0), log(4.0)},
        {"aaabzzzz", 0.5, 0.75 * log(4.0 / 3.0) + 0.25 * log(4.0), 0.0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_text(f->path, rows[i].text);
        lsi_dataset *dataset = open_dataset(f, 1, rows[i].val_fraction);
        double train = lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_TRAIN);
        double validation = lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_VALIDATION);
        assert_true(fabs(train - rows[i].train) < 1e-14);
        assert_true(fabs(validation - rows[i].validation) < 1e-14);
        lsi_dataset_close(dataset);
    }
}

/* ---- bad inputs ---- */

static void short_texts_say_how_short(void **state) {
    fixture *f = *state;
    const struct {
        const char *text;
        int64_t seq_len;
        double val_fraction;
        const char *message;
    } rows[] = {
        {"abc", 3, 0.0, "3 tokens, of which the training split has 3"},
        {"abc", 3, 0.0, "a sample of seq_len 3 needs 4"},
        {"abc", 3, 0.0, "a longer text or a seq_len of at most 2"},
        {"a", 1, 0.0, "needs 2; use a longer text"},
        {"abc", INT32_MAX, 0.0, "needs 2147483648; use a longer text or a seq_len of at most 2"},
        {"abcdefghij", 4, 0.3, "the validation split has 3 with val_fraction 0.3"},
        {"abcdefghij", 4, 0.01, "the validation split has 0"},
        {"abcdefgh", 5, 0.5, "the training split has 4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_dataset *dataset = NULL;
        write_text(f->path, rows[i].text);
        assert_fails(open_text(f->path, f, rows[i].seq_len, rows[i].val_fraction, &dataset),
                     LS_ERR_FORMAT, rows[i].message);
        assert_non_null(strstr(ls_last_message(), f->path));
        assert_null(dataset);
    }
}

static void wrong_paths_are_told_apart(void **state) {
    fixture *f = *state;
    lsi_dataset *dataset = NULL;
    char path[256];
    assert_fails(open_text(f->path, f, 4, 0.0, &dataset), LS_ERR_NOT_FOUND, f->path);
    assert_fails(open_text("", f, 4, 0.0, &dataset), LS_ERR_NOT_FOUND, "cannot be opened");
    assert_fails(open_text(f->folder, f, 4, 0.0, &dataset), LS_ERR_IO,
                 "is a folder, expected a text file");
    write_text(f->path, "");
    assert_fails(open_text(f->path, f, 4, 0.0, &dataset), LS_ERR_FORMAT, "is empty");
    snprintf(path, sizeof path, "%s/below", f->path);
    assert_fails(open_text(path, f, 4, 0.0, &dataset), LS_ERR_IO, "Not a directory");
    assert_fails(open_text("/dev/null", f, 4, 0.0, &dataset), LS_ERR_IO, "no regular file");
    assert_null(dataset);
}

static void unreadable_files_say_why(void **state) {
    fixture *f = *state;
    lsi_dataset *dataset = NULL;
    enum { NOBODY = 65534 };
    bool is_root = geteuid() == 0; /* who may read everything */
    write_text(f->path, "abcdefg");
    assert_int_equal(chmod(f->path, 0), 0);
    assert_int_equal(chmod(f->folder, 0755), 0);
    if (is_root) assert_int_equal(seteuid(NOBODY), 0);
    ls_status status = open_text(f->path, f, 2, 0.0, &dataset);
    if (is_root) assert_int_equal(seteuid(0), 0);
    assert_fails(status, LS_ERR_IO, "Permission denied");
    assert_null(dataset);
}

static void bad_options_are_refused(void **state) {
    fixture *f = *state;
    lsi_dataset *dataset = NULL;
    write_text(f->path, "abcdefg");
    const struct {
        int64_t seq_len;
        double val_fraction;
        const char *message;
    } rows[] = {
        {0, 0.0, "seq_len is 0, expected 1 to 2147483647"},
        {INT64_MAX, 0.0, "seq_len is 9223372036854775807"},
        {-3, 0.0, "seq_len is -3"},
        {2, -0.1, "val_fraction is -0.1"},
        {2, 0.6, "val_fraction is 0.6"},
        {2, NAN, "val_fraction is nan"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(open_text(f->path, f, rows[i].seq_len, rows[i].val_fraction, &dataset),
                     LS_ERR_ARGUMENT, rows[i].message);
    assert_null(dataset);
}

static void text_needs_a_tokenizer(void **state) {
    fixture *f = *state;
    lsi_dataset *dataset = NULL;
    write_text(f->path, "abcdefg");
    const lsi_dataset_opts opts = {.path = f->path, .seq_len = 2};
    assert_fails(lsi_dataset_open(&opts, &dataset), LS_ERR_ARGUMENT, "text needs a tokenizer");
    assert_fails(lsi_dataset_open(&(lsi_dataset_opts){.seq_len = 2}, &dataset), LS_ERR_ARGUMENT,
                 "no path");
    assert_null(dataset);
}

/* ---- validation from another file ---- */

static void validation_may_be_another_file(void **state) {
    fixture *f = *state;
    lsi_dataset *dataset = NULL;
    const char *val_path = in_scratch(&f->folder, "val.txt");
    const lsi_dataset_opts opts = {.path = f->path,
                                   .val_path = val_path,
                                   .tokenizer = f->tokenizer,
                                   .seq_len = 3,
                                   .val_fraction = 0.05}; /* not used then */
    write_text(f->path, "abcdefghijkl");
    assert_fails(lsi_dataset_open(&opts, &dataset), LS_ERR_NOT_FOUND, "validation: data file");
    write_text(val_path, "uvw");
    assert_fails(lsi_dataset_open(&opts, &dataset), LS_ERR_FORMAT,
                 "val.txt: 3 tokens, but a sample of seq_len 3 needs 4; use a longer text or a "
                 "seq_len of at most 2");
    write_text(val_path, "uvwxyzuvw");
    assert_ok(lsi_dataset_open(&opts, &dataset));
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), 12);
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_VALIDATION), 9);
    assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_VALIDATION), 2);
    assert_sample(dataset, LSI_SPLIT_TRAIN, 2, "ghi", "hij");
    assert_sample(dataset, LSI_SPLIT_VALIDATION, 1, "xyz", "yzu");
    assert_true(lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_VALIDATION) > 1.5);
    lsi_dataset_close(dataset);
}

static void validation_must_be_of_the_same_kind(void **state) {
    fixture *f = *state;
    lsi_dataset *dataset = NULL;
    const char *val_path = in_scratch(&f->folder, "val.bin");
    const lsi_dataset_opts opts = {
        .path = f->path, .val_path = val_path, .tokenizer = f->tokenizer, .seq_len = 1};
    write_text(f->path, "abcd");
    write_text(val_path, "abcd");
    assert_fails(lsi_dataset_open(&opts, &dataset), LS_ERR_FORMAT,
                 "val.bin is a token file, expected a text file as");
    assert_null(dataset);
}

/* ---- other tokenizers ---- */

/* Longer than a piece: pieces end at words, so ids are those of the whole text at once. */
static void long_texts_are_encoded_as_a_whole(void **state) {
    fixture *f = *state;
    enum { N = 5 << 19, T = 999 };
    static const char *const words[] = {"he", " he", "hehe ", "\n", "  ", "h", "'s", " e"};
    char *text = malloc(N + 8);
    size_t used = 0;
    for (unsigned i = 1; used < N; i++) {
        const char *word = words[(i * 2654435761u) >> 29];
        memcpy(text + used, word, strlen(word));
        used += strlen(word);
    }
    write_text(in_scratch(&f->folder, "merges.txt"), "h e\nhe he\n\xC4\xA0 he\n");
    write_bytes(f->path, text, used);
    lsi_tokenizer_destroy(f->tokenizer);
    assert_ok(lsi_tokenizer_create(in_scratch(&f->folder, "merges.txt"), &f->tokenizer));
    int32_t *ids, in[T], out[T];
    int64_t n_ids;
    assert_ok(lsi_tokenizer_encode(f->tokenizer, text, used, &ids, &n_ids));
    lsi_dataset *dataset = open_dataset(f, T, 0.0);
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), n_ids);
    assert_int_equal(lsi_dataset_shape(dataset).n_classes, 260);
    assert_int_equal(lsi_dataset_shape(dataset).n_time, T);
    for (int64_t i = 0; i < lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN); i++) {
        assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, i, in, out));
        assert_memory_equal(in, ids + i * T, sizeof in);
        assert_memory_equal(out, ids + i * T + 1, sizeof out);
    }
    lsi_dataset_close(dataset);
    lsi_free(ids);
    free(text);
}

static void samples_outside_are_refused(void **state) {
    fixture *f = *state;
    int32_t in[3] = {7, 7, 7}, out[3];
    write_text(f->path, "abcdefghijkl");
    lsi_dataset *dataset = open_dataset(f, 3, 0.0);
    const int64_t bad[] = {-1, 3, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, bad[i], in, out), LS_ERR_ARGUMENT,
                     "of the training split, which has 3");
    assert_fails(lsi_dataset_get(dataset, LSI_SPLIT_VALIDATION, 0, in, out), LS_ERR_ARGUMENT,
                 "validation split, which has 0");
    assert_int_equal(in[0], 7);
    lsi_dataset_close(dataset);
    lsi_dataset_close(NULL);
}

static void failed_allocations_leak_nothing(void **state) {
    fixture *f = *state;
    write_text(f->path, "abcdefghijkl");
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int64_t n = 1;; n++) {
        lsi_dataset *dataset = NULL;
        lsi_mem_fail_at(n);
        ls_status status = open_text(f->path, f, 3, 0.4, &dataset);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_true(failed ? dataset == NULL : dataset != NULL);
        lsi_dataset_close(dataset);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
        if (!failed) break;
        assert_true(n < 50);
    }
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        FILE_TEST(samples_follow_each_other_with_shifted_targets),
        FILE_TEST(validation_is_the_last_part),
        FILE_TEST(shortest_possible_text_is_one_sample),
        FILE_TEST(long_binary_text_is_kept_byte_for_byte),
        FILE_TEST(memory_is_a_byte_a_token),
        FILE_TEST(text_may_change_after_open),
        FILE_TEST(entropy_is_that_of_token_frequencies),
        FILE_TEST(short_texts_say_how_short),
        FILE_TEST(wrong_paths_are_told_apart),
        FILE_TEST(unreadable_files_say_why),
        FILE_TEST(bad_options_are_refused),
        FILE_TEST(text_needs_a_tokenizer),
        FILE_TEST(validation_may_be_another_file),
        FILE_TEST(validation_must_be_of_the_same_kind),
        FILE_TEST(long_texts_are_encoded_as_a_whole),
        FILE_TEST(samples_outside_are_refused),
        FILE_TEST(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
