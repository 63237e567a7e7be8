/* Clipping by global norm. The factor is not applied here: it goes into ls_adamw_opts.grad_scale,
 * so a gradient is read once. PyTorch adds 1e-6 to the norm; here a clipped gradient has exactly
 * the norm asked for, up to rounding. */
#include <math.h>

#include <lockstep/optim.h>

double ls_clip_factor(double norm, double max_norm) {
    if (!isfinite(norm)) return NAN;
    if (max_norm <= 0.0 || norm <= max_norm) return 1.0;
    return max_norm / norm;
}
