/* The ways of sharding that `lockstep train` has, for tests that hold them to --strategy ddp with
 * one worker, which is the first of each list. Two blocks are trained, with validation in between
 * on 7 samples, which no number of workers divides. */
#ifndef TESTS_CLI_SHARDING_WAYS_H
#define TESTS_CLI_SHARDING_WAYS_H

#include "cli/ways.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define STEPS "--n-layer 2 --steps 3 --eval-every 2 --eval-samples 7 --val-fraction 0.1 "
#define EIGHT "--batch-size 8 --micro-batch-size 1 --reproducible "
#define FSDP "--strategy zero3 --replicas private "
#define HYBRID "--workers 4 --strategy hybrid --shard-group "

static const char *const strategies[] = {
    "--workers 1",
    "--workers 2 --strategy zero1",
    "--workers 4 --strategy zero1 --replicas private",
    "--workers 4 --strategy zero2",
    "--workers 2 --strategy zero2 --replicas private --no-overlap",
    "--workers 2 --strategy zero3",
    "--workers 2 " FSDP,
    "--workers 4 " FSDP "--reshard 2 --prefetch 0 --persist-below 20",
    HYBRID "2",
    HYBRID "2 --replicas private",
    NULL,
};

/* What is gathered at a time, when, and for how long. */
static const char *const gatherings[] = {
    "--workers 1",
    "--workers 2 " FSDP "--prefetch 0",
    "--workers 4 " FSDP "--prefetch 1 --no-overlap",
    "--workers 4 " FSDP "--prefetch 3",
    "--workers 2 " FSDP "--prefetch 9 --gather-limit-mb 0.002",
    "--workers 2 " FSDP "--reshard no",
    "--workers 4 " FSDP "--reshard no --prefetch 0",
    "--workers 4 " FSDP "--reshard 1",
    "--workers 4 " FSDP "--reshard 2",
    "--workers 4 " FSDP "--reshard 4",
    "--workers 8 " FSDP "--reshard 4 --prefetch 3",
    "--workers 4 " FSDP "--unit 1",
    "--workers 4 " FSDP "--unit 3000",
    "--workers 2 " FSDP "--unit 1000000000",
    "--workers 4 " FSDP "--persist-below 20",
    "--workers 2 " FSDP "--persist-below 1000000000 --reshard no",
    "--workers 2 " FSDP "--bucket-cap-mb 0.001 --first-bucket-mb 0.0001 --prefetch 2",
    NULL,
};

static const char *const meshes[] = {
    "--workers 1",
    HYBRID "1",
    HYBRID "2",
    HYBRID "4",
    HYBRID "1 --replicas private",
    HYBRID "2 --replicas private --reshard no",
    HYBRID "4 --replicas private --reshard 2",
    HYBRID "2 --replicas private --persist-below 20 --prefetch 0",
    "--workers 4 --strategy hybrid --replicas private",
    "--workers 8 --strategy hybrid --shard-group 4 --replicas private --reshard 2",
    "--workers 8 --strategy hybrid --shard-group 2",
    "--workers 2 --strategy hybrid --shard-group 1 --replicas private",
    "--workers 1 --strategy hybrid --replicas private",
    NULL,
};

static const char *const offloads[] = {
    "--workers 1",
    "--workers 2 --offload optimizer --strategy zero1",
    "--workers 2 --offload optimizer --strategy zero2 --replicas private",
    "--workers 2 --offload optimizer --strategy zero3",
    "--workers 4 --offload optimizer " FSDP,
    "--offload optimizer --replicas private " HYBRID "2",
    "--workers 4 --offload params " FSDP,
    "--workers 4 --offload params " FSDP "--reshard 2 --persist-below 20",
    "--offload params --replicas private " HYBRID "2",
    NULL,
};

static const char *const language_models[] = {
    "--model gpt2 --dtype bf16",
    "--model gpt2 --checkpoint-activations full --dropout 0.1",
    "--model gpt2 --freeze h.0.,wpe --output-dtype bf16",
    "--model gpt2 --freeze wte --dtype bf16",
    "--model llama --freeze model.embed_tokens.,model.layers.0. --dtype bf16",
    "--model llama --untied --dropout 0.1",
    "--model llama --n-kv-head 1 --dtype bf16 --checkpoint-activations 1 --output-dtype bf16",
};

#endif
