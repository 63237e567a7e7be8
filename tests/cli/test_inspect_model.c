/* `lockstep inspect MODEL`: folders, shards, single files, what is wrong with them, and that a path
 * decides by itself what it is. */
#include "checkpoint/safetensors.h"
#include "cli/model_program.h"
#include "cli/train_program.h"

/* inspect PATH-IN-FOLDER and more options; release the result. */
static void inspect(void **state, const char *name, const char *options, program_result *result) {
    program_words words = {.n = 0};
    add_split(&words, "inspect %s/%s %s", (const char *)*state, name, options);
    program_run(NULL, words.at, result);
}

/* A call that must succeed and print all the texts; its JSON. */
static json_t *look(void **state, const char *name, const char *const *texts) {
    char options[PATH_MAX];
    program_result result;
    snprintf(options, sizeof options, "--json %s/out.json", (const char *)*state);
    inspect(state, name, options, &result);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    for (; *texts; texts++)
        if (!strstr(result.out, *texts)) fail_msg("no '%s' in\n%s", *texts, result.out);
    program_release(&result);
    return read_json(state, "out.json");
}

static const json_t *tensor_called(const json_t *json, const char *name) {
    const json_t *list = json_object_get(json, "tensors");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(text_in(json_array_get(list, i), "name"), name) == 0)
            return json_array_get(list, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* ---- models ---- */

static void assert_byte_model(const json_t *json, const lsi_model *model, const char *dtype) {
    const json_t *config = json_object_get(json, "config"), *total = json_object_get(json, "total");
    const json_t *wpe = tensor_called(json, "transformer.wpe.weight");
    assert_string_equal(text_in(json, "kind"), "folder");
    assert_string_equal(text_in(json, "class"), "gpt2");
    assert_string_equal(text_in(json, "tokenizer"), "byte");
    assert_int_equal(number_of(json, "n_params"), model->n_elems);
    assert_int_equal(number_of(config, "n_layer"), 2);
    assert_int_equal(number_of(config, "seq_len"), MODEL_SEQ_LEN);
    assert_null(json_object_get(config, "n_kv_head"));
    assert_int_equal(json_array_size(json_object_get(json, "tensors")), model->n_params);
    const json_t *all = json_object_get(total, "all");
    assert_true(json_equal(all, json_object_get(json_object_get(total, "types"), dtype)));
    assert_int_equal(number_of(all, "tensors"), model->n_params);
    assert_int_equal(number_of(all, "elements"), model->n_elems);
    assert_int_equal(number_of(all, "bytes"),
                     model->n_elems * (strcmp(dtype, "BF16") == 0 ? 2 : 4));
    assert_string_equal(text_in(wpe, "dtype"), dtype);
    assert_int_equal(number_of(wpe, "elements"), MODEL_SEQ_LEN * 16);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(wpe, "shape"), 0)),
                     MODEL_SEQ_LEN);
}

static void folders_show_class_sizes_and_tensors(void **state) {
    lsi_model *model = make_byte_model(1);
    const lsi_model_save_opts ways[] = {
        {"byte", LS_DTYPE_F32, 0}, {"byte", LS_DTYPE_BF16, 0}, {"byte", LS_DTYPE_F32, 5000}};
    static const char *const dtypes[] = {"F32", "BF16", "F32"};
    for (int i = 0; i < 3; i++) {
        assert_ok(lsi_model_save(model, &ways[i], in_scratch(state, "m")));
        json_t *json = look(state, "m",
                            (const char *const[]){"/m: gpt2, ", " parameters, tokenizer byte\n",
                                                  "n_layer 2", "transformer.h.1.mlp.c_proj.weight",
                                                  "(12, 16)", dtypes[i], " elements, ", NULL});
        assert_byte_model(json, model, dtypes[i]);
        assert_true((number_of(json, "n_files") > 1) == (ways[i].shard_bytes > 0));
        json_decref(json);
    }
    lsi_model_destroy(model);
}

static void one_file_shows_its_tensors(void **state) {
    static const float numbers[6] = {0};
    const lsi_st_tensor tensors[] = {
        {"a\xc3\xa4\n", LS_DTYPE_F32, 2, {2, 3}, numbers, 24, 0},
        {"empty", LS_DTYPE_I64, 1, {0}, NULL, 0, 0},
        {"scalar", LS_DTYPE_U8, 0, {0}, numbers, 1, 0},
    };
    static const char *const names[] = {"x.safetensors", "any-name"};
    for (int i = 0; i < 2; i++) {
        assert_ok(lsi_st_write(in_scratch(state, names[i]), tensors, 3, NULL));
        json_t *json =
            look(state, names[i],
                 (const char *const[]){"a\xc3\xa4?", "(2, 3)", "I64", "()",
                                       "1 file: 3 tensors, 7 elements, 25 bytes (25 B)\n", NULL});
        assert_string_equal(text_in(json, "kind"), "safetensors");
        assert_string_equal(text_in(json_array_get(json_object_get(json, "tensors"), 0), "name"),
                            "a\xc3\xa4\n");
        assert_null(json_object_get(json, "class"));
        json_decref(json);
    }
}

/* ---- what is wrong with them ---- */

static void tensors_are_shown_whatever_the_configuration_says(void **state) {
    static const struct {
        const char *config, *said;
    } rows[] = {
        {NULL, "/m/config.json"},
        {"{\"model_type\": \"bert\"}", "unknown model 'bert'"},
        {"{", "config.json:1"},
        {"{\"model_type\": \"gpt2\"}", "n_layer is missing"},
    };
    lsi_model *model = make_byte_model(1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        save_byte_model(model, in_scratch(state, "m"));
        if (rows[i].config)
            put_text(in_scratch(state, "m/config.json"), rows[i].config);
        else
            assert_int_equal(unlink(in_scratch(state, "m/config.json")), 0);
        json_t *json = look(
            state, "m",
            (const char *const[]){"configuration: ", rows[i].said, "transformer.wte.weight", NULL});
        assert_non_null(strstr(text_in(json, "trouble"), rows[i].said));
        json_decref(json);
    }
    lsi_model_destroy(model);
}

/* Counting parameters takes time by layer. */
static void sizes_that_no_tensor_bears_out_are_not_counted(void **state) {
    lsi_model *model = make_byte_model(1);
    save_byte_model(model, in_scratch(state, "m"));
    put_text(in_scratch(state, "m/config.json"),
             "{\"model_type\": \"gpt2\", \"n_layer\": 100000000, \"n_head\": 1, \"n_embd\": 16,"
             "\"n_positions\": 12, \"vocab_size\": 256}");
    json_t *json = look(state, "m", (const char *const[]){"n_layer 100000000", NULL});
    assert_null(json_object_get(json, "n_params"));
    json_decref(json);
    lsi_model_destroy(model);
}

static void wrong_requests_are_refused(void **state) {
    lsi_model *model = make_byte_model(1);
    save_byte_model(model, in_scratch(state, "good"));
    save_byte_model(model, in_scratch(state, "cut"));
    lsi_model_destroy(model);
    assert_int_equal(truncate(in_scratch(state, "cut/model.safetensors"), 9999), 0);
    assert_int_equal(mkdir(in_scratch(state, "empty"), 0777), 0);
    put_text(in_scratch(state, "text"), "not a model\n");
    put_text(in_scratch(state, "bad.safetensors"), "not a model\n");
    static const struct {
        const char *name, *options;
        int exit_code;
        const char *said;
    } rows[] = {
        {"cut", "", 1, "cut/model.safetensors: tensor '"},
        {"cut/model.safetensors", "", 1, "not inside the"},
        {"empty", "", 2, "empty/model.safetensors: No such file"},
        {"none", "", 2, "none: No such file"},
        {"none.safetensors", "", 2, "none.safetensors"},
        {"text", "", 2, "text: "},
        {"bad.safetensors", "", 1, "not a safetensors file"},
        {"good", "good", 2, "unexpected word"},
        {"good", "--recorder good", 2, "unexpected word"},
        {"good", "--json /no/such/folder/file", 2, "/no/such/folder/file"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_result result;
        inspect(state, rows[i].name, rows[i].options, &result);
        assert_refused_with(&result, rows[i].exit_code, (const char *const[]){rows[i].said, NULL});
        program_release(&result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_show_class_sizes_and_tensors),
        cmocka_unit_test(one_file_shows_its_tensors),
        cmocka_unit_test(tensors_are_shown_whatever_the_configuration_says),
        cmocka_unit_test(sizes_that_no_tensor_bears_out_are_not_counted),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
