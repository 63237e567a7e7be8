/* Where a rank's time goes: laps on one clock, less the communication inside of them. */
#include "base/clock.h"
#include "parallel/hybrid.h"
#include "train/worker.h"

/* So far: waiting, moving and adding data, and updates within that. */
typedef struct spent {
    int64_t comm_ns, sink_ns;
} spent;

static spent spent_by(const lsi_worker *w) {
    lsi_group_stats stats;
    lsi_ddp_get_stats(w->ddp, &stats);
    return (spent){stats.wait_ns + stats.work_ns, stats.sink_ns};
}

void lsi_times_open_step(lsi_worker *w) {
    spent s = spent_by(w);
    w->times.opened_sink_ns = s.sink_ns;
    w->times.met_ns += s.comm_ns - w->times.left_ns;
}

void lsi_times_close_step(lsi_worker *w) {
    w->times.left_ns = spent_by(w).comm_ns;
}

void lsi_times_begin(lsi_worker *w) {
    lsi_step_times *t = &w->times;
    spent s = spent_by(w);
    t->lap_ns = lsi_now_ns();
    t->lap_comm_ns = s.comm_ns + s.sink_ns;
}

void lsi_times_take_update(lsi_worker *w) {
    w->times.optimizer_ns = spent_by(w).sink_ns - w->times.opened_sink_ns;
}

int64_t lsi_times_lap(lsi_worker *w, int64_t *wall_ns) {
    lsi_step_times *t = &w->times;
    int64_t wall = lsi_now_ns() - t->lap_ns;
    spent s = spent_by(w);
    int64_t comm = s.comm_ns + s.sink_ns - t->lap_comm_ns;
    t->lap_ns += wall;
    t->lap_comm_ns += comm;
    if (wall_ns) *wall_ns = wall;
    return comm < wall ? wall - comm : 0;
}

void lsi_times_report(lsi_worker *w, float times[LSI_REPORTED_TIMES]) {
    lsi_step_times *t = &w->times;
    int64_t now = spent_by(w).comm_ns;
    times[0] = (float)((double)(t->forward_ns + t->backward_ns) / 1e6);
    times[1] = (float)((double)(now - t->met_ns) / 1e6);
    times[2] = (float)((double)t->optimizer_ns / 1e6);
    t->met_ns = now;
}
