/* embedding: y[b][t] = token_table[id[b][t]] + position_table[t].
 *
 *   ids (B,T)  token_table (V,C)  position_table (Tmax,C)  ->  y (B,T,C)
 *
 *   dtoken[v]    = sum of dy[b][t] over the places (b,t) that hold v, in the order of places
 *   dposition[t] = sum over b of dy[b][t], in the order of b
 *
 * Saved: the ids. A table row that no place used gets a gradient of zeros: the first contribution
 * overwrites the whole table. Threads share columns in dtoken, since two places may hold the same
 * token, and positions in dposition. */
#include <string.h>

#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/threads.h"

typedef struct lookup {
    const int32_t *ids;
    const float *token, *position; /* position may be NULL */
    float *y;
    const float *dy;
    float *grad; /* of the table at hand */
    int64_t n_batch, n_time, columns;
    bool first;
} lookup;

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const lookup *look = context;
    int64_t n = look->columns;
    for (int64_t row = begin; row < end; row++) {
        const float *restrict token = look->token + look->ids[row] * n;
        float *restrict y = look->y + row * n;
        if (!look->position) {
            memcpy(y, token, (size_t)n * sizeof *y);
            continue;
        }
        const float *restrict position = look->position + row % look->n_time * n;
        for (int64_t c = 0; c < n; c++) y[c] = token[c] + position[c];
    }
}

/* Items are columns. */
static void token_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const lookup *look = context;
    int64_t n = look->columns;
    for (int64_t row = 0; row < look->n_batch * look->n_time; row++) {
        float *restrict grad = look->grad + look->ids[row] * n;
        const float *restrict dy = look->dy + row * n;
        for (int64_t c = begin; c < end; c++) grad[c] += dy[c];
    }
}

/* Items are positions. */
static void position_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const lookup *look = context;
    int64_t n = look->columns;
    for (int64_t t = begin; t < end; t++) {
        float *restrict grad = look->grad + t * n;
        for (int64_t b = 0; b < look->n_batch; b++) {
            const float *restrict dy = look->dy + (b * look->n_time + t) * n;
            bool first = look->first && b == 0;
            for (int64_t c = 0; c < n; c++) lsi_contribute(grad + c, dy[c], first);
        }
    }
}

static ls_status embedding_backward(lsi_tape *tape, lsi_node *node) {
    const lsi_tensor *y = node->output;
    lsi_tensor *token_table = node->input[0], *position_table = node->input[1];
    lookup look = {.ids = node->saved[0],
                   .dy = y->grad,
                   .n_batch = y->dims[0],
                   .n_time = y->dims[1],
                   .columns = y->dims[2]};
    size_t row_bytes = (size_t)look.columns * sizeof(float);
    look.grad = lsi_grad(tape, position_table, &look.first);
    if (look.grad) {
        size_t unused_rows = (size_t)(position_table->dims[0] - look.n_time);
        if (look.first) memset(look.grad + look.n_time * look.columns, 0, unused_rows * row_bytes);
        lsi_for_ranges(look.n_time, lsi_grain(look.n_batch * look.columns), position_range, &look);
    }
    look.grad = lsi_grad(tape, token_table, &look.first);
    if (look.grad) {
        if (look.first) memset(look.grad, 0, (size_t)token_table->dims[0] * row_bytes);
        lsi_for_ranges(look.columns, lsi_grain(look.n_batch * look.n_time), token_range, &look);
    }
    return lsi_tape_status(tape);
}

static ls_status check_ids(const int32_t *ids, int64_t n_batch, int64_t n_time, int64_t n_tokens) {
    if (!ids) return lsi_fail(LS_ERR_ARGUMENT, "embedding: expected ids, found NULL");
    if (n_batch < 1 || n_time < 1)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "embedding: expected at least one sequence of one id, found %lld of %lld",
                        (long long)n_batch, (long long)n_time);
    if (n_batch > INT64_MAX / (int64_t)sizeof *ids / n_time)
        return lsi_fail(LS_ERR_ARGUMENT, "embedding: %lld sequences of %lld ids are too many",
                        (long long)n_batch, (long long)n_time);
    for (int64_t i = 0; i < n_batch * n_time; i++) {
        if (ids[i] < 0 || ids[i] >= n_tokens)
            return lsi_fail(LS_ERR_ARGUMENT,
                            "embedding: sequence %lld, position %lld: expected an id from 0 to "
                            "%lld, found %d: does the data fit the model's vocabulary?",
                            (long long)(i / n_time), (long long)(i % n_time),
                            (long long)n_tokens - 1, (int)ids[i]);
    }
    return LS_OK;
}

static ls_status check_tables(const lsi_tensor *token, const lsi_tensor *position, int64_t n_time) {
    if (token->n_dims != 2)
        return lsi_fail(LS_ERR_ARGUMENT, "embedding: expected a token table (V,C), found %s",
                        lsi_dims_text(token->n_dims, token->dims));
    if (!position) return LS_OK;
    if (position->n_dims != 2 || position->dims[1] != token->dims[1])
        return lsi_fail(LS_ERR_ARGUMENT,
                        "embedding: expected a position table (Tmax,%lld), found %s",
                        (long long)token->dims[1], lsi_dims_text(position->n_dims, position->dims));
    if (position->dims[0] < n_time)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "embedding: expected at most %lld positions (rows of the position table), "
                        "found %lld",
                        (long long)position->dims[0], (long long)n_time);
    return LS_OK;
}

lsi_tensor *lsi_op_embedding(lsi_tape *tape, const int32_t *ids, int64_t n_batch, int64_t n_time,
                             lsi_tensor *token_table, lsi_tensor *position_table) {
    lsi_tensor *inputs[] = {token_table, position_table};
    if (!lsi_op_begin(tape, "embedding", position_table ? 2 : 1, inputs)) return NULL;
    ls_status status = check_tables(token_table, position_table, n_time);
    if (status == LS_OK) status = check_ids(ids, n_batch, n_time, token_table->dims[0]);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);

    int64_t columns = token_table->dims[1];
    lsi_tensor *y = lsi_tape_activation(tape, 3, (int64_t[]){n_batch, n_time, columns});
    size_t id_bytes = (size_t)(n_batch * n_time) * sizeof *ids;
    int32_t *saved_ids = y ? lsi_tape_scratch(tape, id_bytes) : NULL;
    if (!saved_ids) return NULL;
    memcpy(saved_ids, ids, id_bytes);
    lookup look = {.ids = ids,
                   .token = token_table->data,
                   .position = position_table ? position_table->data : NULL,
                   .y = y->data,
                   .n_time = n_time,
                   .columns = columns};
    lsi_for_ranges(n_batch * n_time, lsi_grain(columns), forward_range, &look);
    lsi_node node = {.backward = embedding_backward,
                     .name = "embedding",
                     .input = {token_table, position_table},
                     .output = y,
                     .saved = {saved_ids}};
    lsi_tape_record(tape, &node);
    return y;
}
