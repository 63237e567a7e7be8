/* The models for images, convnet and mlp: against PyTorch, alone and as ranks that share a batch,
 * against finite differences, against themselves (checkpoints, bfloat16, inference, order of
 * statistics), their configuration, and failures. Golden numbers come from golden_convnet.py. */
#include "harness/harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "harness/ranks.h"
#include "nn/models/images.h"
#include "optim/optimizer.h"
#include "tensor/rows.h"

enum { B = 5, H = 6, W = 5, C_IN = 2, CLASSES = 4, N_TARGETS = 4, ARENA_BYTES = 1 << 24 };
enum { N_PIXELS = B * H * W * C_IN };

static const lsi_model_config tiny = {.n_layer = 2,
                                      .n_embd = 3,
                                      .norm_epsilon = 1e-5,
                                      .height = H,
                                      .width = W,
                                      .n_channels = C_IN,
                                      .n_classes = CLASSES};

typedef struct golden_row {
    const char *name;
    double norm; /* of the gradient; of frozen parameters, of what they are after one batch */
    double wave; /* sum of value[i] sin(i + 1): sees order and sign, which a norm does not */
} golden_row;

/* ---- torch 2.13.0 in float64 ---- */

static const double convnet_loss = 5.170391658896;
static const double convnet_inference_loss = 7.538164624143;
static const double convnet_logits[] = {
    2.704682576,  1.913828953,  0.423891709, -1.380519113, 2.440363387,  1.754364769, 0.419081940,
    -1.229172416, 2.733233035,  1.953664418, 0.462571881,  -1.355073746, 3.330688429, 2.475437586,
    0.745717184,  -1.398980344, 3.111055047, 2.304455882,  0.676783396,  -1.344338742};
static const golden_row convnet_golden[] = {
    {"conv1.weight", 45.425302569, 0.000413715},
    {"bn1.weight", 1.142392785, 1.362486499},
    {"bn1.bias", 4.496115458, 3.310919578},
    {"bn1.running_mean", 0.320553941, -0.395324248},
    {"bn1.running_var", 1.492352878, 1.440212937},
    {"layer1.0.conv1.weight", 24.151901446, 6.557453740},
    {"layer1.0.bn1.weight", 2.726551738, -0.498908195},
    {"layer1.0.bn1.bias", 0.822917340, 0.716431309},
    {"layer1.0.bn1.running_mean", 0.319487160, 0.011408290},
    {"layer1.0.bn1.running_var", 1.266483464, 1.382698710},
    {"layer1.0.conv2.weight", 15.393667019, -0.288576330},
    {"layer1.0.bn2.weight", 3.539099262, -2.146542839},
    {"layer1.0.bn2.bias", 2.477899174, 0.196812792},
    {"layer1.0.bn2.running_mean", 0.329133872, 0.410023363},
    {"layer1.0.bn2.running_var", 1.692283218, 1.974786121},
    {"layer1.1.conv1.weight", 7.333080860, -4.900846282},
    {"layer1.1.bn1.weight", 3.051705517, -2.897442066},
    {"layer1.1.bn1.bias", 4.239566231, -3.475807356},
    {"layer1.1.bn1.running_mean", 0.333532533, 0.106120777},
    {"layer1.1.bn1.running_var", 2.220826050, 2.537730386},
    {"layer1.1.conv2.weight", 13.832673332, 19.416108667},
    {"layer1.1.bn2.weight", 2.442818986, -1.838656481},
    {"layer1.1.bn2.bias", 2.029697936, -1.283799707},
    {"layer1.1.bn2.running_mean", 0.329865040, -0.382246144},
    {"layer1.1.bn2.running_var", 1.805978543, 1.803277479},
    {"layer2.0.conv1.weight", 16.594983623, -26.884912495},
    {"layer2.0.bn1.weight", 4.733277927, 4.170741922},
    {"layer2.0.bn1.bias", 5.832870115, 0.169351909},
    {"layer2.0.bn1.running_mean", 0.490288730, -0.448714030},
    {"layer2.0.bn1.running_var", 2.831220228, -0.941967211},
    {"layer2.0.conv2.weight", 18.867104863, -5.266510228},
    {"layer2.0.bn2.weight", 4.279913157, -3.074593560},
    {"layer2.0.bn2.bias", 2.007207540, -2.072743997},
    {"layer2.0.bn2.running_mean", 0.462644269, 0.618669764},
    {"layer2.0.bn2.running_var", 2.300761115, -0.226453055},
    {"layer2.0.downsample.0.weight", 13.877083190, -2.570143480},
    {"layer2.0.downsample.1.weight", 1.284848464, 1.026589868},
    {"layer2.0.downsample.1.bias", 2.007207540, -2.072743997},
    {"layer2.0.downsample.1.running_mean", 0.490846151, 0.652022379},
    {"layer2.0.downsample.1.running_var", 2.268311728, 0.719168853},
    {"layer2.1.conv1.weight", 18.329768405, -11.004519950},
    {"layer2.1.bn1.weight", 3.187314304, -0.024846047},
    {"layer2.1.bn1.bias", 2.630079395, -1.664235476},
    {"layer2.1.bn1.running_mean", 0.513315193, -0.338786548},
    {"layer2.1.bn1.running_var", 2.498241674, 0.335265085},
    {"layer2.1.conv2.weight", 9.204319486, 2.084173689},
    {"layer2.1.bn2.weight", 1.842407282, 0.104603040},
    {"layer2.1.bn2.bias", 1.015130562, 0.821764637},
    {"layer2.1.bn2.running_mean", 0.487803244, -0.781385294},
    {"layer2.1.bn2.running_var", 2.360399784, -0.801976971},
    {"layer3.0.conv1.weight", 6.382454407, 8.895829609},
    {"layer3.0.bn1.weight", 1.110451169, 0.734722618},
    {"layer3.0.bn1.bias", 1.205407466, -0.043215210},
    {"layer3.0.bn1.running_mean", 0.655992707, 0.353052862},
    {"layer3.0.bn1.running_var", 3.459630261, -1.031488667},
    {"layer3.0.conv2.weight", 3.879762888, -0.307635808},
    {"layer3.0.bn2.weight", 1.363487465, 1.410873991},
    {"layer3.0.bn2.bias", 0.704642265, -0.341088582},
    {"layer3.0.bn2.running_mean", 0.578706783, 1.426037781},
    {"layer3.0.bn2.running_var", 3.456268461, 0.917171655},
    {"layer3.0.downsample.0.weight", 4.747170492, 1.614594313},
    {"layer3.0.downsample.1.weight", 0.914559152, -1.150454138},
    {"layer3.0.downsample.1.bias", 0.704642265, -0.341088582},
    {"layer3.0.downsample.1.running_mean", 0.645415705, 0.102367698},
    {"layer3.0.downsample.1.running_var", 3.244548058, 1.367461002},
    {"layer3.1.conv1.weight", 6.863885386, 0.829090627},
    {"layer3.1.bn1.weight", 0.232560468, -0.439289297},
    {"layer3.1.bn1.bias", 0.246974259, 0.103974483},
    {"layer3.1.bn1.running_mean", 0.543030218, -1.321376989},
    {"layer3.1.bn1.running_var", 3.480163044, -0.709220204},
    {"layer3.1.conv2.weight", 0.830222777, 0.239370479},
    {"layer3.1.bn2.weight", 0.200727841, 0.197832312},
    {"layer3.1.bn2.bias", 0.217440542, -0.151483908},
    {"layer3.1.bn2.running_mean", 0.962011480, -0.611052450},
    {"layer3.1.bn2.running_var", 3.781211518, -1.826658506},
    {"fc.weight", 4.853119817, 1.800189719},
    {"fc.bias", 1.399741570, -0.634260469},
};
static const double convnet_losses[] = {1.292597915, 1.149206200, 0.882233495, 0.789650703,
                                        0.701747007, 0.576259838, 0.511235832, 0.446201605,
                                        0.379090283, 0.319321950};
static const double convnet_loss_after = 3.208991481;
static const double mlp_loss = 5.725667245849;
static const double mlp_inference_loss = 5.725667245849;
static const double mlp_logits[] = {
    -0.150625405, 0.061726548,  0.172981032,  0.070947102, -0.187847583, 0.054157286,  0.198790244,
    0.117431608,  -0.119250939, 0.133493179,  0.249816619, 0.115033510,  -0.067699977, 0.068236127,
    0.099870772,  -0.045798448, -0.108360047, 0.116810618, 0.213771686,  0.077367360};
static const golden_row mlp_golden[] = {
    {"layers.0.weight", 0.841153523, 0.285325836}, {"layers.0.bias", 0.183823187, 0.208472441},
    {"layers.1.weight", 0.533093226, 0.005771000}, {"layers.1.bias", 0.439015458, 0.570263010},
    {"head.weight", 0.472734853, 0.372499791},     {"head.bias", 1.520923013, -0.908611199},
};
static const double mlp_losses[] = {1.431416811, 1.400368970, 1.373730404, 1.336482184,
                                    1.292543266, 1.246011422, 1.200553175, 1.148201127,
                                    1.090736255, 1.034138031};
static const double mlp_loss_after = 3.870480172;

typedef struct golden_model {
    const lsi_model_class *class;
    int64_t width;
    double loss, inference_loss, loss_after;
    const double *logits, *losses;
    const golden_row *rows;
    int n_rows;
} golden_model;

#define GOLDEN(name, width)                                                                        \
    {                                                                                              \
        &lsi_model_##name, width, name##_loss, name##_inference_loss, name##_loss_after,           \
            name##_logits, name##_losses, name##_golden,                                           \
            sizeof name##_golden / sizeof name##_golden[0]                                         \
    }
static const golden_model models[] = {GOLDEN(convnet, 3), GOLDEN(mlp, 7)};
enum { N_MODELS = sizeof models / sizeof models[0] };

static void assert_near(const char *what, double found, double expected, double bound) {
    if (fabs(found - expected) <= bound) return;
    fail_msg("%s: found %.9g, expected %.9g within %.3g", what, found, expected, bound);
}

/* ---- a model with its gradients and a tape ---- */

typedef struct fixture {
    lsi_model *model;
    lsi_arena *arena;
    lsi_tape *tape;
    float *grads; /* laid out like model->data */
    float *stats;
} fixture;

static ls_status open_fixture(const lsi_model_class *class, const lsi_model_config *config,
                              fixture *f) {
    LSI_TRY(lsi_model_create(class, config, &f->model));
    lsi_model_init(f->model, 1);
    const ls_param *last = &f->model->params[f->model->n_params - 1];
    size_t n = (size_t)((const float *)last->data + last->count - f->model->data);
    f->grads = calloc(n, sizeof *f->grads);
    f->stats = calloc((size_t)f->model->n_stats + 1, sizeof *f->stats);
    for (int i = 0; i < f->model->n_params; i++) {
        ls_param *param = &f->model->params[i];
        if (param->flags & LS_PARAM_FROZEN) continue;
        param->grad = f->grads + ((const float *)param->data - f->model->data);
    }
    LSI_TRY(lsi_arena_create(ARENA_BYTES, &f->arena));
    return lsi_tape_create(f->arena, &f->tape);
}

static fixture make(const lsi_model_class *class, const lsi_model_config *config) {
    fixture f;
    assert_ok(open_fixture(class, config, &f));
    return f;
}

static lsi_model_config config_of(const golden_model *golden) {
    lsi_model_config config = tiny;
    config.n_embd = golden->width;
    return config;
}

static fixture make_golden(const golden_model *golden) {
    lsi_model_config config = config_of(golden);
    return make(golden->class, &config);
}

/* Bytes of the arena that are lost. */
static size_t close_fixture(fixture *f) {
    lsi_tape_destroy(f->tape);
    size_t lost_bytes = lsi_arena_used_bytes(f->arena);
    lsi_arena_destroy(f->arena);
    lsi_model_destroy(f->model);
    free(f->grads);
    free(f->stats);
    return lost_bytes;
}

static void drop(fixture *f) {
    assert_int_equal(close_fixture(f), 0);
}

/* Counted from the start of each test, so that one failed test does not fail the rest. */
static int64_t n_blocks_before;

static int count_blocks(void **state) {
    (void)state;
    n_blocks_before = lsi_mem_n_blocks();
    return 0;
}

static int nothing_leaked(void **state) {
    (void)state;
    return lsi_mem_n_blocks() != n_blocks_before;
}

static bool ends_in(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* w[i] = 0.3 sin(i + 1 + 1000 p), plus 1 for weights of norms and variances. */
static void set_golden_weights(lsi_model *model) {
    for (int p = 0; p < model->n_params; p++) {
        const char *name = model->params[p].name;
        bool is_norm = strstr(name, "bn") || strstr(name, "downsample.1");
        bool is_one = (is_norm && ends_in(name, "weight")) || ends_in(name, "running_var");
        float *values = lsi_model_values(model, p);
        for (int64_t i = 0; i < model->params[p].count; i++)
            values[i] = (float)((is_one ? 1.0 : 0.0) + 0.3 * sin((double)(i + 1 + 1000 * p)));
    }
}

typedef struct images {
    float pixels[N_PIXELS];
    int32_t targets[B];
} images;

static lsi_batch golden_batch(images *im, fixture *f) {
    for (int i = 0; i < N_PIXELS; i++)
        im->pixels[i] = (float)(0.5 + 0.5 * sin(0.37 * i * (1 + i % 7)));
    for (int b = 0; b < B; b++) im->targets[b] = (3 * b + 1) % CLASSES;
    im->targets[3] = -1;
    return (lsi_batch){.images = im->pixels,
                       .targets = im->targets,
                       .n_batch = B,
                       .n_time = 1,
                       .stats = f->model->n_stats ? f->stats : NULL};
}

static ls_status pass(fixture *f, const lsi_batch *batch, double *value) {
    lsi_tape_reset(f->tape, true);
    lsi_tensor *loss = f->model->class->forward(f->model, f->tape, batch);
    LSI_TRY(lsi_tape_status(f->tape));
    *value = (double)*(float *)loss->data;
    return lsi_tape_backward(f->tape, loss);
}

static double forward_backward(fixture *f, const lsi_batch *batch) {
    double value = 0.0;
    assert_ok(pass(f, batch, &value));
    return value;
}

static double loss_of(fixture *f, const lsi_batch *batch, bool is_training) {
    lsi_tape_reset(f->tape, is_training);
    lsi_tensor *loss = f->model->class->forward(f->model, f->tape, batch);
    assert_ok(lsi_tape_status(f->tape));
    return (double)*(float *)loss->data;
}

static void logits_of(fixture *f, lsi_batch batch, float *logits) {
    batch.targets = NULL;
    lsi_tape_reset(f->tape, false);
    lsi_tensor *found = f->model->class->forward(f->model, f->tape, &batch);
    assert_ok(lsi_tape_status(f->tape));
    assert_int_equal(found->n_dims, 2);
    assert_int_equal(found->dims[0], batch.n_batch);
    assert_int_equal(found->dims[1], CLASSES);
    lsi_to_floats(found->data, found->dtype, lsi_tensor_count(found), logits);
}

static void fold(fixture *f) {
    if (f->model->class->fold_stats) f->model->class->fold_stats(f->model, f->stats);
}

static double norm_of(const float *values, int64_t n) {
    return sqrt(ls_sum_squares(values, n));
}

/* ---- PyTorch ---- */

static ls_status check_near(const char *what, double found, double expected, double bound) {
    if (fabs(found - expected) <= bound) return LS_OK;
    return lsi_fail(LS_ERR_NUMERIC, "%s: found %.9g, expected %.9g within %.3g", what, found,
                    expected, bound);
}

static ls_status check_row(const golden_row *row, const ls_param *param) {
    const float *values = param->flags & LS_PARAM_FROZEN ? param->data : param->grad;
    double wave = 0.0, bound = 1e-5 * row->norm + 2e-6;
    for (int64_t k = 0; k < param->count; k++) wave += (double)values[k] * sin((double)(k + 1));
    RANK_CHECK(strcmp(param->name, row->name) == 0, "found %s", param->name);
    LSI_TRY(check_near(param->name, norm_of(values, param->count), row->norm, bound));
    return check_near(param->name, wave, row->wave, bound * sqrt((double)param->count));
}

static ls_status check_golden(const golden_model *golden, const lsi_model *model, double loss) {
    LSI_TRY(check_near("loss", loss, golden->loss, 2e-6 * golden->loss));
    RANK_CHECK(model->n_params == golden->n_rows, "%d parameters", model->n_params);
    for (int i = 0; i < golden->n_rows; i++)
        LSI_TRY(check_row(&golden->rows[i], &model->params[i]));
    return LS_OK;
}

static void loss_gradients_and_statistics_equal_pytorch(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f);
        set_golden_weights(f.model);
        double loss = forward_backward(&f, &batch);
        fold(&f);
        assert_ok(check_golden(&models[m], f.model, loss));
        drop(&f);
    }
}

/* ---- ranks that share the batch and its statistics: the same numbers of PyTorch ---- */

static ls_status gather(void *group, const double *mine, int64_t count, double *all) {
    return ls_all_gather(group, mine, all, count, LS_DTYPE_F64, NULL);
}

/* A rank's images of the batch. Which rank has none with a target does not matter. */
static lsi_batch share_of(const lsi_batch *batch, int rank, int n_ranks) {
    lsi_batch share = *batch;
    int64_t first = B * rank / n_ranks;
    share.n_batch = B * (rank + 1) / n_ranks - first;
    share.images += first * (N_PIXELS / B);
    share.targets += first;
    return share;
}

/* Loss and gradients are sums over ranks; running statistics are folded once, on each rank. */
static ls_status share_golden_batch(ls_group *group, void *context) {
    const golden_model *golden = context;
    int rank = ls_group_rank(group), n_ranks = ls_group_world_size(group);
    lsi_model_config config = config_of(golden);
    images im;
    fixture f;
    double loss;
    LSI_TRY(open_fixture(golden->class, &config, &f));
    lsi_batch batch = golden_batch(&im, &f), share = share_of(&batch, rank, n_ranks);
    set_golden_weights(f.model);
    lsi_tape_set_exchange(f.tape, (lsi_exchange){gather, group, n_ranks});
    LSI_TRY(pass(&f, &share, &loss));
    fold(&f);
    LSI_TRY(ls_all_reduce(group, &loss, &loss, 1, LS_DTYPE_F64, LS_OP_SUM, 1.0, NULL));
    for (int i = 0; i < f.model->n_params; i++) {
        const ls_param *param = &f.model->params[i];
        if (param->flags & LS_PARAM_FROZEN) continue;
        LSI_TRY(ls_all_reduce(group, param->grad, param->grad, param->count, LS_DTYPE_F32,
                              LS_OP_SUM, 1.0, NULL));
    }
    LSI_TRY(check_golden(golden, f.model, loss));
    RANK_CHECK(close_fixture(&f) == 0, "memory of the arena is lost");
    return LS_OK;
}

static void ranks_with_shared_statistics_equal_pytorch(void **state) {
    (void)state;
    for (const int *n = rank_counts; *n && *n <= B; n++)
        for (int mode = 0; mode < N_RANK_MODES; mode++)
            assert_ok(run_ranks((rank_mode)mode, *n, share_golden_batch, (void *)&models[0]));
}

static void inference_equals_pytorch(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f);
        float logits[B * CLASSES];
        set_golden_weights(f.model);
        logits_of(&f, batch, logits);
        for (int i = 0; i < B * CLASSES; i++)
            assert_near("logit", (double)logits[i], models[m].logits[i], 5e-6);
        assert_near("loss", loss_of(&f, &batch, false), models[m].inference_loss, 2e-5);
        drop(&f);
    }
}

/* The tenth step stands on nine updates, each with its own rounding. */
static void ten_steps_of_training_equal_pytorch(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f);
        const lsi_optimizer_opts opts = {0.9, 0.95, 1e-8, 0.1};
        lsi_optimizer *optimizer;
        set_golden_weights(f.model);
        assert_ok(lsi_optimizer_create(f.model->params, f.model->n_params, &opts, &optimizer));
        for (int step = 0; step < 10; step++) {
            double loss = forward_backward(&f, &batch) / N_TARGETS;
            fold(&f);
            assert_near("loss", loss, models[m].losses[step], 2e-4 * models[m].losses[step]);
            assert_ok(lsi_optimizer_step(optimizer, 1e-2, 1.0 / N_TARGETS));
        }
        double after = loss_of(&f, &batch, false);
        assert_near("loss after training", after, models[m].loss_after, 1e-3 * after);
        lsi_optimizer_destroy(optimizer);
        drop(&f);
    }
}

/* ---- finite differences ---- */

/* Along its own gradient a parameter's loss rises by the norm of that. Steps are small because relu
 * has a corner wherever a sum is zero, and the bound is what float32 losses leave of them. */
static double slope_along(fixture *f, const lsi_batch *batch, int i, double norm) {
    const double h = 5e-4 / (1.0 + norm);
    ls_param *param = &f->model->params[i];
    float *values = param->data, kept[2048];
    const float *grad = param->grad;
    double loss[2];
    assert_true(param->count <= 2048);
    memcpy(kept, values, (size_t)param->count * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        for (int64_t k = 0; k < param->count; k++)
            values[k] = (float)((double)kept[k] + (2 * side - 1) * h * (double)grad[k] / norm);
        loss[side] = loss_of(f, batch, true);
    }
    memcpy(values, kept, (size_t)param->count * sizeof *kept);
    return (loss[1] - loss[0]) / (2.0 * h);
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f);
        set_golden_weights(f.model);
        forward_backward(&f, &batch);
        for (int i = 0; i < f.model->n_params; i++) {
            const ls_param *param = &f.model->params[i];
            if (param->flags & LS_PARAM_FROZEN) continue;
            double norm = norm_of(param->grad, param->count);
            assert_near(param->name, slope_along(&f, &batch, i, norm), norm, 1e-2 * norm + 2e-3);
        }
        drop(&f);
    }
}

/* ---- against themselves ---- */

static void assert_same_grads(const fixture *a, const fixture *b) {
    for (int i = 0; i < a->model->n_params; i++)
        if (a->model->params[i].grad)
            assert_memory_equal(a->model->params[i].grad, b->model->params[i].grad,
                                (size_t)a->model->params[i].count * sizeof(float));
    assert_memory_equal(a->stats, b->stats, (size_t)a->model->n_stats * sizeof(float));
}

static void checkpointed_units_give_the_same_bits(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]), again = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f), other = golden_batch(&im, &again);
        f.model->config.dropout = again.model->config.dropout = 0.3;
        set_golden_weights(f.model);
        set_golden_weights(again.model);
        lsi_tape_checkpoint(again.tape, 1000);
        lsi_tape_seed(f.tape, 5, 2, 9);
        lsi_tape_seed(again.tape, 5, 2, 9);
        assert_true(forward_backward(&f, &batch) == forward_backward(&again, &other));
        assert_same_grads(&f, &again);
        drop(&f);
        drop(&again);
    }
}

static void gradients_do_not_depend_on_earlier_passes(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]), fresh = make_golden(&models[m]);
        images im, turned;
        lsi_batch batch = golden_batch(&im, &f), other = golden_batch(&turned, &f);
        for (int i = 0; i < N_PIXELS; i++) turned.pixels[i] = 1.0f - turned.pixels[i];
        other.n_batch = 3;
        forward_backward(&f, &other);
        loss_of(&f, &other, false);
        forward_backward(&f, &batch);
        batch = golden_batch(&im, &fresh);
        forward_backward(&fresh, &batch);
        assert_same_grads(&f, &fresh);
        drop(&f);
        drop(&fresh);
    }
}

/* Parameters and activations in bfloat16 have 8 bits; layers add up their roundings. */
static void bfloat16_is_near_float32(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        lsi_model_config config = tiny;
        config.n_layer = 1, config.n_embd = 16;
        fixture f = make(models[m].class, &config), narrow = make(models[m].class, &config);
        images im;
        lsi_batch batch = golden_batch(&im, &f), other = golden_batch(&im, &narrow);
        assert_ok(lsi_model_narrow(narrow.model));
        lsi_tape_set_dtype(narrow.tape, LS_DTYPE_BF16);
        double expected = forward_backward(&f, &batch), found = forward_backward(&narrow, &other);
        assert_near("loss", found, expected, 0.02 * expected);
        double dot = 0.0, squares = 0.0, narrow_squares = 0.0;
        for (int i = 0; i < f.model->n_params; i++) {
            const float *a = f.model->params[i].grad, *b = narrow.model->params[i].grad;
            for (int64_t k = 0; a && k < f.model->params[i].count; k++) {
                dot += (double)a[k] * (double)b[k];
                squares += (double)a[k] * (double)a[k];
                narrow_squares += (double)b[k] * (double)b[k];
            }
        }
        assert_true(found != expected);
        assert_near("cosine of gradients", dot / sqrt(squares * narrow_squares), 1.0, 0.02);
        for (int64_t i = 0; i < f.model->n_stats; i++)
            assert_near("statistic", (double)narrow.stats[i], (double)f.stats[i], 0.05);
        drop(&f);
        drop(&narrow);
    }
}

static void inference_sees_each_image_alone(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f), one = batch;
        float together[B * CLASSES], alone[CLASSES];
        set_golden_weights(f.model);
        memset(f.stats, 0, (size_t)f.model->n_stats * sizeof *f.stats);
        logits_of(&f, batch, together);
        one.n_batch = 1;
        for (int b = 0; b < B; b++) {
            one.images = im.pixels + b * H * W * C_IN;
            logits_of(&f, one, alone);
            for (int k = 0; k < CLASSES; k++)
                assert_near("logit", (double)alone[k], (double)together[b * CLASSES + k], 1e-6);
        }
        for (int64_t i = 0; i < f.model->n_stats; i++) assert_true(f.stats[i] == 0.0f);
        drop(&f);
    }
}

/* running = 0.9 running + 0.1 new, so the batch that came last counts most. A parameter that is
 * frozen otherwise is no statistic. */
static void statistics_fold_in_order(void **state) {
    (void)state;
    fixture f = make_golden(&models[0]);
    f.model->params[0].flags |= LS_PARAM_FROZEN;
    const float *frozen = lsi_model_values(f.model, 0), before = frozen[0];
    int i = lsi_model_find(f.model, "bn1.running_var");
    const float *mean = lsi_model_values(f.model, i - 1), *variance = lsi_model_values(f.model, i);
    f.stats[0] = 2.0f;
    f.stats[tiny.n_embd] = 5.0f; /* the variance of channel 0 */
    fold(&f);
    assert_near("mean", (double)mean[0], 0.2, 1e-7);
    assert_near("variance", (double)variance[0], 1.4, 1e-6);
    f.stats[0] = -1.0f;
    fold(&f);
    assert_near("mean", (double)mean[0], 0.08, 1e-7);
    assert_true(mean[1] == 0.0f && frozen[0] == before);
    drop(&f);
}

static void fresh_models_know_nothing(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        lsi_model_config config = tiny;
        config.n_embd = 32;
        fixture f = make(models[m].class, &config);
        images im;
        lsi_batch batch = golden_batch(&im, &f);
        double loss = loss_of(&f, &batch, true) / N_TARGETS;
        assert_true(loss > 0.5 * log(CLASSES) && loss < 2.5 * log(CLASSES));
        /* He: variance 2 / fan-in; 32 x (3 x 3 x 32) draws have it within a few percent */
        int i = lsi_model_find(f.model, "layer1.0.conv1.weight");
        if (i >= 0) {
            double n = (double)f.model->params[i].count;
            double variance = ls_sum_squares(f.model->params[i].data, (int64_t)n) / n;
            assert_near("variance", variance, 2.0 / 288.0, 0.05 * 2.0 / 288.0);
        }
        drop(&f);
    }
}

/* ---- description ---- */

/* What is described is what the arena holds after forward, to the byte but for the loss's room. */
static void descriptions_equal_the_arena(void **state) {
    (void)state;
    static const ls_dtype types[] = {LS_DTYPE_F32, LS_DTYPE_BF16};
    for (int m = 0; m < 4 * N_MODELS; m++) {
        const golden_model *golden = &models[m / 4];
        ls_dtype dtype = types[m % 2];
        lsi_model_config config = {m % 4 < 2 ? 1 : 3, 0, 24, 0, 0, 0.0, 1e-5};
        config.height = 13, config.width = 9, config.n_channels = 2, config.n_classes = 10;
        fixture f = make(golden->class, &config);
        enum { N = 16 };
        static float pixels[N * 13 * 9 * 2];
        static const int32_t targets[N] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
        lsi_batch batch = {
            .images = pixels, .targets = targets, .n_batch = N, .n_time = 1, .stats = f.stats};
        if (dtype == LS_DTYPE_BF16) assert_ok(lsi_model_narrow(f.model));
        lsi_tape_set_dtype(f.tape, dtype);
        loss_of(&f, &batch, true);
        lsi_unit_cost units[64];
        int n_units = golden->class->n_units(&config), next = 0;
        int64_t bytes = 0;
        golden->class->describe(f.model, N, 1, dtype, units);
        for (int u = 0; u < n_units; u++) {
            assert_int_equal(units[u].first_param, next);
            next += units[u].n_params;
            bytes += units[u].activation_bytes;
        }
        assert_int_equal(next, f.model->n_params);
        assert_int_equal(bytes, lsi_arena_used_bytes(f.arena));
        drop(&f);
    }
}

/* One block a stage, n_embd 16, Fashion-MNIST: counted by hand. */
static void operations_are_counted(void **state) {
    (void)state;
    lsi_model_config config = {1, 0, 16, 0, 0, 0.0, 1e-5};
    config.height = config.width = 28, config.n_channels = 1, config.n_classes = 10;
    fixture f = make(&lsi_model_convnet, &config);
    lsi_unit_cost units[5];
    assert_int_equal(f.model->class->n_units(&config), 5);
    f.model->class->describe(f.model, 2, 1, LS_DTYPE_F32, units);
    const double n_images = 2.0, full = 28.0 * 28.0, half = 14.0 * 14.0, quarter = 7.0 * 7.0;
    assert_true(units[0].flops == 4.0 * n_images * full * 9.0 * 16.0);
    assert_true(units[1].flops == 6.0 * n_images * full * 2.0 * 9.0 * 16.0 * 16.0);
    assert_true(units[2].flops ==
                6.0 * n_images * half * (9.0 * 16.0 * 32.0 + 9.0 * 32.0 * 32.0 + 16.0 * 32.0));
    assert_true(units[3].flops ==
                6.0 * n_images * quarter * (9.0 * 32.0 * 64.0 + 9.0 * 64.0 * 64.0 + 32.0 * 64.0));
    assert_true(units[4].flops == 6.0 * n_images * 64.0 * 10.0);
    drop(&f);
}

/* ---- configuration ---- */

static void configurations_survive_json(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        lsi_model_config config = tiny, found;
        config.dropout = 0.25;
        json_t *json = models[m].class->config_to_json(&config);
        assert_string_equal(json_string_value(json_object_get(json, "model_type")),
                            models[m].class->model_type);
        assert_ok(models[m].class->config_from_json(json, &found));
        assert_memory_equal(&found, &config, sizeof config);
        json_decref(json);
    }
}

static void wrong_configurations_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *value;
        ls_status status;
        const char *message;
    } rows[] = {
        {"n_layer", "0", LS_ERR_FORMAT, "n_layer is 0, expected 1"},
        {"n_layer", NULL, LS_ERR_FORMAT, "n_layer is missing"},
        {"n_embd", "\"wide\"", LS_ERR_FORMAT, "n_embd is a text, expected an integer"},
        {"n_embd", "2000000000", LS_ERR_ARGUMENT, "n_embd is 2000000000, expected 1 to 16777216"},
        {"height", "1.5", LS_ERR_FORMAT, "height is a real number"},
        {"width", "40000", LS_ERR_ARGUMENT, "width is 40000, expected 1 to 32768"},
        {"n_channels", "-1", LS_ERR_FORMAT, "n_channels is -1"},
        {"n_classes", "null", LS_ERR_FORMAT, "n_classes"},
        {"dropout", "1", LS_ERR_ARGUMENT, "dropout is 1, expected 0 to less than 1"},
        {"norm_epsilon", "-1e-5", LS_ERR_FORMAT, "norm_epsilon is -1e-05"},
        {"model_type", "\"gpt2\"", LS_ERR_UNSUPPORTED, "model_type is \"gpt2\""},
    };
    for (int m = 0; m < N_MODELS; m++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            lsi_model_config found = {0};
            json_t *json = models[m].class->config_to_json(&tiny);
            json_object_del(json, rows[i].name);
            if (rows[i].value)
                json_object_set_new(json, rows[i].name,
                                    json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
            assert_fails(models[m].class->config_from_json(json, &found), rows[i].status,
                         rows[i].message);
            assert_int_equal(found.n_layer, 0);
            json_decref(json);
        }
    }
}

static void models_too_large_to_count_are_refused(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        lsi_model *model = NULL;
        lsi_model_config config = tiny;
        config.n_embd = 1 << 24;
        config.n_layer = 100000;
        config.height = config.width = config.n_channels = 1 << 15;
        ls_status status = lsi_model_create(models[m].class, &config, &model);
        assert_true(status == LS_ERR_ARGUMENT || status == LS_ERR_MEMORY);
        assert_null(model);
    }
}

/* ---- events ---- */

typedef struct event_log {
    int n, n_ready[128], last_ready;
    struct {
        ls_event event;
        int index;
    } units[64];
} event_log;

static ls_status write_down(void *context, ls_event event, int index) {
    event_log *log = context;
    if (event == LS_EVENT_GRAD_READY) {
        log->n_ready[index]++;
        assert_true(index < log->last_ready);
        log->last_ready = index;
    } else if (event != LS_EVENT_PROGRESS && log->n < 64) {
        log->units[log->n++] = (typeof(log->units[0])){event, index};
    }
    return LS_OK;
}

/* Gradients are ready in exactly the reverse order of parameters. */
static void units_pass_in_order_and_parameters_once(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        lsi_batch batch = golden_batch(&im, &f);
        event_log log = {.last_ready = 1000};
        lsi_tape_listen(f.tape, (ls_event_sink){write_down, &log});
        forward_backward(&f, &batch);
        int at = 0, n_units = f.model->class->n_units(&f.model->config);
        for (int unit = 0; unit < n_units; unit++) {
            assert_int_equal(log.units[at].event, LS_EVENT_BEFORE_FORWARD);
            assert_int_equal(log.units[at++].index, unit);
            assert_int_equal(log.units[at].event, LS_EVENT_AFTER_FORWARD);
            assert_int_equal(log.units[at++].index, unit);
        }
        for (int unit = n_units - 1; unit >= 0; unit--) {
            assert_int_equal(log.units[at].event, LS_EVENT_BEFORE_BACKWARD);
            assert_int_equal(log.units[at++].index, unit);
            assert_int_equal(log.units[at].event, LS_EVENT_AFTER_BACKWARD);
            assert_int_equal(log.units[at++].index, unit);
        }
        assert_int_equal(log.units[at++].event, LS_EVENT_END_OF_BACKWARD);
        assert_int_equal(log.n, at);
        for (int i = 0; i < f.model->n_params; i++)
            assert_int_equal(log.n_ready[i], f.model->params[i].flags & LS_PARAM_FROZEN ? 0 : 1);
        drop(&f);
    }
}

/* ---- failures ---- */

static void bad_batches_are_refused(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture f = make_golden(&models[m]);
        images im;
        const lsi_batch good = golden_batch(&im, &f);
        lsi_batch rows[] = {good, good, good};
        const int32_t far[B] = {0, 0, CLASSES};
        rows[0].n_batch = 0;
        rows[1].images = NULL;
        rows[2].targets = far;
        for (int i = 0; i < 3; i++) {
            lsi_tape_reset(f.tape, true);
            assert_null(f.model->class->forward(f.model, f.tape, &rows[i]));
            assert_fails(lsi_tape_status(f.tape), LS_ERR_ARGUMENT,
                         i < 2 ? "a batch of 0 images" : "4");
        }
        forward_backward(&f, &good); /* none the worse for it */
        drop(&f);
    }
}

/* One value has no variance. */
static void one_pixel_cannot_be_normalised(void **state) {
    (void)state;
    lsi_model_config config = tiny;
    config.height = config.width = 1;
    fixture f = make(&lsi_model_convnet, &config);
    images im;
    lsi_batch batch = golden_batch(&im, &f);
    batch.n_batch = 1;
    lsi_tape_reset(f.tape, true);
    assert_null(f.model->class->forward(f.model, f.tape, &batch));
    assert_fails(lsi_tape_status(f.tape), LS_ERR_ARGUMENT, "use a larger micro-batch");
    loss_of(&f, &batch, false);
    drop(&f);
}

/* Everything that a first pass allocates. */
static ls_status whole_pass(const golden_model *golden, size_t arena_bytes) {
    lsi_model *model = NULL;
    lsi_arena *arena = NULL;
    lsi_tape *tape = NULL;
    static float grads[1 << 14], stats[1 << 10];
    fixture unused = {0};
    images im;
    lsi_model_config config = tiny;
    config.n_embd = golden->width;
    ls_status status = lsi_model_create(golden->class, &config, &model);
    for (int i = 0; model && i < model->n_params; i++)
        model->params[i].grad = grads + ((float *)model->params[i].data - model->data);
    if (status == LS_OK) status = lsi_arena_create(arena_bytes, &arena);
    if (status == LS_OK) status = lsi_tape_create(arena, &tape);
    if (status == LS_OK) {
        unused.model = model;
        lsi_batch batch = golden_batch(&im, &unused);
        batch.stats = stats;
        lsi_model_init(model, 1);
        lsi_tensor *loss = model->class->forward(model, tape, &batch);
        status = lsi_tape_status(tape);
        assert_true(status == LS_OK ? loss != NULL : loss == NULL);
        if (status == LS_OK) status = lsi_tape_backward(tape, loss);
    }
    lsi_tape_destroy(tape);
    if (arena) assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
    lsi_model_destroy(model);
    return status;
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        for (int64_t n = 1;; n++) {
            lsi_mem_fail_at(n);
            ls_status status = whole_pass(&models[m], ARENA_BYTES);
            int failed = lsi_mem_has_failed();
            lsi_mem_fail_at(0);
            assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
            assert_int_equal(lsi_mem_n_blocks(), n_blocks_before);
            if (!failed) break;
            assert_true(n < 500);
        }
    }
}

static void arenas_too_small_fail_cleanly(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        bool passed = false;
        for (size_t bytes = 4096; bytes <= ARENA_BYTES; bytes += bytes < 262144 ? 4096 : bytes) {
            ls_status status = whole_pass(&models[m], bytes);
            assert_true(status == LS_OK || status == LS_ERR_MEMORY);
            assert_true(status == LS_OK || !passed);
            passed |= status == LS_OK;
            assert_int_equal(lsi_mem_n_blocks(), n_blocks_before);
        }
        assert_true(passed);
    }
}

#define LEAK_TEST(name) cmocka_unit_test_setup_teardown(name, count_blocks, nothing_leaked)

int main(void) {
    const struct CMUnitTest tests[] = {
        LEAK_TEST(loss_gradients_and_statistics_equal_pytorch),
        LEAK_TEST(ranks_with_shared_statistics_equal_pytorch),
        LEAK_TEST(inference_equals_pytorch),
        LEAK_TEST(ten_steps_of_training_equal_pytorch),
        LEAK_TEST(gradients_equal_finite_differences),
        LEAK_TEST(checkpointed_units_give_the_same_bits),
        LEAK_TEST(gradients_do_not_depend_on_earlier_passes),
        LEAK_TEST(bfloat16_is_near_float32),
        LEAK_TEST(inference_sees_each_image_alone),
        LEAK_TEST(statistics_fold_in_order),
        LEAK_TEST(fresh_models_know_nothing),
        LEAK_TEST(descriptions_equal_the_arena),
        LEAK_TEST(operations_are_counted),
        LEAK_TEST(configurations_survive_json),
        LEAK_TEST(wrong_configurations_are_refused),
        LEAK_TEST(models_too_large_to_count_are_refused),
        LEAK_TEST(units_pass_in_order_and_parameters_once),
        LEAK_TEST(bad_batches_are_refused),
        LEAK_TEST(one_pixel_cannot_be_normalised),
        LEAK_TEST(failed_allocations_leak_nothing),
        LEAK_TEST(arenas_too_small_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
