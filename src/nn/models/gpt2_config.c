/* GPT-2's configuration: what is legal, and config.json as transformers' GPT2Config has it.
 *
 * Writing gives every key that decides the arithmetic, so a reader needs no defaults. Reading is
 * strict: a missing size, a wrong type, a number out of range or a variant of the model that gpt2.c
 * does not compute is an error, and one call reports all of them. Optional keys mean what
 * GPT2Config says when they are missing; keys that do not change the arithmetic are ignored. */
#include "nn/models/gpt2.h"

#include "nn/models/config_json.h"

/* ---- check ---- */

/* Parameters of one block in units of C * C and of C (block_table in gpt2.c). */
enum { BLOCK_PARAMS = 12, BLOCK_CC = 12, BLOCK_C = 13 };

/* Sizes are known to fit int32, so the total, formed in 128 bits, cannot overflow. */
static void check_total(const lsi_model_config *config, lsi_complaints *list) {
    __extension__ typedef __int128 wide;
    wide C = config->n_embd;
    wide block = BLOCK_CC * C * C + BLOCK_C * C;
    wide total = (config->vocab_size + config->seq_len + 2) * C + config->n_layer * block;
    wide model_state_bytes = total * 16; /* parameter, gradient and two moments */
    if (model_state_bytes > INT64_MAX)
        lsi_complain(list,
                     "the model has %.3g parameters, more than can be addressed with gradients and "
                     "moments; reduce n_embd, n_layer or vocab_size",
                     (double)total);
}

/* Every size must fit int32, which token ids, units and parameter numbers are. */
ls_status lsi_gpt2_check(const lsi_model_config *config) {
    const struct {
        const char *name;
        int64_t found, max;
    } sizes[] = {
        {"n_layer", config->n_layer, (INT32_MAX - 4) / BLOCK_PARAMS},
        {"n_head", config->n_head, INT32_MAX},
        {"n_embd", config->n_embd, INT32_MAX},
        {"seq_len", config->seq_len, INT32_MAX},
        {"vocab_size", config->vocab_size, INT32_MAX},
    };
    lsi_complaints list = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].found < 1 || sizes[i].found > sizes[i].max)
            lsi_complain(&list, "%s is %lld, expected 1 to %lld", sizes[i].name,
                         (long long)sizes[i].found, (long long)sizes[i].max);
    bool sizes_are_good = list.used == 0;
    if (config->n_head >= 1 && config->n_embd >= 1 && config->n_embd % config->n_head != 0)
        lsi_complain(&list, "n_embd is %lld, expected a multiple of n_head, %lld",
                     (long long)config->n_embd, (long long)config->n_head);
    if (!(config->dropout >= 0.0 && config->dropout < 1.0))
        lsi_complain(&list, "dropout is %g, expected 0 to less than 1", config->dropout);
    if (!(config->norm_epsilon > 0.0 && config->norm_epsilon < 1.0))
        lsi_complain(&list, "layer_norm_epsilon is %g, expected more than 0 and less than 1",
                     config->norm_epsilon);
    if (sizes_are_good) check_total(config, &list);
    return list.used ? lsi_fail(LS_ERR_ARGUMENT, "gpt2: %s", list.text) : LS_OK;
}

/* ---- to JSON ---- */

/* GPT-2's own vocabulary ends with "<|endoftext|>", which begins and ends a text; others have no
 * such token here. */
static json_t *border_token(const lsi_model_config *config) {
    return config->vocab_size == 50257 ? json_integer(50256) : json_null();
}

json_t *lsi_gpt2_config_to_json(const lsi_model_config *config) {
    json_t *json = json_object();
    int trouble = !json;
    trouble |= lsi_config_put_text(json, "model_type", "gpt2");
    trouble |= json_object_set_new(json, "architectures", json_pack("[s]", "GPT2LMHeadModel"));
    trouble |= lsi_config_put_size(json, "vocab_size", config->vocab_size);
    trouble |= lsi_config_put_size(json, "n_positions", config->seq_len);
    trouble |= lsi_config_put_size(json, "n_ctx", config->seq_len);
    trouble |= lsi_config_put_size(json, "n_embd", config->n_embd);
    trouble |= lsi_config_put_size(json, "n_layer", config->n_layer);
    trouble |= lsi_config_put_size(json, "n_head", config->n_head);
    trouble |= json_object_set_new(json, "n_inner", json_null());
    trouble |= lsi_config_put_text(json, "activation_function", "gelu_new");
    trouble |= lsi_config_put_number(json, "resid_pdrop", config->dropout);
    trouble |= lsi_config_put_number(json, "embd_pdrop", config->dropout);
    trouble |= lsi_config_put_number(json, "attn_pdrop", config->dropout);
    trouble |= lsi_config_put_number(json, "layer_norm_epsilon", config->norm_epsilon);
    trouble |= lsi_config_put_number(json, "initializer_range", LSI_GPT2_INITIALIZER_RANGE);
    trouble |= json_object_set_new(json, "tie_word_embeddings", json_true());
    trouble |= json_object_set_new(json, "bos_token_id", border_token(config));
    trouble |= json_object_set_new(json, "eos_token_id", border_token(config));
    if (!trouble) return json;
    json_decref(json);
    return NULL;
}

/* ---- from JSON ---- */

/* Missing means 0.1 in GPT2Config, for each of the three. */
static double read_dropout(lsi_config_reader *r) {
    double resid = lsi_config_number(r, "resid_pdrop", 0.1, 0.0, 1.0);
    double embd = lsi_config_number(r, "embd_pdrop", 0.1, 0.0, 1.0);
    double attn = lsi_config_number(r, "attn_pdrop", 0.1, 0.0, 1.0);
    if (resid != embd || resid != attn)
        lsi_complain(&r->unsupported,
                     "resid_pdrop, embd_pdrop and attn_pdrop are %g, %g and %g, supported is one "
                     "value for all three",
                     resid, embd, attn);
    return resid;
}

static void read_config(lsi_config_reader *r, lsi_model_config *config) {
    static const char *const model_types[] = {"gpt2", NULL};
    /* the second is the same function under a newer name */
    static const char *const activations[] = {"gelu_new", "gelu_pytorch_tanh", NULL};
    lsi_config_word(r, "model_type", model_types, true);
    config->vocab_size = lsi_config_size(r, "vocab_size");
    config->seq_len = lsi_config_size(r, "n_positions");
    config->n_embd = lsi_config_size(r, "n_embd");
    config->n_layer = lsi_config_size(r, "n_layer");
    config->n_head = lsi_config_size(r, "n_head");
    config->dropout = read_dropout(r);
    config->norm_epsilon = lsi_config_number(r, "layer_norm_epsilon", 1e-5, 0.0, 1.0);
    lsi_config_word(r, "activation_function", activations, false);
    lsi_config_fixed(r, "n_ctx", config->seq_len);
    lsi_config_fixed(r, "n_inner", 4 * config->n_embd);
    lsi_config_switch(r, "tie_word_embeddings", true);
    lsi_config_switch(r, "scale_attn_weights", true);
    lsi_config_switch(r, "scale_attn_by_inverse_layer_idx", false);
    lsi_config_switch(r, "add_cross_attention", false);
}

ls_status lsi_gpt2_config_from_json(const json_t *json, lsi_model_config *config) {
    lsi_config_reader r = {.json = json, .what = "gpt2 configuration"};
    lsi_model_config found = {0};
    LSI_TRY(lsi_config_begin(&r));
    read_config(&r, &found);
    LSI_TRY(lsi_config_finish(&r));
    LSI_TRY(lsi_context(lsi_gpt2_check(&found), "configuration"));
    *config = found;
    return LS_OK;
}
