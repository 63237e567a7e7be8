/* The formulas of memory: by hand for a model of 7 billion parameters, and against what ddps of
 * every strategy account for, with threads as ranks, whose bytes are those of all ranks together.
 */
#include "parallel/memory.h"

#include "harness/harness.h"

#include <math.h>

#include "harness/ranks.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- by hand ---- */

static const int64_t BILLION = 1000000000;

/* 7e9 parameters in bfloat16 on 64 ranks, in 1e9 bytes: 14 of values, 14 or 28 of gradients, 84 of
 * optimizer states. */
static void bytes_of_seven_billion_parameters_are_those_of_the_texts(void **state) {
    (void)state;
    static const struct {
        int strategy, replicas, grad_bytes;
        double params, grads, optimizer;
    } cases[] = {
        {LS_STRATEGY_DDP, LS_REPLICAS_PRIVATE, 2, 14, 14, 84},          /* 16 bytes a parameter */
        {LS_STRATEGY_DDP, LS_REPLICAS_SHARED, 0, 14, 28, 70},           /* 16, gradients float32 */
        {LS_STRATEGY_ZERO1, LS_REPLICAS_PRIVATE, 2, 14, 14, 84.0 / 64}, /* 4P + 12P/N */
        {LS_STRATEGY_ZERO1, LS_REPLICAS_PRIVATE, 0, 14, 28, 70.0 / 64},
        {LS_STRATEGY_ZERO1, LS_REPLICAS_SHARED, 0, 14.0 / 64, 28, 70.0 / 64},
        {LS_STRATEGY_ZERO2, LS_REPLICAS_PRIVATE, 2, 14, 14.0 / 64, 84.0 / 64}, /* 2P + 14P/N */
        {LS_STRATEGY_ZERO2, LS_REPLICAS_PRIVATE, 0, 14, 28.0 / 64, 70.0 / 64},
        {LS_STRATEGY_ZERO2, LS_REPLICAS_SHARED, 0, 14.0 / 64, 28.0 / 64, 70.0 / 64},
        {LS_STRATEGY_ZERO3, LS_REPLICAS_SHARED, 0, 14.0 / 64, 28.0 / 64, 70.0 / 64},
        {LS_STRATEGY_ZERO3, LS_REPLICAS_PRIVATE, 2, 14.0 / 64, 14.0 / 64, 84.0 / 64}, /* 16P/N */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const lsi_memory_input in = {.strategy = cases[i].strategy,
                                     .replicas = cases[i].replicas,
                                     .n_ranks = 64,
                                     .narrow_elems = 7 * BILLION,
                                     .has_lower_halves = true,
                                     .grad_bytes = cases[i].grad_bytes,
                                     .lower_bytes = cases[i].grad_bytes ? 4 : 0};
        lsi_mem_estimate found;
        lsi_memory_formula(&in, &found);
        const struct {
            lsi_mem_kind kind;
            double expected;
        } kinds[] = {{LSI_MEM_PARAMS, cases[i].params},
                     {LSI_MEM_GRADS, cases[i].grads},
                     {LSI_MEM_OPTIMIZER, cases[i].optimizer}};
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            lsi_mem_figure figure = found.kinds[kinds[k].kind];
            if (figure.rule != LSI_MEM_EQUALS ||
                (double)figure.bytes != kinds[k].expected * (double)BILLION)
                fail_msg("case %d: %lld bytes of %s, expected %.0f", (int)i,
                         (long long)figure.bytes, lsi_mem_kind_name(kinds[k].kind),
                         kinds[k].expected * (double)BILLION);
        }
    }
}

/* One change each to 1000 float32 and 600 bfloat16 elements on 4 ranks, shared. */
static void each_input_counts_for_its_kind(void **state) {
    (void)state;
    enum { P = 1000 * 4 + 600 * 2, G = 1600 * 4, MOMENTS = 1600 * 8, LOWER = 600 * 2 };
    const lsi_memory_input plain = {
        .n_ranks = 4, .wide_elems = 1000, .narrow_elems = 600, .has_lower_halves = true};
    lsi_memory_input in[17];
    for (size_t i = 0; i < COUNT_OF(in); i++) in[i] = plain;
    in[1].has_lower_halves = false;
    in[2].is_reproducible = true;
    in[2].n_micro_batches = 7; /* 3 bits: 2 partial sums at most, beside the newest */
    in[3].n_micro_batches = 8; /* added in place */
    in[4].frozen_bytes = 100;
    in[4].frozen_lower_bytes = 200;
    in[5].strategy = in[6].strategy = in[7].strategy = LS_STRATEGY_ZERO1;
    in[6].offload = LS_OFFLOAD_OPTIMIZER;
    in[7].shard_size = 2;
    for (int i = 8; i < 14; i++) {
        in[i].strategy = LS_STRATEGY_ZERO3;
        in[i].replicas = LS_REPLICAS_PRIVATE;
        in[i].n_open_buckets = 3;
        in[i].largest_bucket_bytes = 400;
        in[i].n_gathered = 2;
        in[i].largest_gathered_bytes = 300;
    }
    in[9].reshard_after_forward = 1;
    in[10].reshard_after_forward = 2;
    in[11].persistent_bytes = 50;
    in[12].offload = LS_OFFLOAD_PARAMS;
    in[13].is_reproducible = true;
    in[13].n_micro_batches = 4;
    for (int i = 14; i < 17; i++) {
        in[i].strategy = LS_STRATEGY_ZERO1 + i - 14;
        in[i].updates_in_backward = true;
        in[i].n_open_buckets = 3;
        in[i].largest_bucket_bytes = 400;
    }

    static const struct {
        int64_t params, grads, optimizer, buckets, gathered, peers, file;
    } expected[COUNT_OF(in)] = {
        {P, G, MOMENTS + LOWER, G * 3 / 4, 0, 0, 0},
        {P, G, MOMENTS, G * 3 / 4, 0, 0, 0},
        {P, G * 3, MOMENTS + LOWER, G * 3 / 4, 0, 0, 0},
        {P, G, MOMENTS + LOWER, G * 3 / 4, 0, 0, 0},
        {P + 100, G, MOMENTS + LOWER + 200, G * 3 / 4, 0, 0, 0},
        {P / 4, G, (MOMENTS + LOWER) / 4, G * 3 / 4, 0, P * 3 / 4, 0},
        {P / 4, G, 0, G * 3 / 4, 0, P * 3 / 4, (MOMENTS + LOWER) / 4},
        {P / 2, G, (MOMENTS + LOWER) / 2, G * 3 / 4, 0, P / 2, 0},
        {P / 4, G / 4, (MOMENTS + LOWER) / 4, 1200 + 900, 600, 0, 0},
        {P / 4, G / 4, (MOMENTS + LOWER) / 4, 1200 + 900, P, 0, 0},
        {P / 4, G / 4, (MOMENTS + LOWER) / 4, 1200 + 900, 600 + P / 2, 0, 0},
        {P / 4, G / 4, (MOMENTS + LOWER) / 4, 1200 + 900, 650, 0, 0},
        {0, G / 4, 0, 1200 + 900, 600, 0, (P + MOMENTS + LOWER) / 4},
        /* 16 micro-batches of all ranks: 4 partial sums */
        {P / 4, G / 4 * 5, (MOMENTS + LOWER) / 4, 1200 + 900, 600, 0, 0},
        /* sums are kept nowhere; zero1 has the gradients that they are made of */
        {P / 4, G, (MOMENTS + LOWER) / 4, G * 3 / 4, 0, P * 3 / 4, 0},
        {P / 4, 0, (MOMENTS + LOWER) / 4, 1200 + 900, 0, P * 3 / 4, 0},
        {P / 4, 0, (MOMENTS + LOWER) / 4, 1200 + 900, 0, P * 3 / 4, 0},
    };
    for (size_t i = 0; i < COUNT_OF(in); i++) {
        lsi_mem_estimate found;
        lsi_memory_formula(&in[i], &found);
        bool is_bound = found.kinds[LSI_MEM_BUCKETS].rule == LSI_MEM_AT_MOST;
        if (found.kinds[LSI_MEM_PARAMS].bytes != expected[i].params ||
            found.kinds[LSI_MEM_GRADS].bytes != expected[i].grads ||
            found.kinds[LSI_MEM_OPTIMIZER].bytes != expected[i].optimizer ||
            found.kinds[LSI_MEM_BUCKETS].bytes != expected[i].buckets ||
            found.kinds[LSI_MEM_GATHERED].bytes != expected[i].gathered ||
            found.peer_bytes != expected[i].peers || found.file_bytes != expected[i].file)
            fail_msg("case %d: params %lld, grads %lld, optimizer %lld, buckets %lld, gathered "
                     "%lld, of peers %lld, in a file %lld",
                     (int)i, (long long)found.kinds[LSI_MEM_PARAMS].bytes,
                     (long long)found.kinds[LSI_MEM_GRADS].bytes,
                     (long long)found.kinds[LSI_MEM_OPTIMIZER].bytes,
                     (long long)found.kinds[LSI_MEM_BUCKETS].bytes,
                     (long long)found.kinds[LSI_MEM_GATHERED].bytes, (long long)found.peer_bytes,
                     (long long)found.file_bytes);
        assert_int_equal(is_bound, i >= 8 && i != 14);
        assert_int_equal(found.kinds[LSI_MEM_ACTIVATIONS].rule, LSI_MEM_NO_RULE);
        assert_int_equal(found.kinds[LSI_MEM_OTHER].rule, LSI_MEM_NO_RULE);
    }
}

/* ---- against what is there ---- */

/* 0.7 million elements, in parameters that fill several buckets and in some that fill no line. */
static const int64_t counts[] = {200000, 1, 130000, 768, 0, 150000, 17, 200001};

typedef struct setting {
    int strategy, replicas;
    bool updates_in_backward;
    bool is_narrow, is_reproducible;
    int64_t n_micro_batches;
    int64_t bytes[LSI_MEM_N_KINDS]; /* found, of all ranks */
    int64_t largest_bucket_bytes;
} setting;

/* Two units, of four parameters each. */
enum { N_UNITS = 2, N_OF_UNIT = 4 };
static const ls_unit_use uses[] = {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 4}, {1, 5}, {1, 6}, {1, 7}};

static ls_status forward(ls_ddp *ddp) {
    for (int unit = 0; unit < N_UNITS; unit++) {
        LSI_TRY(ls_ddp_before_forward(ddp, unit));
        LSI_TRY(ls_ddp_after_forward(ddp, unit));
    }
    return LS_OK;
}

/* One after the other, so that one bucket is being filled at a time. */
static ls_status backward(const toy *model, ls_ddp *ddp) {
    for (int unit = N_UNITS - 1; unit >= 0; unit--) {
        LSI_TRY(ls_ddp_before_backward(ddp, unit));
        for (int i = (unit + 1) * N_OF_UNIT - 1; i >= unit * N_OF_UNIT; i--) {
            LSI_TRY(ls_ddp_grad_needed(ddp, i));
            toy_write_gradient(model, i, 0, 0, ls_ddp_accumulates(ddp));
            LSI_TRY(ls_ddp_grad_ready(ddp, i));
        }
        LSI_TRY(ls_ddp_after_backward(ddp, unit));
    }
    return ls_ddp_end_backward(ddp);
}

static ls_status step(ls_ddp *ddp, const toy *model, const setting *s) {
    const ls_adamw_opts opts = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .grad_scale = 1};
    LSI_TRY(ls_ddp_begin_step(ddp, s->n_micro_batches, 0));
    if (s->updates_in_backward) LSI_TRY(ls_ddp_plan_update(ddp, &opts));
    for (int64_t m = 0; m < s->n_micro_batches; m++) {
        LSI_TRY(ls_ddp_begin_backward(ddp));
        LSI_TRY(forward(ddp));
        LSI_TRY(backward(model, ddp));
    }
    LSI_TRY(ls_ddp_finish_step(ddp));
    return s->updates_in_backward ? LS_OK : ls_ddp_update(ddp, &opts);
}

/* What all ranks account for, while they all wait. */
static ls_status look(ls_group *group, setting *s, ls_ddp *ddp) {
    LSI_TRY(ls_barrier(group, NULL));
    if (ls_group_rank(group) == 0) {
        for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
            s->bytes[kind] += lsi_mem_now((lsi_mem_kind)kind);
        for (int b = 0; b < ls_ddp_n_buckets(ddp); b++) {
            ls_bucket_info info;
            LSI_TRY(ls_ddp_get_bucket(ddp, b, &info));
            if (info.bytes > s->largest_bucket_bytes) s->largest_bucket_bytes = info.bytes;
        }
    }
    return ls_barrier(group, NULL);
}

static ls_status measure(ls_group *group, void *context) {
    setting *s = context;
    toy model;
    ls_ddp *ddp = NULL;
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.bucket_cap_mb = 0.5;
    opts.reproducible = s->is_reproducible;
    opts.strategy = s->strategy;
    opts.replicas = s->replicas;
    opts.update_in_backward = s->updates_in_backward;
    if (s->strategy == LS_STRATEGY_ZERO3 && s->replicas == LS_REPLICAS_PRIVATE) {
        opts.uses = uses;
        opts.n_uses = COUNT_OF(uses);
    }
    toy_init(&model, counts, COUNT_OF(counts), ls_group_rank(group));
    for (int i = 0; i < model.n_params && s->is_narrow; i++)
        model.params[i].dtype = LS_DTYPE_BF16; /* whatever the numbers are then */
    ls_status status = ls_ddp_create(group, model.params, model.n_params, &opts, &ddp);
    if (status == LS_OK) status = step(ddp, &model, s);
    if (status == LS_OK) status = look(group, s, ddp);
    ls_ddp_destroy(ddp);
    toy_fini(&model);
    return status;
}

static int64_t n_elems(void) {
    int64_t n = 0;
    for (size_t i = 0; i < COUNT_OF(counts); i++) n += counts[i];
    return n;
}

static void check(const setting *s, int n_ranks) {
    /* A bucket that is filled, and two on their way. */
    const lsi_memory_input in = {.strategy = s->strategy,
                                 .replicas = s->replicas,
                                 .n_ranks = n_ranks,
                                 .wide_elems = s->is_narrow ? 0 : n_elems(),
                                 .narrow_elems = s->is_narrow ? n_elems() : 0,
                                 .has_lower_halves = true,
                                 .updates_in_backward = s->updates_in_backward,
                                 .is_reproducible = s->is_reproducible,
                                 .n_micro_batches = s->n_micro_batches,
                                 .n_open_buckets = 3,
                                 .largest_bucket_bytes = s->largest_bucket_bytes,
                                 .n_gathered = N_UNITS,
                                 .largest_gathered_bytes =
                                     s->largest_bucket_bytes / (s->is_narrow ? 2 : 1)};
    lsi_mem_estimate expected;
    lsi_memory_formula(&in, &expected);
    /* Parameters of ddp are the caller's. */
    if (s->strategy == LS_STRATEGY_DDP) expected.kinds[LSI_MEM_PARAMS] = (lsi_mem_figure){0};
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) {
        const char *name = lsi_mem_kind_name((lsi_mem_kind)kind);
        double all = (double)expected.kinds[kind].bytes * n_ranks, found = (double)s->bytes[kind];
        lsi_mem_rule rule = expected.kinds[kind].rule;
        bool is_right = rule == LSI_MEM_NO_RULE ||
                        (rule == LSI_MEM_EQUALS && fabs(found - all) <= 0.02 * all) ||
                        (rule == LSI_MEM_AT_MOST && found > 0 && found <= all);
        if (!is_right)
            fail_msg("strategy %d, replicas %d, %s, %d ranks, %d micro-batches%s%s: %.0f bytes of "
                     "%s, expected %s%.0f",
                     s->strategy, s->replicas, s->is_narrow ? "bfloat16" : "float32", n_ranks,
                     (int)s->n_micro_batches, s->is_reproducible ? ", reproducible" : "",
                     s->updates_in_backward ? ", update in backward" : "", found, name,
                     rule == LSI_MEM_AT_MOST ? "at most " : "", all);
    }
}

static void ddps_take_what_the_formula_says(void **state) {
    (void)state;
    static const setting settings[] = {
        {.strategy = LS_STRATEGY_DDP},
        {.strategy = LS_STRATEGY_ZERO1, .replicas = LS_REPLICAS_SHARED},
        {.strategy = LS_STRATEGY_ZERO1, .replicas = LS_REPLICAS_PRIVATE},
        {.strategy = LS_STRATEGY_ZERO2, .replicas = LS_REPLICAS_SHARED},
        {.strategy = LS_STRATEGY_ZERO2, .replicas = LS_REPLICAS_PRIVATE},
        {.strategy = LS_STRATEGY_ZERO3, .replicas = LS_REPLICAS_SHARED},
        {.strategy = LS_STRATEGY_ZERO3, .replicas = LS_REPLICAS_PRIVATE},
        {.strategy = LS_STRATEGY_ZERO1, .updates_in_backward = true},
        {.strategy = LS_STRATEGY_ZERO2, .updates_in_backward = true},
        {.strategy = LS_STRATEGY_ZERO3, .updates_in_backward = true},
    };
    static const struct {
        bool is_narrow, is_reproducible;
        int64_t n_micro_batches;
    } ways[] = {{false, false, 1}, {true, false, 2}, {false, true, 4}};
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        for (size_t k = 0; k < COUNT_OF(ways); k++)
            for (int n_ranks = 1; n_ranks <= 4; n_ranks++) {
                setting s = settings[i];
                s.is_narrow = ways[k].is_narrow;
                s.is_reproducible = ways[k].is_reproducible;
                s.n_micro_batches = ways[k].n_micro_batches;
                /* refused: no order for sums of shards */
                if (s.strategy >= LS_STRATEGY_ZERO2 && s.is_reproducible && n_ranks == 3) continue;
                /* refused: sums of several micro-batches */
                if (s.strategy >= LS_STRATEGY_ZERO2 && s.updates_in_backward) s.n_micro_batches = 1;
                int64_t before[LSI_MEM_N_KINDS];
                for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
                    before[kind] = lsi_mem_now((lsi_mem_kind)kind);
                for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) s.bytes[kind] = -before[kind];
                assert_ok(run_ranks(RANKS_AS_THREADS, n_ranks, measure, &s));
                check(&s, n_ranks);
                for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
                    assert_int_equal(lsi_mem_now((lsi_mem_kind)kind), before[kind]);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_seven_billion_parameters_are_those_of_the_texts),
        cmocka_unit_test(each_input_counts_for_its_kind),
        cmocka_unit_test(ddps_take_what_the_formula_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
