/* Models without values, and values in pieces: hollow ones against whole ones, for every class. */
#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "nn/every_class.h"

enum { SEED = 7 };

static lsi_model *make_hollow(const lsi_model_class *class) {
    lsi_model *model;
    const lsi_model_config config = small_config(class);
    assert_ok(lsi_model_create_hollow(class, &config, &model));
    return model;
}

static lsi_model *make_whole(const lsi_model_class *class) {
    lsi_model *model;
    const lsi_model_config config = small_config(class);
    assert_ok(lsi_model_create(class, &config, &model));
    lsi_model_init(model, SEED);
    return model;
}

static void assert_hollow(const lsi_model *model) {
    assert_null(model->data);
    assert_null(model->upper);
    assert_null(model->lower);
    for (int i = 0; i < model->n_params; i++) {
        assert_null(model->params[i].data);
        assert_null(model->params[i].grad);
        assert_null(lsi_model_values(model, i));
    }
}

/* ---- descriptions ---- */

static void assert_same_descriptions(const lsi_model *found, const lsi_model *expected) {
    assert_int_equal(found->n_params, expected->n_params);
    assert_int_equal(found->n_elems, expected->n_elems);
    assert_int_equal(found->n_stats, expected->n_stats);
    for (int i = 0; i < found->n_params; i++) {
        const ls_param *a = &found->params[i], *b = &expected->params[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->count, b->count);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->flags, b->flags);
        assert_int_equal(a->n_dims, b->n_dims);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        assert_memory_equal(&found->shapes[i], &expected->shapes[i], sizeof *found->shapes);
    }
}

static void hollow_models_are_described_as_whole_ones(void **state) {
    (void)state;
    for (int c = 0; lsi_model_classes[c]; c++)
        for (int narrow = 0; narrow < 2; narrow++) {
            lsi_model *hollow = make_hollow(lsi_model_classes[c]);
            if (narrow) assert_ok(lsi_model_narrow(hollow));
            assert_hollow(hollow);
            assert_int_equal(lsi_mem_now(LSI_MEM_PARAMS), 0);
            assert_int_equal(lsi_mem_now(LSI_MEM_OPTIMIZER), 0);
            lsi_model *whole = make_whole(lsi_model_classes[c]);
            if (narrow) assert_ok(lsi_model_narrow(whole));
            assert_same_descriptions(hollow, whole);
            lsi_model_release(hollow);
            assert_hollow(hollow);
            lsi_model_destroy(whole);
            lsi_model_destroy(hollow);
            assert_int_equal(lsi_mem_n_blocks(), 0);
            assert_int_equal(lsi_mem_now(LSI_MEM_PARAMS), 0);
        }
}

static void frozen_parameters_keep_a_model_whole(void **state) {
    (void)state;
    for (int c = 0; lsi_model_classes[c]; c++) {
        const lsi_model_class *class = lsi_model_classes[c];
        lsi_model *model = make_hollow(class);
        assert_int_equal(lsi_model_can_be_hollow(model), strcmp(class->name, "convnet") != 0);
        model->params[model->n_params - 1].flags |= LS_PARAM_FROZEN;
        assert_false(lsi_model_can_be_hollow(model));
        lsi_model_destroy(model);
    }
}

/* ---- pieces ---- */

static void assert_piece(const lsi_model *whole, lsi_initial_values *from, int i, int64_t begin,
                         int64_t count) {
    float piece[2048];
    const float untouched = 42.0f;
    assert_true(count < 2048 - 2);
    piece[0] = piece[count + 1] = untouched;
    assert_ok(lsi_initial_values_fill(from, i, begin, count, piece + 1));
    const float *expected = (const float *)whole->params[i].data + begin;
    if (memcmp(piece + 1, expected, (size_t)count * sizeof *piece) != 0)
        fail_msg("%s: %s: elements %lld to %lld differ", whole->class->name, whole->params[i].name,
                 (long long)begin, (long long)(begin + count));
    assert_true(piece[0] == untouched && piece[count + 1] == untouched);
}

static void pieces_of_initial_values_are_those_of_the_whole(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 3, 7, 255, 256, 257};
    for (int c = 0; lsi_model_classes[c]; c++) {
        lsi_model *whole = make_whole(lsi_model_classes[c]);
        lsi_model *hollow = make_hollow(lsi_model_classes[c]);
        lsi_initial_values from = {hollow, SEED};
        int64_t most = 0;
        for (int i = 0; i < whole->n_params; i++) {
            int64_t count = whole->params[i].count;
            if (count > most) most = count;
            assert_piece(whole, &from, i, 0, count);
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
                for (int64_t begin = 0; begin + lengths[k] <= count; begin++)
                    assert_piece(whole, &from, i, begin, lengths[k]);
        }
        assert_true(most > 257); /* more than a batch of random numbers */
        assert_hollow(hollow);
        lsi_model_destroy(hollow);
        lsi_model_destroy(whole);
    }
}

/* ---- made whole ---- */

static void made_whole_is_the_same_as_whole_from_the_start(void **state) {
    (void)state;
    for (int c = 0; lsi_model_classes[c]; c++) {
        lsi_model *whole = make_whole(lsi_model_classes[c]);
        lsi_model *model = make_hollow(lsi_model_classes[c]);
        lsi_initial_values from = {model, SEED};
        assert_ok(lsi_model_make_whole(model, lsi_initial_values_fill, &from));
        assert_same_descriptions(model, whole);
        assert_memory_equal(model->data, whole->data,
                            (size_t)whole->n_data_elems * sizeof *whole->data);
        for (int i = 0; i < model->n_params; i++)
            assert_ptr_equal(model->params[i].data, model->data + model->offsets[i]);
        lsi_model_destroy(model);
        lsi_model_destroy(whole);
    }
}

static ls_status fail_at(void *context, int i, int64_t begin, int64_t count, float *values) {
    (void)begin, (void)count, (void)values;
    return i == *(int *)context ? lsi_fail(LS_ERR_IO, "no values of %d", i) : LS_OK;
}

static void values_that_fail_leave_the_model_hollow(void **state) {
    (void)state;
    lsi_model *model = make_hollow(lsi_model_classes[0]);
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int i = 0; i < model->n_params; i++) {
        char message[32];
        snprintf(message, sizeof message, "no values of %d", i);
        assert_fails(lsi_model_make_whole(model, fail_at, &i), LS_ERR_IO, message);
        assert_hollow(model);
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
    }
    lsi_model_destroy(model);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    const lsi_model_class *class = lsi_model_classes[0];
    const lsi_model_config config = small_config(class);
    for (int64_t n = 1;; n++) {
        lsi_model *model = NULL;
        lsi_mem_fail_at(n);
        ls_status status = lsi_model_create_hollow(class, &config, &model);
        lsi_initial_values from = {model, SEED};
        if (status == LS_OK) {
            status = lsi_model_make_whole(model, lsi_initial_values_fill, &from);
            if (status != LS_OK) assert_hollow(model);
        }
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        lsi_model_destroy(model);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hollow_models_are_described_as_whole_ones),
        cmocka_unit_test(frozen_parameters_keep_a_model_whole),
        cmocka_unit_test(pieces_of_initial_values_are_those_of_the_whole),
        cmocka_unit_test(made_whole_is_the_same_as_whole_from_the_start),
        cmocka_unit_test(values_that_fail_leave_the_model_hollow),
        cmocka_unit_test(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
