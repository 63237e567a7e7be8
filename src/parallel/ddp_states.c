/* Memory of the optimizer's states: two moments, and the masters of BF16 parameters, for every
 * element that this rank owns.
 *
 * In memory they are three arrays. Offloaded (opts.offload) they are one file, slice by slice, so
 * that what an update needs at a time is one range of the file:
 *
 *     first  second  master | first  second  master | …      (slice_elems of each)
 *
 * Frozen parameters that the ddp holds have masters and no moments. They are behind all others: in
 * the file as slices of masters alone.
 *
 * Who works on states visits them slice by slice (lsi_ddp_visit_states): the next slice is being
 * read meanwhile, the one before is being written. What is in memory is one slice.
 *
 * Masters are the caller's, or the rank's own: its shard of them, which is made when the ddp is, or
 * all of them, widened at the first update. */
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/spill.h"
#include "parallel/ddp_impl.h"

/* 12 MiB with masters: large enough for the speed of a disk, small next to what is offloaded. */
enum { SLICE_ELEMS = 1 << 20, FLOAT_BYTES = sizeof(float) };

static int64_t slice_elems_now = SLICE_ELEMS;

void lsi_ddp_set_slice(int64_t elems) {
    slice_elems_now = elems > 0 ? elems : SLICE_ELEMS;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool has_narrow(const ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++)
        if (lsi_ddp_is_narrow(ddp, i) && lsi_ddp_is_held(ddp, i)) return true;
    return false;
}

bool lsi_ddp_has_masters(const ls_ddp *ddp) {
    return ddp->states.masters || (ddp->states.spill && ddp->states.n_arrays > 2);
}

/* ---- plan ---- */

/* Of what is trained, or filled with float32. */
static ls_status check_types(const ls_ddp *ddp, const char *who) {
    for (int i = 0; i < ddp->n_params; i++)
        if ((!lsi_ddp_is_frozen(ddp, i) || (ddp->opts.fill && lsi_ddp_is_held(ddp, i))) &&
            ddp->params[i].dtype != LS_DTYPE_F32 && !lsi_ddp_is_narrow(ddp, i))
            return lsi_fail(LS_ERR_UNSUPPORTED,
                            "%s: parameter %s has dtype %s, expected F32 or BF16", who,
                            ddp->params[i].name, ls_dtype_name(ddp->params[i].dtype));
    return LS_OK;
}

ls_status lsi_ddp_plan_states(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    if (!lsi_ddp_is_sharded(ddp)) return LS_OK;
    LSI_TRY(check_types(ddp, "ddp with shards"));
    LSI_TRY(lsi_shard_plan_create(&ddp->plan, ddp->params, ls_group_world_size(ddp->shard_group),
                                  ls_group_rank(ddp->shard_group), &s->plan));
    if (lsi_ddp_updates_early(ddp)) return LS_OK; /* there is no norm */
    return lsi_shard_norm_create(&ddp->plan, ddp->params, ddp->n_params, &s->plan, &s->norm);
}

/* ---- slices ---- */

/* Of the elements that the rank owns. */
typedef struct slice {
    int64_t begin, count;
    bool is_frozen; /* it has masters alone */
} slice;

static slice slice_at(const lsi_states *s, int64_t state) {
    bool is_frozen = state >= s->plan.n_states;
    int64_t first = is_frozen ? s->plan.n_states : 0;
    int64_t end = is_frozen ? s->plan.n_masters : s->plan.n_states;
    int64_t length = s->spill ? s->slice_elems : end - first;
    int64_t begin = first + (state - first) / length * length;
    return (slice){begin, smaller(length, end - begin), is_frozen};
}

static float *at(float *array, int64_t index) {
    return array ? array + index : NULL;
}

/* Array `which` of a slice in the file: bytes before it. */
static int64_t array_offset(const lsi_states *s, slice in, int which) {
    int64_t n_states = s->plan.n_states;
    if (in.is_frozen) return (n_states * s->n_arrays + (in.begin - n_states)) * FLOAT_BYTES;
    return (in.begin * s->n_arrays + which * in.count) * FLOAT_BYTES;
}

static int64_t file_bytes(const lsi_states *s) {
    int64_t n_frozen = s->n_arrays > 2 ? s->plan.n_masters - s->plan.n_states : 0;
    return (s->plan.n_states * s->n_arrays + n_frozen) * FLOAT_BYTES;
}

static lsi_state_view view(const lsi_states *s, slice in, int64_t state) {
    float *array[3] = {s->first, s->second, s->masters};
    int64_t i = s->spill ? state - in.begin : state;
    for (int k = 0; k < s->n_arrays && s->spill; k++)
        array[k] = lsi_spill_at(s->spill, array_offset(s, in, k));
    if (in.is_frozen) return (lsi_state_view){.master = at(array[2], i)};
    return (lsi_state_view){at(array[0], i), at(array[1], i), at(array[2], i)};
}

lsi_state_view lsi_ddp_view_states(const ls_ddp *ddp, int64_t state) {
    return view(&ddp->states, slice_at(&ddp->states, state), state);
}

/* What is asked for and let go of: a slice, or the masters in it. */
typedef struct extent {
    int64_t offset, bytes;
} extent;

static extent extent_of(const lsi_states *s, slice in, bool masters_only) {
    int first = masters_only || in.is_frozen ? 2 : 0;
    return (extent){array_offset(s, in, first), (s->n_arrays - first) * in.count * FLOAT_BYTES};
}

/* Elements to visit. */
static int64_t n_visited(const lsi_states *s, bool masters_only) {
    return masters_only ? s->plan.n_masters : s->plan.n_states;
}

static void will_need(const lsi_states *s, int64_t state, bool masters_only) {
    if (!s->spill || state >= n_visited(s, masters_only)) return;
    extent e = extent_of(s, slice_at(s, state), masters_only);
    lsi_spill_will_need(s->spill, e.offset, e.bytes);
}

static const char *const who = "ddp: offloaded optimizer states";

static ls_status await(const lsi_states *s, extent e, bool writes) {
    if (!s->spill) return LS_OK;
    return lsi_context(lsi_spill_await(s->spill, e.offset, e.bytes, writes), "%s", who);
}

static ls_status is_done(const lsi_states *s, extent e, bool wrote) {
    if (!s->spill) return LS_OK;
    return lsi_context(lsi_spill_is_done(s->spill, e.offset, e.bytes, wrote), "%s", who);
}

static lsi_piece overlap(const lsi_piece *piece, slice in) {
    int64_t begin = piece->state > in.begin ? piece->state : in.begin;
    int64_t end = smaller(piece->state + piece->count, in.begin + in.count);
    return (lsi_piece){.param = piece->param,
                       .begin = piece->begin + (begin - piece->state),
                       .count = end - begin,
                       .state = begin};
}

/* next: the piece that the slice begins in; afterwards that of the slice behind. */
static ls_status visit_slice(ls_ddp *ddp, slice in, int *next, lsi_state_visitor visit,
                             void *context) {
    const lsi_states *s = &ddp->states;
    for (; *next < s->plan.n_held_pieces; ++*next) {
        const lsi_piece *piece = &s->plan.pieces[*next];
        lsi_piece part = overlap(piece, in);
        if (part.count <= 0) break;
        lsi_state_view states = view(s, in, part.state);
        LSI_TRY(visit(ddp, &part, &states, context));
        if (piece->state + piece->count > in.begin + in.count) break;
    }
    return LS_OK;
}

ls_status lsi_ddp_visit_states(ls_ddp *ddp, bool masters_only, lsi_state_visitor visit,
                               void *context) {
    const lsi_states *s = &ddp->states;
    int next = 0;
    will_need(s, 0, masters_only);
    for (int64_t state = 0; state < n_visited(s, masters_only);) {
        slice in = slice_at(s, state);
        extent e = extent_of(s, in, masters_only);
        state += in.count;
        will_need(s, state, masters_only);
        LSI_TRY(await(s, e, true));
        LSI_TRY(visit_slice(ddp, in, &next, visit, context));
        LSI_TRY(is_done(s, e, true));
    }
    return LS_OK;
}

ls_status lsi_ddp_copy_masters(const ls_ddp *ddp, const lsi_piece *piece, float *to) {
    const lsi_states *s = &ddp->states;
    for (int64_t done = 0; done < piece->count;) {
        slice in = slice_at(s, piece->state + done);
        lsi_piece part = overlap(piece, in);
        extent e = {array_offset(s, in, 2) + (part.state - in.begin) * FLOAT_BYTES,
                    part.count * FLOAT_BYTES};
        LSI_TRY(await(s, e, false));
        memcpy(to + done, view(s, in, part.state).master, (size_t)e.bytes);
        LSI_TRY(is_done(s, e, false));
        done += part.count;
    }
    return LS_OK;
}

/* ---- masters ---- */

/* A part of the values at their full precision. */
static ls_status write_master(ls_ddp *ddp, const lsi_piece *part, const lsi_state_view *states,
                              void *context) {
    (void)context;
    if (!lsi_ddp_is_narrow(ddp, part->param)) return LS_OK;
    if (ddp->opts.fill)
        return lsi_context(ddp->opts.fill(ddp->opts.fill_context, part->param, part->begin,
                                          part->count, states->master),
                           "ddp: values of %s", ddp->params[part->param].name);
    const float *given = lsi_ddp_given_master(ddp, part->param);
    if (given) {
        memcpy(states->master, given + part->begin, (size_t)part->count * sizeof *given);
        return LS_OK;
    }
    /* Not lsi_ddp_piece_value: values move only after masters are made. */
    const uint16_t *narrow = (const uint16_t *)ddp->params[part->param].data + part->begin;
    for (int64_t i = 0; i < part->count; i++) states->master[i] = lsi_bf16_to_f32(narrow[i]);
    return LS_OK;
}

static ls_status make_masters(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    bool uses_given = !lsi_ddp_is_sharded(ddp) && ddp->opts.masters;
    if (s->masters || uses_given || !has_narrow(ddp)) return LS_OK;
    if (!s->spill) {
        s->masters = lsi_calloc(LSI_MEM_OPTIMIZER, (size_t)s->plan.n_masters, sizeof *s->masters);
        LSI_TRY(lsi_check_alloc(s->masters));
    }
    return lsi_ddp_visit_states(ddp, true, write_master, NULL);
}

/* Rank 0's, as all values are. */
static ls_status broadcast_masters(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params && !ddp->opts.fill; i++)
        if (lsi_ddp_is_narrow(ddp, i) && lsi_ddp_given_master(ddp, i))
            LSI_TRY(lsi_context(ls_broadcast(ddp->group, lsi_ddp_given_master(ddp, i),
                                             lsi_ddp_given_master(ddp, i), ddp->params[i].count,
                                             LS_DTYPE_F32, 0, NULL),
                                "ddp: broadcast of the master of %s", ddp->params[i].name));
    return LS_OK;
}

static ls_status open_file(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    if (ddp->opts.offload < LS_OFFLOAD_OPTIMIZER) return LS_OK;
    s->n_arrays = has_narrow(ddp) ? 3 : 2;
    s->slice_elems = slice_elems_now;
    return lsi_context(lsi_spill_create(ddp->opts.offload_dir, file_bytes(s), &s->spill),
                       "ddp: offload of optimizer states");
}

ls_status lsi_ddp_shard_masters(ls_ddp *ddp) {
    LSI_TRY(broadcast_masters(ddp));
    if (!lsi_ddp_is_sharded(ddp)) return LS_OK;
    LSI_TRY(open_file(ddp));
    LSI_TRY(make_masters(ddp));
    ddp->opts.masters = NULL;
    return LS_OK;
}

/* ---- life ---- */

static ls_status make_moments(lsi_states *s) {
    size_t n = (size_t)s->plan.n_states;
    if (s->spill) return LS_OK;
    if (!s->first) s->first = lsi_calloc(LSI_MEM_OPTIMIZER, n, sizeof(float));
    if (!s->second) s->second = lsi_calloc(LSI_MEM_OPTIMIZER, n, sizeof(float));
    return s->first && s->second ? LS_OK : LS_ERR_MEMORY;
}

/* At the first update; who makes none needs none. */
ls_status lsi_ddp_make_states(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    if (s->n_updates) return LS_OK;
    LSI_TRY(check_types(ddp, "ls_ddp_update"));
    if (!lsi_ddp_is_sharded(ddp) && !s->plan.pieces)
        LSI_TRY(lsi_shard_plan_create(&ddp->plan, ddp->params, 1, 0, &s->plan));
    if (!lsi_ddp_has_masters(ddp)) LSI_TRY(make_masters(ddp));
    LSI_TRY(make_moments(s));
    s->n_updates = lsi_calloc(LSI_MEM_OTHER, (size_t)ddp->n_params, sizeof *s->n_updates);
    return lsi_check_alloc(s->n_updates);
}

void lsi_ddp_free_states(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    lsi_shard_norm_fini(&s->norm);
    lsi_shard_plan_fini(&s->plan);
    lsi_free(s->first);
    lsi_free(s->second);
    lsi_free(s->masters);
    lsi_free(s->n_updates);
    lsi_spill_destroy(s->spill);
    *s = (lsi_states){.first = NULL};
}

int64_t ls_ddp_state_bytes(const ls_ddp *ddp) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    int64_t n_masters = lsi_ddp_has_masters(ddp) ? plan->n_masters : 0;
    return FLOAT_BYTES * (2 * plan->n_states + n_masters);
}
