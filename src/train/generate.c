/* Text from a saved model, token by token.
 *
 * Each token runs the model over the last seq_len tokens. The draw of token i depends on seed and i
 * alone, so the same call gives the same text. Temperature 0 takes the likeliest token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "checkpoint/model_folder.h"
#include "tensor/gemm.h"
#include "train/train.h"

#define AT(field) offsetof(lsi_generate_config, field)

const lsi_opt lsi_generate_options[] = {
    {"model", 'm', LSI_OPT_TEXT, AT(model), "FOLDER", NULL, 0, 0, NULL, "Input",
     "Model folder (config.json and model.safetensors), for example lockstep-run/model."},
    {"prompt", 'p', LSI_OPT_TEXT, AT(prompt), "TEXT", "\n", 0, 0, NULL, "Input",
     "Text to continue."},
    {"tokens", 'n', LSI_OPT_INT, AT(n_tokens), "tokens", "200", 0, 1e9, NULL, "Sampling",
     "Tokens to add."},
    {"temperature", 't', LSI_OPT_FLOAT, AT(temperature), NULL, "0.8", 0, 100, NULL, "Sampling",
     "Below 1 likelier tokens, above 1 more surprising ones, 0 always the likeliest."},
    {"top-k", 'k', LSI_OPT_INT, AT(top_k), "tokens", "0", 0, 1e9, NULL, "Sampling",
     "Draw from the k likeliest tokens only (0: from all)."},
    {"seed", 's', LSI_OPT_INT, AT(seed), NULL, "1", 0, 9e15, NULL, "Sampling",
     "Seed of the draws."},
    {"threads", 0, LSI_OPT_INT, AT(threads), "threads", "0", 0, 4096, NULL, "Work",
     "Threads (0: as many as processors)."},
    {0},
};

typedef struct generator {
    const lsi_generate_config *config;
    lsi_model *model;
    char *tokenizer_name;
    lsi_tokenizer *tokenizer;
    lsi_arena *arena;
    lsi_tape *tape;
    int32_t *ids; /* prompt and what was added */
    int64_t n_ids;
    struct candidate {
        float logit;
        int32_t id;
    } * candidates; /* vocab_size */
} generator;

static ls_status open_model(generator *g) {
    LSI_TRY(lsi_model_load(g->config->model, &g->model, &g->tokenizer_name));
    if (!g->tokenizer_name)
        return lsi_fail(
            LS_ERR_UNSUPPORTED,
            "%s: config.json does not say which tokenizer the model "
            "was trained with; this version knows 'byte' (\"lockstep\": {\"tokenizer\": "
            "\"byte\"})",
            g->config->model);
    LSI_TRY(lsi_tokenizer_create(g->tokenizer_name, &g->tokenizer));
    size_t memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    LSI_TRY(lsi_arena_create(memory_bytes, &g->arena));
    LSI_TRY(lsi_tape_create(g->arena, &g->tape));
    g->candidates =
        lsi_calloc(LSI_MEM_OTHER, (size_t)g->model->config.vocab_size, sizeof *g->candidates);
    return lsi_check_alloc(g->candidates);
}

static ls_status encode_prompt(generator *g) {
    const char *prompt = g->config->prompt;
    int32_t *ids = NULL;
    int64_t n = 0;
    LSI_TRY(lsi_tokenizer_encode(g->tokenizer, prompt, strlen(prompt), &ids, &n));
    ls_status status = LS_OK;
    if (n == 0)
        status = lsi_fail(LS_ERR_ARGUMENT, "--prompt is empty; give at least one character");
    if (status == LS_OK) {
        /* Not zeroed: pages of tokens that are asked for and never reached cost nothing. */
        g->ids = lsi_alloc(LSI_MEM_OTHER, (size_t)(n + g->config->n_tokens) * sizeof *g->ids);
        status = lsi_check_alloc(g->ids);
    }
    if (status == LS_OK) {
        memcpy(g->ids, ids, (size_t)n * sizeof *ids);
        g->n_ids = n;
    }
    lsi_free(ids);
    return status;
}

/* Logits of the next token, over the tokens that the tokenizer can decode. */
static ls_status next_logits(generator *g, const float **logits) {
    int64_t window = g->model->config.seq_len;
    int64_t n_time = g->n_ids < window ? g->n_ids : window;
    lsi_tape_reset(g->tape, false);
    lsi_batch batch = {g->ids + g->n_ids - n_time, NULL, 1, n_time};
    lsi_tensor *all = g->model->class->forward(g->model, g->tape, &batch);
    LSI_TRY(lsi_tape_status(g->tape));
    *logits = all->data + (n_time - 1) * g->model->config.vocab_size;
    return LS_OK;
}

/* Likelier first; equal ones by id, so that the order is defined. */
static int compare_candidates(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int32_t draw(generator *g, int64_t n, uint64_t position) {
    double sum = 0, top = (double)g->candidates[0].logit;
    for (int64_t i = 0; i < n; i++)
        sum += exp(((double)g->candidates[i].logit - top) / g->config->temperature);
    lsi_rng_stream stream = lsi_rng_open((uint64_t)g->config->seed, LSI_RNG_SAMPLE, 0, 0);
    double left = (double)lsi_rng_uniform(&stream, position) * sum;
    for (int64_t i = 0; i < n; i++) {
        left -= exp(((double)g->candidates[i].logit - top) / g->config->temperature);
        if (left < 0) return g->candidates[i].id;
    }
    return g->candidates[n - 1].id;
}

static ls_status add_token(generator *g, int64_t position) {
    const float *logits = NULL;
    LSI_TRY(next_logits(g, &logits));
    int64_t vocab = lsi_tokenizer_vocab_size(g->tokenizer);
    if (vocab > g->model->config.vocab_size) vocab = g->model->config.vocab_size;
    for (int64_t i = 0; i < vocab; i++) {
        if (!isfinite(logits[i]))
            return lsi_fail(LS_ERR_NUMERIC,
                            "%s: the model gives %g for token %lld; its weights are "
                            "damaged",
                            g->config->model, (double)logits[i], (long long)i);
        g->candidates[i] = (struct candidate){logits[i], (int32_t)i};
    }
    qsort(g->candidates, (size_t)vocab, sizeof *g->candidates, compare_candidates);
    int64_t n = g->config->top_k > 0 && g->config->top_k < vocab ? g->config->top_k : vocab;
    g->ids[g->n_ids++] =
        g->config->temperature == 0 ? g->candidates[0].id : draw(g, n, (uint64_t)position);
    return LS_OK;
}

static ls_status print_token(const generator *g, int32_t id, FILE *out) {
    size_t bytes = 0;
    const char *text = lsi_tokenizer_decode(g->tokenizer, id, &bytes);
    if (fwrite(text, 1, bytes, out) != bytes || fflush(out) != 0)
        return lsi_fail_errno(LS_ERR_IO, "cannot write the text");
    return LS_OK;
}

static ls_status run(generator *g, FILE *out) {
    LSI_TRY(open_model(g));
    LSI_TRY(encode_prompt(g));
    for (int64_t i = 0; i < g->n_ids; i++) LSI_TRY(print_token(g, g->ids[i], out));
    for (int64_t i = 0; i < g->config->n_tokens; i++) {
        LSI_TRY(add_token(g, i));
        LSI_TRY(print_token(g, g->ids[g->n_ids - 1], out));
    }
    return LS_OK;
}

ls_status lsi_generate(const lsi_generate_config *config, FILE *out) {
    if (!config->model)
        return lsi_fail(LS_ERR_USAGE, "no model; give a folder with --model FOLDER");
    lsi_compute_set_threads(config->threads > 0 ? (int)config->threads : lsi_cpu_count());
    generator g = {.config = config};
    ls_status status = run(&g, out);
    lsi_free(g.candidates);
    lsi_free(g.ids);
    lsi_tape_destroy(g.tape);
    lsi_arena_destroy(g.arena);
    lsi_tokenizer_destroy(g.tokenizer);
    lsi_free(g.tokenizer_name);
    lsi_model_destroy(g.model);
    return status;
}
