/* Inside of ls_ddp: what its files share.
 *
 *     ddp.c           its life             ddp_values.c   where parameters are
 *     ddp_step.c      the calls of a step  ddp_units.c    parameters that come and go, unit by unit
 *     ddp_grads.c     where gradients are  ddp_parts.c    what is kept of these in small groups
 *     ddp_exchange.c  buckets on their way ddp_states.c   where the optimizer's states are
 *     ddp_average.c   what sums are        ddp_update.c   the optimizer's step, and what it made
 *                     divided by           ddp_early.c    the same while gradients are added
 *     ddp_verdict.c   what ranks tell      ddp_look.c     what can be asked between steps
 *                     each other about a step
 *
 * State of a step:
 *
 *     IDLE --begin_step--> BETWEEN --begin_backward--> BACKWARD --end_backward--> BETWEEN
 *      ^                                                                             |
 *      +--------------- finish_step, after the step's last micro-batch --------------+
 *
 * IDLE      gradients of the last step are valid, no work in flight.
 * BETWEEN   the micro-batches begun so far are summed in the buckets (or on the stack).
 * BACKWARD  parameters with is_ready are complete for this micro-batch.
 * FAILED    communication or memory failed within the step: what the gradients hold is not known,
 *           works may be in flight. Every call but destroy is refused.
 *
 * Invariants. Buckets are posted in index order, when all their parameters are ready, once in a
 * micro-batch that is exchanged: the step's last one, or from zero2 on each; a posted bucket is not
 * touched before it was waited for. Calls of a step on the group, on every rank in this order:
 *
 *     [join] [rebuild] [buffers] [weights] bucket 0 … bucket n-1  verdict  [hook: stages 1, 2 …]
 *     sharded: norm, update (all-gathers of private copies, or a barrier; with update_in_backward
 *     neither)
 *
 * schedule.h is this list as data. Private ZeRO-3 has gathers of parameters between these, so there
 * a bucket is posted behind the unit that it is complete with, not when its last gradient happens
 * to be ready: the order is that of the units on every rank. With shard groups, buckets and gathers
 * are works of the shard group, and the sums of shards over groups works of the replicate group.
 *
 * At most MAX_IN_FLIGHT works of buckets are in flight. */
#ifndef LSI_PARALLEL_DDP_IMPL_H
#define LSI_PARALLEL_DDP_IMPL_H

#include <stdbool.h>

#include <lockstep/parallel.h>

#include "base/spill.h"
#include "comm/group.h"
#include "parallel/accumulate.h"
#include "parallel/bucket.h"
#include "parallel/counter.h"
#include "parallel/pool.h"
#include "parallel/shard_norm.h"
#include "parallel/units.h"

typedef enum ddp_state { IDLE, BETWEEN, BACKWARD, FAILED } ddp_state;

/* What a step knows about a parameter on this rank. */
typedef struct lsi_param_state {
    bool is_ready;            /* in this micro-batch */
    bool is_used;             /* got a gradient in some micro-batch of this step */
    bool is_missed;           /* got none in some micro-batch */
    bool is_known_unused;     /* static_graph: on this rank, learned in the first step */
    bool is_without_gradient; /* no rank used it in the last step */
} lsi_param_state;

typedef struct lsi_bucket_state {
    lsi_buffer *buffer;      /* sharded gradients: while the bucket is open */
    lsi_buffer *parts;       /* of all ranks, on their way, see lsi_ddp_orders_parts */
    int n_waiting;           /* parameters not ready */
    ls_work *work;           /* of its present stage; NULL: none, or waited for */
    ls_work *replicate_work; /* of this rank's slice of it, over shard groups */
    bool is_done;            /* its gradients are the result */
    int64_t ready_ns, posted_ns, done_ns;
} lsi_bucket_state;

typedef struct lsi_values_head lsi_values_head;

typedef struct lsi_weights {
    double mine, total;
} lsi_weights;

/* Elements of the shard. */
typedef struct lsi_slice {
    int64_t begin, count;
} lsi_slice;

/* Gradients of which each rank keeps its shard. */
typedef struct lsi_grads {
    float *shard;       /* slices of all buckets; NULL: gradients are in one block */
    lsi_slice *slices;  /* per bucket */
    float **replicates; /* the same shard in other shard groups, as this process sees it */
    lsi_pool pool;      /* buckets that are open */
    /* Reproducible sums of several micro-batches: every rank's part of a slice, before it is
     * added. */
    lsi_pool parts;
    lsi_counter counter;
} lsi_grads;

/* Optimizer states of this rank: of everything, or of its shard. See ddp_states.c. */
typedef struct lsi_states {
    lsi_shard_plan plan;
    lsi_shard_norm norm;   /* sharded strategies */
    float *first, *second; /* moments, plan.n_states; NULL: no update was made yet, or offloaded */
    uint16_t *lower;       /* halves of BF16 parameters, plan.n_held; NULL: none, offloaded, or the
                              caller's */
    struct lsi_spill *spill; /* all of these, slice by slice; NULL: they are in memory */
    int64_t slice_elems;     /* of it; the last slice may have fewer */
    int n_arrays;            /* in it: 2, or 3 with lower halves */
    int64_t *n_updates;      /* per parameter */
} lsi_states;

/* A bucket that is used up while it is added, see ddp_early.c. */
typedef struct lsi_early_bucket {
    ls_ddp *ddp;
    int first_piece, end_piece; /* of this rank's pieces, those in it */
    int next_piece;             /* of these the first one that is not updated yet, or in part */
    int64_t cut;                /* elements of the bucket before this rank's slice */
    int first_nonfinite;        /* parameter whose sum is not finite; -1: none */
} lsi_early_bucket;

/* opts.update_in_backward. */
typedef struct lsi_early_update {
    lsi_early_bucket *buckets; /* NULL: updates are made by ls_ddp_update */
    bool is_planned;           /* in this step, … */
    ls_adamw_opts opts;        /* … with these settings */
} lsi_early_update;

/* A bucket's parameters that are gathered, or on their way. */
typedef struct lsi_gathered {
    lsi_buffer *buffer; /* NULL: not here */
    ls_work *work;      /* NULL: complete */
    int64_t n_gathers;  /* in the step that is open, or was last */
} lsi_gathered;

/* What is kept of units that are gathered again in small groups, see ddp_parts.c. */
typedef struct lsi_unit_parts {
    ls_group *group;    /* opts.reshard_after_forward ranks; NULL: nothing is kept in parts */
    unsigned char **at; /* per rank of it: its block, as this process sees it */
    int64_t bytes;      /* of each */
    bool *is_kept;      /* per bucket */
} lsi_unit_parts;

/* Private ZeRO-3: the shard of the parameters, and units that are gathered, see ddp_units.c. */
typedef struct lsi_units {
    lsi_unit_plan plan;
    unsigned char *shard; /* this rank's slices of all buckets; NULL: another strategy */
    lsi_spill *spill;     /* the file that it is in; NULL: it is in memory */
    int64_t shard_bytes;
    int64_t *slice_at;      /* per bucket: bytes before its slice */
    lsi_gathered *gathered; /* per bucket */
    lsi_pool pool;
    lsi_unit_parts parts;
    unsigned char **shard_of; /* per rank of the shard group, as this process sees it */
} lsi_units;

/* Parameters of sharded strategies, laid out as their gradients are. */
typedef struct lsi_values {
    unsigned char *at;     /* NULL: they are where the caller put them, or units.shard has them */
    lsi_values_head *head; /* of shared ones */
    bool is_there;         /* rank 0's values are, so they may be copied back */
    bool is_kept;          /* ls_ddp_keep_values */
    void **given;          /* per parameter: where it was, and goes back to at the end */
    ls_work **works;       /* per bucket: of private copies that are being gathered */
    int64_t noted_bytes;
} lsi_values;

struct ls_ddp {
    ls_group *group;
    ls_group *shard_group;     /* ranks that have shards of the same model; `group`, or a part */
    ls_group *replicate_group; /* ranks with the same shard in other groups; NULL: no others */
    ls_param *params;
    int n_params;
    ls_ddp_opts opts;
    lsi_bucket_plan plan;
    ls_bucket *buckets;       /* the plan as hooks see it */
    unsigned char *gradients; /* shared; plan.total_bytes */
    int64_t noted_bytes[2];
    lsi_accumulator accumulator;

    ddp_state state;
    int64_t n_steps;              /* finished */
    int64_t n_micro, next_micro;  /* of this step; next_micro counts begun backward passes */
    bool is_last;                 /* the backward pass that is open, or was last, ends the step */
    bool in_no_sync, had_no_sync; /* had: in this step */
    bool has_data;
    int n_live;

    /* ddp_average.c */
    double scale;         /* 0: not known yet */
    double given_scale;   /* to begin_step; 0: none */
    double n_micro_total; /* of all ranks, by the agreement of join; 0: there was none */
    double weight;        /* of this step so far */
    bool has_weight;      /* of the next micro-batch */
    ls_work *weight_work;

    lsi_param_state *at;  /* per parameter */
    lsi_bucket_state *on; /* per bucket of gradients */
    int n_posted, n_room; /* buckets; n_room: works of buckets below it may have been waited for */
    int n_seen_done;

    /* ddp_verdict.c */
    int n_words;        /* of a rank's verdict */
    lsi_weights *words; /* shared; behind it `mine`, and `all`: n_words of each rank */
    uint32_t *mine, *all;
    ls_work *verdict_work;
    int first_nonfinite; /* parameter, -1: none */
    bool has_changed;    /* static_graph: … something on this rank */
    bool is_skipped;
    char skip_reason[256];

    /* for buckets in the order of readiness */
    int *ready_order;
    int n_ordered;

    int64_t backward_ns; /* when the last backward pass began */
    bool leaves_memory;  /* works of groups made from `group` are in flight at the end */
    bool leaves_file;    /* … and of the shard of parameters in a file */

    lsi_grads grads;        /* ddp_grads.c, sharded gradients */
    lsi_states states;      /* ddp_states.c */
    lsi_values values;      /* ddp_values.c */
    lsi_units units;        /* ddp_units.c */
    lsi_early_update early; /* ddp_early.c */
};

enum { MAX_IN_FLIGHT = LSI_CALLS / 2 };

static inline bool lsi_ddp_is_frozen(const ls_ddp *ddp, int index) {
    return !lsi_bucket_trains(&ddp->plan, index);
}
/* Whether it has a place in buckets. Of sharded strategies: values are the ddp's, not where the
 * caller put them. */
static inline bool lsi_ddp_is_held(const ls_ddp *ddp, int index) {
    return ddp->plan.bucket_of[index] >= 0;
}
/* Bytes of an element of the bucket's parameters. */
static inline int64_t lsi_ddp_value_size(const ls_ddp *ddp, int bucket) {
    return (int64_t)ls_dtype_bytes(ddp->plan.buckets[bucket].value_dtype);
}
static inline bool lsi_ddp_is_narrow(const ls_ddp *ddp, int index) {
    return ddp->params[index].dtype == LS_DTYPE_BF16;
}
/* The caller's lower half; NULL: there is none. */
static inline uint16_t *lsi_ddp_given_lower(const ls_ddp *ddp, int index) {
    return ddp->opts.lower_halves ? ddp->opts.lower_halves[index] : NULL;
}
/* Whether parameters may go without a gradient. */
static inline bool lsi_ddp_allows_unused(const ls_ddp *ddp) {
    return ddp->opts.find_unused_parameters || ddp->opts.static_graph;
}
static inline bool lsi_ddp_is_sharded(const ls_ddp *ddp) {
    return ddp->opts.strategy != LS_STRATEGY_DDP;
}
/* Whether buckets come and go, and each micro-batch is exchanged. */
static inline bool lsi_ddp_shards_gradients(const ls_ddp *ddp) {
    return ddp->opts.strategy >= LS_STRATEGY_ZERO2;
}
/* Whether parameters come and go. */
static inline bool lsi_ddp_gathers(const ls_ddp *ddp) {
    return lsi_gathers_units(ddp->opts.strategy, ddp->opts.replicas);
}
/* Whether gradients are sent as BF16. */
static inline bool lsi_ddp_narrows(const ls_ddp *ddp) {
    return ddp->opts.reduce_dtype == LS_DTYPE_BF16;
}
/* Whether sums are used up while they are made, and kept nowhere. */
static inline bool lsi_ddp_updates_early(const ls_ddp *ddp) {
    return ddp->opts.update_in_backward;
}
/* Whether the micro-batch of now is exchanged. */
static inline bool lsi_ddp_exchanges(const ls_ddp *ddp) {
    return ddp->is_last || lsi_ddp_shards_gradients(ddp);
}
/* Whether buckets are posted while the backward pass goes on. Where they come and go they always
 * are, and without overlap waited for at once. */
static inline bool lsi_ddp_posts_early(const ls_ddp *ddp) {
    return lsi_ddp_exchanges(ddp) && (!ddp->opts.no_overlap || lsi_ddp_shards_gradients(ddp));
}
/* Whether each rank has a factor of its own. */
static inline bool lsi_ddp_scales_before(const ls_ddp *ddp) {
    return ddp->opts.average == LS_AVERAGE_MEANS && ddp->given_scale == 0;
}

/* ---- ddp_grads.c ---- */

LS_CHECKED ls_status lsi_ddp_take_gradients(ls_ddp *ddp);
void lsi_ddp_release_gradients(ls_ddp *ddp);
/* Where the gradient of a parameter that is not frozen lies (NULL: nowhere now), and its size. */
void *lsi_ddp_place(const ls_ddp *ddp, int index);
size_t lsi_ddp_grad_bytes(const ls_ddp *ddp, int index);
/* Points params[i].grad to their places. */
void lsi_ddp_place_gradients(ls_ddp *ddp);
/* Between steps: whether some rank used the parameter in the last one. */
bool lsi_ddp_has_gradient(const ls_ddp *ddp, int index);
const float *lsi_ddp_piece_grad(const ls_ddp *ddp, const lsi_piece *piece);
float *lsi_ddp_slice(const ls_ddp *ddp, int bucket);
/* Gives a bucket memory, unless it has some. */
LS_CHECKED ls_status lsi_ddp_open_bucket(ls_ddp *ddp, int index);
bool lsi_ddp_reduces_into_shard(const ls_ddp *ddp);
/* Whether ranks send each other their parts of slices, to be added one by one in the order of the
 * micro-batches' numbers, and not sums. */
bool lsi_ddp_orders_parts(const ls_ddp *ddp);
/* Memory for the parts of a bucket's slice. */
LS_CHECKED ls_status lsi_ddp_open_parts(ls_ddp *ddp, int index);
/* The bucket's sum over the ranks of the shard group is there. */
LS_CHECKED ls_status lsi_ddp_retire_bucket(ls_ddp *ddp, int index);
/* A micro-batch that is not the last is complete (and exchanged). */
LS_CHECKED ls_status lsi_ddp_push_micro(ls_ddp *ddp);
/* This process lets go of what it has touched of the same slice in other groups. */
void lsi_ddp_forget_replicates(const ls_ddp *ddp, int index);
/* Whether sums get their factor later than in the reduction of a bucket. */
bool lsi_ddp_scales_later(const ls_ddp *ddp);

/* ---- ddp.c ---- */

LS_CHECKED ls_status lsi_ddp_plan(ls_ddp *ddp, const int *order, lsi_bucket_plan *plan);
/* Takes the plan over and makes what goes with it. */
LS_CHECKED ls_status lsi_ddp_use_plan(ls_ddp *ddp, lsi_bucket_plan *plan);
LS_CHECKED ls_status lsi_ddp_broadcast_buffers(ls_ddp *ddp);
/* At the end. `group` knows of its own works which memory peers may still use; what works of other
 * groups may use stays in the region. */
void lsi_ddp_free_shared(ls_ddp *ddp, void *block);

/* ---- ddp_step.c ---- */

/* What got no gradient up to the end of a unit's backward pass, or of all (unit 0) has none. */
LS_CHECKED ls_status lsi_ddp_pass_the_rest(ls_ddp *ddp, int unit);

/* ---- ddp_exchange.c ---- */

void lsi_ddp_begin_exchange(ls_ddp *ddp);
/* Posts what can be posted. `all`: every bucket is complete; waits for what they need. */
LS_CHECKED ls_status lsi_ddp_post_ready(ls_ddp *ddp, bool all);
/* Moves communication on. */
LS_CHECKED ls_status lsi_ddp_progress(ls_ddp *ddp);
int lsi_ddp_n_in_flight(const ls_ddp *ddp);
/* The sum of this rank's slice over shard groups is there. */
LS_CHECKED ls_status lsi_ddp_await_replicate(ls_ddp *ddp, int index);
/* Before that of a bucket is posted: works of sums that are over end, with the pages that they made
 * this process touch, and no more than MAX_IN_FLIGHT are left. */
LS_CHECKED ls_status lsi_ddp_make_replicate_room(ls_ddp *ddp, int index);
LS_CHECKED ls_status lsi_ddp_await_oldest(ls_ddp *ddp);
/* Private ZeRO-3: posts the buckets that are complete behind a unit. */
LS_CHECKED ls_status lsi_ddp_post_unit(ls_ddp *ddp, int unit);
/* Waits for all buckets, with all stages of a hook. */
LS_CHECKED ls_status lsi_ddp_await_buckets(ls_ddp *ddp);

/* ---- ddp_average.c ---- */

/* Collective with join. Sets n_live and has_data. */
LS_CHECKED ls_status lsi_ddp_agree_on_data(ls_ddp *ddp, int64_t n_micro);
/* The last micro-batch begins, or this rank has none. */
LS_CHECKED ls_status lsi_ddp_begin_average(ls_ddp *ddp);
/* Whether the scale is known; `wait`: waits until it is. */
LS_CHECKED ls_status lsi_ddp_know_scale(ls_ddp *ddp, bool wait, bool *is_known);

/* ---- ddp_verdict.c ---- */

LS_CHECKED ls_status lsi_ddp_verdict_init(ls_ddp *ddp);
bool lsi_has_nonfinite_f32(const float *values, int64_t count);
/* Before a bucket is posted. */
void lsi_ddp_look_for_nonfinite(ls_ddp *ddp, const ls_bucket *bucket);
LS_CHECKED ls_status lsi_ddp_post_verdict(ls_ddp *ddp);
LS_CHECKED ls_status lsi_ddp_await_verdict(ls_ddp *ddp);
/* Waits for it; says what is wrong, alike on all ranks. Works of buckets are over. */
LS_CHECKED ls_status lsi_ddp_take_verdict(ls_ddp *ddp);

/* ---- ddp_values.c ---- */

/* Says which bucket's parameters a status is about. */
LS_CHECKED ls_status lsi_ddp_of_bucket(const ls_ddp *ddp, int index, ls_status status);
/* Moves the parameters into memory that is laid out as the buckets are, or fills it. Collective. */
LS_CHECKED ls_status lsi_ddp_move_values(ls_ddp *ddp);
/* Copies them back and releases it. */
void lsi_ddp_return_values(ls_ddp *ddp);
/* After this rank has changed its shard: all ranks get all. Collective. */
LS_CHECKED ls_status lsi_ddp_spread_values(ls_ddp *ddp);
/* What a unit uses, or all, is there. */
LS_CHECKED ls_status lsi_ddp_await_unit(ls_ddp *ddp, int unit);
LS_CHECKED ls_status lsi_ddp_await_values(ls_ddp *ddp);
/* The first element of a piece of this rank, in the type that is computed with. */
void *lsi_ddp_piece_value(const ls_ddp *ddp, const lsi_piece *piece);
/* Where values are in a file: before a piece is read, and after it was read or written. */
LS_CHECKED ls_status lsi_ddp_read_piece(const ls_ddp *ddp, const lsi_piece *piece);
LS_CHECKED ls_status lsi_ddp_let_go_of_piece(const ls_ddp *ddp, const lsi_piece *piece, bool wrote);
/* This rank's pieces, wherever they lie: from opts.fill, or from params[i].data. */
LS_CHECKED ls_status lsi_ddp_fill_pieces(ls_ddp *ddp);

/* ---- ddp_parts.c ---- */

/* The groups and the memory, if there are any. Collective. */
LS_CHECKED ls_status lsi_ddp_make_parts(ls_ddp *ddp);
void lsi_ddp_free_parts(ls_ddp *ddp);
static inline bool lsi_ddp_has_part(const ls_ddp *ddp, int index) {
    return ddp->units.parts.group && ddp->units.parts.is_kept[index];
}
/* Of a bucket that is here, before it is given up. */
void lsi_ddp_keep_part(ls_ddp *ddp, int index);
/* Posts the gather into the bucket's buffer; afterwards the part is dropped. */
LS_CHECKED ls_status lsi_ddp_gather_parts(ls_ddp *ddp, int index);
void lsi_ddp_drop_part(ls_ddp *ddp, int index);

/* ---- ddp_units.c ---- */

LS_CHECKED ls_status lsi_ddp_plan_units(ls_ddp *ddp);
/* The shard of the parameters. Collective. */
LS_CHECKED ls_status lsi_ddp_shard_values(ls_ddp *ddp);
void lsi_ddp_free_units(ls_ddp *ddp);
/* After an update: what was gathered is old; what persists is gathered again. Collective. */
LS_CHECKED ls_status lsi_ddp_renew_units(ls_ddp *ddp);
/* Bytes before a rank's slice of a bucket in its shard. */
static inline int64_t lsi_ddp_slice_offset(const ls_ddp *ddp, int bucket, int rank) {
    return ddp->units.slice_at[(int64_t)bucket * ddp->states.plan.n_ranks + rank];
}
/* All parameters of a bucket are there, in the state it is in. Collective. */
LS_CHECKED ls_status lsi_ddp_gather_bucket(ls_ddp *ddp, int index);
void lsi_ddp_give_up_bucket(ls_ddp *ddp, int index);

/* ---- ddp_early.c ---- */

/* What each bucket needs. */
LS_CHECKED ls_status lsi_ddp_prepare_early(ls_ddp *ddp);
/* At the end: nothing is updated any more, whatever is still in flight. */
void lsi_ddp_end_early(ls_ddp *ddp);
/* Why LS_NONFINITE_SKIP is refused. */
extern const char lsi_ddp_no_skip[];
LS_CHECKED ls_status lsi_ddp_set_early(ls_ddp *ddp, const ls_adamw_opts *opts);
/* Posts the reduction of a bucket that updates this rank's slice. */
LS_CHECKED ls_status lsi_ddp_post_early(ls_ddp *ddp, int index, ls_op op);
/* The first parameter in this rank's slices whose sum was not finite; -1: none. */
int lsi_ddp_early_nonfinite(const ls_ddp *ddp);

/* ---- ddp_update.c ---- */

/* LS_ERR_NUMERIC unless the settings are finite. */
LS_CHECKED ls_status lsi_ddp_check_adamw(const char *call, const ls_adamw_opts *opts);
/* Updates a part of a parameter whose updates are counted already. Computes only. */
struct lsi_state_view;
void lsi_ddp_update_elements(ls_ddp *ddp, const lsi_piece *part, const float *grad,
                             const struct lsi_state_view *states, const ls_adamw_opts *opts);

/* ---- ddp_states.c ---- */

LS_CHECKED ls_status lsi_ddp_plan_states(ls_ddp *ddp);
/* Makes this rank's pieces of lower halves, from where they are at first, and the file of offloaded
 * states. Collective. */
LS_CHECKED ls_status lsi_ddp_shard_lower_halves(ls_ddp *ddp);
/* Before the first update: what is not there yet. */
LS_CHECKED ls_status lsi_ddp_make_states(ls_ddp *ddp);
void lsi_ddp_free_states(ls_ddp *ddp);
bool lsi_ddp_has_lower_halves(const ls_ddp *ddp);
/* The states of elements that follow each other; NULL: there are none. */
typedef struct lsi_state_view {
    float *first, *second;
    uint16_t *lower;
} lsi_state_view;
typedef ls_status (*lsi_state_visitor)(ls_ddp *ddp, const lsi_piece *part, const lsi_state_view *at,
                                       void *context);
/* Hands the visitor this rank's pieces in order, cut where slices of offloaded states end, to read
 * and write their states (lower_only: their lower halves). */
LS_CHECKED ls_status lsi_ddp_visit_states(ls_ddp *ddp, bool lower_only, lsi_state_visitor visit,
                                          void *context);
/* Of states in memory: those from element `state` of this rank on. */
lsi_state_view lsi_ddp_view_states(const ls_ddp *ddp, int64_t state);
/* The float32 values of a piece of a BF16 parameter; there are lower halves, and the upper ones
 * have been read (lsi_ddp_read_piece). */
LS_CHECKED ls_status lsi_ddp_join_piece(const ls_ddp *ddp, const lsi_piece *piece, float *to);
/* Elements of a slice from now on, of all ddps of the process; 0: as usual. Tests only. */
void lsi_ddp_set_slice(int64_t elems);

/* New buckets, in the order in which rank 0's gradients became ready. Collective. */

LS_CHECKED ls_status lsi_ddp_rebuild(ls_ddp *ddp);

#endif
