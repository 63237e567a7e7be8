/* conv2d: a K x K filter over images, zeros outside, K odd; steps of `stride`.
 *
 *   x (B,H,W,C)  w (N,K,K,C)  ->  y (B,H',W',N),  H' = (H - 1) / stride + 1, W' alike
 *
 *   y[b,i,j,n]  = sum over p, q, c of w[n,p,q,c] x[b, i stride + p - K/2, j stride + q - K/2, c]
 *
 * As products of matrices: a row of `patches` (places,K K C) is what the filters see at one place
 * of y, and w is a matrix (N,K K C) as it lies:
 *
 *   y = patches w^T      dw = dy^T patches      dpatches = dy w, added to dx where it came from
 *
 * Saved: nothing of its own; backward reads x and w and makes the patches again. They are K K times
 * x, so they exist only for a block of places that stays in the second-level cache (BLOCK_BYTES).
 * The layers of a convnet of usual size take 1.2 times as long as PyTorch's Conv2d in channels_last
 * on one thread: 0.4 times where filters are 1 x 1, 1.7 times where the first stage has so few
 * channels that making patches costs as much as their product.
 *
 * [Note: slices] Forward runs over groups of whole images, backward over at most N_SLICES slices of
 * these groups; each slice sums dw of its own, and the slices are added in order. Groups, blocks
 * and slices follow from the shapes alone and each product runs on one thread, so the bits do not
 * depend on the number of threads. dx is summed in float32 for either type, an image at a time. */
#include <stdatomic.h>
#include <string.h>

#include "tensor/math.h"
#include "tensor/op.h"
#include "tensor/op/shape.h"
#include "tensor/rows.h"
#include "tensor/tape_impl.h"
#include "tensor/threads.h"

enum { BLOCK_BYTES = 1 << 20, LEAST_PLACES = 128, N_SLICES = 16 };

/* One call of the op, forward or backward. */
typedef struct conv {
    lsi_tape *tape;
    ls_dtype dtype;
    const char *x, *w, *dy;
    char *y, *dx;
    float *dw, *sums; /* gradient; a dw of each slice */
    bool first_x, first_w;
    int64_t n_images, height, width, n_channels;
    int64_t kernel, stride, out_height, out_width, n_filters;
    int64_t patch;  /* K K C */
    int64_t places; /* H' W' */
    int64_t group;  /* images */
    int64_t n_groups, n_slices;
    int64_t block; /* places whose patches are made at once, at most */
    char *scratch; /* scratch_bytes per worker */
    size_t scratch_bytes;
    _Atomic int failure; /* an ls_status; a failed product of any worker */
} conv;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t divide_up(int64_t n, int64_t by) {
    return (n + by - 1) / by;
}

/* A group has about as many places as fit into a block, and blocks of a group are nearly equal. */
static void cut(conv *cv) {
    int64_t most = BLOCK_BYTES / (cv->patch * (int64_t)sizeof(float));
    if (most < LEAST_PLACES) most = LEAST_PLACES;
    cv->group = smaller(cv->n_images, most / cv->places > 1 ? most / cv->places : 1);
    cv->n_groups = divide_up(cv->n_images, cv->group);
    cv->n_slices = smaller(cv->n_groups, N_SLICES);
    int64_t in_group = cv->group * cv->places;
    cv->block = divide_up(in_group, divide_up(in_group, most));
}

static conv describe(lsi_tape *tape, const lsi_node *node) {
    const lsi_tensor *x = node->input[0], *w = node->input[1], *y = node->output;
    conv cv = {.tape = tape,
               .dtype = x->dtype,
               .x = x->data,
               .w = w->data,
               .n_images = x->dims[0],
               .height = x->dims[1],
               .width = x->dims[2],
               .n_channels = x->dims[3],
               .kernel = w->dims[1],
               .stride = node->number[0],
               .out_height = y->dims[1],
               .out_width = y->dims[2],
               .n_filters = w->dims[0],
               .patch = w->dims[1] * w->dims[2] * w->dims[3],
               .places = y->dims[1] * y->dims[2]};
    cut(&cv);
    return cv;
}

/* ---- patches ---- */

/* Row `row` of a patch at one place: the pixels of x that it covers are begin … end - 1 of the K,
 * and lie from element `at` of x on. Nothing is covered outside of the image. */
typedef struct run {
    int64_t begin, end, at;
} run;

/* A place of y. */
typedef struct spot {
    int64_t image, row, column;
} spot;

static spot spot_at(const conv *cv, int64_t number) {
    int64_t in_image = number % cv->places;
    return (spot){number / cv->places, in_image / cv->out_width, in_image % cv->out_width};
}

static void go_on(const conv *cv, spot *at) {
    if (++at->column < cv->out_width) return;
    at->column = 0;
    if (++at->row < cv->out_height) return;
    at->row = 0;
    at->image++;
}

/* Where the rows of the patch at a place come from. */
static void find_runs(const conv *cv, const spot *at, run *runs) {
    int64_t top = at->row * cv->stride - cv->kernel / 2;
    int64_t left = at->column * cv->stride - cv->kernel / 2;
    int64_t begin = left < 0 ? -left : 0, end = smaller(cv->kernel, cv->width - left);
    int64_t from = ((at->image * cv->height + top) * cv->width + left + begin) * cv->n_channels;
    for (int64_t p = 0; p < cv->kernel; p++, from += cv->width * cv->n_channels) {
        bool is_inside = top + p >= 0 && top + p < cv->height && begin < end;
        runs[p] = is_inside ? (run){begin, end, from} : (run){0, 0, 0};
    }
}

enum { MAX_KERNEL = 63 };

static void unfold(const conv *cv, int64_t first, int64_t n, char *patches) {
    run runs[MAX_KERNEL];
    spot at = spot_at(cv, first);
    size_t element = (size_t)lsi_dtype_size(cv->dtype);
    size_t pixel = (size_t)cv->n_channels * element, row = (size_t)cv->kernel * pixel;
    for (int64_t i = 0; i < n; i++, go_on(cv, &at)) {
        find_runs(cv, &at, runs);
        for (int64_t p = 0; p < cv->kernel; p++, patches += row) {
            size_t before = (size_t)runs[p].begin * pixel, end = (size_t)runs[p].end * pixel;
            if (before > 0) memset(patches, 0, before);
            memcpy(patches + before, cv->x + (size_t)runs[p].at * element, end - before);
            if (end < row) memset(patches + end, 0, row - end);
        }
    }
}

/* Adds the gradients of n patches to `sums`, the gradient of x from element `origin` on. */
static void fold(const conv *cv, int64_t first, int64_t n, const float *patches, float *sums,
                 int64_t origin) {
    run runs[MAX_KERNEL];
    spot at = spot_at(cv, first);
    for (int64_t i = 0; i < n; i++, go_on(cv, &at)) {
        find_runs(cv, &at, runs);
        for (int64_t p = 0; p < cv->kernel; p++, patches += cv->kernel * cv->n_channels) {
            if (runs[p].end == 0) continue;
            const float *restrict from = patches + runs[p].begin * cv->n_channels;
            float *restrict to = sums + (runs[p].at - origin);
            int64_t count = (runs[p].end - runs[p].begin) * cv->n_channels;
            for (int64_t c = 0; c < count; c++) to[c] += from[c];
        }
    }
}

/* A filter of one pixel sees x itself. */
static bool sees_x_itself(const conv *cv) {
    return cv->kernel == 1 && cv->stride == 1;
}

/* ---- a worker's scratch ---- */

typedef struct rooms {
    char *patches;   /* (block,patch) */
    float *dpatches; /* the same, backward with dx */
    float *dx;       /* (group,H,W,C), backward with dx */
} rooms;

enum { N_PIECES = 3 };

/* Bytes of each piece, in the order of `rooms`. */
static void piece_bytes(const conv *cv, size_t bytes[N_PIECES]) {
    size_t in_block = (size_t)(cv->block * cv->patch);
    size_t in_group = (size_t)(cv->group * cv->height * cv->width * cv->n_channels);
    bytes[0] = sees_x_itself(cv) ? 0 : in_block * (size_t)lsi_dtype_size(cv->dtype);
    bytes[1] = cv->dx ? in_block * sizeof(float) : 0;
    bytes[2] = cv->dx ? in_group * sizeof(float) : 0;
    for (int i = 0; i < N_PIECES; i++) bytes[i] = (bytes[i] + 63) / 64 * 64;
}

static rooms rooms_of(const conv *cv, int worker) {
    size_t bytes[N_PIECES];
    piece_bytes(cv, bytes);
    char *at = cv->scratch + (size_t)worker * cv->scratch_bytes;
    return (rooms){at, (float *)(void *)(at + bytes[0]),
                   (float *)(void *)(at + bytes[0] + bytes[1])};
}

/* The patches of n places: in the room, or where x lies. */
static lsi_operand patches_of(const conv *cv, const rooms *room, int64_t place, int64_t n) {
    const char *patches = cv->x + place * cv->patch * lsi_dtype_size(cv->dtype);
    if (!sees_x_itself(cv)) {
        unfold(cv, place, n, room->patches);
        patches = room->patches;
    }
    return (lsi_operand){patches, cv->dtype, cv->patch, false};
}

/* ---- forward ---- */

static ls_status forward_block(const conv *cv, const rooms *room, int64_t place, int64_t n,
                               int worker) {
    lsi_product p = {.m = n,
                     .n = cv->n_filters,
                     .k = cv->patch,
                     .a = patches_of(cv, room, place, n),
                     .b = {cv->w, cv->dtype, cv->patch, true},
                     .c = cv->y + place * cv->n_filters * lsi_dtype_size(cv->dtype),
                     .c_dtype = cv->dtype,
                     .c_stride = cv->n_filters};
    return lsi_tape_multiply_by(cv->tape, worker, &p);
}

static void forward_range(void *context, int64_t begin, int64_t end, int worker) {
    conv *cv = context;
    rooms room = rooms_of(cv, worker);
    int64_t place = begin * cv->group * cv->places;
    for (int64_t group = begin; group < end; group++) {
        int64_t last = smaller((group + 1) * cv->group, cv->n_images) * cv->places;
        for (; place < last && cv->failure == LS_OK;) {
            int64_t n = smaller(cv->block, last - place);
            ls_status status = forward_block(cv, &room, place, n, worker);
            if (status != LS_OK) cv->failure = (int)status;
            place += n;
        }
    }
}

/* ---- backward ---- */

/* sum (N,patch) = or += dy^T patches */
static ls_status weight_block(const conv *cv, const rooms *room, int64_t place, int64_t n,
                              float *sum, bool add, int worker) {
    lsi_product p = {.m = cv->n_filters,
                     .n = cv->patch,
                     .k = n,
                     .a = {cv->dy + place * cv->n_filters * lsi_dtype_size(cv->dtype), cv->dtype,
                           cv->n_filters, true},
                     .b = patches_of(cv, room, place, n),
                     .c = sum,
                     .c_dtype = LS_DTYPE_F32,
                     .c_stride = cv->patch,
                     .add = add};
    return lsi_tape_multiply_by(cv->tape, worker, &p);
}

static ls_status input_block(const conv *cv, const rooms *room, int64_t place, int64_t n,
                             int64_t origin, int worker) {
    lsi_product p = {.m = n,
                     .n = cv->patch,
                     .k = cv->n_filters,
                     .a = {cv->dy + place * cv->n_filters * lsi_dtype_size(cv->dtype), cv->dtype,
                           cv->n_filters, false},
                     .b = {cv->w, cv->dtype, cv->patch, false},
                     .c = room->dpatches,
                     .c_dtype = LS_DTYPE_F32,
                     .c_stride = cv->patch};
    LSI_TRY(lsi_tape_multiply_by(cv->tape, worker, &p));
    fold(cv, place, n, room->dpatches, room->dx, origin);
    return LS_OK;
}

/* sum: NULL where the weights need no gradient; is_new: it has nothing yet. */
static ls_status backward_group(const conv *cv, const rooms *room, int64_t group, float *sum,
                                bool is_new, int worker) {
    int64_t first = group * cv->group, end = smaller(first + cv->group, cv->n_images);
    int64_t image = cv->height * cv->width * cv->n_channels;
    if (cv->dx) memset(room->dx, 0, (size_t)((end - first) * image) * sizeof(float));
    for (int64_t place = first * cv->places; place < end * cv->places;) {
        int64_t n = smaller(cv->block, end * cv->places - place);
        if (sum) LSI_TRY(weight_block(cv, room, place, n, sum, !is_new, worker));
        if (cv->dx) LSI_TRY(input_block(cv, room, place, n, first * image, worker));
        is_new = false;
        place += n;
    }
    if (cv->dx)
        lsi_add_to_grad(cv->dx + first * image * lsi_dtype_size(cv->dtype), cv->dtype, room->dx,
                        LS_DTYPE_F32, (end - first) * image, cv->first_x);
    return LS_OK;
}

static void backward_range(void *context, int64_t begin, int64_t end, int worker) {
    conv *cv = context;
    rooms room = rooms_of(cv, worker);
    for (int64_t slice = begin; slice < end; slice++) {
        float *sum = cv->dw ? cv->sums + slice * cv->n_filters * cv->patch : NULL;
        int64_t first = cv->n_groups * slice / cv->n_slices;
        int64_t last = cv->n_groups * (slice + 1) / cv->n_slices;
        for (int64_t group = first; group < last && cv->failure == LS_OK; group++) {
            ls_status status = backward_group(cv, &room, group, sum, group == first, worker);
            if (status != LS_OK) cv->failure = (int)status;
        }
    }
}

/* dw = or += the slices' sums, in order. */
static void add_slices(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const conv *cv = context;
    int64_t count = cv->n_filters * cv->patch;
    for (int64_t slice = 1; slice < cv->n_slices; slice++) {
        float *restrict sum = cv->sums;
        const float *restrict more = cv->sums + slice * count;
        for (int64_t i = begin; i < end; i++) sum[i] += more[i];
    }
    for (int64_t i = begin; i < end; i++) lsi_contribute(cv->dw + i, cv->sums[i], cv->first_w);
}

/* ---- the op ---- */

/* Runs over n items (groups or slices). */
static ls_status run_over(conv *cv, int64_t n, lsi_range_fn range) {
    size_t bytes[N_PIECES];
    int64_t grain = lsi_grain(divide_up(cv->n_images, n) * cv->places * cv->patch / 4);
    int n_workers = lsi_n_workers(n, grain);
    piece_bytes(cv, bytes);
    cv->scratch_bytes = bytes[0] + bytes[1] + bytes[2];
    cv->scratch = lsi_tape_scratch(cv->tape, (size_t)n_workers * cv->scratch_bytes);
    if (!cv->scratch) return lsi_tape_status(cv->tape);
    ls_status status = lsi_tape_reserve_workers(cv->tape, n_workers);
    if (status == LS_OK) lsi_for_ranges(n, grain, range, cv);
    lsi_tape_release(cv->tape, cv->scratch);
    if (status != LS_OK || cv->failure == LS_OK) return status;
    return lsi_fail((ls_status)cv->failure, "conv2d: a matrix product failed");
}

static ls_status backward_all(conv *cv) {
    int64_t count = cv->n_filters * cv->patch;
    if (!cv->dw) return run_over(cv, cv->n_slices, backward_range);
    cv->sums = lsi_tape_scratch(cv->tape, (size_t)(cv->n_slices * count) * sizeof *cv->sums);
    if (!cv->sums) return lsi_tape_status(cv->tape);
    ls_status status = run_over(cv, cv->n_slices, backward_range);
    if (status == LS_OK) lsi_for_ranges(count, lsi_grain(cv->n_slices), add_slices, cv);
    lsi_tape_release(cv->tape, cv->sums);
    return status;
}

static ls_status conv2d_backward(lsi_tape *tape, lsi_node *node) {
    conv cv = describe(tape, node);
    cv.dy = node->output->grad;
    cv.dw = lsi_grad(tape, node->input[1], &cv.first_w);
    cv.dx = lsi_grad(tape, node->input[0], &cv.first_x);
    LSI_TRY(lsi_tape_status(tape));
    return backward_all(&cv);
}

static ls_status conv2d_again(lsi_tape *tape, lsi_node *node) {
    conv cv = describe(tape, node);
    cv.y = node->output->data;
    return run_over(&cv, cv.n_groups, forward_range);
}

static bool fits(lsi_tape *tape, const lsi_tensor *x, const lsi_tensor *weight, int64_t stride) {
    bool has_dims = x->n_dims == 4 && weight->n_dims == 4;
    int64_t kernel = has_dims ? weight->dims[1] : 0;
    if (has_dims && weight->dims[2] == kernel && weight->dims[3] == x->dims[3] && kernel % 2 == 1 &&
        kernel <= MAX_KERNEL && stride >= 1)
        return lsi_op_same_type(tape, "conv2d", x, weight) &&
               lsi_op_is_weight(tape, "conv2d", "weight", weight);
    (void)lsi_tape_fail(tape, LS_ERR_ARGUMENT,
                        "conv2d: expected images (B,H,W,C), weight (N,K,K,C) with K odd and up to "
                        "%d, and a stride from 1, found %s, %s and %lld",
                        MAX_KERNEL, lsi_dims_text(x->n_dims, x->dims),
                        lsi_dims_text(weight->n_dims, weight->dims), (long long)stride);
    return false;
}

lsi_tensor *lsi_op_conv2d(lsi_tape *tape, lsi_tensor *x, lsi_tensor *weight, int64_t stride) {
    if (!lsi_op_begin(tape, "conv2d", 2, (lsi_tensor *[]){x, weight})) return NULL;
    if (!fits(tape, x, weight, stride)) return NULL;
    const int64_t dims[] = {x->dims[0], (x->dims[1] - 1) / stride + 1,
                            (x->dims[2] - 1) / stride + 1, weight->dims[0]};
    lsi_tensor *y = lsi_tape_activation(tape, 4, dims);
    if (!y) return NULL;
    lsi_node node = {.backward = conv2d_backward,
                     .again = conv2d_again,
                     .name = "conv2d",
                     .input = {x, weight},
                     .output = y,
                     .reads = (weight->needs_grad ? LSI_READS_INPUT(0) : 0) |
                              (x->needs_grad ? LSI_READS_INPUT(1) : 0),
                     .number = {stride}};
    ls_status status = conv2d_again(tape, &node);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    lsi_tape_record(tape, &node);
    return y;
}
