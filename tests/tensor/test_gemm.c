/* Matrix products against the naive triple loop: all transposes, odd sizes, strides, alpha and
 * beta; inputs are small integers, so the results are exact and compared for equality. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "harness/harness.h"
#include "tensor/gemm.h"

enum { PAD = 3 }; /* columns that are no part of a matrix */

static const float guard = 77.0f;

static float *make_matrix(int64_t rows, int64_t columns, uint32_t which) {
    lsi_rng_stream stream = lsi_rng_open(1, LSI_RNG_TEST, which, 0);
    int64_t n = rows * (columns + PAD);
    float *m = malloc(((size_t)n + 1) * sizeof *m);
    assert_non_null(m);
    for (int64_t i = 0; i < n; i++)
        m[i] = (float)((int)(lsi_rng_u32(&stream, (uint64_t)i) % 9) - 4);
    return m;
}

static void put_guards(float *m, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = columns; j < columns + PAD; j++) m[i * (columns + PAD) + j] = guard;
    }
}

typedef struct size {
    int64_t m, n, k;
} size;

static float element(const float *m, int64_t stride, bool transposed, int64_t i, int64_t j) {
    return transposed ? m[j * stride + i] : m[i * stride + j];
}

static void check_product(size s, bool ta, bool tb, float alpha, float beta) {
    float *a = make_matrix(ta ? s.k : s.m, ta ? s.m : s.k, 1);
    float *b = make_matrix(tb ? s.n : s.k, tb ? s.k : s.n, 2);
    float *c = make_matrix(s.m, s.n, 3), *old = make_matrix(s.m, s.n, 3);
    int64_t lda = (ta ? s.m : s.k) + PAD, ldb = (tb ? s.k : s.n) + PAD, ldc = s.n + PAD;
    for (int64_t i = 0; beta == 0.0f && i < s.m * ldc; i++) c[i] = NAN; /* must not be read */
    put_guards(c, s.m, s.n);
    assert_ok(lsi_gemm(ta, tb, s.m, s.n, s.k, alpha, a, lda, b, ldb, beta, c, ldc));
    for (int64_t i = 0; i < s.m; i++) {
        for (int64_t j = 0; j < ldc; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; j < s.n && k < s.k; k++)
                sum += element(a, lda, ta, i, k) * element(b, ldb, tb, k, j);
            float kept = beta == 0.0f ? 0.0f : beta * old[i * ldc + j];
            float expected = j < s.n ? alpha * sum + kept : guard;
            if (c[i * ldc + j] != expected)
                fail_msg("%dx%dx%d ta=%d tb=%d alpha=%g beta=%g at (%d,%d): expected %g, found %g",
                         (int)s.m, (int)s.n, (int)s.k, ta, tb, (double)alpha, (double)beta, (int)i,
                         (int)j, (double)expected, (double)c[i * ldc + j]);
        }
    }
    free(a), free(b), free(c), free(old);
}

static void products_equal_the_naive_loop(void **state) {
    (void)state;
    static const size sizes[] = {{1, 1, 1},    {1, 7, 5},    {7, 1, 5},    {5, 7, 1},     {3, 5, 7},
                                 {16, 16, 16}, {17, 33, 65}, {64, 64, 64}, {97, 101, 103}};
    static const float factors[][2] = {{1, 0}, {1, 1}, {0.5f, 0}, {2, -1}, {0, 2}, {0, 0}};
    for (int threads = 1; threads <= 2; threads++) {
        lsi_compute_set_threads(threads);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (int t = 0; t < 4; t++) {
                for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++)
                    check_product(sizes[i], t & 1, t & 2, factors[f][0], factors[f][1]);
            }
        }
    }
    lsi_compute_set_threads(1);
}

static void empty_products_are_fine(void **state) {
    (void)state;
    for (int t = 0; t < 4; t++) {
        check_product((size){0, 3, 4}, t & 1, t & 2, 1, 0);
        check_product((size){3, 0, 4}, t & 1, t & 2, 1, 0);
        check_product((size){3, 4, 0}, t & 1, t & 2, 1, 0); /* C becomes zero */
        check_product((size){3, 4, 0}, t & 1, t & 2, 1, 2); /* C is scaled */
        check_product((size){0, 0, 0}, t & 1, t & 2, 1, 1);
    }
}

static void bad_sizes_are_answered(void **state) {
    (void)state;
    float x[16] = {0};
    assert_fails(lsi_gemm(false, false, -1, 2, 2, 1, x, 2, x, 2, 0, x, 2), LS_ERR_ARGUMENT,
                 "expected sizes >= 0");
    assert_fails(lsi_gemm(false, false, 2, 2, 3, 1, x, 2, x, 2, 0, x, 2), LS_ERR_ARGUMENT,
                 "at least 3, 2, 2, found strides 2, 2, 2");
    assert_fails(lsi_gemm(true, true, 3, 2, 2, 1, x, 2, x, 2, 0, x, 2), LS_ERR_ARGUMENT,
                 "at least 3, 2, 2");
    assert_fails(lsi_gemm(false, false, 2, 3, 2, 1, x, 2, x, 3, 0, x, 2), LS_ERR_ARGUMENT,
                 "at least 2, 3, 3");
}

/* Bits must not depend on where in memory operands lie. */
static void bits_do_not_depend_on_addresses(void **state) {
    (void)state;
    enum { N = 70, ELEMS = N * N };
    static float from[2][ELEMS + 16], to[2][ELEMS + 16];
    lsi_rng_stream stream = lsi_rng_open(2, LSI_RNG_TEST, 0, 0);
    for (int shift = 0; shift < 16; shift += 5) {
        for (int64_t i = 0; i < ELEMS; i++)
            from[0][i] = from[1][i + shift] = lsi_rng_uniform(&stream, (uint64_t)i) - 0.5f;
        for (int t = 0; t < 4; t++) {
            for (int which = 0; which < 2; which++) {
                const float *x = from[which] + which * shift;
                assert_ok(lsi_gemm(t & 1, t & 2, N, N, N, 1, x, N, x, N, 0,
                                   to[which] + which * shift, N));
            }
            assert_memory_equal(to[0], to[1] + shift, ELEMS * sizeof(float));
        }
    }
}

static void library_names_itself(void **state) {
    (void)state;
    const char *name = lsi_gemm_library();
    assert_true(strncmp(name, "oneDNN ", 7) == 0 || strncmp(name, "CBLAS (", 7) == 0);
}

static void threads_are_at_least_one(void **state) {
    (void)state;
    assert_int_equal(lsi_compute_threads(), 1);
    lsi_compute_set_threads(0);
    assert_int_equal(lsi_compute_threads(), 1);
    lsi_compute_set_threads(-3);
    assert_int_equal(lsi_compute_threads(), 1);
    lsi_compute_set_threads(2);
    assert_int_equal(lsi_compute_threads(), 2);
    lsi_compute_set_threads(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_the_naive_loop),
        cmocka_unit_test(empty_products_are_fine),
        cmocka_unit_test(bad_sizes_are_answered),
        cmocka_unit_test(bits_do_not_depend_on_addresses),
        cmocka_unit_test(library_names_itself),
        cmocka_unit_test(threads_are_at_least_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
