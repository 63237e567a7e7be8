/* Sums over rows (see columns.h). A tile of columns is summed in two small arrays that stay in the
 * nearest cache; each row gives the tile a run of a kilobyte. */
#include "tensor/columns.h"

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

static void sum_tile(const column_sums *sums, int64_t begin, int64_t width) {
    float total[LSI_COLUMN_TILE] = {0.0f}, room[LSI_COLUMN_TILE];
    for (int64_t row = 0; row < sums->rows;) {
        float partial[LSI_COLUMN_TILE] = {0.0f};
        int64_t end = row + LSI_ROW_BLOCK < sums->rows ? row + LSI_ROW_BLOCK : sums->rows;
        for (; row < end; row++) {
            const float *dy =
                lsi_read(sums->dy, sums->dtype, row * sums->columns + begin, width, room);
            for (int64_t c = 0; c < width; c++) partial[c] += dy[c];
        }
        for (int64_t c = 0; c < width; c++) total[c] += partial[c];
    }
    for (int64_t c = 0; c < width; c++)
        lsi_contribute(sums->grad + begin + c, total[c], sums->first);
}

static void sum_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t at = begin; at < end; at += LSI_COLUMN_TILE)
        sum_tile(context, at, end - at < LSI_COLUMN_TILE ? end - at : LSI_COLUMN_TILE);
}

void lsi_add_columns(const void *dy, ls_dtype dtype, int64_t rows, int64_t columns, float *grad,
                     bool first) {
    column_sums sums = {dy, dtype, rows, columns, grad, first};
    lsi_for_ranges(columns, lsi_grain(rows), sum_range, &sums);
}
