/* Sharded runs that lose a worker, are told to stop or have a worker that does not move: the run
 * ends soon, says who, and leaves neither half a model nor a file of what was offloaded. */
#include <dirent.h>

#include "cli/faults.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define FSDP "--strategy zero3 --replicas private "
#define HYBRID "--strategy hybrid --shard-group 2 --replicas private "
#define OFFLOADED "--offload params --offload-dir %s/offload "

typedef struct sharding {
    int n_workers;
    const char *options; /* with %s for the scratch folder, or none */
} sharding;

static const sharding shardings[] = {
    {3, "--strategy zero2 --batch-size 3 "},
    {2, FSDP},
    {4, HYBRID},
    {2, FSDP OFFLOADED},
};

static int make_folders(void **state) {
    return make_text(state) != 0 || mkdir(in_scratch(state, "offload"), 0777) != 0;
}

static void assert_nothing_offloaded(void **state) {
    DIR *folder = opendir(in_scratch(state, "offload"));
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.') fail_msg("%s is left in the offload folder", entry->d_name);
    closedir(folder);
}

/* A run of a sharding, result in NAME.json. */
static program *start_sharded(void **state, const program_opts *start, const char *name,
                              const sharding *s, const char *options) {
    char sharded[256], all[1024];
    snprintf(sharded, sizeof sharded, s->options, (const char *)*state);
    snprintf(all, sizeof all, "%s --workers %d %s", options, s->n_workers, sharded);
    return start_training(state, start, name, all);
}

/* ---- a worker dies ---- */

/* Where a run spends most of its time, the third as much of it as it can in updates. */
typedef struct phase {
    const char *options, *link;
} phase;

static const phase phases[] = {
    {"--n-layer 4", "LOCKSTEP_LINK=latency_us=20000"}, /* gathers */
    {"--checkpoint-activations full --n-layer 2 --n-embd 64", NULL},
    {"--n-layer 2 --n-embd 256 --seq-len 1 --batch-size 4", NULL},
    {"--val-fraction 0.5 --eval-every 1 --eval-samples 180", NULL},
};

static void kill_worker_in(void **state, const sharding *s, const phase *in, const char *until,
                           int delay_ms, int rank) {
    const char *const environment[] = {in->link, NULL};
    const program_opts start = {.environment = environment};
    pid_t pids[8];
    char options[512], who[64];
    snprintf(options, sizeof options, ENDLESS "%s", in->options);
    program *p = start_sharded(state, &start, "killed", s, options);
    program_await_workers(p, s->n_workers, pids);
    if (until) program_await_out(p, until);
    lsi_sleep_ms(delay_ms);
    assert_int_equal(kill(pids[rank], SIGKILL), 0);
    snprintf(who, sizeof who, "rank %d (pid %d)", rank, (int)pids[rank]);
    assert_fails_soon(p, (const char *const[]){"lockstep: ", who, "signal 9", NULL});
    assert_int_not_equal(access(in_scratch(state, "killed/model"), F_OK), 0);
    assert_nothing_offloaded(state);
    remove_in_scratch(state, "killed");
}

static void a_worker_killed_in_any_phase_ends_the_run(void **state) {
    static const int delays_ms[] = {0, 37};
    for (size_t i = 0; i < COUNT_OF(shardings); i++)
        for (size_t k = 0; k < COUNT_OF(phases); k++)
            for (size_t d = 0; d < COUNT_OF(delays_ms); d++)
                kill_worker_in(state, &shardings[i], &phases[k], FIRST_STEP, delays_ms[d],
                               (int)(k + d) % shardings[i].n_workers);
}

static void a_worker_killed_while_shards_are_made_ends_the_run(void **state) {
    for (size_t i = 0; i < COUNT_OF(shardings); i++)
        for (int delay_ms = 0; delay_ms < 50; delay_ms += 10)
            kill_worker_in(state, &shardings[i], &phases[2], NULL, delay_ms,
                           delay_ms / 10 % shardings[i].n_workers);
}

/* All values are collected for it, so the others are in the middle of it as well. */
static void a_worker_killed_while_saving_leaves_no_half_model(void **state) {
    for (size_t i = 0; i < COUNT_OF(shardings); i++)
        for (int rank = 0; rank < 2; rank++) {
            pid_t pids[8];
            char who[32];
            program *p = start_sharded(state, NULL, "saving", &shardings[i], ENDLESS "--n-embd 64");
            program_await_workers(p, shardings[i].n_workers, pids);
            program_await_out(p, FIRST_STEP);
            int fd = block_saving(state, "saving", pids[0]);
            kill(program_pid(p), SIGTERM);
            await_saving(fd);
            kill(pids[rank], SIGKILL);
            snprintf(who, sizeof who, "rank %d", rank);
            assert_fails_soon(p, (const char *const[]){who, "signal 9", NULL});
            close(fd);
            assert_int_not_equal(access(in_scratch(state, "saving/model/model.safetensors"), F_OK),
                                 0);
            assert_nothing_offloaded(state);
            remove_in_scratch(state, "saving");
        }
}

static void a_killed_launcher_takes_its_workers_along(void **state) {
    for (size_t i = 0; i < COUNT_OF(shardings); i++) {
        pid_t pids[8];
        program_result result;
        program *p = start_sharded(state, NULL, "orphans", &shardings[i], ENDLESS);
        program_await_workers(p, shardings[i].n_workers, pids);
        program_await_out(p, FIRST_STEP);
        kill(program_pid(p), SIGKILL);
        program_finish(p, &result);
        assert_ended(&result, -SIGKILL);
        for (int r = 0; r < shardings[i].n_workers; r++) assert_process_ends(pids[r], END_MS);
        program_release(&result);
        assert_nothing_offloaded(state);
    }
}

/* ---- asked to stop ---- */

/* The model that a stopped run leaves is that of a run of as many steps. */
static void a_stopped_run_has_the_weights_of_its_steps(void **state) {
    static const char constant[] = "--schedule constant --warmup-steps 0 --reproducible";
    for (size_t i = 0; i < COUNT_OF(shardings); i++) {
        char options[256];
        program_result result;
        snprintf(options, sizeof options, ENDLESS "%s", constant);
        program *p = start_sharded(state, NULL, "stopped", &shardings[i], options);
        program_await_out(p, FIRST_STEP);
        kill(program_pid(p), SIGTERM);
        assert_fails_soon(p, (const char *const[]){"stopping after the current step", "signal 15",
                                                   "after step", "stopped/model", NULL});
        json_t *stopped = result_of(state, "stopped");
        file_bytes model = bytes_of(state, "stopped/model/model.safetensors");
        assert_loads(state, "stopped/model");
        assert_no_temporary_files(state, "stopped");
        assert_nothing_offloaded(state);

        snprintf(options, sizeof options, ENDLESS "%s --steps %d", constant,
                 (int)number_of(stopped, "steps"));
        program_finish(start_sharded(state, NULL, "whole", &shardings[i], options), &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *whole = result_of(state, "whole");
        assert_same_weights(stopped, whole, shardings[i].options);
        assert_unchanged(state, "whole/model/model.safetensors", model);
        json_decref(whole);
        json_decref(stopped);
        lsi_free(model.data);
    }
}

/* ---- a worker that does not move ---- */

/* By its rank in the world, also in a group of some ranks. */
static void a_stopped_worker_is_named_when_time_is_up(void **state) {
    for (size_t i = 0; i < COUNT_OF(shardings); i++)
        for (int k = 0; k < 2; k++) {
            const sharding *s = &shardings[i];
            int rank = k == 0 ? 0 : s->n_workers - 1;
            pid_t pids[8];
            char who[32];
            program *p = start_sharded(state, NULL, "stuck", s, ENDLESS "--timeout-ms 1000");
            program_await_workers(p, s->n_workers, pids);
            program_await_out(p, FIRST_STEP);
            kill(pids[rank], SIGSTOP);
            snprintf(who, sizeof who, "rank %d did not", rank);
            assert_fails_soon(p, (const char *const[]){"waited 1", who, NULL});
            assert_nothing_offloaded(state);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_killed_in_any_phase_ends_the_run),
        cmocka_unit_test(a_worker_killed_while_shards_are_made_ends_the_run),
        cmocka_unit_test(a_worker_killed_while_saving_leaves_no_half_model),
        cmocka_unit_test(a_killed_launcher_takes_its_workers_along),
        cmocka_unit_test(a_stopped_run_has_the_weights_of_its_steps),
        cmocka_unit_test(a_stopped_worker_is_named_when_time_is_up),
    };
    return cmocka_run_group_tests(tests, make_folders, remove_scratch);
}
