/* Logits in the type of outputs (lsi_tape_set_output_dtype): head_loss, and logits with
 * cross_entropy behind them, against a twin in double that rounds where they do.
 *
 * Inputs are small multiples of 1/32, so logits are exact in float32 whatever the order of their
 * sums, and rounding them has one result. Their gradients are not exact, and one that lies between
 * two numbers of bfloat16 could be rounded either way: numbers are drawn again until none is so
 * near to the middle that its error decides. Then all products have known factors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "tensor/gemm.h"
#include "tensor/op.h"
#include "tensor/reference/reference.h"
#include "tensor/rows.h"

enum { MOST = 4096, ARENA_BYTES = 1 << 24 };

typedef struct shape {
    int64_t rows, channels, vocab;
} shape;

static const shape shapes[] = {{1, 1, 2}, {3, 5, 7}, {7, 24, 33}, {5, 16, 201}, {130, 8, 5}};

typedef struct types {
    ls_dtype x, output;
} types;

static const types all_types[] = {{LS_DTYPE_F32, LS_DTYPE_F32},
                                  {LS_DTYPE_F32, LS_DTYPE_BF16},
                                  {LS_DTYPE_BF16, LS_DTYPE_F32},
                                  {LS_DTYPE_BF16, LS_DTYPE_BF16}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_TYPES = sizeof all_types / sizeof *all_types };

typedef struct numbers {
    shape s;
    types t;
    bool has_bias; /* logits and cross_entropy; else head_loss */
    float x[MOST], weight[MOST], bias[MOST];
    uint16_t narrow_weight[MOST], narrow_bias[MOST];
    int32_t targets[MOST];
    double logits[MOST], dlogits[MOST]; /* of the twin, rounded */
    double loss, dx[MOST], dweight[MOST], dbias[MOST];
} numbers;

typedef struct found {
    float loss, dx[MOST], dweight[MOST], dbias[MOST];
} found;

/* ---- the twin ---- */

/* Nearest number of 8 bits, ties to even; no subnormals. */
static double round_to(ls_dtype dtype, double value) {
    if (dtype == LS_DTYPE_F32 || value == 0.0) return value;
    double step = ldexp(1.0, ilogb(value) - 7);
    return nearbyint(value / step) * step;
}

/* Whether the kernels' error, some units in the last place of the softmax, cannot change this. */
static bool is_settled(ls_dtype dtype, double value, bool is_target) {
    if (dtype == LS_DTYPE_F32) return true;
    double error = 4e-7 * (fabs(value) + (is_target ? 1.0 : 0.0));
    return round_to(dtype, value - error) == round_to(dtype, value + error);
}

static void make_twin_logits(numbers *n) {
    const lsi_ref_product product = {n->s.rows, n->s.channels, n->s.vocab, true};
    static double x[MOST], weight[MOST], bias[MOST];
    for (int i = 0; i < MOST; i++)
        x[i] = (double)n->x[i], weight[i] = (double)n->weight[i], bias[i] = (double)n->bias[i];
    lsi_ref_linear(&product, x, weight, n->has_bias ? bias : NULL, n->logits);
    for (int64_t i = 0; i < n->s.rows * n->s.vocab; i++)
        n->logits[i] = round_to(n->t.output, n->logits[i]);
    n->loss = lsi_ref_cross_entropy(n->s.rows, n->s.vocab, n->logits, n->targets);
    lsi_ref_cross_entropy_backward(n->s.rows, n->s.vocab, n->logits, n->targets, 1.0, n->dlogits);
    /* of narrow x the gradient enters narrow products */
    ls_dtype dtype = n->t.x == LS_DTYPE_F32 ? n->t.output : n->t.x;
    bool is_clear = true;
    for (int64_t i = 0; i < n->s.rows * n->s.vocab; i++) {
        bool is_target = i % n->s.vocab == n->targets[i / n->s.vocab];
        is_clear = is_clear && is_settled(dtype, n->dlogits[i], is_target);
        n->dlogits[i] = round_to(dtype, n->dlogits[i]);
    }
    if (!is_clear) n->loss = NAN;
    lsi_ref_linear_backward(&product, x, weight, n->dlogits, n->dx, n->dweight, n->dbias);
}

/* A multiple of 1/32 from -1 to 1. */
static float fraction(uint32_t seed, uint32_t which, int64_t i) {
    lsi_rng_stream stream = lsi_rng_open(seed, LSI_RNG_TEST, which, 0);
    return (float)((int)(lsi_rng_uniform(&stream, (uint64_t)i) * 65.0f) - 32) / 32.0f;
}

/* Every fifth row has no target. */
static void draw(numbers *n, shape s, types t, bool has_bias) {
    *n = (numbers){.s = s, .t = t, .has_bias = has_bias, .loss = NAN};
    for (uint32_t seed = 1; isnan(n->loss); seed++) {
        assert_true(seed < 1000);
        for (int64_t i = 0; i < MOST; i++) {
            n->x[i] = 2.0f * fraction(seed, 0, i), n->weight[i] = fraction(seed, 1, i);
            n->bias[i] = fraction(seed, 2, i);
            n->narrow_weight[i] = lsi_f32_to_bf16(n->weight[i]);
            n->narrow_bias[i] = lsi_f32_to_bf16(n->bias[i]);
            n->targets[i] = i % 5 == 4 ? -1 : (int32_t)(i * 11 % s.vocab);
        }
        make_twin_logits(n);
    }
}

/* ---- the ops ---- */

static lsi_tensor *weight_of(const numbers *n, lsi_tape *tape, ls_param *param, found *f) {
    const int64_t dims[] = {n->s.vocab, n->s.channels};
    const void *data =
        n->t.x == LS_DTYPE_F32 ? (const void *)n->weight : (const void *)n->narrow_weight;
    *param = (ls_param){.name = "weight",
                        .count = dims[0] * dims[1],
                        .dtype = n->t.x,
                        .data = (void *)(uintptr_t)data,
                        .grad = f->dweight};
    return lsi_tape_param(tape, param, 0, 2, dims);
}

static lsi_tensor *bias_of(const numbers *n, lsi_tape *tape, ls_param *param, found *f) {
    const void *data =
        n->t.x == LS_DTYPE_F32 ? (const void *)n->bias : (const void *)n->narrow_bias;
    *param = (ls_param){.name = "bias",
                        .count = n->s.vocab,
                        .dtype = n->t.x,
                        .data = (void *)(uintptr_t)data,
                        .grad = f->dbias};
    return lsi_tape_param(tape, param, 1, 1, &n->s.vocab);
}

static lsi_tensor *loss_of(const numbers *n, lsi_tape *tape, lsi_tensor *x, ls_param params[2],
                           found *f) {
    lsi_tensor *weight = weight_of(n, tape, &params[0], f);
    if (!n->has_bias) return lsi_op_head_loss(tape, x, weight, n->targets);
    lsi_tensor *logits = lsi_op_logits(tape, x, weight, bias_of(n, tape, &params[1], f));
    assert_ok(lsi_tape_status(tape));
    assert_int_equal(logits->dtype, LS_DTYPE_F32);
    for (int64_t i = 0; i < n->s.rows * n->s.vocab; i++)
        assert_true((double)((float *)logits->data)[i] == n->logits[i]);
    return lsi_op_cross_entropy(tape, logits, n->targets);
}

static void run(const numbers *n, bool records, found *f) {
    lsi_arena *arena;
    lsi_tape *tape;
    ls_param params[2];
    assert_ok(lsi_arena_create(ARENA_BYTES, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    lsi_tape_reset(tape, records);
    lsi_tape_set_dtype(tape, n->t.x);
    lsi_tape_set_output_dtype(tape, n->t.output);
    const int64_t dims[] = {n->s.rows, n->s.channels};
    lsi_tensor *x = lsi_tape_input(tape, n->x, 2, dims, true);
    lsi_tensor *loss = loss_of(n, tape, x, params, f);
    assert_ok(lsi_tape_status(tape));
    f->loss = *(const float *)loss->data;
    if (records) {
        assert_ok(lsi_tape_backward(tape, loss));
        lsi_to_floats(x->grad, x->dtype, dims[0] * dims[1], f->dx);
    }
    lsi_tape_destroy(tape);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
}

/* ---- comparison ---- */

static void assert_near(const numbers *n, const char *what, const float *values,
                        const double *expected, int64_t count, double bound) {
    double largest = 1.0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; i++) {
        if (fabs((double)values[i] - expected[i]) <= bound * largest) continue; /* not NaN */
        fail_msg("%s of %d x %d x %d, x %s, outputs %s, element %d: expected %.9g, found %.9g",
                 what, (int)n->s.rows, (int)n->s.channels, (int)n->s.vocab, ls_dtype_name(n->t.x),
                 ls_dtype_name(n->t.output), (int)i, expected[i], (double)values[i]);
    }
}

/* Of narrow x its gradient is narrow: one rounding more. */
static void compare(const numbers *n, const found *f) {
    double x_bound = n->t.x == LS_DTYPE_F32 ? 2e-6 : 1.0 / 256;
    assert_near(n, "loss", &f->loss, &n->loss, 1, 1e-6);
    assert_near(n, "gradient of x", f->dx, n->dx, n->s.rows * n->s.channels, x_bound);
    assert_near(n, "gradient of the weight", f->dweight, n->dweight, n->s.vocab * n->s.channels,
                2e-6);
    if (n->has_bias) assert_near(n, "gradient of the bias", f->dbias, n->dbias, n->s.vocab, 2e-6);
}

static void for_all(void (*check)(const numbers *n)) {
    static numbers n;
    for (int s = 0; s < N_SHAPES; s++)
        for (int t = 0; t < N_TYPES; t++)
            for (int has_bias = 0; has_bias < 2; has_bias++) {
                draw(&n, shapes[s], all_types[t], has_bias);
                check(&n);
            }
}

static void compare_with_twin(const numbers *n) {
    static found f;
    run(n, true, &f);
    compare(n, &f);
}

static void losses_and_gradients_are_those_of_rounded_logits(void **state) {
    (void)state;
    for_all(compare_with_twin);
    lsi_head_loss_piece(1); /* 64 rows at once */
    for_all(compare_with_twin);
    lsi_head_loss_piece(0);
    lsi_product_widens(true);
    for_all(compare_with_twin);
    lsi_product_widens(false);
}

/* Neither whether gradients are wanted, nor pieces, nor threads are seen in the bits of the loss.
 */
static void compare_losses(const numbers *n) {
    static found with, without, in_pieces, shared;
    run(n, true, &with);
    run(n, false, &without);
    lsi_head_loss_piece(1);
    run(n, true, &in_pieces);
    lsi_head_loss_piece(0);
    lsi_compute_set_threads(2);
    run(n, true, &shared);
    lsi_compute_set_threads(1);
    assert_true(with.loss == without.loss);
    assert_true(with.loss == in_pieces.loss);
    assert_true(with.loss == shared.loss);
    if (n->has_bias)
        assert_memory_equal(with.dbias, shared.dbias, (size_t)n->s.vocab * sizeof(float));
}

static void losses_have_the_same_bits_however_they_are_made(void **state) {
    (void)state;
    for_all(compare_losses);
}

/* What would be missed if the tests above compared nothing. */
static void rounding_is_seen(void **state) {
    static numbers wide, narrow;
    static found of_wide, of_narrow;
    (void)state;
    for (int has_bias = 0; has_bias < 2; has_bias++) {
        for (int t = 0; t < N_TYPES; t += 2) {
            draw(&wide, shapes[2], all_types[t], has_bias);
            narrow = wide;
            narrow.t = all_types[t + 1];
            make_twin_logits(&narrow);
            run(&wide, true, &of_wide);
            run(&narrow, true, &of_narrow);
            assert_true(fabsf(of_wide.loss - of_narrow.loss) > 1e-4f);
            double difference = 0.0;
            for (int64_t i = 0; i < wide.s.vocab * wide.s.channels; i++)
                difference =
                    fmax(difference, fabs((double)(of_wide.dweight[i] - of_narrow.dweight[i])));
            assert_true(difference > 1e-4);
        }
    }
}

/* ---- numbers at the ends of the range ---- */

/* One row, whose logits are x times these; target 0. */
static float loss_of_row(float x, const float *weight, int64_t n_weights, ls_dtype output) {
    static numbers n;
    static found f;
    n = (numbers){.s = {1, 1, n_weights}, .t = {LS_DTYPE_F32, output}, .x = {x}};
    memcpy(n.weight, weight, (size_t)n_weights * sizeof *weight);
    run(&n, true, &f);
    for (int64_t i = 0; i < n_weights && isfinite(f.loss); i++) assert_true(isfinite(f.dweight[i]));
    return f.loss;
}

static void large_logits_have_finite_losses_and_broken_ones_show(void **state) {
    (void)state;
    const float far[] = {-1.0f, 1.0f}, alike[] = {1.0f, 1.0f}, ties[] = {0.0f, 1.00390625f};
    const float tiny[] = {1e-40f, 0.0f, 0.0f};
    const struct {
        float x;
        const float *weight;
        int64_t n;
        ls_dtype output;
        float expected;
    } rows[] = {
        {1e30f, far, 2, LS_DTYPE_F32, 2e30f},
        {0x1.8p100f, far, 2, LS_DTYPE_BF16, 0x1.8p101f},
        {1e38f, tiny, 3, LS_DTYPE_BF16, 1.09195f}, /* logits 0.01, 0, 0 */
        {256.0f, ties, 2, LS_DTYPE_F32, 257.0f},
        {256.0f, ties, 2, LS_DTYPE_BF16, 256.0f},     /* 257 lies between 256 and 258: to even */
        {0x1.fep127f, alike, 2, LS_DTYPE_BF16, 0.0f}, /* bfloat16's largest; ln 2 is lost in it */
        {3.4e38f, alike, 2, LS_DTYPE_F32, 0.0f},
        {3.4e38f, alike, 2, LS_DTYPE_BF16, NAN}, /* rounded to infinity */
        {NAN, alike, 2, LS_DTYPE_BF16, NAN},
        {INFINITY, alike, 2, LS_DTYPE_BF16, NAN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float loss = loss_of_row(rows[i].x, rows[i].weight, rows[i].n, rows[i].output);
        bool is_right = isnan(rows[i].expected)
                            ? !isfinite(loss)
                            : fabsf(loss - rows[i].expected) <= 1e-4f * rows[i].expected;
        if (!is_right)
            fail_msg("row %d: expected a loss of %g, found %g", (int)i, (double)rows[i].expected,
                     (double)loss);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_are_those_of_rounded_logits),
        cmocka_unit_test(losses_have_the_same_bits_however_they_are_made),
        cmocka_unit_test(rounding_is_seen),
        cmocka_unit_test(large_logits_have_finite_losses_and_broken_ones_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
