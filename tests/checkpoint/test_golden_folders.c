/* Folders that transformers wrote, in one file and in shards, in float32 and bfloat16: made again
 * from golden_folders.h, byte for byte by their sha256, and loaded to the right values. */
#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"
#include "checkpoint/files.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"

enum { MAX_FILES = 4 };

typedef struct golden_file {
    const char *name, *sha256, *header;
} golden_file;

typedef struct golden_folder {
    const char *name, *class;
    const char *config, *index; /* index NULL: one file */
    golden_file files[MAX_FILES];
} golden_folder;

#include "checkpoint/golden_folders.h"

/* golden_folders.py, fill: what element i of a tensor is. */
static float value_of(const char *name, int64_t i) {
    int64_t start = 0;
    for (const char *c = name; *c; c++) start += (unsigned char)*c;
    return (float)((i * 7 + start) % 64 - 32) / 64.0f;
}

/* ---- making a folder again ---- */

/* A tensor's bytes into their place behind the header. */
static void put_tensor(const char *name, const json_t *entry, char *data) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    bool is_half = strcmp(json_string_value(json_object_get(entry, "dtype")), "BF16") == 0;
    int64_t size = is_half ? 2 : 4;
    for (int64_t i = 0; i < (end - begin) / size; i++) {
        float value = value_of(name, i);
        uint16_t half = lsi_f32_to_bf16(value);
        memcpy(data + begin + i * size, is_half ? (const void *)&half : &value, (size_t)size);
    }
}

static int64_t data_bytes(const json_t *header) {
    int64_t bytes = 0;
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)header, name, entry) {
        int64_t end = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 1));
        if (end > bytes) bytes = end;
    }
    return bytes;
}

static void make_file(const char *folder, const golden_file *f) {
    json_t *header = json_loads(f->header, 0, NULL), *entry;
    assert_non_null(header);
    size_t header_bytes = strlen(f->header), bytes = 8 + header_bytes + (size_t)data_bytes(header);
    char *whole = calloc(1, bytes), path[PATH_MAX], found[LSI_SHA256_TEXT_BYTES];
    assert_non_null(whole);
    for (int i = 0; i < 8; i++) whole[i] = (char)(header_bytes >> (8 * i));
    memcpy(whole + 8, f->header, header_bytes);
    const char *name;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") != 0) put_tensor(name, entry, whole + 8 + header_bytes);
    }
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    lsi_sha256_update(&hash, whole, bytes);
    lsi_sha256_finish(&hash, found);
    assert_string_equal(found, f->sha256);
    snprintf(path, sizeof path, "%s/%s", folder, f->name);
    write_whole(path, whole, bytes);
    json_decref(header);
    free(whole);
}

static void make_folder(const golden_folder *g, char folder[PATH_MAX]) {
    char path[PATH_MAX + 64];
    snprintf(folder, PATH_MAX, "%s", path_of(g->name));
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_whole(path, g->config, strlen(g->config));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    if (g->index) write_whole(path, g->index, strlen(g->index));
    for (int i = 0; i < MAX_FILES && g->files[i].name; i++) make_file(folder, &g->files[i]);
}

/* ---- tests ---- */

static void assert_values(const lsi_model *model) {
    for (int i = 0; i < model->n_params; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", model->class->file_prefix, model->params[i].name);
        const float *values = lsi_model_values(model, i);
        for (int64_t e = 0; e < model->params[i].count; e++)
            if (values[e] != value_of(name, e))
                fail_msg("%s[%lld] is %g, expected %g", name, (long long)e, (double)values[e],
                         (double)value_of(name, e));
    }
}

static void folders_of_transformers_are_loaded(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        char folder[PATH_MAX];
        lsi_model *model;
        char *tokenizer;
        make_folder(&FOLDERS[i], folder);
        print_message("%s\n", FOLDERS[i].name);
        assert_ok(lsi_model_load(folder, &model, &tokenizer));
        assert_string_equal(model->class->name, FOLDERS[i].class);
        assert_null(tokenizer);
        assert_values(model);
        lsi_model_destroy(model);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

/* The header of a file of ours has the same entries as theirs. */
static void assert_same_entries(const char *path, const golden_file *f) {
    char *whole = read_whole(path, NULL);
    size_t header_bytes = (unsigned char)whole[0] + 256u * (unsigned char)whole[1];
    json_t *ours = json_loadb(whole + 8, header_bytes, 0, NULL);
    json_t *theirs = json_loads(f->header, 0, NULL);
    assert_non_null(ours);
    assert_true(json_equal(ours, theirs));
    json_decref(ours);
    json_decref(theirs);
    free(whole);
}

/* Loaded and saved again, in one file: names, shapes, types, places and bytes are theirs. */
static void our_files_are_those_of_transformers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        char folder[PATH_MAX];
        lsi_model *model;
        char *tokenizer;
        if (FOLDERS[i].index) continue;
        make_folder(&FOLDERS[i], folder);
        assert_ok(lsi_model_load(folder, &model, &tokenizer));
        bool is_half = strstr(FOLDERS[i].files[0].header, "BF16") != NULL;
        const lsi_model_save_opts opts = {.dtype = is_half ? LS_DTYPE_BF16 : LS_DTYPE_F32};
        assert_ok(lsi_model_save(model, &opts, path_of("again")));
        assert_same_entries(path_of("again/model.safetensors"), &FOLDERS[i].files[0]);
        lsi_model_destroy(model);
        assert_ok(lsi_model_load(path_of("again"), &model, &tokenizer));
        assert_values(model);
        lsi_model_destroy(model);
    }
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(folders_of_transformers_are_loaded),
        IN_SCRATCH(our_files_are_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
