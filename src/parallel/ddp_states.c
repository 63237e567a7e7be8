/* Memory of the optimizer's states: two moments, and the lower halves of BF16 parameters ([Note:
 * halves] in base/dtype.h), for every element that this rank owns.
 *
 * In memory they are three arrays. Offloaded (opts.offload) they are one file, slice by slice, so
 * that what an update needs at a time is one range of the file:
 *
 *     first  second  lower | first  second  lower | …      (slice_elems of each)
 *
 * Frozen parameters that the ddp holds have lower halves and no moments. They are behind all
 * others: in the file as slices of lower halves alone.
 *
 * Who works on states visits them slice by slice (lsi_ddp_visit_states): the next slice is being
 * read meanwhile, the one before is being written. What is in memory is one slice.
 *
 * Lower halves are the caller's, or the rank's own: its shard of them, which is made when the ddp
 * is, or all of them, zeros at the first update. */
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/spill.h"
#include "parallel/ddp_impl.h"

/* 10 MiB with lower halves: large enough for the speed of a disk, small next to what is offloaded.
 */
enum { SLICE_ELEMS = 1 << 20, FLOAT_BYTES = sizeof(float), HALF_BYTES = sizeof(uint16_t) };

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

bool lsi_ddp_has_lower_halves(const ls_ddp *ddp) {
    return ddp->states.lower || (ddp->states.spill && ddp->states.n_arrays > 2);
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
    bool is_frozen; /* it has lower halves alone */
} slice;

static slice slice_at(const lsi_states *s, int64_t state) {
    bool is_frozen = state >= s->plan.n_states;
    int64_t first = is_frozen ? s->plan.n_states : 0;
    int64_t end = is_frozen ? s->plan.n_held : s->plan.n_states;
    int64_t length = s->spill ? s->slice_elems : end - first;
    int64_t begin = first + (state - first) / length * length;
    return (slice){begin, smaller(length, end - begin), is_frozen};
}

/* Bytes of all states of an element that is trained. */
static int64_t elem_bytes(const lsi_states *s) {
    return 2 * FLOAT_BYTES + (s->n_arrays > 2 ? HALF_BYTES : 0);
}

/* Of the first n elements in the file: slices that are whole, each padded so that the floats of the
 * next one begin at a multiple of their size, and what is left. */
static int64_t slices_bytes(const lsi_states *s, int64_t n) {
    int64_t one = (s->slice_elems * elem_bytes(s) + FLOAT_BYTES - 1) / FLOAT_BYTES * FLOAT_BYTES;
    return n / s->slice_elems * one + n % s->slice_elems * elem_bytes(s);
}

/* Array `which` of a slice in the file: bytes before it. */
static int64_t array_offset(const lsi_states *s, slice in, int which) {
    if (!s->spill) return 0;
    if (in.is_frozen)
        return slices_bytes(s, s->plan.n_states) + (in.begin - s->plan.n_states) * HALF_BYTES;
    return slices_bytes(s, in.begin) + which * in.count * FLOAT_BYTES;
}

static int64_t file_bytes(const lsi_states *s) {
    int64_t n_frozen = s->n_arrays > 2 ? s->plan.n_held - s->plan.n_states : 0;
    return slices_bytes(s, s->plan.n_states) + n_frozen * HALF_BYTES;
}

static void *in_file(const lsi_states *s, slice in, int which) {
    return lsi_spill_at(s->spill, array_offset(s, in, which));
}

/* The arrays of a slice; what there is not is NULL. */
static lsi_state_view arrays_of(const lsi_states *s, slice in) {
    if (!s->spill) {
        lsi_state_view all = {s->first, s->second, s->lower};
        if (all.first) all.first += in.begin, all.second += in.begin;
        if (all.lower) all.lower += in.begin;
        return all;
    }
    if (in.is_frozen) return (lsi_state_view){.lower = in_file(s, in, 2)};
    return (lsi_state_view){in_file(s, in, 0), in_file(s, in, 1),
                            s->n_arrays > 2 ? in_file(s, in, 2) : NULL};
}

static lsi_state_view view(const lsi_states *s, slice in, int64_t state) {
    lsi_state_view v = arrays_of(s, in);
    int64_t i = state - in.begin;
    if (in.is_frozen) v.first = v.second = NULL;
    if (v.first) v.first += i, v.second += i;
    if (v.lower) v.lower += i;
    return v;
}

lsi_state_view lsi_ddp_view_states(const ls_ddp *ddp, int64_t state) {
    return view(&ddp->states, slice_at(&ddp->states, state), state);
}

/* What is asked for and let go of: a slice, or the lower halves in it. */
typedef struct extent {
    int64_t offset, bytes;
} extent;

static extent extent_of(const lsi_states *s, slice in, bool lower_only) {
    if (lower_only || in.is_frozen) return (extent){array_offset(s, in, 2), in.count * HALF_BYTES};
    return (extent){array_offset(s, in, 0), in.count * elem_bytes(s)};
}

/* Elements to visit. */
static int64_t n_visited(const lsi_states *s, bool lower_only) {
    return lower_only ? s->plan.n_held : s->plan.n_states;
}

static void will_need(const lsi_states *s, int64_t state, bool lower_only) {
    if (!s->spill || state >= n_visited(s, lower_only)) return;
    extent e = extent_of(s, slice_at(s, state), lower_only);
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

ls_status lsi_ddp_visit_states(ls_ddp *ddp, bool lower_only, lsi_state_visitor visit,
                               void *context) {
    const lsi_states *s = &ddp->states;
    int next = 0;
    will_need(s, 0, lower_only);
    for (int64_t state = 0; state < n_visited(s, lower_only);) {
        slice in = slice_at(s, state);
        extent e = extent_of(s, in, lower_only);
        state += in.count;
        will_need(s, state, lower_only);
        LSI_TRY(await(s, e, true));
        LSI_TRY(visit_slice(ddp, in, &next, visit, context));
        LSI_TRY(is_done(s, e, true));
    }
    return LS_OK;
}

ls_status lsi_ddp_join_piece(const ls_ddp *ddp, const lsi_piece *piece, float *to) {
    const lsi_states *s = &ddp->states;
    const uint16_t *upper = lsi_ddp_piece_value(ddp, piece);
    for (int64_t done = 0; done < piece->count;) {
        slice in = slice_at(s, piece->state + done);
        lsi_piece part = overlap(piece, in);
        extent e = {array_offset(s, in, 2) + (part.state - in.begin) * HALF_BYTES,
                    part.count * HALF_BYTES};
        LSI_TRY(await(s, e, false));
        ls_bf16_join(upper + done, view(s, in, part.state).lower, part.count, to + done);
        LSI_TRY(is_done(s, e, false));
        done += part.count;
    }
    return LS_OK;
}

/* ---- lower halves ---- */

static ls_status fill_lower(const ls_ddp *ddp, const lsi_piece *part, uint16_t *lower) {
    enum { WIDE = 4096 };
    float wide[WIDE];
    for (int64_t done = 0; done < part->count; done += WIDE) {
        int64_t n = smaller(part->count - done, WIDE);
        LSI_TRY(lsi_context(
            ddp->opts.fill(ddp->opts.fill_context, part->param, part->begin + done, n, wide),
            "ddp: values of %s", ddp->params[part->param].name));
        ls_bf16_split(wide, n, NULL, lower + done);
    }
    return LS_OK;
}

/* They are zeros before. */
static ls_status write_lower(ls_ddp *ddp, const lsi_piece *part, const lsi_state_view *states,
                             void *context) {
    (void)context;
    if (!lsi_ddp_is_narrow(ddp, part->param)) return LS_OK;
    if (ddp->opts.fill) return fill_lower(ddp, part, states->lower);
    const uint16_t *given = lsi_ddp_given_lower(ddp, part->param);
    if (given) memcpy(states->lower, given + part->begin, (size_t)part->count * sizeof *given);
    return LS_OK;
}

static ls_status make_lower_halves(ls_ddp *ddp) {
    lsi_states *s = &ddp->states;
    bool uses_given = !lsi_ddp_is_sharded(ddp) && ddp->opts.lower_halves;
    if (s->lower || uses_given || !has_narrow(ddp)) return LS_OK;
    if (!s->spill) {
        s->lower = lsi_calloc(LSI_MEM_OPTIMIZER, (size_t)s->plan.n_held, sizeof *s->lower);
        LSI_TRY(lsi_check_alloc(s->lower));
    }
    return lsi_ddp_visit_states(ddp, true, write_lower, NULL);
}

/* Rank 0's, as all values are. */
static ls_status broadcast_lower_halves(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params && !ddp->opts.fill; i++) {
        uint16_t *lower = lsi_ddp_is_narrow(ddp, i) ? lsi_ddp_given_lower(ddp, i) : NULL;
        if (lower)
            LSI_TRY(lsi_context(ls_broadcast(ddp->group, lower, lower, ddp->params[i].count,
                                             LS_DTYPE_BF16, 0, NULL),
                                "ddp: broadcast of the lower half of %s", ddp->params[i].name));
    }
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

ls_status lsi_ddp_shard_lower_halves(ls_ddp *ddp) {
    LSI_TRY(broadcast_lower_halves(ddp));
    if (!lsi_ddp_is_sharded(ddp)) return LS_OK;
    LSI_TRY(open_file(ddp));
    LSI_TRY(make_lower_halves(ddp));
    ddp->opts.lower_halves = NULL;
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
    if (!lsi_ddp_has_lower_halves(ddp)) LSI_TRY(make_lower_halves(ddp));
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
    lsi_free(s->lower);
    lsi_free(s->n_updates);
    lsi_spill_destroy(s->spill);
    *s = (lsi_states){.first = NULL};
}

int64_t ls_ddp_state_bytes(const ls_ddp *ddp) {
    const lsi_shard_plan *plan = &ddp->states.plan;
    int64_t n_lower = lsi_ddp_has_lower_halves(ddp) ? plan->n_held : 0;
    return 2 * FLOAT_BYTES * plan->n_states + HALF_BYTES * n_lower;
}
