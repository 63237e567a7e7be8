/* Sizes and names of element types, all made from LS_DTYPE_TABLE. */
#include "base/dtype.h"

typedef struct dtype_row {
    size_t bytes;
    const char *name;
} dtype_row;

/* Indexed by number; row 0 is nobody's and stands for numbers outside the table. */
static const dtype_row rows[] = {[0] = {0, "?"},
#define ROW(name, number, bytes, text) [number] = {bytes, text},
                                 LS_DTYPE_TABLE(ROW)
#undef ROW
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

static const dtype_row *row_of(ls_dtype dtype) {
    unsigned int number = (unsigned int)dtype;
    return &rows[number < N_ROWS && rows[number].name ? number : 0];
}

size_t ls_dtype_bytes(ls_dtype dtype) {
    return row_of(dtype)->bytes;
}

const char *ls_dtype_name(ls_dtype dtype) {
    return row_of(dtype)->name;
}

int lsi_dtype_from_name(const char *name) {
    for (int number = 1; number < N_ROWS; number++) {
        if (rows[number].name && strcmp(rows[number].name, name) == 0) return number;
    }
    return 0;
}
