/* Passing: carries out a pattern (pattern/pattern.h) over the channels between ranks.
 *
 * The working buffer is the output itself where it has the right size and type, else memory of this
 * work's own:
 *
 *   all-reduce, broadcast, all-gather    output
 *   reduce (not the root), reduce-scatter, gather, scatter (where the rank is no end)   own memory
 *   BF16 and F16 that are reduced        own memory of floats: partial results travel in float32
 *                                        and are rounded once, at the end
 *
 * One step at a time: what is sent and what arrives go on side by side, in whatever portions the
 * channels take. Received parts that replace go straight to their place; those that combine, or
 * that overlap what is being sent, first to `arrived`, and are used when the whole step is there.
 */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/collective/collective.h"
#include "comm/transport/channel.h"

struct lsi_passing {
    const lsi_pattern *pattern;
    lsi_pattern_case c;
    int n_steps, n_parts, step;
    ls_dtype dtype; /* of what is passed */
    size_t size;    /* of its elements */
    int64_t n_elems;
    unsigned char *buffer;     /* parts are sent from here … */
    unsigned char *target;     /* … and received here; the same but for all-to-all */
    unsigned char *own_memory; /* NULL: the buffers are the caller's */
    unsigned char *arrived;    /* room for what one step receives; NULL: none needed */
    size_t sent, received;     /* bytes of this step so far */
};

/* ---- places ---- */

/* Parts are sent from the buffer and received into the target, which all-to-all cuts differently.
 */
typedef enum side { SENT, RECEIVED } side;

static int64_t part_begin(const ls_work *work, side which, int p) {
    const lsi_passing *s = work->passing;
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    if (which == RECEIVED && shape->many_out) return lsi_output_part_begin(work, p);
    if (shape->many_in || shape->many_out) return lsi_part_begin(work, p);
    /* count * p / n_parts without overflow */
    return s->n_elems / s->n_parts * p + s->n_elems % s->n_parts * p / s->n_parts;
}

static size_t offset_of(const ls_work *work, side which, lsi_parts parts) {
    return (size_t)part_begin(work, which, parts.begin) * work->passing->size;
}

static size_t bytes_of(const ls_work *work, side which, lsi_parts parts) {
    if (parts.n == 0) return 0;
    int64_t begin = part_begin(work, which, parts.begin);
    int64_t end = part_begin(work, which, parts.begin + parts.n);
    return (size_t)(end - begin) * work->passing->size;
}

static bool overlap(lsi_parts a, lsi_parts b) {
    return a.begin < b.begin + b.n && b.begin < a.begin + a.n;
}

/* Whether what a step receives is kept apart at first. */
static bool goes_aside(const ls_work *work, const lsi_step *step) {
    bool swaps = work->call->kind != LSI_CALL_ALL_TO_ALL && overlap(step->sent, step->received);
    return step->use != LSI_REPLACE || swaps;
}

/* ---- begin ---- */

static size_t most_aside(const ls_work *work) {
    const lsi_passing *s = work->passing;
    size_t most = 0;
    for (int i = 0; i < s->n_steps; i++) {
        lsi_step step = s->pattern->step(&s->c, work->group->rank, i);
        bool aside = step.from >= 0 && goes_aside(work, &step);
        size_t bytes = aside ? bytes_of(work, RECEIVED, step.received) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* The output can be the working buffer: it has all parts, in the type that is passed. */
static bool works_in_output(const ls_work *work, const lsi_shape *shape) {
    if (work->passing->dtype != (ls_dtype)work->call->dtype) return false;
    if (shape->root_out && work->call->root != work->group->rank) return false;
    return shape->many_in ? shape->many_out : true;
}

static ls_status take_memory(ls_work *work, const lsi_shape *shape) {
    lsi_passing *s = work->passing;
    size_t bytes = (size_t)s->n_elems * s->size, aside = most_aside(work);
    bool swaps_places = lsi_swaps_in_place(work);
    s->buffer = s->target = work->output;
    if (!works_in_output(work, shape) || swaps_places) {
        LSI_TRY(lsi_check_alloc(s->own_memory = lsi_alloc(LSI_MEM_BUCKETS, bytes)));
        s->buffer = s->own_memory;
        if (!swaps_places) s->target = s->own_memory;
    }
    if (work->call->kind == LSI_CALL_ALL_TO_ALL && !swaps_places)
        s->buffer = (unsigned char *)work->input; /* only read */
    if (aside == 0) return LS_OK;
    return lsi_check_alloc(s->arrived = lsi_alloc(LSI_MEM_BUCKETS, aside));
}

static void copy(void *to, const void *from, size_t bytes) {
    if (to != from && bytes) memmove(to, from, bytes);
}

/* The input as the pattern wants it. */
static void fill(ls_work *work, const lsi_shape *shape) {
    lsi_passing *s = work->passing;
    int me = work->group->rank;
    bool is_root = work->call->root == me;
    size_t all = (size_t)s->n_elems * s->size;
    double premul[LSI_MAX_RANKS];
    if (shape->reduces) {
        lsi_reduction reduction = lsi_work_reduction(work, premul);
        lsi_partial_begin(&reduction, work->call->scale, work->input, s->buffer, s->n_elems);
    } else if (work->call->kind == LSI_CALL_ALL_TO_ALL) {
        if (s->own_memory) copy(s->own_memory, work->input, all);
        lsi_parts own = {me, 1};
        copy(s->target + offset_of(work, RECEIVED, own), s->buffer + offset_of(work, SENT, own),
             bytes_of(work, SENT, own));
    } else if (shape->many_out) { /* all-gather, gather */
        lsi_parts own = {me, 1};
        copy(s->buffer + offset_of(work, SENT, own), work->input, bytes_of(work, SENT, own));
    } else if (is_root) { /* broadcast, scatter */
        copy(s->buffer, work->input, all);
    }
}

ls_status lsi_passing_begin(ls_work *work) {
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    const ls_group *group = work->group;
    lsi_passing *s = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *s);
    LSI_TRY(lsi_check_alloc(s));
    lsi_choice_case c;
    lsi_work_choice_case(work, work->call, &c);
    work->passing = s;
    s->pattern = lsi_algorithm_pattern(work->algorithm);
    s->c = lsi_choice_pattern_case(&c);
    s->n_parts = s->pattern->n_parts(&s->c);
    s->n_steps = s->pattern->n_steps(&s->c, group->rank);
    s->dtype = (ls_dtype)work->call->dtype;
    if (shape->reduces) s->dtype = lsi_partial_dtype(s->dtype, (ls_op)work->call->op);
    s->size = ls_dtype_bytes(s->dtype);
    s->n_elems =
        shape->many_in || shape->many_out ? lsi_part_begin(work, group->n_ranks) : work->count;
    ls_status status = take_memory(work, shape);
    if (status == LS_OK) {
        fill(work, shape);
        return LS_OK;
    }
    /* The peers are in the call already and would wait for this rank. */
    lsi_group_raise(work->group, status, ls_last_message());
    return status;
}

void lsi_passing_end(ls_work *work) {
    if (!work->passing) return;
    lsi_free(work->passing->own_memory);
    lsi_free(work->passing->arrived);
    lsi_free(work->passing);
    work->passing = NULL;
}

/* ---- steps ---- */

static void use_arrived(ls_work *work, const lsi_step *step) {
    lsi_passing *s = work->passing;
    unsigned char *place = s->target + offset_of(work, RECEIVED, step->received);
    size_t bytes = bytes_of(work, RECEIVED, step->received);
    double premul[LSI_MAX_RANKS];
    if (step->use == LSI_REPLACE) {
        copy(place, s->arrived, bytes);
        return;
    }
    lsi_reduction reduction = lsi_work_reduction(work, premul);
    int64_t n_elems = (int64_t)(bytes / s->size);
    if (step->use == LSI_COMBINE_RIGHT)
        lsi_partial_combine(&reduction, place, s->arrived, n_elems, 0);
    else
        lsi_partial_combine(&reduction, s->arrived, place, n_elems, 1);
}

/* Moves the current step on; true when it is complete. */
static bool advance_step(ls_work *work) {
    lsi_passing *s = work->passing;
    ls_group *group = work->group;
    lsi_step step = s->pattern->step(&s->c, group->rank, s->step);
    size_t to_send = step.to >= 0 ? bytes_of(work, SENT, step.sent) : 0;
    size_t to_receive = step.from >= 0 ? bytes_of(work, RECEIVED, step.received) : 0;
    bool aside = goes_aside(work, &step);
    unsigned char *place =
        aside ? s->arrived : s->target + offset_of(work, RECEIVED, step.received);
    if (s->sent < to_send)
        s->sent += lsi_channel_put(group, LSI_CHANNELS_OF_ALGORITHMS, step.to,
                                   s->buffer + offset_of(work, SENT, step.sent) + s->sent,
                                   to_send - s->sent);
    if (s->received < to_receive)
        s->received += lsi_channel_get(group, LSI_CHANNELS_OF_ALGORITHMS, step.from,
                                       place + s->received, to_receive - s->received);
    if (s->sent < to_send || s->received < to_receive) return false;
    if (to_receive > 0 && aside) use_arrived(work, &step);
    group->stats.bytes_sent += (int64_t)to_send;
    group->bytes_received += (int64_t)to_receive;
    return true;
}

/* What the pattern left, as the caller wants it. */
static void finish(ls_work *work) {
    lsi_passing *s = work->passing;
    const lsi_shape *shape = lsi_shape_of(work->call->kind);
    int me = work->group->rank;
    if (shape->root_out && work->call->root != me) return;
    lsi_parts own = {me, 1};
    size_t at = shape->many_in && !shape->many_out ? offset_of(work, SENT, own) : 0;
    double premul[LSI_MAX_RANKS];
    if (shape->reduces) {
        lsi_reduction reduction = lsi_work_reduction(work, premul);
        lsi_partial_finish(&reduction, s->buffer + at, work->output, lsi_output_count(work));
    } else if (s->target != work->output) {
        copy(work->output, s->buffer + at, (size_t)lsi_output_count(work) * s->size);
    }
}

ls_status lsi_passing_advance(ls_work *work, bool *finished) {
    lsi_passing *s = work->passing;
    int64_t begin = lsi_ticks();
    *finished = false;
    while (s->step < s->n_steps) {
        size_t before = s->sent + s->received;
        if (advance_step(work)) {
            s->step++;
            s->sent = s->received = 0;
        } else if (s->sent + s->received == before) {
            work->group->stats.work_ns += lsi_ticks() - begin;
            return LS_OK;
        }
    }
    finish(work);
    work->group->stats.work_ns += lsi_ticks() - begin;
    *finished = true;
    return LS_OK;
}
