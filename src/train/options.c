/* The option table of `lockstep train`. A new option is a field of lsi_train_config and a row here;
 * command line, configuration file, environment, help and docs/options.md follow. */
#include "train/config.h"

#define AT(field) offsetof(lsi_train_config, field)
#define INT(name, field, unit, initial, min, max, group, help)                                     \
    { name, 0, LSI_OPT_INT, AT(field), unit, initial, min, max, NULL, group, help }
#define FLOAT(name, field, initial, min, max, group, help)                                         \
    { name, 0, LSI_OPT_FLOAT, AT(field), NULL, initial, min, max, NULL, group, help }
#define SWITCH(name, field, initial, group, help)                                                  \
    { name, 0, LSI_OPT_BOOL, AT(field), NULL, initial, 0, 0, NULL, group, help }
#define BOOL(name, field, group, help) SWITCH(name, field, "false", group, help)
#define TEXT(name, field, unit, initial, group, help)                                              \
    { name, 0, LSI_OPT_TEXT, AT(field), unit, initial, 0, 0, NULL, group, help }
#define CHOICE(name, field, initial, choices, group, help)                                         \
    { name, 0, LSI_OPT_CHOICE, AT(field), NULL, initial, 0, 0, choices, group, help }

static const char DATA[] = "Data", MODEL[] = "Model", WORK[] = "Work", OPTIMIZER[] = "Optimizer",
                  SHARDING[] = "Sharding", GRADIENTS[] = "Gradients",
                  COMMUNICATION[] = "Communication", OUTPUT[] = "Output";

const lsi_opt lsi_train_options[] = {
    TEXT("data", data, "FILE", NULL, DATA,
         "What to train on: text, a file of tokens as nanoGPT or llm.c writes it, or a folder of "
         "images as MNIST has them (docs/data.md)."),
    TEXT("val-data", val_data, "FILE", NULL, DATA,
         "A second file of the same kind to validate with, instead of --val-fraction."),
    TEXT("tokenizer", tokenizer, "byte|FILE", "byte", DATA,
         "How text becomes tokens: byte, or a tokenizer's file or folder (vocab.bpe, merges.txt, "
         "tokenizer.json, llama2.c's tokenizer.bin)."),
    FLOAT("val-fraction", val_fraction, "0.05", 0, 0.5, DATA,
          "Share of the data, at its end, that is held out for validation."),
    CHOICE("tail", tail, "drop", "drop|pad", DATA,
           "Samples that do not fill the last batch of an epoch: leave them out, or fill the batch "
           "with repeated samples that do not count."),
    INT("eval-every", eval_every, "steps", "0", 0, 1e15, DATA,
        "Validate that often (0: five times, and always at the end)."),
    INT("eval-samples", eval_samples, "samples", "0", 0, 1e15, DATA,
        "Validation samples to use, spread over the held-out data (0: 256 sequences, or all "
        "images)."),

    CHOICE("model", model, "gpt2", "gpt2|llama|mlp|convnet", MODEL, "Kind of model."),
    TEXT("init", init, "FOLDER", NULL, MODEL,
         "Starts from the weights of a model folder (fine-tuning), whose kind, sizes and tokenizer "
         "count instead of the options for these; --dropout and --seq-len stay yours."),
    INT("n-layer", n_layer, "blocks", "0", 0, 10000, MODEL,
        "Transformer blocks, hidden layers of an mlp, blocks in each of a convnet's three stages "
        "(0: 4, 2 and 1)."),
    INT("n-head", n_head, "heads", "4", 1, 10000, MODEL, "Attention heads of a block."),
    INT("n-embd", n_embd, "channels", "0", 0, 1e6, MODEL,
        "Width of the model; of a convnet, of its first stage (0: 128, of an mlp 256, of a convnet "
        "16)."),
    INT("n-kv-head", n_kv_head, "heads", "0", 0, 10000, MODEL,
        "llama: heads of keys and values, which attention heads share (0: as many as --n-head)."),
    INT("n-inner", n_inner, "channels", "0", 0, 1e7, MODEL,
        "llama: width of the feed-forward layers (0: 8/3 of --n-embd, in steps of 32)."),
    FLOAT("rope-theta", rope_theta, "10000", 1, 1e12, MODEL,
          "llama: base of the wavelengths of rotary positions."),
    BOOL("untied", untied, MODEL, "llama: the output layer has a table of its own."),
    INT("seq-len", seq_len, "tokens", "128", 1, 1e6, MODEL, "Length of a sequence."),
    INT("vocab-size", vocab_size, "tokens", "0", 0, 1e8, MODEL,
        "Rows of the embedding table (0: as many as the tokenizer has tokens; without one, as the "
        "largest token of the data asks for)."),
    FLOAT("dropout", dropout, "0", 0, 0.99, MODEL, "Probability of dropout."),
    CHOICE("dtype", dtype, "f32", "f32|bf16", MODEL,
           "Type of parameters and activations. bf16: sums, gradients, moments and updates stay "
           "float32; the lower half of each parameter is kept beside it."),
    CHOICE("output-dtype", output_dtype, "f32", "f32|bf16", MODEL,
           "Type in which logits reach the loss, which is computed in float32. bf16: they are "
           "rounded, and so is their gradient; validation sees the same ones."),
    TEXT("checkpoint-activations", checkpoint_activations, "WHICH", "none", MODEL,
         "Blocks that keep only their input and compute the rest again in backward: none, full, or "
         "the number of blocks from the first one."),

    INT("workers", workers, "processes", "1", 1, LSI_MAX_RANKS, WORK,
        "Worker processes; each computes its share of every batch."),
    INT("threads", threads, "threads", "0", 0, 4096, WORK,
        "Threads of a worker (0: processors / workers; 1 with --reproducible)."),
    INT("batch-size", batch_size, "sequences", "32", 1, 1e9, WORK,
        "Sequences (images) of a step, over all workers."),
    INT("micro-batch-size", micro_batch_size, "sequences", "0", 0, 1e9, WORK,
        "Sequences (images) that a worker computes at once (0: up to 8, with --reproducible as "
        "many as "
        "leave 8 micro-batches)."),
    INT("steps", steps, "steps", "0", 0, 1e15, WORK, "Optimizer steps (0: see --epochs)."),
    INT("epochs", epochs, "epochs", "0", 0, 1e9, WORK,
        "Passes over the training data, instead of --steps (neither: one)."),
    INT("seed", seed, NULL, "1", 0, 9e15, WORK, "Seed of initial weights, order and dropout."),
    BOOL("reproducible", reproducible, WORK,
         "The same bits for any number of workers: adds micro-batches in a fixed tree."),

    CHOICE("strategy", strategy, "ddp", "ddp|zero1|zero2|zero3|fsdp|hybrid", SHARDING,
           "What is sharded over the workers. ddp: nothing. zero1: optimizer states, each worker "
           "updates its part. zero2: gradients as well. zero3 (or fsdp): parameters as well. "
           "hybrid: zero3 in groups of workers that have replicas of each other "
           "(docs/sharding.md)."),
    CHOICE("replicas", replicas, "shared", "shared|private", SHARDING,
           "Parameters of sharded strategies. shared: one copy for all workers. private: one each; "
           "of zero3 and hybrid the shard, and units while they are in use."),
    INT("shard-group", shard_group, "workers", "0", 0, LSI_MAX_RANKS, SHARDING,
        "hybrid: workers of a group, of consecutive ranks (0: all workers of a machine)."),
    TEXT("unit", unit, "WHICH", "block", SHARDING,
         "zero3 with private replicas: what is gathered at a time. block: each block of the model. "
         "A number: blocks together until they have so many parameters. Words with commas between "
         "them: a unit begins at each block with a parameter whose name begins with one of them."),
    INT("prefetch", prefetch, "units", "1", 0, 1000, SHARDING,
        "Units that are gathered ahead, forward and backward."),
    TEXT("reshard", reshard, "yes|no|K", "yes", SHARDING,
         "Units after their forward pass: given up and gathered again for backward, kept, or kept "
         "in parts by groups of K workers, which gather them again among themselves."),
    FLOAT("gather-limit-mb", gather_limit_mb, "0", 0, 1e9, SHARDING,
          "No unit is gathered ahead beyond so many MiB of gathered units (0: no limit)."),
    INT("persist-below", persist_below, "elements", "0", 0, 1e15, SHARDING,
        "Smaller parameters stay whole on every worker."),
    CHOICE("reduce-dtype", reduce_dtype, "f32", "f32|bf16", SHARDING,
           "Type in which gradients of sharded strategies are sent; they are added in float32, and "
           "what is kept is float32."),
    CHOICE("offload", offload, "none", "none|optimizer|params", SHARDING,
           "Keeps states in a file instead of memory: those of the optimizer, or the shards of "
           "parameters as well."),
    TEXT("offload-dir", offload_dir, "FOLDER", NULL, SHARDING,
         "Where that file is made, nameless; a local disk (default: the run folder)."),
    BOOL("update-in-backward", update_in_backward, SHARDING,
         "Each worker updates its part while gradients are added, so that zero2 and zero3 keep "
         "none; without the norm, so with --clip-norm 0."),

    FLOAT("lr", lr, "0.001", 1e-12, 1e3, OPTIMIZER, "Peak learning rate of AdamW."),
    FLOAT("min-lr", min_lr, "-1", -1, 1e3, OPTIMIZER,
          "Learning rate that the schedule falls to (-1: a tenth of --lr)."),
    INT("warmup-steps", warmup_steps, "steps", "-1", -1, 1e15, OPTIMIZER,
        "Steps in which the learning rate rises (-1: a twentieth of all)."),
    CHOICE("schedule", schedule, "cosine", "cosine|linear|constant", OPTIMIZER,
           "How the learning rate falls after the warm-up."),
    FLOAT("weight-decay", weight_decay, "0.1", 0, 10, OPTIMIZER,
          "Decoupled weight decay; biases and norms have none."),
    FLOAT("beta1", beta1, "0.9", 0, 0.999999, OPTIMIZER, "Decay of the first moment."),
    FLOAT("beta2", beta2, "0.95", 0, 0.999999, OPTIMIZER, "Decay of the second moment."),
    FLOAT("epsilon", epsilon, "1e-8", 1e-30, 1, OPTIMIZER,
          "Added to the root of the second moment."),
    FLOAT("clip-norm", clip_norm, "1", 0, 1e30, OPTIMIZER,
          "Largest global norm of the gradient (0: no clipping)."),

    CHOICE("grad-average", grad_average, "tokens", "tokens|ranks|sum", GRADIENTS,
           "What summed gradients are divided by. tokens: targets of the whole step, over all "
           "workers and micro-batches. ranks: each worker by its own targets, then the mean over "
           "workers, as loops do whose loss is a mean. sum: nothing."),
    CHOICE("on-nonfinite", on_nonfinite, "stop", "stop|skip", GRADIENTS,
           "A loss or gradient that is not finite: end the run and say where it arose, or leave "
           "the step out on all workers."),
    INT("max-skips", max_skips, "steps", "10", 1, 1e15, GRADIENTS,
        "Steps in a row that may be left out before the run ends."),
    INT("check-weights-every", check_weights_every, "steps", "0", 0, 1e15, GRADIENTS,
        "Compares the weights of all workers that often (0: at the end only)."),
    BOOL("sync-batch-norm", sync_batch_norm, GRADIENTS,
         "convnet: batch norm over the micro-batches of all workers together."),
    TEXT("freeze", freeze, "PREFIXES", NULL, GRADIENTS,
         "Parameters whose name begins with one of these (h.0.,wte) are not trained."),

    FLOAT("bucket-cap-mb", bucket_cap_mb, "25", 1e-6, 1e6, COMMUNICATION,
          "MiB of gradients that are averaged together."),
    FLOAT("first-bucket-mb", first_bucket_mb, "1", 1e-6, 1e6, COMMUNICATION,
          "MiB of the first bucket, small so that communication starts early."),
    SWITCH("overlap", overlap, "true", COMMUNICATION,
           "Averages gradients while the backward pass goes on, not after it."),
    SWITCH("rebuild-buckets", rebuild_buckets, "true", COMMUNICATION,
           "After the first step, orders buckets as gradients become ready."),
    CHOICE("comm-hook", comm_hook, "none", "none|allreduce|noop|bf16|fp16|int8|topk|powersgd",
           COMMUNICATION, "Sends gradients in fewer bytes, at a loss (docs/hooks.md)."),
    TEXT("loss-scale", loss_scale, "dynamic|FACTOR", "dynamic", COMMUNICATION,
         "comm-hook fp16: gradients are multiplied by it on the way, a power of two; dynamic: as "
         "large as they stay finite, steps in which they did not are left out."),
    FLOAT("topk-share", topk_share, "0.01", 1e-9, 1, COMMUNICATION,
          "comm-hook topk: share of the elements that is sent."),
    INT("powersgd-rank", powersgd_rank, "columns", "4", 1, 64, COMMUNICATION,
        "comm-hook powersgd: rank of the products that stand for matrices."),
    FLOAT("powersgd-min-rate", powersgd_min_rate, "2", 1e-9, 1e9, COMMUNICATION,
          "comm-hook powersgd: matrices that would shrink less are sent whole."),
    INT("hook-start-step", hook_start_step, "steps", "10", 0, 1e15, COMMUNICATION,
        "comm-hook topk and powersgd: first steps, in which everything is sent."),
    SWITCH("bind", bind, "true", COMMUNICATION,
           "Binds each worker to its share of the processors (not where threads outnumber them)."),
    TEXT("algo", algo, "TEXT", NULL, COMMUNICATION,
         "Algorithms of collectives: ring, allreduce=ring, allreduce:64K-1M=ring "
         "(docs/collectives.md)."),
    CHOICE("progress", progress, "auto", "auto|thread|inline", COMMUNICATION,
           "Who moves communication on while a worker computes: a thread, or the worker itself "
           "(auto: a thread where there are two processors for each worker)."),
    INT("timeout-ms", timeout_ms, "ms", "300000", 1, 1e12, COMMUNICATION,
        "Longest wait for another worker."),

    TEXT("out", out, "FOLDER", "lockstep-run", OUTPUT,
         "Run folder: configuration, metrics, model; files of an earlier run there are kept under "
         "numbered names."),
    TEXT("json", json, "FILE", NULL, OUTPUT, "Writes the result for programs."),
    TEXT("trace", trace, "FILE", NULL, OUTPUT,
         "Writes a timeline for chrome://tracing or Perfetto."),
    TEXT("recorder", recorder, "FILE", NULL, OUTPUT,
         "Where a run that fails leaves the last calls of all ranks (lockstep inspect)."),
    INT("log-every", log_every, "steps", "0", 0, 1e15, OUTPUT,
        "Progress lines when the output is no terminal (0: about twenty in all)."),
    BOOL("profile", profile, OUTPUT,
         "Prints at the end where rank 0's time went: per op the calls, the time and the rate of "
         "its products. The first step and validation are left out."),
    BOOL("print-buckets", print_buckets, OUTPUT,
         "Prints at the end what was in each bucket of gradients and when it was sent."),
    BOOL("print-memory", print_memory, OUTPUT,
         "Prints at the end the bytes of each kind that the formulas of docs/sharding.md give, and "
         "what each worker had, at the end and at peak."),
    TEXT("config", config, "FILE", NULL, OUTPUT,
         "Reads options from a JSON file, for example run.json of an earlier run."),
    {0},
};
