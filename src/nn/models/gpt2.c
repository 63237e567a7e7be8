/* GPT-2: Radford et al., "Language models are unsupervised multitask learners", 2019, with the
 * parameter names, layouts and configuration of Hugging Face's GPT2LMHeadModel.
 *
 * B sequences, T positions, C channels (n_embd), V vocabulary, L blocks.
 *
 *     unit 0        x = dropout(wte[ids] + wpe[0 … T-1])                                   (B,T,C)
 *     unit 1 … L    x = x + dropout(c_proj(attention(c_attn(ln_1(x)))))
 *                   x = x + dropout(c_proj(gelu(c_fc(ln_2(x)))))
 *     unit L + 1    logits = ln_f(x) * transpose(wte)                                      (B,T,V)
 *                   loss = sum over targets of -log softmax(logits)[target]                    (1)
 *
 * The output layer is wte again (tied), so wte's gradient is complete last of all. Weights of
 * linear layers are (in, out) as in the files. Parameters are in order of use: wte, wpe, the rows
 * of block_table for each block, ln_f. A leaf is made inside the unit that uses it, after the
 * unit's BEFORE_FORWARD: a strategy may have to fetch the parameter first. */
#include "nn/models/gpt2.h"

#include <math.h>
#include <stdio.h>

#include "nn/models/describe.h"
#include "nn/units.h"
#include "tensor/op.h"

/* ---- parameters ---- */

enum { WTE, WPE, FIRST_BLOCK };

/* Rows of one block, in order of use. */
enum {
    LN_1_WEIGHT,
    LN_1_BIAS,
    C_ATTN_WEIGHT,
    C_ATTN_BIAS,
    ATTN_PROJ_WEIGHT,
    ATTN_PROJ_BIAS,
    LN_2_WEIGHT,
    LN_2_BIAS,
    C_FC_WEIGHT,
    C_FC_BIAS,
    MLP_PROJ_WEIGHT,
    MLP_PROJ_BIAS,
    N_BLOCK_PARAMS
};

/* After the last block. */
enum { LN_F_WEIGHT, LN_F_BIAS };

/* How a row starts: RESIDUAL is normal with the deviation divided by the root of the number of
 * residual branches, 2 L, so that their sum keeps its size (section 2.3 of the paper). */
typedef enum start { START_ZERO, START_ONE, START_NORMAL, START_RESIDUAL } start;

typedef struct block_row {
    const char *name;
    int rows_of_c;    /* first dim in multiples of C; 0: the row has one dim */
    int columns_of_c; /* last dim in multiples of C */
    start start;
} block_row;

static const block_row block_table[N_BLOCK_PARAMS] = {
    [LN_1_WEIGHT] = {"ln_1.weight", 0, 1, START_ONE},
    [LN_1_BIAS] = {"ln_1.bias", 0, 1, START_ZERO},
    [C_ATTN_WEIGHT] = {"attn.c_attn.weight", 1, 3, START_NORMAL},
    [C_ATTN_BIAS] = {"attn.c_attn.bias", 0, 3, START_ZERO},
    [ATTN_PROJ_WEIGHT] = {"attn.c_proj.weight", 1, 1, START_RESIDUAL},
    [ATTN_PROJ_BIAS] = {"attn.c_proj.bias", 0, 1, START_ZERO},
    [LN_2_WEIGHT] = {"ln_2.weight", 0, 1, START_ONE},
    [LN_2_BIAS] = {"ln_2.bias", 0, 1, START_ZERO},
    [C_FC_WEIGHT] = {"mlp.c_fc.weight", 1, 4, START_NORMAL},
    [C_FC_BIAS] = {"mlp.c_fc.bias", 0, 4, START_ZERO},
    [MLP_PROJ_WEIGHT] = {"mlp.c_proj.weight", 4, 1, START_RESIDUAL},
    [MLP_PROJ_BIAS] = {"mlp.c_proj.bias", 0, 1, START_ZERO},
};

static ls_status add_vector(lsi_model *model, const char *name, int64_t n, lsi_init_kind init) {
    return lsi_model_add_param(model, name, 1, &n, LS_PARAM_NO_DECAY, init, 0.0);
}

static ls_status add_matrix(lsi_model *model, const char *name, int64_t rows, int64_t columns,
                            double std) {
    const int64_t dims[] = {rows, columns};
    return lsi_model_add_param(model, name, 2, dims, 0, LSI_INIT_NORMAL, std);
}

static ls_status add_block(lsi_model *model, int64_t layer) {
    int64_t C = model->config.n_embd;
    double residual_range = LSI_GPT2_INITIALIZER_RANGE / sqrt(2.0 * (double)model->config.n_layer);
    for (int i = 0; i < N_BLOCK_PARAMS; i++) {
        const block_row *row = &block_table[i];
        char name[64];
        snprintf(name, sizeof name, "h.%lld.%s", (long long)layer, row->name);
        if (row->rows_of_c == 0)
            LSI_TRY(add_vector(model, name, row->columns_of_c * C,
                               row->start == START_ONE ? LSI_INIT_ONE : LSI_INIT_ZERO));
        else
            LSI_TRY(add_matrix(model, name, row->rows_of_c * C, row->columns_of_c * C,
                               row->start == START_RESIDUAL ? residual_range
                                                            : LSI_GPT2_INITIALIZER_RANGE));
    }
    return LS_OK;
}

static ls_status build(lsi_model *model) {
    const lsi_model_config *config = &model->config;
    int64_t C = config->n_embd;
    LSI_TRY(add_matrix(model, "wte.weight", config->vocab_size, C, LSI_GPT2_INITIALIZER_RANGE));
    LSI_TRY(add_matrix(model, "wpe.weight", config->seq_len, C, LSI_GPT2_INITIALIZER_RANGE));
    for (int64_t layer = 0; layer < config->n_layer; layer++) LSI_TRY(add_block(model, layer));
    LSI_TRY(add_vector(model, "ln_f.weight", C, LSI_INIT_ONE));
    return add_vector(model, "ln_f.bias", C, LSI_INIT_ZERO);
}

/* ---- forward ---- */

/* What one forward pass carries around. */
typedef struct pass {
    lsi_model *model;
    lsi_tape *tape;
    int first; /* index of the first parameter of the block, or of ln_f after the last */
    float dropout, epsilon;
} pass;

static lsi_tensor *leaf(const pass *p, int row) {
    return lsi_model_leaf(p->model, p->tape, p->first + row);
}

static lsi_tensor *norm(const pass *p, lsi_tensor *x, int weight, int bias) {
    return lsi_op_layer_norm(p->tape, x, leaf(p, weight), leaf(p, bias), p->epsilon);
}

static lsi_tensor *linear(const pass *p, lsi_tensor *x, int weight, int bias) {
    return lsi_op_linear(p->tape, x, leaf(p, weight), leaf(p, bias));
}

/* `next` was made from `used`, which has no other use: memory that backward does not need goes back
 * at once, and inference keeps only what it is working on. */
static lsi_tensor *replace(const pass *p, lsi_tensor *used, lsi_tensor *next) {
    lsi_tape_drop(p->tape, used);
    return next;
}

static lsi_tensor *dropout(const pass *p, lsi_tensor *x) {
    lsi_tensor *thinned = lsi_op_dropout(p->tape, x, p->dropout);
    return thinned == x ? x : replace(p, x, thinned);
}

static lsi_tensor *add_residual(const pass *p, lsi_tensor *x, lsi_tensor *branch) {
    lsi_tensor *thinned = dropout(p, branch);
    lsi_tensor *sum = replace(p, thinned, lsi_op_add(p->tape, x, thinned));
    return replace(p, x, sum);
}

/* The same, and ln_2 of the sum while its rows are at hand. */
static lsi_tensor *add_residual_norm(const pass *p, lsi_tensor *x, lsi_tensor *branch,
                                     lsi_tensor **normal) {
    lsi_tensor *thinned = dropout(p, branch), *sum = NULL;
    *normal = lsi_op_add_layer_norm(p->tape, x, thinned, leaf(p, LN_2_WEIGHT), leaf(p, LN_2_BIAS),
                                    p->epsilon, &sum);
    lsi_tape_drop(p->tape, thinned);
    return replace(p, x, sum);
}

static lsi_tensor *attention_branch(const pass *p, lsi_tensor *x) {
    int n_heads = (int)p->model->config.n_head;
    lsi_tensor *normal = norm(p, x, LN_1_WEIGHT, LN_1_BIAS);
    lsi_tensor *qkv = replace(p, normal, linear(p, normal, C_ATTN_WEIGHT, C_ATTN_BIAS));
    lsi_tensor *mixed = replace(p, qkv, lsi_op_attention(p->tape, qkv, n_heads, p->dropout));
    return replace(p, mixed, linear(p, mixed, ATTN_PROJ_WEIGHT, ATTN_PROJ_BIAS));
}

static lsi_tensor *mlp_branch(const pass *p, lsi_tensor *normal) {
    lsi_tensor *wide = NULL;
    lsi_tensor *bent =
        lsi_op_linear_gelu(p->tape, normal, leaf(p, C_FC_WEIGHT), leaf(p, C_FC_BIAS), &wide);
    lsi_tape_drop(p->tape, normal);
    lsi_tape_drop(p->tape, wide);
    return replace(p, bent, linear(p, bent, MLP_PROJ_WEIGHT, MLP_PROJ_BIAS));
}

static lsi_tensor *embed(const pass *p, const lsi_batch *batch) {
    lsi_tensor *wte = lsi_model_leaf(p->model, p->tape, WTE);
    lsi_tensor *wpe = lsi_model_leaf(p->model, p->tape, WPE);
    lsi_tensor *sum =
        lsi_op_embedding(p->tape, batch->tokens, batch->n_batch, batch->n_time, wte, wpe);
    return dropout(p, sum);
}

static lsi_tensor *head(const pass *p, lsi_tensor *x, const lsi_batch *batch) {
    lsi_tensor *wte = lsi_model_leaf(p->model, p->tape, WTE);
    lsi_tensor *normal = replace(p, x, norm(p, x, LN_F_WEIGHT, LN_F_BIAS));
    if (batch->targets)
        return replace(p, normal, lsi_op_head_loss(p->tape, normal, wte, batch->targets));
    return replace(p, normal, lsi_op_logits(p->tape, normal, wte, NULL));
}

static lsi_tensor *forward(lsi_model *model, lsi_tape *tape, const lsi_batch *batch) {
    const lsi_model_config *config = &model->config;
    int L = (int)config->n_layer;
    if (batch->n_batch < 1 || batch->n_time < 1 || batch->n_time > config->seq_len)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "gpt2: a batch of %lld sequences of %lld tokens, expected at least 1 "
                             "sequence of 1 to %lld tokens (seq_len of the model)",
                             (long long)batch->n_batch, (long long)batch->n_time,
                             (long long)config->seq_len);
    pass p = {model, tape, FIRST_BLOCK, (float)config->dropout, (float)config->norm_epsilon};
    lsi_tape_unit_begin(tape, 0);
    lsi_tensor *x = embed(&p, batch), *normal;
    lsi_tape_unit_end(tape, 0);
    for (int layer = 0; layer < L; layer++, p.first += N_BLOCK_PARAMS) {
        lsi_tape_unit_begin(tape, layer + 1);
        x = add_residual_norm(&p, x, attention_branch(&p, x), &normal);
        x = add_residual(&p, x, mlp_branch(&p, normal));
        lsi_tape_unit_end(tape, layer + 1);
    }
    lsi_tape_unit_begin(tape, L + 1);
    lsi_tensor *result = head(&p, x, batch);
    lsi_tape_unit_end(tape, L + 1);
    return result;
}

/* ---- description ---- */

static int n_units(const lsi_model_config *config) {
    return (int)config->n_layer + 2;
}

/* wte, which begins the pass, also ends it. */
static void uses(const lsi_model *model, lsi_use_list *list) {
    int L = (int)model->config.n_layer, last = FIRST_BLOCK + L * N_BLOCK_PARAMS;
    lsi_use_tables(list, 0, WTE, FIRST_BLOCK);
    lsi_use(list, 1, L, FIRST_BLOCK, N_BLOCK_PARAMS);
    lsi_use(list, L + 1, 1, WTE, 1);
    lsi_use(list, L + 1, 1, last, 2);
}

/* Activations of a block; outputs of norms and gelu are made again. */
static int64_t block_bytes(const lsi_model_config *config, int64_t n_batch, int64_t n_time,
                           size_t size) {
    const size_t stat = 2 * sizeof(float);
    int64_t rows = n_batch * n_time, C = config->n_embd;
    return 2 * lsi_describe_bytes(rows, stat) /* of the norms */
           /* attention: queries, keys, values; mixture; two floats a row */
           + lsi_describe_bytes(3 * rows * C, size) + lsi_describe_bytes(rows * C, size) +
           lsi_describe_bytes(rows * config->n_head, stat)
           /* sum, input of gelu, sum */
           + 2 * lsi_describe_bytes(rows * C, size) + lsi_describe_bytes(4 * rows * C, size);
}

static void describe(const lsi_model *model, int64_t n_batch, int64_t n_time, ls_dtype dtype,
                     lsi_unit_cost *units) {
    const lsi_model_config *config = &model->config;
    int64_t rows = n_batch * n_time, C = config->n_embd;
    size_t size = ls_dtype_bytes(dtype);
    int L = (int)config->n_layer, first = FIRST_BLOCK;
    units[0] = lsi_describe_params(model, WTE, FIRST_BLOCK, rows);
    units[0].flops = 0.0; /* looked up, not multiplied */
    units[0].activation_bytes =
        lsi_describe_bytes(rows, sizeof(int32_t)) + lsi_describe_bytes(rows * C, size);
    for (int layer = 0; layer < L; layer++, first += N_BLOCK_PARAMS) {
        units[layer + 1] = lsi_describe_params(model, first, N_BLOCK_PARAMS, rows);
        units[layer + 1].flops += lsi_describe_attention(n_batch, n_time, C);
        units[layer + 1].activation_bytes = block_bytes(config, n_batch, n_time, size);
    }
    units[L + 1] = lsi_describe_params(model, first, 2, rows);
    units[L + 1].flops = lsi_describe_params(model, WTE, 1, rows).flops;
    /* the norm's statistics, the gradient that head_loss makes in forward, the loss */
    units[L + 1].activation_bytes = lsi_describe_bytes(rows, 2 * sizeof(float)) +
                                    lsi_describe_bytes(rows * C, size) +
                                    lsi_describe_bytes(1, sizeof(float));
}

const lsi_model_class lsi_model_gpt2 = {
    .name = "gpt2",
    .help = "GPT-2: learned positions, layer norm before each branch, output tied to the embedding",
    .check = lsi_gpt2_check,
    .build = build,
    .forward = forward,
    .n_units = n_units,
    .describe = describe,
    .uses = uses,
    .model_type = "gpt2",
    .file_prefix = "transformer.",
    .config_to_json = lsi_gpt2_config_to_json,
    .config_from_json = lsi_gpt2_config_from_json,
};
