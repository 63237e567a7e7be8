/* What ranks tell each other about a step, so that all come to the same end of it: which parameters
 * got no gradient, and whether a gradient is not finite. One all-gather of a few words, posted
 * behind the last bucket; a rank's words:
 *
 *     [0]      1 + the first parameter with a gradient that is not finite, 0: none
 *     [1 2]    the factor of sums, which must be the same: it follows from numbers of micro-batches
 *     [3 …]    a bit for each parameter:
 *                  strict                 it got no gradient in some micro-batch: an error
 *                  find_unused_parameters it got none in any
 *                  static_graph           the same in the first step; later: that it changed
 *
 * Finite gradients may add up to infinity, and a hook may make it of finite ones: results are
 * looked at once more. With a hook ranks may see different ones, so one word is gathered. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "parallel/ddp_impl.h"

enum { BITS = 32, SCALE_AT = 1, HEAD_WORDS = 3 };

static void set_bit(uint32_t *words, int bit) {
    words[bit / BITS] |= 1u << (bit % BITS);
}

static bool get_bit(const uint32_t *words, int bit) {
    return words[bit / BITS] >> (bit % BITS) & 1;
}

static const uint32_t *words_of(const ls_ddp *ddp, int rank) {
    return ddp->all + (size_t)rank * (size_t)ddp->n_words;
}

static const uint32_t *bits_of(const ls_ddp *ddp, int rank) {
    return words_of(ddp, rank) + HEAD_WORDS;
}

/* Shared, so that works of a step that was given up write into memory that is still there. */
ls_status lsi_ddp_verdict_init(ls_ddp *ddp) {
    ddp->n_words = HEAD_WORDS + (ddp->n_params + BITS - 1) / BITS;
    size_t n = (size_t)ddp->n_words, n_ranks = (size_t)ls_group_world_size(ddp->group);
    void *words = NULL;
    LSI_TRY(ls_group_alloc_shared(ddp->group, sizeof *ddp->words + n * (1 + n_ranks) * 4, &words));
    ddp->words = words;
    ddp->mine = (uint32_t *)(ddp->words + 1);
    ddp->all = ddp->mine + n;
    return LS_OK;
}

/* ---- gradients that are not finite ---- */

/* All bits of the exponent set: infinity or NaN. */
bool lsi_has_nonfinite_f32(const float *values, int64_t count) {
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found != 0;
}

static bool has_nonfinite_f64(const double *values, int64_t count) {
    uint64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
    }
    return found != 0;
}

static bool has_nonfinite(ls_dtype dtype, const void *values, int64_t count) {
    return dtype == LS_DTYPE_F64 ? has_nonfinite_f64(values, count)
                                 : lsi_has_nonfinite_f32(values, count);
}

/* The first parameter in a bucket whose gradient is not finite; -1: none. */
static int find_nonfinite(const ls_ddp *ddp, const ls_bucket *bucket) {
    if (!has_nonfinite(bucket->dtype, bucket->grad, bucket->count)) return -1;
    for (int k = 0; k < bucket->n_params; k++) {
        int i = bucket->params[k];
        if (has_nonfinite(bucket->dtype, lsi_ddp_place(ddp, i), ddp->params[i].count)) return i;
    }
    return -1;
}

void lsi_ddp_look_for_nonfinite(ls_ddp *ddp, const ls_bucket *bucket) {
    if (ddp->first_nonfinite < 0) ddp->first_nonfinite = find_nonfinite(ddp, bucket);
}

/* In the results that this rank has: everything, or its shard. */
static int find_in_results(const ls_ddp *ddp) {
    int found = -1;
    if (lsi_ddp_updates_early(ddp)) return lsi_ddp_early_nonfinite(ddp);
    if (lsi_ddp_is_sharded(ddp)) {
        for (int k = 0; k < ddp->states.plan.n_pieces && found < 0; k++) {
            const lsi_piece *piece = &ddp->states.plan.pieces[k];
            const float *grad = lsi_ddp_piece_grad(ddp, piece);
            if (grad && lsi_has_nonfinite_f32(grad, piece->count)) found = piece->param;
        }
        return found;
    }
    for (int b = 0; b < ddp->plan.n_buckets && found < 0; b++)
        found = find_nonfinite(ddp, &ddp->buckets[b]);
    return found;
}

/* The first parameter whose result is not finite, -1: none on any rank. An all-reduce gave all
 * ranks the same; what a hook or a reduce-scatter gave them differs. */
static ls_status agree_on_results(ls_ddp *ddp, int *param) {
    int32_t all[LSI_MAX_RANKS], found = find_in_results(ddp);
    *param = found;
    if (!ddp->opts.hook && !lsi_ddp_is_sharded(ddp)) return LS_OK;
    *param = -1;
    LSI_TRY(ls_all_gather(ddp->group, &found, all, 1, LS_DTYPE_I32, NULL));
    for (int r = 0; r < ls_group_world_size(ddp->group) && *param < 0; r++) *param = all[r];
    return LS_OK;
}

/* ---- lists in messages ---- */

typedef struct text {
    char at[LSI_MESSAGE_BYTES / 2];
    size_t used;
    int n; /* parameters in it */
} text;

static void add(text *t, const char *word) {
    int n = snprintf(t->at + t->used, sizeof t->at - t->used, "%s", word);
    size_t room = sizeof t->at - 1 - t->used;
    t->used += (size_t)n < room ? (size_t)n : room;
}

static void add_ranks(text *t, const bool *has, const ls_group *group) {
    int n_ranks = ls_group_world_size(group);
    const char *before = "";
    int n = 0;
    for (int r = 0; r < n_ranks; r++) n += has[r];
    add(t, n == n_ranks ? " (all ranks" : n == 1 ? " (rank " : " (ranks ");
    for (int r = 0; r < n_ranks && n < n_ranks; r++) {
        char number[16];
        if (!has[r]) continue;
        snprintf(number, sizeof number, "%s%d", before, lsi_world_rank(group, r));
        add(t, number);
        before = ", ";
    }
    add(t, ")");
}

/* " w2 (rank 0), w3 (all ranks)": the parameters with a bit on some rank. */
static void list_params(const ls_ddp *ddp, text *t) {
    int n_ranks = ls_group_world_size(ddp->group);
    for (int i = 0; i < ddp->n_params; i++) {
        bool has[LSI_MAX_RANKS], any = false;
        for (int r = 0; r < n_ranks; r++) any = (has[r] = get_bit(bits_of(ddp, r), i)) || any;
        if (!any) continue;
        add(t, t->n++ ? ", " : " ");
        add(t, ddp->params[i].name);
        add_ranks(t, has, ddp->group);
    }
}

/* ---- verdicts ---- */

static bool reports_unused(const ls_ddp *ddp) {
    return ddp->opts.static_graph ? ddp->n_steps == 0 : ddp->opts.find_unused_parameters != 0;
}

static bool bit_of(const ls_ddp *ddp, int i) {
    const lsi_param_state *at = &ddp->at[i];
    if (!ddp->has_data) return reports_unused(ddp);
    if (reports_unused(ddp)) return !at->is_used;
    if (ddp->opts.static_graph) return at->is_used == at->is_known_unused;
    return at->is_missed;
}

ls_status lsi_ddp_post_verdict(ls_ddp *ddp) {
    memset(ddp->mine, 0, (size_t)ddp->n_words * sizeof *ddp->mine);
    ddp->mine[0] = (uint32_t)(ddp->first_nonfinite + 1);
    memcpy(ddp->mine + SCALE_AT, &ddp->scale, sizeof ddp->scale);
    for (int i = 0; i < ddp->n_params; i++)
        if (!lsi_ddp_is_frozen(ddp, i) && bit_of(ddp, i)) set_bit(ddp->mine + HEAD_WORDS, i);
    return lsi_context(ls_all_gather(ddp->group, ddp->mine, ddp->all, ddp->n_words, LS_DTYPE_I32,
                                     &ddp->verdict_work),
                       "ddp: verdict on the step");
}

/* The next steps need not wait for what this rank never uses. */
static void learn_unused(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params && ddp->has_data; i++)
        ddp->at[i].is_known_unused = !lsi_ddp_is_frozen(ddp, i) && !ddp->at[i].is_used;
}

static void note_without_gradient(ls_ddp *ddp) {
    for (int i = 0; i < ddp->n_params; i++) {
        bool is_unused = true;
        for (int r = 0; r < ls_group_world_size(ddp->group); r++)
            is_unused = is_unused && get_bit(bits_of(ddp, r), i);
        ddp->at[i].is_without_gradient = is_unused;
    }
}

static ls_status judge_unused(ls_ddp *ddp) {
    text list = {.used = 0};
    if (reports_unused(ddp)) {
        note_without_gradient(ddp);
        if (ddp->opts.static_graph) learn_unused(ddp);
        return LS_OK;
    }
    list_params(ddp, &list);
    if (list.n == 0) return LS_OK;
    if (ddp->opts.static_graph)
        return lsi_fail(LS_ERR_STATE,
                        "step %lld: static_graph is set, but %d parameters are used in another way "
                        "than in the first step:%s; use find_unused_parameters instead",
                        (long long)ddp->n_steps + 1, list.n, list.at);
    return lsi_fail(LS_ERR_STATE,
                    "step %lld: %d parameters got no gradient:%s; use them in the loss, mark them "
                    "LS_PARAM_FROZEN, or set find_unused_parameters",
                    (long long)ddp->n_steps + 1, list.n, list.at);
}

/* The first rank with a gradient that is not finite, and which; rank -1: it became so on the way.
 */
static ls_status say_nonfinite(ls_ddp *ddp, int rank, int param) {
    char who[64];
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d", lsi_world_rank(ddp->group, rank));
    else if (ddp->opts.hook)
        snprintf(who, sizeof who, "result of hook %.40s", ddp->opts.hook->name);
    else
        snprintf(who, sizeof who, "sum over ranks");
    snprintf(ddp->skip_reason, sizeof ddp->skip_reason,
             "%s: the gradient of parameter %.100s (bucket %d of %d) is not finite", who,
             ddp->params[param].name, ddp->plan.bucket_of[param], ddp->plan.n_buckets);
    ddp->is_skipped = true;
    if (ddp->opts.nonfinite == LS_NONFINITE_SKIP) return LS_OK;
    return lsi_fail(LS_ERR_NUMERIC, "%s; lower the learning rate%s", ddp->skip_reason,
                    lsi_ddp_updates_early(ddp) ? "" : ", or skip such steps");
}

static ls_status judge_finite(ls_ddp *ddp) {
    int param = -1;
    if (ddp->opts.nonfinite == LS_NONFINITE_IGNORE) return LS_OK;
    for (int r = 0; r < ls_group_world_size(ddp->group); r++)
        if (words_of(ddp, r)[0] != 0) return say_nonfinite(ddp, r, (int)words_of(ddp, r)[0] - 1);
    LSI_TRY(agree_on_results(ddp, &param));
    return param < 0 ? LS_OK : say_nonfinite(ddp, -1, param);
}

/* An all-reduce compares factors itself; hooks and sums over several rounds do not send them. */
static ls_status judge_scale(const ls_ddp *ddp) {
    double first, other;
    memcpy(&first, words_of(ddp, 0) + SCALE_AT, sizeof first);
    for (int r = 1; r < ls_group_world_size(ddp->group) && !lsi_ddp_scales_before(ddp); r++) {
        memcpy(&other, words_of(ddp, r) + SCALE_AT, sizeof other);
        if (memcmp(&first, &other, sizeof first) != 0)
            return lsi_fail(LS_ERR_MISMATCH,
                            "step %lld: the factor of summed gradients is %g on rank %d and %g on "
                            "rank %d; give all ranks the same one, as many micro-batches, or "
                            "LS_AVERAGE_WEIGHTS",
                            (long long)ddp->n_steps + 1, first, lsi_world_rank(ddp->group, 0),
                            other, lsi_world_rank(ddp->group, r));
    }
    return LS_OK;
}

ls_status lsi_ddp_await_verdict(ls_ddp *ddp) {
    ls_work *work = ddp->verdict_work;
    ddp->verdict_work = NULL;
    return work ? lsi_context(ls_work_wait(work, -1), "ddp: verdict on the step") : LS_OK;
}

static ls_status judge(ls_ddp *ddp) {
    LSI_TRY(judge_scale(ddp));
    LSI_TRY(judge_unused(ddp));
    return judge_finite(ddp);
}

ls_status lsi_ddp_take_verdict(ls_ddp *ddp) {
    LSI_TRY(lsi_ddp_await_verdict(ddp));
    ls_status status = judge(ddp);
    if (!lsi_ddp_updates_early(ddp)) return status;
    return lsi_context(status, "parameters are of this step already, by update_in_backward");
}
