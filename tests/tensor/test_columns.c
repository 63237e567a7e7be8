/* Sums over rows: exact for small integers at every odd size, the same with two threads, and not
 * worse with the number of rows than sums in blocks are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"
#include "tensor/columns.h"
#include "tensor/gemm.h"

static const int64_t some_rows[] = {0, 1, 2, 63, 64, 65, 128, 1001};
static const int64_t some_columns[] = {1, 3, 16, 255, 256, 257, 1025, 4097};
enum { N_ROWS = 8, N_COLUMNS = 8 };

/* Element (r,c) is (r + c) mod 5. */
static void check_sums(int64_t rows, int64_t columns) {
    float *dy = malloc((size_t)(rows * columns + 1) * sizeof *dy);
    float *grad = malloc((size_t)columns * sizeof *grad);
    assert_non_null(dy);
    assert_non_null(grad);
    for (int64_t i = 0; i < rows * columns; i++) dy[i] = (float)((i / columns + i % columns) % 5);
    for (int64_t c = 0; c < columns; c++) grad[c] = NAN;
    lsi_add_columns(dy, LS_DTYPE_F32, rows, columns, grad, true);
    lsi_add_columns(dy, LS_DTYPE_F32, rows, columns, grad, false);
    for (int64_t c = 0; c < columns; c++) {
        int64_t sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += (r + c) % 5;
        if (grad[c] != 2.0f * (float)sum)
            fail_msg("%d rows, %d columns, column %d: expected %g, found %g", (int)rows,
                     (int)columns, (int)c, 2.0 * (double)sum, (double)grad[c]);
    }
    free(dy), free(grad);
}

static void sums_equal_closed_form(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        lsi_compute_set_threads(threads);
        for (int r = 0; r < N_ROWS; r++) {
            for (int c = 0; c < N_COLUMNS; c++) check_sums(some_rows[r], some_columns[c]);
        }
    }
    lsi_compute_set_threads(1);
}

/* Adding 0.1 a quarter of a million times one by one is wrong by a percent. */
static void many_rows_lose_little(void **state) {
    (void)state;
    enum { ROWS = 1 << 18 };
    float *dy = malloc(ROWS * sizeof *dy), sum;
    assert_non_null(dy);
    for (int i = 0; i < ROWS; i++) dy[i] = 0.1f;
    lsi_add_columns(dy, LS_DTYPE_F32, ROWS, 1, &sum, true);
    double exact = (double)0.1f * ROWS;
    assert_true(fabs((double)sum - exact) <= 5e-4 * exact);
    free(dy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_equal_closed_form),
        cmocka_unit_test(many_rows_lose_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
