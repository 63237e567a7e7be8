#include "harness/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "harness/harness.h"

const int rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 0};

size_t rank_heap_bytes = RANK_HEAP_BYTES;

static ls_status run_body(lsi_region *region, int rank, rank_body body, void *context,
                          char message[LSI_MESSAGE_BYTES]) {
    ls_group *group = NULL;
    ls_status status = lsi_group_attach(region, rank, &group);
    if (status == LS_OK) {
        ls_group_set_timeout(group, 60000);
        status = body(group, context);
    }
    snprintf(message, LSI_MESSAGE_BYTES, "%s", status == LS_OK ? "" : ls_last_message());
    /* A rank that failed lets the others go, as a worker does. */
    if (status != LS_OK) lsi_region_abort(region, status, rank, message);
    ls_group_destroy(group);
    return status;
}

/* ---- threads ---- */

typedef struct thread_rank {
    pthread_t thread;
    lsi_region *region;
    int rank;
    rank_body body;
    void *context;
    rank_result result;
} thread_rank;

static void *thread_main(void *argument) {
    thread_rank *t = argument;
    t->result.status = run_body(t->region, t->rank, t->body, t->context, t->result.message);
    return NULL;
}

static void run_threads(lsi_region *region, int n_ranks, rank_body body, void *context,
                        rank_result *results) {
    thread_rank *threads = calloc((size_t)n_ranks, sizeof *threads);
    for (int r = 0; r < n_ranks; r++) {
        threads[r] = (thread_rank){.region = region, .rank = r, .body = body, .context = context};
        if (pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) != 0) abort();
    }
    for (int r = 0; r < n_ranks; r++) {
        pthread_join(threads[r].thread, NULL);
        results[r] = threads[r].result;
    }
    free(threads);
}

/* ---- processes ---- */

static void run_processes(lsi_region *region, int n_ranks, rank_body body, void *context,
                          rank_result *results) {
    rank_result *shared = mmap(NULL, (size_t)n_ranks * sizeof *shared, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[LSI_MAX_RANKS];
    fflush(NULL);
    for (int r = 0; r < n_ranks; r++) {
        pids[r] = fork();
        if (pids[r] < 0) abort();
        if (pids[r] == 0) {
            shared[r].status = run_body(region, r, body, context, shared[r].message);
            _exit(0);
        }
    }
    for (int r = 0; r < n_ranks; r++) {
        int how = 0;
        waitpid(pids[r], &how, 0);
        results[r] = shared[r];
        if (WIFSIGNALED(how)) {
            results[r].status = -WTERMSIG(how);
            snprintf(results[r].message, LSI_MESSAGE_BYTES, "killed by signal %d", WTERMSIG(how));
        }
    }
    munmap(shared, (size_t)n_ranks * sizeof *shared);
}

static void run_mode(rank_mode mode, int n_ranks, rank_body body, void *context,
                     rank_result *results) {
    lsi_region *region = NULL;
    ls_status status = lsi_region_create(n_ranks, rank_heap_bytes, &region);
    if (status != LS_OK) {
        results[0].status = status;
        snprintf(results[0].message, LSI_MESSAGE_BYTES, "%s", ls_last_message());
        return;
    }
    (mode == RANKS_AS_THREADS ? run_threads : run_processes)(region, n_ranks, body, context,
                                                             results);
    lsi_region_close(region);
}

void run_rank_processes(int n_ranks, rank_body body, void *context, rank_result *results) {
    run_mode(RANKS_AS_PROCESSES, n_ranks, body, context, results);
}

ls_status run_ranks(rank_mode mode, int n_ranks, rank_body body, void *context) {
    rank_result *results = calloc((size_t)n_ranks, sizeof *results);
    run_mode(mode, n_ranks, body, context, results);
    ls_status status = LS_OK;
    for (int r = 0; r < n_ranks && status == LS_OK; r++) {
        if (results[r].status == LS_OK) continue;
        status = results[r].status < 0 ? LS_ERR_PEER : (ls_status)results[r].status;
        (void)lsi_fail(status, "rank %d of %d (%s): %s", r, n_ranks,
                       mode == RANKS_AS_THREADS ? "threads" : "processes", results[r].message);
    }
    free(results);
    return status;
}

void run_on_all_ranks(rank_body body, void *context) {
    for (int mode = 0; mode < N_RANK_MODES; mode++)
        for (const int *n = rank_counts; *n; n++)
            assert_ok(run_ranks((rank_mode)mode, *n, body, context));
    assert_int_equal(lsi_mem_n_blocks(), 0);
}
