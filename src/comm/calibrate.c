/* Measuring what things cost in a group, for the choice of algorithms.
 *
 * Each figure is the fastest of a few batches of all-reduces of one size, forced to one algorithm,
 * on rank 0's clock; a message has a constant and a price per byte. Batches, since a single call
 * looks short to the rank that comes last; the fastest and not the median: other programs only ever
 * make a call slower, and these milliseconds decide for the whole run. Rank 0's figures go to all,
 * so all choose alike. Where ranks outnumber processors a call costs many switches, so fewer are
 * made. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/group.h"

enum { SMALL_BYTES = 64, LARGE_BYTES = 64 << 10, BATCH = 6 };

typedef struct probe {
    ls_group *group;
    void *shared, *plain;
    int n_batches;
} probe;

static ls_status batch_of_all_reduces(const probe *p, int64_t bytes, int64_t *ticks) {
    int64_t begin = lsi_ticks();
    for (int i = 0; i < BATCH; i++) {
        /* As a backward pass does; otherwise each slice would still be in the cache of the rank
         * that reduced it last. */
        memset(p->shared, 0, (size_t)bytes);
        LSI_TRY(ls_all_reduce(p->group, p->shared, p->shared, bytes / 4, LS_DTYPE_F32, LS_OP_SUM, 1,
                              NULL));
    }
    *ticks = lsi_ticks() - begin;
    return LS_OK;
}

/* Nanoseconds of an all-reduce of so many bytes by the algorithm. */
static ls_status time_all_reduce(probe *p, int algorithm, int64_t bytes, double *ns) {
    int64_t least = INT64_MAX, ticks = 0;
    lsi_rules kept = lsi_own_calls_begin(p->group);
    p->group->rules =
        (lsi_rules){.n = 1, .rule = {{.max_bytes = INT64_MAX, .algorithm = algorithm}}};
    ls_status status = LS_OK;
    for (int i = -1; i < p->n_batches && status == LS_OK; i++) {
        status = batch_of_all_reduces(p, bytes, &ticks);
        if (i >= 0 && ticks < least) least = ticks;
    }
    lsi_own_calls_end(p->group, &kept);
    if (status != LS_OK) return status;
    *ns = (double)lsi_ticks_to_ns(least) / BATCH;
    return LS_OK;
}

/* Half a round trip between ranks 0 and 1. */
static ls_status time_message(probe *p, int64_t bytes, double *ns) {
    int64_t least = INT64_MAX;
    ls_group *group = p->group;
    for (int i = -2; i < BATCH * p->n_batches && group->rank < 2; i++) {
        int64_t begin = lsi_ticks();
        for (int leg = 0; leg < 2; leg++) {
            bool sends = group->rank == leg;
            if (sends)
                LSI_TRY(ls_send(group, p->plain, bytes, LS_DTYPE_U8, 1 - group->rank, NULL));
            else
                LSI_TRY(ls_recv(group, p->plain, bytes, LS_DTYPE_U8, 1 - group->rank, NULL));
        }
        int64_t took = lsi_ticks() - begin;
        if (i >= 0 && took < least) least = took;
    }
    if (group->rank != 0) return LS_OK;
    *ns = (double)lsi_ticks_to_ns(least) / 2;
    return LS_OK;
}

static double per_byte(double small_ns, double large_ns, double bytes) {
    double found = (large_ns - small_ns) / bytes;
    return found > 1e-4 ? found : 1e-4; /* noise must not make bytes free */
}

/* What cannot be is noise: a direct call is at least two trips where one-shot is one, log2(n)
 * messages take at least as long as all ranks need to meet once, and bytes through a channel are
 * also written and read. */
static void make_consistent(lsi_costs *costs, int n_ranks) {
    double rounds = 0;
    for (int n = 1; n < n_ranks; n *= 2) rounds++;
    double trip_ns = costs->one_shot.ns[0];
    for (int i = 0; i < LSI_COST_POINTS; i++) {
        if (costs->direct.ns[i] < trip_ns) costs->direct.ns[i] = trip_ns;
        if (costs->staged.ns[i] < costs->direct.ns[i]) costs->staged.ns[i] = costs->direct.ns[i];
    }
    if (costs->message_ns * rounds < trip_ns) costs->message_ns = trip_ns / rounds;
    double direct_per_byte_ns = per_byte(costs->direct.ns[0], costs->direct.ns[LSI_COST_POINTS - 1],
                                         (double)lsi_cost_bytes[LSI_COST_POINTS - 1]);
    if (costs->message_per_byte_ns < 2 * direct_per_byte_ns)
        costs->message_per_byte_ns = 2 * direct_per_byte_ns;
    /* Combining goes through the same cache lines as the direct sum. */
    costs->combine_per_byte_ns = direct_per_byte_ns;
}

/* Where ranks outnumber processors nearly all time goes into switching between them, so what counts
 * is how often all must have run: once for one-shot, twice for direct, three times for staged, once
 * for each message in a row. Single measurements are noise there. */
static void count_meetings(lsi_costs *costs, int n_ranks) {
    const double copied_ns_per_byte = 0.1;
    double meeting_ns = costs->one_shot.ns[0];
    for (int i = 0; i < LSI_COST_POINTS; i++) {
        double bytes_ns = (double)lsi_cost_bytes[i] * copied_ns_per_byte;
        costs->one_shot.ns[i] = meeting_ns + bytes_ns * n_ranks;
        costs->direct.ns[i] = 2 * meeting_ns + bytes_ns;
        costs->staged.ns[i] = 3 * meeting_ns + 3 * bytes_ns;
    }
    costs->message_ns = meeting_ns;
}

static ls_status measure_curve(probe *p, int algorithm, int64_t most_bytes, lsi_curve *curve) {
    for (int i = 0; i < LSI_COST_POINTS; i++) {
        /* Beyond what it can do: as if it could. */
        if (i > 0)
            curve->ns[i] =
                curve->ns[i - 1] * (double)lsi_cost_bytes[i] / (double)lsi_cost_bytes[i - 1];
        if (lsi_cost_bytes[i] <= most_bytes)
            LSI_TRY(time_all_reduce(p, algorithm, lsi_cost_bytes[i], &curve->ns[i]));
    }
    return LS_OK;
}

/* What a call by messages takes beyond its messages. */
static ls_status measure_passing(probe *p, lsi_costs *costs) {
    double ns = 0, rounds = 0;
    int algorithm = lsi_algorithm_from("doubling");
    for (int n = 1; n < p->group->n_ranks; n *= 2) rounds++;
    LSI_TRY(time_all_reduce(p, algorithm, SMALL_BYTES, &ns));
    costs->passing_ns = ns - rounds * costs->message_ns;
    if (costs->passing_ns < 1) costs->passing_ns = 1; /* noise must not make calls free */
    return LS_OK;
}

static ls_status measure(probe *p, lsi_costs *costs) {
    double small = 0, large = 0;
    LSI_TRY(measure_curve(p, LSI_ALGORITHM_ONE_SHOT, LSI_SLOT_BYTES, &costs->one_shot));
    LSI_TRY(measure_curve(p, LSI_ALGORITHM_DIRECT, LARGE_BYTES, &costs->direct));
    LSI_TRY(measure_curve(p, LSI_ALGORITHM_STAGED, LARGE_BYTES, &costs->staged));
    LSI_TRY(time_message(p, SMALL_BYTES, &small));
    LSI_TRY(time_message(p, LARGE_BYTES, &large));
    costs->message_ns = small;
    costs->message_per_byte_ns = per_byte(small, large, LARGE_BYTES - SMALL_BYTES);
    LSI_TRY(measure_passing(p, costs));
    if (p->group->yields) count_meetings(costs, p->group->n_ranks);
    make_consistent(costs, p->group->n_ranks);
    return LS_OK;
}

/* Returns what it was. */
static bool set_link(ls_group *group, bool has_link) {
    lsi_group_lock(group);
    bool before = group->has_link;
    group->has_link = has_link;
    lsi_group_unlock(group);
    return before;
}

/* The choice is about the memory that there is: a link (link.h) costs all algorithms the same. */
static ls_status measure_without_link(probe *p, lsi_costs *costs) {
    bool had_link = set_link(p->group, false);
    ls_status status = measure(p, costs);
    (void)set_link(p->group, had_link);
    return status;
}

static ls_status share(ls_group *group, lsi_costs *costs) {
    lsi_rules rules = lsi_own_calls_begin(group);
    ls_status status =
        ls_broadcast(group, costs, costs, sizeof *costs / sizeof(double), LS_DTYPE_F64, 0, NULL);
    lsi_own_calls_end(group, &rules);
    return status;
}

ls_status lsi_group_calibrate(ls_group *group) {
    if (group->n_ranks == 1) return LS_OK;
    probe p = {.group = group, .n_batches = group->yields ? 2 : 5};
    lsi_costs costs = group->costs;
    ls_status status = ls_group_alloc_shared(group, LARGE_BYTES, &p.shared);
    if (status == LS_OK) {
        p.plain = lsi_calloc(LSI_MEM_OTHER, 1, LARGE_BYTES);
        status = lsi_check_alloc(p.plain);
    }
    /* A rank that has no memory must not leave the others waiting. */
    if (status != LS_OK) ls_group_abort(group, status, ls_last_message());
    if (status == LS_OK) status = measure_without_link(&p, &costs);
    if (status == LS_OK) status = share(group, &costs);
    lsi_free(p.plain);
    ls_group_free_shared(group, p.shared);
    if (status != LS_OK) return lsi_context(status, "calibration of the group");
    group->costs = costs;
    memset(group->chosen, 0, sizeof group->chosen);
    return LS_OK;
}
