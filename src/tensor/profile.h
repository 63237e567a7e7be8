/* Where the time of steps goes: per op and phase the calls, the time and the operations of its
 * matrix products. One thread at a time. */
#ifndef LSI_TENSOR_PROFILE_H
#define LSI_TENSOR_PROFILE_H

#include <stdint.h>
#include <stdio.h>

#include "base/message.h"

typedef enum lsi_phase {
    LSI_PHASE_FORWARD,
    LSI_PHASE_AGAIN,
    LSI_PHASE_BACKWARD,
    LSI_PHASE_STEP
} lsi_phase;

typedef struct lsi_profile lsi_profile;

LS_CHECKED ls_status lsi_profile_create(lsi_profile **profile);
void lsi_profile_destroy(lsi_profile *profile); /* NULL does nothing */
/* name: a string literal. */
void lsi_profile_add(lsi_profile *profile, const char *name, lsi_phase phase, int64_t ns,
                     double flops);
/* Forgets what was added: after warming up. */
void lsi_profile_clear(lsi_profile *profile);
/* A table, longest first: milliseconds per step and share of wall_ns, the time of n_steps. */
void lsi_profile_print(const lsi_profile *profile, int64_t n_steps, int64_t wall_ns, FILE *out);

#endif
