/* The configuration of a training run: one struct, filled from one option table.
 *
 * Numbers that follow from others (micro-batches of a step, steps of an epoch …) are worked out
 * once, before any worker starts, in lsi_plan_run; workers only read them. */
#ifndef LSI_TRAIN_CONFIG_H
#define LSI_TRAIN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/opt.h"
#include "data/data.h"
#include "nn/model.h"
#include "parallel/deal.h"

typedef struct lsi_train_config {
    /* data */
    const char *data, *val_data, *tokenizer, *tail;
    double val_fraction;
    int64_t eval_every, eval_samples;
    /* model */
    const char *model, *init;
    int64_t n_layer, n_head, n_embd, seq_len, vocab_size, n_kv_head, n_inner;
    double dropout, rope_theta;
    bool untied;
    const char *dtype, *output_dtype, *checkpoint_activations;
    /* work */
    int64_t workers, threads, batch_size, micro_batch_size, steps, epochs, seed;
    bool reproducible;
    /* optimizer */
    double lr, min_lr, weight_decay, beta1, beta2, epsilon, clip_norm;
    int64_t warmup_steps;
    const char *schedule;
    /* strategy */
    const char *strategy, *replicas, *unit, *reshard, *offload, *offload_dir, *reduce_dtype;
    int64_t shard_group, prefetch, persist_below;
    double gather_limit_mb;
    bool update_in_backward;
    /* gradients */
    const char *grad_average, *on_nonfinite, *freeze;
    int64_t max_skips, check_weights_every;
    bool sync_batch_norm;
    /* communication */
    double bucket_cap_mb, first_bucket_mb;
    bool overlap, rebuild_buckets, bind;
    const char *comm_hook, *loss_scale;
    int64_t powersgd_rank, hook_start_step;
    double powersgd_min_rate, topk_share;
    const char *algo, *progress;
    int64_t timeout_ms;
    /* output */
    const char *out, *json, *trace, *recorder, *config;
    int64_t log_every;
    bool profile, print_buckets, print_memory;
} lsi_train_config;

extern const lsi_opt lsi_train_options[];

/* What follows from a configuration and its data. */
typedef struct lsi_run_plan {
    int64_t micro_batch_size; /* sequences */
    int64_t n_micro_batches;  /* of a step, all ranks */
    int64_t steps_per_epoch, total_steps;
    lsi_sample_shape sample;
    int64_t n_samples[LSI_N_SPLITS], n_tokens[LSI_N_SPLITS];
    double unigram_entropy[LSI_N_SPLITS]; /* nats per token */
    lsi_model_config model;
    const lsi_model_class *model_class;
    lsi_deal deal;
    int n_threads;
    int64_t warmup_steps;
    double min_lr;
    int schedule, tail;
    ls_dtype dtype;         /* of parameters and activations */
    ls_dtype output_dtype;  /* to which logits are rounded before the loss */
    int64_t n_checkpointed; /* blocks whose activations are computed again */
    int strategy;           /* LS_STRATEGY_… */
    int replicas;           /* LS_REPLICAS_… */
    int shard_size;         /* workers of a shard group; 0: all */
    int reshard;            /* as ls_ddp_opts.reshard_after_forward */
    int offload;            /* LS_OFFLOAD_… */
    int average;            /* LS_AVERAGE_… */
    int hook;               /* LS_HOOK_…; 0: none */
    bool skips;             /* steps that are not finite; else they end the run */
    double loss_scale;      /* of the fp16 hook; 0: dynamic */
} lsi_run_plan;

/* Checks the configuration against the machine and the data, without starting anything. Errors name
 * the options to change and, where numbers do not fit together, numbers that would. */
LS_CHECKED ls_status lsi_plan_run(const lsi_train_config *config, lsi_run_plan *plan);
/* Its part about gradients and shards (plan_gradients.c). */
LS_CHECKED ls_status lsi_plan_gradients(const lsi_train_config *config, lsi_run_plan *plan);
/* Opens what the configuration names; called by the plan and by every worker. *tokenizer is NULL
 * for token files unless one is named: "byte", the default, is for text. */
LS_CHECKED ls_status lsi_open_data(const lsi_train_config *config, lsi_tokenizer **tokenizer,
                                   lsi_dataset **dataset);

#endif
