/* `lockstep train --comm-hook` from outside: every hook learns as training without one does, and
 * sends the bytes that docs/hooks.md says. */
#include <math.h>

#include "checkpoint/model_folder.h"
#include "cli/train_program.h"
#include "nn/model.h"

/* final loss / final loss without a hook, at most; what they lose after 60 steps is far less. */
static const struct {
    const char *name;
    double at_most;
} hooks[] = {{"allreduce", 1}, {"noop", 1.05}, {"bf16", 1.005},   {"fp16", 1.01},
             {"int8", 1.02},   {"topk", 1.1},  {"powersgd", 1.05}};
enum { N_HOOKS = sizeof hooks / sizeof hooks[0] };

static void loss_falls_with_every_hook_as_it_does_without(void **state) {
    static const char options[] = "--steps 60 --lr 1e-2 --workers 2";
    json_t *none = train(state, "hook", "%s", options);
    for (int i = 0; i < N_HOOKS; i++) {
        json_t *r = train(state, "hook", "%s --comm-hook %s", options, hooks[i].name);
        double last = number_of(r, "loss_last"), expected = number_of(none, "loss_last");
        assert_string_equal(text_in(r, "comm_hook"), hooks[i].name);
        if (!(last <= hooks[i].at_most * expected && last < 0.7 * number_of(r, "loss_first")))
            fail_msg("%s: loss %g, expected at most %g times %g", hooks[i].name, last,
                     hooks[i].at_most, expected);
        bool is_same = strcmp(text_in(r, "weights_sha256"), text_in(none, "weights_sha256")) == 0;
        assert_true(is_same == (i == 0));
        json_decref(r);
    }
    json_decref(none);
}

/* Of a matrix of N rows and M columns, 8 f r (N + M) bytes where that saves enough; else 8 f. */
static double powersgd_bytes(const lsi_model *model, double f) {
    const double rank = 4, min_rate = 2;
    double bytes = 0;
    for (int i = 0; i < model->n_params; i++) {
        double count = (double)model->params[i].count, rows = (double)model->shapes[i].dims[0];
        double sides = rows + count / rows;
        bool is_thin = model->shapes[i].n_dims >= 2 && count > min_rate * rank * sides;
        bytes += 8 * f * (is_thin ? rank * sides : count);
    }
    return bytes;
}

/* The table of docs/hooks.md; topk's share is 1 %. */
static double bytes_of_hook(const char *name, const lsi_model *model, int n) {
    double f = (n - 1.0) / n, elems = (double)model->n_elems;
    const struct {
        const char *name;
        double bytes;
    } rows[] = {{"allreduce", 8 * f * elems},
                {"noop", 0},
                {"bf16", 4 * f * elems},
                {"fp16", 4 * f * elems},
                {"int8", (2 + 8 / 256.0) * f * elems},
                {"topk", 8 * 0.01 * (n - 1) * elems},
                {"powersgd", powersgd_bytes(model, f)}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].bytes;
    fail_msg("no row for hook %s", name);
    return 0;
}

static void bytes_of_hooks_are_those_of_their_table(void **state) {
    enum { N = 4, SLACK_BYTES = 8 * 64 * N }; /* slices and blocks are whole */
    for (int i = 0; i < N_HOOKS; i++) {
        lsi_model *model;
        char *tokenizer;
        json_t *r = train(state, "bytes",
                          "--steps 2 --workers %d --n-layer 2 --n-embd 64 --hook-start-step 0 "
                          "--comm-hook %s",
                          N, hooks[i].name);
        assert_ok(lsi_model_load(in_scratch(state, "bytes/model"), &model, &tokenizer));
        double expected = bytes_of_hook(hooks[i].name, model, N),
               found = number_of(r, "bytes_sent");
        if (!(fabs(found - expected) <= SLACK_BYTES))
            fail_msg("%s: %.0f bytes sent, expected %.0f", hooks[i].name, found, expected);
        lsi_model_destroy(model);
        lsi_free(tokenizer);
        json_decref(r);
    }
}

static void replicas_that_differ_are_said_to(void **state) {
    const struct {
        const char *options;
        bool is_said;
    } rows[] = {{"--steps 2 --workers 2 --comm-hook noop", true}, {"--steps 2 --workers 2", false}};
    for (int i = 0; i < 2; i++) {
        program_result result;
        program_finish(start_training(state, NULL, "noop", rows[i].options), &result);
        assert_ended(&result, 0);
        assert_true(!!strstr(result.out, "replicas         differ") == rows[i].is_said);
        program_release(&result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_falls_with_every_hook_as_it_does_without),
        cmocka_unit_test(bytes_of_hooks_are_those_of_their_table),
        cmocka_unit_test(replicas_that_differ_are_said_to),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
