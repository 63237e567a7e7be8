/* A table of (name, phase), searched from its start: a model has a dozen kinds of ops. */
#include "tensor/profile.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"

enum { MAX_ROWS = 128 };

typedef struct row {
    const char *name;
    lsi_phase phase;
    int64_t n_calls, ns;
    double flops;
} row;

struct lsi_profile {
    int n_rows;
    row rows[MAX_ROWS]; /* the last one takes what finds no place */
};

static const char *const phase_names[] = {
    [LSI_PHASE_FORWARD] = "forward",
    [LSI_PHASE_AGAIN] = "recomputed",
    [LSI_PHASE_BACKWARD] = "backward",
    [LSI_PHASE_STEP] = "",
};

ls_status lsi_profile_create(lsi_profile **profile) {
    lsi_profile *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    *profile = made;
    return LS_OK;
}

void lsi_profile_destroy(lsi_profile *profile) {
    lsi_free(profile);
}

void lsi_profile_clear(lsi_profile *profile) {
    profile->n_rows = 0;
}

static row *find(lsi_profile *profile, const char *name, lsi_phase phase) {
    for (int i = 0; i < profile->n_rows; i++)
        if (profile->rows[i].name == name && profile->rows[i].phase == phase)
            return &profile->rows[i];
    if (profile->n_rows == MAX_ROWS) return &profile->rows[MAX_ROWS - 1];
    row *made = &profile->rows[profile->n_rows++];
    *made = (row){.name = profile->n_rows == MAX_ROWS ? "others" : name, .phase = phase};
    return made;
}

void lsi_profile_add(lsi_profile *profile, const char *name, lsi_phase phase, int64_t ns,
                     double flops) {
    row *at = find(profile, name, phase);
    at->n_calls++;
    at->ns += ns;
    at->flops += flops;
}

static int compare_rows(const void *a, const void *b) {
    const row *x = a, *y = b;
    return x->ns > y->ns ? -1 : x->ns < y->ns;
}

static void print_row(const row *r, int64_t n_steps, int64_t wall_ns, FILE *out) {
    double steps = (double)n_steps, ns = (double)r->ns;
    fprintf(out, "%-18s %-10s %9.1f %10.2f %6.1f%%", r->name, phase_names[r->phase],
            (double)r->n_calls / steps, ns / steps / 1e6, 100.0 * ns / (double)wall_ns);
    if (r->flops > 0) fprintf(out, " %9.1f", r->flops / ns);
    fputc('\n', out);
}

void lsi_profile_print(const lsi_profile *profile, int64_t n_steps, int64_t wall_ns, FILE *out) {
    if (n_steps < 1 || wall_ns < 1) return;
    row sorted[MAX_ROWS];
    int64_t known_ns = 0;
    for (int i = 0; i < profile->n_rows; i++) {
        sorted[i] = profile->rows[i];
        known_ns += sorted[i].ns;
    }
    qsort(sorted, (size_t)profile->n_rows, sizeof *sorted, compare_rows);
    fprintf(out, "profile of %" PRId64 " steps, per step:\n", n_steps);
    fprintf(out, "%-18s %-10s %9s %10s %7s %9s\n", "op", "phase", "calls", "ms", "share",
            "GFLOP/s");
    for (int i = 0; i < profile->n_rows; i++) print_row(&sorted[i], n_steps, wall_ns, out);
    print_row(&(row){.name = "the rest", .phase = LSI_PHASE_STEP, .ns = wall_ns - known_ns},
              n_steps, wall_ns, out);
}
