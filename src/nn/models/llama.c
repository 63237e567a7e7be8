/* Llama: Touvron et al., "LLaMA: open and efficient foundation language models", 2023, with the
 * parameter names, layouts and configuration of Hugging Face's LlamaForCausalLM.
 *
 * B sequences, T positions, C channels (n_embd), H heads of D = C / H, G heads of keys and values,
 * I channels of the feed-forward layer (n_inner), V vocabulary, L blocks.
 *
 *     unit 0        x = embed_tokens[ids]                                                  (B,T,C)
 *     unit 1 … L    n = input_layernorm(x)
 *                   x = x + o_proj(attention(rope(q_proj(n)), rope(k_proj(n)), v_proj(n)))
 *                   n = post_attention_layernorm(x)
 *                   x = x + down_proj(silu(gate_proj(n)) * up_proj(n))
 *     unit L + 1    logits = norm(x) * transpose(lm_head)                                  (B,T,V)
 *                   loss = sum over targets of -log softmax(logits)[target]                    (1)
 *
 * lm_head is embed_tokens again (tied) or a parameter of its own (untied). Weights of linear layers
 * are (out, in) as in the files. Parameters are in order of use: embed_tokens, the rows of
 * block_table for each block, norm, lm_head. A leaf is made inside the unit that uses it, after the
 * unit's BEFORE_FORWARD: a strategy may have to fetch the parameter first. Dropout, if any, is that
 * of attention's probabilities, as LlamaConfig has it. */
#include "nn/models/llama.h"

#include <stdio.h>

#include "nn/models/describe.h"
#include "nn/units.h"
#include "tensor/op.h"

/* ---- parameters ---- */

enum { EMBED_TOKENS, FIRST_BLOCK };

/* Rows of one block, in order of use. */
enum {
    INPUT_NORM,
    Q_PROJ,
    K_PROJ,
    V_PROJ,
    O_PROJ,
    POST_ATTENTION_NORM,
    GATE_PROJ,
    UP_PROJ,
    DOWN_PROJ,
    N_BLOCK_PARAMS
};
_Static_assert((int)N_BLOCK_PARAMS == (int)LSI_LLAMA_BLOCK_PARAMS, "llama_config.c counts them");

/* After the last block. */
enum { NORM, LM_HEAD };

/* Widths that matrices have. */
typedef enum dimension { NONE, CHANNELS, KEYS, INNER } dimension;

typedef struct block_row {
    const char *name;
    dimension rows, columns; /* rows NONE: a norm's weight */
} block_row;

static const block_row block_table[N_BLOCK_PARAMS] = {
    [INPUT_NORM] = {"input_layernorm.weight", NONE, CHANNELS},
    [Q_PROJ] = {"self_attn.q_proj.weight", CHANNELS, CHANNELS},
    [K_PROJ] = {"self_attn.k_proj.weight", KEYS, CHANNELS},
    [V_PROJ] = {"self_attn.v_proj.weight", KEYS, CHANNELS},
    [O_PROJ] = {"self_attn.o_proj.weight", CHANNELS, CHANNELS},
    [POST_ATTENTION_NORM] = {"post_attention_layernorm.weight", NONE, CHANNELS},
    [GATE_PROJ] = {"mlp.gate_proj.weight", INNER, CHANNELS},
    [UP_PROJ] = {"mlp.up_proj.weight", INNER, CHANNELS},
    [DOWN_PROJ] = {"mlp.down_proj.weight", CHANNELS, INNER},
};

static int64_t size_of(const lsi_model_config *config, dimension which) {
    int64_t head_size = config->n_embd / config->n_head;
    const int64_t sizes[] = {[CHANNELS] = config->n_embd,
                             [KEYS] = config->n_kv_head * head_size,
                             [INNER] = config->n_inner};
    return sizes[which];
}

static ls_status add_norm(lsi_model *model, const char *name) {
    int64_t n = model->config.n_embd;
    return lsi_model_add_param(model, name, 1, &n, LS_PARAM_NO_DECAY, LSI_INIT_ONE, 0.0);
}

static ls_status add_matrix(lsi_model *model, const char *name, int64_t rows, int64_t columns) {
    const int64_t dims[] = {rows, columns};
    return lsi_model_add_param(model, name, 2, dims, 0, LSI_INIT_NORMAL,
                               LSI_LLAMA_INITIALIZER_RANGE);
}

static ls_status add_block(lsi_model *model, int64_t layer) {
    for (int i = 0; i < N_BLOCK_PARAMS; i++) {
        const block_row *row = &block_table[i];
        char name[80];
        snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)layer, row->name);
        if (row->rows == NONE)
            LSI_TRY(add_norm(model, name));
        else
            LSI_TRY(add_matrix(model, name, size_of(&model->config, row->rows),
                               size_of(&model->config, row->columns)));
    }
    return LS_OK;
}

static ls_status build(lsi_model *model) {
    const lsi_model_config *config = &model->config;
    LSI_TRY(add_matrix(model, "model.embed_tokens.weight", config->vocab_size, config->n_embd));
    for (int64_t layer = 0; layer < config->n_layer; layer++) LSI_TRY(add_block(model, layer));
    LSI_TRY(add_norm(model, "model.norm.weight"));
    if (!config->untied) return LS_OK;
    return add_matrix(model, "lm_head.weight", config->vocab_size, config->n_embd);
}

/* ---- forward ---- */

/* What one forward pass carries around. */
typedef struct pass {
    lsi_model *model;
    lsi_tape *tape;
    int first;        /* index of the first parameter of the block, or of norm after the last */
    lsi_tensor *turn; /* table of rope */
} pass;

static lsi_tensor *leaf(const pass *p, int row) {
    return lsi_model_leaf(p->model, p->tape, p->first + row);
}

static lsi_tensor *norm(const pass *p, lsi_tensor *x, int weight) {
    return lsi_op_rms_norm(p->tape, x, leaf(p, weight), (float)p->model->config.norm_epsilon);
}

static lsi_tensor *linear(const pass *p, lsi_tensor *x, int weight) {
    return lsi_op_linear_transposed(p->tape, x, leaf(p, weight), NULL);
}

/* `next` was made from `used`, which has no other use: memory that backward does not need goes back
 * at once, and inference keeps only what it is working on. */
static lsi_tensor *replace(const pass *p, lsi_tensor *used, lsi_tensor *next) {
    lsi_tape_drop(p->tape, used);
    return next;
}

static lsi_tensor *add_residual(const pass *p, lsi_tensor *x, lsi_tensor *branch) {
    lsi_tensor *sum = replace(p, branch, lsi_op_add(p->tape, x, branch));
    return replace(p, x, sum);
}

/* The same, and the norm of the sum while its rows are at hand. */
static lsi_tensor *add_residual_norm(const pass *p, lsi_tensor *x, lsi_tensor *branch,
                                     lsi_tensor **normal) {
    lsi_tensor *sum = NULL;
    *normal = lsi_op_add_rms_norm(p->tape, x, branch, leaf(p, POST_ATTENTION_NORM),
                                  (float)p->model->config.norm_epsilon, &sum);
    lsi_tape_drop(p->tape, branch);
    return replace(p, x, sum);
}

static lsi_tensor *turned(const pass *p, lsi_tensor *x) {
    return replace(p, x, lsi_op_rope(p->tape, x, p->turn));
}

static lsi_tensor *attention_branch(const pass *p, lsi_tensor *x) {
    const lsi_model_config *config = &p->model->config;
    lsi_tensor *normal = norm(p, x, INPUT_NORM);
    lsi_tensor *q = turned(p, linear(p, normal, Q_PROJ));
    lsi_tensor *k = turned(p, linear(p, normal, K_PROJ));
    lsi_tensor *v = replace(p, normal, linear(p, normal, V_PROJ));
    lsi_tensor *mixed = lsi_op_attention_grouped(p->tape, q, k, v, (int)config->n_head,
                                                 (int)config->n_kv_head, (float)config->dropout);
    lsi_tape_drop(p->tape, q);
    lsi_tape_drop(p->tape, k);
    lsi_tape_drop(p->tape, v);
    return replace(p, mixed, linear(p, mixed, O_PROJ));
}

static lsi_tensor *mlp_branch(const pass *p, lsi_tensor *normal) {
    lsi_tensor *gate = linear(p, normal, GATE_PROJ);
    lsi_tensor *up = replace(p, normal, linear(p, normal, UP_PROJ));
    lsi_tensor *gated = lsi_op_silu_mul(p->tape, gate, up);
    lsi_tape_drop(p->tape, gate);
    lsi_tape_drop(p->tape, up);
    return replace(p, gated, linear(p, gated, DOWN_PROJ));
}

static lsi_tensor *embed(const pass *p, const lsi_batch *batch) {
    lsi_tensor *table = lsi_model_leaf(p->model, p->tape, EMBED_TOKENS);
    return lsi_op_embedding(p->tape, batch->tokens, batch->n_batch, batch->n_time, table, NULL);
}

static lsi_tensor *head(const pass *p, lsi_tensor *x, const lsi_batch *batch) {
    bool untied = p->model->config.untied;
    lsi_tensor *normal = replace(p, x, norm(p, x, NORM));
    lsi_tensor *weight =
        untied ? leaf(p, LM_HEAD) : lsi_model_leaf(p->model, p->tape, EMBED_TOKENS);
    if (batch->targets)
        return replace(p, normal, lsi_op_head_loss(p->tape, normal, weight, batch->targets));
    return replace(p, normal, lsi_op_logits(p->tape, normal, weight, NULL));
}

static lsi_tensor *forward(lsi_model *model, lsi_tape *tape, const lsi_batch *batch) {
    const lsi_model_config *config = &model->config;
    int L = (int)config->n_layer;
    if (batch->n_batch < 1 || batch->n_time < 1 || batch->n_time > config->seq_len)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "llama: a batch of %lld sequences of %lld tokens, expected at least 1 "
                             "sequence of 1 to %lld tokens (seq_len of the model)",
                             (long long)batch->n_batch, (long long)batch->n_time,
                             (long long)config->seq_len);
    pass p = {model, tape, FIRST_BLOCK, NULL};
    lsi_tape_unit_begin(tape, 0);
    lsi_tensor *x = embed(&p, batch), *normal;
    p.turn =
        lsi_op_rope_table(tape, batch->n_time, config->n_embd / config->n_head, config->rope_theta);
    lsi_tape_unit_end(tape, 0);
    for (int layer = 0; layer < L; layer++, p.first += N_BLOCK_PARAMS) {
        lsi_tape_unit_begin(tape, layer + 1);
        x = add_residual_norm(&p, x, attention_branch(&p, x), &normal);
        x = add_residual(&p, x, mlp_branch(&p, normal));
        lsi_tape_unit_end(tape, layer + 1);
    }
    lsi_tape_drop(tape, p.turn);
    lsi_tape_unit_begin(tape, L + 1);
    lsi_tensor *result = head(&p, x, batch);
    lsi_tape_unit_end(tape, L + 1);
    return result;
}

/* ---- description ---- */

static int n_units(const lsi_model_config *config) {
    return (int)config->n_layer + 2;
}

static void uses(const lsi_model *model, lsi_use_list *list) {
    int L = (int)model->config.n_layer, last = FIRST_BLOCK + L * N_BLOCK_PARAMS;
    bool untied = model->config.untied;
    lsi_use_tables(list, 0, EMBED_TOKENS, 1);
    lsi_use(list, 1, L, FIRST_BLOCK, N_BLOCK_PARAMS);
    if (!untied) lsi_use(list, L + 1, 1, EMBED_TOKENS, 1);
    lsi_use(list, L + 1, 1, last, untied ? 2 : 1);
}

/* Activations of a block by what they are, in order; norms and the gated product are made again. */
static int64_t block_bytes(const lsi_model_config *config, int64_t n_batch, int64_t n_time,
                           size_t size) {
    int64_t rows = n_batch * n_time, C = config->n_embd, keys = size_of(config, KEYS);
    return 2 * lsi_describe_bytes(rows, sizeof(float)) /* of the norms */
           + lsi_describe_bytes(rows * C, size) +
           2 * lsi_describe_bytes(rows * keys, size)
           /* attention: mixture, two floats a row */
           + lsi_describe_bytes(rows * C, size) +
           lsi_describe_bytes(rows * config->n_head, 2 * sizeof(float))
           /* sum, gate and up, sum */
           + 2 * lsi_describe_bytes(rows * C, size) +
           2 * lsi_describe_bytes(rows * config->n_inner, size);
}

static void describe(const lsi_model *model, int64_t n_batch, int64_t n_time, ls_dtype dtype,
                     lsi_unit_cost *units) {
    const lsi_model_config *config = &model->config;
    int64_t rows = n_batch * n_time, C = config->n_embd;
    size_t size = ls_dtype_bytes(dtype);
    int L = (int)config->n_layer, first = FIRST_BLOCK;
    units[0] = lsi_describe_params(model, EMBED_TOKENS, 1, rows);
    units[0].flops = 0.0; /* looked up, not multiplied */
    units[0].activation_bytes = lsi_describe_bytes(rows, sizeof(int32_t)) +
                                lsi_describe_bytes(rows * C, size) +
                                lsi_describe_bytes(n_time * C / config->n_head, sizeof(float));
    for (int layer = 0; layer < L; layer++, first += N_BLOCK_PARAMS) {
        units[layer + 1] = lsi_describe_params(model, first, N_BLOCK_PARAMS, rows);
        units[layer + 1].flops += lsi_describe_attention(n_batch, n_time, C);
        units[layer + 1].activation_bytes = block_bytes(config, n_batch, n_time, size);
    }
    units[L + 1] = lsi_describe_params(model, first, config->untied ? 2 : 1, rows);
    if (!config->untied)
        units[L + 1].flops = lsi_describe_params(model, EMBED_TOKENS, 1, rows).flops;
    /* the norm's statistics, the gradient that head_loss makes in forward, the loss */
    units[L + 1].activation_bytes = lsi_describe_bytes(rows, sizeof(float)) +
                                    lsi_describe_bytes(rows * C, size) +
                                    lsi_describe_bytes(1, sizeof(float));
}

const lsi_model_class lsi_model_llama = {
    .name = "llama",
    .help =
        "Llama: rotary positions, RMS norm before each branch, gated feed-forward layers, heads "
        "that share keys and values",
    .check = lsi_llama_check,
    .build = build,
    .forward = forward,
    .n_units = n_units,
    .describe = describe,
    .uses = uses,
    .model_type = "llama",
    .file_prefix = "",
    .config_to_json = lsi_llama_config_to_json,
    .config_from_json = lsi_llama_config_from_json,
};
