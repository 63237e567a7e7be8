/* Models before any arithmetic: the table, parameters in memory, initial values. */
#include "harness/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "nn/model.h"

static const lsi_model_config tiny = {
    .n_layer = 2,
    .n_head = 2,
    .n_embd = 12,
    .seq_len = 7,
    .vocab_size = 11,
    .dropout = 0.0,
    .norm_epsilon = 1e-5,
};

static const lsi_model_class *gpt2(void) {
    const lsi_model_class *class = NULL;
    assert_ok(lsi_model_class_find("gpt2", &class));
    return class;
}

static lsi_model *make(const lsi_model_config *config) {
    lsi_model *model = NULL;
    assert_ok(lsi_model_create(gpt2(), config, &model));
    return model;
}

/* ---- the table ---- */

static void every_row_is_complete_and_found_by_name(void **state) {
    (void)state;
    int n = 0;
    for (; lsi_model_classes[n]; n++) {
        const lsi_model_class *row = lsi_model_classes[n], *found = NULL;
        assert_true(row->name && row->help && row->check && row->build && row->forward);
        assert_true(row->config_to_json && row->config_from_json);
        assert_true(row->n_units && row->describe && row->model_type && row->file_prefix);
        assert_ok(lsi_model_class_find(row->name, &found));
        assert_ptr_equal(found, row);
    }
    assert_true(n >= 1);
}

static void unknown_models_list_the_known_ones(void **state) {
    (void)state;
    const lsi_model_class *class = NULL;
    assert_fails(lsi_model_class_find("gtp2", &class), LS_ERR_NOT_FOUND,
                 "unknown model 'gtp2'; known: gpt2");
    assert_non_null(strstr(ls_last_message(), "did you mean 'gpt2'?"));
    assert_fails(lsi_model_class_find("", &class), LS_ERR_NOT_FOUND, "known: gpt2");
    assert_null(class);
}

/* ---- parameters ---- */

static void gpt2_124m_has_the_known_number_of_parameters(void **state) {
    (void)state;
    lsi_model_config config = {12, 12, 768, 1024, 50257, 0.1, 1e-5};
    lsi_model *model = make(&config);
    assert_int_equal(model->n_params, 148);
    assert_int_equal(model->n_elems, 124439808);
    /* 6 N + 12 L C T; N without positions, biases and norms, which are not multiplied */
    double weights = 124439808.0 - 1024.0 * 768.0 - (12.0 * 13.0 + 2.0) * 768.0;
    assert_true(lsi_model_flops_per_token(model, 1024) ==
                6.0 * weights + 12.0 * 12.0 * 768.0 * 1024.0);
    lsi_model_destroy(model);
}

static void parameters_carry_the_names_and_shapes_of_the_files(void **state) {
    (void)state;
    const struct {
        const char *name;
        int index, n_dims;
        int64_t rows, columns;
        uint32_t flags;
    } rows[] = {
        {"wte.weight", 0, 2, 11, 12, 0},
        {"wpe.weight", 1, 2, 7, 12, 0},
        {"h.0.ln_1.weight", 2, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.0.ln_1.bias", 3, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.0.attn.c_attn.weight", 4, 2, 12, 36, 0},
        {"h.0.attn.c_attn.bias", 5, 1, 36, 0, LS_PARAM_NO_DECAY},
        {"h.0.attn.c_proj.weight", 6, 2, 12, 12, 0},
        {"h.0.attn.c_proj.bias", 7, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.0.ln_2.weight", 8, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.0.ln_2.bias", 9, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.0.mlp.c_fc.weight", 10, 2, 12, 48, 0},
        {"h.0.mlp.c_fc.bias", 11, 1, 48, 0, LS_PARAM_NO_DECAY},
        {"h.0.mlp.c_proj.weight", 12, 2, 48, 12, 0},
        {"h.0.mlp.c_proj.bias", 13, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.1.ln_1.weight", 14, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"h.1.mlp.c_proj.bias", 25, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"ln_f.weight", 26, 1, 12, 0, LS_PARAM_NO_DECAY},
        {"ln_f.bias", 27, 1, 12, 0, LS_PARAM_NO_DECAY},
    };
    lsi_model *model = make(&tiny);
    assert_int_equal(model->n_params, 28);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        int i = lsi_model_find(model, rows[r].name);
        assert_int_equal(i, rows[r].index);
        assert_int_equal(model->shapes[i].n_dims, rows[r].n_dims);
        assert_int_equal(model->shapes[i].dims[0], rows[r].rows);
        assert_int_equal(model->shapes[i].dims[1], rows[r].columns);
        assert_int_equal(model->params[i].flags, rows[r].flags);
    }
    assert_int_equal(lsi_model_find(model, "transformer.wte.weight"), -1);
    assert_int_equal(lsi_model_find(model, "h.2.ln_1.weight"), -1);
    lsi_model_destroy(model);
}

/* Classes leave alone what is not theirs. */
static const lsi_model_config any = {
    .n_layer = 2,
    .n_head = 2,
    .n_embd = 12,
    .seq_len = 7,
    .vocab_size = 11,
    .norm_epsilon = 1e-5,
    .n_kv_head = 1,
    .n_inner = 8,
    .rope_theta = 1e4,
};
static const lsi_model_config any_of_images = {
    .n_layer = 1,
    .n_embd = 4,
    .norm_epsilon = 1e-5,
    .height = 5,
    .width = 6,
    .n_channels = 2,
    .n_classes = 3,
};

/* What strategies see of a model says the same as what the tape sees. */
static void parameters_say_their_shapes(void **state) {
    (void)state;
    for (int m = 0; lsi_model_classes[m]; m++) {
        const lsi_model_class *class = lsi_model_classes[m];
        lsi_model *model;
        assert_ok(lsi_model_create(class, class->takes_images ? &any_of_images : &any, &model));
        for (int i = 0; i < model->n_params; i++) {
            const ls_param *param = &model->params[i];
            int64_t count = 1;
            assert_int_equal(param->n_dims, model->shapes[i].n_dims);
            for (int d = 0; d < param->n_dims; d++) {
                assert_int_equal(param->shape[d], model->shapes[i].dims[d]);
                count *= param->shape[d];
            }
            assert_int_equal(count, param->count);
        }
        lsi_model_destroy(model);
    }
}

static void parameters_lie_apart_in_one_aligned_block(void **state) {
    (void)state;
    lsi_model_config config = tiny;
    config.n_embd = 6; /* most counts are no multiple of 16 */
    lsi_model *model = make(&config);
    int64_t total = 0;
    const float *end = model->data;
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *param = &model->params[i];
        int64_t count = model->shapes[i].dims[0];
        if (model->shapes[i].n_dims == 2) count *= model->shapes[i].dims[1];
        assert_int_equal(param->count, count);
        assert_int_equal((uintptr_t)param->data % 64, 0);
        assert_true((const float *)param->data >= end);
        assert_true((const float *)param->data < end + 16);
        assert_int_equal(param->dtype, LS_DTYPE_F32);
        assert_null(param->grad);
        end = (const float *)param->data + param->count;
        total += count;
        for (int k = 0; k < i; k++) assert_string_not_equal(param->name, model->params[k].name);
    }
    assert_int_equal(model->n_elems, total);
    assert_true(lsi_mem_now(LSI_MEM_PARAMS) >= (char *)end - (char *)model->data);
    lsi_model_destroy(model);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- initial values ---- */

static void moments_of(const ls_param *param, double *mean, double *deviation) {
    const float *values = param->data;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < param->count; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    *mean = sum / (double)param->count;
    *deviation = sqrt(squares / (double)param->count - *mean * *mean);
}

static void initial_values_have_gpt2s_distribution(void **state) {
    (void)state;
    lsi_model_config config = {4, 4, 64, 64, 256, 0.0, 1e-5};
    lsi_model *model = make(&config);
    lsi_model_init(model, 1);
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *param = &model->params[i];
        const char *name = param->name;
        double mean, deviation, wanted_mean = 0.0, wanted = 0.0;
        if (model->shapes[i].n_dims == 2)
            wanted = strstr(name, "c_proj") ? 0.02 / sqrt(8.0) : 0.02;
        else if (strstr(name, "ln_") && strstr(name, "weight"))
            wanted_mean = 1.0;
        moments_of(param, &mean, &deviation);
        /* five deviations of the estimates */
        double slack = 5.0 / sqrt((double)param->count);
        assert_true(fabs(mean - wanted_mean) <= slack * wanted);
        assert_true(fabs(deviation - wanted) <= slack * wanted);
    }
    lsi_model_destroy(model);
}

static void same_seed_gives_the_same_bits_and_another_seed_others(void **state) {
    (void)state;
    lsi_model *a = make(&tiny), *b = make(&tiny), *c = make(&tiny);
    lsi_model_init(b, 8);
    lsi_model_init(a, 7);
    lsi_model_init(b, 7);
    lsi_model_init(c, 7 + ((uint64_t)1 << 32));
    for (int i = 0; i < a->n_params; i++) {
        size_t bytes = (size_t)a->params[i].count * sizeof(float);
        assert_memory_equal(a->params[i].data, b->params[i].data, bytes);
        if (a->shapes[i].n_dims == 2)
            assert_memory_not_equal(a->params[i].data, c->params[i].data, bytes);
    }
    lsi_model_destroy(c);
    lsi_model_destroy(b);
    lsi_model_destroy(a);
}

static void parameters_of_one_shape_start_differently(void **state) {
    (void)state;
    lsi_model *model = make(&tiny);
    lsi_model_init(model, 7);
    int a = lsi_model_find(model, "h.0.mlp.c_fc.weight");
    int b = lsi_model_find(model, "h.1.mlp.c_fc.weight");
    assert_memory_not_equal(model->params[a].data, model->params[b].data, 12 * 48 * sizeof(float));
    lsi_model_destroy(model);
}

/* ---- failures ---- */

static void bad_configurations_make_no_model(void **state) {
    (void)state;
    lsi_model *model = NULL;
    lsi_model_config config = tiny;
    config.n_head = 5;
    assert_fails(lsi_model_create(gpt2(), &config, &model), LS_ERR_ARGUMENT,
                 "n_embd is 12, expected a multiple of n_head, 5");
    config = (lsi_model_config){1 << 20, 1, 1 << 20, 1, 1, 0.0, 1e-5};
    assert_fails(lsi_model_create(gpt2(), &config, &model), LS_ERR_ARGUMENT,
                 "more than can be addressed");
    assert_null(model);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    const lsi_model_class *class = gpt2();
    for (int64_t n = 1;; n++) {
        lsi_model *model = NULL;
        lsi_mem_fail_at(n);
        ls_status status = lsi_model_create(class, &tiny, &model);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        assert_true(failed ? model == NULL : model != NULL);
        lsi_model_destroy(model);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 20);
    }
    lsi_model_destroy(NULL);
}

static void impossible_parameters_are_refused_by_name(void **state) {
    (void)state;
    lsi_model model = {0};
    const int64_t dims[5] = {INT64_MAX / 2, 3, 1, 1, 1}, negative[] = {4, -1}, long_one[] = {1};
    assert_fails(lsi_model_add_param(&model, "w", 2, dims, 0, LSI_INIT_ZERO, 0.0), LS_ERR_ARGUMENT,
                 "parameter w: dim 1 is 3");
    assert_fails(lsi_model_add_param(&model, "w", 2, negative, 0, LSI_INIT_ZERO, 0.0),
                 LS_ERR_ARGUMENT, "dim 1 is -1");
    assert_fails(lsi_model_add_param(&model, "w", 5, dims, 0, LSI_INIT_ZERO, 0.0), LS_ERR_ARGUMENT,
                 "parameter w has 5 dims, expected 1 to 4");
    assert_fails(lsi_model_add_param(&model, "w", 0, dims, 0, LSI_INIT_ZERO, 0.0), LS_ERR_ARGUMENT,
                 "0 dims");
    assert_fails(lsi_model_add_param(&model, "w", 1, dims, 0, LSI_INIT_ZERO, 0.0), LS_ERR_ARGUMENT,
                 "up to w need more than 2^63 bytes");
    assert_int_equal(model.n_params, 0);
    assert_int_equal(model.n_data_elems, 0);
    assert_ok(lsi_model_add_param(&model, "w", 1, long_one, 0, LSI_INIT_ZERO, 0.0));
    assert_int_equal(model.n_data_elems, 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_complete_and_found_by_name),
        cmocka_unit_test(unknown_models_list_the_known_ones),
        cmocka_unit_test(gpt2_124m_has_the_known_number_of_parameters),
        cmocka_unit_test(parameters_carry_the_names_and_shapes_of_the_files),
        cmocka_unit_test(parameters_say_their_shapes),
        cmocka_unit_test(parameters_lie_apart_in_one_aligned_block),
        cmocka_unit_test(initial_values_have_gpt2s_distribution),
        cmocka_unit_test(same_seed_gives_the_same_bits_and_another_seed_others),
        cmocka_unit_test(parameters_of_one_shape_start_differently),
        cmocka_unit_test(bad_configurations_make_no_model),
        cmocka_unit_test(failed_allocations_leak_nothing),
        cmocka_unit_test(impossible_parameters_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
