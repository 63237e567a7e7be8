/* lsi_plan_run: what follows from a configuration, and what wrong ones are answered with.
 *
 * Where numbers do not fit together the message names numbers that would. These are taken out of
 * the message and tried: each alternative behind "would work:" has to be a plan. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "harness/scratch.h"
#include "harness/text.h"
#include "train/config.h"

/* 10,000 tokens, of which 9,500 train: 593 samples of 16 tokens, and 31 to validate. */
enum { TEXT_BYTES = 10000, MAX_WORDS = 64 };

typedef struct request {
    const char *words[MAX_WORDS];
    int n;
} request;

typedef struct planned {
    lsi_train_config config; /* texts are borrowed from the request and from static words */
    lsi_run_plan plan;
    ls_status status;
} planned;

static char text_path[PATH_MAX];

static void add_word(request *r, const char *word) {
    assert_true(r->n < MAX_WORDS);
    r->words[r->n++] = word;
}

/* Splits at spaces; `line` is kept by the request. */
static void add_line(request *r, char *line) {
    for (char *rest = line, *word; (word = strsep(&rest, " "));)
        if (word[0]) add_word(r, word);
}

static request new_request(void) {
    request r = {.n = 0};
    const char *const all[] = {"--data", text_path,  "--seq-len", "16",       "--n-layer",
                               "1",      "--n-head", "2",         "--n-embd", "8"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) add_word(&r, all[i]);
    return r;
}

/* Plans; a later option wins over the same one before it. The plan must not depend on the set. */
static void plan_request(const request *r, planned *p) {
    lsi_opt_set *set = NULL;
    memset(p, 0, sizeof *p);
    assert_ok(lsi_opt_parse(lsi_train_options, r->n, (char **)(uintptr_t)r->words, &p->config, NULL,
                            0, &set));
    p->status = lsi_plan_run(&p->config, &p->plan);
    lsi_opt_destroy(set);
}

/* Plans options written in one line. */
static planned plan(const char *options) {
    char line[1024];
    planned p;
    request r = new_request();
    snprintf(line, sizeof line, "%s", options);
    add_line(&r, line);
    plan_request(&r, &p);
    return p;
}

static lsi_run_plan plan_of(const char *options) {
    planned p = plan(options);
    if (p.status != LS_OK) fail_msg("%s: %s", options, ls_last_message());
    return p.plan;
}

static void assert_refused(const char *options, ls_status status, const char *text) {
    planned p = plan(options);
    if (p.status != status || !strstr(ls_last_message(), text))
        fail_msg("%s: expected %s with '%s', found %s with '%s'", options, ls_status_name(status),
                 text, ls_status_name(p.status), p.status ? ls_last_message() : "");
}

/* ---- batches ---- */

static void batches_are_cut_into_micro_batches(void **state) {
    (void)state;
    const struct {
        const char *options;
        int64_t micro_batch_size, n_micro_batches, largest;
    } rows[] = {
        /* nothing said: as much at once as workers can share, up to 8 */
        {"--batch-size 32", 8, 4, 4},
        {"--batch-size 32 --workers 2", 8, 4, 2},
        {"--batch-size 32 --workers 8", 4, 8, 1},
        {"--batch-size 30 --workers 3", 5, 6, 2},
        {"--batch-size 12 --workers 1", 6, 2, 2},
        {"--batch-size 7 --workers 7", 1, 7, 1},
        {"--batch-size 13 --workers 1", 1, 13, 13},
        {"--batch-size 1", 1, 1, 1},
        /* reproducible: the same cut for every number of workers */
        {"--batch-size 32 --reproducible", 4, 8, 8},
        {"--batch-size 32 --reproducible --workers 2", 4, 8, 4},
        {"--batch-size 32 --reproducible --workers 8", 4, 8, 1},
        {"--batch-size 32 --reproducible --workers 5", 4, 8, 2},
        {"--batch-size 4 --reproducible --workers 2", 1, 4, 2},
        {"--batch-size 1 --reproducible", 1, 1, 1},
        /* said */
        {"--batch-size 32 --micro-batch-size 32", 32, 1, 1},
        {"--batch-size 32 --micro-batch-size 1 --workers 4", 1, 32, 8},
        {"--batch-size 12 --micro-batch-size 2 --workers 3", 2, 6, 2},
        {"--batch-size 12 --micro-batch-size 2 --workers 2 --reproducible", 2, 6, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_run_plan p = plan_of(rows[i].options);
        if (p.micro_batch_size != rows[i].micro_batch_size ||
            p.n_micro_batches != rows[i].n_micro_batches || p.deal.largest != rows[i].largest)
            fail_msg("%s: %lld micro-batches of %lld, up to %lld a worker", rows[i].options,
                     (long long)p.n_micro_batches, (long long)p.micro_batch_size,
                     (long long)p.deal.largest);
    }
}

/* 6 on 2 goes along the border of the tree, and what every worker gets is a share of its own. */
static void reproducible_shares_may_be_unequal(void **state) {
    (void)state;
    lsi_run_plan p = plan_of("--batch-size 6 --micro-batch-size 1 --workers 2 --reproducible");
    assert_int_equal(p.deal.count[0], 4);
    assert_int_equal(p.deal.count[1], 2);
    for (int workers = 1; workers <= 13; workers++) {
        char options[128];
        int64_t sum = 0;
        snprintf(options, sizeof options,
                 "--batch-size 13 --micro-batch-size 1 --reproducible --workers %d", workers);
        p = plan_of(options);
        for (int r = 0; r < workers; r++) {
            assert_true(p.deal.count[r] >= 1);
            assert_int_equal(p.deal.first[r], sum);
            sum += p.deal.count[r];
        }
        assert_int_equal(sum, 13);
    }
}

/* ---- alternatives ---- */

/* Adds "--name value" pairs that stand in a piece of a message; a number alone belongs to the name
 * of the piece before it. Returns whether the piece held any. */
static bool add_pairs(request *r, char *piece, const char **last_name) {
    bool any = false;
    for (char *rest = piece, *word; (word = strsep(&rest, " ,;"));) {
        if (strncmp(word, "--", 2) == 0) {
            *last_name = word;
        } else if (*last_name && (isdigit((unsigned char)word[0]) || strcmp(word, "pad") == 0)) {
            add_word(r, *last_name);
            add_word(r, word);
            any = true;
        }
    }
    return any;
}

/* Tries all alternatives of the last message on top of the request; returns how many there were. */
static int try_alternatives(const request *base, const char *what) {
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", ls_last_message());
    char *rest = strstr(message, "would work: ");
    if (!rest) {
        fail_msg("%s: no alternatives in '%s'", what, message);
        return 0;
    }
    rest += strlen("would work: ");
    rest[strcspn(rest, ";")] = '\0';
    int n = 0;
    const char *last_name = NULL;
    while (rest) {
        char *next = strstr(rest, " or ");
        if (next) *next = '\0';
        request r = *base;
        planned p;
        if (!add_pairs(&r, rest, &last_name)) fail_msg("%s: nothing to try in '%s'", what, rest);
        plan_request(&r, &p);
        if (p.status != LS_OK)
            fail_msg("%s: alternative %d does not work: %s", what, n + 1, ls_last_message());
        n++;
        rest = next ? next + strlen(" or ") : NULL;
    }
    return n;
}

static void alternatives_in_messages_work(void **state) {
    (void)state;
    const char *const rows[] = {
        "--batch-size 10 --workers 4",
        "--batch-size 60 --workers 3 --micro-batch-size 3",
        "--batch-size 30 --workers 4 --micro-batch-size 2",
        "--batch-size 30 --workers 8 --micro-batch-size 4 --reproducible",
        "--batch-size 32 --workers 16 --reproducible",
        "--batch-size 3 --workers 8",
        "--batch-size 17 --workers 2 --micro-batch-size 100",
        "--batch-size 600",
        "--batch-size 599 --workers 2 --micro-batch-size 1 --reproducible",
        "--batch-size 1000 --workers 4",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[256];
        planned p;
        request r = new_request();
        snprintf(line, sizeof line, "%s", rows[i]);
        add_line(&r, line);
        plan_request(&r, &p);
        if (p.status == LS_OK) fail_msg("%s: expected a refusal", rows[i]);
        assert_true(try_alternatives(&r, rows[i]) >= 1);
    }
}

/* Every small combination is a plan, or its refusal names plans. */
static void any_combination_works_or_names_some_that_do(void **state) {
    (void)state;
    int n_plans = 0, n_refused = 0;
    for (int batch = 1; batch <= 13; batch++)
        for (int micro = 0; micro <= 5; micro++)
            for (int workers = 1; workers <= 9; workers++)
                for (int reproducible = 0; reproducible < 2; reproducible++) {
                    char line[256], what[256];
                    planned p;
                    request r = new_request();
                    snprintf(what, sizeof what,
                             "--batch-size %d --micro-batch-size %d --workers %d%s", batch, micro,
                             workers, reproducible ? " --reproducible" : "");
                    snprintf(line, sizeof line, "%s", what);
                    add_line(&r, line);
                    plan_request(&r, &p);
                    if (p.status == LS_OK) {
                        n_plans++;
                        assert_int_equal(p.plan.micro_batch_size * p.plan.n_micro_batches, batch);
                        continue;
                    }
                    n_refused++;
                    assert_int_equal(p.status, LS_ERR_ARGUMENT);
                    try_alternatives(&r, what);
                }
    assert_true(n_plans > 100 && n_refused > 100);
}

static void huge_numbers_are_refused_at_once(void **state) {
    (void)state;
    assert_refused("--batch-size 1000000000 --workers 64", LS_ERR_ARGUMENT, "do not fill one");
    assert_refused("--batch-size 999999999 --micro-batch-size 1000000000", LS_ERR_ARGUMENT,
                   "would work: --batch-size 1000000000, or --micro-batch-size 999999999");
    assert_refused("--batch-size 999999937 --workers 64", LS_ERR_ARGUMENT, "would work:");
}

/* ---- steps ---- */

static void steps_follow_from_epochs_and_tail(void **state) {
    (void)state;
    const struct {
        const char *options;
        int64_t steps_per_epoch, total_steps;
    } rows[] = {
        {"--batch-size 32", 18, 18}, /* 593 / 32 = 18.5 */
        {"--batch-size 32 --tail pad", 19, 19},
        {"--batch-size 32 --epochs 3", 18, 54},
        {"--batch-size 32 --epochs 3 --tail pad", 19, 57},
        {"--batch-size 32 --steps 7", 18, 7},
        {"--batch-size 32 --steps 1000000000000000", 18, 1000000000000000},
        {"--batch-size 593", 1, 1},
        {"--batch-size 593 --tail pad", 1, 1},
        {"--batch-size 594 --tail pad", 1, 1},
        {"--batch-size 5930 --tail pad --epochs 2", 1, 2},
        {"--batch-size 1 --epochs 1000000000", 593, 593000000000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_run_plan p = plan_of(rows[i].options);
        if (p.steps_per_epoch != rows[i].steps_per_epoch || p.total_steps != rows[i].total_steps)
            fail_msg("%s: %lld steps an epoch, %lld in all", rows[i].options,
                     (long long)p.steps_per_epoch, (long long)p.total_steps);
    }
    assert_refused("--steps 5 --epochs 1", LS_ERR_ARGUMENT, "an epoch is 18 steps here");
    assert_refused("--batch-size 594", LS_ERR_ARGUMENT, "593 training sequences of --seq-len 16");
}

static void data_are_counted_by_split(void **state) {
    (void)state;
    lsi_run_plan p = plan_of("");
    assert_int_equal(p.n_tokens[LSI_SPLIT_TRAIN], 9500);
    assert_int_equal(p.n_tokens[LSI_SPLIT_VALIDATION], 500);
    assert_int_equal(p.n_samples[LSI_SPLIT_TRAIN], 593);
    assert_int_equal(p.n_samples[LSI_SPLIT_VALIDATION], 31);
    assert_true(p.unigram_entropy[LSI_SPLIT_TRAIN] > 2 && p.unigram_entropy[LSI_SPLIT_TRAIN] < 4);
    p = plan_of("--val-fraction 0");
    assert_int_equal(p.n_samples[LSI_SPLIT_TRAIN], 624);
    assert_int_equal(p.n_samples[LSI_SPLIT_VALIDATION], 0);
    assert_true(p.unigram_entropy[LSI_SPLIT_VALIDATION] == 0);
    p = plan_of("--val-fraction 0.5");
    assert_int_equal(p.n_tokens[LSI_SPLIT_VALIDATION], 5000);
}

static void texts_that_are_too_short_are_refused(void **state) {
    (void)state;
    assert_refused("--seq-len 9500", LS_ERR_FORMAT, "at most 9499");
    assert_refused("--seq-len 500", LS_ERR_FORMAT, "the validation split has 500");
    (void)plan_of("--seq-len 499 --batch-size 1");
    (void)plan_of("--seq-len 9999 --batch-size 1 --val-fraction 0");
    assert_refused("--seq-len 10000 --val-fraction 0", LS_ERR_FORMAT, "10000 tokens");
    assert_refused("--data /does/not/exist", LS_ERR_NOT_FOUND, "/does/not/exist");
    assert_refused("--data /tmp", LS_ERR_IO, "folder");
}

/* ---- the rest ---- */

static void a_missing_text_is_asked_for(void **state) {
    (void)state;
    lsi_train_config config;
    lsi_opt_set *set = NULL;
    lsi_run_plan p;
    assert_ok(lsi_opt_parse(lsi_train_options, 0, NULL, &config, NULL, 0, &set));
    assert_fails(lsi_plan_run(&config, &p), LS_ERR_USAGE, "--data");
    lsi_opt_destroy(set);
}

static void models_are_checked(void **state) {
    (void)state;
    assert_int_equal(plan_of("").model.vocab_size, 256);
    assert_int_equal(plan_of("--vocab-size 300").model.vocab_size, 300);
    assert_int_equal(plan_of("--vocab-size 256").model.vocab_size, 256);
    assert_refused("--vocab-size 255", LS_ERR_ARGUMENT, "smaller than the 256 tokens");
    assert_refused("--n-embd 10 --n-head 3", LS_ERR_ARGUMENT, "multiple of n_head");
    assert_refused("--n-embd 1000000 --n-layer 1000", LS_ERR_MEMORY, "this machine has");
}

static void schedules_have_their_defaults(void **state) {
    (void)state;
    lsi_run_plan p = plan_of("--steps 100 --lr 0.5");
    assert_int_equal(p.schedule, LS_SCHEDULE_COSINE);
    assert_int_equal(p.warmup_steps, 5);
    assert_true(p.min_lr == 0.05);
    p = plan_of("--steps 19");
    assert_int_equal(p.warmup_steps, 0);
    p = plan_of("--steps 100 --lr 1 --schedule linear --warmup-steps 0 --min-lr 0");
    assert_int_equal(p.schedule, LS_SCHEDULE_LINEAR);
    assert_int_equal(p.warmup_steps, 0);
    assert_true(p.min_lr == 0);
    assert_int_equal(plan_of("--schedule constant").schedule, LS_SCHEDULE_CONSTANT);
    assert_int_equal(plan_of("--steps 4 --warmup-steps 100").warmup_steps, 100);
    assert_refused("--min-lr -0.5", LS_ERR_ARGUMENT, "--min-lr");
}

static void gradients_are_planned(void **state) {
    (void)state;
    const struct {
        const char *options;
        int average, hook;
        bool skips;
        double loss_scale;
    } rows[] = {
        {"", LS_AVERAGE_WEIGHTS, 0, false, 0},
        {"--grad-average ranks", LS_AVERAGE_MEANS, 0, false, 0},
        {"--grad-average sum --on-nonfinite skip", LS_AVERAGE_SUM, 0, true, 0},
        {"--comm-hook allreduce --reproducible", LS_AVERAGE_WEIGHTS, LS_HOOK_ALL_REDUCE, false, 0},
        {"--comm-hook noop", LS_AVERAGE_WEIGHTS, LS_HOOK_NOOP, false, 0},
        {"--comm-hook bf16", LS_AVERAGE_WEIGHTS, LS_HOOK_BF16, false, 0},
        {"--comm-hook fp16 --loss-scale 0.25", LS_AVERAGE_WEIGHTS, LS_HOOK_FP16, false, 0.25},
        {"--comm-hook fp16 --loss-scale dynamic", LS_AVERAGE_WEIGHTS, LS_HOOK_FP16, false, 0},
        {"--comm-hook int8", LS_AVERAGE_WEIGHTS, LS_HOOK_INT8, false, 0},
        {"--comm-hook topk", LS_AVERAGE_WEIGHTS, LS_HOOK_TOPK, false, 0},
        {"--comm-hook powersgd", LS_AVERAGE_WEIGHTS, LS_HOOK_POWERSGD, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_run_plan p = plan_of(rows[i].options);
        if (p.average != rows[i].average || p.hook != rows[i].hook || p.skips != rows[i].skips ||
            p.loss_scale != rows[i].loss_scale)
            fail_msg("%s: average %d, hook %d, skips %d, scale %g", rows[i].options, p.average,
                     p.hook, p.skips, p.loss_scale);
    }
    assert_refused("--loss-scale 8", LS_ERR_USAGE, "is for --comm-hook fp16");
    assert_refused("--comm-hook fp16 --loss-scale 5", LS_ERR_USAGE, "a power of two");
    assert_refused("--sync-batch-norm", LS_ERR_USAGE, "only --model convnet");
    assert_refused("--reproducible --comm-hook int8", LS_ERR_USAGE, "--comm-hook: --reproducible");
}

static void threads_are_shared_or_said(void **state) {
    (void)state;
    int n = lsi_cpu_count();
    assert_int_equal(plan_of("").n_threads, n);
    assert_int_equal(plan_of("--workers 2").n_threads, n / 2 > 0 ? n / 2 : 1);
    assert_int_equal(plan_of("--workers 64 --batch-size 64").n_threads, n / 64 > 0 ? n / 64 : 1);
    assert_int_equal(plan_of("--threads 3 --workers 2").n_threads, 3);
    /* bits may depend on threads, so their number may not depend on the machine */
    assert_int_equal(plan_of("--reproducible").n_threads, 1);
    assert_int_equal(plan_of("--reproducible --threads 2").n_threads, 2);
}

static void memory_that_runs_out_is_answered(void **state) {
    (void)state;
    int64_t before = lsi_mem_n_blocks();
    for (int64_t n = 1;; n++) {
        lsi_train_config config;
        lsi_opt_set *set = NULL;
        lsi_run_plan p;
        char *words[] = {(char[]){"--data"}, text_path, (char[]){"--seq-len"}, (char[]){"16"}};
        assert_ok(lsi_opt_parse(lsi_train_options, 4, words, &config, NULL, 0, &set));
        lsi_mem_fail_at(n);
        ls_status status = lsi_plan_run(&config, &p);
        bool failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        lsi_opt_destroy(set);
        assert_int_equal(lsi_mem_n_blocks(), before);
        if (!failed) {
            assert_ok(status);
            return;
        }
        assert_int_equal(status, LS_ERR_MEMORY);
    }
}

static int set_up(void **state) {
    if (make_scratch(state) != 0) return -1;
    snprintf(text_path, sizeof text_path, "%s", in_scratch(state, "text"));
    write_sentences(text_path, TEXT_BYTES, 1);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_cut_into_micro_batches),
        cmocka_unit_test(reproducible_shares_may_be_unequal),
        cmocka_unit_test(alternatives_in_messages_work),
        cmocka_unit_test(any_combination_works_or_names_some_that_do),
        cmocka_unit_test(huge_numbers_are_refused_at_once),
        cmocka_unit_test(steps_follow_from_epochs_and_tail),
        cmocka_unit_test(data_are_counted_by_split),
        cmocka_unit_test(texts_that_are_too_short_are_refused),
        cmocka_unit_test(a_missing_text_is_asked_for),
        cmocka_unit_test(models_are_checked),
        cmocka_unit_test(schedules_have_their_defaults),
        cmocka_unit_test(gradients_are_planned),
        cmocka_unit_test(threads_are_shared_or_said),
        cmocka_unit_test(memory_that_runs_out_is_answered),
    };
    return cmocka_run_group_tests(tests, set_up, remove_scratch);
}
