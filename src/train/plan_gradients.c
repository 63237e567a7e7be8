/* The part of the plan that says how gradients are averaged and sent, and what of the model's
 * states is sharded: names become numbers, and what cannot go together is refused. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/parallel.h>

#include "parallel/units.h"
#include "train/config.h"

typedef struct choice {
    const char *text;
    int value;
} choice;

static const choice averages[] = {
    {"tokens", LS_AVERAGE_WEIGHTS}, {"ranks", LS_AVERAGE_MEANS}, {"sum", LS_AVERAGE_SUM}};

static const choice hooks[] = {{"none", 0},
#define HOOK_ROW(name, number, text, help) {text, LS_HOOK_##name},
                               LS_HOOK_TABLE(HOOK_ROW)
#undef HOOK_ROW
};

static const choice strategies[] = {{"ddp", LS_STRATEGY_DDP},     {"zero1", LS_STRATEGY_ZERO1},
                                    {"zero2", LS_STRATEGY_ZERO2}, {"zero3", LS_STRATEGY_ZERO3},
                                    {"fsdp", LS_STRATEGY_ZERO3},  {"hybrid", LS_STRATEGY_ZERO3}};
static const choice offloads[] = {
    {"none", LS_OFFLOAD_NONE}, {"optimizer", LS_OFFLOAD_OPTIMIZER}, {"params", LS_OFFLOAD_PARAMS}};
static const choice replicas[] = {{"shared", LS_REPLICAS_SHARED}, {"private", LS_REPLICAS_PRIVATE}};

/* The option table has let through nothing else. */
static int value_of(const choice *rows, size_t n, const char *text) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].text, text) == 0) return rows[i].value;
    return 0;
}

static ls_status plan_loss_scale(const lsi_train_config *c, lsi_run_plan *plan) {
    char *end = NULL;
    int exponent;
    if (strcmp(c->loss_scale, "dynamic") == 0) return LS_OK;
    plan->loss_scale = strtod(c->loss_scale, &end);
    if (*c->loss_scale && !*end && isfinite(plan->loss_scale) && plan->loss_scale > 0 &&
        frexp(plan->loss_scale, &exponent) == 0.5)
        return plan->hook == LS_HOOK_FP16
                   ? LS_OK
                   : lsi_fail(LS_ERR_USAGE, "--loss-scale %s is for --comm-hook fp16",
                              c->loss_scale);
    return lsi_fail(LS_ERR_USAGE, "--loss-scale %s: expected dynamic or a power of two above 0",
                    c->loss_scale);
}

static bool is_hybrid(const lsi_train_config *c) {
    return strcmp(c->strategy, "hybrid") == 0;
}

/* What cannot go together. */
static ls_status check_gradients(const lsi_train_config *c, const lsi_run_plan *plan) {
    static const char gathering[] =
        "is for --replicas private with --strategy zero3 or hybrid, where units are gathered";
    bool gathers = lsi_gathers_units(plan->strategy, plan->replicas);
    static const char sums[] =
        "needs the sum of a worker's micro-batches, but --strategy zero2, zero3 and hybrid "
        "exchange each of them; let each worker have one a step (--micro-batch-size), or take "
        "--strategy zero1";
    bool exchanges_each = plan->strategy >= LS_STRATEGY_ZERO2 && plan->n_micro_batches > c->workers;
    bool is_early = c->update_in_backward;
    bool is_lossy = plan->hook != 0 && plan->hook != LS_HOOK_ALL_REDUCE;
    const struct {
        bool is_wrong;
        const char *option, *why;
    } rows[] = {
        {c->reproducible && is_lossy, "--comm-hook",
         "--reproducible promises the same bits for any number of workers, which a hook that "
         "loses some cannot give"},
        {c->reproducible && plan->average == LS_AVERAGE_MEANS, "--grad-average ranks",
         "--reproducible promises the same bits for any number of workers, on which this mean "
         "depends"},
        {c->reproducible && c->sync_batch_norm, "--sync-batch-norm",
         "--reproducible promises the same bits for any number of workers, on which these norms "
         "depend"},
        {c->sync_batch_norm && strcmp(plan->model_class->name, "convnet") != 0, "--sync-batch-norm",
         "only --model convnet has batch norm"},
        {plan->hook != 0 && strcmp(c->reduce_dtype, "f32") != 0, "--reduce-dtype",
         "with a hook, the hook says what is sent"},
        {exchanges_each && plan->hook != 0, "--comm-hook", sums},
        {exchanges_each && plan->average == LS_AVERAGE_MEANS, "--grad-average ranks", sums},
        {is_hybrid(c) && plan->shard_size == 0, "--shard-group",
         "--strategy hybrid wants groups of equal size: a number that divides --workers"},
        {!is_hybrid(c) && c->shard_group != 0, "--shard-group", "is for --strategy hybrid"},
        {!gathers && strcmp(c->unit, "block") != 0, "--unit", gathering},
        {!gathers && c->prefetch != 1, "--prefetch", gathering},
        {!gathers && plan->reshard != 0, "--reshard", gathering},
        {!gathers && c->gather_limit_mb != 0, "--gather-limit-mb", gathering},
        {!gathers && c->persist_below != 0, "--persist-below", gathering},
        {plan->strategy == LS_STRATEGY_DDP && plan->offload != LS_OFFLOAD_NONE, "--offload",
         "is for sharded strategies: zero1, zero2, zero3 and hybrid"},
        {plan->strategy == LS_STRATEGY_DDP && strcmp(c->reduce_dtype, "f32") != 0, "--reduce-dtype",
         "is for sharded strategies; --strategy ddp has --comm-hook bf16"},
        {c->reproducible && strcmp(c->reduce_dtype, "f32") != 0, "--reduce-dtype",
         "--reproducible promises the same bits for any number of workers, on which rounded sums "
         "depend"},
        {!gathers && plan->offload == LS_OFFLOAD_PARAMS, "--offload params", gathering},
        {plan->offload == LS_OFFLOAD_NONE && c->offload_dir, "--offload-dir",
         "is for --offload optimizer and --offload params"},
        {is_early && (plan->strategy == LS_STRATEGY_DDP || is_hybrid(c) ||
                      plan->replicas != LS_REPLICAS_SHARED),
         "--update-in-backward",
         "is for --strategy zero1, zero2 and zero3 with --replicas shared, where each worker "
         "updates its part of the only copy"},
        {is_early && c->clip_norm != 0, "--update-in-backward",
         "parameters are updated before the norm of all gradients is known, so nothing can be "
         "clipped; give --clip-norm 0 as well"},
        {is_early && plan->skips, "--update-in-backward",
         "parameters are updated before it is known whether all gradients are finite, so no step "
         "can be left out; take --on-nonfinite stop"},
        {is_early && plan->hook != 0, "--update-in-backward",
         "hooks leave averages in memory, which there are none of; take --comm-hook none"},
        {is_early && strcmp(c->reduce_dtype, "f32") != 0, "--update-in-backward",
         "gradients are added as they are; take --reduce-dtype f32"},
        {is_early && plan->offload != LS_OFFLOAD_NONE, "--update-in-backward",
         "states in a file would be waited for while gradients are added; take --offload none"},
        {exchanges_each && is_early, "--update-in-backward", sums},
        {plan->hook != 0 && plan->average == LS_AVERAGE_MEANS, "--grad-average ranks",
         "hooks know one factor for all workers; take --grad-average tokens"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].is_wrong) return lsi_fail(LS_ERR_USAGE, "%s: %s", rows[i].option, rows[i].why);
    return LS_OK;
}

/* Strategies that exchange every micro-batch take them in rounds of a shard group. */
static ls_status plan_rounds(const lsi_train_config *c, lsi_run_plan *plan) {
    int64_t n_micro = plan->n_micro_batches, size = c->workers;
    if (plan->strategy < LS_STRATEGY_ZERO2) return LS_OK;
    if (plan->shard_size > 0) size = plan->shard_size;
    if (lsi_deal_rounds(&plan->deal, n_micro, (int)c->workers, (int)size, c->reproducible) != LS_OK)
        return lsi_fail(LS_ERR_USAGE,
                        "--strategy %s: %" PRId64 " micro-batches cannot be shared by "
                        "--workers %" PRId64 " in groups of %" PRId64
                        " so that those of a group have equally many; choose another --batch-size, "
                        "or --strategy zero1",
                        c->strategy, n_micro, c->workers, size);
    return LS_OK;
}

/* yes, no, or the workers of a group that keeps units in parts. */
static ls_status plan_reshard(const lsi_train_config *c, lsi_run_plan *plan) {
    char *end = NULL;
    int64_t group = plan->shard_size > 0 ? plan->shard_size : c->workers;
    if (strcmp(c->reshard, "yes") == 0) return LS_OK;
    long k = strcmp(c->reshard, "no") == 0 ? 1 : strtol(c->reshard, &end, 10);
    if ((end && (*end || end == c->reshard)) || k < 1 || group % k != 0)
        return lsi_fail(LS_ERR_USAGE,
                        "--reshard %s: expected yes, no or a number of workers that divides the "
                        "%" PRId64 " of a shard group",
                        c->reshard, group);
    plan->reshard = (int)k;
    return LS_OK;
}

static ls_status plan_sharding(const lsi_train_config *c, lsi_run_plan *plan) {
    int64_t size = c->shard_group > 0 ? c->shard_group : c->workers;
    plan->strategy = value_of(strategies, sizeof strategies / sizeof strategies[0], c->strategy);
    plan->replicas = value_of(replicas, sizeof replicas / sizeof replicas[0], c->replicas);
    plan->offload = value_of(offloads, sizeof offloads / sizeof offloads[0], c->offload);
    if (is_hybrid(c) && c->workers % size == 0) plan->shard_size = (int)size;
    LSI_TRY(plan_reshard(c, plan));
    return plan_rounds(c, plan);
}

ls_status lsi_plan_gradients(const lsi_train_config *c, lsi_run_plan *plan) {
    plan->average = value_of(averages, sizeof averages / sizeof averages[0], c->grad_average);
    plan->hook = value_of(hooks, sizeof hooks / sizeof hooks[0], c->comm_hook);
    plan->skips = strcmp(c->on_nonfinite, "skip") == 0;
    LSI_TRY(plan_loss_scale(c, plan));
    LSI_TRY(plan_sharding(c, plan));
    return check_gradients(c, plan);
}
