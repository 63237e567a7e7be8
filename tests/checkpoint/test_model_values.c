/* Values that come from files in pieces, and go to files one parameter at a time: against models
 * that have all of them in memory. */
#include "base/mem.h"
#include "checkpoint/files.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"
#include "nn/every_class.h"

enum { SEED = 3, MAX_TENSORS = 64 };

static lsi_model *make_model(const lsi_model_class *class, uint64_t seed) {
    lsi_model *model;
    const lsi_model_config config = small_config(class);
    assert_ok(lsi_model_create(class, &config, &model));
    lsi_model_init(model, seed);
    return model;
}

static lsi_model *make_hollow(const lsi_model_class *class) {
    lsi_model *model;
    const lsi_model_config config = small_config(class);
    assert_ok(lsi_model_create_hollow(class, &config, &model));
    return model;
}

static ls_status save(const lsi_model *model, ls_dtype dtype, int64_t shard_bytes,
                      const char *folder) {
    const lsi_model_save_opts opts = {.dtype = dtype, .shard_bytes = shard_bytes};
    return lsi_model_save(model, &opts, folder);
}

/* ---- files of other types ---- */

static bool is_weights(const char *name) {
    size_t n = strlen(name), ending = strlen(".safetensors");
    return n > ending && strcmp(name + n - ending, ".safetensors") == 0;
}

/* Any bits will do, for F16 those of denormal numbers and infinities as well. */
static void *convert(ls_dtype dtype, const void *values, size_t count) {
    size_t bytes = ls_dtype_bytes(dtype);
    char *made = malloc(count * bytes + 1);
    assert_non_null(made);
    for (size_t e = 0; e < count; e++) {
        uint32_t bits;
        float value;
        memcpy(&bits, (const char *)values + e * sizeof bits, sizeof bits);
        memcpy(&value, &bits, sizeof value);
        const double wide = (double)value + 1e-9;
        const uint16_t high = (uint16_t)(bits >> 16), low = (uint16_t)bits;
        if (dtype == LS_DTYPE_F32) memcpy(made + e * bytes, &bits, bytes);
        if (dtype == LS_DTYPE_F64) memcpy(made + e * bytes, &wide, bytes);
        if (dtype == LS_DTYPE_BF16) memcpy(made + e * bytes, &high, bytes);
        if (dtype == LS_DTYPE_F16) memcpy(made + e * bytes, &low, bytes);
    }
    return made;
}

static void retype_file(const char *path, ls_dtype dtype) {
    lsi_st_file *file;
    lsi_st_tensor tensors[MAX_TENSORS];
    void *made[MAX_TENSORS];
    assert_ok(lsi_st_open(path, &file));
    int n = lsi_st_n_tensors(file);
    assert_true(n <= MAX_TENSORS);
    for (int i = 0; i < n; i++) {
        tensors[i] = *lsi_st_tensor_at(file, i);
        size_t count = tensors[i].bytes / sizeof(float);
        made[i] = convert(dtype, tensors[i].data, count);
        tensors[i].data = made[i];
        tensors[i].dtype = dtype;
        tensors[i].bytes = count * ls_dtype_bytes(dtype);
    }
    assert_ok(lsi_st_write(path, tensors, n, NULL));
    for (int i = 0; i < n; i++) free(made[i]);
    lsi_st_close(file);
}

static void retype_folder(const char *folder, ls_dtype dtype) {
    struct dirent **entries;
    char path[PATH_MAX];
    int n = scandir(folder, &entries, NULL, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (is_weights(path)) retype_file(path, dtype);
        free(entries[i]);
    }
    free(entries);
}

/* ---- from files, in pieces ---- */

static void assert_pieces(const lsi_model *whole, lsi_model_source *source, int i) {
    const int64_t count = whole->params[i].count, lengths[] = {0, 1, 2, 3, 7, 256, count};
    const float untouched = 42.0f, *expected = whole->params[i].data;
    float *piece = malloc(((size_t)count + 2) * sizeof *piece);
    assert_non_null(piece);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int64_t begin = 0; begin + lengths[k] <= count; begin++) {
            piece[0] = piece[lengths[k] + 1] = untouched;
            assert_ok(lsi_model_source_fill(source, i, begin, lengths[k], piece + 1));
            assert_memory_equal(piece + 1, expected + begin, (size_t)lengths[k] * sizeof *piece);
            assert_true(piece[0] == untouched && piece[lengths[k] + 1] == untouched);
        }
    free(piece);
}

static void pieces_of_files_are_those_of_the_whole(void **state) {
    (void)state;
    static const ls_dtype dtypes[] = {LS_DTYPE_F32, LS_DTYPE_BF16, LS_DTYPE_F16, LS_DTYPE_F64};
    static const int64_t caps[] = {0, 500};
    for (int c = 0; lsi_model_classes[c]; c++)
        for (int way = 0; way < 8; way++) {
            lsi_model *model = make_model(lsi_model_classes[c], SEED), *whole, *hollow;
            assert_ok(save(model, 0, caps[way % 2], path_of("m")));
            lsi_model_destroy(model);
            retype_folder(path_of("m"), dtypes[way / 2]);
            assert_int_equal(n_files_in(path_of("m")) > 2, caps[way % 2] > 0);
            lsi_model_source *source;
            char *tokenizer;
            assert_ok(lsi_model_open(path_of("m"), &hollow, &source, &tokenizer));
            assert_null(tokenizer);
            assert_int_equal(lsi_mem_now(LSI_MEM_PARAMS), 0);
            assert_ok(lsi_model_load(path_of("m"), &whole, &tokenizer));
            assert_int_equal(hollow->n_params, whole->n_params);
            for (int i = 0; i < whole->n_params; i++) assert_pieces(whole, source, i);
            lsi_model_source_close(source);
            lsi_model_destroy(hollow);
            lsi_model_destroy(whole);
            assert_int_equal(lsi_mem_n_blocks(), 0);
        }
    lsi_model_source_close(NULL);
}

/* ---- opening ---- */

static void drop_shard(void) {
    assert_int_equal(unlink(path_of("m/model-00003-of-00028.safetensors")), 0);
}

static void retype_to_integers(void) {
    const char *path = path_of("m/model-00001-of-00028.safetensors");
    lsi_st_file *file;
    assert_ok(lsi_st_open(path, &file));
    lsi_st_tensor t = *lsi_st_tensor_at(file, 0);
    t.dtype = LS_DTYPE_I32;
    assert_ok(lsi_st_write(path, &t, 1, NULL));
    lsi_st_close(file);
}

static void cut_table(void) {
    const char *path = path_of("m/model-00002-of-00028.safetensors");
    lsi_st_file *file;
    assert_ok(lsi_st_open(path, &file));
    lsi_st_tensor t = *lsi_st_tensor_at(file, 0);
    t.dims[0]--;
    t.bytes -= (size_t)t.dims[1] * sizeof(float);
    assert_ok(lsi_st_write(path, &t, 1, NULL));
    lsi_st_close(file);
}

/* test_model_folder.c and test_shards.c have every fault; these are seen without reading values. */
static void faults_are_found_when_a_folder_is_opened(void **state) {
    (void)state;
    static const struct {
        void (*change)(void);
        ls_status status;
        const char *message;
    } rows[] = {
        {drop_shard, LS_ERR_NOT_FOUND, "m/model-00003-of-00028.safetensors"},
        {retype_to_integers, LS_ERR_UNSUPPORTED, "'transformer.wte.weight': dtype I32, expected"},
        {cut_table, LS_ERR_FORMAT, "'transformer.wpe.weight': expected shape (7, 12), found (6,"},
    };
    lsi_model *model = make_model(lsi_model_classes[0], SEED);
    int64_t n_blocks = lsi_mem_n_blocks();
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        lsi_model *opened = NULL;
        lsi_model_source *source = NULL;
        char *tokenizer = NULL;
        assert_ok(save(model, 0, 1, path_of("m")));
        rows[r].change();
        ls_status status = lsi_model_open(path_of("m"), &opened, &source, &tokenizer);
        assert_fails(status, rows[r].status, rows[r].message);
        assert_fails(status, rows[r].status, "loading the model: ");
        assert_true(!opened && !source && !tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
    }
    lsi_model_destroy(model);
}

static void every_failed_allocation_of_opening_is_answered(void **state) {
    (void)state;
    lsi_model *model = make_model(lsi_model_classes[0], SEED);
    assert_ok(save(model, 0, 500, path_of("m")));
    lsi_model_destroy(model);
    for (int64_t n = 1;; n++) {
        lsi_model *opened = NULL;
        lsi_model_source *source = NULL;
        char *tokenizer = NULL;
        lsi_mem_fail_at(n);
        ls_status status = lsi_model_open(path_of("m"), &opened, &source, &tokenizer);
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_true(has_failed ? !opened && !source : opened && source);
        lsi_model_source_close(source);
        lsi_model_destroy(opened);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!has_failed) {
            assert_true(n > 20);
            return;
        }
    }
}

/* ---- to files, one parameter at a time ---- */

/* One parameter's values, those of the last one gone; and who was asked for. */
typedef struct one_at_a_time {
    lsi_initial_values from;
    float values[2048];
    int calls[MAX_TENSORS], n_calls;
    int fail_at; /* call; -1: none */
} one_at_a_time;

static ls_status get_one(void *context, int i, const float **values) {
    one_at_a_time *one = context;
    int64_t count = one->from.model->params[i].count;
    assert_true(count <= 2048 && one->n_calls < MAX_TENSORS);
    if (one->n_calls == one->fail_at) return lsi_fail(LS_ERR_SYSTEM, "call %d", one->n_calls);
    one->calls[one->n_calls++] = i;
    memset(one->values, 0xff, sizeof one->values);
    *values = one->values;
    return lsi_initial_values_fill(&one->from, i, 0, count, one->values);
}

/* Names and bytes of all files with weights, and of their index. */
static void hash_folder(const char *folder, char text[LSI_SHA256_TEXT_BYTES]) {
    struct dirent **entries;
    char path[PATH_MAX];
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    int n = scandir(folder, &entries, NULL, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (strncmp(name, "model", 5) == 0) {
            size_t bytes;
            snprintf(path, sizeof path, "%s/%s", folder, name);
            char *data = read_whole(path, &bytes);
            lsi_sha256_update(&hash, name, strlen(name) + 1);
            lsi_sha256_update(&hash, data, bytes);
            free(data);
        }
        free(entries[i]);
    }
    free(entries);
    lsi_sha256_finish(&hash, text);
}

static const lsi_model_save_opts WAYS[] = {
    {.dtype = LS_DTYPE_F32},
    {.dtype = LS_DTYPE_F32, .shard_bytes = 600},
    {.dtype = LS_DTYPE_BF16},
    {.dtype = LS_DTYPE_BF16, .shard_bytes = 600},
};
enum { N_WAYS = sizeof WAYS / sizeof *WAYS };

static void files_and_hashes_are_those_of_a_model_in_memory(void **state) {
    (void)state;
    for (int c = 0; lsi_model_classes[c]; c++) {
        lsi_model *whole = make_model(lsi_model_classes[c], SEED);
        lsi_model *hollow = make_hollow(lsi_model_classes[c]);
        char a[LSI_SHA256_TEXT_BYTES], b[LSI_SHA256_TEXT_BYTES];
        one_at_a_time one = {.from = {hollow, SEED}, .fail_at = -1};
        assert_ok(lsi_model_sha256_from(hollow, get_one, &one, a));
        lsi_model_sha256(whole, b);
        assert_string_equal(a, b);
        for (int way = 0; way < N_WAYS; way++) {
            one.n_calls = 0;
            assert_ok(lsi_model_save_from(hollow, &WAYS[way], path_of("a"), get_one, &one));
            assert_ok(lsi_model_save(whole, &WAYS[way], path_of("b")));
            assert_int_equal(n_files_in(path_of("a")), n_files_in(path_of("b")));
            hash_folder(path_of("a"), a);
            hash_folder(path_of("b"), b);
            assert_string_equal(a, b);
        }
        lsi_model_destroy(hollow);
        lsi_model_destroy(whole);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* A hash for each row of WAYS: a change means that files are no longer what they were. */
static void bytes_of_files_never_change(void **state) {
    (void)state;
    static const struct {
        const char *class;
        const char *sha256[N_WAYS];
    } rows[] = {
        {"gpt2",
         {"dca6e0677a9f8e686d078c820c918de20571d9dffd6826994de1d3cd6dac436a",
          "368add0d8c919b4c2cc75b4545a7c70ffc535ae477512c12d01b9fbe1ded4791",
          "3cda5d9427be99a0b223fc9eba1cf305394501a9e7fc2ced926dc2e035f4eb7c",
          "c0be5115e9381683d9f809ae4049dd339b8356855d12de1493a7b89bf5f7b22f"}},
        {"llama",
         {"a32deff8394b5b7dd7ba5795b2f8f7264d8bd93e6a101a17b1519c51f7db109a",
          "2ccd31ed4c62487dc497909c99659de03c5b71149185f1792b879f4189620386",
          "0ea00214dd7453bb50d17ff4ea2d55f5801e6418aff01659f6f2edeee847bd02",
          "7ecac6389fda118542c4a42010ddb6acdd7ad8c38b9b71000cf44fa972c39cc9"}},
        {"mlp",
         {"2243c15998d98511476ebd08d96831942df333c1a46ac1abdf07c71d1a0fa33a",
          "083330b48419bff98358a04c732c0c19e07b6705ac16816559a00583d04e30d9",
          "928ae7bac4426cb020fa209819dd1fb4169ab33f799e5f22f5eb34e3c2764eee",
          "928ae7bac4426cb020fa209819dd1fb4169ab33f799e5f22f5eb34e3c2764eee"}},
        {"convnet",
         {"5233c5e861084d7aa45ee10ecbde7daa9d575b523ed052103911bf78766c9299",
          "fbc86547e55cfeaeb841e626cb70d5d90bf0003c292107d7a64030929324c7a2",
          "844af3ff1b5455dbd7740620d45aa63334da7c4cc41e60472044dfb0e4d6b568",
          "408bc36c0fb5babe3f314998f2f2abb3c858cd2e88dfad4f6ac85f628d809497"}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const lsi_model_class *class;
        assert_ok(lsi_model_class_find(rows[r].class, &class));
        lsi_model *model = make_model(class, SEED);
        for (int way = 0; way < N_WAYS; way++) {
            char found[LSI_SHA256_TEXT_BYTES];
            assert_ok(lsi_model_save(model, &WAYS[way], path_of("m")));
            hash_folder(path_of("m"), found);
            assert_string_equal(found, rows[r].sha256[way]);
        }
        lsi_model_destroy(model);
    }
}

static void walking_asks_in_the_order_of_saving(void **state) {
    (void)state;
    for (int c = 0; lsi_model_classes[c]; c++) {
        lsi_model *hollow = make_hollow(lsi_model_classes[c]);
        for (int way = 0; way < N_WAYS; way++) {
            one_at_a_time saved = {.from = {hollow, SEED}, .fail_at = -1}, walked = saved;
            bool is_seen[MAX_TENSORS] = {false};
            assert_ok(lsi_model_save_from(hollow, &WAYS[way], path_of("m"), get_one, &saved));
            assert_ok(lsi_model_walk(hollow, &WAYS[way], get_one, &walked));
            assert_int_equal(saved.n_calls, hollow->n_params);
            assert_int_equal(walked.n_calls, hollow->n_params);
            assert_memory_equal(walked.calls, saved.calls,
                                (size_t)saved.n_calls * sizeof *saved.calls);
            for (int k = 0; k < saved.n_calls; k++) {
                assert_false(is_seen[saved.calls[k]]);
                is_seen[saved.calls[k]] = true;
            }
        }
        lsi_model_destroy(hollow);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- faults ---- */

static void values_that_fail_leave_the_old_folder(void **state) {
    (void)state;
    static const int64_t caps[] = {0, 900};
    lsi_model *old = make_model(lsi_model_classes[0], SEED + 1);
    lsi_model *hollow = make_hollow(lsi_model_classes[0]);
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int before = 0; before < 2; before++) {
        char kept[LSI_SHA256_TEXT_BYTES], found[LSI_SHA256_TEXT_BYTES] = "untouched";
        assert_ok(save(old, 0, caps[before], path_of("m")));
        hash_folder(path_of("m"), kept);
        int n_files = n_files_in(path_of("m"));
        for (int n = 0; n < hollow->n_params * 2; n++) {
            char message[64];
            one_at_a_time one = {.from = {hollow, SEED}, .fail_at = n / 2};
            const lsi_model_save_opts opts = {.shard_bytes = caps[n % 2]};
            snprintf(message, sizeof message, "saving the model: call %d", n / 2);
            assert_fails(lsi_model_save_from(hollow, &opts, path_of("m"), get_one, &one),
                         LS_ERR_SYSTEM, message);
            assert_int_equal(n_files_in(path_of("m")), n_files);
            hash_folder(path_of("m"), found);
            assert_string_equal(found, kept);
            one.n_calls = 0;
            assert_fails(lsi_model_walk(hollow, &opts, get_one, &one), LS_ERR_SYSTEM, message);
            one.n_calls = 0;
            assert_fails(lsi_model_sha256_from(hollow, get_one, &one, found), LS_ERR_SYSTEM,
                         message + strlen("saving the model: "));
            assert_string_equal(found, kept);
            assert_int_equal(lsi_mem_n_blocks(), n_blocks);
        }
    }
    lsi_model_destroy(hollow);
    lsi_model_destroy(old);
}

static void hollow_models_have_nothing_to_save(void **state) {
    (void)state;
    lsi_model *hollow = make_hollow(lsi_model_classes[0]);
    assert_fails(lsi_model_save(hollow, NULL, path_of("m")), LS_ERR_STATE,
                 "parameter h.0.attn.c_attn.bias has no float32 values here");
    assert_int_equal(n_files_in(path_of("m")), 0);
    lsi_model_destroy(hollow);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void every_failed_allocation_of_walking_is_answered(void **state) {
    (void)state;
    lsi_model *hollow = make_hollow(lsi_model_classes[0]);
    int64_t n_blocks = lsi_mem_n_blocks();
    ls_status status;
    int64_t n = 0;
    do {
        one_at_a_time one = {.from = {hollow, SEED}, .fail_at = -1};
        lsi_mem_fail_at(++n);
        status = lsi_model_walk(hollow, &WAYS[1], get_one, &one);
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
    } while (status != LS_OK);
    assert_true(n > 3);
    lsi_model_destroy(hollow);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(pieces_of_files_are_those_of_the_whole),
        IN_SCRATCH(faults_are_found_when_a_folder_is_opened),
        IN_SCRATCH(every_failed_allocation_of_opening_is_answered),
        IN_SCRATCH(files_and_hashes_are_those_of_a_model_in_memory),
        IN_SCRATCH(bytes_of_files_never_change),
        IN_SCRATCH(walking_asks_in_the_order_of_saving),
        IN_SCRATCH(values_that_fail_leave_the_old_folder),
        IN_SCRATCH(hollow_models_have_nothing_to_save),
        cmocka_unit_test(every_failed_allocation_of_walking_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
