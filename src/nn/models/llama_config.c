/* Llama's configuration: what is legal, and config.json as transformers' LlamaConfig has it.
 *
 * Writing gives every key that decides the arithmetic, so a reader needs no defaults. Reading is
 * strict: a missing size, a wrong type, a number out of range or a variant of the model that
 * llama.c does not compute is an error, and one call reports all of them. Optional keys mean what
 * LlamaConfig says when they are missing; keys that do not change the arithmetic are ignored.
 *
 * The angles of rotary positions stand in one of two places: "rope_theta" and "rope_scaling" beside
 * the sizes, or since version 5 of transformers "rope_parameters", which has both. Either is read,
 * and both if they agree; the former is written, which all versions read. */
#include "nn/models/llama.h"

#include <string.h>

#include "nn/models/config_json.h"

#define DEFAULT_THETA 10000.0
#define DEFAULT_EPSILON 1e-6
#define MAX_THETA 1e12

/* ---- check ---- */

/* Sizes are known to fit int32, so the total, formed in 128 bits, cannot overflow. */
static void check_total(const lsi_model_config *config, lsi_complaints *list) {
    __extension__ typedef __int128 wide;
    wide C = config->n_embd, keys = C / config->n_head * config->n_kv_head;
    wide block = 2 * C * C + 2 * keys * C + 3 * C * config->n_inner + 2 * C;
    wide tables = config->vocab_size * C * (config->untied ? 2 : 1);
    wide total = tables + C + config->n_layer * block;
    wide model_state_bytes = total * 16; /* parameter, gradient and two moments */
    if (model_state_bytes > INT64_MAX)
        lsi_complain(list,
                     "the model has %.3g parameters, more than can be addressed with gradients and "
                     "moments; reduce n_embd, n_inner, n_layer or vocab_size",
                     (double)total);
}

static void check_heads(const lsi_model_config *config, lsi_complaints *list) {
    if (config->n_embd % config->n_head != 0)
        lsi_complain(list, "n_embd is %lld, expected a multiple of n_head, %lld",
                     (long long)config->n_embd, (long long)config->n_head);
    else if (config->n_embd / config->n_head % 2 != 0)
        lsi_complain(list,
                     "n_embd / n_head, the size of a head, is %lld, expected an even number: "
                     "rotary positions turn pairs",
                     (long long)(config->n_embd / config->n_head));
    if (config->n_head % config->n_kv_head != 0)
        lsi_complain(list, "n_kv_head is %lld, expected a divisor of n_head, %lld",
                     (long long)config->n_kv_head, (long long)config->n_head);
}

static void check_numbers(const lsi_model_config *config, lsi_complaints *list) {
    if (!(config->dropout >= 0.0 && config->dropout < 1.0))
        lsi_complain(list, "dropout is %g, expected 0 to less than 1", config->dropout);
    if (!(config->norm_epsilon > 0.0 && config->norm_epsilon < 1.0))
        lsi_complain(list, "rms_norm_eps is %g, expected more than 0 and less than 1",
                     config->norm_epsilon);
    if (!(config->rope_theta >= 1.0 && config->rope_theta <= MAX_THETA))
        lsi_complain(list, "rope_theta is %g, expected 1 to %g", config->rope_theta, MAX_THETA);
}

/* Every size must fit int32, which token ids, units and parameter numbers are. */
ls_status lsi_llama_check(const lsi_model_config *config) {
    const struct {
        const char *name;
        int64_t found, max;
    } sizes[] = {
        {"n_layer", config->n_layer, (INT32_MAX - 4) / LSI_LLAMA_BLOCK_PARAMS},
        {"n_head", config->n_head, INT32_MAX},
        {"n_kv_head", config->n_kv_head, INT32_MAX},
        {"n_embd", config->n_embd, INT32_MAX},
        {"n_inner", config->n_inner, INT32_MAX},
        {"seq_len", config->seq_len, INT32_MAX},
        {"vocab_size", config->vocab_size, INT32_MAX},
    };
    lsi_complaints list = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].found < 1 || sizes[i].found > sizes[i].max)
            lsi_complain(&list, "%s is %lld, expected 1 to %lld", sizes[i].name,
                         (long long)sizes[i].found, (long long)sizes[i].max);
    if (list.used == 0) {
        check_heads(config, &list);
        check_total(config, &list);
    }
    check_numbers(config, &list);
    return list.used ? lsi_fail(LS_ERR_ARGUMENT, "llama: %s", list.text) : LS_OK;
}

/* ---- to JSON ---- */

/* Tokens that begin and end a text: LlamaConfig means its own tokenizers', 1 and 2, when they are
 * missing; bytes have no such tokens, and GPT-2's tokenizer has one for both, its last. */
static json_t *border_token(const lsi_model_config *config, int usual) {
    enum { BYTES = 256, GPT2 = 50257 };
    if (config->vocab_size == BYTES) return json_null();
    return json_integer(config->vocab_size == GPT2 ? GPT2 - 1 : usual);
}

static int put_bool(json_t *json, const char *name, bool value) {
    return json_object_set_new(json, name, json_boolean(value));
}

json_t *lsi_llama_config_to_json(const lsi_model_config *config) {
    json_t *json = json_object();
    int trouble = !json;
    trouble |= lsi_config_put_text(json, "model_type", "llama");
    trouble |= json_object_set_new(json, "architectures", json_pack("[s]", "LlamaForCausalLM"));
    trouble |= lsi_config_put_size(json, "vocab_size", config->vocab_size);
    trouble |= lsi_config_put_size(json, "hidden_size", config->n_embd);
    trouble |= lsi_config_put_size(json, "intermediate_size", config->n_inner);
    trouble |= lsi_config_put_size(json, "num_hidden_layers", config->n_layer);
    trouble |= lsi_config_put_size(json, "num_attention_heads", config->n_head);
    trouble |= lsi_config_put_size(json, "num_key_value_heads", config->n_kv_head);
    trouble |= lsi_config_put_size(json, "head_dim", config->n_embd / config->n_head);
    trouble |= lsi_config_put_size(json, "max_position_embeddings", config->seq_len);
    trouble |= lsi_config_put_text(json, "hidden_act", "silu");
    trouble |= lsi_config_put_number(json, "rms_norm_eps", config->norm_epsilon);
    trouble |= lsi_config_put_number(json, "rope_theta", config->rope_theta);
    trouble |= json_object_set_new(json, "rope_scaling", json_null());
    trouble |= lsi_config_put_number(json, "attention_dropout", config->dropout);
    trouble |= put_bool(json, "attention_bias", false);
    trouble |= put_bool(json, "mlp_bias", false);
    trouble |= lsi_config_put_number(json, "initializer_range", LSI_LLAMA_INITIALIZER_RANGE);
    trouble |= put_bool(json, "tie_word_embeddings", !config->untied);
    trouble |= json_object_set_new(json, "bos_token_id", border_token(config, 1));
    trouble |= json_object_set_new(json, "eos_token_id", border_token(config, 2));
    if (!trouble) return json;
    json_decref(json);
    return NULL;
}

/* ---- from JSON ---- */

/* Rotary positions as rope_scaling or rope_parameters says: the plain ones are "default". In
 * rope_scaling the type's key was "type" once. */
static void read_rope_type(lsi_config_reader *r, const char *name, const json_t *rope) {
    static const char *const keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const json_t *type = json_object_get(rope, keys[i]);
        if (!type) continue;
        if (!json_is_string(type))
            lsi_complain(&r->wrong, "%s.%s is %s, expected a text", name, keys[i],
                         lsi_config_type(type));
        else if (strcmp(json_string_value(type), "default") != 0)
            lsi_complain(&r->unsupported, "%s.%s is \"%.40s\", supported is \"default\"", name,
                         keys[i], json_string_value(type));
    }
    const json_t *share = json_object_get(rope, "partial_rotary_factor");
    if (share && !(json_is_number(share) && json_number_value(share) == 1.0))
        lsi_complain(&r->unsupported, "%s.partial_rotary_factor is not 1, which is supported",
                     name);
}

/* An object or null; NULL for the latter and for trouble. */
static const json_t *read_rope(lsi_config_reader *r, const char *name) {
    const json_t *rope = lsi_config_get(r, name);
    if (!rope || json_is_null(rope)) return NULL;
    if (!json_is_object(rope)) {
        lsi_complain(&r->wrong, "%s is %s, expected an object or null", name,
                     lsi_config_type(rope));
        return NULL;
    }
    read_rope_type(r, name, rope);
    return rope;
}

static double read_theta(lsi_config_reader *r) {
    (void)read_rope(r, "rope_scaling");
    double outer = lsi_config_number(r, "rope_theta", DEFAULT_THETA, 1.0, MAX_THETA);
    lsi_config_reader inside = {.json = read_rope(r, "rope_parameters")};
    if (!inside.json) return outer;
    double theta = lsi_config_number(&inside, "rope_theta", outer, 1.0, MAX_THETA);
    if (inside.wrong.used) lsi_complain(&r->wrong, "rope_parameters: %s", inside.wrong.text);
    if (lsi_config_get(r, "rope_theta") && theta != outer)
        lsi_complain(&r->wrong, "rope_theta is %g, but rope_parameters.rope_theta %g", outer,
                     theta);
    return theta;
}

static void read_sizes(lsi_config_reader *r, lsi_model_config *config) {
    config->vocab_size = lsi_config_size(r, "vocab_size");
    config->seq_len = lsi_config_size(r, "max_position_embeddings");
    config->n_embd = lsi_config_size(r, "hidden_size");
    config->n_inner = lsi_config_size(r, "intermediate_size");
    config->n_layer = lsi_config_size(r, "num_hidden_layers");
    config->n_head = lsi_config_size(r, "num_attention_heads");
    config->n_kv_head = lsi_config_size_or(r, "num_key_value_heads", config->n_head);
    lsi_config_fixed(r, "head_dim", config->n_embd / config->n_head);
}

static void read_config(lsi_config_reader *r, lsi_model_config *config) {
    static const char *const model_types[] = {"llama", NULL};
    static const char *const activations[] = {"silu", "swish", NULL}; /* one function */
    lsi_config_word(r, "model_type", model_types, true);
    read_sizes(r, config);
    config->norm_epsilon = lsi_config_number(r, "rms_norm_eps", DEFAULT_EPSILON, 0.0, 1.0);
    config->rope_theta = read_theta(r);
    config->dropout = lsi_config_number(r, "attention_dropout", 0.0, 0.0, 1.0);
    config->untied = !lsi_config_bool(r, "tie_word_embeddings", false);
    lsi_config_word(r, "hidden_act", activations, false);
    lsi_config_switch(r, "attention_bias", false);
    lsi_config_switch(r, "mlp_bias", false);
}

ls_status lsi_llama_config_from_json(const json_t *json, lsi_model_config *config) {
    lsi_config_reader r = {.json = json, .what = "llama configuration"};
    lsi_model_config found = {0};
    LSI_TRY(lsi_config_begin(&r));
    read_config(&r, &found);
    LSI_TRY(lsi_config_finish(&r));
    LSI_TRY(lsi_context(lsi_llama_check(&found), "configuration"));
    *config = found;
    return LS_OK;
}
