/* Text from a saved model, token by token.
 *
 * The prompt's tokens follow the tokenizer's begin token, if it has one; without a prompt that
 * token alone is the start, or a line break where there is none. Each token runs the model over the
 * last seq_len tokens. The draw of token i depends on seed and i alone, so the same call gives the
 * same text. A token that ends a text, or begins the next one, ends the output; it is not printed.
 */
#include "train/generate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/gemm.h"
#include "train/sample.h"
#include "train/saved.h"

#define AT(field) offsetof(lsi_generate_config, field)

const lsi_opt lsi_generate_options[] = {
    {"model", 'm', LSI_OPT_TEXT, AT(model), "FOLDER", NULL, 0, 0, NULL, "Input",
     "Model folder (config.json and model.safetensors), for example lockstep-run/model."},
    {"tokenizer", 0, LSI_OPT_TEXT, AT(tokenizer), "FILE", NULL, 0, 0, NULL, "Input",
     "byte, or a tokenizer's file or folder (not given: what the model folder has)."},
    {"prompt", 'p', LSI_OPT_TEXT, AT(prompt), "TEXT", NULL, 0, 0, NULL, "Input",
     "Text to continue; - reads it from standard input (not given: the beginning of a text)."},
    {"begin", 0, LSI_OPT_BOOL, AT(begin), NULL, "true", 0, 0, NULL, "Input",
     "Puts the token that begins a text before the prompt, if the tokenizer has one."},
    {"tokens", 'n', LSI_OPT_INT, AT(n_tokens), "tokens", "200", 0, 1e9, NULL, "Sampling",
     "Most tokens to add."},
    {"ignore-end", 0, LSI_OPT_BOOL, AT(ignore_end), NULL, "false", 0, 0, NULL, "Sampling",
     "Goes on after the token that ends a text."},
    {"temperature", 't', LSI_OPT_FLOAT, AT(temperature), NULL, "0.8", 0, 100, NULL, "Sampling",
     "Below 1 likelier tokens, above 1 more surprising ones, 0 always the likeliest."},
    {"top-k", 'k', LSI_OPT_INT, AT(top_k), "tokens", "0", 0, 1e9, NULL, "Sampling",
     "Draw from the k likeliest tokens only (0: from all)."},
    {"top-p", 0, LSI_OPT_FLOAT, AT(top_p), NULL, "1", 1e-9, 1, NULL, "Sampling",
     "Draw from the likeliest tokens that together have this probability (1: from all)."},
    {"seed", 's', LSI_OPT_INT, AT(seed), NULL, "1", 0, 9e15, NULL, "Sampling",
     "Seed of the draws."},
    {"threads", 0, LSI_OPT_INT, AT(threads), "threads", "0", 0, 4096, NULL, "Work",
     "Threads (0: as many as processors)."},
    {0},
};

typedef struct generator {
    const lsi_generate_config *config;
    lsi_saved_model saved;
    char *prompt;
    size_t prompt_bytes;
    int32_t *ids; /* prompt and what was added */
    int64_t n_ids;
    int64_t vocab; /* tokens to choose from: those that have a text */
    lsi_candidate *candidates;
    FILE *out;
} generator;

/* ---- the prompt ---- */

static ls_status read_stream(generator *g, FILE *in) {
    enum { PIECE = 65536 };
    size_t n = PIECE;
    while (n == PIECE) {
        char *longer = lsi_realloc(LSI_MEM_OTHER, g->prompt, g->prompt_bytes + PIECE);
        LSI_TRY(lsi_check_alloc(longer));
        g->prompt = longer;
        n = fread(longer + g->prompt_bytes, 1, PIECE, in);
        g->prompt_bytes += n;
    }
    if (ferror(in)) return lsi_fail_errno(LS_ERR_IO, "--prompt -: cannot read standard input");
    return LS_OK;
}

static int32_t begin_id(const generator *g) {
    return g->config->begin ? lsi_tokenizer_begin_id(g->saved.tokenizer) : -1;
}

static ls_status take_prompt(generator *g, FILE *in) {
    const char *prompt = g->config->prompt;
    if (prompt && strcmp(prompt, "-") == 0) return read_stream(g, in);
    if (!prompt) prompt = begin_id(g) >= 0 ? "" : "\n";
    g->prompt = lsi_strdup(prompt);
    g->prompt_bytes = strlen(prompt);
    return lsi_check_alloc(g->prompt);
}

/* Makes the list of tokens: begin, prompt, room for what will be added. */
static ls_status start_list(generator *g, const int32_t *ids, int64_t n) {
    int32_t begin = begin_id(g);
    if (n == 0 && begin < 0)
        return lsi_fail(LS_ERR_ARGUMENT, "--prompt is empty; give at least one character");
    /* Not zeroed: pages of tokens that are asked for and never reached cost nothing. */
    g->ids = lsi_alloc(LSI_MEM_OTHER, (size_t)(n + 1 + g->config->n_tokens) * sizeof *g->ids);
    LSI_TRY(lsi_check_alloc(g->ids));
    if (begin >= 0) g->ids[g->n_ids++] = begin;
    if (n > 0) memcpy(g->ids + g->n_ids, ids, (size_t)n * sizeof *ids);
    g->n_ids += n;
    return LS_OK;
}

static ls_status encode_prompt(generator *g) {
    int32_t *ids = NULL;
    int64_t n = 0;
    if (g->prompt_bytes > 0)
        LSI_TRY(lsi_tokenizer_encode(g->saved.tokenizer, g->prompt, g->prompt_bytes, &ids, &n));
    ls_status status = start_list(g, ids, n);
    lsi_free(ids);
    return status;
}

/* ---- one token ---- */

static ls_status next_logits(generator *g, const float **logits) {
    int64_t window = g->saved.model->config.seq_len;
    int64_t n_time = g->n_ids < window ? g->n_ids : window;
    const lsi_batch batch = {.tokens = g->ids + g->n_ids - n_time, .n_batch = 1, .n_time = n_time};
    lsi_tensor *all = NULL;
    LSI_TRY(lsi_saved_run(&g->saved, &batch, &all));
    const float *last = (const float *)all->data + (n_time - 1) * lsi_tensor_columns(all);
    for (int64_t i = 0; i < g->vocab; i++)
        if (!isfinite(last[i]))
            return lsi_fail(LS_ERR_NUMERIC,
                            "%s: the model gives %g for token %" PRId64 "; its weights are damaged",
                            g->config->model, (double)last[i], i);
    *logits = last;
    return LS_OK;
}

static ls_status choose_token(generator *g, int64_t position, int32_t *id) {
    const lsi_generate_config *c = g->config;
    const lsi_sample_opts opts = {c->temperature, c->top_k, c->top_p};
    const float *logits = NULL;
    LSI_TRY(next_logits(g, &logits));
    lsi_rng_stream stream = lsi_rng_open((uint64_t)c->seed, LSI_RNG_SAMPLE, 0, 0);
    double uniform = (double)lsi_rng_uniform(&stream, (uint64_t)position);
    *id = lsi_sample_token(&opts, logits, g->vocab, uniform, g->candidates);
    return LS_OK;
}

static bool ends_text(const generator *g, int32_t id) {
    return !g->config->ignore_end && (id == lsi_tokenizer_end_id(g->saved.tokenizer) ||
                                      id == lsi_tokenizer_begin_id(g->saved.tokenizer));
}

static ls_status print_text(const generator *g, const char *text, size_t bytes) {
    if (fwrite(text, 1, bytes, g->out) != bytes || fflush(g->out) != 0)
        return lsi_fail_errno(LS_ERR_IO, "cannot write the text");
    return LS_OK;
}

static ls_status add_token(generator *g, int32_t id) {
    size_t bytes = 0;
    int32_t previous = g->n_ids > 0 ? g->ids[g->n_ids - 1] : -1;
    const char *text = lsi_tokenizer_decode(g->saved.tokenizer, previous, id, &bytes);
    g->ids[g->n_ids++] = id;
    return print_text(g, text, bytes);
}

/* ---- all ---- */

static ls_status open_model(generator *g) {
    LSI_TRY(lsi_saved_open(g->config->model, &g->saved));
    if (g->saved.model->class->takes_images)
        return lsi_fail(LS_ERR_ARGUMENT, "%s: a %s model takes images and gives no text",
                        g->config->model, g->saved.model->class->name);
    LSI_TRY(lsi_saved_open_tokenizer(&g->saved, g->config->tokenizer));
    g->vocab = lsi_tokenizer_vocab_size(g->saved.tokenizer);
    LSI_TRY(lsi_saved_open_tape(&g->saved));
    g->candidates = lsi_calloc(LSI_MEM_OTHER, (size_t)g->vocab, sizeof *g->candidates);
    return lsi_check_alloc(g->candidates);
}

static ls_status run(generator *g, FILE *in) {
    LSI_TRY(open_model(g));
    LSI_TRY(take_prompt(g, in));
    LSI_TRY(encode_prompt(g));
    LSI_TRY(print_text(g, g->prompt, g->prompt_bytes));
    for (int64_t i = 0; i < g->config->n_tokens; i++) {
        int32_t id = 0;
        LSI_TRY(choose_token(g, i, &id));
        if (ends_text(g, id)) break;
        LSI_TRY(add_token(g, id));
    }
    return LS_OK;
}

ls_status lsi_generate(const lsi_generate_config *config, FILE *in, FILE *out) {
    if (!config->model)
        return lsi_fail(LS_ERR_USAGE, "no model; give a folder with --model FOLDER");
    lsi_compute_set_threads(config->threads > 0 ? (int)config->threads : lsi_cpu_count());
    generator g = {.config = config, .out = out};
    ls_status status = run(&g, in);
    lsi_free(g.candidates);
    lsi_free(g.ids);
    lsi_free(g.prompt);
    lsi_saved_close(&g.saved);
    return status;
}
