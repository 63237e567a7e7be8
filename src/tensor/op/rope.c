/* rope: queries or keys are turned by their position, so that their products see distances.
 *
 *   x, y (B,T,H D)   table (T,D): cos(t f[i]), then sin(t f[i]); f[i] = theta^(-2i/D), i < D/2
 *
 *   per head of D elements, a = x[i], b = x[i + D/2]:
 *   y[i] = a cos - b sin          y[i + D/2] = b cos + a sin
 *   dx: the same with the opposite angle
 *
 * Su et al.: "RoFormer", 2021. Which elements make a pair is a matter of files: Hugging Face's
 * Llama takes i and i + D/2, the paper 2i and 2i + 1.
 *
 * Saved: nothing; backward reads the table, not x. The table is made once a pass and shared by all
 * layers. Its angles, and their cosine and sine of the C library, are in double and rounded to
 * float32 at the end, so another library's last bit of a double shows in one entry of 10^8 or so;
 * everything after is the same on every machine. */
#include <math.h>

#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

/* ---- the table ---- */

typedef struct angles {
    float *table;
    int64_t head_size;
    double theta;
} angles;

/* Items are positions. */
static void table_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const angles *at = context;
    int64_t half = at->head_size / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(at->theta, -2.0 * (double)i / (double)at->head_size);
        for (int64_t t = begin; t < end; t++) {
            float *row = at->table + t * at->head_size;
            row[i] = (float)cos((double)t * frequency);
            row[half + i] = (float)sin((double)t * frequency);
        }
    }
}

lsi_tensor *lsi_op_rope_table(lsi_tape *tape, int64_t n_time, int64_t head_size, double theta) {
    if (!lsi_op_begin(tape, "rope_table", 0, NULL)) return NULL;
    if (head_size < 2 || head_size % 2 != 0)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "rope_table: expected an even size of a head, found %lld",
                             (long long)head_size);
    if (!(theta > 0.0 && theta < INFINITY))
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "rope_table: expected a positive theta, found %g", theta);
    lsi_tensor *table = lsi_tape_activation_f32(tape, 2, (int64_t[]){n_time, head_size});
    if (!table) return NULL;
    angles at = {table->data, head_size, theta};
    lsi_for_ranges(n_time, lsi_grain(16 * head_size), table_range, &at);
    lsi_tape_record(tape, &(lsi_node){.name = "rope_table", .output = table});
    return table;
}

/* ---- turning ---- */

typedef struct turn {
    const void *x;
    void *y; /* may be x */
    ls_dtype dtype;
    const float *table;
    int64_t n_time, columns, head_size;
    float direction; /* 1: by the angle, -1: back */
    bool first;      /* else y is added to */
} turn;

/* n pairs: elements from `at` on, and as many from `at` + D/2 on. */
static void turn_pairs(const turn *tn, int64_t at, int64_t n, const float *cosine,
                       const float *sine) {
    float room_a[LSI_STRETCH], room_b[LSI_STRETCH], room_ya[LSI_STRETCH], room_yb[LSI_STRETCH];
    int64_t other = at + tn->head_size / 2;
    bool first = tn->first;
    const float *a = lsi_read(tn->x, tn->dtype, at, n, room_a);
    const float *b = lsi_read(tn->x, tn->dtype, other, n, room_b);
    float *ya = first ? lsi_place(tn->y, tn->dtype, at, room_ya)
                      : lsi_edit(tn->y, tn->dtype, at, n, room_ya);
    float *yb = first ? lsi_place(tn->y, tn->dtype, other, room_yb)
                      : lsi_edit(tn->y, tn->dtype, other, n, room_yb);
    float direction = tn->direction;
    LSI_ELEMENTWISE
    for (int64_t i = 0; i < n; i++) {
        float c = cosine[i], s = direction * sine[i];
        float turned_a = a[i] * c - b[i] * s, turned_b = b[i] * c + a[i] * s;
        lsi_contribute(ya + i, turned_a, first);
        lsi_contribute(yb + i, turned_b, first);
    }
    lsi_keep(tn->y, tn->dtype, at, n, ya);
    lsi_keep(tn->y, tn->dtype, other, n, yb);
}

/* Items are rows: places of all sequences. */
static void turn_range(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const turn *tn = context;
    int64_t half = tn->head_size / 2;
    for (int64_t row = begin; row < end; row++) {
        const float *cosine = tn->table + row % tn->n_time * tn->head_size, *sine = cosine + half;
        for (int64_t head = 0; head < tn->columns; head += tn->head_size) {
            for (int64_t i = 0; i < half; i += LSI_STRETCH) {
                int64_t n = half - i < LSI_STRETCH ? half - i : LSI_STRETCH;
                turn_pairs(tn, row * tn->columns + head + i, n, cosine + i, sine + i);
            }
        }
    }
}

static void run(turn *tn, const lsi_node *node) {
    const lsi_tensor *y = node->output, *table = node->input[1];
    tn->dtype = y->dtype;
    tn->table = table->data;
    tn->n_time = y->dims[1];
    tn->columns = y->dims[2];
    tn->head_size = table->dims[1];
    lsi_for_ranges(lsi_tensor_rows(y), lsi_grain(2 * tn->columns), turn_range, tn);
}

static ls_status rope_again(lsi_tape *tape, lsi_node *node) {
    (void)tape;
    turn tn = {
        .x = node->input[0]->data, .y = node->output->data, .direction = 1.0f, .first = true};
    run(&tn, node);
    return LS_OK;
}

static ls_status rope_backward(lsi_tape *tape, lsi_node *node) {
    turn tn = {.x = node->output->grad, .direction = -1.0f};
    tn.y = lsi_grad_inherit(tape, node, node->input[0], &tn.first);
    if (tn.y) run(&tn, node);
    return lsi_tape_status(tape);
}

lsi_tensor *lsi_op_rope(lsi_tape *tape, lsi_tensor *x, lsi_tensor *table) {
    if (!lsi_op_begin(tape, "rope", 2, (lsi_tensor *[]){x, table})) return NULL;
    if (x->n_dims != 3 || table->n_dims != 2 || x->dims[2] % table->dims[1] != 0 ||
        table->dims[1] % 2 != 0 || table->dims[0] < x->dims[1] || table->dtype != LS_DTYPE_F32)
        return lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                             "rope: expected x (B,T,H D) and a float32 table of at least T rows "
                             "and D columns, D even, found %s and %s %s",
                             lsi_dims_text(x->n_dims, x->dims), ls_dtype_name(table->dtype),
                             lsi_dims_text(table->n_dims, table->dims));
    if (!lsi_op_same_type(tape, "rope", x, x)) return NULL;
    lsi_tensor *y = lsi_tape_activation(tape, x->n_dims, x->dims);
    if (!y) return NULL;
    lsi_node node = {.backward = rope_backward,
                     .again = rope_again,
                     .name = "rope",
                     .input = {x, table},
                     .output = y,
                     .reads = LSI_READS_INPUT(1)};
    (void)rope_again(tape, &node);
    lsi_tape_record(tape, &node);
    return y;
}
