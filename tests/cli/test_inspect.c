/* `lockstep run --recorder` and `lockstep inspect`: what a run that failed, was killed or hangs
 * says about its last calls. This program is its own worker: `test_cli_inspect worker WHAT`. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>

#include <lockstep/lockstep.h>

#include "base/clock.h"
#include "cli/faults.h"
#include "comm/group.h"

/* ---- the worker ---- */

enum { N_CALLS = 20 };

static ls_status same_calls(ls_group *group) {
    float values[100] = {0};
    for (int i = 0; i < N_CALLS; i++)
        LSI_TRY(ls_all_reduce(group, values, values, 100, LS_DTYPE_F32, LS_OP_SUM, 1, NULL));
    return LS_OK;
}

/* Returns when all others have made a call that this rank has not. */
static void await_others(const ls_group *group) {
    for (int r = 0; r < group->n_ranks; r++)
        while (r != group->rank &&
               atomic_load(&group->ranks[r].published) <= atomic_load(&group->me->published))
            lsi_sleep_ms(1);
}

static ls_status last_call(ls_group *group, const char *what) {
    float values[100] = {0};
    bool is_odd = ls_group_rank(group) == 2;
    if (is_odd && strcmp(what, "differs") != 0) await_others(group);
    if (strcmp(what, "differs") == 0 && is_odd) return ls_barrier(group, NULL);
    if (strcmp(what, "dies") == 0 && is_odd) raise(SIGKILL);
    if (strcmp(what, "misses") == 0 && is_odd) return LS_OK;
    if (strcmp(what, "hangs") == 0 && is_odd) {
        printf("hanging\n");
        fflush(stdout);
        pause();
    }
    if (strncmp(what, "removes ", 8) == 0 && is_odd) {
        (void)rmdir(what + 8);
        raise(SIGKILL);
    }
    return ls_all_gather(group, values, values, 0, LS_DTYPE_F32, NULL);
}

static int work(const char *what) {
    ls_group *group = NULL;
    ls_status status = ls_group_create(60000, &group);
    if (status == LS_OK) status = same_calls(group);
    if (status == LS_OK && strcmp(what, "ends") != 0) status = last_call(group, what);
    ls_group_destroy(group);
    return status == LS_OK ? 0 : 1;
}

/* ---- driving ---- */

static char self[PATH_MAX];

static program *start_workers(void **state, const char *name, const char *what) {
    program_words words = {.n = 0};
    add_split(&words, "run --workers 3 --recorder %s/%s -- %s worker", (const char *)*state, name,
              self);
    add_words(&words, (const char *const[]){what, NULL});
    return program_start(NULL, words.at);
}

/* Options behind `inspect --recorder WHAT`; release the result. */
static void inspect(const char *what, const char *options, program_result *result) {
    program_words words = {.n = 0};
    add_split(&words, "inspect --recorder %s %s", what, options);
    program_run(NULL, words.at, result);
}

static void assert_has(const char *text, const char *const *parts) {
    for (; *parts; parts++)
        if (!strstr(text, *parts)) fail_msg("no '%s' in\n%s", *parts, text);
}

static json_t *world_of(void **state, const char *file) {
    json_t *json = read_json(state, file);
    json_t *world = json_incref(json_array_get(json_object_get(json, "groups"), 0));
    json_decref(json);
    return world;
}

/* ---- after the end ---- */

typedef struct end_case {
    const char *what, *kind;
    const char *said[3];  /* by the run */
    const char *shown[6]; /* by inspect */
} end_case;

static void check_end(void **state, const end_case *c) {
    program_result result;
    char hint[PATH_MAX];
    const char *file = in_scratch(state, c->what);
    snprintf(hint, sizeof hint,
             "; the last calls of all ranks are in %s (lockstep inspect --recorder %s)", file,
             file);
    program_finish(start_workers(state, c->what, c->what), &result);
    assert_refused_with(&result, 1, (const char *const[]){hint, NULL});
    assert_has(result.err, c->said);
    program_release(&result);
    char options[PATH_MAX];
    snprintf(options, sizeof options, "--last 5 --json %s/out.json", (const char *)*state);
    inspect(file, options, &result);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    assert_has(result.out, c->shown);
    program_release(&result);
    json_t *world = world_of(state, "out.json"), *difference = json_object_get(world, "difference");
    assert_string_equal(text_in(difference, "kind"), c->kind);
    assert_int_equal(json_array_size(json_object_get(world, "calls")), 5);
    json_decref(world);
    assert_no_temporary_files(state, "");
}

static void a_failed_run_leaves_its_last_calls(void **state) {
    static const end_case cases[] = {
        {"differs",
         "calls-differ",
         {"differs between ranks", NULL},
         {"LS_ERR_MISMATCH", "joined A  joined A  joined B", "rank 2 called barrier",
          "A: by rank 0, 1: all-gather (F32, count 0", NULL}},
        {"dies",
         "not-joined",
         {"signal 9", NULL},
         {"LS_ERR_PEER", "joined    joined    -  ", "rank 2 has not joined; its last call is #",
          "all-reduce (sum, F32, count 100, scale 1", ", finished\n", NULL}},
        {"misses",
         "not-joined",
         {"rank 2", NULL},
         {"LS_ERR_PEER", "joined    joined    -  ", "; it has left the group\n", NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_end(state, &cases[i]);
}

static void a_killed_training_leaves_its_last_calls(void **state) {
    pid_t pids[3];
    char options[PATH_MAX], who[64];
    program_result result;
    snprintf(options, sizeof options, ENDLESS "--reproducible --workers 3 --recorder %s/train",
             (const char *)*state);
    program *p = start_training(state, NULL, "killed", options);
    program_await_workers(p, 3, pids);
    program_await_out(p, FIRST_STEP);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    snprintf(who, sizeof who, "rank 1, pid %d, step ", (int)pids[1]);
    assert_fails_soon(p, (const char *const[]){"rank 1", "signal 9", "inspect --recorder", NULL});
    inspect(in_scratch(state, "train"), "", &result);
    assert_ended(&result, 0);
    assert_has(result.out, (const char *const[]){who, "all-reduce (sum, F32", "call #", NULL});
    program_release(&result);
}

static void a_run_that_succeeds_or_is_not_asked_leaves_nothing(void **state) {
    program_result result;
    program_words words = {.n = 0};
    program_finish(start_workers(state, "nothing", "ends"), &result);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    program_release(&result);
    assert_int_not_equal(access(in_scratch(state, "nothing"), F_OK), 0);
    add_split(&words, "run --workers 3 -- %s worker differs", self);
    program_run(NULL, words.at, &result);
    assert_refused_with(&result, 1, (const char *const[]){"differs between ranks", NULL});
    assert_null(strstr(result.err, "recorder"));
    program_release(&result);
}

static void a_file_that_cannot_be_written_hides_no_error(void **state) {
    program_result result;
    char what[PATH_MAX];
    assert_int_equal(mkdir(in_scratch(state, "folder"), 0777), 0);
    snprintf(what, sizeof what, "removes %s/folder", (const char *)*state);
    program_finish(start_workers(state, "folder/calls", what), &result);
    assert_refused_with(&result, 1,
                        (const char *const[]){
                            "rank 2 (pid ", "signal 9",
                            "; the last calls of all ranks could not be written: ", "folder/calls",
                            NULL});
    program_release(&result);
}

/* ---- alive ---- */

static void check_alive(void **state, pid_t pid, pid_t launcher) {
    program_result result;
    char number[32], options[PATH_MAX];
    snprintf(number, sizeof number, "%d", (int)pid);
    snprintf(options, sizeof options, "--last 3 --group 0 --json %s/alive.json",
             (const char *)*state);
    inspect(number, options, &result);
    assert_ended(&result, 0);
    assert_has(result.out, (const char *const[]){"group 0 (world), 3 ranks\n", "all-gather (F32",
                                                 "rank 2 has not joined", NULL});
    program_release(&result);
    json_t *world = world_of(state, "alive.json");
    assert_string_equal(text_in(json_object_get(world, "difference"), "kind"), "not-joined");
    json_decref(world);
    assert_true(process_lives(launcher) && process_lives(pid));
}

static void a_run_that_hangs_is_shown_from_any_of_its_processes(void **state) {
    pid_t pids[3];
    program_result result;
    program *p = start_workers(state, "hangs", "hangs");
    program_await_workers(p, 3, pids);
    program_await_out(p, "hanging");
    check_alive(state, program_pid(p), program_pid(p));
    for (int r = 0; r < 3; r++) check_alive(state, pids[r], program_pid(p));
    kill(pids[2], SIGSTOP); /* cannot answer, need not */
    check_alive(state, pids[2], program_pid(p));
    kill(program_pid(p), SIGKILL);
    program_finish(p, &result);
    program_release(&result);
    for (int r = 0; r < 3; r++) assert_process_ends(pids[r], END_MS);
}

/* ---- wrong use ---- */

static void wrong_requests_are_refused(void **state) {
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    put_text(in_scratch(state, "text"), "no dump");
    program_result result;
    program_finish(start_workers(state, "dump", "differs"), &result);
    assert_ended(&result, 1);
    program_release(&result);
    const char *dump = in_scratch(state, "dump"), *text = in_scratch(state, "text");
    const struct {
        const char *what, *options, *said;
    } rows[] = {
        {"/no/such/file", "", "/no/such/file: No such file"},
        {text, "", "cut short"},
        {"/", "", "no plain file"},
        {"0", "", "expected a file or the number of a process"},
        {"99999999999999999999", "", "expected a file or the number of a process"},
        {"2147483647", "", "there is no process 2147483647"},
        {pid, "", "has no shared region of Lockstep"},
        {dump, "--last 0", "--last"},
        {dump, "--last 3073", "1 to 3072"},
        {dump, "--group -2", "--group"},
        {dump, "--group 9", "there is no group 9; alive are: 0"},
        {dump, "--json /no/such/file", "/no/such/file"},
        {dump, "more", "unexpected word 'more'"},
        {dump, "--recoder x", "did you mean --recorder"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        inspect(rows[i].what, rows[i].options, &result);
        assert_refused_with(&result, 2, (const char *const[]){rows[i].said, NULL});
        program_release(&result);
    }
    program_run(NULL, (const char *const[]){"inspect", NULL}, &result);
    assert_refused_with(&result, 2, (const char *const[]){"--recorder FILE", NULL});
    program_release(&result);
    static const char *const runs[] = {"run --recorder /no/such/folder/file -- true",
                                       "run --recorder / -- true",
                                       "train --data x --recorder /no/such/folder/file"};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        program_words words = {.n = 0};
        add_split(&words, "%s", runs[i]);
        program_run(NULL, words.at, &result);
        assert_int_equal(result.exit_code, 2);
        program_release(&result);
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "worker") == 0) return work(argv[2]);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_run_leaves_its_last_calls),
        cmocka_unit_test(a_killed_training_leaves_its_last_calls),
        cmocka_unit_test(a_run_that_succeeds_or_is_not_asked_leaves_nothing),
        cmocka_unit_test(a_file_that_cannot_be_written_hides_no_error),
        cmocka_unit_test(a_run_that_hangs_is_shown_from_any_of_its_processes),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
