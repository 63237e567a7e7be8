/* Groups: making, splitting off the environment, ending. Posting calls is in post.c, their progress
 * in work.c. */
#include "comm/group.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/collective/collective.h"
#include "comm/transport/bell.h"

enum { DEFAULT_TIMEOUT_MS = 300000, SPINS = 2000, YIELDS = 100 };

/* ---- life ---- */

/* A call that is the first to write a page of its rank's records would take as long as ten others.
 */
static void touch_records(lsi_rank_control *me) {
    enum { PAGE_BYTES = 4096 };
    volatile unsigned char *records = (volatile unsigned char *)me->records;
    for (size_t at = 0; at < sizeof me->records; at += PAGE_BYTES) records[at] = 0;
}

ls_status lsi_group_open(lsi_region *region, lsi_group_control *control, int rank, ls_group **out) {
    int n_ranks = control->n_ranks;
    ls_group *group = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *group);
    LSI_TRY(lsi_check_alloc(group));
    unsigned char *gathered = lsi_alloc(LSI_MEM_OTHER, (size_t)n_ranks * LSI_FLAGGED_BYTES);
    ls_status status = lsi_check_alloc(gathered);
    if (status == LS_OK) status = lsi_thread_check();
    if (status == LS_OK) status = lsi_rules_parse(getenv("LOCKSTEP_ALGO"), &group->rules);
    if (status == LS_OK)
        status = lsi_link_parse(getenv("LOCKSTEP_LINK"), &group->link, &group->has_link);
    if (status == LS_OK && atomic_exchange(&control->ranks[rank].attached, 1))
        status =
            lsi_fail(LS_ERR_STATE,
                     "group: rank %d has a group already, or had one; a worker makes one, once",
                     control->member[rank]);
    if (status != LS_OK) {
        lsi_free(gathered);
        lsi_free(group);
        return status;
    }
    /* Ranks of this process may outnumber processors, or sleepers need it (transport/bell.h). */
    (void)lsi_bell_register();
    group->gathered = gathered;
    group->region = region;
    group->control = control;
    group->pid = getpid();
    group->rank = rank;
    group->n_ranks = n_ranks;
    group->timeout_ms = DEFAULT_TIMEOUT_MS;
    bool enough = region->control->n_cpus >= region->control->n_ranks;
    group->spins = enough ? SPINS : 1;
    group->yields = enough ? 0 : YIELDS;
    group->ranks = control->ranks;
    group->me = &group->ranks[rank];
    group->world_errors = &region->world->errors;
    group->fenced = region->control->fenced != 0;
    group->errors = control == region->world ? &region->world->errors : &control->errors;
    group->costs = lsi_costs_default;
    if (n_ranks == 1) group->has_link = false;
    group->at_once_index = UINT64_MAX;
    touch_records(group->me);
    lsi_order_default(&group->order, n_ranks);
    group->default_order_hash = group->order.hash;
    int world_rank = lsi_world_rank(group, rank);
    atomic_fetch_add(&region->n_handles[world_rank], 1);
    if (control == region->world) atomic_store(&group->me->pid_space, lsi_pid_space());
    atomic_store(&group->me->pid, getpid());
    lsi_thread_start(group);
    *out = group;
    return LS_OK;
}

ls_status lsi_group_attach(lsi_region *region, int rank, ls_group **out) {
    int n_ranks = lsi_region_n_ranks(region);
    if (rank < 0 || rank >= n_ranks)
        return lsi_fail(LS_ERR_ARGUMENT, "group: rank %d, expected 0 to %d", rank, n_ranks - 1);
    return lsi_group_open(region, region->world, rank, out);
}

static ls_status number_from_environment(const char *name, int *number) {
    const char *text = getenv(name);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || *text == 0 || *end != 0 || value < 0 || value > 1 << 20)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "group: environment variable %s is '%s', expected the "
                        "number that `lockstep` sets",
                        name, text ? text : "");
    *number = (int)value;
    return LS_OK;
}

static ls_status open_region(lsi_region **region, int *rank) {
    *rank = 0;
    if (!getenv("LOCKSTEP_FD")) return lsi_region_create(1, 0, region);
    int fd = -1;
    LSI_TRY(number_from_environment("LOCKSTEP_FD", &fd));
    LSI_TRY(number_from_environment("LOCKSTEP_RANK", rank));
    LSI_TRY(lsi_region_open(fd, region));
    /* It has arrived: what this program starts in turn is no worker and must not keep the memory.
     */
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return LS_OK;
}

ls_status ls_group_create(int64_t timeout_ms, ls_group **out) {
    lsi_region *region = NULL;
    ls_group *group = NULL;
    int rank = 0;
    LSI_TRY(open_region(&region, &rank));
    ls_status status = lsi_group_attach(region, rank, &group);
    if (status != LS_OK) {
        lsi_region_close(region);
        return status;
    }
    region->is_owned = true;
    int64_t default_timeout_ms = group->timeout_ms;
    group->timeout_ms = timeout_ms;
    status = ls_barrier(group, NULL);
    if (status == LS_OK) status = lsi_group_calibrate(group);
    group->timeout_ms = default_timeout_ms;
    if (status != LS_OK) {
        ls_group_destroy(group);
        return lsi_context(status, "meeting of the group");
    }
    *out = group;
    return LS_OK;
}

static void free_work(ls_work *work) {
    lsi_free(work->displs);
    lsi_passing_end(work);
}

/* Works in flight keep memory of their own. */
static void free_works(ls_group *group) {
    for (int i = 0; i < LSI_CALLS; i++) free_work(&group->works[i]);
    free_work(&group->at_once);
    lsi_messages_free(group);
    lsi_free(group->gathered);
}

void ls_group_destroy(ls_group *group) {
    if (!group) return;
    lsi_region *region = group->region;
    bool is_mine = group->pid == getpid();
    bool is_world = group->control == region->world;
    int world_rank = lsi_world_rank(group, group->rank);
    bool is_last = atomic_fetch_sub(&region->n_handles[world_rank], 1) == 1;
    if (is_mine) {
        lsi_thread_stop(group);
        atomic_store(&group->me->left, 1);
        lsi_group_wake_all(region, group->control);
        if (!is_world && atomic_fetch_add(&group->control->n_gone, 1) + 1 == group->n_ranks)
            lsi_region_remove_group(region, group->control);
        if (is_last) lsi_region_mark_left(region, world_rank);
    }
    free_works(group);
    if (is_last && region->is_owned) lsi_region_close(region);
    lsi_free(group);
}

int ls_group_rank(const ls_group *group) {
    return group->rank;
}

int ls_group_world_size(const ls_group *group) {
    return group->n_ranks;
}

void ls_group_set_timeout(ls_group *group, int64_t timeout_ms) {
    group->timeout_ms = timeout_ms;
}

void lsi_group_set_order(ls_group *group, const lsi_order *order) {
    group->order = *order;
    memset(group->chosen, 0, sizeof group->chosen);
}

lsi_rules lsi_own_calls_begin(ls_group *group) {
    lsi_rules rules = group->rules;
    group->rules.n = 0;
    memset(group->chosen, 0, sizeof group->chosen);
    return rules;
}

void lsi_own_calls_end(ls_group *group, const lsi_rules *rules) {
    group->rules = *rules;
    memset(group->chosen, 0, sizeof group->chosen);
}

void lsi_group_get_stats(const ls_group *group, lsi_group_stats *stats) {
    lsi_group_lock((ls_group *)group); /* its thread writes them too */
    *stats = group->stats;
    lsi_group_unlock((ls_group *)group);
    stats->wait_ns = lsi_ticks_to_ns(stats->wait_ns);
    stats->work_ns = lsi_ticks_to_ns(stats->work_ns);
    stats->sink_ns = lsi_ticks_to_ns(stats->sink_ns);
    stats->flight_ns = lsi_ticks_to_ns(stats->flight_ns);
}

const char *lsi_group_last_algorithm(const ls_group *group) {
    if (group->n_posted == 0) return lsi_algorithm_name(LSI_ALGORITHM_NONE);
    return lsi_algorithm_name(lsi_work_at((ls_group *)group, group->n_posted - 1)->algorithm);
}

lsi_region *lsi_group_region(const ls_group *group) {
    return group->region;
}

/* ---- failure ---- */

const char *lsi_group_print(const ls_group *group, char text[LSI_GROUP_TEXT_BYTES]) {
    text[0] = '\0';
    if (group->control->number != 0)
        snprintf(text, LSI_GROUP_TEXT_BYTES, "group %d: ", group->control->number);
    return text;
}

void lsi_group_raise(ls_group *group, ls_status status, const char *message) {
    bool first = false;
    lsi_reports_add(group->errors, status, lsi_world_rank(group, group->rank), message, &first);
    if (!first) return;
    if (group->control == group->region->world)
        lsi_region_wake_all(group->region); /* the run ends: also who waits in other groups */
    else
        lsi_group_wake_all(group->region, group->control);
}

void ls_group_abort(ls_group *group, ls_status status, const char *reason) {
    char message[LSI_MESSAGE_BYTES], place[LSI_GROUP_TEXT_BYTES];
    snprintf(message, sizeof message, "%srank %d aborted the group: %s",
             lsi_group_print(group, place), lsi_world_rank(group, group->rank),
             reason ? reason : "no reason was given");
    lsi_group_raise(group, status == LS_OK ? LS_ERR_ABORTED : status, message);
}

ls_status ls_group_status(ls_group *group) {
    return lsi_group_error(group);
}
