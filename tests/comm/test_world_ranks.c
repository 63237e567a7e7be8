/* Messages about a group of some ranks name these by their numbers in the world. The groups here
 * are of ranks 5, 4, 3, and of ranks 3, 4 of these in turn: their own numbers, 0 to 2, are nobody
 * in them, so a number that was not translated is found wherever it stands. */
#include "comm/calls.h"

#include <ctype.h>
#include <stdio.h>

#include "base/clock.h"

enum { N_WORLD = 6, N_LARGE = 3, N_SMALL = 2, SOON_MS = 200, LATE_MS = 20000 };

static const int LARGE[] = {5, 4, 3}, SMALL[] = {3, 4};

/* ---- what a message must say ---- */

/* "rank {1}" becomes "rank 4". */
static void expand(const char *pattern, const int *member, char text[256]) {
    size_t n = 0;
    for (const char *c = pattern; *c && n < 250; c++) {
        if (*c != '{') {
            text[n++] = *c;
            continue;
        }
        n += (size_t)snprintf(text + n, 256 - n, "%d", member[c[1] - '0']);
        c += 2;
    }
    text[n] = '\0';
}

/* Every number behind one of these words is a member. */
static ls_status check_names(const char *message, const int *member, int n, const char *name) {
    static const char *const words[] = {"rank ", "root "};
    for (size_t w = 0; w < COUNT_OF(words); w++)
        for (const char *at = message; (at = strstr(at, words[w])) != NULL;) {
            at += strlen(words[w]);
            bool is_member = !isdigit((unsigned char)*at);
            for (int i = 0; i < n; i++) is_member = is_member || atoi(at) == member[i];
            RANK_CHECK(is_member, "%s: %s%d is none of the group: %s", name, words[w], atoi(at),
                       message);
        }
    return LS_OK;
}

static ls_status check_message(const char *message, const char *const *texts, const int *member,
                               int n, const char *name) {
    LSI_TRY(check_names(message, member, n, name));
    for (int i = 0; i < 3 && texts[i]; i++) {
        char text[256];
        expand(texts[i], member, text);
        RANK_CHECK(strstr(message, text), "%s: no '%s' in: %s", name, text, message);
    }
    return LS_OK;
}

/* ---- errors of the group ---- */

typedef struct fault {
    const char *name;
    ls_status (*act)(ls_group **group, int rank); /* of a member; its status is not looked at */
    ls_status expected;
    const char *texts[3];
    bool for_large_only;
} fault;

static _Thread_local float values[2][40000];

static ls_status call_with_other_roots(ls_group **group, int rank) {
    return ls_broadcast(*group, values[0], values[0], 1, LS_DTYPE_F32, rank == 1, NULL);
}

static ls_status send_other_type(ls_group **group, int rank) {
    if (rank == 0) return ls_send(*group, values[0], 1, LS_DTYPE_F32, 1, NULL);
    if (rank == 1) return ls_recv(*group, values[0], 1, LS_DTYPE_I32, 0, NULL);
    return LS_OK;
}

static ls_status come_late(ls_group **group, int rank) {
    if (rank == 1) return LS_OK;
    ls_group_set_timeout(*group, rank == 0 ? SOON_MS : LATE_MS);
    return ls_broadcast(*group, values[0], values[0], 1, LS_DTYPE_F32, 1, NULL);
}

static ls_status leave(ls_group **group, int rank) {
    if (rank != 1) return ls_barrier(*group, NULL);
    ls_group_destroy(*group);
    *group = NULL;
    return LS_OK;
}

static ls_status send_nothing(ls_group **group, int rank) {
    if (rank != 0) return LS_OK;
    ls_group_set_timeout(*group, SOON_MS);
    return ls_recv(*group, values[0], 1, LS_DTYPE_F32, 1, NULL);
}

static ls_status receive_nothing(ls_group **group, int rank) {
    if (rank != 1) return LS_OK;
    ls_group_set_timeout(*group, SOON_MS);
    return ls_send(*group, values[0], 40000, LS_DTYPE_F32, 0, NULL);
}

/* Rank 0 is the first to lose patience. */
static ls_status wait_in_a_circle(ls_group **group, int rank) {
    if (rank > 1) return LS_OK;
    ls_group_set_timeout(*group, rank == 0 ? SOON_MS : LATE_MS);
    return ls_recv(*group, values[0], 1, LS_DTYPE_F32, 1 - rank, NULL);
}

static ls_status wait_in_a_chain(ls_group **group, int rank) {
    if (rank == 2) return LS_OK;
    ls_group_set_timeout(*group, rank == 0 ? 2 * SOON_MS : LATE_MS);
    return ls_recv(*group, values[0], 1, LS_DTYPE_F32, rank + 1, NULL);
}

static ls_status abort_group(ls_group **group, int rank) {
    if (rank == 1) ls_group_abort(*group, LS_ERR_ABORTED, "on purpose");
    return LS_OK;
}

static ls_status use_private_memory(ls_group **group, int rank) {
    (void)rank;
    LSI_TRY(force(*group, "direct"));
    return ls_all_reduce(*group, values[0], values[1], 40000, LS_DTYPE_F32, LS_OP_SUM, 1, NULL);
}

static ls_status wait_for_a_link(ls_group **group, int rank) {
    ls_group *g = *group;
    LSI_TRY(lsi_link_parse("latency_us=10000000", &g->link, &g->has_link));
    ls_group_set_timeout(g, rank == 0 ? SOON_MS : LATE_MS);
    return ls_broadcast(g, values[0], values[0], 1, LS_DTYPE_F32, 1, NULL);
}

static const fault faults[] = {
    {"roots",
     call_with_other_roots,
     LS_ERR_MISMATCH,
     {"differs between ranks: rank {0} called broadcast (F32, count 1, root {0}",
      "; rank {1} called broadcast (F32, count 1, root {1}"},
     false},
    {"types",
     send_other_type,
     LS_ERR_MISMATCH,
     {"from rank {0} to rank {1} differs: rank {1} called receive (I32, count 1, from rank {0})",
      "; rank {0} sent F32"},
     false},
    {"late",
     come_late,
     LS_ERR_TIMEOUT,
     {"rank {0} waited", "broadcast (F32, count 1, root {1}", "rank {1} did not join ("},
     false},
    {"left",
     leave,
     LS_ERR_PEER,
     {"barrier: rank {1} did not join (", "; it has left the group)"},
     false},
    {"not sent",
     send_nothing,
     LS_ERR_TIMEOUT,
     {"rank {0} waited", "receive (F32, count 1, from rank {1}): rank {1} did not send it"},
     false},
    {"not received",
     receive_nothing,
     LS_ERR_TIMEOUT,
     {"rank {1} waited", "send (F32, count 40000, to rank {0}): rank {0} did not receive it"},
     false},
    {"circle",
     wait_in_a_circle,
     LS_ERR_TIMEOUT,
     {"rank {0} waited", "rank {1} did not send it", "it waits for a message to or from rank {0}"},
     false},
    {"chain",
     wait_in_a_chain,
     LS_ERR_TIMEOUT,
     {"rank {0} waited",
      "rank {1}, who is to send it, waits itself, in the end for rank {2}, which stands still"},
     true},
    {"abort", abort_group, LS_ERR_ABORTED, {"rank {1} aborted the group: on purpose"}, false},
    {"private",
     use_private_memory,
     LS_ERR_UNSUPPORTED,
     {"the input of rank {0} is not in shared memory"},
     false},
    {"link",
     wait_for_a_link,
     LS_ERR_TIMEOUT,
     {"rank {0} waited", "broadcast (F32, count 1, root {1}", "LOCKSTEP_LINK"},
     false},
};

/* The group's error, once it has come to this rank. */
static ls_status await_error(ls_group *group) {
    int64_t deadline_ns = lsi_deadline_ns(LATE_MS);
    ls_status status = LS_OK;
    while ((status = ls_group_status(group)) == LS_OK && lsi_now_ns() < deadline_ns)
        lsi_sleep_ms(1);
    return status;
}

static ls_status commit(const fault *f, ls_group **group, const int *member) {
    char message[LSI_MESSAGE_BYTES], prefix[32];
    int n = (*group)->n_ranks;
    snprintf(prefix, sizeof prefix, "group %d: ", (*group)->control->number);
    (void)!f->act(group, (*group)->rank);
    if (!*group) return LS_OK;
    ls_status status = await_error(*group);
    snprintf(message, sizeof message, "%s", status == LS_OK ? "no error" : ls_last_message());
    RANK_CHECK(status == f->expected, "%s: status %d: %s", f->name, status, message);
    RANK_CHECK(strncmp(message, prefix, strlen(prefix)) == 0, "%s: no '%s' in front: %s", f->name,
               prefix, message);
    lsi_report *report = &(*group)->errors->report[(*group)->errors->first - 1];
    RANK_CHECK(report->rank >= 3, "%s: noted for rank %d", f->name, report->rank);
    return check_message(message, f->texts, member, n, f->name);
}

/* Makes both groups; NULL where this rank is in none. */
static ls_status make_groups(ls_group *world, ls_group **large, ls_group **small) {
    int rank = world->rank;
    *large = *small = NULL;
    LSI_TRY(ls_group_split(world, rank >= 3 ? 0 : -1, -rank, large));
    if (!*large) return LS_OK;
    return ls_group_split(*large, rank == 5 ? -1 : 0, rank, small);
}

static ls_status commit_all(ls_group *world, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        ls_group *large, *small;
        LSI_TRY(make_groups(world, &large, &small));
        LSI_TRY(ls_barrier(world, NULL)); /* nobody is in a split any more */
        if (small && !faults[i].for_large_only) LSI_TRY(commit(&faults[i], &small, SMALL));
        LSI_TRY(ls_barrier(world, NULL));
        if (large) LSI_TRY(commit(&faults[i], &large, LARGE));
        LSI_TRY(ls_barrier(world, NULL)); /* before anybody leaves */
        ls_group_destroy(small);
        ls_group_destroy(large);
    }
    return LS_OK;
}

static void errors_of_groups_name_ranks_of_the_world(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, N_WORLD, commit_all, NULL));
}

/* ---- errors of a call on one rank ---- */

static ls_status open_two_batches(ls_group *group) {
    LSI_TRY(ls_batch_begin(group));
    return ls_batch_begin(group);
}

static ls_status take_a_handle_in_a_batch(ls_group *group) {
    ls_work *work = NULL;
    LSI_TRY(ls_batch_begin(group));
    return ls_barrier(group, &work);
}

static ls_status split_in_a_batch(ls_group *group) {
    ls_group *part = NULL;
    LSI_TRY(ls_batch_begin(group));
    return ls_group_split(group, 0, 0, &part);
}

static ls_status end_no_batch(ls_group *group) {
    return ls_batch_end(group, NULL);
}

static ls_status use_a_buffer_twice(ls_group *group) {
    ls_work *work = NULL;
    LSI_TRY(ls_broadcast(group, values[0], values[1], 40000, LS_DTYPE_F32, 1, &work));
    return ls_broadcast(group, values[0], values[1], 40000, LS_DTYPE_F32, 1, &work);
}

static ls_status post_too_many(ls_group *group) {
    ls_work *work = NULL;
    for (int i = 0; i < LSI_CALLS; i++) LSI_TRY(ls_barrier(group, &work));
    return ls_barrier(group, &work);
}

static ls_status send_too_many(ls_group *group) {
    ls_work *work = NULL;
    for (int i = 0; i < LSI_MESSAGES; i++)
        LSI_TRY(ls_recv(group, values[0], 1, LS_DTYPE_F32, 1, &work));
    return ls_recv(group, values[0], 1, LS_DTYPE_F32, 1, &work);
}

/* Only rank 0 of the group calls. */
static const struct {
    const char *name;
    ls_status (*act)(ls_group *group);
    ls_status expected;
    const char *texts[3];
} refusals[] = {
    {"two batches", open_two_batches, LS_ERR_STATE, {"rank {0}: a batch is open already"}},
    {"a handle", take_a_handle_in_a_batch, LS_ERR_ARGUMENT, {"rank {0}: a batch is open;"}},
    {"a split", split_in_a_batch, LS_ERR_STATE, {"rank {0} has a batch open"}},
    {"no batch", end_no_batch, LS_ERR_STATE, {"rank {0}: no batch is open"}},
    {"a buffer",
     use_a_buffer_twice,
     LS_ERR_BUSY,
     {"rank {0}, call #", "a buffer is still in use by call #",
      ", broadcast (F32, count 40000, root {1}"}},
    {"calls", post_too_many, LS_ERR_BUSY, {"rank {0}: 1024 works are in flight"}},
    {"messages", send_too_many, LS_ERR_BUSY, {"rank {0}: 1024 messages and batches are in flight"}},
};

static ls_status refuse_all(ls_group *world, void *context) {
    (void)context;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        ls_group *group[2];
        LSI_TRY(make_groups(world, &group[0], &group[1]));
        for (int g = 0; g < 2; g++) {
            if (!group[g] || group[g]->rank != 0) continue;
            ls_status status = refusals[i].act(group[g]);
            char message[LSI_MESSAGE_BYTES];
            snprintf(message, sizeof message, "%s", ls_last_message());
            RANK_CHECK(status == refusals[i].expected, "%s: status %d: %s", refusals[i].name,
                       status, message);
            LSI_TRY(check_message(message, refusals[i].texts, g ? SMALL : LARGE, group[g]->n_ranks,
                                  refusals[i].name));
        }
        LSI_TRY(ls_barrier(world, NULL));
        for (int g = 0; g < 2; g++) ls_group_destroy(group[g]);
    }
    return LS_OK;
}

static void refusals_name_the_rank_of_the_world(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, N_WORLD, refuse_all, NULL));
}

/* ---- arguments are told as they were given ---- */

static ls_status check_wrong_ranks(ls_group *small) {
    ls_status status = ls_broadcast(small, values[0], values[0], 1, LS_DTYPE_F32, 2, NULL);
    RANK_CHECK(status == LS_ERR_ARGUMENT && strstr(ls_last_message(), "root 2, expected 0 to 1"),
               "%s", ls_last_message());
    status = ls_send(small, values[0], 1, LS_DTYPE_F32, 3, NULL);
    RANK_CHECK(status == LS_ERR_ARGUMENT && strstr(ls_last_message(), "rank 3, expected 0 to 1"),
               "%s", ls_last_message());
    status =
        ls_all_gather_v(small, values[0], values[1], (const int64_t[]){1, -7}, LS_DTYPE_F32, NULL);
    RANK_CHECK(status == LS_ERR_ARGUMENT && strstr(ls_last_message(), "counts[1], -7, is outside"),
               "%s", ls_last_message());
    return LS_OK;
}

static ls_status give_wrong_ranks(ls_group *world, void *context) {
    (void)context;
    ls_group *large, *small;
    LSI_TRY(make_groups(world, &large, &small));
    ls_status status = small ? check_wrong_ranks(small) : LS_OK;
    ls_group_destroy(small);
    ls_group_destroy(large);
    return status;
}

static void wrong_arguments_are_told_in_their_own_numbers(void **state) {
    (void)state;
    assert_ok(run_ranks(RANKS_AS_THREADS, N_WORLD, give_wrong_ranks, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_of_groups_name_ranks_of_the_world),
        cmocka_unit_test(refusals_name_the_rank_of_the_world),
        cmocka_unit_test(wrong_arguments_are_told_in_their_own_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
