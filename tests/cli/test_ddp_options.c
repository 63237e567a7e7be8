/* Options about gradients from outside: what cannot go together, what sums are divided by,
 * comparing weights, batch norm over all workers. */
#include <math.h>

#include "cli/train_images.h"

/* ---- what cannot go together ---- */

typedef struct refused_row {
    const char *options, *text;
    bool is_convnet;
} refused_row;

static void expect_refusals(void **state, const refused_row *rows, size_t n_rows) {
    static const char convnet[] = "--data %s/set --val-fraction 0.05 --model convnet";
    for (size_t i = 0; i < n_rows; i++) {
        char options[256], set[128] = "";
        program_result result;
        if (rows[i].is_convnet) snprintf(set, sizeof set, convnet, (const char *)*state);
        snprintf(options, sizeof options, "--steps 1 --workers 2 %s %s", set, rows[i].options);
        program_finish(start_training(state, NULL, "refused", options), &result);
        if (result.exit_code != 2 || !strstr(result.err, rows[i].text))
            fail_msg("%s: code %d, expected 2 and '%s' in: %s", options, result.exit_code,
                     rows[i].text, result.err);
        assert_int_equal(result.n_left, 0);
        program_release(&result);
    }
}

static void options_that_do_not_go_together_are_refused(void **state) {
    static const refused_row rows[] = {
        {"--reproducible --comm-hook bf16", "--comm-hook: --reproducible promises", false},
        {"--reproducible --comm-hook noop", "--comm-hook: --reproducible promises", false},
        {"--reproducible --grad-average ranks", "--grad-average ranks: --reproducible", false},
        {"--reproducible --sync-batch-norm", "--sync-batch-norm: --reproducible", true},
        {"--sync-batch-norm", "--sync-batch-norm: only --model convnet has batch norm", false},
        {"--comm-hook allreduce --grad-average ranks", "hooks know one factor", false},
        {"--loss-scale 8", "--loss-scale 8 is for --comm-hook fp16", false},
        {"--loss-scale 8 --comm-hook bf16", "--loss-scale 8 is for --comm-hook fp16", false},
        {"--comm-hook fp16 --loss-scale 3", "expected dynamic or a power of two above 0", false},
        {"--comm-hook fp16 --loss-scale 0", "expected dynamic or a power of two above 0", false},
        {"--comm-hook fp16 --loss-scale -2", "expected dynamic or a power of two above 0", false},
        {"--comm-hook fp16 --loss-scale inf", "expected dynamic or a power of two above 0", false},
        {"--comm-hook fp16 --loss-scale nan", "expected dynamic or a power of two above 0", false},
        {"--comm-hook fp16 --loss-scale 1e400", "expected dynamic or a power of two", false},
        {"--comm-hook fp16 --loss-scale 8x", "expected dynamic or a power of two above 0", false},
        {"--comm-hook fp16 --loss-scale static", "expected dynamic or a power of two", false},
        {"--comm-hook zip", "--comm-hook", false},
        {"--grad-average mean", "--grad-average", false},
        {"--on-nonfinite ignore", "--on-nonfinite", false},
        {"--max-skips 0", "--max-skips", false},
        {"--topk-share 0", "--topk-share", false},
        {"--topk-share 1.5", "--topk-share", false},
        {"--powersgd-rank 65", "--powersgd-rank", false},
        {"--bucket-cap-mb 0", "--bucket-cap-mb", false},
    };
    expect_refusals(state, rows, sizeof rows / sizeof rows[0]);
}

#define FSDP "--strategy fsdp --replicas private "
#define EARLY "--strategy zero1 --clip-norm 0 --update-in-backward "
#define ONE_EACH "--batch-size 2 --micro-batch-size 1 "
#define GATHERED                                                                                   \
    "is for --replicas private with --strategy zero3 or hybrid, where units are gathered"

/* What a strategy cannot do, and what means nothing with it. */
static void options_of_other_strategies_are_refused(void **state) {
    static const refused_row rows[] = {
        {"--strategy zero4", "--strategy", false},
        {"--strategy zero1 --replicas none", "--replicas", false},
        {"--strategy zero2 --comm-hook bf16", "--comm-hook: needs the sum of a worker's", false},
        {"--strategy hybrid --shard-group 1 --comm-hook topk", "exchange each of them", false},
        {FSDP "--grad-average ranks", "--grad-average ranks: needs the sum", false},
        {"--strategy zero3 --batch-size 6 --reproducible", "3 micro-batches cannot be shared",
         false},
        {"--strategy zero2 --batch-size 6 --reproducible", "or --strategy zero1", false},
        {"--strategy hybrid --shard-group 3", "--shard-group: --strategy hybrid wants groups",
         false},
        {"--strategy hybrid --shard-group 4", "a number that divides --workers", false},
        {"--strategy hybrid --shard-group -1", "--shard-group", false},
        {"--shard-group 2", "--shard-group: is for --strategy hybrid", false},
        {"--strategy zero3 --shard-group 2", "--shard-group: is for --strategy hybrid", false},
        {"--unit 1000", "--unit: " GATHERED, false},
        {"--strategy zero3 --unit h.0", "--unit: " GATHERED, false},
        {FSDP "--unit nothing", "--unit nothing", false},
        {FSDP "--unit 12x", "--unit: expected a whole number", false},
        {"--prefetch 2", "--prefetch: " GATHERED, false},
        {"--strategy zero3 --prefetch 0", "--prefetch: " GATHERED, false},
        {FSDP "--prefetch -1", "--prefetch", false},
        {FSDP "--prefetch 1001", "--prefetch", false},
        {"--reshard no", "--reshard: " GATHERED, false},
        {"--strategy zero1 --replicas private --reshard 2", "--reshard: " GATHERED, false},
        {FSDP "--reshard 0", "--reshard 0: expected yes, no or a number of workers", false},
        {FSDP "--reshard 3", "expected yes, no or a number of workers that divides the 2", false},
        {FSDP "--reshard -2", "--reshard -2: expected yes, no or a number", false},
        {FSDP "--reshard 2x", "--reshard 2x: expected yes, no or a number", false},
        {FSDP "--reshard maybe", "--reshard maybe: expected yes, no or a number", false},
        {FSDP "--reshard 99999999999999999999", "expected yes, no or a number", false},
        {FSDP "--batch-size 6 --workers 3 --reshard 2", "that divides the 3 of a shard group",
         false},
        {"--strategy hybrid --replicas private --shard-group 1 --reshard 2",
         "that divides the 1 of a", false},
        {"--gather-limit-mb 1", "--gather-limit-mb: " GATHERED, false},
        {FSDP "--gather-limit-mb -1", "--gather-limit-mb", false},
        {"--strategy zero2 --replicas private --persist-below 10", "--persist-below: " GATHERED,
         false},
        {FSDP "--persist-below -1", "--persist-below", false},
        {"--offload optimizer", "--offload: is for sharded strategies: zero1, zero2, zero3", false},
        {"--offload params", "--offload: is for sharded strategies", false},
        {"--strategy zero3 --offload params", "--offload params: " GATHERED, false},
        {FSDP "--offload everything", "--offload", false},
        {FSDP "--offload-dir /tmp", "--offload-dir: is for --offload", false},
        {"--reduce-dtype bf16", "--reduce-dtype: is for sharded strategies", false},
        {"--strategy zero1 --comm-hook bf16 --reduce-dtype bf16", "the hook says what is sent",
         false},
        {FSDP "--reproducible --reduce-dtype bf16", "--reduce-dtype: --reproducible promi", false},
        {FSDP "--reduce-dtype f16", "--reduce-dtype", false},
        {"--clip-norm 0 --update-in-backward",
         "--update-in-backward: is for --strategy zero1, zero2", false},
        {FSDP "--clip-norm 0 --update-in-backward", "with --replicas shared", false},
        {"--strategy hybrid --clip-norm 0 --update-in-backward", "is for --strategy zero1", false},
        {"--strategy zero1 --update-in-backward", "so nothing can be clipped; give --clip-norm 0",
         false},
        {EARLY "--on-nonfinite skip", "so no step can be left out", false},
        {EARLY "--comm-hook bf16", "--update-in-backward: hooks leave averages in memory", false},
        {EARLY "--reduce-dtype bf16", "--update-in-backward: gradients are added as they", false},
        {EARLY "--offload optimizer", "--update-in-backward: states in a file", false},
        {"--strategy zero2 --clip-norm 0 --update-in-backward",
         "--update-in-backward: needs the sum of a worker's", false},
    };
    expect_refusals(state, rows, sizeof rows / sizeof rows[0]);
}

static void options_that_go_together_are_taken(void **state) {
    static const char *const rows[] = {
        "--reproducible --comm-hook allreduce",
        "--reproducible --grad-average sum",
        "--comm-hook fp16 --loss-scale 0.5",
        "--comm-hook topk --topk-share 1 --hook-start-step 0",
        "--comm-hook powersgd --powersgd-rank 64 --hook-start-step 0",
        "--check-weights-every 1",
        "--freeze wte,,h.0",
        "--replicas private",
        "--strategy zero1 --comm-hook bf16",
        "--strategy zero2 --no-overlap",
        FSDP "--no-overlap --prefetch 0",
        ONE_EACH "--strategy zero2 --comm-hook int8",
        ONE_EACH FSDP "--comm-hook powersgd --powersgd-rank 2 --hook-start-step 0",
        ONE_EACH "--strategy hybrid --shard-group 1 --comm-hook bf16",
        ONE_EACH "--strategy zero2 --grad-average ranks",
        "--strategy zero2 --offload optimizer --reduce-dtype bf16",
        FSDP "--unit 1 --prefetch 0 --reshard no --offload params --offload-dir /tmp",
        FSDP "--unit h.0,ln_f --prefetch 1000 --reshard 2 --gather-limit-mb 0.01",
        FSDP "--persist-below 1000 --reshard 1 --print-memory --no-rebuild-buckets",
        "--strategy hybrid --shard-group 1",
        "--strategy hybrid --replicas private --reduce-dtype bf16 --reshard 2",
        "--workers 4 --strategy hybrid --replicas private --shard-group 2 --reshard 2",
        EARLY "--grad-average ranks --profile --print-memory --print-buckets",
        ONE_EACH "--strategy zero3 --clip-norm 0 --update-in-backward --reproducible",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        json_decref(train(state, "taken", "--steps 2 --workers 2 %s", rows[i]));
}

/* ---- averages ---- */

/* 6 samples of 16 tokens: of a padded batch of 8, the last micro-batch of 2 has no target. */
static void write_six_samples(void **state) {
    write_sentences(in_scratch(state, "six"), 6 * SMALL_SEQ_LEN + 1, 3);
}

#define SIX "--data %s/six --epochs 3 --micro-batch-size 2 "

static json_t *train_six(void **state, const char *options) {
    char what[256];
    snprintf(what, sizeof what, SIX "%s", (const char *)*state, options);
    return train(state, "six-run", "%s", what);
}

/* Padding weighs nothing: the batch of 8 places is the batch of 6, however it is shared. */
static void padded_batches_have_the_mean_over_real_targets(void **state) {
    write_six_samples(state);
    json_t *whole = train_six(state, "--batch-size 6 --reproducible");
    for (int workers = 1; workers <= 4; workers++) {
        char options[128];
        snprintf(options, sizeof options, "--batch-size 8 --tail pad --reproducible --workers %d",
                 workers);
        json_t *padded = train_six(state, options);
        assert_same_weights(whole, padded, options);
        assert_true(json_equal(json_object_get(whole, "loss"), json_object_get(padded, "loss")));
        json_decref(padded);
    }
    json_decref(whole);
}

/* The second of two workers has half the targets of the first one: a mean of means counts them
 * twice. Alone, or with equal shares, there is nothing to tell apart. */
static void means_of_ranks_differ_where_shares_do(void **state) {
    const struct {
        const char *options;
        bool is_same;
    } rows[] = {
        {"--batch-size 8 --tail pad --workers 2", false},
        {"--batch-size 8 --tail pad --workers 1", true},
        {"--batch-size 4 --workers 2", true},
    };
    write_six_samples(state);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[128];
        snprintf(options, sizeof options, "%s --grad-average ranks", rows[i].options);
        json_t *tokens = train_six(state, rows[i].options), *ranks = train_six(state, options);
        const char *a = text_in(tokens, "weights_sha256"), *b = text_in(ranks, "weights_sha256");
        if ((strcmp(a, b) == 0) != rows[i].is_same)
            fail_msg("%s: expected %s weights", options, rows[i].is_same ? "the same" : "other");
        assert_true(number_of(tokens, "loss_first") == number_of(ranks, "loss_first"));
        assert_string_equal(text_in(ranks, "grad_average"), "ranks");
        json_decref(tokens);
        json_decref(ranks);
    }
}

static double first_norm(void **state, const char *options) {
    json_decref(train(state, "norm", "--steps 1 --workers 2 %s", options));
    json_t *lines = metrics_with(state, "norm", "grad_norm");
    double norm = number_of(json_array_get(lines, 0), "grad_norm");
    json_decref(lines);
    return norm;
}

/* 128 targets, a power of two: nothing is rounded in between. */
static void sums_are_means_times_targets(void **state) {
    double mean = first_norm(state, "--grad-average tokens");
    assert_true(mean > 0);
    assert_true(first_norm(state, "--grad-average ranks") == mean);
    assert_true(first_norm(state, "--grad-average sum") == mean * 8 * SMALL_SEQ_LEN);
}

/* ---- replicas and norms ---- */

static void checking_weights_changes_nothing(void **state) {
    json_t *without = train(state, "checked", "--steps 4 --workers 3 --batch-size 12");
    json_t *with =
        train(state, "checked", "--steps 4 --workers 3 --batch-size 12 --check-weights-every 1");
    assert_same_weights(without, with, "--check-weights-every 1");
    json_decref(without);
    json_decref(with);
}

#define NORMS "--model convnet --steps 6 --micro-batch-size 12 --eval-samples 4 "

static void batch_norm_of_one_worker_is_the_same_synchronised(void **state) {
    json_t *off = train_images(state, NORMS), *on = train_images(state, NORMS "--sync-batch-norm");
    assert_same_weights(off, on, "--sync-batch-norm");
    json_decref(off);
    json_decref(on);
}

/* Two workers with 12 images each norm as one with all 24 does, and only when they synchronise. */
static void synchronised_batch_norm_sees_the_batch_of_all_workers(void **state) {
    json_t *whole = train_images(state, NORMS "--micro-batch-size 24");
    json_t *together = train_images(state, NORMS "--workers 2 --sync-batch-norm");
    json_t *apart = train_images(state, NORMS "--workers 2");
    double first = number_of(whole, "loss_first"), last = number_of(whole, "loss_last");
    assert_true(fabs(number_of(together, "loss_first") - first) < 1e-5 * first);
    assert_true(fabs(number_of(together, "loss_last") - last) < 1e-3 * last);
    assert_true(fabs(number_of(apart, "loss_first") - first) > 1e-4 * first);
    assert_true(last < first);
    json_decref(whole);
    json_decref(together);
    json_decref(apart);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_do_not_go_together_are_refused),
        cmocka_unit_test(options_of_other_strategies_are_refused),
        cmocka_unit_test(options_that_go_together_are_taken),
        cmocka_unit_test(padded_batches_have_the_mean_over_real_targets),
        cmocka_unit_test(means_of_ranks_differ_where_shares_do),
        cmocka_unit_test(sums_are_means_times_targets),
        cmocka_unit_test(checking_weights_changes_nothing),
        cmocka_unit_test(batch_norm_of_one_worker_is_the_same_synchronised),
        cmocka_unit_test(synchronised_batch_norm_sees_the_batch_of_all_workers),
    };
    return cmocka_run_group_tests(tests, make_images, remove_scratch);
}
