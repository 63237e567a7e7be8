/* Values of parameters under sharded strategies, from start to end: weights come from a folder
 * shard by shard, and are put together again one parameter at a time, with the bits and the files
 * of ddp; and what happens when rank 0 fails in the middle of that. */
#include "checkpoint/model_folder.h"
#include "cli/faults.h"
#include "cli/model_program.h"

static const char *const strategies[] = {
    "ddp", /* the others are held to it */
    "zero1 --bucket-cap-mb 0.004 --first-bucket-mb 0.001",
    "zero3 --replicas private",
    "zero3 --replicas private --persist-below 100 --unit 1000 --offload params",
    "hybrid --replicas private --shard-group 2",
    NULL,
};

static void assert_same_file(void **state, const char *name, file_bytes expected) {
    file_bytes found = bytes_of(state, name);
    if (found.n != expected.n || memcmp(found.data, expected.data, found.n) != 0)
        fail_msg("%s is not as ddp writes it", name);
    lsi_free(found.data);
}

/* Trains in every way, with weights from FOLDER/start. */
static void assert_strategies_agree(void **state, const char *options) {
    json_t *first = NULL;
    file_bytes weights = {0};
    for (int s = 0; strategies[s]; s++) {
        char what[512];
        snprintf(what, sizeof what, "%s --strategy %s", options, strategies[s]);
        json_t *result =
            train(state, "run", "--init %s/start --reproducible --steps 2 --workers 4 %s",
                  (const char *)*state, what);
        if (!first) {
            first = json_incref(result);
            weights = bytes_of(state, "run/model/model.safetensors");
        }
        assert_same_weights(first, result, what);
        assert_same_file(state, "run/model/model.safetensors", weights);
        json_decref(result);
        remove_in_scratch(state, "run");
    }
    json_decref(first);
    lsi_free(weights.data);
}

static void sharded_runs_begin_with_the_weights_of_a_folder(void **state) {
    static const struct {
        lsi_model_save_opts saved;
        const char *options;
    } rows[] = {
        {{.tokenizer = "byte"}, "--dtype f32 --n-layer 2 --seq-len 12"},
        {{.tokenizer = "byte", .dtype = LS_DTYPE_BF16, .shard_bytes = 3000},
         "--dtype bf16 --n-layer 2 --seq-len 12"},
        /* frozen parameters keep their values to the bit, whatever computes with them */
        {{.tokenizer = "byte"}, "--dtype bf16 --n-layer 2 --seq-len 12 --freeze wte,h.0."},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        lsi_model *model = make_byte_model(9);
        assert_ok(lsi_model_save(model, &rows[r].saved, in_scratch(state, "start")));
        lsi_model_destroy(model);
        assert_strategies_agree(state, rows[r].options);
        remove_in_scratch(state, "start");
    }
}

/* ---- rank 0 in the middle of saving ---- */

/* The others wait for the next parameter longer than for a missing worker, and hear of a failure.
 */
static void ranks_wait_for_the_disk_of_rank_0_and_end_with_its_error(void **state) {
    static const char *const rows[] = {"zero1", "hybrid --replicas private --shard-group 2"};
    for (size_t s = 0; s < sizeof rows / sizeof *rows; s++) {
        char options[256];
        pid_t pids[4];
        snprintf(options, sizeof options,
                 ENDLESS "--workers 4 --n-embd 64 --timeout-ms 700 --strategy %s", rows[s]);
        program *p = start_training(state, NULL, "run", options);
        program_await_workers(p, 4, pids);
        program_await_out(p, FIRST_STEP);
        int fd = block_saving(state, "run", pids[0]);
        kill(program_pid(p), SIGTERM);
        await_saving(fd);
        lsi_sleep_ms(1200);
        for (int r = 0; r < 4; r++)
            if (!process_lives(pids[r])) fail_msg("%s: rank %d is gone", rows[s], r);
        close(fd); /* now its write fails */
        assert_fails_soon(p, (const char *const[]){"rank 0", "saving the model: ",
                                                   "model.safetensors", "Broken pipe", NULL});
        assert_int_not_equal(access(in_scratch(state, "run/model/model.safetensors"), F_OK), 0);
        remove_in_scratch(state, "run");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_runs_begin_with_the_weights_of_a_folder),
        cmocka_unit_test(ranks_wait_for_the_disk_of_rank_0_and_end_with_its_error),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
