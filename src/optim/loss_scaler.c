/* Dynamic loss scaling: Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2,
 * with the rules of PyTorch's torch.amp.GradScaler (_amp_update_scale_).
 *
 *     gradients finite       n_good + 1; at growth_interval: scale * growth_factor, n_good = 0
 *     one of them is not     scale * backoff_factor, n_good = 0, n_skipped + 1, the step is skipped
 *
 * A product beyond a bound becomes the bound, so a scale that has arrived stays there.
 *
 * Invariant: the scale is a power of two. Multiplying and dividing by it changes no bit of a
 * mantissa, so as long as nothing overflows or becomes subnormal a scaled run has the bits of one
 * without scaling. Therefore factors and bounds have to be powers of two as well. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include <lockstep/optim.h>

#include "base/message.h"

static bool is_power_of_two(double value) {
    int exponent;
    return value > 0.0 && isfinite(value) && frexp(value, &exponent) == 0.5;
}

/* Bounds are compared in the order min_scale <= scale <= max_scale. */
ls_status ls_loss_scaler_check(const ls_loss_scaler *scaler) {
    const ls_loss_scaler *s = scaler;
    const struct {
        bool good;
        const char *name, *range;
        double value;
    } rows[] = {
        {is_power_of_two(s->min_scale), "min_scale", "a power of two", s->min_scale},
        {is_power_of_two(s->max_scale) && s->max_scale >= s->min_scale, "max_scale",
         "a power of two, min_scale at least", s->max_scale},
        {is_power_of_two(s->scale) && s->scale >= s->min_scale && s->scale <= s->max_scale, "scale",
         "a power of two from min_scale to max_scale", s->scale},
        {is_power_of_two(s->growth_factor) && s->growth_factor >= 1.0, "growth_factor",
         "a power of two, 1 at least", s->growth_factor},
        {is_power_of_two(s->backoff_factor) && s->backoff_factor < 1.0, "backoff_factor",
         "a power of two below 1", s->backoff_factor},
        {s->growth_interval >= 1, "growth_interval", "1 at least", (double)s->growth_interval},
        {s->n_good >= 0, "n_good", "0 at least", (double)s->n_good},
        {s->n_skipped >= 0, "n_skipped", "0 at least", (double)s->n_skipped},
    };
    char bad[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!rows[i].good && used < sizeof bad)
            used += (size_t)snprintf(bad + used, sizeof bad - used, "%s%s is %g, expected %s",
                                     used ? "; " : "", rows[i].name, rows[i].value, rows[i].range);
    return used ? lsi_fail(LS_ERR_ARGUMENT, "loss scaler: %s", bad) : LS_OK;
}

static void back_off(ls_loss_scaler *scaler) {
    scaler->scale = fmax(scaler->scale * scaler->backoff_factor, scaler->min_scale);
    scaler->n_good = 0;
    scaler->n_skipped++;
}

static void count_good(ls_loss_scaler *scaler) {
    if (++scaler->n_good < scaler->growth_interval) return;
    scaler->scale = fmin(scaler->scale * scaler->growth_factor, scaler->max_scale);
    scaler->n_good = 0;
}

int ls_loss_scaler_update(ls_loss_scaler *scaler, int found_inf) {
    if (found_inf)
        back_off(scaler);
    else
        count_good(scaler);
    return found_inf != 0;
}
