/* GPT-2's configuration: what check refuses, and config.json both ways. */
#include "harness/harness.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "nn/models/gpt2.h"

static const lsi_model_config small = {12, 12, 768, 1024, 50257, 0.1, 1e-5};

/* ---- check ---- */

static void every_bad_field_is_named_at_once(void **state) {
    (void)state;
    lsi_model_config bad = {0, -1, 0, 0, 0, 1.0, 0.0};
    static const char *const texts[] = {
        "n_layer is 0",           "n_head is -1",    "n_embd is 0",
        "seq_len is 0",           "vocab_size is 0", "dropout is 1, expected 0 to less than 1",
        "layer_norm_epsilon is 0"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(lsi_gpt2_check(&bad), LS_ERR_ARGUMENT, texts[i]);
}

static void single_bad_fields_are_refused(void **state) {
    (void)state;
    const struct {
        lsi_model_config config;
        const char *text;
    } rows[] = {
        {{12, 7, 768, 1024, 50257, 0.1, 1e-5}, "n_embd is 768, expected a multiple of n_head, 7"},
        {{12, 12, 768, 1024, 50257, -0.1, 1e-5}, "dropout is -0.1"},
        {{12, 12, 768, 1024, 50257, NAN, 1e-5}, "dropout is nan"},
        {{12, 12, 768, 1024, 50257, 0.1, NAN}, "layer_norm_epsilon is nan"},
        {{12, 12, 768, 1024, 50257, 0.1, 1.5}, "layer_norm_epsilon is 1.5"},
        {{INT64_MAX, 12, 768, 1024, 50257, 0.1, 1e-5}, "n_layer is 9223372036854775807"},
        {{12, 12, 768, 1024, (int64_t)1 << 31, 0.1, 1e-5}, "vocab_size is 2147483648"},
        {{1 << 20, 1, 1 << 20, 1024, 50257, 0.1, 1e-5}, "more than can be addressed"},
        {{1 << 27, 1, INT32_MAX, INT32_MAX, INT32_MAX, 0.1, 1e-5}, "more than can be addressed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_fails(lsi_gpt2_check(&rows[i].config), LS_ERR_ARGUMENT, rows[i].text);
}

static void extreme_legal_configurations_pass(void **state) {
    (void)state;
    const lsi_model_config rows[] = {
        {1, 1, 1, 1, 1, 0.0, 1e-5},
        {96, 96, 12288, 2048, 50257, 0.999, 0.5},
        {1, 1, 1, INT32_MAX, INT32_MAX, 0.0, 1e-12},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) assert_ok(lsi_gpt2_check(&rows[i]));
}

/* ---- JSON ---- */

static void configuration_survives_json(void **state) {
    (void)state;
    const lsi_model_config rows[] = {
        small, {1, 1, 1, 1, 1, 0.0, 1e-5}, {2, 4, 64, 128, 256, 0.25, 1e-6}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *json = lsi_gpt2_config_to_json(&rows[i]);
        lsi_model_config back;
        memset(&back, 0xff, sizeof back);
        assert_non_null(json);
        assert_ok(lsi_gpt2_config_from_json(json, &back));
        assert_memory_equal(&back, &rows[i], sizeof back);
        json_decref(json);
    }
}

static void json_is_what_transformers_reads(void **state) {
    (void)state;
    static const char expected_text[] =
        "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": "
        "50257,"
        "\"n_positions\": 1024, \"n_ctx\": 1024, \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12,"
        "\"n_inner\": null, \"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.1,"
        "\"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1, \"layer_norm_epsilon\": 1e-05,"
        "\"initializer_range\": 0.02, \"tie_word_embeddings\": true, \"bos_token_id\": 50256,"
        "\"eos_token_id\": 50256}";
    json_t *expected = json_loads(expected_text, 0, NULL);
    json_t *found = lsi_gpt2_config_to_json(&small);
    assert_non_null(expected);
    assert_true(json_equal(found, expected));
    json_decref(found);
    json_decref(expected);
    lsi_model_config bytes = {2, 2, 8, 8, 256, 0.0, 1e-5};
    found = lsi_gpt2_config_to_json(&bytes);
    assert_true(json_is_null(json_object_get(found, "bos_token_id")));
    assert_true(json_is_null(json_object_get(found, "eos_token_id")));
    json_decref(found);
}

/* The file on Hugging Face, as far as it concerns us. */
static const char hub_text[] =
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"],"
    "\"attn_pdrop\": 0.1, \"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256,"
    "\"initializer_range\": 0.02, \"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\","
    "\"n_ctx\": 1024, \"n_embd\": 768, \"n_head\": 12, \"n_layer\": 12, \"n_positions\": 1024,"
    "\"resid_pdrop\": 0.1, \"summary_activation\": null, \"summary_first_dropout\": 0.1,"
    "\"task_specific_params\": {\"text-generation\": {\"do_sample\": true}}, \"vocab_size\": "
    "50257}";

static void original_configuration_is_read(void **state) {
    (void)state;
    json_t *json = json_loads(hub_text, 0, NULL);
    lsi_model_config found = {0};
    assert_ok(lsi_gpt2_config_from_json(json, &found));
    assert_memory_equal(&found, &small, sizeof found);
    json_decref(json);
}

/* One change to the original each: the key set to the JSON text, or removed. */
static void single_changes_have_the_right_outcome(void **state) {
    (void)state;
    static const struct {
        const char *key, *value; /* NULL: removed */
        ls_status status;
        const char *text;
    } rows[] = {
        {"model_type", NULL, LS_ERR_FORMAT, "model_type is missing, expected \"gpt2\""},
        {"model_type", "\"llama\"", LS_ERR_UNSUPPORTED, "model_type is \"llama\""},
        {"model_type", "3", LS_ERR_FORMAT, "model_type is an integer, expected a text"},
        {"vocab_size", NULL, LS_ERR_FORMAT, "vocab_size is missing"},
        {"n_positions", NULL, LS_ERR_FORMAT, "n_positions is missing"},
        {"n_embd", NULL, LS_ERR_FORMAT, "n_embd is missing"},
        {"n_layer", NULL, LS_ERR_FORMAT, "n_layer is missing"},
        {"n_head", NULL, LS_ERR_FORMAT, "n_head is missing"},
        {"n_head", "12.0", LS_ERR_FORMAT, "n_head is a real number, expected an integer"},
        {"n_head", "\"12\"", LS_ERR_FORMAT, "n_head is a text, expected an integer"},
        {"n_head", "null", LS_ERR_FORMAT, "n_head is null"},
        {"n_head", "[]", LS_ERR_FORMAT, "n_head is a list"},
        {"n_head", "0", LS_ERR_FORMAT, "n_head is 0, expected 1 to 2147483647"},
        {"n_head", "-12", LS_ERR_FORMAT, "n_head is -12"},
        {"n_head", "9223372036854775807", LS_ERR_FORMAT, "n_head is 9223372036854775807"},
        {"n_head", "5", LS_ERR_ARGUMENT, "n_embd is 768, expected a multiple of n_head, 5"},
        {"n_layer", "2147483647", LS_ERR_ARGUMENT, "n_layer is 2147483647"},
        {"n_inner", "null", LS_OK, NULL},
        {"n_inner", "3072", LS_OK, NULL},
        {"n_inner", "2048", LS_ERR_UNSUPPORTED, "n_inner is 2048, supported is 3072"},
        {"n_inner", "true", LS_ERR_FORMAT, "n_inner is true, expected an integer"},
        {"n_ctx", NULL, LS_OK, NULL},
        {"n_ctx", "512", LS_ERR_UNSUPPORTED, "n_ctx is 512, supported is 1024"},
        {"activation_function", NULL, LS_OK, NULL},
        {"activation_function", "\"gelu_pytorch_tanh\"", LS_OK, NULL},
        {"activation_function", "\"relu\"", LS_ERR_UNSUPPORTED,
         "activation_function is \"relu\", supported is \"gelu_new\""},
        {"activation_function", "\"gelu\"", LS_ERR_UNSUPPORTED, "activation_function is \"gelu\""},
        {"activation_function", "null", LS_ERR_FORMAT, "activation_function is null"},
        {"resid_pdrop", NULL, LS_OK, NULL},
        {"resid_pdrop", "0.2", LS_ERR_UNSUPPORTED, "are 0.2, 0.1 and 0.1, supported is one value"},
        {"attn_pdrop", "0", LS_ERR_UNSUPPORTED, "are 0.1, 0.1 and 0"},
        {"embd_pdrop", "1.5", LS_ERR_FORMAT, "embd_pdrop is 1.5, expected 0 to 1"},
        {"embd_pdrop", "\"0.1\"", LS_ERR_FORMAT, "embd_pdrop is a text, expected a number"},
        {"layer_norm_epsilon", NULL, LS_OK, NULL},
        {"layer_norm_epsilon", "0", LS_ERR_ARGUMENT, "layer_norm_epsilon is 0"},
        {"layer_norm_epsilon", "-1e-5", LS_ERR_FORMAT, "layer_norm_epsilon is -1e-05"},
        {"layer_norm_epsilon", "{}", LS_ERR_FORMAT, "layer_norm_epsilon is an object"},
        {"tie_word_embeddings", "true", LS_OK, NULL},
        {"tie_word_embeddings", "false", LS_ERR_UNSUPPORTED, "tie_word_embeddings is false"},
        {"tie_word_embeddings", "1", LS_ERR_FORMAT, "tie_word_embeddings is an integer"},
        {"scale_attn_weights", "false", LS_ERR_UNSUPPORTED, "scale_attn_weights is false"},
        {"scale_attn_by_inverse_layer_idx", "true", LS_ERR_UNSUPPORTED, "supported is false"},
        {"add_cross_attention", "true", LS_ERR_UNSUPPORTED, "add_cross_attention is true"},
        {"something_new", "17", LS_OK, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *json = json_loads(hub_text, 0, NULL);
        lsi_model_config found = {.n_layer = 77};
        if (rows[i].value)
            json_object_set_new(json, rows[i].key,
                                json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(json, rows[i].key);
        ls_status status = lsi_gpt2_config_from_json(json, &found);
        if (rows[i].status == LS_OK) {
            assert_ok(status);
            assert_memory_equal(&found, &small, sizeof found);
        } else {
            assert_fails(status, rows[i].status, rows[i].text);
            assert_int_equal(found.n_layer, 77);
        }
        json_decref(json);
    }
}

static void all_troubles_of_a_file_are_reported_together(void **state) {
    (void)state;
    json_t *json = json_loads("{\"model_type\": \"bert\", \"n_embd\": \"x\"}", 0, NULL);
    static const char *const texts[] = {"vocab_size is missing", "n_positions is missing",
                                        "n_embd is a text",      "n_layer is missing",
                                        "n_head is missing",     "model_type is \"bert\""};
    lsi_model_config found;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(lsi_gpt2_config_from_json(json, &found), LS_ERR_FORMAT, texts[i]);
    json_decref(json);
}

static void other_json_than_an_object_is_refused(void **state) {
    (void)state;
    lsi_model_config found;
    json_t *list = json_array();
    assert_fails(lsi_gpt2_config_from_json(list, &found), LS_ERR_FORMAT,
                 "a list, expected a JSON object");
    assert_fails(lsi_gpt2_config_from_json(NULL, &found), LS_ERR_FORMAT, "nothing");
    json_decref(list);
}

/* Longer than any buffer of ours. */
static void endless_texts_are_cut_not_crashed_on(void **state) {
    (void)state;
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    json_t *json = json_loads(hub_text, 0, NULL);
    json_object_set_new(json, "activation_function", json_string(text));
    json_object_set_new(json, "model_type", json_string(text));
    lsi_model_config found;
    assert_fails(lsi_gpt2_config_from_json(json, &found), LS_ERR_UNSUPPORTED, "xxxx\", supported");
    json_decref(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bad_field_is_named_at_once),
        cmocka_unit_test(single_bad_fields_are_refused),
        cmocka_unit_test(extreme_legal_configurations_pass),
        cmocka_unit_test(configuration_survives_json),
        cmocka_unit_test(json_is_what_transformers_reads),
        cmocka_unit_test(original_configuration_is_read),
        cmocka_unit_test(single_changes_have_the_right_outcome),
        cmocka_unit_test(all_troubles_of_a_file_are_reported_together),
        cmocka_unit_test(other_json_than_an_object_is_refused),
        cmocka_unit_test(endless_texts_are_cut_not_crashed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
