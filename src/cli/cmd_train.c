/* `lockstep train`: checks the request, starts the workers, reports the first failure. */
#include <stdio.h>
#include <string.h>

#include <lockstep/parallel.h>

#include "base/cpu.h"
#include "base/log.h"
#include "cli/bf16_products.h"
#include "cli/command.h"
#include "launch/launch.h"
#include "tensor/gemm.h"
#include "train/train.h"

static void print_model(const lsi_train_config *c, const lsi_run_plan *p) {
    const lsi_model_config *m = &p->model;
    bool has_images = p->model_class->takes_images;
    printf("%s: %lld training and %lld validation %s, %lld steps an epoch\n", c->data,
           (long long)p->n_tokens[LSI_SPLIT_TRAIN], (long long)p->n_tokens[LSI_SPLIT_VALIDATION],
           has_images ? "images" : "tokens", (long long)p->steps_per_epoch);
    if (has_images)
        printf("%s: %lld layers, %lld wide, images of %lld x %lld x %lld, %lld classes\n",
               p->model_class->name, (long long)m->n_layer, (long long)m->n_embd,
               (long long)m->height, (long long)m->width, (long long)m->n_channels,
               (long long)m->n_classes);
    else
        printf("%s: %lld layers, %lld heads, %lld wide, %lld tokens, vocabulary %lld\n",
               p->model_class->name, (long long)m->n_layer, (long long)m->n_head,
               (long long)m->n_embd, (long long)m->seq_len, (long long)m->vocab_size);
}

static void print_header(const lsi_train_config *c, const lsi_run_plan *p) {
    print_model(c, p);
    printf("%lld workers x %d threads, batch %lld = %lld micro-batches of %lld; %s\n",
           (long long)c->workers, p->n_threads, (long long)c->batch_size,
           (long long)p->n_micro_batches, (long long)p->micro_batch_size, lsi_gemm_library());
    if (p->dtype == LS_DTYPE_BF16) printf("bf16: products %s\n", bf16_products_in_words());
    if (p->deal.largest * c->workers != p->n_micro_batches)
        printf("note: the fixed tree gives unequal shares, up to %lld micro-batches for a worker "
               "instead of %.1f\n",
               (long long)p->deal.largest, (double)p->n_micro_batches / (double)c->workers);
    int64_t drop = p->n_samples[LSI_SPLIT_TRAIN] - p->steps_per_epoch * c->batch_size;
    if (drop > 0)
        printf("note: %lld %s do not fill a batch and are left out of each epoch "
               "(--tail pad uses them)\n",
               (long long)drop, p->model_class->takes_images ? "images" : "sequences");
    if (c->workers * p->n_threads > lsi_cpu_count())
        printf("note: %lld workers x %d threads share %d processors\n", (long long)c->workers,
               p->n_threads, lsi_cpu_count());
    fflush(stdout);
}

static const char *strategy_name(const char *option) {
    return strcmp(option, "fsdp") == 0 ? "zero3" : option;
}

static exit_code train(const lsi_train_config *config) {
    lsi_run_plan plan;
    ls_status status = set_group_options(config->algo, config->progress);
    if (status == LS_OK) status = lsi_plan_run(config, &plan);
    if (status == LS_OK) status = lsi_train_prepare_folder(config, stdout);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    print_header(config, &plan);
    lsi_train_job job = {.config = config,
                         .plan = &plan,
                         .out = stdout,
                         .strategy = config->workers == 1 && plan.strategy == LS_STRATEGY_DDP
                                         ? "single"
                                         : strategy_name(config->strategy)};
    bool fits = plan.n_threads == 1 || config->workers * plan.n_threads <= lsi_cpu_count();
    lsi_launch_opts opts = {.n_workers = (int)config->workers,
                            .bind = config->bind && fits,
                            .recorder_path = config->recorder};
    status = lsi_launch(&opts, lsi_train_worker, &job);
    if (status == LS_OK) return EXIT_DONE;
    /* Some options can be held against the model only where it is, in a worker. */
    return report_failure(status, status == LS_ERR_USAGE ? EXIT_WRONG_USAGE : EXIT_FAILED);
}

exit_code run_train(int argc, char **argv) {
    lsi_train_config config;
    lsi_opt_set *set = NULL;
    ls_status status = lsi_opt_parse(lsi_train_options, argc, argv, &config, NULL, 0, &set);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    exit_code code = train(&config);
    lsi_opt_destroy(set);
    return code;
}
