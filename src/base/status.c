/* Names, meanings and advice of the status codes, all made from LS_STATUS_TABLE.
 *
 * The numbers of the table are 0, 1, 2, … without gaps (checked below), so a code is an index. A
 * number from outside, for example one that another program sent, gets the last row. */
#include <lockstep/status.h>

typedef struct status_row {
    const char *name;
    const char *text;
    const char *advice;
} status_row;

static const status_row rows[] = {
#define ROW(name, number, text, advice) [number] = {"LS_" #name, text, advice},
    LS_STATUS_TABLE(ROW)
#undef ROW
        {"LS_ERR_?", "a status outside the table", "compare the versions of header and library"},
};

enum {
#define COUNT(name, number, text, advice) count_##name,
    LS_STATUS_TABLE(COUNT)
#undef COUNT
        n_statuses
};

_Static_assert(sizeof rows / sizeof rows[0] == n_statuses + 1, "status numbers have a gap");

static const status_row *row_of(ls_status status) {
    unsigned int number = (unsigned int)status;
    return &rows[number < n_statuses ? number : n_statuses];
}

const char *ls_status_name(ls_status status) {
    return row_of(status)->name;
}

const char *ls_status_text(ls_status status) {
    return row_of(status)->text;
}

const char *ls_status_advice(ls_status status) {
    return row_of(status)->advice;
}
