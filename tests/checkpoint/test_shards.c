/* Model folders in shards: what is written, what an index must say, what an earlier model leaves,
 * and weights stored in half the bytes. */
#include <signal.h>
#include <sys/resource.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/files.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"

/* 28 parameters of 24 bytes and more: with the smallest cap each has a file of its own. */
static const lsi_model_config SMALL = {
    .n_layer = 2, .n_head = 2, .n_embd = 6, .seq_len = 5, .vocab_size = 11, .norm_epsilon = 1e-5};

static lsi_model *make_model(uint64_t seed) {
    const lsi_model_class *class;
    lsi_model *model;
    assert_ok(lsi_model_class_find("gpt2", &class));
    assert_ok(lsi_model_create(class, &SMALL, &model));
    lsi_model_init(model, seed);
    return model;
}

static ls_status save(const lsi_model *model, int64_t shard_bytes, const char *folder) {
    const lsi_model_save_opts opts = {.shard_bytes = shard_bytes};
    return lsi_model_save(model, &opts, folder);
}

static void assert_loads(const char *folder, const lsi_model *expected) {
    lsi_model *loaded;
    char *tokenizer;
    assert_ok(lsi_model_load(folder, &loaded, &tokenizer));
    char one[LSI_SHA256_TEXT_BYTES], two[LSI_SHA256_TEXT_BYTES];
    lsi_model_sha256(loaded, one);
    lsi_model_sha256(expected, two);
    assert_string_equal(one, two);
    lsi_free(tokenizer);
    lsi_model_destroy(loaded);
}

static json_t *read_index(void) {
    json_t *index;
    assert_ok(lsi_file_read_json(path_of("m/model.safetensors.index.json"), 1 << 20, &index));
    return index;
}

static bool is_there(const char *name) {
    return access(path_of(name), F_OK) == 0;
}

/* ---- what is written ---- */

static int64_t bytes_of(const lsi_model *model) {
    int64_t bytes = 0;
    for (int i = 0; i < model->n_params; i++)
        bytes += model->params[i].count * (int64_t)sizeof(float);
    return bytes;
}

/* Each shard holds at most the cap, or one tensor. */
static void check_shard(const char *name, int64_t cap) {
    char path[128];
    lsi_st_file *file;
    snprintf(path, sizeof path, "m/%s", name);
    assert_ok(lsi_st_open(path_of(path), &file));
    int64_t bytes = 0;
    for (int i = 0; i < lsi_st_n_tensors(file); i++)
        bytes += (int64_t)lsi_st_tensor_at(file, i)->bytes;
    assert_true(bytes <= cap || lsi_st_n_tensors(file) == 1);
    assert_true(bytes > 0);
    lsi_st_close(file);
}

static void shards_hold_what_fits_and_come_back(void **state) {
    (void)state;
    lsi_model *model = make_model(1);
    int64_t whole = bytes_of(model);
    const struct {
        int64_t cap;
        int n_shards; /* 0: not said */
    } rows[] = {{1, 28}, {24, 28}, {100, 0}, {500, 0}, {2000, 0}, {whole - 1, 2}, {whole, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(save(model, rows[i].cap, path_of("m")));
        assert_loads(path_of("m"), model);
        int n_files = n_files_in(path_of("m"));
        if (rows[i].n_shards == 1) {
            assert_int_equal(n_files, 2);
            continue;
        }
        if (rows[i].n_shards) assert_int_equal(n_files, rows[i].n_shards + 2);
        for (int s = 1; s <= n_files - 2; s++) {
            char name[64];
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s, n_files - 2);
            check_shard(name, rows[i].cap);
        }
        json_t *index = read_index(), *map = json_object_get(index, "weight_map");
        assert_int_equal(json_object_size(map), model->n_params);
        assert_int_equal(
            json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
            whole);
        json_decref(index);
    }
    lsi_model_destroy(model);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void one_model_leaves_nothing_of_an_earlier_one(void **state) {
    (void)state;
    static const int64_t caps[] = {1, 500, 1, 2000, 0, 500, 0, 0, 1};
    lsi_model *model[] = {make_model(1), make_model(2)};
    assert_ok(save(model[0], 0, path_of("m")));
    static const char *const strangers[] = {"m/model-1-of-2.safetensors", "m/notes.txt",
                                            "m/adapter.safetensors",
                                            "m/model-00001-of-00002.safetensors.bak"};
    for (int i = 0; i < 4; i++) write_whole(path_of(strangers[i]), "x", 1);
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
        assert_ok(save(model[i % 2], caps[i], path_of("m")));
        assert_loads(path_of("m"), model[i % 2]);
        assert_true(is_there("m/model.safetensors") == (caps[i] == 0));
        assert_true(is_there("m/model.safetensors.index.json") == (caps[i] != 0));
        if (caps[i] == 1) assert_int_equal(n_files_in(path_of("m")), 4 + 30);
        if (caps[i] == 0) assert_int_equal(n_files_in(path_of("m")), 4 + 2);
    }
    for (int i = 0; i < 4; i++) assert_true(is_there(strangers[i]));
    lsi_model_destroy(model[0]);
    lsi_model_destroy(model[1]);
}

static void one_file_counts_before_an_index(void **state) {
    (void)state;
    lsi_model *one = make_model(1), *many = make_model(2);
    assert_ok(save(many, 500, path_of("m")));
    assert_ok(save(one, 0, path_of("other")));
    size_t bytes;
    char *whole = read_whole(path_of("other/model.safetensors"), &bytes);
    write_whole(path_of("m/model.safetensors"), whole, bytes);
    assert_loads(path_of("m"), one);
    free(whole);
    lsi_model_destroy(one);
    lsi_model_destroy(many);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    lsi_model *model = make_model(1);
    const lsi_model_save_opts opts[] = {{.shard_bytes = -1}, {.dtype = LS_DTYPE_F16}};
    assert_fails(lsi_model_save(model, &opts[0], path_of("m")), LS_ERR_ARGUMENT, "shard_bytes");
    assert_fails(lsi_model_save(model, &opts[1], path_of("m")), LS_ERR_ARGUMENT, "F16");
    assert_false(is_there("m"));
    lsi_model_destroy(model);
}

/* ---- what an index must say ---- */

/* Two shards "a" and "b" of the model, cut in the middle of the parameters; a tensor of the first
 * stands in both when `doubled`. */
static void write_shards(const lsi_model *model, bool doubled) {
    lsi_st_tensor tensors[2][32];
    int n[2] = {0};
    static char names[32][64];
    for (int i = 0; i < model->n_params; i++) {
        int half = i >= model->n_params / 2;
        const lsi_param_shape *shape = &model->shapes[i];
        lsi_st_tensor t = {.dtype = LS_DTYPE_F32,
                           .n_dims = shape->n_dims,
                           .data = model->params[i].data,
                           .bytes = (size_t)model->params[i].count * sizeof(float)};
        snprintf(names[i], sizeof names[i], "transformer.%s", model->params[i].name);
        t.name = names[i];
        memcpy(t.dims, shape->dims, (size_t)shape->n_dims * sizeof *t.dims);
        tensors[half][n[half]++] = t;
        if (doubled && i == 0) tensors[1][n[1]++] = t;
    }
    assert_ok(lsi_st_write(path_of("m/a.safetensors"), tensors[0], n[0], NULL));
    assert_ok(lsi_st_write(path_of("m/b.safetensors"), tensors[1], n[1], NULL));
}

static json_t *make_map(const lsi_model *model) {
    json_t *map = json_object();
    for (int i = 0; i < model->n_params; i++) {
        char name[64];
        snprintf(name, sizeof name, "transformer.%s", model->params[i].name);
        json_object_set_new(
            map, name, json_string(i >= model->n_params / 2 ? "b.safetensors" : "a.safetensors"));
    }
    return map;
}

static ls_status load(void) {
    lsi_model *loaded = NULL;
    char *tokenizer = NULL;
    ls_status status = lsi_model_load(path_of("m"), &loaded, &tokenizer);
    if (status != LS_OK) {
        assert_null(loaded);
        assert_null(tokenizer);
    }
    lsi_free(tokenizer);
    lsi_model_destroy(loaded);
    return status;
}

static void write_index(json_t *index) {
    assert_ok(lsi_file_replace_json(path_of("m/model.safetensors.index.json"), index));
    json_decref(index);
}

#define FIRST "transformer.wte.weight"

static void maps_that_disagree_with_the_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *key, *value; /* value NULL: the entry is taken out; "": no text */
        bool doubled;
        ls_status status;
        const char *message;
    } rows[] = {
        {FIRST, "a.safetensors", false, LS_OK, NULL},
        {FIRST, NULL, false, LS_ERR_FORMAT,
         "tensor '" FIRST "' of a.safetensors is not in \"weight_map\""},
        {FIRST, "b.safetensors", false, LS_ERR_FORMAT,
         "tensor '" FIRST "' is in a.safetensors, \"weight_map\" says 'b.safetensors'"},
        {"more", "b.safetensors", false, LS_ERR_FORMAT,
         "\"weight_map\" has tensor 'more' in 'b.safetensors', which lacks it"},
        {FIRST, "a.safetensors", true, LS_ERR_FORMAT,
         "tensor '" FIRST "' is in b.safetensors, \"weight_map\" says 'a.safetensors'"},
        {"more", "c.safetensors", false, LS_ERR_NOT_FOUND, "m/c.safetensors"},
        {"more", "", false, LS_ERR_FORMAT, "the value of 'more' is not a text"},
        {"more", "../m/a.safetensors", false, LS_ERR_FORMAT, "tensor 'more' is in '../m/a.safe"},
        {"more", "/a.safetensors", false, LS_ERR_FORMAT, "expected the name of a file in the same"},
        {"more", "x/a.safetensors", false, LS_ERR_FORMAT, "x/a.safetensors"},
        {"more", "..safetensors", false, LS_ERR_FORMAT, "'..safetensors'"},
        {"more", ".safetensors", false, LS_ERR_FORMAT, "'.safetensors'"},
        {"more", "pytorch_model.bin", false, LS_ERR_FORMAT, "ends with .safetensors"},
        {"more", "a.safetensors\n", false, LS_ERR_FORMAT, "'a.safetensors?'"},
    };
    lsi_model *model = make_model(1);
    int64_t n_before = lsi_mem_n_blocks();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ok(save(model, 0, path_of("m")));
        assert_int_equal(unlink(path_of("m/model.safetensors")), 0);
        write_shards(model, rows[i].doubled);
        json_t *map = make_map(model);
        if (!rows[i].value)
            json_object_del(map, rows[i].key);
        else
            json_object_set_new(map, rows[i].key,
                                rows[i].value[0] ? json_string(rows[i].value) : json_integer(7));
        write_index(json_pack("{s:o}", "weight_map", map));
        if (rows[i].status == LS_OK)
            assert_ok(load());
        else
            assert_fails(load(), rows[i].status, rows[i].message);
        assert_int_equal(lsi_mem_n_blocks(), n_before);
    }
    lsi_model_destroy(model);
}

static void indexes_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "index.json"},
        {"[]", "\"weight_map\" is missing"},
        {"{}", "\"weight_map\" is missing"},
        {"{'weight_map':[]}", "\"weight_map\" is no object"},
        {"{'weight_map':{}}", "or an empty one"},
        {"{'weight_map':{'a':'a.safetensors','a':'b.safetensors'}}", "duplicate"},
        {"{'weight_map':{'a':'a.safetensors'}", "index.json"},
    };
    lsi_model *model = make_model(1);
    assert_ok(save(model, 500, path_of("m")));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[128];
        strcpy(text, rows[i].text);
        for (char *c = text; *c; c++)
            if (*c == '\'') *c = '"';
        write_whole(path_of("m/model.safetensors.index.json"), text, strlen(text));
        assert_fails(load(), LS_ERR_FORMAT, rows[i].message);
        assert_fails(load(), LS_ERR_FORMAT, "loading the model: ");
    }
    lsi_model_destroy(model);
}

static void bad_shards_are_named(void **state) {
    (void)state;
    static const char NAME[] = "m/model-00003-of-00028.safetensors";
    lsi_model *model = make_model(1);
    assert_ok(save(model, 1, path_of("m")));
    size_t bytes;
    char *whole = read_whole(path_of(NAME), &bytes);
    write_whole(path_of(NAME), whole, bytes - 1);
    assert_fails(load(), LS_ERR_FORMAT, NAME);
    write_whole(path_of(NAME), whole, 5);
    assert_fails(load(), LS_ERR_FORMAT, NAME);
    assert_int_equal(unlink(path_of(NAME)), 0);
    assert_fails(load(), LS_ERR_NOT_FOUND, NAME);
    free(whole);
    /* the wrong shape is told with the shard that has it */
    assert_ok(save(model, 1, path_of("m")));
    json_t *config;
    assert_ok(lsi_file_read_json(path_of("m/config.json"), 1 << 16, &config));
    json_object_set_new(config, "vocab_size", json_integer(12));
    assert_ok(lsi_file_replace_json(path_of("m/config.json"), config));
    json_decref(config);
    assert_fails(load(), LS_ERR_FORMAT, "m/model-00001-of-00028.safetensors: tensor '" FIRST);
    lsi_model_destroy(model);
}

static void folders_of_pickles_say_what_to_do(void **state) {
    (void)state;
    lsi_model *model = make_model(1);
    assert_ok(save(model, 0, path_of("m")));
    assert_int_equal(unlink(path_of("m/model.safetensors")), 0);
    assert_fails(load(), LS_ERR_NOT_FOUND, "and no model.safetensors.index.json either");
    write_whole(path_of("m/pytorch_model.bin"), "x", 1);
    assert_fails(load(), LS_ERR_NOT_FOUND, "pytorch_model.bin is not read");
    lsi_model_destroy(model);
}

/* ---- half the bytes ---- */

static void bf16_is_rounded_to_nearest_even(void **state) {
    (void)state;
    lsi_model *model = make_model(1), *loaded;
    char *tokenizer;
    float *weights = model->params[0].data;
    weights[0] = 1.00390625f;     /* a tie: down to 1, which is even */
    weights[1] = 1.01171875f;     /* a tie: up to 1.015625 */
    weights[2] = -3.40282347e38f; /* to minus infinity */
    for (int64_t cap = 0; cap < 2; cap++) {
        const lsi_model_save_opts opts = {.dtype = LS_DTYPE_BF16, .shard_bytes = cap};
        assert_ok(lsi_model_save(model, &opts, path_of("m")));
        assert_ok(lsi_model_load(path_of("m"), &loaded, &tokenizer));
        for (int i = 0; i < model->n_params; i++) {
            const float *a = model->params[i].data, *b = loaded->params[i].data;
            for (int64_t e = 0; e < model->params[i].count; e++)
                assert_true(b[e] == lsi_bf16_to_f32(lsi_f32_to_bf16(a[e])));
        }
        weights = loaded->params[0].data;
        assert_true(weights[0] == 1.0f && weights[1] == 1.015625f && weights[2] < -3.4e38f);
        lsi_free(tokenizer);
        lsi_model_destroy(loaded);
    }
    json_t *config, *index = read_index();
    assert_ok(lsi_file_read_json(path_of("m/config.json"), 1 << 16, &config));
    assert_string_equal(json_string_value(json_object_get(config, "torch_dtype")), "bfloat16");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
        bytes_of(model) / 2);
    json_decref(config);
    json_decref(index);
    lsi_model_destroy(model);
}

/* ---- faults ---- */

static void every_failed_allocation_is_answered(void **state) {
    (void)state;
    lsi_model *model = make_model(1);
    int64_t n = 0, n_before = lsi_mem_n_blocks();
    ls_status status;
    do {
        lsi_mem_fail_at(++n);
        status = save(model, 2000, path_of("m"));
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), n_before);
    } while (status != LS_OK);
    n = 0;
    do {
        lsi_mem_fail_at(++n);
        status = load();
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), n_before);
    } while (status != LS_OK);
    assert_true(n > 20);
    lsi_model_destroy(model);
}

static void full_disk_leaves_the_old_model(void **state) {
    (void)state;
    static const rlim_t rooms[] = {0, 100, 1000, 2000};
    static const int64_t caps[] = {0, 4000};
    lsi_model *old = make_model(1), *new = make_model(2);
    struct rlimit usual, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int before = 0; before < 2; before++) {
        assert_ok(save(old, caps[before], path_of("m")));
        int n_files = n_files_in(path_of("m"));
        for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
            limit = usual;
            limit.rlim_cur = rooms[i];
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
            ls_status status = save(new, 4000, path_of("m"));
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
            assert_fails(status, LS_ERR_IO, "saving the model: ");
            assert_int_equal(n_files_in(path_of("m")), n_files);
            assert_loads(path_of("m"), old);
        }
    }
    signal(SIGXFSZ, handler);
    lsi_model_destroy(old);
    lsi_model_destroy(new);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(shards_hold_what_fits_and_come_back),
        IN_SCRATCH(one_model_leaves_nothing_of_an_earlier_one),
        IN_SCRATCH(one_file_counts_before_an_index),
        IN_SCRATCH(bad_options_are_refused),
        IN_SCRATCH(maps_that_disagree_with_the_files_are_refused),
        IN_SCRATCH(indexes_that_are_none_are_refused),
        IN_SCRATCH(bad_shards_are_named),
        IN_SCRATCH(folders_of_pickles_say_what_to_do),
        IN_SCRATCH(bf16_is_rounded_to_nearest_even),
        IN_SCRATCH(every_failed_allocation_is_answered),
        IN_SCRATCH(full_disk_leaves_the_old_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
