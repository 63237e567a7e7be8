/* Sharded ways where parity would first break: all of them with every model, on a slow link, so
 * that gathers and reductions are in flight for long, and with workers that are stopped and sent on
 * at random moments, in the middle of whatever they do. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "cli/sharding_ways.h"

static const char *const *const lists[] = {strategies, gatherings, meshes, offloads};

/* ---- everything with everything ---- */

static void every_way_trains_every_model_as_ddp_does(void **state) {
    for (size_t m = 0; m < COUNT_OF(language_models); m++)
        for (size_t k = 1; k < COUNT_OF(lists); k++) {
            char options[256];
            int batch = k == 2 ? 24 : 8;
            snprintf(options, sizeof options, STEPS EIGHT "--batch-size %d %s", batch,
                     language_models[m]);
            assert_ways_agree(state, NULL, options, lists[k]);
        }
}

/* ---- a slow link ---- */

static void a_slow_link_changes_no_bit(void **state) {
    static const char *const links[] = {"LOCKSTEP_LINK=latency_us=300",
                                        "LOCKSTEP_LINK=latency_us=50,gb_per_s=0.01"};
    static const char *const options[] = {STEPS EIGHT "--model gpt2 --dtype bf16 --progress inline",
                                          STEPS EIGHT
                                          "--model llama --batch-size 24 --progress thread"};
    for (size_t i = 0; i < COUNT_OF(links); i++)
        for (size_t k = 0; k < COUNT_OF(lists); k++) {
            const char *const environment[] = {links[i], NULL};
            const program_opts start = {.environment = environment};
            assert_ways_agree(state, &start, options[i], lists[k]);
        }
}

/* ---- workers that are held up ---- */

static void sleep_us(long us) {
    const struct timespec time = {0, us * 1000};
    nanosleep(&time, NULL);
}

/* Until the program ends; a worker that is gone already does not mind. */
static int hold_up(program *p, const pid_t *pids, int n_workers, unsigned *seed) {
    int n_stops = 0;
    for (; process_lives(program_pid(p)); n_stops++) {
        pid_t pid = pids[rand_r(seed) % n_workers];
        if (!process_lives(pid)) break;
        kill(pid, SIGSTOP);
        sleep_us(rand_r(seed) % 3000);
        kill(pid, SIGCONT);
        sleep_us(rand_r(seed) % 2000);
    }
    return n_stops;
}

static outcome run_held_up(void **state, const char *options, int n_workers, unsigned seed) {
    pid_t pids[8];
    program_result result;
    if (access(in_scratch(state, "held"), F_OK) == 0) remove_in_scratch(state, "held");
    program *p = start_training(state, NULL, "held", options);
    program_await_workers(p, n_workers, pids);
    int n_stops = hold_up(p, pids, n_workers, &seed);
    program_finish(p, &result);
    assert_ended(&result, 0);
    program_release(&result);
    if (n_stops < 10) fail_msg("%s: only %d stops", options, n_stops);
    return outcome_of(state, "held");
}

static void workers_held_up_change_no_bit(void **state) {
    enum { SEEDS = 3 };
    static const struct {
        int n_workers;
        const char *way;
    } rows[] = {
        {2, "--strategy zero1"},
        {4, "--strategy zero1 --replicas private"},
        {3, "--strategy zero2 --batch-size 3"},
        {4, "--strategy zero2 --replicas private"},
        {2, FSDP},
        {4, FSDP "--prefetch 3"},
        {4, FSDP "--reshard 2 --persist-below 20"},
        {5, FSDP "--reshard no --batch-size 5"},
        {4, "--strategy hybrid --shard-group 2"},
        {4, "--strategy hybrid --shard-group 2 --replicas private"},
        {4, "--strategy hybrid --shard-group 1 --replicas private"},
        {4, "--offload params " FSDP},
        {2, "--offload optimizer --strategy zero2"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char options[512];
        snprintf(options, sizeof options, STEPS EIGHT "--steps 12 --workers %d %s",
                 rows[i].n_workers, rows[i].way);
        outcome calm = run_way(state, NULL, options);
        for (unsigned seed = 1; seed <= SEEDS; seed++) {
            outcome found = run_held_up(state, options, rows[i].n_workers, seed);
            assert_same_outcome(&calm, &found, options);
            outcome_release(&found);
        }
        outcome_release(&calm);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_trains_every_model_as_ddp_does),
        cmocka_unit_test(a_slow_link_changes_no_bit),
        cmocka_unit_test(workers_held_up_change_no_bit),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
