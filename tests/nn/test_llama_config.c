/* Llama's configuration: what is refused, and config.json to and from transformers' form. */
#include "harness/harness.h"

#include <string.h>

#include "nn/models/llama.h"

static const lsi_model_config small = {
    .n_layer = 5,
    .n_head = 8,
    .n_embd = 64,
    .seq_len = 512,
    .vocab_size = 512,
    .norm_epsilon = 1e-5,
    .n_kv_head = 4,
    .n_inner = 172,
    .rope_theta = 10000.0,
};

/* What the folder of the 260 K stories model has, whose sizes these are. */
static const char hub_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64,"
    " \"intermediate_size\": 172, \"num_hidden_layers\": 5, \"num_attention_heads\": 8,"
    " \"num_key_value_heads\": 4, \"vocab_size\": 512, \"max_position_embeddings\": 512,"
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\","
    " \"tie_word_embeddings\": true, \"attention_bias\": false, \"mlp_bias\": false,"
    " \"bos_token_id\": 1, \"eos_token_id\": 2, \"torch_dtype\": \"float32\"}";

/* ---- check ---- */

static void single_bad_fields_are_refused(void **state) {
    (void)state;
    const struct {
        size_t at;
        int64_t size;
        double number; /* if size is -7 */
        const char *text;
    } rows[] = {
#define AT(field) offsetof(lsi_model_config, field)
        {AT(n_layer), 0, 0, "n_layer is 0"},
        {AT(n_layer), INT32_MAX, 0, "n_layer is 2147483647"},
        {AT(n_head), 0, 0, "n_head is 0"},
        {AT(n_head), 7, 0, "n_embd is 64, expected a multiple of n_head, 7"},
        {AT(n_head), 64, 0, "the size of a head, is 1, expected an even number"},
        {AT(n_kv_head), 0, 0, "n_kv_head is 0"},
        {AT(n_kv_head), 3, 0, "n_kv_head is 3, expected a divisor of n_head, 8"},
        {AT(n_kv_head), 16, 0, "n_kv_head is 16, expected a divisor of n_head, 8"},
        {AT(n_embd), -1, 0, "n_embd is -1"},
        {AT(n_inner), 0, 0, "n_inner is 0"},
        {AT(seq_len), (int64_t)INT32_MAX + 1, 0, "seq_len is 2147483648"},
        {AT(vocab_size), 0, 0, "vocab_size is 0"},
        {AT(dropout), -7, 1.0, "dropout is 1"},
        {AT(dropout), -7, -0.1, "dropout is -0.1"},
        {AT(norm_epsilon), -7, 0.0, "rms_norm_eps is 0"},
        {AT(norm_epsilon), -7, 1.0, "rms_norm_eps is 1"},
        {AT(rope_theta), -7, 0.0, "rope_theta is 0"},
        {AT(rope_theta), -7, 1e300, "rope_theta is 1e+300"},
    };
    assert_ok(lsi_llama_check(&small));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_model_config config = small;
        char *field = (char *)&config + rows[i].at;
        if (rows[i].size == -7)
            memcpy(field, &rows[i].number, sizeof rows[i].number);
        else
            memcpy(field, &rows[i].size, sizeof rows[i].size);
        assert_fails(lsi_llama_check(&config), LS_ERR_ARGUMENT, rows[i].text);
    }
}

static void every_bad_field_is_named_at_once(void **state) {
    (void)state;
    static const char *const names[] = {"n_layer", "n_head",     "n_kv_head", "n_embd",
                                        "n_inner", "vocab_size", "seq_len",   "rms_norm_eps",
                                        "dropout", "rope_theta"};
    lsi_model_config config = {.dropout = 2.0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_fails(lsi_llama_check(&config), LS_ERR_ARGUMENT, names[i]);
}

static void models_too_large_to_address_are_refused(void **state) {
    (void)state;
    lsi_model_config config = small;
    config.n_layer = 1 << 20;
    config.n_embd = config.n_inner = 1 << 20;
    assert_fails(lsi_llama_check(&config), LS_ERR_ARGUMENT, "more than can be addressed");
}

/* ---- JSON ---- */

static void configuration_survives_json(void **state) {
    (void)state;
    lsi_model_config configs[] = {small, small, small};
    configs[1].untied = true;
    configs[1].rope_theta = 500000.0;
    configs[1].norm_epsilon = 1e-6;
    configs[1].dropout = 0.125;
    configs[2].vocab_size = 256;
    configs[2].n_kv_head = 8;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        json_t *json = lsi_llama_config_to_json(&configs[i]);
        lsi_model_config found = {.n_layer = 77};
        assert_ok(lsi_llama_config_from_json(json, &found));
        assert_memory_equal(&found, &configs[i], sizeof found);
        json_decref(json);
    }
}

static void json_is_what_transformers_reads(void **state) {
    (void)state;
    json_t *json = lsi_llama_config_to_json(&small), *hub = json_loads(hub_text, 0, NULL);
    const char *key;
    json_t *value;
    json_object_foreach(hub, key, value) {
        if (strcmp(key, "torch_dtype") == 0) continue; /* written by who writes the weights */
        if (!json_equal(json_object_get(json, key), value)) fail_msg("%s differs", key);
    }
    assert_int_equal(json_integer_value(json_object_get(json, "head_dim")), 8);
    assert_true(json_is_null(json_object_get(json, "rope_scaling")));
    json_decref(hub);
    json_decref(json);
}

static void tokens_that_end_a_text_are_those_of_the_vocabulary(void **state) {
    (void)state;
    const struct {
        int64_t vocab_size;
        int begin, end; /* -1: null */
    } rows[] = {{256, -1, -1}, {512, 1, 2}, {32000, 1, 2}, {50257, 50256, 50256}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_model_config config = small;
        config.vocab_size = rows[i].vocab_size;
        json_t *json = lsi_llama_config_to_json(&config);
        const json_t *begin = json_object_get(json, "bos_token_id");
        const json_t *end = json_object_get(json, "eos_token_id");
        assert_int_equal(json_is_null(begin) ? -1 : json_integer_value(begin), rows[i].begin);
        assert_int_equal(json_is_null(end) ? -1 : json_integer_value(end), rows[i].end);
        json_decref(json);
    }
}

static void single_changes_have_the_right_outcome(void **state) {
    (void)state;
    const struct {
        const char *key, *value; /* NULL: removed */
        ls_status status;
        const char *text;
    } rows[] = {
        {"model_type", "\"mistral\"", LS_ERR_UNSUPPORTED, "model_type is \"mistral\""},
        {"model_type", NULL, LS_ERR_FORMAT, "model_type is missing"},
        {"hidden_size", NULL, LS_ERR_FORMAT, "hidden_size is missing"},
        {"hidden_size", "64.0", LS_ERR_FORMAT, "hidden_size is a real number"},
        {"hidden_size", "0", LS_ERR_FORMAT, "hidden_size is 0"},
        {"hidden_size", "60", LS_ERR_ARGUMENT, "n_embd is 60, expected a multiple"},
        {"intermediate_size", "null", LS_ERR_FORMAT, "intermediate_size is null"},
        {"num_hidden_layers", "[5]", LS_ERR_FORMAT, "num_hidden_layers is a list"},
        {"num_hidden_layers", "99999999999", LS_ERR_FORMAT, "num_hidden_layers is 99999999999"},
        {"num_key_value_heads", "3", LS_ERR_ARGUMENT, "n_kv_head is 3"},
        {"num_key_value_heads", "\"4\"", LS_ERR_FORMAT, "num_key_value_heads is a text"},
        {"max_position_embeddings", NULL, LS_ERR_FORMAT, "max_position_embeddings is missing"},
        {"vocab_size", "-1", LS_ERR_FORMAT, "vocab_size is -1"},
        {"head_dim", "8", LS_OK, NULL},
        {"head_dim", "null", LS_OK, NULL},
        {"head_dim", "16", LS_ERR_UNSUPPORTED, "head_dim is 16, supported is 8"},
        {"hidden_act", NULL, LS_OK, NULL},
        {"hidden_act", "\"swish\"", LS_OK, NULL},
        {"hidden_act", "\"gelu\"", LS_ERR_UNSUPPORTED, "hidden_act is \"gelu\""},
        {"rms_norm_eps", "0", LS_ERR_ARGUMENT, "rms_norm_eps is 0"},
        {"rms_norm_eps", "\"1e-5\"", LS_ERR_FORMAT, "rms_norm_eps is a text"},
        {"attention_bias", "true", LS_ERR_UNSUPPORTED, "attention_bias is true"},
        {"mlp_bias", "true", LS_ERR_UNSUPPORTED, "mlp_bias is true"},
        {"mlp_bias", "0", LS_ERR_FORMAT, "mlp_bias is an integer"},
        {"attention_dropout", "0.0", LS_OK, NULL},
        {"attention_dropout", "1.0", LS_ERR_ARGUMENT, "dropout is 1"},
        {"rope_theta", NULL, LS_OK, NULL},
        {"rope_theta", "0.5", LS_ERR_FORMAT, "rope_theta is 0.5"},
        {"rope_theta", "true", LS_ERR_FORMAT, "rope_theta is true"},
        {"rope_scaling", "null", LS_OK, NULL},
        {"rope_scaling", "{\"type\": \"default\"}", LS_OK, NULL},
        {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}", LS_ERR_UNSUPPORTED,
         "rope_scaling.type is \"linear\""},
        {"rope_scaling", "{\"rope_type\": \"llama3\"}", LS_ERR_UNSUPPORTED,
         "rope_scaling.rope_type is \"llama3\", supported is \"default\""},
        {"rope_scaling", "17", LS_ERR_FORMAT, "rope_scaling is an integer"},
        {"rope_parameters", "null", LS_OK, NULL},
        {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000.0}", LS_OK, NULL},
        {"rope_parameters", "{\"rope_type\": \"yarn\"}", LS_ERR_UNSUPPORTED,
         "rope_parameters.rope_type is \"yarn\""},
        {"rope_parameters", "{\"rope_type\": 1}", LS_ERR_FORMAT,
         "rope_parameters.rope_type is an integer"},
        {"rope_parameters", "{\"rope_theta\": 5.0}", LS_ERR_FORMAT,
         "rope_theta is 10000, but rope_parameters.rope_theta 5"},
        {"rope_parameters", "{\"rope_theta\": []}", LS_ERR_FORMAT,
         "rope_parameters: rope_theta is a list"},
        {"rope_parameters", "{\"partial_rotary_factor\": 0.5}", LS_ERR_UNSUPPORTED,
         "rope_parameters.partial_rotary_factor"},
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
        ls_status status = lsi_llama_config_from_json(json, &found);
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

/* As LlamaConfig says. */
static void missing_optional_keys_have_their_meaning(void **state) {
    (void)state;
    json_t *json = json_loads(hub_text, 0, NULL);
    static const char *const keys[] = {"num_key_value_heads", "rms_norm_eps", "rope_theta",
                                       "tie_word_embeddings", "hidden_act",   "attention_bias"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) json_object_del(json, keys[i]);
    json_object_set_new(json, "rope_parameters",
                        json_loads("{\"rope_type\": \"default\", \"rope_theta\": 5e5}", 0, NULL));
    lsi_model_config found;
    assert_ok(lsi_llama_config_from_json(json, &found));
    assert_int_equal(found.n_kv_head, found.n_head);
    assert_true(found.norm_epsilon == 1e-6 && found.rope_theta == 5e5 && found.untied);
    json_decref(json);
}

static void all_troubles_of_a_file_are_reported_together(void **state) {
    (void)state;
    json_t *json = json_loads("{\"model_type\": \"bert\", \"hidden_size\": \"x\"}", 0, NULL);
    static const char *const texts[] = {"vocab_size is missing",
                                        "hidden_size is a text",
                                        "model_type is \"bert\"",
                                        "intermediate_size is missing",
                                        "num_hidden_layers is missing",
                                        "num_attention_heads is",
                                        "max_position_embeddings is missing"};
    lsi_model_config found;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_fails(lsi_llama_config_from_json(json, &found), LS_ERR_FORMAT, texts[i]);
    json_decref(json);
    json = json_array();
    assert_fails(lsi_llama_config_from_json(json, &found), LS_ERR_FORMAT,
                 "a list, expected a JSON object");
    assert_fails(lsi_llama_config_from_json(NULL, &found), LS_ERR_FORMAT, "nothing");
    json_decref(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_bad_fields_are_refused),
        cmocka_unit_test(every_bad_field_is_named_at_once),
        cmocka_unit_test(models_too_large_to_address_are_refused),
        cmocka_unit_test(configuration_survives_json),
        cmocka_unit_test(json_is_what_transformers_reads),
        cmocka_unit_test(tokens_that_end_a_text_are_those_of_the_vocabulary),
        cmocka_unit_test(single_changes_have_the_right_outcome),
        cmocka_unit_test(missing_optional_keys_have_their_meaning),
        cmocka_unit_test(all_troubles_of_a_file_are_reported_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
