#include "harness/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "comm/collective/collective.h"

const case_op case_ops[] = {{LS_OP_SUM, 1}, {LS_OP_SUM, 3},  {LS_OP_AVG, 1},       {LS_OP_MIN, 1},
                            {LS_OP_MAX, 1}, {LS_OP_PROD, 1}, {LS_OP_PREMUL_SUM, 1}};
const int n_case_ops = sizeof case_ops / sizeof case_ops[0];

const ls_dtype case_dtypes[] = {
#define CASE_DTYPE(name, number, bytes, text) LS_DTYPE_##name,
    LS_DTYPE_TABLE(CASE_DTYPE)
#undef CASE_DTYPE
};
const int n_case_dtypes = sizeof case_dtypes / sizeof case_dtypes[0];

const case_kind case_kinds[] = {
    {LSI_CALL_BROADCAST, false},  {LSI_CALL_ALL_REDUCE, false},     {LSI_CALL_REDUCE, false},
    {LSI_CALL_GATHER, false},     {LSI_CALL_REDUCE_SCATTER, false}, {LSI_CALL_REDUCE_SCATTER, true},
    {LSI_CALL_ALL_GATHER, false}, {LSI_CALL_ALL_GATHER, true},      {LSI_CALL_SCATTER, false},
    {LSI_CALL_ALL_TO_ALL, false}, {LSI_CALL_ALL_TO_ALL, true}};
const int n_case_kinds = sizeof case_kinds / sizeof case_kinds[0];

enum { CANARY = 0xA5, CANARY_BYTES = 64 };

bool case_reduces(const call_case *c) {
    return lsi_shape_of(c->kind)->reduces;
}

bool case_has_root(const call_case *c) {
    return lsi_shape_of(c->kind)->root_in || lsi_shape_of(c->kind)->root_out;
}

/* ---- sizes ---- */

static int64_t part_count(const call_case *c, int p) {
    if (!c->uneven) return c->count;
    return p % 3 == 1 ? 0 : c->count + p % 2 * 3;
}

static int64_t part_begin(const call_case *c, int p) {
    int64_t begin = 0;
    for (int q = 0; q < p; q++) begin += part_count(c, q);
    return begin;
}

/* Where part q of an output of n parts begins: all-to-all gives a rank its own part n times. */
static int64_t output_begin(const ls_group *group, const call_case *c, int q) {
    return c->kind == LSI_CALL_ALL_TO_ALL ? q * part_count(c, group->rank) : part_begin(c, q);
}

static int64_t input_count(const ls_group *group, const call_case *c) {
    const lsi_shape *shape = lsi_shape_of(c->kind);
    if (shape->root_in && c->root != group->rank) return 0;
    return shape->many_in ? part_begin(c, group->n_ranks) : part_count(c, group->rank);
}

static int64_t output_count(const ls_group *group, const call_case *c) {
    const lsi_shape *shape = lsi_shape_of(c->kind);
    if (shape->root_out && c->root != group->rank) return 0;
    return shape->many_out ? output_begin(group, c, group->n_ranks) : part_count(c, group->rank);
}

/* ---- what a group can do ---- */

static lsi_choice_case choice_case(const ls_group *group, const call_case *c) {
    const lsi_shape *shape = lsi_shape_of(c->kind);
    int64_t most = 0, size = (int64_t)ls_dtype_bytes(c->dtype);
    for (int p = 0; p < group->n_ranks; p++)
        if (part_count(c, p) > most) most = part_count(c, p);
    int64_t all = part_begin(c, group->n_ranks) * size, larger = all;
    if (!shape->many_in && !shape->many_out) larger = most * size;
    if (shape->many_in && shape->many_out) larger = group->n_ranks * most * size;
    return (lsi_choice_case){.kind = c->kind,
                             .n = group->n_ranks,
                             .root = case_has_root(c) ? c->root : 0,
                             .bytes = larger,
                             .slot_bytes = shape->many_in ? all : most * size,
                             .reduces = shape->reduces,
                             .default_order = true};
}

bool case_possible(const ls_group *group, const call_case *c) {
    lsi_choice_case question = choice_case(group, c);
    if (c->in_place && c->kind == LSI_CALL_ALL_TO_ALL && c->uneven) return false;
    if (c->algorithm == 0) return true;
    bool moves_in_place = c->in_place && c->kind == LSI_CALL_ALL_TO_ALL && group->n_ranks > 1;
    if (c->algorithm == LSI_ALGORITHM_DIRECT &&
        (moves_in_place || (c->buffers != CASE_SHARED && group->n_ranks > 1)))
        return false;
    return lsi_algorithm_can(c->algorithm, &question);
}

bool case_keeps_order(const ls_group *group, const call_case *c) {
    lsi_choice_case question = choice_case(group, c);
    return lsi_algorithm_keeps_order(c->algorithm, &question);
}

void case_force(ls_group *group, int algorithm) {
    group->rules = (lsi_rules){.n = algorithm != 0};
    group->rules.rule[0] = (lsi_rule){.max_bytes = INT64_MAX, .algorithm = algorithm};
    memset(group->chosen, 0, sizeof group->chosen);
}

/* ---- one number ---- */

static bool is_integer(ls_dtype dtype) {
    return dtype == LS_DTYPE_I8 || dtype == LS_DTYPE_U8 || dtype == LS_DTYPE_I32 ||
           dtype == LS_DTYPE_I64;
}

static void number_write(ls_dtype dtype, double value, void *to) {
    int64_t whole = is_integer(dtype) ? (int64_t)value : 0;
    float single = (float)value;
    uint16_t half = dtype == LS_DTYPE_BF16 ? lsi_f32_to_bf16(single) : lsi_f32_to_f16(single);
    switch (dtype) {
    case LS_DTYPE_F32: memcpy(to, &single, 4); break;
    case LS_DTYPE_F64: memcpy(to, &value, 8); break;
    case LS_DTYPE_BF16:
    case LS_DTYPE_F16: memcpy(to, &half, 2); break;
    case LS_DTYPE_I8:
    case LS_DTYPE_U8: memcpy(to, &whole, 1); break; /* little-endian */
    case LS_DTYPE_I32: memcpy(to, &whole, 4); break;
    case LS_DTYPE_I64: memcpy(to, &whole, 8); break;
    }
}

static double number_read(ls_dtype dtype, const void *from) {
    float single = 0;
    double value = 0;
    int32_t whole = 0;
    int64_t large = 0;
    uint16_t half = 0;
    switch (dtype) {
    case LS_DTYPE_F32: memcpy(&single, from, 4); return (double)single;
    case LS_DTYPE_F64: memcpy(&value, from, 8); return value;
    case LS_DTYPE_BF16: memcpy(&half, from, 2); return (double)lsi_bf16_to_f32(half);
    case LS_DTYPE_F16: memcpy(&half, from, 2); return (double)lsi_f16_to_f32(half);
    case LS_DTYPE_I8: return *(const int8_t *)from;
    case LS_DTYPE_U8: return *(const uint8_t *)from;
    case LS_DTYPE_I32: memcpy(&whole, from, 4); return whole;
    case LS_DTYPE_I64: memcpy(&large, from, 8); return (double)large;
    }
    return 0;
}

/* ---- inputs ---- */

static uint32_t draw(const call_case *c, int rank, int64_t i) {
    uint64_t z = ((uint64_t)i * 0x9E3779B97F4A7C15u) ^ ((uint64_t)(rank + 1) << 40) ^ c->seed;
    z = (z ^ z >> 31) * 0xBF58476D1CE4E5B9u;
    return (uint32_t)(z >> 32);
}

/* Sums of 8 ranks are at most 24 in size, 72 scaled; products at most 81: below 127 and, in BF16,
 * exact. */
static int small_value(const call_case *c, int rank, int64_t i) {
    uint32_t bits = draw(c, rank, i);
    bool is_signed = c->dtype != LS_DTYPE_U8;
    if (c->op == LS_OP_PROD && case_reduces(c)) {
        int size = rank < 4 ? (int)(bits % 3) + 1 : 1;
        return is_signed && bits >> 16 & 1 ? -size : size;
    }
    return is_signed ? (int)(bits % 7) - 3 : (int)(bits % 4);
}

/* Fractions of about the same size, and now and then one that is far larger or smaller. */
static double rough_value(const call_case *c, int rank, int64_t i) {
    static const double sizes[] = {1, 1, 1, 1, 0.7, 1.0 / 3, 37.5, 1.0 / 1024};
    uint32_t bits = draw(c, rank, i);
    double fraction = (double)(bits >> 8) / (1 << 24) + 0.25;
    return (bits & 8 ? -fraction : fraction) * sizes[bits & 7];
}

static double value_of(const call_case *c, int rank, int64_t i) {
    return c->rough ? rough_value(c, rank, i) : small_value(c, rank, i);
}

/* At most 3 in size; U8 has no signs. */
static double premul_of(const call_case *c, int rank) {
    double factor = rank % 3 + 1;
    if (c->rough) return factor * 0.3;
    return rank % 2 && c->dtype != LS_DTYPE_U8 ? -factor : factor;
}

static double scale_of(const call_case *c, int rank) {
    return c->op == LS_OP_PREMUL_SUM ? premul_of(c, rank) : c->scale;
}

/* ---- answers ---- */

/* In plain cases every number here is whole and small. */
static double exact_answer(const call_case *c, int n, int64_t i) {
    double result = c->op == LS_OP_PROD                        ? 1
                    : c->op == LS_OP_MIN || c->op == LS_OP_MAX ? small_value(c, 0, i)
                                                               : 0;
    for (int r = 0; r < n; r++) {
        double value = small_value(c, r, i);
        switch (c->op) {
        case LS_OP_SUM:
        case LS_OP_AVG: result += value; break;
        case LS_OP_PREMUL_SUM: result += value * premul_of(c, r); break;
        case LS_OP_PROD: result *= value; break;
        case LS_OP_MIN: result = value < result ? value : result; break;
        case LS_OP_MAX: result = value > result ? value : result; break;
        }
    }
    if (c->op == LS_OP_SUM) return result * c->scale;
    if (c->op != LS_OP_AVG) return result;
    if (is_integer(c->dtype)) return (double)((int64_t)result / n);
    if (c->dtype == LS_DTYPE_F64) return result * (1.0 / n);
    return (double)((float)result * (1.0f / (float)n));
}

/* A rough answer, in the accumulation type. */
#define ROUGH_TREE(type, name)                                                                     \
    static type name##_tree(const call_case *c, int first, int n, int64_t i) {                     \
        if (n == 1) {                                                                              \
            unsigned char stored[8];                                                               \
            number_write(c->dtype, rough_value(c, first, i), stored);                              \
            type leaf = (type)number_read(c->dtype, stored);                                       \
            return c->op == LS_OP_PREMUL_SUM ? leaf * (type)premul_of(c, first) : leaf;            \
        }                                                                                          \
        int split = (int)lsi_order_split(n);                                                       \
        type left = name##_tree(c, first, split, i);                                               \
        type right = name##_tree(c, first + split, n - split, i);                                  \
        switch (c->op) {                                                                           \
        case LS_OP_PROD: return left * right;                                                      \
        case LS_OP_MIN: return left < right ? left : right;                                        \
        case LS_OP_MAX: return left > right ? left : right;                                        \
        default: return left + right;                                                              \
        }                                                                                          \
    }                                                                                              \
    static double name##_answer(const call_case *c, int n, int64_t i) {                            \
        type result = name##_tree(c, 0, n, i);                                                     \
        if (c->op == LS_OP_SUM) result *= (type)c->scale;                                          \
        if (c->op == LS_OP_AVG) result *= (type)1 / (type)n;                                       \
        return (double)result;                                                                     \
    }
ROUGH_TREE(float, float)
ROUGH_TREE(double, double)

static double reduced(const call_case *c, int n, int64_t i) {
    if (!c->rough) return exact_answer(c, n, i);
    return c->dtype == LS_DTYPE_F64 ? double_answer(c, n, i) : float_answer(c, n, i);
}

/* Writes the output that this rank must get. */
static void write_answer(const ls_group *group, const call_case *c, unsigned char *to) {
    const lsi_shape *shape = lsi_shape_of(c->kind);
    size_t size = ls_dtype_bytes(c->dtype);
    int64_t own = part_begin(c, group->rank), n_out = output_count(group, c);
    int64_t first = shape->many_in ? own : 0;
    int q = 0;
    for (int64_t j = 0; j < n_out; j++) {
        double value;
        if (shape->reduces) {
            value = reduced(c, group->n_ranks, first + j);
        } else if (shape->root_in) {
            value = value_of(c, c->root, first + j);
        } else {
            while (j >= output_begin(group, c, q + 1)) q++;
            value = value_of(c, q, first + j - output_begin(group, c, q));
        }
        number_write(c->dtype, value, to + (size_t)j * size);
    }
}

/* ---- the arena ---- */

ls_status case_arena_open(case_arena *arena, ls_group *group, size_t bytes) {
    void *shared = NULL;
    *arena = (case_arena){.group = group, .bytes = bytes};
    LSI_TRY(ls_group_alloc_shared(group, bytes, &shared));
    arena->memory[1] = shared;
    arena->memory[0] = malloc(bytes);
    return arena->memory[0] ? LS_OK : lsi_fail(LS_ERR_MEMORY, "no memory for an arena");
}

void case_arena_reset(case_arena *arena) {
    arena->used[0] = arena->used[1] = 0;
}

void case_arena_close(case_arena *arena) {
    free(arena->memory[0]);
    ls_group_free_shared(arena->group, arena->memory[1]);
}

static unsigned char *take(case_arena *arena, bool shared, size_t bytes) {
    size_t at = arena->used[shared];
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > arena->bytes - at) return NULL;
    arena->used[shared] += bytes;
    return arena->memory[shared] + at;
}

/* ---- posting ---- */

/* An area of `count` elements between canaries, and room for what is expected of it. */
static ls_status take_area(case_arena *arena, posted_case *p, int which, bool shared,
                           int64_t count) {
    size_t size = ls_dtype_bytes(p->c.dtype);
    size_t shift = p->c.seed % 7 * size;
    p->bytes[which] = 2 * CANARY_BYTES + shift + (size_t)count * size;
    p->area[which] = take(arena, shared, p->bytes[which]);
    p->expected[which] = take(arena, false, p->bytes[which]);
    if (!p->area[which] || !p->expected[which])
        return lsi_fail(LS_ERR_MEMORY, "the arena of %zu bytes is too small", arena->bytes);
    memset(p->area[which], CANARY, p->bytes[which]);
    void *begin = p->area[which] + CANARY_BYTES + shift;
    if (which == 0) p->input = begin;
    p->output = begin;
    return LS_OK;
}

/* A pointer that nobody may look at. */
static void *nowhere(const call_case *c) {
    return c->seed % 2 ? NULL : (void *)(uintptr_t)1; /* NOLINT: not to be looked at */
}

static bool has_answer(const posted_case *p) {
    return !p->c.rough || !case_reduces(&p->c) || case_keeps_order(p->group, &p->c);
}

static ls_status lay_out(case_arena *arena, posted_case *p) {
    const call_case *c = &p->c;
    const lsi_shape *shape = lsi_shape_of(c->kind);
    size_t size = ls_dtype_bytes(c->dtype);
    int64_t n_in = input_count(p->group, c), n_out = output_count(p->group, c);
    size_t own = (size_t)part_begin(c, p->group->rank) * size;
    bool has_in = !shape->root_in || c->root == p->group->rank;
    bool has_out = !shape->root_out || c->root == p->group->rank;
    bool shared = c->buffers == CASE_SHARED || (c->buffers == CASE_MIXED && p->group->rank % 2);
    LSI_TRY(take_area(arena, p, 0, shared, c->in_place && n_out > n_in ? n_out : n_in));
    if (c->in_place) {
        if (shape->many_out && !shape->many_in && has_out) p->input = (char *)p->input + own;
        if (shape->many_in && !shape->many_out && has_in) p->output = (char *)p->output + own;
    } else {
        LSI_TRY(take_area(arena, p, 1, shared, n_out));
    }
    if (!has_in) p->input = nowhere(c);
    if (!has_out) p->output = nowhere(c);
    if (has_in)
        for (int64_t i = 0; i < n_in; i++)
            number_write(c->dtype, value_of(c, p->group->rank, i),
                         (unsigned char *)p->input + (size_t)i * size);
    memcpy(p->expected[0], p->area[0], p->bytes[0]);
    if (p->expected[1]) memcpy(p->expected[1], p->area[1], p->bytes[1]);
    if (n_out == 0 || !has_answer(p)) return LS_OK;
    int which = c->in_place ? 0 : 1;
    write_answer(p->group, c, p->expected[which] + ((unsigned char *)p->output - p->area[which]));
    return LS_OK;
}

static ls_status make_call(posted_case *p, ls_work **work) {
    const call_case *c = &p->c;
    ls_group *group = p->group;
    int64_t counts[LSI_MAX_RANKS];
    double scale = scale_of(c, group->rank);
    for (int q = 0; q < group->n_ranks; q++) counts[q] = part_count(c, q);
    switch (c->kind) {
    case LSI_CALL_BROADCAST:
        return ls_broadcast(group, p->input, p->output, c->count, c->dtype, c->root, work);
    case LSI_CALL_ALL_REDUCE:
        return ls_all_reduce(group, p->input, p->output, c->count, c->dtype, c->op, scale, work);
    case LSI_CALL_REDUCE:
        return ls_reduce(group, p->input, p->output, c->count, c->dtype, c->op, scale, c->root,
                         work);
    case LSI_CALL_REDUCE_SCATTER:
        return c->uneven ? ls_reduce_scatter_v(group, p->input, p->output, counts, c->dtype, c->op,
                                               scale, work)
                         : ls_reduce_scatter(group, p->input, p->output, c->count, c->dtype, c->op,
                                             scale, work);
    case LSI_CALL_ALL_GATHER:
        return c->uneven ? ls_all_gather_v(group, p->input, p->output, counts, c->dtype, work)
                         : ls_all_gather(group, p->input, p->output, c->count, c->dtype, work);
    case LSI_CALL_GATHER:
        return ls_gather(group, p->input, p->output, c->count, c->dtype, c->root, work);
    case LSI_CALL_SCATTER:
        return ls_scatter(group, p->input, p->output, c->count, c->dtype, c->root, work);
    case LSI_CALL_ALL_TO_ALL:
        return c->uneven ? ls_all_to_all_v(group, p->input, p->output, counts, c->dtype, work)
                         : ls_all_to_all(group, p->input, p->output, c->count, c->dtype, work);
    default: return ls_barrier(group, work);
    }
}

const char *case_print(const ls_group *group, const call_case *c, char text[CASE_TEXT_BYTES]) {
    static const char *const buffer_names[] = {"shared", "private", "mixed"};
    char op[64] = "", root[32] = "";
    if (case_reduces(c)) snprintf(op, sizeof op, ", %s, scale %g", ls_op_name(c->op), c->scale);
    if (case_has_root(c)) snprintf(root, sizeof root, ", root %d", c->root);
    snprintf(text, CASE_TEXT_BYTES,
             "%s%s by %s, %s%s%s, %d ranks, count %lld, %s, %s buffers%s, seed %u",
             lsi_call_kind_name(c->kind), c->uneven ? " (v)" : "",
             c->algorithm ? lsi_algorithm_name(c->algorithm) : "choice", ls_dtype_name(c->dtype),
             op, root, group->n_ranks, (long long)c->count,
             c->in_place ? "in place" : "out of place", buffer_names[c->buffers],
             c->rough ? ", rough values" : "", c->seed);
    return text;
}

ls_status case_post(case_arena *arena, const call_case *c, bool async, posted_case *p) {
    char text[CASE_TEXT_BYTES];
    *p = (posted_case){.c = *c, .group = arena->group};
    LSI_TRY(lay_out(arena, p));
    case_force(p->group, c->algorithm);
    ls_status status = make_call(p, async ? &p->work : NULL);
    case_force(p->group, 0);
    if (status == LS_OK) return LS_OK;
    return lsi_context(status, "%s, rank %d", case_print(p->group, c, text), p->group->rank);
}

/* ---- checking ---- */

static ls_status report(const posted_case *p, int which, size_t at) {
    char text[CASE_TEXT_BYTES];
    size_t size = ls_dtype_bytes(p->c.dtype), before = CANARY_BYTES + p->c.seed % 7 * size;
    bool inside = at >= before && at < p->bytes[which] - CANARY_BYTES;
    at -= inside ? (at - before) % size : 0;
    unsigned char zero[8] = {0};
    const void *found = inside ? p->area[which] + at : zero;
    const void *wanted = inside ? p->expected[which] + at : zero;
    (void)lsi_fail(LS_ERR_STATE, "%s, rank %d: %s, %s: found %.17g, expected %.17g (place %lld)",
                   case_print(p->group, &p->c, text), p->group->rank,
                   p->c.in_place ? "buffer"
                   : which == 0  ? "input"
                                 : "output",
                   inside ? "an element" : "bytes outside were changed",
                   number_read(p->c.dtype, found), number_read(p->c.dtype, wanted),
                   ((long long)at - (long long)before) / (long long)size);
    return LS_ERR_STATE;
}

ls_status case_check(const posted_case *p) {
    if (!has_answer(p)) return LS_OK;
    for (int which = 0; which < 2 && p->area[which]; which++) {
        if (memcmp(p->area[which], p->expected[which], p->bytes[which]) == 0) continue;
        size_t at = 0;
        while (p->area[which][at] == p->expected[which][at]) at++;
        return report(p, which, at);
    }
    return LS_OK;
}

ls_status case_run(case_arena *arena, const call_case *c) {
    posted_case p;
    case_arena_reset(arena);
    LSI_TRY(case_post(arena, c, false, &p));
    return case_check(&p);
}

uint64_t case_hash(const posted_case *p) {
    size_t bytes = (size_t)output_count(p->group, &p->c) * ls_dtype_bytes(p->c.dtype);
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)p->output)[i]) * 1099511628211u;
    return hash;
}
