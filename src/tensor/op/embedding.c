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

#include "tensor/columns.h"
#include "tensor/gemm.h"
#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

typedef struct lookup {
    const int32_t *ids;
    const void *token, *position; /* position may be NULL */
    ls_dtype table_dtype;
    void *y;
    const void *dy;
    ls_dtype dtype; /* of y and dy */
    float *grad;    /* of the table at hand */
    float *rooms;   /* per worker two rows */
    int64_t n_batch, n_time, columns;
    bool first;
} lookup;

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    const lookup *look = context;
    int64_t n = look->columns;
    float *room = look->rooms + worker * 2 * n, *sum = room + n;
    for (int64_t row = begin; row < end; row++) {
        const float *token = lsi_read(look->token, look->table_dtype, look->ids[row] * n, n, room);
        memcpy(sum, token, (size_t)n * sizeof *sum);
        if (look->position) {
            const float *restrict position =
                lsi_read(look->position, look->table_dtype, row % look->n_time * n, n, room);
            for (int64_t c = 0; c < n; c++) sum[c] += position[c];
        }
        lsi_store_floats((char *)look->y + row * n * lsi_dtype_size(look->dtype), look->dtype, n,
                         sum);
    }
}

/* Items are columns. */
static void token_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const lookup *look = context;
    int64_t n = look->columns;
    float room[LSI_COLUMN_TILE];
    for (int64_t row = 0; row < look->n_batch * look->n_time; row++) {
        float *restrict grad = look->grad + look->ids[row] * n;
        for (int64_t at = begin; at < end; at += LSI_COLUMN_TILE) {
            int64_t width = end - at < LSI_COLUMN_TILE ? end - at : LSI_COLUMN_TILE;
            const float *restrict dy = lsi_read(look->dy, look->dtype, row * n + at, width, room);
            for (int64_t c = 0; c < width; c++) grad[at + c] += dy[c];
        }
    }
}

/* Items are positions. */
static void position_range(void *context, int64_t begin, int64_t end, int worker) {
    const lookup *look = context;
    int64_t n = look->columns;
    float *room = look->rooms + worker * 2 * n;
    for (int64_t t = begin; t < end; t++) {
        float *restrict grad = look->grad + t * n;
        for (int64_t b = 0; b < look->n_batch; b++) {
            const float *restrict dy =
                lsi_read(look->dy, look->dtype, (b * look->n_time + t) * n, n, room);
            bool first = look->first && b == 0;
            for (int64_t c = 0; c < n; c++) lsi_contribute(grad + c, dy[c], first);
        }
    }
}

static float *new_rooms(lsi_tape *tape, int64_t columns) {
    int64_t n_workers = lsi_compute_threads();
    return lsi_tape_scratch(tape, (size_t)(n_workers * 2 * columns) * sizeof(float));
}

static ls_status embedding_backward(lsi_tape *tape, lsi_node *node) {
    const lsi_tensor *y = node->output;
    lsi_tensor *token_table = node->input[0], *position_table = node->input[1];
    lookup look = {.ids = node->saved[0],
                   .dy = y->grad,
                   .dtype = y->dtype,
                   .n_batch = y->dims[0],
                   .n_time = y->dims[1],
                   .columns = y->dims[2]};
    size_t row_bytes = (size_t)look.columns * sizeof(float);
    look.rooms = new_rooms(tape, look.columns);
    if (!look.rooms) return lsi_tape_status(tape);
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
    lsi_tape_release(tape, look.rooms);
    return lsi_tape_status(tape);
}

static ls_status embedding_again(lsi_tape *tape, lsi_node *node) {
    lsi_tensor *y = node->output, *token = node->input[0], *position = node->input[1];
    lookup look = {.ids = node->saved[0],
                   .token = token->data,
                   .position = position ? position->data : NULL,
                   .table_dtype = token->dtype,
                   .y = y->data,
                   .dtype = y->dtype,
                   .n_time = y->dims[1],
                   .columns = y->dims[2]};
    look.rooms = new_rooms(tape, look.columns);
    if (!look.rooms) return lsi_tape_status(tape);
    lsi_for_ranges(lsi_tensor_rows(y), lsi_grain(look.columns), forward_range, &look);
    lsi_tape_release(tape, look.rooms);
    return LS_OK;
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
    if (position->dtype != token->dtype)
        return lsi_fail(LS_ERR_ARGUMENT, "embedding: tables of types %s and %s",
                        ls_dtype_name(token->dtype), ls_dtype_name(position->dtype));
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

    if (!lsi_op_is_weight(tape, "embedding", "token table", token_table) ||
        !lsi_op_is_weight(tape, "embedding", "position table", position_table))
        return NULL;
    int64_t columns = token_table->dims[1];
    lsi_tensor *y = lsi_tape_activation(tape, 3, (int64_t[]){n_batch, n_time, columns});
    size_t id_bytes = (size_t)(n_batch * n_time) * sizeof *ids;
    int32_t *saved_ids = y ? lsi_tape_scratch(tape, id_bytes) : NULL;
    if (!saved_ids) return NULL;
    memcpy(saved_ids, ids, id_bytes);
    lsi_node node = {.backward = embedding_backward,
                     .again = embedding_again,
                     .name = "embedding",
                     .input = {token_table, position_table},
                     .output = y,
                     .saved = {saved_ids}};
    (void)lsi_tape_fail_with(tape, embedding_again(tape, &node));
    lsi_tape_record(tape, &node);
    return lsi_tape_status(tape) == LS_OK ? y : NULL;
}
