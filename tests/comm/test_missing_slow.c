/* Ranks that stay away, stop, die or leave in every phase of every algorithm, without a launcher to
 * notice. The others must have the right error in time, with rank 1 in it and nobody else. */
#include "comm/calls.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- ranks that are missing in the middle ---- */

/* What rank 1 does in the middle of a call, without a launcher to notice. */
typedef enum action { STAYS_AWAY, STOPS, DIES, LEAVES, N_ACTIONS } action;
static const char *const action_names[] = {"stays away", "stops", "dies", "leaves"};

typedef struct phase_row {
    const char *name, *algo;
    lsi_call_kind kind;
    int64_t count;
    bool shared;
} phase_row;

static const phase_row phase_rows[] = {
    {"in a line", "one-shot", LSI_CALL_ALL_REDUCE, 6, false},
    {"in a slot", "one-shot", LSI_CALL_ALL_GATHER, 640, false},
    {"barrier", "", LSI_CALL_BARRIER, 0, false},
    {"direct", "direct", LSI_CALL_ALL_REDUCE, 40000, true},
    {"direct, to the root", "direct", LSI_CALL_GATHER, 40000, true},
    {"staged", "staged", LSI_CALL_ALL_REDUCE, 200000, false},
    {"staged from the root", "staged", LSI_CALL_BROADCAST, 200000, false},
    {"ring", "ring", LSI_CALL_ALL_REDUCE, 200000, false},
    {"halving", "halving", LSI_CALL_ALL_REDUCE, 200000, false},
    {"doubling", "doubling", LSI_CALL_ALL_REDUCE, 100000, false},
    {"double-tree", "double-tree", LSI_CALL_ALL_REDUCE, 200000, false},
    {"two-level", "two-level", LSI_CALL_ALL_REDUCE, 200000, false},
    {"binomial", "binomial", LSI_CALL_BROADCAST, 200000, false},
    {"pairwise", "pairwise", LSI_CALL_ALL_TO_ALL, 60000, false},
    {"message from rank 1", "", LSI_CALL_RECV, 200000, false},
    {"message to rank 1", "", LSI_CALL_SEND, 200000, false},
    {"batch", "", LSI_CALL_NONE, 200000, false},
};

typedef struct phase_case {
    const phase_row *row;
    action action;
    int n_moves; /* of rank 1 before it happens; -1: not even posted */
    /* Shared with the ranks. */
    _Atomic int n_posted, hit, n_over, pid;
    _Atomic int64_t hit_ns, ended_ns[4];
} phase_case;

enum { PHASE_RANKS = 4, PHASE_TIMEOUT_MS = 150 };

/* RECV: rank 0 receives from rank 1; SEND: the other way round; NONE: all exchange in a ring. */
static ls_status post_phase(ls_group *group, const phase_row *row, float *buffer[2],
                            ls_work **work) {
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    if (row->kind == LSI_CALL_NONE) {
        LSI_TRY(ls_batch_begin(group));
        LSI_TRY(ls_recv(group, buffer[1], row->count, LS_DTYPE_F32, (rank + n - 1) % n, NULL));
        LSI_TRY(ls_send(group, buffer[0], row->count, LS_DTYPE_F32, (rank + 1) % n, NULL));
        return ls_batch_end(group, work);
    }
    bool is_message = row->kind == LSI_CALL_SEND || row->kind == LSI_CALL_RECV;
    if (is_message && rank > 1) return ls_barrier(group, work);
    if (is_message && rank == (row->kind == LSI_CALL_RECV))
        return ls_send(group, buffer[0], row->count, LS_DTYPE_F32, 1 - rank, work);
    if (is_message) return ls_recv(group, buffer[1], row->count, LS_DTYPE_F32, 1 - rank, work);
    const call c = {.kind = row->kind};
    return make_call(group, &c, row->count, buffer[0], buffer[1], work);
}

static ls_status rank_1_acts(ls_group *group, phase_case *k) {
    k->pid = getpid();
    k->hit_ns = lsi_now_ns();
    k->hit = 1;
    if (k->action == LEAVES) return LS_OK;
    if (k->action == DIES) raise(SIGKILL);
    if (k->action == STOPS) raise(SIGSTOP);
    while (k->n_over < PHASE_RANKS - 1) lsi_sleep_ms(1);
    return ls_group_status(group);
}

static ls_status rank_1_in_the_middle(ls_group *group, phase_case *k, float *buffer[2]) {
    ls_work *work = NULL;
    while (k->n_posted < PHASE_RANKS - 1) lsi_sleep_ms(1);
    if (k->n_moves >= 0) LSI_TRY(post_phase(group, k->row, buffer, &work));
    for (int i = 0; i < k->n_moves; i++) {
        lsi_sleep_ms(2);
        LSI_TRY(ls_group_progress(group));
    }
    return rank_1_acts(group, k);
}

/* A call that could still end well, then one that cannot. */
static ls_status others_in_the_middle(ls_group *group, phase_case *k, float *buffer[2]) {
    ls_work *work = NULL;
    LSI_TRY(post_phase(group, k->row, buffer, &work));
    k->n_posted++;
    while (!k->hit) LSI_TRY(ls_group_progress(group));
    int64_t timeout_ms = k->action == STAYS_AWAY || k->action == STOPS ? PHASE_TIMEOUT_MS : 60000;
    ls_group_set_timeout(group, timeout_ms);
    ls_status status = ls_work_wait(work, -1);
    if (status == LS_OK) status = ls_barrier(group, NULL);
    return status;
}

static ls_status middle(ls_group *group, void *context) {
    phase_case *k = context;
    float *buffer[2];
    int rank = ls_group_rank(group);
    LSI_TRY(make_buffers(group, k->row->count, k->row->shared, buffer));
    LSI_TRY(ls_barrier(group, NULL));
    LSI_TRY(force(group, k->row->algo));
    ls_status status = (rank == 1 ? rank_1_in_the_middle : others_in_the_middle)(group, k, buffer);
    char message[LSI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", status == LS_OK ? "" : ls_last_message());
    k->ended_ns[rank] = lsi_now_ns();
    k->n_over++;
    if (rank == 0 && k->action == STOPS) kill(k->pid, SIGCONT);
    lsi_message_set(message);
    return status;
}

static void expect_phase(const phase_case *k, const rank_result *results) {
    bool dies = k->action == DIES;
    ls_status expected = dies || k->action == LEAVES ? LS_ERR_PEER : LS_ERR_TIMEOUT;
    for (int r = 0; r < PHASE_RANKS; r++) {
        if (r == 1) continue;
        bool others = false;
        for (int other = 0; other < PHASE_RANKS; other++) {
            char blamed[2][32];
            snprintf(blamed[0], sizeof blamed[0], "rank %d did not", other);
            snprintf(blamed[1], sizeof blamed[1], "rank %d (pid", other);
            for (int i = 0; i < 2 && other != 1; i++)
                others = others || strstr(results[r].message, blamed[i]);
        }
        bool named = strstr(results[r].message, dies ? "rank 1 (pid" : "rank 1 did not") ||
                     strstr(results[r].message, "for rank 1, which stands still");
        if (results[r].status != (int)expected || !named || others)
            fail_msg("%s, rank 1 %s after %d moves: rank %d has status %d with '%s'", k->row->name,
                     action_names[k->action], k->n_moves, r, results[r].status, results[r].message);
        /* Generous: machines may be slow. */
        assert_true(k->ended_ns[r] - k->hit_ns < (int64_t)20e9);
        if (dies) assert_true(k->ended_ns[r] - k->hit_ns < (int64_t)1e9);
    }
    int own = dies ? -SIGKILL : k->action == LEAVES ? LS_OK : (int)expected;
    if (results[1].status != own) fail_msg("rank 1: %d, %s", results[1].status, results[1].message);
}

static void missing_ranks_are_named(action a) {
    phase_case *k =
        mmap(NULL, sizeof *k, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int64_t most_ns = 0, sum_ns = 0, n = 0;
    assert_true(k != MAP_FAILED);
    for (size_t i = 0; i < COUNT_OF(phase_rows); i++)
        for (int n_moves = -1; n_moves < 3; n_moves += 1 + (a < DIES)) {
            rank_result results[PHASE_RANKS];
            memset(k, 0, sizeof *k);
            k->row = &phase_rows[i];
            k->action = a;
            k->n_moves = n_moves;
            run_rank_processes(PHASE_RANKS, middle, k, results);
            expect_phase(k, results);
            for (int r = 0; r < PHASE_RANKS; r++) {
                if (r == 1) continue;
                int64_t ns = k->ended_ns[r] - k->hit_ns;
                sum_ns += ns;
                n++;
                if (ns > most_ns) most_ns = ns;
            }
        }
    print_message("rank 1 %s: the others have the error after %.1f ms, at most %.1f\n",
                  action_names[a], (double)sum_ns / (double)n / 1e6, (double)most_ns / 1e6);
    munmap(k, sizeof *k);
}

static void late_ranks_are_named_in_every_phase(void **state) {
    (void)state;
    missing_ranks_are_named(STAYS_AWAY);
}

static void stopped_ranks_are_named_in_every_phase(void **state) {
    (void)state;
    missing_ranks_are_named(STOPS);
}

static void dead_ranks_are_named_at_once_in_every_phase(void **state) {
    (void)state;
    missing_ranks_are_named(DIES);
}

static void ranks_that_leave_are_named_at_once_in_every_phase(void **state) {
    (void)state;
    missing_ranks_are_named(LEAVES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_ranks_are_named_in_every_phase),
        cmocka_unit_test(stopped_ranks_are_named_in_every_phase),
        cmocka_unit_test(dead_ranks_are_named_at_once_in_every_phase),
        cmocka_unit_test(ranks_that_leave_are_named_at_once_in_every_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
