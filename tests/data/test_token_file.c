/* Token files of nanoGPT and llm.c: read as written, and every way in which they can lie. */
#include "data/token_tests.h"

#include <math.h>

enum { GPT2_MAGIC = 20240520, LLAMA3_MAGIC = 20240801, N_HEADER = 256 };

/* Header (magic 0: none), then ids of `width` bytes, then cut to `bytes` (0: not). */
static void write_tokens(const char *name, int32_t magic, int32_t version, int32_t n_said,
                         const uint32_t *ids, size_t n, size_t width) {
    int32_t header[N_HEADER] = {magic, version, n_said};
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    if (magic) assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    for (size_t i = 0; i < n; i++) assert_int_equal(fwrite(&ids[i], width, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static ls_status open_tokens(const char *name, int64_t seq_len, const lsi_tokenizer *tokenizer,
                             lsi_dataset **dataset) {
    const lsi_dataset_opts opts = {
        .path = path_of(name), .seq_len = seq_len, .tokenizer = tokenizer};
    *dataset = NULL;
    return lsi_dataset_open(&opts, dataset);
}

static const uint32_t IDS_OF_TEXT[] = {5, 50256, 0, 7, 300, 5, 5};
enum { N_IDS = sizeof IDS_OF_TEXT / sizeof IDS_OF_TEXT[0] };

static void all_formats_give_the_same_samples(void **state) {
    (void)state;
    const struct {
        const char *name;
        int32_t magic, version;
        size_t width;
    } rows[] = {
        {"nano.bin", 0, 0, 2},
        {"llm.bin", GPT2_MAGIC, 1, 2},
        {"llm-without-ending", GPT2_MAGIC, 1, 2},
        {"llama3.bin", LLAMA3_MAGIC, 7, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_dataset *dataset;
        int32_t in[3], out[3];
        bool is_text = true;
        write_tokens(rows[i].name, rows[i].magic, rows[i].version, N_IDS, IDS_OF_TEXT, N_IDS,
                     rows[i].width);
        assert_ok(lsi_dataset_is_text(path_of(rows[i].name), &is_text));
        assert_false(is_text);
        assert_ok(open_tokens(rows[i].name, 3, NULL, &dataset));
        assert_int_equal(lsi_dataset_shape(dataset).n_classes, 50257);
        assert_int_equal(lsi_dataset_shape(dataset).n_time, 3);
        assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), N_IDS);
        assert_int_equal(lsi_dataset_n_samples(dataset, LSI_SPLIT_TRAIN), 2);
        assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, 1, in, out));
        assert_memory_equal(in, IDS(7, 300, 5), sizeof in);
        assert_memory_equal(out, IDS(300, 5, 5), sizeof out);
        double p = 3.0 / N_IDS, q = 1.0 / N_IDS;
        double entropy = -p * log(p) - 4 * q * log(q);
        assert_true(fabs(lsi_dataset_unigram_entropy(dataset, LSI_SPLIT_TRAIN) - entropy) < 1e-14);
        lsi_dataset_close(dataset);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void splits_are_shares_or_files(void **state) {
    (void)state;
    lsi_dataset *dataset = NULL;
    int32_t in[2], out[2];
    write_tokens("a.bin", 0, 0, 0, IDS_OF_TEXT, N_IDS, 2);
    write_tokens("b.bin", LLAMA3_MAGIC, 7, 3, (const uint32_t[]){70000, 1, 2}, 3, 4);
    lsi_dataset_opts opts = {.path = path_of("a.bin"), .seq_len = 2, .val_fraction = 0.45};
    assert_ok(lsi_dataset_open(&opts, &dataset));
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), 4);
    assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_VALIDATION, 0, in, out));
    assert_memory_equal(in, IDS(300, 5), sizeof in);
    lsi_dataset_close(dataset);
    opts.val_path = path_of("b.bin");
    assert_ok(lsi_dataset_open(&opts, &dataset));
    assert_int_equal(lsi_dataset_n_tokens(dataset, LSI_SPLIT_TRAIN), N_IDS);
    assert_int_equal(lsi_dataset_shape(dataset).n_classes, 70001);
    assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_VALIDATION, 0, in, out));
    assert_memory_equal(in, IDS(70000, 1), sizeof in);
    assert_memory_equal(out, IDS(1, 2), sizeof out);
    lsi_dataset_close(dataset);
}

static void tokens_must_be_in_the_vocabulary(void **state) {
    (void)state;
    lsi_dataset *dataset;
    lsi_tokenizer *tokenizer = tokenizer_of("byte");
    write_tokens("a.bin", 0, 0, 0, (const uint32_t[]){1, 255, 3}, 3, 2);
    assert_ok(open_tokens("a.bin", 1, tokenizer, &dataset));
    assert_int_equal(lsi_dataset_shape(dataset).n_classes, 256);
    lsi_dataset_close(dataset);
    write_tokens("a.bin", 0, 0, 0, (const uint32_t[]){1, 256, 3}, 3, 2);
    assert_fails(open_tokens("a.bin", 1, tokenizer, &dataset), LS_ERR_FORMAT,
                 "a.bin: its largest token is 256, the tokenizer has only 256; give the one that");
    lsi_tokenizer_destroy(tokenizer);
    write_tokens("a.bin", LLAMA3_MAGIC, 7, 2, (const uint32_t[]){1, INT32_MAX}, 2, 4);
    assert_fails(open_tokens("a.bin", 1, NULL, &dataset), LS_ERR_FORMAT,
                 "its largest token is 2147483647, expected less than 2147483647");
    write_tokens("a.bin", LLAMA3_MAGIC, 7, 2, (const uint32_t[]){UINT32_MAX, 1}, 2, 4);
    assert_fails(open_tokens("a.bin", 1, NULL, &dataset), LS_ERR_FORMAT,
                 "its largest token is 4294967295");
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void wrong_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        int32_t magic, version, n_said;
        size_t n;
        ls_status status;
        const char *message;
    } rows[] = {
        {GPT2_MAGIC, 2, 7, 7, LS_ERR_UNSUPPORTED, "version 2 of token files with magic number"},
        {GPT2_MAGIC, 0, 7, 7, LS_ERR_UNSUPPORTED, "version 0"},
        {LLAMA3_MAGIC, 1, 7, 7, LS_ERR_UNSUPPORTED, "version 1"},
        {GPT2_MAGIC, 1, 7, 6, LS_ERR_FORMAT, "says 7 tokens of 2 bytes, but 12 bytes follow"},
        {GPT2_MAGIC, 1, 6, 7, LS_ERR_FORMAT, "says 6 tokens of 2 bytes, but 14 bytes follow"},
        {GPT2_MAGIC, 1, -1, 7, LS_ERR_FORMAT, "says -1 tokens"},
        {GPT2_MAGIC, 1, INT32_MAX, 7, LS_ERR_FORMAT, "says 2147483647 tokens"},
        {GPT2_MAGIC, 1, INT32_MIN, 0, LS_ERR_FORMAT, "says -2147483648 tokens"},
        {GPT2_MAGIC, 1, 0, 0, LS_ERR_FORMAT, "0 tokens, of which the training split has 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_dataset *dataset;
        write_tokens("a.bin", rows[i].magic, rows[i].version, rows[i].n_said, IDS_OF_TEXT,
                     rows[i].n, 2);
        assert_fails(open_tokens("a.bin", 1, NULL, &dataset), rows[i].status, rows[i].message);
        assert_null(dataset);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    const int32_t magic = GPT2_MAGIC;
    lsi_dataset *dataset;
    write_whole(path_of("a.bin"), "", 0);
    assert_fails(open_tokens("a.bin", 1, NULL, &dataset), LS_ERR_FORMAT, "a.bin is empty");
    write_whole(path_of("a.bin"), "abc", 3);
    assert_fails(open_tokens("a.bin", 1, NULL, &dataset), LS_ERR_FORMAT,
                 "3 bytes are no whole number of uint16 tokens");
    write_whole(path_of("a.bin"), "ab", 2);
    assert_fails(open_tokens("a.bin", 1, NULL, &dataset), LS_ERR_FORMAT, "1 tokens, of which");
    write_whole(path_of("a.bin"), &magic, sizeof magic);
    assert_fails(open_tokens("a.bin", 1, NULL, &dataset), LS_ERR_FORMAT,
                 "4 bytes, expected a header of 1024");
    assert_ok(lsi_folder_make(path_of("folder.bin")));
    assert_fails(open_tokens("folder.bin", 1, NULL, &dataset), LS_ERR_IO, "is a folder");
    assert_fails(open_tokens("none.bin", 1, NULL, &dataset), LS_ERR_NOT_FOUND, "none.bin");
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void other_names_are_text(void **state) {
    (void)state;
    static const char *const names[] = {"a.txt", "bin", "a.bin.txt", "a.BIN"};
    bool is_text = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++, is_text = false) {
        put_text(path_of(names[i]), "abc");
        assert_ok(lsi_dataset_is_text(path_of(names[i]), &is_text));
        assert_true(is_text);
    }
    assert_fails(lsi_dataset_is_text(path_of("none"), &is_text), LS_ERR_NOT_FOUND, "none");
    assert_fails(lsi_dataset_is_text(NULL, &is_text), LS_ERR_ARGUMENT, "no path");
}

/* As much memory as a handle, whatever the size of the file; a new file may take the name. */
static void files_are_mapped(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    uint32_t *many = calloc(N, sizeof *many);
    int32_t in[4], out[4];
    lsi_dataset *dataset;
    for (uint32_t i = 0; i < N; i++) many[i] = i & 0xFFFF;
    write_tokens("a.bin", 0, 0, 0, many, N, 2);
    int64_t before = lsi_mem_now(LSI_MEM_OTHER);
    assert_ok(open_tokens("a.bin", 4, NULL, &dataset));
    assert_in_range(lsi_mem_now(LSI_MEM_OTHER) - before, 0, 4096);
    assert_int_equal(lsi_dataset_shape(dataset).n_classes, 65536);
    write_tokens("new", 0, 0, 0, many, 2, 2);
    assert_int_equal(rename(path_of("new"), path_of("a.bin")), 0);
    assert_ok(lsi_dataset_get(dataset, LSI_SPLIT_TRAIN, (N - 1) / 4 - 1, in, out));
    assert_int_equal(in[0], (N - 8) & 0xFFFF);
    lsi_dataset_close(dataset);
    free(many);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    write_tokens("a.bin", 0, 0, 0, IDS_OF_TEXT, N_IDS, 2);
    for (int64_t n = 1;; n++) {
        lsi_dataset *dataset;
        lsi_mem_fail_at(n);
        ls_status status = open_tokens("a.bin", 2, NULL, &dataset);
        double entropy = status == LS_OK ? lsi_dataset_unigram_entropy(dataset, 0) : 0;
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        if (status == LS_OK)
            assert_int_equal(isnan(entropy), failed);
        else
            assert_int_equal(status, LS_ERR_MEMORY);
        lsi_dataset_close(dataset);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(all_formats_give_the_same_samples),
        IN_SCRATCH(splits_are_shares_or_files),
        IN_SCRATCH(tokens_must_be_in_the_vocabulary),
        IN_SCRATCH(wrong_headers_are_refused),
        IN_SCRATCH(wrong_sizes_are_refused),
        IN_SCRATCH(other_names_are_text),
        IN_SCRATCH(files_are_mapped),
        IN_SCRATCH(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
