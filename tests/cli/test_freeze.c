/* `lockstep train --freeze` where units are gathered: how often frozen parameters are, and that no
 * worker ever has all of them. (Bits: test_sharding_parity; formulas of memory: test_memory.) */
#include "cli/train_program.h"

#include <stdlib.h>

#define FSDP "--workers 2 --strategy zero3 --replicas private --n-layer 2 --steps 2 "

/* The number before the name of a row of --print-buckets. */
static int gathers_of(const char *out, const char *name) {
    char end[64];
    snprintf(end, sizeof end, "  %s\n", name);
    const char *at = strstr(out, end);
    if (!at) fail_msg("no bucket begins with %s in\n%s", name, out);
    while (at[-1] != ' ') at--;
    return atoi(at);
}

/* Backward does nothing before the first unit with something to train, and reads nothing there. */
static void what_backward_does_not_reach_is_gathered_for_forward_only(void **state) {
    enum { N_MICRO = 2 }; /* of a worker */
    static const struct {
        const char *options, *name;
        int n_gathers; /* in a micro-batch */
    } rows[] = {
        {"--freeze h.1.", "h.0.mlp.c_proj.bias", 2},
        {"--freeze h.1.", "h.1.mlp.c_proj.bias", 2},
        {"--freeze wte,wpe,h.0.", "wpe.weight", 1},
        {"--freeze wte,wpe,h.0.", "h.0.mlp.c_proj.bias", 1},
        {"--freeze wte,wpe,h.0.", "h.1.mlp.c_proj.bias", 2},
        {"--freeze wte,wpe,h.0.", "wte.weight", 2}, /* by the first unit and the last */
        {"--freeze wte,wpe,h.0.attn", "h.0.attn.c_proj.bias", 2},
        {"--freeze wte,wpe,h.", "h.1.mlp.c_proj.bias", 1},
        {"--freeze wte,wpe,h.0. --reshard no", "h.0.mlp.c_proj.bias", 1},
        {"--freeze wte,wpe,h.0. --reshard 2 --prefetch 3", "h.0.mlp.c_proj.bias", 1},
        {"--freeze wte,wpe,h.0. --unit 1000000", "h.0.mlp.c_proj.bias", 1},
        {"--freeze wpe --persist-below 1000000", "wpe.weight", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[256];
        program_result result;
        snprintf(options, sizeof options, FSDP "--print-buckets %s", rows[i].options);
        program_finish(start_training(state, NULL, "run", options), &result);
        assert_ended(&result, 0);
        int found = gathers_of(result.out, rows[i].name);
        if (found != N_MICRO * rows[i].n_gathers)
            fail_msg("%s: %d gathers of %s, expected %d in\n%s", rows[i].options, found,
                     rows[i].name, N_MICRO * rows[i].n_gathers, result.out);
        program_release(&result);
        remove_in_scratch(state, "run");
    }
}

/* Not even at the start. */
static void no_worker_ever_has_all_frozen_parameters(void **state) {
    static const struct {
        const char *options;
        double bytes; /* of a parameter with each worker */
    } rows[] = {{"--dtype f32", 4 / 2.0}, {"--dtype bf16", 2 / 2.0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[256];
        program_result result;
        snprintf(options, sizeof options, FSDP "--n-embd 64 --freeze wte,wpe,h.0. %s",
                 rows[i].options);
        program_finish(start_training(state, NULL, "run", options), &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *all = result_of(state, "run"), *row;
        double expected = rows[i].bytes * number_of(all, "n_params");
        size_t r;
        json_array_foreach(json_object_get(all, "ranks"), r, row) {
            double found = number_of(json_object_get(row, "peak_bytes"), "params");
            if (found < 0.98 * expected || found > 1.02 * expected)
                fail_msg("%s, rank %d: %.0f bytes of parameters at peak, expected %.0f",
                         rows[i].options, (int)r, found, expected);
        }
        json_decref(all);
        remove_in_scratch(state, "run");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_backward_does_not_reach_is_gathered_for_forward_only),
        cmocka_unit_test(no_worker_ever_has_all_frozen_parameters),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
