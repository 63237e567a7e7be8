/* Workers and launchers that die or are told to stop, outputs that are closed: the program ends
 * soon, says who and where, and leaves neither a process nor half a model. */
#include <sys/resource.h>

#include "cli/faults.h"

/* ---- a worker dies ---- */

static void kill_worker_when(void **state, const char *until, int delay_ms, int rank,
                             int signal_number) {
    enum { N = 3 };
    pid_t pids[N];
    char who[32], why[32];
    program *p = start_training(state, NULL, "killed", ENDLESS "--reproducible --workers 3");
    program_await_workers(p, N, pids);
    if (until) program_await_out(p, until);
    lsi_sleep_ms(delay_ms);
    assert_int_equal(kill(pids[rank], signal_number), 0);
    snprintf(who, sizeof who, "rank %d (pid %d)", rank, (int)pids[rank]);
    snprintf(why, sizeof why, "signal %d", signal_number);
    assert_fails_soon(p, (const char *const[]){"lockstep: ", who, why, NULL});
    assert_int_not_equal(access(in_scratch(state, "killed/model"), F_OK), 0);
    remove_in_scratch(state, "killed");
}

static void a_worker_killed_at_any_moment_ends_the_run(void **state) {
    for (int rank = 0; rank < 3; rank++) kill_worker_when(state, NULL, 0, rank, SIGKILL);
    /* in the first step, or while it is being made ready for */
    for (int delay_ms = 5; delay_ms < 200; delay_ms *= 2)
        kill_worker_when(state, NULL, delay_ms, delay_ms % 3, SIGKILL);
    for (int rank = 0; rank < 3; rank++) kill_worker_when(state, FIRST_STEP, 0, rank, SIGKILL);
    kill_worker_when(state, LATER_STEP, 0, 1, SIGKILL);
    kill_worker_when(state, FIRST_STEP, 0, 2, SIGTERM);
    kill_worker_when(state, FIRST_STEP, 0, 1, SIGABRT);
}

/* Starts a run, stops it by SIGTERM, and returns when rank 0 is in the middle of its weights. */
static program *start_and_await_saving(void **state, const char *name, pid_t pids[2], int *fd) {
    program *p = start_training(state, NULL, name, ENDLESS "--workers 2 --n-embd 64");
    program_await_workers(p, 2, pids);
    program_await_out(p, FIRST_STEP);
    *fd = block_saving(state, name, pids[0]);
    kill(program_pid(p), SIGTERM);
    await_saving(*fd);
    return p;
}

static void a_worker_killed_while_saving_leaves_no_half_model(void **state) {
    for (int rank = 0; rank < 2; rank++) {
        pid_t pids[2];
        char who[32];
        int fd = -1;
        program *p = start_and_await_saving(state, "saving", pids, &fd);
        kill(pids[rank], SIGKILL);
        snprintf(who, sizeof who, "rank %d", rank);
        assert_fails_soon(p, (const char *const[]){who, "signal 9", NULL});
        close(fd);
        assert_int_not_equal(access(in_scratch(state, "saving/model/model.safetensors"), F_OK), 0);
        remove_in_scratch(state, "saving");
    }
}

static void a_killed_launcher_takes_its_workers_along(void **state) {
    static const char *const moments[] = {NULL, FIRST_STEP};
    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; i++) {
        pid_t pids[3];
        program_result result;
        program *p = start_training(state, NULL, "orphans", ENDLESS "--reproducible --workers 3");
        program_await_workers(p, 3, pids);
        if (moments[i]) program_await_out(p, moments[i]);
        kill(program_pid(p), SIGKILL);
        program_finish(p, &result);
        assert_ended(&result, -SIGKILL);
        for (int r = 0; r < 3; r++) assert_process_ends(pids[r], END_MS);
        program_release(&result);
    }
}

/* ---- asked to stop ---- */

static void assert_stopped_run_is_whole(void **state, const char *name) {
    char model[64];
    json_t *r = result_of(state, name), *steps = metrics_with(state, name, "loss");
    assert_true(number_of(r, "steps") >= 1);
    assert_int_equal(json_array_size(steps), number_of(r, "steps"));
    snprintf(model, sizeof model, "%s/model", name);
    assert_loads(state, model);
    assert_no_temporary_files(state, name);
    json_decref(steps);
    json_decref(r);
}

static void a_signal_stops_after_the_step_and_saves(void **state) {
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        char what[32];
        program *p = start_training(state, NULL, "stopped", ENDLESS "--workers 2");
        program_await_out(p, FIRST_STEP);
        kill(program_pid(p), signals[i]);
        snprintf(what, sizeof what, "signal %d", signals[i]);
        assert_fails_soon(p, (const char *const[]){"stopping after the current step", what,
                                                   "after step", "stopped/model", NULL});
        assert_stopped_run_is_whole(state, "stopped");
    }
}

static int lead_group(void *context) {
    (void)context;
    return setpgid(0, 0);
}

/* Ctrl-C reaches the whole foreground group; workers must not die of it. */
static void an_interrupt_from_the_terminal_saves_too(void **state) {
    program_opts opts = {.prepare = lead_group};
    pid_t pids[2];
    program *p = start_training(state, &opts, "terminal", ENDLESS "--workers 2");
    program_await_workers(p, 2, pids);
    program_await_out(p, FIRST_STEP);
    assert_int_equal(kill(-program_pid(p), SIGINT), 0);
    assert_fails_soon(p, (const char *const[]){"signal 2", "after step", NULL});
    assert_stopped_run_is_whole(state, "terminal");
}

static void a_second_signal_ends_at_once(void **state) {
    pid_t pids[2];
    int fd = -1;
    program *p = start_and_await_saving(state, "twice", pids, &fd);
    kill(program_pid(p), SIGTERM);
    assert_fails_soon(p, (const char *const[]){"once more stops at once",
                                               "stopped at once by signal "
                                               "15",
                                               NULL});
    close(fd);
    assert_int_not_equal(access(in_scratch(state, "twice/model/model.safetensors"), F_OK), 0);
}

/* ---- a worker that does not move ---- */

static void a_stopped_worker_is_named_when_time_is_up(void **state) {
    for (int rank = 0; rank < 2; rank++) {
        pid_t pids[2];
        char who[32];
        program *p = start_training(state, NULL, "stuck", ENDLESS "--workers 2 --timeout-ms 1000");
        program_await_workers(p, 2, pids);
        program_await_out(p, FIRST_STEP);
        kill(pids[rank], SIGSTOP);
        snprintf(who, sizeof who, "rank %d did not", rank);
        assert_fails_soon(p, (const char *const[]){"waited 1", who, NULL});
    }
}

/* Rank 0's disk may need longer than workers may need for each other. */
static void slow_saving_is_not_a_missing_worker(void **state) {
    pid_t pids[2];
    program_result result;
    program *p = start_training(state, NULL, "slow",
                                ENDLESS "--workers 2 --n-embd 64 "
                                        "--timeout-ms 700");
    program_await_workers(p, 2, pids);
    program_await_out(p, FIRST_STEP);
    int fd = block_saving(state, "slow", pids[0]);
    kill(program_pid(p), SIGTERM);
    await_saving(fd);
    lsi_sleep_ms(1500);
    assert_true(process_lives(pids[0]) && process_lives(pids[1]));
    close(fd); /* now its write fails */
    program_finish(p, &result);
    assert_ended(&result, 1);
    if (!strstr(result.err, "model.safetensors") || !strstr(result.err, "Broken pipe"))
        fail_msg("expected a failed write of model.safetensors, found\n%s", result.err);
    program_release(&result);
}

/* ---- outputs ---- */

typedef struct stream_case {
    const char *name;
    int fd;           /* the stream */
    const char *path; /* what it is; NULL: closed */
} stream_case;

static int set_stream(void *context) {
    const stream_case *c = context;
    if (!c->path) return close(c->fd);
    int fd = open(c->path, O_RDWR);
    return fd < 0 || dup2(fd, c->fd) < 0 || close(fd) != 0;
}

static int close_all_streams(void *context) {
    (void)context;
    return close(0) != 0 || close(1) != 0 || close(2) != 0;
}

/* Writes to it fail with EPIPE. */
static int break_stdout(void *context) {
    int ends[2];
    (void)context;
    return pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0 || close(ends[0]) != 0 ||
           close(ends[1]) != 0;
}

/* Training goes on without its progress: a reader that has seen enough does not cost the model. */
static void training_survives_closed_streams(void **state) {
    static const stream_case closed_in = {"closed in", 0, NULL},
                             closed_out = {"closed out", 1, NULL},
                             closed_err = {"closed err", 2, NULL},
                             full_out = {"full out", 1, "/dev/full"};
    const struct {
        int (*prepare)(void *context);
        const stream_case *context;
    } rows[] = {{set_stream, &closed_in}, {set_stream, &closed_out}, {set_stream, &closed_err},
                {set_stream, &full_out},  {close_all_streams, NULL}, {break_stdout, NULL}};
    json_t *expected = train(state, "heard", "--steps 5 --workers 2");
    file_bytes weights = bytes_of(state, "heard/model/model.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_opts opts = {.prepare = rows[i].prepare,
                             .context = (void *)(uintptr_t)rows[i].context};
        program_result result;
        program_finish(
            start_training(state, &opts, "unheard", "--steps 5 --workers 2 --log-every 1"),
            &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *r = result_of(state, "unheard");
        assert_same_weights(expected, r, "closed streams");
        assert_unchanged(state, "unheard/model/model.safetensors", weights);
        json_decref(r);
    }
    lsi_free(weights.data);
    json_decref(expected);
}

/* Commands that are about their output fail when it cannot be written. */
static void printing_commands_fail_with_their_output(void **state) {
    static const stream_case full_out = {"full", 1, "/dev/full"};
    static const char *const commands[] = {"version", "help", "help train", "help --markdown",
                                           "train --help"};
    program_opts opts[] = {{.prepare = set_stream, .context = (void *)(uintptr_t)&full_out},
                           {.prepare = break_stdout}};
    char generate[PATH_MAX + 64];
    json_decref(train(state, "voice", "--steps 1"));
    snprintf(generate, sizeof generate, "generate --model %s/voice/model", (const char *)*state);
    for (size_t i = 0; i <= sizeof commands / sizeof commands[0]; i++)
        for (size_t k = 0; k < 2; k++) {
            program_words words = {.n = 0};
            program_result result;
            bool is_last = i == sizeof commands / sizeof commands[0];
            add_split(&words, "%s", is_last ? generate : commands[i]);
            program_run(&opts[k], words.at, &result);
            assert_refused_with(&result, 1, (const char *const[]){"cannot write", NULL});
            program_release(&result);
        }
}

/* ---- limits of the system ---- */

static int limit_files(void *context) {
    rlim_t n = (rlim_t)(intptr_t)context;
    struct rlimit limit = {n, n};
    close_range(3, ~0u, 0); /* what the test's own parent left open would count */
    return setrlimit(RLIMIT_NOFILE, &limit);
}

static void few_descriptors_are_answered(void **state) {
    int last = -1;
    /* the search for leaks needs descriptors of its own */
    static const char *const environment[] = {"LSAN_OPTIONS=detect_leaks=0", NULL};
    for (intptr_t n = 4; n < 12; n++) { /* the system needs one to load the program */
        program_opts opts = {
            .environment = environment, .prepare = limit_files, .context = (void *)n};
        program_result result;
        program_finish(start_training(state, &opts, "few", "--steps 1 --workers 2"), &result);
        last = result.exit_code;
        if (last == 0)
            assert_ended(&result, 0);
        else
            assert_refused_with(&result, last == 2 ? 2 : 1,
                                (const char *const[]){"Too many open files", NULL});
        program_release(&result);
    }
    assert_int_equal(last, 0);
}

static int limit_file_size(void *context) {
    struct rlimit limit = {1 << 20, 1 << 20};
    (void)context;
    return setrlimit(RLIMIT_FSIZE, &limit);
}

/* The shared memory counts as a file for this limit; SIGXFSZ must not be the answer. */
static void a_limit_on_file_size_is_answered(void **state) {
    program_opts opts = {.prepare = limit_file_size};
    program_result result;
    program_finish(start_training(state, &opts, "limited", "--steps 1 --workers 2"), &result);
    assert_refused_with(&result, 1, (const char *const[]){"ulimit -f", NULL});
    program_release(&result);
}

/* ---- two runs in one folder ---- */

static void two_runs_in_one_folder_keep_their_files_whole(void **state) {
    enum { ROUNDS = 3 };
    json_decref(train(state, "alone", "--steps 3 --seed 1"));
    json_decref(train(state, "other", "--steps 3 --seed 2"));
    file_bytes a = bytes_of(state, "alone/model/model.safetensors"),
               b = bytes_of(state, "other/model/model.safetensors");
    for (int round = 0; round < ROUNDS; round++) {
        program_result results[2];
        program *runs[] = {start_training(state, NULL, "both", "--steps 3 --seed 1"),
                           start_training(state, NULL, "both", "--steps 3 --seed 2")};
        for (int i = 0; i < 2; i++) {
            program_finish(runs[i], &results[i]);
            assert_ended(&results[i], 0);
            program_release(&results[i]);
        }
        file_bytes saved = bytes_of(state, "both/model/model.safetensors");
        assert_true(saved.n == a.n &&
                    (memcmp(saved.data, a.data, a.n) == 0 || memcmp(saved.data, b.data, b.n) == 0));
        lsi_free(saved.data);
        assert_loads(state, "both/model");
        assert_no_temporary_files(state, "both");
        json_decref(read_json(state, "both/run.json"));
        json_decref(result_of(state, "both"));
    }
    lsi_free(a.data);
    lsi_free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_killed_at_any_moment_ends_the_run),
        cmocka_unit_test(a_worker_killed_while_saving_leaves_no_half_model),
        cmocka_unit_test(a_killed_launcher_takes_its_workers_along),
        cmocka_unit_test(a_signal_stops_after_the_step_and_saves),
        cmocka_unit_test(an_interrupt_from_the_terminal_saves_too),
        cmocka_unit_test(a_second_signal_ends_at_once),
        cmocka_unit_test(a_stopped_worker_is_named_when_time_is_up),
        cmocka_unit_test(slow_saving_is_not_a_missing_worker),
        cmocka_unit_test(training_survives_closed_streams),
        cmocka_unit_test(printing_commands_fail_with_their_output),
        cmocka_unit_test(few_descriptors_are_answered),
        cmocka_unit_test(a_limit_on_file_size_is_answered),
        cmocka_unit_test(two_runs_in_one_folder_keep_their_files_whole),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
