/* Learning rate over the steps of a run.
 *
 *     lr
 *     peak         *-._                   warm-up ends, and decay begins, at step warmup - 1
 *               *       '-.
 *            *             '-.
 *     min  *                  '-*------   last step: total - 1; everything after it
 *          0   warmup - 1     total - 1
 *
 * Step s < warmup: peak * (s + 1) / warmup, so the first step already learns and step warmup - 1
 * has the peak. From there the share p in [0, 1] of the way to step total - 1 decides: cosine
 * min + (peak - min) (1 + cos(pi p)) / 2, linear peak + (min - peak) p. Without warm-up step 0 has
 * the peak; a run of one step trains at it. */
#include <math.h>

#include <lockstep/optim.h>

static const double pi = 3.14159265358979323846;

/* How much of (peak - min) is left after the share p of the decay. */
static double cosine(double p) {
    return 0.5 * (1.0 + cos(pi * p));
}
static double linear(double p) {
    return 1.0 - p;
}
static double constant(double p) {
    (void)p;
    return 1.0;
}

static double (*const decays[])(double) = {
    [LS_SCHEDULE_COSINE] = cosine,
    [LS_SCHEDULE_LINEAR] = linear,
    [LS_SCHEDULE_CONSTANT] = constant,
};

static double decayed(const ls_schedule *schedule, double p) {
    int n_kinds = (int)(sizeof decays / sizeof decays[0]);
    int kind =
        schedule->kind < 0 || schedule->kind >= n_kinds ? LS_SCHEDULE_CONSTANT : schedule->kind;
    return schedule->min_lr + (schedule->peak_lr - schedule->min_lr) * decays[kind](p);
}

double ls_schedule_lr(const ls_schedule *schedule, int64_t step) {
    if (step < 0) step = 0;
    if (step >= schedule->total_steps) return decayed(schedule, 1.0);
    if (step < schedule->warmup_steps)
        return schedule->peak_lr * ((double)(step + 1) / (double)schedule->warmup_steps);
    int64_t origin = schedule->warmup_steps > 0 ? schedule->warmup_steps - 1 : 0;
    int64_t span = schedule->total_steps - 1 - origin;
    return decayed(schedule, span > 0 ? (double)(step - origin) / (double)span : 0.0);
}
