/* Each parameter alone, then neighbours in the order of names and in the order of addresses. */
#include "parallel/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool is_trainable(ls_dtype dtype) {
    return dtype == LS_DTYPE_F32 || dtype == LS_DTYPE_BF16 || dtype == LS_DTYPE_F16 ||
           dtype == LS_DTYPE_F64;
}

static bool shape_gives_count(const ls_param *param) {
    int64_t product = 1;
    if (param->n_dims == 0) return true;
    if (param->n_dims < 0 || param->n_dims > LS_MAX_DIMS) return false;
    for (int d = 0; d < param->n_dims; d++)
        if (param->shape[d] < 0 || __builtin_mul_overflow(product, param->shape[d], &product))
            return false;
    return product == param->count;
}

static ls_status check_one(const char *what, const ls_param *param, int index, bool is_filled) {
    bool lacks_data = param->count > 0 && !param->data && !is_filled;
    if (!param->name || param->count < 0 || lacks_data)
        return lsi_fail(LS_ERR_ARGUMENT, "ddp: %s %d needs a name, a count >= 0 and data", what,
                        index);
    if (ls_dtype_bytes(param->dtype) == 0 || (what[0] == 'p' && !is_trainable(param->dtype)))
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "ddp: %s %s has dtype %s (%d); this version trains F32, BF16, F16 and F64",
                        what, param->name, ls_dtype_name(param->dtype), (int)param->dtype);
    if (!shape_gives_count(param))
        return lsi_fail(
            LS_ERR_ARGUMENT,
            "ddp: %s %s has %lld elements, its shape of %d dims (0 to %d) means another "
            "number",
            what, param->name, (long long)param->count, param->n_dims, LS_MAX_DIMS);
    return LS_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const ls_param *const *)a)->name, (*(const ls_param *const *)b)->name);
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)(*(const ls_param *const *)a)->data;
    uintptr_t y = (uintptr_t)(*(const ls_param *const *)b)->data;
    return x < y ? -1 : x > y;
}

static ls_status check_names(const char *what, const ls_param **list, int n) {
    qsort(list, (size_t)n, sizeof *list, by_name);
    for (int i = 1; i < n; i++)
        if (strcmp(list[i - 1]->name, list[i]->name) == 0)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "ddp: two %ss are named %s; names must be unique, results name them",
                            what, list[i]->name);
    return LS_OK;
}

/* Memory of [i - 1] reaches into that of [i]. */
static bool overlap(const ls_param *low, const ls_param *high) {
    uintptr_t bytes = (uintptr_t)low->count * ls_dtype_bytes(low->dtype);
    return (uintptr_t)high->data - (uintptr_t)low->data < bytes;
}

static ls_status check_memory(const char *what, const ls_param **list, int n) {
    int n_filled = 0;
    for (int i = 0; i < n; i++)
        if (list[i]->count > 0 && list[i]->data) list[n_filled++] = list[i];
    qsort(list, (size_t)n_filled, sizeof *list, by_address);
    for (int i = 1; i < n_filled; i++)
        if (overlap(list[i - 1], list[i]))
            return lsi_fail(LS_ERR_ARGUMENT,
                            "ddp: %ss %s and %s share memory; describe tied ones once, and call "
                            "their gradient ready after its last use",
                            what, list[i - 1]->name, list[i]->name);
    return LS_OK;
}

ls_status lsi_check_params(const char *what, const ls_param *params, int n_params,
                           bool are_filled) {
    if (n_params < 0 || (n_params > 0 && !params))
        return lsi_fail(LS_ERR_ARGUMENT, "ddp: %d %ss%s, expected a list of 0 or more", n_params,
                        what, params ? "" : " at NULL");
    for (int i = 0; i < n_params; i++) LSI_TRY(check_one(what, &params[i], i, are_filled));
    const ls_param **list = lsi_calloc(LSI_MEM_OTHER, (size_t)n_params, sizeof *list);
    LSI_TRY(lsi_check_alloc(list));
    for (int i = 0; i < n_params; i++) list[i] = &params[i];
    ls_status status = check_names(what, list, n_params);
    if (status == LS_OK) status = check_memory(what, list, n_params);
    lsi_free(list);
    return status;
}
