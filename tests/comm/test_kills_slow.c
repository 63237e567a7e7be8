/* SIGKILL at random moments, thousands of times: of one rank of a small group in a stream of calls
 * of every kind over every algorithm. Each time all survivors end with an error that names the rank
 * that died and nobody else, and nothing is left: no process, memory, descriptor or name.
 *
 * Sets of ranks are bare processes without a launcher, so that deaths are seen by peers alone. */
#include "comm/calls.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_KILLED_RANKS = 4, HEAP = 16 << 20, COUNT = 3000, LARGE = 50000, N_KINDS = 9 };

typedef struct killed_set {
    _Atomic int n_there; /* ranks whose stream has begun */
    _Atomic int64_t ended_ns[MAX_KILLED_RANKS];
    int n, victim;
    unsigned seed;
    rank_result results[MAX_KILLED_RANKS];
} killed_set;

static killed_set *set;

/* ---- the stream ---- */

static const char *const algorithms[] = {"",         "one-shot", "direct",   "staged",
                                         "ring",     "halving",  "doubling", "double-tree",
                                         "binomial", "pairwise", "two-level"};
static const lsi_call_kind kinds[N_KINDS] = {
    LSI_CALL_BARRIER,        LSI_CALL_ALL_REDUCE, LSI_CALL_REDUCE,
    LSI_CALL_REDUCE_SCATTER, LSI_CALL_ALL_GATHER, LSI_CALL_BROADCAST,
    LSI_CALL_GATHER,         LSI_CALL_SCATTER,    LSI_CALL_ALL_TO_ALL};

/* The same numbers on all ranks. */
static unsigned next_random(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* A forced algorithm that cannot do the call is refused alike on all ranks. */
static ls_status unless_unsupported(ls_status status) {
    return status == LS_ERR_UNSUPPORTED ? LS_OK : status;
}

static ls_status exchange(ls_group *group, float *buffer[2], int64_t count) {
    int rank = ls_group_rank(group), n = ls_group_world_size(group);
    LSI_TRY(ls_batch_begin(group));
    ls_status received = ls_recv(group, buffer[1], count, LS_DTYPE_F32, (rank + n - 1) % n, NULL);
    ls_status sent = ls_send(group, buffer[0], count, LS_DTYPE_F32, (rank + 1) % n, NULL);
    ls_status status = ls_batch_end(group, NULL);
    return received != LS_OK ? received : sent != LS_OK ? sent : status;
}

static ls_status call_at_random(ls_group *group, unsigned *seed, float *buffer[2][2]) {
    unsigned kind = next_random(seed) % (N_KINDS + 2), shared = next_random(seed) % 2;
    int n = ls_group_world_size(group), root = (int)(next_random(seed) % (unsigned)n);
    int64_t count = (int64_t[]){1, 7, COUNT, LARGE}[next_random(seed) % 4];
    const char *algorithm = algorithms[next_random(seed) % COUNT_OF(algorithms)];
    unsigned later = next_random(seed) % 3, uneven = next_random(seed) % 2;
    if (kind >= N_KINDS) return exchange(group, buffer[shared], count);
    const call c = {.kind = kinds[kind], .root = root, .uneven = (int)uneven};
    ls_work *work = NULL, *second = NULL;
    LSI_TRY(force(group, algorithm));
    if (strcmp(algorithm, "direct") == 0) shared = 1; /* else it is an error of the group */
    float **b = buffer[shared];
    if (later == 0) return unless_unsupported(make_call(group, &c, count, b[0], b[1], NULL));
    ls_status status = make_call(group, &c, count, b[0], b[1], &work);
    if (status != LS_OK) return unless_unsupported(status);
    if (later == 1) LSI_TRY(ls_barrier(group, &second));
    LSI_TRY(ls_group_progress(group));
    LSI_TRY(ls_work_wait(work, -1));
    return second ? ls_work_wait(second, -1) : LS_OK;
}

static ls_status stream(ls_group *group) {
    float *buffer[2][2];
    unsigned seed = set->seed;
    for (int shared = 0; shared < 2; shared++)
        LSI_TRY(make_buffers(group, LARGE / 2, shared, buffer[shared]));
    set->n_there++;
    ls_status status = LS_OK;
    while (status == LS_OK) status = call_at_random(group, &seed, buffer);
    free_buffers(group, false, buffer[0]);
    return status;
}

/* ---- one set ---- */

static int n_descriptors(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n;
}

static void run_rank(lsi_region *region, int rank) {
    rank_result *result = &set->results[rank];
    ls_group *group = NULL;
    int blocks = (int)lsi_mem_n_blocks(), descriptors = n_descriptors();
    ls_status status = lsi_group_attach(region, rank, &group);
    if (status == LS_OK) {
        ls_group_set_timeout(group, 30000);
        status = stream(group);
    }
    set->ended_ns[rank] = lsi_now_ns();
    result->status = (int)status;
    snprintf(result->message, LSI_MESSAGE_BYTES, "%s", ls_last_message());
    ls_group_destroy(group);
    /* The region's descriptors of peers go with it; memory does with the group. */
    if ((int)lsi_mem_n_blocks() != blocks) result->status = -1000;
    lsi_region_close(region);
    if (n_descriptors() != descriptors - 1) result->status = -1001;
}

static void kill_at_random(const pid_t *pids) {
    int64_t deadline_ns = lsi_deadline_ns(60000);
    while (set->n_there < set->n && lsi_now_ns() < deadline_ns) sched_yield();
    usleep((useconds_t)(rand() % 3000));
    kill(pids[set->victim], SIGKILL);
}

static void expect_survivors(int round) {
    char named[2][48];
    for (int r = 0; r < set->n; r++) {
        const rank_result *result = &set->results[r];
        bool others = false;
        if (r == set->victim) continue;
        for (int other = 0; other < set->n; other++) {
            snprintf(named[0], sizeof named[0], "rank %d did not", other);
            snprintf(named[1], sizeof named[1], "rank %d (pid", other);
            for (int i = 0; i < 2 && other != set->victim; i++)
                others = others || strstr(result->message, named[i]);
        }
        snprintf(named[1], sizeof named[1], "rank %d (pid", set->victim);
        if (result->status != LS_ERR_PEER || others || !strstr(result->message, named[1]))
            fail_msg("round %d, rank %d of %d was killed (seed %u): rank %d has status %d: %s",
                     round, set->victim, set->n, set->seed, r, result->status, result->message);
    }
}

/* Nanoseconds from the kill to the last survivor's error. */
static int64_t kill_one(int round) {
    lsi_region *region = NULL;
    pid_t pids[MAX_KILLED_RANKS];
    memset(set, 0, sizeof *set);
    set->n = 2 + rand() % (MAX_KILLED_RANKS - 1);
    set->victim = rand() % set->n;
    set->seed = (unsigned)rand();
    assert_ok(lsi_region_create(set->n, HEAP, &region));
    for (int r = 0; r < set->n; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] != 0) continue;
        run_rank(region, r);
        _exit(0);
    }
    kill_at_random(pids);
    int64_t killed_ns = lsi_now_ns(), last_ns = 0;
    for (int r = 0; r < set->n; r++) {
        int how = 0;
        assert_int_equal(waitpid(pids[r], &how, 0), pids[r]);
        assert_true(r == set->victim ? WIFSIGNALED(how) : WIFEXITED(how));
        if (r != set->victim && set->ended_ns[r] > last_ns) last_ns = set->ended_ns[r];
    }
    expect_survivors(round);
    lsi_region_close(region);
    return last_ns - killed_ns;
}

static int n_names(void) {
    int n = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder))
        n += strstr(e->d_name, "lockstep") != NULL;
    if (folder) closedir(folder);
    return n;
}

static void a_kill_is_always_noticed_named_and_cleaned_up(void **state) {
    (void)state;
    const char *wish = getenv("LOCKSTEP_TEST_KILLS");
    int n_kills = wish ? atoi(wish) : 2000, descriptors = n_descriptors();
    int64_t sum_ns = 0, most_ns = 0;
    for (int i = 0; i < n_kills; i++) {
        int64_t ns = kill_one(i);
        sum_ns += ns;
        if (ns > most_ns) most_ns = ns;
        assert_true(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        assert_int_equal(n_descriptors(), descriptors);
        assert_int_equal(n_names(), 0);
    }
    print_message("%d kills: the last survivor has the error after %.1f ms, at most %.1f\n",
                  n_kills, (double)sum_ns / n_kills / 1e6, (double)most_ns / 1e6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_is_always_noticed_named_and_cleaned_up),
    };
    srand(11);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    set = mmap(NULL, sizeof *set, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
