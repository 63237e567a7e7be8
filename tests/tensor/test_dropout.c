/* Dropout: the mask is the documented function of the stream, has the right share of zeros and no
 * pattern, is scaled, and is the same again in backward, in a second pass and for part of a row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "tensor/dropout_mask.h"
#include "tensor/op.h"
#include "tensor/reference/reference.h"

enum { N = 1 << 20 };

static const lsi_rng_stream streams[] = {
    {{0, 0}, {0, 0}},
    {{0x243f6a88, 0x85a308d3}, {0x13198a2e, 0x03707344}},
    {{0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}},
};
enum { N_STREAMS = sizeof streams / sizeof streams[0] };

/* The generator in lanes is lsi_rng_block, also where a block number passes 2^32. */
static void factors_equal_the_plain_generator(void **state) {
    (void)state;
    static const int64_t groups[] = {0, 1, 1000003, 0x0FFFFFFF, 0x10000000, 0x123456789AB};
    float factor[256];
    for (int s = 0; s < N_STREAMS; s++) {
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
            lsi_mask_factors(&streams[s], 0.25f, groups[g], 200, factor);
            for (int64_t i = 0; i < 200; i++) {
                double expected = lsi_ref_dropout_factor(&streams[s], 0.25f, groups[g] * 64 + i);
                assert_true(fabs((double)factor[i] - expected) <= 1e-7 * expected);
            }
        }
    }
}

static void shorter_rows_get_the_same_mask(void **state) {
    (void)state;
    float longest[320], shorter[320];
    lsi_mask_factors(&streams[1], 0.5f, 7, 320, longest);
    for (int64_t n = 0; n <= 320; n++) {
        lsi_mask_factors(&streams[1], 0.5f, 7, n, shorter);
        assert_memory_equal(longest, shorter, (size_t)n * sizeof(float));
    }
}

/* Share of zeros within five deviations; neighbours independent within the same. */
static void zeros_have_their_share_and_no_pattern(void **state) {
    (void)state;
    static const float shares[] = {0.001f, 0.1f, 0.5f, 0.9f};
    float *factor = malloc(N * sizeof *factor);
    assert_non_null(factor);
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        double p = (double)shares[i];
        lsi_mask_factors(&streams[1], shares[i], 0, N, factor);
        for (int distance = 0; distance <= 64; distance = distance ? distance * 2 : 1) {
            int64_t both = 0, n = N - distance;
            for (int64_t k = 0; k < n; k++)
                both += factor[k] == 0.0f && factor[k + distance] == 0.0f;
            double share = distance ? p * p : p;
            double deviation = sqrt((double)n * share * (1.0 - share));
            assert_true(fabs((double)both - share * (double)n) <= 5.0 * deviation + 1.0);
        }
    }
    free(factor);
}

/* ---- the op ---- */

typedef struct net {
    lsi_arena *arena;
    lsi_tape *tape;
} net;

static net open_net(void) {
    net n;
    assert_ok(lsi_arena_create(1 << 24, &n.arena));
    assert_ok(lsi_tape_create(n.arena, &n.tape));
    return n;
}

static void close_net(net n) {
    lsi_tape_destroy(n.tape);
    lsi_arena_destroy(n.arena);
}

enum { WIDTH = 1000 };

static lsi_tensor *ones(lsi_tape *tape) {
    float values[WIDTH];
    for (int i = 0; i < WIDTH; i++) values[i] = 1.0f;
    return lsi_tape_input(tape, values, 1, (int64_t[]){WIDTH}, true);
}

/* The factors of the second dropout of a pass. */
static void mask_of_pass(net n, uint64_t seed, uint32_t step, uint32_t micro_batch,
                         float out[WIDTH]) {
    lsi_tape_reset(n.tape, true);
    lsi_tape_seed(n.tape, seed, step, micro_batch);
    (void)lsi_op_dropout(n.tape, ones(n.tape), 0.5f);
    lsi_tensor *y = lsi_op_dropout(n.tape, ones(n.tape), 0.5f);
    assert_non_null(y);
    memcpy(out, y->data, WIDTH * sizeof(float));
}

static void masks_repeat_by_seed_step_and_micro_batch_alone(void **state) {
    (void)state;
    static const uint32_t passes[][3] = {{1, 2, 3}, {2, 2, 3}, {1, 3, 3}, {1, 2, 4}};
    net n = open_net(), other = open_net();
    float mask[4][WIDTH], again[WIDTH];
    for (int i = 0; i < 4; i++) {
        mask_of_pass(n, passes[i][0], passes[i][1], passes[i][2], mask[i]);
        mask_of_pass(other, passes[i][0], passes[i][1], passes[i][2], again);
        assert_memory_equal(mask[i], again, sizeof again);
        for (int k = 0; k < i; k++) assert_memory_not_equal(mask[i], mask[k], sizeof again);
    }
    close_net(n);
    close_net(other);
}

static void layers_of_a_pass_have_different_masks(void **state) {
    (void)state;
    net n = open_net();
    lsi_tensor *x = ones(n.tape);
    lsi_tensor *a = lsi_op_dropout(n.tape, x, 0.5f), *b = lsi_op_dropout(n.tape, x, 0.5f);
    assert_memory_not_equal(a->data, b->data, WIDTH * sizeof(float));
    close_net(n);
}

static void gradient_is_the_mask(void **state) {
    (void)state;
    net n = open_net();
    lsi_tensor *x = ones(n.tape);
    lsi_tensor *y = lsi_op_dropout(n.tape, x, 0.75f);
    float mask[WIDTH];
    memcpy(mask, y->data, sizeof mask);
    int n_zeros = 0;
    for (int i = 0; i < WIDTH; i++) {
        assert_true(mask[i] == 0.0f || mask[i] == 4.0f);
        n_zeros += mask[i] == 0.0f;
    }
    assert_in_range(n_zeros, 680, 820);
    assert_ok(lsi_tape_backward(n.tape, y));
    assert_memory_equal(x->grad, mask, sizeof mask);
    close_net(n);
}

/* ---- recomputed (T096) ---- */

typedef struct recomputed {
    float y[WIDTH], dx[WIDTH], dw[WIDTH]; /* dw: what backward sees of y */
    float next[WIDTH];                    /* the pass's next draw */
} recomputed;

/* loss = sum of w dropout(x, 0.5), w = 1, in a unit that keeps its input alone, or all. */
static void pass_through_unit(uint32_t micro_batch, bool keeps_all, recomputed *out) {
    float weight[WIDTH];
    for (int i = 0; i < WIDTH; i++) weight[i] = 1.0f;
    ls_param w = {.name = "w", .count = WIDTH, .dtype = LS_DTYPE_F32, .data = weight};
    w.grad = out->dw;
    net n = open_net();
    lsi_tape_seed(n.tape, 1, 0, micro_batch);
    lsi_tape_checkpoint(n.tape, keeps_all ? 0 : 1);
    lsi_tape_unit_begin(n.tape, 1);
    lsi_tensor *x = ones(n.tape);
    lsi_tensor *y = lsi_op_dropout(n.tape, x, 0.5f);
    assert_non_null(y);
    memcpy(out->y, y->data, sizeof out->y);
    lsi_tensor *w_leaf = lsi_tape_param(n.tape, &w, 0, 2, (int64_t[]){WIDTH, 1});
    lsi_tensor *loss = lsi_op_linear(n.tape, y, w_leaf, NULL);
    lsi_tape_drop(n.tape, y);
    lsi_tape_unit_end(n.tape, 1);
    if (!keeps_all) assert_null(y->data);
    assert_ok(lsi_tape_backward(n.tape, loss));
    memcpy(out->dx, x->grad, sizeof out->dx);
    memcpy(out->next, lsi_op_dropout(n.tape, ones(n.tape), 0.5f)->data, sizeof out->next);
    close_net(n);
}

/* Micro-batches 0 and 1 are those of two workers. */
static void recomputed_masks_and_later_draws_are_those_of_forward(void **state) {
    (void)state;
    static recomputed kept[2], again[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        pass_through_unit(rank, true, &kept[rank]);
        pass_through_unit(rank, false, &again[rank]);
        assert_memory_equal(&kept[rank], &again[rank], sizeof kept[rank]);
        for (int i = 0; i < WIDTH; i++) {
            assert_true(again[rank].dx[i] == (kept[rank].y[i] != 0.0f ? 2.0f : 0.0f));
            assert_true(again[rank].dw[i] == kept[rank].y[i]);
        }
        assert_memory_not_equal(kept[rank].y, kept[rank].next, sizeof kept[rank].y);
    }
    assert_memory_not_equal(kept[0].y, kept[1].y, sizeof kept[0].y);
}

static void nothing_is_dropped_at_zero_or_without_recording(void **state) {
    (void)state;
    net n = open_net();
    lsi_tensor *x = ones(n.tape);
    assert_ptr_equal(lsi_op_dropout(n.tape, x, 0.0f), x);
    lsi_tape_reset(n.tape, false);
    x = ones(n.tape);
    assert_ptr_equal(lsi_op_dropout(n.tape, x, 0.9f), x);
    close_net(n);
}

static void bad_probabilities_are_answered(void **state) {
    (void)state;
    static const float bad[] = {-0.1f, 1.0f, 2.0f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        net n = open_net();
        assert_null(lsi_op_dropout(n.tape, ones(n.tape), bad[i]));
        assert_fails(lsi_tape_status(n.tape), LS_ERR_ARGUMENT, "dropout: expected a probability");
        close_net(n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_equal_the_plain_generator),
        cmocka_unit_test(shorter_rows_get_the_same_mask),
        cmocka_unit_test(zeros_have_their_share_and_no_pattern),
        cmocka_unit_test(masks_repeat_by_seed_step_and_micro_batch_alone),
        cmocka_unit_test(layers_of_a_pass_have_different_masks),
        cmocka_unit_test(gradient_is_the_mask),
        cmocka_unit_test(recomputed_masks_and_later_draws_are_those_of_forward),
        cmocka_unit_test(nothing_is_dropped_at_zero_or_without_recording),
        cmocka_unit_test(bad_probabilities_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
