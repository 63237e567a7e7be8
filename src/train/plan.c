/* Checking a configuration before anything starts, and working out what follows from it. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "checkpoint/model_folder.h"
#include "observe/observe.h"
#include "parallel/memory.h"
#include "train/config.h"

/* ---- data ---- */

/* The tokenizer of the model to start from, unless one is named. */
static ls_status open_init_tokenizer(const char *folder, lsi_tokenizer **tokenizer) {
    const lsi_model_class *class;
    lsi_model_config config;
    char *name = NULL;
    LSI_TRY(lsi_context(lsi_model_load_config(folder, &class, &config, &name), "--init"));
    bool is_byte = name && strcmp(name, "byte") == 0;
    lsi_free(name);
    return lsi_context(lsi_tokenizer_create(is_byte ? "byte" : folder, tokenizer),
                       "--init %s (another one: --tokenizer)", folder);
}

/* Text needs a tokenizer; for tokens one that is named says what they mean. */
static ls_status open_tokenizer(const lsi_train_config *c, lsi_tokenizer **tokenizer) {
    bool is_text = false, is_named = strcmp(c->tokenizer, "byte") != 0;
    *tokenizer = NULL;
    LSI_TRY(lsi_dataset_is_text(c->data, &is_text));
    if (!is_text && !is_named) return LS_OK;
    if (c->init && !is_named) return open_init_tokenizer(c->init, tokenizer);
    return lsi_tokenizer_create(c->tokenizer, tokenizer);
}

ls_status lsi_open_data(const lsi_train_config *config, lsi_tokenizer **tokenizer,
                        lsi_dataset **dataset) {
    LSI_TRY(open_tokenizer(config, tokenizer));
    const lsi_dataset_opts opts = {.path = config->data,
                                   .val_path = config->val_data,
                                   .tokenizer = *tokenizer,
                                   .seq_len = config->seq_len,
                                   .val_fraction = config->val_fraction};
    ls_status status = lsi_dataset_open(&opts, dataset);
    if (status != LS_OK) {
        lsi_tokenizer_destroy(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}

/* ---- model ---- */

/* What all workers keep of the model, whatever the batch. */
static int64_t state_bytes(const lsi_train_config *c, const lsi_run_plan *plan, int64_t n_elems) {
    bool is_narrow = plan->dtype == LS_DTYPE_BF16;
    const lsi_memory_input in = {.strategy = plan->strategy,
                                 .replicas = plan->replicas,
                                 .offload = plan->offload,
                                 .n_ranks = (int)c->workers,
                                 .shard_size = plan->shard_size,
                                 .updates_in_backward = c->update_in_backward,
                                 .wide_elems = is_narrow ? 0 : n_elems,
                                 .narrow_elems = is_narrow ? n_elems : 0,
                                 .has_lower_halves = true};
    lsi_mem_estimate each;
    lsi_memory_formula(&in, &each);
    return c->workers * (each.kinds[LSI_MEM_PARAMS].bytes + each.kinds[LSI_MEM_GRADS].bytes +
                         each.kinds[LSI_MEM_OPTIMIZER].bytes);
}

/* What no batch size can save is refused here; otherwise the system would kill some process, and
 * not always one of ours. */
static ls_status check_memory(const lsi_train_config *c, const lsi_run_plan *plan) {
    lsi_model counted = {.class = plan->model_class, .config = plan->model};
    struct sysinfo machine;
    LSI_TRY(plan->model_class->build(&counted));
    if (sysinfo(&machine) != 0) return LS_OK;
    double there = ((double)machine.totalram + (double)machine.totalswap) * machine.mem_unit;
    double needed = (double)state_bytes(c, plan, counted.n_elems);
    if (needed <= there) return LS_OK;
    char needed_text[32], there_text[32];
    return lsi_fail(
        LS_ERR_MEMORY,
        "%" PRId64 " parameters: weights, gradients and AdamW's moments of "
        "--workers %" PRId64 " with --strategy %s take %s, this machine has %s; use %sa "
        "smaller --n-embd or --n-layer, or fewer workers",
        counted.n_elems, c->workers, c->strategy,
        lsi_format_bytes(needed, needed_text, sizeof needed_text),
        lsi_format_bytes(there, there_text, sizeof there_text),
        plan->strategy < LS_STRATEGY_ZERO2 && c->workers > 1 ? "--strategy zero2 or zero3, "
        : plan->offload == LS_OFFLOAD_NONE && plan->strategy != LS_STRATEGY_DDP
            ? "--offload optimizer, "
            : "");
}

/* Models of images take images, the others tokens. */
static ls_status check_kind(const lsi_train_config *c, const lsi_run_plan *plan) {
    bool has_images = plan->sample.height > 0;
    if (has_images && strcmp(c->tokenizer, "byte") != 0)
        return lsi_fail(LS_ERR_ARGUMENT, "--tokenizer %s: --data %s has images, which need none",
                        c->tokenizer, c->data);
    if (has_images == plan->model_class->takes_images) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "--model %s takes %s, but --data %s has %s; would work: "
                    "--model %s",
                    c->model, has_images ? "tokens" : "images", c->data,
                    has_images ? "images" : "tokens", has_images ? "convnet" : "gpt2");
}

static int64_t first_set(int64_t a, int64_t b, int64_t c) {
    return a ? a : b ? b : c;
}

/* What Llama has beyond the sizes of all. */
static ls_status plan_llama(const lsi_train_config *c, lsi_run_plan *plan) {
    enum { INNER_STEP = 32 };
    const double usual_theta = 10000.0;
    if (strcmp(plan->model_class->name, "llama") != 0) {
        if (c->n_kv_head == 0 && c->n_inner == 0 && c->rope_theta == usual_theta && !c->untied)
            return LS_OK;
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--n-kv-head, --n-inner, --rope-theta and --untied are for --model llama; "
                        "--model %s has none of them",
                        plan->model_class->name);
    }
    int64_t usual_inner =
        (8 * plan->model.n_embd + 3 * INNER_STEP - 1) / (3 * INNER_STEP) * INNER_STEP;
    plan->model.n_kv_head = c->n_kv_head ? c->n_kv_head : plan->model.n_head;
    plan->model.n_inner = c->n_inner ? c->n_inner : usual_inner;
    plan->model.rope_theta = c->rope_theta;
    plan->model.untied = c->untied;
    return LS_OK;
}

/* n_tokens: the least vocabulary that the tokenizer, or the data, asks for. */
static ls_status plan_language_model(const lsi_train_config *c, int64_t n_tokens,
                                     lsi_run_plan *plan) {
    if (c->vocab_size != 0 && c->vocab_size < n_tokens)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--vocab-size %" PRId64 " is smaller than the %" PRId64
                        " tokens that --data %s and --tokenizer %s ask for",
                        c->vocab_size, n_tokens, c->data, c->tokenizer);
    plan->model.n_head = c->n_head;
    plan->model.seq_len = c->seq_len;
    plan->model.vocab_size = c->vocab_size ? c->vocab_size : n_tokens;
    return LS_OK;
}

static void plan_image_model(lsi_run_plan *plan) {
    plan->model.height = plan->sample.height;
    plan->model.width = plan->sample.width;
    plan->model.n_channels = plan->sample.n_channels;
    plan->model.n_classes = plan->sample.n_classes;
}

/* Options that the model to start from has decided already. */
static ls_status check_init(const lsi_train_config *c, const lsi_run_plan *plan, int64_t n_tokens) {
    const lsi_model_config *m = &plan->model;
    const struct {
        const char *name;
        int64_t asked, has;
    } rows[] = {{"n-layer", c->n_layer, m->n_layer},
                {"n-embd", c->n_embd, m->n_embd},
                {"n-kv-head", c->n_kv_head, m->n_kv_head},
                {"n-inner", c->n_inner, m->n_inner},
                {"vocab-size", c->vocab_size, m->vocab_size}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].asked != 0 && rows[i].asked != rows[i].has)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "--%s %" PRId64 ": the model of --init %s has %" PRId64
                            "; leave the option out",
                            rows[i].name, rows[i].asked, c->init, rows[i].has);
    if (plan->model_class->takes_images) return LS_OK;
    if (n_tokens > m->vocab_size)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--data %s with its tokenizer has %" PRId64
                        " tokens, the model of --init %s knows %" PRId64,
                        c->data, n_tokens, c->init, m->vocab_size);
    if (c->seq_len > m->seq_len)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--seq-len %" PRId64 " is longer than the %" PRId64
                        " positions of the model of --init %s",
                        c->seq_len, m->seq_len, c->init);
    return LS_OK;
}

static ls_status plan_init(const lsi_train_config *c, int64_t n_tokens, lsi_run_plan *plan) {
    char *tokenizer = NULL;
    LSI_TRY(lsi_context(
        lsi_model_load_config(c->init, &plan->model_class, &plan->model, &tokenizer), "--init"));
    lsi_free(tokenizer);
    plan->model.dropout = c->dropout;
    LSI_TRY(check_kind(c, plan));
    LSI_TRY(check_init(c, plan, n_tokens));
    return LS_OK;
}

static ls_status plan_model(const lsi_train_config *c, int64_t n_tokens, lsi_run_plan *plan) {
    enum { USUAL_LAYERS = 4, USUAL_WIDTH = 128 };
    if (c->init) return plan_init(c, n_tokens, plan);
    LSI_TRY(lsi_model_class_find(c->model, &plan->model_class));
    LSI_TRY(check_kind(c, plan));
    const lsi_model_config *usual = &plan->model_class->usual;
    plan->model = (lsi_model_config){.n_layer = first_set(c->n_layer, usual->n_layer, USUAL_LAYERS),
                                     .n_embd = first_set(c->n_embd, usual->n_embd, USUAL_WIDTH),
                                     .dropout = c->dropout,
                                     .norm_epsilon = 1e-5};
    if (plan->model_class->takes_images)
        plan_image_model(plan);
    else
        LSI_TRY(plan_language_model(c, n_tokens, plan));
    LSI_TRY(plan_llama(c, plan));
    return plan->model_class->check(&plan->model);
}

/* ---- batch ---- */

/* Largest divisor of n that is at most limit (limit >= 1). */
static int64_t divisor_at_most(int64_t n, int64_t limit) {
    int64_t best = 1;
    for (int64_t d = 1; d <= n / d; d++) {
        if (n % d != 0) continue;
        if (d <= limit && d > best) best = d;
        if (n / d <= limit && n / d > best) best = n / d;
    }
    return best;
}

/* A choice that a fixed number of workers would keep fast, or that does not depend on it at all. */
static int64_t choose_micro_batch_size(const lsi_train_config *c) {
    enum { AT_MOST = 8, LEAVE = 8 };
    if (c->reproducible) {
        int64_t limit = c->batch_size / LEAVE;
        return divisor_at_most(c->batch_size, limit > 1 ? (limit < 1024 ? limit : 1024) : 1);
    }
    if (c->batch_size % c->workers != 0) return 1;
    return divisor_at_most(c->batch_size / c->workers, AT_MOST);
}

static int64_t nearest_multiple(int64_t value, int64_t unit, bool above) {
    int64_t below = value / unit * unit;
    if (above) return below == value ? value : below + unit;
    return below > 0 ? below : unit;
}

/* Micro-batches of `micro` sequences that a batch is a multiple of. A reproducible deal may be
 * unequal; otherwise equal shares are what "average" means here. */
static int64_t batch_unit(const lsi_train_config *c, int64_t micro) {
    return c->reproducible ? micro : micro * c->workers;
}

/* Whether this many workers can share the batch in micro-batches of `micro`. */
static bool can_share(const lsi_train_config *c, int64_t micro, int64_t workers) {
    int64_t n_micro = c->batch_size / micro;
    return c->batch_size % micro == 0 && n_micro >= workers &&
           (c->reproducible || n_micro % workers == 0);
}

/* The most workers, up to those asked for, that can. */
static int64_t workers_that_can(const lsi_train_config *c, int64_t micro) {
    int64_t workers = c->workers;
    while (workers > 1 && !can_share(c, micro, workers)) workers--;
    return workers;
}

/* Words for a way to share the batch in micro-batches of at most `micro`: with all workers if there
 * is one, else with as many as can. */
static const char *offer_shares(const lsi_train_config *c, int64_t micro, char *text, size_t size) {
    int64_t share = c->batch_size / c->workers; /* 0: fewer sequences than workers */
    int64_t limit = micro < share ? micro : share;
    int64_t whole = c->reproducible ? c->batch_size : share;
    int64_t smaller = limit > 0 ? divisor_at_most(whole, limit) : 0;
    if (smaller > 0 && can_share(c, smaller, c->workers)) {
        snprintf(text, size, "--micro-batch-size %" PRId64, smaller);
        return text;
    }
    smaller = divisor_at_most(c->batch_size, micro);
    snprintf(text, size, "--workers %" PRId64 " with --micro-batch-size %" PRId64,
             workers_that_can(c, smaller), smaller);
    return text;
}

/* Too few micro-batches: smaller ones, or fewer workers, or a larger batch. */
static ls_status refuse_workers(const lsi_train_config *c, int64_t micro) {
    char shares[96], chosen[64] = "";
    /* A reproducible choice would be another one for the larger batch. */
    if (c->micro_batch_size == 0 && c->reproducible)
        snprintf(chosen, sizeof chosen, " with --micro-batch-size %" PRId64, micro);
    return lsi_fail(LS_ERR_ARGUMENT,
                    "--workers %" PRId64 " are more than the %" PRId64
                    " micro-batches of a step (--batch-size %" PRId64
                    " / --micro-batch-size %" PRId64 "); would work: %s, or --batch-size %" PRId64
                    "%s",
                    c->workers, c->batch_size / micro, c->batch_size, micro,
                    offer_shares(c, micro, shares, sizeof shares), micro * c->workers, chosen);
}

/* No whole or equal shares: the nearest batch sizes that have them, or other shares. */
static ls_status refuse_batch(const lsi_train_config *c, int64_t micro) {
    int64_t unit = batch_unit(c, micro), least = micro * c->workers;
    int64_t below = nearest_multiple(c->batch_size, unit, false);
    int64_t above = nearest_multiple(c->batch_size, unit, true);
    char sizes[64], shares[96];
    if (below < least) below = least;
    if (above <= below)
        snprintf(sizes, sizeof sizes, "%" PRId64, below);
    else
        snprintf(sizes, sizeof sizes, "%" PRId64 " or %" PRId64, below, above);
    return lsi_fail(LS_ERR_ARGUMENT,
                    "--batch-size %" PRId64 " is not a multiple of %" PRId64 " (--workers %" PRId64
                    ", --micro-batch-size %" PRId64 "); would work: "
                    "--batch-size %s, or %s",
                    c->batch_size, unit, c->workers, micro, sizes,
                    offer_shares(c, micro, shares, sizeof shares));
}

static ls_status plan_batch(const lsi_train_config *c, lsi_run_plan *plan) {
    int64_t micro = c->micro_batch_size ? c->micro_batch_size : choose_micro_batch_size(c);
    int64_t n_micro = c->batch_size / micro;
    if (c->batch_size % micro == 0 && n_micro < c->workers) return refuse_workers(c, micro);
    if (c->batch_size % batch_unit(c, micro) != 0) return refuse_batch(c, micro);
    plan->micro_batch_size = micro;
    plan->n_micro_batches = n_micro;
    return lsi_deal_micro_batches(&plan->deal, n_micro, (int)c->workers, c->reproducible);
}

/* ---- steps ---- */

/* A batch needs more samples than there are. */
static ls_status refuse_data(const lsi_train_config *c, const lsi_run_plan *plan) {
    int64_t n = plan->n_samples[LSI_SPLIT_TRAIN];
    int64_t largest =
        n / batch_unit(c, plan->micro_batch_size) * batch_unit(c, plan->micro_batch_size);
    char smaller[64] = "";
    if (largest >= plan->micro_batch_size * c->workers)
        snprintf(smaller, sizeof smaller,
                 "--batch-size %" PRId64 " with --micro-batch-size %" PRId64 ", or ", largest,
                 plan->micro_batch_size);
    if (plan->sample.height > 0)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "%s: %" PRId64 " training images do not fill one --batch-size %" PRId64
                        "; would work: %s--tail pad, or a smaller batch",
                        c->data, n, c->batch_size, smaller);
    return lsi_fail(LS_ERR_ARGUMENT,
                    "%s: %" PRId64 " training sequences of --seq-len %" PRId64
                    " do not fill one --batch-size %" PRId64 "; would work: %s--tail pad; also a "
                    "smaller batch, a shorter --seq-len or more text",
                    c->data, n, c->seq_len, c->batch_size, smaller);
}

static ls_status plan_steps(const lsi_train_config *c, lsi_run_plan *plan) {
    int64_t n = plan->n_samples[LSI_SPLIT_TRAIN];
    plan->tail = strcmp(c->tail, "pad") == 0 ? LS_TAIL_PAD : LS_TAIL_DROP;
    plan->steps_per_epoch =
        plan->tail == LS_TAIL_PAD ? (n + c->batch_size - 1) / c->batch_size : n / c->batch_size;
    if (plan->steps_per_epoch == 0) return refuse_data(c, plan);
    if (c->steps > 0 && c->epochs > 0)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--steps %" PRId64 " and --epochs %" PRId64
                        " exclude each other; give one (an epoch is %" PRId64 " steps here)",
                        c->steps, c->epochs, plan->steps_per_epoch);
    plan->total_steps = c->steps;
    if (c->steps == 0 && __builtin_mul_overflow(c->epochs > 0 ? c->epochs : 1,
                                                plan->steps_per_epoch, &plan->total_steps))
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--epochs %" PRId64 " of %" PRId64 " steps are more steps "
                        "than can be counted",
                        c->epochs, plan->steps_per_epoch);
    plan->warmup_steps = c->warmup_steps >= 0 ? c->warmup_steps : plan->total_steps / 20;
    return LS_OK;
}

static ls_status plan_schedule(const lsi_train_config *c, lsi_run_plan *plan) {
    static const char *const names[] = {[LS_SCHEDULE_COSINE] = "cosine",
                                        [LS_SCHEDULE_LINEAR] = "linear",
                                        [LS_SCHEDULE_CONSTANT] = "constant"};
    for (int i = 0; i < 3; i++)
        if (strcmp(c->schedule, names[i]) == 0) plan->schedule = i;
    if (c->min_lr < 0 && c->min_lr != -1)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "--min-lr %g: expected a number from 0, or -1 for a tenth of "
                        "--lr",
                        c->min_lr);
    plan->min_lr = c->min_lr >= 0 ? c->min_lr : c->lr / 10;
    return LS_OK;
}

static ls_dtype dtype_of(const char *word) {
    return strcmp(word, "bf16") == 0 ? LS_DTYPE_BF16 : LS_DTYPE_F32;
}

/* Of checkpointing: none, full or a number of blocks. */
static ls_status plan_precision(const lsi_train_config *c, lsi_run_plan *plan) {
    const char *which = c->checkpoint_activations;
    char *end = NULL;
    plan->dtype = dtype_of(c->dtype);
    plan->output_dtype = dtype_of(c->output_dtype);
    if (strcmp(which, "none") == 0) return LS_OK;
    plan->n_checkpointed = INT64_MAX;
    if (strcmp(which, "full") == 0) return LS_OK;
    errno = 0;
    plan->n_checkpointed = strtoll(which, &end, 10);
    if (errno == 0 && *which && !*end && plan->n_checkpointed >= 0) return LS_OK;
    return lsi_fail(LS_ERR_USAGE,
                    "--checkpoint-activations %s: expected none, full or a number of blocks",
                    which);
}

static void plan_threads(const lsi_train_config *c, lsi_run_plan *plan) {
    int64_t share = lsi_cpu_count() / c->workers;
    int64_t automatic = c->reproducible || share < 1 ? 1 : share;
    plan->n_threads = (int)(c->threads > 0 ? c->threads : automatic);
}

/* ---- all ---- */

static ls_status plan_data(const lsi_train_config *c, lsi_run_plan *plan, int64_t *vocab) {
    lsi_tokenizer *tokenizer = NULL;
    lsi_dataset *dataset = NULL;
    if (!c->data)
        return lsi_fail(LS_ERR_USAGE, "no data to train on; give a file with --data FILE");
    LSI_TRY(lsi_open_data(c, &tokenizer, &dataset));
    plan->sample = lsi_dataset_shape(dataset);
    *vocab = tokenizer ? lsi_tokenizer_vocab_size(tokenizer) : lsi_dataset_shape(dataset).n_classes;
    ls_status status = LS_OK;
    for (int split = 0; split < LSI_N_SPLITS; split++) {
        plan->n_samples[split] = lsi_dataset_n_samples(dataset, (lsi_split)split);
        plan->n_tokens[split] = lsi_dataset_n_tokens(dataset, (lsi_split)split);
        plan->unigram_entropy[split] = lsi_dataset_unigram_entropy(dataset, (lsi_split)split);
        if (isnan(plan->unigram_entropy[split])) status = LS_ERR_MEMORY;
    }
    lsi_dataset_close(dataset);
    lsi_tokenizer_destroy(tokenizer);
    return status;
}

ls_status lsi_plan_run(const lsi_train_config *config, lsi_run_plan *plan) {
    int64_t vocab = 0;
    *plan = (lsi_run_plan){0};
    LSI_TRY(plan_data(config, plan, &vocab));
    LSI_TRY(plan_model(config, vocab, plan));
    LSI_TRY(plan_batch(config, plan));
    LSI_TRY(plan_steps(config, plan));
    LSI_TRY(plan_schedule(config, plan));
    LSI_TRY(plan_precision(config, plan));
    LSI_TRY(lsi_plan_gradients(config, plan));
    plan_threads(config, plan);
    return check_memory(config, plan);
}
