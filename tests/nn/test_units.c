/* Units and the parameters they use: lists against passes in which parameters come and go, and
 * rules that join units.
 *
 * In such a pass a parameter has data only from the beginning of a unit that uses it, as the list
 * says, to that unit's end, and in backward only of units that read it there: a copy at an address
 * of its own each time, which is full of NaN afterwards. Gradients get memory when they are asked
 * for. Losses, gradients, statistics and logits must have the bits of a pass in which everything
 * stays where it is; so a list that lacks a pair, and an op that keeps a parameter's address, or
 * looks at one outside of its unit, are found. Lists with pairs too many are found by leaving out
 * one pair after the other, and so are those that have a parameter read in backward which need not
 * be. */
#include "harness/harness.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "harness/ranks.h"
#include "nn/models/gpt2.h"
#include "nn/models/images.h"
#include "nn/models/llama.h"
#include "nn/units.h"
#include "tensor/op.h"
#include "tensor/rows.h"

enum { B = 3, T = 6, V = 13, H = 6, W = 5, CLASSES = 4, MAX_PLACES = 2560, N_PASSES = 2 };

typedef struct variant {
    const lsi_model_class *class;
    lsi_model_config config;
    ls_dtype dtype;
    int64_t n_checkpointed;
    const char *frozen;      /* beginning of names; NULL: none */
    const char *rule;        /* NULL: block */
    int64_t n_batch, n_time; /* 0: B, T */
} variant;

#define GPT2(layers)                                                                               \
    {                                                                                              \
        .n_layer = layers, .n_head = 2, .n_embd = 8, .seq_len = T, .vocab_size = V,                \
        .norm_epsilon = 1e-5                                                                       \
    }
#define LLAMA(layers, is_untied)                                                                   \
    {                                                                                              \
        .n_layer = layers, .n_head = 2, .n_embd = 8, .seq_len = T, .vocab_size = V,                \
        .norm_epsilon = 1e-5, .n_kv_head = 1, .n_inner = 12, .rope_theta = 1e4,                    \
        .untied = is_untied                                                                        \
    }
#define IMAGES(layers)                                                                             \
    {                                                                                              \
        .n_layer = layers, .n_embd = 4, .norm_epsilon = 1e-5, .height = H, .width = W,             \
        .n_channels = 2, .n_classes = CLASSES                                                      \
    }

static const variant models[] = {
    {&lsi_model_gpt2, GPT2(1)},          {&lsi_model_gpt2, GPT2(3)},
    {&lsi_model_llama, LLAMA(1, false)}, {&lsi_model_llama, LLAMA(3, false)},
    {&lsi_model_llama, LLAMA(1, true)},  {&lsi_model_llama, LLAMA(3, true)},
    {&lsi_model_mlp, IMAGES(1)},         {&lsi_model_mlp, IMAGES(3)},
    {&lsi_model_convnet, IMAGES(1)},     {&lsi_model_convnet, IMAGES(3)},
};
enum { N_MODELS = sizeof models / sizeof models[0] };

static const char *describe(const variant *v) {
    static char text[256];
    snprintf(text, sizeof text, "%s, %d layers%s, %s, dropout %g, checkpoints %lld, frozen %s, %s",
             v->class->name, (int)v->config.n_layer, v->config.untied ? ", untied" : "",
             ls_dtype_name(v->dtype), v->config.dropout, (long long)v->n_checkpointed,
             v->frozen ? v->frozen : "none", v->rule ? v->rule : "block");
    return text;
}

/* ---- a model with its list ---- */

typedef struct host {
    lsi_model *model;
    lsi_unit_use *uses;
    int n_uses, n_units;
    lsi_arena *arena;
    lsi_tape *tape;
    float *stats;
} host;

static host open_host(const variant *v) {
    host h = {.n_units = v->class->n_units(&v->config)};
    assert_ok(lsi_model_create(v->class, &v->config, &h.model));
    lsi_model_init(h.model, 1);
    if (v->dtype == LS_DTYPE_BF16) assert_ok(lsi_model_narrow(h.model));
    for (int i = 0; v->frozen && i < h.model->n_params; i++)
        if (strncmp(h.model->params[i].name, v->frozen, strlen(v->frozen)) == 0)
            h.model->params[i].flags |= LS_PARAM_FROZEN;
    assert_ok(lsi_units_of(h.model, &h.uses, &h.n_uses));
    if (v->rule) assert_ok(lsi_units_merge(h.model, v->rule, &h.uses, &h.n_uses));
    assert_ok(lsi_arena_create(1 << 28, &h.arena));
    assert_ok(lsi_tape_create(h.arena, &h.tape));
    lsi_tape_set_dtype(h.tape, v->dtype == LS_DTYPE_BF16 ? LS_DTYPE_BF16 : LS_DTYPE_F32);
    lsi_tape_checkpoint(h.tape, v->n_checkpointed);
    h.stats = calloc((size_t)h.model->n_stats + 1, sizeof *h.stats);
    return h;
}

static void close_host(host *h) {
    lsi_tape_destroy(h->tape);
    assert_int_equal(lsi_arena_used_bytes(h->arena), 0);
    lsi_arena_destroy(h->arena);
    lsi_model_destroy(h->model);
    lsi_free(h->uses);
    free(h->stats);
}

static bool is_used_by(const host *h, int unit, int param) {
    for (int i = 0; i < h->n_uses; i++)
        if (h->uses[i].unit == unit && h->uses[i].param == param) return true;
    return false;
}

static bool is_read_again_by(const host *h, int unit, int param) {
    for (int i = 0; i < h->n_uses; i++)
        if (h->uses[i].unit == unit && h->uses[i].param == param) return !h->uses[i].forward_only;
    return false;
}

static int first_unit_of(const host *h, int param) {
    int unit = 0;
    while (unit < h->n_units && !is_used_by(h, unit, param)) unit++;
    return unit;
}

static bool is_trained(const ls_param *param) {
    return !(param->flags & LS_PARAM_FROZEN);
}

/* ---- parameters that come and go ---- */

typedef enum movement {
    STAY,      /* all data is there all the time */
    GO_TO_NAN, /* in backward, data that is not there is NaN: who looks at it gives itself away */
    GO,        /* it is NULL, as strategies have it */
} movement;

typedef struct mover {
    host *h;
    movement way;
    int left_out;  /* a pair that does not come; -1: none */
    int forgotten; /* a pair that does not come in backward; -1: none */
    void **values; /* of each parameter: the copy that stays */
    void *nan;     /* as long as any parameter */
    void **used;   /* copies that came and went; kept, so that the next one lies elsewhere */
    int n_used;
    int unit; /* at hand; -1: none */
    bool is_backward;
    int *n_needed, *n_ready; /* of each parameter, events of this pass */
    int n_needed_in_forward;
} mover;

static size_t bytes_of(const ls_param *param) {
    return (size_t)param->count * ls_dtype_bytes(param->dtype);
}

static void *new_memory(size_t bytes) {
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void leave(mover *m, int param) {
    bool is_nan = m->is_backward && m->way == GO_TO_NAN;
    m->h->model->params[param].data = is_nan ? m->nan : NULL;
}

static bool comes(const mover *m, int pair) {
    bool is_read = !m->is_backward || (!m->h->uses[pair].forward_only && pair != m->forgotten);
    return m->way != STAY && pair != m->left_out && is_read;
}

static void leave_all(mover *m) {
    for (int i = 0; m->way != STAY && i < m->h->n_uses; i++) leave(m, m->h->uses[i].param);
}

static ls_status bring(mover *m, int unit) {
    const host *h = m->h;
    RANK_CHECK(m->unit == -1, "unit %d begins inside of unit %d", unit, m->unit);
    m->unit = unit;
    for (int i = 0; i < h->n_uses; i++) {
        ls_param *param = &h->model->params[h->uses[i].param];
        if (h->uses[i].unit != unit || !comes(m, i)) continue;
        param->data = m->used[m->n_used++] = new_memory(bytes_of(param));
        memcpy(param->data, m->values[h->uses[i].param], bytes_of(param));
    }
    return LS_OK;
}

/* Gradients that no unit before will add to are complete. */
static ls_status check_complete(const mover *m, int param) {
    const host *h = m->h;
    if (!m->is_backward || !is_trained(&h->model->params[param])) return LS_OK;
    int expected = first_unit_of(h, param) == m->unit;
    RANK_CHECK(m->n_ready[param] >= expected, "%s after unit %d", h->model->params[param].name,
               m->unit);
    return LS_OK;
}

static ls_status take(mover *m, int unit) {
    const host *h = m->h;
    RANK_CHECK(m->unit == unit, "unit %d ends inside of unit %d", unit, m->unit);
    for (int i = 0; i < h->n_uses; i++) {
        int index = h->uses[i].param;
        ls_param *param = &h->model->params[index];
        if (h->uses[i].unit != unit || i == m->left_out) continue;
        LSI_TRY(check_complete(m, index));
        if (!comes(m, i)) continue;
        RANK_CHECK(memcmp(param->data, m->values[index], bytes_of(param)) == 0, "%s was changed",
                   param->name);
        memset(param->data, 0xff, bytes_of(param));
        leave(m, index);
    }
    m->unit = -1;
    return LS_OK;
}

static ls_status need(mover *m, int index) {
    ls_param *param = &m->h->model->params[index];
    RANK_CHECK(is_used_by(m->h, m->unit, index), "%s in unit %d", param->name, m->unit);
    RANK_CHECK(is_trained(param) && !param->grad, "%s", param->name);
    RANK_CHECK(m->n_needed[index]++ == 0, "%s", param->name);
    m->n_needed_in_forward += !m->is_backward;
    param->grad = new_memory((size_t)param->count * sizeof(float));
    memset(param->grad, 0xff, (size_t)param->count * sizeof(float));
    return LS_OK;
}

static ls_status ready(mover *m, int index) {
    const char *name = m->h->model->params[index].name;
    RANK_CHECK(m->is_backward, "%s in forward", name);
    RANK_CHECK(is_used_by(m->h, m->unit, index), "%s in unit %d", name, m->unit);
    RANK_CHECK(m->n_needed[index] == 1 && m->n_ready[index]++ == 0, "%s", name);
    return LS_OK;
}

static ls_status on_event(void *context, ls_event event, int index) {
    mover *m = context;
    switch (event) {
    case LS_EVENT_BEFORE_FORWARD:
    case LS_EVENT_BEFORE_BACKWARD: return bring(m, index);
    case LS_EVENT_AFTER_FORWARD:
    case LS_EVENT_AFTER_BACKWARD: return take(m, index);
    case LS_EVENT_GRAD_NEEDED: return need(m, index);
    case LS_EVENT_GRAD_READY: return ready(m, index);
    default: return LS_OK;
    }
}

static mover open_mover(host *h, movement way) {
    size_t n = (size_t)h->model->n_params, longest = 0;
    mover m = {.h = h, .way = way, .left_out = -1, .forgotten = -1, .unit = -1};
    m.values = calloc(n, sizeof *m.values);
    m.n_needed = calloc(n, sizeof *m.n_needed);
    m.n_ready = calloc(n, sizeof *m.n_ready);
    m.used = calloc((size_t)h->n_uses * (2 * N_PASSES + 1), sizeof *m.used);
    for (size_t i = 0; i < n; i++) {
        m.values[i] = h->model->params[i].data;
        size_t bytes = bytes_of(&h->model->params[i]);
        if (bytes > longest) longest = bytes;
    }
    m.nan = memset(new_memory(longest), 0xff, longest);
    return m;
}

static void free_grads(lsi_model *model) {
    for (int i = 0; i < model->n_params; i++) {
        free(model->params[i].grad);
        model->params[i].grad = NULL;
    }
}

static void close_mover(mover *m) {
    lsi_tape_listen(m->h->tape, (ls_event_sink){0});
    lsi_tape_reset(m->h->tape, false);
    free_grads(m->h->model);
    for (int i = 0; i < m->h->model->n_params; i++) m->h->model->params[i].data = m->values[i];
    for (int i = 0; i < m->n_used; i++) free(m->used[i]);
    free(m->used);
    free(m->nan);
    free(m->n_ready);
    free(m->n_needed);
    free(m->values);
}

/* ---- passes ---- */

static lsi_batch batch_of(const variant *v, const host *h, int number) {
    static int32_t tokens[MAX_PLACES], targets[MAX_PLACES];
    static float pixels[B * H * W * 2];
    int n = v->class->takes_images ? CLASSES : (int)v->config.vocab_size;
    for (int i = 0; i < MAX_PLACES; i++) {
        tokens[i] = (7 * i + 3 * number) % n;
        targets[i] = i % 5 == 4 ? -1 : (5 * i + number + 1) % n;
    }
    for (int i = 0; i < B * H * W * 2; i++) pixels[i] = (float)((i * i + number) % 17) / 17.0f;
    int64_t n_batch = v->n_batch ? v->n_batch : B, n_time = v->n_time ? v->n_time : T;
    assert_true(n_batch * n_time <= MAX_PLACES);
    if (v->class->takes_images)
        return (lsi_batch){.images = pixels,
                           .targets = targets,
                           .n_batch = B,
                           .n_time = 1,
                           .stats = h->model->n_stats ? h->stats : NULL};
    return (lsi_batch){.tokens = tokens, .targets = targets, .n_batch = n_batch, .n_time = n_time};
}

static lsi_tensor *forward(mover *m, const lsi_batch *batch, int number, bool is_training) {
    host *h = m->h;
    memset(m->n_needed, 0, (size_t)h->model->n_params * sizeof *m->n_needed);
    memset(m->n_ready, 0, (size_t)h->model->n_params * sizeof *m->n_ready);
    m->n_needed_in_forward = 0;
    m->is_backward = false;
    m->unit = -1;
    free_grads(h->model);
    leave_all(m);
    lsi_tape_listen(h->tape, (ls_event_sink){on_event, m});
    lsi_tape_reset(h->tape, is_training);
    lsi_tape_seed(h->tape, 5, (uint32_t)number, 0);
    return h->model->class->forward(h->model, h->tape, batch);
}

static ls_status backward(mover *m, lsi_tensor *loss) {
    m->is_backward = true;
    leave_all(m);
    return lsi_tape_backward(m->h->tape, loss);
}

/* Everything that comes out of passes, one after the other. */
typedef struct outcome {
    float *at;
    int64_t n;
} outcome;

static void note(outcome *o, const float *values, int64_t n) {
    o->at = realloc(o->at, (size_t)(o->n + n) * sizeof *o->at);
    memcpy(o->at + o->n, values, (size_t)n * sizeof *values);
    o->n += n;
}

/* head_loss makes the gradient of its weight in forward; nothing else is asked for there. */
static void check_needs_of_forward(const variant *v, const mover *m) {
    const lsi_model *model = m->h->model;
    int head = v->config.untied ? model->n_params - 1 : 0;
    bool is_made = !v->class->takes_images && is_trained(&model->params[head]);
    assert_int_equal(m->n_needed_in_forward, is_made);
    if (is_made) assert_int_equal(m->n_needed[head], 1);
}

static void train(const variant *v, mover *m, int number, outcome *o) {
    const lsi_model *model = m->h->model;
    lsi_batch batch = batch_of(v, m->h, number);
    lsi_tensor *loss = forward(m, &batch, number, true);
    if (lsi_tape_status(m->h->tape) != LS_OK) fail_msg("%s: %s", describe(v), ls_last_message());
    check_needs_of_forward(v, m);
    note(o, loss->data, 1);
    note(o, m->h->stats, model->n_stats);
    if (backward(m, loss) != LS_OK) fail_msg("%s: %s", describe(v), ls_last_message());
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *param = &model->params[i];
        assert_int_equal(m->n_ready[i], is_trained(param));
        if (is_trained(param)) note(o, param->grad, param->count);
    }
}

static void infer(const variant *v, mover *m, outcome *o) {
    lsi_batch batch = batch_of(v, m->h, 0);
    batch.targets = NULL;
    lsi_tensor *logits = forward(m, &batch, 0, false);
    if (lsi_tape_status(m->h->tape) != LS_OK) fail_msg("%s: %s", describe(v), ls_last_message());
    int64_t n = lsi_tensor_count(logits);
    float *values = calloc((size_t)n, sizeof *values);
    lsi_to_floats(logits->data, logits->dtype, n, values);
    note(o, values, n);
    free(values);
}

static outcome run(const variant *v, host *h, movement way, int forgotten) {
    outcome o = {NULL, 0};
    mover m = open_mover(h, way);
    m.forgotten = forgotten;
    for (int number = 0; number < N_PASSES; number++) train(v, &m, number, &o);
    infer(v, &m, &o);
    close_mover(&m);
    return o;
}

static void check(const variant *v) {
    host h = open_host(v);
    outcome expected = run(v, &h, STAY, -1);
    for (movement way = GO_TO_NAN; way <= GO; way++) {
        outcome found = run(v, &h, way, -1);
        assert_int_equal(found.n, expected.n);
        for (int64_t i = 0; i < found.n; i++)
            if (memcmp(&found.at[i], &expected.at[i], sizeof *found.at) != 0)
                fail_msg("%s, way %d: value %lld of %lld is %g, expected %g", describe(v), (int)way,
                         (long long)i, (long long)found.n, (double)found.at[i],
                         (double)expected.at[i]);
        free(found.at);
    }
    free(expected.at);
    close_host(&h);
}

/* Each type, with and without dropout and checkpoints. */
static void check_in_all_ways(variant v) {
    for (int i = 0; i < 8; i++) {
        v.dtype = i & 1 ? LS_DTYPE_BF16 : LS_DTYPE_F32;
        v.config.dropout = i & 2 ? 0.2 : 0.0;
        v.n_checkpointed = i & 4 ? INT64_MAX : 0;
        check(&v);
    }
}

/* ---- lists ---- */

static void units_find_their_parameters_and_touch_no_others(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) check_in_all_ways(models[i]);
}

static void the_same_with_frozen_parameters(void **state) {
    (void)state;
    static const variant rows[] = {
        {&lsi_model_gpt2, GPT2(3), .frozen = "wte"},
        {&lsi_model_gpt2, GPT2(3), .frozen = "h.0."},
        {&lsi_model_gpt2, GPT2(3), .frozen = "h.1."},
        {&lsi_model_llama, LLAMA(3, true), .frozen = "lm_head"},
        {&lsi_model_llama, LLAMA(3, true), .frozen = "model.embed"},
        {&lsi_model_llama, LLAMA(3, false), .frozen = "model.layers.1."},
        {&lsi_model_mlp, IMAGES(3), .frozen = "layers.0."},
        {&lsi_model_mlp, IMAGES(3), .frozen = "layers.1."},
        {&lsi_model_mlp, IMAGES(3), .frozen = "layers.2."},
        {&lsi_model_convnet, IMAGES(2), .frozen = "conv1."},
        {&lsi_model_convnet, IMAGES(2), .frozen = "layer2."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_in_all_ways(rows[i]);
}

/* So many rows that products pack their weights, and that the head takes them in pieces. */
static void the_same_with_many_rows(void **state) {
    (void)state;
    static const variant rows[] = {
        {&lsi_model_gpt2, GPT2(1), .n_batch = 40, .n_time = 64},
        {&lsi_model_llama, LLAMA(1, true), .n_batch = 40, .n_time = 64},
    };
    lsi_head_loss_piece(1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        variant v = rows[i];
        v.config.seq_len = v.n_time;
        check_in_all_ways(v);
    }
    lsi_head_loss_piece(0);
}

static void the_same_where_products_widen(void **state) {
    (void)state;
    lsi_product_widens(true);
    for (int i = 0; i < N_MODELS; i++) {
        variant v = models[i];
        v.dtype = LS_DTYPE_BF16;
        check(&v);
    }
    lsi_product_widens(false);
}

static void lists_have_no_pair_too_many(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const variant *v = &models[i];
        host h = open_host(v);
        mover m = open_mover(&h, GO);
        for (m.left_out = 0; m.left_out < h.n_uses; m.left_out++) {
            char expected[128];
            lsi_batch batch = batch_of(v, &h, 0);
            snprintf(expected, sizeof expected, "parameter %s: it has no data",
                     h.model->params[h.uses[m.left_out].param].name);
            assert_null(forward(&m, &batch, 0, true));
            assert_fails(lsi_tape_status(h.tape), LS_ERR_STATE, expected);
            for (; m.n_used > 0; m.n_used--) free(m.used[m.n_used - 1]);
        }
        close_mover(&m);
        close_host(&h);
    }
}

/* Whether backward of the pair's unit looks at the parameter: at NaN, then. */
static bool is_read_again(const variant *v, host *h, const outcome *expected, int pair) {
    outcome found = run(v, h, GO_TO_NAN, pair);
    assert_int_equal(found.n, expected->n);
    bool is_other = memcmp(found.at, expected->at, (size_t)found.n * sizeof *found.at) != 0;
    free(found.at);
    return is_other;
}

/* Where a mark is of no use: images have no gradient, so that backward need not look at the matrix
 * that they go into, but it may; head_loss is done with its matrix in forward, behind which
 * backward comes at once; vectors are too small. */
static bool is_exempt(const variant *v, const host *h, const lsi_unit_use *use) {
    int unit = v->class->takes_images ? 0 : h->n_units - 1;
    return use->unit == unit || h->model->shapes[use->param].n_dims == 1;
}

static void tables_are_marked_and_nothing_else(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        const variant *v = &models[i];
        host h = open_host(v);
        outcome expected = run(v, &h, STAY, -1);
        for (int k = 0; k < h.n_uses; k++) {
            const lsi_unit_use *use = &h.uses[k];
            assert_int_equal(use->forward_only, !v->class->takes_images && use->unit == 0);
            if (is_exempt(v, &h, use)) continue;
            if (is_read_again(v, &h, &expected, k) == use->forward_only)
                fail_msg("%s: unit %d, %s: marked %d", describe(v), use->unit,
                         h.model->params[use->param].name, use->forward_only);
        }
        free(expected.at);
        close_host(&h);
    }
}

static void assert_is_sorted(const lsi_unit_use *uses, int n_uses) {
    for (int i = 1; i < n_uses; i++)
        assert_true(uses[i - 1].unit < uses[i].unit ||
                    (uses[i - 1].unit == uses[i].unit && uses[i - 1].param < uses[i].param));
}

/* Every parameter but running statistics. */
static void lists_are_sorted_and_complete(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        host h = open_host(&models[i]);
        assert_is_sorted(h.uses, h.n_uses);
        assert_int_equal(h.uses[0].unit, 0);
        assert_int_equal(h.uses[h.n_uses - 1].unit, h.n_units - 1);
        for (int p = 0; p < h.model->n_params; p++)
            assert_int_equal(first_unit_of(&h, p) < h.n_units, is_trained(&h.model->params[p]));
        close_host(&h);
    }
}

/* ---- rules ---- */

typedef struct rule_row {
    variant v; /* its rule is applied first */
    const char *rule;
    const char *begins; /* of each unit: '|' where a joined one begins, else '.' */
} rule_row;

/* Elements of the gpt2: 13 8 + 6 8 = 152 of unit 0; of a block 12 64 + 13 8 = 872; of the last
 * unit 104 + 16 = 120. */
static const rule_row rule_rows[] = {
    {{&lsi_model_gpt2, GPT2(3)}, "block", "|||||"},
    {{&lsi_model_gpt2, GPT2(3)}, "1", "|||||"},
    {{&lsi_model_gpt2, GPT2(3)}, "152", "|||||"},
    {{&lsi_model_gpt2, GPT2(3)}, "153", "|.|||"},
    {{&lsi_model_gpt2, GPT2(3)}, "1024", "|.|.|"},
    {{&lsi_model_gpt2, GPT2(3)}, "1k", "|.|.|"},
    {{&lsi_model_gpt2, GPT2(3)}, "1025", "|..|."},
    {{&lsi_model_gpt2, GPT2(3)}, "2768", "|...|"},
    {{&lsi_model_gpt2, GPT2(3)}, "2769", "|...."},
    {{&lsi_model_gpt2, GPT2(3)}, "1G", "|...."},
    {{&lsi_model_gpt2, GPT2(3)}, "9223372036854775807", "|...."},
    {{&lsi_model_gpt2, GPT2(3)}, "h.1.", "|.|.."},
    {{&lsi_model_gpt2, GPT2(3)}, "h.1.attn.c_proj.bias", "|.|.."},
    {{&lsi_model_gpt2, GPT2(3)}, "ln_f,h.0", "||..|"},
    {{&lsi_model_gpt2, GPT2(3)}, "h", "||||."},
    {{&lsi_model_gpt2, GPT2(3)}, "wte", "|...|"},
    {{&lsi_model_gpt2, GPT2(3)}, "wpe,wpe", "|...."},
    {{&lsi_model_llama, LLAMA(3, true)}, "model.layers.1,model.layers.2", "|.||."},
    {{&lsi_model_llama, LLAMA(3, false)}, "model.embed", "|...|"},
    {{&lsi_model_mlp, IMAGES(3)}, "layers.1,head", "||.|"},
    {{&lsi_model_mlp, IMAGES(3)}, "40", "||.|"}, /* 60 4 + 4, then 20 each */
    {{&lsi_model_convnet, IMAGES(1)}, "layer", "||||."},
    {{&lsi_model_convnet, IMAGES(1)}, "layer2.0.downsample", "|.|.."},
    /* joined units that are joined once more: what two of them use counts once */
    {{&lsi_model_gpt2, GPT2(3), .rule = "h.1."}, "1024", "|||||"},
    {{&lsi_model_gpt2, GPT2(3), .rule = "h.1."}, "1025", "|..||"},
    {{&lsi_model_gpt2, GPT2(3), .rule = "wpe"}, "1", "|||||"},
};

/* Whether each unit uses what any unit from the last '|' to the next one does, in backward as well,
 * and nothing else. */
static bool is_joined(const host *h, const char *begins, const lsi_unit_use *joined, int n_joined) {
    int n = 0;
    assert_int_equal(strlen(begins), h->n_units);
    for (int unit = 0; unit < h->n_units; unit++) {
        int begin = unit, end = unit + 1;
        while (begins[begin] != '|') begin--;
        while (begins[end] == '.') end++;
        for (int p = 0; p < h->model->n_params; p++) {
            bool is_used = false, is_read = false;
            for (int u = begin; u < end; u++) {
                is_used |= is_used_by(h, u, p);
                is_read |= is_read_again_by(h, u, p);
            }
            if (!is_used) continue;
            if (n == n_joined || joined[n].unit != unit || joined[n].param != p) return false;
            if (joined[n++].forward_only == is_read) return false;
        }
    }
    return n == n_joined;
}

static void rules_join_units(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rule_rows / sizeof rule_rows[0]; i++) {
        const rule_row *row = &rule_rows[i];
        host h = open_host(&row->v);
        size_t bytes = (size_t)h.n_uses * sizeof *h.uses;
        lsi_unit_use *joined = lsi_alloc(LSI_MEM_OTHER, bytes);
        int n_joined = h.n_uses;
        memcpy(joined, h.uses, bytes);
        assert_ok(lsi_units_merge(h.model, row->rule, &joined, &n_joined));
        assert_is_sorted(joined, n_joined);
        if (!is_joined(&h, row->begins, joined, n_joined))
            fail_msg("%s: --unit %s: expected %s", describe(&row->v), row->rule, row->begins);
        lsi_free(joined);
        close_host(&h);
    }
}

static void joined_units_find_their_parameters(void **state) {
    (void)state;
    static const variant rows[] = {
        {&lsi_model_gpt2, GPT2(3), .rule = "1024"},
        {&lsi_model_gpt2, GPT2(3), .rule = "wpe"},
        {&lsi_model_llama, LLAMA(3, false), .rule = "model.layers.1"},
        {&lsi_model_mlp, IMAGES(3), .rule = "layers.1"},
        {&lsi_model_convnet, IMAGES(3), .rule = "layer2.0.,fc"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_in_all_ways(rows[i]);
}

static void rules_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *rule, *text;
    } rows[] = {
        {"", "--unit '': expected block, a number of parameters, or beginnings of their names"},
        {",", "found an empty one"},
        {"h.0,", "found an empty one"},
        {",h.0", "found an empty one"},
        {"h.0,,h.1", "found an empty one"},
        {"0", "--unit: expected at least 1, found 0"},
        {"-3", "--unit: expected at least 1, found -3"},
        {"1.5", "--unit: expected a whole number"},
        {"12 ", "--unit: expected a whole number"},
        {"12,13", "--unit: expected a whole number"},
        {"9223372036854775808", "--unit: expected a whole number"},
        {"layers", "begins with 'layers'; one of them is h.1."},
        {"h.0,attn", "--unit h.0,attn: no parameter has a name that begins with 'attn'"},
        {"h.0, h.1", "begins with ' h.1'"},
        {"wte.weights", "begins with 'wte.weights'"},
        {"Block", "begins with 'Block'"},
    };
    host h = open_host(&models[1]);
    lsi_unit_use *uses = h.uses;
    int n_uses = h.n_uses;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_fails(lsi_units_merge(h.model, rows[i].rule, &h.uses, &h.n_uses), LS_ERR_USAGE,
                     rows[i].text);
        assert_ptr_equal(h.uses, uses);
        assert_int_equal(h.n_uses, n_uses);
    }
    close_host(&h);
    h = open_host(&(variant){&lsi_model_convnet, IMAGES(1)});
    assert_fails(lsi_units_merge(h.model, "bn1.running", &h.uses, &h.n_uses), LS_ERR_USAGE,
                 "begins with 'bn1.running'");
    close_host(&h);
}

/* ---- memory ---- */

static void failed_allocations_leave_everything_as_it_was(void **state) {
    (void)state;
    host h = open_host(&models[1]);
    int64_t n_blocks = lsi_mem_n_blocks();
    int n_failed = 0;
    for (bool is_done = false; !is_done; n_failed += !is_done) {
        lsi_unit_use *uses = NULL;
        int n_uses = 0;
        lsi_mem_fail_at(n_failed + 1);
        ls_status status = lsi_units_of(h.model, &uses, &n_uses);
        if (status == LS_OK) {
            const lsi_unit_use *before = uses;
            status = lsi_units_merge(h.model, "1024", &uses, &n_uses);
            if (status != LS_OK) assert_ptr_equal(uses, before);
        }
        is_done = !lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, is_done ? LS_OK : LS_ERR_MEMORY);
        lsi_free(uses);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
    }
    assert_int_equal(n_failed, 5);
    close_host(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_find_their_parameters_and_touch_no_others),
        cmocka_unit_test(the_same_with_frozen_parameters),
        cmocka_unit_test(the_same_with_many_rows),
        cmocka_unit_test(the_same_where_products_widen),
        cmocka_unit_test(lists_have_no_pair_too_many),
        cmocka_unit_test(tables_are_marked_and_nothing_else),
        cmocka_unit_test(lists_are_sorted_and_complete),
        cmocka_unit_test(rules_join_units),
        cmocka_unit_test(joined_units_find_their_parameters),
        cmocka_unit_test(rules_that_are_none_are_refused),
        cmocka_unit_test(failed_allocations_leave_everything_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
