/* Where a rank's time goes: laps on one clock, less the communication inside of them. */
#include "base/clock.h"
#include "parallel/hybrid.h"
#include "train/worker.h"

/* Time that this rank spent on communication so far: waiting, moving and adding data. */
static int64_t comm_ns(const lsi_worker *w) {
    lsi_group_stats stats;
    lsi_ddp_get_stats(w->ddp, &stats);
    return stats.wait_ns + stats.work_ns;
}

/* Updates within communication. */
static int64_t sink_ns(const lsi_worker *w) {
    lsi_group_stats stats;
    lsi_ddp_get_stats(w->ddp, &stats);
    return stats.sink_ns;
}

void lsi_times_open_step(lsi_worker *w) {
    w->times.opened_sink_ns = sink_ns(w);
    w->times.met_ns += comm_ns(w) - w->times.left_ns;
}

void lsi_times_close_step(lsi_worker *w) {
    w->times.left_ns = comm_ns(w);
}

void lsi_times_begin(lsi_worker *w) {
    lsi_step_times *t = &w->times;
    t->lap_ns = lsi_now_ns();
    t->lap_comm_ns = comm_ns(w) + sink_ns(w);
}

void lsi_times_take_update(lsi_worker *w) {
    w->times.optimizer_ns = sink_ns(w) - w->times.opened_sink_ns;
}

int64_t lsi_times_lap(lsi_worker *w, int64_t *wall_ns) {
    lsi_step_times *t = &w->times;
    int64_t wall = lsi_now_ns() - t->lap_ns, comm = comm_ns(w) + sink_ns(w) - t->lap_comm_ns;
    t->lap_ns += wall;
    t->lap_comm_ns += comm;
    if (wall_ns) *wall_ns = wall;
    return comm < wall ? wall - comm : 0;
}

void lsi_times_report(lsi_worker *w, float times[LSI_REPORTED_TIMES]) {
    lsi_step_times *t = &w->times;
    int64_t now = comm_ns(w);
    times[0] = (float)((double)(t->forward_ns + t->backward_ns) / 1e6);
    times[1] = (float)((double)(now - t->met_ns) / 1e6);
    times[2] = (float)((double)t->optimizer_ns / 1e6);
    t->met_ns = now;
}
