/* Sums over rows (see columns.h). A tile of columns is summed in two arrays that stay in the
 * nearest cache. Tiles are wide, so that most matrices have one: dy is then read from begin to end,
 * which processors foresee, and runs of a kilobyte out of each row they do not. */
#include "tensor/columns.h"

#include <string.h>

#include "tensor/math.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct column_sums {
    const void *dy;
    ls_dtype dtype;
    int64_t rows, columns;
    float *grad;
    bool first;
} column_sums;

enum { TILE = 4096 };

/* sum[c] += element `at` + c of dy */
static void add_run(const column_sums *sums, int64_t at, int64_t width, float *restrict sum) {
    float room[LSI_STRETCH];
    for (int64_t c = 0; c < width; c += LSI_STRETCH) {
        int64_t n = width - c < LSI_STRETCH ? width - c : LSI_STRETCH;
        const float *dy = lsi_read(sums->dy, sums->dtype, at + c, n, room);
        for (int64_t i = 0; i < n; i++) sum[c + i] += dy[i];
    }
}

static void sum_tile(const column_sums *sums, int64_t begin, int64_t width) {
    float total[TILE], partial[TILE];
    memset(total, 0, (size_t)width * sizeof *total);
    for (int64_t row = 0; row < sums->rows;) {
        int64_t end = row + LSI_ROW_BLOCK < sums->rows ? row + LSI_ROW_BLOCK : sums->rows;
        memset(partial, 0, (size_t)width * sizeof *partial);
        for (; row < end; row++) add_run(sums, row * sums->columns + begin, width, partial);
        for (int64_t c = 0; c < width; c++) total[c] += partial[c];
    }
    for (int64_t c = 0; c < width; c++)
        lsi_contribute(sums->grad + begin + c, total[c], sums->first);
}

static void sum_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t at = begin; at < end; at += TILE)
        sum_tile(context, at, end - at < TILE ? end - at : TILE);
}

void lsi_add_columns(const void *dy, ls_dtype dtype, int64_t rows, int64_t columns, float *grad,
                     bool first) {
    column_sums sums = {dy, dtype, rows, columns, grad, first};
    lsi_for_ranges(columns, lsi_grain(rows), sum_range, &sums);
}
