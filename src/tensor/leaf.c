/* Leaves: tensors that the forward pass starts from, parameters and inputs (see tensor.h).
 *
 * A parameter's leaf borrows the buffers of its ls_param. A strategy may move these between
 * forward and backward (sharded parameters come and go), so backward reads the pointers again
 * before each node. */
#include "tensor/tape_impl.h"

#include <string.h>

#include "base/mem.h"
#include "tensor/rows.h"

static ls_status check_param(const ls_param *param, int index) {
    if (!param) return lsi_fail(LS_ERR_ARGUMENT, "parameter %d: expected one, found NULL", index);
    if (index < 0)
        return lsi_fail(LS_ERR_ARGUMENT, "parameter %s: expected an index >= 0, found %d",
                        param->name, index);
    if (param->dtype != LS_DTYPE_F32 && param->dtype != LS_DTYPE_BF16)
        return lsi_fail(LS_ERR_UNSUPPORTED, "parameter %s: expected dtype F32 or BF16, found %s",
                        param->name, ls_dtype_name(param->dtype));
    if (!param->data)
        return lsi_fail(LS_ERR_STATE, "parameter %s: it has no data (is it sharded away?)",
                        param->name);
    return LS_OK;
}

static ls_status reserve_leaf(lsi_tape *tape, int index) {
    if (index < tape->leaf_capacity) return LS_OK;
    int64_t capacity = tape->leaf_capacity == 0 ? 64 : tape->leaf_capacity * 2;
    if (capacity <= index) capacity = (int64_t)index + 1;
    lsi_tensor **grown =
        lsi_realloc(LSI_MEM_OTHER, tape->leaves, (size_t)capacity * sizeof(lsi_tensor *));
    LSI_TRY(lsi_check_alloc(grown));
    size_t n_new = (size_t)(capacity - tape->leaf_capacity);
    memset(grown + tape->leaf_capacity, 0, n_new * sizeof(lsi_tensor *));
    tape->leaves = grown;
    tape->leaf_capacity = capacity;
    return LS_OK;
}

static lsi_tensor *new_leaf(lsi_tape *tape, ls_param *param, int index, int n_dims,
                            const int64_t *dims) {
    lsi_tensor *leaf = lsi_tape_new_tensor(tape, n_dims, dims);
    if (!leaf) return NULL;
    if (lsi_tensor_count(leaf) != param->count)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "parameter %s: its dims give %lld elements, it has %lld", param->name,
                             (long long)lsi_tensor_count(leaf), (long long)param->count);
    leaf->param = param;
    leaf->dtype = param->dtype;
    leaf->param_index = index;
    leaf->data = param->data;
    leaf->grad = param->grad;
    leaf->needs_grad = !(param->flags & LS_PARAM_FROZEN);
    leaf->grad_written = tape->accumulate;
    tape->leaves[index] = leaf;
    return leaf;
}

lsi_tensor *lsi_tape_param(lsi_tape *tape, ls_param *param, int index, int n_dims,
                           const int64_t *dims) {
    if (tape->status != LS_OK) return NULL;
    ls_status status = check_param(param, index);
    if (status == LS_OK) status = reserve_leaf(tape, index);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);

    lsi_tensor *leaf = tape->leaves[index];
    if (!leaf) return new_leaf(tape, param, index, n_dims, dims);
    if (leaf->param != param)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "parameter %s: its index %d belongs to %s since the last reset",
                             param->name, index, leaf->param->name);
    if (leaf->n_dims != n_dims || memcmp(leaf->dims, dims, (size_t)n_dims * sizeof *dims) != 0)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "parameter %s: it has a leaf of other dims since the last reset",
                             param->name);
    leaf->data = param->data;
    leaf->grad = param->grad;
    return leaf;
}

lsi_tensor *lsi_tape_input(lsi_tape *tape, const float *values, int n_dims, const int64_t *dims,
                           bool needs_grad) {
    if (tape->status == LS_OK && !values)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT, "input: expected values, found NULL");
    lsi_tensor *t = lsi_tape_activation(tape, n_dims, dims);
    if (!t) return NULL;
    lsi_store_floats(t->data, t->dtype, lsi_tensor_count(t), values);
    t->needs_grad = needs_grad;
    return t;
}

void lsi_tape_accumulate(lsi_tape *tape, bool add) {
    tape->accumulate = add;
}
