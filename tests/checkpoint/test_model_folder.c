/* Model folders: saved and loaded to the bit, and every way in which one can be wrong. */
#include "checkpoint/model_folder.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"

static const lsi_model_config SMALL = {.n_layer = 2,
                                       .n_head = 2,
                                       .n_embd = 6,
                                       .seq_len = 5,
                                       .vocab_size = 11,
                                       .dropout = 0.25,
                                       .norm_epsilon = 1e-5};

static lsi_model *make_model(const lsi_model_config *config, uint64_t seed) {
    const lsi_model_class *class;
    lsi_model *model;
    assert_ok(lsi_model_class_find("gpt2", &class));
    assert_ok(lsi_model_create(class, config, &model));
    lsi_model_init(model, seed);
    return model;
}

static ls_status save_as(const lsi_model *model, const char *tokenizer, const char *folder) {
    const lsi_model_save_opts opts = {.tokenizer = tokenizer};
    return lsi_model_save(model, &opts, folder);
}

static void assert_same_model(const lsi_model *found, const lsi_model *expected) {
    assert_ptr_equal(found->class, expected->class);
    const lsi_model_config *a = &found->config, *b = &expected->config;
    assert_int_equal(a->n_layer, b->n_layer);
    assert_int_equal(a->n_head, b->n_head);
    assert_int_equal(a->n_embd, b->n_embd);
    assert_int_equal(a->seq_len, b->seq_len);
    assert_int_equal(a->vocab_size, b->vocab_size);
    assert_true(a->dropout == b->dropout);
    assert_true(a->norm_epsilon == b->norm_epsilon);
    assert_int_equal(found->n_params, expected->n_params);
    for (int i = 0; i < found->n_params; i++) {
        assert_string_equal(found->params[i].name, expected->params[i].name);
        assert_memory_equal(found->params[i].data, expected->params[i].data,
                            (size_t)found->params[i].count * sizeof(float));
    }
}

/* ---- round trips ---- */

static void saved_model_comes_back_to_the_bit(void **state) {
    (void)state;
    lsi_model *model = make_model(&SMALL, 1), *loaded;
    /* Odd numbers survive as well: weights are not judged here. */
    float *weights = model->params[0].data;
    weights[0] = NAN, weights[1] = -INFINITY, weights[2] = -0.0f, weights[3] = 1e-45f;
    char *tokenizer;
    assert_ok(save_as(model, "gpt2-bpe", path_of("deep/folder")));
    assert_ok(lsi_model_load(path_of("deep/folder"), &loaded, &tokenizer));
    assert_same_model(loaded, model);
    assert_string_equal(tokenizer, "gpt2-bpe");
    char one[LSI_SHA256_TEXT_BYTES], two[LSI_SHA256_TEXT_BYTES];
    lsi_model_sha256(model, one);
    lsi_model_sha256(loaded, two);
    assert_string_equal(one, two);
    lsi_free(tokenizer);
    lsi_model_destroy(loaded);
    lsi_model_destroy(model);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* Parameters that are not trained (statistics of norms) among them. */
static void every_class_comes_back(void **state) {
    (void)state;
    static const lsi_model_config config = {.n_layer = 2, .n_embd = 8, .norm_epsilon = 1e-5};
    for (int c = 0; lsi_model_classes[c]; c++) {
        const lsi_model_class *class = lsi_model_classes[c];
        lsi_model_config sized = config;
        if (class->takes_images) {
            sized.height = sized.width = 8, sized.n_channels = 1, sized.n_classes = 3;
        } else {
            sized.n_head = 4, sized.seq_len = 5, sized.vocab_size = 11;
            if (strcmp(class->name, "llama") == 0)
                sized.n_kv_head = 2, sized.n_inner = 12, sized.rope_theta = 5000,
                sized.untied = true;
        }
        lsi_model *model, *loaded;
        char *tokenizer;
        assert_ok(lsi_model_create(class, &sized, &model));
        lsi_model_init(model, 4);
        for (int i = 0; i < model->n_params; i++) lsi_model_values(model, i)[0] = (float)i;
        assert_ok(lsi_model_save(model, NULL, path_of(class->name)));
        assert_ok(lsi_model_load(path_of(class->name), &loaded, &tokenizer));
        assert_null(tokenizer);
        assert_same_model(loaded, model);
        assert_int_equal(loaded->config.n_kv_head, sized.n_kv_head);
        assert_int_equal(loaded->config.n_inner, sized.n_inner);
        assert_true(loaded->config.rope_theta == sized.rope_theta);
        assert_int_equal(loaded->config.untied, sized.untied);
        assert_int_equal(loaded->config.height, sized.height);
        assert_int_equal(loaded->config.n_classes, sized.n_classes);
        lsi_model_destroy(loaded);
        lsi_model_destroy(model);
    }
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void saving_twice_gives_the_same_files(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors"};
    lsi_model *model = make_model(&SMALL, 1), *other = make_model(&SMALL, 2);
    assert_ok(lsi_model_save(other, NULL, path_of("a")));
    assert_ok(lsi_model_save(model, NULL, path_of("a")));
    assert_ok(lsi_model_save(model, NULL, path_of("b")));
    assert_int_equal(n_files_in(path_of("a")), 2);
    for (int i = 0; i < 2; i++) {
        char path[64];
        size_t bytes[2];
        snprintf(path, sizeof path, "a/%s", names[i]);
        char *a = read_whole(path_of(path), &bytes[0]);
        path[0] = 'b';
        char *b = read_whole(path_of(path), &bytes[1]);
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(a, b, bytes[0]);
        free(a);
        free(b);
    }
    lsi_model_destroy(other);
    lsi_model_destroy(model);
}

static void files_are_those_of_transformers(void **state) {
    (void)state;
    lsi_model *model = make_model(&SMALL, 1);
    assert_ok(save_as(model, "byte", path_of("m")));
    json_t *config;
    assert_ok(lsi_file_read_json(path_of("m/config.json"), 1 << 16, &config));
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "gpt2");
    assert_int_equal(json_integer_value(json_object_get(config, "n_positions")), SMALL.seq_len);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(config, "lockstep"), "tokenizer")),
        "byte");
    json_decref(config);

    lsi_st_file *file;
    assert_ok(lsi_st_open(path_of("m/model.safetensors"), &file));
    assert_int_equal(lsi_st_n_tensors(file), model->n_params);
    const lsi_st_tensor *t = lsi_st_find(file, "transformer.h.0.attn.c_attn.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, LS_DTYPE_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 6);
    assert_int_equal(t->dims[1], 18);
    assert_non_null(lsi_st_find(file, "transformer.wte.weight"));
    assert_null(lsi_st_find(file, "lm_head.weight"));
    lsi_st_close(file);
    char *bytes = read_whole(path_of("m/model.safetensors"), NULL);
    assert_memory_equal(bytes + 8, "{\"__metadata__\":{\"format\":\"pt\"}",
                        strlen("{\"__metadata__\":{\"format\":\"pt\"}"));
    free(bytes);
    lsi_model_destroy(model);
}

static void tokenizer_follows_file_then_vocabulary(void **state) {
    (void)state;
    static const struct {
        int64_t vocab_size;
        const char *saved, *loaded;
    } rows[] = {
        {256, "char", "char"},
        {256, NULL, "byte"},
        {255, NULL, NULL},
        {11, "ü \"x\"", "ü \"x\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lsi_model_config config = SMALL;
        config.vocab_size = rows[i].vocab_size;
        lsi_model *model = make_model(&config, 1), *loaded;
        char *tokenizer;
        assert_ok(save_as(model, rows[i].saved, path_of("t")));
        assert_ok(lsi_model_load(path_of("t"), &loaded, &tokenizer));
        if (rows[i].loaded)
            assert_string_equal(tokenizer, rows[i].loaded);
        else
            assert_null(tokenizer);
        lsi_free(tokenizer);
        lsi_model_destroy(loaded);
        lsi_model_destroy(model);
    }
}

/* ---- other people's files ---- */

enum { MAX_TENSORS = 64 };

/* The tensors of SMALL under chosen names and in a chosen type, to be changed by a test. */
typedef struct made_file {
    lsi_model *model;
    lsi_st_tensor tensors[MAX_TENSORS];
    int n_tensors;
    char names[MAX_TENSORS][64];
    void *data[MAX_TENSORS];
} made_file;

static void made_setup(made_file *made, const char *prefix) {
    memset(made, 0, sizeof *made);
    made->model = make_model(&SMALL, 3);
    assert_ok(lsi_model_save(made->model, NULL, path_of("made")));
    for (int i = 0; i < made->model->n_params; i++) {
        const ls_param *param = &made->model->params[i];
        const lsi_param_shape *shape = &made->model->shapes[i];
        lsi_st_tensor *t = &made->tensors[made->n_tensors++];
        snprintf(made->names[i], sizeof made->names[i], "%s%s", prefix, param->name);
        *t = (lsi_st_tensor){.name = made->names[i],
                             .dtype = LS_DTYPE_F32,
                             .n_dims = shape->n_dims,
                             .data = param->data,
                             .bytes = (size_t)param->count * sizeof(float)};
        memcpy(t->dims, shape->dims, (size_t)shape->n_dims * sizeof *t->dims);
    }
}

static lsi_st_tensor *made_find(made_file *made, const char *name) {
    for (int i = 0; i < made->n_tensors; i++)
        if (strcmp(made->tensors[i].name, name) == 0) return &made->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void made_add(made_file *made, lsi_st_tensor tensor) {
    assert_true(made->n_tensors < MAX_TENSORS);
    made->tensors[made->n_tensors++] = tensor;
}

static ls_status made_load(made_file *made, lsi_model **loaded) {
    char *tokenizer = NULL;
    assert_ok(
        lsi_st_write(path_of("made/model.safetensors"), made->tensors, made->n_tensors, NULL));
    ls_status status = lsi_model_load(path_of("made"), loaded, &tokenizer);
    lsi_free(tokenizer);
    return status;
}

static void made_teardown(made_file *made) {
    lsi_model_destroy(made->model);
    for (int i = 0; i < MAX_TENSORS; i++) free(made->data[i]);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void names_without_prefix_masks_and_tied_heads_are_accepted(void **state) {
    (void)state;
    static const char *const prefixes[] = {"transformer.", ""};
    static const float masks[25] = {1};
    for (int i = 0; i < 2; i++) {
        made_file made;
        lsi_model *loaded;
        made_setup(&made, prefixes[i]);
        char mask[64], masked[64];
        snprintf(mask, sizeof mask, "%sh.0.attn.bias", prefixes[i]);
        snprintf(masked, sizeof masked, "%sh.1.attn.masked_bias", prefixes[i]);
        made_add(&made, (lsi_st_tensor){.name = mask,
                                        .dtype = LS_DTYPE_F32,
                                        .n_dims = 4,
                                        .dims = {1, 1, 5, 5},
                                        masks,
                                        sizeof masks});
        made_add(&made,
                 (lsi_st_tensor){.name = masked, .dtype = LS_DTYPE_U8, .data = masks, .bytes = 1});
        lsi_st_tensor head = made.tensors[0];
        head.name = "lm_head.weight";
        made_add(&made, head);
        assert_ok(made_load(&made, &loaded));
        assert_same_model(loaded, made.model);
        lsi_model_destroy(loaded);
        made_teardown(&made);
    }
}

/* Keeps the bits that BF16 has, so that the way there and back is exact. */
static void store_as(made_file *made, ls_dtype dtype) {
    for (int i = 0; i < made->n_tensors; i++) {
        lsi_st_tensor *t = &made->tensors[i];
        float *values = made->model->params[i].data;
        int64_t count = made->model->params[i].count;
        unsigned char *bytes = made->data[i] = malloc((size_t)count * ls_dtype_bytes(dtype));
        assert_non_null(bytes);
        for (int64_t e = 0; e < count; e++) {
            uint32_t bits;
            memcpy(&bits, &values[e], sizeof bits);
            bits &= 0xffff0000;
            memcpy(&values[e], &bits, sizeof bits);
            double wide = (double)values[e];
            uint16_t half = (uint16_t)(bits >> 16);
            if (dtype == LS_DTYPE_F64) memcpy(bytes + e * 8, &wide, 8);
            if (dtype == LS_DTYPE_BF16) memcpy(bytes + e * 2, &half, 2);
        }
        t->dtype = dtype;
        t->data = bytes;
        t->bytes = (size_t)count * ls_dtype_bytes(dtype);
    }
}

static void other_floating_types_become_float32(void **state) {
    (void)state;
    static const ls_dtype dtypes[] = {LS_DTYPE_BF16, LS_DTYPE_F64};
    for (int i = 0; i < 2; i++) {
        made_file made;
        lsi_model *loaded;
        made_setup(&made, "transformer.");
        store_as(&made, dtypes[i]);
        assert_ok(made_load(&made, &loaded));
        assert_same_model(loaded, made.model);
        lsi_model_destroy(loaded);
        made_teardown(&made);
    }
}

/* ---- wrong weights: each row changes a good file ---- */

static void drop_one(made_file *made) {
    *made_find(made, "transformer.h.1.ln_2.bias") = made->tensors[--made->n_tensors];
}

static void drop_all(made_file *made) {
    made->n_tensors = 0;
}

static void drop_layer(made_file *made) {
    int n_kept = 0;
    for (int i = 0; i < made->n_tensors; i++)
        if (!strstr(made->tensors[i].name, "h.1.")) made->tensors[n_kept++] = made->tensors[i];
    made->n_tensors = n_kept;
}

static void transpose(made_file *made) {
    lsi_st_tensor *t = made_find(made, "transformer.h.0.attn.c_attn.weight");
    t->dims[0] = 18, t->dims[1] = 6;
}

static void flatten(made_file *made) {
    lsi_st_tensor *t = made_find(made, "transformer.wpe.weight");
    t->n_dims = 1, t->dims[0] = 30;
}

static void retype(made_file *made) {
    made_find(made, "transformer.ln_f.bias")->dtype = LS_DTYPE_I32;
}

static void double_name(made_file *made) {
    lsi_st_tensor t = *made_find(made, "transformer.ln_f.bias");
    t.name = "ln_f.bias";
    made_add(made, t);
}

static void add_stranger(made_file *made) {
    made_add(made, (lsi_st_tensor){.name = "transformer.h.2.ln_1.bias",
                                   .dtype = LS_DTYPE_F32,
                                   .n_dims = 1,
                                   .dims = {0}});
}

static void add_near_mask(made_file *made) {
    made_add(made,
             (lsi_st_tensor){
                 .name = "h.0.cross_attn.bias", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {0}});
}

static void untie_head(made_file *made) {
    lsi_st_tensor t = *made_find(made, "transformer.wte.weight");
    float *copy = made->data[0] = malloc(t.bytes);
    assert_non_null(copy);
    memcpy(copy, t.data, t.bytes);
    copy[5] += 1;
    t.name = "lm_head.weight";
    t.data = copy;
    made_add(made, t);
}

static void wrong_weights_are_named(void **state) {
    (void)state;
    static const struct {
        void (*change)(made_file *made);
        ls_status status;
        const char *message;
    } rows[] = {
        {drop_one, LS_ERR_FORMAT,
         "1 of 28 tensors are missing, the first is 'transformer.h.1.ln_2.bias'"},
        {drop_all, LS_ERR_FORMAT, "asks for 2 layers, the file has 0 tensors"},
        {drop_layer, LS_ERR_FORMAT,
         "12 of 28 tensors are missing, the first is 'transformer.h.1.ln_1.weight'"},
        {transpose, LS_ERR_FORMAT,
         "tensor 'transformer.h.0.attn.c_attn.weight': expected shape (6, 18), found (18, 6)"},
        {flatten, LS_ERR_FORMAT, "'transformer.wpe.weight': expected shape (5, 6), found (30)"},
        {retype, LS_ERR_UNSUPPORTED, "tensor 'transformer.ln_f.bias': dtype I32, expected F32"},
        {double_name, LS_ERR_FORMAT, "tensor 'ln_f.bias' is there twice"},
        {add_stranger, LS_ERR_FORMAT,
         "tensor 'transformer.h.2.ln_1.bias' of shape (0) belongs to no parameter"},
        {add_near_mask, LS_ERR_FORMAT, "tensor 'h.0.cross_attn.bias' of shape (0) belongs to no"},
        {untie_head, LS_ERR_UNSUPPORTED, "'lm_head.weight' is not the same as the token embedding"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made_file made;
        lsi_model *loaded = NULL;
        made_setup(&made, "transformer.");
        rows[i].change(&made);
        ls_status status = made_load(&made, &loaded);
        assert_fails(status, rows[i].status, rows[i].message);
        assert_fails(status, rows[i].status, "loading the model: ");
        assert_fails(status, rows[i].status, "made/model.safetensors");
        assert_null(loaded);
        made_teardown(&made);
    }
}

/* ---- wrong configurations ---- */

static void wrong_configurations_are_named(void **state) {
    (void)state;
#define SIZES "'n_layer':2,'n_head':2,'n_embd':6,'n_positions':5,'vocab_size':11"
    static const struct {
        const char *json;
        ls_status status;
        const char *message;
    } rows[] = {
        {"", LS_ERR_FORMAT, "config.json"},
        {"{", LS_ERR_FORMAT, "config.json"},
        {"[]", LS_ERR_FORMAT, "no text \"model_type\""},
        {"{}", LS_ERR_FORMAT, "no text \"model_type\""},
        {"{'model_type':1}", LS_ERR_FORMAT, "no text \"model_type\""},
        {"{'model_type':'gpt9'}", LS_ERR_UNSUPPORTED, "unknown model 'gpt9'; known: gpt2"},
        {"{'model_type':'gpt2'}", LS_ERR_FORMAT, "config.json"},
        {"{'model_type':'gpt2','lockstep':1," SIZES "}", LS_ERR_FORMAT,
         "\"lockstep\" is not an object"},
        {"{'model_type':'gpt2','lockstep':{'tokenizer':null}," SIZES "}", LS_ERR_FORMAT,
         "\"tokenizer\" is not a text"},
        /* sizes that no file here justifies */
        {"{'model_type':'gpt2','n_layer':1,'n_head':2,'n_embd':6,'n_positions':5,"
         "'vocab_size':2000000000}",
         LS_ERR_FORMAT, "config.json asks for 12000000"},
        {"{'model_type':'gpt2','n_layer':100000000,'n_head':2,'n_embd':6,'n_positions':5,"
         "'vocab_size':11}",
         LS_ERR_FORMAT, "asks for 100000000 layers, the file has 28 tensors"},
        {"{'model_type':'gpt2','n_layer':2,'n_head':2,'n_embd':6,'n_positions':5,"
         "'vocab_size':12}",
         LS_ERR_FORMAT, "'transformer.wte.weight': expected shape (12, 6), found (11, 6)"},
    };
    lsi_model *model = make_model(&SMALL, 1);
    assert_ok(lsi_model_save(model, NULL, path_of("m")));
    lsi_model_destroy(model);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[512];
        strcpy(json, rows[i].json);
        for (char *c = json; *c; c++)
            if (*c == '\'') *c = '"';
        write_whole(path_of("m/config.json"), json, strlen(json));
        lsi_model *loaded = NULL;
        char *tokenizer = NULL;
        assert_fails(lsi_model_load(path_of("m"), &loaded, &tokenizer), rows[i].status,
                     rows[i].message);
        assert_null(loaded);
        assert_null(tokenizer);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
}

static void missing_files_are_named(void **state) {
    (void)state;
    lsi_model *loaded = NULL;
    char *tokenizer = NULL;
    assert_fails(lsi_model_load(path_of("none"), &loaded, &tokenizer), LS_ERR_NOT_FOUND,
                 "none/config.json");
    lsi_model *model = make_model(&SMALL, 1);
    assert_ok(lsi_model_save(model, NULL, path_of("half")));
    assert_int_equal(unlink(path_of("half/model.safetensors")), 0);
    assert_fails(lsi_model_load(path_of("half"), &loaded, &tokenizer), LS_ERR_NOT_FOUND,
                 "half/model.safetensors");
    write_whole(path_of("file"), "x", 1);
    assert_fails(lsi_model_save(model, NULL, path_of("file")), LS_ERR_IO, "file");
    assert_fails(lsi_model_save(model, NULL, path_of("file/under")), LS_ERR_IO, "file");
    assert_fails(save_as(model, "\xff", path_of("m")), LS_ERR_ARGUMENT, "not UTF-8");
    assert_int_equal(n_files_in(path_of("m")), 0);
    lsi_model_destroy(model);
    assert_null(loaded);
    assert_null(tokenizer);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- faults ---- */

static void every_failed_allocation_is_answered(void **state) {
    (void)state;
    lsi_model *model = make_model(&SMALL, 1);
    int64_t n = 0, n_before = lsi_mem_n_blocks();
    ls_status status;
    do {
        lsi_mem_fail_at(++n);
        status = save_as(model, "byte", path_of("m"));
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(lsi_mem_n_blocks(), n_before);
    } while (status != LS_OK);
    assert_true(n > 8);
    n = 0;
    do {
        lsi_model *loaded = NULL;
        char *tokenizer = NULL;
        lsi_mem_fail_at(++n);
        status = lsi_model_load(path_of("m"), &loaded, &tokenizer);
        int has_failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, has_failed ? LS_ERR_MEMORY : LS_OK);
        assert_int_equal(loaded == NULL, has_failed);
        assert_int_equal(tokenizer == NULL, has_failed);
        lsi_free(tokenizer);
        lsi_model_destroy(loaded);
        assert_int_equal(lsi_mem_n_blocks(), n_before);
    } while (status != LS_OK);
    assert_true(n > 8);
    lsi_model_destroy(model);
}

static void full_disk_leaves_a_whole_folder(void **state) {
    (void)state;
    lsi_model *model = make_model(&SMALL, 1), *next = make_model(&SMALL, 2), *loaded;
    char *tokenizer;
    assert_ok(lsi_model_save(model, NULL, path_of("m")));
    struct rlimit usual, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    static const rlim_t rooms[] = {0, 1, 100, 1000, 4096, 5000};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        limit = usual;
        limit.rlim_cur = rooms[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        ls_status status = lsi_model_save(next, NULL, path_of("m"));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
        assert_fails(status, LS_ERR_IO, "saving the model: ");
        assert_int_equal(n_files_in(path_of("m")), 2);
        assert_ok(lsi_model_load(path_of("m"), &loaded, &tokenizer));
        assert_same_model(loaded, model);
        lsi_free(tokenizer);
        lsi_model_destroy(loaded);
    }
    signal(SIGXFSZ, handler);
    lsi_model_destroy(next);
    lsi_model_destroy(model);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- the hash ---- */

/* Of the little-endian float32 numbers, from sha256sum. */
static const char SHA256_OF_1_2_3_4[] =
    "ad73b9acd6e4a74b2f5bb5386658ce3bb146cd040a1867646ab3b973fb6632b1";

/* A model whose parameters are in another order than their names and have padding between them. */
static void hash_covers_parameters_in_name_order(void **state) {
    (void)state;
    static float storage[64] = {9, 9, 9, 9};
    static ls_param params[] = {
        {.name = "b", .count = 2, .dtype = LS_DTYPE_F32, .data = storage + 16},
        {.name = "a.10", .count = 1, .dtype = LS_DTYPE_F32, .data = storage + 32},
        {.name = "a.9", .count = 0, .dtype = LS_DTYPE_F32, .data = storage},
        {.name = "B", .count = 1, .dtype = LS_DTYPE_F32, .data = storage + 48},
    };
    const lsi_model model = {.n_params = 4, .params = params};
    storage[16] = 3, storage[17] = 4, storage[32] = 2, storage[48] = 1;
    char found[LSI_SHA256_TEXT_BYTES];
    lsi_model_sha256(&model, found);
    assert_string_equal(found, SHA256_OF_1_2_3_4);
    storage[17] = 5;
    lsi_model_sha256(&model, found);
    assert_string_not_equal(found, SHA256_OF_1_2_3_4);
    const lsi_model nothing = {0};
    lsi_model_sha256(&nothing, found);
    assert_string_equal(found, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

int main(void) {
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(saved_model_comes_back_to_the_bit),
        IN_SCRATCH(every_class_comes_back),
        IN_SCRATCH(saving_twice_gives_the_same_files),
        IN_SCRATCH(files_are_those_of_transformers),
        IN_SCRATCH(tokenizer_follows_file_then_vocabulary),
        IN_SCRATCH(names_without_prefix_masks_and_tied_heads_are_accepted),
        IN_SCRATCH(other_floating_types_become_float32),
        IN_SCRATCH(wrong_weights_are_named),
        IN_SCRATCH(wrong_configurations_are_named),
        IN_SCRATCH(missing_files_are_named),
        IN_SCRATCH(every_failed_allocation_is_answered),
        IN_SCRATCH(full_disk_leaves_a_whole_folder),
        cmocka_unit_test(hash_covers_parameters_in_name_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
