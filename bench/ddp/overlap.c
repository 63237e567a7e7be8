/* How much of the communication of ls_ddp is hidden behind the backward pass, on a link of known
 * speed.
 *
 *     build/bench/overlap [WORKERS]
 *
 * The backward pass is made up: for each parameter a fixed amount of computation, with PROGRESS
 * events in between as the tape raises them, then its gradient is written. LOCKSTEP_LINK is set so
 * that sending all gradients takes as long as computing them. Four passes take turns, each begun by
 * all workers at once, timed by the slowest of them; medians:
 *
 *     compute    the computation alone
 *     comm       the step alone: all gradients are ready at once
 *     in turns   computation, then communication (no_overlap)
 *     overlap    the step as it is
 *
 *     hidden = 1 - (overlap - compute) / comm
 *
 * The most that is possible is 1 - share of the last bucket, whose gradients are ready when there
 * is nothing left to compute. Gradients are checked in every step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/parallel.h>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/region.h"

enum {
    PARAMS = 48,
    COUNT = 256 << 10, /* elements of a parameter: 1 MiB */
    BUCKET_MB = 4,
    CHUNKS = 16, /* of a parameter's computation, with an event behind each */
    ROUNDS = 15,
    LATENCY_US = 20,
};
static const double PARAM_MS = 4, CALIBRATION_MS = 40;

/* ---- the computation ---- */

static volatile double sink;

/* A chain of multiplications: no memory, nothing to vectorize. */
static void compute(int64_t n_turns) {
    double value = 1.1;
    for (int64_t i = 0; i < n_turns; i++) value = value * 0.999 + 0.0015;
    sink = value;
}

/* Turns in a chunk; the fastest of a few, as other programs only make it slower. */
static int64_t calibrate(void) {
    int64_t turns = 1 << 20, least_ns = INT64_MAX;
    for (int64_t until_ns = lsi_now_ns() + (int64_t)(CALIBRATION_MS * 1e6);
         lsi_now_ns() < until_ns;) {
        int64_t begin_ns = lsi_now_ns();
        compute(turns);
        int64_t took_ns = lsi_now_ns() - begin_ns;
        if (took_ns < least_ns) least_ns = took_ns;
    }
    return (int64_t)(PARAM_MS * 1e6 / CHUNKS * (double)turns / (double)least_ns);
}

/* ---- one worker ---- */

typedef enum pass { COMPUTE, COMM, IN_TURNS, OVERLAP, N_PASSES } pass;
static const char *const pass_names[N_PASSES] = {"compute", "comm", "in turns", "overlap"};

typedef struct worker {
    ls_group *group;
    int64_t n_turns;
    float *data[PARAMS];
    char names[PARAMS][16];
    ls_param params[2][PARAMS]; /* of each ddp */
    ls_ddp *ddp[2];             /* with overlap, without */
    double ms[N_PASSES][ROUNDS];
} worker;

/* Index i of the parameters, last first; gradients differ by parameter and rank. */
static ls_status backward(worker *w, ls_param *params, const ls_event_sink *events,
                          int64_t n_turns) {
    for (int i = PARAMS - 1; i >= 0; i--) {
        for (int c = 0; c < CHUNKS && n_turns; c++) {
            compute(n_turns);
            if (events) LSI_TRY(events->on_event(events->context, LS_EVENT_PROGRESS, 0));
        }
        float *grad = params[i].grad;
        for (int k = 0; k < COUNT; k++) grad[k] = (float)(i + ls_group_rank(w->group));
        if (events) LSI_TRY(events->on_event(events->context, LS_EVENT_GRAD_READY, i));
    }
    return events ? events->on_event(events->context, LS_EVENT_END_OF_BACKWARD, 0) : LS_OK;
}

static ls_status check(const worker *w, const ls_param *params) {
    double mean = (ls_group_world_size(w->group) - 1) / 2.0;
    for (int i = 0; i < PARAMS; i++)
        for (int k = 0; k < COUNT; k += COUNT - 1) {
            double found = (double)((const float *)params[i].grad)[k];
            if (found < i + mean - 1e-5 || found > i + mean + 1e-5)
                return lsi_fail(LS_ERR_STATE, "parameter %d: gradient %g, expected %g", i, found,
                                i + mean);
        }
    return LS_OK;
}

static ls_status step(worker *w, pass p) {
    ls_ddp *ddp = w->ddp[p == IN_TURNS];
    ls_event_sink events = ls_ddp_sink(ddp);
    LSI_TRY(ls_ddp_begin_step(ddp, 1, 0));
    LSI_TRY(ls_ddp_begin_backward(ddp));
    LSI_TRY(backward(w, w->params[p == IN_TURNS], &events, p == COMM ? 0 : w->n_turns));
    return ls_ddp_finish_step(ddp);
}

static ls_status time_pass(worker *w, pass p, double *ms) {
    LSI_TRY(ls_barrier(w->group, NULL));
    int64_t begin_ns = lsi_now_ns();
    LSI_TRY(p == COMPUTE ? backward(w, w->params[0], NULL, w->n_turns) : step(w, p));
    double own_ms = (double)(lsi_now_ns() - begin_ns) / 1e6;
    if (p != COMPUTE) LSI_TRY(check(w, w->params[p == IN_TURNS]));
    return ls_all_reduce(w->group, &own_ms, ms, 1, LS_DTYPE_F64, LS_OP_MAX, 1, NULL);
}

static ls_status make_ddp(worker *w, int which) {
    ls_ddp_opts opts = LS_DDP_OPTS_INIT;
    opts.bucket_cap_mb = BUCKET_MB;
    opts.no_overlap = which;
    for (int i = 0; i < PARAMS; i++) {
        snprintf(w->names[i], sizeof w->names[i], "%d", i);
        if (!w->data[i]) w->data[i] = calloc(COUNT, sizeof(float));
        w->params[which][i] = (ls_param){
            .name = w->names[i], .count = COUNT, .dtype = LS_DTYPE_F32, .data = w->data[i]};
        if (!w->data[i]) return lsi_fail(LS_ERR_MEMORY, "no memory for parameter %d", i);
    }
    return ls_ddp_create(w->group, w->params[which], PARAMS, &opts, &w->ddp[which]);
}

static ls_status measure(worker *w) {
    for (int which = 0; which < 2; which++) LSI_TRY(make_ddp(w, which));
    for (int round = -2; round < ROUNDS; round++) /* buckets settle in the first two */
        for (int p = 0; p < N_PASSES; p++) {
            double ms = 0;
            LSI_TRY(time_pass(w, (pass)p, &ms));
            if (round >= 0) w->ms[p][round] = ms;
        }
    return ls_barrier(w->group, NULL);
}

/* ---- the report ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(worker *w) {
    double median[N_PASSES];
    for (int p = 0; p < N_PASSES; p++) {
        qsort(w->ms[p], ROUNDS, sizeof(double), by_value);
        median[p] = w->ms[p][ROUNDS / 2];
        printf("%-9s %8.1f ms\n", pass_names[p], median[p]);
    }
    printf("hidden    %8.2f  of the communication (goal 0.80)\n",
           1 - (median[OVERLAP] - median[COMPUTE]) / median[COMM]);
}

static int run_worker(lsi_region *region, int rank, int64_t n_turns) {
    worker *w = calloc(1, sizeof *w);
    if (!w) return 1;
    w->n_turns = n_turns;
    ls_status status = lsi_group_attach(region, rank, &w->group);
    if (status == LS_OK) status = measure(w);
    if (status != LS_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, ls_last_message());
        lsi_region_abort(region, status, rank, ls_last_message());
    } else if (rank == 0) {
        report(w);
    }
    for (int which = 0; which < 2; which++) ls_ddp_destroy(w->ddp[which]);
    for (int i = 0; i < PARAMS; i++) free(w->data[i]);
    ls_group_destroy(w->group);
    free(w);
    return status == LS_OK ? 0 : 1;
}

/* Sending all gradients is to take PARAMS * PARAM_MS. */
static void set_link(int n_workers) {
    double bytes = (double)PARAMS * COUNT * 4 * 2 * (n_workers - 1) / n_workers;
    double n_buckets = (double)PARAMS * COUNT * 4 / (BUCKET_MB << 20) + 1;
    double ns = PARAMS * PARAM_MS * 1e6 - n_buckets * LATENCY_US * 1e3;
    char link[64];
    snprintf(link, sizeof link, "latency_us=%d,gb_per_s=%.6f", LATENCY_US, bytes / ns);
    setenv("LOCKSTEP_LINK", link, 1);
    printf("%d workers, %d gradients of 1 MiB, buckets of %d MiB, LOCKSTEP_LINK=%s\n", n_workers,
           PARAMS, BUCKET_MB, link);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int n_workers = argc > 1 ? atoi(argv[1]) : 2, failed = 0;
    lsi_region *region = NULL;
    if (argc > 2 || n_workers < 2 || n_workers > LSI_MAX_RANKS) {
        fprintf(stderr, "usage: overlap [WORKERS], 2 to %d\n", LSI_MAX_RANKS);
        return 2;
    }
    set_link(n_workers);
    int64_t n_turns = calibrate();
    if (lsi_region_create(n_workers, 0, &region) != LS_OK) {
        fprintf(stderr, "%s\n", ls_last_message());
        return 1;
    }
    for (int rank = 0; rank < n_workers; rank++) {
        pid_t child = fork();
        if (child == 0) exit(run_worker(region, rank, n_turns));
        if (child < 0) {
            perror("fork");
            lsi_region_mark_left(region, rank);
            failed = 1;
        }
    }
    for (int how = 0; wait(&how) > 0;)
        if (how != 0) failed = 1;
    lsi_region_close(region);
    return failed;
}
