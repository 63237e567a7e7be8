/* Matrices as products of two thin ones, with error feedback.
 *
 * Source: Vogels, Karimireddy, Jaggi: "PowerSGD: practical low-rank gradient compression for
 * distributed optimization", NeurIPS 2019, algorithms 1 and 2: one step of subspace iteration in
 * each step of training.
 *
 * A parameter of n_dims >= 2 is a matrix of n = shape[0] rows and m columns. It is compressed to
 * rank r if n m > min_rate r (n + m); all else in the bucket goes along in the first all-reduce.
 *
 *     stage 0   M = gradient + what was left out; P = M Q
 *               all-reduce P and what is not compressed
 *     stage 1   P = orthonormal columns of P; Q = M' P; left out = M - P Q'
 *               all-reduce Q
 *     stage 2   gradient = P Q'; the next step begins with Q
 *
 * Each rank sends 2 f 4 r (n + m) bytes instead of 2 f 4 n m, f = (N - 1) / N for N ranks.
 *
 * [Note: nothing is lost] Rank i's M_i = g_i + e_i, in units before scaling. P is the same on all
 * ranks after the first all-reduce. The result is G = P (s sum_i M_i' P)' = P P' s sum_i M_i, with
 * s the scale. The rank keeps e_i = M_i - P (M_i' P)' = (1 - P P') M_i, from its own Q before the
 * second all-reduce. So G + s sum_i e_i = s sum_i M_i, whatever P is: over steps, the results and
 * what is left out add up to the true averages. P P' is a projection, so what is left out is never
 * longer than M_i. (Subtracting G / (s N) from M_i instead would keep the sum, too, but never take
 * the ranks' deviations from the mean out of e_i: they would pile up until float32 loses the sum in
 * them.)
 *
 * Q is kept from step to step with columns of length 1: only their directions matter, since P is
 * made orthonormal. Columns without a direction (at first, or when the matrix had fewer independent
 * columns, or was not finite) are drawn anew from seed, parameter, step and column. M lies where
 * the error lies, so there is one more copy of the matrices and no second. Thin matrices are stored
 * by column: all loops run along rows of M or columns of P.
 *
 * A matrix with an element that is not finite is NaN as a whole in the result, and nothing is kept
 * of that step. Before start_step everything is sent and nothing is kept. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "parallel/hook_columns.h"
#include "parallel/hook_impl.h"

#include <lockstep/optim.h>

enum { LINE_ELEMS = 16 };

/* A matrix to compress. */
typedef struct matrix {
    int64_t n_rows, n_columns;
    int rank;
    float *q; /* rank columns of n_columns elements; NULL: sent as it is */
} matrix;

typedef struct powersgd {
    ls_hook_opts opts;
    lsi_hook_wires wires;
    lsi_hook_errors errors;
    const ls_param *params; /* of ddp */
    int n_matrices;
    matrix *matrices; /* per parameter; kept as long as the errors are */
} powersgd;

/* A walk over a bucket's parameters and their places on the wire. */
typedef struct place {
    matrix *matrix;        /* NULL: not compressed */
    lsi_hook_error *error; /* of the matrix */
    float *grad, *p, *q;   /* p: also where what is not compressed lies */
    int64_t count;
    int param;
} place;

/* ---- places ---- */

static matrix shape_of(const powersgd *s, const ls_param *param) {
    matrix shape = {0};
    if (param->n_dims < 2 || param->shape[0] <= 0 || param->count % param->shape[0] != 0)
        return shape;
    int64_t n = param->shape[0], m = param->count / n, least = n < m ? n : m;
    double r = least < s->opts.powersgd_rank ? (double)least : s->opts.powersgd_rank;
    if ((double)n * (double)m > s->opts.min_rate * r * ((double)n + (double)m))
        shape = (matrix){.n_rows = n, .n_columns = m, .rank = (int)r};
    return shape;
}

/* Elements that a parameter has in the first all-reduce. */
static int64_t first_elems(const matrix *shape, const ls_param *param) {
    return shape->rank > 0 ? shape->rank * shape->n_rows : param->count;
}

static int64_t second_elems(const matrix *shape) {
    return shape->rank * shape->n_columns;
}

/* Elements of the two all-reduces; second 0: there is nothing to compress in the bucket. */
static void bucket_elems(const powersgd *s, const ls_bucket *bucket, int64_t *first,
                         int64_t *second) {
    *first = *second = 0;
    for (int i = 0; i < bucket->n_params; i++) {
        const ls_param *param = &s->params[bucket->params[i]];
        matrix shape = shape_of(s, param);
        *first += first_elems(&shape, param);
        *second += second_elems(&shape);
    }
    *first =
        (*first + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS; /* what follows begins on a line */
}

static int64_t wire_bytes(const void *state, const ls_group *group, const ls_bucket *bucket) {
    (void)group;
    int64_t first, second;
    if (bucket->dtype != LS_DTYPE_F32) return 0;
    bucket_elems(state, bucket, &first, &second);
    return second > 0 ? (first + second) * (int64_t)sizeof(float) : 0;
}

/* The i-th parameter of the bucket; *at, *at_second: where the next ones lie on the wire. */
static place next_place(powersgd *s, const ls_bucket *bucket, int i, float **at,
                        float **at_second) {
    int param = bucket->params[i];
    matrix *shape = &s->matrices[param];
    place here = {.matrix = shape->q ? shape : NULL,
                  .error = &s->errors.of[param],
                  .grad = (float *)bucket->grad + bucket->offsets[i],
                  .p = *at,
                  .q = *at_second,
                  .count = s->params[param].count,
                  .param = param};
    *at += first_elems(shape, &s->params[param]);
    *at_second += second_elems(shape);
    return here;
}

/* ---- life ---- */

static void free_matrices(powersgd *s) {
    for (int i = 0; i < s->n_matrices; i++) lsi_free(s->matrices[i].q);
    lsi_free(s->matrices);
    s->matrices = NULL;
    s->n_matrices = 0;
}

static void release(void *state) {
    powersgd *s = state;
    lsi_hook_wires_free(&s->wires);
    lsi_hook_errors_free(&s->errors);
    free_matrices(s);
}

static bool has_shapes(const powersgd *s, const ls_param *params, int n_params) {
    if (!s->matrices || s->n_matrices != n_params) return false;
    for (int i = 0; i < n_params; i++) {
        matrix now = shape_of(s, &params[i]), *was = &s->matrices[i];
        if (was->q && (now.n_rows != was->n_rows || now.n_columns != was->n_columns)) return false;
    }
    return true;
}

static ls_status prepare_matrices(powersgd *s, const ls_param *params, int n_params) {
    if (has_shapes(s, params, n_params)) return LS_OK;
    free_matrices(s);
    s->matrices = lsi_calloc(LSI_MEM_OTHER, (size_t)n_params, sizeof *s->matrices);
    LSI_TRY(lsi_check_alloc(s->matrices));
    s->n_matrices = n_params;
    return LS_OK;
}

/* Columns of zeros have no direction: they are drawn at first use. */
static ls_status prepare_matrix(powersgd *s, int param) {
    matrix *m = &s->matrices[param], shape = shape_of(s, &s->params[param]);
    if (shape.rank == 0) return LS_OK;
    LSI_TRY(lsi_hook_errors_keep(&s->errors, param));
    if (m->q) return LS_OK;
    shape.q = lsi_calloc(LSI_MEM_BUCKETS, (size_t)second_elems(&shape), sizeof(float));
    LSI_TRY(lsi_check_alloc(shape.q));
    *m = shape;
    return LS_OK;
}

static ls_status prepare(void *state, ls_group *group, const ls_param *params, int n_params,
                         const ls_bucket *buckets, int n_buckets) {
    powersgd *s = state;
    s->params = params;
    LSI_TRY(lsi_hook_errors_prepare(&s->errors, params, n_params));
    LSI_TRY(prepare_matrices(s, params, n_params));
    for (int b = 0; b < n_buckets; b++)
        for (int i = 0; i < buckets[b].n_params && buckets[b].dtype == LS_DTYPE_F32; i++)
            LSI_TRY(prepare_matrix(s, buckets[b].params[i]));
    return lsi_hook_wires_make(&s->wires, group, buckets, n_buckets, wire_bytes, s);
}

/* ---- a matrix in each stage ---- */

static void draw_columns(const powersgd *s, const place *at, int64_t step) {
    const matrix *m = at->matrix;
    const float std = 1 / sqrtf((float)m->n_columns);
    for (int c = 0; c < m->rank; c++) {
        float *column = m->q + c * m->n_columns;
        if (ls_sum_squares(column, m->n_columns) > 0) continue;
        lsi_rng_stream stream = lsi_rng_open(s->opts.seed, LSI_RNG_HOOK, (uint32_t)at->param,
                                             (uint32_t)(step * LSI_HOOK_MOST_RANK + c));
        lsi_rng_normal(&stream, std, column, m->n_columns);
    }
}

/* M into the error's place, and P = M Q. */
static void make_p(const place *at, double scale) {
    const matrix *m = at->matrix;
    const float factor = lsi_hook_error_factor(at->error, scale);
    at->error->scale = scale;
    for (int64_t i = 0; i < m->n_rows; i++) {
        float *restrict row = at->error->left_out + i * m->n_columns;
        const float *restrict grad = at->grad + i * m->n_columns;
        for (int64_t j = 0; j < m->n_columns; j++) row[j] = grad[j] + row[j] * factor;
        for (int c = 0; c < m->rank; c++)
            at->p[c * m->n_rows + i] = lsi_columns_dot(row, m->q + c * m->n_columns, m->n_columns);
    }
}

/* Q = M' P, and M becomes what is left out. */
static void make_q(const place *at) {
    const matrix *m = at->matrix;
    lsi_columns_orthonormalize(at->p, m->rank, m->n_rows);
    lsi_columns_fill(at->q, 0, second_elems(m));
    for (int64_t i = 0; i < m->n_rows; i++)
        for (int c = 0; c < m->rank; c++)
            lsi_columns_add_times(at->q + c * m->n_columns, at->error->left_out + i * m->n_columns,
                                  at->p[c * m->n_rows + i], m->n_columns);
    for (int64_t i = 0; i < m->n_rows; i++)
        for (int c = 0; c < m->rank; c++)
            lsi_columns_add_times(at->error->left_out + i * m->n_columns, at->q + c * m->n_columns,
                                  -at->p[c * m->n_rows + i], m->n_columns);
}

static void make_gradient(const place *at) {
    const matrix *m = at->matrix;
    lsi_columns_fill(at->grad, 0, at->count);
    for (int64_t i = 0; i < m->n_rows; i++)
        for (int c = 0; c < m->rank; c++)
            lsi_columns_add_times(at->grad + i * m->n_columns, at->q + c * m->n_columns,
                                  at->p[c * m->n_rows + i], m->n_columns);
}

/* Where the next step begins. A step that was not finite leaves nothing. */
static void keep_q(const place *at) {
    const matrix *m = at->matrix;
    bool is_finite = isfinite(ls_sum_squares(at->q, second_elems(m)));
    memcpy(m->q, at->q, (size_t)second_elems(m) * sizeof(float));
    if (!is_finite) {
        lsi_columns_fill(m->q, 0, second_elems(m));
        lsi_columns_fill(at->error->left_out, 0, at->count);
    }
    for (int c = 0; c < m->rank; c++)
        lsi_columns_normalize(m->q + c * m->n_columns, m->n_columns, 0);
}

/* ---- stages ---- */

static void before_first(powersgd *s, const ls_bucket *bucket, const place *at) {
    if (!at->matrix) {
        memcpy(at->p, at->grad, (size_t)at->count * sizeof(float));
        return;
    }
    draw_columns(s, at, bucket->step);
    make_p(at, bucket->scale);
}

static void before_second(powersgd *s, const ls_bucket *bucket, const place *at) {
    (void)s;
    (void)bucket;
    if (at->matrix)
        make_q(at);
    else
        memcpy(at->grad, at->p, (size_t)at->count * sizeof(float));
}

static void after_second(powersgd *s, const ls_bucket *bucket, const place *at) {
    (void)s;
    (void)bucket;
    if (!at->matrix) return;
    make_gradient(at);
    keep_q(at);
}

static ls_status run(void *state, ls_group *group, const ls_bucket *bucket, int stage,
                     ls_work **work) {
    static void (*const stages[])(powersgd *, const ls_bucket *,
                                  const place *) = {before_first, before_second, after_second};
    powersgd *s = state;
    int64_t elems[3] = {0};
    if (bucket->dtype != LS_DTYPE_F32) return lsi_hook_plain(group, bucket, stage, work);
    bucket_elems(s, bucket, &elems[0], &elems[1]);
    bool is_due = bucket->step >= s->opts.start_step && bucket->scale != 0;
    if (elems[1] == 0 || !is_due) return lsi_hook_plain(group, bucket, stage, work);
    float *wire = lsi_hook_wire(&s->wires, bucket), *second = wire + elems[0];
    float *at = wire, *at_second = second;
    for (int i = 0; i < bucket->n_params; i++) {
        place here = next_place(s, bucket, i, &at, &at_second);
        stages[stage](s, bucket, &here);
    }
    if (stage == 2) return LS_OK;
    float *posted = stage == 0 ? wire : second;
    return ls_all_reduce(group, posted, posted, elems[stage], LS_DTYPE_F32, LS_OP_SUM,
                         bucket->scale, work);
}

const lsi_hook_method lsi_hook_powersgd = {.name = "powersgd",
                                           .state_bytes = sizeof(powersgd),
                                           .prepare = prepare,
                                           .run = run,
                                           .release = release};
