/* Learning rate over the steps of a run.
 *
 *     lr
 *     peak        **-._                   warm-up reaches the peak at step warmup - 1,
 *               *      '-.                decay begins there at step warmup
 *            *            '-.
 *     min  *                 '-*------    min would be the rate of step total
 *          0    warmup       total
 *
 * Step s < warmup: peak * (s + 1) / warmup, so the first step already learns. From there the share
 * p = (s - warmup) / (total - warmup) of the way decides: cosine min + (peak - min) (1 + cos(pi p))
 * / 2, linear peak + (min - peak) p. As in the field's other schedules a run of total steps ends
 * one tick before min: linear from 1 to 0 over 100 steps has 0.5 at step 50. */
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
    double span = (double)(schedule->total_steps - schedule->warmup_steps);
    return decayed(schedule, (double)(step - schedule->warmup_steps) / span);
}
