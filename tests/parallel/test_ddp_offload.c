/* Optimizer states in a file against DDP with all of them in memory, bit for bit, for every sharded
 * strategy, type of parameter and source of the first values, with slices of all sizes; values that
 * a function gives; and what goes wrong with the file. */
#include "harness/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <lockstep/optim.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "harness/cases.h"
#include "harness/ranks.h"
#include "harness/refuse.h"
#include "parallel/ddp_impl.h"
#include "toy.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { N_STEPS = 4, MAX_PARAMS = 12, MAX_ELEMS = 30000 };
static const double MIB = 1024.0 * 1024.0;

/* ---- a model ---- */

typedef enum types { WIDE, NARROW, MIXED } types; /* F32, BF16, in turn */
/* Where values come from. Halves and what the function gives are the same float32 values. */
typedef enum source { FROM_VALUES, FROM_HALVES, FROM_FUNCTION } source;

typedef struct model {
    int n_params;
    ls_param params[MAX_PARAMS];
    char names[MAX_PARAMS][8];
    uint16_t *lower_halves[MAX_PARAMS];
    int64_t n_elems;
    float wide[MAX_ELEMS]; /* of all parameters, one behind the other */
    uint16_t upper[MAX_ELEMS], lower[MAX_ELEMS];
} model;

/* A count below 0 is a frozen parameter of -count - 1 elements, F32. Values are those of `rank`. */
static void model_init(model *m, const int64_t *counts, int n_params, types how, int rank) {
    *m = (model){.n_params = n_params};
    for (int i = 0; i < n_params; i++) {
        bool is_frozen = counts[i] < 0;
        bool is_narrow = !is_frozen && (how == NARROW || (how == MIXED && i % 2 == 0));
        int64_t count = is_frozen ? -counts[i] - 1 : counts[i], at = m->n_elems;
        snprintf(m->names[i], sizeof m->names[i], "p%d", i);
        m->lower_halves[i] = m->lower + at;
        for (int64_t e = at; e < at + count; e++) m->wide[e] = rough_value(rank, i, e - at);
        ls_bf16_split(m->wide + at, count, m->upper + at, m->lower + at);
        m->params[i] = (ls_param){.name = m->names[i],
                                  .count = count,
                                  .dtype = is_narrow ? LS_DTYPE_BF16 : LS_DTYPE_F32,
                                  .flags = is_frozen ? LS_PARAM_FROZEN : 0,
                                  .data = is_narrow ? (void *)(m->upper + at) : m->wide + at};
        m->n_elems += count;
    }
    m->params[0].flags |= LS_PARAM_NO_DECAY;
}

/* The values of rank 0, in whatever pieces. */
static ls_status give_values(void *context, int param, int64_t begin, int64_t count,
                             float *values) {
    (void)context;
    for (int64_t e = 0; e < count; e++) values[e] = rough_value(0, param, begin + e);
    return LS_OK;
}

/* ---- a run ---- */

typedef struct setting {
    const char *folder; /* NULL: states are in memory */
    int64_t slice;
    int strategy, replicas, shard_size;
    types types;
    source source;
    bool unused; /* no rank uses parameter 4 in odd steps */
} setting;

static const int64_t counts[] = {17, 0, -8, 1, 1000, 7, -1, 16, 5003};

static ls_status backward(const setting *s, const model *m, ls_ddp *ddp, int64_t step, int rank) {
    LSI_TRY(ls_ddp_begin_backward(ddp));
    LSI_TRY(ls_ddp_before_backward(ddp, 0));
    for (int i = m->n_params - 1; i >= 0; i--) {
        if (m->params[i].flags & LS_PARAM_FROZEN) continue;
        if (s->unused && i == 4 && step % 2 != 0) continue;
        LSI_TRY(ls_ddp_grad_needed(ddp, i));
        float *grad = m->params[i].grad;
        for (int64_t e = 0; e < m->params[i].count; e++)
            grad[e] = rough_value(step * 64 + rank, i, e);
        LSI_TRY(ls_ddp_grad_ready(ddp, i));
    }
    LSI_TRY(ls_ddp_after_backward(ddp, 0));
    return ls_ddp_end_backward(ddp);
}

static ls_status one_step(const setting *s, const model *m, ls_ddp *ddp, int64_t step, int rank) {
    ls_adamw_opts opts = toy_adamw;
    double norm;
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_before_forward(ddp, 0));
    LSI_TRY(ls_ddp_after_forward(ddp, 0));
    LSI_TRY(backward(s, m, ddp, step, rank));
    LSI_TRY(ls_ddp_finish_step(ddp));
    LSI_TRY(ls_ddp_grad_norm(ddp, &norm));
    opts.grad_scale = ls_clip_factor(norm, 0.5);
    return ls_ddp_update(ddp, &opts);
}

static ls_status open_model(ls_group *group, const setting *s, model *m, ls_ddp **ddp) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.bucket_cap_mb = opts.first_bucket_mb = 8192 / MIB;
    opts.find_unused_parameters = s->unused;
    opts.strategy = s->strategy;
    opts.replicas = s->replicas;
    opts.shard_size = s->shard_size;
    if (s->folder) opts.offload = LS_OFFLOAD_OPTIMIZER;
    opts.offload_dir = s->folder;
    model_init(m, counts, COUNT_OF(counts), s->types, ls_group_rank(group));
    if (s->source != FROM_VALUES) opts.lower_halves = m->lower_halves; /* a function comes first */
    if (s->source == FROM_FUNCTION) opts.fill = give_values;
    for (int i = 0; i < m->n_params && opts.fill; i++)
        if (!(m->params[i].flags & LS_PARAM_FROZEN)) m->params[i].data = NULL;
    LSI_TRY(ls_ddp_create(group, m->params, m->n_params, &opts, ddp));
    RANK_CHECK(!opts.fill || m->lower[0] == lsi_lower_half(rough_value(ls_group_rank(group), 0, 0)),
               "lower halves are sent that nobody needs");
    return LS_OK;
}

/* What a run ends with: float32 values, and what is computed with. */
typedef struct result {
    float values[MAX_ELEMS];
    unsigned char computed[MAX_ELEMS * sizeof(float)];
} result;

static ls_status look(const model *m, ls_ddp *ddp, result *r) {
    int64_t at = 0;
    LSI_TRY(ls_ddp_before_forward(ddp, 0));
    for (int i = 0; i < m->n_params; i++) {
        const ls_param *p = &m->params[i];
        if (p->count > 0)
            memcpy(r->computed + at * (int64_t)sizeof(float), p->data,
                   (size_t)p->count * ls_dtype_bytes(p->dtype));
        at += p->count;
    }
    LSI_TRY(ls_ddp_after_forward(ddp, 0));
    at = 0;
    for (int i = 0; i < m->n_params; i++) {
        LSI_TRY(ls_ddp_get_values(ddp, i, r->values + at));
        at += m->params[i].count;
    }
    return LS_OK;
}

static ls_status run(ls_group *group, const setting *s, result *r) {
    static _Thread_local model m;
    ls_ddp *ddp = NULL;
    *r = (result){.values = {0}};
    LSI_TRY(open_model(group, s, &m, &ddp));
    for (int64_t step = 0; step < N_STEPS; step++)
        LSI_TRY(one_step(s, &m, ddp, step, ls_group_rank(group)));
    LSI_TRY(look(&m, ddp, r));
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static ls_status is_same(const setting *s, const result *found, const result *expected) {
    const char *const type_names[] = {"F32", "BF16", "F32 and BF16"};
    const char *const source_names[] = {"values", "halves", "a function"};
    for (int64_t i = 0; i < MAX_ELEMS; i++)
        RANK_CHECK(memcmp(&found->values[i], &expected->values[i], sizeof(float)) == 0,
                   "strategy %d, replicas %d, %s, from %s, slices of %lld: element %lld is %.9g, "
                   "expected %.9g",
                   s->strategy, s->replicas, type_names[s->types], source_names[s->source],
                   (long long)s->slice, (long long)i, (double)found->values[i],
                   (double)expected->values[i]);
    RANK_CHECK(memcmp(found->computed, expected->computed, sizeof found->computed) == 0,
               "strategy %d, replicas %d, %s, from %s, slices of %lld: values to compute with",
               s->strategy, s->replicas, type_names[s->types], source_names[s->source],
               (long long)s->slice);
    return LS_OK;
}

/* ---- the same bits ---- */

static const struct {
    int strategy, replicas;
} kinds[] = {{LS_STRATEGY_ZERO1, LS_REPLICAS_SHARED}, {LS_STRATEGY_ZERO1, LS_REPLICAS_PRIVATE},
             {LS_STRATEGY_ZERO2, LS_REPLICAS_SHARED}, {LS_STRATEGY_ZERO2, LS_REPLICAS_PRIVATE},
             {LS_STRATEGY_ZERO3, LS_REPLICAS_SHARED}, {LS_STRATEGY_ZERO3, LS_REPLICAS_PRIVATE}};

/* What a function gives has the same halves, which is what DDP takes. */
static ls_status equals_ddp(ls_group *group, const setting *s) {
    static _Thread_local result expected, found;
    setting ddp = {.strategy = LS_STRATEGY_DDP, .types = s->types, .unused = s->unused};
    ddp.source = s->source == FROM_VALUES ? FROM_VALUES : FROM_HALVES;
    LSI_TRY(run(group, &ddp, &expected));
    LSI_TRY(run(group, s, &found));
    return is_same(s, &found, &expected);
}

static ls_status every_kind(ls_group *group, void *context) {
    int row = 0;
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (int t = WIDE; t <= MIXED; t++)
            for (int from = FROM_VALUES; from <= FROM_FUNCTION; from++, row++) {
                setting s = *(const setting *)context;
                s.strategy = kinds[k].strategy;
                s.replicas = kinds[k].replicas;
                s.types = t;
                s.source = from;
                s.unused = row % 2;
                LSI_TRY(equals_ddp(group, &s));
            }
    return LS_OK;
}

static const int n_ranks[] = {1, 2, 3, 5};

/* Small ones on a file system in memory, where they cost no time. */
static const char *quick_folder(void **state) {
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : *state;
}

static void bits_are_those_of_ddp(void **state) {
    static const int64_t slices[] = {1 << 20, 1000, 37};
    for (size_t i = SANITIZED; i < COUNT_OF(slices); i++)
        for (size_t n = 0; n < COUNT_OF(n_ranks); n++) {
            setting s = {.folder = i > 0 ? quick_folder(state) : *state, .slice = slices[i]};
            lsi_ddp_set_slice(s.slice);
            assert_ok(run_ranks(RANKS_AS_THREADS, n_ranks[n], every_kind, &s));
        }
    lsi_ddp_set_slice(0);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void groups_of_shards_have_files_too(void **state) {
    for (int size = 1; size <= 4; size *= 2) {
        setting s = {.folder = quick_folder(state), .slice = 300, .shard_size = size};
        lsi_ddp_set_slice(s.slice);
        assert_ok(run_ranks(RANKS_AS_THREADS, 4, every_kind, &s));
    }
    lsi_ddp_set_slice(0);
}

/* Slices of one element: every piece is cut everywhere. */
static ls_status single_elements(ls_group *group, void *context) {
    setting s = {.folder = context,
                 .slice = 1,
                 .strategy = LS_STRATEGY_ZERO2,
                 .types = MIXED,
                 .source = FROM_HALVES};
    return equals_ddp(group, &s);
}

static void cuts_do_not_show(void **state) {
    lsi_ddp_set_slice(1);
    ls_status status =
        run_ranks(RANKS_AS_PROCESSES, 2, single_elements, (void *)(uintptr_t)quick_folder(state));
    lsi_ddp_set_slice(0);
    assert_ok(status);
}

/* Without offload. */
static void memory_does_the_same(void **state) {
    (void)state;
    setting s = {.folder = NULL};
    for (size_t n = 0; n < COUNT_OF(n_ranks); n++)
        assert_ok(run_ranks(RANKS_AS_THREADS, n_ranks[n], every_kind, &s));
}

/* ---- memory ---- */

static ls_status states_take_no_memory(ls_group *group, void *context) {
    static model m;
    ls_ddp *ddp = NULL;
    setting s = {.folder = context, .strategy = LS_STRATEGY_ZERO1, .types = NARROW};
    LSI_TRY(open_model(group, &s, &m, &ddp));
    lsi_mem_reset_peaks();
    for (int64_t step = 0; step < 2; step++)
        LSI_TRY(one_step(&s, &m, ddp, step, ls_group_rank(group)));
    int64_t bytes = ls_ddp_state_bytes(ddp), n_owned = ddp->states.plan.n_states;
    RANK_CHECK(bytes == 10 * n_owned && lsi_mem_file_bytes() == bytes, "%lld bytes, in files %lld",
               (long long)bytes, (long long)lsi_mem_file_bytes());
    RANK_CHECK(lsi_mem_peak(LSI_MEM_OPTIMIZER) == 0, "%lld bytes of states in memory",
               (long long)lsi_mem_peak(LSI_MEM_OPTIMIZER));
    RANK_CHECK(lsi_mem_peak(LSI_MEM_STAGING) == 2 * 10 * 500, "%lld bytes of slices, expected two",
               (long long)lsi_mem_peak(LSI_MEM_STAGING));
    RANK_CHECK(lsi_mem_now(LSI_MEM_STAGING) == 0, "slices are left in memory");
    ls_ddp_destroy(ddp);
    RANK_CHECK(lsi_mem_file_bytes() == 0, "the file is left");
    return LS_OK;
}

static void memory_holds_two_slices(void **state) {
    lsi_ddp_set_slice(500);
    ls_status status = run_ranks(RANKS_AS_PROCESSES, 2, states_take_no_memory, *state);
    lsi_ddp_set_slice(0);
    assert_ok(status);
}

/* ---- what goes wrong ---- */

static ls_status fails_to_open(ls_group *group, const char *folder, ls_status expected,
                               const char *text) {
    static _Thread_local model m;
    ls_ddp *ddp = NULL;
    setting s = {.folder = folder, .strategy = LS_STRATEGY_ZERO2, .types = MIXED};
    ls_status status = open_model(group, &s, &m, &ddp);
    RANK_CHECK(status == expected && !ddp &&
                   strstr(ls_last_message(), "ddp: offload of optimizer states: ") &&
                   strstr(ls_last_message(), folder) && strstr(ls_last_message(), text),
               "status %d: %s", (int)status, ls_last_message());
    return LS_OK;
}

static ls_status without_folder(ls_group *group, void *context) {
    return fails_to_open(group, context, LS_ERR_NOT_FOUND, "cannot make a file in this folder");
}

static ls_status with_size_limit(ls_group *group, void *context) {
    struct rlimit limit = {20000, 20000};
    signal(SIGXFSZ, SIG_DFL);
    RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
    return fails_to_open(group, context, LS_ERR_IO, "RLIMIT_FSIZE");
}

static ls_status on_a_full_disk(ls_group *group, void *context) {
    return fails_to_open(group, context, LS_ERR_IO, "free some space or choose another folder");
}

enum { CANNOT = 77 };

static int fill_file_system(void *context) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", context, "tmpfs", 0, "size=16k") != 0)
        return CANNOT;
    ls_status status = run_ranks(RANKS_AS_THREADS, 2, on_a_full_disk, context);
    if (status != LS_OK) print_message("%s\n", ls_last_message());
    return (int)status;
}

static void missing_folder_is_named(void **state) {
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, without_folder,
                        (void *)(uintptr_t)in_scratch(state, "none")));
}

static void size_limit_is_an_error(void **state) {
    assert_ok(run_ranks(RANKS_AS_PROCESSES, 2, with_size_limit, *state));
}

static void full_disk_is_an_error(void **state) {
    const char *folder = in_scratch(state, "full");
    assert_int_equal(mkdir(folder, 0777), 0);
    int how = run_in_child(fill_file_system, (void *)(uintptr_t)folder);
    if (how == CANNOT) skip(); /* needs root */
    assert_int_equal(how, 0);
}

/* An update that is lost in part: the ddp says so from then on. */
static ls_status loses_writes(ls_group *group, void *context) {
    static model m;
    ls_ddp *ddp = NULL;
    setting s = {.folder = context, .strategy = LS_STRATEGY_ZERO1, .types = NARROW};
    LSI_TRY(open_model(group, &s, &m, &ddp));
    LSI_TRY(one_step(&s, &m, ddp, 0, 0));
    if (!refuse_call(SYS_sync_file_range, 3, SYNC_FILE_RANGE_WAIT_AFTER, EIO)) return LS_OK;
    ls_status status = one_step(&s, &m, ddp, 1, 0);
    RANK_CHECK(status == LS_ERR_IO && strstr(ls_last_message(), "Input/output error") &&
                   strstr(ls_last_message(), "ddp: offloaded optimizer states"),
               "status %d: %s", (int)status, ls_last_message());
    status = ls_ddp_begin_step(ddp, 1, 0);
    RANK_CHECK(status == LS_ERR_STATE, "status %d: %s", (int)status, ls_last_message());
    ls_ddp_destroy(ddp);
    return LS_OK;
}

static void lost_writes_are_errors(void **state) {
    lsi_ddp_set_slice(500);
    ls_status status = run_ranks(RANKS_AS_PROCESSES, 1, loses_writes, *state);
    lsi_ddp_set_slice(0);
    assert_ok(status);
}

/* A function that fails, at each of its calls in turn. */
typedef struct failing {
    _Atomic int n_calls, fails_at;
} failing;

static ls_status fail_once(void *context, int param, int64_t begin, int64_t count, float *values) {
    failing *f = context;
    if (++f->n_calls == f->fails_at) return lsi_fail(LS_ERR_FORMAT, "no values today");
    return give_values(NULL, param, begin, count, values);
}

static ls_status function_fails(ls_group *group, void *context) {
    static model m;
    failing f = {0};
    int n_failed = 0;
    for (f.fails_at = 1;; f.fails_at++) {
        ls_ddp *ddp = NULL;
        ls_ddp_opts opts = LS_DDP_OPTS_INIT;
        opts.strategy = LS_STRATEGY_ZERO1;
        opts.offload = LS_OFFLOAD_OPTIMIZER;
        opts.offload_dir = context;
        opts.fill = fail_once;
        opts.fill_context = &f;
        f.n_calls = 0;
        model_init(&m, counts, COUNT_OF(counts), NARROW, 0);
        ls_status status = ls_ddp_create(group, m.params, m.n_params, &opts, &ddp);
        ls_ddp_destroy(ddp);
        if (f.n_calls < f.fails_at) break;
        n_failed++;
        RANK_CHECK(status == LS_ERR_FORMAT && strstr(ls_last_message(), "no values today"),
                   "call %d: status %d: %s", f.fails_at, (int)status, ls_last_message());
        RANK_CHECK(lsi_mem_file_bytes() == 0, "the file is left");
    }
    RANK_CHECK(n_failed > 6, "%d calls", n_failed);
    return LS_OK;
}

static void failing_function_is_an_error(void **state) {
    lsi_ddp_set_slice(500);
    ls_status status = run_ranks(RANKS_AS_PROCESSES, 1, function_fails, *state);
    lsi_ddp_set_slice(0);
    assert_ok(status);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_ddp),
        cmocka_unit_test(groups_of_shards_have_files_too),
        cmocka_unit_test(cuts_do_not_show),
        cmocka_unit_test(memory_does_the_same),
        cmocka_unit_test(memory_holds_two_slices),
        cmocka_unit_test(missing_folder_is_named),
        cmocka_unit_test(size_limit_is_an_error),
        cmocka_unit_test(full_disk_is_an_error),
        cmocka_unit_test(lost_writes_are_errors),
        cmocka_unit_test(failing_function_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
